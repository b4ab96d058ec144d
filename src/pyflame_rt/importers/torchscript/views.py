"""Views of TorchScript and the way back from each: what an in-place write to a view does to its base."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

from pyflame_rt.graph import DType
from pyflame_rt.graph.errors import UndeterminedError
from pyflame_rt.importers.aten.complex_numbers import imaginary, made_of, real
from pyflame_rt.importers.aten.shaping import END, joined, moved_order, parted, sliced
from pyflame_rt.importers.aten.table import get_lowering
from pyflame_rt.importers.aten.values import Num, axis, is_static, number, refuse, sizes
from pyflame_rt.importers.torchscript.objects import Cell, Way
from pyflame_rt.ops.core.value import Value, constant
from pyflame_rt.ops.onnx.creation import Range
from pyflame_rt.ops.onnx.index import ScatterElements
from pyflame_rt.ops.onnx.shape import Expand, Reshape, Shape, Size, Transpose, Unsqueeze
from pyflame_rt.ops.pyflame.complex_numbers import ViewAsComplex, ViewAsReal, conjugated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["ALIASES", "COPIES_OF_MOVED", "DOUBTFUL", "PARTS", "TURNS", "VIEWS", "keeps_order", "part_ways", "view_of",
           "way_of"]  # fmt: skip

# Operators that may give back the tensor they got.
ALIASES = frozenset(("to", "detach", "alias", "data", "type_as", "resolve_conj", "resolve_neg", "requires_grad",
                     "positive", "as_tensor", "lift_fresh", "_autocast_to_full_precision", "cpu"))  # fmt: skip

# Views of tensors whose elements lie in their order, and of others perhaps copies.
COPIES_OF_MOVED = frozenset(("reshape", "flatten", "reshape_as", "contiguous", "ravel"))

# Whether these give views, copies or what they got is nothing that torch promises, or depends on several tensors.
DOUBTFUL = frozenset(("dropout", "feature_dropout", "alpha_dropout", "broadcast_tensors", "meshgrid"))

# Results have their elements in their order whatever operands have.
_ORDERED = frozenset(("matmul", "mm", "bmm", "addmm", "baddbmm", "linear", "stack"))
# They do not, even where operands do.
_MOVED = frozenset(("nonzero", "argwhere", "rot90", "inverse", "einsum", "scaled_dot_product_attention", "lstm", "gru",
                    "rnn_tanh", "rnn_relu", "empty_strided", "new_empty_strided", "empty_permuted"))  # fmt: skip


def keeps_order(name: str, inputs: Iterable[Cell], memory_format: Any = None) -> bool:
    """Whether the results of an operator surely have their elements in the order of their axes."""
    if memory_format == 0 or name in _ORDERED or (name.startswith("new_") and name not in _MOVED):
        return True
    return name not in _MOVED and not name.startswith("linalg_") and all(cell.ordered for cell in inputs)


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
    if name == "movedim":
        return moved_order(rank, *args, **kwargs)
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


def _expanded_back(base: Value, new: Value, *_: Any, **__: Any) -> Value:
    if not (base.shape.is_static and new.shape.is_static):
        raise UndeterminedError("writing in place to a tensor that is only perhaps expanded")
    if base.shape != new.shape:
        raise refuse("writing in place to an expanded tensor")
    return new


def _numbered_back(name: str) -> Callable[..., Value]:
    """Where a view of the numbered elements has them is where its own go."""

    def back(base: Value, new: Value, *args: Any, **kwargs: Any) -> Value:
        count = constant(math.prod(base.shape), DType.Int64) if base.shape.is_static else Size(base)  # type: ignore[arg-type]  # static
        numbered = Reshape(Range(constant(0, DType.Int64), count, constant(1, DType.Int64)), Shape(base))
        places = Reshape(get_lowering(name)(numbered, *args, **kwargs), [-1])
        return Reshape(ScatterElements(Reshape(base, [-1]), places, Reshape(new, [-1]), axis=0), Shape(base))

    return back


def _unfold_back(base: Value, new: Value, dimension: int, size: int, step: int) -> Value:
    if step < size:
        raise refuse("writing in place to windows that overlap")
    return _numbered_back("unfold")(base, new, dimension, size, step)


def _real_back(base: Value, new: Value) -> Value:
    return made_of(new, imaginary(base)) if base.dtype.is_complex else new


VIEWS: dict[str, Callable[..., Value]] = {
    "view_as_real": lambda _, new: ViewAsComplex(new), "view_as_complex": lambda _, new: ViewAsReal(new),
    "real": _real_back, "imag": lambda base, new: made_of(real(base), new),
    "conj": lambda _, new: conjugated(new), "_conj": lambda _, new: conjugated(new),
    "view": _reshape_back, "reshape": _reshape_back, "flatten": _reshape_back, "unflatten": _reshape_back,
    "squeeze": _reshape_back, "unsqueeze": _reshape_back, "view_as": _reshape_back, "reshape_as": _reshape_back,
    "ravel": _reshape_back, "contiguous": _reshape_back, "atleast_1d": _reshape_back, "atleast_2d": _reshape_back,
    "transpose": _order_back("transpose"), "swapaxes": _order_back("transpose"), "swapdims": _order_back("transpose"),
    "t": _order_back("t"), "numpy_T": _order_back("t"), "matrix_H": _order_back("t"), "mT": _order_back("mT"),
    "mH": _order_back("mT"), "adjoint": _order_back("mT"), "permute": _order_back("permute"),
    "movedim": _order_back("movedim"), "moveaxis": _order_back("movedim"),
    "slice": _slice_back, "select": _select_back, "narrow": _narrow_back, "unfold": _unfold_back,
    "expand": _expanded_back, "expand_as": _expanded_back, "broadcast_to": _expanded_back,
    "diagonal": _numbered_back("diagonal"), "linalg_diagonal": _numbered_back("linalg_diagonal"),
}  # fmt: skip

# Views that leave elements in their order, and those that do so along the first axis.
_IN_ORDER = frozenset(("view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "view_as", "reshape_as",
                       "ravel", "contiguous", "atleast_1d", "atleast_2d"))  # fmt: skip
_IN_ORDER_FIRST = frozenset(("slice", "select", "narrow"))

# Lists of views, and the place of the axis along which they part a tensor among the arguments after it.
PARTS = {"split": 1, "split_with_sizes": 1, "chunk": 1, "tensor_split": 1, "unbind": 0}


# Views whose in-place form changes what a tensor is a view of, and no element.
TURNS = frozenset(("squeeze", "swapaxes", "swapdims", "t", "transpose", "unsqueeze"))


def way_of(name: str, args: list[Any], kwargs: dict[str, Any]) -> Way:
    """How the operator of that name takes a view of a tensor, and how a write goes back."""
    lowering = get_lowering(name)
    back = VIEWS[name]

    def forward(value: Value) -> Value:
        return lowering(value, *args, **kwargs)

    def put(value: Value, new: Value) -> Value:
        return back(value, new, *args, **kwargs)

    return Way(forward, put)


def part_ways(name: str, value: Value, args: list[Any], kwargs: dict[str, Any]) -> list[Way]:
    """How each of the views that an operator parts a tensor into is taken, and how a write goes back."""
    where = PARTS[name]
    at = axis(args[where] if len(args) > where else kwargs.get("dim", 0), value.rank)
    if name == "unbind":
        return [way_of("select", [at, i], {}) for i in range(len(get_lowering(name)(value, *args, **kwargs)))]
    lengths = [made.shape[at] for made in get_lowering(name)(value, *args, **kwargs)]
    if not all(isinstance(n, int) for n in lengths):
        raise UndeterminedError("parts of a tensor whose sizes are only known when running")
    size = value.shape[at]
    if name == "tensor_split" and isinstance(size, int):
        bounds = parted(size, args[0] if args else next(iter(kwargs.values())))
    else:
        bounds = [(end - n, end) for n, end in zip(lengths, itertools.accumulate(lengths), strict=True)]
    return [way_of("slice", [at, low, high], {}) for low, high in bounds]


def view_of(name: str, base: Cell, args: list[Any], kwargs: dict[str, Any], depth: int) -> Cell:
    """A view of a tensor by the operator of that name."""
    way = way_of(name, args, kwargs)
    first = name in _IN_ORDER_FIRST and args[:1] in ([0], []) and args[3:] in ([], [1])
    return Cell(way.forward(base.get()), depth, base, way, ordered=base.ordered and (name in _IN_ORDER or first))
