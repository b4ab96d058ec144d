"""Layout optimisation: convolutions in another order of axes, changes of layout between them cancelled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame_rt.graph import Node
from pyflame_rt.graph.named_arguments import names_arguments
from pyflame_rt.ops.onnx.activation import Relu
from pyflame_rt.ops.onnx.arithmetic import Add, Mul
from pyflame_rt.ops.onnx.conv import Conv
from pyflame_rt.ops.onnx.shape import Transpose
from pyflame_rt.ops.pyflame.fused import (
    ConvNHWC,
    FromNC4HW4,
    FusedAddRelu,
    FusedConvBN,
    FusedConvBNRelu,
    FusedConvRelu,
    ToNC4HW4,
)
from pyflame_rt.opt.base import EditingPass, PassResult, Rewrite
from pyflame_rt.opt.config import Layout, LayoutConfig, check_backend
from pyflame_rt.opt.kinds import is_unary
from pyflame_rt.opt.regions import cancel_changes
from pyflame_rt.opt.rule import all_rules, apply_rules
from pyflame_rt.options import OptLevel

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from pyflame_rt.graph import Graph
    from pyflame_rt.opt.editor import Editor

__all__ = ["LayoutOptimizationPass", "optimize_layout"]

_OWN = "pyflame"
# Convolutions of ours, and the activation each has at its end.
_CONVOLUTIONS = {
    Conv.name: "",
    FusedConvBN.full_name: "",
    FusedConvBNRelu.full_name: Relu.name,
    FusedConvRelu.full_name: Relu.name,
}


class LayoutOptimizationPass(EditingPass):
    """Brings convolutions of images into the layout that is asked for, and cancels changes of layout between them.

    The CPU engine orders axes as it finds best whatever the graph says; ``session.explain()`` shows the layout of
    every step.

    Example:
        >>> LayoutOptimizationPass(LayoutConfig(conv_layout=Layout.NHWC)).should_run(OptLevel.EXTENDED)
        False
    """

    def __init__(self, config: LayoutConfig | None = None) -> None:
        self.config = LayoutConfig() if config is None else config

    def should_run(self, level: OptLevel) -> bool:
        """At ALL only."""
        return level >= OptLevel.ALL

    def edit(self, editor: Editor) -> PassResult:
        """Wrap convolutions, then let changes of layout cancel."""
        wanted = self.config.conv_layout
        result = PassResult(warnings=check_backend(self.config))
        if wanted is Layout.UNKNOWN or not self.config.insert_transposes:
            return result
        for node in editor.walk():
            made = _to_nchw(editor, node) if wanted is Layout.NCHW else _wrapped(editor, node, wanted)
            if made:
                editor.replace([node], made)
                result.rewrites.append(Rewrite(f"layout_{wanted.value.lower()}", (node.name,), _names(made)))
        if self.config.propagate_layout:
            self._propagate(editor, wanted, result)
        _count(result)
        return result

    def _propagate(self, editor: Editor, wanted: Layout, result: PassResult) -> None:
        if wanted is Layout.NC4HW4:
            result.rewrites += cancel_changes(editor, _Blocked())
            return
        names = ("transpose_pair", "transposes_cancel")
        result.rewrites += apply_rules(editor, [r for r in all_rules() if r.name in names]).rewrites


def _count(result: PassResult) -> None:
    result.modified = bool(result.rewrites)
    result.stats.nodes_removed = sum(len(r.removed) for r in result.rewrites)
    result.stats.nodes_added = sum(len(r.made) for r in result.rewrites)


def _names(nodes: list[Node]) -> tuple[str, ...]:
    return tuple(node.name for node in nodes)


def _wrapped(editor: Editor, node: Node, wanted: Layout) -> list[Node]:
    """A convolution of images in another layout, between the changes there and back; nothing for other nodes."""
    activation = _CONVOLUTIONS.get(node.full_name)
    if activation is None:
        return []
    shape, weights = (editor.shape(name) for name in node.inputs[:2])
    if shape is None or weights is None or len(shape) != 4:
        return []
    if wanted is Layout.NC4HW4 and not (isinstance(shape[1], int) and isinstance(weights[0], int)):
        return []
    given: dict[str, Any] = dict(node.attributes)
    if activation:
        given["activation"] = activation
    inner, outer = (editor.fresh(f"{name}/{wanted.value}") for name in (node.inputs[0], node.outputs[0]))
    if wanted is Layout.NC4HW4:
        there = Node(editor.fresh(f"{node.name}/to"), ToNC4HW4.name, [node.inputs[0]], [inner], domain=_OWN)
        back = Node(
            editor.fresh(f"{node.name}/from"),
            FromNC4HW4.name,
            [outer],
            [node.outputs[0]],
            {"channels": weights[0]},
            domain=_OWN,
        )
        given["channels"] = shape[1]
    else:
        there = _transpose(editor, node, node.inputs[0], inner, [0, 2, 3, 1])
        back = _transpose(editor, node, outer, node.outputs[0], [0, 3, 1, 2])
    conv = Node(node.name, f"Conv{wanted.value}", [inner, *node.inputs[1:]], [outer], given, _OWN)
    return [there, conv, back]


def _transpose(editor: Editor, node: Node, source: str, target: str, perm: list[int]) -> Node:
    return Node(editor.fresh(f"{node.name}/Transpose"), Transpose.name, [source], [target], {"perm": perm})


def _to_nchw(editor: Editor, node: Node) -> list[Node]:
    """A convolution that an earlier pass put into another layout, as ONNX has it; nothing for other nodes."""
    if node.full_name != ConvNHWC.full_name or editor.rank(node.inputs[0]) != 4:
        return []
    given = {name: value for name, value in node.attributes.items() if name != "activation"}
    inner, outer = (editor.fresh(f"{name}/NCHW") for name in (node.inputs[0], node.outputs[0]))
    kind, domain = (FusedConvRelu.name, _OWN) if node.get_attr("activation") else (Conv.name, "")
    return [
        _transpose(editor, node, node.inputs[0], inner, [0, 3, 1, 2]),
        Node(node.name, kind, [inner, *node.inputs[1:]], [outer], given, domain),
        _transpose(editor, node, outer, node.outputs[0], [0, 2, 3, 1]),
    ]


class _Blocked:
    """Images with their channels in blocks of four; what fills up the last block may hold anything."""

    name = "blocks_cancel"

    def begins(self, editor: Editor, node: Node) -> Hashable | None:
        return node.get_attr("channels") if node.full_name == FromNC4HW4.full_name else None

    def ends(self, editor: Editor, node: Node, key: Hashable) -> bool:
        shape = editor.shape(node.inputs[0]) if node.full_name == ToNC4HW4.full_name else None
        return shape is not None and len(shape) == 4 and shape[1] == key

    def passes(self, editor: Editor, node: Node, key: Hashable) -> Mapping[str, Any] | None:
        plain = is_unary(node) or (node.full_name in (Add.name, Mul.name, FusedAddRelu.full_name))
        shapes = [editor.shape(name) for name in node.inputs]
        return node.attributes if plain and all(shape == shapes[0] for shape in shapes) else None

    def adapted(self, editor: Editor, name: str, value: str, key: Hashable) -> str | None:
        return None

    def outward(self, editor: Editor, source: str, target: str, key: Hashable) -> Node:
        name = editor.fresh(f"{target}/from")
        return Node(name, FromNC4HW4.name, [source], [target], {"channels": key}, _OWN)


@names_arguments
def optimize_layout(graph: Graph, config: LayoutConfig | None = None) -> PassResult:
    """Bring the convolutions of a graph into a layout, in place.

    Example:
        >>> import numpy as np
        >>> from pyflame_rt.graph import Graph
        >>> g = Graph("g")
        >>> _ = g.add_input("x", [1, 2, 5, 5]), g.add_initializer("w", np.ones((3, 2, 3, 3), np.float32))
        >>> _ = g.add_node("c", "Conv", ["x", "w"], ["y"]), g.add_output("y", [1, 3, 3, 3])
        >>> result = optimize_layout(g, LayoutConfig(conv_layout=Layout.NHWC))
        >>> [node.full_name for node in g.nodes]
        ['Transpose', 'pyflame::ConvNHWC', 'Transpose']
    """
    return LayoutOptimizationPass(config).run(graph)
