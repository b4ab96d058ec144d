import itertools

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import pyflame_rt
from pyflame_rt import DType, Graph
from pyflame_rt.providers import find_provider

FLOAT = TensorProto.FLOAT


def onnx_bytes(nodes, inputs, outputs, initializers=None, *, opset=17, ir_version=9, name="g"):
    infos = [[helper.make_tensor_value_info(n, t, s) for n, t, s in group] for group in (inputs, outputs)]
    weights = [numpy_helper.from_array(v, n) for n, v in (initializers or {}).items()]
    graph = helper.make_graph(nodes, name, *infos, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)
    model.producer_name = "tests"
    return model.SerializeToString()


def unary_bytes(op="Relu", shape=("N", 3), dtype=FLOAT):
    return onnx_bytes([helper.make_node(op, ["x"], ["y"], "n")], [("x", dtype, shape)], [("y", dtype, shape)])


def make_chain(length=2, shape=("N", 3)):
    """x -> Neg -> v0 -> Neg -> v1 ... -> y."""
    graph = Graph("chain")
    graph.add_input("x", shape, DType.Float32)
    names = ["x", *(f"v{i}" for i in range(length - 1)), "y"]
    for i, (a, b) in enumerate(itertools.pairwise(names)):
        graph.add_node(f"n{i}", "Neg", [a], [b])
    graph.add_output("y", shape, DType.Float32)
    return graph


@pytest.fixture
def kit():
    """Small models."""

    class Kit:
        chain = staticmethod(make_chain)
        onnx = staticmethod(onnx_bytes)
        unary = staticmethod(unary_bytes)
        x = np.array([[1.0, -2.0, 3.0]], np.float32)

    return Kit


@pytest.fixture(params=[n for n in pyflame_rt.get_available_providers() if find_provider(n).general])
def provider(request):
    return request.param
