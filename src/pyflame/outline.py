"""Outlining: a function of tensors is recorded once, and each call of it is one expression of the graph.

`linear`, `layer_norm`, `cross_entropy` and their like record a dozen operators, each with its promotions, checks and
axes. An *outlined* function does that once for given types and settings; what it recorded is kept as an `Outline`, and
a call adds a single `Call` to the graph. So does its gradient. Structures are compared by such calls; only when a new
one is compiled (`pyflame.runtime_graph`), printed or differentiated twice are they replaced by what they stand for.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from pyflame.autograd.engine import gradients
from pyflame.autograd.template import GradientTemplate
from pyflame.calls import Outline, call
from pyflame.devices import Backend, chosen
from pyflame.dtypes import get_default_dtype
from pyflame.lazy import MAX_MEMORY, Expr, Val, apply, const, modes, unusual
from pyflame.ops.core import Handle, wrap
from pyflame_rt.ops.onnx.cast import Identity

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyflame.tensors import Tensor

__all__ = ["Outlined", "gradient_of", "outlined", "own"]

P = ParamSpec("P")
R = TypeVar("R")


class NotOutlinedError(Exception):
    """The function does more than compute tensors from its arguments."""


class _Strict:
    """A tracer that lets a function read tensors, and nothing else."""

    exports = False

    def saw(self, inputs: Sequence[Any]) -> None:
        """Operators may read whatever the function made."""

    def saw_family(self, family: Any, base: Any) -> None:
        """Views of what the function made may be made again."""

    def note_read(self, handle: Any) -> None:
        """So they may be read."""

    def is_outside(self, _v: Val) -> bool:
        """Nothing is: all that is read are arguments, or numbers that the function wrote down."""
        return False

    def __getattr__(self, name: str) -> Any:
        raise NotOutlinedError(name)


_NEW = object()
_CPU = Backend.CPU


class Outlined:
    """A function of tensors, and what it recorded for the types and settings it was called with."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name = name
        self.function = function
        self._known: dict[Any, Any] = {}

    def __call__(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """What the function gives, recorded as one expression where it can be."""
        if unusual and modes.noted:
            return self.function(*args, **kwargs)
        key: list[Any] = [get_default_dtype()._value_, chosen.backend is _CPU]
        values: list[Val] = []
        flowing = 0
        grad = modes.grad
        for a in (*args, *kwargs, *kwargs.values()) if kwargs else args:
            if isinstance(a, Handle):
                v = a._value
                spec = v.spec
                if spec.known is not None or v.layout is not None:
                    return self.function(*args, **kwargs)
                key.append(spec)
                if grad and v.needs_grad:
                    flowing |= 1 << len(values)
                values.append(v)
            elif a is None:
                key.append(None)
            else:
                key.append(type(a))
                key.append(str(a) if type(a) is float and not a else a)  # 0.0 is not -0.0
        key.append(flowing)
        found = tuple(key)
        try:
            known = self._known.get(found, _NEW)
        except TypeError:  # a list, or something else that may change
            known = None
        if known is _NEW:
            known = self._recorded(found, args, kwargs)
        if known is None:
            return self.function(*args, **kwargs)
        rule, pack = known
        made = call(rule, tuple(values))
        return wrap(made[0]) if pack is None else pack(made)

    def _recorded(self, key: tuple[Any, ...], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if len(self._known) > MAX_MEMORY // 10:
            self._known.clear()
        found = self._known[key] = _record(self.name, self.function, args, kwargs)
        return found


def outlined(function: Callable[P, R]) -> Callable[P, R]:
    """Record a function once for given types and settings.

    It must compute its results, a tensor or several, from its arguments alone: tensors, numbers, strings, tuples.
    """
    table = Outlined(function.__name__, function)

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        return table(args, kwargs)

    return run


def own(x: Tensor) -> Tensor:
    """What an outlined function computed as a view of something inside, as a tensor of its own."""
    return wrap(apply(Identity, (x._value,)))


def _record(name: str, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Run a function on stand-ins: its outline, and how to pack its results; None where it does something else too."""
    inputs: list[Val] = []

    def stand_in(a: Any) -> Any:
        if not isinstance(a, Handle):
            return a
        v = Val(a._value.spec)
        v.needs_grad = modes.grad and a._value.needs_grad
        inputs.append(v)
        return wrap(v)

    given, named = [stand_in(a) for a in args], {k: stand_in(a) for k, a in kwargs.items()}
    strict: Any = _Strict()
    modes.switch(tracer=strict)
    try:
        result = function(*given, **named)
    except NotOutlinedError:
        return None
    finally:
        modes.switch(tracer=None)
    handles = [result] if isinstance(result, Handle) else [t for t in result if t is not None]
    if any(t._alias is not None and t._alias.steps for t in handles):
        return None  # views of something tell so
    outputs = [_own(t._value, inputs) for t in handles]
    if any(v.expr is not None and v.expr.function is not None for v in outputs):
        return None
    return _outline(name, inputs, outputs), None if isinstance(result, Handle) else _packer(result)


def _own(v: Val, inputs: Sequence[Val]) -> Val:
    """A result as something that the function computes."""
    return apply(Identity, (v,)) if v.expr is None or any(v is given for given in inputs) else v


def _packer(result: tuple[Any, ...]) -> Callable[[list[Val]], Any]:
    """Puts values where the tensors of a result were."""
    kind: Any = type(result)
    present = [t is not None for t in result]

    def pack(values: list[Val]) -> Any:
        left = iter(values)
        parts = [wrap(next(left)) if there else None for there in present]
        return kind(*parts) if hasattr(kind, "_fields") else kind(parts)

    return pack


def _outline(name: str, inputs: list[Val], outputs: list[Val]) -> Outline:
    flows = tuple(v.needs_grad for v in outputs)
    if any(flows):  # compositions without a gradient of their own are opened, as gradients read what is inside
        chosen = [v for v in outputs if v.needs_grad]
        gradients(chosen, [Val(v.spec) for v in chosen], inputs, create_graph=False, release=False)
    template = _template(inputs, outputs)
    rule = Outline(name, tuple(v.spec for v in inputs), [v.spec for v in outputs], template)
    rule.flows, rule.wants = flows, tuple(v.needs_grad for v in inputs)
    return rule


def gradient_of(rule: Outline, arrived: tuple[bool, ...]) -> Outline:
    """The outline of the gradient of another."""
    found = rule.derivatives.get(arrived)
    if found is None:
        found = rule.derivatives[arrived] = _derive(rule, arrived)
    return found


def _derive(rule: Outline, arrived: tuple[bool, ...]) -> Outline:
    inputs = [Val(spec) for spec in rule.ins if spec is not None]
    for v, wanted in zip(inputs, rule.wants, strict=True):
        v.needs_grad = wanted
    grad, modes.grad = modes.grad, True
    try:
        slots = rule.template.fill(inputs)
    finally:
        modes.grad = grad
    chosen: list[Any] = [slots[p] for p, come in zip(rule.template.outputs, arrived, strict=True) if come]  # type: ignore[index]
    seeds = [Val(v.spec) for v in chosen]
    saved: list[Val] = []
    found = gradients(chosen, seeds, inputs, create_graph=False, release=False, saved=saved)
    grads = {i: found[id(v)][1] for i, v in enumerate(inputs) if id(v) in found}
    passes = {i: n for i, g in grads.items() for n, seed in enumerate(seeds) if g is seed}
    targets = tuple(i for i in grads if i not in passes)
    template = _template([*seeds, *slots], [grads[i] for i in targets])
    made = Outline(f"{rule.op.name}_gradient", (), [grads[i].spec for i in targets], template)
    made.targets, made.passes = targets, tuple(passes.items())
    visible = [*range(len(inputs)), *[p for p in rule.template.outputs if p is not None]]
    needed = {_identity(v) for v in saved}
    made.saved = tuple(p for p in visible if _identity(slots[p]) in needed)
    return made


def _identity(v: Val | None) -> Any:
    """What two objects for one value have in common."""
    return None if v is None else id(v) if v.expr is None else (v.expr, v.index)


def _template(given: Sequence[Val | None], outputs: Sequence[Val]) -> GradientTemplate:
    """What leads from given values to others, as operators on slots; what else there is was written down inside."""
    template = GradientTemplate(len(given))
    places = {_identity(v): i for i, v in enumerate(given) if v is not None}
    order = _between(places, outputs)
    for v in [*[v for expr in order for v in expr.inputs], *outputs]:
        if v is not None and v.expr is None and id(v) not in places:
            assert v.array is not None
            places[id(v)] = len(given) + len(template.constants)
            template.constants.append(v if v.spec.known is not None else const(v.array, v.spec.dtype))
    count = len(given) + len(template.constants)
    for expr in order:
        template.steps.append((expr.rule, tuple([None if v is None else places[_identity(v)] for v in expr.inputs])))
        for i in range(len(expr.rule.outs)):
            places[expr, i] = count + i
        count += len(expr.rule.outs)
    template.outputs = [places[_identity(v)] for v in outputs]
    return template


def _between(places: dict[Any, int], outputs: Sequence[Val]) -> list[Expr]:
    """The expressions that lead to values from those that have a place, in running order."""
    done: set[Expr] = set()
    order: list[Expr] = []
    stack = [v.expr for v in reversed(outputs) if v.expr is not None and _identity(v) not in places]
    while stack:
        expr = stack[-1]
        more = [
            v.expr
            for v in expr.inputs
            if v is not None and v.expr is not None and v.expr not in done and _identity(v) not in places
        ]
        if expr not in done and more:
            stack += more
            continue
        stack.pop()
        if expr not in done:
            done.add(expr)
            order.append(expr)
    return order
