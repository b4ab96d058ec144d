"""The text form of a graph: prints, and parses back.

    graph "tiny" opset("": 23) {
      input x: float32[N, 3]
      init w: int64[2] = [3, 4]
      init k: float32[64, 64] = @k
      y = Relu(x)  # act
      z = Concat[axis=0](x, y)
      output z: float32[M, 3]
    }

Constants of up to ``max_elements`` elements are written out; larger ones as ``@name``, and are taken
from ``weights`` when parsing.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

from pyflame_rt.graph.arguments import expect
from pyflame_rt.graph.dtype import DType
from pyflame_rt.graph.graph import Graph
from pyflame_rt.graph.named_arguments import names_arguments
from pyflame_rt.graph.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyflame_rt.graph.info import TensorInfo
    from pyflame_rt.graph.node import Node
    from pyflame_rt.graph.types import ValueType

__all__ = ["print_graph"]

INLINE = 64


@names_arguments
def print_graph(graph: Graph, *, max_elements: int = INLINE) -> str:
    """The graph as text.

    Example:
        >>> g = Graph("tiny")
        >>> _ = g.add_input("x", ["N", 3]), g.add_node("act", "Relu", ["x"], ["y"]), g.add_output("y", ["N", 3])
        >>> print(print_graph(g))
        graph "tiny" {
          input x: float32[N, 3]
          y = Relu(x)  # act
          output y: float32[N, 3]
        }
    """
    expect(graph, Graph, "what is printed")
    return "\n".join(_lines(graph, max_elements))


def _lines(graph: Graph, limit: int) -> Iterator[str]:
    opsets = ", ".join(f"{json.dumps(d)}: {v}" for d, v in sorted(graph.opsets.items()))
    yield f"graph {json.dumps(graph.name)}{f' opset({opsets})' if opsets else ''} {{"
    for key, value in graph.metadata.items():
        yield f"  meta {json.dumps(key)} = {json.dumps(value)}"
    for info in graph.inputs:
        yield f"  input {_info(info)}"
    for name, tensor in graph.initializers.items():
        yield f"  init {name_text(name)}: {_tensor(name, tensor, limit)}"
    declared = {info.name for info in (*graph.inputs, *graph.outputs)}
    for node in graph.nodes:
        yield from _node(node, graph, declared, limit)
    for info in graph.outputs:
        yield f"  output {_info(info)}"
    yield "}"


def _info(info: TensorInfo) -> str:
    return f"{name_text(info.name)}: {type_text(info.type)}"


def type_text(kind: ValueType) -> str:
    """A type as it stands in the text form."""
    return str(kind)


def name_text(name: str) -> str:
    """A value name, quoted where it is not a plain word; ``-`` for one that is not given."""
    if not name:
        return "-"
    plain = all(c.isalnum() or c in "_.:/" for c in name) and name.isascii() and not name[0].isdigit()
    plain = plain and (name[0].isalpha() or name[0] == "_") and name[-1] != ":"
    return name if plain and name not in _KEYWORDS else json.dumps(name)


_KEYWORDS = frozenset({"input", "output", "init", "graph", "meta", "type"})


def _node(node: Node, graph: Graph, declared: set[str], limit: int) -> Iterator[str]:
    for name in node.outputs:
        if name in graph.types and name not in declared:
            yield f"  type {name_text(name)}: {type_text(graph.types[name])}"
    outputs = ", ".join(map(name_text, node.outputs))
    attributes = ", ".join(f"{k}={attribute_text(v, limit)}" for k, v in node.attributes.items())
    inputs = ", ".join(map(name_text, node.inputs))
    comment = f"  # {node.name}" if node.name and "\n" not in node.name else ""
    text = f"{outputs} = {_operator(node)}{f'[{attributes}]' if attributes else ''}({inputs}){comment}"
    for line in text.split("\n"):
        yield f"  {line}"


def _operator(node: Node) -> str:
    return f"{node.domain}::{node.op_type}" if node.domain else node.op_type


def _tensor(name: str, tensor: Tensor, limit: int) -> str:
    head = f"{tensor.dtype.label}{tensor.shape}"
    return f"{head} = {values_text(tensor)}" if tensor.num_elements <= limit else f"{head} = @{name_text(name)}"


def values_text(tensor: Tensor) -> str:
    """Elements in row-major order, exactly: floats with enough digits to come back bit for bit."""
    flat = tensor.raw().ravel()
    if tensor.dtype is DType.String:
        return json.dumps([str(s) for s in flat])
    if tensor.dtype.is_complex:
        return json.dumps([[float(v.real), float(v.imag)] for v in flat])
    if tensor.dtype.is_float:
        return json.dumps([float(v) for v in flat])
    return json.dumps([int(v) for v in flat])


def attribute_text(value: Any, limit: int = INLINE) -> str:
    """An attribute: JSON numbers, strings and lists; tensors, types and graphs by keyword."""
    if isinstance(value, Graph):
        return print_graph(value, max_elements=2**62).replace("\n", "\n    ")
    if isinstance(value, Tensor):
        return f"tensor({value.dtype.label}{value.shape} = {values_text(value)})"
    if isinstance(value, (list, tuple)):
        items = list(cast("Sequence[Any]", value))
        if any(isinstance(v, (Graph, Tensor)) for v in items):
            return "list(" + ", ".join(attribute_text(v, limit) for v in items) + ")"
        return json.dumps(items)
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, (int, float, str)):
        return json.dumps(value)
    if isinstance(value, bytes):
        return f"bytes({json.dumps(value.hex())})"
    return f"type({value})"
