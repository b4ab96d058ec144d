"""A model behind HTTP: four routes on the runtime's host, which has the limits."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyflame.nn import Module
from pyflame.serving.engine import InferenceConfig, InferenceEngine
from pyflame.serving.wire import BadRequest, answer_of, inputs_of
from pyflame_rt.graph.errors import DTypeMismatchError, InputError, ShapeMismatchError
from pyflame_rt.graph.named_arguments import expect_fields, names_arguments

if TYPE_CHECKING:
    from types import TracebackType

    from pyflame_rt.serving.hosting import Host

__all__ = ["ModelServer", "ServerConfig"]

log = logging.getLogger("pyflame.serving")
ASKED_WRONGLY = (ValueError, TypeError, InputError, ShapeMismatchError, DTypeMismatchError)


@dataclass
class ServerConfig:
    """How a server answers.

    Attributes:
        host: Address to listen on; only this machine by default.
        port: Port to listen on; 0 takes a free one, which `ModelServer.port` tells.
        workers: Requests that are computed at the same time.
        max_batch_size: Larger batches are refused.
        timeout: Seconds for reading a request, and for answering it.
        enable_cors: Let pages of other origins ask.
        cors_origins: Which origins; ("*",) for all.
        api_key: Clients must send it, as ``X-API-Key`` or ``Authorization: Bearer``; None asks for none.
        ssl_cert: Certificate file; with `ssl_key`, the server speaks HTTPS.
        ssl_key: Key file of the certificate.
        max_body_bytes: Larger requests are refused before they are read.
        max_queue: Requests that may wait for a worker; more are refused.
        max_connections: Connections at the same time; for one more, the oldest without a request ends.
        input_dtype: Element type of inputs where a request says none.

    Example:
        >>> from pyflame.serving import ServerConfig
        >>> ServerConfig(port=0).max_batch_size
        32
    """

    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 1
    max_batch_size: int = 32
    timeout: float = 30.0
    enable_cors: bool = False
    cors_origins: tuple[str, ...] = ("*",)
    api_key: str | None = None
    ssl_cert: str | None = None
    ssl_key: str | None = None
    max_body_bytes: int = 64 << 20
    max_queue: int = 64
    max_connections: int = 128
    input_dtype: str = "float32"

    def __post_init__(self) -> None:
        expect_fields(self)
        for name in ("workers", "max_batch_size", "timeout", "max_body_bytes", "max_queue", "max_connections"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive. Received: {getattr(self, name)}")
        if not 0 <= self.port < 65536:
            raise ValueError(f"port must be from 0 to 65535. Received: {self.port}")
        if (self.ssl_cert is None) != (self.ssl_key is None):
            raise ValueError("ssl_cert and ssl_key are given together, or neither")


class ModelServer:
    """Answers ``POST /v1/predict`` and ``GET /v1/health``, ``/v1/info`` and ``/v1/stats``.

    A prediction is asked for with ``{"inputs": [[...], ...]}`` (or a dict of them, by the model's argument names),
    optionally with ``"dtype"`` and ``"batch_size"`` (compute in parts of this size); the answer is
    ``{"outputs": ..., "latency_ms": ...}``. Connections, limits and keys are those of `pyflame_rt.serving`, whose
    own server has versions, batches of many clients and metrics; this one serves any function of tensors.

    Args:
        model: A module (it is put into evaluation mode), any function of tensors, what `optimize_for_inference` or
            `import_onnx` gave, or an `InferenceEngine`.
        config: The settings.

    Example:
        >>> import pyflame as pf
        >>> with pf.serving.ModelServer(pf.nn.Linear(3, 2), pf.serving.ServerConfig(port=0)) as server:
        ...     pf.serving.ModelClient(server.url).predict([[1.0, 2.0, 3.0]]).shape
        (1, 2)
    """

    @names_arguments
    def __init__(self, model: Any, config: ServerConfig | None = None) -> None:
        self.config = config or ServerConfig()
        self.engine = model if isinstance(model, InferenceEngine) else InferenceEngine(model, InferenceConfig())
        self._host: Host | None = None
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._waiting = threading.BoundedSemaphore(self.config.workers + self.config.max_queue)
        self._started = 0.0
        self._refused = 0
        self._draining = False

    @property
    def port(self) -> int:
        """The port it listens on."""
        if self._host is None:
            raise RuntimeError("the server is not running: start() or start_background() comes first")
        return self._host.port

    @property
    def url(self) -> str:
        """Where clients find it."""
        scheme = "https" if self.config.ssl_cert is not None else "http"
        host = f"[{self.config.host}]" if ":" in self.config.host else self.config.host
        return f"{scheme}://{host}:{self.port}"

    def start(self) -> None:
        """Answer until `stop` is called, or the process is told to end (SIGTERM, SIGINT)."""
        from pyflame_rt.serving.hosting import wait_for_signal

        host = self.start_background()._host
        if host is not None and wait_for_signal(host.ended):
            self.stop()

    def start_background(self) -> ModelServer:
        """Answer in a thread of its own; returns the server, ready.

        Raises:
            MissingExtra: The libraries of the server are not installed.
        """
        from pyflame.serving.routes import make_host

        with self._lock:
            if self._host is not None:
                raise RuntimeError(f"the server is already running at {self.url}")
            if isinstance(self.engine.model, Module):
                self.engine.model.eval()
            self._draining = False
            host = make_host(self)
            host.start()
            self._pool = ThreadPoolExecutor(self.config.workers, "pyflame-serving")
            self._host, self._started = host, time.monotonic()
        return self

    def stop(self) -> None:
        """End; requests that are being computed are answered first. A server that does not run stays as it is."""
        with self._lock:
            host, self._host = self._host, None
            if host is None:
                return
            self._draining = True
        host.stop()
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> ModelServer:
        return self.start_background()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # What requests ask for.

    def health(self) -> dict[str, Any]:
        """The answer to ``/v1/health``."""
        return {"status": "healthy", "uptime_s": time.monotonic() - self._started}

    def info(self) -> dict[str, Any]:
        """The answer to ``/v1/info``."""
        limits = {name: getattr(self.config, name) for name in ("max_batch_size", "max_body_bytes", "timeout")}
        return {**self.engine.get_info(), **limits, "input_dtype": self.config.input_dtype}

    def stats(self) -> dict[str, Any]:
        """The answer to ``/v1/stats``."""
        stats = self.engine.get_stats()
        names = ("average_time_ms", "throughput", "cache_hit_rate")
        return {**vars(stats), **{name: getattr(stats, name) for name in names}, "refused_requests": self._refused}

    def predict(self, body: Any) -> dict[str, Any]:
        """The answer to ``/v1/predict``; raises `BadRequest` with the status to send."""
        begin = time.perf_counter()
        future = self._submit(body)
        try:
            outputs = future.result(self.config.timeout)
        except FutureTimeout:
            raise self._late(future) from None
        except ASKED_WRONGLY as error:
            raise BadRequest(400, f"{type(error).__name__}: {error}") from error
        return answer_of(outputs, (time.perf_counter() - begin) * 1e3)

    async def predict_async(self, body: Any) -> dict[str, Any]:
        """The same as `predict`, without a thread that waits."""
        begin = time.perf_counter()
        future = self._submit(body)
        try:
            outputs = await asyncio.wait_for(asyncio.wrap_future(future), self.config.timeout)
        except TimeoutError:
            raise self._late(future) from None
        except ASKED_WRONGLY as error:
            raise BadRequest(400, f"{type(error).__name__}: {error}") from error
        return answer_of(outputs, (time.perf_counter() - begin) * 1e3)

    def _submit(self, body: Any) -> Future[Any]:
        inputs, part = inputs_of(body, self.config.input_dtype, self.config.max_batch_size)
        pool = self._pool
        if pool is None or not self._waiting.acquire(blocking=False):
            self._refused += 1
            raise BadRequest(503, "too many requests are waiting; try again later")
        try:
            future = pool.submit(self.engine.infer, inputs, batch_size=part)
        except RuntimeError:  # it is being closed
            self._waiting.release()
            raise BadRequest(503, "the server is stopping") from None
        future.add_done_callback(lambda _: self._waiting.release())
        return future

    def _late(self, future: Future[Any]) -> BadRequest:
        future.cancel()
        return BadRequest(504, f"no answer within timeout={self.config.timeout} s")
