"""The documented REST interface over real sockets."""

import json

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

import pyflame as pf
import pyflame_rt
from pyflame_rt.graph import DType
from pyflame_rt.serving import MetricsRegistry, ModelConfig, ModelServer
from tests.unit.serving.scene import array_of, ask, config, identity, saved, scaled, serving, tensor

X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture(scope="module")
def server():
    with serving() as running:
        yield running


def test_the_documented_request(server):
    body = {"request_id": "req-123", "inputs": {"x": tensor(X)}, "outputs": ["y"]}
    status, answer, found = ask(server, "POST", "/v1/models/m/infer", body)
    assert status == 200
    assert found["request_id"] == "req-123"
    assert (found["model_name"], found["model_version"], found["success"]) == ("m", "1", True)
    assert isinstance(found["latency_us"], int)
    np.testing.assert_array_equal(array_of(found["outputs"]["y"]), 2 * X)
    assert answer.getheader("x-request-id")
    again, _, exact = ask(server, "POST", "/v1/models/m/versions/1/infer", body)
    assert (again, exact["outputs"]) == (200, found["outputs"])


@pytest.mark.parametrize(
    "inputs",
    [
        {"x": {"shape": [2, 3], "dtype": "float32", "data": X.tolist()}},
        {"x": {"shape": [2, 3], "dtype": "float32", "data": X.reshape(-1).tolist()}},
        {"x": X.tolist()},
    ],
)
def test_lists_are_answered_with_lists(server, inputs):
    status, _, found = ask(server, "POST", "/v1/models/m/infer", {"inputs": inputs})
    assert status == 200
    assert found["outputs"]["y"] == {"shape": [2, 3], "dtype": "float32", "data": (2 * X).tolist()}


def test_named_tensors_are_answered_with_named_tensors(server):
    inputs = [{"name": "x", "shape": [2, 3], "datatype": "FP32", "data": X.reshape(-1).tolist()}]
    status, _, found = ask(server, "POST", "/v1/models/m/infer", {"inputs": inputs, "outputs": [{"name": "y"}]})
    assert status == 200
    (y,) = found["outputs"]
    assert (y["name"], y["datatype"], y["shape"]) == ("y", "FP32", [2, 3])
    assert y["data"] == (2 * X).reshape(-1).tolist()


def test_numbers_that_json_lacks_are_null_and_counted(server):
    odd = np.array([[np.nan, np.inf, 1.0]], np.float32)
    _, _, found = ask(server, "POST", "/v1/models/m/infer", {"inputs": {"x": tensor(odd)}})
    np.testing.assert_array_equal(array_of(found["outputs"]["y"]), 2 * odd)
    lists = {"x": {"dtype": "float32", "shape": [1, 3], "data": [[3.0e38, 0, 1]]}}
    _, _, found = ask(server, "POST", "/v1/models/m/infer", {"inputs": lists})
    assert found["outputs"]["y"]["data"] == [[None, 0.0, 2.0]]
    assert found["outputs"]["y"]["non_finite"] == 1


BAD = [
    (b"", "not JSON"),
    (b"{", "not JSON"),
    (b"[" * 3000, "not JSON"),
    (b"\xff\xfe", "not JSON"),
    (b"[1]", "must be an object"),
    (b"{}", '"inputs"'),
    (b'{"inputs": {}}', "empty"),
    (b'{"inputs": 3}', '"inputs"'),
    (b'{"inputs": {"x": 3}}', "must be an object"),
    (b'{"inputs": {"x": {"shape": [1, 3], "dtype": "float32"}}}', "base64"),
    (b'{"inputs": {"x": {"shape": [1, 3], "dtype": "float32", "data": "?"}}}', "base64"),
    (b'{"inputs": {"x": {"shape": [1, 3], "dtype": "float32", "data": "AAAA"}}}', "12 bytes"),
    (b'{"inputs": {"x": {"shape": [1, -3], "dtype": "float32", "data": ""}}}', "no size"),
    (
        b'{"inputs": {"x": {"shape": [99999999999, 99999999999], "dtype": "float32", "data": ""}}}',
        "larger than any array",
    ),
    (b'{"inputs": {"x": {"shape": "3", "dtype": "float32", "data": ""}}}', "shape"),
    (b'{"inputs": {"x": {"dtype": "float32", "data": ""}}}', "shape is missing"),
    (b'{"inputs": {"x": {"shape": [1, 3], "dtype": "float99", "data": ""}}}', "element type"),
    (b'{"inputs": {"x": {"shape": [1, 3], "dtype": 7, "data": ""}}}', "element type"),
    (b'{"inputs": {"x": [[1, 2], [3]]}}', "rectangular"),
    (b'{"inputs": {"x": [["a", "b", "c"]]}}', "numbers"),
    (b'{"inputs": {"x": [[1e99, 0, 0]]}}', "too large"),
    (b'{"inputs": {"x": [[1, 2]]}}', "expected 3"),
    (b'{"inputs": {"x": {"shape": [1, 3], "dtype": "int64", "data": [[1, 2, 3]]}}}', "float32"),
    (b'{"inputs": {"z": [[1, 2, 3]]}}', "'z'"),
    (b'{"inputs": {"x": [[1, 2, 3]]}, "outputs": ["z"]}', "'z'"),
    (b'{"inputs": {"x": [[1, 2, 3]]}, "outputs": [3]}', "names"),
    (b'{"inputs": {"x": [[1, 2, 3]]}, "outputs": {"y": 1}}', "names"),
    (b'{"inputs": {"x": [[1, 2, 3]]}, "request_id": 3}', "request_id"),
    (b'{"inputs": {"x": [[1, 2, 3]]}, "timeout_ms": 0}', "timeout_ms"),
    (b'{"inputs": [{"shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}]}', "name"),
    (
        b'{"inputs": [{"name": "x", "datatype": "FP32", "data": [[1, 2, 3]]}, {"name": "x", "data": [[1, 2, 3]]}]}',
        "twice",
    ),
]


