"""The next token: penalties, bias, temperature, then what is left out of the distribution, in the usual order."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import field
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.generate.checks import prompt_tokens, token_set
from pyflame_rt.graph.arguments import ANY, Bound, expect, number_problems
from pyflame_rt.graph.errors import InputError
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyflame_rt.generate.constraints import Constraint

__all__ = ["Sampler", "SamplingParams", "Token", "distribution", "log_softmax"]

Scores = np.ndarray[Any, Any]
_REAL: dict[str, Bound] = {
    "temperature": (lambda value: value >= 0, "not be negative"),
    "top_p": (lambda value: 0 < value <= 1, "be above 0 and at most 1"),
    "min_p": (lambda value: 0 <= value <= 1, "be from 0 to 1"),
    "repetition_penalty": (lambda value: value > 0, "be positive"),
    "presence_penalty": ANY,
    "frequency_penalty": ANY,
}


@dataclass(slots=True)
class SamplingParams:
    """How a sequence is continued.

    Attributes:
        max_new_tokens: how many tokens to add at most.
        min_new_tokens: so many are added before a token that ends the sequence may come.
        temperature: 0 takes the best token; 1 draws as the model says, higher is more daring.
        top_k: draw among the best so many; 0 for all.
        top_p: draw among the best that together have this probability.
        min_p: draw among those with at least this part of the best one's probability.
        repetition_penalty: divides the scores above zero of tokens that were there, prompt included, and multiplies
            those below.
        presence_penalty: is taken from the scores of tokens that were generated.
        frequency_penalty: is taken from them once for each time.
        logit_bias: is added to the scores of given tokens; minus infinity forbids one.
        eos_token_id: ends the sequence; one, several, or None.
        stop: texts, or lists of tokens, that end the sequence, and are not part of it.
        logprobs: with each token, its log-probability as the model says and those of the best so many; None for none.
        seed: equal seeds draw equal tokens.
        json_schema: the text is JSON that fits this schema (a mapping, or its text); needs ``pyflame[constrained]``.
        regex: the text matches this regular expression, of Rust's form.
        grammar: the text is of this grammar, in Lark's form.

    Example:
        >>> SamplingParams(temperature=0.8, top_p=0.9).validate(), SamplingParams(top_p=2).validate()
        ([], ['top_p must be above 0 and at most 1, got 2'])
    """

    max_new_tokens: int = 20
    min_new_tokens: int = 0
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    eos_token_id: int | Sequence[int] | None = None
    stop: Sequence[str | Sequence[int]] = ()
    logprobs: int | None = None
    seed: int | None = None
    json_schema: Mapping[str, Any] | str | None = None
    regex: str | None = None
    grammar: str | None = None

    def ends(self) -> frozenset[int]:
        """Tokens that end a sequence.

        Raises:
            InputError: They are no tokens.
        """
        return token_set(self.eos_token_id)

    def validate(self) -> list[str]:
        """What is wrong with the settings; empty when nothing is."""
        whole = dict.fromkeys(("max_new_tokens", "min_new_tokens", "top_k"), 0)
        whole |= {name: 0 for name in ("logprobs", "seed") if getattr(self, name) is not None}
        problems = number_problems(self, whole, _REAL)
        forms = (self.json_schema, self.regex, self.grammar)
        if sum(form is not None for form in forms) > 1:
            problems.append("only one of json_schema, regex and grammar can be followed")
        if any(form is not None and not isinstance(form, str) for form in forms[1:]):
            problems.append("regex and grammar must be texts")
        return [*problems, *_stop_problems(self.stop), *_bias_problems(self.logit_bias)]

    def checked(self) -> SamplingParams:
        """These settings.

        Raises:
            InputError: They are not valid.
        """
        problems = self.validate()
        if problems:
            raise InputError("invalid sampling settings: " + "; ".join(problems))
        self.ends()
        return self


def _stop_problems(stop: Any) -> list[str]:
    """What is wrong with what ends a text; a single text would be taken for its letters."""
    if isinstance(stop, str) or not isinstance(stop, Collection):
        return [f"stop must be a list of texts, or of lists of tokens, got {stop!r}"]
    problems = []
    for end in stop:
        tokens = isinstance(end, Collection) and all(isinstance(token, Integral) for token in end)
        if not isinstance(end, str) and not tokens:
            problems.append(f"a stop sequence must be a text or a list of tokens, got {end!r}")
        elif len(end) == 0:
            problems.append("a stop sequence must not be empty")
    return problems


def _bias_problems(given: Any) -> list[str]:
    if not isinstance(given, Mapping):
        return [f"logit_bias must give a number for each of some tokens, got {given!r}"]
    problems = []
    for token, bias in given.items():
        if not isinstance(token, Integral) or token < 0:
            problems.append(f"logit_bias is for tokens, which count from 0, got {token!r}")
        if not isinstance(bias, Real) or not bias < np.inf:
            problems.append(f"logit_bias of {token!r} must be a number, or minus infinity, got {bias!r}")
    return problems


@dataclass(frozen=True, slots=True)
class Token:
    """A token that was chosen.

    Attributes:
        id: which.
        text: what it adds to the text, where there is a tokenizer.
        logprob: its log-probability as the model says; None when not asked for.
        top_logprobs: those of the best tokens, best first.
    """

    id: int
    text: str = ""
    logprob: float | None = None
    top_logprobs: dict[int, float] = field(default_factory=dict)


def log_softmax(scores: Scores) -> Scores:
    """Log-probabilities of scores."""
    shifted = scores.astype(np.float64) - scores.max()
    return shifted - np.log(np.exp(shifted).sum())


def distribution(scores: Scores, params: SamplingParams) -> Scores:
    """Probabilities to draw with, after temperature, top_k, top_p and min_p.

    Example:
        >>> scores = np.log(np.array([0.5, 0.3, 0.15, 0.05]))
        >>> distribution(scores, SamplingParams(temperature=1, top_k=2)).round(3).tolist()
        [0.625, 0.375, 0.0, 0.0]
        >>> distribution(scores, SamplingParams(temperature=1, top_p=0.7)).round(3).tolist()
        [0.625, 0.375, 0.0, 0.0]
        >>> distribution(scores, SamplingParams(temperature=1, min_p=0.5)).round(3).tolist()
        [0.625, 0.375, 0.0, 0.0]
    """
    raised = scores.astype(np.float64)
    with np.errstate(over="ignore"):  # a temperature near zero leaves the best tokens alone
        chances = _softmax((raised - raised.max()) / params.temperature)
    if 0 < params.top_k < len(chances):
        worst = np.partition(chances, -params.top_k)[-params.top_k]
        chances = _only(chances, chances >= worst)
    if params.top_p < 1:
        order = np.argsort(-chances, kind="stable")
        before = np.cumsum(chances[order]) - chances[order]  # what better tokens have together
        kept = np.zeros(len(chances), bool)
        kept[order] = before < params.top_p
        chances = _only(chances, kept)
    if params.min_p > 0:
        chances = _only(chances, chances >= params.min_p * chances.max())
    return chances


def _softmax(scores: Scores) -> Scores:
    raised = np.exp(scores - scores.max())
    return raised / raised.sum()


def _only(chances: Scores, kept: Scores) -> Scores:
    left = np.where(kept, chances, 0.0)
    return left / left.sum()


class Sampler:
    """Chooses the tokens of one sequence.

    Args:
        params: how.
        prompt: tokens that were there before, for penalties.
        constraint: says which tokens may come; None for all.

    Example:
        >>> sampler = Sampler(SamplingParams(logit_bias={1: -100.0}))
        >>> sampler.choose(np.array([0.1, 0.9, 0.5])).id
        2
    """

    def __init__(
        self, params: SamplingParams, prompt: Iterable[int] = (), constraint: Constraint | None = None
    ) -> None:
        expect(params, SamplingParams, "the params of a Sampler")
        self.params = params.checked()
        self._constraint = constraint
        self._random = np.random.default_rng(params.seed)
        self._prompt = np.unique(np.array(prompt_tokens(given) if (given := list(prompt)) else [], np.int64))
        self._counts: dict[int, int] = {}  # of tokens that were chosen
        self._ends = params.ends() | (frozenset() if constraint is None else constraint.ends)

    def choose(self, scores: Scores) -> Token:
        """The next token, for the model's scores of all tokens.

        Raises:
            InputError: Scores are no numbers, settings allow no token, or name one that there is not.
        """
        params = self.params
        changed = self._changed(scores)
        chosen = int(changed.argmax())  # that of a NaN, where there is one
        best = changed[chosen]
        if not -np.inf < best < np.inf:
            said = "no token is left that the settings allow" if best == -np.inf else f"the best score is {best}"
            raise InputError(f"no token can be chosen: {said}")
        if params.temperature != 0:
            chances = distribution(changed, params)
            # One number decides, so that equal seeds draw alike whatever else is asked for.
            chosen = int(np.searchsorted(np.cumsum(chances), self._random.random() * chances.sum(), side="right"))
            chosen = min(chosen, int(np.flatnonzero(chances)[-1]))
        if self._constraint is not None:
            self._constraint.take(chosen)
        self._counts[chosen] = self._counts.get(chosen, 0) + 1
        if params.logprobs is None:
            return Token(chosen)
        logs = log_softmax(scores)
        best = np.argsort(-logs, kind="stable")[: params.logprobs]
        return Token(chosen, "", float(logs[chosen]), {int(i): float(logs[i]) for i in best})

    def _changed(self, scores: Scores) -> Scores:
        """Scores with penalties and bias; those that were given where there is nothing to change."""
        params = self.params
        early = params.min_new_tokens > 0 and sum(self._counts.values()) < params.min_new_tokens
        penal = params.presence_penalty != 0 or params.frequency_penalty != 0
        if not (early or penal or params.repetition_penalty != 1 or params.logit_bias or self._constraint):
            return scores
        changed = scores.astype(np.float64)
        if (named := max(params.logit_bias, default=0)) >= len(changed):
            raise InputError(f"logit_bias names token {named}; the model has {len(changed)}")
        if params.repetition_penalty != 1:
            seen = np.union1d(self._prompt, np.fromiter(self._counts, np.int64))
            there = changed[seen]
            changed[seen] = np.where(there < 0, there * params.repetition_penalty, there / params.repetition_penalty)
        for token, count in self._counts.items() if penal else ():
            changed[token] -= params.presence_penalty + count * params.frequency_penalty
        for token, bias in params.logit_bias.items():
            changed[token] += bias
        if early:
            changed[[token for token in self._ends if 0 <= token < len(changed)]] = -np.inf
        if self._constraint is not None:
            changed[~self._constraint.allowed(len(changed))] = -np.inf
        return changed
