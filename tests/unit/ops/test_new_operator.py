"""An operator is one small function: everything else follows from it."""

import numpy as np
import pytest
from onnx import TensorProto, helper

import pyflame_rt
from pyflame_rt.autodiff import gradient
from pyflame_rt.graph import DType, Graph, Node
from pyflame_rt.ops import evaluate, infer_types, operator
from pyflame_rt.ops.core.registry import unregister
from pyflame_rt.ops.core.value import Value
from pyflame_rt.ops.onnx.math import Exp


@pytest.fixture
def bump():
    @operator(since=1, domain="test")
    def Bump(X: Value, /, *, width: float = 1.0) -> Value:
        return Exp(-(X * X) / width)

    yield Bump
    unregister("Bump", "test")


def one_node(dims, dtype=DType.Float32):
    graph = Graph("one")
    graph.add_input("x", dims, dtype)
    graph.add_node("b", "Bump", ["x"], ["y"], {"width": 2.0}, domain="test")
    graph.add_output("y", dims, dtype)
    return graph


def test_shapes_follow(bump):
    graph = one_node(["N", 3])
    assert infer_types(graph) == []
    assert str(graph.types["y"]) == "float32[N, 3]"


@pytest.mark.parametrize("library", ["numpy", "torch", "mlx"])
def test_three_libraries_follow(bump, library):
    from emberharmony import library as find

    lib = find(library)
    x = np.linspace(-2, 2, 7, dtype=np.float32)
    (y,) = evaluate(Node("b", "Bump", ["x"], ["y"], {"width": 2.0}, "test"), [lib.from_numpy(x)], library)
    np.testing.assert_allclose(lib.to_numpy(y), np.exp(-x * x / 2), rtol=1e-6)


def test_the_gradient_follows(bump):
    graph = gradient(one_node([7], DType.Float64), ["y"], ["x"])
    x = np.linspace(-2, 2, 7)
    _, slope = pyflame_rt.InferenceSession(graph).run(None, {"x": x})
    np.testing.assert_allclose(slope, -x * np.exp(-x * x / 2), rtol=1e-9)


def test_importing_follows(bump):
    node = helper.make_node("Bump", ["x"], ["y"], domain="test", width=2.0)
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [7]) for n in "xy"]
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("test", 1)]
    model = helper.make_model(helper.make_graph([node], "g", infos[:1], infos[1:]), opset_imports=imports)
    x = np.linspace(-2, 2, 7, dtype=np.float32)
    (y,) = pyflame_rt.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    np.testing.assert_allclose(y, np.exp(-x * x / 2), rtol=1e-6)
