"""What a function can reach: a walk over the state that its code names, before it is traced.

The walk begins at the function and at what it is called with, and goes on through globals and closures that code
names, attributes with names that stand in any of that code, items of lists and dicts, modules with their tables and
hooks. Code of libraries is not entered. What it finds are places (`pyflame.compiling.places`).
"""

from __future__ import annotations

import array
import ctypes
import enum
import functools
import inspect
import io
import operator
import os
import sys
import types
import weakref
from collections import defaultdict, deque
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame.compiling.code_names import REFLECTION, facts_of
from pyflame.compiling.places import (
    Buffer,
    Cell,
    Context,
    Entries,
    Facts,
    FunctionParts,
    Items,
    Members,
    Slots,
    Weak,
)
from pyflame.dtypes import DType
from pyflame.ops.core import Handle
from pyflame.storage import alias_of

if TYPE_CHECKING:
    from pyflame.compiling.places import Place

__all__ = ["MAX_VALUES", "Reach", "TooMuchStateError", "is_filled", "is_library", "is_plain", "slots_of"]

# More values than this are not watched.
MAX_VALUES = 50_000

_PLAIN = (
    type(None), bool, int, float, complex, str, bytes, range, slice, type(Ellipsis), type(NotImplemented),
    np.generic, np.dtype, DType, enum.Enum, types.BuiltinFunctionType, types.CodeType, type(repr), np.ufunc,
)  # fmt: skip
_LIBRARIES = frozenset(
    {*sys.stdlib_module_names, "pyflame", "pyflame_rt", "emberharmony", "wsesim", "numpy", "scipy", "pandas", "torch",
     "onnx", "onnxruntime", "llvmlite", "matplotlib", "tqdm", "wandb", "mlflow", "tensorboard", "pytest", "_pytest",
     "hypothesis", "mlx", "PIL", "IPython", "ipykernel"} - {"__main__"}
)  # fmt: skip
# Parts of ours that are written as users' programs are.
_OPEN = ("pyflame.training", "pyflame.models", "pyflame.serving", "pyflame.benchmarks")
_TABLES = ("_parameters", "_buffers", "_modules")
_NEVER = frozenset({"__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__slots__", "__qualname__"})
# Called by Python where objects are made, shown or copied.
_MAKING = frozenset(
    {"__init__", "__new__", "__post_init__", "__init_subclass__", "__set_name__", "__del__", "__repr__", "__str__",
     "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__copy__", "__deepcopy__"}
)  # fmt: skip
_ASKS_RATES = frozenset({"param_groups", "get_lr", "get_last_lr", "state_dict"})


class TooMuchStateError(Exception):
    """A function can reach more than is worth watching."""


def is_plain(value: Any) -> bool:
    """Whether a value cannot change, and has nothing in it that can."""
    return isinstance(value, _PLAIN)


