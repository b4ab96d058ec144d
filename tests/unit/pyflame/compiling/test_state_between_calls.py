"""Replays look at tensors only after somebody used one; every way to use one is noticed, in every thread."""

import array
import copy
import ctypes
import pickle
import threading

import numpy as np
import pytest

import pyflame as pf
from pyflame.compiling.bindings import Binding, Gradient, Read, State
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
    def weight(self):
        return self.model[0].weight

    @property
    def moment(self):
        return next(iter(self.optimizer.state[self.weight].values()))


@pytest.fixture
def looked(monkeypatch):
    """What replays looked at: one item for each tensor and gradient."""
    seen: list[Binding] = []
    for kind in (Read, State, Gradient):
        real = kind.look
        monkeypatch.setattr(kind, "look", lambda self, real=real: (seen.append(self), real(self))[1])
    return seen


@pytest.fixture
def settled(looked):
    training = Training()
    training.run()
    looked.clear()
    training.run(3)
    assert not looked
    return training


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
def test_after_a_use_what_was_used_is_looked_at_once(settled, use, looked):
    kept = USES[use](settled)
    looked.clear()
    settled.run(1)
    assert looked or use == "whether there is a gradient"
    looked.clear()
    settled.run(5)
    assert not looked
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
        held = [training.weight.grad, training.moment.clone(), training.weight * 1] if hold else []
        before = [np.array(h.numpy()) for h in held]
        CHANGES[change](training)
        found += training.run(10)
        seen = [np.array(h.numpy()) for h in held]
        if change not in ("clipped",):
            for a, b in zip(before, seen, strict=True):
                np.testing.assert_array_equal(a, b)
        del held
        return [*found, *training.run(10), *(p.numpy().sum() for p in training.model.parameters())]

    quick = losses()
    with monkeypatch.context() as patch:
        patch.setattr("pyflame_rt.backends.cpu.run.executable.fast_path", lambda *_: None)
        assert losses() == quick


def test_values_that_are_only_held_are_not_overwritten(settled):
    value = settled.weight._value
    before = np.array(settled.weight.numpy())
    settled.run()
    np.testing.assert_array_equal(value.array, before)


def test_a_graph_from_before_gives_gradients_to_a_leaf_whose_gradient_was_lent():
    training = Training()
    old = (training.weight * 3.0).sum()  # holds the first value of the parameter, and its leaf
    training.run()
    held = training.weight.grad
    old.backward()
    assert training.weight.grad is not held
    expected = np.array(held.numpy()) + 3.0
    np.testing.assert_array_equal(training.weight.grad.numpy(), expected)
    del held
    training.run()
    assert np.abs(training.weight.grad.numpy()).max() < 3.0  # a step drops what was there


def test_other_functions_read_what_was_lent_where_it_is(settled, looked):
    """Answers of the model between steps: the parameters are read where they are, nobody has to look again."""
    answer = pf.compile(lambda x: settled.model(x))
    with pf.no_grad():
        for _ in range(SETTLED):
            answer(settled.x)
    for _ in range(5):
        with pf.no_grad():
            seen = answer(settled.x).numpy().copy()
        expected = settled.model(settled.x).detach().numpy()
        np.testing.assert_allclose(seen, expected, rtol=1e-5, atol=1e-6)
        settled.run(1)
    with pf.no_grad():
        answer(settled.x)
    looked.clear()
    for _ in range(5):
        with pf.no_grad():
            answer(settled.x)
        settled.run(1)
    assert not looked


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


@pytest.mark.parametrize("make", [lambda: pf.zeros(3, 2), lambda: pf.ones(3, 2) - 1], ids=["zeros", "lazy"])
def test_a_base_that_was_never_read_is_not_made_again(make):
    base = make()
    row, other = base[1], base[2, 0]

    def step(x):
        row.add_(x)
        other.add_(1)
        return x * 2

    compiled = pf.compile(step)
    compiled(pf.ones(2))
    base[0] = 5.0
    compiled(pf.ones(2))
    compiled(pf.ones(2))
    assert base.tolist() == [[5.0, 5.0], [3.0, 3.0], [3.0, 0.0]]


class Pair(ctypes.Structure):
    _fields_ = (("first", ctypes.c_uint8), ("second", ctypes.c_double))


@pytest.mark.parametrize(
    ("make", "count"),
    [
        (lambda: memoryview(b"ab"), False),
        (lambda: memoryview(bytearray(b"abcd"))[::2], True),
        (lambda: memoryview(np.array([97.0, 2.0])), True),
        (lambda: (ctypes.c_double * 2)(97, 1), True),
        (lambda: array.array("d", [97, 1]), True),
    ],
    ids=["read-only", "strided", "doubles", "ctypes", "array"],
)
def test_buffers_of_every_kind(make, count):
    buffer = make()

    def f(x):
        if count:
            buffer[0] = buffer[0] + 1
        return x * buffer[0]

    compiled = pf.compile(f)
    seen = [compiled(pf.ones(1)).item() for _ in range(3)]
    assert seen == ([98, 99, 100] if count else [97] * 3)
    assert buffer[0] == seen[-1]


def test_a_structure_of_c():
    pair = Pair(1, 2.0)

    def f(x):
        pair.second += 1
        return x * pair.second

    compiled = pf.compile(f)
    assert [compiled(pf.ones(1)).item() for _ in range(3)] == [3.0, 4.0, 5.0]
    assert (pair.first, pair.second) == (1, 5.0)
