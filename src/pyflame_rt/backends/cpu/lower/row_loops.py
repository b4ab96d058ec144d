"""Loops for the generator: a group of elementwise steps over views becomes one row kernel."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pyflame_rt.backends.cpu.ir.kernel_program import Inner, Operand
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame_rt.backends.cpu.memory.buffer_views import View

__all__ = ["Nest", "nest_of"]

# A flat loop is split over threads in pieces of at least this many elements.
FLAT_GRAIN = 65_536
MAX_OUTER = 6


@dataclass(frozen=True, slots=True)
class Nest:
    """An iteration space with the strides of each operand in it: outer axes, then one inner axis."""

    outer: tuple[int, ...]
    inner: int
    strides: tuple[tuple[int, ...], ...]

    @property
    def rows(self) -> int:
        """Number of rows, or of elements when the loop is flat."""
        return math.prod(self.outer) if self.outer else self.inner

    def operand(self, i: int, dtype: str) -> Operand:
        """How operand ``i`` advances along the inner axis."""
        step = self.strides[i][-1]
        kind: Inner = "unit" if step == 1 else "zero" if step == 0 else "strided"
        return Operand(dtype, kind)

    def params(self, operands: Sequence[Operand]) -> list[int]:
        """Sizes and strides in the order the kernel reads them."""
        values = [self.inner, *self.outer]
        for operand, strides in zip(operands, self.strides, strict=True):
            values += strides[:-1]
            if operand.inner == "strided":
                values.append(strides[-1])
        return values


def nest_of(views: Sequence[View], shape: tuple[int, ...], *, keep_inner: bool = False) -> Nest | None:
    """Merge the axes of a shape as far as every operand allows; None when too many are left.

    Args:
        views: operands, each already broadcast to ``shape``.
        shape: the iteration space.
        keep_inner: leave the last axis alone (it is a row to be reduced).
    """
    axes = [(n, tuple(v.strides[i] for v in views)) for i, n in enumerate(shape)]
    last = axes.pop() if keep_inner and axes else (1, tuple(0 for _ in views))
    axes = [a for a in axes if a[0] != 1]
    if not keep_inner:
        axes = _ordered(axes)
    merged = _merged(axes)
    if not keep_inner:
        last = merged.pop() if merged else (1, tuple(1 for _ in views))
    if not keep_inner and not merged and all(s in (0, 1) for s in last[1]):
        return Nest((), last[0], tuple((s,) for s in last[1]))
    if not merged:
        merged = [(1, tuple(0 for _ in views))]
    if len(merged) > MAX_OUTER:
        return None
    outer = tuple(n for n, _ in merged)
    strides = tuple((*(s[i] for _, s in merged), last[1][i]) for i in range(len(views)))
    return Nest(outer, last[0], strides)


def _ordered(axes: list[tuple[int, tuple[int, ...]]]) -> list[tuple[int, tuple[int, ...]]]:
    """The order in which the output (the last operand) lies in memory, so that stores are sequential."""
    return sorted(axes, key=lambda a: -a[1][-1])


def _merged(axes: list[tuple[int, tuple[int, ...]]]) -> list[tuple[int, tuple[int, ...]]]:
    result: list[tuple[int, tuple[int, ...]]] = []
    for n, strides in axes:
        if result and all(outer == n * s for outer, s in zip(result[-1][1], strides, strict=True)):
            result[-1] = (result[-1][0] * n, strides)
        else:
            result.append((n, strides))
    return result
