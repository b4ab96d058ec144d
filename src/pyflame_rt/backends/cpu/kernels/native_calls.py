"""Machine code that is not ours, called from the driver: for each element, or once on whole buffers."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any

from pyflame_rt.backends.cpu.ir.builder import Builder
from pyflame_rt.backends.cpu.ir.instructions import stored
from pyflame_rt.backends.cpu.ir.loops import loop
from pyflame_rt.backends.cpu.jit.target import host as this_host
from pyflame_rt.backends.cpu.kernels.indexing import Params, load_element, pointers, store_element
from pyflame_rt.backends.cpu.kernels.row_loops import SIGNATURE
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from pyflame_rt.backends.cpu.ir.builder import V
    from pyflame_rt.backends.cpu.jit.target import Host

__all__ = ["BufferCallKernel", "ElementCallKernel"]


@dataclass(frozen=True)
class ElementCallKernel:
    """out[i] = f(in_0[i * step_0], ...). bufs: inputs, out. params: [address of f, steps of the inputs, 0 or 1]."""

    dtypes: tuple[str, ...]  # of the arguments, then of the result
    keep: Any = field(default=None, compare=False, repr=False)  # what f belongs to

    @property
    def key(self) -> str:
        """Equal for kernels of equal structure: the address is a param."""
        return f"elementcall{','.join(self.dtypes)}"

    def emit(self, name: str, host: Host | None = None) -> str:
        """The module of the kernel."""
        b = Builder(host or this_host())
        b.begin()
        *given, made = self.dtypes
        *inputs, out = pointers(b, len(self.dtypes))
        address, *steps = Params(b).take(len(self.dtypes))
        function = b.op(f"inttoptr i64 {address} to ptr")

        def element(i: str, carried: list[V]) -> list[V]:
            places = [b.integer(f"mul {i}, {step}") for step in steps]
            values = [load_element(b, d, p, at) for d, p, at in zip(given, inputs, places, strict=True)]
            args = ", ".join(f"{stored(d)} {v.name}" for d, v in zip(given, values, strict=True))
            result = values[0].at.wrap(stored(made), f"call {stored(made)} {function}({args})")
            store_element(b, made, result, out, i)
            return carried

        loop(b, "%begin", "%end", 1, [], element)
        b.do("ret void")
        b.end(SIGNATURE.format(name=name))
        return b.text()


@dataclass(frozen=True)
class BufferCallKernel:
    """f(inputs, outputs, sizes), once. bufs: inputs, outputs. params: [address of f, sizes...]."""

    inputs: int
    keep: Any = field(default=None, compare=False, repr=False)  # what f belongs to

    @property
    def key(self) -> str:
        """Equal for kernels of equal structure: the address is a param."""
        return f"buffercall{self.inputs}"

    def emit(self, name: str, host: Host | None = None) -> str:
        """The module of the kernel."""
        b = Builder(host or this_host())
        b.begin()
        function = b.op(f"inttoptr i64 {Params(b).one()} to ptr")
        outputs, sizes = b.element("ptr", "%bufs", str(self.inputs)), b.element("i64", "%params", "1")
        b.do(f"call void {function}(ptr %bufs, ptr {outputs}, ptr {sizes})")
        b.do("ret void")
        b.end(SIGNATURE.format(name=name))
        return b.text()
