"""Shapes: the same elements found in another way, joined, split, repeated."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame.dtypes import DType, WrongTypeError
from pyflame.lazy import leaf
from pyflame.ops.core import (
    DimensionError,
    as_tensor,
    axes_of,
    axis_of,
    call,
    call_many,
    common_dtype,
    convert,
    dim_argument,
    scalar,
    sizes_of,
    wrap,
)  # fmt: skip
from pyflame_rt.graph.errors import ShapeMismatchError
from pyflame_rt.graph.named_arguments import names_arguments
from pyflame_rt.ops.onnx.cast import Identity
from pyflame_rt.ops.onnx.creation import Trilu
from pyflame_rt.ops.onnx.index import Gather
from pyflame_rt.ops.onnx.shape import Expand, Reshape, Transpose
from pyflame_rt.ops.onnx.slicing import Concat, Pad, Slice, Split, Tile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyflame.tensors import Tensor


def reshape(input: Any, *shape: Any) -> Tensor:
    """The same elements in another shape; one size may be -1."""
    x = as_tensor(input)
    sizes = _resolved(x, sizes_of(shape))
    if sizes == x._value.spec.shape:
        return x
    return call(Reshape, x, sizes, **({"allowzero": 1} if 0 in sizes else {}))


def _resolved(x: Tensor, sizes: tuple[int, ...]) -> tuple[int, ...]:
    rest = math.prod(s for s in sizes if s != -1)
    if sizes.count(-1) == 1 and rest and x.numel % rest == 0:
        return tuple(x.numel // rest if s == -1 else s for s in sizes)
    if any(s < 0 for s in sizes) or math.prod(sizes) != x.numel:
        raise ShapeMismatchError(f"shape {list(sizes)} does not fit {x.numel} elements of shape {x.shape}")
    return sizes


def view(input: Any, *shape: Any) -> Tensor:
    """The same elements in another shape (as :func:`reshape`), or in another element type of the same size."""
    if len(shape) == 1 and isinstance(shape[0], DType):
        return as_tensor(input).bitcast(shape[0])
    return reshape(input, *shape)


def view_as(input: Any, other: Any) -> Tensor:
    """The same elements in the shape of another tensor."""
    return reshape(input, as_tensor(other).shape)


reshape_as = view_as


def flatten(input: Any, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Dimensions from ``start_dim`` to ``end_dim`` as one."""
    x = as_tensor(input)
    first, last = axis_of(start_dim, x.ndim), axis_of(end_dim, x.ndim)
    if first > last:
        raise DimensionError(f"flatten: start_dim {start_dim} comes after end_dim {end_dim}")
    if x.ndim == 0:
        return reshape(x, (1,))
    return reshape(x, (*x.shape[:first], math.prod(x.shape[first : last + 1]), *x.shape[last + 1 :]))


def ravel(input: Any) -> Tensor:
    """All elements in one dimension."""
    return reshape(input, (-1,)) if as_tensor(input).numel else reshape(input, (0,))


@names_arguments
def unflatten(input: Any, dim: int, sizes: Sequence[int]) -> Tensor:
    """One dimension as several."""
    x = as_tensor(input)
    along = axis_of(dim, x.ndim)
    inner = list(sizes)
    if -1 in inner:
        inner[inner.index(-1)] = x.shape[along] // max(1, math.prod(s for s in inner if s != -1))
    if math.prod(inner) != x.shape[along]:
        raise ShapeMismatchError(f"unflatten: sizes {list(sizes)} do not multiply to dimension {dim}, {x.shape[along]}")
    return reshape(x, (*x.shape[:along], *inner, *x.shape[along + 1 :]))


def squeeze(input: Any, dim: Any = None, *, axis: Any = None) -> Tensor:
    """Without dimensions of size 1: all of them, or those named."""
    x = as_tensor(input)
    along = dim_argument(dim, axis)
    if x.ndim == 0:
        axes_of(along, 0)
        return x
    axes = [a for a in axes_of(along, x.ndim) if x.shape[a] == 1]
    return reshape(x, tuple(s for i, s in enumerate(x.shape) if i not in axes)) if axes else x


