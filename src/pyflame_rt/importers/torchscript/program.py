"""A TorchScript program as plain data: classes and functions by name, the module tree, and the weights apart from it.

A program can be written as text (:func:`to_text`) and read back, so that a node of a graph may hold it.
"""

from __future__ import annotations

import ast
import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pyflame_rt.graph.errors import InvalidModelError
from pyflame_rt.importers.torchscript.archive import Scripted, ScriptedObject, parsed

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ClassCode", "Program", "Weight", "arguments", "from_text", "make_program", "to_text"]

MAX_SHOWN = 120  # letters of a line of code in an error
MAX_LITERAL = 64  # whole numbers of a buffer that stay in the program, because they may be sizes


class Weight(NamedTuple):
    """A tensor of the module tree: its place among the weights."""

    place: int
    name: str


class ClassCode(NamedTuple):
    """A class: its methods, its constants, for named tuples the names of the fields, and the types of fields.

    ``members`` has the values of an enumeration by name; it is empty for other classes.
    """

    name: str
    methods: dict[str, ast.FunctionDef]
    constants: dict[str, Any]
    fields: tuple[str, ...] | None
    types: tuple[str, ...]
    members: dict[str, Any]


class Program(NamedTuple):
    """Everything that running needs but the weights' contents.

    ``origins`` tells for lines of the code, by module, from which line of which file they were scripted.
    """

    root: ScriptedObject
    constants: tuple[Any, ...]
    sources: dict[str, str]
    functions: dict[str, ast.FunctionDef]
    classes: dict[str, ClassCode]
    origins: dict[str, dict[str, str]]

    def place(self, function: ast.FunctionDef | None, node: ast.stmt) -> str:
        """Where a statement stands: in the archive's code, and in the file that it was written in."""
        found = [(name, f) for name, f in self.functions.items() if f is function]
        found += [(f"{c.name}.{f.name}", f) for c in self.classes.values() for f in c.methods.values() if f is function]
        if not found:
            return ""
        name = found[0][0]
        module = max((m for m in self.sources if name.startswith(f"{m}.")), key=len, default="")
        written = self.origins.get(module, {}).get(str(node.lineno))
        text = self.sources.get(module, "").splitlines()[node.lineno - 1 : node.lineno]
        line = f"{text[0].strip()[:MAX_SHOWN]!r}, " if text else ""
        return f"{line}line {node.lineno} of {module}" + (f", written as {written}" if written else "")

    @property
    def forward(self) -> ast.FunctionDef:
        """The method that runs the model."""
        found = self.classes.get(self.root.kind)
        for name in ("forward", "forward__0"):  # the first of several overloads has a number
            if found is not None and name in found.methods:
                return found.methods[name]
        raise InvalidModelError(f"the code has no forward method for {self.root.kind}")


def make_program(scripted: Scripted) -> tuple[Program, dict[str, np.ndarray[Any, Any]]]:
    """The program of an archive, and its weights by name."""
    weights: dict[str, np.ndarray[Any, Any]] = {}
    places: dict[int, Weight] = {}

    def replaced(value: Any, name: str, seen: dict[int, Any]) -> Any:
        if isinstance(value, np.ndarray):
            if value.size <= MAX_LITERAL and value.dtype.kind in "iub":
                return value
            if id(value) not in places:
                weights[name] = value
                places[id(value)] = Weight(len(weights) - 1, name)
            return places[id(value)]
        if isinstance(value, ScriptedObject):
            if id(value) in seen:
                return seen[id(value)]
            made = seen[id(value)] = ScriptedObject(value.kind)
            for key, item in value.attributes.items():
                made.attributes[key] = replaced(item, f"{name}.{key}" if name else key, seen)
            return made
        if isinstance(value, (list, tuple)):
            return type(value)(replaced(item, f"{name}.{i}", seen) for i, item in enumerate(value))
        if isinstance(value, dict):
            return {key: replaced(item, f"{name}.{key}", seen) for key, item in value.items()}
        return value

    seen: dict[int, Any] = {}
    root = replaced(scripted.root, "", seen)
    constants = tuple(replaced(c, f"CONSTANTS.c{i}", seen) for i, c in enumerate(scripted.constants))
    trees = {name: parsed(text) for name, text in scripted.sources.items()}
    return _assembled(root, constants, scripted.sources, trees, scripted.origins), weights


