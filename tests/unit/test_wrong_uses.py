"""Every public entry, used wrongly: an error of the documented tree, which names what the caller gave."""

import asyncio
import pickle

import numpy as np
import pytest

import emberharmony
import pyflame as pf
import pyflame_rt
import pyflame_rt.ort as onnxruntime
from emberharmony import ops
from pyflame_rt import (
    DType,
    Graph,
    InferenceSession,
    OrtValue,
    PyFlameRTError,
    RunOptions,
    SessionOptions,
    Tensor,
    TensorInfo,
    batching,
    cache,
    distillation,
    generate,
    memory,
    partition,
    pruning,
    quantization,
    serving,
    streaming,
    training,
)
from pyflame_rt.demo import model_path
from wsesim.cli import main as simulator

# What errors.md promises: one tree, and Python's TypeError for an argument of the wrong type.
RUNTIME = (PyFlameRTError, TypeError)
# The framework keeps PyTorch's habit of ValueError for values, the array API has a tree of its own.
FRAMEWORK = (*RUNTIME, ValueError)
ARRAYS = (emberharmony.EmberHarmonyError, TypeError, ValueError)
X = np.zeros((1, 1, 8, 8), np.float32)
JUNK = [
    None,
    5,
    -1.5,
    "nowhere.onnx",
    b"",
    b"junk" * 50,
    [],
    {},
    (),
    object(),
    np.zeros(3),
    "\0",
    b"PFM\0",
    b"PFM\0" + b"\xff" * 64,
]


class Broken:
    """Has the methods of an array, and none of them works."""

    def __array__(self, *args, **kwargs):
        raise RuntimeError("no array here")

    def __dlpack__(self, *args, **kwargs):
        raise BufferError("no capsule here")

    def __dlpack_device__(self):
        return (1, 0)


class Odd:
    """Raises what no library would."""

    def __array__(self, *args, **kwargs):
        raise KeyError("no array here")


ITSELF = [1.0]
ITSELF.append(ITSELF)


@pytest.fixture(scope="module")
def session():
    return InferenceSession(model_path())


FEEDS = {
    "None": ({"image": None}, "'image' is None"),
    "nothing": ({}, "'image'"),
    "no dict": ([X], "'image'"),
    "a string": ("image", "'image'"),
    "a number": (5, "'image'"),
    "another name": ({"imgae": X}, "'imgae'"),
    "a name that is none": ({5: X}, "5"),
    "one more": ({"image": X, "label": X}, "'label'"),
    "float64": ({"image": X.astype(np.float64)}, "'image'"),
    "integers": ({"image": X.astype(np.int32)}, "'image'"),
    "objects": ({"image": X.astype(object)}, "'image'"),
    "strings": ({"image": np.full(X.shape, "a")}, "'image'"),
    "text": ({"image": "picture.png"}, "'image'"),
    "bytes": ({"image": b"\x89PNG"}, "'image'"),
    "rank": ({"image": X[0]}, "'image'"),
    "size": ({"image": X[:, :, :7]}, "'image'"),
    "ragged": ({"image": [[1.0], [1.0, 2.0]]}, "'image'"),
    "ragged arrays": ({"image": [np.ones(1, np.float32), np.ones(2, np.float32)]}, "'image'"),
    "a list of itself": ({"image": ITSELF}, "'image'"),
    "an odd error": ({"image": Odd()}, "'image'"),
    "deep": ({"image": [[[[[[0.0]]]]]]}, "'image'"),
    "complex": ({"image": [[[[1j]]]]}, "'image'"),
    "a dict": ({"image": {"a": 1}}, "'image'"),
    "a set": ({"image": {1.0}}, "'image'"),
    "an object": ({"image": object()}, "'image'"),
    "a broken array": ({"image": Broken()}, "'image'"),
    "a function": ({"image": len}, "'image'"),
    "masked": ({"image": np.ma.masked_all((1, 1, 8))}, "'image'"),
    "dates": ({"image": np.zeros(X.shape, "M8[s]")}, "'image'"),
    "records": ({"image": np.zeros(X.shape, [("a", "f4")])}, "'image'"),
    "a sequence": ({"image": OrtValue([X])}, "'image'"),
}


