"""The operators of kernel expressions, as instructions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pyflame_rt.backends.cpu.ir.builder import V
from pyflame_rt.backends.cpu.ir.kernel_program import FLOATS
from pyflame_rt.backends.cpu.ir.vector_math import FUNCTIONS, libm, power, tanh64

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyflame_rt.backends.cpu.ir.kernel_program import Expr

__all__ = ["HEAVY", "combine", "convert", "element", "emit", "from_memory", "identity", "stored", "to_memory"]

HEAVY = {*FUNCTIONS, "pow", "rem", "mod", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh"}
_PREDICATES = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}
_ROUNDINGS = {"floor": "floor", "ceil": "ceil", "round": "nearbyint", "trunc": "trunc", "sqrt": "sqrt"}
_ELEMENTS = {"float32": "float", "float64": "double", "bool": "i1"}
_STORED = {**_ELEMENTS, "float16": "i16", "bfloat16": "i16", "bool": "i8"}


def element(dtype: str) -> str:
    """The LLVM element type values of a compute type have."""
    return _ELEMENTS.get(dtype) or "i" + dtype.lstrip("uint")


def stored(dtype: str) -> str:
    """The LLVM element type of a stored type."""
    return _STORED.get(dtype) or element(dtype)


def _unsigned(dtype: str) -> bool:
    return dtype.startswith("u") or dtype == "bool"


def emit(node: Expr, args: Sequence[V], flags: str) -> V:
    """Instructions of one operator; `flags` are fast-math flags for + - *."""
    op, dtype = node.op, node.args[0].dtype
    match op:
        case "add" | "sub" | "mul":
            return args[0].at.bin(*_arithmetic(op, args), flags if args[0].is_float else "")
        case "cast":
            return convert(args[0], dtype, str(node.value))
        case "where":
            return args[0].where(args[1], args[2])
        case "eq" | "ne" | "lt" | "le" | "gt" | "ge":
            return args[0].cmp(_predicate(op, dtype), args[1])
        case "max" | "min":
            return _extreme(op, node, args)
        case "pow":
            return _pow(node, args)
    if op in _SIMPLE:
        return _SIMPLE[op](*args)
    if dtype in FLOATS:
        return _float_function(op, args)
    return _INTEGER[op](_unsigned(dtype), *args)


def _arithmetic(op: str, args: Sequence[V]) -> tuple[str, V, V]:
    return ("f" if args[0].is_float else "") + op, args[0], args[1]


def _predicate(op: str, dtype: str) -> str:
    if dtype in FLOATS:
        return _PREDICATES[op]
    return op if op in ("eq", "ne") else ("u" if _unsigned(dtype) else "s") + op


def _extreme(op: str, node: Expr, args: Sequence[V]) -> V:
    a, b = args
    dtype = node.dtype
    if dtype == "bool":
        return a | b if op == "max" else a & b
    if dtype not in FLOATS:
        return a.cmp(_predicate("gt" if op == "max" else "lt", dtype), b).where(a, b)
    left, right = node.args
    if right.op == "const" and not math.isnan(float(right.value or 0)):
        a, b, left = b, a, right
    chosen = a.cmp("ogt" if op == "max" else "olt", b).where(a, b)  # gives b when either is NaN
    return chosen if left.op == "const" and not math.isnan(float(left.value or 0)) else a.cmp("uno", a).where(a, chosen)


def combine(kind: str, dtype: str, a: V, b: V) -> V:
    """One step of a reduction; NaN stays once met, but for "top", which passes over it."""
    if kind in ("sum", "prod"):
        return a + b if kind == "sum" else a * b
    if dtype not in FLOATS:
        return a.cmp(_predicate("lt" if kind == "min" else "gt", dtype), b).where(a, b)
    chosen = b.cmp("olt" if kind == "min" else "ogt", a).where(b, a)  # gives a when either is NaN
    if kind == "top":
        return chosen
    return b.cmp("uno", b).where(b, chosen)


def identity(kind: str, dtype: str) -> float:
    """What a reduction starts from."""
    if kind in ("sum", "prod"):
        return 0 if kind == "sum" else 1
    if dtype in FLOATS:
        return math.inf if kind == "min" else -math.inf
    bits = int(element(dtype)[1:])
    low, high = (0, 2**bits - 1) if _unsigned(dtype) else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return high if kind == "min" else low


def _float_function(op: str, args: Sequence[V]) -> V:
    x = args[0]
    if op in _ROUNDINGS:
        return x.intrinsic(_ROUNDINGS[op])
    if op in _FLOAT:
        return _FLOAT[op](*args)
    if x.elem == "float" and op in FUNCTIONS:
        return FUNCTIONS[op](x)
    if op == "sigmoid":
        e = libm("exp", -abs(x))
        return x.cmp("oge", 0.0).where(1.0, e) / (e + 1.0)
    return tanh64(x) if op == "tanh" and x.elem == "double" else libm("exp" if op == "decay" else op, *args)


def _float_sign(x: V) -> V:
    one = x.at.const(x.elem, 1.0)
    unordered = x.cmp("uno", x).where(x, 0.0)
    return x.cmp("ogt", 0.0).where(one, x.cmp("olt", 0.0).where(-1.0, unordered))


def _float_mod(a: V, b: V) -> V:
    remainder = libm("fmod", a, b)
    wrong = remainder.cmp("one", 0.0) & (remainder.cmp("olt", 0.0) ^ b.cmp("olt", 0.0))
    exact = remainder.cmp("oeq", 0.0).where(remainder.intrinsic("copysign", b), remainder)
    return wrong.where(remainder + b, exact)


def _integer_sign(unsigned: bool, x: V) -> V:
    positive = x.cmp("ne" if unsigned else "sgt", 0).where(x.at.const(x.elem, 1), 0)
    return positive if unsigned else x.cmp("slt", 0).where(-1, positive)


def _integer_abs(unsigned: bool, x: V) -> V:
    return x if unsigned else x.cmp("slt", 0).where(-x, x)


def _quotient(unsigned: bool, a: V, b: V, operation: str) -> V:
    """Division where x / 0 is 0 and the smallest number over -1 wraps, neither a trap."""
    zero = b.cmp("eq", 0)
    if unsigned:
        return zero.where(0, a.at.bin("u" + operation, a, zero.where(1, b)))
    minus = b.cmp("eq", -1)
    safe = a.at.bin("s" + operation, a, (zero | minus).where(1, b))
    return zero.where(0, minus.where(-a, safe) if operation == "div" else safe)


def _integer_mod(unsigned: bool, a: V, b: V) -> V:
    remainder = _quotient(unsigned, a, b, "rem")
    if unsigned:
        return remainder
    wrong = remainder.cmp("ne", 0) & (remainder ^ b).cmp("slt", 0)
    return wrong.where(remainder + b, remainder)


def _shift(operation: str, signed_operation: str) -> Callable[[bool, V, V], V]:
    def emit_shift(unsigned: bool, a: V, b: V) -> V:
        bits = int(a.elem[1:])
        outside = b.cmp("uge", bits)
        name = operation if unsigned else signed_operation
        beyond = a.at.const(a.elem, 0) if name != "ashr" else a >> (bits - 1)
        return outside.where(beyond, a.at.bin(name, a, outside.where(0, b)))

    return emit_shift


def _pow(node: Expr, args: Sequence[V]) -> V:
    x, y = args
    exponent = node.args[1]
    if exponent.op == "const" and exponent.value in (1, 2):
        return x if exponent.value == 1 else x * x
    if node.dtype not in FLOATS:
        return _integer_power(_unsigned(node.dtype), x, y)
    return power(x, y) if x.elem == "float" else libm("pow", x, y)


def _integer_power(unsigned: bool, x: V, y: V) -> V:
    """By squaring; a negative exponent gives 1 / x**-y truncated."""
    at, b = x.at, x.at.builder
    one = at.const(x.elem, 1)
    origin, loop, done = b.block, b.label("power"), b.label("powered")
    b.jump(loop)
    b.place(loop)
    base, left, result = (V(at, x.elem, b.phi(x.kind, (v.name, origin))) for v in (x, y, one))
    bit = (left & 1).cmp("ne", 0)
    product = bit.where(result * base, result)
    square, rest = base * base, at.bin("lshr", left, 1)
    more = at.any(rest.cmp("ne", 0))
    for phi, value in ((base, square), (left, rest), (result, product)):
        b.add_incoming(phi.name, value.name, b.block)
    b.branch(more, loop, done)
    b.place(done)
    if unsigned:
        return product
    # Only 1 and -1 have a whole reciprocal; -1 to the power of y and of -y agree in the last bit of y.
    parity = (y & 1).cmp("ne", 0).where(x, 1)
    inverse = (x.cmp("eq", 1) | x.cmp("eq", -1)).where(parity, 0)
    return y.cmp("slt", 0).where(inverse, product)


_SIMPLE: dict[str, Callable[..., V]] = {
    "neg": lambda x: -x,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "not": lambda a: a ^ (1 if a.elem == "i1" else -1),
    "isnan": lambda x: x.cmp("uno", x),
    "isinf": lambda x: abs(x).cmp("oeq", math.inf),
    "nearest": lambda x: _nearest(x),
}
_FLOAT: dict[str, Callable[..., V]] = {
    "div": lambda a, b: a / b,
    "abs": lambda x: x.intrinsic("fabs"),
    "sign": _float_sign,
    "reciprocal": lambda x: x.at.const(x.elem, 1.0) / x,
    "rsqrt": lambda x: x.at.const(x.elem, 1.0) / x.intrinsic("sqrt"),
    "rem": lambda a, b: libm("fmod", a, b),
    "mod": _float_mod,
}
_INTEGER: dict[str, Callable[..., V]] = {
    "div": lambda unsigned, a, b: _quotient(unsigned, a, b, "div"),
    "rem": lambda unsigned, a, b: _quotient(unsigned, a, b, "rem"),
    "mod": _integer_mod,
    "abs": _integer_abs,
    "sign": _integer_sign,
    "shl": _shift("shl", "shl"),
    "shr": _shift("lshr", "ashr"),
}


def convert(x: V, source: str, target: str) -> V:
    """A C conversion between compute types; to a narrow float: rounded to it, still float32."""
    if target in ("float16", "bfloat16"):
        if target == "float16" and source == "float64":
            return from_memory(_to_half(_to_odd_single(x)), target)
        return from_memory(to_memory(convert(x, source, "float32"), target), target)
    if source == target:
        return x
    if target == "bool":
        return x.cmp("une" if x.is_float else "ne", 0)
    if target in FLOATS:
        if source in FLOATS:
            return x.to("fpext" if target == "float64" else "fptrunc", element(target))
        return x.to("uitofp" if _unsigned(source) else "sitofp", element(target))
    if source in FLOATS:
        return _float_to_integer(x, target)
    return _resize(x, source, element(target))


def _nearest(x: V) -> V:
    """The nearest whole number, of two the even one, in one instruction."""
    at = x.at
    name = f"llvm.lrint.{at.suffix('i32')}.{at.suffix(x.elem)}"
    return V(at, "i32", at.builder.call(at.type("i32"), name, [(x.kind, x.name)]))


def _resize(x: V, source: str, elem: str) -> V:
    have, want = int(x.elem[1:]), int(elem[1:])
    if have == want:
        return x
    return x.to("trunc" if want < have else "zext" if _unsigned(source) else "sext", elem)


def _float_to_integer(x: V, target: str) -> V:
    """Through a wider integer where there is one: out of range wraps as C compilers make it on x86."""
    if target == "uint64":
        return x.cmp("olt", 0.0).where(x.to("fptosi", "i64"), x.to("fptoui", "i64"))
    wide = "i64" if target in ("int64", "uint32") else "i32"
    return _resize(x.to("fptosi", wide), "int64", element(target))


def from_memory(x: V, dtype: str) -> V:
    """A stored value as a value of the compute type."""
    if dtype == "bool":
        return x.cmp("ne", 0)
    if dtype == "bfloat16":
        return (x.to("zext", "i32") << 16).bits("float")
    return _from_half(x) if dtype == "float16" else x


def to_memory(x: V, dtype: str) -> V:
    """A value of the compute type as it is stored."""
    if dtype == "bool":
        return x.to("zext", "i8")
    if dtype == "bfloat16":
        bits = x.bits("i32")
        rounded = bits + ((x.at.bin("lshr", bits, 16) & 1) + 0x7FFF)
        chosen = x.cmp("uno", x).where(bits | 0x400000, rounded)
        return x.at.bin("lshr", chosen, 16).to("trunc", "i16")
    return _to_half(x) if dtype == "float16" else x


def _to_odd_single(x: V) -> V:
    """A float64 as float32, rounded to odd, so that a second rounding to float16 is right."""
    single = x.to("fptrunc", "float")
    back = single.to("fpext", "double")
    bits = single.bits("i32")
    away = abs(back).cmp("ogt", abs(x))
    toward_zero = away.where(bits - 1, bits)
    inexact = back.cmp("one", x) & abs(x).cmp("olt", math.inf)
    return inexact.where(toward_zero | 1, bits).bits("float")


def _from_half(x: V) -> V:
    if x.at.builder.host.half:
        return x.bits("half").to("fpext", "float")
    wide = x.to("zext", "i32")
    magnitude = wide & 0x7FFF
    number = ((magnitude << 13).bits("float") * 2.0**112).bits("i32")
    special = (magnitude << 13) | 0x7F800000
    return (magnitude.cmp("uge", 0x7C00).where(special, number) | ((wide & 0x8000) << 16)).bits("float")


def _to_half(x: V) -> V:
    at = x.at
    if at.builder.host.half:
        return x.to("fptrunc", "half").bits("i16")
    bits = x.bits("i32")
    magnitude = bits & 0x7FFFFFFF
    odd = at.bin("lshr", magnitude, 13) & 1
    normal = at.bin("lshr", magnitude + (0xFFF - (112 << 23)) + odd, 13)
    # Adding 0.5 lets the adder round a subnormal half to its last place.
    subnormal = (magnitude.bits("float") + 0.5).bits("i32") - 0x3F000000
    special = magnitude.cmp("ugt", 0x7F800000).where(at.const("i32", 0x7E00), 0x7C00)
    result = magnitude.cmp("ult", 113 << 23).where(subnormal, normal)
    result = magnitude.cmp("uge", 143 << 23).where(special, result)
    return (result | (at.bin("lshr", bits, 16) & 0x8000)).to("trunc", "i16")
