"""Guards: what a traced function could read must be what it was.

All places that the function can reach (`pyflame.compiling.reach`) are read in one pass without Python code of ours,
and each value is compared by identity. Only where one is another object, it is looked at: plain values must be equal to
the bit, a tensor may be another of the same type (the trace then reads that one), everything else is a difference.
"""

from __future__ import annotations

import struct
from itertools import chain
from operator import call, is_
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame.compiling.places import MISSING, Entries, Items
from pyflame.compiling.reach import is_plain, leaf_of
from pyflame.lazy import mode_changes
from pyflame.ops.core import Handle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyflame.compiling.places import Place
    from pyflame.compiling.reach import Reach

__all__ = ["Guards", "same_plain"]

_END: Any = object()


def same_plain(a: Any, b: Any) -> bool:
    """Whether two values are the same to a graph: of one type, and equal to the bit."""
    if a is b:
        return True
    kind = type(a)
    if kind is not type(b):
        return False  # 1, 1.0 and True are equal to Python
    if kind is tuple:
        return len(a) == len(b) and all(same_plain(x, y) for x, y in zip(a, b, strict=True))
    if kind is float:
        return struct.pack("d", a) == struct.pack("d", b)
    if kind is complex:
        return struct.pack("dd", a.real, a.imag) == struct.pack("dd", b.real, b.imag)
    if isinstance(a, np.generic):
        return a.dtype == b.dtype and a.tobytes() == b.tobytes()
    if kind is frozenset:
        return all(map(is_plain, a)) and all(map(is_plain, b)) and sorted(map(repr, a)) == sorted(map(repr, b))
    return is_plain(a) and bool(a == b)


class Guards:
    """The state a trace was made for.

    Args:
        reach: what the function can reach; it is all as the trace found it.
        consulted: tensors whose contents the function looked at, with those contents.
        may_move: whether the trace can read another tensor in place of this.

    Attributes:
        reason: what was different last.
        moved: tensors that others have taken the place of, by the number of the first, with both.
    """

    def __init__(
        self, reach: Reach, consulted: Iterable[tuple[Handle, Any]], may_move: Callable[[Handle], bool]
    ) -> None:
        self.places: list[Place] = [place for place in reach.places if place.guarded]
        self._readers = [reader for place in self.places for reader in place.readers]
        self._values = [*self._read(), _END]
        self._origins: dict[int, Handle] = {}
        self._tables = [p for p in self.places if isinstance(p, Entries | Items) and p.sized is not None]
        self._sized = [p.sized for p in self._tables]
        self._keys = list(map(list, self._sized))
        self._arrays = [(path, array, array.copy()) for path, array in reach.arrays]
        self._consulted = [_Contents(t, array) for t, array in consulted]
        self._may_move = may_move
        self._tensors = [(i, facts_of_tensor(v)) for i, v in enumerate(self._values) if isinstance(v, Handle)]
        self._changes = mode_changes[0]
        self.moved: dict[int, tuple[Handle, Handle]] = {}
        self.reason = ""

    def _read(self) -> Iterable[Any]:
        return chain.from_iterable(map(call, self._readers))

    def hold(self) -> bool:
        """Whether all is as it was; :attr:`moved` tells which tensors are others."""
        if not all(map(is_, chain(self._read(), (_END,)), self._values)) and not self._settle():
            return False
        if list(map(list, self._sized)) != self._keys and not self._settle_sizes():
            return False
        if mode_changes[0] != self._changes and not self._settle_tensors():
            return False
        return all(map(self._same_array, self._arrays)) and all(map(self._same_contents, self._consulted))

    # ------------------------------------------------------------------ what is not the same object

    def _settle(self) -> bool:
        """Look at values that are other objects than before."""
        now = [*self._read(), _END]
        if len(now) != len(self._values):
            self.reason = self._length_reason()
            return False
        moves: dict[int, tuple[Handle, Handle]] = {}
        for i, (new, old) in enumerate(zip(now, self._values, strict=True)):
            if new is not old and not same_plain(old, new) and not self._is_move(old, new, moves):
                self.reason = self._value_reason(i, old, new)
                return False
        if moves and not self._consistent(now, moves):
            return False
        self._values = now
        firsts = [(self._origins.pop(id(old), old), new) for old, new in moves.values()]
        for first, new in firsts:
            self._origins[id(new)] = first
            self.moved[id(first)] = (first, new)
        return True

    def _is_move(self, old: Any, new: Any, moves: dict[int, tuple[Handle, Handle]]) -> bool:
        """Whether a tensor may take the place of another."""
        if not (isinstance(old, Handle) and isinstance(new, Handle)) or type(old) is not type(new):
            return False
        first = self._origins.get(id(old), old)
        known = moves.setdefault(id(old), (old, new))
        return known[1] is new and interchangeable(old, new) and self._may_move(first) and self._may_move(new)

    def _consistent(self, now: list[Any], moves: dict[int, tuple[Handle, Handle]]) -> bool:
        """Whether what was one tensor is one, and what were two are two."""
        fresh = {id(new) for _, new in moves.values()}
        for i, (new, old) in enumerate(zip(now, self._values, strict=True)):
            if (id(old) in moves and new is old) or (id(new) in fresh and id(old) not in moves):
                self.reason = self._value_reason(i, old, new)
                return False
        if len(fresh) == len(moves):
            return True
        self.reason = "two tensors have become one"
        return False

    def _settle_sizes(self) -> bool:
        for place in self._tables:
            if place.grew():
                self.reason = f"{place.path or 'a global'} has further contents"
                return False
        self._keys = list(map(list, self._sized))
        return True

    def _settle_tensors(self) -> bool:
        """Somewhere a tensor requires gradients, or is of a type, that it did not, or was not."""
        changes = mode_changes[0]
        for i, facts in self._tensors:
            if facts_of_tensor(self._values[i]) != facts:
                self.reason = self._value_reason(i, self._values[i], self._values[i])
                return False
        self._changes = changes
        return True

    def _same_array(self, entry: tuple[str, np.ndarray[Any, Any], np.ndarray[Any, Any]]) -> bool:
        path, array, then = entry
        if array.shape == then.shape and array.dtype == then.dtype and array.tobytes() == then.tobytes():
            return True
        self.reason = f"the contents of {path} are others"
        return False

    def _same_contents(self, contents: _Contents) -> bool:
        if contents.same():
            return True
        self.reason = "the contents of a tensor that the function looked at are others"
        return False

    # ------------------------------------------------------------------ words

    def _length_reason(self) -> str:
        at = 0
        for place in self.places:
            for reader in place.readers:
                size = len(list(reader()))
                if any(a is not b for a, b in zip(reader(), self._values[at : at + size], strict=False)):
                    return f"{place.path or 'a global'} has other contents"
                at += size
        return "something has further contents"

    def _value_reason(self, index: int, old: Any, new: Any) -> str:
        for place in self.places:
            for reader in place.readers:
                size = len(list(reader()))
                if index < size:
                    keys = [k for k, v in place.contents().items() if v is new]
                    name = place.label(keys[0]) if keys else place.path or "a global"
                    return f"{name} was {_short(old)}, is {_short(new)}"
                index -= size
        return "something else is there"  # pragma: no cover  # every value has a place


