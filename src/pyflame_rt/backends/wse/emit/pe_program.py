"""The two CSL files of a program: what every PE runs, and where it runs."""

from __future__ import annotations

from dataclasses import field
from importlib import resources
from typing import TYPE_CHECKING, TypeAlias

from pyflame_rt.backends.wse.emit.communication import Code, emit_matmul, emit_reduce
from pyflame_rt.backends.wse.emit.elementwise import emit_map
from pyflame_rt.backends.wse.emit.indexing import emit_held, emit_put, emit_take
from pyflame_rt.backends.wse.emit.redistribution import emit_spread
from pyflame_rt.backends.wse.emit.shifted_products import SHARED
from pyflame_rt.backends.wse.emit.sliding_windows import emit_slide
from pyflame_rt.backends.wse.plan.kernels import BYTES, App, MapKernel, MatMul, Put, ReduceKernel, Slide, Spread, Take
from pyflame_rt.graph import DType
from pyflame_rt.graph.records import dataclass
from wsesim.csl.syntax import nodes as s
from wsesim.csl.syntax.parser import parse_text
from wsesim.csl.syntax.printer import print_file

if TYPE_CHECKING:
    from pyflame_rt.backends.wse.options import CodeGenOptions
    from pyflame_rt.backends.wse.plan.kernels import Kernel, WaferPlan

__all__ = ["IDS", "WaferProgram", "emit"]

# Ids that the tutorials leave to programs: colours 0 to 20, queues 2 to 7, local tasks 8 to 20.
IDS = {
    "colors": {"x": [0, 1], "y": [4, 5]},
    "queues": {"x": [2, 4], "y": [3, 5]},
    "rings": {"x": {"color": 2, "queue": 6}, "y": {"color": 6, "queue": 7}},
    "tasks": {"x": [8, 9], "y": [10, 11], "advance": 12, "join": 13, "x_done": 14, "y_done": 15, "turn": 16},
}
_PRODUCTS = {
    "summa": "blocks sent along rows and columns",
    "shift": "blocks passed from neighbour to neighbour",
    "reduce": "each PE its part of K, then added up",
}
Item: TypeAlias = "str | s.Comment"


@dataclass(slots=True)
class WaferProgram:
    """Text of the CSL files by name, and what the manifest says about them."""

    files: dict[str, str]
    axes: str
    rings: str
    phases: int
    stages: int
    exports: list[tuple[str, str]] = field(default_factory=list)


def emit(plan: WaferPlan, options: CodeGenOptions, *, small: bool = False) -> WaferProgram:
    """The CSL of a plan; ``small`` cuts its rectangle to 2 x 2, for a look at what one PE gets."""
    most = 2 if small else max(plan.grid.rows, plan.grid.cols)
    return _PeProgramEmitter(plan, options, (min(plan.grid.rows, most), min(plan.grid.cols, most))).run()


def library(name: str) -> str:
    """Text of a CSL file of ours that is delivered with programs."""
    if name == "collectives.csl":
        return resources.files("wsesim").joinpath("libs", "collectives_2d", "pe.csl").read_text(encoding="utf-8")
    return resources.files("pyflame_rt.backends.wse").joinpath("csl", name).read_text(encoding="utf-8")


def _narrows(kernel: MapKernel) -> bool:
    """Whether floats become int64, of which PEs hold 32 bits."""
    expr = kernel.expr
    floats = [b.dtype for b in kernel.operands if b.dtype in ("f16", "f32")]
    return (
        isinstance(expr, App)
        and expr.function == "cast"
        and ("to", DType.Int64.onnx) in expr.attributes
        and bool(floats)
    )


def build(items: list[Item]) -> s.File:
    """A file of declarations given as text, with comments between them."""
    decls: list[s.Decl] = []
    for item in items:
        decls.extend([item] if isinstance(item, s.Comment) else parse_text(item).decls)
    return s.File(tuple(decls))


