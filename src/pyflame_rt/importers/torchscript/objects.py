"""Values of interpreted TorchScript: tensors that may be written in place, lists, dictionaries and tuples.

A tensor is a :class:`Cell` with a functional value. A view is a cell with a base and a way back: writing to it writes
to its base, and reading a view whose base was written since takes it again (functionalisation).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from pyflame_rt.graph.errors import UnsupportedOperatorError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyflame_rt.importers.aten.values import Num
    from pyflame_rt.ops.core.value import Value

__all__ = [
    "UNSET", "Cell", "FunctionName", "Instance", "Maybe", "OpenText", "Record", "ScriptDict", "ScriptList", "Shared",
    "TypeName", "Unset", "Way",
]  # fmt: skip


class Way(NamedTuple):
    """How a view is taken from its base, and how new contents of the view change the base."""

    forward: Callable[[Value], Value]
    put: Callable[[Value, Value], Value]


class Kin:
    """Tensors, lists and dictionaries that may be the same one, or share elements: which is only known when running."""

    __slots__ = ("members",)

    def __init__(self, *members: Shared) -> None:
        self.members = list(members)


class Shared:
    """What can be changed in place, and so be changed through another name."""

    __slots__ = ("_kin", "depth", "doubted", "name")

    # depth: how many bodies of control flow it was made inside of; name: that of a parameter or of what a module
    # holds, which never changes; doubted: a relative was changed since.
    def __init__(self, depth: int = 0, name: str = "") -> None:
        self._kin: Kin | None = None
        self.depth = depth
        self.name = name
        self.doubted = False

    @property
    def root(self) -> Shared:
        """What owns the elements."""
        return self

    @property
    def kin(self) -> Kin:
        """The group it belongs to."""
        if self._kin is None:
            self._kin = Kin(self)
        return self._kin

    def link(self, other: Shared) -> None:
        """The two may be the same one."""
        if isinstance(other, ScriptList) and not isinstance(self, ScriptList):
            other.elements.link(self)
            return
        small, large = sorted((self.root.kin, other.root.kin), key=lambda kin: len(kin.members))
        if small is not large:
            large.members += small.members
            for member in small.members:
                member._kin = large

    def relatives(self) -> list[Shared]:
        """All others that a change of this one may change."""
        return [] if self._kin is None else [other for other in self._kin.members if other is not self]

    def marks(self) -> tuple[Shared, ...]:
        """Those whose doubt is a doubt about this one."""
        return (self.root,)

    def check(self) -> None:
        """Refuse to be read when a relative was changed.

        Raises:
            UnsupportedOperatorError: It was.
        """
        if any(mark.doubted for mark in self.marks()):
            raise UnsupportedOperatorError(
                "the model changes a tensor or a list in place that may be the same as another one, and then reads the "
                "other: whether they share memory depends on strides (a reshape of a view) or on the path that an if "
                "or a loop takes, which are not followed. Change a copy: x = x.clone(), or x = x.copy() of a list"
            )


class Cell(Shared):
    """A tensor: its value now, where it is a view, of what, and whether torch surely has its elements in their order.

    A reshape of such a tensor is a view of it; of another it may be one, or a copy.
    """

    __slots__ = ("_seen", "_value", "base", "number", "ordered", "version", "viewed", "way")

    def __init__(self, value: Value, depth: int = 0, base: Cell | None = None, way: Way | None = None,
                 name: str = "", *, ordered: bool = False) -> None:  # fmt: skip
        super().__init__(depth, name)
        self._value = value
        self.ordered = ordered
        self.number: Num | None = None  # of a constant that stands for one
        self.base = base
        self.way = way
        self.version = 0
        self.viewed = False
        self._seen = 0
        if base is not None:
            base.viewed = base.root.viewed = True
            self._seen = base.root.version

    @property
    def root(self) -> Cell:
        """The tensor that owns the elements."""
        cell = self
        while cell.base is not None:
            cell = cell.base
        return cell

    def get(self) -> Value:
        """The value now.

        Raises:
            UnsupportedOperatorError: It may have been changed through a tensor that may be a view of it.
        """
        self.check()
        return self.peek()

    def peek(self) -> Value:
        """The value now, as far as it is known."""
        if self.base is not None and self.way is not None and self._seen != self.root.version:
            return self.way.forward(self.base.peek())  # not kept: it may belong to a body of control flow
        return self._value

    def set(self, value: Value) -> None:
        """Write in place: bases and other views see it."""
        if self.base is None or self.way is None:
            self._value = value
            self.version += 1
            return
        self.base.set(self.way.put(self.base.peek(), value))
        self._value, self._seen = value, self.root.version

    def turn(self, way: Way) -> None:
        """Become a view of what this tensor was, as ``unsqueeze_`` and its kin do: the elements stay.

        Raises:
            UnsupportedOperatorError: It has views, which would have to be taken in another way.
        """
        self.ordered = False
        if self.viewed:
            raise UnsupportedOperatorError(
                "the model changes the shape of a tensor in place, of which it has taken views before. "
                "Write x = x.unsqueeze(0) (or t, transpose, squeeze) without the underscore"
            )
        if self.base is None:
            self.set(way.forward(self.peek()))
            return
        before = Cell(self._value, self.depth, self.base, self.way, ordered=self.ordered)
        before._seen = self._seen
        self._value, self.base, self.way, self._seen = way.forward(before.peek()), before, way, self.root.version

    def restore(self, value: Value) -> None:
        """Put back a value of before, for views to notice."""
        self._value = value
        self.version += 1


class ScriptList(Shared):
    """A list: items, or, when its length is only known when running, a sequence."""

    __slots__ = ("_items", "_sequence", "elements", "kind")

    def __init__(self, items: list[Any], depth: int = 0, kind: Any = None, sequence: Value | None = None,
                 name: str = "") -> None:  # fmt: skip
        super().__init__(depth, name)
        self._items = items
        self.kind = kind  # of the elements: the type int, float or bool, or None for tensors
        self._sequence = sequence
        self.elements = Shared(depth)  # stands for the tensors of a sequence, which holds their values

    def link(self, other: Shared) -> None:
        """The two may be the same list, or a tensor may be one of the list."""
        if isinstance(other, ScriptList):
            super().link(other)
            self.elements.link(other.elements)
        else:
            self.elements.link(other)

    def marks(self) -> tuple[Shared, ...]:
        """The list, and what it holds."""
        return (self, self.elements)

    @property
    def items(self) -> list[Any]:
        """The items, where their number is known."""
        self.check()
        return self._items

    @property
    def sequence(self) -> Value | None:
        """The sequence, where the number of items is not known."""
        self.check()
        return self._sequence

    def peek(self) -> tuple[list[Any], Value | None]:
        """Items and sequence, as far as they are known."""
        return self._items, self._sequence

    def put(self, items: list[Any], sequence: Value | None) -> None:
        """Give the list other contents."""
        self._items, self._sequence = items, sequence


class ScriptDict(Shared):
    """A dictionary."""

    __slots__ = ("_items",)

    def __init__(self, items: dict[Any, Any], depth: int = 0, name: str = "") -> None:
        super().__init__(depth, name)
        self._items = items

    @property
    def items(self) -> dict[Any, Any]:
        """Values by key."""
        self.check()
        return self._items

    def peek(self) -> dict[Any, Any]:
        """Values by key, as far as they are known."""
        return self._items

    def put(self, items: dict[Any, Any]) -> None:
        """Give the dictionary other contents."""
        self._items = items


class Instance(ScriptDict):
    """An object of a class of the archive that the code made: its attributes by name."""

    __slots__ = ("kind",)

    def __init__(self, kind: str, depth: int = 0) -> None:
        super().__init__({}, depth)
        self.kind = kind


@dataclass(frozen=True, eq=False)
class Maybe:
    """None on some paths: whether it is there, and the value it then has."""

    present: Any
    value: Any


class Record(NamedTuple):
    """A named tuple of the archive's code."""

    kind: str
    names: tuple[str, ...]
    values: tuple[Any, ...]


class FunctionName(NamedTuple):
    """A function or class of the archive's code."""

    name: str


class TypeName(NamedTuple):
    """A type written in the code."""

    text: str


class OpenText(str):
    """A text made of numbers or tensors that are only known when running: good for messages, and for nothing else."""

    __slots__ = ()


class Unset:
    """What a name holds that no path has given a value."""


UNSET = Unset()
