"""Without oneDNN the engine runs generated kernels alone; without llvmlite the interpreter serves it. Both say so."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
SCRIPT = """
import numpy as np
import pyflame_rt
from pyflame_rt.graph import DType

assert "CPUExecutionProvider" in pyflame_rt.get_available_providers()
g = pyflame_rt.Graph("g")
g.add_input("x", [2, 3], DType.Float32)
g.add_initializer("w", np.eye(3, dtype=np.float32) * 2)
g.add_node("m", "MatMul", ["x", "w"], ["p"])
g.add_node("r", "Relu", ["p"], ["y"])
g.add_output("y", [2, 3], DType.Float32)
session = pyflame_rt.InferenceSession(g, providers=["CPUExecutionProvider"])
x = np.arange(-3, 3, dtype=np.float32).reshape(2, 3)
np.testing.assert_array_equal(session.run(None, {"x": x})[0], np.maximum(2 * x, 0))
explained = session.explain()
print(explained.about)
print(explained)
session.close()
"""
HIDE_LLVM = """
import importlib.util
import sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "llvmlite" else find(name, package)
sys.modules["llvmlite"] = None
"""


def python(*args: str, timeout: float = 400, **environment: str) -> subprocess.CompletedProcess[str]:
    paths = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **environment}
    return subprocess.run([sys.executable, *args], cwd=ROOT, env=env, capture_output=True, text=True, timeout=timeout)


def test_without_onednn_the_engine_is_native():
    done = python("-c", SCRIPT, PYFLAME_ONEDNN="0")
    assert done.returncode == 0, done.stderr
    assert "generated kernels, without oneDNN" in done.stdout
    assert "0 host steps" in done.stdout


def test_without_llvmlite_the_interpreter_says_who_serves():
    done = python("-c", HIDE_LLVM + SCRIPT)
    assert done.returncode == 0, done.stderr
    assert "reference interpreter on NumPy: llvmlite is not installed" in done.stdout


def test_layers_without_the_library():
    """Every kind of layer by generated kernels alone equals the reference, and none is a step of the host."""
    done = python("-m", "tests.unit.backends.cpu.library_free", PYFLAME_ONEDNN="0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "48 layers, 0 differ"


@pytest.mark.slow
@pytest.mark.parametrize("where", ["session", "backends/cpu", "ops/test_conv.py", "ops/test_rnn.py", "ort"])
def test_the_same_tests_pass_without_onednn(where):
    binding = [f"--ignore=tests/unit/backends/cpu/{p.name}" for p in Path(__file__).parent.glob("test_onednn_*.py")]
    args = ["-q", "-m", "not slow", "-p", "no:cacheprovider", *binding, f"tests/unit/{where}"]
    done = python("-m", "pytest", *args, PYFLAME_ONEDNN="0", timeout=1200)
    assert done.returncode == 0, done.stdout[-3000:]
