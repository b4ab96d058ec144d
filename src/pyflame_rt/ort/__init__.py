"""ONNX Runtime's interface: ``import pyflame_rt.ort as onnxruntime``.

Type strings read ``tensor(float)``, named sizes are shown by name, and errors are raised under
the names of ``onnxruntime.capi.onnxruntime_pybind11_state``.

Example:
    >>> import pyflame_rt.ort as onnxruntime
    >>> onnxruntime.get_device()
    'CPU'
"""

from __future__ import annotations

import warnings as _warnings

from pyflame_rt._version import __version__ as _our_version
from pyflame_rt.iobinding import IOBinding, OrtDevice, OrtValue
from pyflame_rt.logs import set_default_logger_severity
from pyflame_rt.options import GraphOptimizationLevel, ModelMetadata
from pyflame_rt.ort import capi
from pyflame_rt.ort.options import ExecutionMode, ExecutionOrder, RunOptions, SessionOptions
from pyflame_rt.ort.session import ORT_PROVIDERS as _ORT_PROVIDERS
from pyflame_rt.ort.session import InferenceSession, NodeArg
from pyflame_rt.providers import get_all_providers as _our_providers
from pyflame_rt.providers import get_available_providers, get_device

__version__ = "1.31.1"
"""The version of ONNX Runtime whose interface this follows."""

__all__ = [
    "ExecutionMode",
    "ExecutionOrder",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "ModelMetadata",
    "NodeArg",
    "OrtDevice",
    "OrtValue",
    "RunOptions",
    "SessionIOBinding",
    "SessionOptions",
    "capi",
    "disable_telemetry_events",
    "enable_telemetry_events",
    "get_all_providers",
    "get_available_providers",
    "get_build_info",
    "get_device",
    "get_version_string",
    "has_collective_ops",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "set_seed",
]

SessionIOBinding = IOBinding


def get_all_providers() -> list[str]:
    """Names of all providers, ours and ONNX Runtime's.

    Example:
        >>> "CUDAExecutionProvider" in get_all_providers()
        True
    """
    return [*_ORT_PROVIDERS, *_our_providers()]


def get_version_string() -> str:
    """The version of ONNX Runtime whose interface this follows."""
    return __version__


def get_build_info() -> str:
    """What this is.

    Example:
        >>> get_build_info().split()[0]
        'PyFlameRT'
    """
    return f"PyFlameRT {_our_version} under ONNX Runtime's interface {__version__}"


def set_seed(seed: int) -> None:
    """Start the random numbers of operators without a seed anew."""
    from emberharmony.ops import set_random_seed

    set_random_seed(seed)


def set_default_logger_verbosity(verbosity: int) -> None:
    """Accepted for compatibility, with a warning: severity alone decides what is logged."""
    if verbosity < 0:
        raise ValueError(f"verbosity must not be negative, got {verbosity}")
    if verbosity:
        _warnings.warn(f"verbosity={verbosity} has no effect: the severity alone decides", UserWarning, stacklevel=2)


def has_collective_ops() -> bool:
    """False: no collective operators."""
    return False


def enable_telemetry_events() -> None:
    """No effect: there is no telemetry."""


def disable_telemetry_events() -> None:
    """No effect: there is no telemetry."""
