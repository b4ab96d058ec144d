"""From graphs to boxes and arrows: which there are once modules are folded."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyflame_rt.graph import TensorType
from pyflame_rt.ops.core.registry import find_op

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyflame_rt.graph import Graph, Node

__all__ = ["Box", "Drawing", "drawing_of", "fold", "kind_of"]


def kind_of(node: Node) -> str:
    """The family that a node is coloured by."""
    op = find_op(node.op_type, node.domain)
    return "plain" if op is None else op.kind


@dataclass(slots=True)
class Box:
    """One thing to draw.

    Attributes:
        key: unique in the drawing.
        title: what it is.
        lines: small print below: sizes, element types.
        kind: what it is coloured by.
        path: modules it lies in, outermost first.
        tip: everything else that is known.
        count: operators it stands for; 0 for inputs, outputs and weights.
    """

    key: str
    title: str
    lines: tuple[str, ...] = ()
    kind: str = "plain"
    path: tuple[str, ...] = ()
    tip: str = ""
    count: int = 1


@dataclass(slots=True)
class Drawing:
    """Boxes and arrows; an arrow is (from, to, what flows)."""

    title: str
    boxes: dict[str, Box] = field(default_factory=dict)
    arrows: list[tuple[str, str, str]] = field(default_factory=list)

    @property
    def depth(self) -> int:
        """How deep modules lie in each other."""
        return max((len(box.path) for box in self.boxes.values()), default=0)


def drawing_of(graph: Graph, *, shapes: bool = True, dtypes: bool = True, weights: bool = False) -> Drawing:
    """What is to be drawn of a graph, nothing folded.

    Args:
        graph: of the runtime.
        shapes: show sizes.
        dtypes: show element types.
        weights: draw initializers as boxes of their own; else they are named in their reader's tip.
    """
    made = Drawing(graph.name)
    types = {**graph.types, **{info.name: info.type for info in (*graph.inputs, *graph.outputs)}}
    types |= {name: TensorType(t.dtype, t.shape) for name, t in graph.initializers.items()}

    def text(value: str) -> str:
        return _described(types.get(value), shapes, dtypes)

    sources: dict[str, str] = {}
    for info in graph.inputs:
        if info.name in graph.initializers:
            continue
        sources[info.name] = f"in:{info.name}"
        made.boxes[sources[info.name]] = Box(sources[info.name], info.name, _lines(text(info.name)), "input", count=0)
    for number, node in enumerate(graph.nodes):
        key = f"n{number}"
        made.boxes[key] = _node_box(key, node, graph, text)
        sources |= dict.fromkeys((o for o in node.outputs if o), key)
    for number, node in enumerate(graph.nodes):
        for value in dict.fromkeys(v for v in node.inputs if v):
            if weights and value in graph.initializers and value not in sources:
                key = sources[value] = f"w:{value}"
                path = made.boxes[f"n{number}"].path
                made.boxes[key] = Box(key, value, _lines(text(value)), "weight", path, count=0)
            if value in sources:
                made.arrows.append((sources[value], f"n{number}", f"{value} {text(value)}".strip()))
    for info in graph.outputs:
        key = f"out:{info.name}"
        made.boxes[key] = Box(key, info.name, _lines(text(info.name)), "output", count=0)
        if info.name in sources:
            made.arrows.append((sources[info.name], key, text(info.name)))
    return made


def _lines(text: str) -> tuple[str, ...]:
    return (text,) if text else ()


def _node_box(key: str, node: Node, graph: Graph, text: Any) -> Box:
    path = tuple(part for part in node.name.split("/")[:-1] if part)
    first = next((o for o in node.outputs if o), "")
    weights = [f"{v}: {text(v)}" for v in node.inputs if v in graph.initializers]
    attributes = [f"{name} = {_short(value)}" for name, value in node.attributes.items()]
    tip = "\n".join([f"{node.full_name} {node.name}", *weights, *attributes])
    return Box(key, node.op_type, _lines(text(first)), kind_of(node), path, tip)


def _short(value: Any, most: int = 80) -> str:
    text = str(value)
    return text if len(text) <= most else f"{text[:most]}..."


def _described(kind: Any, shapes: bool, dtypes: bool) -> str:
    if not isinstance(kind, TensorType):
        return ""
    sizes = (
        "" if kind.shape is None or not shapes else "x".join("?" if d is None else str(d) for d in kind.shape) or "1"
    )
    return " ".join(part for part in (sizes, kind.dtype.label if dtypes else "") if part)


def fold(drawing: Drawing, folded: Iterable[tuple[str, ...]]) -> Drawing:
    """The drawing with modules as single boxes.

    Args:
        drawing: nothing folded.
        folded: paths of modules; what lies in them becomes one box.
    """
    closed = set(folded)
    homes: dict[str, str] = {}
    made = Drawing(drawing.title)
    for key, box in drawing.boxes.items():
        outer = next((box.path[:n] for n in range(1, len(box.path) + 1) if box.path[:n] in closed), None)
        if outer is None:
            homes[key] = key
            made.boxes[key] = box
            continue
        home = homes[key] = "m:" + "/".join(outer)
        group = made.boxes.setdefault(home, Box(home, ".".join(outer), (), "module", outer[:-1], count=0))
        group.count += box.count
        group.lines = (f"{group.count} operators",)
    seen: set[tuple[str, str]] = set()
    for source, target, what in drawing.arrows:
        pair = (homes[source], homes[target])
        if pair[0] != pair[1] and pair not in seen:
            seen.add(pair)
            made.arrows.append((*pair, what))
    return made


def module_paths(drawing: Drawing) -> set[tuple[str, ...]]:
    """All modules of a drawing."""
    return {box.path[:n] for box in drawing.boxes.values() for n in range(1, len(box.path) + 1)}
