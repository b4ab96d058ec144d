"""Complex numbers: pairs of parts as numbers, conjugates, absolute values; gradients as torch has them.

The gradient of a real number L with respect to z = a + bi is dL/da + i dL/db (the conjugate Wirtinger derivative), so a
function that is complex differentiable passes on ``g * conj(f'(z))``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph import DType, Shape, TensorType
from pyflame_rt.graph.errors import DTypeMismatchError, ShapeMismatchError
from pyflame_rt.ops.core.registry import get_op, primitive
from pyflame_rt.ops.core.type_rules import same

if TYPE_CHECKING:
    from pyflame_rt.ops.core.value import Value

__all__ = ["ComplexAbs", "Conj", "ViewAsComplex", "ViewAsReal", "complex_of", "conjugated", "part_of"]

OWN = "pyflame"
_PARTS = {DType.Complex64: DType.Float32, DType.Complex128: DType.Float64}
_NUMBERS = {part: number for number, part in _PARTS.items()}


def part_of(dtype: DType) -> DType:
    """The element type of the parts of a complex type.

    Example:
        >>> part_of(DType.Complex64).label
        'float32'
    """
    if dtype not in _PARTS:
        raise DTypeMismatchError(f"complex numbers are needed, got {dtype.label}")
    return _PARTS[dtype]


def complex_of(dtype: DType) -> DType:
    """The complex type whose parts are of a type.

    Example:
        >>> complex_of(DType.Float64).label
        'complex128'
    """
    if dtype not in _NUMBERS:
        raise DTypeMismatchError(f"parts of complex numbers are float32 or float64, got {dtype.label}")
    return _NUMBERS[dtype]


def conjugated(x: Value) -> Value:
    """The conjugate where a value is complex, else the value itself."""
    return Conj(x) if x.dtype.is_complex else x


@primitive(since=1, domain=OWN, infer=same, vjp=lambda g, y, x: (conjugated(g),), elementwise=True, complex=True)
def Conj(ops: Any, X: Any, /) -> Any:
    """The complex conjugate."""
    return ops.conj(X)


# ------------------------------------------------------------------ numbers and pairs


def _pairs_type(x: Value, /) -> TensorType:
    shape = x.tensor_type.shape
    return TensorType(part_of(x.dtype), None if shape is None else Shape([*shape, 2]))


@primitive(since=1, domain=OWN, infer=_pairs_type, vjp=lambda g, y, x: (ViewAsComplex(g),), complex=True, host=True)
def ViewAsReal(ops: Any, X: Any, /) -> Any:
    """Complex numbers as real and imaginary part, on a last axis of two."""
    part = part_of(DType.of(X.dtype)).numpy
    return np.asarray(X, order="C")[..., None].view(part)


def _numbers_type(x: Value, /) -> TensorType:
    shape = x.tensor_type.shape
    if shape is not None and (not shape or (isinstance(shape[-1], int) and shape[-1] != 2)):
        raise ShapeMismatchError(f"real and imaginary part are a last axis of two, got shape {shape}")
    return TensorType(complex_of(x.dtype), None if shape is None else Shape(shape[:-1]))


def _as_pairs(g: Value, y: Value, x: Value) -> tuple[Value]:
    return (ViewAsReal(g),)


@primitive(since=1, domain=OWN, infer=_numbers_type, vjp=_as_pairs, host=True)
def ViewAsComplex(ops: Any, X: Any, /) -> Any:
    """Complex numbers of real and imaginary parts, which are the last axis."""
    kind = complex_of(DType.of(X.dtype)).numpy
    return np.asarray(X, order="C").view(kind)[..., 0]


# ------------------------------------------------------------------ absolute values


def _length_type(x: Value, /) -> TensorType:
    return TensorType(part_of(x.dtype), x.tensor_type.shape)


def _length_vjp(g: Value, y: Value, x: Value) -> tuple[Value]:
    """Along the number, over its length; 0 has no direction, and no slope."""
    equal, where, unsqueeze = get_op("Equal"), get_op("Where"), get_op("Unsqueeze")
    nowhere = equal(y, 0.0)
    slope = where(nowhere, 0.0, g / where(nowhere, 1.0, y))
    return (ViewAsComplex(ViewAsReal(x) * unsqueeze(slope, [-1])),)


@primitive(since=1, domain=OWN, infer=_length_type, vjp=_length_vjp, elementwise=True, complex=True)
def ComplexAbs(ops: Any, X: Any, /) -> Any:
    """Absolute values of complex numbers."""
    return ops.abs(X)
