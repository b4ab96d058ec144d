"""Threads of the process shared by runs, and what is left of them after a fork."""

import ctypes
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import pyflame_rt
from pyflame_rt import InferenceSession, SessionOptions
from pyflame_rt.backends.cpu.driver.native_driver import NativePlan, NativeStep, StepKind, openmp, run
from pyflame_rt.backends.cpu.driver.processors import Processors, processors
from pyflame_rt.backends.cpu.run import threads
from pyflame_rt.graph.locks import hold_while_forking, new_lock, new_rlock
from tests.unit.backends.cpu.children import in_child
from tests.unit.backends.cpu.models import convnet, feed

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


def chunks(total, others, asked, rows=64, grain=1, pieces=1, told=None):
    """Into how many pieces the driver cuts a step, with so many other runs under way."""
    found = []
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    kernel = kind(lambda _bufs, _params, begin, end: found.append((begin, end)))
    step = (NativeStep * 1)(
        NativeStep(StepKind.KERNEL, ctypes.cast(kernel, ctypes.c_void_p).value, None, 0, None, rows, grain, pieces)
    )
    words = np.array([total, others], np.int64)
    plan = NativePlan(
        steps=ctypes.addressof(step), nsteps=1, parallel=openmp().parallel, thread_num=openmp().thread_num
    )
    plan.num_threads, plan.budget, plan.processors = asked, words.ctypes.data if total else None, told
    assert run()(ctypes.addressof(plan), None) == 0
    assert words[1] == others
    assert sorted(p for piece in found for p in range(*piece)) == list(range(rows))
    return len(found)


@pytest.mark.parametrize(
    ("total", "others", "asked", "pieces"),
    [(0, 0, 3, 3), (4, 0, 3, 3), (4, 1, 4, 2), (4, 1, 1, 1), (2, 1, 2, 1), (4, 8, 4, 1), (2, 0, 4, 4), (8, 1, 3, 3)],
)
def test_runs_under_way_share_the_threads(total, others, asked, pieces):
    if not openmp().parallel:
        pytest.skip("no OpenMP runtime")
    assert chunks(total, others, asked) == pieces


@pytest.mark.parametrize(
    ("rows", "asked", "number"), [(3, 2, 2), (5, 2, 4), (7, 2, 6), (15, 2, 14), (7, 3, 6), (64, 4, 32)]
)
def test_every_thread_has_as_many_pieces(rows, asked, number):
    if not openmp().parallel:
        pytest.skip("no OpenMP runtime")
    assert chunks(0, 0, asked, rows=rows, pieces=8) == number


def test_small_work_stays_on_one_thread():
    assert chunks(4, 0, 4, rows=64, grain=64) == 1


def test_the_count_of_runs_ends_at_zero():
    session = InferenceSession(convnet(), SessionOptions(num_threads=2))
    x = feed(2, 32)
    wanted = session.run(None, {"x": x})[0]
    seen, wrong = [], []

    def work():
        for _ in range(20):
            seen.append(threads.runs_under_way())
            if not np.array_equal(session.run(None, {"x": x})[0], wanted):
                wrong.append(1)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    with pytest.raises(TimeoutError):
        session.run(None, {"x": x}, pyflame_rt.RunOptions(timeout_ms=0))
    assert not wrong
    assert threads.runs_under_way() == 0


def test_locks_of_the_parent_are_open_in_the_child():
    locks = [new_lock(), new_rlock()]
    held, let_go = threading.Event(), threading.Event()

    def hold():
        for lock in locks:
            lock.acquire()
        held.set()
        let_go.wait(240)
        for lock in locks:
            lock.release()

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(120)
    assert in_child(lambda: all(lock.acquire(timeout=60) for lock in locks)) == 0
    let_go.set()
    holder.join()


