"""autocast and GradScaler against torch."""

import numpy as np
import pytest

import pyflame as pf

torch = pytest.importorskip("torch")


def step(framework, dtype):
    x = framework.tensor(np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4))
    layer, conv = framework.nn.Linear(4, 2), framework.nn.Conv1d(3, 2, 2)
    with framework.no_grad():
        for p in [*layer.parameters(), *conv.parameters()]:
            p.copy_(framework.tensor(np.linspace(-1, 1, p.numel(), dtype=np.float32).reshape(tuple(p.shape))))
    with framework.autocast("cpu", dtype=getattr(framework, dtype)):
        made = [layer(x), x @ x.t(), conv(x), x.softmax(-1), x + x, framework.bmm(x[None], x.t()[None])]
        loss = framework.nn.functional.mse_loss(made[0], framework.zeros(3, 2))
    loss.backward()
    return [str(t.dtype).split(".")[-1] for t in [*made, loss, layer.weight.grad]], loss.item()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_types_and_losses_are_those_of_torch(dtype):
    (ours, loss), (theirs, wanted) = step(pf, dtype), step(torch, dtype)
    assert ours == theirs
    assert loss == pytest.approx(wanted, rel=2e-2)


def test_a_compiled_function_knows_of_the_context_it_is_called_in():
    f, x = pf.compile(lambda a: a @ a), pf.ones(2, 2)
    found = [f(x).dtype]
    with pf.autocast("cpu"):
        found += [f(x).dtype]
        with pf.autocast("cpu", enabled=False):
            found += [f(x).dtype]
    found += [f(x).dtype]
    assert found == [pf.float32, pf.bfloat16, pf.float32, pf.float32]


def test_a_gpu_that_is_not_there_is_warned_of():
    with pytest.warns(UserWarning, match="cuda"), pf.autocast("cuda"):
        assert (pf.ones(2, 2) @ pf.ones(2, 2)).dtype is pf.float32
    with pytest.warns(UserWarning, match="cuda"):
        assert not pf.amp.GradScaler().is_enabled()


@pytest.mark.parametrize("bad", [False, True])
def test_scaling_is_that_of_torch(bad):
    found = []
    for framework in (pf, torch):
        w = framework.nn.Parameter(framework.ones(2))
        optimizer = framework.optim.SGD([w], lr=0.1)
        scaler = framework.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
        rows = []
        for i in range(5):
            optimizer.zero_grad()
            factor = float("inf") if bad and i == 3 else 1.0
            scaler.scale((w * w * factor).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            rows.append([scaler.get_scale(), *w.tolist()])
        found.append(rows)
    np.testing.assert_allclose(*found, rtol=1e-6)
