"""Kernels that go where indices say, or along a row one element after the other: take, put, running folds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pyflame_rt.backends.cpu.ir import instructions as ops
from pyflame_rt.backends.cpu.ir.builder import Builder, Lanes, V
from pyflame_rt.backends.cpu.ir.kernel_program import compute_type, itemsize
from pyflame_rt.backends.cpu.ir.loops import least, load_vector, loop, store_vector, vectors
from pyflame_rt.backends.cpu.jit.target import host as this_host
from pyflame_rt.backends.cpu.kernels.row_loops import SIGNATURE, RowSpace
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyflame_rt.backends.cpu.jit.target import Host

__all__ = ["IndexedKernel", "Params", "RowSumsKernel", "RunningKernel", "load_element", "store_element"]

_FOLDS = {"add": "sum", "mul": "prod", "max": "max", "min": "min"}


class Params:
    """Reads the params of a kernel one after the other."""

    def __init__(self, b: Builder) -> None:
        self._b, self._at = b, 0

    def take(self, count: int) -> list[str]:
        """The next so many numbers."""
        values = [self._b.load_i64("%params", self._at + k) for k in range(count)]
        self._at += count
        return values

    def one(self) -> str:
        """The next number."""
        return self.take(1)[0]


def pointers(b: Builder, count: int) -> Iterator[str]:
    """The addresses of the operands."""
    return (b.op(f"load ptr, ptr {b.element('ptr', '%bufs', str(k))}") for k in range(count))


def load_element(b: Builder, dtype: str, pointer: str, position: str) -> V:
    """One element as a value of its compute type."""
    kind, one = ops.stored(dtype), Lanes(b, 1)
    return ops.from_memory(one.wrap(kind, f"load {kind}, ptr {b.element(kind, pointer, position)}, align 1"), dtype)


def store_element(b: Builder, dtype: str, value: V, pointer: str, position: str) -> None:
    """Put one element."""
    result = ops.to_memory(value, dtype)
    b.do(f"store {result.kind} {result.name}, ptr {b.element(result.elem, pointer, position)}, align 1")


@dataclass(frozen=True)
class IndexedKernel:
    """Elements at places that index tuples name.

    For every row of a space of `rank` axes, `n` elements are copied between `far`, at the sum of the tuple's entries
    times their strides, and `near`; `put` writes to `far` (folding with what is there), `take` reads from it.

    bufs: far, indices, near, flag (int64). params: [n, dims, far strides, far inner stride, index strides, step between
    the entries of a tuple, near strides, near inner stride, then size and stride of each of the `depth` indexed axes].
    Negative entries count from the end; one out of range sets flag to 1 + its row.
    """

    dtype: str
    index_dtype: str  # int32 or int64
    rank: int
    depth: int
    put: bool = False
    fold: str = "none"
    whole: bool = False  # inner strides are one: rows are copied as bytes

    @property
    def key(self) -> str:
        """Equal for kernels of equal structure."""
        kind = self.dtype if self.fold != "none" else str(itemsize(self.dtype))
        way = f"put{self.fold}" if self.put else "take"
        return f"{way}{kind}{self.index_dtype}r{self.rank}d{self.depth}{'w' if self.whole else ''}"

    def emit(self, name: str, host: Host | None = None) -> str:
        """The module of the kernel."""
        b = Builder(host or this_host())
        b.begin()
        far, indices, near, flag = pointers(b, 4)
        params = Params(b)
        n, dims = params.one(), params.take(self.rank)
        far_strides, far_inner = params.take(self.rank), params.one()
        index_strides, step = params.take(self.rank), params.one()
        near_strides, near_inner = params.take(self.rank), params.one()
        axes = [params.take(2) for _ in range(self.depth)]
        rows = RowSpace(b, dims, [far_strides, index_strides, near_strides])
        far_at, index_at, near_at = rows.open()
        far_at, good = self._place(b, indices, index_at, step, axes, far_at)
        copy, bad, done = b.label("copy"), b.label("bad"), b.label("next")
        b.branch(good, copy, bad)
        b.place(bad)
        b.do(f"store atomic i64 {b.integer(f'add {rows.row}, 1')}, ptr {flag} monotonic, align 8")
        b.jump(done)
        b.place(copy)
        self._copy(b, n, (far, far_at, far_inner), (near, near_at, near_inner))
        b.jump(done)
        b.place(done)
        rows.close()
        b.end(SIGNATURE.format(name=name))
        return b.text()

    def _place(
        self, b: Builder, indices: str, index_at: str, step: str, axes: list[list[str]], place: str
    ) -> tuple[str, str]:
        """Where the tuple points, and whether it is inside."""
        good, at = "true", index_at
        for k, (size, stride) in enumerate(axes):
            at = index_at if k == 0 else b.integer(f"add {at}, {step}")
            index = load_element(b, self.index_dtype, indices, at)
            entry = index.name if index.elem == "i64" else b.op(f"sext i32 {index.name} to i64")
            wrapped = b.integer(f"add {entry}, {size}")
            entry = b.op(f"select i1 {b.op(f'icmp slt i64 {entry}, 0')}, i64 {wrapped}, i64 {entry}")
            good = b.op(f"and i1 {good}, {b.op(f'icmp ult i64 {entry}, {size}')}")
            place = b.integer(f"add {place}, {b.integer(f'mul {entry}, {stride}')}")
        return place, good

    def _copy(self, b: Builder, n: str, far: tuple[str, str, str], near: tuple[str, str, str]) -> None:
        source, target = (near, far) if self.put else (far, near)
        plain = self.dtype if self.fold != "none" else f"uint{8 * itemsize(self.dtype)}"
        if self.whole and self.fold == "none":
            kind = ops.stored(plain)
            to, origin = (b.element(kind, base, at) for base, at, _ in (target, source))
            size = b.integer(f"mul {n}, {itemsize(plain)}")
            b.call("void", "llvm.memcpy.p0.p0.i64", [("ptr", to), ("ptr", origin), ("i64", size), ("i1", "false")])
            return

        def element(i: str, _: list[V]) -> list[V]:
            places = [b.integer(f"add {at}, {b.integer(f'mul {i}, {inner}')}") for _, at, inner in (source, target)]
            value = load_element(b, plain, source[0], places[0])
            if self.fold != "none":
                old = load_element(b, plain, target[0], places[1])
                value = ops.combine(_FOLDS[self.fold], compute_type(plain), old, value)
            store_element(b, plain, value, target[0], places[1])
            return []

        loop(b, "0", n, 1, [], element)


@dataclass(frozen=True)
class RowSumsKernel:
    """Row i of the result is the sum of the updates whose index is i. Threads take columns, so none waits for another.

    bufs: result, indices, updates, flag (int64). params: columns, rows of the result, updates, stride of the indices,
    stride of the updates, columns of a block. rows: blocks of columns. Negative indices count from the end; one out of
    range sets flag to 1 + its number.
    """

    elem: Literal["float", "double"]
    index_dtype: str  # int32 or int64

    @property
    def key(self) -> str:
        """Equal for kernels of equal structure."""
        return f"rowsums{self.elem}{self.index_dtype}"

    def emit(self, name: str, host: Host | None = None) -> str:
        """The module of the kernel."""
        host = host or this_host()
        b = Builder(host)
        b.begin()
        bufs = list(pointers(b, 4))
        columns, *sizes, block = Params(b).take(6)

        def part(k: str, _: list[V]) -> list[V]:
            low = b.integer(f"mul {k}, {block}")
            high = least(b, b.integer(f"add {low}, {block}"), columns)
            self._block(
                Lanes(b, host.vector_bytes // (4 if self.elem == "float" else 8)), bufs, sizes, columns, low, high
            )
            return []

        loop(b, "%begin", "%end", 1, [], part)
        b.do("ret void")
        b.end(SIGNATURE.format(name=name))
        return b.text()

    def _block(self, at: Lanes, bufs: list[str], sizes: list[str], columns: str, low: str, high: str) -> None:
        b, (result, indices, updates, flag), (rows, count, step, stride) = at.builder, bufs, sizes

        def clear(row: str, _: list[V]) -> list[V]:
            line = b.element(self.elem, result, b.integer(f"mul {row}, {columns}"))

            def zero(i: str, mask: V | None, _: list[V]) -> list[V]:
                store_vector(at.const(self.elem, 0.0), b.element(self.elem, line, i), mask)
                return []

            vectors(at, low, high, [], zero)
            return []

        def update(u: str, _: list[V]) -> list[V]:
            index = load_element(b, self.index_dtype, indices, b.integer(f"mul {u}, {step}"))
            entry = index.name if index.elem == "i64" else b.op(f"sext i32 {index.name} to i64")
            wrapped = b.integer(f"add {entry}, {rows}")
            entry = b.op(f"select i1 {b.op(f'icmp slt i64 {entry}, 0')}, i64 {wrapped}, i64 {entry}")
            inside, outside, done = b.label("inside"), b.label("outside"), b.label("next")
            b.branch(b.op(f"icmp ult i64 {entry}, {rows}"), inside, outside)
            b.place(outside)
            b.do(f"store atomic i64 {b.integer(f'add {u}, 1')}, ptr {flag} monotonic, align 8")
            b.jump(done)
            b.place(inside)
            target = b.element(self.elem, result, b.integer(f"mul {entry}, {columns}"))
            source = b.element(self.elem, updates, b.integer(f"mul {u}, {stride}"))

            def add(i: str, mask: V | None, _: list[V]) -> list[V]:
                place = b.element(self.elem, target, i)
                new = load_vector(at, b.element(self.elem, source, i), mask, self.elem)
                store_vector(load_vector(at, place, mask, self.elem) + new, place, mask)
                return []

            vectors(at, low, high, [], add)
            b.jump(done)
            b.place(done)
            return []

        loop(b, "0", rows, 1, [], clear)
        loop(b, "0", count, 1, [], update)


@dataclass(frozen=True)
class RunningKernel:
    """dst[i] = the fold of src up to element i of each row; `exclusive` leaves out the element itself.

    Narrow floats are folded in float32, and rounded where they are stored.

    bufs: src, dst. params: [n, dims, src strides, src inner stride, dst strides, dst inner stride].
    """

    dtype: str
    rank: int
    kind: Literal["sum", "prod"] = "sum"
    exclusive: bool = False

    @property
    def key(self) -> str:
        """Equal for kernels of equal structure."""
        return f"running{self.kind}{self.dtype}r{self.rank}{'x' if self.exclusive else ''}"

    def emit(self, name: str, host: Host | None = None) -> str:
        """The module of the kernel."""
        b = Builder(host or this_host())
        b.begin()
        source, target = pointers(b, 2)
        params = Params(b)
        n, dims = params.one(), params.take(self.rank)
        from_strides, from_inner = params.take(self.rank), params.one()
        to_strides, to_inner = params.take(self.rank), params.one()
        rows = RowSpace(b, dims, [from_strides, to_strides])
        from_at, to_at = rows.open()
        kind = compute_type(self.dtype)
        start = Lanes(b, 1).const(ops.element(kind), ops.identity(self.kind, kind))

        def element(i: str, carried: list[V]) -> list[V]:
            place = b.integer(f"add {from_at}, {b.integer(f'mul {i}, {from_inner}')}")
            total = ops.combine(self.kind, kind, carried[0], load_element(b, self.dtype, source, place))
            place = b.integer(f"add {to_at}, {b.integer(f'mul {i}, {to_inner}')}")
            store_element(b, self.dtype, carried[0] if self.exclusive else total, target, place)
            return [total]

        loop(b, "0", n, 1, [start], element)
        rows.close()
        b.end(SIGNATURE.format(name=name))
        return b.text()
