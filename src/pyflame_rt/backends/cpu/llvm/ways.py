"""Tables of runs that are alike: what is read from memory at each of them, and what must be found there."""

from __future__ import annotations

import ctypes
from ctypes import c_int64, c_void_p
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pyflame_rt.backends.cpu.llvm.entry import LIST_ITEMS, TUPLE_ITEMS, enter_address
from pyflame_rt.backends.cpu.llvm.jit import follow

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["TABLES", "Copied", "Drawn", "Found", "Given", "Parked", "Put", "Replay", "Signs", "Way", "api"]


class Given(ctypes.Structure):
    """A tensor among the arguments: a holder of the type it must have, of a value with that type and mode."""

    _fields_ = (("number", c_int64), ("place", c_int64), ("type", c_void_p), ("spec", c_void_p), ("mode", c_void_p))


class Found(ctypes.Structure):
    """An input that is read where it is now: from a slot with a value, or (``far``) with a holder of one."""

    _fields_ = (("slot", c_void_p), ("place", c_int64), ("far", c_int64))


class Drawn(ctypes.Structure):
    """Random keys to make: where to write them, how many, the state of their source and how many it had made then.

    The state is three words: whether it is just being changed, the mixed seed, and how many keys were made before.
    """

    _fields_ = (("target", c_void_p), ("number", c_int64), ("state", c_void_p), ("drawn", c_int64))


class Copied(ctypes.Structure):
    """Bytes to copy after the run."""

    _fields_ = (("target", c_void_p), ("source", c_void_p), ("size", c_int64))


class Put(ctypes.Structure):
    """A slot that holds an object after the run."""

    _fields_ = (("slot", c_void_p), ("held", c_void_p))


class Parked(ctypes.Structure):
    """An object of a class, which gets another when it was looked at: from then on it tells when somebody uses it."""

    _fields_ = (("held", c_void_p), ("plain", c_void_p), ("parked", c_void_p))


class Signs(NamedTuple):
    """Addresses of what all replays share.

    Attributes:
        running: how many are under way.
        marks: two words; one changes when something that is parked is used, the other when slots get something else.
        waking: a word that is not zero while something that is parked is being used.
    """

    running: int
    marks: int
    waking: int


# Tables of the structure below and what is in them.
TABLES: dict[str, Any] = {
    "plain": c_int64,  # pairs: number of an argument, address of the object that it must be
    "arrays": c_int64,  # pairs: number of an argument that is an array, place of the input
    "given": Given,
    "found": Found,
    "words": c_int64,  # pairs: an address, what must be there
    "more": c_int64,  # the same, for what cannot have changed as long as nobody used anything that is parked
    "alone": c_int64,  # the same, for what must be true to have things parked
    "parked": Parked,
    "fresh": c_int64,  # places of the outputs that the caller gives
    "drawn": Drawn,
    "copied": Copied,
    "put": Put,
}
_OFFSETS = ("value", "array", "spec", "mode")


class Way(ctypes.Structure):
    """What the native function is given."""

    _fields_ = (
        ("busy", c_int64),
        ("runs", c_int64),
        ("looks", c_int64),
        ("seen", c_int64),
        ("seen_put", c_int64),
        *((name, c_void_p) for name in Signs._fields),
        ("enter", c_void_p),
        ("save", c_void_p),
        ("restore", c_void_p),
        ("incref", c_void_p),
        ("decref", c_void_p),
        ("copy", c_void_p),
        ("integer", c_void_p),
        ("number", c_void_p),
        ("none", c_void_p),
        ("narguments", c_int64),
        ("inputs", c_void_p),
        ("items", c_void_p),
        ("outputs", c_void_p),
        ("held", c_void_p),
        ("nheld", c_int64),
        *((f"at_{name}", c_int64) for name in _OFFSETS),
        *(field for name in TABLES for field in ((name, c_void_p), (f"n{name}", c_int64))),
    )


