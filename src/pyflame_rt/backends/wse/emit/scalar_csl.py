"""The scalar language in CSL: one rule for each of its functions.

A rule gets the names of its operands and gives an expression. Operands of type ``bool`` are truth values of the
language; in memory they are 0 and 1.
"""

from __future__ import annotations

import math
import struct
from dataclasses import field
from typing import TYPE_CHECKING, Any

from pyflame_rt.backends.wse.plan.kernels import INTEGERS, App, Lit, Ref
from pyflame_rt.graph.errors import UnsupportedOperatorError
from pyflame_rt.graph.records import dataclass
from pyflame_rt.ops.core.registry import find_op

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyflame_rt.backends.wse.plan.kernels import Expr, MapKernel

__all__ = ["RULES", "VECTOR", "Instruction", "function_of", "literal", "scalar_function", "vector_chain"]


@dataclass(frozen=True, slots=True)
class ScalarContext:
    """What a rule may ask: the type of its first operand, the result's type and the attributes."""

    dtype: str
    result: str
    attributes: Mapping[str, Any]

    def number(self, value: float) -> str:
        """A literal of the operands' type."""
        return literal(value, self.dtype)

    def special(self, name: str, *args: str) -> str:
        """A function of ``lib/special.csl``, which works in single precision."""
        if self.dtype == "f32":
            return f"special.{name}({', '.join(args)})"
        return f"@as({self.dtype}, special.{name}({', '.join(f'@as(f32, {a})' for a in args)}))"


RULES: dict[str, Callable[..., str]] = {}


def function_of(name: str) -> str:
    """The scalar function of an operator, by its full name; empty where it has none, or none that CSL has a rule for.

    >>> function_of("Add"), function_of("BitwiseAnd"), function_of("MatMul")
    ('add', '', '')
    """
    domain, _, plain = name.rpartition("::")
    op = find_op(plain, domain)
    return op.scalar if op is not None and op.scalar in RULES else ""


def emits(*names: str) -> Callable[[Callable[..., str]], Callable[..., str]]:
    """Declare the rule of functions."""

    def declare(rule: Callable[..., str]) -> Callable[..., str]:
        RULES.update(dict.fromkeys(names, rule))
        return rule

    return declare


def _infix(symbol: str) -> Callable[..., str]:
    return lambda _, a, b: f"{a} {symbol} {b}"


def _math(name: str) -> Callable[..., str]:
    return lambda _, a: f"math.{name}({a})"


def _special(name: str) -> Callable[..., str]:
    return lambda c, a: c.special(name, a)


_SIGNS = {
    "add": "+", "sub": "-", "mul": "*", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==",
    "and": "and", "or": "or", "xor": "!=",
}  # fmt: skip
_MATH = {
    "ceil": "ceil", "cos": "cos", "exp": "exp", "floor": "floor", "isnan": "isNaN", "log": "log", "sigmoid": "sig",
    "sin": "sin", "sqrt": "sqrt", "tanh": "tanh",
}  # fmt: skip
_SPECIALS = ("acos", "acosh", "asin", "asinh", "atan", "atanh", "cosh", "erf", "round", "sinh", "softplus")
RULES.update({word: _infix(sign) for word, sign in _SIGNS.items()})
RULES.update({word: _math(name) for word, name in _MATH.items()})
RULES.update({word: _special(word) for word in _SPECIALS})


@emits("div")
def _div(c: ScalarContext, a: str, b: str) -> str:
    # Beyond the end of a tensor there may be zeros.
    return f"if ({b} == 0) @as({c.dtype}, 0) else {a} / {b}" if c.dtype in INTEGERS else f"{a} / {b}"


@emits("abs")
def _abs(c: ScalarContext, a: str) -> str:
    return f"if ({a} < 0) -{a} else {a}" if c.dtype in INTEGERS else f"math.abs({a})"


@emits("sign")
def _sign(c: ScalarContext, a: str) -> str:
    if c.dtype not in INTEGERS:
        return f"if ({a} != {a}) {a} else math.sign({a})"
    one, none = c.number(1), c.number(0)
    return f"if ({a} > 0) {one} else (if ({a} < 0) -{one} else {none})"


