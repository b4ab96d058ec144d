"""Our collectives run on the fabric and agree with NumPy, for every root and for rows, columns and single PEs."""

import numpy as np
import pytest

from tests.unit.wsesim.running import get, put
from wsesim.csl.program.driver import compile_texts
from wsesim.fabric import load
from wsesim.host import HostSession

N = 6
LAYOUT = """
const memcpy = @import_module("<memcpy/get_params>", .{{ .width = {w}, .height = {h} }});
const c2d = @import_module("<collectives_2d/params>");
layout {{
  @set_rectangle({w}, {h});
  for (@range(u16, {w})) |x| {{
    for (@range(u16, {h})) |y| {{
      const params = c2d.get_params(x, y, .{{
        .x_colors = .{{ @get_color(0), @get_color(1) }},
        .x_entrypoints = .{{ @get_local_task_id(10), @get_local_task_id(11) }},
        .y_colors = .{{ @get_color(4), @get_color(5) }},
        .y_entrypoints = .{{ @get_local_task_id(12), @get_local_task_id(13) }},
      }});
      @set_tile_code(x, y, "pe.csl", .{{ .memcpy_params = memcpy.get_params(x), .c2d = params }});
    }}
  }}
  @export_name("a", [*]f32, true);
  @export_name("b", [*]f32, true);
  @export_name("run", fn(u16, u16)void);
}}
"""
PE = """
param memcpy_params;
param c2d;
const sys_mod = @import_module("<memcpy/memcpy>", memcpy_params);
const mpi = @import_module("<collectives_2d/pe>", .{{ .dim_params = c2d.{axis} }});
var a = @zeros([{big}]f32);
var b = @zeros([{big}]f32);
var pa: [*]f32 = &a;
var pb: [*]f32 = &b;
const done_id = @get_local_task_id(15);
task done() void {{ sys_mod.unblock_cmd_stream(); }}
fn run(what: u16, root: u16) void {{
  mpi.init();
  const ua = @ptrcast([*]u32, &a);
  const ub = @ptrcast([*]u32, &b);
  if (what == 0) {{ mpi.broadcast(root, ua, {n}, done_id); }}
  else if (what == 1) {{ mpi.scatter(root, ua, ub, {n}, done_id); }}
  else if (what == 2) {{ mpi.gather(root, ua, ub, {n}, done_id); }}
  else if (what == 3) {{ mpi.reduce_fadds(root, pa, pb, {n}, done_id); }}
  else if (what == 4) {{ mpi.reduce_fmaxs(root, pa, pb, {n}, done_id); }}
  else if (what == 5) {{ mpi.allreduce_fadds(pa, pb, {n}, done_id); }}
  else {{ mpi.allreduce_fmaxs(pa, pb, {n}, done_id); }}
}}
comptime {{
  @bind_local_task(done, done_id);
  @export_symbol(pa, "a");
  @export_symbol(pb, "b");
  @export_symbol(run);
}}
"""


def start(axis, size, arch, **options):
    w, h = (size, 1) if axis == "x" else (1, size)
    big = N * size
    texts = {"layout.csl": LAYOUT.format(w=w, h=h), "pe.csl": PE.format(axis=axis, big=big, n=N)}
    host = HostSession(load(compile_texts(texts, arch=arch, memcpy=True, channels=1), **options))
    host.start()
    return host


def line(array, axis):
    return array[0] if axis == "x" else array[:, 0]


def data_for(axis, size, seed):
    shape = (1, size, N * size) if axis == "x" else (size, 1, N * size)
    return np.random.default_rng(seed).integers(-50, 50, shape).astype(np.float32)


def expected(what, root, a, size):
    """What ``a`` or ``b`` must hold on every PE (None: not looked at)."""
    mine = a[:, :N]
    if what == 0:
        return [mine[root]] * size
    if what == 1:
        return [a[root, i * N : (i + 1) * N] for i in range(size)]
    if what == 2:
        return [mine.reshape(-1) if i == root else None for i in range(size)]
    total = mine.sum(axis=0) if what in (3, 5) else mine.max(axis=0)
    return [total if what >= 5 or i == root else None for i in range(size)]


@pytest.mark.parametrize("arch", ["wse2", "wse3"])
@pytest.mark.parametrize("axis", ["x", "y"])
@pytest.mark.parametrize("size", [1, 2, 5])
def test_every_operation_from_every_root_one_after_the_other(arch, axis, size):
    host = start(axis, size, arch, strict=True)
    for what in range(7):
        for root in range(size if what < 5 else 1):
            given = data_for(axis, size, 10 * what + root)
            put(host, "a", given)
            host.call("run", (what, root))
            got = line(get(host, "a" if what == 0 else "b", N * size), axis)
            for pe, want in enumerate(expected(what, root, line(given, axis), size)):
                if want is not None:
                    np.testing.assert_array_equal(got[pe, : len(want)], want, err_msg=f"{what=} {root=} {pe=}")
    host.stop()


def test_a_broadcast_costs_one_wavelet_a_word_plus_the_closing_one():
    host = start("x", 4, "wse3")
    put(host, "a", data_for("x", 4, 0))
    host.call("run", (0, 0))
    host.stop()
    assert host.machine.wavelets == N + 1
    assert host.machine.hops == 3 * (N + 1)


def test_pes_share_one_compilation():
    host = start("x", 5, "wse3")
    assert len(host.machine.program.programs) == 1
