"""Inference for every protocol: find the model, run, count, and let go when the client has gone."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from typing import TYPE_CHECKING, Any

from pyflame_rt.graph.errors import PyFlameRTError
from pyflame_rt.graph.records import dataclass
from pyflame_rt.serving.errors import RequestError, as_request_error
from pyflame_rt.serving.metrics import MetricsRegistry
from pyflame_rt.serving.tracing import Spans, note_run

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
    from types import TracebackType

    from pyflame_rt.graph import DType
    from pyflame_rt.serving.instance import ModelInstance
    from pyflame_rt.serving.registry import ModelRegistry

__all__ = ["Answer", "InferenceService", "answered"]

log = logging.getLogger("pyflame_rt.serving")
LOOK_AFTER = 0.05  # seconds until a client is looked after: most answers are there before


@dataclass(slots=True)
class Answer:
    """Outputs of a model, and how they came about."""

    name: str
    version: str
    outputs: dict[str, Any]
    kinds: dict[str, DType]
    latency_us: int
    queue_time_us: int
    batch_size: int

    @property
    def nbytes(self) -> int:
        """Bytes of the outputs."""
        return sum([getattr(array, "nbytes", 0) for array in self.outputs.values()])


class InferenceService:
    """Answers requests of any protocol with the models of a registry.

    Args:
        registry: the models.
        timeout_ms: time a request may take.
    """

    def __init__(self, registry: ModelRegistry, timeout_ms: float = 30_000.0) -> None:
        self.registry = registry
        self.timeout_ms = timeout_ms
        self.metrics = MetricsRegistry.instance()
        self.draining = False
        self.configured: set[tuple[str, str]] = set()
        self.started = False
        self.active = 0
        self._lock = threading.Lock()
        self._spans = Spans()

    def ready(self) -> bool:
        """Whether every model that was configured answers, and the server goes on."""
        return self.started and not self.draining and all(self.registry.has(*key) for key in self.configured)

    async def acquire(self, name: str, version: str | None = None) -> ModelInstance:
        """The model of a request; to be released."""
        found = self.registry.take(name, version)
        return await asyncio.to_thread(self.registry.acquire, name, version) if found is None else found

    def counted(self, name: str) -> _Counted:
        """Count what becomes of a request; errors leave as :class:`RequestError`."""
        return _Counted(self, name)

    def begin(self) -> None:
        """A request came."""
        self.metrics.request_active_inc()
        with self._lock:
            self.active += 1

    def end(self) -> None:
        """A request was answered."""
        with self._lock:
            self.active -= 1
        self.metrics.request_active_dec()

    def failed(self, name: str, error: Exception, seconds: float) -> RequestError:
        """Count a request without an answer, and say how it is refused."""
        refused = as_request_error(error)
        if refused.status == 500 and not isinstance(error, PyFlameRTError):
            log.error("a request to model %s failed", name, exc_info=error)
        label = name if self.registry.has(name) else ""  # names that clients make up are not kept
        self.metrics.request_latency(label, seconds)
        self.metrics.request_total(label, "error")
        self.metrics.inference_error(label, refused.code)
        instance = self.registry.get_latest(label) if label else None
        if instance is not None:
            instance.failed(seconds)
        return refused

    async def run(
        self,
        instance: ModelInstance,
        inputs: Mapping[str, Any],
        outputs: Sequence[str] | None = None,
        *,
        timeout_ms: float | None = None,
        caller: Hashable = None,
        gone: Callable[[], Awaitable[None]] | None = None,
    ) -> Answer:
        """Run a model; ``gone`` ends when the client has gone, and the run with it."""
        with self._spans.run(instance.name, instance.version) as span:
            answer = await self._run(instance, inputs, outputs, timeout_ms, caller, gone)
            note_run(span, answer.batch_size, answer.queue_time_us)
            return answer

    async def _run(
        self,
        instance: ModelInstance,
        inputs: Mapping[str, Any],
        outputs: Sequence[str] | None,
        timeout_ms: float | None,
        caller: Hashable,
        gone: Callable[[], Awaitable[None]] | None,
    ) -> Answer:
        quick = instance.run_quickly(inputs, outputs)
        if quick is not None:
            found, rows, seconds = quick
            return Answer(
                instance.name, instance.version, found, instance.output_kinds, int(seconds * 1e6) or 1, 0, rows
            )
        limit = self.timeout_ms if timeout_ms is None else min(timeout_ms, self.timeout_ms)
        future = instance.submit(inputs, outputs, timeout_ms=limit, caller=caller)
        response = await answered(asyncio.wrap_future(future), gone)
        instance.saw(inputs)
        return Answer(
            instance.name,
            instance.version,
            response.outputs,
            instance.output_kinds,
            max(int(response.latency_us), 1),
            int(response.queue_time_us),
            response.batch_size,
        )

    def update_gauges(self) -> None:
        """Look up what is not counted."""
        for name, versions in self.registry.get_stats().items():
            self.metrics.queue_size(name, sum(stats["queue_depth"] for stats in versions.values()))


class _Counted:
    """One request, from its beginning to its end."""

    __slots__ = ("_begun", "_name", "_service")

    def __init__(self, service: InferenceService, name: str) -> None:
        self._service, self._name = service, name

    def __enter__(self) -> None:
        self._begun = time.perf_counter()
        self._service.begin()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        seconds = time.perf_counter() - self._begun
        self._service.end()
        if error is None:
            self._service.metrics.answered(self._name, seconds)
        elif isinstance(error, Exception):
            raise self._service.failed(self._name, error, seconds) from error


async def answered(task: asyncio.Future[Any], gone: Callable[[], Awaitable[None]] | None) -> Any:
    """The answer, for as long as the client is there to hear it: ``gone`` ends when it is not, and the work with it."""
    if gone is None:
        return await task
    try:
        done, _ = await asyncio.wait({task}, timeout=LOOK_AFTER)
        if not done:
            watcher = asyncio.ensure_future(gone())
            try:
                await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                watcher.cancel()
            if not task.done():
                raise RequestError(499, "ClientGone", "the client has gone")
        return task.result()
    finally:
        if not task.done():
            task.cancel()
