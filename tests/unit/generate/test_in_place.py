"""Keys and values written into the cache itself give the tokens that a copied past gives."""

import numpy as np
import pytest

import pyflame_rt
from pyflame_rt.generate import BeamParams, Generator, SamplingParams, SpeculativeGenerator
from pyflame_rt.generate.in_place import InPlaceDecoder
from pyflame_rt.importers.huggingface.caches import BufferCache, ConcatCache
from pyflame_rt.importers.huggingface.families import trace_decoder
from pyflame_rt.importers.huggingface.folder import Settings, Weights
from pyflame_rt.ops.core.trace import Tracer
from pyflame_rt.ops.core.value import scope

WIDTH, HEADS, WORDS, LAYERS = 16, 4, 40, 2
SETTINGS = {
    "hidden_size": WIDTH, "num_attention_heads": HEADS, "num_key_value_heads": 2, "num_hidden_layers": LAYERS,
    "tie_word_embeddings": True, "sliding_window": 12,
}  # fmt: skip


def model(form, seed: int = 0):
    """A small Mistral with random weights."""
    rng = np.random.default_rng(seed)

    def drawn(*shape):
        return rng.standard_normal(shape).astype(np.float32) * 0.5

    arrays = {"embed_tokens.weight": drawn(WORDS, WIDTH), "norm.weight": drawn(WIDTH) + 1}
    for i in range(LAYERS):
        parts = {"q_proj": WIDTH, "k_proj": WIDTH // 2, "v_proj": WIDTH // 2, "o_proj": WIDTH}
        arrays |= {f"layers.{i}.self_attn.{n}.weight": drawn(size, WIDTH) for n, size in parts.items()}
        arrays |= {f"layers.{i}.{n}.weight": drawn(WIDTH) + 1 for n in ("input_layernorm", "post_attention_layernorm")}
        arrays |= {f"layers.{i}.mlp.{n}.weight": drawn(24, WIDTH) for n in ("gate_proj", "up_proj")}
        arrays[f"layers.{i}.mlp.down_proj.weight"] = drawn(WIDTH, 24)
    tracer = Tracer("mistral")
    with scope(tracer):
        trace_decoder("mistral", Settings(SETTINGS, "test"), Weights(arrays, "test"), tracer, form)
    return tracer.graph


@pytest.fixture(scope="module")
def sessions():
    return [pyflame_rt.InferenceSession(model(form)) for form in (BufferCache, ConcatCache)]


def prompts(count, seed=1):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, WORDS, int(n)).tolist() for n in rng.integers(1, 40, count)]


def test_tokens_are_those_of_a_copied_past(sessions):
    made = []
    for session in sessions:
        generator = Generator(session, max_batch_size=5, page=8, prefill_chunk=16)
        asked = [SamplingParams(max_new_tokens=5 + 3 * i, temperature=i % 2, seed=i) for i in range(9)]
        sequences = [generator.add(p, params) for p, params in zip(prompts(9), asked, strict=True)]
        while generator.active:
            generator.step()
        made.append([s.completion().tokens for s in sequences])
    assert made[0] == made[1]
    assert [len(tokens) for tokens in made[0]] == [5 + 3 * i for i in range(9)]


def test_steps_write_into_the_memory_of_the_cache(sessions):
    decoder = InPlaceDecoder(sessions[0])
    cache = decoder.new_cache(64)
    cache.add()
    decoder.forward(cache, 0, np.array([[1, 2, 3]]), [3])
    decoder.forward(cache, 0, np.array([[4]]), [1])
    places = {name: array.ctypes.data for name, array in cache.states(1).items()}
    before = {name: array.copy() for name, array in cache.states(1).items()}
    assert decoder._ways  # the engine was found to write in place
    runs = []
    decoder.session.run = lambda *_: runs.append(1)  # the way that copies
    try:
        decoder.forward(cache, 0, np.array([[5]]), [1])
    finally:
        del decoder.session.run
    assert not runs
    for name, array in cache.states(1).items():
        assert array.ctypes.data == places[name]
        changed = np.flatnonzero((array != before[name]).any(axis=(0, 1, 3)))
        assert changed.tolist() == [4]


def test_beams_and_drafts_are_those_of_a_copied_past(sessions):
    found = []
    for session in sessions:
        generator = Generator(session, page=8)
        found.append([c.tokens for c in generator.beam_search([3, 1, 4], BeamParams(3, 10, num_return_sequences=3))])
    assert found[0] == found[1]
    draft = pyflame_rt.InferenceSession(model(BufferCache, seed=5))
    plain = Generator(sessions[1]).generate([[3, 1, 4]], SamplingParams(max_new_tokens=20))[0]
    quick = SpeculativeGenerator(sessions[0], draft).generate([[3, 1, 4]], SamplingParams(max_new_tokens=20))[0]
    assert quick.tokens == plain.tokens


def test_shared_beginnings_are_read_once(sessions):
    generator = Generator(sessions[0], page=8)
    first = generator.generate([list(range(30))], SamplingParams(max_new_tokens=6))[0]
    again = generator.generate([list(range(30))], SamplingParams(max_new_tokens=6))[0]
    assert again.tokens == first.tokens
    assert generator.prefixes.hits >= 24


def test_few_numbers_of_rows_are_met(sessions):
    generator = Generator(sessions[0], max_batch_size=16, page=64)
    met = set()
    forward = generator.decoder.forward

    def noted(cache, first, tokens, counts, **more):
        met.add(tokens.shape)
        return forward(cache, first, tokens, counts, **more)

    generator.decoder.forward = noted
    asked = [SamplingParams(max_new_tokens=3 + i) for i in range(16)]
    sequences = [generator.add([i], params) for i, params in enumerate(asked)]
    while generator.active:
        generator.step()
    assert {rows for rows, length in met if length == 1} <= {1, 2, 3, 4, 6, 8, 12, 16}
    assert [len(s.tokens) for s in sequences] == [3 + i for i in range(16)]


def test_a_model_with_other_inputs_is_refused():
    graph = model(BufferCache)
    graph.add_input("more", [1])
    with pytest.raises(pyflame_rt.InputError, match="cannot generate in place"):
        Generator(pyflame_rt.InferenceSession(graph))
