import time

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import pyflame_rt
from pyflame_rt.exporters import onnx_model
from pyflame_rt.graph import verify
from pyflame_rt.importers.onnx_importer import graph_from_bytes

LENGTH = 20_000
SECONDS = 3


@pytest.fixture(scope="module")
def chain():
    nodes, last = [], "x"
    for i in range(LENGTH):
        inputs = [last] if i % 2 else [last, "one"]
        nodes.append(helper.make_node("Relu" if i % 2 else "Add", inputs, [f"v{i}"], f"n{i}"))
        last = f"v{i}"
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("x", last)]
    one = numpy_helper.from_array(np.ones(2, np.float32), "one")
    graph = helper.make_graph(nodes, "chain", infos[:1], infos[1:], [one])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return model.SerializeToString()


@pytest.fixture(scope="module")
def graph(chain):
    return graph_from_bytes(chain)


def timed(step):
    # Time of this thread alone: neighbours on the machine do not count.
    started = time.thread_time()
    result = step()
    assert time.thread_time() - started < SECONDS
    return result


def test_importing(chain):
    assert len(timed(lambda: graph_from_bytes(chain)).nodes) == LENGTH


def test_verifying(graph):
    timed(lambda: verify(graph))


def test_copying(graph):
    assert timed(graph.copy).num_nodes == LENGTH


def test_printing(graph):
    assert timed(lambda: str(graph)).count("\n") > LENGTH


def test_fingerprinting(graph):
    assert timed(graph.fingerprint) == graph.copy().fingerprint()


def test_saving_and_loading(graph):
    data = timed(lambda: pyflame_rt.format.dumps_model(graph))
    assert len(timed(lambda: pyflame_rt.format.loads_model(data)).nodes) == LENGTH


def test_exporting(graph):
    assert len(timed(lambda: onnx_model(graph)).graph.node) == LENGTH


def test_running(graph):
    session = timed(lambda: pyflame_rt.InferenceSession(graph, providers=["ReferenceExecutionProvider"]))
    (result,) = timed(lambda: session.run(None, {"x": np.zeros(2, np.float32)}))
    np.testing.assert_array_equal(result, [LENGTH / 2, LENGTH / 2])
