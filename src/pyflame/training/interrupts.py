"""Ctrl-C that waits for a step to end."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyflame.interrupts import Handler

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Interrupts"]


class Interrupts:
    """Lets steps end before a KeyboardInterrupt is raised, so that weights, state and counts belong together.

    Only the handler of Python itself is replaced, and only in the main thread: no other gets KeyboardInterrupts.

    Attributes:
        broken: a step was interrupted after all, because Ctrl-C came twice.
    """

    def __init__(self) -> None:
        self.broken = False
        self._depth = 0
        self._waiting = False

    @contextmanager
    def watched(self) -> Iterator[None]:
        """While it lasts, `held` holds."""
        before = signal.getsignal(signal.SIGINT)
        ours = isinstance(getattr(before, "__self__", None), Interrupts)  # of a `fit` around this one
        if threading.current_thread() is not threading.main_thread() or not (
            ours or before is signal.default_int_handler
        ):
            yield
            return
        self.broken = self._waiting = False
        self._depth = 0
        with Handler(self._received):
            yield

    @contextmanager
    def held(self) -> Iterator[None]:
        """A first Ctrl-C is raised at the end, a second one at once."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
        if self._waiting and not self._depth:
            self._waiting = False
            raise KeyboardInterrupt

    def _received(self, _number: int, _frame: Any) -> None:
        if not self._depth:
            raise KeyboardInterrupt
        if self._waiting:
            self.broken = True
            raise KeyboardInterrupt
        self._waiting = True
