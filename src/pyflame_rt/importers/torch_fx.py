"""Lowering of torch.fx graphs of aten operators: what AOTAutograd traces, to graphs of the runtime."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any, NamedTuple

from pyflame_rt.graph import Dim, DType, Graph, Shape, TensorInfo, TensorType
from pyflame_rt.graph.dim import dim_from_text
from pyflame_rt.graph.errors import PyFlameRTError, UndeterminedError, UnsupportedOperatorError
from pyflame_rt.graph.types import AnyType
from pyflame_rt.importers.aten.scalars import SCALARS
from pyflame_rt.importers.aten.symbols import SymbolicTracer
from pyflame_rt.importers.aten.table import find_lowering, get_lowering
from pyflame_rt.importers.aten.values import Num, number
from pyflame_rt.ops.core.value import Value, constant, scope
from pyflame_rt.ops.onnx.cast import Identity
from pyflame_rt.ops.onnx.shape import Transpose

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["FxGraph", "FxInput", "FxResult", "is_lowered", "lower_fx", "operator_name", "refused_nodes"]


class FxInput(NamedTuple):
    """The input of a graph that a placeholder is.

    Attributes:
        name: of the input.
        order: the axes in the order in which the input has them; None when it is the placeholder's.
    """

    name: str
    order: list[int] | None


class FxResult(NamedTuple):
    """How a result of a torch graph is found.

    Attributes:
        kind: ``input`` and ``output`` count those, ``number`` an output that is a number, ``plain`` is a value.
        source: which one, or the value.
        order: axes of an output that lie in another order in memory; None when in that of the axes.
        views: operators of torch that make the result of the source, each with the arguments after the first.
    """

    kind: str
    source: Any
    order: list[int] | None = None
    views: tuple[tuple[Any, tuple[Any, ...], dict[str, Any]], ...] = ()


class FxGraph(NamedTuple):
    """A lowered graph, and how the results of the torch graph are made of its outputs.

    Attributes:
        graph: of the runtime.
        inputs: for each placeholder the graph's input, or None where it is not read.
        results: for each result of the torch graph how it is found.
    """

    graph: Graph
    inputs: list[FxInput | None]
    results: list[FxResult]


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
        self.inputs: list[FxInput | None] = []

    # ------------------------------------------------------------------ inputs

    def placeholders(self, nodes: Sequence[Any]) -> None:
        """Tensors first: symbols are read off their shapes."""
        kinds = [_described(node.meta["val"]) for node in nodes]
        for i, (node, kind) in enumerate(zip(nodes, kinds, strict=True)):
            self.inputs.append(None)
            if isinstance(kind, TensorType):
                self.values[node] = self._tensor(i, kind, _memory_order(node.meta["val"]))
        for i, (node, kind) in enumerate(zip(nodes, kinds, strict=True)):
            if isinstance(kind, TensorType):
                continue
            if isinstance(kind, Dim) and not kind.symbols() <= set(self.tracer.symbols):
                self.inputs[i] = FxInput(f"in_{i}", None)
                kind = Num(self.tracer.input(f"in_{i}", TensorType(DType.Int64, Shape([]))), int)
            self.values[node] = kind

    def _tensor(self, place: int, kind: TensorType, order: list[int] | None) -> Value:
        """A tensor as it lies in memory, its axes brought back in order: transposes cost nothing, copies do."""
        self.inputs[place] = FxInput(f"in_{place}", order)
        if order is None or kind.shape is None:
            return self.tracer.symbolic_input(f"in_{place}", kind)
        lying = TensorType(kind.dtype, Shape([kind.shape[i] for i in order]))
        return Transpose(self.tracer.symbolic_input(f"in_{place}", lying), perm=_inverse(order))

    def assumed(self, name: str, node: Any) -> None:
        """Take a value for an input of the graph."""
        value = node.meta.get("val")
        if value is None or isinstance(value, (list, tuple)):
            return  # its parts are
        kind = _described(value)
        self.values[node] = self.tracer.symbolic_input(name, kind) if isinstance(kind, TensorType) else kind

    # ------------------------------------------------------------------ nodes

    def node(self, node: Any, module: Any) -> None:
        """One call, or a constant."""
        if node.op == "get_attr":
            self.values[node] = constant(_held(operator.attrgetter(node.target)(module)))
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

    def results(self, items: Sequence[Any], placeholders: Sequence[Any]) -> list[FxResult]:
        """Outputs of the graph, and where each result is found; views are left to torch."""
        import torch

        places = {node: i for i, node in enumerate(placeholders)}
        made: dict[Any, FxResult] = {}
        found: list[FxResult] = []
        for item in items:
            if not isinstance(item, torch.fx.Node):
                found.append(FxResult("plain", item))
                continue
            base, views = _viewed(item)
            if base in places:
                found.append(FxResult("input", places[base], None, views))
                continue
            if base not in made:
                made[base] = self._result(base)
            found.append(made[base]._replace(views=views))
        return found

    def _result(self, node: Any) -> FxResult:
        value = self.values[node]
        if not isinstance(value, Value):
            return FxResult("number", self._output(number(value)))
        order = _memory_order(node.meta.get("val"))
        return FxResult("output", self._output(value if order is None else Transpose(value, perm=order)), order)

    def _output(self, value: Value) -> int:
        graph = self.tracer.graph
        name = f"out_{len(graph.outputs)}"
        graph.add_node(name, Identity.name, [value.ref], [name])
        graph.add_output(TensorInfo(name, type=value.type or AnyType()))
        return len(graph.outputs) - 1


def _inverse(order: Sequence[int]) -> list[int]:
    return [order.index(i) for i in range(len(order))]


def _viewed(node: Any) -> tuple[Any, tuple[tuple[Any, tuple[Any, ...], dict[str, Any]], ...]]:
    """What a node is a view of, and the operators that make it; itself where it is none."""
    chain: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []
    whole = math.prod(node.meta["val"].shape) if _is_view(node) else None
    base = node
    while _is_view(base):
        chain.append((base.target, tuple(base.args[1:]), dict(base.kwargs)))
        base = base.args[0]
    if base.op != "placeholder" and chain and math.prod(base.meta["val"].shape) != whole:
        return node, ()  # a part of a value does not keep the whole of it
    return base, tuple(reversed(chain))


def _is_view(node: Any) -> bool:
    """Whether a node is another view of its first argument alone, of sizes that are known."""
    import torch

    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return False
    returns = node.target._schema.returns
    if len(returns) != 1 or returns[0].alias_info is None or returns[0].alias_info.is_write:
        return False
    value = node.meta.get("val")
    sizes = (*value.shape, *value.stride()) if isinstance(value, torch.Tensor) else (None,)
    return len(node.all_input_nodes) == 1 and all(isinstance(n, int) for n in sizes)


def _described(value: Any) -> Any:
    """The type of a tensor, or a number, from what torch notes of a node."""
    import torch

    if isinstance(value, torch.Tensor):
        dtype = DType.of(str(value.dtype).removeprefix("torch."))
        return TensorType(dtype, Shape([_number(n) for n in value.shape]))
    return _number(value)


def _memory_order(value: Any) -> list[int] | None:
    """The axes of a tensor from the outermost in memory to the innermost, where that is not their own order.

    Operators that draw random numbers go by it, and views that are made of the tensor.
    """
    import torch

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
    graph = reader.tracer.graph
    read = {source for node in graph.nodes for source in node.inputs}
    graph.inputs = [info for info in graph.inputs if info.name in read]
    inputs = [given if given is not None and given.name in read else None for given in reader.inputs]
    return FxGraph(graph, inputs, results)


def refused_nodes(module: Any) -> list[Any]:
    """The calls of a graph that have no lowering in the form they have here; what they give is taken as known.

    Args:
        module: a ``torch.fx.GraphModule`` whose nodes carry what torch knows of their values.
    """
    reader, refused = _Reader("fx"), list[Any]()
    nodes = list(module.graph.nodes)
    with scope(reader.tracer):
        reader.placeholders([node for node in nodes if node.op == "placeholder"])
        for i, node in enumerate(nodes):
            if node.op in ("placeholder", "output"):
                continue
            if node.target is operator.getitem and node.args[0] in refused:
                refused.append(node)
            else:
                try:
                    reader.node(node, module)
                    continue
                except PyFlameRTError:
                    refused.append(node)
            reader.assumed(f"refused_{i}", node)
    return refused


def _held(tensor: Any) -> Any:
    """The elements of a constant of a graph; while AOTAutograd compiles, torch takes every tensor for a stand-in."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    with unset_fake_temporarily():
        return tensor.detach().cpu().numpy()
