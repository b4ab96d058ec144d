"""Operators that move elements: views where strides can say it, copies where they cannot."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pyflame_rt.backends.cpu.ir.kernel_program import GatherKernel
from pyflame_rt.backends.cpu.lower.lowering import ROW_GRAIN, Lowering, NotNative, lowers
from pyflame_rt.backends.cpu.memory.buffer_views import as_bits
from pyflame_rt.graph import DType
from pyflame_rt.ops.onnx.index import Gather
from pyflame_rt.ops.onnx.shape import Expand, Flatten, Reshape, Squeeze, Transpose, Unsqueeze
from pyflame_rt.ops.onnx.slicing import Concat, Slice, Split, slice_start
from pyflame_rt.opt.traced_sizes import is_traced

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame_rt.backends.cpu.memory.buffer_views import View
    from pyflame_rt.opt.specialized_graph import SpecializedNode

__all__: list[str] = []


@lowers(Reshape, Flatten, Squeeze, Unsqueeze)
def reshape(low: Lowering, step: SpecializedNode) -> None:
    """The same elements under other sizes."""
    name = step.node.inputs[0]
    shape = low.concrete.shape(step.node.outputs[0])
    view = low.strided(name).reshaped(shape)
    low.places[step.node.outputs[0]] = low.dense(name).reshaped(shape) if view is None else view  # type: ignore[assignment]


@lowers(Transpose)
def transpose(low: Lowering, step: SpecializedNode) -> None:
    """Axes in another order."""
    view = low.strided(step.node.inputs[0])
    perm = step.attributes.get("perm")
    order = list(range(len(view.shape)))[::-1] if perm is None else [int(p) % len(view.shape) for p in perm]
    low.places[step.node.outputs[0]] = view.permuted(order)


@lowers(Expand)
def expand(low: Lowering, step: SpecializedNode) -> None:
    """Stretched axes."""
    low.places[step.node.outputs[0]] = low.strided(step.node.inputs[0]).broadcast(
        low.concrete.shape(step.node.outputs[0])
    )


@lowers(Slice)
def slice_(low: Lowering, step: SpecializedNode) -> None:
    """A box with steps."""
    view = low.strided(step.node.inputs[0])
    given = [low.numbers_of(n) if n else None for n in step.node.inputs[1:]]
    given += [None] * (4 - len(given))
    starts, ends, axes, steps = given
    if starts is None or ends is None:
        raise NotNative("the bounds are not constant")
    shape = low.concrete.shape(step.node.outputs[0])
    strides, offset = list(view.strides), view.offset
    for i, axis in enumerate(range(len(starts)) if axes is None else axes):
        by = 1 if steps is None else steps[i]
        first = slice_start(view.shape[axis], starts[i], ends[i], by)
        offset += first * view.strides[axis] if shape[axis] else 0
        strides[axis] = view.strides[axis] * by
    result = replace(view, shape=shape, strides=tuple(strides), offset=offset)
    # Views go forward; what goes backward is copied.
    low.places[step.node.outputs[0]] = low.copied(result) if any(s < 0 for s in strides) else result


@lowers(Split)
def split(low: Lowering, step: SpecializedNode) -> None:
    """Pieces of one axis."""
    if "" in step.node.outputs:
        raise NotNative("a part without a name, of a size nobody noted")
    view = low.strided(step.node.inputs[0])
    axis = step.attributes["axis"] % len(view.shape)
    offset = view.offset
    for name in step.node.outputs:
        shape = low.concrete.shape(name)
        low.places[name] = replace(view, shape=shape, offset=offset)
        offset += shape[axis] * view.strides[axis]


@lowers(Concat)
def concat(low: Lowering, step: SpecializedNode) -> None:
    """Each input is copied to its place; the result lies in memory as the largest of them does."""
    parts = [low.strided(n) for n in step.node.inputs]
    name = step.node.outputs[0]
    whole = _side_by_side(parts, low.concrete.shape(name), step.attributes["axis"])
    if whole is not None:
        low.places[name] = whole
        return
    out = low.output_like(step, max(parts, key=lambda part: part.count))
    axis = step.attributes["axis"] % len(out.shape)
    offset = out.offset
    for part in parts:
        if part.count:
            low.copied(part, replace(out, shape=part.shape, offset=offset))
        offset += part.shape[axis] * out.strides[axis]


def _side_by_side(parts: Sequence[View], shape: tuple[int, ...], axis: int) -> View | None:
    """Parts that lie one behind the other in the same memory already, as one value."""
    first, offset = parts[0], parts[0].offset
    for part in parts:
        if part.buffer is not first.buffer or part.dtype is not first.dtype or not part.count:
            return None
        numbers = (part.offset, *part.shape, *part.strides)
        if any(map(is_traced, numbers)) or part.strides != first.strides or part.offset != offset:
            return None
        offset += part.shape[axis] * part.strides[axis]
    return replace(first, shape=shape)


@lowers(Gather, checks_indices=True)
def gather(low: Lowering, step: SpecializedNode) -> None:
    """Rows by index; one constant index is a view."""
    source, index = step.node.inputs
    axis = step.attributes["axis"] % len(low.concrete.shape(source))
    known = low.constant_of(index)
    if known is not None and known.ndim == 0:
        view = low.strided(source)
        at = int(known) % view.shape[axis] if view.shape[axis] else 0
        shape, strides = list(view.shape), list(view.strides)
        offset = view.offset + at * strides[axis]
        del shape[axis], strides[axis]
        low.places[step.node.outputs[0]] = replace(view, shape=tuple(shape), strides=tuple(strides), offset=offset)
        return
    _gather_rows(low, step, axis)


def _gather_rows(low: Lowering, step: SpecializedNode, axis: int) -> None:
    view, index = low.dense(step.node.inputs[0]), low.dense(step.node.inputs[1])
    if index.dtype not in (DType.Int32, DType.Int64):
        raise NotNative(f"indices of {index.dtype.label}")
    out = low.output(step)
    inner, outer = 1, 1
    for n in view.shape[axis + 1 :]:
        inner *= n
    for n in view.shape[:axis]:
        outer *= n
    if not out.count:
        return
    if view.dtype.itemsize == 16:
        raise NotNative("elements of 16 bytes")
    kernel = GatherKernel(as_bits(view).dtype.label, index.dtype.label, single=inner == 1 and view.shape[axis] > 0)  # type: ignore[arg-type]
    params = [inner, index.count, view.shape[axis], inner * view.shape[axis], inner]
    low.kernel(
        Gather.name, kernel, [view, index, out, low.flag()], params, outer * index.count, ROW_GRAIN // max(inner, 1)
    )
