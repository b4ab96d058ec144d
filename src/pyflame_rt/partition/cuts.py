"""Acyclic min-cut with balance: dynamic programming over a topological order, then Fiduccia-Mattheyses moves."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pyflame_rt.graph.errors import InputError, MemoryLimitError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyflame_rt.graph import Graph, Node
    from pyflame_rt.partition.config import DeviceSpec, PartitionConfig
    from pyflame_rt.partition.cost import CostModel, GraphCosts

__all__ = ["Unit", "cut_graph", "units_of"]

_BOUNDARIES = 400  # places where a cut is considered
_SLACK = 1.1  # a load may be so much more than the best bottleneck where that saves bytes
_PASSES = 8
_FEW = 2000  # units of a graph whose orders are compared
_SMALL = 200  # units of a graph in which moves that do not help by themselves are tried


class Unit(NamedTuple):
    """A node that goes to one part as a whole.

    Attributes:
        node: the node.
        us: its microseconds.
        weights: bytes of its initializers by name.
        reads: numbers of the units it reads, with the values.
    """

    node: Node
    us: float
    weights: dict[str, int]
    reads: list[tuple[int, str]]


def units_of(graph: Graph, costs: GraphCosts) -> list[Unit]:
    """The nodes that are given out, in running order; nodes that depend on no input go wherever they are read."""
    fixed = set(graph.initializers) - {info.name for info in graph.inputs}
    kept = {info.name for info in graph.outputs}
    made: dict[str, int] = {}
    units: list[Unit] = []
    for node in costs.order:
        inputs = [n for n in node.inputs if n]
        if all(n in fixed for n in inputs) and not kept.intersection(node.outputs):
            fixed.update(node.outputs)
            continue
        weights = {n: costs.weight_bytes[n] for n in inputs if n in costs.weight_bytes}
        reads = [(made[n], n) for n in dict.fromkeys(inputs) if n in made]
        made.update((n, len(units)) for n in node.outputs if n)
        units.append(Unit(node, costs.us.get(node.outputs[0], 0.0) if node.outputs else 0.0, weights, reads))
    return units


def cut_graph(
    units: Sequence[Unit], costs: GraphCosts, devices: Sequence[DeviceSpec], model: CostModel, config: PartitionConfig
) -> list[int]:
    """The part of each unit, one part for each device; values go from parts to later ones only.

    Raises:
        InputError: there are fewer nodes than parts.
        MemoryLimitError: no cut that was found keeps within the memory of every device.
    """
    count = len(devices)
    if len(units) < count:
        raise InputError(
            f"a graph of {len(units)} nodes that depend on its inputs cannot be cut into {count} parts: ask for fewer"
        )
    if count == 1:
        parts = [0] * len(units)
    else:
        found = [_cut_in(order, units, costs, devices, model, config) for order in _orders(units)]
        fastest = min(slowest for slowest, _, _ in found)
        balanced = [f for f in found if f[0] <= fastest * _SLACK] if config.balance_compute else found
        parts = min(balanced, key=lambda f: (f[1], f[0]) if config.minimize_communication else (f[0], f[1]))[2]
    _check_memory(units, costs, devices, parts)
    return parts


def _cut_in(
    order: list[int],
    units: Sequence[Unit],
    costs: GraphCosts,
    devices: Sequence[DeviceSpec],
    model: CostModel,
    config: PartitionConfig,
) -> tuple[float, float, list[int]]:
    """The cut found along one order: the time of the busiest device, bytes that cross, the part of each unit."""
    place = {number: i for i, number in enumerate(order)}
    turned = [units[n]._replace(reads=[(place[s], v) for s, v in units[n].reads]) for n in order]
    parts = _Chain(turned, costs, devices, model, config).cut()
    moves = _Moves(turned, costs, devices, model, parts, balance=config.balance_compute)
    if config.minimize_communication:
        moves.improve()
    return max(moves.loads), moves.total(), [moves.parts[place[n]] for n in range(len(units))]


def _orders(units: Sequence[Unit]) -> list[list[int]]:
    """Topological orders that keep different things together: as given, and depth first from either side."""
    given = list(range(len(units)))
    if len(units) > _FEW:
        return [given]
    return [given, _demanded(units), _latest(units)]


def _demanded(units: Sequence[Unit]) -> list[int]:
    """Depth first from the outputs: each unit right before the one that needs it."""
    read = {s for u in units for s, _ in u.reads}
    done: dict[int, None] = {}
    for root in (i for i in range(len(units)) if i not in read):
        pending = [root]
        while pending:
            missing = next((s for s, _ in units[pending[-1]].reads if s not in done), None)
            if missing is None:
                done[pending.pop()] = None
            else:
                pending.append(missing)
    return list(done)


def _latest(units: Sequence[Unit]) -> list[int]:
    """Depth first from the inputs: each unit as soon as it can run, the newest value's readers first."""
    waiting = [len({s for s, _ in u.reads}) for u in units]
    readers: list[list[int]] = [[] for _ in units]
    for i, unit in enumerate(units):
        for source in {s for s, _ in unit.reads}:
            readers[source].append(i)
    ready = [i for i, count in enumerate(waiting) if not count][::-1]
    order: list[int] = []
    while ready:
        unit = ready.pop()
        order.append(unit)
        for reader in reversed(readers[unit]):
            waiting[reader] -= 1
            if not waiting[reader]:
                ready.append(reader)
    return order


