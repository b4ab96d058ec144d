"""PyFlameRT: run any ONNX model, under ONNX Runtime's names.

>>> import numpy as np
>>> import pyflame_rt
>>> pyflame_rt.from_numpy(np.ones((2, 3), np.float32))
Tensor(float32[2, 3])
"""

from __future__ import annotations

import importlib
import os
import typing

from pyflame_rt._version import __version__

if typing.TYPE_CHECKING:
    from pyflame_rt.backends.base import Backend
    from pyflame_rt.differ import DiffResult, diff
    from pyflame_rt.exporters import export_onnx
    from pyflame_rt.factories import create_session, from_onnx, from_pyflame, from_torch
    from pyflame_rt.feeds import random_feed
    from pyflame_rt.format import load_model, save_model
    from pyflame_rt.graph import (
        DType,
        Graph,
        Node,
        NodeArg,
        Shape,
        Tensor,
        TensorInfo,
        from_numpy,
        to_numpy,
    )
    from pyflame_rt.graph.errors import (
        BackendError,
        DeviceLostError,
        DTypeMismatchError,
        FileWriteError,
        InputError,
        InvalidModelError,
        MemoryLimitError,
        MissingExtra,
        ModelNotFoundError,
        PyFlameRTError,
        QueueFullError,
        RunCancelledError,
        RunTimeoutError,
        SessionClosedError,
        ShapeMismatchError,
        UnsupportedFormatError,
        UnsupportedOperatorError,
        ValidationError,
    )
    from pyflame_rt.importers.base import ImportOptions, ImportResult, ImportStats
    from pyflame_rt.iobinding import IOBinding, OrtDevice, OrtValue
    from pyflame_rt.logs import set_default_logger_severity
    from pyflame_rt.options import (
        CompileOptions,
        GraphOptimizationLevel,
        ModelMetadata,
        OptLevel,
        RunOptions,
        SessionOptions,
    )
    from pyflame_rt.providers import (
        get_all_providers,
        get_available_providers,
        get_device,
        get_device_count,
        register_backend,
        unregister_backend,
    )
    from pyflame_rt.registry import OperatorRegistry, list_operators
    from pyflame_rt.session import InferenceSession

__all__ = [
    "Backend",
    "BackendError",
    "CompileOptions",
    "DType",
    "DTypeMismatchError",
    "DeviceLostError",
    "DiffResult",
    "FileWriteError",
    "Graph",
    "GraphOptimizationLevel",
    "IOBinding",
    "ImportOptions",
    "ImportResult",
    "ImportStats",
    "InferenceSession",
    "InputError",
    "InvalidModelError",
    "MemoryLimitError",
    "MissingExtra",
    "ModelMetadata",
    "ModelNotFoundError",
    "Node",
    "NodeArg",
    "OperatorRegistry",
    "OptLevel",
    "OrtDevice",
    "OrtValue",
    "PyFlameRTError",
    "QueueFullError",
    "RunCancelledError",
    "RunOptions",
    "RunTimeoutError",
    "SessionClosedError",
    "SessionOptions",
    "Shape",
    "ShapeMismatchError",
    "Tensor",
    "TensorInfo",
    "UnsupportedFormatError",
    "UnsupportedOperatorError",
    "ValidationError",
    "__version__",
    "create_session",
    "diff",
    "export_onnx",
    "from_numpy",
    "from_onnx",
    "from_pyflame",
    "from_torch",
    "get_all_providers",
    "get_available_providers",
    "get_device",
    "get_device_count",
    "list_operators",
    "load_model",
    "random_feed",
    "register_backend",
    "save_model",
    "set_default_logger_severity",
    "to_numpy",
    "unregister_backend",
]

# What few programs use is imported when first asked for.
_HOMES = {
    "backends.base": ("Backend",),
    "differ": ("DiffResult", "diff"),
    "exporters": ("export_onnx",),
    "factories": ("create_session", "from_onnx", "from_pyflame", "from_torch"),
    "feeds": ("random_feed",),
    "format": ("load_model", "save_model"),
    "graph": ("DType", "Graph", "Node", "NodeArg", "Shape", "Tensor", "TensorInfo", "from_numpy", "to_numpy"),
    "graph.errors": tuple(name for name in __all__ if name.endswith("Error") or name == "MissingExtra"),
    "importers.base": ("ImportOptions", "ImportResult", "ImportStats"),
    "iobinding": ("IOBinding", "OrtDevice", "OrtValue"),
    "logs": ("set_default_logger_severity",),
    "options": (
        "CompileOptions",
        "GraphOptimizationLevel",
        "ModelMetadata",
        "OptLevel",
        "RunOptions",
        "SessionOptions",
    ),
    "providers": (
        "get_all_providers",
        "get_available_providers",
        "get_device",
        "get_device_count",
        "register_backend",
        "unregister_backend",
    ),
    "registry": ("OperatorRegistry", "list_operators"),
    "session": ("InferenceSession",),
}
_LAZY = {name: f"pyflame_rt.{home}" for home, names in _HOMES.items() for name in names}
_SUBMODULES = frozenset(
    (
        *("backend", "backends", "batching", "cache", "cli", "compiler", "custom", "distillation", "exporters"),
        *("format", "generate", "graph", "import_module", "importers", "memory", "ops", "opt", "options", "ort"),
        *("partition", "providers", "pruning", "quantization", "serving", "session", "streaming"),
    )
)


def __getattr__(name: str) -> typing.Any:
    if name in _LAZY:
        value = getattr(importlib.import_module(_LAZY[name]), name)
        globals()[name] = value
        return value
    if name in _SUBMODULES:
        try:
            return importlib.import_module(f"pyflame_rt.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"pyflame_rt.{name}":
                raise
    raise AttributeError(f"module 'pyflame_rt' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_SUBMODULES})


def _prepare() -> None:
    """Load what every session needs, so that the first model does not wait for it; PYFLAME_LAZY_IMPORT=1 leaves it."""
    if os.environ.get("PYFLAME_LAZY_IMPORT", "") in ("", "0"):
        for name in ("session", "importers.registry"):  # what every session of a file needs
            importlib.import_module(f"pyflame_rt.{name}")
        importlib.import_module("pyflame_rt.providers").prepare_default()


_prepare()
