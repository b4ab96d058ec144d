"""What the automatic partition chooses against every strategy measured, and what was predicted of each.

Run it with ``python benchmarks/partitions.py resnet18.onnx minilm.onnx``. Each model has its feed beside it
(``resnet18.npz``). A device is one thread; requests come one after the other, so that what counts is how long each
takes. ``--rows 8`` repeats feeds of models that leave their number of rows open.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from pyflame_rt import Graph, InferenceSession, SessionOptions
from pyflame_rt.graph.errors import InputError
from pyflame_rt.partition import GraphPartitioner, PartitionConfig, PartitionedExecutor, PartitionPlan

ROUNDS, SECONDS, ENOUGH = 5, 0.25, 1.10
OPTIONS = SessionOptions(num_threads=1, quick_start=False)


def feed_of(session: InferenceSession, path: Path, rows: int) -> dict[str, np.ndarray]:
    """The stored feed, as many times as rows are asked for where the model takes any number."""
    data = np.load(path.with_suffix(".npz"))
    feed = {}
    for info in session.get_inputs():
        value = data[f"in/{info.name}"]
        is_open = bool(info.shape) and not isinstance(info.shape[0], int)
        feed[info.name] = np.concatenate([value] * rows) if is_open and rows > 1 else value
    return feed


def plans_of(partitioner: GraphPartitioner, graph: Graph) -> dict[str, PartitionPlan]:
    """A plan for each strategy that can be made."""
    made = {}
    for name, make in (
        ("single", lambda: partitioner.partition_model_parallel(graph, 1)),
        ("data", lambda: partitioner.partition_data_parallel(graph, 2)),
        ("model", lambda: partitioner.partition_model_parallel(graph, 2)),
        ("pipeline", lambda: partitioner.partition_pipeline(graph, 2)),
        ("tensor", lambda: partitioner.partition_tensor_parallel(graph, 2)),
    ):
        try:
            made[name] = make()
        except InputError as error:
            print(f"  {name}: {error}")
    return made


def measured(plans: dict[str, PartitionPlan], feed: dict[str, np.ndarray]) -> dict[str, float]:
    """The least milliseconds of a request by each plan, in turn."""
    executors = {name: PartitionedExecutor(plan, options=OPTIONS) for name, plan in plans.items()}
    found = dict.fromkeys(plans, np.inf)
    for executor in executors.values():
        executor.execute(feed)
    for _ in range(ROUNDS):
        for name, executor in executors.items():
            end = time.perf_counter() + SECONDS / ROUNDS
            while True:
                start = time.perf_counter()
                executor.execute(feed)
                now = time.perf_counter()
                found[name] = min(found[name], (now - start) * 1e3)
                if now > end:
                    break
    for executor in executors.values():
        executor.close()
    return found


def judge(path: Path, rows: int) -> tuple[bool, list[float]]:
    """Print a model's line; whether the choice is within a tenth of the best, and predictions over measurements."""
    session = InferenceSession(path, OPTIONS)
    feed, graph = feed_of(session, path, rows), session.graph()
    session.close()
    batch = max((np.shape(v)[0] for v in feed.values() if np.ndim(v)), default=1)
    shapes = {info.name: info.shape for info in graph.inputs}
    sizes = {
        str(d): n
        for name, value in feed.items()
        for d, n in zip(shapes[name] or (), value.shape, strict=True)
        if not isinstance(d, int) and str(d).isidentifier()
    }
    partitioner = GraphPartitioner(PartitionConfig(batch_size=batch, sizes=sizes))
    partitioner.cost_model.calibrate(graph, feed, batch_size=batch, runs=5)
    partitioner.cost_model.calibrate_transfers("threads")
    plans = plans_of(partitioner, graph)
    choice = partitioner.partition(graph, 2)
    chosen = "single" if len(choice.partitions) == 1 else choice.strategy.value.split("_")[0]
    times = measured(plans, feed)
    best = min(times, key=times.__getitem__)
    ratios = [plans[n].total_latency_us / 1e3 / times[n] for n in plans]
    cells = ", ".join(f"{n} {times[n]:.2f} ({r:.2f})" for n, r in zip(plans, ratios, strict=True))
    good = times[chosen] <= ENOUGH * times[best]
    over = times[chosen] / times[best]
    print(f"{path.stem} x{batch}: chose {chosen}, {over:.2f} of the best ({best}); ms (predicted/measured): {cells}")
    return good, ratios


def main() -> None:
    """Print a line for each model, and how many choices were good."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--rows", type=int, default=8)
    given = parser.parse_args()
    found = [judge(path, given.rows) for path in given.models]
    ratios = np.array([r for _, each in found for r in each])
    print(
        f"{sum(good for good, _ in found)} of {len(found)} choices within {ENOUGH - 1:.0%} of the best; "
        f"{np.mean(np.abs(ratios - 1) <= 0.25):.0%} of {len(ratios)} predictions within 25%"
    )


if __name__ == "__main__":
    main()
