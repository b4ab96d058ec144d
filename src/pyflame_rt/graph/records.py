"""``dataclass``, as the standard library has it, without generating code while a module is imported.

The standard decorator compiles six functions for each class, which took a third of the time of ``import pyflame_rt``.
Here the one whose speed matters, ``__init__``, is compiled for classes of which many objects are made: compiling takes
as long as making some hundred. The others read the fields.
Fields, ``replace``, ``asdict`` and ``is_dataclass`` of the standard library work as ever.
"""

from __future__ import annotations

import dataclasses
import inspect
from dataclasses import MISSING, Field, FrozenInstanceError, field
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from dataclasses import dataclass

__all__ = ["dataclass"]


@dataclasses.dataclass(repr=False, eq=False)
class _Plain:
    """What the standard decorator notes of a class, and of a field."""

    x: int


@dataclasses.dataclass(repr=False, eq=False, frozen=True)
class _Frozen:
    x: int


_PARAMETERS = {False: _Plain.__dict__["__dataclass_params__"], True: _Frozen.__dict__["__dataclass_params__"]}
_FIELD: Any = dataclasses.fields(_Plain)[0]._field_type
_NOT_GIVEN = object()
_FEW = 24  # objects of a class that are made without compiling its constructor


def record(cls: Any = None, /, *, frozen: bool = False, slots: bool = False, eq: bool = True) -> Any:
    """Make a class a record of its annotated fields.

    Args:
        cls: the class, where the decorator is used without arguments.
        frozen: fields cannot be set after construction; with ``eq``, objects can be hashed.
        slots: objects have no ``__dict__``.
        eq: compare by fields, not by identity.

    Example:
        >>> @record(frozen=True, slots=True)
        ... class Point:
        ...     x: int
        ...     y: int = 0
        >>> Point(1), Point(1) == Point(1, 0), dataclasses.replace(Point(1), y=2)
        (Point(x=1, y=0), True, Point(x=1, y=2))
    """

    def make(target: type) -> type:
        return _made(target, frozen, slots, eq)

    return make if cls is None else make(cls)


if not TYPE_CHECKING:  # checkers know the standard one
    dataclass = record


def _made(cls: type, frozen: bool, slots: bool, eq: bool) -> type:
    own = _own_fields(cls)
    fields: dict[str, Field[Any]] = {}
    for base in reversed(cls.__mro__[1:]):
        fields.update(getattr(base, "__dataclass_fields__", {}))
    fields.update(own)
    for f in own.values():
        if f.default is not MISSING and not slots:
            setattr(cls, f.name, f.default)
        elif f.name in cls.__dict__:
            delattr(cls, f.name)
    if slots:
        cls = _with_slots(cls, own)
    added: dict[str, Any] = {"__init__": _first_init(cls), "__signature__": _Signature(), "__repr__": _shown}
    if eq:
        added |= _compared(fields, frozen)
    if frozen:
        added |= _guarded(cls, fields, slots)
    for name, value in added.items():
        # A class with __eq__ has a __hash__ of None that nobody wrote.
        if name not in cls.__dict__ or (name == "__hash__" and cls.__dict__[name] is None):
            setattr(cls, name, value)
    made: Any = cls
    made.__dataclass_fields__, made.__dataclass_params__ = fields, _PARAMETERS[frozen]
    made.__match_args__ = tuple(f.name for f in fields.values() if f.init)
    return cls


def _own_fields(cls: type) -> dict[str, Field[Any]]:
    found: dict[str, Field[Any]] = {}
    for name, kind in inspect.get_annotations(cls).items():
        if "ClassVar" in str(kind):
            continue
        given: Any = cls.__dict__.get(name, MISSING)
        f: Any = given
        if not isinstance(given, Field):
            f = field(default=given)
        if f.default is not MISSING and f.default.__class__.__hash__ is None:
            raise ValueError(f"mutable default {type(f.default)} for field {name} is not allowed: use default_factory")
        f.name, f.type, f.kw_only, f._field_type = name, kind, False, _FIELD
        found[name] = f
    return found


def _with_slots(cls: type, own: Iterable[str]) -> type:
    """The class once more, its fields in slots."""
    inherited = {name for base in cls.__mro__[1:] for name in _slots_of(base)}
    contents = {k: v for k, v in cls.__dict__.items() if k not in ("__dict__", "__weakref__")}
    contents["__slots__"] = tuple(name for name in own if name not in inherited)
    made = type(cls)(cls.__name__, cls.__bases__, contents)
    made.__qualname__ = cls.__qualname__
    return made


def _slots_of(cls: type) -> tuple[str, ...]:
    slots = cls.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


# ---------------------------------------------------------------------- construction


