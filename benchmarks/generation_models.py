"""Decoders with random weights for benchmarks: Hugging Face folders of GPT-2 and Llama shapes, and GGUF files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["LLAMA_1B", "gguf_llama", "gpt2_folder", "guessable_pair", "llama_folder", "various_gpt2"]

LLAMA_1B = {"hidden": 2048, "inner": 5632, "layers": 22, "heads": 32, "shared": 4, "words": 32000}
WORDS = 50257
Array = np.ndarray[Any, Any]


def _normal(rng: np.random.Generator, *shape: int, spread: float = 0.02) -> Array:
    return rng.standard_normal(shape, dtype=np.float32) * np.float32(spread)


def gpt2_folder(
    folder: Path,
    *,
    width: int = 768,
    layers: int = 12,
    heads: int = 12,
    words: int = WORDS,
    seed: int = 0,
    tables: tuple[Array, Array] | None = None,
    weak: float = 1.0,
) -> Path:
    """GPT-2; with a table of tokens and one of scores, and layers that add little, where they are given."""
    from safetensors.numpy import save_file

    rng = np.random.default_rng(seed)
    table = _normal(rng, words, width) if tables is None else _wide(tables[0], width)
    arrays = {"wte.weight": table, "wpe.weight": _normal(rng, 1024, width, spread=0.02 if tables is None else 0.0002)}
    for i in range(layers):
        for part, rows, columns in (
            ("attn.c_attn", width, 3 * width),
            ("attn.c_proj", width, width),
            ("mlp.c_fc", width, 4 * width),
            ("mlp.c_proj", 4 * width, width),
        ):
            spread = 0.02 * (weak if part.endswith("c_proj") else 1.0)
            arrays[f"h.{i}.{part}.weight"] = _normal(rng, rows, columns, spread=spread)
            arrays[f"h.{i}.{part}.bias"] = np.zeros(columns, np.float32)
    for norm in [f"h.{i}.{name}" for i in range(layers) for name in ("ln_1", "ln_2")] + ["ln_f"]:
        arrays |= {f"{norm}.weight": np.ones(width, np.float32), f"{norm}.bias": np.zeros(width, np.float32)}
    named = {f"transformer.{name}": array for name, array in arrays.items()}
    if tables is not None:
        named["lm_head.weight"] = _wide(tables[1], width)
    config = {
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": width, "n_layer": layers, "n_head": heads,
        "vocab_size": words, "n_positions": 1024, "tie_word_embeddings": tables is None, "torch_dtype": "float32",
        "bos_token_id": 0, "eos_token_id": 0,
    }  # fmt: skip
    return _folder(folder, config, named, save_file)


def _wide(table: Array, width: int) -> Array:
    return np.ascontiguousarray(np.pad(table, ((0, 0), (0, width - table.shape[1]))))


def guessable_pair(folder: Path) -> tuple[Path, Path]:
    """A GPT-2 and a small one that mostly agrees with it: what follows a token is in the features both have."""
    tables = _two_tables(256)
    large = gpt2_folder(folder / "large", seed=1, tables=tables, weak=0.032)
    small = gpt2_folder(folder / "small", width=256, layers=2, heads=4, seed=2, tables=tables, weak=0.032)
    return large, small


def various_gpt2(folder: Path) -> Path:
    """A GPT-2 that does not say the same word again and again."""
    return gpt2_folder(folder, layers=4, seed=3, words=4000, tables=_two_tables(768, 4000), weak=0.2)


def _two_tables(width: int, words: int = WORDS) -> tuple[Array, Array]:
    """Of tokens and of scores: after each token another one is likely."""
    rng = np.random.default_rng(5)
    table = _normal(rng, words, width)
    return table, table[rng.permutation(words)]


def llama_folder(folder: Path, *, half: bool, **sizes: int) -> Path:
    """Llama, in float32 or bfloat16; all layers alike, which is as fast as if they differed."""
    from safetensors.numpy import save_file

    named: dict[str, Array] = {}
    made: dict[str, Array] = {}
    for name, shape in _llama_shapes(sizes).items():
        part = name.rpartition("layers.")[2].partition(".")[2]
        if part not in made:
            array = _llama_weight(name, shape)
            made[part] = array.astype(_bfloat16()) if half else array
        named[name] = made[part]
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": sizes["hidden"],
        "intermediate_size": sizes["inner"], "num_hidden_layers": sizes["layers"], "hidden_act": "silu",
        "num_attention_heads": sizes["heads"], "num_key_value_heads": sizes["shared"], "vocab_size": sizes["words"],
        "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False,
        "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16" if half else "float32",
        "head_dim": sizes["hidden"] // sizes["heads"], "initializer_range": 0.02, "attention_bias": False,
    }  # fmt: skip
    _write_words(folder, sizes["words"])
    return _folder(folder, config, named, save_file)


def _folder(folder: Path, config: dict[str, Any], named: dict[str, Array], save_file: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(named, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _bfloat16() -> Any:
    import ml_dtypes

    return ml_dtypes.bfloat16


def _write_words(folder: Path, count: int) -> None:
    """A tokenizer of meaningless words, which genai's builder asks for."""
    import tokenizers

    folder.mkdir(parents=True)
    words = tokenizers.models.WordLevel({f"t{i}": i for i in range(count)}, unk_token="t0")
    tokenizers.Tokenizer(words).save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "t1", "eos_token": "t2", "unk_token": "t0"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def _llama_shapes(sizes: dict[str, int]) -> dict[str, tuple[int, ...]]:
    hidden, inner = sizes["hidden"], sizes["inner"]
    shared = hidden // sizes["heads"] * sizes["shared"]
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (sizes["words"], hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (sizes["words"], hidden),
    }
    for i in range(sizes["layers"]):
        p = f"model.layers.{i}."
        shapes |= {f"{p}self_attn.{n}_proj.weight": (hidden, hidden) for n in "qo"}
        shapes |= {f"{p}self_attn.{n}_proj.weight": (shared, hidden) for n in "kv"}
        shapes |= {f"{p}mlp.{n}_proj.weight": (inner, hidden) for n in ("gate", "up")}
        shapes[f"{p}mlp.down_proj.weight"] = (hidden, inner)
        shapes |= {f"{p}{n}_layernorm.weight": (hidden,) for n in ("input", "post_attention")}
    return shapes


