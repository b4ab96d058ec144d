"""Settings and statistics of a memory pool."""

from __future__ import annotations

from bisect import bisect_left
from numbers import Integral
from typing import TYPE_CHECKING, Any

from pyflame_rt.graph.arguments import number_problems
from pyflame_rt.graph.errors import InputError
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["PoolConfig", "PoolStats", "rounded_up"]


def rounded_up(size: int) -> int:
    """The next size with three bits that are not zero: blocks of like sizes share memory, at most a quarter is spare.

    Example:
        >>> [rounded_up(n) for n in (8, 9, 1000, 1024, 1025)]
        [8, 10, 1024, 1024, 1280]
    """
    shift = max(size.bit_length() - 3, 0)
    return -(-size >> shift) << shift


def _is_size(value: Any) -> bool:
    return isinstance(value, Integral) and int(value) >= 1


@dataclass(slots=True)
class PoolConfig:
    """Settings of a MemoryPool.

    Attributes:
        memory_limit: bytes that may be in use or kept; 0 for no limit. What is kept is given up first.
        alignment: of addresses, a power of two.
        size_classes: sizes that blocks are rounded up to; larger ones are taken as they are. None for classes of which
            four lie between a size and its double.
        max_blocks_per_class: blocks of one size that are kept for later.
        max_cached_bytes: bytes that are kept for later, of all sizes.
        thread_safe: threads may share the pool; False saves the locks of a program that has one thread.
        track_stats: count hits, misses and the peak; False leaves them 0.
        auto_grow: take memory from the system as it is needed; False takes no more than ``initial_pool_size``.
        initial_pool_size: bytes to take from the system at the start, as one block that is kept for later.

    Example:
        >>> PoolConfig(size_classes=[64, 256]).room(65), PoolConfig().room(1000), PoolConfig(alignment=3).validate()
        (256, 1024, ['alignment must be a power of two, got 3'])
    """

    memory_limit: int = 0
    alignment: int = 64
    size_classes: Sequence[int] | None = None
    max_blocks_per_class: int = 64
    max_cached_bytes: int = 128 << 20
    thread_safe: bool = True
    track_stats: bool = True
    auto_grow: bool = True
    initial_pool_size: int = 0

    def room(self, size: int) -> int:
        """Bytes that a block for so many takes."""
        if self.size_classes is None:
            return rounded_up(max(size, 1))
        classes = sorted(self.size_classes)
        at = bisect_left(classes, size)
        return classes[at] if at < len(classes) else size

    def most(self) -> int:
        """Bytes that may be taken from the system; 0 for any number."""
        return (
            self.memory_limit
            if self.auto_grow
            else min(self.memory_limit or self.initial_pool_size, self.initial_pool_size)
        )

    def validate(self) -> list[str]:
        """What is wrong with the settings; empty when nothing is."""
        names: Sequence[str] = ("memory_limit", "max_blocks_per_class", "max_cached_bytes", "initial_pool_size")
        problems = number_problems(self, dict.fromkeys(names, 0), {})
        if not _is_size(self.alignment) or self.alignment & (self.alignment - 1):
            problems.append(f"alignment must be a power of two, got {self.alignment!r}")
        if not all(map(_is_size, self.size_classes or ())):
            problems.append("size_classes must be positive whole numbers")
        if not self.auto_grow and not self.initial_pool_size:
            problems.append("without auto_grow, initial_pool_size says how much memory there is")
        return problems

    def checked(self) -> PoolConfig:
        """These settings.

        Raises:
            InputError: They are not valid.
        """
        problems = self.validate()
        if problems:
            raise InputError("invalid pool settings: " + "; ".join(problems))
        return self


@dataclass(frozen=True, slots=True)
class PoolStats:
    """What a pool holds and did.

    Attributes:
        current_usage: bytes in use.
        peak_usage: bytes in use, at most.
        cached_bytes: bytes kept for later.
        allocations: blocks that were asked for.
        hits: of these, given from what was kept.
        misses: taken from the system.
        releases: blocks given back to the system.
        failures: blocks refused for lack of room.

    Example:
        >>> PoolStats().hit_rate(), PoolStats(hits=3, misses=1, current_usage=10, cached_bytes=5).reserved_bytes
        (0.0, 15)
    """

    current_usage: int = 0
    peak_usage: int = 0
    cached_bytes: int = 0
    allocations: int = 0
    hits: int = 0
    misses: int = 0
    releases: int = 0
    failures: int = 0

    @property
    def reserved_bytes(self) -> int:
        """Bytes in use or kept for later."""
        return self.current_usage + self.cached_bytes

    @property
    def system_allocations(self) -> int:
        """How often memory was taken from the system."""
        return self.misses

    def hit_rate(self) -> float:
        """Blocks given from what was kept, among all; 0.0 when there were none."""
        return self.hits / (self.hits + self.misses) if self.hits + self.misses else 0.0
