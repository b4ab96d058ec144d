"""Weights of GGUF files: Llama and GPT-2 models as llama.cpp keeps them, whatever their quantization."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame.models.gpt2 import GPT2, GPT2Config
from pyflame.models.llama import Llama, LlamaConfig
from pyflame_rt.graph.errors import InvalidModelError, MissingExtra, ModelNotFoundError, UnsupportedFormatError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

__all__ = ["load_gguf"]

MAGIC = b"GGUF"
MAX_CONTEXT = 2**20
MAX_ITEMS = 1_000_000  # fields and tensors that a header may promise

_LLAMA = {
    "token_embd.weight": "embed_tokens.weight",
    "output_norm.weight": "norm.weight",
    "output.weight": "lm_head.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
    "attn_norm.weight": "input_layernorm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
}
_GPT2 = {
    "token_embd": "wte", "position_embd": "wpe", "output_norm": "ln_f", "attn_qkv": "attn.c_attn",
    "attn_output": "attn.c_proj", "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj", "attn_norm": "ln_1",
    "ffn_norm": "ln_2",
}  # fmt: skip
_BLOCK = re.compile(r"blk\.(\d+)\.(.+)")


def load_gguf(path: str | os.PathLike[str]) -> Llama | GPT2:
    """The model of a GGUF file, with its weights as float32.

    Weights may be of any type that the package ``gguf`` knows, among them F16, BF16, Q4_0, Q8_0, Q4_K and Q6_K.

    Args:
        path: a file of architecture "llama" or "gpt2".

    Raises:
        MissingExtra: the package ``gguf`` is not installed.
        ModelNotFoundError: there is no such file.
        InvalidModelError: it is no GGUF file, a broken one, or lacks weights.
        UnsupportedFormatError: the architecture, or a type of weights, is not supported.

    Example:
        >>> load_gguf("lost.gguf")
        Traceback (most recent call last):
        ...
        pyflame_rt.graph.errors.ModelNotFoundError: there is no file 'lost.gguf'
    """
    file = Path(path)
    if not file.is_file():
        raise ModelNotFoundError(f"there is no file {str(file)!r}")
    fields, tensors = _read(file)
    architecture = fields.get("general.architecture")
    match architecture:
        case "llama":
            return _llama(file, fields, tensors)
        case "gpt2":
            return _gpt2(file, fields, tensors)
        case _:
            raise UnsupportedFormatError(f"{file.name}: architecture {architecture!r} is not one of llama, gpt2")


def _read(file: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields of the header by name, and the tensors, which stay in the file until they are asked for."""
    try:
        import gguf
    except ModuleNotFoundError as error:
        raise MissingExtra("reading GGUF files needs the package gguf: pip install 'pyflame[gguf]'") from error
    with file.open("rb") as stream:
        head = stream.read(24)
    if len(head) < 24 or head[:4] != MAGIC:
        raise InvalidModelError(f"{file.name} is no GGUF file: it does not begin with {MAGIC.decode()}")
    counts = np.frombuffer(head[8:24], "<u8")
    if int(counts.max()) > MAX_ITEMS:
        raise InvalidModelError(f"{file.name}: its header promises {counts.max()} entries, more than {MAX_ITEMS}")
    try:
        reader = gguf.GGUFReader(file)
        fields = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("tokenizer.")}
        tensors = {tensor.name: tensor for tensor in reader.tensors}
    except (ValueError, IndexError, KeyError, OverflowError, TypeError, MemoryError, UnicodeDecodeError) as error:
        raise InvalidModelError(f"{file.name} is a broken GGUF file: {error}") from error
    return fields, tensors


def _array(file: Path, tensor: Any) -> np.ndarray[Any, Any]:
    """The numbers of a tensor as float32."""
    from gguf import quants

    try:
        made = quants.dequantize(tensor.data, tensor.tensor_type)
    except NotImplementedError as error:
        name = getattr(tensor.tensor_type, "name", tensor.tensor_type)
        raise UnsupportedFormatError(f"{file.name}: tensor {tensor.name!r} is of type {name}: {error}") from error
    except (ValueError, TypeError, IndexError) as error:
        raise InvalidModelError(f"{file.name}: tensor {tensor.name!r} is broken: {error}") from error
    return np.ascontiguousarray(made, np.float32)


