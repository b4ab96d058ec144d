"""Objects whose call is a replay: from the interpreter straight into machine code, and back with the result.

After a long run nothing of Python is left in the caches, and each of its frames takes microseconds to come back. So the
call itself is machine code: it finds the tables of the replays it may be (:mod:`replay`), takes a result that was made
before and that nobody holds any more, and runs. Where that cannot be done, nothing was done, and the object's method
``_long`` is called in the same way.
"""

from __future__ import annotations

import ctypes
from ctypes import c_int64, c_void_p
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.backends.cpu.llvm.driver import _Fields as Fields
from pyflame_rt.backends.cpu.llvm.entry import ARRAY_DATA, LIST_ITEMS
from pyflame_rt.backends.cpu.llvm.host import host
from pyflame_rt.backends.cpu.llvm.ir import Builder
from pyflame_rt.backends.cpu.llvm.jit import follow, own_address
from pyflame_rt.backends.cpu.llvm.loops import when
from pyflame_rt.backends.cpu.llvm.replay import Emitter, check, count, let_go, run
from pyflame_rt.backends.cpu.llvm.ways import api

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame_rt.backends.cpu.llvm.ir import V

__all__ = ["Call", "Shell", "callable_type", "front", "thread_number"]

_MODES = 3  # words that say which mode a thread is in
_LIST_SIZE = object.__basicsize__
_DICT_USED = object.__basicsize__  # how many items there are
_TP_CALL, _BASETYPE = 50, 1 << 10 | 1 << 18  # of CPython's stable interface
_API = frozenset(
    {
        ("append", "PyList_Append"),
        ("tstate", "PyThreadState_Get"),
        ("tnumber", "PyThreadState_GetID"),
        ("invoke", "PyObject_CallObject"),
        ("clear", "PyErr_Clear"),
    }
)
_FRONT_API = frozenset(
    {
        ("attribute", "PyObject_GetAttr"),
        ("apply", "PyObject_Call"),
        ("incref", "Py_IncRef"),
        ("decref", "Py_DecRef"),
    }
)


class Shell(ctypes.Structure):
    """A result that was made before: who holds nothing of it when the words are what they were."""

    _fields_ = (("result", c_void_p), ("arrays", c_void_p), ("words", c_void_p), ("nwords", c_int64))


class Call(ctypes.Structure):
    """One replay that a call may be.

    Attributes:
        way: the replay's tables.
        owner: the object that keeps all this.
        closed: not zero: no longer to be used.
        dry: set when every shell was in use.
        thread: number of the thread it is for.
        mode: the address of three pairs: an address, what must be there.
        tracing: the address of a word that must be zero.
        gate: how many replays of the plan are under way, and (the next word) whether it was given up.
        free: the list of the plan's arenas.
        arena: the one to be taken from it, described by ``entry``.
        settle: to be called after a run of a plan that was given up.
    """

    _fields_ = (
        ("way", c_void_p),
        ("owner", c_void_p),
        ("closed", c_int64),
        ("dry", c_int64),
        ("thread", c_int64),
        ("mode", c_void_p),
        ("tracing", c_void_p),
        ("gate", c_void_p),
        ("free", c_void_p),
        ("arena", c_void_p),
        ("entry", c_void_p),
        ("settle", c_void_p),
        ("shells", c_void_p),
        ("nshells", c_int64),
        *((name, c_void_p) for name, _ in sorted(_API)),
    )

    kept: tuple[Any, ...]

    def connect(self) -> None:
        """Write down the functions that are called."""
        for name, address in api(_API).items():
            setattr(self, name, address)


class _Front(ctypes.Structure):
    """What an object's call looks at first."""

    _fields_ = (
        ("code", c_void_p),
        ("long", c_void_p),
        ("calls", c_void_p),
        ("ncalls", c_int64),
        *((name, c_void_p) for name, _ in sorted(_FRONT_API)),
    )


def thread_number() -> int:
    """The number of this thread; no other ever gets it."""
    return _thread_number()(_thread_state()())


