"""Common subexpression elimination: equal nodes, and equal constants, become one."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph import Tensor
from pyflame_rt.graph.graph import node_subgraphs
from pyflame_rt.ops.core.registry import find_op
from pyflame_rt.opt.base import EditingPass, PassResult, Rewrite
from pyflame_rt.opt.config import CSEConfig
from pyflame_rt.options import OptLevel

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyflame_rt.graph import Graph, Node
    from pyflame_rt.opt.editor import Editor

__all__ = ["CSEPass", "eliminate_common_subexpressions"]

# Of large constants that much is looked at before all of it is compared.
_SAMPLE = 1 << 12


class CSEPass(EditingPass):
    """Computes equal things once, and keeps equal constants once.

    Example:
        >>> CSEPass().should_run(OptLevel.BASIC), CSEPass().should_run(OptLevel.EXTENDED)
        (False, True)
    """

    def __init__(self, config: CSEConfig | None = None) -> None:
        self.config = CSEConfig() if config is None else config

    def should_run(self, level: OptLevel) -> bool:
        """From EXTENDED on."""
        return level >= OptLevel.EXTENDED

    def edit(self, editor: Editor) -> PassResult:
        """Merge constants first, then nodes in running order: readers of merged nodes become equal in turn."""
        result = PassResult()
        if editor.has_new_constants:
            _merge_constants(editor, result)
            editor.has_new_constants = False
        seen: dict[Any, list[Node]] = {}
        for node in editor.walk():
            alike = seen.setdefault((node.full_name, node.inputs, len(node.outputs)), [])
            twin = self._twin(editor, node, alike) if alike and self._may_merge(node) else None
            if twin is None:
                alike.append(node)
                continue
            for old, new in zip(node.outputs, twin.outputs, strict=True):
                if old:
                    editor.substitute(old, new)
            editor.remove(node)
            result.modified = True
            result.stats.nodes_removed += 1
            result.rewrites.append(Rewrite("common_subexpression", (node.name, twin.name), (twin.name,)))
        return result

    def _may_merge(self, node: Node) -> bool:
        """Whether nodes of the operator and form of this one give the same when they are given the same."""
        op = find_op(node.op_type, node.domain)
        if op is None or op.random or next(node_subgraphs(node), None) is not None:
            return False
        return not node.attributes or self.config.check_attributes

    def _twin(self, editor: Editor, node: Node, alike: list[Node]) -> Node | None:
        """An earlier node that gives the same, as long as the graph does not give this one's values out."""
        if any(editor.is_output(name) for name in node.outputs):
            return None
        for other in alike[-self.config.max_comparisons :] if self.config.max_comparisons > 0 else ():
            there = all(b or not a for a, b in zip(node.outputs, other.outputs, strict=True))
            if there and same_attributes(node.attributes, other.attributes):
                return other
        return None


def same_attributes(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether two nodes have equal attributes; values of different kinds differ, so do 1 and 1.0."""
    return a.keys() == b.keys() and all(_same(a[name], b[name]) for name in a)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return _same_arrays(a.stored(), b.stored())
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, float) and isinstance(b, float):
        return np.float64(a).tobytes() == np.float64(b).tobytes()
    return type(a) is type(b) and bool(a == b)


def _same_arrays(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    """Whether two arrays agree in every bit."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.dtype == object:
        return bool((a == b).all())
    return a is b or np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()


def _merge_constants(editor: Editor, result: PassResult) -> None:
    """Of equal constants the first one is left."""
    like: dict[Any, list[tuple[str, np.ndarray[Any, Any]]]] = {}
    for name in editor.graph.initializers:
        array = editor.constant(name)
        if array is not None and array.dtype != object and not editor.is_output(name):
            like.setdefault((array.dtype, array.shape), []).append((name, array))
    for group in like.values():
        if len(group) > 1:
            _merge_equal(editor, group, result)


def _merge_equal(editor: Editor, group: list[tuple[str, np.ndarray[Any, Any]]], result: PassResult) -> None:
    seen: dict[int, list[tuple[str, np.ndarray[Any, Any]]]] = {}
    for name, array in group:
        alike = seen.setdefault(_digest(array), [])
        twin = next((other for other, first in alike if _same_arrays(first, array)), None)
        if twin is None:
            alike.append((name, array))
            continue
        editor.substitute(name, twin)
        del editor.graph.initializers[name]
        result.modified = editor.modified = True
        result.stats.initializers_removed += 1


def _digest(array: np.ndarray[Any, Any]) -> int:
    """A checksum of a few of an array's bytes."""
    if array.nbytes <= _SAMPLE:
        return zlib.crc32(np.ascontiguousarray(array).tobytes())
    flat = array.reshape(-1) if array.flags.c_contiguous else array[..., :1].reshape(-1)
    count = max(_SAMPLE // array.itemsize // 2, 1)
    return zlib.crc32(flat[:count].tobytes() + flat[-count:].tobytes())


def eliminate_common_subexpressions(graph: Graph, config: CSEConfig | None = None) -> PassResult:
    """Merge equal nodes and constants of a graph, in place.

    Example:
        >>> from pyflame_rt.graph import Graph
        >>> g = Graph("g")
        >>> _ = g.add_input("x", [2]), g.add_node("a", "Exp", ["x"], ["u"]), g.add_node("b", "Exp", ["x"], ["v"])
        >>> _ = g.add_node("c", "Mul", ["u", "v"], ["y"]), g.add_output("y", [2])
        >>> eliminate_common_subexpressions(g).stats.nodes_removed, g.nodes[-1]
        (1, c: Mul(u, u) -> y)
    """
    return CSEPass(config).run(graph)
