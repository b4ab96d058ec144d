"""Optimizers and schedulers against torch's, step by step in float64."""

import numpy as np
import pytest

import pyflame as pf
from pyflame import optim

torch = pytest.importorskip("torch")

CASES = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.3}),
    ("SGD", {"lr": 0.1, "maximize": True}),
    ("Adam", {"lr": 0.05}),
    ("Adam", {"lr": 0.05, "betas": (0.8, 0.9), "weight_decay": 0.1, "amsgrad": True}),
    ("AdamW", {"lr": 0.05, "weight_decay": 0.2}),
    ("RMSprop", {"lr": 0.01}),
    ("RMSprop", {"lr": 0.01, "momentum": 0.9, "centered": True, "weight_decay": 0.1}),
    ("Adagrad", {"lr": 0.1, "lr_decay": 0.1, "initial_accumulator_value": 0.2}),
    ("Adadelta", {"lr": 0.5}),
    ("Adadelta", {"lr": 0.5, "rho": 0.95, "weight_decay": 0.1, "maximize": True}),
    ("Adamax", {"lr": 0.05}),
    ("Adamax", {"lr": 0.05, "betas": (0.8, 0.9), "weight_decay": 0.1}),
    ("NAdam", {"lr": 0.05}),
    ("NAdam", {"lr": 0.05, "weight_decay": 0.1, "momentum_decay": 0.006, "decoupled_weight_decay": True}),
    ("RAdam", {"lr": 0.05}),
    ("RAdam", {"lr": 0.05, "weight_decay": 0.1}),
    ("RAdam", {"lr": 0.05, "weight_decay": 0.1, "decoupled_weight_decay": True, "maximize": True}),
    ("Rprop", {"lr": 0.05}),
    ("Rprop", {"lr": 0.05, "etas": (0.4, 1.5), "step_sizes": (0.01, 0.06)}),
]
IDS = [f"{name}-{'-'.join(settings)}" for name, settings in CASES]


def start():
    rng = np.random.default_rng(0)
    return [rng.normal(size=(4, 3)), rng.normal(size=(3,))]


def gradients(step):
    rng = np.random.default_rng(100 + step)
    return [rng.normal(size=(4, 3)), rng.normal(size=(3,))]


def run(library, make, tensor, settings, steps, skip=()):
    params = [tensor(a) for a in start()]
    optimizer = make(params, **settings)
    for step in range(steps):
        for number, (p, g) in enumerate(zip(params, gradients(step), strict=True)):
            p.grad = None if (step, number) in skip else library.from_numpy(g)
        optimizer.step()
    return params, optimizer


def ours(name, settings, steps=7, skip=()):
    return run(pf, getattr(optim, name), lambda a: pf.nn.Parameter(pf.from_numpy(a)), settings, steps, skip)


