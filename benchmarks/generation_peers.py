"""Tokens a second of other runtimes on the same weights, in a process of their own: prints JSON.

usage: python benchmarks/generation_peers.py llama MODEL.gguf --threads 2 --tokens 64 [--packages FOLDER]
       python benchmarks/generation_peers.py build HF_FOLDER --out FOLDER [--packages FOLDER]
       python benchmarks/generation_peers.py genai FOLDER --threads 2 --tokens 64 [--packages FOLDER]
"""

from __future__ import annotations

import argparse
import json
import runpy
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

PROMPT = list(range(300, 332))


def llama(model: Path, threads: int, tokens: int, rounds: int) -> list[float]:
    """Of llama.cpp, greedy, one sequence."""
    import llama_cpp

    made = llama_cpp.Llama(str(model), n_threads=threads, n_threads_batch=threads, n_ctx=1024, verbose=False)
    words = made.n_vocab()

    def best() -> int:
        scores = llama_cpp.llama_get_logits(made._ctx.ctx)
        return int(np.ctypeslib.as_array(scores, (words,)).argmax())

    def begin() -> None:
        made.reset()
        made.eval(PROMPT)

    return _rates(begin, lambda: made.eval([best()]), tokens, rounds)


def genai(model: Path, threads: int, tokens: int, rounds: int) -> list[float]:
    """Of onnxruntime-genai, greedy, one sequence."""
    import onnxruntime_genai

    settings = json.loads((model / "genai_config.json").read_text())
    settings["model"]["decoder"]["session_options"]["intra_op_num_threads"] = threads
    (model / "genai_config.json").write_text(json.dumps(settings))
    made = onnxruntime_genai.Model(str(model))
    under_way: list[onnxruntime_genai.Generator] = []

    def begin() -> None:
        params = onnxruntime_genai.GeneratorParams(made)
        params.set_search_options(max_length=len(PROMPT) + tokens + 8, min_length=len(PROMPT) + tokens + 8)
        under_way[:] = [onnxruntime_genai.Generator(made, params)]
        under_way[0].append_tokens(PROMPT)
        under_way[0].generate_next_token()

    return _rates(begin, lambda: under_way[0].generate_next_token(), tokens, rounds)


def _rates(begin: Callable[[], None], step: Callable[[], object], tokens: int, rounds: int) -> list[float]:
    found = []
    for _ in range(rounds):
        begin()
        step()
        started = time.perf_counter()
        for _ in range(tokens):
            step()
        found.append(tokens / (time.perf_counter() - started))
    return found


def build(model: Path, out: Path) -> None:
    """The same weights as genai's model builder writes them for CPUs: 4 bits in blocks of 32, rows in bytes."""
    import onnxruntime_genai

    script = Path(onnxruntime_genai.__file__).parent / "models" / "builder.py"
    places = ["-i", str(model), "-o", str(out), "-c", str(out / "cache")]
    form = ["-p", "int4", "-e", "cpu", "--extra_options", "int4_block_size=32", "int4_accuracy_level=4"]
    sys.argv = [str(script), *places, *form]
    sys.path.insert(0, str(script.parent))
    runpy.run_path(str(script), run_name="__main__")


def main() -> int:
    """Measure, or build."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["llama", "genai", "build"])
    parser.add_argument("model", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--packages", type=Path, help="a folder of packages, for what is not installed")
    options = parser.parse_args()
    if options.packages is not None:
        sys.path.append(str(options.packages))
    if options.what == "build":
        build(options.model, options.out)
        return 0
    measure = llama if options.what == "llama" else genai
    print(json.dumps(measure(options.model, options.threads, options.tokens, options.rounds)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
