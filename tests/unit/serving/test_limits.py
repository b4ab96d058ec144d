"""What is refused, and when: before work, and without shutting others out."""

import contextlib
import http.client
import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyflame_rt.serving import RateLimitConfig, protocol
from pyflame_rt.serving.answers import AnswerBudget
from pyflame_rt.serving.errors import RequestError
from tests.unit.serving.scene import Gate, ask, scaled, serving, talk, tensor

X = np.ones((1, 3), np.float32)
BODY = {"inputs": {"x": tensor(X)}}
INFER = "/v1/models/m/infer"


@pytest.fixture(scope="module")
def server():
    with serving(max_request_size=1 << 20) as running:
        yield running


def head(path=INFER, **headers):
    lines = [f"POST {path} HTTP/1.1", "Host: x", *(f"{k.replace('_', '-')}: {v}" for k, v in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode()


def status_of(answer):
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else 0


def test_a_gigabyte_is_refused_at_its_header(server):
    answer = talk(server, head(Content_Length=1 << 30), until=b"allows")  # no byte of it was sent
    assert status_of(answer) == 413
    assert b"max_request_size" in answer
    answer = talk(server, head(Content_Length=1 << 30, Expect="100-continue"), until=b"allows")
    assert status_of(answer) == 413  # not 100
    assert status_of(talk(server, head(Content_Length="9" * 100), until=b"}")) in (400, 413)


def test_a_connection_outlives_an_answer_that_came_before_the_body(server):
    """A client may use it again: no header said that it would be closed."""
    body = json.dumps(BODY).encode()
    with socket.create_connection(("127.0.0.1", server.http_port()), timeout=120) as connection:
        for _ in range(3):
            connection.sendall(head("/v1/models/none/infer", Content_Length=len(body)))
            assert status_of(connection.recv(1 << 16)) == 404
            connection.sendall(body[:5])
            time.sleep(0.05)
            connection.sendall(body[5:] + head(Content_Length=len(body))[:20])
            time.sleep(0.05)
            connection.sendall(head(Content_Length=len(body))[20:] + body)
            assert status_of(connection.recv(1 << 16)) == 200


@pytest.mark.parametrize("rest", [b"", b"{", b"{" * 50 + b"POST /v1"])
def test_a_body_that_stays_away_after_its_answer_holds_no_connection(monkeypatch, rest):
    monkeypatch.setattr(protocol, "LINGER_SECONDS", 0.3)
    with (
        serving(header_timeout_ms=300) as server,
        socket.create_connection(("127.0.0.1", server.http_port()), timeout=120) as connection,
    ):
        connection.sendall(head("/v1/models/none/infer", Content_Length=50))
        assert status_of(connection.recv(1 << 16)) == 404
        connection.sendall(rest)
        assert connection.recv(1 << 16)[:12] in (b"", b"HTTP/1.1 408")


def test_a_body_in_pieces_is_counted_as_it_comes(server):
    piece = b"10000\r\n" + bytes(1 << 16) + b"\r\n"
    with socket.create_connection(("127.0.0.1", server.http_port()), timeout=120) as connection:
        connection.sendall(head(Transfer_Encoding="chunked"))
        with contextlib.suppress(ConnectionError):
            for _ in range(40):
                connection.sendall(piece)
        answer = connection.recv(1 << 16)
    assert status_of(answer) == 413


@pytest.mark.parametrize(
    "request_",
    [
        head(Content_Length=2)[:-2] + b"Content-Length: 2\r\n\r\n{}",
        head(Content_Length=2)[:-2] + b"Content-Length: 3\r\n\r\n{}",
        head(Content_Length=4)[:-2] + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        head(Content_Length="-1"),
        head(Content_Length="2x") + b"{}",
        head(Transfer_Encoding="chunked") + b"zz\r\n",
        head(Transfer_Encoding="gzip, identity") + b"{}",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /v1/models/\xff HTTP/1.1\r\nHost: x\r\n\r\n",
        b"BREW /v1/models HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nHost: x\r\nBad Header: 1\r\n\r\n",
        b"GET /v1/models HTTP/1.1\nHost: x\r\nX: a\x00b\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nHost: x\r\nX-API-Key: a\r\nX-API-Key: b\r\n\r\n",
        head(Content_Length=2)[:-2]
        + b"Inference-Header-Content-Length: 2\r\nInference-Header-Content-Length: 1\r\n\r\n{}",
    ],
)
def test_http_that_is_none_is_refused(server, request_):
    answer = talk(server, request_, until=b"\r\n\r\n")
    assert 400 <= status_of(answer) < 500
    assert b"Traceback" not in answer
    assert ask(server, "GET", "/health/live")[0] == 200


def test_no_request_is_smuggled_in_a_body(server):
    """A body belongs to its request, also to a GET: what is in it is not taken for another."""
    inner = b"GET /v1/models/none HTTP/1.1\r\nHost: x\r\n\r\n"
    first = b"GET /health/live HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(inner), inner)
    second = b"GET /health/ready HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    answer = talk(server, first + second)
    assert answer.count(b"HTTP/1.1 200") == 2
    assert b"404" not in answer


def test_headers_end_somewhere(server):
    long = b"GET /health/live HTTP/1.1\r\nHost: x\r\nX: " + b"a" * (1 << 17)
    assert status_of(talk(server, long, until=b"\r\n\r\n")) == 431
    trailers = (
        head(Transfer_Encoding="chunked") + b"0\r\n" + b"".join(b"X-%d: %s\r\n" % (i, b"a" * 90) for i in range(2000))
    )
    with contextlib.suppress(ConnectionError):
        talk(server, trailers, until=b"\r\n\r\n")
    assert ask(server, "GET", "/health/live")[0] == 200


def test_slow_clients_on_every_place_shut_nobody_out():
    with serving(max_connections=8, header_timeout_ms=60_000) as server:
        slow = [socket.create_connection(("127.0.0.1", server.http_port()), timeout=120) for _ in range(24)]
        for i, connection in enumerate(slow):
            with contextlib.suppress(ConnectionError):
                connection.sendall(head(Content_Length=100) + b"{" if i % 2 else b"POST /v1/mod")
        begun = time.monotonic()
        for _ in range(5):
            assert ask(server, "GET", "/health/live")[0] == 200
            assert ask(server, "POST", INFER, BODY)[0] == 200
        assert time.monotonic() - begun < 60
        for connection in slow:
            connection.close()


def test_headers_and_bodies_must_come_in_time():
    with serving(header_timeout_ms=200, request_timeout_ms=400) as server:
        assert status_of(talk(server, b"GET /health/live HTTP/1.1\r\nHost")) == 408
        assert talk(server, b"") == b""
        answer = talk(server, head(Content_Length=10) + b"{")
        assert status_of(answer) == 408
        assert b"did not come" in answer


def test_keys_are_asked_for_before_the_body():
    with serving(api_keys=["one", "two"]) as server:
        answer = talk(server, head(Content_Length=1 << 20), until=b"}")
        assert status_of(answer) == 401
        assert ask(server, "GET", "/health/ready")[0] == 200  # probes need none
        for path in ("/v1/models", "/metrics", "/v1/models/m/stats", "/nowhere"):
            assert ask(server, "GET", path)[0] == 401
        for headers in ({"X-API-Key": "two"}, {"Authorization": "Bearer one"}):
            assert ask(server, "POST", INFER, BODY, headers)[0] == 200
        for headers in ({"X-API-Key": "three"}, {"Authorization": "Basic one"}, {"X-API-Key": "\u00fc"}):
            assert ask(server, "POST", INFER, BODY, headers)[0] == 401


def test_rates_are_by_key():
    limit = RateLimitConfig(enabled=True, requests_per_second=0.001, burst_size=2)
    with serving(api_keys=["a", "b"], rate_limit=limit) as server:
        seen = [ask(server, "GET", "/v1/models", headers={"X-API-Key": "a"}) for _ in range(3)]
        assert [status for status, _, _ in seen] == [200, 200, 429]
        assert int(seen[-1][1].getheader("retry-after")) > 0
        assert ask(server, "GET", "/v1/models", headers={"X-API-Key": "b"})[0] == 200
        assert ask(server, "GET", "/health/live")[0] == 200


def test_pages_of_other_origins_are_told():
    with serving(enable_cors=True, cors_origins=["https://a.example"]) as server:
        for origin, allowed in (("https://a.example", "https://a.example"), ("https://b.example", None)):
            status, answer, _ = ask(server, "OPTIONS", INFER, headers={"Origin": origin})
            assert (status, answer.getheader("access-control-allow-origin")) == (204, allowed)
            _, answer, _ = ask(server, "GET", "/v1/models", headers={"Origin": origin})
            assert answer.getheader("access-control-allow-origin") == allowed
    with serving() as server:
        assert ask(server, "OPTIONS", INFER, headers={"Origin": "https://a.example"})[0] == 405


def test_a_full_queue_is_503():
    with serving({}) as server:
        from pyflame_rt.serving import ModelConfig
        from tests.unit.serving.scene import scaled

        settings_ = ModelConfig(queue_capacity=2, max_batch_size=1, warmup_requests=0)
        server.load_model("m", scaled(), config=settings_)
        gate = Gate(server)
        with ThreadPoolExecutor(3) as pool:
            first = pool.submit(ask, server, "POST", INFER, BODY)
            assert gate.inside.acquire(timeout=120)
            others = [pool.submit(ask, server, "POST", INFER, BODY) for _ in range(2)]
            while server.registry().get_latest("m").get_stats()["queue_depth"] < 2:
                time.sleep(0.001)
            status, answer, found = ask(server, "POST", INFER, BODY)
            assert (status, found["error_code"], answer.getheader("retry-after")) == (503, "QueueFull", "1")
            assert ask(server, "GET", "/health/live")[0] == 200
            gate.open()
            assert [f.result()[0] for f in (first, *others)] == [200, 200, 200]


def test_a_run_that_takes_too_long_is_504():
    with serving() as server:
        gate = Gate(server)
        status, _, found = ask(server, "POST", INFER, {**BODY, "timeout_ms": 50})
        assert (status, found["error_code"]) == (504, "Timeout")
        gate.open()
        assert ask(server, "POST", INFER, BODY)[0] == 200


def test_a_client_that_has_gone_is_not_worked_for():
    with serving() as server:
        gate = Gate(server)
        instance = server.registry().get_latest("m")
        body = json.dumps(BODY).encode()
        with socket.create_connection(("127.0.0.1", server.http_port()), timeout=120) as first:
            first.sendall(head(Content_Length=len(body)) + body)
            assert gate.inside.acquire(timeout=120)
            with socket.create_connection(("127.0.0.1", server.http_port()), timeout=120) as second:
                second.sendall(head(Content_Length=len(body)) + body)
                while instance.get_stats()["queue_depth"] < 1:
                    time.sleep(0.001)
            while instance.get_stats()["cancelled_requests"] < 1:  # it waits no more
                time.sleep(0.001)
            gate.open()
            assert status_of(first.recv(1 << 16)) == 200
        assert not instance.in_use


def test_bodies_under_way_have_a_budget():
    with serving(max_request_size=1 << 20, max_pending_bytes=1 << 20) as server:
        with socket.create_connection(("127.0.0.1", server.http_port()), timeout=120) as slow:
            slow.sendall(head(Content_Length=1 << 20) + b"{")
            while server.service.active < 1:
                time.sleep(0.001)
            status, _, found = ask(server, "POST", INFER, BODY)
            assert (status, found["error_code"]) == (503, "QueueFull")
        while server.service.active:
            time.sleep(0.001)
        assert ask(server, "POST", INFER, BODY)[0] == 200


def test_whoever_is_refused_while_sending_hears_it(server, monkeypatch):
    monkeypatch.setattr(protocol, "LINGER_SECONDS", 240.0)
    with socket.create_connection(("127.0.0.1", server.http_port()), timeout=240) as connection:
        connection.sendall(head(Content_Length=1 << 27))
        first = connection.recv(1)
        for _ in range(3):
            connection.sendall(bytes(100_000))
        rest = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    assert status_of(first + rest) == 413


def test_kept_connections_answer_without_a_pause(server):
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port(), timeout=120)
    times = []
    for _ in range(30):
        begun = time.perf_counter()
        connection.request("POST", INFER, json.dumps(BODY))
        assert connection.getresponse().read()
        times.append(time.perf_counter() - begun)
    connection.close()
    assert min(times) < 0.03  # headers and body in two packets that wait for each other take 40 ms


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["inputs", "x", "shape", "dtype", "data", "outputs", "name"]), inner, max_size=4
            )
        ),
        max_leaves=12,
    )
)
def test_no_json_is_the_servers_fault(server, value):
    for body in (
        value,
        {"inputs": value},
        {"inputs": {"x": value}},
        {"inputs": {"x": {"dtype": "float32", "data": value}}},
    ):
        status, _, found = ask(server, "POST", INFER, json.dumps(body).encode())
        assert status == 200 or 400 <= status < 500, found


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(st.binary(max_size=200))
def test_no_bytes_are_the_servers_fault(server, data):
    status, _, _ = ask(server, "POST", INFER, data)
    assert 400 <= status < 500
    answer = talk(server, b"GET /health/live HTTP/1.1\r\nHost: x\r\nX: " + data + b"\r\nConnection: close\r\n\r\n")
    assert not answer or status_of(answer) < 500


