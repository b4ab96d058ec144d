"""Ask a model server."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np

from pyflame.serving.errors import BY_STATUS, ServerUnavailableError, ServingError, ServingTimeoutError
from pyflame_rt.graph.errors import MissingExtra
from pyflame_rt.graph.named_arguments import expect_fields, names_arguments

if TYPE_CHECKING:
    from collections.abc import Sequence

    import httpx

    from pyflame_rt.serving.conversation import ClientCall, Outcome

__all__ = ["ClientConfig", "ModelClient"]


@dataclass
class ClientConfig:
    """How a client asks.

    Attributes:
        timeout: Seconds to wait for an answer.
        max_retries: How often to ask again when nobody answers or the server has too much to do.
        retry_delay: Seconds before the first such time; doubled each time.
        api_key: Sent along where the server asks for one.
        verify_ssl: Check the server's certificate.
        ca_file: Certificates to check it by, besides the system's.
        headers: Sent along.
        max_answer_bytes: Longer answers are refused.

    Example:
        >>> from pyflame.serving import ClientConfig
        >>> ClientConfig(timeout=5).max_retries
        3
    """

    timeout: float = 30.0
    max_retries: int = 3
    retry_delay: float = 0.2
    api_key: str | None = None
    verify_ssl: bool = True
    ca_file: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    max_answer_bytes: int = 256 << 20

    def __post_init__(self) -> None:
        expect_fields(self)
        if self.timeout <= 0 or self.max_retries < 0 or self.retry_delay < 0:
            raise ValueError(
                "timeout must be positive, max_retries and retry_delay not negative. "
                f"Received: {self.timeout}, {self.max_retries}, {self.retry_delay}"
            )


class ModelClient:
    """Asks a :class:`ModelServer`; safe to use from several threads. A context manager, also with ``async with``.

    Args:
        url: Where the server is, such as "http://localhost:8000".
        config: The settings.

    Example:
        >>> import pyflame as pf
        >>> with pf.serving.ModelServer(pf.nn.ReLU(), pf.serving.ServerConfig(port=0)) as server:
        ...     with pf.serving.ModelClient(server.url) as client:
        ...         client.health_check(), client.predict([[-1.0, 2.0]])
        (True, array([[0., 2.]]))
    """

    @names_arguments
    def __init__(self, url: str = "http://localhost:8000", config: ClientConfig | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"url must begin with http:// or https:// and name a host. Received: {url!r}")
        self.url, self.config = url.rstrip("/"), config or ClientConfig()
        self._http: Any = None
        self._lock = threading.Lock()

    def predict(self, inputs: Any, *, batch_size: int | None = None, dtype: str | None = None) -> Any:
        """The model's outputs for a batch: an array, or a list or dict of arrays where the model gives such.

        Args:
            inputs: A batch: array, tensor, nested lists, or a dict of them by argument name.
            batch_size: Let the server compute in parts of this size.
            dtype: Element type of the inputs; by default what an array or tensor has, else the server's choice.
        """
        body: dict[str, Any] = {"inputs": _plain(inputs)}
        kind = dtype if dtype is not None else _dtype(inputs)
        if kind is not None:
            body["dtype"] = kind
        if batch_size is not None:
            body["batch_size"] = batch_size
        return _arrays(self._ask("POST", "/v1/predict", body)["outputs"])

    def predict_batch(self, batches: Sequence[Any], **options: Any) -> list[Any]:
        """The outputs of several batches, one request each."""
        return [self.predict(batch, **options) for batch in batches]

    def health_check(self) -> bool:
        """Whether the server answers and is well; False also when nobody answers."""
        try:
            return self._ask("GET", "/v1/health").get("status") == "healthy"
        except ServingError:
            return False

    def get_info(self) -> dict[str, Any]:
        """What the server says of its model and limits."""
        return self._ask("GET", "/v1/info")

    def get_stats(self) -> dict[str, Any]:
        """What the server has done so far."""
        return self._ask("GET", "/v1/stats")

    async def predict_async(self, inputs: Any, **options: Any) -> Any:
        """The same as :meth:`predict`, for ``await``."""
        return await asyncio.to_thread(self.predict, inputs, **options)

    async def predict_batch_async(self, batches: Sequence[Any], **options: Any) -> list[Any]:
        """The outputs of several batches, asked for at the same time."""
        return list(await asyncio.gather(*(self.predict_async(batch, **options) for batch in batches)))

    def close(self) -> None:
        """Close the connections; the next request opens others."""
        with self._lock:
            client, self._http = self._http, None
        if client is not None:
            client.close()

    def __enter__(self) -> ModelClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> ModelClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    # Requests.

    def _ask(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        self._client()  # says what is missing where httpx is
        from pyflame_rt.serving.conversation import ClientCall, converse, retried

        data = None if body is None else json.dumps(body).encode()
        call = ClientCall(method, path, data, lambda got: self._read(got.status_code, got.content))
        return converse(retried(call, self.config.max_retries, self.config.retry_delay, self._broken), self._send)

    def _send(self, call: ClientCall[Any]) -> Outcome:
        client = self._client()
        import httpx  # there, where the client is

        try:
            with client.stream(call.method, call.path, content=call.body) as response:
                return httpx.Response(response.status_code, content=self._text(response))
        except httpx.TransportError as error:
            return error

    def _broken(self, error: httpx.TransportError) -> ServingError:
        """What a broken connection is raised as."""
        import httpx

        from pyflame_rt.serving.conversation import is_untrusted

        if isinstance(error, httpx.TimeoutException):
            return ServingTimeoutError(f"{self.url} gave no answer within {self.config.timeout} s")
        if is_untrusted(error):
            return ServingError(f"the certificate of {self.url} is not trusted: {error}")
        return ServerUnavailableError(f"{self.url} does not answer: {error or type(error).__name__}")

    def _text(self, response: Any) -> bytes:
        text = bytearray()
        for piece in response.iter_bytes():
            text += piece
            if len(text) > self.config.max_answer_bytes:
                break
        return bytes(text)

    def _read(self, status: int, text: bytes) -> dict[str, Any]:
        if len(text) > self.config.max_answer_bytes:
            raise ServingError(f"the answer has more than max_answer_bytes={self.config.max_answer_bytes}", status)
        try:
            answer = json.loads(text)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise ServingError(f"{self.url} gave no JSON object (status {status}): is it a model server?", status)
        if status != 200:
            raise BY_STATUS.get(status, ServingError)(f"{self.url}: {answer.get('error', 'no reason given')}", status)
        return answer

    def _client(self) -> Any:
        """The connections that are kept."""
        with self._lock:
            if self._http is None:
                self._http = self._connect()
                weakref.finalize(self, self._http.close)
            return self._http

    def _connect(self) -> Any:
        try:
            import httpx
        except ModuleNotFoundError as error:
            raise MissingExtra("asking a server needs httpx: pip install 'pyflame[serve]'") from error
        verify: Any = True
        if self.url.startswith("https:"):
            verify = ssl.create_default_context(cafile=self.config.ca_file)
            if not self.config.verify_ssl:
                verify.check_hostname = False
                verify.verify_mode = ssl.CERT_NONE
        return httpx.Client(
            base_url=self.url, timeout=self.config.timeout, verify=verify, headers=self._headers(), trust_env=False
        )

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": "application/json", "Content-Type": "application/json", **self.config.headers}
        if self.config.api_key is not None:
            headers["X-API-Key"] = self.config.api_key
        return headers


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(v) for name, v in value.items()}
    if hasattr(value, "numpy"):
        value = value.numpy()
    return (
        value.astype(np.float64).tolist() if _is_half(value) else value.tolist() if hasattr(value, "tolist") else value
    )


def _is_half(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind == "V"


def _dtype(value: Any) -> Any:
    if isinstance(value, dict):
        kinds = {name: _dtype(v) for name, v in value.items()}
        return {name: kind for name, kind in kinds.items() if kind is not None} or None
    kind = getattr(value, "dtype", None)
    return None if kind is None else getattr(kind, "name", str(kind))


def _arrays(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _arrays(v) for name, v in value.items()}
    try:
        array = np.array(value, dtype=None)
    except ValueError:  # several outputs of different shapes
        return [_arrays(v) for v in value]
    if array.dtype == object:  # null stands for what JSON has no number for
        try:
            return np.array(value, np.float64)
        except (TypeError, ValueError):
            return [_arrays(v) for v in value]
    return array
