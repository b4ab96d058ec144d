"""Threads that call back: at a time, or after an answer."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from pyflame_rt.graph.errors import RunCancelledError
from pyflame_rt.responses import Response

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyflame_rt.futures import RequestFuture

__all__ = ["Alarms", "Callbacks"]

log = logging.getLogger("pyflame_rt")


class Callbacks:
    """Threads for the callbacks of callers, so that a slow one keeps no run waiting.

    Args:
        threads: how many.
        name: what they are called in a debugger.

    Example:
        >>> from pyflame_rt.responses import Response
        >>> calls, told = Callbacks(1, "example"), []
        >>> calls.call(lambda *answer: told.append(answer), Response(1, {"y": 2}))
        >>> calls.close()
        >>> told
        [(1, True, {'y': 2}, '')]
    """

    def __init__(self, threads: int, name: str) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)

    def call(self, callback: Callable[[int, bool, Any, str], None], response: Response) -> None:
        """Have ``callback(request_id, success, outputs, error)`` called; what it raises is logged."""
        self._threads.submit(self._call, callback, response)

    def after(self, future: RequestFuture[Any], callback: Callable[[int, bool, Any, str], None]) -> None:
        """Have the callback called with what a future of a Response becomes; a cancelled one is no success."""

        def done(ended: Future[Any]) -> None:
            if ended.cancelled():
                self.call(callback, Response(future.request_id, error=RunCancelledError("cancelled")))
            else:
                self.call(callback, ended.result())

        future.add_done_callback(done)

    def _call(self, callback: Callable[[int, bool, Any, str], None], response: Response) -> None:
        outputs = response.outputs if response.success else {}
        try:
            callback(response.request_id, response.success, outputs, response.error_message)
        except Exception:
            log.exception("the callback of request %d raised", response.request_id)

    def close(self) -> None:
        """Wait until all were called, and end the threads; called by a callback, do not wait for that."""
        mine = threading.current_thread() in self._threads._threads
        self._threads.shutdown(wait=not mine)


class Alarms:
    """A thread that calls functions at given times; it begins with the first of them.

    Example:
        >>> alarms, rang = Alarms("example"), threading.Event()
        >>> alarms.at(time.perf_counter() + 0.001, rang.set)
        >>> rang.wait(10)
        True
        >>> alarms.close()
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._changed = threading.Condition()
        self._heap: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()
        self._thread: threading.Thread | None = None
        self._closed = False

    def at(self, when: float, call: Callable[[], object]) -> None:
        """Call a function when ``time.perf_counter`` has come so far."""
        with self._changed:
            if self._closed:
                return
            heapq.heappush(self._heap, (when, next(self._numbers), call))
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name=self._name, daemon=True)
                self._thread.start()
            elif self._heap[0][0] == when:
                self._changed.notify()

    def _watch(self) -> None:
        while True:
            with self._changed:
                while not self._heap or self._heap[0][0] > time.perf_counter():
                    if self._closed:
                        return
                    wait = self._heap[0][0] - time.perf_counter() if self._heap else None
                    self._changed.wait(wait if wait is None else max(wait, 0.0))
                call = heapq.heappop(self._heap)[2]
            call()

    def close(self) -> None:
        """Call no more functions."""
        with self._changed:
            self._closed = True
            self._heap.clear()
            self._changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
