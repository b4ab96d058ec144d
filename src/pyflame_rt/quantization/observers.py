"""Streaming range estimation: extremes and a histogram of fixed size, whatever number of batches comes.

The histogram covers -R to R, with R a power of two. Values beyond it double R, which joins bins in pairs, so that the
order of the batches does not matter and memory does not grow.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph.records import dataclass
from pyflame_rt.quantization.config import CalibrationMethod
from pyflame_rt.quantization.params import QuantParams

if TYPE_CHECKING:
    from pyflame_rt.quantization.config import QuantConfig

__all__ = ["RangeObserver", "TensorStats"]

SIDE = 2048  # bins on each side of zero
CANDIDATES = 128  # thresholds that are tried
FEWEST = 128  # bins on each side of zero that are never cut off
SMALLEST = -120  # exponents of R: below, all is zero


@dataclass(frozen=True, slots=True, eq=False)
class TensorStats:
    """What calibration saw of a tensor.

    Attributes:
        min: the least value.
        max: the greatest value.
        count: how many there were.
        mean: their mean.
        nonfinite: how many were infinite or NaN (not counted above).
        histogram: counts of 4096 bins from -``limit`` to ``limit``; None where no method needs it.
        limit: the outer edge of the histogram.
    """

    min: float
    max: float
    count: int
    mean: float
    nonfinite: int
    histogram: np.ndarray[Any, Any] | None
    limit: float


class RangeObserver:
    """Looks at the values of one tensor, batch after batch.

    Example:
        >>> observer = RangeObserver()
        >>> observer.observe(np.float32([-1, 3])); observer.observe(np.float32([0.5]))
        >>> observer.stats().min, observer.stats().max, observer.stats().count
        (-1.0, 3.0, 3)
    """

    def __init__(self, *, histogram: bool = True) -> None:
        self._low, self._high = math.inf, -math.inf
        self._count, self._sum, self._nonfinite = 0, 0.0, 0
        self._bins = np.zeros(2 * SIDE, np.int64) if histogram else None
        self._exponent = SMALLEST

    def observe(self, array: np.ndarray[Any, Any]) -> None:
        """Count the values of one batch."""
        values = array.reshape(-1).astype(np.float32, copy=False)
        if not values.size:
            return
        low, high = float(values.min()), float(values.max())
        if not (math.isfinite(low) and math.isfinite(high)):
            kept = values[np.isfinite(values)]
            self._nonfinite += values.size - kept.size
            values = kept
            if not values.size:
                return
            low, high = float(values.min()), float(values.max())
        self._low, self._high = min(self._low, low), max(self._high, high)
        self._count += values.size
        self._sum += float(values.sum(dtype=np.float64))
        if self._bins is not None:
            self._widen(max(-low, high))
            # By powers of two alone, so that no value is rounded into its neighbour's bin.
            places = np.floor(np.ldexp(values, SIDE.bit_length() - 1 - self._exponent)).astype(np.int64) + SIDE
            self._bins += np.bincount(places, minlength=2 * SIDE)

    def _widen(self, reach: float) -> None:
        """Double the range until it holds a value; pairs of bins become one."""
        wanted = max(math.frexp(reach)[1], SMALLEST) if reach else SMALLEST
        bins = self._bins
        assert bins is not None
        for _ in range(min(wanted - self._exponent, 2 * SIDE)):
            if not bins.any():
                break
            merged = np.zeros_like(bins)
            merged[SIDE // 2 : SIDE + SIDE // 2] = bins[0::2] + bins[1::2]
            bins = merged
        self._bins, self._exponent = bins, max(self._exponent, wanted)

    def stats(self) -> TensorStats:
        """What was seen so far."""
        mean = self._sum / self._count if self._count else 0.0
        low, high = (self._low, self._high) if self._count else (0.0, 0.0)
        limit = math.ldexp(1.0, self._exponent)
        return TensorStats(low, high, self._count, mean, self._nonfinite, self._bins, limit)

    def params(self, config: QuantConfig) -> QuantParams:
        """Scale and zero point, by the method that the settings name."""
        stats = self.stats()
        low, high = _range(stats, config)
        return _params(low, high, config)


def _params(low: float, high: float, config: QuantConfig) -> QuantParams:
    return QuantParams.compute_from_minmax(low, high, config.activation_dtype, config.symmetric)


def _range(stats: TensorStats, config: QuantConfig) -> tuple[float, float]:
    """From where to where values are told apart; beyond, they saturate."""
    if stats.histogram is None or config.calibration_method is CalibrationMethod.MinMax or stats.min == stats.max:
        return stats.min, stats.max
    match config.calibration_method:
        case CalibrationMethod.Percentile:
            low, high = _percentiles(stats, config.calibration_percentile)
        case CalibrationMethod.Entropy:
            low, high = _least(stats, _divergence, config)
        case _:
            low, high = _least(stats, _squared_error, config)
    # Zero always belongs to the range.
    return max(low, min(stats.min, 0.0)), min(high, max(stats.max, 0.0))


def _percentiles(stats: TensorStats, percent: float) -> tuple[float, float]:
    """The middle ``percent`` of the values; the rest is cut off in halves on both sides."""
    assert stats.histogram is not None
    tail = (100 - percent) / 200
    edges = np.linspace(-stats.limit, stats.limit, 2 * SIDE + 1)
    share = np.concatenate([[0], np.cumsum(stats.histogram)]) / stats.count
    first = int(np.searchsorted(share, tail, side="right")) - 1
    last = int(np.searchsorted(share, 1 - tail, side="left"))
    return float(edges[max(first, 0)]), float(edges[min(last, 2 * SIDE)])


def _least(stats: TensorStats, cost: Any, config: QuantConfig) -> tuple[float, float]:
    """The cut, the same distance on both sides of zero, that costs least."""
    assert stats.histogram is not None
    centres = (np.arange(2 * SIDE) + 0.5) * (stats.limit / SIDE) - stats.limit
    used = np.flatnonzero(stats.histogram)
    counts, centres = stats.histogram[used], centres[used]
    reach = max(-stats.min, stats.max)
    best, chosen = math.inf, reach
    # Below some 128 bins, each has a step of its own, and comparing distributions tells nothing.
    least = min(reach, stats.limit / SIDE * FEWEST)
    for threshold in np.linspace(reach, least, CANDIDATES):
        low, high = max(min(stats.min, 0.0), -threshold), min(max(stats.max, 0.0), threshold)
        found = cost(counts, centres, _params(low, high, config))
        if found < best:
            best, chosen = found, float(threshold)
    return -chosen, chosen


def _squared_error(counts: np.ndarray[Any, Any], centres: np.ndarray[Any, Any], params: QuantParams) -> float:
    """What saturates is off by the way it moves, the rest by a step's uniform error; zero is always exact."""
    low, high = _ends(params)
    moved = np.clip(centres, low, high) - centres
    rounded = np.where((moved == 0) & (np.abs(centres) > np.abs(centres).min()), float(params.scales[0]) ** 2 / 12, 0.0)
    return float((counts * (moved * moved + rounded)).sum())


