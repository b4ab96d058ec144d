"""Errors that name the argument: when a call has failed, its arguments are compared with the function's annotations.

A call that succeeds is not looked at, so nothing is refused that works, and it costs one more frame. Errors that a
``raise`` of ours made have their words already; the user's own errors, out of callbacks, pass through as they are.
"""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import linecache
import math
import operator
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from numbers import Complex, Integral, Real
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from pyflame_rt.graph.errors import InputError, PyFlameRTError

__all__ = ["NamedArguments", "expect_fields", "expects_arguments", "explained", "names_arguments"]

F = TypeVar("F", bound="Callable[..., Any]")
_RAW = (
    TypeError, ValueError, AttributeError, LookupError, ArithmeticError, AssertionError, RecursionError, MemoryError,
    StopIteration,
)  # fmt: skip
_OWN = str(Path(__file__).parents[2])
_LARGEST = 1 << 63


def names_arguments(function: F) -> F:
    """The function, with errors that name the argument which is of another kind than the annotation says.

    Example:
        >>> @names_arguments
        ... def halves(n: int, parts: Sequence[int] = ()) -> list[int]:
        ...     return [n // 2 + part for part in parts]
        >>> halves("seven", [1])
        Traceback (most recent call last):
        ...
        TypeError: halves: n must be a whole number, got 'seven'
    """

    @functools.wraps(function)
    def named(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except _RAW as problem:
            better = explained(function, args, kwargs, problem)
            if better is None:
                raise
            raise better from problem

    return named  # type: ignore[return-value]


def expects_arguments(function: F) -> F:
    """The function, which is not begun when an argument is of another kind than its annotation says.

    Example:
        >>> @expects_arguments
        ... def ask(url: str, *, verify: bool = True) -> str:
        ...     return url
        >>> ask("http://localhost", verify="no")
        Traceback (most recent call last):
        ...
        TypeError: ask: verify must be True or False, got 'no'
    """

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        better = _compared(function, args, kwargs, [(_misfit, TypeError)])
        if better is not None:
            raise better
        return function(*args, **kwargs)

    return checked  # type: ignore[return-value]


class NamedArguments:
    """A base whose subclasses in these packages have constructors that name their arguments.

    Example:
        >>> class Box(NamedArguments):
        ...     def __init__(self, size: int) -> None:
        ...         self.size = size + 1
        >>> Box.__init__.__qualname__
        'Box.__init__'
    """

    __slots__ = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = cls.__dict__.get("__init__")
        if own is not None and cls.__module__.partition(".")[0] in ("pyflame", "pyflame_rt"):
            cls.__init__ = names_arguments(own)


def expect_fields(settings: Any) -> None:
    """Refuse settings with a field of another kind than its annotation says.

    Raises:
        TypeError: Names the field, what it takes, and what came.

    Example:
        >>> from pyflame_rt.opt import PassManagerConfig
        >>> expect_fields(PassManagerConfig(skip_passes=[5]))
        Traceback (most recent call last):
        ...
        TypeError: PassManagerConfig.skip_passes must be a list in which each is a text, got list
    """
    for field in fields(settings):
        value = getattr(settings, field.name)
        if wanted := _misfit(value, _annotation(field.type), type(settings).__init__):
            raise TypeError(f"{type(settings).__name__}.{field.name} must be {wanted}, got {_shown(value)}")


def explained(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], problem: BaseException
) -> Exception | None:
    """What to raise instead; None where the error is good as it is, or its cause is none of the arguments."""
    if isinstance(problem, PyFlameRTError) or not _ours_and_raw(problem, function):
        return None
    beyond = ValueError if function.__module__.startswith("pyflame.") else InputError
    return _compared(function, args, kwargs, [(_misfit, TypeError), (_extreme, beyond)])


def _compared(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], checks: list[tuple[Any, Any]]
) -> Exception | None:
    """The first argument that is not what its annotation asks for, as an error."""
    try:
        signature = inspect.signature(function)
        bound = signature.bind(*args, **kwargs).arguments
    except (TypeError, ValueError):
        return None
    made = function.__name__ == "__init__" and args
    name = type(args[0]).__name__ if made else function.__qualname__
    for check, error in checks:
        for argument, value in bound.items():
            parameter = signature.parameters[argument]
            if parameter.annotation is parameter.empty or argument == "self":
                continue
            for label, one in _given(parameter, value):
                wanted = check(one, _annotation(parameter.annotation), function)
                if not wanted and _stands_for_a_tensor(parameter, function) and not _numbers(one, function):
                    wanted = "a tensor"
                if wanted:
                    return error(f"{name}: {label} must be {wanted}, got {_shown(one)}")
    return None


