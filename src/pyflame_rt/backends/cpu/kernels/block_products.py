"""Rows of bytes in blocks times weights of 4 or 8 bits in blocks: exact sums of a block, float32 sums of blocks.

The panels of a tile are read side by side, one for each vector of columns, so that one packed form serves tiles of all
sizes. A single row goes through them as fast as they come from memory; more rows share what was unpacked.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pyflame_rt.backends.cpu.ir.builder import Builder, Lanes, V
from pyflame_rt.backends.cpu.ir.loops import load_vector, loop, splat_load
from pyflame_rt.backends.cpu.jit.target import host as this_host
from pyflame_rt.backends.cpu.kernels.block_bytes import RECORD
from pyflame_rt.backends.cpu.kernels.row_loops import SIGNATURE
from pyflame_rt.backends.cpu.kernels.tiles.block_dots import CHUNK
from pyflame_rt.backends.cpu.kernels.tiles.control import Loop, add, buffers, floats, least, mul
from pyflame_rt.backends.cpu.kernels.tiles.register_tile import PLAIN, Finish, Target, Tile, finish, row_pointers
from pyflame_rt.graph.cached import cached_property
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from pyflame_rt.backends.cpu.jit.target import Host
    from pyflame_rt.backends.cpu.kernels.tiles.block_dots import BlockDots

__all__ = ["BlockProductKernel"]

_POINTS = {"uint8": ("i8", "uitofp"), "int8": ("i8", "sitofp")}


@dataclass(frozen=True)
class BlockProductKernel:
    """Result[row, column] = finish(sum over blocks of scale * row's scale * sum of (weight - point) * byte).

    bufs: records of rows (`BlockBytesKernel`), words and scales [vectors of columns, blocks, (words,) lanes], with
    ``points`` the zero points in the form of the scales, operands of the finish, result, further results of the
    finish. Without points the sums in records are those of bytes times the zero point, negated; with them times -1.
    params: [rows, columns, blocks, rows of a block of rows, vectors of columns with those that fill the last tile,
    stride of the result], then the row strides of "full" operands. rows: blocks of rows times tiles of columns, these
    fastest.
    """

    dots: BlockDots
    tile: Tile
    block: int
    scales: str = "float32"
    points: str = ""
    finish: Finish = PLAIN

    @property
    def key(self) -> str:
        """Equal for kernels of equal structure."""
        return self._key

    @cached_property
    def _key(self) -> str:
        d, t, f = self.dots, self.tile, self.finish
        form = f"{d.kind}{d.lanes} {d.bits} bits {self.block} {t.rows}x{t.vectors} {self.scales} {self.points}"
        return f"block product {form} {','.join(f.operands)} {f.structure}"

    def emit(self, name: str, host: Host | None = None) -> str:
        """The module, as text."""
        b = Builder(host or this_host())
        b.begin()
        _BlockProduct(self, b).emit()
        b.do("ret void")
        b.end(SIGNATURE.format(name=name))
        return b.text()


class _BlockProduct:
    def __init__(self, kernel: BlockProductKernel, b: Builder) -> None:
        self.kernel, self.b, self.tile = kernel, b, kernel.tile
        self.at = Lanes(b, kernel.dots.lanes)
        self.width = kernel.tile.vectors * kernel.dots.lanes
        self.words = kernel.block // kernel.dots.each  # of a block, in each lane

    def emit(self) -> None:
        b, kernel = self.b, self.kernel
        fixed, count = 4 if kernel.points else 3, len(kernel.finish.operands)
        found = buffers(b, fixed + count + 1 + len(kernel.finish.more))
        self.records, self.packed, self.scales = found[:3]
        self.points = found[3] if kernel.points else ""
        self.operands, self.results = found[fixed : fixed + count], found[fixed + count :]
        self.rows, self.columns, self.blocks, self.block, vectors, self.stride = (
            b.load_i64("%params", k) for k in range(6)
        )
        self.strides, cursor = [], 6
        for reach in kernel.finish.operands:
            self.strides.append(b.load_i64("%params", cursor) if reach == "full" else "0")
            cursor += reach == "full"
        self.row_bytes = mul(b, self.blocks, kernel.block + RECORD)
        self.panel_words = mul(b, self.blocks, self.words * self.at.lanes)
        self.panel_scales = mul(b, self.blocks, self.at.lanes)
        self.spill = b.op(f"alloca [{self.tile.rows * self.width} x float], align 64")
        self.tiles = b.integer(f"udiv {vectors}, {self.tile.vectors}")
        with Loop(b, "%begin", "%end") as item:
            self._item(item)

    def _item(self, item: str) -> None:
        b, tile = self.b, self.tile
        block, column = b.integer(f"udiv {item}, {self.tiles}"), b.integer(f"urem {item}, {self.tiles}")
        vectors = [add(b, mul(b, column, tile.vectors), v) for v in range(tile.vectors)]
        low = mul(b, block, self.block)
        high = least(b, add(b, low, self.block), self.rows)
        first = mul(b, column, self.width)
        left = b.integer(f"sub {self.columns}, {first}")
        with Loop(b, low, high, tile.rows) as row:
            self._tile(row, b.integer(f"sub {high}, {row}"), vectors, first, left)

    def _tile(self, row: str, rest: str, vectors: list[str], first: str, left: str) -> None:
        b, at, tile, plan = self.b, self.at, self.tile, self.kernel.finish
        valid = least(b, rest, tile.rows)
        rows = row_pointers(b, tile.rows, valid, self.records, row, self.row_bytes, "i8")
        words = [b.element("i32", self.packed, mul(b, v, self.panel_words)) for v in vectors]
        scales = [self._element(self.kernel.scales, self.scales, mul(b, v, self.panel_scales)) for v in vectors]
        points = [self._element(self.kernel.points, self.points, mul(b, v, self.panel_scales)) for v in vectors]

        def body(k: str, totals: list[V]) -> list[V]:
            place, inside = mul(b, k, self.kernel.block + RECORD), mul(b, k, at.lanes)
            records = [b.element("i8", r, place) for r in rows]
            panels = [b.element("i32", w, mul(b, k, self.words * at.lanes)) for w in words]
            sums = self._sums(records, panels)
            spots = [self._element(self.kernel.points, p, inside) for p in points]
            steps = [self._element(self.kernel.scales, s, inside) for s in scales]
            return self._scaled(records, sums, spots, steps, totals)

        totals = loop(b, "0", self.blocks, 1, [at.const("float", 0.0)] * (tile.rows * tile.vectors), body)
        operands = tuple(
            o if reach == "single" else floats(b, o, first if reach == "column" else add(b, mul(b, row, s), first))
            for o, reach, s in zip(self.operands, plan.operands, self.strides, strict=True)
        )
        place = add(b, mul(b, row, self.stride), first)
        start, *more = (floats(b, base, place) for base in self.results)
        target = Target(start, self.stride, operands, tuple(self.strides), tuple(more))
        finish(at, tile, tile.rows, [t.name for t in totals], plan, target, self.spill, valid, left)

    def _sums(self, records: list[str], panels: list[str]) -> list[V]:
        """Exact sums of one block, for all rows and vectors."""
        b, at, kernel, size = self.b, self.at, self.kernel, self.kernel.block
        chunk = math.gcd(size, CHUNK)
        starts = [at.const("i32", 0)] * (len(records) * len(panels))
        if not kernel.points:
            corrections = [splat_load(at, b.element("i8", record, str(size + 4)), "i32") for record in records]
            starts = [correction for correction in corrections for _ in panels]
        if size == chunk:
            return kernel.dots.chunk(at, size, records, panels, starts)

        def body(k: str, sums: list[V]) -> list[V]:
            bytes_at = [b.element("i8", record, mul(b, k, chunk)) for record in records]
            words_at = [b.element("i32", p, mul(b, k, chunk // kernel.dots.each * at.lanes)) for p in panels]
            return kernel.dots.chunk(at, chunk, bytes_at, words_at, sums)

        return loop(b, "0", str(size // chunk), 1, starts, body)

    def _scaled(
        self, records: list[str], sums: list[V], points: list[str], scales: list[str], totals: list[V]
    ) -> list[V]:
        b, at, count, size = self.b, self.at, len(scales), self.kernel.block
        factors = [self._numbers(self.kernel.scales, place) for place in scales]
        zeros = [self._numbers(self.kernel.points, place) for place in points] if self.points else []
        news = []
        for r, record in enumerate(records):
            scale = splat_load(at, b.element("i8", record, str(size)))
            bytes_sum = splat_load(at, b.element("i8", record, str(size + 4)), "i32") if zeros else None
            for v, factor in enumerate(factors):
                value = sums[r * count + v].to("sitofp", "float")
                if bytes_sum is not None:
                    # All of these are whole numbers that float32 holds, so this is exact.
                    value = at.fma(zeros[v], bytes_sum.to("sitofp", "float"), value)
                news.append(at.fma(value * factor, scale, totals[r * count + v]))
        return news

    def _element(self, dtype: str, base: str, position: str) -> str:
        kinds = {"float32": "float", "float16": "half"}
        return self.b.element(kinds.get(dtype, "i8"), base, position) if base else ""

    def _numbers(self, dtype: str, place: str) -> V:
        """Scales or zero points as float32."""
        at = self.at
        if dtype == "float32":
            return load_vector(at, place)
        if dtype == "float16":
            return at.wrap("half", f"load {at.type('half')}, ptr {place}, align 2").to("fpext", "float")
        kind, conversion = _POINTS[dtype]
        return at.wrap(kind, f"load {at.type(kind)}, ptr {place}, align 1").to(conversion, "float")
