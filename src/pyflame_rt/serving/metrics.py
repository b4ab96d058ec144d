"""Counters, gauges and histograms of a server, in Prometheus' text format (prometheus_client)."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, ClassVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["MetricsRegistry"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LATENCIES = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


class MetricsRegistry:
    """What a process has served; all servers of a process count here.

    Example:
        >>> registry = MetricsRegistry()
        >>> registry.request_total("m", "success")
        >>> 'pyflame_request_total{model="m",status="success"} 1.0' in registry.export_prometheus()
        True
    """

    _instance: ClassVar[MetricsRegistry | None] = None
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self) -> None:
        self._before: dict[int, Callable[[], None]] = {}
        self._make()

    @classmethod
    def instance(cls) -> MetricsRegistry:
        """The one that servers use."""
        with cls._lock:
            if cls._instance is None:
                cls._instance = cls()
            return cls._instance

    def _make(self) -> None:
        registry = self._registry = CollectorRegistry()
        self._extra: dict[str, Any] = {}
        self._quick: dict[str, tuple[Any, Any]] = {}  # by model, found once
        self._quick_batches: dict[str, Any] = {}
        self.requests = Counter(
            "pyflame_request", "Total number of inference requests", ["model", "status"], registry=registry
        )
        self.latency = Histogram(
            "pyflame_request_latency_seconds",
            "Request latency in seconds",
            ["model"],
            buckets=LATENCIES,
            registry=registry,
        )
        self.active = Gauge(
            "pyflame_requests_active",
            "Requests that are being answered",
            registry=registry,
            multiprocess_mode="livesum",
        )
        self.loaded = Gauge(
            "pyflame_model_loaded",
            "1 while a version is loaded",
            ["model", "version"],
            registry=registry,
            multiprocess_mode="livemax",
        )
        self.batches = Histogram(
            "pyflame_batch_size", "Rows of requests in one run", ["model"], buckets=SIZES, registry=registry
        )
        self.queue = Gauge(
            "pyflame_queue_size",
            "Requests that wait for a run",
            ["model"],
            registry=registry,
            multiprocess_mode="livesum",
        )
        self.errors = Counter(
            "pyflame_inference_errors",
            "Requests without an answer, by error code",
            ["model", "error"],
            registry=registry,
        )

    # ------------------------------------------------------------------ what servers count

    def answered(self, model: str, seconds: float) -> None:
        """Count an answer and how long it took."""
        found = self._quick.get(model)
        if found is None:
            found = self._quick[model] = (self.requests.labels(model, "success"), self.latency.labels(model))
        found[0].inc()
        found[1].observe(seconds)

    def request_total(self, model: str, status: str) -> None:
        """Count an answer: "success" or "error"."""
        self.requests.labels(model, status).inc()

    def request_latency(self, model: str, seconds: float) -> None:
        """How long an answer took."""
        self.latency.labels(model).observe(seconds)

    def inference_error(self, model: str, error: str) -> None:
        """Count an error by its code."""
        self.errors.labels(model, error).inc()

    def model_loaded(self, model: str, version: str, loaded: bool) -> None:
        """Whether a version is there."""
        self.loaded.labels(model, version).set(1 if loaded else 0)

    def batch_size(self, model: str, rows: int) -> None:
        """Rows of a run."""
        found = self._quick_batches.get(model)
        if found is None:
            found = self._quick_batches[model] = self.batches.labels(model)
        found.observe(rows)

    def queue_size(self, model: str, requests: int) -> None:
        """Requests that wait."""
        self.queue.labels(model).set(requests)

    def request_active_inc(self) -> None:
        """A request came."""
        self.active.inc()

    def request_active_dec(self) -> None:
        """A request was answered."""
        self.active.dec()

    # ------------------------------------------------------------------ metrics of one's own

    def counter_inc(self, name: str, amount: float = 1.0, help: str = "") -> None:  # noqa: A002 - Prometheus' word
        """Count up a metric of one's own; it is made when first used."""
        self._own(Counter, name, help).inc(amount)

    def gauge_set(self, name: str, value: float, help: str = "") -> None:  # noqa: A002 - Prometheus' word
        """Set a gauge of one's own."""
        self._own(Gauge, name, help).set(value)

    def histogram_observe(self, name: str, value: float, help: str = "") -> None:  # noqa: A002 - Prometheus' word
        """Add a value to a histogram of one's own."""
        self._own(Histogram, name, help).observe(value)

    def _own(self, kind: Any, name: str, text: str) -> Any:
        with self._lock:
            found = self._extra.get(name)
            if found is None:
                found = self._extra[name] = kind(name, text or name, registry=self._registry)
        if not isinstance(found, kind):
            raise ValueError(f"metric {name!r} is a {type(found).__name__.lower()}, not a {kind.__name__.lower()}")
        return found

    # ------------------------------------------------------------------ reading

    def before_export(self, owner: object, update: Callable[[], None] | None) -> None:
        """Have ``update`` called before values are read, for those that are looked up; None ends that."""
        with self._lock:
            if update is None:
                self._before.pop(id(owner), None)
            else:
                self._before[id(owner)] = update

    def export_prometheus(self) -> str:
        """Everything, as Prometheus reads it."""
        for update in list(self._before.values()):
            update()
        if not os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
            return generate_latest(self._registry).decode()
        everybody = CollectorRegistry()  # several processes, which count in files
        MultiProcessCollector(everybody)
        return generate_latest(everybody).decode()

    def reset(self) -> None:
        """Begin to count anew; metrics of one's own are forgotten."""
        with self._lock:
            self._make()
