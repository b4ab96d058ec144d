"""The standard libraries, called from CSL."""

import math

import numpy as np
import pytest

from tests.unit.wsesim.running import get, one_program

OUT = '@export_name("out", [*]{kind}, true); @export_name("f", fn()void);'


def run(body, n, kind="f32", arch="wse3", top="", w=1, h=1):
    """``out`` after ``body`` ran on every PE."""
    code = f"""
{top}
var out = @zeros([{n}]{kind});
var p: [*]{kind} = &out;
fn f() void {{
  {body}
  sys_mod.unblock_cmd_stream();
}}
comptime {{ @export_symbol(p, "out"); @export_symbol(f); }}
"""
    host = one_program(code, OUT.format(kind=kind), arch=arch, w=w, h=h)
    host.call("f")
    return host, get(host, "out", n, {"f32": np.float32, "u32": np.uint32, "i32": np.int32}[kind])


FUNCTIONS = {
    "sqrt": math.sqrt,
    "exp": math.exp,
    "log": math.log,
    "sin": math.sin,
    "cos": math.cos,
    "tanh": math.tanh,
    "inv": lambda x: 1 / x,
    "invsqrt": lambda x: 1 / math.sqrt(x),
    "sig": lambda x: 1 / (1 + math.exp(-x)),
    "floor": math.floor,
    "ceil": math.ceil,
    "abs": abs,
}


def test_math_functions_round_the_true_value_once():
    xs = [0.3, 1.0, 2.75, 40.5]
    top = 'const math = @import_module("<math>");\nvar xs = [4]f32{ 0.3, 1.0, 2.75, 40.5 };'
    lines = [f"for (@range(i16, 4)) |i| {{ out[{4 * k} + i] = math.{n}(xs[i]); }}" for k, n in enumerate(FUNCTIONS)]
    _, got = run("\n".join(lines), 4 * len(FUNCTIONS), top=top)
    want = [np.float32(fn(float(np.float32(x)))) for fn in FUNCTIONS.values() for x in xs]
    np.testing.assert_array_equal(got[0, 0], want)


SPECIAL = (
    "-@as(f32, 1.0) / zero",
    "-1e38",
    "-2.0",
    "-@as(f32, 0.0)",
    "0.0",
    "0.5",
    "3.0",
    "1e38",
    "1.0 / zero",
    "zero / zero",
)
IEEE = {
    "sqrt": np.sqrt, "exp": np.exp, "log": np.log, "sin": np.sin, "cos": np.cos, "tanh": np.tanh, "floor": np.floor,
    "ceil": np.ceil, "abs": np.abs, "inv": lambda x: 1 / x, "invsqrt": lambda x: 1 / np.sqrt(x),
    "sig": lambda x: 1 / (1 + np.exp(-x)),
}  # fmt: skip


def _filled(count):
    return " ".join(f"xs[{i}] = {text};" for i, text in enumerate(SPECIAL[:count]))


@pytest.mark.parametrize("name", IEEE)
def test_functions_of_infinities_and_nothing_are_those_of_ieee(name):
    n = len(SPECIAL)
    top = f'const math = @import_module("<math>");\nvar xs = @zeros([{n}]f32); var zero: f32 = 0.0;'
    body = f"{_filled(n)} for (@range(i16, {n})) |i| {{ out[i] = xs[i]; out[{n} + i] = math.{name}(xs[i]); }}"
    _, got = run(body, 2 * n, top=top)
    x, found = got[0, 0].reshape(2, n)
    assert np.isnan(x[-1])
    assert np.isinf(x[[0, -2]]).all()
    with np.errstate(all="ignore"):
        want = IEEE[name](x.astype(np.float64)).astype(np.float32)
    # Sines of numbers this large depend on the library's digits of pi.
    np.testing.assert_allclose(found, want, 1e-6)


def test_powers_of_infinities_and_nothing_are_those_of_ieee():
    n = len(SPECIAL)
    top = f'const math = @import_module("<math>");\nvar xs = @zeros([{n}]f32); var zero: f32 = 0.0;'
    loops = (
        f"for (@range(i16, {n})) |i| {{ for (@range(i16, {n})) |j| {{ out[{n} * i + j] = math.pow(xs[i], xs[j]); }} }}"
    )
    _, got = run(f"{_filled(n)} {loops}", n * n, top=top)
    x = np.array([-np.inf, -1e38, -2, -0.0, 0, 0.5, 3, 1e38, np.inf, np.nan])
    with np.errstate(all="ignore"):
        want = np.float_power(x[:, None], x).astype(np.float32)
    np.testing.assert_allclose(got[0, 0].reshape(n, n), want, 1e-6)


