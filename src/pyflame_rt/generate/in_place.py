"""A decoder that writes keys and values into the cache itself: no copy of the past in a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.generate.decoder import Decoder
from pyflame_rt.graph.arguments import expect_graph_of
from pyflame_rt.graph.errors import InputError
from pyflame_rt.streaming.states import state_pairs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyflame_rt.executable import FastPath
    from pyflame_rt.generate.cache import KVCache
    from pyflame_rt.session import InferenceSession

__all__ = ["InPlaceDecoder", "open_decoder"]

Array = np.ndarray[Any, Any]
_LENGTHS, _SCORED, _TOKENS, _POSITIONS, _SCORES = "past_lengths", "score_at", "input_ids", "position_ids", "logits"
_MOST_KNOWN = 256  # shapes whose way through the engine is kept


def open_decoder(session: InferenceSession, state_map: Mapping[str, str] | None = None) -> Decoder | InPlaceDecoder:
    """The decoder for the form that a model has: buffers that are written in place, or a past that is appended to."""
    names = {info.name for info in expect_graph_of(session, "a Generator").required_inputs}
    if names.issuperset((_LENGTHS, _SCORED)):
        return InPlaceDecoder(session, state_map)
    return Decoder(session, state_map)


class InPlaceDecoder(Decoder):
    """A model whose past keys and values are buffers with room, and whose present ones are the same buffers.

    It has the inputs ``input_ids``, ``position_ids``, ``past_lengths``, ``score_at`` and a buffer for each state; see
    ``importers.huggingface.caches.BufferCache``, which makes such models. Where the plan allows it, the buffers that
    are given are those that are written; elsewhere they are copied.
    """

    def __init__(self, session: InferenceSession, state_map: Mapping[str, str] | None = None) -> None:
        self.session = session
        graph = session.graph()
        inputs = {info.name: info for info in graph.required_inputs}
        self._pairs = state_pairs(graph, state_map)
        wanted = {_TOKENS, _POSITIONS, _LENGTHS, _SCORED, *self._pairs.values()}
        self._names = [info.name for info in graph.outputs]
        if set(inputs) != wanted or set(self._names) != {_SCORES, *self._pairs} or not self._pairs:
            raise InputError(
                f"model {graph.name!r} cannot generate in place: it has the inputs {', '.join(inputs)} and the outputs "
                f"{', '.join(self._names)}"
            )
        self._shapes, self._axes, self._kinds = {}, {}, {}
        for name in self._pairs.values():
            self._read_state(inputs[name])
        self._read_tables(graph, _TOKENS, _POSITIONS)
        self._targets = {i: self._pairs[name] for i, name in enumerate(self._names) if name in self._pairs}
        self._engine = session._compile(overrides=False).executable
        self._engine.donate([(name, i) for i, name in self._targets.items()])
        self._ways: dict[tuple[int, ...], FastPath] = {}

    def forward(self, cache: KVCache, first: int, tokens: Array, counts: Sequence[int], *, last: bool = False) -> Array:
        """Run tokens of rows ``first`` on, keys and values written into the cache; see :meth:`Decoder.forward`."""
        rows, length = tokens.shape
        lengths = cache.padded_lengths(first, rows)
        cache.reserve(max(lengths) + length)
        past, given = np.array(lengths, np.int64), np.array(counts, np.int64)
        places = np.arange(length)
        positions = np.where(places < given[:, None], past[:, None] + places, 0)
        scored = np.maximum(given, 1)[:, None] - 1 if last else np.tile(places, (rows, 1))
        feed = {
            _TOKENS: np.ascontiguousarray(tokens, np.int64),
            _POSITIONS: positions,
            _LENGTHS: past,
            _SCORED: scored,
            **cache.states(rows, first),
        }
        scores = self._run(feed, (rows, length, scored.shape[1], cache.room))
        cache.advance(range(first, first + rows), counts)
        return scores[:, 0] if last else scores

    def _run(self, feed: dict[str, Array], sizes: tuple[int, ...]) -> Array:
        """The scores; the buffers of the feed have the new tokens afterwards."""
        way = self._ways.get(sizes)
        results = None if way is None else way(feed, None, {i: feed[name] for i, name in self._targets.items()})
        if results is None:
            results = self.session.run(self._names, feed)
            for i, name in self._targets.items():
                feed[name][...] = results[i]
            self._keep_way(sizes)
        return results[self._names.index(_SCORES)]

    def _keep_way(self, sizes: tuple[int, ...]) -> None:
        """Remember how the engine ran these sizes, where it may write all buffers in place."""
        way = self._engine.fast_path
        if way is None or self._engine.donated.keys() != self._targets.keys():
            return
        if any(way.order[k] != self._targets[i] for i, k in self._engine.donated.items()):
            return
        if len(self._ways) >= _MOST_KNOWN:
            self._ways.clear()
        self._ways[sizes] = way
