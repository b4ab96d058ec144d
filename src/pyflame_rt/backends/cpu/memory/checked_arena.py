"""An arena that trusts nothing: checked mode.

Every buffer, the caller's too, is copied into memory of its own between pages without access; weights cannot be
written. Steps run one by one: before a buffer's first step and after its last its contents are poison, kernels look up
every address, and the bytes around what a step touched must be as they were.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.backends.cpu.driver.native_driver import NativePlan, NativeStep, Patch, StepKind
from pyflame_rt.backends.cpu.graph.cost_model import views_of
from pyflame_rt.backends.cpu.ir.bounds_checks import HEADER, SINK_BYTES, checked_address
from pyflame_rt.backends.cpu.lower.lowering import DnnStep, HostStep, KernelStep, Lowered
from pyflame_rt.backends.cpu.memory.arena import Arena
from pyflame_rt.backends.cpu.memory.buffer_views import Buffer, Place, View
from pyflame_rt.backends.cpu.memory.guard_pages import Guarded, GuardedRegion
from pyflame_rt.graph.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pyflame_rt.backends.cpu.ir.kernel_program import Kernel
    from pyflame_rt.backends.cpu.run.step_timing import StepClock

__all__ = ["CheckedArena", "check_offsets"]


def check_offsets(buffers: Iterable[Buffer]) -> None:
    """Refuse a layout of the arena in which two buffers that live at the same time share bytes."""
    owned = [b for b in buffers if b.place is Place.ARENA and b.first >= 0]
    active: list[Buffer] = []
    for buffer in sorted(owned, key=lambda b: b.first):
        active = [other for other in active if other.last >= buffer.first]
        for other in active:
            if other.offset < buffer.offset + buffer.nbytes and buffer.offset < other.offset + other.nbytes:
                raise BackendError(
                    f"checked mode: buffers at {other.offset} (steps {other.first} to {other.last}) and "
                    f"{buffer.offset} (steps {buffer.first} to {buffer.last}) share bytes while both are in use"
                )
        active.append(buffer)


class CheckedArena(Arena):
    """Memory for one run at a time, with every step watched."""

    def __init__(self, lowered: Lowered, threads: int) -> None:
        check_offsets(lowered.buffers)
        used = [b for b in lowered.buffers if b.first >= 0 and b.place is not Place.FLAG]
        self._guarded = Guarded([b.nbytes for b in used])
        self._regions: dict[Buffer, GuardedRegion] = dict(zip(used, self._guarded.regions, strict=True))
        self._tables: dict[int, np.ndarray[Any, Any]] = {}
        self._sink = np.zeros(SINK_BYTES, np.uint8)
        for buffer, region in self._regions.items():
            if buffer.place is Place.CONSTANT:
                _fill(region, buffer.array)
                self._guarded.freeze(region)
        super().__init__(lowered, 0, threads)

    # ------------------------------------------------------------------ building

    def _segments(self, threads: int) -> list[NativePlan | HostStep]:
        steps = enumerate(self.lowered.steps)
        return [step if isinstance(step, HostStep) else self._native([i], threads) for i, step in steps]

    def _compiled(self, kernels: Sequence[Kernel]) -> list[int]:
        return [checked_address(kernel) for kernel in kernels]

    def _io(self, buffer: Buffer) -> int | None:
        del buffer
        return None  # inputs and outputs have copies in guarded memory, at fixed addresses

    def place(self, buffer: Buffer) -> int:
        """Where a buffer begins."""
        return self._regions[buffer].address

    def address(self, view: View) -> int:
        """Where a view's first element is."""
        if view.buffer.place is Place.FLAG:
            return int(self.flag.ctypes.data)
        return self.place(view.buffer) + view.byte_offset

    def _kernel(self, step: KernelStep, address: int, patches: list[Patch]) -> NativeStep:
        del patches
        count = len(step.views)
        slots = (ctypes.c_void_p * (count + 1))()
        params = (ctypes.c_int64 * max(len(step.params), 1))(*step.params)
        first = ctypes.addressof(slots) + ctypes.sizeof(ctypes.c_void_p)
        for i, view in enumerate(step.views):
            slots[i + 1] = self.address(view)
        ranges = [self._range(view) for view in step.views]
        ranges += [(first, first + 8 * count), (ctypes.addressof(params), ctypes.addressof(params) + 8 * len(params))]
        table = np.array([len(ranges), 0, 0, self._sink.ctypes.data, *sum(ranges, ())], np.int64)
        slots[0] = table.ctypes.data
        self._tables[id(step)] = table
        self.keep += [slots, params, table]
        return NativeStep(
            StepKind.KERNEL, address, first, count, ctypes.addressof(params), step.rows, step.grain, step.pieces
        )

    def _range(self, view: View) -> tuple[int, int]:
        """The memory a kernel may touch through a view: from its first element to its last, or all of a blocked one."""
        if view.buffer.place is Place.FLAG:
            return int(self.flag.ctypes.data), int(self.flag.ctypes.data) + 8
        region = self._regions[view.buffer]
        if view.desc is not None or not view.count:
            return region.address, region.address + region.nbytes
        steps = [(n - 1) * s for n, s in zip(view.shape, view.strides, strict=True)]
        low, high = sum(min(s, 0) for s in steps), sum(max(s, 0) for s in steps) + 1
        size, begin = view.dtype.itemsize, self.address(view)
        return max(begin + low * size, region.address), min(begin + high * size, region.address + region.nbytes)

    # ------------------------------------------------------------------ running

    def run(
        self,
        inputs: Sequence[np.ndarray[Any, Any]],
        outputs: Sequence[np.ndarray[Any, Any]],
        check: Callable[[], None] | None = None,
        *,
        urgent: bool = False,
        clock: StepClock | None = None,
    ) -> None:
        """Copy the inputs in, run every step on its own, copy the outputs out."""
        for buffer, region in self._regions.items():
            if buffer.place is Place.INPUT:
                _fill(region, inputs[buffer.index])
            elif buffer.place is not Place.CONSTANT:
                region.poison()
        super().run(inputs, outputs, check, urgent=urgent, clock=clock)
        for buffer, region in self._regions.items():
            self._sound(buffer, "the run")
            if buffer.place is Place.OUTPUT:
                _raw(outputs[buffer.index])[:] = region.data[: outputs[buffer.index].nbytes]

    def _run_segments(self, check: Callable[[], None] | None, clock: StepClock | None) -> None:
        self._at = 0
        super()._run_segments(check, clock)

    def _run_segment(self, segment: NativePlan | HostStep, check: Callable[[], None] | None) -> None:
        step = self.lowered.steps[self._at]
        super()._run_segment(segment, check)
        name = f"step {self._at} ({step.label}, nodes {', '.join(step.nodes) or '-'})"
        table = self._tables.get(id(step))
        if table is not None and table[1]:
            raise BackendError(f"checked mode: {name} {self._outside(table)}")
        touched = {view.buffer for view in views_of(step)}
        if isinstance(step, DnnStep) and step.scratch is not None:
            touched.add(step.scratch)
        for buffer in touched:
            self._sound(buffer, name)
            if buffer.place is Place.ARENA and buffer.last == self._at:
                self._regions[buffer].poison()
        self._at += 1

    def _outside(self, table: np.ndarray[Any, Any]) -> str:
        count, address, size = (int(v) for v in table[:3])
        table[1] = 0
        ranges = [(int(a), int(b)) for a, b in table[HEADER:].reshape(count, 2)]
        nearest = min(range(count), key=lambda k: max(ranges[k][0] - address, address + size - ranges[k][1], 0))
        low, high = ranges[nearest]
        return f"touched {size} bytes at offset {address - low} of operand {nearest}, which has {high - low}"

    def _sound(self, buffer: Buffer, name: str) -> None:
        region = self._regions.get(buffer)
        found = "" if region is None else region.damage()
        if found:
            raise BackendError(f"checked mode: {name} wrote {found} of a buffer of {buffer.nbytes} bytes")

    def close(self) -> None:
        """Free native objects and memory."""
        super().close()
        self._regions = {}
        self._guarded.close()


def _fill(region: GuardedRegion, array: np.ndarray[Any, Any]) -> None:
    raw = _raw(array)
    region.data[: raw.size] = raw


def _raw(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The bytes of a contiguous array."""
    return array.reshape(-1).view(np.uint8) if array.size else np.zeros(0, np.uint8)
