"""What guards cost, when they make a new trace, and what a function that cannot be replayed is told."""

import itertools
import random
import types
import warnings

import numpy as np
import pytest

import pyflame as pf
from pyflame.compiling.guards import same_plain

X = pf.tensor([1.0, 2.0])
RATE = 1.0
NUMPYS, PYTHONS = np.random.default_rng(0), random.Random(0)
TENSOR = pf.tensor([1.0, 1.0])


def test_a_changed_number_makes_a_trace_and_the_old_one_is_kept(monkeypatch):
    f = pf.compile(lambda x: x * RATE)
    seen = []
    for rate in (1.0, 2.0, 1.0, 2.0, 1.0):
        monkeypatch.setitem(globals(), "RATE", rate)
        seen.append(f(X).tolist())
    assert seen == [[rate, 2 * rate] for rate in (1.0, 2.0, 1.0, 2.0, 1.0)]
    assert f.trace_count == 2


def test_another_tensor_of_the_same_type_needs_no_trace(monkeypatch):
    f = pf.compile(lambda x: x + TENSOR)
    for i in range(5):
        monkeypatch.setitem(globals(), "TENSOR", pf.tensor([float(i), 0.0]))
        assert f(X).tolist() == [1.0 + i, 2.0]
    assert f.trace_count == 1
    monkeypatch.setitem(globals(), "TENSOR", pf.tensor(3.0))
    assert f(X).tolist() == [4.0, 5.0]
    assert f.trace_count == 2


