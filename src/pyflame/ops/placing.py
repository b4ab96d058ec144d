"""Copies of a tensor with a part of it replaced, cut into windows, or put together in blocks."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame.dtypes import DType
from pyflame.lazy import const, leaf
from pyflame.ops import arithmetic as ar
from pyflame.ops import gathering as ga
from pyflame.ops import reduction as red
from pyflame.ops import shaping as sh
from pyflame.ops.core import as_tensor, axis_of, call, cast, convert, real_only, same_type, scalar, sizes_of, wrap
from pyflame.ops.indexing import getitem, setitem
from pyflame_rt.graph.errors import ShapeMismatchError
from pyflame_rt.graph.named_arguments import names_arguments
from pyflame_rt.ops.onnx.cast import Identity
from pyflame_rt.ops.onnx.index import Gather, ScatterElements

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame.tensors import Tensor

__all__ = [
    "block_diag",
    "cartesian_prod",
    "channel_shuffle",
    "combinations",
    "constant_pad_nd",
    "diagonal_scatter",
    "dsplit",
    "hsplit",
    "index_put",
    "masked_scatter",
    "renorm",
    "scatter_reduce",
    "select_scatter",
    "slice_scatter",
    "split_with_sizes",
    "sum_to_size",
    "unfold",
    "unique_consecutive",
    "unravel_index",
    "vsplit",
]


def index_put(input: Any, indices: Sequence[Any], values: Any, accumulate: bool = False) -> Tensor:
    """The tensor with values put at places: one tensor of numbers, or a mask, for each of the first dimensions.

    Example:
        >>> import pyflame as pf
        >>> pf.index_put(pf.zeros(3), (pf.tensor([1, 1]),), pf.tensor([2.0, 3.0]), accumulate=True).tolist()
        [0.0, 5.0, 0.0]
    """
    x = as_tensor(input)
    same_type("index_put", x, values)
    key = tuple(slice(None) if i is None else i for i in indices)
    if not accumulate:
        return setitem(x, key, values)
    # Numbers of all elements, indexed as the tensor is, are where the values go.
    numbers = wrap(const(np.arange(x.numel, dtype=np.int64).reshape(tuple(x.shape))))
    places = getitem(numbers, key)
    added = sh.broadcast_to(convert(values, x.dtype), places.shape)
    flat = ga.scatter_add(sh.reshape(x, (-1,)), 0, sh.reshape(places, (-1,)), sh.reshape(added, (-1,)))
    return sh.reshape(flat, x.shape)


_FIRST = {"sum": 0.0, "prod": 1.0, "mean": 0.0, "amax": -math.inf, "amin": math.inf}


def scatter_reduce(input: Any, dim: int, index: Any, src: Any, reduce: str, *, include_self: bool = True) -> Tensor:
    """The tensor with elements of ``src`` reduced into where the index points along a dimension.

    Args:
        input: the tensor.
        dim: the dimension.
        index: where each element of ``src`` goes.
        src: what is reduced.
        reduce: "sum", "prod", "mean", "amax" or "amin".
        include_self: whether what stood there counts too.

    Example:
        >>> import pyflame as pf
        >>> pf.scatter_reduce(pf.zeros(2), 0, pf.tensor([0, 0]), pf.tensor([3.0, 5.0]), "amax").tolist()
        [5.0, 0.0]
    """
    if reduce not in _FIRST:
        raise ValueError(f"scatter_reduce: reduce is one of {', '.join(_FIRST)}, got {reduce!r}")
    x = as_tensor(input) if reduce in ("sum", "mean") else real_only("scatter_reduce", input)
    if x.ndim == 0:
        one = [as_tensor(t).reshape((1,)) for t in (x, index, src)]
        return scatter_reduce(one[0], 0, one[1], one[2], reduce, include_self=include_self).reshape(())
    places = as_tensor(index)
    if places.numel == 0:
        return call(Identity, x)
    source = sh.slice_axes(convert(src, x.dtype), [(a, 0, places.shape[a], 1) for a in range(places.ndim)])
    if not include_self:
        x = _with_first(x, dim, places, reduce)
    if reduce in ("sum", "mean"):
        total = ga.scatter_add(x, dim, places, source)
        return total if reduce == "sum" else _divided(total, x, dim, places, source, include_self)
    along = axis_of(dim, x.ndim)
    mode = {"prod": "mul", "amax": "max", "amin": "min"}[reduce]
    return call(ScatterElements, x, ga.strict(places, x.shape[along], along), source, axis=along, reduction=mode)


def _with_first(x: Tensor, dim: int, places: Tensor, reduce: str) -> Tensor:
    """The tensor with what leaves a reduction as it is wherever something will be reduced."""
    first = _FIRST[reduce]
    if not x.dtype.is_floating_point and math.isinf(first):
        if x.dtype is DType.bool:
            first = first > 0
        else:
            limits = np.iinfo(x.dtype.numpy)
            first = limits.max if first > 0 else limits.min
    return ga.scatter(x, dim, places, value=first)


def _divided(total: Tensor, x: Tensor, dim: int, places: Tensor, source: Tensor, include_self: bool) -> Tensor:
    ones = cast(ar.eq(source.detach(), source.detach()), DType.int64)
    ones = ar.add(ar.mul(ones, 0), 1)
    start = sh.broadcast_to(scalar(1 if include_self else 0, DType.int64), x.shape)
    count = ar.clamp(ga.scatter_add(start, dim, places, ones), min=1)
    if total.dtype.is_floating_point:
        return ar.div(total, cast(count, total.dtype))
    return cast(ar.floor_divide(total, cast(count, total.dtype)), total.dtype)


def masked_scatter(input: Any, mask: Any, source: Any) -> Tensor:
    """The tensor with elements of ``source``, in their order, where the mask is true."""
    x, there = sh.broadcast_tensors(input, mask)
    given = sh.reshape(convert(source, x.dtype), (-1,))
    flat = sh.reshape(there, (-1,))
    rank = ar.clamp(ar.sub(red.cumsum(cast(flat, DType.int64), 0), 1), 0, max(given.numel - 1, 0))
    if given.numel == 0:
        return call(Identity, x)
    return ar.where(there, sh.reshape(ga.gather(given, 0, rank), x.shape), x)


def select_scatter(input: Any, src: Any, dim: int, index: int) -> Tensor:
    """The tensor with one entry of a dimension replaced."""
    x = as_tensor(input)
    return setitem(x, (*[slice(None)] * axis_of(dim, x.ndim), int(index)), src)


def slice_scatter(
    input: Any, src: Any, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    """The tensor with a slice of a dimension replaced."""
    x = as_tensor(input)
    return setitem(x, (*[slice(None)] * axis_of(dim, x.ndim), slice(start, end, step)), src)


def diagonal_scatter(input: Any, src: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """The tensor with a diagonal replaced."""
    x = as_tensor(input)
    numbers = np.arange(x.numel, dtype=np.int64).reshape(tuple(x.shape))
    places = np.diagonal(numbers, offset, axis_of(dim1, x.ndim), axis_of(dim2, x.ndim))
    values = convert(src, x.dtype)
    if tuple(values.shape) != places.shape:
        raise ShapeMismatchError(f"diagonal_scatter: a diagonal of shape {list(places.shape)}, got {values.shape}")
    flat = ga.scatter(sh.reshape(x, (-1,)), 0, wrap(const(places.reshape(-1).copy())), sh.reshape(values, (-1,)))
    return sh.reshape(flat, x.shape)


def unfold(input: Any, dimension: int, size: int, step: int) -> Tensor:
    """All windows of a dimension, each as a further last dimension; a copy, where torch has a view.

    Example:
        >>> import pyflame as pf
        >>> pf.arange(5).unfold(0, 3, 2).tolist()
        [[0, 1, 2], [2, 3, 4]]
    """
    x = as_tensor(input)
    along = axis_of(dimension, x.ndim)
    have = x.shape[along] if x.ndim else 1
    if not 0 <= size <= have or step <= 0:
        raise ShapeMismatchError(f"unfold: windows of {size}, {step} apart, do not fit a dimension of {have}")
    if x.ndim == 0:
        return sh.reshape(x, (1,)) if size else sh.narrow(sh.reshape(x, (1,)), 0, 0, 0)
    starts = np.arange(0, have - size + 1, step, dtype=np.int64)
    windows = call(Gather, x, wrap(const(starts[:, None] + np.arange(size, dtype=np.int64))), axis=along)
    return sh.movedim(windows, along + 1, -1)


def split_with_sizes(input: Any, split_sizes: Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Parts of given sizes along a dimension."""
    return tuple(sh.split(input, list(split_sizes), dim))


