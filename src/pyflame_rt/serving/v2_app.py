"""Routes of the Open Inference Protocol, version 2."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from pyflame_rt._version import __version__
from pyflame_rt.serving.bodies import HEADERS, until_gone
from pyflame_rt.serving.errors import RequestError
from pyflame_rt.serving.requests import as_dict, parse_json
from pyflame_rt.serving.routing import JSON, Plain
from pyflame_rt.serving.shared_memory import SharedMemory
from pyflame_rt.serving.v2 import JSON_LENGTH, encode_v2, read_v2

if TYPE_CHECKING:
    from starlette.requests import Request

    from pyflame_rt.serving.app import Application
    from pyflame_rt.serving.instance import ModelInstance
    from pyflame_rt.serving.registry import ModelRegistry

__all__ = ["OpenInference", "model_config", "model_metadata", "model_statistics", "repository_index"]

EXTENSIONS = ["binary_tensor_data", "model_configuration", "model_repository", "statistics", "system_shared_memory"]
MANY = 1 << 30  # bytes, for what may be as many
OCTETS = (b"content-type", b"application/octet-stream")
SERVER = {"name": "pyflame_rt", "version": __version__, "extensions": EXTENSIONS}


class OpenInference:
    """The protocol's routes, added to an application.

    Args:
        app: the application.
    """

    def __init__(self, app: Application) -> None:
        self.app, self.service, self.registry = app, app.service, app.registry
        self.memory = SharedMemory(enabled=app.config.shared_memory, limit=app.config.http.max_request_size)
        for base in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
            app.add("POST", base + "/infer", self.infer)
            app.add("GET", base, self.metadata)
            app.add("GET", base + "/ready", self.model_ready)
            app.add("GET", base + "/config", self.config)
            app.add("GET", base + "/stats", self.stats)
        app.add("GET", "/v2", self.server)
        app.add("GET", "/v2/health/live", app.live)
        app.add("GET", "/v2/health/ready", app.ready)
        app.add("POST", "/v2/repository/index", self.index)
        app.add("POST", "/v2/repository/models/{model}/load", self.load)
        app.add("POST", "/v2/repository/models/{model}/unload", self.unload)
        self._add_memory()

    def _add_memory(self) -> None:
        region = "/v2/systemsharedmemory/region/{region}"
        self.app.add("GET", "/v2/systemsharedmemory/status", self.memory_status)
        self.app.add("GET", region + "/status", self.memory_status)
        self.app.add("POST", region + "/register", self.memory_register)
        self.app.add("POST", region + "/unregister", self.memory_unregister)
        self.app.add("POST", "/v2/systemsharedmemory/unregister", self.memory_unregister)

    # ------------------------------------------------------------------ inference

    async def infer(self, request: Request) -> Plain:
        """Run a model."""
        service, app, scope = self.service, self.app, request.scope
        path = scope["path_params"]
        with service.counted(path["model"]):
            instance = await service.acquire(path["model"], path.get("version"))
            try:
                body = await app.body(request)
                length = scope[HEADERS].get(JSON_LENGTH)
                size = MANY if self.memory.in_use else len(body)
                asked = await app.aside(size, read_v2, body, length, instance.input_kinds, self.memory)
                try:
                    head = asked.head
                    answer = await service.run(
                        instance,
                        asked.inputs,
                        head.names,
                        timeout_ms=head.timeout_ms,
                        caller=scope.get("api_key") or scope.get("client"),
                        gone=lambda: until_gone(request),
                    )
                finally:
                    if asked.shared:
                        self.memory.release(asked.shared)
            finally:
                instance.release()
            text, split = await app.aside(answer.nbytes, encode_v2, head, answer, self.memory)
        if split is None:
            return Plain(text, JSON)
        return Plain(text, OCTETS, (JSON_LENGTH, b"%d" % split))

    # ------------------------------------------------------------------ facts

    async def server(self, request: Request) -> Response:
        """Who answers."""
        del request
        return self.app.json(SERVER)

    async def _instance(self, request: Request) -> ModelInstance:
        instance = await self.service.acquire(request.path_params["model"], request.path_params.get("version"))
        instance.release()  # only looked at
        return instance

    async def metadata(self, request: Request) -> Response:
        """What a model takes and gives."""
        return self.app.json(model_metadata(self.registry, await self._instance(request)))

    async def model_ready(self, request: Request) -> Response:
        """Whether a model answers."""
        instance = await self._instance(request)
        return self.app.json({"name": instance.name, "ready": True})

    async def config(self, request: Request) -> Response:
        """How a model is served."""
        return self.app.json(model_config(await self._instance(request)))

    async def stats(self, request: Request) -> Response:
        """What models did; the name "stats" alone is that of all."""
        name, version = request.path_params["model"], request.path_params.get("version")
        self.registry.config(name, version)
        return self.app.json({"model_stats": model_statistics(self.registry, name, version)})

    # ------------------------------------------------------------------ the repository

    async def index(self, request: Request) -> Response:
        """All versions, with their states."""
        body = await self.app.body(request)
        only = as_dict(parse_json(body), "the body").get("ready") is True if body else False
        return self.app.json(repository_index(self.registry, only_ready=only))

    async def load(self, request: Request) -> Response:
        """Load a model of the model folder, or load it again."""
        self.app.check_control()
        body = await self.app.body(request)
        if body and as_dict(parse_json(body), "the body").get("parameters"):
            raise RequestError(400, "InvalidRequest", "models are loaded with the settings beside them: no parameters")
        await asyncio.to_thread(self.registry.load, request.path_params["model"])
        return Response()

    async def unload(self, request: Request) -> Response:
        """Let a model go."""
        self.app.check_control()
        await asyncio.to_thread(self.registry.unload, request.path_params["model"])
        return Response()

    # ------------------------------------------------------------------ shared memory

    async def memory_status(self, request: Request) -> Response:
        """What is registered."""
        return self.app.json(self.memory.status(request.path_params.get("region")))

    async def memory_register(self, request: Request) -> Response:
        """Map a region."""
        asked = as_dict(await self.app.read_json(request), "the body")
        region = request.path_params["region"]
        self.memory.register(region, asked.get("key"), asked.get("offset", 0), asked.get("byte_size"))
        return Response()

    async def memory_unregister(self, request: Request) -> Response:
        """Forget a region, or all."""
        self.memory.unregister(request.path_params.get("region"))
        return Response()


def model_metadata(registry: ModelRegistry, instance: ModelInstance) -> dict[str, Any]:
    """The protocol's form of what a model takes and gives."""
    found = instance.get_serving_metadata()

    def tensors(key: str) -> list[dict[str, Any]]:
        return [{"name": t["name"], "datatype": t["datatype"], "shape": t["shape"]} for t in found[key]]

    return {
        "name": instance.name,
        "versions": [v.version for v in registry.list_versions(instance.name)],
        "platform": found["platform"],
        "inputs": tensors("inputs"),
        "outputs": tensors("outputs"),
    }


