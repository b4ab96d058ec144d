"""Places where a program keeps its state: entries of dicts, items of lists, attributes, closure cells.

A place says how its contents are read, quickly and without running any code of the user's, what they were when it was
made, and how they are put back.
"""

from __future__ import annotations

import ctypes
from array import array
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from pyflame.ops.core import Handle

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Set
    from contextvars import ContextVar
    from types import CellType, FunctionType
    from weakref import ref

__all__ = [
    "MISSING", "Buffer", "Cell", "Context", "Entries", "Facts", "FunctionParts", "Items", "Members", "Place", "Slots",
    "Weak",
]  # fmt: skip


class _Missing:
    """Stands where there is nothing."""

    def __repr__(self) -> str:
        return "nothing"


MISSING: Any = _Missing()
_NOTHING = repeat(MISSING)


class Place(Protocol):
    """Where state is kept.

    Attributes:
        path: what a user calls it.
        readers: each gives values that must be what they were.
        guarded: whether a trace depends on what is there; what is only written is looked at after a trace alone.
    """

    path: str
    guarded: bool

    @property
    def readers(self) -> list[Callable[[], Iterable[Any]]]:
        """What reads it."""
        ...

    def contents(self) -> dict[Any, Any]:
        """What is there now, by name or number."""
        ...

    def put(self, changed: Mapping[Any, Any]) -> None:
        """Write entries; those that are `MISSING` are taken away."""
        ...

    def label(self, key: Any) -> str:
        """What a user calls an entry."""
        ...


class Entries:
    """Entries of a dict: of a user's, of an object or a class, of a Python module.

    Args:
        path: what a user calls it.
        table: the dict.
        names: which entries count; None for all.
        also: further names whose absence counts.
        owner: gets attributes instead of the table: a class.
        dotted: entries are attributes.
        open: further entries count, whatever their names.
    """

    def __init__(
        self,
        path: str,
        table: Any,
        names: Set[str] | None = None,
        *,
        also: Iterable[str] = (),
        owner: type | None = None,
        dotted: bool = True,
        guarded: bool = True,
        open: bool = False,
    ) -> None:
        self.path, self.table, self.guarded, self.open = path, table, guarded, open
        self.names, self.owner, self.dotted = names, owner, dotted
        self._kept = None if names is None else tuple(dict.fromkeys([*(n for n in table if n in names), *also]))

    @property
    def readers(self) -> list[Callable[[], Iterable[Any]]]:
        """What reads it."""
        if self._kept is None:
            return [self.table.keys, self.table.values] if self.table else []
        return [partial(map, self.table.get, self._kept, _NOTHING)] if self._kept else []

    @property
    def sized(self) -> Any:
        """A dict that may get further entries that count."""
        kept = self._kept
        if kept is None or self.names is None:
            return None if self.table else self.table
        return None if self.names <= set(kept) and not self.open else self.table

    def grew(self) -> bool:
        """Whether there are further entries that count."""
        if self.names is None:
            return bool(self.table)
        kept = self._kept or ()
        return any(n not in kept for n in self.table if self.open or n in self.names)

    def contents(self) -> dict[Any, Any]:
        """What is there now."""
        return {k: v for k, v in self.table.items() if self.names is None or k in self.names}

    def put(self, changed: Mapping[Any, Any]) -> None:
        """Write entries."""
        for key, value in changed.items():
            if self.owner is not None:
                delattr(self.owner, key) if value is MISSING else setattr(self.owner, key, value)
            elif value is MISSING:
                self.table.pop(key, None)
            else:
                self.table[key] = value

    def label(self, key: Any) -> str:
        """What a user calls an entry."""
        if not self.dotted:
            return f"{self.path}[{'a tensor' if isinstance(key, Handle) else repr(key)}]"
        return f"{self.path}.{key}" if self.path else str(key)


class Items:
    """The items of a list or a deque."""

    def __init__(self, path: str, items: Any) -> None:
        self.path, self.items, self.guarded = path, items, True

    @property
    def readers(self) -> list[Callable[[], Iterable[Any]]]:
        """What reads it."""
        return [self.items.__iter__] if self.items else []

    @property
    def sized(self) -> Any:
        """What may get items although it has none."""
        return None if self.items else self.items

    def grew(self) -> bool:
        """Whether there are items now."""
        return bool(self.items)

    def contents(self) -> dict[Any, Any]:
        """What is there now."""
        return dict(enumerate(self.items))

    def put(self, changed: Mapping[Any, Any]) -> None:
        """Write items; the rest stay in their order."""
        now = {**self.contents(), **changed}
        kept = [now[i] for i in sorted(now) if now[i] is not MISSING]
        self.items.clear()
        self.items.extend(kept)

    def label(self, key: Any) -> str:
        """What a user calls an item."""
        return f"{self.path}[{key}]"


class Members(Items):
    """The members of a set: they have no numbers, as their order may change with any other member."""

    def contents(self) -> dict[Any, Any]:
        """What is there now."""
        return {member: member for member in self.items}

    def put(self, changed: Mapping[Any, Any]) -> None:
        """Write members."""
        for key, value in changed.items():
            self.items.discard(key)
            if value is not MISSING:
                self.items.add(value)

    def label(self, key: Any) -> str:
        """What a user calls a member."""
        return f"{key!r} of {self.path}"


