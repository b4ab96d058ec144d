"""Trace a function: run it once on placeholders, and make of what it did a graph and what that is bound to."""

from __future__ import annotations

from dataclasses import dataclass
from types import CodeType
from typing import TYPE_CHECKING, Any

from pyflame.compiling.asking import nothing_asked
from pyflame.compiling.bindings import Binding, Gradient, Read, State
from pyflame.compiling.conditions import Conditions
from pyflame.compiling.effects import Effects, Write
from pyflame.compiling.guards import Guards
from pyflame.compiling.objects import Opener
from pyflame.compiling.places import Entries
from pyflame.compiling.reach import Reach
from pyflame.compiling.replay import Replay
from pyflame.compiling.tracer import TraceError, Tracer
from pyflame.compiling.trees import flatten, inside, plain_arguments, unflatten
from pyflame.dtypes import to_dtype
from pyflame.evaluation import Work, evaluate, graphs, make_plan
from pyflame.instrumentation import labels_of
from pyflame.lazy import Val, leaf, modes, spec_of
from pyflame.module_scopes import recording
from pyflame.ops.core import Handle, wrap
from pyflame.runtime_graph import to_graph
from pyflame.storage import alias_of, state_lock

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyflame.storage import Family
    from pyflame_rt.graph import Graph

__all__ = ["Trace", "trace_function"]


