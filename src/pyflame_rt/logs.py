"""Logging through the standard library: one logger, a level for each session and run."""

from __future__ import annotations

import logging
from typing import Any

from pyflame_rt.graph.errors import InputError
from pyflame_rt.graph.named_arguments import names_arguments

__all__ = ["LEVELS", "SessionLog", "level_number", "logger", "set_default_logger_severity"]

logger = logging.getLogger("pyflame_rt")
"""The logger of the whole package; attach handlers to it, or to the root logger."""

LEVELS = {
    "verbose": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "fatal": logging.CRITICAL,
}
SEVERITIES = ("verbose", "info", "warning", "error", "fatal")
_default_severity: list[int] = [logging.DEBUG]


def level_number(level: str | int) -> int:
    """The number the standard library gives a level, from a name or from ONNX Runtime's 0 to 4.

    Example:
        >>> level_number("info"), level_number(3)
        (20, 40)
    """
    if isinstance(level, int) and 0 <= level < len(SEVERITIES):
        return LEVELS[SEVERITIES[level]]
    if isinstance(level, str) and level.lower() in LEVELS:
        return LEVELS[level.lower()]
    raise InputError(f"log level {level!r} is not known. Levels: {', '.join(LEVELS)}")


@names_arguments
def set_default_logger_severity(severity: int) -> None:
    """Drop every record below a severity: 0 verbose, 1 info, 2 warning, 3 error, 4 fatal.

    Example:
        >>> set_default_logger_severity(0)
    """
    _default_severity[0] = level_number(int(severity))


class SessionLog:
    """Writes to the package's logger from a level of its own upwards.

    The level asked for decides, not the logger's: a session at "debug" is heard although the
    application's logging stands at "warning". Without any handler, levels below warning go to
    standard error.

    Example:
        >>> SessionLog("error").enabled(logging.WARNING)
        False
    """

    __slots__ = ("level", "prefix")

    def __init__(self, level: str | int = "warning", prefix: str = "") -> None:
        self.level = level_number(level)
        self.prefix = f"[{prefix}] " if prefix else ""
        if self.level < logging.WARNING:
            _ensure_handler()

    def enabled(self, level: int) -> bool:
        """True when a record of this level would be written."""
        return level >= self.level and level >= _default_severity[0]

    def log(self, level: int, message: str, *args: Any) -> None:
        """Write one record."""
        if self.enabled(level):
            place = ("(session)", 0)
            logger.handle(logger.makeRecord(logger.name, level, *place, self.prefix + message, args, None))

    def debug(self, message: str, *args: Any) -> None:
        """Write a debug record."""
        self.log(logging.DEBUG, message, *args)

    def info(self, message: str, *args: Any) -> None:
        """Write an info record."""
        self.log(logging.INFO, message, *args)

    def warning(self, message: str, *args: Any) -> None:
        """Write a warning."""
        self.log(logging.WARNING, message, *args)


def _ensure_handler() -> None:
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        logger.addHandler(handler)
