"""Continuous batching: sequences join and leave between steps, and every step runs all of them at once."""

from __future__ import annotations

import itertools
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.generate.beams import BeamParams, beam_search, bucket, padded
from pyflame_rt.generate.checks import prompt_tokens
from pyflame_rt.generate.constraints import constraint_for
from pyflame_rt.generate.in_place import open_decoder
from pyflame_rt.generate.models import open_model
from pyflame_rt.generate.prefix import PrefixCache
from pyflame_rt.generate.sampling import Sampler, SamplingParams, Token
from pyflame_rt.generate.text_stream import TextStream
from pyflame_rt.graph.arguments import expect, expect_whole
from pyflame_rt.graph.errors import InputError, ModelNotFoundError
from pyflame_rt.graph.records import dataclass
from pyflame_rt.importers.detection import detect

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping
    from collections.abc import Sequence as Tokens

    from pyflame_rt.session import InferenceSession

__all__ = ["Completion", "Generator", "Sequence", "encoded"]

_numbers = itertools.count(1)
PREFIX_PAGE = 16  # tokens of a beginning that are kept together: what lies beyond the last whole page is read again


@dataclass(frozen=True, slots=True)
class Completion:
    """What was generated.

    Attributes:
        prompt: the tokens it began with.
        tokens: those that were added, without what ended it.
        text: of these, where there is a tokenizer.
        finish_reason: "stop" (a token or a sequence that ends it), "length" (of what was asked for, or of what the
            model reads), "cancelled", or "error".
        logprobs: of each token, when asked for.
        score: of a beam search; None otherwise.
    """

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    text: str
    finish_reason: str
    logprobs: tuple[Token, ...] = ()
    score: float | None = None


class Sequence:
    """A prompt that is being continued.

    Attributes:
        number: its id.
        tokens: what was added so far, without what ended it.
        finish_reason: "" as long as it goes on.
        error: why it could not go on, where its finish_reason is "error".
    """

    def __init__(
        self,
        prompt: Tokens[int],
        params: SamplingParams,
        tokenizer: Any,
        *,
        words: int | None = None,
        context: int | None = None,
    ) -> None:
        expect(params, SamplingParams, "the params of a Sequence")
        self.number = next(_numbers)
        self.prompt = prompt_tokens(prompt, words, context)
        self.params = params.checked()
        self.tokens: list[int] = []
        self.finish_reason = "" if params.max_new_tokens else "length"
        self.error: Exception | None = None
        self._room = None if context is None else context + 1 - len(self.prompt)
        self._chosen: list[Token] = []
        self._constraint = constraint_for(params, tokenizer)
        self._sampler = Sampler(params, self.prompt, self._constraint)
        self._words = None if tokenizer is None else TextStream(tokenizer, params.stop)
        self._ends = params.ends() | (frozenset() if self._constraint is None else self._constraint.ends)
        if any(isinstance(stop, str) for stop in params.stop) and tokenizer is None:
            raise InputError("a text to stop at needs a tokenizer: give stop as lists of tokens")

    def cancel(self) -> None:
        """End it before the next step."""
        self.finish_reason = self.finish_reason or "cancelled"

    def fail(self, error: Exception) -> None:
        """End it, and none of its company."""
        self.finish_reason, self.error = "error", error

    def checked(self) -> Sequence:
        """This sequence, unless it ended by an error, which is raised."""
        if self.error is not None:
            raise self.error
        return self

    def completion(self) -> Completion:
        """What was generated so far."""
        kept = tuple(self._chosen[: len(self.tokens)]) if self.params.logprobs is not None else ()
        return Completion(self.prompt, tuple(self.tokens), self.text, self.finish_reason, kept)

    def take(self, scores: np.ndarray[Any, Any]) -> Token | None:
        """Choose the next token; None when the sequence ends without it."""
        token = self._sampler.choose(scores)
        if token.id in self._ends:
            self.finish_reason = "stop"
            return self._ended_by(token)
        self.tokens.append(token.id)
        self._chosen.append(token)
        if self._words is not None:
            self._words.add(token.id)
        if self._stopped():
            self.finish_reason = "stop"
            return self._ended_by(token)
        if self._constraint is not None and self._constraint.ended:
            self.finish_reason = "stop"
        elif len(self.tokens) in (self.params.max_new_tokens, self._room):
            self.finish_reason = "length"
        said = "" if self._words is None else self._words.take(whole=bool(self.finish_reason))
        return Token(token.id, said, token.logprob, token.top_logprobs)

    @property
    def text(self) -> str:
        """Of the tokens that were added, where there is a tokenizer; without what it was stopped at."""
        return "" if self._words is None else self._words.text

    def _ended_by(self, token: Token) -> Token | None:
        """The token that ended it, with text that was held back until now; None when there is none."""
        said = "" if self._words is None else self._words.take(whole=True)
        return Token(token.id, said, token.logprob, token.top_logprobs) if said else None

    def _stopped(self) -> bool:
        """Whether the end is one to stop at, which is then cut off."""
        if self._words is not None and self._words.cut():
            return True
        for stop in self.params.stop:
            if not isinstance(stop, str) and self.tokens[-len(stop) :] == list(stop):
                del self.tokens[-len(stop) :]
                if self._words is not None:
                    self._words.restart(self.tokens)
                return True
        return False


