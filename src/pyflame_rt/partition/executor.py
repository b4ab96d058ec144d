"""Runs plans: parts start as soon as what they read is there, so that devices work at the same time."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.feeds import FeedReader
from pyflame_rt.futures import AwaitableFuture
from pyflame_rt.graph import Graph, Tensor
from pyflame_rt.graph.errors import DeviceLostError, InputError, SessionClosedError, ShapeMismatchError, ValidationError
from pyflame_rt.graph.named_arguments import names_arguments
from pyflame_rt.partition.config import PartitionStrategy
from pyflame_rt.partition.partitioner import GraphPartitioner
from pyflame_rt.partition.request import Request
from pyflame_rt.partition.schedule import jobs_of
from pyflame_rt.partition.workers import ThreadTransport, setup_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from pyflame_rt.options import SessionOptions
    from pyflame_rt.partition.plan import PartitionPlan
    from pyflame_rt.partition.workers import Transport, Worker

__all__ = ["BACKENDS", "PartitionedExecutor"]

BACKENDS = ("threads", "processes", "ray")
ON_LOSS = ("error", "replay")


class PartitionedExecutor:
    """A plan that is loaded on its devices.

    Args:
        plan: what runs where.
        backend: devices are "threads" of this process, "processes" of this machine, or "ray" actors, which need the
            extra ``ray`` and a cluster that was connected with ``ray.init()``.
        options: of the parts' sessions; by default CPU devices share the machine's threads evenly.
        on_device_loss: when a process or an actor is gone: "error" raises DeviceLostError, "replay" gives its parts to
            the devices that are left and runs the request again.

    Attributes:
        plan: the plan.
        lost: labels of the devices that were lost.
        transfers: bytes that went between devices so far, by labels of source and target.
        messages: how many values went, likewise.

    Example:
        >>> from pyflame_rt import partition
        >>> g = Graph("g")
        >>> _ = g.add_input("x", [2]), g.add_output("z", [2])
        >>> _ = g.add_node("a", "Neg", ["x"], ["y"]), g.add_node("b", "Exp", ["y"], ["z"])
        >>> plan = partition.GraphPartitioner().partition_model_parallel(g, num_partitions=2)
        >>> with PartitionedExecutor(plan) as executor:
        ...     executor.execute({"x": np.zeros(2, np.float32)})
        {'z': array([1., 1.], dtype=float32)}
    """

    @names_arguments
    def __init__(
        self,
        plan: PartitionPlan,
        backend: str = "threads",
        *,
        options: SessionOptions | None = None,
        on_device_loss: str = "error",
    ) -> None:
        if on_device_loss not in ON_LOSS:
            raise InputError(f"on_device_loss is one of {', '.join(ON_LOSS)}, got {on_device_loss!r}")
        problems = GraphPartitioner.validate(plan)
        if problems:
            raise ValidationError(f"the plan for {plan.graph.name!r} cannot run", problems)
        self.plan = plan
        self.lost: list[str] = []
        self.transfers: Counter[tuple[str, str]] = Counter()
        self.messages: Counter[tuple[str, str]] = Counter()
        self._replays = on_device_loss == "replay"
        self._options = options
        required = plan.graph.required_inputs
        names = {info.name for info in required}
        self._reader = FeedReader(required, [i for i in plan.graph.inputs if i.name not in names])
        self._lock = threading.RLock()
        self._turn = 0
        self._closed = True  # until there is something to close
        self._threads: ThreadPoolExecutor | None = None
        self._workers: dict[str, Worker] = {}
        self._where: dict[int, str] = {}
        self._transport = _transport(backend)
        self._closed = False
        try:
            self._load()
        except BaseException:
            self.close()
            raise

    def _load(self) -> None:
        devices = self.plan.devices
        for device in devices:
            setup = setup_of(device, len(devices), self._options, self.plan.chips)
            self._workers[device.label] = self._transport.start(device, setup)
        waiting = []
        for part in self.plan.partitions:
            self._where[part.index] = part.device.label
            waiting.append(self._workers[part.device.label].load(part.index, part.graph))
        for future in waiting:
            future.result()

    # ------------------------------------------------------------------ running

    def execute(self, inputs: Any, output_names: Sequence[str] | None = None, *, timeout: float | None = None) -> Any:
        """Run a request.

        Args:
            inputs: a mapping from names to values, a list or tuple of values in the order of the model's inputs, or
                the value of its only input; NumPy arrays or Tensors.
            output_names: outputs to give; all when None.
            timeout: seconds; then RunTimeoutError.

        Returns:
            Outputs in the kind of container the inputs came in, Tensors for Tensors.
        """
        self._open()
        feeds = self._reader.read(_named(inputs, self.plan.graph))
        names = self._names(output_names)
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            request = self._request(feeds, names)
            try:
                results = request.run(deadline)
                break
            except DeviceLostError as error:
                if not self._replays or not self._survive(error.device):
                    raise
        return _packed(inputs, names, results)

    def execute_async(
        self, inputs: Any, output_names: Sequence[str] | None = None, *, timeout: float | None = None
    ) -> AwaitableFuture[Any]:
        """Run a request in the background; several requests are in different parts at the same time.

        The future's ``result()`` is what :meth:`execute` gives; coroutines may await it.
        """
        self._open()
        future: AwaitableFuture[Any] = AwaitableFuture()

        def fill() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = self.execute(inputs, output_names, timeout=timeout)
            except BaseException as error:  # noqa: BLE001 - whoever waits gets it
                future.set_exception(error)
            else:
                future.set_result(result)

        with self._lock:
            self._open()
            if self._threads is None:
                most = 2 * len(self._workers) + 2
                self._threads = ThreadPoolExecutor(most, thread_name_prefix="pyflame-partitioned")
            self._threads.submit(fill)
        return future

    def _names(self, output_names: Sequence[str] | None) -> list[str]:
        known = [info.name for info in self.plan.graph.outputs]
        if output_names is None:
            return known
        if isinstance(output_names, str):
            raise InputError(f"output_names is a list of names; write [{output_names!r}]")
        for name in output_names:
            if name not in known:
                raise InputError(f"the model has no output {name!r}. Outputs: {', '.join(known)}")
        return list(output_names)

    def _request(self, feeds: dict[str, Any], names: list[str]) -> Request:
        plan = self.plan
        jobs = jobs_of(plan, self._rows(feeds))
        parts = [[p.index for p in plan.partitions] for _ in jobs]
        with self._lock:
            if plan.strategy is PartitionStrategy.DATA_PARALLEL:
                replicas = [p.index for p in plan.partitions]
                parts = [[replicas[(self._turn + i) % len(replicas)]] for i in range(len(jobs))]
                self._turn += len(jobs) if plan.split is None else 0
            where = {index: self._workers[label] for index, label in self._where.items()}
        return Request(plan, self._transport, where, jobs, parts, feeds, names, self._count)

    def _rows(self, feeds: Mapping[str, Any]) -> int:
        if self.plan.split is None:
            return 1
        rows = {name: np.shape(feeds[name])[axis] for name, axis in self.plan.split.inputs.items()}
        if len(set(rows.values())) > 1:
            told = ", ".join(f"{name!r} has {count}" for name, count in rows.items())
            raise ShapeMismatchError(f"inputs of one request have the same number of rows: {told}")
        return next(iter(rows.values()))

    def _count(self, source: str, target: str, num_bytes: int) -> None:
        with self._lock:
            self.transfers[source, target] += num_bytes
            self.messages[source, target] += 1

    # ------------------------------------------------------------------ losing devices

    def _survive(self, label: str) -> bool:
        """Give the parts of a lost device to the others; False when there are none."""
        with self._lock:
            if self._closed:
                return False
            if label not in self._workers:
                return bool(self._workers)  # another request has seen to it
            gone = self._workers.pop(label)
            self.lost.append(label)
            if not self._workers:
                return False
            waiting = []
            for part in self.plan.partitions:
                if self._where[part.index] != label:
                    continue
                held = Counter(self._where.values())
                heir = min(self._workers, key=lambda name: held[name])
                self._where[part.index] = heir
                waiting.append(self._workers[heir].load(part.index, part.graph))
        gone.close()
        for future in waiting:
            future.result()
        return True

    # ------------------------------------------------------------------ the end

    @property
    def devices(self) -> list[str]:
        """Labels of the devices that are running."""
        return list(self._workers)

    def worker(self, label: str) -> Worker:
        """The device of this label."""
        try:
            return self._workers[label]
        except KeyError:
            raise InputError(f"no device {label!r} is running. Devices: {', '.join(self._workers)}") from None

    def _open(self) -> None:
        if self._closed:
            raise SessionClosedError(f"the executor of model {self.plan.graph.name!r} was closed")

    def close(self) -> None:
        """End the devices; may be called again."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            threads, workers = self._threads, list(self._workers.values())
        if threads is not None:
            threads.shutdown(wait=True, cancel_futures=False)
        for worker in workers:
            worker.close()
        self._transport.close()

    def __enter__(self) -> PartitionedExecutor:
        self._open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            self.close()


