"""Simplification: exact rules that leave fewer steps of the same kinds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyflame_rt.graph.named_arguments import names_arguments
from pyflame_rt.opt.base import EditingPass, PassResult
from pyflame_rt.opt.rule import all_rules, apply_rules

if TYPE_CHECKING:
    from collections.abc import Collection

    from pyflame_rt.graph import Graph
    from pyflame_rt.opt.editor import Editor

__all__ = ["SimplificationPass", "simplify"]


class SimplificationPass(EditingPass):
    """Cancels and merges what exporters write out: transposes, reshapes, casts, sizes, constant branches.

    Example:
        >>> SimplificationPass(disabled=["transpose_pair"]).name()
        'SimplificationPass'
    """

    @names_arguments
    def __init__(self, disabled: Collection[str] = ()) -> None:
        self.disabled = frozenset(disabled)

    def edit(self, editor: Editor) -> PassResult:
        """Apply the rules until none applies."""
        rules = [r for r in all_rules() if r.family == "simplify" and r.name not in self.disabled]
        return apply_rules(editor, rules)


def simplify(graph: Graph) -> PassResult:
    """Apply the exact rules to a graph, in place.

    Example:
        >>> from pyflame_rt.graph import Graph
        >>> g = Graph("g")
        >>> _ = g.add_input("x", [2, 3]), g.add_output("y", [2, 3])
        >>> _ = g.add_node("a", "Transpose", ["x"], ["t"], perm=[1, 0])
        >>> _ = g.add_node("b", "Transpose", ["t"], ["u"], perm=[1, 0])
        >>> _ = g.add_node("c", "Neg", ["u"], ["y"])
        >>> simplify(g).stats.nodes_removed, g.nodes
        (2, [c: Neg(x) -> y])
    """
    return SimplificationPass().run(graph)
