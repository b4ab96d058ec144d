"""Shapes: reordering, joining and cutting arrays without computing on them."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from emberharmony.guards.axes import axis_tuple, plain_axes, plain_axis
from emberharmony.library import Library
from emberharmony.registry import alias, op, primitive
from emberharmony.typing import Array, ArrayLike, Axis, Pairs, Shape


@op
def shape(lib: Library, x: ArrayLike) -> tuple[int, ...]:
    """The sizes of all axes.

    >>> ops.shape(np.zeros((2, 3)))
    (2, 3)
    """
    return tuple(lib.as_array(x).shape)


@op
def ndim(lib: Library, x: ArrayLike) -> int:
    """The number of axes.

    >>> ops.ndim(np.zeros((2, 3)))
    2
    """
    return len(lib.as_array(x).shape)


@op
def size(lib: Library, x: ArrayLike) -> int:
    """The number of elements.

    >>> ops.size(np.zeros((2, 3)))
    6
    """
    return math.prod(lib.as_array(x).shape)


@primitive
def reshape(lib: Library, x: ArrayLike, newshape: int | Shape) -> Array:
    """The same elements in row-major order in another shape; one size may be -1.

    >>> ops.reshape(np.arange(4), (2, -1))
    array([[0, 1],
           [2, 3]])
    """


@primitive
def transpose(lib: Library, x: ArrayLike, axes: Sequence[int] | None = None) -> Array:
    """Axes in another order, reversed if none is given.

    >>> ops.transpose(np.zeros((2, 3))).shape
    (3, 2)
    """


@primitive
def broadcast_to(lib: Library, x: ArrayLike, shape: Shape) -> Array:
    """Axes of size 1 repeated to fit a shape.

    >>> ops.broadcast_to(np.arange(2), (2, 2))
    array([[0, 1],
           [0, 1]])
    """


@primitive
def concatenate(lib: Library, xs: Sequence[ArrayLike], axis: int | None = 0) -> Array:
    """Arrays joined along an existing axis, in the dtype they meet in.

    >>> ops.concatenate([np.array([1]), np.array([2, 3])])
    array([1, 2, 3])
    """


@op
def stack(lib: Library, xs: Sequence[ArrayLike], axis: int = 0) -> Array:
    """Arrays of one shape joined along a new axis.

    >>> ops.stack([np.array([1, 2]), np.array([3, 4])])
    array([[1, 2],
           [3, 4]])
    """
    return lib.concatenate([lib.expand_dims(x, axis) for x in xs], axis)


@op
def vstack(lib: Library, xs: Sequence[ArrayLike]) -> Array:
    """Arrays joined as rows.

    >>> ops.vstack([np.array([1, 2]), np.array([3, 4])]).shape
    (2, 2)
    """
    arrays = [lib.as_array(x) for x in xs]
    return lib.concatenate([lib.reshape(a, (1, -1)) if len(a.shape) < 2 else a for a in arrays], 0)


@op
def hstack(lib: Library, xs: Sequence[ArrayLike]) -> Array:
    """Arrays joined along axis 1, or 0 for vectors.

    >>> ops.hstack([np.array([1, 2]), np.array([3])])
    array([1, 2, 3])
    """
    arrays = [lib.as_array(x) for x in xs]
    if not arrays:
        raise ValueError("there is nothing to join")
    arrays = [lib.reshape(a, (1,)) if len(a.shape) == 0 else a for a in arrays]
    return lib.concatenate(arrays, 0 if len(arrays[0].shape) == 1 else 1)


@op
def swapaxes(lib: Library, x: ArrayLike, axis1: int, axis2: int) -> Array:
    """Two axes exchanged.

    >>> ops.swapaxes(np.zeros((2, 3, 4)), 0, 2).shape
    (4, 3, 2)
    """
    x = lib.as_array(x)
    rank = len(x.shape)
    one, two = plain_axis(axis1, rank), plain_axis(axis2, rank)
    order = list(range(rank))
    order[one], order[two] = two, one
    return lib.transpose(x, order)


@op
def moveaxis(
    lib: Library,
    x: ArrayLike,
    source: int | Sequence[int],
    destination: int | Sequence[int],
) -> Array:
    """Axes moved to other places, the rest in order.

    >>> ops.moveaxis(np.zeros((2, 3, 4)), 0, -1).shape
    (3, 4, 2)
    """
    x = lib.as_array(x)
    rank = len(x.shape)
    from_, to = (plain_axes(a, rank) for a in (source, destination))
    if len(from_) != len(to):
        raise ValueError(f"{len(from_)} axes cannot move to {len(to)} places")
    order = [i for i in range(rank) if i not in from_]
    for place, axis in sorted(zip(to, from_, strict=True)):
        order.insert(place, axis)
    return lib.transpose(x, order)


@op
def expand_dims(lib: Library, x: ArrayLike, axis: int | Sequence[int]) -> Array:
    """New axes of size 1, at these places of the result.

    >>> ops.expand_dims(np.zeros(2), axis=0).shape
    (1, 2)
    """
    x = lib.as_array(x)
    rank = len(x.shape) + len(axis_tuple(axis))
    places = plain_axes(axis, rank)
    old = iter(x.shape)
    return lib.reshape(x, tuple(1 if i in places else next(old) for i in range(rank)))


@op
def squeeze(lib: Library, x: ArrayLike, axis: Axis = None) -> Array:
    """Axes of size 1 removed: all of them, or those given.

    >>> ops.squeeze(np.zeros((1, 2))).shape
    (2,)
    """
    x = lib.as_array(x)
    rank = len(x.shape)
    if axis is None:
        return lib.reshape(x, tuple(n for n in x.shape if n != 1))
    places = plain_axes(axis, rank)
    for place in places:
        if x.shape[place] != 1:
            raise ValueError(f"cannot squeeze axis {place} of shape {tuple(x.shape)}: not 1")
    return lib.reshape(x, tuple(n for i, n in enumerate(x.shape) if i not in places))


@op
def ravel(lib: Library, x: ArrayLike) -> Array:
    """All elements in one axis.

    >>> ops.ravel(np.zeros((2, 3))).shape
    (6,)
    """
    return lib.reshape(x, (-1,))


flatten = alias("flatten", ravel)


@op
def tile(lib: Library, x: ArrayLike, repeats: int | Sequence[int]) -> Array:
    """The whole array repeated along each axis.

    >>> ops.tile(np.array([1, 2]), 2)
    array([1, 2, 1, 2])
    """
    x = lib.as_array(x)
    counts = [repeats] if isinstance(repeats, int | np.integer) else [int(r) for r in repeats]
    if any(c < 0 for c in counts):
        raise ValueError(f"an array is repeated at least 0 times, received {counts}")
    rank = max(len(counts), len(x.shape))
    counts = [1] * (rank - len(counts)) + counts
    sizes = [1] * (rank - len(x.shape)) + list(x.shape)
    wide = lib.reshape(x, [n for size in sizes for n in (1, size)])
    wide = lib.broadcast_to(wide, [n for pair in zip(counts, sizes, strict=True) for n in pair])
    return lib.reshape(wide, [c * n for c, n in zip(counts, sizes, strict=True)])


@op
def repeat(lib: Library, x: ArrayLike, repeats: int | Sequence[int], axis: int | None = None) -> Array:
    """Each element repeated along an axis, of the flattened array without one.

    >>> ops.repeat(np.array([1, 2]), 2)
    array([1, 1, 2, 2])
    """
    x = lib.ravel(x) if axis is None else lib.as_array(x)
    along = 0 if axis is None else plain_axis(axis, len(x.shape))
    counts = lib.to_numpy(repeats) if lib.is_array(repeats) else np.asarray(repeats)
    places = np.repeat(np.arange(x.shape[along]), counts)
    return lib.take(x, places, axis=along)


@op
def split(lib: Library, x: ArrayLike, num_or_sizes: int | Sequence[int], axis: int = 0) -> list[Array]:
    """Cut into a number of equal parts, or into parts of the given sizes.

    `array_split` takes places to cut at instead.

    >>> ops.split(np.arange(4), 2)
    [array([0, 1]), array([2, 3])]
    """
    x = lib.as_array(x)
    axis = plain_axis(axis, len(x.shape))
    length = x.shape[axis]
    if isinstance(num_or_sizes, int | np.integer):
        count = int(num_or_sizes)
        if count < 1 or length % count:
            raise ValueError(f"cannot split axis {axis} of size {length} into {count} equal parts")
        return _cut(x, [length // count * i for i in range(1, count)], axis)
    sizes = [int(v) for v in num_or_sizes]
    if sum(sizes) != length:
        raise ValueError(f"sizes {sizes} add up to {sum(sizes)}, axis {axis} has {length}")
    return _cut(x, np.cumsum(sizes)[:-1].tolist(), axis)


def _cut(x: Array, cuts: Sequence[int], axis: int) -> list[Array]:
    length, rank = x.shape[axis], len(x.shape)
    bounds = [0, *cuts, length]
    parts: list[Array] = []
    for low, high in itertools.pairwise(bounds):
        key = [slice(None)] * rank
        start, stop, _ = slice(low, high).indices(length)
        key[axis] = slice(start, max(start, stop))
        parts.append(x[tuple(key)])
    return parts


@op
def array_split(lib: Library, x: ArrayLike, indices_or_sections: int | Sequence[int], axis: int = 0) -> list[Array]:
    """Cut into nearly equal parts, the longer ones first, or at the places given.

    >>> ops.array_split(np.arange(3), 2)
    [array([0, 1]), array([2])]
    """
    x = lib.as_array(x)
    axis = plain_axis(axis, len(x.shape))
    if not isinstance(indices_or_sections, int | np.integer):
        return _cut(x, [int(v) for v in indices_or_sections], axis)
    count = int(indices_or_sections)
    if count < 1:
        raise ValueError(f"cannot cut into {count} parts")
    each, longer = divmod(x.shape[axis], count)
    cuts = np.cumsum([each + 1] * longer + [each] * (count - longer))[:-1].tolist()
    return _cut(x, cuts, axis)


@op
def unstack(lib: Library, x: ArrayLike, num: int | None = None, axis: int = 0) -> list[Array]:
    """The arrays along an axis, without it.

    >>> ops.unstack(np.array([[1, 2], [3, 4]]))
    [array([1, 2]), array([3, 4])]
    """
    x = lib.as_array(x)
    axis = plain_axis(axis, len(x.shape))
    length = x.shape[axis]
    if num is not None and num != length:
        raise ValueError(f"axis {axis} has {length} elements, not {num}")
    return [lib.take(x, i, axis=axis) for i in range(length)]


@op
def flip(lib: Library, x: ArrayLike, axis: Axis = None) -> Array:
    """Elements in reverse order along the axes, all by default.

    >>> ops.flip(np.array([1, 2, 3]))
    array([3, 2, 1])
    """
    x = lib.as_array(x)
    for place in plain_axes(axis, len(x.shape)):
        backwards = np.arange(x.shape[place])[::-1]
        x = lib.take(x, backwards, axis=place)
    return x


@op
def roll(lib: Library, x: ArrayLike, shift: int | Sequence[int], axis: int | Sequence[int] | None = None) -> Array:
    """Elements moved along axes, those pushed out coming back at the other end.

    >>> ops.roll(np.array([1, 2, 3]), 1)
    array([3, 1, 2])
    """
    x = lib.as_array(x)
    if axis is None:
        return lib.reshape(lib.roll(lib.ravel(x), shift, 0), x.shape)
    axes = [axis] if isinstance(axis, int) else list(axis)
    shifts = [shift] * len(axes) if isinstance(shift, int) else list(shift)
    for by, along in zip(shifts, [plain_axis(a, len(x.shape)) for a in axes], strict=True):
        places = np.roll(np.arange(x.shape[along]), by)
        x = lib.take(x, places, axis=along)
    return x


@op
def rot90(lib: Library, x: ArrayLike, k: int = 1, axes: tuple[int, int] = (0, 1)) -> Array:
    """Turned by `k` right angles in the plane of two axes.

    >>> ops.rot90(np.array([[1, 2], [3, 4]]))
    array([[2, 4],
           [1, 3]])
    """
    x = lib.as_array(x)
    plain_axes(axes, len(x.shape))
    for _ in range(k % 4):
        x = lib.flip(lib.swapaxes(x, *axes), axes[0])
    return x


def full_pairs(pad_width: int | Pairs | Sequence[int], rank: int) -> list[tuple[int, int]]:
    """One (before, after) pair per axis from NumPy's short forms.

    >>> full_pairs(1, 2), full_pairs((1, 2), 1)
    ([(1, 1), (1, 1)], [(1, 2)])
    """
    widths = np.broadcast_to(np.asarray(pad_width, np.int64), (rank, 2))
    return [(int(a), int(b)) for a, b in widths]


def _padded_places(length: int, before: int, after: int, mode: Any) -> np.ndarray:
    return np.pad(np.arange(length), (before, after), mode)


@op
def pad(  # noqa: D417
    lib: Library,
    x: ArrayLike,
    pad_width: int | Pairs,
    mode: str = "constant",
    constant_values: ArrayLike = 0,
) -> Array:
    """Elements added around an array.

    Args:
        x: The array.
        pad_width: A (before, after) pair for each axis.
        mode: "constant", or "edge", "reflect", "symmetric", "wrap" as in NumPy.
        constant_values: The value for mode "constant".

    >>> ops.pad(np.array([1, 2]), [(1, 0)])
    array([0, 1, 2])
    """
    x = lib.as_array(x)
    pairs = full_pairs(pad_width, len(x.shape))
    if mode != "constant" and 0 in x.shape:
        if any(n == 0 and (before or after) for n, (before, after) in zip(x.shape, pairs, strict=True)):
            raise ValueError(f"mode {mode!r} has nothing to extend an empty axis with, shape {tuple(x.shape)}")
        return lib.reshape(x, tuple(n + sum(pair) for n, pair in zip(x.shape, pairs, strict=True)))
    for axis, (before, after) in enumerate(pairs):
        if before == after == 0:
            continue
        if mode != "constant":
            places = _padded_places(x.shape[axis], before, after, mode)
            x = lib.take(x, places, axis=axis)
            continue
        low, high = (
            lib.full((*x.shape[:axis], n, *x.shape[axis + 1 :]), constant_values, lib.dtype(x)) for n in (before, after)
        )
        x = lib.concatenate([low, x, high], axis)
    return x


@op
def sliding_window_view(
    lib: Library,
    x: ArrayLike,
    window_shape: int | Sequence[int],
    axis: int | Sequence[int] | None = None,
) -> Array:
    """All windows along the axes, as new last axes.

    >>> ops.sliding_window_view(np.arange(3), 2)
    array([[0, 1],
           [1, 2]])
    """
    x = lib.as_array(x)
    windows = axis_tuple(window_shape)
    axes = plain_axes(range(len(windows)) if axis is None else axis, len(x.shape))
    for width, along in zip(windows, axes, strict=True):
        places = np.arange(x.shape[along] - width + 1)[:, None] + np.arange(width)
        x = lib.moveaxis(lib.take(x, places, axis=along), along + 1, -1)
    return x
