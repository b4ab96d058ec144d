"""Traced models in fewer bits, by the runtime's quantizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame_rt.graph.errors import UnsupportedOperatorError
from pyflame_rt.quantization import QuantConfig, QuantGranularity, Quantizer, QuantMode

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyflame_rt.graph import Graph

__all__ = ["quantized"]


def quantized(
    graph: Graph, mode: QuantMode = QuantMode.DynamicInt8, feeds: Iterable[Mapping[str, Any]] | None = None
) -> Graph:
    """The graph with its products and convolutions in 8-bit integers, or its weights in 16 bits.

    Int8 weights have one scale for each output channel. Without feeds, data becomes uint8 by its own range while
    running; with them, int8 by the ranges that they show.

    Raises:
        UnsupportedOperatorError: there is nothing to quantize.

    Example:
        >>> import pyflame as pf
        >>> from pyflame.exporting import evaluation_graph
        >>> graph = quantized(evaluation_graph(pf.nn.Linear(3, 2), (pf.ones([4, 3]),)))
        >>> [node.op_type for node in graph.nodes]
        ['DynamicQuantizeLinear', 'MatMulInteger', 'Mul', 'Cast', 'Mul', 'Add']
    """
    config = QuantConfig(mode=mode if feeds is None else QuantMode.StaticInt8)
    config.granularity = QuantGranularity.PerChannel
    result = Quantizer(config).apply(graph, feeds)
    if not result.success:
        raise UnsupportedOperatorError(
            f"{result.error_message}: it has no product or convolution of float32 data with constant weights. Leave "
            "enable_quantization and enable_fp16 off"
        )
    return result.quantized_graph
