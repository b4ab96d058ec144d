"""How many threads tensors are computed with: as said here, by OMP_NUM_THREADS, or by the machine."""

from __future__ import annotations

import os

__all__ = ["get_num_threads", "set_num_threads", "wanted"]

_said = [0]


def set_num_threads(num_threads: int) -> None:
    """Compute with so many threads at most.

    Example:
        >>> import pyflame as pf
        >>> before = pf.get_num_threads()
        >>> pf.set_num_threads(1)
        >>> pf.get_num_threads()
        1
        >>> pf.set_num_threads(before)
    """
    if isinstance(num_threads, bool) or not isinstance(num_threads, int):
        raise TypeError(f"set_num_threads takes a number. Received: {type(num_threads).__name__}")
    if num_threads < 1:
        raise ValueError(f"set_num_threads takes a number above 0. Received: {num_threads}")
    from pyflame.evaluation import clear_cache

    if num_threads != wanted():
        _said[0] = num_threads
        clear_cache()  # executables divide their work when they are made


def get_num_threads() -> int:
    """How many threads tensors are computed with at most."""
    return wanted() or len(os.sched_getaffinity(0))


def wanted() -> int:
    """How many threads were asked for; 0 where nobody did."""
    if _said[0]:
        return _said[0]
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(first) if first.isdigit() else 0
