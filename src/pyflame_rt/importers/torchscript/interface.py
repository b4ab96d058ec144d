"""Inputs and outputs of a TorchScript program: the arguments and results of forward, as those of a graph."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any, NamedTuple

from pyflame_rt.graph import DType, OptionalType, SequenceType, Shape, TensorType, ValueType
from pyflame_rt.graph.dim import symbol
from pyflame_rt.graph.errors import InputError, UnsupportedOperatorError
from pyflame_rt.graph.types import AnyType
from pyflame_rt.importers.torchscript.archive import Example
from pyflame_rt.importers.torchscript.program import Program, arguments

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["InputPlan", "input_plan", "output_names"]

_NUMBERS = {"int": DType.Int64, "float": DType.Float32, "bool": DType.Bool}


class InputPlan(NamedTuple):
    """How the arguments of forward are made of the inputs of a graph.

    Attributes:
        names: of the inputs.
        kinds: their types.
        layout: for each argument what it is made of: ``["tensor", i]``, ``["number", i, "int"]``, ``["list", [...]]``,
            ``["tuple", [...]]``, ``["dict", {...}]``, ``["sequence", i]``, ``["optional", i]``, or ``["default"]``.
    """

    names: list[str]
    kinds: list[ValueType]
    layout: list[Any]


class _Planner:
    def __init__(self, shapes: Mapping[str, Sequence[Any]], types: Mapping[str, Any]) -> None:
        self.shapes, self.types = dict(shapes), dict(types)
        self.open = not self.shapes and not self.types  # nothing is known, so optional arguments may be given
        self.names: list[str] = []
        self.kinds: list[ValueType] = []

    def asked(self, name: str) -> str | None:
        """The name under which the caller gave a shape or a type."""
        return next((key for key in (name, f"{name}.1") if key in self.shapes or key in self.types), None)

    def tensor(self, name: str, example: Any) -> list[Any]:
        """One input."""
        key = self.asked(name)
        kind: ValueType = AnyType()
        if key is not None:
            given = self.shapes.get(key)
            dtype = DType.of(self.types[key]) if key in self.types else None
            dtype = dtype or (example.dtype if isinstance(example, Example) else DType.Float32)
            kind = TensorType(dtype, None if given is None else _symbolic(name, given))
        elif isinstance(example, Example):
            kind = TensorType(example.dtype, _symbolic(name, [None] * len(example.shape)))
        return ["tensor", self.add(f"{name}.1", kind)]

    def optional(self, name: str) -> list[Any]:
        """An input that need not be given."""
        return ["optional", self.add(f"{name}.1", OptionalType(AnyType()))] if self.open else ["default"]

    def add(self, name: str, kind: ValueType) -> int:
        """The place of a new input."""
        self.names.append(name)
        self.kinds.append(kind)
        return len(self.names) - 1

    def traced(self, name: str, example: Any) -> list[Any]:
        """What an argument was traced with tells its structure."""
        if isinstance(example, Example):
            return self.tensor(name, example)
        if isinstance(example, (tuple, list)):
            parts = [self.traced(f"{name}_{i}", item) for i, item in enumerate(example)]
            return ["tuple" if isinstance(example, tuple) else "list", parts]
        if isinstance(example, dict):
            return ["dict", {k: self.traced(f"{name}_{k}", v) for k, v in example.items()}]
        return ["fixed", example]

    def declared(self, name: str, text: str, optional: bool) -> list[Any]:
        """What the type of an argument tells."""
        if text in ("Tensor", "Optional[Tensor]"):
            if optional and self.asked(name) is None:
                return self.optional(name)
            return self.tensor(name, None)
        if optional and text.startswith("Optional[Tuple[") and set(text[15:-2].split(", ")) == {"Tensor"} and self.open:
            return ["tuple", [self.optional(f"{name}_{i}") for i in range(text.count("Tensor"))]]
        if optional:
            return ["default"]
        if text in _NUMBERS:
            return ["number", self.add(f"{name}.1", TensorType(_NUMBERS[text], Shape([]))), text]
        if text == "List[Tensor]":
            return ["sequence", self.add(f"{name}.1", SequenceType(TensorType(DType.Float32)))]
        if text.startswith("Tuple[") and set(parts := text[6:-1].split(", ")) <= {"Tensor", *_NUMBERS}:
            return ["tuple", [self.declared(f"{name}_{i}", part, False) for i, part in enumerate(parts)]]
        raise UnsupportedOperatorError(
            f"argument {name!r} of forward is {text}; inputs are tensors, numbers, tuples of them, lists of tensors. "
            "Trace the model, or wrap it in a module that takes tensors"
        )


def _symbolic(name: str, shape: Sequence[Any]) -> Shape:
    dims = [symbol(f"{name}_{i}") if d is None or d == -1 else d for i, d in enumerate(shape)]
    return Shape(dims)


def input_plan(
    program: Program, examples: list[Any] | None, shapes: Mapping[str, Sequence[Any]], types: Mapping[str, Any]
) -> InputPlan:
    """Inputs of a graph for the arguments of forward.

    Args:
        program: the code.
        examples: what it was traced with, if it was.
        shapes: that the caller gives, by argument or input.
        types: element types that the caller gives.
    """
    planner = _Planner(shapes, types)
    listed = list(arguments(program.forward))
    if examples is not None and len(examples) == len(listed) + 1:
        examples = examples[1:]  # the module itself
    layout: list[Any] = []
    for i, (name, annotation, default) in enumerate(listed):
        if examples is not None and i < len(examples):
            layout.append(planner.traced(name, examples[i]))
        else:
            text = "Tensor" if annotation is None else ast.unparse(annotation)
            layout.append(planner.declared(name, text, default is not None))
    known = {name.removesuffix(".1") for name in planner.names} | set(planner.names)
    for name in (*shapes, *types):
        if name not in known:
            raise InputError(f"{name!r} is no input. Inputs: {', '.join(map(repr, planner.names))}")
    return InputPlan(planner.names, planner.kinds, layout)


def output_names(program: Program) -> list[str] | None:
    """A name for each result that forward declares; None when only running tells how many there are."""
    function = program.forward
    text = "Tensor" if function.returns is None else ast.unparse(function.returns)
    labels = _labels(text, program, "")
    if labels is None:
        return None
    if text.startswith("__torch__"):
        return _apart(labels, function)
    named = _returned_names(function)
    if named is None or len(named) != len(labels):
        named = ["output"] if len(labels) == 1 else [f"output_{i}" for i in range(len(labels))]
    return named


def _labels(text: str, program: Program, label: str) -> list[str] | None:
    """A label for each tensor that a type is; None for dictionaries and what holds them."""
    found = program.classes.get(text)
    if found is not None and found.fields is not None:
        parts = list(zip(found.fields, found.types, strict=True))
    elif text.startswith("Tuple["):
        parts = [(str(i), part) for i, part in enumerate(_split(text[6:-1]))]
    else:
        return None if "Dict[" in text or "Any" in text or "__torch__" in text else [label]
    labels: list[str] = []
    for name, part in parts:
        inner = _labels(part, program, f"{label}_{name}" if label else name)
        if inner is None:
            return None
        labels += inner
    return labels


def _apart(names: list[str], function: ast.FunctionDef) -> list[str]:
    """The names, but for those that an argument has."""
    taken = {f"{a.arg}.1" for a in function.args.args}
    return [f"{name}_out" if name in taken else name for name in names]


def _split(text: str) -> list[str]:
    parts, level, start = [], 0, 0
    for i, letter in enumerate(text):
        level += {"[": 1, "]": -1}.get(letter, 0)
        if letter == "," and level == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    return [*parts, text[start:].strip()]


def _returned_names(function: ast.FunctionDef) -> list[str] | None:
    last = function.body[-1] if function.body else None
    if not isinstance(last, ast.Return) or last.value is None:
        return None
    items = last.value.elts if isinstance(last.value, ast.Tuple) else [last.value]
    names = [item.id if isinstance(item, ast.Name) and not item.id.startswith("_") else "" for item in items]
    if not all(names) or len(set(names)) != len(names):
        return None
    return _apart(names, function)
