"""Storages, views and versions: functionalisation, as lazy back ends do in-place operations on immutable values.

Values (`Val`) never change. What can change is a *storage*: memory as the user sees it, which several tensors may
share. A `Family` is the tensors of one storage that share a history of differentiation: a base and its views. Detached
tensors are families of their own below the storage's first, as long as that is there. An in-place operation gives the
base of its family a new value, counts the version of the storage up and empties `_value` of all other tensors of the
storage; whoever reads such a tensor finds it empty and regenerates it from the base (`Handle.__getattr__`). A tensor
that nobody ever viewed, detached or compiled has no storage at all.

A compiled function keeps what it writes to itself between its calls: the base has no value then but *lends* an array,
which the next call may overwrite, as nobody else can refer to it. Whoever reads the tensor takes the array back.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any
from weakref import ref

import numpy as np

from pyflame.lazy import Spec, Val, modes, next_serial
from pyflame_rt.graph.locks import new_rlock

if TYPE_CHECKING:
    from pyflame.autograd.leaf import Leaf
    from pyflame.layout import MeshLayout
    from pyflame.ops.core import Handle
    from pyflame.views import Step

__all__ = ["Alias", "Family", "Storage", "alias_of", "state_lock", "versions"]

# Of a view that has no history of its own, above the numbers of all expressions.
NEVER = sys.maxsize

# Held by whoever traces, replays what writes state, or takes an array back.
state_lock = new_rlock()


class Versions:
    """The versions of all storages and gradients that compiled functions read, in one table to compare at once.

    Attributes:
        table: one number for each row.
        total: how often any of them was counted up.
    """

    def __init__(self) -> None:
        self.table = np.zeros(1024, np.int64)
        self.total = 0
        self._free: list[int] = []
        self._next = 0

    def new_row(self, version: int) -> int:
        """A row for a version."""
        with state_lock:
            if self._free:
                row = self._free.pop()
            else:
                row, self._next = self._next, self._next + 1
                if row == len(self.table):
                    self.table = np.concatenate([self.table, np.zeros_like(self.table)])
            self.table[row] = version
            return row

    def count(self, row: int, version: int) -> None:
        """A version was counted up."""
        self.table[row] = version
        self.total += 1

    def free_row(self, row: int) -> None:
        """Nobody has this version any more."""
        self._free.append(row)


versions = Versions()


class Versioned:
    """Something that can change, and counts how often it did.

    Attributes:
        version: how often.
        row: of the table; -1 while no compiled function looks at it.
    """

    __slots__ = ("__weakref__", "row", "version")

    def __init__(self) -> None:
        self.version = 0
        self.row = -1

    def changed(self) -> None:
        """Count the version up."""
        self.version += 1
        if self.row >= 0:
            versions.count(self.row, self.version)

    def watched(self) -> int:
        """Its row of the table."""
        if self.row < 0:
            self.row = versions.new_row(self.version)
        return self.row

    def __del__(self) -> None:
        if self.row >= 0:
            versions.free_row(self.row)


class Storage(Versioned):
    """Memory as the user sees it: its version, and the tensors that are up to date.

    Attributes:
        writes: how often it was written, as far as gradients are concerned.
    """

    __slots__ = ("_fresh", "_most", "writes")

    def __init__(self) -> None:
        super().__init__()
        self.writes = 0
        self._fresh: list[ref[Handle]] = []
        self._most = 8

    def wrote(self, *, silent: bool = False) -> None:
        """It has other contents; a silent write does not count as a change of what was saved for gradients."""
        self.version += 1
        if self.row >= 0:
            versions.count(self.row, self.version)
        if not silent:
            self.writes += 1

    def stamp(self, value: Val) -> None:
        """A value is what a tensor of this storage holds at this version."""
        value.stamp = (self, self.writes)

    def joined(self, handle: Handle) -> None:
        """A tensor has its value of this version."""
        fresh = self._fresh
        fresh.append(ref(handle))
        if len(fresh) > self._most:
            self._fresh = [seen for seen in fresh if seen() is not None]
            self._most = 8 + 2 * len(self._fresh)

    def outdate(self, keep: Handle | None = None) -> None:
        """Tensors other than one must regenerate their values."""
        fresh, self._fresh = self._fresh, []
        for seen in fresh:
            handle = seen()
            if handle is None:
                continue
            if handle is keep:
                self._fresh.append(seen)
            else:
                handle._empty()


# The stamp of what was changed in place without a storage.
_gone = Storage()
_gone.wrote()
OVERWRITTEN = (_gone, 0)


class Family:
    """The tensors of a storage that share a history: a base and its views.

    Attributes:
        storage: what they share with other families.
        steps: the views that lead from the parent's base to this one's.
        value: of the base; None while it is lent.
        seen: the version the value is of.
        lent: the array that stands for the value.
        silent: writes do not count as changes of what was saved for gradients, as those of torch's ``.data``.
    """

    __slots__ = ("__weakref__", "_facts", "_parent", "lent", "seen", "silent", "steps", "storage", "value")

    def __init__(
        self, storage: Storage, value: Val, parent: Family | None = None, steps: tuple[Step, ...] = ()
    ) -> None:
        self.storage = storage
        self._parent = None if parent is None else ref(parent)
        self.steps = steps
        self.value: Val | None = value
        self.seen = storage.version
        self.lent: np.ndarray[Any, Any] | None = None
        self._facts: tuple[Spec, Leaf | None, MeshLayout | None] | None = None
        self.silent = False
        value.handles += 1

    def __del__(self) -> None:
        if self.value is not None:
            self.value.handles -= 1

    @property
    def parent(self) -> Family | None:
        """The family this one was detached from; None for the storage's first, and once no tensor of that is left."""
        return None if self._parent is None else self._parent()

    def current(self) -> Val:
        """The value of the base as it is now."""
        if self._parent is not None and self.seen != self.storage.version:
            self._follow(self._parent())
        if self.value is None:
            with state_lock:
                self._take_back()
        assert self.value is not None
        return self.value

    def _follow(self, parent: Family | None) -> None:
        """Take the contents that were written by another family, and keep the history."""
        old = self.value
        assert old is not None
        if parent is None:
            self.seen = self.storage.version
            return
        from pyflame.views import detached, keeping_history, through

        base = parent.current()
        if modes.tracer is not None:
            modes.tracer.saw_family(parent, base)
            modes.tracer.note_write(self)
        self.bind(keeping_history(through(self.steps, detached(base)), old))

    def top(self) -> Family:
        """The storage's first family, or this where that is gone."""
        return self.parent or self

    @property
    def spec(self) -> Spec:
        """The type of the base."""
        if self._facts is not None:
            return self._facts[0]
        return self.current().spec

    @property
    def wants_grad(self) -> bool:
        """Whether the base is a leaf that gradients are computed for."""
        leaf = self._facts[1] if self._facts is not None else self.current().leaf
        return leaf is not None and leaf.requires_grad

    def bind(self, value: Val) -> None:
        """Give the base a value of the storage's version."""
        old = self.value
        value.handles += 1
        if old is not None:
            old.handles -= 1
        self.value, self.lent, self._facts = value, None, None
        storage = self.storage
        value.stamp = (storage, storage.writes)
        self.seen = storage.version

    def lend(self, array: np.ndarray[Any, Any]) -> None:
        """Let an array that nobody else refers to stand for the value; all tensors regenerate theirs when read."""
        if self.value is not None:
            value = self.value
            self._facts = (value.spec, value.leaf, value.layout)
            value.handles -= 1
            self.value = None
        self.lent = array
        self.storage.wrote()
        self.seen = self.storage.version
        self.storage.outdate()

    def _take_back(self) -> None:
        """Somebody reads the base: its array is that of a value from now on, and never overwritten again."""
        if self.value is not None:
            return
        assert self._facts is not None
        spec, leaf, layout = self._facts
        value = Val(spec, array=self.lent)
        value.leaf, value.layout = leaf, layout
        value.needs_grad = leaf is not None and leaf.requires_grad
        self.storage.changed()
        self.bind(value)


