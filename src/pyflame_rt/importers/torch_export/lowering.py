"""Lowering of exported programs: every node by its aten operator, sizes kept as symbols."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from pyflame_rt.graph import Graph, Shape, Tensor, TensorInfo, TensorType
from pyflame_rt.graph.dim import SIZE_BOUNDS
from pyflame_rt.graph.errors import InvalidModelError, UnsupportedOperatorError
from pyflame_rt.graph.types import AnyType
from pyflame_rt.importers.aten.scalars import SCALARS
from pyflame_rt.importers.aten.symbols import SymbolicTracer
from pyflame_rt.importers.aten.table import find_lowering
from pyflame_rt.importers.aten.values import number
from pyflame_rt.importers.torch_export.archive import DTYPES, Exported
from pyflame_rt.importers.torch_export.sizes import size_bounds, size_from_text
from pyflame_rt.importers.torchscript.archive import ScriptedObject
from pyflame_rt.importers.torchscript.control import guarded
from pyflame_rt.importers.torchscript.machine import Machine
from pyflame_rt.importers.torchscript.objects import Cell
from pyflame_rt.importers.torchscript.program import Program
from pyflame_rt.ops import Value
from pyflame_rt.ops.core.trace import MAX_KNOWN
from pyflame_rt.ops.core.value import scope
from pyflame_rt.ops.onnx.cast import Identity

if TYPE_CHECKING:
    import numpy as np

__all__ = ["exported_graph"]

_KEYWORD = 2
# Facts that torch states for itself.
_STATEMENTS = frozenset(("_assert_tensor_metadata", "sym_constrain_range", "sym_constrain_range_for_size",
                         "_assert_async", "_assert_scalar"))  # fmt: skip


class _ExportTracer(SymbolicTracer):
    """A tracer whose names do not meet those of the program."""

    __slots__ = ("_used",)

    def __init__(self, name: str, used: set[str]) -> None:
        super().__init__(name, {})
        self._used = used

    def fresh(self, hint: str = "v") -> str:
        name = super().fresh(hint)
        while name in self._used:
            name = super().fresh(hint)
        return name


class _Lowering:
    """One program, node after node; tensors may be written in place, as in TorchScript."""

    def __init__(self, name: str, exported: Exported) -> None:
        self.graph: dict[str, Any] = exported.program["graph"]
        self.signature: dict[str, Any] = exported.program["signature"]
        self.tensors, self.constraints = exported.tensors, exported.constraints
        self.tracer = _ExportTracer(name, {*exported.tensors, *self.graph["tensor_values"]})
        self.machine = Machine(Program(ScriptedObject(""), (), {}, {}, {}, {}), [])
        self.values: dict[str, Any] = {}

    def run(self) -> Graph:
        """The graph."""
        with scope(self.tracer):
            for spec in self.signature["input_specs"]:
                self._input(spec)
            for node in self.graph["nodes"]:
                self._node(node)
            self._outputs()
        graph = self.tracer.graph
        read = {source for node in graph.nodes for source in node.inputs} | {info.name for info in graph.outputs}
        for key in [key for key in graph.initializers if key not in read]:
            del graph.initializers[key]
        if bounds := size_bounds(self.constraints):
            graph.metadata[SIZE_BOUNDS] = json.dumps(bounds)
        return graph

    # ------------------------------------------------------------------ inputs and outputs

    def _input(self, spec: dict[str, Any]) -> None:
        ((kind, about),) = spec.items()
        if kind == "user_input":
            self._user_input(about["arg"])
            return
        key = {"parameter": "parameter_name", "buffer": "buffer_name", "tensor_constant": "tensor_constant_name"}.get(
            kind
        )
        if key is None:
            raise UnsupportedOperatorError(f"an input of kind {kind!r} is not lowered")
        name = about["arg"]["name"]
        self.values[name] = Cell(self._parameter(about[key]), name=about[key])

    def _user_input(self, argument: dict[str, Any]) -> None:
        ((form, about),) = argument.items()
        if form == "as_tensor":
            name = about["name"]
            self.values[name] = Cell(self.tracer.symbolic_input(name, self._type(name)))
        elif form not in ("as_none", "as_int", "as_float", "as_bool", "as_string"):
            raise UnsupportedOperatorError(f"an argument given {form} is not lowered; give tensors")

    def _type(self, name: str) -> TensorType:
        meta = self.graph["tensor_values"][name]
        sizes = [n["as_int"] if "as_int" in n else size_from_text(n["as_expr"]["expr_str"]) for n in meta["sizes"]]
        return TensorType(DTYPES[meta["dtype"]], Shape(sizes))

    def _parameter(self, name: str) -> Value:
        if name not in self.tensors:
            raise InvalidModelError(f"the archive has no tensor {name!r}")
        array: np.ndarray[Any, Any] = self.tensors[name]
        tensor = self.tracer.graph.add_initializer(name, Tensor(array))
        return Value(name, TensorType(tensor.dtype, Shape(array.shape)), array if array.size <= MAX_KNOWN else None)

    def _outputs(self) -> None:
        taken = {info.name for info in self.tracer.graph.inputs} | set(self.tracer.graph.initializers)
        for spec in self.signature["output_specs"]:
            ((kind, about),) = spec.items()
            if kind != "user_output":
                raise UnsupportedOperatorError(
                    f"the model changes its own state ({kind}) and a graph has none: call eval() before exporting it"
                )
            argument = about["arg"]
            if "as_none" in argument:
                continue
            value = self._argument(argument)
            made = value.get() if isinstance(value, Cell) else number(value)
            name = _name_of(argument) or f"output_{len(taken)}"
            while name in taken:
                name += "_out"
            taken.add(name)
            made = guarded(self.machine, made)
            self.machine.guards.clear()
            self.tracer.graph.add_node(name, Identity.name, [made.ref], [name])
            self.tracer.graph.add_output(TensorInfo(name, type=made.type or AnyType()))

    # ------------------------------------------------------------------ nodes

    def _node(self, node: dict[str, Any]) -> None:
        target = node["target"]
        args = [self._argument(a["arg"]) for a in node["inputs"] if a["kind"] != _KEYWORD]
        kwargs = {a["name"]: self._argument(a["arg"]) for a in node["inputs"] if a["kind"] == _KEYWORD}
        made = self._result(target, args, kwargs)
        outputs = node["outputs"]
        if not outputs:
            return  # a statement, or a write
        if len(outputs) == 1:
            self._bind(outputs[0], made)
            return
        for output, value in zip(outputs, self.machine.items(made), strict=False):
            self._bind(output, value)

    def _result(self, target: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        parts = target.split(".")
        if target.startswith("torch.ops.aten.") and len(parts) == 5:
            name, overload = parts[3], parts[4]
            if name in _STATEMENTS:
                return None
            full = f"{name}.{overload}"
            return self.machine.operator(full if find_lowering(full) is not None else name, args, kwargs)
        last = parts[-1].removeprefix("sym_")
        if parts[0] in ("_operator", "math", "torch") and last in SCALARS:
            return SCALARS[last](*args)
        if target.startswith("torch.ops.") and len(parts) == 5 and find_lowering(parts[3]) is not None:
            return self.machine.operator(parts[3], args, kwargs)
        raise UnsupportedOperatorError(f"operator {target} is not lowered")

    def _bind(self, output: dict[str, Any], value: Any) -> None:
        ((form, about),) = output.items()
        if form == "as_tensors":
            for item, part in zip(about, self.machine.items(value), strict=True):
                self.values[item["name"]] = part
        elif form in ("as_tensor", "as_optional_tensor"):
            self.values[about["name"]] = value
        elif form.startswith("as_sym_"):
            self.values[about["as_name"]] = value

    def _argument(self, argument: dict[str, Any]) -> Any:
        ((form, about),) = argument.items()
        match form:
            case "as_none":
                return None
            case "as_tensor":
                return self._read(about["name"])
            case "as_tensors":
                return self.machine.listed([self._read(item["name"]) for item in about])
            case "as_optional_tensor":
                return self._argument(about)
            case "as_optional_tensors":
                return self.machine.listed([self._argument(item) for item in about])
            case "as_sym_int" | "as_sym_bool" | "as_sym_float":
                return self._symbol(about)
            case "as_sym_ints" | "as_sym_bools" | "as_sym_floats":
                return self.machine.listed([self._symbol(item) for item in about])
            case "as_ints" | "as_floats" | "as_bools":
                return self.machine.listed(list(about))
            case "as_scalar_type":
                return DTYPES[about]
            case "as_float":
                return {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}.get(about, about)
            case "as_int" | "as_bool" | "as_string":
                return about
            case "as_device":
                return "cpu"
            case "as_memory_format" | "as_layout":
                return None
        raise UnsupportedOperatorError(f"an argument {form} is not lowered")

    def _read(self, name: str) -> Any:
        if name not in self.values:
            raise InvalidModelError(f"the program reads {name!r} before it is made")
        return self.values[name]

    def _symbol(self, about: dict[str, Any]) -> Any:
        return self._read(about["as_name"]) if "as_name" in about else next(iter(about.values()))


def _name_of(argument: dict[str, Any]) -> str:
    about = next(iter(argument.values()))
    return about.get("name") or about.get("as_name") or "" if isinstance(about, dict) else ""


def exported_graph(name: str, exported: Exported) -> Graph:
    """The graph of an exported program."""
    try:
        return _Lowering(name, exported).run()
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise InvalidModelError(f"the program of {name!r} is damaged: {type(error).__name__}: {error}") from error
