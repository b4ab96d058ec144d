"""Open Inference Protocol over HTTP, byte by byte."""

import http.client
import json
import os
import resource
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import islice
from multiprocessing import shared_memory
from pathlib import Path

import numpy as np
import pytest

from pyflame_rt.graph import DType
from pyflame_rt.serving.tensors import V2_NAMES, decode_raw, encode_raw
from tests.unit.serving.scene import Gate, ask, identity, saved, scaled, serving

X = np.arange(6, dtype=np.float32).reshape(2, 3)
LENGTH = "Inference-Header-Content-Length"


@pytest.fixture(scope="module")
def server():
    models = {"m": scaled(), **{kind.label: identity(kind) for kind in V2_NAMES}}
    with serving(models, shared_memory=True) as running:
        yield running


def infer(server, model, array, kind, **more):
    """Bytes in and bytes out: the JSON and the output."""
    data = bytes(encode_raw(array))
    tensor = {"name": "x", "shape": list(array.shape), "datatype": kind, "parameters": {"binary_data_size": len(data)}}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}, **more}).encode()
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port(), timeout=120)
    connection.request("POST", f"/v2/models/{model}/infer", head + data, {LENGTH: str(len(head))})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    assert answer.status == 200, body
    split = int(answer.getheader(LENGTH))
    return json.loads(body[:split]), body[split:]


@pytest.mark.parametrize("kind", list(V2_NAMES), ids=lambda kind: kind.label)
def test_every_element_type(server, kind):
    values = np.array(["a", "\u00fc", ""], dtype=object)
    if kind is not DType.String:
        values = np.array([0, 1, 1]).astype(kind.numpy)
    head, tail = infer(server, kind.label, values, V2_NAMES[kind], id="7")
    assert (head["id"], head["model_name"], head["outputs"][0]["datatype"]) == ("7", kind.label, V2_NAMES[kind])
    assert head["outputs"][0]["parameters"]["binary_data_size"] == len(tail)
    np.testing.assert_array_equal(decode_raw(tail, kind, (3,), "y"), values)


