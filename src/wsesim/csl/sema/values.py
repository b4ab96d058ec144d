"""Values known at compile time.

``CV`` pairs a type with a Python value:

=====================  ==============================================================================
type                   value
=====================  ==============================================================================
integers, enums        ``int``
floats                 ``float``, already rounded to the type
``bool``               ``bool``
``comptime_string``    ``bytes``
``type``               a :class:`~wsesim.csl.sema.types.Type`
handles                ``int`` (the id)
``direction``          ``int``, an index into ``program.DIRECTIONS``
arrays                 :class:`ArrayValue`
structs, tuples        ``dict`` of field name to CV; the type of an anonymous one is ``comptime_struct``
pointers               :class:`Pointer`, or ``int`` for an address made by ``@bitcast``
functions, tasks       :class:`FunctionValue`
modules                a ``Module``
ranges                 :class:`RangeValue`
descriptors            :class:`~wsesim.csl.program.typed_tree.DsdConst`
``void``               ``None``
=====================  ==============================================================================
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from wsesim.csl.sema import types as t

if TYPE_CHECKING:
    from wsesim.csl.program import typed_tree as tree
    from wsesim.csl.sema.modules import GlobalVar, Module
    from wsesim.csl.syntax import nodes as s

__all__ = ["CV", "UNDEFINED", "VOID_VALUE", "ArrayValue", "FunctionValue", "Operand", "Pointer", "RangeValue"]


class CV:
    """A comptime-known value."""

    __slots__ = ("type", "value")

    def __init__(self, type: t.Type, value: Any) -> None:  # noqa: A002 - the same field name as in the typed tree
        self.type = type
        self.value = value

    def __repr__(self) -> str:
        return f"CV({self.type}, {self.value!r})"


if TYPE_CHECKING:
    Operand: TypeAlias = CV | tree.Expr
else:
    Operand = Any


class _Undefined:
    def __repr__(self) -> str:
        return "undefined"


UNDEFINED = _Undefined()
VOID_VALUE = CV(t.VOID, None)


class ArrayValue:
    """Elements of an array in row-major order; one ``fill`` value until an element differs."""

    __slots__ = ("_items", "count", "fill")

    def __init__(self, count: int, fill: Any = None, items: list[Any] | None = None) -> None:
        self.count, self.fill, self._items = count, fill, items

    @property
    def items(self) -> list[Any]:
        """All elements as a list that may be changed in place."""
        if self._items is None:
            self._items = [self.fill] * self.count
        return self._items

    @property
    def uniform(self) -> bool:
        """Whether all elements are ``fill``."""
        return self._items is None

    def __getitem__(self, index: int) -> Any:
        return self.fill if self._items is None else self._items[index]

    def copy(self) -> ArrayValue:
        """An independent copy."""
        return ArrayValue(self.count, self.fill, None if self._items is None else list(self._items))


@dataclass(frozen=True)
class Pointer:
    """Address of a global, ``offset`` bytes in (for object storage: elements in)."""

    target: GlobalVar
    offset: int = 0


@dataclass(eq=False)
class FunctionValue:
    """A function or task of a module instance."""

    decl: s.FunctionDecl
    module: Module
    instances: dict[Any, str] = field(default_factory=dict)
    signature: tuple[tuple[t.Type, ...], t.Type] | None = None  # once evaluated, when it is the same for every call

    @property
    def name(self) -> str:
        """As written."""
        return self.decl.name


@dataclass(frozen=True)
class RangeValue:
    """``@range``; the bounds may be run-time values inside a function."""

    elem: t.Type
    start: Operand
    stop: Operand
    step: Operand
