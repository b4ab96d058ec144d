"""Native runs against generated Python: the same memory, the same cycles, the same counts."""

import numpy as np
import pytest

from tests.unit.wsesim.csl.support import ONE_PE
from wsesim.csl.program.driver import compile_texts
from wsesim.fabric import ProgramFault, load
from wsesim.fabric.codegen import native_runs as native

LAYOUT = ONE_PE[:-1] + ' @export_name("go", fn (i16) void); }'
HEAD = "comptime { @export_symbol(go); }\n"
MEMORY = """
var a: [24]f32; var b: [24]f32; var h: [24]f16; var w: [24]i16; var u: [24]u32; var out: [16]i32; var real: [16]f32;
var flag: bool = false; var total: i32 = 0;
const da = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{8} -> a[i] });
const db = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{8} -> b[2 * i] });
const dh = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{10} -> h[i] });
const dw = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{12} -> w[i] });
const back = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{8} -> a[20 - i] });
var moving = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> u[i] });
fn square(x: i32) i32 { if (x < 0) return -x * x; return x * x; }
fn scale(d: mem1d_dsd, by: f32) void { @fmuls(d, d, by); }
"""
BODIES = {
    "loops": "for (@range(i16, 12)) |i| { total += i * n; if (i == 7) continue; if (i > 9) break; out[i] = total - "
             "i; }",
    "countdown": "for (@range(i16, 9, -1, -2)) |i| { out[i] = i; } var k: u16 = 0; while (k < 20) : (k += 3) "
    "{ if (k == 6) continue; total += @as(i32, k); }",
    "labels": "outer: for (@range(i16, 6)) |i| { for (@range(i16, 6)) |j| { if (j > i) continue :outer; "
    "if (i * j == 12) break :outer; total += i * j; } }",
    "wrapping": "var x: u16 = 65000; var y: i16 = 32000; for (@range(i16, 9)) |i| { x += 100; y += @as(i16, x % 512); "
    "out[i] = @as(i32, x) ^ @as(i32, y); x = x << 1; y = y >> 2; x |= 3; }",
    "divide": "for (@range(i32, 1, 12, 1)) |i| { out[i] = (-1000 - n) / i + 1000 % i; }",
    "floats": "var x: f32 = 1.5; for (@range(i16, 12)) |i| { x = x * 1.1 - 0.3 / (x + 1.0); real[i] = x; "
    "h[i] = @as(f16, x) * 0.7 + h[i + 1]; out[i] = @as(i32, x * 1000.0); flag = x > 2.0 and !flag; }",
    "bits": "for (@range(i16, 10)) |i| { out[i] = @bitcast(i32, real[i] + @as(f32, i)); w[i] = @bitcast(i16, h[i]); }",
    "calls": "for (@range(i32, -4, 5, 1)) |i| { total += square(i); } scale(da, 2.0); scale(db, 0.5);",
    "fmacs": "var d = da; for (@range(i16, 3)) |k| { @fmacs(d, d, db, b[k]); d = @increment_dsd_offset(d, 2, f32); }",
    "overlap": "@fadds(back, back, da); @fmovs(da, back); @fmacs(da, back, da, 0.25); @fnegs(db, da); @fabss(da, db);",
    "repeated": "const acc = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{8} -> b[3] }); @fadds(acc, acc, da); "
    "@fmovs(&b[5], da); @fmaxs(da, da, 1.0); @fsubs(da, 2.0, da);",
    "halves": "@fmach(dh, dh, dh, 0.3); @faddh(dh, dh, 0.1); @fmulh(dh, dh, dh); @fmaxh(dh, dh, 0.2); @fnegh(dh, dh); "
    "@fsubh(dh, dh, dh); @fmovh(dh, 1.5);",
    "integers": "@add16(dw, dw, 3); @xor16(dw, dw, dw); @mov16(dw, 77); @sub16(dw, dw, 9); @and16(dw, dw, 60); "
                "@or16(dw, dw, 1);",
    "moving": "for (@range(u16, 4)) |i| { @mov32(moving, @as(u32, i) + 5); moving = @set_dsd_length(moving, i + 1); "
    "moving = @increment_dsd_offset(moving, 1, u32); moving = @set_dsd_stride(moving, 2); }",
    "runtime dsd": "var d = @get_dsd(mem1d_dsd, .{ .base_address = &u, .extent = @as(u16, n) + 2, .stride = 3 }); "
    "@mov32(d, 9); d = @set_dsd_base_addr(d, &u[1]); @mov32(d, 4);",
    "empty": "const none = @set_dsd_length(da, @as(u16, n) - @as(u16, n)); @fadds(none, none, da); @fadds(da, none, "
             "da);",
    "switch": "for (@range(i16, 8)) |i| { switch (i) { 0 => total += 1, 1, 5 => { total -= 2; }, else => out[i] = i "
              "} }",
    "pointers": "var p: [*]i32 = &out; for (@range(i16, 5)) |i| { p[i] = p[i + 1] + i; const q = &out[i]; q.* += 1; }",
}  # fmt: skip


