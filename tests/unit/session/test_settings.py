"""Every field of every class of options takes effect, or is told by a warning that names it."""

import ast
import dataclasses
import importlib
import logging
import warnings
from pathlib import Path

import numpy as np
import pytest

import pyflame_rt
import pyflame_rt.ort as onnxruntime
from pyflame_rt import CompileOptions, Graph, ImportOptions, InferenceSession, OptLevel, RunOptions, SessionOptions
from pyflame_rt.opt.manager import manager_for
from pyflame_rt.options import NO_FALLBACK, SPEED_ONLY_KEYS
from pyflame_rt.providers import find_provider
from pyflame_rt.settings import unused_run_settings, unused_settings

SRC = Path(pyflame_rt.__file__).parents[1]
FIELDS = [name for name in SessionOptions.__slots__ if not name.startswith("_")]
CPU = find_provider("CPUExecutionProvider")

# A value that differs from the default, for each setting.
OTHER = {
    "device": "wse2",
    "num_threads": 1,
    "enable_profiling": True,
    "execution_mode": "parallel",
    "optimization_level": OptLevel.NONE,
    "verbose_optimization": True,
    "disabled_optimizers": ("CSE",),
    "log_level": "debug",
    "quantization": object(),
    "calibration_data": list,
    "calibration_batches": 3,
    "memory_limit": 1,
    "strict_math_mode": True,
    "fast_math": True,
    "immutable_model": True,
    "optimization_timeout_ms": 5,
    "cache": "somewhere",
    "checked": True,
    "verify": True,
    "plan_cache_size": 1,
    "tune": True,
    "quick_start": False,
    "profile_file_prefix": "mine_",
    "inter_op_num_threads": 2,
    "log_verbosity_level": 2,
    "logid": "mine",
    "optimized_model_filepath": "written.onnx",
    "enable_cpu_mem_arena": False,
    "enable_mem_pattern": False,
    "enable_mem_reuse": False,
    "use_deterministic_compute": True,
    "use_per_session_threads": False,
}
# What shows that a setting is heeded: a session that has run with it, without a warning.
SEEN = {
    "device": lambda s: s.get_providers() == ["WSEExecutionProvider"],
    "num_threads": lambda s: s._compile(overrides=False).executable.threads == 1,
    "enable_profiling": lambda s: s.get_profiling_start_time_ns() > 0,
    "execution_mode": lambda s: s._compile(overrides=False).executable.branches > 0,
    "strict_math_mode": lambda s: s._compile(overrides=False).executable.strict,
    "fast_math": lambda s: s._compile(overrides=False).executable.fast,
    "immutable_model": lambda s: s._options.immutable_model,  # of files: see test_held_files
    "checked": lambda s: s._compile(overrides=False).executable.checked,
    "plan_cache_size": lambda s: s._compile(overrides=False).executable.max_plans == 1,
    "tune": lambda s: s._compile(overrides=False).executable.tune,
    "quick_start": lambda s: not s._compile(overrides=False).executable.quick,
    "cache": lambda s: s._compile(overrides=False).executable.cache == Path("somewhere").absolute(),
    "optimized_model_filepath": lambda s: Path("written.onnx").is_file(),
    "use_deterministic_compute": lambda s: (
        "tune" in "".join(SessionOptions(tune=True, use_deterministic_compute=True).validate())
    ),
    "optimization_level": lambda s: s._compile(overrides=False).optimised is None,
    "disabled_optimizers": lambda s: manager(s).config.skip_passes == ["CSE"],
    "optimization_timeout_ms": lambda s: manager(s).config.timeout_ms == 5,
    "verbose_optimization": lambda s: manager(s).config.verbose,
    "verify": lambda s: manager(s).config.validate_after_pass and manager(s).watch is not None,
}
REFUSED = {"memory_limit": pyflame_rt.PyFlameRTError, "quantization": pyflame_rt.PyFlameRTError}


def manager(session):
    """The pass manager that a session's options ask for."""
    return manager_for(session.get_session_options())