class Reach:
    """All places that a function can reach.

    Args:
        roots: the function and what it is called with, by the names users give them.
        skip: code that each call runs anyway.

    Attributes:
        places: where state is.
        names: of attributes that any of the code can read; None when that is any attribute.
        codes: the code that was read.
        arrays: NumPy arrays, whose contents count.
        generators: of random numbers other than ours.
        closed: what nobody can look into: its kind (iterator, weak proxy, cache) and path.
    """

    def __init__(self, roots: dict[str, Any], skip: frozenset[types.CodeType] = frozenset()) -> None:
        self._roots = list(roots.items())
        self._skip = skip
        self._used: set[str] = set()
        self.names: set[str] | None = self._used
        self._walk()

    def add(self, path: str, value: Any) -> None:
        """Walk on from something that came to light during a trace."""
        if id(value) not in self.seen:
            self._roots.append((path, value))
            self._walk()

    def without(self, codes: frozenset[types.CodeType]) -> Reach:
        """The same, but for what only such code can reach."""
        return Reach(dict(self._roots), codes) if codes else self

    def watch(self, place: Place) -> None:
        """Count a place that came to light during a trace."""
        self.places.append(place)

    def _walk(self) -> None:
        """Walk until no code brings new names."""
        while True:
            before = len(self._used)
            self.places: list[Place] = []
            self.seen: dict[int, Any] = {}
            self.codes: dict[types.CodeType, None] = {}
            self.arrays: list[tuple[str, np.ndarray[Any, Any]]] = []
            self.generators: list[tuple[str, Any]] = []
            self.closed: list[tuple[str, str]] = []
            self._globals: dict[int, set[str]] = {}
            self._classes: set[tuple[type, bool]] = set()
            self._pending: deque[tuple[str, Any]] = deque(self._roots)
            self._left = MAX_VALUES
            self._objects, self._families = Facts("the class of an object", type), Facts("the bases of a class", _mro)
            self.places += [self._objects, self._families]
            self._weakly: set[int] = set()
            while self._pending:
                self._visit(*self._pending.popleft())
            if len(self._used) == before:
                return
            self.names = None if self._used & REFLECTION else self._used

    def _later(self, path: str, value: Any) -> None:
        if not isinstance(value, _PLAIN) or isinstance(value, enum.Enum):
            self._pending.append((path, value))
        self._left -= 1
        if self._left < 0:
            raise TooMuchStateError(f"more than {MAX_VALUES} values can be reached, the last of them through {path}")

    def _add(self, place: Place) -> None:
        self.places.append(place)
        for key, value in place.contents().items():
            self._later(place.label(key), value)

    # ------------------------------------------------------------------ kinds of values

    def _visit(self, path: str, value: Any) -> None:
        if isinstance(value, enum.Enum):
            self._visit_member(path, value)
            return
        if isinstance(value, _PLAIN) or id(value) in self.seen:
            return
        self.seen[id(value)] = value
        if isinstance(value, Handle):
            self._visit_tensor(path, value)
        elif isinstance(value, types.FunctionType):
            self._visit_function(path, value)
        elif isinstance(value, types.MethodType):
            self._later(path.rpartition(".")[0] or "self", value.__self__)
            self._later(path, value.__func__)
        elif isinstance(value, type):
            self._visit_class(path, value, made=True)
        elif isinstance(value, types.ModuleType):
            self._visit_python_module(path, value)
        elif isinstance(value, np.ndarray):
            self.arrays.append((path, value))
            for i, item in enumerate(value.ravel() if value.dtype.hasobject and value.dtype.fields is None else ()):
                self._later(f"{path}[{i}]", item)
        else:
            self._visit_object(path, value)

    def _visit_member(self, path: str, value: enum.Enum) -> None:
        """A member of an enumeration: its class may have methods, and itself attributes."""
        if (type(value), False) not in self._classes and not is_library(type(value).__module__):
            self._visit_class(path, type(value))
            for member in type(value):
                self._add(Entries(f"{type(value).__name__}.{member.name}", vars(member), self.names))

    def _visit_python_module(self, path: str, module: types.ModuleType) -> None:
        table = vars(module)
        if not is_library(module.__name__):
            self._add(Entries(path, table, self.names or set(table)))
            return
        if module is os and self._used & _ASKS_ENVIRONMENT:
            self._later("os.environ", os.environ)
        place = Entries(path, table, self._used & table.keys())
        self.places.append(place)
        for name, value in place.contents().items():
            if isinstance(value, types.ModuleType | os._Environ) or _is_settings(value):
                self._later(f"{path}.{name}", value)

    def _visit_tensor(self, path: str, value: Handle) -> None:
        alias_of(value)  # from now on its value is that of no other tensor
        leaf = leaf_of(value)
        if leaf is not None and leaf.hooks:
            self._add(Entries(f"hooks of {path}", leaf.hooks, dotted=False))

    def _visit_function(self, path: str, function: types.FunctionType) -> None:
        if function.__code__ in self._skip:
            return
        if is_library(function.__globals__.get("__name__")):
            # A library's decorator, such as no_grad: what it calls may be the user's.
            held = [cell.cell_contents for cell in function.__closure__ or () if is_filled(cell)]
            for inner in (*held, *function.__dict__.values()):
                if isinstance(inner, _CALLED):
                    self._later(path, inner)
            return
        facts = facts_of(function.__code__, self._skip)
        self.codes[function.__code__] = None
        self._used |= facts.names
        self._add(FunctionParts(path, function))
        table = function.__globals__
        watched = self._globals.setdefault(id(table), set())
        fresh = facts.global_names - watched
        watched |= fresh
        if fresh:
            self._add(Entries("", table, fresh, also=sorted(fresh)))
        for name in sorted(facts.imports & sys.modules.keys()):
            self._later(name, sys.modules[name])
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            if name in facts.closed:
                self._add(Cell(name, cell))
        if function.__dict__:
            self._add(Entries(path, function.__dict__, self.names))

    def _visit_class(self, path: str, cls: type, *, made: bool = False) -> None:
        """A class, of which the code may make objects."""
        if is_library(cls.__module__):
            return
        for base in (*cls.__mro__, *inspect.getmro(type(cls))):
            if (base, made) not in self._classes and not is_library(base.__module__):
                self._classes.add((base, made))
                self._families.objects.append(base)
                self.seen[id(base)] = base
                self._visit_namespace(path, base, made)

    def _visit_namespace(self, path: str, cls: type, made: bool) -> None:
        left_out = _NEVER if made else _NEVER | _MAKING
        wanted = {n for n, v in vars(cls).items() if n not in left_out and self._counts(cls, n, v)}
        bases = [base for base in cls.__mro__[1:] if not is_library(base.__module__)]
        hidden = {
            n for base in bases for n in vars(base) if n not in _NEVER and (self.names is None or n in self.names)
        }
        names = wanted | hidden | (self.names or set())
        self._add(Entries(path, vars(cls), names, owner=cls, also=sorted(hidden), open=self.names is None))

    def _counts(self, cls: type, name: str, value: Any) -> bool:
        """Whether an attribute of a class may be read: it is named, called by Python, or called by a library."""
        if self.names is None or name in self.names:
            return True
        if not isinstance(value, types.FunctionType | classmethod | staticmethod | property):
            return False
        # Ours that are open have no operators that they use on themselves.
        called = name.startswith("__") and name.endswith("__") and not cls.__module__.startswith("pyflame.")
        return called or any(name in vars(base) for base in cls.__mro__[1:] if is_library(base.__module__))

    def _visit_object(self, path: str, value: Any) -> None:
        from pyflame.nn.hooks import HookTable
        from pyflame.nn.module import Module
        from pyflame.optim.optimizer import Optimizer
        from pyflame.random import Generator

        parts = _parts_of(value)
        if parts is not None:
            for name, part in parts:
                self._later(f"{path}{name}", part)
            return
        if isinstance(value, Generator):
            return  # each replay draws from it
        if id(value) not in self._weakly and (not is_library(type(value).__module__) or isinstance(value, Module)):
            self._objects.objects.append(value)
        if isinstance(value, ContextVar):
            self._add(Context(path, value))
        elif isinstance(value, weakref.ref):
            self.places.append(Weak(path, value))
            self._weakly.add(id(value()))
            self._later(path, value())
        elif isinstance(value, _CACHED):
            self._later(path, value.__wrapped__)
            if _reads_state(value.__wrapped__):
                self.closed.append(("cache of a function that reads state,", path))
        elif isinstance(value, operator.attrgetter | operator.methodcaller):
            names = [n for n in value.__reduce__()[1] if isinstance(n, str)]  # the names they were made with
            self._used.update(part for name in names for part in name.split("."))
        elif isinstance(value, HookTable):
            self._add(Entries(path, value.tables, dotted=False))
            self._add(Items(path, value.named))
        elif isinstance(value, Module):
            self._visit_module(path, value)
        elif isinstance(value, Optimizer):
            self._visit_optimizer(path, value)
        elif _draws(value):
            self.generators.append((path, value))
        elif type(value) in weakref.ProxyTypes or _advances(value):
            self.closed.append(("iterator" if _advances(value) else "weak proxy", path))
        else:
            self._visit_contents(path, value)
            self._visit_attributes(path, value)

    def _visit_module(self, path: str, module: Any) -> None:
        from pyflame.nn.module import Module

        own = all(c is Module or c is object or not is_library(c.__module__) for c in type(module).__mro__)
        named = self.names is not None and own
        names = {*(self.names or ()), *dir(Module), "training", "_hooks", *_TABLES} if named else None
        self._visit_class(path, type(module))
        self._add(Entries(path, vars(module), names, also=self._shadows(module) if named else ()))

    def _visit_optimizer(self, path: str, optimizer: Any) -> None:
        from pyflame.optim.optimizer import Optimizer

        self._visit_class(path, type(optimizer))
        if not is_library(type(optimizer).__module__):
            # A step of the user's own makes and changes the state as any other code does; ours is replayed as it is.
            own = type(optimizer).step is not Optimizer.step
            ours = {"param_groups", "defaults", *(() if own else ("state",))}
            kept = vars(optimizer).keys() - ours
            names = kept if self.names is None else kept & self.names
            self._add(Entries(path, vars(optimizer), names))
        asked = bool(self._used & _ASKS_RATES)
        self.seen.update({id(group): group for group in optimizer.param_groups})
        self._add(Items(f"{path}.param_groups", optimizer.param_groups))
        for i, group in enumerate(optimizer.param_groups):
            self._add(Entries(f"{path}.param_groups[{i}]", group, dotted=False, guarded=asked))

    def _visit_contents(self, path: str, value: Any) -> None:
        if isinstance(value, dict):
            self._add(Entries(path, value, dotted=False))
        elif isinstance(value, list | deque):
            self._add(Items(path, value))
        elif isinstance(value, set):
            self._add(Members(path, value))
        elif isinstance(value, bytearray | array.array | memoryview | ctypes.Array | ctypes.Structure):
            self._add(Buffer(path, value))
        if isinstance(value, defaultdict):
            self._add(Slots(path, value, ("default_factory",)))

    def _visit_attributes(self, path: str, value: Any) -> None:
        cls = type(value)
        self._visit_class(path, cls)
        table = getattr(value, "__dict__", None)
        if isinstance(table, dict):
            named = is_library(cls.__module__) and f"{cls.__module__}.{cls.__name__}" not in _NAMESPACES
            whole = _keeps_data(cls) or (self.names is None and not named)
            names = None if whole else self._used
            self._add(Entries(path, table, names, also=() if whole else self._shadows(value)))
        slots = [n for base in cls.__mro__ if not is_library(base.__module__) for n in slots_of(base)]
        wanted = [n for n in slots if self.names is None or n in self.names]
        if wanted:
            self._add(Slots(path, value, wanted))

    def _shadows(self, value: Any) -> list[str]:
        """Names of data that an object has by its class: attributes of its own would hide them."""
        bases = [base for base in type(value).__mro__ if not is_library(base.__module__)]
        names = {n for base in bases for n in vars(base) if self.names is None or n in self.names}
        return sorted(n for n in names if not callable(getattr(type(value), n, None)))


