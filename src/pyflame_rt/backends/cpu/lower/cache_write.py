"""Tokens into caches: one kernel that writes only what is new where the plan may have the cache's memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyflame_rt.backends.cpu.kernels.cache_write import CacheWriteKernel
from pyflame_rt.backends.cpu.lower.lowering import ROW_GRAIN, Lowering, lowers
from pyflame_rt.graph import DType
from pyflame_rt.ops.onnx.index import TensorScatter
from pyflame_rt.opt.traced_sizes import most

if TYPE_CHECKING:
    from pyflame_rt.opt.specialized_graph import SpecializedGraph, SpecializedNode

__all__: list[str] = []


def _other_cache(graph: SpecializedGraph, step: SpecializedNode) -> str:
    if step.attributes.get("mode", "linear") != "linear" or step.attributes.get("axis", -2) != -2:
        return "a cache that is written in circles, or along another axis than the last but one"
    cache, _, starts = (*step.node.inputs, "")[:3]
    dtype, shape = graph.types[cache]
    if not starts or len(shape) != 4 or dtype.itemsize > 8:
        return "a cache without starts, or of other axes than batch, heads, places, width"
    return "" if graph.dtype(starts) is DType.Int64 else f"starts of {graph.dtype(starts).label}"


@lowers(TensorScatter, refuses=_other_cache, checks_indices=True)
def tensor_scatter(low: Lowering, step: SpecializedNode) -> None:
    """A cache [batch, heads, places, width] with new places at each entry's start."""
    cache_name, update_name, starts_name = step.node.inputs
    cache, update, starts = low.dense(cache_name), low.strided(update_name), low.dense(starts_name)
    batch, heads, room, width = cache.shape
    update = update if update.strides[-1] == 1 or width == 1 else low.copied(update)
    out = low.output(step)
    if not batch * heads * width:
        return
    params = [heads, room, update.shape[2], *update.strides[:3]]
    kernel = CacheWriteKernel(cache.dtype.itemsize, width)
    grain = most(ROW_GRAIN // (room * width), 1)
    low.kernel("cache write", kernel, [cache, update, starts, out, low.flag()], params, batch * heads, grain)
