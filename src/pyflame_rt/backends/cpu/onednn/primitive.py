"""A primitive: one piece of compiled work, the descriptors of what it reads and writes, and how to run it."""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.backends.cpu.onednn import api
from pyflame_rt.backends.cpu.onednn.attr import Attr, Prelu
from pyflame_rt.backends.cpu.onednn.memory import MemDesc, Memory
from pyflame_rt.backends.cpu.onednn.runtime import Handle, Stream, engine
from pyflame_rt.backends.cpu.run.gomp import load_gomp
from pyflame_rt.backends.cpu.run.threads import use_threads

if TYPE_CHECKING:
    from pyflame_rt.backends.cpu.onednn.recipes import Recipe

__all__ = ["Primitive", "aligned_empty", "build", "execute"]

ALIGNMENT = 64


# Forms that divide their work among the threads that are there when they run; a test compares their bits.
_DIVIDED_ANEW = frozenset({"convolution", "pooling", "reorder"})
_IMPLEMENTATIONS = frozenset({"jit:avx2", "brgconv:avx2", "brgconv_1x1:avx2", "jit:uni"})


class Primitive(Handle):
    """One oneDNN primitive.

    The layouts are known at once; the machine code is generated when :attr:`handle` is first read,
    so asking which layouts a primitive would like is cheap.

    Attributes:
        kind: ``convolution``, ``matmul`` and so on.
        args: argument name -> descriptor, with the layouts the primitive settled on.
        arg_ids: argument name -> ``DNNL_ARG_*``.
        impl: the library's name of the implementation, such as ``jit:avx2``.
        recipe: how it was made, where that is known.
        flops: an estimate of the arithmetic of one execution (zero where a dim is not known yet).
        threads: among how many the work was divided at most, when it was made.
    """

    threads = 1

    _destroy = "dnnl_primitive_destroy"

    def __init__(self, kind: str, desc: _PrimitiveDesc, ids: Mapping[str, int], attr: Attr, flops: int) -> None:
        self._desc = desc
        self._creating = threading.Lock()
        self._handle = None
        self.kind = kind
        self.attr = attr
        self.flops = flops
        self.impl = desc.impl()
        self.recipe: Recipe | None = None
        self.args: dict[str, MemDesc] = {}
        self.arg_ids: dict[str, int] = {}
        for name, number in ids.items():
            found = desc.arg(number)
            if found is not None:
                self.args[name], self.arg_ids[name] = found, number
        self._describe_extras()

    @property
    def handle(self) -> int:
        """The native primitive, compiled on first use.

        The library looks for an equal one that it made before, by the number of threads set now: with another number
        than its descriptor was made for, it would take one that writes beyond the scratch memory of this.
        """
        with self._creating:
            if self._handle is None:
                out = ctypes.c_void_p()
                with use_threads(self.threads):
                    api.lib().dnnl_primitive_create(ctypes.byref(out), self._desc.handle)
                super().__init__(out.value or 0)
        return super().handle

    @property
    def takes_fewer_threads(self) -> bool:
        """Whether it gives the same on fewer threads than it was made for: known of these, not true of all."""
        return self.kind in _DIVIDED_ANEW and self.impl in _IMPLEMENTATIONS

    @property
    def closed(self) -> bool:
        """Whether the native object is gone."""
        return self._desc.closed

    @property
    def scratchpad_size(self) -> int:
        """Bytes of scratch memory that one execution needs."""
        desc = self.args.get("scratchpad")
        return 0 if desc is None else desc.size

    def close(self) -> None:
        """Free the primitive, and let go of its descriptors: one that somebody still holds stays valid."""
        if self._handle is not None:
            super().close()
        self._desc.close()
        self.args.clear()
        self.recipe = None

    def exec_args(self, memories: Mapping[str, Memory]) -> tuple[ctypes.Array[api.ExecArg], int]:
        """The argument list of ``dnnl_primitive_execute``: the C array and its length.

        The array holds plain pointers: keep ``memories`` alive as long as it is used.
        """
        unknown = memories.keys() - self.arg_ids.keys()
        if unknown:
            raise ValueError(f"{self.kind} has no argument {min(unknown)!r}; it has {', '.join(self.arg_ids)}")
        entries = [api.ExecArg(self.arg_ids[name], memory.handle) for name, memory in memories.items()]
        return (api.ExecArg * len(entries))(*entries), len(entries)

    def run(self, stream: Stream, memories: Mapping[str, Memory]) -> None:
        """Execute on memory objects and wait."""
        args, count = self.exec_args(memories)
        api.lib().dnnl_primitive_execute(self.handle, stream.handle, count, args)
        stream.wait()

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}: {desc!r}" for name, desc in self.args.items() if name != "scratchpad")
        return f"Primitive({self.kind} {self.impl}; {shown})"

    def _describe_extras(self) -> None:
        """Describe the arguments that the attributes add and the library does not describe itself."""
        extra = self.attr.extra_args()
        for arg, mask in self.attr.scale_masks:
            self._add(f"scales_{arg}", MemDesc((self._count(arg, mask),), "f32"), extra)
        for arg, mask in self.attr.zero_point_masks:
            self._add(f"zero_points_{arg}", MemDesc((self._count(arg, mask),), "s32"), extra)
        slopes = [post_op for post_op in self.attr.post_ops if isinstance(post_op, Prelu)]
        for i, post_op in enumerate(slopes):
            dims = [d if post_op.mask >> axis & 1 else 1 for axis, d in enumerate(self.args["dst"].dims)]
            self._add(f"prelu_{i}", MemDesc(dims, "f32"), extra)

    def _add(self, name: str, desc: MemDesc, ids: Mapping[str, int]) -> None:
        self.args[name], self.arg_ids[name] = desc, ids[name]

    def _count(self, arg: str, mask: int) -> int:
        return math.prod(d for axis, d in enumerate(self.args[arg].dims) if mask >> axis & 1)


