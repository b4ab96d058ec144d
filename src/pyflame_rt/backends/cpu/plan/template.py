"""Plans for ever new lengths: one is traced, the others are that one with other numbers in it.

When a graph meets a third set of input sizes, it is planned once more with sizes that remember how they were worked out
(`sizes`). What comes out is a template: for inputs that would have been planned the same way, every loop bound, stride
and buffer is worked out by arithmetic, and places in the arena are given out anew.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pyflame_rt.backends.cpu.onednn.api import OneDnnError
from pyflame_rt.backends.cpu.onednn.recipes import make_again
from pyflame_rt.backends.cpu.plan.concrete import Concrete, ShapesUnknown
from pyflame_rt.backends.cpu.plan.lower import DnnStep, HostStep, KernelStep, Lowered, NotNative
from pyflame_rt.backends.cpu.plan.plan import Plan, lower_graph, plan_of
from pyflame_rt.backends.cpu.plan.sizes import MARK, Numbers, Size, Trace, is_traced
from pyflame_rt.backends.cpu.plan.views import Buffer, Place, View
from pyflame_rt.backends.cpu.threads import use_threads
from pyflame_rt.graph.errors import PyFlameRTError
from pyflame_rt.ops.evaluate import Context, run_op

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyflame_rt.backends.cpu.plan.concrete import Step
    from pyflame_rt.graph import DType, Graph

    Types = Mapping[str, tuple[DType, tuple[int, ...]]]
    AnyStep = KernelStep | DnnStep | HostStep

__all__ = ["Template", "Templates", "trace_plan"]

# Sets of sizes that are planned before one is traced: many models only ever meet two.
PLANNED_FIRST = 2
# Templates of one graph, for lengths that are planned differently; and attempts that may fail.
MAX_TEMPLATES = 6
MAX_FAILURES = 2
LEAST = 2  # sizes of 0 and 1 are planned in ways of their own

_FAULTS = (LookupError, TypeError, ValueError, AttributeError, AssertionError, ArithmeticError, NotNative)
_FAULTS += (PyFlameRTError, ShapesUnknown, OneDnnError)
log = logging.getLogger("pyflame_rt")


class Open(NamedTuple):
    """Axes of inputs that share one symbol."""

    places: tuple[tuple[str, int], ...]


class Template:
    """A traced plan."""

    def __init__(self, symbols: Sequence[Open], fixed: Types, trace: Trace, concrete: Concrete, lowered: Lowered) -> None:
        self.symbols = symbols
        self.fixed = fixed  # the types it was traced for; open axes aside, others must be equal
        self.trace = trace
        self.concrete = concrete
        self.lowered = lowered
        self.context = Context.of("numpy")

    def fits(self, types: Types) -> list[int] | None:
        """The numbers of the symbols for these inputs; None where they would be planned in another way."""
        rest = {name: list(shape) for name, (_, shape) in types.items()}
        values = []
        for symbol in self.symbols:
            sizes = {rest[name][axis] for name, axis in symbol.places}
            if len(sizes) != 1 or min(sizes) < LEAST:
                return None
            values += sizes
            for name, axis in symbol.places:
                rest[name][axis] = self.fixed[name][1][axis]
        if any(tuple(rest[name]) != shape for name, (_, shape) in self.fixed.items()):
            return None
        return values if self.trace.holds(values) else None

    def plan(self, values: Sequence[int], threads: int) -> Plan | None:
        """The plan for these numbers; None where a part of it cannot be made so."""
        numbers = self.trace.numbers(values)
        arrays = self._arrays(numbers)
        if arrays is None:
            return None
        maker = _Maker(numbers, arrays)
        try:
            with use_threads(threads):
                lowered = maker.lowered(self.lowered)
        except (OneDnnError, _Changed):
            maker.close()
            return None
        plan = plan_of(lowered, threads)
        plan.recall = lambda: (self.concrete.steps, _types_for(self.concrete, numbers))
        return plan

    def _arrays(self, numbers: Numbers) -> dict[str, np.ndarray[Any, Any]] | None:
        """Values that depend on sizes and constants alone."""
        arrays: dict[str, Any] = {}
        types, constants = self.concrete.types, self.concrete.constants
        for name, known in self.concrete.sizes.items():
            numbers_of = [numbers.of(v) for v in known.ravel().tolist()]
            arrays[name] = np.array(numbers_of, types[name][0].numpy).reshape(known.shape)
        for step in self.concrete.derived:
            inputs = [arrays[n] if n in arrays else constants[n] if n else None for n in step.node.inputs]
            results = run_op(step.op, inputs, dict(step.attributes), self.context)
            for name, result in zip(step.node.outputs, results, strict=False):
                if not name:
                    continue
                dtype, shape = types[name]
                if result.dtype != dtype.numpy or result.shape != tuple(map(numbers.of, shape)):
                    return None
                arrays[name] = result
        return arrays


class _Changed(Exception):
    """The library would do a step in another way for these sizes."""


class _Maker:
    """Copies what was lowered, with numbers in the place of sizes."""

    def __init__(self, numbers: Numbers, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
        self.of = numbers.of
        self.arrays = arrays
        self.buffers: dict[int, Buffer] = {}
        self.views: dict[int, View] = {}
        self.primitives: list[Any] = []

    def lowered(self, given: Lowered) -> Lowered:
        """The whole plan."""
        buffers = [self._buffer(b) for b in given.buffers]
        steps = [self._step(step) for step in given.steps]
        outputs = [self._view(view) for view in given.outputs]
        return Lowered(steps, buffers, given.inputs, outputs, given.reorders, given.cases)

    def close(self) -> None:
        """Free what was made."""
        for primitive in self.primitives:
            primitive.close()

    def _buffer(self, b: Buffer) -> Buffer:
        if b.place is Place.CONSTANT and not b.source:
            self.buffers[id(b)] = b
            return b
        array = np.asarray(self.arrays[b.source], order="C") if b.source else None
        made = Buffer(self.of(b.nbytes), b.place, b.index, array, b.first, b.last)
        self.buffers[id(b)] = made
        return made

    def _view(self, view: View) -> View:
        made = self.views.get(id(view))
        if made is None:
            of, buffer = self.of, self.buffers[id(view.buffer)]
            shape, strides = tuple(map(of, view.shape)), tuple(map(of, view.strides))
            made = self.views[id(view)] = View(buffer, view.dtype, shape, strides, of(view.offset), view.desc)
        return made

    def _step(self, step: AnyStep) -> AnyStep:
        of = self.of
        match step:
            case KernelStep():
                views, params = [self._view(v) for v in step.views], [of(p) for p in step.params]
                return KernelStep(step.label, step.kernel, views, params, of(step.rows), of(step.grain), step.nodes)
            case DnnStep():
                return self._primitive(step)
            case HostStep():
                sides = ([None if v is None else self._view(v) for v in side] for side in (step.inputs, step.outputs))
                return HostStep(step.label, step.step, *sides, step.reason, step.nodes)

    def _primitive(self, step: DnnStep) -> DnnStep:
        recipe = step.primitive.recipe
        if recipe is None:
            raise _Changed
        with use_threads(recipe.threads):
            made = make_again(recipe)
        self.primitives.append(made)
        scratch = None if step.scratch is None else self.buffers[id(step.scratch)]
        args = {name: self._view(view) for name, view in step.args.items()}
        return replace(step, primitive=made, args=args, scratch=scratch)


def _types_for(concrete: Concrete, numbers: Numbers) -> dict[str, tuple[DType, tuple[int, ...]]]:
    return {name: (dtype, tuple(map(numbers.of, shape))) for name, (dtype, shape) in concrete.types.items()}


# ---------------------------------------------------------------------- tracing


def trace_plan(
    graph: Graph,
    types: Types,
    symbols: Sequence[Open],
    threads: int,
    wanted: Sequence[str],
    folded: dict[str, list[Any]] | None = None,
) -> Template | None:
    """Plan a graph with the sizes of some axes traced; None where it cannot be done, or would serve no other size."""
    trace = Trace()
    shapes: dict[str, list[Any]] = {name: list(shape) for name, (_, shape) in types.items()}
    for symbol in symbols:
        name, axis = symbol.places[0]
        size = trace.symbol(types[name][1][axis])
        for name, axis in symbol.places:
            shapes[name][axis] = size
    feeds = {name: (dtype, tuple(shapes[name])) for name, (dtype, _) in types.items()}
    lowered = None
    try:
        concrete, lowered = lower_graph(graph, feeds, threads, wanted, None, folded, set())
        if lowered is not None and not trace.pins and not any(_is_bound(step) for step in _all_steps(lowered, concrete)):
            trace.closed = True
            return Template(symbols, types, trace, concrete, lowered)
        log.debug("graph %r is planned for each length: %d sizes had to be one number", graph.name, trace.pins)
    except _FAULTS as error:
        log.debug("graph %r is planned for each length: %s", graph.name, error)
    finally:
        if lowered is not None:
            _free(lowered)
    return None


def _free(lowered: Lowered) -> None:
    for step in lowered.steps:
        if isinstance(step, DnnStep):
            step.primitive.close()


def _all_steps(lowered: Lowered, concrete: Concrete) -> Iterator[AnyStep | Step]:
    yield from lowered.steps
    yield from concrete.derived


def _is_bound(step: AnyStep | Step) -> bool:
    """Whether a size went into something that is not made anew."""
    match step:
        case KernelStep(kernel=kernel):
            return MARK in kernel.key
        case DnnStep():
            return False
        case HostStep(step=inner):
            return MARK in repr(dict(inner.attributes))
        case _:
            return MARK in repr(dict(step.attributes))


class Templates:
    """The templates of one graph."""

    def __init__(self) -> None:
        self.made: list[Template] = []
        self.failures = 0
        self.lock = threading.Lock()

    def find(self, types: Types, threads: int) -> Plan | None:
        """A plan for these inputs from a template."""
        for template in self.made:
            values = template.fits(types)
            if values is not None:
                plan = template.plan(values, threads)
                if plan is not None:
                    return plan
        return None

    @property
    def wanted(self) -> bool:
        """Whether another trace may be worth its time."""
        return len(self.made) < MAX_TEMPLATES and self.failures < MAX_FAILURES

    def add(self, template: Template | None) -> None:
        """Keep a template, or note that none could be made."""
        if template is None:
            self.failures += 1
        else:
            self.made.append(template)


def open_axes(graph: Graph, types: Types, seen: Sequence[Types]) -> list[Open]:
    """Axes whose sizes differ from those that were seen, by the names the graph gives to their sizes."""
    names = {info.name: info.shape for info in graph.inputs}
    by_name: dict[Any, list[tuple[str, int]]] = {}
    for name, (_, shape) in types.items():
        for axis, size in enumerate(shape):
            others = {s[name][1][axis] for s in seen}
            if others <= {size}:
                continue
            declared = names.get(name)
            label = declared[axis] if declared is not None and len(declared) == len(shape) else None
            key = (name, axis) if label is None else (label, size)
            by_name.setdefault(key, []).append((name, axis))
    opened = [Open(tuple(places)) for places in by_name.values()]
    return [] if any(types[n][1][a] < LEAST for o in opened for n, a in o.places) else opened


__all__ += ["open_axes"]
_ = (Size, is_traced)
