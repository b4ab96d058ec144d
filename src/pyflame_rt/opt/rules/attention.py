"""Attention that exporters write out: products, scaling, mask, softmax, shared heads, as one node."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pyflame_rt.graph import DType
from pyflame_rt.ops.onnx.arithmetic import Div, Mul
from pyflame_rt.ops.onnx.shape import Transpose
from pyflame_rt.ops.pyflame.attention import FusedAttention
from pyflame_rt.opt.rule import Match, NoMatch, rule

if TYPE_CHECKING:
    from collections.abc import Callable

_OWN = "pyflame"
_FUSED = FusedAttention.full_name


def _picture(scaled: str, *, masked: bool, guarded: bool) -> Callable[..., Any]:
    """Attention written one of the ways: how scores are scaled, with a mask, with shares made numbers."""

    def picture(op: Any, q: Any, k: Any, v: Any, c: Any, mask: Any) -> Any:
        scores = op.MatMul(q, k, label="product")
        if scaled:
            scores = getattr(op, scaled)(scores, c, label="scaling")
        shares = op.Softmax(op.Add(scores, mask, label="masking") if masked else scores)
        if guarded:
            shares = op.Where(op.IsNaN(shares), 0.0, shares)
        return op.MatMul(shares, v, label="last")

    return picture


_WAYS = [
    _picture(scaled, masked=masked, guarded=guarded)
    for scaled in (Mul.name, Div.name, "")
    for masked in (True, False)
    for guarded in (True, False)
]


@rule(*_WAYS, switch="fuse_attention", bound=256.0, own=True, turn=0)
def attention(m: Match, q: str, k: str, v: str, c: str, mask: str) -> str | NoMatch:
    """Shares of values by softmax of products of queries and keys, scaled and masked."""
    reason = _unfit(m, q, k, v)
    if reason:
        return NoMatch(reason)
    scale = _scale(m, c)
    if scale is None:
        return NoMatch("the scale is not one constant number")
    if m.attr("softmax", "axis", -1) not in (-1, 3):
        return NoMatch("shares are not taken along the keys")
    keys = m.emit(Transpose, [k], {"perm": [0, 1, 3, 2]})
    given = {"scale": scale, "guarded": int("isnan" in m.labels)}
    return m.emit(FusedAttention, [q, keys, v, mask], given)


def _unfit(m: Match, q: str, k: str, v: str) -> str:
    """Why three values are no queries, keys (turned) and values of attention; empty when they are."""
    shapes = [m.shape(name) for name in (q, k, v)]
    if any(shape is None or len(shape) != 4 for shape in shapes):
        return "queries, keys and values are not known to have four axes"
    if any(m.dtype(name) is not DType.Float32 for name in (q, k, v)):
        return "the elements are not float32"
    heads = {shape[1] for shape in shapes if shape is not None}
    return "" if len(heads) == 1 and None not in heads else "the numbers of heads differ, or are not known"


def _scale(m: Match, c: str) -> float | None:
    """What scores are multiplied by; None where that is not one number."""
    if "scaling" not in m.labels:
        return 1.0
    number, rank = m.scalar(c), m.editor.rank(c)
    divides = m.node("scaling").op_type == Div.name
    if number is None or rank is None or rank > 4 or not math.isfinite(number) or (divides and not number):
        return None
    if divides and m.node("scaling").inputs[1] != c:
        return None
    return 1.0 / number if divides else float(number)


def _attend(op: Any, q: Any, k: Any, v: Any, mask: Any) -> Any:
    return op.any_of(_FUSED)(q, k, v, mask, label="attention")


@rule(
    lambda op, q, k, v, mask, c: _attend(op, op.Mul(q, c, label="scaling"), k, v, mask),
    lambda op, q, k, v, mask, c: _attend(op, q, op.Mul(k, c, label="scaling"), v, mask),
    lambda op, q, k, v, mask, c: _attend(op, q, op.Transpose(op.Mul(k, c, label="scaling"), label="turned"), v, mask),
    lambda op, q, k, v, mask, c: _attend(op, op.Div(q, c, label="scaling"), k, v, mask),
    switch="fuse_attention",
    bound=256.0,
    own=True,
)
def attention_scale(m: Match, q: str, k: str, v: str, mask: str, c: str) -> str | NoMatch:
    """Queries or keys that are scaled before attention are scaled in it."""
    scale = _scale(m, c)
    if scale is None:
        return NoMatch("the scale is not one constant number")
    node = m.node("attention")
    if "turned" in m.labels:
        k = m.emit(Transpose, [k], m.node("turned").attributes)
    given = {**node.attributes, "scale": scale * float(node.get_attr("scale", 1.0))}
    return m.emit(FusedAttention, [q, k, v, mask], given)


def _wide(op: Any, x: Any, a: Any, s: Any, t: Any, name: str) -> Any:
    return op.Reshape(op.Expand(op.Unsqueeze(x, a), s, label=f"{name}_wide"), t, label=f"{name}_flat")


@rule(
    lambda op, q, k, v, mask, a, s, t, b, u, w: _attend(
        op, q, _wide(op, k, a, s, t, "k"), _wide(op, v, b, u, w, "v"), mask
    ),
    switch="fuse_attention",
    own=True,
)
def attention_heads(m: Match, q: str, k: str, v: str, mask: str) -> str | NoMatch:
    """Heads of keys and values that are repeated for several heads of queries are shared."""
    for name, source in (("k", k), ("v", v)):
        before, wide = m.shape(source), m.shape(m.node(f"{name}_wide").outputs[0])
        after = m.shape(m.node(f"{name}_flat").outputs[0])
        if before is None or wide is None or after is None or len(before) != 4 or len(wide) != 5:
            return NoMatch("the shapes are not known")
        heads, times = before[1], wide[2]
        if not isinstance(heads, int) or not isinstance(times, int) or wide != (*before[:2], times, *before[2:]):
            return NoMatch("not every head is repeated as often, or that is not known")
        if after != (before[0], heads * times, *before[2:]):
            return NoMatch("heads are not repeated one after the other")
    return m.emit(FusedAttention, [q, k, v, mask], m.node("attention").attributes)