class _PrimitiveDesc(Handle):
    """The chosen implementation, before its code is generated."""

    _destroy = "dnnl_primitive_desc_destroy"

    def impl(self) -> str:
        out = ctypes.c_char_p()
        api.lib().dnnl_primitive_desc_query(self.handle, api.QUERY_IMPL_INFO, 0, ctypes.byref(out))
        return (out.value or b"").decode()

    def arg(self, number: int) -> MemDesc | None:
        found = api.lib().dnnl_primitive_desc_query_md(self.handle, api.QUERY_EXEC_ARG_MD, number)
        if found is None:
            return None
        desc = MemDesc.clone(found)
        if desc.ndims == 0:
            desc.close()
            return None
        return desc


def build(
    kind: str,
    given: Sequence[Any],
    names: Iterable[str] | Mapping[str, int],
    attr: Attr,
    flops: int = 0,
    *,
    function: str | None = None,
    engine_first: bool = True,
) -> Primitive:
    """Make a primitive.

    Args:
        kind: what it is.
        given: arguments of the C function between the engine and the attributes.
        names: its own arguments, names in ``api.ARGS`` or names with their ids.
        attr: attributes.
        flops: arithmetic of one execution.
        function: the C function, ``dnnl_<kind>_forward_primitive_desc_create`` when not given.
        engine_first: False for the one function that takes an engine per tensor.
    """
    ids = dict(names) if isinstance(names, Mapping) else {name: api.ARGS[name] for name in names}
    ids |= attr.extra_args()
    ids |= {name: api.ARGS[name] for name in ("workspace", "scratchpad")}
    create = getattr(api.lib(), function or f"dnnl_{kind}_forward_primitive_desc_create")
    out = ctypes.c_void_p()
    with attr.native() as native:
        create(ctypes.byref(out), *((engine(),) if engine_first else ()), *given, native)
    made = Primitive(kind, _PrimitiveDesc(out.value or 0), ids, attr, flops)
    made.threads = _threads()
    return made


def _threads() -> int:
    gomp = load_gomp()
    return 1 if gomp is None else int(gomp.omp_get_max_threads())


def aligned_empty(size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """``size`` bytes whose address is a multiple of a cache line."""
    whole = np.empty(size + ALIGNMENT, np.uint8)
    start = -whole.ctypes.data % ALIGNMENT
    return whole[start : start + size]


def execute(
    primitive: Primitive,
    buffers: Mapping[str, np.ndarray[Any, Any] | int],
    stream: Stream | None = None,
    descs: Mapping[str, MemDesc] | None = None,
) -> None:
    """Run once on arrays or addresses; the convenient way, for tests and for packing constants.

    Args:
        primitive: what to run.
        buffers: argument name -> array laid out as ``primitive.args[name]`` says, or an address.
            Scratch memory is made here when not given.
        stream: where to run; a fresh one when not given.
        descs: descriptors in place of the primitive's, for arguments with dims given at execution.
    """
    buffers = dict(buffers)
    if primitive.scratchpad_size and "scratchpad" not in buffers:
        buffers["scratchpad"] = aligned_empty(primitive.scratchpad_size)
    described = primitive.args | dict(descs or {})
    memories = {name: Memory(described[name], _address(name, described[name], b)) for name, b in buffers.items()}
    own = stream if stream is not None else Stream()
    try:
        primitive.run(own, memories)
    finally:
        for memory in memories.values():
            memory.close()
        if stream is None:
            own.close()


def _address(name: str, desc: MemDesc, buffer: np.ndarray[Any, Any] | int) -> int:
    if isinstance(buffer, int):
        return buffer
    low, high = np.lib.array_utils.byte_bounds(buffer)
    if high - low < desc.extent:
        raise ValueError(f"argument {name!r} needs {desc.extent} bytes for {desc!r}, the array has {high - low}")
    return buffer.ctypes.data
