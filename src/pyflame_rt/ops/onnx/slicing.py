"""Cutting and joining: Concat, Split, Slice, Pad, Tile and what is composed of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph import Dim, DimLike, DType, Node, Shape, TensorType
from pyflame_rt.graph.errors import DTypeMismatchError, InputError, ShapeMismatchError, UndeterminedError
from pyflame_rt.ops.core.guards import Within, at_least, at_most, has_rank, has_shape, length_of, same_size
from pyflame_rt.ops.core.registry import operator, primitive
from pyflame_rt.ops.core.size_arithmetic import (
    ceil_divide,
    known_ints,
    product,
    surely_not_negative,
    total,
    vector_length,
)
from pyflame_rt.ops.core.type_rules import merge_dims, normalize_axes, normalize_axis, same, tensor_like
from pyflame_rt.ops.core.upgrade import Upgrade, upgrade
from pyflame_rt.ops.core.value import Value, constant
from pyflame_rt.ops.onnx.arithmetic import zeros_like

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["CenterCropPad", "Concat", "Pad", "ReverseSequence", "Slice", "Split", "Tile", "slice_range"]


def _ints(ops: Any, x: Any) -> list[Any]:
    return ops.to_numpy(x).ravel().tolist()


# ---------------------------------------------------------------------- Concat


def _concat_type(*inputs: Value, axis: int) -> TensorType:
    for v in inputs[1:]:
        if v.dtype is not inputs[0].dtype:
            raise DTypeMismatchError(f"element types differ: {inputs[0].dtype.label} and {v.dtype.label}")
    shapes = [v.tensor_type.shape for v in inputs]
    known = [s for s in shapes if s is not None]
    if not known:
        return tensor_like(inputs[0], None)
    rank = len(known[0])
    if any(len(s) != rank for s in known):
        raise ShapeMismatchError(f"inputs have different ranks: {' and '.join(map(str, known))}")
    along, dims = normalize_axis(axis, rank), list(known[0])
    for s in known[1:]:
        dims = [a if i == along else merge_dims(a, b) for i, (a, b) in enumerate(zip(dims, s, strict=True))]
    dims[along] = total(None if s is None else s[along] for s in shapes)
    return tensor_like(inputs[0], dims)


def _concat_vjp(g: Value, _y: Value, *inputs: Value, axis: int) -> tuple[Value, ...]:
    if len(inputs) == 1:
        return (g,)
    parts = Split(g, _sizes_along(inputs, axis), axis=axis)
    return tuple(parts)


def _sizes_along(inputs: Sequence[Value], axis: int) -> Any:
    from pyflame_rt.ops.onnx.shape import Shape as ShapeOf

    sizes = [v.shape[axis] for v in inputs]
    if all(isinstance(size, int) for size in sizes):
        return sizes
    places = [normalize_axis(axis, v.rank) for v in inputs]
    return Concat(*[ShapeOf(v, start=i, end=i + 1) for v, i in zip(inputs, places, strict=True)], axis=0)


@primitive(since=13, infer=_concat_type, shape_math=True, vjp=_concat_vjp, types="T* > T", kind="move", complex=True)
def Concat(ops: Any, /, *inputs: Any, axis: int) -> Any:
    """Tensors joined along an axis."""
    return ops.concatenate(list(inputs), normalize_axis(axis, len(inputs[0].shape)))


@upgrade("Concat", to=4)
def axis_became_required(node: Node, up: Upgrade) -> Node:
    """Before 4, the axis was 1 unless given."""
    return node.replace(attributes={"axis": 1, **node.attributes})


# ---------------------------------------------------------------------- Split


# Every part is a value of its own; a damaged file may ask for billions.
MAX_PARTS = 1_000_000


def chunk_sizes(size: DimLike, count: int) -> list[Any]:
    """Sizes of ``count`` parts, equal but for the last ones."""
    if not 0 < count <= MAX_PARTS:
        raise InputError(f"num_outputs is {count}; 1 to {MAX_PARTS} parts can be made")
    if size is None:
        return [None] * count
    if isinstance(size, Dim):
        return [size // count if size % count == 0 else None] * count
    each = ceil_divide(size, count)
    return [max(0, min(each, size - i * each)) for i in range(count)]


def _split_type(
    input: Value, split: Value | None = None, /, *, axis: int, num_outputs: int | None
) -> tuple[TensorType, ...]:
    dims = input.tensor_type.shape
    along = None if dims is None else normalize_axis(axis, len(dims))
    sizes = known_ints(split)
    if sizes is None and split is not None:
        length = vector_length(split)
        if length is None:
            raise UndeterminedError("how many parts there are is only known when running")
        sizes = [None] * length
    if sizes is None:
        if num_outputs is None:
            raise InputError("either split or num_outputs must be given")
        sizes = [None] * num_outputs if dims is None or along is None else chunk_sizes(dims[along], num_outputs)
    if dims is None or along is None:
        return tuple(tensor_like(input, None) for _ in sizes)
    return tuple(tensor_like(input, [*dims[:along], size, *dims[along + 1 :]]) for size in sizes)


def _split_vjp(g: Any, y: Any, _x: Value, *rest: Value | None, axis: int, **_: Any) -> tuple[Value | None, ...]:
    # A node with one part has no tuples.
    grads: list[Any] = [g] if isinstance(y, Value) else list(g)
    parts: list[Any] = [y] if isinstance(y, Value) else list(y)
    whole = [zeros_like(part) if grad is None else grad for grad, part in zip(grads, parts, strict=True)]
    return (Concat(*whole, axis=axis), *[None] * len(rest))


def _split_needs(
    input: Value, split: Value | None = None, /, *, axis: int, num_outputs: int | None
) -> Iterator[Within]:
    along = normalize_axis(axis, input.rank)
    if split is None:
        return
    has_rank("split", split, 1)
    yield Within("split", split, 0)
    sizes = known_ints(split)
    if num_outputs is not None:
        same_size("num_outputs", num_outputs, length_of(split), "the length of split")
    if sizes is not None:
        same_size(f"the sum of the parts {sizes}", total(sizes), input.shape[along], f"the size of axis {along}")


@primitive(
    since=18,
    infer=_split_type,
    shape_math=True,
    vjp=_split_vjp,
    requires=_split_needs,
    types="T int64 > T*",
    kind="move",
    known=(1,),
    complex=True,
)
def Split(ops: Any, input: Any, split: Any = None, /, *, axis: int = 0, num_outputs: int | None = None) -> Any:
    """Parts along an axis, of the given sizes or equal ones."""
    along = normalize_axis(axis, len(input.shape))
    if split is None and num_outputs is None:
        raise InputError("either split or num_outputs must be given")
    length = input.shape[along]
    sizes = chunk_sizes(length, num_outputs or 1) if split is None else _ints(ops, split)
    return tuple(ops.split(input, sizes, along))


@upgrade("Split", to=2)
def sizes_may_be_an_input(node: Node, up: Upgrade) -> Node:
    """Version 1 took the sizes as an input with the data's element type, or as an attribute."""
    if len(node.inputs) < 2 or not node.inputs[1]:
        return node.replace(inputs=node.inputs[:1])
    sizes = up.emit("Cast", [node.inputs[1]], {"to": DType.Int64.onnx})
    kept = {name: value for name, value in node.attributes.items() if name != "split"}
    return node.replace(inputs=[node.inputs[0], sizes], attributes=kept)


