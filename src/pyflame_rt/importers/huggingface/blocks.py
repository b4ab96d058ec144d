"""Layers of transformers as operators on weights by name: products, norms, attention, gated networks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pyflame_rt.graph import DType, Shape, Tensor, TensorType
from pyflame_rt.graph.errors import InvalidModelError, UnsupportedFormatError
from pyflame_rt.ops.core.value import Value, constant
from pyflame_rt.ops.microsoft.attention import additive, count, lowest, merge_heads, size_of, split_heads
from pyflame_rt.ops.onnx.activation import Gelu, Relu, Sigmoid, Softmax
from pyflame_rt.ops.onnx.cast import Cast
from pyflame_rt.ops.onnx.index import Gather
from pyflame_rt.ops.onnx.math import Tanh
from pyflame_rt.ops.onnx.matmul import MatMul
from pyflame_rt.ops.onnx.norm import LayerNormalization, RMSNormalization
from pyflame_rt.ops.onnx.shape import Expand, Reshape, Transpose, Unsqueeze
from pyflame_rt.ops.onnx.slicing import Split
from pyflame_rt.ops.pyflame.stored_blocks import MatMulStoredBlocks, UnpackBlocks

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyflame_rt.importers.huggingface.folder import BlockWeights, Weights
    from pyflame_rt.importers.huggingface.rotary import Rotary
    from pyflame_rt.ops.core.trace import Tracer

__all__ = ["LayerNames", "Net", "Style", "activation", "attention", "hidden_bias", "layer"]

LOWEST = lowest(DType.Float32)

_ACTIVATIONS: dict[str, Callable[[Value], Value]] = {
    "gelu": Gelu,
    "gelu_new": lambda x: Gelu(x, approximate="tanh"),
    "gelu_fast": lambda x: Gelu(x, approximate="tanh"),
    "gelu_pytorch_tanh": lambda x: Gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * Sigmoid(x * 1.702),
    "relu": Relu,
    "silu": lambda x: x * Sigmoid(x),
    "swish": lambda x: x * Sigmoid(x),
    "tanh": Tanh,
}


def activation(name: str, x: Value) -> Value:
    """An activation by transformers' name for it."""
    if name not in _ACTIVATIONS:
        raise UnsupportedFormatError(f"activation {name!r} is not one of {', '.join(sorted(_ACTIVATIONS))}")
    return _ACTIVATIONS[name](x)


class Net:
    """A graph under way: weights become initializers under their own names, calls become nodes."""

    def __init__(self, tracer: Tracer, weights: Weights, *, conv1d: bool = False) -> None:
        self.tracer = tracer
        self.weights = weights
        self._conv1d = conv1d  # products are kept [in, out], as GPT-2 has them
        self._made: dict[tuple[str, str], Value] = {}

    def weight(self, name: str, rank: int | None = None) -> Value:
        """A weight as it is in the file."""
        return self._kept(name, "", rank, lambda array: array)

    def _kept(
        self, name: str, form: str, rank: int | None, change: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]
    ) -> Value:
        made = self._made.get((name, form))
        if made is None:
            array = self.weights.take(name)
            if rank not in (None, array.ndim):
                raise InvalidModelError(
                    f"{self.weights.where}: weight {name!r} has shape {list(array.shape)}, not {rank} axes"
                )
            made = self._made[name, form] = self.initializer(name + form, change(array))
        return made

    def initializer(self, name: str, array: np.ndarray[Any, Any]) -> Value:
        """A constant under a name."""
        tensor = Tensor(array)
        self.tracer.graph.add_initializer(name, tensor)
        return Value(name, TensorType(tensor.dtype, Shape(array.shape)))

    def linear(self, x: Value, name: str) -> Value:
        """A product with a matrix, and a bias where there is one."""
        if self._conv1d:
            y = MatMul(x, self.weight(f"{name}.weight", 2))
        else:
            y = self.project(x, f"{name}.weight")
        return y + self.weight(f"{name}.bias", 1) if f"{name}.bias" in self.weights else y

    def project(self, x: Value, name: str) -> Value:
        """A product with a matrix [out, in]."""
        blocks = self.weights.blocks(name)
        if blocks is not None:
            return MatMulStoredBlocks(x, self._of_blocks(name, blocks), format=blocks.format)
        return MatMul(x, self._kept(name, ".T", 2, lambda array: array.T))

    def embed(self, tokens: Value, name: str) -> Value:
        """Rows of a table."""
        blocks = self.weights.blocks(f"{name}.weight")
        if blocks is not None:
            rows = Gather(self._of_blocks(f"{name}.weight", blocks), tokens, axis=0)
            return UnpackBlocks(rows, format=blocks.format)
        return Gather(self.weight(f"{name}.weight", 2), tokens, axis=0)

    def _of_blocks(self, name: str, blocks: BlockWeights) -> Value:
        made = self._made.get((name, blocks.format))
        if made is None:
            made = self._made[name, blocks.format] = self.initializer(name, blocks.data)
        return made

    def norm(self, x: Value, name: str, style: Style) -> Value:
        """A norm over the last axis."""
        scale = f"{name}.weight"
        if style.norm == "rms":
            weight = self._kept(scale, "", 1, lambda array: array + np.float32(style.norm_offset))
            return RMSNormalization(x, weight, epsilon=style.eps)
        return LayerNormalization(x, self.weight(scale, 1), self.weight(f"{name}.bias", 1), epsilon=style.eps)[0]


