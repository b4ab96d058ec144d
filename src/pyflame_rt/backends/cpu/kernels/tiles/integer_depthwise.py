"""Convolutions of bytes in which every channel has a filter of its own, channels last, with exact sums.

Two taps of neighbouring columns meet in one instruction: numbers become 16 bits wide, those of two pixels are laid
side by side for each channel, and products of a pair are added to sums of 32 bits. The image has its border already.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyflame_rt.backends.cpu.ir.builder import Builder, Lanes, V
from pyflame_rt.backends.cpu.ir.instructions import stored
from pyflame_rt.backends.cpu.jit.target import host as this_host
from pyflame_rt.backends.cpu.kernels.row_loops import SIGNATURE
from pyflame_rt.backends.cpu.kernels.tiles.control import Loop, add, buffers, least, mul
from pyflame_rt.backends.cpu.kernels.tiles.integer_dots import PAIRS
from pyflame_rt.backends.cpu.kernels.tiles.integer_finish import SUMS, IntegerFinish, Places, store_tile
from pyflame_rt.backends.cpu.kernels.tiles.register_tile import Tile
from pyflame_rt.graph.cached import cached_property
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from pyflame_rt.backends.cpu.jit.target import Host

__all__ = ["IntegerDepthwise"]

PARAMS = ("channels", "width", "lines", "step_x", "step_y", "source_y", "source_x", "source_image", "stride")


@dataclass(frozen=True)
class IntegerDepthwise:
    """Result[pixel, channel] = finish(sum over taps of (source - zero) * weights).

    bufs: source (bytes), weights [lines of taps, pairs, channels, 2] of int16 less their zero points, for each channel
    the sum of its weights, the zero point of the source, operands of the finish, results. Weights and sums are padded
    to whole vectors of channels. params: PARAMS, then the row strides of "full" operands. rows: lines of results over
    all images, each with ``lines`` of them. Strides count elements.

    Attributes:
        taps: lines and columns of the filters.
        stride: columns from one result to the next.
        pixels: results of one register tile.
        lanes: channels of one vector.
        signed: the source is int8.
        finish: what follows.
    """

    taps: tuple[int, int]
    stride: int
    pixels: int
    lanes: int
    signed: bool
    finish: IntegerFinish = SUMS

    @property
    def key(self) -> str:
        """Equal for kernels of equal structure."""
        return self._key

    @cached_property
    def _key(self) -> str:
        form = f"{self.taps} {self.stride} {self.pixels}x{self.lanes} {'s' if self.signed else 'u'}8"
        return f"integer depthwise {form} {self.finish.structure}"

    def emit(self, name: str, host: Host | None = None) -> str:
        """The module, as text."""
        b = Builder(host or this_host())
        b.begin()
        _Depthwise(self, b).emit()
        b.do("ret void")
        b.end(SIGNATURE.format(name=name))
        return b.text()


class _Depthwise:
    def __init__(self, kernel: IntegerDepthwise, b: Builder) -> None:
        self.kernel, self.b, self.at = kernel, b, Lanes(b, kernel.lanes)
        self.p = {name: b.load_i64("%params", k) for k, name in enumerate(PARAMS)}
        cursor = len(PARAMS)
        self.strides = []
        for operand in kernel.finish.operands:
            self.strides.append(b.load_i64("%params", cursor) if operand.reach == "full" else "0")
            cursor += operand.reach == "full"
        self.pairs = -(-kernel.taps[1] // 2)

    def emit(self) -> None:
        b, p, kernel = self.b, self.p, self.kernel
        count = len(kernel.finish.operands)
        found = buffers(b, 4 + count + len(kernel.finish.results))
        self.source, self.weights, self.sums, zero = found[:4]
        self.operands, self.results = found[4 : 4 + count], found[4 + count :]
        wide = b.op(f"{'sext' if kernel.signed else 'zext'} i8 {b.op(f'load i8, ptr {zero}, align 1')} to i32")
        self.zero = self.at.splat("i32", wide)
        self.spill = b.op(f"alloca [{kernel.pixels * kernel.lanes} x i32], align 64")
        lanes = kernel.lanes
        self.padded = mul(b, b.integer(f"sdiv {add(b, p['channels'], lanes - 1)}, {lanes}"), lanes)
        with Loop(b, "%begin", "%end") as line:
            y, image = b.integer(f"urem {line}, {p['lines']}"), b.integer(f"udiv {line}, {p['lines']}")
            start = add(b, mul(b, image, p["source_image"]), mul(b, y, p["step_y"]))
            top, first = b.element("i8", self.source, start), mul(b, line, p["width"])
            with Loop(b, "0", p["width"], kernel.pixels) as x:
                pixel = b.element("i8", top, mul(b, x, p["step_x"]))
                valid = least(b, b.integer(f"sub {p['width']}, {x}"), kernel.pixels)
                with Loop(b, "0", p["channels"], lanes) as channel:
                    self._tile(pixel, add(b, first, x), valid, channel)

    def _tile(self, source: str, row: str, valid: str, channel: str) -> None:
        """The pixels from a row of results on, for the channels of one vector."""
        b, at, kernel, p = self.b, self.at, self.kernel, self.p
        left = b.integer(f"sub {p['channels']}, {channel}")
        totals = at.wrap("i32", f"load {at.type('i32')}, ptr {b.element('i32', self.sums, channel)}, align 4")
        start = -(totals * self.zero)
        whole, edge, done = b.label("whole"), b.label("edge"), b.label("summed")
        full = b.op(f"icmp eq i64 {valid}, {kernel.pixels}")
        safe = b.op(f"and i1 {full}, {b.op(f'icmp sge i64 {left}, {at.lanes}')}")
        b.branch(safe, whole, edge)
        ends = []
        for label, masked in ((whole, False), (edge, True)):
            b.place(label)
            sums = self._sums(b.element("i8", source, channel), channel, start, valid, left if masked else None)
            ends.append((b.block, sums))
            b.jump(done)
        b.place(done)
        kind = at.type("i32")
        sums = [V(at, "i32", b.phi(kind, *((s[k].name, block) for block, s in ends))) for k in range(kernel.pixels)]
        operands = tuple(
            base
            if o.reach == "single"
            else b.element(stored(o.dtype), base, channel if o.reach == "column" else self._place(row, s, channel))
            for o, base, s in zip(kernel.finish.operands, self.operands, self.strides, strict=True)
        )
        place = self._place(row, p["stride"], channel)
        pairs = zip(self.results, kernel.finish.results, strict=True)
        results = tuple(b.element(stored(dtype), base, place) for base, dtype in pairs)
        places = Places(results, p["stride"], operands, tuple(self.strides))
        store_tile(at, Tile(kernel.pixels, 1), sums, kernel.finish, places, self.spill, valid, left)

    def _place(self, row: str, stride: str, channel: str) -> str:
        return add(self.b, mul(self.b, row, stride), channel)

    def _sums(self, source: str, channel: str, start: V, valid: str, left: str | None) -> list[V]:
        """The sums of a tile; with ``left`` only so many channels, and ``valid`` pixels, are there to be read."""
        b, at, kernel, p = self.b, self.at, self.kernel, self.p
        sums = [start] * kernel.pixels
        mask = None
        if left is not None:
            mask = at.iota("0", "i64").cmp("slt", at.splat("i64", left))
        reach = (kernel.pixels - 1) * kernel.stride + kernel.taps[1]
        for tap in range(kernel.taps[0]):
            line = b.element("i8", source, mul(b, p["source_y"], tap))
            columns = [self._column(line, j, valid, mask) for j in range(reach)]
            weights = [self._weights(tap, pair, channel) for pair in range(self.pairs)]
            joined: dict[tuple[int, int], V] = {}
            for pixel in range(kernel.pixels):
                for pair in range(self.pairs):
                    j = pixel * kernel.stride + 2 * pair
                    other = j + 1 if 2 * pair + 1 < kernel.taps[1] else -1
                    if (j, other) not in joined:
                        joined[j, other] = columns[j] if other < 0 else self._beside(columns[j], columns[other])
                    sums[pixel] = self._add(sums[pixel], joined[j, other], weights[pair])
        return sums

    def _column(self, line: str, j: int, valid: str, mask: V | None) -> V:
        """Bytes of one pixel of the source as 16-bit numbers in lanes of 32; beyond the last window the last again."""
        b, at, kernel = self.b, self.at, self.kernel
        kind, position = at.type("i8"), str(j)
        if mask is not None:
            last = add(b, mul(b, b.integer(f"sub {valid}, 1"), kernel.stride), kernel.taps[1] - 1)
            position = least(b, str(j), last)
        place = b.element("i8", line, mul(b, self.p["source_x"], position))
        if mask is None:
            value = at.wrap("i8", f"load {kind}, ptr {place}, align 1")
        else:
            args = [("ptr", place), ("i32", "1"), (mask.kind, mask.name), (kind, "zeroinitializer")]
            value = V(at, "i8", b.call(kind, f"llvm.masked.load.{at.suffix('i8')}.p0", args))
        wide = value.to("sext" if kernel.signed else "zext", "i32")
        return wide & 0xFFFF if kernel.signed else wide

    def _beside(self, low: V, high: V) -> V:
        """Two 16-bit numbers in each lane."""
        return low | (high << 16)

    def _weights(self, tap: int, pair: int, channel: str) -> V:
        b, at = self.b, self.at
        offset = add(b, mul(b, self.padded, tap * self.pairs + pair), channel)
        return at.wrap("i32", f"load {at.type('i32')}, ptr {b.element('i32', self.weights, offset)}, align 4")

    def _add(self, total: V, numbers: V, weights: V) -> V:
        b, at = self.b, self.at
        kind, short = at.type("i32"), f"<{2 * at.lanes} x i16>"
        left, right = (b.op(f"bitcast {kind} {v.name} to {short}") for v in (numbers, weights))
        product = b.call(kind, PAIRS[4 * at.lanes], [(short, left), (short, right)])
        return total + V(at, "i32", product)
