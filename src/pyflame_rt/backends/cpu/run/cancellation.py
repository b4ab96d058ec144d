"""Stop native code from outside: a thread asks whether to go on, and raises the cancel word when not."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyflame_rt.graph.errors import PyFlameRTError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np

__all__ = ["watched"]

INTERVAL = 0.002


@contextmanager
def watched(check: Callable[[], None], cancel: np.ndarray[Any, Any]) -> Iterator[None]:
    """While the body runs, call ``check`` every few milliseconds; when it raises, set the cancel word."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(INTERVAL):
            try:
                check()
            except PyFlameRTError:
                cancel[0] = 1
                return

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
