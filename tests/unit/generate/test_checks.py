"""What is no prompt or no setting is refused in words; a sequence that fails or is full ends, its company does not."""

import numpy as np
import pytest

import pyflame_rt
from pyflame_rt.generate import BeamParams, Generator, Sampler, SamplingParams, SpeculativeGenerator
from pyflame_rt.graph.errors import InputError
from tests.unit.generate.small_gpt import WORDS, decoder

CONTEXT = 200
NAN, INF = float("nan"), float("inf")


@pytest.fixture(scope="module")
def session():
    return pyflame_rt.InferenceSession(decoder())


STRANGE_PROMPTS = [
    [], None, 5, [1, -1], [WORDS], [1 << 70], [1.0], [NAN], ["a"], [[1, 2]], np.ones((2, 2), np.int64),
    np.ones(2, np.float32), b"\xff", [1] * (CONTEXT + 1),
]  # fmt: skip


@pytest.mark.parametrize("prompt", STRANGE_PROMPTS, ids=lambda p: str(p)[:20])
def test_what_is_no_prompt_is_refused(session, prompt):
    generator = Generator(session)
    for use in (
        generator.add,
        generator.beam_search,
        lambda p: generator.generate([p]),
        lambda p: list(generator.stream(p)),
        lambda p: SpeculativeGenerator(session, session).generate([p]),
    ):
        with pytest.raises(InputError, match="prompt"):
            use(prompt)
    assert generator.active == 0


STRANGE_SETTINGS = {
    "max_new_tokens": [-1, 1.5, "3", None, NAN],
    "min_new_tokens": [-1, 1.5, "a"],
    "temperature": [-1, NAN, INF, "x", None],
    "top_k": [-1, 1.5, "a"],
    "top_p": [0, 1.1, NAN, "a"],
    "min_p": [-0.1, 2, NAN],
    "repetition_penalty": [0, -1, NAN, INF, "a"],
    "presence_penalty": [NAN, INF, "a"],
    "frequency_penalty": [NAN, -INF, None],
    "logit_bias": [{-1: 1.0}, {1: NAN}, {1: INF}, {"a": 1}, {1.5: 1}, {1: "a"}, [1], None],
    "eos_token_id": ["a", 1.5, [[1]], [None]],
    "stop": ["abc", [5], [""], [[]], [["a"]], [[1.5]], [None], None],
    "logprobs": [-1, 1.5, "a"],
    "seed": [-1, 1.5, "a"],
    "regex": [5],
    "grammar": [["x"]],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in STRANGE_SETTINGS.items() for value in values], ids=str
)
def test_what_is_no_setting_is_refused_by_name(session, name, value):
    with pytest.raises(InputError, match=name):
        Generator(session).add([1], SamplingParams(**{name: value}))


STRANGE_SEARCHES = {
    "num_beams": [0, 1.5, "a"],
    "max_new_tokens": [0, 1.5],
    "length_penalty": [NAN, INF, 1e6, "a"],
    "early_stopping": [None, "x"],
    "num_return_sequences": [0, 5, 1.5],
    "eos_token_id": ["a", 1.5],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in STRANGE_SEARCHES.items() for value in values], ids=str
)
def test_what_is_no_search_is_refused_by_name(session, name, value):
    with pytest.raises(InputError, match=name):
        Generator(session).beam_search([1], BeamParams(**{name: value}))


@pytest.mark.parametrize("name", ["max_batch_size", "page", "prefill_chunk", "prefix_cache_bytes"])
@pytest.mark.parametrize("value", [1.5, "a", None])
def test_sizes_of_generators_are_whole(session, name, value):
    with pytest.raises(TypeError, match=f"{name} must be a whole number"):
        Generator(session, **{name: value})


def test_numbers_of_numpy_are_numbers(session):
    plain = SamplingParams(6, temperature=0.5, top_k=3, seed=2, eos_token_id=7, logit_bias={3: 1.0})
    arrays = SamplingParams(
        np.int64(6), temperature=np.float32(0.5), top_k=np.int32(3), seed=np.int64(2), eos_token_id=np.int64(7),
        logit_bias={np.int64(3): np.float32(1)},
    )  # fmt: skip
    prompts = [[1, 2, 3]], [np.array([1, 2, 3])]
    made = [
        Generator(session).generate(prompt, params)[0] for prompt, params in zip(prompts, (plain, arrays), strict=True)
    ]
    assert made[0] == made[1]


# ---------------------------------------------------------------------- scores that allow no choice


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize(
    ("scores", "settings", "said"),
    [
        ([NAN, 1, 2], {}, "nan"),
        ([INF, 1, 2], {}, "inf"),
        ([-INF, -INF], {}, "no token is left"),
        ([1, 2], {"logit_bias": {0: -INF, 1: -INF}}, "no token is left"),
        ([1, 2], {"eos_token_id": [0, 1], "min_new_tokens": 1}, "no token is left"),
        ([1, 2], {"logit_bias": {2: 1.0}}, "names token 2; the model has 2"),
    ],
)
def test_no_token_is_made_up(temperature, scores, settings, said):
    with pytest.raises(InputError, match=said):
        Sampler(SamplingParams(temperature=temperature, **settings)).choose(np.array(scores, np.float32))


