"""What CSL programs rely on: tasks, switches, filters, colour swapping, FIFOs, registers, streams, negative cases."""

import numpy as np
import pytest

from tests.unit.wsesim.running import HEAD, get, one_program, put, session
from wsesim.fabric import Deadlock, HostError, ProgramFault, ResourceBusy, RoutingLoop

EXPORT = '@export_name("out", [*]u32, true); @export_name("f", fn()void);'
TAIL = 'comptime { @export_symbol(p, "out"); @export_symbol(f); }'


def memory_program(body, n, top="", arch="wse3", **options):
    code = f"{top}\nvar out = @zeros([{n}]u32);\nvar p: [*]u32 = &out;\nfn f() void {{ {body} }}\n{TAIL}"
    return one_program(code, EXPORT, arch=arch, **options)


UNBLOCK = "sys_mod.unblock_cmd_stream();"


def row_layout(width, pes, colors):
    """A layout with one file a PE; ``colors[x]`` are ``@set_color_config`` bodies by colour."""
    lines = [
        f'@set_tile_code({x}, 0, "{name}", .{{ .memcpy_params = memcpy.get_params({x}) }});'
        for x, name in enumerate(pes)
    ]
    for x, configs in enumerate(colors):
        lines += [f"@set_color_config({x}, 0, @get_color({c}), .{{ {text} }});" for c, text in configs.items()]
    return (
        f'const memcpy = @import_module("<memcpy/get_params>", .{{ .width = {width}, .height = 1 }});\n'
        f"layout {{ @set_rectangle({width}, 1); {' '.join(lines)} {EXPORT} }}"
    )


def pe_file(body, n=8, color=0, top="", bind=""):
    """A PE with queues 2 bound to a colour, ``out[n]`` and ``f``."""
    return (
        HEAD
        + f"""
const c = @get_color({color});
const iq = @get_input_queue(2);
const oq = @get_output_queue(2);
var out = @zeros([{n}]u32);
var p: [*]u32 = &out;
const mem = @get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{{n}}} -> out[i] }});
const fin = @get_dsd(fabin_dsd, .{{ .extent = {n}, .fabric_color = c, .input_queue = iq }});
const fout = @get_dsd(fabout_dsd, .{{ .extent = {n}, .fabric_color = c, .output_queue = oq }});
const fctl = @get_dsd(fabout_dsd, .{{ .extent = 1, .fabric_color = c, .output_queue = oq, .control = true }});
{top}
fn f() void {{ {body} }}
{TAIL}
comptime {{
  {bind}
  @initialize_queue(iq, .{{ .color = c }});
  if (@is_arch("wse3")) {{ @initialize_queue(oq, .{{ .color = c }}); }}
}}
"""
    )


ROUTE = ".routes = .{{ .rx = .{{ {rx} }}, .tx = .{{ {tx} }} }}"


def route(rx, tx, more=""):
    return ROUTE.format(rx=rx, tx=tx) + more


# --- arithmetic ---------------------------------------------------------------------------------------------


def test_integers_wrap_and_divide_towards_zero():
    body = """
    var a: i16 = 32767; a += 1; out[0] = @bitcast(u32, @as(i32, a));
    var b: i16 = -7; out[1] = @bitcast(u32, @as(i32, b / 2)); out[2] = @bitcast(u32, @as(i32, b % 4));
    var c: u16 = 3; out[3] = c - 5;
    var d: u32 = 1; out[4] = d << 31; var e: i32 = -8; out[5] = @bitcast(u32, e >> 1);
    """
    host = memory_program(body + UNBLOCK, 6)
    host.call("f")
    got = get(host, "out", 6, np.int32)[0, 0]
    assert got.tolist() == [-32768, -3, -3, 65534, -(2**31), -4]


def test_half_precision_rounds_after_every_operation():
    body = """
    var a: f16 = 2048.0; var b: f16 = 1.0; var c = a + b + b;
    out[0] = @as(u32, c);
    var x: f32 = 16777216.0; var y = x + 1.0 + 1.0; out[1] = @as(u32, y);
    out[2] = @as(u32, @bitcast(u16, @as(f16, 0.1)));
    """
    host = memory_program(body + UNBLOCK, 3)
    host.call("f")
    assert get(host, "out", 3, np.uint32)[0, 0].tolist() == [2048, 16777216, np.float16(0.1).view(np.uint16)]


def test_an_integer_division_by_zero_is_a_fault():
    host = memory_program("var z: i16 = 0; var a: i16 = 1; out[0] = @as(u32, a / z);" + UNBLOCK, 1)
    host.call("f")
    with pytest.raises(ProgramFault, match="division by zero"):
        host.stop()


