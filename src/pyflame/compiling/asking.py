"""What a function asks of the world while it is traced: the clock, files, the terminal; nobody can guard their answers.

A profile function of this thread, there for the time of the trace alone, sees each call of a C function before it is
made. One that asks or tells the world something, made by code of the user's (or by a library for it), ends the trace
before it happens, so that the call can be run as it is.
"""

from __future__ import annotations

import builtins
import datetime as dt
import gc
import io
import os
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame.compiling.tracer import TraceError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

__all__ = ["nothing_asked"]


def _found(owner: Any, names: str) -> list[Any]:
    return [getattr(owner, name) for name in names.split() if hasattr(owner, name)]


_CLOCK = "time time_ns perf_counter perf_counter_ns monotonic monotonic_ns process_time process_time_ns thread_time"
_FILES = "open stat lstat listdir scandir getcwd getcwdb access readlink urandom getloadavg times system read write"
_CHANGES = "remove unlink rename replace mkdir rmdir chdir link symlink truncate utime chmod putenv unsetenv"
_ASKS = frozenset(
    [
        *_found(time, f"{_CLOCK} thread_time_ns localtime gmtime ctime asctime"),
        *_found(os, f"{_FILES} {_CHANGES}"),
        *_found(dt.datetime, "now utcnow today"),
        dt.date.today,
        *_found(sys, "getrecursionlimit"),
        builtins.input,
        io.open,
        np.fromfile,
    ]
)
# Libraries ask on behalf of whoever calls them, but we do not, and what an import asks is its own affair.
_OURS = frozenset({"pyflame", "pyflame_rt", "emberharmony", "wsesim"})
_READERS = frozenset({"pyflame.serialization", "pyflame_rt.graph.named_arguments"})  # the latter calls for others
_IMPORTS = frozenset({"importlib", "zipimport", "linecache", "traceback"})
_TALKS = frozenset({"read", "read1", "readline", "readlines", "readinto", "write", "writelines", "seek", "truncate"})


class _Watch:
    """The first question that was asked.

    Attributes:
        error: which it was, and where; None while there was none.
    """

    def __init__(self, other: Any) -> None:
        self.error: TraceError | None = None
        self._other = other

    def __call__(self, frame: FrameType, event: str, called: Any) -> None:
        if self._other is not None:
            self._other(frame, event, called)
        if event != "c_call" or (called not in _ASKS and not self._talks(called)):
            return
        asker = _asker(frame)
        if asker is None:
            return
        name = getattr(called, "__name__", "a function")
        self.error = TraceError(
            f"a compiled function calls {name}() at {asker.f_code.co_filename}:{asker.f_lineno}: what the clock, a "
            "file or the terminal says is another thing at each call; do this outside, and pass what it gives as an "
            "argument"
        )
        raise self.error

    @staticmethod
    def _talks(called: Any) -> bool:
        """Whether a method reads or writes a file; ``print`` does both by itself."""
        if called is builtins.print:
            return True
        return getattr(called, "__name__", "") in _TALKS and isinstance(called.__self__, io.IOBase | _TextBase)


_TextBase = type(sys.__stdout__) if sys.__stdout__ is not None else io.TextIOWrapper


def _asker(frame: FrameType | None) -> FrameType | None:
    """The user's code that asks, perhaps through a library; None where we do, or an import."""
    from pyflame.compiling.reach import is_library

    while frame is not None:
        if any(getattr(callback, "__code__", None) is frame.f_code for callback in gc.callbacks):
            return None  # the collector runs between any two steps, whoever made them
        module = frame.f_globals.get("__name__")
        first = module.partition(".")[0] if isinstance(module, str) else ""
        if first in _IMPORTS or first == "_frozen_importlib" or (first in _OURS and module not in _READERS):
            return None if is_library(module) else frame
        if not is_library(module):
            return frame
        frame = frame.f_back
    return None


@contextmanager
def nothing_asked() -> Iterator[None]:
    """Refuse, inside, what asks or tells the world something.

    A profile function that is there already is called too.

    Raises:
        TraceError: something was asked, also where the function caught the error or made another of it; or a profiler
            written in C runs, next to which nothing can be seen.
    """
    before = sys.getprofile()
    if before is not None and not callable(before):
        raise TraceError(
            f"a compiled function is first called while a profiler runs ({type(before).__name__}) that lets nobody "
            "else see what is called; call it once before the profiler starts"
        )
    watch = _Watch(before)
    sys.setprofile(watch)
    try:
        yield
    except BaseException as error:
        if watch.error is None or error is watch.error:
            raise
        raise watch.error from error
    finally:
        sys.setprofile(before)
    if watch.error is not None:
        raise watch.error