def test_a_fork_waits_for_what_must_be_whole():
    lock, state = threading.RLock(), {"whole": True}
    hold_while_forking(lock)
    held = threading.Event()

    def change():
        with lock:
            state["whole"] = False
            held.set()
            time.sleep(0.2)
            state["whole"] = True

    worker = threading.Thread(target=change)
    worker.start()
    assert held.wait(120)
    assert in_child(lambda: state["whole"]) == 0
    worker.join()


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity here")
def test_a_process_on_one_core_uses_one_thread():
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "from pyflame_rt.backends.cpu.run.executable import CpuBackend\n"
        "from pyflame_rt.graph import Graph\n"
        "print(CpuBackend().compile(Graph('g')).threads)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=250)
    assert done.stdout.split() == ["1"]


# ---------------------------------------------------------------------- processors


class System:
    """In the place of the C library: all threads run on one processor, or each on its own."""

    def __init__(self, mask, *, apart=False, refuses=False):
        self.mask, self.set = mask, []
        here = threading.get_ident()
        current, get, put = (
            lambda: 0 if apart and threading.get_ident() != here else 11,
            lambda _thread, size, place: -1 if refuses else self._tell(place, size),
            lambda _thread, size, place: self.set.append(int.from_bytes(ctypes.string_at(place, size), "little")) or 0,
        )
        kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p)
        self.keep = ctypes.CFUNCTYPE(ctypes.c_int)(current), kind(get), kind(put)
        self.calls = Processors(*(ctypes.cast(call, ctypes.c_void_p).value for call in self.keep))

    def _tell(self, place, size):
        ctypes.memmove(place, self.mask.to_bytes(size, "little"), size)
        return 0


@pytest.mark.skipif(not openmp().parallel, reason="no OpenMP runtime")
@pytest.mark.parametrize("kind", [StepKind.KERNEL, StepKind.BRANCHES])
@pytest.mark.parametrize(
    ("system", "moves"),
    [
        (System((1 << 11) | 7), [7, (1 << 11) | 7]),
        (System((1 << 800) | (1 << 11)), [1 << 800, (1 << 800) | (1 << 11)]),
        (System(7, apart=True), []),
        (System(7, refuses=True), []),
    ],
)
def test_a_thread_that_was_woken_leaves_the_processor_of_the_one_that_woke_it(kind, system, moves):
    system.set.clear()
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    kernel = call(lambda _bufs, _params, _begin, _end: None)
    inner = NativePlan()
    plans = (ctypes.c_void_p * 2)(ctypes.addressof(inner), ctypes.addressof(inner))
    step = NativeStep(kind, ctypes.cast(kernel, ctypes.c_void_p).value, ctypes.addressof(plans), 2, None, 2, 1)
    plan = NativePlan(
        steps=ctypes.addressof(step), nsteps=1, parallel=openmp().parallel, thread_num=openmp().thread_num
    )
    plan.num_threads, plan.processors = 2, ctypes.addressof(system.calls)
    assert run()(ctypes.addressof(plan), None) == 0
    assert system.set == moves


@pytest.mark.skipif(processors(2) is None, reason="one processor, or a system that does not tell them")
def test_threads_may_run_where_they_might_before():
    """All are put on one processor by force, and let go: the one that leaves it is bound to none afterwards."""
    assert chunks(0, 0, 2, told=processors(2)) == 2
    tasks = [int(name) for name in os.listdir("/proc/self/task")]
    allowed = {task: os.sched_getaffinity(task) for task in tasks}
    try:
        for task in tasks:
            os.sched_setaffinity(task, {min(allowed[task])})
        assert chunks(0, 0, 2, told=processors(2)) == 2
    finally:
        for task in tasks:
            os.sched_setaffinity(task, allowed[task])
    for _ in range(5):
        assert chunks(0, 0, 2, told=processors(2)) == 2
        assert {task: os.sched_getaffinity(task) for task in tasks} == allowed


def test_fewer_processors_than_threads_are_not_chosen_from():
    assert processors(1 + len(getattr(os, "sched_getaffinity", lambda _: [0])(0))) is None
