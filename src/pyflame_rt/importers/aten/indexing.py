"""Indexing of aten: gathers, scatters, sorting, tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph import DType
from pyflame_rt.importers.aten.shaping import part
from pyflame_rt.importers.aten.table import aten
from pyflame_rt.importers.aten.values import (
    axis,
    cast,
    number,
    promoted,
    refuse,
    shape_value,
    sizes,
    static,
    wrap,
)
from pyflame_rt.ops.core.value import Value, constant
from pyflame_rt.ops.onnx import index as indexed
from pyflame_rt.ops.onnx import logic
from pyflame_rt.ops.onnx.arithmetic import Add, Max
from pyflame_rt.ops.onnx.math import Floor
from pyflame_rt.ops.onnx.reduce import ReduceMax, ReduceSum
from pyflame_rt.ops.onnx.shape import Expand, Reshape, Shape, Transpose, Unsqueeze
from pyflame_rt.ops.onnx.slicing import Concat

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["index_added", "places_of", "put", "taken"]


def _of_one_axis(function: Callable[..., Value]) -> Callable[..., Value]:
    """Scalars have one axis for torch where parts of them are named."""

    def lowered(x: Value, dim: int, index: Value, *rest: Any, **named: Any) -> Value:
        if x.rank:
            return function(x, dim, index, *rest, **named)
        wide = [Reshape(v, [1]) if isinstance(v, Value) else v for v in rest]
        return Reshape(function(Reshape(x, [1]), dim, index, *wide, **named), constant([], DType.Int64))

    return lowered


@aten("embedding")
def _embedding(weight: Value, indices: Value, padding_idx: int = -1, scale_grad_by_freq: bool = False,
               sparse: bool = False) -> Value:  # fmt: skip
    del padding_idx, scale_grad_by_freq, sparse
    return indexed.Gather(weight, indices)


@aten("index_select")
def _index_select(x: Value, dim: int, index: Value) -> Value:
    return indexed.Gather(x, index if index.rank else Reshape(index, [1]), axis=axis(dim, x.rank))


@aten("gather")
def _gather(x: Value, dim: int, index: Value, *, sparse_grad: bool = False) -> Value:
    del sparse_grad
    if not x.rank:
        return Expand(x, Shape(index))
    return indexed.GatherElements(*_cut(x, index, axis(dim, x.rank)), axis=axis(dim, x.rank))


def _cut(x: Value, index: Value, along: int) -> tuple[Value, Value]:
    """Torch lets an index be smaller than the data along the other axes."""
    from pyflame_rt.ops.onnx.slicing import Slice

    others = [i for i in range(x.rank) if i != along and x.shape[i] != index.shape[i]]
    if not others:
        return x, index
    ends = indexed.Gather(Shape(index), constant(others, DType.Int64))
    return Slice(x, [0] * len(others), ends, others), index


@aten("take_along_dim")
def _take_along_dim(x: Value, indices: Value, dim: Any = None) -> Value:
    if dim is None:
        return indexed.GatherElements(Reshape(x, [-1]), Reshape(indices, [-1]), axis=0)
    at = axis(dim, x.rank)
    if any(
        a != b or not isinstance(a, int) for i, (a, b) in enumerate(zip(x.shape, indices.shape, strict=True)) if i != at
    ):
        return indexed.GatherElements(_wide(x, indices, at), _wide(indices, x, at), axis=at)
    return indexed.GatherElements(x, indices, axis=at)


def _wide(x: Value, other: Value, but: int) -> Value:
    """As large as another tensor along all axes but one."""
    return Expand(x, shape_value([1 if i == but else size for i, size in enumerate(sizes(other))]))


@aten("take")
def _take(x: Value, index: Value) -> Value:
    return indexed.Gather(Reshape(x, [-1]), index)


_REDUCTIONS = {"sum": "add", "add": "add", "prod": "mul", "multiply": "mul", "amax": "max", "amin": "min"}


@aten("scatter")
def _scatter(x: Value, dim: int, index: Value, src: Any, *, reduce: str | None = None) -> Value:
    updates = Expand(number(src, x.dtype), Shape(index)) if not isinstance(src, Value) else _like(src, index, x)
    kind = "none" if reduce is None else _REDUCTIONS[reduce]
    return indexed.ScatterElements(x, index, updates, axis=axis(dim, x.rank), reduction=kind)


def _like(src: Value, index: Value, x: Value) -> Value:
    """The part of the source that an index of other sizes reads."""
    from pyflame_rt.ops.onnx.slicing import Slice

    if src.rank == 0:
        return Expand(cast(src, x.dtype), Shape(index))
    value = cast(src, x.dtype)
    if src.shape == index.shape:
        return value
    return Slice(value, [0] * src.rank, Shape(index), list(range(src.rank)))


@aten("scatter_add")
def _scatter_add(x: Value, dim: int, index: Value, src: Value) -> Value:
    return indexed.ScatterElements(x, index, _like(src, index, x), axis=axis(dim, x.rank), reduction="add")


@aten("scatter_reduce")
def _scatter_reduce(x: Value, dim: int, index: Value, src: Value, reduce: str, *, include_self: bool = True) -> Value:
    if reduce not in (*_REDUCTIONS, "mean"):
        raise refuse(f"scatter_reduce with reduce={reduce!r}")
    if include_self and reduce != "mean":
        return _scatter(x, dim, index, src, reduce=reduce)
    one = constant(1, x)
    hits = _scatter(_filled(x, 0), dim, index, one)
    counts = _scatter(_filled(x, 0), dim, index, one, reduce="sum")
    start = x if include_self else logic.Where(cast(hits, DType.Bool), constant(_neutral(reduce, x.dtype), x), x)
    total = _scatter(start, dim, index, src, reduce="sum" if reduce == "mean" else reduce)
    if reduce != "mean":
        return total
    shares = counts + one if include_self else Max(counts, one)
    if x.dtype.is_float:
        return total / shares
    rounded = Floor(cast(total, DType.Float64) / cast(shares, DType.Float64))
    return cast(rounded, x.dtype)


def _filled(x: Value, number_: int) -> Value:
    return Expand(constant(number_, x), Shape(x))


def _neutral(reduce: str, kind: DType) -> Any:
    """What changes no result of a reduction."""
    if reduce in ("amax", "amin"):
        if kind.is_float:
            return -np.inf if reduce == "amax" else np.inf
        limits = np.iinfo(kind.numpy)
        return int(limits.min if reduce == "amax" else limits.max)
    return 1 if reduce == "prod" else 0


@aten("index_reduce")
@_of_one_axis
def _index_reduce(
    x: Value, dim: int, index: Value, source: Value, reduce: str, *, include_self: bool = True
) -> Value:  # fmt: skip
    along = axis(dim, x.rank)
    shape = [1] * x.rank
    shape[along] = -1
    places = Expand(Reshape(index, shape), Shape(source))
    return _scatter_reduce(x, dim, places, source, reduce, include_self=include_self)


@aten("index_add")
@_of_one_axis
def index_added(x: Value, dim: int, index: Value, source: Value, *, alpha: Any = 1) -> Value:
    """Parts of a tensor added to others at places along an axis."""
    along = axis(dim, x.rank)
    shape = [1] * x.rank
    shape[along] = -1
    places = Expand(Reshape(index, shape), Shape(source))
    scaled = source if alpha == 1 else source * number(alpha, source.dtype)
    return indexed.ScatterElements(x, places, cast(scaled, x.dtype), axis=along, reduction="add")


@aten("index_copy")
@_of_one_axis
def _index_copy(x: Value, dim: int, index: Value, source: Value) -> Value:
    along = axis(dim, x.rank)
    shape = [1] * x.rank
    shape[along] = -1
    return indexed.ScatterElements(x, Expand(Reshape(index, shape), Shape(source)), cast(source, x.dtype), axis=along)


@aten("index_fill")
@_of_one_axis
def _index_fill(x: Value, dim: int, index: Value, value: Any) -> Value:
    along = axis(dim, x.rank)
    shape = [1] * x.rank
    shape[along] = -1
    dims = sizes(x)
    dims[along] = sizes(index)[0] if index.rank else 1
    places = Expand(Reshape(index, shape), shape_value(dims))
    return indexed.ScatterElements(x, places, Expand(number(value, x.dtype), Shape(places)), axis=along)


# ---------------------------------------------------------------------- x[...], x[...] = y


def _plain_indices(x: Value, indices: list[Any]) -> list[Value | None]:
    """Masks become the places of what is true."""
    found: list[Value | None] = []
    for index in indices:
        if index is not None and index.dtype in (DType.Bool, DType.UInt8):
            places = indexed.NonZero(cast(index, DType.Bool))
            found += [part(places, 0, i) for i in range(index.rank)]
        else:
            found.append(index)
    return found + [None] * (x.rank - len(found))


def _grouped(x: Value, indices: list[Any]) -> tuple[Value, list[int], list[Value], list[int]]:
    """The data with indexed axes first, those axes, their indices, and where the result's new axes go back to."""
    full = _plain_indices(x, indices)
    used = [i for i, index in enumerate(full) if index is not None]
    rest = [i for i in range(x.rank) if i not in used]
    moved = Transpose(x, perm=[*used, *rest]) if used != list(range(len(used))) else x
    return moved, used, [v for v in full if v is not None], rest


