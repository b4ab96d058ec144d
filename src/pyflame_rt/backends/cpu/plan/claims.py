"""Which operators the engine takes, and in which role."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame_rt.graph import DType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyflame_rt.ops.registry import Op

__all__ = ["ACTIVATIONS", "ELEMENTWISE", "LOOP_TYPES", "VIEWS", "WHOLE", "keeps"]

# Primitives that are one scalar expression of their operands.
ELEMENTWISE = frozenset(
    {
        "Abs", "Add", "And", "Cast", "Ceil", "Cos", "Div", "Equal", "Erf", "Exp", "Floor", "Greater", "GreaterOrEqual",
        "IsInf", "IsNaN", "Less", "LessOrEqual", "Log", "Max", "Min", "Mod", "Mul", "Neg", "Not", "Or", "Pow", "Round",
        "Sigmoid", "Sign", "Sin", "Softplus", "Sqrt", "Sub", "Tanh", "Where", "Xor",
    }
)  # fmt: skip

# Compositions that are one scalar expression too; kept whole so that they fuse into primitives.
ACTIVATIONS = frozenset(
    {
        "Celu", "Clip", "Elu", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish", "PRelu", "Reciprocal", "Relu",
        "Selu", "Shrink", "Softsign", "Swish", "ThresholdedRelu",
    }
)  # fmt: skip

# Other compositions with a kernel of their own.
WHOLE = frozenset(
    {
        "AveragePool", "Flatten", "GRU", "Gemm", "GlobalAveragePool", "GlobalMaxPool", "LayerNormalization",
        "LSTM", "LogSoftmax", "MaxPool", "RMSNormalization", "RNN", "SimplifiedLayerNormalization", "Softmax",
    }
)  # fmt: skip

# Operators that only say how elements are found.
VIEWS = frozenset({"Expand", "Flatten", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"})

LOOP_TYPES = frozenset({DType.Float32, DType.Float64, DType.Int32, DType.Int64, DType.Bool, DType.Int8, DType.UInt8})


def keeps(op: Op, attributes: Mapping[str, Any]) -> bool:
    """Whether a composition is taken whole instead of being opened."""
    if op.domain:
        return False
    if op.name in ("LayerNormalization", "RMSNormalization"):
        return attributes.get("stash_type", 1) == 1
    return op.name in ACTIVATIONS or op.name in WHOLE
