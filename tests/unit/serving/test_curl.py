"""curl, as people type it."""

import json
import shutil
import subprocess

import numpy as np
import pytest

from tests.unit.serving.scene import serving

CURL = shutil.which("curl")
pytestmark = pytest.mark.skipif(CURL is None, reason="needs curl")
INFER = "/v2/models/m/infer"


@pytest.fixture(scope="module")
def server():
    with serving(api_keys=["sesame"], max_request_size=1 << 20) as running:
        yield running


def curl(server, path, *arguments, data=None):
    """Status and body."""
    command = [CURL, "-sS", "--noproxy", "*", "-m", "120", "-w", "\n%{http_code}", server.url + path, *arguments]
    found = subprocess.run(command, input=data, capture_output=True, check=True, timeout=250).stdout
    body, status = found.rsplit(b"\n", 1)
    return int(status), body


def test_probes_and_keys(server):
    assert curl(server, "/health/ready")[0] == 200
    assert curl(server, "/health/live", "-I")[0] == 200
    assert curl(server, "/v1/models")[0] == 401
    assert curl(server, "/v1/models", "-H", "X-API-Key: sesame")[0] == 200
    assert curl(server, "/v1/models", "--oauth2-bearer", "sesame")[0] == 200
    assert b"pyflame_" in curl(server, "/metrics", "-H", "X-API-Key: sesame")[1]


@pytest.mark.parametrize(
    "how", [[], ["-H", "Transfer-Encoding: chunked"], ["-H", "Expect: 100-continue"], ["--http1.0"]]
)
def test_a_run(server, how):
    text = json.dumps({"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}]})
    status, body = curl(server, INFER, "-H", "X-API-Key: sesame", "-d", text, *how)
    assert (status, json.loads(body)["outputs"][0]["data"]) == (200, [2, 4, 6])


def test_bytes(server):
    values = np.arange(3, dtype=np.float32).reshape(1, 3)
    place = {"binary_data_size": values.nbytes}
    tensor = {"name": "x", "shape": [1, 3], "datatype": "FP32", "parameters": place}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    more = ["-H", "X-API-Key: sesame", "-H", f"Inference-Header-Content-Length: {len(head)}", "--data-binary", "@-"]
    status, body = curl(server, INFER, *more, data=head + values.tobytes())
    assert status == 200
    np.testing.assert_array_equal(np.frombuffer(body[-12:], np.float32), 2 * values[0])


def test_a_body_that_is_too_long(server, tmp_path):
    file = tmp_path / "long"
    file.write_bytes(bytes(4 << 20))
    for how in ([], ["-H", "Transfer-Encoding: chunked"]):
        status, body = curl(server, INFER, "-H", "X-API-Key: sesame", "--data-binary", f"@{file}", *how)
        assert (status, json.loads(body)["error_code"]) == (413, "RequestTooLarge")
