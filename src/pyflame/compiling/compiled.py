"""pf.compile: trace a function once, then replay what it did."""

from __future__ import annotations

import functools
from sys import getrefcount
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame import watching
from pyflame.autograd.function import with_gradient
from pyflame.compiling.conditions import Conditions
from pyflame.compiling.standing import Fronted, fronted
from pyflame.compiling.steady import MISS, Steady, is_running, steady_of
from pyflame.compiling.tracer import Tracer
from pyflame.compiling.trees import flat_positions, flatten, unflatten
from pyflame.compiling.turns import turns
from pyflame.compiling.watched import extra
from pyflame.device import chosen
from pyflame.dtypes import to_dtype
from pyflame.evaluation import Work, evaluate, graphs, make_plan, to_graph
from pyflame.lazy import Val, leaf, modes, spec_of
from pyflame.lazy import tracing as _tracing
from pyflame.ops.core import Handle, wrap
from pyflame.spans import recording
from pyflame.watching import labels_of
from pyflame_rt.backends.cpu.llvm.calls import front

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyflame_rt.graph import Graph

__all__ = ["CompiledFunction", "compile_function"]

# Different kinds of call of one function; beyond, the one traced first is forgotten.
MAX_TRACES = 64
# So many of them are tried before it is found out which kind of call it is.
MAX_READY = 4
# So many replays must have written all in place before it is taken for granted; more when that was wrong often, soon.
SETTLED, MOST_SETTLED, MANY_DROPS, MANY_RUNS = 2, 1024, 4, 16
# References to a value that only its tensor has: the tensor's, the local name's and that of the count itself.
_SOLE_OWNER = 3


