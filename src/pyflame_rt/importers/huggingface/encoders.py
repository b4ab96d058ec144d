"""Encoders of text: BERT, RoBERTa, DistilBERT, with the heads of their usual tasks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyflame_rt.graph import DType, Shape, TensorType
from pyflame_rt.graph.errors import InvalidModelError
from pyflame_rt.importers.huggingface.blocks import LayerNames, Net, Style, activation, layer, padding_bias, places
from pyflame_rt.ops.core.value import Value, constant
from pyflame_rt.ops.onnx.cast import Cast
from pyflame_rt.ops.onnx.index import Gather
from pyflame_rt.ops.onnx.logic import Equal
from pyflame_rt.ops.onnx.math import Tanh
from pyflame_rt.ops.onnx.reduce import CumSum
from pyflame_rt.ops.onnx.shape import Squeeze
from pyflame_rt.ops.onnx.slicing import Split

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyflame_rt.importers.huggingface.folder import Settings
    from pyflame_rt.ops.core.trace import Tracer

__all__ = ["ENCODERS", "HEADS", "EncoderFamily", "build_encoder", "token_input"]


@dataclass(frozen=True)
class EncoderFamily:
    """What a family of encoders calls its weights and settings.

    Attributes:
        base: prefix of all but the head.
        layers: prefix of a layer, with {} for its number.
        names: within a layer.
        types: it has a table for types of tokens.
        padded_places: places are counted from one after the padding token's number, over tokens that are no padding.
        transform: prefix of the head of masked tokens, and its product, norm and bias.
        scores: prefix of the last product of that head, where its table is not that of the tokens.
        keys: names of settings where they are not the usual ones.
        defaults: settings that a folder may leave out.
        refused: settings that must have one of these values, or be left out.
    """

    base: str
    layers: str
    names: LayerNames
    transform: tuple[str, str, str]
    scores: str
    types: bool = True
    padded_places: bool = False
    keys: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    refused: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    def key(self, usual: str) -> str:
        """This family's name of a setting."""
        return self.keys.get(usual, usual)


_BERT = LayerNames(
    q="attention.self.query",
    k="attention.self.key",
    v="attention.self.value",
    o="attention.output.dense",
    norm="attention.output.LayerNorm",
    up="intermediate.dense",
    down="output.dense",
    mlp_norm="output.LayerNorm",
)
_DISTILBERT = LayerNames(
    q="attention.q_lin",
    k="attention.k_lin",
    v="attention.v_lin",
    o="attention.out_lin",
    norm="sa_layer_norm",
    up="ffn.lin1",
    down="ffn.lin2",
    mlp_norm="output_layer_norm",
)
_USUAL = {"layer_norm_eps": 1e-12, "hidden_act": "gelu"}
_PLAIN = {"is_decoder": (False,), "add_cross_attention": (False,), "position_embedding_type": ("absolute",)}

ENCODERS: dict[str, EncoderFamily] = {
    "bert": EncoderFamily(
        "bert.",
        "encoder.layer.{}.",
        _BERT,
        ("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.bias"),
        "cls.predictions.decoder",
        defaults=_USUAL,
        refused=_PLAIN,
    ),
    "roberta": EncoderFamily(
        "roberta.",
        "encoder.layer.{}.",
        _BERT,
        ("lm_head.dense", "lm_head.layer_norm", "lm_head.bias"),
        "lm_head.decoder",
        padded_places=True,
        defaults={"layer_norm_eps": 1e-12, "hidden_act": "gelu", "pad_token_id": 1},
        refused=_PLAIN,
    ),
    "distilbert": EncoderFamily(
        "distilbert.",
        "transformer.layer.{}.",
        _DISTILBERT,
        ("vocab_transform", "vocab_layer_norm", "vocab_projector.bias"),
        "vocab_projector",
        types=False,
        keys={
            "hidden_size": "dim",
            "num_hidden_layers": "n_layers",
            "num_attention_heads": "n_heads",
            "hidden_act": "activation",
        },
        defaults={"activation": "gelu", "layer_norm_eps": 1e-12},
    ),
}


def token_input(tracer: Tracer, name: str, length: str = "sequence_length") -> Value:
    """An input of whole numbers [batch, length]."""
    return tracer.input(name, TensorType(DType.Int64, Shape(["batch_size", length])))


@dataclass(frozen=True)
class _Encoded:
    """An encoder's states, and what heads need besides."""

    family: EncoderFamily
    settings: Settings
    net: Net
    base: str
    states: Value
    style: Style

    def first(self) -> Value:
        """The states of first tokens."""
        return Gather(self.states, constant(0, DType.Int64), axis=1)

    def pooled(self) -> Value:
        """What BERT makes of the first token's state."""
        return Tanh(self.net.linear(self.first(), f"{self.base}pooler.dense"))

    def out(self, **values: Value) -> None:
        """Declare outputs."""
        for name, value in values.items():
            self.net.tracer.output(value, name)


