"""Ranges: streaming equals looking at everything at once."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyflame_rt.quantization import CalibrationMethod, QuantConfig, QuantParams
from pyflame_rt.quantization.observers import SIDE, RangeObserver


def config(method, **more):
    made = QuantConfig.static_int8()
    made.calibration_method = method
    for name, value in more.items():
        setattr(made, name, value)
    return made


def observed(*batches):
    observer = RangeObserver()
    for batch in batches:
        observer.observe(np.asarray(batch, np.float32))
    return observer


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.lists(st.floats(-20, 20), min_size=2, max_size=5))
def test_order_and_batches_do_not_matter(seed, exponents):
    rng = np.random.default_rng(seed)
    batches = [rng.standard_normal(50).astype(np.float32) * np.float32(2.0**e) for e in exponents]
    stats = observed(*batches).stats()
    other = observed(*batches[::-1]).stats()
    whole = observed(np.concatenate(batches)).stats()
    for found in (other, whole):
        assert (found.min, found.max, found.count, found.limit) == (stats.min, stats.max, stats.count, stats.limit)
        assert np.array_equal(found.histogram, stats.histogram)
    assert stats.histogram.sum() == stats.count
    everything = np.concatenate(batches)
    assert stats.min == everything.min()
    assert stats.max == everything.max()
    assert math.isclose(stats.mean, everything.mean(dtype=np.float64), rel_tol=1e-9, abs_tol=1e-12)


def test_percentiles_are_numpys_within_a_bin():
    values = np.random.default_rng(0).standard_cauchy(100_000).astype(np.float32)
    low, high = np.percentile(values, [1, 99])
    observer = observed(*np.array_split(values, 7))
    params = observer.params(config(CalibrationMethod.Percentile, calibration_percentile=98.0, symmetric=False))
    limits = (np.float32([-128, 127]) - params.zero_points[0]) * params.scales[0]
    width = observer.stats().limit / SIDE
    assert np.abs(limits - [low, high]).max() <= width + params.scales[0]


def squared_error(values, params):
    return float(((params.dequantize(params.quantize(values)) - values) ** 2).sum())


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("kind", ["normal", "tails", "positive", "outlier"])
def test_mse_is_near_the_least_there_is(kind, symmetric):
    rng = np.random.default_rng(1)
    values = {
        "normal": rng.standard_normal(20_000),
        "tails": rng.laplace(size=20_000),
        "positive": np.abs(rng.standard_normal(20_000)),
        "outlier": np.append(rng.standard_normal(20_000), 30.0),
    }[kind].astype(np.float32)
    chosen = observed(values).params(config(CalibrationMethod.MSE, symmetric=symmetric))
    reach = np.abs(values).max()
    tried = [
        QuantParams.compute_from_minmax(max(values.min(), -t), min(values.max(), t), symmetric=symmetric)
        for t in np.linspace(reach / 64, reach, 512)
    ]
    least = min(squared_error(values, params) for params in tried)
    assert squared_error(values, chosen) <= 1.1 * least


def test_entropy_cuts_outliers_and_keeps_flat_ranges():
    rng = np.random.default_rng(2)
    flat = rng.uniform(-1, 1, 100_000).astype(np.float32)
    entropy = config(CalibrationMethod.Entropy)
    minmax = config(CalibrationMethod.MinMax)
    assert observed(flat).params(entropy).scales[0] >= 0.95 * observed(flat).params(minmax).scales[0]
    spiky = np.append(rng.standard_normal(100_000), [60.0]).astype(np.float32)
    cut = observed(spiky).params(entropy).scales[0] * 127
    assert 3 < cut < 40


@pytest.mark.parametrize("method", list(CalibrationMethod))
@pytest.mark.parametrize("values", [[0.0], [3.0], [-2.0, -2.0], [1e-30, 2e-30], [0.0, 3e38], [5e-39]])
def test_odd_ranges_have_usable_scales(method, values):
    params = observed(values).params(config(method))
    assert 0 < params.scales[0] < math.inf
    got = params.dequantize(params.quantize(np.float32(values)))
    np.testing.assert_allclose(got, values, rtol=0.51, atol=1e-37)


def test_what_is_not_finite_is_counted_apart():
    stats = observed([1.0, math.nan, math.inf, -2.0], [math.nan]).stats()
    assert (stats.min, stats.max, stats.count, stats.nonfinite) == (-2.0, 1.0, 2, 3)


def test_nothing_seen():
    stats = observed([]).stats()
    assert (stats.count, stats.min, stats.max) == (0, 0.0, 0.0)
