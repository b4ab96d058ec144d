"""The steps of recurrent layers over whole batches, forwards and backwards.

Threads take rows (directions x sequences) through all steps, so they never wait for each other. A step is a product of
the rows' states with packed weights, panel by panel, then a pass over the rows that applies the gates. Steps go through
the panels to and fro: the second-level cache still holds what the step before used last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from pyflame_rt.backends.cpu.ir.builder import Builder, Lanes, V
from pyflame_rt.backends.cpu.ir.loops import load_vector, loop, splat_load, store_vector, tail_mask, vectors
from pyflame_rt.backends.cpu.ir.vector_math import libm, tanh64
from pyflame_rt.backends.cpu.jit.target import host as this_host
from pyflame_rt.backends.cpu.kernels.row_loops import SIGNATURE
from pyflame_rt.backends.cpu.kernels.tiles.control import least, most
from pyflame_rt.backends.cpu.kernels.tiles.epilogue_math import FAST
from pyflame_rt.backends.cpu.kernels.tiles.register_tile import Tile, each_tile
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyflame_rt.backends.cpu.jit.target import Host

    Body: TypeAlias = Callable[[str, V | None, list[str]], None]

__all__ = ["BackwardSteps", "ForwardSteps", "PanelKernel", "StepsEmitter", "panel_width"]

Element: TypeAlias = Literal["float", "double"]
Cell: TypeAlias = Literal["lstm", "gru", "tanh", "relu"]
GATES: dict[Cell, int] = {"lstm": 4, "gru": 3, "tanh": 1, "relu": 1}
SAVED: dict[Cell, int] = {"lstm": 4, "gru": 4, "tanh": 1, "relu": 1}
_UNROLL = 4
_AHEAD = 256  # numbers of the panel asked for ahead: the machine's own prefetch stops at pages
_PARAMS = ("steps", "hidden", "batch", "directions", "reversed", "in_step", "in_row")


def _lanes(host: Host, elem: Element) -> int:
    return host.vector_bytes // (4 if elem == "float" else 8)


def _tile(host: Host) -> Tile:
    return Tile(12, 2) if host.registers >= 32 else Tile(6, 2)


def panel_width(elem: Element, host: Host | None = None) -> int:
    """Columns of a panel of packed weights."""
    host = host or this_host()
    return _tile(host).vectors * _lanes(host, elem)


@dataclass(frozen=True)
class PanelKernel:
    """Packs matrices [depth, columns] into panels: of each a line of `panel_width` numbers for every k; zeros beyond.

    bufs: matrices, panels. params: depth, columns, strides of depth, column and matrix, panels of a matrix. rows:
    matrices x panels.
    """

    elem: Element

    @property
    def key(self) -> str:
        """Equal for kernels of equal structure."""
        return f"panels {self.elem}"

    def emit(self, name: str, host: Host | None = None) -> str:
        """The module, as text."""
        host = host or this_host()
        b = Builder(host)
        b.begin()
        at = Lanes(b, _lanes(host, self.elem))
        source, target = (b.op(f"load ptr, ptr {b.element('ptr', '%bufs', str(k))}") for k in range(2))
        p = [b.load_i64("%params", k) for k in range(6)]
        width = _tile(host).vectors * at.lanes

        def panel(row: str, _: list[V]) -> list[V]:
            matrix, which = b.integer(f"udiv {row}, {p[5]}"), b.integer(f"urem {row}, {p[5]}")
            first = b.element(self.elem, source, b.integer(f"mul {matrix}, {p[4]}"))
            out = b.element(self.elem, target, b.integer(f"mul {b.integer(f'mul {row}, {p[0]}')}, {width}"))
            for v in range(width // at.lanes):
                column = b.integer(f"add {b.integer(f'mul {which}, {width}')}, {v * at.lanes}")
                self._lines(at, first, column, b.element(self.elem, out, str(v * at.lanes)), p, width)
            return []

        loop(b, "%begin", "%end", 1, [], panel)
        b.do("ret void")
        b.end(SIGNATURE.format(name=name))
        return b.text()

    def _lines(self, at: Lanes, first: str, column: str, out: str, p: list[str], width: int) -> None:
        b, elem = at.builder, self.elem
        mask = tail_mask(at, column, p[1])
        offsets = at.iota(column) * at.splat("i64", p[3])
        base = b.op(
            f"getelementptr {elem}, {at.type('ptr')} {at.splat('ptr', first).name}, {offsets.kind} {offsets.name}"
        )

        def line(k: str, _: list[V]) -> list[V]:
            along = at.splat("i64", b.integer(f"mul {k}, {p[2]}"))
            places = b.op(f"getelementptr {elem}, {at.type('ptr')} {base}, {along.kind} {along.name}")
            kind = at.type(elem)
            args = [(at.type("ptr"), places), ("i32", "4"), (mask.kind, mask.name), (kind, "zeroinitializer")]
            found = b.call(kind, f"llvm.masked.gather.{at.suffix(elem)}.{at.suffix('ptr')}", args)
            store_vector(V(at, elem, found), b.element(elem, out, b.integer(f"mul {k}, {width}")))
            return []

        loop(b, "0", p[0], 1, [], line)


@dataclass(frozen=True)
class ForwardSteps:
    """All steps of a layer.

    bufs: gates, panels of R', addend inside the reset (GRU), first states, first cells (LSTM), result, last states,
    last cells (LSTM), saved gates, saved cells (LSTM), room for the products of one step (LSTM, GRU); what a cell has
    no use for is any buffer. params: steps, hidden, batch, directions, 1 when the first direction runs backwards,
    strides of the gates by step and by sequence. rows: directions x batch.
    """

    cell: Cell
    elem: Element

    @property
    def key(self) -> str:
        """Equal for kernels of equal structure."""
        return f"steps {self.cell} {self.elem}"

    def emit(self, name: str, host: Host | None = None) -> str:
        """The module, as text."""
        return _Forward(self.cell, self.elem, name, host or this_host()).emit()


@dataclass(frozen=True)
class BackwardSteps:
    """Gradients of all steps of a layer.

    bufs: panels of R, first cells (LSTM) or states (GRU), saved gates, cells (LSTM) or result, gradient of the result,
    of the last states, of the last cells (LSTM); then what is made: gradients of the gates, of the products with R
    (GRU), of the first states, of the first cells (LSTM). params: as `ForwardSteps`, strides being those of the
    gradient of the result; without one `given` is false.
    """

    cell: Cell
    elem: Element
    given: bool = True

    @property
    def key(self) -> str:
        """Equal for kernels of equal structure."""
        return f"steps back {self.cell} {self.elem} {self.given:d}"

    def emit(self, name: str, host: Host | None = None) -> str:
        """The module, as text."""
        return _Backward(self.cell, self.elem, name, host or this_host(), self.given).emit()


class StepsEmitter:
    """What both directions of time share: rows, places, and the product."""

    buffers: int
    panels: str

    def __init__(self, cell: Cell, elem: Element, name: str, host: Host) -> None:
        self.cell: Cell = cell
        self.elem: Element = elem
        self.name = name
        self.b = Builder(host)
        self.at = Lanes(self.b, _lanes(host, elem))
        self.tile = _tile(host)
        self.width = self.tile.vectors * self.at.lanes

    def emit(self) -> str:
        """The module, as text."""
        b = self.b
        for with_init in (False, True):
            self._product_function(with_init)
        b.begin()
        self.bufs = [b.op(f"load ptr, ptr {b.element('ptr', '%bufs', str(k))}") for k in range(self.buffers)]
        self.p = {name: b.load_i64("%params", i) for i, name in enumerate(_PARAMS)}
        self.final = b.integer(f"sub {self.p['steps']}, 1")
        first = b.integer(f"udiv %begin, {self.p['batch']}")
        final = b.integer(f"udiv {b.integer('sub %end, 1')}, {self.p['batch']}")
        loop(b, first, b.integer(f"add {final}, 1"), 1, [], self._direction)
        b.do("ret void")
        b.end(SIGNATURE.format(name=self.name))
        return b.text()

    def _direction(self, direction: str, _: list[V]) -> list[V]:
        """The rows of this call in one direction."""
        b, p = self.b, self.p
        start = b.integer(f"mul {direction}, {p['batch']}")
        low, high = (b.integer(f"sub {bound}, {start}") for bound in ("%begin", "%end"))
        self.row = most(b, low, "0")
        self.rows = b.integer(f"sub {least(b, high, p['batch'])}, {self.row}")
        self.direction = direction
        turned = b.integer(f"xor {direction}, {p['reversed']}")
        self.backwards = b.op(f"icmp ne i64 {turned}, 0")
        self.state = b.integer(f"mul {b.integer(f'add {start}, {self.row}')}, {p['hidden']}")
        self._walk()
        return []

    def _walk(self) -> None:
        raise NotImplementedError

    # ------------------------------------------------------------------ places

    def _times(self, *factors: str | int) -> str:
        result = str(factors[0])
        for factor in factors[1:]:
            result = self.b.integer(f"mul {result}, {factor}")
        return result

    def _stride(self, width: int) -> str:
        """From row to row of a contiguous sequence of so many numbers a hidden unit."""
        return self._times(self.p["directions"], self.p["hidden"], width)

    def _line(self, base: str, time: str, width: int) -> str:
        """The first row of a step in a contiguous sequence."""
        b, stride = self.b, self._stride(width)
        rows = b.integer(f"add {self._times(time, self.p['batch'])}, {self.row}")
        return b.element(
            self.elem,
            b.element(self.elem, base, self._times(rows, stride)),
            self._times(self.direction, self.p["hidden"], width),
        )

    def _given(self, base: str, time: str, width: int) -> str:
        """The first row of a step in the sequence that comes with strides."""
        b, p = self.b, self.p
        along = b.integer(f"add {self._times(time, p['in_step'])}, {self._times(self.row, p['in_row'])}")
        inside = self._times(self.direction, p["hidden"], width)
        return b.element(self.elem, base, b.integer(f"add {along}, {inside}"))

    def _first(self, base: str) -> str:
        """The first row of a state [directions, batch, hidden]."""
        return self.b.element(self.elem, base, self.state)

    def _time(self, step: str) -> str:
        """The place of a step in running order."""
        b = self.b
        mirrored = b.integer(f"sub {self.final}, {step}")
        return b.op(f"select i1 {self.backwards}, i64 {mirrored}, i64 {step}")

    def _before(self, step: str, first: str, base: str, width: int) -> tuple[str, str]:
        """Rows of a sequence at the step before, or the given first ones; with their stride."""
        b = self.b
        starts = b.op(f"icmp eq i64 {step}, 0")
        earlier = self._line(base, self._time(b.integer(f"sub {step}, 1")), width)
        place = b.op(f"select i1 {starts}, ptr {first}, ptr {earlier}")
        return place, b.op(f"select i1 {starts}, i64 {self.p['hidden']}, i64 {self._stride(width)}")

    # ------------------------------------------------------------------ rows of vectors

    def _each(self, body: Body, *places: tuple[str, str]) -> None:
        """``body(i, mask, pointers)`` for every vector of hidden units of every row; places are (pointer, stride)."""
        b = self.b

        def row(r: str, _: list[V]) -> list[V]:
            lines = [b.element(self.elem, pointer, self._times(r, stride)) for pointer, stride in places]

            def unit(i: str, mask: V | None, _: list[V]) -> list[V]:
                body(i, mask, lines)
                return []

            vectors(self.at, "0", self.p["hidden"], [], unit)
            return []

        loop(b, "0", self.rows, 1, [], row)

    def _load(self, line: str, i: str, mask: V | None, gate: int = 0) -> V:
        return load_vector(self.at, self._at(line, i, gate), mask, self.elem)

    def _store(self, value: V, line: str, i: str, mask: V | None, gate: int = 0) -> None:
        store_vector(value, self._at(line, i, gate), mask)

    def _at(self, line: str, i: str, gate: int) -> str:
        b = self.b
        place = b.element(self.elem, line, i)
        return place if gate == 0 else b.element(self.elem, place, self._times(self.p["hidden"], gate))

    def _copy(self, source: tuple[str, str], target: tuple[str, str]) -> None:
        def move(i: str, mask: V | None, lines: list[str]) -> None:
            self._store(self._load(lines[0], i, mask), lines[1], i, mask)

        self._each(move, source, target)

    def sigmoid(self, x: V) -> V:
        """1 / (1 + exp(-x)), without overflow."""
        if self.elem == "float":
            return FAST["sigmoid"](x)
        e = libm("exp", -abs(x))
        return x.cmp("oge", 0.0).where(1.0, e) / (e + 1.0)

    def tanh(self, x: V) -> V:
        """The hyperbolic tangent."""
        return FAST["tanh"](x) if self.elem == "float" else tanh64(x)

    def one_minus(self, x: V) -> V:
        """1 - x."""
        return self.at.const(self.elem, 1.0) - x

    # ------------------------------------------------------------------ the product

    def _product(
        self,
        a: tuple[str, str],
        depth: str,
        columns: str,
        out: tuple[str, str],
        turn: str,
        init: tuple[str, str] | None,
    ) -> None:
        """Rows of ``out`` := rows of ``a`` times the direction's panels, plus rows of ``init``."""
        b = self.b
        panels = b.integer(f"udiv {b.integer(f'add {columns}, {self.width - 1}')}, {self.width}")
        base = b.element(self.elem, self.panels, self._times(self.direction, panels, depth, self.width))
        start, ahead = init or ("null", "0")
        kinds = ["ptr", "i64", "ptr", "i64", "i64", "ptr", "i64", "ptr", "i64", "i64", "i64"]
        values = [*a, base, depth, columns, start, ahead, *out, self.rows, turn]
        args = ", ".join(f"{kind} {value}" for kind, value in zip(kinds, values, strict=True))
        b.do(f"call void @{self.name}_product{int(init is not None)}({args})")

    def _product_function(self, with_init: bool) -> None:
        name = f"{self.name}_product{int(with_init)}"
        inner = self.b.helper(name)
        assert inner is not None
        at = Lanes(inner, self.at.lanes)
        width, elem = self.width, self.elem
        panels = inner.integer(f"udiv {inner.integer(f'add %columns, {width - 1}')}, {width}")
        odd = inner.op("trunc i64 %turn to i1")

        def panel(j: str, _: list[V]) -> list[V]:
            mirrored = inner.integer(f"sub {inner.integer(f'sub {panels}, 1')}, {j}")
            which = inner.op(f"select i1 {odd}, i64 {mirrored}, i64 {j}")
            size = inner.integer(f"mul %depth, {width}")
            weights = inner.element(elem, "%panels", inner.integer(f"mul {which}, {size}"))
            column = inner.integer(f"mul {which}, {width}")
            left = inner.integer(f"sub %columns, {column}")

            def tile(height: int, row: str, rest: str) -> None:
                self._tile_of(at, height, row, rest, weights, column, left, with_init)

            each_tile(inner, self.tile, "0", "%rows", tile)
            return []

        loop(inner, "0", panels, 1, [], panel)
        inner.do("ret void")
        inner.end(
            f"internal void @{name}(ptr %a, i64 %stride, ptr %panels, i64 %depth, i64 %columns, ptr %init, "
            "i64 %init_stride, ptr %out, i64 %out_stride, i64 %rows, i64 %turn)",
            "nounwind noinline",
        )
        self.b.adopt(inner)

    def _tile_of(
        self, at: Lanes, height: int, row: str, rest: str, weights: str, column: str, left: str, with_init: bool
    ) -> None:
        """One register tile; rows beyond the last repeat it, which stores equal numbers again."""
        b, elem = at.builder, self.elem
        last = b.integer(f"sub {rest}, 1")
        numbers = [b.integer(f"add {row}, {least(b, str(r), last)}") for r in range(height)]
        rows = [b.element(elem, "%a", b.integer(f"mul {n}, %stride")) for n in numbers]
        sums = self._sums(at, rows, weights)

        def places(base: str, stride: str) -> list[str]:
            starts = [
                b.element(elem, base, b.integer(f"add {b.integer(f'mul {n}, {stride}')}, {column}")) for n in numbers
            ]
            return [b.element(elem, start, str(v * at.lanes)) for start in starts for v in range(self.tile.vectors)]

        targets, given = places("%out", "%out_stride"), places("%init", "%init_stride") if with_init else []

        def finish(masks: list[V | None]) -> None:
            totals = sums
            if with_init:
                loaded = [load_vector(at, g, masks[i % self.tile.vectors], elem) for i, g in enumerate(given)]
                totals = [s + g for s, g in zip(sums, loaded, strict=True)]
            for i, (value, target) in enumerate(zip(totals, targets, strict=True)):
                store_vector(value, target, masks[i % self.tile.vectors])

        whole, part, done = b.label("whole"), b.label("part"), b.label("stored")
        b.branch(b.op(f"icmp sge i64 {left}, {self.width}"), whole, part)
        b.place(whole)
        finish([None] * self.tile.vectors)
        b.jump(done)
        b.place(part)
        finish([tail_mask(at, str(v * at.lanes), left) for v in range(self.tile.vectors)])
        b.jump(done)
        b.place(done)

    def _sums(self, at: Lanes, rows: list[str], weights: str) -> list[V]:
        b, elem, count = at.builder, self.elem, self.tile.vectors

        def turns(k: str, repeat: int, sums: list[V]) -> list[V]:
            line = b.element(elem, weights, b.integer(f"mul {k}, {self.width}"))
            starts = [b.element(elem, row, k) for row in rows]
            for u in range(repeat):
                ahead = b.element(elem, line, str(u * self.width + _AHEAD))
                b.call("void", "llvm.prefetch.p0", [("ptr", ahead), ("i32", "0"), ("i32", "3"), ("i32", "1")])
                columns = [
                    load_vector(at, b.element(elem, line, str(u * self.width + v * at.lanes)), None, elem)
                    for v in range(count)
                ]
                news = list(sums)
                for r, start in enumerate(starts):
                    scale = splat_load(at, b.element(elem, start, str(u)), elem)
                    for v, vector in enumerate(columns):
                        news[r * count + v] = at.fma(scale, vector, sums[r * count + v])
                sums = news
            return sums

        whole = b.integer(f"and %depth, {-_UNROLL}")
        zeros = [at.const(elem, 0.0)] * (len(rows) * count)
        sums = loop(b, "0", whole, _UNROLL, zeros, lambda k, now: turns(k, _UNROLL, now))
        return loop(b, whole, "%depth", 1, sums, lambda k, now: turns(k, 1, now))


