"""Runs that are stopped: by a time limit, a flag, their future or the end of their session."""

import threading
import time

import pytest

import pyflame_rt
from pyflame_rt import DType, Graph, InferenceSession, RunOptions


@pytest.fixture
def watched():
    """A chain of twenty nodes, each of which tells its number to whoever listens."""
    registry = pyflame_rt.OperatorRegistry.instance()
    ran, listeners = [], []

    def step(inputs, ctx):
        ran.append(1)
        for listener in listeners:
            listener(len(ran))
        return inputs[0]

    registry.register_op("Watched", step)
    graph = Graph("watched")
    graph.add_input("v0", [1], DType.Float32)
    for i in range(20):
        graph.add_node(f"n{i}", "Watched", [f"v{i}"], [f"v{i + 1}"])
    graph.add_output("v20", [1])
    session = InferenceSession(graph)

    def run(listener, act):
        ran.clear()
        listeners[:] = [listener]
        act(session)
        return len(ran)

    yield run
    registry.unregister_op("Watched")


def test_timeout_is_checked_between_nodes(watched):
    def act(session):
        with pytest.raises(pyflame_rt.RunTimeoutError, match="timeout_ms=50") as caught:
            session.run(None, {"v0": [1]}, RunOptions(timeout_ms=50))
        assert isinstance(caught.value, TimeoutError)

    assert watched(lambda number: time.sleep(0.02), act) < 20


def test_a_flag_ends_a_run_between_nodes(watched):
    options = RunOptions()

    def act(session):
        with pytest.raises(pyflame_rt.RunCancelledError, match="terminate"):
            session.run(None, {"v0": [1]}, options)

    assert watched(lambda number: setattr(options, "terminate", number == 3), act) == 3


def test_cancelling_a_future_ends_its_run_between_nodes(watched):
    known, futures = threading.Event(), []

    def listen(number):
        assert known.wait(120)
        if number == 3:
            futures[0].cancel()

    def act(session):
        futures.append(session.run_async({"v0": [1]}))
        known.set()
        with pytest.raises(pyflame_rt.RunCancelledError):
            futures[0].result(120)

    assert watched(listen, act) == 3


def test_closing_a_session_ends_its_runs_between_nodes(watched):
    closers = []

    def listen(number):
        if number == 3:
            closers[0].start()
            closers[0].join()

    def act(session):
        closers.append(threading.Thread(target=session.close))
        with pytest.raises(pyflame_rt.RunCancelledError, match="closed"):
            session.run(None, {"v0": [1]})

    assert watched(listen, act) == 3


def test_runs_that_wait_for_their_turn_hear_that_the_session_is_closed(watched):
    """Four threads run what comes in the background; what they had not begun has an end too."""
    inside, gate = threading.Semaphore(0), threading.Event()

    def listen(_):
        inside.release()
        assert gate.wait(120)

    def act(session):
        futures = [session.run_async({"v0": [1]}) for _ in range(9)]
        told = []
        session.run_async(["v20"], {"v0": [1]}, lambda results, mine, error: told.append((mine, error)), "mine")
        for _ in range(4):
            assert inside.acquire(timeout=120)
        session.close()
        gate.set()
        for future in futures:
            with pytest.raises(pyflame_rt.RunCancelledError, match="closed"):
                future.result(120)
        assert told == [("mine", "the session was closed before the run began")]

    watched(listen, act)