ROWS = np.ones((8, 3 << 18), np.float32)  # 24 MB


@contextlib.contextmanager
def wide(**settings):
    with serving({"m": scaled(), "wide": scaled(size=ROWS.shape[1])}, **settings) as server:
        yield server


@contextlib.contextmanager
def long_answer(server):
    """A connection on which 24 MB were asked for, whose system takes as little of them as it can."""
    given = {
        "name": "x",
        "shape": list(ROWS.shape),
        "datatype": "FP32",
        "parameters": {"binary_data_size": ROWS.nbytes},
    }
    text = json.dumps({"inputs": [given], "parameters": {"binary_data_output": True}}).encode()
    sizes = {"Inference_Header_Content_Length": len(text), "Content_Length": len(text) + ROWS.nbytes}
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
        connection.settimeout(120)
        connection.connect(("127.0.0.1", server.http_port()))
        connection.sendall(head("/v2/models/wide/infer", **sizes) + text + ROWS.tobytes())
        yield connection


def taken(connection, pause=0.0, most=ROWS.nbytes + 1):
    """Bytes of an answer, taken in pieces with pauses between them."""
    found = 0
    connection.settimeout(5)
    with contextlib.suppress(ConnectionResetError, TimeoutError):
        while found < most and (piece := connection.recv(1 << 16)):
            found += len(piece)
            time.sleep(pause)
    return found