def _number(file: Path, fields: Mapping[str, Any], name: str, default: Any = None) -> Any:
    """A number of the header."""
    value = fields.get(name, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 2**31:
        raise InvalidModelError(f"{file.name}: field {name!r} is {value!r}, not a number above zero")
    return value


def _rows(file: Path, tensors: Mapping[str, Any], name: str) -> int:
    if name not in tensors or len(tensors[name].shape) != 2:
        raise InvalidModelError(f"{file.name} has no matrix {name!r}")
    return int(tensors[name].shape[1])  # GGUF counts dimensions from the last


def _sized(file: Path, tensors: Mapping[str, Any], name: str, rows: int | None, columns: int) -> None:
    """Refuse a header whose sizes are not those of the weights, before anything of these sizes is made."""
    there = [int(size) for size in reversed(tensors[name].shape)] if name in tensors else None
    if there is None or len(there) != 2 or there[1] != columns or rows not in (None, there[0]):
        raise InvalidModelError(f"{file.name}: {name} is {there}, the header says {[rows, columns]}")


def _fill(
    file: Path,
    model: Any,
    tensors: Mapping[str, Any],
    target: Callable[[str], str | None],
    change: Callable[[str, np.ndarray[Any, Any]], np.ndarray[Any, Any]],
) -> None:
    """Load the weights; every one of the model's must be there, in its shape."""
    state: dict[str, np.ndarray[Any, Any]] = {}
    for name, tensor in tensors.items():
        place = target(name)
        if place is None:
            raise UnsupportedFormatError(f"{file.name}: tensor {name!r} has no place in {type(model).__name__}")
        if place:
            state[place] = change(name, _array(file, tensor))
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    for name, shape in shapes.items():
        if name in state and state[name].shape != shape:
            raise InvalidModelError(f"{file.name}: {name} is {list(state[name].shape)}, the header says {list(shape)}")
    missing = sorted(shapes.keys() - state.keys())
    if missing:
        raise InvalidModelError(f"{file.name} lacks {len(missing)} weights, among them {missing[0]!r}")
    model.load_state_dict(state)
    model.eval()


def _llama(file: Path, fields: Mapping[str, Any], tensors: Mapping[str, Any]) -> Llama:
    heads = int(_number(file, fields, "llama.attention.head_count"))
    shared = int(_number(file, fields, "llama.attention.head_count_kv", heads))
    hidden = int(_number(file, fields, "llama.embedding_length"))
    width = fields.get("llama.attention.key_length", hidden // heads)
    scaling = fields.get("llama.rope.scaling.type", "none")
    if "rope_freqs.weight" in tensors or scaling != "none":
        raise UnsupportedFormatError(f"{file.name}: scaled rotary positions ({scaling}) are not supported")
    if hidden % heads or heads % shared or width != hidden // heads or width % 2:
        raise UnsupportedFormatError(f"{file.name}: {heads} heads of {width}, {shared} for keys, of {hidden} channels")
    layers = _layers(file, fields, tensors, "llama")
    inner, context = (int(_number(file, fields, f"llama.{n}")) for n in ("feed_forward_length", "context_length"))
    if context > MAX_CONTEXT:
        raise UnsupportedFormatError(f"{file.name}: a context of {context} tokens, more than {MAX_CONTEXT}")
    _sized(file, tensors, "blk.0.ffn_up.weight", inner, hidden)
    _sized(file, tensors, "token_embd.weight", None, hidden)
    config = LlamaConfig(
        vocab_size=_rows(file, tensors, "token_embd.weight"),
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=shared,
        max_position_embeddings=context,
        rms_norm_eps=float(_number(file, fields, "llama.attention.layer_norm_rms_epsilon", 1e-5)),
        rope_theta=float(_number(file, fields, "llama.rope.freq_base", 10000.0)),
        tie_word_embeddings="output.weight" not in tensors,
    )
    model = Llama(config)

    def target(name: str) -> str | None:
        found = _BLOCK.fullmatch(name)
        inner = _LLAMA.get(found.group(2) if found else name)
        return f"layers.{found.group(1)}.{inner}" if found and inner else inner

    def change(name: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        count = {"attn_q.weight": heads, "attn_k.weight": shared}.get(name.split(".", 2)[-1])
        return array if count is None else _halves(array, count)

    given = dict(tensors)
    if config.tie_word_embeddings:
        given["output.weight"] = tensors["token_embd.weight"]
    _fill(file, model, given, target, change)
    return model


def _halves(array: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Rows of a head from pairs that turn together, as llama.cpp keeps them, to two halves, as we do."""
    rows, columns = array.shape
    if rows % (2 * heads):
        return array  # its shape is refused later
    return array.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _layers(file: Path, fields: Mapping[str, Any], tensors: Mapping[str, Any], architecture: str) -> int:
    """How many layers the header says; the file must have weights for each."""
    count = int(_number(file, fields, f"{architecture}.block_count"))
    there = {int(found.group(1)) for name in tensors if (found := _BLOCK.fullmatch(name))}
    if there != set(range(count)):
        raise InvalidModelError(f"{file.name}: the header says {count} layers, the file has weights for {len(there)}")
    return count


def _gpt2(file: Path, fields: Mapping[str, Any], tensors: Mapping[str, Any]) -> GPT2:
    size = int(_number(file, fields, "gpt2.embedding_length"))
    _sized(file, tensors, "token_embd.weight", None, size)
    _sized(file, tensors, "position_embd.weight", None, size)
    config = GPT2Config(
        vocab_size=_rows(file, tensors, "token_embd.weight"),
        n_positions=_rows(file, tensors, "position_embd.weight"),
        n_embd=size,
        n_layer=_layers(file, fields, tensors, "gpt2"),
        n_head=int(_number(file, fields, "gpt2.attention.head_count")),
        layer_norm_eps=float(_number(file, fields, "gpt2.attention.layer_norm_epsilon", 1e-5)),
    )
    if config.n_embd % config.n_head:
        raise InvalidModelError(f"{file.name}: {config.n_embd} channels cannot be parted into {config.n_head} heads")
    table, scores = tensors["token_embd.weight"], tensors.get("output.weight")
    if scores is not None and not np.allclose(_array(file, scores), _array(file, table), rtol=0.1, atol=0.1):
        raise UnsupportedFormatError(f"{file.name}: output.weight differs from token_embd.weight; GPT2 has one table")
    model = GPT2(config)

    def target(name: str) -> str | None:
        if name == "output.weight":
            return ""
        found = _BLOCK.fullmatch(name)
        layer, _, part = (found.group(2) if found else name).rpartition(".")
        inner = _GPT2.get(layer)
        if inner is None:
            return None
        return f"h.{found.group(1)}.{inner}.{part}" if found else f"{inner}.{part}"

    _fill(file, model, tensors, target, lambda _, array: array)
    return model
