"""What becomes of a tile of 32-bit sums before it is stored: any expression, in any type loops have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyflame_rt.backends.cpu.ir import instructions as ops
from pyflame_rt.backends.cpu.ir.builder import V
from pyflame_rt.backends.cpu.ir.kernel_program import Expr, load, structure_of, walk
from pyflame_rt.backends.cpu.kernels.tiles.control import Loop, mul
from pyflame_rt.graph.cached import cached_property
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyflame_rt.backends.cpu.ir.builder import Lanes
    from pyflame_rt.backends.cpu.kernels.tiles.register_tile import Reach, Tile

__all__ = ["SUMS", "IntegerFinish", "Operand", "Places", "store_tile"]

_LIGHT = 64  # nodes of an expression that is written out for every vector of a tile


@dataclass(frozen=True)
class Operand:
    """A value the finish reads: how it goes with the sums, and its stored type."""

    reach: Reach
    dtype: str


@dataclass(frozen=True)
class IntegerFinish:
    """Results of a sum: expressions where load(0) is the sum, an int32, and load(i) is operand i - 1."""

    values: tuple[Expr, ...]
    results: tuple[str, ...]  # their stored types
    operands: tuple[Operand, ...] = ()

    @cached_property
    def structure(self) -> str:
        """A text equal for finishes of equal structure."""
        read = ",".join(f"{o.reach} {o.dtype}" for o in self.operands)
        return f"{structure_of(Expr('several', 'int32', self.values))} {read} > {','.join(self.results)}"

    @cached_property
    def light(self) -> bool:
        """Whether it is short enough to be repeated for every vector."""
        nodes = list(walk(self.values))
        return len(nodes) <= _LIGHT and not any(node.op in ops.HEAVY for node in nodes)

    def apply(self, total: V, operand: Callable[[int], V]) -> list[V]:
        """The results, as they are stored; ``operand`` loads lanes of an operand as they lie in memory."""
        at, known, loaded = total.at, dict[int, V](), dict[int, V]()
        for node in walk(self.values):
            if node.op == "load":
                assert isinstance(node.value, int)
                which = node.value
                if which not in loaded:
                    loaded[which] = (
                        ops.from_memory(operand(which - 1), self.operands[which - 1].dtype) if which else total
                    )
                known[id(node)] = loaded[which]
            elif node.op == "const":
                assert isinstance(node.value, (int, float))
                known[id(node)] = at.const(ops.element(node.dtype), node.value)
            else:
                known[id(node)] = ops.emit(node, [known[id(arg)] for arg in node.args], "")
        return [ops.to_memory(known[id(v)], dtype) for v, dtype in zip(self.values, self.results, strict=True)]


SUMS = IntegerFinish((load(0, "int32"),), ("int32",))


@dataclass(frozen=True)
class Places:
    """Where a tile goes: addresses at its first row and column, and the steps from row to row."""

    results: tuple[str, ...]
    stride: str
    operands: tuple[str, ...]
    strides: tuple[str, ...]  # of "full" operands; "0" for the others


def store_tile(
    at: Lanes, tile: Tile, sums: Sequence[V], plan: IntegerFinish, places: Places, spill: str, valid: str, left: str
) -> None:
    """Finish and store a tile of which ``valid`` rows and ``left`` columns count; ``spill`` is memory for the sums."""
    b, width = at.builder, tile.vectors * at.lanes
    rest, done = b.label("rest"), b.label("stored")
    writer = _Writer(at, tile, plan, places)
    rows = len(sums) // tile.vectors
    if plan.light and not b.brief:
        direct = b.label("direct")
        wide = b.op(f"icmp sge i64 {left}, {width}")
        b.branch(b.op(f"and i1 {wide}, {b.op(f'icmp eq i64 {valid}, {rows}')}"), direct, rest)
        b.place(direct)
        for v in range(tile.vectors):
            columns = writer.columns(v, None)
            for r in range(rows):
                writer.store(str(r), v, sums[r * tile.vectors + v], None, columns)
        b.jump(done)
        b.place(rest)
    for position, total in enumerate(sums):
        place = b.element("i32", spill, str(position * at.lanes))
        b.do(f"store {total.kind} {total.name}, ptr {place}, align 4")
    for v in range(tile.vectors):
        limit = at.splat("i64", b.integer(f"sub {left}, {v * at.lanes}"))
        mask = at.iota("0", "i64").cmp("slt", limit)
        with Loop(b, "0", valid) as r:
            place = b.element("i32", spill, b.integer(f"add {mul(b, r, width)}, {v * at.lanes}"))
            total = at.wrap("i32", f"load {at.type('i32')}, ptr {place}, align 4")
            writer.store(r, v, total, mask, {})
    if plan.light and not b.brief:
        b.jump(done)
        b.place(done)


class _Writer:
    def __init__(self, at: Lanes, tile: Tile, plan: IntegerFinish, places: Places) -> None:
        self.at, self.tile, self.plan, self.places = at, tile, plan, places

    def columns(self, vector: int, mask: V | None) -> dict[int, V]:
        """Operands that are the same for all rows."""
        operands = self.plan.operands
        return {k: self._load(k, "0", vector, mask) for k, o in enumerate(operands) if o.reach != "full"}

    def store(self, row: str, vector: int, total: V, mask: V | None, columns: dict[int, V]) -> None:
        """One vector of one row."""

        def operand(which: int) -> V:
            return columns[which] if which in columns else self._load(which, row, vector, mask)

        b, at, places = self.at.builder, self.at, self.places
        values = self.plan.apply(total, operand)
        for value, base, dtype in zip(values, places.results, self.plan.results, strict=True):
            kind = ops.stored(dtype)
            start = b.element(kind, base, b.integer(f"add {mul(b, places.stride, row)}, {vector * at.lanes}"))
            if mask is None:
                b.do(f"store {value.kind} {value.name}, ptr {start}, align 1")
                continue
            args = [(value.kind, value.name), ("ptr", start), ("i32", "1"), (mask.kind, mask.name)]
            b.call("void", f"llvm.masked.store.{at.suffix(kind)}.p0", args)

    def _load(self, which: int, row: str, vector: int, mask: V | None) -> V:
        b, at, operand = self.at.builder, self.at, self.plan.operands[which]
        kind, base = ops.stored(operand.dtype), self.places.operands[which]
        if operand.reach == "single":
            return at.splat(kind, b.op(f"load {kind}, ptr {base}, align 1"))
        offset = str(vector * at.lanes)
        if operand.reach == "full":
            offset = b.integer(f"add {mul(b, self.places.strides[which], row)}, {offset}")
        place = b.element(kind, base, offset)
        if mask is None:
            return at.wrap(kind, f"load {at.type(kind)}, ptr {place}, align 1")
        args = [("ptr", place), ("i32", "1"), (mask.kind, mask.name), (at.type(kind), "zeroinitializer")]
        return V(at, kind, b.call(at.type(kind), f"llvm.masked.load.{at.suffix(kind)}.p0", args))
