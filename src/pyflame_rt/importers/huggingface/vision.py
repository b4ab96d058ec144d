"""Images: vision transformers, residual networks, and CLIP with its text beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
    places,
)
from pyflame_rt.ops.core.value import Value, constant
from pyflame_rt.ops.microsoft.attention import size_of
from pyflame_rt.ops.onnx.cast import Cast
from pyflame_rt.ops.onnx.conv import Conv
from pyflame_rt.ops.onnx.index import Gather, GatherND
from pyflame_rt.ops.onnx.logic import Equal
from pyflame_rt.ops.onnx.math import Exp, Sqrt, Tanh
from pyflame_rt.ops.onnx.matmul import MatMul
from pyflame_rt.ops.onnx.maxpool import MaxPool
from pyflame_rt.ops.onnx.norm import BatchNormalization
from pyflame_rt.ops.onnx.pool import GlobalAveragePool
from pyflame_rt.ops.onnx.reduce import ArgMax, ReduceSumSquare
from pyflame_rt.ops.onnx.shape import Expand, Flatten, Reshape, Transpose, Unsqueeze
from pyflame_rt.ops.onnx.slicing import Concat

if TYPE_CHECKING:
    from pyflame_rt.importers.huggingface.folder import Settings
    from pyflame_rt.ops.core.trace import Tracer

__all__ = ["build_clip", "build_resnet", "build_vit"]

_VIT = LayerNames(
    q="attention.attention.query",
    k="attention.attention.key",
    v="attention.attention.value",
    o="attention.output.dense",
    norm="layernorm_before",
    mlp_norm="layernorm_after",
    up="intermediate.dense",
    down="output.dense",
)
_CLIP = LayerNames(
    q="self_attn.q_proj",
    k="self_attn.k_proj",
    v="self_attn.v_proj",
    o="self_attn.out_proj",
    norm="layer_norm1",
    mlp_norm="layer_norm2",
    up="mlp.fc1",
    down="mlp.fc2",
)
_TEXT = {
    "hidden_size": 512, "num_hidden_layers": 12, "num_attention_heads": 8, "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-5, "eos_token_id": 49407,
}  # fmt: skip
_IMAGE = {
    "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-5, "image_size": 224, "patch_size": 32, "num_channels": 3,
}  # fmt: skip


def _style(settings: Settings) -> Style:
    heads, hidden = settings.size("num_attention_heads"), settings.size("hidden_size")
    if hidden % heads:
        raise InvalidModelError(f"{settings.where}: {hidden} features cannot be parted into {heads} heads")
    act, eps = settings.text("hidden_act"), settings.number("layer_norm_eps")
    return Style(heads, hidden // heads, act=act, eps=eps)


def _image_input(tracer: Tracer, settings: Settings, *, fixed: bool) -> Value:
    sizes: list[Any] = [settings.size("image_size")] * 2 if fixed else ["height", "width"]
    shape = Shape(["batch_size", settings.size("num_channels", 3), *sizes])
    return tracer.input("pixel_values", TensorType(DType.Float32, shape))


def _patches(net: Net, pixels: Value, name: str, size: int, first: Value) -> Value:
    """States of an image: that of its class, then one for each patch."""
    bias = net.weight(f"{name}.bias", 1) if f"{name}.bias" in net.weights else None
    image = Conv(pixels, net.weight(f"{name}.weight", 4), bias, strides=[size, size])
    batch, width = size_of(pixels, 0), image.shape[1]
    states = Transpose(Reshape(image, [0, 0, -1]), perm=[0, 2, 1])
    counts = Concat(Unsqueeze(batch, [0]), constant([1, width], DType.Int64), axis=0)
    return Concat(Expand(first, counts), states, axis=1)


def build_vit(settings: Settings, net: Net, *, classes: bool) -> None:
    """Trace a vision transformer, with the scores of classes or its states."""
    base = "vit." if net.weights.has_prefix("vit.") else ""
    style, size = _style(settings), settings.size("patch_size")
    pixels = _image_input(net.tracer, settings, fixed=True)
    first = net.weight(f"{base}embeddings.cls_token", 3)
    x = _patches(net, pixels, f"{base}embeddings.patch_embeddings.projection", size, first)
    x = x + net.weight(f"{base}embeddings.position_embeddings", 3)
    for i in range(settings.layers("num_hidden_layers")):
        x = layer(net, x, f"{base}encoder.layer.{i}.", _VIT, style, None)
    x = net.norm(x, f"{base}layernorm", style)
    head = Gather(x, constant(0, DType.Int64), axis=1)
    if classes:
        net.tracer.output(net.linear(head, "classifier"), "logits")
        return
    net.tracer.output(x, "last_hidden_state")
    if f"{base}pooler.dense.weight" in net.weights:
        settings.refuse("pooler_act", "tanh")
        net.tracer.output(Tanh(net.linear(head, f"{base}pooler.dense")), "pooler_output")


# ---------------------------------------------------------------------- CLIP


def build_clip(settings: Settings, net: Net) -> None:
    """Trace CLIP: scores of texts for images and of images for texts."""
    text, image = settings.inner("text_config", _TEXT), settings.inner("vision_config", _IMAGE)
    texts = _unit(net.project(_clip_text(text, net), "text_projection.weight"))
    images = _unit(net.project(_clip_image(image, net), "visual_projection.weight"))
    scores = MatMul(texts, Transpose(images, perm=[1, 0])) * Exp(net.weight("logit_scale", 0))
    out = net.tracer.output
    out(Transpose(scores, perm=[1, 0]), "logits_per_image")
    out(scores, "logits_per_text")
    out(texts, "text_embeds")
    out(images, "image_embeds")


def _unit(x: Value) -> Value:
    return x / Sqrt(ReduceSumSquare(x, [-1], keepdims=1))


def _clip_text(settings: Settings, net: Net) -> Value:
    """The state of the token that ends each text."""
    base, style = "text_model.", _style(settings)
    tokens = net.tracer.input("input_ids", TensorType(DType.Int64, Shape(["text_batch_size", "sequence_length"])))
    mask = net.tracer.input("attention_mask", TensorType(DType.Int64, Shape(["text_batch_size", "sequence_length"])))
    x = net.embed(tokens, f"{base}embeddings.token_embedding")
    x = x + net.embed(places(tokens), f"{base}embeddings.position_embedding")
    bias = hidden_bias(causal_seen(size_of(tokens, 1)) & Cast(Unsqueeze(mask, [1, 2]), to=DType.Bool))
    for i in range(settings.layers("num_hidden_layers")):
        x = layer(net, x, f"{base}encoder.layers.{i}.", _CLIP, style, bias)
    x = net.norm(x, f"{base}final_layer_norm", style)
    end = settings.values["eos_token_id"]
    # Folders written before the number was right have 2: there the end is the token of the highest number.
    marks = tokens if end == 2 else Cast(Equal(tokens, constant(int(end), DType.Int64)), to=DType.Int64)
    return GatherND(x, ArgMax(marks, axis=1, keepdims=1), batch_dims=1)


def _clip_image(settings: Settings, net: Net) -> Value:
    base, style = "vision_model.", _style(settings)
    pixels = _image_input(net.tracer, settings, fixed=True)
    first = Unsqueeze(net.weight(f"{base}embeddings.class_embedding", 1), [0, 1])
    x = _patches(net, pixels, f"{base}embeddings.patch_embedding", settings.size("patch_size"), first)
    x = x + net.weight(f"{base}embeddings.position_embedding.weight", 2)
    x = net.norm(x, f"{base}pre_layrnorm", style)
    for i in range(settings.layers("num_hidden_layers")):
        x = layer(net, x, f"{base}encoder.layers.{i}.", _CLIP, style, None)
    return net.norm(Gather(x, constant(0, DType.Int64), axis=1), f"{base}post_layernorm", style)


# ---------------------------------------------------------------------- residual networks


def build_resnet(settings: Settings, net: Net, *, classes: bool) -> None:
    """Trace a residual network, with the scores of classes or its states."""
    base = "resnet." if net.weights.has_prefix("resnet.") else ""
    act, kind = settings.text("hidden_act", "relu"), settings.text("layer_type", "bottleneck")
    if kind not in ("basic", "bottleneck"):
        raise UnsupportedFormatError(f"{settings.where}: layer_type {kind!r} is not one of basic, bottleneck")
    x = _image_input(net.tracer, settings, fixed=False)
    x = activation(act, _convolved(net, x, f"{base}embedder.embedder.", 2))
    x = MaxPool(x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])[0]
    for i, depth in enumerate(settings.sizes("depths")):
        halved = i > 0 or settings.flag("downsample_in_first_stage")
        for j in range(depth):
            prefix = f"{base}encoder.stages.{i}.layers.{j}."
            strides = _strides(settings, kind, halved=halved and j == 0)
            x = _residual(net, x, prefix, strides, act)
    pooled = GlobalAveragePool(x)
    if classes:
        net.tracer.output(net.linear(Flatten(pooled, axis=1), "classifier.1"), "logits")
        return
    net.tracer.output(x, "last_hidden_state")
    net.tracer.output(pooled, "pooler_output")


def _strides(settings: Settings, kind: str, *, halved: bool) -> list[int]:
    """Of the convolutions of a block."""
    if kind == "basic":
        return [2 if halved else 1, 1]
    early = settings.flag("downsample_in_bottleneck")
    return [2 if halved and early else 1, 2 if halved and not early else 1, 1]


def _residual(net: Net, x: Value, prefix: str, strides: list[int], act: str) -> Value:
    straight = x
    if f"{prefix}shortcut.convolution.weight" in net.weights:
        straight = _convolved(net, x, f"{prefix}shortcut.", max(strides))
    for k, stride in enumerate(strides):
        x = _convolved(net, x, f"{prefix}layer.{k}.", stride)
        x = activation("relu", x) if k + 1 < len(strides) else x
    return activation(act, x + straight)


def _convolved(net: Net, x: Value, prefix: str, stride: int) -> Value:
    weight = net.weight(f"{prefix}convolution.weight", 4)
    size = weight.shape[2]
    if not isinstance(size, int) or size % 2 != 1:
        raise InvalidModelError(f"{net.weights.where}: {prefix}convolution has a window of {size}")
    y = Conv(x, weight, strides=[stride, stride], pads=[size // 2] * 4)
    norm = [net.weight(f"{prefix}normalization.{n}", 1) for n in ("weight", "bias", "running_mean", "running_var")]
    return BatchNormalization(y, *norm)
