"""Output that fits a JSON schema, a regular expression or a grammar: masks of tokens by ``llguidance``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph.errors import InputError, MissingExtra

if TYPE_CHECKING:
    from pyflame_rt.generate.sampling import SamplingParams
    from pyflame_rt.generate.tokenizer import Tokenizer

__all__ = ["Constraint", "constraint_for"]

_EXTRA = "pip install 'pyflame[constrained]'"


class Constraint:
    """Which tokens may come next, of one sequence.

    Args:
        library: an ``llguidance.LLTokenizer``.
        grammar: as ``llguidance`` takes it.
        what: it is, for errors.

    Attributes:
        ends: tokens that end the sequence where the grammar lets it end.

    Raises:
        InputError: There is no such grammar.
    """

    def __init__(self, library: Any, grammar: str, what: str) -> None:
        from llguidance import LLMatcher

        self._what = what
        self._matcher = LLMatcher(library, grammar, log_level=0)
        self.ends = frozenset(int(token) for token in library.eos_tokens)
        self._check()

    def allowed(self, words: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which of so many tokens may come next."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        found = np.unpackbits(bits, bitorder="little")[:words].astype(bool)
        return np.pad(found, (0, words - len(found)))  # a model may have more tokens than its tokenizer

    def take(self, token: int) -> None:
        """A token was chosen."""
        if token not in self.ends:
            self._matcher.consume_token(token)
            self._check()

    @property
    def ended(self) -> bool:
        """Whether nothing more can come."""
        return bool(self._matcher.is_stopped())

    def _check(self) -> None:
        if self._matcher.is_error():
            told = self._matcher.get_error().strip().splitlines() or ["it is not valid"]
            raise InputError(f"{self._what} cannot be followed: {told[0]}")


def constraint_for(params: SamplingParams, tokenizer: Tokenizer | None) -> Constraint | None:
    """What the settings ask for; None where they ask for nothing.

    Raises:
        InputError: The tokenizer is not one of a tokenizer.json, or the schema, expression or grammar is not valid.
        MissingExtra: ``llguidance`` is not installed.
    """
    if params.json_schema is None and params.regex is None and params.grammar is None:
        return None
    guide = getattr(tokenizer, "guide", None)
    if guide is None:
        raise InputError("json_schema, regex and grammar need a tokenizer: load_tokenizer reads that of a folder")
    try:
        from llguidance import LLMatcher
    except ModuleNotFoundError as error:
        raise MissingExtra(f"constrained output needs llguidance: {_EXTRA}") from error
    library = guide(params.ends())
    if params.regex is not None:
        return Constraint(library, LLMatcher.grammar_from_regex(params.regex), f"regex {params.regex!r}")
    if params.grammar is not None:
        return Constraint(library, LLMatcher.grammar_from_lark(params.grammar), "the grammar")
    try:
        given = params.json_schema
        schema = json.loads(given) if isinstance(given, str) else given
        grammar = LLMatcher.grammar_from_json_schema(json.dumps(schema))
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"json_schema is no JSON schema: {error}") from error
    return Constraint(library, grammar, "json_schema")
