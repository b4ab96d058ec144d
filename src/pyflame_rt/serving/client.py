"""Ask a server from a program without coroutines (httpx)."""

from __future__ import annotations

import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

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
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["ModelClient"]

RETRIED = (429, 503)
JSON = {"content-type": "application/json"}


class ModelClient:
    """Asks a ModelServer; safe to use from several threads. Connections are kept; a context manager closes them.

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

    Example:
        >>> ModelClient("http://127.0.0.1:1", max_retries=0).is_alive()
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
        self._http = httpx.Client(**settings(self.url, timeout, api_key, verify, max_connections))
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
        path, body = encode_request(request_of(model, inputs, outputs, version, request_id))
        return decode_response(*self._ask("POST", path, body))

    def infer_batch(
        self, model: str, inputs: Sequence[Mapping[str, Any]], max_workers: int = 4, **options: Any
    ) -> list[InferenceResponse]:
        """Run a model for several requests, some at the same time; answers in the order of the requests."""
        with ThreadPoolExecutor(max(max_workers, 1)) as pool:
            return list(pool.map(lambda feed: self.infer(model, feed, **options), inputs))

    def list_models(self) -> list[ModelInfo]:
        """What the server serves."""
        return model_infos(checked(*self._ask("GET", "/v1/models")))

    def get_model_metadata(self, model: str, version: str = "") -> ModelMetadata:
        """What a model takes and gives."""
        return model_metadata(checked(*self._ask("GET", model_path(model, version))))

    def get_model_stats(self, model: str) -> dict[str, Any]:
        """What a model did."""
        return checked(*self._ask("GET", model_path(model) + "/stats"))

    def is_alive(self) -> bool:
        """Whether the server answers."""
        return self._probe("/health/live")

    def is_ready(self) -> bool:
        """Whether the server takes requests."""
        return self._probe("/health/ready")

    def wait_for_ready(self, timeout: float = 60.0) -> bool:
        """Wait until the server takes requests; False when time is up."""
        end = time.monotonic() + timeout
        while not self.is_ready():
            if time.monotonic() >= end:
                return False
            time.sleep(0.05)
        return True

    # ------------------------------------------------------------------ requests

    def _probe(self, path: str) -> bool:
        try:
            return self._http.get(path).status_code == 200
        except httpx.TransportError:
            return False

    def _ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        delay = self.retry_delay
        for left in range(self.max_retries, -1, -1):
            try:
                answer = self._http.request(method, path, content=body, headers=JSON if body is not None else None)
            except httpx.TransportError as error:
                if not left or not may_repeat(error):
                    raise transport_error(self.url, error) from error
            else:
                if answer.status_code not in RETRIED or not left:
                    return answer.status_code, answer.content
            time.sleep(delay)
            delay *= 2
        raise AssertionError("unreachable")

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> ModelClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def checked_url(url: str) -> str:
    """An address without the slash at its end."""
    if not url.startswith(("http://", "https://")):
        raise InputError(f"url must begin with http:// or https://, got {url!r}")
    return url.rstrip("/")


def settings(url: str, timeout: float, api_key: str | None, verify: Any, connections: int) -> dict[str, Any]:
    """What both kinds of httpx clients are made with."""
    return {
        "base_url": url,
        "timeout": timeout,
        "verify": verify,
        "trust_env": False,
        "headers": {} if api_key is None else {"x-api-key": api_key},
        "limits": httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
    }


def model_path(model: str, version: str = "") -> str:
    """Where a model is."""
    return f"/v1/models/{quote(model, safe='')}" + (f"/versions/{quote(version, safe='')}" if version else "")


def request_of(
    model: str | InferenceRequest,
    inputs: Mapping[str, Any] | None,
    outputs: Sequence[str] | None,
    version: str,
    request_id: str,
) -> InferenceRequest:
    """A request from its parts."""
    if isinstance(model, InferenceRequest):
        return model
    if inputs is None:
        raise InputError("infer needs inputs: arrays by name")
    return InferenceRequest(model, inputs, outputs, version, request_id)


def may_repeat(error: Exception) -> bool:
    """Whether a request that broke may be sent again: not when time is up. Inference changes nothing on the server."""
    return not isinstance(error, httpx.TimeoutException) or isinstance(error, httpx.ConnectTimeout)


def transport_error(url: str, error: Exception) -> Exception:
    """What a broken connection is raised as."""
    if isinstance(error, httpx.TimeoutException):
        return TimeoutError(f"{url} gave no answer in time")
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return ServerError(0, f"the certificate of {url} is not trusted: {error}")
    return ConnectionError(f"{url} does not answer: {error or type(error).__name__}")
