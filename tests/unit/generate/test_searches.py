"""Beam search against all continuations, speculation against the model alone, shared beginnings against none."""

import itertools

import numpy as np
import pytest

from pyflame_rt import InferenceSession, InputError
from pyflame_rt.generate import (
    BeamParams,
    Decoder,
    Generator,
    KVCache,
    SamplingParams,
    SpeculativeGenerator,
    beam_search,
)
from pyflame_rt.generate.sampling import log_softmax
from tests.unit.generate.small_gpt import decoder, scores

WORDS = 6
PROMPT = [3, 1, 4, 1, 5]


@pytest.fixture(scope="module")
def few() -> InferenceSession:
    return InferenceSession(decoder(words=WORDS))


@pytest.fixture(scope="module")
def session() -> InferenceSession:
    return InferenceSession(decoder())


@pytest.fixture(scope="module")
def log_probability(few):
    known: dict[tuple[int, ...], np.ndarray] = {}

    def total(tokens) -> float:
        result = 0.0
        for i, token in enumerate(tokens):
            before = tuple(tokens[:i])
            if before not in known:
                known[before] = log_softmax(scores(few, [*PROMPT, *before]))
            result += float(known[before][token])
        return result

    return total


def every_continuation(length, end, log_probability, penalty):
    """All sequences that end with ``end`` within a length, or have it; (score, tokens), best first."""
    others = [w for w in range(WORDS) if w != end]
    found = []
    for size in range(length + 1):
        for tokens in itertools.product(others, repeat=size):
            if size == length:
                found.append((log_probability(tokens) / size**penalty, tokens))
            else:
                found.append((log_probability((*tokens, end)) / (size + 1) ** penalty, tokens))
    return sorted(found, reverse=True)


@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.0])
def test_enough_beams_find_the_best_of_all(few, log_probability, penalty) -> None:
    params = BeamParams(
        num_beams=216, max_new_tokens=3, length_penalty=penalty, eos_token_id=2, early_stopping="never",
        num_return_sequences=4,
    )  # fmt: skip
    found = beam_search(Decoder(few), PROMPT, params, page=8)
    wanted = every_continuation(3, 2, log_probability, penalty)[:4]
    assert [beam.tokens for beam in found] == [tokens for _, tokens in wanted]
    np.testing.assert_allclose([beam.score for beam in found], [score for score, _ in wanted], rtol=1e-5)
    assert all(beam.finish_reason == ("length" if len(beam.tokens) == 3 else "stop") for beam in found)


def test_one_beam_is_the_greedy_way(session) -> None:
    generator = Generator(session, page=8)
    (greedy,) = generator.generate([PROMPT], SamplingParams(max_new_tokens=12))
    (found,) = generator.beam_search(PROMPT, BeamParams(num_beams=1, max_new_tokens=12))
    assert found.tokens == greedy.tokens
    assert found.score is not None


def test_more_beams_are_no_worse(session) -> None:
    params = [BeamParams(num_beams=n, max_new_tokens=8, num_return_sequences=n) for n in (1, 3, 8)]
    found = [beam_search(Decoder(session), PROMPT, p, page=8) for p in params]
    assert found[0][0].score <= found[1][0].score + 1e-6
    assert found[1][0].score <= found[2][0].score + 1e-6
    for beams in found:
        assert [b.score for b in beams] == sorted((b.score for b in beams), reverse=True)
        assert len({b.tokens for b in beams}) == len(beams)
        for beam in beams:
            tokens, total = list(PROMPT), 0.0
            for token in beam.tokens:
                total += float(log_softmax(scores(session, tokens))[token])
                tokens.append(token)
            np.testing.assert_allclose(beam.score, total / len(beam.tokens), rtol=1e-5)


def test_settings_of_searches_are_checked(session) -> None:
    with pytest.raises(InputError, match="num_beams must be at least 1, got 0"):
        beam_search(Decoder(session), PROMPT, BeamParams(num_beams=0))
    with pytest.raises(InputError, match="early_stopping must be"):
        beam_search(Decoder(session), PROMPT, BeamParams(early_stopping="soon"))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="at least one token"):
        beam_search(Decoder(session), [], BeamParams())
    with pytest.raises(InputError, match="lookahead"):
        SpeculativeGenerator(session, session, lookahead=0)
    with pytest.raises(InputError, match="prefix_cache_bytes"):
        Generator(session, prefix_cache_bytes=-1)


# ---------------------------------------------------------------------- speculation


