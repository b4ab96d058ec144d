"""Comparison, choice, logic on truth values and on bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph import Dim, DType, TensorType
from pyflame_rt.graph.errors import DTypeMismatchError, InputError, UndeterminedError
from pyflame_rt.ops.core.registry import primitive
from pyflame_rt.ops.core.type_rules import broadcast, broadcast_shapes, same
from pyflame_rt.ops.core.upgrade import upgrade
from pyflame_rt.ops.onnx.arithmetic import align_legacy_axis, unbroadcast

if TYPE_CHECKING:
    from pyflame_rt.ops.core.value import Value


def _compared(a: Value, b: Value, /) -> TensorType:
    return TensorType(DType.Bool, broadcast(a, b).shape)


def _truth(*inputs: Value) -> TensorType:
    wrong = [v.dtype.label for v in inputs if v.dtype is not DType.Bool]
    if wrong:
        raise DTypeMismatchError(f"logic needs bool tensors, got {wrong[0]}")
    return broadcast(*inputs)


def _bits(*inputs: Value, **_: Any) -> TensorType:
    wrong = [v.dtype.label for v in inputs if not v.dtype.is_integer]
    if wrong:
        raise DTypeMismatchError(f"operations on bits need integers, got {wrong[0]}")
    return broadcast(*inputs)


# ------------------------------------------------------------------ comparison


@primitive(since=19, infer=_compared, shape_math=True, types="T T > bool", scalar="eq", complex=True)
def Equal(ops: Any, A: Any, B: Any, /) -> Any:
    """Where equal; strings too."""
    if "O" in (ops.dtype(A).kind, ops.dtype(B).kind):
        _refuse_open_sizes(A, B)
    return ops.equal(A, B)


def _refuse_open_sizes(a: Any, b: Any) -> None:
    """A symbolic size may turn out equal to any number that is not negative, or to another."""
    open_sizes = [v for x in (a, b) for v in x.ravel().tolist() if isinstance(v, Dim) and not isinstance(v, int)]
    if not open_sizes:
        return
    for x, y in np.broadcast(a, b):
        numbers = [v for v in (x, y) if not isinstance(v, Dim)]
        if len(numbers) < 2 and x != y and not any(n < 0 for n in numbers):
            raise UndeterminedError(f"whether {x} equals {y} is only known when running")


@primitive(since=13, infer=_compared, shape_math=True, types="T T > bool", scalar="lt")
def Less(ops: Any, A: Any, B: Any, /) -> Any:
    """Where ``A < B``."""
    return ops.less(A, B)


@primitive(since=16, infer=_compared, shape_math=True, types="T T > bool", scalar="le")
def LessOrEqual(ops: Any, A: Any, B: Any, /) -> Any:
    """Where ``A <= B``."""
    return ops.less_equal(A, B)


@primitive(since=13, infer=_compared, shape_math=True, types="T T > bool", scalar="gt")
def Greater(ops: Any, A: Any, B: Any, /) -> Any:
    """Where ``A > B``."""
    return ops.greater(A, B)


@primitive(since=16, infer=_compared, shape_math=True, types="T T > bool", scalar="ge")
def GreaterOrEqual(ops: Any, A: Any, B: Any, /) -> Any:
    """Where ``A >= B``."""
    return ops.greater_equal(A, B)


# ------------------------------------------------------------------ choice


def _where_type(condition: Value, x: Value, y: Value, /) -> TensorType:
    if condition.dtype is not DType.Bool:
        raise DTypeMismatchError(f"the condition must be bool, got {condition.dtype.label}")
    branches = broadcast(x, y)
    return TensorType(x.dtype, broadcast_shapes(condition.tensor_type.shape, branches.shape))


def _where_vjp(g: Value, y: Value, condition: Value, a: Value, b: Value) -> tuple[None, Value, Value]:
    return (
        None,
        unbroadcast(Where(condition, g, 0.0), a),
        unbroadcast(Where(condition, 0.0, g), b),
    )


@primitive(
    since=16, infer=_where_type, shape_math=True, vjp=_where_vjp, types="bool T T > T", scalar="where", complex=True
)
def Where(ops: Any, condition: Any, X: Any, Y: Any, /) -> Any:
    """``X`` where the condition holds, else ``Y``."""
    return ops.where(condition, X, Y)


# ------------------------------------------------------------------ truth


@primitive(since=7, infer=_truth, shape_math=True, types="bool bool > bool", scalar="and")
def And(ops: Any, A: Any, B: Any, /) -> Any:
    """Where both are true."""
    return ops.logical_and(A, B)


@primitive(since=7, infer=_truth, shape_math=True, types="bool bool > bool", scalar="or")
def Or(ops: Any, A: Any, B: Any, /) -> Any:
    """Where one is true."""
    return ops.logical_or(A, B)


@primitive(since=7, infer=_truth, shape_math=True, types="bool bool > bool", scalar="xor")
def Xor(ops: Any, A: Any, B: Any, /) -> Any:
    """Where exactly one is true."""
    return ops.logical_xor(A, B)


@primitive(since=1, infer=_truth, shape_math=True, types="bool > bool", scalar="not")
def Not(ops: Any, X: Any, /) -> Any:
    """Where false."""
    return ops.logical_not(X)


# ------------------------------------------------------------------ bits


@primitive(since=18, infer=_bits, types="T T > T", scalar="bitand")
def BitwiseAnd(ops: Any, A: Any, B: Any, /) -> Any:
    """Bits set in both."""
    return ops.bitwise_and(A, B)


@primitive(since=18, infer=_bits, types="T T > T", scalar="bitor")
def BitwiseOr(ops: Any, A: Any, B: Any, /) -> Any:
    """Bits set in one."""
    return ops.bitwise_or(A, B)


@primitive(since=18, infer=_bits, types="T T > T", scalar="bitxor")
def BitwiseXor(ops: Any, A: Any, B: Any, /) -> Any:
    """Bits set in exactly one."""
    return ops.bitwise_xor(A, B)


@primitive(since=18, infer=same, types="T > T", scalar="bitnot")
def BitwiseNot(ops: Any, X: Any, /) -> Any:
    """Every bit inverted."""
    return ops.bitwise_not(X)


@primitive(since=28, infer=_bits, types="T T > T", scalar="shift")
def BitShift(ops: Any, X: Any, Y: Any, /, *, direction: str) -> Any:
    """Bits moved up (LEFT) or down (RIGHT), the sign kept; all of them when ``Y`` is out of range."""
    if direction not in ("LEFT", "RIGHT"):
        raise InputError(f"direction must be LEFT or RIGHT, got {direction!r}")
    dtype = DType.of(ops.dtype(X))
    width = dtype.itemsize * 8
    out = ops.greater_equal(Y, width)
    if dtype.is_signed:
        out = ops.logical_or(out, ops.less(Y, 0))
    if direction == "RIGHT" and dtype.is_signed:
        # The last place shows the sign alone, which is what moving further gives.
        return ops.right_shift(X, ops.where(out, ops.full_like(Y, width - 1), Y))
    move = ops.left_shift if direction == "LEFT" else ops.right_shift
    moved = move(X, ops.where(out, ops.zeros_like(Y), Y))
    return ops.where(out, ops.zeros_like(moved), moved)


upgrade(["And", "Or", "Xor", "Equal", "Less", "Greater"], to=7)(align_legacy_axis)
