"""Modules: attributes, names, state, modes, hooks, containers."""

import copy
import pickle

import numpy as np
import pytest

import pyflame as pf
from pyflame import nn
from pyflame_rt.graph.errors import ShapeMismatchError

torch = pytest.importorskip("torch")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)
        self.last = nn.Sequential(nn.ReLU(), nn.Linear(4, 2))
        self.register_buffer("scale", pf.ones([1]))
        self.register_buffer("scratch", pf.ones([1]), persistent=False)

    def forward(self, x):
        return self.last(self.norm(self.first(x))) * self.scale


def test_names_and_counts():
    net = Net()
    assert [n for n, _ in net.named_parameters()] == [
        "first.weight", "first.bias", "norm.weight", "norm.bias", "last.1.weight", "last.1.bias",
    ]  # fmt: skip
    assert "scale" in net.state_dict()
    assert "scratch" not in net.state_dict()
    assert [n for n, _ in net.named_children()] == ["first", "norm", "last"]
    assert len(list(net.modules())) == 6
    assert net.get_submodule("last.1") is net.last[1]
    assert net.get_parameter("last.1.bias") is net.last[1].bias
    with pytest.raises(AttributeError, match="nothing"):
        net.get_submodule("last.nothing")


def test_shared_parameters_come_once():
    net = nn.Module()
    net.a = nn.Linear(2, 2)
    net.b = net.a
    assert len(list(net.parameters())) == 2
    assert len(net.state_dict()) == 4


def test_state_round_trip_and_errors():
    net, other = Net(), Net()
    other.load_state_dict(net.state_dict())
    x = pf.randn([5, 3])
    np.testing.assert_allclose(net.eval()(x).numpy(), other.eval()(x).numpy(), rtol=1e-6)
    state = net.state_dict()
    del state["scale"]
    with pytest.raises(RuntimeError, match=r"Missing key.*'scale'"):
        other.load_state_dict(state)
    assert other.load_state_dict({**state, "extra": pf.ones([1])}, strict=False) == (["scale"], ["extra"])
    with pytest.raises(RuntimeError, match=r"size mismatch for first\.weight"):
        other.load_state_dict({**net.state_dict(), "first.weight": pf.ones([1])})


def test_a_failed_load_changes_nothing():
    net = Net()
    before = net.first.weight.numpy()
    with pytest.raises(RuntimeError):
        net.load_state_dict({"first.weight": np.zeros((4, 3), np.float32), "norm.weight": np.zeros(9)})
    np.testing.assert_array_equal(net.first.weight.numpy(), before)


def test_torch_checkpoints_load_also_in_bfloat16():
    theirs = torch.nn.Linear(3, 2).to(torch.bfloat16)
    ours = nn.Linear(3, 2)
    ours.load_state_dict(theirs.state_dict())
    np.testing.assert_array_equal(ours.weight.numpy(), theirs.weight.detach().float().numpy())


def test_modes_and_dtypes():
    net = Net().eval()
    assert not any(m.training for m in net.modules())
    assert net.train().is_training()
    net.double()
    assert {p.dtype for p in net.parameters()} == {pf.float64}
    assert net.norm.num_batches_tracked.dtype == pf.int64
    net.requires_grad_(False)
    assert not any(p.requires_grad for p in net.parameters())
    assert net.to("cpu") is net
    with pytest.raises(RuntimeError, match="cuda"):
        net.to("cuda")


def test_copies_are_independent():
    net = Net().eval()
    twin, again = copy.deepcopy(net), pickle.loads(pickle.dumps(net))  # noqa: S301 - our own bytes
    x = pf.randn([2, 3])
    for other in (twin, again):
        np.testing.assert_array_equal(other(x).numpy(), net(x).numpy())
        nn.init.zeros_(other.first.weight)
    assert net.first.weight.numpy().any()


def test_wrong_assignments_are_refused():
    net = Net()
    with pytest.raises(TypeError, match="weight"):
        net.first.weight = 3
    with pytest.raises(TypeError, match="child module"):
        net.first = "layer"
    with pytest.raises(KeyError, match="already exists"):
        net.register_parameter("forward", None)

    class Early(nn.Module):
        def __init__(self):
            self.layer = nn.Linear(1, 1)

    with pytest.raises(AttributeError, match="before"):
        Early()
    with pytest.raises(NotImplementedError, match="forward"):
        nn.Module()(1)


