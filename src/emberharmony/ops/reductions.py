"""Reductions and cumulative forms.

Sums and products keep integer dtypes (bool counts in int64); sums of half precision are
accumulated in float32. Means of integers are float32.
"""

import builtins

import numpy as np

from emberharmony.dtypes import as_dtype, compute_dtype, float_for, int64, real_dtype
from emberharmony.guards.axes import reduced_axes
from emberharmony.guards.folds import kept_shape
from emberharmony.library import Library
from emberharmony.ops.creation import exact
from emberharmony.registry import alias, op, primitive
from emberharmony.typing import Array, ArrayLike, Axis, DTypeLike


def _axes(ndim: int, axis: Axis) -> tuple[int, ...]:
    """The axes as numbers from 0, sorted."""
    return tuple(sorted(reduced_axes(axis, ndim)))


def _count(x: Array, axis: Axis) -> int:
    """Number of elements that a reduction folds into one."""
    result = 1
    for a in _axes(len(x.shape), axis):
        result *= x.shape[a]
    return result


@primitive
def sum(
    lib: Library,
    x: ArrayLike,
    axis: Axis = None,
    keepdims: bool = False,
    dtype: DTypeLike = None,
) -> Array:
    """Sum; of integers in their own dtype.

    >>> ops.sum(np.array([[1, 2], [3, 4]]), axis=0)
    array([4, 6])
    """


@primitive
def prod(
    lib: Library,
    x: ArrayLike,
    axis: Axis = None,
    keepdims: bool = False,
    dtype: DTypeLike = None,
) -> Array:
    """Product; of integers in their own dtype.

    >>> ops.prod(np.array([2, 3]))
    array(6)
    """


@primitive
def max(lib: Library, x: ArrayLike, axis: Axis = None, keepdims: bool = False) -> Array:
    """Largest element; NaN if there is one.

    >>> ops.max(np.array([2, 3]))
    array(3)
    """


@primitive
def min(lib: Library, x: ArrayLike, axis: Axis = None, keepdims: bool = False) -> Array:
    """Smallest element; NaN if there is one.

    >>> ops.min(np.array([2, 3]))
    array(2)
    """


amax = alias("amax", max)
amin = alias("amin", min)


@primitive
def argmax(lib: Library, x: ArrayLike, axis: int | None = None, keepdims: bool = False) -> Array:
    """Index (int64) of the largest element, the first one on ties.

    >>> ops.argmax(np.array([2, 3, 3]))
    array(1)
    """


@primitive
def argmin(lib: Library, x: ArrayLike, axis: int | None = None, keepdims: bool = False) -> Array:
    """Index (int64) of the smallest element, the first one on ties.

    >>> ops.argmin(np.array([3, 2, 2]))
    array(1)
    """


@primitive
def cumsum(lib: Library, x: ArrayLike, axis: int | None = None, dtype: DTypeLike = None) -> Array:
    """Running sum, of the flattened array without an axis.

    >>> ops.cumsum(np.array([1, 2, 3]))
    array([1, 3, 6])
    """


@primitive
def cumprod(lib: Library, x: ArrayLike, axis: int | None = None, dtype: DTypeLike = None) -> Array:
    """Running product, of the flattened array without an axis.

    >>> ops.cumprod(np.array([1, 2, 3]))
    array([1, 2, 6])
    """


@primitive
def cummax(lib: Library, x: ArrayLike, axis: int | None = None) -> Array:
    """Running maximum, of the flattened array without an axis.

    >>> ops.cummax(np.array([1, 3, 2]))
    array([1, 3, 3])
    """


@primitive
def cummin(lib: Library, x: ArrayLike, axis: int | None = None) -> Array:
    """Running minimum, of the flattened array without an axis.

    >>> ops.cummin(np.array([3, 1, 2]))
    array([3, 1, 1])
    """


@op
def mean(
    lib: Library,
    x: ArrayLike,
    axis: Axis = None,
    keepdims: bool = False,
    dtype: DTypeLike = None,
) -> Array:
    """Arithmetic mean; of integers in float32.

    >>> ops.mean(np.array([1.0, 2.0]))
    array(1.5)
    """
    x = lib.as_array(x)
    answer = float_for(lib.dtype(x)) if dtype is None else as_dtype(dtype)
    wide = lib.cast(x, compute_dtype(answer))
    return lib.cast(lib.divide(lib.sum(wide, axis, keepdims), _count(x, axis)), answer)


