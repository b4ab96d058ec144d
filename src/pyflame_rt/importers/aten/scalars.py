"""Arithmetic on Python numbers: at once where they are known, symbolic for sizes, as operators for the rest."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any

from pyflame_rt.graph import Dim, DType
from pyflame_rt.graph.errors import InputError, UndeterminedError
from pyflame_rt.importers.aten.table import find_lowering
from pyflame_rt.importers.aten.values import Num, is_static, number, number_kind
from pyflame_rt.ops.onnx import arithmetic, logic
from pyflame_rt.ops.onnx.math import Ceil, Floor

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyflame_rt.ops.core.value import Value

__all__ = ["SCALARS", "convert", "is_number"]

_DTYPES = {bool: DType.Bool, int: DType.Int64, float: DType.Float32}
_MAX_BITS = 256  # of whole numbers; torch's have 64


def is_number(x: object) -> bool:
    """Whether it is a number, known or not."""
    return isinstance(x, (bool, int, float, Dim, Num))


def _bounded(x: Any) -> Any:
    if type(x) is int and x.bit_length() > _MAX_BITS:
        raise InputError("a whole number of more than 64 bits")
    return x


def _emitted(name: str, operands: tuple[Any, ...], kind: type) -> Num:
    """The aten operator of that name on values."""
    widest = float if float in map(number_kind, operands) else int
    lowering = find_lowering(name)
    if lowering is None:
        raise UndeterminedError(f"{name} of numbers that are only known when running")
    made = lowering(*[number(x, _DTYPES[widest]) for x in operands])
    return Num(number(made, _DTYPES[kind]), kind)


def _joint(operands: tuple[Any, ...]) -> type:
    return float if float in map(number_kind, operands) else int


def _arithmetic(name: str, run: Callable[..., Any], kind: type | None = None) -> Callable[..., Any]:
    def compute(*operands: Any) -> Any:
        if all(is_static(x) for x in operands):
            return _bounded(run(*operands))
        if not any(isinstance(x, (Num, float)) for x in operands):
            made = run(*operands)
            if made is not NotImplemented and not (isinstance(made, Dim) and "floor(" in str(made)):
                return made
        return _emitted(name, operands, kind or _joint(operands))

    return compute


def _comparison(name: str, run: Callable[[Any, Any], bool]) -> Callable[..., Any]:
    def compare(a: Any, b: Any) -> Any:
        if not (is_number(a) and is_number(b)):
            return _compared_lists(name, a, b)
        if is_static(a) and is_static(b):
            return run(a, b)
        if isinstance(a, Dim) and isinstance(b, Dim) and a == b:
            return name in ("eq", "le", "ge")
        return _emitted(name, (a, b), bool)

    return compare


def _compared_lists(name: str, a: Any, b: Any) -> Any:
    if name not in ("eq", "ne"):
        raise InputError(f"{name} of {type(a).__name__} and {type(b).__name__}")
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        if len(a) != len(b):
            return name == "ne"
        return _all_equal(a, b, name)
    return (a == b) == (name == "eq")


def _all_equal(a: Any, b: Any, name: str) -> Any:
    found: Any = True
    for x, y in zip(a, b, strict=True):
        found = _and(found, SCALARS["eq"](x, y))
    return found if name == "eq" else _not(found)


def _bits(run: Callable[[Any, Any], Any], of_bools: Callable[..., Value], of_ints: Callable[..., Value],
          absorbing: bool | None, neutral: bool) -> Callable[[Any, Any], Any]:  # fmt: skip
    """``&``, ``|`` or ``^``: of two truth values, or of the bits of whole numbers."""

    def compute(a: Any, b: Any) -> Any:
        if is_static(a) and is_static(b):
            return run(a, b)
        if number_kind(a) is not bool or number_kind(b) is not bool:
            return Num(of_ints(number(a, DType.Int64), number(b, DType.Int64)), int)
        known, other = (a, b) if is_static(a) else (b, a)
        if is_static(known) and known is absorbing:
            return absorbing
        if is_static(known) and known is neutral:
            return other
        return Num(of_bools(number(a, DType.Bool), number(b, DType.Bool)), bool)

    return compute


_and = _bits(operator.and_, logic.And, logic.BitwiseAnd, False, True)


def _not(a: Any) -> Any:
    return not a if is_static(a) else Num(logic.Not(number(a, DType.Bool)), bool)


def _chosen(name: str, run: Callable[..., Any]) -> Callable[..., Any]:
    """Min and max, of two numbers or of a list."""

    def choose(a: Any, b: Any = None) -> Any:
        items = list(a) if b is None else [a, b]
        if all(is_static(x) for x in items):
            return run(items)
        kind = _joint(tuple(items))
        op: Any = arithmetic.Max if name == "max" else arithmetic.Min
        return Num(op(*[number(x, _DTYPES[kind]) for x in items]), kind)

    return choose


def _rounded(run: Callable[[Any], Any], op: Callable[[Value], Value]) -> Callable[[Any], Any]:
    def rounded(x: Any) -> Any:
        if is_static(x):
            return run(x)
        if number_kind(x) is int:
            return x
        return Num(number(op(number(x)), DType.Int64), int)

    return rounded


def _unary(name: str, run: Callable[[Any], Any], kind: type | None = float) -> Callable[[Any], Any]:
    def compute(x: Any) -> Any:
        return run(x) if is_static(x) else _emitted(name, (x,), kind or number_kind(x))

    return compute


def convert(x: Any, kind: type) -> Any:
    """``int(x)``, ``float(x)`` or ``bool(x)`` of a number."""
    if is_static(x) or isinstance(x, str):
        return kind(x)
    if isinstance(x, Dim) and kind is int:
        return x
    return Num(number(x, _DTYPES[kind]), kind)


def _power(a: Any, b: Any) -> Any:
    if is_static(a) and is_static(b):
        if abs(b) > 1024:
            raise InputError(f"{a} to the power of {b}")
        return float(a) ** b
    return _emitted("pow", (float(a) if is_static(a) else a, b), float)


def _sub(a: Any, b: Any) -> Any:
    return operator.sub(a, b)


def _range_length(low: Any, high: Any, step: Any) -> Any:
    if all(is_static(v) for v in (low, high, step)):
        return len(range(low, high, step))
    if not is_static(step) or step <= 0:
        raise UndeterminedError("a range with a step that is only known when running, or negative")
    room = SCALARS["floordiv"](SCALARS["add"](SCALARS["sub"](high, low), step - 1), step)
    return SCALARS["max"](room, 0)


def _derive_index(turn: Any, start: Any, step: Any) -> Any:
    return SCALARS["add"](start, SCALARS["mul"](turn, step))


SCALARS: dict[str, Callable[..., Any]] = {
    "__range_length": _range_length,
    "__derive_index": _derive_index,
    "add": _arithmetic("add", operator.add),
    "sub": _arithmetic("sub", _sub),
    "mul": _arithmetic("mul", operator.mul),
    "div": lambda a, b: a / b if is_static(a) and is_static(b) else _emitted("div", (a, b), float),
    "truediv": lambda a, b: a / b if is_static(a) and is_static(b) else _emitted("div", (a, b), float),
    "floordiv": _arithmetic("floor_divide", operator.floordiv),
    "floor_divide": _arithmetic("floor_divide", operator.floordiv),
    "remainder": _arithmetic("remainder", operator.mod),
    "mod": _arithmetic("remainder", operator.mod),
    "fmod": _arithmetic("fmod", math.fmod),
    "neg": lambda x: -x if is_static(x) or isinstance(x, Dim) else _emitted("neg", (x,), number_kind(x)),
    "pow": _power,
    "eq": _comparison("eq", operator.eq),
    "ne": _comparison("ne", operator.ne),
    "lt": _comparison("lt", operator.lt),
    "le": _comparison("le", operator.le),
    "gt": _comparison("gt", operator.gt),
    "ge": _comparison("ge", operator.ge),
    "__and__": _and,
    "__or__": _bits(operator.or_, logic.Or, logic.BitwiseOr, True, False),
    "__xor__": _bits(operator.xor, logic.Xor, logic.BitwiseXor, None, False),
    "__not__": _not,
    "max": _chosen("max", max),
    "min": _chosen("min", min),
    "ceil": _rounded(math.ceil, Ceil),
    "floor": _rounded(math.floor, Floor),
    "abs": _unary("abs", abs, None),
    "round": _unary("round", round, float),
    "sqrt": _unary("sqrt", math.sqrt),
    "exp": _unary("exp", math.exp),
    "log": _unary("log", math.log),
    "log2": _unary("log2", math.log2),
    "log10": _unary("log10", math.log10),
    "sin": _unary("sin", math.sin),
    "cos": _unary("cos", math.cos),
    "tanh": _unary("tanh", math.tanh),
}
