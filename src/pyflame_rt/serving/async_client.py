"""Ask a server from coroutines (httpx)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import httpx

from pyflame_rt.serving.client import (
    JSON,
    RETRIED,
    checked_url,
    may_repeat,
    model_path,
    request_of,
    settings,
    transport_error,
)
from pyflame_rt.serving.replies import (
    InferenceRequest,
    InferenceResponse,
    ModelInfo,
    ModelMetadata,
    checked,
    decode_response,
    encode_request,
    model_infos,
    model_metadata,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["AsyncModelClient"]


class AsyncModelClient:
    """Asks a ModelServer; used with ``async with``. Arguments as of :class:`ModelClient`.

    Example:
        >>> async def main() -> bool:
        ...     async with AsyncModelClient("http://127.0.0.1:1", max_retries=0) as client:
        ...         return await client.is_ready()
        >>> asyncio.run(main())
        False
    """

    def __init__(
        self,
        url: str = "http://localhost:8080",
        timeout: float = 30.0,
        *,
        max_retries: int = 3,
        retry_delay: float = 0.5,
        api_key: str | None = None,
        verify: Any = True,
        max_connections: int = 100,
    ) -> None:
        self.url = checked_url(url)
        self.max_retries, self.retry_delay = max_retries, retry_delay
        self._http = httpx.AsyncClient(**settings(self.url, timeout, api_key, verify, max_connections))

    async def infer(
        self,
        model: str | InferenceRequest,
        inputs: Mapping[str, Any] | None = None,
        *,
        outputs: Sequence[str] | None = None,
        version: str = "",
        request_id: str = "",
    ) -> InferenceResponse:
        """Run a model; see :meth:`ModelClient.infer`."""
        path, body = encode_request(request_of(model, inputs, outputs, version, request_id))
        return decode_response(*await self._ask("POST", path, body))

    async def infer_batch(
        self, model: str, inputs: Sequence[Mapping[str, Any]], max_concurrent: int = 10, **options: Any
    ) -> list[InferenceResponse]:
        """Run a model for several requests, some at the same time; answers in the order of the requests."""
        places = asyncio.Semaphore(max(max_concurrent, 1))

        async def one(feed: Mapping[str, Any]) -> InferenceResponse:
            async with places:
                return await self.infer(model, feed, **options)

        return list(await asyncio.gather(*(one(feed) for feed in inputs)))

    async def list_models(self) -> list[ModelInfo]:
        """What the server serves."""
        return model_infos(checked(*await self._ask("GET", "/v1/models")))

    async def get_model_metadata(self, model: str, version: str = "") -> ModelMetadata:
        """What a model takes and gives."""
        return model_metadata(checked(*await self._ask("GET", model_path(model, version))))

    async def get_model_stats(self, model: str) -> dict[str, Any]:
        """What a model did."""
        return checked(*await self._ask("GET", model_path(model) + "/stats"))

    async def is_alive(self) -> bool:
        """Whether the server answers."""
        return await self._probe("/health/live")

    async def is_ready(self) -> bool:
        """Whether the server takes requests."""
        return await self._probe("/health/ready")

    async def wait_for_ready(self, timeout: float = 60.0) -> bool:  # noqa: ASYNC109 - the same as of ModelClient
        """Wait until the server takes requests; False when time is up."""
        end = asyncio.get_running_loop().time() + timeout
        while not await self.is_ready():
            if asyncio.get_running_loop().time() >= end:
                return False
            await asyncio.sleep(0.05)
        return True

    async def _probe(self, path: str) -> bool:
        try:
            return (await self._http.get(path)).status_code == 200
        except httpx.TransportError:
            return False

    async def _ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        delay = self.retry_delay
        for left in range(self.max_retries, -1, -1):
            try:
                answer = await self._http.request(
                    method, path, content=body, headers=JSON if body is not None else None
                )
            except httpx.TransportError as error:
                if not left or not may_repeat(error):
                    raise transport_error(self.url, error) from error
            else:
                if answer.status_code not in RETRIED or not left:
                    return answer.status_code, answer.content
            await asyncio.sleep(delay)
            delay *= 2
        raise AssertionError("unreachable")

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> AsyncModelClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
