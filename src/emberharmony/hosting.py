"""A count of the operations that left their library for NumPy, so that callers can tell."""

import threading

__all__ = ["host_steps", "note_host_step"]

_local = threading.local()


def note_host_step() -> None:
    """Count one operation of this thread that is computed by NumPy for another library.

    >>> before = host_steps()
    >>> note_host_step()
    >>> host_steps() - before
    1
    """
    _local.count = host_steps() + 1


def host_steps() -> int:
    """How many there were in this thread so far."""
    return getattr(_local, "count", 0)
