"""Symbolic interpreter of TorchScript: Python values are computed at once, tensors become nodes of a graph.

Statements and expressions are those torch prints, and no others; every name is looked up in tables of our own.
"""

from __future__ import annotations

import ast
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph.errors import InputError, InvalidModelError, PyFlameRTError, UnsupportedOperatorError
from pyflame_rt.importers.aten.scalars import SCALARS, is_number
from pyflame_rt.importers.aten.table import find_lowering, get_lowering
from pyflame_rt.importers.aten.values import Num, cast, refuse
from pyflame_rt.importers.torchscript import control
from pyflame_rt.importers.torchscript.archive import ScriptedObject, member
from pyflame_rt.importers.torchscript.builtins import BUILTINS
from pyflame_rt.importers.torchscript.constants import as_numbers, number_of
from pyflame_rt.importers.torchscript.merging import Changes
from pyflame_rt.importers.torchscript.objects import (
    UNSET,
    Cell,
    FunctionName,
    Instance,
    Maybe,
    Record,
    ScriptDict,
    ScriptList,
    Shared,
    TypeName,
)
from pyflame_rt.importers.torchscript.program import Program, Weight
from pyflame_rt.importers.torchscript.structures import static_key
from pyflame_rt.importers.torchscript.views import (
    ALIASES,
    COPIES_OF_MOVED,
    DOUBTFUL,
    PARTS,
    TURNS,
    VIEWS,
    keeps_order,
    part_ways,
    view_of,
    way_of,
)
from pyflame_rt.ops.core.value import Value, constant
from pyflame_rt.ops.onnx.shape import Expand, Shape

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Machine"]

MAX_STEPS = 2_000_000
MAX_CALLS = 150
_NUMBERS = {"inf": math.inf, "nan": math.nan, "True": True, "False": False, "None": None}


