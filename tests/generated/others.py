"""onnxruntime's answers to drawn graphs, and the differences that are known, each with its reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame_rt.graph.errors import PyFlameRTError
from tests.generated.build import Answer

if TYPE_CHECKING:
    from pyflame_rt.graph import Graph

__all__ = ["ONNXRUNTIME", "explained", "onnxruntime_answer"]

# Operator -> why onnxruntime's answer to it is another one. Refusals of onnxruntime are no difference: it runs fewer
# types, domains and opset versions than we do.
ONNXRUNTIME: dict[str, str] = {
    "ReduceMean": "of nothing is NaN here as in NumPy and torch, 0 there",
    "LSTM": "after no step the last state is the first one here, there it is 0",
    "GRU": "after no step the last state is the first one here, there it is 0",
    "ai.onnx.ml::TreeEnsembleClassifier": "a leaf with a weight for the first of two classes alone counts there as one "
    "for the second",
    "com.microsoft::QLinearSoftmax": "of one element is the largest number here, there it wraps round to 0",
}


def onnxruntime_answer(graph: Graph, feeds: dict[str, Any]) -> Answer | None:
    """What onnxruntime makes of a graph; None where it does not run it."""
    import onnxruntime

    from pyflame_rt.exporters.onnx import onnx_model

    if any(node.domain.startswith(("pyflame", "ai.onnx.preview")) for node in graph.nodes):
        return None
    try:
        data = onnx_model(graph).SerializeToString()
    except PyFlameRTError:
        return None
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    try:
        session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        return Answer(outputs=list(session.run(None, feeds)))
    except Exception:  # noqa: BLE001 - whatever it raises, it does not run this
        return None


def explained(ops: list[str], ours: Answer, theirs: Answer) -> bool:
    """Whether a difference is on the list."""
    del ours, theirs
    return any(op in ONNXRUNTIME for op in ops)
