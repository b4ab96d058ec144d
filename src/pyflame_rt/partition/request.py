"""One request on its way through the parts of a plan: tasks are sent out as their inputs arrive."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph.errors import RunTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future

    from pyflame_rt.partition.plan import PartitionPlan
    from pyflame_rt.partition.workers import Transport, Worker

__all__ = ["Request"]


class Request:
    """Rows of a request as jobs, each of which goes through some parts.

    Args:
        plan: what runs where.
        transport: keeps the values.
        where: the device of each part.
        jobs: first and last row of each job; the whole request where the plan does not split it.
        parts: the parts each job goes through, in order.
        feeds: inputs by name.
        names: outputs that are wanted.
        count: told of every value that goes from device to device.
    """

    def __init__(
        self,
        plan: PartitionPlan,
        transport: Transport,
        where: Mapping[int, Worker],
        jobs: Sequence[tuple[int, int]],
        parts: Sequence[Sequence[int]],
        feeds: Mapping[str, Any],
        names: Sequence[str],
        count: Callable[[str, str, int], None],
    ) -> None:
        self._plan, self._transport, self._where = plan, transport, where
        self._bounds, self._parts, self._feeds, self._names, self._count = jobs, parts, feeds, names, count
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._error: BaseException | None = None
        self._left = len(jobs)
        self._flying = 0  # parts that were sent out and did not come back
        self._next = 0
        self._jobs = [_Job(plan, parts[j], names) for j in range(len(jobs))]
        self._window = 2 * len(plan.partitions) + 2  # jobs under way at once: memory stays bounded

    def run(self, deadline: float | None) -> list[Any]:
        """Outputs in order."""
        for _ in range(min(self._window, len(self._jobs))):
            self._begin()
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        if not self._done.wait(left):
            self._fail(RunTimeoutError(f"the request through {len(self._plan.partitions)} parts took too long"))
        if self._error is not None:
            with self._lock:
                spent = self._abandoned()
            for handle in spent:
                self._transport.release(handle)
            raise self._error
        return [self._output(name) for name in self._names]

    # ------------------------------------------------------------------ jobs

    def _begin(self) -> None:
        """Start the next job: its inputs become values that devices can read."""
        with self._lock:
            if self._next >= len(self._jobs) or self._error is not None:
                return
            number = self._next
            self._next += 1
        job = self._jobs[number]
        try:
            for name in job.fed:
                if name in self._feeds:
                    job.values[name] = (self._transport.put(self._cut(name, self._bounds[number])), "host")
        except BaseException as error:  # noqa: BLE001 - whoever waits gets it
            self._fail(error)
            return
        self._advance(job)

    def _cut(self, name: str, bounds: tuple[int, int]) -> Any:
        """The rows of an input that belong to a job."""
        value, split = self._feeds[name], self._plan.split
        if split is None or name not in split.inputs or len(self._jobs) == 1:
            return value
        index = [slice(None)] * np.ndim(value)
        index[split.inputs[name]] = slice(*bounds)
        return np.ascontiguousarray(value[tuple(index)])

    def _advance(self, job: _Job) -> None:
        """Send out every part whose inputs are there."""
        with self._lock:
            if self._error is not None:
                return
            ready = job.take_ready(self._feeds)
            self._flying += len(ready)
        for part in ready:
            worker = self._where[part]
            feeds = {n: job.values[n][0] for n in job.reads[part] if n in job.values}
            for name in feeds:
                source = job.values[name][1]
                if source not in ("host", worker.device.label):
                    self._count(source, worker.device.label, _size(job.values[name][0]))
            try:
                future = worker.submit(part, feeds, job.gives[part])
            except BaseException as error:  # noqa: BLE001 - whoever waits gets it
                with self._lock:
                    self._flying -= 1
                self._fail(error)
                continue
            future.add_done_callback(lambda done, p=part: self._arrived(job, p, done))

    def _arrived(self, job: _Job, part: int, done: Future[dict[str, Any]]) -> None:
        """A part has run."""
        error = (
            RunTimeoutError("a part was cancelled: the executor was closed") if done.cancelled() else done.exception()
        )
        if error is not None:
            self._fail(error)
        label = self._where[part].device.label
        with self._lock:
            self._flying -= 1
            if error is None:
                for name, handle in done.result().items():
                    job.values[name] = (handle, label)
            late = self._error is not None
            spent = self._abandoned() if late else job.finished(part)
            ended = not late and job.left == 0
            self._left -= ended
            last = self._left == 0
        for handle in spent:
            self._transport.release(handle)
        if ended:
            self._begin()
            if last:
                self._done.set()
        elif not late:
            self._advance(job)

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            if self._error is None:
                self._error = error
        self._done.set()

    def _abandoned(self) -> list[Any]:
        """Handles of a request that failed, once no device can be reading them any more."""
        if self._flying:
            return []
        spent = [handle for job in self._jobs for handle, _ in job.values.values()]
        for job in self._jobs:
            job.values.clear()
        return spent

    # ------------------------------------------------------------------ outputs

    def _output(self, name: str) -> Any:
        graph, split = self._plan.graph, self._plan.split
        made = [self._take(job, name) for job in self._jobs if name in job.values and name in job.kept]
        if not made:  # an input or a constant, given out as it is
            value = self._feeds[name] if name in self._feeds else graph.initializers[name].raw()
            return np.array(value)
        if len(made) == 1 or split is None or name not in split.outputs:
            return made[0]
        return np.concatenate(made, axis=split.outputs[name])

    def _take(self, job: _Job, name: str) -> Any:
        handle = job.values[name][0]
        value = self._transport.get(handle)
        self._transport.release(handle)
        return value


class _Job:
    """One piece of a request: which values are there, and which parts still wait."""

    def __init__(self, plan: PartitionPlan, parts: Sequence[int], names: Sequence[str]) -> None:
        chosen = [plan.partitions[i] for i in parts]
        self.reads = {p.index: p.inputs for p in chosen}
        self.gives = {p.index: p.outputs for p in chosen}
        made = {n for p in chosen for n in p.outputs}
        self.fed = [n for n in dict.fromkeys(n for p in chosen for n in p.inputs) if n not in made]
        self.made = made
        self.kept = set(names) & made
        self.values: dict[str, tuple[Any, str]] = {}
        self.waiting = [p.index for p in chosen]
        self.left = len(chosen)
        self.readers: dict[str, int] = {}
        for p in chosen:
            for name in p.inputs:
                self.readers[name] = self.readers.get(name, 0) + 1

    def take_ready(self, feeds: Mapping[str, Any]) -> list[int]:
        """Parts that can run now, once each."""
        missing = self.made.union(feeds) - set(self.values)
        ready = [p for p in self.waiting if missing.isdisjoint(self.reads[p])]
        self.waiting = [p for p in self.waiting if p not in ready]
        return ready

    def finished(self, part: int) -> list[Any]:
        """Handles that nobody reads any more, now that a part has run."""
        self.left -= 1
        for name in self.reads[part]:
            self.readers[name] -= 1
        around = dict.fromkeys((*self.reads[part], *self.gives[part]))
        unread = [n for n in around if not self.readers.get(n) and n not in self.kept and n in self.values]
        return [self.values.pop(name)[0] for name in unread]


def _size(handle: Any) -> int:
    """Bytes of a value behind a handle."""
    shape, dtype = getattr(handle, "shape", None), getattr(handle, "dtype", None)
    if shape is None or dtype is None:
        return 0
    return int(np.prod(shape)) * np.dtype(dtype).itemsize
