"""What must stay as it is between replays, as words in memory, and the references that keep it from being reused.

All replays share these references: an object that several of them watch has one more than it would have, not several.
"""

from __future__ import annotations

import ctypes
from typing import Any
from weakref import WeakValueDictionary

from pyflame.compiling.parked import PARKED

__all__ = ["Watched", "extra", "slot_of"]


class _Kept:
    """One reference to an object."""

    __slots__ = ("__weakref__", "held")

    def __init__(self, held: Any) -> None:
        self.held = held


_kept: WeakValueDictionary[int, _Kept] = WeakValueDictionary()


def extra(held: object) -> int:
    """How many references to an object are those of replays that watch it."""
    return int(id(held) in _kept)


def keep(held: Any) -> _Kept:
    """The reference to an object that all replays share."""
    found = _kept.get(id(held))
    if found is None:
        found = _kept[id(held)] = _Kept(held)
    return found


class Watched:
    """Words: addresses with what must be there.

    Args:
        offsets: where tensors keep their value and values their array.
        changes: a list of one number that must stay the same; it becomes the first word.
        number: what it must be.

    Attributes:
        words: to be looked at each time.
        more: to be looked at unless nobody used anything that is parked.
        later: true when the next replay begins, not yet now.
        alone: must hold where something is to be parked.
        parked: what to park, each with its class and the one it gets.
        kept: references that keep all this from being reused.
        right: whether it can be watched at all.
    """

    def __init__(self, offsets: dict[str, int], changes: list[int], number: int) -> None:
        self._offsets = offsets
        self._seen: set[int] = set()
        items = ctypes.c_int64.from_address(id(changes) + object.__basicsize__ + 8).value
        self.words: list[tuple[int, int]] = [(items, id(number))]
        self.more: list[tuple[int, int]] = []
        self.later: list[tuple[int, int]] = []
        self.alone: list[tuple[int, int]] = []
        self.parked: list[tuple[int, int, int]] = []
        self.kept: list[_Kept] = []
        self.right = True

    def tensor(self, handle: Any, *, later: bool = False) -> None:
        """A tensor keeps its value and that its array, and nobody else refers to them."""
        value = handle._value
        array = value.array
        base = array.base
        words = self.later if later else self.more
        words.append((id(handle) + self._offsets["value"], id(value)))
        words.append((id(value) + self._offsets["array"], id(array)))
        for held in (value, array, base):
            if held is not None:
                (self.words if held is value and not later else words).append((id(held), 2))
                self.kept.append(keep(held))
        self._park(value)
        # Two values may not share an array that is written.
        self.right &= bool(array.flags.writeable) and id(array) not in self._seen
        self._seen.add(id(array))

    def gradient(self, handle: Any, leaf: Any, slot: int) -> None:
        """A gradient stays the one it is, at that slot of its leaf; 0: it is kept here until it is put there."""
        words = self.more if slot else self.later
        if slot:
            words.append((slot, id(handle)))
        words.append((id(handle), 2 if slot else 1))
        # A weak reference would lead to it without a word to the leaf.
        self.alone.append((id(handle) + type(handle).__weakrefoffset__, 0))
        self.kept.append(keep(handle))
        self._park(leaf)
        self.tensor(handle, later=not slot)

    def _park(self, held: Any) -> None:
        plain = next(kind for kind in PARKED if isinstance(held, kind))
        self.parked.append((id(held), id(plain), id(PARKED[plain])))

    def tables(self) -> dict[str, list[Any]]:
        """All as it lies in memory, which is read faster so; before the words the number, after the rest what will be.

        Nothing is parked where something has to be put elsewhere at each replay.
        """
        more = [*sorted(self.more), *sorted(self.later)]
        parked = [] if self.later else sorted(set(self.parked))
        return {"words": [self.words[0], *sorted(self.words[1:])], "more": more, "alone": self.alone, "parked": parked}


def slot_of(holder: Any, held: Any) -> int:
    """The address of the slot in which an object refers to another; 0 where it does so in another way."""
    wanted = id(held)
    for address in range(id(holder) + object.__basicsize__, id(holder) + type(holder).__basicsize__, 8):
        if ctypes.c_int64.from_address(address).value == wanted:
            return address
    return 0