def test_an_assertion_names_its_place():
    host = memory_program("var z: i16 = 0; @assert(z == 1);" + UNBLOCK, 1)
    host.call("f")
    with pytest.raises(ProgramFault, match=r"pe\.csl:\d+:\d+: assertion failed on PE \(0, 0\)"):
        host.stop()


def test_an_access_outside_memory_names_its_place():
    top = "var q: [*]u32 = @bitcast([*]u32, @as(u16, 65000));"
    host = memory_program("out[0] = q[0];" + UNBLOCK, 1, top)
    host.call("f")
    with pytest.raises(
        ProgramFault, match=r"pe\.csl:\d+:\d+: task 'f' on PE \(0, 0\): an access outside the PE's memory"
    ):
        host.stop()


def test_recursion_without_end_is_a_fault():
    host = memory_program("g(3);" + UNBLOCK, 1, "fn g(n: u16) void { if (n > 2) { g(n); } }")
    host.call("f")
    with pytest.raises(ProgramFault, match="recursion"):
        host.stop()


# --- tasks --------------------------------------------------------------------------------------------------


def test_blocked_tasks_wait_and_run_once_when_unblocked():
    top = """
    const a = @get_local_task_id(10);
    const b = @get_local_task_id(11);
    var n: u16 = 0;
    task ta() void { out[n] = 1; n += 1; @unblock(b); }
    task tb() void { out[n] = 2; n += 1; sys_mod.unblock_cmd_stream(); }
    comptime { @bind_local_task(ta, a); @bind_local_task(tb, b); @block(b); }
    """
    host = memory_program("@activate(b); @activate(b); @activate(a);", 3, top)
    host.call("f")
    assert get(host, "out", 3, np.uint32)[0, 0].tolist() == [1, 2, 0]


@pytest.mark.parametrize("arch", ["wse2", "wse3"])
def test_a_data_task_runs_once_a_wavelet_and_splits_its_arguments(arch):
    send = pe_file("out[0] = 3 << 16 | 5; out[1] = 4 << 16 | 6; @mov32(fout, mem, .{ .async = true }); " + UNBLOCK, 2)
    top = """
    const id = if (@is_arch("wse3")) @get_data_task_id(iq) else @get_data_task_id(c);
    var n: u16 = 0;
    task got(low: u16, high: u16) void { out[n] = @as(u32, low) * 100 + high; n += 1; }
    """
    receive = pe_file(UNBLOCK, 2, top=top, bind="@bind_data_task(got, id);")
    layout = row_layout(2, ["s.csl", "r.csl"], [{0: route("RAMP", "EAST")}, {0: route("WEST", "RAMP")}])
    host = session({"layout.csl": layout, "s.csl": send, "r.csl": receive}, arch)
    host.call("f")
    assert get(host, "out", 2, np.uint32)[0, 1].tolist() == [503, 604]


# --- switches, filters, colours -----------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["wse2", "wse3"])
def test_a_control_wavelet_moves_the_switch_after_it_has_passed(arch):
    top = """
    const ctrl = @import_module("<control>");
    const one = @get_dsd(fabout_dsd, .{ .extent = 1, .fabric_color = c, .output_queue = oq });
    """
    word = "ctrl.encode_single_payload(ctrl.opcode.SWITCH_ADV, true, {}, 0)"
    send = pe_file(
        f"@mov32(one, 11); @mov32(fctl, {word}); @mov32(one, 22); @mov32(fctl, {word}); @mov32(one, 33);" + UNBLOCK,
        1,
        top=top,
    )
    receive = pe_file(
        "@mov32(mem, fin, .{ .async = true, .activate = done });",
        1,
        top="const done = @get_local_task_id(9); task t() void { " + UNBLOCK + " }",
        bind="@bind_local_task(t, done);",
    )
    two = (
        receive.replace("{1}", "{2}")
        .replace("@zeros([1]u32)", "@zeros([2]u32)")
        .replace(".extent = 1, .fabric_color = c, .input_queue", ".extent = 2, .fabric_color = c, .input_queue")
    )
    switches = ", .switches = .{ .pos1 = .{ .tx = EAST }, .ring_mode = true }"
    layout = row_layout(
        3,
        ["w.csl", "s.csl", "e.csl"],
        [{0: route("EAST", "RAMP")}, {0: route("RAMP", "WEST", switches)}, {0: route("WEST", "RAMP")}],
    )
    host = session({"layout.csl": layout, "s.csl": send, "w.csl": two, "e.csl": receive}, arch)
    host.call("f")
    assert get(host, "out", 2, np.uint32, (0, 0, 1, 1))[0, 0].tolist() == [11, 33]
    assert get(host, "out", 1, np.uint32, (2, 0, 1, 1))[0, 0].tolist() == [22]


