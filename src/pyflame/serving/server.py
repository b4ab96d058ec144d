"""A model behind HTTP: one process, the standard library, limits on everything."""

from __future__ import annotations

import hmac
import json
import logging
import socket
import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pyflame.nn import Module
from pyflame.serving.engine import InferenceConfig, InferenceEngine
from pyflame.serving.wire import BadRequest, answer_of, inputs_of

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["ModelServer", "ServerConfig"]

# What a client that was refused may still send: so much of it, for so long, is read and thrown away.
LINGER_BYTES = 16 << 20
LINGER_SECONDS = 5.0
log = logging.getLogger("pyflame.serving")


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
        max_connections: Connections at the same time; more are refused.
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
    ``{"outputs": ..., "latency_ms": ...}``.

    Args:
        model: A module (it is put into evaluation mode), any function of tensors, or an `InferenceEngine`.
        config: The settings.

    Example:
        >>> import pyflame as pf
        >>> with pf.serving.ModelServer(pf.nn.Linear(3, 2), pf.serving.ServerConfig(port=0)) as server:
        ...     pf.serving.ModelClient(server.url).predict([[1.0, 2.0, 3.0]]).shape
        (1, 2)
    """

    def __init__(self, model: Any, config: ServerConfig | None = None) -> None:
        self.config = config or ServerConfig()
        self.engine = model if isinstance(model, InferenceEngine) else InferenceEngine(model, InferenceConfig())
        self._http: _Listener | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._waiting = threading.BoundedSemaphore(self.config.workers + self.config.max_queue)
        self._started = 0.0
        self._refused = 0

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._listener().server_address[1]

    @property
    def url(self) -> str:
        """Where clients find it."""
        scheme = "https" if self.config.ssl_cert is not None else "http"
        host = f"[{self.config.host}]" if ":" in self.config.host else self.config.host
        return f"{scheme}://{host}:{self.port}"

    def _listener(self) -> _Listener:
        if self._http is None:
            raise RuntimeError("the server is not running: start() or start_background() comes first")
        return self._http

    def _open(self) -> _Listener:
        with self._lock:
            if self._http is not None:
                raise RuntimeError(f"the server is already running at {self.url}")
            http = _Listener(self)
            if isinstance(self.engine.model, Module):
                self.engine.model.eval()
            if self.config.ssl_cert is not None:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.load_cert_chain(self.config.ssl_cert, self.config.ssl_key)
                http.socket = context.wrap_socket(http.socket, server_side=True, do_handshake_on_connect=False)
            self._pool = ThreadPoolExecutor(self.config.workers, "pyflame-serving")
            self._http, self._started = http, time.monotonic()
            return http

    def start(self) -> None:
        """Answer until `stop` is called, or the process is interrupted."""
        http = self._open()
        try:
            http.serve_forever(poll_interval=0.05)
        except KeyboardInterrupt:
            log.info("interrupted")
        finally:
            self._close(http)

    def start_background(self) -> ModelServer:
        """Answer in a thread of its own; returns the server, ready."""
        http = self._open()
        self._thread = threading.Thread(target=http.serve_forever, args=(0.05,), name="pyflame-server", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """End; requests that are being computed are answered first. A server that does not run stays as it is."""
        http = self._http
        if http is None:
            return
        http.shutdown()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._close(http)

    def _close(self, http: _Listener) -> None:
        with self._lock:
            if self._http is not http:
                return
            self._http = None
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True, cancel_futures=True)
        http.server_close()

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
        inputs, part = inputs_of(body, self.config.input_dtype, self.config.max_batch_size)
        pool = self._pool
        if pool is None or not self._waiting.acquire(blocking=False):
            self._refused += 1
            raise BadRequest(503, "too many requests are waiting; try again later")
        begin = time.perf_counter()
        try:
            future = pool.submit(self.engine.infer, inputs, batch_size=part)
        except RuntimeError:  # it is being closed
            self._waiting.release()
            raise BadRequest(503, "the server is stopping") from None
        future.add_done_callback(lambda _: self._waiting.release())
        try:
            outputs = future.result(self.config.timeout)
        except FutureTimeout:
            future.cancel()
            raise BadRequest(504, f"no answer within timeout={self.config.timeout} s") from None
        return answer_of(outputs, (time.perf_counter() - begin) * 1e3)


class _Listener(ThreadingHTTPServer):
    """Accepts connections, so many at a time."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, owner: ModelServer) -> None:
        self.owner = owner
        self._slots = threading.BoundedSemaphore(owner.config.max_connections)
        super().__init__((owner.config.host, owner.config.port), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Give a connection a thread, or refuse it."""
        if not self._slots.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread: nobody else gives the place back
            self._slots.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer all requests of one connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection broke: that is the client's affair."""
        del request
        log.debug("the connection to %s broke", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server_version = "PyFlame"
    sys_version = ""
    server: Any
    _refused = False

    def setup(self) -> None:
        """Slow clients are not waited for longer than the timeout."""
        self.request.settimeout(self.server.owner.config.timeout)
        super().setup()

    def log_message(self, format: str, *args: Any) -> None:
        """To the log, not to the terminal."""
        log.debug(format, *args)

    def do_OPTIONS(self) -> None:
        """Browsers ask before they send."""
        self._send(204, None)

    def do_GET(self) -> None:
        """Health, facts and counts."""
        owner: ModelServer = self.server.owner
        answers = {"/v1/health": owner.health, "/v1/info": owner.info, "/v1/stats": owner.stats}
        path = urlsplit(self.path).path
        if path == "/v1/predict":
            return self._refuse(405, "predictions are asked for with POST")
        if path not in answers:
            return self._refuse(404, f"there is no {path!r}; there are {', '.join(answers)} and /v1/predict")
        if path != "/v1/health" and not self._admitted():
            return None
        return self._send(200, answers[path]())

    def do_POST(self) -> None:
        """A prediction."""
        if urlsplit(self.path).path != "/v1/predict":
            return self._refuse(404, f"there is no {self.path!r} to post to; there is /v1/predict")
        if not self._admitted():
            return None
        try:
            return self._send(200, self.server.owner.predict(self._body()))
        except BadRequest as error:
            return self._refuse(error.status, str(error))
        except Exception as error:
            log.warning("the model failed: %s", error, exc_info=True)
            return self._refuse(500, f"{type(error).__name__}: {error}")

    def _body(self) -> Any:
        limit = self.server.owner.config.max_body_bytes
        if "chunked" in self.headers.get("Transfer-Encoding", "").lower():
            raise BadRequest(411, "send a Content-Length; chunked bodies are not taken")
        text = self.headers.get("Content-Length", "")
        if not text.isdigit():
            raise BadRequest(411, "a Content-Length is needed")
        length = int(text)
        if length > limit:
            raise BadRequest(413, f"the request has {length} bytes, max_body_bytes allows {limit}")
        try:
            return json.loads(self.rfile.read(length))
        except (ValueError, RecursionError) as error:
            raise BadRequest(400, f"the body is not JSON: {error}") from None

    def _admitted(self) -> bool:
        key = self.server.owner.config.api_key
        if key is None:
            return True
        given = self.headers.get("X-API-Key") or self.headers.get("Authorization", "").removeprefix("Bearer ")
        if hmac.compare_digest(given.encode(), key.encode()):
            return True
        self._refuse(401, "the API key is missing or wrong")
        return False

    def _refuse(self, status: int, message: str) -> None:
        self.close_connection = self._refused = True  # what is left of the request is not read
        self._send(status, {"error": message})

    def finish(self) -> None:
        """Whoever was refused may still be sending: a connection closed meanwhile would take the answer with it."""
        super().finish()
        if not self._refused:
            return
        end, left = time.monotonic() + LINGER_SECONDS, LINGER_BYTES
        with suppress(OSError):
            self.request.shutdown(socket.SHUT_WR)
            while left > 0 and (seconds := end - time.monotonic()) > 0:
                self.request.settimeout(seconds)
                got = len(self.request.recv(1 << 16))
                if not got:
                    return
                left -= got

    def _send(self, status: int, answer: Any) -> None:
        body = b"" if answer is None else json.dumps(answer).encode()
        self.send_response(status)
        if answer is not None:
            self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self._allow_origin()
        self.end_headers()
        self.wfile.write(body)

    def _allow_origin(self) -> None:
        config: ServerConfig = self.server.owner.config
        origin = self.headers.get("Origin")
        if not config.enable_cors or origin is None:
            return
        if "*" in config.cors_origins or origin in config.cors_origins:
            self.send_header("Access-Control-Allow-Origin", "*" if "*" in config.cors_origins else origin)
            self.send_header("Access-Control-Allow-Methods", "GET, POST, OPTIONS")
            self.send_header("Access-Control-Allow-Headers", "Content-Type, X-API-Key, Authorization")
