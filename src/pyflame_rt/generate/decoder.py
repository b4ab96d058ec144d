"""A decoder with keys and values: what a session calls its tokens, masks, positions and states."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.generate.cache import KVCache
from pyflame_rt.generate.checks import rows_looked_up
from pyflame_rt.graph import TensorType
from pyflame_rt.graph.arguments import expect_graph_of
from pyflame_rt.graph.errors import InputError
from pyflame_rt.streaming.states import state_pairs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyflame_rt.graph import Graph, TensorInfo
    from pyflame_rt.session import InferenceSession

__all__ = ["Decoder"]

Array = np.ndarray[Any, Any]


class Decoder:
    """A model [rows, tokens] -> scores, with past keys and values as inputs and present ones as outputs.

    It is the form in which Hugging Face's Optimum writes decoders: ``input_ids``, ``attention_mask``, ``position_ids``,
    ``past_key_values.*`` and ``present.*``. Rows may have different lengths, and the past is padded to whole pages,
    because the mask tells what counts and the positions say where tokens are.

    Args:
        session: the model.
        state_map: pairs of output and input, where they are not found by name.

    Attributes:
        words: how many tokens the model knows; None where that is not seen.
        context: how many tokens it reads, where positions are looked up in a table; None where they are not.

    Raises:
        InputError: The model is not of that form.
    """

    words: int | None
    context: int | None

    def __init__(self, session: InferenceSession, state_map: Mapping[str, str] | None = None) -> None:
        self.session = session
        graph = expect_graph_of(session, "a Decoder")
        self._names = [info.name for info in graph.outputs]
        inputs = {info.name: info for info in graph.required_inputs}
        self._pairs = state_pairs(graph, state_map)
        states = set(self._pairs.values())
        free = [name for name in inputs if name not in states]
        self.mask = _pick(free, "mask")
        self.positions = _pick(free, "position")
        self.tokens = next((n for n in free if n not in (self.mask, self.positions)), "")
        self.scores = next((n for n in self._names if n not in self._pairs), "")
        missing = [
            what
            for what, there in {
                "an input for tokens": self.tokens,
                "a mask (batch by length)": self.mask,
                "position_ids": self.positions,
                "past keys and values": self._pairs,
                "scores": self.scores,
            }.items()
            if not there
        ]
        unknown = [n for n in free if n not in (self.tokens, self.mask, self.positions)]
        if missing or unknown:
            what = f"has not {', '.join(missing)}" if missing else f"also wants {', '.join(unknown)}"
            raise InputError(f"model {graph.name!r} cannot generate step by step: it {what}")
        self._types = {name: _dtype(inputs[name]) for name in (self.tokens, self.mask, self.positions)}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._axes: dict[str, int] = {}
        self._kinds: dict[str, np.dtype[Any]] = {}
        for name in self._pairs.values():
            self._read_state(inputs[name])
        self._read_tables(graph, self.tokens, self.positions)

    def _read_tables(self, graph: Graph, tokens: str, positions: str) -> None:
        self.words, self.context = rows_looked_up(graph, tokens), rows_looked_up(graph, positions)

    def _read_state(self, info: TensorInfo) -> None:
        """A state is [rows, ..., tokens, ...], everything else known."""
        kind = info.type
        shape = kind.shape if isinstance(kind, TensorType) else None
        open_axes = [i for i, d in enumerate(shape or ()) if i and not isinstance(d, int)]
        if shape is None or len(open_axes) != 1:
            raise InputError(
                f"state {info.name!r} ({kind}) must have one size besides the batch that may vary: the tokens"
            )
        self._axes[info.name] = open_axes[0]
        self._shapes[info.name] = tuple(d if isinstance(d, int) else 1 for d in shape[1:])
        self._kinds[info.name] = _dtype(info)

    def new_cache(self, page: int = 64) -> KVCache:
        """A cache for this model."""
        return KVCache(self._shapes, self._axes, self._kinds, page)

    def forward(self, cache: KVCache, first: int, tokens: Array, counts: Sequence[int], *, last: bool = False) -> Array:
        """Run tokens of rows ``first`` on, add their keys and values to the cache, and give the scores.

        Args:
            cache: what was before.
            first: the first row.
            tokens: [rows, length]; of row i the first ``counts[i]`` count.
            counts: how many, by row.
            last: only the scores after the last token that counts are wanted.

        Returns:
            [rows, length, words], or [rows, words].
        """
        rows, length = tokens.shape
        lengths = cache.padded_lengths(first, rows)
        room = cache.room if any(lengths) else 0
        mask = np.zeros((rows, room + length), self._types[self.mask])
        at = np.zeros((rows, length), self._types[self.positions])
        for i, (past, count) in enumerate(zip(lengths, counts, strict=True)):
            mask[i, :past] = 1
            mask[i, room : room + count] = 1
            at[i, :count] = np.arange(past, past + count)
        feed = {self.tokens: tokens.astype(self._types[self.tokens]), self.mask: mask, self.positions: at}
        results = dict(
            zip(self._names, self.session.run(None, feed | self._past(cache, first, rows, room)), strict=True)
        )
        fresh = {}
        for output, entry in self._pairs.items():
            axis = self._axes[entry]
            fresh[entry] = results[output][(slice(None),) * axis + (slice(room, room + length),)]
        cache.write(range(first, first + rows), fresh, counts)
        scores = results[self.scores]
        return scores[np.arange(rows), np.maximum(counts, 1) - 1] if last else scores

    def _past(self, cache: KVCache, first: int, rows: int, room: int) -> dict[str, Array]:
        if room:
            return cache.states(rows, first)
        empty = {}
        for name, shape in self._shapes.items():
            sizes = [rows, *shape]
            sizes[self._axes[name]] = 0
            empty[name] = np.zeros(sizes, self._kinds[name])
        return empty


def _pick(names: Sequence[str], part: str) -> str:
    return next((name for name in names if part in name.lower()), "")


def _dtype(info: TensorInfo) -> np.dtype[Any]:
    if not isinstance(info.type, TensorType):
        raise InputError(f"input {info.name!r} is no tensor")
    return info.type.dtype.numpy
