"""Whose memory it is: what plans draw from the pool is booked to the model they belong to."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from pyflame_rt.memory.pool import Account

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Ledger", "current_ledger", "drawing"]


class Ledger:
    """Bytes of one model in the pool: arenas of its plans, outputs that callers keep, weights it packed."""

    __slots__ = ("arenas", "outputs", "packed")

    def __init__(self) -> None:
        self.arenas, self.outputs, self.packed = Account(), Account(), Account()


_nobody = Ledger()
_current: ContextVar[Ledger | None] = ContextVar("ledger", default=None)


@contextmanager
def drawing(ledger: Ledger) -> Iterator[None]:
    """Plans made inside, and what they pack, are booked to a ledger."""
    token = _current.set(ledger)
    try:
        yield
    finally:
        _current.reset(token)


def current_ledger() -> Ledger:
    """The ledger to book to; one of nobody's outside of :func:`drawing`."""
    return _current.get() or _nobody
