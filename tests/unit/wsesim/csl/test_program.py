"""Layouts, resources, output directories, strict mode."""

import json

import pytest

from tests.unit.wsesim.csl.support import ONE_PE, codes, errors, pe
from wsesim.csl.program.driver import (
    compile_program,
    compile_texts,
    elaborate_pe,
    load_output,
    parse_assignments,
    write_output,
)
from wsesim.csl.program.elaborated import DIRECTIONS, Filter, SwitchPosition
from wsesim.csl.syntax.diagnostics import CslInputError

ROW = """
param n: u16;
const c = @get_color(3);
layout {
  @set_rectangle(n, 1);
  for (@range(u16, n)) |x| {
    @set_tile_code(x, 0, "pe.csl", .{ .first = x == 0, .unused = x });
    const tx = if (x == n - 1) .{RAMP} else .{ RAMP, EAST };
    @set_color_config(x, 0, c, .{ .routes = .{ .rx = .{ if (x == 0) RAMP else WEST }, .tx = tx } });
  }
  @export_name("ptr", [*]f32, true);
  @export_name("go", fn (i16) void);
}
"""
PE = """
param first: bool; param unused: u16;
var data: [8]f32; var ptr: [*]f32 = &data; var runs: i16 = 0;
fn go(x: i16) void { runs += if (first) 2 else x; }
comptime { @export_symbol(ptr); @export_symbol(go); }
"""


def test_programs_are_shared_by_what_they_read():
    program = compile_texts({"layout.csl": ROW, "pe.csl": PE}, params={"n": 64})
    assert len(program.programs) == 2  # the first PE and all others, whatever `unused` is
    assert [program.tiles[(x, 0)] for x in (0, 1, 63)] == [0, 1, 1]
    assert (program.colors[(63, 0)][3].rx, program.colors[(63, 0)][3].tx) == (("WEST",), ("RAMP",))
    exports = {e.name: e for e in program.pe(5, 0).exports}
    assert (exports["ptr"].kind, exports["go"].kind, exports["go"].id) == ("variable", "function", 1)
    assert program.params == {"n": "64"}


def test_switches_filters_and_teardown():
    program = pe(
        """comptime { @set_local_color_config(@get_color(2), .{
          .routes = .{ .rx = .{ WEST, RAMP }, .tx = EAST },
          .switches = .{ .pos1 = .{ .rx = RAMP }, .pos2 = .{ .tx = .{ NORTH } }, .ring_mode = true,
                         .pop_mode = .{ .always_pop = true }, .current_switch_pos = 1 },
          .filter = .{ .kind = .{ .range = true }, .min_idx = 2, .max_idx = 5 },
          .teardown = true }); }"""
    )
    config = program.colors[2]
    assert config.switches is not None
    assert config.switches.positions == (
        SwitchPosition(rx=("RAMP",)),
        SwitchPosition(tx=("NORTH",)),
        SwitchPosition(invalid=True),
    )
    assert (config.switches.pop_mode, config.switches.ring_mode, config.switches.current) == ("always_pop", True, 1)
    assert config.filter == Filter("range", min_idx=2, max_idx=5)
    assert config.teardown
    assert set(config.rx) <= set(DIRECTIONS)


TASK = (
    "task main() void { @mov32(out, 1, .{ .async = true }); }\ncomptime { @bind_local_task(main, "
    "@get_local_task_id(9)); }"
)
QUEUE = "const o = @get_output_queue(3); const out = @get_dsd(fabout_dsd, .{ .extent = 1, .output_queue = o });"


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("export var big: [13000]f32;", "memory-overflow", ["52000", "49152", "big 52000"]),
        (
            (
                "comptime { @set_local_color_config(@get_color(2), .{ .routes = .{ .rx = WEST, .tx = RAMP } });\n"
                "@set_local_color_config(@get_color(2), .{ .routes = .{ .rx = EAST, .tx = RAMP } }); }"
            ),
            "color-clash",
            ["colour 2"],
        ),
        (f"{QUEUE}\n{TASK}", "missing-queue-init", ["output queue 3", "WSE-3"]),
        (
            f"{QUEUE}\n{TASK}\ntask two() void {{}}\ncomptime {{ @bind_local_task(two, @get_local_task_id(9)); }}",
            "task-id-clash",
            ["task id 9"],
        ),
        (
            (
                "comptime { @initialize_queue(@get_input_queue(2), .{ .color = @get_color(1) });\n"
                "@initialize_queue(@get_input_queue(2), .{ .color = @get_color(2) }); }"
            ),
            "queue-clash",
            ["input queue 2"],
        ),
        (
            (
                "comptime { @initialize_queue(@get_input_queue(2), .{ .color = @get_color(1) });\n"
                "@initialize_queue(@get_input_queue(3), .{ .color = @get_color(1) }); }"
            ),
            "queue-clash",
            ["colour 1"],
        ),
        ("comptime { @export_symbol(x); }\nvar x: i16;", "not-exported", ["'x'"]),
        ("task t(a: u16) void {}\ncomptime { @bind_local_task(t, @get_local_task_id(9)); }", "task-signature", ["'t'"]),
    ],
)
def test_named_resource_diagnostics(text, code, words):
    (found,) = [d for d in errors(text) if d.code == code][:1]
    shown = f"{found.message} {found.hint}"
    assert all(word in shown for word in words), shown


