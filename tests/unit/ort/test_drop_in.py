"""The same program, with ONNX Runtime and with ours under its name."""

import importlib
import json
import threading
import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

THEIRS, OURS = "onnxruntime", "pyflame_rt.ort"
pytestmark = pytest.mark.filterwarnings("ignore:Specified provider")
ONE = np.array([[1.0, -2.0, 3.0]], np.float32)


def model(op="Neg", shape=("N", 3), initializer=False):
    dtype = TensorProto.FLOAT
    inputs = [helper.make_tensor_value_info("x", dtype, shape)]
    weights, names = [], ["x"]
    if initializer:
        inputs.append(helper.make_tensor_value_info("w", dtype, [3]))
        weights, names = [numpy_helper.from_array(np.ones(3, np.float32), "w")], ["x", "w"]
    graph = helper.make_graph(
        [helper.make_node(op, names, ["y"], "n")],
        "g",
        inputs,
        [helper.make_tensor_value_info("y", dtype, shape)],
        weights,
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    made.producer_name = "tests"
    return made.SerializeToString()


def outcome(program, name):
    """What a program gives or raises, in a form that can be compared."""
    ort = importlib.import_module(name)
    ort.set_default_logger_severity(4)
    try:
        return plain(program(ort))
    except Exception as error:  # noqa: BLE001 - whatever it raises is the outcome
        return type(error).__name__, str(error)
    finally:
        if name == OURS:
            ort.set_default_logger_severity(0)


def plain(value):
    if isinstance(value, np.ndarray):
        return value.dtype.name, value.tolist()
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def arg(a):
    return a.name, a.type, a.shape


def inputs_of(shape):
    return lambda ort: [arg(a) for a in ort.InferenceSession(model(shape=shape)).get_inputs()]


def run(feed, names=None, **settings):
    return lambda ort: ort.InferenceSession(model(**settings)).run(names, feed)


def metadata(ort):
    meta = ort.InferenceSession(model()).get_modelmeta()
    names = "producer_name graph_name domain description graph_description version custom_metadata_map"
    return [getattr(meta, name) for name in names.split()]


def options_defaults(ort):
    options = ort.SessionOptions()
    names = (
        "enable_cpu_mem_arena enable_mem_pattern enable_mem_reuse enable_profiling inter_op_num_threads "
        "intra_op_num_threads log_severity_level log_verbosity_level logid optimized_model_filepath "
        "profile_file_prefix use_deterministic_compute use_per_session_threads"
    )
    enums = "execution_mode execution_order graph_optimization_level"
    return [getattr(options, n) for n in names.split()] + [getattr(options, n).name for n in enums.split()]


def run_options_defaults(ort):
    options = ort.RunOptions()
    names = "log_severity_level log_verbosity_level logid only_execute_path_to_fetches terminate"
    return [getattr(options, n) for n in names.split()]


def options_in_use(ort):
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.intra_op.allow_spinning", "1")
    options.add_free_dimension_override_by_name("N", 5)
    session = ort.InferenceSession(model(), options, ["CPUExecutionProvider"])
    used = session.get_session_options()
    return [
        [arg(a) for a in (*session.get_inputs(), *session.get_outputs())],
        used.execution_mode.name,
        used.graph_optimization_level.name,
        used.get_session_config_entry("session.intra_op.allow_spinning"),
        session.get_providers(),
        session.get_provider_options(),
    ]


def ortvalue(ort):
    array = np.array([[1, 2, 3]], np.float32)
    value = ort.OrtValue.ortvalue_from_numpy(array)
    facts = [value.shape(), value.data_type(), value.element_type(), value.device_name(), value.is_tensor()]
    facts += [value.is_sparse_tensor(), value.is_tensor_sequence(), value.has_value(), value.tensor_size_in_bytes()]
    value.update_inplace(np.array([[4, 5, 6]], np.float32))
    made = ort.OrtValue.ortvalue_from_shape_and_type([2, 2], np.int64)
    return [
        *facts,
        array,
        value.numpy(),
        np.from_dlpack(value),
        made.shape(),
        made.data_type(),
        value.__dlpack_device__(),
    ]


def binding(ort):
    session = ort.InferenceSession(model())
    bound = session.io_binding()
    bound.bind_cpu_input("x", ONE)
    bound.bind_output("y")
    session.run_with_iobinding(bound)
    first = bound.copy_outputs_to_cpu()
    target = ort.OrtValue.ortvalue_from_shape_and_type([1, 3], np.float32)
    bound.clear_binding_outputs()
    bound.bind_ortvalue_input("x", ort.OrtValue.ortvalue_from_numpy(ONE * 2))
    bound.bind_ortvalue_output("y", target)
    session.run_with_iobinding(bound)
    return [first, target.numpy(), [v.numpy() for v in bound.get_outputs()]]


def ort_values(ort):
    session = ort.InferenceSession(model())
    value = ort.OrtValue.ortvalue_from_numpy(ONE)
    return [v.numpy() for v in session.run_with_ort_values(["y"], {"x": value})] + session.run(None, {"x": value})


def asynchronous(ort):
    session, results, done = ort.InferenceSession(model()), [], threading.Event()

    def callback(values, user_data, error):
        results.append([[np.array(v) for v in values], user_data, bool(error)])
        done.set()

    for feed in (ONE, ONE.astype(np.float64)):
        done.clear()
        session.run_async(["y"], {"x": feed}, callback, "data")
        assert done.wait(120)
    return results


def profile(ort, folder):
    options = ort.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(folder / "profile")
    session = ort.InferenceSession(model(), options)
    session.run(None, {"x": ONE})
    events = json.loads(Path(session.end_profiling()).read_text("utf-8"))
    nodes = [e for e in events if e["cat"] == "Node"]
    return [
        sorted(nodes[0].keys() & {"cat", "pid", "tid", "dur", "ts", "ph", "name", "args"}),
        nodes[0]["args"]["op_name"],
    ]


def overridable(ort):
    session = ort.InferenceSession(model("Add", initializer=True))
    zero = np.zeros(3, np.float32)
    return [
        [arg(a) for a in session.get_inputs()],
        [arg(a) for a in session.get_overridable_initializers()],
        session.run(None, {"x": ONE}),
        session.run(None, {"x": ONE, "w": zero}),
    ]


PROGRAMS = {
    "inputs": inputs_of(("N", 3)),
    "unnamed sizes": inputs_of(("", None, 2)),
    "no shape": inputs_of(None),
    "scalar": inputs_of(()),
    "run": run({"x": ONE}),
    "run named": run({"x": ONE}, ["y", "y"]),
    "run empty names": run({"x": ONE}, []),
    "list feed": run({"x": ONE.tolist()}),
    "wrong size": run({"x": np.ones((1, 4), np.float32)}),
    "wrong sizes": run({"x": np.ones((3, 4), np.float32)}, shape=(1, 2)),
    "wrong rank": run({"x": np.ones(3, np.float32)}),
    "wrong type": run({"x": ONE.astype(np.float64)}),
    "unknown input": run({"x": ONE, "z": ONE}),
    "missing input": run({}),
    "missing and unknown input": run({"z": ONE}),
    "unknown output": run({"x": ONE}, ["nope"]),
    "metadata": metadata,
    "session options": options_defaults,
    "run options": run_options_defaults,
    "options in use": options_in_use,
    "OrtValue": ortvalue,
    "binding": binding,
    "OrtValues": ort_values,
    "async": asynchronous,
    "overridable": overridable,
    "no protobuf": lambda ort: ort.InferenceSession(b"garbage"),
    "empty": lambda ort: ort.InferenceSession(b""),
    "wrong model type": lambda ort: ort.InferenceSession(5),
    "device": lambda ort: [ort.get_device(), ort.OrtDevice.make("cpu", 0).device_type()],
    "unavailable provider": lambda ort: ort.InferenceSession(
        model(), providers=["CUDAExecutionProvider", "CPUExecutionProvider"]
    ).get_providers(),
    "provider with options": lambda ort: ort.InferenceSession(
        model(), None, ["CPUExecutionProvider"], [{}]
    ).get_provider_options(),
    "version": lambda ort: ort.get_version_string().split(".")[0],
    "profiling off": lambda ort: ort.InferenceSession(model()).end_profiling(),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_same_program_same_outcome(name):
    assert outcome(PROGRAMS[name], OURS) == outcome(PROGRAMS[name], THEIRS)


ERRORS = {
    "no file": lambda ort: ort.InferenceSession("missing.onnx"),
    "unknown operator": lambda ort: ort.InferenceSession(model("Nope")),
    "terminated": lambda ort: ort.InferenceSession(model()).run(None, {"x": ONE}, terminated(ort)),
    "wrong level": lambda ort: setattr(ort.SessionOptions(), "graph_optimization_level", 2),
}


def terminated(ort):
    options = ort.RunOptions()
    options.terminate = True
    return options


@pytest.mark.parametrize("name", ERRORS)
def test_same_kind_of_error(name):
    ours, theirs = outcome(ERRORS[name], OURS), outcome(ERRORS[name], THEIRS)
    assert ours[0] == theirs[0]
    assert ours[1].split(" : ")[:3] == theirs[1].split(" : ")[:3] or "TypeError" in ours


def test_profiles_read_alike(tmp_path):
    ours, theirs = (outcome(lambda ort: profile(ort, tmp_path), name) for name in (OURS, THEIRS))
    assert ours == theirs


def test_errors_are_importable_where_onnx_runtime_has_them():
    import pyflame_rt.ort as onnxruntime
    from pyflame_rt.ort.capi.onnxruntime_pybind11_state import InvalidArgument, NoSuchFile

    with pytest.raises(NoSuchFile):
        onnxruntime.InferenceSession("missing.onnx")
    with pytest.raises(InvalidArgument):
        onnxruntime.InferenceSession(model()).run(None, {"x": ONE.astype(np.float64)})
    real = importlib.import_module("onnxruntime.capi.onnxruntime_pybind11_state")
    ours = importlib.import_module("pyflame_rt.ort.capi.onnxruntime_pybind11_state")
    for name in ours.__all__:
        if name != "translate":
            kind = getattr(ours, name)
            assert issubclass(kind, Exception)
            assert not issubclass(kind, RuntimeError)
            assert hasattr(real, name) or name == "DeviceReset"


def test_files_of_any_suffix(tmp_path):
    import pyflame_rt.ort as onnxruntime

    path = tmp_path / "model.bin"
    path.write_bytes(model())
    assert len(onnxruntime.InferenceSession(path).run(None, {"x": ONE})) == 1


def test_names_nobody_knows_are_refused_not_replaced():
    import pyflame_rt.ort as onnxruntime

    with pytest.raises(ValueError, match="Unknown Provider Type: Foo"):
        onnxruntime.InferenceSession(model(), providers=["Foo"])


def test_unavailable_provider_warns():
    import pyflame_rt.ort as onnxruntime

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        onnxruntime.InferenceSession(model(), providers=["CUDAExecutionProvider"])
    assert "CUDAExecutionProvider" in str(caught[0].message)


def test_configuration_without_counterpart_warns():
    import pyflame_rt.ort as onnxruntime

    options = onnxruntime.SessionOptions()
    with pytest.warns(UserWarning, match="no counterpart"):
        options.add_session_config_entry("session.something", "1")
    assert options.get_session_config_entry("session.something") == "1"


def test_node_failure_is_a_runtime_exception():
    import pyflame_rt.ort as onnxruntime

    graph = helper.make_graph(
        [helper.make_node("Reshape", ["x", "s"], ["y"], "n")],
        "g",
        [helper.make_tensor_value_info("x", 1, ["N"]), helper.make_tensor_value_info("s", 7, [1])],
        [helper.make_tensor_value_info("y", 1, None)],
    )
    session = onnxruntime.InferenceSession(onnx.helper.make_model(graph).SerializeToString())
    with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.RuntimeException, match="'n'"):
        session.run(None, {"x": ONE[0], "s": np.array([7])})


@pytest.mark.parametrize("name", [THEIRS, OURS])
@pytest.mark.filterwarnings("ignore:CPUExecutionProvider takes no options")
def test_options_of_the_cpu_are_no_error(name):
    ort = importlib.import_module(name)
    options = ("CPUExecutionProvider", {"arena_extend_strategy": "kSameAsRequested"})
    assert ort.InferenceSession(model(), providers=[options]).get_provider_options() == {"CPUExecutionProvider": {}}


def test_the_start_of_a_profile_stays_known(tmp_path):
    ort = importlib.import_module(OURS)
    options = ort.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "profile")
    session = ort.InferenceSession(model(), options)
    began = session.get_profiling_start_time_ns()
    session.end_profiling()
    assert session.get_profiling_start_time_ns() == began > 0


def test_a_feed_is_a_mapping():
    with pytest.raises(TypeError, match="list"):
        importlib.import_module(OURS).InferenceSession(model()).run(None, [ONE])
