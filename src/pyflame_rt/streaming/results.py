"""Settings, answers and statistics of runs in the background."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame_rt.graph.arguments import number_problems
from pyflame_rt.graph.errors import InputError
from pyflame_rt.graph.records import dataclass
from pyflame_rt.responses import Response

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["AsyncOptions", "AsyncResult", "AsyncStats", "RunRecord"]

_FULL = ("reject", "wait")


@dataclass(slots=True)
class AsyncOptions:
    """Settings of an AsyncSession.

    Attributes:
        num_streams: queues; requests of one run in order, one at a time.
        enable_pipelining: runs of different streams may overlap; False has one run at a time.
        callback_threads: threads for callbacks; with one of them, they are called one after the other.
        max_pending: requests that may wait or run.
        when_full: what happens to one more: "reject" raises QueueFullError, "wait" lets the caller wait.
        enable_profiling: keep a record of every run, for ``AsyncSession.get_profile()``.

    Example:
        >>> AsyncOptions(num_streams=2).validate(), AsyncOptions(max_pending=0).validate()
        ([], ['max_pending must be at least 1, got 0'])
    """

    num_streams: int = 4
    enable_pipelining: bool = True
    callback_threads: int = 1
    max_pending: int = 100
    when_full: str = "reject"
    enable_profiling: bool = False

    def validate(self) -> list[str]:
        """What is wrong with the settings; empty when nothing is."""
        problems = number_problems(self, {"num_streams": 1, "callback_threads": 1, "max_pending": 1}, {})
        if self.when_full not in _FULL:
            problems.append(f"when_full must be one of {', '.join(_FULL)}, got {self.when_full!r}")
        return problems

    def checked(self) -> AsyncOptions:
        """These settings.

        Raises:
            InputError: They are not valid.
        """
        problems = self.validate()
        if problems:
            raise InputError("invalid asynchronous options: " + "; ".join(problems))
        return self


class AsyncResult(Response):
    """What became of a request.

    Attributes:
        stream_id: the stream it ran on.

    Example:
        >>> AsyncResult(1, {"y": 2}, latency_us=5.0, stream_id=3).stream_id
        3
    """

    def __init__(
        self,
        request_id: int,
        outputs: Mapping[str, Any] | None = None,
        *,
        error: BaseException | None = None,
        latency_us: float = 0.0,
        queue_time_us: float = 0.0,
        stream_id: int = 0,
    ) -> None:
        super().__init__(request_id, outputs, error=error, latency_us=latency_us, queue_time_us=queue_time_us)
        self.stream_id = stream_id


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run: whose, on which stream, when it was asked for, began and ended (``time.perf_counter``), and how."""

    request_id: int
    stream_id: int
    submitted: float
    begun: float
    ended: float
    success: bool


@dataclass(frozen=True, slots=True)
class AsyncStats:
    """What an AsyncSession did since it was made.

    Attributes:
        total_requests: that were taken.
        completed_requests: answered with outputs.
        failed_requests: answered with an error.
        cancelled_requests: taken back.
        rejected_requests: refused because too many were pending.
        pending_requests: waiting or running now.
        avg_latency_us: from the call to the answer, of completed requests.
        avg_queue_time_us: from the call to the run.
        throughput_rps: completed requests a second, from the first call to the last answer.
    """

    total_requests: int = 0
    completed_requests: int = 0
    failed_requests: int = 0
    cancelled_requests: int = 0
    rejected_requests: int = 0
    pending_requests: int = 0
    avg_latency_us: float = 0.0
    avg_queue_time_us: float = 0.0
    throughput_rps: float = 0.0
