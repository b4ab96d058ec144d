"""Switches for recording gradients, as context managers and decorators."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, TypeVar

from pyflame.lazy import modes

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "GradMode",
    "detect_anomaly",
    "enable_grad",
    "inference_mode",
    "is_grad_enabled",
    "is_inference_mode_enabled",
    "no_grad",
    "set_detect_anomaly",
    "set_grad_enabled",
]

F = TypeVar("F", bound="Callable[..., Any]")


class _Decorator:
    """Context managers that are also decorators, of plain and of generator functions."""

    __slots__ = ()

    def _again(self) -> Any:
        return type(self)()

    def __call__(self, fn: F) -> F:
        if inspect.isgeneratorfunction(fn):

            @functools.wraps(fn)
            def generator(*args: Any, **kwargs: Any) -> Any:
                with self._again():
                    yield from fn(*args, **kwargs)

            return generator  # type: ignore[return-value]

        @functools.wraps(fn)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with self._again():
                return fn(*args, **kwargs)

        return wrapper  # type: ignore[return-value]


class _Switch(_Decorator):
    """Sets what `_set` says, and puts back what was there before."""

    _fields: tuple[str, ...] = ("grad",)

    def __init__(self) -> None:
        self._before: list[tuple[Any, ...]] = []

    def _set(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Any:
        self._before.append(tuple(getattr(modes, name) for name in self._fields))
        self._set()
        return self

    def __exit__(self, *_: object) -> None:
        modes.switch(**dict(zip(self._fields, self._before.pop(), strict=True)))


class no_grad(_Decorator):
    """Record no gradients inside.

    Example:
        >>> import pyflame as pf
        >>> x = pf.ones([2], requires_grad=True)
        >>> with pf.no_grad():
        ...     y = x * 2
        >>> y.requires_grad
        False
    """

    __slots__ = ("_before",)

    _mode = False

    def __new__(cls, fn: Any = None) -> Any:
        """A switch, or the decorated function."""
        made = object.__new__(cls)
        made._before = []
        return made if fn is None else made(fn)

    # Between runs these find nothing of Python in the caches: every call less counts.
    def __enter__(self) -> Any:
        self._before.append(modes.grad)
        modes.grad = self._mode
        return self

    def __exit__(self, *_: object) -> None:
        modes.grad = self._before.pop()


class enable_grad(no_grad):
    """Record gradients inside, also within ``no_grad``."""

    __slots__ = ()

    _mode = True


class inference_mode(_Switch):
    """Record no gradients inside; what is made inside can never require them."""

    _fields = ("grad", "inference")

    def __new__(cls, mode: Any = True) -> Any:
        """A switch, or the decorated function."""
        made = super().__new__(cls)
        if not callable(mode):
            return made
        made.__init__()
        return made(mode)

    def __init__(self, mode: bool = True) -> None:
        super().__init__()
        self._mode = bool(mode)

    def _again(self) -> _Switch:
        return inference_mode(self._mode)

    def _set(self) -> None:
        modes.inference = self._mode
        modes.grad = not self._mode and modes.grad


class set_grad_enabled(_Switch):
    """Record gradients or not, at once; as a context manager only inside."""

    def __init__(self, mode: bool) -> None:
        super().__init__()
        self._mode = bool(mode)
        self._outside = modes.grad
        modes.grad = self._mode

    def _again(self) -> _Switch:
        return _Grad(self._mode)

    def __enter__(self) -> Any:
        self._before.append((self._outside,))
        modes.grad = self._mode
        return self

    def __call__(self, fn: F) -> F:
        """Decorate a function."""
        modes.grad = self._outside
        return super().__call__(fn)


class _Grad(_Switch):
    def __init__(self, mode: bool) -> None:
        super().__init__()
        self._mode = mode

    def _set(self) -> None:
        modes.grad = self._mode


def is_grad_enabled() -> bool:
    """Whether gradients are recorded.

    Example:
        >>> is_grad_enabled()
        True
    """
    return modes.grad


def is_inference_mode_enabled() -> bool:
    """Whether inside ``inference_mode``."""
    return modes.inference


class GradMode:
    """The switch under the name that C++ users know.

    Example:
        >>> GradMode.is_enabled()
        True
    """

    @staticmethod
    def is_enabled() -> bool:
        """Whether gradients are recorded."""
        return modes.grad

    @staticmethod
    def set_enabled(enabled: bool) -> None:
        """Record gradients or not."""
        modes.grad = bool(enabled)


class detect_anomaly(_Switch):
    """Inside, evaluation stops at the first operator that makes a NaN, and says where it was called.

    Everything runs node by node meanwhile.

    Example:
        >>> import pyflame as pf
        >>> with pf.autograd.detect_anomaly():
        ...     y = pf.log(pf.tensor([-1.0]))
        ...     try:
        ...         pf.eval(y)
        ...     except pf.autograd.AnomalyError as error:
        ...         print(str(error).splitlines()[0])
        operator Log made the first NaN: 1 of 1 elements, its inputs had none
    """

    _fields = ("anomaly",)

    def _set(self) -> None:
        modes.switch(anomaly=True)


def set_detect_anomaly(mode: bool) -> None:
    """Look for NaN, or stop doing so."""
    modes.switch(anomaly=bool(mode))
