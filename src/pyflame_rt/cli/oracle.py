"""What models are verified against: ONNX Runtime where it is installed, else ONNX's reference."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

from pyflame_rt.graph.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyflame_rt.graph import Graph

__all__ = ["run_oracle"]


def run_oracle(graph: Graph, path: Path, feed: Mapping[str, Any]) -> tuple[str, list[Any]]:
    """Name of the other implementation, and its outputs in the model's order."""
    names = [info.name for info in graph.outputs]
    model = _onnx_model(graph, path)
    try:
        return _run(model, names, feed)
    except Exception as error:  # whatever another library raises
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BackendError(f"the other implementation cannot run this model: {text}") from error


def _run(model: Any, names: list[str], feed: Mapping[str, Any]) -> tuple[str, list[Any]]:
    if importlib.util.find_spec("onnxruntime") is not None:
        import onnxruntime

        onnxruntime.set_default_logger_severity(3)
        session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        return f"onnxruntime {onnxruntime.__version__}", list(session.run(names, dict(feed)))
    import onnx
    from onnx.reference import ReferenceEvaluator

    loaded = onnx.load(model) if isinstance(model, str) else onnx.load_from_string(model)
    return f"onnx.reference {onnx.__version__}", list(ReferenceEvaluator(loaded).run(names, dict(feed)))


def _onnx_model(graph: Graph, path: Path) -> Any:
    """The file itself when it is ONNX (its external data is found by path), else an export."""
    if path.suffix.lower() == ".onnx":
        return str(path)
    from pyflame_rt.exporters.onnx import onnx_model

    return onnx_model(graph).SerializeToString()