@upgrade("Split", to=13)
def sizes_became_an_input(node: Node, up: Upgrade) -> Node:
    """From 2 to 12, the sizes were an attribute."""
    if not node.has_attr("split"):
        return node
    kept = {name: value for name, value in node.attributes.items() if name != "split"}
    sizes = up.constant(node.get_attr("split"), np.int64, "split")
    return node.replace(inputs=[node.inputs[0], sizes], attributes=kept)


# ---------------------------------------------------------------------- Slice

# Exporters write "to the end" as the largest int32 or int64, or something near it.
_FAR = 2**31 - 1


def slice_length(size: DimLike, start: Any, end: Any, step: Any) -> DimLike:
    """How many elements a slice takes from an axis; None where that is not certain.

    Symbolic bounds are taken to lie within the axis, as every exporter means them.
    """
    if step == 0:
        raise InputError("a step must not be 0")
    if size is None or start is None or end is None or not isinstance(step, int):
        return None
    if not any(isinstance(v, Dim) for v in (size, start, end)):
        return len(slice_range(int(size), start, end, step))
    if step < 0:
        whole = isinstance(start, int) and (start == -1 or start >= _FAR) and isinstance(end, int) and end <= -_FAR
        return ceil_divide(size, -step) if whole else None
    low, high = _bound(start, size), _bound(end, size)
    if low is None or high is None:
        return None
    length = high - low
    if isinstance(length, int):
        return ceil_divide(max(0, length), step)
    return ceil_divide(length, step) if surely_not_negative(length) else None


