import asyncio
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import pyflame_rt
from pyflame_rt import DType, Graph, InferenceSession, RunOptions, SessionOptions
from pyflame_rt.graph import Node
from pyflame_rt.ops.core.evaluate import Context, evaluate

FLOAT = TensorProto.FLOAT


# ---------------------------------------------------------------------- models in every form


def test_bytes_path_pathlike_proto_and_graph(kit, tmp_path, provider):
    data = kit.unary("Neg")
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    graph = InferenceSession(data).graph()
    for model in (data, bytearray(data), memoryview(data), str(path), path, onnx.load(path), graph):
        session = InferenceSession(model, providers=[provider])
        np.testing.assert_array_equal(session.run(None, {"x": kit.x})[0], -kit.x)


def test_pfm_file_and_bytes(kit, tmp_path):
    path = tmp_path / "model.pfm"
    pyflame_rt.save_model(kit.chain(), path)
    for model in (path, path.read_bytes()):
        np.testing.assert_array_equal(InferenceSession(model).run(None, {"x": kit.x})[0], kit.x)


def test_errors_at_construction(kit, tmp_path):
    with pytest.raises(pyflame_rt.ModelNotFoundError, match=r"missing\.onnx") as caught:
        InferenceSession("missing.onnx")
    assert isinstance(caught.value, FileNotFoundError)
    (tmp_path / "model.xyz").write_bytes(bytes(8))
    with pytest.raises(pyflame_rt.UnsupportedFormatError, match=r"\.onnx, \.pfm"):
        InferenceSession(tmp_path / "model.xyz")
    (tmp_path / "model.tflite").write_bytes(bytes(8))
    with pytest.raises(pyflame_rt.UnsupportedFormatError, match="tf2onnx"):
        InferenceSession(tmp_path / "model.tflite")
    with pytest.raises(pyflame_rt.InvalidModelError, match="folder"):
        InferenceSession(tmp_path)
    for junk in (b"", b"this is not a model", b"PFM\0" + bytes(20)):
        with pytest.raises(pyflame_rt.InvalidModelError):
            InferenceSession(junk)
    (tmp_path / "bad.onnx").write_bytes(b"this is not a model")
    with pytest.raises(pyflame_rt.InvalidModelError, match=r"bad\.onnx"):
        InferenceSession(tmp_path / "bad.onnx")
    with pytest.raises(TypeError, match="got int"):
        InferenceSession(5)


def test_unknown_operator_names_the_node_and_all_others(kit):
    nodes = [helper.make_node("Reluu", ["x"], ["a"], "first"), helper.make_node("Odd", ["a"], ["y"], "second")]
    data = kit.onnx(nodes, [("x", FLOAT, [1])], [("y", FLOAT, [1])])
    with pytest.raises(pyflame_rt.UnsupportedOperatorError, match=r"'first'.*Reluu.*Relu.*Odd"):
        InferenceSession(data)


def test_invalid_graph_lists_its_errors():
    graph = Graph("g")
    graph.add_node("n", "Relu", ["nowhere"], ["y"])
    graph.add_output("y", [1])
    with pytest.raises(pyflame_rt.ValidationError) as caught:
        InferenceSession(graph)
    assert any("nowhere" in error for error in caught.value.errors)


def test_unknown_attribute_is_an_invalid_model(kit):
    node = helper.make_node("Relu", ["x"], ["y"], "n", nonsense=1)
    with pytest.raises(pyflame_rt.InvalidModelError, match="nonsense"):
        InferenceSession(kit.onnx([node], [("x", FLOAT, [1])], [("y", FLOAT, [1])]))


def test_the_session_does_not_change_with_the_graph_it_was_given(kit):
    graph = kit.chain()
    session = InferenceSession(graph)
    graph.nodes.clear()
    np.testing.assert_array_equal(session.run(None, {"x": kit.x})[0], kit.x)
    session.graph().nodes.clear()
    assert len(session.graph().nodes) == 2


# ---------------------------------------------------------------------- arguments


