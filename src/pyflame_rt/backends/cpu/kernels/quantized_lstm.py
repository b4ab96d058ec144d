"""The steps of an LSTM with quantized weights: states are quantized by their range, products are sums of integers.

A direction is a row of the kernel. A step quantizes the states of all its sequences together, then goes through blocks
of hidden units: sums of products for the four gates of the block, then the gates. Where the machine has VNNI, products
are of bytes, four at a time, and what the zero point of the states adds to a column is taken off first; elsewhere they
are of 16-bit numbers less their zero point, two at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pyflame_rt.backends.cpu.ir.builder import Builder, Lanes, V
from pyflame_rt.backends.cpu.ir.loops import load_vector, loop, store_vector, tail_mask, total, vectors
from pyflame_rt.backends.cpu.jit.target import host as this_host
from pyflame_rt.backends.cpu.kernels.row_loops import SIGNATURE
from pyflame_rt.backends.cpu.kernels.tiles.epilogue_math import FAST
from pyflame_rt.backends.cpu.kernels.tiles.integer_dots import VNNI, dots_for
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from pyflame_rt.backends.cpu.jit.target import Host

__all__ = ["RoundedSteps", "by_fours"]

_PARAMS = ("steps", "hidden", "batch", "directions", "reversed", "in_step", "in_row", "padded")
_GATES = 4


def by_fours(host: Host) -> bool:
    """Whether a machine adds four products of bytes at once."""
    dots = dots_for(host)
    return dots is not None and dots.kind == "vnni"


@dataclass(frozen=True)
class RoundedSteps:
    """All steps of an LSTM whose states are quantized before each product.

    bufs: gates, packed weights, scales of columns, first states, first cells, result, last states, last cells, room for
    quantized states (int16 [directions, batch, padded], bytes with ``fours``), with ``fours`` the sums of columns'
    weights (int32, as scales). params: steps, hidden, batch, directions, 1 when the first
    direction runs backwards, strides of the gates by step and by sequence, hidden units rounded up to whole vectors.
    rows: directions.

    Weights are [direction, block, pair of units before, gate, unit of the block, 2], or fours and 4; scales [direction,
    block, gate, unit]; blocks are of BLOCK units. Weights are 8-bit numbers less their zero point, or 16-bit ones if
    ``wide``.
    """

    BLOCK: ClassVar[int] = 16
    VECTOR: ClassVar[int] = 16  # lanes at most: states are padded to whole vectors

    wide: bool = False
    fours: bool = False

    @property
    def key(self) -> str:
        """Equal for kernels of equal structure."""
        return f"rounded steps {self.wide:d}{self.fours:d}"

    def emit(self, name: str, host: Host | None = None) -> str:
        """The module, as text."""
        return _QuantizedLstmEmitter(self, host or this_host()).emit(name)


class _QuantizedLstmEmitter:
    def __init__(self, kernel: RoundedSteps, host: Host) -> None:
        self.kernel, self.b = kernel, Builder(host)
        self.at = Lanes(self.b, min(host.lanes(4), kernel.VECTOR if kernel.fours else 8))
        self.state = "i8" if kernel.fours else "i16"
        self.each = kernel.BLOCK // self.at.lanes  # vectors of a gate
        self.pairs_at_once = host.vector_bytes >= 32 and "avx2" in host.features

    def emit(self, name: str) -> str:
        b = self.b
        b.begin()
        self.bufs = [b.op(f"load ptr, ptr {b.element('ptr', '%bufs', str(k))}") for k in range(9 + self.kernel.fours)]
        self.p = {name: b.load_i64("%params", i) for i, name in enumerate(_PARAMS)}
        size = self.kernel.BLOCK
        hidden = self.p["hidden"]
        self.blocks = b.integer(f"udiv {b.integer(f'add {hidden}, {size - 1}')}, {size}")
        self.groups = b.integer(f"udiv {self.p['padded']}, {8 if self.kernel.fours else 2}")
        loop(b, "%begin", "%end", 1, [], self._direction)
        b.do("ret void")
        b.end(SIGNATURE.format(name=name))
        return b.text()

    def _times(self, *factors: str | int) -> str:
        result = str(factors[0])
        for factor in factors[1:]:
            result = self.b.integer(f"mul {result}, {factor}")
        return result

    def _direction(self, direction: str, _: list[V]) -> list[V]:
        b, p = self.b, self.p
        gates, weights, scales, first, cell0, y, last, cell, room, *sums = self.bufs
        self.direction = direction
        turned = b.integer(f"xor {direction}, {p['reversed']}")
        backwards = b.op(f"icmp ne i64 {turned}, 0")
        state = self._times(direction, p["batch"], p["hidden"])
        columns = self._times(self.blocks, self.kernel.BLOCK, _GATES)
        kind = "i16" if self.kernel.wide else "i8"
        self.weights = b.element(kind, weights, self._times(direction, columns, p["padded"]))
        self.scales = b.element("float", scales, self._times(direction, columns))
        self.cell = b.element("float", cell, state)
        self.room = b.element(self.state, room, self._times(direction, p["batch"], p["padded"]))
        self.column_sums = [b.element("i32", x, self._times(direction, columns)) for x in sums]
        self._copy(b.element("float", cell0, state), p["hidden"], self.cell)
        stride, one = self._times(p["directions"], p["hidden"]), Lanes(b, 1)

        final = b.integer(f"sub {p['steps']}, 1")

        def step(t: str, before: list[V]) -> list[V]:
            mirrored = b.integer(f"sub {final}, {t}")
            time = b.op(f"select i1 {backwards}, i64 {mirrored}, i64 {t}")
            given = b.integer(f"add {self._times(time, p['in_step'])}, {self._times(direction, p['hidden'], _GATES)}")
            place = b.integer(f"add {self._times(time, p['batch'], stride)}, {self._times(direction, p['hidden'])}")
            target = b.element("float", y, place)
            scale, zero = self._quantize(before[0].name, before[1].name)
            self._blocks(b.element("float", gates, given), scale, zero, target, stride)
            return [V(one, "ptr", target), V(one, "i64", stride)]

        start = [V(one, "ptr", b.element("float", first, state)), V(one, "i64", p["hidden"])]
        ended = loop(b, "0", p["steps"], 1, start, step)
        self._copy(ended[0].name, ended[1].name, b.element("float", last, state))
        return []

    def _copy(self, source: str, stride: str, target: str) -> None:
        """All sequences of a state, to one that is contiguous."""
        b = self.b

        def row(n: str, _: list[V]) -> list[V]:
            from_, to = (
                b.element("float", x, self._times(n, s)) for x, s in ((source, stride), (target, self.p["hidden"]))
            )

            def move(i: str, mask: V | None, _: list[V]) -> list[V]:
                value = load_vector(self.at, b.element("float", from_, i), mask)
                store_vector(value, b.element("float", to, i), mask)
                return []

            vectors(self.at, "0", self.p["hidden"], [], move)
            return []

        loop(b, "0", self.p["batch"], 1, [], row)

    # ------------------------------------------------------------------ states

    def _quantize(self, state: str, stride: str) -> tuple[V, V]:
        """States as bytes, or less their zero point as 16-bit numbers; gives their scale and zero point."""
        b, at, p = self.b, self.at, self.p
        one = Lanes(b, 1)

        def widen(n: str, ends: list[V]) -> list[V]:
            line = b.element("float", state, self._times(n, stride))

            def more(i: str, mask: V | None, ends: list[V]) -> list[V]:
                value = load_vector(at, b.element("float", line, i), mask)
                found = (-value, value)
                return [new.cmp("ogt", end).where(new, end) for new, end in zip(found, ends, strict=True)]

            return vectors(at, "0", p["hidden"], ends, more)

        zeros = [at.const("float", 0.0)] * 2
        low, high = (V(one, "float", total(end, "fmax")) for end in loop(b, "0", p["batch"], 1, zeros, widen))
        reach = low + high  # the lowest state is -low
        scale = reach.cmp("oeq", 0.0).where(1.0, reach / 255.0)
        zero = self._clipped((low / scale).intrinsic("nearbyint"))
        wide_scale, wide_zero = at.splat("float", scale.name), at.splat("float", zero.name)

        def convert(n: str, _: list[V]) -> list[V]:
            line, target = (
                b.element("float", state, self._times(n, stride)),
                b.element(self.state, self.room, self._times(n, p["padded"])),
            )

            def one_vector(i: str, mask: V | None, _: list[V]) -> list[V]:
                value = load_vector(at, b.element("float", line, i), mask)
                number = self._clipped((value / wide_scale).intrinsic("nearbyint") + wide_zero)
                whole = number if self.kernel.fours else number - wide_zero
                narrow = whole.to("fptosi", "i32").to("trunc", self.state)
                b.do(f"store {narrow.kind} {narrow.name}, ptr {b.element(self.state, target, i)}, align 1")
                return []

            vectors(at, "0", p["hidden"], [], one_vector)
            return []

        loop(b, "0", p["batch"], 1, [], convert)
        return scale, zero

    def _clipped(self, value: V) -> V:
        """Within 8 bits; NaN is nothing."""
        value = value.cmp("ogt", 0.0).where(value, 0.0)
        return value.below(255.0)

    # ------------------------------------------------------------------ one step

    def _blocks(self, given: str, scale: V, zero: V, target: str, stride: str) -> None:
        b, at, p, size = self.b, self.at, self.p, self.kernel.BLOCK
        width = size * _GATES
        kind = "i16" if self.kernel.wide else "i8"
        factor = at.splat("float", scale.name)
        less = at.splat("i32", zero.to("fptosi", "i32").name)

        def block(k: str, _: list[V]) -> list[V]:
            weights = b.element(kind, self.weights, self._times(k, width, p["padded"]))
            scales = b.element("float", self.scales, self._times(k, width))
            unit = self._times(k, size)
            starts = self._starts(self._times(k, width), less)

            def sequence(n: str, _: list[V]) -> list[V]:
                sums = self._product(weights, b.element(self.state, self.room, self._times(n, p["padded"])), starts)
                reals = [
                    s.to("sitofp", "float") * (load_vector(at, b.element("float", scales, str(v * at.lanes))) * factor)
                    for v, s in enumerate(sums)
                ]
                line = b.element("float", given, self._times(n, p["in_row"]))
                cell = b.element("float", self.cell, self._times(n, p["hidden"]))
                self._gates(reals, unit, line, cell, b.element("float", target, self._times(n, stride)))
                return []

            loop(b, "0", p["batch"], 1, [], sequence)
            return []

        loop(b, "0", self.blocks, 1, [], block)

    def _starts(self, column: str, zero: V) -> list[V]:
        """What sums of a block begin with."""
        at, count = self.at, self.each * _GATES
        if not self.kernel.fours:
            return [at.const("i32", 0)] * count
        base = self.b.element("i32", self.column_sums[0], column)
        places = [self.b.element("i32", base, str(v * at.lanes)) for v in range(count)]
        return [at.const("i32", 0) - load_vector(at, place, elem="i32") * zero for place in places]

    def _product(self, weights: str, states: str, starts: list[V]) -> list[V]:
        """Sums over the units before, for the gates of a block."""
        if self.kernel.fours:
            return self._by_fours(weights, states, starts)
        b, at = self.b, self.at
        double, kind = Lanes(b, 2 * at.lanes), "i16" if self.kernel.wide else "i8"
        line = 2 * self.kernel.BLOCK * _GATES

        def pair(k: str, sums: list[V]) -> list[V]:
            both = at.splat("i32", b.op(f"load i32, ptr {b.element('i32', states, k)}, align 2"))
            state = V(double, "i16", b.op(f"bitcast {both.kind} {both.name} to {double.type('i16')}"))
            start = b.element(kind, weights, self._times(k, line))
            news = []
            for v, so_far in enumerate(sums):
                place = b.element(kind, start, str(v * 2 * at.lanes))
                found = double.wrap(kind, f"load {double.type(kind)}, ptr {place}, align 1")
                numbers = found if self.kernel.wide else found.to("sext", "i16")
                news.append(so_far + self._dots(state, numbers))
            return news

        return loop(b, "0", self.groups, 1, starts, pair)

    def _by_fours(self, weights: str, states: str, starts: list[V]) -> list[V]:
        """Two fours a turn, each with sums of its own: an addition waits for the one before."""
        b, at, count = self.b, self.at, self.each * _GATES
        kind, line = at.type("i32"), self.kernel.BLOCK * _GATES

        def turn(k: str, sums: list[V]) -> list[V]:
            news = []
            for half in range(2):
                number = b.integer(f"add {self._times(k, 2)}, {half}")
                state = at.splat("i32", b.op(f"load i32, ptr {b.element('i32', states, number)}, align 1"))
                start = b.element("i32", weights, self._times(number, line))
                for v, so_far in enumerate(sums[half * count : (half + 1) * count]):
                    found = load_vector(at, b.element("i32", start, str(v * at.lanes)), elem="i32")
                    args = [(kind, x.name) for x in (so_far, state, found)]
                    news.append(V(at, "i32", b.call(kind, VNNI[4 * at.lanes], args)))
            return news

        ended = loop(b, "0", self.groups, 1, [*starts, *([at.const("i32", 0)] * count)], turn)
        return [x + y for x, y in zip(ended[:count], ended[count:], strict=True)]

    def _dots(self, a: V, c: V) -> V:
        """Sums of products of neighbours."""
        b, at = self.b, self.at
        if self.pairs_at_once and at.lanes == 8:
            args = [(v.kind, v.name) for v in (a, c)]
            return V(at, "i32", b.call(at.type("i32"), "llvm.x86.avx2.pmadd.wd", args))
        product = a.to("sext", "i32") * c.to("sext", "i32")
        parts = []
        for first in (0, 1):
            order = ", ".join(f"i32 {first + 2 * k}" for k in range(at.lanes))
            text = f"shufflevector {product.kind} {product.name}, {product.kind} poison, <{at.lanes} x i32> <{order}>"
            parts.append(at.wrap("i32", text))
        return parts[0] + parts[1]

    def _gates(self, sums: list[V], unit: str, line: str, cell: str, target: str) -> None:
        b, at, hidden = self.b, self.at, self.p["hidden"]
        for v in range(self.each):
            here = unit if v == 0 else b.integer(f"add {unit}, {v * at.lanes}")
            mask = tail_mask(at, here, hidden)
            parts = []
            for gate in range(_GATES):
                place = b.element("float", line, b.integer(f"add {self._times(hidden, gate)}, {here}"))
                parts.append(sums[gate * self.each + v] + load_vector(at, place, mask))
            enter, leave, keep = (FAST["sigmoid"](x) for x in parts[:3])
            place = b.element("float", cell, here)
            new = at.fma(keep, load_vector(at, place, mask), enter * FAST["tanh"](parts[3]))
            store_vector(new, place, mask)
            store_vector(leave * FAST["tanh"](new), b.element("float", target, here), mask)
