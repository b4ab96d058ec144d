"""Images given a border while they are copied: lines of one run each, or of a few planes laid side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyflame_rt.backends.cpu.ir.builder import Builder
from pyflame_rt.backends.cpu.ir.kernel_program import itemsize
from pyflame_rt.backends.cpu.jit.target import host as this_host
from pyflame_rt.backends.cpu.kernels.row_loops import SIGNATURE
from pyflame_rt.backends.cpu.kernels.tiles.control import Loop, add, buffers, mul
from pyflame_rt.graph.cached import cached_property
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame_rt.backends.cpu.jit.target import Host

__all__ = ["BorderKernel"]

PARAMS = ("lines", "top", "height", "before", "run", "after", "source_line", "source_image", "source_plane")


@dataclass(frozen=True)
class BorderKernel:
    """Lines of a result: the border's element, then a line of the source, then the border's element again.

    bufs: source, the border's element, result. params: PARAMS, with ``lines`` of an image of the result, of which
    ``height`` from ``top`` on hold lines of the source; ``before``, ``run`` and ``after`` count pixels. rows: lines of
    the result over all images. Strides count elements.

    Attributes:
        dtype: of elements; only their size matters.
        planes: elements of a pixel, which lie apart in the source where they are more than one.
    """

    dtype: str
    planes: int = 1

    @property
    def key(self) -> str:
        """Equal for kernels of equal structure."""
        return self._key

    @cached_property
    def _key(self) -> str:
        return f"border {itemsize(self.dtype)} {self.planes}"

    def emit(self, name: str, host: Host | None = None) -> str:
        """The module, as text."""
        b = Builder(host or this_host())
        b.begin()
        _Border(self, b).emit()
        b.do("ret void")
        b.end(SIGNATURE.format(name=name))
        return b.text()


class _Border:
    def __init__(self, kernel: BorderKernel, b: Builder) -> None:
        self.b, self.planes, self.size = b, kernel.planes, itemsize(kernel.dtype)
        self.kind, self.lanes = f"i{8 * self.size}", b.host.vector_bytes // self.size
        self.p = {name: b.load_i64("%params", k) for k, name in enumerate(PARAMS)}

    def emit(self) -> None:
        b, p = self.b, self.p
        source, border, result = buffers(b, 3)
        self.value = b.op(f"load {self.kind}, ptr {border}, align 1")
        before, run, after = (mul(b, p[name], self.planes) for name in ("before", "run", "after"))
        whole = add(b, add(b, before, run), after)
        with Loop(b, "%begin", "%end") as row:
            y, image = b.integer(f"urem {row}, {p['lines']}"), b.integer(f"udiv {row}, {p['lines']}")
            to, line = b.element(self.kind, result, mul(b, row, whole)), b.integer(f"sub {y}, {p['top']}")
            inside, outside, done = b.label("inside"), b.label("outside"), b.label("next")
            b.branch(b.op(f"icmp ult i64 {line}, {p['height']}"), inside, outside)
            b.place(outside)
            self._fill(to, whole)
            b.jump(done)
            b.place(inside)
            place = add(b, mul(b, image, p["source_image"]), mul(b, line, p["source_line"]))
            self._fill(to, before)
            start = b.element(self.kind, to, before)
            self._line(b.element(self.kind, source, place), start, run)
            self._fill(b.element(self.kind, start, run), after)
            b.jump(done)
            b.place(done)

    def _fill(self, to: str, count: str) -> None:
        b, kind = self.b, self.kind
        if self.size == 1:
            b.call("void", "llvm.memset.p0.i64", [("ptr", to), ("i8", self.value), ("i64", count), ("i1", "false")])
            return
        vector = f"<{self.lanes} x {kind}>"
        first = b.op(f"insertelement {vector} poison, {kind} {self.value}, i64 0")
        spread = b.op(f"shufflevector {vector} {first}, {vector} poison, <{self.lanes} x i32> zeroinitializer")
        middle = b.integer(f"and {count}, {-self.lanes}")
        with Loop(b, "0", middle, self.lanes) as i:
            b.do(f"store {vector} {spread}, ptr {b.element(kind, to, i)}, align 1")
        with Loop(b, middle, count) as i:
            b.do(f"store {kind} {self.value}, ptr {b.element(kind, to, i)}, align 1")

    def _line(self, origin: str, to: str, count: str) -> None:
        b = self.b
        if self.planes == 1:
            length = mul(b, count, self.size)
            b.call("void", "llvm.memcpy.p0.p0.i64", [("ptr", to), ("ptr", origin), ("i64", length), ("i1", "false")])
            return
        sources = [b.element(self.kind, origin, mul(b, self.p["source_plane"], k)) for k in range(self.planes)]
        middle = b.integer(f"and {self.p['run']}, {-self.lanes}")
        for low, high, step in (("0", middle, self.lanes), (middle, self.p["run"], 1)):
            with Loop(b, low, high, step) as x:
                loaded = [self._load(b.element(self.kind, source, x), step) for source in sources]
                self._side_by_side(loaded, step, b.element(self.kind, to, mul(b, x, self.planes)))

    def _load(self, place: str, lanes: int) -> str:
        return self.b.op(f"load <{lanes} x {self.kind}>, ptr {place}, align 1")

    def _side_by_side(self, planes: list[str], lanes: int, to: str) -> None:
        """Store the first elements of all planes, then the second ones."""
        joined = planes[0]
        for count, plane in enumerate(planes[1:], 1):
            wide = count * lanes
            full = plane if count == 1 else self._chosen(plane, lanes, range(lanes), wide)
            joined = self._chosen(joined, wide, range(wide + lanes), wide + lanes, full)
        wide = len(planes) * lanes
        order = [k % len(planes) * lanes + k // len(planes) for k in range(wide)]
        mixed = self._chosen(joined, wide, order, wide)
        self.b.do(f"store <{wide} x {self.kind}> {mixed}, ptr {to}, align 1")

    def _chosen(self, value: str, wide: int, order: Sequence[int], length: int, other: str = "poison") -> str:
        """Elements of one vector, or of two, in an order; what it does not say may be anything."""
        places = [f"i32 {k}" for k in order] + ["i32 poison"] * (length - len(order))
        vector = f"<{wide} x {self.kind}>"
        return self.b.op(f"shufflevector {vector} {value}, {vector} {other}, <{length} x i32> <{', '.join(places)}>")
