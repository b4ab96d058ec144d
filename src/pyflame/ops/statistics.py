"""Order statistics, running extremes and differences: compositions of sorting, scans by doubling, and sums."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame.dtypes import DType
from pyflame.lazy import const
from pyflame.ops import arithmetic as ar
from pyflame.ops import gathering as ga
from pyflame.ops import linalg as la
from pyflame.ops import pointwise as pw
from pyflame.ops import reduction as red
from pyflame.ops import shaping as sh
from pyflame.ops.core import Handle, as_tensor, axis_of, call, cast, convert, floating, rounded_once, scalar, wrap
from pyflame.ops.reduction import Ordered
from pyflame_rt.graph.errors import ShapeMismatchError
from pyflame_rt.graph.named_arguments import names_arguments
from pyflame_rt.ops.onnx.cast import Identity

if TYPE_CHECKING:
    from pyflame.tensors import Tensor

__all__ = [
    "corrcoef",
    "cov",
    "cummax",
    "cummin",
    "cumulative_trapezoid",
    "diff",
    "histc",
    "logcumsumexp",
    "mode",
    "msort",
    "nanmedian",
    "nanquantile",
    "quantile",
    "trapezoid",
]


def mode(input: Any, dim: int = -1, keepdim: bool = False) -> Ordered:
    """The most frequent element along a dimension, the smallest of several such, and the last place it is at.

    Example:
        >>> import pyflame as pf
        >>> values, indices = pf.mode(pf.tensor([3, 1, 3, 2, 1, 3]))
        >>> values.item(), indices.item()
        (3, 5)
    """
    x = as_tensor(input)
    if x.ndim == 0:
        return Ordered(x, ar.mul(cast(x, DType.int64), 0))
    along = axis_of(dim, x.ndim)
    values, places = red.sort(x, along, stable=True)
    size = x.shape[along]
    if not size:
        raise IndexError(f"mode: dimension {along} has no elements")
    steps = sh.reshape(wrap(const(np.arange(size))), [size if i == along else 1 for i in range(x.ndim)])
    first = sh.cat([ar.ne(values.narrow(along, 0, 1), values.narrow(along, 0, 1)), _changes(values, along)], along)
    begins = cummax(ar.where(first, steps, 0), along)[0]
    last = red.argmax(ar.sub(steps, begins), along, True)
    picked = Ordered(ga.gather(values, along, last), ga.gather(places, along, last))
    return picked if keepdim else Ordered(picked.values.squeeze(along), picked.indices.squeeze(along))


def _changes(values: Tensor, along: int) -> Tensor:
    """Where an element differs from the one before it."""
    rest = values.shape[along] - 1
    return ar.ne(values.narrow(along, 1, rest), values.narrow(along, 0, rest))


@names_arguments
def quantile(
    input: Any, q: Any, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> Any:
    """The values below which shares of the elements lie, over all or along a dimension; several shares come first.

    Example:
        >>> import pyflame as pf
        >>> pf.quantile(pf.tensor([4.0, 1.0, 2.0, 3.0]), 0.5).item()
        2.5
    """
    x, along = _flat_or_along(input, dim)
    count = scalar(float(x.shape[along]), x.dtype)
    values = red.sort(x, along)[0]
    bad = red.any(ar.isnan(x), along, True)
    found = _at_shares(values, count, q, along, interpolation)
    return _arranged(ar.where(bad, math.nan, found), q, along, keepdim, as_tensor(input).ndim, dim)


def nanquantile(
    input: Any, q: Any, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> Any:
    """`quantile` of the elements that are not NaN."""
    x, along = _flat_or_along(input, dim)
    there = ar.logical_not(ar.isnan(x))
    count = cast(red.sum(there, along, True), x.dtype)
    values = red.sort(ar.where(there, x, math.inf), along)[0]
    found = _at_shares(values, count, q, along, interpolation)
    return _arranged(ar.where(ar.eq(count, 0), math.nan, found), q, along, keepdim, as_tensor(input).ndim, dim)


def _flat_or_along(input: Any, dim: int | None) -> tuple[Tensor, int]:
    x = as_tensor(input)
    if x.dtype not in (DType.float32, DType.float64):
        raise TypeError(f"quantile takes float32 or float64, got {x.dtype.name}")
    if x.numel == 0:
        raise ValueError("quantile: there are no elements")
    if dim is None or x.ndim == 0:
        return sh.reshape(x, (-1,)), 0
    return x, axis_of(dim, x.ndim)


def _at_shares(values: Tensor, count: Tensor, q: Any, along: int, interpolation: str) -> Tensor:
    """Sorted values at shares of a count: the shares lie along the dimension."""
    shares = convert(q, values.dtype)
    if shares.ndim > 1:
        raise ShapeMismatchError(f"quantile: shares are a number or a vector, got shape {shares.shape}")
    known = shares._value.array
    if known is not None and not np.all((known >= 0) & (known <= 1)):
        raise ValueError("quantile: shares are between 0 and 1")
    shape = [shares.numel if a == along else 1 for a in range(values.ndim)]
    place = ar.mul(sh.reshape(shares, shape), ar.clamp(ar.sub(count, 1.0), min=0.0)).detach()
    low, high = pw.floor(place), pw.ceil(place)
    if interpolation == "nearest":
        low = high = pw.round(place)
    elif interpolation == "lower":
        high = low
    elif interpolation == "higher":
        low = high
    elif interpolation not in ("linear", "midpoint"):
        raise ValueError(
            f"quantile: interpolation is linear, lower, higher, midpoint or nearest, got {interpolation!r}"
        )
    sizes = [place.shape[a] if a == along else s for a, s in enumerate(values.shape)]
    a, b = (ga.gather(values, along, sh.broadcast_to(cast(i, DType.int64), sizes)) for i in (low, high))
    if interpolation == "midpoint":
        return ar.where(ar.eq(low, high), a, ar.lerp(a, b, 0.5))
    return ar.lerp(a, b, ar.sub(place, low))


def _arranged(found: Tensor, q: Any, along: int, keepdim: bool, rank: int, dim: int | None) -> Tensor:
    several = isinstance(q, Handle) and len(q.shape) == 1  # type: ignore[attr-defined]
    first = sh.movedim(found, along, 0)
    if dim is None:
        first = sh.reshape(first, (first.shape[0], *[1] * rank)) if keepdim else first
    elif keepdim and rank:
        first = sh.unsqueeze(first, along + 1)
    return first if several else sh.squeeze(first, 0)


def nanmedian(input: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """The middle of the elements that are not NaN, the lower of two; with ``dim``, values and places along it."""
    x = as_tensor(input)
    flat = sh.reshape(x, (-1,)) if dim is None or x.ndim == 0 else x
    along = 0 if dim is None or x.ndim == 0 else axis_of(dim, x.ndim)
    if not x.dtype.is_floating_point:
        return red.median(x, dim, keepdim)
    there = ar.logical_not(ar.isnan(flat))
    values, places = red.sort(ar.where(there, flat, math.inf), along)
    count = red.sum(there, along, True)
    middle = ar.clamp(ar.floor_divide(ar.sub(count, 1), 2), min=0)
    picked = ar.where(ar.eq(count, 0), math.nan, ga.gather(values, along, middle))
    where = ga.gather(places, along, middle)
    if dim is None:
        return sh.reshape(picked, ())
    if x.ndim == 0:
        return Ordered(sh.reshape(picked, ()), sh.reshape(where, ()))
    return Ordered(picked, where) if keepdim else Ordered(sh.squeeze(picked, along), sh.squeeze(where, along))


def _shifted(x: Tensor, along: int, by: int, fill: Tensor) -> Tensor:
    """The tensor moved on along a dimension, with a value where nothing is."""
    size = list(x.shape)
    size[along] = by
    return sh.cat([sh.broadcast_to(fill, size), sh.narrow(x, along, 0, x.shape[along] - by)], along)


def _running(name: str, input: Any, dim: int) -> Ordered:
    x = as_tensor(input)
    along = axis_of(dim, x.ndim)
    if x.ndim == 0:
        return Ordered(call(Identity, x), ar.mul(cast(x, DType.int64), 0))
    values = cast(x, DType.uint8) if x.dtype is DType.bool else x.detach()
    shape = [x.shape[along] if a == along else 1 for a in range(x.ndim)]
    counted = np.arange(x.shape[along], dtype=np.int64).reshape(shape)
    places = sh.broadcast_to(wrap(const(counted)), x.shape)
    beats, step = (ar.ge if name == "max" else ar.le), 1
    while step < x.shape[along]:
        first = sh.narrow(values, along, 0, 1), sh.narrow(places, along, 0, 1)
        before, there = _shifted(values, along, step, first[0]), _shifted(places, along, step, first[1])
        mine = beats(values, before)
        if x.dtype.is_floating_point:
            mine = ar.logical_or(ar.isnan(values), ar.logical_and(mine, ar.logical_not(ar.isnan(before))))
        values, places = ar.where(mine, values, before), ar.where(mine, places, there)
        step *= 2
    return Ordered(ga.gather(x, along, places), places)


def cummax(input: Any, dim: int) -> Ordered:
    """The largest element so far along a dimension, and where it is (the last of equal ones).

    Example:
        >>> import pyflame as pf
        >>> pf.cummax(pf.tensor([1.0, 3.0, 2.0, 3.0]), 0).indices.tolist()
        [0, 1, 1, 3]
    """
    return _running("max", input, dim)


def cummin(input: Any, dim: int) -> Ordered:
    """The smallest element so far along a dimension, and where it is (the last of equal ones)."""
    return _running("min", input, dim)


@rounded_once
def logcumsumexp(input: Any, dim: int) -> Tensor:
    """The logarithm of the running sum of exponentials along a dimension, without overflow."""
    x = floating(input)
    along = axis_of(dim, x.ndim)
    if x.ndim == 0:
        return call(Identity, x)
    step = 1
    while step < x.shape[along]:
        head = sh.narrow(x, along, 0, step)
        rest = sh.narrow(x, along, step, x.shape[along] - step)
        x = sh.cat([head, pw.logaddexp(rest, sh.narrow(x, along, 0, x.shape[along] - step))], along)
        step *= 2
    return x


def diff(input: Any, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None) -> Tensor:
    """Differences of neighbours along a dimension, ``n`` times over.

    Example:
        >>> import pyflame as pf
        >>> pf.diff(pf.tensor([1, 4, 9])).tolist()
        [3, 5]
    """
    x = as_tensor(input)
    along = axis_of(dim, x.ndim)
    if x.ndim == 0:
        raise ShapeMismatchError("diff takes a tensor with dimensions")
    if n < 0:
        raise ValueError(f"diff: n must not be negative, got {n}")
    if n == 0:
        return call(Identity, x)
    x = sh.cat([as_tensor(part) for part in (prepend, x, append) if part is not None], along)
    for _ in range(min(n, x.shape[along])):
        size = x.shape[along]
        after, before = sh.narrow(x, along, min(1, size), max(size - 1, 0)), sh.narrow(x, along, 0, max(size - 1, 0))
        x = ar.ne(after, before) if x.dtype is DType.bool else ar.sub(after, before)
    return x


def msort(input: Any) -> Tensor:
    """Elements in order along the first dimension."""
    return red.sort(input, 0)[0]


@rounded_once
def trapezoid(y: Any, x: Any = None, *, dx: Any = 1, dim: int = -1) -> Tensor:
    """The integral along a dimension by the trapezoidal rule."""
    return red.sum(_strips(y, x, dx, dim), dim)


@rounded_once
def cumulative_trapezoid(y: Any, x: Any = None, *, dx: Any = 1, dim: int = -1) -> Tensor:
    """The running integral along a dimension by the trapezoidal rule."""
    return red.cumsum(_strips(y, x, dx, dim), dim)


def _strips(y: Any, x: Any, dx: Any, dim: int) -> Tensor:
    values = as_tensor(y)
    along = axis_of(dim, values.ndim)
    count = max(values.shape[along] - 1, 0)
    both = ar.add(sh.narrow(values, along, min(1, count), count), sh.narrow(values, along, 0, count))
    if x is None:
        return ar.div(ar.mul(both, dx), 2.0)
    places = as_tensor(x)
    if places.ndim == 1:
        steps = sh.reshape(diff(places), [count if a == along else 1 for a in range(values.ndim)])
    else:
        steps = diff(places, dim=along - values.ndim)
    return ar.div(ar.mul(both, steps), 2.0)


@names_arguments
def histc(input: Any, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """How many elements lie in each of ``bins`` equal parts of a range, that of the elements unless given."""
    x = sh.reshape(floating(input), (-1,))
    if bins <= 0:
        raise ValueError(f"histc: the number of bins must be positive, got {bins}")
    low, high = float(min), float(max)
    if low == high and x.numel:
        low, high = float(red.amin(x).item()), float(red.amax(x).item())
    if low == high:
        low, high = low - 1, high + 1
    if not (math.isfinite(low) and math.isfinite(high)) or low > high:
        raise ValueError(f"histc: the range must be finite and not empty, got {low} to {high}")
    part = cast(pw.floor(ar.mul(ar.sub(x, low), bins / (high - low))), DType.int64)
    part = ar.where(ar.eq(x, high), bins - 1, part)
    inside = ar.logical_and(ar.ge(x, low), ar.le(x, high))
    counted = ga.scatter_add(
        wrap(const(np.zeros(bins + 1, np.int64))), 0, ar.where(inside, ar.clamp(part, 0, bins - 1), bins),
        cast(ar.logical_or(inside, True), DType.int64),
    )  # fmt: skip
    return cast(sh.narrow(counted, 0, 0, bins), x.dtype)


@rounded_once
def cov(input: Any, *, correction: float = 1, fweights: Any = None, aweights: Any = None) -> Tensor:
    """The covariances of variables: rows are variables, columns observations, which may have weights."""
    x = floating(input)
    x = sh.reshape(x, (1, -1)) if x.ndim < 2 else x
    if x.ndim > 2:
        raise ShapeMismatchError(f"cov takes at most two dimensions, got {x.shape}")
    weight = None
    for given in (fweights, aweights):
        if given is not None:
            weight = cast(as_tensor(given), x.dtype) if weight is None else ar.mul(weight, given)
    total = scalar(float(x.shape[1]), x.dtype) if weight is None else red.sum(weight)
    weighted = x if weight is None else ar.mul(x, weight)
    centred = ar.sub(x, ar.div(red.sum(weighted, 1, True), total))
    if weight is None or aweights is None or not correction:
        left = ar.sub(total, correction)
    else:
        squares = red.sum(ar.mul(weight, cast(as_tensor(aweights), x.dtype)))
        left = ar.sub(total, ar.div(ar.mul(squares, correction), total))
    other = centred if weight is None else ar.mul(centred, weight)
    made = ar.div(la.matmul(centred, sh.transpose(other, 0, 1)), ar.clamp(left, min=0.0))
    return sh.squeeze(sh.squeeze(made, 0), 0) if made.numel == 1 else made


@rounded_once
def corrcoef(input: Any) -> Tensor:
    """The correlations of variables: rows are variables, columns observations."""
    made = cov(input)
    if made.ndim == 0:
        return ar.div(made, made)
    spread = pw.sqrt(ga.diag(made))
    return ar.clamp(ar.div(ar.div(made, sh.unsqueeze(spread, 1)), sh.unsqueeze(spread, 0)), -1.0, 1.0)
