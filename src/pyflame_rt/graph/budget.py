"""Memory budgets: sizes are compared with what a run may take before any of it is taken."""

from __future__ import annotations

import math
import os
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from pyflame_rt.graph.errors import MemoryLimitError
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

__all__ = ["EAGER", "Budget", "budgeted", "check_elements", "check_memory", "current_budget", "machine_memory"]

# What a model may take by default: a share of the machine, and of that not more than a multiple of what was given to
# it. A small file with small inputs has no good reason for gigabytes; a large model or a large batch has.
SHARE = 0.5
AMPLIFICATION = 256
ALWAYS = 1280 * 2**20  # bytes that any model may take


@dataclass(frozen=True, slots=True)
class Budget:
    """How many bytes may be taken.

    Attributes:
        limit: a number of bytes that the user set; 0 for the default.
        model: whether the default is a multiple of what is given, as for a model from a file.
        in_files: weights stay in mapped files, from which the system takes and to which it gives back their pages;
            they do not count.

    Example:
        >>> Budget(limit=100).allowed(0)
        100
        >>> Budget(model=True).allowed(0) <= Budget().allowed(0)
        True
    """

    limit: int = 0
    model: bool = False
    in_files: bool = False

    def allowed(self, given: int) -> int:
        """Bytes that may be taken where weights and inputs have ``given`` bytes."""
        if self.limit:
            return self.limit
        share = int(machine_memory() * SHARE)
        return min(share, max(ALWAYS, AMPLIFICATION * given)) if self.model else share

    def why(self) -> str:
        """What to say of the limit."""
        if self.limit:
            return "memory_limit allows"
        return "without memory_limit, which can be raised, inputs and weights of this size allow"


EAGER = Budget()
_current: ContextVar[Budget] = ContextVar("pyflame_rt_budget", default=EAGER)


@contextmanager
def budgeted(budget: Budget) -> Generator[None]:
    """Within the block, :func:`check_memory` compares with this budget.

    Example:
        >>> with budgeted(Budget(limit=10)):
        ...     check_memory("x", 11)
        Traceback (most recent call last):
        pyflame_rt.graph.errors.MemoryLimitError: x needs 11 bytes, memory_limit allows 10
    """
    token = _current.set(budget)
    try:
        yield
    finally:
        _current.reset(token)


def current_budget() -> Budget:
    """The budget that is in force."""
    return _current.get()


def check_memory(what: str, nbytes: int, given: int = 0) -> None:
    """Refuse to take ``nbytes`` bytes for ``what`` when the budget does not allow it.

    Args:
        what: what needs them, for the message.
        nbytes: how many.
        given: bytes of what was given for it.
    """
    if nbytes <= ALWAYS and not _current.get().limit:
        return
    budget = _current.get()
    allowed = budget.allowed(given)
    if nbytes > allowed:
        raise MemoryLimitError(f"{what} needs {nbytes} bytes, {budget.why()} {allowed}")


def check_elements(what: str, shape: Iterable[int], itemsize: int = 8, given: int = 0) -> None:
    """The same for an array of a shape."""
    sizes = [int(d) for d in shape]
    check_memory(f"{what} of shape {sizes}", math.prod(sizes) * itemsize, given)


@lru_cache(maxsize=1)
def machine_memory() -> int:
    """Bytes of memory of this machine, or of the control group that the process is in.

    Example:
        >>> machine_memory() > 2**20
        True
    """
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")] if hasattr(os, "sysconf") else []
    for path in limits_of_groups():
        with suppress(OSError, UnicodeDecodeError):  # a group of others may not be looked at
            text = path.read_text("ascii").strip() if path.is_file() else ""
            sizes += [int(text)] if text.isdigit() else []
    return min(sizes, default=8 * 2**30)


def limits_of_groups(listed: Path = Path("/proc/self/cgroup"), top: Path = Path("/sys/fs/cgroup")) -> Iterator[Path]:
    """Where the limits of a process's control group and of those above it stand, in both versions.

    Args:
        listed: the groups of the process, as the system lists them.
        top: where groups are mounted.
    """
    for line in listed.read_text("utf-8", "replace").splitlines() if listed.is_file() else ["0::/"]:
        _, kinds, name = line.split(":", 2)
        if kinds and "memory" not in kinds.split(","):
            continue
        file = "memory.limit_in_bytes" if kinds else "memory.max"
        inner = Path(name.lstrip("/"))
        yield from ((top / "memory" if kinds else top) / folder / file for folder in (inner, *inner.parents))
