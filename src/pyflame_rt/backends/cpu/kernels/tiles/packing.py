"""Rows of a matrix as panels of columns, and sums of columns: both walk down a few neighbouring columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pyflame_rt.backends.cpu.ir.builder import Builder, Lanes, V
from pyflame_rt.backends.cpu.jit.target import host as this_host
from pyflame_rt.backends.cpu.kernels.row_loops import SIGNATURE
from pyflame_rt.backends.cpu.kernels.tiles.control import (
    Loop,
    add,
    buffers,
    floats,
    least,
    load_vector,
    mul,
    store_vector,
    when,
)
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ColumnSumKernel", "PackKernel", "RowPackKernel"]

_TOGETHER = 8  # rows that are added up before they are added to the sums


@dataclass(frozen=True)
class PackKernel:
    """Panels of ``vectors`` vectors of columns: result[p, k, :] = source[k, p * width : (p + 1) * width].

    bufs: source, result. params: [depth, columns, row stride of the source]. rows: groups of ROWS of the depth, whose
    lines are read side by side. What the last panel has beyond the last column is zero.
    """

    ROWS: ClassVar[int] = 8

    vectors: int

    @property
    def key(self) -> str:
        """Equal for kernels of equal structure."""
        return f"pack {self.vectors}"

    def emit(self, name: str) -> str:
        """The module, as text."""
        b = Builder(this_host())
        b.begin()
        at = Lanes(b, b.host.lanes(4))
        width = self.vectors * at.lanes
        source, result = buffers(b, 2)
        depth, columns, stride = (b.load_i64("%params", k) for k in range(3))
        whole = mul(b, b.integer(f"sdiv {columns}, {width}"), width)
        with Loop(b, "%begin", "%end") as group:
            low = mul(b, group, self.ROWS)
            high = least(b, add(b, low, self.ROWS), depth)

            def panel(first: str, masks: list[V | None]) -> None:
                start, target = floats(b, source, first), floats(b, result, mul(b, first, depth))
                with Loop(b, low, high) as k:
                    row, place = floats(b, start, mul(b, k, stride)), floats(b, target, mul(b, k, width))
                    for v, mask in enumerate(masks):
                        value = load_vector(at, floats(b, row, v * at.lanes), mask)
                        store_vector(at, value, floats(b, place, v * at.lanes))

            with Loop(b, "0", whole, width) as first:
                panel(first, [None] * self.vectors)
            with when(b, b.op(f"icmp slt i64 {whole}, {columns}")):
                left = b.integer(f"sub {columns}, {whole}")
                panel(whole, [_mask(at, left, v * at.lanes) for v in range(self.vectors)])
        b.do("ret void")
        b.end(SIGNATURE.format(name=name))
        return b.text()


@dataclass(frozen=True)
class RowPackKernel:
    """Panels of ``width`` columns, which need not be whole vectors: result[p, k, :] = source[k, p * width : ...].

    bufs: source, result. params: [depth, columns, row stride of the source]. rows: groups of ROWS of the depth. A few
    panels are written side by side, so that a line of the source is read while it is in the cache, however far apart
    lines are. What the last panel has beyond the last column repeats it.
    """

    ROWS: ClassVar[int] = 32
    SIDE: ClassVar[int] = 4

    width: int

    @property
    def key(self) -> str:
        """Equal for kernels of equal structure."""
        return f"pack rows {self.width}"

    def emit(self, name: str) -> str:
        """The module, as text."""
        b = Builder(this_host())
        b.begin()
        source, result = buffers(b, 2)
        depth, columns, stride = (b.load_i64("%params", k) for k in range(3))

        def places(first: str, k: str) -> tuple[str, str]:
            start, target = floats(b, source, first), floats(b, result, mul(b, first, depth))
            return floats(b, start, mul(b, k, stride)), floats(b, target, mul(b, k, self.width))

        ends = [mul(b, b.integer(f"sdiv {columns}, {n * self.width}"), n * self.width) for n in (self.SIDE, 1)]
        with Loop(b, "%begin", "%end") as group:
            low = mul(b, group, self.ROWS)
            high = least(b, add(b, low, self.ROWS), depth)
            for panels, begin, end in ((self.SIDE, "0", ends[0]), (1, *ends)):
                with Loop(b, begin, end, panels * self.width) as first, Loop(b, low, high) as k:
                    self._lines(b, panels, *places(first, k), depth)
            with when(b, b.op(f"icmp slt i64 {ends[1]}, {columns}")), Loop(b, low, high) as k:
                self._rest(b, *places(ends[1], k), b.integer(f"sub {columns}, {ends[1]}"))
        b.do("ret void")
        b.end(SIGNATURE.format(name=name))
        return b.text()

    def _lines(self, b: Builder, panels: int, source: str, target: str, depth: str) -> None:
        kind, size = f"<{self.width} x float>", mul(b, depth, self.width)
        for n in range(panels):
            value = b.op(f"load {kind}, ptr {floats(b, source, n * self.width)}, align 4")
            b.do(f"store {kind} {value}, ptr {floats(b, target, mul(b, size, n))}, align 4")

    def _rest(self, b: Builder, source: str, target: str, left: str) -> None:
        last = b.integer(f"sub {left}, 1")
        for n in range(self.width):
            value = b.op(f"load float, ptr {floats(b, source, least(b, str(n), last))}, align 4")
            b.do(f"store float {value}, ptr {floats(b, target, n)}, align 4")


@dataclass(frozen=True)
class ColumnSumKernel:
    """Sums down the columns of float32 matrices, or their means: result[m, c] = sum over k of source[m, k, c].

    bufs: source, result. params: [rows, columns, row stride of the source, columns of an item, items of a matrix,
    stride from matrix to matrix]. rows: items. A few rows at a time are added to the sums, which stay in the
    first-level cache; how columns are divided changes no bit.
    """

    mean: bool = False

    @property
    def key(self) -> str:
        """Equal for kernels of equal structure."""
        return "column means" if self.mean else "column sums"

    def emit(self, name: str) -> str:
        """The module, as text."""
        b = Builder(this_host())
        b.begin()
        at = Lanes(b, b.host.lanes(4))
        source, result = buffers(b, 2)
        rows, columns, stride, width, items, apart = (b.load_i64("%params", k) for k in range(6))
        whole = b.integer(f"and {rows}, {-_TOGETHER}")
        with Loop(b, "%begin", "%end") as item:
            matrix = b.integer(f"udiv {item}, {items}")
            low = mul(b, b.integer(f"urem {item}, {items}"), width)
            high = least(b, add(b, low, width), columns)
            first, sums = floats(b, source, mul(b, matrix, apart)), floats(b, result, mul(b, matrix, columns))
            zero = at.const("float", 0.0)
            _each_vector(at, low, high, lambda c, mask: store_vector(at, zero, floats(b, sums, c), mask))
            for begin, end, step in (("0", whole, _TOGETHER), (whole, rows, 1)):
                with Loop(b, begin, end, step) as row:
                    starts = [floats(b, first, mul(b, add(b, row, k), stride)) for k in range(step)]
                    _each_vector(at, low, high, lambda c, mask, starts=starts: _add_rows(at, starts, sums, c, mask))
            if self.mean:
                count = at.splat("float", b.op(f"sitofp i64 {rows} to float"))
                _each_vector(at, low, high, lambda c, mask: _divide(at, floats(b, sums, c), count, mask))
        b.do("ret void")
        b.end(SIGNATURE.format(name=name))
        return b.text()


def _divide(at: Lanes, place: str, count: V, mask: V | None) -> None:
    store_vector(at, load_vector(at, place, mask) / count, place, mask)


def _add_rows(at: Lanes, starts: list[str], result: str, column: str, mask: V | None) -> None:
    """Add the vectors of some rows, pair by pair, to the sums."""
    b = at.builder
    values = [load_vector(at, floats(b, start, column), mask) for start in starts]
    while len(values) > 1:
        values = [x + y for x, y in zip(values[::2], values[1::2], strict=True)]
    place = floats(b, result, column)
    store_vector(at, load_vector(at, place, mask) + values[0], place, mask)


def _each_vector(at: Lanes, low: str, high: str, body: Callable[[str, V | None], None]) -> None:
    """Whole vectors of the columns [low, high), then a masked one for the rest."""
    b = at.builder
    middle = add(b, low, b.integer(f"and {b.integer(f'sub {high}, {low}')}, {-at.lanes}"))
    with Loop(b, low, middle, at.lanes) as column:
        body(column, None)
    with when(b, b.op(f"icmp slt i64 {middle}, {high}")):
        body(middle, _mask(at, b.integer(f"sub {high}, {middle}"), 0))


def _mask(at: Lanes, left: str, offset: int) -> V:
    """Which lanes lie before the last column."""
    limit = at.splat("i64", at.builder.integer(f"sub {left}, {offset}"))
    return at.iota("0", "i64").cmp("slt", limit)
