"""Filters of a convolution brought to Winograd's points: once for constant weights, else while running."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyflame_rt.backends.cpu.ir.builder import Builder, Lanes, V
from pyflame_rt.backends.cpu.jit.target import host as this_host
from pyflame_rt.backends.cpu.kernels.row_loops import SIGNATURE
from pyflame_rt.backends.cpu.kernels.tiles.control import Loop, add, buffers, floats, least, mul, store_vector
from pyflame_rt.backends.cpu.kernels.tiles.winograd import combined, filter_lines
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame_rt.backends.cpu.kernels.tiles.register_tile import Tile

__all__ = ["FILTER_PARAMS", "FilterKernel", "PackingKernel"]

FILTER_PARAMS = ("columns", "depth", "column_stride", "depth_stride")


@dataclass(frozen=True)
class FilterKernel:
    """Result[panel, point, depth, column] of weights whose nine taps lie together, as WinogradKernel reads them.

    ``flip`` turns every filter by half a turn: the filters of the gradient towards the input. Columns beyond the last
    repeat it.

    bufs: weights, result. params: FILTER_PARAMS. rows: panels times depth.
    """

    tile: Tile
    edge: int
    flip: bool = False

    @property
    def key(self) -> str:
        """Equal for kernels of equal structure."""
        return f"filters{self.edge} x{self.tile.vectors} {self.flip}"

    def emit(self, name: str) -> str:
        """The module, as text."""
        b = Builder(this_host())
        b.begin()
        _Filters(self, b).emit()
        b.do("ret void")
        b.end(SIGNATURE.format(name=name))
        return b.text()


class _Filters:
    def __init__(self, kernel: FilterKernel, b: Builder) -> None:
        self.kernel, self.b = kernel, b
        self.at = Lanes(b, b.host.lanes(4))
        self.width = kernel.tile.vectors * self.at.lanes
        self.p = {name: b.load_i64("%params", k) for k, name in enumerate(FILTER_PARAMS)}

    def emit(self) -> None:
        b, p, lanes = self.b, self.p, self.at.lanes
        weights, result = buffers(b, 2)
        points = (self.kernel.edge + 2) ** 2
        self.apart = mul(b, p["depth"], self.width)
        last = b.integer(f"sub {p['columns']}, 1")
        with Loop(b, "%begin", "%end") as item:
            panel, k = b.integer(f"udiv {item}, {p['depth']}"), b.integer(f"urem {item}, {p['depth']}")
            source = floats(b, weights, mul(b, k, p["depth_stride"]))
            target = floats(b, result, add(b, mul(b, mul(b, panel, self.apart), points), mul(b, k, self.width)))
            for v in range(self.kernel.tile.vectors):
                first = add(b, mul(b, panel, self.width), v * lanes)
                columns = [least(b, add(b, first, lane), last) for lane in range(lanes)]
                places = [floats(b, source, mul(b, c, p["column_stride"])) for c in columns]
                self._filters(places, floats(b, target, v * lanes))

    def _filters(self, places: Sequence[str], target: str) -> None:
        b, at = self.b, self.at
        taps = []
        for tap in range(9):
            moved = 8 - tap if self.kernel.flip else tap
            taps.append(
                at.gather_lanes("float", [b.op(f"load float, ptr {floats(b, p, moved)}, align 4") for p in places])
            )
        lines = filter_lines(self.kernel.edge)
        half = [[combined(taps[3 * i : 3 * i + 3], line) for line in lines] for i in range(3)]
        side = len(lines)
        for j in range(side):
            for i, line in enumerate(lines):
                value = combined([half[row][j] for row in range(3)], line)
                store_vector(at, value, floats(b, target, mul(b, self.apart, i * side + j)))


@dataclass(frozen=True)
class PackingKernel:
    """Result[panel, point, depth, column] of weights [column, depth, 3, 3] at any address, computed in float64.

    Columns beyond the last repeat it. bufs: weights, result. params: depth, columns. rows: panels of ``width`` columns,
    which are whole vectors.
    """

    width: int
    edge: int

    @property
    def key(self) -> str:
        """Equal for kernels of equal structure."""
        return f"packed filters{self.edge} x{self.width}"

    def emit(self, name: str) -> str:
        """The module, as text."""
        b = Builder(this_host())
        b.begin()
        self._panels(b)
        b.do("ret void")
        b.end(SIGNATURE.format(name=name))
        return b.text()

    def _panels(self, b: Builder) -> None:
        at, points = Lanes(b, b.host.vector_bytes // 8), (self.edge + 2) ** 2
        weights, result = buffers(b, 2)
        depth, columns = (b.load_i64("%params", k) for k in range(2))
        last = b.integer(f"sub {columns}, 1")
        apart, along = mul(b, depth, self.width), mul(b, depth, 9)
        with Loop(b, "%begin", "%end") as panel:
            whole = floats(b, result, mul(b, mul(b, panel, apart), points))
            first = mul(b, panel, self.width)
            with Loop(b, "0", depth) as k, Loop(b, "0", str(self.width), at.lanes) as part:
                column = add(b, first, part)
                chosen = [mul(b, least(b, add(b, column, lane), last), along) for lane in range(at.lanes)]
                places = [floats(b, weights, add(b, c, mul(b, k, 9))) for c in chosen]
                taps = [_doubles(at, places, tap) for tap in range(9)]
                self._store(taps, floats(b, whole, add(b, mul(b, k, self.width), part)), apart)

    def _store(self, taps: Sequence[V], target: str, apart: str) -> None:
        at = taps[0].at
        lines = filter_lines(self.edge)
        half = [[combined(taps[3 * i : 3 * i + 3], line) for line in lines] for i in range(3)]
        for i, line in enumerate(lines):
            for j in range(len(lines)):
                value = combined([half[row][j] for row in range(3)], line)
                place = floats(at.builder, target, mul(at.builder, apart, i * len(lines) + j))
                store_vector(at, value.to("fptrunc", "float"), place)


def _doubles(at: Lanes, places: Sequence[str], tap: int) -> V:
    """One float after each of several addresses."""
    b = at.builder
    found = [b.op(f"load float, ptr {floats(b, place, tap)}, align 1") for place in places]
    return at.gather_lanes("float", found).to("fpext", "double")
