"""Reductions and products in CSL, with what the PEs send each other."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from pyflame_rt.backends.wse.emit.elementwise import loop_nest, offset_text, strides_of
from pyflame_rt.backends.wse.emit.scalar_csl import literal
from pyflame_rt.backends.wse.emit.shifted_products import rings_of, shift_decls
from pyflame_rt.backends.wse.plan.kernels import INTEGERS
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from pyflame_rt.backends.wse.plan.kernels import MatMul, ReduceKernel, Slide
    from pyflame_rt.backends.wse.plan.tiling import Tiling

__all__ = ["PLACE", "Code", "emit_matmul", "emit_reduce", "extent_text", "narrow"]


@dataclass(slots=True)
class Code:
    """A kernel's text.

    Attributes:
        decls: declarations.
        actions: statements that run it, in order; a True with one says that it goes on by itself and activates
            ``advance_id`` in the end.
        joined: the function that goes on when blocks of both operands have arrived.
        turned: the function that goes on when a tile has arrived.
        axes: the axes along which it sends.
        rings: the axes along which it passes blocks round.
    """

    decls: list[str]
    actions: list[tuple[str, bool]] = field(default_factory=list)
    joined: str = ""
    turned: str = ""
    axes: str = ""
    rings: str = ""


PLACE = {"x": "pe_x", "y": "pe_y", "yx": "pe_y * num_cols + pe_x"}


def extent_text(tiling: Tiling, dim: int) -> str:
    """How many elements of a dimension this PE has: known, or computed from where it is."""
    size, axes, piece = tiling.shape[dim], tiling.axes[dim], tiling.tile[dim]
    cuts = tiling.grid.cuts(axes)
    if cuts == 1 or piece * cuts == size:
        return str(piece)
    return f"extent({size}, {piece}, {PLACE[axes]})"


# --- reductions -------------------------------------------------------------------------------------------------------


def emit_reduce(name: str, kernel: ReduceKernel) -> Code:
    """Each PE reduces its tile; then rows and columns of PEs combine what they have."""
    whole = kernel.out.dtype in INTEGERS
    wide = kernel.out.dtype != "f32" and not whole
    target = "wide" if wide else kernel.out.slot
    code = Code([_local(name, kernel, target)], [(f"{name}();", False)], axes=kernel.axes)
    count = kernel.out.tiling.elements
    call = "allreduce_fadds" if kernel.kind == "sum" else "allreduce_fmaxs"
    for axis in kernel.axes:
        pointer = f"@ptrcast([*]f32, &{target})"
        code.actions.append((f"mpi_{axis}.{call}({pointer}, {pointer}, {count}, advance_id);", True))
    value = f"{target}[i]"
    value = f"-{value}" if kernel.kind == "min" and not whole else value
    if kernel.divide != 1:
        value = f"{value} / {literal(kernel.divide, kernel.out.dtype if whole else 'f32')}"
    value = f"@as({kernel.out.dtype}, {value})" if wide else value
    if value != f"{target}[i]":
        loop = loop_nest([str(count)], ["i"], f"{kernel.out.slot}[i] = {value};")
        code.decls.append(f"fn {name}_finish() void {{\n{loop}\n}}")
        code.actions.append((f"{name}_finish();", False))
    return code


_START = {"sum": 0.0, "prod": 1.0, "max": float("-inf"), "min": float("-inf")}
_STEP = {
    "sum": "total = total + value;",
    "prod": "total = total * value;",
    "max": "if (value > total or value != value) { total = value; }",
    "min": "if (-value > total or value != value) { total = -value; }",
}
_WHOLE_START = {"sum": 0, "prod": 1, "max": -(2**31), "min": 2**31 - 1}
_WHOLE_STEP = {
    "sum": "total = total + value;",
    "prod": "total = total * value;",
    "max": "if (value > total) { total = value; }",
    "min": "if (value < total) { total = value; }",
}


def _local(name: str, kernel: ReduceKernel, target: str) -> str:
    source = kernel.source.tiling
    dims = range(len(source.shape))
    names = [f"i{d}" for d in dims]
    kept = [d for d in dims if d not in kernel.dims]
    place = offset_text(names, strides_of(source, source))
    result = offset_text(names, strides_of(kernel.out.tiling, source))
    heads = [f"const n{d}: i16 = {extent_text(source, d)};" for d in kernel.dims]
    whole = kernel.out.dtype in INTEGERS
    kind = "i32" if whole else "f32"
    start, step = (_WHOLE_START, _WHOLE_STEP) if whole else (_START, _STEP)
    value = f"{kernel.source.slot}[{place}]"
    value = value if kernel.source.dtype == kind else f"@as({kind}, {value})"
    inner = loop_nest(
        [f"n{d}" for d in kernel.dims],
        [names[d] for d in kernel.dims],
        f"const value: {kind} = {value};\n{step[kernel.kind]}",
    )
    total = "@as(i16, total)" if kernel.out.dtype == "i16" else "total"
    body = f"var total: {kind} = {literal(start[kernel.kind], kind)};\n{inner}\n{target}[{result}] = {total};"
    looped = loop_nest([str(source.tile[d]) for d in kept], [names[d] for d in kept], body)
    return f"fn {name}() void {{\n" + "\n".join([*heads, looped]) + "\n}"


# --- products ---------------------------------------------------------------------------------------------------------


def emit_matmul(name: str, kernel: MatMul) -> Code:
    """The product by its method."""
    if kernel.how == "shift":
        code = Code(shift_decls(name, kernel), [(f"{name}();", True)], joined=f"{name}_block")
        code.axes = code.rings = rings_of(kernel)
        narrow(name, kernel, code)
        return code
    return _summa(name, kernel) if kernel.how == "summa" else _by_sum(name, kernel)


def narrow(name: str, kernel: MatMul | Slide, code: Code) -> None:
    """Rounds the wide result to half precision."""
    if kernel.out.dtype == "f32":
        return
    count = kernel.out.tiling.elements
    code.decls.append(
        f"fn {name}_finish() void {{\n"
        f"const from = @get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{{count}}} -> wide[i] }});\n"
        f"const into = @get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{{count}}} -> {kernel.out.slot}[i] }});\n"
        "@fs2h(into, from);\n}"
    )
    code.actions.append((f"{name}_finish();", False))


def _sizes(kernel: MatMul) -> tuple[int, int, int, int, int]:
    """Rows, elements of K in a tile of each operand, columns, and K itself."""
    rows, inner = kernel.a.tiling.tile[-2:]
    deep, cols = kernel.b.tiling.tile[-2:]
    return rows, inner, deep, cols, kernel.a.tiling.shape[-1]


def _by_sum(name: str, kernel: MatMul) -> Code:
    """Every PE multiplies what it has of K; along the axis that cuts K the PEs add up."""
    rows, inner, deep, cols, _ = _sizes(kernel)
    half = kernel.out.dtype != "f32"
    target = "wide" if half else kernel.out.slot
    a_step, b_step = kernel.a_step * rows * inner, kernel.b_step * deep * cols
    a = f"{kernel.a.slot}[{offset_text(['g', 'i', 'k'], [a_step, inner, 1])}]"
    a = f"@as(f32, {a})" if half else a
    row = offset_text(["g", "k"], [b_step, cols])
    heads = [f"const depth: i16 = {extent_text(kernel.a.tiling, -1)};"]
    place = offset_text(["g", "i"], [rows * cols, cols])
    if cols == 1:
        b = f"{kernel.b.slot}[{row}]"
        b = f"@as(f32, {b})" if half else b
        body = "var total: f32 = 0.0;\n" + loop_nest(["depth"], ["k"], f"total = total + {a} * {b};")
        body += f"\n{target}[{place}] = total;"
    else:
        heads += [_row_dsd("sum", target, cols), _row_dsd("line", kernel.b.slot, cols)]
        source = f"@increment_dsd_offset(line, {row}, {kernel.b.dtype})"
        widened = ""
        if half:
            heads.append(_row_dsd("wider", "block_b", cols))
            widened, source = f"@fh2s(wider, {source});\n", "wider"
        step = f"{widened}@fmacs(into, into, {source}, {a});"
        body = f"const into = @increment_dsd_offset(sum, {place}, f32);\n@fmovs(into, @as(f32, 0.0));\n"
        body += loop_nest(["depth"], ["k"], step)
    looped = loop_nest([str(kernel.repeat), str(rows)], ["g", "i"], body)
    code = Code([f"fn {name}() void {{\n" + "\n".join([*heads, looped]) + "\n}"], [(f"{name}();", False)])
    if kernel.k_axis:
        code.axes = kernel.k_axis
        pointer = f"@ptrcast([*]f32, &{target})"
        count = kernel.out.tiling.elements
        code.actions.append((f"mpi_{kernel.k_axis}.allreduce_fadds({pointer}, {pointer}, {count}, advance_id);", True))
    narrow(name, kernel, code)
    return code


def _row_dsd(name: str, array: str, length: int) -> str:
    return f"const {name} = @get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{{length}}} -> {array}[i] }});"


def _summa(name: str, kernel: MatMul) -> Code:
    """Block after block of K: its owners send it along their row and column, then everybody multiplies."""
    code = Code([], [(f"{name}();", True)], joined=f"{name}_block")
    grid = kernel.out.tiling.grid
    code.axes = ("x" if grid.cols > 1 else "") + ("y" if grid.rows > 1 else "")
    code.decls = [_summa_start(name, kernel), _summa_send(name, kernel), _summa_block(name, kernel)]
    narrow(name, kernel, code)
    return code


def _summa_start(name: str, kernel: MatMul) -> str:
    half = kernel.out.dtype != "f32"
    all_of_it = _row_dsd("all", "wide" if half else kernel.out.slot, kernel.out.tiling.elements)
    return (
        f"fn {name}() void {{\n{all_of_it}\n@fmovs(all, @as(f32, 0.0));\n"
        f"batch = 0;\nk_done = 0;\njoining = {name}_number;\n{name}_send();\n}}"
    )


def _summa_send(name: str, kernel: MatMul) -> str:
    """Find the next block of K, which lies in one column and one row of PEs, and send it from there."""
    rows, inner, deep, cols, depth = _sizes(kernel)
    half = kernel.out.dtype != "f32"
    grid = kernel.out.tiling.grid
    lines = [
        f"const owner_x: i16 = k_done / {inner};",
        f"const owner_y: i16 = k_done / {deep};",
        f"const first_a: i16 = k_done - owner_x * {inner};",
        f"const first_b: i16 = k_done - owner_y * {deep};",
        f"k_length = least({inner} - first_a, least({deep} - first_b, {depth} - k_done));",
    ]
    if grid.cols > 1 or half:
        a = f"{kernel.a.slot}[{offset_text(['batch', 'i'], [kernel.a_step * rows * inner, inner])} + first_a + k]"
        a = f"@as(f32, {a})" if half else a
        copy = loop_nest([str(rows), "k_length"], ["i", "k"], f"block_a[i * k_length + k] = {a};")
        lines.append(f"if (pe_x == @as(u16, owner_x)) {{\n{copy}\n}}")
    if grid.rows > 1 or half:
        lines.append(_pack_b(kernel, cols, deep, half))
    else:
        lines.append("block_b_first = first_b;")
    if grid.cols == 1 and not half:
        lines.append("block_a_first = first_a;")
    lines.append(_broadcast("x", grid.cols, f"@as(u16, k_length) * {rows}", "@activate(join_id);"))
    lines.append(_broadcast("y", grid.rows, f"@as(u16, k_length) * {cols}", "@unblock(join_id);"))
    return f"fn {name}_send() void {{\n" + "\n".join(lines) + "\n}"


def _pack_b(kernel: MatMul, cols: int, deep: int, half: bool) -> str:
    place = offset_text(["batch"], [kernel.b_step * deep * cols])
    first = f"({place} + first_b * {cols})"
    move = "fh2s" if half else "fmovs"
    return (
        "if (pe_y == @as(u16, owner_y)) {\n"
        + _row_dsd("from", kernel.b.slot, 1)
        + "\n"
        + _row_dsd("into", "block_b", 1)
        + f"\nconst count = @as(u16, k_length) * {cols};\n"
        + f"@{move}(@set_dsd_length(into, count), "
        + f"@set_dsd_length(@increment_dsd_offset(from, {first}, {kernel.b.dtype}), count));\n}}"
    )


def _broadcast(axis: str, pes: int, count: str, otherwise: str) -> str:
    block = "block_a" if axis == "x" else "block_b"
    if pes == 1:
        return otherwise
    pointer = f"@ptrcast([*]u32, &{block})"
    return f"mpi_{axis}.broadcast(@as(u16, owner_{axis}), {pointer}, {count}, {axis}_done_id);"


def _summa_block(name: str, kernel: MatMul) -> str:
    """Multiply a block, then go on with the next one, the next matrix, or the next kernel."""
    rows, inner, deep, cols, depth = _sizes(kernel)
    half = kernel.out.dtype != "f32"
    grid = kernel.out.tiling.grid
    a = "block_a[i * k_length + k]"
    if grid.cols == 1 and not half:
        a = f"{kernel.a.slot}[{offset_text(['batch', 'i'], [kernel.a_step * rows * inner, inner])} + block_a_first + k]"
    packed = grid.rows > 1 or half
    line = (
        f"k * {cols}"
        if packed
        else f"{offset_text(['batch'], [kernel.b_step * deep * cols])} + (block_b_first + k) * {cols}"
    )
    heads = [
        _row_dsd("sum", "wide" if half else kernel.out.slot, cols),
        _row_dsd("line", "block_b" if packed else kernel.b.slot, cols),
    ]
    place = offset_text(["batch", "i"], [rows * cols, cols])
    body = f"const into = @increment_dsd_offset(sum, {place}, f32);\n"
    body += loop_nest(["k_length"], ["k"], f"@fmacs(into, into, @increment_dsd_offset(line, {line}, f32), {a});")
    looped = loop_nest([str(rows)], ["i"], body)
    next_one = (
        f"k_done += k_length;\nif (k_done == {depth}) {{\nk_done = 0;\nbatch += 1;\n}}\n"
        f"if (batch < {kernel.repeat}) {{ {name}_send(); }} else {{ @activate(advance_id); }}"
    )
    return f"fn {name}_block() void {{\n" + "\n".join([*heads, looped, next_one]) + "\n}"
