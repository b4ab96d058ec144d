"""Errors of the engine itself: raised in tests and checked mode, logged once with node and traceback otherwise.

A step takes another way only because a kernel refused it on purpose, with a reason (``NotNative``, or the library's own
refusal). Whatever else planning raises is a fault of the engine: it must not become a plan that is slower in silence.
"""

from __future__ import annotations

import logging
import os
import threading

from pyflame_rt.graph.errors import PyFlameRTError

__all__ = ["FAULTS", "faults_are_raised", "note_fault"]

log = logging.getLogger("pyflame_rt.cpu")

# What a mistake in Python raises. Errors of the user's model and of its limits are PyFlameRTErrors, and pass through.
FAULTS = (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, AssertionError)

_lock = threading.Lock()
_noted: set[tuple[str, str]] = set()


def faults_are_raised() -> bool:
    """Whether faults of the engine stop a run: PYFLAME_CHECKED, and PYFLAME_RAISE_FAULTS, which tests set.

    Example:
        >>> faults_are_raised()
        True
    """
    return any(os.environ.get(name, "0") not in ("", "0") for name in ("PYFLAME_CHECKED", "PYFLAME_RAISE_FAULTS"))


def note_fault(where: str, error: BaseException, *, checked: bool = False) -> str:
    """Raise a fault, or log it once with its traceback; returns what ``explain()`` says of it.

    Args:
        where: the node, or what was being planned, in the user's names.
        error: what was raised. Errors of the runtime's own tree are the model's, and are raised.
        checked: that the session runs in checked mode.
    """
    if checked or isinstance(error, PyFlameRTError) or faults_are_raised():
        raise error
    reason = f"fault of the engine: {type(error).__name__}: {error}"
    with _lock:
        fresh = (where, reason) not in _noted
        _noted.add((where, reason))
    if fresh:
        log.warning("%s: %s; another way is taken, please report this", where, reason, exc_info=error)
    return reason
