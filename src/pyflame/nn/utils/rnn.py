"""Sequences of different lengths as one tensor: filled up, or packed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from pyflame.arrays import adopt
from pyflame.dtypes import DType
from pyflame.ops.arithmetic import where
from pyflame.ops.core import Handle, call
from pyflame.ops.creation import full
from pyflame.ops.shaping import cat, stack
from pyflame_rt.graph.errors import ShapeMismatchError
from pyflame_rt.graph.named_arguments import names_arguments
from pyflame_rt.ops.onnx.index import Gather

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame.tensors import Tensor

__all__ = [
    "PackedSequence",
    "pack_padded_sequence",
    "pack_sequence",
    "pad_packed_sequence",
    "pad_sequence",
    "unpack_sequence",
    "unpad_sequence",
]


class _Packed(NamedTuple):
    data: Any
    batch_sizes: Any
    sorted_indices: Any = None
    unsorted_indices: Any = None


class PackedSequence(_Packed):
    """The elements of several sequences without any filling: all first ones, then all second ones, and so on.

    Made by `pack_padded_sequence` or `pack_sequence`, taken and given by recurrent layers.

    Attributes:
        data: All elements [sum of the lengths, ...], the longest sequence first at each step.
        batch_sizes: How many sequences have an element at each step, int64.
        sorted_indices: Which sequence comes first, second and so on; None if they came sorted.
        unsorted_indices: The way back.

    Example:
        >>> import pyflame as pf
        >>> packed = pf.nn.utils.rnn.pack_sequence([pf.tensor([1.0, 2.0]), pf.tensor([3.0])])
        >>> packed.data.numpy().tolist(), packed.batch_sizes.numpy().tolist()
        ([1.0, 3.0, 2.0], [2, 1])
    """

    __slots__ = ()

    def __new__(
        cls, data: Any, batch_sizes: Any = None, sorted_indices: Any = None, unsorted_indices: Any = None
    ) -> Self:
        """Elements with their sizes; the way back follows from the order."""
        if batch_sizes is None:
            raise ValueError("a PackedSequence needs batch_sizes; pack_padded_sequence makes one")
        if sorted_indices is not None and unsorted_indices is None:
            unsorted_indices = adopt(np.argsort(sorted_indices.numpy()))
        return super().__new__(cls, data, batch_sizes, sorted_indices, unsorted_indices)

    def to(self, *args: Any, **kwargs: Any) -> PackedSequence:
        """The sequences with elements of another type."""
        return self._replace(data=self.data.to(*args, **kwargs))

    def float(self) -> PackedSequence:
        """The sequences as float32."""
        return self.to(DType.float32)

    def double(self) -> PackedSequence:
        """The sequences as float64."""
        return self.to(DType.float64)

    def half(self) -> PackedSequence:
        """The sequences as float16."""
        return self.to(DType.float16)

    def cpu(self) -> PackedSequence:
        """As they are."""
        return self

    @property
    def is_cuda(self) -> bool:
        """False."""
        return False

    def lengths(self) -> np.ndarray[Any, Any]:
        """The lengths of the sequences, in the order in which they are packed."""
        sizes = self.batch_sizes.numpy()
        return (sizes[:, None] > np.arange(sizes[0])).sum(0)


def element_places(lengths: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """For lengths in falling order [T, N]: whether there is an element, and its place in the packed data."""
    there = np.arange(int(lengths[0]))[:, None] < lengths
    return there, np.where(there, there.cumsum().reshape(there.shape) - 1, 0)


def _checked_lengths(lengths: Any, batch: int) -> np.ndarray[Any, Any]:
    found = np.asarray(lengths.numpy() if isinstance(lengths, Handle) else lengths)  # type: ignore[attr-defined]
    if found.dtype.kind not in "iu":
        raise TypeError(f"lengths must be whole numbers. Received: {found.dtype}")
    if found.shape != (batch,):
        raise RuntimeError(
            f"Expected `len(lengths)` to be equal to batch_size, but got {found.size} (batch_size={batch})"
        )
    if found.size == 0:
        raise RuntimeError("Cannot pack empty tensors.")
    if found.min() <= 0:
        raise RuntimeError(
            "Length of all samples has to be greater than 0, but found an element in 'lengths' that is <= 0"
        )
    return found.astype(np.int64)


def pack_padded_sequence(
    input: Any, lengths: Any, batch_first: bool = False, enforce_sorted: bool = True
) -> PackedSequence:
    """The elements of sequences that were filled up, without the filling.

    Args:
        input: Sequences [T, N, ...].
        lengths: How long each of them is; evaluated.
        batch_first: They are [N, T, ...].
        enforce_sorted: The longest comes first, the shortest last; else they are sorted here.

    Example:
        >>> import pyflame as pf
        >>> from pyflame.nn.utils.rnn import pack_padded_sequence
        >>> x = pf.tensor([[1.0, 2.0, 0.0], [3.0, 4.0, 5.0]])
        >>> pack_padded_sequence(x, [2, 3], batch_first=True, enforce_sorted=False).data.numpy().tolist()
        [3.0, 1.0, 4.0, 2.0, 5.0]
    """
    if input.ndim < 2:
        raise ShapeMismatchError(f"sequences must be [T, N, ...]. Received: {list(input.shape)}")
    x = input.transpose(0, 1) if batch_first else input
    steps, batch = int(x.shape[0]), int(x.shape[1])
    sizes = _checked_lengths(lengths, batch)
    order = None
    if enforce_sorted and np.any(sizes[1:] > sizes[:-1]):
        raise RuntimeError(
            "`lengths` array must be sorted in decreasing order when `enforce_sorted` is True. You can pass "
            "`enforce_sorted=False` to pack_padded_sequence and/or pack_sequence to sidestep this requirement"
        )
    if not enforce_sorted:
        order = np.argsort(-sizes, kind="stable")
        sizes = sizes[order]
    if sizes[0] > steps:
        raise RuntimeError(f"a length of {sizes[0]} is more than the {steps} steps of the input")
    there, _ = element_places(sizes)
    rows, columns = np.nonzero(there)
    flat = rows * batch + (columns if order is None else order[columns])
    data = call(Gather, x.reshape([steps * batch, *x.shape[2:]]), adopt(flat), axis=0)
    return PackedSequence(data, adopt(there.sum(1)), None if order is None else adopt(order))


def pad_packed_sequence(
    sequence: PackedSequence, batch_first: bool = False, padding_value: float = 0.0, total_length: int | None = None
) -> tuple[Tensor, Tensor]:
    """Packed sequences filled up to one length, in their first order, and how long each of them is.

    Args:
        sequence: The sequences.
        batch_first: Give [N, T, ...] instead of [T, N, ...].
        padding_value: What to fill with.
        total_length: The length to fill up to; the longest sequence's if not given.

    Example:
        >>> import pyflame as pf
        >>> from pyflame.nn.utils.rnn import pack_sequence, pad_packed_sequence
        >>> x, lengths = pad_packed_sequence(pack_sequence([pf.ones([2]), pf.ones([1])]), batch_first=True)
        >>> x.numpy().tolist(), lengths.numpy().tolist()
        ([[1.0, 1.0], [1.0, 0.0]], [2, 1])
    """
    lengths = sequence.lengths()
    longest = int(lengths[0])
    if total_length is not None and total_length < longest:
        raise ValueError(
            "Expected total_length to be at least the length of the longest sequence in input, but got "
            f"total_length={total_length} and max sequence length being {longest}"
        )
    there, places = element_places(lengths)
    if sequence.unsorted_indices is not None:
        back = sequence.unsorted_indices.numpy()
        there, places, lengths = there[:, back], places[:, back], lengths[back]
    if total_length is not None:
        there, places = (np.pad(part, [(0, total_length - longest), (0, 0)]) for part in (there, places))
    if batch_first:
        there, places = there.T, places.T
    return filled(sequence.data, there, places, padding_value), adopt(np.ascontiguousarray(lengths))


def filled(data: Tensor, there: np.ndarray[Any, Any], places: np.ndarray[Any, Any], value: float = 0.0) -> Tensor:
    """Packed data at the places where there is something, a value elsewhere."""
    rows = call(Gather, data, adopt(np.ascontiguousarray(places)), axis=0)
    if there.all():
        return rows
    mask = adopt(there.reshape(*there.shape, *([1] * (data.ndim - 1))))
    return where(mask, rows, full([], value, dtype=data.dtype))


@names_arguments
def pad_sequence(
    sequences: Sequence[Any], batch_first: bool = False, padding_value: float = 0.0, padding_side: str = "right"
) -> Tensor:
    """Sequences of different lengths as one tensor, the shorter ones filled up.

    Args:
        sequences: Tensors [L, ...].
        batch_first: Give [N, T, ...] instead of [T, N, ...].
        padding_value: What to fill with.
        padding_side: "right" fills up the ends, "left" the beginnings.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.utils.rnn.pad_sequence([pf.ones([2]), pf.ones([3])], batch_first=True).numpy().tolist()
        [[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]]
    """
    if padding_side not in ("left", "right"):
        raise ValueError(f"padding_side must be left or right. Received: {padding_side!r}")
    listed = list(sequences)
    if not listed:
        raise RuntimeError("received an empty list of sequences")
    longest = max(int(s.shape[0]) for s in listed)
    rows = []
    for s in listed:
        filling = full([longest - s.shape[0], *s.shape[1:]], padding_value, dtype=s.dtype)
        parts = [s, filling] if padding_side == "right" else [filling, s]
        rows.append(cat(parts, dim=0) if s.shape[0] < longest else s)
    return stack(rows, dim=0 if batch_first else 1)


def unpad_sequence(padded_sequences: Any, lengths: Any, batch_first: bool = False) -> list[Tensor]:
    """The sequences of a tensor that was filled up, one by one.

    Example:
        >>> import pyflame as pf
        >>> [s.shape for s in pf.nn.utils.rnn.unpad_sequence(pf.ones([3, 2]), [3, 1])]
        [[3], [1]]
    """
    rows = padded_sequences if batch_first else padded_sequences.transpose(0, 1)
    sizes = _checked_lengths(lengths, int(rows.shape[0]))
    return [rows[i, : int(size)] for i, size in enumerate(sizes)]


def pack_sequence(sequences: Sequence[Any], enforce_sorted: bool = True) -> PackedSequence:
    """Sequences of different lengths, packed.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.utils.rnn.pack_sequence([pf.ones([3, 2]), pf.ones([1, 2])]).data.shape
        [4, 2]
    """
    lengths = [int(s.shape[0]) for s in sequences]
    return pack_padded_sequence(pad_sequence(sequences), lengths, enforce_sorted=enforce_sorted)


def unpack_sequence(packed_sequences: PackedSequence) -> list[Tensor]:
    """The sequences of a pack, one by one.

    Example:
        >>> import pyflame as pf
        >>> from pyflame.nn.utils.rnn import pack_sequence, unpack_sequence
        >>> [s.numpy().tolist() for s in unpack_sequence(pack_sequence([pf.ones([2]), pf.zeros([1])]))]
        [[1.0, 1.0], [0.0]]
    """
    padded, lengths = pad_packed_sequence(packed_sequences, batch_first=True)
    return unpad_sequence(padded, lengths, batch_first=True)
