"""Quantizer: graphs to graphs that compute with fewer bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame_rt.graph import DType, Graph
from pyflame_rt.graph.arguments import expect
from pyflame_rt.graph.errors import InputError
from pyflame_rt.quantization.calibrator import Calibrator
from pyflame_rt.quantization.config import QuantConfig, QuantFormat, QuantMode
from pyflame_rt.quantization.correction import corrected
from pyflame_rt.quantization.dynamic import write_dynamic
from pyflame_rt.quantization.half import write_half
from pyflame_rt.quantization.operator_form import to_operators
from pyflame_rt.quantization.params import GraphQuantInfo
from pyflame_rt.quantization.prepare import select
from pyflame_rt.quantization.report import QuantizationReport, QuantizationResult, QuantStats
from pyflame_rt.quantization.static import Written, write_qdq
from pyflame_rt.quantization.weight_only import quantize_weights

if TYPE_CHECKING:
    from pyflame_rt.options import SessionOptions
    from pyflame_rt.quantization.feeds import FeedSource

__all__ = ["Quantizer", "quantize_for_session"]

_DEFAULT_BATCHES = 100


class Quantizer:
    """Makes quantized graphs; those it is given are left as they are.

    Args:
        config: how. Each method does what its name says; ``config.mode`` is what ``apply`` and sessions do.

    Example:
        >>> import numpy as np
        >>> graph = Graph("g")
        >>> _ = graph.add_input("x", ["N", 2]), graph.add_output("y", ["N", 2])
        >>> _ = graph.add_initializer("w", np.float32([[1, 2], [3, 4]]))
        >>> _ = graph.add_node("m", "MatMul", ["x", "w"], ["y"])
        >>> result = Quantizer(QuantConfig.dynamic_int8()).quantize_dynamic(graph)
        >>> result.success, [node.op_type for node in result.quantized_graph.nodes]
        (True, ['DynamicQuantizeLinear', 'MatMulInteger', 'Mul', 'Cast', 'Mul'])
    """

    def __init__(self, config: QuantConfig | None = None) -> None:
        chosen = QuantConfig() if config is None else config
        expect(chosen, QuantConfig, "the config of a Quantizer")
        self.config = chosen.check()

    def convert_to_fp16(self, graph: Graph) -> QuantizationResult:
        """Weights in IEEE half precision; inputs, outputs and arithmetic stay float32."""
        return _result(graph, write_half(graph, self.config, DType.Float16), QuantMode.FP16)

    def convert_to_bfloat16(self, graph: Graph) -> QuantizationResult:
        """Weights in bfloat16; inputs, outputs and arithmetic stay float32."""
        return _result(graph, write_half(graph, self.config, DType.BFloat16), QuantMode.BFloat16)

    def quantize_dynamic(self, graph: Graph) -> QuantizationResult:
        """Convolutions and products with constant weights in integers; data by its own range while running."""
        selection = select(graph, self.config, static=False)
        return _result(graph, write_dynamic(selection, self.config), QuantMode.DynamicInt8)

    def quantize(self, graph: Graph, quant_info: GraphQuantInfo) -> QuantizationResult:
        """Convolutions, products and sums in integers, by ranges that a Calibrator found for the same graph.

        Raises:
            InputError: ``quant_info`` holds nothing.
        """
        if not isinstance(quant_info, GraphQuantInfo):
            raise TypeError(f"quant_info is a GraphQuantInfo, got {type(quant_info).__name__}")
        selection = select(graph, self.config, static=True)
        if selection.chosen and not len(quant_info) and not quant_info.refused:
            raise InputError("quant_info is empty: run a Calibrator over the same graph first")
        if self.config.bias_correction:
            selection = corrected(selection, quant_info, self.config)
        written = write_qdq(selection, quant_info, self.config)
        if self.config.format is QuantFormat.Operators:
            written = written._replace(graph=to_operators(written.graph))
        return _result(graph, written, QuantMode.StaticInt8, quant_info)

    def quantize_with_calibration(
        self, graph: Graph, provider: FeedSource, batches: int | None = None
    ) -> QuantizationResult:
        """Calibrate with feeds from a function or an iterable, then :meth:`quantize`.

        Raises:
            InputError: no feed came.
        """
        calibrator = Calibrator(graph, self.config)
        try:
            calibrator.calibrate(provider, batches)
        finally:
            calibrator.close()
        return self.quantize(graph, calibrator.compute_quant_params())

    def quantize_weights(
        self, graph: Graph, data: FeedSource | None = None, batches: int | None = None
    ) -> QuantizationResult:
        """Matrices of ``config.bits`` bits a weight; with data they are rounded by GPTQ. See ``quantize_weights``."""
        config = self.config
        return quantize_weights(
            graph,
            config.bits,
            config.block_size,
            data,
            symmetric=config.symmetric_weights,
            accuracy_level=config.accuracy_level,
            batches=config.calibration_samples if batches is None else batches,
            exclude_nodes=config.exclude_nodes,
            exclude_ops=config.exclude_ops,
        )

    def apply(self, graph: Graph, data: FeedSource | None = None, batches: int | None = None) -> QuantizationResult:
        """What ``config.mode`` says.

        Raises:
            InputError: the mode is NONE, or StaticInt8 without data.
        """
        match self.config.mode:
            case QuantMode.FP16:
                return self.convert_to_fp16(graph)
            case QuantMode.BFloat16:
                return self.convert_to_bfloat16(graph)
            case QuantMode.DynamicInt8:
                return self.quantize_dynamic(graph)
            case QuantMode.StaticInt8:
                if data is None:
                    raise InputError("StaticInt8 needs calibration data: a function or an iterable of feeds")
                return self.quantize_with_calibration(graph, data, batches)
            case QuantMode.WeightOnly:
                return self.quantize_weights(graph, data, batches)
            case _:
                raise InputError("QuantConfig.mode is NONE: choose FP16, BFloat16, DynamicInt8, StaticInt8, WeightOnly")


def _size(graph: Graph) -> int:
    return sum(tensor.size_bytes for tensor in graph.initializers.values())


def _result(graph: Graph, written: Written, mode: QuantMode, info: GraphQuantInfo | None = None) -> QuantizationResult:
    stats = QuantStats(
        nodes_quantized=len(written.nodes),
        nodes_skipped=len(written.skipped),
        nodes_total=len(graph.nodes),
        weights_quantized=written.weights,
        activations_quantized=written.activations,
        original_size_bytes=_size(graph),
        quantized_size_bytes=_size(written.graph),
    )
    made = QuantizationResult(written.graph, bool(written.nodes), mode, stats, info or GraphQuantInfo())
    made.skipped = written.skipped
    if not made.success:
        made.quantized_graph = graph.copy()
        stats.quantized_size_bytes = stats.original_size_bytes
        why = "; ".join(f"{name}: {reason}" for name, reason in list(written.skipped.items())[:5])
        made.error_message = f"model {graph.name!r} has nothing to quantize" + (f": {why}" if why else "")
    return made


def quantize_for_session(graph: Graph, options: SessionOptions) -> tuple[Graph, QuantizationReport | None]:
    """The graph quantized as ``options.quantization`` asks, and the report; for sessions."""
    import warnings

    config: Any = options.quantization
    if not isinstance(config, QuantConfig):
        raise InputError(f"SessionOptions.quantization is a QuantConfig, got {type(config).__name__}")
    if config.check().mode is QuantMode.NONE:
        return graph, None
    quantizer, notes = Quantizer(config), list[str]()
    if config.mode is QuantMode.StaticInt8 and options.calibration_data is None:
        notes.append("StaticInt8 without SessionOptions.calibration_data: the model runs in DynamicInt8")
        warnings.warn(notes[0], UserWarning, stacklevel=4)
        result = quantizer.quantize_dynamic(graph)
    else:
        given = options.calibration_batches
        batches = config.calibration_samples if given == _DEFAULT_BATCHES else given
        result = quantizer.apply(graph, options.calibration_data, batches)
    if not result.success:
        notes.append(f"{result.error_message}; it runs as it is")
        warnings.warn(notes[-1], UserWarning, stacklevel=4)
    return result.quantized_graph, QuantizationReport.of(result.stats, result.mode, result.skipped, notes)
