"""Entries: one element or row, its place an input of the graph, so that all places share one executable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame.dtypes import DType
from pyflame.lazy import MAX_MEMORY, apply_rule, leaf, modes, rule_for, unusual
from pyflame.ops.core import Handle, is_scalar, scalar
from pyflame.strides import Geometry
from pyflame.views import Step
from pyflame_rt.ops.onnx.index import GatherND, ScatterND

if TYPE_CHECKING:
    from pyflame.lazy import Spec, Val

__all__ = ["Entry", "entry_of", "entry_put"]


class Entry(Step):
    """One entry of the first dimensions of tensors of a type, as a view of them.

    Attributes:
        spec: its own type.
    """

    __slots__ = ("_at", "_get", "_index", "_set", "as_steps", "spec")

    def __init__(self, whole: Spec, at: tuple[int, ...]) -> None:
        self._at = at
        self._index = leaf(np.array(at, np.int64), DType.int64)
        self._get = rule_for(GatherND, (), (whole, self._index.spec))
        self.spec = self._get.outs[0]
        self._set = rule_for(ScatterND, (), (whole, self._index.spec, self.spec))
        self.as_steps: tuple[Step, ...] = (self,)

    def forward(self, whole: Val) -> Val:
        """The entry of a value."""
        return apply_rule(self._get, (whole, self._index))

    def put(self, whole: Val, part: Val) -> Val:
        """The value with another entry."""
        return apply_rule(self._set, (whole, self._index, part))

    def geometry(self, whole: Geometry) -> Geometry:
        """Where its elements are."""
        rank = len(self._at)
        offset = whole.offset + sum(i * stride for i, stride in zip(self._at, whole.strides[:rank], strict=True))
        return Geometry(whole.shape[rank:], whole.strides[rank:], offset)


def entry_put(whole: Val, key: Any, part: Any) -> Val | None:
    """The value with another entry, a tensor or number, by one expression and without gradients; else None."""
    entry = entry_of(whole.spec, key)
    if entry is None or whole.needs_grad:
        return None
    if not isinstance(part, Handle):
        if not is_scalar(part):
            return None
        part = scalar(part, whole.spec.dtype)
    value = part._value
    return None if value.spec is not entry.spec or value.needs_grad else entry.put(whole, value)


_known: dict[Any, Entry] = {}
_INTS = {int}


def entry_of(spec: Spec, key: Any) -> Entry | None:
    """The entry that an index of ints names; None for any other, for one out of range, and where places are constants.

    What is traced has places as constants, which are worked out when it is compiled.
    """
    if type(key) is not int and not (type(key) is tuple and {*map(type, key)} == _INTS):
        return None
    if unusual and modes.tracer is not None:
        return None
    found = _known.get((spec, key))
    if found is None and (at := _place(spec, key)) is not None:
        if len(_known) > MAX_MEMORY // 10:
            _known.clear()
        found = _known[spec, key] = Entry(spec, at)
    return found


def _place(spec: Spec, key: Any) -> tuple[int, ...] | None:
    ints, sizes = key if type(key) is tuple else (key,), spec.shape
    if len(ints) > len(sizes) or not spec.numel or spec.known is not None:
        return None
    pairs = list(zip(ints, sizes[: len(ints)], strict=True))
    if not all(-size <= i < size for i, size in pairs):
        return None
    return tuple([i + size if i < 0 else i for i, size in pairs])
