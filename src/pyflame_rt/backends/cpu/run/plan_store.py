"""Plans kept on disk: the next process with the same model and shapes plans nothing.

A plan is written as its steps and buffers. Kernels are named by their key (their object code is an entry of its own),
primitives by how they were made, constants by the file they are mapped from. When one of these is gone, or is not what
it was, the plan is worthless and is made anew.
"""

from __future__ import annotations

import hashlib
import sys
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pyflame_rt.backends.cpu.jit.compiler import compile_kernels
from pyflame_rt.backends.cpu.jit.target import host
from pyflame_rt.backends.cpu.lower.kernel_choice import Case
from pyflame_rt.backends.cpu.lower.lowering import DnnStep, HostStep, KernelStep, Lowered
from pyflame_rt.backends.cpu.memory.buffer_views import Buffer, Place, View
from pyflame_rt.backends.cpu.memory.constants import Resident, do_beside, packed_place, packing_beside, resident
from pyflame_rt.backends.cpu.onednn.api import OneDnnError, cpu_isa, version
from pyflame_rt.backends.cpu.onednn.attr import Attr, Binary, Depthwise, Eltwise, Prelu, Sum
from pyflame_rt.backends.cpu.onednn.memory import MemDesc
from pyflame_rt.backends.cpu.onednn.primitive import Primitive
from pyflame_rt.backends.cpu.onednn.recipes import Recipe, make_again
from pyflame_rt.backends.cpu.run.parallel_branches import Window
from pyflame_rt.backends.cpu.run.threads import use_threads
from pyflame_rt.cache.encoding import Codec, DecodeError, EncodeError, Kind, record
from pyflame_rt.cache.models import GRAPH_KINDS
from pyflame_rt.cache.places import makers_beside, place_of
from pyflame_rt.cache.signature import code_signature
from pyflame_rt.cache.store import current_store
from pyflame_rt.graph import DType
from pyflame_rt.graph.errors import PyFlameRTError
from pyflame_rt.graph.records import dataclass
from pyflame_rt.ops.core.registry import Op, get_op
from pyflame_rt.opt.specialized_graph import SpecializedNode
from pyflame_rt.registry import depends_on_added

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyflame_rt.cache.encoding import Kinded
    from pyflame_rt.cache.store import Store
    from pyflame_rt.graph import Graph

__all__ = ["StoredPlan", "keep_plan", "plan_key", "stored_plan"]

# Larger constants are files of their own, which are mapped.
MAX_INLINE = 1 << 14
# Reading a larger plan takes longer than making it.
MAX_PLAN = 16 << 20
_FAULTS = (DecodeError, OneDnnError, PyFlameRTError, AssertionError)


class StoredPlan(NamedTuple):
    """What is written of a plan."""

    lowered: Lowered
    arena_bytes: int


@dataclass(frozen=True)
class StoredKernel:
    """A kernel whose object code is known by its key alone."""

    key: str

    def emit(self, name: str) -> str:
        """There is nothing to emit it from."""
        raise DecodeError(f"the object code of kernel {name} is gone")


def plan_key(
    graph: Graph, feeds: Mapping[str, tuple[DType, tuple[int, ...]]], threads: int, wanted: Sequence[str]
) -> str | None:
    """What a plan is kept under; None when nothing tells the graph from others."""
    if graph.origin is None or depends_on_added(graph):
        return None
    shapes = [(name, dtype.label, shape) for name, (dtype, shape) in feeds.items()]
    return f"{_build()} {graph.origin.key} {shapes} {tuple(wanted)} {threads}"


@cache
def _build() -> str:
    sources = code_signature("backends/cpu", "opt", "ops", "graph", "cache")
    return f"{sys.version_info[:2]} {np.__version__} {version()} {cpu_isa()} {host()} {sources}"


# ---------------------------------------------------------------------- writing


def keep_plan(key: str, plan: StoredPlan) -> Callable[[], None] | None:
    """Keep a plan, in the background; what is returned waits for that, since it must not be freed before."""
    store = current_store()
    if not store.writable:
        return None

    def write() -> None:
        try:
            data = _CODEC.encode(plan, lambda array: _place(array, store))
        except (EncodeError, OneDnnError):
            return  # an opaque layout
        if len(data) <= MAX_PLAN:
            store.put("plan", key, data)

    store.writer.submit(write)
    return store.flush


