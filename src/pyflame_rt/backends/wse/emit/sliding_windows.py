"""Convolution and pooling over tiles in CSL: neighbours give each other their edges, then every PE works alone.

A PE lays its tile out with room around it, filled with the padding. Columns go to the neighbours in the row first, then
whole rows, corners included, to those in the column.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pyflame_rt.backends.wse.emit.communication import Code, extent_text, narrow
from pyflame_rt.backends.wse.emit.elementwise import loop_nest
from pyflame_rt.backends.wse.emit.scalar_csl import literal

if TYPE_CHECKING:
    from pyflame_rt.backends.wse.plan.kernels import Slide

__all__ = ["emit_slide", "slide_scratch"]


def _lead(kernel: Slide) -> int:
    return math.prod(kernel.source.tiling.shape[:-2])


def slide_scratch(kernel: Slide) -> dict[str, int]:
    """Arrays that the kernel uses while it runs."""
    down, across = kernel.sides
    edges = [0]
    if across.cut:
        edges += [_lead(kernel) * down.tile * n for n in (across.low, across.high)]
    if down.cut:
        edges += [_lead(kernel) * across.wide * n for n in (down.low, down.high)]
    found = {"halo": _lead(kernel) * down.wide * across.wide}
    return found | ({"edge_out": max(edges), "edge_in": max(edges)} if max(edges) else {})


def emit_slide(name: str, kernel: Slide) -> Code:
    """The kernel: lay out, four exchanges of edges where there are neighbours, then the windows."""
    down, across = kernel.sides
    code = Code([_lay_out(name, kernel)], [(f"{name}();", False)])
    for axis, side in (("x", across), ("y", down)):
        for up, count in ((True, side.low), (False, side.high)):
            if not side.cut or not count:
                continue
            code.axes += axis if axis not in code.axes else ""
            at = f"{name}_{axis}_{'up' if up else 'down'}"
            lines, words = _edges(kernel, axis, up, count)
            code.decls += [f"fn {at}_give() void {{\n{lines[0]}\n}}", f"fn {at}_take() void {{\n{lines[1]}\n}}"]
            pointers = ", ".join(f"@ptrcast([*]u32, &edge_{way})" for way in ("out", "in"))
            code.actions += [
                (f"{at}_give();", False),
                (f"mpi_{axis}.edge({'true' if up else 'false'}, {pointers}, {words}, advance_id);", True),
                (f"{at}_take();", False),
            ]
    code.decls.append(_windows(name, kernel))
    code.actions.append((f"{name}_windows();", False))
    narrow(name, kernel, code)
    return code


def _lay_out(name: str, kernel: Slide) -> str:
    down, across = kernel.sides
    source, plane = kernel.source, down.wide * across.wide
    total = _lead(kernel) * plane
    fill = literal(float("-inf") if kernel.kind == "max" else 0.0, "f32")
    move = "fmovs" if source.dtype == "f32" else "fh2s"
    into = f"p * {plane} + (i + {down.low}) * {across.wide} + {across.low}"
    from_ = f"p * {down.tile * across.tile} + i * {across.tile}"
    body = (
        f"@{move}(@set_dsd_length(@increment_dsd_offset(into, {into}, f32), @as(u16, wide_part)), "
        f"@set_dsd_length(@increment_dsd_offset(from, {from_}, {source.dtype}), @as(u16, wide_part)));"
    )
    looped = loop_nest([str(_lead(kernel)), "high_part"], ["p", "i"], body)
    return (
        f"fn {name}() void {{\nconst high_part: i16 = {extent_text(source.tiling, -2)};\n"
        f"const wide_part: i16 = {extent_text(source.tiling, -1)};\n"
        f"const all = @get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{{total}}} -> halo[i] }});\n@fmovs(all, {fill});\n"
        f"const into = @get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{1}} -> halo[i] }});\n"
        f"const from = @get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{1}} -> {source.slot}[i] }});\n"
        f"if (wide_part > 0) {{\n{looped}\n}}\n}}"
    )


def _edges(kernel: Slide, axis: str, up: bool, count: int) -> tuple[tuple[str, str], int]:
    """Statements that lay out what goes to the neighbour and put away what has come, and the number of words."""
    down, across = kernel.sides
    side = across if axis == "x" else down
    grid = kernel.out.tiling.grid
    give = side.low + side.tile - count if up else side.low
    take = 0 if up else side.low + side.tile
    plane, width = down.wide * across.wide, across.wide
    lead = _lead(kernel)
    if axis == "x":
        extents, place, words = (
            [lead, down.tile, count],
            f"p * {plane} + (i + {down.low}) * {width} + j",
            down.tile * count,
        )
        edge = f"p * {down.tile * count} + i * {count} + j"
        shifted = [f"{place} + {first}" for first in (give, take)]
    else:
        extents, words = [lead, count, width], count * width
        edge = f"p * {count * width} + i * {width} + j"
        shifted = [f"p * {plane} + (i + {first}) * {width} + j" for first in (give, take)]
    loops = [str(n) for n in extents]
    gives = loop_nest(loops, ["p", "i", "j"], f"edge_out[{edge}] = halo[{shifted[0]}];")
    takes = loop_nest(loops, ["p", "i", "j"], f"halo[{shifted[1]}] = edge_in[{edge}];")
    last = (grid.cols if axis == "x" else grid.rows) - 1
    somebody = f"pe_{axis} > 0" if up else f"pe_{axis} < {last}"
    return (gives, f"if ({somebody}) {{\n{takes}\n}}"), lead * words


def _windows(name: str, kernel: Slide) -> str:
    down, across = kernel.sides
    target = kernel.out.slot if kernel.out.dtype == "f32" else "wide"
    plane, width = down.wide * across.wide, across.wide
    step = f"i * {across.stride}" if across.stride > 1 else "i"
    heads = [
        f"const sum = @get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{{across.made}}} -> {target}[i] }});",
        f"const line = @get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{{across.made}}} -> halo[{step}] }});",
    ]
    row = f"(h * {down.stride} + u * {down.dilation}) * {width} + v * {across.dilation}"
    taps = [str(down.window), str(across.window)]
    if kernel.weight is None:
        op = "fmaxs" if kernel.kind == "max" else "fadds"
        start = literal(float("-inf") if kernel.kind == "max" else 0.0, "f32")
        body = loop_nest(taps, ["u", "v"], f"@{op}(into, into, @increment_dsd_offset(line, p * {plane} + {row}, f32));")
        outer, place = [str(_lead(kernel)), str(down.made)], f"(p * {down.made} + h) * {across.made}"
        names = ["p", "h"]
    else:
        batch, outs = kernel.out.tiling.shape[:2]
        depth = kernel.source.tiling.shape[1]
        area = down.window * across.window
        weight = f"{kernel.weight.slot}[(o * {depth} + c) * {area} + u * {across.window} + v]"
        weight = weight if kernel.weight.dtype == "f32" else f"@as(f32, {weight})"
        start = literal(0.0, "f32")
        if kernel.bias is not None:
            start = f"{kernel.bias.slot}[o]" if kernel.bias.dtype == "f32" else f"@as(f32, {kernel.bias.slot}[o])"
        source = f"@increment_dsd_offset(line, (n * {depth} + c) * {plane} + {row}, f32)"
        body = loop_nest([str(depth), *taps], ["c", "u", "v"], f"@fmacs(into, into, {source}, {weight});")
        outer, names = [str(batch), str(outs), str(down.made)], ["n", "o", "h"]
        place = f"((n * {outs} + o) * {down.made} + h) * {across.made}"
    inside = f"const into = @increment_dsd_offset(sum, {place}, f32);\n@fmovs(into, {start});\n{body}"
    return f"fn {name}_windows() void {{\n" + "\n".join([*heads, loop_nest(outer, names, inside)]) + "\n}"
