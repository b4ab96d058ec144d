"""One row times a packed matrix: a kernel bound by how fast the matrix comes from memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyflame_rt.backends.cpu.ir.builder import Builder, Lanes, V
from pyflame_rt.backends.cpu.ir.instructions import stored
from pyflame_rt.backends.cpu.ir.loops import least, loop, splat_load, store_vector, tail_mask
from pyflame_rt.backends.cpu.jit.target import host as this_host
from pyflame_rt.backends.cpu.kernels.row_loops import SIGNATURE, emit_rows
from pyflame_rt.backends.cpu.kernels.tiles.register_tile import load_weights
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from pyflame_rt.backends.cpu.ir.kernel_program import RowKernel
    from pyflame_rt.backends.cpu.jit.target import Host

__all__ = ["GemvKernel"]

_UNROLL = 4
# Panels read side by side: one stream of memory does not keep a core's prefetch busy, four give a quarter more.
_STREAMS = 4


@dataclass(frozen=True)
class GemvKernel:
    """y = x W, float32, W in panels of so many columns: all of its k rows of them, then the next panel.

    ``weights`` is the type of W, whose numbers become float32 in registers.

    bufs: x, W, operands of the epilogue, y. params: [k, n]. rows: ceil(n / panel). A panel is whole vectors.
    ``epilogue`` is a flat kernel over the columns whose output is y, where it finds the sums.
    """

    panel: int
    epilogue: RowKernel | None = None
    weights: str = "float32"

    @property
    def key(self) -> str:
        """Equal for kernels of equal structure."""
        narrow = "" if self.weights == "float32" else f" {self.weights} "
        return f"gemv{self.panel}{narrow}" + ("" if self.epilogue is None else self.epilogue.key)

    def emit(self, name: str, host: Host | None = None) -> str:
        """The module of the kernel."""
        text = _GemvEmitter(self, host or this_host()).emit(name)
        return text if self.epilogue is None else emit_rows(self.epilogue, f"{name}_after", host) + text


class _GemvEmitter:
    def __init__(self, kernel: GemvKernel, host: Host) -> None:
        self.kernel, self.b = kernel, Builder(host)
        self.at = Lanes(self.b, host.lanes(4))
        self.vectors = kernel.panel // self.at.lanes

    def emit(self, name: str) -> str:
        b, kernel = self.b, self.kernel
        b.begin()
        operands = 0 if kernel.epilogue is None else len(kernel.epilogue.inputs)
        self.x, self.w, self.y = (
            b.op(f"load ptr, ptr {b.element('ptr', '%bufs', str(k))}") for k in (0, 1, 2 + operands)
        )
        self.k, self.n = (b.load_i64("%params", i) for i in range(2))
        self.stride = b.integer(f"mul {self.k}, {kernel.panel}")
        self._panels("%begin", "%end")
        if kernel.epilogue is not None:
            low = b.integer(f"mul %begin, {kernel.panel}")
            high = least(b, b.integer(f"mul %end, {kernel.panel}"), self.n)
            rest = b.element("ptr", "%bufs", "2")
            b.do(f"call void @{name}_after(ptr {rest}, ptr %params, i64 {low}, i64 {high})")
        b.do("ret void")
        b.end(SIGNATURE.format(name=name))
        return b.text()

    def _panels(self, low: str, high: str) -> None:
        """Panels low to high, so many at once, then half as many; each is summed in the same order in all of them."""
        b = self.b
        streams = 1 if b.brief else _STREAMS
        while streams:
            rest = b.integer(f"urem {b.integer(f'sub {high}, {low}')}, {streams}")
            middle = b.integer(f"sub {high}, {rest}")
            loop(b, low, middle, streams, [], lambda p, _, streams=streams: self._together(p, streams))
            low, streams = middle, streams // 2

    def _together(self, first: str, streams: int) -> list[V]:
        b, kernel, vectors = self.b, self.kernel, self.vectors
        numbers = [b.integer(f"add {first}, {s}") for s in range(streams)]
        kind = stored(kernel.weights)
        panels = [b.element(kind, self.w, b.integer(f"mul {p}, {self.stride}")) for p in numbers]
        whole = "0" if b.brief else b.integer(f"and {self.k}, {-_UNROLL}")

        def turn(k: str, sums: list[V]) -> list[V]:
            for u in range(_UNROLL):
                sums = self._row(panels, k, u, sums)
            return sums

        zeros = [self.at.const("float", 0.0)] * (streams * vectors)
        sums = zeros if b.brief else loop(b, "0", whole, _UNROLL, zeros, turn)
        sums = loop(b, whole, self.k, 1, sums, lambda k, now: self._row(panels, k, 0, now))
        for s, p in enumerate(numbers):
            column = b.integer(f"mul {p}, {kernel.panel}")
            left = b.integer(f"sub {self.n}, {column}")
            self._store(sums[s * vectors : (s + 1) * vectors], b.element("float", self.y, column), left)
        return []

    def _row(self, panels: list[str], k: str, ahead: int, sums: list[V]) -> list[V]:
        b, at, width = self.b, self.at, self.kernel.panel
        scale = splat_load(at, b.element("float", b.element("float", self.x, k), str(ahead)))
        offset = b.integer(f"mul {k}, {width}")
        kind = stored(self.kernel.weights)
        rows = [b.element(kind, panel, offset) for panel in panels]
        places = (b.element(kind, r, str(ahead * width + v * at.lanes)) for r in rows for v in range(self.vectors))
        loaded = [load_weights(at, place, self.kernel.weights) for place in places]
        return [at.fma(weight, scale, s) for weight, s in zip(loaded, sums, strict=True)]

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