def slice_range(size: int, start: int, end: int, step: int) -> range:
    """The elements a slice takes from an axis.

    Going backward, a start before the first element is the first one: there Python would take nothing.

    Example:
        >>> list(slice_range(5, -9, -99, -1)), list(slice_range(5, 9, -4, -2))
        ([0], [4, 2])
    """
    if step > 0:
        return range(*slice(start, end, step).indices(size))
    first, last = (v + size if v < 0 else v for v in (start, end))
    return range(min(max(first, 0), size - 1), min(max(last, -1), size - 1), step)


def slice_start(size: int, start: int, end: int, step: int) -> int:
    """The first element a slice takes from an axis, 0 or above; traced sizes stay traced where the slice goes forward.

    Example:
        >>> slice_start(10, -3, 10, 1), slice_start(10, 20, -20, -2)
        (7, 9)
    """
    return _bound(start, size) if step > 0 else slice_range(size, start, end, step).start


def _bound(value: Any, size: Any) -> Any:
    """Where a bound of a forward slice lies on the axis; None where that is not certain."""
    if isinstance(value, Dim) and not isinstance(value, int):
        if surely_not_negative(value):
            return size if surely_not_negative(value - size) else value
        return size + value if surely_not_negative(-value) else None
    if value >= _FAR:
        return size
    if value <= -_FAR:
        return 0
    place = size + value if value < 0 else value
    if isinstance(size, int):
        return min(max(0, place), size)
    return place if surely_not_negative(place) and surely_not_negative(size - place) else None


def _slice_type(
    data: Value, starts: Value, ends: Value, axes: Value | None = None, steps: Value | None = None, /
) -> TensorType:
    if data.tensor_type.shape is None:
        return tensor_like(data, None)
    dims: list[DimLike] = list(data.shape)
    low, high = known_ints(starts), known_ints(ends)
    count = next((len(v) for v in (low, high) if v is not None), None)
    count = vector_length(starts) if count is None else count
    if count is None or (axes is not None and axes.known is None):
        return tensor_like(data, [None] * len(dims))
    unknown = [None] * count
    places = range(count) if axes is None else normalize_axes(known_ints(axes) or [], len(dims))
    by = [1] * count if steps is None else known_ints(steps) or unknown
    for axis, *bounds in zip(places, low or unknown, high or unknown, by, strict=True):
        dims[axis] = slice_length(dims[axis], *bounds)
    return tensor_like(data, dims)


def _slice_vjp(
    g: Value, _y: Value, x: Value, starts: Value, ends: Value, *rest: Value | None
) -> tuple[Value | None, ...]:
    from pyflame_rt.ops.onnx.index import scatter_along

    axes, steps = (*rest, None, None)[:2]
    low, high = starts.ints(), ends.ints()
    places = range(len(low)) if axes is None else normalize_axes(axes.ints(), x.rank)
    by = [1] * len(low) if steps is None else steps.ints()
    pads = np.zeros((2, x.rank), dtype=np.int64)
    for axis, start, end, step in zip(places, low, high, by, strict=True):
        size = int(x.shape[axis])  # type: ignore[arg-type]
        taken = slice_range(size, start, end, step)
        if step == 1:
            pads[:, axis] = (taken.start, size - taken.start - len(taken))
        else:
            g = scatter_along(g, list(taken), axis, size)
    return (Pad(g, pads.ravel()) if pads.any() else g, *[None] * (2 + len(rest)))


def _slice_needs(
    data: Value, starts: Value, ends: Value, axes: Value | None = None, steps: Value | None = None, /
) -> None:
    for name, given in (("starts", starts), ("ends", ends), ("axes", axes), ("steps", steps)):
        has_rank(name, given, 1)
        if given is not None:
            same_size(f"the length of {name}", length_of(given), length_of(starts), "that of starts")
    if axes is None:
        at_most("the length of starts", length_of(starts), data.rank, "the rank of the data")


