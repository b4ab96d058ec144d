"""Where decoders keep keys and values: appended to those of the past, or written into buffers in place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from pyflame_rt.graph import DType, Shape, TensorType
from pyflame_rt.graph.dim import dim_from_text
from pyflame_rt.importers.huggingface.blocks import hidden_bias
from pyflame_rt.ops.microsoft.attention import count, size_of
from pyflame_rt.ops.onnx.cast import Cast
from pyflame_rt.ops.onnx.index import GatherND, TensorScatter
from pyflame_rt.ops.onnx.reduce import CumSum
from pyflame_rt.ops.onnx.shape import Unsqueeze
from pyflame_rt.ops.onnx.slicing import Concat, Slice

if TYPE_CHECKING:
    from pyflame_rt.ops.core.trace import Tracer
    from pyflame_rt.ops.core.value import Value

__all__ = ["BufferCache", "ConcatCache", "KeyValues"]


class KeyValues(Protocol):
    """Where a decoder's keys and values come from and go to, where its tokens stand, and what they see."""

    tokens: Value
    positions: Value

    def bias(self, window: int | None) -> Value:
        """What is added to scores: tokens see what is not later than they are, and not further back than a window."""
        ...

    def extend(self, number: int, k: Value, v: Value) -> tuple[Value, Value]:
        """All keys and values of a layer, for those of the new tokens."""
        ...

    def wanted(self, x: Value) -> Value:
        """Those of the last states that are asked for."""
        ...

    def finish(self) -> None:
        """Declare the outputs."""
        ...


class ConcatCache:
    """Past keys and values as inputs, with the present ones as outputs: the form that exporters to ONNX write.

    Inputs are ``input_ids``, ``attention_mask``, ``position_ids`` and ``past_key_values.N.key`` and ``.value``; outputs
    besides the scores are ``present.N.key`` and ``.value``.
    """

    def __init__(self, tracer: Tracer, layers: int, heads: int, size: int) -> None:
        batch, length, past = (
            dim_from_text(name) for name in ("batch_size", "sequence_length", "past_sequence_length")
        )
        total = dim_from_text("past_sequence_length + sequence_length")

        def tokens(name: str, sizes: Any) -> Value:
            return tracer.input(name, TensorType(DType.Int64, Shape([batch, sizes])))

        self.tokens = tokens("input_ids", length)
        self._mask = tokens("attention_mask", total)
        self.positions = tokens("position_ids", length)
        kind = TensorType(DType.Float32, Shape([batch, heads, past, size]))
        self._past = [
            tuple(tracer.input(f"past_key_values.{i}.{what}", kind) for what in ("key", "value")) for i in range(layers)
        ]
        self._tracer = tracer
        self._present: list[tuple[Value, Value]] = []
        self._biases: dict[int | None, Value] = {}

    def bias(self, window: int | None) -> Value:
        """What is added to scores."""
        if window not in self._biases:
            self._biases[window] = hidden_bias(self._seen(window))
        return self._biases[window]

    def _seen(self, window: int | None) -> Value:
        total, length = size_of(self._mask, 1), size_of(self.tokens, 1)
        queries = count(length) + (total - length)
        seen = count(total) <= Unsqueeze(queries, [1])
        there = Cast(Unsqueeze(self._mask, [1, 2]), to=DType.Bool)
        seen = Unsqueeze(seen, [0, 1]) & there
        if window is None:
            return seen
        # The past may be padded anywhere: the place of a key is the number of those before it that count.
        ends = Unsqueeze(CumSum(self._mask, 1), [1])
        own = Slice(ends, Unsqueeze(total - length, [0]), Unsqueeze(total, [0]), [2])
        near = Unsqueeze(ends, [2]) > Unsqueeze(own, [3]) - window
        return seen & near

    def extend(self, number: int, k: Value, v: Value) -> tuple[Value, Value]:
        """The past ones, then the new ones."""
        past_k, past_v = self._past[number]
        self._present.append((Concat(past_k, k, axis=2), Concat(past_v, v, axis=2)))
        return self._present[-1]

    def wanted(self, x: Value) -> Value:
        """All of them."""
        return x

    def finish(self) -> None:
        """Declare the present ones."""
        for i, pair in enumerate(self._present):
            for what, value in zip(("key", "value"), pair, strict=True):
                self._tracer.output(value, f"present.{i}.{what}")


class BufferCache:
    """Buffers with room for more tokens as inputs, and the same with the new tokens as outputs: written in place.

    Inputs are ``input_ids`` and ``position_ids`` [batch, length], ``past_lengths`` [batch], ``score_at`` [batch,
    scored], the tokens whose scores are wanted, and ``cache.N.key`` and ``.value`` [batch, heads, room, size]. Row b
    has ``past_lengths[b]`` tokens; the new ones come right after them. Outputs besides the scores are
    ``new_cache.N.key`` and ``.value``, which an engine may write over the inputs.
    """

    def __init__(self, tracer: Tracer, layers: int, heads: int, size: int) -> None:
        def numbers(name: str, *sizes: str) -> Value:
            return tracer.input(name, TensorType(DType.Int64, Shape(["batch_size", *sizes])))

        self.tokens = numbers("input_ids", "sequence_length")
        self.positions = numbers("position_ids", "sequence_length")
        self._lengths = numbers("past_lengths")
        self._scored = numbers("score_at", "scored")
        kind = TensorType(DType.Float32, Shape(["batch_size", heads, "room", size]))
        self._buffers = [
            tuple(tracer.input(f"cache.{i}.{what}", kind) for what in ("key", "value")) for i in range(layers)
        ]
        self._tracer = tracer
        self._written: list[tuple[Value, Value]] = []
        self._biases: dict[int | None, Value] = {}

    def bias(self, window: int | None) -> Value:
        """What is added to scores."""
        if window not in self._biases:
            places = Unsqueeze(self._lengths, [1]) + count(size_of(self.tokens, 1))
            queries = Unsqueeze(places, [1, 3])
            keys = count(size_of(self._buffers[0][0], 2))
            seen = keys <= queries
            self._biases[window] = hidden_bias(seen if window is None else seen & (keys > queries - window))
        return self._biases[window]

    def extend(self, number: int, k: Value, v: Value) -> tuple[Value, Value]:
        """The buffers with the new tokens in their places."""
        keys, values = self._buffers[number]
        self._written.append((TensorScatter(keys, k, self._lengths), TensorScatter(values, v, self._lengths)))
        return self._written[-1]

    def wanted(self, x: Value) -> Value:
        """The states of tokens whose scores are wanted."""
        return GatherND(x, Unsqueeze(self._scored, [2]), batch_dims=1)

    def finish(self) -> None:
        """Declare the buffers."""
        for i, pair in enumerate(self._written):
            for what, value in zip(("key", "value"), pair, strict=True):
                self._tracer.output(value, f"new_cache.{i}.{what}")
