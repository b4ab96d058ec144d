"""Where a model's values have their rows: read from symbolic sizes, used to gather requests and to scatter results."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.arrays import host_array
from pyflame_rt.feeds import FeedReader
from pyflame_rt.graph import Dim, Tensor, TensorInfo, TensorType
from pyflame_rt.graph.errors import BackendError, InputError, ShapeMismatchError
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyflame_rt.batching.config import BatchConfig
    from pyflame_rt.graph import Graph

__all__ = ["Family", "Layout", "Piece", "Rows"]

FIRST_BUCKET = 16
SHAPES = 1024  # of requests that are remembered
SMALL = 1 << 16  # bytes below which an array is not worth a loan of the pool: malloc keeps them at hand
_BATCH_NAMES = frozenset(("b", "bs", "n"))

Array = np.ndarray[Any, Any]
Shapes = tuple[tuple[str, Any, tuple[int, ...]], ...]  # name, element type and shape of each array of a request
Family = tuple[Any, ...]  # what requests must have in common to share a run, whatever their lengths


@dataclass(slots=True)
class Rows:
    """The inputs of one request.

    Attributes:
        feed: arrays by input, all with a batch axis.
        count: how many rows.
        length: of its sequences; 0 where they are not padded.
        bucket: the length they are padded to.
        family: what other requests must share to be run with it.
        stacked: the request came without a batch axis, and is answered without.
    """

    feed: dict[str, Array]
    count: int
    length: int
    bucket: int
    family: Family
    stacked: bool


@dataclass(frozen=True, slots=True)
class Piece:
    """Some rows of a request."""

    rows: Rows
    begin: int
    end: int

    @property
    def count(self) -> int:
        """How many rows."""
        return self.end - self.begin


class Layout:
    """The batch axis of every input and output of a model, and the axis of sequences that may be padded.

    Args:
        graph: the model.
        config: names the mask, buckets and pad values.

    Example:
        >>> from pyflame_rt.batching import BatchConfig
        >>> from pyflame_rt.graph import Graph
        >>> g = Graph("g")
        >>> _ = g.add_input("x", ["N", 2]), g.add_node("n", "Neg", ["x"], ["y"]), g.add_output("y", ["N", 2])
        >>> layout = Layout(g, BatchConfig())
        >>> first, second = layout.read({"x": [[1, 2]]}), layout.read({"x": [[3, 4], [5, 6]]})
        >>> layout.gather([Piece(first, 0, 1), Piece(second, 0, 2)], 4, 0)["x"].tolist()
        [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [1.0, 2.0]]
    """

    def __init__(self, graph: Graph, config: BatchConfig) -> None:
        self.model = graph.name
        self.buckets = None if config.length_buckets is None else sorted(config.length_buckets)
        self.pad_values = dict(config.pad_values)
        self.problem = ""  # why rows of requests cannot be put together
        required = graph.required_inputs
        names = {info.name for info in required}
        self._reader = FeedReader(required, [info for info in graph.inputs if info.name not in names])
        self._types = {info.name: info.type for info in graph.inputs}
        self._batch = _batch_dim(required or graph.inputs)
        self.inputs = {info.name: self._axis(info, self._batch) for info in graph.inputs}
        self.outputs = {info.name: self._axis(info, self._batch) for info in graph.outputs}
        for name, value in self.pad_values.items():
            if name not in self.inputs or not isinstance(value, Real):
                raise InputError(f"pad_values gives inputs ({', '.join(self.inputs)}) numbers, got {name!r}: {value!r}")
        # What arrays of shapes that were read before make, where it depends on nothing else.
        self._read_before: dict[Shapes, tuple[int, int, int, Family]] = {}
        self._find_problem(required, graph.outputs)
        self._find_lengths(graph, config)

    # ------------------------------------------------------------------ what the model says

    def _axis(self, info: TensorInfo, batch: Dim | int | None) -> int | None:
        """Where the batch is; None for a value that all rows share."""
        kind = info.type
        if not isinstance(kind, TensorType):
            return None
        if kind.shape is None:
            return 0
        if isinstance(batch, Dim) and batch in kind.shape:
            return kind.shape.index(batch)
        return 0 if len(kind.shape) and kind.shape[0] is None else None

    def _find_problem(self, inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo]) -> None:
        if isinstance(self._batch, int):
            first = inputs[0]
            self.problem = f"input {first.name!r} has a fixed first size ({first.type})"
        elif all(self.inputs[info.name] is None for info in inputs):
            self.problem = "no input has a batch axis"
        for info in outputs:
            if self.outputs[info.name] is None and not self.problem:
                self.problem = f"output {info.name!r} ({info.type}) has no batch axis"

    def _find_lengths(self, graph: Graph, config: BatchConfig) -> None:
        """Sequences may be padded where a mask tells the model so."""
        self.mask = ""
        self.length_in: dict[str, int] = {}
        self.length_out: dict[str, int] = {}
        named = config.mask_input
        if named is not None and named not in self.inputs:
            raise InputError(f"the model has no input {named!r} (mask_input). Inputs: {', '.join(self.inputs)}")
        found = [n for n in self.inputs if "mask" in n.lower()] if named is None else [named]
        if not config.enable_padding or not found or self.problem:
            return
        kind = self._types[found[0]]
        shape = kind.shape if isinstance(kind, TensorType) else None
        if shape is None or len(shape) != 2 or isinstance(shape[1], int) or self.inputs[found[0]] != 0:
            if named is not None:
                raise InputError(f"mask_input {named!r} must be batch by length, with a length that varies: {kind}")
            return
        self.mask = found[0]
        second = shape[1]
        length = second if isinstance(second, Dim) else None
        self.length_in = self._length_axes(graph.inputs, length, self.inputs)
        self.length_out = self._length_axes(graph.outputs, length, self.outputs)

    def _length_axes(
        self, infos: Sequence[TensorInfo], length: Dim | None, batch: Mapping[str, int | None]
    ) -> dict[str, int]:
        axes: dict[str, int] = {}
        for info in infos:
            kind = info.type
            shape = kind.shape if isinstance(kind, TensorType) else None
            if shape is None:
                continue
            there = [i for i, d in enumerate(shape) if i != batch[info.name] and not isinstance(d, int) and d == length]
            if there:
                axes[info.name] = there[0]
        return axes

    # ------------------------------------------------------------------ requests

    def read(self, inputs: Mapping[str, Any]) -> Rows:
        """A request's inputs, checked.

        Raises:
            InputError: A name is unknown or missing, or there are no rows.
            ShapeMismatchError: Sizes do not fit the model or each other.
        """
        shapes = _array_shapes(inputs)
        found = self._read_before.get(shapes)
        if found is not None:
            return Rows(dict(inputs), *found, stacked=False)
        rows = self._read_closely(inputs)
        whole = not self.problem and not rows.stacked and all(axis is not None for axis in self.inputs.values())
        if shapes and whole and all(array is inputs.get(name) for name, array in rows.feed.items()):
            if len(self._read_before) >= SHAPES:
                self._read_before = {}
            self._read_before[shapes] = rows.count, rows.length, rows.bucket, rows.family
        return rows

    def _read_closely(self, inputs: Mapping[str, Any]) -> Rows:
        feed, stacked = self._with_batch_axis(inputs)
        if self.mask and self.mask not in feed:
            self._make_mask(feed)
        arrays = self._reader.read(feed)
        if self.problem:
            return Rows(arrays, 1, 0, 0, (), stacked=False)
        count = self._count(arrays)
        length = self._length(arrays)
        bucket = self.bucket(length)
        family = tuple(self._common(name, arrays[name], bucket) for name in sorted(arrays))
        return Rows(arrays, count, length, bucket, family, stacked)

    def _with_batch_axis(self, inputs: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
        """Values with an axis for the batch, and whether it had to be added."""
        if not isinstance(inputs, Mapping):
            raise InputError(f"a request maps input names to values, got {type(inputs).__name__}")
        feed = dict(inputs)
        if self.problem:
            return feed, False
        shapes = {name: _shape(name, value) for name, value in feed.items() if self.inputs.get(name) is not None}
        ranks = {name: _rank(self._types[name]) for name in shapes}
        stacked = bool(shapes) and all(r is not None and len(shapes[n]) == r - 1 for n, r in ranks.items())
        if stacked:
            for name in shapes:
                axis, value = self.inputs[name] or 0, feed[name]
                feed[name] = [value] if isinstance(value, list) and not axis else np.expand_dims(_array(value), axis)
        return feed, stacked

    def _make_mask(self, feed: dict[str, Any]) -> None:
        """A request that leaves the mask out has nothing to hide."""
        kind = self._types[self.mask]
        for name, axis in self.length_in.items():
            batch = self.inputs[name]
            if name in feed and batch is not None and isinstance(kind, TensorType):
                shape = _shape(name, feed[name])
                feed[self.mask] = np.ones((shape[batch], shape[axis]), kind.dtype.numpy)
                return

    def _count(self, arrays: Mapping[str, Array]) -> int:
        counts = {n: a.shape[axis] for n, a in arrays.items() if (axis := self.inputs[n]) is not None}
        if len(set(counts.values())) > 1:
            raise ShapeMismatchError(f"inputs of one request must have equally many rows, got {counts}")
        count = next(iter(counts.values()), 0)
        if not count:
            raise InputError(
                f"a request to {self.model!r} needs at least one row in {', '.join(counts) or 'its inputs'}"
            )
        return count

    def _length(self, arrays: Mapping[str, Array]) -> int:
        lengths = {n: a.shape[axis] for n, a in arrays.items() if (axis := self.length_in.get(n)) is not None}
        if len(set(lengths.values())) > 1:
            raise ShapeMismatchError(f"sequences of one request must be equally long, got {lengths}")
        return next(iter(lengths.values()), 0)

    def bucket(self, length: int) -> int:
        """The length that sequences of a length are padded to."""
        if not length:
            return 0
        if self.buckets is None:
            double = max(FIRST_BUCKET, 1 << (length - 1).bit_length())
            between = double * 3 // 4
            return between if double > FIRST_BUCKET and length <= between else double
        return next((bucket for bucket in self.buckets if bucket >= length), length)

    def _common(self, name: str, array: Array, bucket: int) -> tuple[Any, ...]:
        batch, length = self.inputs[name], self.length_in.get(name)
        if batch is None:
            return name, array.shape, array.tobytes()
        # Of sequences that are not padded, the length is among the sizes.
        sizes = tuple(-1 if i == length and bucket else n for i, n in enumerate(array.shape) if i != batch)
        return name, sizes

    # ------------------------------------------------------------------ runs

    def gather(
        self,
        pieces: Sequence[Piece],
        size: int,
        bucket: int,
        empty: Callable[[tuple[int, ...], np.dtype[Any]], Array] = np.empty,
    ) -> dict[str, Array]:
        """The feed of one run: the pieces' rows, the first one repeated up to ``size``, padded to ``bucket``."""
        first = pieces[0].rows
        if len(pieces) == 1 and pieces[0].count == size == first.count and first.length == bucket:
            return first.feed
        feed: dict[str, Array] = {}
        for name, array in first.feed.items():
            axis = self.inputs[name]
            feed[name] = array if axis is None else self._gathered(name, axis, pieces, size, bucket, empty)
        return feed

    def _gathered(
        self, name: str, axis: int, pieces: Sequence[Piece], size: int, bucket: int, empty: Callable[..., Array]
    ) -> Array:
        first = pieces[0].rows.feed[name]
        shape = list(first.shape)
        shape[axis] = size
        length = self.length_in.get(name)
        if length is not None:
            shape[length] = bucket
        make = np.empty if first.itemsize * math.prod(shape) < SMALL else empty
        whole = make(tuple(shape), first.dtype)
        order = _rows_first(first.ndim, axis, length)
        rows = whole if order is None else whole.transpose(order)
        if length is not None and (shortest := min(piece.rows.length for piece in pieces)) < bucket:
            rows[:, shortest:] = self.pad_values.get(name, 0)
        at = 0
        for piece in pieces:
            part, long = piece.rows.feed[name], piece.rows.length
            if order is not None:
                part = part.transpose(order)
            if piece.end - piece.begin != piece.rows.count:
                part = part[piece.begin : piece.end]
            end = at + piece.end - piece.begin
            if length is None:
                rows[at:end] = part
            else:
                rows[at:end, :long] = part
            at = end
        if at < size:
            rows[at:] = rows[:1]
        return whole

    def scatter(
        self, outputs: Mapping[str, Array], pieces: Sequence[Piece], size: int, bucket: int
    ) -> list[dict[str, Array]]:
        """Each piece's rows of the outputs, as views.

        Raises:
            BackendError: An output has not a row for each row of the inputs.
        """
        for name, array in outputs.items():
            axis = self.outputs[name]
            if axis is None or not isinstance(array, np.ndarray) or array.ndim <= axis or array.shape[axis] != size:
                raise BackendError(
                    f"output {name!r} of model {self.model!r} has shape {getattr(array, 'shape', None)} for {size} "
                    f"rows: requests cannot be told apart. Set max_batch_size=1 to run them one after the other"
                )
        found: list[dict[str, Array]] = []
        at = 0
        for piece in pieces:
            found.append({name: self._cut(name, array, at, piece, bucket) for name, array in outputs.items()})
            at += piece.end - piece.begin
        return found

    def _cut(self, name: str, array: Array, at: int, piece: Piece, bucket: int) -> Array:
        axis, length = self.outputs[name] or 0, self.length_out.get(name)
        rows = slice(at, at + piece.end - piece.begin)
        long = piece.rows.length
        if length is None or not long or long == bucket or array.shape[length] != bucket:
            return array[(slice(None),) * axis + (rows,)] if axis else array[rows]
        if not axis and length == 1:
            return array[rows, :long]
        where: list[slice] = [slice(None)] * array.ndim
        where[axis], where[length] = rows, slice(0, long)
        return array[tuple(where)]

    def joined(self, parts: Sequence[Mapping[str, Array]], *, stacked: bool) -> dict[str, Array]:
        """Outputs of a request from those of its pieces, in order."""
        if len(parts) == 1:
            whole = dict(parts[0])
        else:
            whole = {n: np.concatenate([part[n] for part in parts], axis=self.outputs[n] or 0) for n in parts[0]}
        return {n: np.moveaxis(a, self.outputs[n] or 0, 0)[0] for n, a in whole.items()} if stacked else whole


