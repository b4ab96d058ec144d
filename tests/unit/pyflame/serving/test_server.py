"""Servers and clients over real sockets."""

import asyncio
import contextlib
import dataclasses
import http.client
import json
import shutil
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import pyflame as pf
from pyflame.serving import ClientConfig, ModelClient, ModelServer, ServerConfig
from pyflame.serving.wire import BadRequest
from pyflame_rt.graph.errors import InputError, UnsupportedOperatorError
from pyflame_rt.serving import protocol

QUICK = ClientConfig(max_retries=0, timeout=120)


@pytest.fixture
def linear():
    model = pf.nn.Linear(3, 2)
    with ModelServer(model, ServerConfig(port=0, max_batch_size=8, max_body_bytes=4096)) as server:
        yield model, server


def raw(server, method, path, body=None, headers=None):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    connection.request(method, path, body, headers or {})
    response = connection.getresponse()
    text = response.read()
    connection.close()
    return response, json.loads(text) if text else None


def test_predictions_are_the_models(linear):
    model, server = linear
    client = ModelClient(server.url, QUICK)
    x = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    want = model(pf.tensor(x)).numpy()
    np.testing.assert_allclose(client.predict(x), want, rtol=1e-5)
    np.testing.assert_allclose(client.predict(x.tolist(), batch_size=3), want, rtol=1e-5)
    np.testing.assert_allclose(client.predict(pf.tensor(x)), want, rtol=1e-5)
    first, second = client.predict_batch([x[:1], x[1:]])
    np.testing.assert_allclose(np.concatenate([first, second]), want, rtol=1e-5)
    assert client.health_check()
    assert client.get_info()["parameters"] == 8
    stats = client.get_stats()
    assert stats["total_requests"] == 5
    assert stats["total_samples"] == 16
    assert stats["average_time_ms"] > 0


def test_the_wire_is_as_documented(linear):
    _, server = linear
    response, answer = raw(server, "POST", "/v1/predict", json.dumps({"inputs": [[1, 2, 3]], "batch_size": 1}))
    assert response.status == 200
    assert sorted(answer) == ["latency_ms", "outputs"]
    assert np.shape(answer["outputs"]) == (1, 2)
    assert raw(server, "GET", "/v1/health")[1]["status"] == "healthy"


def test_asking_at_the_same_time(linear):
    model, server = linear
    batches = [np.full((2, 3), n, np.float32) for n in range(12)]

    async def ask():
        async with ModelClient(server.url) as client:
            return await client.predict_batch_async(batches)

    for x, got in zip(batches, asyncio.run(ask()), strict=True):
        np.testing.assert_allclose(got, model(pf.tensor(x)).numpy(), rtol=1e-5)
    client = ModelClient(server.url)
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(client.predict, batches))
    np.testing.assert_allclose(answers[3], model(pf.tensor(batches[3])).numpy(), rtol=1e-5)


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"{", 400, "not JSON"),
        (b"[" * 100_000, 413, "max_body_bytes"),
        (b"[" * 4000, 400, "not JSON"),
        (b"[1]", 400, '"inputs"'),
        (b'{"inputs": 3}', 400, "a list of numbers"),
        (b'{"inputs": [[1, 2], [3]]}', 400, "not an array"),
        (b'{"inputs": ["a"]}', 400, "not an array"),
        (b'{"inputs": [[1, 2, 3]], "dtype": "float99"}', 400, "element type"),
        (b'{"inputs": [[1, 2, 3]], "batch_size": 0}', 400, "batch_size"),
        (b'{"inputs": {}}', 400, "empty"),
        (json.dumps({"inputs": [[0, 0, 0]] * 9}).encode(), 413, "max_batch_size"),
        (b'{"inputs": [[1, 2]]}', 400, "2"),
    ],
)
def test_bad_requests_are_answered(linear, body, status, message):
    _, server = linear
    response, answer = raw(server, "POST", "/v1/predict", body)
    assert response.status == status
    assert message in answer["error"]
    assert ModelClient(server.url, QUICK).health_check()


def test_other_paths_and_methods(linear):
    _, server = linear
    assert raw(server, "GET", "/nowhere")[0].status == 404
    assert raw(server, "POST", "/v1/health", b"{}")[0].status == 405
    assert raw(server, "GET", "/v1/predict")[0].status == 405
    assert raw(server, "POST", "/v1/predict", iter([b"{}"]))[0].status == 411


