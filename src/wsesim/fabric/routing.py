"""Colour configurations of routers, and the routes that follow from them.

A colour without switches anywhere is *static*: its routes are traced once per source and segments travel to their
receivers in one step. The other colours move hop by hop, because every control wavelet may change the next hop.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from wsesim.fabric.errors import RoutingLoop

if TYPE_CHECKING:
    from collections.abc import Callable

    from wsesim.csl.program.elaborated import ColorConfig, Filter

__all__ = ["OPPOSITE", "STEP", "Endpoint", "Route", "RouterColor", "shift_commands", "trace"]

RAMP = "RAMP"
HOST = "HOST"  # leaves the fabric for the host, only in layouts made from Python
STEP = {"WEST": (-1, 0), "EAST": (1, 0), "SOUTH": (0, 1), "NORTH": (0, -1)}
OPPOSITE = {"WEST": "EAST", "EAST": "WEST", "SOUTH": "NORTH", "NORTH": "SOUTH", "RAMP": "RAMP"}
NOP, ADVANCE, RESET, TEARDOWN = 0, 1, 2, 3
# Bit positions of the eight commands of a control wavelet and of the "processor ignores it" flags.
COMMAND_BITS = (22, 25, 28, 1, 4, 7, 10, 13)
IGNORE_BITS = (24, 27, 0, 3, 6, 9, 12, 15)


def shift_commands(payload: int) -> int:
    """The payload after its first command was popped; the freed slot is a no-op that the processor ignores.

    >>> bin(shift_commands((1 << 25) | (5 << 16)) >> 22 & 3), shift_commands(5 << 16) >> 16 & 63
    ('0b1', 5)
    """
    out = payload & (0x3F << 16)
    for i in range(7):
        out |= ((payload >> COMMAND_BITS[i + 1]) & 3) << COMMAND_BITS[i]
        out |= ((payload >> IGNORE_BITS[i + 1]) & 1) << IGNORE_BITS[i]
    return out | 1 << IGNORE_BITS[7]


@dataclass
class FilterState:
    """A filter between router and processor, with its counter."""

    config: Filter
    counter: int = 0
    limit1: int = 0
    limit2: int | None = None
    max_counter: int = 0
    disabled: bool = False

    def __post_init__(self) -> None:
        self.max_counter = self.config.max_counter
        self.counter = self.config.init_counter
        self.limit1 = self.config.limit1
        self.limit2 = self.config.limit2

    def accepts(self, word: int, control: bool) -> bool:
        """Whether the processor gets this wavelet; counts it."""
        config = self.config
        if config.kind == "range":
            return control or config.min_idx <= word >> 16 <= config.max_idx
        if self.disabled:
            return True
        counts = config.count_control if control else config.count_data
        keep = self.counter <= self.max_counter
        if config.filter_control and config.kind == "counter":
            keep = control and self.counter == self.max_counter
        if counts:
            self._count()
        return keep

    def _count(self) -> None:
        if self.counter < self.limit1:
            self.counter += 1
            return
        self.counter = 0
        if self.config.kind == "sparse_counter":
            if self.limit2 is None:
                self.disabled = True
            else:
                self.limit1, self.limit2 = self.limit2, None


class RouterColor:
    """One colour at one router: its switch positions and where it stands."""

    __slots__ = (
        "dependents",
        "filter",
        "own_rx",
        "own_tx",
        "pop",
        "pos",
        "positions",
        "ring",
        "rx",
        "swap_x",
        "swap_y",
        "teardown",
        "tx",
        "valid",
    )

    def __init__(self, config: ColorConfig, filtered: FilterState | None = None) -> None:
        self.positions: list[tuple[frozenset[str], tuple[str, ...]]] = [(frozenset(config.rx), tuple(config.tx))]
        self.valid = [True, False, False, False]
        self.own_rx: set[int] = set()  # positions that set their own side
        self.own_tx: set[int] = set()
        self.pos = 0
        self.ring = False
        self.pop = "no_pop"
        self.swap_x = config.color_swap_x
        self.swap_y = config.color_swap_y
        self.teardown = config.teardown
        self.filter = filtered
        self.dependents: list[Any] = []  # outlets whose route passes here
        if config.switches is not None:
            self._add_switches(config)
        self.rx, self.tx = self.positions[min(self.pos, len(self.positions) - 1)]

    def _add_switches(self, config: ColorConfig) -> None:
        switches = config.switches
        assert switches is not None
        for number, given in enumerate(switches.positions, start=1):
            rx, tx = self.positions[-1]
            if not given.invalid:
                self.valid[number] = True
                self.own_rx |= {number} if given.rx is not None else set()
                self.own_tx |= {number} if given.tx is not None else set()
                rx = frozenset(given.rx) if given.rx is not None else rx
                tx = tuple(given.tx) if given.tx is not None else tx
            self.positions.append((rx, tx))
        self.pos = switches.current
        self.ring = switches.ring_mode
        self.pop = switches.pop_mode

    def go(self, pos: int) -> None:
        """Takes position ``pos``."""
        self.pos = pos
        self.rx, self.tx = self.positions[min(pos, len(self.positions) - 1)]

    def advance(self) -> bool:
        """Next valid position; tells whether it moved."""
        following = self.pos + 1
        if following < 4 and self.valid[following]:
            self.go(following)
            return True
        if self.ring and self.pos != 0:
            self.go(0)
            return True
        return False

    def command(self, payload: int) -> tuple[int, bool, int]:
        """Obeys the first command; returns (payload to pass on, whether the position moved, command)."""
        cmd = (payload >> COMMAND_BITS[0]) & 3
        moved = False
        if cmd == ADVANCE:
            moved = self.advance()
        elif cmd == RESET and self.pos:
            self.go(0)
            moved = True
        elif cmd == TEARDOWN:
            self.teardown = True
        pops = self.pop == "always_pop" or (self.pop.startswith("pop_on_advance") and moved)
        if self.pop == "pop_on_advance_nop" and cmd == NOP:
            pops = True
        return (shift_commands(payload) if pops else payload), moved, cmd


@dataclass(frozen=True)
class Endpoint:
    """Where a branch of a route ends: a processor (``open``), or a router that is closed to it just now."""

    x: int
    y: int
    color: int
    hops: int
    open: bool


@dataclass
class Route:
    """What one source reaches on one colour."""

    ends: list[Endpoint] = field(default_factory=list)
    links: list[tuple[int, int, str]] = field(default_factory=list)
    routers: list[RouterColor] = field(default_factory=list)


def swapped(color: int, side: str, at: RouterColor) -> int:
    """The colour under which a wavelet leaves towards ``side``."""
    if (at.swap_x and side in ("WEST", "EAST")) or (at.swap_y and side in ("NORTH", "SOUTH")):
        return color ^ 1
    return color


def trace(router: Callable[[int, int, int], RouterColor | None], x: int, y: int, color: int) -> Route:
    """Follows a colour from the processor at (x, y) under the current switch positions.

    Raises:
        RoutingLoop: when a branch comes back to a router and side where it was.
    """
    route = Route()
    seen: set[tuple[int, int, int, str]] = set()
    work: list[tuple[int, int, int, str, int]] = [(x, y, color, RAMP, 0)]
    while work:
        px, py, c, side, hops = work.pop()
        if (px, py, c, side) in seen:
            raise RoutingLoop(
                f"wavelets of colour {color} sent by PE ({x}, {y}) come back to the router of PE ({px}, {py}) "
                f"from {side}; break the cycle in @set_color_config"
            )
        seen.add((px, py, c, side))
        at = router(px, py, c)
        if at is not None:
            route.routers.append(at)
        if at is None or at.teardown or side not in at.rx:
            route.ends.append(Endpoint(px, py, c, hops, open=False))
            continue
        for to in at.tx:
            if to == HOST:
                continue
            if to == RAMP:
                route.ends.append(Endpoint(px, py, c, hops, open=True))
                continue
            dx, dy = STEP[to]
            route.links.append((px, py, to))
            work.append((px + dx, py + dy, swapped(c, to, at), OPPOSITE[to], hops + 1))
    return route
