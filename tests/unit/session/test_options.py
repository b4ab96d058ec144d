import logging
import pickle
from pathlib import Path

import numpy as np
import pytest

import pyflame_rt
from pyflame_rt import GraphOptimizationLevel, InferenceSession, OptLevel, RunOptions, SessionOptions
from pyflame_rt.logs import SessionLog, logger, set_default_logger_severity


def test_levels_are_ordered_numbers_with_aliases():
    assert OptLevel.NONE < OptLevel.BASIC < OptLevel.EXTENDED < OptLevel.ALL
    assert max(OptLevel) is OptLevel.ALL
    assert [int(level) for level in OptLevel] == [0, 1, 2, 3]
    assert OptLevel.None_ is OptLevel.NONE
    assert OptLevel.Extended is OptLevel.EXTENDED
    assert str(OptLevel.ALL) == "OptLevel.ALL"
    with pytest.raises(pyflame_rt.InputError, match="BASIC"):
        OptLevel.of("most")


@pytest.mark.parametrize("level", list(GraphOptimizationLevel))
def test_onnx_runtime_levels(level):
    options = SessionOptions()
    options.graph_optimization_level = level
    assert OptLevel.of(level) is options.optimization_level
    back = options.graph_optimization_level
    assert back is level or level is GraphOptimizationLevel.ORT_ENABLE_LAYOUT


def test_linked_names():
    options = SessionOptions()
    options.intra_op_num_threads = 3
    assert options.num_threads == 3
    options.memory_limit_mb = 1.5
    assert options.memory_limit == 1.5 * 2**20
    options.log_severity_level = 0
    assert options.log_level == "verbose"
    options.log_level = "debug"
    assert options.log_severity_level == 0
    options.log_severity_level = -1
    assert options.log_level == "warning"
    run = RunOptions()
    run.logid = "tag"
    assert run.tag == "tag"
    assert run.log_severity_level == -1
    run.log_severity_level = 3
    assert run.log_level == "error"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("device", "abacus"),
        ("execution_mode", "sideways"),
        ("log_level", "loud"),
        ("num_threads", -1),
        ("num_threads", 257),
        ("num_threads", 1.5),
        ("num_threads", True),
        ("optimization_level", "most"),
        ("calibration_batches", 0),
        ("memory_limit", -1),
        ("enable_profiling", "yes"),
        ("calibration_data", 5),
        ("plan_cache_size", 0),
        ("cache", False),
        ("cache", 5),
        ("cache", b"folder"),
        ("cache", ""),
        ("cache", "a\0b"),
    ],
)
def test_validate_names_the_setting(name, value):
    options = SessionOptions()
    assert options.validate() == []
    setattr(options, name, value)
    assert len(options.validate()) == 1
    if name != "optimization_level":
        assert name in options.validate()[0]


def test_unknown_settings_are_refused():
    with pytest.raises(AttributeError):
        SessionOptions().num_thread = 3  # type: ignore[attr-defined]
    with pytest.raises(AttributeError):
        RunOptions().timeout = 3  # type: ignore[attr-defined]


def test_methods_take_effect_or_say_why_not():
    options = SessionOptions()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    refused = (
        lambda: options.get_session_config_entry("nope"),
        lambda: options.add_session_config_entry("session.set_denormal_as_zero", "1"),
        lambda: options.add_free_dimension_override_by_denotation("BATCH", 1),
        lambda: options.add_free_dimension_override_by_name("N", -1),
        lambda: options.register_custom_ops_library("libcustom.so"),
        lambda: options.add_external_initializers(["a"], []),
        lambda: RunOptions().add_active_adapter(None),
        lambda: RunOptions().add_run_config_entry("nope", "1"),
        lambda: setattr(options, "log_severity_level", 9),
    )
    for call in refused:
        with pytest.raises(pyflame_rt.InputError):
            call()


def test_providers_in_options(kit):
    options = SessionOptions()
    assert not options.has_providers()
    options.add_provider("ReferenceExecutionProvider")
    assert options.has_providers()
    assert InferenceSession(kit.chain(), options).get_providers() == ["ReferenceExecutionProvider"]


