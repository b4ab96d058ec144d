"""Decoders with past keys and values: GPT-2, Llama, Qwen2, Mistral, Gemma, Phi, by one table of names and settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyflame_rt.graph.errors import InvalidModelError
from pyflame_rt.importers.huggingface.blocks import LayerNames, Net, Style, layer
from pyflame_rt.importers.huggingface.rotary import DIVISORS, rotary

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyflame_rt.importers.huggingface.caches import KeyValues
    from pyflame_rt.importers.huggingface.folder import Settings

__all__ = ["DECODERS", "DecoderFamily", "build_decoder", "decoder_sizes"]


@dataclass(frozen=True)
class DecoderFamily:
    """What a family of decoders calls its weights and settings.

    Attributes:
        base: prefix of all but the head.
        layers: prefix of a layer, with {} for its number.
        names: within a layer.
        tokens: table of tokens.
        places: table of positions; "" for rotary ones.
        norm: after the last layer.
        keys: names of settings where they are not the usual ones.
        style: of layers, but their sizes.
        defaults: settings that a folder may leave out.
        refused: settings that must have one of these values, or be left out.
        conv1d: products are kept [in, out].
        embed_scale: states begin as the tokens' rows times the root of their width.
    """

    base: str
    layers: str
    names: LayerNames
    tokens: str
    norm: str
    places: str = ""
    keys: Mapping[str, str] = field(default_factory=dict)
    style: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    refused: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    conv1d: bool = False
    embed_scale: bool = False

    def key(self, usual: str) -> str:
        """This family's name of a setting."""
        return self.keys.get(usual, usual)


_LLAMA = LayerNames(
    q="self_attn.q_proj",
    k="self_attn.k_proj",
    v="self_attn.v_proj",
    o="self_attn.o_proj",
    norm="input_layernorm",
    mlp_norm="post_attention_layernorm",
    gate="mlp.gate_proj",
    up="mlp.up_proj",
    down="mlp.down_proj",
)
_GPT2 = LayerNames(
    q="", k="", v="", qkv="attn.c_attn", o="attn.c_proj", norm="ln_1", mlp_norm="ln_2", up="mlp.c_fc", down="mlp.c_proj"
)
_PHI = _LLAMA._replace(
    o="self_attn.dense",
    gate="",
    up="mlp.fc1",
    down="mlp.fc2",
    q_norm="self_attn.q_layernorm",
    k_norm="self_attn.k_layernorm",
)
_RMS = {"norm": "rms"}


def _like_llama(**changes: Any) -> DecoderFamily:
    given: dict[str, Any] = {
        "base": "model.",
        "layers": "layers.{}.",
        "names": _LLAMA,
        "tokens": "embed_tokens",
        "norm": "norm",
        "style": _RMS,
        "defaults": {"hidden_act": "silu", "rms_norm_eps": 1e-6},
    }
    return DecoderFamily(**{**given, **changes})


DECODERS: dict[str, DecoderFamily] = {
    "gpt2": DecoderFamily(
        base="transformer.",
        layers="h.{}.",
        names=_GPT2,
        tokens="wte",
        places="wpe",
        norm="ln_f",
        keys={
            "hidden_size": "n_embd",
            "num_hidden_layers": "n_layer",
            "num_attention_heads": "n_head",
            "eps": "layer_norm_epsilon",
            "hidden_act": "activation_function",
        },
        defaults={"layer_norm_epsilon": 1e-5, "activation_function": "gelu_new", "tie_word_embeddings": True},
        refused={
            "scale_attn_weights": (True,),
            "scale_attn_by_inverse_layer_idx": (False,),
            "add_cross_attention": (False,),
        },
        conv1d=True,
    ),
    "llama": _like_llama(refused={"pretraining_tp": (1,)}),
    "mistral": _like_llama(defaults={"hidden_act": "silu", "rms_norm_eps": 1e-6, "sliding_window": None}),
    "qwen2": _like_llama(),
    "gemma": _like_llama(
        style={"norm": "rms", "norm_offset": 1.0},
        defaults={
            "hidden_act": "gelu_pytorch_tanh",
            "rms_norm_eps": 1e-6,
            "head_dim": 256,
            "tie_word_embeddings": True,
        },
        refused={"use_bidirectional_attention": (False,)},
        embed_scale=True,
    ),
    "phi": _like_llama(
        names=_PHI,
        norm="final_layernorm",
        keys={"eps": "layer_norm_eps"},
        style={"norm": "layer", "parallel": True},
        defaults={"hidden_act": "gelu_new", "layer_norm_eps": 1e-5, "partial_rotary_factor": 0.5},
    ),
}


