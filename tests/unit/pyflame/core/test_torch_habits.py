"""What programs written for torch do, number by number: names and ways that its users expect."""

import copy
import pickle

import numpy as np
import pytest

import pyflame as pf
from pyflame_rt.graph.errors import ShapeMismatchError

torch = pytest.importorskip("torch")
RNG = np.random.default_rng(0)


def both(array):
    return pf.from_numpy(array.copy()), torch.from_numpy(array.copy())


def twins(make):
    """A model of each library with the same weights."""
    theirs = make(torch.nn)
    ours = make(pf.nn)
    ours.load_state_dict({key: value.numpy().copy() for key, value in theirs.state_dict().items()})
    return ours, theirs


def test_changing_a_state_dict_in_place_changes_the_module():
    def averaged(library, model):
        slow = copy.deepcopy(model).requires_grad_(False)
        with library.no_grad():
            for p in model.parameters():
                p.mul_(2.0)
            for key, value in slow.state_dict().items():
                value.copy_(value * 0.75 + model.state_dict()[key] * 0.25)
        return [p.detach().numpy() for p in slow.parameters()]

    ours, theirs = twins(lambda nn: nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)))
    for a, b in zip(averaged(pf, ours), averaged(torch, theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_buffers_of_a_state_dict_are_the_module_s():
    norm = pf.nn.BatchNorm1d(2)
    norm(pf.ones([4, 2]))
    state = norm.state_dict()
    state["running_mean"].mul_(3.0)
    state["num_batches_tracked"].copy_(pf.tensor(7))
    np.testing.assert_allclose(norm.running_mean.numpy(), [0.3, 0.3], rtol=1e-6)
    assert norm.num_batches_tracked.item() == 7
    assert norm.num_batches_tracked.dtype is pf.int64


def pickled(state):
    return pickle.loads(pickle.dumps(state))  # noqa: S301 - our own


@pytest.mark.parametrize("copied", [copy.deepcopy, pickled])
def test_a_copied_state_dict_is_on_its_own(copied):
    layer = pf.nn.Linear(2, 1)
    before = layer.weight.numpy()
    state = copied(layer.state_dict())
    state["weight"].zero_()
    np.testing.assert_array_equal(layer.weight.numpy(), before)
    assert type(state["weight"]) is pf.Tensor
    layer.load_state_dict(state)
    assert layer.weight.numpy().tolist() == [[0.0, 0.0]]


def test_a_state_dict_keeps_the_values_of_its_time():
    layer = pf.nn.Linear(2, 1, bias=False)
    state = layer.state_dict()
    before = layer.weight.numpy()
    layer.weight.data = pf.zeros([1, 2])
    np.testing.assert_array_equal(state["weight"].numpy(), before)


def test_data_copies_are_on_their_own():
    w = pf.nn.Parameter(pf.ones([2]))
    twin = copy.deepcopy(w.data)
    twin.zero_()
    assert w.tolist() == [1.0, 1.0]
    assert twin.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("shape", [(3, 3), (2, 4), (5, 2), (3, 3, 3)])
@pytest.mark.parametrize("wrap", [False, True])
def test_diagonals_are_filled(shape, wrap):
    a, b = both(RNG.normal(size=shape).astype(np.float32))
    np.testing.assert_array_equal(a.fill_diagonal_(7.0, wrap).numpy(), b.fill_diagonal_(7.0, wrap).numpy())


def test_diagonals_that_are_none_are_refused():
    with pytest.raises(ShapeMismatchError, match="fill_diagonal_ takes a matrix"):
        pf.ones([3]).fill_diagonal_(0.0)


def test_filled_diagonals_have_gradients():
    a, b = (t.requires_grad_() for t in both(RNG.normal(size=(3, 3)).astype(np.float32)))
    for x in (a, b):
        (x * 2).fill_diagonal_(-1.0).pow(2).sum().backward()
    np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), rtol=1e-6)


@pytest.mark.parametrize("invert", [False, True])
def test_elements_that_are_among_others(invert):
    (a, b), (c, d) = both(RNG.integers(0, 9, (4, 5))), both(RNG.integers(0, 9, (2, 2)))
    np.testing.assert_array_equal(pf.isin(a, c, invert=invert).numpy(), torch.isin(b, d, invert=invert).numpy())
    assert pf.isin(a, pf.zeros([0], dtype=pf.int64)).any().item() is False


def test_as_tensor_takes_tensors_arrays_and_numbers():
    t = pf.ones([2])
    assert pf.as_tensor(t) is t
    assert pf.as_tensor(np.array([1, 2])).dtype is pf.int64
    assert pf.as_tensor([1.5], dtype=pf.float64).tolist() == [1.5]


def test_functions_with_their_own_gradient_go_by_torchs_name():
    class Ramp(pf.autograd.Function):
        @staticmethod
        def forward(ctx, x, slope):
            ctx.save_for_backward(x)
            ctx.slope = slope
            return pf.relu(x) * slope

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return pf.where(x > 0, g * ctx.slope, pf.zeros_like(g)), None

    assert pf.autograd.Function is pf.extend.AutogradFunction
    x = pf.tensor([-1.0, 2.0], requires_grad=True)
    Ramp.apply(x, 3.0).sum().backward()
    assert x.grad.tolist() == [0.0, 3.0]
    with pytest.raises(AttributeError, match="no attribute 'Functions'"):
        pf.autograd.Functions  # noqa: B018


def test_encoders_take_torchs_settings():
    def make(nn):
        layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True, norm_first=True)
        return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False, mask_check=False)

    ours, theirs = twins(make)
    a, b = both(RNG.normal(size=(3, 5, 8)).astype(np.float32))
    pad = np.zeros((3, 5), bool)
    pad[0, 3:] = True
    got = ours(a, src_key_padding_mask=pf.from_numpy(pad))
    want = theirs(b, src_key_padding_mask=torch.from_numpy(pad))
    np.testing.assert_allclose(got.detach().numpy(), want.detach().numpy(), rtol=1e-4, atol=1e-5)
