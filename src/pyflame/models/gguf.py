"""Weights of GGUF files: Llama and GPT-2 models as llama.cpp keeps them, whatever their quantization."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame.models.gpt2 import GPT2, GPT2Config
from pyflame.models.llama import Llama, LlamaConfig
from pyflame_rt.graph.errors import InvalidModelError, UnsupportedFormatError
from pyflame_rt.importers.gguf.file import read_gguf
from pyflame_rt.importers.gguf.models import halves, read_model

if TYPE_CHECKING:
    import os

    from pyflame_rt.importers.gguf.models import StoredModel

__all__ = ["load_gguf"]


def load_gguf(path: str | os.PathLike[str]) -> Llama | GPT2:
    """The model of a GGUF file, with its weights as float32, to be trained or changed.

    To generate text from a file as it is, with its weights kept in blocks, see
    :meth:`pyflame_rt.generate.Generator.from_pretrained`. Weights may be of any type that the package ``gguf`` knows,
    among them F16, BF16, Q4_0, Q8_0, Q4_K and Q6_K.

    Args:
        path: a file of architecture "llama" or "gpt2".

    Raises:
        MissingExtra: the package ``gguf`` is not installed, and the file needs it.
        ModelNotFoundError: there is no such file.
        InvalidModelError: it is no GGUF file, a broken one, or lacks weights.
        UnsupportedFormatError: the architecture, or a type of weights, is not supported.

    Example:
        >>> load_gguf("lost.gguf")
        Traceback (most recent call last):
        ...
        pyflame_rt.graph.errors.ModelNotFoundError: there is no file 'lost.gguf'
    """
    file = read_gguf(path)
    stored = read_model(file)
    settings: dict[str, Any] = dict(stored.settings)
    settings.pop("hidden_act", None)
    if settings.pop("rope_scaling", {"rope_type": "default"})["rope_type"] != "default":
        raise UnsupportedFormatError(
            f"{file.where}: its rotary positions are stretched, which Llama does not; "
            "pyflame_rt.generate.Generator.from_pretrained runs such files"
        )
    if stored.family == "llama":
        model: Llama | GPT2 = Llama(LlamaConfig(**settings))
    else:
        _check_one_table(file.where, stored)
        names = {"layer_norm_epsilon": "layer_norm_eps"}
        kept = {k: v for k, v in settings.items() if k not in ("activation_function", "tie_word_embeddings")}
        model = GPT2(GPT2Config(**{names.get(k, k): v for k, v in kept.items()}))
    _fill(file.where, model, stored)
    return model


def _check_one_table(where: str, stored: StoredModel) -> None:
    """Refuse a file whose scores come from another table than its tokens."""
    table, scores = stored.weights["wte.weight"], stored.weights.get("lm_head.weight")
    if scores is not None and not np.allclose(scores.numbers(), table.numbers(), rtol=0.1, atol=0.1):
        raise UnsupportedFormatError(f"{where}: output.weight differs from token_embd.weight; GPT2 has one table")


def _fill(where: str, model: Llama | GPT2, stored: StoredModel) -> None:
    """Load the weights; every one of the model's must be there, in its shape."""
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    given = dict(stored.weights)
    if isinstance(model, GPT2):
        given.pop("lm_head.weight", None)
    elif stored.settings["tie_word_embeddings"]:
        given["lm_head.weight"] = given["embed_tokens.weight"]
    for name, shape in shapes.items():
        if name in given and given[name].shape != shape:
            raise InvalidModelError(f"{where}: {name} is {list(given[name].shape)}, the header says {list(shape)}")
    missing, left = sorted(shapes.keys() - given.keys()), sorted(given.keys() - shapes.keys())
    if missing:
        raise InvalidModelError(f"{where} lacks {len(missing)} weights, among them {missing[0]!r}")
    if left:
        raise UnsupportedFormatError(f"{where}: tensor {given[left[0]].name!r} has no place in {type(model).__name__}")
    state = {}
    for name, tensor in given.items():
        heads = stored.turned.get(name)
        state[name] = tensor.numbers() if heads is None else halves(tensor.numbers(), heads)
    model.load_state_dict(state)
    model.eval()
