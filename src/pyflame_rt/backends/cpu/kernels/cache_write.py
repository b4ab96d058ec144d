"""Tokens written into a cache of keys or values, in place where the cache is handed over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyflame_rt.backends.cpu.ir.builder import Builder, Lanes, V
from pyflame_rt.backends.cpu.ir.loops import loop, when
from pyflame_rt.backends.cpu.jit.target import host as this_host
from pyflame_rt.backends.cpu.kernels.indexing import Params, pointers
from pyflame_rt.backends.cpu.kernels.row_loops import SIGNATURE
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from pyflame_rt.backends.cpu.jit.target import Host

__all__ = ["CacheWriteKernel"]


@dataclass(frozen=True)
class CacheWriteKernel:
    """dst[b, h, t] = update[b, h, t - starts[b]] for the new places t, cache[b, h, t] for the others.

    bufs: cache, update, starts (int64), dst, flag (int64). params: [heads, places, new places, update strides of b, h
    and t]; everything is in elements, rows of ``width`` are contiguous. rows: b x h. Where dst is the cache itself,
    only the new places are written. A start out of range sets flag to 1 + the row.
    """

    in_place = True  # dst may be the memory of cache

    itemsize: int
    width: int

    @property
    def key(self) -> str:
        """Equal for kernels of equal structure."""
        return f"cachewrite{self.itemsize}w{self.width}"

    def emit(self, name: str, host: Host | None = None) -> str:
        """The module of the kernel."""
        b = Builder(host or this_host())
        b.begin()
        cache, update, starts, target, flag = pointers(b, 5)
        heads, room, new, *strides = Params(b).take(6)
        size = self.itemsize * self.width
        line = b.integer(f"mul {room}, {size}")
        fresh = b.op(f"icmp ne ptr {cache}, {target}")
        last = b.integer(f"add {b.integer(f'sub {room}, {new}')}, 1")

        def copy(to: str, origin: str, length: str) -> None:
            b.call("void", "llvm.memcpy.p0.p0.i64", [("ptr", to), ("ptr", origin), ("i64", length), ("i1", "false")])

        def row(r: str, carried: list[V]) -> list[V]:
            batch, head = b.integer(f"udiv {r}, {heads}"), b.integer(f"urem {r}, {heads}")
            begin = b.integer(f"mul {r}, {line}")
            here = b.element("i8", target, begin)

            def whole(_: list[V]) -> list[V]:
                copy(here, b.element("i8", cache, begin), line)
                return []

            when(b, fresh, [], whole)
            start = b.op(f"load i64, ptr {b.element('i64', starts, batch)}, align 1")
            base = b.integer(f"add {b.integer(f'mul {batch}, {strides[0]}')}, {b.integer(f'mul {head}, {strides[1]}')}")
            good, bad, done = b.label("good"), b.label("bad"), b.label("next")
            b.branch(b.op(f"icmp ult i64 {start}, {last}"), good, bad)
            b.place(bad)
            b.do(f"store atomic i64 {b.integer(f'add {r}, 1')}, ptr {flag} monotonic, align 8")
            b.jump(done)
            b.place(good)

            def place(t: str, inner: list[V]) -> list[V]:
                at = b.integer(f"mul {b.integer(f'add {start}, {t}')}, {size}")
                source = b.integer(f"add {base}, {b.integer(f'mul {t}, {strides[2]}')}")
                origin = b.element("i8", update, b.integer(f"mul {source}, {self.itemsize}"))
                copy(b.element("i8", here, at), origin, str(size))
                return inner

            loop(b, "0", new, 1, [], place)
            b.jump(done)
            b.place(done)
            return carried

        none: list[V] = [V(Lanes(b, 1), "i64", "0")]
        loop(b, "%begin", "%end", 1, none, row)
        b.do("ret void")
        b.end(SIGNATURE.format(name=name))
        return b.text()