@cache
def _thread_state() -> Any:
    function = ctypes.pythonapi.PyThreadState_Get
    function.restype, function.argtypes = c_void_p, ()
    return function


@cache
def _thread_number() -> Any:
    function = ctypes.pythonapi.PyThreadState_GetID
    function.restype, function.argtypes = ctypes.c_uint64, (c_void_p,)
    return function


class _Memory(np.ndarray[Any, Any]):
    """A structure, with what it refers to."""

    kept: tuple[Any, ...]


def front(calls: Sequence[Call], keep: Any) -> Any:
    """What the slot of an object holds whose calls may be one of these; it keeps what they refer to."""
    made = np.zeros(ctypes.sizeof(_Front) // 8, np.int64).view(_Memory)
    table = (c_void_p * max(len(calls), 1))(*map(ctypes.addressof, calls))
    text = _Front.from_address(made.ctypes.data)
    text.code, text.long = own_address("pyflame_called", _ir), id(_LONG)
    text.calls, text.ncalls = ctypes.addressof(table), len(calls)
    for name, address in api(_FRONT_API).items():
        setattr(text, name, address)
    made.kept = (table, tuple(calls), keep)
    follow(text.code or 0, made.ctypes.data + _Front.code.offset, made)
    return made


_LONG = "_long"


@cache
def callable_type(offset: int) -> Any:
    """A type whose objects are called by what `front` gave, which lies in a slot so many bytes behind their start.

    A class that has it as its first base inherits the call.
    """

    class Slot(ctypes.Structure):
        _fields_ = (("slot", ctypes.c_int), ("function", c_void_p))

    class Spec(ctypes.Structure):
        _fields_ = (
            ("name", ctypes.c_char_p),
            ("basicsize", ctypes.c_int),
            ("itemsize", ctypes.c_int),
            ("flags", ctypes.c_uint),
            ("slots", ctypes.POINTER(Slot)),
        )

    address = own_address(f"pyflame_call_{offset}", lambda: _stub(offset))
    slots = (Slot * 2)(Slot(_TP_CALL, address), Slot(0, None))
    make = ctypes.pythonapi.PyType_FromSpec
    make.restype, make.argtypes = ctypes.py_object, (c_void_p,)
    spec = Spec(b"pyflame_rt.Replayed", 0, 0, _BASETYPE, slots)
    _keep.append((spec, slots))
    return make(ctypes.addressof(spec))


_keep: list[Any] = []


def _stub(offset: int) -> str:
    """The call: go to the code that the object's front names, which may become better while we run.

    Other threads may give the object another front meanwhile: this one is held.
    """
    b = Builder(host())
    b.begin()
    memory = b.op(f"load ptr, ptr {b.element('i8', '%self', str(offset))}")
    start = b.op(f"load ptr, ptr {b.element('i8', memory, str(ARRAY_DATA))}")
    code, hold, release = map(Fields(b, _Front, start).load, ("code", "incref", "decref"))
    b.do(f"call void {hold}(ptr {memory})")
    result = b.op(f"call ptr {code}(ptr {start}, ptr %self, ptr %args, ptr %names)")
    b.do(f"call void {release}(ptr {memory})")
    b.do(f"ret ptr {result}")
    b.end(f"ptr @pyflame_call_{offset}(ptr %self, ptr %args, ptr %names)")
    return b.text()


def _ir() -> str:
    b = Builder(host())
    b.begin()
    entry = Fields(b, _Front, "%front")
    attempt, again, more, slow = (b.label(name) for name in ("attempt", "again", "more", "slow"))
    named, origin = b.label("named"), b.label("positional")
    b.branch(b.op("icmp eq ptr %names, null"), origin, named)
    b.place(named)  # by a wrapper that hands on what it was given: often nothing
    used = b.op(f"load i64, ptr {b.element('i8', '%names', str(_DICT_USED))}")
    b.branch(b.op(f"icmp eq i64 {used}, 0"), origin, slow)
    b.place(origin)
    b.jump(again)
    b.place(again)
    i = b.phi("i64", ("0", origin))
    b.branch(b.op(f"icmp slt i64 {i}, {entry.load('ncalls')}"), attempt, slow)
    b.place(attempt)
    which = b.op(f"load ptr, ptr {b.element('ptr', entry.load('calls'), i)}")
    _attempt(b, Fields(b, Call, which), more, slow)
    b.place(more)
    b.add_incoming(i, b.integer(f"add {i}, 1"), more)
    b.jump(again)
    b.place(slow)
    method = b.op(f"call ptr {entry.load('attribute')}(ptr %self, ptr {entry.load('long')})")
    known, unknown = b.label("known"), b.label("unknown")
    b.branch(b.op(f"icmp eq ptr {method}, null"), unknown, known)
    b.place(unknown)
    b.do("ret ptr null")
    b.place(known)
    result = b.op(f"call ptr {entry.load('apply')}(ptr {method}, ptr %args, ptr %names)")
    b.do(f"call void {entry.load('decref')}(ptr {method})")
    b.do(f"ret ptr {result}")
    b.end("ptr @pyflame_called(ptr %front, ptr %self, ptr %args, ptr %names)")
    return b.text()


def _attempt(b: Builder, call: Fields, more: str, slow: str) -> None:
    """Return the result of a replay, or go on with the next; after a run that failed, the long way."""
    e = Emitter(b, "%args")
    way = call.load("way")
    e.aim(way)
    inside = e.missed
    e.missed = more  # nothing was touched so far
    _precede(e, call)
    e.missed = inside
    check(e)
    _take(e, call)
    shell = _shell(e, call)
    # Other threads may change what is taken next time while this one runs.
    result, owner, entry, arena = shell.load("result"), *(call.load(name) for name in ("owner", "entry", "arena"))
    for held in (result, owner):
        e.call("incref", arguments=f"ptr {held}")
    count(b, call.load("gate"), 1)
    items = e.at(call.load("free"), str(LIST_ITEMS))
    later = [result, owner, arena, items, "%args", "%self", *(call.load(name) for name in ("free", "gate"))]
    status = run(e, entry, shell.load("arrays"), later)
    count(b, call.load("gate"), -1)
    _give_back(e, call, arena)
    let_go(e)
    ran, failed = b.label("ran"), b.label("failed")
    b.branch(b.op(f"icmp eq i64 {status}, 0"), ran, failed)
    for label in (ran, failed):
        b.place(label)
        release = e.way.load("decref")
        if label == failed:
            b.do(f"call void {release}(ptr {result})")
        b.do(f"call void {release}(ptr {owner})")  # from here on the tables may be gone
        if label == failed:
            b.jump(slow)
        else:
            b.do(f"ret ptr {result}")
    b.place(inside)
    let_go(e)
    b.jump(more)


def _precede(e: Emitter, call: Fields) -> None:
    """What must be true before a table is looked at."""
    b = e.b

    def zero(value: str) -> None:
        e.require(b.op(f"icmp eq i64 {value}, 0"))

    zero(call.load("closed"))
    zero(e.way.load("busy"))
    zero(b.op(f"load i64, ptr {call.load('tracing')}"))
    state = b.op(f"call ptr {call.load('tstate')}()")
    thread = b.op(f"call i64 {call.load('tnumber')}(ptr {state})")
    e.require(b.op(f"icmp eq i64 {thread}, {call.load('thread')}"))
    for k in range(_MODES):
        row = b.element("i64", call.load("mode"), str(2 * k))
        e.require(b.op(f"icmp eq i64 {b.load_i64(b.op(f'load ptr, ptr {row}'), 0)}, {b.load_i64(row, 1)}"))
    zero(b.load_i64(call.load("gate"), 1))


def _last(e: Emitter, call: Fields) -> tuple[str, str]:
    """How many arenas are free, and the address of the last."""
    number = e.at(call.load("free"), str(_LIST_SIZE), "i64")
    items = e.at(call.load("free"), str(LIST_ITEMS))
    return number, e.b.element("ptr", items, e.b.integer(f"sub {number}, 1"))


def _take(e: Emitter, call: Fields) -> None:
    """The arena that is described must be the last that is free."""
    b = e.b
    number = e.at(call.load("free"), str(_LIST_SIZE), "i64")
    e.require(b.op(f"icmp sgt i64 {number}, 0"))
    _, last = _last(e, call)
    e.same(b.op(f"load ptr, ptr {last}"), call.load("arena"))


def _shell(e: Emitter, call: Fields) -> Fields:
    """The first shell that nobody holds; with it, the arena is taken from its list: the reference to it is ours."""
    b, words = e.b, ctypes.sizeof(Shell)
    again, look, following, turn, same, none, found = (
        b.label(name) for name in ("again", "look", "following", "turn", "same", "none", "found")
    )
    origin = b.label("shells")
    b.jump(origin)
    b.place(origin)
    b.jump(again)
    b.place(again)
    i = b.phi("i64", ("0", origin))
    b.branch(b.op(f"icmp slt i64 {i}, {call.load('nshells')}"), look, none)
    b.place(look)
    shell = Fields(b, Shell, b.element("i8", call.load("shells"), b.integer(f"mul {i}, {words}")))
    b.jump(turn)
    b.place(turn)
    k = b.phi("i64", ("0", look))
    compare = b.label("compare")
    b.branch(b.op(f"icmp slt i64 {k}, {shell.load('nwords')}"), compare, found)
    b.place(compare)
    row = b.element("i64", shell.load("words"), b.integer(f"mul {k}, 2"))
    here = b.load_i64(b.op(f"load ptr, ptr {row}"), 0)
    b.branch(b.op(f"icmp eq i64 {here}, {b.load_i64(row, 1)}"), same, following)
    b.place(same)
    b.add_incoming(k, b.integer(f"add {k}, 1"), same)
    b.jump(turn)
    b.place(following)
    b.add_incoming(i, b.integer(f"add {i}, 1"), following)
    b.jump(again)
    b.place(none)
    call.store("dry", "1")
    b.jump(e.missed)
    b.place(found)
    number, _ = _last(e, call)
    size = b.element("i8", call.load("free"), str(_LIST_SIZE))
    b.do(f"store i64 {b.integer(f'sub {number}, 1')}, ptr {size}")
    return shell


def _give_back(e: Emitter, call: Fields, arena: str) -> None:
    """The arena goes back to its list; whoever gave the plan up waits for that."""
    b = e.b
    number, room = (e.at(call.load("free"), str(place), "i64") for place in (_LIST_SIZE, LIST_ITEMS + 8))
    put, append, after = b.label("put"), b.label("append"), b.label("given_back")
    b.branch(b.op(f"icmp slt i64 {number}, {room}"), put, append)
    b.place(put)  # our reference becomes the list's
    items = e.at(call.load("free"), str(LIST_ITEMS))
    b.do(f"store ptr {arena}, ptr {b.element('ptr', items, number)}")
    b.do(f"store i64 {b.integer(f'add {number}, 1')}, ptr {b.element('i8', call.load('free'), str(_LIST_SIZE))}")
    b.jump(after)
    b.place(append)
    b.op(f"call i32 {call.load('append')}(ptr {call.load('free')}, ptr {arena})")
    e.call("decref", arguments=f"ptr {arena}")
    b.jump(after)
    b.place(after)
    retired = b.op(f"icmp ne i64 {b.load_i64(call.load('gate'), 1)}, 0")

    def settle(_: list[V]) -> list[V]:
        done = b.op(f"call ptr {call.load('invoke')}(ptr {call.load('settle')}, ptr null)")
        good, bad, after = b.label("good"), b.label("bad"), b.label("settled")
        b.branch(b.op(f"icmp eq ptr {done}, null"), bad, good)
        b.place(good)
        e.call("decref", arguments=f"ptr {done}")
        b.jump(after)
        b.place(bad)
        b.do(f"call void {call.load('clear')}()")
        b.jump(after)
        b.place(after)
        return []

    when(b, retired, [], settle)
