"""Gathering, scattering and selecting elements by index."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph import DimLike, DType, Node, TensorType
from pyflame_rt.graph.errors import InputError, ShapeMismatchError, UndeterminedError
from pyflame_rt.ops.core.guards import Within, at_least, at_most, has_rank, has_shape, length_of, same_size
from pyflame_rt.ops.core.registry import operator, primitive
from pyflame_rt.ops.core.size_arithmetic import known_ints
from pyflame_rt.ops.core.type_rules import normalize_axis, same, tensor_like
from pyflame_rt.ops.core.upgrade import Upgrade, upgrade
from pyflame_rt.ops.core.value import Value, constant
from pyflame_rt.ops.onnx.arithmetic import Mod, zeros_like

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = [
    "Compress",
    "Gather",
    "GatherElements",
    "GatherND",
    "NonZero",
    "OneHot",
    "Scatter",
    "ScatterElements",
    "ScatterND",
    "TensorScatter",
    "TopK",
    "Unique",
    "scatter_along",
]

_REDUCTIONS = {"none": None, "add": "add", "mul": "mul", "max": "max", "min": "min"}


def _inside(name: str, indices: Value, size: DimLike) -> Within:
    """Indices that name entries of an axis, from either end."""
    return Within(name, indices, None if size is None else -size, None if size is None else size - 1)


def _tuples_needs(data: Value, indices: Value, batch: int = 0) -> Iterator[Within]:
    """Index tuples on the last axis of the indices name places of the data after its batch axes."""
    at_least("the rank of indices", indices.rank, 1)
    depth = indices.shape[-1]
    if not isinstance(depth, int):
        return
    at_most("the length of index tuples", depth, data.rank - batch, "the axes of the data")
    for k in range(depth):
        part = None if indices.known is None else indices.known[..., k]
        yield _inside("indices", Value(indices.ref, indices.type, part), data.shape[batch + k])


def _mode(reduction: str) -> str | None:
    if reduction not in _REDUCTIONS:
        raise InputError(f"reduction is one of {', '.join(_REDUCTIONS)}, got {reduction!r}")
    return _REDUCTIONS[reduction]


# ---------------------------------------------------------------------- Gather


def _gather_type(data: Value, indices: Value, /, *, axis: int) -> TensorType:
    dims, picked = data.tensor_type.shape, indices.tensor_type.shape
    if dims is None or picked is None:
        return tensor_like(data, None)
    along = normalize_axis(axis, len(dims))
    return tensor_like(data, [*dims[:along], *picked, *dims[along + 1 :]])


def _gather_vjp(g: Value, _y: Value, data: Value, indices: Value, *, axis: int) -> tuple[Value | None, ...]:
    from pyflame_rt.ops.onnx.shape import Transpose, Unsqueeze

    along, width = normalize_axis(axis, data.rank), indices.rank
    picked = list(range(along, along + width))
    rows_first = [along, *(i for i in range(data.rank) if i != along)]
    whole = Transpose(zeros_like(data), perm=rows_first)
    order = [*picked, *(i for i in range(g.rank) if i not in picked)]
    summed = ScatterND(whole, Unsqueeze(indices, [-1]), Transpose(g, perm=order), reduction="add")
    return Transpose(summed, perm=np.argsort(rows_first).tolist()), None


def scatter_along(g: Value, places: Sequence[int], axis: int, size: int) -> Value:
    """The gradient of taking ``places`` along an axis of the given size."""
    from pyflame_rt.ops.onnx.shape import Expand, Transpose

    rest = [i for i in range(g.rank) if i != axis]
    rows = Transpose(g, perm=[axis, *rest])
    base = Expand(constant(0, g), [size, *[g.shape[i] for i in rest]])
    indices = constant(np.asarray(places, dtype=np.int64).reshape(-1, 1), DType.Int64)
    summed = ScatterND(base, indices, rows, reduction="add")
    return Transpose(summed, perm=np.argsort([axis, *rest]).tolist())


def _gather_needs(data: Value, indices: Value, /, *, axis: int) -> Iterator[Within]:
    yield _inside("indices", indices, data.shape[normalize_axis(axis, data.rank)])


@primitive(
    since=13,
    infer=_gather_type,
    shape_math=True,
    vjp=_gather_vjp,
    requires=_gather_needs,
    types="T Tind > T",
    kind="move",
    complex=True,
)
def Gather(ops: Any, data: Any, indices: Any, /, *, axis: int = 0) -> Any:
    """The entries of an axis that the indices name, in their shape."""
    return ops.take(data, indices, axis=normalize_axis(axis, len(data.shape)))


def _elements_needs(data: Value, indices: Value, /, *, axis: int) -> Iterator[Within]:
    along = normalize_axis(axis, data.rank)
    has_rank("indices", indices, data.rank)
    for i, (size, count) in enumerate(zip(data.shape, indices.shape, strict=True)):
        if i != along:
            at_most(f"axis {i} of indices", count, size, "that of the data")
    yield _inside("indices", indices, data.shape[along])


def _gather_elements_type(data: Value, indices: Value, /, *, axis: int) -> TensorType:
    return tensor_like(data, indices.tensor_type.shape)


def _gather_elements_vjp(g: Value, _y: Value, data: Value, indices: Value, *, axis: int) -> tuple[Value | None, ...]:
    return ScatterElements(zeros_like(data), indices, g, axis=axis, reduction="add"), None


@primitive(
    since=13,
    infer=_gather_elements_type,
    vjp=_gather_elements_vjp,
    requires=_elements_needs,
    types="T Tind > T",
    kind="move",
    complex=True,
)
def GatherElements(ops: Any, data: Any, indices: Any, /, *, axis: int = 0) -> Any:
    """For each place of the indices, the element they point at along an axis."""
    rank = len(data.shape)
    along = normalize_axis(axis, rank)
    # Indices may cover only the first part of the other axes.
    pairs = zip(data.shape, indices.shape, strict=True)
    ends = [size if i == along else min(size, n) for i, (size, n) in enumerate(pairs)]
    return ops.take_along_axis(ops.slice(data, [0] * rank, ends), indices, along)


def _gather_nd_type(data: Value, indices: Value, /, *, batch_dims: int) -> TensorType:
    dims, picked = data.tensor_type.shape, indices.tensor_type.shape
    depth = None if picked is None else picked[-1]
    if dims is None or picked is None or not isinstance(depth, int):
        return tensor_like(data, None)
    if batch_dims + depth > len(dims):
        raise ShapeMismatchError(f"index tuples of {depth} after {batch_dims} batch axes do not fit {dims}")
    return tensor_like(data, [*picked[:-1], *dims[batch_dims + depth :]])


def _gather_nd_vjp(g: Value, _y: Value, data: Value, indices: Value, *, batch_dims: int) -> tuple[Value | None, ...]:
    from pyflame_rt.ops.onnx.shape import Concat

    if batch_dims:
        lead = indices.shape[:-1]
        if not all(isinstance(d, int) for d in lead):
            raise UndeterminedError("the sizes of the indices are only known when running")
        grid = np.stack(np.indices(tuple(lead))[:batch_dims], axis=-1)  # type: ignore[arg-type]
        indices = Concat(constant(grid, DType.Int64), indices, axis=-1)
    return ScatterND(zeros_like(data), indices, g, reduction="add"), None


def _gather_nd_needs(data: Value, indices: Value, /, *, batch_dims: int) -> Iterator[Within]:
    if not 0 <= batch_dims < min(data.rank, indices.rank):
        raise InputError(f"batch_dims is {batch_dims}, but data has {data.rank} axes and indices {indices.rank}")
    for i in range(batch_dims):
        same_size(f"axis {i} of indices", indices.shape[i], data.shape[i], "that of the data")
    yield from _tuples_needs(data, indices, batch_dims)


@primitive(
    since=13,
    infer=_gather_nd_type,
    vjp=_gather_nd_vjp,
    requires=_gather_nd_needs,
    types="T int64 > T",
    kind="move",
    complex=True,
)
def GatherND(ops: Any, data: Any, indices: Any, /, *, batch_dims: int = 0) -> Any:
    """Slices of the data at the index tuples on the last axis of the indices."""
    return ops.gather_nd(data, indices, batch_dims)


# ---------------------------------------------------------------------- Scatter


def _scatter_vjp(
    g: Value, y: Value, data: Value, indices: Value, updates: Value, *, axis: int, reduction: str
) -> tuple[Value | None, ...]:
    if reduction in ("max", "min"):
        return _extreme_vjp(g, y, data, indices, updates, axis)
    taken = GatherElements(g, indices, axis=axis)
    if reduction == "add":
        return g, None, taken
    if reduction != "none":
        raise UndeterminedError(f"ScatterElements with reduction {reduction!r} has no gradient")
    return ScatterElements(g, indices, zeros_like(updates), axis=axis), None, taken


def _extreme_vjp(
    g: Value, y: Value, data: Value, indices: Value, updates: Value, axis: int
) -> tuple[Value | None, ...]:
    """The gradient goes to what equals the result, in equal shares."""
    from pyflame_rt.ops.onnx.cast import CastLike
    from pyflame_rt.ops.onnx.logic import Equal

    stayed = CastLike(Equal(data, y), g)
    won = CastLike(Equal(updates, GatherElements(y, indices, axis=axis)), g)
    share = g / ScatterElements(stayed, indices, won, axis=axis, reduction="add")
    return share * stayed, None, GatherElements(share, indices, axis=axis) * won


def _scatter_needs(
    data: Value, indices: Value, updates: Value, /, *, axis: int, reduction: str = "none"
) -> Iterator[Within]:
    _mode(reduction)
    has_shape("updates", updates, indices.shape, "that of indices")
    yield from _elements_needs(data, indices, axis=axis)


@primitive(
    since=18, infer=same, vjp=_scatter_vjp, requires=_scatter_needs, types="T Tind T > T", kind="move", complex=True
)
def ScatterElements(
    ops: Any, data: Any, indices: Any, updates: Any, /, *, axis: int = 0, reduction: str = "none"
) -> Any:
    """A copy of the data, updated at the elements the indices point at along an axis."""
    along = normalize_axis(axis, len(data.shape))
    return ops.put_along_axis(data, indices, updates, along, _mode(reduction))


@operator(since=11)
def Scatter(data: Value, indices: Value, updates: Value, /, *, axis: int = 0) -> Value:
    """The old name of ScatterElements."""
    return ScatterElements(data, indices, updates, axis=axis)


def _scatter_nd_vjp(
    g: Value, _y: Value, _data: Value, indices: Value, updates: Value, *, reduction: str
) -> tuple[Value | None, ...]:
    taken = GatherND(g, indices)
    if reduction == "add":
        return g, None, taken
    if reduction != "none":
        raise UndeterminedError(f"ScatterND with reduction {reduction!r} has no gradient")
    return ScatterND(g, indices, zeros_like(updates)), None, taken


def _scatter_nd_needs(data: Value, indices: Value, updates: Value, /, *, reduction: str) -> Iterator[Within]:
    _mode(reduction)
    needs = list(_tuples_needs(data, indices))
    depth = indices.shape[-1]
    if isinstance(depth, int):
        has_shape("updates", updates, [*indices.shape[:-1], *data.shape[depth:]])
    yield from needs


@primitive(
    since=18,
    infer=same,
    vjp=_scatter_nd_vjp,
    requires=_scatter_nd_needs,
    types="T int64 T > T",
    kind="move",
    complex=True,
)
def ScatterND(ops: Any, data: Any, indices: Any, updates: Any, /, *, reduction: str = "none") -> Any:
    """A copy of the data, its slices updated at the index tuples."""
    return ops.scatter_nd(data, indices, updates, _mode(reduction))


def _tensor_scatter_needs(
    past_cache: Value, update: Value, write_indices: Value | None = None, /, *, axis: int, mode: str
) -> Iterator[Within]:
    if mode not in ("linear", "circular"):
        raise InputError(f"mode is linear or circular, got {mode!r}")
    along = normalize_axis(axis, past_cache.rank)
    if along == 0:
        raise InputError("axis 0 is the batch axis")
    has_shape("update", update, [None if i == along else n for i, n in enumerate(past_cache.shape)])
    room, new = past_cache.shape[along], update.shape[along]
    at_most("the length of update", new, room, "that of the cache")
    has_shape("write_indices", write_indices, past_cache.shape[:1], "batch")
    if write_indices is not None:
        last = None if room is None or new is None or mode == "circular" else room - new
        yield Within("write_indices", write_indices, 0, last)


@operator(since=24, infer=same, requires=_tensor_scatter_needs, types="T T int64 > T")
def TensorScatter(
    past_cache: Value, update: Value, write_indices: Value | None = None, /, *, axis: int = -2, mode: str = "linear"
) -> Value:
    """A cache with new entries written along its sequence axis, at one place per batch entry."""
    from pyflame_rt.ops.onnx.shape import Expand, Range, Reshape
    from pyflame_rt.ops.onnx.shape import Shape as ShapeOf

    along = normalize_axis(axis, past_cache.rank)
    zero, one, at = (constant(v, DType.Int64) for v in (0, 1, along))
    columns = [-1 if i == along else 1 for i in range(past_cache.rank)]
    places = Reshape(Range(zero, Gather(ShapeOf(update), at), one), columns)
    if write_indices is not None:
        places = places + Reshape(write_indices, [-1, *[1] * (past_cache.rank - 1)])
    if mode == "circular":
        places = Mod(places, Gather(ShapeOf(past_cache), at))
    return ScatterElements(past_cache, Expand(places, ShapeOf(update)), update, axis=along)


# ---------------------------------------------------------------------- OneHot, TopK


def _one_hot_needs(indices: Value, depth: Value, values: Value, /, *, axis: int) -> Iterator[Within]:
    normalize_axis(axis, indices.rank + 1)
    has_rank("depth", depth, 0, 1)
    same_size("the length of depth", length_of(depth), 1, "one number")
    has_shape("values", values, [2], "off and on")
    yield Within("depth", depth, 0)


@operator(since=28, requires=_one_hot_needs, types="T1 T2 T3 > T3", kind="move", known=(1,))
def OneHot(indices: Value, depth: Value, values: Value, /, *, axis: int = -1) -> Value:
    """The on value where a new axis has the index's number, the off value elsewhere."""
    from pyflame_rt.ops.onnx.cast import Cast
    from pyflame_rt.ops.onnx.logic import Equal, Where
    from pyflame_rt.ops.onnx.shape import Range, Reshape, Unsqueeze

    place = normalize_axis(axis, indices.rank + 1)
    count = Reshape(Cast(depth, to=DType.Int64), constant([], DType.Int64))
    index = Cast(indices, to=DType.Int64)
    index = Where(index < 0, index + count, index)
    numbers = Range(constant(0, DType.Int64), count, constant(1, DType.Int64))
    column = Reshape(numbers, [-1, *[1] * (indices.rank - place)])
    off, on = (Gather(values, constant(i, DType.Int64)) for i in (0, 1))
    return Where(Equal(Unsqueeze(index, [place]), column), on, off)


