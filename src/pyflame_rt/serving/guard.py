"""What every request passes before an application sees it: ids, logs, keys, rates, sizes, origins (ASGI middleware)."""

from __future__ import annotations

import asyncio
import hmac
import itertools
import logging
import os
import time
from typing import TYPE_CHECKING, Any

import orjson

from pyflame_rt.serving.answers import PIECE, Answers
from pyflame_rt.serving.bodies import HEADERS
from pyflame_rt.serving.errors import RequestError, as_request_error
from pyflame_rt.serving.tracing import Spans, note_failure, note_status

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from pyflame_rt.serving.config import RateLimitConfig

    Scope = dict[str, Any]
    Receive = Callable[[], Awaitable[dict[str, Any]]]
    Send = Callable[[dict[str, Any]], Awaitable[None]]
    App = Callable[[Scope, Receive, Send], Awaitable[None]]

__all__ = ["Guard", "RateLimiter", "error_body"]

log = logging.getLogger("pyflame_rt.serving")
access = logging.getLogger("pyflame_rt.serving.access")
MAX_BUCKETS = 4096
_PROCESS = os.urandom(6).hex()  # requests without an id are numbered
_numbers = itertools.count(1)
_TOKENS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:/+=")

_ONCE = (
    *(b"host", b"content-length", b"transfer-encoding", b"content-type", b"content-encoding"),
    *(b"authorization", b"x-api-key", b"x-request-id", b"inference-header-content-length"),
)


class RateLimiter:
    """Token buckets by client.

    Args:
        config: rate and burst.

    Example:
        >>> from pyflame_rt.serving import RateLimitConfig
        >>> limiter = RateLimiter(RateLimitConfig(enabled=True, requests_per_second=1, burst_size=2))
        >>> [limiter.wait("a", now=0.0) for _ in range(3)], limiter.wait("a", now=1.0)
        ([0.0, 0.0, 1.0], 0.0)
    """

    def __init__(self, config: RateLimitConfig) -> None:
        self._rate, self._burst = config.requests_per_second, float(config.burst_size)
        self._buckets: dict[str, tuple[float, float]] = {}

    def wait(self, client: str, now: float | None = None) -> float:
        """Take a token: 0.0, or the seconds until there is one."""
        now = time.monotonic() if now is None else now
        tokens, last = self._buckets.pop(client, (self._burst, now))
        tokens = min(self._burst, tokens + (now - last) * self._rate)
        allowed = tokens >= 1.0
        self._buckets[client] = (tokens - 1.0 if allowed else tokens, now)
        if len(self._buckets) > MAX_BUCKETS:
            del self._buckets[next(iter(self._buckets))]
        return 0.0 if allowed else (1.0 - tokens) / self._rate


def error_body(error: RequestError, request_id: str = "", *, nested: bool = False) -> bytes:
    """The documented form of an error; ``nested`` has ``error`` as an object with a message."""
    text = str(error)
    body: dict[str, Any] = {"success": False, "error_code": error.code, "error_message": text, "error": text}
    if nested:
        body["error"] = {"message": text, "type": error.code, "code": error.status}
    if request_id:
        body["request_id"] = request_id
    return orjson.dumps(body)


