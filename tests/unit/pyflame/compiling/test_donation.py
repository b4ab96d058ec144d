"""Compiled steps write new parameters into the memory of the old ones, unless somebody else can see those."""

import numpy as np
import pytest

import pyflame as pf
from pyflame.nn import functional as F


def training(optimizer="Adam", **settings):
    pf.manual_seed(0)
    model = pf.nn.Sequential(pf.nn.Linear(96, 300), pf.nn.ReLU(), pf.nn.Linear(300, 7))
    chosen = getattr(pf.optim, optimizer)(model.parameters(), lr=1e-2, **settings)

    @pf.compile
    def step(x, y):
        loss = F.cross_entropy(model(x), y)
        chosen.zero_grad()
        loss.backward()
        chosen.step()
        return loss

    rng = np.random.default_rng(0)
    x = pf.from_numpy(rng.normal(size=(40, 96)).astype(np.float32))
    return model, chosen, step, (x, pf.from_numpy(rng.integers(0, 7, 40)))


def addresses(step):
    """Where a step keeps what it writes."""
    (trace,) = (trace for traces in step._traces.values() for trace in traces)
    written = [b for b in trace.replay.bindings if b.out >= 0]
    assert all(b.private for b in written)
    return {b.array.ctypes.data for b in written}


@pytest.mark.parametrize("optimizer", ["Adam", "AdamW", "SGD", "RMSprop"])
def test_parameters_state_and_gradients_stay_where_they_are(optimizer):
    settings = {"momentum": 0.9} if optimizer in ("SGD", "RMSprop") else {}
    model, chosen, step, data = training(optimizer, **settings)
    for _ in range(3):
        step(*data)
    before = addresses(step)
    assert len(before) == 2 * len(list(model.parameters())) + sum(map(len, chosen.state.values())) - 3
    for _ in range(3):
        step(*data)
    assert addresses(step) == before
    values = [p.numpy() for p in model.parameters()]
    step(*data)
    assert all(np.abs(p.numpy() - old).max() > 0 for p, old in zip(model.parameters(), values, strict=True))
    assert step.trace_count == 1


def test_losses_are_those_of_steps_that_copy(monkeypatch):
    _, _, step, data = training()
    got = [step(*data).item() for _ in range(8)]
    monkeypatch.setattr("pyflame_rt.backends.cpu.run.executable.fast_path", lambda *_: None)
    _, _, step, data = training()
    assert got == [step(*data).item() for _ in range(8)]
    assert got[-1] < got[0]


@pytest.mark.parametrize("hold", ["view", "detached", "saved", "array", "lazy", "dlpack"])
def test_what_others_hold_is_not_overwritten(hold):
    model, _, step, data = training()
    for _ in range(3):
        step(*data)
    weight = model[0].weight
    before = weight.numpy()
    kept = {
        "view": lambda: weight.numpy(copy=False),
        "detached": weight.detach,
        "saved": lambda: model.state_dict()["0.weight"],
        "array": lambda: np.from_dlpack(weight.detach()),
        "lazy": lambda: weight.detach() * 1.0,
        "dlpack": lambda: memoryview(weight.numpy(copy=False)),
    }[hold]()
    for _ in range(2):
        step(*data)
    kept = kept.numpy() if isinstance(kept, pf.Tensor) else np.asarray(kept)
    shared = hold in ("detached", "saved")  # of the same storage, as in torch
    np.testing.assert_array_equal(kept, weight.numpy() if shared else before)
    assert np.abs(weight.numpy() - before).max() > 0


def test_an_index_out_of_range_changes_no_parameter():
    pf.manual_seed(0)
    model = pf.nn.Sequential(pf.nn.Embedding(50, 64), pf.nn.Linear(64, 600))
    chosen = pf.optim.Adam(model.parameters(), lr=1e-2)

    @pf.compile
    def step(x):
        loss = (model(x) ** 2).mean()
        chosen.zero_grad()
        loss.backward()
        chosen.step()
        return loss

    ids = np.arange(32) % 50
    for _ in range(3):
        step(pf.from_numpy(ids))
    before = {name: p.numpy() for name, p in model.named_parameters()}
    moments = [t.numpy() for slots in chosen.state.values() for t in slots.values()]
    with pytest.raises(pf.InputError if hasattr(pf, "InputError") else Exception, match="out of range"):
        step(pf.from_numpy(ids + 40))
    for name, p in model.named_parameters():
        np.testing.assert_array_equal(p.numpy(), before[name])
    for old, t in zip(moments, (t for s in chosen.state.values() for t in s.values()), strict=True):
        np.testing.assert_array_equal(t.numpy(), old)
    assert np.isfinite(step(pf.from_numpy(ids)).item())


def test_dropping_gradients_first_needs_one_trace_and_reading_them_two():
    pf.manual_seed(0)
    model = pf.nn.Linear(3, 2)
    x = pf.ones([4, 3])

    @pf.compile
    def dropped(x):
        model.zero_grad()
        model(x).sum().backward()
        return x

    @pf.compile
    def added(x):
        model(x).sum().backward()
        return x

    for _ in range(3):
        dropped(x)
        np.testing.assert_array_equal(model.weight.grad.numpy(), np.full((2, 3), 4, np.float32))
    assert dropped.trace_count == 1
    for k in range(3):
        added(x)
        np.testing.assert_array_equal(model.weight.grad.numpy(), np.full((2, 3), 4 * (k + 2), np.float32))
    model.zero_grad()
    added(x)
    assert added.trace_count == 2


def test_kernels_of_one_element_stay_where_they_are_too():
    pf.manual_seed(0)
    model = pf.nn.Sequential(pf.nn.Conv2d(3, 4, 3), pf.nn.Conv2d(4, 6, 1, bias=False))
    chosen = pf.optim.Adam(model.parameters(), lr=1e-2)

    @pf.compile
    def step(x):
        loss = (model(x) ** 2).mean()
        chosen.zero_grad()
        loss.backward()
        chosen.step()
        return loss

    x = pf.from_numpy(np.random.default_rng(0).normal(size=(2, 3, 8, 8)).astype(np.float32))
    for _ in range(8):
        step(x)
    (trace,) = (trace for traces in step._traces.values() for trace in traces)
    pairs = {b.out for b in trace.replay.bindings if b.out >= 0 and b.place >= 0}
    assert pairs <= trace.replay.plan.executable.donated.keys()
