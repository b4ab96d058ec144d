"""Where boxes go: layers from top to bottom, few crossings, arrows that pass between boxes."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

__all__ = ["Layout", "depths_of", "lay_out"]

SWEEPS = 12
GAP_X, GAP_Y, LANE = 22.0, 46.0, 14.0
# An arrow over more layers than this is drawn at once, beside the rest: each layer would cost a bend.
MAX_SPAN = 24


@dataclass(slots=True)
class Layout:
    """Places: the middle of each box, and the points each arrow goes through."""

    width: float = 0.0
    height: float = 0.0
    places: dict[str, tuple[float, float]] = field(default_factory=dict)
    routes: dict[tuple[str, str], list[tuple[float, float]]] = field(default_factory=dict)


def lay_out(
    sizes: Mapping[str, tuple[float, float]], arrows: Sequence[tuple[str, str]], anchors: Collection[str] = ()
) -> Layout:
    """Place boxes of given sizes.

    Args:
        sizes: width and height of each box.
        arrows: pairs of boxes; cycles (folded modules can make them) are drawn backwards where they close.
        anchors: boxes to begin with; what does not come from them goes next to its readers.

    Example:
        >>> placed = lay_out({"a": (40, 20), "b": (40, 20)}, [("a", "b")])
        >>> placed.places["a"][1] < placed.places["b"][1]
        True
    """
    links = _acyclic(list(sizes), arrows)
    depth, side = _depths(list(sizes), links, anchors)
    layers, chains, widths = _with_bends(sizes, links, depth)
    below, above = _neighbours(chains)
    _order(layers, below, above)
    x = _columns(layers, widths, below, above, side)
    heights = [max((sizes[k][1] for k in layer if k in sizes), default=0.0) for layer in layers]
    return _finished(sizes, links, chains, layers, heights, x)


def depths_of(keys: list[str], arrows: Sequence[tuple[str, str]], anchors: Collection[str] = ()) -> dict[str, int]:
    """The layer of each box, the uppermost 0.

    Example:
        >>> depths_of(["a", "b", "c"], [("a", "b"), ("b", "c")])
        {'a': 0, 'b': 1, 'c': 2}
    """
    return _depths(keys, _acyclic(keys, arrows), anchors)[0]


def _acyclic(keys: list[str], arrows: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Arrows, those that close a cycle turned round."""
    after: dict[str, list[str]] = {key: [] for key in keys}
    for source, target in dict.fromkeys(arrows):
        if source != target:
            after[source].append(target)
    state: dict[str, int] = {}
    links: list[tuple[str, str]] = []
    for root in keys:
        stack = [(root, iter(after[root]))] if root not in state else []
        state.setdefault(root, 1)
        while stack:
            key, rest = stack[-1]
            target = next(rest, None)
            if target is None:
                state[key] = 2
                stack.pop()
                continue
            links.append((target, key) if state.get(target) == 1 else (key, target))
            if target not in state:
                state[target] = 1
                stack.append((target, iter(after[target])))
    return list(dict.fromkeys(links))


def _depths(
    keys: list[str], links: Sequence[tuple[str, str]], anchors: Collection[str]
) -> tuple[dict[str, int], set[str]]:
    """The layer of each box: below all it reads, and as near to its readers as costs no arrow length.

    Also the boxes at the side: those that do not come from an anchor.
    """
    after: dict[str, list[str]] = {key: [] for key in keys}
    before: dict[str, int] = dict.fromkeys(keys, 0)
    for source, target in links:
        after[source].append(target)
        before[target] += 1
    reads = dict(before)
    depth = dict.fromkeys(keys, 0)
    ready = [key for key in keys if not before[key]]
    reached = set(anchors)
    for key in ready:
        if key in reached:
            reached.update(after[key])
        for target in after[key]:
            depth[target] = max(depth[target], depth[key] + 1)
            before[target] -= 1
            if not before[target]:
                ready.append(target)
    for key in reversed(ready):
        if after[key] and (reads[key] <= len(after[key]) or key not in reached):
            depth[key] = min(depth[target] for target in after[key]) - 1
    return depth, set(keys) - reached if anchors else set()


