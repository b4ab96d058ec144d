"""Ask a server from coroutines (httpx)."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypeVar

import httpx

from pyflame_rt.serving.conversation import Conversations, converse_async
from pyflame_rt.serving.replies import decode_event

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from pyflame_rt.serving.conversation import ClientCall, Conversation, Outcome
    from pyflame_rt.serving.replies import InferenceRequest, InferenceResponse, ModelInfo, ModelMetadata

__all__ = ["AsyncModelClient"]

T = TypeVar("T")


class AsyncModelClient(Conversations):
    """Asks a ModelServer; used with ``async with``. Arguments as of :class:`ModelClient`.

    Example:
        >>> async def main() -> bool:
        ...     async with AsyncModelClient("http://127.0.0.1:1", max_retries=0) as client:
        ...         return await client.is_ready()
        >>> asyncio.run(main())
        False
    """

    def _open(self, **settings: Any) -> None:
        self._http = httpx.AsyncClient(**settings)

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
        return await self._ask(self._infer(model, inputs, outputs, version, request_id))

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
        return await self._ask(self._models())

    async def get_model_metadata(self, model: str, version: str = "") -> ModelMetadata:
        """What a model takes and gives."""
        return await self._ask(self._metadata(model, version))

    async def get_model_stats(self, model: str) -> dict[str, Any]:
        """What a model did."""
        return await self._ask(self._stats(model))

    async def is_alive(self) -> bool:
        """Whether the server answers."""
        return await self._ask(self._probe("/health/live"))

    async def is_ready(self) -> bool:
        """Whether the server takes requests."""
        return await self._ask(self._probe("/health/ready"))

    async def wait_for_ready(self, timeout: float = 60.0) -> bool:  # noqa: ASYNC109 - the same as of ModelClient
        """Wait until the server takes requests; False when time is up."""
        return await self._ask(self._until_ready(timeout))

    async def stream(
        self, model: str, prompt: str | Sequence[Mapping[str, str]], **settings: Any
    ) -> AsyncIterator[str]:
        """Text, piece by piece as it comes; see :meth:`ModelClient.stream`."""
        answer = await self._ask(self._text(model, prompt, settings))
        async with aclosing(answer):
            with self._reading():
                async for line in answer.aiter_lines():
                    piece = decode_event(line)
                    if piece is None:
                        return
                    if piece:
                        yield piece
                raise self._ended_early()

    async def _ask(self, conversation: Conversation[T]) -> T:
        return await converse_async(conversation, self._send)

    async def _send(self, call: ClientCall[Any]) -> Outcome:
        try:
            outcome = await self._http.send(call.request(self._http), stream=call.stream)
            if outcome.status_code != 200:
                await outcome.aread()
        except httpx.TransportError as error:
            return error
        return outcome

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> AsyncModelClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
