"""Replays in which every written tensor keeps its memory: what hundreds of them need is done in one native call.

A training step that is replayed reads its parameters, state and gradients and writes them back to where they are. As
long as nobody bound one of them anew, and nobody else refers to one, nothing is left to do in Python for each of them.
Both can be seen in memory: a slot still holds the same object, and an object has as many references as we know of.
"""

from __future__ import annotations

import os
from functools import cache
from sys import getrefcount
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import numpy as np

from pyflame.autograd.leaf import Leaf
from pyflame.compiling.parked import marks, waking
from pyflame.compiling.results import Results
from pyflame.compiling.standing import Standing, can_stand, under_way
from pyflame.compiling.watched import Watched, slot_of
from pyflame.dtypes import DType
from pyflame.lazy import Val, mode_changes, spec_of
from pyflame.ops.core import Handle
from pyflame_rt.backends.cpu.llvm.ways import Signs

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["MISS", "Steady", "is_running", "steady_of"]

# What a replay gives that has to go the long way.
MISS = object()
# References to a tensor that only its trace has: the trace's, its conditions', the local name's and that of the count.
_TRACE_ONLY = 4
# Values that may not take the place of old ones are copied there after the run, if they are not more bytes than this.
MAX_COPIED = 8 << 20

_all: WeakSet[Steady] = WeakSet()


def is_running() -> bool:
    """Whether a replay is under way in some thread: tensors may be written to that nobody seems to refer to."""
    return bool(under_way[0])


class Steady:
    """One trace, its inputs and outputs as they were in the latest replay.

    Attributes:
        flat: its arguments are those of the call; else they are the tensors found in them.
        grad: the gradient mode it is for.
        standing: what it takes to begin it without Python; None where it takes Python.
    """

    __slots__ = (
        "__weakref__", "_kept", "_now", "_ready", "_results", "_run", "_scalars", "_way", "flat", "grad", "standing",
        "trace",
    )  # fmt: skip

    def __init__(self, trace: Any, short: Any, tables: _Tables) -> None:
        self.trace, self.flat, self.grad = trace, tables.flat, trace.key[1]
        self._now = len(tables.watched.more)
        self._results = Results(trace, short.makers, tables.fresh, tables.positions)
        self._ready = self._results.ready
        self._scalars = [(read, dtype) for _, read, dtype in trace.scalars]
        self._way, self._kept = tables.replay(short), tables.kept
        self._run: Callable[..., int] = short.replaying(self._way)
        self.standing: Standing | None = None
        if self.flat and can_stand(short, trace, self._results):
            self.standing = Standing(self, short, self._way, self._results, self.grad)
        _all.add(self)

    @property
    def runs(self) -> int:
        """How many replays it made."""
        return self._way.runs

    @property
    def looks(self) -> int:
        """How many times it looked at everything, as somebody had used a tensor, or might have."""
        return self._way.looks

    def agree(self) -> None:
        """All conditions were seen to hold."""
        self._kept[0] = self.trace.conditions.changes
        self._way.expect(0, id(self._kept[0]))

    def holds(self) -> bool:
        """Whether what must stay as it is has not changed yet, apart from what the next call changes first."""
        return self._way.compare("words") and self._way.compare("more", self._now)

    def give_up(self) -> None:
        """Replay no more."""
        self._run = lambda *_: 1
        if self.standing is not None:
            self.standing.close()

    def run(self, arguments: tuple[Any, ...]) -> Any:
        """The result of a replay; MISS, with nothing done, when it has to go the long way."""
        if self._scalars:
            arguments = (*arguments, *[np.array(read(), dtype) for read, dtype in self._scalars])
        result, fresh = self._result(arguments)
        if self._run(arguments, fresh):
            self._results.unused(result, fresh)
            return MISS
        if self.standing is not None:
            self.standing.allow()
        return result

    def _result(self, arguments: tuple[Any, ...]) -> tuple[Any, list[Any]]:
        """A result that nobody has yet, with the arrays that it is to be written into."""
        if self.standing is not None:
            return self.standing.refill() if self.standing.is_dry else self._results.one(arguments)
        try:
            return self._ready.pop()
        except IndexError:
            return self._results.make(arguments)


