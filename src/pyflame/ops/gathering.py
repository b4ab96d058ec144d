"""Functions that gather, scatter, select and count elements."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame.dtypes import DType
from pyflame.lazy import const, leaf
from pyflame.ops import arithmetic as ar
from pyflame.ops import shaping as sh
from pyflame.ops.core import Handle, as_tensor, axis_of, call, cast, convert, real_only, same_type, wrap
from pyflame.ops.indexing import as_entry, getitem, in_range
from pyflame.ops.ranges import numbers_within
from pyflame_rt.graph.errors import ShapeMismatchError
from pyflame_rt.graph.named_arguments import names_arguments
from pyflame_rt.ops.onnx.cast import Identity
from pyflame_rt.ops.onnx.index import Gather, GatherElements, ScatterElements, ScatterND

if TYPE_CHECKING:
    from pyflame.tensors import Tensor


def _index(index: Any) -> Tensor:
    entry = as_entry(index)
    if not isinstance(entry, Handle):
        entry = as_tensor(np.asarray(entry))
    if entry._value.spec.dtype is DType.bool:
        raise IndexError("an index tensor of integers is needed, not booleans")
    return entry  # type: ignore[return-value]


def strict(places: Tensor, size: int, axis: int) -> Tensor:
    """Indices from 0 on: these functions do not count from the end."""
    return numbers_within(places, 0, size, f"an index of dimension {axis}")


def index_select(input: Any, dim: int, index: Any) -> Tensor:
    """Entries of a dimension by number."""
    x, places = as_tensor(input), _index(index)
    along = axis_of(dim, x.ndim)
    if x.ndim == 0:
        return call(Identity, x)
    places = places.reshape((1,)) if places.ndim == 0 else places
    return call(Gather, x, strict(places, x.shape[along], along), axis=along)


def take(input: Any, index: Any) -> Tensor:
    """Elements of the flattened tensor by number."""
    return call(Gather, sh.ravel(input), _index(index), axis=0)


def take_along_dim(input: Any, indices: Any, dim: int | None = None) -> Tensor:
    """Along a dimension, the elements that the indices point at."""
    x, places = as_tensor(input), _index(indices)
    if dim is None:
        return gather(sh.ravel(x), 0, sh.ravel(places))
    along = axis_of(dim, x.ndim)
    shape = np.broadcast_shapes(*[tuple(1 if a == along else s for a, s in enumerate(v.shape)) for v in (x, places)])
    x = sh.broadcast_to(x, tuple(x.shape[along] if a == along else s for a, s in enumerate(shape)))
    places = sh.broadcast_to(places, tuple(places.shape[along] if a == along else s for a, s in enumerate(shape)))
    return gather(x, along, ar.where(ar.lt(places, 0), ar.add(places, x.shape[along]), places))


def gather(input: Any, dim: int, index: Any) -> Tensor:
    """For each place of the index, the element it points at along a dimension."""
    x, places = as_tensor(input), _index(index)
    along = axis_of(dim, x.ndim)
    if places.numel == 0:
        return sh.reshape(sh.slice_axes(x, [(a, 0, 0, 1) for a in range(x.ndim)]), places.shape)
    if x.ndim == 0 or places.ndim == 0:
        flat = gather(x.reshape((1,)) if x.ndim == 0 else x, 0, places.reshape((1,)) if places.ndim == 0 else places)
        return flat.reshape(places.shape)
    _same_rank("gather", x, places)
    x = sh.slice_axes(x, [(a, 0, min(x.shape[a], places.shape[a]), 1) for a in range(x.ndim) if a != along])
    return call(GatherElements, x, strict(places, x.shape[along], along), axis=along)


def _same_rank(name: str, x: Tensor, index: Tensor) -> None:
    if x.ndim != index.ndim:
        raise ShapeMismatchError(f"{name}: the index has {index.ndim} dimensions, the tensor {x.ndim}")


def scatter(
    input: Any, dim: int, index: Any, src: Any = None, *, value: Any = None, reduce: str | None = None
) -> Tensor:
    """The tensor with elements of ``src`` (or one value) put where the index points along a dimension."""
    modes = {None: "none", "add": "add", "multiply": "mul"}
    if reduce not in modes:
        raise ValueError(f"scatter: reduce is 'add' or 'multiply', got {reduce!r}")
    return _scatter(input, dim, index, value if src is None else src, modes[reduce])


def _scatter(input: Any, dim: int, index: Any, src: Any, mode: str) -> Tensor:
    x, places = as_tensor(input), _index(index)
    along = axis_of(dim, x.ndim)
    same_type("scatter", x, src)
    source = convert(src, x.dtype)
    if x.ndim == 0:
        one = (1,)
        source = source.reshape(one) if source.ndim == 0 else source
        return _scatter(x.reshape(one), 0, places.reshape(one) if places.ndim == 0 else places, source, mode).reshape(
            ()
        )
    if places.numel == 0:
        return call(Identity, x)
    if source.ndim == 0:
        source = sh.expand(source, places.shape)
    _same_rank("scatter", x, places)
    source = sh.slice_axes(source, [(a, 0, places.shape[a], 1) for a in range(places.ndim)])
    return call(ScatterElements, x, strict(places, x.shape[along], along), source, axis=along, reduction=mode)


def scatter_add(input: Any, dim: int, index: Any, src: Any) -> Tensor:
    """The tensor with elements of ``src`` added where the index points along a dimension."""
    return _scatter(input, dim, index, src, "add")


def index_add(input: Any, dim: int, index: Any, source: Any, *, alpha: Any = 1) -> Tensor:
    """The tensor with entries of ``source`` added to the entries of a dimension that the index names."""
    return _index_put(input, dim, index, ar.mul(source, alpha) if alpha != 1 else source, "add")


def index_copy(input: Any, dim: int, index: Any, source: Any) -> Tensor:
    """The tensor with the entries of a dimension that the index names replaced."""
    return _index_put(input, dim, index, source, "none")


def index_fill(input: Any, dim: int, index: Any, value: Any) -> Tensor:
    """The tensor with the entries of a dimension that the index names set to a value."""
    x, places = as_tensor(input), _index(index)
    along = axis_of(dim, x.ndim)
    size = x.shape[along] if x.ndim else 1
    places = sh.ravel(in_range(places, size, along))
    places = ar.where(ar.lt(places, 0), ar.add(places, size), places)
    hit = ar.eq(sh.unsqueeze(wrap(const(np.arange(size, dtype=np.int64))), 1), places).any(1)
    shape = [size if a == along else 1 for a in range(x.ndim)]
    return ar.where(sh.reshape(hit, shape), convert(value, x.dtype), x)


def _index_put(input: Any, dim: int, index: Any, source: Any, mode: str) -> Tensor:
    x, places = as_tensor(input), _index(index)
    same_type("index_add" if mode == "add" else "index_copy", x, source)
    along = axis_of(dim, x.ndim)
    if x.ndim == 0:
        return _index_put(x.reshape((1,)), 0, places, as_tensor(source).reshape((1,)), mode).reshape(())
    order = [along, *[a for a in range(x.ndim) if a != along]]
    places = sh.reshape(strict(places, x.shape[along], along), (places.numel, 1))
    rows = sh.permute(convert(source, x.dtype), order)
    done = call(ScatterND, sh.permute(x, order), places, rows, reduction=mode)
    return sh.permute(done, np.argsort(order).tolist())


def masked_fill(input: Any, mask: Any, value: Any) -> Tensor:
    """The tensor with ``value`` where the mask is true."""
    x = as_tensor(input)
    return ar.where(mask, convert(value, x.dtype), x)


def masked_select(input: Any, mask: Any) -> Tensor:
    """The elements where the mask is true, in one dimension; evaluates the mask."""
    x, places = sh.broadcast_tensors(input, mask)
    return getitem(x, places)


def select(input: Any, dim: int, index: int) -> Tensor:
    """One entry of a dimension, without it."""
    x = as_tensor(input)
    along = axis_of(dim, x.ndim)
    return getitem(x, (*[slice(None)] * along, int(index)))


def nonzero(input: Any, *, as_tuple: bool = False) -> Any:
    """The places of elements that are not zero, as rows of a matrix or one vector for each dimension; evaluates."""
    array = as_tensor(input).numpy(copy=False)
    found = np.nonzero(np.atleast_1d(array))
    if as_tuple:
        return tuple(wrap(leaf(np.asarray(f, np.int64, order="C"), DType.int64)) for f in found)
    rows = np.argwhere(array).astype(np.int64)
    return wrap(leaf(np.asarray(rows, order="C"), DType.int64))


argwhere = nonzero


def unique(
    input: Any, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:
    """The different values in order; evaluates. With them, where each element went, and how many there are."""
    del sorted  # always
    array = real_only("unique", input).numpy(copy=False)
    values, inverse, counts = np.unique(array, return_inverse=True, return_counts=True, axis=dim)
    kind = as_tensor(input).dtype
    results = [wrap(leaf(np.asarray(values, order="C"), kind))]
    if return_inverse:
        shape = array.shape if dim is None else inverse.shape
        results.append(wrap(leaf(np.asarray(inverse.reshape(shape), np.int64, order="C"), DType.int64)))
    if return_counts:
        results.append(wrap(leaf(np.asarray(counts, np.int64, order="C"), DType.int64)))
    return results[0] if len(results) == 1 else tuple(results)


def isin(elements: Any, test_elements: Any, *, invert: bool = False) -> Tensor:
    """Where an element is one of some others (or, inverted, none of them).

    Example:
        >>> import pyflame as pf
        >>> pf.isin(pf.tensor([1.0, 2.0, 3.0]), pf.tensor([3.0, 1.0])).tolist()
        [True, False, True]
    """
    x, others = (real_only("isin", v) for v in (elements, test_elements))
    found = ar.eq(x.unsqueeze(-1), others.reshape((-1,))).any(dim=-1)
    return ~found if invert else found


def fill_diagonal(input: Any, fill_value: Any, wrap: bool = False) -> Tensor:
    """The main diagonal set to one value; with `wrap` it begins anew below, in matrices that are taller than wide."""
    x = as_tensor(input)
    if x.ndim < 2 or (x.ndim > 2 and len(set(x.shape)) > 1):
        raise ShapeMismatchError(
            f"fill_diagonal_ takes a matrix, or a tensor whose dimensions are equal. Received: {list(x.shape)}"
        )
    mask = np.zeros(tuple(x.shape), bool)
    np.fill_diagonal(mask, True, wrap=wrap)
    return masked_fill(x, as_tensor(mask), fill_value)


@names_arguments
def bincount(input: Any, weights: Any = None, minlength: int = 0) -> Tensor:
    """How often each number occurs; evaluates, because the largest decides the shape."""
    array = as_tensor(input).numpy(copy=False)
    w = None if weights is None else as_tensor(weights).numpy(copy=False)
    counted = np.bincount(array, w, minlength)
    kind = DType.int64 if w is None else (DType.float32 if w.dtype == np.float32 else DType.float64)
    return wrap(leaf(counted.astype(kind.numpy), kind))


@names_arguments
def searchsorted(
    sorted_sequence: Any,
    values: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Any = None,
) -> Tensor:
    """Where values belong in sorted vectors (the last dimension), before or (``right``) after equal ones."""
    s, v = as_tensor(sorted_sequence), as_tensor(values)
    if sorter is not None:
        s = gather(s, -1, sorter)
    if side not in (None, "left", "right"):
        raise ValueError(f"side is 'left' or 'right', got {side!r}")
    after = right or side == "right"
    line = s if s.ndim == 1 else s.unsqueeze(-2)
    below = ar.le(line, v.unsqueeze(-1)) if after else ar.lt(line, v.unsqueeze(-1))
    return cast(below.sum(-1), DType.int32 if out_int32 else DType.int64)


@names_arguments
def bucketize(input: Any, boundaries: Any, *, out_int32: bool = False, right: bool = False) -> Tensor:
    """The number of the interval between boundaries that each value is in."""
    return searchsorted(boundaries, input, out_int32=out_int32, right=right)


def diagonal(input: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """The diagonal of two dimensions, as the last."""
    x = as_tensor(input)
    a, b = axis_of(dim1, x.ndim), axis_of(dim2, x.ndim)
    rows, cols = x.shape[a], x.shape[b]
    count = max(0, min(rows, cols - offset) if offset >= 0 else min(rows + offset, cols))
    rest = [d for d in range(x.ndim) if d not in (a, b)]
    flat = sh.reshape(sh.permute(x, [*rest, a, b]), (*[x.shape[d] for d in rest], rows * cols))
    places = (np.arange(count) + max(0, -offset)) * cols + np.arange(count) + max(0, offset)
    return call(Gather, flat, const(places.astype(np.int64)), axis=len(rest))


def diag(input: Any, diagonal: int = 0) -> Tensor:
    """The diagonal of a matrix, or the matrix of a diagonal."""
    x = as_tensor(input)
    if x.ndim == 2:
        return globals()["diagonal"](x, diagonal)
    if x.ndim != 1:
        raise ShapeMismatchError(f"diag takes a vector or a matrix, got {x.shape}")
    return diag_embed(x, diagonal)


def diag_embed(input: Any, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """Matrices with the last dimension on their diagonal."""
    x = as_tensor(input)
    size = x.shape[-1] + abs(offset)
    lead = tuple(x.shape[:-1])
    places = (np.arange(x.shape[-1]) + max(0, -offset)) * size + np.arange(x.shape[-1]) + max(0, offset)
    flat = sh.reshape(x, (math.prod(lead), x.shape[-1]))
    from pyflame.ops.creation import zeros

    base = zeros((size * size, math.prod(lead)), dtype=x.dtype)
    put = call(ScatterND, base, const(places.astype(np.int64).reshape(-1, 1)), sh.transpose(flat, 0, 1))
    made = sh.reshape(sh.transpose(put, 0, 1), (*lead, size, size))
    rank = made.ndim
    return sh.movedim(made, (rank - 2, rank - 1), (axis_of(dim1, rank), axis_of(dim2, rank)))


def diagflat(input: Any, offset: int = 0) -> Tensor:
    """The matrix with all elements on its diagonal."""
    return diag_embed(sh.ravel(input), offset)


def trace(input: Any) -> Tensor:
    """The sum of the diagonal of a matrix."""
    return diagonal(input).sum()


def embedding(input: Any, weight: Any) -> Tensor:
    """Rows of a matrix by number."""
    w, places = as_tensor(weight), _index(input)
    return call(Gather, w, strict(places, w.shape[0], 0), axis=0)
