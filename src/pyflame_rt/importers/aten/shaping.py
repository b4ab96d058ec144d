"""Operators of aten that move elements without computing: views, joins, parts, padding."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from pyflame_rt.graph import Dim, DType
from pyflame_rt.graph.errors import ShapeMismatchError, UndeterminedError
from pyflame_rt.importers.aten.scalars import is_number
from pyflame_rt.importers.aten.table import aten
from pyflame_rt.importers.aten.values import (
    Num,
    axis,
    cast,
    is_static,
    number,
    refuse,
    result_type,
    shape_value,
    sizes,
    static,
    torch_dtype,
)
from pyflame_rt.ops.core.value import Value, constant
from pyflame_rt.ops.onnx.creation import Range, Trilu
from pyflame_rt.ops.onnx.index import Gather
from pyflame_rt.ops.onnx.sequence import ConcatFromSequence
from pyflame_rt.ops.onnx.shape import Expand, Reshape, Shape, Squeeze, Transpose, Unsqueeze
from pyflame_rt.ops.onnx.slicing import Concat, Pad, Slice, Split, Tile
from pyflame_rt.ops.pyflame.complex_numbers import conjugated

__all__ = [
    "diagonal",
    "expanded",
    "joined",
    "moved_order",
    "part",
    "parted",
    "reshaped",
    "rolled",
    "sliced",
    "swapped",
    "unfolded",
    "widen",
]

END = (1 << 63) - 1


@aten("view", "reshape", "_unsafe_view", "view_copy", "_reshape_alias")
def reshaped(x: Value, shape: Any, *_strides: Any) -> Value:
    """The elements in other sizes; one of them may be -1."""
    dims = [shape] if not isinstance(shape, (list, tuple)) else list(shape)
    if isinstance(shape, DType):
        raise refuse("view as another element type")
    return Reshape(x, shape_value(dims), allowzero=int(0 in [d for d in dims if is_static(d)]))


@aten("view_as", "reshape_as")
def _view_as(x: Value, other: Value) -> Value:
    return Reshape(x, Shape(other))


@aten("flatten")
def _flatten(x: Value, start_dim: int = 0, end_dim: int = -1) -> Value:
    if x.rank == 0:
        return Reshape(x, [1])
    first, last = axis(start_dim, x.rank), axis(end_dim, x.rank)
    dims = sizes(x)
    return reshaped(x, [*dims[:first], -1, *dims[last + 1 :]]) if first != last else x


@aten("ravel")
def _ravel(x: Value) -> Value:
    return Reshape(x, [-1])


@aten("unflatten")
def _unflatten(x: Value, dim: int, shape: Any) -> Value:
    at, dims = axis(dim, x.rank), sizes(x)
    return reshaped(x, [*dims[:at], *shape, *dims[at + 1 :]])


@aten("squeeze")
def _squeeze(x: Value, dim: Any = None) -> Value:
    if dim is None:
        if not all(isinstance(d, int) for d in x.shape):
            raise UndeterminedError("squeeze of all axes needs sizes that are known before running; name the axis")
        along = [i for i, d in enumerate(x.shape) if d == 1]
    else:
        named = [axis(d, x.rank) for d in (dim if isinstance(dim, (list, tuple)) else [dim])] if x.rank else []
        if not all(isinstance(x.shape[a], int) for a in named):
            raise UndeterminedError("squeeze of an axis whose size is only known when running")
        along = [a for a in named if x.shape[a] == 1]
    return Squeeze(x, along) if along else x


@aten("unsqueeze")
def _unsqueeze(x: Value, dim: int) -> Value:
    return Unsqueeze(x, [axis(dim, x.rank + 1)])


def swapped(x: Value, first: int, second: int) -> Value:
    """Two axes exchanged."""
    if x.rank < 2:
        return x
    order = list(range(x.rank))
    a, b = axis(first, x.rank), axis(second, x.rank)
    order[a], order[b] = order[b], order[a]
    return Transpose(x, perm=order) if a != b else x


@aten("transpose", "swapaxes", "swapdims", "transpose_copy")
def _transpose(x: Value, dim0: int, dim1: int) -> Value:
    return swapped(x, dim0, dim1)


@aten("t", "numpy_T", "t_copy")
def _t(x: Value) -> Value:
    return Transpose(x, perm=list(reversed(range(x.rank)))) if x.rank > 1 else x


@aten("mT")
def _mt(x: Value) -> Value:
    return swapped(x, -2, -1)


@aten("mH", "adjoint", "matrix_H")
def _adjoint(x: Value) -> Value:
    return conjugated(swapped(x, -2, -1))


@aten("permute", "permute_copy")
def _permute(x: Value, dims: Any) -> Value:
    order = [axis(d, x.rank) for d in dims]
    return Transpose(x, perm=order) if order != sorted(order) else x


def moved_order(rank: int, source: Any, destination: Any) -> list[int]:
    """The permutation that puts axes in other places."""
    come = [axis(d, rank) for d in (source if isinstance(source, (list, tuple)) else [source])]
    go = [axis(d, rank) for d in (destination if isinstance(destination, (list, tuple)) else [destination])]
    order = [i for i in range(rank) if i not in come]
    for to, frm in sorted(zip(go, come, strict=True)):
        order.insert(to, frm)
    return order


@aten("movedim", "moveaxis")
def _movedim(x: Value, source: Any, destination: Any) -> Value:
    return Transpose(x, perm=moved_order(x.rank, source, destination))


@aten("expand", "expand_copy", "broadcast_to")
def expanded(x: Value, size: Any, *, implicit: bool = False) -> Value:
    """Axes of size one repeated; -1 leaves an axis as it is."""
    del implicit
    dims = list(size)
    new = len(dims) - x.rank
    own = sizes(x)
    target = [own[i - new] if is_static(d) and d == -1 and i >= new else d for i, d in enumerate(dims)]
    return Expand(x, shape_value(target)) if target else x


@aten("expand_as")
def _expand_as(x: Value, other: Value) -> Value:
    return Expand(x, Shape(other))


@aten("broadcast_tensors")
def _broadcast_tensors(tensors: list[Value]) -> list[Value]:
    from pyflame_rt.ops.onnx.arithmetic import Max

    zero = [cast(t, DType.Float32) for t in tensors]
    target = Shape(Max(*zero))
    return [Expand(t, target) for t in tensors]


@aten("repeat")
def _repeat(x: Value, repeats: Any) -> Value:
    times = list(repeats)
    wide = widen(x, len(times))
    return Tile(wide, shape_value(times)) if times else x


@aten("tile")
def _tile(x: Value, dims: Any) -> Value:
    times = [1] * max(0, x.rank - len(dims)) + list(dims)
    return _repeat(x, times)


def widen(x: Value, rank: int) -> Value:
    """Axes of size one put before the others, up to a rank."""
    return Unsqueeze(x, list(range(rank - x.rank))) if rank > x.rank else x


@aten("repeat_interleave")
def _repeat_interleave(x: Value, repeats: Any = None, dim: Any = None, *, output_size: Any = None) -> Value:
    del output_size
    if isinstance(repeats, Value) or not is_number(repeats):
        raise refuse("repeat_interleave by a tensor")
    value = Reshape(x, [-1]) if dim is None else x
    at = 0 if dim is None else axis(dim, x.rank)
    wide = Unsqueeze(value, [at + 1])
    counts: list[Any] = [1] * wide.rank
    counts[at + 1] = repeats
    dims = sizes(value)
    merged: Any = -1
    return reshaped(Tile(wide, shape_value(counts)), [*dims[:at], merged, *dims[at + 1 :]])


def joined(tensors: Any, dim: int = 0) -> Value:
    """Tensors one after the other along an axis; a sequence of unknown length too."""
    if isinstance(tensors, Value):
        return ConcatFromSequence(tensors, axis=int(dim))
    kind = result_type(*tensors)
    # Empty tensors of one axis join anything in torch.
    real = [t for t in tensors if not (t.rank == 1 and t.shape[0] == 0)] or list(tensors)[:1]
    parts = [cast(t, kind) for t in real]
    return Concat(*parts, axis=axis(dim, parts[0].rank)) if len(parts) > 1 else parts[0]


@aten("cat", "concat", "concatenate")
def _cat(tensors: Any, dim: int = 0) -> Value:
    return joined(tensors, dim)


@aten("stack")
def _stack(tensors: Any, dim: int = 0) -> Value:
    if isinstance(tensors, Value):
        return ConcatFromSequence(tensors, axis=int(dim), new_axis=1)
    at = axis(dim, tensors[0].rank + 1)
    return joined([Unsqueeze(t, [at]) for t in tensors], at)


@aten("hstack")
def _hstack(tensors: list[Value]) -> Value:
    return joined(tensors, 0 if tensors[0].rank < 2 else 1)


@aten("vstack")
def _vstack(tensors: list[Value]) -> Value:
    return joined([widen(t, 2) for t in tensors], 0)


def sliced(x: Value, dim: int, start: Any, end: Any, step: Any = 1) -> Value:
    """``x[start:end:step]`` along an axis."""
    at = axis(dim, x.rank)
    low, high = 0 if start is None else start, END if end is None else end
    if is_static(low) and low == 0 and is_static(high) and high >= END // 2 and step == 1:
        return x
    return Slice(x, shape_value([low]), shape_value([high]), constant([at], DType.Int64), shape_value([step]))


@aten("slice", "slice_copy")
def _slice(x: Value, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1) -> Value:
    return sliced(x, dim, start, end, step)


@aten("narrow", "narrow_copy")
def _narrow(x: Value, dim: int, start: Any, length: Any) -> Value:
    if isinstance(start, Num) or isinstance(length, Num):
        first = number(start, DType.Int64)
        return Slice(x, Reshape(first, [1]), Reshape(first + number(length, DType.Int64), [1]), [axis(dim, x.rank)])
    end = start + length
    from_back = is_static(start) and start < 0 and is_static(end) and end == 0
    return sliced(x, dim, start, END if from_back else end)


@aten("select", "select_copy")
def part(x: Value, dim: int, index: Any) -> Value:
    """One element of an axis, which goes."""
    return Gather(x, number(index, DType.Int64), axis=axis(dim, x.rank))


def _length(x: Value, at: int) -> int:
    size = x.shape[at]
    if not isinstance(size, int):
        raise UndeterminedError(f"parts along axis {at}, whose size {size} is only known when running")
    return size


def parted(length: int, places: Any) -> list[tuple[int, int]]:
    """From where to where the parts of an axis go: equal ones, the first longer by one, or those between places."""
    if isinstance(places, Value):
        places = places.contents().tolist()
    if not isinstance(places, (list, tuple)):
        count = int(static(places, "the number of parts"))
        places = [i * (length // count) + min(i, length % count) for i in range(1, count)]
    ends = static(list(places), "the places of parts")
    bounds = [0, *(min(max(p + length if p < 0 else p, 0), length) for p in ends), length]
    return [(low, max(low, high)) for low, high in itertools.pairwise(bounds)]


@aten("tensor_split")
def _tensor_split(x: Value, places: Any, dim: int = 0) -> list[Value]:
    at = axis(dim, x.rank)
    return [sliced(x, at, low, high) for low, high in parted(_length(x, at), places)]


@aten("split")
def _split(x: Value, split_size: Any, dim: int = 0) -> list[Value]:
    if isinstance(split_size, (list, tuple)):
        return _split_with_sizes(x, split_size, dim)
    at, size = axis(dim, x.rank), int(static(split_size, "the size of a part"))
    length = _length(x, at)
    return _parts(x, [min(size, length - i) for i in range(0, length, size)] or [0], at)


@aten("split_with_sizes", "split_with_sizes_copy", "unsafe_split_with_sizes")
def _split_with_sizes(x: Value, split_sizes: Any, dim: int = 0) -> list[Value]:
    return _parts(x, list(split_sizes), axis(dim, x.rank))


@aten("chunk", "unsafe_chunk")
def _chunk(x: Value, chunks: int, dim: int = 0) -> list[Value]:
    at = axis(dim, x.rank)
    length = _length(x, at)
    size = max(1, -(-length // int(chunks)))
    return _parts(x, [min(size, length - i) for i in range(0, length, size)] or [0], at)


def _parts(x: Value, lengths: list[Any], at: int) -> list[Value]:
    if len(lengths) == 1:
        return [x]
    made = Split(x, shape_value(lengths), axis=at)
    return list(made) if isinstance(made, tuple) else [made]


@aten("unbind", "unbind_copy")
def _unbind(x: Value, dim: int = 0) -> list[Value]:
    at = axis(dim, x.rank)
    return [part(x, at, i) for i in range(_length(x, at))]


@aten("flip")
def _flip(x: Value, dims: Any) -> Value:
    along = [axis(d, x.rank) for d in dims]
    if not along:
        return x
    back = [-1] * len(along)
    return Slice(x, back, [-END] * len(along), along, back)


@aten("fliplr")
def _fliplr(x: Value) -> Value:
    return _flip(x, [1])


@aten("flipud")
def _flipud(x: Value) -> Value:
    return _flip(x, [0])


@aten("roll")
def rolled(x: Value, shifts: Any, dims: Any = ()) -> Value:
    """Elements moved along axes; what leaves at the end comes in at the front."""
    moves = shifts if isinstance(shifts, (list, tuple)) else [shifts]
    along = dims if isinstance(dims, (list, tuple)) else [dims]
    if not along:
        return Reshape(rolled(Reshape(x, [-1]), moves, [0]), Shape(x))
    for move, dim in zip(moves, along, strict=True):
        size = sizes(x)[axis(dim, x.rank)]
        by = int(move) % size if isinstance(size, int) and size else int(move)
        if by:
            x = joined([sliced(x, dim, -by, None), sliced(x, dim, None, -by)], dim)
    return x


@aten("pixel_shuffle")
def _pixel_shuffle(x: Value, upscale_factor: int) -> Value:
    r = int(upscale_factor)
    *lead, channels, high, wide = sizes(x)
    if isinstance(channels, Num):
        raise UndeterminedError("pixel_shuffle needs the number of channels")
    apart = reshaped(x, [*lead, channels // (r * r), r, r, high, wide])
    n = len(lead)
    order = [*range(n), n, n + 3, n + 1, n + 4, n + 2]
    return reshaped(Transpose(apart, perm=order), [*lead, channels // (r * r), _times(high, r), _times(wide, r)])


@aten("pixel_unshuffle")
def _pixel_unshuffle(x: Value, downscale_factor: int) -> Value:
    r = int(downscale_factor)
    *lead, channels, high, wide = sizes(x)
    if any(isinstance(d, Num) for d in (channels, high, wide)):
        raise UndeterminedError("pixel_unshuffle needs the sizes of the image")
    apart = reshaped(x, [*lead, channels, high // r, r, wide // r, r])
    n = len(lead)
    order = [*range(n), n, n + 2, n + 4, n + 1, n + 3]
    final = [*lead, channels * r * r, high // r, wide // r]
    return reshaped(Transpose(apart, perm=order), final)


@aten("channel_shuffle", "native_channel_shuffle")
def _channel_shuffle(x: Value, groups: int) -> Value:
    batch, channels, *space = sizes(x)
    if isinstance(channels, Num):
        raise UndeterminedError("channel_shuffle needs the number of channels")
    return Reshape(swapped(reshaped(x, [batch, groups, channels // groups, *space]), 1, 2), Shape(x))


def _times(size: Any, factor: int) -> Any:
    return Num(size.value * factor, int) if isinstance(size, Num) else size * factor


@aten("tril")
def _tril(x: Value, diagonal: int = 0) -> Value:
    return Trilu(x, constant(int(diagonal), DType.Int64), upper=0)


@aten("triu")
def _triu(x: Value, diagonal: int = 0) -> Value:
    return Trilu(x, constant(int(diagonal), DType.Int64), upper=1)


@aten("diagonal", "diagonal_copy", "linalg_diagonal")
def diagonal(x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    """The elements whose places along two axes differ by an offset, on a new last axis."""
    a, b = axis(dim1, x.rank), axis(dim2, x.rank)
    rest = [i for i in range(x.rank) if i not in (a, b)]
    last = Transpose(x, perm=[*rest, a, b])
    rows, columns = _length(x, a), _length(x, b)
    count = max(0, min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns))
    start = offset if offset >= 0 else -offset * columns
    flat = Reshape(last, shape_value([*sizes(last)[:-2], rows * columns]))
    places = constant([start + i * (columns + 1) for i in range(count)], DType.Int64)
    return Gather(flat, places, axis=flat.rank - 1)


@aten("diag")
def _diag(x: Value, offset: int = 0) -> Value:
    return diagonal(x, offset) if x.rank == 2 else _diag_embed(x, offset)


@aten("diag_embed")
def _diag_embed(x: Value, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Value:
    if (axis(dim1, x.rank + 1), axis(dim2, x.rank + 1)) != (x.rank - 1, x.rank):
        raise refuse("diag_embed into other axes than the last two")
    from pyflame_rt.ops.onnx.logic import Equal, Where

    size = _length(x, x.rank - 1) + abs(int(offset))
    padded = Pad(x, constant([max(0, -offset), max(0, offset)], DType.Int64), None, [x.rank - 1])
    rows, columns = (Reshape(Range(*(constant(v, DType.Int64) for v in (0, size, 1))), s) for s in ([-1, 1], [1, -1]))
    there = Equal(columns - rows, constant(int(offset), DType.Int64))
    value = Unsqueeze(padded, [x.rank])
    return Where(there, value, number(0, x.dtype))


@aten("meshgrid")
def _meshgrid(tensors: list[Value], indexing: str = "ij", **_: Any) -> list[Value]:
    count = len(tensors)
    dims = [sizes(t)[0] if t.rank else 1 for t in tensors]
    order = [1, 0, *range(2, count)] if indexing == "xy" and count > 1 else list(range(count))
    target = shape_value([dims[i] for i in order])
    made: list[Value] = []
    for i, t in enumerate(tensors):
        shape = [1] * count
        shape[order.index(i)] = -1
        made.append(Expand(Reshape(t, shape), target))
    return made


@aten("unfold", "unfold_copy")
def unfolded(x: Value, dimension: int, size: int, step: int) -> Value:
    """Windows along an axis, each on a new last axis; how many follows from the size of the axis."""
    if x.rank == 0:
        return Reshape(x, [1])
    at = axis(dimension, x.rank)
    length = sizes(x)[at]
    if isinstance(length, int) and length < int(size):
        raise ShapeMismatchError(f"windows of {size} do not fit an axis of {length}")
    # A window begins wherever a whole one follows.
    last = number(length, DType.Int64) - constant(int(size) - 1, DType.Int64)
    starts = Range(constant(0, DType.Int64), last, constant(int(step), DType.Int64))
    places = Unsqueeze(starts, [1]) + constant(np.arange(int(size)), DType.Int64)
    windows = Gather(x, places, axis=at)
    order = [*range(at + 1), *range(at + 2, x.rank + 1), at + 1]
    return Transpose(windows, perm=order)


# ---------------------------------------------------------------------- types and copies


@aten("clone", "contiguous", "detach", "alias", "lift_fresh", "lift_fresh_copy", "detach_copy", "positive", "lift",
      "data", "requires_grad", "resolve_conj", "resolve_neg", "alias_copy")  # fmt: skip
def _same(x: Value, *_: Any, **__: Any) -> Value:
    return x


@aten("to", "_to_copy", "_autocast_to_full_precision")
def _to(x: Value, *args: Any, dtype: Any = None, **_: Any) -> Value:
    if dtype is None:
        dtype = next((a for a in args if isinstance(a, DType) or (type(a) is int)), None)
    if dtype is None and args and isinstance(args[0], Value):
        return cast(x, args[0].dtype)
    return x if dtype is None else cast(x, torch_dtype(dtype))


@aten("type_as")
def _type_as(x: Value, other: Value) -> Value:
    return cast(x, other.dtype)


@aten("convert_element_type")
def _convert(x: Value, dtype: Any) -> Value:
    return cast(x, torch_dtype(dtype))


@aten("size")
def _size(x: Value, dim: Any = None) -> Any:
    dims = sizes(x)
    return dims if dim is None else dims[axis(dim, x.rank)]


@aten("dim")
def _dim(x: Value) -> int:
    return x.rank


@aten("numel")
def _numel(x: Value) -> Any:
    dims = sizes(x)
    if any(isinstance(d, Num) for d in dims):
        from pyflame_rt.ops.onnx.shape import Size

        return Num(Size(x), int)
    return math.prod(dims) if all(isinstance(d, int) for d in dims) else _product(dims)


def _product(dims: list[Any]) -> Any:
    total: Any = 1
    for d in dims:
        total = d * total if isinstance(d, Dim) else total * d
    return total


@aten("atleast_1d")
def _atleast_1d(x: Any) -> Any:
    return [widen(t, 1) for t in x] if isinstance(x, (list, tuple)) else widen(x, 1)


@aten("atleast_2d")
def _atleast_2d(x: Any) -> Any:
    return [widen(t, 2) for t in x] if isinstance(x, (list, tuple)) else widen(x, 2)


@aten("copy")
def _copy(x: Value, src: Any, *_non_blocking: Any, **_: Any) -> Value:
    value = number(src, x.dtype)
    if value.rank > x.rank:
        raise ShapeMismatchError(f"a tensor of rank {value.rank} cannot be copied into one of rank {x.rank}")
    return value if value.shape == x.shape and x.shape.is_static else Expand(value, Shape(x))


@aten("rot90")
def _rot90(x: Value, k: int = 1, dims: Any = (0, 1)) -> Value:
    first, second = (axis(d, x.rank) for d in dims)
    match int(k) % 4:
        case 1:
            return swapped(_flip(x, [second]), first, second)
        case 2:
            return _flip(x, [first, second])
        case 3:
            return _flip(swapped(x, first, second), [second])
    return x


@aten("slice_scatter")
def _slice_scatter(x: Value, src: Value, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1) -> Value:
    from pyflame_rt.importers.torchscript.views import VIEWS

    return VIEWS["slice"](x, src, dim, start, end, step)


@aten("select_scatter")
def _select_scatter(x: Value, src: Value, dim: int, index: Any) -> Value:
    from pyflame_rt.importers.torchscript.views import VIEWS

    return VIEWS["select"](x, src, dim, index)
