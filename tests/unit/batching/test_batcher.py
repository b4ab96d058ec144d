"""Requests in, answers out: each exactly once, and right."""

import asyncio
import concurrent.futures
import gc
import random
import threading
import time
import weakref
from datetime import timedelta

import numpy as np
import pytest

import pyflame_rt
from pyflame_rt import BackendError, InputError, QueueFullError, RunCancelledError, RunTimeoutError, SessionClosedError
from pyflame_rt.batching import BatchConfig, DynamicBatcher, InferenceRequest, PriorityBatcher
from tests.unit.batching.scripted import Scripted, doubling_graph, row
from tests.unit.batching.test_parts import masked_graph, sequence

WAIT = 60


def held(session: Scripted, batcher: DynamicBatcher):
    """Have a first request hold the worker up; what follows waits together."""
    session.gate.clear()
    first = batcher.submit(row(-1))
    assert session.entered.acquire(timeout=WAIT)
    return first


def test_rows_that_wait_share_a_run():
    session = Scripted()
    with DynamicBatcher(session, BatchConfig(max_batch_size=8)) as batcher:
        first = held(session, batcher)
        futures = [batcher.submit(row(i, count)) for i, count in enumerate([1, 3, 2, 2])]
        session.gate.set()
        answers = [future.result(WAIT) for future in (first, *futures)]
    assert [a["y"][0, 0] for a in answers] == [-2, 0, 2, 4, 6]
    assert [len(a["y"]) for a in answers] == [1, 1, 3, 2, 2]
    assert [len(feed["x"]) for feed in session.feeds] == [1, 8]
    stats = batcher.get_stats()
    assert (stats.total_requests, stats.completed_requests, stats.total_batches) == (5, 5, 2)
    assert stats.avg_batch_size == 4.5
    assert stats.batch_sizes == {1: 1, 8: 1}
    assert stats.throughput_rps > 0
    assert stats.avg_latency_us >= stats.avg_queue_time_us > 0
    assert 0 < stats.latency_us(0.5) <= stats.latency_us(1.0)
    assert answers[1].batch_size == 8
    assert answers[1].latency_us >= answers[1].queue_time_us > 0


def test_requests_larger_than_a_run_are_run_in_pieces():
    session = Scripted()
    values = np.arange(22, dtype=np.float32).reshape(11, 2)
    with DynamicBatcher(session, BatchConfig(max_batch_size=4, num_workers=2)) as batcher:
        assert np.array_equal(batcher.infer({"x": values})["y"], 2 * values)
        with_others = [batcher.submit({"x": values + i}) for i in range(20)]
        assert all(np.array_equal(f.result(WAIT)["y"], 2 * (values + i)) for i, f in enumerate(with_others))
    assert max(len(feed["x"]) for feed in session.feeds) <= 4


def test_a_request_of_many_pieces_takes_time_in_proportion():
    def seconds(rows):
        with DynamicBatcher(Scripted(), BatchConfig(max_batch_size=1)) as batcher:
            began = time.process_time()
            batcher.infer(row(1.0, rows))
            return time.process_time() - began

    seconds(100)
    assert seconds(12_000) < 30 * min(seconds(1_000) for _ in range(3))


def test_preferred_sizes_and_padding():
    session = Scripted()
    with DynamicBatcher(session, BatchConfig(preferred_sizes=[4], max_batch_size=4)) as batcher:
        assert batcher.infer(row(3))["y"].tolist() == [[6, 6]]
    assert len(session.feeds[0]["x"]) == 4
    assert batcher.get_stats().padded_rows == 3
    session = Scripted()
    with DynamicBatcher(session, BatchConfig(preferred_sizes=[4], max_batch_size=4, enable_padding=False)) as batcher:
        first = held(session, batcher)
        futures = [batcher.submit(row(i)) for i in range(6)]
        session.gate.set()
        assert [f.result(WAIT)["y"][0, 0] for f in (first, *futures)] == [-2, 0, 2, 4, 6, 8, 10]
    assert {len(feed["x"]) for feed in session.feeds} <= {1, 2, 4}
    assert batcher.get_stats().padded_rows == 0


