"""Small whole programs that use most of the language: what the mutations start from."""

from tests.unit.wsesim.misuse.builtins import LAYOUT, PE
from tests.unit.wsesim.running import HEAD
from wsesim.csl.sema.modules import LIBRARIES

_BODIES = {
    "vectors": """
        var x = @as(f32, 2.0); @fmovs(v, 1.5); @fmacs(v, v, v, x); @fadds(v, v, @as(f32, n));
        @mov32(@set_dsd_length(d, 2), @increment_dsd_offset(@set_dsd_length(d, 2), 1, u32));
        for (@range(i16, 4)) |i| { arr[@as(u16, i)] += @as(u32, i); if (i > 2) { break; } }
        var k: u16 = 0; while (k < 9) : (k += 2) { switch (k) { 0 => n += 1, 2, 4 => n *= 3, else => n = 0 } }
        @map(twice, d, d); @load_to_dsr(dest, d); @load_to_dsr(src1, d); @mov32(dest, src1);
    """,
    "streams": """
        if (place.get_x_coord() == 0) { @mov32(fout, d, .{ .async = true, .activate = work }); }
        else { @mov32(d, fin, .{ .async = true, .activate = lid }); }
    """,
    "fifos": "@mov32(fifo, d); @mov32(d, fifo); @activate(lid);",
    "mathematics": """
        h = math.sqrt(math.exp(h) + math.pow(h, 2.0)) / math.max(h, 1.0); arr[0] = @bitcast(u32, h);
        n = @as(u16, h) << 2 | 5; h = if (n > 3 and h != 0.0) -h else @as(f32, @as(f16, h));
        prnt.print_string("h\\n"); var t = @zeros([3]u16); clock.get_timestamp(&t); two_of(&t);
    """,
}
_GLOBALS = """
var vec = @zeros([4]f32); const v = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> vec[i] });
const math = @import_module("<math>"); const place = @import_module("<layout>");
const prnt = @import_module("<simprint>"); const clock = @import_module("<time>");
const kind = enum(u16) { a, b }; const pair = struct { x: u16, y: f32 };
fn two_of(t: *[3]u16) void {
  clock.enable_tsc(); t.*[1] += @as(u16, kind.b); var q = pair{ .x = 1, .y = 2.0 }; n += q.x;
}
"""


def _program(body):
    pe = PE.replace("GLOBAL", _GLOBALS, 1).replace("RUN", body, 1).replace("COMPTIME", "", 1)
    return {"layout.csl": LAYOUT.format(layout=""), "pe.csl": pe}


COLLECTIVES = {
    "layout.csl": """
const memcpy = @import_module("<memcpy/get_params>", .{ .width = 3, .height = 1 });
const c2d = @import_module("<collectives_2d/params>");
layout {
  @set_rectangle(3, 1);
  for (@range(u16, 3)) |x| {
    const ids = c2d.get_params(x, 0, .{
      .x_colors = .{ @get_color(0), @get_color(1) },
      .x_entrypoints = .{ @get_local_task_id(10), @get_local_task_id(11) },
    });
    @set_tile_code(x, 0, "pe.csl", .{ .memcpy_params = memcpy.get_params(x), .c2d_params = ids });
  }
  @export_name("out", [*]u32, true); @export_name("f", fn()void);
}
""",
    "pe.csl": HEAD
    + """
param c2d_params;
const mpi = @import_module("<collectives_2d/pe>", .{
  .dim_params = c2d_params.x, .queues = [2]u16{ 2, 4 }, .dest_dsr_ids = [1]u16{ 1 }, .src0_dsr_ids = [1]u16{ 1 },
  .src1_dsr_ids = [1]u16{ 1 } });
var out = @zeros([4]u32); var p: [*]u32 = &out; const done_id = @get_local_task_id(15);
task done() void { sys_mod.unblock_cmd_stream(); }
fn f() void { mpi.init(); mpi.broadcast(0, p, 4, done_id); }
comptime { @bind_local_task(done, done_id); @export_symbol(p, "out"); @export_symbol(f); }
""",
}
PROGRAMS = {name: _program(body) for name, body in _BODIES.items()} | {"collectives": COLLECTIVES}
LIBRARY_FILES = {str(path): path.read_text(encoding="utf-8") for path in sorted(LIBRARIES.rglob("*.csl"))}