def facts_of_tensor(tensor: Handle) -> tuple[Any, bool]:
    """The type of a tensor and whether it requires gradients, found without taking back what it lends."""
    alias = tensor._alias
    if alias is not None and alias.family.lent is not None and not alias.steps:
        return alias.family.spec, alias.family.wants_grad
    v = tensor._value
    return v.spec, v.needs_grad


def interchangeable(a: Handle, b: Handle) -> bool:
    """Whether tensors are of one type, and neither is a leaf that gradients are computed for."""
    mine, yours = leaf_of(a), leaf_of(b)
    if (mine is not None and mine.requires_grad) or (yours is not None and yours.requires_grad):
        return False
    x, y = a._value, b._value
    return x.spec is y.spec and x.needs_grad == y.needs_grad and x.layout == y.layout


class _Contents:
    """Contents of a tensor that a function looked at while it was traced."""

    def __init__(self, tensor: Handle, array: np.ndarray[Any, Any]) -> None:
        from pyflame.storage import alias_of

        self._tensor, self._then = tensor, array.copy()
        self._storage = alias_of(tensor).family.storage
        self._version = self._storage.version

    def same(self) -> bool:
        """Whether they are what they were."""
        alias = self._tensor._alias
        if alias is not None and alias.family.storage is self._storage and self._storage.version == self._version:
            return True
        from pyflame.evaluation import evaluate
        from pyflame.storage import alias_of

        v = self._tensor._value
        if v.array is None:
            evaluate([v])
        if v.array is None or v.array.shape != self._then.shape or v.array.tobytes() != self._then.tobytes():
            return False
        self._storage = alias_of(self._tensor).family.storage
        self._version = self._storage.version
        return True


def _short(value: Any) -> str:
    if value is MISSING:
        return "nothing"
    if isinstance(value, Handle):
        return f"a tensor {value._value.spec}"
    text = repr(value) if is_plain(value) else f"a {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."