def test_errors_of_clients_have_types(linear):
    _, server = linear
    client = ModelClient(server.url, QUICK)
    with pytest.raises(pf.serving.InvalidRequestError, match="max_batch_size allows 8") as caught:
        client.predict(np.zeros((9, 3), np.float32))
    assert caught.value.status == 413
    with pytest.raises(pf.serving.InvalidRequestError):
        client.predict([[1.0, 2.0]])
    server.stop()
    assert not client.health_check()
    with pytest.raises(pf.serving.ServerUnavailableError, match="does not answer"):
        client.predict([[1.0, 2.0, 3.0]])
    with pytest.raises(ValueError, match="http"):
        ModelClient("ftp://x")


def test_a_model_that_fails_is_the_servers_fault():
    def model(x):
        raise RuntimeError(f"no {x.shape}")

    with ModelServer(model, ServerConfig(port=0)) as server, pytest.raises(pf.serving.ModelFailedError):
        ModelClient(server.url, QUICK).predict([[1.0]])


def test_a_key_keeps_others_out():
    with ModelServer(pf.nn.ReLU(), ServerConfig(port=0, api_key="secret")) as server:
        with pytest.raises(pf.serving.AuthenticationError):
            ModelClient(server.url, QUICK).predict([[1.0]])
        keyed = ModelClient(server.url, ClientConfig(api_key="secret", max_retries=0))
        assert keyed.predict([[1.0]]).tolist() == [[1.0]]
        bearer = {"Authorization": "Bearer secret"}
        assert raw(server, "GET", "/v1/stats", headers=bearer)[0].status == 200
        assert raw(server, "GET", "/v1/stats")[0].status == 401
        assert ModelClient(server.url, QUICK).health_check()  # probes need no key


def test_pages_of_other_origins():
    config = ServerConfig(port=0, enable_cors=True, cors_origins=("https://a.example",))
    with ModelServer(pf.nn.ReLU(), config) as server:
        asked, _ = raw(server, "OPTIONS", "/v1/predict", headers={"Origin": "https://a.example"})
        assert asked.getheader("Access-Control-Allow-Origin") == "https://a.example"
        other, _ = raw(server, "OPTIONS", "/v1/predict", headers={"Origin": "https://b.example"})
        assert other.getheader("Access-Control-Allow-Origin") is None


def blocked(config):
    """A server whose answers wait for a gate; with it, what counts those that wait there."""
    gate, inside = threading.Event(), threading.Semaphore(0)
    server = ModelServer(lambda x: x, config)

    def infer(inputs, batch_size=None):
        inside.release()
        assert gate.wait(240)
        return inputs

    server.engine.infer = infer
    return server, gate, inside


def test_slow_models_time_out(monkeypatch):
    server, gate, _ = blocked(ServerConfig(port=0, timeout=240))
    submit, late = server._submit, dataclasses.replace(server.config, timeout=0.2)

    def ask(body):  # the connection stands, so that no slow client is meant
        server.config = late
        return submit(body)

    monkeypatch.setattr(server, "_submit", ask)
    with server:
        with pytest.raises(pf.serving.ServingError, match=r"timeout=0\.2") as caught:
            ModelClient(server.url, QUICK).predict([[1.0]])
        assert caught.value.status == 504
        assert isinstance(caught.value, TimeoutError)
        with pytest.raises(BadRequest, match=r"timeout=0\.2"):
            server.predict({"inputs": [[1.0]]})
        gate.set()


def test_full_queues_refuse():
    server, gate, inside = blocked(ServerConfig(port=0, timeout=240, workers=1, max_queue=1))
    with server, ThreadPoolExecutor(2) as pool:
        client = ModelClient(server.url, ClientConfig(max_retries=0, timeout=240))
        first = pool.submit(client.predict, [[1.0]])
        assert inside.acquire(timeout=120)  # it is computed
        second = pool.submit(client.predict, [[2.0]])
        while server._waiting._value:  # until the second waits for its turn
            time.sleep(0.001)
        with pytest.raises(pf.serving.ServingError, match="waiting") as caught:
            client.predict([[3.0]])
        assert caught.value.status == 503
        assert isinstance(caught.value, ConnectionError)
        gate.set()
        assert [first.result().tolist(), second.result().tolist()] == [[[1.0]], [[2.0]]]
        patient = ClientConfig(retry_delay=0.05, max_retries=50)
        assert ModelClient(server.url, patient).predict([[4.0]]).tolist() == [[4.0]]
        assert client.get_stats()["refused_requests"] == 1


