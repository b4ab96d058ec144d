"""Element types that operators take: inputs that share a type parameter agree, and some are of one kind only.

An operator declares its parameters as ONNX has them, ``types="T Tind > T"``: a capital is a parameter, other words are
element types, "?" may be something else than a tensor, a star repeats. ``T:float`` takes floating-point numbers only
(complex ones where the operator is declared for them), ``T:number`` no truth values and no strings.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from pyflame_rt.graph import DType, Graph, Tensor, TensorType
from pyflame_rt.graph.errors import DTypeMismatchError
from pyflame_rt.graph.graph import node_subgraphs
from pyflame_rt.ops.core.registry import find_op

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyflame_rt.graph import Node
    from pyflame_rt.ops.core.registry import Op
    from pyflame_rt.ops.core.value import Value

__all__ = ["check_kinds", "check_types"]

_ANYTHING = "?"
_PLAIN = frozenset({"Cast", "Constant", "Identity"})


class _Rule(NamedTuple):
    """What positions say: a parameter's name, an element type, None for nothing; ``more`` is for positions beyond.

    ``kinds`` has the parameters that take one kind of numbers.
    """

    inputs: tuple[str | None, ...]
    more: str | None
    outputs: tuple[str | DType | None, ...]
    kinds: Mapping[str, str]


@cache
def _rule(text: str) -> _Rule:
    inputs, outputs = (side.split() for side in text.split(">"))
    kinds = dict(word.rstrip("*").split(":") for word in inputs if ":" in word)
    taken = [_said(re.sub(r":\w+", "", word)) for word in inputs]
    more = taken[-1] if inputs[-1].endswith("*") else None
    return _Rule(
        tuple(word if isinstance(word, str) else None for word in taken),
        more if isinstance(more, str) else None,
        tuple(map(_said, outputs)),
        kinds,
    )


def _said(word: str) -> str | DType | None:
    plain = word.rstrip("*")
    return plain if plain[0].isupper() else None if plain == _ANYTHING else DType.of(plain)


def _suits(dtype: DType, kind: str, op: Op) -> bool:
    if dtype.is_complex:
        return op.complex
    return dtype.is_float or (kind == "number" and dtype.is_integer)


def check_kinds(op: Op, inputs: Sequence[Value | None]) -> None:
    """Refuse inputs of a kind that the operator does not take, such as whole numbers for a square root."""
    rule = _rule(op.types)
    for position, value in enumerate(inputs):
        word = rule.inputs[position] if position < len(rule.inputs) else rule.more
        if value is None or word is None or word not in rule.kinds or not isinstance(value.type, TensorType):
            continue
        if not _suits(value.type.dtype, rule.kinds[word], op):
            formal = op.signature.inputs
            name = formal[min(position, len(formal) - 1)].name
            raise DTypeMismatchError(_wrong_kind(name, value.type.dtype, rule.kinds[word]))


def _wrong_kind(name: str, dtype: DType, kind: str) -> str:
    taken = "floating-point numbers" if kind == "float" else "numbers"
    return f"{name} is {dtype.label}; it takes {taken} only: put a Cast before it"


def check_types(graph: Graph) -> None:
    """Refuse a graph in which inputs of a node are of types that it does not take, as far as types are known.

    Inputs that share a type parameter must agree, and those of one kind be of it.

    Types are followed in the order the nodes are in, which in files is that in which they run.

    Raises:
        DTypeMismatchError: Names the node, its operator, both inputs and both types.

    Example:
        >>> g = Graph("g")
        >>> _ = g.add_input("x", [2], DType.Float32), g.add_input("w", [2], DType.Float64)
        >>> _ = g.add_node("sum", "Add", ["x", "w"], ["y"])
        >>> check_types(g)
        Traceback (most recent call last):
        ...
        pyflame_rt.graph.errors.DTypeMismatchError: node 'sum' (Add): inputs that must be of one element type (T) ...
    """
    known = {info.name: info.type.dtype for info in graph.inputs if isinstance(info.type, TensorType)}
    _check(graph, known)


def _check(graph: Graph, outer: Mapping[str, DType]) -> None:
    known = dict(outer)
    known.update((name, tensor.dtype) for name, tensor in graph.initializers.items())
    for node in graph.nodes:
        op = find_op(node.op_type, node.domain)
        if op is not None and op.types:
            _check_node(node, op, known)
        elif node.op_type in _PLAIN and not node.domain:
            _note(node, known)
        else:
            for body in node_subgraphs(node):
                taken = {info.name for info in body.inputs}.difference(node.inputs)  # what is captured keeps its name
                _check(body, {name: dtype for name, dtype in known.items() if name not in taken})


def _check_node(node: Node, op: Op, known: dict[str, DType]) -> None:
    rule = _rule(op.types)
    found: dict[str, DType] = {}
    words, count = rule.inputs, len(rule.inputs)
    for position, name in enumerate(node.inputs):
        word = words[position] if position < count else rule.more
        dtype = known.get(name)
        if word is None or dtype is None:
            continue
        before = found.get(word)
        if before is None:
            if word in rule.kinds and not _suits(dtype, rule.kinds[word], op):
                said = _wrong_kind(repr(name), dtype, rule.kinds[word])
                raise DTypeMismatchError(f"node {node.name!r} ({op.full_name}): {said}")
            found[word] = dtype
        elif before is not dtype:
            _refuse(node, rule, word, known)
    for name, made in zip(node.outputs, rule.outputs, strict=False):
        dtype = found.get(made) if isinstance(made, str) else made
        if dtype is not None:
            known[name] = dtype


def _refuse(node: Node, rule: _Rule, word: str, known: Mapping[str, DType]) -> None:
    words = (*rule.inputs, *[rule.more] * len(node.inputs))
    alike = [name for name, each in zip(node.inputs, words, strict=False) if each == word and name in known]
    first, other = alike[0], next(name for name in alike if known[name] is not known[alike[0]])
    raise DTypeMismatchError(
        f"node {node.name!r} ({node.op_type}): inputs that must be of one element type ({word}) differ: "
        f"{first!r} is {known[first].label}, {other!r} is {known[other].label}"
    )


def _note(node: Node, known: dict[str, DType]) -> None:
    """What a Cast or a Constant says it makes, and what an Identity passes on."""
    if not node.outputs:
        return
    if node.op_type == "Identity":
        dtype = known.get(next(iter(node.inputs), ""))
        if dtype is not None:
            known[node.outputs[0]] = dtype
        return
    to, value = node.attributes.get("to"), node.attributes.get("value")
    if isinstance(value, Tensor):
        known[node.outputs[0]] = value.dtype
    elif isinstance(to, int):
        known[node.outputs[0]] = DType.from_onnx(to)