def test_ends_beyond_the_words_forbid_nothing():
    sampler = Sampler(SamplingParams(min_new_tokens=3, eos_token_id=[-1, 99]))
    assert sampler.choose(np.array([1.0, 2.0])).id == 1


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-10])
def test_the_least_temperatures_take_the_best(temperature):
    sampler = Sampler(SamplingParams(temperature=temperature))
    assert [sampler.choose(np.array([1.0, -3.0, 1e30, 2.0])).id for _ in range(3)] == [2, 2, 2]


# ---------------------------------------------------------------------- in company


def spoiled(token):
    """A decoder whose scores are NaN after a token."""
    graph = decoder()
    table = graph.initializers["c0"].numpy().copy()
    table[token] = NAN
    graph.add_initializer("looked_up", table)
    first = next(node for node in graph.nodes if "input_ids" in node.inputs)
    graph.nodes = [n.replace(inputs=["looked_up", "input_ids"]) if n is first else n for n in graph.nodes]
    return pyflame_rt.InferenceSession(graph)


@pytest.mark.parametrize("when", [0, 3])
def test_a_sequence_that_fails_ends_alone(session, when):
    prompts = [[1, 2, 3], [4, 5], [6, 7, 8, 9]]
    alone = [Generator(session).generate([p], SamplingParams(8))[0].tokens for p in prompts]
    forbid = SamplingParams(8, eos_token_id=list(range(WORDS)), min_new_tokens=1)
    generator = Generator(session)
    sequences = [generator.add(p, SamplingParams(8)) for p in prompts[:2]]
    for _ in range(when):
        generator.step()
    failing = generator.add([5, 6], forbid)
    sequences.append(generator.add(prompts[2], SamplingParams(8)))
    while generator.active:
        generator.step()
    assert [s.completion().tokens for s in sequences] == alone
    assert failing.finish_reason == failing.completion().finish_reason == "error"
    assert isinstance(failing.error, InputError)
    assert not failing.tokens
    for use in (lambda: generator.generate([[5, 6]], forbid), lambda: list(generator.stream([5, 6], forbid))):
        with pytest.raises(InputError, match="no token is left"):
            use()
    assert generator.generate(prompts[:1], SamplingParams(8))[0].tokens == alone[0]


def test_scores_that_are_no_numbers_end_one_sequence(session):
    broken = spoiled(20)
    generator = Generator(broken)
    bad, good = generator.add([1, 20], SamplingParams(5)), generator.add([1, 2, 3], SamplingParams(5))
    while generator.active:
        generator.step()
    assert "nan" in str(bad.error)
    assert good.completion() == Generator(session).generate([[1, 2, 3]], SamplingParams(5))[0]
    with pytest.raises(InputError, match="no numbers"):
        generator.beam_search([1, 20])


# ---------------------------------------------------------------------- the end of what a model reads


@pytest.mark.parametrize("length", [CONTEXT, CONTEXT - 1, CONTEXT - 7])
def test_sequences_end_where_the_model_reads_no_further(session, length):
    prompt = np.random.default_rng(length).integers(0, WORDS, length).tolist()
    generator = Generator(session)
    (made,) = generator.generate([prompt], SamplingParams(50))
    assert (len(made.tokens), made.finish_reason) == (CONTEXT + 1 - length, "length")
    ahead = SpeculativeGenerator(session, session)
    assert ahead.generate([prompt], SamplingParams(50)) == [made]
    best = generator.beam_search(prompt, BeamParams(num_beams=1, max_new_tokens=50, length_penalty=0.0))
    assert best[0].tokens == made.tokens
    exact = Generator(session).generate([prompt], SamplingParams(CONTEXT + 1 - length))[0]
    assert exact == made


def test_a_long_sequence_ends_none_of_its_company(session):
    generator = Generator(session)
    long = generator.add([1] * CONTEXT, SamplingParams(10))
    short = generator.add([1, 2, 3], SamplingParams(10))
    while generator.active:
        generator.step()
    assert (len(long.tokens), len(short.tokens)) == (1, 10)


@pytest.mark.parametrize("words", [5, 20, 40])
def test_a_draft_of_fewer_or_more_words_changes_no_token(session, words):
    draft = pyflame_rt.InferenceSession(decoder(words=words))
    want = Generator(session).generate([[1, 2, 3]], SamplingParams(12))
    assert SpeculativeGenerator(session, draft).generate([[1, 2, 3]], SamplingParams(12)) == want
