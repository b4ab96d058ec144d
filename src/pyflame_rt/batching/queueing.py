"""A fair queue: start-time fair queueing over callers, in rows, with priorities that cannot starve anybody.

Every request has a *start*: the rows served so far when it came, or where its caller's earlier requests end, if that is
later. A caller with a thousand requests has starts far ahead, so that the first request of another comes before them.
One level of priority moves a request ``priority_rows`` ahead: others are passed by finitely many rows.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from pyflame_rt.batching.layout import Family
    from pyflame_rt.batching.requests import Ticket
    from pyflame_rt.batching.window import Costs

__all__ = ["FairQueue", "Group", "chosen_rows"]

Group = tuple["Family", int]  # requests that share runs: a family, and the length it is padded to


class FairQueue:
    """Requests that wait, by group. Not safe with threads: its owner has a lock.

    Args:
        priority_rows: what one level of priority is worth.

    Example:
        >>> queue = FairQueue(8)
        >>> len(queue), queue.first()
        (0, None)
    """

    def __init__(self, priority_rows: int) -> None:
        self._priority_rows = priority_rows
        self._heaps: dict[Group, list[tuple[float, int, float, Ticket]]] = {}
        self._rows: dict[Group, int] = {}
        self._all_rows = 0
        self._waiting: dict[Hashable, int] = {}  # requests, by caller
        self._count = 0  # of requests
        self._finish: dict[Hashable, float] = {}
        self._served = 0.0
        self._number = 0

    def __len__(self) -> int:
        return self._count

    def push(self, ticket: Ticket) -> None:
        """Add a request."""
        start = max(self._served, self._finish.get(ticket.caller, 0.0))
        self._finish[ticket.caller] = start + ticket.rows.count
        self._number += 1
        group = (ticket.rows.family, ticket.rows.bucket)
        tag = start - ticket.priority * self._priority_rows
        heapq.heappush(self._heaps.setdefault(group, []), (tag, self._number, start, ticket))
        self._rows[group] = self._rows.get(group, 0) + ticket.waiting
        self._all_rows += ticket.waiting
        self._waiting[ticket.caller] = self._waiting.get(ticket.caller, 0) + 1
        self._count += 1

    def discard(self, ticket: Ticket) -> None:
        """Forget what still waits of a request; its place in the heap goes when it comes up."""
        if ticket.waiting:
            self._rows[ticket.rows.family, ticket.rows.bucket] -= ticket.waiting
            self._all_rows -= ticket.waiting
            ticket.waiting = 0
            self._left(ticket)

    def first(self) -> tuple[Group, Ticket] | None:
        """The group whose turn it is, and the request that it owes that to."""
        best: tuple[float, int, Group, Ticket] | None = None
        for group in list(self._heaps):
            head = self._head(group)
            if head is not None and (best is None or head[:2] < best[:2]):
                best = head[0], head[1], group, head[3]
        return None if best is None else best[2:]

    def _head(self, group: Group) -> tuple[float, int, float, Ticket] | None:
        heap = self._heaps[group]
        while heap and not heap[0][3].waiting:
            heapq.heappop(heap)
        if heap:
            return heap[0]
        del self._heaps[group], self._rows[group]
        return None

    def rows(self, group: Group) -> int:
        """Rows that wait in a group."""
        return self._rows.get(group, 0)

    def total_rows(self) -> int:
        """Rows that wait."""
        return self._all_rows

    def shorter(self, group: Group) -> list[Group]:
        """Groups of the same family with shorter sequences, the longest first."""
        if len(self._heaps) < 2:
            return []
        family, bucket = group
        return sorted((g for g in self._heaps if g[0] == family and g[1] < bucket), key=lambda g: -g[1])

    def take(self, group: Group, room: int) -> Iterator[tuple[Ticket, int, int]]:
        """Take up to ``room`` rows of a group, as requests with the rows taken of each."""
        while room and group in self._heaps and (head := self._head(group)) is not None:
            tag, number, start, ticket = head
            count = min(ticket.waiting, room)
            begin = ticket.rows.count - ticket.waiting
            ticket.waiting -= count
            room -= count
            self._rows[group] -= count
            self._all_rows -= count
            # Rows that are served move everybody's turn on, in proportion to how many share them.
            self._served = max(self._served + count / max(len(self._waiting), 1), start)
            if ticket.waiting:  # the others' turn, before the rest of a large request
                heapq.heapreplace(self._heaps[group], (tag + count, number, start + count, ticket))
            else:
                self._left(ticket)
            yield ticket, begin, begin + count

    def _left(self, ticket: Ticket) -> None:
        caller = ticket.caller
        self._count -= 1
        self._waiting[caller] -= 1
        if not self._waiting[caller]:
            del self._waiting[caller]
        if not self._waiting:
            self._served = max(self._served, *self._finish.values())
            self._finish.clear()
        elif len(self._finish) > 64 + 4 * len(self._waiting):
            self._finish = {c: f for c, f in self._finish.items() if f > self._served or c in self._waiting}

    def drain(self) -> list[Ticket]:
        """Take everything out."""
        left = [entry[3] for heap in self._heaps.values() for entry in heap if entry[3].waiting]
        for ticket in left:
            self.discard(ticket)
        self._heaps.clear()
        return left

    def callers(self) -> Any:
        """Requests that wait, by caller."""
        return dict(self._waiting)


def chosen_rows(
    queue: FairQueue, costs: Costs, group: Group, waiting: int, *, padding: bool
) -> tuple[list[tuple[Ticket, int, int]], int]:
    """Take the rows of the next run out of the queue: requests with the rows taken of each, and the run's size."""
    rows, size = costs.choose(waiting, group[1], padding=padding, busy=queue.total_rows() > waiting)
    taken = list(queue.take(group, rows))
    room = size - rows
    for other in queue.shorter(group) if room > 0 else ():  # what would be padding may as well be somebody's
        more = list(queue.take(other, room))
        room -= sum(end - begin for _, begin, end in more)
        taken += more
    return taken, size
