"""What the clients share: requests and retries as generators, which say what to send and when (sans-IO)."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import httpx

from pyflame_rt.graph.errors import InputError
from pyflame_rt.serving.errors import ServerError
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
    model_path,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence

__all__ = ["ClientCall", "Conversations"]

RETRIED = (429, 503)
JSON = {"content-type": "application/json"}
LOOK_AGAIN = 0.05  # seconds between two looks at a server that is not ready

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ClientCall(Generic[T]):
    """One request, and how its answer is read.

    Attributes:
        method: of HTTP.
        path: on the server.
        body: JSON; None for none.
        read: from status and body to what the caller gets.
    """

    method: str
    path: str
    body: bytes | None
    read: Callable[[int, bytes], T]

    def arguments(self) -> dict[str, Any]:
        """What httpx' ``request`` takes."""
        headers = None if self.body is None else JSON
        return {"method": self.method, "url": self.path, "content": self.body, "headers": headers}


if TYPE_CHECKING:
    Outcome = httpx.Response | httpx.TransportError | None
    # It yields calls, whose outcome it is sent, and seconds to wait.
    Conversation = Generator[ClientCall[Any] | float, Outcome, T]


class Conversations:
    """Settings of a client, and everything it may ask; the classes below it only send and wait.

    Args:
        url: where the server is.
        timeout: seconds to wait for an answer.
        max_retries: how often to ask again when nobody answers, or the server has too much to do.
        retry_delay: seconds before the first such time; doubled each time.
        api_key: sent along.
        verify: check the server's certificate: True, False, or an ``ssl.SSLContext``.
        max_connections: at the same time.

    Raises:
        InputError: The address is none.
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
        if not url.startswith(("http://", "https://")):
            raise InputError(f"url must begin with http:// or https://, got {url!r}")
        self.url = url.rstrip("/")
        self.max_retries, self.retry_delay = max_retries, retry_delay
        self._open(
            base_url=self.url,
            timeout=timeout,
            verify=verify,
            trust_env=False,
            headers={} if api_key is None else {"x-api-key": api_key},
            limits=httpx.Limits(max_connections=max_connections, max_keepalive_connections=max_connections),
        )

    def _open(self, **settings: Any) -> None:
        """Make the httpx client."""
        raise NotImplementedError

    # ------------------------------------------------------------------ what is asked

    def _infer(
        self,
        model: str | InferenceRequest,
        inputs: Mapping[str, Any] | None,
        outputs: Sequence[str] | None,
        version: str,
        request_id: str,
    ) -> Conversation[InferenceResponse]:
        if not isinstance(model, InferenceRequest):
            if inputs is None:
                raise InputError("infer needs inputs: arrays by name")
            model = InferenceRequest(model, inputs, outputs, version, request_id)
        path, body = encode_request(model)
        return self._retried(ClientCall("POST", path, body, decode_response))

    def _models(self) -> Conversation[list[ModelInfo]]:
        return self._looked_up("/v1/models", model_infos)

    def _metadata(self, model: str, version: str) -> Conversation[ModelMetadata]:
        return self._looked_up(model_path(model, version), model_metadata)

    def _stats(self, model: str) -> Conversation[dict[str, Any]]:
        return self._looked_up(model_path(model) + "/stats", dict)

    def _looked_up(self, path: str, read: Callable[[dict[str, Any]], T]) -> Conversation[T]:
        return self._retried(ClientCall("GET", path, None, lambda status, body: read(checked(status, body))))

    def _probe(self, path: str) -> Conversation[bool]:
        """Whether a path answers 200; asked once."""
        outcome = yield ClientCall("GET", path, None, lambda status, body: (status, body))
        return isinstance(outcome, httpx.Response) and outcome.status_code == 200

    def _until_ready(self, timeout: float) -> Conversation[bool]:
        end = time.monotonic() + timeout
        while not (yield from self._probe("/health/ready")):
            if time.monotonic() >= end:
                return False
            yield LOOK_AGAIN
        return True

    # ------------------------------------------------------------------ how

    def _retried(self, call: ClientCall[T]) -> Conversation[T]:
        """Ask until there is an answer, or no hope."""
        delay = self.retry_delay
        for left in range(self.max_retries, -1, -1):
            outcome = yield call
            if isinstance(outcome, httpx.Response):
                if outcome.status_code not in RETRIED or not left:
                    return call.read(outcome.status_code, outcome.content)
            elif outcome is not None and (not left or not _may_repeat(outcome)):
                raise self._broken(outcome) from outcome
            yield delay
            delay *= 2
        raise AssertionError("unreachable")

    def _broken(self, error: httpx.TransportError) -> Exception:
        """What a broken connection is raised as."""
        if isinstance(error, httpx.TimeoutException):
            return TimeoutError(f"{self.url} gave no answer in time")
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            return ServerError(0, f"the certificate of {self.url} is not trusted: {error}")
        return ConnectionError(f"{self.url} does not answer: {error or type(error).__name__}")


def _may_repeat(error: httpx.TransportError) -> bool:
    """Whether a request that broke may be sent again: not when time is up. Inference changes nothing on the server."""
    return not isinstance(error, httpx.TimeoutException) or isinstance(error, httpx.ConnectTimeout)
