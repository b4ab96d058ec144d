"""The generated directory: its files, its memory plan, its refusals, and that its own scripts run."""

import json
import os
import subprocess
import sys
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from pyflame_rt.backends.wse import CodeGenOptions, CSLCodeGenerator
from pyflame_rt.graph import DType, Graph
from pyflame_rt.graph.errors import InputError, MemoryLimitError, UnsupportedOperatorError
from tests.unit.backends.wse.running import check, feeds_for, graph_of, planned
from wsesim.csl.syntax.parser import parse_text
from wsesim.csl.syntax.printer import print_file

FILES = {
    "README.md", "commands_wse2.sh", "commands_wse3.sh", "layout.csl", "lib/collectives.csl", "manifest.json",
    "pe_program.csl", "placement.svg", "run.py",
}  # fmt: skip


def test_the_directory_runs_with_its_own_commands(tmp_path):
    graph = graph_of("Gemm", [(6, 5), (5, 4), (4,)], np.float16)
    options = CodeGenOptions(output_dir=tmp_path, fabric_width=2, fabric_height=2)
    result = CSLCodeGenerator().generate(graph, options, feeds=feeds_for(graph))
    assert result.success, result.error_message
    assert {os.path.relpath(f, tmp_path) for f in result.generated_files} == FILES | {"inputs.npz", "expected.npz"}
    folder = subprocess.run(
        [sys.executable, "-m", "wsesim", "env"], capture_output=True, text=True, check=True, timeout=140
    ).stdout.strip()
    path = f"{_folder(folder)}{os.pathsep}{os.environ['PATH']}"
    ran = subprocess.run(
        ["bash", "commands_wse3.sh"],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    assert "SUCCESS" in ran.stdout
    assert np.load(tmp_path / "outputs.npz")["y"].shape == (6, 4)


def _folder(text):
    """The folder in what ``wsesim env`` prints, a path or an assignment to PATH."""
    return text.split("=")[-1].strip("'\"").split(os.pathsep)[0]


def test_text_prints_back_to_itself():
    sources, _, _ = planned(graph_of("Softmax", [(5, 7)]), (2, 2), emit_comments=False)
    for name in ("layout.csl", "pe_program.csl"):
        assert print_file(parse_text(sources[name])) == sources[name]


@pytest.mark.parametrize("grid", [(1, 1), (2, 3), (70, 40)])
def test_the_picture_shows_every_element_and_its_memory(grid):
    sources, _, plan = planned(graph_of("Gemm", [(64, 48), (48, 32), (32,)]), grid)
    svg = ET.fromstring(sources["placement.svg"])
    titles = [t.text for t in svg.iter("{http://www.w3.org/2000/svg}title")]
    cells = [t for t in titles if t.startswith("PE (")]
    shown = {1: 1, 6: 6, 2800: -(-70 // 3) * -(-40 // 3)}[grid[0] * grid[1]]
    assert len(cells) == shown
    assert any(t.startswith("code, stack and what is free: ") for t in titles)
    covered = sum(int(t.rpartition("stands for ")[2].split()[0]) for t in cells if "stands for" in t)
    assert len(cells) + covered == grid[0] * grid[1]
    texts = [t.text for t in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert sum(t.startswith("phase 0: Kernel") for t in texts) == len(plan.kernels)


def test_the_picture_adds_up_to_the_memory_of_an_element():
    options = CodeGenOptions(fabric_height=2, fabric_width=3)
    sources = CSLCodeGenerator().generate_source(graph_of("Gemm", [(5, 7), (7, 3), (3,)], np.float16), options)
    titles = [t.text for t in ET.fromstring(sources["placement.svg"]).iter("{http://www.w3.org/2000/svg}title")]
    parts = {t.rpartition(": ")[0]: int(t.rpartition(": ")[2].split()[0]) for t in titles if t.endswith(" bytes")}
    memory = json.loads(sources["manifest.json"])["memory"]
    assert sum(parts.values()) == 48 * 1024
    assert parts["free"] == 48 * 1024 - memory["data_bytes"] - sum(memory[f"{n}_bytes"] for n in _REST)


_REST = ("code", "stack", "reserved")


def test_the_manifest_tells_memory_symbols_and_ids():
    sources, manifest, plan = planned(graph_of("MatMul", [(8, 8), (8, 8)]), (2, 2), products="broadcast")
    assert json.loads(sources["manifest.json"]) == manifest
    assert manifest["memory"]["data_bytes"] == plan.data_bytes == 5 * 16 * 4
    assert manifest["colors"] == {"x": [0, 1], "y": [4, 5]}
    rings = planned(graph_of("MatMul", [(8, 8), (8, 8)]), (1, 2), products="shift")[1]
    assert (rings["colors"], rings["queues"]) == ({"x": [0, 1, 2]}, {"x": [2, 4, 6]})
    assert {s["name"] for s in manifest["symbols"]} == {"m0", "m1", "m2"}


def test_five_tiles_of_42_by_42_leave_room_for_the_code_and_44_by_44_do_not():
    _, _, plan = planned(graph_of("MatMul", [(84, 84), (84, 84)]), (2, 2))
    assert plan.data_bytes == 5 * 42 * 42 * 4 <= 38 * 1024
    assert plan.fold is None
    with pytest.raises(MemoryLimitError, match=r"\(data 38\d+, code about \d+.*a PE has 49152.*smallest.*is 3 x 3"):
        planned(graph_of("MatMul", [(88, 88), (88, 88)]), (2, 2), max_passes=1)
    with pytest.raises(MemoryLimitError, match=r"needs 40500 bytes on each of 2 x 2 PEs, .*38912.*smallest.*is 3 x 3"):
        planned(graph_of("MatMul", [(90, 90), (90, 90)]), (2, 2), max_passes=1)


def test_the_smallest_square_that_fits_is_found():
    _, manifest, plan = planned(graph_of("Relu", [(300, 300)]))
    side = manifest["grid"]["rows"]
    assert manifest["grid"] == {"rows": side, "cols": side}
    assert plan.data_bytes <= 38 * 1024 < 2 * 4 * (-(-300 // (side - 1))) ** 2


def test_a_graph_too_large_for_the_wafer_is_refused():
    result = CSLCodeGenerator().generate(graph_of("Relu", [(10**6, 10**6)]), CodeGenOptions(max_passes=20))
    assert not result.success
    assert "even on 750 x 750 PEs" in result.error_message


def test_what_has_no_rule_is_named():
    with pytest.raises(UnsupportedOperatorError, match="TopK has no rule"):
        planned(graph_of("TopK", [(4, 4)], constants=[np.array([2])]), (1, 1))


def test_open_sizes_are_refused_unless_given():
    graph = Graph("open")
    graph.add_input("x", ["N", 4], DType.Float32)
    graph.add_node("n", "Relu", ["x"], ["y"])
    graph.add_output("y", ["N", 4], DType.Float32)
    with pytest.raises(InputError, match="needs every size"):
        CSLCodeGenerator().generate_source(graph)
    assert "layout.csl" in CSLCodeGenerator().generate_source(graph, shapes={"x": [3, 4]})


@pytest.mark.parametrize(
    ("name", "value"), [("target", "wse9"), ("fabric_width", -1), ("fabric_height", 10**6), ("memory_budget", 1)]
)
def test_options_are_checked(name, value):
    with pytest.raises(InputError, match=name.replace("_", ".")):
        CSLCodeGenerator().generate_source(graph_of("Relu", [(4,)]), CodeGenOptions(**{name: value}))


def test_buffers_share_memory_over_a_long_chain():
    graph = Graph("long")
    graph.add_input("x", [16, 16])
    name = "x"
    for i in range(6):
        graph.add_node(f"s{i}", "Softmax", [name], [f"p{i}"])
        name = f"p{i}"
    graph.add_output(name, [16, 16])
    plan = check(graph, (2, 2))
    assert plan.data_bytes < 5 * 8 * 8 * 4
