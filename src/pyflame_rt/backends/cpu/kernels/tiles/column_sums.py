"""Sums down the columns of a matrix: statistics of channels, and the sums their gradients need.

Rows are taken in blocks, by shape alone, each giving partial sums; a second kernel folds those. Any number of threads
gives the same bits. Blocks are short enough for sums in float32; the fold has float64.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pyflame_rt.backends.cpu.ir.builder import Builder, Lanes, V
from pyflame_rt.backends.cpu.ir.loops import splat_load
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
)
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["COLUMN_PARAMS", "ColumnsKernel", "FoldKernel"]

COLUMN_PARAMS = ("rows", "columns", "block", "stride", "second")
_VECTORS = 4  # columns of a turn: additions of one vector need not wait for each other

Kind = Literal["moments", "products", "rows"]


@dataclass(frozen=True)
class ColumnsKernel:
    """Partial sums [block, 2, column] of a matrix.

    ``moments``: the sum of a block's rows, and that of squared deviations from the block's own mean.
    ``products``: the sum of ``first``, and that of ``first`` times the deviation of ``second`` from given means.
    ``rows``: the same with a mean for each row and the deviation times a factor for each row.

    bufs: the matrix (first, second and means for products, then factors for rows), partial sums. params: COLUMN_PARAMS,
    ``stride`` and ``second`` being the row strides of the matrices. rows: blocks.
    """

    kind: Kind

    @property
    def key(self) -> str:
        """Equal for kernels of equal structure."""
        return f"columns {self.kind}"

    def emit(self, name: str) -> str:
        """The module, as text."""
        return _emit(name, _Columns(self).emit)


@dataclass(frozen=True)
class FoldKernel:
    """What ColumnsKernel's partial sums come to: mean and variance of each column, or the two sums.

    bufs: partial sums, the two results. params: COLUMN_PARAMS. rows: vectors of columns.
    """

    kind: Kind

    @property
    def key(self) -> str:
        """Equal for kernels of equal structure."""
        return f"fold {self.kind}"

    def emit(self, name: str) -> str:
        """The module, as text."""
        return _emit(name, _Fold(self).emit)


def _emit(name: str, body: Callable[[Builder], None]) -> str:
    b = Builder(this_host())
    b.begin()
    body(b)
    b.do("ret void")
    b.end(SIGNATURE.format(name=name))
    return b.text()


def _params(b: Builder) -> dict[str, str]:
    return {name: b.load_i64("%params", k) for k, name in enumerate(COLUMN_PARAMS)}


def _real(b: Builder, at: Lanes, number: str, kind: str = "float") -> V:
    return at.splat(kind, b.op(f"sitofp i64 {number} to {kind}"))


class _Columns:
    def __init__(self, kernel: ColumnsKernel) -> None:
        self.kind = kernel.kind

    def emit(self, b: Builder) -> None:
        self.b, self.at, self.p = b, Lanes(b, b.host.lanes(4)), _params(b)
        self.operands = buffers(b, {"moments": 2, "products": 4, "rows": 5}[self.kind])
        lanes, columns = self.at.lanes, self.p["columns"]
        wide = b.integer(f"sub {columns}, {b.integer(f'urem {columns}, {_VECTORS * lanes}')}")
        with Loop(b, "%begin", "%end") as block:
            low = mul(b, block, self.p["block"])
            self.low, self.high = low, least(b, add(b, low, self.p["block"]), self.p["rows"])
            self.target = floats(b, self.operands[-1], mul(b, mul(b, block, 2), columns))
            with Loop(b, "0", wide, _VECTORS * lanes) as column:
                self._columns(column, [None] * _VECTORS)
            with Loop(b, wide, columns, lanes) as column:
                left = b.integer(f"sub {columns}, {column}")
                self._columns(column, [self.at.iota("0", "i64").cmp("slt", self.at.splat("i64", left))])

    def _columns(self, column: str, masks: Sequence[V | None]) -> None:
        (self._moments if self.kind == "moments" else self._products)(column, masks)

    def _fold(self, sums: int, masks: Sequence[V | None], body: Callable[[str, list[V]], list[V]]) -> list[V]:
        """Fold the rows of the block: ``body`` gets a row and the sums so far."""
        b, at = self.b, self.at
        vector = at.type("float")
        loop = Loop(b, self.low, self.high, 1, [(vector, "zeroinitializer")] * (sums * len(masks)))
        row, values = loop.open()
        new = body(row, [V(at, "float", v) for v in values])
        return [V(at, "float", v) for v in loop.close([v.name for v in new])]

    def _row(self, which: int, stride: str, row: str, column: str, masks: Sequence[V | None]) -> list[V]:
        b, at = self.b, self.at
        start = floats(b, self.operands[which], add(b, mul(b, row, stride), column))
        return [load_vector(at, floats(b, start, v * at.lanes), mask) for v, mask in enumerate(masks)]

    def _store(self, which: int, column: str, values: Sequence[V], masks: Sequence[V | None]) -> None:
        b = self.b
        place = floats(b, self.target, add(b, mul(b, self.p["columns"], which), column))
        for v, (value, mask) in enumerate(zip(values, masks, strict=True)):
            store_vector(self.at, value, floats(b, place, v * self.at.lanes), mask)

    def _moments(self, column: str, masks: Sequence[V | None]) -> None:
        b, stride = self.b, self.p["stride"]
        totals = self._fold(
            1,
            masks,
            lambda row, sums: [s + x for s, x in zip(sums, self._row(0, stride, row, column, masks), strict=True)],
        )
        count = _real(b, self.at, b.integer(f"sub {self.high}, {self.low}"))
        means = [total / count for total in totals]

        number = len(masks)

        def deviations(row: str, sums: list[V]) -> list[V]:
            away = [x - m for x, m in zip(self._row(0, stride, row, column, masks), means, strict=True)]
            rest = [s + d for s, d in zip(sums[:number], away, strict=True)]
            return rest + [self.at.fma(d, d, s) for d, s in zip(away, sums[number:], strict=True)]

        found = self._fold(2, masks, deviations)
        # Deviations from the mean add up to what rounding took from the sum.
        totals = [self.at.fma(m, count, rest) for m, rest in zip(means, found[:number], strict=True)]
        self._store(0, column, totals, masks)
        self._store(1, column, found[number:], masks)

    def _products(self, column: str, masks: Sequence[V | None]) -> None:
        number = len(masks)
        means = [] if self.kind == "rows" else self._row(2, "0", "0", column, masks)

        def both(row: str, sums: list[V]) -> list[V]:
            first = self._row(0, self.p["stride"], row, column, masks)
            second = self._row(1, self.p["second"], row, column, masks)
            plain = [s + g for s, g in zip(sums[:number], first, strict=True)]
            away = (
                self._away(row, second) if self.kind == "rows" else [x - m for x, m in zip(second, means, strict=True)]
            )
            return plain + [self.at.fma(g, d, s) for g, d, s in zip(first, away, sums[number:], strict=True)]

        found = self._fold(2, masks, both)
        self._store(0, column, found[:number], masks)
        self._store(1, column, found[number:], masks)

    def _away(self, row: str, values: Sequence[V]) -> list[V]:
        """Deviations from the row's own mean, times its factor."""
        mean, factor = (splat_load(self.at, floats(self.b, self.operands[k], row)) for k in (2, 3))
        return [(x - mean) * factor for x in values]


