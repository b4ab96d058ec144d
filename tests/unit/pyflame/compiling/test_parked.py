"""Replays look at all tensors only after somebody used one; every way to use one is noticed, in every thread."""

import copy
import gc
import itertools
import pickle
import sys
import threading
import weakref

import numpy as np
import pytest

import pyflame as pf
from pyflame.autograd.leaf import Leaf
from pyflame.compiling import compiled, parked
from pyflame.compiling.parked import PARKED
from pyflame.compiling.standing import under_way
from pyflame.lazy import Val
from pyflame.nn import functional as F

SETTLED = 6


class Training:
    def __init__(self):
        pf.manual_seed(0)
        self.model = pf.nn.Sequential(pf.nn.Linear(10, 16), pf.nn.ReLU(), pf.nn.Linear(16, 5))
        self.optimizer = pf.optim.Adam(self.model.parameters(), lr=1e-2)
        self.step = pf.compile(self._step)
        rng = np.random.default_rng(0)
        self.x = pf.from_numpy(rng.normal(size=(8, 10)).astype(np.float32))
        self.y = pf.from_numpy(rng.integers(0, 5, 8))

    def _step(self, x, y):
        loss = F.cross_entropy(self.model(x), y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss

    def run(self, number=SETTLED):
        return [self.step(self.x, self.y).item() for _ in range(number)]

    @property
    def steady(self):
        return list(self.step._traces.values())[-1][-1].steady

    @property
    def weight(self):
        return self.model[0].weight

    @property
    def moment(self):
        return next(iter(self.optimizer.state[self.weight].values()))

    def looks(self, number=3):
        """How many of some replays looked at everything; None when they took the long way."""
        steady, before = self.steady, self.steady.looks
        self.run(number)
        return steady.looks - before if self.steady is steady else None


@pytest.fixture
def settled():
    training = Training()
    training.run()
    assert training.looks() == 0
    return training


def is_parked(thing):
    return type(thing) in PARKED.values()


def test_nothing_is_looked_at_while_nobody_uses_a_tensor(settled):
    value = settled.weight._value
    assert is_parked(value)
    assert is_parked(value.leaf)
    assert isinstance(value, Val)
    assert isinstance(value.leaf, Leaf)
    del value
    assert settled.looks(10) == 0


# Each leaves nothing behind that would keep the next replays from writing in place.
USES = {
    "contents": lambda t: t.weight.numpy().sum(),
    "number": lambda t: float(t.weight.sum()),
    "gradient": lambda t: float(t.weight.grad.sum()),
    "whether there is a gradient": lambda t: t.weight.grad is None,
    "state of the optimizer": lambda t: float(t.moment.sum()),
    "saved": lambda t: t.model.state_dict() and None,
    "all of the optimizer": lambda t: t.optimizer.state_dict() and None,
    "copied": lambda t: copy.deepcopy(t.model) and None,
    "pickled": lambda t: pickle.dumps(t.model),
    "called": lambda t: t.model(t.x).numpy(),
    "printed": lambda t: repr(t.weight),
    "detached": lambda t: t.weight.detach().shape,
    "norm": lambda t: pf.nn.utils.get_total_norm([p.grad for p in t.model.parameters()]).item(),
}


@pytest.mark.parametrize("use", [use for use in USES if use != "norm" or hasattr(pf.nn.utils, "get_total_norm")])
def test_after_a_use_everything_is_looked_at_once(settled, use):
    kept = USES[use](settled)
    assert settled.looks() == 1
    assert settled.looks() == 0
    del kept


# What changes a tensor, by name.
CHANGES = {
    "copied into": lambda t: _quietly(lambda: t.weight.copy_(pf.ones(16, 10))),
    "zeroed": lambda t: _quietly(lambda: t.weight.zero_()),
    "scaled": lambda t: _quietly(lambda: t.weight.mul_(0.5)),
    "elements": lambda t: _quietly(lambda: t.weight.__setitem__(0, 1.0)),
    "data": lambda t: setattr(t.weight, "data", pf.ones(16, 10)),
    "loaded": lambda t: t.model.load_state_dict({k: v.detach() * 2 for k, v in t.model.state_dict().items()}),
    "gradient dropped": lambda t: setattr(t.weight, "grad", None),
    "gradient set": lambda t: setattr(t.weight, "grad", pf.ones(16, 10)),
    "all gradients dropped": lambda t: t.optimizer.zero_grad(),
    "eager step": lambda t: t._step(t.x, t.y),
    "moment": lambda t: t.moment.mul_(3.0),
    "clipped": lambda t: pf.nn.utils.clip_grad_norm_(t.model.parameters(), 0.1),
}


def _quietly(change):
    with pf.no_grad():
        change()


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("hold", [False, True])
def test_changes_count(change, hold, monkeypatch):
    """As many losses after a change as before; what was there may be held meanwhile."""

    def losses():
        training = Training()
        found = training.run(10)
        held = [training.weight.grad, training.moment.numpy(copy=False), training.weight.detach()] if hold else []
        before = [np.array(h if isinstance(h, np.ndarray) else h.numpy()) for h in held[:1] + held[2:]]
        CHANGES[change](training)
        found += training.run(10)
        seen = [np.array(h.numpy()) for h in held[:1] + held[2:]]
        if change not in ("clipped",):
            for a, b in zip(before, seen, strict=True):
                np.testing.assert_array_equal(a, b)
        del held
        return [*found, *training.run(10), *(p.numpy().sum() for p in training.model.parameters())]

    quick = losses()
    with monkeypatch.context() as patch:
        patch.setattr(compiled, "steady_of", lambda *_: None)
        assert losses() == quick


def test_values_that_are_only_held_are_not_overwritten(settled):
    """A graph that was not looked into yet: its value has one more reference."""
    value = settled.weight._value
    before = np.array(settled.weight.numpy())
    settled.run()
    np.testing.assert_array_equal(value.array, before)


def test_a_value_put_elsewhere_and_kept(settled):
    """As many references as before, at another place."""
    before = np.array(settled.moment.numpy())
    settled.run()
    before = np.array(settled.moment.numpy())
    held = settled.moment._value
    settled.moment._rebind(Val(held.spec, array=before.copy()))
    settled.run()
    np.testing.assert_array_equal(held.array, before)


def test_gradients_behind_weak_references(settled):
    """They lead to a gradient without its leaf: where there is one, gradients are looked at each time."""
    seen = weakref.ref(settled.weight.grad)
    assert settled.looks() == 3
    held = seen()
    before = np.array(held.numpy())
    settled.run()
    np.testing.assert_array_equal(held.numpy(), before)


def test_a_graph_from_before_gives_gradients_to_a_leaf_that_is_parked():
    training = Training()
    old = (training.weight * 3.0).sum()  # holds the first value of the parameter, and its leaf
    training.run()
    assert training.looks() == 0
    held = training.weight.grad
    old.backward()
    assert training.weight.grad is not held
    expected = np.array(held.numpy()) + 3.0
    np.testing.assert_array_equal(training.weight.grad.numpy(), expected)
    del held
    training.run()
    assert np.abs(training.weight.grad.numpy()).max() < 3.0  # a step drops what was there


def test_other_functions_share_what_is_parked(settled):
    """Answers of the model between steps: the parameters are read where they are, nobody has to look again."""
    answer = pf.compile(lambda x: settled.model(x))
    with pf.no_grad():
        for _ in range(SETTLED):
            answer(settled.x)
    settled.run(2)
    steady, before = settled.steady, settled.steady.looks
    for _ in range(5):
        with pf.no_grad():
            seen = answer(settled.x).numpy().copy()
        expected = settled.model(settled.x).detach().numpy()
        np.testing.assert_allclose(seen, expected, rtol=1e-5, atol=1e-6)
        settled.run(1)
    assert settled.steady is steady
    assert steady.looks - before == 5  # for the model that was called without `answer`
    for _ in range(5):
        with pf.no_grad():
            answer(settled.x)
        settled.run(1)
    assert steady.looks - before == 5


def test_classes_have_the_references_they_should():
    for _ in range(3):  # the first makes what stays
        counts = {kind: sys.getrefcount(kind) for pair in PARKED.items() for kind in pair}
        training = Training()
        training.run()
        for _ in range(4):
            float(training.weight.sum())
            training.run(2)
        del training
        gc.collect()
        gc.collect()
    after = {kind: sys.getrefcount(kind) for pair in PARKED.items() for kind in pair}
    assert after == counts


def test_a_use_that_was_interrupted_leaves_replays_that_look_each_time(settled, monkeypatch):
    class Stop(Exception):
        pass

    def numbers():
        raise Stop
        yield

    try:
        with monkeypatch.context() as patch:
            patch.setattr(parked, "_numbers", numbers())
            with pytest.raises(Stop):
                settled.weight.numpy()
        assert settled.looks() == 3
    finally:
        parked.waking.clear()
    assert settled.looks() == 0


class Between:
    """Gives numbers, and lets another thread do something before each, to the end."""

    def __init__(self, work, start):
        self.work, self.seen, self.numbers = work, [], itertools.count(start)

    def __iter__(self):
        return self

    def __next__(self):
        if not self.seen:  # once: the work may use what is parked too
            self.seen.append(None)
            thread = threading.Thread(target=lambda: self.seen.append(self.work()))
            thread.start()
            thread.join()
        return next(self.numbers)


TAKEN = {
    "array": lambda t: t.weight._value.array,
    "gradient": lambda t: t.weight._value.leaf.grad,
    "moment": lambda t: t.moment._value.array,
}


@pytest.mark.parametrize("kind", TAKEN)
def test_a_replay_in_the_midst_of_a_use(kind, monkeypatch):
    """Somebody has what was parked in hand, and has told nobody so far, when another thread replays."""
    training, twin = Training(), Training()
    training.run(10)
    twin.run(10)
    expected = np.array(twin.weight.grad.numpy() if kind == "gradient" else TAKEN[kind](twin))
    last = training.steady
    between = Between(lambda: training.step(training.x, training.y).item(), 1 << 40)
    with monkeypatch.context() as patch:
        patch.setattr(parked, "_numbers", between)
        held = TAKEN[kind](training)
    assert len(between.seen) == 2, "nobody told of the use"
    assert training.steady is not last, "the other replay did not notice"
    assert [between.seen[1], *training.run(5)] == twin.run(6)
    np.testing.assert_array_equal(held.numpy() if kind == "gradient" else held, expected)


def test_while_others_run_everything_is_looked_at(settled):
    """A run that is under way may hold arrays that machine code found for it, which takes no attribute."""
    under_way[0] += 1
    try:
        assert settled.looks() == 3
    finally:
        under_way[0] -= 1
    assert settled.looks() == 0


def test_many_threads_look_while_one_trains(monkeypatch):
    """Whatever they take stays what it was when they took it, and the losses are the same."""

    def losses(readers):
        training = Training()
        found, wrong, done = training.run(), [], threading.Event()

        def read(number):
            while not done.is_set():
                held = training.weight.detach() if number % 2 else training.weight.grad
                if held is None:
                    continue
                first, second = np.array(held.numpy()), np.array(held.numpy())
                if number % 2 and not np.isfinite(first + second).all():
                    wrong.append(number)

        threads = [threading.Thread(target=read, args=(n,)) for n in range(readers)]
        for thread in threads:
            thread.start()
        found += training.run(100)
        done.set()
        for thread in threads:
            thread.join()
        assert not wrong
        return found

    assert losses(2) == losses(0)
