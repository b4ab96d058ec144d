"""Functions of the package that are not operators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame.autograd import api
from pyflame.dtypes import DType, category, to_dtype
from pyflame.lazy import modes
from pyflame.ops import arithmetic as ar
from pyflame.ops import pointwise as pw
from pyflame.ops.core import Handle, as_tensor, common_dtype, scalar

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyflame.tensors import Tensor

__all__ = [
    "allclose",
    "backward",
    "can_cast",
    "equal",
    "is_floating_point",
    "is_tensor",
    "numel",
    "result_type",
    "runtime_scalar",
    "stop_gradient",
    "typename",
]


def backward(loss: Any, grad_output: Any = None, *, accumulate: bool = False, **options: Any) -> None:
    """Give every leaf the gradient of a loss, in place of the one it had.

    ``loss.backward()`` and ``pf.autograd.backward`` add to gradients that are there.

    Example:
        >>> import pyflame as pf
        >>> w = pf.tensor([2.0], requires_grad=True)
        >>> for _ in range(2):
        ...     pf.backward((w * w).sum())
        >>> w.grad.item()
        4.0
    """
    api.backward(loss, grad_output, accumulate=accumulate, **options)


def stop_gradient(input: Tensor) -> Tensor:
    """The same values; gradients stop here.

    Example:
        >>> import pyflame as pf
        >>> pf.stop_gradient(pf.ones([1], requires_grad=True) * 2).requires_grad
        False
    """
    return input.detach()


def allclose(input: Any, other: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> bool:
    """Whether two tensors are close everywhere; evaluates."""
    return bool(pw.isclose(input, other, rtol, atol, equal_nan).all())


def equal(input: Any, other: Any) -> bool:
    """Whether two tensors have one shape and equal elements; evaluates."""
    a, b = as_tensor(input), as_tensor(other)
    return tuple(a.shape) == tuple(b.shape) and bool(ar.eq(a, b).all())


def is_tensor(obj: object) -> bool:
    """True for tensors."""
    return isinstance(obj, Handle)


def is_floating_point(input: Tensor) -> bool:
    """True for tensors of floating-point numbers."""
    return input.dtype.is_floating_point


def numel(input: Tensor) -> int:
    """Number of elements."""
    return int(input.numel)


def result_type(*tensors: Any) -> DType:
    """The element type in which operands meet.

    Example:
        >>> import pyflame as pf
        >>> result_type(pf.ones([2]), 1.5), result_type(pf.ones([2], dtype=pf.int8), 2)
        (DType.float32, DType.int8)
    """
    return common_dtype(tensors)


def can_cast(from_: Any, to: Any) -> bool:
    """Whether a type becomes another without losing its kind (floating point to integer, number to bool)."""
    return category(to_dtype(from_)) <= category(to_dtype(to))


def runtime_scalar(read: Callable[[], float], dtype: Any = DType.float32) -> Tensor:
    """A number without dimensions that a compiled function reads again at each call.

    Args:
        read: gives the number, such as the learning rate of the moment.
        dtype: its element type.

    Example:
        >>> settings = {"lr": 0.5}
        >>> runtime_scalar(lambda: settings["lr"]).item()
        0.5
    """
    kind = to_dtype(dtype)
    made = scalar(read(), kind)
    if modes.tracer is not None:
        modes.tracer.note_scalar(made._value, read)
    return made


def typename(obj: object) -> str:
    """The name of an object's type."""
    return f"{type(obj).__module__}.{type(obj).__qualname__}"
