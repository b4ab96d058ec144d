"""Lower a concrete graph to native steps on views."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pyflame_rt.backends.cpu.faults import FAULTS, note_fault
from pyflame_rt.backends.cpu.graph.groups import PRODUCTS, Group, group_steps, single
from pyflame_rt.backends.cpu.graph.op_support import declare_native, refusal_of
from pyflame_rt.backends.cpu.ir.instructions import HEAVY
from pyflame_rt.backends.cpu.ir.kernel_program import Kernel, Map, RowKernel, Store, TransposeKernel, load
from pyflame_rt.backends.cpu.jit.compiler import prepare
from pyflame_rt.backends.cpu.jit.target import host
from pyflame_rt.backends.cpu.lower.kernel_choice import Case, Choices
from pyflame_rt.backends.cpu.lower.row_loops import FLAT_GRAIN, MAX_OUTER, Nest, nest_of
from pyflame_rt.backends.cpu.memory.buffer_views import (
    Buffer,
    Place,
    View,
    as_bits,
    contiguous_strides,
    simplified,
    strides_in_order,
)
from pyflame_rt.backends.cpu.onednn.api import OneDnnError
from pyflame_rt.backends.cpu.onednn.library import OneDnnUnavailable
from pyflame_rt.backends.cpu.onednn.memory import MemDesc
from pyflame_rt.backends.cpu.onednn.primitives import reorder
from pyflame_rt.graph import DType
from pyflame_rt.graph.errors import DTypeMismatchError, InputError, ShapeMismatchError
from pyflame_rt.graph.records import dataclass
from pyflame_rt.opt.specialized_graph import SpecializedGraph, SpecializedNode
from pyflame_rt.opt.traced_sizes import MARK, most

if TYPE_CHECKING:
    from pyflame_rt.backends.cpu.onednn.primitive import Primitive
    from pyflame_rt.backends.cpu.run.parallel_branches import Window
    from pyflame_rt.ops.core.registry import Op
    from pyflame_rt.opt.specialized_graph import Attention

__all__ = [
    "LIBRARY_REFUSALS",
    "REFUSALS",
    "BetterApart",
    "DnnStep",
    "HostStep",
    "KernelStep",
    "Lowered",
    "Lowering",
    "NotNative",
    "fuses",
    "lowers",
]

# Rows are given to threads in pieces of at least this many elements.
ROW_GRAIN = 32_768
# Of elements that take a function such as exp, a piece has this part: softmax of 8 x 4096 on two threads 28 -> 17 us.
HEAVY_SHARE = 4
_HEAVY = re.compile(f";(?:{'|'.join(sorted(HEAVY))})/")
# Axes shorter than this are not worth a blocked transpose.
LEAST_TURN = 8
# Chunks of rows a thread may have, where rows are independent: a thread that is held up leaves some to others.
PIECES = 4


class NotNative(Exception):
    """This form of an operator has no native kernel; the reference runs it as a host step."""


# How a kernel, the library, or an operator's own rule says that a form is not for it: another way is taken.
LIBRARY_REFUSALS = (NotNative, OneDnnError, OneDnnUnavailable)
REFUSALS = (*LIBRARY_REFUSALS, ShapeMismatchError, DTypeMismatchError, InputError)


class BetterApart(NotNative):
    """A product and the loop that follows it are quicker one after the other."""


@dataclass(slots=True)
class KernelStep:
    """A generated kernel on views."""

    label: str
    kernel: Kernel
    views: list[View]
    params: list[int]
    rows: int
    grain: int
    nodes: tuple[str, ...] = ()
    pieces: int = 1  # a thread may have; kernels that keep something between rows want one


@dataclass(slots=True)
class DnnStep:
    """A library primitive on views; ``scratch`` is its own piece of the arena."""

    label: str
    primitive: Primitive
    args: dict[str, View]
    scratch: Buffer | None = None
    nodes: tuple[str, ...] = ()


@dataclass(slots=True)
class HostStep:
    """A step the reference runs, on arrays that view the arena."""

    label: str
    step: SpecializedNode
    inputs: list[View | None]
    outputs: list[View | None]
    reason: str = ""
    nodes: tuple[str, ...] = ()


@dataclass(slots=True)
class Lowered:
    """Steps in order, and where inputs and outputs are."""

    steps: list[KernelStep | DnnStep | HostStep]
    buffers: list[Buffer]
    inputs: list[str]
    outputs: list[View]
    reorders: int = 0
    cases: dict[str, Case] = field(default_factory=dict)
    windows: list[Window] = field(default_factory=list)


class Mark(NamedTuple):
    """A state of the lowering."""

    steps: int
    places: dict[str, View]
    deferred: dict[str, SpecializedNode]
    scaled: dict[str, Group]
    nodes: tuple[str, ...]


LoweringFn = Callable[["Lowering", SpecializedNode], None]
_lowerings: dict[Op, LoweringFn] = {}
# A product with the loop that alone reads it: gives the loop's result, or is asked whether it may.
FusedFn = Callable[["Lowering", SpecializedNode, Group], View]
FusedCheck = Callable[["Lowering", SpecializedNode, Group], bool]
_fused: dict[Op, list[tuple[FusedFn, FusedCheck | None]]] = {}


def lowers(
    *ops: Op,
    refuses: Callable[[SpecializedGraph, SpecializedNode], str] | None = None,
    checks_indices: bool = False,
) -> Callable[[LoweringFn], LoweringFn]:
    """Declare how operators become native steps.

    Args:
        ops: the operators; compositions among them are not opened.
        refuses: why it does not take a node, empty when it may: asked before a composition is kept whole, when only
            attributes and the types and constants of inputs are known. What the layout in memory decides, the
            lowering itself refuses.
        checks_indices: the kernel looks at every index it uses, so that nothing before it has to.
    """

    def declare(fn: LoweringFn) -> LoweringFn:
        for op in ops:
            _lowerings[op] = fn
            declare_native(op, refuses, checks_indices)
        return fn

    return declare


def fuses(fn: FusedFn, *ops: Op, when: FusedCheck | None = None) -> None:
    """Declare how products become one native step with the loop that alone reads them.

    Args:
        fn: places further results of the loop, and gives its last one; what it cannot do it refuses.
        ops: the products. Of several ways the one declared first is tried first.
        when: whether it may be tried.
    """
    for op in ops:
        _fused.setdefault(op, []).append((fn, when))


@dataclass(slots=True)
class Lowering:
    """Work in progress: where each value is, and the steps so far."""

    concrete: SpecializedGraph
    threads: int = 1
    choices: Choices = field(default_factory=Choices)
    places: dict[str, View] = field(default_factory=dict)
    steps: list[KernelStep | DnnStep | HostStep] = field(default_factory=list)
    buffers: list[Buffer] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    reader: dict[str, Group | None] = field(default_factory=dict)
    deferred: dict[str, SpecializedNode] = field(default_factory=dict)
    scaled: dict[str, Group] = field(default_factory=dict)  # images whose scales their reader takes into its weights
    nodes: tuple[str, ...] = ()
    reorders: int = 0
    flags: Buffer | None = None
    refused: set[Any] = field(default_factory=set)
    library: set[str] = field(default_factory=set)  # products the library was chosen for
    packs: dict[Any, tuple[int, View]] = field(default_factory=dict)  # rows in panels: the step that packs them, where

    # ------------------------------------------------------------------ values

    def view(self, name: str) -> View:
        """Where a value is; a deferred product is computed now, constants get a buffer."""
        if name in self.deferred:
            self.compute_deferred(name)
        if name in self.scaled:
            self._compute_scaled(name)
        if name not in self.places:
            array = self.concrete.constants.get(name)
            self.places[name] = self._derived(name) if array is None else self.constant(np.asarray(array, order="C"))
        return self.places[name]

    def _derived(self, name: str) -> View:
        """A constant whose contents depend on traced sizes."""
        dtype, shape = self.concrete.types[name]
        buffer = self._buffer(math.prod(shape) * dtype.itemsize, Place.CONSTANT)
        buffer.source = name
        return View(buffer, dtype, shape, contiguous_strides(shape))

    def constant(self, array: np.ndarray[Any, Any], desc: MemDesc | None = None, like: View | None = None) -> View:
        """A view of constant data."""
        buffer = self._buffer(array.nbytes, Place.CONSTANT, array=array)
        if like is not None:
            return View(buffer, like.dtype, like.shape, (), desc=desc)
        return View(buffer, DType.of(array.dtype), array.shape, contiguous_strides(array.shape))

    def constant_of(self, name: str) -> np.ndarray[Any, Any] | None:
        """Contents of a value that is constant."""
        return self.concrete.constants.get(name)

    def weights_of(self, name: str) -> np.ndarray[Any, Any] | None:
        """Like :meth:`constant_of`; of numbers that were widened, those of 16 bits, for a kernel that widens them."""
        narrow = self.concrete.narrow.get(name)
        if narrow is None or (narrow.dtype == np.float16 and not host().half):
            return self.constant_of(name)
        return narrow

    def numbers_of(self, name: str) -> list[int] | None:
        """Contents of a value that is constant, or made of traced sizes, as a list."""
        array = self.concrete.constants.get(name, self.concrete.sizes.get(name))
        return None if array is None else array.ravel().tolist()

    def as_stored(self, name: str) -> View:
        """Like :meth:`strided`; a constant stays as it lies in memory, for a step that will pack it."""
        array = self.constant_of(name)
        if array is None or name in self.places or array.flags.c_contiguous:
            return self.strided(name)
        if any(s <= 0 or s % array.itemsize for s in array.strides):
            return self.strided(name)
        buffer = self._buffer(array.nbytes, Place.CONSTANT, array=array)
        return View(buffer, DType.of(array.dtype), array.shape, tuple(s // array.itemsize for s in array.strides))

    def strided(self, name: str) -> View:
        """A view with strides: blocked layouts are put in order first."""
        view = self.view(name)
        if view.is_blocked:
            view = self.places[name] = self.reordered(view, None)
        return view

    def dense(self, name: str) -> View:
        """A contiguous view."""
        view = self.strided(name)
        return view if view.is_contiguous else self.copied(view)

    def new(self, shape: tuple[int, ...], dtype: DType) -> View:
        """A fresh contiguous value in the arena."""
        buffer = self._buffer(math.prod(shape) * dtype.itemsize)
        return View(buffer, dtype, shape, contiguous_strides(shape))

    def new_like(self, views: Sequence[View], shape: tuple[int, ...], dtype: DType) -> View:
        """A fresh value with its axes in memory as the first operand of the same shape has them, a dense one if any."""
        fresh = self.new(shape, dtype)
        same = [view for view in views if view.shape == shape and 0 not in view.strides]
        for view in same:
            if view.is_dense:
                return replace(fresh, strides=view.strides)
        return self.in_order(fresh, same[0]) if same else fresh

    def in_order(self, fresh: View, view: View) -> View:
        """A fresh value with its axes in memory as those of a view of the same rank, unless that repeats elements."""
        return fresh if 0 in view.strides else replace(fresh, strides=strides_in_order(view, fresh.shape))

    def output_like(self, step: SpecializedNode, view: View) -> View:
        """A fresh value for the first output of a step, its axes in memory as those of a view of the same rank."""
        out = self.places[step.node.outputs[0]] = self.in_order(self.output(step), view)
        return out

    def new_blocked(self, desc: MemDesc, dtype: DType) -> View:
        """A fresh value in a layout the library chose; plain ones get strides."""
        view = View(self._buffer(desc.size), dtype, desc.dims, (), desc=desc)
        return simplified(view)

    def flag(self) -> View:
        """Eight bytes in which kernels report an index out of range; the driver's caller reads them."""
        if self.flags is None:
            self.flags = self._buffer(8, Place.FLAG)
        return View(self.flags, DType.Int64, (1,), (1,))

    def output(self, step: SpecializedNode) -> View:
        """A fresh contiguous value for the first output of a step."""
        name = step.node.outputs[0]
        view = self.new(self.concrete.shape(name), self.concrete.dtype(name))
        self.places[name] = view
        return view

    def _buffer(self, nbytes: int, place: Place = Place.ARENA, index: int = -1, array: Any = None) -> Buffer:
        buffer = Buffer(max(nbytes, 1), place, index, array)
        self.buffers.append(buffer)
        return buffer

    # ------------------------------------------------------------------ steps

    def kernel(
        self,
        label: str,
        kernel: Kernel,
        views: list[View],
        params: list[int],
        rows: int,
        grain: int,
        pieces: int = 1,
    ) -> None:
        """Add a generated kernel; with several ``pieces`` threads that get on faster take over from others."""
        if MARK not in kernel.key:
            prepare(kernel)
        self.steps.append(KernelStep(label, kernel, views, params, rows, most(grain, 1), self.nodes, pieces))

    def primitive(self, label: str, primitive: Primitive, args: dict[str, View]) -> None:
        """Add a library primitive."""
        size = primitive.scratchpad_size
        scratch = self._buffer(size) if size else None
        self.steps.append(DnnStep(label, primitive, args, scratch, self.nodes))

    def row_kernel(self, label: str, kernel: RowKernel, nest: Nest, views: list[View]) -> None:
        """Add a row kernel over a nest."""
        share = HEAVY_SHARE if _HEAVY.search(kernel.key) else 1
        grain = FLAT_GRAIN // share if not nest.outer else most(1, ROW_GRAIN // share // most(nest.inner, 1))
        self.kernel(label, kernel, views, nest.params(kernel.operands), nest.rows, grain, PIECES)

    def copied(self, view: View, target: View | None = None) -> View:
        """The same elements in a contiguous value, or in ``target``."""
        target = self.new(view.shape, view.dtype) if target is None else target
        if view.count == 0:
            return target
        bits = [as_bits(view), as_bits(target)]
        if view.dtype.itemsize == 4 and self._transposed(bits[0], bits[1]):
            return target
        nest = nest_of(bits, bits[0].shape)
        if nest is None:
            raise NotNative("too many axes to copy")
        label = bits[0].dtype.label
        source, sink = nest.operand(0, label), nest.operand(1, label)
        kernel = RowKernel(len(nest.outer), (source,), (sink,), (Map((Store(1, load(0, label)),)),))
        self.row_kernel("copy", kernel, nest, bits)
        return target

    def _transposed(self, source: View, target: View) -> bool:
        """Copy block by block where source and target go through memory in different directions."""
        sizes = source.shape
        runs = [
            next((k for k, n in enumerate(sizes) if n >= LEAST_TURN and v.strides[k] == 1), -1)
            for v in (source, target)
        ]
        i, j = runs
        outer = [k for k, n in enumerate(sizes) if n != 1 and k not in runs]
        if min(runs) < 0 or i == j or len(outer) > MAX_OUTER - 1:
            return False
        params = [sizes[i], sizes[j], source.strides[j], target.strides[i], *(sizes[k] for k in outer)]
        params += [v.strides[k] for v in (source, target) for k in outer]
        blocks = math.prod(sizes[k] for k in outer) * -(-sizes[i] // TransposeKernel.BLOCK)
        grain = ROW_GRAIN // (TransposeKernel.BLOCK * sizes[j])
        self.kernel("copy", TransposeKernel(len(outer)), [source, target], params, blocks, grain, PIECES)
        return True

    def reordered(self, view: View, desc: MemDesc | None) -> View:
        """The value in another layout; None asks for contiguous rows."""
        source = self.desc(view)
        if desc is None:
            target = self.new(view.shape, view.dtype)
            wanted = self.desc(target)
        else:
            target, wanted = self.new_blocked(desc, view.dtype), desc
        self.primitive("reorder", reorder(source, wanted), {"src": view, "dst": target})
        self.reorders += 1
        return target

    def desc(self, view: View) -> MemDesc:
        """The library's descriptor of a view."""
        if view.desc is not None:
            return view.desc
        return MemDesc(view.shape, view.dtype.numpy, strides=view.strides)

    # ------------------------------------------------------------------ running through the graph

    def run(self) -> Lowered:
        """Lower everything."""
        for i, name in enumerate(self.concrete.inputs):
            dtype, shape = self.concrete.types[name]
            buffer = self._buffer(math.prod(shape) * dtype.itemsize, Place.INPUT, i)
            self.places[name] = View(buffer, dtype, shape, contiguous_strides(shape))
        self.groups = group_steps(self.concrete)
        self._find_readers()
        for group in self.groups:
            self.nodes = tuple(s.node.name for s in group.steps)
            self._group(group)
        outputs = [self._output_view(name, i) for i, name in enumerate(self.concrete.outputs)]
        return Lowered(self.steps, self.buffers, self.concrete.inputs, outputs, self.reorders, self.choices.cases)

    def _find_readers(self) -> None:
        """The only group that reads a value, or None when several do or it is an output."""
        for group in self.groups:
            for name in {n for s in group.steps for n in s.node.inputs if n}:
                self.reader[name] = None if name in self.reader else group
        for name in self.concrete.outputs:
            self.reader[name] = None

    def _group(self, group: Group) -> None:
        from pyflame_rt.backends.cpu.lower.channel_scales import takes_scales

        if group.loop:
            if takes_scales(self, group):
                self.scaled[group.steps[0].node.outputs[0]] = group
            else:
                self._loop(group)
            return
        if group.attention is not None:
            self._attention(group, group.attention)
            return
        (step,) = group.steps
        reader = self.reader.get(step.node.outputs[0])
        if step.op in PRODUCTS and reader is not None and reader.loop:
            self.deferred[step.node.outputs[0]] = step
            return
        self.compute(step)

    def _loop(self, group: Group) -> None:
        """One kernel for a loop, together with a product that was held back for it where one does both."""
        from pyflame_rt.backends.cpu.lower.loop_nests import lower_loop

        read = {n for s in group.steps for n in s.node.inputs}
        held = [name for name in self.deferred if name in read]
        if not any(self._with_product(group, name) for name in reversed(held)):
            lower_loop(self, group)

    def _with_product(self, group: Group, name: str) -> bool:
        step = self.deferred[name]
        for lower, when in _fused.get(step.op, ()):
            if when is not None and not when(self, step, group):
                continue
            kept = self.mark()
            del self.deferred[name]
            self.nodes = (step.node.name, *self.nodes)
            try:
                self.places[group.steps[-1].node.outputs[0]] = lower(self, step, group)
            except (*REFUSALS, *FAULTS) as error:
                self.refusal(error)
                self.back_to(kept)
                if isinstance(error, BetterApart):
                    return False
            else:
                return True
        return False

    def _attention(self, group: Group, found: Attention) -> None:
        """One kernel for an attention; its steps one by one where that does not fit."""
        from pyflame_rt.backends.cpu.lower.attention import lower_attention

        kept = self.mark()
        try:
            lower_attention(self, found)
        except (*REFUSALS, *FAULTS) as error:
            self.refusal(error)
            self.back_to(kept)
            for step in group.steps:
                self.nodes = (step.node.name,)
                self._group(single(step, self.concrete))

    def compute_deferred(self, name: str) -> None:
        """Lower a product that was held back for its reader, on its own after all."""
        step, nodes = self.deferred.pop(name), self.nodes
        self.nodes = (step.node.name,)
        self.compute(step)
        self.nodes = nodes

    def _compute_scaled(self, name: str) -> None:
        """Scale an image after all."""
        group, nodes = self.scaled.pop(name), self.nodes
        self.nodes = tuple(s.node.name for s in group.steps)
        self._loop(group)
        self.nodes = nodes

    def compute(self, step: SpecializedNode) -> None:
        """Lower one step, natively where a kernel fits."""
        called = _call_of(step)
        reason = "" if called is not None else refusal_of(self.concrete, step)
        if not reason:
            kept = self.mark()
            try:
                (called or _lowerings[step.op])(self, step)
                self._as_inferred(step)
            except (*REFUSALS, *FAULTS) as error:
                # What a kernel cannot express, the reference runs, and says so if it cannot either.
                self.back_to(kept)
                reason = self.refusal(error)
            else:
                return
        self.host(step, reason)

    def left_to_library(self, step: SpecializedNode) -> NotNative:
        """The refusal of a product for which the library was measured to be faster, whatever follows it."""
        self.library.add(step.node.outputs[0])
        return NotNative("the library was measured to be faster")

    def refusal(self, error: Exception) -> str:
        """Why the nodes at hand take another way; faults of the engine are raised or logged."""
        if isinstance(error, REFUSALS):
            return str(error)
        return note_fault(f"node {self.nodes[0]!r}" if self.nodes else "a step", error, checked=self.choices.checked)

    def _as_inferred(self, step: SpecializedNode) -> None:
        """A kernel whose result has another shape than its operator's rule says is not used."""
        for name in step.node.outputs:
            view = self.places.get(name) if name else None
            if view is not None and view.shape != self.concrete.shape(name):
                raise NotNative(f"its kernel gives {list(view.shape)} for {list(self.concrete.shape(name))}")

    def mark(self) -> Mark:
        """Where things stand, for an attempt that may fail."""
        return Mark(len(self.steps), dict(self.places), dict(self.deferred), dict(self.scaled), self.nodes)

    def back_to(self, mark: Mark) -> None:
        """Undo an attempt: its steps, where it put values, and the products it computed on the way."""
        del self.steps[mark.steps :]
        self.places, self.deferred, self.scaled, self.nodes = mark.places, mark.deferred, mark.scaled, mark.nodes

    def host(self, step: SpecializedNode, reason: str) -> None:
        """Run a step by the reference; a composite is noted, because its parts may do better."""
        if step.op.composite:
            self.refused.add(self.concrete.form(step.node, step.op, step.attributes))
        inputs = [self.strided(n) if n else None for n in step.node.inputs]
        outputs: list[View | None] = []
        for name in step.node.outputs:
            if name and name in self.concrete.types:
                self.places[name] = self.new(self.concrete.shape(name), self.concrete.dtype(name))
                outputs.append(self.places[name])
            else:
                outputs.append(None)
        self.steps.append(HostStep(step.node.full_name, step, inputs, outputs, reason, self.nodes))

    def _output_view(self, name: str, index: int) -> View:
        """Hand an output out in the caller's buffer, written there directly where possible."""
        view = self.strided(name)
        whole = (
            view.is_contiguous and view.offset == 0 and view.buffer.nbytes == max(view.count * view.dtype.itemsize, 1)
        )
        if view.buffer.place is Place.ARENA and whole:
            view.buffer.place, view.buffer.index = Place.OUTPUT, index
            return view
        buffer = self._buffer(view.count * view.dtype.itemsize, Place.OUTPUT, index)
        target = View(buffer, view.dtype, view.shape, contiguous_strides(view.shape))
        return self.copied(view, target)


def _call_of(step: SpecializedNode) -> LoweringFn | None:
    """How an operator is lowered whose kernel is an address."""
    call = step.op.native
    if call is None:
        return None
    from pyflame_rt.backends.cpu.lower.native_calls import lower_native_call

    return lambda low, given: lower_native_call(low, given, call)