def _split_along(input: Any, indices_or_sections: Any, dim: int, name: str, least: int) -> tuple[Tensor, ...]:
    x = as_tensor(input)
    if x.ndim < least:
        raise ShapeMismatchError(f"{name} takes tensors with at least {least} dimensions, got {x.shape}")
    if isinstance(indices_or_sections, int) and x.shape[dim] % indices_or_sections:
        raise ShapeMismatchError(f"{name}: {x.shape[dim]} entries do not make {indices_or_sections} equal parts")
    return tuple(sh.tensor_split(x, indices_or_sections, dim))


def hsplit(input: Any, indices_or_sections: Any) -> tuple[Tensor, ...]:
    """Parts along the second dimension, the only one of a vector."""
    return _split_along(input, indices_or_sections, 0 if as_tensor(input).ndim == 1 else 1, "hsplit", 1)


def vsplit(input: Any, indices_or_sections: Any) -> tuple[Tensor, ...]:
    """Parts along the first dimension."""
    return _split_along(input, indices_or_sections, 0, "vsplit", 2)


def dsplit(input: Any, indices_or_sections: Any) -> tuple[Tensor, ...]:
    """Parts along the third dimension."""
    return _split_along(input, indices_or_sections, 2, "dsplit", 3)


@names_arguments
def block_diag(*tensors: Any) -> Tensor:
    """Matrices along the diagonal of one, zeros elsewhere."""
    listed = [sh.reshape(t, (1, -1)) if t.ndim < 2 else t for t in map(as_tensor, tensors)]
    width, rows, before = sum(t.shape[1] for t in listed), [], 0
    for t in listed:
        if t.ndim != 2:
            raise ShapeMismatchError(f"block_diag takes matrices, got {t.shape}")
        rows.append(sh.pad(t, (before, width - before - t.shape[1])))
        before += t.shape[1]
    return sh.cat(rows, 0)


