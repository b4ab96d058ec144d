"""Replays that find all tensors where they left them look at them in one call, and notice when somebody else does."""

import numpy as np
import pytest

import pyflame as pf
from pyflame.compiling import compiled
from pyflame.compiling.steady import Steady
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

    def long_way(self):
        """Let the next call go the long way."""
        for traces in self.step._traces.values():
            for trace in traces:
                trace.unsettle()
        self.step._make_ready()

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
        patch.setattr(compiled, "steady_of", lambda *_: None)
        training = Training()
        losses = training.run()
        assert training.trace.steady is None
        return losses, training.parameters


def test_losses_and_parameters_are_the_same(slow):
    training = Training()
    losses = training.run()
    assert isinstance(training.trace.steady, Steady)
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
    np.testing.assert_array_equal(seen, before[1:] if hold == "view" else before)
    del held
    losses += [training.step(*batch).item() for batch in training.data[8:]]
    assert losses == slow[0]
    training.step(*training.data[0])
    assert training.trace.steady is not None


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
    assert training.trace.steady is not None
    training.optimizer.set_lr(0.0)
    before = training.parameters
    training.step(*training.data[6])
    for a, b in zip(training.parameters, before, strict=True):
        np.testing.assert_array_equal(a, b)
    assert training.trace.steady is not None


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


@pytest.mark.parametrize("steady", [True, False])
def test_dropped_gradients_and_other_sizes(steady):
    losses = []
    for long_way in (False, not steady):
        training = Training()
        losses.append([])
        for i, (x, y) in enumerate(training.data):
            if i == 5:
                training.optimizer.zero_grad()
            if long_way:
                training.long_way()
            batch = (x[:7], y[:7]) if i % 6 == 5 else (x, y)
            losses[-1].append(training.step(*batch).item())
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