@op
def var(lib: Library, x: ArrayLike, axis: Axis = None, keepdims: bool = False, ddof: int = 0) -> Array:
    """Variance; `ddof` is taken off the number of elements.

    >>> ops.var(np.array([1.0, 3.0]))
    array(1.)
    """
    x = lib.as_array(x)
    answer = float_for(lib.dtype(x))
    wide = lib.cast(x, compute_dtype(answer))
    away = lib.abs(lib.subtract(wide, lib.mean(wide, axis, keepdims=True)))
    total = lib.sum(lib.square(away), axis, keepdims)
    divisor = float(builtins.max(_count(x, axis) - ddof, 0))
    return lib.cast(lib.divide(total, divisor), real_dtype(answer))


@op
def std(lib: Library, x: ArrayLike, axis: Axis = None, keepdims: bool = False, ddof: int = 0) -> Array:
    """Standard deviation; `ddof` is taken off the number of elements.

    >>> ops.std(np.array([1.0, 3.0]))
    array(1.)
    """
    x = lib.as_array(x)
    answer = float_for(lib.dtype(x))
    wide = lib.cast(x, compute_dtype(answer))
    return lib.cast(root(lib, lib.var(wide, axis, keepdims, ddof)), real_dtype(answer))


def root(lib: Library, x: Array) -> Array:
    """The square root of a sum of squares, with the gradient 0 where that is 0; the root's own is endless there.

    >>> from emberharmony.library import library
    >>> root(library("numpy"), np.array([0.0, 4.0]))
    array([0., 2.])
    """
    if lib.name == "numpy":
        return lib.sqrt(x)
    none = lib.equal(x, 0)
    return lib.where(none, 0, lib.sqrt(lib.where(none, 1, x)))


@op
def logsumexp(lib: Library, x: ArrayLike, axis: Axis = None, keepdims: bool = False) -> Array:
    """Logarithm of the sum of exponentials, without overflow.

    >>> ops.logsumexp(np.zeros(2))
    array(0.69314718)
    """
    x = lib.as_array(x)
    answer = float_for(lib.dtype(x))
    wide = lib.cast(x, compute_dtype(answer))
    top = lib.max(wide, axis, keepdims=True)
    # An infinite maximum would be subtracted from itself.
    top = lib.where(lib.isfinite(top), top, lib.zeros_like(top))
    total = lib.log(lib.sum(lib.exp(lib.subtract(wide, top)), axis, keepdims=True))
    result = lib.cast(lib.add(total, top), answer)
    return result if keepdims else lib.squeeze(result, _axes(len(x.shape), axis))


@op
def count_nonzero(lib: Library, x: ArrayLike, axis: Axis = None, keepdims: bool = False) -> Array:
    """Number (int64) of elements that are not 0.

    >>> ops.count_nonzero(np.array([0, 2, 3]))
    array(2)
    """
    return lib.sum(lib.cast(lib.not_equal(x, 0), int64), axis, keepdims)


@op
def nansum(lib: Library, x: ArrayLike, axis: Axis = None, keepdims: bool = False) -> Array:
    """Sum that leaves out NaN.

    >>> ops.nansum(np.array([1.0, np.nan]))
    array(1.)
    """
    x = lib.as_array(x)
    return lib.sum(lib.where(lib.isnan(x), lib.zeros_like(x), x), axis, keepdims)


@op
def nanmean(lib: Library, x: ArrayLike, axis: Axis = None, keepdims: bool = False) -> Array:
    """Mean that leaves out NaN.

    >>> ops.nanmean(np.array([1.0, np.nan]))
    array(1.)
    """
    (x,) = lib.promote_float(x)
    answer = lib.dtype(x)
    wide = lib.cast(x, compute_dtype(answer))
    present = lib.cast(lib.logical_not(lib.isnan(wide)), lib.dtype(wide))
    return lib.cast(lib.divide(lib.nansum(wide, axis, keepdims), lib.sum(present, axis, keepdims)), answer)


