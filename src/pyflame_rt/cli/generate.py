"""``pyflame-rt generate``: the continuation of a prompt, token by token."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pyflame_rt.cli.commands import AsJson, Model, app
from pyflame_rt.cli.render import console, print_json, status
from pyflame_rt.graph.errors import InputError, ModelNotFoundError

if TYPE_CHECKING:
    from pyflame_rt.generate import Completion, Generator, SpeculativeGenerator
    from pyflame_rt.session import InferenceSession

__all__ = ["generate"]

Prompt = Annotated[str, typer.Option("--prompt", "-p", help="Text to continue; needs a tokenizer.")]
Ids = Annotated[str, typer.Option("--tokens", help="Tokens to continue, 1,2,3, instead of a text.")]
TokenizerFile = Annotated[
    Path | None, typer.Option("--tokenizer", help="A tokenizer.json, or its folder; the model's folder by default.")
]
Count = Annotated[int, typer.Option("--max-new-tokens", "-n", min=1, help="How many tokens to add at most.")]
Temperature = Annotated[float, typer.Option(help="0 takes the best token, 1 draws as the model says.")]
TopK = Annotated[int, typer.Option(help="Draw among the best so many; 0 for all.")]
TopP = Annotated[float, typer.Option(help="Draw among the best that together have this probability.")]
MinP = Annotated[float, typer.Option(help="Draw among those with this part of the best one's probability.")]
Penalty = Annotated[float, typer.Option("--repetition-penalty", help="Above 1 avoids tokens that were there.")]
Stops = Annotated[list[str], typer.Option("--stop", help="A text that ends it; may be given several times.")]
DrawSeed = Annotated[int | None, typer.Option("--seed", help="Equal seeds draw equal tokens.")]
Beams = Annotated[int, typer.Option("--beams", min=1, help="Search so many beams for the likeliest continuation.")]
Draft = Annotated[Path | None, typer.Option("--draft", help="A small decoder that guesses ahead; changes no token.")]


@app.command()
def generate(
    model: Model,
    prompt: Prompt = "",
    tokens: Ids = "",
    tokenizer: TokenizerFile = None,
    max_new_tokens: Count = 64,
    temperature: Temperature = 0.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    min_p: MinP = 0.0,
    repetition_penalty: Penalty = 1.0,
    stop: Stops = [],  # noqa: B006 - typer reads it, nobody changes it
    seed: DrawSeed = None,
    beams: Beams = 1,
    draft: Draft = None,
    json: AsJson = False,
) -> None:
    """Continue a prompt with a decoder (a model file, a Hugging Face folder, a GGUF file), and say how fast."""
    from pyflame_rt.generate import SamplingParams, load_tokenizer
    from pyflame_rt.generate.models import open_model

    if bool(prompt) == bool(tokens):
        raise InputError("give a prompt: --prompt TEXT or --tokens 1,2,3")
    given: Any = prompt or _numbers(tokens)
    with status(f"loading {model.name}"):
        session, own = open_model(model, tokens=tokenizer is None)
        words = load_tokenizer(tokenizer) if tokenizer is not None else own
        if words is None and (prompt or stop):
            raise ModelNotFoundError(f"there is no tokenizer with {str(model)!r}: give --tokenizer, or --tokens")
        maker = _maker(session, words, draft)
    end = None if words is None else words.eos_token_ids or None
    if beams > 1:
        if draft is not None or temperature:
            raise InputError("--beams searches for the likeliest tokens: without --draft and --temperature")
        _search(maker, given, beams, max_new_tokens, end, json)
        return
    params = SamplingParams(
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        stop=tuple(stop),
        seed=seed,
        eos_token_id=end,
    )
    begin, first, made = time.perf_counter(), 0.0, []
    for token in maker.stream(given, params):
        first = first or time.perf_counter()
        made.append(token.id)
        if not json:
            shown = token.text if words is not None else f"{token.id} "
            console.print(shown, end="", highlight=False, markup=False, soft_wrap=True)
    seconds = {"first_token_s": (first or time.perf_counter()) - begin, "others_s": time.perf_counter() - first}
    rate = (len(made) - 1) / seconds["others_s"] if len(made) > 1 else 0.0
    if json:
        text = words.decode(made) if words is not None else ""
        print_json({"tokens": made, "text": text, "tokens_per_second": rate, **seconds})
        return
    console.print()
    told = f"{len(made)} tokens; the first after {seconds['first_token_s'] * 1e3:.1f} ms (model cold)"
    console.print(f"{told}, then {rate:.1f} tokens/s" if rate else told, style="dim", highlight=False)


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"--tokens {text!r}: tokens are numbers with commas between them") from None


def _maker(session: InferenceSession, tokenizer: Any, draft: Path | None) -> Generator | SpeculativeGenerator:
    from pyflame_rt.generate import Generator, SpeculativeGenerator
    from pyflame_rt.generate.models import open_model

    if draft is None:
        return Generator(session, tokenizer)
    return SpeculativeGenerator(session, open_model(draft, tokens=False)[0], tokenizer)


def _search(maker: Any, prompt: Any, beams: int, count: int, end: list[int] | None, json: bool) -> None:
    from pyflame_rt.generate import BeamParams

    params = BeamParams(num_beams=beams, max_new_tokens=count, eos_token_id=end, num_return_sequences=beams)
    found: list[Completion] = maker.beam_search(prompt, params)
    if json:
        print_json([{"tokens": list(c.tokens), "text": c.text, "score": c.score} for c in found])
        return
    for completion in found:
        shown = completion.text or " ".join(map(str, completion.tokens))
        console.print(f"{completion.score:8.4f}  {shown}", highlight=False, markup=False, soft_wrap=True)
