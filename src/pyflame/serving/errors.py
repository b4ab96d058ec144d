"""What can go wrong between a client and a server.

ServingError (RuntimeError)
├── InvalidRequestError       the server does not understand, or refuses, what it was sent (400, 404, 405, 411, 413)
├── AuthenticationError       the key is missing or wrong (401)
├── ServerUnavailableError    nobody answers, or the server has too much to do (503; also a ConnectionError)
├── ServingTimeoutError       no answer in time (504; also a TimeoutError)
└── ModelFailedError          the model raised while it computed the answer (500)
"""

from __future__ import annotations

__all__ = [
    "AuthenticationError",
    "InvalidRequestError",
    "ModelFailedError",
    "ServerUnavailableError",
    "ServingError",
    "ServingTimeoutError",
]


class ServingError(RuntimeError):
    """Base of what clients raise.

    Attributes:
        status: the HTTP status; 0 when there was no answer.

    Example:
        >>> ServingError("no", 418).status
        418
    """

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (str(self), self.status))


class InvalidRequestError(ServingError):
    """The server does not understand, or refuses, what it was sent."""


class AuthenticationError(ServingError):
    """The key is missing or wrong."""


class ServerUnavailableError(ServingError, ConnectionError):
    """Nobody answers, or the server has too much to do."""


class ServingTimeoutError(ServingError, TimeoutError):
    """No answer in time."""


class ModelFailedError(ServingError):
    """The model raised while it computed the answer."""


BY_STATUS: dict[int, type[ServingError]] = {
    **dict.fromkeys((400, 404, 405, 411, 413, 415), InvalidRequestError),
    401: AuthenticationError,
    500: ModelFailedError,
    503: ServerUnavailableError,
    504: ServingTimeoutError,
}
