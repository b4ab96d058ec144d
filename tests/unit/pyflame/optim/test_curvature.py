"""L-BFGS, Adafactor, Muon and ASGD against torch's, step by step."""

import numpy as np
import pytest

import pyflame as pf
from pyflame import optim

torch = pytest.importorskip("torch")

SHAPES = ((3, 4), (5,), (2, 2, 3), (), (4, 1))
CASES = [
    ("ASGD", {}),
    ("ASGD", {"lr": 0.05, "t0": 3, "lambd": 0.1, "weight_decay": 0.1, "maximize": True}),
    ("ASGD", {"alpha": 0.5, "t0": 0}),
    ("Adafactor", {}),
    ("Adafactor", {"lr": 0.5, "beta2_decay": -0.5, "weight_decay": 0.1}),
    ("Adafactor", {"eps": (1e-2, 0.1), "d": 1.5, "maximize": True}),
    ("LBFGS", {}),
    ("LBFGS", {"lr": 0.05, "max_iter": 4, "history_size": 2}),
    ("LBFGS", {"history_size": 1, "max_eval": 7}),
    ("LBFGS", {"line_search_fn": "strong_wolfe"}),
    ("LBFGS", {"line_search_fn": "strong_wolfe", "lr": 0.01, "max_iter": 7, "history_size": 3}),
    ("LBFGS", {"line_search_fn": "strong_wolfe", "lr": 30.0, "max_eval": 9, "tolerance_grad": 1e-3}),
]
IDS = [f"{name}-{'-'.join(settings)}" for name, settings in CASES]
# (relative, absolute)
CLOSE = {np.float64: (1e-9, 1e-11), np.float32: (1e-5, 1e-5)}


@pytest.fixture
def double():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # ASGD keeps rates in the default type
    yield
    torch.set_default_dtype(before)


def start(dtype):
    rng = np.random.default_rng(3)
    return [np.asarray(rng.normal(size=shape), dtype) for shape in SHAPES]


def loss_of(params):
    """Bent and coupled, with more curvature in some directions than in others."""
    total = sum(((p * (number + 1)) ** 2).sum() + (p * 1.5).sin().sum() for number, p in enumerate(params))
    return total + 0.1 * sum((p * p).sum() for p in params) ** 2


def closure_of(params, optimizer, calls):
    def closure():
        optimizer.zero_grad()
        loss = loss_of(params)
        loss.backward()
        calls.append(loss.item())
        return loss

    return closure


def pair(name, settings, dtype):
    mine = [pf.nn.Parameter(pf.from_numpy(a.copy())) for a in start(dtype)]
    theirs = [torch.nn.Parameter(torch.from_numpy(a.copy())) for a in start(dtype)]
    return (mine, getattr(optim, name)(mine, **settings)), (theirs, getattr(torch.optim, name)(theirs, **settings))


def compare(mine, theirs, dtype):
    rtol, atol = CLOSE[dtype]
    for a, b in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=rtol, atol=atol)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(("name", "settings"), CASES, ids=IDS)
def test_steps_equal_torch(name, settings):
    (mine, ours), (theirs, other) = pair(name, settings, np.float64)
    mine_calls, their_calls = [], []
    for _ in range(5):
        ours.step(closure_of(mine, ours, mine_calls)), other.step(closure_of(theirs, other, their_calls))
        compare(mine, theirs, np.float64)
    np.testing.assert_allclose(mine_calls, their_calls, rtol=1e-9)


@pytest.mark.parametrize(("name", "settings"), CASES, ids=IDS)
def test_steps_equal_torch_in_single_precision(name, settings):
    # Near the lowest point L-BFGS ends by differences of losses that float32 does not resolve.
    few = {"max_iter": 4} if name == "LBFGS" else {}
    (mine, ours), (theirs, other) = pair(name, {**settings, **few}, np.float32)
    for _ in range(1 if few else 5):
        ours.step(closure_of(mine, ours, [])), other.step(closure_of(theirs, other, []))
    compare(mine, theirs, np.float32)