class _Forward(StepsEmitter):
    buffers = 11

    def _walk(self) -> None:
        b, hidden = self.b, self.p["hidden"]
        gates, self.panels, addend, first, cell0, y, last, cell, saved, cells, room = self.bufs
        self.addend = b.element(self.elem, addend, self._times(self.direction, hidden))
        columns = self._times(hidden, GATES[self.cell])
        # Products of all steps go to one place that stays in the cache; what is saved is written row by row.
        sums = b.element(self.elem, room, self._times(self.state, GATES[self.cell])), columns

        def step(t: str, _: list[V]) -> list[V]:
            time = self._time(t)
            before = self._before(t, self._first(first), y, 1)
            given = self._given(gates, time, GATES[self.cell]), self.p["in_row"]
            result = self._line(y, time, 1), self._stride(1)
            kept = self._line(saved, time, SAVED[self.cell]), self._stride(SAVED[self.cell])
            # What inputs give is added row by row, not tile by tile: it comes from memory, in order.
            self._product(before, hidden, columns, result if SAVED[self.cell] == 1 else sums, t, None)
            if self.cell == "lstm":
                old = self._before(t, self._first(cell0), cells, 1)
                self._each(self._lstm, sums, kept, old, (self._line(cells, time, 1), self._stride(1)), result, given)
            elif self.cell == "gru":
                self._each(self._gru, sums, kept, given, before, result, (self.addend, "0"))
            else:
                self._each(self._plain, result, given)
            return []

        loop(b, "0", self.p["steps"], 1, [], step)
        end = self._time(self.final)
        self._copy((self._line(y, end, 1), self._stride(1)), (self._first(last), hidden))
        if self.cell == "lstm":
            self._copy((self._line(cells, end, 1), self._stride(1)), (self._first(cell), hidden))

    def _lstm(self, i: str, mask: V | None, lines: list[str]) -> None:
        sums, saved, old, cells, y, given = lines
        parts = [self._load(sums, i, mask, gate) + self._load(given, i, mask, gate) for gate in range(4)]
        gates = [*map(self.sigmoid, parts[:3]), self.tanh(parts[3])]
        for gate, value in enumerate(gates):
            self._store(value, saved, i, mask, gate)
        enter, leave, keep, new = gates
        c = self.at.fma(keep, self._load(old, i, mask), enter * new)
        self._store(c, cells, i, mask)
        self._store(leave * self.tanh(c), y, i, mask)

    def _gru(self, i: str, mask: V | None, lines: list[str]) -> None:
        sums, saved, given, old, y, addend = lines
        x = [self._load(given, i, mask, gate) for gate in range(3)]
        h = [self._load(sums, i, mask, gate) for gate in range(3)]
        z, r = (self.sigmoid(x[k] + h[k]) for k in range(2))
        m = h[2] + self._load(addend, i, mask)
        n = self.tanh(self.at.fma(r, m, x[2]))
        for gate, value in enumerate((z, r, n, m)):
            self._store(value, saved, i, mask, gate)
        self._store(self.at.fma(z, self._load(old, i, mask) - n, n), y, i, mask)

    def _plain(self, i: str, mask: V | None, lines: list[str]) -> None:
        x = self._load(lines[0], i, mask) + self._load(lines[1], i, mask)
        self._store(self.tanh(x) if self.cell == "tanh" else x.above(0.0), lines[0], i, mask)


