"""The register tile: a few rows times a few vectors of columns, accumulated over the depth, then finished."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Literal

from pyflame_rt.backends.cpu.ir import instructions as ops
from pyflame_rt.backends.cpu.ir.builder import Builder, Lanes, V
from pyflame_rt.backends.cpu.ir.kernel_program import Expr, structure_of, walk
from pyflame_rt.backends.cpu.kernels.tiles.control import Loop, add, floats, least, load_vector, mul, store_vector
from pyflame_rt.backends.cpu.kernels.tiles.epilogue_math import FAST, one_more_than_exp_of_minus
from pyflame_rt.graph.cached import cached_property
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyflame_rt.backends.cpu.jit.target import Host

__all__ = [
    "GROUP",
    "PLAIN",
    "Finish",
    "Reach",
    "Target",
    "Tile",
    "accumulate",
    "accumulate_grouped",
    "accumulate_listed",
    "accumulate_packed",
    "ask_ahead",
    "ask_for",
    "each_tile",
    "finish",
    "load_weights",
    "panel_place",
    "pixel_pointers",
    "row_panel",
    "row_pointers",
    "rows_together",
    "store_sums",
    "tile_for",
]

Reach = Literal["full", "column", "single"]
GROUP = 4  # steps of the depth that a permutation within 128 bits chooses from
_UNROLL = 4
_AHEAD = 512  # floats of the panel asked for ahead: the machine's own prefetch stops at pages
_LINE = 16  # floats of a line of the cache
_LIGHT = 8  # nodes of an epilogue that is emitted for every vector of the tile


@dataclass(frozen=True)
class Tile:
    """Rows and vectors of columns of one register tile; ``weights`` is the type of what panels hold."""

    rows: int
    vectors: int
    weights: str = "float32"

    @property
    def small(self) -> int:
        """Rows of the lesser tile that finishes a block."""
        return max(1, self.rows * 2 // 3)


def tile_for(host: Host, columns: int) -> Tile:
    """The tile for so many columns: accumulators, one row of the panel and a broadcast fill the registers."""
    lanes = host.lanes(4)
    if host.registers >= 32:
        return Tile(12, 2) if lanes == 16 else Tile(8, 3)
    three = -columns % (3 * lanes) < -columns % (2 * lanes)
    return Tile(4, 3) if three else Tile(6, 2)


def row_panel(tile: Tile, lanes: int) -> int:
    """Rows of a panel, where rows are packed too: whole vectors and whole tiles."""
    return math.lcm(tile.rows, lanes)


def rows_together(tile: Tile) -> int:
    """Rows of a panel that is read as often as there are columns: two tiles, of which a cache line holds most."""
    return 2 * tile.rows


def each_tile(b: Builder, tile: Tile, low: str, high: str, body: Callable[[int, str, str], None]) -> None:
    """Cover rows [low, high) by tiles of the full or the lesser height; ``body`` gets height, first row, rows left."""
    if b.brief:
        with Loop(b, low, high, tile.rows) as row:
            body(tile.rows, row, b.integer(f"sub {high}, {row}"))
        return
    loop = Loop(b, low, high)
    row, _ = loop.open()
    rest = b.integer(f"sub {high}, {row}")
    few = b.op(f"icmp sle i64 {rest}, {tile.small}")
    over = b.op(f"icmp sgt i64 {rest}, {tile.rows}")
    twice = b.op(f"icmp sle i64 {rest}, {2 * tile.small}")
    lesser = b.op(f"or i1 {few}, {b.op(f'and i1 {over}, {twice}')}")
    large, little, done = b.label("large"), b.label("little"), b.label("tiled")
    b.branch(lesser, little, large)
    ends = []
    for label, size in ((large, tile.rows), (little, tile.small)):
        b.place(label)
        body(size, row, rest)
        ends.append((str(size), b.block))
        b.jump(done)
    b.place(done)
    loop.close(step=b.phi("i64", *ends))


def row_pointers(
    b: Builder, size: int, valid: str, source: str, row: str, stride: str, kind: str = "float"
) -> list[str]:
    """Addresses of the rows of a tile; those beyond the last valid one repeat it."""
    last = b.integer(f"sub {valid}, 1")
    numbers = [add(b, row, least(b, str(r), last) if r else "0") for r in range(size)]
    return [b.element(kind, source, mul(b, n, stride)) for n in numbers]


def pixel_pointers(
    b: Builder, p: Mapping[str, str], size: int, row: str, valid: str, source: str, kind: str = "float"
) -> list[str]:
    """Addresses of the pixels of a tile, counted over images, lines and columns; those beyond the last repeat it.

    ``p`` gives width and height of the result, and the steps of a pixel, a line and an image of the source.
    """
    x, line = b.integer(f"urem {row}, {p['width']}"), b.integer(f"udiv {row}, {p['width']}")
    y, image = b.integer(f"urem {line}, {p['height']}"), b.integer(f"udiv {line}, {p['height']}")
    pointers = []
    for r in range(size):
        offset = add(b, mul(b, x, p["step_x"]), mul(b, y, p["step_y"]))
        pointers.append(b.element(kind, source, add(b, offset, mul(b, image, p["step_image"]))))
        if r + 1 == size:
            break
        moves = b.op(f"zext i1 {b.op(f'icmp slt i64 {r + 1}, {valid}')} to i64")
        x = add(b, x, moves)
        wraps = b.op(f"icmp eq i64 {x}, {p['width']}")
        x = b.op(f"select i1 {wraps}, i64 0, i64 {x}")
        y = add(b, y, b.op(f"zext i1 {wraps} to i64"))
        wraps = b.op(f"icmp eq i64 {y}, {p['height']}")
        y = b.op(f"select i1 {wraps}, i64 0, i64 {y}")
        image = add(b, image, b.op(f"zext i1 {wraps} to i64"))
    return pointers


def _rounds(b: Builder, depth: str) -> list[tuple[str, str, int]]:
    """Loops that go through the depth one after the other: first and end, turns written out."""
    if b.brief:
        return [("0", depth, 1)]
    whole = b.integer(f"and {depth}, {-_UNROLL}")
    return [("0", whole, _UNROLL), (whole, depth, 1)]


def accumulate(
    at: Lanes, tile: Tile, pointers: Sequence[str], panel: str, depth: str, sums: Sequence[str]
) -> tuple[list[str], str]:
    """Add depth products to the tile's sums: row ``r`` reads from ``pointers[r]`` on, columns from the packed panel.

    Returns the sums and where the panel goes on.
    """
    b, vector = at.builder, at.type("float")
    width = tile.vectors * at.lanes
    carried = [("ptr", panel), *((vector, s) for s in sums)]
    for low, high, step in _rounds(b, depth):
        loop = Loop(b, low, high, step, carried)
        k, (place, *values) = loop.open()
        for u in range(step):
            values = _turn(at, tile, [floats(b, floats(b, p, k), u) for p in pointers], place, values, u)
        carried = [("ptr", panel_place(b, tile, place, step * width)), *((vector, v) for v in values)]
        ended = loop.close([value for _, value in carried])
        carried = [("ptr", ended[0]), *((vector, v) for v in ended[1:])]
    return [value for _, value in carried[1:]], carried[0][1]


def accumulate_listed(
    at: Lanes, tile: Tile, pointers: Sequence[str], panel: str, listed: tuple[str, str], sums: Sequence[str]
) -> list[str]:
    """Like :func:`accumulate`, of some steps of the depth: ``listed`` says where their numbers are, and how many."""
    b, vector = at.builder, at.type("float")
    width = tile.vectors * at.lanes
    steps, count = listed
    carried = [("ptr", panel), *((vector, s) for s in sums)]
    for low, high, turns in _rounds(b, count):
        loop = Loop(b, low, high, turns, carried)
        i, (place, *values) = loop.open()
        for u in range(turns):
            k = b.op(f"load i64, ptr {b.element('i64', b.element('i64', steps, i), str(u))}")
            values = _turn(at, tile, [floats(b, p, k) for p in pointers], place, values, u)
        ended = loop.close([panel_place(b, tile, place, turns * width), *values])
        carried = [("ptr", ended[0]), *((vector, v) for v in ended[1:])]
    return [value for _, value in carried[1:]]


def accumulate_grouped(
    at: Lanes, tile: Tile, pointers: Sequence[str], panel: str, kept: int, groups: str, sums: Sequence[str]
) -> list[str]:
    """Like :func:`accumulate`, of weights of which every column keeps at most ``kept`` in each four of the depth.

    For each four the panel holds ``kept`` times a row of weights and a row of their places (int32, 0 to 3). A row's
    four values are broadcast and permuted by the places: each column is multiplied by the value that is its own.
    """
    b, vector, width = at.builder, at.type("float"), tile.vectors * at.lanes
    carried = [("ptr", panel), *((vector, s) for s in sums)]
    loop = Loop(b, "0", groups, 1, carried)
    g, (place, *values) = loop.open()
    fours = [floats(b, p, mul(b, g, GROUP)) for p in pointers]
    for n in range(kept):
        ask_ahead(b, floats(b, place, 2 * n * width + _AHEAD))
        starts = [floats(b, place, 2 * n * width + v * at.lanes) for v in range(tile.vectors)]
        columns = [load_vector(at, start) for start in starts]
        numbers = [at.wrap("i32", f"load {at.type('i32')}, ptr {floats(b, start, width)}, align 4") for start in starts]
        for r, pointer in enumerate(fours):
            four = b.op(f"load <{GROUP} x float>, ptr {pointer}, align 4")
            lanes = ", ".join(f"i32 {i % GROUP}" for i in range(at.lanes))
            wide = b.op(
                f"shufflevector <{GROUP} x float> {four}, <{GROUP} x float> poison, <{at.lanes} x i32> <{lanes}>"
            )
            for v, (column, number) in enumerate(zip(columns, numbers, strict=True)):
                args = [(vector, wide), (number.kind, number.name)]
                own = V(at, "float", b.call(vector, "llvm.x86.avx512.vpermilvar.ps.512", args))
                at_sum = r * tile.vectors + v
                values[at_sum] = at.fma(own, column, V(at, "float", values[at_sum])).name
    ended = loop.close([floats(b, place, 2 * kept * width), *values])
    return ended[1:]


def accumulate_packed(
    at: Lanes, tile: Tile, left: str, step: int | str, panel: str, depth: str, sums: Sequence[str]
) -> list[str]:
    """Like :func:`accumulate`, of rows that lie side by side: ``step`` floats on is the next of the depth."""
    b, vector = at.builder, at.type("float")
    width = tile.vectors * at.lanes
    carried = [("ptr", left), ("ptr", panel), *((vector, s) for s in sums)]
    for low, high, turns in _rounds(b, depth):
        loop = Loop(b, low, high, turns, carried)
        _, (rows, place, *values) = loop.open()
        for u in range(turns):
            line = floats(b, rows, mul(b, str(step), u))
            values = _turn(at, tile, [floats(b, line, r) for r in range(tile.rows)], place, values, u)
        further = panel_place(b, tile, place, turns * width)
        ended = loop.close([floats(b, rows, mul(b, str(step), turns)), further, *values])
        carried = [("ptr", ended[0]), ("ptr", ended[1]), *((vector, v) for v in ended[2:])]
    return [value for _, value in carried[2:]]


def store_sums(at: Lanes, sums: Sequence[V], target: str, more: str) -> None:
    """Store a tile's sums one after the other; if ``more``, an i1, holds, add them to what is there."""
    b = at.builder
    places = [floats(b, target, position * at.lanes) for position in range(len(sums))]
    if more == "false":
        for total, place in zip(sums, places, strict=True):
            store_vector(at, total, place)
        return
    again, fresh, done = b.label("more"), b.label("fresh"), b.label("stored")
    b.branch(more, again, fresh)
    for label in (again, fresh):
        b.place(label)
        for total, place in zip(sums, places, strict=True):
            store_vector(at, load_vector(at, place) + total if label == again else total, place)
        b.jump(done)
    b.place(done)


