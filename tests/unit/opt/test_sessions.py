"""What sessions do with passes: graphs as loaded and as they run, taps, files, options, the cache."""

import os

import numpy as np
import pytest

import pyflame_rt
from pyflame_rt import Graph, InferenceSession, OptLevel, SessionOptions, opt
from pyflame_rt.graph.deferred import DeferredGraph
from pyflame_rt.graph.errors import ValidationError
from pyflame_rt.opt import manager as passes
from tests.tolerances import within

X = np.random.default_rng(0).standard_normal((1, 3, 6, 6)).astype(np.float32)


def image_model():
    rng = np.random.default_rng(1)
    graph = Graph("image")
    graph.add_input("x", [1, 3, 6, 6])
    graph.add_initializer("w", rng.standard_normal((4, 3, 3, 3)).astype(np.float32))
    for name in ("s", "t", "m", "v"):
        graph.add_initializer(name, rng.uniform(0.5, 1.5, 4).astype(np.float32))
    graph.add_node("conv", "Conv", ["x", "w"], ["a"])
    graph.add_node("bn", "BatchNormalization", ["a", "s", "t", "m", "v"], ["b"])
    graph.add_node("relu", "Relu", ["b"], ["y"])
    graph.add_output("y", [1, 4, 4, 4])
    return graph


def ops(graph):
    return [node.full_name for node in graph.nodes]


def test_the_loaded_and_the_optimised_graph():
    session = InferenceSession(image_model())
    assert ops(session.graph()) == ["Conv", "BatchNormalization", "Relu"]
    assert ops(session.optimized_graph()) == ["pyflame::FusedConvBNRelu"]
    plain = InferenceSession(image_model(), SessionOptions(optimization_level=OptLevel.NONE))
    assert ops(plain.optimized_graph()) == ["Conv", "BatchNormalization", "Relu"]
    np.testing.assert_allclose(session.run(None, {"x": X})[0], plain.run(None, {"x": X})[0], **within("sums"))


def test_strict_math_keeps_the_arithmetic():
    session = InferenceSession(image_model(), SessionOptions(strict_math_mode=True))
    assert ops(session.optimized_graph()) == ["Conv", "pyflame::FusedBNRelu"]


def test_values_that_were_fused_away_can_be_tapped():
    session = InferenceSession(image_model())
    y, a, b = session.run(None, {"x": X}, taps=["a", "b"])
    np.testing.assert_allclose(np.maximum(b, 0), y, **within("sums"))
    assert a.shape == b.shape == (1, 4, 4, 4)
    with pytest.raises(pyflame_rt.InputError, match="no value 'c' to tap"):
        session.run(None, {"x": X}, taps=["c"])


def test_explain_names_the_rule():
    session = InferenceSession(image_model())
    session.run(None, {"x": X})
    (row,) = session.explain().nodes
    assert row.node == "relu"
    assert row.reason.startswith("conv_bn_relu of relu, bn, conv")


def test_rules_and_passes_are_switched_off_by_name():
    fused = InferenceSession(image_model(), disabled_optimizers=["ConvBNFusion"])
    assert ops(fused.optimized_graph()) == ["Conv", "pyflame::FusedBNRelu"]
    off = InferenceSession(image_model(), SessionOptions(disabled_optimizers=["OperatorFusionPass"]))
    assert len(off.optimized_graph().nodes) == 3
    with pytest.warns(UserWarning, match="disabled_optimizers: 'Conv_bn' has no effect.*did you mean conv_bn"):
        InferenceSession(image_model(), disabled_optimizers=["Conv_bn"])


@pytest.mark.parametrize("suffix", [".onnx", ".pfm"])
def test_the_optimised_model_is_written(tmp_path, suffix):
    path = tmp_path / f"optimised{suffix}"
    session = InferenceSession(image_model(), SessionOptions(optimized_model_filepath=str(path)))
    again = InferenceSession(str(path))
    np.testing.assert_allclose(again.run(None, {"x": X})[0], session.run(None, {"x": X})[0], **within("sums"))
    assert "BatchNormalization" not in ops(again.graph())


def test_verify_finds_a_pass_that_changes_answers():
    class Wrong(opt.Pass):
        def run(self, graph):
            graph.nodes = [n.replace(op_type="Neg") if n.op_type == "Relu" else n for n in graph.nodes]
            return opt.PassResult(modified=True)

    graph = Graph("g")
    graph.add_input("x", [3])
    graph.add_node("n", "Relu", ["x"], ["y"])
    graph.add_output("y", [3])
    InferenceSession(graph, SessionOptions(verify=True))
    opt.register_pass(Wrong)
    try:
        with pytest.raises(ValidationError, match="after pass 'Wrong'"):
            InferenceSession(graph, SessionOptions(verify=True))
    finally:
        del passes._registered["Wrong"]


def test_a_file_is_optimised_once(tmp_path, monkeypatch):
    path, cache = tmp_path / "m.onnx", str(tmp_path / "cache")
    pyflame_rt.export_onnx(image_model(), path)
    os.utime(path, (1_000_000_000, 1_000_000_000))
    options = SessionOptions(cache=cache)

    def answer():
        session = InferenceSession(str(path), options)
        return session, session.run(None, {"x": X})[0]

    first, y = answer()
    assert not isinstance(first._compile(overrides=False).graph, DeferredGraph)
    pyflame_rt.cache.store.current_store().flush()
    with pyflame_rt.cache.store.use_store(cache):
        pyflame_rt.cache.store.current_store().flush()
    runs = []
    run = passes.PassManager._run
    monkeypatch.setattr(passes.PassManager, "_run", lambda *a: runs.append(1) or run(*a))
    second, again = answer()
    assert np.array_equal(y, again)
    assert isinstance(second._compile(overrides=False).graph, DeferredGraph)
    assert ops(second.optimized_graph()) == ["pyflame::FusedConvBNRelu"]
    assert second.explain().nodes[0].reason.startswith("conv_bn_relu of ")
    assert not runs, "the graph was read from the cache"


def test_import_options_optimise(tmp_path):
    path = tmp_path / "m.onnx"
    graph = Graph("g")
    graph.add_input("x", [3])
    graph.add_node("i", "Identity", ["x"], ["z"])
    graph.add_node("n", "Neg", ["z"], ["y"])
    graph.add_output("y", [3])
    pyflame_rt.export_onnx(graph, path)
    importer = pyflame_rt.import_module.ONNXImporter()
    assert ops(importer.import_model(path, pyflame_rt.ImportOptions(optimize=True)).graph) == ["Neg"]
    assert ops(importer.import_model(path).graph) == ["Identity", "Neg"]
