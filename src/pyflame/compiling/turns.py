"""Traces, which change tensors for a while and put them back, come one at a time and not during replays."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Turns", "turns"]


class _Mine(threading.local):
    depth = 0


class Turns:
    """Who may go on: any number of replays, or one trace.

    A trace that waits comes before replays that begin later. What a thread begins inside a replay or a trace of its own
    waits for nobody.

    Example:
        >>> from pyflame.compiling.turns import Turns
        >>> turns = Turns()
        >>> with turns.replaying(), turns.replaying():
        ...     turns.replays
        1
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Nobody is under way."""
        self._changed = threading.Condition(threading.Lock())
        self._mine = _Mine()
        self.replays = self._traces = self._waiting = 0

    @contextmanager
    def replaying(self) -> Iterator[None]:
        """A replay that takes Python is under way in this thread."""
        if self._mine.depth:
            yield
            return
        with self._changed:
            while self._traces or self._waiting:
                self._changed.wait()
            self.replays += 1
        self._mine.depth = 1
        try:
            yield
        finally:
            self._mine.depth = 0
            with self._changed:
                self.replays -= 1
                self._changed.notify_all()

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """A trace is under way in this thread."""
        if self._mine.depth:
            yield
            return
        with self._changed:
            self._waiting += 1
            try:
                while self._traces or self.replays:
                    self._changed.wait()
                self._traces = 1
            finally:
                self._waiting -= 1
                self._changed.notify_all()
        self._mine.depth = 1
        try:
            yield
        finally:
            self._mine.depth = 0
            with self._changed:
                self._traces = 0
                self._changed.notify_all()


turns = Turns()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=turns.reset)