class Replay:
    """Inputs, outputs and conditions of runs that are alike.

    It refers to none of the objects: whoever made it keeps alive what the tables name.

    Args:
        inputs: arrays (None where a table says where they come from).
        outputs: arrays (None where the caller gives one at each run).
        narguments: how many arguments there are.
        offsets: where in a holder its value is, and in a value its array, its type and its mode.
        tables: rows of the tables named in this module.
        signs: what it shares with others; None: what is its own alone.
    """

    __slots__ = ("_keep", "_rows", "_way", "memory")

    def __init__(
        self,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        narguments: int,
        offsets: dict[str, int],
        tables: dict[str, Sequence[Any]],
        signs: Signs | None = None,
    ) -> None:
        self.memory = np.zeros(ctypes.sizeof(Way) // 8, np.int64)  # functions of Python's find the structure by it
        way = self._way = Way.from_address(self.memory.ctypes.data)
        skipped = TUPLE_ITEMS // 8
        ins = (c_int64 * (skipped + len(inputs)))(*[0] * skipped, *map(id, inputs))
        items = (c_int64 * max(len(outputs), 1))(*map(id, outputs))
        outs = (c_int64 * (LIST_ITEMS // 8 + 1))()
        outs[LIST_ITEMS // 8] = ctypes.addressof(items)
        held = (c_void_p * (sum(len(tables.get(name, ())) for name in ("arrays", "given", "found")) + 1))()
        self._rows: dict[str, Any] = {}
        for name, kind in TABLES.items():
            rows = tables.get(name, ())
            flat = [n for row in rows for n in row] if kind is c_int64 else rows
            made = (kind * max(len(flat), 1))(*flat)
            self._rows[name] = made
            setattr(way, name, ctypes.addressof(made))
            setattr(way, f"n{name}", len(rows))
        for name in _OFFSETS:
            setattr(way, f"at_{name}", offsets[name])
        for name, address in _api().items():
            setattr(way, name, address)
        own = (c_int64 * 4)()
        for name, address in zip(
            Signs._fields, signs or [ctypes.addressof(own) + 8 * k for k in (0, 1, 3)], strict=True
        ):
            setattr(way, name, address)
        way.none, way.narguments, way.seen = id(None), narguments, -1
        way.inputs, way.outputs, way.items = map(ctypes.addressof, (ins, outs, items))
        way.held = ctypes.addressof(held)
        way.enter = enter_address()
        self._keep = (ins, items, outs, held, own)
        follow(way.enter, ctypes.addressof(way) + Way.enter.offset, way)

    @property
    def runs(self) -> int:
        """How many runs there were."""
        return self._way.runs

    @property
    def looks(self) -> int:
        """How many times all words were looked at."""
        return self._way.looks

    @property
    def address(self) -> int:
        """Where the structure is."""
        return ctypes.addressof(self._way)

    def compare(self, table: str, number: int | None = None) -> bool:
        """Whether words, or the first so many, are what they must be."""
        words, known = self._rows[table], getattr(self._way, f"n{table}")
        pairs = range(known if number is None else number)
        return all(c_int64.from_address(words[2 * i]).value == words[2 * i + 1] for i in pairs)

    def expect(self, number: int, wanted: int) -> None:
        """Change what one of the words must be."""
        self._rows["words"][2 * number + 1] = wanted


@cache
def api(names: frozenset[tuple[str, str]]) -> dict[str, int]:
    """Addresses of functions of Python's, by the names they get here."""
    return {name: _address(getattr(ctypes.pythonapi, text)) for name, text in names}


@cache
def _api() -> dict[str, int]:
    names = {
        "save": "PyEval_SaveThread",
        "restore": "PyEval_RestoreThread",
        "incref": "Py_IncRef",
        "decref": "Py_DecRef",
        "integer": "PyLong_AsVoidPtr",
        "number": "PyLong_FromLongLong",
    }
    return {**api(frozenset(names.items())), "copy": _address(ctypes.memmove)}


def _address(function: Any) -> int:
    return ctypes.cast(function, c_void_p).value or 0