class _Return(Exception):
    """A function gives its result."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


class Machine:
    """Runs functions of a program; one machine for each tracing.

    Args:
        program: the code.
        weights: values of the parameters, in the program's order.
    """

    def __init__(self, program: Program, weights: Sequence[Value]) -> None:
        self.program = program
        self.weights = [Cell(value, name="a parameter", ordered=True) for value in weights]
        self.depth = 0  # of bodies of control flow
        self.steps = 0
        self.calls = 0
        self.journal: list[dict[int, tuple[Any, Any]]] = []
        self.guards: list[tuple[Any, str]] = []
        self.doubts: list[Shared] = []
        self.place: tuple[ast.FunctionDef | None, ast.stmt] | None = None  # the statement that runs
        self.function: ast.FunctionDef | None = None
        self._held: dict[int, Any] = {}  # lists and dictionaries of the module
        self._statements: dict[type, Callable[[Any, dict[str, Any]], None]] = {
            ast.Assign: self._assign, ast.AnnAssign: self._annotated, ast.Expr: self._expression, ast.If: self._if,
            ast.While: self._while, ast.For: self._for, ast.Return: self._returned, ast.With: self._with,
            ast.Pass: lambda *_: None,
        }  # fmt: skip
        self._expressions: dict[type, Callable[[Any, dict[str, Any]], Any]] = {
            ast.Name: self._name, ast.Constant: lambda node, _: node.value, ast.Call: self._call,
            ast.Attribute: self._attribute, ast.Tuple: self._tuple, ast.List: self._list, ast.Dict: self._dict,
            ast.Subscript: self._subscript, ast.UnaryOp: self._sign,
        }  # fmt: skip

    # ------------------------------------------------------------------ statements

    def block(self, statements: Sequence[ast.stmt], env: dict[str, Any]) -> None:
        """Run statements one after the other."""
        before = self.place
        for node in statements:
            self.place = (self.function, node)
            self.count()
            run = self._statements.get(type(node))
            if run is None:
                raise _odd(node)
            run(node, env)
        self.place = before

    def count(self) -> None:
        """One step more; a program that would run for ever is refused."""
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise InvalidModelError(f"the code takes more than {MAX_STEPS} steps to lower")

    def _assign(self, node: ast.Assign, env: dict[str, Any]) -> None:
        if len(node.targets) != 1:
            raise _odd(node)
        self.bind(node.targets[0], self.evaluate(node.value, env), env)

    def _annotated(self, node: ast.AnnAssign, env: dict[str, Any]) -> None:
        if node.value is not None:
            self.bind(node.target, self.evaluate(node.value, env), env)

    def bind(self, target: ast.expr, value: Any, env: dict[str, Any]) -> None:
        """Give names their values."""
        if isinstance(target, ast.Name):
            env[target.id] = value
        elif isinstance(target, (ast.Tuple, ast.List)):
            items = self.items(value)
            if len(items) != len(target.elts):
                raise InputError(f"{len(target.elts)} names for {len(items)} values")
            for name, item in zip(target.elts, items, strict=True):
                self.bind(name, item, env)
        elif isinstance(target, ast.Attribute):
            self._set_attribute(self.evaluate(target.value, env), target.attr, value)
        else:
            raise _odd(target)

    def _set_attribute(self, owner: Any, name: str, value: Any) -> None:
        if isinstance(owner, ScriptedObject):
            raise UnsupportedOperatorError(
                f"the model sets its attribute {name!r} when it runs, and a graph has no state: give it as an input "
                "and an output"
            )
        if not isinstance(owner, Instance):
            raise InvalidModelError(f"an attribute {name!r} is set of what is no object")
        self.touch(owner)
        owner.items[name] = value

    def _expression(self, node: ast.Expr, env: dict[str, Any]) -> None:
        self.evaluate(node.value, env)

    def _if(self, node: ast.If, env: dict[str, Any]) -> None:
        control.branch(self, self.evaluate(node.test, env), node, env)

    def _while(self, node: ast.While, env: dict[str, Any]) -> None:
        control.repeat(self, node, env)

    def _for(self, node: ast.For, env: dict[str, Any]) -> None:
        control.iterate(self, node, env)

    def _returned(self, node: ast.Return, env: dict[str, Any]) -> None:
        raise _Return(None if node.value is None else self.evaluate(node.value, env))

    def _with(self, node: ast.With, env: dict[str, Any]) -> None:
        for item in node.items:
            owner = self.evaluate(item.context_expr, env)
            kind = owner.kind if isinstance(owner, (ScriptedObject, Instance)) else ""
            if "grad_mode" not in kind and "inference_mode" not in kind:
                raise UnsupportedOperatorError(f"with {kind or 'a value'} is not lowered; only no_grad and its kin are")
        self.block(node.body, env)

    # ------------------------------------------------------------------ expressions

    def evaluate(self, node: ast.expr, env: dict[str, Any]) -> Any:
        """The value of an expression."""
        self.count()
        run = self._expressions.get(type(node))
        if run is None:
            raise _odd(node)
        return run(node, env)

    def _name(self, node: ast.Name, env: dict[str, Any]) -> Any:
        if node.id in env:
            return env[node.id]
        if node.id in _NUMBERS:
            return _NUMBERS[node.id]
        if node.id in ("Tensor", "int", "float", "bool", "str", "NoneType", "Device"):
            return TypeName(node.id)
        raise InvalidModelError(f"the code reads {node.id!r}, which it never sets")

    def _sign(self, node: ast.UnaryOp, env: dict[str, Any]) -> Any:
        value = self.evaluate(node.operand, env)
        if isinstance(node.op, ast.USub) and is_number(value):
            return SCALARS["neg"](value)
        raise _odd(node)

    def _tuple(self, node: ast.Tuple, env: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(self.evaluate(item, env) for item in node.elts)

    def _list(self, node: ast.List, env: dict[str, Any]) -> ScriptList:
        return self.listed([self.evaluate(item, env) for item in node.elts])

    def _dict(self, node: ast.Dict, env: dict[str, Any]) -> ScriptDict:
        pairs = zip(node.keys, node.values, strict=True)
        return ScriptDict({self._key(k, env): self.evaluate(v, env) for k, v in pairs}, self.depth)

    def _key(self, node: ast.expr | None, env: dict[str, Any]) -> Any:
        if node is None:
            raise InvalidModelError("a dictionary is unpacked into another")
        return static_key(self.evaluate(node, env))

    def _subscript(self, node: ast.Subscript, env: dict[str, Any]) -> Any:
        owner = self.evaluate(node.value, env)
        return BUILTINS["__getitem__"](self, owner, self.evaluate(node.slice, env))

    def _attribute(self, node: ast.Attribute, env: dict[str, Any]) -> Any:
        path = _dotted(node)
        if path is not None and path.split(".")[0] not in env:
            if path.startswith("__torch__."):
                kind, _, name = path.rpartition(".")
                found = self.program.classes.get(kind)
                if found is not None and name in found.members:
                    return member(kind, found.members[name])
                return FunctionName(path)
            if path.startswith("CONSTANTS.c") and path[11:].isdigit():
                return self._constant(int(path[11:]))
        return self.attribute(self.evaluate(node.value, env), node.attr)

    def _constant(self, index: int) -> Any:
        if index >= len(self.program.constants):
            raise InvalidModelError(f"the code reads constant {index}, which the archive does not have")
        found = self.loaded(self.program.constants[index])
        if isinstance(found, Cell):
            found.number = number_of(found.peek())
        return found

    def attribute(self, owner: Any, name: str) -> Any:
        """An attribute of a module or a field of a named tuple."""
        if isinstance(owner, Record) and name in owner.names:
            return owner.values[owner.names.index(name)]
        if isinstance(owner, Instance) and name in owner.items:
            return owner.items[name]
        if isinstance(owner, (ScriptedObject, Instance)):
            if isinstance(owner, ScriptedObject) and name in owner.attributes:
                return self.loaded(owner.attributes[name], name)
            found = self.program.classes.get(owner.kind)
            if found is not None and name in found.constants:
                return self.loaded(found.constants[name])
            if found is not None and found.members and name == "name" and isinstance(owner, ScriptedObject):
                return next((n for n, v in found.members.items() if v == owner.attributes["value"]), "")
        raise InvalidModelError(f"the code reads attribute {name!r} of {owner!r}, which has none")

    def loaded(self, value: Any, name: str = "a constant") -> Any:
        """What a value of the module tree is in here; lists and dictionaries are the same at each reading."""
        if isinstance(value, Weight):
            cell = self.weights[value.place]
            cell.name = value.name
            return cell
        if isinstance(value, np.ndarray):
            return Cell(constant(value), self.depth, name="a buffer", ordered=True)
        if isinstance(value, tuple) and not isinstance(value, (Record, FunctionName, TypeName)):
            return tuple(self.loaded(v, name) for v in value)
        if isinstance(value, (list, dict)):
            if id(value) not in self._held:
                self._held[id(value)] = self._structure(value, name)
            return self._held[id(value)]
        return value

    def _structure(self, value: Any, name: str) -> ScriptList | ScriptDict:
        if isinstance(value, list):
            return ScriptList([self.loaded(v, name) for v in value], 0, name=name)
        return ScriptDict({k: self.loaded(v, name) for k, v in value.items()}, 0, name=name)

    # ------------------------------------------------------------------ calls

    def _call(self, node: ast.Call, env: dict[str, Any]) -> Any:
        path = _dotted(node.func)
        if path is not None and path.split(".")[0] not in env:
            special = control.SPECIAL.get(path)
            if special is not None:
                return special(self, node, env)
        args = [self.evaluate(a, env) for a in node.args]
        kwargs = {str(k.arg): self.evaluate(k.value, env) for k in node.keywords}
        if path is not None and path.split(".")[0] not in env:
            if path.startswith("__torch__."):
                return self._construct_or_call(path, args, kwargs)
            return self._operator(path, args, kwargs)
        if isinstance(node.func, ast.Attribute):
            return self.method(self.evaluate(node.func.value, env), node.func.attr, args, kwargs)
        called = self.evaluate(node.func, env)
        if isinstance(called, FunctionName):
            return self._construct_or_call(called.name, args, kwargs)
        raise _odd(node)

    def _operator(self, path: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        for prefix in ("torch.", "ops.prim.", "ops.aten.", "ops.torchvision."):
            if path.startswith(prefix) and "." not in path.removeprefix(prefix):
                return self.operator(path.removeprefix(prefix), args, kwargs)
        if "." not in path:
            return self.operator(path, args, kwargs)
        raise UnsupportedOperatorError(f"operator {path} is not lowered")

    def _construct_or_call(self, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        function = self.program.functions.get(name)
        if function is not None:
            return self.call(function, args, kwargs)
        if name.endswith(".__new__"):
            return Instance(name.removesuffix(".__new__"), self.depth)
        found = self.program.classes.get(name)
        if found is not None and found.fields is not None:
            values = dict(zip(found.fields, args, strict=False)) | kwargs
            return Record(name, found.fields, tuple(values[field] for field in found.fields))
        raise InvalidModelError(f"the code calls {name}, which the archive does not define")

    def method(self, owner: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Call a method of an object of the archive."""
        if not isinstance(owner, (ScriptedObject, Instance)):
            raise InvalidModelError(f"the code calls {name!r} of what is no object")
        found = self.program.classes.get(owner.kind)
        if found is None or name not in found.methods:
            if name == "__init__":
                return None
            raise InvalidModelError(f"{owner.kind} has no method {name!r}")
        return self.call(found.methods[name], [owner, *args], kwargs)

    def call(self, function: ast.FunctionDef, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Run a function of the archive."""
        self.calls += 1
        if self.calls > MAX_CALLS:
            raise InvalidModelError(f"calls are nested more than {MAX_CALLS} deep")
        env = self._bound(function, args, kwargs)
        before = self.place, self.function
        self.function = function
        try:
            self.block(function.body, env)
        except _Return as result:
            self.place, self.function = before
            return result.value
        finally:
            self.calls -= 1
        self.place, self.function = before
        return None

    def located(self, error: PyFlameRTError) -> PyFlameRTError:
        """The error with the line of the code that was being lowered."""
        where = "" if self.place is None else self.program.place(*self.place)
        return type(error)(f"{error}. It comes from {where}") if where and len(error.args) == 1 else error

    def _bound(self, function: ast.FunctionDef, args: list[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
        names = [a.arg for a in function.args.args]
        if len(args) > len(names) or not set(kwargs) <= set(names):
            raise InvalidModelError(f"function {function.name} does not take these arguments")
        env = dict(zip(names, args, strict=False)) | kwargs
        defaults = function.args.defaults
        for name, default in zip(names[len(names) - len(defaults) :], defaults, strict=True):
            if name not in env:
                env[name] = self.evaluate(default, {})
        missing = [name for name in names if name not in env]
        if missing:
            raise InputError(f"function {function.name} needs {missing[0]!r}")
        return env

    # ------------------------------------------------------------------ operators

    def operator(self, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """An operator of torch: on plain values at once, on tensors by its lowering."""
        try:
            return self._dispatched(name, args, kwargs)
        except PyFlameRTError:
            raise
        except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, AssertionError) as error:
            raise UnsupportedOperatorError(
                f"torch.{name} does not lower with {_shown(args)}: {type(error).__name__}: {error}"
            ) from error

    def _dispatched(self, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        builtin = BUILTINS.get(name)
        if builtin is not None:
            made = builtin(self, *args, **kwargs)
            if made is not NotImplemented:
                return made
        if name in SCALARS and not kwargs and not _has_tensor(args):
            return SCALARS[name](*[self.plain(a) for a in args])
        if name.endswith("_") and not name.endswith("__") and find_lowering(name[:-1]) is not None:
            return self._in_place(name[:-1], args, kwargs)
        first = args[0] if args else None
        if name in VIEWS and isinstance(first, Cell):
            return self._view(name, first, args[1:], kwargs)
        if name in PARTS and isinstance(first, Cell):
            return self._parts(name, first, args[1:], kwargs)
        return self._lowered(name, args, kwargs)

    def _view(self, name: str, base: Cell, args: list[Any], kwargs: dict[str, Any]) -> Cell:
        plain = [self.plain(a) for a in args]
        named = {k: self.plain(v) for k, v in kwargs.items()}
        if name in COPIES_OF_MOVED and (not base.ordered or named.get("memory_format") not in (None, 0)):
            whole = name == "contiguous" and named.get("memory_format") in (None, 0)
            made = self.tensor(get_lowering(name)(base.get(), *plain, **named), ordered=whole)
            made.link(base)
            return made
        return base if name == "contiguous" else view_of(name, base, plain, named, self.depth)

    def _parts(self, name: str, base: Cell, args: list[Any], kwargs: dict[str, Any]) -> ScriptList:
        plain = [self.plain(a) for a in args]
        ways = part_ways(name, base.get(), plain, {k: self.plain(v) for k, v in kwargs.items()})
        return self.listed([Cell(way.forward(base.get()), self.depth, base, way) for way in ways])

    def _lowered(self, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        plain = [self.plain(a) for a in args]
        named = {k: self.plain(v) for k, v in kwargs.items()}
        if isinstance(out := kwargs.get("out"), Cell):
            del named["out"]
            return self._given_out(out, get_lowering(name)(*plain, **named))
        made = get_lowering(name)(*as_numbers(name, args, plain), **named)
        first = args[0] if args else None
        if name in ALIASES and isinstance(first, Cell) and made is plain[0] and not _copied(args, kwargs):
            return first if first.number is None else self.tensor(made)
        cells = [cell for a in (*args, *kwargs.values()) for cell in _cells(a)]
        found = self.wrapped(made, ordered=keeps_order(name, cells, named.get("memory_format")))
        if name in DOUBTFUL:
            for cell in _cells(found):
                for one in cells:
                    cell.link(one)
        return found

    def _given_out(self, out: Cell, made: Any) -> Cell:
        """A result written to a tensor, which takes its sizes and keeps its own element type."""
        old = out.get()
        if not isinstance(made, Value) or (made.shape != old.shape and out.viewed | (out.base is not None)):
            raise refuse("out= of another size, or of several tensors")
        self.touch(out.root)
        out.set(cast(made, old.dtype))
        return out

    def _in_place(self, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        target, *rest = args
        if not isinstance(target, Cell):
            raise InvalidModelError(f"{name}_ of what is no tensor")
        if name in TURNS:
            return self._turned(name, target, rest, kwargs)
        old = target.get()
        made = get_lowering(name)(old, *[self.plain(a) for a in rest], **{k: self.plain(v) for k, v in kwargs.items()})
        new = cast(made, old.dtype)
        if old.rank and new.rank == 0:
            new = Expand(new, Shape(old))
        self.touch(target.root)
        target.set(new)
        return target

    def _turned(self, name: str, target: Cell, args: list[Any], kwargs: dict[str, Any]) -> Cell:
        if target.base is not None and target.depth < self.depth:
            raise UnsupportedOperatorError(
                f"{name}_ of a view that was taken outside of an if or a loop is not lowered; write x = x.{name}(...)"
            )
        self.touch(target.root)
        target.turn(way_of(name, [self.plain(a) for a in args], {k: self.plain(v) for k, v in kwargs.items()}))
        return target

    # ------------------------------------------------------------------ values

    def tensor(self, value: Value, *, ordered: bool = False) -> Cell:
        """A tensor of its own, which surely has its elements in their order or not."""
        return Cell(value, self.depth, ordered=ordered)

    def listed(self, items: list[Any], kind: Any = None) -> ScriptList:
        """A new list."""
        return ScriptList(items, self.depth, kind)

    def wrapped(self, made: Any, *, ordered: bool = False) -> Any:
        """What lowerings give, as the code sees it."""
        if isinstance(made, Value):
            return self.tensor(made, ordered=ordered)
        if isinstance(made, tuple):
            return tuple(self.wrapped(v, ordered=ordered) for v in made)
        return self.listed([self.wrapped(v, ordered=ordered) for v in made]) if isinstance(made, list) else made

    def plain(self, value: Any) -> Any:
        """What the code has, as lowerings take it."""
        if isinstance(value, Cell):
            return value.get()
        if isinstance(value, ScriptList):
            return value.sequence if value.sequence is not None else [self.plain(v) for v in value.items]
        if isinstance(value, Record):
            return tuple(self.plain(v) for v in value.values)
        if type(value) is tuple:
            return tuple(self.plain(v) for v in value)
        if value is UNSET:
            raise InvalidModelError("the code reads a value that no path has set")
        if isinstance(value, Maybe):
            raise refuse("an operator on what is None on some of the paths that lead there")
        return value

    def items(self, value: Any) -> list[Any]:
        """The parts of a tuple or list of known length."""
        if isinstance(value, ScriptList):
            return control.known_items(value)
        if isinstance(value, Record):
            return list(value.values)
        if isinstance(value, tuple):
            return list(value)
        raise InvalidModelError(f"the code unpacks {type(value).__name__}")

    def touch(self, owner: Shared) -> None:
        """Something is about to change in place.

        Raises:
            UnsupportedOperatorError: It is the module's.
        """
        if owner.name:
            raise UnsupportedOperatorError(
                f"the model writes to {owner.name!r} when it runs, and a graph has no state: "
                "call eval() before saving it, or give the state as an input and an output"
            )
        self.doubt(owner.relatives())
        self.note(owner)

    def note(self, owner: Shared) -> None:
        """Remember the state of what was made outside of the body that runs, to put it back."""
        if self.journal and owner.depth < self.depth and id(owner) not in self.journal[-1]:
            self.journal[-1][id(owner)] = (owner, Changes.raw(owner))

    def doubt(self, shared: Sequence[Shared]) -> None:
        """What these hold may have been changed under another name."""
        for one in shared:
            if not one.doubted:
                one.doubted = True
                self.doubts.append(one)


def _cells(value: Any) -> list[Cell]:
    """The tensors of an argument."""
    if isinstance(value, Cell):
        return [value]
    if isinstance(value, ScriptList):
        value = value.peek()[0]
    return [cell for item in value for cell in _cells(item)] if isinstance(value, (list, tuple)) else []


def _copied(args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether torch.to is asked for a copy: ``(.., non_blocking, copy, ..)``."""
    flags = [a for a in args if type(a) is bool]
    return kwargs.get("copy", flags[1] if len(flags) > 1 else False)


def _has_tensor(args: Sequence[Any]) -> bool:
    return any(isinstance(a, Cell) for a in args)


def _dotted(node: ast.expr) -> str | None:
    """``a.b.c`` as text; None for other expressions."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else None


def _odd(node: ast.AST) -> InvalidModelError:
    return InvalidModelError(f"the code has {type(node).__name__}, which TorchScript does not write")


def _shown(args: Sequence[Any]) -> str:
    kinds = [str(a.get().type) if isinstance(a, Cell) else type(a).__name__ if isinstance(a, (Num, ScriptList)) else
             repr(a)[:40] for a in args]  # fmt: skip
    return f"({', '.join(kinds)})"
