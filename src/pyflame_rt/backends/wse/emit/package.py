"""The directory of a program: CSL, a host program, commands, a manifest and a page that explains them."""

from __future__ import annotations

import inspect
import json
from typing import TYPE_CHECKING, Any

from pyflame_rt._version import __version__
from pyflame_rt.backends.wse.emit import hostrun
from pyflame_rt.backends.wse.emit.pe_program import IDS, describe, emit
from pyflame_rt.backends.wse.plan.picture import picture

if TYPE_CHECKING:
    from pyflame_rt.backends.wse.emit.pe_program import WaferProgram
    from pyflame_rt.backends.wse.options import CodeGenOptions
    from pyflame_rt.backends.wse.plan.kernels import PeBuffer, WaferPlan

__all__ = ["NUMPY", "manifest_of", "package"]

NUMPY = {"f32": "float32", "f16": "float16", "u16": "uint16", "i16": "int16", "i32": "int32", "u32": "uint32"}
FORMAT = 1
LABEL = "cycle-approximate, uncalibrated; not checked with cslc"


def package(plan: WaferPlan, options: CodeGenOptions) -> tuple[dict[str, str], dict[str, Any]]:
    """Text of every file by name, and the manifest."""
    program = emit(plan, options)
    manifest = manifest_of(plan, program, options)
    sources = dict(program.files)
    sources["run.py"] = _run_py(options)
    for arch in ("wse2", "wse3"):
        sources[f"commands_{arch}.sh"] = _commands(arch, plan)
    sources["manifest.json"] = json.dumps(manifest, indent=1) + "\n"
    sources["README.md"] = _readme(plan, manifest)
    sources["placement.svg"] = picture(plan)
    return sources, manifest


def manifest_of(plan: WaferPlan, program: WaferProgram, options: CodeGenOptions) -> dict[str, Any]:
    """What host and reader need to know about a program."""
    used = dict.fromkeys(b for phase in plan.phases for move in phase.moves for b in (move.target, *move.reads))
    used.update(dict.fromkeys(b for output in plan.outputs for b in output.reads))
    tasks: dict[str, Any] = IDS["tasks"]
    return {
        "format": FORMAT,
        "generator": f"pyflame_rt {__version__}",
        "target": options.target,
        "dialect": "CSL for SDK 1.4 and 2.10",
        "note": LABEL,
        "options": {
            "optimize": options.optimize,
            "products": options.products,
            "generate_debug_info": options.generate_debug_info,
            "emit_comments": options.emit_comments,
        },
        "grid": {"rows": plan.grid.rows, "cols": plan.grid.cols},
        "memory": {
            "data_bytes": plan.data_bytes,
            "budget_bytes": options.memory_budget,
            **_counted(plan),
            "arrays": {n: {"dtype": d, "elements": c} for n, (d, c) in {**plan.slots, **plan.scratch}.items()},
        },
        "fold": None if plan.fold is None else plan.fold.as_data(),
        "colors": {a: _ids("colors", "color", a, program) for a in program.axes},
        "queues": {a: _ids("queues", "queue", a, program) for a in program.axes},
        "tasks": {name: ids for name, ids in tasks.items() if name in program.axes or len(name) > 1},
        "symbols": [{"name": name, "type": f"[*]{dtype}"} for name, dtype in program.exports],
        "stages": program.stages,
        "inputs": {n: {"dtype": d, "shape": list(s)} for n, (d, s) in plan.inputs.items()},
        "constants": {n: {"dtype": str(a.dtype), "shape": list(a.shape)} for n, a in plan.constants.items()},
        "buffers": {b.name: _buffer(b) for b in used},
        "phases": [
            {
                "moves": [{"target": m.target.name, "source": m.source} for m in phase.moves],
                "kernels": [{"node": k.label, "what": describe(i, k)} for i, k in enumerate(phase.kernels)],
            }
            for phase in plan.phases
        ],
        "outputs": [
            {"name": o.name, "source": o.source, "dtype": o.dtype, "shape": list(o.shape)} for o in plan.outputs
        ],
    }


def _ids(kind: str, ring: str, axis: str, program: WaferProgram) -> list[int]:
    """Colours or queues of an axis, with that of its ring where there is one."""
    ids: dict[str, Any] = IDS
    return [*ids[kind][axis], *([ids["rings"][axis][ring]] if axis in program.rings else [])]


def _counted(plan: WaferPlan) -> dict[str, int]:
    """Code, stack and reserve, where they were counted."""
    found = plan.footprint
    if found is None:
        return {}
    names = {"code_bytes": found.code, "stack_bytes": found.stack, "reserved_bytes": found.reserve}
    return {**names, "total_bytes": found.total}


def _buffer(buffer: PeBuffer) -> dict[str, Any]:
    return {
        "symbol": buffer.slot,
        "value": buffer.value,
        "dtype": NUMPY[buffer.dtype],
        "shape": list(buffer.tiling.shape),
        "axes": list(buffer.tiling.axes),
        "elements": buffer.tiling.elements,
    }


def _commands(arch: str, plan: WaferPlan) -> str:
    dims = f"{plan.grid.cols + 7},{plan.grid.rows + 2}"
    return (
        "#!/usr/bin/env bash\nset -e\n"
        f"cslc --arch={arch} ./layout.csl --fabric-dims={dims} --fabric-offsets=4,1 --memcpy --channels=1 -o out\n"
        "cs_python run.py --name out\n"
    )


