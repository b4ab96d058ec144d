"""An encoder asked for 20 lengths in random order, 10 times each: time in all, first uses included.

usage: python benchmarks/lengths.py [--rounds 3] [--threads 2] [--layers 12] [--size 384]

Each runtime has a process of its own, rounds are interleaved, the figure is the least of the rounds. The model is
loaded before, and has answered once for a length that is not among the 20. What a new length costs beyond a run of one
that is known is printed too.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from runtimes import installed

if TYPE_CHECKING:
    from collections.abc import Callable

LENGTHS, USES, VOCABULARY = 20, 10, 2000
PEERS = ("onnxruntime", "openvino")


def build(path: Path, layers: int, size: int) -> None:
    """An encoder for sequences of any length."""
    import pyflame as pf

    pf.manual_seed(0)
    config = pf.models.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=size,
        num_hidden_layers=layers,
        num_attention_heads=size // 32,
        intermediate_size=4 * size,
    )
    ids = pf.from_numpy(np.ones((1, 16), np.int64))
    model = pf.models.BertModel(config).eval()
    pf.export(model, ids, path, input_names=["ids"], dynamic_axes={"ids": {1: "length"}})


def runner(runtime: str, path: Path, threads: int) -> Callable[[np.ndarray[Any, Any]], Any]:
    """A function that runs the model for some numbers of tokens."""
    if runtime == "openvino":
        import openvino

        hints = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads}
        request = openvino.Core().compile_model(str(path), "CPU", hints).create_infer_request()
        return lambda ids: request.infer({"ids": ids}, share_inputs=True, share_outputs=True)
    module: Any
    if runtime == "onnxruntime":
        import onnxruntime as module
    else:
        import pyflame_rt.ort as module
    options = module.SessionOptions()
    options.intra_op_num_threads = threads
    session = module.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda ids: session.run(None, {"ids": ids})


def measure(runtime: str, path: Path, threads: int) -> dict[str, float]:
    """Seconds in all, and what a new length costs, in this process."""
    run = runner(runtime, path, threads)
    rng = np.random.default_rng(1)
    lengths = rng.choice(np.arange(17, 257), LENGTHS, replace=False)
    order = rng.permutation(np.repeat(lengths, USES))
    texts = {int(n): rng.integers(0, VOCABULARY, (1, n)) for n in lengths}
    run(rng.integers(0, VOCABULARY, (1, 16)))
    times: dict[int, list[float]] = {}
    begun = time.perf_counter()
    for n in order.tolist():
        start = time.perf_counter()
        run(texts[n])
        times.setdefault(n, []).append(time.perf_counter() - start)
    total = time.perf_counter() - begun
    return {"total": total, "new": statistics.median(t[0] - statistics.median(t[1:]) for t in times.values())}


def child(runtime: str, path: Path, threads: int) -> dict[str, float]:
    """The same in a process of its own."""
    command = [sys.executable, __file__, "--child", runtime, "--model", str(path), "--threads", str(threads)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--size", type=int, default=384)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--model", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(measure(given.child, given.model, given.threads)))
        return
    names = [n for n in ("pyflame", *PEERS) if n in installed()]
    found: dict[str, list[dict[str, float]]] = {n: [] for n in names}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "encoder.onnx"
        build(path, given.layers, given.size)
        for _ in range(given.rounds):
            for name in names:
                found[name].append(child(name, path, given.threads))
    best = {name: min(rounds, key=lambda r: r["total"]) for name, rounds in found.items()}
    for name, row in best.items():
        print(f"{name:12s} {row['total']:7.2f} s in all, {row['new'] * 1e3:6.1f} ms more for a new length")
    peers = [best[n]["total"] for n in PEERS if n in best]
    if peers:
        print(f"ratio to the better peer: {best['pyflame']['total'] / min(peers):.2f}")


if __name__ == "__main__":
    main()
