"""Products of 4- or 8-bit weights in blocks with 8-bit rows, sums exact: one description, an instruction set each.

A lane is a column. Its word holds the weights of four neighbours of the depth, or of eight: four in the low halves of
its bytes, the next four in the high ones. They meet four signed bytes of a row, which lie between -127 and 127. Where
the machine has VNNI one instruction adds four products to a sum. Elsewhere one makes sums of two products in 16 bits,
which hold them: eight of 4-bit weights, one of 8-bit weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pyflame_rt.backends.cpu.ir.builder import V
from pyflame_rt.backends.cpu.ir.loops import load_vector, splat_load
from pyflame_rt.backends.cpu.kernels.tiles.integer_dots import PAIRS, VNNI
from pyflame_rt.backends.cpu.kernels.tiles.register_tile import Tile, ask_ahead
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame_rt.backends.cpu.ir.builder import Lanes
    from pyflame_rt.backends.cpu.jit.target import Host

__all__ = ["CHUNK", "BlockDots", "block_dots", "block_tile", "byte_words", "padded"]

MOST_ROWS = 8  # of a tile
CHUNK = 32  # of the depth: as many products of a 4-bit weight and a byte as sums of 16 bits hold
_AHEAD = 1024  # bytes of a panel asked for ahead: what lies beyond its end is another tile's
_LOW_HALVES = 0x0F0F0F0F
_PRODUCTS = "llvm.x86.avx2.pmadd.ub.sw"
_SIGNS = "llvm.x86.avx2.psign.b"


@dataclass(frozen=True)
class BlockDots:
    """How a machine adds products of weights of so many bits and bytes, in vectors of so many lanes of 32 bits."""

    kind: Literal["vnni", "bytes"]
    lanes: int
    bits: int

    @property
    def offset(self) -> int:
        """What weights are stored less: they are signed where instructions take their signs apart."""
        return 128 if self.kind == "bytes" and self.bits == 8 else 0

    @property
    def each(self) -> int:
        """Weights in a word."""
        return 32 // self.bits

    def chunk(self, at: Lanes, size: int, rows: Sequence[str], panels: Sequence[str], sums: Sequence[V]) -> list[V]:
        """Sums and the products of ``size`` steps of the depth: addresses of rows' bytes and of panels' words."""
        return (self._by_fours if self.kind == "vnni" else self._by_twos)(at, size, rows, panels, sums)

    def _weights(self, at: Lanes, panels: Sequence[str], word: int) -> list[list[V]]:
        """For each group of four of a word, the weights of all columns."""
        b = at.builder
        places = [b.element("i32", panel, str(word * self.lanes)) for panel in panels]
        for place in places:
            ask_ahead(b, b.element("i8", place, str(_AHEAD)))
        words = [load_vector(at, place, elem="i32") for place in places]
        if self.bits == 8:
            return [words]
        return [[w & _LOW_HALVES for w in words], [at.bin("lshr", w, 4) & _LOW_HALVES for w in words]]

    def _by_fours(self, at: Lanes, size: int, rows: Sequence[str], panels: Sequence[str], sums: Sequence[V]) -> list[V]:
        b, kind, news, place = at.builder, at.type("i32"), list(sums), 0
        for word in range(size // self.each):
            for weights in self._weights(at, panels, word):
                for r, row in enumerate(rows):
                    x = splat_load(at, b.element("i8", row, str(place)), "i32")
                    for v, w in enumerate(weights):
                        args = [(kind, value.name) for value in (news[r * len(panels) + v], w, x)]
                        news[r * len(panels) + v] = V(at, "i32", b.call(kind, VNNI[4 * self.lanes], args))
                place += 4
        return news

    def _by_twos(self, at: Lanes, size: int, rows: Sequence[str], panels: Sequence[str], sums: Sequence[V]) -> list[V]:
        b, news, place = at.builder, list(sums), 0
        short: list[str | None] = [None] * len(news)
        for word in range(size // self.each):
            for weights in self._weights(at, panels, word):
                for r, row in enumerate(rows):
                    x = splat_load(at, b.element("i8", row, str(place)), "i32")
                    for v, w in enumerate(weights):
                        k, pairs = r * len(panels) + v, self._pairs(at, w, x)
                        before = short[k]
                        half = f"<{2 * self.lanes} x i16>"
                        short[k] = pairs if before is None else b.op(f"add {half} {before}, {pairs}")
                        if self.bits == 8:
                            news[k], short[k] = news[k] + self._widened(at, pairs), None
                place += 4
        return [
            total if pairs is None else total + self._widened(at, pairs)
            for total, pairs in zip(news, short, strict=True)
        ]

    def _pairs(self, at: Lanes, weights: V, row: V) -> str:
        """Sums of two products, in 16 bits."""
        b, small, half = at.builder, f"<{4 * self.lanes} x i8>", f"<{2 * self.lanes} x i16>"
        w, x = (b.op(f"bitcast {value.kind} {value.name} to {small}") for value in (weights, row))
        if self.bits == 8:
            # At most 128 * 127 * 2: bytes of rows are never -128.
            x = b.call(small, _SIGNS, [(small, x), (small, w)])
            w = b.call(small, f"llvm.abs.v{4 * self.lanes}i8", [(small, w), ("i1", "false")])
        return b.call(half, _PRODUCTS, [(small, w), (small, x)])

    def _widened(self, at: Lanes, pairs: str) -> V:
        b, half = at.builder, f"<{2 * self.lanes} x i16>"
        args = [(half, pairs), (half, "splat (i16 1)")]
        return V(at, "i32", b.call(at.type("i32"), PAIRS[4 * self.lanes], args))


def block_dots(host: Host, bits: int) -> BlockDots | None:
    """What this machine multiplies weights in blocks with; None where there is nothing better than floats."""
    has = set(host.features.split(","))
    lanes = host.vector_bytes // 4
    if lanes == 16 and "+avx512vnni" in has:
        return BlockDots("vnni", 16, bits)
    if lanes == 8 and ({"+avx512vnni", "+avx512vl"} <= has or "+avxvnni" in has):
        return BlockDots("vnni", 8, bits)
    return BlockDots("bytes", 8, bits) if "+avx2" in has else None


def block_tile(host: Host, rows: int | None, columns: int, lanes: int) -> Tile:
    """Rows and vectors of a tile; rows is None where they are many.

    Tiles of equal height, as few as there can be: rows beyond the last would be multiplied for nothing. Sums of a block
    stay in registers, those of all blocks are in the nearest cache where there are many rows.
    """
    vectors, many = -(-columns // lanes), host.registers >= 32
    tiles = 1 if rows is None else -(-rows // MOST_ROWS)
    height = MOST_ROWS if rows is None else -(-rows // tiles)
    if height <= (3 if many else 1):
        wide = 4
    else:
        wide = 2 if many or height <= 4 else 1
    return Tile(height, min(wide, vectors if vectors < 3 else 4))


def byte_words(weights: np.ndarray[Any, Any], dots: BlockDots) -> np.ndarray[Any, Any]:
    """Weights [columns, blocks, block] of 8-bit numbers as words [vectors of columns, blocks, words, lanes].

    Example:
        >>> numbers = np.arange(8, dtype=np.uint8).reshape(1, 1, 8)
        >>> [hex(w) for w in byte_words(numbers, BlockDots("vnni", 1, 4)).ravel()]
        ['0x73625140']
    """
    columns, blocks, size = weights.shape
    numbers = weights ^ np.uint8(dots.offset)
    if dots.bits == 4:
        halves = numbers.reshape(columns, blocks, size // 8, 2, 4)
        numbers = halves[..., 0, :] | (halves[..., 1, :] << 4)
    words = np.ascontiguousarray(numbers.reshape(columns, -1)).view("<u4")
    wide = np.zeros((padded(columns, dots.lanes), words.shape[1]), np.uint32)
    wide[:columns] = words
    return np.ascontiguousarray(wide.reshape(-1, dots.lanes, blocks, size // dots.each).transpose(0, 2, 3, 1))


def padded(columns: int, lanes: int) -> int:
    """Columns with those that make whole tiles of one, two or four vectors."""
    vectors = -(-columns // lanes)
    return lanes * (vectors if vectors < 3 else -(-vectors // 4) * 4)
