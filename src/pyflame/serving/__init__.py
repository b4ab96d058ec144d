"""Trained models answering requests."""

from pyflame.serving.engine import InferenceConfig, InferenceEngine, InferenceStats

__all__ = ["InferenceConfig", "InferenceEngine", "InferenceStats"]