def test_lengths_share_runs_where_there_is_a_mask():
    session = pyflame_rt.InferenceSession(masked_graph())
    lengths = [3, 16, 17, 30, 5, 100, 9]
    config = BatchConfig(max_batch_size=8, length_buckets=[16, 32, 64])
    with DynamicBatcher(session, config) as batcher:
        futures = [batcher.submit(sequence(n, 1 + n % 2, n, mask=n % 3 > 0)) for n in lengths]
        for n, future in zip(lengths, futures, strict=True):
            answer = future.result(WAIT)
            assert answer["y"].shape == (1 + n % 2, n, 2)
            assert np.all(answer["y"] == n)
            assert answer["state_out"].shape == (3, 1 + n % 2, 4)
            assert np.all(answer["state_out"] == -n)


def test_shorter_sequences_fill_a_run():
    class Masked(Scripted):
        def run(self, names, feed, run_options=None):
            super().run(names, feed, run_options)
            return [feed["x"], -feed["state"]]

    session = Masked(masked_graph())
    config = BatchConfig(preferred_sizes=[1, 4], max_batch_size=4, length_buckets=[16, 32])
    with DynamicBatcher(session, config) as batcher:
        session.gate.clear()
        first = batcher.submit(sequence(4, 4))
        assert session.entered.acquire(timeout=WAIT)
        futures = [batcher.submit(sequence(n, 1, n)) for n in (32, 31, 30, 2)]
        session.gate.set()
        shapes = [f.result(WAIT)["y"].shape for f in (first, *futures)]
    assert shapes == [(4, 4, 2), (1, 32, 2), (1, 31, 2), (1, 30, 2), (1, 2, 2)]
    assert [feed["x"].shape for feed in session.feeds] == [(4, 16, 2), (4, 32, 2)]


def test_warming_up_meets_every_shape():
    session = pyflame_rt.InferenceSession(masked_graph())
    batcher = DynamicBatcher(session, BatchConfig(max_batch_size=4, length_buckets=[8, 16]))
    assert batcher.warmup(sequence(12)) == 6
    before = session.memory_stats()
    with batcher:
        for n in (1, 8, 9, 16):
            for count in (1, 2, 3, 4):
                batcher.infer(sequence(n, count))
    assert session.memory_stats() == before  # no plan was made
    many = DynamicBatcher(session, BatchConfig(length_buckets=list(range(8, 200, 8))))
    with pytest.raises(InputError, match="144 shapes; set SessionOptions"):
        many.warmup(sequence(12))


def test_a_request_that_fails_fails_alone():
    def fail(feed):
        if (feed["x"] == 13).any():
            raise BackendError("thirteen")

    session = Scripted(fail=fail)
    with DynamicBatcher(session, BatchConfig(max_batch_size=8)) as batcher:
        first = held(session, batcher)
        futures = [batcher.submit(row(value)) for value in (1, 2, 13, 4, 5, 6, 7)]
        session.gate.set()
        answers = [future.result(WAIT) for future in (first, *futures)]
        with pytest.raises(BackendError, match="thirteen"):
            batcher.infer(row(13))
    assert [a.success for a in answers] == [True, True, True, False, True, True, True, True]
    assert [a["y"][0, 0] for a in answers if a.success] == [-2, 2, 4, 8, 10, 12, 14]
    assert answers[3].error_message == "thirteen"
    with pytest.raises(BackendError, match="thirteen"):
        answers[3].get_outputs()
    stats = batcher.get_stats()
    assert (stats.completed_requests, stats.failed_requests) == (7, 2)


def test_a_padded_request_that_fails_is_run_as_it_came():
    def fail(feed):
        if feed["x"].shape[0] != 3:
            raise BackendError("only three rows will do")

    with DynamicBatcher(Scripted(fail=fail), BatchConfig(preferred_sizes=[4])) as batcher:
        assert len(batcher.infer(row(1, 3))["y"]) == 3


def test_a_full_queue_refuses():
    session = Scripted()
    with DynamicBatcher(session, BatchConfig(queue_capacity=2)) as batcher:
        first = held(session, batcher)
        futures = [batcher.submit(row(i)) for i in range(2)]
        with pytest.raises(QueueFullError, match="queue_capacity allows 2"):
            batcher.submit(row(9))
        assert futures[0].cancel()
        futures.append(batcher.submit(row(5)))
        session.gate.set()
        assert [f.result(WAIT)["y"][0, 0] for f in (first, *futures[1:])] == [-2, 2, 10]
    assert batcher.get_stats().dropped_requests == 1