@primitive(
    since=13,
    infer=_slice_type,
    shape_math=True,
    vjp=_slice_vjp,
    requires=_slice_needs,
    types="T Tind Tind Tind Tind > T",
    kind="move",
    known=(1, 2, 3, 4),
    complex=True,
)
def Slice(ops: Any, data: Any, starts: Any, ends: Any, axes: Any = None, steps: Any = None, /) -> Any:
    """``data[start:end:step]`` along some axes."""
    rank, low, high = len(data.shape), _ints(ops, starts), _ints(ops, ends)
    places = range(len(low)) if axes is None else normalize_axes(_ints(ops, axes), rank)
    by = [1] * len(low) if steps is None else _ints(ops, steps)
    begin, stop, stride = [0] * rank, list[int | None](data.shape), [1] * rank
    for axis, start, end, step in zip(places, low, high, by, strict=True):
        if step == 0:
            raise InputError("a step must not be 0")
        taken = slice_range(data.shape[axis], start, end, step)
        # Going backwards, "before element 0" has no number: -1 would count from the end.
        begin[axis], stop[axis], stride[axis] = max(taken.start, 0), None if taken.stop < 0 else taken.stop, step
    return ops.slice(data, begin, stop, stride)


@upgrade("Slice", to=10)
def bounds_became_inputs(node: Node, up: Upgrade) -> Node:
    """Before 10, starts, ends and axes were attributes."""
    given = [name for name in ("starts", "ends", "axes") if node.has_attr(name)]
    bounds = [up.constant(node.get_attr(name), np.int64, name) for name in given]
    return node.replace(inputs=[node.inputs[0], *bounds], attributes={})


# ---------------------------------------------------------------------- Pad

_MODES = ("constant", "reflect", "edge", "wrap")


def pad_pairs(rank: int, pads: Sequence[Any], axes: Sequence[int] | None) -> list[tuple[Any, Any]]:
    """(before, after) per axis from ONNX's (all begins, all ends)."""
    places = list(range(rank)) if axes is None else normalize_axes(axes, rank)
    if len(pads) != 2 * len(places):
        raise ShapeMismatchError(f"pads for {len(places)} axes must be {2 * len(places)} numbers, got {len(pads)}")
    pairs: list[tuple[Any, Any]] = [(0, 0)] * rank
    for i, axis in enumerate(places):
        pairs[axis] = (pads[i], pads[i + len(places)])
    return pairs


def _pad_type(
    data: Value, pads: Value, _value: Value | None = None, axes: Value | None = None, /, *, mode: str
) -> TensorType:
    if mode not in _MODES:
        raise InputError(f"mode is one of {', '.join(_MODES)}, got {mode!r}")
    if data.tensor_type.shape is None:
        return tensor_like(data, None)
    dims, widths, places = data.shape, known_ints(pads), known_ints(axes)
    if axes is not None and places is None:
        return tensor_like(data, [None] * len(dims))
    if widths is None:
        touched = range(len(dims)) if places is None else normalize_axes(places, len(dims))
        return tensor_like(data, [None if i in touched else d for i, d in enumerate(dims)])
    pairs = pad_pairs(len(dims), widths, places)
    new = [total((d, *pair)) for d, pair in zip(dims, pairs, strict=True)]
    for axis, (size, pair) in enumerate(zip(new, pairs, strict=True)):
        at_least(f"axis {axis} of {Shape(dims)} with pads {list(pair)}", size, 0)
    return tensor_like(data, new)


def _pad_vjp(g: Value, _y: Value, x: Value, pads: Value, *rest: Value | None, mode: str) -> tuple[Value | None, ...]:
    from pyflame_rt.ops.onnx.index import scatter_along

    axes = rest[1] if len(rest) > 1 else None
    none = [None] * (1 + len(rest))
    if mode == "constant":
        return (Pad(g, -pads, None, axes), *none)
    pairs = pad_pairs(x.rank, pads.ints(), None if axes is None else axes.ints())
    for axis, (before, after) in enumerate(pairs):
        size = int(x.shape[axis])  # type: ignore[arg-type]
        if before or after:
            g = scatter_along(g, _padded_places(size, before, after, mode).tolist(), axis, size)
    return (g, *none)


def _padded_places(size: int, before: int, after: int, mode: str) -> np.ndarray[Any, Any]:
    places = np.arange(size)[max(0, -before) : size - max(0, -after)]
    return np.pad(places, (max(0, before), max(0, after)), mode)  # type: ignore[call-overload]


