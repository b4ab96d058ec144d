"""Ctrl-C that waits: for a step to end, or for a few lines that must not stop in between."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Handler", "Uninterrupted"]


class Handler:
    """While it lasts, SIGINT calls a function; then what was there before is back, wherever a signal comes in between.

    Python runs the handlers of signals under way before it changes one, and after: either may raise.
    """

    def __init__(self, function: Callable[[int, Any], None]) -> None:
        self._function = function
        self._before: Any = None

    def __enter__(self) -> Self:
        self._before = signal.getsignal(signal.SIGINT)
        try:
            signal.signal(signal.SIGINT, self._function)
        except BaseException:
            self._restore()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _restore(self) -> None:
        try:
            signal.signal(signal.SIGINT, self._before)
        except BaseException:
            signal.signal(signal.SIGINT, self._before)
            raise


class Uninterrupted:
    """Lines that Ctrl-C does not stop in between: it is heard at their end. Only the main thread hears it at all.

    Example:
        >>> import signal
        >>> done = []
        >>> try:
        ...     with Uninterrupted():
        ...         signal.raise_signal(signal.SIGINT)
        ...         done.append("all of it")
        ... except KeyboardInterrupt:
        ...     done.append("then the interrupt")
        >>> done
        ['all of it', 'then the interrupt']
    """

    def __init__(self) -> None:
        self._handler: Handler | None = None
        self._before: Any = None
        self._heard: list[tuple[int, Any]] = []

    def __enter__(self) -> Self:
        self._before = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is threading.main_thread() and callable(self._before):
            self._handler = Handler(lambda number, frame: self._heard.append((number, frame)))
            self._handler.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        if self._handler is not None:
            self._handler.__exit__()
        if self._heard:
            self._before(*self._heard[0])
