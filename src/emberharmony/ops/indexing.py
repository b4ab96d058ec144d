"""Gathering, scattering, slicing, sorting and searching. Indices in results are int64."""

import builtins
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from emberharmony.dtypes import BOOL, INTEGER, bool_, compute_dtype, float32, int64, kind
from emberharmony.guards.axes import plain_axis
from emberharmony.guards.indexing import within
from emberharmony.library import Library
from emberharmony.registry import alias, op, primitive
from emberharmony.typing import Array, ArrayLike, DTypeLike, Shape


@primitive
def take(lib: Library, x: ArrayLike, indices: ArrayLike, axis: int | None = None) -> Array:
    """Elements at indices along an axis (of the flattened array without one).

    Negative indices count from the end.

    >>> ops.take(np.array([5, 6, 7]), np.array([0, -1]))
    array([5, 7])
    """


gather = alias("gather", take)


@primitive
def take_along_axis(lib: Library, x: ArrayLike, indices: ArrayLike, axis: int | None = None) -> Array:
    """For each place the element that an index array of equal rank points at along an axis.

    >>> ops.take_along_axis(np.array([[5, 6]]), np.array([[1]]), axis=1)
    array([[6]])
    """


@primitive
def index_put(  # noqa: D417
    lib: Library, x: ArrayLike, indices: ArrayLike, values: ArrayLike, mode: str | None = None
) -> Array:
    """A copy of `x` with rows replaced, or combined: `x[indices[i]] = values[i]`.

    Args:
        x: The array.
        indices: A vector of row numbers, from 0. Repeated ones all count; without a mode
            the last wins.
        values: One row for each index.
        mode: None to replace, or "add", "mul", "max", "min".

    >>> ops.index_put(np.array([1, 2]), np.array([0, 0]), np.array([10, 20]), mode="add")
    array([31,  2])
    """


@primitive
def slice_update(lib: Library, x: ArrayLike, start_indices: Sequence[int], updates: ArrayLike) -> Array:
    """A copy of `x` with a block replaced, which begins at the given place.

    >>> ops.slice_update(np.zeros(3), [1], np.ones(1))
    array([0., 1., 0.])
    """


@primitive
def nonzero(lib: Library, x: ArrayLike) -> Any:
    """Places of elements that are not 0: an index vector for each axis.

    >>> ops.nonzero(np.array([0, 3]))
    (array([1]),)
    """


@primitive
def sort(lib: Library, x: ArrayLike, axis: int | None = -1, descending: bool = False) -> Array:
    """Sorted along an axis, NaN counting as the largest.

    >>> ops.sort(np.array([3, 1, 2]))
    array([1, 2, 3])
    """


@primitive
def argsort(lib: Library, x: ArrayLike, axis: int | None = -1, descending: bool = False) -> Array:
    """The indices that sort, equal elements in their old order either way.

    >>> ops.argsort(np.array([3, 1, 1]))
    array([1, 2, 0])
    """


@primitive
def searchsorted(lib: Library, sorted_sequence: ArrayLike, values: ArrayLike, side: str = "left") -> Array:
    """Where values belong in a sorted vector.

    >>> ops.searchsorted(np.array([1, 3, 5]), np.array([3]))
    array([1])
    """


def _flat_places(lib: Library, indices: Array, lead: Sequence[int]) -> Array:
    """Row numbers, in an array of the leading sizes flattened, of index tuples on the last axis."""
    if indices.shape[-1] != len(lead):
        raise ValueError(f"index tuples of {indices.shape[-1]} numbers for {len(lead)} axes")
    total: Any = lib.zeros(indices.shape[:-1], int64)
    for i, length in enumerate(lead):
        part = within(lib, indices[..., i], length)
        total = lib.add(lib.multiply(total, length), part)
    return lib.ravel(total)


@op
def gather_nd(lib: Library, x: ArrayLike, indices: ArrayLike, batch_dims: int = 0) -> Array:
    """Slices of `x` at the index tuples on the last axis of `indices`.

    >>> ops.gather_nd(np.array([[1, 2], [3, 4]]), np.array([[1, 0]]))
    array([3])
    """
    x, indices = lib.as_array(x), lib.as_array(indices)
    batch, depth = x.shape[:batch_dims], indices.shape[-1]
    lead, rest = x.shape[batch_dims : batch_dims + depth], x.shape[batch_dims + depth :]
    places = _flat_places(lib, indices, lead)
    if batch_dims:
        each = math.prod(indices.shape[batch_dims:-1])
        offsets = np.repeat(np.arange(math.prod(batch)) * math.prod(lead), each)
        places = lib.add(places, lib.from_numpy(offsets))
    rows = lib.reshape(x, (math.prod(batch) * math.prod(lead), *rest))
    return lib.reshape(lib.take(rows, places, axis=0), (*indices.shape[:-1], *rest))


