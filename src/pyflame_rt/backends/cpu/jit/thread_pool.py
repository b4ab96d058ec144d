"""Threads that work off tasks and end with the last one; nothing outlives the interpreter or a fork."""

from __future__ import annotations

import atexit
import logging
import math
import os
import threading
import time
import weakref
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pyflame_rt.backends.cpu.run.threads import available_threads
from pyflame_rt.cache.answers import last_answer, wait_for_answers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["HELPERS", "PoolTask", "ThreadPool", "do_all"]

_ASK_AGAIN = 1.0  # seconds
T = TypeVar("T")
log = logging.getLogger("pyflame_rt")
_crews: weakref.WeakSet[ThreadPool] = weakref.WeakSet()


class _GivenUp(Exception):
    """Whoever had begun a task was interrupted."""


class PoolTask(Generic[T]):
    """Work that is done once, by whoever takes it first; by another, when that one is interrupted."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work: Callable[[], T] | None = work
        self._lock = threading.Lock()
        self._future: Future[T] = Future()

    def run(self) -> bool:
        """Do the work here unless somebody has begun it; False then. What fails is kept for `result`."""
        with self._lock:
            work, self._work = self._work, None
        if work is None:
            return False
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - handed to whoever asks for the result
            self._future.set_exception(error)
        except BaseException:  # Ctrl-C is for this thread alone
            with self._lock:
                given_up, self._future, self._work = self._future, Future(), work
            given_up.set_exception(_GivenUp())
            raise
        else:
            self._future.set_result(result)
        return True

    def result(self) -> T:
        """What the work gave; it is done here if nobody has begun it."""
        while True:
            with self._lock:
                future = self._future
            self.run()
            try:
                return future.result()
            except _GivenUp:
                continue

    def wait(self) -> None:
        """Until the work has ended, however it did; it is done here if nobody has begun it."""
        with suppress(Exception):
            self.result()

    @property
    def done(self) -> bool:
        """Whether the work has ended."""
        return self._future.done()

    @property
    def failed(self) -> bool:
        """Whether the work has ended with an error."""
        return self._future.done() and self._future.exception() is not None


def do_all(tasks: Sequence[PoolTask[T]]) -> list[T]:
    """What tasks give, some of which a crew may do meanwhile: it begins with the first, this thread with the last."""
    for task in reversed(tasks):
        task.run()
    return [task.result() for task in tasks]


class ThreadPool:
    """A few threads for tasks in the order they come.

    Args:
        name: of the threads.
        size: how many at most; 0 leaves tasks to those who ask for their results.
        delay: seconds without a new task, or a first answer, before the first is begun; none is begun while first
            answers are under way.
    """

    def __init__(self, name: str, size: Callable[[], int], *, delay: float = 0.0) -> None:
        self._name, self._size, self._delay = name, size, delay
        self._reset()
        _crews.add(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._tasks: deque[PoolTask[Any]] = deque()
        self._last: deque[PoolTask[Any]] = deque()
        self._threads: set[threading.Thread] = set()
        self._latest = 0.0
        self._limit, self._asked = 0, -math.inf
        self._waiting = 0
        self._hurry = threading.Event()  # as long as somebody waits
        self._stopped = False

    def submit(self, task: PoolTask[Any], *, last: bool = False) -> None:
        """Do this when it is its turn; ``last``: after all that came without the word."""
        with self._lock:
            size = self._allowed()
            if self._stopped or not size:
                return
            (self._last if last else self._tasks).append(task)
            self._latest = time.monotonic()
            if len(self._threads) >= min(size, len(self._tasks) + len(self._last)):
                return
            thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._threads.add(thread)
            try:
                thread.start()
            except RuntimeError:  # the interpreter is ending: no more threads
                self._threads.discard(thread)

    def _allowed(self) -> int:
        """How many threads there may be, as it was lately: the system's answer takes longer than many a task."""
        now = time.monotonic()
        if now - self._asked > _ASK_AGAIN:
            self._limit, self._asked = self._size(), now
        return self._limit

    def _work(self) -> None:
        while True:
            self._pause()
            with self._lock:
                task = None if self._stopped else self._next()
                if task is None:
                    self._threads.discard(threading.current_thread())
                    return
            try:
                task.run()
            except BaseException:
                with self._lock:  # nobody must count on a thread that ends
                    self._threads.discard(threading.current_thread())
                raise

    def _next(self) -> PoolTask[Any] | None:
        tasks = self._tasks or self._last
        return tasks.popleft() if tasks else None

    def _pause(self) -> None:
        """Until the first answers that tasks were made for are out, or no new task has come for a while."""
        if not self._delay:
            return
        while True:
            wait_for_answers(self._hurry)
            left = self._latest + self._delay - time.monotonic()
            if left <= 0 or self._hurry.is_set() or last_answer() >= self._latest:
                return
            self._hurry.wait(left)

    def wait(self) -> None:
        """Until every task is done; begins at once."""
        with self._lock:
            self._waiting += 1
            self._hurry.set()
        try:
            while self._help():
                pass
        finally:
            with self._lock:
                self._waiting -= 1
                if not self._waiting and not self._stopped:
                    self._hurry.clear()

    def _help(self) -> bool:
        """Wait for one of the threads, else do a task here; False when there is neither."""
        with self._lock:
            threads = [t for t in self._threads if t is not threading.current_thread()]
            task = None if threads else self._next()
        if threads:
            threads[0].join()
        elif task is not None:
            task.run()
        return bool(threads) or task is not None

    def stop(self) -> None:
        """Give up what was not begun, and wait for what was."""
        with self._lock:
            self._stopped = True
            self._tasks.clear()
            self._last.clear()
            threads = list(self._threads)
        self._hurry.set()
        for thread in threads:
            thread.join()


# Those who help a thread that plans: they compile kernels and pack weights beside it.
HELPERS = ThreadPool("pyflame-helper", lambda: min(available_threads() - 1, 2))


def _stop_all() -> None:
    for crew in list(_crews):
        crew.stop()


def _after_fork() -> None:
    for crew in list(_crews):
        crew._reset()


atexit.register(_stop_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
