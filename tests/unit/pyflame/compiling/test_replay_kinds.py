"""Every kind of step takes the fast path, several at once do, and all give what the long way gives."""

import copy
import gc
import multiprocessing
import os
import threading

import numpy as np
import pytest

import pyflame as pf
from pyflame.compiling.replay import Replay
from pyflame.nn import functional as F
from pyflame.tools import Profiler

CALLS = 12


def batches(number=CALLS, size=24):
    rng = np.random.default_rng(1)
    return [
        (pf.from_numpy(rng.normal(size=(size, 10)).astype(np.float32)), pf.from_numpy(rng.integers(0, 5, size)))
        for _ in range(number)
    ]


def network(seed=0, *, dropout=0.0, norm=False):
    pf.manual_seed(seed)
    parts = [pf.nn.Linear(10, 16), pf.nn.ReLU(), pf.nn.Dropout(dropout), pf.nn.Linear(16, 5)]
    if norm:
        parts.insert(1, pf.nn.BatchNorm1d(16))
    return pf.nn.Sequential(*parts)


def traces(function):
    return [trace for found in function._traces.values() for trace in found]


def quick(*functions):
    return all(any(trace.replay.fast_runs for trace in traces(f)) for f in functions)


def training(model, optimizer):
    @pf.compile
    def step(x, y):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step


def both_ways(run, monkeypatch):
    """What ``run`` gives by the fast path and by the long way."""
    short = run()
    with monkeypatch.context() as patch:
        patch.setattr("pyflame_rt.backends.cpu.run.executable.fast_path", lambda *_: None)
        slow = run()
    assert len(short) == len(slow)
    for a, b in zip(short, slow, strict=True):
        np.testing.assert_array_equal(a, b)
    return short


def state_of(model):
    return [v.numpy().copy() for v in model.state_dict().values()]


def test_dropout_draws_the_same_numbers(monkeypatch):
    seen = []

    def run():
        model = network(dropout=0.5)
        step = training(model, pf.optim.Adam(model.parameters(), lr=1e-2))
        losses = [step(*batch).item() for batch in batches()]
        seen.append(quick(step))
        return [*losses, *state_of(model), np.array(pf.random.default_generator.get_state()), pf.rand(3).numpy()]

    both_ways(run, monkeypatch)
    assert seen == [True, False]


def test_a_seed_set_in_between_counts():
    model = network(dropout=0.5)
    step = training(model, pf.optim.SGD(model.parameters(), lr=0.0))
    batch = batches(1)[0]
    for _ in range(6):
        step(*batch)
    assert quick(step)
    pf.manual_seed(7)
    first = [step(*batch).item() for _ in range(3)]
    pf.manual_seed(7)
    assert [step(*batch).item() for _ in range(3)] == first
    assert len(set(first)) > 1


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("parts", [1, 3])
def test_accumulated_gradients(monkeypatch, set_to_none, parts):
    seen = []

    def run():
        model = network()
        optimizer = pf.optim.Adam(model.parameters(), lr=1e-2)

        @pf.compile
        def backward(x, y):
            loss = F.cross_entropy(model(x), y) / parts
            loss.backward()
            return loss

        @pf.compile
        def update():
            optimizer.step()
            optimizer.zero_grad(set_to_none=set_to_none)

        losses = []
        for i, batch in enumerate(batches(8 * parts)):
            losses.append(backward(*batch).item())
            if i % parts == parts - 1:
                update()
        seen.append([trace.replay.fast_runs > 0 for f in (backward, update) for trace in traces(f)])
        return [*losses, *state_of(model)]

    both_ways(run, monkeypatch)
    # Gradients set to zero are there from the second call on; the trace without any is used once.
    assert sum(seen[0]) == len(seen[0]) - (not set_to_none)
    assert not any(seen[1])


def test_a_gradient_that_is_held_does_not_change():
    model = network()

    @pf.compile
    def backward(x, y):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    data = batches()
    for batch in data[:6]:
        backward(*batch)
    assert quick(backward)
    held = model[0].weight.grad
    before = held.numpy().copy()
    backward(*data[6])
    np.testing.assert_array_equal(held.numpy(), before)
    assert not np.array_equal(model[0].weight.grad.numpy(), before)


def test_gradients_of_the_user_are_added_to(monkeypatch):
    def run():
        model = network()

        @pf.compile
        def backward(x, y):
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        found = []
        for i, batch in enumerate(batches()):
            if i % 4 == 3:
                for p in model.parameters():
                    p.grad = pf.ones(p.shape)
            backward(*batch)
            found += [p.grad.numpy().copy() for p in model.parameters()]
        return found

    both_ways(run, monkeypatch)