def unsqueeze(input: Any, dim: int) -> Tensor:
    """With a further dimension of size 1."""
    x = as_tensor(input)
    along = axis_of(dim, x.ndim + 1)
    return reshape(x, (*x.shape[:along], 1, *x.shape[along:]))


def expand_dims(input: Any, axis: int) -> Tensor:
    """As :func:`unsqueeze`, under NumPy's name."""
    return unsqueeze(input, axis)


def permute(input: Any, *dims: Any) -> Tensor:
    """Dimensions in another order."""
    x = as_tensor(input)
    given = sizes_of(dims) if dims else ()
    order = tuple(axis_of(d, x.ndim) for d in given)
    if sorted(order) != list(range(x.ndim)):
        raise ShapeMismatchError(f"permute: {list(given)} does not name each of {x.ndim} dimensions once")
    if order == tuple(range(x.ndim)):
        return x
    return call(Transpose, x, perm=order)


def transpose(input: Any, dim0: int, dim1: int) -> Tensor:
    """Two dimensions swapped."""
    x = as_tensor(input)
    a, b = axis_of(dim0, x.ndim), axis_of(dim1, x.ndim)
    order = list(range(x.ndim))
    if a != b:
        order[a], order[b] = order[b], order[a]
    return permute(x, order) if x.ndim else x


swapaxes = swapdims = transpose


def t(input: Any) -> Tensor:
    """The transpose of a matrix; vectors stay as they are."""
    x = as_tensor(input)
    if x.ndim > 2:
        raise ShapeMismatchError(f"t() takes at most 2 dimensions, got {x.ndim}; use transpose or permute")
    return transpose(x, 0, 1) if x.ndim == 2 else x


def movedim(input: Any, source: Any, destination: Any) -> Tensor:
    """Dimensions moved to other places."""
    x = as_tensor(input)
    src = [axis_of(d, x.ndim) for d in ([source] if isinstance(source, int) else source)]
    dst = [axis_of(d, x.ndim) for d in ([destination] if isinstance(destination, int) else destination)]
    if len(src) != len(dst) or len(set(src)) != len(src) or len(set(dst)) != len(dst):
        raise ShapeMismatchError(f"movedim: {source} and {destination} do not name as many different dimensions")
    order = [d for d in range(x.ndim) if d not in src]
    for place, axis in sorted(zip(dst, src, strict=True)):
        order.insert(place, axis)
    return permute(x, order)


moveaxis = movedim


def expand(input: Any, *sizes: Any) -> Tensor:
    """Dimensions of size 1 stretched, further ones added in front; -1 keeps a size."""
    x = as_tensor(input)
    wanted = sizes_of(sizes)
    extra = len(wanted) - x.ndim
    if extra < 0:
        raise ShapeMismatchError(f"expand: {list(wanted)} has fewer dimensions than {x.shape}")
    full = []
    for i, size in enumerate(wanted):
        have = x.shape[i - extra] if i >= extra else 1
        if size == -1 and i < extra:
            raise ShapeMismatchError(f"expand: -1 in {list(wanted)} stands for a dimension that {x.shape} lacks")
        if size not in (-1, have) and have != 1:
            raise ShapeMismatchError(f"expand: {x.shape} does not stretch to {list(wanted)}")
        full.append(have if size == -1 else size)
    return broadcast_to(x, full)


def expand_as(input: Any, other: Any) -> Tensor:
    """Stretched to the shape of another tensor."""
    return expand(input, as_tensor(other).shape)


def broadcast_to(input: Any, shape: Sequence[int]) -> Tensor:
    """Stretched to a shape by the rules of broadcasting."""
    x = as_tensor(input)
    sizes = sizes_of((shape,))
    if sizes == x._value.spec.shape:
        return x
    try:
        fits = np.broadcast_shapes(tuple(x.shape), sizes) == sizes
    except ValueError:
        fits = False
    if not fits:
        raise ShapeMismatchError(f"{x.shape} does not broadcast to {list(sizes)}")
    return call(Expand, x, sizes)


