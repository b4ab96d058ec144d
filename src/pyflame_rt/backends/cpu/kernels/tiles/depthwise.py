"""Convolutions in which every channel has a filter of its own, or few channels share theirs, channels last.

A register tile is a few neighbouring pixels of one vector of channels: each input vector is loaded once for all pixels
whose window it lies in. The work is divided into items of one line of results and one block of channels, lines fastest:
the lines of a block that windows share stay in the first-level cache, and so do its filters. Where groups of channels
are summed, each of a group is spread over its lanes in turn.
"""

from __future__ import annotations

from pyflame_rt.backends.cpu.ir.builder import Builder, Lanes, V
from pyflame_rt.backends.cpu.jit.target import host as this_host
from pyflame_rt.backends.cpu.kernels.row_loops import SIGNATURE
from pyflame_rt.backends.cpu.kernels.tiles.control import (
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
from pyflame_rt.backends.cpu.kernels.tiles.register_tile import PLAIN, Finish
from pyflame_rt.graph.cached import cached_property
from pyflame_rt.graph.records import dataclass

__all__ = ["DEPTHWISE_PARAMS", "DepthwiseKernel"]

_WAITING = 8  # vectors of channels whose sums wait to be finished together
DEPTHWISE_PARAMS = (
    "channels", "height", "width", "out_height", "out_width", "taps_y", "stride_y", "pad_y", "pad_x",
    "source_image", "source_y", "source_x", "result_image", "result_y", "result_x",
    "block", "blocks",
)  # fmt: skip


@dataclass(frozen=True)
class DepthwiseKernel:
    """A depthwise convolution over lines of results, so many channels at a time.

    bufs: source, filters [taps_y, taps, group, channels], operands of the finish, result.
    params: DEPTHWISE_PARAMS, then the strides (image, line, pixel) of "full" operands.
    rows: lines of results times blocks of channels, over all images.
    The number of channels and that of a block must be multiples of ``lanes``.

    Attributes:
        taps: width of the filters.
        stride: columns from one result to the next.
        pixels: results of one register tile.
        lanes: channels of one vector.
        finish: what follows.
        group: channels that are summed for as many results; ``lanes`` must be a multiple.
    """

    taps: int
    stride: int
    pixels: int
    lanes: int
    finish: Finish = PLAIN
    group: int = 1

    @property
    def key(self) -> str:
        """Equal for kernels of equal structure."""
        return self._key

    @cached_property
    def _key(self) -> str:
        f = self.finish
        form = f"{self.taps} {self.stride} {self.pixels}x{self.lanes} {self.group}"
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
        self.inside = b.op(f"alloca [{self.reach} x i8], align 64")
        self.spill = b.op(f"alloca [{_WAITING * kernel.pixels * kernel.lanes} x float], align 64")
        with Loop(b, "%begin", "%end") as item:
            y, rest = b.integer(f"urem {item}, {p['out_height']}"), b.integer(f"udiv {item}, {p['out_height']}")
            block, image = b.integer(f"urem {rest}, {p['blocks']}"), b.integer(f"udiv {rest}, {p['blocks']}")
            self.first = mul(b, block, p["block"])
            self.last = least(b, add(b, self.first, p["block"]), p["channels"])
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
        """The pixels from column x on: all columns where the windows lie inside, else those that do."""
        b, p, kernel = self.b, self.p, self.kernel
        left = b.integer(f"sub {mul(b, x, kernel.stride)}, {p['pad_x']}")
        count = least(b, b.integer(f"sub {p['out_width']}, {x}"), kernel.pixels)
        source = floats(b, self.line, mul(b, left, p["source_x"]))
        steps = [p["result_x"], *(s[2] for s in self.strides)]
        starts = [floats(b, start, mul(b, x, step)) for start, step in zip(self.ends, steps, strict=True)]
        if b.brief:
            self._edge(left, source, starts, steps, count)
            return
        begins = b.op(f"icmp sge i64 {left}, 0")
        ends = b.op(f"icmp sle i64 {add(b, left, self.reach)}, {p['width']}")
        whole = b.op(f"icmp eq i64 {count}, {kernel.pixels}")
        inside = b.op(f"and i1 {whole}, {b.op(f'and i1 {begins}, {ends}')}")
        quick, edge, done = b.label("quick"), b.label("edge"), b.label("tiled")
        b.branch(inside, quick, edge)
        b.place(quick)
        if kernel.finish.light:
            with Loop(b, self.first, self.last, kernel.lanes) as channel:
                for k, total in enumerate(self._sums(channel, source, at_edge=False)):
                    self._store(V(self.at, "float", total), starts, steps, str(k), channel)
        else:
            self._apart(source, starts, steps, str(kernel.pixels), at_edge=False)
        b.jump(done)
        b.place(edge)
        self._edge(left, source, starts, steps, count)
        b.jump(done)
        b.place(done)

    def _edge(self, left: str, source: str, starts: list[str], steps: list[str], count: str) -> None:
        """Pixels whose windows may reach beyond the image."""
        b = self.b
        for j in range(self.reach):
            known = b.op(f"icmp ult i64 {add(b, left, j)}, {self.p['width']}")
            b.do(f"store i8 {b.op(f'zext i1 {known} to i8')}, ptr {b.element('i8', self.inside, str(j))}")
        self._apart(source, starts, steps, count, at_edge=True)

    def _apart(self, source: str, starts: list[str], steps: list[str], count: str, *, at_edge: bool) -> None:
        """Sums of several vectors of channels first, then what follows, in which no vector waits for another."""
        b, at, kernel = self.b, self.at, self.kernel
        tile = kernel.pixels * kernel.lanes
        with Loop(b, self.first, self.last, _WAITING * kernel.lanes) as low:
            high = least(b, add(b, low, _WAITING * kernel.lanes), self.last)
            with Loop(b, low, high, kernel.lanes) as channel:
                place = floats(b, self.spill, mul(b, b.integer(f"sub {channel}, {low}"), kernel.pixels))
                for k, total in enumerate(self._sums(channel, source, at_edge=at_edge)):
                    store_vector(at, V(at, "float", total), floats(b, place, k * kernel.lanes))
            with Loop(b, "0", count) as pixel:
                loop = Loop(b, low, high, kernel.lanes, [("ptr", floats(b, self.spill, mul(b, pixel, kernel.lanes)))])
                channel, (place,) = loop.open()
                self._store(load_vector(at, place), starts, steps, pixel, channel)
                loop.close([floats(b, place, tile)])

    def _sums(self, channel: str, first: str, *, at_edge: bool) -> list[str]:
        """The sums of a tile, for the channels of one vector."""
        b, at, p, kernel = self.b, self.at, self.p, self.kernel
        vector = at.type("float")
        source, filters = floats(b, first, channel), floats(b, self.filters, channel)
        loop = Loop(b, self.low, self.high, 1, [(vector, "zeroinitializer")] * kernel.pixels)
        tap, sums = loop.open()
        row = b.op(f"freeze ptr {floats(b, source, mul(b, tap, p['source_y']))}")
        weight = b.op(
            f"freeze ptr {floats(b, filters, mul(b, mul(b, tap, p['channels']), kernel.taps * kernel.group))}"
        )
        weights = []
        for _ in range(kernel.taps * kernel.group):
            weights.append(load_vector(at, weight))
            weight = floats(b, weight, p["channels"])
        values = list(sums)
        for j in range(self.reach):
            values = (self._column_inside if at_edge else self._column)(j, row, weights, values)
            row = floats(b, row, p["source_x"])
        return loop.close(values)

    def _column(self, j: int, row: str, weights: list[V], sums: list[str]) -> list[str]:
        """Add what one column of the input gives to the pixels whose windows it lies in."""
        at, kernel = self.at, self.kernel
        columns, result = self._spread(load_vector(at, row)), list(sums)
        for k in range(kernel.pixels):
            t = j - k * kernel.stride
            if 0 <= t < kernel.taps:
                for column, weight in zip(columns, weights[t * kernel.group :], strict=False):
                    result[k] = at.fma(column, weight, V(at, "float", result[k])).name
        return result

    def _spread(self, column: V) -> list[V]:
        """The first channel of every group in all lanes of that group, then the second, and so on."""
        at, group = self.at, self.kernel.group
        if group == 1:
            return [column]
        found = []
        for channel in range(group):
            places = ", ".join(f"i32 {lane // group * group + channel}" for lane in range(at.lanes))
            order = f"<{at.lanes} x i32> <{places}>"
            found.append(at.wrap("float", f"shufflevector {column.kind} {column.name}, {column.kind} poison, {order}"))
        return found

    def _column_inside(self, j: int, row: str, weights: list[V], sums: list[str]) -> list[str]:
        """The same where the column may lie outside."""
        b, vector = self.b, self.at.type("float")
        known = b.op(f"load i8, ptr {b.element('i8', self.inside, str(j))}")
        before, some, after = b.block, b.label("column"), b.label("after")
        b.branch(b.op(f"icmp ne i8 {known}, 0"), some, after)
        b.place(some)
        added = self._column(j, row, weights, sums)
        last = b.block
        b.jump(after)
        b.place(after)
        pairs = zip(sums, added, strict=True)
        return [old if old == new else b.phi(vector, (old, before), (new, last)) for old, new in pairs]

    def _store(self, value: V, starts: list[str], steps: list[str], pixel: str, channel: str) -> None:
        b, at = self.b, self.at

        def place(which: int) -> str:
            return floats(b, starts[which], add(b, mul(b, steps[which], pixel), channel))

        result = self.kernel.finish.apply(value, lambda which: load_vector(at, place(1 + which)))
        store_vector(at, result, place(0))
