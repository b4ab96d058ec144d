"""A run like the one before, in one native call: its tensors are found and looked at without Python.

The caller's objects are read from memory, as in :mod:`entry`; what has to be true of them is said in tables: slots that
hold an object still, objects that have as many references as before. Only then the plan runs, without the GIL, and
slots get what the run says they hold from now on.
"""

from __future__ import annotations

import ctypes
from ctypes import c_int64, c_void_p
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.backends.cpu.llvm.driver import _Fields as Fields
from pyflame_rt.backends.cpu.llvm.entry import ARRAY_DATA, LIST_ITEMS, OBJECT_TYPE, TUPLE_ITEMS, enter_address
from pyflame_rt.backends.cpu.llvm.host import host
from pyflame_rt.backends.cpu.llvm.ir import Builder
from pyflame_rt.backends.cpu.llvm.jit import follow, own_address
from pyflame_rt.backends.cpu.llvm.loops import loop, when

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyflame_rt.backends.cpu.llvm.ir import V

__all__ = [
    "MISSED", "Copied", "Drawn", "Emitter", "Found", "Given", "Put", "Replay", "api", "check", "let_go", "replay",
    "run",
]  # fmt: skip

MISSED = 1  # something is not as it was, and nothing was done
_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
_MIX = ((30, 0xBF58476D1CE4E5B9 - (1 << 64)), (27, 0x94D049BB133111EB - (1 << 64)))


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


# Tables of the structure below and what is in them.
_TABLES: dict[str, Any] = {
    "plain": c_int64,  # pairs: number of an argument, address of the object that it must be
    "arrays": c_int64,  # pairs: number of an argument that is an array, place of the input
    "given": Given,
    "found": Found,
    "words": c_int64,  # pairs: an address, what must be there
    "fresh": c_int64,  # places of the outputs that the caller gives
    "drawn": Drawn,
    "copied": Copied,
    "put": Put,
}
_OFFSETS = ("value", "array", "spec", "mode")


