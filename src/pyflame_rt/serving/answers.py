"""Answers on their way to clients: long ones are sent in pieces as they are taken, and all of them have a budget.

A client that takes nothing would have its answer kept in memory for as long as it likes. It may be slow; but where
others need the memory, those who take least are let go first.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

from pyflame_rt.serving.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["PIECE", "YOUNG", "AnswerBudget", "Answers", "Sending"]

PIECE = 256 << 10  # bytes of an answer that are given to its connection at once; shorter answers are not counted
SLOW = 128 << 10  # bytes a second: whoever takes less is let go where others need the memory
YOUNG = 1.0  # seconds in which nothing is said of how quick a client is


class Sending(Protocol):
    """An answer on its way, or all those of a connection."""

    left: int  # bytes that were not taken
    begun: float  # when the oldest of them was

    def rate(self, now: float) -> float:
        """Bytes a second that are taken."""
        ...

    def let_go(self, now: float) -> None:
        """Send no more."""
        ...


class AnswerBudget:
    """What clients have not taken yet, of one application.

    Args:
        limit: bytes; one answer alone may always be longer.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._sending: dict[Any, None] = {}

    @property
    def held(self) -> int:
        """Bytes that were not taken yet."""
        return sum(one.left for one in self._sending)

    def make_room(self, size: int, now: float) -> None:
        """Let go of those who take least, for an answer of so many bytes.

        Raises:
            RequestError: All of them take theirs, and there is no room.
        """
        while self._sending and self.held + size > self._limit:
            slow = [one for one in self._sending if now - one.begun >= YOUNG and one.rate(now) < SLOW]
            if not slow:
                raise RequestError(
                    503, "QueueFull", "too many answers are being taken; try again later", {"retry-after": "1"}
                )
            slowest = min(slow, key=lambda one: one.rate(now))
            del self._sending[slowest]
            slowest.let_go(now)


class _Answer:
    """One answer, and how much of it was taken."""

    __slots__ = ("begun", "clock", "left", "size")

    def __init__(self, size: int, clock: asyncio.Timeout, now: float) -> None:
        self.size = self.left = size
        self.clock, self.begun = clock, now

    def rate(self, now: float) -> float:
        return (self.size - self.left) / max(now - self.begun, 1e-9)

    def let_go(self, now: float) -> None:
        self.clock.reschedule(now)


class Answers(AnswerBudget):
    """Long answers of one application over HTTP.

    Args:
        limit: bytes that clients have not taken yet; one answer alone may always be longer.

    Example:
        >>> sent = []
        >>> async def send(message):
        ...     sent.append(len(message["body"]))
        >>> asyncio.run(Answers(1 << 20).send({"type": "http.response.body", "body": bytes(300 << 10)}, send))
        >>> sent
        [262144, 45056]
    """

    async def send(self, message: dict[str, Any], send: Callable[[dict[str, Any]], Awaitable[None]]) -> None:
        """Send the body of an answer, each piece when the one before was taken.

        Raises:
            RequestError: It takes too long, and others need the memory.
        """
        body, more = message["body"], message.get("more_body", False)
        try:
            async with asyncio.timeout(None) as clock:
                one = _Answer(len(body), clock, asyncio.get_running_loop().time())
                self._sending[one] = None
                try:
                    for start in range(0, len(body), PIECE):
                        piece = bytes(body[start : start + PIECE])  # a view would keep the whole
                        last = start + PIECE >= len(body)
                        await send({"type": message["type"], "body": piece, "more_body": more or not last})
                        one.left = max(len(body) - start - PIECE, 0)
                finally:
                    self._sending.pop(one, None)
        except TimeoutError:
            raise RequestError(408, "Timeout", "the answer was taken too slowly, and others needed its place") from None
