"""Requests of many callers as runs of many rows."""

from pyflame_rt.batching.batcher import DynamicBatcher
from pyflame_rt.batching.config import BatchConfig
from pyflame_rt.batching.load_curve import LoadPoint, load_curve
from pyflame_rt.batching.priority import PriorityBatcher
from pyflame_rt.batching.requests import BatchFuture, InferenceRequest, InferenceResponse
from pyflame_rt.batching.stats import BatchStats

__all__ = [
    "BatchConfig",
    "BatchFuture",
    "BatchStats",
    "DynamicBatcher",
    "InferenceRequest",
    "InferenceResponse",
    "LoadPoint",
    "PriorityBatcher",
    "load_curve",
]
