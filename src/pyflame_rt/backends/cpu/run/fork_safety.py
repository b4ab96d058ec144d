"""What a fork leaves behind.

In a forked child the threads of libgomp's pool do not exist, and a parallel region on the thread that owns the old pool
waits for them for ever. That is the thread that forked, and no other: threads that are new in the child get pools of
their own. So the thread that is about to fork ends its pool; the next region begins a new one, on either side.

That also keeps libgomp's count of its threads right: threads it counts and that do not exist make all others sleep
where they would spin for a moment, in every region.

An OpenMP runtime older than version 5.0 of the standard has no call for that. There, native work of the forking thread
goes to one that is kept for it.
"""

from __future__ import annotations

import os
import threading
import weakref
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from pyflame_rt.backends.cpu.run.gomp import loaded_gomp

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

__all__ = ["call_native", "end_pool", "forget_after_fork", "forked", "handing_over"]

_HARD = 2  # omp_pause_hard

T = TypeVar("T")


class _Forgets(Protocol):
    def forget(self) -> None: ...


_leaving = threading.local()  # of a thread that forks: whether it ended its pool
_stale: int | None = None  # the thread whose pool is the parent's
_delegate: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] | None = None
_holders: weakref.WeakSet[Any] = weakref.WeakSet()


def end_pool() -> bool:
    """End the threads that parallel regions of the calling thread share; False where that cannot be done.

    The next parallel region begins new ones.
    """
    library = loaded_gomp()
    if library is None:
        return True
    pause = getattr(library, "omp_pause_resource_all", None)
    return pause is not None and pause(_HARD) == 0


def handing_over() -> bool:
    """True in a forked child in which one thread has a pool of its parent's."""
    return _stale is not None


def forked() -> bool:
    """True on that thread: it must not begin parallel regions."""
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


def _before_fork() -> None:
    _leaving.ended = not forked() and end_pool()


def _after_fork() -> None:
    global _stale, _delegate
    _stale, _delegate = None if _leaving.ended else threading.get_ident(), None
    for holder in list(_holders):
        holder.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork)
