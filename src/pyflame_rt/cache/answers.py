"""First answers under way: what can wait, such as writing files and polishing code, is not done meanwhile."""

from __future__ import annotations

import os
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["HANDED", "RUN_FOLLOWS", "answering", "last_answer", "wait_for_answers"]

_LOOK = 0.05  # seconds between looks at what else may end the waiting
HANDED = 0.01  # seconds from when an answer is there until its caller has it
RUN_FOLLOWS = 0.25  # seconds in which whoever has a session most likely begins to run it


class _State:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.count = 0
        self.ended = 0.0
        self.rested = 0.0  # until when what can wait still does
        self.calm = threading.Event()
        self.calm.set()

    def begin(self) -> None:
        with self.lock:
            self.count += 1
            self.calm.clear()

    def end(self, rest: float) -> None:
        with self.lock:
            self.count -= 1
            if self.count:
                return
            self.ended = time.monotonic()
            self.rested = self.ended + rest
            self.calm.set()


_state = _State()


@contextmanager
def answering(rest: float = HANDED) -> Iterator[None]:
    """A caller waits for the first answer of its kind, which is made inside, and ``rest`` seconds of calm after it."""
    state = _state
    state.begin()
    try:
        yield
    finally:
        state.end(rest)


def last_answer() -> float:
    """When the latest first answer was out, by the monotonic clock; 0.0 before any was."""
    return _state.ended


def wait_for_answers(hurry: threading.Event) -> None:
    """Until the first answers are out and handed over; no longer than until ``hurry`` is set or the program ends."""
    while not hurry.is_set() and threading.main_thread().is_alive():
        if not _state.calm.wait(_LOOK):
            continue
        left = _state.rested - time.monotonic()
        if left <= 0:
            return
        hurry.wait(min(left, _LOOK))


def _after_fork() -> None:
    """In the child: no thread of the parent's answers anything."""
    global _state
    _state = _State()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
