"""Sums of outer products: what the gradients of weights are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

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
from pyflame_rt.backends.cpu.kernels.tiles.register_tile import row_panel, store_sums
from pyflame_rt.backends.cpu.kernels.tiles.winograd import combined, filter_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame_rt.backends.cpu.kernels.tiles.register_tile import Tile

__all__ = ["COLLECT_PARAMS", "OUTER_PARAMS", "CollectKernel", "OuterKernel"]

OUTER_PARAMS = ("depth", "rows", "panels", "left_point", "right_point", "result_point", "result_panel", "keep", "run")
COLLECT_PARAMS = ("rows", "columns", "points", "source_point", "source_panel", "result_column", "result_row")
_UNROLL = 2


@dataclass(frozen=True)
class OuterKernel:
    """Result[panel, point, row, column] = sum of left[point, k, row] * right[point, k, column], added to if ``keep``.

    Both operands are packed as SpreadKernel does, the left one in panels of ``row_panel``, the right one, like the
    result, in panels of a tile's columns. The result has room for rows up to the end of the last tile.

    Products are summed over ``run`` of the depth at a time, and those sums added: that loses less than one long sum.

    bufs: left, right, result. params: OUTER_PARAMS. rows: items, that is points times panels of the right operand.
    """

    tile: Tile

    @property
    def key(self) -> str:
        """Equal for kernels of equal structure."""
        return f"outer {self.tile.rows}x{self.tile.vectors}"

    def emit(self, name: str) -> str:
        """The module, as text."""
        b = Builder(this_host())
        b.begin()
        _Outer(self, b).emit()
        b.do("ret void")
        b.end(SIGNATURE.format(name=name))
        return b.text()


class _Outer:
    def __init__(self, kernel: OuterKernel, b: Builder) -> None:
        self.b, self.tile = b, kernel.tile
        self.at = Lanes(b, b.host.lanes(4))
        self.width = self.tile.vectors * self.at.lanes
        self.panel = row_panel(self.tile, self.at.lanes)
        self.p = {name: b.load_i64("%params", k) for k, name in enumerate(OUTER_PARAMS)}

    def emit(self) -> None:
        b, p = self.b, self.p
        left, right, result = buffers(b, 3)
        with Loop(b, "%begin", "%end") as item:
            point, panel = b.integer(f"sdiv {item}, {p['panels']}"), b.integer(f"srem {item}, {p['panels']}")
            columns = floats(b, right, mul(b, point, p["right_point"]))
            columns = floats(b, columns, mul(b, mul(b, panel, p["depth"]), self.width))
            rows = floats(b, left, mul(b, point, p["left_point"]))
            target = floats(b, result, add(b, mul(b, point, p["result_point"]), mul(b, panel, p["result_panel"])))
            with Loop(b, "0", p["rows"], self.tile.rows) as row:
                block, inside = b.integer(f"udiv {row}, {self.panel}"), b.integer(f"urem {row}, {self.panel}")
                start = add(b, mul(b, mul(b, block, p["depth"]), self.panel), inside)
                self._tile(floats(b, rows, start), columns, floats(b, target, mul(b, row, self.width)))

    def _tile(self, rows: str, columns: str, target: str) -> None:
        b, depth, run = self.b, self.p["depth"], self.p["run"]
        keep = b.op(f"icmp ne i64 {self.p['keep']}, 0")
        with Loop(b, "0", depth, run) as k:
            more = b.op(f"or i1 {keep}, {b.op(f'icmp ne i64 {k}, 0')}")
            left, right = floats(b, rows, mul(b, k, self.panel)), floats(b, columns, mul(b, k, self.width))
            self._run(left, right, least(b, b.integer(f"sub {depth}, {k}"), run), target, more)

    def _run(self, rows: str, columns: str, depth: str, target: str, more: str) -> None:
        b, at, vector = self.b, self.at, self.at.type("float")
        carried = [
            ("ptr", rows),
            ("ptr", columns),
            *[(vector, "zeroinitializer")] * (self.tile.rows * self.tile.vectors),
        ]
        whole = b.integer(f"and {depth}, {-_UNROLL}")
        for low, high, step in (("0", whole, _UNROLL), (whole, depth, 1)):
            loop = Loop(b, low, high, step, carried)
            _, (left, right, *sums) = loop.open()
            for _ in range(step):
                sums = self._turn(left, right, sums)
                left, right = floats(b, left, self.panel), floats(b, right, self.width)
            ended = loop.close([left, right, *sums])
            carried = [("ptr", ended[0]), ("ptr", ended[1]), *((vector, s) for s in ended[2:])]
        store_sums(at, [V(at, "float", s) for _, s in carried[2:]], target, more)

    def _turn(self, left: str, right: str, sums: Sequence[str]) -> list[str]:
        b, at, vectors = self.b, self.at, self.tile.vectors
        columns = [load_vector(at, floats(b, right, v * at.lanes)) for v in range(vectors)]
        result = list(sums)
        for r in range(self.tile.rows):
            value = at.splat("float", b.op(f"load float, ptr {floats(b, left, r)}, align 4"))
            for v, column in enumerate(columns):
                here = r * vectors + v
                result[here] = at.fma(value, column, V(at, "float", result[here])).name
        return result


@dataclass(frozen=True)
class CollectKernel:
    """Sums [panel, point, row, column] as gradients of weights, result[column, row, tap].

    ``winograd`` takes the points back to the nine taps, ``taps`` has a point for each tap. Only ``taps`` takes columns
    that do not fill their vectors.

    bufs: source, result. params: COLLECT_PARAMS. rows: panels.
    """

    kind: Literal["winograd", "taps"]
    tile: Tile
    edge: int = 4

    @property
    def key(self) -> str:
        """Equal for kernels of equal structure."""
        return f"collect {self.kind} {self.edge} x{self.tile.vectors}"

    def emit(self, name: str) -> str:
        """The module, as text."""
        b = Builder(this_host())
        b.begin()
        _Collect(self, b).emit()
        b.do("ret void")
        b.end(SIGNATURE.format(name=name))
        return b.text()


class _Collect:
    def __init__(self, kernel: CollectKernel, b: Builder) -> None:
        self.kernel, self.b = kernel, b
        self.at = Lanes(b, b.host.lanes(4))
        self.width = kernel.tile.vectors * self.at.lanes
        self.p = {name: b.load_i64("%params", k) for k, name in enumerate(COLLECT_PARAMS)}

    def emit(self) -> None:
        b, p = self.b, self.p
        source, result = buffers(b, 2)
        self.temp = b.op(f"alloca [{3 * (self.kernel.edge + 2) * self.at.lanes} x float], align 64")
        with Loop(b, "%begin", "%end") as panel:
            column = mul(b, panel, self.width)
            left = b.integer(f"sub {p['columns']}, {column}")
            begin = floats(b, source, mul(b, panel, p["source_panel"]))
            target = floats(b, result, mul(b, column, p["result_column"]))
            with Loop(b, "0", p["rows"]) as row:
                start = floats(b, begin, mul(b, row, self.width))
                place = floats(b, target, mul(b, row, p["result_row"]))
                if self.kernel.kind == "taps":
                    self._copy(start, place, least(b, left, self.width))
                else:
                    self._vectors(start, place, left)

    def _vectors(self, source: str, target: str, left: str) -> None:
        b, lanes = self.b, self.at.lanes
        for v in range(self.kernel.tile.vectors):
            with when(b, b.op(f"icmp sgt i64 {left}, {v * lanes}")):
                moved = mul(b, self.p["result_column"], v * lanes)
                self._back(floats(b, source, v * lanes), floats(b, target, moved))

    def _copy(self, source: str, target: str, columns: str) -> None:
        b, p = self.b, self.p
        with Loop(b, "0", p["points"]) as tap, Loop(b, "0", columns) as lane:
            place = floats(b, source, add(b, mul(b, tap, p["source_point"]), lane))
            value = b.op(f"load float, ptr {place}, align 4")
            b.do(f"store float {value}, ptr {floats(b, target, add(b, mul(b, lane, p['result_column']), tap))}")

    def _back(self, source: str, target: str) -> None:
        b, at, lanes = self.b, self.at, self.at.lanes
        side, lines = self.kernel.edge + 2, filter_lines(self.kernel.edge)
        for i in range(side):
            values = [
                load_vector(at, floats(b, source, mul(b, self.p["source_point"], i * side + j))) for j in range(side)
            ]
            for tap in range(3):
                store_vector(at, combined(values, lines[:, tap].tolist()), floats(b, self.temp, (i * 3 + tap) * lanes))
        for across in range(3):
            values = [load_vector(at, floats(b, self.temp, (i * 3 + across) * lanes)) for i in range(side)]
            for down in range(3):
                total = combined(values, lines[:, down].tolist())
                for lane in range(lanes):
                    moved = add(b, mul(b, self.p["result_column"], lane), down * 3 + across)
                    b.do(f"store float {at.lane(total, lane)}, ptr {floats(b, target, moved)}, align 4")
