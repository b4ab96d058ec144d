"""Speculative decoding: a small model proposes tokens, the large one reads them at once and keeps what it agrees to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.generate.beams import read_prompt
from pyflame_rt.generate.generator import Completion, Sequence, encoded
from pyflame_rt.generate.in_place import open_decoder
from pyflame_rt.generate.sampling import SamplingParams, Token
from pyflame_rt.graph.arguments import expect_whole
from pyflame_rt.graph.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Sequence as Tokens

    from pyflame_rt.session import InferenceSession

__all__ = ["SpeculativeGenerator"]

START = 4  # tokens that a draft of which nothing is known proposes


class SpeculativeGenerator:
    """Continues one sequence at a time, with a draft model that guesses ahead.

    Every token is chosen by the large model's own scores and the sampler of its sequence; the draft decides only how
    many of them one step gives. So the tokens are those of the large model alone, for every setting: what differs is
    how many steps they take.

    Args:
        session: the large decoder.
        draft: a small one for the same tokens.
        tokenizer: has ``encode(text)`` and ``decode(tokens)``; may be None.
        lookahead: tokens that the draft proposes for one step, at most: fewer after guesses that were wrong.
        page: tokens by which the room for keys and values grows.

    Attributes:
        proposed: tokens that the draft proposed so far.
        accepted: those of them that were chosen.
    """

    def __init__(
        self,
        session: InferenceSession,
        draft: InferenceSession,
        tokenizer: Any = None,
        *,
        lookahead: int = 8,
        page: int = 64,
    ) -> None:
        if expect_whole(lookahead, "lookahead") < 1:
            raise InputError(f"lookahead must be at least 1, got {lookahead}")
        self.decoder, self.draft = open_decoder(session), open_decoder(draft)
        self.tokenizer, self.lookahead, self.page = tokenizer, lookahead, page
        reads = [model.context for model in (self.decoder, self.draft) if model.context is not None]
        self._readable = min(reads, default=1 << 62)
        knows = [model.words for model in (self.decoder, self.draft) if model.words is not None]
        self._words = min(knows, default=1 << 62)  # tables may be filled up to different sizes
        self.proposed = self.accepted = 0

    def generate(self, prompts: Tokens[str | Tokens[int]], params: SamplingParams | None = None) -> list[Completion]:
        """Continue prompts one after the other; completions in their order."""
        made = []
        for prompt in prompts:
            sequence = self._sequence(prompt, params)
            for _ in self._run(sequence):
                pass
            made.append(sequence.completion())
        return made

    def stream(self, prompt: str | Tokens[int], params: SamplingParams | None = None) -> Iterator[Token]:
        """The tokens that continue a prompt, as they come."""
        return self._run(self._sequence(prompt, params))

    def _sequence(self, prompt: str | Tokens[int], params: SamplingParams | None) -> Sequence:
        chosen = SamplingParams() if params is None else params
        words, context = self.decoder.words, self.decoder.context
        return Sequence(encoded(prompt, self.tokenizer), chosen, self.tokenizer, words=words, context=context)

    def _run(self, sequence: Sequence) -> Iterator[Token]:
        if sequence.finish_reason:
            return
        large, small = self.decoder.new_cache(self.page), self.draft.new_cache(self.page)
        large.add()
        small.add()
        ahead = min(START, self.lookahead)
        token = sequence.take(read_prompt(self.decoder, large, 0, sequence.prompt))
        if token is not None:
            yield token
        while not sequence.finish_reason:
            known = [*sequence.prompt, *sequence.tokens]
            left = sequence.params.max_new_tokens - len(sequence.tokens) - 1  # the large model adds one itself
            guesses = self._guesses(small, known, min(ahead, left, self._readable - len(known)))
            tokens = np.array([[known[-1], *guesses]])
            scores = self.decoder.forward(large, 0, tokens, [tokens.shape[1]])[0]
            agreed = 0
            for i in range(len(guesses) + 1):
                token = sequence.take(scores[i])
                if token is not None:
                    yield token
                if sequence.finish_reason or token is None or i == len(guesses) or token.id != guesses[i]:
                    break
                agreed += 1
            self.proposed += len(guesses)
            self.accepted += agreed
            ahead = min(ahead + 2, self.lookahead) if agreed == len(guesses) else max(ahead - 1, 1)
            large.truncate(0, len(known) + agreed)
            small.truncate(0, min(small.lengths[0], len(known) + agreed))

    def _guesses(self, cache: Any, known: list[int], count: int) -> list[int]:
        """What the draft would say next; nothing after a token that it does not know."""
        guesses: list[int] = []
        pending = known[cache.lengths[0] :]
        while len(guesses) < count and max(pending) < self._words:
            best = int(read_prompt(self.draft, cache, 0, pending)[: self._words].argmax())
            guesses.append(best)
            pending = [best]
        return guesses