def held(server):
    """The connections a server has."""
    return server._host._server.server_state.connections


def connections(server, count):
    found = [socket.create_connection(("127.0.0.1", server.port), timeout=240) for _ in range(count)]
    while len(held(server)) < count:  # until each has its place
        time.sleep(0.001)
    return found


def test_whoever_only_holds_a_connection_shuts_nobody_out():
    with ModelServer(pf.nn.ReLU(), ServerConfig(port=0, timeout=240, max_connections=2)) as server:
        idle = connections(server, 2)
        idle[1].sendall(b"GET /v1/health HTTP/1.1\r\nHost: x\r\nX-Slow: ")  # and goes on later
        with ModelClient(server.url, QUICK) as client:
            assert client.health_check()
        with contextlib.suppress(ConnectionResetError):
            assert idle[0].recv(1) == b""  # the oldest made room
        for connection in idle:
            connection.close()


def test_clients_that_send_nothing_lose_their_places():
    with ModelServer(pf.nn.ReLU(), ServerConfig(port=0, timeout=0.4, max_connections=1)) as server:
        for start in (b"", b"GET /v1/hea", b"GET /v1/health HTTP/1.1\r\nHost: x\r\n"):
            with socket.create_connection(("127.0.0.1", server.port), timeout=240) as idle:
                idle.sendall(start)
                told = b"".join(iter(lambda: idle.recv(100), b""))  # the server ends it
            assert told.startswith(b"HTTP/1.1 408") if start else told == b""
        assert ModelClient(server.url, QUICK).health_check()


def test_a_refusal_reaches_who_is_still_sending(linear, monkeypatch):
    """The rest of the request comes after the answer: it must not break the connection the answer is on."""
    _, server = linear
    monkeypatch.setattr(protocol, "LINGER_SECONDS", 240.0)
    with socket.create_connection(("127.0.0.1", server.port), timeout=240) as connection:
        connection.sendall(b"POST /v1/predict HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n")
        first = connection.recv(1)  # it was refused
        for _ in range(3):
            connection.sendall(bytes(100_000))
        rest = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    assert (first + rest).startswith(b"HTTP/1.1 413 ")
    assert b"max_body_bytes" in rest


def test_several_inputs_and_outputs_and_numbers_json_lacks():
    def model(a, b):
        return {"sum": a + b, "quotient": a / b, "ids": (a > 1).to(pf.int64)}

    with ModelServer(model, ServerConfig(port=0)) as server:
        a, b = np.array([1.0, 2.0], np.float32), np.array([0.0, 4.0], np.float32)
        answer = ModelClient(server.url, QUICK).predict({"a": a, "b": b})
    assert answer["sum"].tolist() == [1.0, 6.0]
    assert np.isnan(answer["quotient"][0])
    assert answer["ids"].tolist() == [0, 1]


