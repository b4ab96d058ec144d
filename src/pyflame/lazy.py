"""The graph that lazy tensors record: values, the expressions that make them, and the rules they follow.

A :class:`Rule` is one operator with given attributes on inputs of given types: what it gives is worked
out once, and so are its gradient and its body. An :class:`Expr` applies a rule to values. A graph's
fingerprint is the numbers of its rules and how they are connected; nothing has a name before it is printed.
"""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame.dtypes import DType, WrongTypeError
from pyflame_rt.graph import Shape, TensorType
from pyflame_rt.graph.errors import InputError, UndeterminedError
from pyflame_rt.graph.locks import new_lock
from pyflame_rt.ops.core.registry import Op, get_op, plain_attribute
from pyflame_rt.ops.core.trace import infer_outputs
from pyflame_rt.ops.core.value import Value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame.autograd.function import Function
    from pyflame.autograd.leaf import Leaf
    from pyflame.autograd.template import GradientTemplate
    from pyflame.compiling.tracer import Tracer
    from pyflame.layout import MeshLayout
    from pyflame.module_scopes import ModuleScopes
    from pyflame.storage import Storage
    from pyflame_rt.graph.dtype import DType as RtDType

__all__ = ["Expr", "Rule", "Spec", "Val", "apply", "const", "leaf", "modes", "onnx", "rule_for", "spec_of"]

# Types, constants and rules are remembered up to this many; programs with ever new shapes start afresh.
MAX_MEMORY = 50_000


class Modes(threading.local):
    """Switches of one thread.

    Attributes:
        grad: record gradients.
        inference: values made now may never require gradients.
        tracer: set while a function is being compiled.
        anomaly: remember where operators were called, and look for NaN.
        spans: set while somebody wants to know which module records what.
        autocast: the type that products are computed in inside `pf.autocast`.
        noted: one of those above from ``tracer`` on is set.
    """

    grad: bool = True
    inference: bool = False
    tracer: Tracer | None = None
    anomaly: bool = False
    spans: ModuleScopes | None = None
    autocast: DType | None = None
    noted: bool = False

    def switch(self, **values: Any) -> None:
        """Set modes other than ``grad`` and ``inference``: they are looked at only while :data:`unusual` says so."""
        for name, value in values.items():
            setattr(self, name, value)
        noted = self.anomaly or self.tracer is not None or self.spans is not None or self.autocast is not None
        if noted is not self.noted:
            self.noted = noted
            if noted:
                unusual.append(self)
            else:
                unusual.pop()


# As long as there are threads that trace, look for anomalies, note modules or cast; a look at it is quicker than at a
# thread's own modes, and it is empty nearly always.
unusual: list[Modes] = []
modes = Modes()
# Switches that decide what is recorded: a trace was made for those of its time.
MODE_NAMES = ("grad", "inference", "anomaly", "autocast")

# How often something was changed that compiled functions count on, in all threads: modes and parts of modules, settings
# of optimizers, which tensors require gradients, the type of a tensor's contents, the device, and who watches.
mode_changes = [0]


class Spec:
    """The type of a value: element type and sizes. Equal types are one object."""

    __slots__ = ("dtype", "known", "numel", "numpy", "real", "shape", "type")

    def __init__(self, dtype: DType, shape: tuple[int, ...], known: np.ndarray[Any, Any] | None = None) -> None:
        self.dtype = dtype
        self.numpy = dtype.numpy
        self.real = dtype.is_floating_point
        sizes = Shape(shape)
        self.shape: tuple[int, ...] = sizes  # type: ignore[assignment]  # every size is a number
        self.type = TensorType(dtype.rt, sizes)
        self.known = known
        count = 1
        for size in shape:
            count *= size
        self.numel = count

    def __repr__(self) -> str:
        return f"{self.dtype.name}{self.shape}"


_specs: dict[tuple[DType, tuple[int, ...]], Spec] = {}


def spec_of(dtype: DType, shape: tuple[int, ...]) -> Spec:
    """The type with these sizes."""
    found = _specs.get((dtype, shape))
    if found is None:
        if len(_specs) > MAX_MEMORY:
            _specs.clear()
        found = _specs.setdefault((dtype, tuple(shape)), Spec(dtype, tuple(shape)))  # one object in all threads
    return found


