"""Every constant of the cycle model, with its source.

The model is cycle-approximate and **uncalibrated**: no measurement on a real machine stands behind it. Expect a factor
of two. Words, wavelets and hops are counted exactly for what runs on the fabric.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

__all__ = ["TIMING", "Constant", "Timing", "constants"]

LABEL = "cycle-approximate, uncalibrated: expect a factor of two"


@dataclass(frozen=True)
class Constant:
    """One number of the model and where it comes from; ``published`` tells whether somebody wrote it down."""

    name: str
    value: float
    source: str
    published: bool


@dataclass(frozen=True)
class Timing:
    """The cycle model's constants. All in cycles unless the name says otherwise."""

    clock_hz: float = 850e6
    hop: int = 1
    link_words_per_cycle: int = 1
    ramp: int = 2
    router_queue_words: int = 4
    task_start: int = 8
    dsd_issue: int = 4
    dsr_load: int = 2
    scalar: int = 1
    memory_access: int = 1
    branch: int = 2
    call: int = 6
    divide: int = 16
    math_call: int = 40
    activate: int = 1
    host_command: int = 2000


_SOURCES: dict[str, tuple[str, bool]] = {
    "clock_hz": ("WSE-2 clock implied by published GEMM figures (850 MHz)", True),
    "hop": ("one router hop per cycle (published reduce paper, arXiv 2404.15888)", True),
    "link_words_per_cycle": ("32 bits per link and cycle (same paper)", True),
    "ramp": ("router to processor and back; assumed, the paper's T_R is of this order", False),
    "router_queue_words": ("buffer per router, colour and side; not published, assumed", False),
    "task_start": ("no published figure; assumed", False),
    "dsd_issue": ("start of a vector instruction; no published figure; assumed", False),
    "dsr_load": ("loading a descriptor into a register; assumed", False),
    "scalar": ("one scalar instruction per cycle; assumed", False),
    "memory_access": ("one scalar load or store per cycle; assumed", False),
    "branch": ("assumed", False),
    "call": ("assumed", False),
    "divide": ("no hardware divider is documented; assumed", False),
    "math_call": ("sqrt, exp and friends are software; assumed", False),
    "activate": ("assumed", False),
    "host_command": ("distance of two host commands; assumed, large against on-wafer latencies", False),
}
TIMING = Timing()

# Words that each CE queue holds: the table under "Fabric Queues" of the DSD documentation.
INPUT_QUEUE_WORDS = {"wse2": (6, 6, 4, 4, 2, 2, 2, 2), "wse3": (8, 8, 4, 4, 4, 4, 4, 4)}
OUTPUT_QUEUE_WORDS = {"wse2": (2, 2, 6, 6, 2, 2), "wse3": (8, 8, 8, 8, 8, 8, 8, 8)}
SWITCHABLE_WSE3 = frozenset((*range(10), 12, 13, 16, 17, 20, 21))
ROUTABLE_COLORS = 24


def constants(timing: Timing = TIMING) -> tuple[Constant, ...]:
    """The table, for reports.

    >>> constants()[1].name, constants()[1].value
    ('hop', 1)
    """
    rows: list[Constant] = []
    for item in fields(timing):
        source, published = _SOURCES[item.name]
        value: Any = getattr(timing, item.name)
        rows.append(Constant(item.name, value, source, published))
    return tuple(rows)


def simd_width(full: int, strides: tuple[int, ...]) -> int:
    """SIMD width left over by the operands' strides, by the rules of the documentation's appendix.

    >>> simd_width(4, (1, 1)), simd_width(4, (9,)), simd_width(4, (8,)), simd_width(8, (4,))
    (4, 2, 1, 4)
    """
    width = full
    for stride in strides:
        if stride in (0, 1):
            continue
        rest = stride % 8
        if rest == 0:
            return 1
        if rest in (1, 7):
            width = min(width, 2)
        elif rest == 4:
            width = min(width, 4)
    return width
