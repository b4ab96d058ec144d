"""First answers under way: what can wait, such as writing files and polishing code, is not done meanwhile.

Python's cyclic collector can wait too: planning makes many objects that live as long as the plan, and it would look
through all of them, and through everything that was imported, several times. And threads that compile beside the
planning come back into the interpreter for moments only, for each of which they would wait five milliseconds.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["answering", "last_answer", "wait_for_answers"]

_LOOK = 0.05  # seconds between looks at what else may end the waiting
_HANDED = 0.01  # seconds from when an answer is there until its caller has it
_TURN = 1e-4  # seconds a thread that plans keeps the interpreter when another wants it


class _State:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.count = 0
        self.ended = 0.0
        self.calm = threading.Event()
        self.calm.set()
        self.collects = False  # what was set before
        self.turn = 0.0

    def begin(self) -> None:
        with self.lock:
            self.count += 1
            if self.count > 1:
                return
            self.calm.clear()
            self.collects, self.turn = gc.isenabled(), sys.getswitchinterval()
            gc.disable()
            sys.setswitchinterval(min(self.turn, _TURN))

    def end(self) -> None:
        with self.lock:
            self.count -= 1
            if self.count:
                return
            self.ended = time.monotonic()
            self.calm.set()  # before those it wakes may keep the interpreter for longer
            sys.setswitchinterval(self.turn)
            if self.collects:
                gc.enable()


_state = _State()


@contextmanager
def answering() -> Iterator[None]:
    """A caller waits for the first answer of its kind, which is made inside."""
    state = _state
    state.begin()
    try:
        yield
    finally:
        state.end()


def last_answer() -> float:
    """When the latest first answer was out, by the monotonic clock; 0.0 before any was."""
    return _state.ended


def wait_for_answers(hurry: threading.Event) -> None:
    """Until the first answers are out and handed over; no longer than until ``hurry`` is set or the program ends."""
    while not hurry.is_set() and threading.main_thread().is_alive():
        if not _state.calm.wait(_LOOK):
            continue
        left = _state.ended + _HANDED - time.monotonic()
        if left <= 0:
            return
        hurry.wait(left)


def _after_fork() -> None:
    """In the child: no thread of the parent's answers anything."""
    global _state
    before, _state = _state, _State()
    if before.count:
        sys.setswitchinterval(before.turn)
        if before.collects:
            gc.enable()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