# What a decorator keeps of the functions it was given; a proxy is singledispatch's table of them.
_CALLED = (types.FunctionType, types.MethodType, functools.partial, types.MappingProxyType)
_CACHED = type(functools.lru_cache(maxsize=1)(lambda: None))


def leaf_of(tensor: Handle) -> Any:
    """The leaf of a tensor, found without taking back what it lends."""
    alias = tensor._alias
    if alias is not None and alias.family.lent is not None and alias.family._facts is not None:
        return None if alias.steps else alias.family._facts[1]
    return tensor._value.leaf


def is_library(module: Any) -> bool:
    """Whether the code of a Python module is not entered."""
    if not isinstance(module, str):
        return True
    return module.partition(".")[0] in _LIBRARIES and not module.startswith(_OPEN)


def _keeps_data(cls: type) -> bool:
    """Whether all attributes of its objects count: objects of ours, records, and what makes attributes up."""
    module = cls.__module__
    if module.startswith("pyflame.") and not module.startswith(_OPEN):
        return True
    if f"{module}.{cls.__name__}" in _RECORDS:
        return True
    own = [c for c in cls.__mro__ if not is_library(c.__module__)]
    return any("__getattr__" in vars(c) or "__getattribute__" in vars(c) for c in own)


# What libraries read of their own objects has names that stand nowhere in the code.
_RECORDS = frozenset(
    {"collections.UserDict", "collections.UserList", "collections.UserString", "collections.ChainMap",
     "weakref.WeakValueDictionary", "weakref.WeakKeyDictionary", "_weakrefset.WeakSet", "os._Environ"}
)  # fmt: skip
_NAMESPACES = frozenset({"types.SimpleNamespace", "argparse.Namespace"})
_ASKS_ENVIRONMENT = frozenset({"getenv", "getenvb", "environb", "expandvars", "expanduser"})


