"""Attention of training, forwards and backwards: a kernel that takes one head at a time."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import TYPE_CHECKING

from pyflame_rt.backends.cpu.jit.target import host
from pyflame_rt.backends.cpu.kernels.attention_training import OPERANDS, PARTS, HeadsKernel, Way, heads_tile
from pyflame_rt.backends.cpu.lower.lowering import PIECES, Lowering, NotNative, lowers
from pyflame_rt.graph import DType
from pyflame_rt.ops.pyflame.attention_training import HeadsAttention, HeadsAttentionGrad
from pyflame_rt.opt.traced_sizes import is_traced

if TYPE_CHECKING:
    from pyflame_rt.backends.cpu.memory.buffer_views import View
    from pyflame_rt.opt.specialized_graph import SpecializedNode

__all__: list[str] = []

BLOCK = 192  # queries whose weights exist at one time on the way back
MAX_KEYS = 1 << 14


@lowers(HeadsAttention)
def heads_attention(low: Lowering, step: SpecializedNode) -> None:
    """softmax(scale q k) v."""
    q, k, v = (_usable(low, name) for name in step.node.inputs)
    sizes = _sizes(low, q, k, v)
    out = low.in_order(low.new((*q.shape[:3], v.shape[3]), DType.Float32), q)
    _run(low, step, "forward", sizes, [q, k, v, out])
    low.places[step.node.outputs[0]] = out


@lowers(HeadsAttentionGrad)
def heads_attention_grad(low: Lowering, step: SpecializedNode) -> None:
    """Gradients of queries, keys and values."""
    g, q, k, v = (_usable(low, name) for name in step.node.inputs)
    sizes = _sizes(low, q, k, v)
    made = _together(low, q, k, v) or [low.in_order(low.new(x.shape, DType.Float32), x) for x in (q, k, v)]
    _run(low, step, "backward", sizes, [g, q, k, v, *made])
    for name, view in zip(step.node.outputs, made, strict=False):
        if name:
            low.places[name] = view


def _together(low: Lowering, q: View, k: View, v: View) -> list[View] | None:
    """Room for gradients of parts of one projection, side by side as these are: nobody has to put them together."""
    parts = q, k, v
    if any(is_traced(n) for x in parts for n in (x.offset, *x.shape, *x.strides)):
        return None
    batch, heads, rows, depth = q.shape
    width = heads * depth
    lie = all(x.shape == q.shape and x.strides == (rows * 3 * width, depth, 3 * width, 1) for x in parts)
    if not lie or any(x.buffer is not q.buffer or x.offset != i * width for i, x in enumerate(parts)):
        return None
    whole = low.new((batch, rows, 3 * width), DType.Float32)
    return [replace(x, buffer=whole.buffer) for x in parts]


def _usable(low: Lowering, name: str) -> View:
    if low.concrete.dtype(name) is not DType.Float32:
        raise NotNative("attention of another type than float32")
    view = low.strided(name)
    return view if view.strides[-1] == 1 or view.shape[-1] == 1 else low.copied(view)


def _sizes(low: Lowering, q: View, k: View, v: View) -> dict[str, int]:
    batch, heads, queries, depth = q.shape
    keys, width = v.shape[2:]
    if 0 in (*q.shape, *k.shape, *v.shape) or keys > MAX_KEYS or batch * heads < low.threads:
        raise NotNative("nothing to attend to, too many keys, or fewer heads than threads")
    return {"heads": heads, "queries": queries, "keys": keys, "depth": depth, "width": width}


def _run(low: Lowering, step: SpecializedNode, way: Way, sizes: dict[str, int], views: list[View]) -> None:
    tile = heads_tile(host())
    size = tile.vectors * host().lanes(4)
    queries, keys, depth, width = (sizes[n] for n in ("queries", "keys", "depth", "width"))
    line = -(-keys // size) * size
    block = min(-(-queries // tile.rows) * tile.rows, BLOCK)
    deep, wide = (-(-n // size) * size for n in (depth, width))
    rows = tile.rows if way == "forward" else block
    # Tiles read up to a tile's rows beyond the last weight.
    room = {
        "turned_k": line * depth, "turned_v": line * width, "values": keys * wide, "k_panels": keys * deep,
        "q_panels": block * deep, "g_panels": block * wide, "weights": rows * line + size, "slopes": rows * line + size,
    }  # fmt: skip
    offsets, slot = [], 0
    for name in PARTS[way]:
        offsets.append(slot)
        slot += -(-room[name] // 16) * 16
    items = views[0].shape[0] * sizes["heads"]
    apart = max(1, items // (low.threads * PIECES))
    scratch = low.new((-(-items // apart) * slot,), DType.Float32)
    scale = struct.unpack("<q", struct.pack("<d", step.attributes["scale"]))[0]
    params = [*sizes.values(), scale, int(step.attributes["causal"]), block, line, apart, slot, *offsets]
    for _, view in zip(OPERANDS[way], views, strict=True):
        params += view.strides[:3]
    low.kernel(step.op.name, HeadsKernel(way), [*views, scratch], params, items, 1, PIECES)
