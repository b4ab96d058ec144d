"""Dynamic quantization: weights as integers once, data as uint8 by its own range while running, sums in int32."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyflame_rt.graph import DType
from pyflame_rt.ops.onnx.arithmetic import Add, Mul
from pyflame_rt.ops.onnx.cast import Cast
from pyflame_rt.ops.onnx.conv import Conv, ConvInteger
from pyflame_rt.ops.onnx.matmul import Gemm, MatMul, MatMulInteger
from pyflame_rt.ops.onnx.quantize import DynamicQuantizeLinear
from pyflame_rt.ops.onnx.shape import Reshape
from pyflame_rt.quantization.rewriting import Rewriter
from pyflame_rt.quantization.static import Written
from pyflame_rt.quantization.weights import weight_params

if TYPE_CHECKING:
    from pyflame_rt.quantization.config import QuantConfig
    from pyflame_rt.quantization.params import QuantParams
    from pyflame_rt.quantization.prepare import Candidate, Selection

__all__ = ["write_dynamic"]


def write_dynamic(selection: Selection, config: QuantConfig) -> Written:
    """The graph with products and convolutions of data with constant weights in 8-bit integers."""
    writer = _Writer(selection, config)
    for node in selection.graph.topological_sort():
        candidate = writer.chosen.get(node)
        if candidate is None:
            writer.out.keep(node)
        else:
            writer.product(candidate)
    names = [c.node.name for c in selection.chosen]
    return Written(writer.out.finish(), names, len(writer.weights), len(writer.steps), dict(selection.skipped))


class _Writer:
    """Writes one graph; data that several nodes read is quantized once."""

    def __init__(self, selection: Selection, config: QuantConfig) -> None:
        self.graph, self.config = selection.graph, config
        self.out = Rewriter(selection.graph)
        self.chosen = {candidate.node: candidate for candidate in selection.chosen}
        self.steps: dict[str, tuple[str, str, str]] = {}
        self.weights: dict[tuple[str, int, bool], tuple[str, str, str, QuantParams]] = {}

    def product(self, candidate: Candidate) -> None:
        """One product or convolution: integers, exact sums, real numbers again, the bias."""
        node, base = candidate.node, candidate.node.name or candidate.node.outputs[0]
        data, data_scale, data_zero = self._data(candidate.data[0])
        weight, scale, zero, params = self._weight(candidate)
        conv = node.op_type == Conv.name
        inputs = [data, weight, data_zero, *([zero] if params.zero_points.any() else [])]
        attributes = dict(node.attributes) if conv else {}
        integer = ConvInteger.name if conv else MatMulInteger.name
        sums = self.out.emit(integer, inputs, name=base, attributes=attributes)
        real = self.out.emit(Cast, [sums], name=base, attributes={"to": DType.Float32.onnx})
        step = self.out.emit(Mul, [data_scale, scale], name=f"{base}/step")
        bias = self._bias(candidate, conv)
        outputs = [] if bias else node.outputs
        scaled = self.out.emit(Mul, [real, step], name=base if bias else node.name, outputs=outputs)
        if bias:
            self.out.emit(Add, [scaled, bias], name=node.name, outputs=node.outputs)

    def _data(self, name: str) -> tuple[str, str, str]:
        if name not in self.steps:
            made = tuple(self.out.fresh(f"{name}/{part}") for part in ("uint8", "scale", "zero_point"))
            self.out.emit(DynamicQuantizeLinear, [name], name=self.out.fresh(f"{name}/quantize"), outputs=made)
            self.steps[name] = made[0], made[1], made[2]
        return self.steps[name]

    def _weight(self, candidate: Candidate) -> tuple[str, str, str, QuantParams]:
        """Constants of a weight, in the form that MatMulInteger and ConvInteger take."""
        turned = candidate.node.op_type == Gemm.name and bool(candidate.node.get_attr("transB", 0))
        key = candidate.weight, candidate.axis, turned
        if key not in self.weights:
            array = self.graph.initializers[candidate.weight].raw()
            params = weight_params(array, candidate.axis, self.config)
            whole = params.quantize(array)
            scales, zeros = params.scales, params.zero_points
            if not params.is_per_channel:
                scales, zeros = scales[0], zeros[0]
            elif candidate.node.op_type == Conv.name:
                scales = scales.reshape(-1, *[1] * (array.ndim - 2))
            base = candidate.weight
            self.weights[key] = (
                self.out.constant(f"{base}/{params.quantized_dtype.label}", whole.T if turned else whole),
                self.out.constant(f"{base}/scale", scales),
                self.out.constant(f"{base}/zero_point", zeros),
                params,
            )
        return self.weights[key]

    def _bias(self, candidate: Candidate, conv: bool) -> str:
        """The name of what is added, in a form that broadcasts; empty where nothing is."""
        given = (*candidate.node.inputs, "", "")[2] if candidate.node.op_type != MatMul.name else ""
        if not given or not conv:
            return given
        rank = self.graph.initializers[candidate.weight].ndim
        if given in self.graph.initializers:
            return self.out.constant(
                f"{given}/column", self.graph.initializers[given].raw().reshape(-1, *[1] * (rank - 2))
            )
        form = self.out.constant(f"{given}/form", [-1, *[1] * (rank - 2)])
        return self.out.emit(Reshape, [given, form], name=given)
