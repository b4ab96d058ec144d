"""Trained models that answer: an engine in the process, a server and a client for others."""

from pyflame.serving.client import ClientConfig, ModelClient
from pyflame.serving.engine import InferenceConfig, InferenceEngine, InferenceStats
from pyflame.serving.errors import (
    AuthenticationError,
    InvalidRequestError,
    ModelFailedError,
    ServerUnavailableError,
    ServingError,
    ServingTimeoutError,
)
from pyflame.serving.optimized import OptimizedModel, optimize_for_inference
from pyflame.serving.server import ModelServer, ServerConfig

__all__ = [
    "AuthenticationError",
    "ClientConfig",
    "InferenceConfig",
    "InferenceEngine",
    "InferenceStats",
    "InvalidRequestError",
    "ModelClient",
    "ModelFailedError",
    "ModelServer",
    "OptimizedModel",
    "ServerConfig",
    "ServerUnavailableError",
    "ServingError",
    "ServingTimeoutError",
    "optimize_for_inference",
]