_HEAD = '''#!/usr/bin/env cs_python
"""Runs the compiled program: loads inputs.npz and weights.npz, and compares with expected.npz where that is there."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

import numpy as np
from cerebras.sdk.runtime.sdkruntimepybind import MemcpyDataType, MemcpyOrder, SdkRuntime
'''
_TAIL = '''
class Device:
    """The wafer, or its simulator, behind the SDK's interface."""

    def __init__(self, runner: Any, rows: int, cols: int) -> None:
        self.runner, self.rows, self.cols = runner, rows, cols

    def _options(self, itemsize: int) -> dict[str, Any]:
        kind = MemcpyDataType.MEMCPY_32BIT if itemsize == 4 else MemcpyDataType.MEMCPY_16BIT
        return {"streaming": False, "data_type": kind, "order": MemcpyOrder.ROW_MAJOR, "nonblock": False}

    def write(self, symbol: str, data: Any) -> None:
        size = data.dtype.itemsize
        words = np.ascontiguousarray(data).view(np.uint32 if size == 4 else np.uint16).astype(np.uint32)
        target = self.runner.get_id(symbol)
        self.runner.memcpy_h2d(target, words.ravel(), 0, 0, self.cols, self.rows, data.shape[2], **self._options(size))

    def read(self, symbol: str, count: int, dtype: str) -> Any:
        size = np.dtype(dtype).itemsize
        words = np.zeros(self.rows * self.cols * count, np.uint32)
        source = self.runner.get_id(symbol)
        self.runner.memcpy_d2h(words, source, 0, 0, self.cols, self.rows, count, **self._options(size))
        cells = words if size == 4 else words.astype(np.uint16)
        return cells.view(dtype).reshape(self.rows, self.cols, count)

    def launch(self, name: str) -> None:
        self.runner.launch(name, nonblock=False)


def load(path: str) -> dict[str, Any]:
    return dict(np.load(path)) if os.path.exists(path) else {}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", default="out", help="the compiled program")
    parser.add_argument("--cmaddr", default=ADDRESS, help="address of a system; none for the simulator")
    args = parser.parse_args()
    with open("manifest.json", encoding="utf-8") as file:
        manifest = json.load(file)
    arrays = {**load("weights.npz"), **load("inputs.npz")}
    missing = [n for n in (*manifest["inputs"], *manifest["constants"]) if n not in arrays]
    if missing:
        print("inputs.npz or weights.npz lacks " + ", ".join(missing))
        return 2
    runner = SdkRuntime(args.name, cmaddr=args.cmaddr or None)
    runner.load()
    runner.run()
    grid = manifest["grid"]
    results = run_program(manifest, arrays, Device(runner, grid["rows"], grid["cols"]))
    runner.stop()
    np.savez("outputs.npz", **results)
    for name, expected in load("expected.npz").items():
        loose = 2e-2 if expected.dtype == np.float16 else 1e-4
        np.testing.assert_allclose(results[name], expected, rtol=loose, atol=loose, err_msg=name)
    print("SUCCESS")
    return 0


if __name__ == "__main__":
    sys.exit(main())
'''


def _run_py(options: CodeGenOptions) -> str:
    whole = inspect.getsource(hostrun)  # of one class it would parse the file, which Python cannot in several threads
    shared = whole[whole.index("class HostError") :]
    return f"{_HEAD}\nADDRESS = {options.address!r}\n\n\n{shared}\n{_TAIL}"


def _room(memory: dict[str, Any], plan: WaferPlan) -> list[str]:
    lines: list[str] = []
    if "code_bytes" in memory:
        lines.append(
            f"- With code (about {memory['code_bytes']}), stack ({memory['stack_bytes']}) and what is reserved "
            f"({memory['reserved_bytes']}): {memory['total_bytes']} of 49152 bytes."
        )
    if plan.fold is not None:
        lines.append(f"- Run in {plan.fold.passes} passes, each on {plan.fold.chunk} of {plan.fold.size}.")
    return lines


def _readme(plan: WaferPlan, manifest: dict[str, Any]) -> str:
    memory = manifest["memory"]
    lines = [
        "# Generated program",
        "",
        f"CSL for {plan.grid.cols} columns and {plan.grid.rows} rows of PEs, written by {manifest['generator']}.",
        "",
        f"- Data on each PE: {memory['data_bytes']} of {memory['budget_bytes']} bytes.",
        *_room(memory, plan),
        f"- Kernels: {len(plan.kernels)} in {len(plan.phases)} phases; between phases the host moves data.",
        "",
        "Run `commands_wse2.sh` or `commands_wse3.sh` with the tools of the SDK, or with those of `wsesim`: the",
        "command `wsesim env` prints the folder to put on PATH. `run.py` reads `inputs.npz` and `weights.npz`, writes",
        "`outputs.npz` and compares it with `expected.npz`. A real system needs its own `--fabric-dims`.",
        "",
        "The program was never compiled with Cerebras' `cslc`: it follows the public documentation and runs in the",
        "open simulator `wsesim`, whose cycle counts are approximate and uncalibrated.",
        "",
        "![placement](placement.svg)",
        "",
        "| kernel | node |",
        "| --- | --- |",
        *[f"| {describe(i, k)} | `{k.label}` |" for i, k in enumerate(plan.kernels)],
    ]
    return "\n".join(lines) + "\n"
