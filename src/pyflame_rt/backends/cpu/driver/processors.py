"""Threads of a step on processors of their own: one that was woken beside the thread that woke it leaves.

Where a hypervisor put a processor to sleep, Linux does not take it for idle when it looks for one, and wakes a thread
where it ran last. Two that were together once so stay together and take turns, which is slower than one thread alone.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import c_void_p
from functools import cache
from typing import TYPE_CHECKING, Any

from pyflame_rt.backends.cpu.ir.loops import when

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame_rt.backends.cpu.ir.builder import Builder, V

__all__ = ["Processors", "emit_apart", "emit_left", "emit_told", "processors"]

_MASK = 1024  # bytes that tell which processors a thread may run on


class Processors(ctypes.Structure):
    """Calls of the C library that tell and choose the processor a thread runs on."""

    _fields_ = (("current", c_void_p), ("get_mask", c_void_p), ("set_mask", c_void_p))


@cache
def _calls() -> Processors | None:
    names = ("sched_getcpu", "sched_getaffinity", "sched_setaffinity")
    library = ctypes.CDLL(None) if os.name == "posix" else None
    if library is None or not all(hasattr(library, name) for name in names):
        return None
    return Processors(*(ctypes.cast(getattr(library, name), c_void_p).value for name in names))


def processors(threads: int) -> int | None:
    """Address of the calls, where the system has them and a processor for each of so many threads."""
    calls = _calls()
    if calls is None or len(os.sched_getaffinity(0)) < threads:
        return None
    return ctypes.addressof(calls)


def emit_apart(b: Builder) -> None:
    """A thread that runs on a given processor goes to another one; what it may run on is as before when it has gone."""
    b.begin()
    before, after = (b.op(f"alloca [{_MASK} x i8], align 8") for _ in range(2))
    current, get_mask, set_mask = (b.op(f"load ptr, ptr {b.element('ptr', '%calls', str(k))}") for k in range(3))
    here = b.op(f"sext i32 {b.op(f'call i32 {current}()')} to i64")

    def move(_: Sequence[V]) -> list[V]:
        copied = [("ptr", after), ("ptr", before), ("i64", str(_MASK)), ("i1", "false")]
        b.call("void", "llvm.memcpy.p0.p0.i64", copied)
        place = b.element("i8", after, b.integer("lshr %other, 3"))
        bit = b.op(f"shl i8 1, {b.op('trunc i64 ' + b.integer('and %other, 7') + ' to i8')}")
        kept = b.op(f"and i8 {b.op(f'load i8, ptr {place}')}, {b.op(f'xor i8 {bit}, -1')}")
        b.do(f"store i8 {kept}, ptr {place}")
        for mask in (after, before):
            b.do(f"call i32 {set_mask}(i32 0, i64 {_MASK}, ptr {mask})")
        return []

    def ask(_: Sequence[V]) -> list[V]:
        bad = b.op(f"call i32 {get_mask}(i32 0, i64 {_MASK}, ptr {before})")
        return when(b, b.op(f"icmp eq i32 {bad}, 0"), [], move)

    when(b, b.op(f"icmp eq i64 {here}, %other"), [], ask)
    b.do("ret void")
    b.end("internal void @pyflame_apart(ptr %calls, i64 %other)")


def emit_told(b: Builder, plan: Any, team: Any) -> None:
    """The thread that begins a step tells the others where it runs."""
    calls = plan.load("processors")
    team.store("processors", calls)

    def tell(_: Sequence[V]) -> list[V]:
        current = b.op(f"load ptr, ptr {calls}")
        team.store("processor", b.op(f"sext i32 {b.op(f'call i32 {current}()')} to i64"))
        return []

    when(b, b.op(f"icmp ne ptr {calls}, null"), [], tell)


def emit_left(b: Builder, team: Any, number: str) -> None:
    """The others leave the processor of the first."""
    calls = team.load("processors")
    woken = b.op(f"and i1 {b.op(f'icmp ne i64 {number}, 0')}, {b.op(f'icmp ne ptr {calls}, null')}")

    def leave(_: Sequence[V]) -> list[V]:
        b.do(f"call void @pyflame_apart(ptr {calls}, i64 {team.load('processor')})")
        return []

    when(b, woken, [], leave)
