"""Declaring operations, and sending a call to the library whose arrays it was given."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from emberharmony.backend import current_library
from emberharmony.declared import DECLARED, PRIMITIVES
from emberharmony.kinds import KIND, MASKED, NESTED, WRAPPED, find_library, unwrapped
from emberharmony.library import Library, library

P = ParamSpec("P")
R = TypeVar("R")
_SLOW = frozenset((MASKED, NESTED, WRAPPED, "new"))


def public_signature(body: Callable[..., Any]) -> inspect.Signature:
    """Signature of an operation as its callers see it, without the library.

    >>> str(public_signature(lambda lib, x, axis=None: x))
    '(x, axis=None)'
    """
    signature = inspect.signature(body)
    return signature.replace(parameters=list(signature.parameters.values())[1:])


def _quick(args: tuple[Any, ...]) -> str | None:
    """The library of plain arguments, "new" if they need a closer look."""
    found = None
    for value in args:
        kind = KIND.get(type(value), "new")
        if kind is None or kind == found:
            continue
        if found is not None or kind in _SLOW:
            return "new"
        found = kind
    return found


def _chosen(found: str | None) -> Library:
    return current_library() if found is None else library(found)


def _declare(body: Callable[Concatenate[Library, P], R], *, by_array: bool) -> Callable[P, R]:
    name = body.__name__
    DECLARED[name] = body

    @functools.wraps(body)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if by_array and not kwargs:
            found = _quick(args)
            if found != "new":
                return getattr(_chosen(found), name)(*args)
        plain = unwrapped(args)
        options = {key: unwrapped(value) for key, value in kwargs.items()}
        found = find_library((plain, options)) if by_array else None
        return getattr(_chosen(found), name)(*plain, **options)

    call.__signature__ = public_signature(body)  # pyright: ignore[reportAttributeAccessIssue]
    return call


def op(body: Callable[Concatenate[Library, P], R]) -> Callable[P, R]:
    """Declare an operation by a body written over other operations.

    The first parameter of the body is the library; callers do not give it. A backend may
    provide a native function of the same name and parameters instead.
    """
    return _declare(body, by_array=True)


def primitive(body: Callable[Concatenate[Library, P], R]) -> Callable[P, R]:
    """Declare an operation that each backend provides; the body is its docstring."""
    PRIMITIVES.add(body.__name__)
    return _declare(body, by_array=True)


def creation(body: Callable[Concatenate[Library, P], R]) -> Callable[P, R]:
    """Declare an operation that makes arrays of the current backend, whatever it is given."""
    return _declare(body, by_array=False)


def alias(name: str, declared: Callable[P, R], *, by_array: bool = True) -> Callable[P, R]:
    """Give a declared operation a second name."""
    original: str = declared.__name__
    body = DECLARED[original]

    @functools.wraps(body)
    def second(lib: Library, *args: Any, **kwargs: Any) -> Any:
        return getattr(lib, original)(*args, **kwargs)

    second.__name__ = second.__qualname__ = name
    second.__signature__ = inspect.signature(body)  # pyright: ignore[reportAttributeAccessIssue]
    return _declare(second, by_array=by_array)
