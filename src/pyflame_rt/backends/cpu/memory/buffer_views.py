"""Where values live: buffers, and views of them."""

from __future__ import annotations

import math
from dataclasses import field, replace
from enum import Enum
from typing import Any

from pyflame_rt.graph import DType
from pyflame_rt.graph.records import dataclass

__all__ = ["Buffer", "Place", "View", "as_bits", "contiguous_strides", "simplified"]


class Place(Enum):
    """Who owns the memory of a buffer."""

    ARENA = "arena"
    INPUT = "input"
    OUTPUT = "output"
    CONSTANT = "constant"
    FLAG = "flag"


@dataclass(eq=False, slots=True)
class Buffer:
    """A piece of memory; ``index`` is the number of the input or output it stands for.

    ``first`` and ``last`` are the steps between which an arena buffer must keep its contents,
    ``offset`` is where the planner put it.
    """

    nbytes: int
    place: Place = Place.ARENA
    index: int = -1
    array: Any = None
    first: int = -1
    last: int = -1
    offset: int = -1
    source: str = ""  # the value that depends on traced sizes which a constant holds

    def touch(self, step: int) -> None:
        """Note that a step reads or writes it."""
        self.first = step if self.first < 0 else min(self.first, step)
        self.last = max(self.last, step)


@dataclass(frozen=True, slots=True)
class View:
    """A value in memory: sizes and strides (in elements) on a buffer.

    ``desc`` is the library's descriptor where the layout is blocked; strides mean nothing then.
    """

    buffer: Buffer
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0
    desc: Any = field(default=None, compare=False)

    @property
    def count(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def byte_offset(self) -> int:
        """Bytes from the start of the buffer."""
        return self.offset * self.dtype.itemsize

    @property
    def is_blocked(self) -> bool:
        """True when elements lie in a layout that strides cannot describe."""
        return self.desc is not None

    @property
    def is_contiguous(self) -> bool:
        """True when elements lie one after the other, row by row."""
        if self.desc is not None:
            return False
        wanted = contiguous_strides(self.shape)
        return (
            all(n == 1 or s == w for n, s, w in zip(self.shape, self.strides, wanted, strict=True)) or self.count == 0
        )

    @property
    def is_dense(self) -> bool:
        """True when elements fill their memory without gaps, axes in any order."""
        if self.desc is not None:
            return False
        step = 1
        for s, n in sorted((s, n) for s, n in zip(self.strides, self.shape, strict=True) if n != 1):
            if s != step:
                return False
            step *= n
        return True

    def reshaped(self, shape: tuple[int, ...]) -> View | None:
        """The same elements with other sizes, or None when that needs a copy."""
        if self.is_contiguous:
            return replace(self, shape=shape, strides=contiguous_strides(shape))
        strides = _reshape_strides(self, shape) if not self.is_blocked else None
        return None if strides is None else replace(self, shape=shape, strides=strides)

    def permuted(self, perm: list[int]) -> View:
        """Axes in another order."""
        return replace(self, shape=tuple(self.shape[p] for p in perm), strides=tuple(self.strides[p] for p in perm))

    def broadcast(self, shape: tuple[int, ...]) -> View:
        """Stretched to a larger shape by strides of zero."""
        lead = len(shape) - len(self.shape)
        strides = [0] * lead
        for n, s, wanted in zip(self.shape, self.strides, shape[lead:], strict=True):
            strides.append(s if n == wanted and n != 1 else 0)
        return replace(self, shape=shape, strides=tuple(strides))


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of rows one after the other.

    Example:
        >>> contiguous_strides((2, 3, 4))
        (12, 4, 1)
    """
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))


def strides_in_order(view: View, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a dense value whose axes follow each other in memory as those of a view of the same rank do.

    Example:
        >>> from pyflame_rt.graph import DType
        >>> image = View(Buffer(4 * 60), DType.Float32, (1, 3, 4, 5), (60, 1, 15, 3))  # channels last
        >>> strides_in_order(image, (1, 6, 4, 5))
        (120, 1, 30, 6)
    """
    order = sorted(range(len(shape)), key=lambda axis: (-view.strides[axis], axis))
    inner = contiguous_strides(tuple(shape[axis] for axis in order))
    strides = dict(zip(order, inner, strict=True))
    return tuple(strides[axis] for axis in range(len(shape)))


def _reshape_strides(view: View, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Split and merge axes that lie suitably in memory."""
    old = [(n, s) for n, s in zip(view.shape, view.strides, strict=True) if n != 1]
    runs: list[list[tuple[int, int]]] = []
    for n, s in old:
        if runs and runs[-1][-1][1] == n * s:
            runs[-1].append((n, s))
        else:
            runs.append([(n, s)])
    merged = [(math.prod(n for n, _ in run), run[-1][1]) for run in runs]
    strides: list[int] = []
    rest = list(shape)
    for size, step in merged:
        inner: list[int] = []
        product = 1
        while product < size:
            if not rest:
                return None
            n = rest.pop(0)
            inner.append(n)
            product *= n
        if product != size:
            return None
        stride = step * size
        for n in inner:
            stride //= n
            strides.append(stride)
    if any(n != 1 for n in rest):
        return None
    return tuple(strides + [1] * len(rest))


_BITS = {1: DType.UInt8, 2: DType.UInt16, 4: DType.UInt32, 8: DType.UInt64}


def as_bits(view: View) -> View:
    """The view with its elements as plain integers, for kernels that only move them."""
    size = view.dtype.itemsize
    if size == 16:
        strides = (*(2 * s for s in view.strides), 1)
        return View(view.buffer, DType.UInt64, (*view.shape, 2), strides, 2 * view.offset)
    return replace(view, dtype=_BITS[size])


def simplified(view: View) -> View:
    """A view with strides where the layout, though named as blocked, is a plain one."""
    desc = view.desc
    if desc is None:
        return view
    if desc.is_plain:
        return View(view.buffer, view.dtype, view.shape, desc.strides)
    single = all(d == 1 for d in desc.dims[2:])
    if single and desc.padded_dims == desc.dims and len(desc.blocks) == 1 and desc.blocks[0][0] == 1:
        # One pixel: blocks of channels follow each other, which is what a plain layout does.
        return View(view.buffer, view.dtype, view.shape, contiguous_strides(view.shape))
    return view
