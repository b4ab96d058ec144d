"""Training step by step against torch: the same weights, data and optimizer give the same losses."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

import pyflame as pf

torch = pytest.importorskip("torch")
ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture(scope="module")
def twins():
    spec = importlib.util.spec_from_file_location("twins", ROOT / "benchmarks" / "training" / "twins.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SMALL = {
    "mlp": {"sizes": (16, 32, 32, 5), "batch": 8},
    "gpt": {"vocab": 50, "length": 12, "size": 24, "layers": 2, "heads": 2, "batch": 2},
    "lstm": {"vocab": 30, "size": 16, "length": 8, "batch": 3},
    "resnet18": {"batch": 4, "size": 16},
}


def losses(twins, name, steps, *, double, optimizer="Adam", lr=1e-3):
    twin = twins.TWINS[name](**SMALL[name])
    ours, theirs = (twin.ours.double(), twin.theirs.double()) if double else (twin.ours, twin.theirs)
    real = twin.inputs.dtype.kind == "f"
    x = twin.inputs.astype(np.float64) if double and real else twin.inputs
    ours_step = twins.our_step(ours, getattr(pf.optim, optimizer)(ours.parameters(), lr=lr))
    their_step = twins.their_step(theirs, getattr(torch.optim, optimizer)(theirs.parameters(), lr=lr))
    mine = [pf.from_numpy(x), pf.from_numpy(twin.targets)]
    others = [torch.from_numpy(x), torch.from_numpy(twin.targets)]
    return np.array([(ours_step(*mine).item(), their_step(*others).item()) for _ in range(steps)]).T


@pytest.mark.parametrize("name", ["mlp", "gpt", "lstm"])
def test_a_hundred_steps_in_double_precision(twins, name):
    got, want = losses(twins, name, 100, double=True)
    np.testing.assert_allclose(got, want, rtol=1e-8)
    assert want[-1] < want[0]


@pytest.mark.slow
def test_steps_of_a_residual_network_in_double_precision(twins):
    got, want = losses(twins, "resnet18", 5, double=True, optimizer="SGD", lr=1e-2)
    np.testing.assert_allclose(got, want, rtol=1e-8)


@pytest.mark.parametrize("name", ["mlp", "gpt", "lstm"])
def test_two_hundred_steps_in_single_precision(twins, name):
    got, want = losses(twins, name, 200, double=False, optimizer="SGD", lr=1e-2)
    np.testing.assert_allclose(got, want, rtol=1e-3)


def test_first_steps_of_a_residual_network_in_single_precision(twins):
    got, want = losses(twins, "resnet18", 2, double=False, optimizer="SGD", lr=1e-2)
    np.testing.assert_allclose(got, want, rtol=1e-3)
