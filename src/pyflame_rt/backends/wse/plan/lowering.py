"""From primitives to kernels: where each value lies, what is fused, what the host has to move."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.backends.wse.emit.scalar_csl import function_of
from pyflame_rt.backends.wse.plan.decompositions import open_steps
from pyflame_rt.backends.wse.plan.expression_trees import Use, indexed, measure
from pyflame_rt.backends.wse.plan.kept_weights import kept_lists, known, zeros_note
from pyflame_rt.backends.wse.plan.kernels import (
    INTEGERS,
    App,
    Lit,
    MapKernel,
    MatMul,
    Move,
    Output,
    PeBuffer,
    Phase,
    Put,
    ReduceKernel,
    Slide,
    Spread,
    Take,
    WaferPlan,
)
from pyflame_rt.backends.wse.plan.op_support import OPENED, fold_of
from pyflame_rt.backends.wse.plan.primitives import PrimitiveCall
from pyflame_rt.backends.wse.plan.products import settled
from pyflame_rt.backends.wse.plan.redistribution import CoordinateView, view_of
from pyflame_rt.backends.wse.plan.sliding_windows import SLIDING, can_slide, sides_of
from pyflame_rt.backends.wse.plan.tiling import Grid, Tiling
from pyflame_rt.backends.wse.plan.views import host_view, reshaped
from pyflame_rt.graph import DType
from pyflame_rt.graph.errors import DTypeMismatchError, InputError, UnsupportedOperatorError
from pyflame_rt.ops.onnx.arithmetic import SumTo
from pyflame_rt.ops.onnx.cast import Cast
from pyflame_rt.ops.onnx.conv import Conv
from pyflame_rt.ops.onnx.matmul import MatMul as MatMulOp
from pyflame_rt.ops.onnx.maxpool import MaxPoolValues
from pyflame_rt.ops.onnx.shape import Expand, Reshape, Squeeze, Unsqueeze
from pyflame_rt.ops.onnx.slicing import Concat
from wsesim import watch

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyflame_rt.backends.wse.plan.expression_trees import Tree
    from pyflame_rt.backends.wse.plan.kernels import HostExpr, Kernel
    from pyflame_rt.backends.wse.plan.primitives import Flat

__all__ = ["lower", "opened", "sliding"]

_DTYPES = {
    DType.Float32: "f32", DType.Float16: "f16", DType.Bool: "u16", DType.Int16: "i16", DType.Int32: "i32",
    DType.Int64: "i32",
}  # fmt: skip
_HELD = "the wafer's programs hold float32, float16, bool, int16, int32 and int64 (as 32 bits)"
_MAX_OPERANDS, _MAX_NODES = 6, 24
# Every PE sees every element that moves on the fabric: larger tensors go through the host.
_SPREAD_MOST = 1 << 16


def lower(
    flat: Flat, grid: Grid, *, optimize: bool = True, spread: bool | None = None, products: str = "broadcast"
) -> WaferPlan:
    """Kernels, phases and outputs for a grid; memory is planned afterwards.

    Args:
        flat: the graph.
        grid: the PEs.
        optimize: fuse elementwise operators, and move data on the fabric.
        spread: whether data moves on the fabric, where it is otherwise left to the host; None as ``optimize`` says.
        products: how matrices are multiplied, as in the options.
    """
    return _Lowering(opened(flat), grid, optimize, optimize if spread is None else spread, products).run()


def opened(flat: Flat) -> Flat:
    """The graph with only such steps as have kernels or are done by the host."""
    return open_steps(flat, OPENED)


def sliding(flat: Flat, grid: Grid) -> Flat:
    """A copy in which windows that need only the edges of neighbours on this grid slide over tiles."""
    return open_steps(flat.copy(), {**OPENED, **{op: _or_slide(op, grid) for op in SLIDING}})


def _or_slide(op: str, grid: Grid) -> Callable[[Flat, PrimitiveCall], list[PrimitiveCall]]:
    def rule(flat: Flat, step: PrimitiveCall) -> list[PrimitiveCall]:
        if not can_slide(flat, step, grid):
            return OPENED[op](flat, step)
        kind = "conv" if op == Conv.name else "max" if op == MaxPoolValues.full_name else step.attributes["kind"]
        inputs = tuple(n for n in step.inputs if n) if op == Conv.name else step.inputs[:1]
        attributes = {"kind": kind, "sides": sides_of(flat, step, grid)}
        return [PrimitiveCall("wse::Slide", inputs, step.output, attributes, step.origin)]

    return rule


class _Lowering:
    def __init__(self, flat: Flat, grid: Grid, optimize: bool, spread: bool, products: str) -> None:
        self.flat = flat
        self.products = products
        self.spread = spread
        self.grid = grid
        self.optimize = optimize
        self.flat_mesh = _is_flat(flat)
        self.uses = Counter(n for s in flat.steps for n in s.inputs)
        self.uses.update(value for _, value in flat.outputs)
        self.pending: dict[str, tuple[Tree, str]] = {}
        self.places: dict[str, list[PeBuffer]] = {}
        self.views: dict[str, PrimitiveCall] = {}
        self.phases = [Phase()]
        self.made_in: dict[PeBuffer, int] = {}
        self.buffers: list[PeBuffer] = []
        self.used_inputs: dict[str, None] = {}
        self.numbers = itertools.count()
        self.computed: set[str] = set()  # values that PEs made, not the host
        self.lists: dict[str, np.ndarray[Any, Any]] = {}
        self.notes: dict[str, str] = {}

    def run(self) -> WaferPlan:
        for step in self.flat.steps:
            watch.poll()
            self._check_type(step)
            if function_of(step.op) or step.op == Expand.name:
                self._elementwise(step)
            elif fold_of(step.op):
                self._reduce(step)
            elif step.op == SumTo.full_name:
                self._sum_to(step)
            elif step.op == MatMulOp.name:
                self._matmul(step)
            elif step.op == "wse::Slide":
                self._slide(step)
            elif step.op == "wse::Take":
                self._take(step)
            elif step.op == "wse::Put":
                self._put(step)
            else:
                self._view(step)
        outputs = [self._output(name, value) for name, value in self.flat.outputs]
        constants = {n: self.flat.constants[n] for n in self.used_inputs if n in self.flat.constants}
        inputs = {n: (self.flat.dtype(n).label, self.flat.shape(n)) for n in self.flat.inputs}
        phases = [p for p in self.phases if p.moves or p.kernels] or [Phase()]
        settled(phases, outputs, self.products)
        return WaferPlan(self.grid, phases, outputs, self.buffers, inputs, constants | self.lists, notes=self.notes)

    def _check_type(self, step: PrimitiveCall) -> None:
        dtype, shape = self.flat.types[step.output]
        if dtype not in _DTYPES:
            raise DTypeMismatchError(f"node {step.origin!r}: {step.op} gives {dtype.label}; {_HELD}")
        if math.prod(shape) == 0:
            raise InputError(f"node {step.origin!r}: a tensor of shape {list(shape)} has no elements to place")

    def _output(self, name: str, value: str) -> Output:
        if value in self.pending:
            self._materialise(value)
        expr, reads = self._host(value)
        dtype, shape = self.flat.types[value]
        return Output(name, expr, dtype.label, shape, tuple(reads))

    # --- places ----------------------------------------------------------------------------------------------------

    def _dtype(self, name: str) -> str:
        dtype = self.flat.dtype(name)
        if dtype not in _DTYPES:
            raise DTypeMismatchError(f"{name!r} is {dtype.label}; {_HELD}")
        return _DTYPES[dtype]

    def _usual(self, shape: tuple[int, ...]) -> tuple[str, ...]:
        """The axes of a value nobody has placed: the last dimension along x, the one before along y."""
        axes = [""] * len(shape)
        if self.flat_mesh and shape and shape[-1] != 1:
            axes[-1] = "yx"
        elif not self.flat_mesh and len(shape) > 2:
            down, across = self._widest(shape)
            axes[down], axes[across] = "y" if shape[down] != 1 else "", "x" if shape[across] != 1 else ""
        elif not self.flat_mesh:
            for dim, axis in ((-1, "x"), (-2, "y")):
                if len(shape) >= -dim and shape[dim] != 1:
                    axes[dim] = axis
        return tuple(axes)

    def _new(
        self, name: str, axes: tuple[str, ...], *, shape: tuple[int, ...] | None = None, dtype: str = ""
    ) -> PeBuffer:
        tiling = Tiling(self.flat.shape(name) if shape is None else shape, axes, self.grid)
        made = PeBuffer(f"b{next(self.numbers)}", dtype or self._dtype(name), tiling, name)
        self.buffers.append(made)
        return made

    def _widest(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """The two dimensions to cut that leave the smallest tile; the last ones where that is the same."""
        rows, cols = self.grid.rows, self.grid.cols

        def gain(pair: tuple[int, int]) -> tuple[float, int]:
            tall, wide = shape[pair[0]], shape[pair[1]]
            return tall / -(-tall // rows) * (wide / -(-wide // cols)), sum(pair)

        return max(itertools.combinations(range(len(shape)), 2), key=gain)

    def _placed(self, name: str) -> PeBuffer | None:
        """Where a value lies, once it is computed; None for what only the host has."""
        if name in self.pending:
            self._materialise(name)
        found = self.places.get(name)
        return found[0] if found else None

    def _require(self, name: str, axes: tuple[str, ...]) -> PeBuffer:
        """The value's tiles with these axes; the host brings them when they lie otherwise."""
        self._placed(name)
        shape = self.flat.shape(name)
        wanted = Tiling(shape, tuple("" if s == 1 else a for s, a in zip(shape, axes, strict=True)), self.grid)
        for buffer in self.places.get(name, ()):
            if buffer.tiling.same_tiles(wanted):
                return buffer
        if self.spread and (found := self._spread(name, wanted)) is not None:
            return found
        expr, reads = self._host(name)
        if any(self.made_in.get(b.root, -1) == len(self.phases) - 1 for b in reads):
            self.phases.append(Phase())
        made = self._new(name, wanted.axes)
        made.pinned = True
        self.phases[-1].moves.append(Move(made, expr, tuple(reads)))
        self.places.setdefault(name, []).append(made)
        return made

    # --- on the fabric ---------------------------------------------------------------------------------------------

    def _spread(self, name: str, wanted: Tiling) -> PeBuffer | None:
        """The value's tiles sent by the PEs that have it; None when the host has it, or when it is too much."""
        parts = self._parts(name)
        for source, _ in parts:
            self._placed(source)
        if not any(source in self.computed for source, _ in parts):
            return None
        if any(len(v) and v[-1] is None for _, v in parts) or math.prod(wanted.shape) > _SPREAD_MOST:
            return None
        if len(parts) > 1 and self.flat.dtype(name) == DType.Bool:
            return None
        made = self._new(name, wanted.axes)
        for number, (source, views) in enumerate(parts):
            placed = self._placed(source) or self._require(source, self._usual(self.flat.shape(source)))
            known = tuple(v for v in views if v is not None)
            fill = next((v.fill for v in known if v.fill is not None), None)
            self._emit(name, Spread(self._origin(name), made, placed, known, None if number else fill))
        del self.places[name][1 : len(parts)]
        return made

    def _origin(self, name: str) -> str:
        step = self.views.get(name)
        return name if step is None else step.origin

    def _parts(self, name: str) -> list[tuple[str, tuple[CoordinateView | None, ...]]]:
        """The values that a value is a view of, with the changes of coordinates; None for one that cannot be made."""
        step = self.views.get(name)
        if step is None or (self._placed(name) is not None and name in self.computed):
            return [(name, ())]
        shape = self.flat.shape(name)
        if step.op == Concat.name:
            found: list[tuple[str, tuple[CoordinateView | None, ...]]] = []
            axis, first = step.attributes["axis"] % len(shape), 0
            for source in step.inputs:
                shift = CoordinateView("shift", shape, tuple(first if d == axis else 0 for d in range(len(shape))))
                found += [(n, (*views, shift)) for n, views in self._parts(source)]
                first += self.flat.shape(source)[axis]
            return found
        view = view_of(step, self.flat)
        inner = self._parts(step.inputs[0])
        if len(inner) > 1 and (view is None or view.fill is not None):
            view = None
        filled = any(v is not None and v.fill is not None for _, views in inner for v in views)
        if view is not None and view.fill is not None and filled:  # one value for all that is left out
            view = None
        return [(n, (*views, view)) if None not in views else (n, views) for n, views in inner]

    def _host(self, name: str) -> tuple[HostExpr, list[PeBuffer]]:
        """How the host gets at a value."""
        buffer = self._placed(name)
        given = name in self.flat.inputs or name in self.flat.constants or name in self.views
        if buffer is not None and not given:
            buffer.root.pinned = True
            return ["read", buffer.name], [buffer]
        if name in self.views:
            step = self.views[name]
            count = len(step.inputs) if step.op == Concat.name else 1
            found = [self._host(n) for n in step.inputs[:count]]
            return host_view(step, self.flat, [e for e, _ in found]), [b for _, reads in found for b in reads]
        self.used_inputs[name] = None
        return ["input", name], []

    def _emit(self, name: str, kernel: Kernel) -> None:
        self.computed.add(name)
        self.phases[-1].kernels.append(kernel)
        self.made_in[kernel.out.root] = len(self.phases) - 1
        self.places.setdefault(name, []).insert(0, kernel.out)

    def _share(self, name: str, of: PeBuffer, tiling: Tiling) -> PeBuffer:
        """The same memory under another name and shape."""
        made = PeBuffer(f"b{next(self.numbers)}", of.dtype, tiling, name, shares=of)
        self.buffers.append(made)
        self.places.setdefault(name, []).insert(0, made)
        if of.value in self.computed:
            self.computed.add(name)
        return made

    # --- elementwise -----------------------------------------------------------------------------------------------

    def _elementwise(self, step: PrimitiveCall) -> None:
        out = step.output
        names = step.inputs[:1] if step.op == Expand.name else step.inputs
        args = tuple(self._tree(n, self.flat.shape(out)) for n in names)
        attributes = tuple(sorted((k, v) for k, v in step.attributes.items() if isinstance(v, (int, float, str))))
        function = function_of(step.op)
        tree: Tree = App(function, args, self._dtype(out), attributes) if function else args[0]  # type: ignore[arg-type]
        used, size = measure(tree)
        if len(used) > _MAX_OPERANDS or size > _MAX_NODES:
            tree = App(function, tuple(self._plain(n) for n in names), self._dtype(out), attributes)  # type: ignore[arg-type]
        if self._narrowed(step):  # a kernel of its own, whose results are looked at
            tree = App(function, tuple(self._plain(n) for n in names), self._dtype(out), attributes)  # type: ignore[arg-type]
        self.pending[out] = (tree, step.origin)
        if not self.optimize or self._narrowed(step):
            self._materialise(out)

    def _narrowed(self, step: PrimitiveCall) -> bool:
        """Whether floats become int64, of which PEs hold 32 bits."""
        if step.op != Cast.name or self.flat.dtype(step.output) != DType.Int64:
            return False
        return self._dtype(step.inputs[0]) in ("f16", "f32") and step.inputs[0] not in self.flat.constants

    def _tree(self, name: str, shape: tuple[int, ...]) -> Tree:
        """An operand: opened when nobody else reads it and it has the result's shape."""
        inner = self.pending.get(name)
        if inner is not None and self.uses[name] == 1 and self.flat.shape(name) == shape:
            return inner[0]
        return self._plain(name)

    def _plain(self, name: str) -> Tree:
        known = self.flat.constants.get(name)
        if known is not None and known.size == 1:
            return Lit(self._number(name, known.item()), self._dtype(name))
        return Use(name, self._dtype(name))

    def _number(self, name: str, value: float) -> float:
        if self._dtype(name) in INTEGERS and not -(2**31) <= value < 2**31:
            raise InputError(f"{name!r} is {value}, which is more than 32 bits")
        return value

    def _materialise(self, name: str) -> None:
        """Make a kernel of a pending expression."""
        tree, origin = self.pending.pop(name)
        shape = self.flat.shape(name)
        used, _ = measure(tree)
        axes = self._agree(list(used), shape)
        operands = tuple(self._require(n, _aligned(axes, len(self.flat.shape(n)))) for n in used)
        expr = indexed(tree, {n: i for i, n in enumerate(used)})
        self._emit(name, MapKernel(origin, self._new(name, axes), operands, expr))

    def _agree(self, names: list[str], shape: tuple[int, ...]) -> tuple[str, ...]:
        """The axes of a result: those of its operands on the wafer, the largest first, else the usual ones."""
        placed = [b for n in names if (b := self._placed(n)) is not None]
        axes: list[str | None] = [None] * len(shape)
        for buffer in sorted(placed, key=lambda b: -math.prod(b.tiling.shape)):
            shift = len(shape) - len(buffer.tiling.shape)
            for d, (size, axis) in enumerate(zip(buffer.tiling.shape, buffer.tiling.axes, strict=True)):
                if axes[d + shift] is None and size != 1 and not _taken(axes, axis):
                    axes[d + shift] = axis
        for d, axis in enumerate(self._usual(shape)):
            if axes[d] is None:
                axes[d] = "" if shape[d] == 1 or _taken(axes, axis) else axis
        return tuple(a or "" for a in axes)

    # --- reductions ------------------------------------------------------------------------------------------------

    def _reduce(self, step: PrimitiveCall) -> None:
        source, out = step.inputs[0], step.output
        shape = self.flat.shape(source)
        named = step.inputs[1] if len(step.inputs) > 1 else ""
        if named and named not in self.flat.constants:
            raise UnsupportedOperatorError(f"node {step.origin!r}: {step.op} needs axes known when compiling")
        given = [] if not named else [int(a) % len(shape) for a in np.ravel(self.flat.constants[named])]
        if not given and step.attributes.get("noop_with_empty_axes"):
            self.pending[out] = (self._plain(source), step.origin)
            return
        dims = tuple(sorted(set(given))) or tuple(range(len(shape)))
        fold = fold_of(step.op)
        mean = math.prod(shape[d] for d in dims) if fold == "mean" else 1
        self._reduction(step, "sum" if fold == "mean" else fold, dims, mean)

    def _sum_to(self, step: PrimitiveCall) -> None:
        shape, want = self.flat.shape(step.inputs[0]), self.flat.shape(step.output)
        full = (1,) * (len(shape) - len(want)) + want
        dims = tuple(d for d, (a, b) in enumerate(zip(shape, full, strict=True)) if a != b)
        if dims:
            self._reduction(step, "sum", dims, 1)
        else:
            self._view(step)

    def _reduction(self, step: PrimitiveCall, kind: str, dims: tuple[int, ...], divide: int) -> None:
        source, out = step.inputs[0], step.output
        shape = self.flat.shape(source)
        placed = self._placed(source)
        axes = placed.tiling.axes if placed is not None else self._usual(shape)
        if step.attributes.get("rows_only"):
            axes = ("yx", "")
        if kind == "prod" or self._dtype(out) in INTEGERS:  # PEs add and compare floats that they send, no more
            axes = tuple("" if d in dims else a for d, a in enumerate(axes))
        kept = tuple(1 if d in dims else s for d, s in enumerate(shape))
        buffer = self._require(source, axes)
        made = self._new(out, tuple("" if s == 1 else a for s, a in zip(kept, axes, strict=True)), shape=kept)
        self._emit(out, ReduceKernel(step.origin, made, buffer, kind, dims, divide))  # type: ignore[arg-type]
        if kept != self.flat.shape(out):
            tiling = reshaped(made.tiling, self.flat.shape(out))
            assert tiling is not None
            self._share(out, made, tiling)

    # --- products --------------------------------------------------------------------------------------------------

    def _matmul(self, step: PrimitiveCall) -> None:
        left, right = step.inputs
        a = self._matrix(left, (1, *self.flat.shape(left)))
        b = self._matrix(right, (*self.flat.shape(right), 1))
        sa, sb = self.flat.shape(a), self.flat.shape(b)
        batch = np.broadcast_shapes(sa[:-2], sb[:-2])
        for shape in (sa, sb):
            if math.prod(shape[:-2]) not in (1, math.prod(batch)):
                raise UnsupportedOperatorError(
                    f"node {step.origin!r}: MatMul of {list(sa)} and {list(sb)} broadcasts part of its leading "
                    "dimensions; expand the smaller operand first"
                )
        if self._dtype(left) not in ("f32", "f16") or self._dtype(left) != self._dtype(right):
            raise DTypeMismatchError(f"node {step.origin!r}: MatMul needs two operands of one float type")
        shape = (*batch, sa[-2], sb[-1])
        how, axes_a, axes_b, axes = self._product_axes(a, b, shape)
        one = self._require(a, axes_a)
        repeat = math.prod(batch)
        steps = [int(math.prod(s[:-2]) == repeat and repeat > 1) for s in (sa, sb)]
        tiles = PeBuffer("", self._dtype(b), Tiling(sb, axes_b, self.grid), b)
        made = self._new(step.output, axes, shape=shape)
        kernel = MatMul(step.origin, made, one, tiles, how, repeat, *steps)  # type: ignore[arg-type]
        self._emit(step.output, self._with_weights(kernel))
        if shape != self.flat.shape(step.output):
            tiling = reshaped(made.tiling, self.flat.shape(step.output))
            assert tiling is not None
            self._share(step.output, made, tiling)

    def _with_weights(self, kernel: MatMul) -> MatMul:
        """The product with its right operand placed: as tiles, or as lists of what was not pruned."""
        name, array = kernel.b.value, known(kernel.b.value, self.flat, self.views)
        found = kept_lists(kernel, array, self.products) if self.optimize and array is not None else None
        if found is not None and found.note:
            self.notes[kernel.label] = found.note
        if found is None or found.kept is None:
            return replace(kernel, b=self._require(name, kernel.b.tiling.axes))
        lists = found.lists
        made = self._new(f"{name} kept by {found.kept.by}", ("y", "x", ""), shape=lists.shape, dtype="u32")
        made.pinned = True
        self.lists[made.value] = lists
        self.phases[-1].moves.append(Move(made, ["input", made.value]))
        return replace(kernel, b=made, how="shift", kept=found.kept)

    def _matrix(self, name: str, shape: tuple[int, ...]) -> str:
        """The operand as a matrix: vectors become a row or a column."""
        if len(self.flat.shape(name)) > 1:
            return name
        made = f"{name}.{'row' if shape[0] == 1 else 'column'}"
        if made not in self.flat.types:
            self.flat.types[made] = (self.flat.dtype(name), shape)
            self._view(PrimitiveCall(Reshape.name, (name,), made, {}, name))
        return made

    def _product_axes(
        self, a: str, b: str, shape: tuple[int, ...]
    ) -> tuple[str, tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
        """How to multiply, and the axes of both operands and the result."""
        m, n = shape[-2:]
        front_a, front_b, front = [("",) * (len(s) - 2) for s in (self.flat.shape(a), self.flat.shape(b), shape)]
        if m != 1 and n != 1:
            return "summa", (*front_a, "y", "x"), (*front_b, "y", "x"), (*front, "y", "x")
        placed = [buffer.tiling.axes[d] for name, d in ((a, -1), (b, -2)) if (buffer := self._placed(name)) is not None]
        inner = next((axis for axis in placed if axis in ("x", "y")), "y" if m == 1 else "x")
        outer = "x" if inner == "y" else "y"
        rows, cols = ("" if m == 1 else outer), ("" if n == 1 else outer)
        return "reduce", (*front_a, rows, inner), (*front_b, inner, cols), (*front, rows, cols)

    # --- windows ---------------------------------------------------------------------------------------------------

    def _slide(self, step: PrimitiveCall) -> None:
        source, *more = step.inputs
        axes = (*[""] * (len(self.flat.shape(source)) - 2), "y", "x")
        placed = self._require(source, axes)
        given = [self._require(n, ("",) * len(self.flat.shape(n))) for n in more]
        weight, bias = [*given, None, None][:2]
        out = self.flat.shape(step.output)
        made = self._new(step.output, tuple("" if n == 1 else a for n, a in zip(out, axes, strict=True)))
        kind, sides = step.attributes["kind"], step.attributes["sides"]
        array = known(more[0], self.flat, self.views) if more else None
        if array is not None and (said := zeros_note(array)):
            self.notes[step.origin] = (
                f"{said}, stored and multiplied all the same: every PE slides all of them over its tile"
            )
        self._emit(step.output, Slide(step.origin, made, placed, weight, bias, kind, sides))

    # --- by number -------------------------------------------------------------------------------------------------

    def _take(self, step: PrimitiveCall) -> None:
        source, index = step.inputs
        axis, each = step.attributes["axis"], step.attributes["each"]
        shape, picked, out = self.flat.shape(source), self.flat.shape(index), self.flat.shape(step.output)
        placed = self._placed(source)
        axes = list(placed.tiling.axes if placed is not None else self._usual(shape))
        if self._dtype(source) not in ("f32", "f16"):  # what the PEs add up are floats
            axes[axis] = ""
        if each:  # pieces must begin at the same places
            axes = [a if d == axis or shape[d] == picked[d] else "" for d, a in enumerate(axes)]
            result = tuple("" if d == axis or out[d] == 1 else a for d, a in enumerate(axes))
            numbers = result
        else:
            numbers = ("",) * len(picked)
            result = (*axes[:axis], *numbers, *axes[axis + 1 :])
        one, two = self._require(source, tuple(axes)), self._require(index, numbers)
        made = self._new(step.output, tuple("" if s == 1 else a for s, a in zip(out, result, strict=True)))
        self._emit(step.output, Take(step.origin, made, one, two, axis, each))

    def _put(self, step: PrimitiveCall) -> None:
        data, index, updates = step.inputs
        axis, each = step.attributes["axis"], step.attributes["each"]
        kind = step.attributes["reduction"]
        if self._dtype(data) == "u16" and kind != "none":
            raise DTypeMismatchError(f"node {step.origin!r}: truth values are put, not combined by {kind!r}")
        shape, picked = self.flat.shape(data), self.flat.shape(index)
        placed = self._placed(data)
        axes = list(placed.tiling.axes if placed is not None else self._usual(shape))
        if each:
            axes = [a if d == axis or shape[d] == picked[d] else "" for d, a in enumerate(axes)]
            news = tuple("" if d == axis else a for d, a in enumerate(axes))
            numbers = news
        else:
            numbers = ("",) * len(picked)
            news = (*axes[:axis], *numbers, *axes[axis + 1 :])
        whole = self._require(data, tuple(axes))
        two, three = self._require(index, numbers), self._require(updates, news)
        made = self._new(step.output, whole.tiling.axes)
        self._emit(step.output, Put(step.origin, made, whole, two, three, axis, each, kind))

    # --- views -----------------------------------------------------------------------------------------------------

    def _view(self, step: PrimitiveCall) -> None:
        source = step.inputs[0]
        placed = self._placed(source)
        if placed is not None and step.op in (Reshape.name, Squeeze.name, Unsqueeze.name, SumTo.full_name):
            tiling = reshaped(placed.tiling, self.flat.shape(step.output))
            if tiling is not None:
                self._share(step.output, placed, tiling)
                if source in self.views or source in self.flat.inputs:
                    self.views[step.output] = step
                return
        self.views[step.output] = step


def _is_flat(flat: Flat) -> bool:
    """Whether there are only vectors, which then go over all PEs row by row."""
    ranks = [len(flat.shape(n)) for s in flat.steps for n in (*s.inputs[:1], s.output) if n]
    return max(ranks, default=0) <= 1 and not any(s.op == MatMulOp.name for s in flat.steps)


def _aligned(axes: tuple[str, ...], rank: int) -> tuple[str, ...]:
    return axes[len(axes) - rank :]


def _taken(axes: list[str | None], axis: str) -> bool:
    return any(a and set(a) & set(axis) for a in axes)
