"""Writing in the background, so that the first answer does not wait for the disk."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING

from pyflame_rt.cache.answers import wait_for_answers

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CacheWriter"]

_DELAY = 0.2  # seconds in which the first answer is more urgent
log = logging.getLogger("pyflame_rt")
_writers: weakref.WeakSet[CacheWriter] = weakref.WeakSet()


class CacheWriter:
    """Does one job after the other on a thread that ends with the last one; the interpreter waits for it at exit.

    It rests while first answers are under way.
    """

    def __init__(self) -> None:
        self._reset()
        _writers.add(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._jobs: deque[Callable[[], object]] = deque()
        self._thread: threading.Thread | None = None
        self._waiting = 0
        self._hurry = threading.Event()  # as long as somebody waits

    def submit(self, job: Callable[[], object]) -> None:
        """Do this when it is its turn; what fails is logged, never raised."""
        with self._lock:
            self._jobs.append(job)
            if self._thread is not None:
                return
            # Whoever submits may be a thread the interpreter does not wait for; this one it must.
            thread = threading.Thread(target=self._work, name="pyflame-cache", daemon=False)
            try:
                thread.start()
            except RuntimeError:  # the interpreter is ending: no more threads
                self._jobs.clear()
            else:
                self._thread = thread  # not before: nobody can wait for a thread that was not started

    def _work(self) -> None:
        self._hurry.wait(_DELAY)
        while True:
            wait_for_answers(self._hurry)
            with self._lock:
                if not self._jobs:
                    self._thread = None
                    return
                job = self._jobs.popleft()
            try:
                job()
            except Exception:
                log.debug("writing to the cache failed", exc_info=True)

    def wait(self) -> None:
        """Until every job is done."""
        with self._lock:
            thread = self._thread
            if thread is None or thread is threading.current_thread():
                return
            self._waiting += 1
            self._hurry.set()
        try:
            thread.join()
        finally:
            with self._lock:
                self._waiting -= 1
                if not self._waiting:
                    self._hurry.clear()


def _after_fork() -> None:
    for writer in list(_writers):
        writer._reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
