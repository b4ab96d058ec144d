"""A future that can be waited for in threads and awaited in coroutines."""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from pyflame_rt.graph.errors import RunCancelledError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

__all__ = ["AwaitableFuture", "RequestFuture", "RunFuture", "RunThreads"]

_THREADS = 4
T = TypeVar("T")


class AwaitableFuture(Future[T]):
    """A future of the standard library that coroutines can await as well.

    Example:
        >>> import asyncio
        >>> future: AwaitableFuture[int] = AwaitableFuture()
        >>> future.set_result(1)
        >>> async def main() -> int:
        ...     return await future
        >>> asyncio.run(main())
        1
    """

    def __await__(self) -> Generator[Any, None, T]:
        import asyncio  # slow to import, and needed by coroutines only, which have it

        return asyncio.wrap_future(self).__await__()


class RequestFuture(AwaitableFuture[T]):
    """The answer of a request that somebody else works on; it can be cancelled until it is answered.

    Args:
        request_id: the request's number.
        withdraw: takes the request back; False when it was answered.

    Example:
        >>> future = RequestFuture(1, lambda: True)
        >>> future.cancel(), future.cancelled(), future.request_id
        (True, True, 1)
    """

    def __init__(self, request_id: int, withdraw: Callable[[], bool]) -> None:
        super().__init__()
        self.request_id = request_id
        self._withdraw = withdraw

    def cancel(self) -> bool:
        """Take the request back; False when it was answered before."""
        if not self._withdraw():
            return self.cancelled()
        self._withdraw = _answered
        super().cancel()
        self.set_running_or_notify_cancel()  # tells those who wait for several futures
        return True

    def settle(self, answer: T) -> None:
        """Answer the request, and let go of it."""
        self._withdraw = _answered
        self.set_result(answer)


def _answered() -> bool:
    return False


class RunFuture(AwaitableFuture[Any]):
    """The result of a run that is under way; cancelling it stops the run at the next node.

    Example:
        >>> future = RunFuture()
        >>> future.set_result([1]); future.result()
        [1]
    """

    def __init__(self) -> None:
        super().__init__()
        self.stop = threading.Event()

    def cancel(self) -> bool:
        """Stop the run: at once when it has not begun, else at the next node."""
        self.stop.set()
        return super().cancel()


class RunThreads(ThreadPoolExecutor):
    """The threads that a session's runs in the background share.

    Example:
        >>> RunThreads.alive(None).submit(abs, -1).result()
        1
    """

    def __init__(self) -> None:
        super().__init__(_THREADS, thread_name_prefix="pyflame-rt-run")
        self._process = os.getpid()

    def begin(self, future: RunFuture, work: Callable[[], None]) -> None:
        """Have ``work`` fill a future; when the threads end before it was begun, whoever waits is told."""

        def told(order: Future[None]) -> None:
            if order.cancelled() and future.set_running_or_notify_cancel():
                future.set_exception(RunCancelledError("the session was closed before the run began"))

        self.submit(work).add_done_callback(told)

    @classmethod
    def alive(cls, threads: RunThreads | None) -> RunThreads:
        """These, or new ones: threads do not survive a fork, so a child makes its own."""
        return cls() if threads is None or threads._process != os.getpid() else threads
