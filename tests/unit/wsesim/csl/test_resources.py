"""Resources that clash: queues, microthreads, registers, operands, architectures. Each has its named diagnostic."""

import pytest

from tests.unit.wsesim.csl.support import codes, pe

PORTS = """
const c = @get_color(1);
const e = @get_color(2);
const i2 = @get_input_queue(2);
const i3 = @get_input_queue(3);
const o2 = @get_output_queue(2);
const o3 = @get_output_queue(3);
var a: [4]f32;
const into = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> a[i] });
const from = @get_dsd(fabin_dsd, .{ .extent = 4, .fabric_color = c, .input_queue = i2 });
const other = @get_dsd(fabin_dsd, .{ .extent = 4, .fabric_color = e, .input_queue = i3 });
const out = @get_dsd(fabout_dsd, .{ .extent = 4, .fabric_color = c, .output_queue = o2 });
const away = @get_dsd(fabout_dsd, .{ .extent = 4, .fabric_color = e, .output_queue = o3 });
const main_id = @get_local_task_id(9);
task main() void { %s }
comptime {
  @bind_local_task(main, main_id);
  @initialize_queue(i2, .{ .color = c });
  @initialize_queue(i3, .{ .color = e });
  %s
}
"""
OUTPUTS = "@initialize_queue(o2, .{ .color = c }); @initialize_queue(o3, .{ .color = e });"
SAME = "const u = @get_ut_id(4); @fmovs(out, into, .{ .async = true, .ut_id = u });"
CASES = [
    ("wse3", SAME + "@fmovs(away, into, .{ .async = true, .ut_id = u });", OUTPUTS, "microthread-clash"),
    ("wse3", "@fmovs(into, from, .{ .async = true }); @fmovs(into, from, .{ .async = true });", OUTPUTS, "queue-clash"),
    ("wse3", "@fadds(into, from, other, .{ .async = true });", OUTPUTS, "two-fabric-inputs"),
    ("wse3", "@fmovs(out, into);", OUTPUTS.replace("color = c", "color = e"), "queue-color-mismatch"),
    ("wse3", "@fmovs(out, into);", OUTPUTS + "@initialize_queue(@get_input_queue(5), .{ .color = c });", "queue-clash"),
    ("wse3", "@fmovs(out, into, .{ .async = true, .activate = main_id, .unblock = main_id });", OUTPUTS,
     "conflicting-options"),
    ("wse3", "@fmovs(@get_dsr(dsr_dest, 1), into);",
     OUTPUTS + "@load_to_dsr(@get_dsr(dsr_dest, 1), into); @load_to_dsr(@get_dsr(dsr_dest, 1), out);", "dsr-clash"),
    ("wse2", "@fmovs(into, from, .{ .async = true, .ut_id = @get_ut_id(3) });", "", "wrong-arch"),
]  # fmt: skip


@pytest.mark.parametrize(("arch", "body", "setup", "code"), CASES, ids=[f"{c[3]}-{i}" for i, c in enumerate(CASES)])
def test_a_clash_is_named(arch, body, setup, code):
    assert code in codes(PORTS % (body, setup), strict=True, arch=arch)


def test_the_program_without_a_clash_is_accepted():
    body = "@fmovs(into, from, .{ .async = true }); @fmovs(away, into, .{ .async = true });"
    assert {q.id for q in pe(PORTS % (body, OUTPUTS), strict=True).queues} == {2, 3}
