"""The ring of the collectives: blocks go from PE to PE, in an order in which the next one is at most two PEs away."""

import numpy as np
import pytest

from tests.unit.wsesim.running import get, put
from wsesim.csl.program.driver import compile_texts
from wsesim.fabric import load
from wsesim.host import HostSession

N = 20
LAYOUT = """
const memcpy = @import_module("<memcpy/get_params>", .{{ .width = {w}, .height = {h} }});
const line = .{{ .vertical = {vertical}, .colors = .{{ @get_color(0), @get_color(1) }}, .ring_color = @get_color(2),
  .entrypoints = .{{ @get_local_task_id(10), @get_local_task_id(11) }} }};
layout {{
  @set_rectangle({w}, {h});
  for (@range(u16, {w})) |x| {{
    for (@range(u16, {h})) |y| {{
      @set_tile_code(x, y, "pe.csl", .{{ .memcpy_params = memcpy.get_params(x), .line = line }});
    }}
  }}
  @export_name("a", [*]f32, true);
  @export_name("b", [*]f32, true);
  @export_name("run", fn(u16)void);
}}
"""
PE = """
param memcpy_params;
param line;
const sys_mod = @import_module("<memcpy/memcpy>", memcpy_params);
const mpi = @import_module("<collectives_2d/pe>", .{ .dim_params = line });
var a = @zeros([20]f32);
var b = @zeros([20]f32);
var pa: [*]f32 = &a;
var pb: [*]f32 = &b;
var left: u16 = 0;
var over: u16 = 0;
const next_id = @get_local_task_id(15);
const done_id = @get_local_task_id(16);
task done() void { sys_mod.unblock_cmd_stream(); }
task next() void {
  if (left > 0) {
    left -= 1;
    if ((left & 1) == 1) { mpi.ring_shift(@ptrcast([*]u32, &a), @ptrcast([*]u32, &b), 20, next_id); }
    else { mpi.ring_shift(@ptrcast([*]u32, &b), @ptrcast([*]u32, &a), 20, next_id); }
  } else if (over == 0) {
    over = 1;
    mpi.ring_close(next_id);
  } else {
    mpi.allreduce_fadds(pa, pb, 20, done_id);
  }
}
fn run(count: u16) void {
  mpi.init();
  left = count;
  over = 0;
  mpi.ring_open();
  @activate(next_id);
}
comptime {
  @bind_local_task(done, done_id);
  @bind_local_task(next, next_id);
  @export_symbol(pa, "a");
  @export_symbol(pb, "b");
  @export_symbol(run);
}
"""


def order(size):
    """The PEs in the order of the ring."""
    return [*range(0, size, 2), *reversed(range(1, size, 2))]


def start(axis, size, arch):
    w, h = (size, 1) if axis == "x" else (1, size)
    layout = LAYOUT.format(w=w, h=h, vertical="true" if axis == "y" else "false")
    program = compile_texts({"layout.csl": layout, "pe.csl": PE}, arch=arch, memcpy=True, channels=1, strict=True)
    host = HostSession(load(program, bounded=True, strict=True))
    host.start()
    return host


@pytest.mark.parametrize("arch", ["wse2", "wse3"])
@pytest.mark.parametrize(("axis", "size"), [("x", 2), ("y", 3), ("x", 4), ("x", 5), ("y", 6), ("x", 7), ("y", 13)])
def test_blocks_go_round_and_other_operations_follow(axis, size, arch):
    host = start(axis, size, arch)
    shape = (1, size, N) if axis == "x" else (size, 1, N)
    for turns in (2, 0, 2 * size, 4):
        given = np.random.default_rng(turns).integers(-50, 50, shape).astype(np.float32)
        put(host, "a", given)
        host.call("run", (turns,))
        rows = given.reshape(size, N)
        want = np.empty_like(rows)
        ring = order(size)
        want[ring] = np.roll(rows[ring], turns, axis=0)
        np.testing.assert_array_equal(get(host, "a", N).reshape(size, N), want)
        np.testing.assert_array_equal(get(host, "b", N).reshape(size, N), np.tile(rows.sum(axis=0), (size, 1)))
    host.stop()


@pytest.mark.parametrize("size", [2, 3, 8])
def test_no_word_goes_further_than_two_pes(size):
    host = start("x", size, "wse3")
    put(host, "a", np.zeros((1, size, N), np.float32))
    host.call("run", (2,))
    host.stop()
    reduced = (2 * (N + 1)) * (size - 1)
    assert host.machine.hops - reduced == (2 * N + 1) * (2 * size - 2)
