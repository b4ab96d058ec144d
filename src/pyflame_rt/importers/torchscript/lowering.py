"""Lowering of TorchScript programs: to a graph when types are known, else to one node that is opened when they are."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pyflame_rt.graph import Graph, OptionalType, Tensor, TensorInfo, TensorType
from pyflame_rt.graph.dtype import DType
from pyflame_rt.graph.errors import (
    DTypeMismatchError,
    InputError,
    InvalidModelError,
    ShapeMismatchError,
    UndeterminedError,
    UnsupportedOperatorError,
)
from pyflame_rt.graph.types import AnyType, Shape
from pyflame_rt.importers.aten.scalars import is_number
from pyflame_rt.importers.aten.symbols import SymbolicTracer
from pyflame_rt.importers.aten.values import Num, number
from pyflame_rt.importers.torchscript.control import guarded
from pyflame_rt.importers.torchscript.interface import InputPlan, output_names
from pyflame_rt.importers.torchscript.machine import Machine
from pyflame_rt.importers.torchscript.objects import Cell, Maybe, Record, ScriptDict, ScriptList
from pyflame_rt.importers.torchscript.program import Program, from_text, to_text
from pyflame_rt.importers.torchscript.structures import as_sequence
from pyflame_rt.ops import Value, get_op, operator
from pyflame_rt.ops.core.trace import MAX_KNOWN
from pyflame_rt.ops.core.value import scope
from pyflame_rt.ops.onnx.cast import Identity

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

__all__ = ["deferred_graph", "lowered_graph", "run_program"]


# ---------------------------------------------------------------------- running forward on values


def run_program(
    program: Program, layout: Sequence[Any], inputs: Sequence[Value | None], weights: Sequence[Value]
) -> Any:
    """The results of forward: a structure of values, and the names that dictionaries and tuples give them."""
    machine = Machine(program, weights)
    given: list[Any] = [program.root]
    named: dict[str, Any] = {}
    names = [a.arg for a in program.forward.args.args][1:]
    for name, plan in zip(names, layout, strict=True):
        if plan[0] != "default":
            named[name] = _argument(machine, plan, inputs)
    found: list[tuple[str, Value]] = []
    try:
        result = machine.call(program.forward, given, named)
        _collect(machine, result, "", found)
    except (UnsupportedOperatorError, InputError, InvalidModelError, UndeterminedError, ShapeMismatchError,
            DTypeMismatchError) as error:  # fmt: skip
        raise machine.located(error) from error
    if not found:
        raise UnsupportedOperatorError("forward gives back no tensor")
    if machine.guards:
        label, value = found[0]
        found[0] = (label, guarded(machine, value))
    return found


def _argument(machine: Machine, plan: Any, inputs: Sequence[Any]) -> Any:
    match plan:
        case ["tensor", place]:
            return Cell(inputs[place], ordered=True)
        case ["number", place, kind]:
            return Num(inputs[place], {"int": int, "float": float, "bool": bool}[kind])
        case ["sequence", place]:
            return ScriptList([], 0, None, inputs[place])
        case ["list", parts]:
            return ScriptList([_argument(machine, part, inputs) for part in parts])
        case ["tuple", parts]:
            made = tuple(_argument(machine, part, inputs) for part in parts)
            return None if made and all(part is None for part in made) else made
        case ["optional", place]:
            return None if inputs[place] is None else Cell(inputs[place], ordered=True)
        case ["dict", parts]:
            return ScriptDict({key: _argument(machine, part, inputs) for key, part in parts.items()})
        case ["fixed", value]:
            return machine.loaded(value)
    raise InvalidModelError("the layout of the arguments is damaged")


def _collect(machine: Machine, result: Any, label: str, found: list[tuple[str, Value]]) -> None:
    if isinstance(result, Cell):
        found.append((label, result.get()))
    elif is_number(result):
        found.append((label, number(result)))
    elif isinstance(result, Record):
        for name, value in zip(result.names, result.values, strict=True):
            _collect(machine, value, _under(label, name), found)
    elif isinstance(result, ScriptDict):
        for key, value in result.items.items():
            _collect(machine, value, _under(label, str(key)), found)
    elif isinstance(result, tuple):
        for i, value in enumerate(result):
            _collect(machine, value, _under(label, str(i)), found)
    elif isinstance(result, ScriptList):
        found.append((label, as_sequence(machine, result, result)))
    elif result is None:
        found.append((label, get_op("Optional")(type=TensorType(DType.Float32))))
    elif isinstance(result, Maybe):
        raise UnsupportedOperatorError(
            "forward gives back None on some of its paths, and a tensor on others, which only running decides: give "
            "back an empty tensor in place of None"
        )
    else:
        raise UnsupportedOperatorError(f"forward gives back {type(result).__name__}, which is no value of a graph")


def _under(label: str, name: str) -> str:
    return f"{label}_{name}" if label else name


# ---------------------------------------------------------------------- graphs


class _Root(SymbolicTracer):
    """A tracer whose names do not meet those of inputs and weights."""

    __slots__ = ("_used",)

    def __init__(self, name: str, used: set[str]) -> None:
        super().__init__(name, {})
        self._used = used

    def fresh(self, hint: str = "v") -> str:
        name = super().fresh(hint)
        while name in self._used:
            name = super().fresh(hint)
        return name


def lowered_graph(name: str, program: Program, weights: Mapping[str, np.ndarray[Any, Any]], plan: InputPlan) -> Graph:
    """The graph of a program for inputs of known rank and element type.

    Raises:
        UndeterminedError: the types that are known do not decide what the graph is.
    """
    if any(isinstance(kind, AnyType) for kind in plan.kinds):
        raise UndeterminedError("the rank and the element type of an input are only known when running")
    outputs = output_names(program)
    tracer = _Root(name, {*plan.names, *weights, *(outputs or ())})
    with scope(tracer):
        inputs = [tracer.symbolic_input(n, kind) for n, kind in zip(plan.names, plan.kinds, strict=True)]
        values = [_parameter(tracer, key, array) for key, array in weights.items()]
        found = run_program(program, plan.layout, inputs, values)
        taken = set(plan.names) | set(tracer.graph.initializers)
        for label, (_, value) in zip(_labels(outputs, found, taken), found, strict=True):
            _give_out(tracer, value, label)
    graph = tracer.graph
    read = {source for node in graph.nodes for source in node.inputs} | {info.name for info in graph.outputs}
    for key in [key for key in graph.initializers if key not in read]:
        del graph.initializers[key]
    return graph


def _parameter(tracer: SymbolicTracer, name: str, array: np.ndarray[Any, Any]) -> Value:
    tensor = Tensor(array)
    tracer.graph.add_initializer(name, tensor)
    return Value(name, TensorType(tensor.dtype, Shape(array.shape)), array if array.size <= MAX_KNOWN else None)


def _labels(outputs: list[str] | None, found: list[tuple[str, Value]], taken: set[str]) -> list[str]:
    if outputs is not None and len(outputs) == len(found):
        return outputs
    labels: list[str] = []
    for label, _ in found:
        name = label if label and not label[0].isdigit() else f"output_{label}" if label else "output"
        while name in taken or name in labels:
            name += "_"
        labels.append(name)
    return labels


def _give_out(tracer: SymbolicTracer, value: Value, name: str) -> None:
    tracer.graph.add_node(name, Identity.name, [value.ref], [name])
    kind = AnyType() if value.type is None else value.type
    tracer.graph.types[name] = kind
    tracer.graph.add_output(TensorInfo(name, type=kind))


def deferred_graph(name: str, program: Program, weights: Mapping[str, np.ndarray[Any, Any]], plan: InputPlan) -> Graph:
    """A graph of one node, which is opened for the types of every call."""
    outputs = output_names(program)
    if outputs is None:
        raise UnsupportedOperatorError(
            "forward gives back a dictionary, so how many outputs there are is only known with the types of the "
            "inputs: give input_shapes (and input_types) to the importer"
        )
    graph = Graph(name)
    for key, kind in zip(plan.names, plan.kinds, strict=True):
        graph.add_input(TensorInfo(key, type=kind))
    for key, array in weights.items():
        graph.add_initializer(key, Tensor(array))
    graph.add_node(
        "script", "Script", [*plan.names, *weights], outputs,
        {"program": to_text(program), "layout": json.dumps(plan.layout), "count": len(plan.names)}, domain="torch",
    )  # fmt: skip
    for label in outputs:
        graph.add_output(TensorInfo(label, type=AnyType()))
    return graph


@operator(since=1, domain="torch")
def Script(*inputs: Value | None, program: str, layout: str, count: int) -> Any:
    """A TorchScript program: the first ``count`` inputs are those of the model, the others its weights."""
    for value in inputs[:count]:
        if value is not None and (value.type is None or isinstance(value.type, (AnyType, OptionalType))):
            raise UndeterminedError("the type of an input is only known when running")
        if value is not None and isinstance(value.type, TensorType) and value.type.shape is None:
            raise UndeterminedError("the rank of an input is only known when running")
    found = run_program(from_text(program), json.loads(layout), inputs[:count], inputs[count:])  # type: ignore[arg-type]
    values = tuple(value for _, value in found)
    return values if len(values) != 1 else values[0]