@op
def scatter_nd(lib: Library, x: ArrayLike, indices: ArrayLike, updates: ArrayLike, mode: str | None = None) -> Array:
    """A copy of `x` with slices replaced or combined at the index tuples of `indices`.

    `mode` is None to replace, or "add", "mul", "max", "min".

    >>> ops.scatter_nd(np.array([1, 2, 3]), np.array([[2]]), np.array([9]))
    array([1, 2, 9])
    """
    x, indices = lib.as_array(x), lib.as_array(indices)
    depth = indices.shape[-1]
    lead, rest = x.shape[:depth], x.shape[depth:]
    places = _flat_places(lib, indices, lead)
    rows = lib.reshape(x, (math.prod(lead), *rest))
    values = lib.broadcast_to(lib.as_array(updates, lib.dtype(x)), (*indices.shape[:-1], *rest))
    values = lib.reshape(values, (places.shape[0], *rest))
    return lib.reshape(lib.index_put(rows, places, values, mode), x.shape)


tensor_scatter_nd_update = alias("tensor_scatter_nd_update", scatter_nd)
scatter_update = alias("scatter_update", scatter_nd)


@op
def scatter(lib: Library, indices: ArrayLike, values: ArrayLike, shape: Shape) -> Array:
    """Zeros of a shape with values added at the index tuples of `indices`.

    >>> ops.scatter(np.array([[1]]), np.array([5]), (3,))
    array([0, 5, 0])
    """
    values = lib.as_array(values)
    return lib.scatter_nd(lib.zeros(shape, lib.dtype(values)), indices, values, "add")


@op
def put_along_axis(
    lib: Library,
    x: ArrayLike,
    indices: ArrayLike,
    values: ArrayLike,
    axis: int,
    mode: str | None = None,
) -> Array:
    """A copy of `x` with elements replaced or combined at indices along an axis.

    `mode` is None to replace, or "add", "mul", "max", "min".

    >>> ops.put_along_axis(np.array([[1, 2]]), np.array([[1]]), np.array([[9]]), axis=1)
    array([[1, 9]])
    """
    x, indices = lib.as_array(x), lib.as_array(indices)
    along = plain_axis(axis, len(x.shape))
    strides = [math.prod(x.shape[i + 1 :]) for i in range(len(x.shape))]
    grid = np.zeros((1,) * len(x.shape), np.int64)
    for i, stride in enumerate(strides):
        if i != along:
            line = np.arange(indices.shape[i]) * stride
            grid = grid + line.reshape([-1 if j == i else 1 for j in range(len(x.shape))])
    places = lib.multiply(within(lib, indices, x.shape[along]), strides[along])
    places = lib.add(places, lib.from_numpy(grid))
    new = lib.broadcast_to(lib.as_array(values, lib.dtype(x)), indices.shape)
    flat = lib.index_put(lib.ravel(x), lib.ravel(places), lib.ravel(new), mode)
    return lib.reshape(flat, x.shape)


@op
def slice(
    lib: Library,
    x: ArrayLike,
    starts: Sequence[int],
    stops: Sequence[int | None],
    steps: Sequence[int] | None = None,
) -> Array:
    """`x[starts[0]:stops[0]:steps[0], ...]`; a stop of None means to the end, either way.

    >>> ops.slice(np.arange(5), [3], [None], [-2])
    array([3, 1])
    """
    x = lib.as_array(x)
    by = [1] * len(starts) if steps is None else steps
    if 0 in by:
        raise ValueError("a slice has no step of 0")
    if len(starts) > len(x.shape):
        raise IndexError(f"{len(starts)} slices for {len(x.shape)} axes")
    key = [builtins.slice(*part) for part in zip(starts, stops, by, strict=True)]
    for axis, part in enumerate(key):
        if part.step < 0:
            places = np.arange(x.shape[axis])[part]
            x = lib.take(x, places, axis=axis)
            key[axis] = builtins.slice(None)
    return x[tuple(key)]


