"""Loops with carried values, and the vector memory operations tile kernels share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyflame_rt.backends.cpu.ir.builder import Builder, Lanes, V

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Loop", "add", "buffers", "each", "floats", "least", "load_vector", "most", "mul", "store_vector", "when"]


class Loop:
    """`for i in range(low, high, step)` with values carried from turn to turn; runs no turn when low >= high.

    ``open`` gives the index and the carried values, ``close`` takes their new values and gives the final ones.
    """

    def __init__(
        self, b: Builder, low: str, high: str, step: int | str = 1, carried: Sequence[tuple[str, str]] = ()
    ) -> None:
        self._b, self._low, self._high, self._step = b, low, high, step
        self._start = list(carried)

    def open(self) -> tuple[str, list[str]]:
        """Start the loop."""
        b = self._b
        self._body, self._done, self._origin = b.label("loop"), b.label("done"), b.block
        b.branch(b.op(f"icmp slt i64 {self._low}, {self._high}"), self._body, self._done)
        b.place(self._body)
        self._i = b.phi("i64", (self._low, self._origin))
        self._phis = [b.phi(kind, (value, self._origin)) for kind, value in self._start]
        return self._i, self._phis

    def close(self, news: Sequence[str] = (), step: str | None = None) -> list[str]:
        """End the loop; ``step`` may be known only now."""
        b = self._b
        following = b.integer(f"add {self._i}, {self._step if step is None else step}")
        b.add_incoming(self._i, following, b.block)
        for phi, value in zip(self._phis, news, strict=True):
            b.add_incoming(phi, value, b.block)
        last = b.block
        b.branch(b.op(f"icmp slt i64 {following}, {self._high}"), self._body, self._done)
        b.place(self._done)
        return [
            b.phi(kind, (value, self._origin), (new, last))
            for (kind, value), new in zip(self._start, news, strict=True)
        ]

    def __enter__(self) -> str:
        return self.open()[0]

    def __exit__(self, *_: object) -> None:
        self.close()


def each(b: Builder, number: int, body: Callable[[str], None]) -> None:
    """``body`` for every number below one: written out, or as a loop where code is to be short."""
    if b.brief:
        with Loop(b, "0", str(number)) as i:
            body(i)
        return
    for i in range(number):
        body(str(i))


class when:
    """What is emitted inside runs only if a condition (i1) holds."""

    def __init__(self, b: Builder, condition: str) -> None:
        self._b, self._condition = b, condition

    def __enter__(self) -> None:
        yes, self._after = self._b.label("when"), self._b.label("after")
        self._b.branch(self._condition, yes, self._after)
        self._b.place(yes)

    def __exit__(self, *_: object) -> None:
        self._b.jump(self._after)
        self._b.place(self._after)


def add(b: Builder, x: str, y: str | int) -> str:
    """The i64 sum."""
    if x.isdecimal() and str(y).isdecimal():
        return str(int(x) + int(y))
    return b.integer(f"add {x}, {y}")


def mul(b: Builder, x: str, y: str | int) -> str:
    """The i64 product."""
    if x.isdecimal() and str(y).isdecimal():
        return str(int(x) * int(y))
    return b.integer(f"mul {x}, {y}")


def least(b: Builder, x: str, y: str | int) -> str:
    """The smaller of two i64."""
    return b.op(f"select i1 {b.op(f'icmp slt i64 {x}, {y}')}, i64 {x}, i64 {y}")


def most(b: Builder, x: str, y: str | int) -> str:
    """The larger of two i64."""
    return b.op(f"select i1 {b.op(f'icmp sgt i64 {x}, {y}')}, i64 {x}, i64 {y}")


def floats(b: Builder, pointer: str, offset: str | int) -> str:
    """Address of a float so many elements on."""
    return b.element("float", pointer, str(offset))


def buffers(b: Builder, number: int) -> list[str]:
    """The operands' addresses."""
    return [b.op(f"load ptr, ptr {b.element('ptr', '%bufs', str(k))}") for k in range(number)]


def load_vector(at: Lanes, pointer: str, mask: V | None = None) -> V:
    """Lanes of floats; masked-off lanes are not read and are zero."""
    b, kind = at.builder, at.type("float")
    if mask is None:
        return at.wrap("float", f"load {kind}, ptr {pointer}, align 4")
    args = [("ptr", pointer), ("i32", "4"), (mask.kind, mask.name), (kind, "zeroinitializer")]
    return V(at, "float", b.call(kind, f"llvm.masked.load.{at.suffix('float')}.p0", args))


def store_vector(at: Lanes, value: V, pointer: str, mask: V | None = None) -> None:
    """Write lanes of floats; masked-off lanes are not touched."""
    b = at.builder
    if mask is None:
        b.do(f"store {value.kind} {value.name}, ptr {pointer}, align 4")
        return
    args = [(value.kind, value.name), ("ptr", pointer), ("i32", "4"), (mask.kind, mask.name)]
    b.call("void", f"llvm.masked.store.{at.suffix('float')}.p0", args)
