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
    under_way = ""  # "replay" or "trace"


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
        self._mine = _Mine()
        self.reset()

    def reset(self) -> None:
        """Nobody is under way, but for this thread: the others are a parent's."""
        self._changed = threading.Condition(threading.Lock())
        self.replays = int(self._mine.under_way == "replay")
        self._traces = int(self._mine.under_way == "trace")
        self._waiting = 0

    @contextmanager
    def replaying(self) -> Iterator[None]:
        """A replay that takes Python is under way in this thread."""
        if self._mine.under_way:
            yield
            return
        with self._changed:
            while self._traces or self._waiting:
                self._changed.wait()
            self.replays += 1
        with self._taking("replay"):
            yield

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """A trace is under way in this thread."""
        if self._mine.under_way:
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
        with self._taking("trace"):
            yield

    @contextmanager
    def _taking(self, kind: str) -> Iterator[None]:
        """This thread's turn, which it gives back."""
        self._mine.under_way = kind
        try:
            yield
        finally:
            self._mine.under_way = ""
            with self._changed:
                if kind == "trace":
                    self._traces = 0
                else:
                    self.replays -= 1
                self._changed.notify_all()


turns = Turns()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=turns.reset)
