"""The short way through a plan: for inputs of the same types as before, one native call and nothing else."""

from __future__ import annotations

import ctypes
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.backends.cpu.llvm.driver import Plan as Segment
from pyflame_rt.backends.cpu.llvm.driver import driver_address
from pyflame_rt.backends.cpu.llvm.entry import Entry, Expected, enter, expect, readable
from pyflame_rt.backends.cpu.llvm.jit import follow
from pyflame_rt.backends.cpu.llvm.replay import MISSED, replay
from pyflame_rt.backends.cpu.llvm.ways import Replay
from pyflame_rt.backends.cpu.plan.lower import DnnStep
from pyflame_rt.backends.cpu.plan.outputs import makers
from pyflame_rt.backends.cpu.threads import openmp_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyflame_rt.backends.cpu.llvm.calls import Call
    from pyflame_rt.backends.cpu.plan.arena import Arena
    from pyflame_rt.backends.cpu.plan.plan import Plan

__all__ = ["short_way"]


def short_way(plan: Plan, types: Sequence[tuple[str, np.dtype[Any], tuple[int, ...]]]) -> Any:
    """A function from a feed to outputs, or to None when the feed needs the long way; None where there is no short one.

    It may be given arrays to write the outputs into: all (``into``), which are looked at, or some by number
    (``given``), which the caller answers for: of the right type, and an input's only where the plan allows it.

    Args:
        plan: what to run.
        types: name, element type and sizes of each input, in any order.
    """
    if not readable() or not _simple(plan):
        return None
    known = {name: (dtype, shape) for name, dtype, shape in types}
    names = list(plan.lowered.inputs)
    if sorted(names) != sorted(known) or not names:
        return None
    first = names[0]
    pick: Callable[[Any], tuple[Any, ...]] = itemgetter(*names) if len(names) > 1 else lambda feed: (feed[first],)
    expected = [known[name] for name in names]
    return _runner(plan, pick, expected)


def _simple(plan: Plan) -> bool:
    """One native segment, and nothing that limits or checks runs."""
    if plan.slots is not None or plan.checked:
        return False
    arena = next(iter(plan.free), None)
    return arena is not None and len(arena.segments) == 1 and isinstance(arena.segments[0], Segment)


def _runner(plan: Plan, pick: Callable[[Any], tuple[Any, ...]], expected: Sequence[tuple[Any, tuple[int, ...]]]) -> Any:
    count, active, take, give = len(expected), plan.active, plan.free.pop, plan.free.append
    results = makers(plan.outputs)
    call = enter()

    def direct(inputs: int, outputs: int) -> bool:
        """Run on a tuple of inputs in the plan's order and a list of outputs, by address; False: by the long way."""
        active.append(1)  # from here on, giving the plan up waits for this run
        try:
            if plan.retired or not plan.free:
                return False
            try:
                arena = take()
            except IndexError:
                return False
            try:
                return not call(arena.entry or _entry(plan, arena, expected), inputs, outputs)
            finally:
                give(arena)
        finally:
            active.pop()
            if plan.retired:
                plan.settle()

    def short(
        feed: Mapping[str, Any],
        into: list[np.ndarray[Any, Any]] | None = None,
        given: Mapping[int, np.ndarray[Any, Any]] | None = None,
    ) -> list[np.ndarray[Any, Any]] | None:
        try:
            if len(feed) != count:
                return None
            inputs = pick(feed)
        except (LookupError, TypeError):
            return None
        if into is not None and not _takes(into, plan.outputs, inputs):
            return None
        if plan.retired or not plan.free:
            return None
        if given:
            outputs = [given[i] if i in given else make() for i, make in enumerate(results)]
        else:
            outputs = [make() for make in results] if into is None else into
        return outputs if direct(id(inputs), id(outputs)) else None  # the long way says what is wrong

    way: Any = short
    way.replay, way.replaying = Replay, partial(_replaying, plan, expected)
    way.standing = partial(_standing, plan, expected)
    way.makers, way.order = results, list(plan.lowered.inputs)
    return short


def _replaying(
    plan: Plan, expected: Sequence[tuple[Any, tuple[int, ...]]], way: Replay
) -> Callable[[tuple[Any, ...], list[Any]], int]:
    """A function of arguments and a list of arrays for outputs, for runs that are like the one before."""
    active, take, give, native = plan.active, plan.free.pop, plan.free.append, replay(way)

    def again(arguments: tuple[Any, ...], given: list[Any], _: Replay = way) -> int:
        active.append(1)
        try:
            if plan.retired:
                return MISSED
            arena = take()
            try:
                return native(arena.entry or _entry(plan, arena, expected), arguments, given)
            finally:
                give(arena)
        except IndexError:  # all arenas are in use
            return MISSED
        finally:
            active.pop()
            if plan.retired:
                plan.settle()

    return again


def _standing(plan: Plan, expected: Sequence[tuple[Any, tuple[int, ...]]], call: Call, *, first: bool) -> None:
    """Tell a call which arena to take; at first, also where the plan keeps them."""
    if first:
        settle = plan.settle
        call.kept = (plan, settle)
        call.gate, call.free, call.settle = plan.gate.ctypes.data, id(plan.free), id(settle)
    try:
        arena = plan.free[-1]
    except IndexError:
        return  # the next time will do
    entry = arena.entry or _entry(plan, arena, expected)
    call.arena, call.entry = id(arena), entry


def _takes(arrays: Sequence[Any], types: Sequence[tuple[Any, Any]], inputs: Sequence[Any]) -> bool:
    """Whether results can be written straight into the caller's arrays; they must not be read at the same time."""
    if len(arrays) != len(types):
        return False
    for i, (array, (shape, dtype)) in enumerate(zip(arrays, types, strict=True)):
        if type(array) is not np.ndarray or array.shape != shape or array.dtype != dtype:
            return False
        if not array.flags.c_contiguous or not array.flags.writeable or not array.flags.aligned:
            return False
        others = [*inputs, *arrays[:i]]
        if any(isinstance(other, np.ndarray) and np.may_share_memory(array, other) for other in others):
            return False
    return True


def _entry(plan: Plan, arena: Arena, expected: Sequence[tuple[Any, tuple[int, ...]]]) -> int:
    """The native description of an arena's plan, made once."""
    wants = [expect(dtype, shape) for dtype, shape in expected]
    table = (Expected * len(wants))(*(want for want, _ in wants))
    segment = arena.segments[0]
    assert isinstance(segment, Segment)
    library = any(isinstance(step, DnnStep) for step in plan.lowered.steps)
    get, put = openmp_threads() if library else (None, None)
    entry = Entry(
        driver_address(),
        ctypes.addressof(segment),
        ctypes.addressof(arena.io),
        arena.flag.ctypes.data,
        arena.cancel.ctypes.data,
        id(np.ndarray),
        len(wants),
        ctypes.addressof(table),
        len(plan.outputs),
        get,
        put,
        plan.threads,
    )
    arena.keep += [entry, table, wants]
    follow(entry.run or 0, ctypes.addressof(entry) + Entry.run.offset, arena)
    arena.entry = ctypes.addressof(entry)
    return arena.entry
