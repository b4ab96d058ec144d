"""Operators that change or read the shape of a tensor and move no element out of order.

``Transpose`` and the two block operators are here too. Neighbours are imported so that one
module offers the whole family: cutting and joining (``slicing``), making (``creation``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph import Dim, DimLike, DType, Node, TensorType
from pyflame_rt.graph import Shape as Sizes
from pyflame_rt.graph.errors import InputError, ShapeMismatchError
from pyflame_rt.ops.core.registry import operator, primitive
from pyflame_rt.ops.core.size_arithmetic import known_ints, product, size_values, vector_length
from pyflame_rt.ops.core.type_rules import broadcast_shapes, normalize_axes, tensor_like
from pyflame_rt.ops.core.upgrade import Upgrade, upgrade
from pyflame_rt.ops.core.value import Value
from pyflame_rt.ops.onnx.arithmetic import runtime_shape, unbroadcast
from pyflame_rt.ops.onnx.creation import Constant, ConstantOfShape, Dims, EyeLike, Range, Trilu
from pyflame_rt.ops.onnx.slicing import CenterCropPad, Concat, Pad, ReverseSequence, Slice, Split, Tile

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "CenterCropPad",
    "Concat",
    "Constant",
    "ConstantOfShape",
    "DepthToSpace",
    "Dims",
    "Expand",
    "EyeLike",
    "Flatten",
    "Pad",
    "Range",
    "Reshape",
    "ReverseSequence",
    "Shape",
    "Size",
    "Slice",
    "SpaceToDepth",
    "Split",
    "Squeeze",
    "Tile",
    "Transpose",
    "Trilu",
    "Unsqueeze",
]


def as_ints(ops: Any, x: Any) -> list[Any]:
    """A small integer input as Python numbers (or symbolic sizes while inferring)."""
    return ops.to_numpy(x).ravel().tolist()


def _reshaped(g: Value, _y: Value, x: Value, *rest: Value | None, **_: Any) -> tuple[Value | None, ...]:
    return (Reshape(g, runtime_shape(x), allowzero=1), *[None] * len(rest))


# ---------------------------------------------------------------------- Reshape


def resolve_reshape(old: Sequence[DimLike] | None, sizes: Sequence[Any], allowzero: int) -> list[DimLike]:
    """Target sizes with 0 (copy) and -1 (the rest) filled in, as far as they are known."""
    result, copied, hole = list(sizes), set[int](), None
    for i, size in enumerate(sizes):
        if size == 0 and not allowzero:
            if old is not None and i >= len(old):
                raise ShapeMismatchError(f"size {i} of {list(sizes)} is to be copied, but the rank is {len(old)}")
            result[i] = None if old is None else old[i]
            copied.add(i)
        elif isinstance(size, int) and size < 0:
            if size < -1 or hole is not None:
                raise ShapeMismatchError(f"a shape has sizes and at most one -1, got {list(sizes)}")
            hole = i
    if hole is not None:
        result[hole] = None if old is None else _remaining(old, result, copied, hole)
    elif old is not None:
        _check_counts(old, result)
    return result


def _remaining(old: Sequence[DimLike], new: Sequence[DimLike], copied: set[int], hole: int) -> DimLike:
    """What -1 stands for. Equal sizes cancel first: unknown ones that are copied, and sums."""
    above = [d for i, d in enumerate(old) if i not in copied]
    below: list[DimLike] = []
    for i, size in enumerate(new):
        if i == hole or i in copied:
            continue
        if size is not None and size in above:
            above.remove(size)
        else:
            below.append(size)
    count, each = product(above), product(below)
    if count is None or each is None:
        return None
    if each == 0 or (isinstance(count, int) and isinstance(each, int) and count % each):
        raise ShapeMismatchError(f"cannot reshape {Sizes(old)} to {_text(new, hole)}")
    return count // each


def _check_counts(old: Sequence[DimLike], new: Sequence[DimLike]) -> None:
    before, after = product(old), product(new)
    if isinstance(before, int) and isinstance(after, int) and before != after:
        raise ShapeMismatchError(f"cannot reshape {Sizes(old)} ({before} elements) to {list(new)} ({after} elements)")


def _text(new: Sequence[DimLike], hole: int) -> str:
    return str([-1 if i == hole else d for i, d in enumerate(new)])


def _reshape_type(data: Value, shape: Value, /, *, allowzero: int) -> TensorType:
    sizes = known_ints(shape)
    if sizes is not None:
        return tensor_like(data, resolve_reshape(data.tensor_type.shape, sizes, allowzero))
    rank = vector_length(shape)
    return tensor_like(data, None if rank is None else [None] * rank)


@primitive(
    since=25,
    infer=_reshape_type,
    shape_math=True,
    vjp=_reshaped,
    types="T int64 > T",
    kind="move",
    known=(1,),
    complex=True,
)
def Reshape(ops: Any, data: Any, shape: Any, /, *, allowzero: int = 0) -> Any:
    """The same elements in another shape; 0 copies a size, -1 stands for what is left."""
    return ops.reshape(data, resolve_reshape(data.shape, as_ints(ops, shape), allowzero))


@upgrade("Reshape", to=5)
def shape_became_an_input(node: Node, up: Upgrade) -> Node:
    """Before 5, the shape was an attribute."""
    sizes = up.constant(node.get_attr("shape", []), np.int64, "shape")
    return node.replace(inputs=[node.inputs[0], sizes], attributes={})


# ---------------------------------------------------------------------- Expand, Transpose


def _expand_vjp(g: Value, _y: Value, x: Value, _shape: Value) -> tuple[Value | None, ...]:
    return unbroadcast(g, x), None


def _wanted(sizes: Sequence[DimLike]) -> Sizes:
    """Sizes to broadcast to, which are never left open."""
    for place, size in enumerate(sizes):
        if isinstance(size, int) and size < 0:
            raise InputError(f"shape is {size} at [{place}], which is out of range: it must be at least 0")
    return Sizes(sizes)


def _expand_type(input: Value, shape: Value, /) -> TensorType:
    sizes, old = known_ints(shape), input.tensor_type.shape
    if sizes is not None:
        return tensor_like(input, broadcast_shapes(old, _wanted(sizes)))
    rank = vector_length(shape)
    if old is None or rank is None:
        return tensor_like(input, None)
    # A size other than 1 survives any broadcasting.
    own = [d if isinstance(d, int) and d != 1 else None for d in old]
    return tensor_like(input, [*[None] * (rank - len(own)), *own])


@primitive(
    since=13,
    infer=_expand_type,
    shape_math=True,
    vjp=_expand_vjp,
    types="T int64 > T",
    kind="move",
    known=(1,),
    complex=True,
)
def Expand(ops: Any, input: Any, shape: Any, /) -> Any:
    """Broadcast to what the input's shape and the given one have in common."""
    sizes = as_ints(ops, shape)
    target = broadcast_shapes(Sizes(input.shape), _wanted(sizes))
    return ops.broadcast_to(input, tuple(target or ()))


