"""Windows summed up into images, and slopes drawn at random, against torch."""

import numpy as np
import pytest

import pyflame as pf
from pyflame_rt.graph.errors import ShapeMismatchError

torch = pytest.importorskip("torch")
RNG = np.random.default_rng(0)
FOLDS = [
    ((4, 5), {"kernel_size": 2}),
    ((6, 7), {"kernel_size": (2, 3), "stride": 2}),
    ((7, 7), {"kernel_size": 3, "stride": (2, 1), "padding": (1, 2)}),
    ((9, 8), {"kernel_size": 2, "dilation": (3, 2), "stride": 2, "padding": 1}),
    (5, {"kernel_size": 5}),
]


def windows(size, kernel_size, **settings):
    height, width = (size, size) if isinstance(size, int) else size
    return torch.nn.functional.unfold(torch.zeros(1, 1, height, width), kernel_size, **settings).shape[1:]


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize(("size", "settings"), FOLDS)
def test_fold_equals_torch(size, settings, batched):
    taps, count = windows(size, **settings)
    values = RNG.normal(size=(2, 3 * taps, count) if batched else (3 * taps, count))
    mine, theirs = pf.tensor(values).requires_grad_(), torch.tensor(values).requires_grad_()
    got, want = pf.nn.Fold(size, **settings)(mine), torch.nn.Fold(size, **settings)(theirs)
    np.testing.assert_allclose(got.numpy(), want.detach().numpy(), rtol=1e-12, atol=1e-12)
    (got**2).sum().backward(), (want**2).sum().backward()
    np.testing.assert_allclose(mine.grad.numpy(), theirs.grad.numpy(), rtol=1e-12, atol=1e-12)


def test_fold_undoes_unfold_but_for_how_often_a_pixel_is_seen():
    image = pf.tensor(RNG.normal(size=(3, 6, 5)))
    settings = {"kernel_size": 3, "padding": 1}
    seen = pf.nn.functional.fold(pf.nn.functional.unfold(pf.ones_like(image), **settings), (6, 5), **settings)
    back = pf.nn.functional.fold(pf.nn.functional.unfold(image, **settings), (6, 5), **settings)
    np.testing.assert_allclose((back / seen).numpy(), image.numpy(), rtol=1e-12)


def test_windows_that_do_not_fit_are_refused():
    columns = pf.ones([1, 8, 12])
    with pytest.raises(ShapeMismatchError, match="divisible by the product of kernel_size"):
        pf.nn.functional.fold(columns, (4, 5), 3)
    with pytest.raises(ShapeMismatchError, match="expected 3 x 3 windows"):
        pf.nn.functional.fold(columns, (4, 4), 2)
    with pytest.raises(ShapeMismatchError, match="dimensions"):
        pf.nn.functional.fold(pf.ones([8]), (4, 5), 2)
    with pytest.raises(ValueError, match="positive"):
        pf.nn.functional.fold(columns, (4, 5), 2, stride=0)


def test_random_slopes():
    x = RNG.normal(size=1000)
    layer = pf.nn.RReLU(0.2, 0.6)
    mine = pf.tensor(x).requires_grad_()
    y = layer(mine)
    y.sum().backward()
    slopes = mine.grad.numpy()
    np.testing.assert_allclose(y.numpy(), x * slopes, rtol=1e-12)
    np.testing.assert_array_equal(slopes[x > 0], 1)
    drawn = slopes[x <= 0]
    assert 0.2 <= drawn.min() < 0.25 < 0.55 < drawn.max() <= 0.6
    assert not np.array_equal(layer(mine).numpy(), y.numpy())
    theirs = torch.tensor(x).requires_grad_()
    want = torch.nn.RReLU(0.2, 0.6).eval()(theirs)
    again = pf.tensor(x).requires_grad_()
    got = layer.eval()(again)
    np.testing.assert_allclose(got.numpy(), want.detach().numpy(), rtol=1e-12)
    got.sum().backward(), want.sum().backward()
    np.testing.assert_allclose(again.grad.numpy(), theirs.grad.numpy(), rtol=1e-12)
    assert repr(layer) == "RReLU(lower=0.2, upper=0.6)"


def test_slopes_in_place_and_refused():
    x = pf.tensor([-1.0, 1.0])
    assert pf.nn.RReLU(0.5, 0.5, inplace=True)(x) is x
    assert x.numpy().tolist() == [-0.5, 1.0]
    with pytest.raises(ValueError, match="lower"):
        pf.nn.functional.rrelu(x, 0.5, 0.1)