def _ends(params: QuantParams) -> tuple[float, float]:
    """The least and the greatest number that a step stands for."""
    limits = np.iinfo(params.quantized_dtype.numpy)
    zero, scale = float(params.zero_points[0]), float(params.scales[0])
    return (limits.min - zero) * scale, (limits.max - zero) * scale


def _divergence(counts: np.ndarray[Any, Any], centres: np.ndarray[Any, Any], params: QuantParams) -> float:
    """Kullback-Leibler divergence of the distribution from the one that 256 steps can express.

    All that lies beyond the cut belongs to the outermost steps in the first; the second spreads the count of a step
    evenly over those of its bins that hold any value.
    """
    steps = params.quantize(centres).astype(np.int64)
    steps -= steps.min()
    low, high = _ends(params)
    inside = (centres >= low) & (centres <= high)
    if not inside.any():
        return math.inf
    real = np.where(inside, counts, 0).astype(np.float64)
    places = np.flatnonzero(inside)
    real[places[0]] += counts[: places[0]].sum()
    real[places[-1]] += counts[places[-1] + 1 :].sum()
    total = np.bincount(steps, weights=np.where(inside, counts, 0))
    held = np.bincount(steps, weights=inside.astype(np.float64))
    model = np.where(inside, total[steps] / np.maximum(held[steps], 1), 0)
    p, q = real[inside] / real.sum(), model[inside] / real.sum()  # what is cut off is missing in the second
    return float((p * np.log(np.maximum(p, 1e-300) / np.maximum(q, 1e-12))).sum())
