"""What must hold of generation: tokens a second next to other runtimes, batches, long texts, shared beginnings, drafts.

usage: python benchmarks/generation.py [--filter REGEX] [--quick] [--threads 2] [--packages FOLDER] [--keep FOLDER]

Prints a line for each bound and ends with status 1 where one is not kept. Figures mean something on a quiet machine
only; `--quick` takes small models, to see that it works. Others that are not installed are left out with a line:
onnxruntime, onnxruntime-genai, llama-cpp-python, transformers; `--packages` names a folder that has those which are
not beside this interpreter (``pip install --target FOLDER ...``), for the processes that they run in.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import generation_models as models
import numpy as np
from generation_peers import PROMPT
from production import Result

import pyflame_rt
from pyflame_rt.generate import Generator, SamplingParams, SpeculativeGenerator
from pyflame_rt.generate.models import open_model
from pyflame_rt.generate.sampling import Sampler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

PEERS = Path(__file__).with_name("generation_peers.py")
ROUNDS = 3
TOKENS = 64


@dataclass
class Setting:
    """How to measure, and where models are made.

    Attributes:
        folder: of models; what is there is not made again.
        threads: of every runtime.
        packages: a folder with packages of other runtimes, or None.
        quick: small models.
    """

    folder: Path
    threads: int
    packages: Path | None
    quick: bool

    def options(self) -> pyflame_rt.SessionOptions:
        """Of sessions."""
        return pyflame_rt.SessionOptions(intra_op_num_threads=self.threads)

    def made(self, name: str, make: Callable[[Path], object]) -> Path:
        """A model, made when it is first asked for."""
        place = self.folder / name
        if not place.exists():
            make(place)
        return place

    def gpt2(self) -> Path:
        """GPT-2 of 12 x 768."""
        sizes = {"width": 64, "layers": 2, "heads": 4, "words": 1000} if self.quick else {}
        return self.made("gpt2", lambda place: models.gpt2_folder(place, **sizes))

    def llama_sizes(self) -> dict[str, int]:
        """A Llama of about 1 B parameters."""
        small = {"hidden": 256, "inner": 512, "layers": 2, "heads": 4, "shared": 2, "words": 1000}
        return small if self.quick else models.LLAMA_1B

    def llama(self) -> Path:
        """Its file in Q4_0."""
        return self.made("llama.gguf", lambda place: models.gguf_llama(place, "Q4_0", **self.llama_sizes()))

    def peer(self, what: str, *arguments: object) -> str | None:
        """What another runtime prints; None where it does not run, which is told."""
        command = [sys.executable, str(PEERS), what, *map(str, arguments)]
        if self.packages is not None:
            command += ["--packages", str(self.packages)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
        if done.returncode:
            print(f"left out: {what}: {(done.stderr.strip().splitlines() or ['no reason told'])[-1][:150]}", flush=True)
            return None
        return done.stdout

    def peer_rates(self, what: str, model: Path) -> list[float]:
        """Tokens a second of another runtime; none where it does not run."""
        out = self.peer(what, model, "--threads", self.threads, "--tokens", TOKENS, "--rounds", ROUNDS)
        return [] if out is None else json.loads(out.strip().splitlines()[-1])


def is_there(package: str) -> bool:
    """Whether a package is installed; told when it is not."""
    if importlib.util.find_spec(package) is None:
        print(f"left out: {package} is not installed", flush=True)
        return False
    return True


# ---------------------------------------------------------------------- tokens a second


def rate(generator: Generator, rows: int = 1, tokens: int = TOKENS, prompt: Sequence[int] = PROMPT) -> float:
    """Tokens a second of sequences that run together, their prompts already read."""
    sequences = [generator.add([*prompt, 10 + i], SamplingParams(tokens + 8)) for i in range(rows)]
    while any(not sequence.tokens for sequence in sequences):
        generator.step()
    generator.step()
    started, before = time.perf_counter(), sum(len(s.tokens) for s in sequences)
    while all(not sequence.finish_reason for sequence in sequences):
        generator.step()
    made = sum(len(s.tokens) for s in sequences) - before
    spent = time.perf_counter() - started
    for sequence in sequences:
        sequence.cancel()
    while generator.active:
        generator.step()
    return made / spent


def best_rate(generator: Generator, rows: int = 1) -> float:
    """The best of a few rounds, the first of which plans."""
    rate(generator, rows)
    return max(rate(generator, rows) for _ in range(ROUNDS))


def opened(setting: Setting, model: Path, rows: int = 1) -> Generator:
    """A generator that keeps no beginnings."""
    session, _ = open_model(model, setting.options(), tokens=False)
    return Generator(session, max_batch_size=rows, prefix_cache_bytes=0)


def against(name: str, generator: Generator, theirs: Callable[[], list[float]]) -> Iterator[Result]:
    """Tokens a second of one sequence before and after another runtime's."""
    before = best_rate(generator)
    found = theirs()
    if not found:
        return
    ours, other = max(before, best_rate(generator)), max(found)
    yield Result(name, ours / other, 1.0, at_least=True, note=f"{ours:.1f} and {other:.1f} tokens/s")


