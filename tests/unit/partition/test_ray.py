"""Ray actors run plans as threads do; needs the extra ``ray``."""

import numpy as np
import pytest

from pyflame_rt import DeviceLostError, InferenceSession
from pyflame_rt.partition import GraphPartitioner, PartitionConfig, PartitionedExecutor, PartitionStrategy
from tests.unit.partition.zoo import MODELS

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster():
    from ray.cluster_utils import Cluster

    memory = 80 * 2**20
    made = Cluster(True, head_node_args={"num_cpus": 1, "object_store_memory": memory, "include_dashboard": False})
    for _ in range(2):
        made.add_node(num_cpus=1, object_store_memory=memory)
    ray.init(address=made.address, log_to_driver=False)
    made.wait_for_nodes()
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.mark.parametrize("strategy", ["data", "model", "pipeline", "tensor"])
@pytest.mark.parametrize("name", ["mlp", "branches", "attention"])
def test_three_nodes(cluster, name, strategy):
    graph, feed = MODELS[name]()
    config = PartitionConfig(PartitionStrategy.of(strategy), batch_size=6, micro_batch_size=2)
    plan = GraphPartitioner(config).partition(graph, 3)
    with PartitionedExecutor(plan, "ray") as executor:
        got = executor.execute(feed, timeout=120)
    for ours, theirs in zip(got.values(), InferenceSession(graph).run(None, feed), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6 * max(1.0, np.abs(theirs).max()))


@pytest.mark.parametrize("how", ["error", "replay"])
def test_a_lost_actor(cluster, how):
    graph, feed = MODELS["mlp"]()
    plan = GraphPartitioner(PartitionConfig(batch_size=6, micro_batch_size=1)).partition_pipeline(graph, 3)
    with PartitionedExecutor(plan, "ray", on_device_loss=how) as executor:
        before = executor.execute(feed, timeout=120)
        ray.kill(executor.worker("cpu:1").actor)
        if how == "error":
            with pytest.raises(DeviceLostError, match="'cpu:1' was lost"):
                executor.execute(feed, timeout=120)
            return
        np.testing.assert_allclose(executor.execute(feed, timeout=120)["y0"], before["y0"], rtol=0, atol=1e-6)
        assert executor.lost == ["cpu:1"]
