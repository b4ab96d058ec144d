"""Kernels in two forms: quick code for the first answers, the full form in its place later."""

import ctypes
import json
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import pyflame_rt
from pyflame_rt.backends.cpu.jit import compiler as jit
from pyflame_rt.backends.cpu.jit import thread_pool as crew_module
from pyflame_rt.backends.cpu.jit.codegen import FULL, QUICK, object_code
from pyflame_rt.backends.cpu.jit.thread_pool import PoolTask, ThreadPool, do_all
from pyflame_rt.cache.answers import answering
from pyflame_rt.cache.store import current_store
from tests.tolerances import within

RNG = np.random.default_rng(5)


def conv_model(path, activation="Relu", number=0.25):
    """Convolutions by Winograd, pixels and a product, then a row product; `number` makes its kernels new."""
    shapes = {"a": (32, 16, 3, 3), "b": (32, 32, 1, 1), "c": (24, 32, 3, 3)}
    weights = {n: RNG.standard_normal(s).astype(np.float32) / 9 for n, s in shapes.items()}
    weights |= {"n": np.float32(number), "w": RNG.standard_normal((24, 10)).astype(np.float32)}
    nodes = [
        helper.make_node("Conv", ["x", "a"], ["1"], pads=[1, 1, 1, 1]),
        helper.make_node("Mul", ["1", "n"], ["2"]),
        helper.make_node("Add", ["2", "n"], ["3"]),
        helper.make_node(activation, ["3"], ["4"]),
        helper.make_node("Conv", ["4", "b"], ["5"]),
        helper.make_node("Conv", ["5", "c"], ["6"], strides=[2, 2]),
        helper.make_node("GlobalAveragePool", ["6"], ["7"]),
        helper.make_node("Flatten", ["7"], ["8"]),
        helper.make_node("MatMul", ["8", "w"], ["9"]),
        helper.make_node("Softmax", ["9"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 16, 16, 16])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 10])]
    constants = [numpy_helper.from_array(np.asarray(w), n) for n, w in weights.items()]
    model = helper.make_model(helper.make_graph(nodes, "g", inputs, outputs, constants), ir_version=9)
    path.write_bytes(model.SerializeToString())
    os.utime(path, (time.time() - 100,) * 2)
    return path


def image(batch=1):
    return {"x": RNG.standard_normal((batch, 16, 16, 16)).astype(np.float32)}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    jit.settle()  # what tests before this one have left
    monkeypatch.setenv("PYFLAME_CACHE_DIR", str(tmp_path / "cache"))
    yield
    jit.settle()
    current_store().flush()


@pytest.fixture
def held(monkeypatch):
    """The full form waits until it is let go."""
    gate, original = threading.Event(), jit.object_code

    def wait(ir, level=FULL):
        if level == FULL:
            assert gate.wait(240)
        return original(ir, level)

    monkeypatch.setattr(jit, "object_code", wait)
    yield gate
    gate.set()
    jit.settle()


def quick_rows(session):
    return [row for row in session.explain().rows if "quick code" in row.reason]


@pytest.mark.usefixtures("unchecked")
def test_the_full_form_takes_over_with_the_same_bits(tmp_path, held):
    feed = image(2)
    with pyflame_rt.InferenceSession(conv_model(tmp_path / "m.onnx", number=0.31)) as session:
        first = [session.run(None, feed)[0] for _ in range(3)]
        assert quick_rows(session)
        before = dict(jit._addresses)
        held.set()
        jit.settle()
        assert not quick_rows(session)
        assert any(before[key] != address for key, address in jit._addresses.items() if key in before)
        later = [session.run(None, feed)[0] for _ in range(3)]
        with pyflame_rt.InferenceSession(tmp_path / "m.onnx", providers=["ReferenceExecutionProvider"]) as reference:
            want = reference.run(None, feed)[0]
    for result in (*first, *later):
        np.testing.assert_array_equal(result, first[0])
    np.testing.assert_allclose(first[0], want, **within("sums"))