def test_options_under_both_names(kit):
    options = SessionOptions(num_threads=3)
    for session in (InferenceSession(kit.chain(), options), InferenceSession(kit.chain(), sess_options=options)):
        assert session.get_session_options().intra_op_num_threads == 3
    with pytest.raises(pyflame_rt.InputError, match="not both"):
        InferenceSession(kit.chain(), options, sess_options=options)
    with pytest.raises(TypeError, match="SessionOptions"):
        InferenceSession(kit.chain(), {"num_threads": 3})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="no argument 'nonsense'"):
        InferenceSession(kit.chain(), nonsense=1)
    without = InferenceSession(kit.chain(), disabled_optimizers=["ConstantFolding"])
    assert without.get_session_options().disabled_optimizers == ("ConstantFolding",)
    InferenceSession(path_or_bytes=kit.unary(), enable_fallback=0)


def test_invalid_options_are_refused(kit):
    with pytest.raises(pyflame_rt.InputError, match="abacus"):
        InferenceSession(kit.chain(), SessionOptions(device="abacus"))


def test_later_changes_of_options_do_not_reach_the_session(kit):
    options = SessionOptions()
    session = InferenceSession(kit.chain(), options)
    options.num_threads = 7
    session.get_session_options().num_threads = 9
    assert session.get_session_options().num_threads == 0


def test_providers(kit, provider):
    session = InferenceSession(kit.chain(), providers=[provider])
    assert session.get_providers() == [provider]
    assert session.get_provider_options() == {provider: {}}
    assert InferenceSession(kit.chain(), providers=provider).get_providers() == [provider]
    assert InferenceSession(kit.chain(), providers=[(provider, {})]).get_providers() == [provider]


def test_unknown_provider_lists_what_there_is(kit):
    with pytest.raises(pyflame_rt.BackendError, match=r"CUDAExecutionProvider.*CPUExecutionProvider"):
        InferenceSession(kit.chain(), providers=["CUDAExecutionProvider"])
    with pytest.raises(pyflame_rt.BackendError, match="Did you mean CPUExecutionProvider"):
        InferenceSession(kit.chain(), providers=["CPUExecutionprovider"])
    with pytest.raises(pyflame_rt.InputError, match="no options"):
        InferenceSession(kit.chain(), providers=["CPUExecutionProvider"], provider_options=[{"a": 1}])
    with pytest.raises(pyflame_rt.InputError, match="1 providers but 2"):
        InferenceSession(kit.chain(), providers=["CPUExecutionProvider"], provider_options=[{}, {}])


def test_provider_without_its_library(kit, monkeypatch):
    import pyflame_rt.providers as providers

    absent = providers.Provider("AbsentExecutionProvider", lambda: None, "no_such_module")  # type: ignore[arg-type]
    monkeypatch.setitem(providers._providers, absent.name, absent)
    assert absent.name in pyflame_rt.get_all_providers()
    assert absent.name not in pyflame_rt.get_available_providers()
    with pytest.raises(pyflame_rt.MissingExtra, match="pip install"):
        InferenceSession(kit.chain(), providers=[absent.name])


def test_the_wafer_is_never_quietly_the_cpu(kit):
    session = InferenceSession(kit.chain(), SessionOptions(device="wse3"))
    assert session.get_providers() == ["WSEExecutionProvider"]


def test_set_providers(kit):
    session = InferenceSession(kit.chain())
    session.set_providers(["ReferenceExecutionProvider"])
    assert session.get_providers() == ["ReferenceExecutionProvider"]
    with pytest.raises(pyflame_rt.BackendError):
        session.set_providers(["Nope"])
    assert session.get_providers() == ["ReferenceExecutionProvider"]


# ---------------------------------------------------------------------- running


def test_output_names(kit, provider):
    graph = kit.chain(3)
    graph.add_output("v1", ["N", 3])
    session = InferenceSession(graph, providers=[provider])
    x = kit.x
    assert [r.tolist() for r in session.run(None, {"x": x})] == [(-x).tolist(), x.tolist()]
    assert session.run(["v1"], {"x": x})[0].tolist() == x.tolist()
    assert [r.tolist() for r in session.run(["v1", "y", "v1"], {"x": x})] == [x.tolist(), (-x).tolist(), x.tolist()]
    assert len(session.run([], {"x": x})) == 2
    with pytest.raises(pyflame_rt.InputError, match=r"no output 'v0'.*taps=\['v0'\]"):
        session.run(["v0"], {"x": x})
    with pytest.raises(pyflame_rt.InputError, match="list of names"):
        session.run("y", {"x": x})


