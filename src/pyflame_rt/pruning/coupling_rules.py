"""How channels pass through each operator: the rules of the label propagation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph.graph import node_subgraphs
from pyflame_rt.ops.core.registry import find_op
from pyflame_rt.ops.microsoft.fused import FastGelu
from pyflame_rt.ops.onnx.activation import Clip, Hardmax, LogSoftmax, Softmax
from pyflame_rt.ops.onnx.attention import Attention
from pyflame_rt.ops.onnx.conv import Conv, ConvTranspose
from pyflame_rt.ops.onnx.index import Gather
from pyflame_rt.ops.onnx.loss import Dropout
from pyflame_rt.ops.onnx.matmul import Gemm, MatMul
from pyflame_rt.ops.onnx.maxpool import MaxPool
from pyflame_rt.ops.onnx.norm import (
    LRN,
    BatchNormalization,
    GroupNormalization,
    InstanceNormalization,
    LayerNormalization,
    LpNormalization,
    RMSNormalization,
)
from pyflame_rt.ops.onnx.pool import AveragePool, GlobalAveragePool, GlobalLpPool, GlobalMaxPool, LpPool
from pyflame_rt.ops.onnx.quantize import DequantizeLinear, QuantizeLinear
from pyflame_rt.ops.onnx.reduce import (
    ArgMax,
    ArgMin,
    CumSum,
    ReduceL1,
    ReduceL2,
    ReduceLogSumExp,
    ReduceMax,
    ReduceMean,
    ReduceMin,
    ReduceProd,
    ReduceSum,
    ReduceSumSquare,
)
from pyflame_rt.ops.onnx.rnn import GRU, LSTM, RNN
from pyflame_rt.ops.onnx.shape import Shape, Size
from pyflame_rt.ops.pyflame.attention_training import HeadsAttention
from pyflame_rt.pruning.coupling import Axes, Coupling, Labels, NotFollowed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyflame_rt.graph import Node
    from pyflame_rt.ops.core.registry import Op

__all__ = ["follow", "rule"]

_RULES: dict[str, Callable[[Coupling, Node], None]] = {}


def rule(*ops: Op) -> Any:
    """Register how channels pass through operators."""

    def register(function: Callable[[Coupling, Node], None]) -> Callable[[Coupling, Node], None]:
        _RULES.update(dict.fromkeys((op.full_name for op in ops), function))
        return function

    return register


def follow(c: Coupling, node: Node) -> None:
    """Carry the labels of a node's inputs to its outputs."""
    found = _RULES.get(node.full_name)
    op = find_op(node.op_type, node.domain)
    if found is None and op is not None and op.elementwise:
        found = _elementwise
    try:
        if found is None or any(True for _ in node_subgraphs(node)):
            raise NotFollowed(f"{node.full_name} {node.name!r} reads them")
        found(c, node)
    except NotFollowed as reason:
        _stop(c, node, str(reason))


def _stop(c: Coupling, node: Node, why: str) -> None:
    for name in filter(None, node.inputs):
        try:
            c.fix(c.of(name), why, zeroable=True)
        except NotFollowed:
            continue  # nothing of unknown rank has labels
    for name in filter(None, node.outputs):
        c.give_fixed(name)


def _told(node: Node) -> str:
    return f"{node.full_name} {node.name!r} needs their number"


# ---------------------------------------------------------------------- elementwise


def broadcast(c: Coupling, node: Node, names: Sequence[str]) -> Axes:
    """The axes of values that are broadcast to each other."""
    given = [(name, c.of(name)) for name in names if name]
    rank = max(len(axes) for _, axes in given)
    result: Axes = []
    for axis in range(-rank, 0):
        sides = [(c.size(name, axis), axes[axis]) for name, axes in given if len(axes) >= -axis]
        wide = [(size, labels) for size, labels in sides if size != 1]
        labels = wide[0][1] if wide else None
        for _, other in wide[1:]:
            labels = c.unify(labels, other, _told(node))
        result.append(labels)
    return result


@rule(FastGelu)
def _elementwise(c: Coupling, node: Node) -> None:
    c.give(node.outputs[0], broadcast(c, node, node.inputs))


@rule(Clip, Dropout)
def _first_input(c: Coupling, node: Node) -> None:
    axes = c.of(node.inputs[0])
    for name in node.outputs:
        c.give(name, list(axes))


@rule(Softmax, LogSoftmax, Hardmax, LpNormalization)
def _along_axis(c: Coupling, node: Node) -> None:
    _keeps(c, node, node.get_attr("axis", -1))


@rule(CumSum)
def _running_sum(c: Coupling, node: Node) -> None:
    (axis,) = c.ints(node.inputs[1])
    _keeps(c, node, axis)


def _keeps(c: Coupling, node: Node, axis: int) -> None:
    axes = list(c.of(node.inputs[0]))
    c.fix([axes[axis]], _told(node))
    axes[axis] = None
    c.give(node.outputs[0], axes)