def _back(rank: int, used: list[int], index_rank: int) -> list[int] | None:
    """The order that brings the indexed axes back to their place; None when it is the order already."""
    together = used == list(range(used[0], used[0] + len(used)))
    before = used[0] if together else 0
    if before == 0:
        return None
    kept = rank - len(used)
    return [*range(index_rank, index_rank + before), *range(index_rank), *range(index_rank + before, index_rank + kept)]


def _stacked(chosen: list[Value], moved: Value) -> Value:
    """Indices as rows of coordinates; negative ones count from the end."""
    wide = [cast(v, DType.Int64) for v in chosen]
    total = wide[0]
    for v in wide[1:]:
        total = Add(total, v)
    shape = Shape(total)
    columns = []
    for i, v in enumerate(wide):
        size = number(sizes(moved)[i], DType.Int64)
        safe = logic.Where(v < 0, v + size, v)
        columns.append(Unsqueeze(Expand(safe, shape) if len(wide) > 1 else safe, [total.rank]))
    return Concat(*columns, axis=total.rank) if len(columns) > 1 else columns[0]


@aten("index", "_unsafe_index")
def taken(x: Value, indices: list[Any]) -> Value:
    """``x[i, :, mask]``: tensors in some places, None in those taken whole."""
    if not any(i is not None for i in indices):
        return x
    moved, used, chosen, _ = _grouped(x, indices)
    if len(chosen) == 1:
        return indexed.Gather(x, cast(chosen[0], DType.Int64), axis=used[0])
    places = _stacked(chosen, moved)
    found = indexed.GatherND(moved, places)
    order = _back(x.rank, used, places.rank - 1)
    return found if order is None else Transpose(found, perm=order)


