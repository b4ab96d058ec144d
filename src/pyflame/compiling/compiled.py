"""pf.compile: trace a function once, then replay what it did."""

from __future__ import annotations

import functools
import inspect
import types
import warnings
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame.autograd.function import with_gradient
from pyflame.compiling.reach import TooMuchStateError
from pyflame.compiling.trace import Trace, trace_function, write_argument
from pyflame.compiling.tracer import TraceError
from pyflame.compiling.trees import blank, flatten, unflatten
from pyflame.devices import chosen
from pyflame.dtypes import get_default_dtype, to_dtype
from pyflame.evaluation import evaluate
from pyflame.lazy import MODE_NAMES, Val, leaf, modes
from pyflame.ops.core import Handle, wrap
from pyflame.storage import state_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyflame_rt.graph import Graph

__all__ = ["CompiledFunction", "compile_function"]

# Different kinds of call of one function; calls of further kinds are not traced.
MAX_TRACES = 64
# Different states, or different values of arguments, of one kind of call.
RECOMPILE_LIMIT = 8


class CompiledFunction:
    """A function that is traced at its first call and replayed after that.

    A further trace is made for tensors of other shapes or element types, other values of arguments that are not
    tensors, another gradient mode, and wherever something that the function can read is not what it was: attributes,
    globals, variables of enclosing functions, contents of lists and dicts, modes and hooks of modules. What it writes
    there is written by each call. A function that cannot be traced, or whose state is another at every call, runs as
    it is; a warning says why.

    Args:
        function: what to trace.
        fullgraph: raise `TraceError` where the function cannot be traced.
        recompile_limit: how many values of arguments, or states, traces are made for.
    """

    def __init__(
        self, function: Callable[..., Any], *, fullgraph: bool = False, recompile_limit: int = RECOMPILE_LIMIT
    ) -> None:
        self.function = function
        self.fullgraph, self.recompile_limit = fullgraph, recompile_limit
        self._traces: dict[Any, list[Trace]] = {}
        self._eager: dict[Any, str] = {}
        self._failed: dict[Any, int] = {}
        self._kinds: dict[Any, int] = {}
        self._warned = False
        functools.update_wrapper(self, function)

    @property
    def trace_count(self) -> int:
        """How many traces there are."""
        return sum(map(len, self._traces.values()))

    def latest_graph(self) -> Graph:
        """What the newest trace computes, gradients and updates included, as a graph of `pyflame_rt`."""
        if not self._traces:
            raise RuntimeError(f"{getattr(self, '__name__', 'the function')} was not called yet, so it has no trace")
        return list(self._traces.values())[-1][-1].graph

    def explain(self) -> str:
        """What was traced and why, and which calls run as they are.

        Example:
            >>> import pyflame as pf
            >>> f = pf.compile(lambda x, n: x * n)
            >>> for n in (2, 3): _ = f(pf.ones([2]), n)
            >>> print(f.explain())
            <lambda>: 2 traces
            trace 1: 1 nodes; reads 0 tensors, writes 0; replayed 1 times
            trace 2: 1 nodes; reads 0 tensors, writes 0; replayed 1 times
        """
        lines = [f"{self._name}: {self.trace_count} traces"]
        traces = [trace for traces in self._traces.values() for trace in traces]
        lines += [f"trace {i}: {trace.summary()}" for i, trace in enumerate(traces, 1)]
        return "\n".join([*lines, *(f"not traced: {reason}" for reason in dict.fromkeys(self._eager.values()))])

    def __runtime_graph__(self, arguments: tuple[Any, ...]) -> Any:
        """What the function computes as a graph of `pyflame_rt`, for arguments like these."""
        from pyflame.exporting import evaluation_graph

        return evaluation_graph(self.function, arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy has no traces yet."""
        return _restored, (self.function, self.fullgraph, self.recompile_limit)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """The function as a method of an object."""
        return self if instance is None else types.MethodType(self, instance)

    @property
    def _name(self) -> str:
        return str(getattr(self, "__qualname__", "the function"))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        if modes.tracer is not None:
            return self.function(*args, **kwargs)  # inside another compiled function
        tensors: list[Any] = []
        structure = flatten((args, kwargs) if kwargs else args, tensors, self._whole(args))
        key, arrays = _key(structure, tensors)
        for trace in self._traces.get(key, ()):
            if trace.fits(tensors):
                return _replay(trace, arrays, tensors)
        if key in self._eager:
            return self.function(*args, **kwargs)
        with state_lock:
            for trace in self._traces.get(key, ()):  # another thread may have made it meanwhile
                if trace.fits(tensors):
                    return _replay(trace, arrays, tensors)
            trace = self._trace(key, structure, tensors, arrays, named=bool(kwargs))
            if trace is not None:
                return _replay(trace, arrays, tensors)
        return self.function(*args, **kwargs)

    def _whole(self, args: tuple[Any, ...]) -> Mapping[int, Any]:
        """The object whose method this is: its attributes are state, no arguments."""
        if args and getattr(type(args[0]), getattr(self.function, "__name__", ""), None) is self:
            return {id(args[0]): args[0]}
        return {}

    def _trace(self, key: Any, structure: Any, tensors: list[Any], arrays: list[Any], *, named: bool) -> Trace | None:
        """A further trace; None where the function is to run as it is."""
        kind = (blank(structure), key[1:])
        if reason := self._over_limit(key, kind):
            self._give_up(key, reason)
            return None
        try:
            trace = trace_function(self.function, structure, tensors, arrays, named=named)
        except (TraceError, TooMuchStateError) as error:
            if self.fullgraph:
                raise error if isinstance(error, TraceError) else TraceError(str(error)) from error
            self._failed[key] = self._failed.get(key, 0) + 1
            # What is only so at a first call, such as sizes that a layer waits for, has passed at the second.
            if self._failed[key] > 1:
                self._give_up(key, str(error))
            return None
        if not trace.fits():
            raise RuntimeError(f"a trace does not fit the call it was made for: {trace.guards.reason}")
        if trace.overlaps(tensors):
            self._give_up(key, "an argument shares its memory with a tensor that the function writes in place")
            return None
        self._kinds[kind] = self._kinds.get(kind, 0) + 1
        self._traces.setdefault(key, []).append(trace)
        return trace

    def _over_limit(self, key: Any, kind: Any) -> str:
        """Why there are enough traces; "" where there are not."""
        states = self._traces.get(key, [])
        if len(states) >= self.recompile_limit:
            return f"what it reads was different {len(states)} times, the last time: {states[-1].guards.reason}"
        if self._kinds.get(kind, 0) >= self.recompile_limit:
            return f"arguments that are no tensors had {self._kinds[kind]} different values"
        if self.trace_count >= MAX_TRACES:
            return f"it was called with {MAX_TRACES} different kinds of arguments"
        return ""

    def _give_up(self, key: Any, reason: str) -> None:
        """Calls of this kind run as they are from now on."""
        if len(self._eager) < 16 * MAX_TRACES:
            self._eager[key] = reason
        if not self._warned:
            self._warned = True
            warnings.warn(f"compiled {self._name} runs as it is: {reason}", RuntimeWarning, stacklevel=4)


def _restored(function: Callable[..., Any], fullgraph: bool, recompile_limit: int) -> CompiledFunction:
    return CompiledFunction(function, fullgraph=fullgraph, recompile_limit=recompile_limit)


def _key(structure: Any, tensors: list[Any]) -> tuple[tuple[Any, ...], list[Any]]:
    """What calls must have in common to be one trace's, and the arrays of the tensors."""
    parts: list[Any] = [structure, chosen.provider, chosen.target, get_default_dtype()]
    parts += [getattr(modes, name) for name in MODE_NAMES]
    arrays = []
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
    if len(tensors) > 1:
        parts.append(_same(tensors))
    return tuple(parts), arrays


def _same(tensors: list[Any]) -> tuple[int, ...]:
    """Which of the tensors are one: for each the number of the first that it is."""
    first: dict[int, int] = {}
    return tuple([first.setdefault(id(t), i) for i, t in enumerate(tensors)])


def _replay(trace: Trace, arrays: list[Any], tensors: list[Any]) -> Any:
    with state_lock if trace.replay.writes else nullcontext():
        if trace.replay.writes and not trace.replay.fits():  # another thread came in between
            raise RuntimeError("tensors of a compiled function were changed by another thread during its call")
        current = _current(trace, tensors) if trace.differentiable and modes.grad else []
        drawn: dict[int, Any] = {}
        outputs = trace.replay.run(arrays, drawn if current else None)
        for place, array in drawn.items():
            current[place] = Val(current[place].spec, array=array)
        for at, out, spent in trace.written:
            if isinstance(tensors[at], Handle):  # an array that the caller passed is not changed
                value = Val(trace.specs[out], array=outputs[out])
                value.needs_grad = value.spent = spent
                write_argument(tensors[at], value)
        made = [_result(trace, i, outputs, arrays, tensors) for i in range(len(trace.results))]
    if current:
        made = _with_gradient(trace, made, current)
    given = iter([made[i] for i in trace.first])
    result = unflatten(trace.structure, given)
    for write in trace.writes:
        write.apply(given)
    return result


def _result(trace: Trace, i: int, outputs: list[Any], arrays: list[Any], tensors: list[Any]) -> Any:
    kind, source = trace.results[i]
    if kind == "output":
        v = Val(trace.specs[source], array=outputs[source])
        v.spent = trace.spent[i]
        v.needs_grad = trace.needs_grad[i] and v.spent
        return wrap(v)
    if kind == "argument":
        given = tensors[source]
        return given if isinstance(given, Handle) else wrap(leaf(arrays[source], to_dtype(given.dtype)))
    if kind == "same":
        return trace.current.get(id(source), (source, source))[1]
    return wrap(source)


def _current(trace: Trace, tensors: list[Any]) -> list[Val]:
    """The value each leaf of the graph has in this call."""
    assert trace.work is not None
    values = trace.replay.values()
    current = [values.get(place) or Val(v.spec, array=v.array) for place, v in enumerate(trace.work.leaves)]
    for place, i in trace.arguments:
        if isinstance(tensors[i], Handle):
            current[place] = tensors[i]._value
    return current


def _with_gradient(trace: Trace, made: list[Any], current: list[Val]) -> list[Any]:
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


def compile_function(
    model: Any = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    disable: bool = False,
) -> Any:
    """Trace a function once and replay what it did: one native call instead of Python.

    What the function writes (parameters, optimizer state, statistics, gradients, attributes) becomes part of the
    replay. Works as a decorator too, on functions, methods, static and class methods.

    Args:
        model: takes and returns tensors, or nested lists, tuples, dicts and dataclasses of them. Arguments that are
            not tensors are conditions: another value makes another trace. Of a module a module is made, with the same
            parameters, buffers and children.
        fullgraph: raise `TraceError` where the function cannot be traced, instead of running it as it is.
        dynamic: traces are made for the shapes of each call; True is refused.
        mode: "default" and "reduce-overhead" are what there is; others are refused.
        options: `recompile_limit`, for how many values of arguments, or states, traces are made.
        disable: give the function back as it is.

    Example:
        >>> import pyflame as pf
        >>> @pf.compile
        ... def f(x):
        ...     return pf.relu(x) * 2
        >>> f(pf.tensor([1.0, -1.0])), f.trace_count
        (tensor([2., 0.]), 1)
    """
    settings = _settings(fullgraph, dynamic, mode, options)
    if model is None:
        return lambda function: compile_function(function, fullgraph=fullgraph, options=options, disable=disable)
    if disable:
        return model
    if isinstance(model, staticmethod | classmethod):
        return type(model)(compile_function(model.__func__, fullgraph=fullgraph, options=options))
    from pyflame.compiling.compiled_module import CompiledModule
    from pyflame.nn.module import Module

    if isinstance(model, CompiledFunction | CompiledModule):
        return model
    _refuse(model)
    if isinstance(model, Module):
        return CompiledModule(model, CompiledFunction(model, **settings))
    return CompiledFunction(model, **settings)


def _settings(
    fullgraph: bool, dynamic: bool | None, mode: str | None, options: Mapping[str, Any] | None
) -> dict[str, Any]:
    """What was asked for, checked."""
    if dynamic:
        raise ValueError(
            "compile: dynamic=True is not there: a trace is made for the shapes of each call, at most "
            f"{MAX_TRACES}; pad to few shapes, or leave it out"
        )
    if mode not in (None, "default", "reduce-overhead"):
        raise ValueError(f'compile: mode is "default" or "reduce-overhead". Received: {mode!r}')
    unknown = sorted(set(options or {}) - {"recompile_limit"})
    if unknown:
        raise ValueError(f"compile: options has recompile_limit only. Received: {', '.join(map(str, unknown))}")
    limit = (options or {}).get("recompile_limit", RECOMPILE_LIMIT)
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise ValueError(f"compile: recompile_limit is a number of traces, 1 or more. Received: {limit!r}")
    return {"fullgraph": bool(fullgraph), "recompile_limit": limit}


def _refuse(model: Any) -> None:
    """What cannot be traced is refused by its kind."""
    name = getattr(model, "__qualname__", type(model).__name__)
    if isinstance(model, type):
        raise TypeError(
            f"compile takes a function or a module, not a class: compile an object of {name}, or its methods"
        )
    if not callable(model):
        raise TypeError(f"compile takes a function or a module. Received: {type(model).__name__}")
    code = model if inspect.isroutine(model) else type(model).__call__
    if inspect.isgeneratorfunction(code):
        raise TypeError(f"{name} is a generator, which stops between its results: compile what makes one of them")
    if inspect.iscoroutinefunction(code) or inspect.isasyncgenfunction(code):
        raise TypeError(f"{name} is asynchronous, which cannot be replayed: compile the functions that it awaits")
