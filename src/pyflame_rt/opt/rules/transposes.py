"""Transposes: pairs become one or none, and those that cancel across elementwise nodes go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from pyflame_rt.graph import Node
from pyflame_rt.ops.onnx.quantize import DequantizeLinear, QuantizeLinear
from pyflame_rt.ops.onnx.shape import Transpose
from pyflame_rt.ops.onnx.slicing import Concat
from pyflame_rt.opt.regions import cancel_changes, elementwise_attributes
from pyflame_rt.opt.rule import Match, NoMatch, graph_rule, rule
from pyflame_rt.opt.rules.reshapes import element_count

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from pyflame_rt.opt.base import Rewrite
    from pyflame_rt.opt.editor import Editor


def permutation(editor: Editor, node: Node) -> tuple[int, ...] | None:
    """The order of axes a Transpose makes; None where the rank is not known."""
    perm = node.get_attr("perm")
    if perm is not None:
        return tuple(perm)
    rank = editor.rank(node.inputs[0])
    return None if rank is None else tuple(reversed(range(rank)))


@rule(lambda op, x: op.Transpose(op.Transpose(x, label="first"), label="second"), family="simplify")
def transpose_pair(m: Match, x: str) -> str | NoMatch:
    """Two transposes are one, or none."""
    first, second = (permutation(m.editor, m.node(label)) for label in ("first", "second"))
    if first is None or second is None:
        return NoMatch("the rank is not known")
    both = [first[axis] for axis in second]
    return x if both == sorted(both) else m.emit(Transpose, [x], {"perm": both})


@rule(lambda op, x: op.Transpose(x), family="simplify")
def transpose_nothing(m: Match, x: str) -> str | NoMatch:
    """A transpose that leaves every axis where it is."""
    perm = permutation(m.editor, m.node("transpose"))
    if perm is None or list(perm) != sorted(perm):
        return NoMatch("axes move")
    return x


@rule(
    lambda op, x, s, t: op.Reshape(op.Transpose(op.Reshape(x, s, label="first")), t, label="last"),
    family="simplify",
)
def transpose_in_batches(m: Match, x: str) -> str | NoMatch:
    """A transpose of the last axes of a value whose first axes are merged before and split after it."""
    before, merged = m.shape(x), m.shape(m.node("first").outputs[0])
    after, perm = m.shape(m.node("last").outputs[0]), m.attr("transpose", "perm")
    if before is None or merged is None or after is None or perm is None:
        return NoMatch("the shapes are not known")
    kept = len(merged) - 1
    lead = len(before) - kept
    if perm[0] != 0 or lead < 1 or merged[1:] != before[lead:] or len(after) != len(before):
        return NoMatch("axes are not merged in front of those that move")
    order = [*range(lead), *(lead + axis - 1 for axis in perm[1:])]
    if None in before or None in merged or tuple(before[axis] for axis in order) != after:
        return NoMatch("axes are split another way, or that is not known")
    if element_count(before) != element_count(merged):
        return NoMatch("whether the first reshape fits is only known when running")
    return m.emit(Transpose, [x], {"perm": order})


class _Transposed:
    """Values with their axes in another order."""

    name = "transposes_cancel"

    def begins(self, editor: Editor, node: Node) -> Hashable | None:
        if node.full_name != Transpose.name:
            return None
        perm = permutation(editor, node)
        return None if perm is None or list(perm) == sorted(perm) else perm

    def ends(self, editor: Editor, node: Node, key: Hashable) -> bool:
        perm = permutation(editor, node) if node.full_name == Transpose.name else None
        return perm is not None and perm == inverse(cast("tuple[int, ...]", key))

    def passes(self, editor: Editor, node: Node, key: Hashable) -> Mapping[str, Any] | None:
        perm = cast("tuple[int, ...]", key)
        if node.full_name == Concat.name:
            return {**node.attributes, "axis": perm[int(node.get_attr("axis", 0))]}
        if node.full_name in (QuantizeLinear.name, DequantizeLinear.name):
            scalar = len(node.inputs) > 1 and editor.static_shape(node.inputs[1]) in ((), (1,))
            return node.attributes if scalar and not node.get_attr("block_size", 0) else None
        return elementwise_attributes(node)

    def adapted(self, editor: Editor, name: str, value: str, key: Hashable) -> str | None:
        array, perm = editor.constant(name), cast("tuple[int, ...]", key)
        if array is None or array.size == 1:
            return name
        full = array.reshape((1,) * (len(perm) - array.ndim) + array.shape)
        return editor.add_constant(f"{name}/turned", np.ascontiguousarray(full.transpose(inverse(perm))))

    def outward(self, editor: Editor, source: str, target: str, key: Hashable) -> Node:
        perm = list(cast("tuple[int, ...]", key))
        return Node(editor.fresh(f"{target}/Transpose"), Transpose.name, [source], [target], {"perm": perm})


def inverse(perm: tuple[int, ...]) -> tuple[int, ...]:
    """The permutation that undoes another."""
    return tuple(perm.index(axis) for axis in range(len(perm)))


@graph_rule(Transpose.name)
def transposes_cancel(editor: Editor) -> list[Rewrite]:
    """Transposes with only elementwise nodes between them cancel, wherever fewer are left then."""
    return cancel_changes(editor, _Transposed())
