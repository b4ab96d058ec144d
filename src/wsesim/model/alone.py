"""One PE without its neighbours: an estimate of what a whole grid does.

Programs in which every PE runs the same code and talks to others through the library of collectives only are a row of
local work and collectives. The first PE runs the program itself, so its local work costs what the table of constants
says; where it calls a collective, a formula says when it would end. Other PEs differ in ways that matter: the sender
of a burst prepares it while the others wait, distant PEs are later than near ones, and where blocks go round rings
some PEs turn them more often than others before they start.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from wsesim.csl.program import typed_tree as tree
from wsesim.fabric.errors import FabricError, RunError
from wsesim.fabric.load import load
from wsesim.fabric.timing import TIMING, Timing
from wsesim.host.session import HostSession
from wsesim.model.lines import Kind, LineCosts, measure_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wsesim.csl.program.elaborated import PeProgram, Program
    from wsesim.fabric.machine import Machine
    from wsesim.fabric.pe import PE

__all__ = ["Estimate", "PredictionError", "estimate"]

TRUSTED = 0.1  # largest relative error of a formula that is used
_KINDS: tuple[Kind, ...] = ("broadcast", "scatter", "gather", "reduce")


class PredictionError(FabricError):
    """The model does not cover a program."""

    name = "prediction"


@dataclass
class Estimate:
    """What a grid is expected to need.

    Attributes:
        width: columns of PEs.
        height: rows of PEs.
        cycles: of each call of the host, until the last PE is done.
        wavelets: that processors send, all PEs together.
        hops: that these make.
        memory: bytes of the busiest PE: data, code, stack and reserve.
        collectives: how often each kind is called on a PE.
        turns: words that a PE passes on round the ring of each axis.
        operations: vector operations of a PE.
    """

    width: int
    height: int
    cycles: list[float] = field(default_factory=list)
    wavelets: int = 0
    hops: int = 0
    memory: int = 0
    collectives: dict[str, int] = field(default_factory=dict)
    turns: dict[str, int] = field(default_factory=dict)
    operations: int = 0

    @property
    def total_cycles(self) -> float:
        """Cycles of all calls together, without the host's pauses between them."""
        return sum(self.cycles)


def estimate(
    program: Program, calls: Sequence[str], *, timing: Timing = TIMING, costs: LineCosts | None = None
) -> Estimate:
    """Estimates a program of which one tile, (0, 0), has code.

    Args:
        program: compiled for the whole rectangle, with code for the first PE at least.
        calls: exported functions without arguments, in the order in which the host calls them.
        timing: constants of the cycle model.
        costs: of collectives; measured under the same constants when None.

    Raises:
        PredictionError: the program communicates outside the library of collectives, or stands still alone.
    """
    first = _only_first(program)
    costs = costs or measure_lines(first.arch, timing)
    found, own = _run(first, (0, 0), calls, timing, costs)
    if found.collectives.get("edge"):
        # The first PE has neighbours on one side only.
        inner = _place(first, 1)
        other = _run(first, inner, calls, timing, costs)[0]
        found.cycles = [max(pair) for pair in zip(found.cycles, other.cycles, strict=True)]
    if found.turns:
        _slowest(found, first, calls, timing, costs)
    # Neighbours of the first PE: each sends a block of one operand in the second step of a product.
    places = [at for at in ((1, 0), (0, 1)) if at[0] < program.width and at[1] < program.height]
    others = [_run(first, at, calls, timing, costs)[1] for at in places]
    for number, more in _waits(own, others):
        found.cycles[number] += more
    return found


