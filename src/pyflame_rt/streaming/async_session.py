"""Streams: queues of runs in the background, each in order, several at the same time."""

from __future__ import annotations

import atexit
import itertools
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from pyflame_rt.dispatch import Callbacks
from pyflame_rt.feeds import FeedReader
from pyflame_rt.futures import RequestFuture
from pyflame_rt.graph.arguments import expect, expect_callable, expect_graph_of, expect_whole
from pyflame_rt.graph.errors import (
    InputError,
    QueueFullError,
    RunTimeoutError,
    SessionClosedError,
)
from pyflame_rt.options import RunOptions
from pyflame_rt.responses import Pending
from pyflame_rt.streaming.results import AsyncOptions, AsyncResult, AsyncStats, RunRecord

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from pyflame_rt.session import InferenceSession

__all__ = ["AsyncSession"]

LONG = 0.02  # seconds from which on a run is watched, so that it can be cancelled
_numbers = itertools.count(1)


class _Job(Pending):
    """A request on a stream."""

    __slots__ = ("feed", "future", "names", "options", "stream")

    def __init__(self, stream: int, names: Sequence[str] | None, feed: Any, withdraw: Callable[[_Job], bool]) -> None:
        super().__init__(next(_numbers))
        self.stream = stream
        self.names = names
        self.feed = feed
        self.options: RunOptions | None = None
        self.future: RequestFuture[AsyncResult] = RequestFuture(self.number, lambda: withdraw(self))

    def result(self, outputs: Mapping[str, Any] | None, error: BaseException | None = None) -> AsyncResult:
        """The answer as of now."""
        return AsyncResult(self.number, outputs, error=error, stream_id=self.stream, **self.times())


