"""Runs in the background: in order on a stream, answered once, cancelled at any time."""

import asyncio
import concurrent.futures
import random
import threading

import numpy as np
import pytest

import pyflame_rt
from pyflame_rt import BackendError, InputError, QueueFullError, RunTimeoutError, SessionClosedError
from pyflame_rt.streaming import AsyncOptions, AsyncSession
from tests.unit.batching.scripted import Scripted, doubling_graph, row

WAIT = 60


def test_results_come_as_futures():
    session = pyflame_rt.InferenceSession(doubling_graph(2))
    with AsyncSession(session) as background:
        futures = [background.run_async(row(i)) for i in range(20)]
        other_order = background.run_async(["y"], row(7))
        results = [future.result(WAIT) for future in futures]
        assert background.num_streams() == 4
    assert [r["y"][0, 0] for r in results] == [2 * i for i in range(20)]
    assert other_order.result(0).get_outputs()["y"].tolist() == [[14, 14]]
    assert all(r.success and r.latency_us >= r.queue_time_us > 0 for r in results)
    stats = background.get_stats()
    assert (stats.total_requests, stats.completed_requests, stats.pending_requests) == (21, 21, 0)
    assert stats.avg_latency_us > 0
    assert stats.throughput_rps > 0


def test_a_stream_keeps_its_order():
    session = Scripted()
    with AsyncSession(session) as background:
        futures = [background.run_on_stream(2, row(i)) for i in range(50)]
        background.synchronize(2, timeout=WAIT)
        assert all(future.done() for future in futures)
    assert [feed["x"][0, 0] for feed in session.feeds] == list(range(50))
    assert {future.result().stream_id for future in futures} == {2}
    with pytest.raises(InputError, match="no stream 4"):
        background.run_on_stream(4, row(1))


def test_streams_run_at_the_same_time():
    session = Scripted()
    session.gate.clear()
    with AsyncSession(session, AsyncOptions(num_streams=3)) as background:
        futures = [background.run_async(row(i)) for i in range(3)]
        for _ in range(3):
            assert session.entered.acquire(timeout=WAIT)
        session.gate.set()
        assert {future.result(WAIT).stream_id for future in futures} == {0, 1, 2}


def test_without_pipelining_one_runs_at_a_time():
    session = Scripted()
    together: list[int] = []
    inside = threading.Semaphore(1)

    def alone(feed):
        together.append(0 if inside.acquire(blocking=False) else 1)
        inside.release()

    session._fail = alone
    with AsyncSession(session, AsyncOptions(num_streams=4, enable_pipelining=False)) as background:
        concurrent.futures.wait([background.run_async(row(i)) for i in range(100)], WAIT)
    assert together == [0] * 100


def test_the_stream_with_the_least_to_do_is_chosen():
    session = Scripted()
    session.gate.clear()
    with AsyncSession(session, AsyncOptions(num_streams=2)) as background:
        background.run_on_stream(0, row(1))
        assert background.select_stream() == 1
        background.run_on_stream(1, row(1))
        background.run_on_stream(1, row(1))
        assert background.select_stream() == 0
        with pytest.raises(RunTimeoutError):
            background.synchronize_all(timeout=0.01)
        session.gate.set()
        background.synchronize_all(timeout=WAIT)


def test_cancelling_what_waits_and_what_runs():
    session = Scripted()
    with AsyncSession(session, AsyncOptions(num_streams=1)) as background:
        session.gate.clear()
        running = background.run_async(row(1))
        assert session.entered.acquire(timeout=WAIT)
        waiting = [background.run_async(row(i)) for i in range(2, 5)]
        assert background.cancel(waiting[0].request_id)
        assert not background.cancel(waiting[0].request_id)
        assert running.cancel()
        assert session.options[0].terminate
        session.gate.set()
        assert waiting[1].result(WAIT)["y"][0, 0] == 6
        background.synchronize_all(timeout=WAIT)
        session.gate.clear()
        more = [background.run_async(row(i)) for i in range(3)]
        assert background.cancel_all() == 3
        session.gate.set()
    assert all(future.cancelled() for future in more)
    assert background.get_stats().cancelled_requests == 5


def test_a_long_run_is_really_stopped():
    """One that would not end within this test's time."""
    graph = pyflame_rt.Graph("long")
    graph.add_input("x", [256, 256])
    previous = "x"
    for i in range(3000):
        graph.add_node(f"n{i}", "MatMul", [previous, "x"], [f"v{i}"])
        previous = f"v{i}"
    graph.add_output(previous, [256, 256])
    session = pyflame_rt.InferenceSession(graph, providers=["ReferenceExecutionProvider"])
    with AsyncSession(session) as background:
        future = background.run_async({"x": np.zeros((256, 256), np.float32)})
        assert future.cancel()
        background.synchronize_all(timeout=WAIT)


