"""Evaluate tensors, and look at the graphs they record."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyflame.calls import inline_all
from pyflame.evaluation import Work, evaluate, graphs
from pyflame.lazy import Expr, Val, ancestors, modes
from pyflame.ops.core import Handle
from pyflame.runtime_graph import to_graph

if TYPE_CHECKING:
    from pyflame.dtypes import DType
    from pyflame.layout import MeshLayout
    from pyflame.tensors import Tensor
    from pyflame_rt.graph import Graph as RtGraph

__all__ = ["Graph", "Node", "TensorSpec", "eval_tensors", "get_graph", "get_node", "is_lazy", "print_graph"]


def eval_tensors(*tensors: Any) -> Any:
    """Compute tensors together: what they share is computed once.

    Lists, tuples, dicts and objects with ``parameters()`` stand for the tensors in them.

    Returns:
        The tensor, or a tuple of what was given.

    Example:
        >>> import pyflame as pf
        >>> x = pf.ones([2])
        >>> y, z = pf.eval(x + 1, x * 3)
        >>> y, z
        (tensor([2., 2.]), tensor([3., 3.]))
    """
    values = [t._value for t in _flat(tensors)]
    if modes.tracer is not None:
        values = [v for v in values if modes.tracer.is_outside(v)]  # the rest is computed when the function runs
    evaluate(values)
    return tensors[0] if len(tensors) == 1 else tensors


def _flat(item: Any) -> list[Any]:
    if isinstance(item, Handle):
        return [item]
    if item is None:
        return []
    if isinstance(item, dict):
        return [t for v in item.values() for t in _flat(v)]
    if hasattr(item, "parameters"):
        return [t for v in item.parameters() for t in _flat(v)]
    if isinstance(item, (list, tuple, set)) or hasattr(item, "__next__"):
        return [t for v in item for t in _flat(v)]
    raise TypeError(f"eval takes tensors, got {type(item).__name__}")


def is_lazy(tensor: Tensor) -> bool:
    """True while the contents are not computed.

    Example:
        >>> import pyflame as pf
        >>> t = pf.ones([2]) + 1
        >>> pf.is_lazy(t), pf.is_lazy(pf.eval(t))
        (True, False)
    """
    return tensor._value.array is None


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape, element type and layout of a value."""

    shape: Any
    dtype: DType
    layout: MeshLayout


class Node:
    """One operation of a graph, or one of its inputs (``op_type`` "Data" or "Constant").

    Attributes:
        op_type: the operator, with its domain unless it is ONNX's.
        inputs: the nodes it reads.
        output_shape: shape of its (first) output.
        output_dtype: element type of that.
        attributes: of the operator.
    """

    __slots__ = ("attributes", "inputs", "name", "op_type", "output_dtype", "output_shape", "spec")

    def __init__(
        self, name: str, op_type: str, value: Val, inputs: tuple[Node, ...], attributes: dict[str, Any]
    ) -> None:
        from pyflame.layout import MeshLayout

        self.name = name
        self.op_type = op_type
        self.inputs = inputs
        self.output_shape = value.spec.shape
        self.output_dtype = value.spec.dtype
        self.attributes = attributes
        self.spec = TensorSpec(value.spec.shape, value.spec.dtype, value.layout or MeshLayout.single_pe())

    def __repr__(self) -> str:
        given = [node.name for node in self.inputs] + [f"{k}={v}" for k, v in self.attributes.items()]
        return f"{self.name} = {self.op_type}({', '.join(given)}) : {self.output_dtype.name}{self.output_shape}"


class Graph:
    """What a tensor will be computed from.

    Attributes:
        nodes: operations and inputs, each after what it reads.
        output: the node of the tensor itself.
    """

    def __init__(self, roots: list[Val]) -> None:
        self._roots = roots
        self.nodes: list[Node] = []
        with graphs:
            self._look_through(roots)

    def _look_through(self, roots: list[Val]) -> None:
        made: dict[Any, Node] = {}
        inline_all(roots)
        for expr in ancestors(roots):
            inputs = tuple(self._source(v, made) for v in expr.inputs if v is not None)
            op = expr.rule.op
            node = Node(f"%{len(self.nodes)}", op.full_name, _output(expr, roots), inputs, expr.rule.attributes)
            self.nodes.append(node)
            made[expr] = node
        self.output = next(iter([self._source(v, made) for v in roots]))

    def _source(self, v: Val, made: dict[Any, Node]) -> Node:
        if v.array is None:
            return made[v.expr]
        if id(v) not in made:
            kind = "Data" if v.spec.known is None else "Constant"
            content = {} if v.spec.numel > 16 else {"value": v.array.tolist()}
            made[id(v)] = Node(f"%{len(self.nodes)}", kind, v, (), content)
            self.nodes.append(made[id(v)])
        return made[id(v)]

    @property
    def num_nodes(self) -> int:
        """Number of operations and inputs."""
        return len(self.nodes)

    def num_ops(self) -> int:
        """Number of operations."""
        return sum(node.op_type not in ("Data", "Constant") for node in self.nodes)

    def estimated_memory_bytes(self) -> int:
        """Bytes of all values, were none of them to share memory."""
        total = 0
        for node in self.nodes:
            count = 1
            for size in node.output_shape:
                count *= size
            total += count * node.output_dtype.itemsize
        return total

    def topological_order(self) -> list[Node]:
        """Nodes, each after what it reads."""
        return list(self.nodes)

    def to_runtime(self) -> RtGraph:
        """The same as a graph of ``pyflame_rt``; data become inputs."""
        with graphs:
            work = Work(self._roots, exact=True)
            return to_graph(work.exprs, work.leaves, work.outputs)

    def __str__(self) -> str:
        return "\n".join(map(repr, self.nodes))


def _output(expr: Expr, roots: list[Val]) -> Val:
    """A value that describes the first output of an expression."""
    for root in roots:
        if root.expr is expr:
            return root
    made = Val(expr.rule.outs[0], expr)
    made.layout = next((v.layout for v in expr.inputs if v is not None and v.layout is not None), None)
    return made


def get_graph(tensor: Tensor) -> Graph:
    """The graph of a tensor.

    Example:
        >>> import pyflame as pf
        >>> pf.get_graph(pf.relu(pf.ones([2]) + 1)).num_ops()
        3
    """
    return Graph([tensor._value])


def get_node(tensor: Tensor) -> Node:
    """The node that makes a tensor.

    Example:
        >>> import pyflame as pf
        >>> pf.get_node(pf.relu(pf.ones([2]))).op_type
        'Relu'
    """
    return get_graph(tensor).output


def print_graph(tensor: Tensor, *, file: Any = None) -> None:
    """Print the graph of a tensor, one line for each node.

    Example:
        >>> import pyflame as pf
        >>> pf.print_graph(pf.relu(pf.tensor([1.0, -1.0])))
        %0 = Data(value=[1.0, -1.0]) : float32[2]
        %1 = Relu(%0) : float32[2]
    """
    (sys.stdout if file is None else file).write(f"{get_graph(tensor)}\n")