class Guard:
    """Checks every request at its header, before a byte of the body is read.

    Args:
        app: what answers.
        api_keys: keys, one of which must be sent; empty for none.
        open_paths: what is answered without a key, for probes.
        rate_limit: how many requests a client may make; None for any number.
        max_body: bytes of a body.
        size_name: what that limit is called where it is set.
        max_pending: bytes of all bodies under way, and as many of answers that were not taken yet.
        origins: pages of these may ask; None for none.
        draining: asked whether connections should end.
    """

    def __init__(
        self,
        app: App,
        *,
        api_keys: Sequence[str] = (),
        open_paths: frozenset[str] = frozenset(),
        rate_limit: RateLimitConfig | None = None,
        max_body: int = 100 << 20,
        size_name: str = "max_request_size",
        max_pending: int = 0,
        origins: Sequence[str] | None = None,
        draining: Callable[[], bool] = bool,
    ) -> None:
        self._app = app
        self._keys = [key.encode() for key in api_keys]
        self._open = open_paths
        self._limiter = None if rate_limit is None or not rate_limit.enabled else RateLimiter(rate_limit)
        self._max_body, self._size_name = max_body, size_name
        self._max_pending = max_pending or 4 * max_body
        self.pending = 0  # bytes of the bodies under way
        self.answers = Answers(self._max_pending)
        self._origins = None if origins is None else frozenset(origins)
        self._draining = draining
        self._spans = Spans()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1000})
            return
        headers = dict(scope["headers"])  # names are in lower case already
        number = _request_id(headers.get(b"x-request-id", b""))
        scope["request_id"], scope[HEADERS] = number, headers
        extra = [(b"x-request-id", number.encode())]
        if self._origins is not None:
            extra += self._allowed(headers.get(b"origin", b""))
        if self._draining():
            extra.append((b"connection", b"close"))
        reply = _Reply(send, extra, self.answers)
        begun = time.perf_counter()
        with self._spans.request(scope, headers) as span:
            try:
                await self._admit(scope, headers, receive, reply)
            except RequestError as error:
                await reply.refuse(error, number)
            except Exception as error:
                log.exception("request %s failed", number)
                note_failure(span, error)
                await reply.refuse(as_request_error(error), number)
            finally:
                note_status(span, reply.status)
                if access.isEnabledFor(logging.INFO):
                    _note(scope, number, reply.status, time.perf_counter() - begun)

    async def _admit(self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, reply: _Reply) -> None:
        _check_framing(scope, headers)
        if scope["method"] == "OPTIONS" and self._origins is not None and b"origin" in headers:
            await reply.finish(204, b"")
            return
        if scope["path"] not in self._open:
            self._check_key(scope, headers)
            self._check_rate(scope)
        held = _Held(self, receive)
        length = self._length(headers)
        if length or b"transfer-encoding" not in headers:
            held.add(length)
        else:  # nobody says how long it will be
            receive = held.receive
        reply.begun = held.release
        try:
            await self._app(scope, receive, reply.send)
        finally:
            held.release()

    def hold(self, length: int) -> None:
        """Count bytes of a body that is kept in memory; one body alone may always be."""
        if self.pending and self.pending + length > self._max_pending:
            raise RequestError(
                503, "QueueFull", "too many bodies are being read; try again later", {"retry-after": "1"}
            )
        self.pending += length

    def _check_key(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        if not self._keys:
            return
        given = headers.get(b"x-api-key") or headers.get(b"authorization", b"").removeprefix(b"Bearer ")
        found = False
        for key in self._keys:  # all of them, so that time tells nothing
            found |= hmac.compare_digest(given, key)
        if not found:
            raise RequestError(401, "Unauthorized", "the API key is missing or wrong", {"www-authenticate": "Bearer"})
        scope["api_key"] = given.decode("latin-1")

    def _check_rate(self, scope: Scope) -> None:
        if self._limiter is None:
            return
        client = scope.get("client")
        wait = self._limiter.wait(scope.get("api_key") or (client[0] if client else ""))
        if wait:
            raise RequestError(
                429, "RateLimited", "too many requests; try again later", {"retry-after": str(max(1, round(wait)))}
            )

    def _length(self, headers: dict[bytes, bytes]) -> int:
        text = headers.get(b"content-length")
        if not text:
            return 0
        if not text.isdigit():
            raise RequestError(400, "InvalidRequest", "Content-Length is no number")
        length = int(text) if len(text) < 20 else 1 << 63
        if length > self._max_body:
            raise RequestError(
                413, "RequestTooLarge", f"the body has {length} bytes, {self._size_name} allows {self._max_body}"
            )
        return length

    def _allowed(self, origin: bytes) -> list[tuple[bytes, bytes]]:
        if self._origins is None or not origin:
            return []
        anyone = "*" in self._origins
        if not anyone and origin.decode("latin-1") not in self._origins:
            return []
        return [
            (b"access-control-allow-origin", b"*" if anyone else origin),
            (b"access-control-allow-methods", b"GET, POST, OPTIONS"),
            (b"access-control-allow-headers", b"Content-Type, X-API-Key, Authorization, X-Request-Id"),
            (b"vary", b"Origin"),
        ]


def _check_framing(scope: Scope, headers: dict[bytes, bytes]) -> None:
    """Refuse what a proxy before us may have read otherwise: a header twice of which there is one, or no host."""
    if len(headers) != len(scope["headers"]):
        names = [name for name, _ in scope["headers"]]
        for name in _ONCE:
            if names.count(name) > 1:
                raise RequestError(400, "InvalidRequest", f"header {name.decode()!r} is given twice")
    if b"host" not in headers and scope.get("http_version") == "1.1":
        raise RequestError(400, "InvalidRequest", "header 'host' is missing")


class _Held:
    """The bytes of a body, counted until its answer begins."""

    __slots__ = ("_guard", "_length", "_receive")

    def __init__(self, guard: Guard, receive: Receive) -> None:
        self._guard, self._receive = guard, receive
        self._length = 0

    def add(self, length: int) -> None:
        self._guard.hold(length)
        self._length += length

    def release(self) -> None:
        self._guard.pending -= self._length
        self._length = 0

    async def receive(self) -> dict[str, Any]:
        """The next piece, counted as it comes."""
        message = await self._receive()
        self.add(len(message.get("body", b"")))
        return message


class _Reply:
    """The way back: adds headers, notes the status, and knows whether an answer was begun."""

    def __init__(self, send: Send, extra: list[tuple[bytes, bytes]], answers: Answers) -> None:
        self._send, self._extra, self._answers = send, extra, answers
        self.begun: Callable[[], None] | None = None  # called when there is an answer
        self.status = 0

    async def send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            headers = message.get("headers", ())
            if self.begun is not None:
                self.begun()
            for name, value in headers:
                if name == b"content-length" and int(value) > PIECE:
                    self._answers.make_room(int(value), asyncio.get_running_loop().time())
            self.status = message["status"]
            message["headers"] = [*headers, *self._extra]
        elif len(message.get("body", b"")) > PIECE:
            await self._answers.send(message, self._send)
            return
        await self._send(message)

    async def finish(self, status: int, body: bytes, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
        length = [(b"content-length", str(len(body)).encode())] if status != 204 else []
        await self.send({"type": "http.response.start", "status": status, "headers": [*headers, *length]})
        await self._send({"type": "http.response.body", "body": body})

    async def refuse(self, error: RequestError, number: str) -> None:
        if self.status:  # an answer was begun: it can only be cut off
            log.warning("the answer to request %s was cut off: %s", number, error)
            return
        more = [(name.encode(), value.encode()) for name, value in error.headers.items()]
        await self.finish(error.status, error_body(error, number), [(b"content-type", b"application/json"), *more])


def _request_id(given: bytes) -> str:
    if given and len(given) <= 128 and _TOKENS.issuperset(text := given.decode("latin-1")):
        return text
    return f"{_PROCESS}-{next(_numbers):x}"


def _note(scope: Scope, number: str, status: int, seconds: float) -> None:
    client = scope.get("client")
    fields = {
        "request_id": number,
        "method": scope["method"],
        "path": scope["path"],
        "status": status,
        "ms": round(seconds * 1e3, 3),
        "client": client[0] if client else "",
    }
    access.info("%s %s %s", scope["method"], scope["path"], status, extra={"fields": fields})
