"""Clients against servers, also servers that misbehave."""

import asyncio
import copy
import http.server
import shutil
import socket
import ssl
import subprocess
import threading

import numpy as np
import pytest

import pyflame as pf
import pyflame_rt
from pyflame_rt.graph import DType
from pyflame_rt.serving import (
    AsyncModelClient,
    GRPCConfig,
    InferenceRequest,
    ModelClient,
    ModelConfig,
    ServerError,
    TLSConfig,
)
from pyflame_rt.serving.tensors import V2_NAMES
from tests.unit.generate.small_gpt import decoder
from tests.unit.serving.scene import Gate, ask, identity, scaled, serving
from tests.unit.serving.test_openai import write_tokenizer

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_the_documented_calls():
    with serving({"m": scaled(), "n": scaled(3.0)}) as server, ModelClient(server.url, timeout=120.0) as client:
        assert client.wait_for_ready(timeout=60.0)
        assert client.is_alive()
        assert [(m.name, m.ready, m.versions) for m in client.list_models()] == [("m", True, ["1"]), ("n", True, ["1"])]
        meta = client.get_model_metadata("m")
        assert [i.name for i in meta.inputs] + [o.name for o in meta.outputs] == ["x", "y"]
        response = client.infer(model="m", inputs={"x": X})
        np.testing.assert_array_equal(response.outputs["y"], 2 * X)
        assert response.latency_ms > 0
        request = InferenceRequest("n", {"x": pyflame_rt.from_numpy(X)}, ["y"], "1", "mine")
        answer = client.infer(request)
        assert answer.request_id == "mine"
        np.testing.assert_array_equal(answer.outputs["y"], 3 * X)
        np.testing.assert_array_equal(client.infer("m", {"x": pf.from_numpy(X)}).outputs["y"], 2 * X)
        batch = [{"x": X + i} for i in range(10)]
        for feed, found in zip(batch, client.infer_batch("m", batch, max_workers=4), strict=True):
            np.testing.assert_array_equal(found.outputs["y"], 2 * feed["x"])
        assert client.get_model_stats("m")["completed_requests"] == 12


def test_errors_have_the_documented_channel():
    with serving() as server:
        client = ModelClient(server.url, max_retries=0)
        wrong = client.infer("m", {"x": np.ones((1, 4), np.float32)})
        assert (wrong.success, wrong.error_code) == (False, "InvalidRequest")
        assert "expected 3" in wrong.error_message
        with pytest.raises(ServerError, match="there is no model 'none'") as caught:
            client.infer("none", {"x": X})
        assert caught.value.status_code == 404
        assert copy.copy(caught.value).status_code == 404
        with pytest.raises(ServerError, match="no version"):
            client.infer("m", {"x": X}, version="9")
        with pytest.raises(pyflame_rt.InputError):
            client.infer("m")
        gate = Gate(server)
        with pytest.raises(TimeoutError):
            ModelClient(server.url, timeout=0.2, max_retries=0).infer("m", {"x": X})
        gate.open()
    assert not client.is_ready()
    assert not client.wait_for_ready(timeout=0.1)
    with pytest.raises(ConnectionError):
        client.infer("m", {"x": X})
    with pytest.raises(pyflame_rt.InputError, match="http"):
        ModelClient("ftp://x")


def test_coroutines():
    async def main(url):
        async with AsyncModelClient(url, timeout=120) as client:
            assert await client.is_ready()
            assert await client.is_alive()
            assert await client.wait_for_ready(10.0)
            assert [m.name for m in await client.list_models()] == ["m"]
            assert (await client.get_model_metadata("m")).outputs[0].shape == [-1, 3]
            one = await client.infer(model="m", inputs={"x": X})
            many = await client.infer_batch("m", [{"x": X + i} for i in range(30)], max_concurrent=10)
            stats = await client.get_model_stats("m")
            with pytest.raises(ServerError):
                await client.infer("none", {"x": X})
        return one, many, stats

    with serving() as server:
        one, many, stats = asyncio.run(main(server.url))
    np.testing.assert_array_equal(one.outputs["y"], 2 * X)
    for i, found in enumerate(many):
        np.testing.assert_array_equal(found.outputs["y"], 2 * (X + i))
    assert stats["completed_requests"] == 31