@emits("not")
def _not(_: ScalarContext, a: str) -> str:
    return f"!{a}"


@emits("neg")
def _neg(_: ScalarContext, a: str) -> str:
    return f"-{a}"


@emits("tan")
def _tan(_: ScalarContext, a: str) -> str:
    return f"math.sin({a}) / math.cos({a})"


@emits("max")
def _max(c: ScalarContext, *args: str) -> str:
    return _extreme(c, "larger", args)


@emits("min")
def _min(c: ScalarContext, *args: str) -> str:
    return _extreme(c, "smaller", args)


def _extreme(c: ScalarContext, name: str, args: tuple[str, ...]) -> str:
    found = args[0]
    sign = ">" if name == "larger" else "<"
    for arg in args[1:]:
        whole = c.dtype in INTEGERS
        found = f"(if ({found} {sign} {arg}) {found} else {arg})" if whole else c.special(name, found, arg)
    return found


@emits("pow")
def _pow(_: ScalarContext, a: str, b: str) -> str:
    return f"math.pow({a}, {b})"


@emits("mod")
def _mod(c: ScalarContext, a: str, b: str) -> str:
    if c.dtype in INTEGERS:
        call = f"special.{'remainder' if c.attributes.get('fmod') else 'modulo'}(@as(i32, {a}), @as(i32, {b}))"
        return call if c.dtype == "i32" else f"@as({c.dtype}, {call})"
    whole = c.special("trunc", f"{a} / {b}") if c.attributes.get("fmod") else f"math.floor({a} / {b})"
    return f"{a} - {whole} * {b}"


@emits("where")
def _where(_: ScalarContext, condition: str, a: str, b: str) -> str:
    return f"if ({condition}) {a} else {b}"


@emits("isinf")
def _isinf(c: ScalarContext, a: str) -> str:
    zero = c.number(0.0)
    signs = [sign for key, sign in (("detect_negative", "<"), ("detect_positive", ">")) if c.attributes.get(key, 1)]
    if not signs:
        return "false"
    return f"math.isInf({a})" if len(signs) == 2 else f"math.isInf({a}) and {a} {signs[0]} {zero}"


@emits("cast")
def _cast(c: ScalarContext, a: str) -> str:
    target = c.result
    if target == c.dtype:
        return a
    if target == "bool":
        return f"{a} != {c.number(0.0)}"
    if c.dtype == "bool":
        return f"if ({a}) {literal(1.0, target)} else {literal(0.0, target)}"
    if target in INTEGERS and c.dtype not in INTEGERS:
        wide = a if c.dtype == "f32" else f"@as(f32, {a})"
        return f"special.whole({wide})" if target == "i32" else f"@as({target}, special.whole({wide}))"
    return f"@as({target}, {a})"


def literal(value: float, dtype: str) -> str:
    """A number of a type; infinities and NaN by their bits.

    >>> literal(0.5, "f32"), literal(float("inf"), "f16"), literal(1, "bool")
    ('@as(f32, 0.5)', '@bitcast(f16, @as(u16, 0x7c00))', 'true')
    """
    if dtype == "bool":
        return "true" if value else "false"
    if dtype in INTEGERS or dtype == "u16":
        return f"@as({dtype}, {int(value)})"
    if math.isfinite(value):
        text = repr(float(value))
        mantissa, e, exponent = text.partition("e")
        text = f"{mantissa}{'' if '.' in mantissa else '.0'}{e}{exponent}"
        return f"@as({dtype}, {text})"
    if dtype == "f16":
        return f"@bitcast(f16, @as(u16, 0x{struct.unpack('<H', struct.pack('<e', value))[0]:x}))"
    return f"@bitcast(f32, @as(u32, 0x{struct.unpack('<I', struct.pack('<f', value))[0]:x}))"


# --- a kernel's expression as a function ------------------------------------------------------------------------------


