"""The routes of a model's server, on the host of the runtime (Starlette)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from pyflame.serving.wire import BadRequest
from pyflame_rt.serving import HTTPConfig, TLSConfig
from pyflame_rt.serving.errors import RequestError
from pyflame_rt.serving.hosting import Host
from pyflame_rt.serving.routing import JSONApp

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from pyflame.serving.server import ModelServer

__all__ = ["make_host"]

log = logging.getLogger("pyflame.serving")
_CODES = {400: "InvalidRequest", 411: "InvalidRequest", 413: "RequestTooLarge", 503: "QueueFull", 504: "Timeout"}


def make_host(server: ModelServer) -> Host:
    """What listens for a server, not started."""
    config = server.config
    tls = TLSConfig(config.ssl_cert is not None, config.ssl_cert or "", config.ssl_key or "")
    milliseconds = max(round(config.timeout * 1e3), 1)
    http = HTTPConfig(
        host=config.host,
        port=config.port,
        num_workers=config.workers,
        max_request_size=config.max_body_bytes,
        request_timeout_ms=milliseconds,
        header_timeout_ms=milliseconds,
        keep_alive_timeout_ms=milliseconds,
        max_connections=config.max_connections,
        enable_cors=config.enable_cors,
        cors_origins=list(config.cors_origins),
    )
    app = _Routes(server, http)
    keys = [] if config.api_key is None else [config.api_key]
    guard = app.guarded(keys, open_paths=frozenset(("/v1/health",)), draining=lambda: server._draining)
    return Host(guard, http, tls)


class _Routes(JSONApp):
    def __init__(self, server: ModelServer, http: HTTPConfig) -> None:
        self._server = server
        super().__init__(http, size_name="max_body_bytes")
        self.add("GET", "/v1/health", self._fact(lambda: server.health()))
        self.add("GET", "/v1/info", self._fact(lambda: server.info()))
        self.add("GET", "/v1/stats", self._fact(lambda: server.stats()))
        self.add("POST", "/v1/predict", self._predict)

    def _fact(self, fact: Any) -> Any:
        async def answer(request: Request) -> Response:
            del request
            return self.json(fact())

        return answer

    async def _predict(self, request: Request) -> Response:
        if "chunked" in request.headers.get("transfer-encoding", "").lower():
            raise RequestError(411, "InvalidRequest", "send a Content-Length; chunked bodies are not taken")
        asked = await self.read_json(request)
        try:
            return self.json(await self._server.predict_async(asked))
        except BadRequest as error:
            raise RequestError(error.status, _CODES.get(error.status, "InvalidRequest"), str(error)) from None
        except RequestError:
            raise
        except Exception as error:
            log.warning("the model failed: %s", error, exc_info=True)
            raise RequestError(500, "InferenceError", f"{type(error).__name__}: {error}") from None
