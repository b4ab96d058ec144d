"""The k largest or smallest elements of each row, in order: a heap kept in the outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyflame_rt.backends.cpu.ir import instructions as ops
from pyflame_rt.backends.cpu.ir.builder import Builder, V
from pyflame_rt.backends.cpu.ir.kernel_program import FLOATS, compute_type
from pyflame_rt.backends.cpu.ir.loops import loop, when
from pyflame_rt.backends.cpu.jit.target import host as this_host
from pyflame_rt.backends.cpu.kernels.indexing import Params, load_element, pointers, store_element
from pyflame_rt.backends.cpu.kernels.row_loops import SIGNATURE, RowSpace
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from pyflame_rt.backends.cpu.jit.target import Host

__all__ = ["TopKKernel"]


@dataclass(frozen=True)
class TopKKernel:
    """The first `k` elements of each row by size, and their places; among equals the first comes first.

    NaN is larger than every number. bufs: src, values, places (int64). params: [n, k, dims, src strides, src inner
    stride, strides of the results, their inner stride].
    """

    dtype: str
    rank: int
    largest: bool = True

    @property
    def key(self) -> str:
        """Equal for kernels of equal structure."""
        return f"top{self.dtype}r{self.rank}{'' if self.largest else 'least'}"

    def emit(self, name: str, host: Host | None = None) -> str:
        """The module of the kernel."""
        b = Builder(host or this_host())
        self._emit_sift(b, name)
        b.begin()
        source, values, places = pointers(b, 3)
        params = Params(b)
        n, k, dims = params.one(), params.one(), params.take(self.rank)
        from_strides, from_inner = params.take(self.rank), params.one()
        to_strides, inner = params.take(self.rank), params.one()
        rows = RowSpace(b, dims, [from_strides, to_strides])
        from_at, to_at = rows.open()
        heap = b.element(ops.stored(self.dtype), values, to_at), b.element("i64", places, to_at)
        row = b.element(ops.stored(self.dtype), source, from_at)
        self._fill(b, row, from_inner, heap, inner, k)
        self._sift_all(b, name, heap, inner, k)
        self._replace(b, name, row, from_inner, heap, inner, (k, n))
        self._order(b, name, heap, inner, k)
        rows.close()
        b.end(SIGNATURE.format(name=name))
        return b.text()

    # A heap of the best so far has the worst of them at its root.

    def _fill(self, b: Builder, row: str, step: str, heap: tuple[str, str], inner: str, k: str) -> None:
        def element(i: str, _: list[V]) -> list[V]:
            value = load_element(b, self.dtype, row, b.integer(f"mul {i}, {step}"))
            self._put(b, heap, b.integer(f"mul {i}, {inner}"), value, i)
            return []

        loop(b, "0", k, 1, [], element)

    def _sift_all(self, b: Builder, name: str, heap: tuple[str, str], inner: str, k: str) -> None:
        half = b.integer(f"udiv {k}, 2")

        def element(i: str, _: list[V]) -> list[V]:
            root = b.integer(f"sub {b.integer(f'sub {half}, 1')}, {i}")
            self._sift(b, name, heap, inner, root, k)
            return []

        loop(b, "0", half, 1, [], element)

    def _replace(
        self, b: Builder, name: str, row: str, step: str, heap: tuple[str, str], inner: str, bounds: tuple[str, str]
    ) -> None:
        k, n = bounds

        def element(i: str, _: list[V]) -> list[V]:
            value = load_element(b, self.dtype, row, b.integer(f"mul {i}, {step}"))
            root = load_element(b, self.dtype, heap[0], "0")
            # A later element is better only when it is truly larger.
            better = self._key(root).cmp("slt", self._key(value))

            def enter(_: list[V]) -> list[V]:
                self._put(b, heap, "0", value, i)
                self._sift(b, name, heap, inner, "0", k)
                return []

            when(b, better.name, [], enter)
            return []

        some = b.op(f"select i1 {b.op(f'icmp sgt i64 {k}, 0')}, i64 {n}, i64 0")
        loop(b, k, some, 1, [], element)

    def _order(self, b: Builder, name: str, heap: tuple[str, str], inner: str, k: str) -> None:
        """Take the worst away to the end, again and again."""

        def element(i: str, _: list[V]) -> list[V]:
            last = b.integer(f"sub {b.integer(f'sub {k}, 1')}, {i}")
            end = b.integer(f"mul {last}, {inner}")
            first, other = self._get(b, heap, "0"), self._get(b, heap, end)
            self._put(b, heap, "0", *other)
            self._put(b, heap, end, *first)
            self._sift(b, name, heap, inner, "0", last)
            return []

        loop(b, "0", b.integer(f"sub {k}, 1"), 1, [], element)

    def _sift(self, b: Builder, name: str, heap: tuple[str, str], inner: str, root: str, count: str) -> None:
        b.do(f"call void @{name}_sift(ptr {heap[0]}, ptr {heap[1]}, i64 {inner}, i64 {root}, i64 {count})")

    def _emit_sift(self, b: Builder, name: str) -> None:
        """Let the element at a root sink below those that are worse."""
        b.begin()
        heap, inner = ("%values", "%places"), "%inner"
        again, look, done = b.label("again"), b.label("look"), b.label("done")
        origin = b.block
        b.jump(again)
        b.place(again)
        root = b.phi("i64", ("%root", origin))
        left = b.integer(f"add {b.integer(f'shl {root}, 1')}, 1")
        b.branch(b.op(f"icmp slt i64 {left}, %count"), look, done)
        b.place(look)
        right = b.integer(f"add {left}, 1")
        there = b.op(f"icmp slt i64 {right}, %count")
        safe = b.op(f"select i1 {there}, i64 {right}, i64 {left}")
        at_root, at_left, at_right = (b.integer(f"mul {i}, {inner}") for i in (root, left, safe))
        here, one, two = (self._get(b, heap, at) for at in (at_root, at_left, at_right))
        second = self._worse(two, one)
        child = b.op(f"select i1 {second}, i64 {safe}, i64 {left}")
        at_child = b.op(f"select i1 {second}, i64 {at_right}, i64 {at_left}")
        chosen = self._get(b, heap, at_child)
        swap = b.label("swap")
        b.branch(self._worse(chosen, here), swap, done)
        b.place(swap)
        self._put(b, heap, at_root, *chosen)
        self._put(b, heap, at_child, *here)
        b.add_incoming(root, child, b.block)
        b.jump(again)
        b.place(done)
        b.do("ret void")
        b.end(f"internal void @{name}_sift(ptr %values, ptr %places, i64 %inner, i64 %root, i64 %count)")

    def _get(self, b: Builder, heap: tuple[str, str], at: str) -> tuple[V, str]:
        value = load_element(b, self.dtype, heap[0], at)
        return value, b.op(f"load i64, ptr {b.element('i64', heap[1], at)}, align 1")

    def _put(self, b: Builder, heap: tuple[str, str], at: str, value: V, place: str) -> None:
        store_element(b, self.dtype, value, heap[0], at)
        b.do(f"store i64 {place}, ptr {b.element('i64', heap[1], at)}, align 1")

    def _worse(self, x: tuple[V, str], y: tuple[V, str]) -> str:
        """Whether x comes after y."""
        a, c = self._key(x[0]), self._key(y[0])
        later = V(a.at, "i64", x[1]).cmp("sgt", V(a.at, "i64", y[1]))
        return (a.cmp("slt", c) | (a.cmp("eq", c) & later)).name

    def _key(self, x: V) -> V:
        """A signed integer that is larger the earlier the element comes."""
        kind = compute_type(self.dtype)
        if kind in FLOATS:
            size, top = (32, 2**31 - 1) if kind == "float32" else (64, 2**63 - 1)
            bits = (x + 0.0).bits(f"i{size}")  # both zeros are one
            ordered = bits.cmp("slt", 0).where(bits ^ top, bits)
            result = x.cmp("uno", x).where(top, ordered)
            result = result if size == 64 else result.to("sext", "i64")
        elif kind == "bool":
            result = x.to("zext", "i64")
        elif kind == "uint64":
            result = x ^ -(2**63)
        else:
            wide = int(x.elem[1:]) < 64
            result = x.to("zext" if kind.startswith("u") else "sext", "i64") if wide else x
        return result if self.largest else ~result
