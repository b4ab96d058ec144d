"""Recurrent primitives: LSTM and GRU, one layer, forward.

Shapes (T steps, N batch, I inputs, H hidden, D directions):
``src_layer (T, N, I)``, ``src_iter``/``src_iter_c (1, D, N, H)``, ``weights_layer (1, D, I, gates, H)``,
``weights_iter (1, D, H, gates, H)``, ``bias (1, D, gates, H)``, ``dst_layer (T, N, H)`` (``2 H`` for
``bidirectional_concat``), ``dst_iter``/``dst_iter_c (1, D, N, H)``.

Gate order: LSTM input, forget, cell, output (ONNX: i, o, f, c); GRU update, reset, output (ONNX's z, r, h).
The bias is one sum of ONNX's W and R halves, except that GRU with ``linear_before_reset`` has a fourth
"gate" for the output gate's recurrent half. oneDNN's update gate weighs as ONNX's does.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pyflame_rt.backends.cpu.onednn import api
from pyflame_rt.backends.cpu.onednn.attr import Attr
from pyflame_rt.backends.cpu.onednn.primitive import Primitive, build
from pyflame_rt.backends.cpu.onednn.recipes import recorded

if TYPE_CHECKING:
    from pyflame_rt.backends.cpu.onednn.memory import MemDesc

__all__ = ["gru", "lstm"]

_DEFAULT = Attr()
_NO_FLAGS = 0


@recorded
def lstm(
    src_layer: MemDesc,
    weights_layer: MemDesc,
    weights_iter: MemDesc,
    dst_layer: MemDesc,
    *,
    bias: MemDesc | None = None,
    src_iter: MemDesc | None = None,
    src_iter_c: MemDesc | None = None,
    dst_iter: MemDesc | None = None,
    dst_iter_c: MemDesc | None = None,
    direction: str = "left2right",
    attr: Attr = _DEFAULT,
) -> Primitive:
    """LSTM without peepholes or projection; states not given are zero, states not asked for are not written."""
    before = (src_layer.handle, _maybe(src_iter), _maybe(src_iter_c))
    weights = (weights_layer.handle, weights_iter.handle, None, None, _maybe(bias))
    after = (dst_layer.handle, _maybe(dst_iter), _maybe(dst_iter_c))
    given = (api.FORWARD_INFERENCE, _direction(direction), *before, *weights, *after, _NO_FLAGS)
    names = (
        *("src_layer", "src_iter", "src_iter_c", "weights_layer", "weights_iter"),
        *("bias", "dst_layer", "dst_iter", "dst_iter_c"),
    )
    return build("lstm", given, names, attr, _flops(src_layer, weights_layer, weights_iter))


@recorded
def gru(
    src_layer: MemDesc,
    weights_layer: MemDesc,
    weights_iter: MemDesc,
    dst_layer: MemDesc,
    *,
    bias: MemDesc | None = None,
    src_iter: MemDesc | None = None,
    dst_iter: MemDesc | None = None,
    direction: str = "left2right",
    linear_before_reset: bool = False,
    attr: Attr = _DEFAULT,
) -> Primitive:
    """GRU; with ``linear_before_reset`` the reset gate applies after the recurrent product."""
    weights = (weights_layer.handle, weights_iter.handle, _maybe(bias))
    descs = (src_layer.handle, _maybe(src_iter), *weights, dst_layer.handle, _maybe(dst_iter))
    given = (api.FORWARD_INFERENCE, _direction(direction), *descs, _NO_FLAGS)
    names = ("src_layer", "src_iter", "weights_layer", "weights_iter", "bias", "dst_layer", "dst_iter")
    kind = "lbr_gru" if linear_before_reset else "gru"
    return build(kind, given, names, attr, _flops(src_layer, weights_layer, weights_iter))


def _direction(name: str) -> int:
    number = api.DIRECTIONS.get(name)
    if number is None:
        raise ValueError(f"no direction {name!r}; there are {', '.join(api.DIRECTIONS)}")
    return number


def _maybe(desc: MemDesc | None) -> int | None:
    return None if desc is None else desc.handle


def _flops(src_layer: MemDesc, *weights: MemDesc) -> int:
    steps, batch, _ = src_layer.dims
    return 2 * steps * batch * sum(math.prod(w.dims) for w in weights)