def build_encoder(name: str, head: Callable[[_Encoded], None], settings: Settings, net: Net) -> None:
    """Trace an encoder and a head."""
    family, tracer = ENCODERS[name], net.tracer
    for setting, fine in family.refused.items():
        settings.refuse(setting, *fine)
    base = family.base if net.weights.has_prefix(family.base) else ""
    style = _style(family, settings)
    tokens, mask = token_input(tracer, "input_ids"), token_input(tracer, "attention_mask")
    x = net.embed(tokens, f"{base}embeddings.word_embeddings")
    if family.types:
        kinds = token_input(tracer, "token_type_ids")
        x = x + net.embed(kinds, f"{base}embeddings.token_type_embeddings")
    x = x + net.embed(_places(family, settings, tokens), f"{base}embeddings.position_embeddings")
    x = net.norm(x, f"{base}embeddings.LayerNorm", style)
    bias = padding_bias(mask)
    for i in range(settings.layers(family.key("num_hidden_layers"))):
        x = layer(net, x, base + family.layers.format(i), family.names, style, bias)
    head(_Encoded(family, settings, net, base, x, style))


def _style(family: EncoderFamily, settings: Settings) -> Style:
    heads, hidden = (settings.size(family.key(name)) for name in ("num_attention_heads", "hidden_size"))
    if hidden % heads:
        raise InvalidModelError(f"{settings.where}: {hidden} features cannot be parted into {heads} heads")
    act, eps = settings.text(family.key("hidden_act")), settings.number("layer_norm_eps")
    return Style(heads, hidden // heads, act=act, eps=eps, norm_first=False)


def _places(family: EncoderFamily, settings: Settings, tokens: Value) -> Value:
    if not family.padded_places:
        return places(tokens)
    padding = settings.values["pad_token_id"]
    if not isinstance(padding, int) or padding < 0:
        raise InvalidModelError(f"{settings.where}: pad_token_id is {padding!r}, not a token")
    real = Cast(~Equal(tokens, constant(padding, DType.Int64)), to=DType.Int64)
    return CumSum(real, 1) * real + padding


# ---------------------------------------------------------------------- heads


def _states(e: _Encoded) -> None:
    e.out(last_hidden_state=e.states)


def _states_and_pooled(e: _Encoded) -> None:
    e.out(last_hidden_state=e.states)
    if f"{e.base}pooler.dense.weight" in e.net.weights:
        e.out(pooler_output=e.pooled())


def _masked(e: _Encoded) -> None:
    dense, norm, bias = e.family.transform
    act = "gelu" if e.family.padded_places else e.style.act
    x = e.net.norm(activation(act, e.net.linear(e.states, dense)), norm, e.style)
    if e.settings.flag("tie_word_embeddings", default=True):
        e.out(logits=e.net.project(x, f"{e.base}embeddings.word_embeddings.weight") + e.net.weight(bias, 1))
    else:
        e.out(logits=e.net.linear(x, e.family.scores))


def _classes(e: _Encoded) -> None:
    e.out(logits=e.net.linear(e.pooled(), "classifier"))


def _roberta_classes(e: _Encoded) -> None:
    x = Tanh(e.net.linear(e.first(), "classifier.dense"))
    e.out(logits=e.net.linear(x, "classifier.out_proj"))


def _distilbert_classes(e: _Encoded) -> None:
    x = activation("relu", e.net.linear(e.first(), "pre_classifier"))
    e.out(logits=e.net.linear(x, "classifier"))


def _token_classes(e: _Encoded) -> None:
    e.out(logits=e.net.linear(e.states, "classifier"))


def _spans(e: _Encoded) -> None:
    start, end = Split(e.net.linear(e.states, "qa_outputs"), axis=2, num_outputs=2)
    e.out(start_logits=Squeeze(start, [2]), end_logits=Squeeze(end, [2]))


HEADS: dict[str, tuple[str, Callable[[_Encoded], None]]] = {
    f"{prefix}{task}": (family, head)
    for family, prefix, heads in (
        ("bert", "Bert", {"Model": _states_and_pooled, "ForSequenceClassification": _classes}),
        ("roberta", "Roberta", {"Model": _states_and_pooled, "ForSequenceClassification": _roberta_classes}),
        ("distilbert", "DistilBert", {"Model": _states, "ForSequenceClassification": _distilbert_classes}),
    )
    for task, head in {
        **heads,
        "ForMaskedLM": _masked,
        "ForTokenClassification": _token_classes,
        "ForQuestionAnswering": _spans,
    }.items()
}
