"""Batch splitting proved by dataflow: the axis of the rows is followed from the inputs through every primitive."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

from pyflame_rt.graph import Node, Shape, TensorType
from pyflame_rt.graph.dim import symbol
from pyflame_rt.graph.errors import InputError, PyFlameRTError
from pyflame_rt.ops.core.evaluate import bind_attributes, where
from pyflame_rt.ops.core.inline import instantiate
from pyflame_rt.ops.core.registry import get_op
from pyflame_rt.ops.core.trace import MAX_KNOWN, infer_outputs
from pyflame_rt.ops.core.value import Value
from pyflame_rt.ops.onnx.creation import ConstantOfShape
from pyflame_rt.ops.onnx.shape import Expand, Reshape, Size
from pyflame_rt.ops.onnx.shape import Shape as ShapeOp
from pyflame_rt.ops.onnx.slicing import Pad, Slice, Split, Tile
from pyflame_rt.partition.row_rules import ROWS, Call, Mixed, filled, holds_rows, mentions_rows, rule_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame_rt.graph import Graph, TensorInfo, ValueType
    from pyflame_rt.ops.core.registry import Op

__all__ = ["RowSplit", "find_rows"]


class RowSplit(NamedTuple):
    """Where the rows of a request are.

    Attributes:
        inputs: the axis of each input that has rows.
        outputs: the axis of each output that has them; others are the same for all rows.
        types: of every value of the model, with the number of rows left open.
    """

    inputs: dict[str, int]
    outputs: dict[str, int]
    types: dict[str, ValueType]


def find_rows(graph: Graph, names: Sequence[str] | None = None) -> RowSplit | str:
    """How requests can be cut into rows that do not depend on each other, or the reason why not.

    Args:
        graph: the model.
        names: inputs whose first axis holds rows; found by their sizes where None.

    Example:
        >>> from pyflame_rt.graph import Graph
        >>> g = Graph("g")
        >>> _ = g.add_input("x", ["N", 3]), g.add_output("y", ["N", 3])
        >>> _ = g.add_node("n", "Softmax", ["x"], ["y"], axis=-1)
        >>> find_rows(g).outputs
        {'y': 0}
        >>> g.nodes[0].set_attr("axis", 0)
        >>> find_rows(g)
        "node 'n' (Softmax): ReduceMax goes over the axis of the rows"
    """
    with_rows = _inputs_with_rows(graph, names)
    if not with_rows:
        return "no input has a first axis that could hold rows"
    follower = _Follower(graph, with_rows)
    for node in graph.topological_sort():
        follower.node(node)
    outputs = {}
    for info in graph.outputs:
        if info.name in follower.mixed:
            return follower.mixed[info.name]
        if info.name in follower.depends:
            return f"output {info.name!r} depends on the number of rows"
        axis = follower.axes.get(info.name)
        if axis is not None:
            outputs[info.name] = axis
    if not outputs:
        return "no output has rows"
    types = {name: v.type for name, v in follower.values.items() if v.type is not None}
    return RowSplit(dict.fromkeys(with_rows, 0), outputs, types)


def _inputs_with_rows(graph: Graph, names: Sequence[str] | None) -> list[str]:
    """Inputs whose first size is that of the first input: the same number or name, or both left open."""
    required = {info.name: info for info in graph.required_inputs}
    if names is not None:
        unknown = [name for name in names if name not in required]
        if unknown:
            raise InputError(f"batch_inputs names {unknown[0]!r}; the model's inputs are {', '.join(required)}")
        return list(names)
    sizes = {name: _first_size(info) for name, info in required.items()}
    found = [name for name, size in sizes.items() if size != "none"]
    return [name for name in found if sizes[name] == sizes[found[0]]]


def _first_size(info: TensorInfo) -> object:
    kind = info.type
    if not isinstance(kind, TensorType) or not kind.shape:
        return "none"
    return kind.shape[0]


class _Follower:
    def __init__(self, graph: Graph, with_rows: Sequence[str]) -> None:
        self.values: dict[str, Value] = {}
        self.axes: dict[str, int | None] = {}
        self.depends: set[str] = set()  # values that are the same for all rows but for how many there are
        self.mixed: dict[str, str] = {}  # values that depend on several rows at once, and why
        self.numbers = itertools.count()
        for name, tensor in graph.initializers.items():
            contents = tensor.raw() if tensor.num_elements <= MAX_KNOWN else None
            self.values[name] = Value(name, TensorType(tensor.dtype, tensor.shape), contents)
        for info in graph.required_inputs:
            self.values[info.name] = Value(info.name, self._opened(info, info.name in with_rows))
            self.axes[info.name] = 0 if info.name in with_rows else None

    def _opened(self, info: TensorInfo, rows: bool) -> ValueType:
        """The type of an input with a name for every open size."""
        kind = info.type
        if not isinstance(kind, TensorType) or kind.shape is None:
            return kind
        dims: list[object] = [symbol(f"size_{next(self.numbers)}") if d is None else d for d in kind.shape]
        if rows:
            dims[0] = symbol(ROWS)
        return TensorType(kind.dtype, Shape(dims))

    def node(self, node: Node) -> None:
        """Follow the rows through a node and what it is composed of."""
        pending = [node]
        while pending:
            inner = pending.pop()
            known = next((self.mixed[n] for n in inner.inputs if n in self.mixed), "")
            try:
                if not known:
                    pending.extend(reversed(self._step(inner)))
                    continue
            except (Mixed, PyFlameRTError) as problem:
                text = str(problem)
                known = text if text.startswith("node ") else f"{where(node)}: {text}"
            self.mixed.update(dict.fromkeys(filter(None, inner.outputs), known))

    def _step(self, node: Node) -> list[Node]:
        """Take a node, or give the nodes it is composed of."""
        op = get_op(node.op_type, node.domain)
        inputs = [self.values.get(n, Value(n, None)) if n else None for n in node.inputs]
        axes = [self.axes.get(n) if n else None for n in node.inputs]
        if op.random:
            raise Mixed(f"{op.full_name} draws other numbers for a part of the rows")
        attributes = bind_attributes(node, op)
        touched = any(a is not None for a in axes) or any(n in self.depends for n in node.inputs)
        if not touched:
            self._keep(node, infer_outputs(op, inputs, attributes), None)
            return []
        if op.composite and rule_of(op) is None:
            body = instantiate(node, op, inputs, lambda hint: f"{hint}.{next(self.numbers)}")
            for name, tensor in body.constants.items():
                self.values[name] = Value(name, TensorType(tensor.dtype, tensor.shape), tensor.raw())
            return body.nodes
        self._primitive(node, op, inputs, axes, attributes)
        return []

    def _primitive(
        self, node: Node, op: Op, inputs: list[Value | None], axes: list[int | None], attributes: dict[str, object]
    ) -> None:
        outputs = infer_outputs(op, inputs, attributes)
        if op.full_name in (ShapeOp.name, Size.name) or all(a is None for a in axes):
            self._sizes(node, op, outputs, Call(op.full_name, inputs, axes, outputs, attributes))
            return
        if op.full_name not in (Reshape.name, Expand.name, Slice.name, Pad.name, Tile.name, Split.name):
            late = [n for n in node.inputs if n in self.depends]
            if late:
                raise Mixed(f"{late[0]!r} depends on the number of rows, and {op.full_name} computes with it")
        rule = rule_of(op)
        if rule is None:
            raise Mixed(f"nothing is known of the rows of {op.full_name}")
        found = rule(Call(op.full_name, inputs, axes, outputs, attributes))
        for value, axis in zip(outputs, found, strict=False):
            _check_sizes(op, value, axis)
        self._keep(node, outputs, found)

    def _sizes(self, node: Node, op: Op, outputs: list[Value], call: Call) -> None:
        """Sizes as values: known as formulas of the number of rows, or not understood."""
        if op.full_name in (ConstantOfShape.name, Expand.name):
            self._keep(node, outputs, filled(call))
            return
        for name, value in zip(node.outputs, outputs, strict=False):
            if value.known is None:
                raise Mixed(f"{op.full_name} computes with the number of rows")
            self.values[name] = Value(name, value.type, value.known)
            if any(mentions_rows(v) for v in value.known.ravel()):
                self.depends.add(name)

    def _keep(self, node: Node, outputs: list[Value], axes: list[int | None] | None) -> None:
        for i, (name, value) in enumerate(zip(node.outputs, outputs, strict=False)):
            if name:
                self.values[name] = Value(name, value.type, value.known)
                self.axes[name] = None if axes is None else axes[i]


def _check_sizes(op: Op, value: Value, axis: int | None) -> None:
    """Rows are along the axis that was found, and no other size changes with their number."""
    if axis is None:
        return
    for i, dim in enumerate(value.shape):
        if holds_rows(dim) if i == axis else not mentions_rows(dim):
            continue
        raise Mixed(f"{op.full_name} makes {value.type}, whose sizes change with the number of rows")