def _permutation(perm: Sequence[int] | None, rank: int) -> list[int]:
    if perm is None:
        return list(reversed(range(rank)))
    order = normalize_axes(perm, rank, "perm")
    if len(order) != rank:
        raise ShapeMismatchError(f"perm {list(perm)} must name each of the {rank} axes once")
    return order


def _transpose_type(data: Value, /, *, perm: list[int] | None) -> TensorType:
    dims = data.tensor_type.shape
    if dims is None:
        return tensor_like(data, [None] * len(perm) if perm is not None else None)
    return tensor_like(data, [dims[i] for i in _permutation(perm, len(dims))])


def _transpose_vjp(g: Value, _y: Value, _x: Value, *, perm: list[int] | None) -> tuple[Value]:
    return (Transpose(g) if perm is None else Transpose(g, perm=np.argsort(_permutation(perm, len(perm))).tolist()),)


@primitive(
    since=25, infer=_transpose_type, shape_math=True, vjp=_transpose_vjp, types="T > T", kind="move", complex=True
)
def Transpose(ops: Any, data: Any, /, *, perm: list[int] | None = None) -> Any:
    """Axes in another order, reversed when none is given."""
    return ops.transpose(data, _permutation(perm, len(data.shape)))


# ---------------------------------------------------------------------- Squeeze, Unsqueeze, Flatten


