"""A future that can be waited for in threads and awaited in coroutines."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["RunFuture"]


class RunFuture(Future[Any]):
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

    def __await__(self) -> Generator[Any, None, Any]:
        import asyncio  # slow to import, and needed by coroutines only, which have it

        return asyncio.wrap_future(self).__await__()