_TENSORS = frozenset(
    {"input", "x", "target", "tensor", "other", "query", "key", "value", "x1", "x2", "input1", "input2", "a", "b", "A",
     "B", "anchor", "positive", "negative", "log_probs", "theta", "grid"}
)  # fmt: skip


def _stands_for_a_tensor(parameter: inspect.Parameter, function: Callable[..., Any]) -> bool:
    """Functions of the framework take numbers, arrays and lists for a tensor, so their annotation says ``Any``."""
    asked = parameter.name in _TENSORS and parameter.default is parameter.empty
    return asked and parameter.annotation in ("Any", "TensorLike") and function.__module__.startswith("pyflame.")


def _numbers(value: Any, function: Callable[..., Any]) -> bool:
    """Whether a tensor could be made of it, as far as can be seen without making it; layers take tensors only."""
    if function.__module__.startswith("pyflame.nn."):
        return hasattr(value, "requires_grad")
    if isinstance(value, list | tuple):
        return True
    made = hasattr(value, "__array__") or hasattr(value, "__dlpack__") or isinstance(value, Complex)
    return made and not isinstance(value, type) and getattr(getattr(value, "dtype", None), "kind", "f") not in "OUSV"


def _given(parameter: inspect.Parameter, value: Any) -> Iterable[tuple[str, Any]]:
    """The argument, or those that ``*args`` and ``**kwargs`` took."""
    if parameter.kind is parameter.VAR_POSITIONAL:
        return [(f"{parameter.name}[{i}]", x) for i, x in enumerate(value)]
    if parameter.kind is parameter.VAR_KEYWORD:
        return list(value.items())
    return [(parameter.name, value)]


def _ours_and_raw(problem: BaseException, function: Callable[..., Any]) -> bool:
    """Whether an error comes from within these packages or a library, and no statement of ours made it."""
    step = problem.__traceback__
    while step is not None and step.tb_next is not None:
        step = step.tb_next
    if step is None:
        return False
    file = step.tb_frame.f_code.co_filename
    if file.startswith(_OWN) or file == inspect.getfile(inspect.unwrap(function)):
        # What a tensor lacks it says itself, and that is no answer either.
        return isinstance(problem, AttributeError) or not linecache.getline(file, step.tb_lineno).strip().startswith(
            "raise "
        )
    library = os.sep + "site-packages" + os.sep in file
    return library or file.startswith(os.path.dirname(os.__file__))


# --- annotations ------------------------------------------------------------------------------------------------------


@functools.lru_cache(1024)
def _parsed(text: str) -> ast.expr | None:
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, SystemError):  # the latter where other threads parse, too
        return None


def _annotation(given: Any) -> ast.expr | None:
    return _parsed(given if isinstance(given, str) else getattr(given, "__name__", repr(given)))


def _misfit(value: Any, kind: ast.expr | None, function: Callable[..., Any]) -> str:
    """What an annotation asks for, in words, where the value is not that; else nothing."""
    said = [_misfit_one(value, option, function) for option in _options(kind)]
    if not said or not all(said):
        return ""
    return " or ".join(dict.fromkeys(said))


def _options(kind: ast.expr | None) -> list[ast.expr]:
    """The parts of ``A | B | C``."""
    if isinstance(kind, ast.BinOp) and isinstance(kind.op, ast.BitOr):
        return [*_options(kind.left), *_options(kind.right)]
    return [] if kind is None else [kind]


def _misfit_one(value: Any, kind: ast.expr, function: Callable[..., Any]) -> str:
    if isinstance(kind, ast.Constant):
        return "" if kind.value is None and value is None else "None"
    if not isinstance(kind, ast.Subscript):
        return _misfit_name(value, _last_name(kind), function)
    base, inner = _last_name(kind.value), kind.slice
    if base == "Literal":
        choices = [x.value for x in getattr(inner, "elts", [inner]) if isinstance(x, ast.Constant)]
        return "" if isinstance(value, str | int | None) and value in choices else f"one of {choices}"
    wrong = _misfit_name(value, base, function)
    return wrong or (_misfit_entry(value, base, inner, function) if base in _LISTS else "")


def _last_name(kind: ast.expr) -> str:
    """``PathLike`` of ``os.PathLike``."""
    return kind.attr if isinstance(kind, ast.Attribute) else getattr(kind, "id", "Any")


def _misfit_entry(value: Any, base: str, inner: ast.expr, function: Callable[..., Any]) -> str:
    """The same for what a list holds, and for the length of a tuple."""
    kinds = inner.elts if isinstance(inner, ast.Tuple) else [inner]
    fixed = base == "tuple" and not any(isinstance(k, ast.Constant) and k.value is ... for k in kinds)
    if fixed and len(value) != len(kinds):
        return f"a tuple of {len(kinds)}"
    if type(value) not in (list, tuple, set, frozenset, np.ndarray):
        return ""
    for one in itertools.islice(value, 1000):
        if said := _misfit(one, kinds[0], function):
            return f"{_LISTS[base]} in which each is {said}"
    return ""