def test_errors_belong_to_their_request():
    def fail(feed):
        if feed["x"][0, 0] == 13:
            raise BackendError("thirteen")

    told = []
    with AsyncSession(Scripted(fail=fail)) as background:
        good, bad = background.run_async(row(1)), background.run_async(row(13))
        background.run_async_callback(row(13), lambda *answer: told.append(answer))
        number = background.run_async_callback(
            row(2), lambda n, ok, outputs, error: told.append((n, ok, outputs["y"][0, 0], outputs.get("latency") > 0))
        )
        assert good.result(WAIT).success
        assert not bad.result(WAIT).success
        with pytest.raises(BackendError, match="thirteen"):
            _ = bad.result().outputs
        with pytest.raises(InputError, match="no input 'z'"):
            background.run_async({"z": 1})
        with pytest.raises(InputError, match="no output 'z'"):
            background.run_async(row(1), ["z"])
        with pytest.raises(InputError, match="needs a feed"):
            background.run_async(None)
    assert (number, True, 4.0, True) in told
    assert [answer[1:] for answer in told if not answer[1]] == [(False, {}, "thirteen")]


def test_too_many_are_refused_or_wait():
    session = Scripted()
    session.gate.clear()
    with AsyncSession(session, AsyncOptions(max_pending=2)) as background:
        futures = [background.run_async(row(i)) for i in range(2)]
        with pytest.raises(QueueFullError, match="max_pending allows 2"):
            background.run_async(row(3))
        session.gate.set()
        assert [f.result(WAIT)["y"][0, 0] for f in futures] == [0, 2]
    assert background.get_stats().rejected_requests == 1
    with AsyncSession(session, AsyncOptions(max_pending=1, when_full="wait")) as background:
        futures = [background.run_async(row(i)) for i in range(20)]
        assert [f.result(WAIT)["y"][0, 0] for f in futures] == [2 * i for i in range(20)]


def test_starting_and_stopping():
    session = Scripted()
    background = AsyncSession(session)
    with pytest.raises(SessionClosedError, match=r"call start\(\)"):
        background.run_async(row(1))
    background.start()
    background.start()
    futures = [background.run_async(row(i)) for i in range(10)]
    background.stop()
    background.stop()
    assert all(future.result(0).success for future in futures)
    background.start()
    session.gate.clear()
    futures = [background.run_async(row(i)) for i in range(10)]
    threading.Timer(0.05, session.gate.set).start()
    background.stop(drain=False)
    assert all(future.cancelled() for future in futures)
    with pytest.raises(InputError, match="num_streams must be at least 1"):
        AsyncSession(session, AsyncOptions(num_streams=0))


def test_coroutines():
    async def main():
        async with AsyncSession(Scripted()) as background:
            results = await asyncio.gather(*(background.run_async(row(i)) for i in range(30)))
            return [result["y"][0, 0] for result in results]

    assert asyncio.run(main()) == [2 * i for i in range(30)]


def test_the_profile_has_every_run():
    with AsyncSession(Scripted(), AsyncOptions(enable_profiling=True)) as background:
        numbers = {background.run_async(row(i)).request_id for i in range(8)}
        background.synchronize_all(timeout=WAIT)
        records = background.get_profile()
        assert background.get_profile() == []
    assert {record.request_id for record in records} == numbers
    assert all(r.submitted <= r.begun <= r.ended and r.success for r in records)


def test_every_request_is_answered_exactly_once():
    def fail(feed):
        if feed["x"][0, 0] < 0:
            raise ZeroDivisionError

    answers: dict[int, list] = {}
    rng = random.Random(1)
    right = 0
    with AsyncSession(Scripted(fail=fail), AsyncOptions(max_pending=50, when_full="wait")) as background:
        futures = []
        for i in range(1, 3000):
            value = -i if rng.random() < 0.1 else i
            future = background.run_async(row(value))
            future.add_done_callback(lambda f: answers.setdefault(f.request_id, []).append(f))
            futures.append((future, value))
            if rng.random() < 0.2:
                rng.choice(futures[-5:])[0].cancel()
        for future, value in futures:
            if not future.cancelled() and future.result(WAIT).success:
                assert future.result()["y"][0, 0] == 2 * value
                right += 1
    stats = background.get_stats()
    assert all(len(told) == 1 for told in answers.values())
    assert len(answers) == 2999
    assert stats.completed_requests == right
    assert stats.completed_requests + stats.failed_requests + stats.cancelled_requests == 2999