def _llama_weight(name: str, shape: tuple[int, ...]) -> Array:
    if len(shape) == 1:
        return np.ones(shape, np.float32)
    part = name.split(".", 3)[-1]
    return _normal(np.random.default_rng(sum(part.encode())), *shape, spread=shape[1] ** -0.5)


_GGUF = {
    "embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip


def gguf_llama(path: Path, kind: str, **sizes: int) -> Path:
    """A GGUF file of the weights of :func:`llama_folder`, with a tokenizer of meaningless words."""
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(sizes["layers"])
    writer.add_context_length(2048)
    writer.add_embedding_length(sizes["hidden"])
    writer.add_feed_forward_length(sizes["inner"])
    writer.add_head_count(sizes["heads"])
    writer.add_head_count_kv(sizes["shared"])
    writer.add_rope_dimension_count(sizes["hidden"] // sizes["heads"])
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(sizes["words"])
    _add_words(writer, sizes["words"])
    number, packed = gguf.GGMLQuantizationType[kind], {}
    for name, shape in _llama_shapes(sizes).items():
        layer, _, part = name.removeprefix("model.").removesuffix(".weight").rpartition("layers.")[2].partition(".")
        inside = ".layers." in name
        if not inside:
            part = name.removeprefix("model.").removesuffix(".weight")
        their = f"blk.{layer}.{_GGUF[part]}.weight" if inside else f"{_GGUF[part]}.weight"
        if len(shape) == 1:
            writer.add_tensor(their, np.ones(shape, np.float32))
            continue
        if part not in packed:
            heads = {"self_attn.q_proj": sizes["heads"], "self_attn.k_proj": sizes["shared"]}.get(part)
            array = _llama_weight(name, shape)
            array = array if heads is None else _pairs(array, heads)
            packed[part] = gguf.quants.quantize(array, number)
        writer.add_tensor(their, packed[part], raw_dtype=number)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _pairs(array: Array, heads: int) -> Array:
    """Rows of a head as llama.cpp keeps them: those that turn together side by side."""
    rows, columns = array.shape
    halves = array.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2)
    return np.ascontiguousarray(halves.reshape(rows, columns))


def _add_words(writer: Any, count: int) -> None:
    marks = [b"<unk>", b"<s>", b"</s>", *(f"<0x{i:02X}>".encode() for i in range(256))]
    writer.add_tokenizer_model("llama")
    writer.add_token_list([*marks, *(f"t{i}".encode() for i in range(count - len(marks)))])
    writer.add_token_scores([0.0] * count)
    writer.add_token_types([2, 3, 3, *[6] * 256, *[1] * (count - len(marks))])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