@pytest.mark.usefixtures("unchecked")
def test_steps_of_arenas_are_rewritten_and_closed_sessions_left_alone(tmp_path, held):
    path = conv_model(tmp_path / "m.onnx", "Sigmoid", 0.32)
    kept, closed = pyflame_rt.InferenceSession(path), pyflame_rt.InferenceSession(path)
    feed = image()
    want = kept.run(None, feed)[0]
    closed.run(None, feed)
    followed = sum(map(len, jit._followers.values()))
    closed.close()
    left = sum(map(len, jit._followers.values()))
    assert 0 < left < followed
    held.set()
    jit.settle()
    assert not jit._followers or not any(jit._followers.values())
    np.testing.assert_array_equal(kept.run(None, feed)[0], want)
    kept.close()


def odd_sizes(path, number):
    """A depthwise convolution, Winograd's by tiles of both sizes, a product and one row, none of whole tiles.

    All end with the number, so that none is known from before.
    """
    shapes = {"a": (20, 1, 3, 3), "b": (44, 20, 1, 1), "c": (48, 44, 1, 1), "d": (25, 48, 3, 3), "w": (25, 19)}
    shapes |= {"e": (25, 448, 3, 3), "f": (448, 25, 1, 1)}
    weights = {n: RNG.standard_normal(s).astype(np.float32) / 9 for n, s in shapes.items()}
    weights |= {"n": np.float32(number), "g": RNG.standard_normal((450, 448, 3, 3)).astype(np.float32) / 50}
    pads = {"pads": [1, 1, 1, 1]}
    nodes = [
        helper.make_node("Conv", ["x", "a"], ["1"], group=20, **pads),
        helper.make_node("Mul", ["1", "n"], ["2"]),
        helper.make_node("Conv", ["2", "b"], ["0"]),
        helper.make_node("Mul", ["0", "n"], ["3"]),
        helper.make_node("Tanh", ["3"], ["4"]),
        helper.make_node("Conv", ["4", "c"], ["5"]),
        helper.make_node("Conv", ["5", "d"], ["6"], **pads),
        helper.make_node("Mul", ["6", "n"], ["7"]),
        helper.make_node("Conv", ["7", "f"], ["8"]),
        helper.make_node("Conv", ["8", "g"], ["9"], **pads),
        helper.make_node("Mul", ["9", "n"], ["10"]),
        helper.make_node("GlobalAveragePool", ["7"], ["11"]),
        helper.make_node("Flatten", ["11"], ["12"]),
        helper.make_node("MatMul", ["12", "w"], ["13"]),
        helper.make_node("Mul", ["13", "n"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 20, 7, 5])]
    outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("y", "10", "4", "7")]
    used = {name for node in nodes for name in node.input}
    constants = [numpy_helper.from_array(np.asarray(w), n) for n, w in weights.items() if n in used]
    model = helper.make_model(helper.make_graph(nodes, "g", inputs, outputs, constants), ir_version=9)
    path.write_bytes(model.SerializeToString())
    return path


@pytest.fixture
def shortened(monkeypatch):
    """Keys of the kernels whose quick form is written shorter than the full one."""
    found, begin, brief_form = [], jit._begin, jit._brief_form

    def begun(name, entry, emit, *, quick):
        def noted(emit):
            ir, full = brief_form(emit)
            if full.text is None:
                found.append(entry)
            return ir, full

        monkeypatch.setattr(jit, "_brief_form", noted)
        return begin(name, entry, emit, quick=quick)

    monkeypatch.setattr(jit, "_begin", begun)
    return found


@pytest.mark.usefixtures("unchecked")
def test_short_code_computes_the_same_bits_for_sizes_that_are_no_whole_tiles(tmp_path, held, shortened):
    feed = {"x": RNG.standard_normal((1, 20, 7, 5)).astype(np.float32)}
    options = pyflame_rt.SessionOptions(fast_math=True)
    with pyflame_rt.InferenceSession(odd_sizes(tmp_path / "m.onnx", 0.37), options) as session:
        first = session.run(None, feed)
        kinds = ("depthwise", "winograd4", "winograd2", "product", "gemv")
        assert all(any(kind in entry for entry in shortened) for kind in kinds)
        held.set()
        jit.settle()
        later = session.run(None, feed)
        with pyflame_rt.InferenceSession(tmp_path / "m.onnx", providers=["ReferenceExecutionProvider"]) as reference:
            wanted = reference.run(None, feed)
    for one, other, want in zip(first, later, wanted, strict=True):
        np.testing.assert_array_equal(one, other)
        np.testing.assert_allclose(one, want, **within("rounded"))


