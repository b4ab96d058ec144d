"""Dataflow rules of primitives: where the rows of a batch are in the results, or why rows are mixed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pyflame_rt.graph import Dim
from pyflame_rt.ops.microsoft.fused import Inverse
from pyflame_rt.ops.onnx.conv import Conv, ConvTranspose
from pyflame_rt.ops.onnx.creation import ConstantOfShape, Trilu
from pyflame_rt.ops.onnx.index import Gather, GatherElements, ScatterElements, TopK
from pyflame_rt.ops.onnx.matmul import Det, Einsum, MatMul
from pyflame_rt.ops.onnx.maxpool import MaxPoolValues
from pyflame_rt.ops.onnx.pool import ReduceWindow
from pyflame_rt.ops.onnx.reduce import (
    ArgMax,
    ArgMin,
    CumProd,
    CumSum,
    ReduceMax,
    ReduceMean,
    ReduceMin,
    ReduceProd,
    ReduceSum,
)
from pyflame_rt.ops.onnx.rnn import GRU, LSTM, RNN
from pyflame_rt.ops.onnx.shape import Expand, Reshape, Squeeze, Transpose, Unsqueeze
from pyflame_rt.ops.onnx.slicing import Concat, Pad, Slice, Split, Tile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyflame_rt.graph import Shape
    from pyflame_rt.ops.core.registry import Op
    from pyflame_rt.ops.core.value import Value

__all__ = ["ROWS", "Call", "Mixed", "holds_rows", "mentions_rows", "rule_of"]

ROWS = "pyflame_rows"  # the symbol that stands for the number of rows
_EVERYTHING = 2**31 - 1


class Mixed(Exception):
    """The result of a node depends on several rows at once, or nobody knows that it does not."""


class Call(NamedTuple):
    """One primitive: its inputs with the axis of their rows (None: the same for all rows), and its results."""

    name: str
    inputs: Sequence[Value | None]
    axes: Sequence[int | None]
    outputs: Sequence[Value]
    attributes: dict[str, Any]

    def axis(self, i: int) -> int | None:
        """The axis of an input's rows."""
        return self.axes[i] if i < len(self.axes) else None

    def shape(self, i: int) -> Shape:
        """Sizes of an input."""
        value = self.inputs[i]
        if value is None:
            raise Mixed(f"{self.name} has no input {i}")
        return value.shape

    def only(self, *allowed: int) -> None:
        """Refuse rows in any input but these."""
        for i, axis in enumerate(self.axes):
            if axis is not None and i not in allowed:
                raise Mixed(f"input {i} of {self.name} has rows")

    def ints(self, i: int) -> list[Any] | None:
        """Contents of an input of sizes; None where it is not given."""
        value = self.inputs[i] if i < len(self.inputs) else None
        if value is None:
            return None
        if value.known is None:
            raise Mixed(f"input {i} of {self.name} is known only when running")
        return value.ints()


def holds_rows(dim: object) -> bool:
    """True for a size that is the number of rows times something without it."""
    return isinstance(dim, Dim) and all(m.count(ROWS) == 1 for m, _ in dim.terms)


def mentions_rows(number: object) -> bool:
    """True for a size that changes with the number of rows."""
    return isinstance(number, Dim) and ROWS in str(number)


def _fixed(call: Call, numbers: Sequence[Any]) -> None:
    if any(mentions_rows(n) for n in numbers):
        raise Mixed(f"{call.name} computes with the number of rows")


def _same(axis: int | None, call: Call) -> list[int | None]:
    return [axis] * len(call.outputs)


def elementwise(call: Call) -> list[int | None]:
    """Rows keep their place; all operands have them at the same place."""
    rank = call.outputs[0].rank
    places = {a + rank - len(call.shape(i)) for i, a in enumerate(call.axes) if a is not None}
    if len(places) != 1:
        raise Mixed(f"operands of {call.name} have their rows along different axes")
    (place,) = places
    for i, value in enumerate(call.inputs):
        if value is None or call.axis(i) is not None:
            continue
        own = place - (rank - value.rank)
        if own >= 0 and value.shape[own] != 1:
            raise Mixed(f"an operand of {call.name} without rows is as long as there are rows")
    return _same(place, call)


def _matmul(call: Call) -> list[int | None]:
    left, right = call.axis(0), call.axis(1)
    m, n = len(call.shape(0)), len(call.shape(1))
    if m < 2 or n < 2:
        raise Mixed("MatMul of a vector")
    rank = call.outputs[0].rank
    if left is not None and right is not None:
        if left - m != right - n or left >= m - 2:
            raise Mixed("MatMul sums over rows, or pairs every row with every other")
        return [left - m + rank]
    if left is not None:
        if left == m - 1:
            raise Mixed("MatMul sums over rows")
        return _beside(call, 1, left - m, rank)
    assert right is not None
    if right == n - 2:
        raise Mixed("MatMul sums over rows")
    return _beside(call, 0, right - n, rank)