@op
def one_hot(
    lib: Library,
    x: ArrayLike,
    num_classes: int,
    axis: int = -1,
    dtype: DTypeLike = float32,
) -> Array:
    """1 at the place an index names, 0 elsewhere, along a new axis; all 0 out of range.

    >>> ops.one_hot(np.array([1]), 3)
    array([[0., 1., 0.]], dtype=float32)
    """
    x = lib.as_array(x)
    if num_classes < 0:
        raise ValueError(f"there are no {num_classes} classes")
    along = plain_axis(axis, len(x.shape) + 1)
    # In types that hold every class: int64, or float32 at least.
    own = lib.dtype(x)
    wide = lib.cast(x, int64 if kind(own) in (BOOL, INTEGER) else compute_dtype(own))
    hot = lib.cast(lib.equal(lib.expand_dims(wide, -1), lib.arange(num_classes, dtype=lib.dtype(wide))), dtype)
    return lib.moveaxis(hot, -1, along)


@op
def argwhere(lib: Library, x: ArrayLike) -> Array:
    """Places of elements that are not 0, one row each.

    >>> ops.argwhere(np.array([0, 3]))
    array([[1]])
    """
    x = lib.as_array(x)
    if not x.shape:
        return lib.zeros((int(bool(lib.to_numpy(x))), 0), int64)
    return lib.stack(lib.nonzero(x), axis=-1)


@op
def digitize(lib: Library, x: ArrayLike, bins: ArrayLike) -> Array:
    """Number of the bin each element falls into; bins ascend.

    >>> ops.digitize(np.array([0.5, 2.0]), np.array([1.0, 2.0]))
    array([0, 2])
    """
    return lib.searchsorted(bins, x, side="right")


@op
def bincount(lib: Library, x: ArrayLike, weights: ArrayLike | None = None, minlength: int = 0) -> Array:
    """How often each value occurs in a vector of integers from 0, or the sum of weights.

    >>> ops.bincount(np.array([0, 2, 2]))
    array([1, 0, 2])
    """
    x = lib.ravel(x)
    low, top = (int(lib.to_numpy(f(x))) for f in (lib.min, lib.max)) if x.shape[0] else (0, -1)
    if low < 0:
        raise ValueError(f"bincount counts numbers from 0, received {low}")
    values = lib.ones(x.shape, int64) if weights is None else lib.as_array(weights)
    zeros = lib.zeros((max(top + 1, minlength),), lib.dtype(values))
    return lib.index_put(zeros, lib.cast(x, int64), values, "add")


@op
def unique(
    lib: Library,
    x: ArrayLike,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
) -> Any:
    """The different elements, sorted; a tuple if more is asked for. A step on the host.

    >>> ops.unique(np.array([3, 1, 3]), return_counts=True)
    (array([1, 3]), array([1, 2]))
    """
    wanted: dict[str, Any] = {
        "return_index": return_index,
        "return_inverse": return_inverse,
        "return_counts": return_counts,
        "axis": axis,
    }
    return lib.by_host("unique", np.unique, lib.as_array(x), **wanted)


@op
def top_k(lib: Library, x: ArrayLike, k: int, axis: int = -1, largest: bool = True) -> tuple[Array, Array]:
    """The `k` largest or smallest elements in order, and their indices; ties by lower index.

    >>> ops.top_k(np.array([1, 3, 2]), 2)
    (array([3, 2]), array([1, 2]))
    """
    x = lib.as_array(x)
    order = lib.argsort(x, axis, descending=largest)
    key = [builtins.slice(None)] * len(x.shape)
    key[axis] = builtins.slice(0, k)
    indices = order[tuple(key)]
    return lib.take_along_axis(x, indices, axis), indices


@op
def isin(lib: Library, x: ArrayLike, test_elements: ArrayLike) -> Array:
    """Where an element is one of the test elements.

    >>> ops.isin(np.array([1, 2]), np.array([2, 5]))
    array([False,  True])
    """
    x, tests = lib.promote(x, test_elements)
    tests = lib.sort(lib.ravel(tests))
    if not tests.shape[0]:
        return lib.zeros(x.shape, bool_)
    places = lib.searchsorted(tests, x)
    places = lib.minimum(places, tests.shape[0] - 1)
    return lib.equal(lib.take(tests, places, axis=0), x)
