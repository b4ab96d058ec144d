"""Settings of quantization: which numbers, how ranges are found, what is left alone."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from pyflame_rt.graph import DType
from pyflame_rt.graph.errors import InputError
from pyflame_rt.graph.names import AliasedEnum
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["CalibrationMethod", "QuantConfig", "QuantFormat", "QuantGranularity", "QuantMode"]

EIGHT_BITS = (DType.Int8, DType.UInt8)
BLOCK_SIZES = (16, 32, 64, 128, 256)
ACCURACY_LEVELS = (0, 1, 4)  # of MatMulNBits: not said, float32, 8-bit steps
MAX_SAMPLES = 10_000_000


class QuantMode(AliasedEnum):
    """Which numbers a model computes with, or keeps its weights in.

    Example:
        >>> QuantMode.STATIC_INT8 is QuantMode.StaticInt8
        True
    """

    NONE = "none"
    FP16 = "fp16"
    BFloat16 = "bfloat16"
    DynamicInt8 = "dynamic_int8"
    StaticInt8 = "static_int8"
    WeightOnly = "weight_only"


class QuantGranularity(AliasedEnum):
    """Whether all of a weight shares one scale, or each output channel has its own.

    Example:
        >>> QuantGranularity.PER_CHANNEL is QuantGranularity.PerChannel
        True
    """

    PerTensor = "per_tensor"
    PerChannel = "per_channel"


class CalibrationMethod(AliasedEnum):
    """How the range of a tensor follows from the values that were seen.

    MinMax takes all of it. Entropy cuts where the quantized distribution differs least from the real one
    (Kullback-Leibler). Percentile leaves out the rarest values. MSE makes the mean squared error least.

    Example:
        >>> CalibrationMethod.MIN_MAX is CalibrationMethod.MinMax
        True
    """

    MinMax = "minmax"
    Entropy = "entropy"
    Percentile = "percentile"
    MSE = "mse"


class QuantFormat(AliasedEnum):
    """How static int8 is written down.

    QDQ keeps the model's operators between QuantizeLinear and DequantizeLinear, as other runtimes read it. Operators
    writes QuantizedConv, QuantizedMatMul and QuantizedAdd of the domain ``pyflame``.

    Example:
        >>> QuantFormat.OPERATORS is QuantFormat.Operators
        True
    """

    QDQ = "qdq"
    Operators = "operators"


@dataclass(slots=True)
class QuantConfig:
    """How a model is quantized.

    Attributes:
        mode: what is done; see :class:`QuantMode`.
        weight_dtype: type of int8 weights, Int8 or UInt8.
        activation_dtype: type of data in StaticInt8, Int8 or UInt8. DynamicInt8 has uint8, as DynamicQuantizeLinear.
        granularity: one scale for a weight, or one for each of its output channels.
        calibration_method: how ranges of data are found in StaticInt8.
        symmetric: zero lies in the middle of the integers (of data that is never negative: at their lowest); False
            lets the range of the data decide. Of weights, see ``symmetric_weights``.
        symmetric_weights: the same for weights; kernels are faster for symmetric ones.
        exclude_ops: operators that stay in float32, by type.
        exclude_nodes: nodes that stay in float32, by name.
        calibration_samples: feeds that calibration takes at most.
        calibration_percentile: share of the values that Percentile keeps, in percent.
        quantize_inputs: data that comes from the model's inputs is quantized, too; False leaves nodes that read it.
        quantize_outputs: the model's outputs are rounded to 8 bits, too (StaticInt8).
        bias_correction: the bias of a layer takes up the mean error that rounded weights make (StaticInt8).
        format: how StaticInt8 is written down.
        bits: of a weight in WeightOnly, 4 or 8.
        block_size: weights that share a scale in WeightOnly.
        accuracy_level: of data in WeightOnly: 4 multiplies it in 8-bit steps, a scale for each block; 1 as it is.

    Example:
        >>> config = QuantConfig.static_int8(calibration_samples=16)
        >>> config.granularity, config.is_valid()
        (<QuantGranularity.PerTensor: 'per_tensor'>, True)
        >>> QuantConfig(calibration_percentile=0.0).validation_error()
        'calibration_percentile is 0.0, not above 50 and at most 100'
    """

    mode: QuantMode = QuantMode.NONE
    weight_dtype: DType = DType.Int8
    activation_dtype: DType = DType.Int8
    granularity: QuantGranularity = QuantGranularity.PerTensor
    calibration_method: CalibrationMethod = CalibrationMethod.MinMax
    symmetric: bool = True
    symmetric_weights: bool = True
    exclude_ops: Iterable[str] = field(default_factory=list)
    exclude_nodes: Iterable[str] = field(default_factory=list)
    calibration_samples: int = 100
    calibration_percentile: float = 99.99
    quantize_inputs: bool = True
    quantize_outputs: bool = False
    bias_correction: bool = False
    format: QuantFormat = QuantFormat.QDQ
    bits: int = 4
    block_size: int = 32
    accuracy_level: int = 4

    @classmethod
    def fp16(cls) -> QuantConfig:
        """Weights in half precision."""
        return cls(mode=QuantMode.FP16)

    @classmethod
    def bfloat16(cls) -> QuantConfig:
        """Weights in bfloat16."""
        return cls(mode=QuantMode.BFloat16)

    @classmethod
    def dynamic_int8(cls) -> QuantConfig:
        """Weights as int8, data as uint8 by its own range while running."""
        return cls(mode=QuantMode.DynamicInt8)

    @classmethod
    def static_int8(cls, calibration_samples: int = 100) -> QuantConfig:
        """Weights and data as int8, by ranges that were found before."""
        return cls(mode=QuantMode.StaticInt8, calibration_samples=calibration_samples)

    @classmethod
    def weight_only(cls, bits: int = 4, block_size: int = 32, accuracy_level: int = 4) -> QuantConfig:
        """Matrices of 4 or 8 bits a weight with a scale for each block; tensors stay float32."""
        mode = QuantMode.WeightOnly
        return cls(mode=mode, bits=bits, block_size=block_size, accuracy_level=accuracy_level, symmetric_weights=False)

    def is_valid(self) -> bool:
        """Whether nothing is wrong with it."""
        return not self.validation_error()

    def validation_error(self) -> str:
        """What is wrong, in one sentence; empty when nothing is."""
        return next(self._problems(), "")

    def check(self) -> QuantConfig:
        """The settings themselves.

        Raises:
            InputError: something is wrong with them.
        """
        if problem := self.validation_error():
            raise InputError(f"QuantConfig: {problem}")
        return self

    def _problems(self) -> Iterator[str]:
        yield from self._wrong_kinds()
        for name in ("exclude_ops", "exclude_nodes"):
            given = getattr(self, name)
            if isinstance(given, str):
                yield f"{name} is {given!r}: write a list of names, [{given!r}]"
            elif not _all_text(given):
                yield f"{name} is {given!r}, not a list of names"
        yield from self._wrong_numbers()

    def _wrong_kinds(self) -> Iterator[str]:
        kinds = {
            "mode": QuantMode, "granularity": QuantGranularity, "calibration_method": CalibrationMethod,
            "format": QuantFormat,
        }  # fmt: skip
        for name, kind in kinds.items():
            if not isinstance(getattr(self, name), kind):
                yield f"{name} is {getattr(self, name)!r}, not a {kind.__name__}: one of {', '.join(kind.__members__)}"
        for name in ("weight_dtype", "activation_dtype"):
            if getattr(self, name) not in EIGHT_BITS:
                yield f"{name} is {getattr(self, name)}, not DType.Int8 or DType.UInt8"
        flags = ("symmetric", "symmetric_weights", "quantize_inputs", "quantize_outputs", "bias_correction")
        for name in flags:
            if not isinstance(getattr(self, name), bool):
                yield f"{name} is {getattr(self, name)!r}, not True or False"

    def _wrong_numbers(self) -> Iterator[str]:
        count, percentile = self.calibration_samples, self.calibration_percentile
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_SAMPLES:
            yield f"calibration_samples is {count!r}, not a number from 1 to {MAX_SAMPLES}"
        if self.bits not in (4, 8):
            yield f"bits is {self.bits!r}, not 4 or 8"
        if self.block_size not in BLOCK_SIZES:
            yield f"block_size is {self.block_size!r}, not one of {', '.join(map(str, BLOCK_SIZES))}"
        if self.accuracy_level not in ACCURACY_LEVELS:
            yield f"accuracy_level is {self.accuracy_level!r}, not one of {', '.join(map(str, ACCURACY_LEVELS))}"
        if not _is_number(percentile) or not 50 < percentile <= 100:
            yield f"calibration_percentile is {percentile!r}, not above 50 and at most 100"


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _all_text(given: object) -> bool:
    try:
        return all(isinstance(item, str) for item in given)  # type: ignore[union-attr]
    except TypeError:
        return False
