"""A run like the one before, in one native call: its tensors are found and looked at without Python.

The caller's objects are read from memory, as in :mod:`entry`; what has to be true of them is said in tables
(:mod:`ways`): slots that hold an object still, objects that have as many references as before. Only then the plan runs,
without the GIL, and slots get what the run says they hold from now on.
"""

from __future__ import annotations

import ctypes
from ctypes import c_void_p
from typing import TYPE_CHECKING, Any

from pyflame_rt.backends.cpu.llvm.driver import _Fields as Fields
from pyflame_rt.backends.cpu.llvm.entry import ARRAY_DATA, LIST_ITEMS, OBJECT_TYPE, TUPLE_ITEMS
from pyflame_rt.backends.cpu.llvm.host import host
from pyflame_rt.backends.cpu.llvm.ir import Builder
from pyflame_rt.backends.cpu.llvm.jit import follow, own_address
from pyflame_rt.backends.cpu.llvm.loops import loop, when
from pyflame_rt.backends.cpu.llvm.ways import TABLES, Way

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyflame_rt.backends.cpu.llvm.ir import V
    from pyflame_rt.backends.cpu.llvm.ways import Replay

__all__ = ["MISSED", "Emitter", "check", "count", "let_go", "replay", "run"]

MISSED = 1  # something is not as it was, and nothing was done
_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
_MIX = ((30, 0xBF58476D1CE4E5B9 - (1 << 64)), (27, 0x94D049BB133111EB - (1 << 64)))


class _Method(ctypes.Structure):
    """How CPython describes a function in machine code."""

    _fields_ = (("name", ctypes.c_char_p), ("code", c_void_p), ("flags", ctypes.c_int), ("doc", ctypes.c_char_p))


_FASTCALL = 0x80  # the function takes an array of arguments


_methods: list[_Method] = []  # Python's functions refer to their description, and do not keep it


def _method() -> _Method:
    """The description of the function. Threads that come first together may make several: all of them are kept."""
    if not _methods:
        address = own_address("pyflame_replay", _ir)
        made = _Method(b"replay", address, _FASTCALL, None)
        follow(address, ctypes.addressof(made) + _Method.code.offset, made)
        _methods.append(made)
    return _methods[0]


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
        self.way = Fields(self.b, Way, way)
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
        rows, number, kind = self.way.load(table), self.way.load(f"n{table}"), TABLES[table]

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
    b = e.b
    _ask(e, "words")
    e.each("found", lambda row: e.soon(row.load("slot")))
    touched = _touched(e)
    when(b, touched, [], lambda _: _ask(e, "more"))
    e.each("found", lambda row: e.soon(b.op(f"load ptr, ptr {row.load('slot')}")))
    e.each("found", lambda row: _ask_array(e, row))
    e.way.store("busy", "1")
    e.way.store("nheld", "0")
    number = e.at(e.arguments, str(object.__basicsize__), "i64")
    e.require(b.op(f"icmp eq i64 {number}, {e.way.load('narguments')}"))
    _read(e)
    e.each("words", lambda row: _compare(e, row))
    when(b, touched, [], lambda _: _look(e))
    e.each("drawn", lambda row: e.require(b.op(f"icmp eq i64 {b.load_i64(row.load('state'), 0)}, 0")))


def _ask(e: Emitter, table: str) -> list[V]:
    """Far more words at once than comparing would ask for."""
    e.each(table, lambda row: e.soon(e.b.op(f"load ptr, ptr {row}")))
    return []


def _ask_array(e: Emitter, row: Fields) -> None:
    """The array behind a slot with a value."""
    b, slot = e.b, row.load("slot")
    behind = b.element("i8", b.op(f"load ptr, ptr {slot}"), e.way.load("at_array"))
    near = b.op(f"icmp eq i64 {row.load('far')}, 0")
    e.soon(b.op(f"load ptr, ptr {b.op(f'select i1 {near}, ptr {behind}, ptr {slot}')}"))


