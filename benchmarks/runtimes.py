"""How each runtime loads and runs a model. This file is also the program that measures one of them, in its process."""

from __future__ import annotations

import importlib
import importlib.util
import json
import resource
import statistics
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

# Name -> the module that must be there.
RUNTIMES = {
    "pyflame": "pyflame_rt",
    "onnxruntime": "onnxruntime",
    "openvino": "openvino",
    "torch": "torch",
    "torch.compile": "torch",
}
SHARE = 0.02  # of the largest element: outputs that differ by more are reported


def installed() -> list[str]:
    """Runtimes that can be measured here."""
    return [name for name, module in RUNTIMES.items() if importlib.util.find_spec(module)]


def feeds_of(path: Path, wanted: list[tuple[str, list[Any], str]]) -> dict[str, np.ndarray]:
    """Inputs from the .npz beside the model, or random ones for the declared shapes."""
    beside = path.with_suffix(".npz")
    if beside.exists():
        data = np.load(beside)
        return {n: data[f"in/{n}"] if f"in/{n}" in data.files else data[n] for n, _, _ in wanted}
    rng = np.random.default_rng(0)
    feeds = {}
    for name, shape, kind in wanted:
        sizes = [d if isinstance(d, int) and d > 0 else 1 for d in shape]
        if "float" in kind or kind == "f32":
            feeds[name] = rng.standard_normal(sizes).astype(np.float32)
        else:
            feeds[name] = np.zeros(sizes, {"int64": np.int64, "i64": np.int64, "int32": np.int32}.get(kind, np.bool_))
    return feeds


def _session(session: Any, path: Path) -> Callable[[], list[Any]]:
    wanted = [(i.name, list(i.shape or []), i.type.removeprefix("tensor(").rstrip(")")) for i in session.get_inputs()]
    feed = feeds_of(path, wanted)
    return lambda: session.run(None, feed)


def prepare_pyflame(path: Path, threads: int) -> Callable[[], list[Any]]:
    """Our own."""
    import pyflame_rt.ort as runtime

    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    session = runtime.InferenceSession(str(path), options)
    run = _session(session, path)
    run.session = session  # type: ignore[attr-defined] - asked for the model's arithmetic afterwards
    return run


def prepare_onnxruntime(path: Path, threads: int) -> Callable[[], list[Any]]:
    """ONNX Runtime with its CPU provider."""
    import onnxruntime as runtime

    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    return _session(runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"]), path)


def prepare_openvino(path: Path, threads: int) -> Callable[[], list[Any]]:
    """OpenVINO, told to keep float32 and to aim at latency."""
    import openvino as ov

    config = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads}
    compiled = ov.Core().compile_model(str(path), "CPU", config)
    wanted = [
        (
            next(iter(i.names)),
            [int(d.get_length()) if d.is_static else -1 for d in i.partial_shape],
            i.element_type.get_type_name(),
        )
        for i in compiled.inputs
    ]
    feed, request = feeds_of(path, wanted), compiled.create_infer_request()

    def run() -> list[Any]:
        results = request.infer(feed, share_inputs=True, share_outputs=True)
        return [results[out] for out in compiled.outputs]

    return run


def prepare_torch(path: Path, threads: int, *, compiled: bool = False) -> Callable[[], list[Any]]:
    """Torch on the model's twin."""
    import torch
    from twin import Twin

    torch.set_num_threads(threads)
    twin = Twin(path)
    feed = feeds_of(path, [(name, [1], "float") for name in twin.inputs])
    tensors = [torch.from_numpy(feed[name]) for name in twin.inputs]
    call = torch.compile(twin) if compiled else twin

    def run() -> list[Any]:
        with torch.inference_mode():
            return [t.numpy() for t in call(*tensors)]

    return run


def prepare(runtime: str, path: Path, threads: int) -> Callable[[], list[Any]]:
    """A function that runs a model once."""
    match runtime:
        case "pyflame":
            return prepare_pyflame(path, threads)
        case "onnxruntime":
            return prepare_onnxruntime(path, threads)
        case "openvino":
            return prepare_openvino(path, threads)
        case "torch":
            return prepare_torch(path, threads)
        case "torch.compile":
            return prepare_torch(path, threads, compiled=True)
        case _:
            raise SystemExit(f"{runtime!r} is not one of {', '.join(RUNTIMES)}")


def peak_mb() -> float:
    """Most memory this process has held since :func:`forget_peak`, or so far where that cannot be told."""
    status = Path("/proc/self/status")
    if status.exists():
        fields = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
        return int(fields["VmHWM"].split()[0]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 1024)


def forget_peak() -> None:
    """Begin to count anew."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def share_of_peak(session: Any, seconds: float, threads: int) -> dict[str, float]:
    """Arithmetic of one run, and which part of the machine's measured peak it reaches."""
    from pyflame_rt.backends.cpu.run.machine_peaks import machine_peaks

    flops, peaks = sum(row.flops for row in session.explain().rows), machine_peaks(threads)
    return {
        "flops": flops,
        "of_peak": flops / seconds / 1e9 / peaks["gflops"],
        **{f"peak_{k}": v for k, v in peaks.items()},
    }


def measure(runtime: str, path: Path, threads: int, seconds: float) -> dict[str, Any]:
    """Load, run once, then run for so many seconds."""
    importlib.import_module(RUNTIMES[runtime])
    forget_peak()
    held = peak_mb()
    start = time.perf_counter()
    run = prepare(runtime, path, threads)
    outputs = [np.array(out, copy=True) for out in run()]
    first = time.perf_counter() - start
    times: list[float] = []
    while sum(times) < seconds or len(times) < 5:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    sums = [[float(np.abs(o.astype(np.float64)).sum()), float(np.abs(o).max(initial=0))] for o in outputs]
    session = getattr(run, "session", None)
    return {
        **({} if session is None else share_of_peak(session, statistics.median(times), threads)),
        "median": statistics.median(times),
        "first": first,
        "peak_mb": peak_mb() - held,
        "runs": len(times),
        "sums": sums,
    }


def main() -> None:
    """``runtimes.py RUNTIME MODEL THREADS SECONDS``: prints a line of JSON."""
    runtime, path, threads, seconds = sys.argv[1:]
    print(json.dumps(measure(runtime, Path(path), int(threads), float(seconds))))


if __name__ == "__main__":
    main()
