"""The application: health, models, inference and metrics over HTTP."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from pyflame_rt._version import __version__
from pyflame_rt.serving.bodies import until_gone
from pyflame_rt.serving.errors import RequestError
from pyflame_rt.serving.metrics import CONTENT_TYPE
from pyflame_rt.serving.openai_app import OpenAI
from pyflame_rt.serving.page import Page
from pyflame_rt.serving.requests import encode_answer, read_request
from pyflame_rt.serving.routing import JSON, JSONApp, Plain
from pyflame_rt.serving.v2_app import OpenInference

if TYPE_CHECKING:
    from starlette.requests import Request

    from pyflame_rt.serving.config import ServerConfig
    from pyflame_rt.serving.guard import Guard
    from pyflame_rt.serving.service import InferenceService

__all__ = ["Application"]

OPEN_PATHS = frozenset(("/", "/health/live", "/health/ready", "/v2/health/live", "/v2/health/ready"))


class Application(JSONApp):
    """The routes of a server, over a service.

    Args:
        service: answers.
        config: limits.
    """

    def __init__(self, service: InferenceService, config: ServerConfig) -> None:
        super().__init__(config.http)
        self.service, self.config = service, config
        self.registry = service.registry
        for path in ("/v1/models/{model}/infer", "/v1/models/{model}/versions/{version}/infer"):
            self.add("POST", path, self.infer)
        self.add("GET", "/v1/models", self.models)
        self.add("GET", "/v1/models/{model}", self.metadata)
        self.add("GET", "/v1/models/{model}/versions/{version}", self.metadata)
        self.add("GET", "/v1/models/{model}/stats", self.stats)
        self.add("POST", "/v1/models/{model}/load", self.load)
        self.add("POST", "/v1/models/{model}/unload", self.unload)
        self.add("GET", "/health/live", self.live)
        self.add("GET", "/health/ready", self.ready)
        if config.enable_metrics:
            self.add("GET", "/metrics", self.metrics)
        OpenInference(self)
        OpenAI(self)
        Page(self)

    def app(self) -> Guard:
        """The application behind keys, rates and sizes."""
        return self.guarded(
            self.config.api_keys,
            open_paths=OPEN_PATHS,
            rate_limit=self.config.rate_limit,
            draining=lambda: self.service.draining,
        )

    # ------------------------------------------------------------------ inference

    async def infer(self, request: Request) -> Plain:
        """Run a model."""
        service, name = self.service, request.path_params["model"]
        with service.counted(name):
            instance = await service.acquire(name, request.path_params.get("version"))
            try:
                body = await self.body(request)
                asked = await self.aside(len(body), read_request, body, instance.input_kinds)
                del body
                answer = await service.run(
                    instance,
                    asked.inputs,
                    asked.outputs,
                    timeout_ms=asked.timeout_ms,
                    caller=request.scope.get("api_key") or request.scope.get("client"),
                    gone=lambda: until_gone(request),
                )
            finally:
                instance.release()
            head = {
                "request_id": asked.request_id or request.scope["request_id"],
                "model_name": answer.name,
                "model_version": answer.version,
                "success": True,
                "latency_us": answer.latency_us,
                "queue_time_us": answer.queue_time_us,
                "batch_size": answer.batch_size,
            }
            text = await self.aside(answer.nbytes, encode_answer, asked.style, head, answer.outputs, answer.kinds)
        return Plain(text, JSON)

    # ------------------------------------------------------------------ models

    def _listed(self, name: str) -> dict[str, Any]:
        versions = self.registry.list_versions(name)
        return {
            "name": name,
            "ready": any(v.ready for v in versions),
            "versions": [v.version for v in versions],
            "states": [{"version": v.version, "ready": v.ready, "reason": v.reason} for v in versions],
        }

    async def models(self, request: Request) -> Response:
        """All models; also in the form OpenAI's clients read."""
        del request
        names = self.registry.list_models()
        data = [{"id": name, "object": "model", "created": 0, "owned_by": "pyflame"} for name in names]
        return self.json({"models": [self._listed(name) for name in names], "object": "list", "data": data})

    async def metadata(self, request: Request) -> Response:
        """What a model takes and gives."""
        name = request.path_params["model"]
        instance = await self.service.acquire(name, request.path_params.get("version"))
        try:
            found = {**self._listed(name), **instance.get_serving_metadata()}
        finally:
            instance.release()
        return self.json({**found, "id": name, "object": "model", "created": int(instance.loaded_at)})

    async def stats(self, request: Request) -> Response:
        """What a model did."""
        name = request.path_params["model"]
        self.registry.config(name)
        versions = self.registry.get_stats().get(name, {})
        latest = self.registry.get_latest(name)
        return self.json({**({} if latest is None else latest.get_stats()), "name": name, "versions": versions})

    async def load(self, request: Request) -> Response:
        """Load a model of the model folder, or load it again."""
        self.check_control()
        name = request.path_params["model"]
        await asyncio.to_thread(self.registry.load, name)
        return self.json(self._listed(name))

    async def unload(self, request: Request) -> Response:
        """Let a model go."""
        self.check_control()
        name = request.path_params["model"]
        await asyncio.to_thread(self.registry.unload, name)
        return self.json({"name": name, "unloaded": True})

    def check_control(self) -> None:
        """Refuse to load and unload where clients may not."""
        if not self.config.model_control:
            raise RequestError(
                403, "Forbidden", "this server does not let clients load or unload models (set model_control)"
            )

    # ------------------------------------------------------------------ probes

    async def live(self, request: Request) -> Response:
        """The process answers."""
        del request
        return self.json({"status": "live", "live": True, "version": __version__})

    async def ready(self, request: Request) -> Response:
        """Requests may be sent here."""
        del request
        if self.service.ready():
            return self.json({"status": "ready", "ready": True})
        reason = "draining" if self.service.draining else "loading"
        return self.json({"status": "not ready", "ready": False, "reason": reason}, 503)

    async def metrics(self, request: Request) -> Response:
        """Prometheus' text format."""
        del request
        return Response(self.service.metrics.export_prometheus(), media_type=CONTENT_TYPE)
