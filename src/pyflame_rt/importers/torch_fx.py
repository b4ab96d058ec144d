"""Lowering of torch.fx graphs of aten operators: what AOTAutograd traces, to graphs of the runtime."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, NamedTuple

from pyflame_rt.graph import Dim, DType, Graph, Shape, TensorInfo, TensorType
from pyflame_rt.graph.dim import dim_from_text
from pyflame_rt.graph.errors import UndeterminedError, UnsupportedOperatorError
from pyflame_rt.graph.types import AnyType
from pyflame_rt.importers.aten.scalars import SCALARS
from pyflame_rt.importers.aten.symbols import SymbolicTracer
from pyflame_rt.importers.aten.table import find_lowering, get_lowering
from pyflame_rt.importers.aten.values import Num, number
from pyflame_rt.ops.core.value import Value, constant, scope
from pyflame_rt.ops.onnx.cast import Identity

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["FxGraph", "is_lowered", "lower_fx", "operator_name"]


class FxGraph(NamedTuple):
    """A lowered graph, and how the results of the torch graph are made of its outputs.

    Attributes:
        graph: of the runtime.
        inputs: for each placeholder the name of the graph's input, or None where it is not read.
        results: for each result ``("input", i)``, ``("output", i)``, ``("number", i)`` or ``("plain", value)``.
        orders: for each result the order of its axes in memory, outermost first; None when it is that of the axes.
    """

    graph: Graph
    inputs: list[str | None]
    results: list[tuple[str, Any]]
    orders: list[list[int] | None]


def operator_name(target: Any) -> tuple[str, str, str]:
    """Namespace, name and overload of an operator; the name alone for a function of Python."""
    if not hasattr(target, "overloadpacket"):
        return "", getattr(target, "__name__", str(target)), ""
    space, _, rest = str(target.name()).partition("::")
    name, _, overload = rest.partition(".")
    return space, name, overload


def is_lowered(target: Any) -> bool:
    """Whether a node of this target becomes nodes of ours."""
    space, name, overload = operator_name(target)
    if space:
        return space in ("aten", "prims") and find_lowering(name, overload) is not None
    return target is operator.getitem or name.removeprefix("sym_") in SCALARS


class _Reader:
    def __init__(self, name: str) -> None:
        self.tracer = SymbolicTracer(name, {})
        self.values: dict[Any, Any] = {}
        self.inputs: list[str | None] = []

    # ------------------------------------------------------------------ inputs

    def placeholders(self, nodes: Sequence[Any]) -> None:
        """Tensors first: symbols are read off their shapes."""
        kinds = [_described(node.meta["val"]) for node in nodes]
        self.inputs = [f"in_{i}" if isinstance(kind, TensorType) else None for i, kind in enumerate(kinds)]
        for node, kind, name in zip(nodes, kinds, self.inputs, strict=True):
            if isinstance(kind, TensorType) and name is not None:
                self.values[node] = self.tracer.symbolic_input(name, kind)
        for i, (node, kind) in enumerate(zip(nodes, kinds, strict=True)):
            if isinstance(kind, TensorType):
                continue
            if isinstance(kind, Dim) and not kind.symbols() <= set(self.tracer.symbols):
                self.inputs[i] = f"in_{i}"
                kind = Num(self.tracer.input(f"in_{i}", TensorType(DType.Int64, Shape([]))), int)
            self.values[node] = kind

    # ------------------------------------------------------------------ nodes

    def node(self, node: Any, module: Any) -> None:
        """One call, or a constant."""
        if node.op == "get_attr":
            self.values[node] = constant(operator.attrgetter(node.target)(module).detach().cpu().numpy())
            return
        if node.op != "call_function":
            raise UnsupportedOperatorError(f"{node.op} {node.target} in a graph of torch is not lowered")
        args = [self.argument(a) for a in node.args]
        kwargs = {k: self.argument(v) for k, v in node.kwargs.items()}
        space, name, overload = operator_name(node.target)
        if node.target is operator.getitem:
            self.values[node] = args[0][args[1]]
        elif not space and name.removeprefix("sym_") in SCALARS:
            self.values[node] = SCALARS[name.removeprefix("sym_")](*args)
        else:
            self.values[node] = self._lowered(name, overload, args, kwargs)

    def _lowered(self, name: str, overload: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        try:
            return get_lowering(name, overload)(*args, **kwargs)
        except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
            raise UnsupportedOperatorError(f"aten::{name} does not lower: {type(error).__name__}: {error}") from error

    def argument(self, value: Any) -> Any:
        """An argument of a call, as lowerings take it."""
        import torch

        if isinstance(value, torch.fx.Node):
            return self.values[value]
        if isinstance(value, (list, tuple)):
            return [self.argument(v) for v in value]
        if isinstance(value, torch.dtype):
            return DType.of(str(value).removeprefix("torch."))
        if isinstance(value, (torch.device, torch.memory_format, torch.layout)):
            return None
        return _number(value) if isinstance(value, torch.SymInt) else value

    def results(self, items: Sequence[Any], placeholders: Sequence[Any]) -> list[tuple[str, Any]]:
        """Outputs of the graph, and where each result is found."""
        import torch

        places = {node: i for i, node in enumerate(placeholders)}
        found: list[tuple[str, Any]] = []
        for item in items:
            if not isinstance(item, torch.fx.Node):
                found.append(("plain", item))
            elif item in places:
                found.append(("input", places[item]))
            else:
                value = self.values[item]
                kind = "output" if isinstance(value, Value) else "number"
                found.append((kind, self._output(value if isinstance(value, Value) else number(value))))
        return found

    def _output(self, value: Value) -> int:
        graph = self.tracer.graph
        name = f"out_{len(graph.outputs)}"
        graph.add_node(name, Identity.name, [value.ref], [name])
        graph.add_output(TensorInfo(name, type=value.type or AnyType()))
        return len(graph.outputs) - 1


def _described(value: Any) -> Any:
    """The type of a tensor, or a number, from what torch notes of a node."""
    import torch

    if isinstance(value, torch.Tensor):
        dtype = DType.of(str(value.dtype).removeprefix("torch."))
        return TensorType(dtype, Shape([_number(n) for n in value.shape]))
    return _number(value)


def _order(item: Any) -> list[int] | None:
    """How torch would lay out a result; operators that draw random numbers go by it."""
    import torch

    value = item.meta.get("val") if isinstance(item, torch.fx.Node) else None
    if not isinstance(value, torch.Tensor) or value.dim() < 2:
        return None
    steps = [int(s.node.hint) if isinstance(s, torch.SymInt) else int(s) for s in value.stride()]
    order = sorted(range(len(steps)), key=lambda i: -steps[i])
    return order if order != sorted(order) and all(steps) else None


def _number(value: Any) -> Any:
    import torch

    if not isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return value
    if not isinstance(value, torch.SymInt):
        raise UndeterminedError("a number that is no size is only known when running")
    return dim_from_text(str(value.node.expr))


def lower_fx(module: Any, name: str = "fx") -> FxGraph:
    """Lower the graph of a ``torch.fx.GraphModule``.

    Raises:
        UnsupportedOperatorError: a node has no lowering.
    """
    reader = _Reader(name)
    nodes = list(module.graph.nodes)
    placeholders = [node for node in nodes if node.op == "placeholder"]
    with scope(reader.tracer):
        reader.placeholders(placeholders)
        for node in nodes:
            if node.op not in ("placeholder", "output"):
                reader.node(node, module)
        given = nodes[-1].args[0]
        listed = list(given) if isinstance(given, (list, tuple)) else [given]
        results = reader.results(listed, placeholders)
    read = {source for node in reader.tracer.graph.nodes for source in node.inputs}
    inputs = [n if n in read else None for n in reader.inputs]
    graph = reader.tracer.graph
    graph.inputs = [info for info in graph.inputs if info.name in read]
    orders = [_order(item) if kind == "output" else None for item, (kind, _) in zip(listed, results, strict=True)]
    return FxGraph(graph, inputs, results, orders)
