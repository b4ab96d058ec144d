"""Operators that mark places in a graph and leave values as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame_rt.ops.core.registry import operator, primitive
from pyflame_rt.ops.core.type_rules import same

if TYPE_CHECKING:
    from pyflame_rt.graph import TensorType
    from pyflame_rt.ops.core.value import Value

__all__ = ["After", "Bundle", "ChipTransfer", "LayoutTransform"]


def _each(*values: Value) -> tuple[TensorType, ...]:
    return tuple(v.tensor_type for v in values)


@operator(since=1, domain="pyflame", infer=_each, complex=True)
def Bundle(*values: Value) -> Any:
    """The values themselves: what a function with its own gradient gives."""
    return values if len(values) != 1 else values[0]


@primitive(since=1, domain="pyflame", infer=same, vjp=lambda g, y, x, signal: (g, None), complex=True)
def After(ops: Any, x: Any, signal: Any, /) -> Any:
    """``x``, but not before ``signal`` is there."""
    return x


@operator(since=1, domain="pyflame", infer=same, vjp=lambda g, y, x, **_: (g,))
def LayoutTransform(x: Value, /, *, source: str, target: str) -> Value:
    """``x`` moved from one layout on the mesh of processing elements to another."""
    return x


@operator(since=1, domain="pyflame", infer=same, vjp=lambda g, y, x, **_: (g,))
def ChipTransfer(x: Value, /, *, source: int, target: int, hops: int = 1) -> Value:
    """``x`` sent from one chip to another."""
    return x
