"""Weights in 16-bit floats: stored in half the memory, widened where they are read; arithmetic stays float32."""

from __future__ import annotations

from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np

from pyflame_rt.graph import DType
from pyflame_rt.ops.onnx.norm import (
    BatchNormalization,
    GroupNormalization,
    InstanceNormalization,
    LayerNormalization,
    RMSNormalization,
)
from pyflame_rt.ops.onnx.quantize import DequantizeLinear, QuantizeLinear
from pyflame_rt.ops.onnx.resize import Resize
from pyflame_rt.ops.pyflame.fused import FusedBNRelu
from pyflame_rt.ops.pyflame.quantized import CastFromBF16, CastFromFP16
from pyflame_rt.quantization.prepare import check_names, checked_graph, prepared
from pyflame_rt.quantization.rewriting import Rewriter
from pyflame_rt.quantization.static import Written

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyflame_rt.graph import Graph, Node
    from pyflame_rt.quantization.config import QuantConfig

__all__ = ["SENSITIVE_OPS", "write_half"]

# Small weights whose errors reach every value: they stay as they are.
SENSITIVE_OPS = frozenset(
    {
        BatchNormalization.name, GroupNormalization.name, InstanceNormalization.name, LayerNormalization.name,
        RMSNormalization.name, FusedBNRelu.full_name, QuantizeLinear.name, DequantizeLinear.name, Resize.name,
    }
)  # fmt: skip


def write_half(graph: Graph, config: QuantConfig, dtype: DType) -> Written:
    """The graph with its float32 constants in ``dtype``, Float16 or BFloat16; inputs and outputs stay float32."""
    check_names(checked_graph(graph), config)
    graph, origins = prepared(graph, fold=False)
    out, skipped = Rewriter(graph), dict[str, str]()
    inputs = {info.name for info in graph.inputs}
    outputs = {info.name for info in graph.outputs}
    kept = {name for node in graph.nodes if _stays(node, config, origins, skipped) for name in node.inputs}
    names: dict[str, str] = {}
    op = CastFromFP16.name if dtype is DType.Float16 else CastFromBF16.name
    for name, tensor in graph.initializers.items():
        if tensor.dtype is not DType.Float32 or name in inputs | outputs | kept or tensor.num_elements < 2:
            continue
        narrow = _narrowed(tensor.raw(), dtype)
        if narrow is None:
            skipped[name] = f"{dtype.label} cannot hold its numbers"
            continue
        stored = out.constant(f"{name}/{dtype.label}", narrow)
        names[name] = out.emit(op, [stored], name=name, domain="pyflame")
    quantized: list[str] = []
    for node in graph.topological_sort():
        out.keep(node, names)
        if not names.keys().isdisjoint(node.inputs):
            quantized.append(node.name)
    return Written(out.finish(), quantized, len(names), 0, skipped)


def _stays(node: Node, config: QuantConfig, origins: Mapping[str, tuple[str, ...]], skipped: dict[str, str]) -> bool:
    """Whether the constants of a node keep their type."""
    if {node.op_type, node.full_name} & set(config.exclude_ops):
        skipped[node.name] = f"exclude_ops names {node.op_type}"
    elif {node.name, *origins.get(node.name, ())} & set(config.exclude_nodes):
        skipped[node.name] = "exclude_nodes names it"
    else:
        return node.full_name in SENSITIVE_OPS
    return True


def _narrowed(array: np.ndarray, dtype: DType) -> np.ndarray | None:
    """The nearest numbers of 16 bits; None where a finite one would become infinite."""
    kind = np.float16 if dtype is DType.Float16 else ml_dtypes.bfloat16
    with np.errstate(over="ignore"):
        made = array.astype(kind)
    return None if (np.isinf(made.astype(np.float32)) & np.isfinite(array)).any() else made
