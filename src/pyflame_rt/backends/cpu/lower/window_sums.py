"""Convolutions by weights known while running, and their gradients towards the image: sums that leave out borders."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from pyflame_rt.backends.cpu.jit.target import host
from pyflame_rt.backends.cpu.kernels.tiles.register_tile import tile_for
from pyflame_rt.backends.cpu.kernels.tiles.window_sums import TapKernel, WindowKernel
from pyflame_rt.backends.cpu.lower.tiled_products import GRAIN, apart_of
from pyflame_rt.graph import DType
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame_rt.backends.cpu.lower.lowering import Lowering
    from pyflame_rt.backends.cpu.memory.buffer_views import View

__all__ = ["Reach", "fits_windows", "sums_of_windows"]

# Tiles of rows that read the same weights, products summed at a time, and images from which on tiles have full rows.
TILES, RUN, IMAGES = 12, 256, 8
WEIGHTS = 160_000  # floats
_OUTSIDE = -(1 << 60)


@dataclass(frozen=True)
class Reach:
    """What the taps of a window read along one axis of ``size`` places, for each of ``results``.

    ``back`` are the windows of the gradient: those a place was read by.
    """

    size: int
    results: int
    taps: int
    step: int
    gap: int
    pad: int
    back: bool = False

    def table(self, stride: int) -> np.ndarray:
        """How far on each tap of each result reads; far below zero where it reads nothing."""
        at, tap = np.arange(self.results)[:, None], np.arange(self.taps)[None] * self.gap
        if self.back:
            place, rest = np.divmod(at + self.pad - tap, self.step)
        else:
            place, rest = at * self.step + tap - self.pad, 0
        inside = (place >= 0) & (place < self.size) & (rest == 0)
        return np.where(inside, place * stride, _OUTSIDE).astype(np.int64).ravel()


def fits_windows(images: int, depth: int, columns: int) -> bool:
    """Whether tiles of images are full enough, and sums long enough."""
    return images >= IMAGES and min(depth, columns) >= 16


def sums_of_windows(
    low: Lowering, label: str, x: View, weights: View, out: View, reach: tuple[Reach, Reach], order: Sequence[int]
) -> None:
    """Fill ``out`` from an image, both channels last; ``order`` are the axes of columns and of depth in the weights."""
    down, across = reach
    columns, depth = out.shape[1], x.shape[1]
    taps, tile, lanes = down.taps * across.taps, tile_for(host(), columns), host().lanes(4)
    width = tile.vectors * lanes
    panels = -(-columns // width)
    packed = low.new((panels, taps, depth, width), DType.Float32)
    steps = [weights.strides[axis] for axis in order]
    low.kernel("filters", TapKernel(tile), [weights, packed], [columns, depth, taps, *steps], panels * depth, 16)
    kernel = WindowKernel(tile, TILES)
    images, rows = out.shape[0], out.shape[0] * math.prod(out.shape[2:])
    blocks = -(-rows // (TILES * tile.rows))
    items = blocks * panels
    # Weights of one panel stay in the second-level cache, or those of all.
    apart_items = (1, panels) if packed.count <= WEIGHTS else (blocks, 1)
    slot, apart = -(-kernel.slot(lanes, taps) // 16) * 16, apart_of(low, items)
    scratch = low.new((-(-items // apart) * slot,), DType.Float32)
    params = [
        images, out.shape[3], down.taps, across.taps, depth, columns, rows, panels, blocks, *apart_items,
        RUN, max(1, RUN // depth), slot, apart,
        x.strides[0], out.strides[0], out.strides[2], out.strides[3],
    ]  # fmt: skip
    lines, places = (low.constant(r.table(stride)) for r, stride in zip(reach, x.strides[2:], strict=True))
    zeros = low.constant(np.zeros(depth, np.float32))
    grain = GRAIN // max(taps * depth * TILES * tile.rows * width, 1)
    low.kernel(label, kernel, [x, zeros, packed, lines, places, scratch, out], params, items, grain)
