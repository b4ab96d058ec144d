"""Replays without a frame of Python: the call of a compiled function is machine code, and so is handing out its result.

Results are made ahead, with all that belongs to them: tensor, value, array. As long as the caller keeps one, a word of
it in memory differs from what it was (references, above all); once all words are as they were, nobody can tell that the
result was handed out before, and it is handed out again. So nothing is made and nothing is freed in a replay.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pyflame.compiling.watched import slot_of
from pyflame.lazy import modes, tracing
from pyflame.ops.core import Handle
from pyflame_rt.backends.cpu.llvm.calls import Call, Shell, callable_type, thread_number
from pyflame_rt.backends.cpu.llvm.entry import ARRAY_SIZES, ARRAY_WORDS, LIST_ITEMS

if TYPE_CHECKING:
    from pyflame.compiling.results import Results

__all__ = ["Fronted", "Standing", "can_stand", "fronted", "under_way"]

# Results made at once: small ones in advance, of larger ones as many as are in use in turn.
SMALL, MANY, FEW = 1 << 14, 16, 2
# Results of more bytes are not kept.
MAX_BYTES = 64 << 20
_WORD = 8

# How many replays are under way, in all threads; machine code counts them.
under_way = np.zeros(1, np.int64)


class Fronted:
    """An object with a slot for what its call looks at (`front`)."""

    __slots__ = ("_front",)


@cache
def fronted(base: type) -> Any:
    """The class to give an object of a subclass of `Fronted`, to have it called by its slot."""
    sample, mark = Fronted(), object()
    sample._front = mark
    native = callable_type(slot_of(sample, mark) - id(sample))
    names = {"__slots__": (), "__module__": base.__module__, "__doc__": base.__doc__, "__qualname__": base.__qualname__}
    return type(base.__name__, (native, base), names)


class Standing:
    """One replay that machine code may begin by itself.

    Args:
        steady: the replay.
        short: the short way through its plan.
        way: its tables.
        results: makes its results.
        grad: the gradient mode it is for.

    Attributes:
        call: what machine code reads.
    """

    __slots__ = ("_ended", "_grad", "_lock", "_made", "_memory", "_mode", "_results", "_short", "_words", "call")

    def __init__(self, steady: Any, short: Any, way: Any, results: Results, grad: bool) -> None:
        self._results, self._short = results, short
        self._made: list[tuple[Any, list[Any]]] = []
        self._words: list[Any] = []
        self._memory: Any = None
        self._lock, self._ended = threading.Lock(), False
        call = self.call = Call()
        call.connect()
        call.way, call.owner, call.dry = way.address, id(steady), 1
        call.tracing = id(tracing) + object.__basicsize__
        short.standing(call, first=True)
        call.closed = 1  # until it is known which thread calls
        self._grad = grad
        self._mode: _Mode | None = None

    def allow(self) -> None:
        """It is for the thread that calls this, from now on; not if another thread is just saying the same."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            call = self.call
            call.closed = 1  # other threads' calls must not see a part of what follows
            mode = self._mode = _mode()
            if mode is not None:
                call.thread, call.mode = thread_number(), mode.words[self._grad].ctypes.data
            self._short.standing(call, first=False)
            call.closed = int(mode is None or not call.arena)
            if self._ended:
                call.closed = 1
        finally:
            self._lock.release()

    def close(self) -> None:
        """Begin no more."""
        self._ended = True
        self.call.closed = 1

    @property
    def is_dry(self) -> bool:
        """Whether machine code found no result that it could hand out."""
        return bool(self.call.dry)

    def refill(self) -> tuple[Any, list[Any]]:
        """Make results; the first of them with its arrays, for the caller to use at once."""
        if not self._lock.acquire(blocking=False):  # another thread is making some
            return self._results.one(())
        try:
            return self._refill()
        finally:
            self._lock.release()

    def _refill(self) -> tuple[Any, list[Any]]:
        self.call.nshells = 0  # those that are there go: other threads' calls must not look at them
        many = MANY if self._results.size <= SMALL else 1
        before = 0 if many > 1 else FEW - 1
        made, words = self._made[len(self._made) - before :], self._words[len(self._words) - before :]
        first = len(made)
        made += [self._results.one(()) for _ in range(many)]
        words += [_words(_places(made[i][0])) for i in range(first, len(made))]
        shells = (Shell * len(made))()
        arrays = [(ctypes.c_void_p * max(len(into), 1))(*map(id, into)) for _, into in made]
        for i, (row, into) in enumerate(zip(words, arrays, strict=True)):
            shells[i] = Shell(id(made[i][0]), ctypes.addressof(into), row.ctypes.data, len(row))
        self._made, self._words, self._memory = made, words, (shells, arrays)
        self.call.shells, self.call.dry = ctypes.addressof(shells), 0
        self.call.nshells = len(shells)
        return made[first]