def run(body, times, arch="wse3"):
    """The machine after calling ``go`` a number of times."""
    text = f"{MEMORY}\nfn go(n: i16) void {{\n{body}\n}}\n{HEAD}"
    machine = load(compile_texts({"layout.csl": LAYOUT, "pe.csl": text}, arch=arch))
    (pe,) = machine.pes.values()
    code = pe.code.functions["go"]
    numbers = np.random.default_rng(5)
    for name, kind in (("a", "<f4"), ("b", "<f4"), ("h", "<f2"), ("real", "<f4")):
        item = pe.program.globals.get(name)
        if item is None:
            continue
        pe.mem[item.address : item.address + item.size].view(kind)[:] = numbers.normal(size=item.size // int(kind[2]))
    for i in range(times):
        code.call(pe, 3 + i)
    return pe


@pytest.mark.parametrize("arch", ["wse2", "wse3"])
@pytest.mark.parametrize("name", BODIES)
def test_native_equals_python(name, arch, monkeypatch):
    monkeypatch.setenv("WSESIM_NATIVE", "0")
    plain = run(BODIES[name], 4, arch)
    assert not plain.code.native
    monkeypatch.setenv("WSESIM_NATIVE", "1")
    monkeypatch.setattr(native, "HOT", 1)
    quick = run(BODIES[name], 4, arch)
    assert quick.code.native
    assert all(r.ready for r in quick.code.native if r.count)
    assert any(r.ready for r in quick.code.native)
    assert np.array_equal(plain.mem, quick.mem)
    assert (plain.t, plain.ops_run) == (quick.t, quick.ops_run)
    shown = [[repr(d) for d in pe.objects["moving"]] for pe in (plain, quick) if "moving" in pe.objects]
    assert shown[:1] == shown[1:]


def test_python_until_hot(monkeypatch):
    monkeypatch.setattr(native, "HOT", 3)
    pe = run(BODIES["fmacs"], 2)
    assert [(r.count, r.ready) for r in pe.code.native] == [(2, False)]
    pe = run(BODIES["fmacs"], 4)
    assert [r.ready for r in pe.code.native] == [True]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("for (@range(i16, 3)) |i| { total = total / (n - 4 - i + 1); }", "division by zero"),
        ("var p: [*]i32 = &out; for (@range(i16, 3)) |i| { p[i + 20000] = 1; }", "outside"),
        ("var d = da; d = @set_dsd_length(d, 60000); @fmovs(d, 1.0);", "outside"),
        ("var p = @ptrcast([*]u32, &w[1]); for (@range(i16, 3)) |i| { p[i] = 1; }", "not aligned"),
    ],
)
def test_faults_are_errors(body, text, monkeypatch):
    monkeypatch.setattr(native, "HOT", 1)
    with pytest.raises(ProgramFault, match=text):
        run(body, 3)
