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

from pyflame_rt.backends.cpu.faults import FAULTS, note_fault
from pyflame_rt.backends.cpu.graph.cost_model import views_of
from pyflame_rt.backends.cpu.lower.lowering import DnnStep, HostStep, KernelStep, Lowered, NotNative
from pyflame_rt.backends.cpu.memory.buffer_views import Buffer, Place, View
from pyflame_rt.backends.cpu.run.plan import Plan, lower_graph, plan_of
from pyflame_rt.graph.errors import PyFlameRTError
from pyflame_rt.ops.core.evaluate import Context, run_op
from pyflame_rt.opt.specialized_graph import ShapesUnknown
from pyflame_rt.opt.traced_sizes import MARK, BoundError, Numbers, Trace, is_traced

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyflame_rt.graph import DType, Graph
    from pyflame_rt.opt.specialized_graph import SpecializedGraph, SpecializedNode

    Types = Mapping[str, tuple[DType, tuple[int, ...]]]
    AnyStep = KernelStep | DnnStep | HostStep

__all__ = ["PLANNED_FIRST", "Open", "PlanTemplate", "Templates", "contradict", "open_axes", "trace_plan"]

# Sets of sizes that are planned before one is traced: many models only ever meet two.
PLANNED_FIRST = 2
# Templates of one graph, for lengths that are planned differently; and attempts that may fail.
MAX_TEMPLATES = 6
MAX_FAILURES = 2
LEAST = 2  # sizes of 0 and 1 are planned in ways of their own

log = logging.getLogger("pyflame_rt")


class Open(NamedTuple):
    """Axes of inputs that share one symbol: the name of the input and the number of the axis."""

    places: tuple[tuple[str, int], ...]


class PlanTemplate:
    """A traced plan; ``types`` are those it was traced for."""

    def __init__(
        self, symbols: Sequence[Open], types: Types, trace: Trace, concrete: SpecializedGraph, lowered: Lowered
    ) -> None:
        self.symbols, self.types, self.trace, self.lowered = symbols, types, trace, lowered
        self.steps, self.derived, self.sizes = concrete.steps, concrete.derived, concrete.sizes
        self.value_types = concrete.types
        read = {n for step in self.derived for n in step.node.inputs}
        self.constants = {n: array for n, array in concrete.constants.items() if n in read}
        views = [*lowered.outputs, *(v for step in lowered.steps for v in views_of(step))]
        self.shared = {id(v): v for v in views if _is_fixed(v)}
        self.forms: dict[Any, tuple[View, list[int]]] = {}  # views of one form, and who they are
        for view in {id(v): v for v in views if id(v) not in self.shared}.values():
            self.forms.setdefault(_form(view), (view, []))[1].append(id(view))
        self.context = Context.of("numpy")

    def fits(self, types: Types) -> list[int] | None:
        """The numbers of the symbols for these inputs; None where they would be planned in another way."""
        rest = {name: list(shape) for name, (_, shape) in types.items()}
        values: list[int] = []
        for symbol in self.symbols:
            sizes = {rest[name][axis] for name, axis in symbol.places}
            if len(sizes) != 1 or min(sizes) < LEAST:
                return None
            values += sizes
            for name, axis in symbol.places:
                rest[name][axis] = self.types[name][1][axis]
        if any(tuple(rest[name]) != shape for name, (_, shape) in self.types.items()):
            return None
        return values if self.trace.holds(values) else None

    def plan(self, values: Sequence[int], threads: int) -> Plan | None:
        """The plan for these numbers; None where a part of it cannot be made so."""
        numbers = self.trace.numbers(values)
        arrays = self._arrays(numbers)
        if arrays is None:
            return None
        maker = _Maker(numbers, arrays, self.shared)
        for view, same in self.forms.values():
            maker.forms.update(dict.fromkeys(same, (numbers.all(view.shape), numbers.all(view.strides))))
        plan = plan_of(maker.lowered(self.lowered), threads)
        plan.recall = lambda: (self.steps, {n: (d, numbers.all(s)) for n, (d, s) in self.value_types.items()})
        return plan

    def _arrays(self, numbers: Numbers) -> dict[str, np.ndarray[Any, Any]] | None:
        """Values that depend on sizes and constants alone."""
        arrays: dict[str, Any] = {}
        for name, known in self.sizes.items():
            contents = numbers.all(known.ravel().tolist())
            arrays[name] = np.array(contents, self.value_types[name][0].numpy).reshape(known.shape)
        for step in self.derived:
            inputs = [arrays[n] if n in arrays else self.constants[n] if n else None for n in step.node.inputs]
            results = run_op(step.op, inputs, dict(step.attributes), self.context)
            for name, result in zip(step.node.outputs, results, strict=False):
                dtype, shape = self.value_types[name] if name else (None, ())
                if dtype is not None and (result.dtype != dtype.numpy or result.shape != numbers.all(shape)):
                    return None
                arrays[name] = result
        return arrays


