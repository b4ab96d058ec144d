"""Data that changes its place on the fabric, in CSL.

Column after column of PEs sends its tiles along the rows, and what a row got goes row after row along the columns, so
that every tile passes every PE, which keeps what belongs to it. An element's new place is computed, not sent.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyflame_rt.backends.wse.emit.communication import PLACE, Code
from pyflame_rt.backends.wse.emit.elementwise import loop_nest, offset_text, tile_strides
from pyflame_rt.backends.wse.emit.scalar_csl import literal

if TYPE_CHECKING:
    from pyflame_rt.backends.wse.plan.kernels import Spread
    from pyflame_rt.backends.wse.plan.redistribution import CoordinateView

__all__ = ["emit_spread"]

_FROM = {"x": "s", "y": "r", "yx": "r * num_cols + s"}
_VALUE = {
    "f32": "@bitcast(f32, {0})",
    "i32": "@bitcast(i32, {0})",
    "f16": "@bitcast(f16, @as(u16, {0}))",
    "i16": "@bitcast(i16, @as(u16, {0}))",
    "u16": "@as(u16, {0})",
}
_WORD = {
    "f32": "@bitcast(u32, {0})",
    "i32": "@bitcast(u32, {0})",
    "f16": "@as(u32, @bitcast(u16, {0}))",
    "i16": "@as(u32, @bitcast(u16, {0}))",
    "u16": "@as(u32, {0})",
}


@dataclass(slots=True)
class _Walk:
    """Coordinates as expressions, with the statements, loops and conditions they need."""

    coords: list[str]
    shape: tuple[int, ...]
    lines: list[str] = field(default_factory=list)
    tests: list[str] = field(default_factory=list)
    loops: list[tuple[str, int]] = field(default_factory=list)

    def name(self, text: str) -> str:
        """A constant for an expression."""
        if text.isidentifier() or text.isdigit():
            return text
        made = f"c{len(self.lines)}"
        self.lines.append(f"const {made}: i32 = {text};")
        return made

    def apply(self, view: CoordinateView) -> None:
        """The coordinates after a view."""
        getattr(self, f"_{view.kind}")(view)
        self.shape = view.shape

    def _transpose(self, view: CoordinateView) -> None:
        self.coords = [self.coords[d] for d in view.data]

    def _reshape(self, view: CoordinateView) -> None:
        if [n for n in self.shape if n != 1] == [n for n in view.shape if n != 1]:
            kept = iter(c for c, n in zip(self.coords, self.shape, strict=True) if n != 1)
            self.coords = [next(kept) if n != 1 else "0" for n in view.shape]
            return
        place = "0"
        for coord, size in zip(self.coords, self.shape, strict=True):
            if size != 1:
                place = coord if place == "0" else f"({place} * {size} + {coord})"
        found: list[str] = []
        wide = [d for d, n in enumerate(view.shape) if n != 1]
        for d in reversed(range(len(view.shape))):
            if d not in wide:
                found.append("0")
                continue
            place = self.name(place)
            size = view.shape[d]
            found.append(place if d == wide[0] else self.name(f"{place} % {size}"))
            place = f"{place} / {size}"
        self.coords = found[::-1]

    def _slice(self, view: CoordinateView) -> None:
        found: list[str] = []
        for coord, size, (start, step, count) in zip(self.coords, self.shape, view.data, strict=True):
            if (start, step, count) == (0, 1, size):
                found.append(coord)
                continue
            ahead = self.name(f"{coord} - {start}" if step > 0 else f"{start} - {coord}")
            far = self.name(f"{ahead} / {abs(step)}" if abs(step) > 1 else ahead)
            self.tests += [f"{ahead} >= 0", f"{far} < {count}"]
            if abs(step) > 1:
                self.tests.append(f"{ahead} % {abs(step)} == 0")
            found.append(far)
        self.coords = found

    def _shift(self, view: CoordinateView) -> None:
        self.coords = [self.name(f"{c} + {by}") if by else c for c, by in zip(self.coords, view.data, strict=True)]

    def _windows(self, view: CoordinateView) -> None:
        taps: list[str] = []
        places: list[str] = []
        for d, (coord, (window, stride, dilation, pad)) in enumerate(zip(self.coords, view.data, strict=True)):
            tap = "0"
            if window > 1:
                tap = f"tap{d}"
                self.loops.append((f"t{d}", window))
                self.lines.append(f"const {tap}: i32 = @as(i32, t{d});")
            taps.append(tap)
            if window == 1 and stride == 1 and not pad:
                places.append(coord)
                continue
            ahead = self.name(f"{coord} + {pad} - {tap} * {dilation}")
            place = self.name(f"{ahead} / {stride}" if stride > 1 else ahead)
            self.tests += [f"{ahead} >= 0", f"{place} < {view.shape[d]}"]
            if stride > 1:
                self.tests.append(f"{ahead} % {stride} == 0")
            places.append(place)
        self.coords = [*places, *taps]


def emit_spread(name: str, kernel: Spread) -> Code:
    """The kernel's functions: ``name`` starts it, and the task ``turn`` goes on after each broadcast."""
    along_x, along_y = "x" in kernel.axes, "y" in kernel.axes
    code = Code([_pick(name, kernel)], turned=f"{name}_turn" if kernel.axes else "", axes=kernel.axes)
    if not kernel.axes:
        code.decls.append(f"fn {name}() void {{\n{_filled(kernel)}{name}_pick(pe_y, pe_x);\n}}")
        code.actions = [(f"{name}();", False)]
        return code
    start = f"turning = {name}_number;\nspread_s = 0;\nspread_r = 0;\n"
    start += f"{name}_row();" if along_x else f"{_load(kernel)}\n{name}_got();"
    code.actions = [(f"{name}();", True)]
    done = "@activate(advance_id);"
    again = f"if (spread_s < {kernel.out.tiling.grid.cols}) {{ {name}_row(); }} else {{ {done} }}" if along_x else done
    if along_x:
        code.decls.append(_row(name, kernel))
    if along_y:
        code.decls.append(_column(name, kernel, again))
        got = f"spread_r = 0;\n{name}_column();"
    else:
        got = f"{name}_pick(pe_y, spread_s);\nspread_s += 1;\n{again}"
    code.decls.append(f"fn {name}_got() void {{\n{got}\n}}")
    after = f"{name}_got();"
    if along_y:
        picked = f"{name}_pick(spread_r, spread_s);\nspread_r += 1;\n{name}_column();"
        after = f"if (spread_down == 1) {{\n{picked}\n}} else {{\n{after}\n}}" if along_x else picked
    code.decls.append(f"fn {name}_turn() void {{\n{after}\n}}")
    code.decls.append(f"fn {name}() void {{\n{_filled(kernel)}{start}\n}}")
    return code


