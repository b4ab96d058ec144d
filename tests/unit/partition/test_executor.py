"""The executor: containers, overlap, requests in the background, errors, and devices that are lost."""

import asyncio
import os
import signal
import threading

import numpy as np
import pytest

from pyflame_rt import (
    DeviceLostError,
    Graph,
    InferenceSession,
    InputError,
    MissingExtra,
    OperatorRegistry,
    RunTimeoutError,
    SessionClosedError,
    ShapeMismatchError,
    Tensor,
    ValidationError,
)
from pyflame_rt.partition import GraphPartitioner, PartitionConfig, PartitionedExecutor
from tests.unit.partition.zoo import MODELS


@pytest.fixture
def mlp():
    graph, feed = MODELS["mlp"]()
    return graph, feed["x"], InferenceSession(graph).run(None, feed)[0]


def pipeline(graph, parts=2, micro=2):
    return GraphPartitioner(PartitionConfig(batch_size=6, micro_batch_size=micro)).partition_pipeline(graph, parts)


def test_containers_and_elements_come_back_as_they_went_in(mlp):
    graph, x, want = mlp
    with PartitionedExecutor(pipeline(graph)) as executor:
        for given, kind in (({"x": x}, dict), ([x], list), ((x,), tuple), (x, np.ndarray)):
            got = executor.execute(given)
            assert type(got) is kind
            values = [got] if kind is np.ndarray else list(got.values()) if kind is dict else list(got)
            np.testing.assert_allclose(values[0], want, atol=1e-5)
        tensor = executor.execute({"x": Tensor(x)})["y0"]
        assert isinstance(tensor, Tensor)
        np.testing.assert_allclose(tensor.numpy(), want, atol=1e-5)
    graph, feed = MODELS["two_outputs"]()
    with PartitionedExecutor(pipeline(graph)) as executor:
        assert list(executor.execute(feed, ["y1"])) == ["y1"]
        assert len(executor.execute(feed["x"])) == 2


def test_wrong_feeds(mlp):
    graph, x, _ = mlp
    with PartitionedExecutor(pipeline(graph)) as executor:
        with pytest.raises(InputError, match="'x' is missing"):
            executor.execute({})
        with pytest.raises(InputError, match="1 inputs"):
            executor.execute([x, x])
        with pytest.raises(InputError, match="no output 'nothing'"):
            executor.execute({"x": x}, ["nothing"])
        with pytest.raises(ShapeMismatchError):
            executor.execute({"x": x[:, :3]})
    graph, feed = MODELS["two_inputs"]()
    with PartitionedExecutor(pipeline(graph)) as executor, pytest.raises(ShapeMismatchError, match="'z' has 2"):
        executor.execute({"x": feed["x"], "z": feed["z"][:2]})


def test_requests_in_the_background(mlp):
    graph, x, want = mlp
    with PartitionedExecutor(pipeline(graph)) as executor:
        futures = [executor.execute_async({"x": x}) for _ in range(20)]
        for future in futures:
            np.testing.assert_allclose(future.result(60)["y0"], want, atol=1e-5)

        async def main():
            return await executor.execute_async({"x": x})

        np.testing.assert_allclose(asyncio.run(main())["y0"], want, atol=1e-5)
        with pytest.raises(InputError):
            executor.execute_async({}).result(60)
    with pytest.raises(SessionClosedError):
        executor.execute({"x": x})
    with pytest.raises(SessionClosedError):
        executor.execute_async({"x": x})


def test_defaults_of_inputs_can_be_fed():
    graph, feed = MODELS["default_input"]()
    feed["scale"] = np.full(8, 3.0, np.float32)
    (want,) = InferenceSession(graph).run(None, feed)
    with PartitionedExecutor(GraphPartitioner().partition_model_parallel(graph, 2)) as executor:
        np.testing.assert_allclose(executor.execute(feed)["y0"], want, atol=1e-5)


def test_inputs_and_constants_as_outputs():
    graph = Graph("through")
    graph.add_input("x", ["N", 2])
    graph.add_initializer("c", np.ones(3, np.float32))
    graph.add_node("a", "Neg", ["x"], ["y"])
    graph.add_node("b", "Exp", ["y"], ["z"])
    for name in ("x", "c", "z", "y"):
        graph.add_output(name, None)
    x = np.ones((4, 2), np.float32)
    for plan in (pipeline(graph), GraphPartitioner().partition_model_parallel(graph, 2)):
        with PartitionedExecutor(plan) as executor:
            got = executor.execute({"x": x})
        for ours, theirs in zip(got.values(), InferenceSession(graph).run(None, {"x": x}), strict=True):
            np.testing.assert_array_equal(ours, theirs)
        assert not np.shares_memory(got["x"], x)


@pytest.fixture
def meeting():
    """Two stages that wait for each other: the first, in its second call, for the second in its first."""
    begun, calls = threading.Event(), []

    def first(inputs, context):
        calls.append(1)
        if len(calls) == 2 and not begun.wait(30):
            raise RuntimeError("nothing overlaps")
        return [inputs[0].numpy() + 1]

    def second(inputs, context):
        begun.set()
        return [inputs[0].numpy() * 2]

    registry = OperatorRegistry.instance()
    registry.register_op("MeetFirst", first)
    registry.register_op("MeetSecond", second)
    graph = Graph("meeting")
    graph.add_input("x", ["N", 2])
    graph.add_node("a", "MeetFirst", ["x"], ["y"])
    graph.add_node("b", "MeetSecond", ["y"], ["z"])
    graph.add_output("z", ["N", 2])
    yield graph
    registry.unregister_op("MeetFirst")
    registry.unregister_op("MeetSecond")


