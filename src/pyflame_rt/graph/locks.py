"""Locks that a forked child finds open: the thread that held one in the parent does not exist there."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

__all__ = ["hold_while_forking", "new_lock", "new_rlock"]

_locks: weakref.WeakSet[Any] = weakref.WeakSet()


def new_lock() -> threading.Lock:
    """A lock for short moments, after which what it guards is whole again.

    Example:
        >>> with new_lock() as held:
        ...     held
        True
    """
    lock = threading.Lock()
    _locks.add(lock)
    return lock


def new_rlock() -> Any:
    """The same, for a thread to take more than once."""
    lock = threading.RLock()
    _locks.add(lock)
    return lock


def hold_while_forking(lock: Any) -> None:
    """Let forks wait until nobody else holds an RLock: what it guards must not be copied half done."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)


def _after_fork() -> None:
    for lock in list(_locks):
        lock._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