@upgrade("Scatter", to=11)
def scatter_was_renamed(node: Node, up: Upgrade) -> Node:
    """Version 11 gave Scatter the name ScatterElements."""
    return node.replace(op_type="ScatterElements")


@upgrade("OneHot", to=11)
def negative_indices_became_valid(node: Node, up: Upgrade) -> Node:
    """Version 9 gave the off value for every index below 0; the depth itself does that now."""
    to = {"to": DType.Int64.onnx}
    indices, depth = (up.emit("Cast", [name], to) for name in node.inputs[:2])
    below = up.emit("Less", [indices, up.constant(0, np.int64)])
    return node.replace(inputs=[up.emit("Where", [below, depth, indices]), *node.inputs[1:]])


def _top_k_type(X: Value, K: Value, /, *, axis: int, **_: Any) -> tuple[TensorType, TensorType]:
    if X.tensor_type.shape is None:
        return tensor_like(X, None), tensor_like(X, None, DType.Int64)
    dims: list[DimLike] = list(X.shape)
    dims[normalize_axis(axis, len(dims))] = (known_ints(K) or [None])[0]
    return tensor_like(X, dims), tensor_like(X, dims, DType.Int64)


def _top_k_vjp(
    g: tuple[Value | None, ...], y: tuple[Value, ...], x: Value, _k: Value, *, axis: int, **_: Any
) -> tuple[Value | None, ...]:
    return None if g[0] is None else ScatterElements(zeros_like(x), y[1], g[0], axis=axis), None