def test_requests_overlap_in_the_stages(meeting):
    plan = GraphPartitioner().partition_pipeline(meeting, 2)
    assert "only requests overlap" in plan.notes[0]
    x = np.ones((1, 2), np.float32)
    with PartitionedExecutor(plan) as executor:
        for future in [executor.execute_async({"x": x}) for _ in range(2)]:
            np.testing.assert_array_equal(future.result(60)["z"], [[4, 4]])


def test_micro_batches_overlap(mlp):
    """The first stage, with its second micro-batch, waits for the second stage to begin with the first one."""
    graph, x, want = mlp
    begun, calls = threading.Event(), []
    with PartitionedExecutor(pipeline(graph, micro=1)) as executor:
        first, second = (executor.worker(label) for label in executor.devices)

        def run_first(*args, run=first._run):
            calls.append("first")
            assert len(calls) < 2 or begun.wait(30), "nothing overlaps"
            return run(*args)

        def run_second(*args, run=second._run):
            begun.set()
            return run(*args)

        first._run, second._run = run_first, run_second
        np.testing.assert_allclose(executor.execute({"x": x})["y0"], want, atol=1e-5)
    assert len(calls) == 6


def test_what_goes_from_device_to_device_is_counted(mlp):
    graph, x, _ = mlp
    plan = GraphPartitioner(PartitionConfig(batch_size=6)).partition_model_parallel(graph, 3)
    with PartitionedExecutor(plan) as executor:
        executor.execute({"x": x})
        executor.execute({"x": x})
        assert sum(executor.transfers.values()) == 2 * plan.total_comm_bytes
        assert sum(executor.messages.values()) == 2 * len(plan.communications)
        assert set(executor.transfers) == {("cpu:0", "cpu:1"), ("cpu:1", "cpu:2")}


def test_replicas_take_turns_where_rows_are_mixed():
    graph, feed = MODELS["mixes_rows"]()
    plan = GraphPartitioner().partition_data_parallel(graph, 2)
    assert "goes over the axis of the rows" in plan.notes[0]
    (want,) = InferenceSession(graph).run(None, feed)
    ran = []
    with PartitionedExecutor(plan) as executor:
        for label in executor.devices:
            worker = executor.worker(label)
            worker._run = lambda *args, label=label, run=worker._run: (ran.append(label), run(*args))[1]
        for _ in range(4):
            np.testing.assert_array_equal(executor.execute(feed)["y0"], want)
    assert ran == ["cpu:0", "cpu:1"] * 2


def test_a_failing_kernel_is_told_and_the_executor_goes_on(mlp):
    graph, x, want = mlp
    plan = pipeline(graph)
    with PartitionedExecutor(plan) as executor:
        worker = executor.worker("cpu:1")
        run = worker._run
        worker._run = lambda *args: 1 / 0
        with pytest.raises(ZeroDivisionError):
            executor.execute({"x": x})
        worker._run = run
        np.testing.assert_allclose(executor.execute({"x": x})["y0"], want, atol=1e-5)


def test_lost_devices(mlp):
    graph, x, want = mlp
    with PartitionedExecutor(pipeline(graph), "processes", on_device_loss="replay") as executor:
        np.testing.assert_allclose(executor.execute({"x": x})["y0"], want, atol=1e-5)
        os.kill(executor.worker("cpu:1").pid, signal.SIGKILL)
        np.testing.assert_allclose(executor.execute({"x": x}, timeout=60)["y0"], want, atol=1e-5)
        assert (executor.lost, executor.devices) == (["cpu:1"], ["cpu:0"])
        os.kill(executor.worker("cpu:0").pid, signal.SIGKILL)
        with pytest.raises(DeviceLostError, match="'cpu:0' was lost"):
            executor.execute({"x": x}, timeout=60)


def test_a_lost_device_is_an_error_unless_replay_is_asked_for(mlp):
    graph, x, _ = mlp
    with PartitionedExecutor(pipeline(graph), "processes") as executor:
        os.kill(executor.worker("cpu:0").pid, signal.SIGSTOP)
        with pytest.raises(RunTimeoutError):
            executor.execute({"x": x}, timeout=0.2)
        os.kill(executor.worker("cpu:0").pid, signal.SIGKILL)
        with pytest.raises(DeviceLostError, match="'cpu:0' was lost") as caught:
            executor.execute({"x": x}, timeout=60)
        assert caught.value.device == "cpu:0"


def test_no_shared_memory_is_left(mlp):
    graph, _, _ = mlp
    x = np.ones((4000, 16), np.float32)
    executor = PartitionedExecutor(pipeline(graph, micro=500), "processes")
    token = executor._transport._token
    executor.execute({"x": x})
    executor.execute({"x": x})
    if os.path.isdir("/dev/shm"):
        held = [name for name in os.listdir("/dev/shm") if name.startswith(token)]
        assert 0 < len(held) < 60  # blocks are used again
    executor.close()
    executor.close()
    if os.path.isdir("/dev/shm"):
        assert not [name for name in os.listdir("/dev/shm") if name.startswith(token)]


def test_wrong_uses(mlp, monkeypatch):
    graph, _, _ = mlp
    plan = pipeline(graph)
    with pytest.raises(InputError, match="threads, processes, ray"):
        PartitionedExecutor(plan, "cluster")
    with pytest.raises(InputError, match="error, replay"):
        PartitionedExecutor(plan, on_device_loss="ignore")
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"pyflame\[ray\]"):
        PartitionedExecutor(plan, "ray")
    del plan.partitions[0]
    with pytest.raises(ValidationError, match="which no part before it makes"):
        PartitionedExecutor(plan)
