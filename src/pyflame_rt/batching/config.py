"""Settings of a batcher."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import field
from datetime import timedelta
from numbers import Integral, Real
from typing import Any

from pyflame_rt.graph.arguments import number_problems
from pyflame_rt.graph.errors import InputError
from pyflame_rt.graph.records import dataclass

__all__ = ["BatchConfig", "is_timeout"]

_FULL = ("reject", "wait")
_WHOLE: dict[str, int] = {
    "max_batch_size": 1, "min_batch_size": 1, "num_workers": 1, "queue_capacity": 1, "priority_rows": 1,
}  # fmt: skip


def is_timeout(value: Any) -> bool:
    """Whether it is a time that a request may take: a number above zero, or None."""
    return value is None or (isinstance(value, Real) and float(value) > 0)


def _is_size(value: Any) -> bool:
    return isinstance(value, Integral) and int(value) >= 1


@dataclass(slots=True)
class BatchConfig:
    """How requests are put together.

    Attributes:
        max_batch_size: rows in one run at most. A request of more rows is run in pieces.
        max_latency_us: the longest a request is held back for others to join it. It is held back only where that
            raises throughput: a request that comes alone runs at once. ``max_latency`` is the same as a timedelta.
        min_batch_size: rows to wait for, within ``max_latency_us``, whatever the load.
        preferred_sizes: rows of the runs that are made. A session prepares itself for each size it meets, so few
            sizes are better than many.
        enable_padding: rows are added up to the next preferred size where that is quicker than two runs, and
            sequences are padded to ``length_buckets`` where the model has a mask. False runs what came, in its length.
        length_buckets: lengths that sequences are padded to; None for 16, its doubles and half way between these (24,
            48 and so on). Longer ones run unpadded.
        mask_input: the input, batch by length, that is 0 where a sequence was padded; None to find it by its name
            (it has "mask" in it). It may be left out of requests: then it is made.
        pad_values: what sequences are padded with, by input; 0 unless given.
        num_workers: runs at the same time. One run uses all threads of its session, so that 1 is most often best.
        queue_capacity: requests that may wait.
        when_full: what happens to one more: "reject" raises QueueFullError, "wait" lets the caller wait.
        timeout_ms: time a request may take altogether, where it does not say so itself; None for as long as it needs.
        priority_rows: how many rows that came earlier (of each caller) one level of priority goes before. It is
            finite, so that nobody waits for ever.

    Example:
        >>> config = BatchConfig(max_batch_size=8)
        >>> config.max_latency = timedelta(milliseconds=2)
        >>> config.max_latency_us, config.sizes(), config.validate()
        (2000, [1, 2, 4, 8], [])
    """

    max_batch_size: int = 32
    max_latency_us: int = 1000
    min_batch_size: int = 1
    preferred_sizes: list[int] = field(default_factory=lambda: [1, 2, 4, 8, 16, 32])
    enable_padding: bool = True
    length_buckets: list[int] | None = None
    mask_input: str | None = None
    pad_values: dict[str, Any] = field(default_factory=dict)
    num_workers: int = 1
    queue_capacity: int = 1000
    when_full: str = "reject"
    timeout_ms: float | None = None
    priority_rows: int = 128

    @property
    def max_latency(self) -> timedelta:
        """``max_latency_us`` as a timedelta."""
        return timedelta(microseconds=self.max_latency_us)

    @max_latency.setter
    def max_latency(self, value: timedelta) -> None:
        self.max_latency_us = round(value / timedelta(microseconds=1))

    def sizes(self) -> list[int]:
        """Sizes of runs, in order: the preferred ones up to the largest."""
        return sorted({size for size in self.preferred_sizes if size <= self.max_batch_size} | {self.max_batch_size})

    def validate(self) -> list[str]:
        """What is wrong with the settings; empty when nothing is."""
        problems = number_problems(self, _WHOLE, {"max_latency_us": (lambda value: value >= 0, "not be negative")})
        bounds = (self.min_batch_size, self.max_batch_size)
        if all(isinstance(bound, Integral) for bound in bounds) and bounds[0] > bounds[1]:
            problems.append(
                f"min_batch_size ({self.min_batch_size}) must not exceed max_batch_size ({self.max_batch_size})"
            )
        given = (self.preferred_sizes, () if self.length_buckets is None else self.length_buckets)
        if not all(isinstance(sizes, Collection) and all(map(_is_size, sizes)) for sizes in given):
            problems.append("preferred_sizes and length_buckets must be lists of positive whole numbers")
        if self.when_full not in _FULL:
            problems.append(f"when_full must be one of {', '.join(_FULL)}, got {self.when_full!r}")
        if not is_timeout(self.timeout_ms):
            problems.append(f"timeout_ms must be positive or None, got {self.timeout_ms!r}")
        if not isinstance(self.pad_values, Mapping):
            problems.append(f"pad_values must give a number for each of some inputs, got {self.pad_values!r}")
        return problems

    def checked(self) -> BatchConfig:
        """These settings.

        Raises:
            InputError: They are not valid.
        """
        problems = self.validate()
        if problems:
            raise InputError("invalid batch settings: " + "; ".join(problems))
        return self