def _turn(at: Lanes, tile: Tile, rows: Sequence[str], panel: str, sums: Sequence[str], turn: int) -> list[str]:
    b, width = at.builder, tile.vectors * at.lanes
    ask_ahead(b, panel_place(b, tile, panel, turn * width + _AHEAD))
    places = [panel_place(b, tile, panel, turn * width + v * at.lanes) for v in range(tile.vectors)]
    columns = [load_weights(at, place, tile.weights) for place in places]
    result = list(sums)
    for r, pointer in enumerate(rows):
        value = at.splat("float", b.op(f"load float, ptr {pointer}, align 4"))
        for v, column in enumerate(columns):
            at_sum = r * tile.vectors + v
            result[at_sum] = at.fma(value, column, V(at, "float", result[at_sum])).name
    return result


def panel_place(b: Builder, tile: Tile, panel: str, offset: str | int) -> str:
    """Address of a weight so many elements on."""
    return b.element(ops.stored(tile.weights), panel, str(offset))


def load_weights(at: Lanes, place: str, dtype: str) -> V:
    """Lanes of packed weights as floats; those of 16 bits are widened."""
    if dtype == "float32":
        return load_vector(at, place)
    return ops.from_memory(at.wrap("i16", f"load {at.type('i16')}, ptr {place}, align 2"), dtype)