class AsyncSession:
    """Runs a session in the background, on several streams.

    Requests of one stream run in order, one at a time; those of different streams at the same time. Futures can be
    waited for, awaited in coroutines, and cancelled, also while they run.

    Args:
        session: the model.
        options: streams and limits.

    Example:
        >>> import pyflame_rt
        >>> g = pyflame_rt.Graph("g")
        >>> _ = g.add_input("x", ["N"]), g.add_node("n", "Neg", ["x"], ["y"]), g.add_output("y", ["N"])
        >>> with AsyncSession(pyflame_rt.InferenceSession(g), AsyncOptions(num_streams=2)) as session:
        ...     futures = [session.run_async({"x": [i]}) for i in range(3)]
        ...     [float(future.result()["y"][0]) for future in futures]
        [-0.0, -1.0, -2.0]
    """

    def __init__(self, session: InferenceSession, options: AsyncOptions | None = None) -> None:
        self.session = session
        chosen = AsyncOptions() if options is None else options
        expect(chosen, AsyncOptions, "the options of an AsyncSession")
        self.options = chosen.checked()
        graph = expect_graph_of(session, "an AsyncSession")
        required = graph.required_inputs
        names = {info.name for info in required}
        self._reader = FeedReader(required, [info for info in graph.inputs if info.name not in names])
        self._names = [info.name for info in graph.outputs]
        self._lock = threading.Lock()
        self._ended = threading.Condition(self._lock)  # for those who wait until requests have ended
        self._turn: Any = nullcontext() if self.options.enable_pipelining else threading.Lock()
        self._threads: list[threading.Thread] = []
        self._process = 0
        self._taking = False
        self._clear()
        self._counts: Counter[str] = Counter()
        self._latency = self._queued = self._typical = self._last = 0.0
        self._first: float | None = None
        self._profile: list[RunRecord] = []

    def _clear(self) -> None:
        self._changed = [threading.Condition(self._lock) for _ in range(self.options.num_streams)]
        self._queues: list[deque[_Job]] = [deque() for _ in range(self.options.num_streams)]
        self._pending: list[int] = [0] * self.options.num_streams  # waiting or running, by stream
        self._jobs: dict[int, _Job] = {}  # those that were not answered

    # ------------------------------------------------------------------ starting and stopping

    def start(self) -> None:
        """Begin to run requests; does nothing when that was done before."""
        with self._lock:
            if self._alive():
                return
            self._clear()
            self._process, self._taking = os.getpid(), True
            self._callbacks = Callbacks(self.options.callback_threads, "pyflame-rt-async-callbacks")
            self._threads = [
                threading.Thread(target=self._work, args=(i,), name=f"pyflame-rt-stream-{i}", daemon=True)
                for i in range(self.options.num_streams)
            ]
        for thread in self._threads:
            thread.start()
        atexit.register(self.stop, drain=False)

    def _alive(self) -> bool:
        """Whether it runs; threads do not survive a fork."""
        return self._taking and self._process == os.getpid()

    def stop(self, *, drain: bool = True) -> None:
        """Take no more requests, answer those that were taken, and end.

        Args:
            drain: run what waits; False cancels it.
        """
        with self._lock:
            threads, self._threads = self._threads, []
            if self._process != os.getpid() or not threads:
                return
            self._taking = False
            for changed in self._changed:
                changed.notify_all()
            self._ended.notify_all()
        if not drain:
            self.cancel_all()
        here = threading.current_thread()
        for thread in threads:
            if thread is not here and thread.ident is not None:
                thread.join()
        self._callbacks.close()
        atexit.unregister(self.stop)

    def __enter__(self) -> AsyncSession:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> AsyncSession:
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        import asyncio

        await asyncio.to_thread(self.stop)

    # ------------------------------------------------------------------ requests

    def run_async(
        self,
        inputs: Mapping[str, Any] | Sequence[str] | None,
        output_names: Mapping[str, Any] | Sequence[str] | None = None,
    ) -> RequestFuture[AsyncResult]:
        """Run on the stream with the least to do; the feed and the names of outputs may come in either order.

        Arrays must not be changed before the answer.

        Raises:
            InputError: A name is unknown or missing.
            QueueFullError: Too many requests are pending.
            SessionClosedError: The asynchronous session does not run.
        """
        return self._submit(None, inputs, output_names)

    def run_on_stream(
        self,
        stream_id: int,
        inputs: Mapping[str, Any] | Sequence[str] | None,
        output_names: Mapping[str, Any] | Sequence[str] | None = None,
    ) -> RequestFuture[AsyncResult]:
        """Run on a given stream, after what was submitted to it before."""
        return self._submit(self._stream(stream_id), inputs, output_names)

    def run_async_callback(
        self,
        inputs: Mapping[str, Any] | Sequence[str] | None,
        callback: Callable[[int, bool, dict[str, Any], str], None],
        output_names: Mapping[str, Any] | Sequence[str] | None = None,
    ) -> int:
        """Run, then call ``callback(request_id, success, outputs, error)`` once. Returns the request's id."""
        expect_callable(callback, "callback")
        future = self.run_async(inputs, output_names)
        self._callbacks.after(future, callback)
        return future.request_id

    def _submit(self, stream: int | None, inputs: Any, output_names: Any) -> RequestFuture[AsyncResult]:
        feed, names = (inputs, output_names) if isinstance(inputs, Mapping) else (output_names, inputs)
        if not isinstance(feed, Mapping):
            raise InputError("run_async needs a feed: run_async({name: value})")
        if isinstance(names, str):
            raise InputError(f"output_names is a list of names; write [{names!r}]")
        for name in names or ():
            if name not in self._names:
                raise InputError(f"the model has no output {name!r}. Outputs: {self._names}")
        arrays = self._reader.read(feed)
        with self._lock:
            self._wait_for_room()
            job = _Job(self._least() if stream is None else stream, names or None, arrays, self._withdraw)
            self._first = job.submitted if self._first is None else self._first
            self._counts["total"] += 1
            self._jobs[job.number] = job
            self._pending[job.stream] += 1
            self._queues[job.stream].append(job)
            self._changed[job.stream].notify()
        return job.future

    def _wait_for_room(self) -> None:
        while self._alive() and len(self._jobs) >= self.options.max_pending:
            if self.options.when_full == "reject":
                self._counts["rejected"] += 1
                raise QueueFullError(
                    f"{len(self._jobs)} requests are pending, max_pending allows {self.options.max_pending}: "
                    f'try again later, or set when_full="wait"'
                )
            self._ended.wait()
        if not self._alive():
            raise SessionClosedError("the asynchronous session does not run: call start(), or use a with statement")

    # ------------------------------------------------------------------ streams

    def num_streams(self) -> int:
        """How many streams there are."""
        return self.options.num_streams

    def select_stream(self) -> int:
        """The stream with the least to do."""
        with self._lock:
            return self._least()

    def _least(self) -> int:
        return min(range(len(self._pending)), key=self._pending.__getitem__)

    def _stream(self, stream_id: int) -> int:
        if not 0 <= expect_whole(stream_id, "stream_id") < self.options.num_streams:
            raise InputError(f"there is no stream {stream_id}; there are {self.options.num_streams}, from 0 on")
        return stream_id

    def synchronize(self, stream_id: int, timeout: float | None = None) -> None:
        """Wait until everything that was submitted to a stream has ended.

        Raises:
            RunTimeoutError: That took longer than ``timeout`` seconds.
        """
        stream = self._stream(stream_id)
        self._synchronize(lambda: not self._pending[stream], timeout)

    def synchronize_all(self, timeout: float | None = None) -> None:
        """Wait until everything that was submitted has ended.

        Raises:
            RunTimeoutError: That took longer than ``timeout`` seconds.
        """
        self._synchronize(lambda: not any(self._pending), timeout)

    def _synchronize(self, done: Callable[[], bool], timeout: float | None) -> None:
        with self._lock:
            if not self._ended.wait_for(done, timeout):
                raise RunTimeoutError(f"requests were still under way after {timeout} seconds")

    def cancel(self, request_id: int) -> bool:
        """Take a request back, also while it runs; False when it was answered, or is not known."""
        job = self._jobs.get(request_id)
        return job is not None and job.future.cancel()

    def cancel_all(self) -> int:
        """Take all requests back; how many there were."""
        with self._lock:
            jobs = list(self._jobs.values())
        return sum(job.future.cancel() for job in jobs)

    # ------------------------------------------------------------------ running

    def _withdraw(self, job: _Job) -> bool:
        """Called by ``future.cancel()``."""
        if not job.claim():
            return False
        with self._lock:
            if not job.begun:
                self._queues[job.stream].remove(job)
                self._leave(job)
            self._jobs.pop(job.number, None)
            self._counts["cancelled"] += 1
            options = job.options
        if options is not None:
            options.terminate = True
        return True

    def _leave(self, job: _Job) -> None:
        self._pending[job.stream] -= 1
        self._ended.notify_all()

    def _work(self, stream: int) -> None:
        queue, changed = self._queues[stream], self._changed[stream]
        while True:
            with self._lock:
                while not queue:
                    if not self._taking:
                        return
                    changed.wait()
                job = queue.popleft()
                job.begun = time.perf_counter()
                if not self._typical or self._typical >= LONG:
                    job.options = RunOptions()
            with self._turn:
                self._run(job)
            with self._lock:
                self._leave(job)
            del job  # its arrays are the caller's alone now

    def _run(self, job: _Job) -> None:
        if job.done:
            return
        job.begun = time.perf_counter()
        try:
            results = self.session.run(job.names, job.feed, job.options)
            outputs = dict(zip(job.names or self._names, results, strict=True))
        except Exception as error:  # noqa: BLE001 - whoever waits gets it
            self._answer(job, job.result(None, error), "failed")
        else:
            self._answer(job, job.result(outputs), "completed")

    def _answer(self, job: _Job, result: AsyncResult, kind: str) -> None:
        now = time.perf_counter()
        mine = job.claim()
        with self._lock:
            if self.options.enable_profiling:
                self._profile.append(
                    RunRecord(job.number, job.stream, job.submitted, job.begun, now, success=mine and result.success)
                )
            if mine:
                self._jobs.pop(job.number, None)
                self._counts[kind] += 1
            if mine and result.success:
                seconds = now - job.begun
                self._typical = seconds if not self._typical else 0.7 * self._typical + 0.3 * seconds
                self._latency += result.latency_us
                self._queued += result.queue_time_us
                self._last = now
        if mine:
            job.future.settle(result)

    # ------------------------------------------------------------------ about it

    def get_stats(self) -> AsyncStats:
        """What was done so far."""
        with self._lock:
            counts, done = self._counts, max(self._counts["completed"], 1)
            span = 0.0 if self._first is None else self._last - self._first
            return AsyncStats(
                total_requests=counts["total"],
                completed_requests=counts["completed"],
                failed_requests=counts["failed"],
                cancelled_requests=counts["cancelled"],
                rejected_requests=counts["rejected"],
                pending_requests=len(self._jobs),
                avg_latency_us=self._latency / done,
                avg_queue_time_us=self._queued / done,
                throughput_rps=counts["completed"] / span if span > 0 else 0.0,
            )

    def get_profile(self) -> list[RunRecord]:
        """A record of every run since the last call; empty without ``enable_profiling``."""
        with self._lock:
            found, self._profile = self._profile, []
            return found

    def __repr__(self) -> str:
        state = "running" if self._alive() else "stopped"
        return f"AsyncSession({self.options.num_streams} streams, {state}, {len(self._jobs)} pending)"