def test_life_of_a_server():
    server = ModelServer(pf.nn.ReLU(), ServerConfig(port=0))
    with pytest.raises(RuntimeError, match="not running"):
        _ = server.url
    server.stop()
    thread = threading.Thread(target=server.start)
    thread.start()
    while server._host is None:
        time.sleep(0.01)
    assert ModelClient(server.url).health_check()
    with pytest.raises(RuntimeError, match="already running"):
        server.start_background()
    server.stop()
    thread.join(120)
    assert not thread.is_alive()
    with server:  # once more
        assert ModelClient(server.url).health_check()
    for wrong in ({"workers": 0}, {"port": 70000}, {"ssl_cert": "x"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            ServerConfig(**wrong)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a certificate")
def test_encrypted(tmp_path):
    cert, key = tmp_path / "c.pem", tmp_path / "k.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-keyout", key, "-out", cert]
    subprocess.run([*command, *subject], check=True, capture_output=True, timeout=250)
    config = ServerConfig(port=0, ssl_cert=str(cert), ssl_key=str(key))
    with ModelServer(pf.nn.ReLU(), config) as server:
        assert server.url.startswith("https://")
        trusting = ModelClient(server.url, ClientConfig(ca_file=str(cert), max_retries=0))
        assert trusting.predict([[-1.0]]).tolist() == [[0.0]]
        with pytest.raises(pf.serving.ServingError, match="not trusted"):
            ModelClient(server.url, QUICK).predict([[-1.0]])
        unchecked = ModelClient(server.url, ClientConfig(verify_ssl=False, max_retries=0))
        assert unchecked.health_check()


def test_models_for_answering_alone():
    model = pf.nn.Sequential(pf.nn.Linear(4, 8), pf.nn.Dropout(0.5), pf.nn.ReLU(), pf.nn.Linear(8, 2))
    x = pf.randn([5, 4])
    want = model.eval()(x).numpy()
    model.train()
    for fusion in (True, False):
        fast = pf.serving.optimize_for_inference(model, x, enable_fusion=fusion)
        np.testing.assert_allclose(fast(x).numpy(), want, rtol=1e-4, atol=1e-6)
    with pytest.raises(TypeError, match="takes 1 tensors"):
        fast(x, x)
    with pytest.raises(ValueError, match="no device"):
        pf.serving.optimize_for_inference(model, x, target_device="abacus")


def test_compiled_and_imported_models_are_served(tmp_path):
    model = pf.nn.Sequential(pf.nn.Linear(4, 8), pf.nn.ReLU(), pf.nn.Linear(8, 2)).eval()
    x = pf.randn([5, 4])
    want = model(x).numpy()
    pf.export(model, x, tmp_path / "m.onnx")
    fast = pf.serving.optimize_for_inference(model, x)
    small = pf.serving.optimize_for_inference(model, x, enable_quantization=True)
    imported = pf.integrations.import_onnx(tmp_path / "m.onnx")
    for served, tolerance in ((fast, 1e-5), (imported, 1e-5), (small, 0.05)):
        with ModelServer(served, ServerConfig(port=0)) as server, ModelClient(server.url, QUICK) as client:
            np.testing.assert_allclose(client.predict(x), want, rtol=tolerance, atol=tolerance)


def test_quantized_products():
    model = pf.nn.Sequential(pf.nn.Linear(64, 96), pf.nn.GELU(), pf.nn.Linear(96, 10))
    for shape in ([32, 64], [2, 7, 64]):
        x = pf.randn(shape)
        want = model(x).numpy()
        fast = pf.serving.optimize_for_inference(model, x, enable_quantization=True)
        kinds = [node.op_type for node in fast.session.graph().nodes]
        assert kinds.count("MatMulInteger") == 2
        assert not {"MatMul", "Gemm", "Transpose"} & set(kinds)
        assert fast.session.is_quantized()
        error = np.abs(fast(x).numpy() - want)
        assert error.max() < 0.03 * np.abs(want).max()
        slow = pf.serving.optimize_for_inference(model, x, enable_fusion=False, enable_quantization=True)
        np.testing.assert_allclose(fast(x).numpy(), slow(x).numpy(), rtol=1e-3, atol=1e-3)


def test_quantized_convolutions():
    model = pf.nn.Sequential(
        pf.nn.Conv2d(3, 8, 3), pf.nn.BatchNorm2d(8), pf.nn.ReLU(), pf.nn.Flatten(), pf.nn.Linear(8 * 36, 4)
    ).eval()
    x = pf.randn([16, 3, 8, 8])
    want = model(x).numpy()
    optimize = pf.serving.optimize_for_inference
    dynamic = optimize(model, x, enable_quantization=True)
    static = optimize(model, x, enable_quantization=True, calibration_data=[x, (pf.randn([16, 3, 8, 8]),)])
    half = optimize(model, x, enable_fp16=True)
    kinds = [[node.op_type for node in fast.session.graph().nodes] for fast in (dynamic, static, half)]
    assert "ConvInteger" in kinds[0]
    assert kinds[1].count("QuantizeLinear") == 3  # the input, after Relu, flattened
    assert "CastFromFP16" in kinds[2]
    for fast, bound in ((dynamic, 0.03), (static, 0.03), (half, 0.003)):
        error = np.abs(fast(x).numpy() - want)
        assert 0 < error.max() < bound * np.abs(want).max()


def test_quantization_that_cannot_be():
    optimize, relu, x = pf.serving.optimize_for_inference, pf.nn.ReLU(), pf.ones([2])
    for setting in ("enable_quantization", "enable_fp16"):
        with pytest.raises(UnsupportedOperatorError, match="no product"):
            optimize(relu, x, **{setting: True})
    with pytest.raises(InputError, match="choose one"):
        optimize(relu, x, enable_quantization=True, enable_fp16=True)
    with pytest.raises(InputError, match="which is off"):
        optimize(relu, x, calibration_data=[x])
    linear = pf.nn.Linear(2, 2)
    with pytest.raises(TypeError, match=r"takes 1 tensors. calibration_data gave: 2"):
        optimize(linear, x, enable_quantization=True, calibration_data=[(x, x)])
