"""Forked children compute as their parents do: on the thread that forked, on others, and in children of their own."""

import multiprocessing
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from pyflame_rt import InferenceSession, SessionOptions
from pyflame_rt.backends.cpu.onednn import live_handles
from pyflame_rt.backends.cpu.run import fork_safety as forks
from pyflame_rt.backends.cpu.run.gomp import load_gomp
from tests.tolerances import within
from tests.unit.backends.cpu.children import in_child
from tests.unit.backends.cpu.models import RNG, convnet, feed, mlp, model, weight

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]
TASKS = Path("/proc/self/task")
LONG = 4000  # rows of work that is worth handing over


@pytest.fixture(params=["pool ended", "handed over"])
def ending(request, monkeypatch):
    """Runtimes that can end a thread's pool, and those that cannot: True for the first."""
    able = request.param == "pool ended"
    if not able:
        monkeypatch.setattr(forks, "end_pool", lambda: False)
    elif not forks.end_pool():
        pytest.skip("this OpenMP runtime cannot end pools")
    return able


def large():
    nodes = [
        helper.make_node("Softmax", ["x"], ["s"], "soft"),
        helper.make_node("MatMul", ["s", "w"], ["y"], "product"),
    ]
    return model(nodes, [weight("w", 256, 256)], ["N", 256], 2)


def vectors():
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], "product")]
    return model(nodes, [weight("w", 784, 256)], [1, 784], 2)


def question(data, rows):
    """A session on two threads and a function that asks it: True for the answer it gave first."""
    session = InferenceSession(data, SessionOptions(num_threads=2))
    x = RNG.standard_normal((rows, *(n for n in session.get_inputs()[0].shape[1:]))).astype(np.float32)
    wanted = session.run(None, {"x": x})[0]
    return session, lambda: np.allclose(session.run(None, {"x": x})[0], wanted, **within("sums"))


def native_threads():
    return [thread for thread in threading.enumerate() if thread.name == "pyflame-rt-native"]


@pytest.mark.parametrize("data", [mlp, large], ids=["one thread", "two threads"])
def test_a_child_computes_again_and_again_on_any_thread(data, ending):
    session = InferenceSession(data(), SessionOptions(num_threads=2))
    width = session.get_inputs()[0].shape[1]
    inputs = [RNG.standard_normal((n, width)).astype(np.float32) for n in (LONG, 300, 7)]
    wanted = [session.run(None, {"x": x})[0] for x in inputs]

    def right(rounds=5):
        pairs = zip(inputs * rounds, wanted * rounds, strict=True)
        return all(np.allclose(session.run(None, {"x": x})[0], y, **within("sums")) for x, y in pairs)

    def work():
        results = []
        workers = [threading.Thread(target=lambda: results.append(right())) for _ in range(2)]
        for worker in workers:
            worker.start()
        mine = right()
        for worker in workers:
            worker.join()
        grandchild = in_child(right)
        session.close()
        return mine and results == [True, True] and grandchild == 0 and live_handles() == 0

    assert in_child(work) == 0
    assert right()


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("data", "rows"), [(vectors, 1), (large, LONG)], ids=["brief", "long"])
def test_the_thread_that_forked_computes_as_in_the_parent(data, rows, ending):
    """With its pool ended it needs nobody's help; else it hands over all but plans that are not worth it."""
    session, right = question(data(), rows)
    engine = session._plain
    if engine.fast_path is None:
        pytest.skip("arrays are not read in place here")
    assert next(iter(engine._plans.values())).parallel

    def work():
        mine = right() and right()
        parallel, short = next(iter(engine._plans.values())).parallel, engine.fast_path is not None
        if ending:
            return mine and parallel and short and not native_threads()
        return mine and len(native_threads()) == 1 and parallel == (rows == LONG) and short == (rows != LONG)

    assert in_child(work) == 0
    assert right()
    assert engine.fast_path is not None


