"""Products of many matrices, a few rows times a few vectors of columns at a time; nothing is packed.

Matrices of a batch are small: rows of the right one are read as they lie, and stay in the first-level cache for all
tiles of rows. Columns beyond the last are not read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyflame_rt.backends.cpu.ir.builder import Builder, Lanes, V
from pyflame_rt.backends.cpu.jit.target import host as this_host
from pyflame_rt.backends.cpu.kernels.row_loops import SIGNATURE
from pyflame_rt.backends.cpu.kernels.tiles.control import Loop, add, buffers, least, mul
from pyflame_rt.backends.cpu.kernels.tiles.register_tile import Tile, row_pointers
from pyflame_rt.graph.cached import cached_property
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame_rt.backends.cpu.jit.target import Host

__all__ = ["BATCH_PARAMS", "BatchedKernel", "batched_tile"]

BATCH_PARAMS = (
    "rows", "columns", "depth", "block", "blocks", "left_row", "right_row", "result_row",
    "left_batch", "right_batch", "result_batch", "outer", "left_outer", "right_outer", "result_outer",
)  # fmt: skip
_ELEMENTS = {"float64": ("double", 8), "float32": ("float", 4)}


@dataclass(frozen=True)
class BatchedKernel:
    """Result[batch, row, column] = sum over k of left[batch, row, k] * right[batch, k, column].

    The batch has two axes, each with strides of its own; ``outer`` is the size of the faster one. Elements of rows of
    all three lie together. Rows go in blocks of ``block``, of which there are ``blocks``.

    bufs: left, right, result. params: BATCH_PARAMS. rows: items, that is batch times blocks, blocks fastest.
    """

    dtype: str
    tile: Tile

    @property
    def key(self) -> str:
        """Equal for kernels of equal structure."""
        return self._key

    @cached_property
    def _key(self) -> str:
        return f"batched {self.dtype} {self.tile.rows}x{self.tile.vectors}"

    def emit(self, name: str, host: Host | None = None) -> str:
        """The module, as text."""
        b = Builder(host or this_host())
        b.begin()
        _Batched(self, b).emit()
        b.do("ret void")
        b.end(SIGNATURE.format(name=name))
        return b.text()


def batched_tile(host: Host, size: int, rows: int | None, columns: int) -> Tile:
    """Rows and vectors of a tile of elements of so many bytes: the fewest products, those in vain among them.

    ``rows`` is None where their number is not known.
    """
    lanes, limit = host.lanes(size), 24 if host.registers >= 32 else 12
    many = 10_000 if rows is None else max(rows, 1)

    def cost(tile: Tile) -> float:
        """Products, and something for what every row and vector of a tile loads."""
        tiles = -(-many // tile.rows) * -(-columns // (tile.vectors * lanes))
        return tiles * (tile.rows * tile.vectors + tile.vectors + 0.5 * tile.rows)

    tiles = [Tile(r, v) for v in (2, 1, 3) for r in range(min(limit // v, many), 0, -1)]
    return min(tiles, key=cost)


class _Batched:
    def __init__(self, kernel: BatchedKernel, b: Builder) -> None:
        self.b, self.tile = b, kernel.tile
        self.elem, self.size = _ELEMENTS[kernel.dtype]
        self.at = Lanes(b, b.host.lanes(self.size))
        self.p = {name: b.load_i64("%params", k) for k, name in enumerate(BATCH_PARAMS)}

    def emit(self) -> None:
        b, p = self.b, self.p
        given = buffers(b, 3)
        with Loop(b, "%begin", "%end") as item:
            batch, block = b.integer(f"udiv {item}, {p['blocks']}"), b.integer(f"urem {item}, {p['blocks']}")
            outer, inner = b.integer(f"urem {batch}, {p['outer']}"), b.integer(f"udiv {batch}, {p['outer']}")
            left, right, result = (
                self._move(base, add(b, mul(b, outer, p[f"{which}_outer"]), mul(b, inner, p[f"{which}_batch"])))
                for base, which in zip(given, ("left", "right", "result"), strict=True)
            )
            low = mul(b, block, p["block"])
            high = least(b, add(b, low, p["block"]), p["rows"])
            with (
                Loop(b, "0", p["columns"], self.tile.vectors * self.at.lanes) as column,
                Loop(b, low, high, self.tile.rows) as row,
            ):
                valid = least(b, b.integer(f"sub {high}, {row}"), self.tile.rows)
                lefts = row_pointers(b, self.tile.rows, valid, left, row, p["left_row"], self.elem)
                ends = row_pointers(b, self.tile.rows, valid, result, row, p["result_row"], self.elem)
                self._tile(lefts, self._move(right, column), [self._move(e, column) for e in ends], column)

    def _move(self, pointer: str, offset: str) -> str:
        return self.b.element(self.elem, pointer, offset)

    def _tile(self, lefts: Sequence[str], right: str, ends: Sequence[str], column: str) -> None:
        """One tile: all columns where there are so many, else those that are there."""
        b, at = self.b, self.at
        left = b.integer(f"sub {self.p['columns']}, {column}")
        masks: list[V | None] = []
        for v in range(self.tile.vectors):
            limit = at.splat("i64", b.integer(f"sub {left}, {v * at.lanes}"))
            masks.append(at.iota("0", "i64").cmp("slt", limit))
        if b.brief:
            self._products(lefts, right, ends, masks)
            return
        whole, edge, done = b.label("whole"), b.label("edge"), b.label("tiled")
        b.branch(b.op(f"icmp sge i64 {left}, {self.tile.vectors * at.lanes}"), whole, edge)
        for label, given in ((whole, [None] * self.tile.vectors), (edge, masks)):
            b.place(label)
            self._products(lefts, right, ends, given)
            b.jump(done)
        b.place(done)

    def _products(self, lefts: Sequence[str], right: str, ends: Sequence[str], masks: Sequence[V | None]) -> None:
        b, at, vectors = self.b, self.at, self.tile.vectors
        vector = at.type(self.elem)
        start = [("ptr", right), *[(vector, "zeroinitializer")] * (len(lefts) * vectors)]
        loop = Loop(b, "0", self.p["depth"], 1, start)
        k, (line, *sums) = loop.open()
        columns = [self._load(self._move(line, str(v * at.lanes)), mask) for v, mask in enumerate(masks)]
        for r, pointer in enumerate(lefts):
            value = at.splat(self.elem, b.op(f"load {self.elem}, ptr {self._move(pointer, k)}, align {self.size}"))
            for v, column in enumerate(columns):
                here = r * vectors + v
                sums[here] = at.fma(value, column, V(at, self.elem, sums[here])).name
        totals = loop.close([self._move(line, self.p["right_row"]), *sums])[1:]
        for position, total in enumerate(totals):
            r, v = divmod(position, vectors)
            self._store(total, self._move(ends[r], str(v * at.lanes)), masks[v])

    def _load(self, place: str, mask: V | None) -> V:
        b, at, kind = self.b, self.at, self.at.type(self.elem)
        if mask is None:
            return at.wrap(self.elem, f"load {kind}, ptr {place}, align {self.size}")
        args = [("ptr", place), ("i32", str(self.size)), (mask.kind, mask.name), (kind, "zeroinitializer")]
        return V(at, self.elem, b.call(kind, f"llvm.masked.load.{at.suffix(self.elem)}.p0", args))

    def _store(self, total: str, place: str, mask: V | None) -> None:
        """Rows beyond the last go where that one goes: the same numbers."""
        b, at, kind = self.b, self.at, self.at.type(self.elem)
        if mask is None:
            b.do(f"store {kind} {total}, ptr {place}, align {self.size}")
            return
        args = [(kind, total), ("ptr", place), ("i32", str(self.size)), (mask.kind, mask.name)]
        b.call("void", f"llvm.masked.store.{at.suffix(self.elem)}.p0", args)