def _reads_state(function: Any) -> bool:
    """Whether a cached function may have kept a result that it would not give now: it reads more than arguments."""
    if not isinstance(function, types.FunctionType):
        return True
    facts = facts_of(function.__code__)
    read = [function.__globals__.get(name) for name in facts.global_names]
    read += [cell.cell_contents for cell in function.__closure__ or ()]
    fixed = (types.FunctionType, types.BuiltinFunctionType, types.ModuleType, type, type(None))
    return function.__code__.co_varnames[:1] in (("self",), ("cls",)) or not all(isinstance(v, fixed) for v in read)


_mro = operator.attrgetter("__mro__")


def _advances(value: Any) -> bool:
    """Whether it is an iterator of Python's own."""
    return isinstance(value, Iterator) and is_library(type(value).__module__) and not isinstance(value, io.IOBase)


def _is_settings(value: Any) -> bool:
    """Whether something of a library is a list or dict of plain values, as settings are."""
    if isinstance(value, list | set | deque):
        return len(value) <= 256 and all(map(is_plain, value))
    return type(value) is dict and len(value) <= 256 and all(map(is_plain, value.values()))


def is_filled(cell: types.CellType) -> bool:
    """Whether a variable of a closure has a value yet."""
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def slots_of(cls: type) -> list[str]:
    """The names that a class keeps in slots."""
    slots = vars(cls).get("__slots__", ())
    found = [slots] if isinstance(slots, str) else list(slots)
    return [n for n in found if isinstance(vars(cls).get(n), types.MemberDescriptorType)]


