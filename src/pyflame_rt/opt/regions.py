"""Layout regions: elementwise nodes between a change of layout and the change back, which cancel."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Protocol

from pyflame_rt.graph.records import dataclass
from pyflame_rt.ops.onnx.cast import Identity
from pyflame_rt.opt.base import Rewrite
from pyflame_rt.opt.kinds import is_elementwise

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from pyflame_rt.graph import Node
    from pyflame_rt.opt.editor import Editor

__all__ = ["Change", "cancel_changes"]


class Change(Protocol):
    """A way of laying out values: which nodes bring them there and back."""

    name: str

    def begins(self, editor: Editor, node: Node) -> Hashable | None:
        """What a node does, if it leaves the inner layout; equal keys, equal changes."""
        ...

    def ends(self, editor: Editor, node: Node, key: Hashable) -> bool:
        """Whether a node undoes the change."""
        ...

    def passes(self, editor: Editor, node: Node, key: Hashable) -> Mapping[str, Any] | None:
        """Attributes under which a node computes the same in the inner layout; None where none do."""
        ...

    def adapted(self, editor: Editor, name: str, value: str, key: Hashable) -> str | None:
        """A constant as it is combined with ``value`` in the inner layout; None where that cannot be."""
        ...

    def outward(self, editor: Editor, source: str, target: str, key: Hashable) -> Node:
        """A node that leaves the inner layout."""
        ...


@dataclass(slots=True)
class _Region:
    """Nodes that can work in the inner layout, and the inner value for each value they read from outside."""

    nodes: list[Node]
    starts: dict[str, Node]


def cancel_changes(editor: Editor, change: Change) -> list[Rewrite]:
    """Take out changes of layout that cancel, with elementwise nodes between them; wherever that leaves fewer."""
    done: list[Rewrite] = []
    while True:
        found = _sweep(editor, change)
        done += found
        if not found:
            return done


def _sweep(editor: Editor, change: Change) -> list[Rewrite]:
    """Every region once; those whose nodes were changed with another one wait for the next sweep."""
    begun: dict[Hashable, list[Node]] = {}
    for node in editor.walk():
        key = change.begins(editor, node)
        if key is not None:
            begun.setdefault(key, []).append(node)
    done: list[Rewrite] = []
    for key, starts in begun.items():
        alive = [node for node in starts if node in editor]
        for region in _regions(editor, change, key, alive):
            if all(node in editor for node in (*region.nodes, *region.starts.values())):
                done += _apply(editor, change, key, region)
    return done


def _regions(editor: Editor, change: Change, key: Hashable, starts: list[Node]) -> list[_Region]:
    """Connected nodes that only read what the change made, constants and each other, and lead to where some cancel."""
    source = {node.outputs[0]: node for node in starts}
    inside = _inside(editor, change, key, source)
    useful: set[str] = set()
    for node in sorted((inside | source).values(), key=editor.place, reverse=True):
        name = node.outputs[0]
        # A reader that is useful is inside itself. Where two values of the layout meet, one change of two is left.
        leads = any(change.ends(editor, r, key) or r.outputs[0] in useful for r in editor.readers(name))
        if leads or (name in inside and len({n for n in node.inputs if n in inside or n in source}) > 1):
            useful.add(name)
    return _components({n: inside[n] for n in inside if n in useful}, {n: source[n] for n in source if n in useful})


def _inside(editor: Editor, change: Change, key: Hashable, source: Mapping[str, Node]) -> dict[str, Node]:
    """Nodes that can work in the inner layout, by what they make, in running order; only readers are looked at."""
    inside: dict[str, Node] = {}
    ahead: dict[tuple[int, int], Node] = {}
    places: list[tuple[int, int]] = []

    def meet(name: str) -> None:
        for reader in editor.readers(name):
            place = editor.place(reader)
            if place not in ahead:
                ahead[place] = reader
                heappush(places, place)

    for name in source:
        meet(name)
    while places:
        node = ahead[heappop(places)]
        if _fits(editor, change, key, node, source, inside):
            inside[node.outputs[0]] = node
            meet(node.outputs[0])
    return inside


def _fits(
    editor: Editor, change: Change, key: Hashable, node: Node, source: Mapping[str, Node], inside: Mapping[str, Node]
) -> bool:
    inner = [name for name in node.inputs if name in source or name in inside]
    if not inner or len(node.outputs) != 1 or editor.rank(node.outputs[0]) != editor.rank(inner[0]):
        return False
    if change.passes(editor, node, key) is None:
        return False
    others = [name for name in node.inputs if name and name not in inner]
    return all(_can_adapt(editor, name, inner[0]) for name in others)


def _can_adapt(editor: Editor, name: str, value: str) -> bool:
    array, rank = editor.constant(name), editor.rank(value)
    if array is not None:
        return array.ndim <= (rank or 0)
    shape = editor.static_shape(name)
    return shape is not None and all(n == 1 for n in shape) and len(shape) <= (rank or 0)


def _components(inside: Mapping[str, Node], source: Mapping[str, Node]) -> list[_Region]:
    """Nodes that have a value of the inner layout in common belong together."""
    parent = {name: name for name in (*inside, *source)}

    def root(name: str) -> str:
        while parent[name] != name:
            parent[name] = name = parent[parent[name]]
        return name

    for name, node in inside.items():
        for read in node.inputs:
            if read in parent:
                parent[root(read)] = root(name)
    found: dict[str, _Region] = {}
    for name, node in source.items():
        found.setdefault(root(name), _Region([], {})).starts[name] = node
    for name, node in inside.items():
        if root(name) in found:
            found[root(name)].nodes.append(node)
    return list(found.values())


def _apply(editor: Editor, change: Change, key: Hashable, region: _Region) -> list[Rewrite]:
    """Rewrite a region if fewer changes of layout are left then."""
    made = {node.outputs[0] for node in region.nodes}
    members = set(region.nodes)
    ends = [r for name in (*made, *region.starts) for r in editor.readers(name) if change.ends(editor, r, key)]
    gone = [
        node
        for name, node in region.starts.items()
        if not editor.is_output(name) and all(r in members or r in ends for r in editor.readers(name))
    ]
    leaving = [
        name
        for name in made
        if editor.is_output(name) or any(r not in members and r not in ends for r in editor.readers(name))
    ]
    kept = [node for node in ends if editor.is_output(node.outputs[0])]
    if len(ends) - len(kept) + len(gone) <= len(leaving):
        return []
    adapted = {(n, v): change.adapted(editor, n, v, key) for n, v in _constants(region)}
    if any(new is None for new in adapted.values()):
        return []
    return [_rewrite(editor, change, key, region, ends, leaving, adapted)]


def _constants(region: _Region) -> list[tuple[str, str]]:
    """Constants that nodes of a region read, each with a value it is combined with."""
    inner = {*region.starts, *(node.outputs[0] for node in region.nodes)}
    return [(n, node.outputs[0]) for node in region.nodes for n in node.inputs if n and n not in inner]


def _rewrite(
    editor: Editor,
    change: Change,
    key: Hashable,
    region: _Region,
    ends: list[Node],
    leaving: list[str],
    adapted: Mapping[tuple[str, str], str | None],
) -> Rewrite:
    inner = {name: node.inputs[0] for name, node in region.starts.items()}
    made: list[str] = []
    for node in region.nodes:
        target = node.outputs[0]
        inner[target] = editor.fresh(f"{target}/inner")
        inputs = [inner.get(n) or adapted.get((n, target)) or n for n in node.inputs]
        attributes = change.passes(editor, node, key)
        new = [node.replace(inputs=inputs, outputs=[inner[target]], attributes=attributes)]
        if target in leaving:
            new.append(change.outward(editor, inner[target], target, key))
        editor.replace([node], new)
        made += [n.name for n in new]
    removed = [node.name for node in region.nodes]
    for end in ends:
        now = editor.maker(end.outputs[0])  # it may have been given other inputs
        if now is not None:
            removed.append(now.name)
            made += _replace_end(editor, now, inner)
    for node in region.starts.values():
        if node in editor and not editor.readers(node.outputs[0]) and not editor.is_output(node.outputs[0]):
            editor.remove(node)
            removed.append(node.name)
    return Rewrite(change.name, tuple(removed), tuple(made))


def _replace_end(editor: Editor, end: Node, inner: Mapping[str, str]) -> list[str]:
    source, target = inner[end.inputs[0]], end.outputs[0]
    if not editor.is_output(target):
        editor.substitute(target, source)
        editor.remove(end)
        return []
    same = end.replace(op_type=Identity.name, domain="", inputs=[source], attributes={})
    editor.replace([end], [same])
    return [same.name]


def elementwise_attributes(node: Node) -> Mapping[str, Any] | None:
    """Attributes of an elementwise node, which does not care about the order of axes; None for others."""
    return node.attributes if is_elementwise(node) else None
