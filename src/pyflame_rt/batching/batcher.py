"""Dynamic batching: rows of requests that come close together are run as one."""

from __future__ import annotations

import atexit
import itertools
import os
import threading
import time
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

from pyflame_rt.batching.config import BatchConfig, is_timeout
from pyflame_rt.batching.layout import Layout, Piece, Rows
from pyflame_rt.batching.queueing import FairQueue, chosen_rows
from pyflame_rt.batching.requests import BatchFuture, InferenceRequest, Ticket, as_request
from pyflame_rt.batching.runs import Batch, Threads
from pyflame_rt.batching.stats import BatchStats, Tally
from pyflame_rt.batching.window import Costs, Window
from pyflame_rt.graph.arguments import expect, expect_callable, expect_graph_of
from pyflame_rt.graph.errors import (
    InputError,
    QueueFullError,
    RunCancelledError,
    RunTimeoutError,
    SessionClosedError,
)
from pyflame_rt.graph.names import closest
from pyflame_rt.memory import global_pool
from pyflame_rt.options import RunOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence
    from types import TracebackType

    from pyflame_rt.batching.queueing import Group
    from pyflame_rt.dispatch import Alarms
    from pyflame_rt.session import InferenceSession

__all__ = ["DynamicBatcher"]

FOR_EVER_MS = 1e11  # three years: no clock waits longer
LONG = 0.05  # seconds from which on a run is watched, so that it ends when nobody wants it any more
_numbers = itertools.count(1)