class Val:
    """One tensor value: known (``array``), or made by an expression.

    Attributes:
        spec: its type.
        array: the contents, once evaluated; never changed.
        address: where they are, once native code has read them; 0 before.
        expr: what makes it; None for data, and once it is evaluated and no gradient needs it.
        index: which output of the expression.
        needs_grad: a gradient may flow through it.
        handles: how many tensors of the user's refer to it.
        leaf: what belongs to a leaf of differentiation: its gradient and hooks.
        layout: how it lies on the mesh; None for a single processing element.
        spent: its graph was released by a backward pass.
        mates: values to compute whenever this one is (the loss, next to its gradients).
        walk: the latest evaluation that read it, and ``mark`` its number there.
        stamp: the storage whose contents it is or was, and after how many writes; None where that has none. Of what an
            in-place operation replaced also the number of its first expression: those may read it.
    """

    __slots__ = (
        "__weakref__", "address", "array", "expr", "handles", "index", "layout", "leaf", "mark", "mates", "needs_grad",
        "spec", "spent", "stamp", "walk",
    )  # fmt: skip

    def __init__(self, spec: Spec, expr: Expr | None = None, index: int = 0, array: Any = None) -> None:
        self.spec = spec
        self.expr = expr
        self.index = index
        self.array: np.ndarray[Any, Any] | None = array
        self.address = 0
        self.walk: object = None
        self.mark: int
        self.needs_grad = False
        self.handles = 0
        self.leaf: Leaf | None = None
        self.layout: MeshLayout | None = None
        self.spent = False
        self.mates: tuple[weakref.ref[Val], ...] = ()
        self.stamp: tuple[Storage, int] | tuple[Storage, int, int] | None = None

    def __repr__(self) -> str:
        return f"<{self.spec} {'data' if self.expr is None else self.expr.rule.op.full_name}>"


class Expr:
    """A rule applied to values.

    Attributes:
        outputs: the values it makes, where there are several.
        note: where it was called, in anomaly mode.
        function: a gradient of the user's that replaces the rule's own.
        walk: the latest evaluation that met it, and ``mark`` its number there.
    """

    __slots__ = ("function", "inputs", "mark", "note", "outputs", "rule", "serial", "walk")

    def __init__(self, rule: Rule, inputs: tuple[Val | None, ...]) -> None:
        self.rule = rule
        self.inputs = inputs
        self.serial = next(_serials)
        self.outputs: tuple[weakref.ref[Val], ...] = ()
        self.note: str | None = None
        self.function: Function | None = None
        self.walk: object = None
        self.mark: int


_serials = itertools.count()


# A number above that of every expression made so far, and below all to come.
next_serial = _serials.__next__


_numbers = itertools.count()


class Rule:
    """An operator with attributes on inputs of given types.

    Attributes:
        number: stands for it in fingerprints.
        outs: types of the outputs.
        real: for each output, whether a gradient can flow through it.
        vjps: gradients as templates, by which outputs' gradients arrive.
        body: the operator's body as a template, for compositions.
    """

    __slots__ = ("attributes", "body", "bound", "ins", "number", "op", "outs", "real", "single", "vjps")

    def __init__(self, op: Op, attributes: dict[str, Any], bound: dict[str, Any], ins: tuple[Spec | None, ...]) -> None:
        self.op = op
        self.attributes = attributes
        self.bound = bound
        self._set_types(ins, _output_specs(op, ins, bound))

    def _set_types(self, ins: tuple[Spec | None, ...], outs: tuple[Spec, ...]) -> None:
        self.ins = ins
        self.number = next(_numbers)
        self.outs = outs
        self.real = tuple(spec.dtype.is_inexact for spec in self.outs)
        self.single = len(self.outs) == 1
        self.vjps: dict[Any, GradientTemplate] = {}
        self.body: GradientTemplate | None = None

    def __repr__(self) -> str:
        return f"<{self.op.full_name}({', '.join(map(str, self.ins))}) -> {', '.join(map(str, self.outs))}>"


def _output_specs(op: Op, ins: tuple[Spec | None, ...], bound: dict[str, Any]) -> tuple[Spec, ...]:
    if not op.complex and any(s is not None and s.dtype.is_complex for s in ins):
        raise WrongTypeError(
            f"{op.full_name} takes no complex numbers; compute with pf.view_as_real(x), x.real, x.imag or x.abs()"
        )
    values = [None if s is None else Value(f"input {i}", s.type, s.known) for i, s in enumerate(ins)]
    outs = []
    for value in infer_outputs(op, values, bound):
        kind = value.type
        if not isinstance(kind, TensorType) or kind.shape is None or not kind.shape.is_static:
            raise UndeterminedError(
                f"{op.full_name}: the shape of its result depends on data, so it cannot be part of a lazy graph"
            )
        dtype = _DTYPES.get(kind.dtype)
        if dtype is None:
            raise InputError(f"{op.full_name} gives {kind.dtype.label}, which no tensor holds")
        sizes = tuple(int(d) for d in kind.shape)  # type: ignore[arg-type]
        known = value.known
        outs.append(spec_of(dtype, sizes) if known is None else Spec(dtype, sizes, np.asarray(known, dtype.numpy)))
    return tuple(outs)


_DTYPES: dict[RtDType, DType] = {member.rt: member for member in DType}
_rules: dict[Any, Rule] = {}
find_rule = _rules.get
_lock = new_lock()


def rule_for(op: Op, attributes: tuple[tuple[str, Any], ...], ins: tuple[Spec | None, ...]) -> Rule:
    """The rule, made once."""
    key = (op, attributes, *ins)
    found = _rules.get(key)
    if found is None:
        plain = {name: plain_attribute(_thaw(value)) for name, value in attributes}
        op.signature.check_inputs(len(ins), op.full_name)
        made = Rule(op, plain, op.signature.bind(plain, op.full_name), ins)
        with _lock:
            if len(_rules) > MAX_MEMORY:
                _rules.clear()
            found = _rules.setdefault(key, made)
    return found