def decoder_style(family: DecoderFamily, settings: Settings) -> Style:
    """How the layers are put together, with their sizes."""
    heads = settings.size(family.key("num_attention_heads"))
    hidden = settings.size(family.key("hidden_size"))
    shared = settings.size("num_key_value_heads", heads)
    if heads % shared or ("head_dim" not in settings and hidden % heads):
        raise InvalidModelError(f"{settings.where}: {heads} heads, {shared} for keys, of {hidden} features")
    eps = "eps" if "eps" in family.keys else "rms_norm_eps"
    return Style(
        heads,
        settings.size("head_dim", hidden // heads),
        shared,
        act=settings.text(family.key("hidden_act")),
        eps=settings.number(family.key(eps)),
        **family.style,
    )


def decoder_sizes(family: DecoderFamily, settings: Settings) -> tuple[int, int, int]:
    """Layers, heads of keys, and the width of one."""
    style = decoder_style(family, settings)
    return settings.layers(family.key("num_hidden_layers")), style.kv_heads, style.head_dim


def layer_windows(settings: Settings, layers: int) -> list[int | None]:
    """How far back the tokens of each layer see; None for all the way."""
    if not settings.flag("use_sliding_window", default="use_sliding_window" not in settings.values):
        return [None] * layers
    if "sliding_window" not in settings:
        return [None] * layers
    window = settings.size("sliding_window")
    kinds = settings.values.get("layer_types")
    if kinds is None:
        first = settings.values.get("max_window_layers", 0)
        return [window if i >= first else None for i in range(layers)]
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise InvalidModelError(f"{settings.where}: layer_types does not tell of {layers} layers")
    return [window if kind == "sliding_attention" else None for kind in kinds]


def build_decoder(family: DecoderFamily, settings: Settings, net: Net, cache: KeyValues, *, head: bool = True) -> None:
    """Trace a decoder: scores of what follows each token, or the states of the tokens where there is no head."""
    for name, fine in family.refused.items():
        settings.refuse(name, *fine)
    style, layers = decoder_style(family, settings), settings.layers(family.key("num_hidden_layers"))
    base = family.base if net.weights.has_prefix(family.base) else ""
    x = net.embed(cache.tokens, base + family.tokens)
    if family.embed_scale:
        x = x * settings.size(family.key("hidden_size")) ** 0.5
    angles = None
    if family.places:
        x = x + net.embed(cache.positions, base + family.places)
    else:
        if "partial_rotary_factor" not in family.defaults:  # transformers passes it over in these families
            settings.inner("rope_parameters").refuse("partial_rotary_factor", 1.0)
            settings.refuse("partial_rotary_factor", 1.0)
        slower = net.weights.take(DIVISORS) if DIVISORS in net.weights else None
        angles = rotary(settings, cache.positions, style.head_dim, slower)
    for i, window in enumerate(layer_windows(settings, layers)):
        x = layer(
            net,
            x,
            base + family.layers.format(i),
            family.names,
            style,
            cache.bias(window),
            angles=angles,
            extend=lambda k, v, i=i: cache.extend(i, k, v),
        )
    x = cache.wanted(net.norm(x, base + family.norm, style))
    if not head:
        net.tracer.output(x, "last_hidden_state")
    elif settings.flag("tie_word_embeddings", default=False) or "lm_head.weight" not in net.weights:
        scores = net.project(x, f"{base}{family.tokens}.weight")
        scores = scores + net.weight("lm_head.bias", 1) if "lm_head.bias" in net.weights else scores
        net.tracer.output(scores, "logits")
    else:
        net.tracer.output(net.linear(x, "lm_head") if not family.conv1d else net.project(x, "lm_head.weight"), "logits")
    cache.finish()
