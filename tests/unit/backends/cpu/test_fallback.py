"""Without oneDNN and libgomp the provider is served by the interpreter, says so, and passes the same tests."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
SCRIPT = """
from tests.hidden_onednn import hide
hide()
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
about = session.explain().about
assert "reference interpreter on NumPy" in about and "oneDNN" in about, about
session.close()
"""


def python(*args: str, timeout: float = 200) -> subprocess.CompletedProcess[str]:
    paths = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    return subprocess.run([sys.executable, *args], cwd=ROOT, env=env, capture_output=True, text=True, timeout=timeout)


def test_the_provider_says_who_serves_it():
    done = python("-c", SCRIPT)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("where", ["session", "ops/test_conv.py", "ops/test_rnn.py", "ort"])
def test_the_same_tests_pass(where):
    done = python("-m", "pytest", "-q", "-p", "tests.hidden_onednn", "-p", "no:cacheprovider", f"tests/unit/{where}")
    assert done.returncode == 0, done.stdout[-3000:]
