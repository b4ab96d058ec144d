"""Elementwise functions with the common promotion rule."""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from emberharmony.backends.torch.base import (
    NATIVE,
    as_float,
    as_tensor,
    meet,
    native,
    native_dtype,
    number,
    widened,
)
from emberharmony.dtypes import is_scalar
from emberharmony.typing import ArrayLike, Axis, DTypeLike, Shape

Tensor = torch.Tensor


def _float_unary(function: Callable[[Tensor], Tensor]) -> Callable[[ArrayLike], Tensor]:
    def call(x: ArrayLike) -> Tensor:
        return function(as_float(x))

    return call


def _wide_unary(function: Callable[[Tensor], Tensor]) -> Callable[[ArrayLike], Tensor]:
    """Through float32 for half precision, where torch's own kernels lose digits."""

    def call(x: ArrayLike) -> Tensor:
        x = as_float(x)
        return function(widened(x)).to(x.dtype)

    return call


def _rounding(function: Callable[[Tensor], Tensor]) -> Callable[[ArrayLike], Tensor]:
    def call(x: ArrayLike) -> Tensor:
        x = as_tensor(x)
        return function(x) if x.is_floating_point() else x

    return call


def _plain(function: Callable[[Tensor], Tensor]) -> Callable[[ArrayLike], Tensor]:
    def call(x: ArrayLike) -> Tensor:
        return function(as_tensor(x))

    return call


