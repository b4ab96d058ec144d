"""Enter a plan by addresses: one native call that notes where inputs and outputs are, and runs."""

from __future__ import annotations

import ctypes
from ctypes import c_int64, c_void_p
from functools import cache
from typing import TYPE_CHECKING

from pyflame_rt.backends.cpu.driver.native_driver import _Fields as Fields
from pyflame_rt.backends.cpu.ir.builder import Builder
from pyflame_rt.backends.cpu.ir.loops import loop
from pyflame_rt.backends.cpu.jit.compiler import follow, own_address, prepare_text
from pyflame_rt.backends.cpu.jit.target import host

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyflame_rt.backends.cpu.ir.builder import V

__all__ = ["FLAGGED", "Entry", "enter", "prepare_entry"]

FLAGGED = -3  # a kernel reported an index out of range


class Entry(ctypes.Structure):
    """What `enter` needs to know of one arena's plan."""

    _fields_ = (
        ("run", c_void_p),
        ("plan", c_void_p),
        ("io", c_void_p),
        ("number", c_int64),  # of inputs and outputs together
        ("flag", c_void_p),
        ("cancel", c_void_p),
        ("get_threads", c_void_p),  # null when no step asks how many threads there are
        ("set_threads", c_void_p),
        ("threads", c_int64),
    )


@cache
def enter() -> Callable[[int, int | bytes], int]:
    """The entry, compiled at first use.

    It takes the address of an Entry and a table, its address or its bytes: where each input is, in the plan's order,
    and then each output. It returns what the driver returns, or FLAGGED.
    """
    address = own_address("pyflame_enter", _ir)
    function = ctypes.CFUNCTYPE(c_int64, c_void_p, c_void_p)(address)
    follow(address, ctypes.addressof(function), function)
    return function


def prepare_entry() -> None:
    """The entry will be needed."""
    prepare_text("pyflame_enter", _ir)


def _ir() -> str:
    b = Builder(host())
    b.begin()
    entry = Fields(b, Entry, "%way")
    io = entry.load("io")

    def note(i: str, _: list[V]) -> list[V]:
        place = b.op(f"load ptr, ptr {b.element('ptr', '%places', i)}")
        b.do(f"store ptr {place}, ptr {b.element('ptr', io, i)}")
        return []

    loop(b, "0", entry.load("number"), 1, [], note)
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
    b.end("i64 @pyflame_enter(ptr %way, ptr %places)")
    return b.text()


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
