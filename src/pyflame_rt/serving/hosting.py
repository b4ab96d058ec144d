"""An ASGI application on a socket, in a thread with an event loop of its own (uvicorn, uvloop where there is one)."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import ssl
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import uvicorn

from pyflame_rt.graph.errors import BackendError, InputError
from pyflame_rt.serving.protocol import limited

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from pyflame_rt.serving.config import HTTPConfig, TLSConfig

__all__ = ["Host", "wait_for_signal"]

log = logging.getLogger("pyflame_rt.serving")
BACKLOG = 2048
START_SECONDS = 30.0
# The system would take megabytes that a slow client has not: then nobody could tell it from one that takes nothing.
UNSENT: int | None = getattr(socket, "TCP_NOTSENT_LOWAT", None)
UNSENT_BYTES = 256 << 10


def new_loop(handshake_seconds: float) -> asyncio.AbstractEventLoop:
    """The quickest event loop there is, whose servers wait so long for TLS to be agreed on (uvicorn says nothing)."""
    try:
        import uvloop

        base: Any = uvloop.Loop
    except ModuleNotFoundError:  # not made for this platform
        base = asyncio.SelectorEventLoop

    class _Loop(base):
        async def create_server(self, *args: Any, ssl: Any = None, **settings: Any) -> Any:
            if ssl is not None:
                settings["ssl_handshake_timeout"] = handshake_seconds
            return await super().create_server(*args, ssl=ssl, **settings)

    return _Loop()


def bind(host: str, port: int) -> socket.socket:
    """A listening socket.

    Raises:
        InputError: The address cannot be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if UNSENT is not None:
            found.setsockopt(socket.IPPROTO_TCP, UNSENT, UNSENT_BYTES)
        found.bind((host, port))
        found.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        found.close()
        raise InputError(f"cannot listen on {host}:{port}: {error}") from error
    return found


class _Server(uvicorn.Server):
    """Tells when it listens."""

    def __init__(self, config: uvicorn.Config, ready: threading.Event) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say so."""
        await super().startup(sockets)
        self._ready.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End; connections that the kernel has made already are taken first, for closing would reset them."""
        listening = [socket.socket(fileno=os.dup(one.fileno())) for one in sockets or ()]
        for server in self.servers:
            server.close()
        made = []
        for one in listening:
            made += _accepted(one)
            one.close()
        loop = asyncio.get_running_loop()
        for connection in made:
            await loop.connect_accepted_socket(self._protocol, connection, ssl=self.config.ssl)
        await super().shutdown(sockets)

    def _protocol(self) -> asyncio.Protocol:
        make: Any = self.config.http_protocol_class
        return make(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)


def _accepted(listening: socket.socket) -> list[socket.socket]:
    listening.setblocking(False)
    found = []
    try:
        while True:
            found.append(listening.accept()[0])
    except OSError:  # there are no more
        return found


class Host:
    """Runs an application until it is stopped.

    Args:
        app: the ASGI application.
        http: address, times and sizes.
        tls: certificates; None for none.
        sockets: listening sockets to use; none binds the address of ``http``.
        failed: called with the exception that ended the loop, where one did.
    """

    def __init__(
        self,
        app: Any,
        http: HTTPConfig,
        tls: TLSConfig | None = None,
        *,
        sockets: list[socket.socket] | None = None,
        failed: Callable[[BaseException], None] | None = None,
    ) -> None:
        self._app, self._http, self._tls, self._failed = app, http, tls, failed
        self._sockets = sockets
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self.ended = threading.Event()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.port = 0

    def start(self) -> None:
        """Listen; returns when requests are taken.

        Raises:
            InputError: The address or a certificate cannot be used.
        """
        config = self._config()
        sockets = self._sockets or [bind(self._http.host, self._http.port)]
        self.port = sockets[0].getsockname()[1]
        try:
            config.load()
        except (OSError, ssl.SSLError, ValueError) as error:
            for one in sockets:
                one.close()
            raise InputError(f"the certificate cannot be used: {error}") from error
        self._ready = ready = threading.Event()
        self._server = _Server(config, ready)
        self._thread = threading.Thread(target=self._run, args=(sockets,), name="pyflame-rt-http", daemon=True)
        self._thread.start()
        if not ready.wait(START_SECONDS) or self.ended.is_set():
            raise BackendError("the HTTP server did not start; the log says why")

    def _config(self) -> uvicorn.Config:
        http, tls = self._http, self._tls
        secure: dict[str, Any] = {}
        if tls is not None and tls.enabled:
            secure = {"ssl_certfile": tls.cert_path, "ssl_keyfile": tls.key_path}
            if tls.ca_path:
                secure |= {"ssl_ca_certs": tls.ca_path, "ssl_cert_reqs": ssl.CERT_REQUIRED}
        return uvicorn.Config(
            self._app,
            http=limited(http),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=max(http.keep_alive_timeout_ms, 1) / 1e3,  # type: ignore[arg-type] - any number of seconds
            timeout_graceful_shutdown=max(http.request_timeout_ms // 1000, 1),
            backlog=BACKLOG,
            **secure,
        )

    def _run(self, sockets: list[socket.socket]) -> None:
        server = self._server
        assert server is not None
        try:
            with asyncio.Runner(loop_factory=partial(new_loop, self._http.header_timeout_ms / 1e3)) as runner:
                self.loop = runner.get_loop()
                runner.run(server.serve(sockets=sockets))
        except Exception as error:
            log.exception("the HTTP server ended")
            if self._failed is not None:
                self._failed(error)
        finally:
            for one in sockets:
                one.close()
            self.ended.set()
            self._ready.set()

    def stop(self) -> None:
        """Answer what was asked, and end."""
        if self._server is not None:
            self._server.should_exit = True
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()


def wait_for_signal(ended: threading.Event) -> bool:
    """Wait for the end; in the main thread also for SIGTERM and SIGINT: whether one came."""
    if threading.current_thread() is not threading.main_thread():
        ended.wait()
        return False
    came = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        del number, frame
        came.set()

    kinds = [kind for kind in (signal.SIGTERM, signal.SIGINT) if signal.getsignal(kind) is not signal.SIG_IGN]
    before = {kind: signal.signal(kind, end) for kind in kinds}
    try:
        while not came.is_set() and not ended.wait(0.1):
            pass
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
    return came.is_set()
