"""The server: a registry, a service, an application and a host, started and stopped together."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any

from pyflame_rt.graph.arguments import expect
from pyflame_rt.graph.errors import PyFlameRTError
from pyflame_rt.serving.app import Application
from pyflame_rt.serving.config import HTTPConfig, ModelConfig, ServerConfig
from pyflame_rt.serving.grpc_server import GRPCServer
from pyflame_rt.serving.hosting import Host, wait_for_signal
from pyflame_rt.serving.logs import configure_logs
from pyflame_rt.serving.metrics import CONTENT_TYPE, MetricsRegistry
from pyflame_rt.serving.registry import ModelRegistry
from pyflame_rt.serving.service import InferenceService

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from types import TracebackType

    from pyflame_rt.serving.guard import Guard
    from pyflame_rt.serving.instance import ModelInstance

__all__ = ["ModelServer", "ModelServerBuilder"]

log = logging.getLogger("pyflame_rt.serving")


class ModelServer:
    """Serves models over HTTP.

    ``start`` returns when requests are answered; ``wait`` returns when the server ended, by ``stop`` or by a signal.

    Args:
        config: what to serve, and how.
        defaults: settings of models of ``model_dir``.

    Example:
        >>> import numpy as np, pyflame_rt
        >>> from pyflame_rt.serving import HTTPConfig, ModelClient, ServerConfig
        >>> g = pyflame_rt.Graph("g")
        >>> _ = g.add_input("x", ["N", 2]), g.add_node("n", "Neg", ["x"], ["y"]), g.add_output("y", ["N", 2])
        >>> server = ModelServer(ServerConfig(http=HTTPConfig(host="127.0.0.1", port=0)))
        >>> _ = server.load_model("negate", g)
        >>> with server, ModelClient(server.url) as client:
        ...     client.infer(model="negate", inputs={"x": np.ones((1, 2), np.float32)}).outputs["y"]
        array([[-1., -1.]], dtype=float32)
    """

    def __init__(self, config: ServerConfig | None = None, *, defaults: ModelConfig | None = None) -> None:
        self.config = ServerConfig() if config is None else config
        expect(self.config, ServerConfig, "the config of a ModelServer")
        self._registry = ModelRegistry(self.config.max_memory)
        if defaults is not None:
            self._registry.defaults = defaults
        self.service = InferenceService(self._registry, self.config.http.request_timeout_ms)
        self._lock = threading.Lock()
        self._ready: list[Callable[[], Any]] = []
        self._error: list[Callable[[BaseException], Any]] = []
        self._parts: list[Any] = []  # what was started, in order
        self._host: Host | None = None
        self._rpc: GRPCServer | None = None
        self._ended = threading.Event()
        self._began = 0.0

    # ------------------------------------------------------------------ life

    def start(self, *, sockets: list[socket.socket] | None = None) -> None:
        """Load the models, then listen; returns when requests are answered.

        Args:
            sockets: listening sockets to use, for one that several processes share.

        Raises:
            PyFlameRTError: The settings are not valid, a configured model cannot be loaded, or the port is taken.
        """
        config = self.config.checked()
        with self._lock:
            if self._host is not None:
                raise PyFlameRTError(f"the server is already running at {self.url}")
            configure_logs(config.log_level)
            self._ended.clear()
            self.service.draining = False
            self._host = host = self._make_host(sockets)
        try:
            self._load()
            host.start()
            self._start_others()
        except BaseException:
            self._close()
            raise
        self._began = time.monotonic()
        log.info("serving at %s", self.url, extra={"fields": {"url": self.url}})
        with self._lock:
            self.service.started = True
            waiting, self._ready = self._ready, []
        for callback in waiting:
            callback()

    def application(self) -> Guard:
        """Load the models, and give the ASGI application, for a host of one's own, such as Ray Serve.

        Address, TLS and connections are the host's; :meth:`close` ends it.

        Raises:
            PyFlameRTError: The settings are not valid, or a configured model cannot be loaded.

        Example:
            >>> ModelServer(ServerConfig()).application()  # doctest: +ELLIPSIS
            <pyflame_rt.serving.guard.Guard object at ...>
        """
        application = Application(self.service, self.config.checked())
        self._load()
        self._parts.append(application)
        self._began, self.service.started = time.monotonic(), True
        return application.app()

    def close(self) -> None:
        """End at once what :meth:`application` began."""
        self._close()

    def _make_host(self, sockets: list[socket.socket] | None) -> Host:
        application = Application(self.service, self.config)
        self._parts.append(application)
        return Host(application.app(), self.config.http, self.config.tls, sockets=sockets, failed=self._failed)

    def _load(self) -> None:
        config = self.config
        self.service.configured = {(model.name, model.version) for model in config.models}
        for model in config.models:
            if self._registry.get(model.name, model.version) is None:
                self._registry.register_model(model)
        if config.model_dir:
            self._registry.load_from_directory(config.model_dir)
        if config.hot_reload:
            self._registry.enable_hot_reload(True)
        MetricsRegistry.instance().before_export(self, self.service.update_gauges)

    def _start_others(self) -> None:
        if self.config.grpc.enabled:
            self._rpc = GRPCServer(self.service, self.config)
            self._parts.append(self._rpc)
            self._rpc.start()
        if self.config.enable_metrics and self.config.metrics_port:
            host = Host(_metrics_app, HTTPConfig(host=self.config.http.host, port=self.config.metrics_port))
            try:
                host.start()
            except PyFlameRTError as error:
                log.warning("metrics are only on port %s: %s", self.http_port(), error)
            else:
                self._parts.append(_Stopping(host))

    def stop(self) -> None:
        """Take no more requests, answer those that came, and end. A server that does not run stays as it is."""
        with self._lock:
            host = self._host
        if host is None:
            return
        if not self.service.draining:
            self.service.draining = True
            time.sleep(self.config.http.drain_ms / 1e3)
        host.stop()
        self._close()

    def _close(self) -> None:
        with self._lock:
            self._host = self._rpc = None
            parts, self._parts = self._parts, []
        for part in reversed(parts):
            part.close()
        MetricsRegistry.instance().before_export(self, None)
        self._registry.enable_hot_reload(False)
        for name, version in [(m.name, m.version) for m in self.config.models]:
            if self._registry.get(name, version) is not None:
                self._registry.unload(name, version)
        self.service.started = False
        self._ended.set()

    def wait(self) -> None:
        """Wait until the server ended. In the main thread, SIGTERM and SIGINT end it, too."""
        if self._host is None:
            return
        if wait_for_signal(self._ended):
            self.stop()

    def is_running(self) -> bool:
        """Whether requests are answered."""
        return self._host is not None and self.service.started

    def __enter__(self) -> ModelServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._registry.unload_all()

    def on_ready(self, callback: Callable[[], Any]) -> None:
        """Have ``callback()`` called once requests are answered; at once when they are already."""
        with self._lock:
            if not self.is_running():
                self._ready.append(callback)
                return
        callback()

    def on_error(self, callback: Callable[[BaseException], Any]) -> None:
        """Have ``callback(error)`` called when the server ends by an error."""
        self._error.append(callback)

    def _failed(self, error: BaseException) -> None:
        for callback in list(self._error):
            callback(error)
        self._ended.set()

    # ------------------------------------------------------------------ models

    def registry(self) -> ModelRegistry:
        """The models."""
        return self._registry

    def load_model(
        self, name: str, model: Any, version: str = "1", *, example: Any = None, config: ModelConfig | None = None
    ) -> ModelInstance:
        """Serve a model: a path, bytes, a Graph, a session, or a PyFlame module with an example of its input."""
        return self._registry.add_model(name, model, version, example=example, config=config)

    def unload_model(self, name: str, version: str | None = None) -> None:
        """Let a model go."""
        self._registry.unload(name, version)

    # ------------------------------------------------------------------ facts

    def http_port(self) -> int:
        """The port it listens on; 0 before it was started."""
        return 0 if self._host is None else self._host.port

    def grpc_port(self) -> int:
        """The port it speaks gRPC on; 0 where it does not."""
        return 0 if self._rpc is None else self._rpc.port

    @property
    def url(self) -> str:
        """Where clients on this machine find it."""
        host = self.config.http.host
        shown = "127.0.0.1" if host in ("0.0.0.0", "::", "") else f"[{host}]" if ":" in host else host
        return f"{'https' if self.config.tls.enabled else 'http'}://{shown}:{self.http_port()}"

    def get_stats(self) -> dict[str, Any]:
        """What it did so far."""
        return {
            "uptime_s": time.monotonic() - self._began if self.is_running() else 0.0,
            "active_requests": self.service.active,
            "memory_used": self._registry.memory_used(),
            "models": self._registry.get_stats(),
        }


class _Stopping:
    """A host among the parts of a server."""

    def __init__(self, host: Host) -> None:
        self.close = host.stop


async def _metrics_app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Answers everything with metrics, for the second port."""
    del receive
    if scope["type"] != "http":
        return
    found = scope["path"] == "/metrics"
    body = MetricsRegistry.instance().export_prometheus().encode() if found else b""
    headers = [(b"content-type", CONTENT_TYPE.encode()), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200 if found else 404, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class ModelServerBuilder:
    """A server in one expression.

    Example:
        >>> server = ModelServerBuilder().host("127.0.0.1").port(0).workers(2).enable_metrics().build()
        >>> server.config.http.num_workers
        2
    """

    def __init__(self) -> None:
        self._config = ServerConfig()
        self._batching: tuple[int, int] | None = None

    def host(self, host: str) -> ModelServerBuilder:
        """The address to listen on."""
        self._config.http.host = host
        return self

    def port(self, port: int) -> ModelServerBuilder:
        """The port to listen on."""
        self._config.http.port = port
        return self

    def workers(self, count: int) -> ModelServerBuilder:
        """Threads for the bodies of requests."""
        self._config.http.num_workers = count
        return self

    def enable_metrics(self, on: bool = True) -> ModelServerBuilder:
        """Answer ``/metrics``."""
        self._config.enable_metrics = on
        return self

    def model_dir(self, folder: str) -> ModelServerBuilder:
        """A folder of models."""
        self._config.model_dir = folder
        return self

    def api_key(self, key: str) -> ModelServerBuilder:
        """Ask clients for a key; called again, for one of several."""
        self._config.api_keys.append(key)
        return self

    def add_model(self, name: str, path: str, version: str = "1") -> ModelServerBuilder:
        """Serve a model file."""
        self._config.models.append(ModelConfig(name=name, model_path=str(path), version=version))
        return self

    def enable_batching(self, max_batch_size: int = 32, timeout_us: int = 5000) -> ModelServerBuilder:
        """Batch the requests of all models, also of those added later."""
        self._batching = (max_batch_size, timeout_us)
        return self

    def build(self) -> ModelServer:
        """The server, not started.

        Raises:
            InputError: The settings are not valid.
        """
        defaults = ModelConfig()
        for model in (*self._config.models, defaults):
            if self._batching is not None:
                model.enable_batching, (model.max_batch_size, model.batch_timeout_us) = True, self._batching
        return ModelServer(self._config.checked(), defaults=defaults)
