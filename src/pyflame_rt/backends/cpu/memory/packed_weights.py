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

__all__ = [
    "channel_filters",
    "grouped_panels",
    "kept_of_group",
    "kept_steps",
    "listed_panels",
    "panels",
    "tap_panels",
    "winograd_panels",
]

Array = np.ndarray[Any, Any]

# Weights with more than this share other than zero are taken to be dense.
DENSE = 0.6


def panels(matrix: Array, width: int) -> Array:
    """A matrix [depth, columns] as [panels, depth, width] of its type, zeros beyond the last column."""
    depth, columns = matrix.shape
    shape = (-(-columns // width), depth, width)
    return _shared(matrix, ("panels", width), shape, lambda out: _fill_panels(matrix, out))


def kept_steps(matrix: Array, width: int) -> Array | None:
    """True for steps of the depth that hold anything in a panel of columns, [panels, depth]; None for dense weights.

    Whether it is worth a look is decided by a few thousand of the weights.
    """
    depth, columns = matrix.shape
    few = matrix[:: max(1, depth // 64), :: max(1, columns // 64)]
    if np.count_nonzero(few) > DENSE * few.size:
        return None
    padded = np.zeros((depth, -(-columns // width) * width), bool)
    np.not_equal(matrix, 0, out=padded[:, :columns])
    return np.ascontiguousarray(padded.reshape(depth, -1, width).any(axis=2).T)


def listed_panels(matrix: Array, width: int, kept: Array) -> tuple[Array, Array]:
    """The kept steps of all panels [steps, width], and the table of a kernel of listed weights."""
    ends = np.cumsum(kept.sum(axis=1), dtype=np.int64)
    table = np.concatenate([[0], ends, *(np.flatnonzero(row) for row in kept)]).astype(np.int64)
    shape = (max(int(ends[-1]), 1), width)

    def fill(out: Array) -> None:
        out[:] = 0
        for p, row in enumerate(kept):
            part = matrix[row, p * width : (p + 1) * width]
            out[ends[p] - len(part) : ends[p], : part.shape[1]] = part

    return _shared(matrix, ("listed panels", width), shape, fill), table


def kept_of_group(matrix: Array, size: int) -> int:
    """The most weights other than zero that a column has in any ``size`` steps of the depth from a multiple of it on.

    Example:
        >>> kept_of_group(np.array([[0, 1], [2, 0], [0, 0], [0, 3]]), 4)
        2
    """
    padded = np.pad(matrix != 0, ((0, -len(matrix) % size), (0, 0)))
    return int(padded.reshape(-1, size, matrix.shape[1]).sum(axis=1).max(initial=0))


def grouped_panels(matrix: Array, width: int, size: int, kept: int) -> Array:
    """What is kept of each ``size`` steps, [panels, groups, kept, 2, width]: weights, then their places as int32."""
    depth, columns = matrix.shape
    shape = (-(-columns // width), depth // size, kept, 2, width)

    def fill(out: Array) -> None:
        wide = np.zeros((depth // size, size, shape[0] * width), matrix.dtype)
        wide[:, :, :columns] = matrix.reshape(depth // size, size, columns)
        order = np.argsort(wide == 0, axis=1, kind="stable")[:, :kept]  # those other than zero first
        values = np.take_along_axis(wide, order, axis=1)
        for part, array in ((0, values), (1, order.astype(np.int32).view(np.float32))):
            out[:, :, :, part] = array.reshape(depth // size, kept, shape[0], width).transpose(2, 0, 1, 3)

    return _shared(matrix, ("grouped panels", width, size, kept), shape, fill)


def _shared(array: Array, how: tuple[Any, ...], shape: tuple[int, ...], fill: Callable[[Array], None]) -> Array:
    dtype = array.dtype
    size = dtype.itemsize * math.prod(shape)
    return derived(array, how, size, lambda out: fill(out.view(dtype).reshape(shape))).view(dtype).reshape(shape)


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
    """Filters [channels, group, height, width] as [height, width, group, channels]."""
    turned = weights.transpose(2, 3, 1, 0)
    return _shared(weights, ("channels last",), turned.shape, lambda out: np.copyto(out, turned))
