"""onnxruntime's answers to drawn graphs, and the differences that are known, each with its reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pyflame_rt.graph import AnyType, TensorInfo
from pyflame_rt.graph.errors import PyFlameRTError
from tests.generated.build import Answer, agree, answer, session

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyflame_rt.graph import Graph, Node

__all__ = ["ONNXRUNTIME", "explained", "onnxruntime_answer"]


class Known(NamedTuple):
    """Why onnxruntime's answer to an operator is another one, and where that is so."""

    why: str
    holds: Callable[[Sequence[Any], Sequence[Any]], bool]


def _nan_here(ours: Sequence[Any], theirs: Sequence[Any]) -> bool:
    """They differ only where ours is not a number."""
    return all(a.shape == b.shape and _same(np.where(np.isnan(a), b, a), b) for a, b in zip(ours, theirs, strict=True))


def _zero_there(ours: Sequence[Any], theirs: Sequence[Any]) -> bool:
    """They differ only where theirs is 0."""
    return all(a.shape == b.shape and _same(np.where(b == 0, 0, a), b) for a, b in zip(ours, theirs, strict=True))


def _same(a: Any, b: Any) -> bool:
    return not agree(Answer(outputs=[np.asarray(a, b.dtype)]), Answer(outputs=[b]), 80.0)  # quantized ones, too


def _labels(ours: Sequence[Any], theirs: Sequence[Any]) -> bool:
    return all(a.shape == b.shape and a.dtype == b.dtype for a, b in zip(ours, theirs, strict=True))


# Operator -> its difference. Refusals of onnxruntime are none: it runs fewer types, domains and versions than we do.
ONNXRUNTIME: dict[str, Known] = {
    "ReduceMean": Known("of nothing is NaN here as in NumPy and torch, 0 there", _nan_here),
    "LSTM": Known("after no step the last state is the first one here, there it is 0", _zero_there),
    "RNN": Known("after no step the last state is the first one here, there it is 0", _zero_there),
    "com.microsoft::DynamicQuantizeLSTM": Known(
        "after no step the last state is the first one here, there it is 0", _zero_there
    ),
    "GRU": Known("after no step the last state is the first one here, there it is 0", _zero_there),
    "ai.onnx.ml::TreeEnsembleClassifier": Known(
        "a leaf with a weight for the first of two classes alone counts there as one for the second", _labels
    ),
    "com.microsoft::QLinearSoftmax": Known(
        "of one element is the largest number here, there it wraps round to 0", _zero_there
    ),
}


# Operators that end the process in onnxruntime 1.31, with inputs that suit them.
CRASHES = {"QLinearWhere"}


def onnxruntime_answer(graph: Graph, feeds: dict[str, Any]) -> Answer | None:
    """What onnxruntime makes of a graph; None where it does not run it."""
    import onnxruntime

    from pyflame_rt.exporters.onnx import onnx_model

    if any(node.domain.startswith(("pyflame", "ai.onnx.preview")) for node in graph.nodes):
        return None
    if any(node.op_type in CRASHES for node in graph.nodes):
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


def explained(graph: Graph, feeds: dict[str, Any], loose: float) -> bool:
    """Whether every node whose outputs differ, though its inputs do not, has its difference on the list."""
    graph = graph.copy()
    asked = {info.name for info in graph.outputs}
    for name in [name for node in graph.nodes for name in node.outputs if name and name not in asked]:
        graph.add_output(TensorInfo(name, type=AnyType()))
    found = [answer(lambda: session(graph, "Reference"), feeds), onnxruntime_answer(graph, feeds)]
    if any(one is None or one.outputs is None for one in found):
        return False
    names = [info.name for info in graph.outputs]
    ours, theirs = (dict(zip(names, one.outputs, strict=True)) for one in found if one and one.outputs is not None)
    differing = {n for n in names if agree(Answer(outputs=[ours[n]]), Answer(outputs=[theirs[n]]), loose)}
    origins = [n for n in graph.nodes if differing & set(n.outputs) and not differing & set(n.inputs)]
    return bool(origins) and all(_listed(node, ours, theirs) for node in origins)


def _listed(node: Node, ours: dict[str, Any], theirs: dict[str, Any]) -> bool:
    known, made = ONNXRUNTIME.get(node.full_name), [name for name in node.outputs if name]
    return known is not None and known.holds([ours[name] for name in made], [theirs[name] for name in made])