@pytest.mark.parametrize("case", FEEDS)
def test_feeds(session, case):
    feed, words = FEEDS[case]
    for run in (
        lambda: session.run(None, feed),
        lambda: session.find_first_nan(feed),
        lambda: session.run_async(feed).result(60),
    ):
        with pytest.raises(RUNTIME) as caught:
            run()
        assert words in str(caught.value) or "run_async needs a feed" in str(caught.value), str(caught.value)


CALLS = {
    "output by another name": (lambda s: s.run(["digits"], {"image": X}), "'digits'"),
    "outputs as text": (lambda s: s.run("digit", {"image": X}), "'digit'"),
    "outputs as numbers": (lambda s: s.run([0], {"image": X}), "0"),
    "outputs as a number": (lambda s: s.run(1, {"image": X}), "1"),
    "a tap that is not there": (lambda s: s.run(None, {"image": X}, taps=["relu9"]), "'relu9'"),
    "taps as text": (lambda s: s.run(None, {"image": X}, taps="relu3_out"), "relu3_out"),
    "taps as numbers": (lambda s: s.run(None, {"image": X}, taps=[3]), "3"),
    "options of a session": (lambda s: s.run(None, {"image": X}, SessionOptions()), "SessionOptions"),
    "options as a dict": (lambda s: s.run(None, {"image": X}, {"timeout_ms": 5}), "dict"),
    "a negative time": (lambda s: s.run(None, {"image": X}, RunOptions(timeout_ms=-5)), "-5"),
    "a time as text": (lambda s: s.run(None, {"image": X}, RunOptions(timeout_ms="5s")), "'5s'"),
    "no time left": (lambda s: s.run(None, {"image": X}, RunOptions(timeout_ms=0)), "timeout_ms"),
    "a log level": (lambda s: s.run(None, {"image": X}, RunOptions(log_level="loud")), "'loud'"),
    "async without a feed": (lambda s: s.run_async(["digit"]), "feed"),
    "awaiting a wrong feed": (lambda s: asyncio.run(waited(s)), "'imgae'"),
    "a weight that is not there": (lambda s: s.get_initializer("w99"), "'w99'"),
    "providers": (lambda s: s.set_providers(["Nope"]), "'Nope'"),
    "providers as numbers": (lambda s: s.set_providers([5]), "5"),
    "a number of providers": (lambda s: s.set_providers(5), "5"),
    "OrtValues by name": (lambda s: s.run_with_ort_values(None, {"imgae": OrtValue(X)}), "'imgae'"),
    "a binding by name": (lambda s: s.io_binding().bind_cpu_input("imgae", X), "'imgae'"),
    "a binding of nothing": (lambda s: s.io_binding().bind_cpu_input("image", None), "'image'"),
    "a binding of another type": (lambda s: bound_run(s, X.astype(int)), "'image'"),
    "an output by name": (lambda s: s.io_binding().bind_output("digits"), "'digits'"),
    "nothing bound": (lambda s: s.run_with_iobinding(s.io_binding()), "'digit'"),
    "no binding": (lambda s: s.run_with_iobinding(5), "int"),
}


def bound_run(session, array):
    binding = session.io_binding()
    binding.bind_cpu_input("image", array)
    binding.bind_output("digit")
    session.run_with_iobinding(binding)


async def waited(session):
    return await session.run_async({"imgae": X})


@pytest.mark.parametrize("case", CALLS)
def test_calls_of_a_session(session, case):
    call, words = CALLS[case]
    with pytest.raises(RUNTIME) as caught:
        call(session)
    assert words in str(caught.value), str(caught.value)