def _with_bends(
    sizes: Mapping[str, tuple[float, float]], links: Sequence[tuple[str, str]], depth: dict[str, int]
) -> tuple[list[list[str]], dict[tuple[str, str], list[str]], dict[str, float]]:
    """Layers with a place for each arrow that passes, the chain of places of each arrow, and widths."""
    layers: list[list[str]] = [[] for _ in range(max(depth.values(), default=0) + 1)]
    widths = {key: size[0] for key, size in sizes.items()}
    for key in sizes:
        layers[depth[key]].append(key)
    chains: dict[tuple[str, str], list[str]] = {}
    for source, target in links:
        chain = [source]
        if depth[target] - depth[source] <= MAX_SPAN:
            for level in range(depth[source] + 1, depth[target]):
                bend = f"~{len(widths)}"
                widths[bend] = LANE
                layers[level].append(bend)
                chain.append(bend)
        chains[source, target] = [*chain, target]
    return layers, chains, widths


def _neighbours(chains: Mapping[tuple[str, str], list[str]]) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    below: dict[str, list[str]] = {}
    above: dict[str, list[str]] = {}
    for chain in chains.values():
        for one, two in itertools.pairwise(chain):
            below.setdefault(one, []).append(two)
            above.setdefault(two, []).append(one)
    return below, above


def _order(layers: list[list[str]], below: dict[str, list[str]], above: dict[str, list[str]]) -> None:
    """Sort each layer by the middle of what it is joined to, down and up in turn."""
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        numbers = range(1, len(layers)) if down else range(len(layers) - 2, -1, -1)
        joined = above if down else below
        for i in numbers:
            fixed = {key: n for n, key in enumerate(layers[i - 1 if down else i + 1])}
            own = {key: float(n) for n, key in enumerate(layers[i])}
            middles = {}
            for key in layers[i]:
                at = [fixed[other] for other in joined.get(key, ()) if other in fixed]
                middles[key] = sum(at) / len(at) if at else own[key]
            layers[i].sort(key=middles.__getitem__)


def _columns(
    layers: list[list[str]],
    widths: dict[str, float],
    below: dict[str, list[str]],
    above: dict[str, list[str]],
    side: set[str],
) -> dict[str, float]:
    """Middles of boxes: near what they are joined to, in their order, without overlaps; side boxes pull nobody."""
    x: dict[str, float] = {}
    for layer in layers:
        at = 0.0
        for key in layer:
            x[key] = at + widths[key] / 2
            at += widths[key] + GAP_X
        for key in layer:
            x[key] -= at / 2
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        joined = above if down else below
        for layer in layers if down else reversed(layers):
            wish = []
            for key in layer:
                near = joined.get(key, ())
                others = [x[other] for other in near if other not in side] or [x[other] for other in near]
                wish.append(sum(others) / len(others) if others else x[key])
            x |= zip(layer, _spread(layer, wish, widths), strict=True)
    return x


def _spread(layer: list[str], wish: list[float], widths: dict[str, float]) -> list[float]:
    """The nearest places to the wished ones that keep order and distance (pools of neighbours move together)."""
    pools: list[list[float]] = []  # [sum of wishes shifted to the pool's start, count]
    shift, offsets = 0.0, []
    for n, key in enumerate(layer):
        if n:
            shift += (widths[layer[n - 1]] + widths[key]) / 2 + GAP_X
        offsets.append(shift)
        pools.append([wish[n] - shift, 1.0])
        while len(pools) > 1 and pools[-2][0] / pools[-2][1] > pools[-1][0] / pools[-1][1]:
            total, count = pools.pop()
            pools[-1][0] += total
            pools[-1][1] += count
    starts = [total / count for total, count in pools for _ in range(int(count))]
    return [start + offset for start, offset in zip(starts, offsets, strict=True)]


def _finished(
    sizes: Mapping[str, tuple[float, float]],
    links: Sequence[tuple[str, str]],
    chains: Mapping[tuple[str, str], list[str]],
    layers: list[list[str]],
    heights: list[float],
    x: dict[str, float],
) -> Layout:
    made = Layout()
    left = min((x[key] - sizes[key][0] / 2 for key in sizes), default=0.0) - GAP_X
    level, y = {}, GAP_Y / 2
    for layer, height in zip(layers, heights, strict=True):
        for key in layer:
            level[key] = y + height / 2
        y += height + GAP_Y
    for key, (width, _) in sizes.items():
        made.places[key] = (x[key] - left, level[key])
        made.width = max(made.width, x[key] - left + width / 2 + GAP_X)
    for source, target in links:
        points = [(x[key] - left, level[key]) for key in chains[source, target]]
        made.routes[source, target] = points
        made.width = max(made.width, *(px + GAP_X for px, _ in points))
    made.height = y
    return made