def test_routing_loop():
    layout = """
    const c = @get_color(5);
    layout {
      @set_rectangle(2, 2);
      for (@range(u16, 2)) |x| { for (@range(u16, 2)) |y| { @set_tile_code(x, y, "pe.csl"); } }
      @set_color_config(0, 0, c, .{ .routes = .{ .rx = .{ SOUTH }, .tx = .{ EAST } } });
      @set_color_config(1, 0, c, .{ .routes = .{ .rx = .{ WEST }, .tx = .{ SOUTH } } });
      @set_color_config(1, 1, c, .{ .routes = .{ .rx = .{ NORTH }, .tx = .{ WEST } } });
      @set_color_config(0, 1, c, .{ .routes = .{ .rx = .{ EAST }, .tx = .{ NORTH, RAMP } } });
    }"""
    (found,) = errors("var x: i16;", layout=layout)
    assert found.code == "routing-loop"
    assert "colour 5" in found.message
    straight = layout.replace(".tx = .{ NORTH, RAMP }", ".tx = .{ RAMP }")
    assert compile_texts({"layout.csl": straight, "pe.csl": "var x: i16;"}).width == 2


@pytest.mark.parametrize(
    ("layout", "code"),
    [
        ("var x: i16;", "missing-layout"),
        ("layout { }", "missing-rectangle"),
        ('layout { @set_rectangle(2, 1); @set_tile_code(0, 0, "pe.csl"); }', "missing-tile-code"),
        ('layout { @set_rectangle(1, 1); @set_tile_code(1, 0, "pe.csl"); }', "outside-rectangle"),
        ('layout { @set_rectangle(1, 1); @set_tile_code(0, 0, "no.csl"); }', "missing-file"),
        ("layout { @set_rectangle(0, 1); }", "out-of-range"),
        ("layout { @set_rectangle(4, 4); }", "fabric-too-small"),
        ("param n: i16; layout { @set_rectangle(n, 1); }", "missing-parameter"),
        (f'{ONE_PE[:-1]} @set_tile_code(0, 0, "pe.csl"); }}', "duplicate-tile-code"),
        (
            f"{ONE_PE[:-1]} @set_color_config(0, 0, @get_color(1), .{{ .routes = .{{ .rx = UP }} }}); }}",
            "undefined-name",
        ),
        (f"{ONE_PE[:-1]} @set_color_config(0, 0, @get_color(1), .{{ .routs = .{{}} }}); }}", "unknown-field"),
        (f"{ONE_PE[:-1]} @set_color_config(0, 0, @get_color(1), .{{}}); }}", "missing-field"),
        (f'{ONE_PE[:-1]} @export_name("a", [4]f32, true); }}', "type-mismatch"),
        (f'{ONE_PE[:-1]} @export_name("a", f32); }}', "argument-count"),
    ],
)
def test_wrong_layouts(layout, code):
    assert code in codes("var x: i16;", layout=layout, fabric_dims=(3, 3))


STRICT = [
    ((f"{QUEUE.replace('3', '0')}\n{TASK}\ncomptime {{ @initialize_queue(o, "
     f".{{ .color = @get_color(1) }}); }}"), "reserved-id"),
    ("var a: [4]i16; task main() void { const p = &a; a[0] = p[1]; }", "undocumented"),
    (("var a: [4]f32; const d = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{5} -> a[i] }); task main() void { "
     "@fmovs(d, 1.0); }"), "index-out-of-bounds"),
    (("var a: [999]f32; const d = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{2} -> a[200 * i] }); task main() void { "
     "@fmovs(d, 1.0); }"), "out-of-range"),
    ((f"{QUEUE} task main() void {{ @mov32(out, 1, .{{ .async = true }}); @mov32(out, 2, .{{ .async = true }}); "
     f"}}\ncomptime {{ @initialize_queue(o, .{{ .color = @get_color(1) }}); }}"), "queue-clash"),
    (("comptime { @set_local_color_config(@get_color(10), .{ .routes = .{ .rx = WEST, .tx = RAMP }, .switches = .{ "
     ".pos1 = .{ .rx = RAMP } } }); }"), "not-switchable"),
    (("var x: f32; const o = @get_dsd(fabout_dsd, .{ .extent = 1, .fabric_color = @get_color(4) }); task main() void "
     "{ @fmovs(o, x); }"), "missing-queue"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "code"), STRICT)