def _place(array: np.ndarray[Any, Any], store: Store) -> Kinded | None:
    """What stands for a constant; None where it goes into the document."""
    place = place_of(array, store) or packed_place(array, store)
    if place is not None:
        return place
    if array.nbytes < MAX_INLINE or array.dtype == object or not array.flags.c_contiguous:
        return None
    key = f"constant {hashlib.sha256(array.data).hexdigest()}"
    kept = store.open_large("weights", key)
    if kept is None:
        if not store.put_large("weights", key, array.reshape(-1).view(np.uint8).data):
            raise EncodeError("there is no room for a constant")
        kept = store.open_large("weights", key)
    place = None if kept is None else place_of(kept.view(array.dtype).reshape(array.shape), store)
    if place is None:
        raise EncodeError("a constant was evicted at once")
    return place


def _parts_of_primitive(primitive: Primitive) -> tuple[Any, ...]:
    if primitive.recipe is None:
        raise EncodeError(f"nobody knows how {primitive.kind} was made")
    sizes = {name: desc.size for name, desc in primitive.args.items()}
    return (*primitive.recipe, primitive.impl, sizes)


def _parts_of_desc(desc: MemDesc) -> tuple[Any, ...]:
    if desc.is_any:
        return desc.dims, desc.dtype, "any"
    if desc.is_plain and not desc.offset:
        return desc.dims, desc.dtype, desc.strides
    how = (desc.dims, desc.dtype, desc.layout)
    with _desc(*how) as again:
        if again != desc:
            raise EncodeError(f"a layout without a name: {desc!r}")
    return how


# ---------------------------------------------------------------------- reading


def stored_plan(key: str) -> StoredPlan | None:
    """The plan kept under a key, with its primitives made and its kernels loaded; None when it cannot be had."""
    store = current_store()
    data = store.get("plan", key)
    if data is None:
        return None
    found: Any = None
    try:
        with packing_beside():
            found = _CODEC.decode(data, makers_beside(do_beside))
            if isinstance(found, StoredPlan):
                compile_kernels([s.kernel for s in found.lowered.steps if isinstance(s, KernelStep)])
        if isinstance(found, StoredPlan):
            return found
    except _FAULTS:
        store.discard("plan", key)
    if isinstance(found, StoredPlan):
        for step in found.lowered.steps:
            if isinstance(step, DnnStep):
                step.primitive.close()
    return None


_STEP = tuple(f.name for f in fields(KernelStep) if f.name != "kernel")


def _kernel_step(key: str, *values: Any) -> KernelStep:
    return KernelStep(kernel=StoredKernel(key), **dict(zip(_STEP, values, strict=True)))


def _primitive(
    maker: str, args: tuple[Any, ...], options: dict[str, Any], threads: int, impl: str, sizes: dict[str, int]
) -> Primitive:
    with use_threads(threads):
        primitive = make_again(Recipe(maker, args, options, threads))
    if primitive.impl != impl or {name: desc.size for name, desc in primitive.args.items()} != sizes:
        primitive.close()
        raise DecodeError(f"the library now makes {maker} another way")
    return primitive


def _desc(dims: tuple[int, ...], dtype: str, how: str | tuple[int, ...]) -> MemDesc:
    return MemDesc(dims, dtype, how) if isinstance(how, str) else MemDesc(dims, dtype, strides=how)


def _parts_of_view(view: View) -> tuple[Any, ...]:
    """A plan has many: what is plain JSON is read quickest."""
    return view.buffer, view.dtype.label, [*view.shape], [*view.strides], view.offset, view.desc


def _view(buffer: Buffer, label: str, shape: list[int], strides: list[int], offset: int, desc: Any) -> View:
    return View(buffer, _TYPES[label], tuple(shape), tuple(strides), offset, desc)


_TYPES = {dtype.label: dtype for dtype in DType}
_CODEC = Codec(
    [
        *GRAPH_KINDS,
        Kind("Plan", StoredPlan, tuple, StoredPlan),
        Kind("KernelStep", KernelStep, lambda s: (s.kernel.key, *(getattr(s, n) for n in _STEP)), _kernel_step),
        Kind("Primitive", Primitive, _parts_of_primitive, _primitive),
        Kind("MemDesc", MemDesc, _parts_of_desc, _desc),
        Kind("Op", Op, lambda op: (op.name, op.domain), get_op),
        Kind("Resident", Resident, lambda array: (array.source,), resident),
        Kind("Place", Place, lambda place: (place.value,), Place),
        Kind("View", View, _parts_of_view, _view),
        *map(record, (Lowered, DnnStep, HostStep, SpecializedNode, Buffer, Case, Window)),
        *map(record, (Attr, Eltwise, Binary, Sum, Prelu, Depthwise)),
    ]
)