def test_statistics_are_written_in_place_too(monkeypatch):
    seen = []

    def run():
        model = network(norm=True)
        step = training(model, pf.optim.AdamW(model.parameters(), lr=1e-2))
        losses = [step(*batch).item() for batch in batches()]
        seen.append(quick(step))
        return [*losses, *state_of(model)]

    both_ways(run, monkeypatch)
    assert seen == [True, False]


def test_training_and_answers_in_turn(monkeypatch):
    seen = []

    def run():
        model = network()
        step = training(model, pf.optim.Adam(model.parameters(), lr=1e-2))
        ask = pf.compile(lambda x: model(x))
        found = []
        for x, y in batches():
            found.append(step(x, y).item())
            with pf.no_grad():
                found.append(ask(x).numpy())
        seen.append(quick(step, ask))
        return found

    both_ways(run, monkeypatch)
    assert seen == [True, False]


def test_answers_follow_parameters_that_are_set():
    model = network()
    ask = pf.compile(lambda x: model(x))
    x = batches(1)[0][0]
    with pf.no_grad():
        for _ in range(5):
            ask(x)
        assert quick(ask)
        for _ in range(3):
            model[3].bias.data = model[3].bias + 1.0
            np.testing.assert_allclose(ask(x).numpy(), model(x).numpy(), rtol=1e-5, atol=1e-6)
        model.load_state_dict(network(seed=3).state_dict())
        np.testing.assert_allclose(ask(x).numpy(), model(x).numpy(), rtol=1e-5, atol=1e-6)
        assert quick(ask)


def test_two_models_and_two_sizes_in_turn(monkeypatch):
    seen = []

    def run():
        models = [network(seed) for seed in (1, 2)]
        steps = [training(m, pf.optim.Adam(m.parameters(), lr=1e-2)) for m in models]
        found = []
        for (x, y), (a, b) in zip(batches(), batches(size=7), strict=True):
            found += [step(*batch).item() for step in steps for batch in ((x, y), (a, b))]
        seen.append([trace.replay.fast_runs > 0 for step in steps for trace in traces(step)])
        return [*found, *state_of(models[0]), *state_of(models[1])]

    both_ways(run, monkeypatch)
    assert seen[0] == [True] * 4


def test_two_steps_on_the_same_parameters(monkeypatch):
    def run():
        model = network()
        steps = [training(model, pf.optim.Adam(model.parameters(), lr=lr)) for lr in (1e-2, 1e-3)]
        found = [step(*batch).item() for batch in batches() for step in steps]
        return [*found, *state_of(model)]

    both_ways(run, monkeypatch)


def test_an_argument_may_be_a_parameter():
    model = network()
    w = model[0].weight

    @pf.compile
    def step(t):
        with pf.no_grad():
            w.data = w * 0.5
            return (t - w).sum()

    other = pf.ones(w.shape)
    for _ in range(5):
        step(other)
    assert quick(step)
    before = w.numpy().copy()
    with pytest.warns(RuntimeWarning, match="shares its memory"):
        assert step(w).item() == 0  # as without compiling: the argument is what was halved
    np.testing.assert_array_equal(w.numpy(), before * 0.5)


