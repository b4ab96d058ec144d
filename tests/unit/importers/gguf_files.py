"""GGUF files of small models, with weights of any kind."""

import numpy as np
import pytest

from pyflame.models import GPT2, GPT2Config, Llama, LlamaConfig
from pyflame_rt.ops.pyflame.stored_blocks import FORMATS

gguf = pytest.importorskip("gguf")
TYPES = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_K", "Q6_K"]
SIZE = 256  # blocks of the K types have 256 weights


def random_blocks(kind, rows, columns, seed=0, largest=1e-3):
    """Blocks of any numbers, with ordinary scales, and some that are zero."""
    form, rng = FORMATS[kind], np.random.default_rng(seed)
    data = rng.integers(0, 256, (rows * columns // form.weights, form.size)).astype(np.uint8)
    scales = (rng.random((len(data), 2)) * largest).astype(np.float16)
    scales[::7, 0] = 0
    bytes_ = scales.view(np.uint8)
    if kind == "Q6_K":
        data[:, -2:] = bytes_[:, :2]
    elif kind in ("Q4_0", "Q8_0"):
        data[:, :2] = bytes_[:, :2]
    else:
        data[:, :4] = bytes_
    return data.reshape(rows, -1)


def packed(array, kind):
    """Bytes of a type; of those that the package cannot make, random blocks with ordinary scales."""
    number = gguf.GGMLQuantizationType[kind]
    if kind == "F32":
        return array, number
    if kind in ("Q4_K", "Q5_K", "Q6_K"):
        return random_blocks(kind, *array.shape, seed=len(array), largest=1e-4), number
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


def write(path, architecture, model, kind, heads=None, tied=False, tensors=None, **fields):
    """A GGUF file of a model; the weights that it holds after rounding, by our names."""
    writer = gguf.GGUFWriter(path, architecture)
    for name, array in (tensors or {}).items():
        writer.add_tensor(name, array)
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


def llama_file(path, kind, tied=False, words=32, **more):
    config = LlamaConfig(
        vocab_size=words, hidden_size=SIZE, intermediate_size=SIZE, num_hidden_layers=2, num_attention_heads=4,
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
