"""Values of interpreted TorchScript: tensors that may be written in place, lists, dictionaries and tuples.

A tensor is a :class:`Cell` with a functional value. A view is a cell with a base and a way back: writing to it writes
to its base, and reading a view whose base was written since takes it again (functionalisation).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pyflame_rt.graph.errors import UnsupportedOperatorError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyflame_rt.ops.core.value import Value

__all__ = ["UNSET", "Cell", "FunctionName", "Record", "ScriptDict", "ScriptList", "TypeName", "Unset", "Way"]


class Way(NamedTuple):
    """How a view is taken from its base, and how new contents of the view change the base."""

    forward: Callable[[Value], Value]
    put: Callable[[Value, Value], Value]


class Cell:
    """A tensor: its value now, and where it is a view, of what."""

    __slots__ = ("_seen", "_value", "base", "depth", "doubted", "name", "twins", "version", "way")

    # depth: how many bodies of control flow it was made inside of; name: that of a parameter, which never changes.
    def __init__(self, value: Value, depth: int = 0, base: Cell | None = None, way: Way | None = None,
                 name: str = "") -> None:  # fmt: skip
        self._value = value
        self.base = base
        self.way = way
        self.depth = depth
        self.name = name
        self.version = 0
        self._seen = 0 if base is None else base.root.version
        self.twins: list[Cell] = []  # tensors that may share its elements: strides decide, which are not known here
        self.doubted = False  # a twin was written since

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
        if self.doubted:
            raise UnsupportedOperatorError(
                "the model writes in place to a reshape of a view, or to what that was taken from, and then reads the "
                "other one: whether they share memory depends on strides, which are not followed. Write "
                "reshape(...).clone(), or view(...)"
            )
        if self.base is not None and self.way is not None and self._seen != self.root.version:
            return self.way.forward(self.base.get())  # not kept: it may belong to a body of control flow
        return self._value

    def set(self, value: Value) -> None:
        """Write in place: bases and other views see it."""
        if self.base is None or self.way is None:
            if self.name:
                raise UnsupportedOperatorError(
                    f"the model writes to {self.name!r} when it runs, and a graph has no state: "
                    "call eval() before saving it, or give the state as an input and an output"
                )
            self._value = value
            self.version += 1
            for twin in self.twins:
                twin.doubted = True
            return
        self.base.set(self.way.put(self.base.get(), value))
        self._value, self._seen = value, self.root.version

    def restore(self, value: Value) -> None:
        """Put back a value of before, for views to notice."""
        self._value = value
        self.version += 1


class ScriptList:
    """A list: items, or, when its length is only known when running, a sequence."""

    __slots__ = ("depth", "items", "kind", "sequence")

    def __init__(self, items: list[Any], depth: int = 0, kind: Any = None, sequence: Value | None = None) -> None:
        self.items = items
        self.depth = depth
        self.kind = kind  # of the elements: the type int, float or bool, or None for tensors
        self.sequence = sequence


class ScriptDict:
    """A dictionary."""

    __slots__ = ("depth", "items")

    def __init__(self, items: dict[Any, Any], depth: int = 0) -> None:
        self.items = items
        self.depth = depth


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


class Unset:
    """What a name holds that no path has given a value."""


UNSET = Unset()