def _beside(call: Call, other: int, from_end: int, rank: int) -> list[int | None]:
    """The other operand is stretched along the axis of the rows, or has none there."""
    shape = call.shape(other)
    if from_end < -2 and -from_end <= len(shape) and shape[from_end] != 1:
        raise Mixed(f"an operand of {call.name} without rows is as long as there are rows")
    return [rank + from_end]


def _first(call: Call) -> list[int | None]:
    """Images: rows along the first axis, and in the first input only."""
    call.only(0)
    if call.axis(0) != 0:
        raise Mixed(f"rows of {call.name} are not along the first axis")
    return _same(0, call)


def _windows(call: Call) -> list[int | None]:
    axis, rank = call.axis(0), len(call.shape(0))
    assert axis is not None
    found = [call.attributes[name][axis] for name in ("window", "strides", "dilations")]
    if found != [1, 1, 1] or call.attributes["pads"][axis] or call.attributes["pads"][axis + rank]:
        raise Mixed("windows go over rows")
    return _same(axis, call)


def _reduced(call: Call, axes: list[int] | None, keepdims: int) -> list[int | None]:
    call.only(0)
    axis, rank = call.axis(0), len(call.shape(0))
    assert axis is not None
    gone = range(rank) if axes is None else [a % rank for a in axes]
    if axis in gone:
        raise Mixed(f"{call.name} goes over the axis of the rows")
    return _same(axis if keepdims else axis - sum(a < axis for a in gone), call)


def _reduce(call: Call) -> list[int | None]:
    axes = call.ints(1)
    if not axes:
        axes = [] if call.attributes.get("noop_with_empty_axes") else None
    return _reduced(call, axes, call.attributes["keepdims"])


def _along(call: Call) -> list[int | None]:
    """ArgMax and its like: one axis, which may go."""
    return _reduced(call, [call.attributes["axis"]], call.attributes.get("keepdims", 1))


def _not_along(call: Call, axis: int) -> list[int | None]:
    """All inputs with rows have them along one axis, which is not the one worked on."""
    places = {a for a in call.axes if a is not None}
    if len(places) != 1:
        raise Mixed(f"inputs of {call.name} have their rows along different axes")
    (place,) = places
    if axis % len(call.outputs[0].shape) == place:
        raise Mixed(f"{call.name} goes along the axis of the rows")
    return _same(place, call)


def _cumulative(call: Call) -> list[int | None]:
    axis = call.ints(1)
    assert axis is not None
    return _not_along(call, axis[0])


def _concat(call: Call) -> list[int | None]:
    if any(axis is None for axis in call.axes):
        raise Mixed("Concat of rows with something that has none")
    return _not_along(call, call.attributes["axis"])


def _everywhere(call: Call) -> list[int | None]:
    if any(axis is None for axis, value in zip(call.axes, call.inputs, strict=True) if value is not None):
        raise Mixed(f"{call.name} of rows with something that has none")
    return _not_along(call, call.attributes["axis"])


def _reshape(call: Call) -> list[int | None]:
    """Rows stay outermost of what they hold: the sizes before them have the same product as before."""
    call.only(0)
    axis, shape, made = call.axis(0), call.shape(0), call.outputs[0].shape
    before: Any = 1
    for dim in shape[:axis]:
        before = before * dim if dim is not None else None
    so_far: Any = 1
    for i, dim in enumerate(made):
        if holds_rows(dim):
            if so_far == before and before is not None:
                return [i]
            break
        so_far = None if dim is None or so_far is None else so_far * dim
    raise Mixed(f"{call.name} from {shape} to {made} does not keep rows together")


def _transpose(call: Call) -> list[int | None]:
    rank = len(call.shape(0))
    perm = call.attributes.get("perm") or list(range(rank))[::-1]
    return [[p % rank for p in perm].index(call.axis(0))]


def _slice(call: Call) -> list[int | None]:
    call.only(0)
    axis, rank = call.axis(0), len(call.shape(0))
    starts, ends = call.ints(1), call.ints(2)
    assert starts is not None
    assert ends is not None
    axes = call.ints(3) or list(range(len(starts)))
    steps = call.ints(4) or [1] * len(starts)
    for start, end, where, step in zip(starts, ends, axes, steps, strict=True):
        whole = start == 0 and step == 1 and (end == call.shape(0)[where] or (_plain(end) and end >= _EVERYTHING))
        if where % rank == axis and not whole:
            raise Mixed("Slice takes some of the rows")
        if where % rank != axis:
            _fixed(call, (start, end))
    return _same(axis, call)


def _plain(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, Dim)


def _split(call: Call) -> list[int | None]:
    call.only(0)
    _fixed(call, call.ints(1) or [])
    return _not_along(call, call.attributes["axis"])