def model_config(instance: ModelInstance) -> dict[str, Any]:
    """The protocol's form of how a model is served."""
    found = instance.get_serving_metadata()

    def tensors(key: str) -> list[dict[str, Any]]:
        return [{"name": t["name"], "data_type": "TYPE_" + _config_type(t), "dims": t["shape"]} for t in found[key]]

    settings = instance.batcher.config
    batching = {"preferred_batch_size": settings.sizes(), "max_queue_delay_microseconds": settings.max_latency_us}
    return {
        "name": instance.name,
        "platform": found["platform"],
        "backend": "pyflame_rt",
        "max_batch_size": 0,  # the batch axis is in the shapes
        "input": tensors("inputs"),
        "output": tensors("outputs"),
        **({"dynamic_batching": batching} if found["batching"] else {}),
    }


def _config_type(tensor: dict[str, Any]) -> str:
    return "STRING" if tensor["datatype"] == "BYTES" else tensor["datatype"]


def model_statistics(registry: ModelRegistry, name: str, version: str | None) -> list[dict[str, Any]]:
    """The protocol's statistics, in nanoseconds."""
    versions = registry.get_stats().get(name, {})
    return [_statistics(stats) for found, stats in versions.items() if version in (None, found)]


def _statistics(stats: dict[str, Any]) -> dict[str, Any]:
    done = stats["completed_requests"]
    total, queued = (int(done * stats[name] * 1e3) for name in ("avg_latency_us", "avg_queue_time_us"))

    def duration(count: int, nanoseconds: int) -> dict[str, int]:
        return {"count": count, "ns": nanoseconds}

    return {
        "name": stats["name"],
        "version": stats["version"],
        "last_inference": 0,
        "inference_count": stats["total_rows"],
        "execution_count": stats["total_batches"],
        "inference_stats": {
            "success": duration(done, total),
            "fail": duration(stats["failed_requests"], int(stats["failed_seconds"] * 1e9)),
            "queue": duration(done, queued),
            "compute_input": duration(done, 0),
            "compute_infer": duration(done, max(total - queued, 0)),
            "compute_output": duration(done, 0),
        },
        "batch_stats": [],
    }


def repository_index(registry: ModelRegistry, *, only_ready: bool = False) -> list[dict[str, str]]:
    """All versions, with their states."""
    return [
        {"name": v.name, "version": v.version, "state": "READY" if v.ready else "UNAVAILABLE", "reason": v.reason}
        for name in registry.list_models()
        for v in registry.list_versions(name)
        if v.ready or not only_ready
    ]