def _slowest(found: Estimate, first: Program, calls: Sequence[str], timing: Timing, costs: LineCosts) -> None:
    """Takes over the cycles of a PE whose blocks go round most often, and counts what all of them send.

    The first PE of a ring turns its blocks least often before it starts, its neighbour in the ring most often, and the
    others lie evenly between them.
    """
    other, _ = _run(first, _place(first, 2), calls, timing, costs)
    found.cycles = [max(pair) for pair in zip(found.cycles, other.cycles, strict=True)]
    for axis, pes, lines in (("x", first.width, first.height), ("y", first.height, first.width)):
        words = [e.turns.get(axis, 0) for e in (found, other)]
        if (sum(words) * lines) % 2:
            raise PredictionError(f"blocks along {axis} go round unevenly, which the model does not cover")
        sent, hops = costs.ring_wavelets(sum(words) * lines // 2, pes)
        found.wavelets += sent
        found.hops += hops


def _place(program: Program, far: int) -> tuple[int, int]:
    """A PE so far from the first one in both directions, as the rectangle goes."""
    return min(far, program.width - 1), min(far, program.height - 1)


@dataclass(frozen=True)
class _Sent:
    """A broadcast: in which call of the host, on which axis, its words, and the local work before it."""

    call: int
    axis: str
    words: int
    local: float


def _waits(own: list[_Sent], others: list[list[_Sent]]) -> list[tuple[int, float]]:
    """What all PEs wait while the sender of a burst prepares it: for each one the host's call and cycles.

    A PE that sends does more before the burst than one that does not; how much more a word, the neighbours show.
    """
    least = [min(rows, key=lambda r: r.local).local for rows in zip(own, *others, strict=True)]
    later = [i for i in range(1, len(own)) if own[i].call == own[i - 1].call]  # the first one waits for nobody
    rates: dict[str, float] = {}
    for rows in others:
        for i in later:
            rate = (rows[i].local - least[i]) / rows[i].words
            rates[rows[i].axis] = max(rate, rates.get(rows[i].axis, 0.0))
    found = []
    for i in later:
        needed = least[i] + rates.get(own[i].axis, 0.0) * own[i].words
        found.append((own[i].call, max(0.0, needed - own[i].local)))
    return found


def _run(
    program: Program, place: tuple[int, int], calls: Sequence[str], timing: Timing, costs: LineCosts
) -> tuple[Estimate, list[_Sent]]:
    """One PE alone, at a place of the rectangle."""
    unit = program.programs[0]
    machine = load(program, timing=timing)
    pe = machine.pes.pop((0, 0))
    machine.pes[place] = pe
    pe.x, pe.y = place
    for x, y, color in [at for at in machine.routers if at[:2] == (0, 0)]:
        machine.routers[*place, color] = machine.routers.pop((x, y, color))
    found = Estimate(program.width, program.height, memory=unit.memory.total)
    lines = _Lines(machine, unit, found, costs)
    _Rings(machine, unit, found, costs)
    host = HostSession(machine)
    host.start()
    try:
        for name in calls:
            lines.begin()
            host.call(name)
            host.ready()
            _, begin, end = host.spans[-1]
            found.cycles.append(end - begin + lines.settle())
    except RunError as problem:
        raise PredictionError(
            "the model covers programs whose PEs talk through the library of collectives only; "
            f"alone, PE {place} stops: {problem}"
        ) from problem
    found.operations = pe.ops_run
    return found, lines.sent


def _only_first(program: Program) -> Program:
    from dataclasses import replace

    number = program.tiles[(0, 0)]
    return replace(
        program,
        programs=(program.programs[number],),
        tiles={(0, 0): 0},
        colors={(0, 0): program.colors.get((0, 0), {})},
    )


class _Lines:
    """Answers the collectives of the PE that runs alone."""

    def __init__(self, machine: Machine, unit: PeProgram, found: Estimate, costs: LineCosts) -> None:
        self.machine = machine
        self.found = found
        self.costs = costs
        self.sent: list[_Sent] = []
        self.last = 0.0
        self.root: dict[str, int | None] = {"x": None, "y": None}
        self.late = {"x": 0.0, "y": 0.0}
        code = machine.codes[0]
        for symbol in unit.functions:
            prefix, _, name = symbol.rpartition(".")
            if name == "start" and f"{prefix}.next_burst" in unit.functions:
                self._replace(code.functions[symbol].call, unit, prefix)

    def _replace(self, start: Any, unit: PeProgram, prefix: str) -> None:
        axis = "y" if _calls(unit, f"{prefix}.init", "get_y_coord") else "x"
        both = unit.globals[f"{prefix}.all"].address if f"{prefix}.all" in unit.globals else None
        pes = self.found.height if axis == "y" else self.found.width
        if pes == 1:
            return  # the library's own short cut

        def answered(pe: PE, op: int, root: int, _source: int, _target: int, words: int, done: int) -> None:
            kind = _KINDS[op]
            if both is not None and pe.m8[both]:
                pe.m8[both] = 0
                kind = "allreduce"
            if not words:
                pe.activate(done)
                return
            begun = pe.t
            took = self.took(pe, axis, kind, root, words, pes)
            pe.t += min(took, self.costs.setup[kind])
            pe.activate(done, begun + took)

        start.__globals__[start.__name__] = answered

    def took(self, pe: PE, axis: str, kind: Kind, root: int, words: int, pes: int) -> float:
        """Cycles until this PE goes on; counts what is sent."""
        lines = self.found.height if axis == "x" else self.found.width
        sent, hops = self.costs.wavelets(kind, words, pes, root)
        self.found.wavelets += sent * lines
        self.found.hops += hops * lines
        if self.costs.worst[kind] > TRUSTED:
            raise PredictionError(
                f"the program uses {kind}, whose cycles the model does not know well enough "
                f"(error {100 * self.costs.worst[kind]:.0f} % on the lines it was made from)"
            )
        self.found.collectives[kind] = self.found.collectives.get(kind, 0) + 1
        local = max(0.0, pe.t - self.last)
        if kind == "broadcast":
            self.sent.append(_Sent(len(self.found.cycles), axis, words, local))
            took = self._broadcast(axis, root, words, pes)
        else:
            took = self._other(axis, kind, words, pes)
        self.last = max(self.last, pe.t + took)
        return took

    def _broadcast(self, axis: str, root: int, words: int, pes: int) -> float:
        """What the next sender needs is the burst at its own place, not at the PE that is farthest away."""
        before = self.root[axis]
        self.root[axis] = root
        self.late[axis] = self.costs.hop("broadcast") * max(root, pes - 1 - root)
        return self.costs.cycles("broadcast", words, 0 if before is None else abs(root - before))

    def _other(self, axis: str, kind: Kind, words: int, pes: int) -> float:
        """Everybody takes part, so the PE that comes last counts."""
        cycles = self.costs.cycles(kind, words, pes - 1) + self.late[axis]
        self.root[axis], self.late[axis] = None, 0.0
        return cycles

    def begin(self) -> None:
        """A call of the host begins."""
        self.last = self.machine.now

    def settle(self) -> float:
        """Cycles until the last PE is where this one is."""
        rest = self.late["x"] + self.late["y"]
        for axis in "xy":
            self.root[axis], self.late[axis] = None, 0.0
        return rest


class _Rings:
    """Stands for the neighbours when blocks go round: says when a block has left and when one has come."""

    def __init__(self, machine: Machine, unit: PeProgram, found: Estimate, costs: LineCosts) -> None:
        self.found = found
        self.costs = costs
        code = machine.codes[0]
        for symbol in unit.functions:
            prefix, _, name = symbol.rpartition(".")
            if name in ("ring_send", "ring_receive") and prefix:
                self._replace(code.functions[symbol].call, self._moving(unit, prefix, name))
            elif name == "edge" and prefix:
                self._replace(code.functions[symbol].call, self._exchanging(unit, prefix))
            elif name == "ring_close" and prefix:
                self._replace(code.functions[symbol].call, self._closing(unit, prefix))

    def _replace(self, call: Any, other: Any) -> None:
        call.__globals__[call.__name__] = other

    def _axis(self, unit: PeProgram, prefix: str) -> str:
        return "y" if _calls(unit, f"{prefix}.init", "get_y_coord") else "x"

    def _moving(self, unit: PeProgram, prefix: str, part: str) -> Any:
        axis = self._axis(unit, prefix)
        task = "moved" if part == "ring_send" else "closed"
        number = next(t.id for t in unit.tasks if t.function == f"{prefix}.{task}")

        def moved(pe: PE, _dsd: Any, words: int) -> None:
            if part == "ring_send":
                self.found.turns[axis] = self.found.turns.get(axis, 0) + words
                self.found.collectives["shift"] = self.found.collectives.get("shift", 0) + 1
            pe.activate(number, pe.t + self.costs.ring_cycles(part, words))
            pe.t += self.costs.setup[part]

        return moved

    def _exchanging(self, unit: PeProgram, prefix: str) -> Any:
        axis = self._axis(unit, prefix)
        pes, lines = (self.found.width, self.found.height) if axis == "x" else (self.found.height, self.found.width)

        def exchanged(pe: PE, _up: int, _source: int, _target: int, words: int, done: int) -> None:
            sent = (words + 1) * (pes - 1) * lines if words else 0
            self.found.wavelets += sent
            self.found.hops += sent
            self.found.collectives["edge"] = self.found.collectives.get("edge", 0) + 1
            pe.activate(done, pe.t + self.costs.ring_cycles("edge" if pes > 2 else "edge_pair", words))

        return exchanged

    def _closing(self, unit: PeProgram, prefix: str) -> Any:
        axis = self._axis(unit, prefix)

        def closed(pe: PE, done: int) -> None:
            self.found.turns[axis] = self.found.turns.get(axis, 0) + 1
            pe.activate(done, pe.t + self.costs.ring_cycles("ring_close", 0))
            pe.t += self.costs.setup["ring_close"]

        return closed


def _calls(unit: PeProgram, symbol: str, wanted: str) -> bool:
    fn = unit.functions.get(symbol)
    work: list[Any] = [fn.body] if fn is not None else []
    while work:
        item = work.pop()
        if isinstance(item, tuple):
            work.extend(item)
        elif isinstance(item, tree.Call) and item.symbol.rpartition(".")[2].startswith(wanted):
            return True
        elif type(item).__module__ == tree.__name__:
            work.extend(getattr(item, name) for name in item.__dataclass_fields__)
    return False
