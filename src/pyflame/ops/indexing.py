"""Indexing as NumPy has it, and functions that gather and scatter."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame.dtypes import DType
from pyflame.entries import entry_of
from pyflame.lazy import const, leaf
from pyflame.ops import arithmetic as ar
from pyflame.ops import shaping as sh
from pyflame.ops.core import Handle, as_tensor, call, cast, convert, wrap
from pyflame.outline import outlined, own
from pyflame_rt.graph.errors import ShapeMismatchError
from pyflame_rt.ops.onnx.index import Gather, GatherND, ScatterND
from pyflame_rt.ops.onnx.slicing import Slice

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame.tensors import Tensor

__all__ = ["LazyEvaluationWarning", "as_entry", "getitem", "in_range", "names_part", "plain_key", "setitem"]


class LazyEvaluationWarning(UserWarning):
    """Something had to be evaluated because a shape depends on it."""


class _NewAxis:
    """A mask without axes: it adds one, of size 1 or 0."""

    __slots__ = ("index",)

    def __init__(self, index: Tensor) -> None:
        self.index = index


def _entries(key: Any) -> list[Any]:
    listed = list(key) if isinstance(key, tuple) else [key]
    return [as_entry(item) for item in listed]


def as_entry(item: Any) -> Any:
    """One part of an index: None, Ellipsis, slice, int, or an index tensor (int64 or bool)."""
    if item is None or item is Ellipsis or isinstance(item, slice):
        return item
    if isinstance(item, (bool, np.bool_)):
        return as_tensor(np.asarray(item))
    if isinstance(item, (int, np.integer)):
        return int(item)
    if isinstance(item, Handle):
        kind = item._value.spec.dtype
        if kind.is_inexact:
            raise IndexError(f"an index tensor holds integers or booleans, not {kind}")
        return item if kind in (DType.bool, DType.int64) else cast(item, DType.int64)
    from pyflame.interop import to_array

    array = to_array(item)
    if array.size == 0 and array.dtype.kind == "f":
        array = array.astype(np.int64)
    if array.dtype.kind not in "iub":
        raise IndexError(f"an index is an int, a slice, None, ... or integers or booleans, got {item!r}")
    kind = DType.bool if array.dtype.kind == "b" else DType.int64
    return wrap(leaf(np.asarray(array, kind.numpy, order="C"), kind))


def _width(item: Any) -> int:
    """How many axes a part of an index stands for."""
    if item is None:
        return 0
    if isinstance(item, Handle) and item._value.spec.dtype is DType.bool:
        return len(item._value.spec.shape)
    return 1


def _without_masks(entries: list[Any], shape: Sequence[int]) -> list[Any]:
    """Masks as the indices of what they select: this needs their contents."""
    result: list[Any] = []
    axis = 0
    for item in entries:
        if isinstance(item, Handle) and item._value.spec.dtype is DType.bool:
            have = tuple(shape[axis : axis + item.ndim])  # type: ignore[attr-defined]
            if have != tuple(item._value.spec.shape):
                raise IndexError(f"a mask of shape {item._value.spec.shape} does not fit axes of sizes {list(have)}")
            result.extend(_mask_places(item))
        else:
            result.append(item)
        axis += _width(item)
    return result


def _mask_places(mask: Any) -> list[Any]:
    if mask._value.array is None:
        warnings.warn(
            "indexing with a boolean tensor evaluates it, because the shape of the result depends on it; "
            "where(mask, a, b) stays lazy",
            LazyEvaluationWarning,
            stacklevel=5,
        )
    array = mask.numpy(copy=False)
    if array.ndim == 0:
        return [_NewAxis(wrap(leaf(np.zeros(int(array), np.int64), DType.int64)))]
    return [wrap(leaf(np.asarray(part, np.int64, order="C"), DType.int64)) for part in np.nonzero(array)]


def _spread(entries: list[Any], shape: Sequence[int]) -> list[Any]:
    """With ``...`` and missing axes written out."""
    used = sum(_width(item) for item in entries if item is not Ellipsis)
    if used > len(shape):
        raise IndexError(f"{used} indices for a tensor with {len(shape)} dimensions")
    places = [i for i, item in enumerate(entries) if item is Ellipsis]
    if len(places) > 1:
        raise IndexError("an index has at most one ellipsis (...)")
    at = places[0] if places else len(entries)
    return [*entries[:at], *[slice(None)] * (len(shape) - used), *entries[at + 1 :]]


def names_part(x: Tensor, key: Any) -> bool:
    """Whether a key's ints, slices, None and single booleans make a view that is not all of the tensor as it is.

    Tensors and lists of indices make none; neither does a slice from 0 to the end or beyond.
    """
    shape, axis = x.shape, 0
    for item in _spread(_entries(key), shape):
        if isinstance(item, slice):
            if item.start or item.step not in (None, 1) or (item.stop is not None and item.stop < shape[axis]):
                return True
        elif not isinstance(item, Handle) or not item._value.spec.shape:
            return True
        axis += _width(item)
    return False


def _prepare(x: Tensor, key: Any) -> tuple[Tensor, list[Any]]:
    """The tensor with axes of size 1 for each None, and one entry for each axis: slice, int or tensor."""
    entries = _without_masks(_spread(_entries(key), x.shape), x.shape)
    sizes: list[int] = []
    plan: list[Any] = []
    axis = 0
    for item in entries:
        if item is None or isinstance(item, _NewAxis):
            sizes.append(1)
            plan.append(slice(None) if item is None else item.index)
            continue
        sizes.append(x.shape[axis])
        plan.append(item)
        axis += 1
    return sh.reshape(x, sizes), plan


def _checked_int(i: int, size: int, axis: int) -> int:
    if not -size <= i < size:
        raise IndexError(f"index {i} is out of range for dimension {axis} of size {size}")
    return i + size if i < 0 else i


def _slices(x: Tensor, plan: list[Any]) -> tuple[Tensor, list[tuple[int, int, int, int]]]:
    parts = []
    for axis, item in enumerate(plan):
        if isinstance(item, slice):
            start, stop, step = _slice_range(item, x.shape[axis])
            parts.append((axis, start, stop, step))
    return x, parts


def _slice_range(item: slice, size: int) -> tuple[int, int, int]:
    def number(v: Any) -> Any:
        return v.item() if isinstance(v, Handle) else v  # type: ignore[attr-defined]

    try:
        start, stop, step = slice(number(item.start), number(item.stop), number(item.step)).indices(size)
    except TypeError as error:
        raise IndexError(f"a slice is made of ints or None, got {item}") from error
    if not range(start, stop, step):
        return 0, 0, 1
    return start, stop, step


def _take_slices(x: Tensor, parts: Sequence[tuple[int, int, int, int]]) -> Tensor:
    """Slices, with negative steps written as Slice wants them."""
    kept = [p for p in parts if not (p[1] == 0 and p[2] == x.shape[p[0]] and p[3] == 1)]
    if not kept:
        return x
    axes = tuple(p[0] for p in kept)
    stops = tuple(p[2] if p[2] >= 0 else -(2**62) for p in kept)
    return call(Slice, x, tuple(p[1] for p in kept), stops, axes, tuple(p[3] for p in kept))


def getitem(x: Tensor, key: Any) -> Tensor:
    """``x[key]``."""
    rows = _rows(x, key)
    if rows is not None:
        return rows
    return _getitem(x, key)


def _rows(x: Tensor, key: Any) -> Tensor | None:
    """``x[key]`` for a list of ints, an array or a tensor of them, alone or behind full slices; None for any other."""
    axis = 0
    if type(key) is tuple:
        axis = len(key) - 1
        if axis < 0:
            return None
        if type(key[0]) is list or type(key[0]) is np.ndarray:
            return _elements(x, key)
        for item in key[:-1]:
            if type(item) is not slice or item != _ALL:
                return None
        key = key[-1]
    shape = x._value.spec.shape
    if axis >= len(shape):
        return None
    index = _listed(key, shape[axis], axis)
    return None if index is None else call(Gather, x, index, axis=axis)


_ALL = slice(None)
_INTS = {int}


def _elements(x: Tensor, key: tuple[Any, ...]) -> Tensor | None:
    """``x[key]`` for lists or arrays of ints, of the same shape, for the first axes; None for any other."""
    shape = x._value.spec.shape
    if len(key) > len(shape) or len(key) == 1:
        return None
    if all(type(item) is list and len(item) == len(key[0]) and set(map(type, item)) == _INTS for item in key):
        for axis, item in enumerate(key):
            _check_range(min(item), max(item), shape[axis], axis)
        return call(GatherND, x, leaf(np.array([*zip(*key, strict=True)], np.int64), DType.int64))
    parts = []
    for axis, item in enumerate(key):
        index = None if isinstance(item, Handle) else _listed(item, shape[axis], axis)
        if index is None or index.spec.shape != (parts[0].shape if parts else index.spec.shape):
            return None
        parts.append(index.array)
    places = np.empty((*parts[0].shape, len(parts)), np.int64)
    for axis, array in enumerate(parts):
        places[..., axis] = array
    return call(GatherND, x, leaf(places, DType.int64))


def _listed(key: Any, size: int, axis: int) -> Any:
    """An index of ints in a list, an array or a tensor, within range; None for any other."""
    kind = type(key)
    if (kind is list and _only_ints(key)) or (kind is np.ndarray and key.dtype.kind == "i" and key.size):
        try:
            array = np.array(key, np.int64, order="C")
        except (ValueError, OverflowError):  # rows of different lengths, or no index at all
            return None
        index = leaf(array, DType.int64)
        if kind is list and array.ndim == 1:
            _check_range(min(key), max(key), size, axis)
            return index
    elif isinstance(key, Handle) and key._value.spec.dtype is DType.int64:
        index, array = key, key._value.array
    else:
        return None
    if array is not None and array.size:
        _check_range(_least(array, None), _most(array, None), size, axis)
    return index


def _only_ints(nest: list[Any]) -> bool:
    """Whether there is nothing but ints in a list, or in lists in it, and something in each."""
    for item in nest:
        if type(item) is not int and (type(item) is not list or not _only_ints(item)):
            return False
    return bool(nest)


_least, _most = np.minimum.reduce, np.maximum.reduce


def _check_range(low: int, high: int, size: int, axis: int) -> None:
    if low < -size or high >= size:
        raise IndexError(f"index {low if low < -size else high} is out of range for dimension {axis} of size {size}")


def plain_key(key: Any) -> tuple[Any, ...] | None:
    """An index of ints, slices of ints, None and ... as something to look up; None for any other."""
    found: list[Any] = []
    for item in key if type(key) is tuple else (key,):
        kind = type(item)
        if kind is slice:
            ends = (item.start, item.stop, item.step)
            for end in ends:
                if end is not None and type(end) is not int:
                    return None
            found.append(ends)
        elif kind is int or item is None or item is Ellipsis:
            found.append(item)
        else:
            return None
    return tuple(found)


def _getitem(x: Tensor, key: Any) -> Tensor:
    x, plan = _prepare(x, key)
    arrays = [a for a, item in enumerate(plan) if isinstance(item, Handle)]
    if not arrays:
        return _basic(x, plan)
    plan = [_as_index(item, x.shape[a], a) if isinstance(item, int) else item for a, item in enumerate(plan)]
    axes = [a for a, item in enumerate(plan) if isinstance(item, Handle)]
    indices = [in_range(plan[a], x.shape[a], a) for a in axes]
    x = _take_slices(x, _slices(x, plan)[1])
    return _gather(x, axes, indices)


def _basic(x: Tensor, plan: list[Any]) -> Tensor:
    parts, gone = [], []
    for axis, item in enumerate(plan):
        size = x.shape[axis]
        if isinstance(item, int):
            at = _checked_int(item, size, axis)
            parts.append((axis, at, at + 1, 1))
            gone.append(axis)
        else:
            parts.append((axis, *_slice_range(item, size)))
    y = _take_slices(x, parts)
    return sh.reshape(y, tuple(s for a, s in enumerate(y.shape) if a not in gone)) if gone else y


def _as_index(i: int, size: int, axis: int) -> Tensor:
    return wrap(leaf(np.array(_checked_int(i, size, axis), np.int64), DType.int64))


def in_range(index: Any, size: int, axis: int) -> Tensor:
    """Indices that are known are checked at once."""
    array = index._value.array
    if array is not None and array.size:
        _check_range(_least(array, None), _most(array, None), size, axis)
    return index


def _gather(x: Tensor, axes: list[int], indices: list[Tensor]) -> Tensor:
    together = sh.broadcast_tensors(*indices) if len(indices) > 1 else indices
    rank = together[0].ndim
    if len(axes) == 1:
        return call(Gather, x, together[0], axis=axes[0])
    rest = [a for a in range(x.ndim) if a not in axes]
    front = sh.permute(x, [*axes, *rest])
    picked = call(GatherND, front, sh.stack(together, -1))
    if axes != list(range(axes[0], axes[0] + len(axes))) or axes[0] == 0:
        return picked
    # Neighbouring index arrays leave their result where they stood.
    before = list(range(rank, rank + axes[0]))
    return sh.permute(picked, [*before, *range(rank), *range(rank + axes[0], picked.ndim)])


# ------------------------------------------------------------------ assignment


def setitem(x: Tensor, key: Any, value: Any) -> Tensor:
    """The tensor that ``x`` is after ``x[key] = value``; ``x`` itself stays as it is."""
    v = x._value
    value = convert(value, v.spec.dtype)
    entry = entry_of(v.spec, key)
    if entry is not None:
        fits = value._value.spec is entry.spec
        return wrap(entry.put(v, value._value if fits else _fit(value, entry.spec.shape)._value))
    plain = plain_key(key)
    return _setitem(x, key, value) if plain is None else _assigned(x, plain, value)


@outlined
def _assigned(x: Tensor, plain: tuple[Any, ...], value: Tensor) -> Tensor:
    return own(_setitem(x, tuple(slice(*item) if type(item) is tuple else item for item in plain), value))


def _setitem(x: Tensor, key: Any, value: Tensor) -> Tensor:
    mask = _only_mask(key)
    if mask is not None and value.ndim <= x.ndim - mask.ndim:
        wide = sh.reshape(mask, (*mask.shape, *[1] * (x.ndim - mask.ndim)))
        if tuple(mask.shape) != tuple(x.shape[: mask.ndim]):
            raise IndexError(f"a mask of shape {mask.shape} does not fit {x.shape}")
        return ar.where(wide, value, x)
    shape = x.shape
    y, plan = _prepare(x, key)
    if any(isinstance(item, Handle) for item in plan):
        done = _set_gathered(y, plan, value)
    else:
        done = _set_basic(y, plan, value)
    return sh.reshape(done, shape)


def _only_mask(key: Any) -> Tensor | None:
    listed = key if isinstance(key, tuple) else (key,)
    if len(listed) != 1 or isinstance(listed[0], (slice, int)) or listed[0] is None or listed[0] is Ellipsis:
        return None
    entry = as_entry(listed[0])
    return entry if isinstance(entry, Handle) and entry._value.spec.dtype is DType.bool else None  # type: ignore[return-value]


def _fit(value: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The assigned value stretched to the shape of its place."""
    while value.ndim > len(shape) and value.shape[0] == 1:
        value = sh.squeeze(value, 0)
    try:
        return sh.broadcast_to(value, shape)
    except ShapeMismatchError as error:
        raise ShapeMismatchError(
            f"a value of shape {value.shape} does not fit a place of shape {list(shape)}"
        ) from error


