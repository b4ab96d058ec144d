"""Cross-layer equalisation: weights of consecutive layers are rescaled by channel, so that one scale suits them all.

Dividing an output channel of a layer by ``s`` and multiplying the next layer's weights for that channel by ``s``
changes nothing, since Relu keeps positive factors. ``s`` is chosen so that both weights of a channel reach equally far
(Nagel et al., 2019).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pyflame_rt.graph import Graph, Tensor
from pyflame_rt.ops.onnx.activation import Relu
from pyflame_rt.ops.onnx.conv import Conv
from pyflame_rt.quantization.config import QuantConfig
from pyflame_rt.quantization.prepare import Candidate, select

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["equalize"]

ROUNDS = 20
ENOUGH = 1e-3


class _Pair(NamedTuple):
    """Two layers, of which the second alone reads what the first makes."""

    first: Candidate
    second: Candidate


def equalize(graph: Graph) -> Graph:
    """A graph that computes the same, whose consecutive convolutions and products share their ranges.

    Layers of which one reads the other, directly or through Relu, are rescaled; batch normalisations are folded into
    the convolutions before them first.

    Example:
        >>> import numpy as np
        >>> g = Graph("g")
        >>> _ = g.add_input("x", ["N", 1]), g.add_output("y", ["N", 1])
        >>> _ = g.add_initializer("a", np.float32([[100.0]])), g.add_initializer("b", np.float32([[0.01]]))
        >>> _ = g.add_node("m", "MatMul", ["x", "a"], ["h"]), g.add_node("n", "MatMul", ["h", "b"], ["y"])
        >>> {name: tensor.numpy().item() for name, tensor in equalize(g).initializers.items()}
        {'a': 1.0, 'b': 1.0}
    """
    selection = select(graph, QuantConfig.static_int8(), static=False)
    made = selection.graph
    pairs = list(_pairs(made, selection.chosen))
    for _ in range(ROUNDS):
        moved = max((_balance(made, pair) for pair in pairs), default=0.0)
        if moved < ENOUGH:
            break
    return made


def _pairs(graph: Graph, chosen: list[Candidate]) -> Iterator[_Pair]:
    readers, outputs = graph.consumers(), {info.name for info in graph.outputs}
    uses: dict[str, int] = {}
    for node in graph.nodes:
        for name in node.inputs:
            uses[name] = uses.get(name, 0) + 1
    by_node = {candidate.node: candidate for candidate in chosen}
    for first in chosen:
        name = first.node.outputs[0]
        while len(readers.get(name, [])) == 1 and name not in outputs:
            reader = readers[name][0]
            second = by_node.get(reader)
            if second is not None:
                if _fits(first, graph, uses) and _fits(second, graph, uses) and second.data[0] == name:
                    yield _Pair(first, second)
                break
            if reader.full_name != Relu.name:
                break
            name = reader.outputs[0]


def _fits(candidate: Candidate, graph: Graph, uses: dict[str, int]) -> bool:
    """Whether a layer's constants are its own, and its channels are told apart."""
    given = [name for name in candidate.node.inputs[1:] if name]
    if any(uses[name] != 1 for name in given) or (len(given) > 1 and not candidate.bias):
        return False
    weight = graph.initializers[candidate.weight]
    if candidate.node.op_type != Conv.name:
        return weight.ndim == 2
    return _groups(candidate) in (1, weight.shape[0])


def _groups(candidate: Candidate) -> int:
    group: Any = candidate.node.get_attr("group", 1)
    return int(group)


def _inner(candidate: Candidate, weight: np.ndarray[Any, Any]) -> int:
    """The axis of a weight that counts the channels which come in."""
    if candidate.node.op_type == Conv.name:
        return 0 if _groups(candidate) > 1 else 1
    return 1 - candidate.axis if weight.ndim == 2 else 0


def _reach(weight: np.ndarray[Any, Any], axis: int) -> np.ndarray[Any, Any]:
    return np.abs(weight).max(axis=tuple(i for i in range(weight.ndim) if i != axis)).astype(np.float64)


def _times(array: np.ndarray[Any, Any], factors: np.ndarray[Any, Any], axis: int) -> Tensor:
    form = [-1 if i == axis else 1 for i in range(array.ndim)]
    return Tensor((array * factors.reshape(form)).astype(np.float32))


def _balance(graph: Graph, pair: _Pair) -> float:
    """Rescale one pair; how far the largest factor is from 1."""
    first, second = (graph.initializers[c.weight].raw() for c in pair)
    inner = _inner(pair.second, second)
    if first.shape[pair.first.axis] != second.shape[inner]:
        return 0.0
    before, after = _reach(first, pair.first.axis), _reach(second, inner)
    usable = (before > 0) & (after > 0)
    factors = np.where(usable, np.sqrt(np.where(usable, before / np.where(usable, after, 1), 1)), 1.0)
    factors = np.clip(factors, 1e-4, 1e4)
    graph.initializers[pair.first.weight] = _times(first, 1 / factors, pair.first.axis)
    if pair.first.bias:
        graph.initializers[pair.first.bias] = _times(graph.initializers[pair.first.bias].raw(), 1 / factors, 0)
    graph.initializers[pair.second.weight] = _times(second, factors, inner)
    return float(np.abs(factors - 1).max())