@op
def average(lib: Library, x: ArrayLike, axis: Axis = None, weights: ArrayLike | None = None) -> Array:
    """Mean, weighted if weights are given.

    >>> ops.average(np.array([1.0, 3.0]), weights=np.array([3.0, 1.0]))
    array(1.5)
    """
    if weights is None:
        return lib.mean(x, axis)
    x, shares = lib.promote_float(x, weights)
    answer = lib.dtype(x)
    x, shares = (lib.cast(v, compute_dtype(answer)) for v in (x, shares))
    if len(shares.shape) == 1 and len(x.shape) > 1:
        axes = _axes(len(x.shape), axis)
        if len(axes) != 1:
            raise ValueError(f"a vector of weights belongs to one axis, received axis={axis}")
        (along,) = axes
        shape = [1] * len(x.shape)
        shape[along] = -1
        shares = lib.reshape(shares, shape)
    shares = lib.broadcast_to(shares, x.shape)
    return lib.cast(lib.divide(lib.sum(lib.multiply(x, shares), axis), lib.sum(shares, axis)), answer)


@op
def quantile(
    lib: Library,
    x: ArrayLike,
    q: ArrayLike,
    axis: Axis = None,
    method: str = "linear",
    keepdims: bool = False,
) -> Array:
    """Quantiles (`q` between 0 and 1), interpolated linearly or to the lower, higher, nearest.

    >>> ops.quantile(np.array([1.0, 2.0, 3.0]), 0.25)
    array(1.5)
    """
    (x,) = lib.promote_float(x)
    axes = _axes(len(x.shape), axis)
    fractions = exact(lib, q).astype(np.float64)
    if not ((fractions >= 0) & (fractions <= 1)).all():
        raise ValueError(f"quantiles are from 0 to 1, received {fractions.tolist()}")
    if method not in _METHODS:
        raise ValueError(f"unknown quantile method {method!r}; known: {', '.join(_METHODS)}")
    shape = kept_shape(x.shape, axes, keepdims)
    if not _count(x, axis):
        return lib.full((*fractions.shape, *shape), float("nan"), lib.dtype(x))
    ordered = lib.sort(_axes_last(lib, x, axes), axis=-1)
    parts = [_one_quantile(lib, ordered, float(f), method) for f in fractions.ravel()]
    made = lib.stack(parts) if parts else lib.zeros((0, *shape), lib.dtype(x))
    return lib.reshape(made, (*fractions.shape, *shape))


_METHODS = ("linear", "lower", "higher", "midpoint", "nearest")


def _axes_last(lib: Library, x: Array, axes: tuple[int, ...]) -> Array:
    """The given axes flattened into one last axis."""
    rest = [i for i in range(len(x.shape)) if i not in axes]
    moved = lib.transpose(x, (*rest, *axes))
    return lib.reshape(moved, (*(x.shape[i] for i in rest), _count(x, axes)))


def _one_quantile(lib: Library, ordered: Array, fraction: float, method: str) -> Array:
    last = ordered.shape[-1] - 1
    place = fraction * last
    low, high = int(np.floor(place)), int(np.ceil(place))
    share = {"linear": place - low, "lower": 0.0, "higher": 1.0, "midpoint": 0.5 * (high != low)}
    share["nearest"] = float(np.round(place) == high)
    result = _between(lib, lib.take(ordered, low, axis=-1), lib.take(ordered, high, axis=-1), share[method])
    # NaN sorts last; one of them makes every quantile NaN.
    final = lib.take(ordered, last, axis=-1)
    return lib.where(lib.isnan(final), final, result)


def _between(lib: Library, low: Array, high: Array, share: float) -> Array:
    """A value between two, which do not come near overflow, nor meet when they are infinite."""
    if share in (0.0, 1.0):
        return high if share else low
    answer = lib.dtype(low)
    below, above = (lib.cast(v, compute_dtype(answer)) for v in (low, high))
    mixed = lib.add(lib.multiply(below, 1.0 - share), lib.multiply(above, share))
    return lib.where(lib.equal(low, high), low, lib.cast(mixed, answer))


@op
def median(lib: Library, x: ArrayLike, axis: Axis = None, keepdims: bool = False) -> Array:
    """The middle value; the mean of the two middle ones for an even number.

    >>> ops.median(np.array([1.0, 2.0, 9.0]))
    array(2.)
    """
    return lib.quantile(x, 0.5, axis, keepdims=keepdims)