def theirs(name, settings, steps=7, skip=()):
    make = getattr(torch.optim, name)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # NAdam keeps a product in the default type
    try:
        return run(torch, make, lambda a: torch.nn.Parameter(torch.from_numpy(a.copy())), settings, steps, skip)
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize(("name", "settings"), CASES, ids=IDS)
def test_steps_equal_torch(name, settings):
    for mine, other in zip(ours(name, settings)[0], theirs(name, settings)[0], strict=True):
        np.testing.assert_allclose(mine.numpy(), other.detach().numpy(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["Adam", "SGD"])
def test_parameters_without_gradient_keep_their_own_count(name):
    settings = {"lr": 0.1, **({"momentum": 0.9} if name == "SGD" else {})}
    skip = {(1, 0), (3, 1), (4, 1)}
    for mine, other in zip(ours(name, settings, skip=skip)[0], theirs(name, settings, skip=skip)[0], strict=True):
        np.testing.assert_allclose(mine.numpy(), other.detach().numpy(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("name", "settings"), [*CASES, ("Lion", {"lr": 0.01}), ("LAMB", {"lr": 0.01})])
def test_state_round_trip_goes_on_alike(name, settings):
    params, optimizer = ours(name, settings, steps=3)
    twins = [pf.nn.Parameter(p.detach()) for p in params]
    other = getattr(optim, name)(twins, **{**settings, "lr": 9.0})
    other.load_state_dict(optimizer.state_dict())
    for group, opt in ((params, optimizer), (twins, other)):
        for p, g in zip(group, gradients(3), strict=True):
            p.grad = pf.from_numpy(g)
        opt.step()
    for p, q in zip(params, twins, strict=True):
        np.testing.assert_array_equal(p.numpy(), q.numpy())


def test_lion_by_its_formula():
    params, _ = ours("Lion", {"lr": 0.01, "betas": (0.9, 0.99), "weight_decay": 0.1}, steps=4)
    p, m = start()[0], np.zeros((4, 3))
    for step in range(4):
        g = gradients(step)[0]
        p = p * (1 - 0.01 * 0.1) - 0.01 * np.sign(0.9 * m + 0.1 * g)
        m = 0.99 * m + 0.01 * g
    np.testing.assert_allclose(params[0].numpy(), p, rtol=1e-12)


def test_lamb_by_its_formula():
    params, _ = ours("LAMB", {"lr": 0.01, "weight_decay": 0.1}, steps=3)
    p, m, v = start()[0], np.zeros((4, 3)), np.zeros((4, 3))
    for step in range(1, 4):
        g = gradients(step - 1)[0]
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        move = (m / (1 - 0.9**step)) / (np.sqrt(v / (1 - 0.999**step)) + 1e-6) + 0.1 * p
        p = p - 0.01 * np.linalg.norm(p) / np.linalg.norm(move) * move
    np.testing.assert_allclose(params[0].numpy(), p, rtol=1e-9)


def test_groups_have_their_own_rates():
    a, b = (pf.nn.Parameter(pf.zeros([1])) for _ in range(2))
    optimizer = optim.SGD([{"params": [a]}, {"params": [b], "lr": 1.0}], lr=0.5)
    for p in (a, b):
        p.grad = pf.ones([1])
    optimizer.step()
    assert (a.item(), b.item()) == (-0.5, -1.0)
    optimizer.set_lr(2.0)
    assert [group["lr"] for group in optimizer.param_groups] == [2.0, 2.0]


def test_pending_graphs_keep_the_old_parameters():
    w = pf.nn.Parameter(pf.ones([1]))
    before = w * 3
    w.grad = pf.ones([1])
    optim.SGD([w], lr=1.0).step()
    assert before.item() == 3.0
    assert w.item() == 0.0


def test_a_closure_is_called_and_its_loss_returned():
    w = pf.nn.Parameter(pf.ones([1]))
    optimizer = optim.SGD([w], lr=0.1)

    def closure():
        optimizer.zero_grad()
        loss = (w * w).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 1.0
    assert w.item() == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: optim.SGD([], lr=0.1), "empty"),
        (lambda: optim.SGD([pf.nn.Parameter(pf.ones([1]))], lr=-1.0), "lr"),
        (lambda: optim.Adam([pf.nn.Parameter(pf.ones([1]))], betas=(1.5, 0.9)), "betas"),
        (lambda: optim.SGD([pf.nn.Parameter(pf.ones([1]))], lr=0.1, nesterov=True), "Nesterov"),
    ],
)
def test_bad_settings_are_named(call, error):
    with pytest.raises(ValueError, match=error):
        call()


SCHEDULERS = [
    ("StepLR", {"step_size": 3, "gamma": 0.5}),
    ("MultiStepLR", {"milestones": [2, 5], "gamma": 0.5}),
    ("ExponentialLR", {"gamma": 0.9}),
    ("CosineAnnealingLR", {"T_max": 5, "eta_min": 0.01}),
    ("CosineAnnealingWarmRestarts", {"T_0": 2, "T_mult": 2}),
    ("LinearLR", {"start_factor": 0.25, "total_iters": 4}),
    ("ConstantLR", {"factor": 0.5, "total_iters": 3}),
    ("PolynomialLR", {"total_iters": 6, "power": 2.0}),
    ("LambdaLR", {"lr_lambda": lambda step: 1 / (1 + step)}),
    ("OneCycleLR", {"max_lr": 1.0, "total_steps": 12}),
    ("OneCycleLR", {"max_lr": 1.0, "total_steps": 12, "anneal_strategy": "linear", "pct_start": 0.5}),
    ("OneCycleLR", {"max_lr": [1.0, 0.2], "epochs": 3, "steps_per_epoch": 4, "three_phase": True}),
    ("LambdaLR", {"lr_lambda": [lambda step: 1 / (1 + step), lambda step: 0.9**step]}),
    ("MultiplicativeLR", {"lr_lambda": lambda step: 1 - 0.05 * step}),
    ("MultiplicativeLR", {"lr_lambda": [lambda step: 0.5, lambda step: 1 + step]}),
    ("CyclicLR", {"base_lr": 0.1, "max_lr": 0.9, "step_size_up": 3}),
    ("CyclicLR", {"base_lr": [0.1, 0.2], "max_lr": [0.9, 0.3], "step_size_up": 2, "step_size_down": 3}),
    ("CyclicLR", {"base_lr": 0.1, "max_lr": 0.9, "step_size_up": 2, "mode": "triangular2"}),
    ("CyclicLR", {"base_lr": 0.1, "max_lr": 0.9, "step_size_up": 3, "mode": "exp_range", "gamma": 0.8}),
    ("CyclicLR", {"base_lr": 0.1, "max_lr": 0.9, "step_size_up": 2, "scale_fn": lambda n: 1 / n}),
    ("CyclicLR", {"base_lr": 0.1, "max_lr": 1.0, "step_size_up": 2, "base_momentum": [0.5, 0.6], "max_momentum": 0.7}),
    ("OneCycleLR", {"max_lr": 1.0, "total_steps": 12, "base_momentum": 0.5, "max_momentum": [0.8, 0.9]}),
    ("OneCycleLR", {"max_lr": 1.0, "total_steps": 12, "cycle_momentum": False}),
]


