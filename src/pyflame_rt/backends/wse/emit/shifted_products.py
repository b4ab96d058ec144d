"""Products by neighbours in CSL: blocks of both operands go round rings of PEs while the PEs multiply.

The PEs of a row, and those of a column, form rings whose neighbours are at most two PEs apart. A row of the left
operand is first turned by as many places as its number in its column's ring asks for, the right operand's columns
likewise, so that the blocks of K that meet on a PE belong together; after each product both go on by one place. Blocks
come and go in two places of memory; that of the operand itself is one of them where nobody needs it afterwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyflame_rt.backends.wse.emit.elementwise import loop_nest, offset_text
from pyflame_rt.backends.wse.plan.kernels import BYTES

if TYPE_CHECKING:
    from pyflame_rt.backends.wse.plan.kernels import KeptWeights, MatMul, PeBuffer

__all__ = ["SHARED", "rings_of", "shift_decls", "words_of"]

# What all such products of a program share, for the axes in use.
SHARED = {
    "": [
        "var k_step: u16 = 0;",
        (
            "fn ring_number(place: u16, size: u16) u16 {\nconst half = place >> 1;\n"
            "return if ((place & 1) == 0) half else size - 1 - half;\n}"
        ),
        (
            "fn ring_place(number: u16, size: u16) u16 {\n"
            "return if (number < (size + 1) >> 1) 2 * number else 2 * (size - 1 - number) + 1;\n}"
        ),
    ],
    "x": [
        *[f"var a_{name}: [*]u32;" for name in ("from", "now", "next", "other")],
        "var a_words: u16 = 0;",
        (
            "fn shift_x() void {\nx_left -= 1;\na_from = a_now;\na_now = a_next;\na_next = a_other;\na_other = a_now;\n"
            "mpi_x.ring_shift(a_from, a_now, a_words, x_done_id);\n}"
        ),
    ],
    "y": [
        *[f"var b_{name}: [*]u32;" for name in ("from", "now", "next", "other")],
        "var b_words: u16 = 0;",
        (
            "fn shift_y() void {\ny_left -= 1;\nb_from = b_now;\nb_now = b_next;\nb_next = b_other;\nb_other = b_now;\n"
            "mpi_y.ring_shift(b_from, b_now, b_words, y_done_id);\n}"
        ),
    ],
}
_SIDES = {"x": ("a", "@activate(join_id);"), "y": ("b", "@unblock(join_id);")}


def words_of(buffer: PeBuffer) -> int:
    """32-bit words of a tile."""
    return -(-buffer.tiling.elements * BYTES[buffer.dtype] // 4)


def shift_decls(name: str, kernel: MatMul) -> list[str]:
    """The kernel's functions: ``name`` starts it, ``name_block`` goes on when blocks of both operands have arrived."""
    return [_start(name, kernel), _multiply(name, kernel), _go_on(name, kernel)]


def rings_of(kernel: MatMul) -> str:
    """The axes along which blocks go round."""
    grid = kernel.out.tiling.grid
    return ("x" if grid.cols > 1 else "") + ("y" if grid.rows > 1 else "")


def _size(kernel: MatMul) -> int:
    grid = kernel.out.tiling.grid
    return max(grid.rows, grid.cols)


def _turn(kernel: MatMul, count: dict[str, str]) -> str:
    """Shift both operands by these counts; ``join`` comes when both are through."""
    lines: list[str] = []
    for axis, (_, otherwise) in _SIDES.items():
        if axis not in rings_of(kernel) or count[axis] == "0":
            lines.append(otherwise)
        elif count[axis] == "1":
            lines.append(f"{axis}_left = 1;\nshift_{axis}();")
        else:
            lines.append(
                f"{axis}_left = {count[axis]};\nif ({axis}_left > 0) {{ shift_{axis}(); }} else {{ {otherwise} }}"
            )
    return "\n".join(lines)


