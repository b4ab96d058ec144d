"""KServe's own clients, unmodified, where they are installed (`make serving-clients`)."""

import asyncio

import numpy as np
import pytest

from pyflame_rt.graph import DType
from pyflame_rt.serving import GRPCConfig
from pyflame_rt.serving.tensors import V2_NAMES
from tests.unit.serving.scene import identity, scaled, serving

kserve = pytest.importorskip("kserve", reason="needs KServe's SDK: make serving-clients")

X = np.arange(6, dtype=np.float32).reshape(2, 3)
KINDS = [kind for kind in V2_NAMES if kind is not DType.BFloat16]  # NumPy has none of its own


@pytest.fixture(scope="module")
def server():
    models = {"m": scaled(), **{kind.label: identity(kind) for kind in KINDS}}
    with serving(models, grpc=GRPCConfig(enabled=True, host="127.0.0.1", port=0)) as running:
        yield running


def asked(model, array, kind, *, binary):
    given = kserve.InferInput("x", list(array.shape), V2_NAMES[kind])
    given.set_data_from_numpy(array, binary_data=binary)
    return kserve.InferRequest(model, [given], request_id="7")


def run(server, work):
    async def main():
        client = kserve.InferenceRESTClient(kserve.RESTConfig(protocol="v2", timeout=120))
        try:
            return await work(client, server.url)
        finally:
            await client.close()

    return asyncio.run(main())


def call(server, work):
    async def main():
        async with kserve.InferenceGRPCClient(f"127.0.0.1:{server.grpc_port()}", timeout=120) as client:
            return await work(client)

    return asyncio.run(main())


def test_facts(server):
    assert run(server, lambda client, url: client.is_server_live(url))
    assert run(server, lambda client, url: client.is_server_ready(url))
    assert run(server, lambda client, url: client.is_model_ready(url, "m"))
    assert call(server, lambda client: client.is_server_live())
    assert call(server, lambda client: client.is_server_ready())
    assert call(server, lambda client: client.is_model_ready("m"))


@pytest.mark.parametrize("binary", [True, False])
def test_a_run(server, binary):
    request = asked("m", X, DType.Float32, binary=binary)
    found = run(server, lambda client, url: client.infer(url, request, model_name="m"))
    assert (found.id, found.model_name) == ("7", "m")
    np.testing.assert_array_equal(found.outputs[0].as_numpy(), 2 * X)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.label)
def test_every_element_type(server, kind):
    values = np.array([b"a", "\u00fc".encode(), b""], dtype=object)
    if kind is not DType.String:
        values = np.array([0, 1, 1]).astype(kind.numpy)
    request = asked(kind.label, values, kind, binary=True)
    outputs = [
        run(server, lambda client, url: client.infer(url, request, model_name=kind.label)).outputs[0],
        call(server, lambda client: client.infer(request)).outputs[0],
    ]
    for output in outputs:
        found = output.as_numpy()
        if kind is DType.String:
            found = np.array([v if isinstance(v, bytes) else v.encode() for v in found], dtype=object)
        np.testing.assert_array_equal(found, values)
