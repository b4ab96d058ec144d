"""Numbers of double precision beside a device that has none: what only they are made of is computed by the host first.

Optimizers keep learning rates and step counters so, whatever the parameters are.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyflame_rt.executable import Executable, Placement, RunHooks
from pyflame_rt.graph import DType, Graph, TensorInfo, TensorType

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyflame_rt.graph import Node

__all__ = ["HostFirst", "split_off"]


class HostFirst(Executable):
    """An executable of two: the host's values are inputs of the device."""

    fresh_outputs = True

    def __init__(self, first: Graph, rest: Graph, compiled: Callable[[Graph, bool], Executable]) -> None:
        self._first, self._rest = first, rest
        self._made = {name for node in first.nodes for name in node.outputs}
        self._host = compiled(first, True)
        self._device = compiled(rest, False) if rest.nodes else None

    def run(self, feeds: Mapping[str, Any], output_names: Sequence[str], hooks: RunHooks) -> list[Any]:
        """Outputs, then taps."""
        asked = [*output_names, *hooks.taps]
        names = [info.name for info in self._first.outputs]
        more = [n for n in hooks.taps if n in self._made and n not in names]
        given = {info.name: feeds[info.name] for info in self._first.inputs}
        found = dict(zip([*names, *more], self._host.run(given, names, replace(hooks, taps=more)), strict=True))
        wanted = [n for n in output_names if n not in self._made]
        taps = [n for n in hooks.taps if n not in self._made]
        if self._device is not None and (wanted or taps):
            known = {**feeds, **found}
            given = {info.name: known[info.name] for info in self._rest.inputs}
            results = self._device.run(given, wanted, replace(hooks, taps=taps))
            found |= dict(zip([*wanted, *taps], results, strict=True))
        return [found[name] for name in asked]

    def placements(self) -> list[Placement]:
        """The host's nodes, then the device's."""
        return [p for part in self._parts() for p in part.placements()]

    def memory(self) -> dict[str, int]:
        """Bytes of both."""
        total: dict[str, int] = {}
        for part in self._parts():
            for name, count in part.memory().items():
                total[name] = total.get(name, 0) + count
        return total

    def close(self) -> None:
        """Give back what both hold."""
        for part in self._parts():
            part.close()

    def let_go(self) -> None:
        """The same, when no run is under way."""
        for part in self._parts():
            part.let_go()

    def _parts(self) -> list[Executable]:
        return [self._host] if self._device is None else [self._host, self._device]


def split_off(graph: Graph) -> tuple[Graph, Graph] | None:
    """The nodes that read or make doubles and need nothing of the others, and the rest; None if there are none."""
    types = {info.name: info.type for info in graph.inputs} | graph.types
    doubles = {n for n, t in types.items() if isinstance(t, TensorType) and t.dtype is DType.Float64}
    doubles |= {n for n, tensor in graph.initializers.items() if tensor.dtype is DType.Float64}
    known = {*(info.name for info in graph.inputs), *graph.initializers, ""}
    first: list[Node] = []
    for node in graph.nodes:
        if not doubles.isdisjoint((*node.inputs, *node.outputs)) and known.issuperset(node.inputs):
            first.append(node)
            known.update(node.outputs)
    if not first:
        return None
    chosen = {id(node) for node in first}
    rest = [node for node in graph.nodes if id(node) not in chosen]
    made = {name for node in first for name in node.outputs}
    outputs = {info.name for info in graph.outputs}
    needed = made & (outputs | {name for node in rest for name in node.inputs})
    return (
        _part(graph, first, types, sorted(needed)),
        _part(graph, rest, types, [info.name for info in graph.outputs if info.name not in made]),
    )


def _part(graph: Graph, nodes: Sequence[Node], types: Mapping[str, Any], outputs: Sequence[str]) -> Graph:
    part = Graph(graph.name)
    made = {name for node in nodes for name in node.outputs}
    for name in dict.fromkeys(n for node in nodes for n in node.inputs if n and n not in made):
        if name in graph.initializers:
            part.add_initializer(name, graph.initializers[name])
        else:
            part.add_input(TensorInfo(name, type=types[name]))
    part.nodes.extend(nodes)
    part.types.update({name: t for name, t in graph.types.items() if name in made})
    for name in outputs:
        part.add_output(TensorInfo(name, type=types[name]))
    return part