def broadcast_tensors(*tensors: Any) -> list[Tensor]:
    """All tensors stretched to their common shape."""
    given = [as_tensor(v) for v in tensors]
    try:
        shape = np.broadcast_shapes(*[tuple(v.shape) for v in given])
    except ValueError as error:
        raise ShapeMismatchError(f"shapes do not broadcast: {', '.join(str(v.shape) for v in given)}") from error
    return [broadcast_to(v, shape) for v in given]


@names_arguments
def broadcast_shapes(*shapes: Any) -> tuple[int, ...]:
    """The shape that shapes broadcast to."""
    try:
        return np.broadcast_shapes(*[sizes_of((s,)) for s in shapes])
    except ValueError as error:
        raise ShapeMismatchError(f"shapes do not broadcast: {', '.join(map(str, shapes))}") from error


def cat(tensors: Sequence[Any], dim: int = 0, *, axis: int | None = None) -> Tensor:
    """Tensors one after the other along a dimension."""
    given = list(tensors)
    if not given:
        raise ValueError("cat needs at least one tensor")
    dtype = common_dtype(given)
    parts = [convert(v, dtype) for v in given]
    full = [p for p in parts if tuple(p.shape) != (0,)] or parts[:1]
    along = axis_of(dim if axis is None else axis, full[0].ndim)
    if full[0].ndim == 0:
        raise ShapeMismatchError("cat takes tensors with dimensions; use stack for numbers")
    return call(Identity, full[0]) if len(full) == 1 else call(Concat, *full, axis=along)


concat = concatenate = cat


def stack(tensors: Sequence[Any], dim: int = 0, *, axis: int | None = None) -> Tensor:
    """Tensors of one shape along a new dimension."""
    given = [as_tensor(v) for v in tensors]
    if not given:
        raise ValueError("stack needs at least one tensor")
    shapes = {v._value.spec.shape for v in given}
    if len(shapes) > 1:
        raise ShapeMismatchError(f"stack takes tensors of one shape, got {', '.join(str(v.shape) for v in given)}")
    along = axis_of(dim if axis is None else axis, given[0].ndim + 1)
    return cat([unsqueeze(v, along) for v in given], along)


def _deep(given: Sequence[Any], rank: int) -> list[Tensor]:
    return [
        as_tensor(v)
        if as_tensor(v).ndim >= rank
        else reshape(v, (1,) * (rank - as_tensor(v).ndim) + tuple(as_tensor(v).shape))
        for v in given
    ]


def hstack(tensors: Sequence[Any]) -> Tensor:
    """Side by side: along dimension 1, of vectors along 0."""
    parts = _deep(tensors, 1)
    return cat(parts, 0 if parts[0].ndim == 1 else 1)


def vstack(tensors: Sequence[Any]) -> Tensor:
    """One above the other: vectors are rows."""
    return cat(_deep(tensors, 2), 0)


def dstack(tensors: Sequence[Any]) -> Tensor:
    """Along a third dimension."""
    parts = [_three(v) for v in tensors]
    return cat(parts, 2)


def column_stack(tensors: Sequence[Any]) -> Tensor:
    """Vectors as columns, side by side."""
    parts = [as_tensor(v) for v in tensors]
    return hstack([reshape(v, (v.numel, 1)) if v.ndim <= 1 else v for v in parts])


row_stack = vstack


def _one_or_all(tensors: tuple[Any, ...], change: Callable[[Any], Tensor]) -> Any:
    if len(tensors) != 1:
        return tuple(change(v) for v in tensors)
    (only,) = tensors
    return tuple(change(v) for v in only) if isinstance(only, (list, tuple)) else change(only)


def atleast_1d(*tensors: Any) -> Any:
    """With at least one dimension; several tensors give a tuple."""
    return _one_or_all(tensors, lambda v: _deep([v], 1)[0])


def atleast_2d(*tensors: Any) -> Any:
    """With at least two dimensions; several tensors give a tuple."""
    return _one_or_all(tensors, lambda v: _deep([v], 2)[0])


def atleast_3d(*tensors: Any) -> Any:
    """With at least three dimensions, the last added behind; several tensors give a tuple."""
    return _one_or_all(tensors, _three)


