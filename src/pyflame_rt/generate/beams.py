"""Beam search: the likeliest continuations of a prompt, several kept at each step."""

from __future__ import annotations

import math
from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pyflame_rt.generate.checks import prompt_tokens, token_set
from pyflame_rt.generate.sampling import log_softmax
from pyflame_rt.graph.arguments import ANY, expect, number_problems
from pyflame_rt.graph.errors import InputError
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame_rt.generate.cache import KVCache
    from pyflame_rt.generate.decoder import Decoder

__all__ = ["Beam", "BeamParams", "beam_search", "bucket", "padded", "read_prompt"]

Scores = np.ndarray[Any, Any]
_MOST_POWER = 700.0  # of e, that a number holds


@dataclass(slots=True)
class BeamParams:
    """How beams are searched, with the names and defaults of Hugging Face's ``generate``.

    Attributes:
        num_beams: continuations kept at each step.
        max_new_tokens: how many tokens to add at most.
        length_penalty: sums of log-probabilities are divided by the length to this power: above 0 favours long ones.
        early_stopping: True ends when ``num_beams`` have ended, False when no open one is likely to do better, "never"
            when none can.
        num_return_sequences: how many of the best to give.
        eos_token_id: ends a sequence; one, several, or None.

    Example:
        >>> BeamParams(num_beams=4).validate(), BeamParams(num_beams=2, num_return_sequences=3).validate()
        ([], ['num_return_sequences must be at most num_beams, 2; got 3'])
    """

    num_beams: int = 4
    max_new_tokens: int = 20
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    num_return_sequences: int = 1
    eos_token_id: int | Sequence[int] | None = None

    def validate(self) -> list[str]:
        """What is wrong with the settings; empty when nothing is."""
        whole = {"num_beams": 1, "max_new_tokens": 1, "num_return_sequences": 1}
        if problems := number_problems(self, whole, {"length_penalty": ANY}):
            return problems
        if self.num_return_sequences > self.num_beams:
            problems.append(
                f"num_return_sequences must be at most num_beams, {self.num_beams}; got {self.num_return_sequences}"
            )
        if abs(self.length_penalty) * math.log(self.max_new_tokens) > _MOST_POWER:
            problems.append(f"length_penalty of {self.length_penalty} is too much for {self.max_new_tokens} tokens")
        if self.early_stopping not in (True, False, "never"):
            problems.append(f"early_stopping must be True, False or 'never', got {self.early_stopping!r}")
        return problems

    def ends(self) -> frozenset[int]:
        """Tokens that end a sequence."""
        return token_set(self.eos_token_id)


@dataclass(frozen=True, slots=True)
class Beam:
    """A continuation.

    Attributes:
        tokens: that were added, without the one that ended it.
        score: its log-probability, divided as ``length_penalty`` says.
        finish_reason: "stop" or "length".
    """

    tokens: tuple[int, ...]
    score: float
    finish_reason: str


@dataclass(slots=True)
class _Search:
    params: BeamParams
    ended: list[Beam] = field(default_factory=list)

    def add(self, tokens: tuple[int, ...], total: float, length: int, reason: str) -> None:
        self.ended.append(Beam(tokens, total / length**self.params.length_penalty, reason))
        self.ended.sort(key=lambda beam: -beam.score)
        del self.ended[self.params.num_beams :]

    def is_done(self, best: float, length: int) -> bool:
        """Whether no open beam is to be continued; ``best`` is the likeliest sum, of so many tokens."""
        params = self.params
        if len(self.ended) < params.num_beams:
            return False
        if params.early_stopping is True:
            return True
        if params.early_stopping == "never" and params.length_penalty > 0:
            length = params.max_new_tokens
        return self.ended[-1].score >= best / length**params.length_penalty


def beam_search(decoder: Decoder, prompt: Sequence[int], params: BeamParams, *, page: int = 64) -> list[Beam]:
    """The best continuations of a prompt, best first.

    Raises:
        InputError: The prompt is none, or settings are not valid.
    """
    expect(params, BeamParams, "the params of a beam search")
    if problems := params.validate():
        raise InputError("invalid settings of a beam search: " + "; ".join(problems))
    prompt = prompt_tokens(prompt, decoder.words, decoder.context)
    most = params.max_new_tokens if decoder.context is None else decoder.context + 1 - len(prompt)
    most = min(most, params.max_new_tokens)
    cache = decoder.new_cache(page)
    cache.add()
    first = log_softmax(read_prompt(decoder, cache, 0, prompt))
    search, ends = _Search(params), params.ends()
    beams: list[tuple[int, ...]] = [()]
    sums, logs = np.zeros(1), first[None]
    for length in range(1, most + 1):
        # Twice as many as are kept: each beam may end with at most one of them, or with each of `ends`.
        count = min(params.num_beams * (1 + max(1, len(ends))), logs.size)
        totals = sums[:, None] + logs
        if not np.isfinite(totals.max()):
            raise InputError("no beam can be continued: the scores of the model are no numbers")
        order = np.argsort(-totals, axis=None, kind="stable")[:count]
        kept: list[tuple[int, int, float]] = []
        for rank, at in enumerate(order):
            beam, token = divmod(int(at), logs.shape[1])
            total = float(totals[beam, token])
            if token in ends:
                if rank < params.num_beams:
                    search.add(beams[beam], total, length, "stop")
            elif len(kept) < params.num_beams:
                kept.append((beam, token, total))
        if not kept or search.is_done(float(totals.flat[order[0]]), length):
            return search.ended[: params.num_return_sequences]
        beams = [(*beams[beam], token) for beam, token, _ in kept]
        sums = np.array([total for *_, total in kept])
        if length < most:
            cache.gather([beam for beam, *_ in kept])
            tokens = np.array([[token] for _, token, _ in kept])
            scores = decoder.forward(cache, 0, tokens, [1] * len(kept), last=True)
            logs = np.stack([log_softmax(row) for row in scores])
    for tokens, total in zip(beams, sums, strict=True):
        search.add(tokens, float(total), len(tokens), "length")
    return search.ended[: params.num_return_sequences]


def read_prompt(decoder: Decoder, cache: KVCache, row: int, prompt: Sequence[int], chunk: int = 256) -> Scores:
    """Run a prompt through a row, piece by piece, which have few lengths; the scores of what follows it."""
    scores = None
    for begin in range(0, len(prompt), chunk):
        piece = prompt[begin : begin + chunk]
        tokens = np.zeros((1, padded(len(piece))), np.int64)
        tokens[0, : len(piece)] = piece
        scores = decoder.forward(cache, row, tokens, [len(piece)], last=True)[0]
    assert scores is not None
    return scores


def bucket(count: int) -> int:
    """Steps have few numbers of rows: 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, ..."""
    power = 1 << (count - 1).bit_length()
    return power * 3 // 4 if power >= 4 and count <= power * 3 // 4 else power


def padded(count: int) -> int:
    """Pieces of prompts have few lengths: 1, 2, 8, 12, 16, 24, 32, ..."""
    return count if count <= 2 else max(8, bucket(count))