def ask_ahead(b: Builder, place: str) -> None:
    """Fetch memory that is read soon; also keeps LLVM from mixing turns, for which there are too few registers."""
    b.call("void", "llvm.prefetch.p0", [("ptr", place), ("i32", "0"), ("i32", "3"), ("i32", "1")])


def ask_for(at: Lanes, tile: Tile, rows: int, plan: Finish, target: Target) -> None:
    """Have the rows that the finish of a tile reads come into the cache while the tile is summed up."""
    b = at.builder
    for start, stride, reach in zip(target.operands, target.strides, plan.operands, strict=True):
        if reach != "full":
            continue
        for r in range(rows):
            line = floats(b, start, mul(b, stride, r)) if r else start
            for column in range(0, tile.vectors * at.lanes, _LINE):
                ask_ahead(b, floats(b, line, column))


@dataclass(frozen=True)
class Finish:
    """What happens to a sum before it is stored: an expression where load(0) is the sum, load(i) operand i - 1.

    A "full" operand lies as the result does, a "column" operand has one element for each column,
    a "single" one has one for all. Products may have ``more`` results, which lie as the first.
    """

    value: Expr | None = None
    operands: tuple[Reach, ...] = ()
    more: tuple[Expr, ...] = ()

    @cached_property
    def structure(self) -> str:
        """A text equal for expressions of equal structure."""
        if self.value is None:
            return ""
        return structure_of(Expr("several", "float32", self._roots) if self.more else self.value)

    @property
    def _roots(self) -> tuple[Expr, ...]:
        return () if self.value is None else (self.value, *self.more)

    @cached_property
    def light(self) -> bool:
        """Whether the expression is short enough to be repeated for every vector."""
        nodes = list(walk(self._roots))
        return len(nodes) <= _LIGHT and not any(node.op in ops.HEAVY for node in nodes)

    def apply(self, total: V, operand: Callable[[int], V]) -> V:
        """The finished value; ``operand`` loads the lanes of an operand."""
        return self.results(total, operand)[0]

    def results(self, total: V, operand: Callable[[int], V]) -> list[V]:
        """The finished value and the ``more`` ones."""
        if self.value is None:
            return [total]
        known: dict[int, V] = {}
        loaded: dict[int, V] = {0: total}
        nodes = list(walk(self._roots))
        readers = Counter([*(id(arg) for node in nodes for arg in node.args), *map(id, self._roots)])
        gated = _gated(nodes, readers)
        fused = _fused(nodes, gated, readers)
        for node in nodes:
            if id(node) in fused.values() or id(node) in gated.values():
                continue
            if id(node) in fused:
                known[id(node)] = _multiply_add(node, fused[id(node)], known)
            elif id(node) in gated:
                known[id(node)] = _gate(node, gated[id(node)], known)
            elif node.op == "load":
                which = int(node.value or 0)
                if which not in loaded:
                    loaded[which] = operand(which - 1)
                known[id(node)] = loaded[which]
            elif node.op == "const":
                assert node.value is not None
                assert not isinstance(node.value, str)
                known[id(node)] = total.at.const(ops.element(node.dtype), node.value)
            elif node.op in FAST and node.dtype == "float32":
                known[id(node)] = FAST[node.op](known[id(node.args[0])])
            else:
                known[id(node)] = ops.emit(node, [known[id(a)] for a in node.args], "")
        return [known[id(root)] for root in self._roots]


