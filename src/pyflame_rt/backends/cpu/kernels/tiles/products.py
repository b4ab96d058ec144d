"""Products with packed weights, and convolutions as products over pixels.

Weights are packed by panels of columns: panel p holds, for each step of the depth, one row of ``width`` columns (zeros
beyond the last). The work is divided into items of one panel and one block of rows, by shape alone, so that any number
of threads gives the same bits.
"""

from __future__ import annotations

from typing import Literal

from pyflame_rt.backends.cpu.ir.builder import Builder, Lanes, V
from pyflame_rt.backends.cpu.jit.target import host as this_host
from pyflame_rt.backends.cpu.kernels.row_loops import SIGNATURE
from pyflame_rt.backends.cpu.kernels.tiles.control import Loop, add, buffers, floats, least, load_vector, mul
from pyflame_rt.backends.cpu.kernels.tiles.register_tile import (
    GROUP,
    PLAIN,
    Finish,
    Target,
    Tile,
    accumulate,
    accumulate_grouped,
    accumulate_listed,
    accumulate_packed,
    ask_for,
    each_tile,
    finish,
    panel_place,
    pixel_pointers,
    row_pointers,
    rows_together,
    store_sums,
)
from pyflame_rt.graph.cached import cached_property
from pyflame_rt.graph.records import dataclass

__all__ = ["PIXEL_PARAMS", "ROW_PARAMS", "ProductKernel"]

ROW_PARAMS = ("rows", "columns", "depth", "block", "blocks", "source_stride", "stride")
PIXEL_PARAMS = (
    "rows", "columns", "depth", "block", "blocks", "stride", "taps",
    "width", "height", "step_x", "step_y", "step_image", "group_panels", "group_depth",
)  # fmt: skip


@dataclass(frozen=True)
class ProductKernel:
    """Result[row, column] = finish(sum of source[row, k] * weights[k, column]).

    bufs: source, packed weights, operands of the finish, result, further results of the finish. params: ROW_PARAMS, or
    PIXEL_PARAMS for a convolution; then the row strides of "full" operands; then, for a convolution, the offset of each
    tap.
    rows: items, that is blocks of rows times panels, panels fastest.

    A row of a convolution is an output pixel, counted over images, lines and columns; each tap adds ``depth`` products
    from the pixel's address plus the tap's offset. The weights of a pixel kernel are packed by group, panels of one
    group never hold columns of the next; ``columns`` counts those of one group.

    The source "panels" is packed too, as RowPackKernel does: panels of ``rows_together`` rows, in which neighbours are
    rows of one step of the depth. It takes ROW_PARAMS, without use for ``source_stride``.

    Weights that are ``listed`` have only some steps of the depth in each panel, one panel after the other. A buffer
    after them (int64) says where each panel begins and where the last ends, counted in steps, then which steps there
    are. This is for the source "rows".

    Weights that are ``grouped`` keep at most so many in each four of the depth of a column, and lie as
    :func:`accumulate_grouped` reads them: for rows whose depth is a multiple of four, on AVX-512.
    """

    source: Literal["rows", "pixels", "panels"]
    tile: Tile
    finish: Finish = PLAIN
    listed: bool = False
    grouped: int = 0

    @property
    def key(self) -> str:
        """Equal for kernels of equal structure."""
        return self._key

    @cached_property
    def _key(self) -> str:
        t, f = self.tile, self.finish
        listed = " listed" if self.listed else f" {self.grouped} of {GROUP}" if self.grouped else ""
        narrow = "" if t.weights == "float32" else f" {t.weights}"
        return f"product {self.source}{listed} {t.rows}x{t.vectors}{narrow} {','.join(f.operands)} {f.structure}"

    def emit(self, name: str) -> str:
        """The module, as text."""
        b = Builder(this_host())
        b.begin()
        _Product(self, b).emit()
        b.do("ret void")
        b.end(SIGNATURE.format(name=name))
        return b.text()


