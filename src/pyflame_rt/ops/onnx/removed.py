"""Operators that ONNX took back with version 10, written as those that stayed.

Files of CoreML's and Windows ML's first converters hold them, and onnxruntime still runs them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame_rt.graph.errors import InvalidModelError
from pyflame_rt.ops.core.upgrade import Upgrade, upgrade

if TYPE_CHECKING:
    from pyflame_rt.graph.node import Node

_GONE = 10


@upgrade("Affine", to=_GONE)
def affine(node: Node, up: Upgrade) -> Node:
    """``alpha * x + beta``."""
    beta = up.constant_like(node.get_attr("beta", 0.0), node.inputs[0])
    return _replaced(node, "Add", [_times(node, "alpha", 1.0, node.inputs[0], up), beta])


@upgrade("Scale", to=_GONE)
def scale(node: Node, up: Upgrade) -> Node:
    """``scale * x``."""
    factor = up.constant_like(node.get_attr("scale", 1.0), node.inputs[0])
    return _replaced(node, "Mul", [node.inputs[0], factor])


@upgrade("ScaledTanh", to=_GONE)
def scaled_tanh(node: Node, up: Upgrade) -> Node:
    """``alpha * tanh(beta * x)``."""
    alpha = up.constant_like(_given(node, "alpha"), node.inputs[0])
    inner = _times(node, "beta", _given(node, "beta"), node.inputs[0], up)
    return _replaced(node, "Mul", [up.emit("Tanh", [inner]), alpha])


@upgrade("ParametricSoftplus", to=_GONE)
def parametric_softplus(node: Node, up: Upgrade) -> Node:
    """``alpha * log(1 + exp(beta * x))``."""
    alpha = up.constant_like(_given(node, "alpha"), node.inputs[0])
    inner = _times(node, "beta", _given(node, "beta"), node.inputs[0], up)
    return _replaced(node, "Mul", [up.emit("Softplus", [inner]), alpha])


@upgrade("ImageScaler", to=_GONE)
def image_scaler(node: Node, up: Upgrade) -> Node:
    """``scale * x + bias`` with one bias for each channel of ``[N, C, H, W]``."""
    x = up.emit("Transpose", node.inputs, {"perm": [0, 1, 2, 3]})  # takes four axes and no others
    bias = up.constant([[[[float(number)]] for number in _given(node, "bias")]])
    return _replaced(node, "Add", [_times(node, "scale", 1.0, x, up), up.emit("CastLike", [bias, x])])


@upgrade("Crop", to=_GONE)
def crop(node: Node, up: Upgrade) -> Node:
    """What lies inside the borders left, top, right, bottom of ``[N, C, H, W]``, or of a size behind left and top."""
    border, size = list(_given(node, "border")), list(node.get_attr("scale", []))
    if len(border) != 4 or len(size) not in (0, 2) or min(border + size) < 0:
        raise InvalidModelError(
            f"node {node.name!r} (Crop): border is {border} and scale {size}; "
            "border takes four numbers from 0, scale two or none"
        )
    left, top, right, bottom = border
    x = up.emit("Transpose", node.inputs, {"perm": [0, 1, 2, 3]})
    if size:
        ends = up.constant([top + size[0], left + size[1]])
    else:
        shape = up.emit("Shape", [x], {"start": 2})
        ends = up.emit("Sub", [shape, up.constant([bottom, right])])
    return _replaced(node, "Slice", [x, up.constant([top, left]), ends, up.constant([2, 3])])


def _replaced(node: Node, op_type: str, inputs: list[str]) -> Node:
    return node.replace(op_type=op_type, inputs=inputs, attributes={})


def _times(node: Node, name: str, default: float, x: str, up: Upgrade) -> str:
    return up.emit("Mul", [x, up.constant_like(node.get_attr(name, default), x)])


def _given(node: Node, name: str) -> Any:
    if not node.has_attr(name):
        raise InvalidModelError(f"node {node.name!r} ({node.op_type}) has no attribute {name!r}, which it needs")
    return node.get_attr(name)
