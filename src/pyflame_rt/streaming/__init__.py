"""Runs in the background, and models that carry a state from step to step."""

from pyflame_rt.streaming.async_session import AsyncSession
from pyflame_rt.streaming.inference import StreamingInference
from pyflame_rt.streaming.results import AsyncOptions, AsyncResult, AsyncStats, RunRecord

__all__ = ["AsyncOptions", "AsyncResult", "AsyncSession", "AsyncStats", "RunRecord", "StreamingInference"]
