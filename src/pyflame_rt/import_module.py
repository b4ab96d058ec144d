"""Importers of other frameworks' models, and what they give back.

Example:
    >>> from pyflame_rt.import_module import ONNXImporter
    >>> result = ONNXImporter().import_model("missing.onnx")
    >>> result.success, result.error
    (False, "there is no file 'missing.onnx'")
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from pyflame_rt.importers.base import Importer, ImportOptions, ImportResult, ImportStats
from pyflame_rt.importers.registry import (
    get_importer,
    import_model,
    list_importers,
    register_importer,
)

if TYPE_CHECKING:
    from pyflame_rt.importers.huggingface.importer import HuggingFaceImporter
    from pyflame_rt.importers.keras_importer import KerasImporter
    from pyflame_rt.importers.onnx_importer import (
        MAX_OPSET_VERSION,
        MIN_OPSET_VERSION,
        ONNXImporter,
        get_opset_version,
        is_opset_supported,
    )
    from pyflame_rt.importers.torch_export.importer import TorchExportImporter
    from pyflame_rt.importers.torch_importer import PyTorchImporter
    from pyflame_rt.importers.torchscript.importer import TorchScriptImporter

__all__ = [
    "MAX_OPSET_VERSION",
    "MIN_OPSET_VERSION",
    "HuggingFaceImporter",
    "ImportOptions",
    "ImportResult",
    "ImportStats",
    "Importer",
    "KerasImporter",
    "ONNXImporter",
    "PyTorchImporter",
    "TorchExportImporter",
    "TorchScriptImporter",
    "get_importer",
    "get_opset_version",
    "import_model",
    "is_opset_supported",
    "list_importers",
    "register_importer",
]

_ONNX = "pyflame_rt.importers.onnx_importer"
_LAZY = {
    "HuggingFaceImporter": "pyflame_rt.importers.huggingface.importer",
    "KerasImporter": "pyflame_rt.importers.keras_importer",
    "MAX_OPSET_VERSION": _ONNX,
    "MIN_OPSET_VERSION": _ONNX,
    "ONNXImporter": _ONNX,
    "PyTorchImporter": "pyflame_rt.importers.torch_importer",
    "TorchExportImporter": "pyflame_rt.importers.torch_export.importer",
    "TorchScriptImporter": "pyflame_rt.importers.torchscript.importer",
    "get_opset_version": _ONNX,
    "is_opset_supported": _ONNX,
}


def __getattr__(name: str) -> Any:
    # onnx and torch are imported by whoever needs them, not by `import pyflame_rt`.
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value
