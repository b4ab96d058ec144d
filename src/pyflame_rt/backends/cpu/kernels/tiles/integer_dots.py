"""Products of 8-bit integers with exact sums of 32 bits: one description, an instruction set each.

A *group* is four neighbours of the depth: four bytes of a row, unsigned, meet four signed bytes of each column. Where
the machine has VNNI one instruction adds all four products to a sum. Elsewhere bytes become 16-bit numbers, the even
ones and the odd ones of a group, and an instruction adds two products: nothing saturates in either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pyflame_rt.backends.cpu.kernels.tiles.register_tile import Tile, ask_ahead
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame_rt.backends.cpu.ir.builder import Lanes
    from pyflame_rt.backends.cpu.jit.target import Host

__all__ = ["GROUP", "PAIRS", "VNNI", "Dots", "dots_for", "integer_tile", "packed_weights"]

GROUP = 4  # bytes of a row that are read at once
_AHEAD = 2048  # bytes of the panel asked for ahead
VNNI = {32: "llvm.x86.avx512.vpdpbusd.256", 64: "llvm.x86.avx512.vpdpbusd.512"}
PAIRS = {16: "llvm.x86.sse2.pmadd.wd", 32: "llvm.x86.avx2.pmadd.wd", 64: "llvm.x86.avx512.pmaddw.d.512"}
_TOP_BITS, _EVEN_BYTES = -2139062144, 0x00FF00FF  # 0x80808080
_ONES = {"vnni": 0x01010101, "pairs": 0x00010001}


@dataclass(frozen=True)
class Dots:
    """How a machine adds products of bytes, in vectors of so many lanes of 32 bits."""

    kind: Literal["vnni", "pairs"]
    lanes: int

    @property
    def group_bytes(self) -> int:
        """Bytes of one column for one group: weights are stored as they are multiplied."""
        return GROUP if self.kind == "vnni" else 2 * GROUP

    @property
    def parts(self) -> int:
        """Vectors that the weights of a group make for each vector of columns: the even ones and the odd ones."""
        return self.group_bytes // GROUP

    def columns(self, at: Lanes, place: str, part: int, vectors: int) -> list[str]:
        """Weights of a group, or its even or odd ones, for all columns of a tile."""
        b, kind, size = at.builder, at.type("i32"), 4 * self.lanes
        offsets = [(part * vectors + v) * size for v in range(vectors)]
        return [b.op(f"load {kind}, ptr {b.element('i8', place, str(o))}, align 1") for o in offsets]

    def ones(self, at: Lanes) -> str:
        """Weights of one, for the sum of a row."""
        return at.const("i32", _ONES[self.kind]).name

    def row(self, at: Lanes, word: str, *, signed: bool) -> list[str]:
        """Four bytes of a row, an i32, in every lane, ready to be multiplied; signed ones are moved up by 128."""
        b, value = at.builder, at.splat("i32", word)
        value = value ^ _TOP_BITS if signed else value
        if self.kind == "vnni":
            return [value.name]
        short = f"<{2 * self.lanes} x i16>"
        halves = b.op(f"bitcast {value.kind} {value.name} to {short}")
        odd = b.op(f"lshr {short} {halves}, splat (i16 8)")
        return [(value & _EVEN_BYTES).name, b.op(f"bitcast {short} {odd} to {value.kind}")]

    def _add(self, at: Lanes, total: str, row: str, column: str) -> str:
        """The sum and the products of a group, or of its even or odd bytes."""
        b, kind = at.builder, at.type("i32")
        if self.kind == "vnni":
            return b.call(kind, VNNI[4 * self.lanes], [(kind, total), (kind, row), (kind, column)])
        short = f"<{2 * self.lanes} x i16>"
        left, right = (b.op(f"bitcast {kind} {v} to {short}") for v in (row, column))
        product = b.call(kind, PAIRS[4 * self.lanes], [(short, left), (short, right)])
        total = b.op(f"add {kind} {total}, {product}")
        # LLVM would add up products of several turns first, for which there are too few registers.
        return b.op(f'call {kind} asm "", "=x,0"({kind} {total})')

    def turn(
        self, at: Lanes, tile: Tile, words: Sequence[str], panel: str, sums: Sequence[str], *, signed: bool, rows: bool
    ) -> list[str]:
        """One group for all rows of a tile; with ``rows`` their own sums follow those of the columns."""
        ask_ahead(at.builder, at.builder.element("i8", panel, str(_AHEAD)))
        result, count = list(sums), len(words) * tile.vectors
        for part in range(self.parts):
            columns = self.columns(at, panel, part, tile.vectors)
            for r, word in enumerate(words):
                value = self.row(at, word, signed=signed)[part]
                for v, column in enumerate(columns):
                    place = r * tile.vectors + v
                    result[place] = self._add(at, result[place], value, column)
                if rows:
                    result[count + r] = self._add(at, result[count + r], value, self.ones(at))
        return result


def dots_for(host: Host) -> Dots | None:
    """What this machine multiplies bytes with; None where there is nothing better than floats."""
    has = set(host.features.split(","))
    lanes = host.vector_bytes // 4
    if lanes == 16 and "+avx512vnni" in has:
        return Dots("vnni", lanes)
    if lanes == 8 and ("+avxvnni" in has or {"+avx512vnni", "+avx512vl"} <= has):
        return Dots("vnni", lanes)
    return Dots("pairs", lanes) if "+sse2" in has else None


def integer_tile(host: Host, dots: Dots, rows: int | None, columns: int, *, sums: bool = False) -> Tile:
    """Rows and vectors of a tile: as many as registers hold, and as few rows computed in vain as can be.

    ``rows`` is None where their number is not known; ``sums`` asks for the sums of rows too.
    """
    # Besides sums, registers hold a row and the weights of a group; where a row takes instructions to take apart, wide
    # tiles do so less often.
    limit = 24 if host.registers >= 32 else 12 if dots.kind == "vnni" else 10
    apart: tuple[int, ...] = (4,) if columns > 2 * dots.lanes else (2,)
    widths = (4, 2, 3) if host.registers >= 32 else (2, 3) if dots.kind == "vnni" else apart
    if columns <= dots.lanes:
        widths = (1,)
    many = 10_000 if rows is None else max(rows, 1)

    def cost(tile: Tile) -> float:
        """Products that are computed, in vain too, and something for every row and vector of a tile."""
        tiles = -(-many // tile.rows) * -(-columns // (tile.vectors * dots.lanes))
        return tiles * (tile.rows * tile.vectors + 0.7 * tile.vectors + 0.35 * tile.rows)

    heights = {v: min(limit // (v + sums), many) for v in widths}
    return min((Tile(n, v) for v, most in heights.items() for n in range(most, most // 2, -1)), key=cost)


def packed_weights(matrix: np.ndarray[Any, Any], width: int, runs: int, dots: Dots) -> np.ndarray[Any, Any]:
    """Weights [depth, columns] of int8 in panels of ``width`` columns; each of ``runs`` parts has whole groups.

    Example:
        >>> matrix = np.arange(6, dtype=np.int8).reshape(3, 2)
        >>> packed_weights(matrix, 2, 1, Dots("vnni", 1)).tolist()
        [[[[0, 2, 4, 0], [1, 3, 5, 0]]]]
    """
    depth, columns = matrix.shape
    each = depth // runs
    groups, panels = -(-each // GROUP), -(-columns // width)
    wide = np.zeros((runs, groups * GROUP, panels * width), np.int8)
    wide[:, :each, :columns] = matrix.reshape(runs, each, columns)
    parts = wide.reshape(runs * groups, GROUP, panels, width).transpose(2, 0, 3, 1)
    if dots.kind == "vnni":
        return np.ascontiguousarray(parts)
    halves = parts.reshape(*parts.shape[:3], 2, 2).transpose(0, 1, 4, 2, 3)
    return np.ascontiguousarray(halves, np.int16)