def test_hooks():
    layer, seen = nn.Linear(2, 2), []
    with layer.register_forward_pre_hook(lambda m, a: (a[0] * 2,)), layer.register_forward_hook(lambda m, a, y: y + 1):
        doubled = layer(pf.ones([1, 2])).numpy()
    plain = layer(pf.full([1, 2], 2.0)).numpy() + 1
    np.testing.assert_allclose(doubled, plain, rtol=1e-6)
    layer.register_full_backward_hook(lambda m, gi, go: seen.append((gi[0].numpy(), go[0].numpy())))
    x = pf.ones([1, 2]).requires_grad_()
    layer(x).sum().backward()
    assert seen[0][1].tolist() == [[1.0, 1.0]]
    np.testing.assert_allclose(seen[0][0], layer.weight.numpy().sum(axis=0, keepdims=True), rtol=1e-6)
    np.testing.assert_allclose(x.grad.numpy(), seen[0][0])


def test_a_backward_hook_may_replace_the_gradient():
    layer = nn.Linear(2, 2)
    layer.register_full_backward_hook(lambda m, gi, go: (gi[0] * 0,))
    x = pf.ones([1, 2]).requires_grad_()
    layer(x).sum().backward()
    assert x.grad.numpy().tolist() == [[0.0, 0.0]]


def test_containers():
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    net.add(nn.Linear(2, 1)).insert(1, nn.Tanh())
    assert [type(m).__name__ for m in net] == ["Linear", "Tanh", "ReLU", "Linear"]
    assert len(net[1:3]) == 2
    del net[1]
    assert list(dict(net.named_children())) == ["0", "1", "2"]
    assert type(net.pop()).__name__ == "Linear"
    with pytest.raises(IndexError):
        net[5]
    names = nn.ModuleDict({"a": nn.ReLU()})
    names.update({"b": nn.Tanh()})
    assert list(names.keys()) == ["a", "b"]
    weights = nn.ParameterList([pf.ones([1])])
    weights[0] = pf.zeros([1])
    assert isinstance(weights[0], nn.Parameter)
    assert sorted(nn.ParameterDict({"x": pf.ones([1])}).state_dict()) == ["x"]


def test_text_equals_torch_for_plain_layers():
    ours, theirs = (
        nn.Sequential(nn.Linear(2, 3), nn.Flatten()),
        torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Flatten()),
    )
    assert repr(ours) == repr(theirs)


def test_inplace_layers_bind_the_input_anew():
    x = pf.tensor([-1.0, 1.0])
    nn.ReLU(inplace=True)(x)
    assert x.numpy().tolist() == [0.0, 1.0]


def test_dropout_shares_and_modes():
    pf.manual_seed(0)
    y = nn.Dropout(0.25)(pf.ones([4000])).numpy()
    assert 0.2 < (y == 0).mean() < 0.3
    np.testing.assert_allclose(y[y > 0], 1 / 0.75, rtol=1e-6)
    channels = nn.Dropout2d(0.5)(pf.ones([8, 16, 3, 3])).numpy()
    assert all(plane.min() == plane.max() for sample in channels for plane in sample)
    with pytest.raises(ValueError, match="probability"):
        nn.Dropout(1.5)


def test_init_follows_the_seed():
    def first():
        pf.manual_seed(3)
        return nn.Linear(4, 4).weight.numpy()

    np.testing.assert_array_equal(first(), first())


def test_clipping_equals_torch():
    rng = np.random.default_rng(0)
    grads = [rng.normal(size=(3, 2)), rng.normal(size=(4,))]
    ours = [nn.Parameter(pf.from_numpy(np.zeros_like(g))) for g in grads]
    theirs = [torch.nn.Parameter(torch.zeros(g.shape, dtype=torch.float64)) for g in grads]
    for kind in (2.0, float("inf"), 1.0):
        for p, q, g in zip(ours, theirs, grads, strict=True):
            p.grad, q.grad = pf.from_numpy(g), torch.from_numpy(g.copy())
        got, want = nn.utils.clip_grad_norm_(ours, 0.5, kind), torch.nn.utils.clip_grad_norm_(theirs, 0.5, kind)
        assert got.item() == pytest.approx(want.item())
        for p, q in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(p.grad.numpy(), q.grad.numpy(), rtol=1e-9)