def _assembled(root: ScriptedObject, constants: tuple[Any, ...], sources: dict[str, str],
               trees: dict[str, ast.Module], origins: dict[str, dict[str, str]]) -> Program:  # fmt: skip
    functions: dict[str, ast.FunctionDef] = {}
    classes: dict[str, ClassCode] = {}
    for module, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.FunctionDef):
                functions[f"{module}.{node.name}"] = node
            elif isinstance(node, ast.ClassDef):
                classes[f"{module}.{node.name}"] = _class(f"{module}.{node.name}", node)
    return Program(root, constants, sources, functions, classes, origins)


def _class(name: str, node: ast.ClassDef) -> ClassCode:
    methods = {f.name: f for f in node.body if isinstance(f, ast.FunctionDef)}
    constants: dict[str, Any] = {}
    fields: dict[str, str] = {}
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            fields[item.target.id] = ast.unparse(item.annotation)
            if item.value is not None:
                constants[item.target.id] = _literal(item.value)
    bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
    members = {
        target.id: _literal(item.value)
        for item in (node.body if "Enum" in bases else ())
        if isinstance(item, ast.Assign)
        for target in item.targets
        if isinstance(target, ast.Name)
    }
    listed = tuple(fields) if "NamedTuple" in bases else None
    return ClassCode(name, methods, constants, listed, tuple(fields.values()), members)


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError) as error:
        raise InvalidModelError("a constant of a class is no literal") from error


# ---------------------------------------------------------------------- as text


def to_text(program: Program) -> str:
    """A program as text."""
    numbers: dict[int, int] = {}
    parts: dict[str, Any] = {"sources": program.sources, "origins": program.origins}
    parts["root"] = _packed(program.root, numbers)
    parts["constants"] = [_packed(c, numbers) for c in program.constants]
    return json.dumps(parts)


def _packed(value: Any, numbers: dict[int, int]) -> Any:
    if isinstance(value, Weight):
        return {"w": [value.place, value.name]}
    if isinstance(value, ScriptedObject):
        if id(value) in numbers:
            return {"r": numbers[id(value)]}
        numbers[id(value)] = len(numbers)
        return {"o": value.kind, "a": {k: _packed(v, numbers) for k, v in value.attributes.items()}}
    if isinstance(value, np.ndarray):
        return {"n": [value.dtype.str, list(value.shape), value.ravel().tolist()]}
    if isinstance(value, tuple):
        return {"t": [_packed(v, numbers) for v in value]}
    if isinstance(value, dict):
        return {"d": [[k, _packed(v, numbers)] for k, v in value.items()]}
    return [_packed(v, numbers) for v in value] if isinstance(value, list) else value


@lru_cache(maxsize=8)
def from_text(text: str) -> Program:
    """A program from its text."""
    parts = json.loads(text)
    objects: list[ScriptedObject] = []
    root = _unpacked(parts["root"], objects)
    constants = tuple(_unpacked(c, objects) for c in parts["constants"])
    trees = {name: parsed(source) for name, source in parts["sources"].items()}
    return _assembled(root, constants, parts["sources"], trees, parts["origins"])


def _unpacked(value: Any, objects: list[ScriptedObject]) -> Any:
    if isinstance(value, list):
        return [_unpacked(v, objects) for v in value]
    if not isinstance(value, dict):
        return value
    match value:
        case {"w": [index, name]}:
            return Weight(index, name)
        case {"r": place}:
            return objects[place]
        case {"o": kind, "a": attributes}:
            made = ScriptedObject(kind)
            objects.append(made)
            made.attributes = {k: _unpacked(v, objects) for k, v in attributes.items()}
            return made
        case {"n": [dtype, shape, items]}:
            return np.asarray(items, np.dtype(dtype)).reshape(shape)
        case {"t": items}:
            return tuple(_unpacked(v, objects) for v in items)
        case {"d": items}:
            return {k: _unpacked(v, objects) for k, v in items}
    raise InvalidModelError("the text of a program is damaged")


def arguments(function: ast.FunctionDef) -> Iterator[tuple[str, ast.expr | None, ast.expr | None]]:
    """Name, type and default of each argument but the first, which is the module."""
    listed = function.args.args[1:]
    defaults = [None] * (len(listed) - len(function.args.defaults)) + list(function.args.defaults)
    for argument, default in zip(listed, defaults, strict=True):
        yield argument.arg, argument.annotation, default
