"""From Python objects straight into a plan: one native call that checks the inputs and runs.

The addresses, sizes and types of NumPy arrays are read from the objects themselves, where CPython and NumPy keep them.
`readable()` tells whether they are found there; where not, callers take the way through Python.
"""

from __future__ import annotations

import ctypes
import sys
from ctypes import c_int64, c_void_p
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.backends.cpu.llvm.driver import _Fields as Fields
from pyflame_rt.backends.cpu.llvm.host import host
from pyflame_rt.backends.cpu.llvm.ir import Builder
from pyflame_rt.backends.cpu.llvm.jit import follow, own_address, prepare_text
from pyflame_rt.backends.cpu.llvm.loops import loop

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyflame_rt.backends.cpu.llvm.ir import V

__all__ = [
    "ARRAY_DATA",
    "ARRAY_SIZES",
    "ARRAY_WORDS",
    "FLAGGED",
    "LIST_ITEMS",
    "MISMATCH",
    "OBJECT_TYPE",
    "TUPLE_ITEMS",
    "Entry",
    "Expected",
    "enter",
    "enter_address",
    "expect",
    "prepare_entry",
    "readable",
]

MISMATCH = -2  # an input is not what the plan was made for
FLAGGED = -3  # a kernel reported an index out of range

_HEADER = object.__basicsize__
OBJECT_TYPE = _HEADER - 8
TUPLE_ITEMS = tuple.__basicsize__  # the first item
LIST_ITEMS = _HEADER + 8  # the address of the items
ARRAY_DATA, _NDIM, _DIMS, _DESCR, _FLAGS = (_HEADER + offset for offset in (0, 8, 16, 40, 48))
ARRAY_SIZES = (_DIMS, _DIMS + 8)  # where the addresses of sizes and of strides are
ARRAY_WORDS = (
    _FLAGS + 16
) // 8  # all that is the array's: from its references to the flags, and who refers to it weakly
_USABLE = 0x101  # flags of an array: C-contiguous and aligned


class Expected(ctypes.Structure):
    """What an input must be."""

    _fields_ = (("descr", c_void_p), ("ndim", c_int64), ("dims", c_void_p))


class Entry(ctypes.Structure):
    """What `enter` needs to know of one arena's plan."""

    _fields_ = (
        ("run", c_void_p),
        ("plan", c_void_p),
        ("io", c_void_p),
        ("flag", c_void_p),
        ("cancel", c_void_p),
        ("array_type", c_void_p),
        ("ninputs", c_int64),
        ("expected", c_void_p),
        ("noutputs", c_int64),
        ("get_threads", c_void_p),  # null when no step asks how many threads there are
        ("set_threads", c_void_p),
        ("threads", c_int64),
    )


def expect(dtype: np.dtype[Any], shape: Sequence[int]) -> tuple[Expected, Any]:
    """What an input must be, and what has to be kept alive with it."""
    dims = (c_int64 * max(len(shape), 1))(*shape)
    return Expected(id(dtype), len(shape), ctypes.addressof(dims)), (dims, dtype)


def enter_address() -> int:
    """Where the entry is; there may be better code for it later (`follow`)."""
    return own_address("pyflame_enter", _ir)


@cache
def enter() -> Callable[[int, int, int], int]:
    """The entry, compiled at first use.

    It takes the address of an Entry and the ids of a tuple of inputs and of a list of outputs. It returns what the
    driver returns, MISMATCH when an input is not an array as expected, or FLAGGED.
    """
    address = enter_address()
    function = ctypes.CFUNCTYPE(c_int64, c_void_p, c_void_p, c_void_p)(address)
    follow(address, ctypes.addressof(function), function)
    return function


def prepare_entry() -> None:
    """The entry will be needed."""
    prepare_text("pyflame_enter", _ir)


def _ir() -> str:
    b = Builder(host())
    b.begin()
    entry = Fields(b, Entry, "%way")
    mismatch = b.label("mismatch")
    io, number = entry.load("io"), entry.load("ninputs")
    _read_inputs(b, entry, io, mismatch)
    items = b.op(f"load ptr, ptr {b.element('i8', '%outputs', str(LIST_ITEMS))}")

    def output(i: str, _: list[V]) -> list[V]:
        array = b.op(f"load ptr, ptr {b.element('ptr', items, i)}")
        data = b.op(f"load ptr, ptr {b.element('i8', array, str(ARRAY_DATA))}")
        b.do(f"store ptr {data}, ptr {b.element('ptr', io, b.integer(f'add {number}, {i}'))}")
        return []

    loop(b, "0", entry.load("noutputs"), 1, [], output)
    flag = entry.load("flag")
    b.do(f"store i64 0, ptr {flag}")
    b.do(f"store i64 0, ptr {entry.load('cancel')}")
    status = _run(b, entry, io)
    good, bad = b.label("good"), b.label("bad")
    b.branch(b.op(f"icmp eq i64 {status}, 0"), good, bad)
    b.place(bad)
    b.do(f"ret i64 {status}")
    b.place(good)
    raised = b.op(f"icmp ne i64 {b.op(f'load i64, ptr {flag}')}, 0")
    b.do(f"ret i64 {b.op(f'select i1 {raised}, i64 {FLAGGED}, i64 0')}")
    b.place(mismatch)
    b.do(f"ret i64 {MISMATCH}")
    b.end("i64 @pyflame_enter(ptr %way, ptr %inputs, ptr %outputs)")
    return b.text()