def squeezed(dims: Sequence[DimLike], axes: Sequence[int] | None) -> list[DimLike] | None:
    """Sizes without axes of size 1; None when it takes running to know which those are."""
    if axes is None:
        return [d for d in dims if d != 1] if all(isinstance(d, int) for d in dims) else None
    drop = normalize_axes(axes, len(dims))
    for axis in drop:
        size = dims[axis]
        if isinstance(size, int) and size != 1:
            raise ShapeMismatchError(f"axis {axis} of {Sizes(dims)} has size {size}, only size 1 can be squeezed")
    return [d for i, d in enumerate(dims) if i not in drop]


def _squeeze_type(data: Value, axes: Value | None = None, /) -> TensorType:
    dims = data.tensor_type.shape
    if dims is None or (axes is not None and axes.known is None):
        return tensor_like(data, None)
    return tensor_like(data, squeezed(dims, known_ints(axes)))


@primitive(
    since=25,
    infer=_squeeze_type,
    shape_math=True,
    vjp=_reshaped,
    types="T int64 > T",
    kind="move",
    known=(1,),
    complex=True,
)
def Squeeze(ops: Any, data: Any, axes: Any = None, /) -> Any:
    """Without the given axes of size 1, or without all of them."""
    return ops.reshape(data, squeezed(data.shape, None if axes is None else as_ints(ops, axes)))


def unsqueezed(dims: Sequence[DimLike], axes: Sequence[int]) -> list[DimLike]:
    """Sizes with axes of size 1 at the given places of the result."""
    rank = len(dims) + len(axes)
    places, old = normalize_axes(axes, rank), iter(dims)
    return [1 if i in places else next(old) for i in range(rank)]


def _unsqueeze_type(data: Value, axes: Value, /) -> TensorType:
    dims, places = data.tensor_type.shape, known_ints(axes)
    if dims is None or places is None:
        return tensor_like(data, None)
    return tensor_like(data, unsqueezed(dims, places))


@primitive(
    since=25,
    infer=_unsqueeze_type,
    shape_math=True,
    vjp=_reshaped,
    types="T int64 > T",
    kind="move",
    known=(1,),
    complex=True,
)
def Unsqueeze(ops: Any, data: Any, axes: Any, /) -> Any:
    """New axes of size 1, at the given places of the result."""
    return ops.reshape(data, unsqueezed(data.shape, as_ints(ops, axes)))


@upgrade(["Squeeze", "Unsqueeze"], to=13)
def axes_became_an_input(node: Node, up: Upgrade) -> Node:
    """Before 13, the axes were an attribute."""
    if not node.has_attr("axes"):
        return node
    axes = up.constant(node.get_attr("axes"), np.int64, "axes")
    return node.replace(inputs=[node.inputs[0], axes], attributes={})


def _flattened(dims: Sequence[DimLike], axis: int) -> list[DimLike]:
    rank = len(dims)
    if not -rank <= axis <= rank:
        raise ShapeMismatchError(f"axis {axis} is out of range for a tensor of rank {rank}")
    cut = axis + rank if axis < 0 else axis
    return [product(dims[:cut]), product(dims[cut:])]


def _flatten_type(input: Value, /, *, axis: int) -> TensorType:
    dims = input.tensor_type.shape
    return tensor_like(input, [None, None] if dims is None else _flattened(dims, axis))


@operator(since=25, infer=_flatten_type, types="T > T", kind="move", complex=True)
def Flatten(input: Value, /, *, axis: int = 1) -> Value:
    """A matrix: the axes before ``axis`` as rows, the others as columns."""
    return Reshape(input, _flattened(input.shape, axis), allowzero=1)


# ---------------------------------------------------------------------- Shape, Size


def _shape_type(data: Value, /, *, start: int, end: int | None) -> Value:
    dims = data.tensor_type.shape
    if dims is None:
        return Value(None, TensorType(DType.Int64, Sizes([None])))
    part = dims[_shape_slice(len(dims), start, end)]
    return Value(None, TensorType(DType.Int64, Sizes([len(part)])), size_values(part))