def test_half_precision_functions_and_constants():
    top = 'const math = @import_module("<math>");\nvar x: f16 = 2.0;'
    body = """
    out[0] = @as(f32, math.sqrt_f16(x));
    out[1] = math.PI;
    out[2] = math.NEGATIVE_INF_f32;
    out[3] = @as(f32, math.max(x, 3.0));
    out[4] = if (math.isNaN(math.NaN_f32)) 1.0 else 0.0;
    out[5] = math.pow(@as(f32, x), 10.0);
    out[6] = math.sqrt(-@as(f32, x));
    """
    _, got = run(body, 7, top=top)
    assert got[0, 0, :6].tolist() == [
        float(np.float16(math.sqrt(2))),
        float(np.float32(math.pi)),
        -math.inf,
        3,
        1,
        1024,
    ]
    assert math.isnan(got[0, 0, 6])


@pytest.mark.parametrize("arch", ["wse2", "wse3"])
def test_layout_gives_each_pe_its_place(arch):
    top = 'const place = @import_module("<layout>");'
    _, got = run("out[0] = place.get_x_coord(); out[1] = place.get_y_coord();", 2, "u32", arch, top, w=3, h=2)
    assert got.tolist() == [[[x, y] for x in range(3)] for y in range(2)]


def test_directions_turn_and_flip():
    top = 'const d = @import_module("<directions>");'
    body = """
    const all = [5]direction{ RAMP, WEST, EAST, SOUTH, NORTH };
    comptime {
      @comptime_assert(d.flip(WEST) == EAST);
      @comptime_assert(d.flip(NORTH) == SOUTH);
      @comptime_assert(d.rotate_clockwise(NORTH) == EAST);
      @comptime_assert(d.rotate_counterclockwise(NORTH) == WEST);
      @comptime_assert(d.flip_vertical(EAST) == EAST);
      @comptime_assert(d.flip_horizontal(RAMP) == RAMP);
    }
    out[0] = 1;
    """.replace("const all = [5]direction{ RAMP, WEST, EAST, SOUTH, NORTH };", "")
    _, got = run(body, 1, "u32", top=top)
    assert got[0, 0, 0] == 1


def test_control_payloads():
    top = 'const c = @import_module("<control>");'
    body = """
    out[0] = c.encode_control_task_payload(@get_control_task_id(40));
    out[1] = c.encode_single_payload(c.opcode.SWITCH_ADV, true, {}, 0);
    out[2] = c.encode_single_payload(c.opcode.NOP, false, @get_control_task_id(5), 77);
    """
    _, got = run(body, 3, "u32", top=top)
    assert got[0, 0].tolist() == [40 << 16, 31 << 16 | 1 << 22 | 1 << 24, 5 << 16 | 77]


def test_time_goes_on():
    top = 'const t = @import_module("<time>");\nvar a: [3]u16; var b: [3]u16; var v = @zeros([500]f32);'
    body = """
    t.enable_tsc();
    t.get_timestamp(&a);
    const d = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{500} -> v[i] });
    @fmacs(d, d, d, 2.0);
    t.get_timestamp(&b);
    out[0] = @as(u32, b[0]) - @as(u32, a[0]);
    """
    _, got = run(body, 1, "u32", top=top)
    assert 500 <= got[0, 0, 0] < 600


def test_random_numbers_keep_their_range_and_follow_the_seed():
    top = 'const r = @import_module("<random>");'
    body = """
    r.set_global_prng_seed(1234);
    for (@range(i16, 200)) |i| { out[i] = r.random_f32(-2.0, 3.0); }
    r.set_global_prng_seed(1234);
    for (@range(i16, 200)) |i| { out[200 + i] = r.random_f32(-2.0, 3.0); }
    """
    _, got = run(body, 400, top=top)
    first, again = got[0, 0, :200], got[0, 0, 200:]
    np.testing.assert_array_equal(first, again)
    assert first.min() >= -2
    assert first.max() < 3
    assert abs(first.mean() - 0.5) < 0.5


def test_prints_and_traces_reach_the_host():
    top = """
    const prt = @import_module("<simprint>");
    const off = @import_module("<simprint>", .{ .enable = false });
    const trace = @import_module("<debug>", .{ .key = "k", .buffer_size = 100 });
    """
    body = """
    prt.print_string("x = ");
    prt.print_u16_decimal(42);
    off.print_string("never");
    prt.print_string(", ");
    prt.print_u32_hex(0xabc);
    prt.print_string("\\n");
    trace.trace_u16(7);
    trace.trace_string("seven");
    trace.trace_f32(0.5);
    """
    host, _ = run(body, 1, top=top)
    assert host.machine.log == ["x = 42, 00000ABC"]
    assert host.machine.pes[(0, 0)].library[("trace", "k")] == [7, "seven", 0.5]


def test_a_trace_buffer_does_not_grow_beyond_its_size():
    top = 'const trace = @import_module("<debug>", .{ .key = "k", .buffer_size = 10 });'
    host, _ = run("for (@range(u16, 50)) |i| { trace.trace_u16(i); }", 1, top=top)
    assert host.machine.pes[(0, 0)].library[("trace", "k")] == [0, 1, 2, 3, 4]
