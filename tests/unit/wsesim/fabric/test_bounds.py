"""Vectors, indices and copies stay inside the variable they belong to."""

import numpy as np
import pytest

from tests.unit.wsesim.fabric.test_programs import EXPORT, TAIL, UNBLOCK, memory_program
from tests.unit.wsesim.running import get, one_program, put
from wsesim.fabric import HostError, ProgramFault
from wsesim.fabric.codegen.native_runs import HOT, enabled

ARRAYS = "var z: u32 = 7; var before = @zeros([8]u32); var a = @zeros([4]u32); var after = @zeros([8]u32);"
TOUCH = "before[0] = 1; after[0] = 1;"
VECTOR = "const d = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> a[i] });"
BEYOND = {
    "longer": "@mov32(@set_dsd_length(d, 5), @as(u32, 7));",
    "moved on": "@mov32(@increment_dsd_offset(d, 1, u32), @as(u32, 7));",
    "moved far, into another variable": "@mov32(@increment_dsd_offset(d, 4, u32), @as(u32, 7));",
    "moved back": "@mov32(@increment_dsd_offset(d, -1, u32), @as(u32, 7));",
    "strided": "@mov32(@set_dsd_stride(d, 2), @as(u32, 7));",
    "backwards": "@mov32(@set_dsd_stride(d, -1), @as(u32, 7));",
    "as a source": "@mov32(@set_dsd_length(o, 5), @set_dsd_length(d, 5));",
    "from a pointer": "var q: [*]u32 = &a; @mov32(@get_dsd(mem1d_dsd, .{ .base_address = q, .extent = 5 }), z);",
    "based elsewhere": "@mov32(@set_dsd_length(@set_dsd_base_addr(o, &a), 5), @as(u32, 7));",
    "an array in several dimensions": "@mov32(four, @as(u32, 7));",
}
MORE = """
const o = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{8} -> out[i] });
const four = @get_dsd(mem4d_dsd, .{ .tensor_access = |i, j|{3, 2} -> a[2 * i + j] });
"""


def run(body, n=8, top=ARRAYS + VECTOR + MORE, strict=True):
    host = memory_program(f"{TOUCH} {body} {UNBLOCK}", n, top, strict=strict)
    host.call("f")
    host.stop()
    return host


@pytest.mark.parametrize("body", BEYOND.values(), ids=BEYOND)
def test_a_vector_that_leaves_its_variable_is_a_fault(body):
    with pytest.raises(ProgramFault, match=r"pe\.csl:\d+:\d+: task 'f' on PE \(0, 0\): .*reaches beyond '(a|out)'"):
        run(body)


@pytest.mark.skipif(not enabled(), reason="no native code here")
@pytest.mark.parametrize("body", [b for name, b in BEYOND.items() if "several" not in name])
def test_native_code_checks_the_same(body):
    hot = f"for (@range(u16, {HOT + 8})) |k| {{ if (k == {HOT + 4}) {{ bad(); }} good(); }}"
    top = f"{ARRAYS}{VECTOR}{MORE} var on: bool = false; fn bad() void {{ on = true; }}"
    body = f"@mov32(d, @as(u32, 1)); if (on) {{ {body} }}"
    top += f"fn good() void {{ {body} }}"
    with pytest.raises(ProgramFault, match=r"beyond|outside its variable") as caught:
        run(hot, top=top)
    assert "pe.csl:" in str(caught.value)


@pytest.mark.parametrize("body", BEYOND.values(), ids=BEYOND)
def test_it_is_said_once_outside_strict_mode(body):
    host = run(f"for (@range(u16, 3)) |k| {{ {body} }}", strict=False)
    assert len(host.machine.warnings) == 1
    assert "reaches beyond '" in next(iter(host.machine.warnings))


@pytest.mark.skipif(not enabled(), reason="no native code here")
def test_native_code_says_it_too():
    top = f"{ARRAYS}{VECTOR}{MORE} fn good(n: u16) void {{ @mov32(o, @set_dsd_length(d, n)); }}"
    host = run(f"for (@range(u16, {HOT + 8})) |k| {{ good(4 + k / {HOT + 4}); }}", top=top, strict=False)
    assert host.machine.warnings.keys() == {"PE (0, 0): task 'f' uses a vector that reaches beyond its variable"}


def test_vectors_may_end_where_their_variable_ends():
    host = run(
        "@mov32(@set_dsd_length(@increment_dsd_offset(d, 2, u32), 2), @as(u32, 7)); out[0] = a[3]; out[1] = a[1];"
    )
    host.start()
    assert get(host, "out", 2, np.uint32)[0, 0].tolist() == [7, 0]


