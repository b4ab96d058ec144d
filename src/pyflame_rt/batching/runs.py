"""Runs under way, and the threads that make them."""

from __future__ import annotations

import os
import threading
from dataclasses import field
from typing import TYPE_CHECKING

from pyflame_rt.dispatch import Alarms, Callbacks
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyflame_rt.batching.layout import Piece
    from pyflame_rt.batching.requests import Ticket
    from pyflame_rt.options import RunOptions

__all__ = ["Batch", "Threads"]


@dataclass(slots=True, eq=False)
class Batch:
    """One run: whose rows, how many with padding, how long."""

    tickets: list[Ticket]
    pieces: list[Piece]
    size: int
    bucket: int
    options: RunOptions | None = None
    thread: int = field(default_factory=threading.get_ident)  # that runs it

    @property
    def rows(self) -> int:
        """Rows of requests in it."""
        return sum(piece.count for piece in self.pieces)

    def abandon(self) -> None:
        """Stop the run when everybody has gone."""
        if self.options is not None and all(ticket.done for ticket in self.tickets):
            self.options.terminate = True


class Threads:
    """What belongs to one start of a batcher, in one process."""

    def __init__(self, work: Callable[[Threads], None], count: int) -> None:
        self.process = os.getpid()
        self.stopping = False
        self.alarms = Alarms("pyflame-rt-batch-alarms")
        self.callbacks = Callbacks(1, "pyflame-rt-batch-callbacks")
        self.workers = [
            threading.Thread(target=work, args=(self,), name=f"pyflame-rt-batch-{i}", daemon=True) for i in range(count)
        ]
