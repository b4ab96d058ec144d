"""What a fork leaves behind.

In a forked child the threads of libgomp's pool do not exist, and a parallel region on the thread that owns the old pool
waits for them for ever. That is the thread that forked, and no other: threads that are new in the child get pools of
their own. So native work of the forking thread goes to one that is kept for it.
"""

from __future__ import annotations

import os
import threading
import weakref
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

__all__ = ["call_native", "forget_after_fork", "forked", "in_child"]


T = TypeVar("T")


class _Forgets(Protocol):
    def forget(self) -> None: ...


_stale: int | None = None  # the thread whose pool is the parent's
_delegate: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] | None = None
_holders: weakref.WeakSet[Any] = weakref.WeakSet()


def in_child() -> bool:
    """True in a process that was forked after this module was loaded."""
    return _stale is not None


def forked() -> bool:
    """True on the thread that forked, in the child: it must not begin parallel regions."""
    return _stale is not None and threading.get_ident() == _stale


def forget_after_fork(holder: _Forgets) -> None:
    """Call ``holder.forget()`` in a forked child: its native objects belong to the parent."""
    _holders.add(holder)


def call_native(function: Callable[[], T]) -> T:
    """Call something that runs native code on several threads; what it raises comes through."""
    global _delegate
    if not forked():
        return function()
    if _delegate is None:
        _delegate = SimpleQueue()
        threading.Thread(target=_work, args=(_delegate,), daemon=True, name="pyflame-rt-native").start()
    from concurrent.futures import Future

    future: Future[T] = Future()
    _delegate.put((future, function))
    return future.result()


def _work(orders: SimpleQueue[tuple[Future[Any], Callable[[], Any]]]) -> None:
    while True:
        future, function = orders.get()
        try:
            result = function()
        except BaseException as error:  # noqa: BLE001 - handed to the caller
            future.set_exception(error)
        else:
            future.set_result(result)
            del result
        del future, function  # hold nothing while waiting


def _after_fork() -> None:
    global _stale, _delegate
    _stale, _delegate = threading.get_ident(), None
    for holder in list(_holders):
        holder.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