@dataclass(frozen=True)
class Style:
    """How the layers of a family are put together, and their sizes.

    Attributes:
        heads: of queries.
        head_dim: width of one.
        kv_heads: of keys and values; as many as of queries unless given.
        act: activation of the network.
        eps: of norms.
        norm: "layer" or "rms".
        norm_offset: added to the scale of norms.
        norm_first: norms come before attention and network, else after their sums.
        parallel: attention and network read the same norm.
        scale: of scores; one over the root of the width unless given.
    """

    heads: int
    head_dim: int
    kv_heads: int = 0
    act: str = "gelu"
    eps: float = 1e-5
    norm: str = "layer"
    norm_offset: float = 0.0
    norm_first: bool = True
    parallel: bool = False
    scale: float | None = None

    @property
    def factor(self) -> float:
        """What scores are multiplied with."""
        return self.head_dim**-0.5 if self.scale is None else self.scale


class LayerNames(NamedTuple):
    """What the weights of one layer are called; "" for what a family has not."""

    q: str
    k: str
    v: str
    o: str
    norm: str
    mlp_norm: str
    up: str
    down: str
    gate: str = ""
    qkv: str = ""
    cross: tuple[str, str, str, str] | None = None
    cross_norm: str = ""
    q_norm: str = ""
    k_norm: str = ""


def hidden_bias(seen: Value) -> Value:
    """What is added to scores: nothing where a key is seen, the lowest number elsewhere."""
    return additive(seen, LOWEST)


def padding_bias(mask: Value) -> Value:
    """The bias [batch, 1, 1, keys] of a mask of 0s and 1s [batch, keys]."""
    return hidden_bias(Cast(Unsqueeze(mask, [1, 2]), to=DType.Bool))


def causal_seen(length: Value) -> Value:
    """[length, length]: keys that are not later than the query."""
    places = count(length)
    return places <= Unsqueeze(places, [1])


def _repeated(x: Value, times: int) -> Value:
    """Each head as often as heads of queries share it."""
    if times == 1:
        return x
    wide = Expand(Unsqueeze(x, [2]), [1, 1, times, 1, 1])
    return Reshape(wide, [0, x.shape[1] * times, -1, x.shape[3]])  # type: ignore[operator] - heads are counted


def attention(q: Value, k: Value, v: Value, factor: float, bias: Value | None) -> Value:
    """softmax(q k * factor + bias) v of [batch, heads, length, size], heads side by side."""
    times = _times(q, k)
    keys, values = _repeated(k, times), _repeated(v, times)
    scores = MatMul(q, Transpose(keys, perm=[0, 1, 3, 2]))
    scores = scores if factor == 1.0 else scores * factor
    return merge_heads(MatMul(Softmax(scores if bias is None else scores + bias, axis=-1), values))


