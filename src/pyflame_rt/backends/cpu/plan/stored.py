"""Plans kept on disk: the next process with the same model and shapes plans nothing.

A plan is written as its steps and buffers. Kernels are named by their key (their object code is an entry of its own),
primitives by how they were made, constants by the file they are mapped from. When one of these is gone, or is not what
it was, the plan is worthless and is made anew.
"""

from __future__ import annotations

import hashlib
import pickle
import sys
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pyflame_rt.backends.cpu.llvm.host import host
from pyflame_rt.backends.cpu.llvm.jit import compile_kernels
from pyflame_rt.backends.cpu.onednn.api import OneDnnError, cpu_isa, version
from pyflame_rt.backends.cpu.onednn.memory import MemDesc
from pyflame_rt.backends.cpu.onednn.primitive import Primitive
from pyflame_rt.backends.cpu.onednn.recipes import Recipe, make_again
from pyflame_rt.backends.cpu.plan.lower import DnnStep, KernelStep, Lowered
from pyflame_rt.backends.cpu.plan.views import View
from pyflame_rt.backends.cpu.plan.weights import Resident, packed_place, packing_beside, resident
from pyflame_rt.backends.cpu.threads import use_threads
from pyflame_rt.cache.pickles import StaleError, freeze, place_of, thaw
from pyflame_rt.cache.signature import code_signature
from pyflame_rt.cache.store import HEADER, Store, current_store
from pyflame_rt.graph.records import dataclass
from pyflame_rt.ops.registry import Op, get_op

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyflame_rt.graph import DType, Graph

__all__ = ["StoredPlan", "keep_plan", "plan_key", "stored_plan"]

# Larger constants are files of their own, which are mapped.
MAX_INLINE = 1 << 14
# Reading a larger plan takes longer than making it.
MAX_PLAN = 16 << 20
_FAULTS = (StaleError, OneDnnError, pickle.UnpicklingError, AttributeError, ImportError)
_FAULTS += (LookupError, TypeError, ValueError, AssertionError, EOFError)


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
        raise StaleError(f"the object code of kernel {name} is gone")


def plan_key(
    graph: Graph, feeds: Mapping[str, tuple[DType, tuple[int, ...]]], threads: int, wanted: Sequence[str]
) -> str | None:
    """What a plan is kept under; None when nothing tells the graph from others."""
    if graph.origin is None:
        return None
    shapes = [(name, dtype.label, shape) for name, (dtype, shape) in feeds.items()]
    return f"{_build()} {graph.origin.key} {shapes} {tuple(wanted)} {threads}"


@cache
def _build() -> str:
    sources = code_signature("backends/cpu", "ops", "graph", "cache")
    return f"{sys.version_info[:2]} {np.__version__} {version()} {cpu_isa()} {host()} {sources}"


# ---------------------------------------------------------------------- writing


def keep_plan(key: str, plan: StoredPlan) -> Callable[[], None] | None:
    """Keep a plan, in the background; what is returned waits for that, since it must not be freed before."""
    store = current_store()
    if not store.writable:
        return None

    def write() -> None:
        reducers = {np.ndarray: lambda array: _reduce_array(store, array), **_REDUCERS}
        try:
            data = freeze(plan, reducers)
        except (pickle.PicklingError, OneDnnError):
            return  # an opaque layout
        if len(data) <= MAX_PLAN:
            store.put("plan", key, data)

    store.writer.submit(write)
    return store.flush


def _reduce_array(store: Store, array: np.ndarray[Any, Any]) -> Any:
    place = place_of(array) or packed_place(array)
    if place is not None:
        return place
    if array.nbytes < MAX_INLINE or array.dtype == object or not array.flags.c_contiguous:
        return array.__reduce_ex__(5)
    key = f"constant {hashlib.sha256(array.data).hexdigest()}"
    if store.open_map("weights", key) is None and not store.put_large("weights", key, _bytes_of(array)):
        raise pickle.PicklingError("there is no room for a constant")
    mapped = store.open_map("weights", key)
    place = None if mapped is None else place_of(np.frombuffer(mapped, array.dtype, offset=HEADER).reshape(array.shape))
    if place is None:
        raise pickle.PicklingError("a constant was evicted at once")
    return place


def _bytes_of(array: np.ndarray[Any, Any]) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _reduce_kernel_step(step: KernelStep) -> Any:
    values = {f.name: getattr(step, f.name) for f in fields(step) if f.name != "kernel"}
    return _kernel_step, (step.kernel.key, values)


def _reduce_primitive(primitive: Primitive) -> Any:
    if primitive.recipe is None:
        raise pickle.PicklingError(f"nobody knows how {primitive.kind} was made")
    sizes = {name: desc.size for name, desc in primitive.args.items()}
    return _primitive, (*primitive.recipe, primitive.impl, sizes)


def _reduce_desc(desc: MemDesc) -> Any:
    if desc.is_any:
        return _desc, (desc.dims, desc.dtype, "any")
    if desc.is_plain and not desc.offset:
        return _desc, (desc.dims, desc.dtype, desc.strides)
    how = (desc.dims, desc.dtype, desc.layout)
    with _desc(*how) as again:
        if again != desc:
            raise pickle.PicklingError(f"a layout without a name: {desc!r}")
    return _desc, how


_REDUCERS: dict[type, Any] = {
    KernelStep: _reduce_kernel_step,
    Primitive: _reduce_primitive,
    MemDesc: _reduce_desc,
    Op: lambda op: (get_op, (op.name, op.domain)),
    Resident: lambda array: (resident, (array.source,)),
    View: lambda v: (View, (v.buffer, v.dtype, v.shape, v.strides, v.offset, v.desc)),
}

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
            found = thaw(data)
        if isinstance(found, StoredPlan):
            compile_kernels([s.kernel for s in found.lowered.steps if isinstance(s, KernelStep)])
            store.touch_all(_files(found.lowered, store))
            return found
    except _FAULTS:
        store.discard("plan", key)
    if isinstance(found, StoredPlan):
        for step in found.lowered.steps:
            if isinstance(step, DnnStep):
                step.primitive.close()
    return None


def _files(lowered: Lowered, store: Store) -> set[str]:
    """Entries of the store that constants are mapped from."""
    places = [place_of(b.array) for b in lowered.buffers if isinstance(b.array, np.ndarray)]
    return {p[1][0] for p in places if p is not None and p[1][0].startswith(str(store.folder))}


def _kernel_step(key: str, values: dict[str, Any]) -> KernelStep:
    return KernelStep(kernel=StoredKernel(key), **values)


def _primitive(
    maker: str, args: tuple[Any, ...], options: dict[str, Any], threads: int, impl: str, sizes: dict[str, int]
) -> Primitive:
    with use_threads(threads):
        primitive = make_again(Recipe(maker, args, options, threads))
    if primitive.impl != impl or {name: desc.size for name, desc in primitive.args.items()} != sizes:
        primitive.close()
        raise StaleError(f"the library now makes {maker} another way")
    return primitive


def _desc(dims: tuple[int, ...], dtype: str, how: str | tuple[int, ...]) -> MemDesc:
    return MemDesc(dims, dtype, how) if isinstance(how, str) else MemDesc(dims, dtype, strides=how)