def test_taps_come_after_the_outputs(kit, provider):
    session = InferenceSession(kit.chain(3), providers=[provider])
    y, v1, v0, x = session.run(None, {"x": kit.x}, taps=["v1", "v0", "x"])
    np.testing.assert_array_equal(v0, -kit.x)
    np.testing.assert_array_equal(v1, kit.x)
    np.testing.assert_array_equal(x, kit.x)
    np.testing.assert_array_equal(y, -kit.x)
    with pytest.raises(pyflame_rt.InputError, match="no value 'v9'"):
        session.run(None, {"x": kit.x}, taps=["v9"])


def test_plans_for_taps_are_bounded(kit):
    session = InferenceSession(kit.chain(40), SessionOptions(plan_cache_size=3))
    for i in range(39):
        session.run(None, {"x": kit.x}, taps=[f"v{i}"])
    assert session.memory_stats()["plans"] <= 4


def test_inputs_with_defaults(kit):
    graph = Graph("g")
    graph.add_input("a", [2], DType.Float32)
    graph.add_input("b", [2], DType.Float32)
    graph.add_initializer("b", np.array([10, 20], np.float32))
    graph.add_node("n", "Add", ["a", "b"], ["y"])
    graph.add_output("y", [2])
    session = InferenceSession(graph)
    assert [a.name for a in session.get_inputs()] == ["a"]
    assert [a.name for a in session.get_overridable_initializers()] == ["b"]
    assert session.run(None, {"a": [1, 2]})[0].tolist() == [11, 22]
    assert session.run(None, {"a": [1, 2], "b": [0, 0]})[0].tolist() == [1, 2]
    assert session.run(None, {"a": [1, 2], "b": None})[0].tolist() == [11, 22]
    assert session.run(None, {"a": [1, 2]})[0].tolist() == [11, 22]


def test_before_ir_4_initializers_are_constants(kit):
    nodes = [helper.make_node("Add", ["x", "w"], ["y"])]
    values = [("x", FLOAT, [1]), ("w", FLOAT, [1])]
    data = kit.onnx(nodes, values, [("y", FLOAT, [1])], {"w": np.ones(1, np.float32)}, ir_version=3)
    session = InferenceSession(data)
    assert session.get_overridable_initializers() == []
    with pytest.raises(pyflame_rt.InputError):
        session.run(None, {"x": [1], "w": [1]})


def test_bad_run_options(kit):
    session = InferenceSession(kit.chain())
    with pytest.raises(pyflame_rt.InputError, match="timeout_ms"):
        session.run(None, {"x": kit.x}, RunOptions(timeout_ms=-1))
    with pytest.raises(TypeError, match="RunOptions"):
        session.run(None, {"x": kit.x}, {"timeout_ms": 1})  # type: ignore[arg-type]


def test_only_execute_path_to_fetches(kit):
    registry = pyflame_rt.OperatorRegistry.instance()
    calls = []
    registry.register_op("Counted", lambda inputs, ctx: (calls.append(1), inputs[0])[1])
    graph = kit.chain()
    graph.add_node("extra", "Counted", ["x"], ["z"])
    graph.add_output("z", ["N", 3])
    session = InferenceSession(graph)
    options = RunOptions()
    options.only_execute_path_to_fetches = True
    np.testing.assert_array_equal(session.run(["y"], {"x": kit.x}, options)[0], kit.x)
    assert not calls
    session.run(["y"], {"x": kit.x})
    assert len(calls) == 1
    registry.unregister_op("Counted")


def test_memory_limit(kit):
    graph = kit.chain()
    graph.add_initializer("w", np.zeros(1000, np.float32))
    with pytest.raises(pyflame_rt.MemoryLimitError, match="memory_limit"):
        InferenceSession(graph, SessionOptions(memory_limit=100))
    for provider in ("CPUExecutionProvider", "ReferenceExecutionProvider"):
        session = InferenceSession(kit.chain(), SessionOptions(memory_limit=100), providers=[provider])
        session.run(None, {"x": kit.x})
        with pytest.raises(pyflame_rt.MemoryLimitError, match=r"1200.*memory_limit allows 100"):
            session.run(None, {"x": np.zeros((100, 3), np.float32)})
    assert issubclass(pyflame_rt.MemoryLimitError, (pyflame_rt.BackendError, MemoryError))


