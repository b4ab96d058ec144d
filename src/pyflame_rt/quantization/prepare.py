"""Which nodes are quantized: a graph of base operators, and a reason for each candidate that stays in float32."""

from __future__ import annotations

from dataclasses import field
from os import PathLike
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pyflame_rt.graph import DType, Graph, Node, TensorType
from pyflame_rt.graph.errors import InputError
from pyflame_rt.graph.names import closest
from pyflame_rt.graph.records import dataclass
from pyflame_rt.ops.core.inference import infer_types
from pyflame_rt.ops.core.registry import all_ops
from pyflame_rt.ops.onnx.activation import Clip, Relu
from pyflame_rt.ops.onnx.arithmetic import Add
from pyflame_rt.ops.onnx.cast import Identity
from pyflame_rt.ops.onnx.conv import Conv
from pyflame_rt.ops.onnx.matmul import Gemm, MatMul
from pyflame_rt.ops.onnx.maxpool import MaxPool
from pyflame_rt.ops.onnx.pool import GlobalMaxPool
from pyflame_rt.ops.onnx.shape import DepthToSpace, Flatten, Reshape, SpaceToDepth, Squeeze, Transpose, Unsqueeze
from pyflame_rt.ops.onnx.slicing import Slice
from pyflame_rt.ops.pyflame.fused import FusedAddRelu, FusedConvBN, FusedConvBNRelu, FusedConvRelu
from pyflame_rt.opt.config import ConstantFoldingConfig, FusionConfig
from pyflame_rt.opt.constant_folding import ConstantFoldingPass
from pyflame_rt.opt.dead_code import DeadCodeEliminationPass
from pyflame_rt.opt.fusion import OperatorFusionPass

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyflame_rt.opt.base import PassResult
    from pyflame_rt.quantization.config import QuantConfig

__all__ = ["KEEPS_VALUES", "Candidate", "Selection", "check_names", "checked_graph", "prepared", "select", "unfused"]

# Results hold nothing but values of the first input, so that both share a scale.
KEEPS_VALUES = frozenset(
    op.name
    for op in (
        *(DepthToSpace, Flatten, GlobalMaxPool, Identity, MaxPool, Reshape, Slice, SpaceToDepth, Squeeze, Transpose),
        Unsqueeze,
    )
)
# What a kernel does at the store of the product or sum before it.
ACTIVATIONS = frozenset({Clip.name, Relu.name})
_OPENED = {
    FusedAddRelu.full_name: (Add.name, True),
    FusedConvBN.full_name: (Conv.name, False),
    FusedConvBNRelu.full_name: (Conv.name, True),
    FusedConvRelu.full_name: (Conv.name, True),
}
_FOLD_BYTES = 2**40  # transposed weights, whatever their size


class Candidate(NamedTuple):
    """A node that is to be quantized.

    Attributes:
        node: it.
        data: names of its inputs that are data.
        weight: name of its constant weight; empty where all is data.
        axis: the axis of the output channels in the weight.
        bias: name of its constant bias; empty where it has none.
    """

    node: Node
    data: tuple[str, ...]
    weight: str = ""
    axis: int = 0
    bias: str = ""


@dataclass(slots=True)
class Selection:
    """What is quantized of a graph.

    Attributes:
        graph: the graph of base operators that the nodes belong to.
        chosen: them, in running order.
        skipped: names of those that could be, and why they are not.
        origins: names that nodes of the graph stand for, where these are others.
    """

    graph: Graph
    chosen: list[Candidate]
    skipped: dict[str, str]
    origins: dict[str, tuple[str, ...]] = field(default_factory=dict)


def unfused(graph: Graph) -> Graph:
    """A copy in which operators that stand for several in a row are several again."""
    made = checked_graph(graph).copy()
    nodes: list[Node] = []
    for node in graph.topological_sort():
        base, relu = _OPENED.get(node.full_name, ("", False))
        if not base:
            nodes.append(node)
            continue
        inner = f"{node.outputs[0]}/before_relu" if relu else node.outputs[0]
        nodes.append(Node(node.name, base, node.inputs, [inner], dict(node.attributes)))
        if relu:
            nodes.append(Node(f"{node.name}/relu", Relu.name, [inner], node.outputs))
    made.nodes = nodes
    return made