def connections(server):
    return len(server._host._server.server_state.connections)


def wait_for(fact):
    until = time.monotonic() + 120
    while not fact() and time.monotonic() < until:
        time.sleep(0.01)
    assert fact()


def test_a_client_that_takes_nothing_is_let_go():
    with wide(send_timeout_ms=500) as server, long_answer(server) as connection:
        connection.recv(1 << 10)  # the answer has begun
        wait_for(lambda: not connections(server))
        assert taken(connection) < ROWS.nbytes
        assert ask(server, "GET", "/health/live")[0] == 200


def test_short_answers_that_nobody_takes_are_let_go(monkeypatch):
    """Also one that is written at once, on a connection that was closed: closing waits for the client."""
    monkeypatch.setattr("pyflame_rt.serving.guard.PIECE", 1 << 30)
    with wide(send_timeout_ms=500, keep_alive_timeout_ms=1) as server, long_answer(server) as connection:
        connection.recv(1 << 10)
        wait_for(lambda: not connections(server))


def test_a_client_that_takes_its_answer_slowly_gets_it():
    """The kernel has it in lumps: none of them may look like a client that takes nothing."""
    with wide(send_timeout_ms=2000) as server, long_answer(server) as connection:
        slowly = taken(connection, 0.05, most=4 << 20)  # 1.3 MB a second at most
        assert slowly + taken(connection) > ROWS.nbytes


