import time

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import pyflame_rt
from pyflame_rt.exporters import onnx_model
from pyflame_rt.graph import verify
from pyflame_rt.importers.onnx_importer import graph_from_bytes

LENGTH, SHORT = 20_000, 2_000
MOST = 40  # times as long for ten times the nodes: four times what is proportional, far less than its square


def chain(length):
    nodes, last = [], "x"
    for i in range(length):
        inputs = [last] if i % 2 else [last, "one"]
        nodes.append(helper.make_node("Relu" if i % 2 else "Add", inputs, [f"v{i}"], f"n{i}"))
        last = f"v{i}"
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("x", last)]
    one = numpy_helper.from_array(np.ones(2, np.float32), "one")
    graph = helper.make_graph(nodes, "chain", infos[:1], infos[1:], [one])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return model.SerializeToString()


@pytest.fixture(scope="module")
def chains():
    return chain(SHORT), chain(LENGTH)


@pytest.fixture(scope="module")
def graphs(chains):
    return tuple(map(graph_from_bytes, chains))


def seconds(step, of):
    # Time of this thread alone: neighbours on the machine do not count.
    started = time.thread_time()
    result = step(of)
    return time.thread_time() - started, result


def proportional(step, pair):
    """What a step gives for the longer of two; what it takes grows with the length, on whatever machine."""
    least = min(seconds(step, pair[0])[0] for _ in range(3))
    for _ in range(3):
        took, result = seconds(step, pair[1])
        if took < MOST * max(least, 1e-3):
            return result
    raise AssertionError(f"{took:.2f} s for {LENGTH} nodes, {least:.3f} s for {SHORT}")


def test_importing(chains):
    assert len(proportional(graph_from_bytes, chains).nodes) == LENGTH


def test_verifying(graphs):
    proportional(verify, graphs)


def test_copying(graphs):
    assert proportional(lambda graph: graph.copy(), graphs).num_nodes == LENGTH


def test_printing(graphs):
    assert proportional(str, graphs).count("\n") > LENGTH


def test_fingerprinting(graphs):
    assert proportional(lambda graph: graph.fingerprint(), graphs) == graphs[1].copy().fingerprint()


def test_saving_and_loading(graphs):
    dumps, loads = pyflame_rt.format.dumps_model, pyflame_rt.format.loads_model
    data = proportional(dumps, graphs)
    assert len(proportional(loads, (dumps(graphs[0]), data)).nodes) == LENGTH


def test_exporting(graphs):
    assert len(proportional(onnx_model, graphs).graph.node) == LENGTH


def test_running(graphs):
    def loaded(graph):
        return pyflame_rt.InferenceSession(graph, providers=["ReferenceExecutionProvider"])

    sessions = loaded(graphs[0]), proportional(loaded, graphs)
    (result,) = proportional(lambda session: session.run(None, {"x": np.zeros(2, np.float32)}), sessions)
    np.testing.assert_array_equal(result, [LENGTH / 2, LENGTH / 2])