@pytest.mark.parametrize("junk", JUNK, ids=lambda j: repr(j)[:20])
@pytest.mark.parametrize("entry", ["session", "create", "from_onnx", "load", "diff", "drop-in"])
def test_models_that_are_none(junk, entry, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    entries = {
        "session": InferenceSession,
        "create": pyflame_rt.create_session,
        "from_onnx": pyflame_rt.from_onnx,
        "load": pyflame_rt.load_model,
        "diff": lambda m: pyflame_rt.diff(m, "CPUExecutionProvider", "CPUExecutionProvider"),
        "drop-in": onnxruntime.InferenceSession,
    }
    accepted = (*RUNTIME, ValueError) if entry == "drop-in" else RUNTIME
    accepted = (*accepted, *onnx_errors()) if entry == "drop-in" else accepted
    with pytest.raises(accepted) as caught:
        entries[entry](junk)
    assert str(caught.value)
    if isinstance(junk, str) and junk.isprintable():
        assert junk in str(caught.value)


def onnx_errors():
    from pyflame_rt.ort.capi import onnxruntime_pybind11_state as state

    return tuple(v for v in vars(state).values() if isinstance(v, type) and issubclass(v, Exception))


GRAPHS = {
    "an operator": (lambda g: run_node(g, "NoSuchOp"), "NoSuchOp"),
    "an attribute": (lambda g: run_node(g, "Relu", {"alpha": 1.0}), "alpha"),
    "a kind of attribute": (lambda g: run_node(g, "LeakyRelu", {"alpha": "much"}), "alpha"),
    "an object as attribute": (lambda g: run_node(g, "LeakyRelu", {"alpha": object()}), "alpha"),
    "an input too many": (lambda g: run_node(g, "Relu", inputs=["x", "x"]), "Relu"),
    "an input too few": (lambda g: run_node(g, "Add"), "Add"),
    "a value nobody makes": (lambda g: run_node(g, "Relu", inputs=["z"]), "'z'"),
    "an axis": (lambda g: run_node(g, "Softmax", {"axis": 9}), "9"),
    "a weight by name": (lambda g: g.get_initializer("w"), "'w'"),
    "a type": (lambda g: g.add_input("q", [1], "float33"), "float33"),
    "a negative size": (lambda g: g.add_input("q", [-4]), "-4"),
    "a size as a fraction": (lambda g: g.add_input("q", [1.5]), "1.5"),
    "an input twice": (lambda g: (g.add_input("x", [1]), run_node(g, "Relu")), "'x'"),
    "an output nobody makes": (lambda g: (g.add_output("q", [1]), run_node(g, "Relu")), "'q'"),
    "a weight of objects": (lambda g: g.add_initializer("w", np.array([object()])), "'w'"),
    "no weight": (lambda g: g.add_initializer("w", None), "'w'"),
}


def run_node(graph, op, attributes=None, inputs=("x",)):
    graph.add_node("mine", op, list(inputs), ["y"], attributes or {})
    graph.add_output("y", None)
    return InferenceSession(graph).run(None, {"x": np.zeros((2, 2), np.float32)})


@pytest.mark.parametrize("case", GRAPHS)
def test_graphs(case):
    call, words = GRAPHS[case]
    graph = Graph("g")
    graph.add_input("x", [2, 2])
    with pytest.raises(RUNTIME) as caught:
        call(graph)
    assert words in str(caught.value), str(caught.value)


OPTIONS = {
    "a setting": (lambda: SessionOptions(num_thread=2), "num_thread"),
    "options twice": (
        lambda: InferenceSession(model_path(), SessionOptions(), sess_options=SessionOptions()),
        "sess_options",
    ),
    "an argument": (lambda: InferenceSession(model_path(), colour="red"), "colour"),
    "a device": (lambda: InferenceSession(model_path(), SessionOptions(device="gpu")), "'gpu'"),
    "threads": (lambda: InferenceSession(model_path(), SessionOptions(num_threads="two")), "'two'"),
    "a level": (lambda: InferenceSession(model_path(), SessionOptions(optimization_level="most")), "'most'"),
    "a file to write": (
        lambda: InferenceSession(model_path(), SessionOptions(optimized_model_filepath="absent/x.onnx")),
        "absent/x.onnx",
    ),
    "a size by name": (lambda: SessionOptions().add_free_dimension_override_by_name("N", "four"), "'N'"),
    "a key": (lambda: SessionOptions().add_session_config_entry("my.key", "1"), "my.key"),
    "a weight": (lambda: with_weight("nope", np.zeros(3)), "'nope'"),
    "a severity": (lambda: setattr(SessionOptions(), "log_severity_level", 17), "17"),
    "a provider": (
        lambda: InferenceSession(model_path(), providers=["CudaExecutionProvider"]),
        "'CudaExecutionProvider'",
    ),
    "options of a provider": (
        lambda: InferenceSession(model_path(), providers=[("CPUExecutionProvider", {"arena": 1})]),
        "arena",
    ),
    "two lists": (lambda: InferenceSession(model_path(), None, ["CPUExecutionProvider"], [{}, {}]), "provider_options"),
    "a pair of three": (lambda: InferenceSession(model_path(), providers=[("a", {}, 1)]), "('a', {}, 1)"),
    "options of another kind": (lambda: InferenceSession(model_path(), {"num_threads": 1}), "dict"),
    "a wafer's grid": (
        lambda: InferenceSession(model_path(), providers=[("WSEExecutionProvider", {"rows": -1})]),
        "-1",
    ),
    "a wafer's target": (
        lambda: InferenceSession(model_path(), providers=[("WSEExecutionProvider", {"target": "wse9"})]),
        "'wse9'",
    ),
    "a device type": (lambda: pyflame_rt.get_device_count("tpu"), "'tpu'"),
    "a device of no type": (lambda: pyflame_rt.get_device_count(5), "5"),
    "a built-in name": (lambda: pyflame_rt.register_backend("CPUExecutionProvider", object), "'CPUExecutionProvider'"),
    "no such backend": (lambda: pyflame_rt.unregister_backend("Mine"), "'Mine'"),
    "a name of no kind": (lambda: OrtValue.ortvalue_from_shape_and_type([2], "float33"), "float33"),
    "a size of no kind": (lambda: OrtValue.ortvalue_from_shape_and_type(["a"], np.float32), "'a'"),
    "a negative size": (lambda: OrtValue.ortvalue_from_shape_and_type([-2], np.float32), "-2"),
    "no array": (lambda: pyflame_rt.from_numpy(object()), "object"),
    "no tensor": (lambda: pyflame_rt.to_numpy("text"), "str"),
    "a tensor of objects": (lambda: pyflame_rt.from_numpy(np.array([object()])), "objects"),
    "a tensor of no kind": (lambda: Tensor(5), "int"),
    "an element type": (lambda: DType.of("float33"), "float33"),
    "a size by no name": (lambda: pyflame_rt.random_feed([TensorInfo("x", ["N"])], sizes={"N": -3}), "-3"),
    "a severity of no kind": (lambda: pyflame_rt.set_default_logger_severity(9), "9"),
    "a model of no kind": (lambda: pyflame_rt.from_pyflame(5, 5), "int"),
    "a graph of no kind": (lambda: pyflame_rt.export_onnx(5, "x.onnx"), "int"),
    "saving no graph": (lambda: pyflame_rt.save_model(5, "x.pfm"), "int"),
    "a version": (lambda: pyflame_rt.save_model(Graph("g"), "x.pfm", version=9), "9"),
    "an opset": (lambda: pyflame_rt.export_onnx(tiny(), "x.onnx", opset=999), "999"),
    "a folder": (lambda: pyflame_rt.save_model(tiny(), "absent/x.pfm"), "absent"),
}


def tiny():
    graph = Graph("g")
    graph.add_input("x", [1])
    graph.add_node("n", "Neg", ["x"], ["y"])
    graph.add_output("y", [1])
    return graph


def with_weight(name, value):
    options = SessionOptions()
    options.add_initializer(name, value)
    return InferenceSession(model_path(), options)


@pytest.mark.parametrize("case", OPTIONS)
def test_options_and_functions(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call, words = OPTIONS[case]
    with pytest.raises((*RUNTIME, AttributeError) if case == "a setting" else RUNTIME) as caught:
        call()
    assert words in str(caught.value), str(caught.value)


FRAMEWORK_USES = {
    "loading nothing": (lambda: pf.load("absent.pf"), "absent.pf"),
    "a suffix": (lambda: pf.save({}, "x.weights"), "x.weights"),
    "saving an object": (lambda: pf.save({"a": object()}, "x.pf"), "object"),
    "a folder": (lambda: pf.save({}, "absent/x.pf"), "absent"),
    "a format": (lambda: pf.save({}, "x.pf", format="zip"), "zip"),
    "exporting no model": (lambda: pf.export(5, pf.ones([1]), "x.onnx"), "int"),
    "exporting without example": (lambda: pf.export(pf.nn.Linear(3, 2), None, "x.onnx"), "None"),
    "another example": (lambda: pf.export(pf.nn.Linear(3, 2), pf.ones([1, 4]), "x.onnx"), "4"),
    "a suffix of export": (lambda: pf.export(pf.nn.Linear(3, 2), pf.ones([1, 3]), "x.txt"), "x.txt"),
    "an export's folder": (lambda: pf.export(pf.nn.Linear(3, 2), pf.ones([1, 3]), "absent/x.onnx"), "absent"),
    "csl of no tensor": (lambda: pf.compile_to_csl(5), "tensor"),
    "csl options": (lambda: pf.compile_to_csl(pf.ones([2]) + 1, {"target": "wse3"}), "dict"),
    "a port": (lambda: pf.serving.ServerConfig(port=99999), "99999"),
    "workers": (lambda: pf.serving.ServerConfig(workers=0), "workers"),
    "a url": (lambda: pf.serving.ModelClient("nowhere"), "'nowhere'"),
    "a server that is off": (lambda: pf.serving.ModelServer(pf.nn.ReLU()).port, "start"),
    "a device": (lambda: pf.set_device("abacus"), "abacus"),
}


@pytest.mark.parametrize("case", FRAMEWORK_USES)
def test_framework(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call, words = FRAMEWORK_USES[case]
    kinds = (*FRAMEWORK, RuntimeError) if case == "a server that is off" else FRAMEWORK
    with pytest.raises(kinds) as caught:
        call()
    assert words in str(caught.value), str(caught.value)


ARRAY_USES = {
    "a library": (lambda: emberharmony.set_backend("tpu"), "tpu"),
    "a library of no kind": (lambda: emberharmony.set_backend(5), "5"),
    "a library for a while": (lambda: emberharmony.use_backend("tpu").__enter__(), "tpu"),
    "a name": (lambda: emberharmony.library("tpu"), "tpu"),
    "an element type": (lambda: ops.zeros((2,), dtype="float33"), "float33"),
    "an axis": (lambda: ops.sum(np.ones((2, 2)), axis=5), "5"),
    "a shape": (lambda: ops.reshape(np.ones(4), (3,)), "3"),
}


@pytest.mark.parametrize("case", ARRAY_USES)
def test_arrays(case):
    call, words = ARRAY_USES[case]
    with emberharmony.use_backend("numpy"), pytest.raises(ARRAYS) as caught:
        call()
    assert words in str(caught.value), str(caught.value)


SIMULATOR = {
    "no command": ((), "usage"),
    "another command": (("compile",), "'compile'"),
    "no file": (("cslc", "absent.csl"), "absent.csl"),
    "no script": (("cs_python", "absent.py"), "absent.py"),
    "a pair": (("cslc", "x.csl", "--fabric-dims", "4"), "fabric-dims"),
    "a machine": (("cslc", "x.csl", "--arch", "wse9"), "wse9"),
    "parameters": (("cslc", "there.csl", "--params", "a"), "'a'"),
    "a colour": (("cslc", "there.csl", "--colors", "a:b"), "'b'"),
    "bytes": (("cslc", "bytes.csl"), "bytes.csl"),
}


@pytest.mark.parametrize("case", SIMULATOR)
def test_simulator(case, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.csl").write_text("layout {}")
    (tmp_path / "bytes.csl").write_bytes(b"\xff\xfe\0layout")
    arguments, words = SIMULATOR[case]
    try:
        code = simulator(list(arguments))
    except SystemExit as ended:  # argparse
        code = ended.code
    said = capsys.readouterr().err
    assert code in (1, 2)
    assert words in said
    assert "Traceback" not in said


def test_errors_can_be_pickled():
    for kind in (
        pyflame_rt.InputError,
        pyflame_rt.FileWriteError,
        pyflame_rt.ModelNotFoundError,
        pyflame_rt.MemoryLimitError,
    ):
        twin = pickle.loads(pickle.dumps(kind("what came")))  # noqa: S301 - our own
        assert (type(twin), str(twin)) == (kind, "what came")


def test_there_are_200_of_them():
    tables = (FEEDS, FEEDS, FEEDS, CALLS, GRAPHS, OPTIONS, FRAMEWORK_USES, ARRAY_USES, SIMULATOR)
    assert sum(map(len, tables)) + 6 * len(JUNK) >= 200


def test_names_that_are_read_once(session):
    names = [arg.name for arg in session.get_outputs()]
    feed = {session.get_inputs()[0].name: X}
    for given in (iter(names), (name for name in names), np.array(names), dict.fromkeys(names)):
        assert len(session.run(given, feed)) == len(names)


@pytest.mark.parametrize("words", [["a", 1], [["a"], ["b", "c"]], ITSELF, [None]], ids=str)
def test_lists_of_strings(words):
    graph = Graph("g")
    graph.add_input("words", [None], DType.String)
    graph.add_node("n", "Identity", ["words"], ["same"])
    graph.add_output("same", [None], DType.String)
    with pytest.raises(PyFlameRTError, match="'words'"):
        InferenceSession(graph).run(None, {"words": words})


# Who takes sessions, graphs, settings and tables by name: what came instead, and what the error must say.
KINDS = {
    "a session to bind": (lambda: pyflame_rt.IOBinding(None), "IOBinding takes an InferenceSession, got NoneType"),
    "a session that generates": (lambda: generate.Generator("gpt2.onnx"), "takes an InferenceSession, got str"),
    "a session that decodes": (lambda: generate.Decoder(None), "takes an InferenceSession, got NoneType"),
    "a session of two": (lambda: generate.SpeculativeGenerator(None, None), "takes an InferenceSession, got NoneType"),
    "a session in batches": (lambda: batching.DynamicBatcher(None), "takes an InferenceSession, got NoneType"),
    "a session in streams": (lambda: streaming.StreamingInference({}), "takes an InferenceSession, got dict"),
    "a session of futures": (lambda: streaming.AsyncSession(5), "takes an InferenceSession, got int"),
    "states": (lambda: streaming.StreamingInference(_small(), ["a"]), "state_map must be of type Mapping, got list"),
    "settings of batches": (lambda: batching.DynamicBatcher(_small(), {}), "BatchConfig, got dict"),
    "settings of futures": (lambda: streaming.AsyncSession(_small(), "fast"), "AsyncOptions, got str"),
    "settings of samples": (lambda: generate.Sampler(None), "SamplingParams, got NoneType"),
    "settings of beams": (lambda: generate.beam_search(None, [1], None), "BeamParams, got NoneType"),
    "settings of a quantizer": (lambda: quantization.Quantizer("int8"), "QuantConfig, got str"),
    "settings of a calibrator": (lambda: quantization.Calibrator(_graph(), "int8"), "QuantConfig, got str"),
    "settings of a pruner": (lambda: pruning.WeightPruner({}), "PruningConfig, got dict"),
    "settings of a student": (lambda: distillation.create_student_model(_graph(), [1]), "StudentConfig, got list"),
    "settings of a server": (lambda: serving.ModelServer({}), "ServerConfig, got dict"),
    "settings of a trainer": (lambda: training.GraphTrainer(_graph(), None, 5), "TrainingConfig, got int"),
    "settings of a pool": (lambda: memory.MemoryPool({}), "PoolConfig, got dict"),
    "settings of a cache": (lambda: cache.set_global_cache_config(None), "CacheConfig, got NoneType"),
    "an address": (lambda: serving.ModelClient(5), "ModelClient: url must be a text, got 5"),
    "a graph to train": (lambda: training.trainable(None), "Graph, got NoneType"),
    "a graph to prune": (lambda: pruning.analyze_sparsity("m.onnx"), "Graph, got str"),
    "a graph to optimise": (lambda: pyflame_rt.opt.fold_constants(None), "Graph, got NoneType"),
    "a graph to write": (lambda: pyflame_rt.format.dumps_model("g"), "Graph, got str"),
    "a graph for others": (lambda: pyflame_rt.exporters.onnx_model(None), "Graph, got NoneType"),
    "a graph to mask": (lambda: pruning.apply_masks(None, {}), "Graph, got NoneType"),
    "masks": (lambda: pruning.apply_masks(_graph(), []), "masks must be of type Mapping, got list"),
    "a graph in parts": (lambda: partition.auto_partition(None), "Graph, got NoneType"),
    "a graph to verify": (lambda: pyflame_rt.graph.verify(None), "Graph, got NoneType"),
    "a graph to print": (lambda: pyflame_rt.graph.print_graph("g"), "Graph, got str"),
    "a graph to tell apart": (lambda: pyflame_rt.graph.fingerprint(None), "Graph, got NoneType"),
    "a graph to type": (lambda: pyflame_rt.ops.infer_types(None), "Graph, got NoneType"),
    "a type as text": (lambda: Tensor(X, "float32"), "dtype must be of type DType, got str"),
    "a tensor of bytes": (lambda: Tensor(b"junk" * 50), "Tensor takes a shape or a NumPy array, got bytes"),
    "a ragged tensor": (lambda: pyflame_rt.from_numpy([[1], [1, 2]]), "list cannot be read as an array"),
    "a version as text": (lambda: pyflame_rt.export_onnx(_graph(), "x.onnx", opset="17"), "a whole number, got"),
    "where weights go": (lambda: pyflame_rt.export_onnx(_graph(), "x.onnx", external_data="d"), "bool, got str"),
    "a seed as text": (lambda: pyflame_rt.random_feed([], seed="a"), "seed must be a whole number, got 'a'"),
    "sizes as a list": (lambda: pyflame_rt.random_feed([], sizes=["N"]), "sizes must be of type Mapping, got list"),
    "a feed as a path": (lambda: pyflame_rt.diff(_graph(), feed="x.npz"), "feed must be of type Mapping, got str"),
    "options of providers": (
        lambda: InferenceSession(_graph(), providers=["CPUExecutionProvider"], provider_options=["fast"]),
        "an entry of provider_options must be of type Mapping, got str",
    ),
    "a name without end": (lambda: InferenceSession("a" * 400), "there is no file of so long a name"),
}  # fmt: skip


def _graph():
    graph = Graph("small")
    graph.add_input("x", ["N"])
    graph.add_node("relu", "Relu", ["x"], ["y"])
    graph.add_output("y", ["N"])
    return graph


def _small():
    return InferenceSession(_graph())


@pytest.mark.parametrize("case", KINDS)
def test_arguments_of_another_kind(case):
    call, words = KINDS[case]
    with pytest.raises(RUNTIME) as caught:
        call()
    assert words in str(caught.value)