class _Maker:
    """Copies what was lowered, with numbers in the place of sizes."""

    def __init__(
        self, numbers: Numbers, arrays: Mapping[str, np.ndarray[Any, Any]], shared: Mapping[int, View]
    ) -> None:
        self.of, self.all = numbers.of, numbers.all
        self.arrays = arrays
        self.buffers: dict[int, Buffer] = {}
        self.views = dict(shared)
        self.forms: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {}  # of views: shape and strides

    def lowered(self, given: Lowered) -> Lowered:
        """The whole plan."""
        buffers = [self._buffer(b) for b in given.buffers]
        steps = [self._step(step) for step in given.steps]
        outputs = [self._view(view) for view in given.outputs]
        return Lowered(steps, buffers, given.inputs, outputs, given.reorders, given.cases)

    def _buffer(self, b: Buffer) -> Buffer:
        made = b
        if b.place is not Place.CONSTANT or b.source:
            array = np.asarray(self.arrays[b.source], order="C") if b.source else None
            made = Buffer(self.of(b.nbytes), b.place, b.index, array, b.first, b.last)
        self.buffers[id(b)] = made
        return made

    def _view(self, view: View) -> View:
        made = self.views.get(id(view))
        if made is None:
            buffer, (shape, strides) = self.buffers[id(view.buffer)], self.forms[id(view)]
            made = self.views[id(view)] = View(buffer, view.dtype, shape, strides, self.of(view.offset), view.desc)
        return made

    def _step(self, step: AnyStep) -> AnyStep:
        of = self.of
        match step:
            case KernelStep():
                views, params = [self._view(v) for v in step.views], list(self.all(step.params))
                return replace(step, views=views, params=params, rows=of(step.rows), grain=of(step.grain))
            case DnnStep():
                raise TypeError("a primitive of the library is made for one size")
            case HostStep():
                inputs, outputs = (
                    [None if v is None else self._view(v) for v in side] for side in (step.inputs, step.outputs)
                )
                return HostStep(step.label, step.step, inputs, outputs, step.reason, step.nodes)


def _form(view: View) -> Any:
    """Equal for views of equal shape and strides."""
    return tuple([(s.number,) if is_traced(s) else s for s in (*view.shape, *view.strides)])


def _is_fixed(view: View) -> bool:
    """Whether a view is the same for every length: it shows a weight."""
    if view.buffer.place is not Place.CONSTANT or view.buffer.source:
        return False
    return not any(map(is_traced, (*view.shape, *view.strides, view.offset)))


# ---------------------------------------------------------------------- tracing