@aten("index_put", "_unsafe_index_put", "_index_put_impl")
def put(x: Value, indices: list[Any], values: Value, accumulate: bool = False, unsafe: bool = False) -> Value:
    """``x[i, :, mask] = values``; with ``accumulate``, added."""
    del unsafe
    only = [i for i in indices if i is not None]
    first = only[0]
    if len(only) == 1 and first.dtype is DType.Bool and indices[0] is first and not accumulate and _is_one(values):
        mask = (
            first
            if first.rank == x.rank
            else Reshape(first, shape_value([*sizes(first), *[1] * (x.rank - first.rank)]))
        )
        return logic.Where(mask, Reshape(cast(values, x.dtype), constant([], DType.Int64)), x)
    moved, used, chosen, rest = _grouped(x, indices)
    places = _stacked(chosen, moved)
    order = _back(x.rank, used, places.rank - 1)
    rows = shape_value([*sizes(places)[:-1], *[sizes(x)[i] for i in rest]])
    if order is None:
        updates = Expand(cast(values, x.dtype), rows)
    else:
        seen = [[*sizes(places)[:-1], *[sizes(x)[i] for i in rest]][i] for i in order]
        back = [order.index(i) for i in range(len(order))]
        updates = Transpose(Expand(cast(values, x.dtype), shape_value(seen)), perm=back)
    made = indexed.ScatterND(moved, places, updates, reduction="add" if accumulate else "none")
    if used == list(range(len(used))):
        return made
    forward = [*used, *rest]
    return Transpose(made, perm=[forward.index(i) for i in range(x.rank)])


