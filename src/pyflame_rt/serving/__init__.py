"""Models behind HTTP and gRPC: server, registry, metrics and clients."""

from pyflame_rt.serving.extra import require_extra as _require_extra

_require_extra()

from pyflame_rt.serving.async_client import AsyncModelClient  # noqa: E402 - one sentence comes before many imports
from pyflame_rt.serving.client import ModelClient  # noqa: E402
from pyflame_rt.serving.config import (  # noqa: E402
    GRPCConfig,
    HTTPConfig,
    ModelConfig,
    RateLimitConfig,
    ServerConfig,
    TLSConfig,
)
from pyflame_rt.serving.errors import ServerError  # noqa: E402
from pyflame_rt.serving.instance import ModelInstance  # noqa: E402
from pyflame_rt.serving.metrics import MetricsRegistry  # noqa: E402
from pyflame_rt.serving.registry import ModelRegistry, ModelVersion  # noqa: E402
from pyflame_rt.serving.replies import InferenceRequest, InferenceResponse, ModelInfo, ModelMetadata  # noqa: E402
from pyflame_rt.serving.server import ModelServer, ModelServerBuilder  # noqa: E402

__all__ = [
    "AsyncModelClient",
    "GRPCConfig",
    "HTTPConfig",
    "InferenceRequest",
    "InferenceResponse",
    "MetricsRegistry",
    "ModelClient",
    "ModelConfig",
    "ModelInfo",
    "ModelInstance",
    "ModelMetadata",
    "ModelRegistry",
    "ModelServer",
    "ModelServerBuilder",
    "ModelVersion",
    "RateLimitConfig",
    "ServerConfig",
    "ServerError",
    "TLSConfig",
]
