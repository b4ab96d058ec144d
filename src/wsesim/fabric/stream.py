"""Bursts of wavelets, the queues between router and processor, and operations that wait for them.

A *segment* is a burst: words with the time of the first and the distance between two. Operations take segments whole,
so the number of events does not grow with the length of a vector. Queues are bounded: an operation may put words into
the fabric only as far as the buffers on their way hold them, plus what the operations at the far ends are waiting for.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from wsesim.fabric.dsd import Circ, FabIn, FabOut, FifoRef, Mem, Mem4
from wsesim.fabric.errors import ProgramFault, ResourceBusy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from wsesim.fabric.dsd import Descriptor
    from wsesim.fabric.machine import Machine
    from wsesim.fabric.ops import OpSpec
    from wsesim.fabric.pe import PE

__all__ = ["Fifo", "Inbox", "Outlet", "Segment", "StreamOp", "descriptor_length", "same_lengths"]

Words = "NDArray[np.uint32]"


class Segment:
    """A burst of wavelets of one colour."""

    __slots__ = ("control", "local", "outlet", "rate", "t", "weight", "words")

    def __init__(
        self,
        words: NDArray[np.uint32],
        t: float,
        rate: float,
        control: bool,
        outlet: Outlet | None,
        weight: float = 1.0,
        local: bool = False,
    ) -> None:
        self.words = words
        self.t = t
        self.rate = rate
        self.control = control
        self.outlet = outlet
        self.weight = weight
        self.local = local

    def copy(self, t: float, weight: float) -> Segment:
        """The same words at another time, as one of several copies."""
        return Segment(self.words, t, self.rate, self.control, self.outlet, weight)

    def credit(self, count: int) -> None:
        """``count`` words have left the fabric."""
        if self.outlet is not None:
            self.outlet.outstanding -= count * self.weight


class Inbox:
    """Words that wait on one colour at one processor."""

    __slots__ = (
        "blocked",
        "cap",
        "color",
        "head",
        "op",
        "pe",
        "pending",
        "priority",
        "queued",
        "segs",
        "task",
        "waiters",
    )

    def __init__(self, pe: PE, color: int, cap: int) -> None:
        self.pe = pe
        self.color = color
        self.cap = cap
        self.segs: deque[Segment] = deque()
        self.head = 0
        self.pending = 0
        self.op: StreamOp | None = None
        self.queued: deque[StreamOp] = deque()
        self.blocked = True
        self.task: Any = None
        self.priority = 0
        self.waiters: list[StreamOp] = []

    def push(self, seg: Segment, now: float) -> None:
        """A segment arrives."""
        self.segs.append(seg)
        self.pending += len(seg.words)
        if self.op is not None:
            self.op.progress(now)
        elif not self.blocked:
            self.pe.wake(now)

    def available(self) -> int:
        """Words of the first segment that are still here."""
        return len(self.segs[0].words) - self.head if self.segs else 0

    def take(self, count: int, now: float) -> tuple[NDArray[np.uint32], float, float]:
        """Removes words of the first segment; also gives the arrival times of the first and the last."""
        seg = self.segs[0]
        start = self.head
        words = seg.words[start : start + count]
        first = seg.t + start * seg.rate
        last = first + (count - 1) * seg.rate
        seg.credit(count)
        self.pending -= count
        self.head += count
        if self.head == len(seg.words):
            self.segs.popleft()
            self.head = 0
        if self.waiters and (self.op is not None or self.pending <= self.cap >> 1):
            self.wake_senders(now)
        return words, first, last

    def wake_senders(self, now: float) -> None:
        """Room or appetite is back: senders may go on."""
        waiting, self.waiters = self.waiters, []
        now = max(now, self.pe.machine.now)
        for op in waiting:
            op.nudge(now)


class Outlet:
    """The way out of one processor on one colour."""

    __slots__ = ("color", "depth", "ends", "link_ids", "machine", "outstanding", "pe", "valid", "visiting", "waiting")

    def __init__(self, pe: PE, color: int, depth: int) -> None:
        self.pe = pe
        self.machine: Machine = pe.machine
        self.color = color
        self.depth = depth
        self.outstanding = 0.0
        self.valid = False
        self.waiting: list[StreamOp] = []
        self.ends: list[tuple[Inbox | None, int, int]] = []
        self.link_ids: list[tuple[int, int]] = []
        self.visiting = False

    def refresh(self) -> None:
        """Traces the route anew if a router on the way has changed since."""
        if not self.valid:
            self.ends, self.link_ids = self.machine.route(self)
            self.valid = True

    def changed(self, now: float) -> None:
        """A router on the way has changed."""
        self.valid = False
        waiting, self.waiting = self.waiting, []
        for op in waiting:
            op.nudge(now)

    def allowance(self, want: int) -> int:
        """Words, at most ``want``, that may enter the fabric now."""
        if not self.machine.bounded:
            return want
        if self.visiting:  # a ring of relays: what is buffered decides
            return 0
        self.refresh()
        self.visiting = True
        best: float = want
        for box, _, cap in self.ends:
            free = cap - self.outstanding
            if box is not None:
                free = cap - max(self.outstanding, box.pending)
                if free < best and box.op is not None:
                    free += box.op.appetite(want)
            best = min(best, free)
        self.visiting = False
        return max(0, int(best + 1e-6))

    def wait(self, op: StreamOp) -> None:
        """Calls ``op`` back when the situation has changed."""
        for box, _, _ in self.ends:
            if box is not None and op not in box.waiters:
                box.waiters.append(op)
        if op not in self.waiting:
            self.waiting.append(op)


class Fifo:
    """A first-in first-out buffer in the PE's memory."""

    __slots__ = ("capacity", "config", "count", "dtype", "first", "hit_empty", "hit_full", "readers", "view", "writers")

    def __init__(self, view: NDArray[Any], config: Any) -> None:
        self.view = view
        self.dtype = view.dtype
        self.capacity = len(view)
        self.config = config
        self.first = 0
        self.count = 0
        self.hit_empty = False
        self.hit_full = False
        self.readers: list[StreamOp] = []
        self.writers: list[StreamOp] = []

    @property
    def free(self) -> int:
        """Elements that still fit."""
        return self.capacity - self.count

    def push(self, values: NDArray[Any]) -> None:
        """Appends; the caller made sure that there is room."""
        at = (self.first + self.count + np.arange(len(values))) % self.capacity
        self.view[at] = values.view(self.dtype) if values.dtype.itemsize == self.dtype.itemsize else values
        self.count += len(values)

    def pop(self, count: int) -> NDArray[Any]:
        """Removes the oldest ``count`` elements."""
        at = (self.first + np.arange(count)) % self.capacity
        self.first = (self.first + count) % self.capacity
        self.count -= count
        return self.view[at]