def _first_init(cls: Any) -> Callable[..., None]:
    """Makes the first objects; then, and for arguments to be refused, the constructor is compiled."""
    left = _FEW

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal left
        left -= 1
        values = _values(cls.__dataclass_fields__, args, kwargs) if left > 0 else None
        if values is None:
            _compile_init(cls)(self, *args, **kwargs)
            return
        assign = object.__setattr__ if cls.__dataclass_params__.frozen else setattr
        for name, value in values:
            assign(self, name, value)
        if hasattr(cls, "__post_init__"):
            self.__post_init__()

    __init__.__dict__["stands_in"] = True
    return __init__


def _values(
    fields: dict[str, Field[Any]], args: tuple[Any, ...], given: dict[str, Any]
) -> list[tuple[str, Any]] | None:
    """What each field of a new object holds; None where the arguments do not fit."""
    values: list[tuple[str, Any]] = []
    positions, left = iter(args), len(args) + len(given)
    for name, f in fields.items():
        if f.init and (value := next(positions, _NOT_GIVEN)) is not _NOT_GIVEN:
            left -= 1
        elif f.init and name in given:
            value = given[name]
            left -= 1
        elif f.default_factory is not MISSING:
            value = f.default_factory()
        elif f.default is not MISSING:
            value = f.default
        elif f.init:
            return None
        else:
            continue
        values.append((name, value))
    return None if left else values


def _compile_init(cls: Any) -> Callable[..., None]:
    present = cls.__dict__["__init__"]
    if not getattr(present, "stands_in", False):
        return present
    scope: dict[str, Any] = {"set_": object.__setattr__, "NOT_GIVEN": _NOT_GIVEN}
    frozen, parameters = cls.__dataclass_params__.frozen, ["self"]
    body: list[str] = []
    for name, f in cls.__dataclass_fields__.items():
        scope[f"default_{name}"], scope[f"make_{name}"] = f.default, f.default_factory
        value = name if f.init else f"default_{name}"
        if f.default_factory is not MISSING:
            value = f"make_{name}() if {name} is NOT_GIVEN else {name}" if f.init else f"make_{name}()"
        elif not f.init and f.default is MISSING:
            continue
        body.append(f"set_(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
        if f.init:
            default = "NOT_GIVEN" if f.default_factory is not MISSING else f"default_{name}"
            given = f.default is MISSING and f.default_factory is MISSING
            parameters.append(name if given else f"{name}={default}")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    text = f"def __init__({', '.join(parameters)}):\n " + "\n ".join(body or ["pass"])
    exec(text, scope)  # noqa: S102 - made of the names of fields alone
    made = scope["__init__"]
    made.__qualname__, made.__module__ = f"{cls.__qualname__}.__init__", cls.__module__
    cls.__init__ = made
    return made


class _Signature:
    """``inspect.signature`` of a class, worked out when asked for."""

    def __get__(self, instance: object, owner: type) -> Any:
        signature = inspect.signature(
            _compile_init(next(base for base in owner.__mro__ if "__init__" in base.__dict__))
        )
        return signature.replace(parameters=list(signature.parameters.values())[1:])


# ---------------------------------------------------------------------- what reads the fields


@recursive_repr()
def _shown(self: Any) -> str:
    parts = [f"{name}={getattr(self, name)!r}" for name, f in self.__dataclass_fields__.items() if f.repr]
    return f"{type(self).__qualname__}({', '.join(parts)})"


def _key(names: list[str]) -> Callable[[Any], Any]:
    if len(names) > 1:
        return attrgetter(*names)
    # A tuple as well, since tuples compare equal where their elements are the same objects.
    return lambda self: tuple(getattr(self, name) for name in names)


def _compared(fields: dict[str, Field[Any]], frozen: bool) -> dict[str, Any]:
    key = _key([name for name, f in fields.items() if f.compare])

    def equal(self: Any, other: Any) -> Any:
        if other is self:
            return True
        return key(self) == key(other) if other.__class__ is self.__class__ else NotImplemented

    if not frozen:
        return {"__eq__": equal, "__hash__": None}
    hashed = _key([name for name, f in fields.items() if (f.compare if f.hash is None else f.hash)])

    def hash_(self: Any) -> int:
        return hash(hashed(self))

    return {"__eq__": equal, "__hash__": hash_}


def _guarded(cls: type, fields: dict[str, Field[Any]], slots: bool) -> dict[str, Any]:
    names = tuple(fields)

    def refuse(self: Any, name: str, *value: Any) -> None:
        if type(self) is cls or name in fields:
            raise FrozenInstanceError(f"cannot {'assign to' if value else 'delete'} field {name!r}")
        if value:
            super(cls, self).__setattr__(name, *value)
        else:
            super(cls, self).__delattr__(name)

    def state(self: Any) -> list[Any]:
        return [getattr(self, name) for name in names]

    def restore(self: Any, values: list[Any], assign: Callable[..., None] = object.__setattr__) -> None:
        for name, value in zip(names, values, strict=True):
            assign(self, name, value)

    guarded: dict[str, Any] = {"__setattr__": refuse, "__delattr__": refuse}
    return guarded | ({"__getstate__": state, "__setstate__": restore} if slots else {})
