"""Inference for every protocol: find the model, run, count, and let go when the client has gone."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyflame_rt.graph.errors import PyFlameRTError
from pyflame_rt.graph.records import dataclass
from pyflame_rt.serving.errors import RequestError, as_request_error
from pyflame_rt.serving.metrics import MetricsRegistry

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping, Sequence

    from pyflame_rt.batching import InferenceResponse
    from pyflame_rt.graph import DType
    from pyflame_rt.serving.instance import ModelInstance
    from pyflame_rt.serving.registry import ModelRegistry

__all__ = ["Answer", "InferenceService"]

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

    def ready(self) -> bool:
        """Whether every model that was configured answers, and the server goes on."""
        return self.started and not self.draining and all(self.registry.has(*key) for key in self.configured)

    async def acquire(self, name: str, version: str | None = None) -> ModelInstance:
        """The model of a request; to be released."""
        if self.registry.is_loaded(name, version):
            return self.registry.acquire(name, version)
        return await asyncio.to_thread(self.registry.acquire, name, version)

    @contextmanager
    def counted(self, name: str) -> Iterator[None]:
        """Count what becomes of a request; errors leave as :class:`RequestError`."""
        begun = time.perf_counter()
        metrics = self.metrics
        metrics.request_active_inc()
        with self._lock:
            self.active += 1
        label = name if self.registry.has(name) else ""  # names that clients make up are not kept
        try:
            yield
        except Exception as error:
            refused = as_request_error(error)
            if refused.status == 500 and not isinstance(error, PyFlameRTError):
                log.exception("a request to model %s failed", name)
            metrics.request_latency(label, time.perf_counter() - begun)
            metrics.request_total(label, "error")
            metrics.inference_error(label, refused.code)
            if label:
                instance = self.registry.get_latest(label)
                if instance is not None:
                    instance.failed(time.perf_counter() - begun)
            raise refused from error
        else:
            metrics.answered(label, time.perf_counter() - begun)
        finally:
            with self._lock:
                self.active -= 1
            metrics.request_active_dec()

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
        limit = self.timeout_ms if timeout_ms is None else min(timeout_ms, self.timeout_ms)
        future = instance.submit(inputs, outputs, timeout_ms=limit, caller=caller, here=True)
        response = future.result() if future.done() else await _answered(asyncio.wrap_future(future), gone)
        instance.took(inputs, (response.latency_us - response.queue_time_us) / 1e6)
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


async def _answered(task: asyncio.Future[Any], gone: Callable[[], Awaitable[None]] | None) -> InferenceResponse:
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
