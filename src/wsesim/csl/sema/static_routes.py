"""Static routes: does a colour run in a circle?"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from wsesim import watch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wsesim.csl.program.elaborated import ColorConfig, Program

__all__ = ["find_loop"]

Cell: TypeAlias = tuple[int, int]
_STEP = {"WEST": (-1, 0), "EAST": (1, 0), "NORTH": (0, -1), "SOUTH": (0, 1)}
_OPPOSITE = {"WEST": "EAST", "EAST": "WEST", "NORTH": "SOUTH", "SOUTH": "NORTH"}


def find_loop(program: Program) -> tuple[int, list[Cell], ColorConfig] | None:
    """A colour, the cells of a circle its fixed routes form, and a configuration in it; None when there is none.

    Routers with switches, filters or teardown on the colour are left out: their routes change at run time.
    """
    by_color: dict[int, dict[Cell, ColorConfig]] = {}
    for at, table in program.colors.items():
        for color, config in table.items():
            # A circle needs a router that takes a wavelet from a neighbour and hands it to a neighbour.
            if config.switches is None and config.filter is None and not config.teardown and _passes(config):
                by_color.setdefault(color, {})[at] = config
    for color, routers in sorted(by_color.items()):
        cells = _circle(routers)
        if cells:
            return color, cells, routers[cells[0]]
    return None


def _passes(config: ColorConfig) -> bool:
    swapped = config.color_swap_x or config.color_swap_y
    return not swapped and any(s != "RAMP" for s in config.rx) and any(s != "RAMP" for s in config.tx)


def _next_cells(at: Cell, routers: Mapping[Cell, ColorConfig]) -> list[Cell]:
    found = []
    for side in routers[at].tx:
        if side == "RAMP":
            continue
        dx, dy = _STEP[side]
        to = (at[0] + dx, at[1] + dy)
        if to in routers and _OPPOSITE[side] in routers[to].rx:
            found.append(to)
    return found


def _circle(routers: Mapping[Cell, ColorConfig]) -> list[Cell]:
    """Depth-first search with an explicit stack; the cells of the first circle met."""
    done: set[Cell] = set()
    for root in routers:
        if root in done:
            continue
        watch.poll()
        path: list[Cell] = [root]
        on_path = {root}
        pending = [_next_cells(root, routers)]
        while path:
            if not pending[-1]:
                pending.pop()
                last = path.pop()
                on_path.discard(last)
                done.add(last)
                continue
            to = pending[-1].pop()
            if to in on_path:
                return path[path.index(to) :]
            if to not in done:
                path.append(to)
                on_path.add(to)
                pending.append(_next_cells(to, routers))
    return []
