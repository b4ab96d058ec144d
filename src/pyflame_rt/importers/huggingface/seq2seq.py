"""An encoder and a decoder that reads its states: T5 and Whisper."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph import DType, Shape, TensorType
from pyflame_rt.graph.errors import InvalidModelError, UnsupportedFormatError
from pyflame_rt.importers.huggingface.blocks import (
    LayerNames,
    Net,
    Style,
    activation,
    causal_seen,
    hidden_bias,
    layer,
    padding_bias,
    places,
)
from pyflame_rt.importers.huggingface.encoders import token_input
from pyflame_rt.ops.core.value import Value, constant
from pyflame_rt.ops.microsoft.attention import count, size_of
from pyflame_rt.ops.onnx.activation import Clip
from pyflame_rt.ops.onnx.conv import Conv
from pyflame_rt.ops.onnx.index import Gather
from pyflame_rt.ops.onnx.shape import Transpose, Unsqueeze

if TYPE_CHECKING:
    from pyflame_rt.importers.huggingface.folder import Settings

__all__ = ["T5_DEFAULTS", "build_t5", "build_whisper"]


def _t5_names(decoder: bool, gated: bool) -> LayerNames:
    own, last = "layer.0.SelfAttention", "layer.2" if decoder else "layer.1"
    dense = f"{last}.DenseReluDense"
    cross = tuple(f"layer.1.EncDecAttention.{n}" for n in "qkvo")
    return LayerNames(
        *(f"{own}.{n}" for n in "qkvo"),
        norm="layer.0.layer_norm",
        mlp_norm=f"{last}.layer_norm",
        gate=f"{dense}.wi_0" if gated else "",
        up=f"{dense}.wi_1" if gated else f"{dense}.wi",
        down=f"{dense}.wo",
        cross=cross if decoder else None,  # type: ignore[arg-type] - four names
        cross_norm="layer.1.layer_norm" if decoder else "",
    )


T5_DEFAULTS = {
    "d_model": 512, "d_kv": 64, "num_layers": 6, "num_heads": 8, "layer_norm_epsilon": 1e-6,
    "feed_forward_proj": "relu", "relative_attention_num_buckets": 32, "relative_attention_max_distance": 128,
}  # fmt: skip


def _t5_style(settings: Settings) -> tuple[Style, bool]:
    """How the layers are put together, and whether their network is gated."""
    how = settings.text("feed_forward_proj")
    gated, act = how.startswith("gated-"), how.removeprefix("gated-")
    act = "gelu_new" if how == "gated-gelu" else act
    eps = settings.number("layer_norm_epsilon")
    heads, size = settings.size("num_heads"), settings.size("d_kv")
    return Style(heads, size, act=act, eps=eps, norm="rms", scale=1.0), gated


def build_t5(settings: Settings, net: Net, *, head: bool) -> None:
    """Trace T5: the scores of the decoder's next tokens, or the states of the encoder alone."""
    style, gated = _t5_style(settings)
    tracer = net.tracer
    tokens, mask = token_input(tracer, "input_ids"), token_input(tracer, "attention_mask")
    table = "shared" if "shared.weight" in net.weights else "encoder.embed_tokens"
    padding, x = padding_bias(mask), net.embed(tokens, table)
    bias = _distance_bias(settings, net, "encoder", tokens, both_ways=True) + padding
    for i in range(settings.layers("num_layers")):
        x = layer(net, x, f"encoder.block.{i}.", _t5_names(False, gated), style, bias)
    memory = net.norm(x, "encoder.final_layer_norm", style)
    if not head:
        tracer.output(memory, "last_hidden_state")
        return
    following = token_input(tracer, "decoder_input_ids", "decoder_sequence_length")
    x = net.embed(following, table)
    seen = hidden_bias(causal_seen(size_of(following, 1)))
    bias = _distance_bias(settings, net, "decoder", following, both_ways=False) + seen
    deep = settings.layers("num_decoder_layers" if "num_decoder_layers" in settings else "num_layers")
    for i in range(deep):
        names = _t5_names(True, gated)
        x = layer(net, x, f"decoder.block.{i}.", names, style, bias, memory=(memory, padding))
    x = net.norm(x, "decoder.final_layer_norm", style)
    tied = settings.flag("tie_word_embeddings", default=True)
    if settings.flag("scale_decoder_outputs", default=tied):
        x = x * settings.size("d_model") ** -0.5
    tracer.output(net.project(x, f"{table}.weight" if tied else "lm_head.weight"), "logits")
    tracer.output(memory, "encoder_last_hidden_state")