class _Backward(StepsEmitter):
    buffers = 11

    def __init__(self, cell: Cell, elem: Element, name: str, host: Host, given: bool) -> None:
        super().__init__(cell, elem, name, host)
        self.given = given

    def _walk(self) -> None:
        b, hidden, gates = self.b, self.p["hidden"], GATES[self.cell]
        self.panels, first, saved, states, dy, dh, dc, dgates, recurrent, dfirst, dcell = self.bufs
        work, cell = (self._first(dfirst), hidden), (self._first(dcell), hidden)
        self._copy((self._first(dh), hidden), work)
        if self.cell == "lstm":
            self._copy((self._first(dc), hidden), cell)
        products = recurrent if self.cell == "gru" else dgates
        depth = self._times(hidden, gates)

        def step(s: str, _: list[V]) -> list[V]:
            t = b.integer(f"sub {self.final}, {s}")
            time = self._time(t)
            made = self._line(dgates, time, gates), self._stride(gates)
            # Without a gradient of the result, any readable line stands in for it.
            shown = (self._given(dy, time, 1), self.p["in_row"]) if self.given else work
            kept = self._line(saved, time, SAVED[self.cell]), self._stride(SAVED[self.cell])
            if self.cell == "lstm":
                here = self._line(states, time, 1), self._stride(1)
                old = self._before(t, self._first(first), states, 1)
                self._each(self._lstm, work, shown, kept, here, old, cell, made)
            elif self.cell == "gru":
                old = self._before(t, self._first(first), states, 1)
                through = self._line(recurrent, time, gates), self._stride(gates)
                self._each(self._gru, work, shown, kept, old, made, through)
            else:
                self._each(self._plain, work, shown, kept, made)
            line = self._line(products, time, gates), self._stride(gates)
            self._product(line, depth, hidden, work, s, work if self.cell == "gru" else None)
            return []

        loop(b, "0", self.p["steps"], 1, [], step)

    def _total(self, work: str, shown: str, i: str, mask: V | None) -> V:
        """The gradient of a state: from the steps after it, and as a result."""
        later = self._load(work, i, mask)
        return later + self._load(shown, i, mask) if self.given else later

    def _lstm(self, i: str, mask: V | None, lines: list[str]) -> None:
        work, shown, saved, cells, old, carried, made = lines
        total = self._total(work, shown, i, mask)
        enter, leave, keep, new = (self._load(saved, i, mask, gate) for gate in range(4))
        now = self.tanh(self._load(cells, i, mask))
        cell = self.at.fma(total * leave, self.one_minus(now * now), self._load(carried, i, mask))
        slopes = [g * self.one_minus(g) for g in (enter, leave, keep)]
        results = (
            cell * new * slopes[0],
            total * now * slopes[1],
            cell * self._load(old, i, mask) * slopes[2],
            cell * enter * self.one_minus(new * new),
        )
        for gate, value in enumerate(results):
            self._store(value, made, i, mask, gate)
        self._store(cell * keep, carried, i, mask)

    def _gru(self, i: str, mask: V | None, lines: list[str]) -> None:
        work, shown, saved, old, made, through = lines
        total = self._total(work, shown, i, mask)
        z, r, n, m = (self._load(saved, i, mask, gate) for gate in range(4))
        hidden = total * self.one_minus(z) * self.one_minus(n * n)
        update = total * (self._load(old, i, mask) - n) * z * self.one_minus(z)
        reset = hidden * m * r * self.one_minus(r)
        for gate, value in enumerate((update, reset, hidden)):
            self._store(value, made, i, mask, gate)
        for gate, value in enumerate((update, reset, hidden * r)):
            self._store(value, through, i, mask, gate)
        self._store(total * z, work, i, mask)

    def _plain(self, i: str, mask: V | None, lines: list[str]) -> None:
        work, shown, state, made = lines
        total = self._total(work, shown, i, mask)
        y = self._load(state, i, mask)
        if self.cell == "tanh":
            self._store(total * self.one_minus(y * y), made, i, mask)
        else:
            self._store(y.cmp("ogt", 0.0).where(total, 0.0), made, i, mask)
