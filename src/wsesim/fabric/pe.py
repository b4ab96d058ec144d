"""One processing element: memory, descriptors in registers, tasks, and the thread that runs them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from wsesim.fabric.dsd import Circ, FabIn, FabOut, FifoRef, Mem, Mem4
from wsesim.fabric.errors import ProgramFault, QueueNotInitialized
from wsesim.fabric.memory import Memory
from wsesim.fabric.stream import Fifo, Inbox, Outlet, StreamOp, descriptor_length, same_lengths
from wsesim.fabric.timing import INPUT_QUEUE_WORDS, OUTPUT_QUEUE_WORDS, simd_width

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from numpy.typing import NDArray

    from wsesim.csl.program.elaborated import PeProgram
    from wsesim.fabric.bounds import Bounds
    from wsesim.fabric.dsd import Descriptor
    from wsesim.fabric.machine import Machine
    from wsesim.fabric.ops import OpSpec

__all__ = ["PE", "Dsr", "LocalTask", "Options"]

TEARDOWN_TASK = 29
_FAULTS = (ProgramFault, IndexError, ValueError, TypeError, OverflowError, RecursionError, AttributeError)
STACK_BYTES = 1024
LOOK_CYCLES = 1 << 14  # of loops in tasks, between two looks at the watchdog


class Dsr:
    """A data structure register named in the program."""

    __slots__ = ("file", "id")

    def __init__(self, file: str, number: int) -> None:
        self.file = file
        self.id = number


@dataclass(frozen=True)
class Options:
    """Options of an operation; ``unblock`` is ``(handle type, id)``."""

    asynchronous: bool = False
    activate: int | None = None
    unblock: tuple[str, int] | None = None
    on_control: tuple[int | None, tuple[str, int] | None] | None = None
    index: int = 0
    save_address: bool = False
    priority: str = ""
    ut_id: int | None = None

    def after_control(self) -> Options:
        """What remains to be done when a control wavelet has ended the operation."""
        assert self.on_control is not None
        activate, unblock = self.on_control
        return replace(self, activate=activate, unblock=unblock, on_control=None)


NO_OPTIONS = Options()


@lru_cache(maxsize=4096)
def merged(options: Options, loaded: Options) -> Options:
    """Options of an operation, completed by those that one of its registers was loaded with."""
    return replace(
        options,
        asynchronous=True,
        activate=loaded.activate if options.activate is None else options.activate,
        unblock=loaded.unblock if options.unblock is None else options.unblock,
        on_control=loaded.on_control if options.on_control is None else options.on_control,
    )


class LocalTask:
    """State of a local task id."""

    __slots__ = ("active", "blocked", "fn", "id", "name", "priority", "since", "stalls")

    def __init__(self, number: int, fn: Callable[..., Any], stalls: bool, name: str) -> None:
        self.id = number
        self.fn = fn
        self.stalls = stalls
        self.name = name
        self.active = False
        self.blocked = False
        self.since = 0.0
        self.priority = 0


class PE(Memory):
    """A processing element of the simulated rectangle."""

    def __init__(
        self, machine: Machine, x: int, y: int, program: PeProgram, row: NDArray[np.uint8], bounds: Bounds
    ) -> None:
        super().__init__(row, bounds, f"PE ({x}, {y})", strict=machine.strict)
        self.machine = machine
        self.x = x
        self.y = y
        self.program = program
        self.code: Any = None
        self.t: float = 0.0
        self.free_at: float = 0.0
        self.running: Generator[StreamOp, bool, Any] | None = None
        self.stalled: StreamOp | None = None
        self.task_name = ""
        self.task_began: float = 0.0
        self.due: float = 0.0  # when a loop looks at the watchdog next
        self.pick_at: float | None = None
        self.sp = 0
        self.dsrs: dict[tuple[str, int], tuple[Descriptor, Options]] = {}
        self.fifos: list[Fifo] = []
        self.objects: dict[str, list[Any]] = {}
        self.boxes: dict[int, Inbox] = {}
        self.outlets: dict[tuple[int, int], Outlet] = {}
        self.local: dict[int, LocalTask] = {}
        self.control: dict[int, tuple[Callable[..., Any], bool, str, int]] = {}
        self.in_colors: dict[int, int] = {}
        self.out_colors: dict[int, int] = {}
        self.microthreads: set[StreamOp] = set()
        self.ready: set[int] = set()
        self.library: dict[Any, Any] = {}
        self.busy_cycles: float = 0.0
        self.tasks_run = 0
        self.ops_run = 0
        self.flops = 0
        self.cmd_blocked = False
        self.calls = 0
        self.tsc_base: float = 0.0
        self.prng = 0xDEADBEEF
        self.teardown_pending = 0

    def warn(self, text: str) -> None:
        """Says what strict mode refuses, once."""
        self.machine.warn(text, self.t)

    def went_beyond(self) -> None:
        """Native code used a vector that leaves its variable."""
        self.warn(f"{self.where}: task {self.task_name!r} uses a vector that reaches beyond its variable")

    # --- queues ------------------------------------------------------------------------------------------------

    def color_of(self, color: int | None, queue: int | None, out: bool) -> int:
        """The colour that a fabric descriptor means."""
        bound = self.out_colors if out else self.in_colors
        if queue is not None and queue in bound:
            return bound[queue]
        if color is not None and (self.machine.arch == "wse2" or queue is None or not self.machine.strict):
            return color
        raise QueueNotInitialized(
            f"{self.where}: {'output' if out else 'input'} queue {queue} is used but was never bound to a colour; "
            f"call @initialize_queue in a comptime block"
        )

    def inbox(self, dsd: FabIn) -> Inbox:
        """The queue that a fabric input vector reads."""
        return self.box(self.color_of(dsd.color, dsd.queue, out=False), dsd.queue)

    def box(self, color: int, queue: int | None = None) -> Inbox:
        """The queue of a colour."""
        box = self.boxes.get(color)
        if box is None:
            depths = INPUT_QUEUE_WORDS[self.machine.arch]
            box = self.boxes[color] = Inbox(self, color, depths[queue if queue is not None else 7])
        return box

    def outlet(self, dsd: FabOut) -> Outlet:
        """The way out that a fabric output vector writes."""
        color = self.color_of(dsd.color, dsd.queue, out=True)
        depths = OUTPUT_QUEUE_WORDS[self.machine.arch]
        return self.outlet_of(color, depths[dsd.queue] if dsd.queue is not None and dsd.queue < len(depths) else 2)

    def outlet_of(self, color: int, depth: int) -> Outlet:
        """The way out on a colour."""
        out = self.outlets.get((color, depth))
        if out is None:
            out = self.outlets[(color, depth)] = Outlet(self, color, depth)
        return out

    # --- tasks ---------------------------------------------------------------------------------------------------

    def activate(self, number: int, now: float | None = None) -> None:
        """``@activate`` of a local task."""
        task = self.local.get(number)
        if task is None:
            if number == TEARDOWN_TASK:
                return
            raise ProgramFault(f"{self.where}: local task id {number} is activated but no task is bound to it")
        when = self.t if now is None else now
        if not task.active:
            task.active = True
            task.since = when
        if not task.blocked:
            self.ready.add(number)
            self.wake(when)

    def block(self, kind: str, number: int) -> None:
        """``@block``."""
        if kind == "local_task_id":
            task = self.local.get(number)
            if task is not None:
                task.blocked = True
                self.ready.discard(number)
        elif kind != "ut_id":
            self.box(self._color_of_handle(kind, number)).blocked = True

    def unblock(self, kind: str, number: int, now: float | None = None) -> None:
        """``@unblock``."""
        when = self.t if now is None else now
        if kind == "local_task_id":
            task = self.local.get(number)
            if task is not None:
                task.blocked = False
                if task.active:
                    self.ready.add(number)
                    self.wake(when)
        elif kind != "ut_id":
            box = self.box(self._color_of_handle(kind, number))
            box.blocked = False
            if box.segs:
                self.wake(when)

    def _color_of_handle(self, kind: str, number: int) -> int:
        if kind == "input_queue" or (kind == "data_task_id" and self.machine.arch == "wse3"):
            return self.color_of(None, number, out=False)
        return number

    def wake(self, when: float) -> None:
        """Looks for a task to run at ``when``, or as soon as the main thread is free."""
        if self.running is not None:
            return
        when = max(when, self.free_at, self.machine.now)
        if self.pick_at is None or when < self.pick_at:
            self.pick_at = when
            self.machine.at(when, self.pick)

    def _candidates(self, now: float) -> tuple[tuple[Any, ...] | None, float | None]:
        """The task to run now, and else when one may become runnable."""
        best: tuple[Any, ...] | None = None
        later: float | None = None
        for number in self.ready:
            task = self.local[number]
            if task.since > now:
                later = task.since if later is None else min(later, task.since)
                continue
            key = (-task.priority, task.since, 1, number)
            if best is None or key < best[0]:
                best = (key, task, None)
        for box in self.boxes.values():
            if box.blocked or box.op is not None or not box.segs:
                continue
            seg = box.segs[0]
            arrival = seg.t + box.head * seg.rate
            if arrival > now:
                later = arrival if later is None else min(later, arrival)
                continue
            key = (-box.priority, arrival, 0, box.color)
            if best is None or key < best[0]:
                best = (key, None, box)
        return best, later

    def pick(self, now: float) -> None:
        """The task picker."""
        if self.pick_at is None or now < self.pick_at:
            return
        self.pick_at = None
        if self.running is not None:
            return
        if now < self.free_at:
            self.wake(self.free_at)
            return
        best, later = self._candidates(now)
        if best is None:
            if later is not None:
                self.wake(later)
            return
        _, task, box = best
        if task is not None:
            task.active = False
            self.ready.discard(task.id)
            if task.id < 0:
                del self.local[task.id]
            self._launch(task.fn, task.stalls, (), task.name, now)
        else:
            self._launch_wavelet(box, now)

    def _launch_wavelet(self, box: Inbox, now: float) -> None:
        seg = box.segs[0]
        words, _, _ = box.take(1, now)
        word = int(words[0])
        if seg.control:
            entry = self.control.get((word >> 16) & 0x3F)
            if entry is not None:
                fn, stalls, name, args = entry
                given = ((word & 0xFFFF), (word >> 16) & 0xFFFF)[:args]
                self._launch(fn, stalls, given, name, now)
                return
            local = self.local.get((word >> 16) & 0x3F)
            if local is not None and self.machine.arch == "wse2":
                self._launch(local.fn, local.stalls, (), local.name, now)
                return
            self.wake(now)
            return
        if box.task is None:
            self.machine.dropped[(self.x, self.y, box.color)] += 1
            self.wake(now)
            return
        fn, stalls, name, unpack = box.task
        self._launch(fn, stalls, unpack(word), name, now)

    def _launch(self, fn: Callable[..., Any], stalls: bool, args: tuple[Any, ...], name: str, now: float) -> None:
        self.t = self.task_began = now
        self.t += self.machine.timing.task_start
        self.due = self.t + LOOK_CYCLES
        self.task_name = name
        self.tasks_run += 1
        if stalls:
            self.running = fn(self, *args)
            self._advance(None)
            return
        try:
            fn(self, *args)
        except _FAULTS as e:
            raise self._faulted(e) from e
        self._ended()

    def call(self, fn: Callable[..., Any], stalls: bool, args: tuple[Any, ...], name: str, now: float) -> None:
        """Runs an exported function as a task as soon as the main thread is free."""
        self.calls += 1
        number = -self.calls
        task = LocalTask(number, lambda pe: fn(pe, *args), stalls, name)
        self.local[number] = task
        task.active = True
        task.since = now
        self.ready.add(number)
        self.wake(now)

    def _advance(self, value: bool | None) -> None:
        assert self.running is not None
        try:
            op = self.running.send(value)  # type: ignore[arg-type]
        except StopIteration:
            self.running = None
            self._ended()
            return
        except _FAULTS as e:
            raise self._faulted(e) from e
        self.stalled = op

    def look(self, extra: float = 0.0) -> None:
        """Called by loops of tasks now and then, native ones ``extra`` cycles ahead of the clock: may stop the run."""
        self.due = self.t + extra + LOOK_CYCLES
        self.machine.look(self.t + extra)

    def _faulted(self, error: Exception) -> ProgramFault:
        """What generated code ran into, with the place in the CSL source."""
        if isinstance(error, ProgramFault) and error.placed:
            return error
        where = ""
        step = error.__traceback__
        while step is not None:
            if step.tb_frame.f_code.co_filename.startswith("<csl "):
                positions = self.code.positions
                where = f"{positions[min(step.tb_lineno, len(positions)) - 1]}: "
            step = step.tb_next
        what = "an access outside the PE's memory" if isinstance(error, IndexError) else str(error)
        if isinstance(error, ProgramFault):
            what = error.message.removeprefix(f"{self.where}: ")
        return ProgramFault(f"{where}task {self.task_name!r} on {self.where}: {what}", placed=True)

    def _ended(self) -> None:
        self.free_at = self.t
        self.busy_cycles += self.t - self.task_began
        if self.machine.timeline is not None:
            self.machine.task_ran(self, self.task_began, self.t)
        if self.ready or any(box.segs for box in self.boxes.values()):
            self.wake(self.t)

    def operation_done(self, op: StreamOp, now: float) -> None:
        """An operation with fabric operands has completed."""
        self.ops_run += 1
        if op is self.stalled:
            self.stalled = None
            self.t = max(self.t, now)
            self._advance(op.ok)
            return
        self.microthreads.discard(op)
        options: Options = op.options
        if options.activate is not None:
            self.activate(options.activate, now)
        if options.unblock is not None:
            self.unblock(options.unblock[0], options.unblock[1], now)

    # --- operations ----------------------------------------------------------------------------------------------

    def load_dsr(self, dsr: Dsr, dsd: Descriptor, options: Options) -> None:
        """``@load_to_dsr``."""
        self.dsrs[(dsr.file, dsr.id)] = (dsd, options)
        self.t += self.machine.timing.dsr_load

    def mem_op(self, spec: OpSpec, dst: Any, srcs: tuple[Any, ...], index: int = 0) -> bool:
        """An operation whose operands all lie in memory."""
        self.ops_run += 1
        count = -1
        for src in srcs:
            if type(src) is Mem or isinstance(src, Mem4 | Circ):
                count = src.length
                break
        if count < 0:
            count = descriptor_length(dst, srcs)
        self.t += self.machine.timing.dsd_issue
        if self.strict:
            same_lengths(spec.name, dst, srcs, self.where)
        if not count:
            return True
        if type(dst) is not Mem or dst.stride <= 0 or not self._simple(spec, dst, srcs, count):
            self._general(spec, dst, srcs, count, index)
        width = spec.width[self.machine.arch_index]
        if width > 1:
            width = simd_width(width, tuple([o.stride for o in (dst, *srcs) if type(o) is Mem]))
        self.t += -(-count // width)
        return True

    def _simple(self, spec: OpSpec, dst: Mem, srcs: tuple[Any, ...], count: int) -> bool:
        """The common case: positive strides, vectors that do not overlap or are the same. Tells whether it was that."""
        daddr, dstride = dst.addr, dst.stride
        size = spec.dest.itemsize
        dend = daddr + ((count - 1) * dstride + 1) * size
        low, high = self.ranges[dst.home]
        if dst.indexed or daddr % size or daddr < low or dend > high:
            return False
        values: list[Any] = []
        for src, kind, floats in zip(srcs, spec.sources, spec.float_sources, strict=True):
            if type(src) is not Mem:
                if isinstance(src, Mem4 | Circ):
                    return False
                values.append(src if floats and type(src) is float else kind.type(wrap(kind, src)))
                continue
            addr, stride, bytes_ = src.addr, src.stride, kind.itemsize
            end = addr + ((count - 1) * stride + 1) * bytes_
            low, high = self.ranges[src.home]
            if src.indexed or stride <= 0 or addr % bytes_ or addr < low or end > high:
                return False
            if (addr != daddr or stride != dstride or bytes_ != size) and addr < dend and daddr < end:
                return False
            values.append(self.views[kind][addr // bytes_ : end // bytes_ : stride])
        spec.into(self.views[spec.dest][daddr // size : dend // size : dstride], *values)
        return True

    def _general(self, spec: OpSpec, dst: Any, srcs: tuple[Any, ...], count: int, index: int) -> None:
        dst, srcs = self._scalar_destination(spec, dst, srcs, count)
        values = [
            self.read(kind, s, 0, count, index) if isinstance(s, Mem | Mem4 | Circ) else kind.type(wrap(kind, s))
            for s, kind in zip(srcs, spec.sources, strict=True)
        ]
        self.combine(spec, dst, srcs, values, 0, count, index)

    def _scalar_destination(
        self, spec: OpSpec, dst: Any, srcs: tuple[Any, ...], count: int
    ) -> tuple[Any, tuple[Any, ...]]:
        """A pointer as destination is a vector of stride 0; with a scalar first source the operation accumulates."""
        if type(dst) is not int:
            return dst, srcs
        target = Mem(dst, count, 0, home=self.bounds.owner(dst))
        if len(srcs) > 1 and isinstance(srcs[0], int | float | np.generic):
            self.vector(spec.dest, target, 0, 1)[0] = spec.dest.type(wrap(spec.dest, srcs[0]))
            srcs = (target, *srcs[1:])
        return target, srcs

    def resolve(self, operand: Any, options: Options) -> tuple[Any, Options]:
        """What a register holds, with the options it was loaded with."""
        if not isinstance(operand, Dsr):
            return operand, options
        try:
            dsd, loaded = self.dsrs[(operand.file, operand.id)]
        except KeyError:
            raise ProgramFault(f"{self.where}: {operand.file} {operand.id} is used before @load_to_dsr") from None
        return dsd, merged(options, loaded) if loaded.asynchronous else options

    def run_op(self, spec: OpSpec, dst: Any, srcs: tuple[Any, ...], options: Options) -> StreamOp | bool:
        """Any operation: starts a microthread, or returns the operation that the main thread must wait for."""
        target = dst
        dst, options = self.resolve(dst, options) if isinstance(dst, Dsr) else (dst, options)
        operands = srcs
        if any(isinstance(s, Dsr) for s in srcs):
            found: list[Any] = []
            for src in srcs:
                value, options = self.resolve(src, options)
                found.append(value)
            operands = tuple(found)
        fabric = isinstance(dst, FabOut | FifoRef) or any(isinstance(s, FabIn | FifoRef) for s in operands)
        if not fabric:
            done = self.mem_op(spec, dst, operands, options.index)
            self._save_addresses((spec.dest, *spec.sources), (target, *srcs), descriptor_length(dst, operands))
            return done
        return self._stream(spec, dst, operands, options)

    def _stream(self, spec: OpSpec, dst: Any, srcs: tuple[Any, ...], options: Options) -> StreamOp | bool:
        count = self._fifo_length(dst, srcs, descriptor_length(dst, srcs))
        if self.strict:
            same_lengths(spec.name, dst, srcs, self.where)
        dst, srcs = self._scalar_destination(spec, dst, srcs, count)
        fixed = tuple(
            kind.type(wrap(kind, s)) if isinstance(s, int | float | np.generic) else s
            for s, kind in zip(srcs, spec.sources, strict=True)
        )
        op = StreamOp(self, spec, dst, fixed, count, options)
        if options.asynchronous:
            self.microthreads.add(op)
            self.machine.at(max(self.t, self.machine.now), op.start)
            return True
        if not op.inputs:  # nothing to wait for but room: most often done at once
            op.inline = True
            op.start(self.t)
            op.inline = False
            if not op.active:
                self.t = max(self.t, op.t)
                self.ops_run += 1
                return op.ok
            return op
        self.machine.at(max(self.t, self.machine.now), op.start)
        return op

    def _fifo_length(self, dst: Any, srcs: tuple[Any, ...], count: int) -> int:
        """A length set with ``@set_fifo_read_length`` or ``@set_fifo_write_length`` holds for one operation."""
        if isinstance(dst, FifoRef):
            count = self.library.pop(("fifo_write", dst.index), count)
        for src in srcs:
            if isinstance(src, FifoRef):
                count = self.library.pop(("fifo_read", src.index), count)
        return count

    def _save_addresses(self, kinds: tuple[np.dtype[Any], ...], operands: tuple[Any, ...], count: int) -> None:
        for src, kind in zip(operands, kinds, strict=False):
            if isinstance(src, Dsr):
                dsd, options = self.dsrs[(src.file, src.id)]
                if options.save_address and isinstance(dsd, Mem):
                    moved = dsd.moved(count * dsd.stride * kind.itemsize)
                    self.dsrs[(src.file, src.id)] = (moved, options)


def wrap(kind: np.dtype[Any], value: Any) -> Any:
    """A scalar in the range of an integer element type.

    >>> wrap(np.dtype(np.uint16), -1)
    65535
    """
    if kind.kind == "u":
        return int(value) & (0xFFFF if kind.itemsize == 2 else 0xFFFFFFFF)
    if kind.kind == "i":
        return ((int(value) + 0x8000) & 0xFFFF) - 0x8000
    return value