class Alias:
    """What a tensor is of its family: the base, or a view of it.

    Attributes:
        family: it belongs to.
        steps: the views that lead from the base to it.
        origin: why an in-place operation on it is refused where gradients are recorded; "" where it is not.
        linked: the number of the expression since which it has a history, before which torch refuses to write it: 0
            where the base required gradients when it was made, `NEVER` until it is used where gradients are recorded.
    """

    __slots__ = ("family", "linked", "origin", "steps")

    def __init__(self, family: Family, steps: tuple[Step, ...] = (), origin: str = "", linked: int = 0) -> None:
        self.family = family
        self.steps = steps
        self.origin = origin
        self.linked = linked

    def read(self, handle: Handle) -> Val:
        """The value of the tensor as it is now."""
        family = self.family
        value = family.current()
        if self.steps:
            from pyflame.views import regenerated

            value = regenerated(self, value)
            if self.linked == NEVER and value.needs_grad:
                if not modes.grad:
                    return value  # for the moment only: the next to read it may record gradients
                self.linked = next_serial()
        value.handles += 1
        family.storage.stamp(value)
        handle._value = value
        family.storage.joined(handle)
        if modes.tracer is not None:
            modes.tracer.note_read(handle)
        return value

    def forget(self, handle: Handle) -> None:
        """Take back a reading that torch does not count: nothing that gradients are recorded for came of it."""
        self.linked = NEVER
        handle._empty()


def alias_of(handle: Handle) -> Alias:
    """What a tensor is of its family; one without a storage gets one."""
    alias = handle._alias
    if alias is None:
        value = handle._value
        if value.handles > 1 or value.spec.known is not None:
            from pyflame.views import own

            value.handles -= 1
            value = handle._value = own(value)
            value.handles += 1
        storage = Storage()
        alias = handle._alias = Alias(Family(storage, value))
        storage.stamp(value)
        storage.joined(handle)
    return alias