class _PeProgramEmitter:
    def __init__(self, plan: WaferPlan, options: CodeGenOptions, size: tuple[int, int]) -> None:
        self.plan = plan
        self.rows, self.cols = size
        self.options = options
        self.items: list[Item] = []
        self.codes: list[Code] = []
        self.exports: list[tuple[str, str]] = []
        self.rings = ""

    def note(self, text: str) -> None:
        """A comment, where comments are wanted."""
        if self.options.emit_comments:
            self.items.append(s.Comment(text))

    def run(self) -> WaferProgram:
        self.codes = [self._kernel(i, k) for i, k in enumerate(self.plan.kernels)]
        self.rings = "".join(a for a in "xy" if any(a in c.rings for c in self.codes))
        axes = "".join(a for a in "xy" if any(a in c.axes for c in self.codes))
        special = any("special." in d for c in self.codes for d in c.decls)
        self._head(axes, special)
        self._arrays()
        self._kernels()
        stages = self._stages(axes)
        self._exports()
        files = {"layout.csl": self._layout(axes), "pe_program.csl": print_file(build(self.items))}
        if axes:
            files["lib/collectives.csl"] = library("collectives.csl")
        if special:
            files["lib/special.csl"] = library("special.csl")
        return WaferProgram(files, axes, self.rings, len(self.plan.phases), stages, self.exports)

    def _kernel(self, index: int, kernel: Kernel) -> Code:
        name = f"k{index}"
        if isinstance(kernel, MapKernel):
            made = Code(emit_map(name, kernel, optimize=self.options.optimize), [(f"{name}();", False)])
            if _narrows(kernel):
                held = emit_held(name, kernel)
                made = Code([*made.decls, *held.decls], [*made.actions, *held.actions])
            return made
        if isinstance(kernel, Spread):
            return emit_spread(name, kernel)
        if isinstance(kernel, Slide):
            return emit_slide(name, kernel)
        if isinstance(kernel, Take):
            return emit_take(name, kernel)
        if isinstance(kernel, Put):
            return emit_put(name, kernel)
        return emit_reduce(name, kernel) if isinstance(kernel, ReduceKernel) else emit_matmul(name, kernel)

    # --- the PE's file ---------------------------------------------------------------------------------------------

    def _head(self, axes: str, special: bool) -> None:
        grid = self.plan.grid
        self.note(f"What each of {grid} PEs runs: {len(self.plan.kernels)} kernels in {len(self.plan.phases)} phases.")
        self.items.append("param memcpy_params;")
        self.items += [f"param {a}_params;" for a in axes]
        self.items.append('const sys_mod = @import_module("<memcpy/memcpy>", memcpy_params);')
        self.items.append('const math = @import_module("<math>");')
        self.items.append('const place = @import_module("<layout>");')
        if special:
            self.items.append('const special = @import_module("lib/special.csl");')
        for number, axis in enumerate(axes, 1):
            q0, q1 = IDS["queues"][axis]
            ring = f".ring_queue = {IDS['rings'][axis]['queue']}, " if axis in self.rings else ""
            self.items.append(
                f'const mpi_{axis} = @import_module("lib/collectives.csl", .{{ .dim_params = {axis}_params, '
                f".queues = [2]u16{{ {q0}, {q1} }}, {ring}.dest_dsr_ids = [1]u16{{ {number} }}, "
                f".src0_dsr_ids = [1]u16{{ {number} }}, .src1_dsr_ids = [1]u16{{ {number} }} }});"
            )

    def _arrays(self) -> None:
        hosted = {b.slot for b in self.plan.buffers if b.root.pinned}
        self.note(f"Data: {self.plan.data_bytes} bytes.")
        for slot, (dtype, count) in self.plan.slots.items():
            if self.options.generate_debug_info:
                held = [f"{b.value} {list(b.tiling.shape)}" for b in self.plan.buffers if b.slot == slot]
                self.items.append(s.Comment(f"{slot}: {', '.join(dict.fromkeys(held))}"))
            self.items.append(f"var {slot} align(4) = @zeros([{_even(dtype, count)}]{dtype});")
            if slot in hosted:
                self.items.append(f"var {slot}_at: [*]{dtype} = &{slot};")
                self.exports.append((slot, dtype))
        for name, (dtype, count) in self.plan.scratch.items():
            self.items.append(f"var {name} = @zeros([{count}]{dtype});")
        if self.options.generate_debug_info:
            self.items += ["var debug_stage = @zeros([1]u32);", "var debug_stage_at: [*]u32 = &debug_stage;"]
            self.exports.append(("debug_stage", "u32"))

    def _kernels(self) -> None:
        texts = [d for c in self.codes for d in c.decls]
        if any("pe_x" in t or "pe_y" in t for t in texts):
            self.note("Where this PE is; known once the host has called.")
            self.items += ["var pe_x: u16 = 0;", "var pe_y: u16 = 0;"]
        if any("num_cols" in t for t in texts):
            self.items.append(f"const num_cols: u16 = {self.plan.grid.cols};")
        if any("extent(" in t for t in texts):
            self.note("How much of a dimension is in the piece with this number.")
            self.items.append(
                "fn extent(size: u32, piece: u32, number: u16) i16 {\nconst first = piece * @as(u32, number);\n"
                "if (first >= size) { return 0; }\nconst rest = size - first;\n"
                "return if (rest < piece) @as(i16, rest) else @as(i16, piece);\n}"
            )
        turned = [i for i, c in enumerate(self.codes) if c.turned]
        if turned:
            self.note("Tiles on their way to all PEs: whose turn it is, and along which axis it goes.")
            self.items += [f"var {n}: u16 = 0;" for n in ("spread_s", "spread_r", "spread_down", "turning")]
            self.items += [f"const k{i}_number: u16 = {n};" for n, i in enumerate(turned)]
        self.items += [f"const {n}_id = @get_local_task_id({IDS['tasks'][n]});" for n in self._tasks()]
        self._products()
        for i, (kernel, code) in enumerate(zip(self.plan.kernels, self.codes, strict=True)):
            self.note(describe(i, kernel))
            if self.options.generate_debug_info:
                self.items.append(
                    s.Comment(f"from node {kernel.label!r}: {kernel.out.value} {list(kernel.out.tiling.shape)}")
                )
            self.items += code.decls

    def _products(self) -> None:
        """What products that go through K block by block share."""
        joined = [i for i, c in enumerate(self.codes) if c.joined]
        if not joined:
            return
        self.note("Products go through K block by block.")
        self.items.append("var joining: u16 = 0;")
        self.items += [f"const k{i}_number: u16 = {n};" for n, i in enumerate(joined)]
        if any(not self.codes[i].rings for i in joined):
            self.items += [
                f"var {n}: i16 = 0;" for n in ("k_done", "k_length", "batch", "block_a_first", "block_b_first")
            ]
            self.items.append("fn least(a: i16, b: i16) i16 {\nreturn if (a < b) a else b;\n}")
        if self.rings:
            self.note("Blocks that go round: where they are, and how often they still go on.")
            self.items += [f"var {a}_left: u16 = 0;" for a in self.rings]
            for part in ("", *self.rings):
                self.items += SHARED[part]

    def _tasks(self) -> list[str]:
        names = ["advance"] if any(wait for c in self.codes for _, wait in c.actions) else []
        if any(c.joined for c in self.codes):
            names += ["join", "x_done", "y_done"]
        if any(c.turned for c in self.codes):
            names.append("turn")
        return names

    def _stages(self, axes: str) -> int:
        """Stages run from one wait to the next; a phase is a call of the host."""
        number = 0
        tasks = self._tasks()
        at = 0
        bodies: list[str] = []
        starts: list[int] = []
        for phase in self.plan.phases:
            starts.append(number)
            lines: list[str] = []
            for code in self.codes[at : at + len(phase.kernels)]:
                for action, waits in code.actions:
                    lines.append(action)
                    if waits:
                        bodies.append(self._stage(number, lines))
                        number, lines = number + 1, []
            at += len(phase.kernels)
            bodies.append(self._stage(number, [*lines, "sys_mod.unblock_cmd_stream();"]))
            number += 1
        self.note("Stages: what is done without waiting for other PEs.")
        self.items += bodies
        if tasks:
            self._task_decls(number, starts)
        for i, start in enumerate(starts):
            lines = [f"mpi_{a}.init();" for a in axes]
            if "var pe_x: u16 = 0;" in self.items:
                lines += ["pe_x = place.get_x_coord();", "pe_y = place.get_y_coord();"]
            lines += [f"stage = {start};"] if tasks else []
            self.items.append(f"fn phase{i}() void {{\n" + "\n".join([*lines, f"stage{start}();"]) + "\n}")
        return number

    def _stage(self, number: int, lines: list[str]) -> str:
        traced = [f"debug_stage[0] = {number};"] if self.options.generate_debug_info else []
        return f"fn stage{number}() void {{\n" + "\n".join([*traced, *lines]) + "\n}"

    def _task_decls(self, stages: int, starts: list[int]) -> None:
        follow = [n for n in range(1, stages) if n not in starts]
        chain = " else ".join(f"if (stage == {n}) {{ stage{n}(); }}" for n in follow)
        self.items.append("var stage: u16 = 0;")
        self.items.append(f"task advance() void {{\nstage += 1;\n{chain}\n}}")
        summas = [c.joined for c in self.codes if c.joined]
        if summas:
            chain = " else ".join(f"if (joining == {n}) {{ {name}(); }}" for n, name in enumerate(summas))
            for axis, then in (("x", "@activate(join_id);"), ("y", "@unblock(join_id);")):
                if axis in self.rings:
                    then = f"if ({axis}_left > 0) {{ shift_{axis}(); }} else {{ {then} }}"
                self.items.append(f"task {axis}_done() void {{\n{then}\n}}")
            self.items.append(f"task join() void {{\n@block(join_id);\n{chain}\n}}")
        turned = [c.turned for c in self.codes if c.turned]
        if turned:
            chain = " else ".join(f"if (turning == {n}) {{ {name}(); }}" for n, name in enumerate(turned))
            self.items.append(f"task turn() void {{\n{chain}\n}}")

    def _exports(self) -> None:
        tasks = self._tasks()
        lines = [f"@bind_local_task({n}, {n}_id);" for n in tasks]
        lines += ["@block(join_id);"] if "join" in tasks else []
        lines += [f'@export_symbol({name}_at, "{name}");' for name, _ in self.exports]
        lines += [f"@export_symbol(phase{i});" for i in range(len(self.plan.phases))]
        self.items.append("comptime {\n" + "\n".join(lines) + "\n}")

    # --- the layout ------------------------------------------------------------------------------------------------

    def _layout(self, axes: str) -> str:
        rows, cols = self.rows, self.cols
        items: list[Item] = []
        if self.options.emit_comments:
            items.append(s.Comment(f"A rectangle of {cols} columns and {rows} rows of PEs with one program."))
        size = f".{{ .width = {cols}, .height = {rows} }}"
        items.append(f'const memcpy = @import_module("<memcpy/get_params>", {size});')
        fields = [".memcpy_params = memcpy.get_params(x)"]
        for axis in axes:
            colors = ", ".join(f"@get_color({c})" for c in IDS["colors"][axis])
            tasks = ", ".join(f"@get_local_task_id({t})" for t in IDS["tasks"][axis])
            vertical = "true" if axis == "y" else "false"
            ids = f".colors = .{{ {colors} }}, .entrypoints = .{{ {tasks} }}"
            if axis in self.rings:
                ids += f", .ring_color = @get_color({IDS['rings'][axis]['color']})"
            fields.append(f".{axis}_params = .{{ .vertical = {vertical}, {ids} }}")
        exports = [f'@export_name("{name}", [*]{dtype}, true);' for name, dtype in self.exports]
        exports += [f'@export_name("phase{i}", fn()void);' for i in range(len(self.plan.phases))]
        items.append(
            f"layout {{\n@set_rectangle({cols}, {rows});\n"
            f"for (@range(i16, {cols})) |x| {{\nfor (@range(i16, {rows})) |y| {{\n"
            f'@set_tile_code(x, y, "pe_program.csl", .{{ {", ".join(fields)} }});\n}}\n}}\n'
            + "\n".join(exports)
            + "\n}"
        )
        return print_file(build(items))


