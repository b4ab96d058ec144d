"""ONNX Runtime's quantizing functions, over `pyflame_rt.quantization`: ``from pyflame_rt.ort import quantization``.

Names, defaults and order of arguments are those of ``onnxruntime.quantization``. What our quantizer has no way to do
(16-bit and float8 types, the QOperator form, options of other providers) is refused by name.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyflame_rt import opt
from pyflame_rt.exporters import export_onnx
from pyflame_rt.graph import DType, Graph
from pyflame_rt.graph.errors import InputError, UnsupportedFormatError
from pyflame_rt.loading import load_graph, prepare_graph
from pyflame_rt.ops.onnx.arithmetic import Add
from pyflame_rt.ops.onnx.conv import Conv
from pyflame_rt.ops.onnx.matmul import Gemm, MatMul
from pyflame_rt.options import OptLevel, SessionOptions
from pyflame_rt.quantization import CalibrationMethod as _Method
from pyflame_rt.quantization import QuantConfig, QuantGranularity, Quantizer, QuantMode
from pyflame_rt.quantization.config import MAX_SAMPLES

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping, Sequence

    from pyflame_rt.graph import Node

__all__ = [
    "CalibrationDataReader",
    "CalibrationMethod",
    "DynamicQuantConfig",
    "QuantFormat",
    "QuantType",
    "StaticQuantConfig",
    "quant_pre_process",
    "quantize",
    "quantize_dynamic",
    "quantize_static",
]


class _Named(Enum):
    def __str__(self) -> str:
        return self.name

    @classmethod
    def from_string(cls, name: str) -> Any:
        """The member of a name.

        Raises:
            ValueError: there is none.
        """
        try:
            return cls[name]
        except KeyError:
            raise ValueError(f"{name!r} is not one of {', '.join(cls.__members__)}") from None


class QuantType(_Named):
    """Integers of weights and data.

    Example:
        >>> QuantType.from_string("QUInt8")
        <QuantType.QUInt8: 1>
    """

    QInt8 = 0
    QUInt8 = 1
    QFLOAT8E4M3FN = 2
    QInt16 = 3
    QUInt16 = 4
    QInt4 = 5
    QUInt4 = 6


class QuantFormat(_Named):
    """How a quantized model is written down."""

    QOperator = 0
    QDQ = 1


class CalibrationMethod(_Named):
    """How the range of a tensor follows from the values that were seen."""

    MinMax = 0
    Entropy = 1
    Percentile = 2
    Distribution = 3


class CalibrationDataReader(ABC):
    """Gives one feed a call, then None.

    Example:
        >>> class Two(CalibrationDataReader):
        ...     feeds = [{"x": 2}, {"x": 1}]
        ...
        ...     def get_next(self):
        ...         return self.feeds.pop() if self.feeds else None
        >>> list(Two())
        [{'x': 1}, {'x': 2}]
    """

    @classmethod
    def __subclasshook__(cls, other: type) -> bool:
        return callable(getattr(other, "get_next", None)) or NotImplemented

    @abstractmethod
    def get_next(self) -> dict[str, Any] | None:
        """The next feed, from input names to arrays."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self

    def __next__(self) -> dict[str, Any]:
        feed = self.get_next()
        if feed is None:
            raise StopIteration
        return feed


_TYPES = {QuantType.QInt8: DType.Int8, QuantType.QUInt8: DType.UInt8}
_PRODUCTS = (Conv.name, Gemm.name, MatMul.name)
_METHODS = {
    CalibrationMethod.MinMax: _Method.MinMax,
    CalibrationMethod.Entropy: _Method.Entropy,
    CalibrationMethod.Percentile: _Method.Percentile,
}


@dataclass
class StaticQuantConfig:
    """Settings of :func:`quantize_static`, for :func:`quantize`."""

    calibration_data_reader: CalibrationDataReader
    calibrate_method: CalibrationMethod = CalibrationMethod.MinMax
    quant_format: QuantFormat = QuantFormat.QDQ
    activation_type: QuantType = QuantType.QInt8
    weight_type: QuantType = QuantType.QInt8
    op_types_to_quantize: Sequence[str] | None = None
    nodes_to_quantize: Sequence[str] | None = None
    nodes_to_exclude: Sequence[str] | None = None
    per_channel: bool = False
    reduce_range: bool = False
    use_external_data_format: bool = False
    calibration_providers: Sequence[str] | None = None
    extra_options: Mapping[str, Any] | None = None


