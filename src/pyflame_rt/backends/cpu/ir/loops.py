"""Counted loops with carried values, and vector loads and stores whose last lanes may be missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyflame_rt.backends.cpu.ir.builder import Lanes, V

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyflame_rt.backends.cpu.ir.builder import Builder

__all__ = ["least", "load_vector", "loop", "splat_load", "store_vector", "tail_mask", "total", "vectors", "when"]


def loop(
    b: Builder,
    low: str,
    high: str,
    step: int | str,
    carried: Sequence[V],
    body: Callable[[str, list[V]], Sequence[V]],
) -> list[V]:
    """``for i in range(low, high, step)``: ``body(i, values)`` gives the values of the next turn; returns the last."""
    start, done, origin = b.label("loop"), b.label("done"), b.block
    b.branch(b.op(f"icmp slt i64 {low}, {high}"), start, done)
    b.place(start)
    i = b.phi("i64", (low, origin))
    phis = [V(v.at, v.elem, b.phi(v.kind, (v.name, origin))) for v in carried]
    news = list(body(i, phis))
    following = b.integer(f"add {i}, {step}")
    b.add_incoming(i, following, b.block)
    for phi, new in zip(phis, news, strict=True):
        b.add_incoming(phi.name, new.name, b.block)
    last = b.block
    b.branch(b.op(f"icmp slt i64 {following}, {high}"), start, done)
    b.place(done)
    return [
        V(v.at, v.elem, b.phi(v.kind, (v.name, origin), (new.name, last))) for v, new in zip(carried, news, strict=True)
    ]


def when(b: Builder, condition: str, carried: Sequence[V], body: Callable[[list[V]], Sequence[V]]) -> list[V]:
    """``if condition``: the values after ``body``, or the given ones."""
    inside, done, origin = b.label("then"), b.label("after"), b.block
    b.branch(condition, inside, done)
    b.place(inside)
    news = list(body(list(carried)))
    last = b.block
    b.jump(done)
    b.place(done)
    return [
        V(v.at, v.elem, b.phi(v.kind, (v.name, origin), (new.name, last))) for v, new in zip(carried, news, strict=True)
    ]


def least(b: Builder, x: str, y: str) -> str:
    """The smaller of two i64."""
    return b.op(f"select i1 {b.op(f'icmp slt i64 {x}, {y}')}, i64 {x}, i64 {y}")


def tail_mask(at: Lanes, i: str, high: str) -> V:
    """The lanes from element i on that lie below ``high``."""
    b = at.builder
    left = b.op(f"trunc i64 {b.integer(f'sub {high}, {i}')} to i32")
    return at.iota("0", "i32").cmp("slt", at.splat("i32", left))


def load_vector(at: Lanes, pointer: str, mask: V | None = None, elem: str = "float") -> V:
    """Numbers from an address on; lanes outside the mask are zero."""
    b, kind = at.builder, at.type(elem)
    if mask is None:
        return at.wrap(elem, f"load {kind}, ptr {pointer}, align 4")
    args = [("ptr", pointer), ("i32", "4"), (mask.kind, mask.name), (kind, "zeroinitializer")]
    return V(at, elem, b.call(kind, f"llvm.masked.load.{at.suffix(elem)}.p0", args))


def store_vector(value: V, pointer: str, mask: V | None = None) -> None:
    """Numbers to an address on; lanes outside the mask are left alone."""
    at, b = value.at, value.at.builder
    if mask is None:
        b.do(f"store {value.kind} {value.name}, ptr {pointer}, align 4")
        return
    args = [(value.kind, value.name), ("ptr", pointer), ("i32", "4"), (mask.kind, mask.name)]
    b.call("void", f"llvm.masked.store.{at.suffix(value.elem)}.p0", args)


def splat_load(at: Lanes, pointer: str, elem: str = "float") -> V:
    """One number in every lane."""
    return at.splat(elem, at.builder.op(f"load {elem}, ptr {pointer}, align 4"))


def vectors(
    at: Lanes,
    low: str,
    high: str,
    carried: Sequence[V],
    body: Callable[[str, V | None, list[V]], Sequence[V]],
) -> list[V]:
    """Whole vectors from low to high, then a masked one for the rest: ``body(i, mask, values)``."""
    b = at.builder
    whole = b.integer(f"and {b.integer(f'sub {high}, {low}')}, {-at.lanes}")
    middle = b.integer(f"add {low}, {whole}")
    values = loop(b, low, middle, at.lanes, carried, lambda i, now: body(i, None, now))
    rest = b.op(f"icmp slt i64 {middle}, {high}")
    return when(b, rest, values, lambda now: body(middle, tail_mask(at, middle, high), now))


def total(value: V, kind: str = "fadd") -> str:
    """The sum of all lanes (or their maximum, ``fmax``), as a float."""
    b = value.at.builder
    while value.at.lanes > 1:
        half = Lanes(b, value.at.lanes // 2)
        parts = []
        for first in (0, half.lanes):
            order = ", ".join(f"i32 {first + k}" for k in range(half.lanes))
            if half.lanes == 1:
                parts.append(V(half, value.elem, value.at.lane(value, first)))
                continue
            mask = f"<{half.lanes} x i32> <{order}>"
            text = f"shufflevector {value.kind} {value.name}, {value.kind} poison, {mask}"
            parts.append(half.wrap(value.elem, text))
        low, high = parts
        value = low + high if kind == "fadd" else low.cmp("ogt", high).where(low, high)
    return value.name


def totals(values: Sequence[V]) -> V:
    """The sums of all lanes of each vector, side by side: fewer steps than one sum after the other.

    There are as many vectors as a power of two, and not more than lanes.
    """
    at, count = values[0].at, len(values)
    if count == 1:
        return V(Lanes(at.builder, 1), values[0].elem, total(values[0]))
    size, now = at.lanes, list(values)  # of lanes that belong to one sum
    while len(now) > 1:
        starts = range(0, 2 * at.lanes, size)
        size //= 2
        now = [_halves_added(at, a, b, starts, size) for a, b in zip(now[::2], now[1::2], strict=True)]
    (value,) = now
    while size > 1:
        starts = range(0, value.at.lanes, size)
        size //= 2
        value = _halves_added(Lanes(at.builder, count * size), value, value, starts, size)
    return value


def _halves_added(out: Lanes, a: V, b: V, starts: Sequence[int], half: int) -> V:
    """The first ``half`` lanes from each start on, counted through both vectors, plus the next ones."""
    parts = []
    for first in (0, half):
        lanes = ", ".join(f"i32 {start + first + k}" for start in starts for k in range(half))
        pair = f"{a.kind} {a.name}, {b.kind} {b.name}"
        parts.append(out.wrap(a.elem, f"shufflevector {pair}, <{out.lanes} x i32> <{lanes}>"))
    return parts[0] + parts[1]
