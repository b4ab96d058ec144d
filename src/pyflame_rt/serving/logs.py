"""Logs of a server: one JSON object a line."""

from __future__ import annotations

import logging
import sys
import time
from typing import Any

import orjson

__all__ = ["JSONFormatter", "configure_logs"]


class JSONFormatter(logging.Formatter):
    """Writes records as JSON objects.

    Example:
        >>> record = logging.LogRecord("pyflame_rt.serving", logging.INFO, "", 0, "ready", (), None)
        >>> sorted(orjson.loads(JSONFormatter().format(record)))
        ['level', 'logger', 'message', 'time']
    """

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        fields: dict[str, Any] = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(fields, default=str).decode()


class _Handler(logging.StreamHandler[Any]):
    """Writes to whatever standard error is at that time."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self.setFormatter(JSONFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def configure_logs(level: str) -> None:
    """Have the server's log written to standard error, unless the program has handlers of its own for it."""
    log = logging.getLogger("pyflame_rt.serving")
    log.setLevel(level.upper())
    if not log.handlers and not logging.getLogger().handlers:
        log.addHandler(_Handler())
        log.propagate = False
