"""Element types that must agree: inputs of a node that share a type parameter of its operator."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from pyflame_rt.graph import DType, Graph, Tensor, TensorType
from pyflame_rt.graph.errors import DTypeMismatchError
from pyflame_rt.graph.graph import node_subgraphs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyflame_rt.graph import Node

__all__ = ["check_types"]

# ONNX's type parameters of inputs and outputs, and the operators that have them: a capital is a parameter, other words
# are element types, "?" may be something else than a tensor, a star repeats.
_RULES = {
    "T > T": (
        "Abs Acos Acosh Asin Asinh Atan Atanh AveragePool BitwiseNot Ceil Celu Cos Cosh DepthToSpace Det Elu "
        "Erf Exp Flatten Floor Gelu GlobalAveragePool GlobalLpPool GlobalMaxPool HardSigmoid HardSwish "
        "Hardmax LRN LeakyRelu Log LogSoftmax LpNormalization LpPool MeanVarianceNormalization Mish Neg "
        "Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh Softmax Softplus Softsign SpaceToDepth Sqrt "
        "Swish Tan Tanh ThresholdedRelu Transpose "
    ),
    "T T > T": "Add BitShift BitwiseAnd BitwiseOr BitwiseXor Div MatMul MaxRoiPool Mod Mul PRelu Sub SwiGLU",
    "T1 int64 > T1": "AffineGrid",
    "bool bool > bool": "And Or Xor",
    "T > int64": "ArgMax ArgMin NonZero Shape Size",
    "T1 T1 T2 U T1 T2 int64 > T1 T1 T2 T1": "Attention",
    "T T1 T1 T2 T2 > T T2 T2": "BatchNormalization",
    "T1 T2 > T2": "CastLike",
    "T T T T > T T": "CausalConvWithState",
    "T Tind > T": "CenterCropPad Gather GatherElements",
    "T T T > T": "Clip Conv ConvTranspose Gemm GroupNormalization InstanceNormalization Range",
    "T int64 int64 > T": "Col2Im",
    "T bool > T": "Compress",
    "T* > T": "Concat Einsum Max Mean Min Sum",
    "T1 T2 T1 T2 > int32": "ConvInteger MatMulInteger",
    "T T2 > T": "CumProd CumSum",
    "T1 T2 int64 > T1": "DFT",
    "T T T T T > T": "DeformConv",
    "T1 T2 T1 > T3": "DequantizeLinear",
    "T T1 bool > T bool": "Dropout",
    "float32 > uint8 float32 uint8": "DynamicQuantizeLinear",
    "T T > bool": "Equal Greater GreaterOrEqual Less LessOrEqual",
    "T int64 > T": (
        "Expand GatherND ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin "
        "ReduceProd ReduceSum ReduceSumSquare Reshape ReverseSequence Squeeze Tile Trilu Unsqueeze "
    ),
    "T T T T int32 T > T T": "GRU RNN",
    "T1 T2 > T1": "GridSample",
    "uint8 > uint8": "ImageDecoder",
    "T1 > bool": "IsInf IsNaN",
    "T T T T int32 T T T > T T T": "LSTM",
    "T T T > T U U": "LayerNormalization",
    "T T T S T T > T S": "LinearAttention",
    "T > T int64": "MaxPool",
    "T1 int64 int64 > T1": "MaxUnpool",
    "T1 T1 T1 T2 T2 > T3": "MelWeightMatrix",
    "T Tind T > T": "NegativeLogLikelihoodLoss ScatterElements",
    "float32 float32 int64 float32 float32 > int64": "NonMaxSuppression",
    "bool > bool": "Not",
    "T1 T2 T3 > T3": "OneHot QuantizeLinear",
    "? > bool": "OptionalHasElement",
    "T int64 T Tind > T": "Pad",
    "T T1 > T": "Pow",
    "T1 float32 T1 T2 float32 T2 float32 T3 int32 > T3": "QLinearConv",
    "T1 TS T1 T2 TS T2 TS T3 > T3": "QLinearMatMul",
    "T V > V": "RMSNormalization",
    "string > bool": "RegexFullMatch",
    "T1 T2 float32 int64 > T1": "Resize",
    "T1 T1 int64 > T1": "RoiAlign",
    "T T T int64 > T": "RotaryEmbedding",
    "T1 T2 T1 T2 > T1": "STFT",
    "T int64 T > T": "ScatterND",
    "T* > ?": "SequenceConstruct",
    "? > int64": "SequenceLength",
    "T Tind Tind Tind Tind > T": "Slice",
    "T Tind T > T T": "SoftmaxCrossEntropyLoss",
    "T int64 > T*": "Split",
    "string string > string": "StringConcat",
    "string > string": "StringNormalizer",
    "string > string int64": "StringSplit",
    "T T int64 > T": "TensorScatter",
    "T > float32": "TfIdfVectorizer",
    "T int64 > T int64": "TopK",
    "T > T int64 int64 int64": "Unique",
    "bool T T > T": "Where",
}
_ANYTHING = "?"
_PLAIN = frozenset({"Cast", "Constant", "Identity"})
_BODIES = frozenset({"If", "Loop", "Scan", "SequenceMap"})


class _Rule(NamedTuple):
    """What positions say: a parameter's name, an element type, None for nothing; ``more`` is for positions beyond."""

    inputs: tuple[str | None, ...]
    more: str | None
    outputs: tuple[str | DType | None, ...]