def _thaw(value: Any) -> Any:
    return [_thaw(v) for v in value] if isinstance(value, tuple) else value


_onnx: dict[str, Op] = {}


def onnx(name: str, domain: str = "") -> Op:
    """An operator by name."""
    found = _onnx.get(name)
    if found is None:
        found = _onnx[name] = get_op(name, domain)
    return found


def apply(op: Op, inputs: tuple[Val | None, ...], attributes: tuple[tuple[str, Any], ...] = ()) -> Val:
    """Record an operator with one output."""
    key = (op, attributes, *[None if v is None else v.spec for v in inputs])
    rule = _rules.get(key)
    if rule is None:
        rule = rule_for(op, attributes, key[2:])
    return apply_rule(rule, inputs)


def apply_rule(rule: Rule, inputs: tuple[Val | None, ...]) -> Val:
    """Record a rule's first output."""
    # What Expr(rule, inputs) and Val(rule.outs[0], expr) do, without two calls: nothing runs more often.
    expr = _new(Expr)
    expr.rule = rule
    expr.inputs = inputs
    expr.serial = _next_serial()
    expr.outputs = ()
    expr.note = expr.function = expr.walk = None
    out = _new(Val)
    out.spec = rule.outs[0]
    out.expr = expr
    out.array = out.leaf = out.layout = out.stamp = out.walk = None
    out.index = out.address = out.handles = 0
    out.needs_grad = out.spent = False
    out.mates = ()
    if not rule.single:
        expr.outputs = (weakref.ref(out),)
    placed = False
    for v in inputs:
        if v is not None:
            if v.needs_grad:
                out.needs_grad = True
            if v.layout is not None:
                placed = True
    if out.needs_grad:
        out.needs_grad = modes.grad and rule.real[0]
    if unusual and modes.anomaly:
        expr.note = _where_called()
    return _with_layout(out, expr) if placed else out


_new = object.__new__
_next_serial = _serials.__next__


def _with_layout(out: Val, expr: Expr) -> Val:
    from pyflame.layout import place

    return place(out, expr)


def apply_many(op: Op, inputs: tuple[Val | None, ...], attributes: tuple[tuple[str, Any], ...] = ()) -> list[Val]:
    """Record an operator with several outputs."""
    rule = rule_for(op, attributes, tuple(None if v is None else v.spec for v in inputs))
    return apply_rule_many(rule, inputs)


def apply_rule_many(rule: Rule, inputs: tuple[Val | None, ...]) -> list[Val]:
    """Record a rule, all outputs."""
    if rule.single:
        return [apply_rule(rule, inputs)]
    expr = Expr(rule, inputs)
    outs = [Val(spec, expr, i) for i, spec in enumerate(rule.outs)]
    expr.outputs = tuple(weakref.ref(out) for out in outs)
    if modes.grad and any(v is not None and v.needs_grad for v in inputs):
        for out, real in zip(outs, rule.real, strict=True):
            out.needs_grad = real
    if modes.anomaly:
        expr.note = _where_called()
    if any(v is not None and v.layout is not None for v in inputs):
        for out in outs:
            _with_layout(out, expr)
    return outs


def _where_called() -> str:
    import traceback

    frames = [f for f in traceback.extract_stack() if not f.filename.startswith(_OURS)]
    return "".join(traceback.format_list(frames[-3:]))


_OURS = str(Path(__file__).parent) + os.sep
_consts: dict[Any, Val] = {}
_SMALL_CONST = 4096


def const(data: Any, dtype: DType = DType.int64) -> Val:
    """A value that is part of the graph's structure: sizes, axes, tables."""
    key: Any = None
    if isinstance(data, (tuple, int)):
        key = (dtype, data)
        found = _consts.get(key)
        if found is not None:
            return found
    array = np.asarray(data, dtype.numpy)
    if key is None and array.nbytes <= _SMALL_CONST:
        key = (dtype, array.shape, array.tobytes())
        found = _consts.get(key)
        if found is not None:
            return found
    made = Val(Spec(dtype, array.shape, array), array=array)
    if key is None:
        return made
    if len(_consts) > MAX_MEMORY:
        _consts.clear()
    return _consts.setdefault(key, made)


def leaf(array: np.ndarray[Any, Any], dtype: DType) -> Val:
    """A value with these contents."""
    return Val(spec_of(dtype, array.shape), array=array)


def ancestors(roots: Sequence[Val]) -> list[Expr]:
    """The expressions that unevaluated values depend on, in running order."""
    done: set[Expr] = set()
    order: list[Expr] = []
    stack = [v.expr for v in reversed(roots) if v.array is None and v.expr is not None]
    while stack:
        expr = stack[-1]
        if expr in done:
            stack.pop()
            continue
        before = len(stack)
        for v in expr.inputs:
            if v is not None and v.array is None and v.expr not in done:
                assert v.expr is not None
                stack.append(v.expr)
        if len(stack) == before:
            done.add(expr)
            order.append(expr)
            stack.pop()
    return order
