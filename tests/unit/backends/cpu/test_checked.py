"""Checked mode: right answers, and faults of the engine that become errors."""

import ctypes
import faulthandler
import os
import signal

import numpy as np
import pytest
from onnx import helper

import pyflame_rt
from pyflame_rt import InferenceSession, SessionOptions
from pyflame_rt.backends.cpu.ir.bounds_checks import HEADER, SINK_BYTES, with_checks
from pyflame_rt.backends.cpu.jit.compiler import address_of
from pyflame_rt.backends.cpu.lower.lowering import KernelStep
from pyflame_rt.backends.cpu.memory.buffer_views import Buffer
from pyflame_rt.backends.cpu.memory.checked_arena import check_offsets
from pyflame_rt.backends.cpu.memory.guard_pages import CANARY, Guarded
from pyflame_rt.backends.cpu.onednn import live_handles
from pyflame_rt.graph.errors import BackendError
from tests.conformance.suite import case_names, expected_failures, load_cases, run_case
from tests.unit.backends.cpu.models import RNG, convnet, feed, mlp, model
from tests.unit.resting import at_rest

CPU = "CPUExecutionProvider"
LARGE = {case.name for case in load_cases("real")}
SAMPLE = [name for name in case_names() if (name, CPU) not in expected_failures() and name not in LARGE][::40]


def checked(data):
    return InferenceSession(data, SessionOptions(checked=True))


def plan_of(session):
    (plan,) = session._compile(overrides=False).executable._plans.values()
    return plan


@pytest.mark.parametrize("name", SAMPLE)
def test_a_sample_of_the_suite(name, monkeypatch):
    monkeypatch.setenv("PYFLAME_CHECKED", "1")
    run_case(name, CPU)


@pytest.mark.parametrize("shape", [(1, 3, 16, 16), (3, 3, 17, 23)])
def test_the_same_answers_and_no_handles_left(shape):
    at_rest()  # what other tests left behind is not counted
    before = live_handles()
    x = RNG.standard_normal(shape).astype(np.float32)
    with checked(convnet()) as session, InferenceSession(convnet()) as plain:
        for _ in range(2):
            assert np.array_equal(session.run(None, {"x": x})[0], plain.run(None, {"x": x})[0])
    assert live_handles() == before


def test_the_environment_turns_it_on(monkeypatch):
    monkeypatch.setenv("PYFLAME_CHECKED", "1")
    session = InferenceSession(mlp())
    session.run(None, {"x": np.zeros((1, 64), np.float32)})
    assert plan_of(session).checked
    monkeypatch.setenv("PYFLAME_CHECKED", "0")
    session = InferenceSession(mlp())
    session.run(None, {"x": np.zeros((1, 64), np.float32)})
    assert not plan_of(session).checked
    assert "checked is 'yes'" in SessionOptions(checked="yes").validate()[0]


def chain():
    nodes = [
        helper.make_node("Exp", ["x"], ["e"], "first"),
        helper.make_node("Softmax", ["e"], ["s"], "second"),
        helper.make_node("Neg", ["s"], ["n"], "third"),
        helper.make_node("Softmax", ["n"], ["y"], "fourth"),
    ]
    return model(nodes, [], ["N", 24], 2)


def tampered(change):
    """A session whose plan was changed behind its back."""
    session = checked(chain())
    x = RNG.standard_normal((4, 24)).astype(np.float32)
    wanted = session.run(None, {"x": x})[0]
    plan = plan_of(session)
    for arena in plan.free:
        arena.close()
    plan.free = []
    change(plan.lowered)
    return session, x, wanted


def test_a_kernel_that_walks_too_far_is_named():
    def change(lowered):
        step = next(s for s in lowered.steps if isinstance(s, KernelStep) and s.label == "Softmax")
        step.params[0] += 1000

    session, x, _ = tampered(change)
    with pytest.raises(BackendError, match=r"checked mode: step \d \(Softmax, nodes second\) touched \d+ bytes"):
        session.run(None, {"x": x})


def test_a_value_used_after_its_life_is_poison():
    def change(lowered):
        buffer = lowered.steps[1].views[-1].buffer  # what Softmax makes, read by the next step
        buffer.last = buffer.first

    session, x, wanted = tampered(change)
    got = session.run(None, {"x": x})[0]
    assert np.isfinite(wanted).all()
    assert np.isnan(got).all()


def test_buffers_that_live_together_must_not_share_bytes():
    a, b = Buffer(64, first=0, last=2, offset=0), Buffer(64, first=2, last=3, offset=32)
    with pytest.raises(BackendError, match="share bytes"):
        check_offsets([a, b])
    b.first = 3
    check_offsets([a, b])


