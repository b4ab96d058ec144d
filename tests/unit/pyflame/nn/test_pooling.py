"""Pooling with places, divisors and rounding up, and its way back, against torch."""

import numpy as np
import pytest

import pyflame as pf
from pyflame_rt.graph.errors import DTypeMismatchError, ShapeMismatchError

torch = pytest.importorskip("torch")
F, T = pf.nn.functional, torch.nn.functional

SPATIAL = {1: (9,), 2: (7, 10), 3: (5, 6, 7)}


def data(rank, seed=0, *, ties=False):
    values = np.random.default_rng(seed).standard_normal((2, 3, *SPATIAL[rank])).astype(np.float32)
    return np.round(values) if ties else values


def assert_gradients(ours, theirs, x):
    """Values of both, then gradients of a weighted sum."""
    px, tx = pf.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    got, want = ours(px), theirs(tx)
    np.testing.assert_allclose(got.detach().numpy(), want.detach().numpy(), rtol=1e-5, atol=1e-6)
    weights = np.random.default_rng(1).standard_normal(tuple(want.shape)).astype(np.float32)
    (got * pf.from_numpy(weights)).sum().backward()
    (want * torch.from_numpy(weights)).sum().backward()
    np.testing.assert_allclose(px.grad.numpy(), tx.grad.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize(
    ("rank", "size"), [(1, 4), (1, 3), (2, (3, 4)), (2, (7, 5)), (2, (None, 3)), (2, 1), (3, (2, 3, 3)), (3, (5, 2, 7))]
)
def test_adaptive_maxima_and_their_places(rank, size, ties):
    x = data(rank, ties=ties)
    ours, theirs = (getattr(m, f"adaptive_max_pool{rank}d") for m in (F, T))
    got, want = (
        ours(pf.from_numpy(x), size, return_indices=True),
        theirs(torch.from_numpy(x), size, return_indices=True),
    )
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    assert_gradients(lambda v: ours(v, size), lambda v: theirs(v, size), x)


def test_adaptive_maxima_of_one_image():
    x = data(2)[0]
    layer = pf.nn.AdaptiveMaxPool2d((3, 4), return_indices=True)
    got, want = layer(pf.from_numpy(x)), T.adaptive_max_pool2d(torch.from_numpy(x), (3, 4), return_indices=True)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


@pytest.mark.parametrize("kernel", [2, 3, 4])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize("rank", [2, 3])
def test_means_by_a_given_divisor_rounded_up(rank, kernel, stride, padding):
    options = {"stride": stride, "padding": padding, "ceil_mode": True, "divisor_override": 5}
    ours, theirs = (getattr(m, f"avg_pool{rank}d") for m in (F, T))
    assert_gradients(lambda v: ours(v, kernel, **options), lambda v: theirs(v, kernel, **options), data(rank))


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize(("kernel", "stride", "padding"), [(2, None, 0), (3, 2, 1), (3, 3, 0)])
def test_maxima_go_back_to_their_places(rank, kernel, stride, padding):
    x = data(rank)
    pooled, places = getattr(T, f"max_pool{rank}d")(torch.from_numpy(x), kernel, stride, padding, return_indices=True)
    ours, theirs = (getattr(m, f"max_unpool{rank}d") for m in (F, T))
    size = list(x.shape[2:])
    assert_gradients(
        lambda v: ours(v, pf.from_numpy(places.numpy()), kernel, stride, padding, size),
        lambda v: theirs(v, places, kernel, stride, padding, size),
        pooled.numpy(),
    )


def test_layers_of_unpooling():
    x = pf.from_numpy(data(2)[:, :, :6])
    y, places = pf.nn.MaxPool2d(2, return_indices=True)(x)
    layer = pf.nn.MaxUnpool2d(2)
    back = layer(y, places)
    want = torch.nn.MaxUnpool2d(2)(torch.from_numpy(y.numpy()), torch.from_numpy(places.numpy()))
    np.testing.assert_array_equal(back.numpy(), want.numpy())
    assert repr(layer) == "MaxUnpool2d(kernel_size=2, stride=None, padding=0)"


def test_wrong_calls_are_refused():
    x = pf.ones([1, 1, 4, 4])
    y, places = F.max_pool2d(x, 2, return_indices=True)
    with pytest.raises(ValueError, match="is impossible"):
        F.max_unpool2d(y, places, 2, output_size=[9, 9])
    with pytest.raises(ValueError, match="must hold 2 sizes"):
        F.max_unpool2d(y, places, 2, output_size=[4])
    with pytest.raises(ShapeMismatchError, match="indices of shape"):
        F.max_unpool2d(y, places[:, :, :1], 2)
    with pytest.raises(ValueError, match="must not be zero"):
        F.avg_pool2d(x, 2, divisor_override=0)


@pytest.mark.parametrize("layer", [pf.nn.FractionalMaxPool2d, pf.nn.FractionalMaxPool3d])
def test_windows_that_chance_places(layer):
    rank = layer.rank
    x = pf.from_numpy(np.random.default_rng(0).normal(size=(2, 3, *[9] * rank)).astype(np.float32)).requires_grad_()
    pool = layer(3, output_ratio=0.6, return_indices=True)
    step = pf.compile(lambda x: pool(x))
    pf.manual_seed(0)
    runs = [pool(x), pool(x), *(step(x) for _ in range(4))]
    assert len({y.numpy().tobytes() for y, _ in runs}) > 1  # drawn anew, compiled or not
    flat = x.detach().numpy().reshape(2, 3, -1)
    for y, places in runs:
        assert y.shape == places.shape == [2, 3, *[5] * rank]
        np.testing.assert_array_equal(
            y.numpy().ravel(), np.take_along_axis(flat, places.numpy().reshape(2, 3, -1), -1).ravel()
        )
    y, places = runs[0]
    y.sum().backward()
    want = np.zeros_like(flat)
    for n, c in np.ndindex(2, 3):
        np.add.at(want[n, c], places.numpy()[n, c].ravel(), 1)
    np.testing.assert_array_equal(x.grad.numpy().reshape(want.shape), want)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: pf.nn.FractionalMaxPool2d(2), "give one of them"),
        (lambda: pf.nn.FractionalMaxPool2d(2, 3, 0.5), "give only one"),
        (lambda: pf.nn.FractionalMaxPool3d(2, output_ratio=(0.5, 1.5, 0.5)), "between 0 and 1"),
        (lambda: pf.nn.FractionalMaxPool2d(3, 4)(pf.ones([1, 1, 5, 9])), "4 windows of 3 do not fit into 5"),
        (lambda: pf.nn.FractionalMaxPool2d(2, 2)(pf.ones([5, 9])), "3 or 4 dimensions"),
    ],
)
def test_windows_that_do_not_fit_are_refused(call, match):
    with pytest.raises((ValueError, ShapeMismatchError), match=match):
        call()


def test_whole_numbers_are_pooled_and_convolved():
    x = pf.tensor([[[7, -7, 6, 5, -20, 3]]])
    assert pf.nn.functional.avg_pool1d(x, 3).tolist() == [[[2, -4]]]  # cut off after the point, as integers are divided
    assert pf.nn.functional.conv1d(x, pf.tensor([[[1, 2**40]]])).tolist()[0][0][:2] == [7 - 7 * 2**40, -7 + 6 * 2**40]
    assert pf.nn.functional.conv_transpose1d(x, pf.tensor([[[1, 2]]])).tolist()[0][0][:2] == [7, 7]
    with pytest.raises((RuntimeError, DTypeMismatchError)):
        pf.nn.functional.conv1d(x, pf.ones([1, 1, 2]))


def test_a_product_of_truth_values_is_one():
    x = pf.tensor([[True, False], [True, True]])
    assert x.prod(1, dtype=pf.bool).tolist() == [False, True]


@pytest.mark.parametrize("training", [True, False])
def test_a_batch_of_no_elements_is_normalised(training):
    empty = pf.empty(0)
    assert pf.nn.functional.batch_norm(empty, empty, empty, training=training).shape == [0]
