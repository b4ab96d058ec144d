"""Automatic mixed precision: functions that, inside `pf.autocast`, take their operands in fewer or in all bits."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from pyflame.dtypes import DType
from pyflame.lazy import modes
from pyflame.ops.core import Handle, cast

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
R = TypeVar("R")

__all__ = ["full_precision", "low_precision"]

_NARROW = (DType.float16, DType.bfloat16)


def low_precision(function: Callable[P, R]) -> Callable[P, R]:
    """Inside `autocast`, give the function its float32 operands in the type of the context."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        kind = modes.autocast
        if kind is None:
            return function(*args, **kwargs)
        wide = (DType.float32, *_NARROW)
        plain: Any = function
        return plain(*_cast(args, wide, kind), **{k: _cast(v, wide, kind) for k, v in kwargs.items()})

    return run


def full_precision(function: Callable[P, R]) -> Callable[P, R]:
    """Inside `autocast`, give the function its operands of half the bits in float32."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        if modes.autocast is None:
            return function(*args, **kwargs)
        single, plain = DType.float32, function
        call: Any = plain
        return call(*_cast(args, _NARROW, single), **{k: _cast(v, _NARROW, single) for k, v in kwargs.items()})

    return run


def _cast(value: Any, have: tuple[DType, ...], want: DType) -> Any:
    if isinstance(value, Handle):
        return cast(value, want) if value._value.spec.dtype in have else value
    return type(value)(_cast(v, have, want) for v in value) if type(value) in (list, tuple) else value
