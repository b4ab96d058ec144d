"""Operator fusion: groups of nodes that one operator stands for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyflame_rt.graph.named_arguments import names_arguments
from pyflame_rt.ops.core.registry import find_op
from pyflame_rt.ops.onnx.conv import Conv
from pyflame_rt.ops.pyflame.fused import FusedConvBN
from pyflame_rt.opt.base import EditingPass, PassResult
from pyflame_rt.opt.config import FusionConfig, check_backend
from pyflame_rt.opt.dead_code import drop_unread
from pyflame_rt.opt.rule import Rule, all_rules, apply_rules
from pyflame_rt.options import OptLevel

if TYPE_CHECKING:
    from pyflame_rt.graph import Graph, Node
    from pyflame_rt.opt.editor import Editor

__all__ = ["OperatorFusionPass", "fuse_operators"]


class OperatorFusionPass(EditingPass):
    """Puts one operator in the place of several: convolutions with what follows, Gemm, Gelu, normalisations, attention.

    Example:
        >>> "conv_bn" in [rule.name for rule in OperatorFusionPass().rules()]
        True
        >>> "conv_bn" in [rule.name for rule in OperatorFusionPass(FusionConfig(strict_math=True)).rules()]
        False
    """

    def __init__(self, config: FusionConfig | None = None) -> None:
        self.config = FusionConfig() if config is None else config

    def should_run(self, level: OptLevel) -> bool:
        """From EXTENDED on."""
        return level >= OptLevel.EXTENDED

    def rules(self) -> list[Rule]:
        """The rules that the settings allow."""
        config = self.config
        off = {name for name, on in _switches(config).items() if not on}
        return [
            r
            for r in all_rules()
            if r.family == "fuse"
            and r.name not in config.disabled
            and r.switch not in off
            and (r.exact or not config.strict_math)
            and not (r.own and config.portable)
        ]

    def edit(self, editor: Editor) -> PassResult:
        """Apply the rules until none applies; nodes that nobody reads would stand in their way."""
        result = PassResult(warnings=check_backend(self.config))
        drop_unread(editor, result)
        result.add(apply_rules(editor, self.rules(), _runs if self.config.check_backend_support else None))
        if self.config.portable:
            _as_onnx(editor)
        return result


def _as_onnx(editor: Editor) -> None:
    """Convolutions with a normalisation in their weights under ONNX's own name."""
    for node in editor.walk():
        if node.full_name == FusedConvBN.full_name:
            editor.replace([node], [node.replace(op_type=Conv.name, domain="")])


def _switches(config: FusionConfig) -> dict[str, bool]:
    """The settings that turn groups of rules on, by the names that rules know them by."""
    return {
        "fuse_activations": config.fuse_activations,
        "fuse_attention": config.fuse_attention,
        "fuse_conv_bn": config.fuse_conv_bn,
        "fuse_conv_bn_activation": config.fuse_conv_bn_activation,
        "fuse_elementwise_activation": config.fuse_elementwise_activation,
        "fuse_matmul_add": config.fuse_matmul_add,
        "fuse_normalization": config.fuse_normalization,
    }


def _runs(node: Node) -> bool:
    """Whether the targets run a node: any operator that is declared, since compositions open everywhere."""
    return find_op(node.op_type, node.domain) is not None


@names_arguments
def fuse_operators(graph: Graph, config: FusionConfig | None = None) -> PassResult:
    """Fuse operators of a graph, in place.

    Example:
        >>> from pyflame_rt.graph import Graph
        >>> g = Graph("g")
        >>> _ = g.add_input("x", [2]), g.add_input("b", [2]), g.add_node("a", "Add", ["x", "b"], ["u"])
        >>> _ = g.add_node("r", "Relu", ["u"], ["y"]), g.add_output("y", [2])
        >>> fuse_operators(g).stats.nodes_fused, g.nodes[0].full_name
        (1, 'pyflame::FusedAddRelu')
    """
    return OperatorFusionPass(config).run(graph)
