"""Views of TorchScript and the way back from each: what an in-place write to a view does to its base."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame_rt.graph import DType
from pyflame_rt.graph.errors import UndeterminedError
from pyflame_rt.importers.aten.shaping import END, joined, sliced
from pyflame_rt.importers.aten.table import get_lowering
from pyflame_rt.importers.aten.values import Num, axis, is_static, number, refuse, sizes
from pyflame_rt.importers.torchscript.objects import Cell, Way
from pyflame_rt.ops.core.value import Value, constant
from pyflame_rt.ops.onnx.creation import Range
from pyflame_rt.ops.onnx.index import ScatterElements
from pyflame_rt.ops.onnx.shape import Expand, Reshape, Shape, Transpose, Unsqueeze

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ALIASES", "TURNS", "VIEWS", "view_of", "way_of"]

# Operators that may give back the tensor they got.
ALIASES = frozenset(("to", "contiguous", "dropout", "detach", "alias", "data", "type_as", "resolve_conj", "expand_as",
                     "requires_grad", "feature_dropout", "alpha_dropout"))  # fmt: skip


def _reshape_back(base: Value, new: Value, *_: Any, **__: Any) -> Value:
    return Reshape(new, Shape(base))


def _order_back(name: str) -> Callable[..., Value]:
    """The inverse of a permutation, found by looking where a view of the numbered axes puts them."""

    def back(base: Value, new: Value, *args: Any, **kwargs: Any) -> Value:
        order = _order(name, base.rank, *args, **kwargs)
        return Transpose(new, perm=[order.index(i) for i in range(base.rank)])

    return back


def _order(name: str, rank: int, *args: Any, **kwargs: Any) -> list[int]:
    order = list(range(rank))
    if name in ("t", "numpy_T"):
        return order[::-1]
    if name == "permute":
        return [axis(d, rank) for d in (args[0] if args else kwargs["dims"])]
    first, second = (axis(d, rank) for d in (args if name == "transpose" else (-2, -1)))
    order[first], order[second] = order[second], order[first]
    return order


def _slice_back(base: Value, new: Value, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1) -> Value:
    at = axis(dim, base.rank)
    low, high = 0 if start is None else start, END if end is None else end
    whole = is_static(low) and low == 0 and is_static(high) and high >= END // 2
    if is_static(step) and step == 1:
        if whole:
            return new
        size = base.shape[at]
        if isinstance(size, int) and is_static(low) and is_static(high):
            low, high, _ = slice(low, high).indices(size)
            high = max(low, high)
        before = sliced(base, at, 0, low) if not (is_static(low) and low == 0) else None
        after = sliced(base, at, high, None) if not (is_static(high) and high >= END // 2) else None
        return joined([p for p in (before, new, after) if p is not None], at)
    return _strided_back(base, new, at, low, high, step)


def _strided_back(base: Value, new: Value, at: int, low: Any, high: Any, step: Any) -> Value:
    size = base.shape[at]
    if not isinstance(size, int) or not all(is_static(v) for v in (low, high, step)):
        raise UndeterminedError("writing to every n-th element of an axis whose size is only known when running")
    low, high, step = slice(low, high, step).indices(size)
    places = Range(*(constant(v, DType.Int64) for v in (low, max(low, high), step)))
    shape = [1] * base.rank
    shape[at] = -1
    return ScatterElements(base, Expand(Reshape(places, shape), Shape(new)), new, axis=at)


def _select_back(base: Value, new: Value, dim: int, index: Any) -> Value:
    at = axis(dim, base.rank)
    wide = Unsqueeze(new, [at])
    if isinstance(index, Num):
        index = Num(_from_front(index.value, sizes(base)[at]), int)
        after: Any = Num(index.value + 1, int)
    else:
        after = END if is_static(index) and index == -1 else index + 1
    return _slice_back(base, wide, at, index, after)


def _from_front(index: Value, size: Any) -> Value:
    from pyflame_rt.ops.onnx.logic import Where

    return Where(index < 0, index + number(size, DType.Int64), index)


def _narrow_back(base: Value, new: Value, dim: int, start: Any, length: Any) -> Value:
    if not (is_static(start) and is_static(length)):
        raise refuse("writing to a narrowed tensor of unknown place")
    return _slice_back(base, new, dim, start, start + length)


def _never(*_: Any, **__: Any) -> Value:
    raise refuse("writing in place to an expanded tensor")


VIEWS: dict[str, Callable[..., Value]] = {
    "view": _reshape_back, "reshape": _reshape_back, "flatten": _reshape_back, "unflatten": _reshape_back,
    "squeeze": _reshape_back, "unsqueeze": _reshape_back, "view_as": _reshape_back, "reshape_as": _reshape_back,
    "ravel": _reshape_back, "transpose": _order_back("transpose"), "swapaxes": _order_back("transpose"),
    "t": _order_back("t"), "numpy_T": _order_back("t"), "mT": _order_back("mT"), "permute": _order_back("permute"),
    "slice": _slice_back, "select": _select_back, "narrow": _narrow_back, "expand": _never, "diagonal": _never,
}  # fmt: skip


# Views whose in-place form changes what a tensor is a view of, and no element.
TURNS = frozenset(("squeeze", "swapaxes", "t", "transpose", "unsqueeze"))


def way_of(name: str, args: list[Any], kwargs: dict[str, Any]) -> Way:
    """How the operator of that name takes a view of a tensor, and how a write goes back."""
    lowering = get_lowering(name)
    back = VIEWS[name]

    def forward(value: Value) -> Value:
        return lowering(value, *args, **kwargs)

    def put(value: Value, new: Value) -> Value:
        return back(value, new, *args, **kwargs)

    return Way(forward, put)


def view_of(name: str, base: Cell, args: list[Any], kwargs: dict[str, Any], depth: int) -> Cell:
    """A view of a tensor by the operator of that name."""
    way = way_of(name, args, kwargs)
    return Cell(way.forward(base.get()), depth, base, way)
