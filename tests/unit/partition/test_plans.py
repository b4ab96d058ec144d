"""Plans: their figures and pictures, cost models, the automatic choice, tensor parallelism."""

import json
import pickle
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from pyflame_rt import Graph, InferenceSession, InputError, ValidationError, partition
from pyflame_rt.ops import all_ops
from pyflame_rt.partition import (
    CostModel,
    DeviceSpec,
    GraphPartitioner,
    PartitionConfig,
    PartitionedExecutor,
    PartitionStrategy,
)
from tests.unit.partition.zoo import MODELS, Net


def test_figures():
    graph, _ = MODELS["branches"]()
    plan = GraphPartitioner().partition_model_parallel(graph, 3)
    stats = GraphPartitioner.get_stats(plan)
    assert stats.nodes_per_partition == [len(p.nodes) for p in plan.partitions]
    assert sum(stats.nodes_per_partition) == len(graph.nodes)
    assert 0 < stats.edge_cut_ratio < 1
    assert sum(stats.compute_per_partition) == pytest.approx(sum(plan.loads().values()))
    assert plan.load_imbalance >= 0
    assert json.loads(json.dumps(plan.to_dict()))["total_comm_bytes"] == plan.total_comm_bytes
    again = pickle.loads(pickle.dumps(plan))  # noqa: S301
    assert str(again) == str(plan)
    assert all(f"{p.device.label}:" in str(plan) for p in plan.partitions)


@pytest.mark.parametrize("strategy", ["data", "model", "pipeline", "tensor", "auto"])
def test_pictures(strategy):
    graph, _ = MODELS["mlp"]()
    graph.name = "<&>"
    plan = GraphPartitioner(PartitionConfig(PartitionStrategy.of(strategy))).partition(graph, 2)
    root = ET.fromstring(plan.svg())
    boxes = [e for e in root.iter() if e.tag.endswith("}g")]
    arrows = [e for e in root.iter() if e.tag.endswith("}path") and e.get("marker-end")]
    assert len(boxes) == len(plan.partitions)
    assert len(arrows) == len(plan.communications)
    assert plan._repr_svg_() == plan.svg()


def test_devices():
    graph, _ = MODELS["mlp"]()
    assert [d.label for d in GraphPartitioner().partition_pipeline(graph, 3).devices] == ["cpu:0", "cpu:1", "cpu:2"]
    config = PartitionConfig(devices=[DeviceSpec(device_id=4), DeviceSpec(device_id=7, name="big")])
    plan = GraphPartitioner(config).partition_model_parallel(graph)
    assert [d.label for d in plan.devices] == ["cpu:4", "big"]
    with pytest.raises(InputError, match="3 parts need 3 devices"):
        GraphPartitioner(config).partition_model_parallel(graph, 3)
    config.devices.append(DeviceSpec(device_id=4))
    with pytest.raises(InputError, match="'cpu:4' is given twice"):
        GraphPartitioner(config).partition(graph)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"micro_batch_size": -1}, "micro_batch_size"),
        ({"micro_batch_size": 1.5}, "micro_batch_size"),
        ({"devices": ["cpu"]}, "DeviceSpecs"),
        ({"strategy": "fast"}, "'fast' is not known"),
        ({"sizes": {"N": -1}}, "'N'"),
        ({"devices": [DeviceSpec(memory_bytes=-1)]}, "memory_bytes"),
    ],
)
def test_wrong_configurations(change, match):
    config = PartitionConfig(**change)
    with pytest.raises(InputError, match=match):
        GraphPartitioner(config).partition(MODELS["mlp"]()[0])


@pytest.mark.parametrize("parts", [0, -1, 2.5, True, "two", 10**9])
def test_wrong_numbers_of_parts(parts):
    with pytest.raises(InputError, match="whole number"):
        GraphPartitioner().partition_model_parallel(MODELS["mlp"]()[0], parts)


def test_broken_graphs():
    graph = Graph("broken")
    graph.add_node("n", "Neg", ["nothing"], ["y"])
    graph.add_output("y", [1])
    with pytest.raises(ValidationError, match="broken"):
        partition.auto_partition(graph)


def test_stages_are_limited():
    config = PartitionConfig(max_pipeline_stages=2)
    plan = GraphPartitioner(config).partition_pipeline(MODELS["mlp"]()[0], 4)
    assert len(plan.partitions) == 2
    assert "max_pipeline_stages" in plan.notes[-1]