def test_a_full_queue_can_be_waited_for():
    session = Scripted()
    config = BatchConfig(queue_capacity=1, when_full="wait", max_batch_size=1, preferred_sizes=[1])
    with DynamicBatcher(session, config) as batcher:
        first = held(session, batcher)
        batcher.submit(row(0))
        with pytest.raises(RunTimeoutError, match="room in the queue"):
            batcher.submit(row(1), timeout_ms=1)
        waiting = [threading.Thread(target=batcher.infer, args=(row(i),)) for i in range(5)]
        for thread in waiting:
            thread.start()
        session.gate.set()
        for thread in waiting:
            thread.join(WAIT)
        assert first.result(WAIT).success
    assert batcher.get_stats().completed_requests == 7


def test_time_is_up_in_the_queue_and_in_a_run():
    session = Scripted()
    with DynamicBatcher(session, BatchConfig(timeout_ms=5)) as batcher:
        first = held(session, batcher)
        second = batcher.submit(row(1))
        third = batcher.submit(InferenceRequest(row(2), timeout_ms=1e6))
        late = [first.result(WAIT), second.result(WAIT)]
        session.gate.set()
        assert third.result(WAIT)["y"][0, 0] == 4
    assert [type(answer.error) for answer in late] == [RunTimeoutError] * 2
    assert "(running)" in late[0].error_message
    assert "(in the queue)" in late[1].error_message
    assert len(session.feeds) == 2  # nobody ran what nobody wanted
    assert batcher.get_stats().timed_out_requests == 2


def test_cancelling():
    session = Scripted()
    with DynamicBatcher(session) as batcher:
        first = held(session, batcher)
        queued = [batcher.submit(row(i)) for i in range(3)]
        assert queued[0].cancel()
        assert queued[0].cancel()  # again, as the standard library has it
        assert batcher.cancel(queued[1].request_id)
        assert not batcher.cancel(queued[1].request_id)
        assert not batcher.cancel(123456789)
        assert first.cancel()  # under way
        done, _ = concurrent.futures.wait([first, *queued[:2]], timeout=WAIT)
        assert len(done) == 3
        session.gate.set()
        assert queued[2].result(WAIT)["y"][0, 0] == 4
        assert not queued[2].cancel()
    with pytest.raises(concurrent.futures.CancelledError):
        first.result()
    assert [len(feed["x"]) for feed in session.feeds] == [1, 1]
    assert batcher.get_stats().cancelled_requests == 3


def test_a_long_run_ends_when_nobody_wants_it():
    session = Scripted()
    with DynamicBatcher(session) as batcher:
        for _ in range(3):
            batcher._costs.saw(1, 0, 1.0)
        future = held(session, batcher)
        options = session.options[-1]
        assert not options.terminate
        assert future.cancel()
        assert options.terminate
        session.gate.set()


def test_callbacks_are_called_once_each():
    told: dict[int, tuple] = {}

    def note(request_id, success, outputs, error):
        assert request_id not in told
        told[request_id] = success, {name: array.tolist() for name, array in outputs.items()}, error
        raise ZeroDivisionError  # is logged, and does no harm

    def fail(feed):
        if (feed["x"] == 13).any():
            raise BackendError("thirteen")

    session = Scripted(fail=fail)
    with DynamicBatcher(session) as batcher:
        held(session, batcher)
        good = batcher.submit_with_callback(row(1), note)
        bad = batcher.submit_with_callback(row(13), note)
        gone = batcher.submit_with_callback(row(2), note)
        assert batcher.cancel(gone)
        session.gate.set()
    assert told == {good: (True, {"y": [[2, 2]]}, ""), bad: (False, {}, "thirteen"), gone: (False, {}, "cancelled")}


def test_stopping_finishes_what_was_submitted():
    session = Scripted()
    batcher = DynamicBatcher(session, BatchConfig(max_latency_us=10**9, min_batch_size=32))
    batcher.start()
    batcher.start()
    futures = [batcher.submit(row(i)) for i in range(5)]
    assert not any(future.done() for future in futures)
    batcher.stop()
    batcher.stop()
    assert [f.result(0)["y"][0, 0] for f in futures] == [0, 2, 4, 6, 8]
    assert not batcher.running
    with pytest.raises(SessionClosedError, match=r"call start\(\)"):
        batcher.submit(row(1))
    with batcher:  # and again
        futures = [batcher.submit(row(i)) for i in range(2)]
        batcher.stop(drain=False)
    assert all(isinstance(f.result(0).error, RunCancelledError) for f in futures)