def test_lists(server):
    found = ask(server, "POST", "/v2/models/m/versions/1/infer", body(shape=[1, 3]))[2]
    assert found["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [1, 3], "data": [2.0, 4.0, 6.0]}]


def test_facts(server):
    assert "binary_tensor_data" in ask(server, "GET", "/v2")[2]["extensions"]
    assert ask(server, "GET", "/v2/health/live")[0] == ask(server, "GET", "/v2/health/ready")[0] == 200
    facts = ask(server, "GET", "/v2/models/m")[2]
    assert facts["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}]
    assert ask(server, "GET", "/v2/models/m/ready")[0] == 200
    assert ask(server, "GET", "/v2/models/none/ready")[0] == 404
    assert ask(server, "GET", "/v2/models/m/config")[2]["input"][0]["data_type"] == "TYPE_FP32"
    before = ask(server, "GET", "/v2/models/m/stats")[2]["model_stats"][0]["inference_stats"]["success"]["count"]
    infer(server, "m", X, "FP32")
    (stats,) = ask(server, "GET", "/v2/models/m/versions/1/stats")[2]["model_stats"]
    assert stats["inference_stats"]["success"]["count"] == before + 1
    assert ask(server, "GET", "/v2/models/m/versions/2/stats")[0] == 404


def test_shared_memory(server):
    region = shared_memory.SharedMemory(create=True, size=64)
    path = "/v2/systemsharedmemory"
    try:
        region.buf[:24] = X.tobytes()
        register = {"key": "/" + region.name, "offset": 0, "byte_size": 64}
        assert ask(server, "POST", path + "/region/r/register", register)[0] == 200
        assert ask(server, "POST", path + "/region/r/register", register)[0] == 400
        assert ask(server, "GET", path + "/region/r/status")[2][0]["byte_size"] == 64

        def place(size, offset=0, name="r"):
            fields = {"shared_memory_byte_size": size, "shared_memory_offset": offset}
            return {"parameters": {"shared_memory_region": name, **fields}}

        given = {"name": "x", "shape": [2, 3], "datatype": "FP32"}
        good = {"inputs": [{**given, **place(24)}], "outputs": [{"name": "y", **place(24, 32)}]}
        assert ask(server, "POST", "/v2/models/m/infer", good)[0] == 200
        np.testing.assert_array_equal(np.frombuffer(region.buf[32:56], np.float32).reshape(2, 3), 2 * X)
        for wrong in (place(24, 60), place(24, -1), place(24, name="s"), place(20), place(1 << 60)):
            assert ask(server, "POST", "/v2/models/m/infer", {"inputs": [{**given, **wrong}]})[0] == 400
        small = {**good, "outputs": [{"name": "y", **place(8, 32)}]}
        assert ask(server, "POST", "/v2/models/m/infer", small)[0] == 400
        for key, size in (
            ("/none-of-this-name", 8),
            ("/../etc/passwd", 8),
            ("/..", 8),
            ("/" + region.name, 65),
            (3, 8),
        ):
            asked = {"key": key, "offset": 0, "byte_size": size}
            assert ask(server, "POST", path + "/region/s/register", asked)[0] == 400
        assert ask(server, "POST", path + "/unregister", b"")[0] == 200
        assert ask(server, "GET", path + "/status")[2] == []
        assert ask(server, "POST", "/v2/models/m/infer", good)[0] == 400
    finally:
        region.close()
        region.unlink()


def test_shared_memory_is_off_unless_wanted():
    with serving() as server:
        asked = {"key": "/x", "offset": 0, "byte_size": 8}
        assert ask(server, "POST", "/v2/systemsharedmemory/region/r/register", asked)[0] == 403


def test_the_repository(tmp_path):
    saved(tmp_path / "m" / "1" / "model.onnx", 5.0)
    with serving({}, model_dir=str(tmp_path), model_control=True) as server:
        assert ask(server, "POST", "/v2/repository/models/m/unload", b"")[0] == 200
        assert ask(server, "POST", "/v2/repository/index", b"")[2] == []
        assert ask(server, "POST", "/v2/repository/models/m/load", b"{}")[0] == 200
        (found,) = ask(server, "POST", "/v2/repository/index", {"ready": True})[2]
        assert (found["name"], found["version"], found["state"]) == ("m", "1", "READY")
        assert ask(server, "POST", "/v2/repository/models/m/load", {"parameters": {"config": "{}"}})[0] == 400
    with serving() as server:
        assert ask(server, "POST", "/v2/repository/models/m/unload", b"")[0] == 403


def body(**changes):
    return {"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3], **changes}]}


@pytest.mark.parametrize(
    ("given", "headers", "message"),
    [
        (body(datatype="FP99"), {}, "element type"),
        (body(shape=None), {}, "shape"),
        (body(shape=[1, 4]), {}, "elements"),
        (body(data="AAAA"), {}, "binary_data_size"),
        (body(name=3), {}, "no name"),
        (body(parameters={"binary_data_size": 12}), {}, "binary_data_size"),
        (body(parameters={"binary_data_size": -1}), {}, "binary_data_size"),
        (body(parameters=[]), {}, "must be an object"),
        (body(parameters={"shared_memory_region": "r"}), {}, "shared memory"),
        ({"inputs": []}, {}, "list of tensors"),
        ({**body(), "outputs": "y"}, {}, "must be a list"),
        ({**body(), "outputs": [{"name": "z"}]}, {}, "'z'"),
        ({**body(), "outputs": [{"name": "y", "parameters": {"classification": 2}}]}, {}, "classification"),
        ({**body(), "parameters": {"sequence_id": 4}}, {}, "sequence_id"),
        ({**body(), "parameters": {"timeout": "x"}}, {}, "timeout"),
        (body(), {"Inference-Header-Content-Length": "99999"}, "Inference-Header"),
        (body(), {"Inference-Header-Content-Length": "-1"}, "Inference-Header"),
        (body(), {"Inference-Header-Content-Length": "5"}, "not JSON"),
    ],
)
def test_bad_requests_are_told_why(server, given, headers, message):
    status, _, found = ask(server, "POST", "/v2/models/m/infer", given, headers)
    assert status == 400
    assert message in found["error"]


def test_bytes_that_belong_to_nothing(server):
    text = json.dumps(body()).encode()
    status, _, found = ask(
        server, "POST", "/v2/models/m/infer", text + b"more", {"Inference-Header-Content-Length": str(len(text))}
    )
    assert (status, "4 bytes after" in found["error"]) == (400, True)
    assert ask(server, "POST", "/v2/models/m/infer", text, {"Content-Encoding": "gzip"})[0] == 415


def test_shared_memory_that_its_client_cuts(server):
    """To touch a mapped page behind the end of its file would end the server."""
    path = "/v2/systemsharedmemory/region/cut"
    region = shared_memory.SharedMemory(create=True, size=1 << 16)
    try:
        register = {"key": "/" + region.name, "offset": 0, "byte_size": 1 << 16}
        assert ask(server, "POST", path + "/register", register)[0] == 200
        os.truncate(Path("/dev/shm", region.name), 0)
        place = {"shared_memory_region": "cut", "shared_memory_byte_size": 24, "shared_memory_offset": 8192}
        given = {"name": "x", "shape": [2, 3], "datatype": "FP32"}
        status, _, said = ask(server, "POST", "/v2/models/m/infer", {"inputs": [{**given, "parameters": place}]})
        assert status == 400
        assert "cut" in str(said)
        plain = {"inputs": [{**given, "data": X.ravel().tolist()}], "outputs": [{"name": "y", "parameters": place}]}
        assert ask(server, "POST", "/v2/models/m/infer", plain)[0] == 400
        plain.pop("outputs")
        assert ask(server, "POST", "/v2/models/m/infer", plain)[0] == 200
    finally:
        ask(server, "POST", path + "/unregister", b"")
        region.close()
        region.unlink()


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_shared_memory_is_a_plain_file(server, kind):
    place = Path("/dev/shm", f"pyflame-{os.getpid()}-{kind}")
    makers = {
        "link": lambda: place.symlink_to("/etc/hostname"),
        "pipe": lambda: os.mkfifo(place),
        "folder": place.mkdir,
    }
    makers[kind]()
    try:
        asked = {"key": place.name, "offset": 0, "byte_size": 1}
        assert ask(server, "POST", "/v2/systemsharedmemory/region/odd/register", asked)[0] == 400
    finally:
        place.rmdir() if kind == "folder" else place.unlink()


@pytest.mark.parametrize("shape", [[0, 1 << 47, 1 << 47], [0, 1 << 40, 1 << 40, 1 << 40], [1 << 47, 1 << 12]])
@pytest.mark.parametrize("kind", [DType.Float32, DType.String], ids=lambda kind: kind.label)
def test_shapes_larger_than_any_array(server, shape, kind):
    for more in ({"data": []}, {"parameters": {"binary_data_size": 0}}):
        asked = {"inputs": [{"name": "x", "shape": shape, "datatype": V2_NAMES[kind], **more}]}
        text = json.dumps(asked)
        status, _, found = ask(server, "POST", f"/v2/models/{kind.label}/infer", text, {LENGTH: str(len(text))})
        assert (status, found["error_code"]) == (400, "InvalidRequest")


@pytest.mark.parametrize(("kind", "item"), [("float32", 1.5), ("string", "a"), ("int64", 1)])
@pytest.mark.parametrize("depth", [33, 40, 65, 500])
def test_more_axes_than_any_array(server, kind, item, depth):
    for _ in range(depth):
        item = [item]
    status, _, found = ask(server, "POST", f"/v1/models/{kind}/infer", {"inputs": {"x": {"dtype": kind, "data": item}}})
    assert (status, found["error_code"]) == (400, "InvalidRequest")


@pytest.fixture
def sparse():
    """A region of a terabyte, none of which is there."""
    path = Path("/dev/shm") / f"pyflame-sparse-{os.getpid()}"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    yield f"/{path.name}"
    path.unlink()


def shared(size, shape):
    place = {"shared_memory_region": "big", "shared_memory_byte_size": size}
    return {"name": "x", "shape": shape, "datatype": "FP32", "parameters": place}


def test_shared_memory_that_is_larger_than_memory(sparse):
    with serving({"float32": identity(DType.Float32)}, shared_memory=True, max_request_size=1 << 20) as server:
        region = {"key": sparse, "offset": 0, "byte_size": 1 << 40}
        assert ask(server, "POST", "/v2/systemsharedmemory/region/big/register", region)[0] == 200
        begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for size in (1 << 40, 1 << 36, (1 << 20) + 4):
            body = {"inputs": [shared(size, [size // 4])]}
            status, _, found = ask(server, "POST", "/v2/models/float32/infer", body)
            assert (status, found["error_code"]) == (413, "RequestTooLarge")
        two = [shared(1 << 19, [1 << 17]), {**shared((1 << 19) + 4, [(1 << 17) + 1]), "name": "z"}]
        assert ask(server, "POST", "/v2/models/float32/infer", {"inputs": two})[0] == 413  # also of several together
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < begun + (64 << 10)
        whole = {
            "inputs": [shared(1 << 20, [1 << 18])],
            "outputs": [{"name": "y", "parameters": {"binary_data": True}}],
        }
        assert ask(server, "POST", "/v2/models/float32/infer", whole)[0] == 200


def test_shared_memory_of_all_requests_is_counted(sparse):
    with serving({"m": scaled(size=1 << 18)}, shared_memory=True, max_request_size=1 << 20) as server:
        region = {"key": sparse, "offset": 0, "byte_size": 1 << 30}
        assert ask(server, "POST", "/v2/systemsharedmemory/region/big/register", region)[0] == 200
        body = {
            "inputs": [shared(1 << 20, [1, 1 << 18])],
            "outputs": [{"name": "y", "parameters": {"binary_data": True}}],
        }
        gate = Gate(server)
        with ThreadPoolExecutor(8) as pool:
            asked = [pool.submit(ask, server, "POST", "/v2/models/m/infer", body) for _ in range(8)]
            refused = [one.result()[0] for one in islice(as_completed(asked, 120), 4)]
            assert refused == [503] * 4  # those under way wait at the gate
            gate.open()
            found = sorted(one.result()[0] for one in asked)
        assert found == [200] * 4 + [503] * 4
        assert ask(server, "POST", "/v2/models/m/infer", body)[0] == 200  # they were released