def prepared(graph: Graph, *, fold: bool = True) -> tuple[Graph, dict[str, tuple[str, ...]]]:
    """A copy of base operators whose weights are constants: constants folded, normalisations in the convolutions.

    The same graph gives the same names each time. With it, for each node that a rule made, the names it stands for.
    Without ``fold``, constants stay as they are: a table that is read in two forms stays one.
    """
    made = unfused(graph)
    origins: dict[str, tuple[str, ...]] = {}
    fusion = FusionConfig(
        portable=True, fuse_matmul_add=False, fuse_activations=False, fuse_normalization=False, fuse_attention=False,
        fuse_elementwise_activation=False,
    )  # fmt: skip
    folding = ConstantFoldingConfig(max_tensor_bytes=_FOLD_BYTES)
    steps = [DeadCodeEliminationPass(), *([ConstantFoldingPass(folding)] if fold else []), OperatorFusionPass(fusion)]
    for step in steps:
        result = step.run(made)
        origins |= _made_from(result)
    DeadCodeEliminationPass().run(made)
    infer_types(made)
    return made, origins


def _made_from(result: PassResult) -> dict[str, tuple[str, ...]]:
    return {name: rewrite.removed for rewrite in result.rewrites for name in rewrite.made}


def select(graph: Graph, config: QuantConfig, *, static: bool) -> Selection:
    """The nodes of a graph to quantize; ``static`` also products and sums of data with data.

    Raises:
        InputError: ``exclude_nodes`` names a node that is not there, ``exclude_ops`` an operator that nobody knows.
    """
    made, origins = prepared(graph)
    check_names(graph, config)
    finder = _Finder(made, config, origins, static)
    chosen: list[Candidate] = []
    skipped: dict[str, str] = {}
    for node in made.topological_sort():
        found = finder.look(node)
        if isinstance(found, Candidate):
            chosen.append(found)
        elif found:
            skipped[node.name] = found
    if static:
        chosen += list(finder.sums(chosen, skipped))
        place = {node: i for i, node in enumerate(made.nodes)}
        chosen.sort(key=lambda c: place[c.node])
    return Selection(made, chosen, skipped, origins)


def checked_graph(graph: object) -> Graph:
    """The graph; anything else is refused."""
    if isinstance(graph, Graph):
        return graph
    hint = "; call its graph() method" if callable(getattr(graph, "graph", None)) else ""
    if isinstance(graph, (str, PathLike)):
        hint = "; InferenceSession(path).graph() reads one from a file"
    raise TypeError(f"what is quantized is a Graph, got {type(graph).__name__}{hint}")


def check_names(graph: Graph, config: QuantConfig) -> None:
    """Refuse excluded nodes that are not there, and operators that nobody knows."""
    known = {node.name for node in graph.nodes}
    types = {name for node in graph.nodes for name in (node.op_type, node.full_name)}
    types |= {name for op in all_ops() for name in (op.name, op.full_name)}
    for name in config.exclude_ops:
        if name not in types:
            close = closest(name, types)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise InputError(f"exclude_ops: there is no operator {name!r}.{hint}")
    for name in config.exclude_nodes:
        if name not in known:
            close = closest(name, known)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise InputError(f"exclude_nodes: model {graph.name!r} has no node {name!r}.{hint}")


