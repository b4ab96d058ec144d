"""Graphs of one operator, and the answers or refusals that backends give for them."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

import pyflame_rt
from pyflame_rt.graph import AnyType, DType, Graph, MapType, SequenceType, Shape, TensorInfo, TensorType
from pyflame_rt.graph.errors import PyFlameRTError
from tests.generated import (
    samples_basic,
    samples_fused,
    samples_layers,
    samples_matrices,
    samples_microsoft,
    samples_rest,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from tests.generated.draw import Sample

__all__ = ["Answer", "agree", "answer", "one_node", "session"]

_FAMILIES = (
    samples_basic,
    samples_fused,
    samples_layers,
    samples_matrices,
    samples_microsoft,
    samples_rest,
)  # declare their samples when imported
NODE = "the_node"


def value_type(value: Any) -> Any:
    """The type under which a feed is declared: of known rank, with open sizes."""
    if isinstance(value, list):
        return SequenceType(value_type(value[0]) if value else TensorType(DType.Float32))
    if isinstance(value, dict):
        key = next(iter(value), "")
        return MapType(DType.String if isinstance(key, str) else DType.Int64, TensorType(DType.Float32, Shape(())))
    return TensorType(DType.of(value.dtype), Shape([None] * value.ndim))


def one_node(sample: Sample, constant: Collection[int] = ()) -> tuple[Graph, dict[str, Any]]:
    """A graph of one node with a name, and its feeds; inputs of the numbers in ``constant`` are initializers."""
    graph, feeds, names = Graph("sweep"), {}, []
    inputs = list(sample.inputs)
    while inputs and inputs[-1] is None:
        inputs.pop()
    for i, value in enumerate(inputs):
        names.append("" if value is None else f"x{i}")
        if value is None:
            continue
        if i in constant and isinstance(value, np.ndarray):
            graph.add_initializer(names[-1], value)
        else:
            graph.add_input(TensorInfo(names[-1], type=value_type(value)))
            feeds[names[-1]] = value
    outputs = [f"y{i}" for i in range(sample.outputs)]
    graph.add_node(NODE, sample.name, names, outputs, sample.attributes, domain=sample.domain)
    for name in outputs:
        graph.add_output(TensorInfo(name, type=AnyType()))
    return graph, feeds


@dataclass
class Answer:
    """What a backend did: gave ``outputs``, or refused with an error of the tree, or raised something else."""

    outputs: list[Any] | None = None
    refusal: str = ""
    message: str = ""
    untyped: bool = False

    @property
    def said(self) -> str:
        """In one line."""
        if self.outputs is None:
            return f"{'UNTYPED ' if self.untyped else ''}{self.refusal}: {self.message[:160]}"
        return ", ".join(_short(o) for o in self.outputs)


def _short(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)}{np.array2string(value.ravel()[:4], precision=4)}"
    return repr(value)[:60]


def session(graph: Graph, provider: str, **options: Any) -> pyflame_rt.InferenceSession:
    """A session on one thread."""
    settings = pyflame_rt.SessionOptions(log_level="error")
    if provider == "CPU":
        settings.num_threads = 1
    for name, value in options.items():
        setattr(settings, name, value)
    return pyflame_rt.InferenceSession(graph, settings, providers=[f"{provider}ExecutionProvider"])


def answer(made: Any, feeds: Mapping[str, Any] | None = None) -> Answer:
    """Run a session, or what makes one."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            found: Any = made() if callable(made) else made
            return Answer(outputs=list(found.run(None, dict(feeds or {}))))
        except PyFlameRTError as error:
            return Answer(refusal=type(error).__name__, message=str(error))
        except Exception as error:  # noqa: BLE001 - every untyped error is a finding
            return Answer(refusal=type(error).__name__, message=str(error), untyped=True)


# How far sums may differ when they are added in another order, by type.
_TOLERANCE = {"float16": 2e-2, "float32": 2e-4, "float64": 1e-6, "bfloat16": 1e-1}


def _same(a: Any, b: Any, loose: float) -> bool:
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(_same(x, y, loose) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[k], b[k], loose) for k in a)
    if isinstance(a, float) and isinstance(b, float):
        return _same(np.array(a, np.float32), np.array(b, np.float32), loose)
    if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
        return type(a) is type(b) and bool(a == b or a != a)
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.dtype == object or a.dtype.kind in "US":
        return bool((a == b).all())
    if a.dtype.kind not in "fcV":
        # A float that lies between two integers may go either way.
        return bool((a == b).all()) or (
            loose > 1 and a.dtype.itemsize == 1 and bool((abs(a.astype(int) - b) <= 1).all())
        )
    bound = _TOLERANCE.get(a.dtype.name, 1e-3) * loose
    x, y = (v.astype(np.complex128 if a.dtype.kind == "c" else np.float64) for v in (a, b))
    scale = float(np.max(np.abs(y[np.isfinite(y)]), initial=0.0))
    return bool(np.allclose(x, y, rtol=bound, atol=bound * max(scale, 1.0), equal_nan=True))


def agree(a: Answer, b: Answer, loose: float = 1.0) -> str:
    """ "" when two backends refused alike or gave the same outputs, else what differs."""
    if a.untyped or b.untyped:
        return "untyped"
    if (a.outputs is None) != (b.outputs is None):
        return "one refused"
    if a.outputs is None:
        return "" if a.refusal == b.refusal else "refusals of different type"
    assert b.outputs is not None
    return "" if _same(a.outputs, b.outputs, loose) else "outputs differ"


def names_the_node(found: Answer, names: Sequence[str] = (NODE,)) -> bool:
    """Whether a refusal says where it happened: at a node, or at a feed."""
    if found.outputs is not None or any(repr(n) in found.message for n in names) or "input" in found.message:
        return True
    return found.message.startswith("node ") and "%" not in found.message  # of a subgraph
