"""What onnxruntime answers to a graph of ours, written as ONNX."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyflame_rt.loading import write_model

if TYPE_CHECKING:
    from pyflame_rt.graph import Graph


def onnxruntime_answers(graph: Graph, feed: dict[str, Any]) -> list[Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "portable.onnx"
        write_model(graph, path)
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        return session.run(None, feed)
