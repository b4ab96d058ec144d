"""One run's memory and native objects: nothing in here is shared between runs under way."""

from __future__ import annotations

import ctypes
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.backends.cpu.driver.native_driver import (
    NativePlan,
    NativeStep,
    Patch,
    PatchKind,
    StepKind,
    openmp,
    run,
    watch,
)
from pyflame_rt.backends.cpu.driver.processors import processors
from pyflame_rt.backends.cpu.jit.compiler import compile_kernels, follow, unfollow
from pyflame_rt.backends.cpu.lower.lowering import DnnStep, HostStep, KernelStep, Lowered
from pyflame_rt.backends.cpu.memory.buffer_views import Buffer, Place, View
from pyflame_rt.backends.cpu.onednn.api import address
from pyflame_rt.backends.cpu.onednn.memory import Memory
from pyflame_rt.backends.cpu.onednn.runtime import Stream
from pyflame_rt.backends.cpu.run.cancellation import watched
from pyflame_rt.backends.cpu.run.small_work import brief
from pyflame_rt.backends.cpu.run.threads import budget
from pyflame_rt.graph.errors import BackendError, InputError, MemoryLimitError
from pyflame_rt.graph.records import dataclass
from pyflame_rt.memory.pool import global_pool
from pyflame_rt.ops.core.evaluate import Context, run_node, where

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyflame_rt.backends.cpu.ir.kernel_program import Kernel
    from pyflame_rt.backends.cpu.run.parallel_branches import Window
    from pyflame_rt.backends.cpu.run.step_timing import StepClock
    from pyflame_rt.memory.pool import Account

__all__ = ["Arena", "OutOfRange", "Track"]


@dataclass(slots=True)
class Track:
    """Which steps a native plan does: numbers in the order it does them, None where it branches."""

    plan: NativePlan
    numbers: list[int | None]
    lane: int = 0


class OutOfRange(InputError):
    """Native code met an index or a length outside its limits; the interpreter can say which."""


