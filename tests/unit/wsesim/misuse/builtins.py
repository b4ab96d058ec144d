"""Programs that call one builtin with arguments of every kind, in every place where a builtin may stand."""

import random

from tests.unit.wsesim.running import HEAD

ARGUMENTS = (
    *("0", "1", "3", "-1", "9", "31", "70000", "4294967296", "1.5", "true", "u16", "f32", "void", '"x"', '"pe.csl"'),
    *(".{}", ".{ .async = true }", ".{ .color = c }", ".{ .routes = .{ .rx = .{ WEST }, .tx = .{ RAMP } } }"),
    *(".{ .x = 1 }", ".{ .async = true, .activate = lid }", ".{ .extent = 3, .fabric_color = c }"),
    *(".{ .tensor_access = |i|{4} -> arr[i] }", ".{ .async = true, .unblock = work }", ".{ .index = 3 }"),
    *("arr", "&arr", "p", "d", "two", "ring", "fin", "fout", "fifo", "work", "twice", "c", "lid", "iq", "oq", "n", "h"),
    *(
        "dest",
        "src0",
        "src1",
        "undefined",
        "EAST",
        "mem1d_dsd",
        "fabout_dsd",
        "[4]u16",
        "@range(u16, 3)",
        "&n",
        "&work",
    ),
    *("dsr_dest", "sys_mod", "|i|{3} -> arr[i]", "f", "@as(f16, 2.0)", "@as(i16, -3)", "fn()void", "[*]u32", "color"),
)
PLACES = ("run time", "comptime", "layout", "global")
LAYOUT = """
const memcpy = @import_module("<memcpy/get_params>", .{{ .width = 2, .height = 1 }});
const c = @get_color(1); const lid = @get_local_task_id(9); const arr = @zeros([4]u32); const n: u16 = 2;
layout {{
  @set_rectangle(2, 1);
  {layout}
  @set_tile_code(0, 0, "pe.csl", .{{ .memcpy_params = memcpy.get_params(0) }});
  @set_tile_code(1, 0, "pe.csl", .{{ .memcpy_params = memcpy.get_params(1) }});
  @set_color_config(0, 0, c, .{{ .routes = .{{ .rx = .{{ RAMP }}, .tx = .{{ EAST }} }} }});
  @set_color_config(1, 0, c, .{{ .routes = .{{ .rx = .{{ WEST }}, .tx = .{{ RAMP }} }} }});
  @export_name("f", fn()void); @export_name("out", [*]u32, true);
}}
"""
PE = (
    HEAD
    + """
const c = @get_color(1); const lid = @get_local_task_id(9); const iq = @get_input_queue(2);
const oq = @get_output_queue(3);
var arr = @zeros([4]u32); var p: [*]u32 = &arr; var n: u16 = 2; var h: f32 = 1.5; var room = @zeros([8]u32);
const d = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> arr[i] });
const two = @get_dsd(mem4d_dsd, .{ .tensor_access = |i, j|{2, 2} -> arr[2 * i + j] });
const ring = @get_dsd(circbuf_dsd, .{ .base_address = &arr, .extent = 4 });
const fin = @get_dsd(fabin_dsd, .{ .extent = 4, .fabric_color = c, .input_queue = iq });
const fout = @get_dsd(fabout_dsd, .{ .extent = 4, .fabric_color = c, .output_queue = oq });
const fifo = @allocate_fifo(room);
const dest = @get_dsr(dsr_dest, 1); const src0 = @get_dsr(dsr_src0, 1); const src1 = @get_dsr(dsr_src1, 1);
task work() void { n += 1; }
fn twice(x: u32) u32 { return x + x; }
GLOBAL
fn f() void { RUN sys_mod.unblock_cmd_stream(); }
comptime {
  @bind_local_task(work, lid);
  @initialize_queue(iq, .{ .color = c });
  if (@is_arch("wse3")) { @initialize_queue(oq, .{ .color = c }); }
  COMPTIME
  @export_symbol(f); @export_symbol(p, "out");
}
"""
)


def call(name, rule, rng):
    """A call with a number of arguments that is mostly right."""
    count = rng.randint(rule.low, min(rule.high, rule.low + 2))
    if rng.random() < 0.1:
        count = max(0, count + rng.choice((-1, 1)))
    return f"@{name}({', '.join(rng.choice(ARGUMENTS) for _ in range(count))})"


def program(name, rule, place, seed):
    """The files of a program with one call."""
    rng = random.Random(f"{name} {place} {seed}")
    used = call(name, rule, rng)
    text = rng.choice((f"{used};", f"_ = {used};", f"var t = {used};", f"n = {used};", f"if ({used}) {{ n += 1; }}"))
    parts = dict.fromkeys(("GLOBAL", "RUN", "COMPTIME"), "")
    layout = text if place == "layout" else ""
    if place == "global":
        parts["GLOBAL"], parts["RUN"] = f"var made = {used};", "_ = made;"
    elif place != "layout":
        parts["RUN" if place == "run time" else "COMPTIME"] = text
    pe = PE
    for key, value in parts.items():
        pe = pe.replace(key, value, 1)
    return {"layout.csl": LAYOUT.format(layout=layout), "pe.csl": pe}
