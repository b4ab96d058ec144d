"""Tensors from data, and tensors of one value, of ranges, of diagonals."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame.devices import Device
from pyflame.dtypes import DType, WrongTypeError, get_default_dtype, scalar_dtype, to_dtype
from pyflame.lazy import leaf
from pyflame.memory_formats import check_format
from pyflame.ops.core import Handle, as_tensor, as_type, call, cast, is_scalar, scalar, sizes_of, wrap
from pyflame_rt.graph.named_arguments import names_arguments
from pyflame_rt.graph.types import Shape
from pyflame_rt.ops.onnx.cast import BitCast, Identity
from pyflame_rt.ops.onnx.logic import Equal
from pyflame_rt.ops.onnx.shape import Expand

if TYPE_CHECKING:
    from pyflame.layout import MeshLayout
    from pyflame.tensors import Tensor


def _finish(t: Tensor, layout: MeshLayout | None, requires_grad: bool, device: Any = None) -> Tensor:
    if device is not None:
        Device.of(device)
    if layout is not None:
        try:
            t._value.layout = layout.for_shape(t.shape)
        except AttributeError:
            raise TypeError(f"layout must be a MeshLayout. Received: {type(layout).__name__}") from None
    return t.requires_grad_() if requires_grad else t


def tensor(
    data: Any,
    dtype: Any = None,
    *,
    layout: MeshLayout | None = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """A tensor of the values of a list, an array or a number.

    Without a dtype that of an array is kept; Python's ints give int64, bools bool, floats the default dtype.

    Example:
        >>> import pyflame as pf, numpy as np
        >>> pf.tensor([1, 2]).dtype, pf.tensor([1, 2.5]).dtype, pf.tensor(np.zeros(2, np.int8)).dtype
        (DType.int64, DType.float32, DType.int8)
    """
    if isinstance(data, Handle):
        made = as_type(data.detach(), to_dtype(dtype or data.dtype))  # type: ignore[attr-defined]
        return _finish(made if made is not data else made.clone(), layout, requires_grad, device)
    return _finish(wrap(_leaf_of(data, dtype)), layout, requires_grad, device)


def _leaf_of(data: Any, dtype: Any) -> Any:
    from pyflame.interop import to_array

    kind = None if dtype is None else to_dtype(dtype)
    array = to_array(data)
    if kind is None:
        kind = _inferred(data, array)
    _refuse_parts(array, kind)
    try:
        return leaf(np.array(array, kind.numpy, order="C", copy=True), kind)
    except (TypeError, ValueError, OverflowError) as error:
        text = f"{type(data).__name__} does not make a tensor of {kind}: {error}"
        raise (TypeError if array.dtype.kind in "OUSV" else ValueError)(text) from None


def _refuse_parts(array: np.ndarray[Any, Any], kind: DType) -> None:
    """Refuse to lose imaginary parts."""
    if array.dtype.kind == "c" and not kind.is_complex:
        raise WrongTypeError(f"complex numbers do not become {kind.name}; take the real part, as in array.real")


def _inferred(data: Any, array: np.ndarray[Any, Any]) -> DType:
    """The element type of data that names none: its own where it has one, else that of Python's numbers."""
    first = data
    while isinstance(first, (list, tuple)) and first:
        first = first[0]
    typed = hasattr(first, "dtype") or hasattr(first, "__dlpack__") or isinstance(data, memoryview)
    if typed or array.dtype.kind in "biu":
        return to_dtype(array.dtype)
    return get_default_dtype().to_complex() if array.dtype.kind == "c" else get_default_dtype()


def of_kind(args: tuple[Any, ...], dtype: DType) -> Tensor:
    """What torch's constructors of one element type make: of sizes (zeros), or of the elements of anything else."""
    if len(args) == 1 and (isinstance(args[0], Shape) or not is_scalar(args[0])):
        return zeros(args[0], dtype=dtype) if isinstance(args[0], Shape) else tensor(args[0], dtype)
    if not all(isinstance(size, (int, np.integer)) and not isinstance(size, bool) for size in args):
        raise TypeError(f"sizes are whole numbers; for a tensor of one number write pf.tensor. Received: {args}")
    return zeros(args or (0,), dtype=dtype)


@names_arguments
def from_numpy(array: Any, dtype: Any = None, *, layout: MeshLayout | None = None) -> Tensor:
    """A tensor with a copy of a NumPy array, in its element type.

    Example:
        >>> import pyflame as pf, numpy as np
        >>> pf.from_numpy(np.arange(3, dtype=np.int32))
        tensor([0, 1, 2], dtype=int32)
    """
    if not isinstance(array, (np.ndarray, np.generic)):
        raise TypeError(f"from_numpy takes a NumPy array, got {type(array).__name__}; use tensor()")
    return tensor(array, dtype, layout=layout)


