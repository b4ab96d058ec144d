"""A training step as one graph: forward, loss, gradients, clipping, update, masks."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.autodiff import gradient
from pyflame_rt.graph import DType, Graph, Node, Shape, TensorInfo, TensorType
from pyflame_rt.graph.arguments import expect
from pyflame_rt.graph.errors import InputError
from pyflame_rt.graph.records import dataclass
from pyflame_rt.ops.core.registry import get_op
from pyflame_rt.ops.core.value import Value, constant, scope
from pyflame_rt.ops.onnx.activation import Clip
from pyflame_rt.ops.onnx.arithmetic import Min, Pow, Sum
from pyflame_rt.ops.onnx.cast import Identity
from pyflame_rt.ops.onnx.math import Sqrt
from pyflame_rt.ops.onnx.norm import BatchNormalization, BatchNormalized, BatchStatistics
from pyflame_rt.ops.onnx.quantize import DequantizeLinear, QuantizeLinear
from pyflame_rt.ops.onnx.reduce import ReduceSumSquare
from pyflame_rt.ops.onnx.resize import Resize, Upsample
from pyflame_rt.ops.onnx.slicing import Pad
from pyflame_rt.ops.onnx.training import DOMAIN
from pyflame_rt.training.extending import Extension

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pyflame_rt.training.config import TrainingConfig

__all__ = ["StepGraphs", "concrete", "step_graphs", "trainable"]

Array = np.ndarray[Any, Any]
# Inputs that hold numbers a training must not move: statistics, sizes, limits, scales of quantization.
_CONSTANT_INPUTS = {
    BatchNormalization.name: (3, 4),
    Resize.name: (1, 2),
    Upsample.name: (1,),
    Clip.name: (1, 2),
    Pad.name: (2,),
    QuantizeLinear.name: (1,),
    DequantizeLinear.name: (1,),
    Pow.name: (1,),
}
_LARGE = 1e4  # a mask of an attention, not a weight


def trainable(graph: Graph) -> list[str]:
    """The parameters of a graph: constants of float32 with more than one element that are no statistics or masks.

    Example:
        >>> g = Graph("g")
        >>> _ = g.add_input("x", [1, 2]), g.add_initializer("w", np.ones((2, 3), np.float32))
        >>> _ = g.add_node("fc", "MatMul", ["x", "w"], ["y"]), g.add_output("y", [1, 3])
        >>> trainable(g)
        ['w']
    """
    expect(graph, Graph, "what is trained")
    fed = {info.name for info in graph.inputs}
    fixed = {
        node.inputs[i] for node in graph.nodes for i in _CONSTANT_INPUTS.get(node.full_name, ()) if i < len(node.inputs)
    }
    read = {name for node in graph.nodes for name in node.inputs}
    found = []
    for name, tensor in graph.initializers.items():
        if tensor.dtype is not DType.Float32 or tensor.num_elements < 2 or name not in read or name in fixed | fed:
            continue
        array = tensor.raw()
        if np.isfinite(array).all() and np.abs(array).max(initial=0) < _LARGE:
            found.append(name)
    return found


def concrete(graph: Graph, shapes: Mapping[str, Sequence[int]]) -> Graph:
    """A copy for inputs of these sizes."""
    twin = graph.copy()
    symbolic = any(info.is_dynamic() for info in graph.inputs)
    twin.inputs = [
        TensorInfo(info.name, shapes[info.name], info.dtype) if info.name in shapes else info.copy()
        for info in graph.inputs
    ]
    if symbolic:
        twin.types = {}
        twin.outputs = [TensorInfo(info.name, None, info.dtype) for info in graph.outputs]
    return twin


@dataclass(slots=True)
class StepGraphs:
    """What a training runs.

    Attributes:
        step: inputs, extra inputs, state, ``lr`` and ``step`` in; the loss, its terms and the new state out.
        loss: inputs, extra inputs and parameters in; the loss and its terms out.
        parameters: names of what is trained.
        statistics: running statistics of batch normalisations that are tracked.
        slots: names of the optimizer's state, each with the parameter it belongs to.
        terms: names of the parts of the loss.
        start: values of what was added for the training alone.
    """

    step: Graph
    loss: Graph
    parameters: list[str]
    statistics: list[str]
    slots: dict[str, str]
    terms: list[str]
    start: dict[str, Array] = field(default_factory=dict)


def step_graphs(
    graph: Graph,
    build: Callable[[Extension, dict[str, Array]], dict[str, Value]],
    config: TrainingConfig,
    parameters: Sequence[str],
    masks: Iterable[str] = (),
) -> StepGraphs:
    """The graphs of a training.

    Args:
        graph: for inputs of fixed sizes; see :func:`concrete`.
        build: appends the loss: given the graph it may declare inputs and parameters of its own (with their first
            values), and gives the terms of the loss by name, the first of which is the whole.
        config: the optimizer and its settings.
        parameters: what is trained.
        masks: parameters that are masked after each update, by a further input ``mask::<name>``.
    """
    body = graph.copy()
    body.outputs = []
    for name in parameters:
        tensor = body.initializers.pop(name)
        body.add_input(TensorInfo(name, tensor.shape, tensor.dtype))
    tracked = _use_batch_statistics(body) if config.train_batch_norm else []
    forward = Extension(body)
    added: dict[str, Array] = {}
    with scope(forward):
        terms = build(forward, added)
    names = list(terms)
    for name, value in terms.items():
        body.add_node(f"loss::{name}", Identity.name, [value.ref], [f"loss::{name}"])
        body.add_output(TensorInfo(f"loss::{name}", [], DType.Float32))
        if value.rank:
            raise InputError(f"a loss is one number, {name!r} has the shape {list(value.shape)}")
    whole, everything = f"loss::{names[0]}", [*parameters, *added]
    back = gradient(body, [whole], everything)
    _readd(back, body, [f"loss::{name}" for name in names[1:]])
    slots = _update(back, everything, tracked, config, set(masks))
    return StepGraphs(back, body, everything, [s for s, _, _ in tracked], slots, names, added)


def _readd(back: Graph, body: Graph, names: list[str]) -> None:
    """Outputs of the forward graph that the gradient left out."""
    producers, have = body.producers(), {output for node in back.nodes for output in node.outputs}
    missing: list[Node] = []
    pending = list(names)
    while pending:
        node = producers.get(pending.pop())
        if node is not None and not have.issuperset(filter(None, node.outputs)):
            missing.append(node)
            have.update(node.outputs)
            pending += node.inputs
    back.nodes = [*back.nodes, *missing]
    used = {name for node in missing for name in node.inputs}
    back.initializers |= {n: t for n, t in body.initializers.items() if n in used}
    for name in names:
        back.add_output(TensorInfo(name, [], DType.Float32))
    back.nodes = back.topological_sort()


def _use_batch_statistics(body: Graph) -> list[tuple[str, str, float]]:
    """Normalise by the batch; statistics (name of the constant, name of the batch's own, momentum) to be tracked."""
    nodes, tracked = [], []
    for node in body.nodes:
        if node.full_name != BatchNormalization.name or node.get_attr("training_mode", 0) or node.outputs[1:]:
            nodes.append(node)
            continue
        x, scale, bias, mean, var = node.inputs
        own = [f"{node.outputs[0]}::mean", f"{node.outputs[0]}::var"]
        epsilon = {"epsilon": node.get_attr("epsilon", 1e-5)}
        nodes.append(Node(f"{node.name}::statistics", BatchStatistics.name, [x], own, domain="pyflame"))
        inputs = [x, scale, bias, *own]
        nodes.append(Node(node.name, BatchNormalized.name, inputs, node.outputs, epsilon, domain="pyflame"))
        tracked += [(mean, own[0], node.get_attr("momentum", 0.9)), (var, own[1], node.get_attr("momentum", 0.9))]
    body.nodes = nodes
    return [t for t in tracked if t[0] in body.initializers]


def _update(
    back: Graph, names: list[str], tracked: list[tuple[str, str, float]], config: TrainingConfig, masks: set[str]
) -> dict[str, str]:
    """Append the optimizer; the names of its state."""
    kinds = ("mean", "square") if config.optimizer == "adamw" else ("velocity",)
    slots = {f"{kind}::{name}": name for kind in kinds for name in names}
    results = [info.name for info in back.outputs][1 : 1 + len(names)]
    back.outputs = [info for info in back.outputs if info.name not in results]
    more = Extension(back)
    with scope(more):
        slopes = _clipped([more.value(name) for name in results], config.gradient_clip)
        weights = [more.value(name) for name in names]
        state = [
            more.declare(slot, TensorType(DType.Float32, _shape(weights[names.index(of)])))
            for slot, of in slots.items()
        ]
        rate, step = (
            more.declare("lr", TensorType(DType.Float32, Shape([]))),
            more.declare("step", TensorType(DType.Int64, Shape([]))),
        )
        new = _stepped(weights, slopes, state, rate, step, config)
        for name, value in zip([*names, *slots], new, strict=True):
            if name in masks:
                value = value * more.declare(f"mask::{name}", TensorType(DType.Float32, _shape(value)))
            more.output(value, f"new::{name}")
        for name, own, momentum in tracked:
            old = more.declare(name, TensorType(DType.Float32, _shape(more.value(own))))
            back.initializers.pop(name, None)
            more.output(old * momentum + more.value(own) * (1.0 - momentum), f"new::{name}")
    return slots


def _shape(value: Value) -> Shape:
    return Shape(value.shape)


def _clipped(slopes: list[Value], limit: float) -> list[Value]:
    if not limit:
        return slopes
    squares = [ReduceSumSquare(slope, keepdims=0) for slope in slopes]
    norm = Sqrt(Sum(*squares))
    factor = Min(constant(1.0, norm), limit / (norm + 1e-6))
    return [slope * factor for slope in slopes]


def _stepped(
    weights: list[Value], slopes: list[Value], state: list[Value], rate: Value, step: Value, config: TrainingConfig
) -> Sequence[Value]:
    """One step of the optimizer: new weights, then its new state."""
    share = 1.0 - rate * config.weight_decay
    decayed = [w * share if config.weight_decay and w.rank >= 2 else w for w in weights]
    if config.optimizer == "adamw":
        return get_op("Adam", DOMAIN)(rate, step, *decayed, *slopes, *state, alpha=0.9, beta=0.999, epsilon=1e-8)
    momentum = get_op("Momentum", DOMAIN)
    settings: dict[str, Any] = {"alpha": config.momentum, "beta": 1.0, "mode": "standard", "norm_coefficient": 0.0}
    return momentum(rate, step, *decayed, *slopes, *state, **settings)