def _touched(e: Emitter) -> str:
    """Whether somebody used something that was parked, is just doing so, or may hold inputs of a run that is under way.

    All this is read, and all that follows is done, without giving up the GIL in between.
    """
    b, way = e.b, e.way
    marks = way.load("marks")
    differ = [b.integer(f"xor {b.load_i64(marks, k)}, {way.load(name)}") for k, name in enumerate(("seen", "seen_put"))]
    busy = [b.load_i64(way.load(name), 0) for name in ("running", "waking")]
    found = differ[0]
    for word in (differ[1], *busy):
        found = b.integer(f"or {found}, {word}")
    return b.op(f"icmp ne i64 {found}, 0")


def _look(e: Emitter) -> list[V]:
    """Compare what need not be compared each time, and park it."""
    b, way = e.b, e.way
    way.store("looks", b.integer(f"add {way.load('looks')}, 1"))
    e.each("more", lambda row: _compare(e, row))
    inside, parking, after = e.missed, b.label("parking"), b.label("looked")
    b.branch(b.op(f"icmp sgt i64 {way.load('nparked')}, 0"), parking, after)
    b.place(parking)
    e.missed = after
    e.each("alone", lambda row: _compare(e, row))
    e.missed = inside

    def park(row: Fields) -> None:
        kind = b.element("i8", row.load("held"), str(OBJECT_TYPE))
        plain, parked = row.load("plain"), row.load("parked")

        def change(_: list[V]) -> list[V]:
            b.do(f"store ptr {parked}, ptr {kind}")
            e.call("incref", arguments=f"ptr {parked}")
            e.call("decref", arguments=f"ptr {plain}")
            return []

        when(b, b.op(f"icmp eq ptr {b.op(f'load ptr, ptr {kind}')}, {plain}"), [], change)

    e.each("parked", park)
    for k, name in enumerate(("seen", "seen_put")):
        way.store(name, b.load_i64(way.load("marks"), k))
    b.jump(after)
    b.place(after)
    return []


def count(b: Builder, address: str, change: int | str) -> None:
    """Add to a number in memory."""
    after = b.integer(f"add {b.load_i64(address, 0)}, {change}")
    b.do(f"store i64 {after}, ptr {address}")


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
    count(b, way.load("running"), 1)
    state = e.call("save", "ptr")
    status = b.op(f"call i64 {way.load('enter')}(ptr {entry}, ptr {way.load('inputs')}, ptr {way.load('outputs')})")
    ran = b.op(f"icmp eq i64 {status}, 0")
    for pointer in (*after, way.load("running")):
        e.soon(pointer)
    loop(b, "0", way.load("nheld"), 1, [], lambda i, _: _ask_held(e, i))
    when(b, ran, [], lambda _: _copy(e))
    e.call("restore", arguments=f"ptr {state}")
    when(b, ran, [], lambda _: _put(e))
    count(b, way.load("running"), -1)  # now only: letting go of what was in a slot may let others run
    when(b, b.op(f"icmp ne i64 {status}, 0"), [], lambda _: _undraw(e))
    return status


def _ask_held(e: Emitter, number: str) -> list[V]:
    """An input that is let go of next."""
    e.soon(e.b.op(f"load ptr, ptr {e.b.element('ptr', e.way.load('held'), number)}"))
    return []


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
    b = e.b

    def one(row: Fields) -> None:
        slot, held = row.load("slot"), row.load("held")
        before = b.op(f"load ptr, ptr {slot}")

        def change(_: list[V]) -> list[V]:
            e.call("incref", arguments=f"ptr {held}")
            b.do(f"store ptr {held}, ptr {slot}")
            count(b, b.element("i64", e.way.load("marks"), "1"), 1)
            e.call("decref", arguments=f"ptr {before}")
            return []

        when(b, b.op(f"icmp ne ptr {before}, {held}"), [], change)

    e.each("put", one)
    e.way.store("runs", e.b.integer(f"add {e.way.load('runs')}, 1"))
    return []