def _batch_dim(inputs: Sequence[TensorInfo]) -> Dim | int | None:
    """The size that counts rows: one called batch, else the first of the first input."""
    shapes = [kind.shape for info in inputs if isinstance(kind := info.type, TensorType) and kind.shape is not None]
    for shape in shapes:
        for dim in shape:
            name = str(dim).lower()
            if isinstance(dim, Dim) and (name.startswith("batch") or name in _BATCH_NAMES):
                return dim
    return next((shape[0] for shape in shapes if len(shape)), None)


def _rows_first(rank: int, axis: int, length: int | None) -> tuple[int, ...] | None:
    """The order of axes with that of rows first, then that of lengths; None where they stand so."""
    front = (axis,) if length is None else (axis, length)
    if front == (0, 1)[: len(front)]:
        return None
    return (*front, *(i for i in range(rank) if i not in front))


def _array_shapes(inputs: Any) -> Shapes:
    """What the arrays of a request look like; nothing where it holds something else."""
    if type(inputs) is not dict:
        return ()
    found: list[tuple[str, Any, tuple[int, ...]]] = []
    for name, value in inputs.items():
        if type(value) is not np.ndarray:
            return ()
        found.append((name, value.dtype, value.shape))
    return tuple(found)


def _rank(kind: Any) -> int | None:
    return kind.rank if isinstance(kind, TensorType) else None


def _shape(name: str, value: Any) -> tuple[int, ...]:
    found = getattr(value, "shape", None)
    try:
        return tuple(np.shape(value) if found is None else found)
    except ValueError as error:
        raise InputError(f"input {name!r}: the list is not rectangular: {error}") from None


def _array(value: Any) -> Array:
    if isinstance(value, Tensor):
        return value.raw()
    found = host_array(value)
    return np.asarray(value) if found is None else found
