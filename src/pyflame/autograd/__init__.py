"""Gradients: modes, backward passes, hooks, recomputation, anomaly detection."""

from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

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

if _TYPE_CHECKING:
    from pyflame.extend.function import AutogradFunction as Function

__all__ = [
    "AnomalyError",
    "Function",
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


def __getattr__(name: str) -> _Any:
    if name == "Function":  # torch's name for it
        from pyflame.extend.function import AutogradFunction

        return AutogradFunction
    raise AttributeError(f"module 'pyflame.autograd' has no attribute {name!r}")
