"""Settings of cuDNN, which is not here; evaluation on the CPU is deterministic whatever they say."""

from __future__ import annotations

__all__ = ["allow_tf32", "benchmark", "deterministic", "enabled", "is_available", "version"]

allow_tf32 = True
benchmark = False
deterministic = False
enabled = True


def is_available() -> bool:
    """False.

    Example:
        >>> import pyflame as pf
        >>> pf.backends.cudnn.deterministic = True
        >>> pf.backends.cudnn.is_available()
        False
    """
    return False


def version() -> int | None:
    """None: it is not here."""
    return None