def test_waiting_is_a_setting(tmp_path, monkeypatch):
    path = conv_model(tmp_path / "m.onnx", "Tanh", 0.33)
    with pyflame_rt.InferenceSession(path, pyflame_rt.SessionOptions(quick_start=False)) as session:
        feed = image()
        want = session.run(None, feed)[0]
        assert not quick_rows(session)
        assert not jit._unfinished
    monkeypatch.setenv("PYFLAME_QUICK_START", "0")
    with pyflame_rt.InferenceSession(conv_model(tmp_path / "n.onnx", "Softplus", 0.34)) as session:
        session.run(None, feed)
        assert not jit._unfinished
    monkeypatch.delenv("PYFLAME_QUICK_START")
    with pyflame_rt.InferenceSession(path) as session:
        np.testing.assert_array_equal(session.run(None, feed)[0], want)


def test_a_session_that_waits_makes_others_kernels_full(tmp_path):
    path, feed = conv_model(tmp_path / "m.onnx", "Elu", 0.35), image()
    with pyflame_rt.InferenceSession(path) as quick:
        want = quick.run(None, feed)[0]
        with pyflame_rt.InferenceSession(path, pyflame_rt.SessionOptions(quick_start=False)) as patient:
            np.testing.assert_array_equal(patient.run(None, feed)[0], want)
            assert not quick_rows(quick)


COLD = """
import json, sys, numpy as np, pyflame_rt
from pyflame_rt.backends.cpu.jit import compiler as jit
levels, original = [], jit.object_code
def counted(ir, level=jit.FULL):
    levels.append(level)
    return original(ir, level)
jit.object_code = counted
jit._finishers._size = lambda: 0  # nothing is finished before it is asked for
x = np.random.default_rng(0).standard_normal((1, 16, 16, 16)).astype(np.float32)
session = pyflame_rt.InferenceSession(sys.argv[1])
y = session.run(None, {"x": x})[0]
quick = {left.made.store.path("draft", left.made.entry).name: left.task for left in jit._unfinished.values()}
if sys.argv[2] == "settle":
    for task in quick.values():
        task.result()
print(json.dumps({"bits": y.tobytes().hex(), "quick": sorted(quick), "compiled": levels.count(jit.QUICK)}))
"""


def drafts(folder):
    return {path.name for path in (folder / "engine" / "draft").rglob("*") if path.is_file()}


@pytest.mark.usefixtures("unchecked")
def test_another_process_goes_on_where_one_stopped(tmp_path):
    path, folder = conv_model(tmp_path / "m.onnx", "Relu", 0.36), tmp_path / "other"
    environment = {**os.environ, "PYFLAME_CACHE_DIR": str(folder)}
    told, stored = [], []
    for how in ("leave", "settle", "leave"):
        command = [sys.executable, "-c", COLD, str(path), how]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=90)
        assert done.returncode == 0, done.stderr
        told.append(json.loads(done.stdout))
        stored.append(drafts(folder))
    first, second, third = ({*one["quick"]} for one in told)
    assert len({one["bits"] for one in told}) == 1
    assert first
    assert first <= stored[0]
    assert second
    assert second <= stored[0]  # it began with the quick code that the first left
    assert told[1]["compiled"] == 0
    assert stored[1] == stored[0] - second  # and left the full form in its place
    assert not third