def _even(dtype: str, count: int) -> int:
    """Arrays are whole words, so that they can be sent as words."""
    return count if BYTES[dtype] == 4 else count + count % 2


def describe(index: int, kernel: Kernel) -> str:
    """A kernel in a line."""
    tile = list(kernel.out.tiling.tile)
    match kernel:
        case MapKernel():
            return f"Kernel {index}: {_names(kernel.expr) or 'copy'}, a tile of {tile}."
        case ReduceKernel():
            sent = f", combined along {' and '.join(kernel.axes)}" if kernel.axes else ""
            what = "mean" if kernel.divide != 1 else kernel.kind
            return f"Kernel {index}: {what} over dimensions {list(kernel.dims)}{sent}."
        case Take():
            sent = f", added up along {' and '.join(kernel.axes)}" if kernel.axes else ""
            return f"Kernel {index}: elements by number along dimension {kernel.axis}{sent}."
        case Spread():
            how = " ".join(v.kind for v in kernel.views) or "another layout"
            return f"Kernel {index}: tiles sent along {' and '.join(kernel.axes) or 'nothing'}: {how}."
        case Slide():
            what = {"conv": "convolution", "max": "maximum of windows", "sum": "sum of windows"}[kernel.kind]
            sent = f", edges exchanged along {' and '.join(kernel.axes)}" if kernel.axes else ""
            return f"Kernel {index}: {what}, a tile of {tile}{sent}."
        case Put():
            return f"Kernel {index}: elements put by number along dimension {kernel.axis} ({kernel.reduction})."
        case MatMul():
            lists = (
                "" if kernel.kept is None else f", {kernel.kept.share:.0%} of the weights as lists by {kernel.kept.by}"
            )
            return f"Kernel {index}: product, a tile of {tile}; {_PRODUCTS[kernel.how]}{lists}."


def _names(expr: object) -> str:
    return "" if not isinstance(expr, App) else " ".join(filter(None, [*(_names(a) for a in expr.args), expr.function]))
