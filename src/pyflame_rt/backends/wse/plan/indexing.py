"""Operators that pick by number: written as takes and puts, comparisons and reductions.

Numbers that the host has are checked and counted from the front there; numbers that the PEs compute are counted from
the front on the PEs, and one beyond its dimension picks nothing.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.backends.wse.plan.decompositions import Opening
from pyflame_rt.backends.wse.plan.views import VIEWS
from pyflame_rt.graph import DType
from pyflame_rt.graph.errors import UnsupportedOperatorError
from pyflame_rt.ops.onnx.arithmetic import Add, Mul
from pyflame_rt.ops.onnx.cast import Cast
from pyflame_rt.ops.onnx.creation import Trilu
from pyflame_rt.ops.onnx.index import Gather, GatherElements, GatherND, ScatterElements, ScatterND
from pyflame_rt.ops.onnx.logic import Equal, Less, Or, Where
from pyflame_rt.ops.onnx.math import IsNaN
from pyflame_rt.ops.onnx.matmul import MatMul
from pyflame_rt.ops.onnx.reduce import ArgMax, ArgMin, CumSum, ReduceMax, ReduceMin, ReduceSum
from pyflame_rt.ops.onnx.shape import Reshape, Transpose
from pyflame_rt.ops.onnx.slicing import Concat, Slice

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyflame_rt.backends.wse.plan.primitives import Flat, PrimitiveCall

__all__ = ["INDEXED"]


class _Indexing(Opening):
    def known(self, place: int, what: str) -> Any:
        """An input that must be known; None when it is left out."""
        name = self.step.inputs[place] if len(self.step.inputs) > place else ""
        if not name:
            return None
        if name not in self.flat.constants:
            raise UnsupportedOperatorError(
                f"node {self.step.origin!r}: {self.step.op} needs {what} known when compiling"
            )
        return self.flat.constants[name]

    def axis(self, name: str) -> int:
        """The attribute ``axis``, counted from the front."""
        return self.step.attributes.get("axis", 0) % max(1, len(self.flat.shape(name)))

    def places(self, name: str, sizes: list[int]) -> str:
        """Numbers from the front, one for each tuple of the last dimension when there are several sizes."""
        shape = self.flat.shape(name)
        out = shape[:-1] if len(sizes) > 1 else shape
        if _from_host(self.flat, name):
            return self.add("Indices", (name,), out, dtype=DType.Int64, sizes=sizes)
        dtype = self.flat.dtype(name)
        total = ""
        for j, size in enumerate(sizes):
            part = name
            if len(sizes) > 1:
                bounds = tuple(self.constant(np.array([n])) for n in (j, j + 1, len(shape) - 1))
                part = self.add(Slice.name, (name, *bounds), (*shape[:-1], 1), dtype=dtype)
                part = self.add(Reshape.name, (part,), out, dtype=dtype)
            part = self._counted(part, size, out, dtype)
            if len(sizes) > 1:
                step = self.constant(np.array(math.prod(sizes[j + 1 :]), dtype.numpy))
                part = self.add(Mul.name, (part, step), out, dtype=dtype)
            total = self.add(Add.name, (total, part), out, dtype=dtype) if total else part
        return total

    def _counted(self, name: str, size: int, shape: tuple[int, ...], dtype: DType) -> str:
        zero, whole = (self.constant(np.array(n, dtype.numpy)) for n in (0, size))
        below = self.add(Less.name, (name, zero), shape, dtype=DType.Bool)
        moved = self.add(Add.name, (name, whole), shape, dtype=dtype)
        return self.add(Where.name, (below, moved, name), shape, dtype=dtype)

    def gather(self) -> list[PrimitiveCall]:
        """Gather and GatherElements."""
        data, index = self.step.inputs[:2]
        axis = self.axis(data)
        places = self.places(index, [self.flat.shape(data)[axis]])
        each = self.step.op == GatherElements.name
        self.add("wse::Take", (data, places), self.shape, self.step.output, axis=axis, each=each)
        return self.steps

    def gather_nd(self) -> list[PrimitiveCall]:
        """Slices at tuples: a take from the leading dimensions in one."""
        if self.step.attributes.get("batch_dims"):
            raise UnsupportedOperatorError(f"node {self.step.origin!r}: GatherND with batch_dims has no rule")
        data, places = self._tuples()
        self.add("wse::Take", (data, places), self.shape, self.step.output, axis=0, each=False)
        return self.steps

    def _tuples(self) -> tuple[str, str]:
        """The data with the dimensions that tuples address in one, and the place each tuple means."""
        data, index = self.step.inputs[:2]
        shape, given = self.flat.shape(data), self.flat.shape(index)
        depth = given[-1]
        places = self.places(index, list(shape[:depth]))
        if depth == 1:
            return data, self.add(Reshape.name, (places,), given[:-1], dtype=self.flat.dtype(places))
        flat = (math.prod(shape[:depth]), *shape[depth:])
        return self.add(Reshape.name, (data,), flat, dtype=self.flat.dtype(data)), places

    def scatter(self) -> list[PrimitiveCall]:
        """ScatterElements."""
        data, index, updates = self.step.inputs
        axis = self.axis(data)
        places = self.places(index, [self.flat.shape(data)[axis]])
        self._put((data, places, updates), self.shape, self.step.output, axis, True)
        return self.steps

    def scatter_nd(self) -> list[PrimitiveCall]:
        """ScatterND: a put into the leading dimensions in one."""
        data, places = self._tuples()
        shape = self.flat.shape(data)
        straight = shape == self.shape
        made = self._put((data, places, self.step.inputs[2]), shape, self.step.output if straight else "", 0, False)
        if not straight:
            self.add(Reshape.name, (made,), self.shape, self.step.output)
        return self.steps

    def _put(self, inputs: tuple[str, ...], shape: tuple[int, ...], output: str, axis: int, each: bool) -> str:
        kind = self.step.attributes.get("reduction") or "none"
        return self.add("wse::Put", inputs, shape, output, axis=axis, each=each, reduction=kind)

    def arg(self) -> list[PrimitiveCall]:
        """The number of the first (or last) element that is the extreme, or not a number."""
        source, given = self.step.inputs[0], self.step.attributes
        shape, dtype = self.flat.shape(source), self.flat.dtype(source)
        axis = self.axis(source)
        kept = tuple(1 if d == axis else n for d, n in enumerate(shape))
        size, last = shape[axis], bool(given.get("select_last_index"))
        axes = self.constant(np.array([axis]))
        best = ReduceMax.name if self.step.op == ArgMax.name else ReduceMin.name
        found = self.add(best, (source, axes), kept, dtype=dtype, keepdims=1)
        hit = self.add(Equal.name, (source, found), shape, dtype=DType.Bool)
        if dtype.is_float:
            nan = self.add(IsNaN.name, (source,), shape, dtype=DType.Bool)
            hit = self.add(Or.name, (hit, nan), shape, dtype=DType.Bool)
        column = tuple(size if d == axis else 1 for d in range(len(shape)))
        numbers = self.constant(np.arange(size, dtype=np.float32).reshape(column))
        other = self.constant(np.array(-1 if last else size, np.float32))
        picked = self.add(Where.name, (hit, numbers, other), shape, dtype=DType.Float32)
        first = self.add(
            ReduceMax.name if last else ReduceMin.name, (picked, axes), kept, dtype=DType.Float32, keepdims=1
        )  # fmt: skip
        whole = self.add(Cast.name, (first,), kept, dtype=DType.Int64, to=DType.Int64.onnx)
        self.add(Reshape.name, (whole,), self.shape, self.step.output)
        return self.steps

    def trilu(self) -> list[PrimitiveCall]:
        """A triangle: the rest is zero."""
        source = self.step.inputs[0]
        k = self.known(1, "its diagonal")
        shift = 0 if k is None else int(np.ravel(k)[0])
        rows, cols = self.shape[-2:]
        above = np.arange(cols) - np.arange(rows)[:, None]
        mask = self.constant(above >= shift if self.step.attributes.get("upper", 1) else above <= shift)
        zero = self.constant(np.zeros((), self.dtype.numpy))
        self.add(Where.name, (mask, source, zero), self.shape, self.step.output)
        return self.steps

    def running_sum(self) -> list[PrimitiveCall]:
        """A product with a triangle of ones; whole numbers are picked by the triangle and added up."""
        rank = len(self.shape)
        axis = int(np.ravel(self.known(1, "its axis"))[0]) % rank
        size, given = self.shape[axis], self.step.attributes
        before = np.arange(size)[:, None] - np.arange(size)  # position of the addend minus that of the sum
        before = -before if given.get("reverse") else before
        inside = before < 0 if given.get("exclusive") else before <= 0
        if not self.dtype.is_float:
            return self._added(axis, inside)
        order = [*(d for d in range(rank) if d != axis), axis]
        turned = tuple(self.shape[d] for d in order)
        source, straight = self.step.inputs[0], axis == rank - 1
        if not straight:
            source = self.add(Transpose.name, (source,), turned, perm=order)
        made = self.add(
            MatMul.name,
            (source, self.constant(inside.astype(self.dtype.numpy))),
            turned,
            self.step.output if straight else "",
        )
        if not straight:
            self.add(Transpose.name, (made,), self.shape, self.step.output, perm=[int(i) for i in np.argsort(order)])
        return self.steps

    def _added(self, axis: int, inside: np.ndarray[Any, Any]) -> list[PrimitiveCall]:
        rank, size = len(self.shape), self.shape[axis]
        before, after = self.shape[:axis], self.shape[axis + 1 :]
        column = self.add(Reshape.name, (self.step.inputs[0],), (*before, size, 1, *after))
        mask = self.constant(inside.reshape(size, size, *[1] * (rank - axis - 1)))
        zero = self.constant(np.zeros((), self.dtype.numpy))
        picked = self.add(Where.name, (mask, column, zero), (*before, size, size, *after))
        axes = self.constant(np.array([axis]))
        self.add(ReduceSum.name, (picked, axes), self.shape, self.step.output, keepdims=0)
        return self.steps


def _from_host(flat: Flat, name: str) -> bool:
    """Whether the host has a value without asking the PEs."""
    makers = {s.output: s for s in flat.steps}
    while name not in flat.inputs and name not in flat.constants:
        step = makers.get(name)
        if step is None or step.op not in VIEWS or step.op == Concat.name:
            return False
        name = step.inputs[0]
    return True


def _rule(method: str) -> Callable[[Flat, PrimitiveCall], list[PrimitiveCall]]:
    return lambda flat, step: getattr(_Indexing(flat, step), method)()


INDEXED = {
    ArgMax.name: _rule("arg"),
    ArgMin.name: _rule("arg"),
    CumSum.name: _rule("running_sum"),
    Gather.name: _rule("gather"),
    GatherElements.name: _rule("gather"),
    GatherND.name: _rule("gather_nd"),
    ScatterElements.name: _rule("scatter"),
    ScatterND.name: _rule("scatter_nd"),
    Trilu.name: _rule("trilu"),
}
