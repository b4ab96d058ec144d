"""Models of GGUF files as our decoders: their settings and weights under the names of Hugging Face's folders."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from pyflame_rt.graph.errors import InvalidModelError, UnsupportedFormatError
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from pyflame_rt.importers.gguf.file import GGUFFile, StoredTensor

__all__ = ["StoredModel", "halves", "read_model"]

MAX_CONTEXT = 2**20
_LLAMA = {
    "token_embd": "embed_tokens", "output_norm": "norm", "output": "lm_head", "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "rope_freqs": "rope_freqs",
}  # fmt: skip
_GPT2 = {
    "token_embd": "wte", "position_embd": "wpe", "output_norm": "ln_f", "attn_qkv": "attn.c_attn",
    "attn_output": "attn.c_proj", "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj", "attn_norm": "ln_1",
    "ffn_norm": "ln_2", "output": "lm_head",
}  # fmt: skip
_BLOCK = re.compile(r"blk\.(\d+)\.(.+)")


@dataclass(frozen=True)
class StoredModel:
    """A model of a known family, its weights still as they are in the file.

    Attributes:
        family: of decoders.
        settings: with the family's names.
        weights: by the family's names; products are [out, in].
        turned: heads of the weights whose rows turn in pairs side by side, not as two halves, by name.
    """

    family: str
    settings: Mapping[str, Any]
    weights: Mapping[str, StoredTensor]
    turned: Mapping[str, int]


def read_model(file: GGUFFile) -> StoredModel:
    """The model of a file.

    Raises:
        UnsupportedFormatError: The architecture, or something the file says of it, is not supported.
        InvalidModelError: The header does not fit the weights.
    """
    architecture = file.fields.get("general.architecture")
    match architecture:
        case "llama":
            return _llama(file)
        case "gpt2":
            return _gpt2(file)
        case _:
            raise UnsupportedFormatError(f"{file.where}: architecture {architecture!r} is not one of llama, gpt2")


def _llama(file: GGUFFile) -> StoredModel:
    heads = int(file.number("llama.attention.head_count"))
    shared = int(file.number("llama.attention.head_count_kv", heads))
    hidden = int(file.number("llama.embedding_length"))
    width = file.fields.get("llama.attention.key_length", hidden // heads)
    if hidden % heads or heads % shared or width != hidden // heads or width % 2:
        raise UnsupportedFormatError(f"{file.where}: {heads} heads of {width}, {shared} for keys, of {hidden} channels")
    layers = _layers(file, "llama")
    inner, context = (int(file.number(f"llama.{n}")) for n in ("feed_forward_length", "context_length"))
    if context > MAX_CONTEXT:
        raise UnsupportedFormatError(f"{file.where}: a context of {context} tokens, more than {MAX_CONTEXT}")
    file.expect("blk.0.ffn_up.weight", inner, hidden)
    file.expect("token_embd.weight", None, hidden)
    settings = {
        "vocab_size": file.rows("token_embd.weight"),
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": shared,
        "max_position_embeddings": context,
        "rms_norm_eps": float(file.number("llama.attention.layer_norm_rms_epsilon", 1e-5)),
        "rope_theta": float(file.number("llama.rope.freq_base", 10000.0)),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "hidden_act": "silu",
        "rope_scaling": _rotary_scaling(file, context, width),
    }
    prefixes = [f"layers.{i}.self_attn." for i in range(layers)]
    turned = {f"{p}{n}.weight": count for p in prefixes for n, count in (("q_proj", heads), ("k_proj", shared))}
    return StoredModel("llama", settings, _named(file, _LLAMA, "layers"), turned)


def _rotary_scaling(file: GGUFFile, context: int, width: int) -> dict[str, Any]:
    """What the header says of rotary positions in contexts longer than those of the training."""
    turned = file.number("llama.rope.dimension_count", width)
    if turned != width:
        raise UnsupportedFormatError(f"{file.where}: rotary positions for {turned} features of {width}")
    form, factor = "llama.rope.scaling.type", "llama.rope.scaling.factor"
    older = file.number("llama.rope.scale_linear", 1.0)
    kind = file.fields.get(form, "none" if older == 1 else "linear")
    if kind == "none":
        return {"rope_type": "default"}
    if kind == "linear":
        return {"rope_type": kind, "factor": float(file.number(factor, older))}
    if kind != "yarn":
        raise UnsupportedFormatError(
            f"{file.where}: rotary positions scaled by {kind!r}, not one of linear, none, yarn"
        )
    strange = [n for n in file.fields if n.startswith("llama.rope.scaling.yarn")]
    if strange:
        raise UnsupportedFormatError(f"{file.where}: YaRN with {', '.join(sorted(strange))} is not supported")
    times = float(file.number(factor, 1.0))
    sharper = float(file.number("llama.rope.scaling.attn_factor", 1.0))
    return {
        "rope_type": kind,
        "factor": times,
        "original_max_position_embeddings": int(file.number("llama.rope.scaling.original_context_length", context)),
        "attention_factor": sharper * (1.0 if times <= 1 else 0.1 * math.log(times) + 1.0),
    }


def _gpt2(file: GGUFFile) -> StoredModel:
    size = int(file.number("gpt2.embedding_length"))
    file.expect("token_embd.weight", None, size)
    file.expect("position_embd.weight", None, size)
    settings = {
        "vocab_size": file.rows("token_embd.weight"),
        "n_positions": file.rows("position_embd.weight"),
        "n_embd": size,
        "n_layer": _layers(file, "gpt2"),
        "n_head": int(file.number("gpt2.attention.head_count")),
        "layer_norm_epsilon": float(file.number("gpt2.attention.layer_norm_epsilon", 1e-5)),
        "activation_function": "gelu_new",
        "tie_word_embeddings": "output.weight" not in file.tensors,
    }
    if size % settings["n_head"]:
        raise InvalidModelError(f"{file.where}: {size} channels cannot be parted into {settings['n_head']} heads")
    return StoredModel("gpt2", settings, _named(file, _GPT2, "h"), {})


def _layers(file: GGUFFile, architecture: str) -> int:
    """How many layers the header says; the file must have weights for each."""
    count = int(file.number(f"{architecture}.block_count"))
    there = {int(found.group(1)) for name in file.tensors if (found := _BLOCK.fullmatch(name))}
    if there != set(range(count)):
        raise InvalidModelError(f"{file.where}: the header says {count} layers, the file has weights for {len(there)}")
    return count


def _named(file: GGUFFile, names: Mapping[str, str], layers: str) -> dict[str, StoredTensor]:
    """The tensors by our names."""
    found = {}
    for name, tensor in file.tensors.items():
        block = _BLOCK.fullmatch(name)
        layer, _, part = (block.group(2) if block else name).rpartition(".")
        inner = names.get(layer)
        if inner is None:
            raise UnsupportedFormatError(f"{file.where}: tensor {name!r} has no place in this architecture")
        found[f"{layers}.{block.group(1)}.{inner}.{part}" if block else f"{inner}.{part}"] = tensor
    return found


def halves(array: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Rows of a head from pairs that turn together, as llama.cpp keeps them, to two halves, as we do."""
    rows, columns = array.shape
    if rows % (2 * heads):
        return array  # its shape is refused later
    return array.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)
