"""State that is reached through decorators of libraries, and by optimizers of the user's own: compiled as it is."""

import contextlib
import functools

import pytest

import pyflame as pf
from pyflame.optim import Optimizer


class State:
    """What the functions below read and write."""

    def __init__(self):
        self.rate, self.sum = 1.0, pf.zeros(2)


state = State()


def step(x):
    state.sum = state.sum + x
    return x * state.rate


@contextlib.contextmanager
def managed(x):
    state.sum = state.sum + x
    yield state.rate


def within(x):
    with managed(x) as rate:
        return x * rate


@functools.singledispatch
def dispatched(x):
    raise TypeError(x)


@dispatched.register
def _(x: pf.Tensor):
    return step(x)


class Methods:
    forward = pf.no_grad()(lambda self, x: step(x))
    kept = staticmethod(pf.inference_mode()(step))
    of_class = classmethod(pf.enable_grad()(lambda cls, x: step(x)))
    rate = property(pf.no_grad()(lambda self: state.rate))

    @functools.cached_property
    def caller(self):
        return pf.no_grad()(step)


class Model(pf.nn.Module):
    @pf.no_grad()
    def forward(self, x):
        return step(x)


methods, model = Methods(), Model()
assert methods.caller  # a call must not make it
DECORATED = {
    "no_grad": pf.no_grad()(step),
    "inference_mode": pf.inference_mode()(step),
    "set_grad_enabled": pf.set_grad_enabled(True)(step),
    "autocast": pf.autocast("cpu", enabled=False)(step),
    "twice": pf.no_grad()(pf.enable_grad()(step)),
    "a context manager": within,
    "singledispatch": dispatched,
    "a method": methods.forward,
    "a static method": Methods.kept,
    "a class method": Methods.of_class,
    "a property": lambda x: x * methods.rate + step(x),
    "a cached property": lambda x: methods.caller(x),
    "a module": model,
    "a partial": functools.partial(pf.no_grad()(step)),
    "a checkpoint": lambda x: pf.utils.checkpoint.checkpoint(pf.no_grad()(step), x, use_reentrant=False),
    "vmap": lambda x: pf.func.vmap(lambda v: v * state.rate)(x) + step(x),
}


def history(function):
    """What a function gives while the rate changes now and then, and what it leaves."""
    vars(state).update(vars(State()))
    given = []
    for i in range(6):
        state.rate = 1.0 + i // 3
        given.append(function(pf.ones(2)).tolist())
    return given, state.sum.tolist()


@pytest.mark.parametrize("name", DECORATED)
def test_state_behind_a_decorator(name):
    function = DECORATED[name]
    assert history(pf.compile(function, fullgraph=True)) == history(function)


class Momentum(Optimizer):
    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})

    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                kept = self.state[p]
                if not kept:
                    kept["buffer"] = pf.zeros_like(p)
                kept["buffer"].mul_(0.9).add_(p.grad)
                p.add_(kept["buffer"], alpha=-group["lr"])


class WithoutGradients(Momentum):
    step = pf.no_grad()(Momentum.step)


class Averaged(Momentum):
    """Its state is a new tensor at each step."""

    @pf.no_grad()
    def step(self):
        for p in self.parameters():
            before = self.state[p].get("mean", p.grad)
            self.state[p]["mean"] = 0.9 * before + 0.1 * p.grad
            p.sub_(self.state[p]["mean"] * self.param_groups[0]["lr"])


class OnTop(pf.optim.Adam):
    """State of its own beside that of the step it calls."""

    def step(self, closure=None):
        with pf.no_grad():
            for p in self.parameters():
                self.state[p].setdefault("sum", pf.zeros_like(p)).add_(p.grad)
        return super().step(closure)


class Counting(Momentum):
    @pf.no_grad()
    def step(self):
        for p in self.parameters():
            self.state[p]["count"] = self.state[p].get("count", 0) + 1
            p.sub_(p.grad / self.state[p]["count"])


def trained(kind, compiled):
    w = pf.nn.Parameter(pf.tensor([1.0, -2.0]))
    optimizer = kind([w], lr=0.1)

    def train(x):
        optimizer.zero_grad()
        loss = (w * w * x).sum()
        loss.backward()
        with pf.no_grad():
            optimizer.step()
        return loss

    run = train if compiled is None else compiled(train)
    losses = [run(pf.tensor([1.0, 0.5])).item() for _ in range(7)]
    saved = optimizer.state_dict()
    optimizer.load_state_dict({**saved, "state": {0: {k: v * 0 for k, v in saved["state"][0].items()}}})
    losses += [run(pf.tensor([1.0, 0.5])).item() for _ in range(3)]
    state = {k: v.tolist() if isinstance(v, pf.Tensor) else [v] for k, v in optimizer.state[w].items()}
    kept = [number for k in sorted(state) for number in (state[k] if isinstance(state[k], list) else [state[k]])]
    return losses, w.tolist(), kept, getattr(run, "trace_count", 0)


@pytest.mark.parametrize("kind", [Momentum, WithoutGradients, Averaged, OnTop])
def test_optimizers_with_a_step_of_their_own(kind):
    *found, traces = trained(kind, lambda f: pf.compile(f, fullgraph=kind is not OnTop))
    *wanted, _ = trained(kind, None)
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5)
    assert traces <= 4  # without state, with it, and the same after another state was loaded


@pytest.mark.filterwarnings("ignore:compiled .* runs as it is:RuntimeWarning")
def test_an_optimizer_that_counts_steps_in_numbers():
    *found, _ = trained(Counting, pf.compile)
    *wanted, _ = trained(Counting, None)
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5)


def test_the_warning_does_not_print_parameters():
    with pytest.warns(RuntimeWarning, match=r"state\[a tensor\]\['count'\] was"):
        trained(Counting, pf.compile)
