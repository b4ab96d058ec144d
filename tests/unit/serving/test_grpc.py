"""Open Inference Protocol over gRPC."""

import threading
import time
from concurrent import futures

import grpc
import numpy as np
import pytest

from pyflame_rt.graph import DType
from pyflame_rt.serving import GRPCConfig, RateLimitConfig, grpc_messages
from pyflame_rt.serving.messages import METHODS, SERVICE, message
from pyflame_rt.serving.tensors import V2_NAMES, decode_raw, encode_raw
from tests.unit.serving.scene import Gate, identity, saved, scaled, serving

X = np.arange(6, dtype=np.float32).reshape(2, 3)
HERE = GRPCConfig(enabled=True, host="127.0.0.1", port=0)


@pytest.fixture(scope="module")
def server():
    models = {"m": scaled(), **{kind.label: identity(kind) for kind in V2_NAMES}}
    with serving(models, grpc=HERE) as running:
        yield running


def call(server, name, /, *, metadata=(), timeout=120, **fields):
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port()}") as channel:
        ask = channel.unary_unary(
            f"/{SERVICE}/{name}",
            request_serializer=message(f"{name}Request").SerializeToString,
            response_deserializer=message(f"{name}Response").FromString,
        )
        return ask(message(f"{name}Request")(**fields), timeout=timeout, metadata=metadata)


def tensor(array, kind="FP32", **more):
    return {"name": "x", "datatype": kind, "shape": array.shape, **more}


@pytest.mark.parametrize("kind", list(V2_NAMES), ids=lambda kind: kind.label)
def test_every_element_type(server, kind):
    values = np.array(["a", "\u00fc", ""], dtype=object)
    if kind is not DType.String:
        values = np.array([0, 1, 1]).astype(kind.numpy)
    raw = [bytes(encode_raw(values))]
    inputs = [tensor(values, V2_NAMES[kind])]
    found = call(server, "ModelInfer", model_name=kind.label, inputs=inputs, raw_input_contents=raw, id="7")
    assert (found.id, found.model_version, found.outputs[0].datatype) == ("7", "1", V2_NAMES[kind])
    np.testing.assert_array_equal(decode_raw(found.raw_output_contents[0], kind, (3,), "y"), values)


@pytest.mark.parametrize(
    ("kind", "contents", "values"),
    [
        ("FP32", "fp32_contents", [1.0, float("nan")]),
        ("FP64", "fp64_contents", [1.0, 2.0]),
        ("INT8", "int_contents", [1, -2]),
        ("UINT16", "uint_contents", [1, 2]),
        ("UINT64", "uint64_contents", [1, 2**63]),
        ("BOOL", "bool_contents", [True, False]),
        ("BYTES", "bytes_contents", [b"a", b"b"]),
    ],
)
def test_numbers_in_the_message(server, kind, contents, values):
    label = {name: key.label for key, name in V2_NAMES.items()}[kind]
    given = {"name": "x", "datatype": kind, "shape": [2], "contents": {contents: values}}
    found = call(server, "ModelInfer", model_name=label, inputs=[given])
    got = decode_raw(found.raw_output_contents[0], DType.of(label) if label != "string" else DType.String, (2,), "y")
    wanted = [v.decode() for v in values] if kind == "BYTES" else values
    np.testing.assert_array_equal(got, wanted)


def test_facts(server):
    assert call(server, "ServerLive").live
    assert call(server, "ServerReady").ready
    assert call(server, "ModelReady", name="m").ready
    assert not call(server, "ModelReady", name="m", version="9").ready
    assert call(server, "ServerMetadata").name == "pyflame_rt"
    facts = call(server, "ModelMetadata", name="m")
    assert (list(facts.versions), list(facts.inputs[0].shape)) == (["1"], [-1, 3])
    raw = [X.tobytes()]
    call(server, "ModelInfer", model_name="m", inputs=[tensor(X)], raw_input_contents=raw)
    (stats,) = call(server, "ModelStatistics", name="m").model_stats
    assert stats.inference_stats.success.count >= 1
    assert "m" in {model.name for model in call(server, "RepositoryIndex").models}
    assert len(call(server, "ModelStatistics").model_stats) == 1 + len(V2_NAMES)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"model_name": "none"}, "NOT_FOUND"),
        ({}, "INVALID_ARGUMENT"),
        ({"inputs": [tensor(X)], "raw_input_contents": [b"abc"]}, "INVALID_ARGUMENT"),
        ({"inputs": [tensor(X)], "raw_input_contents": [X.tobytes()] * 2}, "INVALID_ARGUMENT"),
        ({"inputs": [tensor(X, "FP99")], "raw_input_contents": [X.tobytes()]}, "INVALID_ARGUMENT"),
        ({"inputs": [tensor(X, "FP16", contents={"fp32_contents": [1]})]}, "INVALID_ARGUMENT"),
        ({"inputs": [tensor(X, contents={"fp32_contents": [1]})]}, "INVALID_ARGUMENT"),
        ({"inputs": [tensor(X)] * 2, "raw_input_contents": [X.tobytes()] * 2}, "INVALID_ARGUMENT"),
        ({"inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}]}, "INVALID_ARGUMENT"),
        ({"inputs": [tensor(X)], "raw_input_contents": [X.tobytes()], "outputs": [{"name": "z"}]}, "INVALID_ARGUMENT"),
    ],
)
def test_bad_requests_are_told_why(server, fields, code):
    with pytest.raises(grpc.RpcError) as caught:
        call(server, "ModelInfer", **{"model_name": "m", **fields})
    assert caught.value.code().name == code
    assert "Traceback" not in caught.value.details()


