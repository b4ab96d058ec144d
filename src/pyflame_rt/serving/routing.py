"""JSON over HTTP: what every application of ours shares (Starlette)."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import orjson
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from pyflame_rt.graph.errors import PyFlameRTError
from pyflame_rt.serving.bodies import read_body
from pyflame_rt.serving.errors import RequestError, as_request_error
from pyflame_rt.serving.guard import Guard, error_body
from pyflame_rt.serving.requests import parse_json

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from starlette.requests import Request

    from pyflame_rt.serving.config import HTTPConfig, RateLimitConfig

    Handler = Callable[[Request], Awaitable[Response]]

__all__ = ["JSONApp"]

NESTED = ("/v1/completions", "/v1/chat/", "/v1/embeddings")  # OpenAI's clients look for an object
INLINE_BYTES = 64 << 10  # longer bodies are read and written by other threads


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
        handlers: dict[Any, Any] = {404: _not_found, 405: _not_allowed, PyFlameRTError: _refused}
        self._starlette = Starlette(exception_handlers=handlers)

    def add(self, method: str, path: str, handler: Handler) -> None:
        """Answer requests to a path."""
        self._starlette.router.routes.append(Route(path, handler, methods=[method]))

    def routes(self) -> list[Route]:
        """Everything that is answered."""
        return [route for route in self._starlette.routes if isinstance(route, Route)]

    def close(self) -> None:
        """End its threads."""
        self._threads.shutdown(wait=False)

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
            self._starlette,  # type: ignore[arg-type] - Starlette's mutable mappings are our dicts
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


def _refusal(request: Request, error: RequestError) -> Response:
    nested = request.url.path.startswith(NESTED)
    body = error_body(error, request.scope.get("request_id", ""), nested=nested)
    return Response(body, error.status, headers=error.headers, media_type="application/json")


async def _not_found(request: Request, _error: Exception) -> Response:
    return _refusal(request, RequestError(404, "NotFound", f"there is no {request.url.path!r} here"))


async def _not_allowed(request: Request, error: Exception) -> Response:
    headers = dict(getattr(error, "headers", None) or {})
    message = f"{request.url.path!r} is not for {request.method}"
    return _refusal(request, RequestError(405, "MethodNotAllowed", message, headers))


async def _refused(request: Request, error: Exception) -> Response:
    return _refusal(request, as_request_error(error))