def to_words(values: NDArray[Any], packed: bool) -> NDArray[np.uint32]:
    """Elements as wavelet payloads: one each, or two 16-bit elements in one with ``packed``.

    >>> to_words(np.array([1, 2], np.uint16), packed=True).tolist()
    [131073]
    """
    if values.dtype.itemsize == 4:
        return np.array(values).view(np.uint32)  # a copy: the memory may change while the words are under way
    if packed:
        if len(values) % 2:
            values = np.append(values, values.dtype.type(0))
        return np.array(values).view(np.uint32)
    return np.ascontiguousarray(values).view(np.uint16).astype(np.uint32)


def from_words(words: NDArray[np.uint32], dtype: np.dtype[Any], packed: bool) -> NDArray[Any]:
    """Inverse of :func:`to_words`; 16-bit elements come from the low half."""
    if dtype.itemsize == 4:
        return words.view(dtype)
    if packed:
        return np.ascontiguousarray(words).view(dtype)
    return (words & 0xFFFF).astype(np.uint16).view(dtype)


class StreamOp:
    """A DSD operation with fabric or FIFO operands, in progress.

    It is a microthread when ``asynchronous``, else the main thread stands still until it is done.
    """

    __slots__ = (
        "active",
        "blocked_on",
        "cost",
        "dst",
        "fifo_dst",
        "inline",
        "inputs",
        "left",
        "nudged",
        "ok",
        "options",
        "outlet",
        "packed_in",
        "packed_out",
        "pe",
        "pos",
        "spec",
        "srcs",
        "t",
    )

    def __init__(self, pe: PE, spec: OpSpec, dst: Any, srcs: tuple[Any, ...], length: int, options: Any) -> None:
        self.pe = pe
        self.spec = spec
        self.dst = dst
        self.srcs = srcs
        self.left = length
        self.pos = 0
        self.t: float = pe.t + pe.machine.timing.dsd_issue
        self.options = options
        self.ok = True
        self.active = False
        self.blocked_on = ""
        self.inline = False
        self.nudged = False
        self.outlet = pe.outlet(dst) if isinstance(dst, FabOut) else None
        self.packed_out = isinstance(dst, FabOut) and dst.simd and spec.dest.itemsize == 2
        self.inputs: list[Inbox] = [pe.inbox(s) for s in srcs if isinstance(s, FabIn)]
        self.packed_in = any(isinstance(s, FabIn) and s.simd for s in srcs) and spec.sources[0].itemsize == 2
        self.fifo_dst = pe.fifos[dst.index] if isinstance(dst, FifoRef) else None
        self.cost = 1.0 / spec.width[pe.machine.arch_index]

    # --- who may run ---------------------------------------------------------------------------------------------

    def start(self, now: float) -> None:
        """Takes its queues, or waits behind the operation that has them."""
        for box in self.inputs:
            if box.op is not None and box.op is not self:
                if self.pe.machine.strict:
                    raise ResourceBusy(
                        f"{self.describe()}: colour {box.color} is still read by {box.op.describe()}; "
                        f"start the second operation when the first has completed"
                    )
                box.queued.append(self)
                self.blocked_on = f"another operation on colour {box.color}"
                return
        for box in self.inputs:
            box.op = self
        self.active = True
        self.progress(now)
        if self.left:
            for box in self.inputs:
                if box.waiters:
                    box.wake_senders(now)

    def nudge(self, now: float) -> None:
        """Room or data may be there: looks again as soon as what it did before is done, once for all who call."""
        if not self.nudged:
            self.nudged = True
            self.pe.machine.at(max(now, self.t), self.resume)

    def resume(self, now: float) -> None:
        """Goes on after waiting for room or for data in a FIFO."""
        self.nudged = False
        if self.active:
            self.t = max(self.t, now)
            self.progress(now)

    def appetite(self, want: int) -> int:
        """Words that this operation would take from its input now, if they came."""
        ratio = 2 if self.packed_in else 1
        take = min(want, -(-self.left // ratio))
        if self.outlet is not None:
            return min(take, self.outlet.allowance(take))
        if self.fifo_dst is not None:
            return min(take, self.fifo_dst.free)
        return take

    # --- progress ------------------------------------------------------------------------------------------------

    def progress(self, now: float) -> None:
        """Does as much as the operands allow."""
        if not self.active:
            return
        while self.left:
            count = self._ready(now)
            if count <= 0:
                if count < 0:
                    self._finish(now)
                return
            self._step(count, now)
        self._finish(now)

    def _ready(self, now: float) -> int:
        """Elements that can be processed now; 0 to wait, -1 to end the operation."""
        count = self.left
        for box in self.inputs:
            words = box.available()
            if not words:
                self.blocked_on = f"wavelets on colour {box.color}"
                return 0
            if box.segs[0].control and self.options is not None and self.options.on_control is not None:
                box.take(1, now)
                self.options = self.options.after_control()
                return -1
            count = min(count, words * (2 if self.packed_in else 1))
        for src in self.srcs:
            if isinstance(src, FifoRef):
                fifo = self.pe.fifos[src.index]
                if not fifo.count:
                    return self._fifo_stop(fifo, fifo.readers, "empty")
                count = min(count, fifo.count)
        if self.fifo_dst is not None:
            if not self.fifo_dst.free:
                return self._fifo_stop(self.fifo_dst, self.fifo_dst.writers, "full")
            count = min(count, self.fifo_dst.free)
        if self.outlet is not None:
            ratio = 2 if self.packed_out else 1
            words = self.outlet.allowance(-(-count // ratio))
            if not words:
                self.blocked_on = f"room on colour {self.outlet.color}"
                self.outlet.wait(self)
                return 0
            count = min(count, words * ratio)
        return count

    def _fifo_stop(self, fifo: Fifo, waiting: list[StreamOp], what: str) -> int:
        if what == "empty":
            fifo.hit_empty = True
            action = fifo.config.empty_action
        else:
            fifo.hit_full = True
            action = fifo.config.full_action
        asynchronous = self.options is not None and self.options.asynchronous
        if action == "fault":
            raise ProgramFault(f"{self.describe()}: the FIFO is {what}")
        if action == "terminate" or (action == "test_or_suspend" and not asynchronous):
            self.ok = action == "terminate"
            return -1
        self.blocked_on = f"a FIFO that is {what}"
        if self not in waiting:
            waiting.append(self)
        return 0

    def _step(self, count: int, now: float) -> None:
        pe, spec = self.pe, self.spec
        begin, end = self.t, self.t
        values: list[Any] = []
        for src, dtype in zip(self.srcs, spec.sources, strict=False):
            if isinstance(src, FabIn):
                ratio = 2 if self.packed_in else 1
                words, first, last = pe.inbox(src).take(-(-count // ratio), now)
                begin = max(begin, first)
                end = max(end, last)
                values.append(from_words(words, dtype, self.packed_in)[:count])
            elif isinstance(src, FifoRef):
                values.append(self._pop(pe.fifos[src.index], count, dtype, now))
            elif isinstance(src, Mem | Mem4 | Circ):
                values.append(pe.read(dtype, src, self.pos, count, self.index))
            else:
                values.append(src)
        end = max(begin + count * self.cost, end + self.cost)
        if self.outlet is not None:  # one word a cycle leaves the processor
            end = max(end, begin + (-(-count // 2) if self.packed_out else count))
        self._store(values, count, begin, end, now)
        pe.busy_cycles += count * self.cost
        self.pos += count
        self.left -= count
        self.t = end

    def _pop(self, fifo: Fifo, count: int, dtype: np.dtype[Any], now: float) -> NDArray[Any]:
        values = fifo.pop(count)
        if fifo.hit_full:
            fifo.hit_full = False
            if fifo.config.activate_pop is not None:
                self.pe.activate(fifo.config.activate_pop, now)
        waiting, fifo.writers = fifo.writers, []
        for op in waiting:
            op.nudge(now)
        return values.view(dtype) if values.dtype.itemsize == dtype.itemsize else values.astype(dtype)

    @property
    def index(self) -> int:
        """Value of the ``.index`` option."""
        return 0 if self.options is None else self.options.index

    def _store(self, values: list[Any], count: int, begin: float, end: float, now: float) -> None:
        pe, spec, dst = self.pe, self.spec, self.dst
        if isinstance(dst, Mem | Mem4 | Circ):
            pe.combine(spec, dst, self.srcs, values, self.pos, count, self.index)
            return
        result = np.asarray(spec.compute(*values))
        if result.dtype != spec.dest:
            result = result.astype(spec.dest)
        if result.ndim == 0 or len(result) != count:
            result = np.broadcast_to(result, (count,))
        if self.fifo_dst is not None:
            self._push(self.fifo_dst, result, now)
            return
        assert self.outlet is not None
        words = to_words(result, self.packed_out)
        if dst.indexed:
            words = words | np.uint32((self.index & 0xFFFF) << 16)
        rate = max(1.0, (end - begin) / max(1, len(words)))
        self.outlet.machine.inject(self.outlet, words, begin + self.cost, rate, dst.control)
        if dst.advance and count == self.left:
            self.outlet.machine.advance_local(self.outlet, end + self.cost)

    def _push(self, fifo: Fifo, values: NDArray[Any], now: float) -> None:
        fifo.push(values)
        if fifo.hit_empty:
            fifo.hit_empty = False
            if fifo.config.activate_push is not None:
                self.pe.activate(fifo.config.activate_push, now)
        waiting, fifo.readers = fifo.readers, []
        for op in waiting:
            op.nudge(now)

    def _finish(self, now: float) -> None:
        self.active = False
        self.left = 0
        if isinstance(self.dst, FabOut) and self.dst.zero:
            which = 0 if self.dst.zero == "first_source" else -1
            target = self.srcs[which]
            if isinstance(target, Mem | Mem4 | Circ):
                self.pe.clear(self.spec.sources[which], target, self.pos)
        for box in self.inputs:
            box.op = None
        if not self.inline:
            self.pe.machine.at(max(self.t, now), self._complete)

    def _complete(self, now: float) -> None:
        for box in self.inputs:
            if box.queued and box.op is None:
                box.queued.popleft().start(now)
            elif box.segs and box.op is None and not box.blocked:
                self.pe.wake(now)
        self.pe.operation_done(self, now)

    def describe(self) -> str:
        """Name and place, for messages."""
        return f"@{self.spec.name} on PE ({self.pe.x}, {self.pe.y})"


def descriptor_length(dst: Descriptor | None, srcs: tuple[Any, ...]) -> int:
    """Number of elements of an operation: the first source vector decides, else the destination; FIFOs never do."""
    for src in srcs:
        if isinstance(src, Mem | Mem4 | Circ | FabIn):
            return src.length
    if isinstance(dst, Mem | Mem4 | Circ | FabOut):
        return dst.length
    return 1


def same_lengths(name: str, dst: Any, srcs: Sequence[Any], where: str) -> None:
    """Strict mode: the vectors of an operation have one length; scalars, pointers and FIFOs have none."""
    lengths = [x.length for x in (dst, *srcs) if isinstance(x, Mem | Mem4 | Circ | FabIn | FabOut)]
    if any(n != lengths[0] for n in lengths):
        raise ProgramFault(
            f"{where}: the vectors of @{name} differ in length, destination first: {', '.join(map(str, lengths))}"
        )
