"""Vectors in a PE's memory: reading, writing, and the sequential meaning of operations on overlapping operands."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from wsesim import watch
from wsesim.fabric.dsd import Circ, Mem, Mem4
from wsesim.fabric.errors import ProgramFault

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wsesim.fabric.bounds import Bounds
    from wsesim.fabric.ops import OpSpec

__all__ = ["Memory"]

MEMORY_BYTES = 48 * 1024
Vector = Mem | Mem4 | Circ
_CODES = ("f2", "f4", "u1", "i1", "u2", "i2", "u4", "i4")


@lru_cache(maxsize=4096)
def _offsets(extents: tuple[int, ...], strides: tuple[int, ...], size: int, start: int, count: int) -> Any:
    """Byte offsets of the elements of an access in several dimensions."""
    numbers = np.arange(start, start + count)
    total = np.zeros(count, np.int64)
    for extent, stride in zip(reversed(extents), reversed(strides), strict=True):
        total += numbers % max(1, extent) * (stride * size)
        numbers = numbers // max(1, extent)
    return total


class Memory:
    """48 KB of one PE: one row of the array that all PEs of a program share."""

    def __init__(self, row: NDArray[np.uint8], bounds: Bounds, where: str = "", *, strict: bool = False) -> None:
        self.where = where
        self.bounds = bounds
        self.strict = strict
        self.ranges = bounds.ranges
        self.mem = row
        self.base = row.ctypes.data  # for native code
        self.views: dict[np.dtype[Any], NDArray[Any]] = {np.dtype(c): row.view(c) for c in _CODES}
        self.f16: NDArray[np.float16] = row.view(np.float16)
        raw = row.data.cast("B")
        self.m8, self.mi8 = raw, raw.cast("b")
        self.m16, self.mi16 = raw.cast("H"), raw.cast("h")
        self.m32, self.mi32, self.mf32 = raw.cast("I"), raw.cast("i"), raw.cast("f")
        self.m64, self.mi64 = raw.cast("Q"), raw.cast("q")
        self.raw = raw

    # --- views -------------------------------------------------------------------------------------------------

    def fault(self, what: str) -> ProgramFault:
        """The error for an access outside memory."""
        return ProgramFault(f"{self.where}: {what} lies outside the {MEMORY_BYTES} bytes of a PE")

    def warn(self, text: str) -> None:
        """Says what strict mode refuses."""
        raise NotImplementedError

    def beyond(self, home: int, first: int, end: int) -> None:
        """A vector leaves its variable: an error in strict mode; said elsewhere, since a published program does it."""
        low, high = self.ranges[home]
        if not home or first < 0 or end > MEMORY_BYTES:
            raise self.fault(f"a vector from byte {first} to {end}")
        text = (
            f"{self.where}: a vector from byte {first} to {end} reaches beyond {self.bounds.names[home]}, "
            f"which has bytes {low} to {high}"
        )
        if self.strict:
            raise ProgramFault(text)
        self.warn(text)

    def vector(self, dtype: np.dtype[Any], m: Mem, start: int, count: int, index: int = 0) -> NDArray[Any]:
        """Elements ``start``..``start + count`` of a one-dimensional access, as a writable view."""
        size = dtype.itemsize
        stride = m.stride
        addr = m.addr + start * stride * size
        if m.indexed:
            addr += index * 2
        far = addr + (count - 1) * stride * size
        first, end = (addr, far + size) if stride >= 0 else (far, addr + size)
        low, high = self.ranges[m.home]
        if first < low or end > high:
            self.beyond(m.home, first, end)
        if stride > 0 and not addr % size:
            return self.views[dtype][addr // size : end // size : stride]
        return np.ndarray((count,), dtype, self.mem, addr, (stride * size,))

    def addresses(self, dtype: np.dtype[Any], m: Vector, start: int, count: int, index: int = 0) -> NDArray[np.int64]:
        """Byte address of each element."""
        size = dtype.itemsize
        offset = index * 2 if m.indexed else 0
        if isinstance(m, Mem4):
            found = _offsets(m.extents, m.strides, size, start, count) + (m.addr + offset)
        elif isinstance(m, Mem):
            found = m.addr + offset + np.arange(start, start + count) * (m.stride * size)
        else:
            numbers = (m.addr - m.base) // size + np.arange(start, start + count)
            found = m.base + offset + numbers % max(1, m.wrap) * size
        low, high = self.ranges[m.home]
        if count and (found.min() < low or found.max() + size > high):
            self.beyond(m.home, int(found.min()), int(found.max()) + size)
        return found

    def gather(self, dtype: np.dtype[Any], at: NDArray[np.int64]) -> NDArray[Any]:
        """Elements at byte addresses."""
        if len(at) and (at.min() < 0 or at.max() + dtype.itemsize > MEMORY_BYTES):
            raise self.fault(f"a vector element at address {int(at.max())}")
        if not np.any(at % dtype.itemsize):
            return self.views[dtype][at // dtype.itemsize]
        halves = self.views[np.dtype("u2")]
        pairs = np.stack([halves[at // 2], halves[at // 2 + 1]], axis=1)
        return np.ascontiguousarray(pairs).view(dtype)[:, 0]

    def scatter(self, dtype: np.dtype[Any], at: NDArray[np.int64], values: NDArray[Any]) -> None:
        """Writes elements in order, so that the last one wins."""
        if len(at) and (at.min() < 0 or at.max() + dtype.itemsize > MEMORY_BYTES):
            raise self.fault(f"a vector element at address {int(at.max())}")
        if not np.any(at % dtype.itemsize):
            target = self.views[dtype]
            for where, value in zip((at // dtype.itemsize).tolist(), values, strict=True):
                target[where] = value
            return
        halves = self.views[np.dtype("u2")]
        pairs = np.ascontiguousarray(values).view(np.uint16).reshape(-1, 2)
        for where, pair in zip((at // 2).tolist(), pairs, strict=True):
            halves[where : where + 2] = pair

    def read(self, dtype: np.dtype[Any], m: Vector, start: int, count: int, index: int = 0) -> NDArray[Any]:
        """Elements of a vector, in order (a view where possible)."""
        if isinstance(m, Mem):
            return self.vector(dtype, m, start, count, index)
        return self.gather(dtype, self.addresses(dtype, m, start, count, index))

    def clear(self, dtype: np.dtype[Any], m: Vector, count: int) -> None:
        """Fills a vector with zeros."""
        self.scatter(dtype, self.addresses(dtype, m, 0, count), np.zeros(count, dtype))

    # --- the sequential meaning --------------------------------------------------------------------------------

    def combine(
        self, spec: OpSpec, dst: Vector, srcs: tuple[Any, ...], values: list[Any], start: int, count: int, index: int
    ) -> None:
        """Computes and stores, as if element by element."""
        if isinstance(dst, Mem) and dst.stride != 0:
            if not hazard(spec, dst, srcs, count):
                target = self.vector(spec.dest, dst, start, count, index)
                target[...] = spec.compute(*values)
                return
            self._one_by_one(spec, dst, srcs, values, start, count, index)
            return
        at = self.addresses(spec.dest, dst, start, count, index)
        if isinstance(dst, Mem):  # stride 0: one destination for all
            if self._fold(spec, dst, srcs, values, at, count):
                return
        elif self._several_dimensions(spec, dst, srcs, values, at, start, count, index):
            return
        self._one_by_one(spec, dst, srcs, values, start, count, index)

    def _several_dimensions(
        self,
        spec: OpSpec,
        dst: Vector,
        srcs: tuple[Any, ...],
        values: list[Any],
        at: NDArray[np.int64],
        start: int,
        count: int,
        index: int,
    ) -> bool:
        """Several dimensions, or a circular buffer: at once where no other operand overlaps, accumulating in order."""
        if np.any(at % spec.dest.itemsize) or at.min() < 0 or at.max() + spec.dest.itemsize > MEMORY_BYTES:
            return False
        same = [s == dst and k.itemsize == spec.dest.itemsize for s, k in zip(srcs, spec.sources, strict=False)]
        for src, kind, equal in zip(srcs, spec.sources, same, strict=False):
            if isinstance(src, Mem | Mem4 | Circ) and not equal:
                other = self.addresses(kind, src, start, count, index)
                if other.min() < at.max() + spec.dest.itemsize and at.min() < other.max() + kind.itemsize:
                    return False
        target, where = self.views[spec.dest], at // spec.dest.itemsize
        if len(np.unique(where)) == count:
            target[where] = np.broadcast_to(np.asarray(spec.compute(*values)), (count,))
            return True
        if spec.fold is None or not same[0] or any(same[1:]):
            return False
        spec.fold.at(target, where, np.broadcast_to(np.asarray(values[1]), (count,)).astype(spec.dest))
        return True

    def _fold(
        self, spec: OpSpec, dst: Mem, srcs: tuple[Any, ...], values: list[Any], at: NDArray[np.int64], count: int
    ) -> bool:
        """A repeated destination: an accumulation in order, or the last value."""
        same = [isinstance(s, Mem) and s.stride == 0 and s.addr == dst.addr for s in srcs]
        if not any(same):
            result = np.broadcast_to(np.asarray(spec.compute(*values)), (count,))
            if any(isinstance(s, Mem) and overlaps(spec, dst, s, count) for s in srcs):
                return False
            self.scatter(spec.dest, at[-1:], np.asarray(result[-1:], spec.dest))
            return True
        if not same[0] or any(same[1:]):
            return False
        if spec.fold is not None and len(srcs) == 2:
            terms = np.broadcast_to(np.asarray(values[1]), (count,)).astype(spec.dest)
            fold = spec.fold
        elif spec.name in ("fmacs", "fmach", "fmachs"):
            product = np.multiply(values[1], values[2], dtype=spec.dest)
            terms = np.broadcast_to(product, (count,))
            fold = np.add
        else:
            return False
        first = np.asarray(values[0]).reshape(-1)[:1].astype(spec.dest)
        total = fold.accumulate(np.concatenate([first, terms]), dtype=spec.dest)[-1:]
        self.scatter(spec.dest, at[-1:], total)
        return True

    def _one_by_one(
        self, spec: OpSpec, dst: Vector, srcs: tuple[Any, ...], values: list[Any], start: int, count: int, index: int
    ) -> None:
        at = self.addresses(spec.dest, dst, start, count, index)
        froms = [
            self.addresses(kind, s, start, count, index) if isinstance(s, Mem | Mem4 | Circ) else None
            for s, kind in zip(srcs, spec.sources, strict=False)
        ]
        kept = [np.broadcast_to(np.asarray(v), (count,)).copy() for v in values]
        for i in range(count):
            if not i % 1024:
                watch.poll()
            args = [
                self.gather(kind, f[i : i + 1]) if f is not None else v[i : i + 1]
                for f, v, kind in zip(froms, kept, spec.sources, strict=False)
            ]
            self.scatter(spec.dest, at[i : i + 1], np.asarray(spec.compute(*args)).astype(spec.dest))


def _span(m: Mem, size: int, count: int) -> tuple[int, int]:
    far = m.addr + (count - 1) * m.stride * size
    return (min(m.addr, far), max(m.addr, far) + size)


def overlaps(spec: OpSpec, dst: Mem, src: Mem, count: int) -> bool:
    """Whether a source shares bytes with the destination without being the same vector."""
    low, high = _span(dst, spec.dest.itemsize, count)
    slow, shigh = _span(src, spec.sources[0].itemsize, count)
    return low < shigh and slow < high


def hazard(spec: OpSpec, dst: Mem, srcs: tuple[Any, ...], count: int) -> bool:
    """Whether a later element may read what an earlier one wrote."""
    for src, kind in zip(srcs, spec.sources, strict=False):
        if type(src) is Mem:
            if src.addr == dst.addr and src.stride == dst.stride and kind.itemsize == spec.dest.itemsize:
                continue
            if overlaps(spec, dst, src, count):
                return True
        elif isinstance(src, Mem4 | Circ):
            return True
    return False
