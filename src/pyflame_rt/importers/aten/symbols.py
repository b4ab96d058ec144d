"""Symbolic sizes in a graph: a tracer that computes a size from the shape of the input it belongs to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pyflame_rt.graph import Dim, DType, TensorType, ValueType
from pyflame_rt.graph.errors import UndeterminedError
from pyflame_rt.ops.core.trace import Tracer
from pyflame_rt.ops.core.value import Value  # noqa: TC001  # a field of a NamedTuple
from pyflame_rt.ops.onnx.arithmetic import Div
from pyflame_rt.ops.onnx.shape import Shape
from pyflame_rt.ops.onnx.slicing import Concat

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["SymbolicTracer"]


class SizePlace(NamedTuple):
    """Where a symbol is found: the axis of a tensor whose size is ``times`` the symbol and ``more``."""

    source: Value
    axis: int
    times: int = 1
    more: int = 0


def _line(dim: Dim) -> tuple[str, int, int] | None:
    """The symbol, its factor and the rest of ``2*N + 1``; None for other polynomials."""
    terms = dict(dim.terms)
    more = terms.pop((), 0)
    if len(terms) != 1:
        return None
    ((monomial, times),) = terms.items()
    return (monomial[0], times, more) if len(monomial) == 1 and times > 0 else None


class SymbolicTracer(Tracer):
    """Records operator calls; lists of symbolic sizes become nodes that read them off the inputs.

    Attributes:
        symbols: where the value of a symbol is found.
    """

    __slots__ = ("symbols",)

    def __init__(self, name: str, symbols: Mapping[str, SizePlace]) -> None:
        super().__init__(name)
        self.symbols = dict(symbols)

    def symbolic_input(self, name: str, kind: ValueType) -> Value:
        """Declare an input; symbols in its shape are read off it from now on."""
        value = self.input(name, kind)
        if isinstance(kind, TensorType):
            for axis, dim in enumerate(kind.shape or ()):
                if isinstance(dim, Dim) and (line := _line(dim)) is not None:
                    symbol, times, more = line
                    place = SizePlace(value, axis, times, more)
                    known = self.symbols.setdefault(symbol, place)
                    if (times, more) == (1, 0) != known[2:]:  # the plain one costs no arithmetic
                        self.symbols[symbol] = place
        return value

    def constant(self, array: np.ndarray[Any, Any]) -> Value:
        """A constant; sizes that are only known when running are computed."""
        if array.dtype != object or not any(isinstance(v, Dim) for v in array.ravel()):
            return super().constant(array)
        parts = [self._size(v) if isinstance(v, Dim) else self._number([int(v)]) for v in array.ravel()]
        made = parts[0] if len(parts) == 1 else Concat(*parts, axis=0)
        made.known = array
        return made

    def _number(self, items: list[int]) -> Value:
        return super().constant(np.asarray(items, DType.Int64.numpy))

    def _read(self, place: SizePlace) -> Value:
        size = Shape(place.source, start=place.axis, end=place.axis + 1)
        if place.more:
            size = size - self._number([place.more])
        return size if place.times == 1 else Div(size, self._number([place.times]))

    def _size(self, dim: Dim) -> Value:
        """A polynomial over symbols, as a tensor of one element."""
        total: Value | None = None
        for monomial, coefficient in dim.terms:
            product: Value | None = None if monomial and coefficient == 1 else self._number([coefficient])
            for name in monomial:
                if name not in self.symbols:
                    raise UndeterminedError(f"the size {dim} is only known when running")
                factor = self._read(self.symbols[name])
                product = factor if product is None else product * factor
            total = product if total is None or product is None else total + product
        return self._number([0]) if total is None else total