class _Trace:
    """One trace, ready to be replayed.

    A leaf of the graph is fed from an argument, a tensor that was captured, a generator, a number that is read
    again, or it stays what it was; outputs become results, new values of tensors, or gradients.
    """

    def __init__(
        self, tracer: Tracer, inputs: list[Val], structure: Any, results: list[Val], work: Work, graph: Graph
    ) -> None:
        self.structure = structure
        self.conditions = Conditions(tracer)
        self.plan = make_plan(graph, native=True)
        self.labels = labels_of(work, tracer.spans, scoped=True)
        self.work = work
        places = {id(v): i for i, v in enumerate(work.leaves)}
        self.fixed: list[Any] = [v.array for v in work.leaves]
        self.arguments = [(places[id(v)], i) for i, v in enumerate(inputs) if id(v) in places]
        held = {id(old): lf for lf, old in tracer.grads.values() if old is not None}
        found = [(places[i], h) for i, (_, h) in tracer.captured.items() if i in places]
        self.handles = [(place, h) for place, h in found if id(h) not in held]
        self.gradients = [(place, held[id(h)]) for place, h in found if id(h) in held]
        self.had_gradient = [(lf, old is not None) for lf, old in tracer.grads.values() if id(lf) not in tracer.cleared]
        self.keys = [(places[i], g) for i, (_, g) in tracer.keys.items() if i in places]
        self.scalars = [(places[i], r, v.spec.dtype.numpy) for i, (v, r) in tracer.scalars.items() if i in places]
        for i, *_ in (*self.arguments, *self.handles, *self.gradients, *self.keys, *self.scalars):
            self.fixed[i] = None
        outs = {id(v): i for i, v in enumerate(work.outputs)}
        self.results = [self._source(v, outs, inputs) for v in results]
        self.needs_grad = [v.needs_grad for v in results]
        self.spent = [v.spent for v in results]
        self.specs = [v.spec for v in work.outputs]
        self.state = [
            (h if at is None else at, outs[id(h._value)], h._value.needs_grad and h._value.leaf is None)
            for h, _, at in tracer.rebound.values()
            if id(h._value) in outs
        ]
        written = [lf for lf, old in tracer.grads.values() if lf.grad is not old or id(lf) in tracer.cleared]
        self.grads = [(lf, self._gradient(lf, outs)) for lf in written]
        read = {id(lf): place for place, lf in self.gradients}
        written_to = [(read.get(id(lf), -1), lf, i) for lf, i in self.grads if isinstance(i, int)]
        self.sums = [(place, lf, i) for place, lf, i in written_to if place >= 0]  # new gradients added to old ones
        self.renewed = [(place, lf, i) for place, lf, i in written_to if place < 0]
        self.absent = {id(lf) for lf, had in self.had_gradient if not had}
        self.donors = self._donors()
        self.differentiable = any(n and not s for n, s in zip(self.needs_grad, self.spent, strict=True))
        # Only the executable is needed from now on, unless gradients may be asked for.
        self.work = work if self.differentiable else None
        self.roots = results if self.differentiable else []
        # How it is called: set by whoever keeps it.
        self.key: tuple[Any, ...] = ()
        self.positions: tuple[list[int], list[tuple[int, int]]] | None = None
        self.steady: Steady | None = None
        self._settled = self._drops = 0

    def settle(self, whole: bool, tensors: list[Any]) -> None:
        """After a replay: when this one and those before wrote all in place, the next takes that for granted."""
        self._settled = self._settled + 1 if whole else 0
        patience = SETTLED if self._drops < MANY_DROPS else min(SETTLED << (self._drops - MANY_DROPS), MOST_SETTLED)
        if self._settled >= patience:
            self.steady, self._settled = steady_of(self, tensors), 0

    def unsettle(self) -> None:
        """Somebody else holds or changed a tensor: the next replays go the long way, more of them each time."""
        steady = self.steady
        if steady is not None:
            self._drops = 0 if steady.runs > MANY_RUNS else self._drops + 1
            steady.give_up()
            self.steady, self._settled = None, 0

    def _donors(self) -> list[tuple[int, Any, int]]:
        """Leaves whose memory their own new value may take: (leaf, tensor, output); the plan is told of them."""
        donate = getattr(self.plan.executable, "donate", None)
        if donate is None:
            return []
        targets = {id(h): i for h, i, spent in self.state if isinstance(h, Handle) and not spent}
        found = [(place, h, targets[id(h)]) for place, h in self.handles if id(h) in targets]
        donate([(self.plan.inputs[place], out) for place, _, out in (*found, *self.sums)])
        return found

    def spare(self, arrays: list[Any]) -> tuple[dict[int, Any], bool]:
        """Arrays that outputs may be written into: old values that only this step still holds; and whether all are."""
        allowed = getattr(self.plan.executable, "donated", {})
        given: dict[int, Any] = {}
        wanted = 0
        if is_running():
            return given, False  # another thread may be writing into them
        for place, handle, out in self.donors:
            if out in allowed:
                wanted += 1
                value = handle._value
                if value.spec is self.specs[out] and _counts(value, arrays, place) == _alone():
                    given[out] = arrays[place]
        for place, lf, out in (*self.sums, *self.renewed):
            old = lf.grad
            if old is None:
                wanted += id(lf) not in self.absent
            elif place < 0 or out in allowed:
                wanted += 1
                if getrefcount(old) == _SOLE_OWNER + extra(old) and _is_plain(old._value, self.specs[out]):
                    value = old._value
                    if _counts(value, [value.array] if place < 0 else arrays, max(place, 0)) == _alone():
                        given[out] = value.array
        return given, len(given) == wanted

    def forget_gradients(self) -> None:
        """After a run that failed: gradients may have been written over."""
        for _, lf, _ in self.renewed:
            lf.grad = None

    @staticmethod
    def _source(v: Val, outs: dict[int, int], inputs: list[Val]) -> tuple[str, Any]:
        """Where a result comes from: an output, an argument handed on, or something that was there before."""
        if id(v) in outs:
            return "output", outs[id(v)]
        for i, given in enumerate(inputs):
            if given is v:
                return "argument", i
        return "outside", v

    @staticmethod
    def _gradient(lf: Any, outs: dict[int, int]) -> Any:
        """Which output is the new gradient; a tensor from outside stands for itself, None for none."""
        return None if lf.grad is None else outs.get(id(lf.grad._value), lf.grad)

    def fits(self) -> bool:
        """Whether modules, settings and tensors are as they were, and the same gradients are there."""
        return self.conditions.hold() and all((lf.grad is not None) is had for lf, had in self.had_gradient)

    def feeds(self, tensors: list[Any]) -> list[Any]:
        """An array for each leaf."""
        arrays = self.fixed.copy()
        for place, i in self.arguments:
            arrays[place] = tensors[i]
        for place, handle in self.handles:
            array = handle._value.array
            arrays[place] = _contents(handle) if array is None else array
        for place, lf in self.gradients:
            arrays[place] = _contents(lf.grad)
        for place, generator in self.keys:
            arrays[place] = generator.next_key()
        for place, read, dtype in self.scalars:
            arrays[place] = np.array(read(), dtype)
        return arrays

    def bind(self, arrays: list[Any], tensors: list[Any], given: dict[int, Any]) -> None:
        """Give tensors and gradients that the function wrote their new values; those of given arrays have them."""
        for target, i, spent in self.state:
            handle = tensors[target] if isinstance(target, int) else target
            if not isinstance(handle, Handle):
                continue  # an array that the caller passed is not changed
            old = handle._value
            sole = getrefcount(old) == _SOLE_OWNER + extra(old)
            if sole and old.spec is self.specs[i] and not spent and old.array is not None:
                old.array = arrays[i]  # no graph and no other tensor can see the value: it is replaced on the spot
                continue
            made = Val(self.specs[i], array=arrays[i])
            made.needs_grad, made.leaf, made.layout = old.needs_grad or spent, old.leaf, old.layout
            made.spent = spent
            made.handles = 1
            old.handles -= 1
            handle._value = made
        for lf, i in self.grads:
            if i not in given or lf.grad is None or arrays[i] is not given[i]:
                lf.grad = wrap(Val(self.specs[i], array=arrays[i])) if isinstance(i, int) else i