@dataclass
class DynamicQuantConfig:
    """Settings of :func:`quantize_dynamic`, for :func:`quantize`."""

    weight_type: QuantType = QuantType.QInt8
    op_types_to_quantize: Sequence[str] | None = None
    nodes_to_quantize: Sequence[str] | None = None
    nodes_to_exclude: Sequence[str] | None = None
    per_channel: bool = False
    reduce_range: bool = False
    use_external_data_format: bool = False
    extra_options: Mapping[str, Any] | None = None


def quantize(
    model_input: Any, model_output: str | os.PathLike[str], quant_config: StaticQuantConfig | DynamicQuantConfig
) -> None:
    """Write a model in 8 bits: static or dynamic, as the settings are.

    Raises:
        InputError: nothing can be quantized, or a setting has no counterpart here.
    """
    if not isinstance(quant_config, (StaticQuantConfig, DynamicQuantConfig)):
        raise TypeError(
            f"quant_config is a StaticQuantConfig or a DynamicQuantConfig, got {type(quant_config).__name__}"
        )
    graph, path = load_graph(model_input, any_suffix=True)
    if path is not None and Path(model_output).exists() and path.samefile(model_output):
        raise InputError(f"{str(model_output)!r} is the model that is read: give another file to write")
    prepare_graph(graph, SessionOptions())
    if isinstance(quant_config, StaticQuantConfig):
        reader = quant_config.calibration_data_reader
        if not isinstance(reader, CalibrationDataReader):
            raise TypeError(f"calibration_data_reader has get_next(), which a {type(reader).__name__} has not")
        quantizer = Quantizer(_static(quant_config, graph))
        result = quantizer.quantize_with_calibration(graph, reader.get_next, MAX_SAMPLES)
    else:
        result = Quantizer(_dynamic(quant_config, graph)).quantize_dynamic(graph)
    if not result.success:
        raise InputError(result.error_message)
    export_onnx(result.quantized_graph, model_output, external_data=quant_config.use_external_data_format or None)


def quantize_dynamic(
    model_input: Any,
    model_output: str | os.PathLike[str],
    op_types_to_quantize: Sequence[str] | None = None,
    per_channel: bool = False,
    reduce_range: bool = False,
    weight_type: QuantType = QuantType.QInt8,
    nodes_to_quantize: Sequence[str] | None = None,
    nodes_to_exclude: Sequence[str] | None = None,
    use_external_data_format: bool = False,
    extra_options: Mapping[str, Any] | None = None,
) -> None:
    """Write a model whose weights are 8-bit integers; data is quantized while it runs.

    Example:
        >>> import tempfile
        >>> from pyflame_rt import InferenceSession
        >>> from pyflame_rt.demo import model_path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     quantize_dynamic(model_path(), folder + "/small.onnx")
        ...     len(InferenceSession(folder + "/small.onnx").get_inputs())
        1
    """
    config = DynamicQuantConfig(
        weight_type=weight_type,
        op_types_to_quantize=op_types_to_quantize,
        nodes_to_quantize=nodes_to_quantize,
        nodes_to_exclude=nodes_to_exclude,
        per_channel=per_channel,
        reduce_range=reduce_range,
        use_external_data_format=use_external_data_format,
        extra_options=extra_options,
    )
    quantize(model_input, model_output, config)


def quantize_static(
    model_input: Any,
    model_output: str | os.PathLike[str],
    calibration_data_reader: CalibrationDataReader,
    quant_format: QuantFormat = QuantFormat.QDQ,
    op_types_to_quantize: Sequence[str] | None = None,
    per_channel: bool = False,
    reduce_range: bool = False,
    activation_type: QuantType = QuantType.QInt8,
    weight_type: QuantType = QuantType.QInt8,
    nodes_to_quantize: Sequence[str] | None = None,
    nodes_to_exclude: Sequence[str] | None = None,
    use_external_data_format: bool = False,
    calibrate_method: CalibrationMethod = CalibrationMethod.MinMax,
    calibration_providers: Sequence[str] | None = None,
    extra_options: Mapping[str, Any] | None = None,
) -> None:
    """Write a model that computes with 8-bit integers, by ranges found in the feeds of a reader."""
    config = StaticQuantConfig(
        calibration_data_reader,
        calibrate_method=calibrate_method,
        quant_format=quant_format,
        activation_type=activation_type,
        weight_type=weight_type,
        op_types_to_quantize=op_types_to_quantize,
        nodes_to_quantize=nodes_to_quantize,
        nodes_to_exclude=nodes_to_exclude,
        per_channel=per_channel,
        reduce_range=reduce_range,
        use_external_data_format=use_external_data_format,
        calibration_providers=calibration_providers,
        extra_options=extra_options,
    )
    quantize(model_input, model_output, config)