# ---------------------------------------------------------------------- the cost model


def heavy(width=256, layers=8):
    n = Net("heavy", ["N", width])
    x = "x"
    for _ in range(layers):
        x = n.node("Relu", n.node("MatMul", x, n.weight(width, width, scale=0.05)))
    return n.done(x)


def test_costs_grow_with_the_work():
    graph, _ = heavy()
    small, large = (
        GraphPartitioner(PartitionConfig(batch_size=rows)).partition_model_parallel(graph, 1).total_latency_us
        for rows in (8, 800)
    )
    assert large > 10 * small
    model = CostModel()
    model.set_inter_device_bandwidth(1e6)
    with pytest.raises(InputError):
        model.set_inter_device_bandwidth(0)
    with pytest.raises(InputError):
        model.set_inter_device_latency(float("nan"))
    with pytest.raises(InputError, match="CostModel"):
        GraphPartitioner().set_cost_model("fast")


def test_slow_links_speak_for_one_device():
    graph, _ = heavy()
    fast, slow = CostModel(), CostModel()
    slow.set_inter_device_bandwidth(1e5)
    slow.set_inter_device_latency(1e5)
    chosen = []
    for model in (fast, slow):
        partitioner = GraphPartitioner(PartitionConfig(batch_size=1024))
        partitioner.set_cost_model(model)
        chosen.append(partitioner.partition(graph, 4))
        assert partitioner.analyze(graph, 4).predicted_us["pipeline"] > 0
    assert len(chosen[0].partitions) == 4
    assert chosen[1].strategy is PartitionStrategy.DATA_PARALLEL or len(chosen[1].partitions) == 1
    assert chosen[0].predicted_speedup > 2


def test_calibration_measures_this_machine():
    graph, _ = heavy(128, 4)
    partitioner = GraphPartitioner(PartitionConfig(batch_size=256))
    best = partitioner.cost_model.calibrate(graph, batch_size=256)
    plan = partitioner.partition_model_parallel(graph, 1)
    assert plan.total_latency_us == pytest.approx(best, rel=0.5)
    bandwidth, latency = partitioner.cost_model.calibrate_transfers()
    assert bandwidth > 1e6
    assert latency > 0


def test_what_was_measured_is_found_whatever_the_order_of_nodes():
    graph, _ = heavy(64, 4)
    graph.add_node("nobody reads it", "Relu", [graph.inputs[0].name], ["spare"])
    graph.nodes.reverse()
    model, config = CostModel(), PartitionConfig(batch_size=64)
    best = model.calibrate(graph, batch_size=64)
    costs = model.survey(graph.needed_for([info.name for info in graph.outputs]), config)
    assert costs.total_us == pytest.approx(best - model.part_us)
    assert costs.us["y0"] == 0  # an Identity that no step does


def test_open_sizes_are_those_of_the_feed():
    graph = Graph("open")
    graph.add_input("x", ["batch", "seq", 256])
    graph.add_initializer("w", np.ones((256, 256), np.float32))
    graph.add_node("n", "MatMul", ["x", "w"], ["y"])
    graph.add_output("y", None)
    model = CostModel()
    model.calibrate(graph, {"x": np.ones((4, 500, 256), np.float32)}, batch_size=4)
    assert model.flops > 2e9  # 500 times less, were a sequence taken to be one long


def test_shares_of_a_node_cost_shares_of_what_was_measured():
    graph, _ = heavy(128, 4)
    partitioner = GraphPartitioner(PartitionConfig(batch_size=128))
    partitioner.cost_model.calibrate(graph, batch_size=128)
    for measured in partitioner.cost_model._measured.values():
        measured.update({name: 100 * us for name, us in measured.items()})
    whole = partitioner.partition_model_parallel(graph, 1).partitions[0].compute_us
    shares = sum(part.compute_us for part in partitioner.partition_tensor_parallel(graph, 2).partitions)
    assert 0.9 * whole < shares < 1.5 * whole