def _is_plain(value: Val, spec: Any) -> bool:
    """Whether a value is of that type and nothing more than a gradient."""
    return value.spec is spec and value.leaf is None and not value.needs_grad and value.layout is None


def _counts(value: Any, arrays: list[Any], place: int) -> tuple[int, int, int]:
    """References to a value of the caller's, to its array, which a feed holds too, and to the memory below it.

    Those of replays that watch them are not among these; there is always memory below.
    """
    array = arrays[place]
    if array is None or array is not value.array or not array.flags.writeable:
        return -1, -1, -1
    base = array.base
    below = _alone()[2] if base is None else getrefcount(base) - extra(base)
    return getrefcount(value) - extra(value), getrefcount(array) - extra(array), below


@functools.cache
def _alone() -> tuple[int, int, int]:
    """What :func:`_counts` gives where nobody else refers to any; interpreters count differently."""
    owner, value = _Holder(), _Holder()
    owner.array = value
    value.array = np.ndarray((1,), np.float32, np.empty(4, np.uint8))
    return _counts(value, [value.array], 0)


class _Holder:
    """Something that has an array."""

    __slots__ = ("array",)
    array: Any


def _contents(handle: Any) -> Any:
    evaluate([handle._value])
    return handle._value.array


class CompiledFunction(Fronted):
    """A function that is traced at its first call and replayed after that.

    A further trace is made for tensors of other shapes or element types, other values of arguments that are not
    tensors, another gradient mode, or modules in another mode. Python code other than operations on tensors runs
    at trace time only.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self._traces: dict[Any, list[_Trace]] = {}
        self._ready: tuple[Steady, ...] = ()  # replays that need not be looked for
        functools.update_wrapper(self, function)

    @property
    def trace_count(self) -> int:
        """How many traces there are."""
        return sum(map(len, self._traces.values()))

    def latest_graph(self) -> Graph:
        """What the newest trace computes, gradients and updates included, as a graph of `pyflame_rt`."""
        if not self._traces:
            raise RuntimeError(f"{getattr(self, '__name__', 'the function')} was not called yet, so it has no trace")
        return list(self._traces.values())[-1][-1].plan.graph

    def __runtime_graph__(self, arguments: tuple[Any, ...]) -> Any:
        """What the function computes as a graph of `pyflame_rt`, for arguments like these."""
        from pyflame.exporting import evaluation_graph

        return evaluation_graph(self.function, arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy has no traces yet."""
        return CompiledFunction, (self.function,)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self._long(*args, **kwargs)

    def _long(self, *args: Any, **kwargs: Any) -> Any:
        """The call, where it takes Python: machine code calls this for what it cannot replay."""
        if self._ready and not kwargs and not _tracing:
            grad = modes.grad
            for steady in self._ready:
                if steady.grad is grad:
                    result = steady.run(args)
                    if result is not MISS:
                        return result
        if modes.tracer is not None:
            return self.function(*args, **kwargs)  # inside another compiled function
        return self._call(args, kwargs)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Find the trace for such a call, or make it, and replay it."""
        tensors: list[Any] = []
        structure = flatten((args, kwargs) if kwargs else args, tensors)
        arrays, parts = [], [structure, modes.grad, chosen.provider, chosen.target]
        for t in tensors:
            if isinstance(t, Handle):
                v = t._value
                if v.array is None:
                    evaluate([v])
                arrays.append(v.array)
                parts.append((v.spec, v.needs_grad))
            else:
                arrays.append(np.ascontiguousarray(t).reshape(t.shape))
                parts.append((t.dtype, t.shape))
        key = tuple(parts)
        with turns.replaying():
            trace = self._fitting(key)
            if trace is not None:
                return self._replay(trace, arrays, tensors, args)
        with turns.tracing():
            trace = self._fitting(key)  # another thread may have made it meanwhile
            if trace is None:
                trace = self._trace(key, structure, tensors, arrays, bool(kwargs))
            return self._replay(trace, arrays, tensors, args)

    def _fitting(self, key: Any) -> _Trace | None:
        return next((trace for trace in self._traces.get(key, ()) if trace.fits()), None)

    def _replay(self, trace: _Trace, arrays: list[Any], tensors: list[Any], args: tuple[Any, ...]) -> Any:
        before = trace.steady
        result = _replay(trace, arrays, tensors, args)
        if trace.steady is not before:
            self._make_ready()
        return result

    def _trace(self, key: Any, structure: Any, tensors: list[Any], arrays: list[Any], named: bool) -> _Trace:
        trace = _record(self.function, structure, tensors, arrays, named)
        trace.key, trace.positions = key, None if named else flat_positions(structure)
        if self.trace_count >= MAX_TRACES:
            self._traces.pop(next(iter(self._traces)))
            self._make_ready()
        self._traces.setdefault(key, []).append(trace)
        return trace

    def _make_ready(self) -> None:
        """Note the traces whose replays can be tried at once."""
        found = [trace.steady for traces in list(self._traces.values()) for trace in traces]
        self._ready = tuple([steady for steady in found if steady is not None and steady.flat][-MAX_READY:])
        ready, calls = self._ready, [steady.standing.call for steady in self._ready if steady.standing is not None]
        if calls or type(self) is not CompiledFunction:
            self._front = front(calls, ready)
            self.__class__ = fronted(CompiledFunction)


def _placeholders(tracer: Tracer, tensors: list[Any], arrays: list[Any]) -> list[Val]:
    made = []
    for t, array in zip(tensors, arrays, strict=True):
        if isinstance(t, Handle):
            v = Val(t._value.spec)
            v.needs_grad, v.layout = t._value.needs_grad, t._value.layout
            v.leaf = t._value.leaf
        else:
            v = Val(spec_of(to_dtype(array.dtype), array.shape))
        tracer.placeholders[id(v)] = len(made)
        made.append(v)
    return made


def _record(function: Any, structure: Any, tensors: list[Any], arrays: list[Any], named: bool) -> _Trace:
    """Run the function on placeholders; everything it changed is put back as it was."""
    tracer = Tracer()
    inputs = _placeholders(tracer, tensors, arrays)
    modes.tracer = tracer
    _tracing.append(1)
    try:
        with recording(tracer.spans):
            result = _call(function, structure, inputs, named)
    except BaseException:
        modes.tracer = None
        _restore(tracer)
        raise
    finally:
        modes.tracer = None
        _tracing.pop()
    outs: list[Any] = []
    out_structure = flatten(result, outs)
    values = [t._value if isinstance(t, Handle) else leaf(t, to_dtype(t.dtype)) for t in outs]
    evaluate([v for v, _ in tracer.captured.values() if v.array is None])
    for v, array in zip(inputs, arrays, strict=True):
        v.array = array
    written = [h._value for h, _, _ in tracer.rebound.values()]
    grads = [lf.grad._value for lf, _ in tracer.grads.values() if lf.grad is not None]
    with graphs:  # other threads may be evaluating values that are part of it
        work = Work([v for v in (*values, *written, *grads) if v.array is None], exact=True)
        graph = to_graph(work.exprs, work.leaves, work.outputs, name="compiled", spans=tracer.spans)
    trace = _Trace(tracer, inputs, out_structure, values, work, graph)
    _restore(tracer)
    return trace


def _call(function: Any, structure: Any, inputs: list[Val], named: bool) -> Any:
    arguments = unflatten(structure, iter([wrap(v) for v in inputs]))
    args, kwargs = arguments if named else (arguments, {})
    return function(*args, **kwargs)


def _restore(tracer: Tracer) -> None:
    """Undo what the trace wrote: the replay that follows does it for real."""
    for handle, old, _ in tracer.rebound.values():
        new = handle._value
        handle._value = old
        old.handles += 1
        new.handles -= 1
    for lf, old in tracer.grads.values():
        lf.grad = old


def _outputs(trace: _Trace, feeds: list[Any], given: dict[int, Any] | None) -> list[Any]:
    if watching.active is not None:
        return watching.active.run(trace.plan, feeds, trace.labels, "compiled step")
    try:
        return trace.plan.run(feeds, given)
    except Exception:
        if given:
            trace.forget_gradients()
        raise


def _replay(trace: _Trace, arrays: list[Any], tensors: list[Any], args: tuple[Any, ...]) -> Any:
    steady = trace.steady
    if steady is not None and watching.active is None:
        steady.agree()
        result = steady.run(args if steady.flat else tuple(tensors))
        if result is not MISS:
            return result
        if not is_running():
            trace.unsettle()
    feeds = trace.feeds(arrays)
    current = _current(trace, feeds, tensors) if trace.differentiable and modes.grad else []
    given, whole = ({}, False) if current or watching.active is not None else trace.spare(feeds)
    outputs = _outputs(trace, feeds, given)
    trace.bind(outputs, tensors, given)
    del feeds, given
    made: list[Any] = []
    for (kind, i), needs, spent in zip(trace.results, trace.needs_grad, trace.spent, strict=True):
        if kind == "output":
            v = Val(trace.specs[i], array=outputs[i])
            v.needs_grad, v.spent = needs and spent, spent
            made.append(wrap(v))
        elif kind == "argument":
            given = tensors[i]
            made.append(given if isinstance(given, Handle) else wrap(leaf(arrays[i], to_dtype(given.dtype))))
        else:
            made.append(wrap(i))
    del outputs
    if current:
        made = _with_gradient(trace, made, current)
    if trace.steady is None:
        trace.settle(whole, tensors)
    return unflatten(trace.structure, iter(made))


def _current(trace: _Trace, feeds: list[Any], tensors: list[Any]) -> list[Val]:
    """The value each leaf of the graph has in this call."""
    assert trace.work is not None
    values = [Val(v.spec, array=array) for v, array in zip(trace.work.leaves, feeds, strict=True)]
    for place, i in trace.arguments:
        if isinstance(tensors[i], Handle):
            values[place] = tensors[i]._value
    for place, handle in trace.handles:
        values[place] = handle._value
    for place, lf in trace.gradients:
        assert lf.grad is not None
        values[place] = lf.grad._value
    return values


def _with_gradient(trace: _Trace, made: list[Any], current: list[Val]) -> list[Any]:
    """Results through which gradients flow: by a copy of the graph, computed again for them."""
    from pyflame.autograd.recompute import gradients_of_copy

    work = trace.work
    assert work is not None
    chosen = [i for i, (n, s) in enumerate(zip(trace.needs_grad, trace.spent, strict=True)) if n and not s]

    def rule(*grads: Any) -> list[Any]:
        return gradients_of_copy(work.exprs, [trace.roots[i] for i in chosen], work.leaves, current, grads)

    flowing = with_gradient("compiled function", [made[i] for i in chosen], [wrap(v) for v in current], rule)
    for i, t in zip(chosen, flowing, strict=True):
        made[i] = t
    return made


def compile_function(function: Callable[..., Any] | None = None) -> Any:
    """Trace a function once and replay what it did: one native call instead of Python.

    What the function writes (parameters, optimizer state, statistics, gradients) becomes part of the replay. Works as
    a decorator too.

    Args:
        function: takes and returns tensors, or nested lists, tuples and dicts of them. Arguments that are not
            tensors are conditions: another value makes another trace.

    Example:
        >>> import pyflame as pf
        >>> @pf.compile
        ... def f(x):
        ...     return pf.relu(x) * 2
        >>> f(pf.tensor([1.0, -1.0])), f.trace_count
        (tensor([2., 0.]), 1)
    """
    return CompiledFunction if function is None else CompiledFunction(function)
