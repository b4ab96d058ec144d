"""A kernel that looks through integers and reports whether all lie within their limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyflame_rt.backends.cpu.ir.builder import Builder, Lanes, V
from pyflame_rt.backends.cpu.ir.loops import loop
from pyflame_rt.backends.cpu.jit.target import host as this_host
from pyflame_rt.backends.cpu.kernels.indexing import Params, load_element, pointers
from pyflame_rt.backends.cpu.kernels.row_loops import SIGNATURE
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from pyflame_rt.backends.cpu.jit.target import Host

__all__ = ["WithinKernel"]


@dataclass(frozen=True)
class WithinKernel:
    """Sets flag to 1 when an element is below ``low``, above ``high`` or equal to ``without``.

    bufs: src (contiguous), flag (int64). params: low, high, without; those that ``limits`` does not name are ignored.
    rows are elements.
    """

    dtype: str  # of integers
    limits: str  # some of "l", "h", "w"

    @property
    def key(self) -> str:
        """Equal for kernels of equal structure."""
        return f"within{self.dtype}{self.limits}"

    def emit(self, name: str, host: Host | None = None) -> str:
        """The module of the kernel."""
        b = Builder(host or this_host())
        b.begin()
        source, flag = pointers(b, 2)
        low, high, without = Params(b).take(3)
        signed, wider = ("u", "zext") if self.dtype.startswith("u") else ("s", "sext")

        def element(i: str, carried: list[V]) -> list[V]:
            found = load_element(b, self.dtype, source, i)
            wide = found.name if found.elem == "i64" else b.op(f"{wider} {found.elem} {found.name} to i64")
            bad = carried[0].name
            for mark, test in (("l", f"{signed}lt i64 {wide}, {low}"), ("h", f"{signed}gt i64 {wide}, {high}")):
                if mark in self.limits:
                    bad = b.op(f"or i1 {bad}, {b.op(f'icmp {test}')}")
            if "w" in self.limits:
                bad = b.op(f"or i1 {bad}, {b.op(f'icmp eq i64 {wide}, {without}')}")
            return [V(carried[0].at, "i1", bad)]

        (bad,) = loop(b, "%begin", "%end", 1, [V(Lanes(b, 1), "i1", "false")], element)
        report, done = b.label("report"), b.label("silent")
        b.branch(bad.name, report, done)
        b.place(report)
        b.do(f"store atomic i64 1, ptr {flag} monotonic, align 8")
        b.jump(done)
        b.place(done)
        b.do("ret void")
        b.end(SIGNATURE.format(name=name))
        return b.text()
