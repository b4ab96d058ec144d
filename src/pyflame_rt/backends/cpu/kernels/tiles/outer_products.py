"""Sums of outer products: what the gradients of weights are made of."""

from __future__ import annotations

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
    most,
    mul,
    store_vector,
    when,
)
from pyflame_rt.backends.cpu.kernels.tiles.register_tile import each_tile, row_panel, store_sums
from pyflame_rt.backends.cpu.kernels.tiles.winograd import combined, filter_lines
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame_rt.backends.cpu.kernels.tiles.register_tile import Tile

__all__ = ["COLLECT_PARAMS", "OUTER_PARAMS", "POINT_FIELDS", "CollectKernel", "OuterKernel"]

OUTER_PARAMS = (
    "rows", "panels", "left_panel", "right_panel", "left_line", "right_line", "result_point", "result_panel", "keep",
)  # fmt: skip
POINT_FIELDS = ("left", "right", "lines", "length", "run")
COLLECT_PARAMS = ("rows", "columns", "points", "source_point", "source_panel", "result_column", "result_row")
_UNROLL = 2


@dataclass(frozen=True)
class OuterKernel:
    """Result[panel, point, row, column] = sum over places of left[place, row] * right[place, column].

    The left operand lies in panels of ``row_panel``, the right one, like the result, in panels of a tile's columns, and
    places follow each other in a panel. A point sums over ``lines`` of ``length`` places, of which the first ones are
    at ``left`` and ``right``, and lines follow each other ``left_line`` and ``right_line`` places apart. The result is
    added to if ``keep``, and has room for rows up to the end of the last tile.

    Products of ``run`` lines are summed at a time, and those sums added: that loses less than one long sum, and the
    right operand of a run is in the first-level cache for all rows.

    bufs: left, right, points (POINT_FIELDS of each, int64), result. params: OUTER_PARAMS. rows: items, that is points
    times panels of the right operand.
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
        left, right, points, result = buffers(b, 4)
        with Loop(b, "%begin", "%end") as item:
            point, panel = b.integer(f"sdiv {item}, {p['panels']}"), b.integer(f"srem {item}, {p['panels']}")
            fields = b.element("i64", points, mul(b, point, len(POINT_FIELDS)))
            self.at_point = {
                name: b.op(f"load i64, ptr {b.element('i64', fields, str(k))}") for k, name in enumerate(POINT_FIELDS)
            }
            columns = floats(b, right, mul(b, panel, p["right_panel"]))
            target = floats(b, result, add(b, mul(b, point, p["result_point"]), mul(b, panel, p["result_panel"])))
            self._point(left, columns, target)

    def _point(self, left: str, columns: str, target: str) -> None:
        """All rows of one point, run by run; a point without lines is zero."""
        b, p, at = self.b, self.p, self.at_point
        keep = b.op(f"icmp ne i64 {p['keep']}, 0")
        with Loop(b, "0", most(b, at["lines"], "1"), at["run"]) as line:
            more = b.op(f"or i1 {keep}, {b.op(f'icmp ne i64 {line}, 0')}")
            lines = least(b, b.integer(f"sub {at['lines']}, {line}"), at["run"])
            right = add(b, at["right"], mul(b, line, p["right_line"]))
            right = floats(b, columns, mul(b, right, self.width))
            place = mul(b, add(b, at["left"], mul(b, line, p["left_line"])), self.panel)
            with Loop(b, "0", p["rows"], self.panel) as row:
                start = add(b, mul(b, b.integer(f"udiv {row}, {self.panel}"), p["left_panel"]), place)
                start, sums = floats(b, left, start), floats(b, target, mul(b, row, self.width))
                high = least(b, b.integer(f"sub {p['rows']}, {row}"), self.panel)

                def tile(size: int, inside: str, _: str, start: str = start, sums: str = sums) -> None:
                    into = floats(b, sums, mul(b, inside, self.width))
                    self._run(size, floats(b, start, inside), right, lines, into, more)

                each_tile(b, self.tile, "0", high, tile)

    def _run(self, size: int, rows: str, columns: str, lines: str, target: str, more: str) -> None:
        """Some lines of places, summed into ``size`` rows of the result."""
        b, at, p, length = self.b, self.at, self.p, self.at_point["length"]
        kind = at.type("float")
        whole = b.integer(f"and {length}, {-_UNROLL}")
        begin = [(kind, "zeroinitializer")] * (size * self.tile.vectors)
        over = Loop(b, "0", lines, 1, [("ptr", rows), ("ptr", columns), *begin])
        _, (left_line, right_line, *sums) = over.open()
        carried = [("ptr", left_line), ("ptr", right_line), *((kind, s) for s in sums)]
        for low, high, step in (("0", whole, _UNROLL), (whole, length, 1)):
            loop = Loop(b, low, high, step, carried)
            _, (left, right, *sums) = loop.open()
            for _ in range(step):
                sums = self._turn(size, left, right, sums)
                left, right = floats(b, left, self.panel), floats(b, right, self.width)
            ended = loop.close([left, right, *sums])
            carried = [("ptr", ended[0]), ("ptr", ended[1]), *((kind, s) for s in ended[2:])]
        following = [
            floats(b, left_line, mul(b, p["left_line"], self.panel)),
            floats(b, right_line, mul(b, p["right_line"], self.width)),
        ]
        ended = over.close([*following, *(value for _, value in carried[2:])])
        store_sums(at, [V(at, "float", s) for s in ended[2:]], target, more)

    def _turn(self, size: int, left: str, right: str, sums: Sequence[str]) -> list[str]:
        b, at, vectors = self.b, self.at, self.tile.vectors
        columns = [load_vector(at, floats(b, right, v * at.lanes)) for v in range(vectors)]
        result = list(sums)
        for r in range(size):
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
            for v in range(self.kernel.tile.vectors):
                with when(b, b.op(f"icmp sgt i64 {left}, {v * self.at.lanes}")):
                    self._vector(
                        v, begin, target, least(b, b.integer(f"sub {left}, {v * self.at.lanes}"), self.at.lanes)
                    )

    def _vector(self, v: int, source: str, target: str, columns: str) -> None:
        """All rows of one vector of columns: what they write to stays in the cache."""
        b, p, first = self.b, self.p, v * self.at.lanes
        target = floats(b, target, mul(b, p["result_column"], first))
        with Loop(b, "0", p["rows"]) as row:
            start = floats(b, source, add(b, mul(b, row, self.width), first))
            place = floats(b, target, mul(b, row, p["result_row"]))
            if self.kernel.kind == "taps":
                self._copy(start, place, columns)
            else:
                self._back(start, place)

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
