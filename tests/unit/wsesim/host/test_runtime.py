"""The SDK's host interface, in this process and through the commands."""

import json
import subprocess
import sys

import numpy as np
import pytest

from wsesim.cli import command_folder, main
from wsesim.fabric.errors import ColorClash, HostError
from wsesim.host.geometry import IntRectangle, IntVector
from wsesim.host.sdklayout import (
    Color,
    Edge,
    Route,
    RoutingPosition,
    SdkLayout,
    SdkTarget,
    SimfabConfig,
    get_platform,
)
from wsesim.host.sdkruntime import MemcpyDataType, MemcpyOrder, SdkRuntime

LAYOUT = """
param w: u16;
param h: u16;
param in_id: u16;
param out_id: u16;
const H2D: color = @get_color(in_id);
const D2H: color = @get_color(out_id);
const memcpy = @import_module("<memcpy/get_params>", .{
  .width = w, .height = h, .MEMCPYH2D_1 = H2D, .MEMCPYD2H_1 = D2H });
layout {
  @set_rectangle(w, h);
  for (@range(u16, w)) |x| {
    for (@range(u16, h)) |y| { @set_tile_code(x, y, "pe.csl", .{ .memcpy_params = memcpy.get_params(x) }); }
  }
  @export_name("v", [*]f32, true);
  @export_name("half", [*]f16, true);
  @export_name("scale", fn(f32, i16)void);
}
"""
PE = """
param memcpy_params;
const sys_mod = @import_module("<memcpy/memcpy>", memcpy_params);
var v = @zeros([4]f32);
var half = @zeros([4]f16);
var pv: [*]f32 = &v;
var ph: [*]f16 = &half;
var count: u16 = 0;
const iq = @get_input_queue(2);
const oq = @get_output_queue(2);
const id = if (@is_arch("wse3")) @get_data_task_id(iq) else @get_data_task_id(sys_mod.MEMCPYH2D_1);
const out = @get_dsd(fabout_dsd, .{ .extent = 1, .fabric_color = sys_mod.MEMCPYD2H_1, .output_queue = oq });
task got(x: u32) void { count += 1; @mov32(out, x + count); }
fn scale(by: f32, add: i16) void {
  for (@range(i16, 4)) |i| { v[i] = v[i] * by + @as(f32, add); half[i] = @as(f16, v[i]); }
  sys_mod.unblock_cmd_stream();
}
comptime {
  @bind_data_task(got, id);
  if (@is_arch("wse3")) {
    @initialize_queue(iq, .{ .color = sys_mod.MEMCPYH2D_1 });
    @initialize_queue(oq, .{ .color = sys_mod.MEMCPYD2H_1 });
  }
  @export_symbol(pv, "v");
  @export_symbol(ph, "half");
  @export_symbol(scale);
}
"""
BIT32, BIT16 = MemcpyDataType.MEMCPY_32BIT, MemcpyDataType.MEMCPY_16BIT
ROW, COL = MemcpyOrder.ROW_MAJOR, MemcpyOrder.COL_MAJOR


@pytest.fixture(params=["wse2", "wse3"])
def folder(request, tmp_path):
    (tmp_path / "layout.csl").write_text(LAYOUT)
    (tmp_path / "pe.csl").write_text(PE)
    out = tmp_path / "out"
    params = "--params=w:3,h:2,in_id:4,out_id:5"
    argv = ["cslc", str(tmp_path / "layout.csl"), f"--arch={request.param}", "--fabric-dims=10,4", params]
    assert main([*argv, "--fabric-offsets=4,1", "--memcpy", "--channels=1", "-o", str(out)]) == 0
    return out


def started(folder, **options):
    runner = SdkRuntime(folder, **options)
    runner.load()
    runner.run()
    return runner


@pytest.mark.parametrize("order", [ROW, COL])
def test_copies_go_both_ways_in_both_orders(folder, order):
    runner = started(folder)
    v = runner.get_id("v")
    cube = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    flat = cube.ravel() if order is ROW else cube.ravel(order="F")
    runner.memcpy_h2d(v, flat, 0, 0, 3, 2, 4, streaming=False, data_type=BIT32, order=order, nonblock=True)
    runner.launch("scale", np.float32(2.0), np.int16(-1), nonblock=False)
    back = np.zeros(24, np.float32)
    runner.memcpy_d2h(back, v, 0, 0, 3, 2, 4, streaming=False, data_type=BIT32, order=order, nonblock=False)
    np.testing.assert_array_equal(back, flat * 2 - 1)
    halves = np.zeros(4, np.uint32)
    runner.memcpy_d2h(
        halves, runner.get_id("half"), 2, 1, 1, 1, 4, streaming=False, data_type=BIT16, order=ROW, nonblock=False
    )
    np.testing.assert_array_equal(halves.astype(np.uint16).view(np.float16), cube[1, 2] * 2 - 1)
    runner.stop()
    report = json.loads((folder / "report.json").read_text())
    assert report["label"].startswith("cycle-approximate, uncalibrated")
    assert {p["tasks"] for p in report["pes"]} == {1}
    assert json.loads((folder / "out.json").read_text())["params"]["in_id"] == "4"
    assert "<svg" in (folder / "report.html").read_text()


