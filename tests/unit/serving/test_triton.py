"""Triton's own clients, unmodified, where they are installed (`make serving-clients`)."""

from multiprocessing import shared_memory

import numpy as np
import pytest

from pyflame_rt.graph import DType
from pyflame_rt.serving import GRPCConfig
from pyflame_rt.serving.tensors import V2_NAMES
from tests.unit.serving.scene import ask, identity, saved, scaled, serving

triton = pytest.importorskip("tritonclient.http", reason="needs tritonclient: make serving-clients")
remote = pytest.importorskip("tritonclient.grpc", reason="needs tritonclient: make serving-clients")
InferenceServerException = pytest.importorskip("tritonclient.utils").InferenceServerException

X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture(scope="module")
def server():
    models = {"m": scaled(), **{kind.label: identity(kind) for kind in V2_NAMES}}
    with serving(models, shared_memory=True, grpc=GRPCConfig(enabled=True, host="127.0.0.1", port=0)) as running:
        yield running


@pytest.fixture
def client(server):
    found = triton.InferenceServerClient(f"127.0.0.1:{server.http_port()}", network_timeout=120)
    yield found
    found.close()


def asked(array, name="x", kind=None, binary=True):
    found = triton.InferInput(name, list(array.shape), kind or V2_NAMES[DType.of(array.dtype)])
    found.set_data_from_numpy(array, binary_data=binary)
    return found


def test_facts(client):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("m")
    assert not client.is_model_ready("none")
    assert "binary_tensor_data" in client.get_server_metadata()["extensions"]
    facts = client.get_model_metadata("m")
    assert facts["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}]
    assert client.get_model_config("m")["input"][0]["data_type"] == "TYPE_FP32"
    assert {m["name"] for m in client.get_model_repository_index()} >= {"m", "float16"}
    with pytest.raises(InferenceServerException, match="there is no model"):
        client.get_model_metadata("none")


@pytest.mark.parametrize("into", [True, False])
@pytest.mark.parametrize("out", [True, False])
def test_bytes_and_lists(client, into, out):
    outputs = [triton.InferRequestedOutput("y", binary_data=out)]
    found = client.infer("m", [asked(X, binary=into)], outputs=outputs, request_id="7", model_version="1")
    np.testing.assert_array_equal(found.as_numpy("y"), 2 * X)
    assert found.get_response()["id"] == "7"
    assert found.get_response()["model_version"] == "1"


@pytest.mark.parametrize("kind", list(V2_NAMES), ids=lambda kind: kind.label)
def test_every_element_type(client, kind):
    if kind is DType.String:
        values = np.array(["a", "\u00fc", ""], dtype=object)
    else:
        values = np.array([0, 1, 1]).astype(kind.numpy)
    found = client.infer(kind.label, [asked(values, kind=V2_NAMES[kind])]).as_numpy("y")
    if kind is DType.String:
        found = np.array([word.decode() for word in found], dtype=object)
    np.testing.assert_array_equal(found, values)


def test_statistics(client):
    before = client.get_inference_statistics("m")["model_stats"][0]["inference_stats"]["success"]["count"]
    client.infer("m", [asked(X)])
    (found,) = client.get_inference_statistics("m", "1")["model_stats"]
    assert found["inference_stats"]["success"]["count"] == before + 1
    assert found["inference_count"] >= 2


def test_shared_memory(client):
    region = shared_memory.SharedMemory(create=True, size=64)
    try:
        region.buf[:24] = X.tobytes()
        client.register_system_shared_memory("r", "/" + region.name, 64)
        assert client.get_system_shared_memory_status()[0]["name"] == "r"
        given = triton.InferInput("x", [2, 3], "FP32")
        given.set_shared_memory("r", 24)
        wanted = triton.InferRequestedOutput("y")
        wanted.set_shared_memory("r", 24, offset=32)
        client.infer("m", [given], outputs=[wanted])
        np.testing.assert_array_equal(np.frombuffer(region.buf[32:56], np.float32).reshape(2, 3), 2 * X)
        wanted.set_shared_memory("r", 8, offset=32)
        with pytest.raises(InferenceServerException, match="24 bytes"):
            client.infer("m", [given], outputs=[wanted])
        given.set_shared_memory("r", 24, offset=60)
        with pytest.raises(InferenceServerException, match="64 bytes"):
            client.infer("m", [given])
        for name, key, size in (
            ("s", "/none-of-this-name", 8),
            ("s", "/../etc/passwd", 8),
            ("s", "/" + region.name, 65),
        ):
            with pytest.raises(InferenceServerException):
                client.register_system_shared_memory(name, key, size)
        client.unregister_system_shared_memory("r")
        assert client.get_system_shared_memory_status() == []
        with pytest.raises(InferenceServerException, match="no shared memory region"):
            client.infer("m", [given])
    finally:
        region.close()
        region.unlink()


def test_shared_memory_is_off_unless_wanted():
    with serving() as server:
        body = {"key": "/x", "offset": 0, "byte_size": 8}
        assert ask(server, "POST", "/v2/systemsharedmemory/region/r/register", body)[0] == 403


def test_the_repository(tmp_path):
    saved(tmp_path / "m" / "1" / "model.onnx", 5.0)
    with serving({}, model_dir=str(tmp_path), model_control=True) as server:
        client = triton.InferenceServerClient(f"127.0.0.1:{server.http_port()}", network_timeout=120)
        client.unload_model("m")
        assert client.get_model_repository_index() == []
        client.load_model("m")
        (found,) = client.get_model_repository_index()
        assert (found["name"], found["version"], found["state"]) == ("m", "1", "READY")
        np.testing.assert_array_equal(client.infer("m", [asked(X)]).as_numpy("y"), 5 * X)
        client.close()
    with serving() as server:
        assert ask(server, "POST", "/v2/repository/models/m/unload", b"")[0] == 403


@pytest.fixture
def caller(server):
    found = remote.InferenceServerClient(f"127.0.0.1:{server.grpc_port()}")
    yield found
    found.close()


def test_facts_over_grpc(caller):
    assert caller.is_server_live()
    assert caller.is_server_ready()
    assert caller.is_model_ready("m")
    assert not caller.is_model_ready("none")
    assert list(caller.get_model_metadata("m").inputs[0].shape) == [-1, 3]
    assert {m.name for m in caller.get_model_repository_index().models} >= {"m"}
    with pytest.raises(InferenceServerException, match="there is no model"):
        caller.get_model_metadata("none")


@pytest.mark.parametrize("kind", list(V2_NAMES), ids=lambda kind: kind.label)
def test_every_element_type_over_grpc(caller, kind):
    values = np.array(["a", "\u00fc", ""], dtype=object)
    if kind is not DType.String:
        values = np.array([0, 1, 1]).astype(kind.numpy)
    given = remote.InferInput("x", [3], V2_NAMES[kind])
    given.set_data_from_numpy(values)
    found = caller.infer(kind.label, [given], request_id="9")
    assert found.get_response().id == "9"
    got = found.as_numpy("y")
    if kind is DType.String:
        got = np.array([word.decode() for word in got], dtype=object)
    np.testing.assert_array_equal(got, values)
