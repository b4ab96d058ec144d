"""torch.jit's names: scripting and tracing are both `pf.compile`, which traces at the first call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from pyflame.compiling.compiled import CompiledFunction, compile_function

if TYPE_CHECKING:
    from collections.abc import Callable

Function = TypeVar("Function", bound="Callable[..., Any]")

__all__ = ["export", "ignore", "is_scripting", "is_tracing", "load", "save", "script", "trace", "unused"]


def script(obj: Any, optimize: None = None, _frames_up: int = 0, example_inputs: Any = None) -> Any:
    """Compile a function or module; a decorator too. Branches that read tensors are refused where they are met.

    Args:
        obj: what to compile.
        optimize: torch's, without meaning there too.
        example_inputs: a list of argument tuples to call it with at once.

    Example:
        >>> import pyflame as pf
        >>> @pf.jit.script
        ... def f(x):
        ...     return x * 2
        >>> f(pf.ones(2)).tolist()
        [2.0, 2.0]
    """
    del optimize, _frames_up
    made = obj if isinstance(obj, CompiledFunction) else compile_function(obj)
    for example in example_inputs or ():
        made(*example)
    return made


def trace(
    func: Any,
    example_inputs: Any = None,
    optimize: None = None,
    check_trace: bool = True,
    check_inputs: Any = None,
    check_tolerance: float = 1e-5,
    strict: bool = True,
    *,
    example_kwarg_inputs: Any = None,
) -> Any:
    """Compile a function or module, and compare it with the original on examples.

    Args:
        func: what to compile.
        example_inputs: a tensor, or a tuple of arguments.
        optimize: torch's, without meaning there too.
        check_trace: compare with the original.
        check_inputs: a list of further argument tuples to compare on.
        check_tolerance: how far results may be apart.
        strict: torch's, about containers; all containers are fine here.
        example_kwarg_inputs: arguments by name, in place of the example.

    Example:
        >>> import pyflame as pf
        >>> pf.jit.trace(lambda x: pf.relu(x), pf.tensor([1.0, -1.0]))(pf.tensor([-3.0, 4.0])).tolist()
        [0.0, 4.0]
    """
    del optimize, strict
    made = script(func)
    example = example_inputs if isinstance(example_inputs, tuple) else (example_inputs,)
    calls: list[tuple[Any, Any]] = [((), example_kwarg_inputs)] if example_kwarg_inputs is not None else [(example, {})]
    calls += [(args if isinstance(args, tuple) else (args,), {}) for args in check_inputs or ()]
    for args, kwargs in calls:
        found = made(*args, **kwargs)
        if check_trace:
            _compare(func(*args, **kwargs), found, check_tolerance)
    return made


def _compare(wanted: Any, found: Any, tolerance: float) -> None:
    from pyflame.compiling.trees import flatten
    from pyflame.toplevel import allclose

    left: list[Any] = []
    right: list[Any] = []
    same = flatten(wanted, left) == flatten(found, right)
    if not same or not all(allclose(a, b, tolerance, tolerance, True) for a, b in zip(left, right, strict=True)):
        raise RuntimeError("jit.trace: the compiled function gives other results than the original; it may be random")


def ignore(drop: Any = False, **kwargs: Any) -> Any:
    """Mark a function as Python's own; every function is, so it stays as it is."""
    del kwargs
    return drop if callable(drop) else (lambda function: function)


def unused(fn: Function) -> Function:
    """Mark a function as never called when compiled; it stays as it is."""
    return fn


def export(fn: Function) -> Function:
    """Mark a method as an entry; it stays as it is."""
    return fn


def is_scripting() -> bool:
    """False: Python runs while a function is traced."""
    return False


def is_tracing() -> bool:
    """Whether a function is being compiled now."""
    from pyflame.lazy import modes

    return modes.tracer is not None


def save(m: Any, f: Any) -> NoReturn:
    """Refuse, and say what does it."""
    del m
    raise RuntimeError(f"jit.save({f!r}): write the model with pf.export(model, example, 'model.onnx')")


def load(f: Any, map_location: Any = None) -> NoReturn:
    """Refuse, and say what does it."""
    del map_location
    raise RuntimeError(f"jit.load({f!r}): run TorchScript files with pyflame_rt.InferenceSession(path)")
