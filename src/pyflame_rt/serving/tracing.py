"""Spans of OpenTelemetry, where a program or `opentelemetry-instrument` has set it up: requests, and runs inside them.

A request goes on with the trace of its caller (W3C's ``traceparent`` header). Only the API is used here: where spans
go is the affair of whoever configures the SDK. Without one, nothing is measured and nothing is slower.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from pyflame_rt._version import __version__

if TYPE_CHECKING:
    from collections.abc import Generator
    from contextlib import AbstractContextManager

__all__ = ["Spans", "note_failure", "note_run", "note_status"]

_NOTHING = nullcontext()


class Spans:
    """Makes spans; looks once, when it is made, whether anybody wants them.

    Example:
        >>> with Spans().run("digits", "1") as span:
        ...     pass
    """

    def __init__(self) -> None:
        self._tracer: Any = _tracer()

    def request(self, scope: dict[str, Any], headers: dict[bytes, bytes]) -> AbstractContextManager[Any]:
        """One request over HTTP; the name of its span is method and path."""
        return _NOTHING if self._tracer is None else self._request(scope, headers)

    def run(self, model: str, version: str) -> AbstractContextManager[Any]:
        """One run of a model, of any protocol."""
        if self._tracer is None:
            return _NOTHING
        about = {"pyflame_rt.model.name": model, "pyflame_rt.model.version": version}
        return self._tracer.start_as_current_span(f"infer {model}", attributes=about)

    @contextmanager
    def _request(self, scope: dict[str, Any], headers: dict[bytes, bytes]) -> Generator[Any]:
        from opentelemetry.propagate import extract
        from opentelemetry.trace import SpanKind

        texts = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers.items()}
        about = {
            "http.request.method": scope["method"],
            "url.path": scope["path"],
            "url.scheme": scope.get("scheme", "http"),
            "network.protocol.version": scope.get("http_version", ""),
            "pyflame_rt.request.id": scope["request_id"],
        }
        name = f"{scope['method']} {scope['path']}"
        with self._tracer.start_as_current_span(
            name, context=extract(texts), kind=SpanKind.SERVER, attributes=about
        ) as span:
            yield span


def note_status(span: Any, status: int) -> None:
    """How a request was answered; what is the server's fault, and no answer, makes the span one of an error."""
    if span is None:
        return
    if status:
        span.set_attribute("http.response.status_code", status)
    if status >= 500 or not status:
        from opentelemetry.trace import Status, StatusCode

        span.set_status(Status(StatusCode.ERROR))


def note_failure(span: Any, error: Exception) -> None:
    """What broke a request, perhaps when its answer had begun as a good one."""
    if span is None:
        return
    from opentelemetry.trace import Status, StatusCode

    span.record_exception(error)
    span.set_status(Status(StatusCode.ERROR))


def note_run(span: Any, rows: int, queued_us: int) -> None:
    """What a run was part of."""
    if span is not None:
        span.set_attribute("pyflame_rt.batch.size", rows)
        span.set_attribute("pyflame_rt.queue.time_us", queued_us)


def _tracer() -> Any:
    """The program's tracer; None where OpenTelemetry is not installed, or nobody has said where spans go."""
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.trace") is None:
        return None
    from opentelemetry.trace import ProxyTracerProvider, get_tracer, get_tracer_provider

    if isinstance(get_tracer_provider(), ProxyTracerProvider):
        return None
    return get_tracer("pyflame_rt.serving", __version__)
