"""The commands themselves: diagnostics of ``cslc``, deadlocks and reports of ``cs_python``."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

import wsesim
from wsesim.cli import main

LAYOUT = """layout {
  @set_rectangle(2, 1);
  @set_tile_code(0, 0, "pe.csl");
  @set_tile_code(1, 0, "pe.csl");
  const c = @get_color(3);
  @set_color_config(0, 0, c, .{ .routes = .{ .rx = .{ %s }, .tx = .{ %s } } });
  @set_color_config(1, 0, c, .{ .routes = .{ .rx = .{ WEST }, .tx = .{ %s } } });
  @export_name("go", fn()void);
}"""
ROUTES = ("RAMP", "EAST", "RAMP")
PE = """const c = @get_color(3);
const iq = @get_input_queue(2);
const oq = @get_output_queue(3);
const sys_mod = @import_module("<memcpy/memcpy>", .{});
var a = @zeros([%d]f32);
const into = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> a[i] });
const incoming = @get_dsd(fabin_dsd, .{ .extent = 4, .fabric_color = c, .input_queue = iq });
const outgoing = @get_dsd(fabout_dsd, .{ .extent = 4, .fabric_color = c, .output_queue = oq });
const done_id = @get_local_task_id(9);
task done() void { sys_mod.unblock_cmd_stream(); }
fn go() void {
  @fmovs(into, incoming, .{ .async = true, .activate = done_id });
  %s
}
comptime {
  @bind_local_task(done, done_id);
  @initialize_queue(iq, .{ .color = c });
  %s
  @export_symbol(go);
}"""
QUEUE = "@initialize_queue(oq, .{ .color = c });"
SEND = "@fmovs(outgoing, into, .{ .async = true });"
RUN = """import sys
from cerebras.sdk.runtime.sdkruntimepybind import SdkRuntime
runner = SdkRuntime("out", cmaddr=None)
runner.load()
runner.run()
runner.launch("go", nonblock=False)
runner.stop()
print("SUCCESS")
"""
NEGATIVE = {
    "memory-overflow": (LAYOUT % ROUTES, PE % (13000, SEND, QUEUE)),
    "color-clash": (
        LAYOUT.replace(
            "  @export_name", "  @set_color_config(0, 0, c, .{ .routes = .{ .rx = .{ EAST } } });\n  @export_name"
        )
        % ROUTES,
        PE % (4, SEND, QUEUE),
    ),
    "missing-queue-init": (LAYOUT % ROUTES, PE % (4, SEND, "")),
    "routing-loop": (LAYOUT % ("RAMP, EAST", "EAST", "WEST"), PE % (4, SEND, QUEUE)),
}


def _write(folder: Path, layout: str, pe: str) -> None:
    (folder / "layout.csl").write_text(layout)
    (folder / "pe.csl").write_text(pe)
    (folder / "run.py").write_text(RUN)


def _cslc(folder: Path, *flags: str) -> int:
    return main(["cslc", "--arch=wse3", str(folder / "layout.csl"), "--memcpy", "-o", str(folder / "out"), *flags])


def _cs_python(folder: Path) -> subprocess.CompletedProcess[str]:
    source = str(Path(wsesim.__file__).parents[1])
    path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH", "")]))
    command = [sys.executable, "-m", "wsesim", "cs_python", "run.py"]
    return subprocess.run(
        command, cwd=folder, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=250
    )


@pytest.mark.parametrize("code", NEGATIVE)
@pytest.mark.parametrize("flags", [(), ("--strict",)], ids=["plain", "strict"])
def test_cslc_names_what_is_wrong(tmp_path, capsys, code, flags):
    _write(tmp_path, *NEGATIVE[code])
    assert _cslc(tmp_path, *flags) == 1
    said = capsys.readouterr().err
    assert f"[{code}]" in said
    assert ".csl:" in said
    assert not (tmp_path / "out" / "program.json").exists()


def test_cs_python_reports_a_deadlock_and_draws_it(tmp_path):
    _write(tmp_path, LAYOUT % ROUTES, PE % (4, "", QUEUE))
    assert _cslc(tmp_path, "--strict") == 0
    done = _cs_python(tmp_path)
    assert done.returncode == 1
    assert "SUCCESS" not in done.stdout
    assert "[deadlock]" in done.stderr
    assert "waits for wavelets on colour 3" in done.stderr
    assert "who waits for whom is drawn in out/deadlock.svg" in done.stderr
    assert done.stderr.startswith("run.py:7: error: "), done.stderr
    assert "Traceback" not in done.stderr
    drawing = ET.parse(tmp_path / "out" / "deadlock.svg").getroot()
    titles = [e.text for e in drawing.iter("{http://www.w3.org/2000/svg}title")]
    assert "(1, 0) waits for (0, 0): wavelets on colour 3" in titles


SENDER = PE % (4, SEND, QUEUE)
SENDER = SENDER.replace("@fmovs(into, incoming, .{ .async = true, .activate = done_id });", "@activate(done_id);")


@pytest.fixture
def reported(tmp_path):
    """A run with its reports: the first PE sends, the second receives."""
    layout = (LAYOUT % ROUTES).replace('@set_tile_code(0, 0, "pe.csl")', '@set_tile_code(0, 0, "send.csl")')
    _write(tmp_path, layout, PE % (4, "", QUEUE))
    (tmp_path / "send.csl").write_text(SENDER)
    assert _cslc(tmp_path) == 0
    done = _cs_python(tmp_path)
    assert done.stdout == "SUCCESS\n", done.stderr
    return tmp_path / "out"


def test_reports_of_a_run(reported):
    found = json.loads((reported / "report.json").read_text())
    assert (found["width"], found["height"]) == (2, 1)
    assert found["wavelets"] == found["hops"] == 4
    assert found["busiest_link"] == {"pe": [0, 0], "side": "east", "words": 4}
    assert [p["program"] for p in found["pes"]] == ["send.csl", "pe.csl"]
    assert {t[4] for t in found["timeline"]} == {"go", "done"}
    assert {c["name"] for c in found["constants"]} >= {"hop", "ramp"}
    assert "4 words, PE (0, 0) to the east" in (reported / "report.txt").read_text()
    assert not (reported / "deadlock.svg").exists()


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs a browser")
def test_a_browser_draws_the_report(reported, tmp_path):
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile"]
    page = (reported / "report.html").resolve().as_uri()
    done = subprocess.run([*command, "--dump-dom", page], capture_output=True, text=True, timeout=250)
    fabric = done.stdout.split('id="map"')[1].split("</svg>")[0]
    assert fabric.count("<rect") == 2
    assert fabric.count("<line") == 1
    assert "(0, 0) to the east: 4 words" in fabric
    timeline = done.stdout.split('id="time"')[1].split("</svg>")[0]
    assert timeline.count("<rect") == 4
    assert "done on (1, 0)" in timeline


def test_a_strict_program_runs_strictly(tmp_path):
    twice = "@fmovs(into, incoming, .{ .async = true });"
    layout = (LAYOUT % ROUTES).replace('@set_tile_code(0, 0, "pe.csl")', '@set_tile_code(0, 0, "send.csl")')
    _write(
        tmp_path, layout, (PE % (4, "again();", QUEUE)).replace("fn go()", f"fn again() void {{ {twice} }}\nfn go()")
    )
    (tmp_path / "send.csl").write_text(SENDER)
    assert _cslc(tmp_path, "--strict") == 0
    done = _cs_python(tmp_path)
    assert done.returncode == 1
    assert "[resource-busy]" in done.stderr


# --- what a run leaves behind -----------------------------------------------------------------------------------------

PRINT = 'const sp = @import_module("<simprint>"); fn go() void { sp.print_string("began\\n"); %s }'
ALONE = 'const sys_mod = @import_module("<memcpy/memcpy>", .{}); %s\ncomptime { @export_symbol(go); }\n'
ONE = """layout {
  @set_rectangle(1, 1);
  @set_tile_code(0, 0, "pe.csl");
  @export_name("go", fn()void);
}"""


def test_the_log_is_there_when_a_program_stands_still(tmp_path):
    _write(tmp_path, ONE, ALONE % (PRINT % ""))
    assert _cslc(tmp_path) == 0
    done = _cs_python(tmp_path)
    assert "[deadlock]" in done.stderr
    lines = (tmp_path / "sim.log").read_text().splitlines()
    assert [line.split(" ", 1)[1] for line in lines][:2] == ["host: call of go", "began"]
    assert all(line.startswith("@") and line.split(" ")[0][1:].isdigit() for line in lines)


def test_a_program_can_be_read_while_it_runs(tmp_path):
    """Every line is in the file as soon as it is printed: the program ends itself with one that it never gets to."""
    _write(tmp_path, ONE, ALONE % (PRINT % "var z: u16 = 0; z = 1 / z;"))
    assert _cslc(tmp_path) == 0
    done = _cs_python(tmp_path)
    assert "[program-fault]" in done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / "sim.log").read_text().splitlines()[-1].endswith(" began")


def test_an_endless_program_is_stopped(tmp_path, monkeypatch):
    monkeypatch.setenv("WSESIM_MAX_CYCLES", "400000")
    _write(tmp_path, ONE, ALONE % "fn go() void { while (true) {} }")
    assert _cslc(tmp_path) == 0
    done = _cs_python(tmp_path)
    assert "[endless]" in done.stderr
    assert "task 'go'" in done.stderr


@pytest.mark.parametrize("flags", [(), ("--strict",)], ids=["plain", "strict"])
def test_wavelets_that_nobody_read_are_named(tmp_path, flags):
    """The first PE sends four, the second takes none."""
    layout = (LAYOUT % ROUTES).replace('@set_tile_code(0, 0, "pe.csl")', '@set_tile_code(0, 0, "send.csl")')
    receiver = (PE % (4, "@activate(done_id);", QUEUE)).replace(
        "@fmovs(into, incoming, .{ .async = true, .activate = done_id });", ""
    )
    _write(tmp_path, layout, receiver)
    (tmp_path / "send.csl").write_text(SENDER)
    assert _cslc(tmp_path, *flags) == 0
    done = _cs_python(tmp_path)
    assert "PE (1, 0): 4 wavelets on colour 3 wait, nobody reads them" in done.stderr
    assert done.returncode == (1 if flags else 0)
    assert ("[unread-wavelets]" in done.stderr) == bool(flags)
    assert ("SUCCESS" in done.stdout) == (not flags)


SHIFTS = """import numpy as np
from beside import later
words = np.array([1, 2, 3], np.uint16)
total = words[0] + (words[1] << 16) + (words[2] << 32)
total2 = words[2]
total2 <<= 32
by_ufunc, by_product = np.left_shift(words[1], 16), words[2] * 65536
by_product *= 65536
print(int(total), int(total2), later(words), (words << 15).dtype, 1 << 40, {1: 1}[1])
print(int(by_ufunc), int(by_product), (words * 2).dtype, [1] * 2 == [1, 1], 2.5 * words[1])
class Timer:
    def ticks(self, word):
        return int((word << 16) + word * 65536 + np.left_shift(word, 16))
print(Timer().ticks(words[0]))
def grown(array, listed):
    array *= 2
    array <<= 1
    listed *= 2
kept, listed = np.array([1, 2], np.uint16), [1]
grown(kept, listed)
print(kept.tolist() == [4, 8], listed == [1, 1])
"""


def test_host_scripts_of_numpy_1_put_timestamps_together(tmp_path):
    (tmp_path / "run.py").write_text(SHIFTS)
    (tmp_path / "beside.py").write_text("def later(w):\n    return int(w[1] << 17)\n")
    done = _cs_python(tmp_path)
    assert done.stdout.split() == [
        str(1 + (2 << 16) + (3 << 32)),
        str(3 << 32),
        str(2 << 17),
        "uint16",
        str(1 << 40),
        "1",
        str(2 << 16),
        str(3 << 32),
        "uint16",
        "True",
        "5.0",
        str(3 << 16),
        "True",
        "True",
    ]
    assert not list(tmp_path.rglob("*.pyc"))


def test_the_scripts_own_errors_keep_their_traceback(tmp_path):
    (tmp_path / "run.py").write_text("def f():\n    raise KeyError('mine')\nf()\n")
    done = _cs_python(tmp_path)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert 'run.py", line 2, in f' in done.stderr
