"""A compiled step is made anew when what it was made for has changed."""

import numpy as np
import pytest

import pyflame as pf

X = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)


def losses(change, kind, compiled):
    pf.manual_seed(0)
    net = pf.nn.Sequential(pf.nn.Linear(3, 4), pf.nn.Tanh(), pf.nn.Linear(4, 1))
    if kind == "sgd":
        optimizer = pf.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, dampening=0.2)
    else:
        optimizer = pf.optim.Adam(net.parameters(), lr=0.05)

    def step(x):
        loss = (net(x) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    run = pf.compile(step) if compiled else step
    seen = []
    for number in range(9):
        change(number, net, optimizer)
        seen.append(run(pf.from_numpy(X)).item())
    return seen


def settings(number, _net, optimizer):
    if number == 4:
        optimizer.param_groups[0]["momentum"] = 0.1
        optimizer.param_groups[0].update(weight_decay=0.5, lr=0.01)


def frozen(number, net, _optimizer):
    net[0].requires_grad_(number < 3 or number > 6)


def replaced(number, net, _optimizer):
    if number == 4:
        net[1] = pf.nn.ReLU()


def grown(number, net, optimizer):
    if number == 4:
        net.append(pf.nn.Linear(1, 2))
        optimizer.add_param_group({"params": net[3].parameters(), "lr": 0.2})


def reloaded(number, _net, optimizer):
    if number == 4:
        optimizer.load_state_dict(optimizer.state_dict())


@pytest.mark.parametrize("change", [settings, frozen, replaced, grown, reloaded])
@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_changes_reach_a_compiled_step(change, kind):
    np.testing.assert_allclose(losses(change, kind, True), losses(change, kind, False), rtol=1e-5)
