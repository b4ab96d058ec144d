"""GGUF files: models of every kind of weights, and files that are none."""

import numpy as np
import pytest

import pyflame as pf
from pyflame.models import GPT2, GPT2Config, Llama, LlamaConfig, load_gguf
from pyflame_rt.graph.errors import InvalidModelError, PyFlameRTError, UnsupportedFormatError

gguf = pytest.importorskip("gguf")
TYPES = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_K", "Q6_K"]
SIZE = 256  # blocks of the K types have 256 weights


def packed(array, kind):
    """Bytes of a type; of those that the package cannot make, random blocks with ordinary scales."""
    number = gguf.GGMLQuantizationType[kind]
    if kind == "F32":
        return array, number
    if kind in ("Q4_K", "Q6_K"):
        rng = np.random.default_rng(len(array))
        blocks, width = array.shape[0] * array.shape[1] // 256, {"Q4_K": 144, "Q6_K": 210}[kind]
        data = rng.integers(0, 256, (blocks, width)).astype(np.uint8)
        scale = np.frombuffer(np.float16([0.001, 0.0005]).tobytes(), np.uint8)
        if kind == "Q4_K":
            data[:, :4] = scale
        else:
            data[:, -2:] = scale[:2]
        return data.reshape(array.shape[0], -1), number
    return gguf.quants.quantize(array, number), number


def pairs(weight, heads):
    """Rows of a head as llama.cpp keeps them: those that turn together side by side."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


LLAMA = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip
GPT = {
    "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down",
    "ln_1": "attn_norm", "ln_2": "ffn_norm", "wte": "token_embd", "wpe": "position_embd", "ln_f": "output_norm",
    "embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output",
}  # fmt: skip


def their_name(name):
    parts = name.split(".")
    layer = parts[1] if parts[0] in ("layers", "h") else None
    inner, part = ".".join(parts[2:-1] if layer else parts[:-1]), parts[-1]
    found = {**GPT, **LLAMA}[inner]
    return f"blk.{layer}.{found}.{part}" if layer else f"{found}.{part}"


def write(path, architecture, model, kind, heads=None, tied=False, **fields):
    """A GGUF file of a model; the weights that it holds after rounding, by our names."""
    writer = gguf.GGUFWriter(path, architecture)
    for name, value in fields.items():
        getattr(writer, f"add_{name}")(value)
    kept = {}
    for name, value in model.state_dict().items():
        array = value.numpy()
        other = their_name(name)
        if tied and other == "output.weight":
            continue
        count = {"attn_q.weight": heads, "attn_k.weight": fields.get("head_count_kv")}.get(other.split(".", 2)[-1])
        array = pairs(array, count) if count and heads else array
        data, number = packed(np.ascontiguousarray(array), kind if array.ndim == 2 else "F32")
        writer.add_tensor(other, data, raw_dtype=number)
        real = gguf.quants.dequantize(data, number) if number != gguf.GGMLQuantizationType.F32 else data
        if count and heads:
            rows, columns = real.shape
            real = real.reshape(count, rows // count // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)
        kept[name] = np.asarray(real, np.float32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return kept


def llama_file(path, kind, tied=False, **more):
    config = LlamaConfig(
        vocab_size=32, hidden_size=SIZE, intermediate_size=SIZE, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=16, rms_norm_eps=1e-6, rope_theta=5000.0,
        tie_word_embeddings=tied,
    )  # fmt: skip
    model = Llama(config)
    fields = {
        "block_count": 2, "context_length": 16, "embedding_length": SIZE, "feed_forward_length": SIZE, "head_count": 4,
        "head_count_kv": 2, "layer_norm_rms_eps": 1e-6, "rope_freq_base": 5000.0, **more,
    }  # fmt: skip
    kept = write(path, "llama", model, kind, heads=4, tied=tied, **fields)
    if tied:
        kept["lm_head.weight"] = kept["embed_tokens.weight"]
    return model, kept


def gpt2_file(path, kind):
    model = GPT2(GPT2Config(vocab_size=32, n_positions=16, n_embd=SIZE, n_layer=2, n_head=4, dropout=0.0))
    fields = {"block_count": 2, "context_length": 16, "embedding_length": SIZE, "head_count": 4, "layer_norm_eps": 1e-5}
    return model, write(path, "gpt2", model, kind, **fields)


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
