"""How many threads this process may use, and telling OpenMP so."""

from __future__ import annotations

import ctypes
import math
import os
import time
from contextlib import contextmanager
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.backends.cpu.run.fork_safety import forget_after_fork
from pyflame_rt.backends.cpu.run.gomp import load_gomp

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["available_threads", "openmp_threads", "set_threads", "threads_for", "use_threads"]


_CGROUPS, _MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def available_threads(cgroup: Path = _CGROUPS, membership: Path = _MEMBERSHIP) -> int:
    """Processors this process may run on, and no more than its cgroup pays for.

    Args:
        cgroup: where cgroups are mounted.
        membership: the file that says which cgroups this process is in.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    asked = _quota_lately if (cgroup, membership) == (_CGROUPS, _MEMBERSHIP) else _quota
    quota = asked(cgroup, membership)
    return max(1, min(cores, math.ceil(quota) if quota != math.inf else cores))


def _quota_lately(cgroup: Path, membership: Path) -> float:
    """The quota as it was at most a second ago: a first answer asks for it several times, and it is in many files."""
    return _remembered(cgroup, membership, int(time.monotonic()))


@lru_cache(maxsize=1)
def _remembered(cgroup: Path, membership: Path, second: int) -> float:  # noqa: ARG001 - a new second, a new answer
    return _quota(cgroup, membership)


def _quota(cgroup: Path, membership: Path) -> float:
    return min(_quotas(cgroup, membership), default=math.inf)


def _quotas(cgroup: Path, membership: Path) -> Iterator[float]:
    """Processor quotas of this process's cgroups and of all above them, in processors."""
    for line in _text(membership).splitlines():
        _, controllers, path = [*line.split(":", 2), "", "", ""][:3]
        if controllers == "":
            yield from _along(cgroup, path, _quota_v2)
        elif "cpu" in controllers.split(","):
            yield from _along(cgroup / controllers, path, _quota_v1)
            yield from _along(cgroup / "cpu", path, _quota_v1)


def _along(root: Path, path: str, read: Any) -> Iterator[float]:
    folder = root / path.strip("/")
    for place in (folder, *folder.parents):
        if not place.is_relative_to(root):
            return
        quota = read(place)
        if quota is not None:
            yield quota


def _quota_v2(folder: Path) -> float | None:
    words = _text(folder / "cpu.max").split()
    return _ratio(words[0], words[1]) if len(words) == 2 else None


def _quota_v1(folder: Path) -> float | None:
    return _ratio(_text(folder / "cpu.cfs_quota_us").strip(), _text(folder / "cpu.cfs_period_us").strip())


def _ratio(quota: str, period: str) -> float | None:
    if not quota.isdigit() or not period.isdigit() or int(period) == 0:
        return None  # "max" and -1 mean no limit
    return int(quota) / int(period)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


@cache
def _openmp() -> tuple[Any, Any] | None:
    library = load_gomp()
    return None if library is None else (library.omp_get_max_threads, library.omp_set_num_threads)


def openmp_threads() -> tuple[int | None, int | None]:
    """Addresses of the functions that tell and set how many threads regions begun by the caller use."""
    calls = _openmp()
    if calls is None:
        return None, None
    get, put = (ctypes.cast(call, ctypes.c_void_p).value for call in calls)
    return get, put


# Threads that all sessions of the process share, and how many runs are under way: the driver counts the latter.
_budget = np.zeros(2, np.int64)


def budget(threads: int) -> int:
    """Address of the budget that all runs share, which is at least ``threads`` and at least what the machine allows."""
    _budget[0] = max(int(_budget[0]) or available_threads(), threads)
    return int(_budget.ctypes.data)


def runs_under_way() -> int:
    """How many runs are in native code at this moment."""
    return int(_budget[1])


class _Counted:
    """Runs of the parent are not under way in a forked child."""

    def forget(self) -> None:
        _budget[1] = 0


_counted = _Counted()
forget_after_fork(_counted)


# Multiplications that take some 30 us: waking a second thread does not pay for less.
SMALL_PRODUCT = 1_000_000


@contextmanager
def threads_for(multiplications: int) -> Iterator[None]:
    """Primitives made inside use one thread when their work is small; they divide it when they are made."""
    if multiplications >= SMALL_PRODUCT:
        yield
        return
    with use_threads(1):
        yield


@contextmanager
def use_threads(count: int) -> Iterator[None]:
    """Parallel regions begun by this thread use ``count`` threads; what was set before comes back."""
    before = set_threads(count)
    try:
        yield
    finally:
        set_threads(before)


def set_threads(count: int) -> int:
    """Set how many threads parallel regions begun by this thread use; returns what was set before."""
    calls = _openmp()
    if calls is None:
        return count
    before = int(calls[0]())
    if before != count:
        calls[1](count)
    return before