def _three(input: Any) -> Tensor:
    x = _deep([input], 2)[0]
    return unsqueeze(x, -1) if x.ndim == 2 else x


def narrow(input: Any, dim: int, start: int, length: int) -> Tensor:
    """``length`` entries of a dimension from ``start`` on."""
    x = as_tensor(input)
    along = axis_of(dim, x.ndim)
    size = x.shape[along]
    begin = start + size if start < 0 else start
    if not (0 <= begin <= size and 0 <= length <= size - begin):
        raise IndexError(f"narrow: {length} entries from {start} on are not in dimension {dim} of size {size}")
    return slice_axes(x, [(along, begin, begin + length, 1)])


def slice_axes(x: Tensor, parts: Sequence[tuple[int, int, int, int]]) -> Tensor:
    """Entries of axes: (axis, start, stop, step) with numbers that are in range."""
    kept = [p for p in parts if not (p[1] == 0 and p[2] == x.shape[p[0]] and p[3] == 1)]
    if not kept:
        return x
    axes, starts, stops, steps = (tuple(column) for column in zip(*kept, strict=True))
    return call(Slice, x, starts, stops, axes, steps)


def split(input: Any, split_size: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """Pieces of a size (the last may be smaller), or of the sizes listed."""
    x = as_tensor(input)
    along = axis_of(dim, x.ndim)
    size = x.shape[along]
    if isinstance(split_size, int):
        if split_size <= 0 and not (split_size == 0 and size == 0):
            raise ValueError(f"split: pieces must have a positive size, got {split_size}")
        sizes = [min(split_size, size - i) for i in range(0, size, max(split_size, 1))] or [0]
    else:
        sizes = [int(s) for s in split_size]
    if sum(sizes) != size or any(s < 0 for s in sizes):
        raise ShapeMismatchError(f"split: sizes {sizes} do not add up to dimension {dim}, {size}")
    if len(sizes) == 1:
        return (x,)
    return tuple(call_many(Split, x, tuple(sizes), axis=along))


def chunk(input: Any, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """At most ``chunks`` pieces of equal size, the last perhaps smaller."""
    if chunks <= 0:
        raise ValueError(f"chunk needs a positive number of pieces, got {chunks}")
    x = as_tensor(input)
    size = x.shape[axis_of(dim, x.ndim)]
    if size == 0:
        return split(x, [0] * chunks, dim)
    return split(x, -(-size // chunks), dim)


def tensor_split(input: Any, indices_or_sections: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """Pieces of almost equal size, or cut before the indices listed."""
    x = as_tensor(input)
    along = axis_of(dim, x.ndim)
    size = x.shape[along]
    if hasattr(indices_or_sections, "tolist"):
        indices_or_sections = indices_or_sections.tolist()
    if isinstance(indices_or_sections, int):
        n = indices_or_sections
        sizes = [size // n + (i < size % n) for i in range(n)]
        return split(x, sizes, dim)
    cuts = [max(0, min(size, i + size if i < 0 else i)) for i in (int(v) for v in indices_or_sections)]
    pairs = zip([0, *cuts], [*cuts, size], strict=True)
    return tuple(slice_axes(x, [(along, a, max(a, b), 1)]) for a, b in pairs)


def unbind(input: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """The entries of a dimension, each without it."""
    x = as_tensor(input)
    along = axis_of(dim, x.ndim)
    return tuple(squeeze(part, along) for part in (split(x, 1, along) if x.shape[along] else ()))


def tile(input: Any, *dims: Any) -> Tensor:
    """The tensor repeated along its dimensions."""
    x = as_tensor(input)
    times = sizes_of(dims)
    times = (1,) * (x.ndim - len(times)) + times
    x = reshape(x, (1,) * (len(times) - x.ndim) + tuple(x.shape))
    if 0 in times:
        nothing = slice_axes(x, [(a, 0, 0, 1) for a in range(x.ndim)])
        return reshape(nothing, [s * n for s, n in zip(x.shape, times, strict=True)])
    return call(Identity, x) if all(n == 1 for n in times) else call(Tile, x, times)


def repeat(input: Any, *sizes: Any) -> Tensor:
    """The tensor repeated; one number for each dimension at least."""
    x = as_tensor(input)
    times = sizes_of(sizes)
    if len(times) < x.ndim:
        raise ShapeMismatchError(f"repeat: {list(times)} has fewer numbers than {x.shape} has dimensions")
    return tile(x, times)


@names_arguments
def repeat_interleave(input: Any, repeats: Any, dim: int | None = None, *, output_size: int | None = None) -> Tensor:
    """Each entry of a dimension repeated in place; a tensor of different numbers is evaluated."""
    x = as_tensor(input)
    if dim is None:
        x, dim = ravel(x), 0
    along = axis_of(dim, x.ndim)
    size = x.shape[along]
    counts = _repeats(repeats, size)
    made = size * int(counts[0]) if counts.size == 1 else int(counts.sum())
    if output_size not in (None, made):
        raise ShapeMismatchError(f"repeat_interleave: output_size is {output_size}, the repeats make {made}")
    if not isinstance(repeats, (int, np.integer)):
        places = np.repeat(np.arange(size), counts).astype(np.int64)
        return call(Gather, x, wrap(leaf(places, DType.int64)), axis=along)
    wide = expand(unsqueeze(x, along + 1), [*x.shape[: along + 1], int(repeats), *x.shape[along + 1 :]])
    return reshape(wide, (*x.shape[:along], x.shape[along] * int(repeats), *x.shape[along + 1 :]))


def _repeats(repeats: Any, size: int) -> np.ndarray[Any, Any]:
    """How often each entry of a dimension is repeated: one number for all, or one for each."""
    counts = np.atleast_1d(as_tensor(repeats).numpy(copy=False))
    if counts.dtype.kind not in "iu":
        raise WrongTypeError(f"repeat_interleave: repeats are whole numbers, got {counts.dtype}")
    if counts.ndim > 1 or counts.size not in (1, size):
        raise ShapeMismatchError(
            f"repeat_interleave: a dimension of {size} takes one number of repeats or {size}, got {list(counts.shape)}"
        )
    if counts.min(initial=0) < 0:
        raise ValueError(f"repeat_interleave: repeats must not be negative, got {counts.min()}")
    return counts


def flip(input: Any, *axes: Any, dims: Any = None) -> Tensor:
    """Dimensions in reverse order: ``flip(x, 0, 1)`` or ``flip(x, dims=[0, 1])``."""
    x = as_tensor(input)
    given = sizes_of(axes if dims is None else (dims if isinstance(dims, (tuple, list)) else (dims,)))
    axes = axes_of(given, x.ndim) if given else ()
    if not axes or x.numel == 0:
        return call(Identity, x)
    count = len(axes)
    return call(Slice, x, (-1,) * count, (-(2**62),) * count, axes, (-1,) * count)


def fliplr(input: Any) -> Tensor:
    """Columns in reverse order."""
    return flip(input, 1)


def flipud(input: Any) -> Tensor:
    """Rows in reverse order."""
    return flip(input, 0)


@names_arguments
def roll(input: Any, shifts: Any, dims: Any = None) -> Tensor:
    """Entries moved along dimensions, those that fall off coming back at the other end."""
    x = given = as_tensor(input)
    if dims is None:
        return reshape(roll(ravel(x), shifts, 0), x.shape) if x.numel else call(Identity, x)
    moves = [shifts] if isinstance(shifts, int) else list(shifts)
    for shift, dim in zip(moves, [dims] if isinstance(dims, int) else list(dims), strict=True):
        along = axis_of(dim, x.ndim)
        size = x.shape[along]
        cut = (size - shift % size) % size if size else 0
        if cut:
            x = cat([slice_axes(x, [(along, cut, size, 1)]), slice_axes(x, [(along, 0, cut, 1)])], along)
    return call(Identity, x) if x is given else x


@names_arguments
def rot90(input: Any, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
    """Turned by ``k`` right angles in the plane of two dimensions."""
    a, b = dims
    match k % 4:
        case 1:
            return transpose(flip(input, b), a, b)
        case 2:
            return flip(input, a, b)
        case 3:
            return flip(transpose(input, a, b), b)
        case _:
            return call(Identity, as_tensor(input))


@names_arguments
def pad(input: Any, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor:
    """Entries added around dimensions, last dimension first: (before, after, before, after, ...)."""
    x = as_tensor(input)
    amounts = [int(v) for v in pad]
    if len(amounts) % 2 or len(amounts) > 2 * x.ndim:
        raise ShapeMismatchError(f"pad takes two numbers for each of at most {x.ndim} dimensions, got {amounts}")
    pairs = [(0, 0)] * (x.ndim - len(amounts) // 2) + list(zip(amounts[-2::-2], amounts[-1::-2], strict=True))
    modes = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}
    if mode not in modes:
        raise ValueError(f"pad: mode is one of {', '.join(modes)}, got {mode!r}")
    if all(p == (0, 0) for p in pairs):
        return call(Identity, x)
    _fits(x.shape, pairs, mode)
    shape = tuple(a for a, _ in pairs) + tuple(b for _, b in pairs)
    if mode == "constant":
        return call(Pad, x, shape, scalar(0 if value is None else value, x.dtype), mode="constant")
    return call(Pad, x, shape, mode=modes[mode])


def _fits(shape: Sequence[int], pairs: Sequence[tuple[int, int]], mode: str) -> None:
    """Refuse to reflect or wrap further than the data reaches, as torch does; the operator would begin again."""
    room = {"reflect": -1, "circular": 0}.get(mode)
    for axis, (size, pair) in enumerate(zip(shape, pairs, strict=True)):
        if room is not None and max(pair) > max(size + room, 0):
            raise ShapeMismatchError(
                f"pad: mode {mode!r} takes at most {max(size + room, 0)} for dimension {axis} of size {size}. "
                f"Received: {pair}"
            )


def _factor(role: str, factor: int) -> int:
    if factor < 1:
        raise ValueError(f"{role} must be at least 1. Received: {factor}")
    return factor


def tril(input: Any, diagonal: int = 0) -> Tensor:
    """The lower triangle, zeros above it."""
    return call(Trilu, as_tensor(input), np.int64(diagonal).item(), upper=0)


def triu(input: Any, diagonal: int = 0) -> Tensor:
    """The upper triangle, zeros below it."""
    return call(Trilu, as_tensor(input), np.int64(diagonal).item(), upper=1)


@names_arguments
def meshgrid(*tensors: Any, indexing: str = "ij") -> tuple[Tensor, ...]:
    """Coordinates on a grid, one tensor for each dimension."""
    listed: Any = tensors[0] if tensors and isinstance(tensors[0], (list, tuple)) else tensors
    given = [ravel(v) for v in listed]
    if indexing not in ("ij", "xy"):
        raise ValueError(f"indexing is 'ij' or 'xy', got {indexing!r}")
    order = [1, 0, *range(2, len(given))] if indexing == "xy" and len(given) > 1 else list(range(len(given)))
    shape = [given[i].numel for i in order]
    grids = []
    for i, v in enumerate(given):
        sizes = [1] * len(given)
        sizes[order.index(i)] = v.numel
        grids.append(expand(reshape(v, sizes), shape))
    return tuple(grids)


def pixel_shuffle(input: Any, upscale_factor: int) -> Tensor:
    """Channels rearranged to a larger picture."""
    x, r = as_tensor(input), _factor("upscale_factor", upscale_factor)
    *lead, c, h, w = x.shape
    y = reshape(x, (*lead, c // (r * r), r, r, h, w))
    n = len(lead)
    return reshape(permute(y, [*range(n), n, n + 3, n + 1, n + 4, n + 2]), (*lead, c // (r * r), h * r, w * r))


def pixel_unshuffle(input: Any, downscale_factor: int) -> Tensor:
    """A picture rearranged to more channels."""
    x, r = as_tensor(input), _factor("downscale_factor", downscale_factor)
    *lead, c, h, w = x.shape
    y = reshape(x, (*lead, c, h // r, r, w // r, r))
    n = len(lead)
    return reshape(permute(y, [*range(n), n, n + 2, n + 4, n + 1, n + 3]), (*lead, c * r * r, h // r, w // r))