def _gather(call: Call) -> list[int | None]:
    rank = len(call.shape(0))
    axis = call.attributes["axis"] % rank
    data, indices = call.axis(0), call.axis(1)
    if data is not None and indices is not None:
        raise Mixed("Gather of rows by rows")
    if indices is not None:
        return [axis + indices]
    assert data is not None
    if data == axis:
        raise Mixed("Gather takes some of the rows")
    return [data if data < axis else data + len(call.shape(1)) - 1]


def _pad(call: Call) -> list[int | None]:
    call.only(0)
    axis, rank = call.axis(0), len(call.shape(0))
    pads = call.ints(1) or []
    _fixed(call, pads)
    axes = call.ints(3) or list(range(rank))
    for i, where in enumerate(axes):
        if where % rank == axis and (pads[i], pads[i + len(axes)]) != (0, 0):
            raise Mixed("Pad adds rows")
    return _same(axis, call)


def _expand(call: Call) -> list[int | None]:
    made, axis = call.outputs[0].shape, call.axis(0)
    if axis is not None:
        place = axis + len(made) - len(call.shape(0))
        if made[place] != call.shape(0)[axis]:
            raise Mixed("Expand repeats rows")
        return [place]
    return filled(call)


def filled(call: Call) -> list[int | None]:
    """Sizes alone have rows: what is made is the same for each."""
    made = call.outputs[0].shape
    found = [i for i, dim in enumerate(made) if mentions_rows(dim)]
    if len(found) != 1 or not holds_rows(made[found[0]]):
        raise Mixed(f"{call.name} makes {made}, where rows are not one axis")
    return [found[0]]


def _tile(call: Call) -> list[int | None]:
    repeats = call.ints(1)
    axis = call.axis(0)
    if axis is None or repeats is None or repeats[axis] != 1:
        raise Mixed("Tile repeats rows")
    _fixed(call, repeats)
    return [axis]


def _matrices(call: Call) -> list[int | None]:
    """Work on the last two axes."""
    call.only(0)
    axis = call.axis(0)
    assert axis is not None
    if axis >= len(call.shape(0)) - 2:
        raise Mixed(f"{call.name} goes along the axis of the rows")
    return _same(axis, call)


def _einsum(call: Call) -> list[int | None]:
    terms, arrow, result = call.attributes["equation"].replace(" ", "").partition("->")
    if not arrow or "." in terms:
        raise Mixed("Einsum without an explicit result")
    letters = {term[a] for term, a in zip(terms.split(","), call.axes, strict=True) if a is not None}
    bare = [term for term, a in zip(terms.split(","), call.axes, strict=True) if a is None]
    if len(letters) != 1 or not letters <= set(result) or any(letters & set(term) for term in bare):
        raise Mixed(f"Einsum {call.attributes['equation']!r} mixes rows")
    return [result.index(letters.pop())]


def _recurrent(call: Call) -> list[int | None]:
    """LSTM, GRU, RNN: [steps, rows, size], states [directions, rows, size]; with layout 1 rows are first."""
    first = call.attributes.get("layout", 0) == 1
    expected = {0: 0 if first else 1, 4: 0, 5: 0 if first else 1, 6: 0 if first else 1}
    for i, axis in enumerate(call.axes):
        if axis is not None and expected.get(i) != axis:
            raise Mixed(f"input {i} of {call.name} has rows along axis {axis}")
        if axis is None and i in expected and call.inputs[i] is not None:
            raise Mixed(f"input {i} of {call.name} has no rows")
    state = 0 if first else 1
    made: list[int | None] = [0 if first else 2, state, state]
    return made[: len(call.outputs)]


_RULES: dict[Op, Callable[[Call], list[int | None]]] = {
    **dict.fromkeys((Conv, ConvTranspose, MaxPoolValues), _first),
    **dict.fromkeys((ReduceMax, ReduceMean, ReduceMin, ReduceProd, ReduceSum), _reduce),
    **dict.fromkeys((ArgMax, ArgMin), _along),
    **dict.fromkeys((CumProd, CumSum), _cumulative),
    **dict.fromkeys((GatherElements, ScatterElements), _everywhere),
    **dict.fromkeys((Reshape, Squeeze, Unsqueeze), _reshape),
    **dict.fromkeys((Det, Trilu, Inverse), _matrices),
    **dict.fromkeys((LSTM, GRU, RNN), _recurrent),
    Concat: _concat,
    ConstantOfShape: filled,
    Einsum: _einsum,
    Expand: _expand,
    Gather: _gather,
    MatMul: _matmul,
    Pad: _pad,
    Slice: _slice,
    Split: _split,
    Tile: _tile,
    TopK: _split,
    Transpose: _transpose,
    ReduceWindow: _windows,
}


def rule_of(op: Op) -> Callable[[Call], list[int | None]] | None:
    """Where the rows are in the results of an operator; None where nothing is known of it."""
    if op.elementwise and not op.composite:
        return elementwise
    return _RULES.get(op)
