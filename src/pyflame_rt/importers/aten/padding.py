"""Padding of aten: with a number, mirrored, repeated or round in a circle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame_rt.importers.aten.table import aten
from pyflame_rt.importers.aten.values import number, refuse, shape_value
from pyflame_rt.ops.onnx.slicing import Pad

if TYPE_CHECKING:
    from pyflame_rt.ops.core.value import Value

__all__ = ["padded"]


def _pads(x: Value, pad: Any) -> tuple[Value, list[int]]:
    """Torch counts pads from the last axis, two at a time."""
    count = len(pad) // 2
    along = [x.rank - 1 - i for i in range(count)]
    return shape_value([*[pad[2 * i] for i in range(count)], *[pad[2 * i + 1] for i in range(count)]]), along


@aten("constant_pad_nd")
def _constant_pad_nd(x: Value, pad: Any, value: Any = 0) -> Value:
    amounts, along = _pads(x, list(pad))
    return Pad(x, amounts, number(0 if value is None else value, x.dtype), along)


@aten("pad")
def padded(x: Value, pad: Any, mode: str = "constant", value: Any = None) -> Value:
    """More elements before and after, as the mode says."""
    if mode == "constant":
        return _constant_pad_nd(x, pad, value)
    amounts, along = _pads(x, list(pad))
    names = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}
    if mode not in names:
        raise refuse(f"padding of mode {mode!r}")
    return Pad(x, amounts, None, along, mode=names[mode])


for _rank in (1, 2, 3):
    aten(f"reflection_pad{_rank}d")(lambda x, padding: padded(x, padding, "reflect"))
    aten(f"replication_pad{_rank}d")(lambda x, padding: padded(x, padding, "replicate"))
