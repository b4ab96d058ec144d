"""Parameters of another shape: refused where torch refuses them, though they would broadcast."""

import itertools

import numpy as np
import pytest
import torch

import pyflame as pf
from pyflame_rt.graph.errors import PyFlameRTError

C = 4
SHAPES = [(1,), (C - 1,), (C + 1,), (1, C), (C, 1), (C, C), (0,), (C,), (2,), (2, 1)]
RNG = np.random.default_rng(0)


def f32(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


X, IMAGE, WIDE = f32(2, 3, C), f32(2, C, 5), f32(2, C)
LABELS = np.array([0, 1])
GIVEN = np.abs(f32(C))
# Calls with one argument of a shape that may be wrong.
CALLS = {
    "layer_norm weight": lambda F, t, w: F.layer_norm(t(X), [C], t(w)),
    "layer_norm bias": lambda F, t, w: F.layer_norm(t(X), [C], t(GIVEN), t(w)),
    "layer_norm of two dimensions": lambda F, t, w: F.layer_norm(t(X), [3, C], t(w)),
    "rms_norm weight": lambda F, t, w: F.rms_norm(t(X), [C], t(w)),
    "group_norm weight": lambda F, t, w: F.group_norm(t(IMAGE), 2, t(w)),
    "instance_norm weight": lambda F, t, w: F.instance_norm(t(IMAGE), None, None, t(w)),
    "instance_norm bias": lambda F, t, w: F.instance_norm(t(IMAGE), None, None, t(GIVEN), t(w)),
    "batch_norm mean": lambda F, t, w: F.batch_norm(t(IMAGE), t(w), t(GIVEN), training=True),
    "batch_norm variance": lambda F, t, w: F.batch_norm(t(IMAGE), t(GIVEN), t(np.abs(w)), training=True),
    "linear bias": lambda F, t, w: F.linear(t(f32(2, 3)), t(f32(C, 3)), t(w)),
    "bilinear bias": lambda F, t, w: F.bilinear(t(f32(2, 3)), t(f32(2, 5)), t(f32(C, 3, 5)), t(w)),
    "embedding table": lambda F, t, w: F.embedding(t(LABELS[:1]), t(w)),
    "prelu weight": lambda F, t, w: F.prelu(t(IMAGE), t(w)),
    "prelu of a vector": lambda F, t, w: F.prelu(t(GIVEN), t(w)),
    "cross_entropy weight": lambda F, t, w: F.cross_entropy(t(WIDE), t(LABELS), weight=t(w)),
    "cross_entropy of shares, weight": lambda F, t, w: F.cross_entropy(t(WIDE), t(np.abs(WIDE)), weight=t(w)),
    "multi_margin_loss weight": lambda F, t, w: F.multi_margin_loss(t(WIDE), t(LABELS), weight=t(w)),
    "gaussian_nll_loss var": lambda F, t, w: F.gaussian_nll_loss(t(WIDE), t(WIDE), t(np.abs(w))),
    "gaussian_nll_loss var of a square": lambda F, t, w: F.gaussian_nll_loss(
        t(np.outer(GIVEN, GIVEN)), t(np.zeros((C, C), np.float32)), t(np.abs(w))
    ),
    "triplet_margin_loss negative": lambda F, t, w: F.triplet_margin_loss(t(WIDE), t(WIDE), t(w)),
    "margin_ranking_loss target": lambda F, t, w: F.margin_ranking_loss(t(WIDE), t(WIDE), t(w)),
    "cosine_embedding_loss target": lambda F, t, w: F.cosine_embedding_loss(t(WIDE), t(WIDE), t(w)),
}


def answered(call, library, value):
    functions = torch.nn.functional if library is torch else pf.nn.functional
    try:
        found = call(functions, library.tensor, value)
    except (RuntimeError, ValueError, IndexError):
        return None
    return np.asarray(found.numpy())


@pytest.mark.parametrize("name", CALLS)
def test_refused_where_torch_refuses(name):
    call = CALLS[name]
    for shape in SHAPES:
        value = f32(*shape)
        seed = RNG.bit_generator.state
        expected = answered(call, torch, value)
        RNG.bit_generator.state = seed  # the same arrays for both
        found = answered(call, pf, value)
        assert (found is None) == (expected is None), shape
        if expected is not None:
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5, err_msg=str(shape))


SIZES = {
    "interpolate to a size": lambda F, t, n: F.interpolate(t(f32(1, 1, 4)), size=n),
    "interpolate by a factor": lambda F, t, n: F.interpolate(t(f32(1, 1, 4)), scale_factor=n / 8),
    "pixel_shuffle": lambda F, t, n: F.pixel_shuffle(t(f32(1, 16, 4, 4)), n),
    "pixel_unshuffle": lambda F, t, n: F.pixel_unshuffle(t(f32(1, 16, 4, 4)), n),
    "hardtanh": lambda F, t, n: F.hardtanh(t(GIVEN), float(n), 0.5),
    "pad by reflection": lambda F, t, n: F.pad(t(f32(1, 2, 3)), (n, 0), mode="reflect"),
    "pad round": lambda F, t, n: F.pad(t(f32(1, 2, 3)), (0, n), mode="circular"),
    "max_pool1d": lambda F, t, n: F.max_pool1d(t(f32(1, 2, 3)), n),
    "max_pool1d, dilated": lambda F, t, n: F.max_pool1d(t(f32(1, 2, 3)), 2, 1, 0, n),
    "avg_pool2d": lambda F, t, n: F.avg_pool2d(t(f32(1, 2, 3, 3)), n),
    "lp_pool1d": lambda F, t, n: F.lp_pool1d(t(np.abs(f32(1, 2, 3))), 2.0, n),
    "adaptive_max_pool1d": lambda F, t, n: F.adaptive_max_pool1d(t(f32(1, 2, 3)), n),
}


@pytest.mark.parametrize(("name", "number"), list(itertools.product(SIZES, range(-1, 6))))
def test_sizes_are_refused_where_torch_refuses_them(name, number):
    seed = RNG.bit_generator.state
    expected = answered(SIZES[name], torch, number)
    RNG.bit_generator.state = seed
    found = answered(SIZES[name], pf, number)
    assert (found is None) == (expected is None)
    if expected is not None:
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_the_parameter_is_named():
    with pytest.raises(PyFlameRTError, match=r"layer_norm: weight must have shape \[4\]. Received: \[1\]"):
        pf.nn.functional.layer_norm(pf.ones([2, 4]), [4], pf.ones([1]))
