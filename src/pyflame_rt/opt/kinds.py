"""Kinds of operators that several rules ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyflame_rt.graph import Node

__all__ = ["is_elementwise", "is_unary"]

_UNARY = frozenset(
    {
        "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BitwiseNot", "Cast", "Ceil", "Celu", "Cos", "Cosh",
        "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "IsInf", "IsNaN", "LeakyRelu", "Log", "Mish",
        "Neg", "Not", "Reciprocal", "Relu", "Round", "Selu", "Shrink", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus",
        "Softsign", "Sqrt", "Swish", "Tan", "Tanh", "ThresholdedRelu",
    }
)  # fmt: skip
_BROADCAST = frozenset(
    {
        "Add", "And", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Clip", "Div", "Equal", "Greater",
        "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Mean", "Min", "Mod", "Mul", "Or", "PRelu", "Pow", "Sub",
        "Sum", "Where", "Xor", "pyflame::FMA", "pyflame::FusedAddRelu",
    }
)  # fmt: skip


def is_unary(node: Node) -> bool:
    """Whether each element of a node's result follows from one element of its only input."""
    return node.full_name in _UNARY


def is_elementwise(node: Node) -> bool:
    """Whether each element of a node's result follows from one element of each input, which are broadcast."""
    return node.full_name in _UNARY or node.full_name in _BROADCAST