def _filled(kernel: Spread) -> str:
    if kernel.fill is None:
        return ""
    value = literal(kernel.fill, kernel.out.dtype)
    return loop_nest([str(kernel.out.tiling.elements)], ["i"], f"{kernel.out.slot}[i] = {value};") + "\n"


def _load(kernel: Spread) -> str:
    """The own tile as words in ``spread_hold``."""
    word = _WORD[kernel.source.dtype].format(f"{kernel.source.slot}[i]")
    return loop_nest([str(kernel.source.tiling.elements)], ["i"], f"spread_hold[i] = {word};")


def _row(name: str, kernel: Spread) -> str:
    count = kernel.source.tiling.elements
    return (
        f"fn {name}_row() void {{\nspread_down = 0;\nif (pe_x == spread_s) {{\n{_load(kernel)}\n}}\n"
        f"mpi_x.broadcast(spread_s, @ptrcast([*]u32, &spread_hold), {count}, turn_id);\n}}"
    )


def _column(name: str, kernel: Spread, again: str) -> str:
    count = kernel.source.tiling.elements
    return (
        f"fn {name}_column() void {{\nif (spread_r < {kernel.out.tiling.grid.rows}) {{\nspread_down = 1;\n"
        "if (pe_y == spread_r) {\n"
        f"const from = @get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{{count}}} -> spread_hold[i] }});\n"
        f"const into = @get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{{count}}} -> spread_pass[i] }});\n"
        "@mov32(into, from);\n}\n"
        f"mpi_y.broadcast(spread_r, @ptrcast([*]u32, &spread_pass), {count}, turn_id);\n"
        f"}} else {{\nspread_s += 1;\n{again}\n}}\n}}"
    )