def test_strings_and_small_floats():
    models = {"words": identity(DType.String), "small": identity(DType.BFloat16)}
    with serving(models) as server, ModelClient(server.url) as client:
        assert client.infer("words", {"x": np.array(["a", "bc"])}).outputs["y"].tolist() == ["a", "bc"]
        values = np.array([0.5, -2.0]).astype(DType.BFloat16.numpy)
        found = client.infer("small", {"x": values}).outputs["y"]
        assert found.dtype == values.dtype
        np.testing.assert_array_equal(found, values)


class Scripted(http.server.BaseHTTPRequestHandler):
    """Answers with what its class holds, one after the other."""

    script: list

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        status, body = self.script.pop(0)
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.mark.parametrize(
    ("script", "outcome"),
    [
        ([(503, b"{}"), (429, b"{}"), (200, b'{"outputs": {}}')], None),
        ([(503, b'{"error_message": "full"}')] * 3, "full"),
        ([(200, b"<html>")], "is it a model server"),
        ([(200, b"[]")], "is it a model server"),
        ([(200, b"{}")], "not understood"),
        ([(200, b'{"outputs": {"y": {"dtype": "float32", "shape": [2], "data": "AAAA"}}}')], "not understood"),
    ],
)
def test_servers_that_misbehave(script, outcome):
    kind = type("Kind", (Scripted,), {"script": list(script)})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), kind) as other:
        threading.Thread(target=other.serve_forever, args=(0.01,), daemon=True).start()
        client = ModelClient(f"http://127.0.0.1:{other.server_address[1]}", max_retries=2, retry_delay=0.001)
        if outcome is None:
            assert client.infer("m", {"x": X}).success
        else:
            with pytest.raises(ServerError, match=outcome):
                client.infer("m", {"x": X})
        client.close()
        other.shutdown()


