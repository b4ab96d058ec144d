"""The rectangle of PEs, its routers and the clock."""

from __future__ import annotations

import heapq
import os
from collections import Counter, defaultdict, deque
from typing import TYPE_CHECKING, Any

import numpy as np

from wsesim import watch
from wsesim.fabric.errors import Deadlock, Endless, HostError, NoRoute
from wsesim.fabric.routing import (
    COMMAND_BITS,
    HOST,
    IGNORE_BITS,
    OPPOSITE,
    RAMP,
    STEP,
    TEARDOWN,
    FilterState,
    RouterColor,
    swapped,
    trace,
)
from wsesim.fabric.stream import Segment
from wsesim.fabric.timing import TIMING, Timing

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from wsesim.csl.program.elaborated import Program
    from wsesim.fabric.pe import PE
    from wsesim.fabric.stream import Inbox, Outlet

__all__ = ["MAX_CYCLES", "Machine", "max_cycles"]

SIDES = ("WEST", "EAST", "SOUTH", "NORTH")
_COLORS = 32
_HORIZONTAL = frozenset(("WEST", "EAST"))
_VERTICAL = frozenset(("NORTH", "SOUTH"))
TIMELINE_LIMIT = 20_000
DRAWN_PES = 4096  # a wait-for picture of more of them shows nothing
MAX_CYCLES = 1 << 28  # a third of a second of the wafer, without a word to or from the host
_LOOK_EVERY = 64  # events


def max_cycles() -> int:
    """The watchdog's limit: ``WSESIM_MAX_CYCLES``, else :data:`MAX_CYCLES`; 0 is none."""
    text = os.environ.get("WSESIM_MAX_CYCLES", "")
    if not text:
        return MAX_CYCLES
    if not text.isdecimal():
        raise HostError(f"WSESIM_MAX_CYCLES must be a number of cycles, 0 for no limit, not {text!r}")
    return int(text)