def _value_bytes(costs: GraphCosts, name: str) -> int:
    return max(costs.value_bytes.get(name, 0), 1)  # of unknown size: still better not cut


class _Chain:
    """Cuts of the order into consecutive pieces."""

    def __init__(
        self,
        units: Sequence[Unit],
        costs: GraphCosts,
        devices: Sequence[DeviceSpec],
        model: CostModel,
        config: PartitionConfig,
    ) -> None:
        self.devices, self.model, self.config = devices, model, config
        n = len(units)
        self.crossing = _crossing(units, costs)
        self.places = self._places(n, len(devices))
        self.us = np.concatenate([[0.0], np.cumsum([u.us for u in units])])
        self.memory = np.concatenate([[0.0], np.cumsum([sum(u.weights.values()) for u in units])])
        made = [sum(_value_bytes(costs, name) for name in u.node.outputs if name) for u in units]
        self.alive = self.crossing + np.concatenate([made, [0.0]])
        self.total, self.limit = n, np.inf

    def _places(self, n: int, count: int) -> np.ndarray:
        """Where cuts are tried: everywhere, or at the cheapest place of each stretch of a long order."""
        if n <= max(_BOUNDARIES, count):
            return np.arange(n + 1)
        edges = np.linspace(1, n, max(_BOUNDARIES, count) + 1).astype(int)
        best = {int(a + np.argmin(self.crossing[a:b])) for a, b in itertools.pairwise(edges) if b > a}
        return np.array(sorted({0, n} | best))

    def cut(self) -> list[int]:
        """The least bottleneck first; then, no load being much more than that, the fewest bytes that cross."""
        bottleneck, back = self._best(self._slower)
        if not np.isfinite(bottleneck):
            if not self.alive.any():
                return self._by_memory()
            self.alive = np.zeros_like(self.alive)  # what is alive was reckoned too high, perhaps
            return self.cut()
        if self.config.minimize_communication:
            self.limit = bottleneck * _SLACK if self.config.balance_compute else np.inf
            _, back = self._best(self._more_bytes)
        return self._pieces(back)

    def _best(self, worth_of: Callable[..., np.ndarray]) -> tuple[float, np.ndarray]:
        """What the best pieces are worth, and where each begins."""
        places, count = self.places, len(self.devices)
        size = len(places)
        best = np.full(size, np.inf)
        best[0] = 0.0
        back = np.zeros((count, size), int)
        for k, device in enumerate(self.devices):
            now = np.full(size, np.inf)
            for j in range(k + 1, size):
                starts, end = places[k:j], int(places[j])
                us = self.model.on(device, 1.0) * (self.us[end] - self.us[starts])
                worth = worth_of(best[k:j], us, starts)
                if device.memory_bytes:
                    worth = np.where(self._bytes(starts, end) > device.memory_bytes, np.inf, worth)
                i = int(np.argmin(worth))
                now[j], back[k, j] = worth[i], i + k
            best = now
        return float(best[-1]), back

    def _slower(self, before: np.ndarray, us: np.ndarray, starts: np.ndarray) -> np.ndarray:
        del starts
        return np.maximum(before, us)

    def _more_bytes(self, before: np.ndarray, us: np.ndarray, starts: np.ndarray) -> np.ndarray:
        moved = np.where(starts > 0, self.crossing[starts], 0.0)
        return np.where(us <= self.limit, before + moved + 1e-9 * us, np.inf)

    def _bytes(self, starts: np.ndarray, end: int) -> np.ndarray:
        """Weights of the pieces from ``starts`` to ``end``, and the most that is alive on the way."""
        alive = np.maximum.accumulate(self.alive[starts[0] : end + 1][::-1])[::-1][starts - starts[0]]
        return self.memory[end] - self.memory[starts] + alive

    def _pieces(self, back: np.ndarray) -> list[int]:
        ends = [len(self.places) - 1]
        for k in range(len(self.devices) - 1, 0, -1):
            ends.append(int(back[k, ends[-1]]))
        bounds = [int(self.places[i]) for i in reversed(ends)]
        return [int(np.searchsorted(bounds, i, side="right")) for i in range(self.total)]

    def _by_memory(self) -> list[int]:
        """Nothing fits as far as is known: pieces by weight, so that the error can say what is missing."""
        share = self.memory[1:] / max(self.memory[-1], 1.0) * len(self.devices)
        parts = np.minimum(np.ceil(share) - 1, len(self.devices) - 1).clip(0).astype(int)
        return [int(p) for p in np.maximum.accumulate(parts)]


