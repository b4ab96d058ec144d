"""Latency against load: what is left behind when a point cannot be measured."""

import threading

import pytest

from pyflame_rt import BackendError, InferenceSession, InputError
from pyflame_rt.batching import load_curve
from tests.unit.batching.scripted import Scripted, doubling_graph, row


def test_threads_that_cannot_be_started_leave_none_behind(monkeypatch):
    start, names = threading.Thread.start, []

    def scarce(thread):
        if thread._target.__name__ == "ask":
            names.append(thread)
            if len(names) > 5:  # one, then two, then two of four
                raise RuntimeError("can't start new thread")
        start(thread)

    with InferenceSession(doubling_graph(2)) as session:
        monkeypatch.setattr(threading.Thread, "start", scarce)
        with pytest.raises(InputError, match="no threads for 4 clients: can't start new thread"):
            load_curve(session, row(1), 4, seconds=0.01)
    for thread in names[:-1]:
        thread.join(5)
        assert not thread.is_alive()


def test_the_error_of_a_model_that_comes_to_fail_is_raised():
    def fail(feed):
        if threading.current_thread().name == "MainThread":
            return  # warming up
        raise BackendError("out of order")

    before = set(threading.enumerate())
    with pytest.raises(BackendError, match="out of order"):
        load_curve(Scripted(fail=fail), row(1), 2, seconds=0.05)
    assert not [thread for thread in set(threading.enumerate()) - before if "ask" in thread.name]
