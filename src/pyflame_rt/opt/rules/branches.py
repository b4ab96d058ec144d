"""If nodes whose condition is a constant: the branch that is taken stands in their place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyflame_rt.graph import Graph, Node
from pyflame_rt.ops.onnx.cast import Identity
from pyflame_rt.ops.onnx.control import If
from pyflame_rt.opt.base import Rewrite
from pyflame_rt.opt.rule import graph_rule

if TYPE_CHECKING:
    from pyflame_rt.opt.editor import Editor


@graph_rule(If.name)
def constant_branch(editor: Editor) -> list[Rewrite]:
    """An If whose condition is a constant is the branch it takes."""
    done: list[Rewrite] = []
    for node in editor.walk():
        if node.full_name != If.name:
            continue
        condition = editor.constant(node.inputs[0])
        if condition is None or condition.size != 1:
            continue
        branch = node.attributes["then_branch" if condition.any() else "else_branch"]
        if isinstance(branch, Graph) and len(branch.inputs) == len(node.inputs) - 1:
            made = _inlined(editor, node, branch)
            editor.replace([node], made)
            done.append(Rewrite("constant_branch", (node.name,), tuple(n.name for n in made)))
    return done


def _inlined(editor: Editor, node: Node, branch: Graph) -> list[Node]:
    """The nodes of a branch over the values an If reads, making the values it made."""
    names = {"": ""} | {info.name: given for info, given in zip(branch.inputs, node.inputs[1:], strict=True)}
    for name, tensor in branch.initializers.items():
        if name not in names:
            names[name] = editor.add_constant(f"{node.name}/{name}", tensor.stored())

    def place(name: str) -> str:
        if name not in names:
            names[name] = editor.fresh(f"{node.name}/{name}")
        return names[name]

    made = [
        inner.replace(
            name=editor.fresh(f"{node.name}/{inner.name or inner.op_type}"),
            inputs=map(place, inner.inputs),
            outputs=map(place, inner.outputs),
        )
        for inner in branch.topological_sort()
    ]
    for info, target in zip(branch.outputs, node.outputs, strict=False):
        if target:
            made.append(Node(editor.fresh(f"{node.name}/out"), Identity.name, [place(info.name)], [target]))
    return made