def _distance_bias(settings: Settings, net: Net, side: str, tokens: Value, *, both_ways: bool) -> Value:
    """What is added to scores by how far apart tokens are: [1, heads, queries, keys]."""
    name = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    buckets, furthest = (settings.size(f"relative_attention_{n}") for n in ("num_buckets", "max_distance"))
    array = net.weights.take(name)
    if array.shape != (buckets, settings.size("num_heads")) or buckets < 4 or furthest > 1 << 20:
        raise InvalidModelError(f"{net.weights.where}: {name} is {list(array.shape)} for {buckets} buckets")
    distances = np.arange(-furthest, furthest + 1)  # further ones are as the last of these
    by_distance = array[_bucket(distances, buckets, furthest, both_ways=both_ways)]
    table = net.initializer(name, by_distance)
    spots = count(size_of(tokens, 1))
    apart = spots - Unsqueeze(spots, [1])
    limits = (constant(n, DType.Int64) for n in (-furthest, furthest))
    found = Gather(table, Clip(apart, *limits) + furthest, axis=0)
    return Unsqueeze(Transpose(found, perm=[2, 0, 1]), [0])


def _bucket(distance: np.ndarray[Any, Any], buckets: int, furthest: int, *, both_ways: bool) -> np.ndarray[Any, Any]:
    """Near distances have a bucket each, further ones share them, ever wider; in float32, as T5 was trained."""
    first = np.zeros_like(distance)
    if both_ways:
        buckets //= 2
        first = (distance > 0) * buckets
        behind = np.abs(distance)
    else:
        behind = -np.minimum(distance, 0)
    exact = buckets // 2
    if furthest <= exact:
        raise UnsupportedFormatError(f"relative positions up to {furthest} in {buckets} buckets")
    far = np.log(np.maximum(behind, 1).astype(np.float32) / np.float32(exact))
    wide = exact + (far / np.float32(math.log(furthest / exact)) * np.float32(buckets - exact)).astype(np.int64)
    return first + np.where(behind < exact, behind, np.minimum(wide, buckets - 1))


# ---------------------------------------------------------------------- Whisper

_ENCODER = LayerNames(
    *(f"self_attn.{n}" for n in ("q_proj", "k_proj", "v_proj", "out_proj")),
    norm="self_attn_layer_norm",
    mlp_norm="final_layer_norm",
    up="fc1",
    down="fc2",
)
_DECODER = _ENCODER._replace(
    cross=("encoder_attn.q_proj", "encoder_attn.k_proj", "encoder_attn.v_proj", "encoder_attn.out_proj"),
    cross_norm="encoder_attn_layer_norm",
)


def _whisper_style(settings: Settings, heads: int) -> Style:
    width = settings.size("d_model")
    if width % heads:
        raise InvalidModelError(f"{settings.where}: {width} features cannot be parted into {heads} heads")
    return Style(heads, width // heads, act=settings.text("activation_function", "gelu"), eps=1e-5)


def build_whisper(settings: Settings, net: Net) -> None:
    """Trace Whisper: the scores of the decoder's next tokens, for the spectrum of 30 seconds."""
    settings.refuse("scale_embedding", False)
    tracer, length = net.tracer, settings.size("max_source_positions")
    shape = Shape(["batch_size", settings.size("num_mel_bins"), 2 * length])
    x = tracer.input("input_features", TensorType(DType.Float32, shape))
    for name, stride in (("conv1", 1), ("conv2", 2)):
        weights = (net.weight(f"model.encoder.{name}.{part}") for part in ("weight", "bias"))
        x = activation("gelu", Conv(x, *weights, strides=[stride], pads=[1, 1]))
    x = Transpose(x, perm=[0, 2, 1]) + net.weight("model.encoder.embed_positions.weight", 2)
    style = _whisper_style(settings, settings.size("encoder_attention_heads"))
    for i in range(settings.layers("encoder_layers")):
        x = layer(net, x, f"model.encoder.layers.{i}.", _ENCODER, style, None)
    memory = net.norm(x, "model.encoder.layer_norm", style)
    tokens = token_input(tracer, "decoder_input_ids", "decoder_sequence_length")
    x = net.embed(tokens, "model.decoder.embed_tokens")
    x = x + net.embed(places(tokens), "model.decoder.embed_positions")
    bias = hidden_bias(causal_seen(size_of(tokens, 1)))
    style = _whisper_style(settings, settings.size("decoder_attention_heads"))
    for i in range(settings.layers("decoder_layers")):
        x = layer(net, x, f"model.decoder.layers.{i}.", _DECODER, style, bias, memory=(memory, None))
    x = net.norm(x, "model.decoder.layer_norm", style)
    tied = settings.flag("tie_word_embeddings", default=True)
    tracer.output(net.project(x, "model.decoder.embed_tokens.weight" if tied else "proj_out.weight"), "logits")
    tracer.output(memory, "encoder_last_hidden_state")
