"""Bias correction: a bias takes up the mean error that rounded weights make of the data seen in calibration.

Rounding a weight to ``W + e`` adds ``e @ x`` to a layer's result; the mean of that over the data is known from the mean
of each input channel, and the bias takes it away (Nagel et al., 2019).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph import Node, Tensor
from pyflame_rt.ops.onnx.conv import Conv
from pyflame_rt.ops.onnx.matmul import MatMul
from pyflame_rt.quantization.prepare import Candidate, Selection
from pyflame_rt.quantization.weights import weight_params

if TYPE_CHECKING:
    from pyflame_rt.quantization.config import QuantConfig
    from pyflame_rt.quantization.params import GraphQuantInfo

__all__ = ["corrected"]


def corrected(selection: Selection, info: GraphQuantInfo, config: QuantConfig) -> Selection:
    """The same choice of nodes, on a graph whose convolutions and Gemm nodes have corrected biases."""
    graph = selection.graph.copy()
    places = {node: i for i, node in enumerate(graph.nodes)}
    twins = dict(zip(selection.graph.nodes, graph.nodes, strict=True))
    chosen: list[Candidate] = []
    for candidate in selection.chosen:
        node = twins[candidate.node]
        moved = candidate._replace(node=node)
        mean = info.means.get(candidate.data[0]) if candidate.weight else None
        if mean is None or node.op_type == MatMul.name or (len(node.inputs) > 2 and not candidate.bias):
            chosen.append(moved)
            continue
        shift = _mean_error(graph.initializers[candidate.weight].raw(), mean, candidate, config)
        before = graph.initializers[candidate.bias].raw() if candidate.bias else np.float32(0)
        name = f"{node.name or node.outputs[0]}/corrected_bias"
        graph.initializers[name] = Tensor((before - shift).astype(np.float32))
        made: Node = node.replace(inputs=[*node.inputs[:2], name])
        graph.nodes[places[node]] = made
        chosen.append(moved._replace(node=made, bias=name))
    return Selection(graph, chosen, selection.skipped, selection.origins)


def _mean_error(
    weight: np.ndarray[Any, Any], mean: np.ndarray[Any, Any], candidate: Candidate, config: QuantConfig
) -> np.ndarray[Any, Any]:
    """What rounding the weight adds to each output channel, on average."""
    params = weight_params(weight, candidate.axis, config)
    error = params.dequantize(params.quantize(weight)).astype(np.float64) - weight
    if candidate.node.op_type != Conv.name:
        turned = error if candidate.axis == 1 else error.T
        return mean @ turned
    group = int(candidate.node.get_attr("group", 1) or 1)
    taps = error.reshape(*error.shape[:2], -1).sum(axis=2)
    blocks = taps.reshape(group, -1, taps.shape[1])
    return np.einsum("goi,gi->go", blocks, mean.reshape(group, -1)).reshape(-1)
