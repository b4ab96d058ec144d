"""The analytic model against the simulator."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from pyflame_rt.backends.wse.plan.predict import first_tile, predict_scale
from pyflame_rt.graph import Graph
from pyflame_rt.graph.errors import InputError
from wsesim.model import PredictionError, estimate

GRIDS = [(1, 1), (1, 4), (4, 1), (2, 2), (3, 5), (4, 4), (8, 8)]
BOUND = 0.03  # largest relative error of cycles that these grids may show; the largest measured one is 2.3 %


def _graph(name, ins, nodes, out):
    graph = Graph(name)
    for key, shape in ins.items():
        graph.add_input(key, shape)
    for number, (op, inputs, output, attributes) in enumerate(nodes):
        graph.add_node(f"n{number}", op, inputs, [output], attributes)
    graph.add_output(*out)
    return graph


def _product(m, k, n):
    return _graph("product", {"a": [m, k], "b": [k, n]}, [("MatMul", ["a", "b"], "y", {})], ("y", [m, n]))


CASES = {
    "product": lambda: _product(48, 48, 48),
    "odd product": lambda: _product(20, 33, 26),
    "softmax": lambda: _graph("softmax", {"a": [24, 40]}, [("Softmax", ["a"], "y", {})], ("y", [24, 40])),
    "relu": lambda: _graph("relu", {"a": [40, 24]}, [("Relu", ["a"], "y", {})], ("y", [40, 24])),
    "kept": lambda: _graph(
        "kept",
        {"a": [24, 24], "b": [24, 24]},
        [("MatMul", ["a", "b"], "p", {}), ("MatMul", ["p", "a"], "q", {}), ("Sub", ["q", "b"], "y", {})],
        ("y", [24, 24]),
    ),
    "layer": lambda: _graph(
        "layer",
        {"a": [16, 24], "b": [24, 32]},
        [("MatMul", ["a", "b"], "h", {}), ("Relu", ["h"], "r", {}), ("Softmax", ["r"], "y", {})],
        ("y", [16, 32]),
    ),
}


RINGS = ("odd product", "kept", "layer")


@pytest.mark.parametrize("target", ["wse2", "wse3"])
def test_windows_over_tiles(target):
    graph = _graph(
        "windows",
        {"a": [1, 2, 16, 16], "w": [3, 2, 3, 3]},
        [("Conv", ["a", "w"], "c", {"pads": [1, 1, 1, 1]}), ("Relu", ["c"], "r", {}),
         ("MaxPool", ["r"], "y", {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]})],
        ("y", [1, 3, 8, 8]),
    )  # fmt: skip
    report = predict_scale(graph, [(1, 1), (1, 4), (2, 2), (4, 4), (8, 2), (8, 8)], target=target)
    for grid in report.grids:
        assert (grid.collectives.get("edge", 0) > 0) == (grid.pes > 1)
        assert (grid.wavelets, grid.hops) == (grid.simulated_wavelets, grid.simulated_hops)
        assert grid.memory == grid.simulated_memory
        assert abs(grid.error) < BOUND, grid


@pytest.mark.parametrize(
    ("case", "products"), [*((case, "broadcast") for case in CASES), *((case, "shift") for case in RINGS)]
)
def test_prediction_against_the_simulator(case, products):
    grids = GRIDS if products == "broadcast" else [(1, 4), (3, 1), (2, 2), (5, 5), (8, 8)]
    report = predict_scale(CASES[case](), grids, products=products)
    assert [(g.rows, g.cols) for g in report.grids] == grids
    assert all(("shift" in g.collectives) == (products == "shift") for g in report.grids)
    for grid in report.grids:
        assert (grid.wavelets, grid.hops) == (grid.simulated_wavelets, grid.simulated_hops)
        assert grid.memory == grid.simulated_memory
        assert abs(grid.error) < BOUND, (case, grid)
    assert report.worst_error == max(abs(g.error) for g in report.grids)


def test_wse2_too():
    report = predict_scale(CASES["layer"](), [(2, 3), (4, 4), (1, 5)], target="wse2")
    assert report.worst_error < BOUND


def test_the_whole_wafer():
    report = predict_scale(_product(7500, 7500, 7500), [(750, 750)], simulate_up_to=0, products="broadcast")
    (grid,) = report.grids
    assert grid.pes == 562_500
    assert grid.simulated_cycles is None
    assert report.worst_error is None
    # 750 blocks of A along 750 rows and of B along 750 columns, each 10 x 10 words and a closing wavelet
    assert grid.wavelets == 2 * 750 * 750 * 101
    assert grid.hops == grid.wavelets * 749
    assert "not checked" in report.text()
    (round_rings,) = predict_scale(_product(7500, 7500, 7500), [(750, 750)], simulate_up_to=0).grids
    assert round_rings.cycles < grid.cycles
    # row r turns its blocks of 10 x 10 words r times before the first product, then 749 times; columns likewise
    turns = 750 * 749 + 750 * 749 // 2
    assert round_rings.wavelets == 2 * 750 * (100 * turns + 750)
    assert round_rings.hops == 2 * (2 * 750 - 2) * (100 * turns + 750)


def test_what_does_not_fit_is_left_out_with_the_reason():
    report = predict_scale(_product(256, 256, 256), [(1, 1), (8, 8)], simulate_up_to=0)
    assert list(report.skipped) == ["1 x 1"]
    assert "bytes" in report.skipped["1 x 1"]
    assert "left out" in report.text()


def test_report_as_text_json_and_chart():
    report = predict_scale(_product(8, 8, 8), [(1, 1), (2, 2), (16, 16)], simulate_up_to=4)
    assert f"largest error {100 * report.worst_error:.1f} %" in report.text()
    found = json.loads(report.json())
    assert [g["pes"] for g in found["grids"]] == [1, 4, 256]
    assert found["grids"][2]["error"] is None
    assert found["worst_error"] == report.worst_error
    assert {"hop", "ramp"} <= {c["name"] for c in found["constants"]}
    ET.fromstring(report.svg())


@pytest.mark.parametrize(
    ("grids", "options"),
    [([], {}), ([(0, 2)], {}), ([(2, 2)], {"target": "wse9"}), ([(2000, 2)], {}), ([(-1, 2)], {})],
)
def test_bad_questions(grids, options):
    with pytest.raises(InputError):
        predict_scale(_product(4, 4, 4), grids, **options)


def test_programs_outside_the_model_are_refused():
    from wsesim.csl.program.driver import compile_texts

    layout = """layout { @set_rectangle(2, 1); @set_tile_code(0, 0, "pe.csl");
      @set_color_config(0, 0, @get_color(1), .{ .routes = .{ .rx = .{ EAST }, .tx = .{ RAMP } } });
      @export_name("go", fn()void); }"""
    pe = """const iq = @get_input_queue(2);
      const sys = @import_module("<memcpy/memcpy>", .{});
      var a = @zeros([4]f32);
      const done_id = @get_local_task_id(12);
      task done() void { sys.unblock_cmd_stream(); }
      fn go() void {
        const from = @get_dsd(fabin_dsd, .{ .extent = 4, .fabric_color = @get_color(1), .input_queue = iq });
        const into = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> a[i] });
        @fmovs(into, from, .{ .async = true, .activate = done_id });
      }
      comptime { @initialize_queue(iq, .{ .color = @get_color(1) }); @bind_local_task(done, done_id);
        @export_symbol(go); }"""
    program = compile_texts({"layout.csl": layout, "pe.csl": pe}, memcpy=True, partial=True)
    with pytest.raises(PredictionError, match="library of collectives only"):
        estimate(program, ["go"])


def test_layouts_of_another_make_are_refused():
    with pytest.raises(PredictionError, match="no loop"):
        first_tile("layout { @set_rectangle(2, 2); }", 2, 2)


def test_command(tmp_path):
    import onnx
    from onnx import TensorProto, helper
    from typer.testing import CliRunner

    from pyflame_rt.cli import app

    node = helper.make_node("MatMul", ["a", "b"], ["y"])
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("a", ["N", 8]), ("b", [8, 8]))]
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 8])
    model = helper.make_model(helper.make_graph([node], "g", infos, [out]))
    onnx.save(model, tmp_path / "m.onnx")
    args = ["wafer", str(tmp_path / "m.onnx"), "-g", "2x2", "-g", "64x64", "--size", "N=8", "--simulate", "4"]
    result = CliRunner().invoke(app, [*args, "--json", "--svg", str(tmp_path / "c.svg")])
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    assert [g["rows"] for g in found["grids"]] == [2, 64]
    assert np.isfinite(found["worst_error"])
    ET.parse(tmp_path / "c.svg")
    assert "largest error" in CliRunner().invoke(app, args).output
    bad = CliRunner().invoke(app, ["wafer", str(tmp_path / "m.onnx"), "-g", "two"])
    assert isinstance(bad.exception, InputError)