class _Way(ctypes.Structure):
    """What the native function is given."""

    _fields_ = (
        ("busy", c_int64),
        ("runs", c_int64),
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
        *(field for name in _TABLES for field in ((name, c_void_p), (f"n{name}", c_int64))),
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
    """

    __slots__ = ("_keep", "_rows", "_way", "memory")

    def __init__(
        self,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        narguments: int,
        offsets: dict[str, int],
        tables: dict[str, Sequence[Any]],
    ) -> None:
        self.memory = np.zeros(ctypes.sizeof(_Way) // 8, np.int64)  # functions of Python's find the structure by it
        way = self._way = _Way.from_address(self.memory.ctypes.data)
        skipped = TUPLE_ITEMS // 8
        ins = (c_int64 * (skipped + len(inputs)))(*[0] * skipped, *map(id, inputs))
        items = (c_int64 * max(len(outputs), 1))(*map(id, outputs))
        outs = (c_int64 * (LIST_ITEMS // 8 + 1))()
        outs[LIST_ITEMS // 8] = ctypes.addressof(items)
        held = (c_void_p * (sum(len(tables.get(name, ())) for name in ("arrays", "given", "found")) + 1))()
        self._rows: dict[str, Any] = {}
        for name, kind in _TABLES.items():
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
        way.none, way.narguments = id(None), narguments
        way.inputs, way.outputs, way.items = map(ctypes.addressof, (ins, outs, items))
        way.held = ctypes.addressof(held)
        way.enter = enter_address()
        self._keep = (ins, items, outs, held)
        follow(way.enter, ctypes.addressof(way) + _Way.enter.offset, way)

    @property
    def runs(self) -> int:
        """How many runs there were."""
        return self._way.runs

    @property
    def address(self) -> int:
        """Where the structure is."""
        return ctypes.addressof(self._way)

    def compare(self, number: int) -> bool:
        """Whether the first so many words are what they must be."""
        words = self._rows["words"]
        return all(c_int64.from_address(words[2 * i]).value == words[2 * i + 1] for i in range(number))

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


class _Method(ctypes.Structure):
    """How CPython describes a function in machine code."""

    _fields_ = (("name", ctypes.c_char_p), ("code", c_void_p), ("flags", ctypes.c_int), ("doc", ctypes.c_char_p))


_FASTCALL = 0x80  # the function takes an array of arguments


@cache
def _method() -> _Method:
    address = own_address("pyflame_replay", _ir)
    made = _Method(b"replay", address, _FASTCALL, None)
    follow(address, ctypes.addressof(made) + _Method.code.offset, made)
    return made


def replay(way: Replay) -> Callable[[int, tuple[Any, ...], list[Any]], int]:
    """The function for some tables, compiled at first use; a function of Python's, as ctypes would take too long.

    It takes the address of an Entry, a tuple of arguments and a list of arrays for outputs. It returns MISSED, or what
    `enter` returns.
    """
    new = ctypes.pythonapi.PyCFunction_NewEx
    new.restype, new.argtypes = ctypes.py_object, (c_void_p, ctypes.py_object, c_void_p)
    return new(ctypes.addressof(_method()), way.memory, None)


class Emitter:
    """Writes runs by a table.

    Args:
        b: takes the instructions.
        arguments: the caller's tuple.

    Attributes:
        way: the structure (`aim`).
        missed: where to go when something is not as it was.
    """

    way: Fields
    missed: str

    def __init__(self, b: Builder, arguments: str) -> None:
        self.b, self.arguments = b, arguments

    def aim(self, way: str) -> None:
        """The structure that is read from here on."""
        self.way = Fields(self.b, _Way, way)
        self.missed = self.b.label("missed")

    def at(self, pointer: str, offset: str, kind: str = "ptr") -> str:
        """What is so many bytes behind a pointer."""
        return self.b.op(f"load {kind}, ptr {self.b.element('i8', pointer, offset)}")

    def soon(self, pointer: str) -> None:
        """What is there will be looked at soon."""
        self.b.call("void", "llvm.prefetch.p0", [("ptr", pointer), ("i32", "0"), ("i32", "3"), ("i32", "1")])

    def require(self, condition: str) -> None:
        """Go on if it holds, else give up."""
        following = self.b.label("so")
        self.b.branch(condition, following, self.missed)
        self.b.place(following)

    def same(self, one: str, other: str) -> None:
        """Two pointers must be equal."""
        self.require(self.b.op(f"icmp eq ptr {one}, {other}"))

    def each(self, table: str, body: Callable[[Any], None]) -> None:
        """Emit the body for the rows of a table: fields of a structure, or two numbers."""
        rows, number, kind = self.way.load(table), self.way.load(f"n{table}"), _TABLES[table]

        def turn(i: str, _: list[V]) -> list[V]:
            size = ctypes.sizeof(kind) if issubclass(kind, ctypes.Structure) else 16
            row = self.b.element("i8", rows, self.b.integer(f"mul {i}, {size}"))
            body(Fields(self.b, kind, row) if issubclass(kind, ctypes.Structure) else row)
            return []

        loop(self.b, "0", number, 1, [], turn)

    def call(self, function: str, kind: str = "void", arguments: str = "") -> str:
        """Call one of the functions that the structure has."""
        text = f"call {kind} {self.way.load(function)}({arguments})"
        if kind == "void":
            self.b.do(text)
            return ""
        return self.b.op(text)

    def hold(self, array: str, place: str) -> None:
        """Keep an input alive as long as the run lasts, and put it in its place."""
        number = self.way.load("nheld")
        self.b.do(f"store ptr {array}, ptr {self.b.element('ptr', self.way.load('held'), number)}")
        self.way.store("nheld", self.b.integer(f"add {number}, 1"))
        self.call("incref", arguments=f"ptr {array}")
        wanted = self.b.op(f"icmp sge i64 {place}, 0")

        def put(_: list[V]) -> list[V]:
            after = self.b.integer(f"add {place}, {TUPLE_ITEMS // 8}")
            self.b.do(f"store ptr {array}, ptr {self.b.element('ptr', self.way.load('inputs'), after)}")
            return []

        when(self.b, wanted, [], put)

    def argument(self, number: str) -> str:
        """One of the arguments."""
        items = self.b.element("i8", self.arguments, str(TUPLE_ITEMS))
        return self.b.op(f"load ptr, ptr {self.b.element('ptr', items, number)}")

    def array_of(self, value: str) -> str:
        """The array of a value, which must have one."""
        array = self.at(value, self.way.load("at_array"))
        self.require(self.b.op(f"icmp ne ptr {array}, {self.way.load('none')}"))
        return array


def check(e: Emitter) -> None:
    """Begin with a table that nobody else runs by; all must be as it was."""
    e.each("words", lambda row: e.soon(e.b.op(f"load ptr, ptr {row}")))  # far more at once than comparing would ask for
    e.each("found", lambda row: e.soon(row.load("slot")))
    e.each("found", lambda row: e.soon(e.b.op(f"load ptr, ptr {row.load('slot')}")))
    e.way.store("busy", "1")
    e.way.store("nheld", "0")
    number = e.at(e.arguments, str(object.__basicsize__), "i64")
    e.require(e.b.op(f"icmp eq i64 {number}, {e.way.load('narguments')}"))
    _read(e)
    e.each("words", lambda row: _compare(e, row))
    e.each("drawn", lambda row: e.require(e.b.op(f"icmp eq i64 {e.b.load_i64(row.load('state'), 0)}, 0")))


def run(e: Emitter, entry: str, arrays: str, after: Sequence[str] = ()) -> str:
    """Run without the GIL, outputs into those arrays (a pointer to pointers); what `enter` returned.

    Args:
        e: has the tables.
        entry: what `enter` is given.
        arrays: where to write.
        after: what will be looked at next; the caches have lost it.
    """
    b, way = e.b, e.way
    _prepare(e, arrays)
    state = e.call("save", "ptr")
    status = b.op(f"call i64 {way.load('enter')}(ptr {entry}, ptr {way.load('inputs')}, ptr {way.load('outputs')})")
    ran = b.op(f"icmp eq i64 {status}, 0")
    for pointer in after:
        e.soon(pointer)
    when(b, ran, [], lambda _: _copy(e))
    e.call("restore", arguments=f"ptr {state}")
    when(b, ran, [], lambda _: _put(e))
    when(b, b.op(f"icmp ne i64 {status}, 0"), [], lambda _: _undraw(e))
    return status


def let_go(e: Emitter) -> None:
    """After a run, or when one was missed: the inputs are no longer needed, and somebody else may run."""

    def drop(i: str, _: list[V]) -> list[V]:
        held = e.b.op(f"load ptr, ptr {e.b.element('ptr', e.way.load('held'), i)}")
        e.call("decref", arguments=f"ptr {held}")
        return []

    loop(e.b, "0", e.way.load("nheld"), 1, [], drop)
    e.way.store("busy", "0")


def _ir() -> str:
    b = Builder(host())
    b.begin()
    number, arguments, arrays = (b.op(f"load ptr, ptr {b.element('ptr', '%given', n)}") for n in "012")
    e = Emitter(b, arguments)
    e.aim(e.at("%self", str(ARRAY_DATA)))
    plan = e.call("integer", "ptr", f"ptr {number}")
    busy = b.label("busy")
    free = b.label("free")
    b.branch(b.op(f"icmp eq i64 {e.way.load('busy')}, 0"), free, busy)
    b.place(free)
    check(e)
    status = run(e, plan, e.at(arrays, str(LIST_ITEMS)))
    done, ready = b.label("done"), b.block
    b.jump(done)
    b.place(e.missed)
    b.jump(done)
    b.place(done)
    result = b.phi("i64", (status, ready), (str(MISSED), e.missed))
    let_go(e)
    b.do(f"ret ptr {e.call('number', 'ptr', f'i64 {result}')}")
    b.place(busy)
    b.do(f"ret ptr {e.call('number', 'ptr', f'i64 {MISSED}')}")
    b.end("ptr @pyflame_replay(ptr %self, ptr %given, i64 %count)")
    return b.text()


def _compare(e: Emitter, row: str) -> None:
    address = e.b.op(f"load ptr, ptr {row}")
    e.require(e.b.op(f"icmp eq i64 {e.b.load_i64(address, 0)}, {e.b.load_i64(row, 1)}"))


def _read(e: Emitter) -> None:
    """Compare arguments with what is expected; find the arrays of those that are tensors, and of other inputs."""
    b, way = e.b, e.way

    def plain(row: str) -> None:
        e.same(e.argument(b.load_i64(row, 0)), b.op(f"load ptr, ptr {b.element('i64', row, '1')}"))

    def array(row: str) -> None:
        e.hold(e.argument(b.load_i64(row, 0)), b.load_i64(row, 1))

    def given(row: Fields) -> None:
        holder = e.argument(row.load("number"))
        e.same(e.at(holder, str(OBJECT_TYPE)), row.load("type"))
        value = e.at(holder, way.load("at_value"))
        e.same(e.at(value, way.load("at_spec")), row.load("spec"))
        e.same(e.at(value, way.load("at_mode")), row.load("mode"))
        e.hold(e.array_of(value), row.load("place"))

    def found(row: Fields) -> None:
        first = b.op(f"load ptr, ptr {row.load('slot')}")
        e.require(b.op(f"icmp ne ptr {first}, {way.load('none')}"))
        far, near, both = b.label("far"), b.block, b.label("value")
        b.branch(b.op(f"icmp ne i64 {row.load('far')}, 0"), far, both)
        b.place(far)
        behind = e.at(first, way.load("at_value"))
        b.jump(both)
        b.place(both)
        value = b.phi("ptr", (first, near), (behind, far))
        e.hold(e.array_of(value), row.load("place"))

    e.each("plain", plain)
    e.each("arrays", array)
    e.each("given", given)
    e.each("found", found)


def _prepare(e: Emitter, arrays: str) -> None:
    """Put the caller's arrays for outputs in their places, and make keys."""
    b, way = e.b, e.way

    def output(i: str, _: list[V]) -> list[V]:
        place = b.op(f"load i64, ptr {b.element('i64', way.load('fresh'), i)}")
        array = b.op(f"load ptr, ptr {b.element('ptr', arrays, i)}")
        b.do(f"store ptr {array}, ptr {b.element('ptr', way.load('items'), place)}")
        return []

    loop(b, "0", way.load("nfresh"), 1, [], output)

    def draw(row: Fields) -> None:
        target, state = row.load("target"), row.load("state")
        seed, count = b.load_i64(state, 1), b.load_i64(state, 2)
        after = b.integer(f"add {count}, {row.load('number')}")
        b.do(f"store i64 {after}, ptr {b.element('i64', state, '2')}")
        row.store("drawn", after)

        def key(i: str, _: list[V]) -> list[V]:
            before = b.integer(f"add {count}, {i}")
            z = b.integer(f"mul {b.integer(f'add {before}, 1')}, {_GOLDEN}")
            z = b.integer(f"add {seed}, {z}")
            for shift, factor in _MIX:
                high = b.integer(f"lshr {z}, {shift}")
                z = b.integer(f"xor {z}, {high}")
                z = b.integer(f"mul {z}, {factor}")
            high = b.integer(f"lshr {z}, 31")
            z = b.integer(f"xor {z}, {high}")
            first = b.element("i64", target, b.integer(f"mul {i}, 2"))
            b.do(f"store i64 {b.integer(f'lshr {z}, 32')}, ptr {first}")
            b.do(f"store i64 {b.integer(f'and {z}, {0xFFFFFFFF}')}, ptr {b.element('i64', first, '1')}")
            return []

        loop(b, "0", row.load("number"), 1, [], key)

    e.each("drawn", draw)


def _undraw(e: Emitter) -> list[V]:
    """The run failed: its keys go back, unless others were drawn, or the source was changed, meanwhile."""
    b = e.b

    def one(row: Fields) -> None:
        state, drawn = row.load("state"), row.load("drawn")
        last = b.op(f"icmp eq i64 {b.load_i64(state, 2)}, {drawn}")
        free = b.op(f"icmp eq i64 {b.load_i64(state, 0)}, 0")

        def back(_: list[V]) -> list[V]:
            before = b.integer(f"sub {drawn}, {row.load('number')}")
            b.do(f"store i64 {before}, ptr {b.element('i64', state, '2')}")
            return []

        when(b, b.op(f"and i1 {last}, {free}"), [], back)

    e.each("drawn", one)
    return []


def _copy(e: Emitter) -> list[V]:
    """Bytes of outputs that could not be written where they belong."""

    def one(row: Fields) -> None:
        target, source, size = (row.load(name) for name in ("target", "source", "size"))
        e.call("copy", "ptr", f"ptr {target}, ptr {source}, i64 {size}")

    e.each("copied", one)
    return []


def _put(e: Emitter) -> list[V]:
    """Slots get what they hold from now on."""

    def one(row: Fields) -> None:
        slot, held = row.load("slot"), row.load("held")
        e.call("incref", arguments=f"ptr {held}")
        before = e.b.op(f"load ptr, ptr {slot}")
        e.b.do(f"store ptr {held}, ptr {slot}")
        e.call("decref", arguments=f"ptr {before}")

    e.each("put", one)
    e.way.store("runs", e.b.integer(f"add {e.way.load('runs')}, 1"))
    return []
