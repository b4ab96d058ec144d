"""The driver: steps, patches, cancelling, threads, statuses."""

import ctypes
from ctypes import CFUNCTYPE, POINTER, addressof, byref, c_int, c_int64, c_void_p

import numpy as np
import pytest

from pyflame_rt.backends.cpu.driver import native_driver as driver
from pyflame_rt.backends.cpu.driver.native_driver import CANCELLED, NativePlan, NativeStep, Patch, PatchKind, StepKind
from pyflame_rt.backends.cpu.ir.kernel_program import GatherKernel, Map, Operand, RowKernel, Store, apply, load
from pyflame_rt.backends.cpu.jit.compiler import compile_kernels

F32 = Operand("float32")
EXECUTE = CFUNCTYPE(c_int, c_void_p, c_void_p, c_int, c_void_p)
SET_HANDLE = CFUNCTYPE(c_int, c_void_p, c_void_p)


def add(constant):
    return RowKernel(0, (F32,), (F32,), (Map((Store(1, apply("add", load(0, "float32"), constant)),)),))


class Built:
    """A plan with everything it points to."""

    def __init__(self, steps, patches=(), threads=1, **fields):
        self.keep = steps  # the arrays they point to
        self.steps, self.patches = (NativeStep * max(1, len(steps)))(*steps), (Patch * max(1, len(patches)))(*patches)
        gomp = driver.openmp()
        self.plan = NativePlan(
            steps=addressof(self.steps), nsteps=len(steps), patches=addressof(self.patches), npatches=len(patches),
            parallel=gomp.parallel, thread_num=gomp.thread_num, num_threads=threads, **fields,
        )  # fmt: skip

    def run(self, *io):
        return driver.run()(byref(self.plan), (c_void_p * max(1, len(io)))(*io))


def kernel_step(kernel, buffers, rows, params=(0,), grain=1 << 60):
    array, numbers = (c_void_p * len(buffers))(*buffers), (c_int64 * len(params))(*params)
    step = NativeStep(
        StepKind.KERNEL, compile_kernels([kernel])[0], addressof(array), len(buffers), addressof(numbers), rows, grain
    )
    step.keep = (array, numbers)
    return step


def test_empty_plan():
    assert Built([]).run() == 0


def test_steps_run_in_order_over_patched_buffers():
    x, out, middle = np.arange(20, dtype="f"), np.zeros(24, "f"), np.zeros(20, "f")
    first, second = (kernel_step(add(c), [0, middle.ctypes.data], 20) for c in (1.0, 2.0))
    second.keep[0][0], second.keep[0][1] = middle.ctypes.data, 0
    slots = [addressof(first.keep[0]), addressof(second.keep[0]) + 8]
    patches = [Patch(PatchKind.POINTER, slots[0], 0, 0), Patch(PatchKind.POINTER, slots[1], 1, 16)]
    built = Built([first, second], patches)
    for scale in (1, 2):  # each run brings its own pointers
        data = x * scale
        assert built.run(data.ctypes.data, out.ctypes.data) == 0
        np.testing.assert_array_equal(out, [0] * 4 + list(data + 3))


def test_copy_and_check():
    source, target, flag = np.arange(9, dtype="f"), np.zeros(9, "f"), np.zeros(1, "i8")
    pair, one = (c_void_p * 2)(target.ctypes.data, source.ctypes.data), (c_void_p * 1)(flag.ctypes.data)
    built = Built(
        [NativeStep(StepKind.COPY, args=addressof(pair), rows=36), NativeStep(StepKind.CHECK, args=addressof(one))]
    )
    assert built.run() == 0
    np.testing.assert_array_equal(target, source)
    flag[0] = 5
    assert built.run() == 5
    assert built.plan.failed == 1


