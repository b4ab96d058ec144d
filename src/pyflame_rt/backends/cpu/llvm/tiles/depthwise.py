"""Convolutions in which every channel has a filter of its own, channels last.

A register tile is a few neighbouring pixels of one vector of channels: each input vector is loaded once for all pixels
whose window it lies in.
"""

from __future__ import annotations

from functools import cached_property

from pyflame_rt.backends.cpu.llvm.emit import SIGNATURE
from pyflame_rt.backends.cpu.llvm.host import host as this_host
from pyflame_rt.backends.cpu.llvm.ir import Builder, Lanes, V
from pyflame_rt.backends.cpu.llvm.tiles.control import (
    Loop,
    add,
    buffers,
    floats,
    least,
    load_vector,
    most,
    mul,
    store_vector,
)
from pyflame_rt.backends.cpu.llvm.tiles.micro import PLAIN, Finish
from pyflame_rt.graph.records import dataclass

__all__ = ["DEPTHWISE_PARAMS", "DepthwiseKernel"]

DEPTHWISE_PARAMS = (
    "channels", "height", "width", "out_height", "out_width", "taps_y", "stride_y", "pad_y", "pad_x",
    "source_image", "source_y", "source_x", "result_image", "result_y", "result_x",
)  # fmt: skip


@dataclass(frozen=True)
class DepthwiseKernel:
    """A depthwise convolution over lines of results.

    bufs: source, filters [taps_y, taps, channels], operands of the finish, result. params: DEPTHWISE_PARAMS, then the
    strides (image, line, pixel) of "full" operands. rows: lines of results, over all images. The number of channels
    must be a multiple of ``lanes``.

    Attributes:
        taps: width of the filters.
        stride: columns from one result to the next.
        pixels: results of one register tile.
        lanes: channels of one vector.
        finish: what follows.
    """

    taps: int
    stride: int
    pixels: int
    lanes: int
    finish: Finish = PLAIN

    @property
    def key(self) -> str:
        """Equal for kernels of equal structure."""
        return self._key

    @cached_property
    def _key(self) -> str:
        f = self.finish
        form = f"{self.taps} {self.stride} {self.pixels}x{self.lanes}"
        return f"depthwise {form} {','.join(f.operands)} {f.structure}"

    def emit(self, name: str) -> str:
        """The module, as text."""
        b = Builder(this_host())
        b.begin()
        _Depthwise(self, b).emit()
        b.do("ret void")
        b.end(SIGNATURE.format(name=name))
        return b.text()


