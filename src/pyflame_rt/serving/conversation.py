"""What the clients share: requests and retries as generators, which say what to send and when (sans-IO)."""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from ssl import SSLContext  # noqa: TC003 - looked at while it runs
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import httpx

from pyflame_rt.graph.arguments import number_problems
from pyflame_rt.graph.errors import InputError
from pyflame_rt.graph.named_arguments import expects_arguments
from pyflame_rt.serving.errors import ServerError
from pyflame_rt.serving.replies import (
    InferenceRequest,
    InferenceResponse,
    ModelInfo,
    ModelMetadata,
    checked,
    decode_binary,
    decode_response,
    encode_binary,
    encode_request,
    encode_text,
    model_infos,
    model_metadata,
    model_path,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence

__all__ = ["ClientCall", "Conversations", "converse", "converse_async", "is_untrusted", "retried"]

RETRIED = (429, 503)
JSON = {"content-type": "application/json"}
JSON_LENGTH = "inference-header-content-length"
LOOK_AGAIN = 0.05  # seconds between two looks at a server that is not ready

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ClientCall(Generic[T]):
    """One request, and how its answer is read.

    Attributes:
        method: of HTTP.
        path: on the server.
        body: what is sent; None for nothing.
        read: from the answer to what the caller gets.
        headers: of the body; those of JSON by default.
        stream: an answer of status 200 is read by ``read``, as it comes; all others are read before.
    """

    method: str
    path: str
    body: bytes | None
    read: Callable[[httpx.Response], T]
    headers: dict[str, str] = field(default_factory=lambda: JSON)
    stream: bool = False

    def request(self, client: httpx.Client | httpx.AsyncClient) -> httpx.Request:
        """What a client is to send."""
        headers = None if self.body is None else self.headers
        return client.build_request(self.method, self.path, content=self.body, headers=headers)


if TYPE_CHECKING:
    Outcome = httpx.Response | httpx.TransportError | None
    # It yields calls, whose outcome it is sent, and seconds to wait.
    Conversation = Generator[ClientCall[Any] | float, Outcome, T]


class Conversations:
    """Settings of a client, and everything it may ask; the classes below it only send and wait.

    Arguments are those of :class:`ModelClient`.
    """

    @expects_arguments
    def __init__(
        self,
        url: str = "http://localhost:8080",
        timeout: float | None = 30.0,
        *,
        max_retries: int = 3,
        retry_delay: float = 0.5,
        api_key: str | None = None,
        verify: bool | SSLContext = True,
        max_connections: int = 100,
        binary: bool = False,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise InputError(f"url must begin with http:// or https://, got {url!r}")
        problems = number_problems(
            SimpleNamespace(
                timeout=1 if timeout is None else timeout,
                retry_delay=retry_delay,
                max_retries=max_retries,
                max_connections=max_connections,
            ),
            {"max_retries": 0, "max_connections": 1},
            {"timeout": (lambda t: t > 0, "be positive"), "retry_delay": (lambda t: t >= 0, "not be negative")},
        )
        if problems:
            raise InputError(f"invalid settings of a client: {'; '.join(problems)}")
        if api_key is not None and not (api_key.isascii() and api_key.isprintable()):
            raise InputError("api_key goes into a header: it must be of ASCII characters that can be printed")
        self.url = url.rstrip("/")
        self.max_retries, self.retry_delay, self.binary = max_retries, retry_delay, binary
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
        if self.binary:
            path, body, split = encode_binary(model)
            headers = {"content-type": "application/octet-stream", JSON_LENGTH: str(split)}
            return self._retried(ClientCall("POST", path, body, _binary, headers))
        path, body = encode_request(model)
        return self._retried(ClientCall("POST", path, body, lambda got: decode_response(got.status_code, got.content)))

    def _text(
        self, model: str, prompt: str | Sequence[Mapping[str, str]], settings: Mapping[str, Any]
    ) -> Conversation[httpx.Response]:
        """Begin a text; its events are in the answer."""
        path, body = encode_text(model, prompt, settings)
        return self._retried(ClientCall("POST", path, body, _begun, stream=True))

    def _models(self) -> Conversation[list[ModelInfo]]:
        return self._looked_up("/v1/models", model_infos)

    def _metadata(self, model: str, version: str) -> Conversation[ModelMetadata]:
        return self._looked_up(model_path(model, version), model_metadata)

    def _stats(self, model: str) -> Conversation[dict[str, Any]]:
        return self._looked_up(model_path(model) + "/stats", dict)

    def _looked_up(self, path: str, read: Callable[[dict[str, Any]], T]) -> Conversation[T]:
        return self._retried(ClientCall("GET", path, None, lambda got: read(_checked(got))))

    def _probe(self, path: str) -> Conversation[bool]:
        """Whether a path answers 200; asked once."""
        outcome = yield ClientCall("GET", path, None, lambda got: got)
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
        return retried(call, self.max_retries, self.retry_delay, self._broken)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """An answer that is read as it comes."""
        try:
            yield
        except httpx.TransportError as error:
            raise self._broken(error) from error

    def _ended_early(self) -> Exception:
        """What an answer that ends before its last event is raised as."""
        return ConnectionError(f"{self.url} ended its answer in the middle")

    def _broken(self, error: httpx.TransportError) -> Exception:
        """What a broken connection is raised as."""
        if isinstance(error, httpx.TimeoutException):
            return TimeoutError(f"{self.url} gave no answer in time")
        if is_untrusted(error):
            return ServerError(0, f"the certificate of {self.url} is not trusted: {error}")
        return ConnectionError(f"{self.url} does not answer: {error or type(error).__name__}")


def retried(
    call: ClientCall[T], retries: int, delay: float, broken: Callable[[httpx.TransportError], Exception]
) -> Conversation[T]:
    """Ask until there is an answer, or no hope.

    Args:
        call: what is asked.
        retries: how often to ask again when nobody answers, or the server has too much to do.
        delay: seconds before the first such time; doubled each time.
        broken: what a broken connection is raised as.
    """
    for left in range(retries, -1, -1):
        outcome = yield call
        if isinstance(outcome, httpx.Response):
            if outcome.status_code not in RETRIED or not left:
                return call.read(outcome)
        elif outcome is not None and (not left or not _may_repeat(outcome)):
            raise broken(outcome) from outcome
        yield delay
        delay *= 2
    raise AssertionError("unreachable")


def converse(conversation: Conversation[T], send: Callable[[ClientCall[Any]], Outcome]) -> T:
    """Have a conversation in the calling thread: ``send`` makes calls, and this waits between them."""
    outcome: Outcome = None
    while True:
        try:
            step = conversation.send(outcome)
        except StopIteration as end:
            return end.value
        outcome = send(step) if isinstance(step, ClientCall) else time.sleep(step)


async def converse_async(conversation: Conversation[T], send: Callable[[ClientCall[Any]], Awaitable[Outcome]]) -> T:
    """The same in a coroutine."""
    outcome: Outcome = None
    while True:
        try:
            step = conversation.send(outcome)
        except StopIteration as end:
            return end.value
        outcome = await (send(step) if isinstance(step, ClientCall) else asyncio.sleep(step))


def is_untrusted(error: httpx.TransportError) -> bool:
    """Whether the server's certificate is not trusted."""
    return "CERTIFICATE_VERIFY_FAILED" in str(error)


def _may_repeat(error: httpx.TransportError) -> bool:
    """Whether a request that broke may be sent again: not when time is up. Inference changes nothing on the server."""
    return not is_untrusted(error) and (
        not isinstance(error, httpx.TimeoutException) or isinstance(error, httpx.ConnectTimeout)
    )


def _checked(got: httpx.Response) -> dict[str, Any]:
    return checked(got.status_code, got.content)


def _binary(got: httpx.Response) -> InferenceResponse:
    return decode_binary(got.status_code, got.content, got.headers.get(JSON_LENGTH))


def _begun(got: httpx.Response) -> httpx.Response:
    if got.status_code != 200:
        _checked(got)
    return got
