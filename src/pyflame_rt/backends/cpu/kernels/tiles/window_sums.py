"""Convolutions of many images tap by tap: rows of products go through images first, so that borders are left out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

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
from pyflame_rt.backends.cpu.kernels.tiles.register_tile import accumulate, store_sums

if TYPE_CHECKING:
    from pyflame_rt.backends.cpu.kernels.tiles.register_tile import Tile

__all__ = ["TAP_PARAMS", "WINDOW_PARAMS", "TapKernel", "WindowKernel"]

WINDOW_PARAMS = (
    "images", "width", "taps_y", "taps_x", "depth", "columns", "rows", "panels", "blocks", "panel_items",
    "block_items", "run", "together", "slot", "apart", "source_image", "result_image", "result_y", "result_x",
)  # fmt: skip
TAP_PARAMS = ("columns", "depth", "taps", "column_stride", "depth_stride")
_POINTER = 2  # floats


@dataclass(frozen=True)
class WindowKernel:
    """Images, channels last, under windows: result[image, y, x] = sum over taps of source[image, ...] times weights.

    ``lines`` and ``places`` say for each line (column) of the result and each tap how far into an image the tap reads;
    where both together are negative, it reads nothing. Rows of products go through the images of a pixel first: those
    of a tile share their border, and what a whole tile does not read is left out.

    Channels are summed ``run`` at a time, or those of all of so many taps ``together``, and those sums added: that
    loses less than one long sum, and the weights of a run are in the first-level cache for all tiles of a block.

    bufs: source, zeros (one per channel), weights [panel, tap, depth, column], lines, places (int64), scratch, result.
    params: WINDOW_PARAMS. rows: items, that is blocks of ``tiles`` times panels, panels fastest. An item works in the
    scratch slot numbered begin / ``apart``, as those of WinogradKernel do.
    """

    tile: Tile
    tiles: int

    @property
    def key(self) -> str:
        """Equal for kernels of equal structure."""
        return f"windows {self.tile.rows}x{self.tile.vectors} {self.tiles}"

    def slot(self, lanes: int, taps: int) -> int:
        """Floats of one scratch slot: sums, where each tap of a row reads, whether a tile reads, where rows go."""
        rows = self.tiles * self.tile.rows
        return rows * (self.tile.vectors * lanes + _POINTER * (taps + 1)) + _POINTER * taps * self.tiles

    def emit(self, name: str) -> str:
        """The module, as text."""
        b = Builder(this_host())
        b.begin()
        _Windows(self, b).emit()
        b.do("ret void")
        b.end(SIGNATURE.format(name=name))
        return b.text()


class _Windows:
    def __init__(self, kernel: WindowKernel, b: Builder) -> None:
        self.tile, self.tiles, self.b = kernel.tile, kernel.tiles, b
        self.at = Lanes(b, b.host.lanes(4))
        self.width = self.tile.vectors * self.at.lanes
        self.p = {name: b.load_i64("%params", k) for k, name in enumerate(WINDOW_PARAMS)}
        self.taps = mul(b, self.p["taps_y"], self.p["taps_x"])
        self.block = self.tiles * self.tile.rows

    def emit(self) -> None:
        b, p = self.b, self.p
        self.source, self.zeros, self.weights, self.lines, self.places, scratch, self.result = buffers(b, 7)
        self.sums = floats(b, scratch, mul(b, b.integer(f"udiv %begin, {p['apart']}"), p["slot"]))
        self.targets = floats(b, self.sums, self.block * self.width)
        self.sources = b.element("ptr", self.targets, str(self.block))
        self.read = b.element("ptr", self.sources, mul(b, self.taps, self.block))
        loop = Loop(b, "%begin", "%end", 1, [("i64", "-1")])
        item, (before,) = loop.open()
        block = b.integer(f"urem {b.integer(f'udiv {item}, ' + p['block_items'])}, {p['blocks']}")
        panel = b.integer(f"urem {b.integer(f'udiv {item}, ' + p['panel_items'])}, {p['panels']}")
        low = mul(b, block, self.block)
        count = least(b, b.integer(f"sub {p['rows']}, {low}"), str(self.block))
        with when(b, b.op(f"icmp ne i64 {block}, {before}")):
            self._find(low)
        self._multiply(panel, count)
        self._store(panel, count)
        loop.close([block])

    def _find(self, low: str) -> None:
        """Where every row of the block reads under every tap, and where it goes; rows beyond the last repeat it."""
        b, p = self.b, self.p
        with Loop(b, "0", mul(b, self.taps, self.tiles)) as k:
            b.do(f"store i64 0, ptr {b.element('i64', self.read, k)}")
        image, pixel = b.integer(f"urem {low}, {p['images']}"), b.integer(f"udiv {low}, {p['images']}")
        x, y = b.integer(f"urem {pixel}, {p['width']}"), b.integer(f"udiv {pixel}, {p['width']}")
        loop = Loop(b, "0", str(self.block), 1, [("i64", image), ("i64", x), ("i64", y)])
        r, (image, x, y) = loop.open()
        self._find_row(r, image, x, y)
        # The next row, unless this is the last one.
        going = b.op(f"icmp slt i64 {add(b, add(b, low, r), 1)}, {p['rows']}")
        following = add(b, image, b.op(f"zext i1 {going} to i64"))
        following, x = self._wrapped(following, p["images"], x)
        x, more = self._wrapped(x, p["width"], "0")
        loop.close([following, x, add(b, y, more)])

    def _wrapped(self, number: str, size: str, carry: str) -> tuple[str, str]:
        """A number that begins anew at ``size``, and another that then grows by one."""
        b = self.b
        full = b.op(f"icmp eq i64 {number}, {size}")
        number = b.op(f"select i1 {full}, i64 0, i64 {number}")
        return number, add(b, b.op(f"zext i1 {full} to i64"), carry)

    def _find_row(self, r: str, image: str, x: str, y: str) -> None:
        b, p = self.b, self.p
        goes = add(b, mul(b, y, p["result_y"]), mul(b, x, p["result_x"]))
        goes = floats(b, self.result, add(b, goes, mul(b, image, p["result_image"])))
        b.do(f"store ptr {goes}, ptr {b.element('ptr', self.targets, r)}")
        start, tile = floats(b, self.source, mul(b, image, p["source_image"])), b.integer(f"udiv {r}, {self.tile.rows}")
        lines = b.element("i64", self.lines, mul(b, y, p["taps_y"]))
        places = b.element("i64", self.places, mul(b, x, p["taps_x"]))
        with Loop(b, "0", p["taps_y"]) as i, Loop(b, "0", p["taps_x"]) as j:
            down = b.op(f"load i64, ptr {b.element('i64', lines, i)}")
            moved = add(b, down, b.op(f"load i64, ptr {b.element('i64', places, j)}"))
            inside = b.op(f"icmp sge i64 {moved}, 0")
            tap = add(b, mul(b, i, p["taps_x"]), j)
            pointer = b.op(f"select i1 {inside}, ptr {floats(b, start, moved)}, ptr {self.zeros}")
            b.do(f"store ptr {pointer}, ptr {b.element('ptr', self.sources, add(b, mul(b, tap, self.block), r))}")
            place = b.element("i64", self.read, add(b, mul(b, tap, self.tiles), tile))
            some = b.op(f"or i64 {b.op(f'load i64, ptr {place}')}, {b.op(f'zext i1 {inside} to i64')}")
            b.do(f"store i64 {some}, ptr {place}")

    def _multiply(self, panel: str, count: str) -> None:
        b, p, at = self.b, self.p, self.at
        zero = V(at, "float", "zeroinitializer")
        with Loop(b, "0", str(self.block * self.width), at.lanes) as k:
            store_vector(at, zero, floats(b, self.sums, k))
        weights = floats(b, self.weights, mul(b, mul(b, mul(b, panel, self.taps), p["depth"]), self.width))
        with Loop(b, "0", self.taps, p["together"]) as tap, Loop(b, "0", p["depth"], p["run"]) as k:
            end = least(b, add(b, tap, p["together"]), self.taps)
            depth = least(b, b.integer(f"sub {p['depth']}, {k}"), p["run"])
            with Loop(b, "0", count, self.tile.rows) as row:
                self._tile((tap, end), (k, depth), weights, row)

    def _tile(self, taps: tuple[str, str], channels: tuple[str, str], weights: str, row: str) -> None:
        """Add some channels under some taps to the sums of a tile."""
        b, p, at, size = self.b, self.p, self.at, self.tile.rows
        tile, (first, depth) = b.integer(f"udiv {row}, {size}"), channels
        kind = at.type("float")
        loop = Loop(b, *taps, 1, [(kind, "zeroinitializer")] * (size * self.tile.vectors))
        tap, sums = loop.open()
        reads = b.op(f"load i64, ptr {b.element('i64', self.read, add(b, mul(b, tap, self.tiles), tile))}")
        turns = b.op(f"select i1 {b.op(f'icmp ne i64 {reads}, 0')}, i64 {depth}, i64 0")
        rows = b.element("ptr", self.sources, add(b, mul(b, tap, self.block), row))
        starts = [floats(b, b.op(f"load ptr, ptr {b.element('ptr', rows, str(r))}"), first) for r in range(size)]
        some = floats(b, weights, mul(b, add(b, mul(b, tap, p["depth"]), first), self.width))
        sums, _ = accumulate(at, self.tile, starts, some, turns, sums)
        sums = loop.close(sums)
        store_sums(at, [V(at, "float", s) for s in sums], floats(b, self.sums, mul(b, row, self.width)), "true")

    def _store(self, panel: str, count: str) -> None:
        b, at, lanes = self.b, self.at, self.at.lanes
        first = mul(b, panel, self.width)
        high = least(b, b.integer(f"sub {self.p['columns']}, {first}"), str(self.width))
        with Loop(b, "0", count) as row:
            target = floats(b, b.op(f"load ptr, ptr {b.element('ptr', self.targets, row)}"), first)
            source = floats(b, self.sums, mul(b, row, self.width))
            with Loop(b, "0", high, lanes) as v:
                mask = at.iota("0", "i64").cmp("slt", at.splat("i64", b.integer(f"sub {high}, {v}")))
                store_vector(at, load_vector(at, floats(b, source, v)), floats(b, target, v), mask)


@dataclass(frozen=True)
class TapKernel:
    """Weights whose taps lie together as result[panel, tap, depth, column]; columns beyond the last repeat it.

    bufs: weights, result. params: TAP_PARAMS. rows: panels times depth.
    """

    tile: Tile

    @property
    def key(self) -> str:
        """Equal for kernels of equal structure."""
        return f"taps x{self.tile.vectors}"

    def emit(self, name: str) -> str:
        """The module, as text."""
        b = Builder(this_host())
        b.begin()
        self._panels(b)
        b.do("ret void")
        b.end(SIGNATURE.format(name=name))
        return b.text()

    def _panels(self, b: Builder) -> None:
        at, p = Lanes(b, b.host.lanes(4)), {name: b.load_i64("%params", k) for k, name in enumerate(TAP_PARAMS)}
        width = self.tile.vectors * at.lanes
        weights, result = buffers(b, 2)
        apart, last = mul(b, p["depth"], width), b.integer(f"sub {p['columns']}, 1")
        with Loop(b, "%begin", "%end") as item:
            panel, k = b.integer(f"udiv {item}, {p['depth']}"), b.integer(f"urem {item}, {p['depth']}")
            source = floats(b, weights, mul(b, k, p["depth_stride"]))
            target = floats(b, result, add(b, mul(b, mul(b, panel, apart), p["taps"]), mul(b, k, width)))
            for v in range(self.tile.vectors):
                first = add(b, mul(b, panel, width), v * at.lanes)
                columns = [least(b, add(b, first, lane), last) for lane in range(at.lanes)]
                places = [floats(b, source, mul(b, c, p["column_stride"])) for c in columns]
                with Loop(b, "0", p["taps"]) as tap:
                    some = [b.op(f"load float, ptr {floats(b, place, tap)}, align 4") for place in places]
                    into = floats(b, target, add(b, mul(b, tap, apart), v * at.lanes))
                    store_vector(at, at.gather_lanes("float", some), into)