def certificate(folder, name):
    """Files of a certificate of this machine, and its key."""
    files = folder / f"{name}.pem", folder / f"{name}.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    more = ["-days", "1", "-out", files[0], "-keyout", files[1], "-subj", f"/CN={name}"]
    subprocess.run(
        [*command, *more, "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True, timeout=250
    )
    return [str(file) for file in files]


needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make certificates")


@needs_openssl
def test_certificates_of_both_sides(tmp_path):
    mine, theirs = certificate(tmp_path, "server"), certificate(tmp_path, "client")
    trusting = ssl.create_default_context(cafile=mine[0])
    tls = TLSConfig(enabled=True, cert_path=mine[0], key_path=mine[1])
    with serving(tls=tls) as server:
        assert server.url.startswith("https://")
        with ModelClient(server.url, verify=trusting) as client:
            assert client.infer("m", {"x": X}).success
        with pytest.raises(ServerError, match="not trusted"), ModelClient(server.url, max_retries=0) as client:
            client.infer("m", {"x": X})
    tls.ca_path = theirs[0]
    with serving(tls=tls) as server:
        with pytest.raises(ConnectionError), ModelClient(server.url, verify=trusting, max_retries=0) as client:
            client.infer("m", {"x": X})
        trusting.load_cert_chain(*theirs)
        with ModelClient(server.url, verify=trusting) as client:
            assert client.infer("m", {"x": X}).success
    broken = TLSConfig(enabled=True, cert_path=mine[1], key_path=mine[0])
    with pytest.raises(pyflame_rt.InputError, match="certificate"), serving(tls=broken):
        pass
    with pytest.raises(pyflame_rt.InputError, match="no file"), serving(tls=TLSConfig(True, "none.pem", mine[1])):
        pass


@needs_openssl
@pytest.mark.parametrize("begun", [b"", b"\x16\x03\x01\x02\x00\x01"])
def test_connections_that_agree_on_no_certificate_end(tmp_path, begun):
    """As soon as those that send no header."""
    tls = TLSConfig(True, *certificate(tmp_path, "server"))
    grpc = GRPCConfig(enabled=True, host="127.0.0.1", port=0)
    with serving(tls=tls, grpc=grpc, header_timeout_ms=300) as server:
        for port in (server.http_port(), server.grpc_port()):
            with socket.create_connection(("127.0.0.1", port), timeout=30) as silent:
                silent.sendall(begun)
                assert silent.recv(1) == b""


@pytest.mark.parametrize("binary", [False, True])
def test_arrays_as_bytes_are_the_same(binary):
    """Every element type, outputs by name, ids and refusals."""
    rng = np.random.default_rng(0)
    with (
        serving({"m": scaled(), **{kind.label: identity(kind) for kind in V2_NAMES}}) as server,
        ModelClient(server.url, timeout=120.0, binary=binary) as client,
    ):
        for kind in V2_NAMES:
            values = np.array(["a", "\u00fc", ""], object)
            if kind is not DType.String:
                values = rng.integers(0, 2, 3).astype(kind.numpy)
            found = client.infer(kind.label, {"x": values}, outputs=["y"], version="1", request_id="mine")
            np.testing.assert_array_equal(found.outputs["y"], values)
            assert found.outputs["y"].dtype == values.dtype
            assert (found.request_id, found.model_name, found.model_version) == ("mine", kind.label, "1")
        turned = np.arange(12, dtype=np.float32).reshape(3, 4).T
        np.testing.assert_array_equal(client.infer("m", {"x": turned}).outputs["y"], 2 * turned)
        wrong = client.infer("m", {"x": np.ones((1, 4), np.float32)})
        assert (wrong.success, wrong.error_code) == (False, "InvalidRequest")
        with pytest.raises(ServerError, match="there is no model 'none'"):
            client.infer("none", {"x": X})


def test_text_comes_in_pieces(tmp_path):
    write_tokenizer(tmp_path)
    chat = [{"role": "user", "content": "hello"}]
    settings = {"max_tokens": 6, "temperature": 0}

    async def asked(url):
        async with AsyncModelClient(url, timeout=120) as client:
            return [[piece async for piece in client.stream("gpt", given, **settings)] for given in ("hello", chat)]

    with serving() as server, ModelClient(server.url, timeout=120.0, max_retries=0) as client:
        server.load_model("gpt", decoder(), config=ModelConfig(tokenizer=str(tmp_path), warmup_requests=0))
        pieces = list(client.stream("gpt", "hello", **settings))
        whole = ask(server, "POST", "/v1/completions", {"model": "gpt", "prompt": "hello", **settings})[2]
        assert len(pieces) > 1
        assert "".join(pieces) == whole["choices"][0]["text"]
        talked = list(client.stream("gpt", chat, **settings))
        assert asyncio.run(asked(server.url)) == [pieces, talked]
        with pytest.raises(ServerError, match="there is no model 'none'"):
            list(client.stream("none", "hello"))
        with pytest.raises(ServerError, match="warmth"):
            list(client.stream("gpt", "hello", warmth=1))
        with pytest.raises(ServerError, match="longer than"):  # an event: the model has 200 places
            list(client.stream("gpt", "hello " * 300, max_tokens=5))
        with pytest.raises(pyflame_rt.InputError, match="one answer"):
            list(client.stream("gpt", "hello", n=2))
        for _ in client.stream("gpt", "hello", max_tokens=150):  # who has heard enough
            break
    with pytest.raises(ConnectionError), ModelClient(server.url, max_retries=0) as client:
        list(client.stream("gpt", "hello"))
