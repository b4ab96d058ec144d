"""Rotary embeddings that exporters write out: halves, or neighbours, turned by angles, as one node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame_rt.ops.pyflame.attention import FusedRotary
from pyflame_rt.opt.rule import Match, NoMatch, rule

if TYPE_CHECKING:
    from collections.abc import Callable


def _added(turned: Callable[..., Any]) -> Callable[..., Any]:
    def picture(
        op: Any, x: Any, cos: Any, sin: Any, a: Any, b: Any, c: Any, t: Any, d: Any, e: Any, f: Any, u: Any
    ) -> Any:
        return op.Add(op.Mul(x, cos), op.Mul(turned(op, x, (a, b, c, t), (d, e, f, u)), sin))

    return picture


def _sliced(op: Any, x: Any, second: Any, first: Any) -> Any:
    """As torch and Hugging Face have it: two slices of the last axis change places."""
    return op.Concat(op.Neg(op.Slice(x, *second, label="second")), op.Slice(x, *first, label="first"), label="join")


def _split(op: Any, x: Any, second: Any, _: Any) -> Any:
    parts = op.Split(x, second[0])
    return op.Concat(op.Neg(op.output(parts, 1)), parts, label="join")


@rule(_added(_sliced), _added(_split), switch="fuse_attention", own=True, turn=0)
def rotary(m: Match, x: str, cos: str, sin: str) -> str | NoMatch:
    """Two halves of the last axis, turned by angles."""
    rank, size = m.editor.rank(x), (m.shape(x) or (None,))[-1]
    if rank is None or not isinstance(size, int) or size % 2:
        return NoMatch("the size of the last axis is not known, or odd")
    if int(m.attr("join", "axis", 0)) % rank != rank - 1:
        return NoMatch("the halves are of another axis")
    if "split" in m.labels:
        halves = _halved(m, rank, size)
    else:
        second, first = (_bounds(m, label, rank, size) for label in ("second", "first"))
        halves = second == (size // 2, size) and first == (0, size // 2)
    return m.emit(FusedRotary, [x, cos, sin]) if halves else NoMatch("the parts are no halves")


def _halved(m: Match, rank: int, size: int) -> bool:
    """Whether a Split makes two halves of the last axis."""
    node = m.node("split")
    half, given = size // 2, node.inputs[1] if len(node.inputs) > 1 else ""
    sizes = m.editor.ints(given) if given else [half] * len(node.outputs)
    return int(node.get_attr("axis", 0)) % rank == rank - 1 and sizes == [half, half]


def _bounds(m: Match, label: str, rank: int, size: int, step: int = 1) -> tuple[int, int] | None:
    """Where a slice of the last axis begins and ends; None for slices of others, or in other steps."""
    node = m.node(label)
    given = [m.editor.ints(name) for name in node.inputs[1:]]
    if any(ints is None or len(ints) != 1 for ints in given) or len(given) < 3:
        return None
    start, end, axis, *by = (ints[0] for ints in given if ints is not None)
    if axis % rank != rank - 1 or not -rank <= axis < rank or (by or [1]) != [step]:
        return None
    return slice(start, end).indices(size)[:2]


def _neighbours(op: Any, x: Any, second: Any, first: Any) -> Any:
    """As GPT-J has it: every second number changes places with the one before."""
    odd, even = op.Slice(x, *second, label="second"), op.Slice(x, *first, label="first")
    one, other = op.Unsqueeze(op.Neg(odd), -1, label="one"), op.Unsqueeze(even, -1, label="other")
    return op.Concat(one, other, label="join")


@rule(
    lambda op, x, cos, sin, a, b, c, d, e, f, t, u, s: op.Add(
        op.Mul(x, cos), op.Mul(op.Reshape(_neighbours(op, x, (a, b, c, t), (d, e, f, u)), s, label="flat"), sin)
    ),
    switch="fuse_attention",
    own=True,
    turn=0,
)
def rotary_neighbours(m: Match, x: str, cos: str, sin: str) -> str | NoMatch:
    """Neighbours on the last axis, turned by angles."""
    shape, flat = m.shape(x), m.shape(m.node("flat").outputs[0])
    if shape is None or shape != flat or not isinstance(shape[-1], int) or shape[-1] % 2:
        return NoMatch("the size of the last axis is not known, or odd")
    rank, size = len(shape), shape[-1]
    if int(m.attr("join", "axis", 0)) not in (-1, rank):
        return NoMatch("the parts are not put side by side")
    second, first = (_bounds(m, label, rank, size, 2) for label in ("second", "first"))
    if second != (1, size) or first is None or first[0] != 0 or first[1] < size - 1:
        return NoMatch("the parts are not every second number")
    return m.emit(FusedRotary, [x, cos, sin], {"interleaved": 1})