@names_arguments
def cartesian_prod(*tensors: Any) -> Tensor:
    """All combinations of elements of vectors, one in each row."""
    listed = [as_tensor(t) for t in tensors]
    if any(t.ndim != 1 for t in listed):
        raise ShapeMismatchError("cartesian_prod takes vectors")
    if len(listed) == 1:
        return call(Identity, listed[0])
    return sh.stack([sh.reshape(g, (-1,)) for g in sh.meshgrid(*listed, indexing="ij")], 1)


@names_arguments
def combinations(input: Any, r: int = 2, with_replacement: bool = False) -> Tensor:
    """All choices of ``r`` elements of a vector, one in each row."""
    x = as_tensor(input)
    if x.ndim != 1 or r < 0:
        raise ShapeMismatchError(f"combinations takes a vector and a count, got {x.shape} and {r}")
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    rows = np.array(list(choose(range(x.shape[0]), r)), np.int64).reshape(-1, r)
    if r == 0:
        return sh.narrow(x, 0, 0, 0)
    return call(Gather, x, wrap(const(rows)), axis=0)


def sum_to_size(input: Any, *size: Any) -> Tensor:
    """The sum over the dimensions that broadcasting from a size would have stretched."""
    x, sizes = as_tensor(input), sizes_of(size)
    lead = x.ndim - len(sizes)
    if lead < 0 or any(s not in (1, x.shape[lead + a]) for a, s in enumerate(sizes)):
        raise ShapeMismatchError(f"sum_to_size: {list(sizes)} does not broadcast to {x.shape}")
    axes = [a for a in range(x.ndim) if a < lead or sizes[a - lead] == 1 != x.shape[a]]
    return sh.reshape(red.sum(x, axes, True), sizes) if axes else call(Identity, x)


@names_arguments
def unravel_index(indices: Any, shape: Any) -> tuple[Tensor, ...]:
    """Numbers of elements of a flat tensor as places in a shape, one tensor for each dimension."""
    rest = cast(as_tensor(indices), DType.int64)
    found = []
    for size in reversed(sizes_of((shape,))):
        found.append(ar.remainder(rest, size))
        rest = ar.floor_divide(rest, size)
    return tuple(reversed(found))


def unique_consecutive(
    input: Any, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:
    """Elements (or entries of a dimension) without those equal to their neighbour before; evaluates."""
    array = real_only("unique_consecutive", input).numpy(copy=False)
    rows = array.reshape(-1) if dim is None else np.moveaxis(array, dim, 0)
    flat = rows.reshape(rows.shape[0], -1) if rows.size else rows.reshape(rows.shape[0], 0)
    new = np.ones(rows.shape[0], bool)
    new[1:] = (flat[1:] != flat[:-1]).any(1)
    kept = rows[new] if dim is None else np.moveaxis(rows[new], 0, dim)
    inverse = np.cumsum(new) - 1
    inverse = inverse.reshape(array.shape) if dim is None else inverse
    counts = np.diff(np.append(np.flatnonzero(new), rows.shape[0]))
    made = [_leaf(kept)]
    made += [_leaf(inverse.astype(np.int64))] if return_inverse else []
    made += [_leaf(counts.astype(np.int64))] if return_counts else []
    return made[0] if len(made) == 1 else tuple(made)


def _leaf(array: Any) -> Tensor:
    from pyflame.dtypes import to_dtype

    whole = np.array(array, order="C")
    return wrap(leaf(whole, to_dtype(whole.dtype)))


def renorm(input: Any, p: float, dim: int, maxnorm: float) -> Tensor:
    """The tensor with entries of a dimension shortened to a norm where theirs is larger."""
    x = as_tensor(input)
    along = axis_of(dim, x.ndim)
    others = tuple(a for a in range(x.ndim) if a != along)
    length = red.norm(x, p, others, True)
    return ar.mul(x, ar.where(ar.gt(length, maxnorm), ar.div(maxnorm, ar.add(length, 1e-7)), 1.0))


def channel_shuffle(input: Any, groups: int) -> Tensor:
    """The channels (dimension 1) of all groups in turn."""
    x = as_tensor(input)
    if x.ndim < 3 or groups <= 0 or x.shape[1] % groups:
        raise ShapeMismatchError(f"channel_shuffle: {groups} groups of dimension 1 of {x.shape}")
    n, c, *rest = x.shape
    return sh.reshape(sh.transpose(sh.reshape(x, (n, groups, c // groups, *rest)), 1, 2), x.shape)


def constant_pad_nd(input: Any, pad: Sequence[int], value: Any = 0) -> Tensor:
    """The tensor with a border of one value; negative sizes cut off."""
    return sh.pad(input, tuple(pad), "constant", value)