def steady_of(trace: Any, tensors: list[Any]) -> Steady | None:
    """What replays of a trace need from now on; None where they need more than this knows of.

    Args:
        trace: it was just replayed.
        tensors: the arguments it was replayed with.
    """
    short = getattr(trace.plan.executable, "short", None)
    if short is None or not hasattr(short, "replaying") or trace.differentiable:
        return None
    tables = _Tables(trace, short, tensors)
    if not tables.good():
        return None
    made = Steady(trace, short, tables)
    del tables  # its references would be counted
    return made if made.holds() else None


class _Tables:
    """Where a trace's inputs and outputs are, and what must be true of them."""

    def __init__(self, trace: Any, short: Any, tensors: list[Any]) -> None:
        self.trace, self.offsets = trace, _offsets()
        where = {name: i for i, name in enumerate(short.order)}
        self.places = [where[name] for name in trace.plan.inputs]
        self.inputs: list[Any] = [None] * len(self.places)
        for place, array in enumerate(trace.fixed):
            self.inputs[self.places[place]] = array
        self.outputs: list[Any] = [None] * len(trace.specs)
        self.copied: list[tuple[int, int, int]] = []
        self.found: list[tuple[int, int, int]] = []
        self.put: list[tuple[int, int]] = []
        self.watched = Watched(self.offsets, mode_changes, trace.conditions.changes)
        self.kept: list[Any] = [trace.conditions.changes]
        self._right = True
        self._state()
        self._gradients()
        self._reads()
        self._arguments(tensors)
        self._keys()
        self.fresh = [i for i, array in enumerate(self.outputs) if array is None]

    def good(self) -> bool:
        """Whether that is all there is to know."""
        trace = self.trace
        results = {i for kind, i in trace.results if kind == "output"}
        written = sum(size for _, _, size in self.copied)
        return self._right and self.watched.right and set(self.fresh) == results and written <= MAX_COPIED

    def replay(self, short: Any) -> Any:
        """The tables in the form that machine code reads."""
        self.kept += self.watched.kept
        tables = {
            "plain": self.plain,
            "arrays": self.arrays,
            "given": self.given,
            "found": self.found,
            **self.watched.tables(),
            "fresh": [(i,) for i in self.fresh],
            "drawn": self.drawn,
            "copied": self.copied,
            "put": self.put,
        }
        signs = Signs(under_way.ctypes.data, marks.ctypes.data, id(waking) + object.__basicsize__)
        return short.replay(self.inputs, self.outputs, self.count, self.offsets, tables, signs)

    def _state(self) -> None:
        """Tensors that are written where they are."""
        trace = self.trace
        allowed = trace.plan.executable.donated
        places = {out: place for place, _, out in trace.donors}
        outs = [out for _, out, _ in trace.state]
        self._right &= set(outs) == places.keys() and len(set(outs)) == len(outs)
        for place, handle, out in trace.donors:
            array = handle._value.array
            self._right &= array is not None
            if self._right:
                self.watched.tensor(handle)
                self.inputs[self.places[place]] = array
                self._write(out, array, out in allowed)

    def _write(self, out: int, array: Any, in_place: bool) -> None:
        if in_place:
            self.outputs[out] = array
            return
        own = np.empty_like(array)
        self.kept.append(own)
        self.outputs[out] = own
        self.copied.append((array.ctypes.data, own.ctypes.data, array.nbytes))

    def _gradients(self) -> None:
        """Gradients that are written where they are, put where none was, or dropped."""
        trace = self.trace
        allowed = trace.plan.executable.donated
        read = {id(lf): place for place, lf in trace.gradients}
        absent = {id(lf) for lf, had in trace.had_gradient if not had}
        written = {id(lf) for lf, out in trace.grads if isinstance(out, int)}
        for lf, had in trace.had_gradient:
            slot = id(lf) + self.offsets["grad"]
            if not had:
                self.watched.later.append((slot, id(None)))
            elif id(lf) not in read and id(lf) not in written:
                self._right = False  # all we could watch is that it stays the same one
        for lf, out in trace.grads:
            slot, handle = id(lf) + self.offsets["grad"], lf.grad
            if out is None:
                self.put.append((slot, id(None)))
                continue
            if not isinstance(out, int) or handle is None or handle._value.array is None:
                self._right = False
                return
            new = id(lf) in absent
            self.watched.gradient(handle, lf, 0 if new else slot)
            if new:
                self.put.append((slot, id(handle)))
            array = handle._value.array
            if id(lf) in read:
                self.inputs[self.places[read[id(lf)]]] = array
            self._write(out, array, id(lf) not in read or out in allowed)
        self.found += [
            (id(lf) + self.offsets["grad"], self.places[place], 1)
            for place, lf in trace.gradients
            if id(lf) not in written
        ]

    def _reads(self) -> None:
        """Tensors that are only read: what they hold is looked up at each replay, where somebody could change it."""
        trace = self.trace
        others = {place for place, *_ in (*trace.donors, *trace.arguments, *trace.keys, *trace.scalars)}
        for place, handle in trace.handles:
            array = handle._value.array
            if place in others:
                continue
            if array is not None and getrefcount(handle) == _TRACE_ONLY:
                self.inputs[self.places[place]] = array
            else:
                self.found.append((id(handle) + self.offsets["value"], self.places[place], 0))

    def _arguments(self, tensors: list[Any]) -> None:
        """Arguments of the call, or, where those hold tensors within something else, the tensors."""
        trace = self.trace
        flat = trace.positions
        self.flat = flat is not None
        self.positions = list(range(len(tensors))) if flat is None else flat[0]
        self.plain = [] if flat is None else flat[1]
        places = {i: self.places[place] for place, i in trace.arguments}
        self.given: list[tuple[int, int, int, int, int]] = []
        self.arrays: list[tuple[int, int]] = []
        for i, t in enumerate(tensors):
            number, place = self.positions[i], places.get(i, -1)
            if isinstance(t, Handle):
                v = t._value
                self.given.append((number, place, id(type(t)), id(v.spec), id(v.needs_grad)))
            else:
                self.arrays.append((number, place))
                self._right &= place >= 0  # else its type would not be looked at
        first = self.count = len(self.positions) + len(self.plain)
        self.arrays += [(first + k, self.places[place]) for k, (place, _, _) in enumerate(trace.scalars)]
        self.count += len(trace.scalars)

    def _keys(self) -> None:
        """Random keys: those of one generator are made in a row."""
        groups: dict[int, tuple[Any, list[int]]] = {}
        for place, generator in self.trace.keys:
            groups.setdefault(id(generator), (generator, []))[1].append(place)
        self.drawn: list[tuple[int, int, int, int]] = []
        for generator, places in groups.values():
            buffer = np.zeros((len(places), 2), np.int64)
            self.drawn.append((buffer.ctypes.data, len(buffer), generator.state_address, 0))
            self.kept += [generator, *buffer]
            for row, place in zip(self.kept[-len(buffer) :], places, strict=True):
                self.inputs[self.places[place]] = row


@cache
def _offsets() -> dict[str, int]:
    """Where tensors, values and leaves keep what; found by looking for it."""
    mark: Any = object()
    handle, leaf = Handle(), Leaf()
    value = handle._value = Val(spec_of(DType.float32, ()))
    value.handles, leaf.grad, value.array = 1, mark, mark
    found = {
        "value": slot_of(handle, value) - id(handle),
        "array": slot_of(value, mark) - id(value),
        "spec": slot_of(value, value.spec) - id(value),
        "grad": slot_of(leaf, mark) - id(leaf),
    }
    value.needs_grad = mark
    value.array = None
    found["mode"] = slot_of(value, mark) - id(value)
    return found


def _forget() -> None:
    """In a child process nothing is as it was: threads of plans, and those that were replaying, are the parent's."""
    under_way[0] = 0
    waking.clear()
    for steady in list(_all):
        steady.give_up()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
