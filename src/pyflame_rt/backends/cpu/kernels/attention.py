"""Attention in one kernel: scores, mask, softmax and the weighted sum, a few rows of queries at a time.

Keys are taken in tiles, with the maximum and the sum so far carried along, so that no more than one tile of scores
exists at any time. Where there are many queries, keys are packed first (`KeyPackKernel`): then a vector holds the
scores of one query with neighbouring keys. A few queries take dot products with the keys as they lie.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from pyflame_rt.backends.cpu.ir.builder import Builder, Lanes, V
from pyflame_rt.backends.cpu.ir.loops import (
    least,
    load_vector,
    loop,
    splat_load,
    store_vector,
    tail_mask,
    total,
    totals,
    vectors,
)
from pyflame_rt.backends.cpu.ir.vector_math import FUNCTIONS
from pyflame_rt.backends.cpu.jit.target import host as this_host
from pyflame_rt.backends.cpu.kernels.copies import transpose_block
from pyflame_rt.backends.cpu.kernels.row_loops import SIGNATURE
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyflame_rt.backends.cpu.jit.target import Host

__all__ = ["PARAMS", "AttentionKernel", "KeyPackKernel", "pack_panel", "panel_width"]

PARAMS = (
    "heads", "queries", "keys", "depth", "width", "repeat", "scale", "blocks",
    "q_batch", "q_head", "q_row", "k_batch", "k_head", "k_row", "v_batch", "v_head", "v_row",
    "mask_batch", "mask_head", "mask_row", "out_batch", "out_head", "out_row",
)  # fmt: skip
_UNROLL = 4


def panel_width(host: Host | None = None) -> int:
    """Keys of a panel: two vectors."""
    return 2 * (host or this_host()).lanes(4)


@dataclass(frozen=True)
class KeyPackKernel:
    """Keys by panels: for each panel a line of its keys' first numbers, then of their second, and so on.

    bufs: keys, panels. params: heads, keys, depth, strides by batch, head and key. rows: batch x heads x panels.
    Keys beyond the last are zeros.
    """

    @property
    def key(self) -> str:
        """Equal for kernels of equal structure."""
        return "pack keys"

    def emit(self, name: str, host: Host | None = None) -> str:
        """The module, as text."""
        b = Builder(host or this_host())
        b.begin()
        source, target = (b.op(f"load ptr, ptr {b.element('ptr', '%bufs', str(k))}") for k in range(2))
        heads, keys, depth, by_batch, by_head, by_key = (b.load_i64("%params", k) for k in range(6))
        size = panel_width(b.host)
        panels = b.integer(f"udiv {b.integer(f'add {keys}, {size - 1}')}, {size}")

        def panel(row: str, _: list[V]) -> list[V]:
            which, head = (b.integer(f"{op} {row}, {panels}") for op in ("urem", "udiv"))
            batch, head = (b.integer(f"{op} {head}, {heads}") for op in ("udiv", "urem"))
            first = b.integer(f"mul {which}, {size}")
            offset = _sum(b, (batch, by_batch), (head, by_head), (first, by_key))
            place = b.element("float", target, b.integer(f"mul {row}, {b.integer(f'mul {depth}, {size}')}"))
            left = least(b, b.integer(f"sub {keys}, {first}"), str(size))
            pack_panel(b, b.element("float", source, offset), by_key, place, (left, depth))
            return []

        loop(b, "%begin", "%end", 1, [], panel)
        b.do("ret void")
        b.end(SIGNATURE.format(name=name))
        return b.text()


def _sum(b: Builder, *pairs: tuple[str, str]) -> str:
    total = "0"
    for count, stride in pairs:
        total = b.integer(f"add {total}, {b.integer(f'mul {count}, {stride}')}")
    return total


def pack_panel(b: Builder, source: str, stride: str, target: str, sizes: tuple[str, str]) -> None:
    """Whole blocks of 8 x 8 in registers, the rest number by number."""
    size, (keys, depth) = panel_width(b.host), sizes
    full = b.op(f"icmp eq i64 {keys}, {size}")
    deep = b.op(f"select i1 {full}, i64 {b.integer(f'and {depth}, -8')}, i64 0")

    def blocks(d: str, _: list[V]) -> list[V]:
        for j in range(0, size, 8):
            start = b.element("float", source, b.integer(f"add {b.integer(f'mul {stride}, {j}')}, {d}"))
            place = b.element("float", target, b.integer(f"add {b.integer(f'mul {d}, {size}')}, {j}"))
            transpose_block(b, start, stride, place, str(size))
        return []

    def line(d: str, _: list[V]) -> list[V]:
        def number(j: str, _: list[V]) -> list[V]:
            inside = b.op(f"icmp slt i64 {j}, {keys}")
            near = b.op(f"select i1 {inside}, i64 {j}, i64 0")
            place = b.element("float", source, b.integer(f"add {b.integer(f'mul {near}, {stride}')}, {d}"))
            value = b.op(f"select i1 {inside}, float {b.op(f'load float, ptr {place}, align 4')}, float 0.0")
            to = b.element("float", target, b.integer(f"add {b.integer(f'mul {d}, {size}')}, {j}"))
            b.do(f"store float {value}, ptr {to}, align 4")
            return []

        loop(b, "0", str(size), 1, [], number)
        return []

    loop(b, "0", deep, 8, [], blocks)
    loop(b, deep, depth, 1, [], line)


@dataclass(frozen=True)
class AttentionKernel:
    """Out = softmax(scale * q k + mask) v, float32.

    bufs: q, k, v, mask (unused without one), out. params: PARAMS; ``scale`` holds the bits of a float64, ``repeat`` is
    how many heads share a head of k and v, ``blocks`` = ceil(queries / rows). rows: batch x heads x blocks. Numbers of
    one query, key, value, result or line of the mask are neighbours in memory. Where k is ``packed``, k_batch, k_head,
    k_row are strides of panels. ``guarded`` takes shares that are no numbers for zeros: those of a
    query that may see nothing.
    """

    TILE: ClassVar[int] = 512  # keys whose scores exist at one time
    MAX_WIDTH: ClassVar[int] = 1024  # of values

    rows: int
    masked: bool
    guarded: bool = False
    packed: bool = False

    @property
    def key(self) -> str:
        """Equal for kernels of equal structure."""
        told = ("masked", self.masked), ("guarded", self.guarded), ("packed", self.packed)
        return " ".join([f"attention {self.rows}", *(name for name, holds in told if holds)])

    def emit(self, name: str, host: Host | None = None) -> str:
        """The module, as text."""
        return _AttentionEmitter(self, host or this_host()).emit(name)


class _AttentionEmitter:
    def __init__(self, kernel: AttentionKernel, host: Host) -> None:
        self.kernel, self.b = kernel, Builder(host)
        self.at, self.one = Lanes(self.b, host.lanes(4)), Lanes(self.b, 1)
        self.panel = panel_width(host)

    def emit(self, name: str) -> str:
        b, kernel = self.b, self.kernel
        b.begin()
        self.scores = b.op(f"alloca [{kernel.rows * kernel.TILE} x float], align 64")
        self.spare = b.op(f"alloca [{kernel.MAX_WIDTH} x float], align 64")
        self.bases = [b.op(f"load ptr, ptr {b.element('ptr', '%bufs', str(k))}") for k in range(5)]
        self.p = {name: b.load_i64("%params", i) for i, name in enumerate(PARAMS)}
        bits = b.op(f"bitcast i64 {self.p['scale']} to double")
        self.scale = self.at.splat("float", b.op(f"fptrunc double {bits} to float"))
        loop(b, "%begin", "%end", 1, [], self._block)
        b.do("ret void")
        b.end(SIGNATURE.format(name=name))
        return b.text()

    def _block(self, item: str, _: list[V]) -> list[V]:
        """A few queries of one head, over all keys."""
        b, p = self.b, self.p
        which, head = (b.integer(f"{op} {item}, {p['blocks']}") for op in ("urem", "udiv"))
        batch, head = (b.integer(f"{op} {head}, {p['heads']}") for op in ("udiv", "urem"))
        shared = b.integer(f"udiv {head}, {p['repeat']}")
        places = {"q": head, "k": shared, "v": shared, "mask": head, "out": head}
        q, self.k, self.v, mask, out = (
            b.element("float", base, _sum(b, (batch, p[f"{kind}_batch"]), (at, p[f"{kind}_head"])))
            for base, (kind, at) in zip(self.bases, places.items(), strict=True)
        )
        self._rows(b.integer(f"mul {which}, {self.kernel.rows}"), q, mask, out)
        start = [V(self.one, "float", value) for value in ("0xFFF0000000000000", "0.0")]
        loop(b, "0", p["keys"], self.kernel.TILE, start * self.kernel.rows, self._tile)
        return []

    def _rows(self, first: str, q: str, mask: str, out: str) -> None:
        """Where the rows are; beyond the last query the last is computed again and not kept."""
        b, p = self.b, self.p
        self.q, self.masks, self.out = [], [], []
        for r in range(self.kernel.rows):
            row = first if r == 0 else b.integer(f"add {first}, {r}")
            inside = b.op(f"icmp slt i64 {row}, {p['queries']}")
            near = least(b, row, b.integer(f"sub {p['queries']}, 1"))
            self.q.append(b.element("float", q, b.integer(f"mul {near}, {p['q_row']}")))
            self.masks.append(b.element("float", mask, b.integer(f"mul {near}, {p['mask_row']}")))
            place = b.element("float", out, b.integer(f"mul {near}, {p['out_row']}"))
            self.out.append(b.op(f"select i1 {inside}, ptr {place}, ptr {self.spare}"))

    def _tile(self, low: str, state: list[V]) -> list[V]:
        """One tile of keys: state holds for each row the maximum and the sum so far."""
        b, rows = self.b, self.kernel.rows
        high = least(b, b.integer(f"add {low}, {self.kernel.TILE}"), self.p["keys"])
        tops = (self._panels if self.kernel.packed else self._dots)(low, high)
        states, kept = [], []
        for r in range(rows):
            top, part = state[2 * r], state[2 * r + 1]
            found = V(self.one, "float", total(tops[r], "fmax"))
            new = found.cmp("ogt", top).where(found, top)
            # A row of -inf alone so far: whatever is subtracted, exp gives 0.
            base = new.cmp("oeq", -math.inf).where(self.one.const("float", 0.0), new)
            _define_exp(b)
            keep = self.one.wrap("float", f"call float @exp_one(float {(top - base).name})")
            keep = top.cmp("oeq", -math.inf).where(self.one.const("float", 0.0), keep)
            states += [new, part * keep + self._raise(r, base, low, high)]
            kept.append(keep)
        last = b.op(f"icmp eq i64 {high}, {self.p['keys']}")
        self._weigh(low, high, kept, [s.name for s in states[1::2]], last)
        return states

    # ------------------------------------------------------------------ scores

    def _score(self, r: int, position: str) -> str:
        return self.b.element("float", self.scores, self.b.integer(f"add {position}, {r * self.kernel.TILE}"))

    def _panels(self, low: str, high: str) -> list[V]:
        """Scores with packed keys; gives vectors of the maxima of each row."""
        b, at, p = self.b, self.at, self.p
        rows, lowest = self.kernel.rows, at.const("float", -math.inf)

        def panel(key: str, tops: list[V]) -> list[V]:
            keys = b.element("float", self.k, b.integer(f"mul {b.integer(f'udiv {key}, {self.panel}')}, {p['k_row']}"))
            sums = self._products(keys)
            result = []
            for r in range(rows):
                top = tops[r]
                for v in range(2):
                    at_key = b.integer(f"add {key}, {v * at.lanes}")
                    inside = tail_mask(at, at_key, high)
                    score = self._masked(sums[2 * r + v] * self.scale, r, at_key, inside)
                    score = inside.where(score, lowest)
                    store_vector(score, self._score(r, b.integer(f"sub {at_key}, {low}")))
                    top = score.cmp("ogt", top).where(score, top)
                result.append(top)
            return result

        return loop(b, low, high, self.panel, [lowest] * rows, panel)

    def _masked(self, score: V, r: int, key: str, inside: V | None) -> V:
        if not self.kernel.masked:
            return score
        return score + load_vector(self.at, self.b.element("float", self.masks[r], key), inside)

    def _products(self, keys: str) -> list[V]:
        """Every row with the keys of one panel."""
        b, at = self.b, self.at

        def step(d: str, ahead: int, sums: list[V]) -> list[V]:
            line = b.element("float", keys, b.integer(f"mul {d}, {self.panel}"))
            pair = [load_vector(at, b.element("float", line, str(ahead * self.panel + v * at.lanes))) for v in range(2)]
            result = []
            for r, q in enumerate(self.q):
                scale = splat_load(at, b.element("float", b.element("float", q, d), str(ahead)))
                result += [at.fma(k, scale, s) for k, s in zip(pair, sums[2 * r : 2 * r + 2], strict=True)]
            return result

        return self._along(self.p["depth"], [at.const("float", 0.0)] * (2 * self.kernel.rows), step)

    def _along(self, count: str, start: list[V], step: Callable[[str, int, list[V]], list[V]]) -> list[V]:
        """``step(i, ahead, values)`` for i + ahead from 0 to count, several a turn."""
        b = self.b

        def turn(i: str, now: list[V]) -> list[V]:
            for ahead in range(_UNROLL):
                now = step(i, ahead, now)
            return now

        whole = b.integer(f"and {count}, {-_UNROLL}")
        values = loop(b, "0", whole, _UNROLL, start, turn)
        return loop(b, whole, count, 1, values, lambda i, now: step(i, 0, now))

    def _dots(self, low: str, high: str) -> list[V]:
        """Scores with keys as they lie; gives vectors of the maxima of each row."""
        b, at, rows = self.b, self.at, self.kernel.rows
        several = 4 if rows == 1 or b.host.registers >= 32 else 2  # keys, so that all sums stay in registers
        length = b.integer(f"sub {high}, {low}")
        whole = b.integer(f"add {low}, {b.integer(f'and {length}, {-several}')}")

        def dots(key: str, number: int) -> list[V]:
            keys = [
                b.element("float", self.k, b.integer(f"mul {b.integer(f'add {key}, {j}')}, {self.p['k_row']}"))
                for j in range(number)
            ]

            def add(d: str, mask: V | None, sums: list[V]) -> list[V]:
                near = [load_vector(at, b.element("float", k, d), mask) for k in keys]
                result = []
                for r, query in enumerate(self.q):
                    q = load_vector(at, b.element("float", query, d), mask)
                    result += [at.fma(k, q, s) for k, s in zip(near, sums[r * number :], strict=False)]
                return result

            sums = vectors(at, "0", self.p["depth"], [at.const("float", 0.0)] * (number * rows), add)
            position = b.integer(f"sub {key}, {low}")
            for r in range(rows):
                found = totals(sums[r * number : (r + 1) * number])
                b.do(f"store {found.kind} {found.name}, ptr {self._score(r, position)}, align 4")
            return []

        loop(b, low, whole, several, [], lambda key, _: dots(key, several))
        loop(b, whole, high, 1, [], lambda key, _: dots(key, 1))
        return [self._highest(r, low, high) for r in range(rows)]

    def _highest(self, r: int, low: str, high: str) -> V:
        """Products to scores, in place; gives a vector of maxima."""
        at, lowest = self.at, self.at.const("float", -math.inf)

        def finish(key: str, tops: list[V]) -> list[V]:
            place, inside = self._score(r, self.b.integer(f"sub {key}, {low}")), tail_mask(at, key, high)
            score = self._masked(load_vector(at, place) * self.scale, r, key, inside)
            score = inside.where(score, lowest)
            store_vector(score, place)
            return [score.cmp("ogt", tops[0]).where(score, tops[0])]

        return loop(self.b, low, high, at.lanes, [lowest], finish)[0]

    def _raise(self, r: int, base: V, low: str, high: str) -> V:
        """Scores to weights, in place; gives their sum."""
        b = self.b
        _define_raise(b, self.at.lanes)
        row, count = self._score(r, "0"), b.integer(f"sub {high}, {low}")
        return self.one.wrap("float", f"call float @raise_weights(ptr {row}, float {base.name}, i64 {count})")

    # ------------------------------------------------------------------ weighted sum

    def _weigh(self, low: str, high: str, kept: list[V], sums: list[str], last: str) -> None:
        """Out = out * kept + weights v; after the last tile divided by the sum."""
        b, at, width = self.b, self.at, self.p["width"]
        first = b.op(f"icmp eq i64 {low}, 0")
        one = "0x3FF0000000000000"
        factors = []
        for value in sums:
            inverse = b.op(f"fdiv float {one}, {value}")
            factors.append(at.splat("float", b.op(f"select i1 {last}, float {inverse}, float {one}")))
        scales = [at.splat("float", value.name) for value in kept]
        several = 2 if self.kernel.rows > 1 else 8
        step = several * at.lanes
        whole = b.integer(f"udiv {width}, {step}")
        whole = b.integer(f"mul {whole}, {step}")

        def columns(c: str, number: int, mask: V | None) -> list[V]:
            places = [b.integer(f"add {c}, {v * at.lanes}") for v in range(number)]
            start = []
            for out, scale in zip(self.out, scales, strict=True):
                for place in places:
                    old = load_vector(at, b.element("float", out, place), mask) * scale
                    start.append(
                        at.wrap("float", f"select i1 {first}, {old.kind} zeroinitializer, {old.kind} {old.name}")
                    )
            results = self._values(low, high, places, mask, start)
            for r, (out, factor) in enumerate(zip(self.out, factors, strict=True)):
                shares = [value * factor for value in results[r * number : (r + 1) * number]]
                if self.kernel.guarded:
                    shares = self._guarded(shares, sums[r], places, mask, last)
                for share, place in zip(shares, places, strict=True):
                    store_vector(share, b.element("float", out, place), mask)
            return []

        loop(b, "0", whole, step, [], lambda c, _: columns(c, several, None))
        vectors(at, whole, width, [], lambda c, mask, _: columns(c, 1, mask))

    def _guarded(self, shares: list[V], value: str, places: list[str], mask: V | None, last: str) -> list[V]:
        """A row after the last tile: where its sum is no number, or zero, the values times zero."""
        b, at = self.b, self.at
        fine = b.op(f"fcmp ogt float {value}, 0.0")
        empty = b.op(f"select i1 {fine}, i1 false, i1 {last}")
        count = b.op(f"select i1 {empty}, i64 {self.p['keys']}, i64 0")

        def step(key: str, now: list[V]) -> list[V]:
            row = b.element("float", self.v, b.integer(f"mul {key}, {self.p['v_row']}"))
            values = [load_vector(at, b.element("float", row, place), mask) for place in places]
            return [at.fma(v, at.const("float", 0.0), old) for v, old in zip(values, now, strict=True)]

        zeros = loop(b, "0", count, 1, [at.const("float", 0.0)] * len(places), step)
        return [
            at.wrap("float", f"select i1 {empty}, {zero.kind} {zero.name}, {share.kind} {share.name}")
            for zero, share in zip(zeros, shares, strict=True)
        ]

    def _values(self, low: str, high: str, places: list[str], mask: V | None, start: list[V]) -> list[V]:
        b, at, number = self.b, self.at, len(places)

        def step(i: str, ahead: int, now: list[V]) -> list[V]:
            position = i if ahead == 0 else b.integer(f"add {i}, {ahead}")
            key = b.integer(f"add {position}, {low}")
            row = b.element("float", self.v, b.integer(f"mul {key}, {self.p['v_row']}"))
            values = [load_vector(at, b.element("float", row, place), mask) for place in places]
            result = []
            for r in range(self.kernel.rows):
                weight = splat_load(at, self._score(r, position))
                part = now[r * number : (r + 1) * number]
                result += [at.fma(value, weight, old) for value, old in zip(values, part, strict=True)]
            return result

        return self._along(b.integer(f"sub {high}, {low}"), start, step)


def _define_raise(b: Builder, lanes: int) -> None:
    """Row[:count] = exp(row[:count] - base), whole vectors; gives the sum. Rows end in -inf."""
    inner = b.helper("raise_weights")
    if inner is None:
        return
    at = Lanes(inner, lanes)
    spread = at.splat("float", "%base")

    def vector(i: str, sums: list[V]) -> list[V]:
        place = inner.element("float", "%row", i)
        weight = FUNCTIONS["decay"](load_vector(at, place) - spread)
        store_vector(weight, place)
        return [sums[0] + weight]

    (sums,) = loop(inner, "0", "%count", lanes, [at.const("float", 0.0)], vector)
    inner.do(f"ret float {total(sums)}")
    inner.end("internal float @raise_weights(ptr %row, float %base, i64 %count)", "nounwind noinline")
    b.adopt(inner)


def _define_exp(b: Builder) -> None:
    inner = b.helper("exp_one")
    if inner is None:
        return
    inner.do(f"ret float {FUNCTIONS['exp'](V(Lanes(inner, 1), 'float', '%x')).name}")
    inner.end("internal float @exp_one(float %x)", "nounwind noinline")
    b.adopt(inner)