def test_a_hidden_state_that_is_assigned_is_replayed():
    class Cell(pf.nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.h = pf.nn.Linear(2, 2), pf.zeros([2])

        def forward(self, x):
            self.h = pf.tanh(self.fc(x) + self.h)
            return self.h

    pf.manual_seed(0)
    plain = Cell()
    twin = Cell()
    twin.load_state_dict(plain.state_dict())
    compiled, kept = pf.compile(twin), []
    for i in range(6):
        x = pf.tensor([float(i), 1.0])
        np.testing.assert_allclose(compiled(x).tolist(), plain(x).tolist(), rtol=1e-6)
        np.testing.assert_allclose(twin.h.tolist(), plain.h.tolist(), rtol=1e-6)
        kept.append(twin.h)
    assert compiled.trace_count == 2  # the first state has no history
    assert len({tuple(h.tolist()) for h in kept}) == 6
    (twin.h.sum()).backward()
    (plain.h.sum()).backward()
    np.testing.assert_allclose(twin.fc.weight.grad.tolist(), plain.fc.weight.grad.tolist(), rtol=1e-5)


def test_unrelated_attributes_may_change():
    class Agent:
        def __init__(self):
            self.scale, self.steps, self.memory = 2.0, 0, []

        @pf.compile
        def act(self, x):
            return x * self.scale

        def remember(self):
            self.steps += 1
            self.memory.append(self.steps)

    agent = Agent()
    for _ in range(5):
        agent.remember()
        assert agent.act(X).tolist() == [2.0, 4.0]
    assert Agent.act.trace_count == 1


def test_a_counter_is_counted_and_a_warning_names_it():
    state = types.SimpleNamespace(steps=0)

    @pf.compile
    def step(x):
        state.steps += 1
        return x * state.steps

    with pytest.warns(RuntimeWarning, match=r"state\.steps was 7, is 8"):
        seen = [step(X).tolist()[0] for _ in range(12)]
    assert seen == [float(i) for i in range(1, 13)]
    assert state.steps == 12
    assert step.trace_count == 8
    assert "not traced" in step.explain()


def test_more_traces_where_they_are_asked_for():
    state = types.SimpleNamespace(k=0)
    step = pf.compile(lambda x: x * state.k, options={"recompile_limit": 20})
    for state.k in range(20):
        assert step(X).tolist() == [state.k, 2.0 * state.k]
    assert step.trace_count == 20


@pytest.mark.parametrize(
    ("draw", "name"),
    [
        (lambda: random.random(), "random"),
        (lambda: np.random.rand(), "numpy.random"),  # noqa: NPY002  # what is refused
        (lambda: NUMPYS.random(), "NUMPYS"),
        (lambda: PYTHONS.random(), "PYTHONS"),
    ],
    ids=["random", "numpy", "a generator of numpy's", "a generator"],
)
def test_random_numbers_of_others_are_refused_with_the_line(draw, name):
    strict = pf.compile(lambda x: x * draw(), fullgraph=True)
    with pytest.raises(pf.TraceError, match=f"draws random numbers from .*{name}"):
        strict(X)
    free = pf.compile(lambda x: x * draw())
    with pytest.warns(RuntimeWarning, match="draws random numbers"):
        seen = {free(X).tolist()[0] for _ in range(4)}
    assert len(seen) == 4


def test_an_iterator_is_refused_with_its_name():
    numbers = itertools.count()
    with pytest.raises(pf.TraceError, match=r"the iterator numbers at .*test_guards\w*.py:\d+"):
        pf.compile(lambda x: x * next(numbers), fullgraph=True)(X)
    step = pf.compile(lambda x: x * next(numbers))
    with pytest.warns(RuntimeWarning, match="iterator"):
        first, second, third = (step(X).tolist()[0] for _ in range(3))
    assert first < second < third


def test_an_object_made_inside_is_refused_with_the_line():
    class Made:
        def __init__(self, x):
            self.x = x

    box = types.SimpleNamespace()

    def step(x):
        box.made = Made(x)
        return x

    with pytest.raises(pf.TraceError, match=r"gives box.made a Made that it makes at .*\(box.made = Made\(x\)\)"):
        pf.compile(step, fullgraph=True)(X)
    assert not hasattr(box, "made")
    pf.compile(step)(X)
    assert box.made.x.tolist() == [1.0, 2.0]


def test_an_array_that_is_written_is_refused():
    array = np.zeros(2)

    def step(x):
        array[0] += 1
        return x

    with pytest.raises(pf.TraceError, match="writes into the NumPy array array"):
        pf.compile(step, fullgraph=True)(X)
    assert array[0] == 0
    pf.compile(step)(X)
    assert array[0] == 1


def test_arguments_that_are_changed_are_refused():
    def step(x, found):
        found.append(x * 2)
        return x

    with pytest.raises(pf.TraceError, match="changes a list among its arguments"):
        pf.compile(step, fullgraph=True)(X, [])
    found = []
    pf.compile(step)(X, found)
    assert found[0].tolist() == [2.0, 4.0]


def test_arguments_that_share_memory():
    def step(a, b):
        a.add_(1)
        return b * 1

    for share in (False, True):
        a, b = pf.zeros([4]), pf.zeros([4])
        compiled = pf.compile(step)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            got = [compiled(a, a.view(2, 2)[0] if share else b).tolist() for _ in range(3)]
        want_a, want_b = pf.zeros([4]), pf.zeros([4])
        want = [step(want_a, want_a.view(2, 2)[0] if share else want_b).tolist() for _ in range(3)]
        assert got == want
        assert a.tolist() == want_a.tolist()


def test_a_view_of_an_outside_tensor_is_a_view():
    w = pf.ones([2])
    step = pf.compile(lambda x: (x * 2, w.detach()))
    for i in range(3):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            _, seen = step(X)
        w.add_(1)
        assert seen.tolist() == w.tolist() == [2.0 + i] * 2


def test_lists_that_are_returned_are_the_same():
    kept = []
    f = pf.compile(lambda x: (x, kept))
    assert f(X)[1] is kept
    assert f(X)[1] is kept


def test_too_much_state_is_not_watched():
    numbers = [float(i) for i in range(60_000)]
    with pytest.raises(pf.TraceError, match="more than 50000 values"):
        pf.compile(lambda x: x * numbers[0], fullgraph=True)(X)
    f = pf.compile(lambda x: x * numbers[0])
    f(X)
    with pytest.warns(RuntimeWarning, match="more than"):
        f(X)
    numbers[0] = 3.0
    assert f(X).tolist() == [3.0, 6.0]


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        (0.0, -0.0, False), (1, 1.0, False), (1, True, False), (float("nan"), float("nan"), True), (1.5, 3.0 / 2, True),
        ((1, 0.0), (1, -0.0), False), ((1, "a"), (1, "a"), True), (np.float32(1), np.float64(1), False),
        (complex(0.0, -0.0), 0j, False), (frozenset({1}), frozenset({1}), True), ([1], [1], False),
    ],
)  # fmt: skip
def test_plain_values_are_compared_to_the_bit(a, b, same):
    assert same_plain(a, b) is same


def state_of_training(compiled):
    """Losses of a trainer whose model, hooks and settings change on the way."""

    class Net(pf.nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.norm, self.drop = pf.nn.Linear(3, 4), pf.nn.BatchNorm1d(4), pf.nn.Dropout(0.0)
            self.out, self.scale, self.seen = pf.nn.Linear(4, 1), 1.0, 0

        def forward(self, x):
            self.seen += 1
            return self.out(self.drop(self.norm(self.fc(x)))) * self.scale

    pf.manual_seed(0)
    model = Net()
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(24, 3)).astype(np.float32), rng.normal(size=(24, 1)).astype(np.float32)
    data = pf.data.TensorDataset(pf.from_numpy(x), pf.from_numpy(y))
    config = pf.training.TrainerConfig(max_epochs=2, compile=compiled, progress=False)
    optimizer = pf.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    trainer = pf.training.Trainer(model, optimizer, pf.nn.MSELoss(), config=config)
    losses = []
    for change in (None, "scale", "momentum", "hook", "dropout"):
        if change == "scale":
            model.scale = 0.5
        elif change == "momentum":
            model.norm.momentum = 0.5
        elif change == "hook":
            model.fc.register_forward_hook(lambda m, a, out: out * 0.5)
        elif change == "dropout":
            model.drop.p = 0.5
        pf.manual_seed(3)
        trainer.fit(pf.data.DataLoader(data, batch_size=8))
        losses.append(float(((model.eval()(pf.from_numpy(x)) - pf.from_numpy(y)) ** 2).mean().item()))
        model.train()
    return losses, model.seen, model.norm.running_mean.tolist()


