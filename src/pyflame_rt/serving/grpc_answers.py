"""Answers on their way to gRPC clients: they have a budget, and connections that take nothing end.

gRPC sends an answer whole, and tells when that is done, but not how much of it was taken, nor can a call be ended while
it is sent: so both are done by its connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from typing import TYPE_CHECKING, Any

from pyflame_rt.serving import answers
from pyflame_rt.serving.answers import PIECE, AnswerBudget
from pyflame_rt.serving.connections import open_connections, peer_of, traffic
from pyflame_rt.serving.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyflame_rt.serving.connections import Peer

__all__ = ["COPIES", "OVERHEAD", "CallAnswers"]

log = logging.getLogger("pyflame_rt.serving")
COPIES = 2  # of an answer are kept: the one given to gRPC, and its own
OVERHEAD = 16 << 10  # bytes of a call besides its answer
LEAST = 1 << 10  # bytes in a whole time to send: fewer are the connection's own talk, such as answers to pings


class _Connection:
    """The answers that one connection has not taken."""

    def __init__(self, name: str, budget: CallAnswers, now: float) -> None:
        self.name, self.peer = name, peer_of(name)
        self._budget = budget
        self._answers: dict[object, tuple[int, float]] = {}  # size and beginning, the oldest first
        self.left, self.begun = 0, now
        self._first: tuple[float, int] | None = None  # when and what was taken, at the first look at the oldest answer,
        self._last = 0  # at the last one,
        self._moved = (now, 0)  # and when that had become more

    def add(self, key: object, size: int, now: float) -> None:
        if not self._answers:
            self.begun = now
        self._answers[key] = (size, now)
        self.left += size

    def remove(self, key: object) -> bool:
        """Whether nothing is left."""
        self.left -= self._answers.pop(key)[0]
        if self._answers:
            self.begun = next(iter(self._answers.values()))[1]
        return not self._answers

    def saw(self, count: int, now: float) -> None:
        """Note what was taken altogether."""
        if self._first is None or self._first[0] < self.begun:
            self._first = (now, count)
        if count - self._moved[1] >= LEAST:
            self._moved = (now, count)
        self._last = count

    def rate(self, now: float) -> float:
        """Bytes a second, at most: other answers may have been taken than those that are left."""
        most = self.left / max(now - self.begun, 1e-9)
        if self._first is None or self._first[0] >= now:
            return most
        return min(most, (self._last - self._first[1]) / (now - self._first[0]))

    def stuck(self, now: float, seconds: float) -> bool:
        """Whether nothing was taken for so long."""
        return self._first is not None and now - max(self._moved[0], self.begun) >= seconds

    def let_go(self, now: float) -> None:
        """End the connection, with all that is under way on it."""
        log.warning("%s took no answer for %.1f s: its connection was ended", self.name, now - self.begun)
        peers = [] if self.peer is None else [self.peer]
        with open_connections(self._budget.port, peers) as found, contextlib.suppress(OSError):
            for connection in found.values():
                connection.shutdown(socket.SHUT_RDWR)


class CallAnswers(AnswerBudget):
    """Answers of one gRPC server. Of one event loop.

    Args:
        limit: bytes that clients have not taken yet.
        seconds: a connection that takes nothing for so long ends.
    """

    def __init__(self, limit: int, seconds: float) -> None:
        super().__init__(limit)
        self.port = 0  # that clients connected to
        self._seconds = seconds
        self._connections: dict[str, _Connection] = {}
        self._clock: asyncio.TimerHandle | None = None

    def begin(self, context: Any, size: int) -> None:
        """Count an answer until it was taken, or its client has gone.

        Raises:
            RequestError: It is a long one, and there is no room.
        """
        loop = asyncio.get_running_loop()
        now, whole = loop.time(), COPIES * size + OVERHEAD
        self._find_room(whole, now, must=size <= PIECE)
        name, key = context.peer(), object()
        one = self._connections.get(name)
        if one is None:
            one = self._connections[name] = _Connection(name, self, now)
        one.add(key, whole, now)
        self._sending[one] = None
        context.add_done_callback(lambda _: self._done(one, key))
        if self._clock is None:
            self._clock = loop.call_later(answers.YOUNG, self._look)

    def _find_room(self, size: int, now: float, *, must: bool) -> None:
        """Short answers are counted, but not refused: those of clients who take theirs are gone soon."""
        if not self._connections or self.held + size <= self._limit:
            return
        self._look_at(self._connections.values(), now)
        try:
            self.make_room(size, now)
        except RequestError:
            if not must:
                raise

    def _done(self, one: _Connection, key: object) -> None:
        if one.remove(key):
            self._sending.pop(one, None)
            if self._connections.get(one.name) is one:
                del self._connections[one.name]

    def _look(self) -> None:
        """See from time to time who takes something."""
        self._clock = None
        if not self._connections:
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        old = [one for one in self._connections.values() if now - one.begun >= answers.YOUNG]
        self._look_at(old, now)
        for one in old:
            if one.stuck(now, self._seconds):
                self._sending.pop(one, None)
                one.let_go(now)
        self._clock = loop.call_later(min(answers.YOUNG, self._seconds / 4), self._look)

    def _look_at(self, some: Iterable[_Connection], now: float) -> None:
        by_peer: dict[Peer, _Connection] = {one.peer: one for one in some if one.peer is not None}
        with open_connections(self.port, by_peer) as found:
            for peer, connection in found.items():
                facts = traffic(connection)
                if facts is not None:
                    by_peer[peer].saw(facts.taken, now)
