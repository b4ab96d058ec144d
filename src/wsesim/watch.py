"""A way to stop long work from outside: what takes time asks, every few milliseconds, whether to go on.

The hook belongs to the context (thread or asyncio task) that set it. It raises to stop; nobody here catches that.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["hook", "poll", "watched"]

_HOOK: ContextVar[Callable[[], None] | None] = ContextVar("wsesim_watch", default=None)


@contextmanager
def watched(check: Callable[[], None] | None) -> Iterator[None]:
    """While the body runs, compiling, loading and simulating call ``check`` now and then; it raises to stop them.

    >>> def late() -> None:
    ...     raise TimeoutError("time is up")
    >>> with watched(late):
    ...     poll()
    Traceback (most recent call last):
    TimeoutError: time is up
    """
    token = _HOOK.set(check)
    try:
        yield
    finally:
        _HOOK.reset(token)


def hook() -> Callable[[], None] | None:
    """The hook in force, if there is one."""
    return _HOOK.get()


def poll() -> None:
    """Call the hook in force, if there is one."""
    check = _HOOK.get()
    if check is not None:
        check()