def _read_inputs(b: Builder, entry: Fields, io: str, mismatch: str) -> None:
    """Compare each input with what is expected, and note where its elements are."""
    expected, kind = entry.load("expected"), entry.load("array_type")
    first = b.element("i8", "%inputs", str(TUPLE_ITEMS))

    def require(condition: str) -> None:
        following = b.label("as_expected")
        b.branch(condition, following, mismatch)
        b.place(following)

    def at(array: str, what: str, offset: int) -> str:
        return b.op(f"load {what}, ptr {b.element('i8', array, str(offset))}")

    def one(i: str, _: list[V]) -> list[V]:
        array = b.op(f"load ptr, ptr {b.element('ptr', first, i)}")
        want = Fields(b, Expected, b.element("i8", expected, b.integer(f"mul {i}, {ctypes.sizeof(Expected)}")))
        require(b.op(f"icmp eq ptr {at(array, 'ptr', OBJECT_TYPE)}, {kind}"))
        require(b.op(f"icmp eq ptr {at(array, 'ptr', _DESCR)}, {want.load('descr')}"))
        usable = b.op(f"and i32 {at(array, 'i32', _FLAGS)}, {_USABLE}")
        require(b.op(f"icmp eq i32 {usable}, {_USABLE}"))
        ndim = want.load("ndim")
        found = b.op(f"sext i32 {at(array, 'i32', _NDIM)} to i64")
        require(b.op(f"icmp eq i64 {found}, {ndim}"))
        sizes, wanted = at(array, "ptr", _DIMS), want.load("dims")

        def size(k: str, _: list[V]) -> list[V]:
            pair = (b.op(f"load i64, ptr {b.element('i64', place, k)}") for place in (sizes, wanted))
            require(b.op("icmp eq i64 {}, {}".format(*pair)))
            return []

        loop(b, "0", ndim, 1, [], size)
        b.do(f"store ptr {at(array, 'ptr', ARRAY_DATA)}, ptr {b.element('ptr', io, i)}")
        return []

    loop(b, "0", entry.load("ninputs"), 1, [], one)


def _run(b: Builder, entry: Fields, io: str) -> str:
    """Call the driver; parallel regions of the library use as many threads as the plan has."""
    get, put, threads = (entry.load(name) for name in ("get_threads", "set_threads", "threads"))
    wanted = b.op(f"trunc i64 {threads} to i32")
    call = f"call i64 {entry.load('run')}(ptr {entry.load('plan')}, ptr {io})"
    plain, careful, done = b.label("plain"), b.label("careful"), b.label("ran")
    b.branch(b.op(f"icmp eq ptr {get}, null"), plain, careful)
    b.place(plain)
    first = b.op(call)
    b.jump(done)
    b.place(careful)
    before = b.op(f"call i32 {get}()")
    b.do(f"call void {put}(i32 {wanted})")
    second = b.op(call)
    b.do(f"call void {put}(i32 {before})")
    b.jump(done)
    b.place(done)
    return b.phi("i64", (first, plain), (second, careful))


@cache
def readable() -> bool:
    """Whether arrays, tuples and lists look in memory as this module takes them to."""
    if sys.implementation.name != "cpython" or ctypes.sizeof(c_void_p) != 8 or sys.byteorder != "little":
        return False
    if np.ndarray.__basicsize__ < _FLAGS + 4 or not getattr(sys, "_is_gil_enabled", lambda: True)():
        return False
    samples = [np.zeros(shape, dtype) for shape in ((3,), (2, 5), ()) for dtype in (np.float32, np.int64)]
    samples += [samples[2].T, samples[3][:, ::2]]
    fixed = tuple(samples)
    if not _items(fixed, id(fixed) + TUPLE_ITEMS) or not _items(samples, _word(samples, LIST_ITEMS)):
        return False
    return all(map(_as_taken, samples))


def _word(value: Any, offset: int) -> int:
    return c_void_p.from_address(id(value) + offset).value or 0


def _as_taken(array: np.ndarray[Any, Any]) -> bool:
    flags = ctypes.c_int32.from_address(id(array) + _FLAGS).value
    ndim = ctypes.c_int32.from_address(id(array) + _NDIM).value
    if ndim != array.ndim or _word(array, OBJECT_TYPE) != id(np.ndarray) or _word(array, _DESCR) != id(array.dtype):
        return False
    sizes = [c_int64.from_address(_word(array, _DIMS) + 8 * k).value for k in range(ndim)]
    usable = array.flags.c_contiguous and array.flags.aligned
    return (
        sizes == list(array.shape)
        and (flags & _USABLE == _USABLE) == usable
        and _word(array, ARRAY_DATA) == array.__array_interface__["data"][0]
    )


def _items(values: Sequence[Any], address: int) -> bool:
    return all(c_void_p.from_address(address + 8 * k).value == id(v) for k, v in enumerate(values))