def quant_pre_process(
    input_model: Any,
    output_model_path: str | os.PathLike[str],
    skip_optimization: bool = False,
    *,
    save_as_external_data: bool = False,
) -> None:
    """Write a model as the exact passes leave it. Quantizing here does not need that."""
    graph, _ = load_graph(input_model, any_suffix=True)
    prepare_graph(graph, SessionOptions())
    if not skip_optimization:
        opt.optimize(graph, OptLevel.BASIC)
    export_onnx(graph, output_model_path, external_data=save_as_external_data or None)


def _static(given: StaticQuantConfig, graph: Graph) -> QuantConfig:
    """As our settings; what has no counterpart is refused."""
    if given.quant_format is not QuantFormat.QDQ:
        raise UnsupportedFormatError(f"quant_format is {given.quant_format}: write QuantFormat.QDQ")
    if given.calibrate_method not in _METHODS:
        raise InputError(f"calibrate_method is {given.calibrate_method}, not one of {', '.join(map(str, _METHODS))}")
    if any(name != "CPUExecutionProvider" for name in given.calibration_providers or ()):
        raise InputError(
            f"calibration_providers is {given.calibration_providers}: CPUExecutionProvider calibrates here"
        )
    config, extra = _common(given, graph, QuantMode.StaticInt8)
    config.activation_dtype = _eight_bits("activation_type", given.activation_type)
    config.symmetric = bool(extra.pop("ActivationSymmetric", False))
    config.calibration_method = _METHODS[given.calibrate_method]
    config.calibration_percentile = float(extra.pop("CalibPercentile", 99.999))
    return _checked(config, extra)


def _dynamic(given: DynamicQuantConfig, graph: Graph) -> QuantConfig:
    config, extra = _common(given, graph, QuantMode.DynamicInt8)
    if extra.pop("MatMulConstBOnly", True) is not True:
        raise InputError("extra_options: MatMulConstBOnly=False: products of data with data stay in float32 here")
    return _checked(config, extra)


def _common(
    given: StaticQuantConfig | DynamicQuantConfig, graph: Graph, mode: QuantMode
) -> tuple[QuantConfig, dict[str, Any]]:
    """What both ways share, and the further options that were given."""
    extra = dict(given.extra_options or {})
    if given.reduce_range:
        warnings.warn(
            "reduce_range has no effect: weights take all 8 bits, as sums are exact here on every machine; other "
            "runtimes may saturate on machines without VNNI",
            UserWarning,
            stacklevel=6,
        )
    weights = _eight_bits("weight_type", given.weight_type)
    kinds = {node.op_type for node in graph.nodes}.difference(given.op_types_to_quantize or ())
    config = QuantConfig(
        mode,
        weight_dtype=weights,
        granularity=QuantGranularity.PerChannel if given.per_channel else QuantGranularity.PerTensor,
        symmetric_weights=bool(extra.pop("WeightSymmetric", weights is DType.Int8)),
        exclude_ops=sorted(kinds) if given.op_types_to_quantize else [],
        exclude_nodes=[*(given.nodes_to_exclude or ()), *_others(graph, given.nodes_to_quantize)],
        calibration_samples=MAX_SAMPLES,
    )
    return config, extra


def _checked(config: QuantConfig, extra: Mapping[str, Any]) -> QuantConfig:
    if extra:
        known = "ActivationSymmetric, WeightSymmetric, CalibPercentile (static), MatMulConstBOnly (dynamic)"
        raise InputError(f"extra_options: {min(extra)!r} has no counterpart here; these have: {known}")
    return config.check()


def _eight_bits(name: str, kind: QuantType) -> DType:
    if kind not in _TYPES:
        raise InputError(f"{name} is {kind}, not one of {', '.join(map(str, _TYPES))}")
    return _TYPES[kind]


def _others(graph: Graph, wanted: Sequence[str] | None) -> list[str]:
    """Nodes of a graph that could be quantized and are not among those wanted; none where nothing was said."""
    if not wanted:
        return []
    there = {node.name for node in graph.nodes}
    if missing := [name for name in wanted if name not in there]:
        raise InputError(f"nodes_to_quantize: model {graph.name!r} has no node {missing[0]!r}")
    could = {node.name for node in graph.nodes if node.op_type in _PRODUCTS or _is_sum(graph, node)}
    return sorted(could.difference(wanted))


def _is_sum(graph: Graph, node: Node) -> bool:
    """Whether it adds data to data; what adds a constant may be the bias of a product that is wanted."""
    return node.op_type == Add.name and not any(name in graph.initializers for name in node.inputs)
