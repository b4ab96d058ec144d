"""First answers under way: what can wait, such as writing files and polishing code, is not done meanwhile."""

from __future__ import annotations

import os
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["answering", "last_answer", "wait_for_answers"]

_LOOK = 0.05  # seconds between looks at what else may end the waiting


class _State:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.count = 0
        self.ended = 0.0
        self.calm = threading.Event()
        self.calm.set()


_state = _State()


@contextmanager
def answering() -> Iterator[None]:
    """A caller waits for the first answer of its kind, which is made inside."""
    state = _state
    with state.lock:
        state.count += 1
        state.calm.clear()
    try:
        yield
    finally:
        with state.lock:
            state.count -= 1
            if not state.count:
                state.ended = time.monotonic()
                state.calm.set()


def last_answer() -> float:
    """When the latest first answer was out, by the monotonic clock; 0.0 before any was."""
    return _state.ended


def wait_for_answers(hurry: threading.Event) -> None:
    """Until no first answer is under way; no longer than until ``hurry`` is set or the program ends."""
    while not hurry.is_set() and threading.main_thread().is_alive() and not _state.calm.wait(_LOOK):
        pass


def _after_fork() -> None:
    """In the child: no thread of the parent's answers anything."""
    global _state
    _state = _State()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
