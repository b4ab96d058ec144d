"""Which builder makes the graph of which architecture."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from pyflame_rt.importers.huggingface.blocks import Net
from pyflame_rt.importers.huggingface.decoders import DECODERS, ConcatCache, build_decoder, decoder_sizes
from pyflame_rt.importers.huggingface.encoders import ENCODERS, HEADS, build_encoder
from pyflame_rt.importers.huggingface.folder import Settings, Weights
from pyflame_rt.importers.huggingface.seq2seq import T5_DEFAULTS, build_t5, build_whisper
from pyflame_rt.importers.huggingface.vision import build_clip, build_resnet, build_vit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyflame_rt.ops.core.trace import Tracer

    Builder = Callable[[Settings, Weights, Tracer], None]

__all__ = ["ARCHITECTURES", "IGNORED"]

# Weights that say nothing new: buffers of other versions, second names of tied tables, heads of pre-training.
IGNORED = (
    "position_ids", "rotary_emb.inv_freq", "num_batches_tracked", ".attn.bias", ".attn.masked_bias",
    "lm_head.weight", "proj_out.weight", "cls.predictions.decoder", "lm_head.decoder", "vocab_projector.weight",
    "embed_tokens.weight", "pooler.dense", "cls.seq_relationship", "EncDecAttention.relative_attention_bias",
)  # fmt: skip


def _decoder(name: str, head: bool, settings: Settings, weights: Weights, tracer: Tracer) -> None:
    family = DECODERS[name]
    chosen = Settings(settings.values, settings.where, family.defaults)
    cache = ConcatCache(tracer, *decoder_sizes(family, chosen))
    build_decoder(family, chosen, Net(tracer, weights, conv1d=family.conv1d), cache, head=head)


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