def _crossing(units: Sequence[Unit], costs: GraphCosts) -> np.ndarray:
    """Bytes alive across each place of the order."""
    last: dict[str, tuple[int, int]] = {}
    for i, unit in enumerate(units):
        for source, value in unit.reads:
            last[value] = (source, i)
    change = np.zeros(len(units) + 1)
    for value, (source, reader) in last.items():
        change[source + 1] += _value_bytes(costs, value)
        change[reader + 1 if reader + 1 <= len(units) else reader] -= _value_bytes(costs, value)
    return np.cumsum(change)


class _Moves:
    """Single nodes move to a neighbouring part while that lets fewer bytes cross."""

    def __init__(
        self,
        units: Sequence[Unit],
        costs: GraphCosts,
        devices: Sequence[DeviceSpec],
        model: CostModel,
        parts: list[int],
        *,
        balance: bool,
    ) -> None:
        self.units, self.costs, self.devices, self.parts = units, costs, devices, parts
        self.speed = [model.on(d, 1.0) for d in devices]
        self.readers: list[list[int]] = [[] for _ in units]
        self.of_value: dict[str, list[int]] = {}
        for i, unit in enumerate(units):
            for source, value in unit.reads:
                self.readers[source].append(i)
                self.of_value.setdefault(value, []).append(i)
        self.loads = [0.0] * len(devices)
        self.counts = [0] * len(devices)
        for unit, part in zip(units, parts, strict=True):
            self.loads[part] += unit.us * self.speed[part]
            self.counts[part] += 1
        self.limit = max(*self.loads, _SLACK * sum(self.loads) / len(devices)) if balance else np.inf
        self.needs = [_needed(units, costs, parts, p) for p in range(len(devices))]

    def improve(self) -> None:
        """Move nodes until no move helps; in small graphs also moves that help only together."""
        for _ in range(_PASSES):
            moved = self._climb()
            if len(self.units) <= _SMALL:
                moved = self._climb_over() or moved
            if not moved:
                return

    def _climb(self) -> bool:
        moved = False
        for i in range(len(self.units)):
            for target in self._targets(i):
                if self._gain(i, target) > 0:
                    self._move(i, target)
                    moved = True
                    break
        return moved

    def _climb_over(self) -> bool:
        """A pass of Fiduccia and Mattheyses: the best move of each node once, then back to the best moment."""
        steps: list[tuple[int, int]] = []
        gained = best = 0.0
        until = 0
        locked: set[int] = set()
        while True:
            moves = [
                (self._gain(i, t), i, t) for i in range(len(self.units)) if i not in locked for t in self._targets(i)
            ]
            if not moves:
                break
            gain, i, target = max(moves)
            steps.append((i, self.parts[i]))
            self._move(i, target)
            locked.add(i)
            gained += gain
            if gained > best:
                best, until = gained, len(steps)
        for i, part in reversed(steps[until:]):
            self._move(i, part)
        return until > 0

    def _targets(self, i: int) -> list[int]:
        here = self.parts[i]
        return [t for t in (here - 1, here + 1) if 0 <= t < len(self.devices) and self._fits(i, t)]

    def total(self) -> float:
        """Bytes that cross, once for each part that reads them."""
        sources = {value: s for u in self.units for s, value in u.reads}
        return sum(
            len({self.parts[r] for r in readers} - {self.parts[sources[value]]}) * _value_bytes(self.costs, value)
            for value, readers in self.of_value.items()
        )

    def _fits(self, i: int, target: int) -> bool:
        part, unit = self.parts[i], self.units[i]
        if self.counts[part] == 1 or self.loads[target] + unit.us * self.speed[target] > self.limit:
            return False
        if target > part and any(self.parts[r] < target for r in self.readers[i]):
            return False
        if target < part and any(self.parts[s] > target for s, _ in unit.reads):
            return False
        room = self.devices[target].memory_bytes
        return not room or self.needs[target] + self._bytes(i) <= room

    def _bytes(self, i: int) -> int:
        unit = self.units[i]
        return sum(unit.weights.values()) + sum(_value_bytes(self.costs, n) for n in unit.node.outputs if n)

    def _gain(self, i: int, target: int) -> float:
        """Bytes that no longer cross."""
        before = self._crossed(i)
        part, self.parts[i] = self.parts[i], target
        after = self._crossed(i)
        self.parts[i] = part
        return before - after

    def _crossed(self, i: int) -> float:
        """Bytes of the values around a node that cross, once for each part that reads them."""
        total = 0
        values = [(s, v) for s, v in self.units[i].reads] + [(i, v) for v in self.units[i].node.outputs]
        for source, value in values:
            targets = {self.parts[r] for r in self.of_value.get(value, ())} - {self.parts[source]}
            total += len(targets) * _value_bytes(self.costs, value)
        return total

    def _move(self, i: int, target: int) -> None:
        part, unit = self.parts[i], self.units[i]
        self.loads[part] -= unit.us * self.speed[part]
        self.loads[target] += unit.us * self.speed[target]
        self.counts[part] -= 1
        self.counts[target] += 1
        self.needs[part] -= self._bytes(i)
        self.needs[target] += self._bytes(i)
        self.parts[i] = target


