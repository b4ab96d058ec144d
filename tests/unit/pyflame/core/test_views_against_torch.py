"""Views and in-place operations do what torch does: random programs side by side."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hypothesis import HealthCheck, given, settings  # noqa: E402

import pyflame as pf  # noqa: E402
from tests.unit.pyflame.core.inplace_programs import programs, run  # noqa: E402

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


@settings(max_examples=60, deadline=None, suppress_health_check=SLOW)
@given(programs())
def test_programs(program):
    run(program)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@settings(max_examples=20_000, deadline=None, suppress_health_check=SLOW)
@given(programs())
def test_many_programs(program):
    run(program)


# ------------------------------------------------------------------ views older than the gradients of their base


def _older(module):
    """A view made before its base required gradients, and the leaf that brought them."""
    x, leaf = module.zeros(3, 3), module.ones(3, 3, requires_grad=True)
    view = x.diagonal()
    x.add_(leaf * 2)
    return view, leaf


def _outcome(module, *uses):
    """Which uses of such a view are accepted, what it holds then, and the gradient that goes through it."""
    view, leaf = _older(module)
    accepted = []
    for use in uses:
        try:
            use(view, module)
        except RuntimeError:
            accepted.append(False)
        else:
            accepted.append(True)
    (view * view).sum().backward()
    return accepted, view.detach().numpy().tolist(), leaf.grad.numpy().tolist()


def _add(view, module):
    view.add_(1)


def _without_gradients(use):
    def run(view, module):
        with module.no_grad():
            use(view, module)

    return run


KEYS = {
    "an int": lambda m: 0, "None": lambda m: None, "all": lambda m: slice(None), "an ellipsis": lambda m: ...,
    "from 0": lambda m: slice(0, None), "to the end": lambda m: slice(0, 3), "beyond": lambda m: slice(0, 9),
    "from the end": lambda m: slice(-3, None), "from 1": lambda m: slice(1, None), "nothing": lambda m: slice(3, None),
    "every": lambda m: slice(None, None, 1), "every other": lambda m: slice(None, None, 2), "True": lambda m: True,
    "()": lambda m: (), "(:,)": lambda m: (slice(None),), "(..., :)": lambda m: (..., slice(None)),
    "(..., 0)": lambda m: (..., 0), "a list": lambda m: [0, 1], "a mask": lambda m: m.tensor([True, False, True]),
    "an index tensor": lambda m: m.tensor([0, 1]), "one index in a tensor": lambda m: m.tensor(0),
    "one boolean in a tensor": lambda m: m.tensor(True), "None and indices": lambda m: (None, [0, 1]),
    "an int of NumPy": lambda m: np.int64(0), "an array": lambda m: np.array([0, 1]),
}  # fmt: skip


@pytest.mark.parametrize("name", KEYS)
def test_items_of_a_view_older_than_its_gradients(name):
    def put(view, module):
        view[KEYS[name](module)] = 5.0

    assert _outcome(pf, put, _add) == _outcome(torch, put, _add)


USES = {
    "nothing": lambda v, m: None, "a sum": lambda v, m: v.sum(), "a clone": lambda v, m: v.clone(),
    "a view": lambda v, m: v.view(-1), "an item": lambda v, m: v[0], "detach": lambda v, m: v.detach(),
    "data": lambda v, m: v.data, "a sum of what is detached": lambda v, m: v.detach().sum(),
    "iteration": lambda v, m: list(v), "a stack": lambda v, m: m.stack([v, v]), "zero_": lambda v, m: v.zero_(),
    "fill_": lambda v, m: v.fill_(1.0), "copy_": lambda v, m: v.copy_(m.ones(3)), "itself": lambda v, m: v.add_(v),
    "relu": lambda v, m: m.nn.functional.relu(v, inplace=True),
    "dropout": lambda v, m: m.nn.functional.dropout(v, inplace=True), "uniform_": lambda v, m: v.uniform_(),
    "alpha dropout": lambda v, m: m.nn.functional.alpha_dropout(v, training=True, inplace=True),
    "normal_": lambda v, m: v.normal_(),
    "bernoulli_": lambda v, m: v.bernoulli_(), "random_": lambda v, m: v.random_(),
    "index_put_": lambda v, m: v.index_put_((m.tensor([0]),), m.tensor(1.0)),
}  # fmt: skip


@pytest.mark.parametrize("after", ["a sum", "detach", "nothing"])
@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("name", USES)
def test_uses_of_a_view_older_than_its_gradients(name, recorded, after):
    chance = {"dropout", "alpha dropout", "uniform_", "normal_", "bernoulli_", "random_"}
    use = USES[name] if recorded else _without_gradients(USES[name])
    got, expected = (_outcome(m, use, USES[after], _add) for m in (pf, torch))
    assert got == expected if recorded or name not in chance else got[0] == expected[0]


SAME = {
    "expanded": lambda x: x.expand(2, 3),
    "turned twice": lambda x: x.T.T,
    "a row, expanded": lambda x: x[0].expand(2, 3),
}


@pytest.mark.parametrize("name", SAME)
def test_a_copy_of_the_same_elements_changes_nothing(name):
    def run(module):
        x = module.arange(3.0).reshape(1, 3)
        first, second = SAME[name](x), SAME[name](x)
        assert first.copy_(second) is first
        x.add_(1)
        return x.tolist(), first.tolist(), second.tolist()

    assert run(pf) == run(torch)


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("name", SAME)
def test_a_copy_of_the_same_elements_is_a_write(name, recorded):
    def refusals(module):
        x = module.ones(1, 3, requires_grad=True)
        saved = x.exp()  # whose gradient reads it
        part = (x * 1).split(1, 0)[0]  # one of several views, refused once their base was written
        uses = (lambda: saved.sum().backward(), lambda: (part * 1).sum().backward())
        for t in (saved, part):
            with module.set_grad_enabled(recorded):
                held = t.detach() if recorded else t
                SAME[name](held).copy_(SAME[name](held))
        return [_is_refused(use) for use in uses]

    assert refusals(pf) == refusals(torch)


def _is_refused(use):
    try:
        use()
    except RuntimeError:
        return True
    return False


def test_a_copy_of_other_elements_to_an_expanded_tensor_is_refused_in_both():
    for module in (torch, pf):
        x = module.arange(6.0).reshape(2, 3)
        with pytest.raises(RuntimeError, match="clone"):
            x[0].expand(2, 3).copy_(x[1].expand(2, 3))
