"""What runs between the nodes of a run: limits, profiles, watchers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from pyflame_rt.graph.errors import InputError, MemoryLimitError, RunCancelledError, RunTimeoutError
from pyflame_rt.options import RunOptions
from pyflame_rt.settings import unused_run_settings, warn_unused

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from pyflame_rt.graph import Node

__all__ = ["Limits", "chain_checks", "chain_observers"]


class Limits:
    """When a run has to stop: time is up, it was told to, or its session was closed."""

    __slots__ = ("_check_closed", "_deadline", "_options", "_stop", "tag")

    def __init__(
        self, check_closed: Callable[[], None], options: RunOptions | None, stop: threading.Event | None = None
    ) -> None:
        self._check_closed = check_closed
        self._options = options
        self._stop = stop
        self._deadline: float | None = None
        self.tag = ""
        if options is None:
            return
        if not isinstance(options, RunOptions):
            raise TypeError(f"run_options must be a RunOptions, got {type(options).__name__}")
        problems = options.validate()
        if problems:
            raise InputError("invalid run options: " + "; ".join(problems))
        self.tag = options.logid
        if options._config or options.log_verbosity_level:
            warn_unused(unused_run_settings(options), 5)
        if options.timeout_ms is not None:
            self._deadline = time.perf_counter() + options.timeout_ms / 1e3

    def check(self) -> None:
        """Raise when the run has to stop."""
        self._check_closed()
        if self._stop is not None and self._stop.is_set():
            raise RunCancelledError("the run was cancelled")
        if self._options is None:
            return
        if self._options.terminate:
            raise RunCancelledError("RunOptions.terminate was set")
        if self._deadline is not None and time.perf_counter() > self._deadline:
            raise RunTimeoutError(f"the run took longer than timeout_ms={self._options.timeout_ms}")

    @staticmethod
    def memory_observer(limit: int) -> Callable[..., None] | None:
        """A hook that refuses results of one node larger than ``limit`` bytes; None without limit."""
        if not limit:
            return None

        def observe(node: Node, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
            del inputs
            size = sum(int(getattr(array, "nbytes", 0)) for array in outputs)
            if size > limit:
                raise MemoryLimitError(
                    f"node {node.name!r} ({node.full_name}) made {size} bytes, memory_limit allows {limit}"
                )

        return observe


def chain_checks(*hooks: Callable[[], None] | None) -> Callable[[], None] | None:
    """One hook that calls all that are there."""
    there = [hook for hook in hooks if hook is not None]
    if len(there) < 2:
        return there[0] if there else None

    def all_of_them() -> None:
        for hook in there:
            hook()

    return all_of_them


def chain_observers(*hooks: Callable[..., None] | None) -> Callable[..., None] | None:
    """One observer that calls all that are there."""
    there = [hook for hook in hooks if hook is not None]
    if len(there) < 2:
        return there[0] if there else None

    def all_of_them(node: Node, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        for hook in there:
            hook(node, inputs, outputs)

    return all_of_them
