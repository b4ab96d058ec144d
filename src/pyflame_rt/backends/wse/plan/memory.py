"""Memory of a PE: which buffers share an array, what kernels need besides, and which grid is large enough."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyflame_rt.backends.wse.emit.shifted_products import words_of
from pyflame_rt.backends.wse.emit.sliding_windows import slide_scratch
from pyflame_rt.backends.wse.plan.kernels import INTEGERS, MapKernel, MatMul, Put, Slide, Spread, Take

if TYPE_CHECKING:
    from pyflame_rt.backends.wse.plan.kernels import Kernel, PeBuffer, WaferPlan

__all__ = ["plan_memory"]


def plan_memory(plan: WaferPlan, *, share: bool = True) -> WaferPlan:
    """Give every buffer an array; with ``share``, buffers whose times do not meet use the same one."""
    _Slots(plan, share).run()
    for kernel in plan.kernels:
        for name, count in _scratch(kernel).items():
            kind = "u32" if name.startswith("spread") else "f32"
            have = plan.scratch.get(name, (kind, 0))[1]
            plan.scratch[name] = (kind, max(have, count))
    return plan


def _scratch(kernel: Kernel) -> dict[str, int]:
    """Arrays that a kernel uses while it runs."""
    if isinstance(kernel, Spread):
        names = [n for n, on in (("spread_hold", kernel.axes), ("spread_pass", "y" in kernel.axes)) if on]
        return dict.fromkeys(names, kernel.source.tiling.elements)
    if isinstance(kernel, Slide):
        found = slide_scratch(kernel)
        return found if kernel.out.dtype == "f32" else {**found, "wide": kernel.out.tiling.elements}
    wide = kernel.out.dtype not in ("f32", *INTEGERS)
    if isinstance(kernel, (MapKernel, Put)) or (isinstance(kernel, Take) and not kernel.axes):
        return {}
    found = {"wide": kernel.out.tiling.elements} if wide else {}
    if isinstance(kernel, MatMul) and kernel.how == "summa":
        grid = kernel.out.tiling.grid
        rows, inner = kernel.a.tiling.tile[-2:]
        deep, cols = kernel.b.tiling.tile[-2:]
        block = min(inner, deep)
        if grid.cols > 1 or wide:
            found["block_a"] = rows * block
        if grid.rows > 1 or wide:
            found["block_b"] = block * cols
    elif isinstance(kernel, MatMul) and kernel.how == "shift":
        grid = kernel.out.tiling.grid
        sides = (("a", grid.cols, kernel.a, kernel.keep_a), ("b", grid.rows, kernel.b, kernel.keep_b))
        for side, pes, buffer, kept in sides:
            if pes > 1:
                found[f"block_{side}"] = words_of(buffer)
            if pes > 1 and kept:
                found[f"other_{side}"] = words_of(buffer)
        if wide:
            found["row_b"] = kernel.b.tiling.tile[-1]
    elif isinstance(kernel, MatMul) and wide:
        found["block_b"] = kernel.b.tiling.tile[-1]
    return found


class _Slots:
    def __init__(self, plan: WaferPlan, share: bool) -> None:
        self.plan = plan
        self.share = share
        self.last: dict[PeBuffer, int] = {}
        self.free: list[str] = []
        self.ahead: dict[PeBuffer, PeBuffer] = {}
        for i, kernel in enumerate(plan.kernels):
            for buffer in (kernel.out, *kernel.reads()):
                self.last[buffer.root] = i

    def run(self) -> None:
        plan = self.plan
        if self.share:
            self._look_ahead()
            self._hosted()
        else:
            for buffer in plan.buffers:
                if buffer.shares is None:
                    self._own(buffer)
        for i, kernel in enumerate(plan.kernels):
            out = kernel.out.root
            if not out.slot:
                self._place(out, kernel, i)
            for buffer in dict.fromkeys(b.root for b in (kernel.out, *kernel.reads())):
                held = any(b.slot == buffer.slot and (b.pinned or self.last[b] > i) for b in self.last)
                if self.last[buffer] == i and self.share and not held and buffer.slot not in self.free:
                    self.free.append(buffer.slot)
        for buffer in plan.buffers:
            buffer.slot = buffer.root.slot

    def _look_ahead(self) -> None:
        """An operand that ends where a result of the host's begins is made in that result's memory."""
        filled = {move.target for phase in self.plan.phases for move in phase.moves}
        for i, kernel in reversed(list(enumerate(self.plan.kernels))):
            out = kernel.out.root
            if not isinstance(kernel, MapKernel) or not (out.pinned or out in self.ahead) or out in filled:
                continue
            for operand in kernel.operands:
                root = operand.root
                if not root.pinned and self._in_place(operand, kernel, i) and root not in self.ahead:
                    self.ahead[root] = self.ahead.get(out, out)
                    break

    def _hosted(self) -> None:
        """Arrays of what the host fills or reads: shared by buffers whose phases do not meet."""
        spans = self._spans()
        ends: dict[str, int] = {}
        for buffer in sorted(spans, key=lambda b: (spans[b][0], -b.tiling.elements)):
            first, last = spans[buffer]
            slots = self.plan.slots
            fitting = [s for s, end in ends.items() if end < first and slots[s][0] == buffer.dtype]
            if fitting:
                need = buffer.tiling.elements
                buffer.slot = min(fitting, key=lambda s: abs(slots[s][1] - need))
                slots[buffer.slot] = (buffer.dtype, max(need, slots[buffer.slot][1]))
            else:
                self._own(buffer)
            ends[buffer.slot] = last

    def _spans(self) -> dict[PeBuffer, tuple[int, int]]:
        """First and last phase of every buffer that the host touches, and of what is made in its memory."""
        touched: dict[PeBuffer, list[int]] = {}
        for number, phase in enumerate(self.plan.phases):
            moved = [b for move in phase.moves for b in (move.target, *move.reads)]
            for buffer in (*moved, *[b for k in phase.kernels for b in (k.out, *k.reads())]):
                touched.setdefault(buffer.root, []).append(number)
        for output in self.plan.outputs:
            for buffer in output.reads:
                touched.setdefault(buffer.root, []).append(len(self.plan.phases))
        for buffer, target in self.ahead.items():
            touched[target] += touched[buffer]
        return {b: (min(seen), max(seen)) for b, seen in touched.items() if b.pinned}

    def _in_place(self, operand: PeBuffer, kernel: MapKernel, now: int) -> bool:
        """Whether a kernel may write its result over an operand."""
        same = operand.root.dtype == kernel.out.dtype and operand.tiling.same_tiles(kernel.out.tiling)
        return same and self.last[operand.root] == now

    def _own(self, buffer: PeBuffer) -> None:
        buffer.slot = f"m{len(self.plan.slots)}"
        self.plan.slots[buffer.slot] = (buffer.dtype, buffer.tiling.elements)

    def _place(self, out: PeBuffer, kernel: Kernel, now: int) -> None:
        """In memory waiting for it, or over an operand that ends here, or in a free array, or in a new one."""
        if out in self.ahead:
            out.slot = self.ahead[out].slot
            return
        if isinstance(kernel, MapKernel):
            for operand in kernel.operands:
                if not operand.root.pinned and self._in_place(operand, kernel, now):
                    out.slot = operand.root.slot
                    return
        need = out.tiling.elements
        fitting = [s for s in self.free if self.plan.slots[s][0] == out.dtype]
        if not fitting:
            self._own(out)
            return
        enough = [s for s in fitting if self.plan.slots[s][1] >= need]
        slot = min(enough, key=lambda s: self.plan.slots[s][1]) if enough else fitting[-1]
        self.free.remove(slot)
        out.slot = slot
        self.plan.slots[slot] = (out.dtype, max(need, self.plan.slots[slot][1]))
