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
from pyflame.suggestions import missing as _missing

if _TYPE_CHECKING:
    from pyflame.autograd.variable import Variable
    from pyflame.extend.function import AutogradFunction as Function

__all__ = [
    "AnomalyError",
    "Function",
    "GradMode",
    "Variable",
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
    if name == "Variable":  # torch's old name for a tensor
        from pyflame.autograd.variable import Variable

        return Variable
    raise _missing("pyflame.autograd", name, __all__)