def _times(q: Value, k: Value) -> int:
    heads, shared = q.shape[1], k.shape[1]
    if not isinstance(heads, int) or not isinstance(shared, int) or heads % shared:
        raise InvalidModelError(f"{heads} heads of queries do not share {shared} of keys evenly")
    return heads // shared


def _projected(net: Net, x: Value, prefix: str, names: LayerNames, style: Style) -> tuple[Value, Value, Value]:
    shared = style.kv_heads or style.heads
    if names.qkv:
        sizes = constant([n * style.head_dim for n in (style.heads, shared, shared)], DType.Int64)
        parts = Split(net.linear(x, prefix + names.qkv), sizes, axis=2)
    else:
        parts = tuple(net.linear(x, prefix + name) for name in (names.q, names.k, names.v))
    q, k, v = (_heads(part, n, style) for part, n in zip(parts, (style.heads, shared, shared), strict=True))
    if names.q_norm and f"{prefix}{names.q_norm}.weight" in net.weights:
        q, k = net.norm(q, prefix + names.q_norm, style), net.norm(k, prefix + names.k_norm, style)
    return q, k, v


def _heads(x: Value, heads: int, style: Style) -> Value:
    if x.shape[2] != heads * style.head_dim:
        raise InvalidModelError(
            f"a product has {x.shape[2]} features: config.json says {heads} heads of {style.head_dim}"
        )
    return split_heads(x, heads)


def layer(
    net: Net,
    x: Value,
    prefix: str,
    names: LayerNames,
    style: Style,
    bias: Value | None,
    *,
    angles: Rotary | None = None,
    extend: Callable[[Value, Value], tuple[Value, Value]] | None = None,
    memory: tuple[Value, Value | None] | None = None,
) -> Value:
    """One layer of a transformer.

    Args:
        net: the graph under way.
        x: states [batch, length, features].
        prefix: before the names of the layer's weights.
        names: of weights.
        style: how the layer is put together.
        bias: added to the scores of attention.
        angles: of rotary positions.
        extend: gives all keys and values for those of these tokens.
        memory: states of an encoder, and the bias of scores on them.
    """

    def attend(y: Value) -> Value:
        q, k, v = _projected(net, y, prefix, names, style)
        if angles is not None:
            q, k = angles.turn(q), angles.turn(k)
        if extend is not None:
            k, v = extend(k, v)
        return net.linear(attention(q, k, v, style.factor, bias), prefix + names.o)

    if not style.norm_first:
        x = net.norm(x + attend(x), prefix + names.norm, style)
        return net.norm(x + _network(net, x, prefix, names, style), prefix + names.mlp_norm, style)
    before = net.norm(x, prefix + names.norm, style)
    if style.parallel:
        return attend(before) + _network(net, before, prefix, names, style) + x
    x = x + attend(before)
    if memory is not None and names.cross is not None:
        x = x + _crossed(net, net.norm(x, prefix + names.cross_norm, style), prefix, names.cross, style, *memory)
    return x + _network(net, net.norm(x, prefix + names.mlp_norm, style), prefix, names, style)


def _crossed(
    net: Net,
    x: Value,
    prefix: str,
    names: tuple[str, str, str, str],
    style: Style,
    memory: Value,
    bias: Value | None,
) -> Value:
    """Attention on the states of an encoder."""
    sources = (x, memory, memory)
    q, k, v = (_heads(net.linear(s, prefix + n), style.heads, style) for s, n in zip(sources, names[:3], strict=True))
    return net.linear(attention(q, k, v, style.factor, bias), prefix + names[3])


def _network(net: Net, x: Value, prefix: str, names: LayerNames, style: Style) -> Value:
    up = net.linear(x, prefix + names.up)
    if names.gate:
        wide = activation(style.act, net.linear(x, prefix + names.gate)) * up
    else:
        wide = activation(style.act, up)
    return net.linear(wide, prefix + names.down)


def places(x: Value) -> Value:
    """0, 1, 2, ... along the second axis."""
    return count(size_of(x, 1))