def test_filters_let_through_what_they_should():
    fill = " ".join(f"out[{i}] = {i} << 16 | {i};" for i in range(8))
    send = pe_file(fill + "@mov32(fout, mem, .{ .async = true });" + UNBLOCK, 8)
    receive = pe_file(
        "@mov32(mem, fin, .{ .async = true, .activate = done });",
        2,
        top="const done = @get_local_task_id(9); task t() void { " + UNBLOCK + " }",
        bind="@bind_local_task(t, done);",
    )
    ranged = ", .filter = .{ .kind = .{ .range = true }, .min_idx = 3, .max_idx = 4 }"
    counted = ", .filter = .{ .kind = .{ .counter = true }, .count_data = true, .limit1 = 3, .max_counter = 0 }"
    layout = row_layout(
        3,
        ["s.csl", "r.csl", "r.csl"],
        [{0: route("RAMP", "EAST")}, {0: route("WEST", "RAMP, EAST", ranged)}, {0: route("WEST", "RAMP", counted)}],
    )
    host = session({"layout.csl": layout, "s.csl": send, "r.csl": receive})
    host.call("f")
    got = get(host, "out", 2, np.uint32, (1, 0, 2, 1))[0] & 0xFFFF
    assert got.tolist() == [[3, 4], [0, 4]]


def test_colours_swap_on_their_way_on_wse2():
    send = pe_file("out[0] = 5; @mov32(fout, mem, .{ .async = true });" + UNBLOCK, 1, color=0)
    done = "const done = @get_local_task_id(9); task t() void { " + UNBLOCK + " }"
    receive = pe_file(
        "@mov32(mem, fin, .{ .async = true, .activate = done });",
        1,
        color=1,
        top=done,
        bind="@bind_local_task(t, done);",
    )
    swap = ".routes = .{{ .rx = .{{ {0} }}, .tx = .{{ {1} }}, .color_swap_x = true }}"
    layout = row_layout(2, ["s.csl", "r.csl"], [{0: swap.format("RAMP", "EAST")}, {1: swap.format("WEST", "RAMP")}])
    host = session({"layout.csl": layout, "s.csl": send, "r.csl": receive}, "wse2")
    host.call("f")
    assert get(host, "out", 1, np.uint32, (1, 0, 1, 1))[0, 0, 0] == 5


# --- descriptors, registers, FIFOs --------------------------------------------------------------------------


def test_registers_keep_their_address():
    top = """
    var v = [6]u32{ 1, 2, 3, 4, 5, 6 };
    const src = @get_dsr(dsr_src1, 1);
    const dst = @get_dsr(dsr_dest, 1);
    const vd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{2} -> v[i] });
    const od = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{2} -> out[i] });
    """
    body = """
    @load_to_dsr(src, vd, .{ .save_address = true });
    @load_to_dsr(dst, od);
    @mov32(dst, src); @mov32(dst, src);
    """
    host = memory_program(body + UNBLOCK, 2, top)
    host.call("f")
    assert get(host, "out", 2, np.uint32)[0, 0].tolist() == [3, 4]


def test_a_scalar_destination_accumulates_from_the_scalar_source():
    top = "var v = [4]f32{ 1.0, 5.0, 2.0, 3.0 };\nvar s: f32 = 10.0;"
    body = """
    const d = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> v[i] });
    @fadds(&s, s, d); out[0] = @as(u32, s);
    var m: f32 = 0.0; @fmaxs(&m, m, d); out[1] = @as(u32, m);
    """
    host = memory_program(body + UNBLOCK, 2, top)
    host.call("f")
    assert get(host, "out", 2, np.uint32)[0, 0].tolist() == [21, 5]


def test_several_dimensions_and_repeated_addresses():
    top = "var v = [2, 3]f32{ 1.0, 2.0, 3.0, 10.0, 20.0, 30.0 };\nvar acc = @zeros([3]f32);"
    body = """
    const s = @get_dsd(mem4d_dsd, .{ .tensor_access = |i, j|{2, 3} -> v[i, j] });
    const t = @get_dsd(mem4d_dsd, .{ .tensor_access = |i, j|{2, 3} -> acc[j] });
    @fadds(t, t, s);
    for (@range(i16, 3)) |i| { out[i] = @as(u32, acc[i]); }
    """
    host = memory_program(body + UNBLOCK, 3, top)
    host.call("f")
    assert get(host, "out", 3, np.uint32)[0, 0].tolist() == [11, 22, 33]


