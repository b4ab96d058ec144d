"""Loops: elementwise groups, reductions, softmax and normalisation."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.backends.cpu.faults import FAULTS
from pyflame_rt.backends.cpu.graph.op_support import LOOP_TYPES
from pyflame_rt.backends.cpu.graph.scalar_exprs import constant_expr, expression
from pyflame_rt.backends.cpu.ir.kernel_program import (
    Expr,
    Map,
    Reduce,
    Reduction,
    RowKernel,
    Scalar,
    Stage,
    Store,
    apply,
    const,
    count,
    load,
    scalar,
    shared,
)
from pyflame_rt.backends.cpu.jit.target import host
from pyflame_rt.backends.cpu.kernels.tiles.packing import ColumnSumKernel
from pyflame_rt.backends.cpu.lower.lowering import REFUSALS, Lowering, NotNative, lowers
from pyflame_rt.backends.cpu.lower.row_loops import nest_of
from pyflame_rt.backends.cpu.memory.buffer_views import View, contiguous_strides
from pyflame_rt.graph import DType
from pyflame_rt.ops.core.evaluate import Context, run_op
from pyflame_rt.ops.core.type_rules import normalize_axes
from pyflame_rt.ops.microsoft.fused import SimplifiedLayerNormalization
from pyflame_rt.ops.onnx.activation import LogSoftmax, Softmax
from pyflame_rt.ops.onnx.norm import LayerNormalization, RMSNormalization
from pyflame_rt.ops.onnx.reduce import ReduceMax, ReduceMean, ReduceMin, ReduceProd, ReduceSum
from pyflame_rt.opt.traced_sizes import most

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame_rt.backends.cpu.graph.groups import Group
    from pyflame_rt.ops.core.registry import Op
    from pyflame_rt.opt.specialized_graph import SpecializedGraph, SpecializedNode

__all__ = ["external_names", "group_expression", "group_values", "lower_loop"]

COLUMN_GRAIN = 65_536  # elements whose columns are summed by one thread
MAX_COLUMNS = 1024  # whose sums stay in the first-level cache


def lower_loop(low: Lowering, group: Group) -> None:
    """One kernel for a group of elementwise steps."""
    try:
        _loop(low, group)
    except (*REFUSALS, *FAULTS) as error:
        reason = low.refusal(error)
        for step in group.steps:
            low.host(step, reason)


def _loop(low: Lowering, group: Group) -> None:
    targets = [*group.extra, group.steps[-1].node.outputs[0]]
    names = external_names(low, group)
    views = [low.view(n) for n in names]
    blocked = _common_layout(views, group.shape, [low.concrete.dtype(t) for t in targets])
    if blocked is None:
        found = [low.strided(n) for n in names]
        # Results that are handed out lie row by row; others as what they are made from.
        like = [] if any(t in low.concrete.outputs for t in targets) else found
        outs = [low.new_like(like, group.shape, low.concrete.dtype(t)) for t in targets]
        views = [v.broadcast(group.shape) for v in found]
    else:
        outs = [low.new_blocked(blocked.desc, low.concrete.dtype(t)) for t in targets]
        views, outs = [_flat(v) for v in views], [_flat(v) for v in outs]
    nest = nest_of([*views, *outs], views[0].shape if blocked is not None else group.shape)
    if nest is None:
        raise NotNative("too many axes for one loop")
    operands = [nest.operand(i, v.dtype.label) for i, v in enumerate([*views, *outs])]
    loads = {n: load(i, operands[i].dtype) for i, n in enumerate(names)}
    values = group_values(low, group, loads)
    results = [values[t] for t in targets]
    if len(results) > 1:
        results = shared(Expr("several", "float32", tuple(results))).args
    stores = tuple(Store(len(names) + i, value) for i, value in enumerate(results))
    split = len(names)
    kernel = RowKernel(len(nest.outer), tuple(operands[:split]), tuple(operands[split:]), (Map(stores),))
    label = "+".join(s.op.name for s in group.steps)
    if outs[0].count:
        low.row_kernel(label, kernel, nest, [*views, *outs])
    for target, out in zip(targets, outs, strict=True):
        low.places[target] = out if blocked is None else _restored(out, blocked)


def external_names(low: Lowering, group: Group) -> list[str]:
    """Values read from memory: not made inside, not constants of one element."""
    made = {s.node.outputs[0] for s in group.steps}
    names = [n for s in group.steps for n in s.node.inputs if n and n not in made and not _is_scalar(low, n)]
    return list(dict.fromkeys(names))


def _is_scalar(low: Lowering, name: str) -> bool:
    array = low.constant_of(name)
    return array is not None and array.size == 1


def group_expression(low: Lowering, group: Group, loads: dict[str, Expr]) -> Expr:
    """The result of a group as one expression of the values it reads."""
    return group_values(low, group, loads)[group.steps[-1].node.outputs[0]]


def group_values(low: Lowering, group: Group, loads: dict[str, Expr]) -> dict[str, Expr]:
    """Every value of a group as an expression of those it reads."""
    values = dict(loads)
    for step in group.steps:
        args = []
        for name in step.node.inputs:
            if name and name not in values:
                array = low.constant_of(name)
                assert array is not None
                values[name] = constant_expr(array)
            args.append(values[name] if name else None)
        values[step.node.outputs[0]] = expression(step.op, step.attributes, args)
    return values


def _common_layout(views: Sequence[View], shape: tuple[int, ...], made: Sequence[DType]) -> View | None:
    """A blocked layout that every operand shares, without padding: the loop may run over it as it lies.

    A layout is one of elements of a type: results of another type lie row by row.
    """
    blocked = [v for v in views if v.is_blocked]
    if not blocked or len(blocked) != len(views):
        return None
    first = blocked[0]
    whole = first.desc.padded_dims == first.desc.dims and first.shape == shape
    alike = all(v.desc == first.desc and v.dtype is first.dtype for v in blocked)
    return first if whole and alike and all(dtype is first.dtype for dtype in made) else None


def _flat(view: View) -> View:
    total = view.buffer.nbytes // view.dtype.itemsize
    return View(view.buffer, view.dtype, (total,), (1,))


def _restored(flat: View, like: View) -> View:
    return View(flat.buffer, flat.dtype, like.shape, (), desc=like.desc)


# ---------------------------------------------------------------------- rows


def rows_of(view: View, axes: Sequence[int], low: Lowering | None = None) -> View:
    """The view with the given axes last, merged into one; with ``low`` after a copy where they do not lie together."""
    kept = [i for i in range(len(view.shape)) if i not in axes]
    turned = view.permuted([*kept, *axes])
    shape = (*turned.shape[: len(kept)], math.prod(turned.shape[len(kept) :]))
    merged = turned.reshaped(shape)
    if merged is None and low is not None:
        merged = low.copied(turned).reshaped(shape)
    if merged is None:
        raise NotNative("the reduced axes do not lie together in memory")
    return merged


def row_step(low: Lowering, label: str, views: list[View], outputs: int, stages: Sequence[Stage]) -> None:
    """A kernel of several stages over rows; all views share their shape, the last axis is the row."""
    nest = nest_of(views, views[0].shape, keep_inner=True)
    if nest is None:
        raise NotNative("too many axes for one loop")
    operands = [nest.operand(i, v.dtype.label) for i, v in enumerate(views)]
    split = len(views) - outputs
    kernel = RowKernel(len(nest.outer), tuple(operands[:split]), tuple(operands[split:]), tuple(stages))
    low.row_kernel(label, kernel, nest, views)


def _no_float(graph: SpecializedGraph, step: SpecializedNode) -> str:
    dtype = graph.dtype(step.node.inputs[0])
    return "" if dtype in (DType.Float32, DType.Float64) else f"softmax of {dtype.label}"


@lowers(Softmax, LogSoftmax, refuses=_no_float)
def softmax(low: Lowering, step: SpecializedNode) -> None:
    """Maximum, exponentials and their sum, division: one kernel."""
    x = low.strided(step.node.inputs[0])
    axis = step.attributes["axis"] % len(x.shape)
    out = low.output(step)
    if not out.count:
        return
    a, b = rows_of(x, [axis]), rows_of(out, [axis])
    label = x.dtype.label
    value = load(0, label)
    shifted = apply("sub", value, scalar("top", label))
    top = Reduce((Reduction("top", "top", value),))  # a NaN makes the sum one all the same
    raised = apply("decay", shifted)
    if step.op is Softmax:
        total = Reduce((Reduction("sum", "sum", raised),), (Store(1, raised),))
        factor = Scalar("factor", apply("reciprocal", scalar("sum", label)))
        last: Stage = Map((Store(1, apply("mul", load(1, label), scalar("factor", label))),))
        row_step(low, Softmax.name, [a, b], 1, [top, total, factor, last])
        return
    total = Reduce((Reduction("sum", "sum", raised),))
    log = Scalar("log", apply("log", scalar("sum", label)))
    row_step(
        low,
        LogSoftmax.name,
        [a, b],
        1,
        [top, total, log, Map((Store(1, apply("sub", shifted, scalar("log", label))),))],
    )


def _other_norm(graph: SpecializedGraph, step: SpecializedNode) -> str:
    if step.op is not SimplifiedLayerNormalization and step.attributes.get("stash_type", 1) != 1:
        return "a normalisation that is computed in another type than float32"
    if len([o for o in step.node.outputs if o]) > 1:
        return "further outputs of the normalisation are asked for"
    dtype = graph.dtype(step.node.inputs[0])
    return "" if dtype is DType.Float32 else f"normalisation of {dtype.label}"


@lowers(LayerNormalization, RMSNormalization, SimplifiedLayerNormalization, refuses=_other_norm)
def normalization(low: Lowering, step: SpecializedNode) -> None:
    """Mean and variance (or mean square) of each row, then the affine map: one kernel."""
    x = low.strided(step.node.inputs[0])
    axis = step.attributes["axis"] % len(x.shape)
    out = low.output(step)
    if not out.count:
        return
    axes = list(range(axis, len(x.shape)))
    views = [rows_of(x, axes)]
    affine = [low.strided(n) for n in step.node.inputs[1:] if n]
    views += [rows_of(v.broadcast(x.shape), axes) for v in affine]
    views.append(rows_of(out, axes))
    stages = _norm_stages(step, len(affine))
    row_step(low, step.op.name, views, 1, stages)


def _norm_stages(step: SpecializedNode, affine: int) -> list[Stage]:
    value, stages = load(0, "float32"), []
    centred = value
    if step.op is LayerNormalization:
        stages.append(Reduce((Reduction("sum", "sum", value),)))
        stages.append(Scalar("mean", apply("div", scalar("sum"), count())))
        centred = apply("sub", value, scalar("mean"))
    stages.append(Reduce((Reduction("squares", "sum", apply("mul", centred, centred)),)))
    variance = apply("div", scalar("squares"), count())
    root = apply("sqrt", apply("add", variance, const(step.attributes["epsilon"])))
    stages.append(Scalar("inverse", apply("reciprocal", root)))
    result = apply("mul", centred, scalar("inverse"))
    if affine > 0:
        result = apply("mul", result, load(1, "float32"))
    if affine > 1:
        result = apply("add", result, load(2, "float32"))
    stages.append(Map((Store(1 + affine, result),)))
    return stages


@lowers(ReduceSum, ReduceMean, ReduceMax, ReduceMin, ReduceProd)
def reduction(low: Lowering, step: SpecializedNode) -> None:
    """A fold over axes."""
    x = low.strided(step.node.inputs[0])
    _need_fold(step.op, x.dtype)
    axes = _reduced_axes(low, step, len(x.shape))
    if not axes:
        low.places[step.node.outputs[0]] = x
        return
    if not x.count:
        _fold_nothing(low, step, x)
        return
    out = low.output(step)
    if x.dtype is DType.Bool:  # false and true are the bytes 0 and 1
        x, out = replace(x, dtype=DType.UInt8), replace(out, dtype=DType.UInt8)
    if _column_sums(low, step, x, axes, out):
        return
    rows = rows_of(x, axes, low)
    flat = View(out.buffer, out.dtype, rows.shape[:-1], contiguous_strides(rows.shape[:-1]))
    target = View(flat.buffer, flat.dtype, rows.shape, (*flat.strides, 0))
    value = load(0, x.dtype.label)
    mean = step.op.fold == "mean"
    fold = Reduce((Reduction("r", "sum" if mean else step.op.fold, value),))  # type: ignore[arg-type]
    result: Any = scalar("r", value.dtype)
    if mean:
        result = apply("div", result, count(value.dtype))
    row_step(low, step.op.name, [rows, target], 1, [fold, Scalar("out", result, 1)])


def _column_sums(low: Lowering, step: SpecializedNode, x: View, axes: Sequence[int], out: View) -> bool:
    """Sums over axes that are not last go down columns, many at a time, instead of jumping from row to row for each."""
    if step.op.fold not in ("sum", "mean") or x.dtype is not DType.Float32:
        return False
    found = _matrices(x, axes)
    if found is None:
        return False
    matrices, rows, columns = found.shape
    unit = 2 * host().lanes(4)
    divided = rows * columns > COLUMN_GRAIN and matrices < low.threads
    share = -(-columns // (low.threads if divided else 1))
    width = min(-(-share // unit) * unit, MAX_COLUMNS)
    items = -(-columns // width)
    params = [rows, columns, found.strides[1], width, items, found.strides[0]]
    kernel = ColumnSumKernel(step.op.fold == "mean")
    low.kernel(step.op.name, kernel, [found, out], params, matrices * items, 1 if divided else _grain(rows * width))
    return True


def _grain(size: int) -> int:
    return most(COLUMN_GRAIN // size, 1)


def _matrices(x: View, axes: Sequence[int]) -> View | None:
    """The value as [matrices, rows, columns] with rows to fold and columns side by side, if it lies so."""
    kept = [i for i in range(len(x.shape)) if i not in axes]
    for split in range(len(kept)):
        turned = x.permuted([*kept[:split], *axes, *kept[split:]])
        ends = (split, split + len(axes), len(turned.shape))
        sizes = tuple(math.prod(turned.shape[i:j]) for i, j in zip((0, *ends), ends, strict=False))
        found = turned.reshaped(sizes)
        if found is not None and found.strides[2] == 1 and sizes[1] >= 2 and sizes[2] >= 8:
            return found
    return None


def fold_axes(low: Lowering, label: str, kind: str, x: View, axes: Sequence[int]) -> View:
    """Sum, product, maximum or minimum over axes, which go away."""
    rows = rows_of(x, axes, low)
    out = low.new(rows.shape[:-1], x.dtype)
    target = View(out.buffer, out.dtype, rows.shape, (*out.strides, 0))
    value = load(0, x.dtype.label)
    stages = [Reduce((Reduction("r", kind, value),)), Scalar("out", scalar("r", value.dtype), 1)]  # type: ignore[arg-type]
    row_step(low, label, [rows, target], 1, stages)
    return out


def _need_fold(op: Op, dtype: DType) -> None:
    """Which types a fold takes; narrow integers are summed in a wider type than loops have for them."""
    ordered = op.fold in ("max", "min")
    narrow = dtype in (DType.Int8, DType.UInt8, DType.Int16, DType.UInt16, DType.Bool)
    if dtype not in LOOP_TYPES or (narrow and not ordered):
        raise NotNative(f"{op.name} of {dtype.label}")


def _fold_nothing(low: Lowering, step: SpecializedNode, x: View) -> None:
    """Of no elements a fold is a constant."""
    arrays = [np.zeros(x.shape, x.dtype.numpy), *(low.constant_of(n) if n else None for n in step.node.inputs[1:])]
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (result,) = run_op(step.op, arrays, dict(step.attributes), Context.of("numpy"))
    low.places[step.node.outputs[0]] = low.constant(np.asarray(result, order="C"))


def _reduced_axes(low: Lowering, step: SpecializedNode, rank: int) -> list[int] | None:
    """Axes to fold; None where nothing is folded."""
    name = step.node.inputs[1] if len(step.node.inputs) > 1 else ""
    axes = low.constant_of(name) if name else None
    if name and axes is None:
        raise NotNative("the axes are not constant")
    if axes is None or axes.size == 0:
        return None if step.attributes.get("noop_with_empty_axes") else list(range(rank))
    return sorted(normalize_axes([int(a) for a in axes.ravel()], rank))