def _needed(units: Sequence[Unit], costs: GraphCosts, parts: Sequence[int], part: int) -> int:
    """Bytes of a part: its weights once, and the most that is alive of what it makes and reads."""
    own = [i for i, p in enumerate(parts) if p == part]
    weights: dict[str, int] = {}
    last: dict[str, int] = {}
    for i in own:
        weights |= units[i].weights
        last.update((v, i) for _, v in units[i].reads)
    made = {name for i in own for name in units[i].node.outputs}
    ends: dict[int, int] = {}
    for value, at in last.items():
        ends[at] = ends.get(at, 0) + _value_bytes(costs, value)
    live = alive = sum(_value_bytes(costs, v) for v in last if v not in made)
    for i in own:
        live += sum(_value_bytes(costs, n) for n in units[i].node.outputs if n)
        alive = max(alive, live)
        live -= ends.get(i, 0)
    return sum(weights.values()) + alive


def _check_memory(
    units: Sequence[Unit], costs: GraphCosts, devices: Sequence[DeviceSpec], parts: Sequence[int]
) -> None:
    for part, device in enumerate(devices):
        if not device.memory_bytes:
            continue
        need = _needed(units, costs, parts, part)
        if need > device.memory_bytes:
            raise MemoryLimitError(
                f"part {part} needs {need:,} bytes of weights and values; device {device.label!r} has "
                f"{device.memory_bytes:,}. Give more devices, devices with more memory, or smaller requests"
            )
