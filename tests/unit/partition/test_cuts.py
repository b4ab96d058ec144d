"""Cuts: acyclic, balanced, few bytes; compared with all cuts of small graphs."""

import itertools

import numpy as np
import pytest

from pyflame_rt import Graph, InputError, MemoryLimitError
from pyflame_rt.partition import CostModel, DeviceSpec, GraphPartitioner, PartitionConfig
from pyflame_rt.partition.config import cpu_devices
from pyflame_rt.partition.cuts import cut_graph, units_of
from tests.unit.partition.zoo import MODELS


def random_graph(seed, nodes=9):
    """Additions of earlier values, of sizes that differ by broadcasting."""
    rng = np.random.default_rng(seed)
    graph = Graph("random")
    names = [f"in{i}" for i in range(2)]
    for name in names:
        graph.add_input(name, [int(rng.integers(1, 3)) * 8 - 7, 64])
    for i in range(nodes):
        a, b = rng.choice(len(names), 2)
        graph.add_node(f"n{i}", "Add", [names[a], names[b]], [f"v{i}"])
        names.append(f"v{i}")
    read = {name for node in graph.nodes for name in node.inputs}
    for node in graph.nodes:
        if node.outputs[0] not in read:
            graph.add_output(node.outputs[0], None)
    return graph


def setting(graph, parts, **config):
    chosen = PartitionConfig(devices=cpu_devices(parts), **config)
    model = CostModel()
    costs = model.survey(graph, chosen)
    return units_of(graph, costs), costs, chosen, model


def crossed(units, costs, parts):
    targets = {}
    for unit, part in zip(units, parts, strict=True):
        for source, value in unit.reads:
            if parts[source] != part:
                targets.setdefault(value, set()).add(part)
    return sum(len(found) * costs.value_bytes[value] for value, found in targets.items())


def loads(units, parts, count):
    return [sum(u.us for u, p in zip(units, parts, strict=True) if p == k) for k in range(count)]


@pytest.mark.parametrize("seed", range(12))
def test_against_all_cuts_in_two(seed):
    units, costs, config, model = setting(random_graph(seed), 2)
    ours = cut_graph(units, costs, config.devices, model, config)
    assert all(ours[source] <= ours[i] for i, unit in enumerate(units) for source, _ in unit.reads)
    limit = max(loads(units, ours, 2))
    found = [
        crossed(units, costs, parts)
        for parts in itertools.product((0, 1), repeat=len(units))
        if len(set(parts)) == 2
        and all(parts[s] <= parts[i] for i, u in enumerate(units) for s, _ in u.reads)
        and max(loads(units, parts, 2)) <= limit
    ]
    assert crossed(units, costs, ours) <= 1.5 * min(found)
    best = min(
        max(loads(units, p, 2))
        for p in itertools.product((0, 1), repeat=len(units))
        if all(p[s] <= p[i] for i, u in enumerate(units) for s, _ in u.reads)
    )
    assert limit <= 1.25 * best


def test_most_of_them_are_the_best():
    exact = 0
    for seed in range(30):
        units, costs, config, model = setting(random_graph(seed, 8), 2, balance_compute=False)
        ours = cut_graph(units, costs, config.devices, model, config)
        exact += crossed(units, costs, ours) == min(
            crossed(units, costs, p)
            for p in itertools.product((0, 1), repeat=len(units))
            if len(set(p)) == 2 and all(p[s] <= p[i] for i, u in enumerate(units) for s, _ in u.reads)
        )
    assert exact >= 27


def test_balance_or_bytes():
    graph, _ = MODELS["unet"]()
    partitioner = GraphPartitioner(PartitionConfig(balance_compute=True, minimize_communication=False))
    balanced = partitioner.partition_model_parallel(graph, 4)
    partitioner = GraphPartitioner(PartitionConfig(balance_compute=False, minimize_communication=True))
    quiet = partitioner.partition_model_parallel(graph, 4)
    assert balanced.load_imbalance < quiet.load_imbalance
    assert quiet.total_comm_bytes < balanced.total_comm_bytes


def test_faster_devices_get_more():
    graph, _ = MODELS["mlp"]()
    devices = [DeviceSpec(device_id=0, compute_flops=300e9), DeviceSpec(device_id=1, compute_flops=50e9)]
    plan = GraphPartitioner(PartitionConfig(devices=devices)).partition_model_parallel(graph)
    first, second = (len(p.nodes) for p in plan.partitions)
    assert first > second


def test_memory_limits():
    graph, _ = MODELS["mlp"]()
    whole = GraphPartitioner().analyze(graph).memory_bytes
    weights = sum(t.size_bytes for t in graph.initializers.values())
    devices = [DeviceSpec(device_id=i, memory_bytes=int(whole - 0.3 * weights)) for i in range(4)]
    config = PartitionConfig(devices=devices)
    plan = GraphPartitioner(config).partition(graph)
    assert len(plan.partitions) > 1  # the whole model fits no device
    assert all(p.memory_bytes <= p.device.memory_bytes for p in plan.partitions)
    with pytest.raises(MemoryLimitError, match=r"part 0 needs .* device 'cpu:0' has"):
        GraphPartitioner(config).partition_data_parallel(graph)
    tiny = [DeviceSpec(device_id=i, memory_bytes=1000) for i in range(2)]
    with pytest.raises(MemoryLimitError, match="1,000"):
        GraphPartitioner(PartitionConfig(devices=tiny)).partition_model_parallel(graph)
    with pytest.raises(MemoryLimitError, match="in no way"):
        GraphPartitioner(PartitionConfig(devices=tiny)).partition(graph)


def test_more_parts_than_nodes():
    with pytest.raises(InputError, match=r"3 nodes .* 4 parts"):
        GraphPartitioner().partition_model_parallel(MODELS["einsum"]()[0], 4)


def test_a_long_chain():
    graph = Graph("long")
    graph.add_input("v0", [4])
    for i in range(3000):
        graph.add_node(f"n{i}", "Neg", [f"v{i}"], [f"v{i + 1}"])
    graph.add_output("v3000", [4])
    plan = GraphPartitioner().partition_model_parallel(graph, 4)
    assert plan.load_imbalance < 0.11
    assert len(plan.communications) == 3