@pytest.mark.parametrize(("body", "message"), BAD)
def test_bad_requests_are_told_why(server, body, message):
    status, _, found = ask(server, "POST", "/v1/models/m/infer", body)
    assert status == 400
    assert found["success"] is False
    assert found["error_code"] == "InvalidRequest"
    assert message in found["error_message"]
    assert found["error"] == found["error_message"]


def test_what_is_not_there(server):
    assert ask(server, "GET", "/v1/models/none")[0] == 404
    status, _, found = ask(server, "POST", "/v1/models/none/infer", {"inputs": {"x": tensor(X)}})
    assert (status, found["error_code"]) == (404, "ModelNotFound")
    assert ask(server, "GET", "/v1/models/m/versions/7")[0] == 404
    assert ask(server, "GET", "/v1/models/none/stats")[0] == 404
    assert ask(server, "GET", "/nowhere")[2]["error_code"] == "NotFound"
    status, answer, found = ask(server, "GET", "/v1/models/m/infer")
    assert (status, found["error_code"], answer.getheader("allow")) == (405, "MethodNotAllowed", "POST")
    status, _, found = ask(server, "POST", "/v1/models/m/unload", b"")
    assert (status, found["error_code"]) == (403, "Forbidden")


def test_lists_facts_and_statistics(server):
    _, _, listed = ask(server, "GET", "/v1/models")
    assert [(m["name"], m["ready"], m["versions"]) for m in listed["models"]] == [("m", True, ["1"])]
    assert [m["id"] for m in listed["data"]] == ["m"]
    _, _, facts = ask(server, "GET", "/v1/models/m")
    assert facts["inputs"] == [{"name": "x", "dtype": "float32", "datatype": "FP32", "shape": [-1, 3]}]
    before = ask(server, "GET", "/v1/models/m/stats")[2]["completed_requests"]
    ask(server, "POST", "/v1/models/m/infer", {"inputs": {"x": tensor(X)}})
    _, _, stats = ask(server, "GET", "/v1/models/m/stats")
    assert stats["completed_requests"] == before + 1
    assert stats["versions"]["1"]["name"] == "m"
    assert ask(server, "GET", "/health/live")[0] == ask(server, "GET", "/health/ready")[0] == 200


def test_metrics_parse_and_count():
    MetricsRegistry.instance().reset()
    with serving({"counted": scaled()}) as server:
        for body in ({"inputs": {"x": tensor(X)}}, {"inputs": {"w": tensor(X)}}):
            ask(server, "POST", "/v1/models/counted/infer", body)
        ask(server, "POST", "/v1/models/made-up/infer", {"inputs": {"x": tensor(X)}})
        _, answer, text = ask(server, "GET", "/metrics")
    assert answer.getheader("content-type").startswith("text/plain")
    families = {f.name: f for f in text_string_to_metric_families(text.decode())}
    values = {
        tuple(sorted(s.labels.items())): s.value
        for s in families["pyflame_request"].samples
        if s.name.endswith("_total")
    }
    assert values[("model", "counted"), ("status", "success")] == 1
    assert values[("model", "counted"), ("status", "error")] == 1
    assert not [s for f in families.values() for s in f.samples if s.labels.get("model") == "made-up"]
    (count,) = [s.value for s in families["pyflame_batch_size"].samples if s.name.endswith("_sum")]
    assert count == 2  # rows
    assert families["pyflame_requests_active"].samples[0].value == 0


