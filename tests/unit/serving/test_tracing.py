"""Spans of requests, in a process of their own: a program can say only once where they go."""

import json
import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("opentelemetry.sdk")

PROGRAM = """
    import json
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    from tests.unit.serving.scene import ask, serving

    seen = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(seen))
    if {set_up}:
        trace.set_tracer_provider(provider)
    with serving() as server:
        parent = {{"traceparent": "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01", "x-request-id": "r7"}}
        body = {{"inputs": {{"x": [[1.0, 2.0, 3.0]]}}}}
        first, _, _ = ask(server, "POST", "/v1/models/m/infer", body, parent)
        second, _, _ = ask(server, "POST", "/v1/models/none/infer", body)
    rows = [
        (s.name, f"{{s.context.trace_id:032x}}", s.parent and f"{{s.parent.span_id:016x}}",
         f"{{s.context.span_id:016x}}", dict(s.attributes), s.kind.name, s.status.status_code.name)
        for s in seen.get_finished_spans()
    ]
    print(json.dumps([first, second, rows]))
"""


def run(set_up):
    program = textwrap.dedent(PROGRAM.format(set_up=set_up))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_requests_go_on_with_the_trace_of_their_caller():
    first, second, spans = run(set_up=True)
    assert (first, second) == (200, 404)
    by_name = {span[0]: span for span in spans}
    request, inner = by_name["POST /v1/models/m/infer"], by_name["infer m"]
    assert (request[1], request[2], request[5]) == ("ab" * 16, "cd" * 8, "SERVER")
    assert request[4]["http.response.status_code"] == 200
    assert request[4]["pyflame_rt.request.id"] == "r7"
    assert (inner[1], inner[2]) == ("ab" * 16, request[3])
    assert inner[4]["pyflame_rt.model.version"] == "1"
    assert inner[4]["pyflame_rt.batch.size"] == 1
    refused = by_name["POST /v1/models/none/infer"]
    assert (refused[4]["http.response.status_code"], refused[6]) == (404, "UNSET")
    assert refused[1] != request[1]


def test_without_a_provider_nothing_is_recorded():
    assert run(set_up=False) == [200, 404, []]


BROKEN = """
    import asyncio, json
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    seen = InMemorySpanExporter()
    trace.set_tracer_provider(TracerProvider())
    trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(seen))
    from pyflame_rt.serving.guard import Guard

    async def app(scope, receive, send):
        if scope["path"] == "/slow":
            await asyncio.sleep(60)
        if scope["path"] != "/never":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"a", "more_body": True})
        if scope["path"] != "/stream":
            raise RuntimeError("broken")
        await asyncio.sleep(0.05)
        await send({"type": "http.response.body", "body": b"b"})

    async def nothing(*message):
        return {"type": "http.request", "body": b"", "more_body": False}

    async def asked(path):
        scope = {"type": "http", "method": "GET", "path": path, "headers": [(b"traceparent", b"none")]}
        task = asyncio.create_task(Guard(app)(scope, nothing, nothing))
        await asyncio.wait([task], timeout=0.2)
        task.cancel()
        await asyncio.wait([task])

    async def main():
        for path in ("/stream", "/late", "/never", "/slow"):
            await asked(path)

    asyncio.run(main())
    print(json.dumps({
        s.name: (s.attributes.get("http.response.status_code"), s.status.status_code.name,
                 [e.attributes["exception.message"] for e in s.events], s.end_time - s.start_time)
        for s in seen.get_finished_spans()
    }))
"""


def test_spans_of_answers_that_break():
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(BROKEN)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    spans = json.loads(done.stdout.splitlines()[-1])
    assert spans["GET /stream"][:3] == [200, "UNSET", []]
    assert spans["GET /stream"][3] > 0.04e9  # up to the last piece
    assert spans["GET /late"][:3] == [200, "ERROR", ["broken"]]
    assert spans["GET /never"][:3] == [500, "ERROR", ["broken"]]
    assert spans["GET /slow"][:3] == [None, "ERROR", []]
