"""``<dsd_ops>`` and ``<malloc>``, called from CSL."""

import numpy as np
import pytest

from tests.unit.wsesim.libs.test_libraries import run
from wsesim.csl.syntax.diagnostics import CompileError
from wsesim.fabric import ProgramFault

OPS = 'const dsd_ops = @import_module("<dsd_ops>");\n'
VECTORS = """
var a = [4]f32{ 1.5, -2.0, 3.0, -4.25 };
var b = [4]f32{ 2.0, 0.5, -1.0, 4.0 };
var h = @zeros([4]f16);
var w = [4]i16{ 1, -2, 300, 4 };
const da = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> a[i] });
const db = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> b[i] });
const dh = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> h[i] });
const dw = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> w[i] });
"""
A, B = np.array([1.5, -2.0, 3.0, -4.25], np.float32), np.array([2.0, 0.5, -1.0, 4.0], np.float32)
W = np.array([1, -2, 300, 4], np.int16)
CASES = {
    "mov": ("dsd_ops.mov(f32, to, da, .{});", A),
    "mov words": ("dsd_ops.mov(u32, to, da, .{});", A),
    "add": ("dsd_ops.add(f32, f32, to, da, db, .{});", A + B),
    "sub": ("dsd_ops.sub(f32, to, da, db, .{});", A - B),
    "mul": ("dsd_ops.mul(f32, to, da, 2.0, .{});", A * 2),
    "fmac": ("dsd_ops.fmac(f32, f32, to, da, db, 3.0, .{});", A + B * 3),
    "neg": ("dsd_ops.neg(f32, to, da, .{});", -A),
    "abs": ("dsd_ops.abs(f32, to, da, .{});", abs(A)),
    "max": ("dsd_ops.max(f32, to, da, db, .{});", np.maximum(A, B)),
    "scale": ("dsd_ops.scale(f32, to, da, @as(i16, 2), .{});", A * 4),
    "convert": ("dsd_ops.convert(f32, i16, to, dw, .{});", W.astype(np.float32)),
    "half": (
        """dsd_ops.convert(f16, f32, dh, da, .{});
        dsd_ops.mul(f16, dh, dh, dh, .{});
        dsd_ops.convert(f32, f16, to, dh, .{});""",
        (A.astype(np.float16) ** 2).astype(np.float32),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_operations_by_type(case):
    body, want = CASES[case]
    target = "const to = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> out[i] });\n"
    _, got = run(target + body, 4, top=OPS + VECTORS)
    np.testing.assert_array_equal(got[0, 0], want)


def test_a_type_without_an_operation_is_refused():
    with pytest.raises(CompileError, match=r"dsd_ops\.mul: no operation for this type"):
        run("dsd_ops.mul(u32, da, da, db, .{});", 4, top=OPS + VECTORS)


MEMORY = 'const mem = @import_module("<malloc>", .{ .buffer_num_words = 16%s });\n'


def test_an_arena():
    body = """
    const a = mem.malloc_f32(3);
    const b = mem.malloc_i16(1);
    const c = mem.malloc(f32, 2);
    for (@range(i16, 3)) |i| { a[i] = 10.0 + @as(f32, i); }
    b[0] = 7;
    c[0] = 20.0;
    c[1] = 21.0;
    for (@range(i16, 3)) |i| { out[i] = a[i]; }
    out[3] = @as(f32, b[0]);
    out[4] = c[0];
    out[5] = c[1];
    out[6] = if (mem.has_enough_words(4)) 1.0 else 0.0;
    out[7] = if (mem.has_enough_words(5)) 1.0 else 0.0;
    out[8] = if (mem.has_enough_double_words(3)) 1.0 else 0.0;
    out[9] = if (mem.has_enough_space(f32, 2)) 1.0 else 0.0;
    mem.free();
    out[10] = if (mem.has_enough_double_words(8)) 1.0 else 0.0;
    out[11] = if (mem.malloc_f32(8)[0] == 10.0) 1.0 else 0.0;
    """
    _, got = run(body, 12, top=MEMORY % "")
    np.testing.assert_array_equal(got[0, 0], [10, 11, 12, 7, 20, 21, 1, 0, 0, 1, 1, 1])


def test_an_arena_that_asserts():
    with pytest.raises(ProgramFault, match="assert"):
        run("out[0] = mem.malloc_f32(9)[0];", 1, top=MEMORY % ", .asserts_enabled = true")
