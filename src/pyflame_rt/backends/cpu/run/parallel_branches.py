"""Independent branches side by side: ``execution_mode="parallel"``.

A window is a run of consecutive steps that falls into groups which do not touch each other's values. Its groups are
dealt to a few lists, each done by one thread from begin to end. That pays where steps are too small for several threads
each, or cannot be divided; where it does not, by the estimate here, steps run one after the other with all threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyflame_rt.backends.cpu.graph.cost_model import views_of
from pyflame_rt.backends.cpu.ir.kernel_program import RowKernel
from pyflame_rt.backends.cpu.kernels.tiles.products import ProductKernel
from pyflame_rt.backends.cpu.lower.lowering import DnnStep, HostStep, KernelStep
from pyflame_rt.backends.cpu.memory.buffer_views import Buffer, Place
from pyflame_rt.backends.cpu.memory.offsets import assign_offsets
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame_rt.backends.cpu.graph.cost_model import StepFacts
    from pyflame_rt.backends.cpu.lower.lowering import Lowered
    from pyflame_rt.backends.cpu.run.plan import Plan

    AnyStep = KernelStep | DnnStep | HostStep

__all__ = ["Window", "branch_out", "find_windows"]

# What a step takes on one core, in seconds: rough, only differences of a multiple matter.
_PER_FLOP, _PER_BYTE, _PER_STEP = 1 / 30e9, 1 / 8e9, 0.4e-6
_REGION = 4e-6  # to begin and end a parallel region
_WORTH = 0.9  # a window must take at most this part of the time
_MAX_WINDOW = 512
_MAX_LOOKS = 400_000

# Kernels that write their last operand only (but for a flag); of others every operand counts as written.
_WRITES_LAST = frozenset(
    {"AttentionKernel", "BorderKernel", "DepthwiseKernel", "FillKernel", "GatherKernel", "GemvKernel", "KeyPackKernel",
     "ProductKernel", "TransposeKernel"}
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Window:
    """Steps ``begin`` to ``end``, dealt to lists that may run at the same time."""

    begin: int
    end: int
    lists: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class _Use:
    """What a step touches, and what it takes."""

    reads: frozenset[Buffer]
    writes: frozenset[Buffer]
    alone: float  # seconds on one thread
    shared: float  # seconds with all threads
    eligible: bool


def branch_out(plan: Plan, lists: int) -> None:
    """Find windows of a fresh plan, and give its arena a layout in which their lists do not share memory."""
    lowered = plan.lowered
    windows = find_windows(lowered, plan.facts(), lists)
    if not windows:
        return
    lowered.windows = windows
    for window in windows:
        for i in range(window.begin, window.end):
            for buffer in _touched(lowered.steps[i]):
                buffer.touch(window.begin)
                buffer.touch(window.end - 1)
    plan.arena_bytes = assign_offsets(lowered.buffers)
    plan.parallel = True


def find_windows(lowered: Lowered, facts: Sequence[StepFacts], lists: int) -> list[Window]:
    """Windows that pay, in order."""
    uses = [_use(step, fact, lists) for step, fact in zip(lowered.steps, facts, strict=True)]
    windows: list[Window] = []
    at, looks = 0, 0
    while at < len(uses) and looks < _MAX_LOOKS:
        found, looked = _best_from(uses, at, lists)
        looks += looked
        if found is not None:
            windows.append(found)
        at = at + 1 if found is None else found.end
    return windows


def _use(step: AnyStep, fact: StepFacts, threads: int) -> _Use:
    touched = frozenset(b for b in _touched(step) if b.place in (Place.ARENA, Place.OUTPUT))
    writes = frozenset(b for b in _written(step) if b in touched)
    alone = max(fact.flops * _PER_FLOP, fact.nbytes * _PER_BYTE) + _PER_STEP
    shared, eligible = alone, not isinstance(step, HostStep)
    match step:
        case KernelStep(rows=rows, grain=grain) if rows > grain:
            shared = alone / min(threads, -(-rows // grain)) + _REGION
        case DnnStep(primitive=primitive) if primitive.threads > 1:
            eligible = False  # it was made for several threads, and must get them
    return _Use(touched - writes, writes, alone, shared, eligible)


def _touched(step: AnyStep) -> list[Buffer]:
    scratch = [step.scratch] if isinstance(step, DnnStep) and step.scratch is not None else []
    return [view.buffer for view in views_of(step)] + scratch


def _written(step: AnyStep) -> list[Buffer]:
    """Buffers a step may change."""
    if not isinstance(step, KernelStep):
        return _touched(step) if isinstance(step, HostStep) else _changed(step)
    if isinstance(step.kernel, RowKernel):
        return [view.buffer for view in step.views[len(step.kernel.inputs) :]]
    if type(step.kernel).__name__ in _WRITES_LAST:
        results = 1 + (len(step.kernel.finish.more) if isinstance(step.kernel, ProductKernel) else 0)
        return [v.buffer for v in step.views if v.buffer.place is not Place.FLAG][-results:]
    return _touched(step)


def _changed(step: DnnStep) -> list[Buffer]:
    read = {view.buffer for name, view in step.args.items() if name.startswith(("src", "weights", "bias", "binary"))}
    return [buffer for buffer in _touched(step) if buffer not in read]


class _Groups:
    """Steps joined by what they touch, as they are added."""

    def __init__(self) -> None:
        self.parent: dict[int, int] = {}
        self.seconds: dict[int, float] = {}
        self._writer: dict[Buffer, int] = {}
        self._readers: dict[Buffer, list[int]] = {}

    def add(self, i: int, use: _Use) -> None:
        self.parent[i], self.seconds[i] = i, use.alone
        for buffer in use.reads:
            if buffer in self._writer:
                self._join(i, self._writer[buffer])
            self._readers.setdefault(buffer, []).append(i)
        for buffer in use.writes:
            for other in (*self._readers.get(buffer, ()), *([self._writer[buffer]] if buffer in self._writer else [])):
                self._join(i, other)
            self._writer[buffer] = i

    def root(self, i: int) -> int:
        while self.parent[i] != i:
            self.parent[i] = self.parent[self.parent[i]]
            i = self.parent[i]
        return i

    def _join(self, a: int, b: int) -> None:
        a, b = self.root(a), self.root(b)
        if a != b:
            self.parent[a] = b
            self.seconds[b] += self.seconds.pop(a)


def _best_from(uses: Sequence[_Use], begin: int, lists: int) -> tuple[Window | None, int]:
    """The window from a step on that saves most; and how many steps were looked at."""
    groups, sequential, best = _Groups(), 0.0, (0.0, begin)
    end = begin
    while end < min(len(uses), begin + _MAX_WINDOW) and uses[end].eligible:
        groups.add(end, uses[end])
        sequential += uses[end].shared
        end += 1
        if len(groups.seconds) < 2:
            continue
        parallel = max(_dealt(groups.seconds, lists)[1]) + _REGION
        if parallel <= _WORTH * sequential and sequential - parallel > best[0]:
            best = (sequential - parallel, end)
    looked = max(end - begin, 1)
    if best[1] == begin:
        return None, looked
    return _window(uses, begin, best[1], lists), looked


def _dealt(seconds: dict[int, float], lists: int) -> tuple[dict[int, int], list[float]]:
    """Each group to the list with least to do, the longest first."""
    home, load = {}, [0.0] * lists
    for group in sorted(seconds, key=lambda g: (-seconds[g], g)):
        k = load.index(min(load))
        home[group], load[k] = k, load[k] + seconds[group]
    return home, load


def _window(uses: Sequence[_Use], begin: int, end: int, lists: int) -> Window:
    groups = _Groups()
    for i in range(begin, end):
        groups.add(i, uses[i])
    home, _ = _dealt(groups.seconds, lists)
    dealt = [tuple(i for i in range(begin, end) if home[groups.root(i)] == k) for k in range(lists)]
    return Window(begin, end, tuple(part for part in dealt if part))