def test_free_dimensions_and_replaced_initializers(kit):
    nodes = [helper.make_node("Add", ["x", "w"], ["y"])]
    data = kit.onnx(nodes, [("x", FLOAT, ["N", 2])], [("y", FLOAT, ["N", 2])], {"w": np.ones(2, np.float32)})
    options = SessionOptions()
    options.add_free_dimension_override_by_name("N", 5)
    options.add_initializer("w", pyflame_rt.OrtValue.ortvalue_from_numpy(np.array([3, 4], np.float32)))
    session = InferenceSession(data, options)
    assert session.get_inputs()[0].shape == session.get_outputs()[0].shape == [5, 2]
    assert session.run(None, {"x": np.zeros((5, 2), np.float32)})[0][0].tolist() == [3, 4]
    with pytest.raises(pyflame_rt.ShapeMismatchError):
        session.run(None, {"x": np.zeros((4, 2), np.float32)})
    for name, value, error in (
        ("w", np.zeros(3, np.float32), pyflame_rt.ShapeMismatchError),
        ("w", np.zeros(2), pyflame_rt.DTypeMismatchError),
        ("v", np.zeros(2, np.float32), pyflame_rt.InputError),
    ):
        options = SessionOptions()
        options.add_initializer(name, value)
        with pytest.raises(error):
            InferenceSession(data, options)


def test_loading_can_be_cancelled(kit):
    options = SessionOptions()
    options.set_load_cancellation_flag(True)
    with pytest.raises(pyflame_rt.RunCancelledError):
        InferenceSession(kit.chain(), options)


def test_loading_can_be_cancelled_after_it_began(kit, monkeypatch):
    import pyflame_rt.session as module

    options, load = SessionOptions(), module.load_graph

    def slow(*args, **kwargs):
        options.set_load_cancellation_flag(True)  # as another thread would
        return load(*args, **kwargs)

    monkeypatch.setattr(module, "load_graph", slow)
    with pytest.raises(pyflame_rt.RunCancelledError):
        InferenceSession(kit.chain(), options)
    options.set_load_cancellation_flag(False)
    monkeypatch.setattr(module, "load_graph", load)
    InferenceSession(kit.chain(), options)


def test_runs_stop_inside_a_node_of_many_operators():
    calls = []

    def check():
        calls.append(1)
        if len(calls) == 4:
            raise pyflame_rt.RunCancelledError("enough")

    context = Context.of("numpy")
    context.check = check
    x, node = np.ones((1, 4, 8), np.float32), Node("n", "GroupNormalization", list("xsb"), ["y"], {"num_groups": 2})
    with pytest.raises(pyflame_rt.RunCancelledError, match="enough"):
        evaluate(node, [x, x[0, :, 0], x[0, :, 0]], context)
    assert len(calls) == 4


def test_optimized_model_is_written(kit, tmp_path):
    for name in ("out.onnx", "out.pfm"):
        path = tmp_path / name
        InferenceSession(kit.chain(), SessionOptions(optimized_model_filepath=str(path)))
        np.testing.assert_array_equal(InferenceSession(path).run(None, {"x": kit.x})[0], kit.x)


# ---------------------------------------------------------------------- threads, tasks, processes


def test_concurrent_runs(kit, provider):
    session = InferenceSession(kit.chain(20), providers=[provider])

    def work(seed):
        x = np.random.default_rng(seed).standard_normal((4, 3)).astype(np.float32)
        return np.array_equal(session.run(None, {"x": x})[0], x)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(60)))