def _whole(value: Any) -> bool:
    if isinstance(value, Integral):
        return -_LARGEST <= operator.index(value) < _LARGEST
    return _single(value, "iub")


def _single(value: Any, kinds: str) -> bool:
    """Arrays and tensors of one element stand for it."""
    dtype = getattr(value, "dtype", None)
    if dtype is None or isinstance(value, type):
        return False
    found = getattr(getattr(dtype, "numpy", dtype), "kind", "")
    return math.prod(getattr(value, "shape", (0,))) == 1 and found in kinds


_LISTS = {
    "tuple": "a tuple",
    "Sequence": "a sequence",
    "Iterable": "a list",
    "list": "a list",
    "Collection": "a collection",
}
_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "int": (_whole, "a whole number"),
    "float": (lambda v: isinstance(v, Real) or _single(v, "iubfV"), "a number"),
    "complex": (lambda v: isinstance(v, Complex) or _single(v, "iubfcV"), "a number"),
    "bool": (
        lambda v: isinstance(v, bool) or (isinstance(v, Integral) and v in (0, 1)) or _single(v, "b"),
        "True or False",
    ),
    "str": (lambda v: isinstance(v, str) and _encodes(v), "a text"),
    "bytes": (lambda v: isinstance(v, bytes | bytearray | memoryview), "bytes"),
    "None": (lambda v: v is None, "None"),
    "Callable": (callable, "callable"),
    "Mapping": (lambda v: isinstance(v, Mapping), "a dict"),
    "dict": (lambda v: isinstance(v, Mapping), "a dict"),
    "list": (lambda v: isinstance(v, Sequence) and not isinstance(v, str | bytes), "a list"),
    "tuple": (lambda v: isinstance(v, Sequence) and not isinstance(v, str | bytes), "a tuple"),
    "Sequence": (lambda v: hasattr(v, "__len__") and hasattr(v, "__getitem__") and not _texts(v), "a sequence"),
    "Iterable": (lambda v: hasattr(v, "__iter__") and not _texts(v), "a list"),
    "Iterator": (lambda v: hasattr(v, "__next__"), "an iterator"),
    "Path": (lambda v: isinstance(v, str | os.PathLike) and _encodes(v), "a path"),
    "PathLike": (lambda v: isinstance(v, str | os.PathLike) and _encodes(v), "a path"),
}


def _texts(value: Any) -> bool:
    return isinstance(value, str | bytes | Mapping)


def _encodes(value: Any) -> bool:
    text = str(value)
    return "\0" not in text and text == text.encode("utf-8", "ignore").decode()


def _misfit_name(value: Any, name: str, function: Callable[..., Any]) -> str:
    if name in _KINDS:
        fits, words = _KINDS[name]
        return "" if fits(value) else words
    if name in ("Any", "object"):
        return ""
    found = _named(name, inspect.unwrap(function).__globals__)
    if not found or any(getattr(kind, "_is_protocol", False) for kind in found):
        return ""
    return "" if isinstance(value, found) else f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"


def _named(name: str, scope: Mapping[str, Any]) -> tuple[type, ...]:
    """The classes that a name of an annotation may stand for, also where only type checkers import it."""
    if name == "ndarray":
        return (np.ndarray,)
    if name in scope:
        return (scope[name],) if isinstance(scope[name], type) else ()
    modules = [m for n, m in sys.modules.items() if n.partition(".")[0] in ("pyflame", "pyflame_rt")]
    candidates = [getattr(m, "__dict__", {}).get(name) for m in modules]
    return tuple({c for c in candidates if isinstance(c, type)})


def _extreme(value: Any, kind: ast.expr | None, function: Callable[..., Any]) -> str:  # noqa: ARG001
    """What is asked of numbers that are of the right kind and yet made a call fail."""
    numbers = {_last_name(option) for option in _options(kind)} & {"int", "float", "complex"}
    if not numbers or not isinstance(value, Real):
        return ""
    if math.isnan(float(value)) or math.isinf(float(value)):
        return "a finite number"
    return f"at most {2**31 - 1} in size" if abs(float(value)) >= 1 << 31 else ""


def _shown(value: Any) -> str:
    if isinstance(value, str | bytes | int | float | complex | None):
        text = repr(value)
        return text if len(text) < 60 else f"{text[:50]}..."
    shape = getattr(value, "shape", None)
    kind = type(value).__name__
    return kind if shape is None or isinstance(value, type) else f"{kind} of shape {list(shape)}"