class Arena:
    """Memory for one run at a time, with the steps bound to its addresses."""

    entry: int = 0  # address of what the fast path needs, once it was made

    def __init__(
        self, lowered: Lowered, size: int, threads: int, commit: int = -1, account: Account | None = None
    ) -> None:
        self.lowered = lowered
        self.commit = commit  # the first step that overwrites an input: none, when a kernel refused an index
        self.memory = _allocated(max(size, 64), account)
        self.base = self.memory.ctypes.data
        self.flag = np.zeros(1, np.int64)
        self.cancel = np.zeros(1, np.int64)
        self.streams: list[Stream] = []
        self.memories: list[Memory] = []
        self.keep: list[Any] = []
        count = len(lowered.inputs) + len(lowered.outputs)
        self.io = (ctypes.c_void_p * max(count, 1))()
        self.tracks: list[Track] = []
        self.segments = self._segments(threads)

    # ------------------------------------------------------------------ building

    def _segments(self, threads: int) -> list[NativePlan | HostStep]:
        segments: list[NativePlan | HostStep] = []
        pending: list[int | Window] = []
        windows = {window.begin: window for window in self.lowered.windows}
        at = 0
        while at < len(self.lowered.steps):
            step, window = self.lowered.steps[at], windows.get(at)
            if isinstance(step, HostStep):
                segments += [self._native(pending, threads)] if pending else []
                segments.append(step)
                pending = []
            else:
                pending.append(at if window is None else window)
            at = at + 1 if window is None else window.end
        return segments + ([self._native(pending, threads)] if pending else [])

    def _native(self, items: Sequence[int | Window], threads: int) -> NativePlan:
        """Steps by number, and windows of steps, as one native call."""
        steps = self.lowered.steps
        spans = [(i, i + 1) if isinstance(i, int) else (i.begin, i.end) for i in items]
        numbers = [k for begin, end in spans for k in range(begin, end)]
        made = {k: step.kernel for k in numbers if isinstance(step := steps[k], KernelStep)}
        addresses = dict(zip(made, self._compiled(list(made.values())), strict=True))
        patches: list[Patch] = []
        bound = {k: self._bound(k, addresses.get(k, 0), patches) for k in numbers}
        native = [bound[i] if isinstance(i, int) else self._window(i, bound) for i in items]
        track: list[int | None] = [i if isinstance(i, int) else None for i in items]
        if self.commit in track:
            place = track.index(self.commit)
            native.insert(place, self._check())
            track.insert(place, None)
        plan = self._plan(native, patches, threads)
        if threads > 1 and len(numbers) == len(steps):
            watch(plan, brief=brief(steps))
        plan.processors = processors(threads) if threads > 1 else None
        self.tracks.append(Track(plan, track))
        return plan

    def _check(self) -> NativeStep:
        """A step that ends the run when a kernel has reported an index out of range."""
        places = (ctypes.c_void_p * 1)(self.flag.ctypes.data)
        self.keep.append(places)
        return NativeStep(StepKind.CHECK, None, ctypes.addressof(places), 1, None, 0, 0)

    def _bound(self, number: int, address: int, patches: list[Patch]) -> NativeStep:
        step = self.lowered.steps[number]
        if isinstance(step, KernelStep):
            return self._kernel(step, address, patches)
        assert isinstance(step, DnnStep)
        return self._primitive(step, patches)

    def _window(self, window: Window, bound: Mapping[int, NativeStep]) -> NativeStep:
        """One step for all lists of a window; each list is a plan for one thread."""
        plans = []
        for lane, numbers in enumerate(window.lists):
            plans.append(self._plan([bound[k] for k in numbers], [], 1))
            self.tracks.append(Track(plans[-1], list(numbers), lane))
        pointers = (ctypes.c_void_p * len(plans))(*map(ctypes.addressof, plans))
        self.keep += [pointers, *plans]
        return NativeStep(StepKind.BRANCHES, None, ctypes.addressof(pointers), len(plans), None, 0, 0)

    def _compiled(self, kernels: Sequence[Kernel]) -> list[int]:
        return compile_kernels(kernels)

    def _plan(self, steps: list[NativeStep], patches: list[Patch], threads: int) -> NativePlan:
        step_array, patch_array = (NativeStep * len(steps))(*steps), (Patch * max(len(patches), 1))(*patches)
        self.keep += [step_array, patch_array]
        for number, step in enumerate(steps):
            if step.kind == StepKind.KERNEL:
                follow(step.fn or 0, ctypes.addressof(step_array[number]) + NativeStep.fn.offset, self)
        threading_calls = openmp()
        return NativePlan(
            ctypes.addressof(step_array),
            len(steps),
            ctypes.addressof(patch_array),
            len(patches),
            self.cancel.ctypes.data,
            *self._library_calls(steps, patches),
            threading_calls.parallel if threads > 1 else None,
            threading_calls.thread_num,
            threads,
            0,
            None,
            None,
            budget(threads),
        )

    def _library_calls(
        self, steps: Sequence[NativeStep], patches: Sequence[Patch]
    ) -> tuple[int | None, int | None, int | None]:
        """A stream of the library and what runs its primitives; nothing where no step is one, and no patch for one."""
        alone = all(step.kind != StepKind.PRIMITIVE for step in steps)
        if alone and all(patch.kind != PatchKind.MEMORY for patch in patches):
            return None, None, None
        self.streams.append(Stream())
        return self.streams[-1].handle, address("dnnl_primitive_execute"), address("dnnl_memory_set_data_handle")

    def _kernel(self, step: KernelStep, address: int, patches: list[Patch]) -> NativeStep:
        views, base = step.views, self.base
        # Most views are of the arena: their addresses are worked out here, without a call for each.
        bufs = (ctypes.c_void_p * len(views))(
            *[
                base + v.buffer.offset + (v.byte_offset if v.offset else 0)
                if v.buffer.place is Place.ARENA
                else self.address(v)
                for v in views
            ]
        )
        params = (ctypes.c_int64 * max(len(step.params), 1))(*step.params)
        self.keep += [bufs, params]
        args, sizes = ctypes.addressof(bufs), ctypes.addressof(params)
        for i, view in enumerate(views):
            if view.buffer.place is Place.INPUT or view.buffer.place is Place.OUTPUT:
                slot = args + i * ctypes.sizeof(ctypes.c_void_p)
                patches.append(Patch(PatchKind.POINTER, slot, self._io(view.buffer), view.byte_offset))
        return NativeStep(StepKind.KERNEL, address, args, len(step.views), sizes, step.rows, step.grain, step.pieces)

    def _primitive(self, step: DnnStep, patches: list[Patch]) -> NativeStep:
        memories = {}
        for name, view in step.args.items():
            io = self._io(view.buffer)
            memory = Memory(step.primitive.args[name], 0 if io is not None else self.address(view))
            memories[name] = memory
            if io is not None:
                patches.append(Patch(PatchKind.MEMORY, memory.handle, io, view.byte_offset))
        if step.scratch is not None:
            memories["scratchpad"] = Memory(step.primitive.args["scratchpad"], self.place(step.scratch))
        self.memories += memories.values()
        args, count = step.primitive.exec_args(memories)
        self.keep.append(args)
        fewer = int(step.primitive.takes_fewer_threads)
        return NativeStep(StepKind.PRIMITIVE, step.primitive.handle, ctypes.addressof(args), count, None, 0, 0, fewer)

    def _io(self, buffer: Buffer) -> int | None:
        if buffer.place is Place.INPUT:
            return buffer.index
        return len(self.lowered.inputs) + buffer.index if buffer.place is Place.OUTPUT else None

    def place(self, buffer: Buffer) -> int:
        """Where a buffer of the arena begins."""
        return self.base + buffer.offset

    def address(self, view: View) -> int:
        """Where a view's first element is, for this run."""
        buffer = view.buffer
        if buffer.place is Place.CONSTANT:
            return int(buffer.array.__array_interface__["data"][0]) + view.byte_offset
        io = self._io(buffer)
        if io is not None:
            return (self.io[io] or 0) + view.byte_offset
        if buffer.place is Place.FLAG:
            return int(self.flag.ctypes.data)
        return self.place(buffer) + view.byte_offset

    def array(self, view: View) -> np.ndarray[Any, Any]:
        """A view as a NumPy array on the same memory."""
        dtype = view.dtype.numpy
        if not view.count:
            return np.zeros(view.shape, dtype)
        span = sum((n - 1) * s for n, s in zip(view.shape, view.strides, strict=True)) + 1
        raw = memoryview((ctypes.c_byte * (span * dtype.itemsize)).from_address(self.address(view)))
        return np.ndarray(view.shape, dtype, raw, strides=[s * dtype.itemsize for s in view.strides])

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
        """Run every segment on the caller's arrays."""
        for i, array in enumerate((*inputs, *outputs)):
            self.io[i] = array.ctypes.data
        self.flag[0] = self.cancel[0] = 0
        if check is None or not urgent:
            self._run_segments(check, clock)
            return
        with watched(check, self.cancel):
            self._run_segments(check, clock)

    def _run_segments(self, check: Callable[[], None] | None, clock: StepClock | None) -> None:
        for segment in self.segments:
            if check is not None:
                check()
            begin = 0 if clock is None else time.perf_counter_ns()
            self._run_segment(segment, check)
            if clock is not None and isinstance(segment, HostStep):
                clock.host(begin)

    def _run_segment(self, segment: NativePlan | HostStep, check: Callable[[], None] | None) -> None:
        if isinstance(segment, HostStep):
            self._host(segment, check)
            return
        status = run()(ctypes.addressof(segment), self.io)
        if self.flag[0] and status in (0, self.flag[0]):
            raise OutOfRange("an index or length that the model computed, or was given, is out of range")
        if status:
            self._raise(segment, status, check)

    def _host(self, step: HostStep, check: Callable[[], None] | None) -> None:
        arrays = [None if v is None else self.array(v) for v in step.inputs]
        context, taken = Context.of("numpy"), step.step
        context.check = check
        results = run_node(taken.node, taken.op, dict(taken.attributes), arrays, context, taken.at)
        for view, result in zip(step.outputs, results, strict=False):
            if view is None:
                continue
            if not isinstance(result, np.ndarray) or (result.dtype, result.shape) != (view.dtype.numpy, view.shape):
                kind = getattr(result, "dtype", type(result).__name__)
                raise BackendError(
                    f"{where(step.step.node)} made {kind}{list(getattr(result, 'shape', []))}, "
                    f"planned was {view.dtype.label}{list(view.shape)}"
                )
            if view.count:
                np.copyto(self.array(view), result)

    def _raise(self, plan: NativePlan, status: int, check: Callable[[], None] | None) -> None:
        if check is not None:
            check()
        number = self._failed(plan)
        if number is None:
            raise BackendError(f"a native run failed with status {status}")
        step = self.lowered.steps[number]
        nodes = ", ".join(step.nodes) or "-"
        raise BackendError(f"native step {number}, {step.label} (nodes {nodes}), failed with status {status}")

    def _failed(self, plan: NativePlan) -> int | None:
        """The step at which a plan stopped, as far as it can be told."""
        track = next(track for track in self.tracks if track.plan is plan)
        if plan.failed < 0:
            return None
        number = track.numbers[plan.failed]
        if number is not None:
            return number
        stopped = [t.numbers[t.plan.failed] for t in self.tracks if t.plan is not plan and t.plan.failed > 0]
        return stopped[0] if stopped else None

    def close(self) -> None:
        """Free native objects."""
        unfollow(self)
        for memory in self.memories:
            memory.close()
        self.memories = []
        for stream in self.streams:
            stream.close()


def _allocated(size: int, account: Account | None) -> np.ndarray[Any, Any]:
    try:
        return global_pool().lend(size, account, exact=True)
    except MemoryLimitError:
        raise
    except BackendError as error:
        raise BackendError(f"intermediate values need {size} bytes, which cannot be allocated") from error
