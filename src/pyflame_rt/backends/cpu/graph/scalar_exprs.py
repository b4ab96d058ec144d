"""The scalar language as expressions of the loop generator.

A function that the generator has (`ir.kernel_program.OPS`) needs nothing here; others have one rule, which makes them
of what it has.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeAlias

from pyflame_rt.backends.cpu.ir.kernel_program import OPS, Expr, apply, cast, const
from pyflame_rt.graph import DType, Node, Shape, TensorType
from pyflame_rt.ops.core.evaluate import bind_attributes
from pyflame_rt.ops.core.inline import Body, instantiate
from pyflame_rt.ops.core.registry import Op, get_op
from pyflame_rt.ops.core.value import Value
from pyflame_rt.ops.onnx.cast import Identity

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np

__all__ = ["RULES", "builds", "expression", "has_rule"]

Rule: TypeAlias = "Callable[[Mapping[str, Any], Sequence[Expr | None]], Expr]"
RULES: dict[str, Rule] = {}

# Functions of the scalar language that the loop generator has under another name; all others are written alike.
_ALIASES = {"bitand": "and", "bitnot": "not", "bitor": "or", "bitxor": "xor"}
_WHOLE_ALREADY = ("ceil", "floor", "round")


def builds(word: str) -> Callable[[Rule], Rule]:
    """Declare what a function of the scalar language is: an expression of the attributes and the operands."""

    def declare(rule: Rule) -> Rule:
        RULES[word] = rule
        return rule

    return declare


def expression(op: Op, attributes: Mapping[str, Any], args: Sequence[Expr | None]) -> Expr:
    """One element of the operator's output from one element of each input."""
    if not op.scalar:
        return _opened(op, attributes, args)
    rule = RULES.get(op.scalar)
    if rule is not None:
        return rule(attributes, args)
    given = [a for a in args if a is not None]
    if op.scalar in _WHOLE_ALREADY and not given[0].dtype.startswith("float"):
        return given[0]
    return apply(_ALIASES.get(op.scalar, op.scalar), *given)


def has_rule(word: str) -> bool:
    """Whether loops can compute a function of the scalar language."""
    return word in RULES or _ALIASES.get(word, word) in OPS


def _fold(name: str) -> Rule:
    def build(_: Mapping[str, Any], args: Sequence[Expr | None]) -> Expr:
        result, *rest = [a for a in args if a is not None]
        for value in rest:
            result = apply(name, result, value)
        return result

    return build


builds("max")(_fold("max"))
builds("min")(_fold("min"))


@builds("cast")
def _cast(attributes: Mapping[str, Any], args: Sequence[Expr | None]) -> Expr:
    (value,) = [a for a in args if a is not None]
    target = DType.from_onnx(attributes["to"]).label
    if target == "bool":
        return value if value.dtype == "bool" else apply("ne", value, 0)
    return value if value.dtype == target else cast(value, target)


@builds("where")
def _where(_: Mapping[str, Any], args: Sequence[Expr | None]) -> Expr:
    condition, yes, no = args
    assert condition is not None
    assert yes is not None
    assert no is not None
    return apply("where", condition, yes, no)


@builds("pow")
def _pow(_: Mapping[str, Any], args: Sequence[Expr | None]) -> Expr:
    base, power = args
    assert base is not None
    assert power is not None
    if power.op == "const" and isinstance(power.value, (int, float)):
        small = {2: lambda: apply("mul", base, base), 1: lambda: base, 0.5: lambda: _root(base)}
        simple = small.get(power.value)
        if simple is not None and (power.value != 0.5 or base.dtype.startswith("float")):
            return simple()
        if power.value == 3:
            return apply("mul", apply("mul", base, base), base)
    return apply("pow", base, power if power.dtype == base.dtype else cast(power, base.dtype))


def _root(x: Expr) -> Expr:
    """The power of a half, which is not the root: it makes 0 of -0 and infinity of -infinity."""
    return apply("where", apply("eq", x, -math.inf), math.inf, apply("add", apply("sqrt", x), 0.0))


@builds("mod")
def _mod(attributes: Mapping[str, Any], args: Sequence[Expr | None]) -> Expr:
    left, right = [a for a in args if a is not None]
    return apply("rem" if attributes.get("fmod") else "mod", left, right)


@builds("erf")
def _erf(_: Mapping[str, Any], args: Sequence[Expr | None]) -> Expr:
    (x,) = [a for a in args if a is not None]
    if x.dtype.startswith("float"):
        return apply("erf", x)
    return cast(apply("erf", cast(x, "float32")), x.dtype)  # whole numbers, as opset 9 had them


@builds("softplus")
def _softplus(_: Mapping[str, Any], args: Sequence[Expr | None]) -> Expr:
    (x,) = [a for a in args if a is not None]
    # max(x, 0) + log1p(exp(-|x|)) neither overflows nor loses the small end.
    return apply("add", apply("max", x, 0), apply("log1p", apply("exp", apply("neg", apply("abs", x)))))


@builds("isinf")
def _isinf(attributes: Mapping[str, Any], args: Sequence[Expr | None]) -> Expr:
    (x,) = [a for a in args if a is not None]
    result = apply("isinf", x)
    if not attributes["detect_negative"]:
        result = apply("and", result, apply("gt", x, 0))
    if not attributes["detect_positive"]:
        result = apply("and", result, apply("lt", x, 0))
    return result


@builds("shift")
def _bit_shift(attributes: Mapping[str, Any], args: Sequence[Expr | None]) -> Expr:
    left, right = [a for a in args if a is not None]
    return apply("shl" if attributes["direction"] == "LEFT" else "shr", left, right)


def _opened(op: Op, attributes: Mapping[str, Any], args: Sequence[Expr | None]) -> Expr:
    """The expression of a composition: its body, traced on single elements."""
    body = _scalar_body(op, repr(attributes), tuple(None if a is None else a.dtype for a in args), attributes)
    values: dict[str, Expr] = {f"x{i}": a for i, a in enumerate(args) if a is not None}
    for name, tensor in body.constants.items():
        values[name] = constant_expr(tensor.raw())
    for node in body.nodes:
        inner = get_op(node.op_type, node.domain)
        if inner.name == Identity.name:
            values[node.outputs[0]] = values[node.inputs[0]]
            continue
        inputs = [values[n] if n else None for n in node.inputs]
        values[node.outputs[0]] = expression(inner, bind_attributes(node, inner), inputs)
    return values["y"]


_bodies: dict[tuple[Op, str, tuple[str | None, ...]], Body] = {}


def _scalar_body(op: Op, key: str, dtypes: tuple[str | None, ...], attributes: Mapping[str, Any]) -> Body:
    """The body on single elements of these types, traced once; inputs are x0, x1..., the output y."""
    found = _bodies.get((op, key, dtypes))
    if found is None:
        names = [f"x{i}" if d is not None else "" for i, d in enumerate(dtypes)]
        kinds = [
            None if d is None else Value(n, TensorType(DType.of(d), Shape(())))
            for n, d in zip(names, dtypes, strict=True)
        ]
        given = {k: v for k, v in attributes.items() if v is not None}
        counter = iter(range(1 << 30))
        node = Node("n", op.name, names, ["y"], given, op.domain)
        found = instantiate(node, op, kinds, lambda hint: f"{hint}%{next(counter)}")
        _bodies[op, key, dtypes] = found
    return found


def constant_expr(array: np.ndarray[Any, Any]) -> Expr:
    """A constant of one element."""
    return const(array.reshape(-1)[0].item(), DType.of(array.dtype).label)