class Trace:
    """One trace, ready to be replayed.

    Attributes:
        guards: the state it was made for.
        conditions: settings of optimizers that must be as they were.
        replay: the graph with all it reads and writes.
        results: where each result comes from: ("output", number), ("argument", number), ("same", tensor) or
            ("outside", value). Tensors that are written into places come last.
        first: for each result the number of the first that is the same tensor.
        written: arguments that get new contents, by number, with the output those are.
        writes: what is written besides tensors.
        current: tensors that others have taken the place of, by id, with both.
    """

    def __init__(self, tracer: Tracer, inputs: list[Val], outcome: Outcome, work: Work, graph: Graph) -> None:
        self.structure, self.writes = outcome.structure, outcome.writes
        results = outcome.tensors
        self.conditions = Conditions(tracer)
        self.graph = graph
        values = [_value_of(t) for t in results]
        places = {id(v): i for i, v in enumerate(work.leaves)}
        outs = {id(v): i for i, v in enumerate(work.outputs)}
        self.specs = [v.spec for v in work.outputs]
        self.arguments = [(places[id(v)], i) for i, v in enumerate(inputs) if id(v) in places]
        self.written = [(at, outs[id(f.value)], _is_spent(f)) for f, _, at in tracer.written.values() if at is not None]
        bindings = _bindings(tracer, places, outs, self.specs)
        keys = [(places[i], g) for i, (_, g) in tracer.keys.items() if i in places]
        scalars = [(places[i], r, v.spec.dtype.numpy) for i, (v, r) in tracer.scalars.items() if i in places]
        fixed: list[Any] = [v.array for v in work.leaves]
        for i in (*(b.place for b in bindings), *(e[0] for e in (*self.arguments, *keys, *scalars))):
            if i >= 0:
                fixed[i] = None
        known = {id(seen()): seen() for _, seen in tracer.captured.values()} | outcome.known
        self.results = [_source(t, v, outs, inputs, known) for t, v in zip(results, values, strict=True)]
        numbers: dict[int, int] = {}
        self.first = [numbers.setdefault(id(t), i) for i, t in enumerate(results)]
        used = [out for kind, out in self.results if kind == "output"] + [out for _, out, _ in self.written]
        taken = set(used)
        for binding in bindings:
            if binding.out >= 0:
                binding.copied = binding.out in taken
                taken.add(binding.out)
        labels = labels_of(work, tracer.spans, scoped=True)
        self.replay = Replay(make_plan(graph, native=True), bindings, fixed, self.arguments, keys, scalars, labels)
        self.needs_grad = [v.needs_grad for v in values]
        self.spent = [v.spent for v in values]
        self.differentiable = any(n and not s for n, s in zip(self.needs_grad, self.spent, strict=True))
        if self.differentiable:
            _refuse_own_gradients(work, values)
        # Only the executable is needed from now on, unless gradients may be asked for.
        self.work = work if self.differentiable else None
        self.roots = values if self.differentiable else []
        self.guards: Guards
        self.current: dict[int, tuple[Handle, Handle]] = {}
        self._readers: dict[int, list[Read]] = {}
        self._read_storages: set[int] = set()
        self._written_storages: set[int] = set()

    def guard(self, reach: Reach, tracer: Tracer) -> None:
        """Count on the state there is: what the function could reach, and what came to light while it was traced."""
        reach = reach.without(_codes(read for _, read in tracer.scalars.values()))
        for module, _ in tracer.modules.values():
            reach.add(type(module).__name__, module)
        for optimizer in tracer.settings.values():
            reach.watch(Entries("state of the optimizer", optimizer.state, dotted=False))
            for slots in optimizer.state.values():
                reach.watch(Entries("state of the optimizer", slots, dotted=False))
        for lf, _ in tracer.grads.values():
            reach.watch(Entries("hooks of a tensor", lf.hooks, dotted=False))
        bindings = self.replay.bindings
        states = [b.family for b in bindings if isinstance(b, State)]
        self._written_storages = {id(family.storage) for family in states}
        self._read_storages = {id(b.source()) for b in bindings if isinstance(b, Read)}
        consulted = [(t, v.array) for t, v in tracer.consulted.values() if v.array is not None]
        fixed = {id(t) for t, _ in consulted}

        def may_move(tensor: Handle) -> bool:
            alias = alias_of(tensor)
            return (
                not alias.steps and id(alias.family.storage) not in self._written_storages and id(tensor) not in fixed
            )

        self.guards = Guards(reach, consulted, may_move)
        for binding in bindings:
            if isinstance(binding, Read):
                self._readers.setdefault(id(binding.holder), []).append(binding)

    def summary(self) -> str:
        """What it reads and writes, in numbers."""
        bindings = self.replay.bindings
        written = sum(b.out >= 0 for b in bindings) + len(self.written) + len(self.writes)
        return (
            f"{len(self.graph.nodes)} nodes; reads {len(bindings)} tensors, writes {written}; "
            f"replayed {self.replay.runs} times"
        )

    def fits(self, tensors: Sequence[Any] = ()) -> bool:
        """Whether state, settings and tensors are as they were, and the same gradients are there."""
        if not self.conditions.hold() or not self.guards.hold():
            return False
        if self.guards.moved:
            self._move()
        return self.replay.fits() and not self.overlaps(tensors)

    def overlaps(self, tensors: Sequence[Any]) -> bool:
        """Whether an argument shares its storage with what the trace writes, or is written and shared."""
        if not (self._written_storages or self.written):
            return False
        storages = [id(t._alias.family.storage) for t in tensors if isinstance(t, Handle) and t._alias is not None]
        if any(storage in self._written_storages for storage in storages):
            return True
        if not self.written:
            return False
        distinct = {
            id(t): id(t._alias.family.storage) for t in tensors if isinstance(t, Handle) and t._alias is not None
        }
        return len(set(distinct.values())) != len(distinct) or any(s in self._read_storages for s in storages)

    def _move(self) -> None:
        """Read the tensors that have taken the place of others."""
        with state_lock:
            for first, new in self.guards.moved.values():
                self.current[id(first)] = (first, new)
                family = alias_of(first).family
                for binding in self._readers.get(id(first), ()):
                    binding.holder = new
                    self.replay.rebound(binding)
                for binding in self._readers.get(id(family), ()):
                    binding.holder = alias_of(new).family
                    self.replay.rebound(binding)
            self.guards.moved = {}


def _codes(functions: Iterable[Any]) -> frozenset[CodeType]:
    """The code of functions that each call runs."""
    found = (getattr(getattr(f, "__func__", f), "__code__", None) for f in functions)
    return frozenset(code for code in found if isinstance(code, CodeType))


