"""Dead code elimination: nodes, outputs and constants that nothing reads, and nodes that do nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyflame_rt.graph.named_arguments import names_arguments
from pyflame_rt.ops.onnx.cast import Identity
from pyflame_rt.ops.onnx.loss import Dropout
from pyflame_rt.ops.onnx.maxpool import MaxPool
from pyflame_rt.ops.onnx.norm import BatchNormalization, LayerNormalization
from pyflame_rt.opt.base import EditingPass, PassResult, Rewrite
from pyflame_rt.opt.config import DCEConfig

if TYPE_CHECKING:
    from pyflame_rt.graph import Graph, Node
    from pyflame_rt.opt.editor import Editor

__all__ = ["DeadCodeEliminationPass", "drop_unread", "eliminate_dead_code"]

# Operators that may do nothing.
_IDLE = frozenset({Identity.name, Dropout.name})
# Operators whose further outputs may be left out, and are then not computed.
_OPTIONAL_OUTPUTS = frozenset({BatchNormalization.name, Dropout.name, LayerNormalization.name, MaxPool.name})


class DeadCodeEliminationPass(EditingPass):
    """Removes nodes and constants nobody reads, Identity, and Dropout outside training.

    Example:
        >>> DeadCodeEliminationPass().name()
        'DeadCodeEliminationPass'
    """

    def __init__(self, config: DCEConfig | None = None) -> None:
        self.config = DCEConfig() if config is None else config

    def edit(self, editor: Editor) -> PassResult:
        """Remove from the end: what only the dead read is dead."""
        result = PassResult()
        drop_unread(editor, result)
        for node in editor.walk():
            if node.op_type in _IDLE and self._does_nothing(editor, node):
                self._bypass(editor, node, result)
        drop_unread(editor, result)
        if self.config.remove_initializers:
            _drop_initializers(editor, result)
        return result

    def _does_nothing(self, editor: Editor, node: Node) -> bool:
        if node.domain or not node.inputs or not node.inputs[0]:
            return False
        if node.op_type == Identity.name:
            return self.config.remove_identity
        if not self.config.remove_dropout:
            return False
        training = node.inputs[2] if len(node.inputs) > 2 else ""
        unread = not any(n and editor.is_seen(n) for n in node.outputs[1:])
        return unread and (not training or editor.scalar(training) in (False, 0))

    def _bypass(self, editor: Editor, node: Node, result: PassResult) -> None:
        """Readers read what went in; a graph's output is made by whoever made that."""
        source, target = node.inputs[0], node.outputs[0]
        if not editor.is_output(target):
            editor.substitute(target, source)
            editor.remove(node)
            _removed(result, node, node.op_type.lower())
            return
        maker = editor.maker(source)
        if maker is None or editor.is_output(source):
            return
        editor.remove(node)
        editor.rename(maker, source, target)
        _removed(result, node, node.op_type.lower())


def drop_unread(editor: Editor, result: PassResult) -> None:
    """Remove nodes, and last outputs of nodes, that nobody reads."""
    for node in reversed(editor.nodes()):
        if len(node.outputs) == 1 and node.outputs[0] and editor.is_seen(node.outputs[0]):
            continue
        live = [bool(n) and editor.is_seen(n) for n in node.outputs]
        if True not in live:
            editor.remove(node)
            _removed(result, node, "dead_code")
        elif not live[-1] and not node.domain and node.op_type in _OPTIONAL_OUTPUTS:
            last = max(i for i, alive in enumerate(live) if alive)
            editor.replace([node], [node.replace(outputs=node.outputs[: last + 1])])
            result.modified = True
            result.rewrites.append(Rewrite("dead_outputs", (node.name,), (node.name,)))


def _removed(result: PassResult, node: Node, rule: str) -> None:
    result.modified = True
    result.stats.nodes_removed += 1
    result.rewrites.append(Rewrite(rule, (node.name,)))


def _drop_initializers(editor: Editor, result: PassResult) -> None:
    graph = editor.graph
    kept = {info.name for info in graph.inputs}
    for name in [n for n in graph.initializers if n not in kept and not editor.is_seen(n)]:
        del graph.initializers[name]
        graph.types.pop(name, None)
        result.stats.initializers_removed += 1
        result.modified = editor.modified = True


@names_arguments
def eliminate_dead_code(graph: Graph, config: DCEConfig | None = None) -> PassResult:
    """Remove dead code from a graph, in place.

    Example:
        >>> from pyflame_rt.graph import Graph
        >>> g = Graph("g")
        >>> _ = g.add_input("x", [2]), g.add_output("y", [2])
        >>> _ = g.add_node("used", "Neg", ["x"], ["y"]), g.add_node("unused", "Exp", ["x"], ["z"])
        >>> eliminate_dead_code(g).stats.nodes_removed, g.nodes
        (1, [used: Neg(x) -> y])
    """
    return DeadCodeEliminationPass(config).run(graph)