def test_strict_mode_refuses_more(text, code):
    if "task main" in text and "@bind_local_task" not in text:
        text += "\ncomptime { @bind_local_task(main, @get_local_task_id(9)); }"
    pe(text, memcpy=True)  # accepted without strict mode
    assert code in codes(text, strict=True, memcpy=True)


def test_warnings_travel_with_the_program():
    program = compile_texts(
        {
            "layout.csl": 'layout { @set_rectangle(1, 1); @set_tile_code(0, 0, "pe.csl"); }',
            "pe.csl": "var x: i16;",
        },
        params={"nope": 1},
    )
    assert [w.code for w in program.warnings] == ["unknown-parameter"]


def test_output_directory_round_trip(tmp_path):
    (tmp_path / "layout.csl").write_text(
        ROW.replace("param n: u16;", "param n: u16; param kind: type = f32; param c1: color;")
    )
    (tmp_path / "pe.csl").write_text(PE)
    source = tmp_path / "layout.csl"
    options = {
        "arch": "wse2",
        "params": {"n": "3", "kind": "f16"},
        "colors": {"c1": 7},
        "fabric_dims": (10, 3),
        "memcpy": True,
    }
    program = compile_program(source, **options, fabric_offsets=(4, 1))
    write_output(program, tmp_path / "out", layout=str(source))
    params = json.loads((tmp_path / "out" / "out.json").read_text())["params"]
    assert (params["n"], params["kind"], params["c1"]) == ("3", "f16", "7")
    source.unlink()  # the copy is enough
    again = load_output(tmp_path / "out")
    assert again.colors == program.colors
    assert [p.globals for p in again.programs] == [p.globals for p in program.programs]
    assert [p.functions for p in again.programs] == [p.functions for p in program.programs]
    assert (again.fabric_dims, again.memcpy, again.arch) == ((10, 3), True, "wse2")


def test_bad_output_directories(tmp_path):
    with pytest.raises(CslInputError, match="does not hold a compiled program"):
        load_output(tmp_path)
    (tmp_path / "program.json").write_text('{"format": 99}')
    with pytest.raises(CslInputError, match="another format"):
        load_output(tmp_path)


@pytest.mark.parametrize("text", ["a", "a:", ":1", "a:1,a:2"])
def test_bad_assignments(text):
    with pytest.raises(CslInputError, match="--params"):
        parse_assignments(text)


def test_bad_values_and_files(tmp_path):
    with pytest.raises(CslInputError, match="not a number"):
        compile_texts({"layout.csl": ONE_PE, "pe.csl": ""}, params={"x": "foo()"})
    with pytest.raises(CslInputError, match="cannot read"):
        compile_program(tmp_path / "none.csl")
    with pytest.raises(CslInputError, match="no architecture"):
        compile_texts({"layout.csl": ONE_PE, "pe.csl": ""}, arch="wse9")
    (tmp_path / "bad.csl").write_bytes(b"\xff\xfe")
    with pytest.raises(CslInputError, match="UTF-8"):
        compile_program(tmp_path / "bad.csl")


def test_one_pe_without_a_layout(tmp_path):
    (tmp_path / "pe.csl").write_text("param c: color; param n: u16; var x: [8]i16; export var y: u16 = n;")
    found = elaborate_pe(tmp_path / "pe.csl", params={"c": ("color", 3), "n": 5})
    assert found.globals["y"].init == b"\x05\x00"


def test_a_large_grid_is_quick():
    layout = """
    param w: u16; param h: u16;
    const c = @get_color(1);
    layout {
      @set_rectangle(w, h);
      for (@range(u16, w)) |x| { for (@range(u16, h)) |y| {
        @set_tile_code(x, y, "pe.csl", .{ .n = 8 });
        @set_color_config(x, y, c, .{ .routes = .{ .rx = .{ WEST }, .tx = .{ RAMP } } });
      } }
    }"""
    program = compile_texts(
        {"layout.csl": layout, "pe.csl": "param n: u16; export var a: [n]f32;"}, params={"w": 32, "h": 32}
    )
    assert (len(program.tiles), len(program.programs)) == (1024, 1)