def check_onnxruntime(setting: Setting) -> Iterator[Result]:
    """One sequence of GPT-2 next to onnxruntime, which gets the keys and values it gave."""
    if not is_there("onnxruntime"):
        return
    from pyflame_rt.exporters import export_onnx
    from pyflame_rt.importers.registry import import_model

    def export(place: Path) -> None:
        export_onnx(import_model(setting.gpt2()).unwrap(), place)

    model = setting.made("gpt2.onnx", export)
    generator = opened(setting, setting.gpt2())
    yield from against("gpt2: one sequence / onnxruntime", generator, lambda: onnxruntime_rates(model, setting.threads))


def onnxruntime_rates(model: Path, threads: int) -> list[float]:
    """Tokens a second of onnxruntime, values left where it made them."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    value = onnxruntime.OrtValue.ortvalue_from_numpy
    states = {info.name: info.shape for info in session.get_inputs() if info.name.startswith("past")}
    outputs = [info.name for info in session.get_outputs()]

    def step(tokens: Sequence[int], past: dict[str, Any], known: int) -> tuple[int, dict[str, Any]]:
        ids = np.array([tokens])
        feed = {"input_ids": ids, "attention_mask": np.ones((1, known + len(tokens)), np.int64)}
        feed["position_ids"] = np.arange(known, known + len(tokens))[None]
        given = {name: value(array) for name, array in feed.items()}
        made = dict(zip(outputs, session.run_with_ort_values(outputs, given | past), strict=True))
        best = int(made.pop("logits").numpy()[0, -1].argmax())
        return best, {name.replace("present", "past_key_values"): array for name, array in made.items()}

    rates = []
    for _ in range(ROUNDS + 1):
        empty = {name: value(np.zeros((1, s[1], 0, s[3]), np.float32)) for name, s in states.items()}
        token, past = step(PROMPT, empty, 0)
        started = time.perf_counter()
        for i in range(TOKENS):
            token, past = step([token], past, len(PROMPT) + i)
        rates.append(TOKENS / (time.perf_counter() - started))
    return rates[1:]


def check_genai(setting: Setting) -> Iterator[Result]:
    """One sequence of the Llama next to onnxruntime-genai, both with weights of 4 bits in blocks of 32."""
    place = setting.folder / "genai"
    if not place.exists():
        sizes = setting.llama_sizes()
        folder = setting.made("llama", lambda place: models.llama_folder(place, half=True, **sizes))
        if setting.peer("build", folder, "--out", place) is None:
            return
    generator = opened(setting, setting.llama())
    yield from against("llama: one sequence / onnxruntime-genai", generator, lambda: setting.peer_rates("genai", place))


def check_llama_cpp(setting: Setting) -> Iterator[Result]:
    """One sequence of the Llama next to llama.cpp on the same file."""
    generator = opened(setting, setting.llama())
    yield from against(
        "llama: Q4_0 decode / llama.cpp", generator, lambda: setting.peer_rates("llama", setting.llama())
    )


# ---------------------------------------------------------------------- batches, lengths, beginnings, drafts


def both(setting: Setting) -> Iterator[tuple[str, Path]]:
    """The two shapes."""
    yield "gpt2", setting.gpt2()
    yield "llama", setting.llama()


def check_batches(setting: Setting) -> Iterator[Result]:
    """32 sequences next to one."""
    for name, model in both(setting):
        generator = opened(setting, model, 32)
        one, many = best_rate(generator), best_rate(generator, 32)
        note = f"{many:.0f} and {one:.1f} tokens/s"
        yield Result(f"{name}: 32 sequences / one, tokens/s", many / one, 4.0, at_least=True, note=note)


def check_lengths(setting: Setting) -> Iterator[Result]:
    """Steps late in a text next to early ones."""
    for name, model in both(setting):
        decoder = opened(setting, model).decoder
        short, long = (step_seconds(decoder, length) for length in (100, 1000))
        note = f"{long * 1e3:.2f} and {short * 1e3:.2f} ms"
        yield Result(f"{name}: step at 1,000 / at 100", long / short, 1.5, at_least=False, note=note)


def step_seconds(decoder: Any, length: int) -> float:
    """Seconds of a step of one sequence of so many tokens; the best of many."""
    cache = decoder.new_cache()
    cache.add()
    cache.reserve(length + 1)
    times = []
    for _ in range(25):
        cache.lengths = [length]
        started = time.perf_counter()
        decoder.forward(cache, 0, np.array([[7]]), [1], last=True)
        times.append(time.perf_counter() - started)
    return min(times)


def check_beginnings(setting: Setting) -> Iterator[Result]:
    """The first token of prompts that begin alike, next to those that do not."""
    for name, model in both(setting):
        session, _ = open_model(model, setting.options(), tokens=False)
        shared, words = 500, 900 if setting.quick else 30_000
        rng = np.random.default_rng(0)
        begin = rng.integers(300, words, shared).tolist()
        known = [Generator(session, prefix_cache_bytes=0), Generator(session)]
        own = [rng.integers(300, words, 16).tolist() for _ in range(5)]
        first = [[first_token(generator, [*begin, *end]) for end in own] for generator in known]
        rest = min(first_token(known[0], end) for end in own)
        without, within = (min(times[2:]) for times in first)
        saved = (without - within) / (without - rest)
        note = f"{without * 1e3:.0f} and {within * 1e3:.0f} ms, {rest * 1e3:.0f} without a beginning"
        yield Result(f"{name}: part saved of a shared prefill", saved, 0.9, at_least=True, note=note)


def first_token(generator: Generator, prompt: list[int]) -> float:
    """Seconds to the first token."""
    started = time.perf_counter()
    generator.generate([prompt], SamplingParams(1))
    return time.perf_counter() - started


def check_drafts(setting: Setting) -> Iterator[Result]:
    """A GPT-2 with a small one that guesses ahead, next to itself alone."""
    place = setting.made("pair", models.guessable_pair)
    large, small = (open_model(place / part, setting.options(), tokens=False)[0] for part in ("large", "small"))
    alone, ahead = Generator(large, prefix_cache_bytes=0), SpeculativeGenerator(large, small)
    seconds, tokens, params = [], [], SamplingParams(128)
    for maker in (alone, ahead):
        tokens.append([c.tokens for c in maker.generate([PROMPT[:20]], params)])
        times = []
        for _ in range(ROUNDS):
            started = time.perf_counter()
            maker.generate([PROMPT[:20]], params)
            times.append(time.perf_counter() - started)
        seconds.append(min(times))
    yield Result("draft: tokens that differ from greedy", int(tokens[0] != tokens[1]), 0, at_least=False)
    accepted = ahead.accepted / ahead.proposed
    yield Result("draft: guesses accepted", accepted, 0.7, at_least=True, note=f"of {ahead.proposed}")
    note = f"{seconds[0] * 1e3:.0f} and {seconds[1] * 1e3:.0f} ms"
    yield Result("draft: alone / with it", seconds[0] / seconds[1], 1.0, at_least=True, note=note)


def check_mapped(setting: Setting) -> Iterator[Result]:
    """A step of the Llama with a third of its file as memory limit, next to reading the file."""
    model = setting.llama()
    options = setting.options()
    options.immutable_model, options.memory_limit = True, model.stat().st_size // 3
    session, _ = open_model(model, options, tokens=False)
    decoder = Generator(session, prefix_cache_bytes=0).decoder
    step = step_seconds(decoder, 100)
    read = min(read_seconds(model) for _ in range(ROUNDS))
    allowed = options.memory_limit >> 20
    note = f"{step * 1e3:.1f} and {read * 1e3:.1f} ms, {allowed} MiB allowed"
    yield Result("llama: step by mapping / reading its file", step / read, 1.3, at_least=False, note=note)


def read_seconds(path: Path) -> float:
    """Seconds to read a file into memory, a piece at a time."""
    piece, started = bytearray(4 << 20), time.perf_counter()
    with path.open("rb", buffering=0) as file:
        while file.readinto(piece):
            pass
    return time.perf_counter() - started


# ---------------------------------------------------------------------- answers


def check_tokens(setting: Setting) -> Iterator[Result]:
    """Greedy tokens and draws next to those of transformers."""
    if not (is_there("transformers") and is_there("torch")):
        return
    import torch
    import transformers

    small = {"hidden": 256, "inner": 688, "layers": 4, "heads": 8, "shared": 4, "words": 8000}
    folders = {
        "gpt2": setting.made("various", models.various_gpt2),
        "llama": setting.made("small_llama", lambda place: models.llama_folder(place, half=False, **small)),
    }
    for name, folder in folders.items():
        transformers.utils.logging.disable_progress_bar()
        theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        ids = torch.tensor([PROMPT[:24]])
        with torch.no_grad():
            said = theirs.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=48, do_sample=False, eos_token_id=None,
                pad_token_id=0,
            )[0, 24:].tolist()  # fmt: skip
            scores = theirs(ids).logits[0, -1].numpy()
        (ours,) = opened(setting, folder).generate([PROMPT[:24]], SamplingParams(48))
        wrong = sum(a != b for a, b in zip(ours.tokens, said, strict=True))
        note = f"of {len(said)}, {len(set(said))} different ones"
        yield Result(f"{name}: greedy tokens unlike transformers'", wrong, 0, at_least=False, note=note)
        yield chi_square(name, opened(setting, folder), scores)


def chi_square(name: str, generator: Generator, scores: np.ndarray) -> Result:
    """Draws of the next token by our scores next to the chances that transformers' scores give."""
    params = SamplingParams(temperature=0.8, top_k=20)
    best = np.argsort(-scores)[:20]
    chances = np.exp((scores[best].astype(np.float64) - scores[best].max()) / 0.8)
    chances /= chances.sum()
    cache = generator.decoder.new_cache()
    cache.add()
    ours = generator.decoder.forward(cache, 0, np.array([PROMPT[:24]]), [24], last=True)[0]
    draws, counts = 20_000, dict.fromkeys(best.tolist(), 0)
    sampler = Sampler(SamplingParams(temperature=params.temperature, top_k=params.top_k, seed=1), tuple(PROMPT[:24]))
    strange = 0
    for _ in range(draws):
        token = sampler.choose(ours).id
        if token in counts:
            counts[token] += 1
        else:
            strange += 1
    found = np.array([counts[token] for token in best.tolist()])
    figure = float(((found - draws * chances) ** 2 / (draws * chances)).sum()) + draws * strange
    # 43.8: what 19 degrees of freedom exceed once in a thousand.
    return Result(f"{name}: chi-square of {draws} draws", figure, 43.8, at_least=False, note="19 degrees of freedom")


CHECKS: dict[str, Callable[[Setting], Iterator[Result]]] = {
    "onnxruntime": check_onnxruntime,
    "llama.cpp": check_llama_cpp,
    "genai": check_genai,
    "batches": check_batches,
    "lengths": check_lengths,
    "mapped": check_mapped,
    "beginnings": check_beginnings,
    "drafts": check_drafts,
    "tokens": check_tokens,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Check what was asked for; 1 where a bound is not kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--filter", default="", help="a regular expression on the names: " + ", ".join(CHECKS))
    parser.add_argument("--quick", action="store_true", help="small models")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--packages", type=Path, help="a folder with packages of other runtimes")
    parser.add_argument("--keep", type=Path, help="a folder for models, which the next run finds there")
    options = parser.parse_args(arguments)
    failed = 0
    with tempfile.TemporaryDirectory() as passing:
        folder = options.keep or Path(passing)
        folder.mkdir(parents=True, exist_ok=True)
        setting = Setting(folder, options.threads, options.packages, options.quick)
        for name, check in CHECKS.items():
            if not re.search(options.filter, name):
                continue
            with suppress(subprocess.TimeoutExpired):
                for result in check(setting):
                    print(result, flush=True)
                    failed += not result.kept
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
