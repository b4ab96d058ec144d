"""Gradients: modes, backward passes, hooks, recomputation, anomaly detection."""

from pyflame.autograd import functional
from pyflame.autograd.anomaly import AnomalyError
from pyflame.autograd.api import backward, checkpoint, grad
from pyflame.autograd.modes import (
    GradMode,
    detect_anomaly,
    enable_grad,
    inference_mode,
    is_grad_enabled,
    is_inference_mode_enabled,
    no_grad,
    set_detect_anomaly,
    set_grad_enabled,
)

__all__ = [
    "AnomalyError",
    "GradMode",
    "backward",
    "checkpoint",
    "detect_anomaly",
    "enable_grad",
    "functional",
    "grad",
    "inference_mode",
    "is_grad_enabled",
    "is_inference_mode_enabled",
    "no_grad",
    "set_detect_anomaly",
    "set_grad_enabled",
]
