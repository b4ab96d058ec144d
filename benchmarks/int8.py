"""Quantized files on this runtime and its peers, and over our own float32.

usage: python benchmarks/int8.py [--filter 'resnet|minilm'] [--threads 2] [--rounds 15] [--quick]

Files are made by onnxruntime's own quantizer from the models built here; 4-bit products are single nodes of the shapes
that decoding has, for one row and for many; decoders have weights of 4 and 8 bits by our own quantizer. All runtimes of
a file take turns in one process, run by run; figures are medians in milliseconds. The last column is ours over the
better peer; weights of 16 bits stand beside our float32 alone. Below stand the geometric mean and which bounds hold;
all of it takes some five minutes once the files are made. `--check` compares outputs with onnxruntime's, and these with
what it gives without its own fusions: where data is rounded to bytes, a last bit of a float decides a step here and
there, and layers of random weights make more of it, in any two programs alike.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import math
import os
import re
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from run import processor
from runtimes import feeds_of, installed, prepare
from zoo import make

if TYPE_CHECKING:
    from collections.abc import Callable

FOLDER = Path("build/int8")
TURN, PAUSE = 5, 0.05
TURN_SECONDS = 0.02  # that a turn takes at least: small products would pause longer than they run
LEAST = 0.25  # seconds that each runtime of a file gets at least
MOST = 9.0  # seconds for a file, if every runtime had FEW runs
FEW = 5
# Name of a file: the float32 model it is made from, and how.
FILES = {
    "resnet18_qdq": ("resnet18", "qdq"),
    "resnet18_qop": ("resnet18", "qop"),
    "resnet50_qdq": ("resnet50", "qdq"),
    "resnet50_qop": ("resnet50", "qop"),
    "mobilenet_v2_qdq": ("mobilenet_v2", "qdq"),
    "mobilenet_v2_qop": ("mobilenet_v2", "qop"),
    "minilm_dynamic": ("minilm_128", "dynamic"),
    "bert_qdq": ("bert_base_128", "qdq"),
    "lstm_dynamic": ("lstm_bi2x256", "dynamic"),
}
# Rows, depth, columns, block and bits of single MatMulNBits: gpt2's and llama's layers, mostly for one token.
BLOCKS = {
    "nbits_gpt2": (1, 768, 3072, 32, 4),
    "nbits_llama": (1, 2048, 5632, 32, 4),
    "nbits_llama_128": (1, 2048, 5632, 128, 4),
    "nbits8_gpt2": (1, 768, 3072, 32, 8),
    "nbits8_llama": (1, 2048, 5632, 32, 8),
    "nbits_prompt": (64, 2048, 5632, 32, 4),
    "nbits8_prompt": (64, 2048, 5632, 32, 8),
}
# Decoders of one token with weights of few bits in blocks of 32.
DECODERS = {
    "gpt2_decode_int4": ("gpt2_decode_64", 4),
    "gpt2_decode_int8": ("gpt2_decode_64", 8),
    "llama_decode_int4": ("llama_decode_64", 4),
    "llama_decode_int8": ("llama_decode_64", 8),
}
# Models with weights of 16 bits, which no peer is asked for: what matters is our float32.
HALVES = {
    "resnet50_fp16": ("resnet50", "fp16"),
    "mobilenet_v2_bf16": ("mobilenet_v2", "bfloat16"),
    "minilm_fp16": ("minilm_128", "fp16"),
    "gpt2_decode_fp16": ("gpt2_decode_64", "fp16"),
    "llama_decode_bf16": ("llama_decode_64", "bfloat16"),
}
# What is asked of the files that people have: ours over the better peer, of all of them and of each.
ASKED = re.compile(r"(resnet\d+|mobilenet_v2)_q|minilm_dynamic|bert_qdq|nbits_")
MEAN, WORST = 0.95, 1.10
OPERATORS = 1.05  # files of integer operators over the same in QDQ form
# How many times quicker than our float32 a row must be; halves may take a little longer.
QUICKER = {
    r"resnet50_qdq": 1.35,
    r"minilm_dynamic": 1.4,
    r".*_decode_int4": 2.6,
    r".*_decode_int8": 1.8,
    r".*_(fp16|bf16)": 1 / 1.05,
}


class Feeder:
    """Calibration data: the inputs kept beside a model, with some noise."""

    def __init__(self, path: Path, count: int = 4) -> None:
        data, rng = np.load(path.with_suffix(".npz")), np.random.default_rng(0)
        feeds = {key.removeprefix("in/"): data[key] for key in data.files if key.startswith("in/")}
        self.rows = iter([{n: _varied(a, rng) for n, a in feeds.items()} for _ in range(count)])

    def get_next(self) -> dict[str, np.ndarray] | None:
        """As onnxruntime's calibration asks."""
        return next(self.rows, None)


