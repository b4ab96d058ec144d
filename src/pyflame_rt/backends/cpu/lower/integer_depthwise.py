"""Convolutions of bytes in which every channel has a filter of its own."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.backends.cpu.jit.target import host
from pyflame_rt.backends.cpu.kernels.tiles.integer_depthwise import IntegerDepthwise
from pyflame_rt.backends.cpu.memory.constants import derived

if TYPE_CHECKING:
    from pyflame_rt.backends.cpu.kernels.tiles.integer_finish import IntegerFinish
    from pyflame_rt.backends.cpu.lower.lowering import Lowering
    from pyflame_rt.backends.cpu.memory.buffer_views import View
    from pyflame_rt.ops.onnx.windows import Windows

__all__ = ["integer_depthwise"]

# Multiplications a thread must have to be worth waking.
GRAIN = 200_000
PIECES = 8
Array = np.ndarray[Any, Any]


def integer_depthwise(
    low: Lowering,
    label: str,
    source: tuple[View, View],
    weights: tuple[Array, Array],
    at: Windows,
    size: tuple[int, int],
    finish: IntegerFinish,
    operands: list[View],
    outs: list[View],
    *,
    signed: bool,
) -> None:
    """The step: an image with its border and its zero point, filters [channels, 1, height, width] and theirs."""
    (x, zero), (array, points) = source, weights
    channels, lanes = x.shape[1], host().lanes(4)
    height, width = size
    # Some pixels of the last tile of a line may be computed in vain: the fewest, then the largest tile.
    pixels = min((4, 5, 6), key=lambda n: (-(-width // n) * n, -n))
    filters, sums = _filters(low, array, points, lanes)
    image, _, line, pixel = x.strides
    params = [
        channels, width, height, at.strides[1] * pixel, at.strides[0] * line, line, pixel, image, outs[0].strides[0],
    ]  # fmt: skip
    pairs = zip(operands, finish.operands, strict=True)
    params += [view.strides[0] for view, operand in pairs if operand.reach == "full"]
    taps = (array.shape[2], array.shape[3])
    kernel = IntegerDepthwise(taps, at.strides[1], pixels, lanes, signed, finish)
    grain = GRAIN // max(width * channels * math.prod(taps), 1)
    views = [x, filters, sums, zero, *operands, *outs]
    low.kernel(label, kernel, views, params, x.shape[0] * height, grain, PIECES)


def _filters(low: Lowering, array: Array, points: Array, lanes: int) -> tuple[View, View]:
    """Filters as pairs of neighbouring taps for each channel, and the sums of their weights."""
    channels, _, height, width = array.shape
    wide, pairs = -(-channels // lanes) * lanes, -(-width // 2)
    centred = array[:, 0].astype(np.int16) - points.astype(np.int16).reshape(-1, 1, 1)

    def fill(out: Array) -> None:
        result = out.view(np.int16).reshape(height, pairs, wide, 2)
        result[:] = 0
        for j in range(width):
            result[:, j // 2, :channels, j % 2] = centred[:, :, j].T

    form = ("integer depthwise", wide, points.tobytes())
    packed = derived(array, form, 4 * height * pairs * wide, fill)
    sums = np.zeros(wide, np.int32)
    sums[:channels] = centred.sum(axis=(1, 2), dtype=np.int32)
    return low.constant(packed), low.constant(sums)