def _fused(nodes: Sequence[Expr], gated: dict[int, int], readers: Counter[int]) -> dict[int, int]:
    """Sums and differences that are rounded once with the product they alone read: node -> product, by id."""
    result: dict[int, int] = {}
    for node in nodes:
        if node.op in ("add", "sub") and node.dtype == "float32":
            products = [id(a) for a in node.args if a.op == "mul" and readers[id(a)] == 1 and id(a) not in gated]
            if products:
                result[id(node)] = products[0]
    return result


def _gated(nodes: Sequence[Expr], readers: Counter[int]) -> dict[int, int]:
    """Products with a sigmoid that they alone read, as SiLU has it: node -> sigmoid, by id."""
    result: dict[int, int] = {}
    for node in nodes:
        if node.op == "mul" and node.dtype == "float32":
            sigmoids = [id(a) for a in node.args if a.op == "sigmoid" and readers[id(a)] == 1]
            if sigmoids:
                result[id(node)] = sigmoids[0]
    return result


def _gate(node: Expr, sigmoid: int, known: dict[int, V]) -> V:
    """The product of a value and a sigmoid: one division."""
    left, right = node.args
    first = id(left) == sigmoid
    (x,), other = (left if first else right).args, known[id(right if first else left)]
    return other / one_more_than_exp_of_minus(known[id(x)])