class _Product:
    def __init__(self, kernel: ProductKernel, b: Builder) -> None:
        self.kernel, self.b, self.tile = kernel, b, kernel.tile
        self.at = Lanes(b, b.host.lanes(4))
        self.width = self.tile.vectors * self.at.lanes
        names = PIXEL_PARAMS if kernel.source == "pixels" else ROW_PARAMS
        self.panel = rows_together(self.tile)
        self.p = {name: b.load_i64("%params", k) for k, name in enumerate(names)}
        cursor = len(names)
        self.strides = []
        for reach in kernel.finish.operands:
            self.strides.append(b.load_i64("%params", cursor) if reach == "full" else "0")
            cursor += reach == "full"
        self.taps = b.element("i64", "%params", str(cursor))

    def emit(self) -> None:
        b, p = self.b, self.p
        count, more = len(self.kernel.finish.operands), len(self.kernel.finish.more)
        listed = int(self.kernel.listed)
        self.source, self.weights, *rest = buffers(b, 3 + listed + count + more)
        self.table, rest = rest[0], rest[listed:]
        self.operands, self.result, self.more = rest[:count], rest[count], rest[count + 1 :]
        self.spill = b.op(f"alloca [{self.tile.rows * self.width} x float], align 64")
        self.totals = b.op(f"alloca [{self.tile.rows * self.width} x float], align 64")
        self.panels = b.integer(f"sdiv {add(b, p['columns'], self.width - 1)}, {self.width}")
        self.deep = p["depth"]
        if self.kernel.source == "pixels":
            self.deep = mul(b, p["depth"], p["taps"])
        with Loop(b, "%begin", "%end") as item:
            self._item(item)

    def _item(self, item: str) -> None:
        b, p = self.b, self.p
        total = p["group_panels"] if self.kernel.source == "pixels" else self.panels
        block, panel = b.integer(f"sdiv {item}, {total}"), b.integer(f"srem {item}, {total}")
        begin = mul(b, panel, self.deep)
        if self.kernel.grouped:
            self.groups = b.integer(f"sdiv {self.deep}, {GROUP}")
            begin = mul(b, mul(b, panel, self.groups), 2 * self.kernel.grouped)
        if self.kernel.listed:
            begin = b.op(f"load i64, ptr {b.element('i64', self.table, panel)}")
            end = b.op(f"load i64, ptr {b.element('i64', self.table, add(b, panel, 1))}")
            steps = b.element("i64", self.table, add(b, begin, add(b, self.panels, 1)))
            self.steps = (steps, b.integer(f"sub {end}, {begin}"))
        weights = panel_place(b, self.tile, self.weights, mul(b, begin, self.width))
        source = self.source
        if self.kernel.source != "pixels":
            first = left_from = mul(b, panel, self.width)
        else:
            group, local = b.integer(f"sdiv {panel}, {self.panels}"), b.integer(f"srem {panel}, {self.panels}")
            left_from = mul(b, local, self.width)
            first = add(b, mul(b, group, p["columns"]), left_from)
            source = floats(b, source, mul(b, group, p["group_depth"]))
        left = b.integer(f"sub {p['columns']}, {left_from}")
        low = mul(b, block, p["block"])
        high = least(b, add(b, low, p["block"]), p["rows"])
        if self.kernel.source == "panels":
            # A lesser tile could reach from one panel into the next.
            with Loop(b, low, high, self.tile.rows) as row:
                rest = b.integer(f"sub {high}, {row}")
                self._tile(self.tile.rows, row, rest, source, weights, first, left)
            return
        each_tile(
            b, self.tile, low, high, lambda size, row, rest: self._tile(size, row, rest, source, weights, first, left)
        )

    def _tile(self, size: int, row: str, rest: str, source: str, weights: str, first: str, left: str) -> None:
        b, at = self.b, self.at
        valid = least(b, rest, size)
        sums = ["zeroinitializer"] * (size * self.tile.vectors)
        strides = tuple(self.strides)
        operands = tuple(
            o if reach == "single" else floats(b, o, first if reach == "column" else add(b, mul(b, row, s), first))
            for o, reach, s in zip(self.operands, self.kernel.finish.operands, strides, strict=True)
        )
        place = add(b, mul(b, row, self.p["stride"]), first)
        start, *more = (floats(b, base, place) for base in (self.result, *self.more))
        target = Target(start, self.p["stride"], operands, strides, tuple(more))
        ask_for(at, self.tile, size, self.kernel.finish, target)
        if self.kernel.source == "rows":
            pointers = row_pointers(b, size, valid, source, row, self.p["source_stride"])
            if self.kernel.listed:
                sums = accumulate_listed(at, self.tile, pointers, weights, self.steps, sums)
            elif self.kernel.grouped:
                kept = self.kernel.grouped
                sums = accumulate_grouped(at, self.tile, pointers, weights, kept, self.groups, sums)
            else:
                sums, _ = accumulate(at, self.tile, pointers, weights, self.p["depth"], sums)
        elif self.kernel.source == "panels":
            which, inside = b.integer(f"udiv {row}, {self.panel}"), b.integer(f"urem {row}, {self.panel}")
            start = floats(b, source, add(b, mul(b, mul(b, which, self.p["depth"]), self.panel), inside))
            sums = accumulate_packed(at, self.tile, start, self.panel, weights, self.p["depth"], sums)
        else:
            sums = self._taps(pixel_pointers(b, self.p, size, row, valid, source), weights)
        finish(at, self.tile, size, sums, self.kernel.finish, target, self.spill, valid, left)

    def _taps(self, pointers: list[str], weights: str) -> list[str]:
        """Sums of each tap, added up in memory: the error of one sum over all would be several times as large."""
        b, at = self.b, self.at
        count = len(pointers) * self.tile.vectors
        loop = Loop(b, "0", self.p["taps"], 1, [("ptr", weights)])
        tap, (panel,) = loop.open()
        offset = b.op(f"load i64, ptr {b.element('i64', self.taps, tap)}")
        moved = [floats(b, pointer, offset) for pointer in pointers]
        values, panel = accumulate(at, self.tile, moved, panel, self.p["depth"], ["zeroinitializer"] * count)
        store_sums(at, [V(at, "float", v) for v in values], self.totals, b.op(f"icmp sgt i64 {tap}, 0"))
        loop.close([panel])
        return [load_vector(at, floats(b, self.totals, k * at.lanes)).name for k in range(count)]