def _pick(name: str, kernel: Spread) -> str:
    """Go through the tile of PE (r, s) and keep what belongs here."""
    source, out = kernel.source.tiling, kernel.out.tiling
    heads: list[str] = []
    coords: list[str] = []
    lines: list[str] = []
    extents: list[str] = []
    for d, (size, axes, piece) in enumerate(zip(source.shape, source.axes, source.tile, strict=True)):
        cuts = source.grid.cuts(axes)
        whole = cuts == 1 or piece * cuts == size
        extents.append(str(piece) if whole else f"n{d}")
        if not whole:
            heads.append(f"const n{d}: i16 = extent({size}, {piece}, {_FROM[axes]});")
        coords.append(f"g{d}" if size != 1 else "0")
        if size != 1:
            first = "" if cuts == 1 else f" + {piece} * @as(i32, {_FROM[axes]})"
            lines.append(f"const g{d}: i32 = @as(i32, i{d}){first};")
    walk = _Walk(coords, source.shape, lines)
    for view in kernel.views:
        walk.apply(view)
    offset: list[str] = []
    steps = tile_strides(out)
    for d, (coord, axes, piece) in enumerate(zip(walk.coords, out.axes, out.tile, strict=True)):
        local = coord
        if out.grid.cuts(axes) > 1:
            heads.append(f"const first{d}: i32 = {piece} * @as(i32, {PLACE[axes]});")
            local = walk.name(f"{coord} - first{d}")
            walk.tests += [f"{local} >= 0", f"{local} < {piece}"]
        if local != "0" and out.shape[d] != 1:
            offset.append(local if steps[d] == 1 else f"{local} * {steps[d]}")
    block = "spread_pass" if "y" in kernel.axes else "spread_hold" if kernel.axes else ""
    names = [f"i{d}" for d in range(len(source.shape))]
    at = offset_text(names, tile_strides(source))
    value = _VALUE[kernel.out.dtype].format(f"{block}[{at}]") if block else f"{kernel.source.slot}[{at}]"
    put = f"{kernel.out.slot}[@as(u16, {' + '.join(offset) or '0'})] = {value};"
    loops = [*zip(names, extents, strict=True), *((v, str(n)) for v, n in walk.loops)]
    return f"fn {name}_pick(r: u16, s: u16) void {{\n" + "\n".join([*heads, _nested(loops, walk, put)]) + "\n}"


def _nested(loops: list[tuple[str, str]], walk: _Walk, put: str) -> str:
    """Loops with every statement and every condition as far outside as it can be."""
    level = {name: n for n, (name, _) in enumerate(loops, 1)}

    def depth(text: str) -> int:
        return max((level.get(word, 0) for word in re.findall(r"\w+", text)), default=0)

    lines: list[list[str]] = [[] for _ in range(len(loops) + 1)]
    tests: list[list[str]] = [[] for _ in range(len(loops) + 1)]
    for line in walk.lines:
        declared, _, value = line.removeprefix("const ").partition(": i32 = ")
        level[declared] = depth(value)
        lines[level[declared]].append(line)
    for test in dict.fromkeys(walk.tests):
        tests[depth(test)].append(test)
    body = put
    for n in reversed(range(len(loops) + 1)):
        if tests[n]:
            body = f"if ({' and '.join(tests[n])}) {{\n{body}\n}}"
        body = "\n".join([*lines[n], body])
        if n:
            body = loop_nest([loops[n - 1][1]], [loops[n - 1][0]], body)
    return body