def test_run_async_awaited_waited_and_called_back(kit):
    session = InferenceSession(kit.chain(1))

    async def many():
        calls = [session.run_async({"x": kit.x * i}) for i in range(10)]
        return await asyncio.gather(*calls)

    for i, results in enumerate(asyncio.run(many())):
        np.testing.assert_array_equal(results[0], -kit.x * i)
    for arguments in (({"x": kit.x}, ["y"]), (["y"], {"x": kit.x}), (None, {"x": kit.x})):
        np.testing.assert_array_equal(session.run_async(*arguments).result(120)[0], -kit.x)
    with pytest.raises(pyflame_rt.InputError, match="needs a feed"):
        session.run_async(["y"])

    calls, done = [], threading.Event()

    def callback(results, user_data, error):
        calls.append((results, user_data, error))
        done.set()

    assert session.run_async(["y"], {"x": kit.x}, callback, "mine") is None
    assert done.wait(120)
    assert calls[0][1:] == ("mine", "")
    np.testing.assert_array_equal(calls[0][0][0], -kit.x)
    done.clear()
    session.run_async(["y"], {"x": kit.x.astype(np.float64)}, callback, "mine")
    assert done.wait(120)
    assert calls[1][0] == []
    assert "float64" in calls[1][2]


def test_run_async_errors_reach_whoever_waits(kit):
    with pytest.raises(pyflame_rt.InputError):
        InferenceSession(kit.chain()).run_async({"nope": 1}).result(120)


def test_pickle_by_path_and_by_value(kit, tmp_path, provider):
    path = tmp_path / "model.onnx"
    path.write_bytes(kit.unary("Neg"))
    for model in (path, path.read_bytes(), kit.chain(1)):
        session = InferenceSession(model, SessionOptions(plan_cache_size=2), providers=[provider])
        twin = pickle.loads(pickle.dumps(session))  # noqa: S301 - our own
        assert twin.get_providers() == [provider]
        assert twin.get_session_options().plan_cache_size == 2
        np.testing.assert_array_equal(twin.run(None, {"x": kit.x})[0], -kit.x)
    assert len(pickle.dumps(InferenceSession(path))) < 2000


def test_closed_session(kit):
    with InferenceSession(kit.chain()) as session:
        session.run_async({"x": kit.x}).result(120)
    calls = (
        lambda: session.run(None, {"x": kit.x}),
        lambda: session.run_async({"x": kit.x}),
        session.get_inputs,
        session.graph,
        session.explain,
        session.io_binding,
        session.get_providers,
        lambda: pickle.dumps(session),
        session.__enter__,
    )
    for call in calls:
        with pytest.raises(pyflame_rt.SessionClosedError, match="chain"):
            call()
    session.close()
    assert "closed" in repr(session)


# ---------------------------------------------------------------------- about the model


def test_metadata(kit):
    model = onnx.load_from_string(kit.unary())
    model.domain, model.model_version, model.doc_string = "d", 7, "about"
    model.graph.doc_string = "graph"
    entry = model.metadata_props.add()
    entry.key, entry.value = "classes", "10"
    meta = InferenceSession(model).get_modelmeta()
    assert (meta.producer_name, meta.graph_name, meta.domain, meta.version) == ("tests", "g", "d", 7)
    assert (meta.description, meta.graph_description) == ("about", "graph")
    assert meta.custom_metadata_map == meta.custom_metadata == {"classes": "10"}
    assert meta.opsets == {"": 17}


def test_output_shapes_the_file_leaves_out_are_inferred(kit):
    node = helper.make_node("Transpose", ["x"], ["y"])
    data = kit.onnx([node], [("x", FLOAT, ["N", 3])], [("y", FLOAT, None)])
    assert InferenceSession(data).get_outputs()[0].shape == [3, None]


def test_initializers_and_quantization(kit):
    graph = kit.chain()
    graph.add_initializer("w", np.ones(3, np.float32))
    session = InferenceSession(graph)
    assert session.get_initializer("w").shape == [3]
    with pytest.raises(pyflame_rt.InputError, match="no initializer"):
        session.get_initializer("nope")
    assert not session.is_quantized()
    assert session.quantization_report() is None
    assert session.memory_stats()["weight_bytes"] == 12


def test_explain(kit, provider):
    explanation = InferenceSession(kit.chain(), providers=[provider]).explain()
    assert explanation.provider == provider
    assert [row.node for row in explanation.rows] == ["n0", "n1"]
    assert explanation.host_step_count == 0
    assert "Neg" in str(explanation)
    assert "<" in explanation.to_html()
    assert "Neg" in explanation.to_html()
    assert explanation.to_dict()["places"] == explanation.places


