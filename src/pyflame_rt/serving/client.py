"""Ask a server from a program without coroutines (httpx)."""

from __future__ import annotations

import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING, Any, TypeVar

import httpx

from pyflame_rt.serving.conversation import Conversations, converse
from pyflame_rt.serving.replies import decode_event

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyflame_rt.serving.conversation import ClientCall, Conversation, Outcome
    from pyflame_rt.serving.replies import InferenceRequest, InferenceResponse, ModelInfo, ModelMetadata

__all__ = ["ModelClient"]

T = TypeVar("T")


class ModelClient(Conversations):
    """Asks a ModelServer; safe to use from several threads. Connections are kept; a context manager closes them.

    Args:
        url: where the server is.
        timeout: seconds to wait for an answer; None for as long as it takes.
        max_retries: how often to ask again when nobody answers, or the server has too much to do.
        retry_delay: seconds before the first such time; doubled each time.
        api_key: sent along.
        verify: check the server's certificate: True, False, or an ``ssl.SSLContext``.
        max_connections: at the same time.
        binary: send and ask for arrays as bytes (Open Inference Protocol), not in base64; answers have no times then.

    Raises:
        InputError: The address is none.

    Example:
        >>> ModelClient("http://127.0.0.1:1", max_retries=0).is_alive()
        False
    """

    def _open(self, **settings: Any) -> None:
        self._http = httpx.Client(**settings)
        weakref.finalize(self, self._http.close)  # where nobody closes it

    # ------------------------------------------------------------------ asking

    def infer(
        self,
        model: str | InferenceRequest,
        inputs: Mapping[str, Any] | None = None,
        *,
        outputs: Sequence[str] | None = None,
        version: str = "",
        request_id: str = "",
    ) -> InferenceResponse:
        """Run a model.

        Args:
            model: its name, or a whole request.
            inputs: arrays by name.
            outputs: names to answer with; None for all.
            version: of the model; "" for the one the server chooses.
            request_id: comes back with the answer.

        Returns:
            The answer; its ``success`` is False where the model refused or failed.

        Raises:
            ServerError: There is no such model, or the server refused.
            ConnectionError: Nobody answers.
        """
        return self._ask(self._infer(model, inputs, outputs, version, request_id))

    def infer_batch(
        self, model: str, inputs: Sequence[Mapping[str, Any]], max_workers: int = 4, **options: Any
    ) -> list[InferenceResponse]:
        """Run a model for several requests, some at the same time; answers in the order of the requests."""
        with ThreadPoolExecutor(max(max_workers, 1)) as pool:
            return list(pool.map(lambda feed: self.infer(model, feed, **options), inputs))

    def list_models(self) -> list[ModelInfo]:
        """What the server serves."""
        return self._ask(self._models())

    def get_model_metadata(self, model: str, version: str = "") -> ModelMetadata:
        """What a model takes and gives."""
        return self._ask(self._metadata(model, version))

    def get_model_stats(self, model: str) -> dict[str, Any]:
        """What a model did."""
        return self._ask(self._stats(model))

    def is_alive(self) -> bool:
        """Whether the server answers."""
        return self._ask(self._probe("/health/live"))

    def is_ready(self) -> bool:
        """Whether the server takes requests."""
        return self._ask(self._probe("/health/ready"))

    def wait_for_ready(self, timeout: float = 60.0) -> bool:
        """Wait until the server takes requests; False when time is up."""
        return self._ask(self._until_ready(timeout))

    def stream(self, model: str, prompt: str | Sequence[Mapping[str, str]], **settings: Any) -> Iterator[str]:
        """Text, piece by piece as it comes.

        Args:
            model: one that generates text.
            prompt: a text to continue, or the messages of a chat, each with ``role`` and ``content``.
            settings: as of OpenAI's completions, such as ``max_tokens`` and ``temperature``.

        Raises:
            ServerError: The server refused, or failed on the way.
            ConnectionError: Nobody answers, or the answer broke off.
        """
        answer = self._ask(self._text(model, prompt, settings))
        with closing(answer), self._reading():
            for line in answer.iter_lines():
                piece = decode_event(line)
                if piece is None:
                    return
                if piece:
                    yield piece
            raise self._ended_early()

    # ------------------------------------------------------------------ sending

    def _ask(self, conversation: Conversation[T]) -> T:
        return converse(conversation, self._send)

    def _send(self, call: ClientCall[Any]) -> Outcome:
        try:
            outcome = self._http.send(call.request(self._http), stream=call.stream)
            if outcome.status_code != 200:
                outcome.read()
        except httpx.TransportError as error:
            return error
        return outcome

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> ModelClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
