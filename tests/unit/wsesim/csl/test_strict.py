"""What strict mode refuses, and what is refused always."""

import pytest

from tests.unit.wsesim.csl.support import codes, errors, pe

ROUTED = """layout {{
  @set_rectangle(1, 1);
  @set_tile_code(0, 0, "pe.csl");
  @set_color_config(0, 0, @get_color({0}), .{{ {1} }});
}}"""
IDLE = "var x: i16;"
VECTORS = """
var a = @zeros([8]f32); var b = @zeros([8]f32);
const four = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> a[i] });
const five = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{5} -> b[i] });
const grid = @get_dsd(mem4d_dsd, .{ .tensor_access = |i, j|{2, 2} -> b[2 * i + j] });
const ring = @get_dsd(circbuf_dsd, .{ .base_address = &b, .extent = 4 });
const fin = @get_dsd(fabin_dsd, .{ .extent = 3, .fabric_color = @get_color(1), .input_queue = @get_input_queue(2) });
fn twice(x: f32) f32 { return x + x; }
comptime { @initialize_queue(@get_input_queue(2), .{ .color = @get_color(1) }); }
"""


def op(text):
    return f"{VECTORS} task t() void {{ {text} }} comptime {{ @bind_local_task(t, @get_local_task_id(9)); }}"


def test_a_parameter_that_the_program_lacks_is_an_error():
    layout = 'layout { @set_rectangle(1, 1); @set_tile_code(0, 0, "pe.csl", .{ .n = 1, .nope = 1 }); }'
    found = errors("param n: u16; var x: u16 = n;", layout)
    assert [d.code for d in found] == ["unknown-parameter"]
    assert "'nope'" in found[0].message
    assert "n" in found[0].hint


@pytest.mark.parametrize(
    "text", ["@fmovs(ring, four);", "@fmovs(four, ring);", "@fadds(four, four, ring);", "@map(twice, ring, four);"]
)
def test_a_circular_buffer_is_no_operand(text):
    assert codes(op(text)) == ["type-mismatch"]


@pytest.mark.parametrize(
    "text",
    [
        "@fmovs(five, four);",
        "@fadds(four, four, five);",
        "@fmovs(five, grid);",
        "@fmovs(four, fin);",
        "@map(twice, four, five);",
        "@map(twice, fin, four);",
    ],
)
def test_vectors_of_different_length_are_refused_in_strict_mode(text):
    assert codes(op(text), strict=True) == ["length-mismatch"]
    pe(op(text))


def test_vectors_of_equal_length_pass():
    pe(op("@fmovs(four, grid); @fadds(four, four, 1.0); @map(twice, grid, four); @map(twice, 1.0, five);"), strict=True)


def test_a_colour_from_two_sides_is_refused_in_strict_mode():
    layout = ROUTED.format(1, ".routes = .{ .rx = .{ WEST, EAST }, .tx = .{ RAMP } }")
    found = errors(IDLE, layout, strict=True)
    assert [d.code for d in found] == ["two-receiving-sides"]
    assert "WEST, EAST" in found[0].message
    pe(IDLE, layout)


RESERVED = {
    "in the layout": (IDLE, ROUTED.format(21, ".routes = .{ .rx = .{ WEST }, .tx = .{ RAMP } }")),
    "in the program": (
        "comptime { @set_local_color_config(@get_color(22), .{ .routes = .{ .rx = .{ WEST }, .tx = .{ RAMP } } }); }",
        None,
    ),
    "of a queue": ("comptime { @initialize_queue(@get_input_queue(3), .{ .color = @get_color(23) }); }", None),
}


@pytest.mark.parametrize(("text", "layout"), RESERVED.values(), ids=RESERVED)
def test_reserved_colours_are_refused_in_strict_mode(text, layout):
    given = {} if layout is None else {"layout": layout}
    assert codes(text, strict=True, memcpy=True, **given) == ["reserved-id"]
    pe(text, memcpy=True, **given)


def test_a_variable_has_values():
    assert codes("var x = @comptime_print(1); task t() void { _ = x; } " + BOUND) == ["type-mismatch"]


BOUND = "comptime { @bind_local_task(t, @get_local_task_id(9)); }"


def test_aggregates_without_a_reader_are_no_values():
    pe("var x = @get_rectangle(); var y = @zeros([3]u16); task t() void { _ = x; _ = y; } " + BOUND)


def test_single_steps_are_refused_where_they_are_asked_for():
    text = "@load_to_dsr(@get_dsr(dsr_dest, 1), four, .{{ .single_step = {} }});"
    assert codes(op(text.format("true"))) == ["unsupported"]
    pe(op(text.format("false")))
