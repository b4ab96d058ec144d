"""Messages on their way from gRPC clients: a number of them, a time, and a budget of bytes.

gRPC gathers a message before anybody hears of it, or of its length. Of those that do not come at once, the system tells
how much came on their connections (TCP_INFO).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pyflame_rt.serving.answers import SLOW
from pyflame_rt.serving.connections import open_connections, peer_of, traffic
from pyflame_rt.serving.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from pyflame_rt.serving.connections import Peer

__all__ = ["CallMessages"]

READERS = 64  # messages that may be on their way at the same time; for one more, the oldest is refused
SOON = 0.02  # seconds in which most messages are there
PERIOD = 0.25  # seconds between looks at the others


class _Reader:
    """A call whose message has not come."""

    __slots__ = ("clock", "refused")

    def __init__(self, clock: asyncio.Timeout) -> None:
        self.clock = clock
        self.refused = False

    def let_go(self, now: float) -> None:
        self.refused = True
        self.clock.reschedule(now)


class _Connection:
    """The messages that do not come at once on one connection, and how much came of them."""

    def __init__(self, name: str, largest: int, now: float) -> None:
        self.peer = peer_of(name)
        self.readers: dict[_Reader, None] = {}
        self.whole = 0  # bytes of messages that came meanwhile
        self._largest, self._begun = largest, now
        self._first: int | None = None  # bytes that had come on it at the first look,
        self._last = 0  # and at the last one

    @property
    def size(self) -> int:
        came = 0 if self._first is None else self._last - self._first - self.whole
        return min(max(came, 0), len(self.readers) * self._largest)

    def saw(self, count: int) -> None:
        self._first = count if self._first is None else self._first
        self._last = count

    def order(self, now: float) -> tuple[float, float]:
        """By what connections are let go: those that send slowly, the slowest first, then the youngest."""
        rate = self.size / max(now - self._begun, 1e-9)
        return min(rate, SLOW), -self._begun

    def shrink(self, now: float) -> None:
        """Refuse the younger half of the messages."""
        for reader in list(self.readers)[len(self.readers) // 2 :]:
            del self.readers[reader]
            reader.let_go(now)


class CallMessages:
    """Messages of one gRPC server. Of one event loop.

    Args:
        limit: bytes of all that are under way, and of those that are answered; one alone may always be longer.
        largest: bytes of one.
        seconds: in which one must come.
    """

    def __init__(self, limit: int, largest: int, seconds: float) -> None:
        self.port = 0  # that clients connected to
        self.pending = 0  # bytes of those that came and are not answered
        self._limit, self._largest, self._seconds = limit, largest, seconds
        self._readers: dict[_Reader, None] = {}  # the oldest first
        self._connections: dict[str, _Connection] = {}  # whose messages do not come at once
        self._timer: asyncio.TimerHandle | None = None

    async def read(self, messages: AsyncIterator[bytes], peer: str) -> bytes:
        """The message of a call, to be released when that is answered; one that does not come is not waited for.

        Raises:
            RequestError: It did not come in time, or there is no room.
        """
        loop = asyncio.get_running_loop()
        if len(self._readers) >= READERS:
            next(iter(self._readers)).clock.reschedule(loop.time())
        reader = _Reader(asyncio.timeout(self._seconds))
        self._readers[reader] = None
        soon = loop.call_later(SOON, self._watch, peer, reader)
        data = b""
        try:
            async with reader.clock:
                data = await anext(messages, b"")
        except TimeoutError:
            if reader.refused:
                raise _too_many() from None
            raise RequestError(408, "Timeout", "the message did not come in time, or others needed its place") from None
        finally:
            soon.cancel()
            self._readers.pop(reader, None)
            self._forget(peer, reader, len(data))
        if self.pending and self.pending + len(data) > self._limit:
            raise _too_many()
        self.pending += len(data)
        return data

    def release(self, size: int) -> None:
        """Forget a message."""
        self.pending -= size

    def _watch(self, peer: str, reader: _Reader) -> None:
        """A message did not come at once: count what comes from now on."""
        loop = asyncio.get_running_loop()
        one = self._connections.get(peer)
        if one is None:
            one = self._connections[peer] = _Connection(peer, self._largest, loop.time())
            self._look_at([one])
        one.readers[reader] = None
        if self._timer is None:
            self._timer = loop.call_later(PERIOD, self._look)

    def _forget(self, peer: str, reader: _Reader, size: int) -> None:
        one = self._connections.get(peer)
        if one is None:
            return
        one.whole += size
        one.readers.pop(reader, None)
        if not one.readers:
            del self._connections[peer]

    def _look(self) -> None:
        """See from time to time what came, and refuse some where it is too much."""
        self._timer = None
        if not self._connections:
            return
        loop = asyncio.get_running_loop()
        now, some = loop.time(), list(self._connections.values())
        self._look_at(some)
        over = self.pending + sum(one.size for one in some) - self._limit
        some.sort(key=lambda one: one.order(now))
        for one in some:
            if over <= 0 or (not self.pending and len(self._readers) == 1):
                break
            before = one.size
            one.shrink(now)
            over -= before - one.size
        self._timer = loop.call_later(PERIOD, self._look)

    def _look_at(self, some: Iterable[_Connection]) -> None:
        by_peer: dict[Peer, _Connection] = {one.peer: one for one in some if one.peer is not None}
        with open_connections(self.port, by_peer) as found:
            for peer, connection in found.items():
                facts = traffic(connection)
                if facts is not None:
                    by_peer[peer].saw(facts.received)


def _too_many() -> RequestError:
    return RequestError(503, "QueueFull", "too many messages are being read; try again later")