def test_a_closed_session_is_told_to_everybody():
    session = pyflame_rt.InferenceSession(doubling_graph(2))
    with DynamicBatcher(session) as batcher:
        assert batcher.infer(row(1))["y"].tolist() == [[2, 2]]
        session.close()
        with pytest.raises(SessionClosedError):
            batcher.infer(row(1))


def test_models_that_cannot_be_batched():
    graph = doubling_graph(2)
    graph.inputs[0].shape = [1, 2]
    session = pyflame_rt.InferenceSession(graph)
    with pytest.raises(InputError, match=r"cannot be batched.*fixed first size.*max_batch_size=1"):
        DynamicBatcher(session)
    with DynamicBatcher(session, BatchConfig(max_batch_size=1)) as batcher:
        futures = [batcher.submit(row(i)) for i in range(5)]
        assert [f.result(WAIT)["y"][0, 0] for f in futures] == [0, 2, 4, 6, 8]


def test_bad_requests_are_refused_at_once():
    with DynamicBatcher(pyflame_rt.InferenceSession(doubling_graph(2))) as batcher:
        with pytest.raises(InputError, match="no input 'z'"):
            batcher.submit({"z": [1]})
        with pytest.raises(InputError, match="no output 'z'"):
            batcher.submit(row(1), output_names=["z"])
        with pytest.raises(pyflame_rt.DTypeMismatchError):
            batcher.submit({"x": np.zeros((1, 2))})
        assert list(batcher.infer(row(1), output_names=["y"])) == ["y"]
        assert batcher.infer({"x": [1.0, 2.0]})["y"].tolist() == [2, 4]
        assert batcher.infer(row(1)).get("latency") > 0
    assert batcher.get_stats().total_requests == 3
    with pytest.raises(InputError, match="invalid batch settings"):
        DynamicBatcher(Scripted(), BatchConfig(num_workers=0))


def test_urgent_requests_go_first():
    session = Scripted()
    with PriorityBatcher(session, BatchConfig(max_batch_size=1, preferred_sizes=[1])) as batcher:
        held(session, batcher)
        futures = [batcher.submit_priority(row(level), level) for level in (1, 10, 5)]
        session.gate.set()
        concurrent.futures.wait(futures, WAIT)
    assert [feed["x"][0, 0] for feed in session.feeds] == [-1, 10, 5, 1]


def test_a_caller_alone_runs_its_request_itself():
    """Nobody has to be woken; while it runs, others wait for it, as for a worker, and stop() too."""
    ran_by: list[int] = []
    session = Scripted(fail=lambda feed: ran_by.append(threading.get_ident()))
    batcher = DynamicBatcher(session, BatchConfig(max_batch_size=8))
    batcher.start()
    batcher.infer(row(1))
    assert ran_by == [threading.get_ident()]
    session.gate.clear()
    caller = threading.Thread(target=batcher.infer, args=(row(2),))
    caller.start()
    assert session.entered.acquire(timeout=WAIT)
    assert session.entered.acquire(timeout=WAIT)
    futures = [batcher.submit(row(i)) for i in range(3)]
    stopper = threading.Thread(target=batcher.stop)
    stopper.start()
    assert len(session.feeds) == 2  # one run at a time
    session.gate.set()
    stopper.join(WAIT)
    caller.join(WAIT)
    assert ran_by[1] == caller.ident
    assert [future.result(0)["y"][0, 0] for future in futures] == [0, 2, 4]


def test_coroutines_await_and_cancel():
    session = Scripted()

    async def main() -> list[float]:
        answers = await asyncio.gather(*(batcher.submit(row(i)) for i in range(20)))
        session.gate.clear()
        waiting = asyncio.ensure_future(asyncio.wrap_future(batcher.submit(row(99))))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        return [answer["y"][0, 0] for answer in answers]

    with DynamicBatcher(session) as batcher:
        try:
            assert asyncio.run(main()) == [2 * i for i in range(20)]
        finally:
            session.gate.set()
    assert batcher.get_stats().cancelled_requests == 1


def test_callers_get_equal_shares():
    session = Scripted()
    config = BatchConfig(max_batch_size=4, queue_capacity=10_000)
    with DynamicBatcher(session, config) as batcher:
        held(session, batcher)
        greedy = [batcher.submit(row(0), caller="greedy") for _ in range(400)]
        others = {n: [batcher.submit(row(n), caller=n) for _ in range(8)] for n in range(1, 4)}
        session.gate.set()
        concurrent.futures.wait(greedy, WAIT)
    assert all(future.result(WAIT).success for futures in others.values() for future in futures)
    order = [int(value) for feed in session.feeds[1:] for value in feed["x"][:, 0]]
    share = {n: order[:32].count(n) for n in range(4)}
    index = sum(share.values()) ** 2 / (4 * sum(n * n for n in share.values()))
    assert index >= 0.95, share


