"""Which builder makes the graph of which architecture."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from pyflame_rt.importers.huggingface.blocks import Net
from pyflame_rt.importers.huggingface.caches import BufferCache, ConcatCache
from pyflame_rt.importers.huggingface.decoders import DECODERS, build_decoder, decoder_sizes
from pyflame_rt.importers.huggingface.encoders import ENCODERS, HEADS, build_encoder
from pyflame_rt.importers.huggingface.folder import Settings, Weights
from pyflame_rt.importers.huggingface.seq2seq import T5_DEFAULTS, build_t5, build_whisper
from pyflame_rt.importers.huggingface.vision import build_clip, build_resnet, build_vit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyflame_rt.ops.core.trace import Tracer

    Builder = Callable[[Settings, Weights, Tracer], None]

__all__ = ["ARCHITECTURES", "GENERATING", "IGNORED", "trace_decoder"]

# Weights that say nothing new: buffers of other versions, second names of tied tables and biases, heads of
# pre-training.
IGNORED = (
    "position_ids", "rotary_emb.inv_freq", "num_batches_tracked", ".attn.bias", ".attn.masked_bias",
    "lm_head.weight", "proj_out.weight", "cls.predictions.decoder", "lm_head.decoder", "vocab_projector.weight",
    "embed_tokens.weight", "pooler.dense", "cls.seq_relationship", "cls.predictions.bias", "lm_head.bias",
    "EncDecAttention.relative_attention_bias",
)  # fmt: skip


def _decoder(name: str, head: bool, settings: Settings, weights: Weights, tracer: Tracer) -> None:
    trace_decoder(name, settings, weights, tracer, ConcatCache, head=head)


def trace_decoder(
    name: str,
    settings: Settings,
    weights: Weights,
    tracer: Tracer,
    form: type[BufferCache | ConcatCache] = BufferCache,
    *,
    head: bool = True,
    conv1d: bool | None = None,
) -> None:
    """Trace the decoder of a family, its keys and values kept in one of two forms.

    Args:
        name: of the family.
        settings: of the model.
        weights: of the model.
        tracer: records the graph.
        form: where keys and values are kept.
        head: whether scores are given, not states.
        conv1d: products are kept [in, out]; as the family has them unless given.
    """
    family = DECODERS[name]
    chosen = Settings(settings.values, settings.where, family.defaults)
    cache = form(tracer, *decoder_sizes(family, chosen))
    net = Net(tracer, weights, conv1d=family.conv1d if conv1d is None else conv1d)
    build_decoder(family, chosen, net, cache, head=head)


def _encoder(architecture: str, settings: Settings, weights: Weights, tracer: Tracer) -> None:
    family, head = HEADS[architecture]
    chosen = Settings(settings.values, settings.where, ENCODERS[family].defaults)
    build_encoder(family, head, chosen, Net(tracer, weights))


def _other(
    build: Callable[..., None],
    defaults: Mapping[str, Any],
    how: Mapping[str, Any],
    settings: Settings,
    weights: Weights,
    tracer: Tracer,
) -> None:
    build(Settings(settings.values, settings.where, defaults), Net(tracer, weights), **how)


_CAUSAL = {"gpt2": "GPT2", "llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "gemma": "Gemma", "phi": "Phi"}
_IMAGES = {"image_size": 224, "patch_size": 16, "hidden_act": "gelu", "layer_norm_eps": 1e-12}

ARCHITECTURES: dict[str, Builder] = {
    **{f"{prefix}Model": partial(_decoder, family, False) for family, prefix in _CAUSAL.items()},
    **{f"{prefix}ForCausalLM": partial(_decoder, family, True) for family, prefix in _CAUSAL.items()},
    "GPT2LMHeadModel": partial(_decoder, "gpt2", True),
    **{architecture: partial(_encoder, architecture) for architecture in HEADS},
    "T5ForConditionalGeneration": partial(_other, build_t5, T5_DEFAULTS, {"head": True}),
    "T5EncoderModel": partial(_other, build_t5, T5_DEFAULTS, {"head": False}),
    "ViTModel": partial(_other, build_vit, _IMAGES, {"classes": False}),
    "ViTForImageClassification": partial(_other, build_vit, _IMAGES, {"classes": True}),
    "CLIPModel": partial(_other, build_clip, {}, {}),
    "WhisperForConditionalGeneration": partial(_other, build_whisper, {}, {}),
    "ResNetModel": partial(_other, build_resnet, {}, {"classes": False}),
    "ResNetForImageClassification": partial(_other, build_resnet, {}, {"classes": True}),
}
del ARCHITECTURES["GPT2ForCausalLM"]  # GPT2LMHeadModel is its name

# Families of architectures that generate.
GENERATING = {"GPT2LMHeadModel": "gpt2"} | {f"{prefix}ForCausalLM": family for family, prefix in _CAUSAL.items()}
