"""What a server answers when it cannot answer, and what its clients raise."""

from __future__ import annotations

from pyflame_rt.graph.errors import (
    DTypeMismatchError,
    InputError,
    InvalidModelError,
    MemoryLimitError,
    PyFlameRTError,
    QueueFullError,
    RunCancelledError,
    RunTimeoutError,
    SessionClosedError,
    ShapeMismatchError,
    UnsupportedFormatError,
    UnsupportedOperatorError,
    ValidationError,
)

__all__ = ["RequestError", "ServerError", "as_request_error"]


class ServerError(PyFlameRTError):
    """A server refused, and gave no answer of a model.

    Attributes:
        status_code: the HTTP status.
        message: what it said.

    Example:
        >>> ServerError(404, "there is no model 'm'").status_code
        404
    """

    def __init__(self, status_code: int, message: str) -> None:
        super().__init__(f"{message} (status {status_code})")
        self.status_code = status_code
        self.message = message

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.status_code, self.message))


class RequestError(PyFlameRTError):
    """A request that is answered with a status other than 200.

    Attributes:
        status: the HTTP status.
        code: one of the documented codes, such as ``InvalidRequest``.
        headers: to send along.

    Example:
        >>> RequestError(400, "InvalidRequest", "no inputs").code
        'InvalidRequest'
    """

    def __init__(self, status: int, code: str, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = headers or {}

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.status, self.code, str(self), self.headers))


_RETRY = {"retry-after": "1"}
_KINDS: tuple[tuple[type[BaseException], int, str], ...] = (
    (QueueFullError, 503, "QueueFull"),
    (RunTimeoutError, 504, "Timeout"),
    (MemoryLimitError, 400, "InvalidRequest"),
    (RunCancelledError, 503, "ModelNotReady"),
    (SessionClosedError, 503, "ModelNotReady"),
    (InputError, 400, "InvalidRequest"),
    (ShapeMismatchError, 400, "InvalidRequest"),
    (DTypeMismatchError, 400, "InvalidRequest"),
    (InvalidModelError, 400, "InvalidRequest"),
    (UnsupportedFormatError, 400, "InvalidRequest"),
    (UnsupportedOperatorError, 400, "InvalidRequest"),
    (ValidationError, 400, "InvalidRequest"),
    (PyFlameRTError, 500, "InferenceError"),
)


def as_request_error(error: BaseException) -> RequestError:
    """How an error of the runtime is answered; what is none of its errors says nothing of the server's insides.

    Example:
        >>> as_request_error(QueueFullError("full")).status
        503
    """
    if isinstance(error, RequestError):
        return error
    for kind, status, code in _KINDS:
        if isinstance(error, kind):
            text = str(error) or type(error).__name__
            return RequestError(status, code, text, dict(_RETRY) if status == 503 else None)
    return RequestError(500, "InternalError", "the server failed; its log says why")