def test_hooks_may_take_keywords():
    class Scaled(pf.nn.Module):
        def forward(self, x, *, scale=1.0):
            return x * scale

    module, seen = Scaled(), []
    module.register_forward_pre_hook(lambda _m, args, kwargs: (args, {**kwargs, "scale": 3.0}), with_kwargs=True)
    module.register_forward_hook(lambda _m, _args, kwargs, out: (seen.append(kwargs), out + 1)[1], with_kwargs=True)
    assert module(pf.ones([1]), scale=2.0).item() == 4.0
    assert seen == [{"scale": 3.0}]


def test_moving_names_types_and_devices():
    module = pf.nn.Linear(2, 2).to("cpu", dtype=pf.float64).cpu()
    assert module.to(pf.ones([1])).weight.dtype == pf.float32
    with pytest.raises(RuntimeError, match="cuda"):
        module.cuda()
    with pytest.raises(ValueError, match="int32"):
        module.to(pf.int32)


def test_mistaken_shapes_are_told():
    with pytest.raises(ShapeMismatchError, match="3 channels"):
        pf.nn.BatchNorm2d(3)(pf.ones([2, 4, 2, 2]))
    with pytest.warns(UserWarning, match="broadcast"):
        pf.nn.MSELoss()(pf.ones([4, 1]), pf.ones([4]))


class Two(pf.nn.Module):
    """Two outputs, of which the second may be left alone."""

    def forward(self, x):
        return x * 2, x * x


def test_hooks_before_the_backward_equal_torch():
    class Other(torch.nn.Module):
        def forward(self, x):
            return x * 2, x * x

    seen = {pf: [], torch: []}
    results = []
    for library, module in ((pf, Two()), (torch, Other())):

        def before(_, grads, library=library):
            seen[library].append([None if g is None else g.tolist() for g in grads])
            return tuple(None if g is None else g * 3 for g in grads)

        def after(_, grad_input, grad_output, library=library):
            seen[library].append([None if g is None else g.tolist() for g in (*grad_input, *grad_output)])

        module.register_full_backward_pre_hook(before)
        module.register_full_backward_hook(after)
        x = library.tensor([1.0, 2.0], requires_grad=True)
        a, b = module(x)
        (a.sum() + (b * 5).sum()).backward()
        results.append(x.grad.tolist())
    assert results[0] == results[1] == [36.0, 66.0]
    assert seen[pf] == seen[torch]


def test_hooks_before_the_backward_see_what_came_and_can_be_removed():
    module, seen = Two(), []
    handle = module.register_full_backward_pre_hook(lambda _, grads: seen.append([g is None for g in grads]))
    first = []
    module.register_full_backward_pre_hook(lambda *_: first.append(len(seen)), prepend=True)
    x = pf.tensor([3.0], requires_grad=True)
    module(x)[1].sum().backward()
    assert (seen, first, x.grad.tolist()) == ([[True, False]], [0], [6.0])
    handle.remove()
    module(x)[0].sum().backward()
    assert len(seen) == 1
    module.register_full_backward_pre_hook(lambda _, grads: grads[:1])
    with pytest.raises(RuntimeError, match="got 1, but expected 2"):
        module(x)[0].sum().backward()
    with pf.no_grad():
        assert module(x)[0].item() == 6.0


def test_all_of_a_module_in_one_type():
    ours, theirs = pf.nn.BatchNorm1d(3), torch.nn.BatchNorm1d(3)
    assert ours.type(pf.float64) is ours
    theirs.type(torch.float64)
    for name, tensor in theirs.state_dict().items():
        assert ours.state_dict()[name].dtype.name == str(tensor.dtype).removeprefix("torch.")
    with pytest.raises(RuntimeError, match="must be floating point"):
        ours.type(pf.int32)
    ours.requires_grad_(False)
    assert ours.type("int32").weight.dtype is pf.int32


def test_deleting_takes_the_registered_one_first():
    module = pf.nn.Module()
    module.register_buffer("b", pf.ones([2]))
    module.__dict__["b"] = 5
    del module.b
    assert module.b == 5
    del module.b
    with pytest.raises(AttributeError):
        _ = module.b
