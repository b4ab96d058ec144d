"""Answers of requests: outputs by name, or why there are none."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["Outputs", "Pending", "Response"]


class Outputs(dict[str, Any]):
    """Outputs by name, which also know how long they took.

    ``get("latency")`` is the time in microseconds, unless the model has an output of that name.

    Example:
        >>> found = Outputs({"y": 1}, latency_us=250.0)
        >>> found, found.get("latency"), found.get("z", 0), found.latency_us
        ({'y': 1}, 250.0, 0, 250.0)
    """

    def __init__(self, values: Mapping[str, Any] | None = None, latency_us: float = 0.0) -> None:
        super().__init__({} if values is None else values)
        self.latency_us = latency_us

    def get(self, key: str, default: Any = None) -> Any:
        """The output of a name, else the default; for "latency" the microseconds it took."""
        if key == "latency" and key not in self:
            return self.latency_us
        return super().get(key, default)


class Response(Mapping[str, Any]):
    """What became of a request: a mapping of its outputs, or an error that asking for them raises.

    Attributes:
        request_id: the number the request was given.
        success: whether there are outputs.
        error: the exception, where there are none.
        latency_us: from the call until now, in microseconds.
        queue_time_us: of these, before its first run.

    Example:
        >>> answer = Response(7, {"y": 1}, latency_us=10.0)
        >>> answer.success, answer["y"], dict(answer), answer.error_message
        (True, 1, {'y': 1}, '')
        >>> Response(8, error=ValueError("no")).get_outputs()
        Traceback (most recent call last):
            ...
        ValueError: no
    """

    def __init__(
        self,
        request_id: int,
        outputs: Mapping[str, Any] | None = None,
        *,
        error: BaseException | None = None,
        latency_us: float = 0.0,
        queue_time_us: float = 0.0,
    ) -> None:
        self.request_id = request_id
        self.error = error
        self.latency_us = latency_us
        self.queue_time_us = queue_time_us
        self._outputs = Outputs(outputs, latency_us)

    @property
    def success(self) -> bool:
        """Whether there are outputs."""
        return self.error is None

    @property
    def error_message(self) -> str:
        """Why there are no outputs; "" when there are."""
        return "" if self.error is None else str(self.error) or type(self.error).__name__

    @property
    def latency(self) -> float:
        """Microseconds from the call to the answer."""
        return self.latency_us

    @property
    def outputs(self) -> Outputs:
        """Outputs by name.

        Raises:
            Exception: The one that ended the request.
        """
        if self.error is not None:
            raise self.error
        return self._outputs

    def get_outputs(self) -> Outputs:
        """The same as :attr:`outputs`."""
        return self.outputs

    def __getitem__(self, name: str) -> Any:
        return self.outputs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.outputs)

    def __len__(self) -> int:
        return len(self.outputs)

    def __bool__(self) -> bool:
        return self.success

    def __repr__(self) -> str:
        what = ", ".join(self._outputs) if self.success else f"failed: {self.error_message}"
        return f"{type(self).__name__}({self.request_id}: {what})"


class Pending:
    """A request on its way. Whoever claims it first, and nobody else, answers it.

    Example:
        >>> request = Pending(7)
        >>> request.claim(), request.claim(), request.done
        (True, False, True)
    """

    __slots__ = ("_open", "begun", "number", "submitted")

    def __init__(self, number: int) -> None:
        self.number = number
        self.submitted = time.perf_counter()
        self.begun = 0.0
        self._open = [self]

    @property
    def done(self) -> bool:
        """Whether it was answered or taken back, or soon will be by whoever claimed it."""
        return not self._open

    def claim(self) -> bool:
        """Take the right to answer; True for one caller only."""
        try:
            self._open.pop()
        except IndexError:
            return False
        return True

    def times(self) -> dict[str, float]:
        """Microseconds until now, and of these before its first run, as :class:`Response` takes them."""
        now = time.perf_counter()
        return {
            "latency_us": (now - self.submitted) * 1e6,
            "queue_time_us": ((self.begun or now) - self.submitted) * 1e6,
        }
