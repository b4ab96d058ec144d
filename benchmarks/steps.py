"""Nodes that a session executes after optimisation, beside the nodes of onnxruntime's optimised graph.

A node that is done in the step of another, a view and what is folded are not executed. Behind it stands how many
calls of native code these nodes take, moves of values into other layouts and borders of padding among them, which
neither side's count of nodes has.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnx
import onnxruntime
import typer
from zoo import make

from pyflame_rt import InferenceSession, OptLevel, SessionOptions

# What onnxruntime inserts to bring values into the layout of the next node.
REORDERS = ("ReorderInput", "ReorderOutput")


def peer_nodes(path: Path) -> Counter[str]:
    """Operators of the graph that onnxruntime executes at its highest level, reorders left out."""
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "optimised.onnx"
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.optimized_model_filepath = str(written)
        options.log_severity_level = 3
        onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        graph = onnx.load(str(written), load_external_data=False).graph
    return Counter(node.op_type for node in graph.node if node.op_type not in REORDERS)


def our_nodes(path: Path, feed: dict[str, Any]) -> tuple[Counter[str], int]:
    """Operators that a session at EXTENDED executes, and how many calls of native code that takes."""
    options = SessionOptions(optimization_level=OptLevel.EXTENDED)
    with InferenceSession(str(path), options) as session:
        session.run(None, feed)
        explained = session.explain()
        return Counter(row.op_type for row in explained.nodes if row.steps), explained.native_steps


def compare(path: Path) -> dict[str, Any]:
    """Counts of one model."""
    with np.load(path.with_suffix(".npz")) as arrays:
        feed = {key.removeprefix("in/"): arrays[key] for key in arrays if key.startswith("in/")}
    (ours, calls), theirs = our_nodes(path, feed), peer_nodes(path)
    more = dict((ours - theirs).most_common(6))
    return {"model": path.stem, "ours": ours.total(), "theirs": theirs.total(), "calls": calls, "more": more}


def main(
    folder: Annotated[Path, typer.Option(help="Where the models built here are kept.")] = Path("build/zoo"),
    only: Annotated[str, typer.Option("--filter", help="Only models whose name this expression matches.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print lines of JSON.")] = False,
) -> None:
    """Compare the models of the zoo; the exit code says whether any executes more nodes than onnxruntime."""
    worse = []
    for path in make(folder, only):
        row = compare(path)
        worse += [row["model"]] * (row["ours"] > row["theirs"])
        more = ", ".join(f"{name} {count}" for name, count in row["more"].items())
        figures = f"{row['model']:20} {row['ours']:5} {row['theirs']:5} {row['calls']:5}"
        print(json.dumps(row) if as_json else f"{figures}  {more}", flush=True)
    if worse:
        sys.exit(f"more nodes executed than by onnxruntime: {', '.join(worse)}")


if __name__ == "__main__":
    typer.run(main)