def test_code_that_cannot_be_made_leaves_the_quick_form(monkeypatch, caplog):
    original = jit.object_code

    def fail(ir, level=FULL):
        if level == FULL:
            raise RuntimeError("no code today")
        return original(ir, level)

    monkeypatch.setattr(jit, "object_code", fail)
    ir = "define i64 @never_full(i64 %x) {\n  %y = mul i64 %x, 37\n  ret i64 %y\n}\n"
    with caplog.at_level("WARNING", "pyflame_rt"):
        function = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(jit.address_of("never_full", ir))
        jit.settle()
    assert function(2) == 74
    assert "quick form stays" in caplog.text
    assert not jit._unfinished


def test_addresses_in_memory_are_followed(held):
    class Owner:
        pass

    ir = "define i64 @followed(i64 %x) {\n  %y = add i64 %x, 41\n  ret i64 %y\n}\n"
    address = jit.address_of("followed", ir)
    owner, gone = Owner(), Owner()
    slots = (ctypes.c_void_p * 2)(address, address)
    for k, who in enumerate((owner, gone)):
        jit.follow(address, ctypes.addressof(slots) + 8 * k, who)
    del gone, who
    held.set()
    jit.settle()
    assert slots[0] == jit.address_of("followed", ir) != address
    assert slots[1] == address
    late = (ctypes.c_void_p * 1)(address)
    jit.follow(address, ctypes.addressof(late), owner)  # it was replaced meanwhile
    assert late[0] == slots[0]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_goes_on_compiling(tmp_path, held):
    path, feed = conv_model(tmp_path / "m.onnx", "LeakyRelu", 0.37), image()
    session = pyflame_rt.InferenceSession(path)
    want = session.run(None, feed)[0]
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            held.set()
            same = np.array_equal(session.run(None, feed)[0], want)
            jit.settle()
            again = np.array_equal(session.run(None, feed)[0], want)
            status = 0 if same and again and not jit._unfinished else 2
        finally:
            os.write(writer, bytes([status]))
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        assert file.read() == b"\0"
    os.waitpid(child, 0)
    session.close()