@cache
def _rules() -> dict[str, _Rule]:
    rules = {}
    for text, names in _RULES.items():
        inputs, outputs = (side.split() for side in text.split(">"))
        taken = [_said(word) for word in inputs]
        more = taken[-1] if inputs[-1].endswith("*") else None
        rule = _Rule(
            tuple(word if isinstance(word, str) else None for word in taken),
            more if isinstance(more, str) else None,
            tuple(map(_said, outputs)),
        )
        rules |= dict.fromkeys(names.split(), rule)
    return rules


def _said(word: str) -> str | DType | None:
    plain = word.rstrip("*")
    return plain if plain[0].isupper() else None if plain == _ANYTHING else DType.of(plain)


def check_types(graph: Graph) -> None:
    """Refuse a graph in which inputs of a node differ that must be of one element type, as far as types are known.

    Types are followed in the order the nodes are in, which in files is that in which they run.

    Raises:
        DTypeMismatchError: Names the node, its operator, both inputs and both types.

    Example:
        >>> g = Graph("g")
        >>> _ = g.add_input("x", [2], DType.Float32), g.add_input("w", [2], DType.Float64)
        >>> _ = g.add_node("sum", "Add", ["x", "w"], ["y"])
        >>> check_types(g)
        Traceback (most recent call last):
        ...
        pyflame_rt.graph.errors.DTypeMismatchError: node 'sum' (Add): inputs that must be of one element type (T) ...
    """
    known = {info.name: info.type.dtype for info in graph.inputs if isinstance(info.type, TensorType)}
    _check(graph, known)


def _check(graph: Graph, outer: Mapping[str, DType]) -> None:
    known = dict(outer)
    known.update((name, tensor.dtype) for name, tensor in graph.initializers.items())
    rules = _rules()
    for node in graph.nodes:
        rule = rules.get(node.op_type) if not node.domain else None
        if rule is not None:
            _check_node(node, rule, known)
        elif node.op_type in _PLAIN and not node.domain:
            _note(node, known)
        elif node.op_type in _BODIES:
            for body in node_subgraphs(node):
                taken = {info.name for info in body.inputs}.difference(node.inputs)  # what is captured keeps its name
                _check(body, {name: dtype for name, dtype in known.items() if name not in taken})


def _check_node(node: Node, rule: _Rule, known: dict[str, DType]) -> None:
    found: dict[str, DType] = {}
    words, count = rule.inputs, len(rule.inputs)
    for position, name in enumerate(node.inputs):
        word = words[position] if position < count else rule.more
        dtype = known.get(name)
        if word is None or dtype is None:
            continue
        before = found.get(word)
        if before is None:
            found[word] = dtype
        elif before is not dtype:
            _refuse(node, rule, word, known)
    for name, made in zip(node.outputs, rule.outputs, strict=False):
        dtype = found.get(made) if isinstance(made, str) else made
        if dtype is not None:
            known[name] = dtype


def _refuse(node: Node, rule: _Rule, word: str, known: Mapping[str, DType]) -> None:
    words = (*rule.inputs, *[rule.more] * len(node.inputs))
    alike = [name for name, each in zip(node.inputs, words, strict=False) if each == word and name in known]
    first, other = alike[0], next(name for name in alike if known[name] is not known[alike[0]])
    raise DTypeMismatchError(
        f"node {node.name!r} ({node.op_type}): inputs that must be of one element type ({word}) differ: "
        f"{first!r} is {known[first].label}, {other!r} is {known[other].label}"
    )


def _note(node: Node, known: dict[str, DType]) -> None:
    """What a Cast or a Constant says it makes, and what an Identity passes on."""
    if not node.outputs:
        return
    if node.op_type == "Identity":
        dtype = known.get(next(iter(node.inputs), ""))
        if dtype is not None:
            known[node.outputs[0]] = dtype
        return
    to, value = node.attributes.get("to"), node.attributes.get("value")
    if isinstance(value, Tensor):
        known[node.outputs[0]] = value.dtype
    elif isinstance(to, int):
        known[node.outputs[0]] = DType.from_onnx(to)
