"""Attention in training: one head at a time, forwards and backwards, its scores never leaving the cache.

Keys and values of a head are packed into panels of columns, as tiled products want them. A tile of queries has its
scores with all keys, the softmax and the weighted sum done before the next. Backwards the scores are computed again;
the gradients of keys and values are sums over a block of queries. With ``causal`` what no query may see is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pyflame_rt.backends.cpu.ir.builder import Builder, Lanes, V
from pyflame_rt.backends.cpu.ir.kernel_program import apply, load
from pyflame_rt.backends.cpu.ir.loops import load_vector, loop, store_vector, tail_mask, total
from pyflame_rt.backends.cpu.ir.vector_math import FUNCTIONS
from pyflame_rt.backends.cpu.jit.target import host as this_host
from pyflame_rt.backends.cpu.kernels.attention import pack_panel
from pyflame_rt.backends.cpu.kernels.row_loops import SIGNATURE
from pyflame_rt.backends.cpu.kernels.tiles.control import Loop, add, buffers, floats, least, most, mul
from pyflame_rt.backends.cpu.kernels.tiles.register_tile import (
    PLAIN,
    Finish,
    Target,
    Tile,
    accumulate,
    accumulate_packed,
    finish,
    row_pointers,
)
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame_rt.backends.cpu.jit.target import Host

__all__ = ["OPERANDS", "PARAMS", "PARTS", "HeadsKernel", "heads_tile"]

Way = Literal["forward", "backward"]
PARAMS = ("heads", "queries", "keys", "depth", "width", "scale", "causal", "block", "line", "apart", "slot")
# What lies in the scratch memory of a call: packed operands, weights, and what becomes the gradient of the scores.
PARTS: dict[Way, tuple[str, ...]] = {
    "forward": ("turned_k", "values", "weights"),
    "backward": ("turned_k", "turned_v", "k_panels", "q_panels", "g_panels", "weights", "slopes"),
}
OPERANDS: dict[Way, tuple[str, ...]] = {
    "forward": ("q", "k", "v", "out"),
    "backward": ("g", "q", "k", "v", "dq", "dk", "dv"),
}
_ADDED = Finish(apply("add", load(0, "float32"), load(1, "float32")), ("full",))


def heads_tile(host: Host | None = None) -> Tile:
    """Rows and vectors of columns of a product."""
    return Tile(12 if (host or this_host()).registers >= 32 else 6, 2)


@dataclass(frozen=True)
class HeadsKernel:
    """Out = softmax(scale * q k^T) v for each head, or the gradients of q, k and v from that of ``out``; float32.

    bufs: OPERANDS, scratch. params: PARAMS, where PARTS begin in a slot of the scratch, then strides of each operand by
    batch, head and row; ``scale`` holds the bits of a float64, ``block`` queries are summed up at a time, ``line`` is
    the row stride of weights, and a call that begins with item i takes slot i / ``apart``. rows: batch x heads.
    """

    way: Way

    @property
    def key(self) -> str:
        """Equal for kernels of equal structure."""
        return f"heads {self.way}"

    def emit(self, name: str) -> str:
        """The module, as text."""
        b = Builder(this_host())
        b.begin()
        (_Forward if self.way == "forward" else _Backward)(self.way, b).emit()
        b.do("ret void")
        b.end(SIGNATURE.format(name=name))
        return b.text()


class _Head:
    """What both ways share: operands, packing, scores and the softmax."""

    def __init__(self, way: Way, b: Builder) -> None:
        self.b, self.at, self.tile = b, Lanes(b, b.host.lanes(4)), heads_tile(b.host)
        self.size = self.tile.vectors * self.at.lanes  # columns of a panel
        self.p = {name: b.load_i64("%params", k) for k, name in enumerate(PARAMS)}
        self.names, cursor = OPERANDS[way], len(PARAMS)
        self.parts = {name: b.load_i64("%params", cursor + k) for k, name in enumerate(PARTS[way])}
        cursor += len(self.parts)
        self.strides = {
            name: [b.load_i64("%params", cursor + 3 * k + j) for j in range(3)] for k, name in enumerate(self.names)
        }

    def emit(self) -> None:
        b, p = self.b, self.p
        *bases, scratch = buffers(b, len(self.names) + 1)
        self.spill = b.op(f"alloca [{self.tile.rows * self.size} x float], align 64")
        bits = b.op(f"bitcast i64 {p['scale']} to double")
        self.scale = self.at.splat("float", b.op(f"fptrunc double {bits} to float"))
        self.causal = b.op(f"icmp ne i64 {p['causal']}, 0")
        start = floats(b, scratch, mul(b, b.integer(f"sdiv %begin, {p['apart']}"), p["slot"]))
        self.part = {name: floats(b, start, offset) for name, offset in self.parts.items()}
        with Loop(b, "%begin", "%end") as item:
            batch, head = (b.integer(f"{op} {item}, {p['heads']}") for op in ("sdiv", "srem"))
            self.base = {}
            for name, base in zip(self.names, bases, strict=True):
                by_batch, by_head, _ = self.strides[name]
                self.base[name] = floats(b, base, add(b, mul(b, batch, by_batch), mul(b, head, by_head)))
            self.head()

    def head(self) -> None:
        raise NotImplementedError

    def row(self, name: str, number: str) -> str:
        return floats(self.b, self.base[name], mul(self.b, number, self.strides[name][2]))

    # ------------------------------------------------------------------ packing

    def turned(self, name: str, length: str, part: str) -> None:
        """Rows as columns of panels; beyond the last row zeros."""
        b, keys = self.b, self.p["keys"]
        with Loop(b, "0", keys, self.size) as first:
            left = least(b, b.integer(f"sub {keys}, {first}"), self.size)
            target = floats(b, self.part[part], mul(b, first, length))
            pack_panel(b, self.row(name, first), self.strides[name][2], target, (left, length))

    def panels(self, source: str, stride: str, count: str, length: str, part: str, room: str) -> None:
        """``count`` rows as they are, by panels of columns with ``room`` rows each; beyond the last column zeros."""
        b, at = self.b, self.at
        with Loop(b, "0", length, self.size) as column:
            masks = [tail_mask(at, add(b, column, v * at.lanes), length) for v in range(self.tile.vectors)]
            target = floats(b, self.part[part], mul(b, column, room))
            with Loop(b, "0", count) as row:
                line = floats(b, source, add(b, mul(b, row, stride), column))
                place = floats(b, target, mul(b, row, self.size))
                for v, mask in enumerate(masks):
                    value = load_vector(at, floats(b, line, v * at.lanes), mask)
                    store_vector(value, floats(b, place, v * at.lanes))

    # ------------------------------------------------------------------ a tile of queries

    def seen(self, row: str) -> str:
        """How many keys the queries before ``row`` may see at most."""
        return self.b.op(f"select i1 {self.causal}, i64 {least(self.b, row, self.p['keys'])}, i64 {self.p['keys']}")

    def products(self, rows: Sequence[str], part: str, length: str, target: str, keys: str, factor: V | None) -> None:
        """Rows times turned keys or values: a tile of scores in lines of ``line``."""
        b, at, vectors = self.b, self.at, self.tile.vectors
        with Loop(b, "0", keys, self.size) as key:
            panel = floats(b, self.part[part], mul(b, key, length))
            sums, _ = accumulate(at, self.tile, rows, panel, length, self.zeros())
            for r in range(self.tile.rows):
                place = floats(b, target, add(b, mul(b, self.p["line"], r), key))
                for v in range(vectors):
                    value = V(at, "float", sums[r * vectors + v])
                    value = value if factor is None else value * factor
                    store_vector(value, floats(b, place, v * at.lanes))

    def zeros(self) -> list[str]:
        return ["zeroinitializer"] * (self.tile.rows * self.tile.vectors)

    def lines(self, start: str) -> list[str]:
        return [floats(self.b, start, mul(self.b, self.p["line"], r)) for r in range(self.tile.rows)]

    def weighed(self, lines: Sequence[str], part: str, room: str, keys: str, length: str, name: str, row: str) -> None:
        """Lines of weights times panels of rows, into rows of an operand."""
        b, valid = self.b, least(self.b, minus(self.b, self.p["queries"], row), self.tile.rows)
        stride = self.strides[name][2]
        with Loop(b, "0", length, self.size) as column:
            panel = floats(b, self.part[part], mul(b, column, room))
            sums, _ = accumulate(self.at, self.tile, lines, panel, keys, self.zeros())
            target = Target(floats(b, self.row(name, row), column), stride, (), ())
            left = minus(b, length, column)
            finish(self.at, self.tile, self.tile.rows, sums, PLAIN, target, self.spill, valid, left)

    def scores(self, first: str, target: str) -> tuple[str, str]:
        """Weights of a tile of queries; gives how many keys it sees, and how far its lines are filled."""
        b, p = self.b, self.p
        keys = self.seen(add(b, first, self.tile.rows))
        # What follows reads a tile's width beyond the keys a line has: zeros.
        full = least(b, add(b, b.integer(f"and {add(b, keys, self.size - 1)}, {-self.size}"), self.size), p["line"])
        valid = least(b, minus(b, p["queries"], first), self.tile.rows)
        rows = row_pointers(b, self.tile.rows, valid, self.base["q"], first, self.strides["q"][2])
        self.products(rows, "turned_k", p["depth"], target, keys, self.scale)
        _define_soften(b, self.at.lanes)
        with Loop(b, "0", str(self.tile.rows)) as r:
            line = floats(b, target, mul(b, p["line"], r))
            b.do(f"call void @soften(ptr {line}, i64 {self.seen_by(first, r)}, i64 {full})")
        return keys, full

    def seen_by(self, first: str, row: str) -> str:
        """How many keys the query in a row of a tile may see."""
        return self.seen(add(self.b, add(self.b, first, row), 1))


class _Forward(_Head):
    def head(self) -> None:
        b, p = self.b, self.p
        self.turned("k", p["depth"], "turned_k")
        self.panels(self.base["v"], self.strides["v"][2], p["keys"], p["width"], "values", p["keys"])
        lines = self.lines(self.part["weights"])
        with Loop(b, "0", p["queries"], self.tile.rows) as first:
            keys, _ = self.scores(first, self.part["weights"])
            self.weighed(lines, "values", p["keys"], keys, p["width"], "out", first)


class _Backward(_Head):
    def head(self) -> None:
        b, p = self.b, self.p
        self.turned("k", p["depth"], "turned_k")
        self.turned("v", p["width"], "turned_v")
        self.panels(self.base["k"], self.strides["k"][2], p["keys"], p["depth"], "k_panels", p["keys"])
        self._clear("dk", p["depth"])
        self._clear("dv", p["width"])
        with Loop(b, "0", p["queries"], p["block"]) as begin:
            count = least(b, minus(b, p["queries"], begin), p["block"])
            for name, length in (("q", p["depth"]), ("g", p["width"])):
                part = f"{name}_panels"
                self.panels(self.row(name, begin), self.strides[name][2], count, length, part, p["block"])
            with Loop(b, "0", count, self.tile.rows) as row:
                self._queries(add(b, begin, row), row)
            self._keys(begin, count)

    def _clear(self, name: str, length: str) -> None:
        b, at = self.b, self.at
        with Loop(b, "0", self.p["keys"]) as key:
            line = self.row(name, key)
            with Loop(b, "0", length, at.lanes) as column:
                store_vector(at.const("float", 0.0), floats(b, line, column), tail_mask(at, column, length))

    def _queries(self, first: str, row: str) -> None:
        """Weights, the gradient of the scores, and that of the queries, of one tile."""
        b, p = self.b, self.p
        start = mul(b, row, p["line"])
        weights, slopes = (floats(b, self.part[name], start) for name in ("weights", "slopes"))
        keys, full = self.scores(first, weights)
        valid = least(b, minus(b, p["queries"], first), self.tile.rows)
        rows = row_pointers(b, self.tile.rows, valid, self.base["g"], first, self.strides["g"][2])
        self.products(rows, "turned_v", p["width"], slopes, keys, None)
        _define_slope(b, self.at.lanes)
        scale = self.at.lane(self.scale, 0)

        with Loop(b, "0", str(self.tile.rows)) as r:
            line, other = (floats(b, start, mul(b, p["line"], r)) for start in (weights, slopes))
            args = f"ptr {line}, ptr {other}, i64 {self.seen_by(first, r)}, i64 {full}, float {scale}"
            b.do(f"call void @slope({args})")
        self.weighed(self.lines(slopes), "k_panels", p["keys"], keys, p["depth"], "dq", first)

    def _keys(self, begin: str, count: str) -> None:
        """Add what a block of queries gives to the gradients of values and keys."""
        b, p, rows = self.b, self.p, self.tile.rows
        with Loop(b, "0", self.seen(add(b, begin, count)), rows) as key:
            # Queries before this key do not see it.
            skipped = b.op(f"select i1 {self.causal}, i64 {most(b, minus(b, key, begin), '0')}, i64 0")
            left = minus(b, count, skipped)
            valid = least(b, minus(b, p["keys"], key), rows)
            start = add(b, mul(b, skipped, p["line"]), key)
            for part, other, name, length in (
                ("weights", "g_panels", "dv", p["width"]),
                ("slopes", "q_panels", "dk", p["depth"]),
            ):
                with Loop(b, "0", length, self.size) as column:
                    panel = add(b, mul(b, column, p["block"]), mul(b, skipped, self.size))
                    panel = floats(b, self.part[other], panel)
                    lines = floats(b, self.part[part], start)
                    sums = accumulate_packed(self.at, self.tile, lines, p["line"], panel, left, self.zeros())
                    place, stride = floats(b, self.row(name, key), column), self.strides[name][2]
                    target = Target(place, stride, (place,), (stride,))
                    wide = minus(b, length, column)
                    finish(self.at, self.tile, rows, sums, _ADDED, target, self.spill, valid, wide)


def minus(b: Builder, x: str, y: str) -> str:
    """The i64 difference."""
    return b.integer(f"sub {x}, {y}")


def _define_soften(b: Builder, lanes: int) -> None:
    """Line[:count] = softmax of it; zeros from there to ``full``, a multiple of vectors."""
    inner = b.helper("soften")
    if inner is None:
        return
    at = Lanes(inner, lanes)
    lowest, zero = at.const("float", -float("inf")), at.const("float", 0.0)

    def top(i: str, found: list[V]) -> list[V]:
        value = tail_mask(at, i, "%count").where(load_vector(at, inner.element("float", "%line", i)), lowest)
        return [value.cmp("ogt", found[0]).where(value, found[0])]

    (tops,) = loop(inner, "0", "%count", lanes, [lowest], top)
    base = at.splat("float", total(tops, "fmax"))

    def raised(i: str, sums: list[V]) -> list[V]:
        place = inner.element("float", "%line", i)
        value = FUNCTIONS["decay"](load_vector(at, place) - base)
        value = tail_mask(at, i, "%count").where(value, zero)
        store_vector(value, place)
        return [sums[0] + value]

    (sums,) = loop(inner, "0", "%count", lanes, [zero], raised)
    factor = at.splat("float", inner.op(f"fdiv float 0x3FF0000000000000, {total(sums)}"))

    def scaled(i: str, _: list[V]) -> list[V]:
        place = inner.element("float", "%line", i)
        store_vector(load_vector(at, place) * factor, place)
        return []

    loop(inner, "0", "%count", lanes, [], scaled)
    _clear_rest(inner, at, "%line")
    inner.do("ret void")
    inner.end("internal void @soften(ptr %line, i64 %count, i64 %full)", "nounwind noinline")
    b.adopt(inner)


def _clear_rest(b: Builder, at: Lanes, line: str) -> None:
    """Zeros from the end of the vectors that hold ``%count`` numbers to ``%full``."""
    done = b.integer(f"and {b.integer(f'add %count, {at.lanes - 1}')}, {-at.lanes}")

    def clear(i: str, _: list[V]) -> list[V]:
        store_vector(at.const("float", 0.0), b.element("float", line, i))
        return []

    loop(b, done, "%full", at.lanes, [], clear)


def _define_slope(b: Builder, lanes: int) -> None:
    """Other[:count] = weights * (other - the sum of weights * other) * scale; zeros from there to ``full``."""
    inner = b.helper("slope")
    if inner is None:
        return
    at = Lanes(inner, lanes)
    zero = at.const("float", 0.0)

    def pair(i: str) -> tuple[V, V]:
        weight = load_vector(at, inner.element("float", "%weights", i))
        return weight, tail_mask(at, i, "%count").where(load_vector(at, inner.element("float", "%line", i)), zero)

    def add_up(i: str, sums: list[V]) -> list[V]:
        return [at.fma(*pair(i), sums[0])]

    (sums,) = loop(inner, "0", "%count", lanes, [zero], add_up)
    level, factor = at.splat("float", total(sums)), at.splat("float", "%scale")

    def bend(i: str, _: list[V]) -> list[V]:
        weight, value = pair(i)
        store_vector(weight * (value - level) * factor, inner.element("float", "%line", i))
        return []

    loop(inner, "0", "%count", lanes, [], bend)
    _clear_rest(inner, at, "%line")
    inner.do("ret void")
    signature = "internal void @slope(ptr %weights, ptr %line, i64 %count, i64 %full, float %scale)"
    inner.end(signature, "nounwind noinline")
    b.adopt(inner)
