"""Modules of torch as modules of ours: the same answers, gradients and names of weights."""

import warnings

import numpy as np
import pytest

import pyflame as pf
from pyflame_rt.graph.errors import UnsupportedOperatorError
from tests.unit.importers.torchscript.modules import MODULES
from tests.unit.importers.torchscript.saving import torch

nn, F = torch.nn, torch.nn.functional


class Block(nn.Module):
    """A residual block with functions, methods, a parameter and a buffer of its own."""

    def __init__(self, width):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.scale = nn.Parameter(torch.full((width, 1, 1), 0.5))
        self.register_buffer("shift", torch.randn(width, 1, 1))
        self.register_buffer("aside", torch.ones(1), persistent=False)
        self.unused = nn.Linear(2, 2)

    def forward(self, x):
        y = F.relu(self.norm(self.conv(x)))
        return x + y * self.scale + self.shift - self.aside


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GELU())
        self.blocks = nn.ModuleList([Block(4), Block(4)])
        self.head = nn.Linear(4, 5)

    def forward(self, x, factor=2.0):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        x = F.adaptive_avg_pool2d(x, 1).flatten(1)
        x = torch.cat([x[:, :2] * factor, x[:, 2:]], dim=1).reshape(x.size(0), -1)
        return torch.softmax(self.head(x), dim=-1), x.mean(dim=1, keepdim=True)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(11, 6)
        self.out = nn.Linear(6, 11, bias=False)
        self.out.weight = self.table.weight

    def forward(self, ids):
        return self.out(self.table(ids))


def flat(value):
    if isinstance(value, (torch.Tensor, pf.Tensor)):
        return [value]
    return [t for part in value for t in flat(part)] if isinstance(value, (tuple, list)) else []


def given(inputs):
    return [pf.from_torch(x) if isinstance(x, torch.Tensor) else x for x in inputs]


@pytest.mark.parametrize("name", MODULES)
def test_layers(name):
    torch.manual_seed(0)
    module, inputs = MODULES[name]()
    module.eval()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = flat(module(*inputs))
    made = pf.nn.from_torch(module)
    assert list(made.state_dict()) == list(module.state_dict())
    found = flat(made(*given(inputs)))
    for mine, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(mine.detach().numpy(), theirs.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("train", [False, True])
def test_a_network_of_ones_own(train):
    torch.manual_seed(1)
    network = Network().train(train)
    network.blocks[0].eval()
    network.head.bias.requires_grad_(False)
    made = pf.nn.from_torch(network)
    assert set(made.state_dict()) == set(network.state_dict())
    assert [p.requires_grad for p in made.parameters()].count(False) == 1
    image = torch.randn(2, 3, 8, 8)
    found, wanted = made(pf.from_torch(image), factor=3.0), network(image, factor=3.0)
    for mine, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(mine.detach().numpy(), theirs.detach().numpy(), rtol=1e-4, atol=1e-5)
    (found[0] ** 2).sum().backward()
    (wanted[0] ** 2).sum().backward()
    gradients = dict(made.named_parameters())
    for name, parameter in network.named_parameters():
        mine = gradients[name].grad
        assert (mine is None) == (parameter.grad is None), name
        if mine is not None:
            np.testing.assert_allclose(mine.numpy(), parameter.grad.numpy(), rtol=1e-3, atol=1e-5)
    with pytest.raises(TypeError, match="misses the argument 'x'"):
        made()
    with pytest.raises(TypeError, match="fewer arguments"):
        made(pf.from_torch(image), 1.0, 2.0)


def test_ties_and_weights_of_its_own():
    module = Tied().double()
    made = pf.nn.from_torch(module)
    assert made.out.weight is made.table.weight
    assert made.out.weight.dtype is pf.float64
    before = module.out.weight.detach().numpy().copy()
    with torch.no_grad():
        module.out.weight.zero_()
    np.testing.assert_array_equal(made.out.weight.detach().numpy(), before)


class Deciding(nn.Module):
    def forward(self, x):
        return x + 1 if x.sum() > 0 else x - 1


class Unknown(nn.Module):
    def forward(self, x):
        return torch.fft.fft(x)


@pytest.mark.parametrize(
    ("module", "told"),
    [
        (Deciding(), r"Deciding cannot be traced .* pyflame_rt\.from_torch"),
        (Unknown(), "fft"),
        (nn.AdaptiveLogSoftmaxWithLoss(4, 10, [5]), "AdaptiveLogSoftmaxWithLoss"),
    ],
)
def test_what_has_no_counterpart_is_named(module, told):
    with pytest.raises(UnsupportedOperatorError, match=told):
        pf.nn.from_torch(module)


def _doubled(module, inputs, output):
    return 2 * output


def test_hooks_are_refused_by_name():
    """A copy without them would answer otherwise and say nothing."""
    hooked = nn.Sequential(nn.Linear(3, 2))
    hooked[0].register_forward_hook(_doubled)
    with pytest.raises(UnsupportedOperatorError, match=r"0 \(Linear\) has forward hooks \(_doubled\)"):
        pf.nn.from_torch(hooked)
    with pytest.raises(UnsupportedOperatorError, match=r"the module \(Linear\).*SpectralNorm"):
        pf.nn.from_torch(nn.utils.spectral_norm(nn.Linear(3, 2)))


def test_other_things_are_refused():
    with pytest.raises(TypeError, match=r"torch\.nn\.Module, got int"):
        pf.nn.from_torch(3)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int64", "int8", "bool"])
def test_memory_is_shared_both_ways(dtype):
    theirs = torch.tensor([[1, 0, 3], [4, 5, 0]]).to(getattr(torch, dtype))
    mine = pf.from_torch(theirs)
    assert str(mine.dtype).endswith(dtype)
    back = pf.to_torch(mine)
    assert back.data_ptr() == theirs.data_ptr()
    assert back.dtype is theirs.dtype
    assert torch.equal(back, theirs)
    copied = pf.to_torch(mine, copy=True)
    assert copied.data_ptr() != theirs.data_ptr()
    assert torch.equal(copied, theirs)


def test_a_tensor_that_is_computed_goes_out_too():
    x = pf.tensor([1.0, 2.0], requires_grad=True)
    out = pf.to_torch(x * 3)
    assert out.tolist() == [3.0, 6.0]
    assert not out.requires_grad