def test_answers_have_a_budget(monkeypatch):
    """Who takes nothing makes room for others; where all take theirs, the next one is told to come later."""
    monkeypatch.setattr("pyflame_rt.serving.answers.YOUNG", 0.0)
    with wide(max_pending_bytes=40 << 20) as server, contextlib.ExitStack() as open_:
        answers = server._host._app.answers
        first = open_.enter_context(long_answer(server))
        wait_for(lambda: answers.held > 20 << 20)
        second = open_.enter_context(long_answer(server))
        monkeypatch.setattr("pyflame_rt.serving.answers.SLOW", 1 << 30)  # every client is slow
        assert taken(second) > ROWS.nbytes
        assert taken(first) < ROWS.nbytes
        third = open_.enter_context(long_answer(server))
        wait_for(lambda: answers.held > 20 << 20)
        monkeypatch.setattr("pyflame_rt.serving.answers.SLOW", 0)  # no client is
        fourth = open_.enter_context(long_answer(server))
        refused = fourth.recv(1 << 12)
        assert status_of(refused) == 503
        assert b"retry-after" in refused
        assert ask(server, "POST", INFER, BODY)[0] == 200  # short answers go on
        assert taken(third) > ROWS.nbytes
        wait_for(lambda: not answers.held)
        assert not server._host._app.pending


def test_answers_that_nobody_takes_need_no_memory_of_the_bodies():
    """A body is counted until it is answered, not until its answer was taken."""
    with wide(max_pending_bytes=40 << 20) as server, long_answer(server) as connection:
        wait_for(lambda: server._host._app.answers.held)
        assert not server._host._app.pending
        assert taken(connection) > ROWS.nbytes


def test_young_answers_do_not_guard_old_ones():
    """A budget looks for who takes least among those of whom that can be told."""
    gone = []

    class One:
        def __init__(self, begun, speed):
            self.left, self.begun, self.speed = 60, begun, speed

        def rate(self, now):
            return self.speed

        def let_go(self, now):
            gone.append(self)

    budget = AnswerBudget(130)
    old, young = One(0.0, 100), One(9.9, 0)
    budget._sending.update({old: None, young: None})
    budget.make_room(60, 10.0)
    assert gone == [old]
    with pytest.raises(RequestError):
        budget.make_room(100, 10.0)
