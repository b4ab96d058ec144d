"""Which operators the engine takes, and in which role."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame_rt.graph import DType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyflame_rt.ops.core.registry import Op

__all__ = [
    "ACTIVATIONS",
    "ELEMENTWISE",
    "LOOK_THEMSELVES",
    "LOOP_TYPES",
    "OURS",
    "PARAMETERS",
    "SLOPES",
    "VIEWS",
    "WHOLE",
    "keeps",
]

# Primitives that are one scalar expression of their operands.
ELEMENTWISE = frozenset(
    {
        "Abs", "Acos", "Acosh", "Add", "And", "Asin", "Asinh", "Atan", "Atanh", "BitShift", "BitwiseAnd", "BitwiseNot",
        "BitwiseOr", "BitwiseXor", "Cast", "Ceil", "Cos", "Cosh", "Div", "Equal", "Erf", "Exp", "Floor", "Greater",
        "GreaterOrEqual", "IsInf", "IsNaN", "Less", "LessOrEqual", "Log", "Max", "Min", "Mod", "Mul", "Neg", "Not",
        "Or", "Pow", "Round", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Sqrt", "Sub", "Tan", "Tanh", "Where",
        "Xor",
    }
)  # fmt: skip

# Compositions that are one scalar expression too; kept whole so that they fuse into primitives.
ACTIVATIONS = frozenset(
    {
        "Celu", "Clip", "Elu", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish", "PRelu", "Reciprocal", "Relu",
        "Selu", "Shrink", "Softsign", "Swish", "ThresholdedRelu",
    }
)  # fmt: skip

# Derivatives of activations, which are computed with these: the activation each belongs to.
SLOPES = {"pyflame::GeluSlope": "Gelu"}

# Other compositions with a kernel of their own.
WHOLE = frozenset(
    {
        "AveragePool", "ConvInteger", "Flatten", "GRU", "Gemm", "GlobalAveragePool", "GlobalMaxPool",
        "LayerNormalization", "LSTM", "LogSoftmax", "MatMulInteger", "MaxPool", "RMSNormalization", "RNN",
        "SimplifiedLayerNormalization", "Softmax",
    }
)  # fmt: skip

# Compositions of other domains with a kernel, most of them our own.
OURS = frozenset(
    {
        "com.microsoft::MatMulNBits",
        "pyflame::BatchNormSums", "pyflame::BatchStatistics", "pyflame::ClassScore", "pyflame::ClassScoreGrad",
        "pyflame::ConvWeightGrad", "pyflame::GRUResetSteps", "pyflame::GRUSteps", "pyflame::GRUStepsGrad",
        "pyflame::HeadsAttention", "pyflame::HeadsAttentionGrad", "pyflame::LayerNormGrad", "pyflame::LSTMSteps",
        "pyflame::LSTMStepsGrad",
        "pyflame::RNNSteps", "pyflame::RNNStepsGrad", "pyflame::RoundedLSTMSteps",
    }
)  # fmt: skip

# Operators that only say how elements are found.
VIEWS = frozenset({"Expand", "Flatten", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"})

# Operators whose kernels look at every index they use.
LOOK_THEMSELVES = frozenset({"Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND", "TensorScatter"})

# Inputs that say sizes, axes or ways, not data: plans are made for their contents.
PARAMETERS: dict[str, tuple[int, ...]] = {
    "AffineGrid": (1,), "BlackmanWindow": (0,), "CenterCropPad": (1,), "Col2Im": (1, 2), "ConstantOfShape": (0,),
    "CumProd": (1,), "CumSum": (1,), "DFT": (1, 2), "Expand": (1,), "HammingWindow": (0,), "HannWindow": (0,),
    "If": (0,), "MaxUnpool": (2,), "MelWeightMatrix": (0, 1, 2, 3, 4), "OneHot": (1,), "Pad": (1, 3),
    "Range": (0, 1, 2), "ReduceL1": (1,), "ReduceL2": (1,), "ReduceLogSum": (1,), "ReduceLogSumExp": (1,),
    "ReduceMax": (1,), "ReduceMean": (1,), "ReduceMin": (1,), "ReduceProd": (1,), "ReduceSum": (1,),
    "ReduceSumSquare": (1,), "Reshape": (1,), "Resize": (1, 2, 3), "STFT": (1, 3), "Slice": (1, 2, 3, 4),
    "Split": (1,), "Squeeze": (1,), "Tile": (1,), "TopK": (1,), "Trilu": (1,), "Unsqueeze": (1,), "Upsample": (1,),
}  # fmt: skip

# Types of elements that loops load and store; narrow floats are float32 in between.
LOOP_TYPES = frozenset(
    {
        DType.Float32, DType.Float64, DType.Float16, DType.BFloat16, DType.Bool,
        DType.Int8, DType.Int16, DType.Int32, DType.Int64, DType.UInt8, DType.UInt16, DType.UInt32, DType.UInt64,
    }
)  # fmt: skip


def keeps(op: Op, attributes: Mapping[str, Any]) -> bool:
    """Whether a composition is taken whole instead of being opened."""
    if op.domain:
        return op.full_name in OURS or op.full_name in SLOPES
    if op.name in ("LayerNormalization", "RMSNormalization"):
        return attributes.get("stash_type", 1) == 1
    if op.name == "TensorScatter":
        return attributes.get("mode", "linear") == "linear" and attributes.get("axis", -2) == -2
    return op.name in ACTIVATIONS or op.name in WHOLE
