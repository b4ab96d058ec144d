"""JSON over HTTP: what every application of ours shares (ASGI, with Starlette's requests and responses)."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from pyflame_rt.graph.errors import PyFlameRTError
from pyflame_rt.serving.bodies import read_body
from pyflame_rt.serving.errors import RequestError, as_request_error
from pyflame_rt.serving.guard import Guard, error_body
from pyflame_rt.serving.paths import Paths, Route
from pyflame_rt.serving.requests import parse_json

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from pyflame_rt.serving.config import HTTPConfig, RateLimitConfig
    from pyflame_rt.serving.guard import Receive, Scope, Send

    Handler = Callable[[Request], "Awaitable[Response | Plain]"]

__all__ = ["JSONApp", "Plain"]

NESTED = ("/v1/completions", "/v1/chat/", "/v1/embeddings")  # OpenAI's clients look for an object
INLINE_BYTES = 64 << 10  # longer bodies are read and written by other threads
JSON = (b"content-type", b"application/json")


class Plain:
    """An answer whose headers are written already: what the routes that must be quick return.

    Args:
        body: the bytes.
        headers: besides its length.
    """

    __slots__ = ("_body", "_headers")

    def __init__(self, body: bytes, *headers: tuple[bytes, bytes]) -> None:
        self._body, self._headers = body, headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        del scope, receive
        headers = [(b"content-length", b"%d" % len(self._body)), *self._headers]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": self._body})


class JSONApp:
    """Routes, bodies within limits, and errors as JSON.

    Args:
        http: limits.
        size_name: what the limit of a body is called where it is set.
    """

    def __init__(self, http: HTTPConfig, *, size_name: str = "max_request_size") -> None:
        self.http = http
        self._size_name = size_name
        self._threads = ThreadPoolExecutor(http.num_workers, "pyflame-rt-body")
        self._paths = Paths()

    def add(self, method: str, path: str, handler: Handler) -> None:
        """Answer requests to a path."""
        self._paths.add(method, path, handler)

    def routes(self) -> list[Route]:
        """Everything that is answered."""
        return list(self._paths.routes)

    def close(self) -> None:
        """End its threads."""
        self._threads.shutdown(wait=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            handler, scope["path_params"] = self._handler(scope["method"], scope["path"])
            response = await handler(Request(scope, receive))
        except PyFlameRTError as error:
            response = _refusal(scope, as_request_error(error))
        await response(scope, receive, send)  # type: ignore[arg-type] - Starlette's mutable mappings are our dicts

    def _handler(self, method: str, path: str) -> tuple[Handler, dict[str, str]]:
        found = self._paths.find(path)
        if found is None:
            raise RequestError(404, "NotFound", f"there is no {path!r} here")
        handlers, names = found
        handler = handlers.get(method)
        if handler is None:
            allowed = {"allow": ", ".join(sorted(handlers))}
            raise RequestError(405, "MethodNotAllowed", f"{path!r} is not for {method}", allowed)
        return handler, names

    def guarded(
        self,
        api_keys: Sequence[str] = (),
        *,
        open_paths: frozenset[str] = frozenset(),
        rate_limit: RateLimitConfig | None = None,
        draining: Callable[[], bool] = bool,
    ) -> Guard:
        """The application behind keys, rates and sizes."""
        return Guard(
            self,
            api_keys=api_keys,
            open_paths=open_paths,
            rate_limit=rate_limit,
            max_body=self.http.max_request_size,
            size_name=self._size_name,
            max_pending=self.http.max_pending_bytes,
            origins=self.http.cors_origins if self.http.enable_cors else None,
            draining=draining,
        )

    async def body(self, request: Request) -> bytes | bytearray:
        """The whole body of a request."""
        return await read_body(request, self.http.max_request_size, self.http.request_timeout_ms / 1e3, self._size_name)

    async def read_json(self, request: Request) -> Any:
        """The JSON of a request."""
        body = await self.body(request)
        return await self.aside(len(body), parse_json, body)

    async def aside(self, size: int, work: Callable[..., Any], *args: Any) -> Any:
        """Do work at once where it is little, else in another thread."""
        if size <= INLINE_BYTES:
            return work(*args)
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *args)

    def json(self, value: Any, status: int = 200) -> Response:
        """A JSON answer."""
        return Response(orjson.dumps(value), status, media_type="application/json")


def _refusal(scope: Scope, error: RequestError) -> Response:
    nested = scope["path"].startswith(NESTED)
    body = error_body(error, scope.get("request_id", ""), nested=nested)
    return Response(body, error.status, headers=error.headers, media_type="application/json")
