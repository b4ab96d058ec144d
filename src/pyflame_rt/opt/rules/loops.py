"""Loop-invariant code: what every turn of a loop computes anew from the same values is computed before it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyflame_rt.graph import Graph, TensorInfo
from pyflame_rt.ops.onnx.activation import LogSoftmax, Softmax
from pyflame_rt.ops.onnx.arithmetic import Div, Mod, Pow
from pyflame_rt.ops.onnx.cast import Cast, Identity
from pyflame_rt.ops.onnx.control import Loop, Scan
from pyflame_rt.ops.onnx.matmul import Gemm, MatMul
from pyflame_rt.ops.onnx.shape import Flatten, Shape, Size, Transpose
from pyflame_rt.opt.base import Rewrite
from pyflame_rt.opt.kinds import is_elementwise
from pyflame_rt.opt.rule import graph_rule

if TYPE_CHECKING:
    from pyflame_rt.graph import Node
    from pyflame_rt.opt.editor import Editor

# Besides elementwise operators: those that refuse nothing once the types of their inputs fit.
_SAFE = frozenset(op.name for op in (Flatten, Gemm, Identity, LogSoftmax, MatMul, Shape, Size, Softmax, Transpose))
# Integers may be divided by zero: nobody asks for that where the loop takes no turn.
_MAY_REFUSE = frozenset({Cast.name, Div.name, Mod.name, Pow.name})


@graph_rule(Loop.name, Scan.name)
def loop_invariants(editor: Editor) -> list[Rewrite]:
    """What a loop computes from values that no turn changes is computed once, before it."""
    done: list[Rewrite] = []
    for node in editor.walk():
        body = node.attributes.get("body")
        if node.full_name in (Loop.name, Scan.name) and isinstance(body, Graph):
            moved = _Moving(editor, node, body).run()
            done += [Rewrite("loop_invariants", (node.name,), tuple(n.name for n in moved))] if moved else []
    return done


class _Moving:
    """Takes nodes out of the body of one loop."""

    def __init__(self, editor: Editor, node: Node, body: Graph) -> None:
        self.editor, self.node, self.body = editor, node, body
        captured = int(node.get_attr("captured", 0))
        inner, outer = (list(names)[-captured:] if captured else [] for names in (_names(body), node.inputs))
        self.outside = dict(zip(inner, outer, strict=True))  # by name in the body: the same value before the loop
        self.own = {name for name in body.initializers if name not in set(_names(body))}

    def run(self) -> list[Node]:
        """The nodes that stand before the loop now, and the loop in another form; none where all stays."""
        moved: list[Node] = []
        kept: list[Node] = []
        place = self.editor
        for inner in self.body.topological_sort():
            new = self._before(inner)
            if new is None:
                kept.append(inner)
                continue
            place.replace([self.node], [new, self.node])
            shape = place.shape(new.outputs[0])
            if shape is None or None in shape:  # it may be refused: it stays where it was
                place.remove(new)
                kept.append(inner)
                continue
            self.outside[inner.outputs[0]] = new.outputs[0]
            moved.append(new)
        if not moved:
            return []
        loop = self._rebuilt(kept)
        place.replace([self.node], [loop])
        return [*moved, loop]

    def _before(self, inner: Node) -> Node | None:
        """A node of the body as it would stand before the loop; None where it depends on the turn."""
        safe = (is_elementwise(inner) and inner.op_type not in _MAY_REFUSE) or inner.full_name in _SAFE
        if not safe or len(inner.outputs) != 1 or not any(name in self.outside for name in inner.inputs):
            return None
        if not all(not name or name in self.outside or name in self.own for name in inner.inputs):
            return None
        inputs = [self._outer(name) for name in inner.inputs]
        editor, hint = self.editor, f"{self.node.name}/{inner.name or inner.op_type}"
        return inner.replace(name=editor.fresh(hint), inputs=inputs, outputs=[editor.fresh(f"{hint}/out")])

    def _outer(self, name: str) -> str:
        if name and name not in self.outside:
            self.outside[name] = self.editor.add_constant(
                f"{self.node.name}/{name}", self.body.initializers[name].stored()
            )
        return self.outside.get(name, "")

    def _rebuilt(self, kept: list[Node]) -> Node:
        """The loop over what is left, reading what was moved as further captures."""
        twin = self.body.copy()
        twin.nodes = kept
        count = int(self.node.get_attr("captured", 0))
        formal = len(self.body.inputs) - count
        old = {info.name: info for info in self.body.inputs[formal:]}
        read = {name for node in kept for name in node.inputs} | {info.name for info in twin.outputs}
        fixed = {info.name for info in self.body.inputs[:formal]} | self.own
        names = [name for name in self.outside if name in read and name not in fixed]
        infos = [old.get(n) or TensorInfo(n, type=self.editor.type(self.outside[n])) for n in names]
        twin.inputs = [*self.body.inputs[:formal], *infos]
        inputs = [*self.node.inputs[: len(self.node.inputs) - count], *(self.outside[n] for n in names)]
        return self.node.replace(
            inputs=inputs, attributes={**self.node.attributes, "body": twin, "captured": len(names)}
        )


def _names(body: Graph) -> list[str]:
    return [info.name for info in body.inputs]