def test_broadcasts_along_rows_and_columns(folder):
    runner = started(folder)
    v = runner.get_id("v")
    options = {"streaming": False, "data_type": BIT32, "order": ROW, "nonblock": False}
    back = np.zeros((2, 3, 4), np.float32)
    rows = np.arange(8, dtype=np.float32)
    runner.memcpy_h2d_rowbcast(v, rows, 0, 0, 3, 2, 4, **options)
    runner.memcpy_d2h(back.reshape(-1), v, 0, 0, 3, 2, 4, **options)
    np.testing.assert_array_equal(back, np.repeat(rows.reshape(2, 1, 4), 3, axis=1))
    columns = np.arange(12, dtype=np.float32)
    runner.memcpy_h2d_colbcast(v, columns, 0, 0, 3, 2, 4, **options)
    runner.memcpy_d2h(back.reshape(-1), v, 0, 0, 3, 2, 4, **options)
    np.testing.assert_array_equal(back, np.repeat(columns.reshape(1, 3, 4), 2, axis=0))
    runner.stop()


def test_streams_pass_through_tasks(folder):
    runner = started(folder)
    words = np.array([10, 20, 30, 40], np.uint32)
    result = np.zeros(4, np.uint32)
    task = runner.memcpy_d2h(result, 5, 1, 0, 2, 1, 2, streaming=True, data_type=BIT32, order=ROW, nonblock=True)
    assert not runner.is_task_done(task)
    runner.memcpy_h2d(4, words, 1, 0, 2, 1, 2, streaming=True, data_type=BIT32, order=ROW, nonblock=True)
    runner.task_wait(task)
    assert result.tolist() == [11, 22, 31, 42]
    runner.stop()


@pytest.mark.parametrize(
    ("what", "match"),
    [
        (lambda r: r.get_id("w"), "exports no name 'w'"),
        (lambda r: r.memcpy_h2d(0, np.zeros(5, np.float32), 0, 0, 1, 1, 4), "need 4 elements, not 5"),
        (lambda r: r.memcpy_h2d(0, np.zeros(4, np.float64), 0, 0, 1, 1, 4), "32-bit elements, not float64"),
        (lambda r: r.launch("scale", 1.0), "takes 2 arguments"),
        (lambda r: r.launch("scale", 1.0, 1 << 20), "does not fit"),
        (lambda r: r.memcpy_d2h(np.zeros(4, np.float32), 0, 9, 9, 1, 1, 4), "not inside"),
    ],
)
def test_wrong_requests_are_explained(folder, what, match):
    with pytest.raises(HostError, match=match):
        what(started(folder))


def test_a_system_cannot_be_reached(folder):
    with pytest.raises(HostError, match="simulator"):
        SdkRuntime(folder, cmaddr="1.2.3.4:9000")


def test_the_commands_run_a_host_program_and_hide_nothing_else(folder):
    script = folder.parent / "run.py"
    script.write_text(
        "import sys\n"
        "from cerebras.sdk.runtime.sdkruntimepybind import SdkRuntime\n"
        "from cerebras.sdk.debug.debug_util import debug_util\n"
        "from cerebras.sdk.sdk_utils import memcpy_view\n"
        "runner = SdkRuntime(sys.argv[1], cmaddr=None)\n"
        "runner.load(); runner.run(); runner.launch('scale', 1.0, 3, nonblock=False); runner.stop()\n"
        "print(debug_util(sys.argv[1]).get_symbol(4, 1, 'v', 'float32').tolist())\n"
    )
    bin_ = command_folder()
    done = subprocess.run([bin_ / "cs_python", script, folder], capture_output=True, text=True, timeout=140)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[3.0, 3.0, 3.0, 3.0]\n", "")
    plain = subprocess.run([sys.executable, "-c", "import cerebras"], capture_output=True, text=True, timeout=140)
    assert "ModuleNotFoundError" in plain.stderr


