"""Sequences that join, leave and share steps give what each gives alone."""

import numpy as np
import pytest

from pyflame_rt import Graph, InferenceSession, InputError
from pyflame_rt.generate import Generator, KVCache, SamplingParams
from tests.unit.generate.small_gpt import decoder, scores


@pytest.fixture(scope="module")
def session() -> InferenceSession:
    return InferenceSession(decoder())


def whole(session, prompt, count) -> list[int]:
    """The same without keys and values kept: all tokens are run again for each one."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(scores(session, tokens).argmax()))
    return tokens[len(prompt) :]


PROMPTS = [[3, 1, 4], [1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4, 6, 2, 6], [7], [2, 7, 1, 8, 2, 8]]


def test_one_sequence_streams(session) -> None:
    generator = Generator(session, page=8)
    tokens = [token.id for token in generator.stream(PROMPTS[0], SamplingParams(max_new_tokens=12))]
    assert tokens == whole(session, PROMPTS[0], 12)
    assert generator.active == 1  # until the next step
    generator.step()
    assert generator.active == 0


def test_sequences_together_give_what_each_gives_alone(session) -> None:
    generator = Generator(session, max_batch_size=3, page=8, prefill_chunk=8)
    found = generator.generate(PROMPTS, SamplingParams(max_new_tokens=10))
    for prompt, completion in zip(PROMPTS, found, strict=True):
        assert list(completion.tokens) == whole(session, prompt, 10)
        assert completion.prompt == tuple(prompt)
        assert completion.finish_reason == "length"


def test_sequences_join_and_leave(session) -> None:
    generator = Generator(session, page=8)
    first = generator.add(PROMPTS[0], SamplingParams(max_new_tokens=20))
    for _ in range(3):
        generator.step()
    second = generator.add(PROMPTS[3], SamplingParams(max_new_tokens=4))
    third = generator.add(PROMPTS[2], SamplingParams(max_new_tokens=9))
    generator.step()
    third.cancel()
    while not (first.finish_reason and second.finish_reason):
        generator.step()
    assert first.tokens == whole(session, PROMPTS[0], 20)
    assert second.tokens == whole(session, PROMPTS[3], 4)
    assert third.finish_reason == "cancelled"


def test_ends_and_stops(session) -> None:
    expected = whole(session, PROMPTS[1], 8)
    generator = Generator(session)
    end = expected[4]
    (found,) = generator.generate([PROMPTS[1]], SamplingParams(max_new_tokens=8, eos_token_id=[end]))
    assert list(found.tokens) == expected[: expected.index(end)]
    assert found.finish_reason == "stop"
    stop = expected[2:4]
    at = next(i for i in range(7) if expected[i : i + 2] == stop)
    (found,) = generator.generate([PROMPTS[1]], SamplingParams(max_new_tokens=8, stop=[stop]))
    assert list(found.tokens) == expected[:at]
    assert found.finish_reason == "stop"
    (found,) = generator.generate([PROMPTS[1]], SamplingParams(max_new_tokens=0))
    assert (found.tokens, found.finish_reason) == ((), "length")


class Letters:
    """A tokenizer: a token is a letter."""

    def encode(self, text):
        return [ord(c) - 96 for c in text]

    def decode(self, tokens):
        return "".join(chr(96 + token) for token in tokens)


def test_text_in_and_out(session) -> None:
    generator = Generator(session, Letters())
    (found,) = generator.generate(["cad"], SamplingParams(max_new_tokens=6, logprobs=1))
    assert found.text == Letters().decode(whole(session, [3, 1, 4], 6))
    assert len(found.logprobs) == 6
    assert all(token.id in token.top_logprobs for token in found.logprobs)
    parts = [token.text for token in generator.stream("cad", SamplingParams(max_new_tokens=6))]
    assert "".join(parts) == found.text
    (cut,) = generator.generate(["cad"], SamplingParams(max_new_tokens=6, stop=[found.text[2:4]]))
    assert cut.text == found.text[: found.text.find(found.text[2:4])]
    assert cut.finish_reason == "stop"


def test_equal_seeds_draw_alike_in_any_company(session) -> None:
    params = SamplingParams(max_new_tokens=10, temperature=1.0, seed=5)
    alone = Generator(session).generate([PROMPTS[0]], params)[0].tokens
    together = Generator(session, page=8).generate([PROMPTS[0], PROMPTS[1]], params)
    assert together[0].tokens == alone


def test_few_shapes_are_met(session) -> None:
    fresh = InferenceSession(decoder())
    Generator(fresh, page=64).generate([PROMPTS[0]], SamplingParams(max_new_tokens=50))
    assert fresh.memory_stats()["plans"] <= 3


def test_models_of_another_form_are_refused() -> None:
    graph = Graph("g")
    graph.add_input("x", ["N"])
    graph.add_node("n", "Neg", ["x"], ["y"])
    graph.add_output("y", ["N"])
    with pytest.raises(InputError, match=r"cannot generate.*a mask.*position_ids.*past keys and values"):
        Generator(InferenceSession(graph))


def test_prompts_are_checked(session) -> None:
    generator = Generator(session)
    with pytest.raises(InputError, match="at least one token"):
        generator.add([])
    with pytest.raises(InputError, match="tokenizer"):
        generator.add("text")
    with pytest.raises(InputError, match="tokenizer"):
        generator.add([1], SamplingParams(stop=["x"]))
    with pytest.raises(InputError, match="at least 1"):
        Generator(session, page=0)


def test_the_cache_keeps_rows_apart() -> None:
    cache = KVCache({"k": (1, 2)}, {"k": 1}, {"k": np.dtype(np.float32)}, page=4)
    rows = [cache.add() for _ in range(3)]
    for row in rows:
        cache.write([row], {"k": np.full((1, 3, 2), row + 1, np.float32)}, [row + 1])
    cache.write([0, 2], {"k": np.full((2, 2, 2), 9, np.float32)}, [2, 0])
    assert cache.lengths == [3, 2, 3]
    assert cache.states(3)["k"][:, :3, 0].tolist() == [[1, 9, 9], [2, 2, 0], [3, 3, 3]]
    cache.write([2], {"k": np.full((1, 4, 2), 7, np.float32)}, [4])
    assert cache.room == 8
    assert cache.remove(0) == 2
    assert cache.states(2)["k"][0, :, 0].tolist() == [3, 3, 3, 7, 7, 7, 7, 0]
    cache.remove(0)
    cache.remove(0)
    assert (cache.lengths, cache.room) == ([], 0)