def trace_plan(
    graph: Graph,
    types: Types,
    symbols: Sequence[Open],
    threads: int,
    wanted: Sequence[str],
    folded: dict[str, list[Any]] | None = None,
) -> PlanTemplate | None:
    """Plan a graph with the sizes of some axes traced; None where it cannot be done, or would serve no other size."""
    trace = Trace()
    shapes: dict[str, list[Any]] = {name: list(shape) for name, (_, shape) in types.items()}
    for symbol in symbols:
        first, at = symbol.places[0]
        size = trace.symbol(types[first][1][at])
        for name, axis in symbol.places:
            shapes[name][axis] = size
    feeds = {name: (dtype, tuple(shapes[name])) for name, (dtype, _) in types.items()}
    try:
        concrete, lowered = lower_graph(graph, feeds, threads, wanted, None, folded, set())
    except (NotNative, PyFlameRTError, ShapesUnknown, BoundError) as error:
        log.debug("graph %r is planned for each length: %s", graph.name, error)
        return None
    except FAULTS as error:
        note_fault(f"graph {graph.name!r}, planned for all lengths", error)
        return None
    finally:
        trace.closed = True
    if lowered is None:
        return None
    primitives = [step for step in lowered.steps if isinstance(step, DnnStep)]
    for step in primitives:
        step.primitive.close()
    if primitives or any(map(_is_bound, lowered.steps)) or _hold_sizes(concrete.derived):
        log.debug("graph %r is planned for each length: some steps are made for one", graph.name)
        return None
    return PlanTemplate(symbols, types, trace, concrete, lowered)


def _is_bound(step: AnyStep) -> bool:
    """Whether a size went into something that is not made anew."""
    if isinstance(step, KernelStep):
        return MARK in step.kernel.key
    return isinstance(step, HostStep) and _hold_sizes([step.step])


def _hold_sizes(steps: Iterable[SpecializedNode]) -> bool:
    return any(MARK in repr(dict(step.attributes)) for step in steps)


def contradict(a: Lowered, b: Lowered) -> bool:
    """Whether two plans of the same kernels have other numbers in them."""
    if len(a.steps) != len(b.steps):
        return False
    pairs = [(x, y) for x, y in zip(a.steps, b.steps, strict=True) if isinstance(x, KernelStep)]
    if any(not isinstance(y, KernelStep) or x.kernel.key != y.kernel.key for x, y in pairs):
        return False
    return any(_numbers_in(x) != _numbers_in(y) for x, y in pairs)


def _numbers_in(step: Any) -> Any:
    return step.params, step.rows, step.grain, [(v.offset, v.buffer.nbytes, v.buffer.place) for v in step.views]


class Templates:
    """The templates of one graph for inputs of the same names, element types and ranks."""

    def __init__(self) -> None:
        self.made: list[PlanTemplate] = []
        self.failures = 0
        self.lock = threading.Lock()

    def find(self, types: Types, threads: int) -> Plan | None:
        """A plan for these inputs, where a template fits."""
        for template in self.made:
            values = template.fits(types)
            plan = None if values is None else template.plan(values, threads)
            if plan is not None:
                return plan
        return None

    @property
    def wanted(self) -> bool:
        """Whether another trace may be worth its time."""
        return len(self.made) < MAX_TEMPLATES and self.failures < MAX_FAILURES

    def add(self, template: PlanTemplate | None, known: Sequence[tuple[Types, Plan]]) -> None:
        """Keep a template unless it says something else about sizes that were planned one by one."""
        if template is None or any(_disagrees(template, types, plan) for types, plan in known):
            self.failures += 1
        else:
            self.made.append(template)


def _disagrees(template: PlanTemplate, types: Types, known: Plan) -> bool:
    values = template.fits(types)
    plan = None if values is None else template.plan(values, known.threads)
    if plan is None or not contradict(plan.lowered, known.lowered):
        return False
    log.warning("a traced plan differs from the one it stands for; lengths are planned one by one")
    return True


def open_axes(graph: Graph, types: Types, seen: Sequence[Types]) -> list[Open]:
    """Axes whose sizes differ from those seen before; axes to whose sizes the graph gives one name go together."""
    declared = {info.name: info.shape for info in graph.inputs}
    by_name: dict[Any, list[tuple[str, int]]] = {}
    for name, (_, shape) in types.items():
        names = declared.get(name)
        for axis, size in enumerate(shape):
            if {one[name][1][axis] for one in seen} <= {size}:
                continue
            if size < LEAST:
                return []
            label = None if names is None or len(names) != len(shape) else names[axis]
            by_name.setdefault((name, axis) if label is None else (label, size), []).append((name, axis))
    return [Open(tuple(places)) for places in by_name.values()]
