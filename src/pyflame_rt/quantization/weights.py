"""Weights as integers: scales by tensor or channel, and biases in the steps of the sums."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.quantization.config import QuantGranularity
from pyflame_rt.quantization.params import QuantParams, step_sizes

if TYPE_CHECKING:
    from pyflame_rt.quantization.config import QuantConfig

__all__ = ["bias_steps", "weight_params"]

INT32 = 2**31 - 1


def weight_params(weight: np.ndarray[Any, Any], axis: int, config: QuantConfig) -> QuantParams:
    """Scale and zero point for a weight, from its least and greatest values.

    Example:
        >>> from pyflame_rt.quantization.config import QuantConfig
        >>> p = weight_params(np.float32([[1, 2], [10, 254]]), 0, QuantConfig(granularity=QuantGranularity.PerChannel))
        >>> p.scales.tolist(), p.zero_points.tolist()
        ([0.015748031437397003, 2.0], [0, 0])
    """
    channels = config.granularity is QuantGranularity.PerChannel
    axes = tuple(i for i in range(weight.ndim) if i != axis) if channels else None
    low, high = (np.atleast_1d(v).astype(np.float64) for v in (weight.min(axis=axes), weight.max(axis=axes)))
    where, dtype = axis if channels else None, config.weight_dtype
    if not config.symmetric_weights:
        return QuantParams.compute_from_minmax(low, high, dtype, symmetric=False, axis=where)
    limits = np.iinfo(dtype.numpy)
    middle = (int(limits.min) + int(limits.max) + 1) // 2
    scales = step_sizes(np.maximum(-low, high), limits.max - middle)
    return QuantParams(scales, np.full(len(scales), middle, dtype.numpy), dtype, where)


def bias_steps(
    bias: np.ndarray[Any, Any], data: QuantParams, weight: QuantParams
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]] | None:
    """A bias as int32 in the steps of the sums, and those steps; None where int32 cannot hold it."""
    steps = (data.scales[0] * weight.scales).astype(np.float32)
    if not (steps > 0).all():
        return None
    whole = np.rint(bias.astype(np.float64) / steps)
    if np.abs(whole).max(initial=0) > INT32:
        return None
    return whole.astype(np.int32), steps
