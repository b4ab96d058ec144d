"""Kinds of operators that several rules ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyflame_rt.ops.core.registry import find_op

if TYPE_CHECKING:
    from pyflame_rt.graph import Node

__all__ = ["is_elementwise", "is_unary"]


def is_unary(node: Node) -> bool:
    """Whether each element of a node's result follows from one element of its only input."""
    op = find_op(node.op_type, node.domain)
    return op is not None and op.elementwise and op.signature.max_inputs == 1


def is_elementwise(node: Node) -> bool:
    """Whether each element of a node's result follows from one element of each input, which are broadcast."""
    op = find_op(node.op_type, node.domain)
    return op is not None and op.elementwise