def test_analysis():
    graph, _ = heavy()
    graph.nodes[2] = graph.nodes[2].replace(name="the big one")
    analysis = GraphPartitioner(PartitionConfig(batch_size=512)).analyze(graph, 2)
    assert analysis.recommended_strategy in set(PartitionStrategy)
    assert analysis.estimated_speedup > 1
    assert "the big one" in analysis.bottleneck_nodes
    assert set(analysis.predicted_us) == {"single", "data", "model", "pipeline", "tensor"}
    assert analysis.splits_rows
    weights = sum(t.size_bytes for t in graph.initializers.values())
    assert weights < analysis.memory_bytes < 2 * weights + 512 * 256 * 4 * 4
    assert "goes over the axis" in GraphPartitioner().analyze(MODELS["mixes_rows"]()[0]).reason


# ---------------------------------------------------------------------- tensor parallelism


def test_weights_are_really_cut():
    graph, feed = heavy(64, 4)
    plan = GraphPartitioner().partition_tensor_parallel(graph, 2)
    total = sum(t.size_bytes for t in graph.initializers.values())
    held = dict.fromkeys((d.label for d in plan.devices), 0)
    for part in plan.partitions:
        held[part.device.label] += sum(t.size_bytes for t in part.graph.initializers.values())
    assert list(held.values()) == [total // 2, total // 2]
    products = [n for p in plan.partitions for n in p.graph.nodes if n.op_type == "MatMul"]
    assert len(products) == 8
    sums = [n for p in plan.partitions for n in p.graph.nodes if n.op_type == "Sum"]
    assert len(sums) <= 4  # columns, then rows: one exchange for two products
    (want,) = InferenceSession(graph).run(None, feed)
    with PartitionedExecutor(plan) as executor:
        np.testing.assert_allclose(executor.execute(feed)["y0"], want, rtol=0, atol=1e-6 * np.abs(want).max())


_OTHERS = (
    "BitwiseNot",
    "Cast",
    "ComplexAbs",
    "Identity",
    "IsInf",
    "IsNaN",
    "Not",
)  # make or take other types; outputs are made by one
_ONE_INPUT = [op for op in all_ops() if op.elementwise and op.signature.max_inputs == 1 and op.name not in _OTHERS]


@pytest.mark.parametrize("op", _ONE_INPUT, ids=lambda op: op.full_name)
def test_elementwise_operators_stay_cut(op):
    n = Net("cut", [3, 8])
    graph, feed = n.done(n.dense(n.node(op.name, n.dense("x", 8, 8), domain=op.domain), 8, 8))
    plan = GraphPartitioner().partition_tensor_parallel(graph, 2)
    nodes = [node for part in plan.partitions for node in part.graph.nodes]
    assert sum(node.full_name == op.full_name for node in nodes) == 2
    assert all(node.op_type != "Concat" for node in nodes)
    (want,) = InferenceSession(graph).run(None, feed)
    with PartitionedExecutor(plan) as executor:
        np.testing.assert_allclose(executor.execute(feed)["y0"], want, rtol=1e-5, atol=1e-5)


def test_names_that_look_like_ours():
    n = Net("names", ["N", 4])
    graph, feed = n.done(n.dense("x", 4, 4))
    graph.nodes[0] = graph.nodes[0].replace(outputs=["v@0"])
    graph.nodes[1] = graph.nodes[1].replace(inputs=["v@0"])
    (want,) = InferenceSession(graph).run(None, feed)
    with PartitionedExecutor(GraphPartitioner().partition_tensor_parallel(graph, 2)) as executor:
        np.testing.assert_allclose(executor.execute(feed)["y0"], want, atol=1e-6)


def test_what_has_no_weights_stays_together():
    graph = Graph("plain")
    graph.add_input("x", [2])
    graph.add_node("n", "Neg", ["x"], ["y"])
    graph.add_output("y", [2])
    plan = GraphPartitioner().partition_tensor_parallel(graph, 2)
    assert len(plan.partitions) == 1
    assert "no node has a constant weight" in plan.notes[0]


def test_random_numbers_are_drawn_once():
    n = Net("noise", [4, 8])
    noise, weights = n.node("RandomNormal", shape=[4, 8]), (n.weight(8, 8), n.weight(8))
    ways = [n.node("Gemm", n.node("Add", "x", noise), *weights) for _ in range(2)]
    graph, feed = n.done(n.node("Sub", *ways))
    plan = GraphPartitioner().partition_tensor_parallel(graph, 2)
    with PartitionedExecutor(plan) as executor:
        np.testing.assert_allclose(executor.execute(feed)["y0"], 0, atol=1e-5)