def test_gather_fault_stops_the_plan():
    table, indices, out, flag = np.ones((4, 2), "f"), np.array([0, 7], "i8"), np.zeros((2, 2), "f"), np.zeros(1, "i8")
    step = kernel_step(
        GatherKernel("float32"), [a.ctypes.data for a in (table, indices, out, flag)], 2, (2, 2, 4, 0, 2)
    )
    one = (c_void_p * 1)(flag.ctypes.data)
    late = np.zeros(3, "f")
    after = kernel_step(add(9.0), [late.ctypes.data, late.ctypes.data], 3)
    built = Built([step, NativeStep(StepKind.CHECK, args=addressof(one)), after])
    assert built.run() == 2
    assert built.plan.failed == 1
    assert not late.any()


def test_cancel_word_stops_before_the_next_step():
    word, data = np.zeros(1, "i8"), np.zeros(4, "f")
    first = kernel_step(add(1.0), [data.ctypes.data, data.ctypes.data], 4)
    one = np.ones(1, "i8")
    pair = (c_void_p * 2)(word.ctypes.data, one.ctypes.data)  # the second step sets the word itself
    built = Built([first, NativeStep(StepKind.COPY, args=addressof(pair), rows=8), first], cancel=word.ctypes.data)
    assert built.run() == CANCELLED
    assert built.plan.failed == 2
    np.testing.assert_array_equal(data, 1)


def test_primitives_and_memory_handles_are_called():
    seen = []

    @EXECUTE
    def execute(primitive, stream, nargs, args):
        seen.append((primitive, stream, nargs, args))
        return 3 if primitive == 99 else 0

    @SET_HANDLE
    def set_handle(memory, pointer):
        seen.append((memory, pointer))
        return 0 if memory == 41 else 6

    calls = {
        "execute": ctypes.cast(execute, c_void_p).value,
        "set_handle": ctypes.cast(set_handle, c_void_p).value,
        "stream": 17,
    }
    steps = [
        NativeStep(StepKind.PRIMITIVE, 98, 1000, 2),
        NativeStep(StepKind.PRIMITIVE, 99, 1001, 3),
        NativeStep(StepKind.PRIMITIVE, 98, 1002, 4),
    ]
    built = Built(steps, [Patch(PatchKind.MEMORY, 41, 0, 8)], **calls)
    assert built.run(64) == 3
    assert built.plan.failed == 1
    assert seen == [(41, 72), (98, 17, 2, 1000), (99, 17, 3, 1001)]
    broken = Built(steps, [Patch(PatchKind.MEMORY, 42, 0, 8)], **calls)
    assert broken.run(64) == 6
    assert broken.plan.failed == -1


@pytest.mark.parametrize("pieces", [0, 1, 4, 1000])
@pytest.mark.parametrize("threads", [1, 2, 3, 64, 1000])
@pytest.mark.parametrize("rows", [0, 1, 2, 5, 1000, 70_001])
def test_threads_cover_every_row_once(rows, threads, pieces):
    data = np.zeros(rows, "f")
    step = kernel_step(add(1.0), [data.ctypes.data] * 2, rows, grain=1)
    step.pieces = pieces
    built = Built([step] * 3, threads=threads)
    assert built.run() == 0
    np.testing.assert_array_equal(data, 3)


def test_small_steps_stay_on_one_thread():
    calls = []

    @CFUNCTYPE(None, c_void_p, c_void_p, ctypes.c_uint, ctypes.c_uint)
    def parallel(fn, team, threads, flags):
        calls.append(threads)
        CFUNCTYPE(None, c_void_p)(fn)(team)  # a team of one takes every chunk

    data = np.zeros(100, "f")
    for grain, expected in ((100, []), (50, [2]), (0, [4]), (33, [4])):
        calls.clear()
        built = Built([kernel_step(add(1.0), [data.ctypes.data] * 2, 100, grain=grain)], threads=4)
        built.plan.parallel = ctypes.cast(parallel, c_void_p).value
        data[:] = 0
        assert built.run() == 0
        assert calls == expected
        np.testing.assert_array_equal(data, 1)


