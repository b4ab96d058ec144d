"""pf.compile: trace a function once, then replay what it did."""

from __future__ import annotations

import functools
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame.autograd.function import with_gradient
from pyflame.compiling.trace import Trace, trace_function, write_argument
from pyflame.compiling.trees import flatten, unflatten
from pyflame.device import chosen
from pyflame.dtypes import to_dtype
from pyflame.evaluation import evaluate
from pyflame.lazy import Val, leaf, modes
from pyflame.ops.core import Handle, wrap
from pyflame.storage import state_lock

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyflame_rt.graph import Graph

__all__ = ["CompiledFunction", "compile_function"]

# Different kinds of call of one function; beyond, the one traced first is forgotten.
MAX_TRACES = 64


class CompiledFunction:
    """A function that is traced at its first call and replayed after that.

    A further trace is made for tensors of other shapes or element types, other values of arguments that are not
    tensors, another gradient mode, or modules in another mode. Python code other than operations on tensors runs
    at trace time only.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self._traces: dict[Any, list[Trace]] = {}
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

    def __runtime_graph__(self, arguments: tuple[Any, ...]) -> Any:
        """What the function computes as a graph of `pyflame_rt`, for arguments like these."""
        from pyflame.exporting import evaluation_graph

        return evaluation_graph(self.function, arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy has no traces yet."""
        return CompiledFunction, (self.function,)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        if modes.tracer is not None:
            return self.function(*args, **kwargs)  # inside another compiled function
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
        if len(tensors) > 1:
            parts.append(_same(tensors))
        key = tuple(parts)
        for trace in self._traces.get(key, ()):
            if trace.fits():
                return _replay(trace, arrays, tensors)
        with state_lock:
            for trace in self._traces.get(key, ()):  # another thread may have made it meanwhile
                if trace.fits():
                    return _replay(trace, arrays, tensors)
            trace = trace_function(self.function, structure, tensors, arrays, named=bool(kwargs))
            if self.trace_count >= MAX_TRACES:
                self._traces.pop(next(iter(self._traces)))
            self._traces.setdefault(key, []).append(trace)
            if not trace.fits():
                raise RuntimeError("a trace does not fit the call it was made for")  # pragma: no cover
            return _replay(trace, arrays, tensors)


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
    return unflatten(trace.structure, iter(made))


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
    return source if kind == "same" else wrap(source)


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