def _set_basic(x: Tensor, plan: list[Any], value: Tensor) -> Tensor:
    parts, kept = [], []
    for axis, item in enumerate(plan):
        if isinstance(item, int):
            at = _checked_int(item, x.shape[axis], axis)
            parts.append((at, at + 1, 1))
        else:
            parts.append(_slice_range(item, x.shape[axis]))
            kept.append(axis)
    counts = [len(range(*p)) for p in parts]
    fitted = sh.reshape(_fit(value, tuple(counts[a] for a in kept)), counts)
    return _put(x, parts, counts, fitted, 0)


def _put(x: Tensor, parts: list[tuple[int, int, int]], counts: list[int], value: Tensor, axis: int) -> Tensor:
    """Put a block at slices, one axis after the other."""
    while axis < x.ndim and parts[axis] == (0, x.shape[axis], 1):
        axis += 1
    if axis == x.ndim:
        return value
    start, stop, step = parts[axis]
    if counts[axis] == 0:
        return x
    if step != 1:
        return _put_stepped(x, parts, counts, value, axis)
    inner = _put(
        sh.slice_axes(x, [(axis, start, stop, 1)]), _within(parts, axis, stop - start), counts, value, axis + 1
    )
    pieces = [sh.slice_axes(x, [(axis, 0, start, 1)]), inner, sh.slice_axes(x, [(axis, stop, x.shape[axis], 1)])]
    return sh.cat([p for p in pieces if p.shape[axis]], axis)