def flat(state):
    """The numbers of a state, by key."""
    found = {}
    for key, value in state.items():
        items = value if isinstance(value, list) else [value]
        found[key] = [
            None if v is None else np.asarray(v.detach().numpy() if hasattr(v, "detach") else v) for v in items
        ]
    return found


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(("name", "settings"), CASES, ids=IDS)
def test_states_have_torchs_names_and_numbers(name, settings):
    (mine, ours), (theirs, other) = pair(name, settings, np.float64)
    for _ in range(2):
        ours.step(closure_of(mine, ours, [])), other.step(closure_of(theirs, other, []))
    got, want = ours.state_dict(), other.state_dict()
    assert got["state"].keys() == want["state"].keys()
    for number in want["state"]:
        a, b = flat(got["state"][number]), flat(want["state"][number])
        assert a.keys() == b.keys()
        for key in b:
            assert [x is None for x in a[key]] == [x is None for x in b[key]], key
            for x, y in zip(a[key], b[key], strict=True):
                if y is not None:
                    np.testing.assert_allclose(x, y, rtol=1e-7, atol=1e-9, err_msg=key)
    known = {key for key in want["param_groups"][0] if key not in ("foreach", "differentiable", "capturable")}
    assert set(got["param_groups"][0]) == known


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(("name", "settings"), CASES, ids=IDS)
def test_a_state_of_torchs_is_gone_on_with(name, settings, tmp_path):
    (mine, ours), (theirs, other) = pair(name, settings, np.float64)
    for _ in range(2):
        other.step(closure_of(theirs, other, []))
    for a, b in zip(mine, theirs, strict=True):
        a.data = pf.from_numpy(b.detach().numpy().copy())
    ours.load_state_dict(other.state_dict())
    pf.save(ours.state_dict(), tmp_path / "state.pf")
    ours.load_state_dict(pf.load(tmp_path / "state.pf"))
    for _ in range(2):
        ours.step(closure_of(mine, ours, [])), other.step(closure_of(theirs, other, []))
    compare(mine, theirs, np.float64)


def muon_pair(shape, settings, dtype):
    value = np.random.default_rng(0).normal(size=shape).astype(dtype)
    mine, theirs = pf.nn.Parameter(pf.from_numpy(value.copy())), torch.nn.Parameter(torch.from_numpy(value))
    return mine, optim.Muon([mine], **settings), theirs, torch.optim.Muon([theirs], **settings)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(3, 4), (6, 4), (1, 5)])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"lr": 0.1, "nesterov": False, "adjust_lr_fn": "match_rms_adamw", "weight_decay": 0.3},
        {"momentum": 0.8, "ns_steps": 6, "ns_coefficients": (3.4, -4.7, 2.0), "adjust_lr_fn": "original"},
    ],
)
def test_muon_equals_torch(shape, settings, dtype):
    mine, ours, theirs, other = muon_pair(shape, settings, dtype)
    rng = np.random.default_rng(1)
    for _ in range(5):
        gradient = rng.normal(size=shape).astype(dtype)
        mine.grad, theirs.grad = pf.from_numpy(gradient), torch.from_numpy(gradient)
        ours.step(), other.step()
        rtol = 1e-12 if dtype is np.float64 else 1e-6
        np.testing.assert_allclose(mine.numpy(), theirs.detach().numpy(), rtol=rtol, atol=rtol)
    got, want = ours.state_dict(), other.state_dict()
    assert set(want["state"][0]) <= set(got["state"][0])
    assert set(got["param_groups"][0]) == set(want["param_groups"][0])


def test_muon_of_large_matrices_is_within_the_rounding_of_its_bfloat16():
    mine, ours, theirs, other = muon_pair((96, 40), {"lr": 1.0, "weight_decay": 0.0}, np.float64)
    gradient = np.random.default_rng(1).normal(size=(96, 40))
    before = mine.detach().numpy().copy()
    mine.grad, theirs.grad = pf.from_numpy(gradient), torch.from_numpy(gradient)
    ours.step(), other.step()
    assert np.abs(mine.numpy() - theirs.detach().numpy()).max() < 0.02 * np.abs(mine.numpy() - before).max()
    values = np.linalg.svd(mine.numpy() - before, compute_uv=False) / np.sqrt(96 / 40)
    assert 0.5 < values.min() <= values.max() < 1.5


@pytest.mark.parametrize("name", ["ASGD", "Adafactor", "Muon"])
def test_compiled_steps_are_the_plain_ones(name):
    def made():
        w = pf.nn.Parameter(pf.from_numpy(np.random.default_rng(0).normal(size=(3, 4))))
        return w, getattr(optim, name)([w], lr=0.1)

    def plain(w, optimizer, x):
        loss = ((w - x) ** 2).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    (w, a), (v, b) = made(), made()
    step = pf.compile(lambda x: plain(w, a, x))
    for number in range(6):
        x = pf.from_numpy(np.full((3, 4), number / 3))
        assert step(x).item() == pytest.approx(plain(v, b, x).item(), rel=1e-12)
        if number == 3:
            a.set_lr(0.03), b.set_lr(0.03)
    np.testing.assert_allclose(w.numpy(), v.numpy(), rtol=1e-12)


