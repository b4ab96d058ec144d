"""LSTM and GRU over a whole sequence: the recurrent product and the gates of each step in one kernel.

What the inputs add to the gates is computed before, for all steps at once. Directions and sequences of a batch are rows
of the kernel, so threads take one each. Steps go through the blocks of weights to and fro: the second-level cache still
holds what the step before used last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pyflame_rt.backends.cpu.ir.builder import Builder, Lanes, V
from pyflame_rt.backends.cpu.ir.loops import load_vector, loop, splat_load, store_vector, tail_mask, vectors
from pyflame_rt.backends.cpu.ir.vector_math import FUNCTIONS
from pyflame_rt.backends.cpu.jit.target import host as this_host
from pyflame_rt.backends.cpu.kernels.row_loops import SIGNATURE
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from pyflame_rt.backends.cpu.jit.target import Host

__all__ = ["RecurrentKernel"]

_PARAMS = ("steps", "hidden", "batch", "reversed", "gate_step", "gate_row", "gate_direction", "out_step", "out_row",
           "out_direction")  # fmt: skip
_UNROLL = 4


@dataclass(frozen=True)
class RecurrentKernel:
    """A recurrent layer, given what its inputs add to the gates.

    bufs: gates, packed recurrent weights, addend of the recurrent part (GRU, else unused), first state, first cell
    (LSTM), result, last state, last cell (LSTM). params: steps, hidden size, batch, 1 when the first direction runs
    backwards, then strides of the gates and of the result by step, sequence and direction. rows: directions x batch.

    Gates, weights and addends come in blocks of BLOCK hidden units, the last one padded: of each block the gates one
    after the other (LSTM: input, output, forget, cell; GRU: update, reset, candidate), each of BLOCK numbers. Weights
    hold such a line for each hidden unit of the step before.
    """

    BLOCK: ClassVar[int] = 16

    kind: Literal["lstm", "gru"]

    @property
    def gates(self) -> int:
        """Gates of a hidden unit."""
        return 4 if self.kind == "lstm" else 3

    @property
    def key(self) -> str:
        """Equal for kernels of equal structure."""
        return f"recurrent {self.kind}"

    def emit(self, name: str, host: Host | None = None) -> str:
        """The module, as text."""
        return _RnnSequenceEmitter(self, host or this_host()).emit(name)


class _RnnSequenceEmitter:
    def __init__(self, kernel: RecurrentKernel, host: Host) -> None:
        self.kernel, self.b = kernel, Builder(host)
        self.at = Lanes(self.b, min(host.lanes(4), kernel.BLOCK))
        self.line = kernel.gates * kernel.BLOCK
        self.vectors = self.line // self.at.lanes

    def emit(self, name: str) -> str:
        b = self.b
        b.begin()
        self.bases = [b.op(f"load ptr, ptr {b.element('ptr', '%bufs', str(k))}") for k in range(8)]
        self.p = {name: b.load_i64("%params", i) for i, name in enumerate(_PARAMS)}
        size = self.kernel.BLOCK
        padded = b.integer(f"add {self.p['hidden']}, {size - 1}")
        self.blocks = b.integer(f"udiv {padded}, {size}")
        loop(b, "%begin", "%end", 1, [], self._sequence)
        b.do("ret void")
        b.end(SIGNATURE.format(name=name))
        return b.text()

    def _sequence(self, row: str, _: list[V]) -> list[V]:
        """One direction of one sequence."""
        b, p = self.b, self.p
        direction, number = (b.integer(f"{op} {row}, {p['batch']}") for op in ("udiv", "urem"))
        turned = b.integer(f"xor {direction}, {p['reversed']}")
        backwards = b.op(f"icmp ne i64 {turned}, 0")
        floats = b.integer(f"mul {self.blocks}, {self.line}")
        matrix = b.integer(f"mul {floats}, {p['hidden']}")
        weights = b.integer(f"mul {direction}, {matrix}")
        state = b.integer(f"mul {row}, {p['hidden']}")
        gates, packed, addend, first, cell0, out, last, cell = self.bases
        self.weights = b.element("float", packed, weights)
        self.addend = b.element("float", addend, b.integer(f"mul {direction}, {floats}"))
        self.cell = b.element("float", cell, state)
        gates = self._place(gates, "gate", direction, number)
        out = self._place(out, "out", direction, number)
        if self.kernel.kind == "lstm":
            self._copy(b.element("float", cell0, state), self.cell)
        one = Lanes(b, 1)

        def step(t: str, before: list[V]) -> list[V]:
            final = b.integer(f"sub {p['steps']}, 1")
            mirrored = b.integer(f"sub {final}, {t}")
            time = b.op(f"select i1 {backwards}, i64 {mirrored}, i64 {t}")
            line = b.element("float", gates, b.integer(f"mul {time}, {p['gate_step']}"))
            target = b.element("float", out, b.integer(f"mul {time}, {p['out_step']}"))
            self._step(t, line, before[0].name, target)
            return [V(one, "ptr", target)]

        (ended,) = loop(b, "0", p["steps"], 1, [V(one, "ptr", b.element("float", first, state))], step)
        self._copy(ended.name, b.element("float", last, state))
        return []

    def _place(self, base: str, kind: str, direction: str, number: str) -> str:
        b, p = self.b, self.p
        along = b.integer(f"mul {direction}, {p[f'{kind}_direction']}")
        across = b.integer(f"mul {number}, {p[f'{kind}_row']}")
        return b.element("float", base, b.integer(f"add {along}, {across}"))

    def _copy(self, source: str, target: str) -> None:
        b, at = self.b, self.at

        def move(i: str, mask: V | None, _: list[V]) -> list[V]:
            store_vector(load_vector(at, b.element("float", source, i), mask), b.element("float", target, i), mask)
            return []

        vectors(at, "0", self.p["hidden"], [], move)

    # ------------------------------------------------------------------ one step

    def _step(self, t: str, gates: str, before: str, target: str) -> None:
        b, size = self.b, self.kernel.BLOCK
        odd = b.op(f"trunc i64 {t} to i1")

        def block(j: str, _: list[V]) -> list[V]:
            mirrored = b.integer(f"sub {b.integer(f'sub {self.blocks}, 1')}, {j}")
            which = b.op(f"select i1 {odd}, i64 {mirrored}, i64 {j}")
            sums = self._product(which, before)
            unit = b.integer(f"mul {which}, {size}")
            line = b.element("float", gates, b.integer(f"mul {which}, {self.line}"))
            self._gates(unit, line, sums, before, target)
            return []

        loop(b, "0", self.blocks, 1, [], block)

    def _product(self, block: str, before: str) -> list[V]:
        """Sums over the hidden units of the step before, for the gates of one block."""
        b, at, hidden = self.b, self.at, self.p["hidden"]
        weights = b.element("float", self.weights, b.integer(f"mul {block}, {b.integer(f'mul {hidden}, {self.line}')}"))

        def row(k: str, ahead: int, sums: list[V]) -> list[V]:
            scale = splat_load(at, b.element("float", b.element("float", before, k), str(ahead)))
            line = b.element("float", weights, b.integer(f"mul {k}, {self.line}"))
            places = (b.element("float", line, str(ahead * self.line + v * at.lanes)) for v in range(self.vectors))
            return [at.fma(load_vector(at, place), scale, s) for place, s in zip(places, sums, strict=True)]

        def turn(k: str, sums: list[V]) -> list[V]:
            for ahead in range(_UNROLL):
                sums = row(k, ahead, sums)
            return sums

        whole = b.integer(f"and {hidden}, {-_UNROLL}")
        sums = loop(b, "0", whole, _UNROLL, [at.const("float", 0.0)] * self.vectors, turn)
        return loop(b, whole, hidden, 1, sums, lambda k, now: row(k, 0, now))

    def _gates(self, unit: str, line: str, sums: list[V], before: str, target: str) -> None:
        """The new state of the units of one block; those beyond the last are not stored."""
        b, at = self.b, self.at
        each = self.kernel.BLOCK // at.lanes
        for v in range(each):
            at_unit = unit if v == 0 else b.integer(f"add {unit}, {v * at.lanes}")
            mask = tail_mask(at, at_unit, self.p["hidden"])
            given, summed = [], []
            for gate in range(self.kernel.gates):
                position = str(gate * self.kernel.BLOCK + v * at.lanes)
                given.append(load_vector(at, b.element("float", line, position)))
                summed.append(sums[gate * each + v])
            place = b.element("float", target, at_unit)
            if self.kernel.kind == "lstm":
                store_vector(self._lstm(given, summed, b.element("float", self.cell, at_unit), mask), place, mask)
            else:
                old = load_vector(at, b.element("float", before, at_unit), mask)
                store_vector(self._gru(given, summed, old, unit, v), place, mask)

    def _lstm(self, given: list[V], summed: list[V], cell: str, mask: V) -> V:
        sigmoid, tanh = FUNCTIONS["sigmoid"], FUNCTIONS["tanh"]
        i, o, f, c = (g + s for g, s in zip(given, summed, strict=True))
        old = load_vector(self.at, cell, mask)
        new = sigmoid(f) * old + sigmoid(i) * tanh(c)
        store_vector(new, cell, mask)
        return sigmoid(o) * tanh(new)

    def _gru(self, given: list[V], summed: list[V], old: V, unit: str, part: int) -> V:
        b, at, size = self.b, self.at, self.kernel.BLOCK
        sigmoid, tanh = FUNCTIONS["sigmoid"], FUNCTIONS["tanh"]
        z, r = (sigmoid(g + s) for g, s in zip(given[:2], summed[:2], strict=True))
        position = b.integer(f"add {b.integer(f'mul {unit}, {self.kernel.gates}')}, {2 * size + part * at.lanes}")
        addend = load_vector(at, b.element("float", self.addend, position))
        n = tanh(given[2] + r * (summed[2] + addend))
        return n + z * (old - n)