class _Depthwise:
    def __init__(self, kernel: DepthwiseKernel, b: Builder) -> None:
        self.kernel, self.b, self.at = kernel, b, Lanes(b, kernel.lanes)
        self.reach = (kernel.pixels - 1) * kernel.stride + kernel.taps  # columns one tile reads
        self.p = {name: b.load_i64("%params", k) for k, name in enumerate(DEPTHWISE_PARAMS)}
        cursor = len(DEPTHWISE_PARAMS)
        self.strides: list[tuple[str, ...]] = []
        for reach in kernel.finish.operands:
            full = reach == "full"
            self.strides.append(tuple(b.load_i64("%params", cursor + k) for k in range(3)) if full else ("0",) * 3)
            cursor += 3 * full

    def emit(self) -> None:
        b, p, kernel = self.b, self.p, self.kernel
        self.source, self.filters, *self.operands, self.result = buffers(b, 3 + len(kernel.finish.operands))
        self.offsets = b.op(f"alloca [{self.reach} x i64], align 64")
        self.masks = b.op(f"alloca [{self.reach} x {self.at.type('i32')}], align 64")
        self.spill = b.op(f"alloca [{kernel.pixels * kernel.lanes} x float], align 64")
        with Loop(b, "%begin", "%end") as line:
            y, image = b.integer(f"urem {line}, {p['out_height']}"), b.integer(f"udiv {line}, {p['out_height']}")
            top = b.integer(f"sub {mul(b, y, p['stride_y'])}, {p['pad_y']}")
            # Rows of the filter that fall on the image.
            self.low = most(b, b.integer(f"sub 0, {top}"), 0)
            self.high = least(b, b.integer(f"sub {p['height']}, {top}"), p["taps_y"])
            start = add(b, mul(b, image, p["source_image"]), mul(b, top, p["source_y"]))
            self.line = floats(b, self.source, start)
            self.ends = [self._line_start(self.result, image, y, [p["result_image"], p["result_y"]])]
            for operand, strides in zip(self.operands, self.strides, strict=True):
                self.ends.append(self._line_start(operand, image, y, strides))
            with Loop(b, "0", p["out_width"], kernel.pixels) as x:
                self._tile(x)

    def _line_start(self, base: str, image: str, y: str, strides: tuple[str, ...] | list[str]) -> str:
        b = self.b
        return floats(b, base, add(b, mul(b, image, strides[0]), mul(b, y, strides[1])))

    def _tile(self, x: str) -> None:
        """The pixels from column x on, all channels: quickly where the windows lie inside, else with masks."""
        b, p, kernel = self.b, self.p, self.kernel
        left = b.integer(f"sub {mul(b, x, kernel.stride)}, {p['pad_x']}")
        count = least(b, b.integer(f"sub {p['out_width']}, {x}"), kernel.pixels)
        if b.brief:
            self._edge(left, x, count)
            return
        begins = b.op(f"icmp sge i64 {left}, 0")
        ends = b.op(f"icmp sle i64 {add(b, left, self.reach)}, {p['width']}")
        whole = b.op(f"icmp eq i64 {count}, {kernel.pixels}")
        inside = b.op(f"and i1 {whole}, {b.op(f'and i1 {begins}, {ends}')}")
        quick, edge, done = b.label("quick"), b.label("edge"), b.label("tiled")
        b.branch(inside, quick, edge)
        b.place(quick)
        first = floats(b, self.line, mul(b, left, p["source_x"]))
        with Loop(b, "0", p["channels"], kernel.lanes) as c:
            self._channels(c, x, first, count, masked=False)
        b.jump(done)
        b.place(edge)
        self._edge(left, x, count)
        b.jump(done)
        b.place(done)

    def _edge(self, left: str, x: str, count: str) -> None:
        """Pixels whose windows may reach beyond the image."""
        self._find_columns(left)
        with Loop(self.b, "0", self.p["channels"], self.kernel.lanes) as c:
            self._channels(c, x, self.line, count, masked=True)

    def _find_columns(self, left: str) -> None:
        """Offsets of the columns a tile reads; those outside read an edge of the image through an empty mask."""
        b, p, kind = self.b, self.p, self.at.type("i32")
        last = b.integer(f"sub {p['width']}, 1")
        for j in range(self.reach):
            column = add(b, left, j)
            inside = b.op(f"icmp ult i64 {column}, {p['width']}")
            offset = mul(b, most(b, least(b, column, last), 0), p["source_x"])
            b.do(f"store i64 {offset}, ptr {b.element('i64', self.offsets, str(j))}")
            mask = self.at.splat("i32", b.op(f"sext i1 {inside} to i32"))
            b.do(f"store {kind} {mask.name}, ptr {b.element(kind, self.masks, str(j))}, align 4")

    def _channels(self, channel: str, x: str, first: str, count: str, *, masked: bool) -> None:
        b, at, p, kernel = self.b, self.at, self.p, self.kernel
        vector = at.type("float")
        source, filters = floats(b, first, channel), floats(b, self.filters, channel)
        loop = Loop(b, self.low, self.high, 1, [(vector, "zeroinitializer")] * kernel.pixels)
        tap, sums = loop.open()
        row = b.op(f"freeze ptr {floats(b, source, mul(b, tap, p['source_y']))}")
        weight = b.op(f"freeze ptr {floats(b, filters, mul(b, mul(b, tap, p['channels']), kernel.taps))}")
        weights = []
        for _ in range(kernel.taps):
            weights.append(load_vector(at, weight))
            weight = floats(b, weight, p["channels"])
        values = [V(at, "float", s) for s in sums]
        for j in range(self.reach):
            column, row = self._column(j, row, masked=masked)
            for k in range(kernel.pixels):
                t = j - k * kernel.stride
                if 0 <= t < kernel.taps:
                    values[k] = at.fma(column, weights[t], values[k])
        sums = loop.close([v.name for v in values])
        self._finish(channel, x, sums, count, direct=kernel.finish.light and not masked)

    def _column(self, j: int, row: str, *, masked: bool) -> tuple[V, str]:
        """One input vector, and where the next column is."""
        b, at = self.b, self.at
        if not masked:
            return load_vector(at, row), floats(b, row, self.p["source_x"])
        kind = at.type("i32")
        offset = b.op(f"load i64, ptr {b.element('i64', self.offsets, str(j))}")
        mask = at.wrap("i32", f"load {kind}, ptr {b.element(kind, self.masks, str(j))}, align 4")
        value = load_vector(at, floats(b, row, offset))
        return (value.bits("i32") & mask).bits("float"), row

    def _finish(self, channel: str, x: str, sums: list[str], count: str, *, direct: bool) -> None:
        b, at, p, kernel = self.b, self.at, self.p, self.kernel
        steps = [p["result_x"], *(s[2] for s in self.strides)]
        starts = [
            floats(b, start, add(b, mul(b, x, step), channel)) for start, step in zip(self.ends, steps, strict=True)
        ]
        if direct:
            for k, total in enumerate(sums):
                self._store(V(at, "float", total), starts, steps, str(k))
            return
        for k, total in enumerate(sums):
            store_vector(at, V(at, "float", total), floats(b, self.spill, k * kernel.lanes))
        with Loop(b, "0", count) as k:
            value = load_vector(at, floats(b, self.spill, mul(b, k, kernel.lanes)))
            self._store(value, starts, steps, k)

    def _store(self, value: V, starts: list[str], steps: list[str], pixel: str) -> None:
        b, at = self.b, self.at

        def operand(which: int) -> V:
            return load_vector(at, floats(b, starts[1 + which], mul(b, steps[1 + which], pixel)))

        result = self.kernel.finish.apply(value, operand)
        store_vector(at, result, floats(b, starts[0], mul(b, steps[0], pixel)))
