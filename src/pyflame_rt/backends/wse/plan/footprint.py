"""What a program takes of a PE's 48 KB besides its data: code and stack, as the simulator's compiler counts them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyflame_rt.backends.wse.emit.pe_program import emit
from pyflame_rt.backends.wse.plan.kernels import MatMul, Slide
from wsesim.csl.program.driver import compile_texts
from wsesim.csl.syntax.diagnostics import CompileError

if TYPE_CHECKING:
    from pyflame_rt.backends.wse.options import CodeGenOptions
    from pyflame_rt.backends.wse.plan.kernels import WaferPlan

__all__ = ["MEMORY", "Footprint", "measure", "surely_fits"]

MEMORY = 48 * 1024
# An upper bound that needs no compilation: the collectives, their rings and what each kernel adds, in bytes of code;
# stack and reserve together.
_LIBRARY, _RINGS, _KERNEL, _SLIDE, _REST = 11_000, 6_000, 1_500, 5_000, 3_072
_OVERFLOW = re.compile(r"data (\d+), code about (\d+), stack (\d+), reserved (\d+)")


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of one PE; ``code`` is an estimate, ``reserve`` what loader and host interface keep."""

    data: int
    code: int
    stack: int
    reserve: int

    @property
    def total(self) -> int:
        """Bytes in all."""
        return self.data + self.code + self.stack + self.reserve


def surely_fits(plan: WaferPlan) -> bool:
    """Whether there is room without a closer look."""
    rings = any(isinstance(k, MatMul) and k.how == "shift" for k in plan.kernels)
    kernels = sum(_SLIDE if isinstance(k, Slide) else _KERNEL for k in plan.kernels)
    return plan.data_bytes + _LIBRARY + (_RINGS if rings else 0) + kernels + _REST <= MEMORY


def measure(plan: WaferPlan, options: CodeGenOptions) -> Footprint:
    """Compile the program of one PE, in a rectangle of at most 2 x 2, and count."""
    files = dict(emit(plan, options, small=True).files)
    texts = {"layout.csl": files.pop("layout.csl"), **files}
    arch = "wse2" if options.target == "wse2" else "wse3"
    try:
        program = compile_texts(texts, arch=arch, memcpy=True, channels=1, strict=True, fabric_dims=(9, 4),
                                fabric_offsets=(4, 1))  # fmt: skip
    except CompileError as problem:
        counted = _OVERFLOW.search(str(problem))
        if counted is None:
            raise
        return Footprint(*map(int, counted.groups()))
    memory = program.programs[0].memory
    return Footprint(memory.data, memory.code, memory.stack, memory.reserve)
