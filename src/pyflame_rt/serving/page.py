"""A page for people, and a description for programs (OpenAPI)."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from pyflame_rt._version import __version__
from pyflame_rt.serving.openai_requests import ChatRequest, CompletionRequest, EmbeddingRequest
from pyflame_rt.serving.routing import NESTED

if TYPE_CHECKING:
    from starlette.requests import Request

    from pyflame_rt.serving.app import Application
    from pyflame_rt.serving.paths import Route

__all__ = ["Page", "openapi"]

MAX_NODES = 5000


class Page:
    """The page at ``/``, graphs for it, and ``/openapi.json``.

    Args:
        app: the application.
    """

    def __init__(self, app: Application) -> None:
        self.app = app
        app.add("GET", "/", self.page)
        app.add("GET", "/openapi.json", self.description)
        app.add("GET", "/v1/models/{model}/graph", self.graph)

    async def page(self, request: Request) -> Response:
        """Models, what they do, and a form to try them."""
        del request
        text, policy = _page()
        headers = {"content-security-policy": policy, "x-content-type-options": "nosniff"}
        return Response(text, media_type="text/html", headers=headers)

    async def description(self, request: Request) -> Response:
        """What is answered, in OpenAPI's form."""
        del request
        return self.app.json(openapi(self.app.routes()))

    async def graph(self, request: Request) -> Response:
        """The nodes of a model, in order."""
        instance = await self.app.service.acquire(request.path_params["model"])
        try:
            nodes = [
                {"name": n.name, "op_type": n.op_type, "inputs": list(n.inputs), "outputs": list(n.outputs)}
                for n in instance.graph.nodes[:MAX_NODES]
            ]
            total = len(instance.graph.nodes)
        finally:
            instance.release()
        return self.app.json({"name": instance.name, "version": instance.version, "total": total, "nodes": nodes})


@cache
def _page() -> tuple[str, str]:
    """The page, and a policy that lets it run its own script alone."""
    text = files("pyflame_rt.serving").joinpath("page.html").read_text("utf-8")
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; connect-src 'self'; "
        "img-src 'self' blob: data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return text, policy


_TENSOR: dict[str, Any] = {
    "type": "object",
    "required": ["data"],
    "properties": {
        "shape": {"type": "array", "items": {"type": "integer", "minimum": 0}},
        "dtype": {"type": "string", "example": "float32"},
        "data": {
            "description": "base64 of the little-endian bytes, or numbers",
            "oneOf": [{"type": "string"}, {"type": "array", "items": {}}],
        },
    },
}
_INFER = {
    "type": "object",
    "required": ["inputs"],
    "properties": {
        "request_id": {"type": "string", "maxLength": 512},
        "inputs": {"type": "object", "minProperties": 1, "additionalProperties": _TENSOR},
        "outputs": {"type": "array", "items": {"type": "string"}},
        "timeout_ms": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1e9},
    },
}
_ERROR: dict[str, Any] = {
    "type": "object",
    "required": ["success", "error_code", "error_message", "error"],
    "properties": {
        "success": {"type": "boolean"},
        "error_code": {"type": "string"},
        "error_message": {"type": "string"},
        "error": {"type": "string"},
        "request_id": {"type": "string"},
    },
}
_NESTED = {  # where OpenAI's clients ask
    **_ERROR,
    "properties": {
        **_ERROR["properties"],
        "error": {
            "type": "object",
            "required": ["message", "type", "code"],
            "properties": {"message": {"type": "string"}, "type": {"type": "string"}, "code": {"type": "integer"}},
        },
    },
}
_V2_TENSOR = {
    "type": "object",
    "required": ["name", "shape"],
    "properties": {
        "name": {"type": "string"},
        "shape": _TENSOR["properties"]["shape"],
        "datatype": {"type": "string", "example": "FP32"},
        "parameters": {"type": "object"},
        "data": {"type": "array", "items": {}},
    },
}
_V2_INFER = {
    "type": "object",
    "required": ["inputs"],
    "properties": {
        "id": {"type": "string", "maxLength": 512},
        "inputs": {"type": "array", "minItems": 1, "items": _V2_TENSOR},
        "outputs": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name"],
                "properties": {"name": {"type": "string"}, "parameters": {"type": "object"}},
            },
        },
        "parameters": {"type": "object"},
    },
}
_REGION = {
    "type": "object",
    "required": ["key", "byte_size"],
    "properties": {
        "key": {"type": "string"},
        "offset": {"type": "integer", "minimum": 0},
        "byte_size": {"type": "integer", "minimum": 1},
    },
}
_BODIES: dict[str, Any] = {
    "/v1/completions": CompletionRequest,
    "/v1/chat/completions": ChatRequest,
    "/v1/embeddings": EmbeddingRequest,
}


def openapi(routes: list[Route]) -> dict[str, Any]:
    """The description of routes: made from the table that answers, so that nothing is left out."""
    paths: dict[str, Any] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    keys = {
        "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
        "bearer": {"type": "http", "scheme": "bearer"},
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "PyFlame RT", "version": __version__},
        "paths": paths,
        "components": {"schemas": {"Error": _ERROR, "NestedError": _NESTED}, "securitySchemes": keys},
        "security": [{}, {"key": []}, {"bearer": []}],
    }


def _operation(route: Route) -> dict[str, Any]:
    summary = (route.handler.__doc__ or "").strip().splitlines()
    kind = "NestedError" if route.path.startswith(NESTED) else "Error"
    refused = {
        "description": "why not",
        "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{kind}"}}},
    }
    found: dict[str, Any] = {
        "summary": summary[0] if summary else route.path,
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in re.findall(r"{(\w+)}", route.path)
        ],
        "responses": {"200": {"description": "the answer"}, "4XX": refused, "5XX": refused},
    }
    body = _body(route.path) if route.method == "POST" else None
    if body is not None:
        found["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    return found


def _body(path: str) -> dict[str, Any] | None:
    if path in _BODIES:
        return _inlined(_BODIES[path].model_json_schema())
    if path.endswith("/infer"):
        return _INFER if path.startswith("/v1/") else _V2_INFER
    return _REGION if path.endswith("/register") else None


def _inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema whose parts stand where they are used."""
    parts = schema.pop("$defs", {})

    def walk(value: Any) -> Any:
        if isinstance(value, dict):
            if "$ref" in value:
                return walk(parts[value["$ref"].rsplit("/", 1)[1]])
            return {key: walk(inner) for key, inner in value.items()}
        return [walk(inner) for inner in value] if isinstance(value, list) else value

    return walk(schema)
