"""Kernels that move data: blocked transpose, gather, fill."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyflame_rt.backends.cpu.ir.builder import Builder, Lanes, V
from pyflame_rt.backends.cpu.ir.kernel_program import TransposeKernel, itemsize
from pyflame_rt.backends.cpu.ir.loops import loop, when
from pyflame_rt.backends.cpu.jit.target import host as this_host
from pyflame_rt.backends.cpu.kernels.row_loops import SIGNATURE, RowSpace

if TYPE_CHECKING:
    from pyflame_rt.backends.cpu.ir.kernel_program import FillKernel, GatherKernel
    from pyflame_rt.backends.cpu.jit.target import Host

__all__ = ["emit_fill", "emit_gather", "emit_transpose", "transpose_block"]


class _Loop:
    """`for i in range(low, high, step)` around what is emitted between `with` and its end."""

    def __init__(self, b: Builder, low: str, high: str, step: int = 1) -> None:
        self._b, self._low, self._high, self._step = b, low, high, step

    def __enter__(self) -> str:
        b = self._b
        self._body, self._done, origin = b.label("loop"), b.label("done"), b.block
        b.branch(b.op(f"icmp slt i64 {self._low}, {self._high}"), self._body, self._done)
        b.place(self._body)
        self._i = b.phi("i64", (self._low, origin))
        return self._i

    def __exit__(self, *_: object) -> None:
        b = self._b
        following = b.integer(f"add {self._i}, {self._step}")
        b.add_incoming(self._i, following, b.block)
        b.branch(b.op(f"icmp slt i64 {following}, {self._high}"), self._body, self._done)
        b.place(self._done)


def _buffers(b: Builder, number: int) -> list[str]:
    return [b.op(f"load ptr, ptr {b.element('ptr', '%bufs', str(k))}") for k in range(number)]


def emit_fill(kernel: FillKernel, name: str, host: Host | None = None) -> str:
    """The module of a fill kernel."""
    b = Builder(host or this_host())
    b.begin()
    kind = f"i{8 * itemsize(kernel.dtype)}"
    lanes = b.host.vector_bytes // itemsize(kernel.dtype)
    source, target = _buffers(b, 2)
    value = b.op(f"load {kind}, ptr {source}, align 1")
    first = b.op(f"insertelement <{lanes} x {kind}> poison, {kind} {value}, i64 0")
    vector = f"<{lanes} x {kind}>"
    spread = b.op(f"shufflevector {vector} {first}, {vector} poison, <{lanes} x i32> zeroinitializer")
    length = b.integer("sub %end, %begin")
    middle = b.integer(f"add %begin, {b.integer(f'and {length}, {-lanes}')}")
    with _Loop(b, "%begin", middle, lanes) as i:
        b.do(f"store {vector} {spread}, ptr {b.element(kind, target, i)}, align 1")
    with _Loop(b, middle, "%end") as i:
        b.do(f"store {kind} {value}, ptr {b.element(kind, target, i)}, align 1")
    b.do("ret void")
    b.end(SIGNATURE.format(name=name))
    return b.text()


def emit_gather(kernel: GatherKernel, name: str, host: Host | None = None) -> str:
    """The module of a gather kernel."""
    b = Builder(host or this_host())
    b.begin()
    size = itemsize(kernel.dtype)
    source, indices, target, flag = _buffers(b, 4)
    n, number, axis, outer_stride, axis_stride = (b.load_i64("%params", k) for k in range(5))
    kind = "i32" if kernel.index_dtype == "int32" else "i64"
    if kernel.single:
        _gather_single(b, kernel, kind, (source, indices, target, flag), (number, axis, outer_stride, axis_stride))
        b.do("ret void")
        b.end(SIGNATURE.format(name=name))
        return b.text()
    length = b.integer(f"mul {n}, {size}")
    with _Loop(b, "%begin", "%end") as row:
        outer, k = b.integer(f"udiv {row}, {number}"), b.integer(f"urem {row}, {number}")
        index = b.op(f"load {kind}, ptr {b.element(kind, indices, k)}, align 1")
        if kind == "i32":
            index = b.op(f"sext i32 {index} to i64")
        wrapped = b.integer(f"add {index}, {axis}")
        index = b.op(f"select i1 {b.op(f'icmp slt i64 {index}, 0')}, i64 {wrapped}, i64 {index}")
        to = b.element("i8", target, b.integer(f"mul {row}, {length}"))
        good, bad, done = b.label("good"), b.label("bad"), b.label("next")
        b.branch(b.op(f"icmp ult i64 {index}, {axis}"), good, bad)
        b.place(bad)
        b.do(f"store atomic i64 {b.integer(f'add {row}, 1')}, ptr {flag} monotonic, align 8")
        b.call("void", "llvm.memset.p0.i64", [("ptr", to), ("i8", "0"), ("i64", length), ("i1", "false")])
        b.jump(done)
        b.place(good)
        offset = b.integer(
            f"add {b.integer(f'mul {outer}, {outer_stride}')}, {b.integer(f'mul {index}, {axis_stride}')}"
        )
        origin = b.element("i8", source, b.integer(f"mul {offset}, {size}"))
        b.call("void", "llvm.memcpy.p0.p0.i64", [("ptr", to), ("ptr", origin), ("i64", length), ("i1", "false")])
        b.jump(done)
        b.place(done)
    b.do("ret void")
    b.end(SIGNATURE.format(name=name))
    return b.text()


def _gather_single(
    b: Builder, kernel: GatherKernel, kind: str, buffers: tuple[str, ...], numbers: tuple[str, ...]
) -> None:
    """One element for each index: the place among the indices is counted, not divided for."""
    source, indices, target, flag = buffers
    number, axis, outer_stride, axis_stride = numbers
    elem, one = f"i{8 * itemsize(kernel.dtype)}", Lanes(b, 1)
    first = b.integer(f"urem %begin, {number}")
    base = b.integer(f"mul {b.integer(f'udiv %begin, {number}')}, {outer_stride}")

    def element(row: str, carried: list[V]) -> list[V]:
        k, start = carried
        index = b.op(f"load {kind}, ptr {b.element(kind, indices, k.name)}, align 1")
        index = index if kind == "i64" else b.op(f"sext i32 {index} to i64")
        wrapped = b.integer(f"add {index}, {axis}")
        index = b.op(f"select i1 {b.op(f'icmp slt i64 {index}, 0')}, i64 {wrapped}, i64 {index}")
        inside = b.op(f"icmp ult i64 {index}, {axis}")
        outside = b.op(f"xor i1 {inside}, true")

        def refuse(_: list[V]) -> list[V]:
            b.do(f"store atomic i64 {b.integer(f'add {row}, 1')}, ptr {flag} monotonic, align 8")
            return []

        when(b, outside, [], refuse)
        index = b.op(f"select i1 {inside}, i64 {index}, i64 0")
        place = b.integer(f"add {start.name}, {b.integer(f'mul {index}, {axis_stride}')}")
        value = b.op(f"load {elem}, ptr {b.element(elem, source, place)}, align 1")
        value = b.op(f"select i1 {inside}, {elem} {value}, {elem} 0")
        b.do(f"store {elem} {value}, ptr {b.element(elem, target, row)}, align 1")
        following = k + 1
        wraps = following.cmp("eq", V(one, "i64", number))
        return [wraps.where(0, following), wraps.where(start + V(one, "i64", outer_stride), start)]

    loop(b, "%begin", "%end", 1, [V(one, "i64", first), V(one, "i64", base)], element)


def emit_transpose(kernel: TransposeKernel, name: str, host: Host | None = None) -> str:
    """The module of a blocked transpose: 8 x 8 blocks in registers, edges element by element."""
    b, rank = Builder(host or this_host()), kernel.outer_rank
    b.begin()
    source, target = _buffers(b, 2)
    n_i, n_j, from_j, to_i = (b.load_i64("%params", k) for k in range(4))
    values = [b.load_i64("%params", 4 + k) for k in range(3 * rank)]
    size = TransposeKernel.BLOCK
    blocks = b.integer(f"udiv {b.integer(f'add {n_i}, {size - 1}')}, {size}")
    dims = [*values[:rank], blocks]
    strides = [[*values[rank : 2 * rank], str(size)], [*values[2 * rank :], b.integer(f"mul {to_i}, {size}")]]
    rows = RowSpace(b, dims, strides)
    offsets = rows.open()
    src, dst = (b.element("i32", base, offset) for base, offset in zip((source, target), offsets, strict=True))
    left = b.integer(f"sub {n_i}, {b.integer(f'mul {rows.position[-1]}, {size}')}")
    height = b.op(f"select i1 {b.op(f'icmp sge i64 {left}, {size}')}, i64 {size}, i64 {left}")
    tall, wide = b.integer(f"and {height}, -8"), b.integer(f"and {n_j}, -8")
    with _Loop(b, "0", wide, 8) as j:
        column = b.element("i32", src, b.integer(f"mul {j}, {from_j}"))
        with _Loop(b, "0", tall, 8) as i:
            place = b.element("i32", dst, b.integer(f"add {b.integer(f'mul {i}, {to_i}')}, {j}"))
            transpose_block(b, b.element("i32", column, i), from_j, place, to_i)
    _transpose_edge(b, (src, from_j), (dst, to_i), (tall, height), ("0", wide))
    _transpose_edge(b, (src, from_j), (dst, to_i), ("0", height), (wide, n_j))
    rows.close()
    b.end(SIGNATURE.format(name=name))
    return b.text()


def _transpose_edge(
    b: Builder, source: tuple[str, str], target: tuple[str, str], i_range: tuple[str, str], j_range: tuple[str, str]
) -> None:
    """Element by element over ranges of i and j; source and target are (address, stride)."""
    with _Loop(b, *j_range) as j:
        column = b.element("i32", source[0], b.integer(f"mul {j}, {source[1]}"))
        with _Loop(b, *i_range) as i:
            value = b.op(f"load i32, ptr {b.element('i32', column, i)}, align 1")
            place = b.element("i32", target[0], b.integer(f"add {b.integer(f'mul {i}, {target[1]}')}, {j}"))
            b.do(f"store i32 {value}, ptr {place}, align 1")


def transpose_block(b: Builder, source: str, source_stride: str, target: str, target_stride: str) -> None:
    """Three rounds of interleaving turn eight loaded vectors into eight to store."""
    rows = []
    for k in range(8):
        address = source if k == 0 else b.element("i32", source, b.integer(f"mul {source_stride}, {k}"))
        rows.append(b.op(f"load <8 x i32>, ptr {address}, align 1"))
    low, high = (0, 8, 1, 9, 4, 12, 5, 13), (2, 10, 3, 11, 6, 14, 7, 15)
    rows = [_shuffle(b, rows[k], rows[k + 1], order) for k in (0, 2, 4, 6) for order in (low, high)]
    low, high = (0, 1, 8, 9, 4, 5, 12, 13), (2, 3, 10, 11, 6, 7, 14, 15)
    rows = [_shuffle(b, rows[k + h], rows[k + 2 + h], order) for k in (0, 4) for h in (0, 1) for order in (low, high)]
    low, high = (0, 1, 2, 3, 8, 9, 10, 11), (4, 5, 6, 7, 12, 13, 14, 15)
    rows = [_shuffle(b, rows[k], rows[k + 4], order) for order in (low, high) for k in range(4)]
    for k, row in enumerate(rows):
        address = target if k == 0 else b.element("i32", target, b.integer(f"mul {target_stride}, {k}"))
        b.do(f"store <8 x i32> {row}, ptr {address}, align 1")


def _shuffle(b: Builder, x: str, y: str, order: tuple[int, ...]) -> str:
    mask = ", ".join(f"i32 {k}" for k in order)
    return b.op(f"shufflevector <8 x i32> {x}, <8 x i32> {y}, <8 x i32> <{mask}>")
