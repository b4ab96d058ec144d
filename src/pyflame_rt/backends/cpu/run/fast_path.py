"""The fast path through a plan: for inputs of the same types as before, one native call and nothing else."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.backends.cpu.driver.entry import Entry, enter
from pyflame_rt.backends.cpu.driver.native_driver import NativePlan as Segment
from pyflame_rt.backends.cpu.driver.native_driver import driver_address
from pyflame_rt.backends.cpu.jit.compiler import follow
from pyflame_rt.backends.cpu.lower.lowering import DnnStep
from pyflame_rt.backends.cpu.memory.output_pool import makers
from pyflame_rt.backends.cpu.run.threads import openmp_threads
from pyflame_rt.graph.addresses import address_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyflame_rt.backends.cpu.memory.arena import Arena
    from pyflame_rt.backends.cpu.run.plan import Plan

__all__ = ["FastPath", "fast_path"]


def fast_path(plan: Plan, types: Sequence[tuple[str, np.dtype[Any], tuple[int, ...]]]) -> FastPath | None:
    """The fast path for inputs of these types (name, element type, sizes); None where there is none."""
    known = {name: (dtype, shape) for name, dtype, shape in types}
    names = tuple(plan.lowered.inputs)
    if not names or sorted(names) != sorted(known) or not _simple(plan):
        return None
    return FastPath(plan, names, [known[name] for name in names])


def _simple(plan: Plan) -> bool:
    """One native segment, and nothing that limits or checks runs."""
    if plan.slots is not None or plan.checked:
        return False
    arena = next(iter(plan.free), None)
    return arena is not None and len(arena.segments) == 1 and isinstance(arena.segments[0], Segment)


class FastPath:
    """Runs a plan on arrays that are as expected.

    Attributes:
        order: names of the inputs as the plan has them.
        makers: make an array for each output.
    """

    def __init__(
        self, plan: Plan, order: tuple[str, ...], expected: Sequence[tuple[np.dtype[Any], tuple[int, ...]]]
    ) -> None:
        self.order = order
        self.makers: Sequence[Callable[[], np.ndarray[Any, Any]]] = makers(plan.outputs, plan.ledger.outputs)
        self._plan = plan
        self._expected = [(name, dtype, shape) for name, (dtype, shape) in zip(order, expected, strict=True)]
        self._table = ctypes.c_void_p * (len(order) + len(plan.outputs))
        self._enter = enter()

    def __call__(
        self,
        feed: Mapping[str, Any],
        into: list[np.ndarray[Any, Any]] | None = None,
        given: Mapping[int, np.ndarray[Any, Any]] | None = None,
    ) -> list[np.ndarray[Any, Any]] | None:
        """Outputs for a feed; None when it has to go the long way, which says what is wrong where something is.

        Args:
            feed: the inputs by name.
            into: arrays to write all outputs into; they are looked at.
            given: arrays to write some outputs into, by number, for which the caller answers: of the right type, and
                an input's only where the plan allows it.
        """
        plan = self._plan
        inputs = None if plan.retired or not plan.free else self._checked(feed)
        if inputs is None or (into is not None and not _takes(into, plan.outputs, inputs)):
            return None
        if into is not None:
            outputs = into
        elif given:
            outputs = [given[i] if i in given else make() for i, make in enumerate(self.makers)]
        else:
            outputs = [make() for make in self.makers]
        table = self._table(*map(address_of, inputs), *map(address_of, outputs))
        return outputs if self.run(ctypes.addressof(table)) else None

    def _checked(self, feed: Mapping[str, Any]) -> list[np.ndarray[Any, Any]] | None:
        """The inputs in the plan's order, when each is as expected."""
        if not isinstance(feed, dict) or len(feed) != len(self._expected):
            return None
        inputs = []
        for name, dtype, shape in self._expected:
            array = feed.get(name)
            if type(array) is not np.ndarray or array.dtype is not dtype or array.shape != shape:
                return None
            flags = array.flags
            if not flags.c_contiguous or not flags.aligned:
                return None
            inputs.append(array)
        return inputs

    def run(self, table: int | bytes) -> bool:
        """Run on the inputs and outputs that a table of addresses tells of; False: nothing may be relied on.

        The table has each input in the order of :attr:`order`, then each output; the caller answers for their types.
        """
        plan = self._plan
        active = plan.active
        active.append(1)  # from here on, giving the plan up waits for this run
        try:
            if plan.retired:
                return False
            try:
                arena = plan.free.pop()
            except IndexError:  # all are in use
                return False
            try:
                return not self._enter(arena.entry or _entry(plan, arena), table)
            finally:
                plan.free.append(arena)
        finally:
            active.pop()
            if plan.retired:
                plan.settle()


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


def _entry(plan: Plan, arena: Arena) -> int:
    """The native description of an arena's plan, made once."""
    segment = arena.segments[0]
    assert isinstance(segment, Segment)
    library = any(isinstance(step, DnnStep) for step in plan.lowered.steps)
    get, put = openmp_threads() if library else (None, None)
    entry = Entry(
        driver_address(),
        ctypes.addressof(segment),
        ctypes.addressof(arena.io),
        len(plan.lowered.inputs) + len(plan.outputs),
        arena.flag.ctypes.data,
        arena.cancel.ctypes.data,
        get,
        put,
        plan.threads,
    )
    arena.keep.append(entry)
    follow(entry.run or 0, ctypes.addressof(entry) + Entry.run.offset, arena)
    arena.entry = ctypes.addressof(entry)
    return arena.entry