def test_bytes_that_are_no_message(server):
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port()}") as channel:
        for name in METHODS:
            ask = channel.unary_unary(f"/{SERVICE}/{name}")
            with pytest.raises(grpc.RpcError) as caught:
                ask(b"\xff\xff\xff", timeout=120)
            assert caught.value.code().name == "INVALID_ARGUMENT"
    assert call(server, "ServerLive").live


def test_keys_and_rates():
    limit = RateLimitConfig(enabled=True, requests_per_second=0.001, burst_size=1)
    with serving(grpc=HERE, api_keys=["k"], rate_limit=limit) as server:
        assert call(server, "ServerLive").live
        with pytest.raises(grpc.RpcError) as caught:
            call(server, "ServerMetadata")
        assert caught.value.code().name == "UNAUTHENTICATED"
        assert call(server, "ServerMetadata", metadata=[("x-api-key", "k")]).name
        with pytest.raises(grpc.RpcError) as caught:
            call(server, "ServerMetadata", metadata=[("authorization", "Bearer k")])
        assert caught.value.code().name == "RESOURCE_EXHAUSTED"


def test_a_client_that_has_gone_is_not_worked_for():
    with serving(grpc=HERE) as server:
        gate = Gate(server)
        instance = server.registry().get_latest("m")
        with pytest.raises(grpc.RpcError) as caught:
            call(
                server, "ModelInfer", timeout=0.3, model_name="m", inputs=[tensor(X)], raw_input_contents=[X.tobytes()]
            )
        assert caught.value.code().name == "DEADLINE_EXCEEDED"
        gate.open()
        while instance.in_use:
            time.sleep(0.001)


def test_models_come_and_go(tmp_path):
    saved(tmp_path / "m" / "1" / "model.onnx")
    with serving({}, grpc=HERE, model_dir=str(tmp_path), model_control=True) as server:
        call(server, "RepositoryModelUnload", model_name="m")
        assert not call(server, "ModelReady", name="m").ready
        call(server, "RepositoryModelLoad", model_name="m")
        assert call(server, "ModelReady", name="m").ready
    with serving(grpc=HERE) as server, pytest.raises(grpc.RpcError) as caught:
        call(server, "RepositoryModelUnload", model_name="m")
    assert caught.value.code().name == "PERMISSION_DENIED"


def test_calls_that_send_no_message_shut_nobody_out(monkeypatch):
    monkeypatch.setattr(grpc_messages, "READERS", 4)
    ended = threading.Event()

    def nothing():
        ended.wait(120)
        yield b""

    with serving(grpc=HERE) as server, grpc.insecure_channel(f"127.0.0.1:{server.grpc_port()}") as channel:
        held = [channel.stream_unary(f"/{SERVICE}/ModelInfer").future(nothing()) for _ in range(100)]
        while sum(one.done() for one in held) < 96:  # for each one more, the oldest goes
            time.sleep(0.001)
        assert {one.code().name for one in held if one.done()} == {"DEADLINE_EXCEEDED"}
        assert call(server, "ServerLive").live
        raw = [X.tobytes()]
        assert call(server, "ModelInfer", model_name="m", inputs=[tensor(X)], raw_input_contents=raw).outputs
        ended.set()


def test_keys_are_checked_before_the_message():
    ended = threading.Event()

    def nothing():
        ended.wait(120)
        yield b""

    with (
        serving(grpc=HERE, api_keys=["k"]) as server,
        grpc.insecure_channel(f"127.0.0.1:{server.grpc_port()}") as channel,
    ):
        refused = channel.stream_unary(f"/{SERVICE}/ModelInfer").future(nothing())
        assert refused.code().name == "UNAUTHENTICATED"
        ended.set()


def test_messages_under_way_are_counted():
    small = GRPCConfig(enabled=True, host="127.0.0.1", port=0, max_message_size=1 << 16)
    rows = np.ones((1000, 3), np.float32)
    fields = {"model_name": "m", "inputs": [tensor(rows)], "raw_input_contents": [rows.tobytes()]}
    with serving(grpc=small, max_pending_bytes=20_000) as server:
        gate = Gate(server)
        with futures.ThreadPoolExecutor(1) as pool:
            first = pool.submit(call, server, "ModelInfer", **fields)
            gate.inside.acquire()
            with pytest.raises(grpc.RpcError) as caught:
                call(server, "ModelInfer", **fields)
            assert caught.value.code().name == "UNAVAILABLE"
            gate.open()
            assert first.result().outputs
        assert call(server, "ModelInfer", **fields).outputs