class Machine:
    """A loaded program.

    Attributes:
        now: the clock, in cycles.
        bounded: queues have their documented depth; False lets them grow without limit.
        strict: conflicts that the documentation forbids are errors.
        max_cycles: how long the program may run without a word to or from the host; 0 for ever.
        heard: when the host last had a word with it.
    """

    def __init__(
        self,
        program: Program,
        *,
        timing: Timing = TIMING,
        bounded: bool = True,
        strict: bool = False,
        traced: bool = False,
        max_cycles: int = 0,
    ) -> None:
        self.max_cycles = max_cycles
        self.heard: float = 0.0
        self.check: Callable[[], None] | None = None
        self.program = program
        self.arch = program.arch
        self.arch_index = 0 if program.arch == "wse2" else 1
        self.timing = timing
        self.bounded = bounded
        self.strict = strict
        self.now: float = 0.0
        self.events: list[tuple[float, int, Callable[[float], None]]] = []
        self.sequence = 0
        self.events_run = 0
        self.width, self.height = program.width, program.height
        self.pes: dict[tuple[int, int], PE] = {}
        self.routers: dict[tuple[int, int, int], RouterColor] = {}
        self.dynamic = [False] * _COLORS
        self.gates = [False] * _COLORS  # routers of the colour open and close, but have no switches
        self.moving: deque[tuple[int, int, int, str, Segment]] = deque()
        self.ahead = False
        self.coming: Counter[tuple[int, int, int]] = Counter()
        self.controls: Counter[tuple[int, str, int]] = Counter()
        self.parked: dict[tuple[int, int, int], dict[str, deque[Segment]]] = defaultdict(dict)
        self.host_colors: set[int] = set()
        self.host_words: dict[tuple[int, int, int], list[NDArray[np.uint32]]] = defaultdict(list)
        self.link_words = [0] * (self.width * self.height * 4)
        self.link_free = [0.0] * (self.width * self.height * 4)
        self.wavelets = 0
        self.hops = 0
        self.color_words: Counter[int] = Counter()
        self.timeline: list[tuple[int, int, float, float, str]] | None = [] if traced else None
        self.log: list[str] = []
        self.warnings: dict[str, None] = {}
        self.journal: Callable[[str], None] | None = None  # gets lines as they are made
        self.dropped: Counter[tuple[int, int, int]] = Counter()
        self.codes: list[Any] = []
        self._configure()

    def _configure(self) -> None:
        plain = [True] * _COLORS
        for (x, y), configs in self.program.colors.items():
            watch.poll()
            for color, config in configs.items():
                filtered = FilterState(config.filter) if config.filter is not None else None
                self.routers[(x, y, color)] = RouterColor(config, filtered)
                if config.switches is not None or config.teardown:
                    self.dynamic[color] = True
                if HOST in config.tx:
                    self.dynamic[color] = True
                if config.color_swap_x or config.color_swap_y:
                    self.dynamic[color] = self.dynamic[color ^ 1] = True
                    plain[color ^ 1] = False
                if config.switches is not None or HOST in config.tx or config.color_swap_x or config.color_swap_y:
                    plain[color] = False
        self.gates = [plain[c] and self.dynamic[c] for c in range(_COLORS)]

    # --- the clock -----------------------------------------------------------------------------------------------

    def at(self, when: float, what: Callable[[float], None]) -> None:
        """Calls ``what(when)`` at that time."""
        self.sequence += 1
        heapq.heappush(self.events, (when, self.sequence, what))

    def run(self, until: Callable[[], bool] | None = None, limit: float | None = None) -> bool:
        """Runs until a condition holds, the clock passes ``limit`` or nothing is left; tells whether ``until`` held."""
        events = self.events
        pop = heapq.heappop
        self.check = watch.hook()
        until_look = _LOOK_EVERY
        with np.errstate(all="ignore"):
            while True:
                if until is not None and until():
                    return True
                if not events or (limit is not None and events[0][0] > limit):
                    if limit is not None:
                        self.now = max(self.now, limit)
                    return until is None
                when, _, what = pop(events)
                self.now = when
                self.events_run += 1
                what(when)
                until_look -= 1
                if not until_look:
                    until_look = _LOOK_EVERY
                    self.look(when)

    def look(self, now: float) -> None:
        """Called every few milliseconds: may stop the run."""
        if self.check is not None:
            self.check()
        if self.max_cycles and now - self.heard > self.max_cycles:
            raise self._endless(now)

    def _endless(self, now: float) -> Endless:
        from wsesim.fabric.waits import busy

        return Endless(
            f"the program has run {now - self.heard:,.0f} cycles without a word to or from the host and goes on; "
            f"WSESIM_MAX_CYCLES=0 lets it\n{busy(self)}"
        )

    def warn(self, text: str, when: float) -> None:
        """What strict mode refuses and published programs do; said once."""
        if text not in self.warnings:
            self.warnings[text] = None
            self.note(when, f"warning: {text}")

    def note(self, when: float, text: str) -> None:
        """A line for the journal, if somebody keeps one."""
        if self.journal is not None:
            self.journal(f"@{when:.0f} {text}")

    def task_ran(self, pe: PE, begin: float, end: float) -> None:
        """Records one task for the timeline."""
        if self.timeline is not None and len(self.timeline) < TIMELINE_LIMIT:
            self.timeline.append((pe.x, pe.y, begin, end, pe.task_name))

    # --- routes --------------------------------------------------------------------------------------------------

    def router(self, x: int, y: int, color: int) -> RouterColor | None:
        """A colour's state at a router, if the program configured it there."""
        return self.routers.get((x, y, color))

    def link(self, x: int, y: int, side: str) -> int:
        """Index of the link that leaves (x, y) on ``side``."""
        return (y * self.width + x) * 4 + SIDES.index(side)

    def route(self, outlet: Outlet) -> tuple[list[tuple[Inbox | None, int, int]], list[tuple[int, int]]]:
        """Ends of a route as (queue or None, hops, words that fit), and its links with their distance."""
        pe, color = outlet.pe, outlet.color
        if (pe.x, pe.y, color) not in self.routers:
            if color in self.host_colors:
                return [], []
            raise NoRoute(
                f"{pe.where} sends on colour {color}, but its router has no configuration for that colour; "
                f"call @set_color_config or @set_local_color_config"
            )
        route = trace(self.router, pe.x, pe.y, color)
        for at in route.routers:
            at.dependents.append(outlet)
        words = self.timing.router_queue_words
        ends: list[tuple[Inbox | None, int, int]] = []
        for end in route.ends:
            box = self.pes[(end.x, end.y)].box(end.color) if end.open else None
            cap = outlet.depth + words * (end.hops + 1) + (box.cap if box is not None else 0)
            ends.append((box, end.hops, cap))
        links = [(self.link(x, y, side), abs(x - pe.x) + abs(y - pe.y)) for x, y, side in route.links]
        return ends, links

    def switched(self, at: RouterColor) -> None:
        """A router has changed: routes through it are traced anew, and who waited for that goes on."""
        dependents, at.dependents = at.dependents, []
        for outlet in dependents:
            outlet.changed(self.now)

    # --- wavelets ------------------------------------------------------------------------------------------------

    def inject(self, outlet: Outlet, words: NDArray[np.uint32], t: float, rate: float, control: bool) -> None:
        """A burst leaves a processor."""
        pe, color = outlet.pe, outlet.color
        self.wavelets += len(words)
        self.color_words[color] += len(words)
        t = max(t, self.now)
        if (pe.x, pe.y, color) not in self.routers:
            self._to_host(pe, color, words)
            return
        outlet.outstanding += len(words)
        if self.dynamic[color] or control:
            for word in words if control else (None,):
                part = np.array([word], np.uint32) if control else words
                self._onward(pe.x, pe.y, color, RAMP, Segment(part, t, rate, control, outlet))
                t += rate
            self._run_ahead()
            return
        outlet.refresh()
        self._express(outlet, words, t, rate)

    def _to_host(self, pe: PE, color: int, words: NDArray[np.uint32]) -> None:
        if color not in self.host_colors:
            self.route(pe.outlet_of(color, 0))
        self.heard = self.now
        self.host_words[(pe.x, pe.y, color)].append(words)

    def _express(self, outlet: Outlet, words: NDArray[np.uint32], t: float, rate: float) -> None:
        count = len(words)
        delay = 0.0
        loads, free = self.link_words, self.link_free
        for link, hop in outlet.link_ids:
            delay = max(delay, free[link] - t - hop)
        t += delay
        for link, hop in outlet.link_ids:
            loads[link] += count
            free[link] = max(free[link], t + hop) + count
        self.hops += count * len(outlet.link_ids)
        weight = 1.0 / max(1, len(outlet.ends))
        for box, hops, _ in outlet.ends:
            seg = Segment(words, t + hops + self.timing.ramp, rate, False, outlet, weight)
            if box is None:
                continue  # the buffers on the way to a closed router fill up, nothing more happens
            self.deliver(box, seg)

    def deliver(self, box: Inbox, seg: Segment) -> None:
        """Hands a segment to a processor's queue when it arrives there, through the filter if there is one."""
        at = self.routers.get((box.pe.x, box.pe.y, box.color))
        if at is not None and at.filter is not None:
            keep = [at.filter.accepts(int(w), seg.control) for w in seg.words]
            if not all(keep):
                seg.credit(len(keep) - sum(keep))
                seg.words = seg.words[np.array(keep)]
                if not len(seg.words):
                    return
        self.at(max(seg.t, self.now), lambda now: box.push(seg, now))

    def host_send(self, pe: PE, color: int, words: NDArray[np.uint32]) -> None:
        """A burst from the host arrives at a processor, through its router where the colour is configured."""
        at = self.routers.get((pe.x, pe.y, color))
        outside = sorted(at.rx - {RAMP}) if at is not None and not self.program.memcpy else []
        if outside:
            seg = Segment(words, self.now + self.timing.hop, 1.0, False, None)
            self._schedule(pe.x, pe.y, color, outside[0], seg)
            return
        self.deliver(pe.box(color), Segment(words, self.now + self.timing.ramp, 1.0, False, None))

    def advance_local(self, outlet: Outlet, t: float) -> None:
        """The switch at this processor's own router advances after what was sent before."""
        word = np.array([1 << COMMAND_BITS[0]], np.uint32)
        seg = Segment(word, max(t, self.now), 1.0, True, None, local=True)
        self._schedule(outlet.pe.x, outlet.pe.y, outlet.color, RAMP, seg)

    # --- from router to router -----------------------------------------------------------------------------------

    def _onward(self, x: int, y: int, color: int, side: str, seg: Segment) -> None:
        """A segment is on its way to a router."""
        if self.gates[color] and not seg.control:
            self.moving.append((x, y, color, side, seg))
        else:
            self._schedule(x, y, color, side, seg)

    def _schedule(self, x: int, y: int, color: int, side: str, seg: Segment) -> None:
        if self.gates[color]:
            self.coming[(x, y, color)] += 1
            if seg.control:
                self.controls[(color, "row", y)] += 1
                self.controls[(color, "column", x)] += 1
        self.at(seg.t, _Arrival(self, x, y, color, side, seg))

    def landed(self, x: int, y: int, color: int, control: bool) -> None:
        """A scheduled segment is no longer on its way."""
        if self.gates[color]:
            self.coming[(x, y, color)] -= 1
            if control:
                self.controls[(color, "row", y)] -= 1
                self.controls[(color, "column", x)] -= 1

    def _run_ahead(self) -> None:
        """Bursts pass, ahead of the clock, the routers that nothing under way can change before they arrive."""
        if self.ahead:
            return
        self.ahead = True
        while self.moving:
            x, y, color, side, seg = self.moving.popleft()
            at = self._open(x, y, color, side)
            if at is None:
                self._schedule(x, y, color, side, seg)
            else:
                self._forward(x, y, color, at, seg)
        self.ahead = False

    def _open(self, x: int, y: int, color: int, side: str) -> RouterColor | None:
        """The router, when it lets traffic from ``side`` through and nothing is under way that comes first."""
        key = (x, y, color)
        at = self.routers.get(key)
        if at is None or at.teardown or side not in at.rx or self.coming.get(key):
            return None
        if key in self.parked and self.parked[key].get(side):
            return None
        sides = at.rx.union(at.tx)
        if not _VERTICAL.isdisjoint(sides) and self.controls.get((color, "column", x)):
            return None
        if not _HORIZONTAL.isdisjoint(sides) and self.controls.get((color, "row", y)):
            return None
        return at

    def arrive(self, x: int, y: int, color: int, side: str, seg: Segment) -> None:
        """A segment enters a router from one side."""
        at = self.routers.get((x, y, color))
        if at is None:
            self.parked[(x, y, color)].setdefault(side, deque()).append(seg)
            return
        queues = self.parked[(x, y, color)]
        queue = queues.get(side)
        if queue is None:
            queue = queues[side] = deque()
        queue.append(seg)
        self.drain(x, y, color)

    def drain(self, x: int, y: int, color: int) -> None:
        """Passes on what the router's current position lets through."""
        at = self.routers[(x, y, color)]
        queues = self.parked[(x, y, color)]
        moved = True
        while moved and not at.teardown:
            moved = False
            for side, queue in queues.items():
                if queue and side in at.rx:
                    self._forward(x, y, color, at, queue.popleft())
                    moved = True
                    break
        if self.moving:
            self._run_ahead()

    def _forward(self, x: int, y: int, color: int, at: RouterColor, seg: Segment) -> None:
        t = max(seg.t, self.now)
        payload = int(seg.words[0]) if seg.control else 0
        targets = () if seg.local else at.tx
        out = payload
        if seg.control:
            if payload >> IGNORE_BITS[0] & 1:
                targets = tuple(s for s in targets if s not in (RAMP, HOST))
            out, changed, cmd = at.command(payload)
            if changed or cmd == TEARDOWN:
                self.switched(at)
            if cmd == TEARDOWN:
                self.teardown(x, y, color)
        if not targets:
            seg.credit(len(seg.words))
            return
        weight = seg.weight / len(targets)
        for side in targets:
            self._send(x, y, color, at, side, seg, t, weight, out)

    def _send(
        self, x: int, y: int, color: int, at: RouterColor, side: str, seg: Segment, t: float, weight: float, out: int
    ) -> None:
        if side == HOST:
            self.heard = self.now
            self.host_words[(x, y, color)].append(seg.words)
            seg.credit(len(seg.words))
            return
        if side == RAMP:
            self.deliver(self.pes[(x, y)].box(color), seg.copy(t + self.timing.ramp, weight))
            return
        link = self.link(x, y, side)
        count = len(seg.words)
        start = max(t, self.link_free[link])
        self.link_free[link] = start + count
        self.link_words[link] += count
        self.hops += count
        dx, dy = STEP[side]
        copy = seg.copy(start + self.timing.hop, weight)
        if seg.control:
            copy.words = np.array([out], np.uint32)
        self._onward(x + dx, y + dy, swapped(color, side, at), OPPOSITE[side], copy)

    # --- teardown ------------------------------------------------------------------------------------------------

    def teardown(self, x: int, y: int, color: int) -> None:
        """A colour enters teardown at one router: its handler or the teardown task runs."""
        pe = self.pes[(x, y)]
        pe.teardown_pending |= 1 << color
        pe.library.setdefault("teardown due", []).append(color)
        self.at(self.now, lambda now: pe.activate(29, now))

    def leave_teardown(self, x: int, y: int, color: int) -> None:
        """Traffic of a colour flows again at one router."""
        at = self.routers.get((x, y, color))
        if at is not None:
            at.teardown = False
            self.dynamic[color] = True
            self.pes[(x, y)].teardown_pending &= ~(1 << color)
            self.switched(at)
            self.at(self.now, lambda _now: self.drain(x, y, color))

    # --- nothing happens any more --------------------------------------------------------------------------------

    def deadlock(self, message: str) -> Deadlock:
        """The error for a machine that stands still while somebody waits."""
        from wsesim.fabric.waits import picture, svg

        text, edges = picture(self)
        return Deadlock(message, text, edges, svg(self, edges) if len(self.pes) <= DRAWN_PES else "")


class _Arrival:
    """Event: a segment reaches a router."""

    __slots__ = ("color", "machine", "seg", "side", "x", "y")

    def __init__(self, machine: Machine, x: int, y: int, color: int, side: str, seg: Segment) -> None:
        self.machine = machine
        self.x = x
        self.y = y
        self.color = color
        self.side = side
        self.seg = seg

    def __call__(self, _now: float) -> None:
        self.machine.landed(self.x, self.y, self.color, self.seg.control)
        self.machine.arrive(self.x, self.y, self.color, self.side, self.seg)