@dataclass(slots=True)
class Outcome:
    """What a function gave while it was traced.

    Attributes:
        structure: of its result.
        writes: what it wrote besides tensors.
        tensors: of its result, and of what it wrote.
        known: what was there before, by id.
    """

    structure: Any
    writes: list[Write]
    tensors: list[Any]
    known: dict[int, Any]


def _value_of(t: Any) -> Val:
    return t._value if isinstance(t, Handle) else leaf(t, to_dtype(t.dtype))


def _is_spent(family: Family) -> bool:
    """Whether what was written has a history, which a replay does not give it."""
    v = family.value
    return v is not None and v.needs_grad and v.leaf is None


def _bindings(tracer: Tracer, places: dict[int, int], outs: dict[int, int], specs: list[Any]) -> list[Binding]:
    """What the trace reads and writes, besides its arguments."""
    found: list[Binding] = []
    gradients: dict[int, int] = {}
    reads = {id(old): place for _, old, _ in tracer.written.values() if (place := places.get(id(old))) is not None}
    held = {id(old): lf for lf, old in tracer.grads.values() if old is not None}
    for i, (v, seen) in tracer.captured.items():
        holder = seen()
        if holder is None or i not in places or id(v) in reads:
            continue  # made and dropped by the function itself: a constant
        if id(holder) in held:
            gradients[id(held[id(holder)])] = places[i]
        else:
            found.append(Read(holder, v, places[i]))
    for family, old, at in tracer.written.values():
        if at is None and family.value is not old:
            out = outs.get(id(family.value))
            assert family.value is not None
            if out is None:
                raise TraceError("a compiled function gives a tensor from outside the contents of another as they are")
            found.append(State(family, old, reads.get(id(old), -1), out, family.value.spec))
    for lf, old in tracer.grads.values():
        if lf.serial > tracer.start:
            continue  # of a tensor the function made itself: nobody sees it afterwards
        had = None if id(lf) in tracer.cleared else old is not None
        place = gradients.get(id(lf), -1)
        new = lf.grad
        out = -1 if new is None else outs.get(id(new._value), -1)
        spec = specs[out] if out >= 0 else None if old is None else old._value.spec
        made = Gradient(lf, place, out, spec, had=had)
        if new is not old or id(lf) in tracer.cleared:
            made.drops = new is None
            made.other = new if new is not None and out < 0 else None
        found.append(made)
    return found


def _refuse_gradients(tracer: Tracer, values: list[Val]) -> None:
    """A tensor made inside would come out without the gradient it got there."""
    for v in values:
        leaf = v.leaf
        if leaf is not None and leaf.serial > tracer.start and leaf.has_grad:
            raise TraceError(
                f"a compiled function returns or keeps a tensor (of shape {list(v.spec.shape)}) that it made itself, "
                "with a gradient: return its gradient beside it"
            )


def _refuse_own_gradients(work: Work, results: list[Val]) -> None:
    """What a gradient of the user's kept while it was traced, and its hooks, are not there in later calls."""
    for expr in work.exprs:
        if expr.function is not None and not expr.function.movable:
            raise TraceError(
                f"a compiled function returns what {expr.function.name} with its own gradient made, to be "
                "differentiated outside; call backward() inside the compiled function too, or leave it out"
            )
    inner = [v for expr in work.exprs for v in expr.inputs if v is not None and v.expr is not None]
    for v in (*inner, *results):
        if v.expr is not None and v.leaf is not None and (v.leaf.hooks or v.leaf.retains):
            raise TraceError(
                f"a compiled function has a hook on the gradient of a tensor (of shape {list(v.spec.shape)}) that it "
                "makes, to be differentiated outside; call backward() inside the compiled function too"
            )


def _refuse_first_steps(tracer: Tracer, writes: list[Write]) -> None:
    """Refuse state that our step makes where the function changes the same state itself: only one of them can."""
    made = {id(getattr(write.place, "table", None)) for write in writes}
    for optimizer in tracer.settings.values():
        if id(optimizer.state) in made:
            raise TraceError(
                f"a compiled function makes the first step of {type(optimizer).__name__}, whose state it uses itself; "
                "make one step outside"
            )


