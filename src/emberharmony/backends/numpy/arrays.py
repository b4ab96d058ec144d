"""Shapes, indices, sorting and products."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from emberharmony.backends.numpy.base import as_array, boxed, meet, native
from emberharmony.backends.numpy.reductions import sortable
from emberharmony.dtypes import compute_dtype, float64

if TYPE_CHECKING:
    from collections.abc import Sequence

    from emberharmony.typing import ArrayLike, Shape


@native
def reshape(x: ArrayLike, newshape: int | Shape) -> np.ndarray:
    """Another shape."""
    return as_array(x).reshape(newshape if isinstance(newshape, int) else tuple(newshape))


@native
def transpose(x: ArrayLike, axes: Sequence[int] | None = None) -> np.ndarray:
    """Another order of axes."""
    return as_array(x).transpose(None if axes is None else tuple(axes))


@native
def broadcast_to(x: ArrayLike, shape: Shape) -> np.ndarray:
    """Repeated without new memory; the result is read-only."""
    return np.broadcast_to(as_array(x), tuple(shape))


@native
def concatenate(xs: Sequence[ArrayLike], axis: int | None = 0) -> np.ndarray:
    """Joined."""
    arrays = [as_array(x) for x in xs]
    first = arrays[0].dtype
    if any(a.dtype is not first for a in arrays):
        arrays = meet(*arrays)
    return np.concatenate(arrays, axis)


@native
def take(x: ArrayLike, indices: ArrayLike, axis: int | None = None) -> np.ndarray:
    """Elements at indices."""
    return boxed(np.take(as_array(x), as_array(indices).astype(np.int64, copy=False), axis))


@native
def take_along_axis(x: ArrayLike, indices: ArrayLike, axis: int | None = None) -> np.ndarray:
    """Elements an index array points at."""
    return np.take_along_axis(as_array(x), as_array(indices).astype(np.int64, copy=False), axis)


_AT = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


@native
def index_put(x: ArrayLike, indices: ArrayLike, values: ArrayLike, mode: str | None = None) -> np.ndarray:
    """Rows replaced or combined, in a copy."""
    x, places, new = np.array(as_array(x)), as_array(indices), as_array(values)
    if mode is None:
        x[places] = new
        return x
    with np.errstate(all="ignore"):
        _AT[mode].at(x, places, new)
    return x


@native
def slice_(
    x: ArrayLike, starts: Sequence[int], stops: Sequence[int | None], steps: Sequence[int] | None = None
) -> np.ndarray:
    """Parts along the first axes."""
    by = [1] * len(starts) if steps is None else steps
    return as_array(x)[tuple(slice(*part) for part in zip(starts, stops, by, strict=True))]


@native
def slice_update(x: ArrayLike, start_indices: Sequence[int], updates: ArrayLike) -> np.ndarray:
    """A block replaced, in a copy."""
    x, new = np.array(as_array(x)), as_array(updates)
    key = (slice(int(s), int(s) + n) for s, n in zip(start_indices, new.shape, strict=True))
    x[tuple(key)] = new
    return x


@native
def nonzero(x: ArrayLike) -> tuple[np.ndarray, ...]:
    """Places of elements that are not 0; a 0-d array counts as a vector."""
    return np.nonzero(np.atleast_1d(as_array(x)))


@native
def argsort(x: ArrayLike, axis: int | None = -1, descending: bool = False) -> np.ndarray:
    """Stable order; backwards it is the order of the reversed array, so that ties keep theirs."""
    x = sortable(as_array(x))
    x, along = (x.ravel(), 0) if axis is None else (x, axis)
    if not descending:
        return np.argsort(x, axis=along, kind="stable")
    order = np.argsort(np.flip(x, along), axis=along, kind="stable")
    return x.shape[along] - 1 - np.flip(order, along)


@native
def sort(x: ArrayLike, axis: int | None = -1, descending: bool = False) -> np.ndarray:
    """Sorted."""
    x = as_array(x)
    x, along = (x.ravel(), 0) if axis is None else (x, axis)
    ordered = np.sort(sortable(x), axis=along, kind="stable").astype(x.dtype, copy=False)
    return np.flip(ordered, along) if descending else ordered


@native
def searchsorted(sorted_sequence: ArrayLike, values: ArrayLike, side: str = "left") -> np.ndarray:
    """Where values belong."""
    line, wanted = (sortable(v) for v in meet(sorted_sequence, values))
    found: Any = np.searchsorted(line, wanted, "right" if side == "right" else "left")
    return boxed(found).astype(np.int64, copy=False)


@native
def sliding_window_view(
    x: ArrayLike,
    window_shape: int | Sequence[int],
    axis: int | Sequence[int] | None = None,
) -> np.ndarray:
    """All windows, without new memory; the result is read-only."""
    x = as_array(x)
    rank = 1 if isinstance(window_shape, int) else len(window_shape)
    along = tuple(range(rank)) if axis is None else axis
    return np.lib.stride_tricks.sliding_window_view(x, window_shape, along)  # pyright: ignore[reportArgumentType, reportCallIssue]


def exact_in_float64(x1: np.ndarray, x2: np.ndarray) -> bool:
    """Whether a product of integers fits into float64, whose matrix product is far quicker."""
    if x1.dtype.kind not in "iu" or x1.size * x2.size < 4096:
        return False
    bound = 1.0
    for x in (x1, x2):
        bound *= max(abs(float(x.max())), abs(float(x.min()))) + 1.0
    return bound * x1.shape[-1] < 2.0**53


@native
def matmul(x1: ArrayLike, x2: ArrayLike) -> np.ndarray:
    """Matrix product; half precision is accumulated in float32."""
    x1, x2 = meet(x1, x2)
    answer, inner = x1.dtype, compute_dtype(x1.dtype)
    with np.errstate(all="ignore"):
        if exact_in_float64(x1, x2):
            # By way of int64: float64 to a narrower integer does not wrap.
            return np.asarray(x1.astype(float64) @ x2.astype(float64)).astype(np.int64).astype(answer)
        out = np.matmul(x1.astype(inner, copy=False), x2.astype(inner, copy=False))
        return boxed(out, inner).astype(answer, copy=False)


@native
def einsum(subscripts: str, *operands: ArrayLike) -> np.ndarray:
    """Sums of products; contracted in pairs, so that matrix products are used."""
    arrays = meet(*operands)
    answer, inner = arrays[0].dtype, compute_dtype(arrays[0].dtype)
    wide = [a.astype(inner, copy=False) for a in arrays]
    with np.errstate(all="ignore"):
        out = np.einsum(subscripts, *wide, optimize="greedy" if len(wide) > 1 else False)
        return boxed(out, inner).astype(answer, copy=False)