def _multiply_add(node: Expr, product: int, known: dict[int, V]) -> V:
    """The sum or difference of a product and another value."""
    left, right = node.args
    first = id(left) == product
    x, y = (known[id(a)] for a in (left if first else right).args)
    other = known[id(right if first else left)]
    if node.op == "sub":
        x, other = (x, -other) if first else (-x, other)
    return x.at.fma(x, y, other)


PLAIN = Finish()


@dataclass(frozen=True)
class Target:
    """Where a tile goes: addresses of the result and of operands at (row 0, first column), and their row strides."""

    result: str
    stride: str
    operands: tuple[str, ...]
    strides: tuple[str, ...]  # of "full" operands; "0" for the others
    more: tuple[str, ...] = ()  # further results


def finish(
    at: Lanes,
    tile: Tile,
    rows: int,
    sums: Sequence[str],
    plan: Finish,
    target: Target,
    spill: str,
    valid: str,
    left: str,
) -> None:
    """Store a tile of ``rows`` rows of which ``valid`` count, with ``left`` columns left; ``spill`` is stack memory."""
    b, lanes = at.builder, at.lanes
    width = tile.vectors * lanes
    wide = b.op(f"icmp sge i64 {left}, {width}")
    loop_wide, direct, rest, done = (b.label(hint) for hint in ("rows", "direct", "rest", "stored"))
    brief = b.brief
    if plan.light and not brief:
        whole = b.op(f"and i1 {wide}, {b.op(f'icmp eq i64 {valid}, {rows}')}")
        b.branch(whole, direct, rest)
        b.place(direct)
        for r in range(rows):
            values = [V(at, "float", s) for s in sums[r * tile.vectors : (r + 1) * tile.vectors]]
            _finish_row(at, plan, target, str(r), values, None)
        b.jump(done)
        b.place(rest)
    for position, total in enumerate(sums):
        store_vector(at, V(at, "float", total), floats(b, spill, position * lanes))
    masked = b.label("masked")
    if plan.light or brief:
        b.jump(masked)
    else:
        b.branch(wide, loop_wide, masked)
        b.place(loop_wide)
        _finish_rows(at, tile, plan, target, spill, valid, None)
        b.jump(done)
    b.place(masked)
    _finish_rows(at, tile, plan, target, spill, valid, left)
    b.jump(done)
    b.place(done)


def _finish_rows(at: Lanes, tile: Tile, plan: Finish, target: Target, spill: str, valid: str, left: str | None) -> None:
    """Row by row from the spilled tile."""
    b, lanes = at.builder, at.lanes
    masks = None
    if left is not None:
        masks = [
            at.iota("0", "i64").cmp("slt", at.splat("i64", b.integer(f"sub {left}, {v * lanes}")))
            for v in range(tile.vectors)
        ]
    with Loop(b, "0", valid) as r:
        base = floats(b, spill, mul(b, r, tile.vectors * lanes))
        values = [load_vector(at, floats(b, base, v * lanes)) for v in range(tile.vectors)]
        _finish_row(at, plan, target, r, values, masks)


def _finish_row(
    at: Lanes, plan: Finish, target: Target, row: str, values: Sequence[V], masks: Sequence[V] | None
) -> None:
    b, lanes = at.builder, at.lanes
    starts = [floats(b, base, mul(b, target.stride, row)) for base in (target.result, *target.more)]
    sources = [
        floats(b, pointer, mul(b, stride, row)) if reach == "full" else pointer
        for pointer, stride, reach in zip(target.operands, target.strides, plan.operands, strict=True)
    ]
    for v, value in enumerate(values):
        mask = None if masks is None else masks[v]

        def operand(which: int, v: int = v, mask: V | None = mask) -> V:
            if plan.operands[which] == "single":
                return at.splat("float", b.op(f"load float, ptr {sources[which]}, align 4"))
            return load_vector(at, floats(b, sources[which], v * lanes), mask)

        for start, result in zip(starts, plan.results(value, operand), strict=True):
            store_vector(at, result, floats(b, start, v * lanes), mask)