def _is_one(value: Value) -> bool:
    return value.rank == 0 or value.shape.num_elements == 1


@aten("masked_select")
def _masked_select(x: Value, mask: Value) -> Value:
    value, chosen = x, cast(mask, DType.Bool)
    if x.shape != mask.shape:
        whole = Shape(Add(cast(x, DType.Float32), cast(mask, DType.Float32)))
        value, chosen = Expand(x, whole), Expand(chosen, whole)
    return indexed.Compress(Reshape(value, [-1]), Reshape(chosen, [-1]), axis=0)


@aten("masked_scatter")
def _masked_scatter(x: Value, mask: Value, source: Value) -> Value:
    from pyflame_rt.ops.onnx.slicing import Slice

    chosen = Expand(cast(mask, DType.Bool), Shape(x))
    places = Transpose(indexed.NonZero(chosen), perm=[1, 0])
    count = indexed.Gather(Shape(places), constant([0], DType.Int64))
    values = Slice(Reshape(source, [-1]), [0], count, [0])
    return indexed.ScatterND(x, places, cast(values, x.dtype))


@aten("nonzero")
def _nonzero(x: Value) -> Value:
    if x.rank == 0:
        raise refuse("nonzero of a scalar")
    return Transpose(indexed.NonZero(x), perm=[1, 0])


@aten("nonzero_numpy")
def places_of(x: Value) -> list[Value]:
    """For each axis where the elements are that are not zero."""
    places = indexed.NonZero(x)
    return [part(places, 0, i) for i in range(x.rank)]


@aten("argwhere")
def _argwhere(x: Value) -> Value:
    return _nonzero(x)


@aten("one_hot")
def _one_hot(x: Value, num_classes: int = -1) -> Value:
    count = wrap(ReduceMax(x, None, keepdims=0) + 1, int) if num_classes == -1 else num_classes
    return indexed.OneHot(x, number(count, DType.Int64), constant([0, 1], DType.Int64))


# ---------------------------------------------------------------------- order


