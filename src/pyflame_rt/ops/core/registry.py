"""Operators: how they are declared, and how they are found.

    @operator(since=14)                      # a composition, traced or evaluated through its body
    def HardSwish(X: Value, /) -> Value:
        return X * Clip(X / 6 + 0.5, 0.0, 1.0)

    @primitive(since=13, infer=same, types="T > T", scalar="exp")     # `ops` is an emberharmony library
    def Exp(ops, x, /):
        return ops.exp(x)

Whatever is known of an operator is a field of its declaration; who needs it asks the operator, and keeps no table of
names. Families live in modules of the folders beside this one, found by listing them.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, cast

import numpy as np

from pyflame_rt.graph import Attribute, DType, Tensor
from pyflame_rt.graph.errors import UnsupportedOperatorError
from pyflame_rt.graph.locks import new_rlock
from pyflame_rt.graph.records import dataclass
from pyflame_rt.ops.core.signature import Signature, read_signature
from pyflame_rt.ops.core.value import Value, active_scope, lift

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Unpack

    from pyflame_rt.ops.core.native_call import NativeCall

    Flops: TypeAlias = Callable[[list[tuple[int, ...]], tuple[int, ...], Mapping[str, Any]], int]

__all__ = [
    "Kind",
    "Op",
    "all_ops",
    "find_op",
    "get_op",
    "operator",
    "primitive",
    "register",
    "registrations",
    "unregister",
]


Kind: TypeAlias = Literal["product", "activation", "norm", "move", "reduce", "plain"]


@dataclass(frozen=True, slots=True, eq=False)
class Op:
    """An operator: its schema, its meaning and its rules.

    Attributes:
        name: ONNX name.
        domain: "" for ai.onnx.
        since: newest opset version whose form this is.
        body: the function; over values for an operator, over arrays for a primitive.
        composite: True when ``body`` is a composition of other operators.
        infer: types of the outputs from input values and attributes.
        vjp: gradients of the inputs from (gradient, output, *inputs), over values.
        partial: ``vjp`` gets None, not zeros, as the gradient of an output that none came to.
        host: runs on NumPy arrays whatever the library (strings, host-only algorithms).
        control: the body gets an interpreter that can run subgraphs, not a library.
        shape_math: contents are propagated while inferring, symbolic dims included.
        random: gives other values each time; never folded or merged.
        native: machine code that computes it, where a backend can call that; ``body`` gives the same.
        host_reason: why it runs on the host, for people.
        schema: what :attr:`signature` gives, where it does not follow from ``body``.
        requires: what must hold of sizes, indices and lengths, see :mod:`pyflame_rt.ops.core.guards`.
        types: ONNX's type parameters of inputs and outputs, see :mod:`pyflame_rt.ops.core.type_constraints`.
        kind: what people call it: a product of matrices, an activation, a normalisation, a move of elements, a
            reduction, or none of these.
        elementwise: each element of the result follows from one element of each input, which are broadcast.
        scalar: the function of the scalar language that a primitive is on single elements, see
            :mod:`pyflame_rt.ops.core.scalar`; that of a composition follows from its body.
        fold: what a primitive reduction makes of many elements: sum, prod, max, min or mean.
        known: inputs that say sizes, axes or ways, not data: plans are made for their contents.
        flops: arithmetic of a node, where it is not one operation for each element of the result.
        complex: it takes complex numbers, and its gradient is right for them.
    """

    name: str
    domain: str
    since: int
    body: Callable[..., Any]
    composite: bool
    infer: Callable[..., Any] | None = None
    vjp: Callable[..., Any] | None = None
    host: bool = False
    control: bool = False
    shape_math: bool = False
    random: bool = False
    partial: bool = False
    native: NativeCall | None = None
    host_reason: str = ""
    schema: Signature | None = None
    requires: Callable[..., Any] | None = None
    types: str = ""
    kind: Kind = "plain"
    elementwise: bool = False
    scalar: str = ""
    fold: str = ""
    known: tuple[int, ...] = ()
    flops: Flops | None = None
    complex: bool = False

    @property
    def signature(self) -> Signature:
        """The schema, read from the function when first asked for."""
        if self.schema is None:
            object.__setattr__(self, "schema", read_signature(self.body, skip_first=not self.composite))
        return cast("Signature", self.schema)

    @property
    def full_name(self) -> str:
        """Name with domain, such as ``com.microsoft::Gelu``."""
        return f"{self.domain}::{self.name}" if self.domain else self.name

    def __call__(self, *inputs: object, **attributes: Attribute) -> Any:
        """Use the operator inside the body of another."""
        like = _number_type(inputs)
        values = [lift(v, like) for v in inputs]
        while values and values[-1] is None:
            values.pop()
        self.signature.check_inputs(len(values), self.full_name)
        given = {name: plain_attribute(value) for name, value in attributes.items() if value is not None}
        return active_scope().apply(self, values, given)

    def __repr__(self) -> str:
        return f"<{'operator' if self.composite else 'primitive'} {self.full_name}-{self.since}>"


def _number_type(inputs: Sequence[object]) -> Value | None:
    """The value whose element type bare numbers take: the first, but not Where's condition."""
    values = [v for v in inputs if isinstance(v, Value)]
    if len(values) < 2 or not any(isinstance(v, (int, float)) for v in inputs):
        return values[0] if values else None
    return next((v for v in values if v.dtype is not DType.Bool), values[0])


