"""Products with constant weights in 8-bit integers: weights once, data by its own range while running."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph import DType, Graph, Node, Tensor
from pyflame_rt.graph.errors import UnsupportedOperatorError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["quantized"]

# Symmetric, so that weights need no zero point.
LIMIT = 127


def quantized(graph: Graph) -> Graph:
    """The graph with every product of float32 data with a constant matrix (MatMul, Gemm) in 8-bit integers.

    Weights are int8 with one scale for each column; data becomes uint8 by its own range while running; sums are int32.

    Raises:
        UnsupportedOperatorError: there is no such product.

    Example:
        >>> import pyflame as pf
        >>> from pyflame.exporting import evaluation_graph
        >>> graph = quantized(evaluation_graph(pf.nn.Linear(3, 2), (pf.ones([4, 3]),)))
        >>> [node.op_type for node in graph.nodes]
        ['DynamicQuantizeLinear', 'MatMulInteger', 'Cast', 'Mul', 'Mul', 'Add']
    """
    made = graph.copy()
    matrices = _matrices(graph)
    nodes: list[Node] = []
    for node in graph.nodes:
        matrix = None if node.domain else matrices.get((*node.inputs, "", "")[1])
        if matrix is None or not _is_product(node):
            nodes.append(node)
            continue
        nodes += _integer_product(made, node, matrix.T if node.get_attr("transB", 0) else matrix)
    if len(nodes) == len(graph.nodes):
        raise UnsupportedOperatorError(
            "enable_quantization: the model has no product (MatMul, Gemm) of data with a constant float32 matrix; "
            "leave enable_quantization off"
        )
    made.nodes = _read(nodes, [info.name for info in graph.outputs])
    used = {name for node in made.nodes for name in node.inputs} | {info.name for info in graph.outputs}
    for name in [name for name in made.initializers if name not in used]:
        del made.initializers[name]
    return made


def _matrices(graph: Graph) -> dict[str, np.ndarray[Any, Any]]:
    """Constant float32 matrices by name, also those that are turned first."""
    found = {name: tensor.raw() for name, tensor in graph.initializers.items()}
    found = {name: a for name, a in found.items() if a.ndim == 2 and a.dtype == np.float32 and a.size}
    for node in graph.nodes:
        if node.op_type == "Transpose" and not node.domain and node.inputs[0] in found:
            found[node.outputs[0]] = found[node.inputs[0]].transpose(node.get_attr("perm", None))
    return found


def _is_product(node: Node) -> bool:
    if node.op_type == "MatMul":
        return True
    plain = node.get_attr("alpha", 1.0) == 1 and node.get_attr("beta", 1.0) == 1 and not node.get_attr("transA", 0)
    return node.op_type == "Gemm" and plain


def _integer_product(graph: Graph, node: Node, matrix: np.ndarray[Any, Any]) -> list[Node]:
    """The nodes of one product; its weights and their scales are added to the graph."""
    scales = np.abs(matrix).max(axis=0) / LIMIT
    scales = np.where(scales > 0, scales, 1).astype(np.float32)
    weights = np.clip(np.rint(matrix / scales), -LIMIT, LIMIT).astype(np.int8)
    name = node.name or node.outputs[0]
    graph.add_initializer(f"{name}.weight_int8", Tensor(np.ascontiguousarray(weights)))
    graph.add_initializer(f"{name}.weight_scale", Tensor(scales))
    data, scale, zero = (f"{name}.{part}" for part in ("data", "data_scale", "data_zero"))
    given, _, bias = (*node.inputs, "")[:3]
    last = f"{name}.product" if bias else node.outputs[0]
    nodes = [
        Node(f"{name}.quantize", "DynamicQuantizeLinear", [given], [data, scale, zero]),
        Node(f"{name}.sum", "MatMulInteger", [data, f"{name}.weight_int8", zero], [f"{name}.int32"]),
        Node(f"{name}.cast", "Cast", [f"{name}.int32"], [f"{name}.real"], {"to": DType.Float32.onnx}),
        Node(f"{name}.scales", "Mul", [scale, f"{name}.weight_scale"], [f"{name}.scale"]),
        Node(f"{name}.scaled", "Mul", [f"{name}.real", f"{name}.scale"], [last]),
    ]
    return [*nodes, Node(f"{name}.biased", "Add", [last, bias], [node.outputs[0]])] if bias else nodes


def _read(nodes: Sequence[Node], outputs: Sequence[str]) -> list[Node]:
    """The nodes that outputs depend on: turning a matrix that is now stored as integers is no longer needed."""
    wanted, kept = set(outputs), []
    for node in reversed(nodes):
        if not wanted.isdisjoint(node.outputs):
            wanted.update(node.inputs)
            kept.append(node)
    return kept[::-1]
