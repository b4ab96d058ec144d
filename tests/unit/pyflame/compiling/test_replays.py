"""Replays compare versions in one go, and notice when somebody used or changed what they are bound to."""

import numpy as np
import pytest

import pyflame as pf
from pyflame.nn import functional as F

CALLS = 12


class Training:
    def __init__(self, dropout=0.0):
        pf.manual_seed(0)
        parts = [pf.nn.Linear(30, 50), pf.nn.ReLU(), pf.nn.Dropout(dropout), pf.nn.Linear(50, 7)]
        self.model = pf.nn.Sequential(*parts)
        self.optimizer = pf.optim.Adam(self.model.parameters(), lr=1e-2)
        self.step = pf.compile(self._step)
        rng = np.random.default_rng(0)
        self.data = [
            (
                pf.from_numpy(rng.normal(size=(40, 30)).astype(np.float32)),
                pf.from_numpy(rng.integers(0, 7, 40)),
            )
            for _ in range(CALLS)
        ]

    def _step(self, x, y):
        loss = F.cross_entropy(self.model(x), y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss

    def run(self, number=CALLS):
        return [self.step(*batch).item() for batch in self.data[:number]]

    def touch(self):
        """Let others refer to what the next call writes."""
        return [p.detach().numpy(copy=False) for p in self.model.parameters()]

    @property
    def trace(self):
        return list(self.step._traces.values())[-1][-1]

    @property
    def parameters(self):
        return [p.numpy().copy() for p in self.model.parameters()]


@pytest.fixture
def slow(monkeypatch):
    """Losses of the same training without what this file is about."""
    with monkeypatch.context() as patch:
        patch.setattr("pyflame_rt.backends.cpu.run.executable.fast_path", lambda *_: None)
        training = Training()
        losses = training.run()
        assert training.trace.replay.fast_runs == 0
        return losses, training.parameters


def test_losses_and_parameters_are_the_same(slow):
    training = Training()
    losses = training.run()
    assert training.trace.replay.fast_runs == CALLS - 1
    assert losses == slow[0]
    for a, b in zip(training.parameters, slow[1], strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("hold", ["view", "detached", "saved", "array", "lazy", "dlpack", "gradient", "gradient array"])
def test_what_others_hold_is_not_overwritten(hold, slow):
    training = Training()
    losses = training.run(6)
    weight = training.model[0].weight
    held = {
        "view": lambda: weight.numpy(copy=False)[1:],
        "detached": weight.detach,
        "saved": lambda: training.model.state_dict()["0.weight"],
        "array": lambda: weight.numpy(copy=False),
        "lazy": lambda: weight.detach() * 1.0,
        "dlpack": lambda: np.from_dlpack(weight.detach()),
        "gradient": lambda: weight.grad,
        "gradient array": lambda: weight.grad.numpy(copy=False),
    }[hold]()
    before = np.array(weight.grad.numpy() if hold.startswith("gradient") else weight.numpy())
    losses += [training.step(*batch).item() for batch in training.data[6:8]]
    seen = np.array(held if isinstance(held, np.ndarray) else held.detach().numpy())
    if hold in ("detached", "saved"):  # of the same storage, as in torch
        before = weight.numpy()
    np.testing.assert_array_equal(seen, before[1:] if hold == "view" else before)
    del held
    losses += [training.step(*batch).item() for batch in training.data[8:]]
    assert losses == slow[0]


def test_parameters_may_be_set_in_between():
    training, other = Training(), Training()
    training.run(6)
    saved = {name: value.numpy().copy() for name, value in other.model.state_dict().items()}
    training.model.load_state_dict({name: pf.from_numpy(value) for name, value in saved.items()})
    first = training.step(*training.data[0]).item()
    assert first == other.step(*other.data[0]).item()


def test_the_learning_rate_is_read_anew():
    training = Training()
    training.run(6)
    training.optimizer.set_lr(0.0)
    before = training.parameters
    training.step(*training.data[6])
    for a, b in zip(training.parameters, before, strict=True):
        np.testing.assert_array_equal(a, b)


def test_modes_of_modules_count():
    training = Training(dropout=0.5)
    training.run(6)
    training.model.eval()
    training.step(*training.data[0])
    training.model.train()
    training.model[2].training = False
    training.step(*training.data[0])
    assert training.step.trace_count == 3
    training.model.train()
    training.step(*training.data[0])
    assert training.step.trace_count == 3


@pytest.mark.parametrize("used", [True, False])
def test_dropped_gradients_and_other_sizes(used):
    losses = []
    for touched in (False, used):
        training = Training()
        losses.append([])
        for i, (x, y) in enumerate(training.data):
            if i == 5:
                training.optimizer.zero_grad()
            held = training.touch() if touched else None
            batch = (x[:7], y[:7]) if i % 6 == 5 else (x, y)
            losses[-1].append(training.step(*batch).item())
            del held
    assert losses[0] == losses[1]


def test_an_index_out_of_range_changes_nothing():
    pf.manual_seed(0)
    table = pf.nn.Embedding(10, 4)
    optimizer = pf.optim.SGD(table.parameters(), lr=0.1)

    @pf.compile
    def step(ids):
        loss = table(ids).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    good = pf.from_numpy(np.array([1, 2, 3]))
    for _ in range(6):
        step(good)
    before = table.weight.numpy().copy()
    with pytest.raises(Exception, match="out of range"):
        step(pf.from_numpy(np.array([1, 2, 12])))
    np.testing.assert_array_equal(table.weight.numpy(), before)
    step(good)
    assert np.isfinite(table.weight.numpy()).all()