class DynamicBatcher:
    """Runs requests of many callers together, and answers each with its own rows.

    What is put together are rows: requests may bring several, and large ones are run in pieces. A request that comes
    alone runs at once; under load, runs are as large as what waits. Callers get equal shares of the runs. A request
    that makes a run fail fails alone. Sequences of different lengths share runs where the model has a mask.

    Args:
        session: the model; its inputs need a batch axis, which is a size called batch, b or n, else the first.
        config: sizes, times and limits.
        on_run: called after each run with its rows, by the thread that made it.

    Raises:
        InputError: The settings are not valid, or rows of the model cannot be put together (then ``max_batch_size=1``
            runs requests one after the other).

    Example:
        >>> import numpy as np, pyflame_rt
        >>> g = pyflame_rt.Graph("g")
        >>> _ = g.add_input("x", ["N", 2]), g.add_node("n", "Neg", ["x"], ["y"]), g.add_output("y", ["N", 2])
        >>> with DynamicBatcher(pyflame_rt.InferenceSession(g)) as batcher:
        ...     future = batcher.submit({"x": np.ones((1, 2), np.float32)})
        ...     batcher.infer({"x": np.zeros((3, 2), np.float32)})["y"].shape, future.result()["y"]
        ((3, 2), array([[-1., -1.]], dtype=float32))
    """

    def __init__(
        self,
        session: InferenceSession,
        config: BatchConfig | None = None,
        *,
        on_run: Callable[[int], None] | None = None,
    ) -> None:
        self.session = session
        self._on_run = on_run
        chosen = BatchConfig() if config is None else config
        expect(chosen, BatchConfig, "the config of a batcher")
        self.config = chosen.checked()
        graph = expect_graph_of(session, "a batcher")
        self.layout = Layout(graph, self.config)
        if self.layout.problem and self.config.max_batch_size > 1:
            raise InputError(
                f"model {graph.name!r} cannot be batched: {self.layout.problem}. Make that size variable, or set "
                f"max_batch_size=1 to run requests one after the other"
            )
        self._names = [info.name for info in graph.outputs]
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)  # for workers
        self._room = threading.Condition(self._lock)  # for callers, when the queue is full
        self._threads: Threads | None = None
        self._sizes = self.config.sizes()
        self._costs = Costs(self._sizes)
        self._tally = Tally()
        self._reset()

    def _reset(self) -> None:
        self._queue = FairQueue(self.config.priority_rows)
        self._tickets: dict[int, Ticket] = {}  # all that were not answered
        self._running: list[Batch] = []
        self._idle = 0  # workers that wait,
        self._wanted = 1  # and the rows they wait for
        self._window = Window(float(self.config.max_latency_us) / 1e6, self.config.min_batch_size)

    # ------------------------------------------------------------------ starting and stopping

    def start(self) -> None:
        """Begin to run requests; does nothing when that was done before."""
        with self._lock:
            if self._alive():
                return
            self._reset()
            self._threads = Threads(self._work, self.config.num_workers)
            workers = self._threads.workers
        for worker in workers:
            worker.start()
        atexit.register(self.stop, drain=False)

    def _alive(self) -> bool:
        """Whether it runs; threads do not survive a fork."""
        threads = self._threads
        return threads is not None and threads.process == os.getpid() and not threads.stopping

    def stop(self, *, drain: bool = True) -> None:
        """Take no more requests, answer those that were taken, and end.

        Args:
            drain: run what waits; False answers it with RunCancelledError.
        """
        with self._lock:
            threads = self._threads
            if threads is None or threads.process != os.getpid():
                return
            threads.stopping = True
            left = [] if drain else self._queue.drain()
            self._changed.notify_all()
            self._room.notify_all()
        for ticket in left:
            self._end(ticket, RunCancelledError("the batcher was stopped"), "cancelled")
        here = threading.current_thread()
        for worker in threads.workers:
            if worker is not here and worker.ident is not None:
                worker.join()
        with self._lock:  # callers that run their own requests
            me = threading.get_ident()
            self._changed.wait_for(lambda: all(batch.thread == me for batch in self._running))
        threads.alarms.close()
        threads.callbacks.close()
        atexit.unregister(self.stop)
        with self._lock:
            if self._threads is threads:
                self._threads = None

    @property
    def running(self) -> bool:
        """Whether requests are taken."""
        return self._alive()

    def __enter__(self) -> DynamicBatcher:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # ------------------------------------------------------------------ requests

    def submit(
        self,
        inputs: Mapping[str, Any] | InferenceRequest,
        *,
        output_names: Sequence[str] | None = None,
        timeout_ms: float | None = None,
        caller: Hashable = None,
        here: bool = False,
    ) -> BatchFuture:
        """Ask for a run; returns at once with a future of an InferenceResponse, which can be awaited and cancelled.

        Args:
            inputs: a value for each input, or an InferenceRequest; arrays must not be changed before the answer.
            output_names: which outputs to answer with; None for all.
            timeout_ms: time until the answer is RunTimeoutError.
            caller: who asks, for fairness; None for the calling thread.
            here: where nobody else is at work, run in the calling thread, before returning: right for short runs.

        Raises:
            InputError: A name is unknown or missing.
            QueueFullError: Too many requests wait.
            SessionClosedError: The batcher does not run.
        """
        return self._submit(as_request(inputs, output_names, timeout_ms, caller), 0, here=here)

    def infer(
        self,
        inputs: Mapping[str, Any] | InferenceRequest,
        *,
        output_names: Sequence[str] | None = None,
        timeout_ms: float | None = None,
        caller: Hashable = None,
    ) -> dict[str, Any]:
        """Ask for a run and wait for it: outputs by name.

        Raises:
            PyFlameRTError: The run failed, or see :meth:`submit`.
        """
        future = self._submit(as_request(inputs, output_names, timeout_ms, caller), 0, here=True)
        try:
            return future.result().outputs
        finally:
            future.cancel()  # where waiting was interrupted

    def submit_with_callback(
        self,
        inputs: Mapping[str, Any] | InferenceRequest,
        callback: Callable[[int, bool, dict[str, Any], str], None],
        *,
        output_names: Sequence[str] | None = None,
        timeout_ms: float | None = None,
        caller: Hashable = None,
    ) -> int:
        """Ask for a run; ``callback(request_id, success, outputs, error)`` is called once. Returns the request's id."""
        expect_callable(callback, "callback")
        future = self.submit(inputs, output_names=output_names, timeout_ms=timeout_ms, caller=caller)
        self._call_back(future, callback)
        return future.request_id

    def _call_back(self, future: BatchFuture, callback: Callable[[int, bool, dict[str, Any], str], None]) -> None:
        threads = self._threads
        assert threads is not None
        threads.callbacks.after(future, callback)

    def cancel(self, request_id: int) -> bool:
        """Take a request back; False when it was answered, or is not known."""
        ticket = self._tickets.get(request_id)
        return ticket is not None and ticket.future.cancel()

    def get_stats(self) -> BatchStats:
        """What was done so far."""
        with self._lock:
            return self._tally.stats(len(self._queue))

    def count(self, rows: int, seconds: float, now: float) -> None:
        """Count a request that its caller has run alone among those that were batched."""
        with self._lock:
            self._tally.alone(rows, seconds * 1e6, now)
        if self._on_run is not None:
            self._on_run(rows)

    def _submit(self, request: InferenceRequest, priority: int, *, here: bool = False) -> BatchFuture:
        """Queue a request; one that is waited for, and finds nobody at work, is run at once by whoever asks."""
        rows = self.layout.read(request.inputs)
        names = self.checked_names(request.output_names)
        timeout = self.config.timeout_ms if request.timeout_ms is None else request.timeout_ms
        if not is_timeout(timeout):
            raise InputError(f"timeout_ms must be positive or None, got {timeout!r}")
        deadline = None if timeout is None or timeout > FOR_EVER_MS else time.perf_counter() + float(timeout) / 1e3
        caller = threading.get_ident() if request.caller is None else request.caller
        ticket = Ticket(next(_numbers), rows, names, caller, priority, deadline, self._withdraw)
        with self._lock:
            alarms = self._admit(ticket)
            batch = self._alone(ticket) if here else None
            if batch is None and self._idle and self._wanted <= 0 and self._free_to_run():
                self._changed.notify()
        if deadline is not None and timeout is not None:
            alarms.at(deadline, partial(_expire, weakref.ref(self), weakref.ref(ticket), timeout))
        if batch is not None:
            self._work_on(batch)
        return ticket.future

    def _alone(self, ticket: Ticket) -> Batch | None:
        """A run of this request by the calling thread, when nobody else runs or waits: no thread has to be woken."""
        if self._running or len(self._queue) > 1 or ticket.rows.count > self._sizes[-1]:
            return None
        group = (ticket.rows.family, ticket.rows.bucket)
        if self._hold(ticket, ticket.rows.count) > 0:
            return None
        return self._batch(group, ticket.rows.count)

    def checked_names(self, names: Sequence[str] | None) -> Sequence[str]:
        """These outputs, or all.

        Raises:
            InputError: There is no such output.
        """
        if isinstance(names, str):
            raise InputError(f"output_names is a list of names; write [{names!r}]")
        for name in names or ():
            if name not in self._names:
                close = closest(name, self._names)
                hint = f" Did you mean {close[0]!r}?" if close else ""
                raise InputError(f"the model has no output {name!r}.{hint} Outputs: {self._names}")
        return names or self._names

    def _admit(self, ticket: Ticket) -> Alarms:
        """Queue a request, when there is room."""
        while True:
            threads = self._threads
            if threads is None or not self._alive():
                raise SessionClosedError("the batcher does not run: call start(), or use it in a with statement")
            if len(self._queue) < self.config.queue_capacity:
                break
            if self.config.when_full == "reject":
                self._tally.dropped += 1
                raise QueueFullError(
                    f"{len(self._queue)} requests wait, queue_capacity allows {self.config.queue_capacity}: "
                    f'try again later, or set when_full="wait"'
                )
            left = None if ticket.deadline is None else ticket.deadline - time.perf_counter()
            if (left is not None and left <= 0) or not self._room.wait(left):
                raise RunTimeoutError("time was up before there was room in the queue")
        self._tally.came(ticket.submitted)
        self._tickets[ticket.number] = ticket
        self._queue.push(ticket)
        self._window.came(ticket.submitted, ticket.rows.count)
        self._wanted -= ticket.rows.count
        return threads.alarms

    def _free_to_run(self) -> bool:
        """Whether one more run may begin: callers that run their own requests count."""
        return len(self._running) < self.config.num_workers

    # ------------------------------------------------------------------ answers

    def _withdraw(self, ticket: Ticket) -> bool:
        """Called by ``future.cancel()``."""
        if not ticket.claim():
            return False
        self._forget([ticket], "cancelled")
        return True

    def _end(self, ticket: Ticket, error: BaseException, kind: str) -> None:
        """Answer with an error."""
        if ticket.claim():
            self._forget([ticket], kind)
            ticket.future.settle(ticket.response(None, error))

    def _expired(self, ticket: Ticket, timeout_ms: float) -> None:
        where = "in the queue" if ticket.waiting else "running"
        self._end(ticket, RunTimeoutError(f"the request took longer than {timeout_ms} ms ({where})"), "timed out")

    def _forget(self, tickets: Sequence[Ticket], kind: str) -> None:
        with self._lock:
            for ticket in tickets:
                self._queue.discard(ticket)
                self._tickets.pop(ticket.number, None)
            self._tally.ended[kind] += len(tickets)
            running = list(self._running)
            self._room.notify(len(tickets))
            if not self._queue:
                self._changed.notify_all()  # those who stop wait for an empty queue
        for batch in running:
            batch.abandon()

    def _succeed(self, answers: Sequence[tuple[Ticket, dict[str, Any]]]) -> None:
        """Answer requests whose rows are all there."""
        mine = [(ticket, ticket.response(outputs)) for ticket, outputs in answers if ticket.claim()]
        now = time.perf_counter()
        with self._lock:
            for ticket, response in mine:
                self._tickets.pop(ticket.number, None)
                self._tally.answered(response, now)
        for ticket, response in mine:
            ticket.future.settle(response)

    # ------------------------------------------------------------------ runs

    def _work(self, threads: Threads) -> None:
        while (batch := self._next(threads)) is not None:
            self._work_on(batch)
            del batch  # its arrays are the callers' alone now

    def _work_on(self, batch: Batch) -> None:
        started = time.perf_counter()
        self._run(batch)
        now = time.perf_counter()
        with self._lock:
            self._running.remove(batch)
            self._window.answered(now, now - started)
            if self._queue or not self._alive():
                self._changed.notify_all()

    def _next(self, threads: Threads) -> Batch | None:
        """The next run, as soon as there is one; None when there will be none."""
        with self._lock:
            while True:
                found = self._queue.first() if self._free_to_run() else None
                if found is None:
                    if threads.stopping and not self._queue:
                        return None
                    self._wait(None, 1)
                    continue
                group, head = found
                waiting = self._queue.rows(group)
                hold = 0.0 if threads.stopping else self._hold(head, waiting)
                if hold <= 0:
                    return self._batch(group, waiting)
                self._wait(hold, self._sizes[-1] - waiting)

    def _hold(self, head: Ticket, waiting: int) -> float:
        if waiting >= self._sizes[-1]:
            return 0.0
        now, length = time.perf_counter(), head.rows.bucket
        hold = self._window.hold(now, head.submitted, waiting, length, self._costs)
        if head.deadline is not None and self._costs.seen(self._sizes[0], length):
            hold = min(hold, head.deadline - now - self._costs.of(waiting, length))
        return hold

    def _wait(self, seconds: float | None, rows: int) -> None:
        self._idle += 1
        self._wanted = rows
        try:
            self._changed.wait(seconds)
        finally:
            self._idle -= 1

    def _batch(self, group: Group, waiting: int) -> Batch:
        taken, size = chosen_rows(self._queue, self._costs, group, waiting, padding=self.config.enable_padding)
        now = time.perf_counter()
        for ticket, _, _ in taken:
            ticket.begun = ticket.begun or now
        tickets = [ticket for ticket, _, _ in taken]
        pieces = [Piece(ticket.rows, begin, end) for ticket, begin, end in taken]
        batch = Batch(tickets, pieces, size, group[1])
        if self._costs.seen(size, group[1]) >= LONG:
            batch.options = RunOptions()
        self._running.append(batch)
        self._wanted = 0
        self._room.notify(len(tickets))
        return batch

    def _run(self, batch: Batch) -> None:
        """Run a batch and answer it; requests that make it fail fail alone."""
        try:
            feed = self._feed(batch)
            started = time.perf_counter()
            results = self.session.run(None, feed, batch.options)
            seconds = time.perf_counter() - started
            outputs = dict(zip(self._names, results, strict=True))
            parts = [outputs] if self.layout.problem else self._scattered(batch, outputs)
        except Exception as error:  # noqa: BLE001 - whoever waits gets it
            self._failed(batch, error)
            return
        with self._lock:
            self._tally.ran(batch.rows, batch.size)
            self._costs.saw(batch.size, batch.bucket, seconds)
        if self._on_run is not None:
            self._on_run(batch.rows)
        self._give(batch, parts)

    def _feed(self, batch: Batch) -> dict[str, Any]:
        if self.layout.problem:
            return batch.pieces[0].rows.feed
        return self.layout.gather(batch.pieces, batch.size, batch.bucket, global_pool().empty)

    def _scattered(self, batch: Batch, outputs: dict[str, Any]) -> list[dict[str, Any]]:
        return self.layout.scatter(outputs, batch.pieces, batch.size, batch.bucket)

    def _give(self, batch: Batch, parts: Sequence[dict[str, Any]]) -> None:
        ready: list[tuple[Ticket, dict[str, Any]]] = []
        rows = batch.rows
        for ticket, piece, part in zip(batch.tickets, batch.pieces, parts, strict=True):
            if piece.end - piece.begin == piece.rows.count:
                ticket.batch_size = rows
                ready.append((ticket, self._outputs(ticket, [part])))
                continue
            with self._lock:  # pieces of one request may be run at the same time
                if piece.begin not in ticket.parts:
                    ticket.missing -= piece.count
                ticket.parts[piece.begin] = part
                ticket.batch_size = rows
                missing = ticket.missing
            if not missing and not ticket.done:
                ready.append((ticket, self._outputs(ticket, [ticket.parts[begin] for begin in sorted(ticket.parts)])))
        self._succeed(ready)

    def _outputs(self, ticket: Ticket, parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
        whole = parts[0] if self.layout.problem else self.layout.joined(parts, stacked=ticket.rows.stacked)
        return {name: whole[name] for name in ticket.names}

    def _failed(self, batch: Batch, error: Exception) -> None:
        """Find out whose fault it was: halves are run again, and one request as it came."""
        for_all = isinstance(error, (SessionClosedError, RunCancelledError))
        if not for_all and len(batch.pieces) > 1:
            middle = len(batch.pieces) // 2
            for part in (slice(0, middle), slice(middle, None)):
                self._run(self._smaller(batch, part))
            return
        piece = batch.pieces[0]
        if not for_all and (batch.size, batch.bucket) != (piece.count, piece.rows.length):
            self._run(Batch(batch.tickets, batch.pieces, piece.count, piece.rows.length, batch.options))
            return
        for ticket in batch.tickets:
            self._end(ticket, error, "failed")

    def _smaller(self, batch: Batch, part: slice) -> Batch:
        tickets, pieces = batch.tickets[part], batch.pieces[part]
        rows = sum(piece.count for piece in pieces)
        size = min((s for s in self._sizes if s >= rows), default=rows) if self.config.enable_padding else rows
        return Batch(tickets, pieces, size, batch.bucket, batch.options)

    # ------------------------------------------------------------------ warming up

    def warmup(self, inputs: Mapping[str, Any], lengths: Sequence[int] | None = None) -> int:
        """Run an example in every size, so that later requests find everything prepared; how many shapes were met.

        Args:
            inputs: one request; its first row is used.
            lengths: buckets to prepare; None for all of ``length_buckets``, or the example's own without these.

        Raises:
            InputError: The session cannot keep what it prepares for so many shapes.
        """
        rows = self.layout.read(inputs)
        buckets = [self.layout.bucket(n) for n in lengths or self.layout.buckets or [rows.length]]
        buckets = sorted(set(buckets)) if rows.length else [0]
        shapes = [(size, bucket) for bucket in buckets for size in self._sizes]
        kept = getattr(self.session.get_session_options(), "plan_cache_size", len(shapes))
        if len(shapes) > kept:
            raise InputError(
                f"{len(self._sizes)} batch sizes and {len(buckets)} lengths make {len(shapes)} shapes; set "
                f"SessionOptions.plan_cache_size (now {kept}) to as many, or have fewer sizes or length_buckets"
            )
        for size, bucket in shapes:
            piece = Piece(self._cropped(rows, bucket), 0, 1)
            batch = Batch([], [piece], size, bucket)
            for _ in range(3):  # the first prepares, the others show what it takes
                started = time.perf_counter()
                self.session.run(None, self._feed(batch))
                with self._lock:
                    self._costs.saw(size, bucket, time.perf_counter() - started)
        return len(shapes)

    def _cropped(self, rows: Rows, bucket: int) -> Rows:
        if not rows.length:
            return rows
        length = min(rows.length, bucket)
        feed = dict(rows.feed)
        for name, axis in self.layout.length_in.items():
            if name in feed:
                feed[name] = feed[name][(slice(None),) * axis + (slice(0, length),)]
        return Rows(feed, rows.count, length, bucket, rows.family, rows.stacked)


def _expire(batcher: weakref.ref[DynamicBatcher], ticket: weakref.ref[Ticket], timeout_ms: float) -> None:
    owner, late = batcher(), ticket()
    if owner is not None and late is not None:
        owner._expired(late, timeout_ms)