@pytest.mark.skipif(not TASKS.is_dir(), reason="threads are not listed here")
def test_a_pool_that_was_ended_begins_anew():
    code = """
        import ctypes, os, time
        from pyflame_rt.backends.cpu.run import fork_safety as forks
        from pyflame_rt.backends.cpu.run.gomp import load_gomp

        gomp = load_gomp()
        met = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: None)
        assert forks.end_pool()  # there was none
        tasks = lambda: len(os.listdir("/proc/self/task"))
        before = tasks()

        def left():  # a thread that was joined may be listed a little longer
            end = time.monotonic() + 60
            while tasks() != before and time.monotonic() < end:
                time.sleep(0.001)
            return tasks()

        for _ in range(3):
            gomp.GOMP_parallel(met, None, 3, 0)
            assert tasks() == before + 2
            assert forks.end_pool()
            assert left() == before
        gomp.GOMP_parallel(met, None, 3, 0)
        child = os.fork()
        if child == 0:
            alone = tasks() == 1 and not forks.handing_over() and not forks.forked()
            gomp.GOMP_parallel(met, None, 3, 0)
            os._exit(0 if alone and tasks() == 3 else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert left() == before
        gomp.GOMP_parallel(met, None, 3, 0)
        assert tasks() == before + 2
    """
    if load_gomp() is None:
        pytest.skip("no OpenMP runtime")
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=300)


def test_a_thread_that_is_not_the_first_forks(ending):
    """As a pool of processes does that replaces one that ended."""
    _, right = question(large(), LONG)
    codes = []
    forker = threading.Thread(target=lambda: codes.append((right(), in_child(lambda: right() and right()))))
    forker.start()
    forker.join()
    assert codes == [(True, 0)]
    assert right()


def test_a_session_made_in_a_child(ending):
    _, right = question(large(), LONG)

    def work():
        with InferenceSession(convnet(), SessionOptions(num_threads=2)) as session:
            again = session.run(None, {"x": feed(2, 32)})[0]
        return right() and np.isfinite(again).all()

    assert in_child(work) == 0


_asked = []


def _answers(_):
    return bool(_asked[0]()) and bool(_asked[0]())


def test_a_pool_of_processes(ending):
    _asked[:] = [question(large(), LONG)[1]]
    with multiprocessing.get_context("fork").Pool(2, maxtasksperchild=2) as workers:
        assert workers.map(_answers, range(8), chunksize=1) == [True] * 8
    assert _answers(0)


@pytest.mark.parametrize("leave", ["sys.exit(3)", "os._exit(3)"])
def test_a_child_ends_in_either_way(leave, ending):
    code = f"""
        import os, sys
        import numpy as np
        from pyflame_rt import InferenceSession, SessionOptions
        from pyflame_rt.backends.cpu.run import fork_safety as forks

        if not {ending}:
            forks.end_pool = lambda: False
        session = InferenceSession(sys.stdin.buffer.read(), SessionOptions(num_threads=2))
        x = np.ones(({LONG}, 256), np.float32)
        wanted = session.run(None, {{"x": x}})[0]
        child = os.fork()
        if child == 0:
            assert np.array_equal(session.run(None, {{"x": x}})[0], wanted)
            {leave}
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
        assert np.array_equal(session.run(None, {{"x": x}})[0], wanted)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], input=large(), check=True, timeout=300)


def test_forks_while_other_threads_compile_and_run():
    """A fork in the middle of code generation and planning: the child must neither hang nor crash."""
    stop = threading.Event()
    faults = []

    def busy(seed):
        rng = np.random.default_rng(seed)
        while not stop.is_set():
            count = int(rng.integers(1, 6))
            names = rng.choice(["Exp", "Neg", "Abs", "Tanh", "Sqrt", "Relu", "Sigmoid"], count)
            values = ["x", *(f"v{i}" for i in range(count - 1)), "y"]
            nodes = [helper.make_node(str(op), [values[i]], [values[i + 1]]) for i, op in enumerate(names)]
            try:
                with InferenceSession(model(nodes, [], ["N", 8], 2)) as session:
                    session.run(None, {"x": np.ones((int(rng.integers(1, 9)), 8), np.float32)})
            except Exception as error:  # noqa: BLE001 - told below
                faults.append(error)
                return

    def work():
        with InferenceSession(convnet(), SessionOptions(num_threads=2)) as session:
            return np.isfinite(session.run(None, {"x": feed(1, 16)})[0]).all()

    workers = [threading.Thread(target=busy, args=(k,)) for k in range(3)]
    for worker in workers:
        worker.start()
    try:
        codes = [in_child(work) for _ in range(6)]
    finally:
        stop.set()
        for worker in workers:
            worker.join()
    assert codes == [0] * 6
    assert not faults
