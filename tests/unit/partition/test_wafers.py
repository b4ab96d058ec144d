"""Several wafers: parts are compiled to CSL, run in the simulator and equal the CPU."""

import numpy as np
import pytest

from pyflame_rt import Graph, InferenceSession, InputError, MemoryLimitError
from pyflame_rt.partition import PartitionedExecutor, WSEChipConfig, wse
from tests.tolerances import within
from tests.unit.partition.zoo import MODELS, Net


def mlp():
    n = Net("mlp", [4, 8])
    x = "x"
    for inner, outer in ((8, 12), (12, 12), (12, 4)):
        x = n.node("Relu", n.dense(x, inner, outer))
    return n.done(x)


def block():
    n = Net("block", [1, 4, 8])
    h = n.node("LayerNormalization", "x", n.weight(8), n.weight(8))
    q, k, v = (n.node("MatMul", h, n.weight(8, 8)) for _ in range(3))
    scores = n.node("Softmax", n.node("MatMul", q, n.node("Transpose", k, perm=[0, 2, 1])))
    h = n.node("Add", "x", n.node("MatMul", n.node("MatMul", scores, v), n.weight(8, 8)))
    m = n.node("LayerNormalization", h, n.weight(8), n.weight(8))
    m = n.node("MatMul", n.node("Gelu", n.node("MatMul", m, n.weight(8, 16))), n.weight(16, 8))
    return n.done(n.node("Add", h, m))


@pytest.mark.parametrize("make", [mlp, block])
def test_two_chips_equal_the_cpu(make):
    graph, feed = make()
    plan = wse.partition_for_wse(graph, WSEChipConfig(topology=[1, 2]))
    assert [p.device.label for p in plan.partitions] == ["wse:0", "wse:1"]
    assert min(len(p.nodes) for p in plan.partitions) >= 3
    with PartitionedExecutor(plan) as executor:
        got = executor.execute(feed)
        assert dict(executor.transfers) == {("wse:0", "wse:1"): plan.total_comm_bytes}
        sessions = [executor.worker(label).sessions() for label in executor.devices]
        assert all("wse" in row.runs_on for held in sessions for s in held.values() for row in s.explain().rows)
    for ours, theirs in zip(got.values(), InferenceSession(graph).run(None, feed), strict=True):
        np.testing.assert_allclose(ours, theirs, **within("sums"))


def test_each_part_is_a_program():
    graph, _ = mlp()
    plan = wse.partition_for_wse(graph, WSEChipConfig(topology=[1, 2], grid=(2, 2), target="wse2"))
    programs = wse.generate_csl(plan)
    assert len(programs) == 2
    assert all({"layout.csl", "pe_program.csl", "run.py"} <= set(p) for p in programs)
    assert programs[0]["pe_program.csl"] != programs[1]["pe_program.csl"]
    assert all('"rows": 2' in p["manifest.json"] for p in programs)


def test_chips_of_a_grid_are_walked_to_and_fro():
    chips = WSEChipConfig(topology=[2, 3])
    assert [chips.position(i) for i in range(6)] == [(0, 0), (0, 1), (0, 2), (1, 2), (1, 1), (1, 0)]
    assert all(chips.hops(i, i + 1) == 1 for i in range(5))
    assert chips.hops(0, 3) == 3
    graph, _ = MODELS["unet"]()
    plan = wse.partition_for_wse(graph, WSEChipConfig(topology=[2, 2]))
    assert len(plan.partitions) == 4
    assert {c.hops for c in plan.communications} <= {1, 2}


def test_small_models_use_fewer_chips():
    graph, _ = MODELS["einsum"]()
    plan = wse.partition_for_wse(graph, WSEChipConfig(topology=[2, 4]))
    assert len(plan.partitions) == 3
    assert "3 of 8 chips" in plan.notes[-1]
    assert len(wse.partition_for_multi_chip(graph, 2).partitions) == 2


