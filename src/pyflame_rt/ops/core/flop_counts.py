"""How much arithmetic an operator does, from the sizes of its inputs and result."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["count_flops"]


def count_flops(
    name: str, shapes: Sequence[tuple[int, ...]], out: tuple[int, ...], attributes: Mapping[str, Any]
) -> int:
    """Arithmetic of one node: two for a multiplication with an addition, one for anything else an element needs.

    Args:
        name: of the operator.
        shapes: sizes of its inputs; ``()`` for those not given.
        out: sizes of its first output.
        attributes: of the node, with defaults.

    Example:
        >>> count_flops("MatMul", [(2, 3), (3, 4)], (2, 4), {})
        48
    """
    rule = _RULES.get(name)
    if rule is None:
        return 0 if name in _MOVES else math.prod(out)
    return rule(list(shapes), out, attributes)


_MOVES = frozenset(
    {
        "Cast", "Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity",
        "OneHot", "Pad", "Reshape", "Resize", "ScatterElements", "ScatterND", "Shape", "Slice", "SpaceToDepth", "Split",
        "Squeeze", "Tile", "Transpose", "Unsqueeze",
    }
)  # fmt: skip

Shapes = list[tuple[int, ...]]


def _conv(shapes: Shapes, out: tuple[int, ...], _: Mapping[str, Any]) -> int:
    return 2 * math.prod(out) * math.prod(shapes[1][1:]) + (math.prod(out) if len(shapes) > 2 else 0)


def _deconv(shapes: Shapes, out: tuple[int, ...], _: Mapping[str, Any]) -> int:
    return 2 * math.prod(shapes[0]) * math.prod(shapes[1][1:]) + (math.prod(out) if len(shapes) > 2 else 0)


def _matmul(shapes: Shapes, out: tuple[int, ...], _: Mapping[str, Any]) -> int:
    return 2 * math.prod(out) * (shapes[0][-1] if shapes[0] else 1)


def _gemm(shapes: Shapes, out: tuple[int, ...], attributes: Mapping[str, Any]) -> int:
    depth = shapes[0][0 if attributes.get("transA") else -1] if shapes[0] else 1
    return 2 * math.prod(out) * depth + (math.prod(out) if len(shapes) > 2 else 0)


def _recurrent(shapes: Shapes, _: tuple[int, ...], __: Mapping[str, Any]) -> int:
    positions = math.prod(shapes[0][:2])
    return 2 * positions * (math.prod(shapes[1]) + math.prod(shapes[2]))


def _window(shapes: Shapes, out: tuple[int, ...], attributes: Mapping[str, Any]) -> int:
    return math.prod(out) * math.prod(attributes.get("kernel_shape") or shapes[0][2:])


def _attention(shapes: Shapes, out: tuple[int, ...], _: Mapping[str, Any]) -> int:
    return 4 * math.prod(out) * (shapes[1][-2] if len(shapes) > 1 and len(shapes[1]) > 1 else 1)


def _per_input(times: int) -> Any:
    return lambda shapes, _out, _attributes: times * math.prod(shapes[0])


_RULES: dict[str, Any] = {
    "Conv": _conv,
    "ConvInteger": _conv,
    "ConvTranspose": _deconv,
    "MatMul": _matmul,
    "MatMulInteger": _matmul,
    "Gemm": _gemm,
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _recurrent),
    **dict.fromkeys(("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"), _window),
    "Attention": _attention,
    **dict.fromkeys(("Softmax", "LogSoftmax"), _per_input(4)),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"), _per_input(6)),
    **dict.fromkeys(("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"), _per_input(1)),
}
