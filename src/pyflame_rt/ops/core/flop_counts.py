"""How much arithmetic an operator does, from the sizes of its inputs and result."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyflame_rt.ops.core.registry import Op

__all__ = [
    "attention_flops",
    "conv_flops",
    "count_flops",
    "deconv_flops",
    "flops_per_input",
    "gemm_flops",
    "matmul_flops",
    "recurrent_flops",
    "window_flops",
]


def count_flops(op: Op, shapes: Sequence[tuple[int, ...]], out: tuple[int, ...], attributes: Mapping[str, Any]) -> int:
    """Arithmetic of one node: two for a multiplication with an addition, one for anything else an element needs.

    Args:
        op: its operator.
        shapes: sizes of its inputs; ``()`` for those not given.
        out: sizes of its first output.
        attributes: of the node, with defaults.

    Example:
        >>> from pyflame_rt.ops import get_op
        >>> count_flops(get_op("MatMul"), [(2, 3), (3, 4)], (2, 4), {})
        48
    """
    if op.flops is None:
        return 0 if op.kind == "move" else math.prod(out)
    return op.flops(list(shapes), out, attributes)


Shapes = list[tuple[int, ...]]


def conv_flops(shapes: Shapes, out: tuple[int, ...], _: Mapping[str, Any]) -> int:
    """A window of the image for each element of the result, and a bias."""
    return 2 * math.prod(out) * math.prod(shapes[1][1:]) + (math.prod(out) if len(shapes) > 2 else 0)


def deconv_flops(shapes: Shapes, out: tuple[int, ...], _: Mapping[str, Any]) -> int:
    """A window of the result for each element of the image, and a bias."""
    return 2 * math.prod(shapes[0]) * math.prod(shapes[1][1:]) + (math.prod(out) if len(shapes) > 2 else 0)


def matmul_flops(shapes: Shapes, out: tuple[int, ...], _: Mapping[str, Any]) -> int:
    """A row times a column for each element of the result."""
    return 2 * math.prod(out) * (shapes[0][-1] if shapes[0] else 1)


def gemm_flops(shapes: Shapes, out: tuple[int, ...], attributes: Mapping[str, Any]) -> int:
    """The same, and a matrix that is added."""
    depth = shapes[0][0 if attributes.get("transA") else -1] if shapes[0] else 1
    return 2 * math.prod(out) * depth + (math.prod(out) if len(shapes) > 2 else 0)


def recurrent_flops(shapes: Shapes, _: tuple[int, ...], __: Mapping[str, Any]) -> int:
    """Two products at every step."""
    positions = math.prod(shapes[0][:2])
    return 2 * positions * (math.prod(shapes[1]) + math.prod(shapes[2]))


def window_flops(shapes: Shapes, out: tuple[int, ...], attributes: Mapping[str, Any]) -> int:
    """Every element of a window."""
    return math.prod(out) * math.prod(attributes.get("kernel_shape") or shapes[0][2:])


def attention_flops(shapes: Shapes, out: tuple[int, ...], _: Mapping[str, Any]) -> int:
    """Two products with all keys."""
    return 4 * math.prod(out) * (shapes[1][-2] if len(shapes) > 1 and len(shapes[1]) > 1 else 1)


def flops_per_input(times: int) -> Callable[[Shapes, tuple[int, ...], Mapping[str, Any]], int]:
    """So many operations for each element of the first input."""
    return lambda shapes, _out, _attributes: times * math.prod(shapes[0])