class _Single:
    """A place of one value."""

    guarded = True

    def __init__(self, path: str) -> None:
        self.path = path

    @property
    def readers(self) -> list[Callable[[], Iterable[Any]]]:
        """What reads it."""
        return [lambda: (self.value(),)]

    def value(self) -> Any:
        """What is there now."""
        raise NotImplementedError

    def contents(self) -> dict[Any, Any]:
        """What is there now."""
        value = self.value()
        return {} if value is MISSING else {"": value}

    def label(self, key: Any) -> str:  # noqa: ARG002  # there is one entry
        """What a user calls it."""
        return self.path


class Cell(_Single):
    """A variable of an enclosing function."""

    def __init__(self, path: str, cell: CellType) -> None:
        super().__init__(path)
        self.cell = cell

    def value(self) -> Any:
        """What is there now."""
        try:
            return self.cell.cell_contents
        except ValueError:  # nothing yet
            return MISSING

    def put(self, changed: Mapping[Any, Any]) -> None:
        """Write it."""
        for value in changed.values():
            if value is MISSING:
                del self.cell.cell_contents
            else:
                self.cell.cell_contents = value


class Context(_Single):
    """A context variable."""

    def __init__(self, path: str, variable: ContextVar[Any]) -> None:
        super().__init__(path)
        self.variable = variable

    def value(self) -> Any:
        """What is there now."""
        return self.variable.get(MISSING)

    def put(self, changed: Mapping[Any, Any]) -> None:
        """Write it."""
        for value in changed.values():
            self.variable.set(value)


class Weak(_Single):
    """Whether what a weak reference refers to is there; the reference is held, that is not."""

    def __init__(self, path: str, reference: ref[Any]) -> None:
        super().__init__(path)
        self.reference = reference

    def value(self) -> Any:
        """Whether it is there now."""
        return self.reference() is not None

    def put(self, changed: Mapping[Any, Any]) -> None:
        """Nothing: no function brings it back."""


class Buffer(_Single):
    """Contents of what keeps bytes: read as bytes each time, as holding a view of them would forbid to resize it."""

    def __init__(self, path: str, buffer: Any) -> None:
        super().__init__(path)
        self.buffer = buffer
        self._latest = b""

    def value(self) -> Any:
        """What is there now: the same object while it is the same, as all places are compared so."""
        now = bytes(self.buffer) if not hasattr(self.buffer, "tobytes") else self.buffer.tobytes()
        if now != self._latest:
            self._latest = now
        return self._latest

    def put(self, changed: Mapping[Any, Any]) -> None:
        """Write it."""
        for value in changed.values():
            if isinstance(self.buffer, array):
                del self.buffer[:]
                self.buffer.frombytes(value)
            elif isinstance(self.buffer, bytearray):
                self.buffer[:] = value
            elif not isinstance(self.buffer, memoryview):
                ctypes.memmove(ctypes.addressof(self.buffer), value, len(value))
            elif not self.buffer.readonly:  # else whoever owns the memory puts it back
                elements = np.asarray(self.buffer)
                elements[...] = np.frombuffer(value, elements.dtype).reshape(elements.shape)


class Facts:
    """What is asked of many objects by one function: their classes, or what classes inherit from.

    It is compared only: what a function changes there is left as it is.
    """

    guarded = True

    def __init__(self, path: str, ask: Callable[[Any], Any], objects: Iterable[Any] = ()) -> None:
        self.path, self.ask = path, ask
        self.objects = list(objects)

    @property
    def readers(self) -> list[Callable[[], Iterable[Any]]]:
        """What reads it."""
        return [partial(map, self.ask, self.objects)] if self.objects else []

    def contents(self) -> dict[Any, Any]:
        """Nothing that could be put back."""
        return {}

    def put(self, changed: Mapping[Any, Any]) -> None:
        """Nothing."""

    def label(self, key: Any) -> str:  # noqa: ARG002  # they have no names
        """What a user calls it."""
        return self.path


class Slots:
    """Attributes of an object that are kept in slots."""

    guarded = True

    def __init__(self, path: str, owner: Any, names: Collection[str]) -> None:
        self.path, self.owner, self.names = path, owner, tuple(names)

    @property
    def readers(self) -> list[Callable[[], Iterable[Any]]]:
        """What reads it."""
        return [partial(map, getattr, repeat(self.owner), self.names, _NOTHING)]

    def contents(self) -> dict[Any, Any]:
        """What is there now."""
        read = {n: getattr(self.owner, n, MISSING) for n in self.names}
        return {n: v for n, v in read.items() if v is not MISSING}

    def put(self, changed: Mapping[Any, Any]) -> None:
        """Write attributes."""
        for name, value in changed.items():
            if value is MISSING:
                object.__delattr__(self.owner, name)
            else:
                object.__setattr__(self.owner, name, value)

    def label(self, key: Any) -> str:
        """What a user calls an attribute."""
        return f"{self.path}.{key}"


class FunctionParts(Slots):
    """What a function is besides its name: its code and its defaults."""

    def __init__(self, path: str, function: FunctionType) -> None:
        super().__init__(path, function, ("__code__", "__defaults__", "__kwdefaults__"))
