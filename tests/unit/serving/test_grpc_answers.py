"""Answers over gRPC that are not taken: counted, bounded, and ended; those that are taken slowly are not."""

import contextlib
import socket
import threading
import time

import numpy as np
import pytest

import pyflame_rt
from pyflame_rt.serving import connections, grpc_answers
from pyflame_rt.serving.messages import SERVICE, message
from tests.unit.serving.http2 import Connection
from tests.unit.serving.scene import scaled, serving
from tests.unit.serving.test_grpc import HERE, X, call, tensor

PATH = f"/{SERVICE}/ModelInfer"
ONE = np.ones((1, 1), np.float32)
WIDTH = (1 << 20) - 1000  # gRPC's clients take 4 MB
LONG = 4 * WIDTH  # bytes of an answer of the wide model
KEPT = grpc_answers.COPIES * LONG


def wide():
    """y is x, a million times: a short request has a long answer."""
    graph = pyflame_rt.Graph("wide")
    graph.add_input("x", ["N", 1])
    graph.add_initializer("shape", np.array([1, WIDTH], np.int64))
    graph.add_node("expand", "Expand", ["x", "shape"], ["y"])
    graph.add_output("y", ["N", WIDTH])
    return graph


def asked(model="wide", array=ONE):
    fields = {"model_name": model, "inputs": [tensor(array)], "raw_input_contents": [array.tobytes()]}
    return message("ModelInferRequest")(**fields).SerializeToString()


@contextlib.contextmanager
def talking(**settings):
    with serving({"m": scaled(), "wide": wide()}, grpc=HERE, **settings) as server:
        yield server, server._rpc.answers


def until(fact, what=""):
    end = time.monotonic() + 120
    while not fact():
        assert time.monotonic() < end, what
        time.sleep(0.002)


def test_answers_that_nobody_takes_have_a_budget():
    """As the memory is needed, connections that take nothing are ended, with all their answers; others are served."""
    with talking(max_pending_bytes=4 * KEPT) as (server, answers), contextlib.ExitStack() as held:
        silent = [held.enter_context(Connection(server, window=0)) for _ in range(3)]
        most = 0
        for _ in range(4):
            for one in silent:
                with contextlib.suppress(ConnectionError):  # it was ended
                    one.call(PATH, asked())
        until(lambda: answers.held >= 3 * KEPT)
        until(lambda: server.service.active == 0)
        end = time.monotonic() + 3
        while time.monotonic() < end:
            most = max(most, answers.held)
            with contextlib.suppress(Exception):
                call(server, "ModelInfer", model_name="wide", inputs=[tensor(ONE)], raw_input_contents=[ONE.tobytes()])
        assert most <= 4 * KEPT
        fields = {"inputs": [tensor(ONE)], "raw_input_contents": [ONE.tobytes()]}
        found = call(server, "ModelInfer", model_name="wide", **fields)
        assert len(found.raw_output_contents[0]) == LONG
        assert any(one.ended(0.5) for one in silent)


def test_short_answers_are_counted_too(monkeypatch):
    monkeypatch.setattr("pyflame_rt.serving.answers.YOUNG", 0.0)
    limit = 40 * grpc_answers.OVERHEAD
    with talking(max_pending_bytes=limit) as (server, answers), Connection(server, window=0) as silent:
        for _ in range(30):
            silent.call(PATH, asked("m", X))
        until(lambda: answers.held > 30 * grpc_answers.OVERHEAD)
        for _ in range(30):
            with contextlib.suppress(ConnectionError):
                silent.call(PATH, asked("m", X))
        assert silent.ended()
        until(lambda: answers.held == 0)
        assert call(server, "ServerReady").ready