def test_many_threads_compile_one_thing_once(monkeypatch):
    made, original = [], jit.object_code
    monkeypatch.setattr(jit, "object_code", lambda ir, level=FULL: made.append(level) or original(ir, level))
    ir = "define i64 @shared_by_many(i64 %x) {\n  %y = add i64 %x, 43\n  ret i64 %y\n}\n"
    addresses = []
    threads = [
        threading.Thread(target=lambda: addresses.append(jit.address_of("shared_by_many", ir))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(addresses) == 8
    assert made.count(QUICK) == 1
    jit.settle()
    assert made.count(FULL) == 1


def test_code_is_generated_on_several_threads_at_once():
    ir = "define double @f(double %x) {\n  %y = fmul double %x, 3.0\n  ret double %y\n}\n"
    results = []
    work = lambda: results.extend(object_code(ir, level) for level in (QUICK, FULL) * 10)  # noqa: E731
    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 120
    assert len(set(results)) <= 2
    with pytest.raises(RuntimeError, match="parsing error"):
        object_code("define void @broken(")


def test_a_crew_works_waits_and_stops():
    done, gate = [], threading.Event()
    crew = ThreadPool("test", lambda: 1, delay=600.0)
    for k in range(3):
        crew.submit(PoolTask(lambda k=k: done.append(k)))
    crew.wait()  # not the delay
    assert done == [0, 1, 2]
    crew = ThreadPool("test", lambda: 1)
    started = threading.Event()
    first = PoolTask(lambda: started.set() or gate.wait(120))
    later = PoolTask(lambda: done.append("never"))
    crew.submit(first)
    assert started.wait(120)
    crew.submit(later)
    stopper = threading.Thread(target=crew.stop)
    stopper.start()
    while not crew._stopped:
        time.sleep(0.001)
    gate.set()
    stopper.join()
    assert first.done
    assert not later.done
    crew.submit(PoolTask(lambda: done.append("never")))
    assert done == [0, 1, 2]


def test_a_crew_with_a_delay_begins_when_the_first_answer_is_out():
    crew, began = ThreadPool("test", lambda: 1, delay=600.0), threading.Event()
    with answering():
        crew.submit(PoolTask(began.set))
        assert not began.wait(0.15)
    assert began.wait(120)
    crew.stop()


@pytest.mark.parametrize(("seconds", "times"), [(1e9, 1), (-1.0, 20)])
def test_a_crew_asks_now_and_then_how_many_may_work(monkeypatch, seconds, times):
    monkeypatch.setattr(crew_module, "_ASK_AGAIN", seconds)
    asked = []
    crew = ThreadPool("test", lambda: asked.append(1) or 1)
    for _ in range(20):
        crew.submit(PoolTask(lambda: None))
    crew.wait()
    assert len(asked) == times


def test_tasks_are_shared_between_a_crew_and_who_waits_for_them():
    crew, who = ThreadPool("test", lambda: 1), {}
    both = threading.Barrier(2)

    def work(k):
        who[k] = threading.current_thread().name
        both.wait(120)  # only two threads together get past
        return k

    tasks = [PoolTask(lambda k=k: work(k)) for k in range(4)]
    for task in tasks:
        crew.submit(task)
    assert do_all(tasks) == [0, 1, 2, 3]
    assert sorted(who.values()).count("test") == 2
    crew.stop()


def test_a_task_is_done_once_and_keeps_its_error():
    calls = []
    task = PoolTask(lambda: calls.append(1) or 5)
    assert [task.result(), task.result()] == [5, 5]
    assert calls == [1]
    assert not task.run()
    with pytest.raises(ZeroDivisionError):
        PoolTask(lambda: 1 / 0).result()


def test_a_task_whose_doer_is_interrupted_is_done_by_the_next():
    """Ctrl-C reaches the main thread alone: others that wait for the same must get what they wait for."""
    begun, interrupt, results = threading.Event(), threading.Event(), []

    def work():
        if begun.is_set():
            return 5
        begun.set()
        assert interrupt.wait(120)
        raise KeyboardInterrupt

    task = PoolTask(work)

    def first():
        with pytest.raises(KeyboardInterrupt):
            task.result()

    doer = threading.Thread(target=first)
    doer.start()
    assert begun.wait(120)
    waiters = [threading.Thread(target=lambda: results.append(task.result())) for _ in range(3)]
    for waiter in waiters:
        waiter.start()
    assert not task.done
    interrupt.set()
    for thread in (doer, *waiters):
        thread.join()
    assert results == [5, 5, 5]
    assert task.done
    assert not task.failed


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_code_that_could_not_be_made_once_is_made_the_next_time(monkeypatch, error):
    ir = f"define i64 @again_{error.__name__}(i64 %x) {{\n  %y = mul i64 %x, 53\n  ret i64 %y\n}}\n"
    original, failed = jit.object_code, []

    def fail(ir, level=FULL):
        if not failed:
            failed.append(1)
            raise error
        return original(ir, level)

    monkeypatch.setattr(jit, "object_code", fail)
    monkeypatch.setattr(jit.HELPERS, "submit", lambda task: None)  # it is made on this thread
    with pytest.raises(error):
        jit.address_of(f"again_{error.__name__}", ir)
    address = jit.address_of(f"again_{error.__name__}", ir)
    assert ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(address)(2) == 106


@pytest.mark.usefixtures("unchecked")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("how", ["settle", "not quick"])
def test_a_forked_child_does_not_wait_for_the_parents_finishers(held, how):
    name = f"half_done_{how[:3]}"
    ir = f"define i64 @{name}(i64 %x) {{\n  %y = mul i64 %x, 59\n  ret i64 %y\n}}\n"
    jit.address_of(name, ir)
    (left,) = [left for left in jit._unfinished.values() if left.made.name == name]
    while left.task._work is not None:  # until a thread has begun it, and waits at the gate
        jit._finishers._hurry.set()
        time.sleep(0.001)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            held.set()
            if how == "settle":
                jit.settle()
            with jit.compiling(quick=how == "settle"):
                address = jit.address_of(name, ir)
            right = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(address)(2) == 118
            status = 0 if right and not jit._unfinished else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