class _Mode(NamedTuple):
    """Where a thread keeps its gradient mode: a dictionary, the table it has just now, and what must be in memory.

    The words say that the dictionary has that table, that the name is there, and (by mode) what stands beside it.
    """

    held: dict[str, Any]
    table: int
    words: tuple[Any, Any]


class _Modes(threading.local):
    found: _Mode | None = None


_modes = _Modes()
_NAME = sys.intern("grad")


def _mode() -> _Mode | None:
    """That of this thread; None where dictionaries look different."""
    held, place = modes.__dict__, dict.__basicsize__ - 2 * _WORD
    table, size = _table(held)
    found = _modes.found
    if found is None or found.held is not held or found.table != table:
        found = _modes.found = None
        value = id(held.get(_NAME))
        for start in _range(table, size - 1):
            if [ctypes.c_int64.from_address(start + k).value for k in (0, _WORD)] == [id(_NAME), value]:
                both = [(id(held) + place, table), (start, id(_NAME))]
                words = [np.array([*both, (start + _WORD, id(mode))], np.int64) for mode in (False, True)]
                found = _modes.found = _Mode(held, table, (words[0], words[1]))
    return found


def can_stand(short: Any, trace: Any, results: Results) -> bool:
    """Whether machine code can begin the replays of a trace by itself."""
    if not hasattr(short, "standing") or trace.scalars or results.size > MAX_BYTES:
        return False
    return all(kind == "output" for kind, _ in trace.results) and _is_known(results.one(())[0])


def _is_known(result: Any) -> bool:
    """Whether all that a caller could change of a result is among the words."""
    if type(result) in (tuple, list) or _is_named(result):
        return all(map(_is_known, result))
    if type(result) is dict:
        return all(map(_is_known, result.values()))
    if isinstance(result, Handle):
        return not hasattr(result, "__dict__") and type(result._value.array) is np.ndarray
    return type(result) in (int, float, bool, str, type(None))


def _is_named(result: Any) -> bool:
    """Whether it is a tuple with names for its items, and nothing else."""
    return isinstance(result, tuple) and hasattr(result, "_fields") and not hasattr(result, "__dict__")


def _table(held: dict[Any, Any]) -> tuple[int, int]:
    """Where the table of a dictionary is, and of how many words it consists."""
    start = ctypes.c_int64.from_address(id(held) + dict.__basicsize__ - 2 * _WORD).value
    return start, (sys.getsizeof(held) - sys.getsizeof({})) // _WORD


def _places(result: Any) -> list[int]:
    """The addresses of all that a result consists of, and that changes as soon as somebody holds or changes a part."""
    if type(result) is dict:
        found = _range(id(result), dict.__basicsize__ // _WORD) + _range(*_table(result))
        return found + [place for item in result.values() for place in _places(item)]
    if isinstance(result, tuple):
        found = _range(id(result), tuple.__basicsize__ // _WORD + len(result))
        return found + [place for item in result for place in _places(item)]
    if type(result) is list:
        items = ctypes.c_int64.from_address(id(result) + LIST_ITEMS).value
        found = _range(id(result), list.__basicsize__ // _WORD) + _range(items, len(result))
        return found + [place for item in result for place in _places(item)]
    if not isinstance(result, Handle):
        return []
    value = result._value
    array: Any = value.array
    found = [place for held in (result, value) for place in _range(id(held), type(held).__basicsize__ // _WORD)]
    found += _range(id(array), ARRAY_WORDS)
    for sizes in ARRAY_SIZES:
        found += _range(ctypes.c_int64.from_address(id(array) + sizes).value, array.ndim)
    below = array.base
    while below is not None:
        found.append(id(below))
        below = getattr(below, "base", None)
    return found


def _range(start: int, number: int) -> list[int]:
    return list(range(start, start + _WORD * number, _WORD))


def _words(places: list[int]) -> Any:
    """Pairs of an address and what is there."""
    found = [(place, ctypes.c_int64.from_address(place).value) for place in places]
    return np.array(found, np.int64).reshape(-1, 2)
