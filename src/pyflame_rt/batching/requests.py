"""Requests on their way through a batcher, and their answers."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any

from pyflame_rt.futures import RequestFuture
from pyflame_rt.graph.named_arguments import names_arguments
from pyflame_rt.graph.records import dataclass
from pyflame_rt.responses import Pending, Response

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np

    from pyflame_rt.batching.layout import Rows

__all__ = ["BatchFuture", "InferenceRequest", "InferenceResponse", "Ticket", "as_request"]


@dataclass(slots=True)
class InferenceRequest:
    """What to run.

    Attributes:
        inputs: a value for each input, with or without a batch axis.
        output_names: which outputs to answer with; None for all.
        timeout_ms: time it may take altogether; None for that of the batcher's settings.
        caller: who asks; callers get equal shares. None for the calling thread.

    Example:
        >>> request = InferenceRequest()
        >>> request.inputs["x"] = [1.0]
        >>> request
        InferenceRequest(inputs={'x': [1.0]}, output_names=None, timeout_ms=None, caller=None)
    """

    inputs: dict[str, Any] = field(default_factory=dict)
    output_names: Sequence[str] | None = None
    timeout_ms: float | None = None
    caller: Hashable = None


def as_request(
    inputs: Mapping[str, Any] | InferenceRequest,
    output_names: Sequence[str] | None,
    timeout_ms: float | None,
    caller: Hashable,
) -> InferenceRequest:
    """A request from its inputs, or from another one with some of it changed.

    Raises:
        TypeError: The caller cannot be told from others.
    """
    who = inputs.caller if isinstance(inputs, InferenceRequest) and caller is None else caller
    if not isinstance(who, Hashable):
        raise TypeError(f"caller must be hashable, got {type(who).__name__}")
    if not isinstance(inputs, InferenceRequest):
        given: Any = dict(inputs) if isinstance(inputs, Mapping) else inputs
        return InferenceRequest(given, output_names, timeout_ms, who)
    return InferenceRequest(
        inputs.inputs,
        inputs.output_names if output_names is None else output_names,
        inputs.timeout_ms if timeout_ms is None else timeout_ms,
        who,
    )


class InferenceResponse(Response):
    """What became of a request.

    Attributes:
        batch_size: rows in the run that gave its last rows.

    Example:
        >>> InferenceResponse(1, {"y": 2}, latency_us=5.0, queue_time_us=1.0, batch_size=8).outputs
        {'y': 2}
    """

    @names_arguments
    def __init__(
        self,
        request_id: int,
        outputs: Mapping[str, Any] | None = None,
        *,
        error: BaseException | None = None,
        latency_us: float = 0.0,
        queue_time_us: float = 0.0,
        batch_size: int = 0,
    ) -> None:
        super().__init__(request_id, outputs, error=error, latency_us=latency_us, queue_time_us=queue_time_us)
        self.batch_size = batch_size


BatchFuture = RequestFuture[InferenceResponse]


class Ticket(Pending):
    """A request inside a batcher.

    Args:
        number: its id.
        rows: its inputs.
        names: outputs to answer with.
        caller: who asked.
        priority: higher is sooner.
        deadline: by ``time.perf_counter``; None for none.
    """

    __slots__ = (
        *("__weakref__", "batch_size", "caller", "deadline", "future", "missing", "names", "parts", "priority"),
        *("rows", "waiting"),
    )

    def __init__(
        self,
        number: int,
        rows: Rows,
        names: Sequence[str],
        caller: Hashable,
        priority: int,
        deadline: float | None,
        withdraw: Callable[[Ticket], bool],
    ) -> None:
        super().__init__(number)
        self.rows = rows
        self.names = names
        self.caller = caller
        self.priority = priority
        self.deadline = deadline
        self.batch_size = 0
        self.waiting = rows.count  # rows that were not taken for a run yet
        self.missing = rows.count  # rows without outputs yet
        self.parts: dict[int, dict[str, np.ndarray[Any, Any]]] = {}  # outputs, by the first row
        self.future: BatchFuture = RequestFuture(number, lambda: withdraw(self))

    def response(self, outputs: Mapping[str, Any] | None, error: BaseException | None = None) -> InferenceResponse:
        """The answer as of now."""
        return InferenceResponse(self.number, outputs, error=error, batch_size=self.batch_size, **self.times())
