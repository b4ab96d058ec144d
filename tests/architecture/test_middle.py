"""The middle of the house: one specialiser, few concepts on the way in, one meaning for one class name."""

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src"
RT = SRC / "pyflame_rt"

# Class names of the runtime that stand for two things each; no name may join them.
TWICE = {
    "Arena", "Block", "Body", "BufferCache", "Family", "FastPath", "Graph", "Host", "InferenceRequest",
    "InferenceResponse", "Kind", "Layout", "ModelMetadata", "Operand", "Piece", "Program", "Rows", "Store", "Stream",
    "Value", "Weights", "Window",
}  # fmt: skip
# Who opens composites: the specialiser, and three who follow a graph with open sizes.
OPENERS = {
    "backends/cpu/graph/scalar_exprs.py", "exporters/onnx_inline.py", "opt/specialize.py", "partition/rows.py",
}  # fmt: skip


def imports_of(path):
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module, {alias.name for alias in node.names}


def test_one_class_name_has_one_meaning():
    # The names in `ort` are ONNX Runtime's, whatever they stand for here.
    trees = (ast.parse(path.read_text("utf-8")) for path in RT.rglob("*.py") if RT / "ort" not in path.parents)
    names = Counter(n.name for tree in trees for n in ast.walk(tree) if isinstance(n, ast.ClassDef))
    twice = {name for name, count in names.items() if count > 1 and not name.startswith("_")}
    assert twice <= TWICE, f"defined twice: {sorted(twice - TWICE)}"


def test_one_specialiser_opens_composites():
    found = {
        path.relative_to(RT).as_posix()
        for path in RT.rglob("*.py")
        for module, names in imports_of(path)
        if module == "pyflame_rt.ops.core.inline" and "instantiate" in names
    }
    assert found == OPENERS


def test_kept_plans_are_made_anew_when_what_makes_them_changes():
    """The key of a kept plan covers every folder that planning imports."""
    text = (RT / "backends/cpu/run/plan_store.py").read_text("utf-8")
    call = re.search(r"code_signature\(([^)]*)\)", text)
    covered = {folder.partition("/")[0] for folder in re.findall(r'"([^"]+)"', call.group(1))}
    folders = {p.name for p in RT.iterdir() if p.is_dir()}
    used = {
        module.split(".")[1]
        for part in ("graph", "lower", "kernels", "ir")
        for path in (RT / "backends/cpu" / part).rglob("*.py")
        for module, _ in imports_of(path)
        if module.startswith("pyflame_rt.")
    }
    assert used & folders <= covered


def test_the_journey_from_file_to_native_code():
    """`tools/journey.py` reaches every milestone, past no more concepts than now."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools/journey.py"), "--at-most", "28"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "concepts:" in done.stdout
