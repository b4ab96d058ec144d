"""Which operators the engine takes, and in which role: what their declarations and their lowerings say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from pyflame_rt.backends.cpu.graph.scalar_exprs import has_rule
from pyflame_rt.graph import DType
from pyflame_rt.ops.onnx.activation import Gelu, GeluSlope
from pyflame_rt.ops.onnx.matmul import MatMulInteger
from pyflame_rt.opt.rules.exact_integers import INTEGER_PRODUCTS, is_kernel_group
from pyflame_rt.opt.specialized_graph import SpecializedNode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyflame_rt.graph import Node
    from pyflame_rt.ops.core.registry import Op
    from pyflame_rt.opt.specialized_graph import SpecializedGraph

    Refusal: TypeAlias = Callable[[SpecializedGraph, SpecializedNode], str]
    Arrays = Mapping[str, np.ndarray[Any, Any]]
    Types = Mapping[str, tuple[DType, tuple[int, ...]]]

__all__ = ["LOOP_TYPES", "SLOPES", "checked_ops", "declare_native", "is_scalar", "keeps", "refusal_of"]

# Derivatives of activations, which are computed with these: the activation each belongs to.
SLOPES = {GeluSlope: Gelu}

# Types of elements that loops load and store; narrow floats are float32 in between.
LOOP_TYPES = frozenset(
    {
        DType.Float32, DType.Float64, DType.Float16, DType.BFloat16, DType.Bool,
        DType.Int8, DType.Int16, DType.Int32, DType.Int64, DType.UInt8, DType.UInt16, DType.UInt32, DType.UInt64,
    }
)  # fmt: skip

_native: dict[Op, Refusal | None] = {}  # by the operator itself: a user's may have its name
_checked: set[str] = set()


def declare_native(op: Op, refuses: Refusal | None, checks: bool) -> None:
    """Note that there is a lowering of an operator.

    Args:
        op: the operator.
        refuses: why it does not take a node, by its attributes and the types and constants of its inputs; empty when
            it may. None for a lowering that says so itself.
        checks: its kernel looks at every index it uses.
    """
    _native[op] = refuses
    if checks:
        _checked.add(op.full_name)


def checked_ops() -> frozenset[str]:
    """Operators whose kernels look at every index they use."""
    return frozenset(_checked)


def is_scalar(op: Op) -> bool:
    """Whether an operator is one scalar expression of a loop: a primitive, or a composition that is kept for that.

    Those of ONNX with a given number of inputs are kept: as one step they also end a product's kernel.
    """
    if not op.composite:
        return bool(op.scalar) and has_rule(op.scalar)
    return op.elementwise and (op in SLOPES or (not op.domain and op.signature.max_inputs is not None))


def keeps(node: Node, op: Op, attributes: Mapping[str, Any], graph: SpecializedGraph) -> bool:
    """Whether a composition is taken whole instead of being opened."""
    if op.full_name in INTEGER_PRODUCTS and not _is_integer_product(node, graph.constants, graph.types):
        return False
    return is_scalar(op) or not refusal_of(graph, SpecializedNode(node, op, attributes))


def refusal_of(graph: SpecializedGraph, step: SpecializedNode) -> str:
    """Why no kernel takes a node, as far as that is known before it is lowered; empty when one may."""
    if step.op not in _native:
        return step.op.host_reason or "no native kernel for this operator"
    refuses = _native[step.op]
    return "" if refuses is None else refuses(graph, step)


def _is_integer_product(node: Node, constants: Arrays, types: Types) -> bool:
    """Whether a MatMulInteger or ConvInteger is one that kernels of integers take: bytes times constant weights."""
    data, factor, zero, shift = (*node.inputs, "", "")[:4]
    if factor not in constants or (shift and shift not in constants):
        return False
    if any(types[n][0] not in (DType.Int8, DType.UInt8) for n in (data, factor)):
        return False
    if zero and int(np.prod(types[zero][1])) != 1:
        return False
    shape, rank = constants[factor].shape, len(types[data][1])
    if node.op_type == MatMulInteger.name:
        return len(shape) == 2 and rank >= 2
    return is_kernel_group(node, shape)