class _Finder:
    """Looks at nodes of one graph."""

    def __init__(self, graph: Graph, config: QuantConfig, origins: dict[str, tuple[str, ...]], static: bool) -> None:
        inputs = {info.name for info in graph.inputs}
        self.constants = {n: t for n, t in graph.initializers.items() if n not in inputs}
        self.graph, self.static = graph, static
        self.readers = graph.consumers()
        self.outside = inputs if not config.quantize_inputs else set[str]()
        self.ops = frozenset(config.exclude_ops)
        self.names = frozenset(config.exclude_nodes)
        self.origins = origins

    def look(self, node: Node) -> Candidate | str:
        """The node as a candidate; why it is none; or nothing, of a node that never is."""
        if node.domain or node.op_type not in (Conv.name, Gemm.name, MatMul.name):
            return ""
        if reason := self._excluded(node):
            return reason
        data, factor, bias = (*node.inputs, "", "")[:3]
        if data in self.outside:
            return f"it reads the model's input {data!r}, and quantize_inputs is off"
        if reason := self._float32(data):
            return reason
        if factor not in self.constants:
            return self._product_of_data(node, data, factor)
        if reason := self._usable(factor, node):
            return reason
        kept = bias if bias in self.constants and self._is_bias(bias, factor, node) else ""
        return Candidate(node, (data,), factor, _channel_axis(node, self.constants[factor].shape), kept)

    def _excluded(self, node: Node) -> str:
        if node.op_type in self.ops or node.full_name in self.ops:
            return f"exclude_ops names {node.op_type}"
        if self.names & {node.name, *self.origins.get(node.name, ())}:
            return "exclude_nodes names it"
        return ""

    def _float32(self, name: str) -> str:
        kind = self.graph.value_type(name)
        if not isinstance(kind, TensorType):
            return f"the type of {name!r} is not known"
        return "" if kind.dtype is DType.Float32 else f"{name!r} is {kind.dtype.label}, not float32"

    def _usable(self, name: str, node: Node) -> str:
        """Why a constant cannot be a weight."""
        weight = self.constants[name]
        if weight.dtype is not DType.Float32:
            return f"its weight {name!r} is {weight.dtype.label}, not float32"
        if not weight.num_elements or weight.ndim < 2:
            return f"its weight {name!r} has shape {weight.shape}"
        if not np.isfinite(weight.raw()).all():
            return f"its weight {name!r} holds numbers that are not finite"
        plain = node.get_attr("alpha", 1.0) == 1 and node.get_attr("beta", 1.0) == 1 and not node.get_attr("transA", 0)
        return "" if plain else "alpha or beta of the Gemm is not 1, or its first matrix is transposed"

    def _is_bias(self, bias: str, factor: str, node: Node) -> bool:
        """Whether a constant holds one number for each output channel."""
        weight, given = self.constants[factor], self.constants[bias]
        size = weight.shape[_channel_axis(node, weight.shape)]
        vector = given.dtype is DType.Float32 and given.ndim == 1 and given.num_elements == size
        return vector and bool(np.isfinite(given.raw()).all())

    def _product_of_data(self, node: Node, left: str, right: str) -> Candidate | str:
        if not self.static or node.op_type != MatMul.name:
            return "its weight is not a constant"
        reason = self._float32(right) or (f"{right!r} is an input of the model" if right in self.outside else "")
        return reason or Candidate(node, (left, right))

    def sums(self, chosen: list[Candidate], skipped: dict[str, str]) -> Iterator[Candidate]:
        """Sums of data with data whose result a chosen product reads: a kernel adds them at its store."""
        wanted = {name for candidate in chosen for name in candidate.data}
        for node in reversed(self.graph.topological_sort()):
            if node.domain:
                continue
            if node.op_type in ACTIVATIONS | KEEPS_VALUES and wanted.intersection(node.outputs[:1]):
                wanted.update(node.inputs[:1])
            if node.op_type != Add.name or node.outputs[0] not in wanted:
                continue
            constant = any(n in self.constants for n in node.inputs)
            if constant or any(self._float32(n) or n in self.outside for n in node.inputs):
                continue
            if reason := self._excluded(node):
                skipped[node.name] = reason
                continue
            wanted.update(node.inputs)
            yield Candidate(node, tuple(node.inputs))


def _channel_axis(node: Node, shape: Any) -> int:
    match node.op_type:
        case Conv.name:
            return 0
        case Gemm.name:
            return 0 if node.get_attr("transB", 0) else 1
        case _:
            return len(shape) - 1
