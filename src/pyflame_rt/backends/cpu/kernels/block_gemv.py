"""A few rows times a matrix of 4- or 8-bit weights with a scale for each block: as fast as the weights come in.

A lane is a column; its word holds the weights of eight (or four) neighbours of the depth. Weights become floats in
registers: through a table where the machine has one of 16 floats, else by shifting and converting.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.backends.cpu.ir.builder import Builder, Lanes, V
from pyflame_rt.backends.cpu.ir.loops import load_vector, loop, splat_load, store_vector, tail_mask
from pyflame_rt.backends.cpu.jit.target import host as this_host
from pyflame_rt.backends.cpu.kernels.row_loops import SIGNATURE
from pyflame_rt.graph.cached import cached_property
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from pyflame_rt.backends.cpu.jit.target import Host

__all__ = ["BlockGemvKernel", "block_words"]

_TABLE = ", ".join(f"float {float(k - 8)}" for k in range(16))


@dataclass(frozen=True)
class BlockGemvKernel:
    """y[row] = x[row] W (+ bias), W of so many bits, in panels of ``vectors`` vectors of columns.

    bufs: x, words [panels, blocks, words of a block, columns], scales [panels, blocks, columns], with ``shifted`` the
    products of scales and zero points (less half the range) in the same form, with ``biased`` one number for each
    column, y. params: [blocks, columns, stride of x, stride of y]. rows: panels.

    Attributes:
        bits: of a weight, 4 or 8.
        block: weights of a column that share a scale.
        rows: of x.
        vectors: of columns in a panel.
        shifted: weights have zero points besides half the range.
        biased: a bias is added.
    """

    bits: int
    block: int
    rows: int
    vectors: int
    shifted: bool = False
    biased: bool = False

    @property
    def key(self) -> str:
        """Equal for kernels of equal structure."""
        return self._key

    @cached_property
    def _key(self) -> str:
        marks = f"{' shifted' if self.shifted else ''}{' biased' if self.biased else ''}"
        return f"block gemv {self.bits} {self.block} {self.rows}x{self.vectors}{marks}"

    def emit(self, name: str, host: Host | None = None) -> str:
        """The module, as text."""
        b = Builder(host or this_host())
        b.begin()
        _BlockGemv(self, b).emit()
        b.do("ret void")
        b.end(SIGNATURE.format(name=name))
        return b.text()


class _BlockGemv:
    def __init__(self, kernel: BlockGemvKernel, b: Builder) -> None:
        self.kernel, self.b = kernel, b
        self.at = Lanes(b, b.host.lanes(4))
        self.width = kernel.vectors * self.at.lanes
        self.each = 32 // kernel.bits  # weights of a word

    def emit(self) -> None:
        b, kernel = self.b, self.kernel
        count = 4 + kernel.shifted + kernel.biased
        found = [b.op(f"load ptr, ptr {b.element('ptr', '%bufs', str(k))}") for k in range(count)]
        self.x, self.words, self.scales = found[:3]
        self.shifts = found[3] if kernel.shifted else ""
        self.bias, self.y = found[-2] if kernel.biased else "", found[-1]
        self.blocks, self.columns, self.x_stride, self.y_stride = (b.load_i64("%params", k) for k in range(4))
        loop(b, "%begin", "%end", 1, [], self._panel)

    def _panel(self, panel: str, _: list[V]) -> list[V]:
        b, at, kernel = self.b, self.at, self.kernel
        first = b.integer(f"mul {panel}, {self.blocks}")
        count = kernel.rows * kernel.vectors
        zeros = [at.const("float", 0.0)] * count

        def block(k: str, totals: list[V]) -> list[V]:
            place = b.integer(f"add {first}, {k}")
            start = b.integer(f"mul {k}, {kernel.block}")
            rows = [
                b.element("float", self.x, b.integer(f"add {start}, {b.integer(f'mul {self.x_stride}, {r}')}"))
                for r in range(kernel.rows)
            ]
            sums = self._block(place, rows)
            offset = b.integer(f"mul {place}, {self.width}")
            scales = self._vectors(self.scales, offset)
            news = [at.fma(s, scales[i % kernel.vectors], t) for i, (s, t) in enumerate(zip(sums, totals, strict=True))]
            if kernel.shifted:
                shifts, sums_x = self._vectors(self.shifts, offset), [self._row_sum(row) for row in rows]
                news = [at.fma(-shifts[i % kernel.vectors], sums_x[i // kernel.vectors], t) for i, t in enumerate(news)]
            return news

        totals = loop(b, "0", self.blocks, 1, zeros, block)
        column = b.integer(f"mul {panel}, {self.width}")
        for i, total in enumerate(totals):
            r, v = divmod(i, kernel.vectors)
            self._store(total, r, b.integer(f"add {column}, {v * at.lanes}"))
        return []

    def _vectors(self, base: str, offset: str) -> list[V]:
        b, at = self.b, self.at
        start = b.element("float", base, offset)
        return [load_vector(at, b.element("float", start, str(v * at.lanes))) for v in range(self.kernel.vectors)]

    def _block(self, place: str, rows: list[str]) -> list[V]:
        """Sums of a block, before they are scaled."""
        b, at, kernel = self.b, self.at, self.kernel
        words = kernel.block // self.each
        start = b.element("i32", self.words, b.integer(f"mul {place}, {words * self.width}"))
        sums = [at.const("float", 0.0)] * (kernel.rows * kernel.vectors)

        def word(k: str, before: list[V]) -> list[V]:
            now = list(before)
            line = b.element("i32", start, b.integer(f"mul {k}, {self.width}"))
            packed = [
                load_vector(at, b.element("i32", line, str(v * at.lanes)), elem="i32") for v in range(kernel.vectors)
            ]
            depth = b.integer(f"mul {k}, {self.each}")
            for j in range(self.each):
                numbers = [self._number(p, j) for p in packed]
                for r, row in enumerate(rows):
                    x = splat_load(at, b.element("float", b.element("float", row, depth), str(j)))
                    for v, number in enumerate(numbers):
                        now[r * kernel.vectors + v] = at.fma(number, x, now[r * kernel.vectors + v])
            return now

        return loop(b, "0", str(words), 1, sums, word)

    def _number(self, word: V, j: int) -> V:
        """The weight at a place of a word, less half the range."""
        b, at, bits = self.b, self.at, self.kernel.bits
        if bits == 4 and at.lanes == 16:
            moved = at.bin("lshr", word, 4 * j) if j else word
            table, kind = f"<{_TABLE}>", at.type("float")
            args = [(kind, table), (word.kind, moved.name)]
            return V(at, "float", b.call(kind, "llvm.x86.avx512.permvar.sf.512", args))
        # The top bit was turned when weights were packed: they are signed.
        up = 32 - bits * (j + 1)
        moved = (word << up if up else word) >> (32 - bits)
        return moved.to("sitofp", "float")

    def _row_sum(self, row: str) -> V:
        b, one = self.b, Lanes(self.b, 1)

        def add(k: str, now: list[V]) -> list[V]:
            return [now[0] + load_vector(one, b.element("float", row, k))]

        (total,) = loop(b, "0", str(self.kernel.block), 1, [one.const("float", 0.0)], add)
        return self.at.splat("float", total.name)

    def _store(self, total: V, row: int, column: str) -> None:
        b, at = self.b, self.at
        mask = tail_mask(at, column, self.columns)
        if self.kernel.biased:
            total = total + load_vector(at, b.element("float", self.bias, column), mask)
        place = b.integer(f"add {column}, {b.integer(f'mul {self.y_stride}, {row}')}")
        store_vector(total, b.element("float", self.y, place), mask)


def block_words(weights: np.ndarray[Any, Any], bits: int, width: int, *, table: bool) -> np.ndarray[Any, Any]:
    """Weights [columns, blocks, block] of 8-bit numbers as words [panels, blocks, words, width]; ``table``: unsigned.

    Example:
        >>> block_words(np.arange(8, dtype=np.uint8).reshape(1, 1, 8), 4, 1, table=True).tolist() == [[[[0x76543210]]]]
        True
    """
    columns, blocks, size = weights.shape
    each, panels = 32 // bits, -(-columns // width)
    numbers = weights if table else weights ^ np.uint8(1 << (bits - 1))
    words = np.zeros((panels * width, blocks, size // each), np.uint32)
    split = numbers.reshape(columns, blocks, size // each, each)
    for j in range(each):
        words[:columns] |= split[..., j].astype(np.uint32) << np.uint32(bits * j)
    return np.ascontiguousarray(words.reshape(panels, width, blocks, -1).transpose(0, 2, 3, 1))
