"""QDQ to operators: a node between DequantizeLinear and QuantizeLinear becomes QuantizedConv, -MatMul or -Add."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.ops.onnx.activation import Relu
from pyflame_rt.ops.onnx.arithmetic import Add
from pyflame_rt.ops.onnx.conv import Conv
from pyflame_rt.ops.onnx.matmul import Gemm, MatMul
from pyflame_rt.ops.onnx.quantize import DequantizeLinear, QuantizeLinear
from pyflame_rt.ops.pyflame.quantized import Dequantize, Quantize, QuantizedAdd, QuantizedConv, QuantizedMatMul
from pyflame_rt.quantization.rewriting import Rewriter

if TYPE_CHECKING:
    from pyflame_rt.graph import Graph, Node

__all__ = ["to_operators"]

_FORMS = {
    Add.name: QuantizedAdd.name,
    Conv.name: QuantizedConv.name,
    Gemm.name: QuantizedMatMul.name,
    MatMul.name: QuantizedMatMul.name,
}
_RENAMED = {DequantizeLinear.name: Dequantize.name, QuantizeLinear.name: Quantize.name}
_OWN = "pyflame"


def to_operators(graph: Graph) -> Graph:
    """A copy in which QDQ groups are single operators of the domain ``pyflame``, with integers between them.

    Nodes whose result is not quantized again stay between Dequantize nodes.

    Example:
        >>> from pyflame_rt.graph import Graph
        >>> to_operators(Graph("empty")).nodes
        []
    """
    finder = _Finder(graph)
    groups = {found[-1]: found for node in graph.nodes if (found := finder.group(node)) is not None}
    inside = {node for group in groups.values() for node in group}
    out = Rewriter(graph)
    for node in graph.topological_sort():
        if node in groups:
            finder.write(groups[node], out)
        elif node not in inside:
            renamed = _RENAMED.get(node.full_name)
            out.keep(node.replace(op_type=renamed, domain=_OWN) if renamed and _plain(node) else node)
    return out.finish()


def _plain(node: Node) -> bool:
    """Whether nothing but the axis is set."""
    return set(node.attribute_names) <= {"axis"} and len(node.inputs) == 3


class _Finder:
    """Finds groups in one graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.makers, self.readers = graph.producers(), graph.consumers()
        self.outputs = {info.name for info in graph.outputs}

    def group(self, node: Node) -> list[Node] | None:
        """A node, the Relu behind it if there is one, and the QuantizeLinear behind that; or None."""
        if node.full_name not in _FORMS or not self._dequantized(node):
            return None
        found, last = [node], node
        reader = self._only_reader(last)
        if reader is not None and reader.full_name == Relu.name:
            found, last = [*found, reader], reader
            reader = self._only_reader(last)
        if reader is None or reader.full_name != QuantizeLinear.name or not _plain(reader):
            return None
        if len(found) == 2 and not self._starts_at_zero(reader):
            return None
        return [*found, reader]

    def _only_reader(self, node: Node) -> Node | None:
        name = node.outputs[0]
        readers = self.readers.get(name, [])
        return readers[0] if len(readers) == 1 and name not in self.outputs else None

    def _starts_at_zero(self, node: Node) -> bool:
        """Whether the lowest integer stands for zero: then saturation does what Relu does."""
        zero = self.graph.initializers.get(node.inputs[2])
        return zero is not None and bool(zero.raw() == np.iinfo(zero.dtype.numpy).min)

    def _dequantized(self, node: Node) -> bool:
        made = [self.makers.get(name) for name in node.inputs]
        if not all(maker is not None and maker.full_name == DequantizeLinear.name for maker in made):
            return False
        return all(maker is not None and len(maker.inputs) == 3 for maker in made[:2])

    def write(self, group: list[Node], out: Rewriter) -> None:
        """One operator in the place of a group."""
        node, last = group[0], group[-1]
        factors = [self.makers[name] for name in node.inputs]
        inputs = [name for maker in factors[:2] for name in maker.inputs]
        if node.op_type == Gemm.name and node.get_attr("transB", 0):
            weight: Any = self.graph.initializers[factors[1].inputs[0]].raw()
            inputs[3] = out.constant(f"{inputs[3]}/transposed", weight.T)
        inputs += last.inputs[1:]
        inputs += [maker.inputs[0] for maker in factors[2:]]
        attributes = dict(node.attributes) if node.op_type == Conv.name else {}
        out.emit(_FORMS[node.op_type], inputs, outputs=last.outputs, name=node.name, domain=_OWN, attributes=attributes)
