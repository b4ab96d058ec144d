"""Replay a trace: compare versions in one go, fill a table of addresses, make one native call."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame import instrumentation
from pyflame.compiling.bindings import Binding, Gradient
from pyflame.storage import state_lock, versions
from pyflame_rt.graph.addresses import address_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyflame.evaluation import EvaluationPlan
    from pyflame.instrumentation import Labels
    from pyflame_rt.executable import FastPath

__all__ = ["Replay"]


class Replay:
    """Runs the plan of a trace on what the trace is bound to.

    Args:
        plan: the executable.
        bindings: tensors and gradients it reads and writes.
        fixed: an array for each input that is always the same, None for the others.
        arguments: inputs that come with the call: (input, number of the tensor).
        keys: inputs that are random keys: (input, generator).
        scalars: inputs that are read again: (input, what reads it, element type).
        labels: what its nodes are called by people.

    Attributes:
        writes: whether it changes any tensor or gradient.
        runs: how often it ran.
        fast_runs: how many runs took one native call.
    """

    def __init__(
        self,
        plan: EvaluationPlan,
        bindings: Sequence[Binding],
        fixed: list[np.ndarray[Any, Any] | None],
        arguments: Sequence[tuple[int, int]],
        keys: Sequence[tuple[int, Any]],
        scalars: Sequence[tuple[int, Callable[[], Any], Any]],
        labels: Labels,
    ) -> None:
        self.plan, self.labels = plan, labels
        # Reading may take back an array that was lent, so what is written is looked at last.
        self.bindings = sorted(bindings, key=lambda b: b.out >= 0)
        self._numbers = {id(b): k for k, b in enumerate(self.bindings)}
        self.writes = any(b.out >= 0 or isinstance(b, Gradient) for b in bindings)
        self._written = [b for b in bindings if b.out >= 0]
        self._gradients = [b for b in bindings if isinstance(b, Gradient) and b.place >= 0]
        self._settled = [b for b in bindings if isinstance(b, Gradient) and (b.drops or b.other is not None)]
        self._always = bool(self._settled) or any(b.copied for b in bindings)
        self._arguments, self._keys = list(arguments), list(keys)
        self._scalars = [(place, read, np.empty((), dtype)) for place, read, dtype in scalars]
        self._inputs = list(fixed)  # replaced, never changed, while others may be running
        taken = {b.out for b in self._written if not b.copied}
        self._fresh = [out for out in range(len(plan.outputs)) if out not in taken]
        plan.executable.donate([(plan.inputs[b.place], b.out) for b in self._written if b.place >= 0 and not b.copied])
        self.runs = self.fast_runs = 0
        self._rows = np.empty(0, np.int64)
        self._seen = np.empty(0, np.int64)
        self._total = -1
        self._fast: FastPath | None = None
        self._slots: list[int] = []
        self._table: Any = None
        self._kind: Any = None
        self._spares: dict[int, np.ndarray[Any, Any]] = {}
        self._donated: Mapping[int, int] = {}
        self._bound: tuple[list[Any], Any] = (self._inputs, None)

    # ------------------------------------------------------------------ conditions

    def fits(self) -> bool:
        """Whether all it is bound to is as the trace wants it; what changed is bound anew."""
        if versions.total == self._total and (not self._gradients or all(b.is_current() for b in self._gradients)):
            return True
        with state_lock:
            if len(self._rows) != len(self.bindings):
                self._rows = np.array([b.source().watched() for b in self.bindings], np.int64)
                self._seen = np.full(len(self._rows), -1, np.int64)
            while True:
                total = versions.total
                changed = np.flatnonzero(versions.table[self._rows] != self._seen).tolist()
                changed += [
                    k for b in self._gradients if not b.is_current() and (k := self._numbers[id(b)]) not in changed
                ]
                if not changed:
                    self._total = total
                    return True
                if not self._look(changed):
                    return False

    def rebound(self, binding: Binding) -> None:
        """A binding reads another tensor from now on."""
        if len(self._rows) == len(self.bindings):
            k = self._numbers[id(binding)]
            self._rows[k], self._seen[k] = binding.source().watched(), -1
        self._total = -1

    def _look(self, changed: Sequence[int]) -> bool:
        """Look at bindings again; False at the first that is not what the trace was made for."""
        self._inputs = list(self._inputs)
        if self._fast is not None:
            self._table = self._kind.from_buffer_copy(self._table)
        for k in changed:
            binding = self.bindings[k]
            if not binding.look():
                return False
            self._note(binding)
        return True

    def _note(self, binding: Binding) -> None:
        """This is how a binding is now."""
        source, k = binding.source(), self._numbers[id(binding)]
        self._rows[k], self._seen[k] = source.watched(), source.version
        if not binding.lasts:
            self._seen[k] = self._total = -1  # the next call must look
        if binding.place >= 0:
            self._inputs[binding.place] = binding.array
        if self._fast is not None:
            self._address(binding)
        self._bound = (self._inputs, self._table)

    def _address(self, binding: Binding) -> None:
        """Put the addresses of a binding into the table: where it is read, and where it is written."""
        fast = self._fast
        assert fast is not None
        place, out, table = binding.place, binding.out, self._table
        address = 0 if binding.array is None else address_of(binding.array)
        if place >= 0:
            table[self._slots[place]] = address
        if out < 0 or binding.copied:
            return
        first = len(self._inputs)
        if binding.private and (place < 0 or out in self._donated):
            table[first + out] = address
            self._spares.pop(out, None)
            return
        spare = self._spares.get(out)
        if spare is None or spare is binding.array:
            spare = self._spares[out] = fast.makers[out]()
        table[first + out] = address_of(spare)

    def _prepare(self, fast: FastPath) -> None:
        """A fast path was found: make its table."""
        self._fast, self._donated = fast, self.plan.executable.donated
        where = {name: i for i, name in enumerate(fast.order)}
        self._slots = [where[name] for name in self.plan.inputs]
        self._kind = ctypes.c_int64 * (len(self._inputs) + len(self.plan.outputs))
        self._inputs, self._table, self._spares = list(self._inputs), self._kind(), {}
        for place, array in enumerate(self._inputs):
            if array is not None:
                self._table[self._slots[place]] = address_of(array)
        for binding in self.bindings:
            self._address(binding)
        self._bound = (self._inputs, self._table)

    # ------------------------------------------------------------------ running

    def run(
        self, tensors: Sequence[np.ndarray[Any, Any]], drawn: dict[int, np.ndarray[Any, Any]] | None = None
    ) -> list[np.ndarray[Any, Any] | None]:
        """Run on the arguments' arrays; the outputs that are nobody's yet, None for the others.

        :meth:`fits` was just true.

        Args:
            tensors: the arrays.
            drawn: gets the keys and numbers of this run, by input.
        """
        self.runs += 1
        fast = self.plan.executable.fast_path
        keys = [(place, generator.next_key()) for place, generator in self._keys]
        for _, read, number in self._scalars:
            number[...] = read()
        if drawn is not None:
            drawn.update(keys)
            drawn.update({place: number.copy() for place, _, number in self._scalars})
        if fast is None or instrumentation.active is not None:
            return self._run_long(tensors, keys)
        if fast is not self._fast:
            with state_lock:
                self._prepare(fast)
        held, now = self._bound  # together, so that another thread's look does not free what this run reads
        table = self._kind.from_buffer_copy(now)
        slots, first = self._slots, len(held)
        for place, i in self._arguments:
            table[slots[place]] = address_of(tensors[i])
        for place, key in keys:
            table[slots[place]] = address_of(key)
        for place, _, number in self._scalars:
            table[slots[place]] = address_of(number)
        outputs: list[np.ndarray[Any, Any] | None] = [None] * len(self.plan.outputs)
        for out in self._fresh:
            array = outputs[out] = fast.makers[out]()
            table[first + out] = address_of(array)
        if not fast.run(ctypes.addressof(table)):
            return self._run_long(tensors, keys)
        self.fast_runs += 1
        if self._spares or self._always:
            self._commit(outputs)
        return outputs

    def _commit(self, outputs: list[np.ndarray[Any, Any] | None]) -> None:
        """New contents that are not where the old ones were: the arrays change places."""
        for binding in self._written:
            if binding.copied:
                continue
            spare = self._spares.pop(binding.out, None)
            if spare is None:
                continue
            old = binding.array if binding.private else None
            binding.take(spare)
            if old is not None:
                self._spares[binding.out] = old
            self._note(binding)
        self._finish(outputs)

    def _run_long(self, tensors: Sequence[Any], keys: Sequence[tuple[int, Any]]) -> list[np.ndarray[Any, Any] | None]:
        """By the executable's own way, into arrays of its own; all that is written takes those."""
        feeds = list(self._inputs)
        for place, i in self._arguments:
            feeds[place] = tensors[i]
        for place, key in keys:
            feeds[place] = key
        for place, _, number in self._scalars:
            feeds[place] = number
        try:
            if instrumentation.active is not None:
                found = instrumentation.active.run(self.plan, feeds, self.labels, "compiled step")
            else:
                found = self.plan.run_long(feeds)
        except BaseException:
            self._forget_gradients()
            raise
        fresh = self.plan.executable.fresh_outputs
        outputs = [np.asarray(a, order="C") if fresh else np.array(a, order="C") for a in found]
        kept: list[np.ndarray[Any, Any] | None] = list(outputs)
        for binding in self._written:
            if not binding.copied:
                binding.take(outputs[binding.out])
                kept[binding.out] = None
                self._note(binding)
        self._finish(kept)
        return kept

    def _finish(self, outputs: list[np.ndarray[Any, Any] | None]) -> None:
        """What takes copies of outputs, and gradients that are dropped or come from outside."""
        for binding in self._written:
            if binding.copied:
                array = outputs[binding.out]
                if array is None:  # it is another tensor's by now
                    array = next(b.array for b in self._written if b.out == binding.out and not b.copied)
                assert array is not None
                binding.take(array.copy())
                self._note(binding)
        for binding in self._settled:
            binding.settle()
            self._note(binding)

    def _forget_gradients(self) -> None:
        """After a run that failed: gradients that nobody reads may have been written over."""
        for binding in self._written:
            if isinstance(binding, Gradient) and binding.place < 0 and binding.private:
                binding.leaf.grad = None

    def values(self) -> dict[int, Any]:
        """The value of each input that is bound, for those who differentiate."""
        return {b.place: b.value() for b in self.bindings if b.place >= 0}