def _transport(backend: str) -> Transport:
    match backend:
        case "threads":
            return ThreadTransport()
        case "processes":
            from pyflame_rt.partition.processes import ProcessTransport

            return ProcessTransport()
        case "ray":
            from pyflame_rt.partition.ray_actors import RayTransport

            return RayTransport()
        case _:
            raise InputError(f"backend {backend!r} is not known. Backends: {', '.join(BACKENDS)}")


def _named(inputs: Any, graph: Graph) -> Mapping[str, Any]:
    """Inputs by name."""
    if isinstance(inputs, Mapping):
        return inputs
    names = [info.name for info in graph.required_inputs]
    values = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
    if len(values) != len(names):
        raise InputError(f"the model has {len(names)} inputs ({', '.join(names)}); {len(values)} values were given")
    return dict(zip(names, values, strict=True))


def _packed(inputs: Any, names: Sequence[str], results: list[Any]) -> Any:
    """Outputs in the kind of container, and of element, that the inputs had."""
    values = list(inputs.values()) if isinstance(inputs, Mapping) else inputs
    first = values if not isinstance(values, (list, tuple)) else next(iter(values), None)
    if isinstance(first, Tensor):
        results = [Tensor(r) if isinstance(r, np.ndarray) else r for r in results]
    if isinstance(inputs, Mapping):
        return dict(zip(names, results, strict=True))
    if isinstance(inputs, (list, tuple)):
        return results if isinstance(inputs, list) else tuple(results)
    return results[0] if len(results) == 1 else results


def measure_transfers(backend: str, elements: int) -> tuple[float, float]:
    """Bytes a second and microseconds from device to device, measured with a plan of two parts."""
    graph = Graph("transfer")
    graph.add_input("x", [None])
    graph.add_output("z", [None])
    graph.add_node("first", "Neg", ["x"], ["y"])
    graph.add_node("second", "Neg", ["y"], ["z"])
    times: dict[tuple[int, int], float] = {}
    for parts in (1, 2):
        plan = GraphPartitioner().partition_model_parallel(graph, parts)
        with PartitionedExecutor(plan, backend) as executor:
            for size in (1, elements):
                times[parts, size] = _best(executor, np.ones(size, np.float32))
    latency = max(times[2, 1] - times[1, 1], 1e-6)
    more = max(times[2, elements] - times[1, elements] - latency, 1e-6)
    return elements * 4 / more, latency * 1e6


def _best(executor: PartitionedExecutor, x: np.ndarray[Any, Any]) -> float:
    times = []
    for _ in range(6):
        started = time.perf_counter()
        executor.execute({"x": x})
        times.append(time.perf_counter() - started)
    return min(times[1:])