def _within(parts: list[tuple[int, int, int]], axis: int, size: int) -> list[tuple[int, int, int]]:
    return [*parts[:axis], (0, size, 1), *parts[axis + 1 :]]


def _put_stepped(x: Tensor, parts: list[Any], counts: list[int], value: Tensor, axis: int) -> Tensor:
    places = np.arange(*parts[axis], dtype=np.int64)
    rows = call(Gather, x, const(places), axis=axis)
    inner = _put(rows, _within(parts, axis, counts[axis]), counts, value, axis + 1)
    order = [axis, *[a for a in range(x.ndim) if a != axis]]
    back = np.argsort(order).tolist()
    done = call(ScatterND, sh.permute(x, order), const(places.reshape(-1, 1)), sh.permute(inner, order))
    return sh.permute(done, back)


def _set_gathered(x: Tensor, plan: list[Any], value: Tensor) -> Tensor:
    plan = [_as_index(item, x.shape[a], a) if isinstance(item, int) else item for a, item in enumerate(plan)]
    axes = [a for a, item in enumerate(plan) if isinstance(item, Handle)]
    indices = sh.broadcast_tensors(*[in_range(plan[a], x.shape[a], a) for a in axes])
    parts = [(0, x.shape[a], 1) if a in axes else _slice_range(plan[a], x.shape[a]) for a in range(x.ndim)]
    counts = [len(range(*p)) for p in parts]
    block = _take_slices(x, [(a, *p) for a, p in enumerate(parts)])
    rest = [a for a in range(x.ndim) if a not in axes]
    order = [*axes, *rest]
    picked = tuple(indices[0].shape)
    tail = tuple(block.shape[a] for a in rest)
    if axes == list(range(axes[0], axes[0] + len(axes))):
        # The value has the indices' axes where the neighbouring index arrays stood.
        fitted = _fit(value, (*tail[: axes[0]], *picked, *tail[axes[0] :]))
        n, lead = len(picked), axes[0]
        fitted = sh.permute(fitted, [*range(lead, lead + n), *range(lead), *range(lead + n, fitted.ndim)])
    else:
        fitted = _fit(value, (*picked, *tail))
    done = call(ScatterND, sh.permute(block, order), sh.stack(indices, -1), fitted)
    return _put(x, parts, counts, sh.permute(done, np.argsort(order).tolist()), 0)