def _binary(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    def call(x1: ArrayLike, x2: ArrayLike) -> Tensor:
        if not (isinstance(x1, Tensor) and isinstance(x2, Tensor) and x1.dtype is x2.dtype):
            x1, x2 = meet(x1, x2)
        return function(x1, x2)

    return call


def _float_binary(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    def call(x1: ArrayLike, x2: ArrayLike) -> Tensor:
        if not (isinstance(x1, Tensor) and isinstance(x2, Tensor) and x1.dtype is x2.dtype):
            x1, x2 = meet(x1, x2)
        return function(as_float(x1), as_float(x2))

    return call


_UNARY = [
    "exp",
    "exp2",
    "expm1",
    "log",
    "log1p",
    "log2",
    "log10",
    "sqrt",
    "rsqrt",
    "sin",
    "cos",
    "tan",
    "arcsin",
    "arccos",
    "arctan",
    "sinh",
    "cosh",
    "arcsinh",
    "arccosh",
    "arctanh",
    "erf",
]
NATIVE.update({name: _float_unary(getattr(torch, name)) for name in _UNARY})
# The last two: their gradients are made from results, which half precision rounds to 1.
_WIDE = ["erfc", "erfinv", "lgamma", "digamma", "sigmoid", "tanh"]
NATIVE.update({name: _wide_unary(getattr(torch, name)) for name in _WIDE})
NATIVE["silu"] = _wide_unary(functional.silu)
NATIVE["softplus"] = _wide_unary(lambda x: functional.softplus(x, threshold=40.0))
NATIVE.update({n: _rounding(getattr(torch, n)) for n in ("floor", "ceil", "trunc")})
_PLAIN = ["negative", "abs", "isnan", "isinf", "isfinite", "isposinf", "isneginf", "bitwise_not", "logical_not"]
NATIVE.update({name: _plain(getattr(torch, name)) for name in _PLAIN})
NATIVE["conj"] = _plain(lambda x: torch.conj_physical(x))
_BINARY = [
    "add",
    "subtract",
    "multiply",
    "maximum",
    "minimum",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "equal",
    "not_equal",
    "less",
    "less_equal",
    "greater",
    "greater_equal",
]
NATIVE.update({n: _binary(getattr(torch, "eq" if n == "equal" else n)) for n in _BINARY})
NATIVE.update({n: _float_binary(getattr(torch, n)) for n in ("divide", "arctan2", "hypot", "logaddexp")})
_LOGIC = ("logical_and", "logical_or", "logical_xor")


def _logical(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    def call(x1: ArrayLike, x2: ArrayLike) -> Tensor:
        return function(as_tensor(x1).to(torch.bool), as_tensor(x2).to(torch.bool))

    return call


NATIVE.update({name: _logical(getattr(torch, name)) for name in _LOGIC})


def _division(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    """Division forms: by an integer 0 the answer is 0, where torch would raise."""

    def call(x1: ArrayLike, x2: ArrayLike) -> Tensor:
        x1, x2 = meet(x1, x2)
        if x1.is_floating_point():
            return function(x1, x2)
        if x1.dtype is torch.bool:
            x1, x2 = x1.to(torch.int8), x2.to(torch.int8)
        zero = x2 == 0
        return torch.where(zero, 0, function(x1, torch.where(zero, 1, x2)))

    return call


def _floor(x1: Tensor, x2: Tensor) -> Tensor:
    if x1.is_floating_point():
        return torch.div(x1, x2, rounding_mode="floor")
    whole, rest = _trunc(x1, x2), torch.fmod(x1, x2)
    return whole - ((rest != 0) & ((x1 < 0) != (x2 < 0))).to(whole.dtype)


def _trunc(x1: Tensor, x2: Tensor) -> Tensor:
    if x1.is_floating_point():
        return torch.trunc(widened(x1) / widened(x2)).to(x1.dtype)
    # The lowest integer divided by -1 traps in the processor; negation wraps instead.
    minus = _minus_one(x2)
    return torch.where(minus, -x1, torch.div(x1, torch.where(minus, 1, x2), rounding_mode="trunc"))


def _fmod(x1: Tensor, x2: Tensor) -> Tensor:
    if x1.is_floating_point():
        # torch answers NaN for an infinite divisor.
        return torch.where(torch.isinf(x2) & torch.isfinite(x1), x1, _found(torch.fmod(x1, x2), x1, x2))
    return torch.fmod(x1, torch.where(_minus_one(x2), 1, x2))


def _mod(x1: Tensor, x2: Tensor) -> Tensor:
    if x1.is_floating_point():
        endless = torch.where(((x1 < 0) == (x2 < 0)) | (x1 == 0), x1, x2)
        rest = _found(torch.remainder(x1, x2), x1, x2)
        return torch.where(torch.isinf(x2) & torch.isfinite(x1), endless, rest)
    return torch.remainder(x1, torch.where(_minus_one(x2), 1, x2))


def _minus_one(x: Tensor) -> Tensor:
    """Where -1, which torch would take for 255 among bytes."""
    return (x == -1) if x.dtype.is_signed else torch.zeros_like(x, dtype=torch.bool)


def _found(rest: Tensor, x1: Tensor, x2: Tensor) -> Tensor:
    """A remainder, unless the quotient was too large for torch to find one; NumPy does."""
    if bool((torch.isnan(rest) & torch.isfinite(x1) & torch.isfinite(x2) & (x2 != 0)).any()):
        raise NotImplementedError("a remainder of so large a quotient is not supported")
    return rest


NATIVE["floor_divide"] = _division(_floor)
NATIVE["truncate_divide"] = _division(_trunc)
NATIVE["mod"] = _division(_mod)
NATIVE["fmod"] = _division(_fmod)


@native
def power(x1: ArrayLike, x2: ArrayLike) -> Tensor:
    """Powers; those of integers to negative ones truncate."""
    x1, x2 = meet(x1, x2)
    if x1.dtype is torch.bool:
        x1, x2 = x1.to(torch.int8), x2.to(torch.int8)
    if x1.is_complex():
        # torch goes by the logarithm, which 0 does not have.
        none = x1 == 0
        settled = (x2 == 0) & (none | ~torch.isfinite(x1))
        found = torch.pow(torch.where(settled, 1, x1), torch.where(none, x2.detach(), x2))
        return torch.where(settled, 1, found).to(x1.dtype)
    if x1.is_floating_point() or x1.dtype is torch.uint8:
        return torch.pow(x1, x2)
    below = x2 < 0
    result = torch.pow(x1, torch.where(below, torch.remainder(x2, 2), x2))
    return torch.where(below & (torch.abs(x1) != 1), 0, result)


def _shift(function: Callable[[Tensor, Tensor], Tensor], arithmetic: bool) -> Any:
    def call(x1: ArrayLike, x2: ArrayLike) -> Tensor:
        x1, x2 = meet(x1, x2)
        bits = x1.element_size() * 8
        out = (x2 >= bits) | (x2 < 0)
        moved = function(x1, torch.where(out, 0, x2))
        gone = torch.where(x1 < 0, -1, 0).to(x1.dtype) if arithmetic else torch.zeros_like(x1)
        return torch.where(out, gone, moved)

    return call


NATIVE["left_shift"] = _shift(torch.bitwise_left_shift, False)
NATIVE["right_shift"] = _shift(torch.bitwise_right_shift, True)


@native
def sign(x: ArrayLike) -> Tensor:
    """The sign; torch has 0 for NaN."""
    x = as_tensor(x)
    if x.is_complex():
        raise NotImplementedError("the sign of complex numbers is not supported")
    return torch.where(torch.isnan(x), x, torch.sign(x)) if x.is_floating_point() else x.sign()


@native
def real(x: ArrayLike) -> Tensor:
    """The real part."""
    x = as_tensor(x)
    return torch.real(x) if x.is_complex() else x


@native
def imag(x: ArrayLike) -> Tensor:
    """The imaginary part."""
    x = as_tensor(x)
    return torch.imag(x) if x.is_complex() else torch.zeros_like(x)


@native
def round_(x: ArrayLike, decimals: int = 0) -> Tensor:
    """Halves to even."""
    x = as_tensor(x)
    if x.dtype is torch.bool or (decimals >= 0 and not x.is_floating_point() and not x.is_complex()):
        return x
    if not x.is_floating_point():
        raise NotImplementedError(f"rounding {x.dtype} is not supported")
    return torch.round(widened(x), decimals=decimals).to(x.dtype) if decimals else torch.round(x)


@native
def where(condition: ArrayLike, x1: ArrayLike, x2: ArrayLike) -> Tensor:
    """Choose; the branches meet in one dtype, not the condition."""
    x1, x2 = meet(x1, x2)
    return torch.where(as_tensor(condition).to(torch.bool), x1, x2)


@native
def cast(x: ArrayLike, dtype: DTypeLike) -> Tensor:
    """To another dtype; complex numbers lose their imaginary part without a warning."""
    x, wanted = as_tensor(x), native_dtype(dtype)
    if x.is_complex() and not wanted.is_complex and wanted is not torch.bool:
        x = torch.real(x)
    return x.to(wanted)


@native
def bitcast(x: ArrayLike, dtype: DTypeLike) -> Tensor:
    """The same bytes as another dtype."""
    x, wanted = as_tensor(x), native_dtype(dtype)
    if x.element_size() != wanted.itemsize:
        raise ValueError(f"bitcast from {x.dtype} to {wanted}: the widths differ")
    return x.contiguous().view(wanted)


@native
def copy(x: ArrayLike) -> Tensor:
    """New memory."""
    return as_tensor(x).clone()


@native
def full(shape: int | Shape, fill_value: ArrayLike, dtype: DTypeLike = None) -> Tensor:
    """One value everywhere."""
    wanted = as_tensor(fill_value).dtype if dtype is None else native_dtype(dtype)
    sizes = (shape,) if isinstance(shape, int) else tuple(int(n) for n in shape)
    value = number(fill_value, wanted) if is_scalar(fill_value) else as_tensor(fill_value)
    return value.to(wanted).expand(sizes).clone()


@native
def stop_gradient(x: ArrayLike) -> Tensor:
    """Detached from the graph."""
    return as_tensor(x).detach()


@native
def relu(x: ArrayLike) -> Tensor:
    """The positive part."""
    return torch.relu(as_tensor(x))


@native
def softmax(x: ArrayLike, axis: Axis = -1) -> Tensor:
    """Exponentials divided by their sum."""
    return _over_axes(torch.softmax, x, axis)


@native
def log_softmax(x: ArrayLike, axis: Axis = -1) -> Tensor:
    """Logarithm of softmax."""
    return _over_axes(torch.log_softmax, x, axis)


def _over_axes(function: Callable[..., Tensor], x: ArrayLike, axis: Axis) -> Tensor:
    """A function of one axis applied to several as if they were one."""
    x = as_float(x)
    wide = widened(x)
    if isinstance(axis, int):
        return function(wide, axis).to(x.dtype)
    axes = list(range(x.ndim)) if axis is None else [a % x.ndim for a in axis]
    rest = [i for i in range(x.ndim) if i not in axes]
    moved = wide.permute(*rest, *axes)
    done = function(moved.reshape(*moved.shape[: len(rest)], -1), -1).reshape(moved.shape)
    back = sorted(range(x.ndim), key=[*rest, *axes].__getitem__)
    return done.permute(*back).to(x.dtype)
