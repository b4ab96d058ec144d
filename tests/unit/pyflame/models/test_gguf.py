"""GGUF files: models of every kind of weights, and files that are none."""

import numpy as np
import pytest

import pyflame as pf
from pyflame.models import Llama, load_gguf
from pyflame_rt.graph.errors import InvalidModelError, PyFlameRTError, UnsupportedFormatError
from tests.unit.importers.gguf_files import TYPES, gpt2_file, llama_file, write

gguf = pytest.importorskip("gguf")
TOKENS = pf.from_numpy(np.random.default_rng(0).integers(0, 32, (2, 7)))


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("make", [llama_file, gpt2_file])
def test_models_of_every_kind_of_weights(make, kind, tmp_path):
    path = tmp_path / "model.gguf"
    model, kept = make(path, kind)
    loaded = load_gguf(path)
    assert type(loaded) is type(model)
    model.load_state_dict(kept)
    np.testing.assert_array_equal(loaded(TOKENS).numpy(), model.eval()(TOKENS).numpy())
    assert loaded.generate(TOKENS, max_new_tokens=2).shape == (2, 9)


def test_tied_tables(tmp_path):
    model, kept = llama_file(tmp_path / "model.gguf", "Q8_0", tied=True)
    loaded = load_gguf(tmp_path / "model.gguf")
    assert loaded.config.tie_word_embeddings
    model.load_state_dict(kept)
    np.testing.assert_array_equal(loaded(TOKENS).numpy(), model.eval()(TOKENS).numpy())


def test_rounding_is_near_the_real_weights(tmp_path):
    model, _ = llama_file(tmp_path / "model.gguf", "Q8_0")
    got, real = load_gguf(tmp_path / "model.gguf")(TOKENS).numpy(), model.eval()(TOKENS).numpy()
    assert 0 < np.abs(got - real).max() < 0.02 * np.abs(real).max()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("block_count", 3),
        ("embedding_length", 128),
        ("head_count", 3),
        ("feed_forward_length", 100),
        ("context_length", 2**30),
        ("embedding_length", 2**30),
    ],
)
def test_headers_that_lie(field, value, tmp_path):
    llama_file(tmp_path / "model.gguf", "F16", **{field: value})
    with pytest.raises((InvalidModelError, UnsupportedFormatError), match=r"model\.gguf"):
        load_gguf(tmp_path / "model.gguf")


def test_other_architectures(tmp_path):
    write(tmp_path / "model.gguf", "mamba", pf.nn.Module(), "F16")
    with pytest.raises(UnsupportedFormatError, match="'mamba' is not one of llama, gpt2"):
        load_gguf(tmp_path / "model.gguf")


def test_scaled_positions_are_refused(tmp_path):
    llama_file(tmp_path / "model.gguf", "F16", rope_scaling_type=gguf.RopeScalingType.LINEAR)
    with pytest.raises(UnsupportedFormatError, match="rotary"):
        load_gguf(tmp_path / "model.gguf")


def opened(path):
    """The model, or what was said of it; other errors than ours go on."""
    try:
        return load_gguf(path)
    except PyFlameRTError as error:
        return str(error)


def test_damaged_files(tmp_path):
    llama_file(tmp_path / "model.gguf", "Q4_0")
    whole = (tmp_path / "model.gguf").read_bytes()
    rng = np.random.default_rng(0)
    broken = tmp_path / "broken.gguf"
    for cut in (0, 3, 10, 30, 100, 400, 900, len(whole) // 2, len(whole) - 40_000):
        broken.write_bytes(whole[:cut])
        with pytest.raises(InvalidModelError):
            load_gguf(broken)
    for _ in range(40):  # of the header
        data = bytearray(whole)
        for place in rng.integers(0, 1500, 3):
            data[place] = rng.integers(0, 256)
        broken.write_bytes(data)
        found = opened(broken)
        assert isinstance(found, Llama) or "broken.gguf" in found
    broken.write_bytes(b"GGUF" + b"\x03\0\0\0" + b"\xff" * 16)
    with pytest.raises(InvalidModelError, match="promises"):
        load_gguf(broken)
