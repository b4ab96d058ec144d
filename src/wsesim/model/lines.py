"""What a collective costs along a line of PEs.

The library of collectives runs on short lines of PEs in the simulator. On very short ones the PEs' own work decides, on
longer ones the way from PE to PE; in both the cycles are linear in the number of words, in the distance and in their
product, and the coefficients come out of a least squares fit. The slower one of the two counts. Words and hops follow
from how the operation works, exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from wsesim.csl.program.driver import compile_texts
from wsesim.fabric.load import load
from wsesim.fabric.timing import TIMING, Timing
from wsesim.host.session import HostSession

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wsesim.csl.program.driver import Arch
    from wsesim.csl.program.elaborated import Program
    from wsesim.fabric.pe import PE

__all__ = ["Kind", "LineCosts", "measure_lines"]

Kind = Literal["broadcast", "scatter", "gather", "reduce", "allreduce"]
_KINDS: tuple[Kind, ...] = ("broadcast", "scatter", "gather", "reduce", "allreduce")
_LENGTHS = (4, 24, 96)
_SHORT, _LONG = (2, 3, 5), (16, 20, 24)  # PEs
Fit = tuple[float, float, float, float]

_LAYOUT = """
param size: i16;
const memcpy = @import_module("<memcpy/get_params>", .{ .width = size, .height = 1 });
const line = .{ .vertical = false, .colors = .{ @get_color(0), @get_color(1) }, .ring_color = @get_color(2),
  .entrypoints = .{ @get_local_task_id(8), @get_local_task_id(9) } };
layout {
  @set_rectangle(size, 1);
  for (@range(i16, size)) |x| {
    @set_tile_code(x, 0, "pe.csl", .{ .memcpy_params = memcpy.get_params(x), .line = line });
  }
  @export_name("broadcast", fn(u16)void);
  @export_name("scatter", fn(u16)void);
  @export_name("gather", fn(u16)void);
  @export_name("reduce", fn(u16)void);
  @export_name("allreduce", fn(u16)void);
  @export_name("edge", fn(u16)void);
  @export_name("ring_open", fn()void);
  @export_name("ring_shift", fn(u16)void);
  @export_name("ring_close", fn()void);
}
"""
_PE = """
param memcpy_params;
param line;
const sys_mod = @import_module("<memcpy/memcpy>", memcpy_params);
const mpi = @import_module("<collectives_2d/pe>", .{ .dim_params = line, .queues = [2]u16{ 2, 4 },
  .dest_dsr_ids = [1]u16{ 1 }, .src0_dsr_ids = [1]u16{ 1 }, .src1_dsr_ids = [1]u16{ 1 } });
