"""Attention as one kernel, with its keys packed first where there are many queries."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import TYPE_CHECKING

from pyflame_rt.backends.cpu.kernels.attention import AttentionKernel, KeyPackKernel, panel_width
from pyflame_rt.backends.cpu.lower.lowering import Lowering, NotNative
from pyflame_rt.backends.cpu.memory.buffer_views import View, contiguous_strides
from pyflame_rt.graph import DType
from pyflame_rt.ops.onnx.attention import Attention as AttentionOp
from pyflame_rt.ops.onnx.shape import Transpose

if TYPE_CHECKING:
    from pyflame_rt.opt.specialized_graph import Attention

__all__ = ["lower_attention"]

ROWS = 4  # queries a kernel takes at once; more would not leave registers for the sums
GRAIN = 100_000  # multiplications worth waking a thread for


def lower_attention(low: Lowering, found: Attention) -> None:
    """Lower what was found.

    Raises:
        NotNative: a layout or a size the kernel does not take.
    """
    q, k, v = (low.strided(name) for name in (found.q, found.k, found.v))
    if found.k_turned:
        lead = len(k.shape) - 2
        k = k.permuted([*range(lead), lead + 1, lead])
    q, k, v = (_four(_rows(low, view)) for view in (q, k, v))
    batch, heads, queries, depth = q.shape
    keys, width = v.shape[2:]
    if width > AttentionKernel.MAX_WIDTH:
        raise NotNative(f"values of {width} numbers")
    mask = _mask(low, found, (batch, heads, queries, keys))
    out = _result(low, found, (batch, heads, queries, width))
    by_query = [view.strides[:3] for view in (q, q if mask is None else mask, out)]
    repeat = found.repeat
    packed = queries > 1
    if not packed:
        # Heads that share keys are as queries of one head: what is read of keys and values serves all of them.
        heads, queries, repeat = heads // repeat, repeat, 1
        by_query = [(n, found.repeat * head, head) for n, head, _ in by_query]
    blocks = -(-queries // ROWS)
    rows = ROWS if packed else -(-queries // blocks)
    source, k_strides = _packed(low, k) if packed else (k, k.strides[:3])
    scale = struct.unpack("<q", struct.pack("<d", found.scale))[0]
    params = [heads, queries, keys, depth, width, repeat, scale, blocks]
    q_strides, mask_strides, out_strides = by_query
    params += [*q_strides, *k_strides, *v.strides[:3], *(mask_strides if mask is not None else (0, 0, 0)), *out_strides]
    kernel = AttentionKernel(rows, mask is not None, found.guarded, packed)
    grain = GRAIN // (rows * keys * (depth + width))
    views = [q, source, v, q if mask is None else mask, out]
    low.kernel(AttentionOp.name, kernel, views, params, batch * heads * blocks, grain)
    shape = low.concrete.shape(found.out)
    low.places[found.out] = out if len(shape) == 4 else replace(out, shape=shape, strides=out.strides[1:])


def _rows(low: Lowering, view: View) -> View:
    """The view, its last axis contiguous."""
    return view if view.strides[-1] == 1 or view.shape[-1] == 1 else low.copied(view)


def _four(view: View) -> View:
    if len(view.shape) == 4:
        return view
    return replace(view, shape=(1, *view.shape), strides=(0, *view.strides))


def _mask(low: Lowering, found: Attention, shape: tuple[int, ...]) -> View | None:
    if not found.mask:
        return None
    view = low.strided(found.mask)
    if view.shape[-1:] != shape[-1:]:
        raise NotNative("a mask that is the same for all keys")
    return _rows(low, view).broadcast(shape)


def _packed(low: Lowering, k: View) -> tuple[View, tuple[int, ...]]:
    """Keys by panels, and the strides of batches, heads and panels."""
    batch, heads, keys, depth = k.shape
    size = panel_width()
    panels = -(-keys // size)
    out = low.new((batch, heads, panels, depth, size), DType.Float32)
    params = [heads, keys, depth, *k.strides[:3]]
    low.kernel("pack keys", KeyPackKernel(), [k, out], params, batch * heads * panels, GRAIN // (depth * size))
    return out, out.strides[:3]


def _result(low: Lowering, found: Attention, shape: tuple[int, ...]) -> View:
    """Heads side by side where the next step turns them so anyway."""
    out = low.new(shape, DType.Float32)
    reader = low.reader.get(found.out)
    if reader is None or reader.steps[0].op is not Transpose:
        return out
    batch, heads, queries, width = shape
    b, q, h, w = contiguous_strides((batch, queries, heads, width))
    return replace(out, strides=(b, h, q, w))
