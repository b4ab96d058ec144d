"""Quantization: models that compute with 8-bit integers, or keep their weights in 16 bits.

>>> from pyflame_rt.quantization import QuantConfig
>>> QuantConfig.fp16().mode
<QuantMode.FP16: 'fp16'>
"""

from pyflame_rt.quantization.calibrator import Calibrator
from pyflame_rt.quantization.config import CalibrationMethod, QuantConfig, QuantFormat, QuantGranularity, QuantMode
from pyflame_rt.quantization.equalize import equalize
from pyflame_rt.quantization.half_types import BFloat16, Float16
from pyflame_rt.quantization.observers import TensorStats
from pyflame_rt.quantization.params import GraphQuantInfo, QuantParams
from pyflame_rt.quantization.quantizer import Quantizer, quantize_for_session
from pyflame_rt.quantization.report import QuantizationReport, QuantizationResult, QuantStats
from pyflame_rt.quantization.sensitivity import (
    BudgetResult,
    LayerError,
    measured_ratio,
    quantize_within,
    sensitivity,
)
from pyflame_rt.quantization.smooth import smooth
from pyflame_rt.quantization.weight_only import quantize_weights

__all__ = [
    "BFloat16",
    "BudgetResult",
    "CalibrationMethod",
    "Calibrator",
    "Float16",
    "GraphQuantInfo",
    "LayerError",
    "QuantConfig",
    "QuantFormat",
    "QuantGranularity",
    "QuantMode",
    "QuantParams",
    "QuantStats",
    "QuantizationReport",
    "QuantizationResult",
    "Quantizer",
    "TensorStats",
    "equalize",
    "measured_ratio",
    "quantize_for_session",
    "quantize_weights",
    "quantize_within",
    "sensitivity",
    "smooth",
]
