"""Numbers that were quantized and are read again in the same expression stay floats: whole ones, within limits."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pyflame_rt.backends.cpu.ir.kernel_program import Expr, apply, walk

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["kept_whole"]

_RANGES = {"int8": (-128.0, 127.0), "uint8": (0.0, 255.0)}
_BOUNDS = {"max": max, "min": min}
# Whole numbers up to here are floats, and so are their sums.
_EXACT = 2.0**23


def kept_whole(roots: Sequence[Expr]) -> tuple[Expr, ...]:
    """The expressions, where a float that is a whole number of 8 bits is not made a byte and a float again.

    Example:
        >>> from pyflame_rt.backends.cpu.ir.kernel_program import cast, load, structure_of
        >>> whole = apply("min", apply("max", apply("add", apply("round", load(0, "float32")), 3.0), 0.0), 255.0)
        >>> byte = cast(whole, "uint8")
        >>> again = cast(apply("sub", cast(byte, "int32"), 3), "float32")
        >>> structure_of(kept_whole([again])[0])
        'load/float32/0();round/float32/None(0);const/float32/-3.0();max/float32/None(1,2);const/float32/252.0();min/float32/None(3,4)'
    """
    made: dict[int, Expr] = {}
    for node in walk(roots):
        args = tuple(made[id(a)] for a in node.args)
        same = all(a is b for a, b in zip(args, node.args, strict=True))
        new = node if same else Expr(node.op, node.dtype, args, node.value)
        made[id(node)] = _float_of_byte(new) or new
    found = tuple(made[id(root)] for root in roots)
    return (_rounded_once(found[0]),) if len(found) == 1 else found  # others may need the float, too


def _rounded_once(root: Expr) -> Expr:
    """A byte made of a rounded float within limits: limits first, then one instruction rounds and makes an integer.

    Example:
        >>> from pyflame_rt.backends.cpu.ir.kernel_program import cast, load, structure_of
        >>> whole = apply("min", apply("max", apply("round", load(0, "float32")), 0.0), 255.0)
        >>> structure_of(_rounded_once(cast(whole, "uint8")))
        "load/float32/0();const/float32/0.0();max/float32/None(0,1);const/float32/255.0();min/float32/None(2,3);nearest/int32/None(4);cast/uint8/'uint8'(5)"
    """
    if root.op != "cast" or root.dtype not in _RANGES or root.args[0].dtype != "float32":
        return root
    limits, inside = _limits(root.args[0]), _unrounded(root.args[0])
    low, high = _RANGES[root.dtype]
    if inside is None or limits is None or limits[0] < low or limits[1] > high:
        return root
    return Expr("cast", root.dtype, (apply("nearest", inside),), root.value)


def _unrounded(x: Expr) -> Expr | None:
    """The same limits of what was rounded: whole ones may come first. None where anything else is done to it."""
    if x.op == "round":
        return x.args[0]
    inner = _unrounded(x.args[0]) if x.op in _BOUNDS and x.args[1].op == "const" else None
    return None if inner is None else Expr(x.op, x.dtype, (inner, x.args[1]), x.value)


def _float_of_byte(node: Expr) -> Expr | None:
    """A whole float for `float(int32(byte(whole)) - number)`; None of other expressions."""
    if node.op != "cast" or node.value != "float32" or node.args[0].dtype != "int32":
        return None
    wide, number = node.args[0], 0.0
    if wide.op == "sub" and wide.args[1].op == "const":
        number, wide = float(wide.args[1].value or 0), wide.args[0]
    if wide.op != "cast" or abs(number) > _EXACT:
        return None
    byte = wide.args[0]
    if byte.op != "cast" or byte.dtype not in _RANGES or byte.args[0].dtype != "float32":
        return None
    low, high = _RANGES[byte.dtype]
    limits = _limits(byte.args[0])
    if limits is None or limits[0] < low or limits[1] > high:
        return None
    return _less(byte.args[0], number)


def _limits(x: Expr) -> tuple[float, float] | None:
    """What a float lies between if it is a whole number; None if it may be another."""
    if x.op == "round":
        return -math.inf, math.inf
    if len(x.args) != 2 or x.args[1].op != "const":
        return None
    value, inner = float(x.args[1].value or 0), _limits(x.args[0])
    if inner is None or not value.is_integer():
        return None
    if x.op in ("add", "sub"):
        moved = value if x.op == "add" else -value
        return inner[0] + moved, inner[1] + moved
    if x.op in _BOUNDS:
        pick = _BOUNDS[x.op]
        return pick(inner[0], value), pick(inner[1], value)
    return None


def _less(x: Expr, number: float) -> Expr:
    """A whole number less another, moved inwards as far as limits and sums go."""
    if not number:
        return x
    if x.op in ("add", "sub", *_BOUNDS) and len(x.args) == 2 and x.args[1].op == "const":
        value = float(x.args[1].value or 0)
        if x.op in _BOUNDS:
            return apply(x.op, _less(x.args[0], number), value - number)
        rest = (value if x.op == "add" else -value) - number
        return apply("add", x.args[0], rest) if rest else x.args[0]
    return apply("sub", x, number)
