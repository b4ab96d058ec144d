"""Layers by name: the values of a graph that features and attention are taken from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyflame_rt.distillation.depth import data_nodes
from pyflame_rt.graph.errors import InputError
from pyflame_rt.ops.onnx.activation import Softmax

if TYPE_CHECKING:
    from pyflame_rt.graph import Graph

__all__ = ["attention_value", "feature_value"]


def feature_value(graph: Graph, layer: str) -> str:
    """The value of a layer: a value itself, what a node makes, or the last that a dotted prefix of nodes makes.

    Example:
        >>> from pyflame_rt.graph import Graph
        >>> g = Graph("g")
        >>> _ = g.add_input("x", [2]), g.add_node("body/0/relu", "Relu", ["x"], ["y"]), g.add_output("y", [2])
        >>> feature_value(g, "body.0")
        'y'
    """
    return _found(graph, layer, ())


def attention_value(graph: Graph, layer: str) -> str:
    """The shares of an attention within a layer (what its Softmax makes), or its value where it has none."""
    return _found(graph, layer, (Softmax.name,))


def _found(graph: Graph, layer: str, preferred: tuple[str, ...]) -> str:
    nodes = data_nodes(graph)
    prefix = layer.replace("/", ".")
    inside, exact = [], None
    for node in nodes:
        names = [node.name, *(name for name in node.inputs if name in graph.initializers)]
        dotted = [name.replace("/", ".") for name in names]
        if layer in node.outputs or node.name == layer:
            exact = node
        if any(name == prefix or name.startswith(f"{prefix}.") for name in dotted):
            inside.append(node)
    chosen = [node for node in inside if node.op_type in preferred]
    if chosen:
        return chosen[-1].outputs[0]
    if exact is not None:
        return layer if layer in exact.outputs else exact.outputs[0]
    if inside:
        return inside[-1].outputs[0]
    some = ", ".join(node.name for node in nodes[:8])
    raise InputError(f"graph {graph.name!r} has no layer {layer!r}; its nodes are {some}{' ...' if nodes[8:] else ''}")