def _top_k_needs(X: Value, K: Value, /, *, axis: int, **_: Any) -> Iterator[Within]:
    same_size("the length of K", length_of(K), 1, "one number")
    has_rank("K", K, 0, 1)
    yield Within("K", K, 0, X.shape[normalize_axis(axis, X.rank)])


@primitive(
    since=24,
    infer=_top_k_type,
    vjp=_top_k_vjp,
    requires=_top_k_needs,
    types="T int64 > T int64",
    kind="reduce",
    known=(1,),
)
def TopK(ops: Any, X: Any, K: Any, /, *, axis: int = -1, largest: int = 1, sorted: int = 1) -> Any:
    """The largest or smallest elements along an axis in order, and their indices."""
    along, count = normalize_axis(axis, len(X.shape)), int(ops.to_numpy(K).item())
    return ops.top_k(X, count, along, bool(largest))


@upgrade("TopK", to=10)
def k_became_an_input(node: Node, up: Upgrade) -> Node:
    """Before 10, k was an attribute."""
    kept = {name: value for name, value in node.attributes.items() if name != "k"}
    return node.replace(inputs=[node.inputs[0], up.constant([node.get_attr("k")], np.int64, "k")], attributes=kept)


# ---------------------------------------------------------------------- NonZero, Compress, Unique


