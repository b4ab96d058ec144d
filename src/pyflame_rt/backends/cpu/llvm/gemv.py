"""One row times a packed matrix: a kernel bound by how fast the matrix comes from memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyflame_rt.backends.cpu.llvm.emit import SIGNATURE, emit_rows
from pyflame_rt.backends.cpu.llvm.host import host as this_host
from pyflame_rt.backends.cpu.llvm.ir import Builder, Lanes, V
from pyflame_rt.backends.cpu.llvm.loops import least, load_vector, loop, splat_load, store_vector, tail_mask
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from pyflame_rt.backends.cpu.llvm.host import Host
    from pyflame_rt.backends.cpu.llvm.program import RowKernel

__all__ = ["GemvKernel"]

_UNROLL = 8
_SUMS = 8  # vectors of partial sums, so that additions need not wait for each other


@dataclass(frozen=True)
class GemvKernel:
    """y = x W, float32, W in panels of so many columns: all of its k rows of them, then the next panel.

    bufs: x, W, operands of the epilogue, y. params: [k, n]. rows: ceil(n / panel). A panel is whole vectors.
    ``epilogue`` is a flat kernel over the columns whose output is y, where it finds the sums.
    """

    panel: int
    epilogue: RowKernel | None = None

    @property
    def key(self) -> str:
        """Equal for kernels of equal structure."""
        return f"gemv{self.panel}" + ("" if self.epilogue is None else self.epilogue.key)

    def emit(self, name: str, host: Host | None = None) -> str:
        """The module of the kernel."""
        text = _Emitter(self, host or this_host()).emit(name)
        return text if self.epilogue is None else emit_rows(self.epilogue, f"{name}_after", host) + text


class _Emitter:
    def __init__(self, kernel: GemvKernel, host: Host) -> None:
        self.kernel, self.b = kernel, Builder(host)
        self.at = Lanes(self.b, host.lanes(4))
        self.vectors = kernel.panel // self.at.lanes
        self.sets = max(1, _SUMS // self.vectors)

    def emit(self, name: str) -> str:
        b, kernel = self.b, self.kernel
        b.begin()
        operands = 0 if kernel.epilogue is None else len(kernel.epilogue.inputs)
        self.x, w, y = (b.op(f"load ptr, ptr {b.element('ptr', '%bufs', str(k))}") for k in (0, 1, 2 + operands))
        self.k, n = (b.load_i64("%params", i) for i in range(2))
        stride = b.integer(f"mul {self.k}, {kernel.panel}")

        def panel(p: str, _: list[V]) -> list[V]:
            first = b.integer(f"mul {p}, {kernel.panel}")
            sums = self._panel(b.element("float", w, b.integer(f"mul {p}, {stride}")))
            self._store(sums, b.element("float", y, first), b.integer(f"sub {n}, {first}"))
            return []

        loop(b, "%begin", "%end", 1, [], panel)
        if kernel.epilogue is not None:
            low = b.integer(f"mul %begin, {kernel.panel}")
            high = least(b, b.integer(f"mul %end, {kernel.panel}"), n)
            rest = b.element("ptr", "%bufs", "2")
            b.do(f"call void @{name}_after(ptr {rest}, ptr %params, i64 {low}, i64 {high})")
        b.do("ret void")
        b.end(SIGNATURE.format(name=name))
        return b.text()

    def _panel(self, panel: str) -> list[V]:
        """The sums of the columns of one panel."""
        b, vectors = self.b, self.vectors
        whole = b.integer(f"and {self.k}, {-_UNROLL}")

        def turn(k: str, sums: list[V]) -> list[V]:
            sums = list(sums)
            for u in range(_UNROLL):
                part = slice(u % self.sets * vectors, (u % self.sets + 1) * vectors)
                sums[part] = self._row(panel, k, u, sums[part])
            return sums

        zeros = [self.at.const("float", 0.0)] * (self.sets * vectors)
        sums = loop(b, "0", whole, _UNROLL, zeros, turn)
        while len(sums) > vectors:
            half = len(sums) // 2
            sums = [x + y for x, y in zip(sums[:half], sums[half:], strict=True)]
        return loop(b, whole, self.k, 1, sums, lambda k, now: self._row(panel, k, 0, now))

    def _row(self, panel: str, k: str, ahead: int, sums: list[V]) -> list[V]:
        b, at = self.b, self.at
        scale = splat_load(at, b.element("float", b.element("float", self.x, k), str(ahead)))
        row = b.element("float", panel, b.integer(f"mul {k}, {self.kernel.panel}"))
        places = (b.element("float", row, str(ahead * self.kernel.panel + v * at.lanes)) for v in range(self.vectors))
        return [at.fma(load_vector(at, place), scale, s) for place, s in zip(places, sums, strict=True)]

    def _store(self, sums: list[V], place: str, left: str) -> None:
        """The last panel may have fewer columns."""
        b, lanes = self.b, self.at.lanes
        whole, part, done = b.label("whole"), b.label("part"), b.label("stored")
        b.branch(b.op(f"icmp sge i64 {left}, {self.kernel.panel}"), whole, part)
        b.place(whole)
        for v, value in enumerate(sums):
            store_vector(value, b.element("float", place, str(v * lanes)))
        b.jump(done)
        b.place(part)
        for v, value in enumerate(sums):
            mask = tail_mask(self.at, str(v * lanes), left)
            store_vector(value, b.element("float", place, str(v * lanes)), mask)
        b.jump(done)
        b.place(done)
