"""Tiles of images at the points of Winograd's method, packed for outer products."""

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
    load_vector,
    mul,
    store_vector,
)
from pyflame_rt.backends.cpu.kernels.tiles.winograd import spread_gradient, spread_image
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["SPREAD_PARAMS", "SpreadKernel"]

SPREAD_PARAMS = (
    "channels", "height", "width", "tiles_y", "tiles_x", "first", "count", "pad_y", "pad_x",
    "source_image", "source_y", "source_x", "point",
)  # fmt: skip


@dataclass(frozen=True)
class SpreadKernel:
    """An image, channels last, as result[point, channel // panel, tile, channel % panel].

    ``image`` takes the inputs of tiles of ``edge`` x ``edge`` results to Winograd's points, ``gradient`` the results
    themselves (the transposed map).

    bufs: source, zeros (one per channel), result. params: SPREAD_PARAMS; ``first`` is the first tile of those packed,
    ``count`` their number, ``point`` the floats from one point to the next. rows: tiles counted from ``first``.
    Channels are whole vectors.
    """

    kind: Literal["image", "gradient"]
    panel: int
    edge: int = 4

    @property
    def key(self) -> str:
        """Equal for kernels of equal structure."""
        return f"spread {self.kind} {self.edge} {self.panel}"

    def emit(self, name: str) -> str:
        """The module, as text."""
        b = Builder(this_host())
        b.begin()
        _Spread(self, b).emit()
        b.do("ret void")
        b.end(SIGNATURE.format(name=name))
        return b.text()


class _Spread:
    def __init__(self, kernel: SpreadKernel, b: Builder) -> None:
        self.kernel, self.b = kernel, b
        self.at = Lanes(b, b.host.lanes(4))
        self.p = {name: b.load_i64("%params", k) for k, name in enumerate(SPREAD_PARAMS)}
        self.side = kernel.edge + (2 if kernel.kind == "image" else 0)
        self.points = kernel.edge + 2

    def emit(self) -> None:
        b, p = self.b, self.p
        self.source, self.zeros, self.result = buffers(b, 3)
        size = self.side * self.points * self.at.lanes
        self.places = b.op(f"alloca [{self.side**2} x ptr], align 64")
        self.temp = b.op(f"alloca [{size} x float], align 64")
        self.apart = mul(b, p["count"], self.kernel.panel)
        with Loop(b, "%begin", "%end") as t:
            tile = add(b, p["first"], t)
            x, line = b.integer(f"urem {tile}, {p['tiles_x']}"), b.integer(f"udiv {tile}, {p['tiles_x']}")
            y, image = b.integer(f"urem {line}, {p['tiles_y']}"), b.integer(f"udiv {line}, {p['tiles_y']}")
            base = floats(b, self.source, mul(b, image, p["source_image"]))
            target = floats(b, self.result, mul(b, t, self.kernel.panel))
            self._tile(base, y, x, target)

    def _at_channel(self, target: str, channel: str) -> str:
        b, panel = self.b, self.kernel.panel
        if panel == self.at.lanes:
            return floats(b, target, mul(b, b.integer(f"udiv {channel}, {panel}"), self.apart))
        block, inside = b.integer(f"udiv {channel}, {panel}"), b.integer(f"urem {channel}, {panel}")
        return floats(b, target, add(b, mul(b, block, self.apart), inside))

    def _place(self, base: str, line: str, column: str) -> str:
        """The address of a pixel; the zeros stand for those outside."""
        b, p = self.b, self.p
        good = b.op(f"icmp ult i64 {line}, {p['height']}")
        inside = b.op(f"icmp ult i64 {column}, {p['width']}")
        place = floats(b, base, add(b, mul(b, line, p["source_y"]), mul(b, column, p["source_x"])))
        return b.op(f"select i1 {b.op(f'and i1 {good}, {inside}')}, ptr {place}, ptr {self.zeros}")

    def _tile(self, base: str, y: str, x: str, target: str) -> None:
        b, p, edge = self.b, self.p, self.kernel.edge
        top = b.integer(f"sub {mul(b, y, edge)}, {p['pad_y']}")
        left = b.integer(f"sub {mul(b, x, edge)}, {p['pad_x']}")
        for i in range(self.side):
            line = add(b, top, i)
            for j in range(self.side):
                chosen = self._place(base, line, add(b, left, j))
                b.do(f"store ptr {chosen}, ptr {b.element('ptr', self.places, str(i * self.side + j))}")
        with Loop(b, "0", p["channels"], self.at.lanes) as c:
            self._channels(c, self._at_channel(target, c))

    def _channels(self, channel: str, target: str) -> None:
        b, at, side, points = self.b, self.at, self.side, self.points
        for i in range(side):
            values = []
            for j in range(side):
                place = b.op(f"load ptr, ptr {b.element('ptr', self.places, str(i * side + j))}")
                values.append(load_vector(at, floats(b, place, channel)))
            for j, value in enumerate(self._spread(values)):
                store_vector(at, value, floats(b, self.temp, (i * points + j) * at.lanes))
        for j in range(points):
            values = [load_vector(at, floats(b, self.temp, (i * points + j) * at.lanes)) for i in range(side)]
            for i, value in enumerate(self._spread(values)):
                store_vector(at, value, floats(b, target, mul(b, self.p["point"], i * points + j)))

    def _spread(self, values: Sequence[V]) -> list[V]:
        return spread_image(values) if self.kernel.kind == "image" else spread_gradient(values)