IDS = [f"{n}-{i}" for i, (n, _) in enumerate(SCHEDULERS)]


def two_groups(library, kind):
    one = torch.ones(1) if library is torch else pf.ones([1])
    groups = [{"params": [library.nn.Parameter(one)]}, {"params": [library.nn.Parameter(one * 1)], "lr": 0.7}]
    return getattr(library.optim, kind)(groups, lr=0.3)


def settings_of(optimizer):
    return [[group["lr"], *group.get("betas", (group.get("momentum"),))] for group in optimizer.param_groups]


@pytest.mark.parametrize("kind", ["SGD", "Adam"])
@pytest.mark.parametrize(("name", "settings"), SCHEDULERS, ids=IDS)
def test_schedules_equal_torch(name, settings, kind):
    mine, theirs = two_groups(pf, kind), two_groups(torch, kind)
    ours, other = getattr(optim, name)(mine, **settings), getattr(torch.optim.lr_scheduler, name)(theirs, **settings)
    for _ in range(11):
        assert np.array(settings_of(mine)) == pytest.approx(np.array(settings_of(theirs)), rel=1e-9)
        theirs.step()
        ours.step(), other.step()


CHAINS = [
    [("ConstantLR", {"factor": 0.1, "total_iters": 3}), ("ExponentialLR", {"gamma": 0.9})],
    [("StepLR", {"step_size": 2}), ("LinearLR", {"total_iters": 4}), ("MultiStepLR", {"milestones": [1, 1, 6]})],
    [("CosineAnnealingLR", {"T_max": 3, "eta_min": 0.01}), ("PolynomialLR", {"total_iters": 8, "power": 2.0})],
    [("LambdaLR", {"lr_lambda": lambda step: 1 / (1 + step)}), ("MultiplicativeLR", {"lr_lambda": lambda step: 0.5})],
]


@pytest.mark.parametrize("chained", [True, False], ids=["chained", "apart"])
@pytest.mark.parametrize("chain", CHAINS, ids=[chain[0][0] for chain in CHAINS])
def test_schedulers_share_an_optimizer(chain, chained):
    mine, theirs = two_groups(pf, "SGD"), two_groups(torch, "SGD")
    ours = [getattr(optim, name)(mine, **settings) for name, settings in chain]
    other = [getattr(torch.optim.lr_scheduler, name)(theirs, **settings) for name, settings in chain]
    if chained:
        ours, other = [optim.ChainedScheduler(ours)], [torch.optim.lr_scheduler.ChainedScheduler(other)]
    for _ in range(11):
        assert np.array(settings_of(mine)) == pytest.approx(np.array(settings_of(theirs)), rel=1e-9)
        theirs.step()
        for scheduler in (*ours, *other):
            scheduler.step()


def test_a_chain_goes_on_from_its_state():
    def made():
        sgd = optim.SGD([pf.nn.Parameter(pf.ones([1]))], lr=1.0)
        parts = [optim.ExponentialLR(sgd, gamma=0.5), optim.StepLR(sgd, step_size=2)]
        return sgd, optim.ChainedScheduler(parts, optimizer=sgd)

    (sgd, first), (again, second) = made(), made()
    first.step(), first.step(), first.step()
    again.load_state_dict(sgd.state_dict()), second.load_state_dict(first.state_dict())
    first.step(), second.step()
    assert second.get_last_lr() == first.get_last_lr() == pytest.approx([0.5**4 * 0.01])


def test_bad_schedules_are_refused():
    sgd, other = two_groups(pf, "SGD"), two_groups(pf, "SGD")
    with pytest.raises(ValueError, match="at least one scheduler"):
        optim.ChainedScheduler([])
    with pytest.raises(ValueError, match="index 1 belongs to another optimizer"):
        optim.ChainedScheduler([optim.ExponentialLR(sgd, 0.5), optim.ExponentialLR(other, 0.5)])
    with pytest.raises(ValueError, match="cannot be chained"):
        optim.ChainedScheduler([optim.ReduceLROnPlateau(sgd)])
    with pytest.raises(ValueError, match="momentum or beta1"):
        optim.OneCycleLR(two_groups(pf, "Adagrad"), max_lr=1.0, total_steps=9)
    with pytest.raises(ValueError, match="mode is invalid"):
        optim.CyclicLR(sgd, 0.1, 1.0, mode="square")
    with pytest.raises(ValueError, match="2 groups"):
        optim.CyclicLR(sgd, [0.1], 1.0)
    with pytest.raises(TypeError, match="lr_lambda should be a function"):
        optim.MultiplicativeLR(sgd, 0.5)