def test_explain_says_who_serves_the_default_provider_and_what_has_no_effect(kit):
    options = SessionOptions(execution_mode="parallel")
    text = str(InferenceSession(kit.chain(), options).explain())
    assert "native code" in text or "reference interpreter" in text
    assert ("execution_mode" in text) == ("native code" not in text)
    with pytest.warns(UserWarning, match="execution_mode"):
        elsewhere = InferenceSession(kit.chain(), options, ["ReferenceExecutionProvider"])
    assert "execution_mode" in str(elsewhere.explain())
    quiet = str(InferenceSession(kit.chain()).explain())
    assert "makes no use" not in quiet
    with pytest.warns(UserWarning, match="enable_mem_pattern=False has no effect"):
        told = str(InferenceSession(kit.chain(), SessionOptions(enable_mem_pattern=False)).explain())
    assert "enable_mem_pattern=False has no effect" in " ".join(told.split())
    with pytest.warns(UserWarning, match="verify=True has no effect: no optimisation passes run"):
        InferenceSession(kit.chain(), SessionOptions(verify=True), ["ReferenceExecutionProvider"])


def test_explain_counts_host_steps():
    if "TorchExecutionProvider" not in pyflame_rt.get_available_providers():
        pytest.skip("torch is not installed")
    registry = pyflame_rt.OperatorRegistry.instance()
    registry.register_op("OnHost", lambda inputs, ctx: inputs[0])
    graph = Graph("g")
    graph.add_input("x", [1])
    graph.add_node("n", "OnHost", ["x"], ["y"])
    graph.add_output("y", [1])
    session = InferenceSession(graph, providers=["TorchExecutionProvider"])
    session.run(None, {"x": [1]})
    explanation = session.explain()
    assert explanation.host_step_count == 1
    assert sum(explanation.host_steps.values()) == 1
    assert explanation.rows[0].runs_on == "numpy"
    registry.unregister_op("OnHost")


def test_find_first_nan(kit, provider):
    graph = Graph("g")
    graph.add_input("x", [3], DType.Float32)
    graph.add_node("ok", "Neg", ["x"], ["a"])
    graph.add_node("root", "Sqrt", ["a"], ["b"])
    graph.add_node("after", "Neg", ["b"], ["y"])
    graph.add_output("y", [3])
    session = InferenceSession(graph, providers=[provider])
    found = session.find_first_nan({"x": [-1, 4, -9]})
    assert (found.node, found.op_type, found.value, found.count, found.index) == ("root", "Sqrt", "b", 1, (1,))
    assert "from -4 to 9" in str(found)
    assert session.find_first_nan({"x": [-1, -4, -9]}) is None
    given = session.find_first_nan({"x": [1, np.nan, 1]})
    assert given.op_type == ""
    assert given.value == "x"
    assert session.find_first_nan({"x": [-np.inf, -1, -1]}) is None
    assert session.find_first_nan({"x": [-np.inf, -1, -1]}, infinities=True).value == "x"


def test_create_session_and_from_onnx(kit, tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(kit.unary("Neg", shape=(1, 3)))
    session = pyflame_rt.create_session(path, pyflame_rt.CompileOptions(dynamic_batch=True))
    assert session.run(None, {"x": np.ones((4, 3), np.float32)})[0].shape == (4, 3)
    imported = pyflame_rt.from_onnx(path, pyflame_rt.ImportOptions(strict=True))
    np.testing.assert_array_equal(imported.run(None, {"x": kit.x})[0], -kit.x)
    with pytest.raises(pyflame_rt.ModelNotFoundError):
        pyflame_rt.from_onnx("missing.onnx")


def test_import_is_light():
    import subprocess
    import sys

    code = "import sys, pyflame_rt; print([m for m in ('onnx', 'torch', 'mlx', 'onnxruntime') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_every_public_name_is_there():
    assert sorted(pyflame_rt.__all__) == sorted(set(pyflame_rt.__all__))
    for name in pyflame_rt.__all__:
        assert getattr(pyflame_rt, name) is not None
        assert name in dir(pyflame_rt)
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        _ = pyflame_rt.nope
    assert Path(pyflame_rt.import_module.__file__).name == "import_module.py"