def test_compile_errors_are_shown_and_counted(tmp_path, capsys):
    (tmp_path / "layout.csl").write_text('layout { @set_rectangle(1, 1); @set_tile_code(0, 0, "nowhere.csl"); }')
    assert main(["cslc", str(tmp_path / "layout.csl"), "-o", str(tmp_path / "out")]) == 1
    assert "nowhere.csl" in capsys.readouterr().err


# --- layouts made from Python -------------------------------------------------------------------------------------

ADD = """
param n: u16;
param x: color;
param y: color;
const iq = @get_input_queue(0);
const oq = @get_output_queue(0);
export var bias: [4]u32;
const b = @get_dsd(mem1d_dsd, .{ .base_address = &bias, .extent = 4 });
const i = @get_dsd(fabin_dsd, .{ .extent = n, .fabric_color = x, .input_queue = iq });
const o = @get_dsd(fabout_dsd, .{ .extent = n, .fabric_color = y, .output_queue = oq });
export var kept: [4]u32;
const k = @get_dsd(mem1d_dsd, .{ .base_address = &kept, .extent = 4 });
const id = @get_local_task_id(8);
task t() void { @mov32(k, i); for (@range(u16, 4)) |j| { kept[j] += bias[j]; } @mov32(o, k, .{ .async = true }); }
comptime {
  @bind_local_task(t, id);
  @activate(id);
  @initialize_queue(iq, .{ .color = x });
  if (@is_arch("wse3")) { @initialize_queue(oq, .{ .color = y }); }
}
"""


def stage(layout, source, name, bias):
    region = layout.create_code_region(str(source), name, 1, 1)
    x, y = region.color("x"), region.color("y")
    for given in (x, y):
        region.set_param_all(given)
    region.set_param_all("n", 4)
    region.set_symbol_all("bias", np.full(4, bias, np.uint32), 4, 1)
    port_in = region.create_input_port(x, Edge.LEFT, [RoutingPosition().set_output([Route.RAMP])], 4)
    port_out = region.create_output_port(y, Edge.RIGHT, [RoutingPosition().set_input([Route.RAMP])], 4)
    return region, port_in, port_out


@pytest.mark.parametrize("target", list(SdkTarget))
def test_regions_are_placed_connected_and_fed(tmp_path, target):
    source = tmp_path / "add.csl"
    source.write_text(ADD)
    platform = get_platform(None, SimfabConfig(dump_core=True), target)
    layout = SdkLayout(platform)
    first, in_port, between_out = stage(layout, source, "first", 100)
    second, between_in, out_port = stage(layout, source, "second", 1000)
    first.place(1, 1)
    second.place(4, 3)
    layout.connect(between_out, between_in)
    feed, drain = layout.create_input_stream(in_port), layout.create_output_stream(out_port)
    runtime = SdkRuntime(layout.compile(str(tmp_path / "out")), platform, memcpy_required=False)
    runtime.load()
    runtime.run()
    data, result = np.arange(4, dtype=np.uint32), np.zeros(4, np.uint32)
    runtime.send(feed, data, nonblock=True)
    runtime.receive(drain, result, 4, nonblock=True)
    runtime.stop()
    with np.load(tmp_path / "out" / "corefile.cs1") as core:
        assert core["memory"].any()
    assert result.tolist() == [1100, 1101, 1102, 1103]
    assert runtime.read_symbol(1, 1, "kept", dtype="uint32").tolist() == [100, 101, 102, 103]
    assert runtime.session.machine.hops == 5 * 4


def test_layout_mistakes_are_named(tmp_path):
    layout = SdkLayout(SdkTarget.WSE3)
    region = layout.create_code_region(str(tmp_path / "x.csl"), "r", 2, 1)
    with pytest.raises(HostError, match="already"):
        layout.create_code_region("x.csl", "r", 1, 1)
    with pytest.raises(HostError, match="outside"):
        region.set_param(IntVector(2, 0), "a", 1)
    with pytest.raises(HostError, match="must not name inputs"):
        region.create_input_port(Color("c"), Edge.LEFT, [RoutingPosition().set_input([Route.WEST])], 1)
    with pytest.raises(HostError, match="not a routable colour"):
        Color("c", 24)
    assert [(p.x, p.y) for p in IntRectangle(IntVector(0, 0), IntVector(2, 1)).points()] == [(0, 0), (1, 0)]
    tx = region.create_output_port(Color("a", 1), Edge.RIGHT, [RoutingPosition().set_input([Route.RAMP])], 1)
    rx = region.create_input_port(Color("b", 2), Edge.LEFT, [RoutingPosition().set_output([Route.RAMP])], 1)
    layout.connect(tx, rx)
    with pytest.raises(ColorClash, match="different colours"):
        layout.compile("out")
