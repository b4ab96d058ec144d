"""Operators that ``com.microsoft`` had before, or beside, their ONNX forms."""

from __future__ import annotations

from typing import Any

from pyflame_rt.graph import DType, Shape, TensorType
from pyflame_rt.graph.errors import InputError
from pyflame_rt.ops.core.registry import operator
from pyflame_rt.ops.core.value import Value, constant
from pyflame_rt.ops.microsoft.fused import MICROSOFT
from pyflame_rt.ops.onnx.arithmetic import Max
from pyflame_rt.ops.onnx.cast import Cast
from pyflame_rt.ops.onnx.creation import Range as StandardRange
from pyflame_rt.ops.onnx.creation import Trilu as StandardTrilu
from pyflame_rt.ops.onnx.index import GatherND as StandardGatherND
from pyflame_rt.ops.onnx.index import Unique as StandardUnique
from pyflame_rt.ops.onnx.logic import Not
from pyflame_rt.ops.onnx.math import IsInf, IsNaN, Sqrt
from pyflame_rt.ops.onnx.reduce import ReduceMax, ReduceSum
from pyflame_rt.ops.onnx.shape import Reshape, Unsqueeze
from pyflame_rt.ops.onnx.slicing import Concat, Slice
from pyflame_rt.ops.onnx.slicing import Pad as StandardPad


@operator(since=1, domain=MICROSOFT)
def Trilu(X: Value, k: Value | None = None, /, *, upper: int = 1) -> Value:
    """The upper or lower triangle of matrices."""
    return StandardTrilu(X, k, upper=upper)


@operator(since=1, domain=MICROSOFT, kind="move")
def Pad(data: Value, pads: Value, value: Value | None = None, /, *, mode: str = "constant") -> Value:
    """Add to the ends of axes."""
    flat = Reshape(pads, [-1])
    return StandardPad(data, flat, value if value is None else Reshape(value, constant([], DType.Int64)), mode=mode)


@operator(since=1, domain=MICROSOFT, kind="move")
def GatherND(data: Value, indices: Value, /) -> Value:
    """Elements or slices by index tuples."""
    return StandardGatherND(data, Cast(indices, to=DType.Int64))


@operator(since=1, domain=MICROSOFT)
def Range(start: Value, limit: Value, delta: Value | None = None, /) -> Value:
    """Numbers from start to limit, by 1 unless told."""
    none: Any = constant([], DType.Int64)
    step = constant(1, start) if delta is None else Reshape(delta, none)
    return StandardRange(Reshape(start, none), Reshape(limit, none), step)


@operator(since=1, domain=MICROSOFT, kind="move")
def ExpandDims(X: Value, axis: Value, /) -> Value:
    """A further axis of size 1."""
    return Unsqueeze(X, Reshape(Cast(axis, to=DType.Int64), [1]))


def _unique_type(x: Value, /) -> tuple[TensorType, TensorType, TensorType]:
    found = Shape([None])
    return TensorType(x.dtype, found), TensorType(DType.Int64, x.tensor_type.shape), TensorType(DType.Int64, found)


@operator(since=1, domain=MICROSOFT, infer=_unique_type)
def Unique(x: Value, /) -> tuple[Value, Value, Value]:
    """Different elements in order of appearance, where each element is among them, and how often they occur."""
    values, _, inverse, counts = StandardUnique(x, sorted=0)
    return values, inverse, counts


@operator(since=1, domain=MICROSOFT)
def CDist(A: Value, B: Value, /, *, metric: str = "sqeuclidean") -> Value:
    """Distances between the rows of two matrices."""
    if metric not in ("sqeuclidean", "euclidean"):
        raise InputError(f"metric must be euclidean or sqeuclidean, got {metric!r}")
    away = Unsqueeze(A, [1]) - Unsqueeze(B, [0])
    squares = ReduceSum(away * away, [2], keepdims=0)
    return squares if metric == "sqeuclidean" else Sqrt(squares)


@operator(since=1, domain=MICROSOFT)
def IsAllFinite(*input: Value, isinf_only: int = 0, isnan_only: int = 0) -> Value:
    """Whether no element of any tensor is infinite or NaN."""
    if isinf_only and isnan_only:
        raise InputError("isinf_only and isnan_only exclude each other")
    bad: list[Value] = []
    for x in input:
        found = IsInf(x) if isinf_only else IsNaN(x) if isnan_only else IsNaN(x - x)
        bad.append(ReduceMax(Cast(Reshape(found, [-1]), to=DType.Int32), [0], keepdims=0))
    return Not(Cast(bad[0] if len(bad) == 1 else Max(*bad), to=DType.Bool))


def _complex_parts(x: Value) -> tuple[Value, Value]:
    return Slice(x, [0], [1], [-1]), Slice(x, [1], [2], [-1])


@operator(since=1, domain=MICROSOFT)
def ComplexMul(A: Value, B: Value, /) -> Value:
    """Product of complex numbers, whose two parts are the last axis."""
    (a, b), (c, d) = _complex_parts(A), _complex_parts(B)
    return Concat(a * c - b * d, a * d + b * c, axis=-1)


@operator(since=1, domain=MICROSOFT)
def ComplexMulConj(A: Value, B: Value, /) -> Value:
    """Product with the conjugate of the second."""
    (a, b), (c, d) = _complex_parts(A), _complex_parts(B)
    return Concat(a * c + b * d, b * c - a * d, axis=-1)