def _source(t: Any, v: Val, outs: dict[int, int], inputs: list[Val], known: dict[int, Any]) -> tuple[str, Any]:
    """Where a result comes from."""
    if id(t) in known:
        return "same", t
    alias = t._alias if isinstance(t, Handle) else None
    if alias is not None and any(h._alias.family.storage is alias.family.storage for h in _tensors(known)):
        raise TraceError(
            f"a compiled function returns or keeps a view (of shape {list(v.spec.shape)}) of a tensor from outside, "
            "which would see no later change of that; use the tensor itself, or a clone of the view"
        )
    if id(v) in outs:
        return "output", outs[id(v)]
    for i, given in enumerate(inputs):
        if given is v:
            return "argument", i
    return "outside", v


def _tensors(known: dict[int, Any]) -> list[Any]:
    return [h for h in known.values() if isinstance(h, Handle) and h._alias is not None]


def trace_function(function: Any, structure: Any, tensors: list[Any], arrays: list[Any], *, named: bool) -> Trace:
    """Run a function on placeholders; everything it changed is put back as it was.

    Args:
        function: what to run.
        structure: of its arguments.
        tensors: the tensors and arrays among them.
        arrays: their contents.
        named: the structure is that of a pair, the arguments and those by name.
    """
    reach = Reach({"": function, **plain_arguments(structure)})
    tracer, effects = Tracer(), Effects(reach)
    effects.refuse_closed()
    inputs = _placeholders(tracer, tensors, arrays)
    modes.switch(tracer=tracer)
    try:
        with recording(tracer.spans), nothing_asked():
            result = _call(function, structure, inputs, tensors, named)
        outs: list[Any] = []
        out_structure = flatten(result, outs, reach.seen, Opener(reach.seen))
        del result
        writes = effects.written(outs)
        _refuse_first_steps(tracer, writes)
        values = [_value_of(t) for t in outs]
        _refuse_gradients(tracer, values)
        for family, _, _ in tracer.written.values():
            family.current()
    except BaseException:
        modes.switch(tracer=None)
        tracer.restore()
        effects.put_back()
        raise
    finally:
        modes.switch(tracer=None)
    try:
        # What is written has contents from outside too: a replay reads what they are by then, and makes them no more.
        outside = [v for v, _ in tracer.captured.values()]
        outside += [old for _, old, at in tracer.written.values() if at is None]
        evaluate([v for v in outside if v.array is None])
        for v, array in zip(inputs, arrays, strict=True):
            v.array = array
        written = [f.value for f, _, _ in tracer.written.values() if f.value is not None]
        grads = [lf.grad._value for lf, _ in tracer.grads.values() if lf.grad is not None]
        with graphs:  # other threads may be evaluating values that are part of it
            work = Work([v for v in (*values, *written, *grads) if v.array is None], exact=True)
            graph = to_graph(work.exprs, work.leaves, work.outputs, name="compiled", spans=tracer.spans)
        trace = Trace(tracer, inputs, Outcome(out_structure, writes, outs, reach.seen), work, graph)
    finally:
        tracer.restore()
        effects.put_back()
    trace.guard(reach, tracer)
    return trace


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


def _call(function: Any, structure: Any, inputs: list[Val], tensors: list[Any], named: bool) -> Any:
    """Call it; what is one tensor at several places is one placeholder there too."""
    first: dict[int, Any] = {}
    handles = [first.setdefault(id(t), wrap(v)) for t, v in zip(tensors, inputs, strict=True)]
    made: list[tuple[Any, list[Any]]] = []
    arguments = unflatten(structure, iter(handles), made)
    args, kwargs = arguments if named else (arguments, {})
    result = function(*args, **kwargs)
    for tree, before in made:
        now = inside(tree)
        if len(now) != len(before) or any(a is not b for a, b in zip(now, before, strict=True)):
            raise TraceError(
                f"a compiled function changes a {type(tree).__name__} among its arguments, which its later calls would "
                "not do; return what is new instead"
            )
    return result


def write_argument(handle: Any, value: Val) -> None:
    """Give an argument the contents that a replay computed for it."""
    from pyflame.views import write

    alias_of(handle)
    write(handle, value, recording=False)