def _non_zero_type(X: Value, /) -> TensorType:
    dims = X.tensor_type.shape
    return tensor_like(X, [None if dims is None else len(dims), None], DType.Int64)


@primitive(since=13, infer=_non_zero_type, types="T > int64")
def NonZero(ops: Any, X: Any, /) -> Any:
    """Places of elements that are not 0, one column each."""
    if not X.shape:
        return ops.zeros((0, int(bool(ops.to_numpy(X).item()))), np.int64)
    return ops.cast(ops.stack(list(ops.nonzero(X)), 0), np.int64)


def _compress_needs(input: Value, condition: Value, /, *, axis: int | None) -> None:
    has_rank("condition", condition, 1)
    if axis is not None:
        normalize_axis(axis, input.rank)


@operator(since=28, requires=_compress_needs, types="T bool > T")
def Compress(input: Value, condition: Value, /, *, axis: int | None = None) -> Value:
    """The entries of an axis (or all elements in one) whose condition is true; conditions beyond the axis are ignored.

    ONNX's text asks for a condition that is not longer; onnxruntime takes its first part, and so do we.
    """
    from pyflame_rt.ops.onnx.shape import Reshape, Squeeze
    from pyflame_rt.ops.onnx.shape import Shape as ShapeOf
    from pyflame_rt.ops.onnx.slicing import Slice

    data = Reshape(input, [-1]) if axis is None else input
    along = 0 if axis is None else normalize_axis(axis, data.rank)
    count, size = condition.shape[0], data.shape[along]
    if not (isinstance(count, int) and isinstance(size, int) and count <= size):
        condition = Slice(condition, constant([0], DType.Int64), ShapeOf(data, start=along, end=along + 1))
    return Gather(data, Squeeze(NonZero(condition), [0]), axis=along)