def asarray(data: Any, dtype: Any = None, *, device: Any = None) -> Tensor:
    """The tensor itself, or one that shares the memory of an array where it can.

    The array must not be changed while the tensor is in use.
    """
    if device is not None:
        Device.of(device)
    if isinstance(data, Handle):
        return data if dtype is None else as_type(data, to_dtype(dtype))  # type: ignore[return-value]
    from pyflame.interop import to_array

    array = to_array(data)
    kind = to_dtype(dtype) if dtype is not None else _inferred(data, array)
    _refuse_parts(array, kind)
    return wrap(leaf(np.ascontiguousarray(array, kind.numpy).reshape(array.shape), kind))


def full(
    size: Any,
    fill_value: Any,
    dtype: Any = None,
    *,
    layout: MeshLayout | None = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """A tensor of one value, in the type of that value unless told otherwise.

    Example:
        >>> import pyflame as pf
        >>> pf.full([2], 7).dtype, pf.full([2], 0.5).dtype, pf.full([2], True).dtype
        (DType.int64, DType.float32, DType.bool)
    """
    sizes = _checked(sizes_of((size,)))
    if dtype is not None:
        kind = to_dtype(dtype)
    else:
        kind = fill_value.dtype if isinstance(fill_value, Handle) else scalar_dtype(fill_value)  # type: ignore[attr-defined]
    value = cast(fill_value, kind) if isinstance(fill_value, Handle) else scalar(fill_value, kind)
    made = value if sizes == () else call(Expand, value, sizes)
    return _finish(made, layout, requires_grad, device)


def _checked(sizes: tuple[int, ...]) -> tuple[int, ...]:
    if any(s < 0 for s in sizes):
        raise ValueError(f"sizes must not be negative, got {list(sizes)}")
    return sizes


def zeros(
    *size: Any,
    dtype: Any = None,
    layout: MeshLayout | None = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Zeros: ``zeros([2, 3])`` or ``zeros(2, 3)``, float32 unless told otherwise."""
    size, dtype = _size_and_dtype(size, dtype)
    return full(size, 0, dtype or get_default_dtype(), layout=layout, device=device, requires_grad=requires_grad)


def ones(
    *size: Any,
    dtype: Any = None,
    layout: MeshLayout | None = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Ones, float32 unless told otherwise."""
    size, dtype = _size_and_dtype(size, dtype)
    return full(size, 1, dtype or get_default_dtype(), layout=layout, device=device, requires_grad=requires_grad)


def _size_and_dtype(size: tuple[Any, ...], dtype: Any) -> tuple[tuple[int, ...], Any]:
    """``f([2, 3], float16)``: the element type may come second."""
    if len(size) == 2 and isinstance(size[1], (DType, np.dtype, type)) and dtype is None:
        size, dtype = size[:1], size[1]
    return _checked(sizes_of(size)), dtype


def empty(
    *size: Any,
    dtype: Any = None,
    layout: MeshLayout | None = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """A tensor whose contents do not matter: zeros."""
    return zeros(*size, dtype=dtype, layout=layout, device=device, requires_grad=requires_grad)


def full_like(
    input: Any,
    fill_value: Any,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    memory_format: Any = None,
) -> Tensor:
    """A tensor of one value in the shape and type of another."""
    check_format(memory_format)
    x = as_tensor(input)
    made = full(x.shape, fill_value, x.dtype if dtype is None else dtype, device=device)
    made._value.layout = x._value.layout
    return made.requires_grad_() if requires_grad else made


def zeros_like(
    input: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False, memory_format: Any = None
) -> Tensor:
    """Zeros in the shape and type of another tensor."""
    return full_like(input, 0, dtype=dtype, device=device, requires_grad=requires_grad, memory_format=memory_format)


def ones_like(
    input: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False, memory_format: Any = None
) -> Tensor:
    """Ones in the shape and type of another tensor."""
    return full_like(input, 1, dtype=dtype, device=device, requires_grad=requires_grad, memory_format=memory_format)


def empty_like(
    input: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False, memory_format: Any = None
) -> Tensor:
    """A tensor of the shape and type of another whose contents do not matter: zeros."""
    return full_like(input, 0, dtype=dtype, device=device, requires_grad=requires_grad, memory_format=memory_format)


def arange(
    start: Any, end: Any = None, step: Any = 1, dtype: Any = None, *, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """Numbers from ``start`` up to but without ``end``: int64 where all three are whole, else the default dtype.

    Example:
        >>> import pyflame as pf
        >>> pf.arange(3).tolist(), pf.arange(0.0, 1.0, 0.5).tolist()
        ([0, 1, 2], [0.0, 0.5])
    """
    if end is None:
        start, end = 0, start
    start, end, step = (v.item() if isinstance(v, Handle) else v for v in (start, end, step))  # type: ignore[attr-defined]
    if step == 0:
        raise ValueError("arange: step must not be 0")
    if dtype is None:
        ints = all(isinstance(v, (int, np.integer)) for v in (start, end, step))
        kind = DType.int64 if ints else get_default_dtype()
    else:
        kind = to_dtype(dtype)
    _real_kind("arange", kind)
    if kind is DType.int64:
        start, end, step = int(start), int(end), int(step)
    count = max(0, math.ceil((end - start) / step))
    if not kind.is_floating_point:  # torch counts the steps of other integers before it cuts them off
        start, step = int(start), int(step)
    whole = all(isinstance(v, (int, np.integer)) for v in (start, step))
    steps = np.arange(count, dtype=np.int64 if whole else np.float64)
    made = wrap(leaf((start + steps * step).astype(kind.numpy), kind))
    return _finish(made, None, requires_grad, device)


def _real_kind(name: str, kind: DType) -> None:
    if kind.is_complex:
        raise WrongTypeError(f"{name} gives real numbers; write pf.{name}(...).to(pf.{kind.name})")


@names_arguments
def linspace(
    start: Any, end: Any, steps: int, dtype: Any = None, *, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """``steps`` numbers from ``start`` to ``end``, equally far apart."""
    if steps < 0:
        raise ValueError(f"linspace: the number of steps must not be negative, got {steps}")
    start, end = (v.item() if isinstance(v, Handle) else v for v in (start, end))  # type: ignore[attr-defined]
    kind = get_default_dtype() if dtype is None else to_dtype(dtype)
    _real_kind("linspace", kind)
    if not kind.is_floating_point:
        start, end = int(start), int(end)
    made = wrap(leaf(np.linspace(start, end, steps).astype(kind.numpy), kind))
    return _finish(made, None, requires_grad, device)


@names_arguments
def logspace(
    start: Any,
    end: Any,
    steps: int,
    base: float = 10.0,
    dtype: Any = None,
    *,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """``base`` to the powers that :func:`linspace` gives."""
    start, end = (v.item() if isinstance(v, Handle) else v for v in (start, end))  # type: ignore[attr-defined]
    kind = get_default_dtype() if dtype is None else to_dtype(dtype)
    _real_kind("logspace", kind)
    if not kind.is_floating_point:
        start, end = int(start), int(end)
    made = wrap(leaf(np.logspace(start, end, steps, base=base).astype(kind.numpy), kind))
    return _finish(made, None, requires_grad, device)


@names_arguments
def eye(n: int, m: int | None = None, dtype: Any = None, *, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Ones on the diagonal, zeros elsewhere."""
    kind = get_default_dtype() if dtype is None else to_dtype(dtype)
    return _finish(wrap(leaf(np.eye(n, m, dtype=kind.numpy), kind)), None, requires_grad, device)


@names_arguments
def tril_indices(row: int, col: int, offset: int = 0, dtype: Any = DType.int64, *, device: Any = None) -> Tensor:
    """Rows and columns of the places of a lower triangle, as a tensor of shape [2, n]."""
    return asarray(np.stack(np.tril_indices(row, offset, col)), dtype, device=device)


@names_arguments
def triu_indices(row: int, col: int, offset: int = 0, dtype: Any = DType.int64, *, device: Any = None) -> Tensor:
    """Rows and columns of the places of an upper triangle, as a tensor of shape [2, n]."""
    return asarray(np.stack(np.triu_indices(row, offset, col)), dtype, device=device)


def scalar_tensor(value: Any, dtype: Any = None, *, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A number as a tensor without dimensions."""
    made = scalar(value, get_default_dtype() if dtype is None else to_dtype(dtype))
    return _finish(made, None, requires_grad, device)


def clone(input: Any, *, memory_format: Any = None) -> Tensor:
    """A tensor of the same values; gradients flow through."""
    check_format(memory_format)
    return call(Identity, as_tensor(input))


def bitcast(input: Any, dtype: Any) -> Tensor:
    """The same bits read as another element type of the same size."""
    x, kind = as_tensor(input), to_dtype(dtype)
    if kind.itemsize != x.dtype.itemsize:
        raise TypeError(f"bits of {x.dtype} do not make {kind}: {x.dtype.itemsize} and {kind.itemsize} bytes")
    return call(BitCast, x, to=kind.rt.onnx)


@names_arguments
def one_hot(input: Any, num_classes: int = -1) -> Tensor:
    """A further dimension with 1 at the place each element names, 0 elsewhere."""
    x = as_tensor(input)
    depth = int(x.max().item()) + 1 if num_classes == -1 else num_classes
    places = asarray(np.arange(depth, dtype=np.int64))
    return cast(call(Equal, cast(x, DType.int64).unsqueeze(-1), places), DType.int64)