@pytest.mark.parametrize("talk", [False, True])
def test_a_connection_that_takes_nothing_ends(talk):
    """Also where nobody needs the memory, and where it talks about other things."""
    with talking(send_timeout_ms=1000) as (server, answers), Connection(server, window=0) as silent:
        silent.call(PATH, asked())
        until(lambda: answers.held)
        end = threading.Event()

        def chat():
            while talk and not end.wait(0.2):
                with contextlib.suppress(OSError):
                    silent.ping()

        other = threading.Thread(target=chat)
        other.start()
        assert silent.ended()
        end.set()
        other.join()
        until(lambda: answers.held == 0)


def test_who_takes_its_answer_slowly_gets_it():
    """For longer than a client that takes nothing is kept."""
    with talking(send_timeout_ms=1500) as (server, answers), Connection(server) as slow:
        slow.call(PATH, asked())
        begun = time.monotonic()
        taken, whole = slow.take(0.05, most=1 << 20)
        assert not whole
        assert answers.held >= KEPT
        assert time.monotonic() - begun > 1.5
        rest, whole = slow.take()
        assert whole
        assert taken + rest > LONG
        until(lambda: answers.held == 0)


def test_who_takes_its_answer_stays_where_others_want_its_place(monkeypatch):
    """The others are told to come later; where they may, it is slowness that decides."""
    monkeypatch.setattr("pyflame_rt.serving.answers.YOUNG", 0.2)
    with talking(max_pending_bytes=3 * KEPT // 2) as (server, answers), Connection(server) as slow:
        slow.call(PATH, asked())
        until(lambda: answers.held)
        monkeypatch.setattr("pyflame_rt.serving.answers.SLOW", 4 << 10)
        slow.take(0.05, most=1 << 18)
        with Connection(server) as other:
            other.call(PATH, asked())
            found, whole = other.take()
            assert (found, whole) == (0, True)  # a status alone: UNAVAILABLE
        rest, whole = slow.take()
        assert whole
        assert rest > LONG - (1 << 19)


def test_clients_that_leave_fill_no_log(caplog):
    """gRPC would write a traceback for each."""
    with talking() as (server, answers):
        for _ in range(3):
            with Connection(server, window=0) as leaving:
                leaving.call(PATH, asked())
                until(lambda: answers.held)
            until(lambda: not answers.held)
    assert not [record for record in caplog.records if record.exc_info or record.levelname == "ERROR"]


def test_an_answer_is_bytes_behind_its_message():
    """What is written by hand reads as the protocol's own writer has it."""
    with talking() as (server, _):
        for width in (0, 1, 127, 128, 20_000):
            rows = np.zeros((width, 3), np.float32) if width else np.zeros((1, 3), np.float32)
            found = call(
                server, "ModelInfer", model_name="m", inputs=[tensor(rows)], raw_input_contents=[rows.tobytes()]
            )
            assert found.raw_output_contents[0] == (rows * 2).tobytes()
            assert type(found).FromString(found.SerializeToString()) == found


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_connections_are_found_by_their_peers(family, host):
    with socket.socket(family) as listening:
        try:
            listening.bind((host, 0))
        except OSError:
            pytest.skip(f"no {host} here")
        listening.listen()
        port = listening.getsockname()[1]
        with socket.create_connection((host, port)) as client, listening.accept()[0] as accepted:
            peer = (host, client.getsockname()[1])
            with connections.open_connections(port, [peer]) as found:
                assert list(found) == [peer]
                before = connections.traffic(found[peer])
                accepted.sendall(bytes(1000))
                assert len(client.recv(1 << 12)) == 1000
                client.sendall(bytes(500))
                assert len(accepted.recv(1 << 12)) == 500
                after = None if before is None else (before.taken + 1000, before.received + 500)
                until(lambda: connections.traffic(found[peer]) == after)
                found[peer].shutdown(socket.SHUT_RDWR)
            assert client.recv(1) == b""
            with connections.open_connections(port, [("192.0.2.1", 1)]) as found:
                assert not found
    with connections.open_connections(port, [peer]) as found:
        assert not found
