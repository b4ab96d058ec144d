"""Graphs for any size of some axes: a model is traced with several sizes, and what differs is computed from them.

Lazy graphs have sizes, not symbols. Traces of one model with different batch sizes have the same operators, and differ
in constants: the shapes that Reshape, Expand or Slice are given. Each such number is written as a function of the sizes
(``a*size + b``, or a product of sizes), checked on a further trace, and computed in the graph from its inputs.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph import DType, Graph, Node, Tensor, TensorInfo, TensorType
from pyflame_rt.graph.errors import UnsupportedOperatorError
from pyflame_rt.ops.onnx.arithmetic import Add, Mul
from pyflame_rt.ops.onnx.cast import Cast
from pyflame_rt.ops.onnx.creation import Range
from pyflame_rt.ops.onnx.shape import Reshape, Shape, Squeeze
from pyflame_rt.ops.onnx.slicing import Concat

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyflame.size_names import Axes

__all__ = ["dynamic_graph"]


@dataclass(frozen=True, slots=True)
class _Size:
    """``factor * product of sizes + offset``."""

    factor: int
    names: tuple[str, ...]
    offset: int = 0

    def at(self, sizes: Mapping[str, int]) -> int:
        value = self.factor
        for name in self.names:
            value *= sizes[name]
        return value + self.offset


class _Points:
    """The sizes that a model was traced with, and the graphs."""

    def __init__(self, sizes: list[dict[str, int]], graphs: list[Graph]) -> None:
        self.sizes = sizes
        self.graphs = graphs
        names = list(sizes[0])
        self.subsets = [s for n in range(1, len(names) + 1) for s in itertools.combinations(names, n)]

    def fit(self, values: Sequence[int]) -> _Size | None:
        """A function of the sizes that has these values; None when there is none of the known form."""
        if len(set(values)) == 1:
            return _Size(0, (), values[0])
        for names in self.subsets:
            products = [_Size(1, names).at(sizes) for sizes in self.sizes]
            low, high = (
                min(range(len(values)), key=products.__getitem__),
                max(range(len(values)), key=products.__getitem__),
            )
            span = products[high] - products[low]
            if not span or (values[high] - values[low]) % span:
                continue
            factor = (values[high] - values[low]) // span
            size = _Size(factor, names, values[low] - factor * products[low])
            if all(size.at(s) == v for s, v in zip(self.sizes, values, strict=True)):
                return size
        return None


def dynamic_graph(
    make: Callable[[tuple[Any, ...]], Graph], arrays: Sequence[np.ndarray[Any, Any]], axes: Axes
) -> Graph:
    """The graph of a model for any size of some axes.

    Args:
        make: Traces the model with these arrays.
        arrays: An example.
        axes: Which axes are dynamic.
    """
    points = _traces(make, arrays, axes)
    return _Merge(points, axes).graph()


def _traces(make: Callable[[tuple[Any, ...]], Graph], arrays: Sequence[np.ndarray[Any, Any]], axes: Axes) -> _Points:
    base = {name: arrays[places[0][0]].shape[places[0][1]] for name, places in axes.items()}
    # One is the size that broadcasts, so that a trace with it says little.
    start = {name: max(size, 2) for name, size in base.items()}
    graphs, sizes = [], []

    def trace(at: dict[str, int]) -> Graph | Exception:
        try:
            return make(tuple(_resized(arrays, axes, at)))
        except Exception as error:  # noqa: BLE001 - whatever the model says to this size
            return error

    def keep(at: dict[str, int], graph: Graph) -> None:
        sizes.append(at)
        graphs.append(graph)

    first = trace(start)
    if isinstance(first, Exception):
        raise ValueError(f"the model does not run with {_text(start)}: {first}") from first
    keep(start, first)
    last = dict(start)
    for name, size in start.items():
        others = [n for n in (2 * size, size + 1, 3 * size, size - 1, size // 2) if n >= 2 and n != size]
        found = 0
        failed: Exception | None = None
        for other in others:
            made = trace({**start, name: other})
            if isinstance(made, Exception):
                failed = made
                continue
            keep({**start, name: other}, made)
            last[name] = other
            found += 1
            if found == 2:
                break
        if not found:
            raise ValueError(f"the model runs with no other size of {name!r} than {size}: {failed}") from failed
    if len(start) > 1:
        together = trace(last)
        if isinstance(together, Exception):
            raise ValueError(f"the model does not run with {_text(last)}: {together}") from together
        keep(last, together)
    return _Points(sizes, graphs)


def _text(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} = {size}" for name, size in sizes.items())


def _resized(
    arrays: Sequence[np.ndarray[Any, Any]], axes: Axes, sizes: Mapping[str, int]
) -> list[np.ndarray[Any, Any]]:
    """The example with other sizes: what is there is repeated, so that values stay ones the model knows."""
    made = list(arrays)
    for name, places in axes.items():
        for number, axis in places:
            array = made[number]
            if not array.shape[axis]:
                raise ValueError(f"{name!r} is 0 in the example; at least 1 is needed")
            made[number] = np.take(array, np.arange(sizes[name]) % array.shape[axis], axis=axis)
    return made


class _Merge:
    """One graph from several traces."""

    def __init__(self, points: _Points, axes: Axes) -> None:
        self.points, self.axes = points, axes
        self.first = points.graphs[0]
        self.made = Graph(self.first.name)
        self.made.initializers = dict(self.first.initializers)
        self._sizes: dict[Any, str] = {}
        self._count = itertools.count()

    def graph(self) -> Graph:
        """The graph."""
        counts = {len(graph.nodes) for graph in self.points.graphs}
        if len(counts) > 1:
            raise UnsupportedOperatorError(
                f"the model does other things for other sizes (traces have {sorted(counts)} operators), so that one "
                "graph for all sizes cannot be exported: export it without dynamic axes, one file for each size"
            )
        for number, info in enumerate(self.first.inputs):
            self.made.inputs.append(self._described(info, self._input_shape(number, info)))
        for nodes in zip(*(graph.nodes for graph in self.points.graphs), strict=True):
            self.made.nodes.append(self._node(nodes))
        for infos in zip(*(graph.outputs for graph in self.points.graphs), strict=True):
            self.made.outputs.append(self._described(infos[0], self._output_shape(infos)))
        used = {name for node in self.made.nodes for name in node.inputs} | {info.name for info in self.made.outputs}
        self.made.initializers = {name: t for name, t in self.made.initializers.items() if name in used}
        return self.made

    @staticmethod
    def _described(info: TensorInfo, shape: list[Any]) -> TensorInfo:
        kind = info.type
        assert isinstance(kind, TensorType)
        return TensorInfo(info.name, shape, kind.dtype)

    def _input_shape(self, number: int, info: TensorInfo) -> list[Any]:
        shape: list[Any] = list(_sizes_of(info))
        for name, places in self.axes.items():
            for at, axis in places:
                if at == number:
                    shape[axis] = name
        return shape

    def _output_shape(self, infos: Sequence[TensorInfo]) -> list[Any]:
        shape: list[Any] = []
        for values in zip(*(_sizes_of(info) for info in infos), strict=True):
            size = self.points.fit(values)
            if size is not None and not size.names:
                shape.append(values[0])
            else:
                plain = size is not None and size.factor == 1 and not size.offset and len(size.names) == 1
                shape.append(size.names[0] if size is not None and plain else None)
        return shape

    # ------------------------------------------------------------------ nodes

    def _node(self, nodes: Sequence[Node]) -> Node:
        first = nodes[0]
        for other in nodes[1:]:
            if (other.op_type, other.domain, len(other.inputs)) != (first.op_type, first.domain, len(first.inputs)):
                self._refuse(first, f"is {other.full_name} for other sizes")
            if other.attributes != first.attributes:
                self._refuse(first, "has attributes that depend on the sizes")
        inputs = [self._input(nodes, place) for place in range(len(first.inputs))]
        return Node(first.name, first.op_type, inputs, list(first.outputs), first.attributes, first.domain)

    def _refuse(self, node: Node, why: str) -> None:
        raise UnsupportedOperatorError(
            f"node {node.name!r} ({node.full_name}) {why}, so that it cannot be exported for all sizes of "
            f"{', '.join(self.axes)}: write the model without that number, or export it without dynamic axes"
        )

    def _input(self, nodes: Sequence[Node], place: int) -> str:
        first = nodes[0]
        name = first.inputs[place]
        tensors = [g.initializers.get(n.inputs[place]) for g, n in zip(self.points.graphs, nodes, strict=True)]
        if any(t is None for t in tensors):
            if any(t is not None for t in tensors) or {n.inputs[place] for n in nodes} != {name}:
                self._refuse(first, "reads something else for other sizes")
            return name
        if len({id(t) for t in tensors}) == 1:
            return name
        arrays = [np.asarray(t.raw()) for t in tensors if t is not None]
        if all(a.shape == arrays[0].shape and np.array_equal(a, arrays[0]) for a in arrays[1:]):
            return name
        made = self._computed(first, place, arrays)
        if made is None:
            self._refuse(first, f"reads a constant (input {place}) that depends on the sizes in an unknown way")
        assert made is not None
        return made

    def _computed(self, node: Node, place: int, arrays: list[np.ndarray[Any, Any]]) -> str | None:
        """A value that has these contents for these sizes."""
        dtype, kind = arrays[0].dtype, arrays[0].dtype.kind
        if len({a.shape for a in arrays}) > 1:
            return self._counting(arrays)
        if arrays[0].ndim > 1 or kind not in "iuf" or (kind == "f" and arrays[0].ndim):
            return None
        flat = [a.reshape(-1).tolist() for a in arrays]
        if kind == "f" and any(v != int(v) for row in flat for v in row):
            return None
        sizes = [self.points.fit([int(v) for v in values]) for values in zip(*flat, strict=True)]
        known = [size for size in sizes if size is not None]
        if len(known) < len(sizes):
            return None
        if node.op_type == Reshape.name and place == 1 and sum(bool(s.names) for s in known) == 1 and -1 not in flat[0]:
            return self._constant(np.array([-1 if s.names else s.offset for s in known], np.int64))
        name = self._vector(tuple(known))
        if not arrays[0].ndim:
            name = self._emit(Squeeze.name, [name, self._constant(np.array([0]))])
        return name if dtype == np.int64 else self._emit(Cast.name, [name], to=DType.of(dtype).onnx)

    def _counting(self, arrays: list[np.ndarray[Any, Any]]) -> str | None:
        """0, 1, 2, ... up to a size."""
        for array in arrays:
            if array.ndim != 1 or array.dtype.kind not in "if" or not np.array_equal(array, np.arange(len(array))):
                return None
        size = self.points.fit([len(array) for array in arrays])
        if size is None:
            return None
        end = self._emit(Squeeze.name, [self._vector((size,)), self._constant(np.array([0]))])
        made = self._emit(Range.name, [self._constant(np.array(0)), end, self._constant(np.array(1))])
        dtype = arrays[0].dtype
        return made if dtype == np.int64 else self._emit(Cast.name, [made], to=DType.of(dtype).onnx)

    # ------------------------------------------------------------------ numbers from sizes

    def _emit(self, op: str, inputs: list[str], **attributes: Any) -> str:
        key = (op, tuple(inputs), tuple(sorted(attributes.items())))
        if key not in self._sizes:
            name = self._sizes[key] = f"size_{next(self._count)}"
            self.made.nodes.append(Node(name, op, inputs, [name], attributes, ""))
        return self._sizes[key]

    def _constant(self, array: np.ndarray[Any, Any]) -> str:
        data = np.asarray(array, np.int64)
        key = ("constant", data.shape, data.tobytes())
        if key not in self._sizes:
            self._sizes[key] = f"number_{next(self._count)}"
            self.made.add_initializer(self._sizes[key], Tensor(data))
        return self._sizes[key]

    def _axis(self, name: str) -> str:
        """A dynamic size, as a vector of one."""
        number, axis = self.axes[name][0]
        return self._emit(Shape.name, [self.first.inputs[number].name], start=axis, end=axis + 1)

    def _one(self, size: _Size) -> str:
        if not size.names:
            return self._constant(np.array([size.offset]))
        value = self._axis(size.names[0])
        for name in size.names[1:]:
            value = self._emit(Mul.name, [value, self._axis(name)])
        if size.factor != 1:
            value = self._emit(Mul.name, [value, self._constant(np.array([size.factor]))])
        return value if not size.offset else self._emit(Add.name, [value, self._constant(np.array([size.offset]))])

    def _vector(self, sizes: tuple[_Size, ...]) -> str:
        parts = [self._one(size) for size in sizes]
        return parts[0] if len(parts) == 1 else self._emit(Concat.name, parts, axis=0)


def _sizes_of(info: TensorInfo) -> list[int]:
    kind = info.type
    assert isinstance(kind, TensorType)
    assert kind.shape is not None
    return [int(d) for d in kind.shape]  # type: ignore[arg-type]