@dataclass(slots=True)
class _ScalarWriter:
    lines: list[str] = field(default_factory=list)
    known: dict[Expr, tuple[str, str]] = field(default_factory=dict)

    def write(self, expr: Expr) -> tuple[str, str]:
        """A name for the expression's value, and its type."""
        if expr not in self.known:
            self.known[expr] = self._write(expr)
        return self.known[expr]

    def _write(self, expr: Expr) -> tuple[str, str]:
        if isinstance(expr, Ref):
            return (f"(x{expr.index} != 0)", "bool") if expr.dtype == "u16" else (f"x{expr.index}", expr.dtype)
        if isinstance(expr, Lit):
            dtype = "bool" if expr.dtype == "u16" else expr.dtype
            return literal(expr.value, dtype), dtype
        args = [self.write(a) for a in expr.args]
        result = "bool" if expr.dtype == "u16" else expr.dtype
        name = f"t{len(self.lines)}"
        text = _apply(expr, args, result)
        self.lines.append(f"const {name}: {result} = {text};")
        return name, result


def _apply(expr: App, args: list[tuple[str, str]], result: str) -> str:
    attributes = dict(expr.attributes)
    if expr.function == "pow" and (simple := _power(expr, args)):
        return simple
    if expr.function == "pow" and any(kind in INTEGERS for _, kind in args):
        if args[0][1] in INTEGERS:
            raise UnsupportedOperatorError("Pow of whole numbers has no rule for the wafer; cast to float32 first")
        args = [args[0], (f"@as({args[0][1]}, {args[1][0]})", args[0][1])]
    first = args[1][1] if expr.function == "where" else args[0][1]
    return RULES[expr.function](ScalarContext(first, result, attributes), *[name for name, _ in args])


def _power(expr: App, args: list[tuple[str, str]]) -> str:
    power, (a, kind) = expr.args[1], args[0]
    if not isinstance(power, Lit):
        return ""
    simple = {1.0: a, 2.0: f"{a} * {a}", 3.0: f"{a} * {a} * {a}", 0.5: f"math.sqrt({a})"}
    if power.value in simple:
        return simple[power.value]
    return f"math.pow({a}, {literal(power.value, kind)})"


def scalar_function(name: str, kernel: MapKernel) -> str:
    """A function that computes one element of a kernel's result."""
    writer = _ScalarWriter()
    value, kind = writer.write(kernel.expr)
    params = ", ".join(f"x{i}: {b.dtype}" for i, b in enumerate(kernel.operands))
    if kind == "bool":
        value = f"if ({value}) @as(u16, 1) else @as(u16, 0)"
    body = "\n".join([*writer.lines, f"return {value};"])
    return f"fn {name}({params}) {kernel.out.dtype} {{\n{body}\n}}"


# --- a kernel's expression as vector instructions ---------------------------------------------------------------------

VECTOR = {"add": "fadd", "sub": "fsub", "mul": "fmul", "max": "fmax", "neg": "fneg", "abs": "fabs"}


@dataclass(frozen=True, slots=True)
class Instruction:
    """A vector instruction into the result; None among the sources is the result so far."""

    name: str
    sources: tuple[Ref | Lit | None, ...]


def vector_chain(kernel: MapKernel) -> list[Instruction] | None:
    """Instructions that work on the result in place, one after the other; None when the expression is no such chain."""
    dtype = kernel.out.dtype
    if dtype not in ("f32", "f16"):
        return None
    letter = "s" if dtype == "f32" else "h"
    if isinstance(kernel.expr, Ref):
        return [Instruction(f"fmov{letter}", (kernel.expr,))] if kernel.expr.dtype == dtype else None
    chain: list[Instruction] = []
    node: Expr = kernel.expr
    while isinstance(node, App):
        inner = [a for a in node.args if isinstance(a, App)]
        if (
            node.function not in VECTOR
            or len(inner) > 1
            or len(node.args) > 2
            or any(a.dtype != dtype for a in node.args)
        ):
            return None
        sources = tuple(None if isinstance(a, App) else a for a in node.args)
        chain.append(Instruction(f"{VECTOR[node.function]}{letter}", sources))
        node = inner[0] if inner else Lit(0.0, dtype)
    chain.reverse()
    later = {s.index for i in chain[1:] for s in i.sources if isinstance(s, Ref)}
    if any(kernel.operands[i].slot == kernel.out.slot for i in later):
        return None
    return chain