class Generator:
    """Continues many sequences at a time.

    :meth:`stream` and :meth:`generate` are the simple ways; :meth:`add` and :meth:`step` are for programs that have
    their own loop, such as servers. Sequences join between steps. Each step runs all that are under way as one; rows
    are padded to a few sizes and the past to whole pages, so that the session meets few shapes. Prompts are read in
    pieces of ``prefill_chunk`` tokens, one in each step, so that long ones do not hold others up. For one thread.

    Args:
        session: a decoder (see :class:`Decoder`).
        tokenizer: has ``encode(text)`` and ``decode(tokens)``, for prompts that are text; may be None.
        max_batch_size: sequences that run together; others wait.
        page: tokens by which the room for keys and values grows.
        prefill_chunk: tokens of a prompt that are read at once.
        prefix_cache_bytes: keys and values of beginnings that later prompts may share, at most; 0 keeps none.
        state_map: pairs of output and input, where they are not found by name.

    Attributes:
        prefixes: the beginnings that are kept, with their hits and misses.
    """

    def __init__(
        self,
        session: InferenceSession,
        tokenizer: Any = None,
        *,
        max_batch_size: int = 8,
        page: int = 64,
        prefill_chunk: int = 256,
        prefix_cache_bytes: int = 256 << 20,
        state_map: Mapping[str, str] | None = None,
    ) -> None:
        max_batch_size, page = expect_whole(max_batch_size, "max_batch_size"), expect_whole(page, "page")
        prefill_chunk = expect_whole(prefill_chunk, "prefill_chunk")
        if expect_whole(prefix_cache_bytes, "prefix_cache_bytes") < 0:
            raise InputError(f"prefix_cache_bytes must not be negative, got {prefix_cache_bytes}")
        if min(max_batch_size, page, prefill_chunk) < 1:
            raise InputError("max_batch_size, page and prefill_chunk must be at least 1")
        self.decoder = open_decoder(session, state_map)
        self.tokenizer = tokenizer
        self.max_batch_size = max_batch_size
        self.prefill_chunk = prefill_chunk
        self._cache = self.decoder.new_cache(page)
        self.prefixes = PrefixCache(min(page, PREFIX_PAGE), prefix_cache_bytes)
        self._rows: list[Sequence] = []  # by row of the cache
        self._waiting: deque[Sequence] = deque()
        self._reading: dict[int, int] = {}  # tokens of the prompt that were read, of sequences not ready yet

    @classmethod
    def from_pretrained(cls, folder: str | os.PathLike[str], **settings: Any) -> Generator:
        """The generator of a Hugging Face folder or a GGUF file, with its tokenizer where it has one.

        Args:
            folder: with config.json and weights of a decoder, see :class:`HuggingFaceImporter`; or a GGUF file.
            settings: of the generator.

        Raises:
            ModelNotFoundError: There is no such folder or file.
            UnsupportedFormatError: Its architecture is not known, or generates nothing.
        """
        place = Path(folder)
        if not place.is_dir() and detect(place) != "gguf":
            raise ModelNotFoundError(f"there is no folder {str(place)!r}, and no GGUF file")
        return cls(*open_model(place), **settings)

    # ------------------------------------------------------------------ the simple ways

    def stream(self, prompt: str | Tokens[int], params: SamplingParams | None = None) -> Iterator[Token]:
        """The tokens that continue a prompt, one by one as they come."""
        sequence = self.add(prompt, params)
        try:
            while not sequence.finish_reason:
                for owner, token in self.step():
                    if owner is sequence:
                        yield token
            sequence.checked()
        finally:
            sequence.cancel()

    def generate(self, prompts: Tokens[str | Tokens[int]], params: SamplingParams | None = None) -> list[Completion]:
        """Continue several prompts; completions in their order."""
        sequences: list[Sequence] = []
        try:
            sequences.extend(self.add(prompt, params) for prompt in prompts)
            while any(not sequence.finish_reason for sequence in sequences):
                self.step()
        finally:
            for sequence in sequences:
                sequence.cancel()
        return [sequence.checked().completion() for sequence in sequences]

    # ------------------------------------------------------------------ the loop

    def add(self, prompt: str | Tokens[int], params: SamplingParams | None = None) -> Sequence:
        """Have a prompt continued by the steps to come."""
        chosen = SamplingParams() if params is None else params
        words, context = self.decoder.words, self.decoder.context
        tokens = encoded(prompt, self.tokenizer)
        sequence = Sequence(tokens, chosen, self.tokenizer, words=words, context=context)
        if not sequence.finish_reason:
            self._waiting.append(sequence)
        return sequence

    def beam_search(self, prompt: str | Tokens[int], params: BeamParams | None = None) -> list[Completion]:
        """The likeliest continuations of a prompt, best first; apart from the sequences under way."""
        tokens = encoded(prompt, self.tokenizer)
        chosen = BeamParams() if params is None else params
        made = beam_search(self.decoder, tokens, chosen, page=self._cache.page)
        return [
            Completion(
                tuple(int(t) for t in tokens),
                beam.tokens,
                "" if self.tokenizer is None else str(self.tokenizer.decode(list(beam.tokens))),
                beam.finish_reason,
                score=beam.score,
            )
            for beam in made
        ]

    @property
    def active(self) -> int:
        """Sequences that run or wait."""
        return len(self._rows) + len(self._waiting)

    def step(self) -> list[tuple[Sequence, Token]]:
        """Read a piece of one prompt, and give every other sequence its next token; what was chosen.

        What goes wrong with one sequence ends that one alone: see its ``error``.
        """
        self._drop_finished()
        while self._waiting and len(self._rows) < self.max_batch_size:
            sequence = self._waiting.popleft()
            if not sequence.finish_reason:
                row = self._cache.add()
                self._reading[sequence.number] = self.prefixes.restore(sequence.prompt, self._cache, row)
                self._rows.append(sequence)
        chosen = self._prefill()
        return chosen + self._decode({owner.number for owner, _ in chosen})

    def _drop_finished(self) -> None:
        for row in range(len(self._rows) - 1, -1, -1):
            if self._rows[row].finish_reason:
                sequence = self._rows[row]
                self._reading.pop(sequence.number, None)
                whole = (*sequence.prompt, *sequence.tokens)[: self._cache.lengths[row]]
                self.prefixes.keep(whole, self._cache, row)
                self._rows[row] = self._rows[self._cache.remove(row)]
                self._rows.pop()

    def _prefill(self) -> list[tuple[Sequence, Token]]:
        """The next piece of the prompt that waits longest; a token when that was the last."""
        for row, sequence in enumerate(self._rows):
            begin = self._reading.get(sequence.number)
            if begin is None:
                continue
            piece = sequence.prompt[begin : begin + self.prefill_chunk]
            size = min(padded(len(piece)), self.prefill_chunk)
            tokens = np.zeros((1, size), np.int64)
            tokens[0, : len(piece)] = piece
            scores = self.decoder.forward(self._cache, row, tokens, [len(piece)], last=True)
            if begin + len(piece) < len(sequence.prompt):
                self._reading[sequence.number] = begin + len(piece)
                return []
            del self._reading[sequence.number]
            self.prefixes.keep(sequence.prompt, self._cache, row)
            return self._taken([(sequence, scores[0])])
        return []

    def _decode(self, just_read: set[int]) -> list[tuple[Sequence, Token]]:
        """One token for every sequence whose prompt was read before this step."""
        ready = [
            i
            for i, s in enumerate(self._rows)
            if s.number not in self._reading and s.number not in just_read and not s.finish_reason
        ]
        if not ready:
            return []
        rows = min(bucket(max(ready) + 1), self._cache.capacity)
        tokens = np.zeros((rows, 1), np.int64)
        counts = [0] * rows  # those that are not ready run along, and are not counted
        for row in ready:
            tokens[row, 0] = self._rows[row].tokens[-1]
            counts[row] = 1
        scores = self.decoder.forward(self._cache, 0, tokens, counts, last=True)
        return self._taken([(self._rows[row], scores[row]) for row in ready])

    def _taken(self, scored: list[tuple[Sequence, np.ndarray[Any, Any]]]) -> list[tuple[Sequence, Token]]:
        found = []
        for sequence, scores in scored:
            try:
                token = sequence.take(scores)
            except Exception as error:  # noqa: BLE001 - it belongs to one sequence; the others have their tokens
                sequence.fail(error)
                continue
            if token is not None:
                found.append((sequence, token))
        return found


def encoded(prompt: str | Tokens[int], tokenizer: Any) -> Tokens[int]:
    """A prompt as tokens.

    Raises:
        InputError: It is text, and there is no tokenizer.
    """
    if not isinstance(prompt, str):
        return prompt
    if tokenizer is None:
        raise InputError("a prompt that is text needs a tokenizer: give a list of tokens")
    found = tokenizer.encode(prompt)
    return getattr(found, "ids", found)
