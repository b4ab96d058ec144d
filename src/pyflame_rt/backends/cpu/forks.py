"""What a fork leaves behind.

In a forked child the threads of libgomp's pool do not exist, and a parallel region on the thread that
owns the old pool waits for them for ever. A thread that is new in the child gets a pool of its own,
so there native calls go through one.
"""

from __future__ import annotations

import os
import threading
import weakref
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["call_native", "forget_after_fork", "forked"]


T = TypeVar("T")


class _Forgets(Protocol):
    def forget(self) -> None: ...


_forked = False
_holders: weakref.WeakSet[Any] = weakref.WeakSet()


def forked() -> bool:
    """True in a process that was forked after this module was loaded."""
    return _forked


def forget_after_fork(holder: _Forgets) -> None:
    """Call ``holder.forget()`` in a forked child: its native objects belong to the parent."""
    _holders.add(holder)


def call_native(function: Callable[[], T]) -> T:
    """Call something that runs native code on several threads; what it raises comes through."""
    if not _forked:
        return function()
    future: Future[T] = Future()

    def work() -> None:
        try:
            future.set_result(function())
        except BaseException as error:  # noqa: BLE001 - handed to the caller
            future.set_exception(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return future.result()


def _after_fork() -> None:
    global _forked
    _forked = True
    for holder in list(_holders):
        holder.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
