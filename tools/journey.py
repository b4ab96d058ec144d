"""Counts the concepts a reader meets between an .onnx file and its first native instruction.

A model of one product and one activation is loaded and run, with an empty cache. At each milestone (the file is read,
passes run, sizes become numbers, a step is lowered, a kernel is compiled, native code runs) the call stack is looked
at. Every module of ours on one of these stacks is a concept, and so is every class of ours that a function on it is
given (its own object included): what one has to know to get there. What these functions call besides, and have
returned from, is not counted.

    python tools/journey.py            # the table, and the count
    python tools/journey.py --at-most 40
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from types import FrameType

MILESTONES = {
    "the file is read": ("importers.onnx_importer", "graph_from_file"),
    "passes run": ("opt.manager", "PassManager.run_until_fixed_point"),
    "sizes become numbers": ("opt.specialize", "Specializer.run"),
    "a step is lowered": ("backends.cpu.lower.lowering", "Lowering.kernel"),
    "a kernel is compiled": ("backends.cpu.jit.compiler", "prepare"),
    "native code runs": ("backends.cpu.memory.arena", "Arena.run"),
}
PACKAGE = "pyflame_rt."


def main() -> int:
    """Prints the modules and classes of each milestone, those met before in brackets, and their number."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--at-most", type=int, help="fail above so many concepts")
    given = parser.parse_args()
    stacks = journey()
    met: set[str] = set()
    for milestone, concepts in stacks.items():
        print(f"{milestone}: {', '.join(c for c in concepts if c not in met) or 'nothing new'}")
        met.update(concepts)
    classes = sum(":" in concept for concept in met)
    print(f"{len(met)} concepts: {len(met) - classes} modules, {classes} classes")
    return int(given.at_most is not None and len(met) > given.at_most)


def journey() -> dict[str, list[str]]:
    """The concepts on the call stack at each milestone."""
    from pyflame_rt import Graph, InferenceSession, SessionOptions, export_onnx

    graph = Graph("journey")
    graph.add_input("x", [2, 8])
    graph.add_initializer("w", np.ones((8, 4), np.float32))
    graph.add_node("product", "MatMul", ["x", "w"], ["h"])
    graph.add_node("activation", "Relu", ["h"], ["y"])
    graph.add_output("y", [2, 4])
    wanted = {(PACKAGE + module, name): milestone for milestone, (module, name) in MILESTONES.items()}
    found: dict[str, list[str]] = {}

    def look(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            milestone = wanted.get((frame.f_globals.get("__name__", ""), frame.f_code.co_qualname))
            if milestone is not None and milestone not in found:
                found[milestone] = _concepts(frame)

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # the cache is written beside
        path = Path(folder) / "journey.onnx"
        export_onnx(graph, path)
        options = SessionOptions(cache=Path(folder) / "cache")
        sys.setprofile(look)
        try:
            session = InferenceSession(path, options)
            session.run(None, {"x": np.ones((2, 8), np.float32)})
        finally:
            sys.setprofile(None)
    missing = MILESTONES.keys() - found.keys()
    if missing:
        raise SystemExit(f"never reached: {', '.join(sorted(missing))}. Name where that happens now in MILESTONES")
    return {milestone: found[milestone] for milestone in MILESTONES}


def _concepts(frame: FrameType | None) -> list[str]:
    """Modules, and classes as ``module:Class``, from the caller's end of a stack to its top."""
    stack: list[str] = []
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith(PACKAGE):
            code = frame.f_code
            given = [frame.f_locals.get(name) for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]]
            stack += [
                f"{_short(kind)}:{kind.__name__}" for kind in map(type, given) if kind.__module__.startswith(PACKAGE)
            ]
            stack.append(module.removeprefix(PACKAGE))
        frame = frame.f_back
    return list(dict.fromkeys(reversed(stack)))


def _short(kind: type) -> str:
    return kind.__module__.removeprefix(PACKAGE)


if __name__ == "__main__":
    sys.exit(main())
