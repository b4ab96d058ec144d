"""Narrowing: a graph without some of its channels, with every size that is written in it adjusted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph import Tensor
from pyflame_rt.graph.errors import InvalidModelError
from pyflame_rt.opt.editor import Editor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyflame_rt.graph import Graph, Node
    from pyflame_rt.pruning.coupling import Coupling, Labels

__all__ = ["narrow"]


def narrow(coupling: Coupling, channels: Labels) -> Graph:
    """A copy of the graph that was walked, without these channels."""
    edit = _Narrowing(coupling, channels)
    for adjust in coupling.adjust:
        adjust(edit)
    return edit.finish()


class _Narrowing:
    """The nodes and constants of the graph, while sizes are adjusted."""

    def __init__(self, coupling: Coupling, channels: Labels) -> None:
        self._coupling = coupling
        self._gone = np.zeros(coupling.count, bool)
        self._gone[channels] = True
        self._graph = coupling.graph.copy()
        self._order = coupling.editor.nodes()
        self._now = {id(node): node for node in self._order}
        self._before: dict[int, list[Node]] = {}

    def count(self, labels: Labels | None) -> int:
        """How many indices of an axis stay."""
        return 0 if labels is None else int(self._coupling.kept(labels, self._gone).sum())

    def attribute(self, node: Node, name: str, value: Any) -> None:
        """Give a node another attribute."""
        now = self._now[id(node)]
        self._now[id(node)] = now.replace(attributes={**now.attributes, name: value})

    def constant(self, node: Node, position: int, values: Sequence[int]) -> None:
        """Give a node another list of integers."""
        now = self._now[id(node)]
        old = self._coupling.editor.constant(now.inputs[position])
        if old is not None and old.tolist() == list(values):
            return
        kind = np.int64 if old is None else old.dtype
        inputs = list(now.inputs)
        inputs[position] = self._new(inputs[position], np.array(values, kind))
        self._now[id(node)] = now.replace(inputs=inputs)

    def _new(self, hint: str, array: np.ndarray[Any, Any]) -> str:
        name = self._coupling.editor.fresh(f"{hint}_narrowed")
        self._graph.initializers[name] = Tensor(array)
        return name

    def split(self, node: Node, sizes: Sequence[int]) -> None:
        """Say how wide the parts of a split are."""
        now = self._now[id(node)]
        rest = {name: value for name, value in now.attributes.items() if name != "num_outputs"}
        inputs = [now.inputs[0], self._new(f"{now.outputs[0]}_sizes", np.array(sizes, np.int64))]
        self._now[id(node)] = now.replace(inputs=inputs, attributes=rest)

    def target(self, node: Node, parts: Mapping[str, list[int]], counts: Mapping[int, int]) -> None:
        """Write down the sizes that a reshape asks for; what it copies or works out of the rest stays."""
        now = self._now[id(node)]
        target = now.inputs[1]
        maker = self._coupling.editor.maker(target)
        names = [target] if target in parts or maker is None else list(maker.inputs)
        at, inputs = 0, []
        for name in names:
            if name not in parts:
                at += self._coupling.sizes(name)[0]
                inputs.append(name)
                continue
            sizes = [counts.get(at + k, size) if size > 0 else size for k, size in enumerate(parts[name])]
            at += len(sizes)
            same = self._coupling.editor.ints(name) == sizes
            inputs.append(name if same else self._new(name, np.array(sizes, np.int64)))
        if inputs == names:
            return
        if target in parts:
            shape = inputs[0]
        else:
            assert maker is not None
            shape = self._coupling.editor.fresh(f"{target}_narrowed")
            self._before.setdefault(id(node), []).append(maker.replace(name=shape, inputs=inputs, outputs=[shape]))
        self._now[id(node)] = now.replace(inputs=[now.inputs[0], shape, *now.inputs[2:]])

    def finish(self) -> Graph:
        """The graph, its weights cut; its outputs must have the sizes they had."""
        graph = self._graph
        graph.nodes = [n for node in self._order for n in (*self._before.get(id(node), ()), self._now[id(node)])]
        for slot in self._coupling.slots:
            keep = ~self._gone[slot.labels]
            if not keep.all():
                array = graph.initializers[slot.name].stored()
                graph.initializers[slot.name] = Tensor(np.compress(keep, array, axis=slot.axis))
        self._forget_types(graph)
        self._drop_unread(graph)
        _check(graph)
        return graph

    def _forget_types(self, graph: Graph) -> None:
        for name, axes in self._coupling.known_axes().items():
            if any(labels is not None for labels in axes):
                graph.types.pop(name, None)

    def _drop_unread(self, graph: Graph) -> None:
        used = {name for node in graph.nodes for name in node.inputs} | {info.name for info in graph.outputs}
        given = {info.name for info in graph.inputs}
        was_read = {name for node in self._coupling.graph.nodes for name in node.inputs}
        graph.initializers = {
            name: tensor
            for name, tensor in graph.initializers.items()
            if name in used or name in given or name not in was_read
        }


def _check(graph: Graph) -> None:
    """What was worked out of the narrowed graph must agree with its declared outputs."""
    editor = Editor(graph.copy())
    declared = {info.name: info for info in graph.outputs}
    for node in editor.nodes():
        for name in filter(None, node.outputs):
            if editor.type(name) is None and name in declared and declared[name].shape is not None:
                continue
            info, found = declared.get(name), editor.shape(name)
            if info is None or found is None or info.shape is None:
                continue
            if len(found) != len(info.shape) or any(
                isinstance(a, int) and isinstance(b, int) and a != b for a, b in zip(found, info.shape, strict=True)
            ):
                raise InvalidModelError(
                    f"graph {graph.name!r}: after narrowing, output {name!r} would have the shape {list(found)} "
                    f"in place of {list(info.shape)}; exclude the layers before it"
                )