def _start(name: str, kernel: MatMul) -> str:
    target = kernel.out.slot if kernel.out.dtype == "f32" else "wide"
    size, both = _size(kernel), len(rings_of(kernel)) == 2
    kept = {"a": kernel.keep_a, "b": kernel.keep_b}
    lines = [
        f"const all = @get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{{kernel.out.tiling.elements}}} -> {target}[i] }});",
        "@fmovs(all, @as(f32, 0.0));",
        f"joining = {name}_number;",
        "k_step = 0;",
    ]
    for axis in rings_of(kernel):
        side = _SIDES[axis][0]
        buffer = kernel.a if side == "a" else kernel.b
        lines += [
            f"{side}_now = @ptrcast([*]u32, &{buffer.slot});",
            f"{side}_next = @ptrcast([*]u32, &block_{side});",
            f"{side}_other = @ptrcast([*]u32, &{f'other_{side}' if kept[side] else buffer.slot});",
            f"{side}_words = {words_of(buffer)};",
            f"mpi_{axis}.ring_open();",
        ]
    # A row's skew is its number in the ring of its column.
    skews = {axis: f"({size} - ring_number(pe_{other}, {size})) % {size}" for axis, other in ("xy", "yx")}
    lines.append(_turn(kernel, skews if both else {"x": "0", "y": "0"}))
    return f"fn {name}() void {{\n" + "\n".join(lines) + "\n}"


def _multiply(name: str, kernel: MatMul) -> str:
    """The product of the blocks that are here; ``a`` and ``b`` point to them."""
    if kernel.kept is not None:
        return _multiply_kept(name, kernel, kernel.kept)
    half = kernel.out.dtype != "f32"
    rows, inner = kernel.a.tiling.tile[-2:]
    deep, cols = kernel.b.tiling.tile[-2:]
    grid, depth = kernel.out.tiling.grid, kernel.a.tiling.shape[-1]
    piece = inner if grid.cols > 1 else deep
    kind = kernel.a.dtype
    lines = [f"const depth: i16 = extent({depth}, {piece}, number);"]
    if len(rings_of(kernel)) == 1:
        lines.append(f"const first: i16 = @as(i16, number) * {piece};")
    along_a = "k" if grid.cols > 1 else "first + k"
    along_b = "k" if grid.rows > 1 else "(first + k)"
    a = f"a[{offset_text(['g', 'i'], [kernel.a_step * rows * inner, inner])} + {along_a}]"
    a = f"@as(f32, {a})" if half else a
    line = offset_text(["g", along_b], [kernel.b_step * deep * cols, cols])
    target = "wide" if half else kernel.out.slot
    lines += [
        f"const sum = @get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{{cols}}} -> {target}[i] }});",
        f"const top = @get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{{cols}}} -> {kernel.b.slot}[i] }});",
        "const line = @set_dsd_base_addr(top, b);",
    ]
    row = f"@increment_dsd_offset(line, {line}, {kind})"
    into = f"const into = @increment_dsd_offset(sum, {offset_text(['g', 'i'], [rows * cols, cols])}, f32);\n"
    if half:
        lines.append(f"const wider = @get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{{cols}}} -> row_b[i] }});")
        inside = loop_nest([str(rows)], ["i"], f"{into}@fmacs(into, into, wider, {a});")
        body = loop_nest(["depth"], ["k"], f"@fh2s(wider, {row});\n{inside}")
    else:
        inside = loop_nest(["depth"], ["k"], f"@fmacs(into, into, {row}, {a});")
        body = loop_nest([str(rows)], ["i"], into + inside)
    lines.append(loop_nest([str(kernel.repeat)], ["g"], body))
    return f"fn {name}_multiply(a: [*]{kind}, b: [*]{kind}, number: u16) void {{\n" + "\n".join(lines) + "\n}"


def _multiply_kept(name: str, kernel: MatMul, kept: KeptWeights) -> str:
    """The same with a list of weights: every entry says where it belongs."""
    lines = [
        "const places = @ptrcast([*]u16, b);",
        f"const count: i16 = {kept.room} - @as(i16, places[0]);",
    ]
    if kernel.out.tiling.grid.cols == 1:  # the left operand has all of K on this PE
        lines.append(f"const first: i16 = @as(i16, number) * {kept.deep};")
    more, body = _kept_rows(kernel, kept) if kept.by == "rows" else _kept_elements(kernel, kept)
    lines += [*more, loop_nest([str(kernel.repeat)], ["g"], body)]
    return f"fn {name}_multiply(a: [*]f32, b: [*]u32, number: u16) void {{\n" + "\n".join(lines) + "\n}"


