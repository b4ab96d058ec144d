"""Which token comes next."""

import numpy as np
import pytest

from pyflame_rt import InputError
from pyflame_rt.generate import Sampler, SamplingParams
from pyflame_rt.generate.sampling import distribution, log_softmax

SCORES = np.array([2.0, -1.0, 0.5, 3.0, 1.0, -2.0, 0.0, 2.5])


def test_greedy_takes_the_best() -> None:
    sampler = Sampler(SamplingParams())
    assert [sampler.choose(SCORES).id for _ in range(3)] == [3, 3, 3]


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({}, {0, 1, 2, 3, 4, 5, 6, 7}),
        ({"top_k": 3}, {3, 7, 0}),
        ({"top_k": 100}, {0, 1, 2, 3, 4, 5, 6, 7}),
        ({"top_p": 0.5}, {3, 7}),
        ({"top_p": 1e-9}, {3}),
        ({"min_p": 0.3}, {3, 7, 0}),
        ({"top_k": 3, "top_p": 0.6}, {3, 7}),
    ],
)
def test_what_is_drawn_from(settings, kept) -> None:
    chances = distribution(SCORES, SamplingParams(temperature=1.0, **settings))
    assert set(np.flatnonzero(chances)) == kept
    full = np.exp(SCORES) / np.exp(SCORES).sum()
    expected = np.where(np.isin(np.arange(8), list(kept)), full, 0)
    np.testing.assert_allclose(chances, expected / expected.sum(), rtol=1e-12)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_distribution(temperature) -> None:
    """Chi-square with 7 degrees of freedom: a right one is above 30 once in 10,000 seeds, and the seed is fixed."""
    params = SamplingParams(temperature=temperature, seed=7)
    expected = 20_000 * distribution(SCORES, params)
    sampler = Sampler(params)
    counts = np.bincount([sampler.choose(SCORES).id for _ in range(20_000)], minlength=8)
    often = expected > 5
    assert ((counts - expected)[often] ** 2 / expected[often]).sum() < 30


def test_seeds_repeat() -> None:
    def draws(seed):
        sampler = Sampler(SamplingParams(temperature=1.5, seed=seed))
        return [sampler.choose(SCORES).id for _ in range(50)]

    assert draws(1) == draws(1) != draws(2)


def test_penalties() -> None:
    sampler = Sampler(SamplingParams(repetition_penalty=2.0), prompt=[3, 3, 1])
    changed = sampler._changed(SCORES)
    assert (changed[3], changed[1], changed[0]) == (1.5, -2.0, 2.0)
    assert sampler.choose(SCORES).id == 7  # 3 was there
    assert sampler._changed(SCORES)[7] == 1.25
    sampler = Sampler(SamplingParams(presence_penalty=0.25, frequency_penalty=0.5), prompt=[0])
    for _ in range(2):
        assert sampler._changed(SCORES)[0] == 2.0
        sampler._counts[3] = sampler._counts.get(3, 0) + 1
    assert sampler._changed(SCORES)[3] == 3.0 - 0.25 - 2 * 0.5


def test_bias_and_forbidden_tokens() -> None:
    sampler = Sampler(SamplingParams(logit_bias={3: -np.inf, 5: 100.0}, temperature=1.0))
    assert sampler.choose(SCORES).id == 5
    assert distribution(sampler._changed(SCORES), sampler.params)[3] == 0


def test_the_end_may_not_come_too_early() -> None:
    sampler = Sampler(SamplingParams(eos_token_id=3, min_new_tokens=2))
    assert [sampler.choose(SCORES).id for _ in range(3)] == [7, 7, 3]


def test_log_probabilities_are_the_models() -> None:
    token = Sampler(SamplingParams(logprobs=2, logit_bias={5: 100.0})).choose(SCORES)
    logs = log_softmax(SCORES)
    assert (token.id, token.logprob) == (5, logs[5])
    assert token.top_logprobs == {3: logs[3], 7: logs[7]}
    assert np.exp(logs).sum() == pytest.approx(1)


def test_settings_are_checked() -> None:
    bad = SamplingParams(top_p=0, min_p=2, temperature=-1, repetition_penalty=0, logprobs=-1, stop=[[]])
    assert len(bad.validate()) == 6
    with pytest.raises(InputError, match="top_p must be above 0"):
        Sampler(bad)