@rule(ArgMax, ArgMin)
def _place_of(c: Coupling, node: Node) -> None:
    axes = list(c.of(node.inputs[0]))
    axis = node.get_attr("axis", 0) % len(axes)
    c.fix([axes[axis]], _told(node))
    axes[axis : axis + 1] = [None] if node.get_attr("keepdims", 1) else []
    c.give(node.outputs[0], axes)


# ---------------------------------------------------------------------- products


@rule(Conv)
def _conv(c: Coupling, node: Node) -> None:
    x, w = c.of(node.inputs[0]), c.of(node.inputs[1])
    groups, (outs, ins, *_) = node.get_attr("group", 1), c.sizes(node.inputs[1])
    c.fix([x[0], *x[2:], *w[2:]], _told(node))
    if groups == 1:
        c.unify(x[1], w[1], _told(node))
    elif ins == 1:
        _depthwise(c, node, x[1], w[0], outs // groups)
    else:
        _grouped(c, node, x[1], w, groups)
    made = w[0]
    for bias in filter(None, node.inputs[2:]):
        c.unify(made, c.of(bias)[0], _told(node))
    c.own(made, node.inputs[1], node)
    c.give(node.outputs[0], [None, made, *[None] * (len(x) - 2)])


def _depthwise(c: Coupling, node: Node, x: Labels | None, made: Labels | None, times: int) -> None:
    c.unify(None if x is None else np.repeat(x, times), made, _told(node))
    if x is not None:
        c.adjust.append(lambda edit: edit.attribute(node, "group", edit.count(x)))


def _grouped(c: Coupling, node: Node, x: Labels | None, w: Axes, groups: int) -> None:
    """All groups lose the same places, so that they stay equally wide."""
    if x is None:
        c.fix([w[1]], _told(node))
    else:
        for part in np.split(x, groups):
            c.unify(part, w[1], _told(node))
    if w[0] is not None:
        parts = np.split(w[0], groups)
        for part in parts[1:]:
            c.unify(parts[0], part, _told(node))


@rule(ConvTranspose)
def _conv_transpose(c: Coupling, node: Node) -> None:
    if node.get_attr("group", 1) != 1:
        raise NotFollowed(f"{node.name!r} is a ConvTranspose in groups")
    x, w = c.of(node.inputs[0]), c.of(node.inputs[1])
    c.fix([x[0], *x[2:], *w[2:]], _told(node))
    c.unify(x[1], w[0], _told(node))
    for bias in filter(None, node.inputs[2:]):
        c.unify(w[1], c.of(bias)[0], _told(node))
    c.own(w[1], node.inputs[1], node)
    c.give(node.outputs[0], [None, w[1], *[None] * (len(x) - 2)])


@rule(Gemm)
def _gemm(c: Coupling, node: Node) -> None:
    a, b = c.of(node.inputs[0]), c.of(node.inputs[1])
    rows, inner = (a[1], a[0]) if node.get_attr("transA", 0) else (a[0], a[1])
    other, columns = (b[1], b[0]) if node.get_attr("transB", 0) else (b[0], b[1])
    c.unify(inner, other, _told(node))
    c.own(columns, node.inputs[1], node)
    result: Axes = [rows, columns]
    for name in filter(None, node.inputs[2:]):
        bias = c.of(name)
        for axis in range(-len(bias), 0):
            if c.size(name, axis) != 1:
                result[axis] = c.unify(result[axis], bias[axis], _told(node))
    c.give(node.outputs[0], result)


@rule(MatMul)
def _matmul(c: Coupling, node: Node) -> None:
    first, second = node.inputs
    a, b = c.of(first), c.of(second)
    if min(len(a), len(b)) < 2:
        raise NotFollowed(f"{node.name!r} multiplies a vector")
    c.unify(a[-1], b[-2], _told(node))
    c.own(b[-1], second, node)
    if c.root(first) in c.graph.initializers:  # the weight stands on the left, and its rows are the outputs
        c.own(a[-2], first, node)
    batch: Axes = []
    for axis in range(-max(len(a), len(b)), -2):
        sides = [(n, axes[axis]) for n, axes in ((first, a), (second, b)) if len(axes) >= -axis]
        wide = [labels for name, labels in sides if c.size(name, axis) != 1]
        batch.append(c.unify(wide[0], wide[1], _told(node)) if len(wide) == 2 else wide[0] if wide else None)
    c.give(node.outputs[0], [*batch, a[-2], b[-1]])


@rule(Attention, HeadsAttention)
def _attention(c: Coupling, node: Node) -> None:
    """Heads go whole, and with a head of keys and values go all heads of queries that share it."""
    names = [*node.inputs, "", ""]
    q, k, v = (c.of(name) for name in names[:3])
    if any(names[4:]) or not c.only_first(node) or not len(q) == len(k) == len(v) == 4:
        raise NotFollowed(f"{node.name!r} is an attention with a cache, its scores given out, or heads inside an axis")
    many, few = c.size(names[0], 1), c.size(names[1], 1)
    heads = q[1]
    if few != 1:
        shared = c.unify(k[1], v[1], _told(node))
        heads = c.unify(heads, None if shared is None else np.repeat(shared, many // few), _told(node))
    c.fix([q[0], k[0], v[0], q[2], k[2], v[2], q[3], k[3]], _told(node))
    if names[3]:
        mask = c.of(names[3])
        c.fix([*mask[:-3], *mask[-2:]], _told(node))
        if len(mask) > 2 and c.size(names[3], -3) != 1:
            heads = c.unify(heads, mask[-3], _told(node))
    c.give(node.outputs[0], [None, heads, None, v[3]])


@rule(LSTM, GRU, RNN)
def _recurrence(c: Coupling, node: Node) -> None:
    """What is read may become narrower; the state keeps its size."""
    x, w = c.of(node.inputs[0]), c.of(node.inputs[1])
    c.unify(x[2], w[2], _told(node))
    rest = [c.of(name) for name in node.inputs[2:] if name]
    c.fix([*x[:2], *w[:2], *(labels for axes in rest for labels in axes)], _told(node), zeroable=True)
    for name in node.outputs:
        c.give_fixed(name)


@rule(Gather)
def _gather(c: Coupling, node: Node) -> None:
    data, index = c.of(node.inputs[0]), c.of(node.inputs[1])
    axis = node.get_attr("axis", 0) % len(data)
    c.fix([data[axis]], _told(node))
    if axis == 0 and len(data) == 2:
        c.own(data[1], node.inputs[0], node)
    c.give(node.outputs[0], [*data[:axis], *[None] * len(index), *data[axis + 1 :]])


# ---------------------------------------------------------------------- normalisation, pooling, reduction


@rule(BatchNormalization, InstanceNormalization)
def _per_channel(c: Coupling, node: Node) -> None:
    axes = list(c.of(node.inputs[0]))
    if not c.only_first(node):
        raise NotFollowed(f"{node.name!r} gives out its statistics")
    for name in node.inputs[1:]:
        axes[1] = c.unify(axes[1], c.of(name)[0], _told(node))
    c.give(node.outputs[0], axes)


@rule(LayerNormalization, RMSNormalization)
def _layer_norm(c: Coupling, node: Node) -> None:
    if not c.only_first(node):
        raise NotFollowed(f"{node.name!r} gives out its statistics")
    c.give(node.outputs[0], broadcast(c, node, node.inputs))


@rule(GroupNormalization)
def _group_norm(c: Coupling, node: Node) -> None:
    axes = list(c.of(node.inputs[0]))
    for name in node.inputs[1:]:
        axes[1] = c.unify(axes[1], c.of(name)[0], _told(node))
    if axes[1] is not None:
        parts = np.split(axes[1], node.get_attr("num_groups"))
        for part in parts[1:]:
            c.unify(parts[0], part, _told(node))
    c.give(node.outputs[0], axes)


@rule(MaxPool, AveragePool, LpPool, GlobalAveragePool, GlobalMaxPool, GlobalLpPool, LRN)
def _pool(c: Coupling, node: Node) -> None:
    axes = c.of(node.inputs[0])
    if not c.only_first(node) or node.op_type == LRN.name:
        raise NotFollowed(f"{node.full_name} {node.name!r} mixes channels or gives out places")
    c.fix(axes[2:], _told(node))
    for name in node.outputs:
        c.give(name, [*axes[:2], *[None] * (len(axes) - 2)])


@rule(ReduceMax, ReduceMin, ReduceMean, ReduceSum, ReduceProd, ReduceL1, ReduceL2, ReduceSumSquare, ReduceLogSumExp)
def _reduce(c: Coupling, node: Node) -> None:
    axes = c.of(node.inputs[0])
    named = next((c.ints(name) for name in node.inputs[1:] if name), node.get_attr("axes"))
    if not named and node.get_attr("noop_with_empty_axes", 0):
        c.give(node.outputs[0], list(axes))
        return
    over = {axis % len(axes) for axis in named} if named else set(range(len(axes)))
    c.fix([axes[axis] for axis in over], _told(node))
    keep = node.get_attr("keepdims", 1)
    c.give(node.outputs[0], [None if i in over else a for i, a in enumerate(axes) if keep or i not in over])


@rule(Shape, Size)
def _shape(c: Coupling, node: Node) -> None:
    c.give_fixed(node.outputs[0])  # it is read when running, and so tells the new sizes


@rule(QuantizeLinear, DequantizeLinear)
def _quantize(c: Coupling, node: Node) -> None:
    if len(c.of(node.inputs[1])):
        raise NotFollowed(f"{node.full_name} {node.name!r} has a scale for each channel")
    c.give(node.outputs[0], list(c.of(node.inputs[0])))
