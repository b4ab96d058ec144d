"""The application in replicas of Ray Serve, on three nodes of one machine (`make serving-ray`)."""

import socket
import time

import httpx
import numpy as np
import pytest

from pyflame_rt.graph.errors import InputError
from pyflame_rt.serving import GRPCConfig, ModelClient, ModelConfig, RateLimitConfig, ServerError
from pyflame_rt.serving.ray_serve import parse_replicas, ray_application
from tests.unit.serving.scene import config, saved

X = np.arange(6, dtype=np.float32).reshape(2, 3)
KEY = "a-key"


@pytest.mark.parametrize("text", ["", "0", "a", "2:1", "1:", "-1", "1:2:3"])
def test_replicas_that_are_none(text):
    if text == "1:":  # the same as 1
        assert parse_replicas(text) == (1, 1)
        return
    with pytest.raises(InputError, match="replicas"):
        parse_replicas(text)


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.fixture(scope="module")
def cluster():
    ray = pytest.importorskip("ray", reason="needs Ray: make serving-ray")
    from ray.cluster_utils import Cluster

    memory = 80 * 2**20
    made = Cluster(True, head_node_args={"num_cpus": 1, "object_store_memory": memory, "include_dashboard": False})
    nodes = [made.add_node(num_cpus=1, object_store_memory=memory) for _ in range(2)]
    ray.init(address=made.address, log_to_driver=False)
    made.wait_for_nodes()
    yield made, nodes
    ray.shutdown()
    made.shutdown()


@pytest.fixture(scope="module")
def served(cluster, tmp_path_factory):
    from ray import serve

    folder = tmp_path_factory.mktemp("models")
    saved(folder / "m" / "1" / "model.onnx")
    limit = RateLimitConfig(enabled=True, requests_per_second=1e6, burst_size=10**6)
    settings = config(model_dir=str(folder), api_keys=[KEY], rate_limit=limit, max_request_size=1 << 20)
    port = free_port()
    serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
    application = ray_application(
        settings,
        ModelConfig(max_batch_size=4),
        replicas=(2, 2),
        actor_options={"num_cpus": 0.5},
        max_replicas_per_node=1,
        health_check_period_s=1,
    )
    serve.run(application, name="m", route_prefix="/")
    yield f"http://127.0.0.1:{port}"
    serve.shutdown()


@pytest.mark.slow
def test_answers_keys_and_limits(served):
    with ModelClient(served, 120, api_key=KEY) as client:
        assert client.wait_for_ready()
        np.testing.assert_array_equal(client.infer("m", {"x": X}).outputs["y"], 2 * X)
        wrong = client.infer("m", {"x": np.ones((1, 4), np.float32)})
        assert (wrong.success, wrong.error_code) == (False, "InvalidRequest")
        with pytest.raises(ServerError, match="there is no model") as caught:
            client.infer("none", {"x": X})
        assert caught.value.status_code == 404
    with ModelClient(served, 120) as client, pytest.raises(ServerError, match="API key") as caught:
        client.infer("m", {"x": X})
    assert caught.value.status_code == 401
    path, headers = f"{served}/v1/models/m/infer", {"x-api-key": KEY}
    assert httpx.post(path, content=bytes(2 << 20), headers=headers, timeout=120).status_code == 413
    assert httpx.post(path, content=b"{", headers=headers, timeout=120).status_code == 400
    assert httpx.get(f"{served}/health/live", timeout=120).status_code == 200  # probes need no key


@pytest.mark.slow
def test_what_only_a_server_of_ones_own_does_is_refused(served):
    for alone in ({"grpc": GRPCConfig(enabled=True)}, {"model_control": True}, {"shared_memory": True}):
        with pytest.raises(InputError, match="not with Ray"):
            ray_application(config(**alone))


@pytest.mark.slow
def test_a_node_is_removed(cluster, served):
    from ray import serve

    made, nodes = cluster
    made.remove_node(nodes[0])
    end, in_a_row = time.monotonic() + 240, 0
    with ModelClient(served, 30, api_key=KEY) as client:
        while in_a_row < 50:
            assert time.monotonic() < end
            try:
                np.testing.assert_array_equal(client.infer("m", {"x": X}).outputs["y"], 2 * X)
                in_a_row += 1
            except (ServerError, ConnectionError, TimeoutError):  # on its way to the node that went
                in_a_row = 0
    while serve.status().applications["m"].deployments["pyflame-rt"].replica_states.get("RUNNING") != 2:
        assert time.monotonic() < end
        time.sleep(0.2)