def test_wrong_chips():
    graph, _ = mlp()
    for topology in ([2], [0, 2], [1.5, 2]):
        with pytest.raises(InputError, match="topology"):
            wse.partition_for_wse(graph, WSEChipConfig(topology=topology))
    with pytest.raises(InputError, match="inter_chip_latency"):
        wse.partition_for_wse(graph, WSEChipConfig(inter_chip_latency=-1.0))
    with pytest.raises(MemoryLimitError, match="'wse:0'"):
        wse.partition_for_wse(graph, WSEChipConfig(chip_memory_bytes=100))


def test_transfers_are_nodes():
    graph, feed = block()
    plan = wse.partition_for_wse(graph, WSEChipConfig(topology=[2, 2]))
    marked = wse.insert_wse_communication(graph, plan)
    assert marked.validate() == []
    sent = [n for n in marked.nodes if n.op_type == "ChipTransfer"]
    want = sorted((c.value, c.source, c.target, c.hops) for c in plan.communications)
    found = sorted((n.inputs[0], *(n.get_attr(a) for a in ("source", "target", "hops"))) for n in sent)
    assert found == want
    assert found
    for provider in ("CPUExecutionProvider", "WSEExecutionProvider"):
        (ours,) = InferenceSession(marked, providers=[provider]).run(None, feed)
        np.testing.assert_allclose(ours, InferenceSession(graph).run(None, feed)[0], **within("sums"))
    with pytest.raises(InputError, match="in no part of the plan"):
        wse.insert_wse_communication(mlp()[0], plan)


def alive(graph, sizes):
    """The most bytes that are alive at once when nodes run in order."""
    left = {name: len(readers) for name, readers in graph.consumers().items()}
    for info in graph.outputs:
        left[info.name] = left.get(info.name, 0) + 1
    live = peak = 0
    for node in graph.nodes:
        live += sum(sizes[n] for n in node.outputs)
        peak = max(peak, live)
        for name in {n for n in node.inputs if n in sizes}:
            left[name] -= 1
            live -= sizes[name] if left[name] == 0 else 0
    return peak


def test_dataflow_keeps_little_alive():
    graph = Graph("wide")
    graph.add_input("x", [4, 64])
    graph.add_initializer("axis", np.array([1]))
    graph.add_initializer("k", np.ones(64, np.float32))
    graph.add_node("e", "Exp", ["k"], ["folded"])
    sums = []
    for i in range(6):  # all wide values first: the worst order there is
        graph.add_node(f"wide{i}", "Mul", ["x", "folded"], [f"w{i}"])
    for i in range(6):
        graph.add_node(f"narrow{i}", "ReduceSum", [f"w{i}", "axis"], [f"s{i}"])
        sums.append(f"s{i}")
    graph.add_node("all", "Concat", sums, ["y"], axis=1)
    graph.add_output("y", [4, 6])
    better = wse.optimize_for_wse_dataflow(graph)
    assert "Exp" not in [n.op_type for n in better.nodes]
    sizes = {f"w{i}": 1024 for i in range(6)} | {f"s{i}": 16 for i in range(6)} | {"y": 96, "folded": 256}
    assert alive(better, sizes) < alive(graph, sizes) / 2
    x = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    np.testing.assert_array_equal(*(InferenceSession(g).run(None, {"x": x})[0] for g in (graph, better)))


@pytest.mark.parametrize("name", ["mlp", "resnet", "attention", "bert"])
def test_dataflow_changes_no_answer(name):
    graph, feed = MODELS[name]()
    better = wse.optimize_for_wse_dataflow(graph)
    assert better.validate() == []
    provider = ["ReferenceExecutionProvider"]
    for ours, theirs in zip(
        InferenceSession(better, providers=provider).run(None, feed),
        InferenceSession(graph, providers=provider).run(None, feed),
        strict=True,
    ):
        np.testing.assert_array_equal(ours, theirs)