def test_plain_named_and_nested_arguments():
    model = network()

    @pf.compile
    def ask(batch, scale=1.0, *, shift=0):
        return {"y": model(batch["x"]) * scale + shift, "x": batch["x"]}

    @pf.compile
    def flat(x, scale):
        return model(x) * scale

    x = batches(1)[0][0]
    with pf.no_grad():
        for _ in range(4):
            for scale, shift in ((1.0, 0), (2.0, 1)):
                got = ask({"x": x}, scale, shift=shift)
                np.testing.assert_allclose(got["y"].numpy(), model(x).numpy() * scale + shift, rtol=1e-5, atol=1e-6)
                assert got["x"] is x
                np.testing.assert_allclose(flat(x, scale).numpy(), model(x).numpy() * scale, rtol=1e-5, atol=1e-6)
        assert all(trace.replay.fast_runs for trace in (*traces(ask), *traces(flat)))
        np.testing.assert_allclose(flat(x, 3.0).numpy(), model(x).numpy() * 3, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(flat(x, 2).numpy(), model(x).numpy() * 2, rtol=1e-5, atol=1e-6)


def test_arrays_as_arguments():
    double = pf.compile(lambda x: x * 2)
    rng = np.random.default_rng(0)
    for shape in ((3, 4), (4, 3)):
        for _ in range(4):
            a = rng.normal(size=shape).astype(np.float32)
            np.testing.assert_array_equal(double(a).numpy(), a * 2)
            np.testing.assert_array_equal(double(a.T).numpy(), a.T * 2)
            np.testing.assert_array_equal(double(a.astype(np.float64)).numpy(), a.astype(np.float64) * 2)


def test_optimizer_state_that_is_saved_and_loaded():
    model, other = network(), network()
    optimizers = [pf.optim.Adam(m.parameters(), lr=1e-2) for m in (model, other)]
    step, same = training(model, optimizers[0]), training(other, optimizers[1])
    data = batches()
    for batch in data[:6]:
        step(*batch)
        same(*batch)
    saved, weights = optimizers[0].state_dict(), {k: v.numpy().copy() for k, v in model.state_dict().items()}
    saved = copy.deepcopy(saved)  # what is in it is of the optimizer's own storages, as in torch
    first = [step(*batch).item() for batch in data[6:]]
    optimizers[1].load_state_dict(saved)
    other.load_state_dict({k: pf.from_numpy(v) for k, v in weights.items()})
    assert [same(*batch).item() for batch in data[6:]] == first


def test_results_are_the_callers():
    model = network()
    step = training(model, pf.optim.SGD(model.parameters(), lr=0.1))
    held = [step(*batch) for batch in batches(80)]
    values = [loss.item() for loss in held]
    assert len(set(values)) == len(values)
    arrays = [loss.numpy(copy=False) for loss in held]
    assert len({a.ctypes.data for a in arrays}) == len(held)


def test_models_in_threads(monkeypatch):
    data = batches(30)

    def train(seed, out):
        model = network(0)
        step = training(model, pf.optim.Adam(model.parameters(), lr=1e-2 * (seed + 1)))
        out[seed] = [step(*batch).item() for batch in data]

    alone: dict = {}
    for seed in range(3):
        train(seed, alone)
    together: dict = {}
    lock = threading.Lock()

    def one(seed):
        with lock:  # weights come from one generator
            model = network(0)
        step = training(model, pf.optim.Adam(model.parameters(), lr=1e-2 * (seed + 1)))
        together[seed] = [step(*batch).item() for batch in data]

    threads = [threading.Thread(target=one, args=(seed,)) for seed in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert together == alone


def test_one_function_in_threads():
    model = network()
    ask = pf.compile(lambda x: model(x))
    xs = [x for x, _ in batches(8)]
    with pf.no_grad():
        wanted = [model(x).numpy() for x in xs]
    wrong = []

    def many():
        with pf.no_grad():
            for _ in range(40):
                for x, y in zip(xs, wanted, strict=True):
                    got = ask(x).numpy()
                    if not np.allclose(got, y, rtol=1e-5, atol=1e-6):
                        wrong.append(got)

    threads = [threading.Thread(target=many) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_one_training_step_in_threads_does_not_crash():
    model = network(dropout=0.2)
    step = training(model, pf.optim.Adam(model.parameters(), lr=1e-3))
    data = batches()
    for batch in data[:5]:
        step(*batch)
    failed = []

    def many():
        try:
            for _ in range(15):
                for batch in data:
                    assert np.isfinite(step(*batch).item())
        except BaseException as error:
            failed.append(error)
            raise

    threads = [threading.Thread(target=many) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed


def test_a_profiler_sees_every_call():
    model = network()
    step = training(model, pf.optim.SGD(model.parameters(), lr=0.1))
    data = batches()
    for batch in data[:6]:
        step(*batch)
    assert quick(step)
    with Profiler() as profiler:
        step(*data[6])
    assert profiler.result.events
    for batch in data[7:10]:
        step(*batch)
    assert quick(step)


def _child(queue, step, batch, wanted):
    queue.put(step(*batch).item() == wanted)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_child_takes_the_long_way():
    model, same = network(), network()
    step, other = (training(m, pf.optim.SGD(m.parameters(), lr=0.1)) for m in (model, same))
    data = batches()
    for batch in data[:6]:
        step(*batch)
        other(*batch)
    assert quick(step)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_child, args=(queue, step, data[6], other(*data[6]).item()))
    child.start()
    assert queue.get(timeout=120) is True
    child.join(120)
    assert child.exitcode == 0


def test_what_is_dropped_is_freed():
    counts = []
    for _ in range(3):
        model = network()
        step = training(model, pf.optim.Adam(model.parameters(), lr=1e-2))
        for batch in batches():
            step(*batch)
        assert quick(step)
        del model, step
        gc.collect()
        counts.append(sum(type(o) is Replay for o in gc.get_objects()))
    assert counts[0] == counts[-1]