def model():
    graph = Graph("g")
    graph.add_input("x", [2, 2])
    graph.add_output("y", [2, 2])
    graph.add_node("n", "Exp", ["x"], ["y"])
    return graph


def test_the_table_has_every_field():
    assert sorted(OTHER) == sorted(FIELDS)
    plain = SessionOptions()
    assert all(getattr(plain, name) != value for name, value in OTHER.items())


@pytest.mark.parametrize("name", FIELDS)
def test_a_setting_takes_effect_or_warns_by_name(name, tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    options = SessionOptions(**{name: OTHER[name]})
    told = [text for text in unused_settings(options, CPU) if text.startswith(f"{name}=")]
    if told:
        with pytest.warns(UserWarning, match=name) as caught:
            session = InferenceSession(model(), options)
        assert len(caught) == 1
        assert caught[0].filename == __file__
        assert name in str(session.explain())
        return
    if name in REFUSED:
        with pytest.raises(REFUSED[name], match=name):
            InferenceSession(model(), options).run(None, {"x": np.zeros((2, 2), np.float32)})
        return
    with warnings.catch_warnings(), caplog.at_level(logging.DEBUG, "pyflame_rt"):
        warnings.simplefilter("error")
        session = InferenceSession(model(), options)
        session.run(None, {"x": np.zeros((2, 2), np.float32)})
    if name == "profile_file_prefix":
        profiled = InferenceSession(model(), SessionOptions(enable_profiling=True, profile_file_prefix="mine_"))
        assert profiled.end_profiling().startswith("mine_")
    elif name in ("log_level", "logid"):
        InferenceSession(model(), SessionOptions(log_level="debug", logid="mine"))
        assert "[mine]" in caplog.text
    else:
        assert SEEN[name](session), name
        assert ("CSEPass: " in caplog.text) == (name == "verbose_optimization")


@pytest.mark.parametrize("provider", ["ReferenceExecutionProvider", "WSEExecutionProvider"])
def test_settings_of_the_native_engine_are_told_elsewhere(provider):
    for name in ("num_threads", "execution_mode", "cache", "checked", "strict_math_mode", "tune", "quick_start"):
        (text,) = unused_settings(SessionOptions(**{name: OTHER[name]}), find_provider(provider))
        assert text.startswith(f"{name}=")
        assert provider in text


def test_any_number_of_threads_gives_the_same_bits():
    rng = np.random.default_rng(0)
    graph = Graph("g")
    graph.add_input("x", [96, 300])
    graph.add_initializer("w", rng.standard_normal((300, 80)).astype(np.float32))
    graph.add_node("m", "MatMul", ["x", "w"], ["h"])
    graph.add_node("s", "Softmax", ["h"], ["p"])
    graph.add_node("r", "ReduceSum", ["p"], ["y"], {"keepdims": 0})
    graph.add_output("y", [])
    x = rng.standard_normal((96, 300)).astype(np.float32)
    answers = set()
    for threads in (1, 2, 3):
        session = InferenceSession(graph, SessionOptions(num_threads=threads, use_deterministic_compute=True))
        answers |= {session.run(None, {"x": x})[0].tobytes() for _ in range(5)}
    assert len(answers) == 1


@pytest.mark.parametrize("key", sorted(SPEED_ONLY_KEYS))
def test_configuration_entries_warn_by_name(key):
    options = SessionOptions()
    options.add_session_config_entry(key, "other")
    with pytest.warns(UserWarning, match=key):
        InferenceSession(model(), options)
    options.add_session_config_entry(key, SPEED_ONLY_KEYS[key])
    InferenceSession(model(), options)  # its default: no warning
    run = RunOptions()
    run.add_run_config_entry(key, "other")
    assert key in unused_run_settings(run)[0]


def test_no_fallback_keeps_to_the_first_provider():
    graph = Graph("g")
    graph.add_input("x", [2, 2])
    graph.add_output("y", [])
    graph.add_node("n", "Det", ["x"], ["y"])  # the wafer has no such operator
    two = ["WSEExecutionProvider", "CPUExecutionProvider"]
    assert InferenceSession(graph, None, two).get_providers()[0] == "CPUExecutionProvider"
    options = SessionOptions()
    options.add_session_config_entry(NO_FALLBACK, "1")
    with pytest.raises(pyflame_rt.UnsupportedOperatorError, match="'n'"):
        InferenceSession(graph, options, two)


def test_settings_of_a_run_warn_or_take_effect():
    session = InferenceSession(model())
    feed = {"x": np.zeros((2, 2), np.float32)}
    options = RunOptions()
    options.log_verbosity_level = 1
    with pytest.warns(UserWarning, match="log_verbosity_level") as caught:
        session.run(None, feed, options)
    assert caught[0].filename == __file__
    stopped = RunOptions()
    stopped.terminate = True
    with pytest.raises(pyflame_rt.RunCancelledError):
        session.run(None, feed, stopped)
    with pytest.raises(pyflame_rt.RunTimeoutError):
        session.run(None, feed, RunOptions(timeout_ms=0))


def test_the_drop_in_warns_too():
    options = onnxruntime.SessionOptions()
    with pytest.warns(UserWarning, match="set_denormal_as_zero"):
        options.add_session_config_entry("session.set_denormal_as_zero", "1")
    options.enable_mem_pattern = False
    options.execution_order = onnxruntime.ExecutionOrder.PRIORITY_BASED
    with pytest.warns(UserWarning, match="no effect") as caught:
        onnxruntime.InferenceSession(model(), options, unheard_of=3)
    texts = " ".join(str(w.message) for w in caught)
    assert all(name in texts for name in ("enable_mem_pattern", "execution_order", "unheard_of"))
    assert {w.filename for w in caught} == {__file__}
    with pytest.warns(UserWarning, match="verbosity=3"):
        onnxruntime.set_default_logger_verbosity(3)


def option_classes():
    """Every dataclass of options in the four packages: (class, the module's path)."""
    for path in sorted(SRC.rglob("*.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and node.name.endswith(("Options", "Config", "Settings")):
                module = ".".join(path.relative_to(SRC).with_suffix("").parts)
                yield module, node.name


# Functions that look whether a setting is a legal one: reading it there is no effect.
CHECKS = {"validate", "check", "__post_init__", "_problems"}


def reads(folder):
    """Names that are read as attributes anywhere in the sources, but for functions that only check settings."""
    names = set()
    for path in folder.rglob("*.py"):
        pending = [ast.parse(path.read_text("utf-8"))]
        while pending:
            node = pending.pop()
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                names.add(node.attr)
            if not (isinstance(node, ast.FunctionDef) and node.name in CHECKS):
                pending.extend(ast.iter_child_nodes(node))
    return names


def test_every_field_of_every_option_class_is_read_where_something_is_done():
    known = reads(SRC)
    found = list(option_classes())
    assert len(found) > 35
    unread = []
    # Handed on by name, all of them: a field that is not taken is a TypeError, or read through dataclasses.fields.
    whole = {"ONNXExportConfig"}
    for module, name in found:
        kind = getattr(importlib.import_module(module), name)
        fields = [f.name for f in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else ()
        fields = () if name in whole else fields
        unread += [f"{module}.{name}.{field}" for field in fields if field not in known]
    assert unread == []


def test_options_of_imports_and_compilation_take_effect(tmp_path):
    import onnx

    path = tmp_path / "m.onnx"
    pyflame_rt.export_onnx(model(), path)
    onnx.checker.check_model(str(path))
    session = pyflame_rt.create_session(path, CompileOptions(dynamic_batch=True, cache_dir=tmp_path / "code"))
    assert session.run(None, {"x": np.zeros((5, 2), np.float32)})[0].shape == (5, 2)
    assert session.get_session_options().cache == tmp_path / "code"
    shaped = pyflame_rt.from_onnx(path, ImportOptions(input_shapes={"x": [7, 2]}))
    assert shaped.get_inputs()[0].shape == [7, 2]