const done_id = @get_local_task_id(12);
var from = @zeros([2400]u32);
var into = @zeros([2400]u32);
var numbers = @zeros([128]f32);
var sums = @zeros([128]f32);
fn broadcast(n: u16) void { mpi.init(); mpi.broadcast(0, @ptrcast([*]u32, &from), n, done_id); }
fn scatter(n: u16) void {
  mpi.init();
  mpi.scatter(0, @ptrcast([*]u32, &from), @ptrcast([*]u32, &into), n, done_id);
}
fn gather(n: u16) void {
  mpi.init();
  mpi.gather(0, @ptrcast([*]u32, &from), @ptrcast([*]u32, &into), n, done_id);
}
fn reduce(n: u16) void {
  mpi.init();
  mpi.reduce_fadds(0, @ptrcast([*]f32, &numbers), @ptrcast([*]f32, &sums), n, done_id);
}
fn allreduce(n: u16) void {
  mpi.init();
  mpi.allreduce_fadds(@ptrcast([*]f32, &numbers), @ptrcast([*]f32, &sums), n, done_id);
}
fn edge(n: u16) void {
  mpi.init();
  mpi.edge(true, @ptrcast([*]u32, &from), @ptrcast([*]u32, &into), n, done_id);
}
fn ring_open() void {
  mpi.init();
  mpi.ring_open();
  sys_mod.unblock_cmd_stream();
}
fn ring_shift(n: u16) void { mpi.ring_shift(@ptrcast([*]u32, &from), @ptrcast([*]u32, &into), n, done_id); }
fn ring_close() void { mpi.ring_close(done_id); }
task done() void { sys_mod.unblock_cmd_stream(); }
comptime {
  @bind_local_task(done, done_id);
  @export_symbol(broadcast);
  @export_symbol(scatter);
  @export_symbol(gather);
  @export_symbol(reduce);
  @export_symbol(allreduce);
  @export_symbol(edge);
  @export_symbol(ring_open);
  @export_symbol(ring_shift);
  @export_symbol(ring_close);
}
"""
_MOVED, _CLOSED, _DONE = 8, 9, 12
# What a PE starts when neighbours exchange edges or blocks go round, and the task that says that it is done.
_RING = {"edge": _DONE, "ring_send": _MOVED, "ring_receive": _CLOSED, "ring_close": _DONE}


@dataclass(frozen=True)
class LineCosts:
    """Costs of collectives along a line.

    Attributes:
        short: for each operation the cycles of a start, of a word, of a PE further away, and of a word a PE further
            away, on short lines.
        long: the same on long ones.
        setup: for each operation, and for each part of a shift, the cycles that the call itself takes on a PE; a second
            operation starts after them.
        worst: for each operation the largest relative error of the fit on the lines it was made from.
        ring: cycles of a start and of a word between neighbours: to exchange edges, also with one neighbour only, and
            when blocks go round to send one, to receive one and to leave the ring.
    """

    short: Mapping[str, Fit]
    long: Mapping[str, Fit]
    setup: Mapping[str, float]
    worst: Mapping[str, float]
    ring: Mapping[str, tuple[float, float]]

    def cycles(self, kind: Kind, words: int, distance: int) -> float:
        """Cycles from the call on every PE to the end of the operation ``distance`` PEs away."""
        return max(_value(self.short[kind], words, distance), _value(self.long[kind], words, distance))

    def hop(self, kind: Kind) -> float:
        """Cycles for one PE more on a long line."""
        return self.long[kind][2]

    def ring_cycles(self, part: str, words: int) -> float:
        """Cycles from the start of an exchange, or of a part of a shift, to its end."""
        start, word = self.ring[part]
        return start + word * words

    @staticmethod
    def ring_wavelets(words: int, pes: int) -> tuple[int, int]:
        """Wavelets and hops of a line of PEs when everyone passes a block on.

        >>> LineCosts.ring_wavelets(10, 4)
        (40, 60)
        """
        return words * pes, words * (2 * pes - 2)

    @staticmethod
    def wavelets(kind: Kind, words: int, pes: int, root: int = 0) -> tuple[int, int]:
        """Wavelets that the PEs of a line send, and hops that these make. Every burst ends with one control wavelet.

        >>> LineCosts.wavelets("broadcast", 10, 4), LineCosts.wavelets("reduce", 10, 4)
        ((11, 33), (33, 33))
        """
        if pes == 1 or not words:
            return 0, 0
        if kind == "broadcast":
            return words + 1, (words + 1) * (pes - 1)
        if kind == "reduce":
            return (words + 1) * (pes - 1), (words + 1) * (pes - 1)
        if kind == "allreduce":
            up, up_hops = LineCosts.wavelets("reduce", words, pes)
            down, down_hops = LineCosts.wavelets("broadcast", words, pes)
            return up + down, up_hops + down_hops
        sent = 0
        for side in (root, pes - 1 - root):  # each link carries what all the PEs behind it send or get
            sent += sum(behind * words + 1 for behind in range(1, side + 1))
        return sent, sent


@lru_cache(maxsize=16)
def measure_lines(arch: Arch = "wse3", timing: Timing = TIMING) -> LineCosts:
    """Costs under these constants, from runs of the library on short lines."""
    setup: dict[str, float] = {}
    found = [_measured(arch, timing, sizes, setup) for sizes in (_SHORT, _LONG)]
    fits = [{kind: _fit(rows) for kind, rows in part.items()} for part in found]
    ring = _ring(arch, timing, setup)
    costs = LineCosts(fits[0], fits[1], setup, {}, ring)
    worst = {
        kind: max(abs(costs.cycles(kind, n, d) / t - 1) for part in found for n, d, t in part[kind]) for kind in _KINDS
    }
    return LineCosts(fits[0], fits[1], setup, worst, ring)


def _ring(arch: Arch, timing: Timing, setup: dict[str, float]) -> dict[str, tuple[float, float]]:
    """Start and cycles a word of every part of a shift, on a line long enough to have PEs away from its ends."""
    line = _Line(_program(arch, _LONG[0]), timing)
    rows: dict[str, list[tuple[int, float]]] = {part: [] for part in _RING}
    for call, parts in (("edge", ("edge",)), ("ring_shift", ("ring_send", "ring_receive"))):
        if call == "ring_shift":
            line.host.call("ring_open", [])
        for words in _LENGTHS:
            line.parts.clear()
            line.host.call(call, [words])
            line.host.ready()
            for part in parts:
                rows[part].append((words, max(line.parts[part])))
    line.parts.clear()
    line.host.call("ring_close", [])
    line.host.ready()
    setup.update(line.busy)
    pair = _Line(_program(arch, 2), timing)
    rows["edge_pair"] = []
    for words in _LENGTHS:
        pair.parts.clear()
        pair.host.call("edge", [words])
        pair.host.ready()
        rows["edge_pair"].append((words, max(pair.parts["edge"])))
    costs: dict[str, tuple[float, float]] = {}
    for part, points in rows.items():
        if points:
            word, start = np.polyfit([n for n, _ in points], [t for _, t in points], 1)
            costs[part] = (float(start), float(word))
    return {**costs, "ring_close": (max(line.parts["ring_close"]), 0.0)}


def _program(arch: Arch, size: int) -> Program:
    return compile_texts({"layout.csl": _LAYOUT, "pe.csl": _PE}, arch=arch, params={"size": size}, memcpy=True)


def _measured(
    arch: Arch, timing: Timing, sizes: tuple[int, ...], setup: dict[str, float]
) -> dict[Kind, list[tuple[int, int, float]]]:
    """Words, distance and cycles of every operation on lines of these sizes; also how long the call itself takes."""
    rows: dict[Kind, list[tuple[int, int, float]]] = {kind: [] for kind in _KINDS}
    for size in sizes:
        line = _Line(_program(arch, size), timing)
        for kind in _KINDS:
            for words in _LENGTHS:
                took = line.times(kind, words)
                setup[kind] = max(line.setup.values())
                if kind == "broadcast":
                    rows[kind] += [(words, x, t) for x, t in enumerate(took) if x]
                else:
                    rows[kind].append((words, size - 1, max(took)))
    return rows


def _value(fit: Fit, words: int, distance: int) -> float:
    return fit[0] + fit[1] * words + fit[2] * distance + fit[3] * words * distance


class _Line:
    """A line of PEs that notes when each of them enters the library and when its callback comes."""

    def __init__(self, program: Program, timing: Timing) -> None:
        self.machine = load(program, timing=timing)
        self.begun: dict[Any, float] = {}
        self.ended: dict[Any, float] = {}
        self.setup: dict[Any, float] = {}
        self.parts: dict[str, list[float]] = {}
        self.busy: dict[str, float] = {}
        self.under_way: dict[tuple[Any, int], tuple[str, float]] = {}
        for pe in self.machine.pes.values():
            pe.activate = self._noting(pe, pe.activate)
        for code in self.machine.codes:
            start = next(fn.call for fn in code.functions.values() if fn.name == "start")
            start.__globals__[start.__name__] = self._entering(start)
            for symbol, fn in code.functions.items():
                if fn.name in _RING and symbol.rpartition(".")[0]:
                    fn.call.__globals__[fn.call.__name__] = self._beginning(fn.name, fn.call)
        self.host = HostSession(self.machine)
        self.host.start()

    def _noting(self, pe: PE, activate: Any) -> Any:
        def noted(number: int, now: float | None = None) -> None:
            when = pe.t if now is None else now
            if number == _DONE:
                self.ended[pe] = when
            if (begun := self.under_way.pop((pe, number), None)) is not None:
                self.parts.setdefault(begun[0], []).append(when - begun[1])
            activate(number, now)

        return noted

    def _entering(self, start: Any) -> Any:
        def entered(pe: PE, *args: Any) -> None:
            self.begun.setdefault(pe, pe.t)
            start(pe, *args)
            self.setup.setdefault(pe, pe.t - self.begun[pe])

        return entered

    def _beginning(self, part: str, call: Any) -> Any:
        def begun(pe: PE, *args: Any) -> None:
            self.under_way[pe, _RING[part]] = (part, pe.t)
            before = pe.t
            call(pe, *args)
            self.busy[part] = max(self.busy.get(part, 0.0), pe.t - before)

        return begun

    def times(self, kind: str, words: int) -> list[float]:
        """Cycles of one operation on each PE, from the call in the library to the callback."""
        self.begun.clear()
        self.setup.clear()
        self.ended.clear()
        self.host.call(kind, [words])
        self.host.ready()
        return [self.ended[pe] - self.begun[pe] for pe in self.machine.pes.values()]


def _fit(rows: list[tuple[int, int, float]]) -> Fit:
    n, d, t = (np.array(column, float) for column in zip(*rows, strict=True))
    basis = np.stack([np.ones_like(n), n, d, n * d], axis=1)
    found = np.linalg.lstsq(basis / t[:, None], np.ones_like(t), rcond=None)[0]
    return (float(found[0]), float(found[1]), float(found[2]), float(found[3]))
