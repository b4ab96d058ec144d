"""When to run, and how many rows: decided by what runs of each size were seen to take, and by how requests come.

A free worker takes what waits. It holds back only when rows have been coming in right after answers (callers that ask
again as soon as they are answered) and a run with them would give more rows per second than one without.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Costs", "Window"]

KEEP = 0.7  # of a running mean when a value is added,
FORGET = 0.3  # and when that is smaller: what slows a run down is most often not the run
SHARE = 0.1  # of a run's time that the next may be held back
GAIN = 1.05  # in rows per second that is worth holding back for
ENOUGH = 0.985  # of the best rows per second that a run must give
BESIDE = 2e-4  # seconds that a run takes outside of the session
AGAIN = 64  # choices after which a larger run is tried, so that its time is not an old one for ever
PADDING = 1.15  # time that padding may take, against two runs without


class Costs:
    """Seconds that runs take, by rows and length: the mean of those seen, else in proportion to the nearest.

    Args:
        sizes: rows that runs are made of, in order.

    Example:
        >>> costs = Costs([1, 2, 4])
        >>> for _ in range(2): costs.saw(2, 0, 0.1)
        >>> round(costs.of(4, 0), 3), costs.seen(4, 0), costs.seen(2, 0)
        (0.2, 0.0, 0.1)
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = list(sizes)
        self._seconds: dict[tuple[int, int], float] = {}
        self._met: set[tuple[int, int]] = set()
        self._choices = 0

    def saw(self, size: int, length: int, seconds: float) -> None:
        """Note what a run took; the first of a size also prepares, and is not counted."""
        key = (size, length)
        if key not in self._met:
            self._met.add(key)
            return
        before = self._seconds.get(key)
        kept = 0.0 if before is None else KEEP if seconds > before else FORGET
        self._seconds[key] = kept * (before or 0.0) + (1 - kept) * seconds

    def seen(self, size: int, length: int) -> float:
        """Seconds of such a run; 0.0 where none was timed."""
        return self._seconds.get((size, length), 0.0)

    def of(self, rows: float, length: int) -> float:
        """Seconds for so many rows, in a run of the size they need."""
        at = bisect_left(self._sizes, rows)
        size = self._sizes[min(at, len(self._sizes) - 1)]
        found = self._seconds.get((size, length))
        if found is not None:
            return found
        known = [(abs(other - size), other) for other, long in self._seconds if long == length]
        if not known:
            return float(size)
        nearest = min(known)[1]
        return self._seconds[nearest, length] * size / nearest

    def enough(self, length: int) -> int:
        """Rows from which on more of them in a run give hardly more rows a second: longer runs only make others wait.

        All sizes up to it were timed; where they were not, the largest.
        """
        best, rates = 0.0, []
        for size in self._sizes:
            found = self._seconds.get((size, length))
            if found is None:
                return self._sizes[-1]
            rates.append(size / (found + BESIDE))
            best = max(best, rates[-1])
        return next(size for size, rate in zip(self._sizes, rates, strict=True) if rate >= ENOUGH * best)

    def choose(self, waiting: int, length: int, *, padding: bool, busy: bool = False) -> tuple[int, int]:
        """How many of the rows that wait to take, and the rows of the run they go into.

        Args:
            waiting: rows of one kind.
            length: that they are padded to.
            padding: whether rows may be added.
            busy: other rows wait as well: what is left now is joined by more before its turn comes.
        """
        sizes = self._sizes
        if waiting <= sizes[0]:
            return waiting, sizes[0] if padding else waiting
        most = self.enough(length)
        if waiting > most < sizes[-1]:
            self._choices += 1
            if not self._choices % AGAIN:
                most = sizes[bisect_left(sizes, most) + 1]
        if waiting >= most:
            return most, most
        at = bisect_left(sizes, waiting)
        above, below = sizes[at], sizes[at - 1]
        if above == waiting:
            return waiting, waiting
        if not padding:
            return below, below
        short, long = self.of(below, length), self.of(above, length)
        seen = self.seen(above, length) and self.seen(below, length)
        if busy and seen and below * long > waiting * short:
            return below, below  # more rows a second
        if long <= PADDING * (short + self.of(waiting - below, length)):
            return waiting, above
        return below, below


class Window:
    """How long the next run is held back. Times are those of ``time.perf_counter``.

    Args:
        longest: seconds that a request is held back at most.
        least: rows to wait for in any case.

    Example:
        >>> window = Window(longest=0.001, least=1)
        >>> window.hold(now=5.0, since=5.0, rows=1, length=0, costs=Costs([1, 2]))  # nothing is known to be coming
        0.0
    """

    def __init__(self, longest: float, least: int) -> None:
        self._longest = longest
        self._least = least
        self._answered = float("-inf")  # when the last answers went out,
        self._span = 0.0  # for how long after them we look,
        self._came = 0  # and the rows that came since
        self._last = 0.0
        self._coming = 0.0  # mean of rows that come in that time,
        self._delay = 0.0  # and of the time until the last of them

    def answered(self, now: float, seconds: float) -> None:
        """A run that took so long was answered."""
        if self._span:
            self._coming = KEEP * self._coming + (1 - KEEP) * self._came
            if self._came:
                self._delay = KEEP * self._delay + (1 - KEEP) * (self._last - self._answered)
        self._answered, self._span = now, min(self._longest, SHARE * seconds)
        self._came, self._last = 0, now

    def came(self, now: float, rows: int) -> None:
        """Rows came."""
        if now - self._answered <= self._span:
            self._came += rows
            self._last = now

    def hold(self, now: float, since: float, rows: int, length: int, costs: Costs) -> float:
        """Seconds to hold back a run of so many rows, of which the first came at ``since``; 0.0 to run."""
        left = since + self._longest - now
        if left <= 0:
            return 0.0
        if rows < self._least:
            return left
        until = self._answered + self._span - now
        missing = self._coming - self._came
        if until <= 0 or missing < 0.5:
            return 0.0
        wait = min(max(self._answered + self._delay - now, 0.0), until)
        with_them = (rows + missing) / (wait + costs.of(rows + missing, length))
        return min(left, until) if with_them > GAIN * rows / costs.of(rows, length) else 0.0