def test_metrics_have_a_port_of_their_own_and_can_be_off(unused_port):
    with serving(metrics_port=unused_port) as server:
        from types import SimpleNamespace

        other = SimpleNamespace(http_port=lambda: unused_port)
        assert b"pyflame_request_total" in ask(other, "GET", "/metrics")[2]
        assert ask(other, "GET", "/v1/models")[0] == 404
        assert ask(server, "GET", "/metrics")[0] == 200
    with serving(enable_metrics=False) as server:
        assert ask(server, "GET", "/metrics")[0] == 404


@pytest.fixture
def unused_port():
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def test_anything_goes_in(tmp_path):
    module = pf.nn.Linear(3, 2).eval()
    example = pf.ones([2, 3])
    want = module(pf.from_numpy(X)).numpy()
    pf.export(module, example, tmp_path / "m.onnx")
    models = {
        "onnx": saved(tmp_path / "s.onnx"),
        "pfm": str(saved(tmp_path / "s.pfm")),
        "bytes": saved(tmp_path / "s.onnx").read_bytes(),
        "graph": scaled(),
        "session": pyflame_rt.InferenceSession(scaled()),
        "imported": pf.integrations.import_onnx(tmp_path / "m.onnx"),
        "optimized": pf.serving.optimize_for_inference(module, example),
        "quantized": pf.serving.optimize_for_inference(module, example, enable_quantization=True),
    }
    with serving(models) as server:
        server.load_model("module", module, example=example)
        for name in (*models, "module"):
            facts = server.registry().get_latest(name)
            body = {"inputs": {facts.input_names()[0]: tensor(X)}}
            status, _, found = ask(server, "POST", f"/v1/models/{name}/infer", body)
            assert status == 200, (name, found)
            expected = 2 * X if facts.output_names() == ["y"] else want
            (got,) = found["outputs"].values()
            tolerance = 0.05 if name == "quantized" else 1e-5
            np.testing.assert_allclose(array_of(got), expected, rtol=tolerance, atol=tolerance)
        with pytest.raises(pyflame_rt.InputError, match="example"):
            server.load_model("module", module)
    assert models["session"].run(None, {"x": X})[0].shape == (2, 3)  # it is the program's, and stays open


@pytest.mark.parametrize("kind", [DType.Float16, DType.BFloat16, DType.Int8, DType.UInt64, DType.Bool, DType.Float64])
def test_element_types(kind):
    values = np.array([0, 1, 1, 0]).astype(kind.numpy)
    with serving({"same": identity(kind)}) as server:
        _, _, found = ask(server, "POST", "/v1/models/same/infer", {"inputs": {"x": tensor(values)}})
        np.testing.assert_array_equal(array_of(found["outputs"]["y"]), values)
        lists = {
            "shape": [4],
            "dtype": kind.label,
            "data": values.tolist() if kind is not DType.BFloat16 else [0, 1, 1, 0],
        }
        _, _, found = ask(server, "POST", "/v1/models/same/infer", {"inputs": {"x": lists}})
        assert found["outputs"]["y"]["data"] == lists["data"]


def test_strings():
    words = ["a", "\u00fc", ""]
    with serving({"same": identity(DType.String)}) as server:
        body = {"inputs": {"x": {"shape": [3], "dtype": "string", "data": words}}}
        status, _, found = ask(server, "POST", "/v1/models/same/infer", body)
        assert status == 200, found
        assert found["outputs"]["y"]["data"] == words


def test_settings_of_a_server_are_checked(tmp_path):
    for changes, message in (
        ({"port": 70000}, "port"),
        ({"max_connections": 0}, "max_connections"),
        ({"log_level": "loud"}, "log_level"),
        ({"api_keys": [""]}, "empty key"),
        ({"models": [ModelConfig(name="../x", model_path="x.onnx")]}, "letters"),
        ({"models": [ModelConfig(name="a", model_path="x"), ModelConfig(name="a", model_path="y")]}, "twice"),
    ):
        with pytest.raises(pyflame_rt.InputError, match=message):
            ModelServer(config(**changes)).start()
    missing = ModelConfig(name="m", model_path=str(tmp_path / "none.onnx"))
    server = ModelServer(config(models=[missing]))
    with pytest.raises(pyflame_rt.ModelNotFoundError):
        server.start()
    assert not server.is_running()
    saved(tmp_path / "none.onnx")
    with server:  # once more
        assert ask(server, "GET", "/health/ready")[0] == 200
    with serving() as first, pytest.raises(pyflame_rt.InputError, match="cannot listen"):
        ModelServer(config(port=first.http_port())).start()


def test_json_is_plain(server):
    """What the server writes is JSON for everybody: no NaN."""
    body = {"inputs": {"x": {"dtype": "float32", "data": [[3e38, 1, 2]]}}}
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", server.http_port(), timeout=120)
    connection.request("POST", "/v1/models/m/infer", json.dumps(body))
    text = connection.getresponse().read().decode()
    connection.close()

    def refuse(name):
        raise AssertionError(name)

    assert json.loads(text, parse_constant=refuse)["success"]