def test_answered_requests_keep_nothing():
    class Feed(np.ndarray):
        pass

    session = Scripted()
    with DynamicBatcher(session) as batcher:
        gc.collect()
        gc.disable()
        try:
            futures = []
            feeds = []
            for i in range(4):
                array = np.full((1, 2), i, np.float32).view(Feed)
                feeds.append(weakref.ref(array))
                futures.append(batcher.submit({"x": array}, timeout_ms=1e6))
                del array
            assert futures[3].cancel() or futures[3].done()
            for future in futures[:3]:
                future.result(WAIT)
            batcher.stop()
            alive = [ref() is not None for ref in feeds]
        finally:
            gc.enable()
    assert alive == [False] * 4


def test_times_are_linked():
    config = BatchConfig(max_latency_us=1500)
    assert config.max_latency == timedelta(microseconds=1500)
    config.max_latency = timedelta(seconds=1)
    assert config.max_latency_us == 1_000_000


def _ask(batcher, seed, requests, answers, problems):
    """Submit at random: some cancelled, some with no time, some that fail, some of many rows."""
    rng = random.Random(seed)
    pending = []
    for i in range(requests):
        value, count = seed * requests + i + 1, rng.choice([1, 1, 1, 2, 5, 11])
        feed = row(-value if rng.random() < 0.05 else value, count)
        timeout = rng.choice([None, None, None, 0.01, 1.0, 1e6])
        try:
            if rng.random() < 0.2:
                batcher.submit_with_callback(feed, lambda n, *answer: answers.setdefault(n, []).append(answer))
                continue
            future = batcher.submit(feed, timeout_ms=timeout)
        except QueueFullError:
            continue
        future.add_done_callback(lambda f: answers.setdefault(f.request_id, []).append(f))
        pending.append((future, value, count))
        if rng.random() < 0.2:
            rng.choice(pending[-4:])[0].cancel()
        if len(pending) > 16:
            _look(pending.pop(rng.randrange(16)), problems)
    for one in pending:
        _look(one, problems)


def _look(one, problems):
    future, value, count = one
    try:
        answer = future.result(WAIT)
    except concurrent.futures.CancelledError:
        return
    if answer.success and not np.array_equal(answer["y"], np.full((count, 2), 2 * value, np.float32)):
        problems.append((value, answer["y"]))
    if not answer.success and not isinstance(answer.error, (RunTimeoutError, ZeroDivisionError)):
        problems.append((value, answer.error))


def test_every_request_is_answered_exactly_once():
    """6,000 of eight callers, with random cancels, timeouts and failures."""

    def fail(feed):
        if (feed["x"] < 0).any():
            raise ZeroDivisionError

    session = Scripted(fail=fail)
    answers: dict[int, list] = {}
    problems: list = []
    config = BatchConfig(max_batch_size=8, num_workers=2, queue_capacity=50)
    with DynamicBatcher(session, config) as batcher:
        callers = [threading.Thread(target=_ask, args=(batcher, n, 750, answers, problems)) for n in range(8)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join(WAIT)
            assert not caller.is_alive()
    stats = batcher.get_stats()
    ended = stats.completed_requests + stats.failed_requests + stats.timed_out_requests + stats.cancelled_requests
    assert not problems
    assert all(len(told) == 1 for told in answers.values())
    assert len(answers) == stats.total_requests == ended
    assert stats.total_requests + stats.dropped_requests == 6000
    assert min(stats.completed_requests, stats.failed_requests, stats.cancelled_requests) > 0
    assert stats.queue_depth == 0
    assert not batcher._tickets


def test_strings_are_batched():
    graph = pyflame_rt.Graph("words")
    graph.add_input("x", ["N"], pyflame_rt.DType.String)
    graph.add_node("same", "Identity", ["x"], ["y"])
    graph.add_output("y", ["N"], pyflame_rt.DType.String)
    with DynamicBatcher(pyflame_rt.InferenceSession(graph), BatchConfig(max_latency_us=50_000)) as batcher:
        words = [[f"word {i}", str(i)][: 1 + i % 2] for i in range(20)]
        futures = [batcher.submit({"x": part}) for part in words]
        assert [list(future.result(WAIT)["y"]) for future in futures] == words