def _varied(array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    if array.dtype != np.float32:
        return array
    return array + 0.1 * rng.standard_normal(array.shape).astype(np.float32)


def quantized(name: str, source: Path) -> Path:
    """The quantized file, made once."""
    from onnxruntime import quantization as tools

    path, how = FOLDER / f"{name}.onnx", FILES[name][1]
    if path.exists():
        return path
    if how == "dynamic":
        tools.quantize_dynamic(str(source), str(path), weight_type=tools.QuantType.QInt8, per_channel=True)
    else:
        form = tools.QuantFormat.QDQ if how == "qdq" else tools.QuantFormat.QOperator
        feeder: Any = Feeder(source)
        tools.quantize_static(
            str(source), str(path), feeder, quant_format=form, per_channel=True,
            activation_type=tools.QuantType.QUInt8, weight_type=tools.QuantType.QInt8,
        )  # fmt: skip
    path.with_suffix(".npz").write_bytes(source.with_suffix(".npz").read_bytes())
    return path


def block_files(name: str) -> tuple[Path, Path]:
    """A product with weights of few bits, and the same in float32."""
    rows, depth, columns, block, bits = BLOCKS[name]
    path, plain = FOLDER / f"{name}.onnx", FOLDER / f"{name}_float32.onnx"
    if path.exists() and plain.exists():
        return path, plain
    rng, count = np.random.default_rng(0), -(-depth // block)
    packed = rng.integers(0, 256, (columns, count, block * bits // 8), np.uint8)
    scales = (rng.random((columns, count)) * 0.01).astype(np.float32)
    weights = {"w": packed, "s": scales.reshape(-1)}
    attributes = {"K": depth, "N": columns, "bits": bits, "block_size": block, "accuracy_level": 4}
    node = helper.make_node("MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", **attributes)
    _save(path, [node], weights, (rows, depth))
    apart = np.stack([packed & 15, packed >> 4], -1) if bits == 4 else packed
    numbers = apart.reshape(columns, count, block).astype(np.float32) - (1 << bits - 1)
    matrix = (numbers * scales[:, :, None]).reshape(columns, -1)[:, :depth].T
    _save(plain, [helper.make_node("MatMul", ["x", "w"], ["y"])], {"w": np.ascontiguousarray(matrix)}, (rows, depth))
    return path, plain


def half_file(name: str, zoo: Path) -> tuple[Path, Path]:
    """A model with weights of 16 bits, made by our own quantizer, and the model."""
    import pyflame_rt
    from pyflame_rt.quantization import QuantConfig, Quantizer

    (source,), path = make(zoo, f"^{HALVES[name][0]}$"), FOLDER / f"{name}.pfm"
    if not path.exists():
        config = getattr(QuantConfig, HALVES[name][1])()
        made = Quantizer(config).apply(pyflame_rt.InferenceSession(str(source)).graph())
        pyflame_rt.save_model(made.quantized_graph, path)
        path.with_suffix(".npz").write_bytes(source.with_suffix(".npz").read_bytes())
    return path, source


def decoder_file(name: str, zoo: Path) -> tuple[Path, Path]:
    """A decoder with weights of few bits, made by our own quantizer, and the decoder."""
    import pyflame_rt
    from pyflame_rt.exporters import export_onnx
    from pyflame_rt.quantization import quantize_weights

    (model, bits), path = DECODERS[name], FOLDER / f"{name}.onnx"
    (source,) = make(zoo, f"^{model}$")
    if not path.exists():
        graph = pyflame_rt.InferenceSession(str(source)).graph()
        export_onnx(quantize_weights(graph, bits, symmetric=True).quantized_graph, path)
        path.with_suffix(".npz").write_bytes(source.with_suffix(".npz").read_bytes())
    return path, source


def _save(path: Path, nodes: list[onnx.NodeProto], weights: dict[str, np.ndarray], shape: tuple[int, ...]) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, list(shape))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    constants = [numpy_helper.from_array(a, n) for n, a in weights.items()]
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(
        helper.make_model(helper.make_graph(nodes, "block", [x], [y], constants), opset_imports=opsets, ir_version=9),
        path,
    )


def files_of(name: str, zoo: Path) -> tuple[Path, Path]:
    """The quantized file and its float32 twin."""
    if name in BLOCKS:
        return block_files(name)
    if name in HALVES:
        return half_file(name, zoo)
    if name in DECODERS:
        return decoder_file(name, zoo)
    (source,) = make(zoo, f"^{FILES[name][0]}$")
    return quantized(name, source), source


def turns(ways: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Median seconds of each way; they take turns, so that what disturbs one disturbs all.

    A turn is one run that does not count, while the threads of the one before still spin, and a few that do.
    """
    times: dict[str, list[float]] = {name: [] for name in ways}
    started = time.perf_counter()
    while min(len(t) for t in times.values()) < rounds or min(sum(t) for t in times.values()) < LEAST:
        if time.perf_counter() - started > MOST and min(len(t) for t in times.values()) >= FEW:
            break
        for name, run in ways.items():
            time.sleep(PAUSE)
            run()
            began = time.perf_counter()
            for count in itertools.count():
                start = time.perf_counter()
                if count >= TURN and start - began > TURN_SECONDS:
                    break
                run()
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(t) for name, t in times.items()}


def ways_of(path: Path, plain: Path, threads: int) -> dict[str, Callable[[], list[Any]]]:
    """Ours, ours in float32, and the peers that load the file."""
    from pyflame_rt.backends.cpu.jit.compiler import settle

    ways = {"ours": prepare("pyflame", path, threads), "ours f32": prepare("pyflame", plain, threads)}
    for peer in ("onnxruntime", "openvino"):
        if peer not in installed() or path.suffix != ".onnx":
            continue
        try:
            ways[peer] = prepare(peer, path, threads)
            ways[peer]()
        except Exception as error:  # noqa: BLE001 - a peer that cannot read a file is left out, and said so
            ways.pop(peer, None)
            print(f"  {peer}: {str(error).splitlines()[0][:100]}")
    ways["ours"](), ways["ours f32"]()
    settle()
    return ways


def compare(ways: dict[str, Callable[[], list[Any]]], path: Path) -> str:
    """How far our outputs are from onnxruntime's, over the largest element, and it is from itself without fusions."""
    if "onnxruntime" not in ways:
        return ""
    theirs = ways["onnxruntime"]()
    ours, plain = _apart(ways["ours"](), theirs), _apart(_unfused(path), theirs)
    return f"  differs from onnxruntime by {ours:.2g} of the largest, which does by {plain:.2g} without its fusions"


def _apart(found: list[Any], wanted: list[Any]) -> float:
    pairs = zip(found, wanted, strict=True)
    return max(float(np.abs(np.subtract(a, b, dtype=np.float64)).max() / (np.abs(b).max() or 1)) for a, b in pairs)


def _unfused(path: Path) -> list[Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    wanted = [(i.name, list(i.shape or []), i.type.removeprefix("tensor(").rstrip(")")) for i in session.get_inputs()]
    return session.run(None, feeds_of(path, wanted))


def instruction_set() -> str:
    """What generated integer products use here."""
    from pyflame_rt.backends.cpu.jit.target import host

    machine = host()
    words = [f for f in ("avx512vnni", "avxvnni", "avx512bw", "avx2") if f"+{f}" in machine.features.split(",")]
    return f"{machine.cpu}, vectors of {8 * machine.vector_bytes} bits, {', '.join(words)}"


def verdicts(rows: dict[str, dict[str, float]]) -> list[str]:
    """Which bounds hold of the medians measured, a line each."""
    found = []

    def judge(what: str, figure: float, bound: float, *, least: bool = False) -> None:
        holds = figure >= bound if least else figure <= bound
        word = "at least" if least else "at most"
        found.append(f"{'holds' if holds else 'FAILS'}  {what}: {figure:.2f}, {word} {bound:.2f}")

    asked = {n: r for n in rows if ASKED.match(n) and (r := over_peers(rows[n])) == r}
    if asked:
        worst = max(asked, key=lambda n: asked[n])
        mean = math.exp(statistics.fmean(map(math.log, asked.values())))
        judge(f"geometric mean of {len(asked)} files over the better peer", mean, MEAN)
        judge(f"worst of them, {worst}", asked[worst], WORST)
    for name, medians in rows.items():
        twin = rows.get(name.replace("_qop", "_qdq"))
        if name.endswith("_qop") and twin is not None:
            judge(f"{name} over the same in QDQ form", medians["ours"] / twin["ours"], OPERATORS)
        for pattern, bound in QUICKER.items():
            if re.fullmatch(pattern, name):
                judge(
                    f"{name}, times quicker than our float32", medians["ours f32"] / medians["ours"], bound, least=True
                )
    return found


def over_peers(medians: dict[str, float]) -> float:
    """Ours over the better peer; no number where there is none."""
    peers = [medians[p] for p in ("onnxruntime", "openvino") if p in medians]
    return medians["ours"] / min(peers) if peers else math.nan


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--filter", default="", dest="only")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="resnet18, minilm and one product, few rounds")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--zoo", type=Path, default=Path("build/zoo"))
    given = parser.parse_args()
    logging.getLogger().setLevel(logging.ERROR)
    os.environ.setdefault("OMP_NUM_THREADS", str(given.threads))
    for folder in (FOLDER, given.zoo):
        folder.mkdir(parents=True, exist_ok=True)
    names = [n for n in (*FILES, *BLOCKS, *DECODERS, *HALVES) if re.search(given.only, n)]
    if given.quick:
        names = [n for n in names if n in ("resnet18_qdq", "minilm_dynamic", "nbits_llama")]
    print(f"{processor()}, {given.threads} threads; ours: {instruction_set()}")
    print(f"{'':20}{'ours':>9}{'ours f32':>9}{'ort':>9}{'openvino':>9}{'f32/ours':>9}{'ours/peer':>10}")
    rows: dict[str, dict[str, float]] = {}
    for name in names:
        path, plain = files_of(name, given.zoo)
        ways = ways_of(path, plain, given.threads)
        medians = rows[name] = turns(ways, 5 if given.quick else given.rounds)
        cells = [f"{1e3 * medians[w]:9.3f}" if w in medians else f"{'-':>9}" for w in COLUMNS]
        quicker = medians["ours f32"] / medians["ours"]
        print(f"{name:20}{''.join(cells)}{quicker:9.2f}{over_peers(medians):10.2f}", flush=True)
        if given.check:
            print(compare(ways, path))
    print("\n".join(verdicts(rows)))


COLUMNS = ("ours", "ours f32", "onnxruntime", "openvino")

if __name__ == "__main__":
    main()