class _Fold:
    def __init__(self, kernel: FoldKernel) -> None:
        self.kind = kernel.kind

    def emit(self, b: Builder) -> None:
        self.b, self.at, self.p = b, Lanes(b, b.host.lanes(4)), _params(b)
        self.partial, *results = buffers(b, 3)
        p, lanes = self.p, self.at.lanes
        self.blocks = b.integer(f"sdiv {add(b, p['rows'], b.integer('sub ' + p['block'] + ', 1'))}, {p['block']}")
        with Loop(b, "%begin", "%end") as group:
            column = mul(b, group, lanes)
            left = b.integer(f"sub {p['columns']}, {column}")
            self.mask = self.at.iota("0", "i64").cmp("slt", self.at.splat("i64", left))
            for result, value in zip(results, self._values(column), strict=True):
                store_vector(self.at, value.to("fptrunc", "float"), floats(b, result, column), self.mask)

    def _sum(self, body: Callable[[str, V], V]) -> V:
        loop = Loop(self.b, "0", self.blocks, 1, [(self.at.type("double"), "zeroinitializer")])
        block, (total,) = loop.open()
        return V(self.at, "double", loop.close([body(block, V(self.at, "double", total)).name])[0])

    def _part(self, block: str, which: int, column: str) -> V:
        b = self.b
        line = mul(b, add(b, mul(b, block, 2), which), self.p["columns"])
        return load_vector(self.at, floats(b, self.partial, add(b, line, column)), self.mask).to("fpext", "double")

    def _values(self, column: str) -> list[V]:
        b, at, p = self.b, self.at, self.p
        total = self._sum(lambda block, s: s + self._part(block, 0, column))
        if self.kind != "moments":
            return [total, self._sum(lambda block, s: s + self._part(block, 1, column))]
        rows = _real(b, at, p["rows"], "double")
        mean = total / rows

        def spread(block: str, s: V) -> V:
            size = least(b, b.integer(f"sub {p['rows']}, {mul(b, block, p['block'])}"), p["block"])
            count = _real(b, at, size, "double")
            away = self._part(block, 0, column) / count - mean
            return s + self._part(block, 1, column) + away * away * count

        return [mean, self._sum(spread) / rows]
