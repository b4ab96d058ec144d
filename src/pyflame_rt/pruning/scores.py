"""Importance scores: what each weight is worth, by magnitude, LAMP, Taylor expansion, movement or chance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph import Graph
from pyflame_rt.graph.arguments import expect
from pyflame_rt.graph.errors import InputError, ShapeMismatchError
from pyflame_rt.ops.microsoft.attention import Attention
from pyflame_rt.ops.microsoft.fused import FusedConv, FusedGemm, FusedMatMul
from pyflame_rt.ops.onnx.cast import Cast, Identity
from pyflame_rt.ops.onnx.conv import Conv, ConvTranspose
from pyflame_rt.ops.onnx.matmul import Einsum, Gemm, MatMul
from pyflame_rt.ops.onnx.rnn import GRU, LSTM, RNN
from pyflame_rt.ops.onnx.shape import Reshape, Squeeze, Transpose, Unsqueeze
from pyflame_rt.ops.onnx.slicing import Slice, Split
from pyflame_rt.ops.pyflame.quantized import CastFromBF16, CastFromFP16
from pyflame_rt.pruning.config import PruningConfig, PruningCriterion

if TYPE_CHECKING:
    from collections.abc import Mapping


__all__ = ["keep_largest", "named", "prunable_weights", "quantized_weights", "score"]

Array = np.ndarray[Any, Any]

# Where a constant of two or more axes is a weight; as a bias, a table or a scale it is none.
_LAYERS = frozenset(
    op.full_name
    for op in (
        *(Conv, ConvTranspose, Gemm, MatMul, LSTM, GRU, RNN, Einsum),
        *(FusedConv, FusedGemm, FusedMatMul, Attention),
    )
)
# Parts of the names of operators that read weights of few bits, of all domains.
_QUANTIZED = ("Dequantize", "Quantized", "QLinear", "Integer", "NBits", CastFromBF16.name, CastFromFP16.name)
_LAYOUT = frozenset(op.name for op in (Transpose, Slice, Reshape, Identity, Cast, Split, Squeeze, Unsqueeze))


def prunable_weights(graph: Graph) -> dict[str, list[str]]:
    """The weights of layers (two or more axes, floating point), and the nodes that read each.

    Example:
        >>> from pyflame_rt.graph import Graph
        >>> g = Graph("g")
        >>> _ = g.add_input("x", ["N", 2]), g.add_initializer("w", np.ones((2, 3), np.float32))
        >>> _ = g.add_node("fc", "MatMul", ["x", "w"], ["y"]), g.add_output("y", ["N", 3])
        >>> prunable_weights(g)
        {'w': ['fc']}
    """
    expect(graph, Graph, "what is pruned")
    fed = {info.name for info in graph.inputs}
    roots = {n: n for n, t in graph.initializers.items() if t.dtype.is_float and t.ndim >= 2 and n not in fed}
    found: dict[str, list[str]] = {}
    for node in graph.topological_sort():
        if node.full_name in _LAYERS:
            for name in dict.fromkeys(roots[n] for n in node.inputs if n in roots):
                found.setdefault(name, []).append(node.name)
        elif node.op_type in _LAYOUT and node.inputs[0] in roots:
            roots.update(dict.fromkeys(node.outputs, roots[node.inputs[0]]))
    return found


def quantized_weights(graph: Graph) -> list[str]:
    """Weights of layers that are stored in few bits: of two or more axes, and read by a quantized operator."""
    small = {n for n, t in graph.initializers.items() if t.ndim >= 2 and t.dtype.bits <= 16}
    readers = [node for node in graph.nodes if any(word in node.op_type for word in _QUANTIZED)]
    return [name for name in graph.initializers if name in small and any(name in node.inputs for node in readers)]


def named(wanted: str, weight: str, nodes: list[str]) -> bool:
    """Whether a name in a configuration means this weight: its own, its node's, or a dotted prefix of one.

    Example:
        >>> named("encoder", "encoder.0.weight", []), named("enc", "encoder.0.weight", [])
        (True, False)
    """
    prefix = wanted.replace("/", ".")
    every = [name.replace("/", ".") for name in (weight, *nodes)]
    return any(name == prefix or name.startswith(f"{prefix}.") for name in every)


def score(name: str, weight: Array, config: PruningConfig, gradients: Mapping[str, Any] | None) -> Array:
    """What each element of a weight is worth; the smallest go first."""
    values = weight.astype(np.float64)
    match config.criterion:
        case PruningCriterion.MAGNITUDE:
            return np.abs(values)
        case PruningCriterion.LAMP:
            return _lamp(values)
        case PruningCriterion.RANDOM:
            key = [config.seed, *name.encode()]
            return np.random.default_rng(key).random(values.shape)
    gradient = _gradient(name, values, gradients)
    moved = values * gradient
    return -moved if config.criterion is PruningCriterion.MOVEMENT else moved * moved


def _gradient(name: str, weight: Array, gradients: Mapping[str, Any] | None) -> Array:
    if gradients is None or name not in gradients:
        have = f"there is none for {name!r}" if gradients else "none were given"
        raise InputError(
            f"MOVEMENT and TAYLOR weigh with gradients, and {have}: pass gradients={{name: array}}, or data= and "
            "loss_fn= to have them computed, or choose MAGNITUDE or LAMP"
        )
    gradient = np.asarray(gradients[name], dtype=np.float64)
    if gradient.shape != weight.shape:
        raise ShapeMismatchError(
            f"the gradient of {name!r} has shape {list(gradient.shape)}, the weight has {list(weight.shape)}"
        )
    return gradient


def _lamp(weight: Array) -> Array:
    """Each square over the sum of all squares that are not smaller (Lee et al., 2021)."""
    squares = weight.reshape(-1) ** 2
    order = np.argsort(squares, kind="stable")
    ranked = squares[order]
    above = np.cumsum(ranked[::-1])[::-1]
    scores = np.zeros_like(squares)
    scores[order] = np.divide(ranked, above, out=np.zeros_like(ranked), where=above > 0)
    return scores.reshape(weight.shape)


def keep_largest(scores: Array, sparsity: float) -> Array:
    """True for the largest; exactly the wanted share (rounded) is False, ties by position.

    Example:
        >>> keep_largest(np.array([3.0, 1.0, 2.0, 1.0]), 0.5).tolist()
        [True, False, True, False]
    """
    flat = scores.reshape(-1)
    keep = np.ones(flat.size, bool)
    count = min(round(sparsity * flat.size), flat.size)
    keep[np.argsort(flat, kind="stable")[:count]] = False
    return keep.reshape(scores.shape)
