"""Tensor parallelism: weights of products and convolutions cut by output or input channels, SPMD over devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pyflame_rt.graph import Graph, Tensor, TensorType
from pyflame_rt.ops.core.registry import find_op
from pyflame_rt.ops.onnx.arithmetic import Sum
from pyflame_rt.ops.onnx.cast import Identity
from pyflame_rt.ops.onnx.conv import Conv
from pyflame_rt.ops.onnx.matmul import Gemm, MatMul
from pyflame_rt.ops.onnx.maxpool import MaxPool
from pyflame_rt.ops.onnx.norm import BatchNormalization
from pyflame_rt.ops.onnx.pool import AveragePool, GlobalAveragePool, GlobalMaxPool
from pyflame_rt.ops.onnx.slicing import Concat
from pyflame_rt.partition.schedule import row_bounds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyflame_rt.graph import Node, ValueType
    from pyflame_rt.ops.core.registry import Op

__all__ = ["Sharded", "shard_graph"]

Bounds = list[tuple[int, int]]


class _State(NamedTuple):
    """How a value lies: whole on every device, cut along an axis, or as parts of a sum."""

    kind: str
    axis: int = 0
    bounds: tuple[tuple[int, int], ...] = ()


_WHOLE, _PARTIAL = _State("whole"), _State("partial")


class Sharded(NamedTuple):
    """A graph whose nodes belong to devices.

    Attributes:
        graph: the rewritten graph.
        device: number of the device of each node, by its first output.
        source: the model's node that each stands for, by its first output.
        cut: names of the nodes whose weights were cut.
        origin: the model's value that each node makes a share or a copy of, by its first output.
    """

    graph: Graph
    device: dict[str, int]
    source: dict[str, str]
    cut: list[str]
    origin: dict[str, str]


def shard_graph(graph: Graph, count: int, types: Mapping[str, ValueType]) -> Sharded:
    """Cut the constant weights of Gemm, MatMul and Conv over devices; what needs a whole value gathers it first.

    Args:
        graph: left as it is; without nodes that nothing reads.
        count: how many devices.
        types: of its values.
    """
    return _Sharder(graph, count, types).run()


class _Sharder:
    def __init__(self, graph: Graph, count: int, types: Mapping[str, ValueType]) -> None:
        self.graph, self.count, self.types = graph, count, types
        self.made = Graph(graph.name)
        self.made.opsets, self.made.metadata = dict(graph.opsets), dict(graph.metadata)
        self.made.inputs = [info.copy() for info in graph.inputs]
        self.made.initializers = dict(graph.initializers)
        self.mark = "@"
        while any(self.mark in n for node in graph.nodes for n in (*node.inputs, *node.outputs)):
            self.mark += "@"
        self.states: dict[str, _State] = {}
        self.inner = {n for node in graph.nodes for n in node.outputs}
        self.gathered: set[str] = set()
        self.device: dict[str, int] = {}
        self.source: dict[str, str] = {}
        self.cut: list[str] = []
        self.origin: dict[str, str] = {}
        self.rules: dict[Op, Callable[[Node], bool]] = {
            Gemm: self._gemm,
            MatMul: self._matmul,
            Conv: self._conv,
            BatchNormalization: self._batch_norm,
            **dict.fromkeys((AveragePool, GlobalAveragePool, GlobalMaxPool, MaxPool), self._channelwise),
        }

    def run(self) -> Sharded:
        for node in self.graph.topological_sort():
            op = find_op(node.op_type, node.domain)
            rule = None if op is None else self._elementwise if op.elementwise else self.rules.get(op)
            if rule is None or not rule(node):
                self._replicate(node)
        finals = []
        for info in self.graph.outputs:
            name = info.name
            if name in self.inner:  # the first device gives the outputs
                whole = self._whole(name, 0)
                self._emit(0, name, Identity.name, [whole], [name])
            finals.append(info.copy())
        self.made.outputs = finals
        kept = self.made.needed_for([info.name for info in finals])
        return Sharded(kept, self.device, self.source, self.cut, self.origin)

    # ------------------------------------------------------------------ names

    def _at(self, name: str, device: int) -> str:
        return f"{name}{self.mark}{device}" if name in self.inner else name

    def _state(self, name: str) -> _State:
        return self.states.get(name, _WHOLE)

    def _emit(
        self,
        device: int,
        source: str,
        op: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        attributes: Mapping[str, Any] | None = None,
        domain: str = "",
    ) -> None:
        self.made.add_node(f"{source}{self.mark}{device}:{op}", op, inputs, outputs, attributes, domain=domain)
        self.device[outputs[0]], self.source[outputs[0]] = device, source
        value = outputs[0].removesuffix(f"{self.mark}{device}")
        if value in self.inner:
            self.origin[outputs[0]] = value

    def _constant(self, name: str, array: np.ndarray[Any, Any]) -> str:
        self.made.initializers[name] = Tensor(np.ascontiguousarray(array))
        return name

    def _slice(self, name: str, axis: int, piece: tuple[int, int], device: int) -> str:
        """A cut of a weight."""
        array = np.take(self.graph.initializers[name].raw(), range(*piece), axis=axis)
        return self._constant(f"{name}{self.mark}{device}/{axis}", array)

    def _whole(self, name: str, device: int) -> str:
        """The whole of a value on a device: gathered or summed where it is not there."""
        state = self._state(name)
        if state.kind == "whole" or not name:
            return self._at(name, device)
        full = f"{name}{self.mark}{device}+"
        if full not in self.gathered:
            self.gathered.add(full)
            pieces = [self._at(name, d) for d in range(self.count)]
            if state.kind == "partial":
                self._emit(device, name, Sum.name, pieces, [full])
            else:
                self._emit(device, name, Concat.name, pieces, [full], {"axis": state.axis})
        return full

    def _replicate(self, node: Node) -> None:
        """Every device computes it; what nobody needs falls away. What may differ each time is computed once."""
        op = find_op(node.op_type, node.domain)
        once = op is None or op.random or op.control
        for d in range(1 if once else self.count):
            inputs = [self._whole(n, d) if n else "" for n in node.inputs]
            outputs = [self._at(n, d) if n else "" for n in node.outputs]
            self._emit(d, node.name, node.op_type, inputs, outputs, node.attributes, node.domain)
        for d in range(1, self.count) if once else ():
            for name in filter(None, node.outputs):
                self._emit(d, node.name, Identity.name, [self._at(name, 0)], [self._at(name, d)])

    # ------------------------------------------------------------------ rules: True where the node was cut

    def _weight(self, name: str, rank: int) -> list[int] | None:
        """Sizes of a constant weight of this rank."""
        fixed = name in self.graph.initializers and all(info.name != name for info in self.graph.inputs)
        if not fixed or len(self.graph.initializers[name].shape) != rank:
            return None
        return [int(d) for d in self.graph.initializers[name].shape]  # type: ignore[arg-type]

    def _rank(self, name: str) -> int | None:
        kind = self.types.get(name)
        return len(kind.shape) if isinstance(kind, TensorType) and kind.shape is not None else None

    def _matmul(self, node: Node) -> bool:
        shape, rank = self._weight(node.inputs[1], 2), self._rank(node.inputs[0])
        if shape is None or rank is None or rank < 2:
            return False
        return self._product(node, rank, 0, 1, shape, "")

    def _gemm(self, node: Node) -> bool:
        shape = self._weight(node.inputs[1], 2)
        bias = node.inputs[2] if len(node.inputs) > 2 else ""
        if shape is None or node.get_attr("transA", 0):
            return False
        inner, outer = (1, 0) if node.get_attr("transB", 0) else (0, 1)
        if bias and self._weight(bias, 1) != [shape[outer]]:
            return False
        return self._product(node, 2, inner, outer, shape, bias)

    def _conv(self, node: Node) -> bool:
        rank = self._rank(node.inputs[0])
        x, weight, *rest = node.inputs
        shape = None if rank is None else self._weight(weight, rank)
        bias = rest[0] if rest else ""
        if shape is None or (bias and self._weight(bias, 1) is None):
            return False
        group, state = node.get_attr("group", 1), self._state(x)
        if group == 1:
            return self._product(node, 2, 1, 0, shape, bias)  # channels are axis 1, the last of two
        if state.kind != "split" or state.axis != 1 or group != shape[0] or shape[1] != 1:
            return False
        for d, piece in enumerate(state.bounds):
            biases = [self._slice(bias, 0, piece, d)] if bias else []
            inputs = [self._at(x, d), self._slice(weight, 0, piece, d), *biases]
            attributes = {**node.attributes, "group": piece[1] - piece[0]}
            self._emit(d, node.name, Conv.name, inputs, [self._at(node.outputs[0], d)], attributes)
        return self._is(node, state)

    def _product(self, node: Node, rank: int, inner: int, outer: int, shape: Sequence[int], bias: str) -> bool:
        """A product with a weight that has its input channels along ``inner`` and its outputs along ``outer``."""
        x, weight, y = node.inputs[0], node.inputs[1], node.outputs[0]
        state = self._state(x)
        if state.kind == "split" and state.axis == rank - 1:  # cut along what is summed over
            for d, piece in enumerate(state.bounds):
                biases = [bias] if bias and d == 0 else []
                inputs = [self._at(x, d), self._slice(weight, inner, piece, d), *biases]
                self._emit(d, node.name, node.op_type, inputs, [self._at(y, d)], node.attributes)
            return self._is(node, _PARTIAL)
        if shape[outer] < self.count:
            return False
        bounds = tuple(row_bounds(shape[outer], self.count))
        for d, piece in enumerate(bounds):
            biases = [self._slice(bias, 0, piece, d)] if bias else []
            inputs = [self._whole(x, d), self._slice(weight, outer, piece, d), *biases]
            self._emit(d, node.name, node.op_type, inputs, [self._at(y, d)], node.attributes)
        return self._is(node, _State("split", rank - 1, bounds))

    def _is(self, node: Node, state: _State) -> bool:
        self.states[node.outputs[0]] = state
        if node.op_type in (Conv.name, Gemm.name, MatMul.name):
            self.cut.append(node.name or node.outputs[0])
        return True

    def _elementwise(self, node: Node) -> bool:
        return self._with_numbers(node) or self._binary(node)

    def _with_numbers(self, node: Node) -> bool:
        """One operand that is cut, besides it at most single numbers."""
        state = self._state(node.inputs[0])
        if state.kind != "split" or any(self._rank(n) != 0 for n in node.inputs[1:] if n):
            return False
        for d in range(self.count):
            inputs = [self._at(node.inputs[0], d), *(self._whole(n, d) if n else "" for n in node.inputs[1:])]
            self._emit(d, node.name, node.op_type, inputs, [self._at(node.outputs[0], d)], node.attributes, node.domain)
        return self._is(node, state)

    def _binary(self, node: Node) -> bool:
        """Cut operands stay cut beside another cut alike, or a constant that can be cut."""
        states = [self._state(n) for n in node.inputs]
        state = next((s for s in states if s.kind == "split"), None)
        rank = self._rank(node.outputs[0])
        if state is None or len(states) != 2 or rank is None:
            return False
        ways = [self._operand(n, state, rank) for n in node.inputs]
        if any(way is None for way in ways):
            return False
        for d, piece in enumerate(state.bounds):
            inputs = [way(d, piece) for way in ways if way is not None]
            self._emit(d, node.name, node.op_type, inputs, [self._at(node.outputs[0], d)], node.attributes, node.domain)
        return self._is(node, state)

    def _operand(self, name: str, state: _State, rank: int) -> Callable[[int, tuple[int, int]], str] | None:
        """How a device gets its cut of an operand; None where it would need all of it."""
        own = self._rank(name)
        if own is None:
            return None
        if self._state(name).kind == "split":
            return (lambda d, _: self._at(name, d)) if (own, self._state(name)) == (rank, state) else None
        weight = self._weight(name, own)
        if weight is None:
            return None
        axis = state.axis - (rank - own)
        if axis < 0 or weight[axis] == 1:
            return lambda _d, _: name
        return lambda d, piece: self._slice(name, axis, piece, d)

    def _channelwise(self, node: Node) -> bool:
        state = self._state(node.inputs[0])
        if state.kind != "split" or state.axis != 1 or len([n for n in node.outputs if n]) != 1:
            return False
        for d in range(self.count):
            inputs, outputs = [self._at(node.inputs[0], d)], [self._at(node.outputs[0], d)]
            self._emit(d, node.name, node.op_type, inputs, outputs, node.attributes)
        return self._is(node, state)

    def _batch_norm(self, node: Node) -> bool:
        state = self._state(node.inputs[0])
        if state.kind != "split" or state.axis != 1 or node.get_attr("training_mode", 0) or len(node.outputs) != 1:
            return False
        if any(self._weight(n, 1) is None for n in node.inputs[1:]):
            return False
        for d, piece in enumerate(state.bounds):
            inputs = [self._at(node.inputs[0], d), *(self._slice(n, 0, piece, d) for n in node.inputs[1:])]
            self._emit(d, node.name, node.op_type, inputs, [self._at(node.outputs[0], d)], node.attributes)
        return self._is(node, state)