@primitive(since=25, infer=_pad_type, vjp=_pad_vjp, types="T int64 T Tind > T", kind="move", known=(1, 3), complex=True)
def Pad(
    ops: Any, data: Any, pads: Any, constant_value: Any = None, axes: Any = None, /, *, mode: str = "constant"
) -> Any:
    """Elements added around the data, or removed where a pad is negative."""
    if mode not in _MODES:
        raise InputError(f"mode is one of {', '.join(_MODES)}, got {mode!r}")
    pairs = pad_pairs(len(data.shape), _ints(ops, pads), None if axes is None else _ints(ops, axes))
    wider = [(max(0, before), max(0, after)) for before, after in pairs]
    if mode == "constant":
        fill = "" if ops.dtype(data).kind == "O" else 0
        if constant_value is not None:
            fill = ops.to_numpy(constant_value).ravel()[0]
        return _cropped(ops, ops.pad(data, wider, "constant", fill), pairs)
    # Only what is left is mirrored or repeated.
    data = _cropped(ops, data, pairs)
    for axis, (size, pair) in enumerate(zip(data.shape, wider, strict=True)):
        if not size and sum(pair):
            raise ShapeMismatchError(f"axis {axis} of {Shape(data.shape)} is empty: {mode!r} has nothing to add")
    return ops.pad(data, wider, mode)


def _cropped(ops: Any, data: Any, pairs: Sequence[tuple[int, int]]) -> Any:
    """Without as many elements at both ends of each axis as negative pads say."""
    if not any(before < 0 or after < 0 for before, after in pairs):
        return data
    starts = [max(0, -before) for before, _ in pairs]
    stops = [
        max(start, size - max(0, -after)) for start, size, (_, after) in zip(starts, data.shape, pairs, strict=True)
    ]
    return ops.slice(data, starts, stops)


@upgrade("Pad", to=2)
def paddings_became_pads(node: Node, up: Upgrade) -> Node:
    """Version 1 called them paddings."""
    kept = {name: value for name, value in node.attributes.items() if name != "paddings"}
    return node.replace(attributes={**kept, "pads": node.get_attr("paddings")})


@upgrade("Pad", to=11)
def pads_became_an_input(node: Node, up: Upgrade) -> Node:
    """From 2 to 10, pads and the value were attributes."""
    inputs = [node.inputs[0], up.constant(node.get_attr("pads"), np.int64, "pads")]
    if node.get_attr("value", 0.0):
        inputs.append(up.constant_like(node.get_attr("value"), node.inputs[0]))
    return node.replace(inputs=inputs, attributes={"mode": node.get_attr("mode", "constant")})


# ---------------------------------------------------------------------- Tile


def _tile_type(input: Value, repeats: Value, /) -> TensorType:
    dims, counts = input.tensor_type.shape, known_ints(repeats)
    if dims is None:
        return tensor_like(input, None)
    if counts is None:
        return tensor_like(input, [None] * len(dims))
    if len(counts) != len(dims):
        raise ShapeMismatchError(f"repeats {counts} must be one number per axis of {dims}")
    return tensor_like(input, [product(pair) for pair in zip(dims, counts, strict=True)])


def _tile_vjp(g: Value, _y: Value, x: Value, repeats: Value) -> tuple[Value | None, ...]:
    from pyflame_rt.ops.onnx.reduce import ReduceSum
    from pyflame_rt.ops.onnx.shape import Reshape

    pairs = [n for pair in zip(repeats.ints(), x.shape, strict=True) for n in pair]
    return ReduceSum(Reshape(g, pairs, allowzero=1), list(range(0, 2 * x.rank, 2)), keepdims=0), None


def _tile_needs(input: Value, repeats: Value, /) -> None:
    has_rank("repeats", repeats, 1)
    for place, count in enumerate(known_ints(repeats) or ()):
        at_least(f"repeats at [{place}]", count, 0)


@primitive(
    since=13,
    infer=_tile_type,
    requires=_tile_needs,
    shape_math=True,
    vjp=_tile_vjp,
    types="T int64 > T",
    kind="move",
    known=(1,),
    complex=True,
)
def Tile(ops: Any, input: Any, repeats: Any, /) -> Any:
    """The whole tensor repeated along each axis."""
    counts = _ints(ops, repeats)
    if len(counts) != len(input.shape):
        raise ShapeMismatchError(f"repeats {counts} must be one number per axis of {Shape(input.shape)}")
    return ops.tile(input, counts)


