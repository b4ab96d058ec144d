"""Takes and puts in CSL: elements by number along a dimension."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyflame_rt.backends.wse.emit.communication import PLACE, Code, extent_text
from pyflame_rt.backends.wse.emit.elementwise import loop_nest, offset_text, tile_strides
from pyflame_rt.backends.wse.emit.scalar_csl import literal

if TYPE_CHECKING:
    from pyflame_rt.backends.wse.plan.kernels import MapKernel, Put, Take
    from pyflame_rt.backends.wse.plan.tiling import Tiling

__all__ = ["emit_held", "emit_put", "emit_take"]


def emit_held(name: str, kernel: MapKernel) -> Code:
    """Floats that became int64: every one that is part of the tensor must fit the 32 bits that PEs have for it."""
    out = kernel.out.tiling
    names = [f"i{d}" for d in range(len(out.shape))]
    cell = f"{kernel.out.slot}[{offset_text(names, tile_strides(out))}]"
    body = f"@assert({cell} != @as(i32, -2147483648));"
    looped = loop_nest([extent_text(out, d) for d in range(len(names))], names, body)
    return Code([f"fn {name}_held() void {{\n{looped}\n}}"], [(f"{name}_held();", False)])


def _inside(tiling: Tiling, names: list[str]) -> str:
    """Whether the loops are at an element of the tensor, not beyond its end; empty when they always are."""
    tests = []
    for d, name in enumerate(names):
        extent = extent_text(tiling, d)
        if extent != str(tiling.tile[d]):
            tests.append(f"{name} < {extent}")
    return " and ".join(tests)


def _checked(number: str, size: int, inside: str) -> str:
    """An index that names an element; numbers that the host has are checked there before."""
    good = f"whole >= 0 and whole < {size}"
    test = f"@assert({good});"
    return f"const whole: i32 = @as(i32, {number});\n" + (f"if ({inside}) {{\n{test}\n}}" if inside else test)


def emit_take(name: str, kernel: Take) -> Code:
    """Every PE takes what it has; where a dimension is cut, all others have zero there and the PEs add up."""
    sent = kernel.axes
    wide = sent and kernel.out.dtype != "f32"
    target = "wide" if wide else kernel.out.slot
    source, out = kernel.source.tiling, kernel.out.tiling
    names = [f"i{d}" for d in range(len(out.shape))]
    picked = names if kernel.each else names[kernel.axis : kernel.axis + len(kernel.index.tiling.shape)]
    rest = names if kernel.each else [*names[: kernel.axis], "", *names[kernel.axis + len(picked) :]]
    steps = tile_strides(source)
    inner = [n for d, n in enumerate(rest) if d != kernel.axis]
    place = offset_text(["at", *inner], [steps[kernel.axis], *[s for d, s in enumerate(steps) if d != kernel.axis]])
    value = f"{kernel.source.slot}[{place}]"
    value = f"@as(f32, {value})" if wide else value
    result = f"{target}[{offset_text(names, tile_strides(out))}]"
    zero = literal(0, "f32" if wide else kernel.out.dtype)
    heads, found = _range(source, kernel.axis)
    number = f"{kernel.index.slot}[{offset_text(picked, tile_strides(kernel.index.tiling))}]"
    body = (
        f"{_checked(number, source.shape[kernel.axis], _inside(out, names))}\n"
        f"const number: i32 = whole{found};\n"
        f"if (number >= 0 and number < count) {{\nconst at: i16 = @as(i16, number);\n{result} = {value};\n}} "
        f"else {{\n{result} = {zero};\n}}"
    )
    looped = loop_nest([str(n) for n in out.tile], names, body)
    code = Code([f"fn {name}() void {{\n" + "\n".join([*heads, looped]) + "\n}"], [(f"{name}();", False)], axes=sent)
    count = out.elements
    for axis in sent:
        pointer = f"@ptrcast([*]f32, &{target})"
        code.actions.append((f"mpi_{axis}.allreduce_fadds({pointer}, {pointer}, {count}, advance_id);", True))
    if wide:
        loop = loop_nest([str(count)], ["i"], f"{kernel.out.slot}[i] = @as({kernel.out.dtype}, wide[i]);")
        code.decls.append(f"fn {name}_finish() void {{\n{loop}\n}}")
        code.actions.append((f"{name}_finish();", False))
    return code


def _range(tiling: Tiling, axis: int) -> tuple[list[str], str]:
    """How many numbers are of this PE, and what to take from a number to get the place on it."""
    heads = [f"const count: i32 = @as(i32, {extent_text(tiling, axis)});"]
    if tiling.grid.cuts(tiling.axes[axis]) == 1:
        return heads, ""
    heads.append(f"const first: i32 = {tiling.tile[axis]} * @as(i32, {PLACE[tiling.axes[axis]]});")
    return heads, " - first"


_PUT = {
    "none": "{new}",
    "add": "{old} + {new}",
    "mul": "{old} * {new}",
    "max": "if ({new} > {old} or {new} != {new}) {new} else {old}",
    "min": "if ({new} < {old} or {new} != {new}) {new} else {old}",
}


def emit_put(name: str, kernel: Put) -> Code:
    """Every PE copies its part and changes what is in it; nothing is sent."""
    out, updates = kernel.out.tiling, kernel.updates.tiling
    names = [f"i{d}" for d in range(len(updates.shape))]
    wide = len(kernel.index.tiling.shape)
    picked = names if kernel.each else names[kernel.axis : kernel.axis + wide]
    rest = (
        [n for d, n in enumerate(names) if d != kernel.axis] if kernel.each else [n for n in names if n not in picked]
    )
    steps = tile_strides(out)
    place = offset_text(["at", *rest], [steps[kernel.axis], *[s for d, s in enumerate(steps) if d != kernel.axis]])
    heads, found = _range(out, kernel.axis)
    number = f"{kernel.index.slot}[{offset_text(picked, tile_strides(kernel.index.tiling))}]"
    old, new = f"{kernel.out.slot}[{place}]", f"{kernel.updates.slot}[{offset_text(names, tile_strides(updates))}]"
    value = _PUT[kernel.reduction].format(old=old, new=new)
    body = (
        f"{_checked(number, out.shape[kernel.axis], _inside(updates, names))}\n"
        f"const number: i32 = whole{found};\n"
        f"if (number >= 0 and number < count) {{\nconst at: i16 = @as(i16, number);\n{old} = {value};\n}}"
    )
    looped = loop_nest([str(n) for n in updates.tile], names, body)
    copy = ""
    if kernel.data.slot != kernel.out.slot:
        copy = loop_nest([str(out.elements)], ["i"], f"{kernel.out.slot}[i] = {kernel.data.slot}[i];")
    return Code([f"fn {name}() void {{\n" + "\n".join([*heads, copy, looped]) + "\n}"], [(f"{name}();", False)])
