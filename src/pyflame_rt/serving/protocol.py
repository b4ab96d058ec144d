"""HTTP connections with limits: time for headers, their size, a number of connections, and a civil end for the refused.

uvicorn parses with llhttp (httptools) and has no such limits of its own. A connection that has not sent its request may
be ended for another one, so that clients who only hold connections shut nobody out. One that takes nothing of what was
written to it ends after a while.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from pyflame_rt.serving.bodies import WHOLE

if TYPE_CHECKING:
    import asyncio

    from pyflame_rt.serving.config import HTTPConfig

__all__ = ["LimitedProtocol", "limited"]

MAX_HEADER = 64 << 10
LINGER_BYTES = 16 << 20  # what a client that was answered early may still send,
LINGER_SECONDS = 5.0  # and for how long
SHORT_BODY = 64 << 10  # one that was answered early is read to its end, and its connection serves on
GRACE_SECONDS = 1.0  # for a request on a connection that was made when the server was ending

_IDLE, _HEADER, _BODY = "idle", "header", "body"


class _OnePacket:
    """Keeps the head of an answer until its body begins, so that both leave together: one system call, one packet."""

    __slots__ = ("_head", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head: bytes | None = b""

    def write(self, data: bytes) -> None:
        """Send, but not the head alone."""
        if self._head:
            self._transport.writelines((self._head, data))
            self._head = None
        elif self._head is None or data.startswith(b"HTTP/1.1 100"):
            self._transport.write(data)
        else:
            self._head = data

    def close(self) -> None:
        """Close the connection; an answer that is cut off has its head."""
        if self._head:
            self._transport.write(self._head)
        self._transport.close()

    def is_closing(self) -> bool:
        """Whether it is."""
        return self._transport.is_closing()


class LimitedProtocol(HttpToolsProtocol):
    """One connection."""

    header_seconds = 10.0
    send_seconds = 60.0
    max_connections = 1024
    waiting: dict[LimitedProtocol, None]  # connections without a whole request, the oldest first

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._header_bytes = 0
        self._stage = _IDLE
        self._timer: asyncio.TimerHandle | None = None
        self._ending = False
        self._left: int | None = None  # bytes that may still be thrown away
        self._answered_early = False  # what comes is the rest of a request that has its answer
        self._watch: asyncio.TimerHandle | None = None  # whether what was written is taken
        self._untaken = 0  # bytes when that was looked at, -1 when some were taken since

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Take the connection, and end the oldest idle one where there are too many."""
        super().connection_made(transport)
        self.waiting[self] = None
        self._timer = self.loop.call_later(self.header_seconds, self._too_late)
        if len(self.connections) > self.max_connections:
            oldest = next(iter(self.waiting))
            oldest._leave()
            oldest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._leave()
        if self._watch is not None:
            self._watch.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The client does not take as quickly as it is answered."""
        super().pause_writing()
        self._watch_taking()

    def resume_writing(self) -> None:
        """It has taken."""
        super().resume_writing()
        self._untaken = -1

    def _watch_taking(self) -> None:
        """Look after a while whether anything was taken: closing waits for that as long as the client likes."""
        if self._watch is None:
            self._untaken = self.transport.get_write_buffer_size()
            self._watch = self.loop.call_later(self.send_seconds, self._look)

    def _look(self) -> None:
        self._watch = None
        left = self.transport.get_write_buffer_size()
        if left and 0 <= self._untaken <= left:
            self.transport.abort()
        elif left:
            self._watch_taking()

    def _leave(self) -> None:
        self.waiting.pop(self, None)
        self._stop_timer()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def data_received(self, data: bytes) -> None:
        """Read on, or throw away."""
        if self._left is not None:
            self._left -= len(data)
            if self._left < 0:
                self.transport.abort()
            return
        before = self._stage
        super().data_received(data)
        if self._stage is not _HEADER or before is _BODY or self.transport.is_closing():
            return
        self._header_bytes += len(data)
        if self._header_bytes > MAX_HEADER:
            self._refuse(431)
        elif self._timer is None:
            self._timer = self.loop.call_later(self.header_seconds, self._too_late)

    def on_message_begin(self) -> None:
        """A request begins."""
        if self._stage is _IDLE and self._answered_early:
            self._answered_early = False
            self._stop_timer()
            self._timer = self.loop.call_later(self.header_seconds, self._too_late)
        super().on_message_begin()
        self._stage = _HEADER
        self._header_bytes = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer after the body: these are limited, too."""
        if self._stage is _BODY:
            self._header_bytes += len(name) + len(value)
            if self._header_bytes > MAX_HEADER:
                self.transport.abort()
            return
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The application begins."""
        self._stage = _BODY
        self._header_bytes = 0
        self._stop_timer()
        before = self.cycle
        super().on_headers_complete()
        if self.cycle is not before and self.scope["method"] != "HEAD":  # which has no body
            self.cycle.transport = _OnePacket(self.transport)  # type: ignore[assignment] - what a cycle uses of it
        if self._ending:
            self.cycle.keep_alive = False

    def on_message_complete(self) -> None:
        """The request is whole: the connection is the application's, or idle where it was answered before."""
        self._stage = _IDLE
        if self._answered_early:
            self._stop_timer()
            self._timer = self.loop.call_later(self.timeout_keep_alive, self._too_late)
            return
        self.waiting.pop(self, None)
        self.scope[WHOLE] = True  # type: ignore[typeddict-unknown-key] - ours
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """The connection is idle; whoever is still sending what was refused is heard out."""
        super().on_response_complete()
        if self.transport.get_write_buffer_size():
            self._untaken = -1  # it is another answer than the one before
            self._watch_taking()
        if self.transport.is_closing():
            return
        self.waiting[self] = None
        if self.cycle.response_complete and self.cycle.more_body:
            if self._rest_is_short():
                self._answered_early = True
                self._timer = self.loop.call_later(LINGER_SECONDS, self.transport.close)
            else:
                self._linger()

    def _rest_is_short(self) -> bool:
        """Whether what is still to come of a request is little, and will come: its client thinks it may go on."""
        if self._ending or self.expect_100_continue:
            return False
        lengths = [value for name, value in self.headers if name == b"content-length"]
        return len(lengths) == 1 and len(lengths[0]) < 9 and int(lengths[0]) <= SHORT_BODY

    def shutdown(self) -> None:
        """The server ends: an idle connection goes at once, without waiting for a client to say goodbye (TLS)."""
        self._ending = True
        idle = self.cycle is None or self.cycle.response_complete
        if self._stage is _HEADER or self.cycle is None:  # a request is coming
            self._stop_timer()
            self._timer = self.loop.call_later(GRACE_SECONDS, self._too_late)
        elif idle and self.scheme == "https" and not self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            super().shutdown()

    def _linger(self) -> None:
        """Closing now would take the answer from a client that is still sending."""
        self._left = LINGER_BYTES
        self._unset_keepalive_if_required()
        self._timer = self.loop.call_later(LINGER_SECONDS, self.transport.close)
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def _too_late(self) -> None:
        self._timer = None
        if self._stage is _HEADER:
            self._refuse(408)
        else:
            self.transport.close()

    def _refuse(self, status: int) -> None:
        head = STATUS_LINE[status] + b"content-length: 0\r\nconnection: close\r\n\r\n"
        self.transport.write(head)
        self.transport.close()


def limited(http: HTTPConfig) -> type[LimitedProtocol]:
    """The class of a server's connections."""
    members = {
        "header_seconds": http.header_timeout_ms / 1e3,
        "send_seconds": http.send_timeout_ms / 1e3,
        "max_connections": http.max_connections,
        "waiting": {},
        "__doc__": "One connection of one server.",
    }
    return type("ServerProtocol", (LimitedProtocol,), members)
