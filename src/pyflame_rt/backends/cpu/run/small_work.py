"""Plans with so little work that waiting for a thread may take longer than doing without it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyflame_rt.backends.cpu.lower.lowering import DnnStep, HostStep, KernelStep

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["BRIEF", "HANDED_OVER", "brief"]

# In parts that are worth a thread, some 5 us each: what a thread may take to come where cores are busy, and what it
# takes to have another thread do all of it.
BRIEF = 16
HANDED_OVER = 64


def brief(steps: Sequence[KernelStep | DnnStep | HostStep], most: int = BRIEF) -> bool:
    """Whether steps have work for several threads, not more than ``most`` parts of it, and can all do with one."""
    parts = 0
    for step in steps:
        if isinstance(step, KernelStep):
            parts += max(-(-step.rows // max(step.grain, 1)) - 1, 0)
        elif isinstance(step, HostStep) or step.primitive.threads > 1:
            return False
        if parts > most:
            return False
    return parts > 0
