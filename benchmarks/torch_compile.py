"""`torch.compile(backend="pyflame")` beside torch as it comes and its own compiler: runs, training steps, first call.

usage: python benchmarks/torch_compile.py [--filter EXPRESSION] [--rounds 5] [--threads 2] [--first]

Models are transformers' own, made from configurations, and a ResNet-18; the three take turns in one process. A figure
is the least of the rounds' medians; ratios are ours over theirs, with geometric means. `--first` measures the first
call instead, each in a process of its own with empty caches. Without a C++ compiler torch's is left out.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

WAYS = ("eager", "inductor", "pyflame")
SMALL = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8, "intermediate_size": 1024}
STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def _transformer(
    model: str, config: str, inputs: Callable[[Any], dict[str, Any]], **settings: Any
) -> Callable[[], Any]:
    def make() -> tuple[Any, dict[str, Any]]:
        import torch
        import transformers

        made = getattr(transformers, model)(getattr(transformers, config)(**settings))
        return made, inputs(torch)

    return make


def _words(torch: Any) -> dict[str, Any]:
    return {"input_ids": torch.randint(0, 1000, (4, 64)), "attention_mask": torch.ones(4, 64, dtype=torch.int64)}


def _tokens(torch: Any) -> dict[str, Any]:
    return {"input_ids": torch.randint(0, 1000, (4, 64)), "use_cache": False}


def _resnet() -> tuple[Any, dict[str, Any]]:
    import torch
    import transformers

    config = transformers.ResNetConfig(
        embedding_size=64, hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2], layer_type="basic", num_labels=10
    )
    return transformers.ResNetForImageClassification(config), {"pixel_values": torch.randn(2, 3, 112, 112)}


MODELS = {
    "bert": _transformer("BertModel", "BertConfig", _words, vocab_size=1000, **SMALL, **STILL),
    "gpt2": _transformer(
        "GPT2LMHeadModel", "GPT2Config", _tokens, vocab_size=1000, n_embd=256, n_layer=4, n_head=8, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0,
    ),
    "llama": _transformer(
        "LlamaForCausalLM", "LlamaConfig", _tokens, vocab_size=1000, num_key_value_heads=4, **SMALL
    ),
    "vit": _transformer(
        "ViTForImageClassification", "ViTConfig", lambda torch: {"pixel_values": torch.randn(2, 3, 64, 64)},
        image_size=64, patch_size=8, **SMALL, **STILL,
    ),
    "resnet18": _resnet,
}  # fmt: skip


def _summed(out: Any) -> Any:
    """A loss: the mean square of the first output."""
    first = next(value for value in out.values() if getattr(value, "is_floating_point", bool)())
    return first.square().mean()


def prepared(name: str, way: str, *, training: bool) -> Callable[[], Any]:
    """A function that runs a model once, one way."""
    import torch

    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    model.train(training)
    run = model if way == "eager" else torch.compile(model, backend=way)
    if not training:

        def infer() -> Any:
            with torch.no_grad():
                return run(**inputs)

        return infer
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def step() -> Any:
        optimizer.zero_grad()
        loss = _summed(run(**inputs))
        loss.backward()
        optimizer.step()
        return loss

    return step


def _median(run: Callable[[], Any], seconds: float) -> float:
    times: list[float] = []
    while sum(times) < seconds or len(times) < 3:
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def measure(names: list[str], ways: list[str], rounds: int, seconds: float) -> None:
    """Print a line for each model and kind of run, then the geometric means."""
    import torch

    ratios: dict[tuple[str, str], list[float]] = {}
    for training in (False, True):
        kind = "training" if training else "inference"
        print(f"{kind:20s}", *(f"{way:>10s}" for way in ways), "ms, then ours over theirs", flush=True)
        for name in names:
            torch._dynamo.reset()  # else its limit of compilations leaves the later models as they are
            runs = {way: prepared(name, way, training=training) for way in ways}
            for run in runs.values():
                for _ in range(3):
                    run()
            least = dict.fromkeys(ways, math.inf)
            for _ in range(rounds):
                for way, run in runs.items():
                    time.sleep(0.05)  # threads that spin for work after a run do not disturb the next
                    least[way] = min(least[way], _median(run, seconds))
            for way in ways[:-1]:
                ratios.setdefault((kind, way), []).append(least["pyflame"] / least[way])
            shown = (f"{least['pyflame'] / least[way]:6.2f}" for way in ways[:-1])
            print(f"{name:20s}", *(f"{1e3 * least[way]:10.2f}" for way in ways), *shown, flush=True)
    for (kind, way), found in ratios.items():
        print(f"{kind} over {way}: geometric mean {math.exp(statistics.fmean(map(math.log, found))):.2f}")


def first_calls(names: list[str], ways: list[str], threads: int) -> None:
    """Seconds of the first inference, each in a process of its own with empty caches."""
    for name in names:
        took = {}
        for way in ways[1:]:
            with tempfile.TemporaryDirectory() as folder:
                environment = {
                    **os.environ,
                    "TORCHINDUCTOR_CACHE_DIR": folder,
                    "PYFLAME_CACHE_DIR": f"{folder}/pyflame",
                }
                command = [sys.executable, __file__, "--child", name, way, "--threads", str(threads)]
                done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True, timeout=900)
                took[way] = json.loads(done.stdout.splitlines()[-1])
        shown = ", ".join(f"{way} {seconds:.2f} s" for way, seconds in took.items())
        ratio = f", ratio {took['pyflame'] / took['inductor']:.2f}" if "inductor" in took else ""
        print(f"{name:20s} first call: {shown}{ratio}", flush=True)


def main() -> None:
    """Measure and print."""
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--filter", default="", help="a regular expression on the names")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--first", action="store_true")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    import torch

    torch.set_num_threads(given.threads)
    if given.child:
        name, way = given.child
        run = prepared(name, way, training=False)
        begin = time.perf_counter()
        run()
        print(json.dumps(time.perf_counter() - begin))
        return
    names = [name for name in MODELS if re.search(given.filter, name)]
    ways = [way for way in WAYS if way != "inductor" or shutil.which("g++") or shutil.which("clang++")]
    if given.first:
        first_calls(names, ways, given.threads)
    else:
        measure(names, ways, given.rounds, given.seconds)


if __name__ == "__main__":
    main()