def test_a_fifo_holds_a_stream_back_without_losing_words():
    n = 50
    send = pe_file(
        f"for (@range(u16, {n})) |i| {{ out[i] = i; }} @mov32(fout, mem, .{{ .async = true }}); " + UNBLOCK, n
    )
    top = f"""
    var buf = @zeros([4]u32);
    const fifo = @allocate_fifo(buf);
    const done = @get_local_task_id(9);
    task t() void {{ {UNBLOCK} }}
    const c1 = @get_color(1);
    const iq3 = @get_input_queue(3);
    const oq3 = @get_output_queue(3);
    const back = @get_dsd(fabout_dsd, .{{ .extent = {n}, .fabric_color = c1, .output_queue = oq3 }});
    const again = @get_dsd(fabin_dsd, .{{ .extent = {n}, .fabric_color = c1, .input_queue = iq3 }});
    """
    bind = """@bind_local_task(t, done); @initialize_queue(@get_input_queue(3), .{ .color = @get_color(1) });
    if (@is_arch("wse3")) { @initialize_queue(@get_output_queue(3), .{ .color = @get_color(1) }); }"""
    body = """
    @mov32(fifo, fin, .{ .async = true });
    @mov32(back, fifo, .{ .async = true });
    @mov32(mem, again, .{ .async = true, .activate = done });
    """
    receive = pe_file(body, n, top=top, bind=bind)
    layout = row_layout(
        2, ["s.csl", "r.csl"], [{0: route("RAMP", "EAST")}, {0: route("WEST", "RAMP"), 1: route("RAMP", "RAMP")}]
    )
    host = session({"layout.csl": layout, "s.csl": send, "r.csl": receive})
    host.call("f")
    assert get(host, "out", n, np.uint32, (1, 0, 1, 1))[0, 0].tolist() == list(range(n))


def test_map_calls_a_function_for_every_element():
    top = "fn cube(x: f32) f32 { return x * x * x; }\nvar v = [3]f32{ 1.0, 2.0, 3.0 };"
    body = """
    const d = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{3} -> v[i] });
    @map(cube, d, d);
    for (@range(i16, 3)) |i| { out[i] = @as(u32, v[i]); }
    """
    host = memory_program(body + UNBLOCK, 3, top)
    host.call("f")
    assert get(host, "out", 3, np.uint32)[0, 0].tolist() == [1, 8, 27]


# --- what goes wrong ----------------------------------------------------------------------------------------


def test_two_operations_on_one_queue_are_an_error_in_strict_mode_only():
    send = pe_file("@mov32(fout, mem, .{ .async = true });" + UNBLOCK, 4)
    twice = "@mov32(mem, fin, .{ .async = true }); @mov32(mem, fin, .{ .async = true });"
    receive = pe_file(twice + UNBLOCK, 4)
    layout = row_layout(2, ["s.csl", "r.csl"], [{0: route("RAMP", "EAST")}, {0: route("WEST", "RAMP")}])
    texts = {"layout.csl": layout, "s.csl": send, "r.csl": receive}
    relaxed = session(texts)
    relaxed.call("f")
    relaxed.stop()
    strict = session(texts, strict=True)
    strict.call("f")
    with pytest.raises(ResourceBusy, match="still read by @mov32"):
        strict.stop()


def test_a_command_stream_that_nobody_unblocks_is_a_deadlock():
    host = memory_program("out[0] = 1;", 1)
    host.call("f")
    with pytest.raises(Deadlock, match="never called unblock_cmd_stream"):
        get(host, "out", 1)


def test_a_route_that_comes_back_is_found_while_running_too():
    top = 'const tile = @import_module("<tile_config>");'
    back = pe_file("tile.color_config.reset_routes(c, .{ .rx = WEST, .tx = WEST });" + UNBLOCK, 2, top=top)
    send = pe_file("@mov32(fout, mem, .{ .async = true });" + UNBLOCK, 2)
    layout = row_layout(2, ["s.csl", "r.csl"], [{0: route("RAMP, EAST", "EAST")}, {0: route("WEST", "RAMP")}])
    host = session({"layout.csl": layout, "s.csl": send, "r.csl": back})
    host.call("f")
    with pytest.raises(RoutingLoop, match="come back to the router"):
        host.stop()


@pytest.mark.parametrize(
    ("what", "match"),
    [
        (lambda h: h.call("g"), "no PE exports a function 'g'"),
        (lambda h: h.call("f", (1,)), "takes 0 arguments, 1 were given"),
        (lambda h: get(h, "nothing", 1), "exports no variable 'nothing' .it has: out"),
        (lambda h: put(h, "out", np.zeros((1, 2, 1), np.uint32)), "not inside the program's 1 x 1 PEs"),
        (lambda h: get(h, "out", 40000), "reach beyond 'out'"),
    ],
)
def test_the_host_is_told_what_it_asked_wrongly(what, match):
    host = memory_program(UNBLOCK, 1)
    with pytest.raises(HostError, match=match):
        what(host)