@pytest.mark.parametrize("lookahead", [1, 3, 7])
@pytest.mark.parametrize("draft", [4, 5], ids=["the same model", "another model"])
@pytest.mark.parametrize("settings", [{}, {"temperature": 1.0, "seed": 3}, {"repetition_penalty": 1.3}], ids=str)
def test_a_draft_changes_no_token(session, draft, lookahead, settings) -> None:
    params = SamplingParams(max_new_tokens=25, eos_token_id=30, stop=([9, 9, 9],), **settings)
    prompts = [PROMPT, [7], list(range(20))]
    alone = Generator(session, page=8).generate(prompts, params)
    helper = session if draft == 4 else InferenceSession(decoder(draft))
    fast = SpeculativeGenerator(session, helper, lookahead=lookahead, page=8)
    assert fast.generate(prompts, params) == alone
    assert 0 <= fast.accepted <= fast.proposed
    if draft == 4 and not settings:
        assert fast.accepted == fast.proposed


def test_a_stream_of_speculation_ends_as_it_should(session) -> None:
    fast = SpeculativeGenerator(session, session, page=8)
    assert len(list(fast.stream(PROMPT, SamplingParams(max_new_tokens=6)))) == 6
    assert list(fast.stream(PROMPT, SamplingParams(max_new_tokens=0))) == []
    with pytest.raises(InputError, match="tokenizer"):
        fast.stream("text")


# ---------------------------------------------------------------------- shared beginnings


def test_shared_beginnings_are_read_once(session) -> None:
    shared = [int(t) for t in np.random.default_rng(0).integers(0, 31, 50)]
    prompts = [[*shared, 1, 2], [*shared, 3], shared, shared[:17]]
    params = SamplingParams(max_new_tokens=10)
    plain = Generator(session, page=8, prefix_cache_bytes=0, max_batch_size=2).generate(prompts, params)
    generator = Generator(session, page=8, max_batch_size=2)
    assert generator.generate(prompts[:1], params) == plain[:1]
    assert generator.prefixes.hits == 0
    assert generator.generate(prompts[1:], params) == plain[1:]
    assert generator.prefixes.hits == 48 + 48 + 16
    again = generator.generate([[*prompts[0], *plain[0].tokens, 5]], params)
    assert generator.prefixes.hits == 48 + 48 + 16 + 56  # what was generated is known, too
    assert again == Generator(session, prefix_cache_bytes=0).generate([[*prompts[0], *plain[0].tokens, 5]], params)


def test_another_beginning_is_never_taken(session) -> None:
    generator = Generator(session, page=4, max_batch_size=1)
    params = SamplingParams(max_new_tokens=5)
    prompts = [[1, 2, 3, 4, 5, 6, 7, 8, 9], [9, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 3, 4, 5, 6, 7, 9, 9]]
    for prompt in prompts:
        assert generator.generate([prompt], params) == Generator(session, prefix_cache_bytes=0).generate(
            [prompt], params
        )
    assert generator.prefixes.hits == 4


def test_the_least_used_beginnings_go_first(session) -> None:
    generator = Generator(session, page=8, prefix_cache_bytes=20_000, max_batch_size=1)
    params = SamplingParams(max_new_tokens=2)
    first, rest = list(range(30)), [[k, *range(29)] for k in range(10)]
    for prompt in rest:
        generator.generate([first, prompt], params)
        assert generator.prefixes.bytes <= 20_000
    assert generator.prefixes.hits >= 24 * (len(rest) - 1)
    generator.prefixes.clear()
    assert len(generator.prefixes) == generator.prefixes.bytes == 0


def test_rows_are_cut_and_taken_again() -> None:
    cache = KVCache({"k": (1,)}, {"k": 1}, {"k": np.dtype(np.float32)}, page=4)
    for row in range(2):
        cache.add()
        cache.write([row], {"k": np.full((1, 3), row, np.float32)}, [3])
    cache.truncate(1, 2)
    cache.gather([1, 1, 0])
    assert cache.lengths == [2, 2, 3]
    assert cache.states(3)["k"][:, 0].tolist() == [1, 1, 0]
    with pytest.raises(IndexError, match="row 0 has 2 tokens, not 3"):
        cache.truncate(0, 3)


def test_known_beginnings_make_room_once(session) -> None:
    generator = Generator(session, page=4, max_batch_size=1)
    shared = [int(t) for t in np.random.default_rng(0).integers(0, 31, 60)]
    params = SamplingParams(max_new_tokens=1)
    generator.generate([[*shared, 1]], params)
    grown = []
    resize = generator._cache._resize
    generator._cache._resize = lambda rows, room: (grown.append(room), resize(rows, room))
    generator.generate([[*shared, 2]], params)
    assert [room for room in grown if room] == [64]


def test_beginnings_are_known_up_to_a_few_tokens(session) -> None:
    generator = Generator(session, max_batch_size=1)
    shared = [int(t) for t in np.random.default_rng(0).integers(0, 31, 60)]
    generator.generate([[*shared, 1], [*shared, 2]], SamplingParams(max_new_tokens=1))
    assert generator.prefixes.hits == 48
