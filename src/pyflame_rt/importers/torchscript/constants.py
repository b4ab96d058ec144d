"""Numbers that a trace keeps as constants of no axes: torch promotes with them as with bare numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame_rt.graph import DType
from pyflame_rt.importers.aten.values import Num
from pyflame_rt.importers.torchscript.objects import Cell

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame_rt.ops.core.value import Value

__all__ = ["as_numbers", "number_of"]

# Operators whose operands are promoted, and may be numbers.
_PROMOTING = frozenset((
    "add", "sub", "subtract", "rsub", "mul", "multiply", "div", "divide", "true_divide", "floor_divide", "remainder",
    "fmod", "pow", "eq", "ne", "lt", "le", "gt", "ge", "where",
))  # fmt: skip


def number_of(value: Value) -> Num | None:
    """The number that a constant of the code stands for."""
    return Num(value, float) if value.rank == 0 and value.dtype is DType.Float64 else None


def as_numbers(name: str, args: Sequence[Any], plain: list[Any]) -> list[Any]:
    """The arguments of an operator as lowerings take them, constants of the code among them as numbers.

    Args:
        name: of the operator.
        args: as the code has them.
        plain: the same as values.
    """
    if name not in _PROMOTING or all(a.number is not None for a in args if isinstance(a, Cell)):
        return plain
    pairs = zip(args, plain, strict=True)
    return [p if not isinstance(a, Cell) or a.number is None else a.number for a, p in pairs]
