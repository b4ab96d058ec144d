"""Every exception the runtime raises, in one tree.

PyFlameRTError (RuntimeError)
├── InvalidModelError            the file or graph is broken
│   └── ModelNotFoundError       ... or is not there (also a FileNotFoundError)
├── FileWriteError               a file could not be written (also an OSError)
├── UnsupportedFormatError       we do not read this kind of file
├── UnsupportedOperatorError     no such operator, or not in this form
├── ShapeMismatchError           sizes do not fit
├── DTypeMismatchError           element types do not fit
├── ValidationError              the graph breaks an invariant; .errors lists them all
├── BackendError                 something failed while running
│   ├── MemoryLimitError         ... because more memory is needed than was allowed (also a MemoryError)
│   ├── RunTimeoutError          ... because time was up (also a TimeoutError)
│   ├── RunCancelledError        ... because it was told to stop
│   ├── QueueFullError           ... because too many requests wait already
│   └── DeviceLostError          ... because a device of a partitioned model is gone; .device names it
├── InputError                   wrong input or output name, missing input, bad value
├── SessionClosedError           the session was closed before this call
└── MissingExtra (ImportError)   an optional library is not installed
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "BackendError",
    "DTypeMismatchError",
    "DeviceLostError",
    "FileWriteError",
    "InputError",
    "InvalidModelError",
    "MemoryLimitError",
    "MissingExtra",
    "ModelNotFoundError",
    "PyFlameRTError",
    "QueueFullError",
    "RunCancelledError",
    "RunTimeoutError",
    "SessionClosedError",
    "ShapeMismatchError",
    "UndeterminedError",
    "UnsupportedFormatError",
    "UnsupportedOperatorError",
    "ValidationError",
]


class PyFlameRTError(RuntimeError):
    """Base of everything the runtime raises on purpose.

    Example:
        >>> issubclass(InputError, PyFlameRTError)
        True
    """


class InvalidModelError(PyFlameRTError):
    """The model file or graph is malformed."""


class ModelNotFoundError(InvalidModelError, FileNotFoundError):
    """There is no file at the given path."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class FileWriteError(PyFlameRTError, OSError):
    """A file could not be written; the message names the one that was asked for."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class UnsupportedFormatError(PyFlameRTError):
    """The file is of a kind that is not read here."""


class UnsupportedOperatorError(PyFlameRTError):
    """An operator is unknown, or not available in the requested form."""


class ShapeMismatchError(PyFlameRTError):
    """Sizes or ranks do not fit together."""


class DTypeMismatchError(PyFlameRTError):
    """Element types do not fit together; nothing is cast silently."""


class ValidationError(PyFlameRTError):
    """A graph breaks one or more invariants.

    Example:
        >>> ValidationError("graph 'g' is not valid", ["node 'a' reads 'x', which nothing makes"]).errors
        ["node 'a' reads 'x', which nothing makes"]
    """

    def __init__(self, message: str, errors: Iterable[str] = ()) -> None:
        self.errors: list[str] = list(errors)
        lines = "".join(f"\n  - {error}" for error in self.errors)
        super().__init__(f"{message}{lines}")

    def __reduce__(self) -> tuple[object, ...]:
        message = str(self).split("\n  - ", 1)[0]
        return (type(self), (message, self.errors))


class BackendError(PyFlameRTError):
    """A backend failed while running a graph."""


class MemoryLimitError(BackendError, MemoryError):
    """``SessionOptions.memory_limit`` is less than a run needs."""


class RunTimeoutError(BackendError, TimeoutError):
    """``RunOptions.timeout_ms`` ran out."""


class RunCancelledError(BackendError):
    """The run was told to stop."""


class QueueFullError(BackendError):
    """More requests wait than a batcher or an asynchronous session takes; try again later."""


class DeviceLostError(BackendError):
    """A process or actor that ran a part of a model is gone; ``device`` is its label."""

    def __init__(self, message: str, device: str = "") -> None:
        super().__init__(message)
        self.device = device

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (str(self), self.device))


class InputError(PyFlameRTError):
    """A feed names something the model does not have, or misses something it needs."""


class SessionClosedError(PyFlameRTError):
    """The session was closed."""


class UndeterminedError(PyFlameRTError):
    """Shape inference asked for a size or value that is only known when running."""


class MissingExtra(PyFlameRTError, ImportError):
    """An optional library is needed for this and is not installed."""
