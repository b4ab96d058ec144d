"""Text for many at a time: what cannot be answered fails for whoever asked, and for nobody else."""

import queue

import numpy as np
import pytest

import pyflame_rt
from pyflame_rt.generate import Generator, SamplingParams
from pyflame_rt.graph.errors import InputError
from pyflame_rt.serving.text import TextModel
from tests.unit.generate.small_gpt import WORDS, decoder


class Letters:
    """A token is a letter."""

    def encode(self, text):
        return [ord(letter) - 65 for letter in text]

    def decode(self, tokens):
        return "".join(chr(65 + token) for token in tokens)


@pytest.fixture(scope="module")
def session():
    return pyflame_rt.InferenceSession(decoder())


def answer(pieces):
    """The text, and the error that ended it."""
    text = ""
    while True:
        piece = pieces.get(timeout=60)
        if not isinstance(piece, str):
            return text, piece
        text += piece


@pytest.mark.parametrize(
    ("prompt", "settings", "said"),
    [
        ([WORDS], {}, "no token"),
        ([1] * 500, {}, "longer than"),
        ([1, 2], {"eos_token_id": list(range(WORDS)), "min_new_tokens": 2}, "no token is left"),
        ([1, 2], {"logit_bias": {WORDS: 1.0}}, "logit_bias names"),
    ],
)
def test_a_request_that_fails_fails_alone(session, prompt, settings, said):
    asked = [np.random.default_rng(i).integers(0, WORDS, 3).tolist() for i in range(4)]
    want = [c.text for c in Generator(session, Letters()).generate(asked, SamplingParams(12))]
    model, waiting = TextModel(session, Letters()), []
    try:
        for i, tokens in enumerate(asked):
            good, bad = queue.SimpleQueue(), queue.SimpleQueue()
            model.submit(tokens, SamplingParams(12), good.put)
            model.submit(prompt, SamplingParams(12, **settings), bad.put)
            waiting.append((i, good, bad))
        for i, good, bad in waiting:
            assert answer(good) == (want[i], None)
            text, error = answer(bad)
            assert text == ""
            assert isinstance(error, InputError)
            assert said in str(error)
    finally:
        model.close()