def _shape_slice(rank: int, start: int, end: int | None) -> slice:
    low, high, _ = slice(start, end).indices(rank)
    return slice(low, max(low, high))


@primitive(since=25, infer=_shape_type, types="T > int64", kind="move", complex=True)
def Shape(ops: Any, data: Any, /, *, start: int = 0, end: int | None = None) -> Any:
    """The sizes of the axes from ``start`` to ``end``."""
    sizes = tuple(data.shape)[_shape_slice(len(data.shape), start, end)]
    return ops.from_numpy(np.asarray(sizes, dtype=np.int64))


def _size_type(data: Value, /) -> Value:
    dims = data.tensor_type.shape
    count = None if dims is None else product(dims)
    known = None
    if count is not None:
        known = np.empty((), dtype=object if isinstance(count, Dim) else np.int64)
        known[()] = count
    return Value(None, TensorType(DType.Int64, Sizes([])), known)


@primitive(since=25, infer=_size_type, types="T > int64", complex=True)
def Size(ops: Any, data: Any, /) -> Any:
    """The number of elements."""
    return ops.from_numpy(np.asarray(product(data.shape), dtype=np.int64))


# ---------------------------------------------------------------------- blocks


def _check_mode(mode: str) -> None:
    if mode not in ("DCR", "CRD"):
        raise InputError(f"mode is DCR or CRD, got {mode!r}")


def _depth_to_space_type(input: Value, /, *, blocksize: int, mode: str) -> TensorType:
    _check_mode(mode)
    if input.tensor_type.shape is None:
        return tensor_like(input, [None] * 4)
    n, c, h, w = input.shape
    depth = None if c is None else c // (blocksize * blocksize)
    return tensor_like(input, [n, depth, *[None if d is None else d * blocksize for d in (h, w)]])


@operator(since=28, infer=_depth_to_space_type, types="T > T", kind="move")
def DepthToSpace(input: Value, /, *, blocksize: int, mode: str = "DCR") -> Value:
    """Channels spread over blocks of pixels."""
    n, c, h, w = input.shape
    b, depth = blocksize, _quotient(c, blocksize * blocksize, "channels")
    if mode == "DCR":
        split = Transpose(Reshape(input, [n, b, b, depth, h, w]), perm=[0, 3, 4, 1, 5, 2])
    else:
        split = Transpose(Reshape(input, [n, depth, b, b, h, w]), perm=[0, 1, 4, 2, 5, 3])
    return Reshape(split, [n, depth, _times(h, b), _times(w, b)])


def _space_to_depth_type(input: Value, /, *, blocksize: int, mode: str) -> TensorType:
    _check_mode(mode)
    if input.tensor_type.shape is None:
        return tensor_like(input, [None] * 4)
    n, c, h, w = input.shape
    depth = None if c is None else c * blocksize * blocksize
    return tensor_like(input, [n, depth, *[None if d is None else d // blocksize for d in (h, w)]])


@operator(since=28, infer=_space_to_depth_type, types="T > T", kind="move")
def SpaceToDepth(input: Value, /, *, blocksize: int, mode: str = "DCR") -> Value:
    """Blocks of pixels gathered into channels."""
    n, c, h, w = input.shape
    b, rows, columns = blocksize, _quotient(h, blocksize, "height"), _quotient(w, blocksize, "width")
    split = Reshape(input, [n, c, rows, b, columns, b])
    split = Transpose(split, perm=[0, 3, 5, 1, 2, 4] if mode == "DCR" else [0, 1, 3, 5, 2, 4])
    return Reshape(split, [n, _times(c, b * b), rows, columns])


def _quotient(size: DimLike, divisor: int, what: str) -> Any:
    if isinstance(size, int) and size % divisor:
        raise ShapeMismatchError(f"{what} {size} cannot be divided by {divisor}")
    return None if size is None else size // divisor


def _times(size: DimLike, factor: int) -> Any:
    return None if size is None else size * factor
