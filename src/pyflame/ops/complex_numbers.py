"""Complex tensors: made of parts, taken apart, conjugated; parts are views of the numbers, as in torch."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pyflame.dtypes import DType, WrongTypeError
from pyflame.ops import arithmetic as ar
from pyflame.ops import pointwise as pw
from pyflame.ops import shaping as sh
from pyflame.ops.core import Handle, as_tensor, call, floating, scalar
from pyflame_rt.graph.errors import ShapeMismatchError
from pyflame_rt.ops.pyflame.complex_numbers import Conj, ViewAsComplex

if TYPE_CHECKING:
    from pyflame.tensors import Tensor

__all__ = [
    "adjoint", "angle", "complex", "conj", "conj_physical", "imag", "is_complex", "is_conj", "polar", "real",
    "resolve_conj", "resolve_neg", "sgn", "view_as_complex", "view_as_real",
]  # fmt: skip

_PARTS = (DType.float32, DType.float64)


def _two_parts(name: str, first: Any, second: Any) -> tuple[Tensor, Tensor]:
    a, b = as_tensor(first), as_tensor(second)
    if a.dtype not in _PARTS or b.dtype is not a.dtype:
        raise WrongTypeError(
            f"{name} takes two tensors of float32, or two of float64, got {a.dtype.name} and {b.dtype.name}; "
            "convert them, as in x.float()"
        )
    return a, b


def complex(real: Any, imag: Any) -> Tensor:
    """Complex numbers of real and imaginary parts.

    Example:
        >>> import pyflame as pf
        >>> pf.complex(pf.tensor([1.0]), pf.tensor([2.0])).tolist()
        [(1+2j)]
    """
    a, b = _two_parts("complex", real, imag)
    shape = sh.broadcast_shapes(a.shape, b.shape)
    return call(ViewAsComplex, sh.stack([sh.broadcast_to(v, shape) for v in (a, b)], -1))


def polar(abs: Any, angle: Any) -> Tensor:
    """Complex numbers of a distance from 0 and an angle.

    Example:
        >>> import pyflame as pf
        >>> pf.polar(pf.tensor([2.0]), pf.tensor([0.0])).tolist()
        [(2+0j)]
    """
    a, b = _two_parts("polar", abs, angle)
    return complex(ar.mul(a, pw.cos(b)), ar.mul(a, pw.sin(b)))


def view_as_real(input: Any) -> Tensor:
    """Real and imaginary parts as a last dimension of two: a view of the complex numbers.

    Example:
        >>> import pyflame as pf
        >>> pf.view_as_real(pf.tensor([1 + 2j])).tolist()
        [[1.0, 2.0]]
    """
    from pyflame.viewing import as_pairs

    return as_pairs(_only_complex("view_as_real", input))


def view_as_complex(input: Any) -> Tensor:
    """Complex numbers whose parts are the last dimension, of two: a view of them.

    Example:
        >>> import pyflame as pf
        >>> pf.view_as_complex(pf.tensor([[1.0, 2.0]])).tolist()
        [(1+2j)]
    """
    from pyflame.viewing import as_numbers

    x = as_tensor(input)
    if x.dtype not in _PARTS:
        raise WrongTypeError(
            f"view_as_complex takes float32 or float64, got {x.dtype.name}; convert it, as in x.float()"
        )
    if not x.ndim or x.shape[-1] != 2:
        raise ShapeMismatchError(f"view_as_complex takes a last dimension of two, got {x.shape}")
    return as_numbers(x)


def _only_complex(name: str, input: Any) -> Tensor:
    x = as_tensor(input)
    if not x.dtype.is_complex:
        raise WrongTypeError(f"{name} takes complex tensors, got {x.dtype.name}; the tensor is its own real part")
    return x


def real(input: Any) -> Tensor:
    """The real part, a view; a tensor that is not complex is its own.

    Example:
        >>> import pyflame as pf
        >>> pf.real(pf.tensor([1 + 2j])).tolist()
        [1.0]
    """
    x = as_tensor(input)
    return view_as_real(x)[..., 0] if x.dtype.is_complex else x


def imag(input: Any) -> Tensor:
    """The imaginary part of a complex tensor, a view.

    Example:
        >>> import pyflame as pf
        >>> pf.imag(pf.tensor([1 + 2j])).tolist()
        [2.0]
    """
    return view_as_real(_only_complex("imag", input))[..., 1]


def conj(input: Any) -> Tensor:
    """The complex conjugate, computed: what torch calls ``conj_physical``.

    Example:
        >>> import pyflame as pf
        >>> pf.conj(pf.tensor([1 + 2j])).tolist()
        [(1-2j)]
    """
    x = as_tensor(input)
    return call(Conj, x) if x.dtype.is_complex else x


conj_physical = conj


def resolve_conj(input: Any) -> Tensor:
    """The tensor: conjugates are computed where they are asked for."""
    return as_tensor(input)


resolve_neg = resolve_conj


def adjoint(input: Any) -> Tensor:
    """Each matrix conjugated and turned.

    Example:
        >>> import pyflame as pf
        >>> pf.adjoint(pf.tensor([[1j, 2.0]])).tolist()
        [[-1j], [(2-0j)]]
    """
    return sh.transpose(conj(input), -2, -1)


def angle(input: Any) -> Tensor:
    """The angle of each number, in radians: 0 or pi for real ones.

    Example:
        >>> import pyflame as pf
        >>> pf.angle(pf.tensor([1.0, -1.0])).tolist()
        [0.0, 3.1415927410125732]
    """
    x = floating(input)
    if not x.dtype.is_complex:
        turned = ar.where(ar.lt(x, 0), scalar(math.pi, x.dtype), scalar(0, x.dtype))
        return ar.where(ar.isnan(x), x, ar.add(turned, ar.mul(x, 0).detach() if x.requires_grad else 0))
    first, second = ar.parts(x)
    nowhere = ar.logical_and(ar.eq(first, 0), ar.eq(second, 0))
    flat = pw.atan2(second.detach(), first.detach())  # 0 has no direction, and no slope
    return ar.where(nowhere, flat, pw.atan2(ar.where(nowhere, 1.0, second), ar.where(nowhere, 1.0, first)))


def sgn(input: Any) -> Tensor:
    """The sign of real numbers; complex ones over their absolute value, and 0 for 0.

    Example:
        >>> import pyflame as pf
        >>> pf.sgn(pf.tensor([2j])).tolist()
        [1j]
    """
    x = as_tensor(input)
    if not x.dtype.is_complex:
        return pw.sign(x)
    size = ar.abs(x)
    return ar.div(x, ar.where(ar.eq(size, 0), 1.0, size))


def is_complex(input: Any) -> bool:
    """Whether a tensor holds complex numbers.

    Example:
        >>> import pyflame as pf
        >>> pf.is_complex(pf.tensor([1j]))
        True
    """
    if not isinstance(input, Handle):
        raise TypeError(f"is_complex takes a tensor, got {type(input).__name__}")
    return input._value.spec.dtype.is_complex


def is_conj(input: Any) -> bool:
    """False: conjugates are computed, not noted."""
    as_tensor(input)
    return False
