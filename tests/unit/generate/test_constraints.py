"""Output that fits a schema, an expression or a grammar, whatever the model would say."""

import json
import re

import numpy as np
import pytest

from pyflame_rt import InferenceSession, InputError
from pyflame_rt.generate import Generator, SamplingParams, SpeculativeGenerator, Tokenizer
from tests.unit.generate.small_gpt import decoder

tokenizers = pytest.importorskip("tokenizers")
pytest.importorskip("llguidance")

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6, "pattern": "^[a-z]+$"},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "kind": {"enum": ["cat", "dog"]},
    },
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def words() -> Tokenizer:
    """A token for each byte, one that ends a text, and a few for whole words."""
    signs = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    table = {sign: i for i, sign in enumerate([*signs, "<end>"])}
    library = tokenizers.Tokenizer(tokenizers.models.BPE(table, []))
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = tokenizers.decoders.ByteLevel()
    library.add_special_tokens(["<end>"])
    return Tokenizer(library, {"eos_token": "<end>"})


@pytest.fixture(scope="module")
def session() -> InferenceSession:
    return InferenceSession(decoder(words=264))  # more than the tokenizer has


def made(session, words, **settings):
    return Generator(session, words, max_batch_size=4).generate([[3, 1, 4]], SamplingParams(**settings))[0]


@pytest.mark.parametrize("seed", range(6))
def test_json_fits_its_schema(session, words, seed):
    found = made(session, words, max_new_tokens=150, temperature=1.5, seed=seed, json_schema=SCHEMA)
    assert found.finish_reason == "stop"
    value = json.loads(found.text)
    assert set(value) == {"name", "age", "kind"}
    assert re.fullmatch("[a-z]{1,6}", value["name"])
    assert 0 <= value["age"] <= 99
    assert value["kind"] in ("cat", "dog")


def test_a_schema_as_text_and_greedy(session, words):
    found = made(session, words, max_new_tokens=20, json_schema='{"enum": ["yes", "no"]}')
    assert json.loads(found.text) in ("yes", "no")


@pytest.mark.parametrize("seed", range(3))
def test_expressions_and_grammars(session, words, seed):
    found = made(session, words, max_new_tokens=60, temperature=1.0, seed=seed, regex=r"[0-9]{3}-[a-f]{2}")
    assert re.fullmatch(r"[0-9]{3}-[a-f]{2}", found.text)
    grammar = 'start: "(" NUMBER ("+" NUMBER)~0..2 ")"\nNUMBER: /[1-9][0-9]/'
    found = made(session, words, max_new_tokens=60, temperature=1.0, seed=seed, grammar=grammar)
    assert re.fullmatch(r"\([1-9][0-9](\+[1-9][0-9]){0,2}\)", found.text)


def test_many_sequences_with_and_without(session, words):
    generator = Generator(session, words, max_batch_size=4)
    free = SamplingParams(max_new_tokens=8)
    bound = SamplingParams(max_new_tokens=30, regex="(ab|cd){2}")
    both = [generator.add([3, 1, 4], params) for params in (free, bound, free, bound)]
    while generator.active:
        generator.step()
    assert both[0].tokens == both[2].tokens == list(made(session, words, max_new_tokens=8).tokens)
    assert both[1].text == both[3].text
    assert re.fullmatch("(ab|cd){2}", both[1].text)


def test_a_draft_changes_no_token(session, words):
    params = SamplingParams(max_new_tokens=60, temperature=1.0, seed=4, json_schema=SCHEMA)
    draft = InferenceSession(decoder(seed=9, words=264))
    plain = Generator(session, words).generate([[3, 1, 4]], params)[0]
    quick = SpeculativeGenerator(session, draft, words).generate([[3, 1, 4]], params)[0]
    assert quick.tokens == plain.tokens


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"regex": "(["}, "regex"),
        ({"json_schema": "{"}, "JSON schema"),
        ({"json_schema": {"type": "nothing known"}}, "json_schema"),
        ({"json_schema": {"x": np.ones(2)}}, "JSON schema"),
        ({"grammar": "start: undefined_rule"}, "the grammar"),
        ({"regex": "a", "grammar": 'start: "a"'}, "only one of"),
        ({"regex": "ab", "logit_bias": {64: -np.inf}, "min_new_tokens": 5}, "no token is left"),
    ],
)
def test_what_cannot_be_followed_is_refused(session, words, settings, told):
    with pytest.raises(InputError, match=told):
        made(session, words, **settings)


def test_a_tokenizer_is_needed(session, words):
    with pytest.raises(InputError, match="need a tokenizer"):
        made(session, None, regex="a")
    with pytest.raises(InputError, match="need a tokenizer"):
        made(session, object(), regex="a")
    without_end = Tokenizer(words._library)
    with pytest.raises(InputError, match="eos_token_id"):
        made(session, without_end, regex="a")
    assert made(session, without_end, regex="aa", eos_token_id=256).text == "aa"