@upgrade("Tile", to=6)
def one_axis_became_all(node: Node, up: Upgrade) -> Node:
    """Version 1 repeated along one axis, which like the number came as a scalar input."""
    data, tiles, axis = node.inputs
    one = up.constant([1], np.int64)
    place, count = (up.emit("Reshape", [up.emit("Cast", [v], {"to": DType.Int64.onnx}), one]) for v in (axis, tiles))
    rank = up.emit("Shape", [up.emit("Shape", [data])])
    ones = up.emit("Expand", [one, rank])
    return node.replace(inputs=[data, up.emit("ScatterElements", [ones, place, count])])


# ---------------------------------------------------------------------- compositions


def _crop_pad_type(input_data: Value, shape: Value, /, *, axes: list[int] | None) -> TensorType:
    if input_data.tensor_type.shape is None:
        return tensor_like(input_data, None)
    dims: list[DimLike] = list(input_data.shape)
    places = list(range(len(dims))) if axes is None else normalize_axes(axes, len(dims))
    for axis, size in zip(places, known_ints(shape) or [None] * len(places), strict=True):
        dims[axis] = size
    return tensor_like(input_data, dims)


def _crop_pad_needs(input_data: Value, shape: Value, /, *, axes: list[int] | None) -> Iterator[Within]:
    has_rank("shape", shape, 1)
    count = input_data.rank if axes is None else len(normalize_axes(axes, input_data.rank))
    same_size("the length of shape", length_of(shape), count, "the number of axes")
    yield Within("shape", shape, 0)


@operator(since=18, infer=_crop_pad_type, requires=_crop_pad_needs, types="T Tind > T", known=(1,))
def CenterCropPad(input_data: Value, shape: Value, /, *, axes: list[int] | None = None) -> Value:
    """Cropped or zero-padded round the centre to the given sizes."""
    from pyflame_rt.ops.onnx.cast import Cast
    from pyflame_rt.ops.onnx.index import Gather
    from pyflame_rt.ops.onnx.shape import Shape as ShapeOf

    places = list(range(input_data.rank)) if axes is None else normalize_axes(axes, input_data.rank)
    more = Cast(shape, to=DType.Int64) - Gather(ShapeOf(input_data), places)
    # Division rounds towards zero: the odd element is padded at the end and cropped at the end.
    before = more / 2
    return Pad(input_data, Concat(before, more - before, axis=0), None, constant(places, DType.Int64))


def _reverse_needs(input: Value, sequence_lens: Value, /, *, batch_axis: int, time_axis: int) -> Iterator[Within]:
    if sorted((batch_axis, time_axis)) != [0, 1]:
        raise InputError(f"batch_axis and time_axis are 0 and 1, got {batch_axis} and {time_axis}")
    at_least("the rank of input", input.rank, 2)
    has_shape("sequence_lens", sequence_lens, [input.shape[batch_axis]], "batch")
    yield Within("sequence_lens", sequence_lens, 0, input.shape[time_axis])


@operator(since=28, infer=same, requires=_reverse_needs, types="T int64 > T")
def ReverseSequence(input: Value, sequence_lens: Value, /, *, batch_axis: int = 1, time_axis: int = 0) -> Value:
    """The first elements of each sequence of a batch in reverse order."""
    from pyflame_rt.ops.onnx.index import Gather, GatherND
    from pyflame_rt.ops.onnx.logic import Where
    from pyflame_rt.ops.onnx.shape import Range, Transpose, Unsqueeze
    from pyflame_rt.ops.onnx.shape import Shape as ShapeOf

    zero, one = constant(0, DType.Int64), constant(1, DType.Int64)
    time = Unsqueeze(Range(zero, Gather(ShapeOf(input), constant(time_axis, DType.Int64)), one), [0])
    lengths = Unsqueeze(sequence_lens, [1])
    source = Unsqueeze(Where(time < lengths, lengths - time - one, time), [2])
    swap = [1, 0, *range(2, input.rank)]
    batch_first = Transpose(input, perm=swap) if time_axis == 0 else input
    reversed_ = GatherND(batch_first, source, batch_dims=1)
    return Transpose(reversed_, perm=swap) if time_axis == 0 else reversed_
