"""Layers that take the size of their input from the first one."""

import numpy as np
import pytest

import pyflame as pf
from pyflame import nn
from pyflame_rt.graph.errors import ShapeMismatchError


def network():
    return nn.Sequential(nn.LazyConv2d(4, 3, groups=2), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(5))


def test_they_become_ordinary_layers():
    model = network()
    assert all(layer.has_uninitialized_params() for layer in (model[0], model[1], model[3]))
    assert model(pf.ones([2, 6, 5, 5])).shape == [2, 5]
    assert not any(layer.has_uninitialized_params() for layer in (model[0], model[1], model[3]))
    assert [type(layer) for layer in model] == [nn.LazyConv2d, nn.LazyBatchNorm2d, nn.Flatten, nn.LazyLinear]
    kinds = [nn.Conv2d, nn.BatchNorm2d, nn.Flatten, nn.Linear]
    assert all(isinstance(layer, kind) for layer, kind in zip(model, kinds, strict=True))
    assert (model[0].in_channels, model[0].weight.shape, model[3].in_features) == (6, [4, 3, 3, 3], 36)
    plain = nn.Sequential(nn.Conv2d(6, 4, 3, groups=2), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(36, 5))
    assert repr(model) == repr(plain)
    assert list(model.state_dict()) == list(plain.state_dict())
    plain.load_state_dict(model.state_dict())
    x = pf.randn([2, 6, 5, 5])
    np.testing.assert_array_equal(model.eval()(x).numpy(), plain.eval()(x).numpy())


def test_an_optimizer_made_before_trains_them():
    model = network()
    optimizer = pf.optim.SGD(model.parameters(), lr=0.1)
    x = pf.randn([4, 6, 5, 5])
    model(x)
    before = [p.numpy().copy() for p in model.parameters()]
    model(x).pow(2).sum().backward()
    optimizer.step()
    for old, new in zip(before, model.parameters(), strict=True):
        assert new.shape == list(old.shape)
    assert all((old != new.numpy()).any() for old, new in zip(before[::2], list(model.parameters())[::2], strict=True))


def test_the_type_set_before_is_kept():
    model = network().to(pf.float64)
    assert model(pf.ones([1, 6, 4, 4], dtype=pf.float64)).dtype is pf.float64
    assert {v.dtype for v in model.state_dict().values()} == {pf.float64, pf.int64}


def test_saved_weights_give_the_size():
    trained = network()
    trained(pf.randn([2, 6, 5, 5]))
    fresh = nn.Sequential(network(), nn.LazyConvTranspose1d(3, 2))
    fresh[0].load_state_dict(trained.state_dict())
    assert not fresh[0][3].has_uninitialized_params()
    x = pf.randn([2, 6, 5, 5])
    np.testing.assert_array_equal(fresh[0].eval()(x).numpy(), trained.eval()(x).numpy())
    turned = nn.ConvTranspose1d(7, 3, 2)
    fresh[1].load_state_dict(turned.state_dict())
    assert fresh[1].in_channels == 7


def test_weights_saved_before_the_size_was_known_load():
    model = network()
    model.load_state_dict(network().state_dict(), strict=False)
    assert model[0].has_uninitialized_params()
    assert model(pf.ones([1, 2, 4, 4])).shape == [1, 5]


@pytest.mark.parametrize(
    ("layer", "shape", "channels"),
    [
        (nn.LazyConv1d(2, 1), [3, 4], 3),
        (nn.LazyConv3d(2, 1), [1, 4, 2, 2, 2], 4),
        (nn.LazyConvTranspose2d(2, 1), [4, 2, 2], 4),
        (nn.LazyInstanceNorm2d(), [3, 2, 2], 3),
        (nn.LazyInstanceNorm1d(bias=False), [2, 3, 5], 3),
        (nn.LazyBatchNorm1d(affine=False), [2, 3], 3),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else str(value),
)
def test_with_and_without_a_batch(layer, shape, channels):
    layer(pf.ones(shape))
    assert getattr(layer, "in_channels", 0) + getattr(layer, "num_features", 0) == channels


def test_wrong_inputs_leave_them_as_they_are():
    layer = nn.LazyConv2d(3, 2)
    with pytest.raises(ShapeMismatchError, match="3 or 4 dimensions"):
        layer(pf.ones([2, 2]))
    assert layer.has_uninitialized_params()
    with pytest.raises(ShapeMismatchError, match="4 dimensions"):
        nn.LazyBatchNorm2d()(pf.ones([2, 2]))


def test_a_compiled_function_asks_for_a_call_before():
    layer = nn.LazyLinear(2)
    compiled = pf.compile(lambda x: layer(x), fullgraph=True)
    with pytest.raises(pf.TraceError, match="call the module once before"):
        compiled(pf.ones([1, 3]))
    layer(pf.ones([1, 3]))
    assert compiled(pf.ones([1, 3])).shape == [1, 2]


@pytest.mark.parametrize("make", [nn.BatchNorm2d, lambda n, **k: nn.InstanceNorm2d(n, affine=True, **k)])
def test_norms_without_a_shift(make):
    layer = make(3, bias=False)
    assert layer.bias is None
    assert [name for name, _ in layer.named_parameters()] == ["weight"]
    assert nn.GroupNorm(1, 3, bias=False).bias is None
