"""Values and leaves that tell when somebody looks at them: while nobody did, nobody can hold what they refer to.

A replay that found all tensors as it left them parks their values and leaves: gives them a class whose attributes,
those that matter, are properties. Whoever uses one, in whatever thread, writes a new number to `marks` and finds the
class that was there before. As long as the number is the same, the next replay need not look at arrays, their memory
and gradients: the only way to them leads over an attribute. (The values themselves have references that are counted
at each replay, as holding one takes no attribute.)
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from pyflame.autograd.leaf import Leaf
from pyflame.lazy import Val

__all__ = ["PARKED", "marks", "waking"]

# Which attribute was used last, as a number that was never there before; and how many slots machine code changed.
marks = np.zeros(2, np.int64)
# One item for each use of an attribute under way: until it is over, replays look at everything.
waking: list[int] = []
_numbers = itertools.count(1)


def _parked(plain: type, names: tuple[str, ...]) -> type:
    members: dict[str, Any] = {name: _telling(plain, plain.__dict__[name]) for name in names}
    made = type(
        plain.__name__, (plain,), {"__slots__": (), "__module__": __name__, "__doc__": plain.__doc__, **members}
    )
    sample: Any = object.__new__(plain)
    sample.__class__ = made  # both look alike in memory, or this raises
    return made


def _telling(plain: type, slot: Any) -> property:
    """A property for a slot: first the use, then the plain class, then the mark.

    In this order no replay can begin, in another thread, that knows of neither: what was read has a reference by then,
    what was unparked is either parked again by a replay that looked at it, or followed by the mark.
    """

    def read(self: Any) -> Any:
        waking.append(1)
        try:
            return slot.__get__(self)
        finally:
            self.__class__ = plain
            marks[0] = next(_numbers)
            waking.pop()  # not reached when something is raised above: replays look at everything from then on

    def write(self: Any, value: Any) -> None:
        waking.append(1)
        try:
            slot.__set__(self, value)
        finally:
            self.__class__ = plain
            marks[0] = next(_numbers)
            waking.pop()

    return property(read, write)


# The classes by those they stand for.
PARKED: dict[type, type] = {Val: _parked(Val, ("array", "handles")), Leaf: _parked(Leaf, ("grad",))}
