"""Training step by step against torch: the same weights, data and optimizer give the same losses."""

import copy
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


def losses(twins, name, steps, *, double, optimizer="Adam", lr=1e-3, **sizes):
    twin = twins.TWINS[name](**sizes or SMALL[name])
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


@pytest.mark.parametrize(
    ("steps", "size"), [(6, 16), pytest.param(100, 32, marks=pytest.mark.slow)], ids=["6 steps", "100 steps"]
)
def test_steps_of_a_residual_network_in_double_precision(twins, steps, size):
    got, want = losses(twins, "resnet18", steps, double=True, batch=4, size=size)
    np.testing.assert_allclose(got, want, rtol=1e-8)
    assert want[-1] < want[0]


@pytest.mark.parametrize("name", ["mlp", "gpt", "lstm"])
def test_two_hundred_steps_in_single_precision(twins, name):
    got, want = losses(twins, name, 200, double=False, optimizer="SGD", lr=1e-2)
    np.testing.assert_allclose(got, want, rtol=1e-3)


# The sizes at which speed is measured, too, and rates at which plain gradient descent learns.
USUAL = {
    "mlp": ({"sizes": (784, 512, 512, 10), "batch": 128}, 1e-2),
    "lstm": ({"vocab": 1000, "size": 256, "length": 64, "batch": 32}, 0.5),
}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "double"), [("mlp", True), ("mlp", False), ("lstm", False)])
def test_gradient_descent_at_usual_sizes(twins, name, double):
    sizes, rate = USUAL[name]
    got, want = losses(twins, name, 100 if double else 200, double=double, optimizer="SGD", lr=rate, **sizes)
    np.testing.assert_allclose(got, want, rtol=1e-8 if double else 1e-3)
    assert want[-1] < want[0]


def test_first_steps_of_a_residual_network_in_single_precision(twins):
    got, want = losses(twins, "resnet18", 2, double=False, optimizer="SGD", lr=1e-2)
    np.testing.assert_allclose(got, want, rtol=1e-3)


def nudged(model, number):
    """A copy of a torch model with every weight moved by one unit in the last place, up or down."""
    rng, model = np.random.default_rng(number), copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            ends = torch.from_numpy(np.where(rng.random(parameter.shape) < 0.5, -np.inf, np.inf).astype(np.float32))
            parameter.copy_(torch.nextafter(parameter, ends))
    return model


def batches(twin, count):
    """Noisy images of ten fixed classes, new ones at every step, one label in five drawn at random.

    The classes can be learned, and the wrong labels keep the loss from falling to nothing: the mean of the last losses
    is then no matter of a few outliers.
    """
    rng = np.random.default_rng(7)
    centres = rng.normal(size=(10, *twin.inputs.shape[1:]))
    for _ in range(count):
        classes = rng.integers(0, 10, len(twin.targets))
        wrong = rng.random(len(classes)) < 0.2
        labels = np.where(wrong, rng.integers(0, 10, len(classes)), classes)
        yield (centres[classes] * 0.3 + rng.normal(size=twin.inputs.shape)).astype(np.float32), labels


# The images of the model's own size, a batch of which batch normalisation has something to count, and a usual rate.
RESNET = {"batch": 32, "size": 32}
RATE = {"lr": 1e-2, "momentum": 0.9}


def our_run(twins, twin, steps):
    step = twins.our_step(twin.ours, pf.optim.SGD(twin.ours.parameters(), **RATE))
    return np.array([step(pf.from_numpy(x), pf.from_numpy(y)).item() for x, y in batches(twin, steps)])


def their_run(twins, twin, number, steps):
    model = nudged(twin.theirs, number)
    step = twins.their_step(model, torch.optim.SGD(model.parameters(), **RATE))
    return np.array([step(torch.from_numpy(x), torch.from_numpy(y)).item() for x, y in batches(twin, steps)])


@pytest.mark.slow
def test_a_residual_network_ends_where_torch_runs_of_nearly_equal_weights_end(twins):
    """Rounding grows over 200 steps: torch's own runs spread when weights differ by one unit in the last place."""
    twin = twins.TWINS["resnet18"](**RESNET)
    ours = our_run(twins, twin, 200)
    ends = []
    for number in range(5):
        theirs = their_run(twins, twin, number, 200)
        np.testing.assert_allclose(ours[:2], theirs[:2], rtol=1e-3)
        ends.append(theirs[-20:].mean())
    end = ours[-20:].mean()
    assert min(ends) <= end <= max(ends), f"{end} is outside of {sorted(ends)}"
    assert end < ours[:20].mean()
