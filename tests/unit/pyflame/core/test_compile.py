"""Compiled functions: traced once, replayed with everything they write."""

import numpy as np
import pytest

import pyflame as pf


def test_one_trace_for_alike_calls():
    @pf.compile
    def f(x, scale, *, shift=0.0):
        return {"y": pf.relu(x) * scale + shift, "x": x}

    for values in ([1.0, -1.0], [2.0, 3.0]):
        out = f(pf.tensor(values), 2.0, shift=1.0)
        np.testing.assert_allclose(out["y"].numpy(), np.maximum(values, 0) * 2 + 1)
        assert out["x"].tolist() == values
    assert f.trace_count == 1
    f(pf.tensor([1.0]), 2.0, shift=1.0)  # another shape
    f(pf.tensor([1.0]), 3.0, shift=1.0)  # another number
    f(pf.tensor([1.0]), 3, shift=1.0)  # another kind of number
    f(pf.tensor([1.0], dtype=pf.float64), 3, shift=1.0)
    with pf.no_grad():
        f(pf.tensor([1.0]), 3, shift=1.0)
    assert f.trace_count == 6


def test_state_that_is_written_is_bound_back():
    count, seen = pf.zeros([]), pf.zeros([2])

    @pf.compile
    def step(x):
        count.add_(1)
        seen.copy_(seen * 0.5 + x)
        return seen.sum() + count

    total = np.zeros(2)
    for i in range(1, 5):
        x = np.array([i, 2.0 * i])
        total = total * 0.5 + x
        assert step(pf.tensor(x, dtype=pf.float32)).item() == pytest.approx(total.sum() + i)
    assert count.item() == 4
    np.testing.assert_allclose(seen.numpy(), total)


def test_pending_graphs_keep_the_old_value_and_tensors_of_one_storage_see_the_new_one():
    s = pf.zeros([2])

    @pf.compile
    def step():
        s.add_(1)

    step()
    step()
    pending, alias = s * 10, s.detach()
    step()
    assert (s.tolist(), pending.tolist(), alias.tolist()) == ([3, 3], [20, 20], [3, 3])


def test_tensors_changed_from_outside_are_seen():
    w = pf.tensor([1.0])
    f = pf.compile(lambda x: x * w)
    assert f(pf.tensor([2.0])).item() == 2
    w.fill_(5.0)
    assert f(pf.tensor([2.0])).item() == 10


def _train(w, lr, x, y):
    w.grad = None
    loss = ((x @ w - y) ** 2).mean()
    loss.backward()
    with pf.no_grad():
        w.sub_(w.grad * pf.runtime_scalar(lambda: lr[0], pf.float64))
    w.grad = None
    pf.eval(w)
    return loss


def test_a_training_step_is_the_eager_one():
    rng = np.random.default_rng(0)
    data = [(rng.normal(size=(8, 3)), rng.normal(size=(8, 1))) for _ in range(6)]
    losses = []
    for wrap in (lambda f: f, pf.compile):
        w, lr = pf.tensor(np.ones((3, 1)), requires_grad=True), [0.1]
        step = wrap(lambda x, y, w=w, lr=lr: _train(w, lr, x, y))
        row = []
        for i, (x, y) in enumerate(data):
            lr[0] = 0.1 / (i + 1)
            row.append(step(pf.tensor(x), pf.tensor(y)).item())
        losses.append(row)
        assert w.requires_grad
        assert w.grad is None
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-12)


def test_gradients_left_at_the_end_are_there():
    w = pf.tensor([3.0], requires_grad=True)

    @pf.compile
    def f(x):
        loss = (w * w * x).sum()
        loss.backward()
        return loss

    f(pf.tensor([2.0]))
    assert w.grad.item() == 12
    f(pf.tensor([1.0]))
    assert w.grad.item() == 18, "gradients accumulate over calls, as they do without compiling"
    f(pf.tensor([1.0]))
    assert w.grad.item() == 24
    assert f.trace_count == 2


def test_gradients_from_outside_are_read_again():
    w = pf.tensor([1.0], requires_grad=True)

    @pf.compile
    def step():
        with pf.no_grad():
            w.sub_(w.grad)

    for factor in (3.0, 5.0):
        w.grad = None
        (w * factor).sum().backward()
        step()
    assert w.item() == 1 - 3 - 5
    assert step.trace_count == 1


def test_gradients_flow_through_a_compiled_function():
    w = pf.tensor(np.ones((3, 2)), requires_grad=True)
    f = pf.compile(lambda x: pf.tanh(x @ w))
    x = pf.tensor(np.arange(6.0).reshape(2, 3) / 10, requires_grad=True)
    for _ in range(2):
        f(x).sum().backward()
        found = x.grad.numpy(), w.grad.numpy()
        x.grad = w.grad = None
        pf.tanh(x @ w).sum().backward()
        np.testing.assert_allclose(found[0], x.grad.numpy(), rtol=1e-12)
        np.testing.assert_allclose(found[1], w.grad.numpy(), rtol=1e-12)
        x.grad = w.grad = None


def test_random_numbers_are_new_in_each_call_and_repeatable():
    f = pf.compile(lambda x: pf.dropout(x, p=0.5))
    pf.manual_seed(1)
    first, second = f(pf.ones([64])).tolist(), f(pf.ones([64])).tolist()
    assert first != second
    pf.manual_seed(1)
    assert f(pf.ones([64])).tolist() == first
    pf.manual_seed(1)
    assert pf.dropout(pf.ones([64]), p=0.5).tolist() == first


def test_reading_contents_inside_is_refused():
    for ask in (lambda x: x.item(), lambda x: bool(x > 0), lambda x: x.sum().numpy()):
        with pytest.raises(pf.TraceError, match="where"):
            pf.compile(ask, fullgraph=True)(pf.tensor(1.0))


def test_a_function_that_fails_leaves_everything_as_it_was():
    state = pf.zeros([1])

    @pf.compile
    def f(x):
        state.add_(x)
        raise KeyError("no")

    with pytest.raises(KeyError):
        f(pf.ones([1]))
    assert state.item() == 0
    assert (pf.ones([1]) + 1).item() == 2


def test_modules_in_another_mode_are_traced_again():
    net = pf.nn.Dropout(0.5)
    f = pf.compile(lambda x: net(x))
    x = pf.ones([100])
    assert 0 in f(x).tolist()
    net.eval()
    assert f(x).tolist() == [1] * 100
    net.train()
    assert 0 in f(x).tolist()
    assert f.trace_count == 2


def test_compiled_inside_compiled_and_arrays():
    inner = pf.compile(lambda x: x + 1)
    outer = pf.compile(lambda x: inner(x) * 2)
    assert outer(np.ones(2, np.float32)).tolist() == [4, 4]
    assert inner.trace_count == 0


def test_replaying_takes_the_fast_path():
    state = [pf.zeros([4]) for _ in range(5)]

    @pf.compile
    def step(x):
        for s in state:
            s.add_(x)

    for _ in range(3):
        step(pf.ones([4]))
    (trace,) = next(iter(step._traces.values()))
    assert trace.replay.fast_runs == 2
    assert state[0].tolist() == [3, 3, 3, 3]
