# ruff: noqa: T201  # printing is among what is tested
"""What asks or tells the world something is run as it is: at each call, and never twice."""

import datetime as dt
import gc
import os
import sys
import time

import numpy as np
import pytest

import pyflame as pf
from pyflame.compiling.tracer import TraceError

X = pf.tensor([1.0, 2.0])


@pytest.mark.parametrize(
    "ask",
    [
        time.time, time.perf_counter, dt.datetime.now, lambda: open(__file__).close(), lambda: print("hello"),
        lambda: __import__("os").path.exists("/"), lambda: __import__("pathlib").Path("x").exists(),
        lambda: __import__("uuid").uuid4(),
    ],
    ids=["time", "perf_counter", "now", "open", "print", "os.path", "pathlib", "uuid"],
)  # fmt: skip
def test_questions_are_refused_with_their_line(ask):
    def f(x):
        ask()
        return x * 2

    with pytest.raises(TraceError, match=r"a compiled function calls \w+\(\) at .*test_asking.py:\d+"):
        pf.compile(f, fullgraph=True)(X)


def test_a_question_is_refused_before_it_is_asked(capsys):
    def f(x):
        print("once a call")
        return x * 2

    g = pf.compile(f)
    g(X)
    assert capsys.readouterr().out == "once a call\n"
    with pytest.warns(RuntimeWarning, match="runs as it is"):
        g(X)
    g(X)
    assert capsys.readouterr().out == "once a call\n" * 2


def test_an_error_that_was_caught_is_refused_too():
    def f(x):
        try:
            return x * time.time()
        except RuntimeError:
            return x

    with pytest.raises(TraceError, match=r"calls time\(\)"):
        pf.compile(f, fullgraph=True)(X)


def test_a_profiler_of_the_users_goes_on():
    seen = []

    def profile(frame, event, arg):
        seen.append(event)

    sys.setprofile(profile)
    try:
        pf.compile(lambda x: x * 2)(X)
        assert sys.getprofile() is profile
    finally:
        sys.setprofile(None)
    assert seen
    pf.compile(lambda x: x * 3)(X)
    assert sys.getprofile() is None


def test_a_profiler_of_the_users_hides_nothing():
    sys.setprofile(lambda *_: None)
    try:
        with pytest.raises(TraceError, match=r"calls time\(\)"):
            pf.compile(lambda x: x * time.time(), fullgraph=True)(X)
    finally:
        sys.setprofile(None)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="there it runs next to others")
def test_next_to_a_profiler_written_in_c_nothing_is_traced():
    import cProfile

    with cProfile.Profile(), pytest.raises(TraceError, match="a profiler runs"):
        pf.compile(lambda x: x * 2, fullgraph=True)(X)
    assert pf.compile(lambda x: x * 2, fullgraph=True)(X).tolist() == [2.0, 4.0]


def test_an_error_that_was_made_another_is_refused_too():
    def f(x):
        try:
            time.time()
        except RuntimeError as error:
            raise ValueError("no clock here") from error
        return x * 2

    assert pf.compile(f)(X).tolist() == [2.0, 4.0]
    with pytest.raises(TraceError, match=r"calls time\(\)"):
        pf.compile(f, fullgraph=True)(X)


@pytest.mark.parametrize(("save", "load"), [(np.save, np.load), (pf.save, pf.load)], ids=["numpy", "pyflame"])
def test_files_that_libraries_read_are_read_at_each_call(tmp_path, save, load):
    path = str(tmp_path / ("number.npy" if save is np.save else "number.pt"))

    def write(number):
        value = np.float32(number) if save is np.save else pf.tensor(number)
        save(*((path, value) if save is np.save else (value, path)))

    f = pf.compile(lambda x: x * load(path))
    write(3.0)
    assert f(X).tolist() == [3.0, 6.0]
    write(5.0)
    with pytest.warns(RuntimeWarning, match="runs as it is"):
        assert f(X).tolist() == [5.0, 10.0]


def test_files_are_changed_at_each_call(tmp_path):
    kept = tmp_path / "kept"

    def f(x):
        os.remove(kept)
        return x * 2

    kept.touch()
    with pytest.raises(TraceError, match=r"calls (remove|unlink)"):
        pf.compile(f, fullgraph=True)(X)
    assert kept.exists()


def test_iterators_are_not_advanced_by_a_trace():
    numbers = iter([1.0, 2.0, 3.0])
    f = pf.compile(lambda x: x * next(numbers))
    with pytest.warns(RuntimeWarning, match="iterator"):
        assert [f(X)[0].item() for _ in range(3)] == [1.0, 2.0, 3.0]


def test_callbacks_of_the_collector_ask_for_nobody():
    asked = []

    def callback(_phase, _info):
        asked.append(time.perf_counter())

    def f(x):
        gc.collect()
        return x * 2

    gc.callbacks.append(callback)
    try:
        assert pf.compile(f, fullgraph=True)(X).tolist() == [2.0, 4.0]
    finally:
        gc.callbacks.remove(callback)
    assert asked