def _unique_type(X: Value, /, *, axis: int | None, sorted: int) -> tuple[TensorType, ...]:
    flat = tensor_like(X, [None], DType.Int64)
    dims = X.tensor_type.shape
    if axis is None or dims is None:
        return tensor_like(X, [None] if axis is None else None), flat, flat, flat
    along = normalize_axis(axis, len(dims))
    inverse = tensor_like(X, [dims[along]], DType.Int64)
    return tensor_like(X, [None if i == along else d for i, d in enumerate(dims)]), flat, inverse, flat


@primitive(since=28, infer=_unique_type, host=True, types="T > T int64 int64 int64")
def Unique(_ops: Any, X: Any, /, *, axis: int | None = None, sorted: int = 1) -> Any:
    """The different elements or slices, where each came first, which each is, and how often."""
    along = 0 if axis is None else normalize_axis(axis, X.ndim)
    rows = X.reshape(-1, 1) if axis is None else np.moveaxis(X, along, 0).reshape(X.shape[along], -1)
    first, inverse, counts = _group(rows, bool(sorted))
    found = X.reshape(-1)[first] if axis is None else np.take(X, first, axis=along)
    return found, first, inverse, counts


def _group(rows: np.ndarray[Any, Any], ordered: bool) -> tuple[np.ndarray[Any, Any], ...]:
    """First occurrence, number of the group and size of each group of equal rows."""
    # Comparing Python tuples works alike for every element type, strings and bfloat16 included.
    keys = [tuple(row) for row in rows.tolist()]
    places: dict[Any, int] = {}
    for i, key in enumerate(keys):
        places.setdefault(key, i)
    groups = list(places)
    if ordered:
        groups.sort(key=_sort_key)
    numbers = {key: i for i, key in enumerate(groups)}
    inverse = np.asarray([numbers[key] for key in keys], dtype=np.int64)
    first = np.asarray([places[key] for key in groups], dtype=np.int64)
    return first, inverse, np.bincount(inverse, minlength=len(groups)).astype(np.int64)


def _sort_key(row: tuple[Any, ...]) -> tuple[Any, ...]:
    # NaN goes last, complex numbers by real part first.
    return tuple((v != v, v.real, v.imag) if isinstance(v, (float, complex)) else v for v in row)
