"""Keys and values of sequences under way: one array for each layer, rows for sequences, written in place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph.named_arguments import names_arguments
from pyflame_rt.memory import global_pool

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["KVCache"]

Array = np.ndarray[Any, Any]


class KVCache:
    """What attention needs of earlier tokens, for several sequences of different lengths.

    Every state is an array [rows, ..., room, ...] in memory of the pool. The room for tokens is a whole number of
    pages, so that models meet few shapes; each step writes only its own tokens.

    Args:
        shapes: of one row of each state, with 1 where the tokens are counted.
        axes: where that is, by state, in an array with rows.
        dtypes: element types.
        page: tokens by which the room grows.

    Example:
        >>> cache = KVCache({"k": (2, 1, 4)}, {"k": 2}, {"k": np.dtype(np.float32)}, page=16)
        >>> row = cache.add()
        >>> cache.write([row], {"k": np.ones((1, 2, 3, 4), np.float32)}, [3])
        >>> cache.lengths, cache.room, cache.states(1)["k"].shape
        ([3], 16, (1, 2, 16, 4))
    """

    @names_arguments
    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        axes: Mapping[str, int],
        dtypes: Mapping[str, np.dtype[Any]],
        page: int = 64,
    ) -> None:
        self._shapes = dict(shapes)
        self._axes = dict(axes)
        self._dtypes = dict(dtypes)
        self.page = page
        self.lengths: list[int] = []  # tokens of each row
        self.room = 0  # tokens there is room for
        self._rows = 0  # rows there is room for
        self._arrays: dict[str, Array] = {}

    def add(self) -> int:
        """A row for another sequence; its number."""
        self.lengths.append(0)
        if len(self.lengths) > self._rows:
            self._resize(max(2 * self._rows, 1), self.room)
        return len(self.lengths) - 1

    def remove(self, row: int) -> int:
        """Drop a row. The last one takes its place: the number it had."""
        last = len(self.lengths) - 1
        if row != last:
            for array in self._arrays.values():
                array[row] = array[last]
            self.lengths[row] = self.lengths[last]
        self.lengths.pop()
        if not self.lengths:
            self._arrays, self._rows, self.room = {}, 0, 0
        return last

    def reserve(self, tokens: int) -> None:
        """Make room for so many tokens in each row."""
        if tokens > self.room:
            self._resize(self._rows, -(-tokens // self.page) * self.page)

    def _resize(self, rows: int, room: int) -> None:
        before, kept = self._arrays, len(self.lengths)
        self._arrays = {}
        for name, shape in self._shapes.items():
            axis = self._axes[name]
            sizes = [rows, *shape]
            sizes[axis] = room
            array = global_pool().empty(sizes, self._dtypes[name])
            array[...] = 0  # masked, but multiplied: it must be finite
            old = before.get(name)
            if old is not None and old.size:
                count = min(kept, len(old))
                np.moveaxis(array, axis, 1)[:count, : old.shape[axis]] = np.moveaxis(old, axis, 1)[:count]
            self._arrays[name] = array
        self._rows, self.room = rows, room

    @property
    def capacity(self) -> int:
        """Rows there is memory for."""
        return self._rows

    def padded_lengths(self, first: int, rows: int) -> list[int]:
        """Tokens of some rows; none in rows that are not taken, of which there must be memory for."""
        if first + rows > self._rows:
            raise IndexError(f"rows {first} to {first + rows} of {self._rows}")
        known = self.lengths[first : first + rows]
        return known + [0] * (rows - len(known))

    def states(self, rows: int, first: int = 0) -> dict[str, Array]:
        """The states of some rows, as views."""
        return {name: array[first : first + rows] for name, array in self._arrays.items()}

    def write(self, rows: Sequence[int], fresh: Mapping[str, Array], counts: Sequence[int]) -> None:
        """Add tokens to rows: the first ``counts[i]`` of ``fresh[...][i]`` to row ``rows[i]``."""
        added = [(i, row, count) for i, (row, count) in enumerate(zip(rows, counts, strict=True)) if count]
        self.reserve(max((self.lengths[row] + count for _, row, count in added), default=0))
        for name, values in fresh.items():
            axis = self._axes[name]
            target, source = np.moveaxis(self._arrays[name], axis, 1), np.moveaxis(values, axis, 1)
            for i, row, count in added:
                begin = self.lengths[row]
                target[row, begin : begin + count] = source[i, :count]
        self.advance(rows, counts)

    def advance(self, rows: Sequence[int], counts: Sequence[int]) -> None:
        """Count tokens that somebody has written right after those of the rows."""
        for row, count in zip(rows, counts, strict=True):
            if count:
                self.lengths[row] += count

    def read(self, row: int, begin: int, end: int) -> dict[str, Array]:
        """Copies of some tokens of a row, as :meth:`write` takes them for one row."""
        out = {}
        for name, array in self._arrays.items():
            part = [slice(row, row + 1), *[slice(None)] * (array.ndim - 1)]
            part[self._axes[name]] = slice(begin, end)
            out[name] = array[tuple(part)].copy()
        return out

    def truncate(self, row: int, length: int) -> None:
        """Forget the tokens of a row from ``length`` on."""
        if not 0 <= length <= self.lengths[row]:
            raise IndexError(f"row {row} has {self.lengths[row]} tokens, not {length}")
        self.lengths[row] = length

    def gather(self, rows: Sequence[int]) -> None:
        """Row i becomes what row ``rows[i]`` was; a row may be taken several times."""
        kept = self.lengths
        if len(rows) > self._rows:
            self._resize(len(rows), self.room)
        for array in self._arrays.values():
            array[: len(rows)] = array[list(rows)]
        self.lengths = [kept[row] for row in rows]
