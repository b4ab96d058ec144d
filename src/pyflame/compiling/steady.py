"""Replays in which every written tensor keeps its memory: what hundreds of them need is looked at in one native call.

A training step that is replayed reads its parameters, state and gradients and writes them back to where they are. As
long as nobody bound one of them anew, and nobody else refers to one, nothing is left to do in Python for each of them.
Both can be seen in memory: a slot still holds the same object, and an object has as many references as we know of.
"""

from __future__ import annotations

import ctypes
from sys import getrefcount
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Steady", "steady_of"]

# References to a tensor that only its trace has: the trace's, the local name's and that of the count itself.
_TRACE_ONLY = 3


class Steady:
    """One trace, its inputs and outputs as they were in the latest replay."""

    __slots__ = (
        "_address", "_arguments", "_equal", "_fresh", "_inputs", "_kept", "_none", "_outputs", "_reads", "_scalars",
        "_short", "_table", "_words", "trace",
    )  # fmt: skip

    def __init__(self, trace: Any, short: Any) -> None:
        self.trace, self._short, self._equal = trace, short, short.equal()
        self._kept: list[Any] = []
        where = {name: i for i, name in enumerate(short.order)}
        places = [where[name] for name in trace.plan.inputs]
        donated = {place for place, _, _ in trace.donors}
        self._inputs: list[Any] = [None] * len(places)
        for place, array in enumerate(trace.fixed):
            self._inputs[places[place]] = array
        self._arguments = [(places[place], i) for place, i in trace.arguments]
        self._scalars = [(places[place], read, dtype) for place, read, dtype in trace.scalars]
        self._reads: list[tuple[int, Any]] = []
        for place, handle in trace.handles:
            array = handle._value.array
            if place in donated or (array is not None and getrefcount(handle) == _TRACE_ONLY):
                self._inputs[places[place]] = array
            else:
                self._reads.append((places[place], handle))  # others may bind it anew
        self._outputs: list[Any] = [None] * len(trace.specs)
        for _, handle, out in trace.donors:
            self._outputs[out] = handle._value.array
        for lf, out in trace.grads:
            self._outputs[out] = lf.grad._value.array
        self._fresh = [(i, make) for i, make in enumerate(short.makers) if self._outputs[i] is None]
        self._table = short.table(self._inputs, self._outputs)
        self._none: list[Any] = [None] * len(self._outputs)
        self._words, self._address = np.zeros((0, 2), np.int64), 0

    def watch(self) -> bool:
        """Note what must stay as it is; False where somebody else refers to one of the values already."""
        words: list[tuple[int, int]] = []
        seen: set[int] = set()
        read = {id(a) for a in self._inputs if a is not None}
        for _, handle, _ in self.trace.donors:
            self._watch_value(handle, words, seen, read)
        for lf, _ in self.trace.grads:
            handle = lf.grad
            words += [_slot(lf, handle), (id(handle), 2)]  # the leaf's reference and ours
            self._kept.append(handle)
            self._watch_value(handle, words, seen, read)
            del handle
        self._words = np.array(words, np.int64).reshape(-1, 2)
        self._address = self._words.ctypes.data
        return self.unchanged

    def _watch_value(self, handle: Any, words: list[tuple[int, int]], seen: set[int], read: set[int]) -> None:
        value = handle._value
        array = value.array
        base = array.base
        words += [_slot(handle, value), _slot(value, array), (id(value), 2)]
        # Its value's reference, ours, and two for each of the lists of outputs and inputs it is in.
        words.append((id(array), 4 + 2 * (id(array) in read)))
        self._kept += [value, array]
        if base is not None:
            words.append((id(base), 2))
            self._kept.append(base)
        if not array.flags.writeable or id(array) in seen:
            words.append((id(array), -1))  # never: two values share an array, or it may not be written
        seen.add(id(array))

    @property
    def unchanged(self) -> bool:
        """Whether all that was noted is still so."""
        return self._equal(self._address, len(self._words)) == 1

    def run(self, arrays: list[Any]) -> list[Any] | None:
        """The outputs of a replay, None for those that stay where they were; no list when it has to go the long way."""
        if self.trace.plan.executable.short is not self._short or not self.unchanged:
            return None
        table, borrowed = self._table, []
        for place, i in self._arguments:
            table.borrow_input(place, arrays[i])
        for place, handle in self._reads:
            borrowed.append(handle._value.array)
            table.borrow_input(place, borrowed[-1])
        for place, read, dtype in self._scalars:
            borrowed.append(np.array(read(), dtype))
            table.borrow_input(place, borrowed[-1])
        outputs = self._none.copy()
        for i, make in self._fresh:
            outputs[i] = make()
            table.borrow_output(i, outputs[i])
        return outputs if self._short.direct(table.inputs, table.outputs) else None


def steady_of(trace: Any) -> Steady | None:
    """What replays of a trace need from now on; None where they need more than this knows of."""
    short = getattr(trace.plan.executable, "short", None)
    if short is None or not hasattr(short, "direct") or trace.gradients or trace.keys or trace.differentiable:
        return None
    kept = {out for _, _, out in trace.donors}
    if {i for _, i, _ in trace.state} != kept or any(not isinstance(i, int) for _, i in trace.grads):
        return None
    kept.update(i for _, i in trace.grads)
    if any(kind == "output" and i in kept for kind, i in trace.results):
        return None
    made = Steady(trace, short)
    return made if made.watch() else None


def _slot(holder: Any, held: Any) -> tuple[int, int]:
    """Where an object keeps a reference to another, and what must be there."""
    words: Iterable[int] = range(id(holder) + 16, id(holder) + type(holder).__basicsize__, 8)
    wanted = id(held)
    for address in words:
        if ctypes.c_int64.from_address(address).value == wanted:
            return address, wanted
    return id(holder), -1  # it is kept in another way, which cannot be watched