def test_without_openmp_everything_runs_on_one_thread(monkeypatch):
    driver.openmp.cache_clear()
    monkeypatch.setattr(driver, "load_gomp", lambda: None)
    try:
        assert driver.openmp() == driver.OpenMP(0, 0)
        data = np.zeros(100, "f")
        assert Built([kernel_step(add(1.0), [data.ctypes.data] * 2, 100, grain=1)], threads=2).run() == 0
        np.testing.assert_array_equal(data, 1)
    finally:
        driver.openmp.cache_clear()


def test_layouts_are_words():
    for structure in (NativePlan, NativeStep, Patch):
        assert ctypes.sizeof(structure) == 8 * len(structure._fields_)
    assert ctypes.sizeof(POINTER(c_int)) == 8


class Watched:
    """A plan of several threads whose clock and whose parallel regions are ours; ``took``: by 1 or by 2 and more."""

    def __init__(self, *, brief=True, threads=2):
        self.team = threads
        self.now, self.took, self.regions = 0, {1: 0, 2: 0}, 0
        self.levels = [7]
        self.calls = [
            CFUNCTYPE(c_int, c_int, POINTER(c_int64))(self._clock),
            CFUNCTYPE(None, c_void_p, c_void_p, c_int, c_int)(self._parallel),
            CFUNCTYPE(c_int)(lambda: 0),
            CFUNCTYPE(c_int)(lambda: self.levels[-1]),
            CFUNCTYPE(None, c_int)(self.levels.append),
        ]
        clock, parallel, number, get_level, set_level = (ctypes.cast(call, c_void_p).value for call in self.calls)
        self.data, self.budget = np.zeros(16, "f"), np.array([threads, 0], np.int64)
        step = kernel_step(add(1.0), [self.data.ctypes.data] * 2, len(self.data), grain=1)
        self.built = Built([step], threads=threads, budget=self.budget.ctypes.data)
        plan = self.plan = self.built.plan
        driver.watch(plan, brief=brief)
        plan.clock, plan.parallel, plan.thread_num = clock, parallel, number
        if not brief:
            plan.get_level, plan.set_level = get_level, set_level

    def _clock(self, _kind, stamp):
        stamp[0], stamp[1] = divmod(self.now, 1_000_000_000)
        self.now += self.took[1]  # as long as the run that begins has one thread
        return 0

    def _parallel(self, work, team, threads, _flags):
        assert threads == self.team
        self.now += self.took[2] - self.took[1]
        self.regions += 1
        CFUNCTYPE(None, c_void_p)(work)(team)

    def threads(self, runs):
        """How many threads each of so many runs had."""
        counts = []
        for _ in range(runs):
            before, was = self.regions, float(self.data[0])
            assert self.built.run() == 0
            np.testing.assert_array_equal(self.data, was + 1)
            assert self.budget[1] == 0
            counts.append(self.team if self.regions > before else 1)
        return counts


@pytest.fixture
def watched():
    if not driver.clock():
        pytest.skip("no clock in the C library")
    return Watched()


@pytest.fixture
def long_watched():
    if not driver.clock():
        pytest.skip("no clock in the C library")
    return Watched(brief=False)


def test_a_long_run_begins_with_threads_and_keeps_them(long_watched):
    long_watched.took = {1: 9_000_000, 2: 5_000_000}
    assert long_watched.threads(1000) == [2] * 1000
    long_watched.took = {1: 12_000_000, 2: 7_000_000}  # a slower machine
    assert long_watched.threads(1000) == [2] * 1000
    assert long_watched.levels == [7]


def test_a_long_run_does_without_threads_that_come_late(long_watched):
    long_watched.took = {1: 9_000_000, 2: 5_000_000}
    long_watched.threads(20)
    long_watched.took = {1: 9_000_000, 2: 15_000_000}  # a neighbour has come
    assert long_watched.threads(2) == [2, 2]
    assert long_watched.threads(3) == [1, 1, 1]  # to know what that takes
    assert long_watched.threads(4) == [2, 2, 2, 2]  # two to wake, two late ones
    seen = long_watched.threads(1000)
    assert seen.count(2) < 60
    assert set(long_watched.levels[1::2]) == {0}  # regions of libraries have one thread too
    assert set(long_watched.levels[2::2]) == {7}
    assert len(long_watched.levels) == 1 + 2 * (3 + seen.count(1))
    long_watched.took = {1: 9_000_000, 2: 5_000_000}  # it has gone
    long_watched.threads(200)
    assert long_watched.threads(1000) == [2] * 1000


