"""Pixels of some images in panels of channels, in the order in which sums over pixels go through them."""

from __future__ import annotations

from dataclasses import dataclass

from pyflame_rt.backends.cpu.ir.builder import Builder, Lanes
from pyflame_rt.backends.cpu.jit.target import host as this_host
from pyflame_rt.backends.cpu.kernels.row_loops import SIGNATURE
from pyflame_rt.backends.cpu.kernels.tiles.control import (
    Loop,
    add,
    buffers,
    floats,
    load_vector,
    mul,
    store_vector,
    when,
)

__all__ = ["PIXEL_PARAMS", "PixelKernel"]

PIXEL_PARAMS = ("channels", "height", "width", "images", "first", "source_image", "source_y")


@dataclass(frozen=True)
class PixelKernel:
    """Images, channels last, as result[channel // panel, line, place, image, channel % panel].

    ``columns`` says where in its line the pixel of each place lies.

    bufs: source, columns (int64), result. params: PIXEL_PARAMS; ``images`` of them are packed, from ``first`` on.
    rows: lines.
    """

    panel: int

    @property
    def key(self) -> str:
        """Equal for kernels of equal structure."""
        return f"pixels {self.panel}"

    def emit(self, name: str) -> str:
        """The module, as text."""
        b = Builder(this_host())
        b.begin()
        _Pixels(self, b).emit()
        b.do("ret void")
        b.end(SIGNATURE.format(name=name))
        return b.text()


class _Pixels:
    def __init__(self, kernel: PixelKernel, b: Builder) -> None:
        self.panel, self.b = kernel.panel, b
        self.at = Lanes(b, b.host.lanes(4))
        self.p = {name: b.load_i64("%params", k) for k, name in enumerate(PIXEL_PARAMS)}

    def emit(self) -> None:
        b, p = self.b, self.p
        source, columns, result = buffers(b, 3)
        line = mul(b, p["width"], p["images"])
        self.apart = mul(b, mul(b, p["height"], line), self.panel)
        with Loop(b, "%begin", "%end") as y:
            start = floats(b, source, add(b, mul(b, p["first"], p["source_image"]), mul(b, y, p["source_y"])))
            target = floats(b, result, mul(b, mul(b, y, line), self.panel))
            with Loop(b, "0", p["width"]) as place, Loop(b, "0", p["images"]) as image:
                column = b.op(f"load i64, ptr {b.element('i64', columns, place)}")
                pixel = floats(b, start, add(b, column, mul(b, image, p["source_image"])))
                position = add(b, mul(b, place, p["images"]), image)
                self._pixel(pixel, floats(b, target, mul(b, position, self.panel)))

    def _pixel(self, pixel: str, target: str) -> None:
        """All channels; what is left of the last vector is filled with zeros."""
        b, at, channels = self.b, self.at, self.p["channels"]
        whole = b.integer(f"and {channels}, {-at.lanes}")
        with Loop(b, "0", whole, at.lanes) as c:
            store_vector(at, load_vector(at, floats(b, pixel, c)), self._at(target, c))
        rest = b.integer(f"sub {channels}, {whole}")
        with when(b, b.op(f"icmp sgt i64 {rest}, 0")):
            mask = at.iota("0", "i64").cmp("slt", at.splat("i64", rest))
            store_vector(at, load_vector(at, floats(b, pixel, whole), mask), self._at(target, whole))

    def _at(self, target: str, channel: str) -> str:
        b, panel = self.b, self.panel
        block, inside = b.integer(f"udiv {channel}, {panel}"), b.integer(f"urem {channel}, {panel}")
        return floats(b, target, add(b, mul(b, block, self.apart), inside))