@pytest.mark.filterwarnings("ignore:compiled:RuntimeWarning")
def test_a_trainer_gives_the_same_compiled_or_not():
    (a, seen_a, mean_a), (b, seen_b, mean_b) = state_of_training(True), state_of_training(False)
    np.testing.assert_allclose(a, b, rtol=1e-4)
    np.testing.assert_allclose(mean_a, mean_b, rtol=1e-4)
    assert seen_a == seen_b


def test_numbers_that_each_call_reads_are_no_state():
    rate, box = [0.0], types.SimpleNamespace(rate=0.0, other=1.0)

    def step(x):
        other = pf.runtime_scalar(lambda: box.rate)
        return x * pf.runtime_scalar(lambda: rate[0]) + other * box.other

    compiled = pf.compile(step, options={"recompile_limit": 20})
    for i in range(12):
        rate[0], box.rate = float(i), 2.0 * i
        assert compiled(X).tolist() == step(X).tolist() == [3.0 * i, 4.0 * i]
    box.other = 3.0
    assert compiled(X).tolist() == step(X).tolist()


def test_a_rate_that_each_call_reads_makes_one_trace():
    rate = [0.0]
    compiled = pf.compile(lambda x: x * pf.runtime_scalar(lambda: rate[0]))
    for i in range(12):
        rate[0] = float(i)
        assert compiled(X).tolist() == [i, 2.0 * i]
    assert compiled.trace_count == 1


def test_modules_imported_inside(monkeypatch):
    import tests.unit.pyflame.compiling.state_programs as elsewhere

    def read(x):
        from tests.unit.pyflame.compiling.state_programs import RATE_OF_A_TEST

        return x * RATE_OF_A_TEST

    f = pf.compile(read)
    for rate in (1.0, 2.0):
        monkeypatch.setattr(elsewhere, "RATE_OF_A_TEST", rate, raising=False)
        assert f(X).tolist() == [rate, 2 * rate]


def test_globals_found_by_strings(monkeypatch):
    f, g = pf.compile(lambda x: x * globals()["RATE"]), pf.compile(lambda x: x * eval("RATE + 1"))
    for rate in (1.0, 2.0):
        monkeypatch.setitem(globals(), "RATE", rate)
        assert f(X).tolist() == [rate, 2 * rate]
        assert g(X).tolist() == [rate + 1, 2 * rate + 2]


def test_facts_of_a_tensor_that_is_only_asked():
    w = pf.ones([2], requires_grad=True)
    f = pf.compile(lambda x: x * len(w.shape) * (2 if w.requires_grad else 1))
    assert f(X).tolist() == [2.0, 4.0]
    w.requires_grad_(False)
    assert f(X).tolist() == [1.0, 2.0]
    w.data = pf.ones([2, 2])
    assert f(X).tolist() == [2.0, 4.0]


def test_attributes_of_a_metaclass_and_objects_in_an_array():
    class Kind(type):
        rate = 2.0

    class Made(metaclass=Kind):
        pass

    held = np.array([types.SimpleNamespace(k=1.0)], object)
    f = pf.compile(lambda x: x * Made.rate * held[0].k)
    assert f(X).tolist() == [2.0, 4.0]
    Kind.rate = 3.0
    assert f(X).tolist() == [3.0, 6.0]
    held[0].k = 2.0
    assert f(X).tolist() == [6.0, 12.0]


def test_a_result_that_is_kept_too_is_one_tensor():
    box = types.SimpleNamespace(h=pf.zeros([2]))

    def step(x):
        box.h = box.h + x
        return box.h, [box.h]

    f = pf.compile(step)
    for _ in range(3):
        out, listed = f(X)
        assert out is box.h is listed[0]
        out.add_(1)
    assert box.h.tolist() == [6.0, 9.0]


def test_other_entries_of_a_namespace_may_change():
    box, kept = types.SimpleNamespace(t=pf.zeros([2]), seen=[]), []
    f = pf.compile(lambda x: x + box.t)
    for i in range(12):
        box.seen.append(i)
        box.t = kept[0] if kept and i % 3 == 2 else pf.tensor([float(i), 0.0])
        kept.append(box.t)
        assert f(X).tolist() == (X + box.t).tolist()
    assert f.trace_count == 1