@aten("topk")
def _topk(x: Value, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    if x.rank == 0:
        return x, number(0, DType.Int64)
    made = indexed.TopK(x, shape_value([k]), axis=axis(dim, x.rank), largest=int(largest), sorted=int(sorted))
    return made[0], made[1]


@aten("sort")
def _sort(x: Value, dim: Any = -1, descending: bool = False, *, stable: bool | None = None) -> Any:
    if isinstance(dim, bool) or dim is None:  # sort.stable: (x, stable, dim, descending)
        raise refuse("sort with stable as a position")
    del stable  # equal elements stay in order
    if x.rank == 0:
        return x, number(0, DType.Int64)
    along = axis(dim, x.rank)
    kind = cast(x, DType.Int32) if x.dtype is DType.Bool else x
    made = indexed.TopK(kind, shape_value([sizes(x)[along]]), axis=along, largest=int(descending), sorted=1)
    return cast(made[0], x.dtype), made[1]


@aten("sort.stable")
def _sort_stable(x: Value, *, stable: bool | None = None, dim: int = -1, descending: bool = False) -> Any:
    del stable
    return _sort(x, dim, descending)


@aten("argsort")
def _argsort(x: Value, dim: int = -1, descending: bool = False) -> Value:
    return _sort(x, dim, descending)[1]


@aten("kthvalue")
def _kthvalue(x: Value, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    along = axis(dim, x.rank)
    values, places = indexed.TopK(x, [int(k)], axis=along, largest=0, sorted=1)
    last = constant([int(k) - 1] if keepdim else int(k) - 1, DType.Int64)
    return indexed.Gather(values, last, axis=along), indexed.Gather(places, last, axis=along)


@aten("bucketize")
def _bucketize(x: Any, boundaries: Value, *, out_int32: bool = False, right: bool = False) -> Value:
    return _searchsorted(boundaries, number(x), out_int32=out_int32, right=right)


@aten("searchsorted")
def _searchsorted(
    sorted_sequence: Value, x: Any, *, out_int32: bool = False, right: bool = False, side: str | None = None,
    sorter: Any = None,
) -> Value:  # fmt: skip
    if sorter is not None or sorted_sequence.rank != 1:
        raise refuse("searchsorted in more than one sorted row")
    edges, values = promoted(sorted_sequence, x if isinstance(x, Value) else number(x))
    wide = Unsqueeze(values, [values.rank])
    after = wide >= edges if right or side == "right" else wide > edges
    kind = DType.Int32 if out_int32 else DType.Int64
    return ReduceSum(cast(after, kind), [values.rank], keepdims=0)


@aten("embedding_bag", "_embedding_bag")
def _embedding_bag(
    weight: Value, indices: Value, offsets: Value, scale_grad_by_freq: bool = False, mode: int = 0,
    sparse: bool = False, per_sample_weights: Value | None = None, include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Any:  # fmt: skip
    del scale_grad_by_freq, sparse
    if padding_idx not in (None, -1) or mode == 2:
        raise refuse("embedding_bag with padding_idx or mode='max'")
    rows = indexed.Gather(weight, indices)
    if per_sample_weights is not None:
        rows = rows * Unsqueeze(per_sample_weights, [1])
    starts = _bag_starts(offsets, include_last_offset)
    bags = static(sizes(starts)[0], "the number of bags")
    items = static(sizes(indices)[0], "the number of indices")
    place = constant(np.arange(items), DType.Int64)
    # The bag of an item: how many bags begin at or before it, less one.
    bag = ReduceSum(cast(Unsqueeze(place, [1]) >= starts, DType.Int64), [1], keepdims=0) - 1
    one_hot = cast(logic.Equal(Unsqueeze(constant(np.arange(bags), DType.Int64), [1]), bag), weight.dtype)
    total = one_hot @ rows
    if mode == 1:
        count = ReduceSum(one_hot, [1], keepdims=1)
        total = total / logic.Where(logic.Equal(count, constant(0.0, weight)), constant(1.0, weight), count)
    return total, bag, ReduceSum(one_hot, [1], keepdims=0), bag


def _bag_starts(offsets: Value, include_last: bool) -> Value:
    from pyflame_rt.importers.aten.shaping import sliced

    return sliced(offsets, 0, 0, -1) if include_last else offsets


@aten("cdist", "_cdist_forward", "_euclidean_dist")
def _cdist(x1: Value, x2: Value, p: float = 2.0, compute_mode: Any = None) -> Value:
    del compute_mode
    from pyflame_rt.importers.aten.reduce import _norm

    return _norm(Unsqueeze(x1, [x1.rank - 1]) - Unsqueeze(x2, [x2.rank - 2]), p, [-1])
