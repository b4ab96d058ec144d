"""Pipelines over two processes against one process of one thread, with what was predicted.

Run it with ``python benchmarks/pipeline.py resnet50.onnx gpt2_prefill_64.onnx``. Every model answers a stream of
requests: the pipeline has the next request in its first stage while the second works on the one before.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

from pyflame_rt import InferenceSession, SessionOptions
from pyflame_rt.partition import GraphPartitioner, PartitionConfig, PartitionedExecutor

REQUESTS, ROUNDS = 12, 3


def main() -> None:
    """Print a line for each model."""
    options = SessionOptions(num_threads=1)
    for path in map(Path, sys.argv[1:]):
        data = np.load(path.with_suffix(".npz"))
        session = InferenceSession(path, options)
        feed = {info.name: data[f"in/{info.name}"] for info in session.get_inputs()}
        graph = session.graph()
        partitioner = GraphPartitioner(PartitionConfig(batch_size=1))
        partitioner.cost_model.calibrate(graph, feed, runs=3)
        partitioner.cost_model.calibrate_transfers("processes")
        plan = partitioner.partition_pipeline(graph, 2)
        stages = [part.compute_us + partitioner.cost_model.part_us for part in plan.partitions]
        predicted = (sum(stages) + (REQUESTS - 1) * max(stages)) / 1e3
        with PartitionedExecutor(plan, "processes", options=options) as executor:
            whole, piped = np.inf, np.inf
            wanted = session.run(None, feed)
            got = executor.execute(feed)
            names = [info.name for info in session.get_outputs()]
            apart = max(float(np.abs(np.asarray(got[n]) - w).max()) for n, w in zip(names, wanted, strict=True))
            for _ in range(ROUNDS):
                start = time.perf_counter()
                for _ in range(REQUESTS):
                    session.run(None, feed)
                whole = min(whole, time.perf_counter() - start)
                start = time.perf_counter()
                for future in [executor.execute_async(feed) for _ in range(REQUESTS)]:
                    future.result()
                piped = min(piped, time.perf_counter() - start)
        print(
            f"{path.stem}: {REQUESTS} requests {whole * 1e3:.0f} ms in one process, {piped * 1e3:.0f} ms in two "
            f"({whole / piped:.2f}x), predicted {predicted:.0f} ms ({predicted / (piped * 1e3):.2f} of it); "
            f"largest difference {apart:.1e}",
            flush=True,
        )


if __name__ == "__main__":
    main()
