"""Elements by index, by rank and by running along an axis."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from pyflame_rt.backends.cpu.graph.op_support import LOOP_TYPES
from pyflame_rt.backends.cpu.ir.kernel_program import (
    Map,
    Reduce,
    Reduction,
    Scalar,
    Store,
    apply,
    const,
    index,
    load,
    scalar,
)
from pyflame_rt.backends.cpu.kernels.indexing import IndexedKernel, RowSumsKernel, RunningKernel
from pyflame_rt.backends.cpu.kernels.range_checks import WithinKernel
from pyflame_rt.backends.cpu.kernels.top_k import TopKKernel
from pyflame_rt.backends.cpu.lower.loop_nests import row_step, rows_of
from pyflame_rt.backends.cpu.lower.lowering import PIECES, ROW_GRAIN, Lowering, NotNative, lowers
from pyflame_rt.backends.cpu.memory.buffer_views import View, as_bits, contiguous_strides
from pyflame_rt.graph import DType
from pyflame_rt.ops.onnx.index import GatherElements, GatherND, ScatterElements, ScatterND, TopK
from pyflame_rt.ops.onnx.loss import ClassScore, ClassScoreGrad
from pyflame_rt.ops.onnx.reduce import ArgMax, ArgMin, CumProd, CumSum
from pyflame_rt.ops.pyflame.within import Look

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame_rt.opt.specialized_graph import SpecializedNode

__all__: list[str] = []

_SUMMED: dict[DType, Literal["float", "double"]] = {DType.Float32: "float", DType.Float64: "double"}
SUMS_BLOCK = 128  # columns of sums that a thread takes at once


def _indices(low: Lowering, name: str) -> View:
    view = low.strided(name)
    if view.dtype not in (DType.Int32, DType.Int64):
        raise NotNative(f"indices of {view.dtype.label}")
    return view


def _movable(view: View) -> str:
    """The type under which elements are only moved."""
    if view.dtype.itemsize == 16:
        raise NotNative("elements of 16 bytes")
    return as_bits(view).dtype.label


def _indexed(
    low: Lowering,
    label: str,
    views: tuple[View, View, View],
    space: tuple[int, ...],
    strides: tuple[Sequence[int], Sequence[int], Sequence[int]],
    inner: tuple[int, int, int, int],
    axes: Sequence[tuple[int, int]],
    *,
    put: bool = False,
    fold: str = "none",
) -> None:
    """Add an indexed kernel; ``inner`` is n, far inner stride, step in a tuple, near inner stride."""
    far, indices, near = views
    n, far_inner, step, near_inner = inner
    dims = space or (1,)
    given = [list(s) or [0] for s in strides]
    dtype = far.dtype.label if fold != "none" else _movable(far)
    kernel = IndexedKernel(
        dtype,
        indices.dtype.label,
        len(dims),
        len(axes),
        put,
        fold,
        n > 1 and far_inner == near_inner == 1,
    )
    params = [n, *dims, *given[0], far_inner, *given[1], step, *given[2], near_inner]
    params += [value for axis in axes for value in axis]
    rows = math.prod(dims)
    # Updates of one place must come one after the other: they stay on one thread.
    grain = rows if put else max(1, ROW_GRAIN // (8 * max(n, 1)))
    if rows and n:
        low.kernel(label, kernel, [far, indices, near, low.flag()], params, rows, max(grain, 1))


_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


@lowers(Look)
def within(low: Lowering, step: SpecializedNode) -> None:
    """Look through numbers; who reads the result reads the numbers themselves."""
    view = low.dense(step.node.inputs[0])
    if view.dtype.label not in _INTEGERS:
        raise NotNative(f"limits of {view.dtype.label}")
    low.places[step.node.outputs[0]] = view
    names = {"l": "low", "h": "high", "w": "without"}
    given = {mark: step.attributes[name] for mark, name in names.items() if step.attributes[name] is not None}
    if not view.count or not given:
        return
    kernel = WithinKernel(view.dtype.label, "".join(given))
    params = [given.get(mark, 0) for mark in names]
    low.kernel(Look.name, kernel, [view, low.flag()], params, view.count, ROW_GRAIN, PIECES)


@lowers(GatherElements, checks_indices=True)
def gather_elements(low: Lowering, step: SpecializedNode) -> None:
    """For each place of the indices, the element they point at along an axis."""
    data, indices = low.strided(step.node.inputs[0]), _indices(low, step.node.inputs[1])
    if len(data.shape) != len(indices.shape):
        raise NotNative("data and indices of different rank")
    axis = step.attributes["axis"] % max(len(data.shape), 1)
    if any(n > d for k, (n, d) in enumerate(zip(indices.shape, data.shape, strict=True)) if k != axis):
        raise NotNative("indices larger than the data")
    out = low.output(step)
    far = [0 if k == axis else s for k, s in enumerate(data.strides)]
    _indexed(
        low,
        GatherElements.name,
        (data, indices, out),
        indices.shape,
        (far, indices.strides, out.strides),
        (1, 0, 0, 0),
        [(data.shape[axis], data.strides[axis])],
    )


@lowers(GatherND, checks_indices=True)
def gather_nd(low: Lowering, step: SpecializedNode) -> None:
    """Slices of the data at index tuples."""
    data, indices = low.dense(step.node.inputs[0]), _indices(low, step.node.inputs[1])
    batch, depth = step.attributes["batch_dims"], indices.shape[-1]
    out = low.output(step)
    n = math.prod(data.shape[batch + depth :])
    lead = indices.shape[:-1]
    far = [data.strides[k] if k < batch else 0 for k in range(len(lead))]
    axes = [(data.shape[batch + k], data.strides[batch + k]) for k in range(depth)]
    near = [s * n for s in contiguous_strides(lead)]
    strides = (far, indices.strides[:-1], near)
    _indexed(low, GatherND.name, (data, indices, out), lead, strides, (n, 1, indices.strides[-1], 1), axes)


def _fold_of(step: SpecializedNode, dtype: DType) -> str:
    fold = step.attributes.get("reduction", "none")
    if fold not in ("none", "add", "mul", "max", "min"):
        raise NotNative(f"reduction {fold!r}")
    if fold != "none" and (dtype not in LOOP_TYPES or dtype is DType.Bool):
        raise NotNative(f"{fold} of {dtype.label}")
    return fold


@lowers(ScatterElements, checks_indices=True)
def scatter_elements(low: Lowering, step: SpecializedNode) -> None:
    """A copy of the data, updated at the elements the indices point at along an axis."""
    data, indices = low.strided(step.node.inputs[0]), _indices(low, step.node.inputs[1])
    updates = low.strided(step.node.inputs[2])
    fold = _fold_of(step, data.dtype)
    if indices.shape != updates.shape or len(indices.shape) != len(data.shape) or not data.shape:
        raise NotNative("indices, updates and data do not match")
    axis = step.attributes["axis"] % len(data.shape)
    if any(n > d for k, (n, d) in enumerate(zip(indices.shape, data.shape, strict=True)) if k != axis):
        raise NotNative("indices larger than the data")
    out = low.output(step)
    low.copied(data, out)
    far = [0 if k == axis else s for k, s in enumerate(out.strides)]
    _indexed(
        low,
        ScatterElements.name,
        (out, indices, updates),
        indices.shape,
        (far, indices.strides, updates.strides),
        (1, 0, 0, 0),
        [(out.shape[axis], out.strides[axis])],
        put=True,
        fold=fold,
    )


@lowers(ScatterND, checks_indices=True)
def scatter_nd(low: Lowering, step: SpecializedNode) -> None:
    """A copy of the data, its slices updated at index tuples."""
    if _is_row_sums(low, step):
        _row_sums(low, step)
        return
    data, indices = low.strided(step.node.inputs[0]), _indices(low, step.node.inputs[1])
    updates = low.dense(step.node.inputs[2])
    fold = _fold_of(step, data.dtype)
    depth = indices.shape[-1]
    if updates.shape != (*indices.shape[:-1], *data.shape[depth:]):
        raise NotNative("updates of another shape than the indices ask for")
    out = low.output(step)
    low.copied(data, out)
    n = math.prod(data.shape[depth:])
    lead = indices.shape[:-1]
    near = [s * n for s in contiguous_strides(lead)]
    axes = [(out.shape[k], out.strides[k]) for k in range(depth)]
    strides = ([0] * len(lead), indices.strides[:-1], near)
    inner = (n, 1, indices.strides[-1], 1)
    _indexed(low, ScatterND.name, (out, indices, updates), lead, strides, inner, axes, put=True, fold=fold)


def _is_row_sums(low: Lowering, step: SpecializedNode) -> bool:
    """Whether rows are added to zeros, wide enough to be divided by columns."""
    zeros = low.constant_of(step.node.inputs[0])
    if step.attributes["reduction"] != "add" or zeros is None or zeros.ndim != 2 or zeros.shape[1] < SUMS_BLOCK:
        return False
    if low.concrete.dtype(step.node.inputs[0]) not in _SUMMED or low.concrete.shape(step.node.inputs[1])[-1] != 1:
        return False
    return not (zeros if any(zeros.strides) else zeros[:1, :1]).any()


def _row_sums(low: Lowering, step: SpecializedNode) -> None:
    """Rows of updates added up by index."""
    rows, width = low.concrete.shape(step.node.outputs[0])
    count = math.prod(low.concrete.shape(step.node.inputs[1]))
    indices = low.dense(step.node.inputs[1])
    if indices.dtype not in (DType.Int32, DType.Int64):
        raise NotNative(f"indices of {indices.dtype.label}")
    updates = low.strided(step.node.inputs[2]).reshaped((count, width))
    if updates is None or updates.strides[1] != 1:
        updates = low.dense(step.node.inputs[2]).reshaped((count, width))
        assert updates is not None
    out = low.output(step)
    kernel = RowSumsKernel(_SUMMED[out.dtype], indices.dtype.label)
    params = [width, rows, count, 1, updates.strides[0], SUMS_BLOCK]
    views = [out, indices, updates, low.flag()]
    low.kernel(
        ScatterND.name, kernel, views, params, -(-width // SUMS_BLOCK), max(1, ROW_GRAIN // (count * SUMS_BLOCK))
    )


# ---------------------------------------------------------------------- along an axis


@lowers(ArgMax, ArgMin)
def arg_extreme(low: Lowering, step: SpecializedNode) -> None:
    """The extreme of each row, then the first (or last) place that has it."""
    x = low.strided(step.node.inputs[0])
    if x.dtype not in LOOP_TYPES or x.dtype is DType.Bool:
        raise NotNative(f"{step.op.name} of {x.dtype.label}")
    if not x.count or not x.shape:
        raise NotNative("nothing to look through")
    axis = step.attributes["axis"] % len(x.shape)
    rows = rows_of(x, [axis])
    out = low.output(step)
    flat = View(out.buffer, out.dtype, rows.shape[:-1], contiguous_strides(rows.shape[:-1]))
    target = View(flat.buffer, flat.dtype, rows.shape, (*flat.strides, 0))
    value = load(0, x.dtype.label)
    found: Any = apply("eq", value, scalar("top", value.dtype))
    if x.dtype.is_float:
        found = apply("or", found, apply("isnan", value))
    last = bool(step.attributes["select_last_index"])
    place = apply("where", found, index(), const(-1 if last else 2**62, "int64"))
    stages = [
        Reduce((Reduction("top", "max" if step.op.name == ArgMax.name else "min", value),)),
        Reduce((Reduction("place", "max" if last else "min", place),)),
        Scalar("out", scalar("place", "int64"), 1),
    ]
    row_step(low, step.op.name, [rows, target], 1, stages)


def _rows_params(view: View, axis: int) -> tuple[list[int], list[int], int]:
    """Sizes and strides of the other axes, and the stride of this one."""
    others = [k for k in range(len(view.shape)) if k != axis]
    dims, strides = [view.shape[k] for k in others] or [1], [view.strides[k] for k in others] or [0]
    return dims, strides, view.strides[axis]


@lowers(CumSum, CumProd)
def running(low: Lowering, step: SpecializedNode) -> None:
    """Running sums or products."""
    x = low.strided(step.node.inputs[0])
    at = low.constant_of(step.node.inputs[1])
    if at is None or x.dtype not in LOOP_TYPES or x.dtype is DType.Bool:
        raise NotNative(f"the axis is not constant, or elements are {x.dtype.label}")
    axis = int(at.ravel()[0]) % len(x.shape)
    out = low.output(step)
    if not x.count:
        return
    source, target = (_reversed(v, axis) for v in (x, out)) if step.attributes["reverse"] else (x, out)
    dims, strides, inner = _rows_params(source, axis)
    _, to, to_inner = _rows_params(target, axis)
    kind = "sum" if step.op.name == CumSum.name else "prod"
    kernel = RunningKernel(x.dtype.label, len(dims), kind, bool(step.attributes["exclusive"]))
    n = x.shape[axis]
    params = [n, *dims, *strides, inner, *to, to_inner]
    low.kernel(step.op.name, kernel, [source, target], params, math.prod(dims), max(1, ROW_GRAIN // n))


def _reversed(view: View, axis: int) -> View:
    strides = list(view.strides)
    offset = view.offset + (view.shape[axis] - 1) * strides[axis]
    strides[axis] = -strides[axis]
    return replace(view, strides=tuple(strides), offset=offset)


@lowers(TopK)
def top_k(low: Lowering, step: SpecializedNode) -> None:
    """The k largest or smallest, in order, and where they were."""
    x = low.strided(step.node.inputs[0])
    count = low.constant_of(step.node.inputs[1])
    if count is None or x.dtype not in LOOP_TYPES or not x.shape:
        raise NotNative(f"k is not constant, or elements are {x.dtype.label}")
    axis, k = step.attributes["axis"] % len(x.shape), int(count.ravel()[0])
    if not 0 <= k <= x.shape[axis]:
        raise NotNative("k is no number of elements")
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    values, places = low.new(shape, x.dtype), low.new(shape, DType.Int64)
    for name, view in zip(step.node.outputs, (values, places), strict=False):
        if name:
            low.places[name] = view
    dims, strides, inner = _rows_params(x, axis)
    _, to, to_inner = _rows_params(values, axis)
    kernel = TopKKernel(x.dtype.label, len(dims), bool(step.attributes["largest"]))
    params = [x.shape[axis], k, *dims, *strides, inner, *to, to_inner]
    rows = math.prod(dims)
    if rows and k:
        low.kernel(TopK.name, kernel, [x, values, places], params, rows, max(1, ROW_GRAIN // (8 * x.shape[axis])))


# ---------------------------------------------------------------------- one class of each row


@lowers(ClassScore)
def class_score(low: Lowering, step: SpecializedNode) -> None:
    """The largest and the sum of each row in one kernel; its own class is picked out of the row afterwards."""
    x, indices, label = _class_operands(low, step, 0)
    rows = x.shape[0]
    score, top, log = (low.new((rows, 1), x.dtype) for _ in range(3))
    value = load(0, label)
    raised = apply("decay", apply("sub", value, scalar("top", label)))
    stages = [
        Reduce((Reduction("top", "max", value),)),
        Scalar("top_kept", scalar("top", label), 1),
        Reduce((Reduction("sum", "sum", raised),)),
        Scalar("log", apply("log", scalar("sum", label)), 2),
    ]
    row_step(low, step.op.name, [x, *(_each(v, x.shape) for v in (top, log))], 2, stages)
    own = low.new((rows, 1), x.dtype)
    strides = ([x.strides[0], 0], indices.strides, own.strides)
    _indexed(low, step.op.name, (x, indices, own), (rows, 1), strides, (1, 0, 0, 0), [(x.shape[1], x.strides[1])])
    shifted = apply("sub", apply("sub", load(0, label), load(1, label)), load(2, label))
    row_step(low, step.op.name, [own, top, log, score], 1, [Map((Store(3, shifted),))])
    for name, view in zip(step.node.outputs, (score, top, log), strict=False):
        if name:
            low.places[name] = view


@lowers(ClassScoreGrad)
def class_score_grad(low: Lowering, step: SpecializedNode) -> None:
    """What every class loses, then what the row's own class gains, in place."""
    x, indices, label = _class_operands(low, step, 1)
    names = step.node.inputs
    g, top, log = (low.strided(names[k]) for k in (0, 3, 4))
    out = low.output(step)
    shifted = apply("sub", apply("sub", load(0, label), load(2, label)), load(3, label))
    lost = apply("neg", apply("mul", apply("exp", shifted), load(1, label)))
    row_step(low, step.op.name, [x, *(_each(v, x.shape) for v in (g, top, log)), out], 1, [Map((Store(4, lost),))])
    strides = ([out.strides[0], 0], indices.strides, g.strides)
    axes = [(out.shape[1], out.strides[1])]
    _indexed(low, step.op.name, (out, indices, g), indices.shape, strides, (1, 0, 0, 0), axes, put=True, fold="add")


def _class_operands(low: Lowering, step: SpecializedNode, at: int) -> tuple[View, View, str]:
    x, indices = low.strided(step.node.inputs[at]), _indices(low, step.node.inputs[at + 1])
    if x.dtype not in _SUMMED or len(x.shape) != 2 or indices.shape != (x.shape[0], 1) or not x.count:
        raise NotNative("not rows of floats with one index each")
    return x, indices, x.dtype.label


def _each(view: View, shape: tuple[int, ...]) -> View:
    """One number for each row, beside every element of it."""
    return replace(view, shape=shape, strides=(view.strides[0], 0))