def test_a_long_run_gives_a_moment_of_trouble_few_runs(long_watched):
    long_watched.took = {1: 9_000_000, 2: 5_000_000}
    long_watched.threads(20)
    for _ in range(5):
        long_watched.took = {1: 9_000_000, 2: 25_000_000}
        while long_watched.threads(1) == [2]:
            pass
        long_watched.took = {1: 9_000_000, 2: 5_000_000}
        assert long_watched.threads(300).count(1) < 8


@pytest.mark.parametrize(("threads", "late"), [(2, 1.75), (4, 3.5), (16, 14.0)])
def test_late_is_nearly_what_one_thread_would_take(threads, late):
    """As long as nobody knows what one takes: threads that share work well are no reason to try one."""
    if not driver.clock():
        pytest.skip("no clock in the C library")
    case = Watched(brief=False, threads=threads)
    case.took = {1: 1, 2: 4_000_000}
    case.threads(20)
    case.took = {1: 1, 2: int(4_000_000 * late * 0.99)}
    assert case.threads(2) == [threads] * 2
    case.took = {1: 1, 2: 4_000_000}
    assert case.threads(10) == [threads] * 10
    case.took = {1: 1, 2: int(4_000_000 * late * 1.1)}
    assert case.threads(3) == [threads, threads, 1]


def test_threads_that_are_late_but_faster_are_used(long_watched):
    long_watched.took = {1: 9_000_000, 2: 4_000_000}
    long_watched.threads(20)
    long_watched.took = {1: 9_000_000, 2: 8_000_000}
    seen = long_watched.threads(1000)
    assert seen.count(1) == 3


def test_pauses_of_very_long_runs_are_short(long_watched):
    long_watched.took = {1: 900_000_000, 2: 500_000_000}
    long_watched.threads(20)
    long_watched.took = {1: 900_000_000, 2: 1_500_000_000}
    long_watched.threads(200)
    long_watched.took = {1: 900_000_000, 2: 500_000_000}
    long_watched.threads(3)
    assert long_watched.threads(100) == [2] * 100


def test_a_short_run_uses_threads_that_come_in_time(watched):
    watched.took = {1: 20_000, 2: 11_000}
    assert watched.threads(3) == [1, 1, 1]
    assert watched.plan.alone == 20_000
    later = watched.threads(600)
    assert later.count(1) == 2  # now and then one thread shows what it takes
    watched.took = {1: 30_000, 2: 17_000}  # a slower machine
    assert watched.threads(3000).count(1) < 100
    assert 29_000 <= watched.plan.alone <= 30_000


def test_a_short_run_does_without_threads_that_come_late(watched):
    watched.took = {1: 20_000, 2: 200_000}
    seen = watched.threads(3000)
    assert seen.count(2) < 60
    assert watched.plan.pause == 1024
    watched.took = {1: 20_000, 2: 11_000}  # the neighbour has gone
    watched.threads(1100)
    assert watched.threads(1000).count(2) > 990


def test_one_late_run_is_no_reason(watched):
    watched.took = {1: 20_000, 2: 11_000}
    watched.threads(20)
    watched.took = {1: 20_000, 2: 600_000}
    assert watched.threads(1) == [2]
    watched.took = {1: 20_000, 2: 11_000}
    assert watched.threads(10) == [2] * 10


def test_a_run_that_is_late_by_far_is_one_for_as_long_as_it_took(watched):
    watched.took = {1: 20_000, 2: 11_000}
    watched.threads(20)
    watched.took = {1: 20_000, 2: 4_000_000}
    assert watched.threads(1) == [2]
    watched.took = {1: 20_000, 2: 11_000}
    assert watched.threads(190) == [1] * 190
    watched.threads(20)
    assert watched.threads(10).count(2) >= 8