def _draws(value: Any) -> bool:
    """Whether it is a generator of random numbers other than ours."""
    import random

    return isinstance(value, random.Random | np.random.Generator | np.random.RandomState | np.random.BitGenerator)


def _parts_of(value: Any) -> list[tuple[str, Any]] | None:
    """What is in a thing that cannot change itself; None for others."""
    from pyflame.compiling.compiled import CompiledFunction
    from pyflame.compiling.compiled_module import CompiledModule

    if isinstance(value, tuple | frozenset):
        return [(f"[{i}]", item) for i, item in enumerate(value)]
    if isinstance(value, CompiledFunction):
        return [("", value.function)]
    if isinstance(value, CompiledModule):
        return [("", value._orig_mod)]
    if isinstance(value, functools.partial):
        return [("", value.func), (".args", value.args), (".keywords", value.keywords), (".__dict__", value.__dict__)]
    if isinstance(value, staticmethod | classmethod):
        return [("", value.__func__)]
    if isinstance(value, property):
        return [("", f) for f in (value.fget, value.fset, value.fdel) if f is not None]
    if isinstance(value, functools.cached_property):
        return [("", value.func)]
    if isinstance(value, types.MappingProxyType):
        return [(f"[{key!r}]", item) for key, item in value.items()]
    return None