@pytest.mark.parametrize(
    ("kind", "settings"), [("SGD", {"momentum": 0.9, "nesterov": True}), ("Adam", {}), ("LAMB", {})]
)
def test_a_compiled_step_sees_the_momentum_of_a_cycle_and_is_traced_once(kind, settings):

    def make():
        w = pf.nn.Parameter(pf.tensor([1.0, 2.0], dtype=pf.float64))
        optimizer = getattr(optim, kind)([w], lr=0.1, **settings)
        return w, optimizer, optim.OneCycleLR(optimizer, max_lr=0.1, total_steps=9)

    def plain(w, optimizer, x):
        loss = ((w - x) ** 2).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    def traced(x):
        return plain(w, a, x)

    (w, a, up), (v, b, down) = make(), make()
    step = pf.compile(traced)
    for number in range(8):
        x = pf.from_numpy(np.array([number, -number], np.float64))
        assert step(x).item() == pytest.approx(plain(v, b, x).item(), rel=1e-12)
        up.step(), down.step()
    np.testing.assert_allclose(w.numpy(), v.numpy(), rtol=1e-12)
    assert step.trace_count <= 2


@pytest.mark.parametrize("kind", ["SGD", "Adam", "RMSprop"])
def test_steps_with_a_cycled_momentum_equal_torch(kind):
    start = np.array([1.0, -2.0, 0.5])
    w, v = pf.nn.Parameter(pf.tensor(start)), torch.nn.Parameter(torch.tensor(start))
    mine, theirs = getattr(optim, kind)([w], lr=0.1), getattr(torch.optim, kind)([v], lr=0.1)
    ours = optim.CyclicLR(mine, 0.01, 0.1, step_size_up=3)
    other = torch.optim.lr_scheduler.CyclicLR(theirs, 0.01, 0.1, step_size_up=3)
    for _ in range(8):
        mine.zero_grad(), theirs.zero_grad()
        (w**4).sum().backward(), (v**4).sum().backward()
        mine.step(), theirs.step()
        ours.step(), other.step()
        np.testing.assert_allclose(w.numpy(), v.detach().numpy(), rtol=1e-10)


def test_a_momentum_may_come_after_the_first_step():
    w, v = pf.nn.Parameter(pf.tensor([1.0, 2.0])), torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    mine, theirs = optim.SGD([w], lr=0.1), torch.optim.SGD([v], lr=0.1)
    for number in range(4):
        mine.zero_grad(), theirs.zero_grad()
        (w**2).sum().backward(), (v**2).sum().backward()
        mine.step(), theirs.step()
        if number == 1:
            mine.param_groups[0]["momentum"] = theirs.param_groups[0]["momentum"] = 0.5
    np.testing.assert_allclose(w.numpy(), v.detach().numpy(), rtol=1e-6)


def test_plateau_equals_torch():
    mine = optim.ReduceLROnPlateau(
        optim.SGD([pf.nn.Parameter(pf.ones([1]))], lr=1.0), patience=1, cooldown=1, factor=0.5
    )
    sgd = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    other = torch.optim.lr_scheduler.ReduceLROnPlateau(sgd, patience=1, cooldown=1, factor=0.5)
    for loss in (1.0, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.8, 0.8, 0.8, 0.8):
        mine.step(loss), other.step(loss)
        assert mine.get_lr() == sgd.param_groups[0]["lr"]


@pytest.mark.parametrize("kind", ["SGD", "Adam", "NAdam", "RAdam"])
def test_a_compiled_step_sees_new_rates_and_counts(kind):
    def make(lr):
        w = pf.nn.Parameter(pf.tensor([1.0, 2.0]))
        return w, getattr(optim, kind)([w], lr=lr)

    def plain(w, optimizer, x):
        loss = ((w - x) ** 2).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    (w, a), (v, b) = make(0.1), make(0.1)
    step = pf.compile(lambda x: plain(w, a, x))
    for number in range(9):
        x = pf.from_numpy(np.array([number, -number], np.float32))
        got, want = step(x).item(), plain(v, b, x).item()
        assert got == pytest.approx(want, rel=1e-6)
        if number == 2:
            a.set_lr(0.01), b.set_lr(0.01)
    np.testing.assert_allclose(w.numpy(), v.numpy(), rtol=1e-6)
