"""Scales and zero points: of one tensor, and of a whole graph."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph import DType
from pyflame_rt.graph.errors import InputError
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["GraphQuantInfo", "QuantParams", "step_sizes"]

TINY = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True, slots=True, eq=False)
class QuantParams:
    """What the integers of a tensor stand for: ``(integer - zero point) * scale``.

    Attributes:
        scales: float32, one for the tensor or one for each channel.
        zero_points: as many integers of ``quantized_dtype``.
        quantized_dtype: the integers' type.
        channel_axis: the axis of the channels; None for one scale.

    Example:
        >>> p = QuantParams.per_tensor(0.5, 0)
        >>> p.quantize(np.float32([1.0, 2.2, 1000])), p.dequantize(np.int8([2, 4]))
        (array([  2,   4, 127], dtype=int8), array([1., 2.], dtype=float32))
    """

    scales: np.ndarray[Any, Any]
    zero_points: np.ndarray[Any, Any]
    quantized_dtype: DType = DType.Int8
    channel_axis: int | None = None

    @classmethod
    def per_tensor(cls, scale: float, zero_point: int = 0, dtype: DType = DType.Int8) -> QuantParams:
        """One scale for all of a tensor."""
        return _checked(cls(np.asarray([scale], np.float32), _integers([zero_point], dtype), dtype))

    @classmethod
    def per_channel(
        cls, scales: Sequence[float], zero_points: Sequence[int], axis: int = 0, dtype: DType = DType.Int8
    ) -> QuantParams:
        """One scale for each index of an axis."""
        return _checked(cls(np.asarray(scales, np.float32), _integers(zero_points, dtype), dtype, axis))

    @classmethod
    def compute_from_minmax(
        cls,
        low: Any,
        high: Any,
        dtype: DType = DType.Int8,
        symmetric: bool = True,
        axis: int | None = None,
    ) -> QuantParams:
        """For values from ``low`` to ``high``; zero is always one of the numbers that integers stand for.

        Args:
            low: the least value, or one for each channel.
            high: the greatest value, or one for each channel.
            dtype: Int8 or UInt8.
            symmetric: zero lies in the middle of the integers; of values that are never negative, at their lowest.
            axis: the axis of the channels, where ``low`` and ``high`` are of channels.

        Example:
            >>> QuantParams.compute_from_minmax(-1.0, 3.0, symmetric=False).zero_points
            array([-64], dtype=int8)
            >>> QuantParams.compute_from_minmax(0.0, 2.0).zero_points
            array([-128], dtype=int8)
        """
        least, most = (np.atleast_1d(np.asarray(v, np.float64)) for v in (low, high))
        if not (np.isfinite(least).all() and np.isfinite(most).all()) or (least > most).any():
            raise InputError(f"a range goes from a finite number to one that is not below it, got {low} to {high}")
        least, most = np.minimum(least, 0), np.maximum(most, 0)
        limits = np.iinfo(dtype.numpy)
        if symmetric:
            # Signed: -127 to 127 for int8, 1 to 255 for uint8, so that both sides are equal.
            middle = (int(limits.min) + int(limits.max) + 1) // 2
            reach = np.maximum(-least, most)
            signed = least < 0
            steps = np.where(signed, limits.max - middle, int(limits.max) - int(limits.min))
            scales, zeros = step_sizes(reach, steps), np.where(signed, middle, int(limits.min))
        else:
            scales = step_sizes(most - least, int(limits.max) - int(limits.min))
            zeros = np.rint(limits.min - least / scales)
        zeros = np.clip(zeros, limits.min, limits.max)
        return cls(scales.astype(np.float32), zeros.astype(dtype.numpy), dtype, axis)

    @property
    def is_per_channel(self) -> bool:
        """Whether each channel has its own scale."""
        return self.channel_axis is not None

    @property
    def num_channels(self) -> int:
        """How many scales there are."""
        return len(self.scales)

    def quantize(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The integers that stand for an array, as QuantizeLinear gives them."""
        scales, zeros = self._spread(array.ndim)
        limits = np.iinfo(self.quantized_dtype.numpy)
        steps = np.rint(array.astype(np.float32, copy=False) / scales) + zeros
        return np.clip(steps, limits.min, limits.max).astype(self.quantized_dtype.numpy)

    def dequantize(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The numbers that integers stand for, as DequantizeLinear gives them."""
        scales, zeros = self._spread(array.ndim)
        return ((array.astype(np.float32) - zeros) * scales).astype(np.float32)

    def _spread(self, rank: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Scales and zero points, float32, in a form that broadcasts against a tensor."""
        form: list[int] = []
        if self.channel_axis is not None:
            form = [1] * rank
            form[self.channel_axis] = -1
        return self.scales.reshape(form), self.zero_points.astype(np.float32).reshape(form)


def step_sizes(reach: np.ndarray[Any, Any], steps: Any) -> np.ndarray[Any, Any]:
    """A range over its number of steps; 1 where the range is nothing but zero, never too small for float32."""
    scales = np.maximum(np.float32(reach / steps), np.float32(TINY))
    return np.where(reach > 0, scales, np.float32(1))


def _integers(values: Sequence[int], dtype: DType) -> np.ndarray[Any, Any]:
    limits, given = np.iinfo(dtype.numpy), np.asarray(values, np.int64)
    if ((given < limits.min) | (given > limits.max)).any():
        raise InputError(f"zero points {list(values)} are not all of {dtype.label}: {limits.min} to {limits.max}")
    return given.astype(dtype.numpy)


def _checked(params: QuantParams) -> QuantParams:
    scales = params.scales
    if not (np.isfinite(scales).all() and (scales > 0).all()):
        raise InputError(f"scales are finite and above zero, got {scales.tolist()}")
    if scales.shape != params.zero_points.shape:
        raise InputError(f"{len(scales)} scales need as many zero points, got {len(params.zero_points)}")
    return params


@dataclass(slots=True)
class GraphQuantInfo:
    """The parameters of a graph's tensors, by name.

    Attributes:
        tensor_params: them.
        refused: tensors that cannot be quantized, and why.
        means: the mean of each channel of a tensor, where the bias is to be corrected.

    Example:
        >>> info = GraphQuantInfo()
        >>> info.set_params("x", QuantParams.per_tensor(0.1))
        >>> info.has_params("x"), info.has_params("y"), len(info)
        (True, False, 1)
    """

    tensor_params: dict[str, QuantParams] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    means: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)

    def has_params(self, name: str) -> bool:
        """Whether a tensor has any."""
        return name in self.tensor_params

    def get_params(self, name: str) -> QuantParams:
        """Those of a tensor.

        Raises:
            InputError: it has none.
        """
        try:
            return self.tensor_params[name]
        except KeyError:
            raise InputError(
                f"there are no quantization parameters of {name!r}: it was not observed, or set_params was not called"
            ) from None

    def set_params(self, name: str, params: QuantParams) -> None:
        """Give a tensor parameters of one's own choice."""
        if not isinstance(params, QuantParams):
            raise TypeError(f"params of {name!r} is a QuantParams, got {type(params).__name__}")
        self.tensor_params[name] = params

    def __len__(self) -> int:
        return len(self.tensor_params)
