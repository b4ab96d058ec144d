"""Products of rows with rows in any floating type: both operands are read along the depth, nothing is packed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyflame_rt.backends.cpu.ir.builder import Builder, Lanes, V
from pyflame_rt.backends.cpu.jit.target import host as this_host
from pyflame_rt.backends.cpu.kernels.row_loops import SIGNATURE
from pyflame_rt.backends.cpu.kernels.tiles.control import Loop, add, buffers, least, mul
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["DOT_PARAMS", "DotKernel"]

DOT_PARAMS = (
    "rows", "columns", "depth", "blocks", "panels", "left_row", "right_row", "result_row", "result_column",
    "left_batch", "right_batch", "result_batch", "outer", "left_outer", "right_outer", "result_outer",
)  # fmt: skip
_ELEMENTS = {"float64": ("double", 8), "float32": ("float", 4)}


@dataclass(frozen=True)
class DotKernel:
    """Result[batch, row, column] = sum over k of left[batch, row, k] * right[batch, column, k].

    The batch has two axes, each with strides of its own; ``outer`` is the size of the first.
    ``blocks`` and ``panels`` say into how many pieces rows and columns are divided.

    bufs: left, right, result. params: DOT_PARAMS. rows: items, that is batch times blocks times panels, panels fastest.
    """

    dtype: str
    rows: int = 4
    columns: int = 3

    @property
    def key(self) -> str:
        """Equal for kernels of equal structure."""
        return f"dots {self.dtype} {self.rows}x{self.columns}"

    def emit(self, name: str) -> str:
        """The module, as text."""
        b = Builder(this_host())
        b.begin()
        _Dots(self, b).emit()
        b.do("ret void")
        b.end(SIGNATURE.format(name=name))
        return b.text()


class _Dots:
    def __init__(self, kernel: DotKernel, b: Builder) -> None:
        self.kernel, self.b = kernel, b
        self.elem, size = _ELEMENTS[kernel.dtype]
        self.at = Lanes(b, max(1, b.host.vector_bytes // size))
        self.p = {name: b.load_i64("%params", k) for k, name in enumerate(DOT_PARAMS)}

    def emit(self) -> None:
        b, p = self.b, self.p
        left, right, result = buffers(b, 3)
        pieces = mul(b, p["blocks"], p["panels"])
        tall, wide = self._share(p["rows"], p["blocks"]), self._share(p["columns"], p["panels"])
        with Loop(b, "%begin", "%end") as item:
            batch, piece = b.integer(f"udiv {item}, {pieces}"), b.integer(f"urem {item}, {pieces}")
            block, panel = b.integer(f"udiv {piece}, {p['panels']}"), b.integer(f"urem {piece}, {p['panels']}")
            outer, inner = b.integer(f"urem {batch}, {p['outer']}"), b.integer(f"udiv {batch}, {p['outer']}")
            starts = []
            for pointer, which in ((left, "left"), (right, "right"), (result, "result")):
                moved = add(b, mul(b, outer, p[f"{which}_outer"]), mul(b, inner, p[f"{which}_batch"]))
                starts.append(self._move(pointer, moved))
            low, first = mul(b, block, tall), mul(b, panel, wide)
            high, last = least(b, add(b, low, tall), p["rows"]), least(b, add(b, first, wide), p["columns"])
            with Loop(b, first, last, self.kernel.columns) as column, Loop(b, low, high, self.kernel.rows) as row:
                self._tile(starts, (row, high), (column, last))

    def _share(self, size: str, pieces: str) -> str:
        return self.b.integer(f"udiv {add(self.b, size, self.b.integer(f'sub {pieces}, 1'))}, {pieces}")

    def _move(self, pointer: str, offset: str) -> str:
        return self.b.element(self.elem, pointer, offset)

    def _pointers(self, start: str, first: tuple[str, str], number: int, stride: str) -> list[str]:
        """Addresses of rows; those beyond the last repeat it."""
        b, (low, high) = self.b, first
        last = b.integer(f"sub {high}, 1")
        return [self._move(start, mul(b, least(b, add(b, low, k), last), stride)) for k in range(number)]

    def _tile(self, starts: Sequence[str], rows: tuple[str, str], columns: tuple[str, str]) -> None:
        b, at, p = self.b, self.at, self.p
        lefts = self._pointers(starts[0], rows, self.kernel.rows, p["left_row"])
        rights = self._pointers(starts[1], columns, self.kernel.columns, p["right_row"])
        count = len(lefts) * len(rights)
        whole = b.integer(f"and {p['depth']}, {-at.lanes}")
        vector = at.type(self.elem)
        loop = Loop(b, "0", whole, at.lanes, [(vector, "zeroinitializer")] * count)
        k, sums = loop.open()
        sums = loop.close(self._products(at, lefts, rights, k, sums))
        zero = "0.0"
        totals = [
            b.call(self.elem, f"llvm.vector.reduce.fadd.{at.suffix(self.elem)}", [(self.elem, zero), (vector, s)])
            for s in sums
        ]
        one = Lanes(b, 1)
        rest = Loop(b, whole, p["depth"], 1, [(self.elem, t) for t in totals])
        k, totals = rest.open()
        totals = rest.close(self._products(one, lefts, rights, k, totals))
        self._store(starts[2], totals, rows, columns)

    def _products(
        self, at: Lanes, lefts: Sequence[str], rights: Sequence[str], k: str, sums: Sequence[str]
    ) -> list[str]:
        across = [self._load(at, self._move(pointer, k)) for pointer in rights]
        result = list(sums)
        for r, pointer in enumerate(lefts):
            value = self._load(at, self._move(pointer, k))
            for c, other in enumerate(across):
                here = r * len(rights) + c
                result[here] = at.fma(value, other, V(at, self.elem, result[here])).name
        return result

    def _load(self, at: Lanes, pointer: str) -> V:
        size = 8 if self.elem == "double" else 4
        return at.wrap(self.elem, f"load {at.type(self.elem)}, ptr {pointer}, align {size}")

    def _store(self, start: str, totals: Sequence[str], rows: tuple[str, str], columns: tuple[str, str]) -> None:
        """Tiles at the edge hold some results twice: the same value goes to the same place."""
        b, p = self.b, self.p
        ends = [b.integer(f"sub {high}, 1") for _, high in (rows, columns)]
        for position, total in enumerate(totals):
            r, c = divmod(position, self.kernel.columns)
            row, column = least(b, add(b, rows[0], r), ends[0]), least(b, add(b, columns[0], c), ends[1])
            place = add(b, mul(b, row, p["result_row"]), mul(b, column, p["result_column"]))
            b.do(f"store {self.elem} {total}, ptr {self._move(start, place)}")
