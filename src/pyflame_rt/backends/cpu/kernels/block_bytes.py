"""Rows of float32 as bytes in blocks, each with its scale and the sum of its bytes: what block products multiply."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyflame_rt.backends.cpu.ir.builder import Builder, Lanes, V
from pyflame_rt.backends.cpu.ir.loops import load_vector, loop, tail_mask
from pyflame_rt.backends.cpu.jit.target import host as this_host
from pyflame_rt.backends.cpu.kernels.row_loops import SIGNATURE
from pyflame_rt.graph.cached import cached_property
from pyflame_rt.graph.records import dataclass
from pyflame_rt.ops.microsoft.block_weights import LEAST_LARGEST, MOST

if TYPE_CHECKING:
    from pyflame_rt.backends.cpu.jit.target import Host

__all__ = ["RECORD", "BlockBytesKernel"]

RECORD = 8  # bytes that follow those of a block: its scale, and its sum times a factor
_FINITE = 0x7F7FFFFF


@dataclass(frozen=True)
class BlockBytesKernel:
    """Blocks of rows as records: bytes between -127 and 127, a float32 scale, the int32 sum of bytes times a factor.

    A block with a number that is not finite has a scale that is none either; one whose numbers are all next to nothing
    is zero.

    bufs: x, records [rows, blocks, block + 8]. params: [depth, stride of x, factor, blocks]. rows: rows times blocks.
    """

    block: int
    partial: bool = False  # the last block of a row is not whole

    @property
    def key(self) -> str:
        """Equal for kernels of equal structure."""
        return self._key

    @cached_property
    def _key(self) -> str:
        return f"block bytes {self.block}{' partial' if self.partial else ''}"

    def emit(self, name: str, host: Host | None = None) -> str:
        """The module, as text."""
        b = Builder(host or this_host())
        b.begin()
        _BlockBytes(self, b).emit()
        b.do("ret void")
        b.end(SIGNATURE.format(name=name))
        return b.text()


class _BlockBytes:
    def __init__(self, kernel: BlockBytesKernel, b: Builder) -> None:
        self.kernel, self.b = kernel, b
        self.at, self.one = Lanes(b, min(b.host.lanes(4), 16)), Lanes(b, 1)

    def emit(self) -> None:
        b = self.b
        self.x, self.records = (b.op(f"load ptr, ptr {b.element('ptr', '%bufs', str(k))}") for k in range(2))
        self.depth, self.stride, factor, self.blocks = (b.load_i64("%params", k) for k in range(4))
        self.factor = b.op(f"trunc i64 {factor} to i32")
        loop(b, "%begin", "%end", 1, [], self._block)

    def _block(self, item: str, _: list[V]) -> list[V]:
        b, at, one, size = self.b, self.at, self.one, self.kernel.block
        row, k = b.integer(f"udiv {item}, {self.blocks}"), b.integer(f"urem {item}, {self.blocks}")
        first = b.integer(f"mul {k}, {size}")
        source = b.element("float", self.x, b.integer(f"add {b.integer(f'mul {row}, {self.stride}')}, {first}"))
        record = b.element("i8", self.records, b.integer(f"mul {item}, {size + RECORD}"))
        numbers = [self._load(source, first, i) for i in range(0, size, at.lanes)]
        # As integers, what is no number is larger than all that are.
        largest = numbers[0].bits("i32") & 0x7FFFFFFF
        for x in numbers[1:]:
            largest = largest.intrinsic("umax", x.bits("i32") & 0x7FFFFFFF)
        top = V(one, "i32", self._across("umax", largest))
        reach = top.bits("float")
        finite, some = top.cmp("sle", _FINITE), reach.cmp("oge", LEAST_LARGEST)
        used = V(one, "i1", b.op(f"and i1 {finite.name}, {some.name}"))
        inverse = at.splat("float", used.where(one.const("float", MOST) / reach, 0.0).name)
        counted = at.splat("i1", used.name)
        sums = at.const("i32", 0)
        for i, x in enumerate(numbers):
            steps = counted.where((x * inverse).intrinsic("roundeven"), 0.0).to("fptosi", "i32")
            sums = sums + steps
            small = steps.to("trunc", "i8")
            b.do(f"store {small.kind} {small.name}, ptr {b.element('i8', record, str(i * at.lanes))}, align 1")
        scale = finite.where(some.where(reach / MOST, 0.0), float("nan"))
        b.do(f"store float {scale.name}, ptr {b.element('i8', record, str(size))}, align 4")
        total = b.op(f"mul i32 {self._across('add', sums)}, {self.factor}")
        b.do(f"store i32 {total}, ptr {b.element('i8', record, str(size + 4))}, align 4")
        return []

    def _load(self, source: str, first: str, i: int) -> V:
        b, mask = self.b, None
        if self.kernel.partial:
            mask = tail_mask(self.at, b.integer(f"add {first}, {i}"), self.depth)
        return load_vector(self.at, b.element("float", source, str(i)), mask)

    def _across(self, what: str, value: V) -> str:
        return self.b.call("i32", f"llvm.vector.reduce.{what}.{value.at.suffix('i32')}", [(value.kind, value.name)])
