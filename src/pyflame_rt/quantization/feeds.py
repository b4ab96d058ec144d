"""Calibration data as a stream of feeds: functions, iterables, one feed; never more than one of them in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from pyflame_rt.graph.errors import InputError

__all__ = ["FeedSource", "feeds_of"]

FeedSource = Callable[[], Any] | Iterable[Any]


def feeds_of(source: FeedSource, count: int) -> Iterator[Mapping[str, Any]]:
    """At most ``count`` feeds.

    Args:
        source: called for one feed at a time until it gives None or raises StopIteration; or an iterable of feeds.
        count: how many to take.

    Raises:
        InputError: something that is no feed came.

    Example:
        >>> [list(feed) for feed in feeds_of([{"x": 1}, {"x": 2}, {"x": 3}], 2)]
        [['x'], ['x']]
    """
    if isinstance(source, Mapping):
        raise InputError("calibration data is a function or an iterable of feeds; write [feed] for a single one")
    for number, feed in enumerate(_each(source), 1):
        if feed is None:
            return
        if not isinstance(feed, Mapping):
            raise InputError(
                f"calibration data must give feeds, mappings from input names to arrays; number {number} is "
                f"a {type(feed).__name__}"
            )
        yield feed
        if number == count:
            return


def _each(source: Any) -> Iterator[Any]:
    if isinstance(source, Iterable):
        yield from source
        return
    if not callable(source):
        raise InputError(
            f"calibration data is a function that gives one feed a call, or an iterable of feeds, got "
            f"a {type(source).__name__}"
        )
    while True:
        try:
            feed = source()
        except StopIteration:
            return
        yield feed
