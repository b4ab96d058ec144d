"""Text that streams is the text there is in the end, sign by sign."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyflame_rt import InferenceSession
from pyflame_rt.generate import Generator, SamplingParams, Tokenizer
from pyflame_rt.generate.text_stream import TextStream
from tests.unit.generate.small_gpt import WORDS, decoder

tokenizers = pytest.importorskip("tokenizers")


def byte_tokenizer() -> Tokenizer:
    """A token for each byte: most signs need several."""
    signs = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    library = tokenizers.Tokenizer(tokenizers.models.BPE({sign: i for i, sign in enumerate(signs)}, []))
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = tokenizers.decoders.ByteLevel()
    return Tokenizer(library)


BYTES = byte_tokenizer()


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=60), st.lists(st.text(min_size=1, max_size=4), max_size=2))
def test_pieces_make_the_whole(text, stops):
    stream, pieces = TextStream(BYTES, stops), []
    tokens = BYTES.encode(text)
    for token in tokens:
        stream.add(token)
        if stream.cut():
            break
        pieces.append(stream.take())
        assert "\N{REPLACEMENT CHARACTER}" not in pieces[-1] or "\N{REPLACEMENT CHARACTER}" in text
    pieces.append(stream.take(whole=True))
    first = min((at for stop in stops if (at := text.find(stop)) >= 0), default=len(text))
    assert "".join(pieces) == stream.text == text[:first]


def test_long_texts_are_decoded_piece_by_piece():
    sizes = []

    class Counting:
        def decode(self, tokens):
            sizes.append(len(tokens))
            return BYTES.decode(tokens)

    stream = TextStream(Counting())
    text = "naïve — 日本語 🙂 text " * 40
    for token in BYTES.encode(text):
        stream.add(token)
    assert stream.text == text
    assert max(sizes) < 64


class Words:
    """Words with spaces between them; none before the first of those that are decoded together."""

    def decode(self, tokens):
        return " ".join(f"w{t}" for t in tokens)


def test_tokenizers_that_drop_the_first_space():
    stream = TextStream(Words())
    for token in range(200):
        stream.add(token)
    assert stream.text == " ".join(f"w{t}" for t in range(200))


@pytest.mark.parametrize("ends", ["length", "stop", "eos"])
def test_streamed_text_is_that_of_the_completion(ends):
    session = InferenceSession(decoder())
    how = {"max_new_tokens": 12, "temperature": 1.5, "seed": 1}
    plain = Generator(session).generate([[3, 1, 4]], SamplingParams(**how))[0].tokens
    words = Words()
    if ends == "length":
        params = SamplingParams(**how, stop=[f"w{plain[-1]} w{WORDS + 5}"])
    elif ends == "stop":
        params = SamplingParams(**how, stop=[f" w{plain[5]} w{plain[6]}"])
    else:  # a token ends it while text is held back
        new = next(i for i in range(1, 12) if plain[i] not in plain[:i])
        params = SamplingParams(**how, stop=[f"w{plain[new - 1]} never"], eos_token_id=plain[new])
    streamed = "".join(token.text for token in Generator(session, words).stream([3, 1, 4], params))
    done = Generator(session, words).generate([[3, 1, 4]], params)[0]
    assert streamed == done.text
    assert done.text
    assert done.finish_reason == {"eos": "stop"}.get(ends, ends)
