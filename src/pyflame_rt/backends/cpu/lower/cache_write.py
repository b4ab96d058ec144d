"""Tokens into caches: one kernel that writes only what is new where the plan may have the cache's memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyflame_rt.backends.cpu.graph.traced_sizes import most
from pyflame_rt.backends.cpu.kernels.cache_write import CacheWriteKernel
from pyflame_rt.backends.cpu.lower.lowering import ROW_GRAIN, Lowering, NotNative, lowers
from pyflame_rt.graph import DType

if TYPE_CHECKING:
    from pyflame_rt.backends.cpu.graph.specialize import SpecializedNode

__all__: list[str] = []


@lowers("TensorScatter")
def tensor_scatter(low: Lowering, step: SpecializedNode) -> None:
    """A cache [batch, heads, places, width] with new places at each entry's start."""
    cache_name, update_name, *more = step.node.inputs
    cache, update = low.dense(cache_name), low.strided(update_name)
    if not more or not more[0] or len(cache.shape) != 4 or cache.dtype.itemsize > 8:
        raise NotNative("a cache without starts, or of other axes than batch, heads, places, width")
    starts = low.dense(more[0])
    if starts.dtype is not DType.Int64:
        raise NotNative(f"starts of {starts.dtype.label}")
    batch, heads, room, width = cache.shape
    update = update if update.strides[-1] == 1 or width == 1 else low.copied(update)
    out = low.output(step)
    if not batch * heads * width:
        return
    params = [heads, room, update.shape[2], *update.strides[:3]]
    kernel = CacheWriteKernel(cache.dtype.itemsize, width)
    grain = most(ROW_GRAIN // (room * width), 1)
    low.kernel("cache write", kernel, [cache, update, starts, out, low.flag()], params, batch * heads, grain)