def test_canaries_around_a_buffer():
    memory = Guarded([100, 64, 5000])
    first, exact, large = memory.regions
    assert first.address % 64 == exact.address % 64 == large.address % 64 == 0
    for region in memory.regions:
        region.poison()
        assert region.damage() == ""
    ctypes.c_uint8.from_address(first.address + 103).value = 1
    assert first.damage() == "3 bytes behind its end"
    ctypes.c_uint8.from_address(first.address + 103).value = CANARY
    ctypes.c_uint8.from_address(large.address - 2).value = 1
    assert large.damage() == "2 bytes before its begin"
    memory.close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("offset", [-4096, 128])
def test_guard_pages_stop_what_nothing_else_sees(offset):
    memory = Guarded([128])
    child = os.fork()
    if child == 0:
        faulthandler.disable()
        ctypes.c_uint8.from_address(memory.regions[0].address + offset).value = 1
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) in (-signal.SIGSEGV, -signal.SIGBUS)
    memory.close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_frozen_memory_is_read_only():
    memory = Guarded([10_000])
    (region,) = memory.regions
    region.data[:] = 7
    memory.freeze(region)
    assert region.data.sum() == 70_000
    child = os.fork()
    if child == 0:
        faulthandler.disable()
        region.data[9_999] = 1
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGSEGV
    memory.close()


MASK = "<4 x i1> <i1 true, i1 true, i1 false, i1 false>"
ACCESSES = {
    "load": ("%v = load <4 x float>, ptr %q, align 1", 16),
    "store": ("store <4 x float> zeroinitializer, ptr %q, align 1", 16),
    "scalar": ("store i8 3, ptr %q, align 1", 1),
    "masked load": (
        f"%v = call <4 x float> @llvm.masked.load.v4f32.p0(ptr %q, i32 1, {MASK}, <4 x float> zeroinitializer)",
        8,
    ),
    "masked store": (
        f"call void @llvm.masked.store.v4f32.p0(<4 x float> zeroinitializer, ptr %q, i32 1, {MASK})",
        8,
    ),
    "gather": (
        """%one = insertelement <2 x ptr> poison, ptr %q, i64 0
  %two = insertelement <2 x ptr> %one, ptr %q, i64 1
  %some = insertelement <2 x i1> zeroinitializer, i1 true, i64 0
  %v = call <2 x i32> @llvm.masked.gather.v2i32.v2p0(<2 x ptr> %two, i32 1, <2 x i1> %some, <2 x i32> undef)""",
        4,
    ),
    "fill": ("call void @llvm.memset.p0.i64(ptr %q, i8 0, i64 24, i1 false)", 24),
    "copy": ("call void @llvm.memcpy.p0.p0.i64(ptr %q, ptr %p, i64 8, i1 false)", 8),
}
DECLARED = """
declare <4 x float> @llvm.masked.load.v4f32.p0(ptr, i32, <4 x i1>, <4 x float>)
declare void @llvm.masked.store.v4f32.p0(<4 x float>, ptr, i32, <4 x i1>)
declare <2 x i32> @llvm.masked.gather.v2i32.v2p0(<2 x ptr>, i32, <2 x i1>, <2 x i32>)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
"""


@pytest.mark.parametrize("access", ACCESSES)
def test_every_kind_of_access_is_looked_up(access):
    """At the last place that fits nothing is noted; one byte further, and one before the begin, it is."""
    line, size = ACCESSES[access]
    name = f"checked_{access.replace(' ', '_')}"
    module = f"""{DECLARED}
define internal void @helper_{name}(ptr %p, ptr %q) nounwind {{
entry:
  {line}
  ret void
}}
define void @{name}(ptr %bufs, ptr %params, i64 %begin, i64 %end) nounwind {{
entry:
  %mine = alloca i64
  store i64 0, ptr %mine
  %p = load ptr, ptr %bufs
  %q = getelementptr i8, ptr %p, i64 %begin
  call void @helper_{name}(ptr %p, ptr %q)
  ret void
}}
"""
    entry = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 2)(
        address_of(name, with_checks(module, name))
    )
    data, sink = np.zeros(64, np.uint8), np.zeros(SINK_BYTES, np.uint8)
    slots = (ctypes.c_void_p * 2)()
    low, first = data.ctypes.data, ctypes.addressof(slots) + 8
    table = np.array([2, 0, 0, sink.ctypes.data, low, low + 64, first, first + 8], np.int64)
    slots[0], slots[1] = table.ctypes.data, low
    for at, bad in ((0, False), (64 - size, False), (64 - size + 1, True), (-1, True), (10**9, True)):
        table[1] = table[2] = 0
        entry(first, None, at, 0)
        assert (table[1] != 0) == bad
        if bad:
            assert (int(table[1]) - low, int(table[2])) == (at, size)
    assert len(table) == HEADER + 4


def test_it_goes_with_profiles_and_limits(tmp_path):
    options = SessionOptions(checked=True, enable_profiling=True, profile_file_prefix=str(tmp_path / "p"))
    session = InferenceSession(convnet(), options)
    session.run(None, {"x": feed(1, 16)}, pyflame_rt.RunOptions(timeout_ms=60_000))
    assert session.explain().run_seconds > 0
