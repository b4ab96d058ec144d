"""Weights packed by panels of columns; plans that need the same panels share them."""

from __future__ import annotations

import math
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.backends.cpu.jit.compiler import call, prepare
from pyflame_rt.backends.cpu.kernels.tiles.winograd_filters import PackingKernel
from pyflame_rt.backends.cpu.memory.constants import derived

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["channel_filters", "panels", "tap_panels", "winograd_panels"]

Array = np.ndarray[Any, Any]


def panels(matrix: Array, width: int) -> Array:
    """A matrix [depth, columns] as [panels, depth, width], zeros beyond the last column."""
    depth, columns = matrix.shape
    shape = (-(-columns // width), depth, width)
    return _shared(matrix, ("panels", width), shape, lambda out: _fill_panels(matrix, out))


def _shared(array: Array, how: tuple[Any, ...], shape: tuple[int, ...], fill: Callable[[Array], None]) -> Array:
    size = 4 * math.prod(shape)
    return derived(array, how, size, lambda out: fill(_floats(out, shape))).view(np.float32).reshape(shape)


def _floats(memory: Array, shape: tuple[int, ...]) -> Array:
    return memory.view(np.float32).reshape(shape)


def _fill_panels(matrix: Array, result: Array) -> None:
    (depth, columns), width = matrix.shape, result.shape[-1]
    count, rest = divmod(columns, width)
    whole = matrix[:, : count * width].reshape(depth, count, width) if count else None
    if whole is not None:
        np.copyto(result[:count], whole.transpose(1, 0, 2))
    if rest:
        result[count, :, :rest] = matrix[:, count * width :]
        result[count, :, rest:] = 0.0


def winograd_panels(weights: Array, edge: int, width: int) -> Array:
    """Filters [out, in, 3, 3] as [panels, points, in, width], transformed in float64."""
    columns, depth = weights.shape[:2]
    shape = (-(-columns // width), (edge + 2) ** 2, depth, width)
    kernel = PackingKernel(width, edge)
    prepare(kernel)
    here = copy_context()  # the thread that packs compiles as this one would

    def fill(out: Array) -> None:
        source = np.ascontiguousarray(weights, np.float32)
        here.run(call, kernel, [source.ctypes.data, out.ctypes.data], [depth, columns], 0, shape[0])

    return _shared(weights, ("winograd", edge, width), shape, fill)


def tap_panels(weights: Array, width: int) -> Array:
    """Filters [out, in, height, width] as the panels of [height * width * in, out]."""
    columns, depth = weights.shape[0], math.prod(weights.shape[1:])

    def fill(out: Array) -> None:
        _fill_panels(weights.transpose(2, 3, 1, 0).reshape(depth, columns), out)

    return _shared(weights, ("taps", width), (-(-columns // width), depth, width), fill)


def channel_filters(weights: Array) -> Array:
    """Filters [channels, 1, height, width] as [height, width, channels]."""
    turned = weights[:, 0].transpose(1, 2, 0)
    return _shared(weights, ("channels last",), turned.shape, lambda out: np.copyto(out, turned))
