"""Static quantization: QuantizeLinear and DequantizeLinear around the chosen nodes (QDQ), by ranges found before."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pyflame_rt.ops.onnx.quantize import DequantizeLinear, QuantizeLinear
from pyflame_rt.quantization.prepare import ACTIVATIONS, KEEPS_VALUES, Candidate, Selection
from pyflame_rt.quantization.rewriting import Rewriter
from pyflame_rt.quantization.weights import bias_steps, weight_params

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyflame_rt.graph import Graph, Node
    from pyflame_rt.quantization.config import QuantConfig
    from pyflame_rt.quantization.params import GraphQuantInfo, QuantParams

__all__ = ["Written", "grids", "observed_names", "write_qdq"]


class Written(NamedTuple):
    """A quantized graph.

    Attributes:
        graph: it.
        nodes: names of the nodes that compute with integers.
        weights: how many weights are integers now.
        activations: how many tensors of data are.
        skipped: names of the candidates that stayed in float32, and why.
    """

    graph: Graph
    nodes: list[str]
    weights: int
    activations: int
    skipped: dict[str, str]


def grids(graph: Graph, names: Iterable[str]) -> dict[str, str]:
    """For each tensor to quantize, the one whose scale it has: that from which its values come unchanged.

    The tensors on the way are among the keys: rounding them with the same scale changes nothing, and lets a kernel
    keep integers all the way.
    """
    makers = graph.producers()
    found: dict[str, str] = {}
    for name in names:
        way, source = [name], name
        while (node := makers.get(source)) is not None and _keeps(node, source):
            source = node.inputs[0]
            way.append(source)
        found |= dict.fromkeys(way, source)
    return found


def _keeps(node: Node, name: str) -> bool:
    return not node.domain and node.op_type in KEEPS_VALUES and node.outputs[0] == name


def observed_names(selection: Selection, config: QuantConfig) -> list[str]:
    """Tensors whose ranges are needed."""
    wanted = [name for candidate in selection.chosen for name in candidate.data]
    if config.quantize_outputs:
        wanted += _rounded_outputs(selection)
    return list(dict.fromkeys(grids(selection.graph, wanted).values()))


def _rounded_outputs(selection: Selection) -> list[str]:
    """Outputs of the model that a chosen node makes, perhaps with an activation behind it."""
    makers, chosen = selection.graph.producers(), {c.node for c in selection.chosen}
    found: list[str] = []
    for info in selection.graph.outputs:
        node = makers.get(info.name)
        while node is not None and not node.domain and node.op_type in ACTIVATIONS | KEEPS_VALUES:
            node = makers.get(node.inputs[0])
        if node in chosen:
            found.append(info.name)
    return found


def write_qdq(selection: Selection, info: GraphQuantInfo, config: QuantConfig) -> Written:
    """The quantized graph; nodes of whose data no range is known stay in float32."""
    skipped = dict(selection.skipped)
    chosen: list[Candidate] = []
    for candidate in selection.chosen:
        reason = _unknown(selection.graph, candidate, info)
        if reason:
            skipped[candidate.node.name] = reason
        else:
            chosen.append(candidate)
    writer = _Writer(Selection(selection.graph, chosen, {}), info, config)
    graph = writer.write()
    return Written(graph, [c.node.name for c in chosen], len(writer.weights), len(writer.rounded), skipped)


def _unknown(graph: Graph, candidate: Candidate, info: GraphQuantInfo) -> str:
    for name, source in grids(graph, candidate.data).items():
        if source in info.refused:
            return info.refused[source]
        if not info.has_params(source) and name in candidate.data:
            return f"no range of {source!r} is known"
        if info.has_params(source) and info.get_params(source).is_per_channel:
            return f"the parameters of {source!r} are by channel, those of data are one for the tensor"
    return ""


class _Writer:
    """Writes one graph."""

    def __init__(self, selection: Selection, info: GraphQuantInfo, config: QuantConfig) -> None:
        self.selection, self.info, self.config = selection, info, config
        self.out = Rewriter(selection.graph)
        self.chosen = {candidate.node: candidate for candidate in selection.chosen}
        wanted = [name for candidate in selection.chosen for name in candidate.data]
        self.outputs = set(_rounded_outputs(selection)) if config.quantize_outputs else set[str]()
        self.grid = grids(selection.graph, [*wanted, *self.outputs])
        self.rounded: dict[str, str] = {}
        self.weights: dict[tuple[str, int], tuple[str, QuantParams]] = {}
        self.parameters: dict[tuple[float, int, str], tuple[str, str]] = {}

    def write(self) -> Graph:
        """All of it."""
        graph = self.selection.graph
        for info in graph.inputs:
            self._round(info.name)
        for node in graph.topological_sort():
            candidate = self.chosen.get(node)
            if candidate is not None:
                self._quantized(candidate)
            elif any(_keeps(node, name) and name in self.grid for name in node.outputs):
                self.out.keep(node, {node.inputs[0]: self.rounded.get(node.inputs[0], node.inputs[0])})
            else:
                self.out.keep(node)
            for name in node.outputs:
                self._round(name)
        return self.out.finish()

    def _round(self, name: str) -> None:
        """Put QuantizeLinear and DequantizeLinear behind a tensor that needs them."""
        if name not in self.grid:
            return
        scale, zero = self._parameters(name)
        if name in self.outputs:
            self._round_output(name, scale, zero)
            return
        steps = self.out.emit(QuantizeLinear, [name, scale, zero], name=name)
        self.rounded[name] = self.out.emit(DequantizeLinear, [steps, scale, zero], name=name)

    def _round_output(self, name: str, scale: str, zero: str) -> None:
        """The same for an output of the model, which keeps its name."""
        node = self.out.graph.nodes.pop()
        real = self.out.fresh(f"{name}/real")
        self.out.keep(node.replace(outputs=[real if n == name else n for n in node.outputs]))
        steps = self.out.emit(QuantizeLinear, [real, scale, zero], name=name)
        self.rounded[name] = self.out.emit(DequantizeLinear, [steps, scale, zero], name=f"{name}/out", outputs=[name])

    def _parameters(self, name: str) -> tuple[str, str]:
        """Constants of a tensor's scale and zero point; equal ones are shared."""
        source = self.grid[name]
        params = self.info.get_params(source)
        key = (float(params.scales[0]), int(params.zero_points[0]), params.quantized_dtype.label)
        if key not in self.parameters:
            scale = self.out.constant(f"{source}/scale", params.scales[0])
            self.parameters[key] = scale, self.out.constant(f"{source}/zero_point", params.zero_points[0])
        return self.parameters[key]

    def _quantized(self, candidate: Candidate) -> None:
        names = {name: self.rounded[name] for name in candidate.data}
        if candidate.weight:
            names[candidate.weight], params = self._weight(candidate)
            if candidate.bias:
                names[candidate.bias] = self._bias(candidate, params)
        self.out.keep(candidate.node, names)

    def _weight(self, candidate: Candidate) -> tuple[str, QuantParams]:
        key = candidate.weight, candidate.axis
        if key not in self.weights:
            array = self.selection.graph.initializers[candidate.weight].raw()
            params = weight_params(array, candidate.axis, self.config)
            scales, zeros = params.scales, params.zero_points
            if not params.is_per_channel:
                scales, zeros = scales[0], zeros[0]
            names = [
                self.out.constant(f"{candidate.weight}/{params.quantized_dtype.label}", params.quantize(array)),
                self.out.constant(f"{candidate.weight}/scale", scales),
                self.out.constant(f"{candidate.weight}/zero_point", zeros),
            ]
            attributes = {"axis": candidate.axis} if params.is_per_channel else {}
            real = self.out.emit(DequantizeLinear, names, name=candidate.weight, attributes=attributes)
            self.weights[key] = real, params
        return self.weights[key]

    def _bias(self, candidate: Candidate, weight: QuantParams) -> str:
        """A bias in the steps of the sums, so that a kernel adds it to them; as it is where int32 cannot hold it."""
        array = self.selection.graph.initializers[candidate.bias].raw()
        found = bias_steps(array, self.info.get_params(self.grid[candidate.data[0]]), weight)
        if found is None:
            return candidate.bias
        whole, steps = found
        base = f"{candidate.node.name or candidate.bias}/bias"
        names = [
            self.out.constant(f"{base}/int32", whole),
            self.out.constant(f"{base}/scale", steps if weight.is_per_channel else steps[0]),
        ]
        return self.out.emit(
            DequantizeLinear, names, name=base, attributes={"axis": 0} if weight.is_per_channel else {}
        )