REGISTERS = "const to = @get_dsr(dsr_dest, 1); const from = @get_dsr(dsr_src1, 1);"
TWICE = "fn twice(x: u32) u32 { return x + x; }"
LENGTHS = {
    "set while it runs": ("@mov32(o, @set_dsd_length(d, n));", "mov32", "8, 3"),
    "of registers": ("@load_to_dsr(to, o); @load_to_dsr(from, d); @mov32(to, from);", "mov32", "8, 4"),
    "of a function's vectors": ("@map(twice, @set_dsd_length(d, n), o);", "map", "8, 3"),
    "of a function's registers": ("@load_to_dsr(to, o); @map(twice, d, to);", "map", "8, 4"),
}


@pytest.mark.parametrize(("body", "op", "said"), LENGTHS.values(), ids=LENGTHS)
def test_lengths_known_only_while_it_runs_are_compared(body, op, said):
    top = f"{ARRAYS}{VECTOR}{MORE}{REGISTERS}{TWICE} var n: u16 = 3;"
    with pytest.raises(
        ProgramFault, match=rf"task 'f' on PE \(0, 0\): the vectors of @{op} differ in length.*: {said}"
    ):
        run(body, top=top)
    run(body, top=top, strict=False)


@pytest.mark.skipif(not enabled(), reason="no native code here")
def test_native_lengths_are_compared():
    top = f"{ARRAYS}{VECTOR}{MORE} fn good(n: u16) void {{ @mov32(@set_dsd_length(o, 3), @set_dsd_length(d, n)); }}"
    with pytest.raises(ProgramFault, match=r"differ in length"):
        run(f"for (@range(u16, {HOT + 8})) |k| {{ good(3 + k / {HOT + 4}); }}", top=top)


INDICES = {
    "above": ("var i: u16 = 4; a[i] = 1;", "index 4 is outside an array's dimension of 4"),
    "below": ("var i: i16 = -1; out[0] = a[i];", "index -1 is outside an array's dimension of 4"),
    "in a row": (
        "var m = @zeros([2, 3]u32); var j: u16 = 3; m[0, j] = 1;",
        "index 3 is outside an array's dimension of 3",
    ),
    "in a loop": ("for (@range(u16, 5)) |i| { a[i] = 1; }", "index 4 is outside an array's dimension of 4"),
    "behind a pointer": ("var q: *[4]u32 = &a; var i: u16 = 5; q.*[i] = 1;", "index 5 is outside"),
    "of descriptors": ("var i: u16 = 2; @mov32(ds[i], @as(u32, 1));", "index 2 is outside"),
}


@pytest.mark.parametrize(("body", "text"), INDICES.values(), ids=INDICES)
def test_an_index_outside_its_array_is_a_fault(body, text):
    with pytest.raises(ProgramFault, match=rf"pe\.csl:\d+:\d+: task 'f' on PE \(0, 0\): {text}"):
        run(body, top=ARRAYS + VECTOR + MORE + "var ds = [2]mem1d_dsd{ d, d };")


@pytest.mark.skipif(not enabled(), reason="no native code here")
def test_native_indices_are_checked():
    hot = HOT + 4
    top = f"{ARRAYS} fn fill(k: u16) void {{ var i: u16 = 0; while (i < 5) : (i += 1) {{ a[i * (k / {hot})] = k; }} }}"
    with pytest.raises(ProgramFault, match=r"pe\.csl:.*an index is outside its array"):
        run(f"for (@range(u16, {hot + 2})) |k| {{ fill(k); }}", top=top)


def test_the_place_behind_the_last_element_has_an_address():
    run("var i: u16 = 4; var q: *u32 = &a[i]; out[0] = @as(u32, @ptrcast(*u16, q) == @ptrcast(*u16, q));")


# --- the host ---------------------------------------------------------------------------------------------------


def copies(**options):
    body = f"{ARRAYS} var p: [*]u32 = &a; fn f() void {{ {TOUCH} {UNBLOCK} }} {TAIL}"
    return one_program(body, EXPORT, **options)


@pytest.mark.parametrize("size", [2, 4])
def test_copies_larger_than_the_symbol_are_refused(size):
    host = copies(strict=True)
    put(host, "out", np.arange(4, dtype=np.uint32).reshape(1, 1, 4))
    assert get(host, "out", 4, np.uint32)[0, 0].tolist() == [0, 1, 2, 3]
    n = 16 // size + 1
    for copy in (host.copy_in, host.copy_out):
        with pytest.raises(HostError, match=rf"copy of 'out': {n} elements of {8 * size} bits .* beyond 'a'"):
            copy("out", np.zeros((1, 1, n), np.uint32), (0, 0, 1, 1), size)


def test_reading_a_little_more_is_only_said_outside_strict_mode():
    host = copies()
    host.copy_out("out", np.zeros((1, 1, 5), np.uint32), (0, 0, 1, 1), 4)
    assert "5 elements of 32 bits" in next(iter(host.machine.warnings))
    with pytest.raises(HostError, match="reach beyond 'a'"):
        host.copy_in("out", np.zeros((1, 1, 5), np.uint32), (0, 0, 1, 1), 4)