def test_lbfgs_takes_a_compiled_closure():
    w, v = (pf.nn.Parameter(pf.tensor([3.0, -2.0, 0.5], dtype=pf.float64)) for _ in range(2))
    ours, other = (optim.LBFGS([p], line_search_fn="strong_wolfe") for p in (w, v))

    def loss_and_gradient(p, optimizer):
        optimizer.zero_grad()
        loss = (p**4).sum() + (p.sin() * 2).sum()
        loss.backward()
        return loss

    compiled = pf.compile(lambda: loss_and_gradient(w, ours))
    for _ in range(2):
        ours.step(compiled), other.step(lambda: loss_and_gradient(v, other))
    np.testing.assert_allclose(w.numpy(), v.numpy(), rtol=1e-12)


def test_lbfgs_leaves_parameters_where_they_were_when_the_closure_fails():
    w = pf.nn.Parameter(pf.tensor([3.0, -2.0]))
    optimizer = optim.LBFGS([w], line_search_fn="strong_wolfe")
    calls = []

    def closure():
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        optimizer.zero_grad()
        loss = (w * w).sum()
        loss.backward()
        return loss

    with pytest.raises(KeyboardInterrupt):
        optimizer.step(closure)
    assert w.numpy().tolist() == [3.0, -2.0]


W = pf.nn.Parameter(pf.ones([2, 2]))


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: optim.ASGD([W], weight_decay=-0.5), ValueError, "weight_decay"),
        (lambda: optim.Adafactor([W], lr=-1.0), ValueError, "lr"),
        (lambda: optim.Adafactor([W], beta2_decay=0.8), ValueError, "beta2_decay"),
        (lambda: optim.Adafactor([W], eps=(-1e-3, 1.0)), ValueError, "epsilon1"),
        (lambda: optim.Adafactor([W], eps=(None, -1.0)), ValueError, "epsilon2"),
        (lambda: optim.Adafactor([W], d=0.0), ValueError, "threshold d"),
        (
            lambda: optim.Muon([pf.nn.Parameter(pf.ones([3]))]),
            ValueError,
            r"2D parameters. Received: one of shape \[3\]",
        ),
        (lambda: optim.Muon([W], adjust_lr_fn="mine"), ValueError, "adjust_lr_fn"),
        (lambda: optim.Muon([W], ns_coefficients=(1.0, 2.0)), ValueError, "three ns_coefficients"),
        (lambda: optim.Muon([W], ns_steps=100), ValueError, "ns_steps"),
        (lambda: optim.LBFGS([{"params": [W]}, {"params": []}]), ValueError, "parameter groups"),
        (lambda: optim.LBFGS([W], line_search_fn="armijo"), ValueError, "strong_wolfe"),
        (lambda: optim.LBFGS([W]).step(), TypeError, "closure"),
        (lambda: optim.SGD([W], lr=pf.ones([2])), ValueError, "one number"),
        (lambda: optim.AdamW([W], fused=True, foreach=True), RuntimeError, "together"),
        (lambda: optim.SGD([("w", W), pf.nn.Parameter(pf.ones([1]))]), ValueError, "names are missing"),
    ],
)
def test_bad_settings_are_named(call, error, match):
    with pytest.raises(error, match=match):
        call()


def test_named_parameters_are_taken():
    model = pf.nn.Linear(2, 1)
    optimizer = optim.SGD(model.named_parameters(), lr=pf.tensor(0.5))
    assert optimizer.param_groups[0]["param_names"] == ["weight", "bias"]
    assert optimizer.param_groups[0]["lr"] == 0.5
    model(pf.ones([1, 2])).sum().backward()
    before = model.bias.item()
    optimizer.step()
    assert model.bias.item() == pytest.approx(before - 0.5, abs=1e-6)


def test_a_loaded_state_must_fit():
    other = pf.nn.Parameter(pf.ones([3, 2]))
    for name in ("LBFGS", "Adafactor"):
        optimizer = getattr(optim, name)([other])
        optimizer.step(closure_of([other], optimizer, []))
        with pytest.raises(ValueError, match=r"elements|shape"):
            getattr(optim, name)([W]).load_state_dict(optimizer.state_dict())