def plain_attribute(value: Attribute) -> Attribute:
    """Attributes in the form nodes keep them: ONNX numbers for types, Tensor for arrays, lists."""
    if type(value) in _KEPT:
        return value
    if isinstance(value, DType):
        return value.onnx
    if isinstance(value, np.ndarray):
        return Tensor(value)
    if isinstance(value, tuple):
        return list(value)
    return int(value) if isinstance(value, (bool, np.integer)) else value


_KEPT = frozenset({int, float, str, list})
_ops: dict[tuple[str, str], Op] = {}
_registrations = 0
_loaded = False
_loading = new_rlock()


def register(op: Op) -> Op:
    """Make an operator known; a later one of the same name replaces the earlier."""
    global _registrations
    _ops[op.domain, op.name] = op
    _registrations += 1
    return op


def unregister(name: str, domain: str = "") -> None:
    """Forget an operator."""
    global _registrations
    _ops.pop((domain, name), None)
    _registrations += 1


def registrations() -> int:
    """How often an operator was made known or forgotten: what was found out before may hold no longer."""
    return _registrations


class _Facts(TypedDict, total=False):
    """Fields of :class:`Op` that any declaration may give."""

    vjp: Callable[..., Any] | None
    random: bool
    partial: bool
    requires: Callable[..., Any] | None
    types: str
    kind: Kind
    elementwise: bool
    known: tuple[int, ...]
    flops: Flops | None
    complex: bool


class _PrimitiveFacts(_Facts, total=False):
    host: bool
    control: bool
    shape_math: bool
    scalar: str
    fold: str


def operator(
    *,
    since: int,
    domain: str = "",
    name: str | None = None,
    infer: Callable[..., Any] | None = None,
    **facts: Unpack[_Facts],
) -> Callable[[Callable[..., Any]], Op]:
    """Declare an operator by composition: shapes, gradient and every backend follow from its body."""

    def declare(fn: Callable[..., Any]) -> Op:
        return register(Op(name or fn.__name__, domain, since, fn, True, infer, **facts))

    return declare


def primitive(
    *,
    since: int,
    infer: Callable[..., Any],
    domain: str = "",
    name: str | None = None,
    **facts: Unpack[_PrimitiveFacts],
) -> Callable[[Callable[..., Any]], Op]:
    """Declare a primitive: its body computes on arrays with the library it is given."""
    if facts.get("scalar"):
        facts["elementwise"] = True

    def declare(fn: Callable[..., Any]) -> Op:
        return register(Op(name or fn.__name__, domain, since, fn, False, infer, **facts))

    return declare


def find_op(name: str, domain: str = "") -> Op | None:
    """The operator, or None."""
    _load_families()
    return _ops.get((domain, name))


def get_op(name: str, domain: str = "") -> Op:
    """The operator, or an error that lists its neighbours."""
    op = find_op(name, domain)
    if op is None:
        raise UnsupportedOperatorError(unknown_operator_message(name, domain))
    return op


def all_ops() -> Iterator[Op]:
    """Every operator, by domain and name."""
    _load_families()
    for key in sorted(_ops):
        yield _ops[key]


def unknown_operator_message(name: str, domain: str) -> str:
    """What to say about an operator nobody declared."""
    import difflib

    known = [op.name for op in _ops.values() if op.domain == domain]
    close = difflib.get_close_matches(name, known, n=3)
    hint = f" Did you mean {' or '.join(close)}?" if close else ""
    full = f"{domain}::{name}" if domain else name
    return (
        f"operator {full} is not supported.{hint} Register it with pyflame_rt.OperatorRegistry, "
        f"or declare it with @pyflame_rt.ops.operator."
    )


def _load_families() -> None:
    global _loaded
    if _loaded:
        return
    with _loading:
        if _loaded:
            return
        for module in _family_names():
            importlib.import_module(module)
        _loaded = True


def _family_names() -> list[str]:
    """Modules of the folders beside `core`: each folder is a domain, each file a family."""
    packages = pkgutil.iter_modules(importlib.import_module("pyflame_rt.ops").__path__, "pyflame_rt.ops.")
    domains = [importlib.import_module(p.name) for p in packages if p.ispkg and p.name != "pyflame_rt.ops.core"]
    return sorted(m.name for d in domains for m in pkgutil.iter_modules(d.__path__, f"{d.__name__}."))