def _descriptor(name: str, count: int, array: str, step: int = 1) -> str:
    place = "i" if step == 1 else f"{step} * i"
    return f"const {name} = @get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{{count}}} -> {array}[{place}] }});"


def _along_k(kernel: MatMul, place: str) -> str:
    """The place of an entry's factors in a row of the left operand."""
    return f"first + @as(i16, {place})" if kernel.out.tiling.grid.cols == 1 else f"@as(i16, {place})"


def _kept_rows(kernel: MatMul, kept: KeptWeights) -> tuple[list[str], str]:
    """Declarations, and the product of one matrix: each row of the list by a factor, added to a row of sums."""
    rows, inner = kernel.a.tiling.tile[-2:]
    heads = [
        _descriptor("sum", kept.cols, kernel.out.slot),
        _descriptor("top", kept.cols, kernel.out.slot),
        "const line = @set_dsd_base_addr(top, @ptrcast([*]f32, b));",
    ]
    factor = offset_text(["g", "i"], [kernel.a_step * rows * inner, inner])
    target = offset_text(["g", "i"], [rows * kept.cols, kept.cols])
    step = (
        f"@fmacs(into, into, @increment_dsd_offset(line, {kept.first_value} + p * {kept.cols}, f32), "
        f"a[{factor} + {_along_k(kernel, 'places[p + 2]')}]);"
    )
    into = f"const into = @increment_dsd_offset(sum, {target}, f32);\n"
    return heads, loop_nest([str(rows)], ["i"], into + loop_nest(["count"], ["p"], step))


def _kept_elements(kernel: MatMul, kept: KeptWeights) -> tuple[list[str], str]:
    """Declarations, and the product of one matrix: a column of factors by each weight, added to a column of sums."""
    rows, inner = kernel.a.tiling.tile[-2:]
    heads = [
        "const values = @ptrcast([*]f32, b);",
        _descriptor("sum", rows, kernel.out.slot, kept.cols),
        _descriptor("top", rows, kernel.a.slot, inner),
        "const column = @set_dsd_base_addr(top, a);",
    ]
    target = offset_text(["g"], [rows * kept.cols])
    source = offset_text(["g"], [kernel.a_step * rows * inner])
    step = (
        "const place = places[p + 2];\n"
        f"const into = @increment_dsd_offset(sum, {target} + @as(i16, place & 255), f32);\n"
        f"const from = @increment_dsd_offset(column, {source} + {_along_k(kernel, 'place >> 8')}, f32);\n"
        f"@fmacs(into, into, from, values[p + {kept.first_value}]);"
    )
    return heads, loop_nest(["count"], ["p"], step)


def _go_on(name: str, kernel: MatMul) -> str:
    """Blocks have arrived: multiply while the next ones come, then leave the rings."""
    size, rings = _size(kernel), rings_of(kernel)
    more = _turn(kernel, {"x": "1", "y": "1"})
    where = (
        " + ".join(f"ring_number(pe_{axis}, {size})" for axis in rings) + f" + {size} - k_step"
    )  # never below zero; the sum is less than three times the size
    leave = "\n".join(
        f"mpi_{axis}.ring_close({axis}_done_id);" if axis in rings else otherwise
        for axis, (_, otherwise) in _SIDES.items()
    )
    return (
        f"fn {name}_block() void {{\nif (k_step < {size}) {{\n"
        f"const number = ring_place(({where}) % {size}, {size});\n"
        f"if (k_step < {size - 1}) {{\n{more}\n{_call(name, kernel, 'from')}\n}} else {{\n{leave}\n"
        f"{_call(name, kernel, 'now')}\n}}\n}} else {{\n@activate(advance_id);\n}}\nk_step += 1;\n}}"
    )


def _call(name: str, kernel: MatMul, place: str) -> str:
    """The product of the blocks that are going or have come; an operand without a ring stays where it is."""
    args: list[str] = []
    for axis, buffer in (("x", kernel.a), ("y", kernel.b)):
        there = f"{_SIDES[axis][0]}_{place}" if axis in rings_of(kernel) else f"&{buffer.slot}"
        args.append(f"@ptrcast([*]{buffer.dtype}, {there})")
    return f"{name}_multiply({', '.join(args)}, number);"