def test_copies_and_pickles():
    options = SessionOptions(num_threads=2, log_level="info")
    options.add_free_dimension_override_by_name("N", 4)
    twin = pickle.loads(pickle.dumps(options))  # noqa: S301 - our own
    assert repr(twin) == repr(options) == "SessionOptions(num_threads=2, log_level='info')"
    assert twin._free_dimensions == {"N": 4}
    copied = options.copy()
    copied.add_free_dimension_override_by_name("M", 4)
    assert "M" not in options._free_dimensions


@pytest.fixture
def records():
    """Records the package's logger handles."""
    found = []

    class Keep(logging.Handler):
        def emit(self, record):
            found.append(record)

    handler = Keep()
    logger.addHandler(handler)
    yield found
    logger.removeHandler(handler)


def test_log_levels_take_effect(kit, records):
    quiet = InferenceSession(kit.chain())
    quiet.run(None, {"x": kit.x})
    assert not records
    loud = InferenceSession(kit.chain(), SessionOptions(log_level="debug", logid="mine"))
    assert any("chain" in r.getMessage() and r.levelno == logging.INFO for r in records)
    records.clear()
    loud.run(None, {"x": kit.x}, RunOptions(tag="batch_1"))
    assert [r.levelno for r in records] == [logging.DEBUG]
    assert "batch_1" in records[0].getMessage()
    records.clear()
    loud.run(None, {"x": kit.x}, RunOptions(log_level="error"))
    assert not records
    quiet.run(None, {"x": kit.x}, RunOptions(log_level="debug"))
    assert len(records) == 1


def test_default_severity_is_a_floor(records):
    set_default_logger_severity(3)
    try:
        SessionLog("debug").warning("not heard")
        assert not records
    finally:
        set_default_logger_severity(0)
    with pytest.raises(pyflame_rt.InputError):
        set_default_logger_severity(9)


def test_profile_of_a_run(kit, tmp_path):
    import json

    options = SessionOptions(enable_profiling=True, profile_file_prefix=str(tmp_path / "profile_"))
    session = InferenceSession(kit.chain(3), options, providers=["ReferenceExecutionProvider"])
    assert session.get_profiling_start_time_ns() > 0
    session.run(None, {"x": kit.x}, RunOptions(tag="warm"))
    session.run(None, {"x": np.zeros((5, 3), np.float32)})
    document = json.loads(Path(session.end_profiling()).read_text("utf-8"))
    assert len(document["events"]) == len(document["traceEvents"]) == 8
    node = document["traceEvents"][0]
    assert (node["ph"], node["cat"], node["name"]) == ("X", "Node", "n0_kernel_time")
    assert node["args"]["tag"] == "warm"
    assert node["args"]["op_name"] == "Neg"
    assert node["args"]["output_type_shape"] == [{"float32": [1, 3]}]
    assert all(event["duration_us"] >= 0 for event in document["events"])
    assert session.end_profiling() == ""
    assert session.get_profiling_start_time_ns() == 0


def test_profile_of_nested_nodes_adds_up(kit, tmp_path):
    import json

    from onnx import TensorProto, helper

    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["c2"], "keep"), helper.make_node("Neg", ["v"], ["v2"], "inner")],
        "body",
        [helper.make_tensor_value_info(n, t, []) for n, t in (("i", 7), ("c", 9))]
        + [helper.make_tensor_value_info("v", TensorProto.FLOAT, [1])],
        [helper.make_tensor_value_info("c2", 9, []), helper.make_tensor_value_info("v2", TensorProto.FLOAT, [1])],
    )
    data = kit.onnx(
        [helper.make_node("Loop", ["n", "", "x"], ["y"], "outer", body=body)],
        [("x", TensorProto.FLOAT, [1])],
        [("y", TensorProto.FLOAT, [1])],
        {"n": np.array(3)},
    )
    options = SessionOptions(enable_profiling=True, profile_file_prefix=str(tmp_path / "p"))
    session = InferenceSession(data, options)
    assert session.run(None, {"x": [2]})[0].tolist() == [-2]
    events = json.loads(Path(session.end_profiling()).read_text("utf-8"))["events"]
    inner = [e for e in events if e["op_name" if "op_name" in e else "name"] == "Neg"]
    outer = next(e for e in events if e["name"] == "outer_kernel_time")
    assert len(inner) == 3
    assert outer["duration_us"] >= sum(e["duration_us"] for e in inner)
