"""Views as users ask for them: functions of `pyflame.ops` whose results share the storage of their argument."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from pyflame.entries import entry_of
from pyflame.lazy import Val, apply, modes
from pyflame.ops import gathering as ga
from pyflame.ops import indexing as ix
from pyflame.ops import shaping as sh
from pyflame.ops.core import Handle, axis_of, call, wrap
from pyflame.strides import view_strides
from pyflame.views import MULTIPLE, DiagonalStep, RuleStep, SameStep, Step, geometry_of, link
from pyflame_rt.ops.onnx.cast import Identity
from pyflame_rt.ops.onnx.shape import Expand, Reshape, Transpose
from pyflame_rt.ops.onnx.slicing import Slice, Split
from pyflame_rt.ops.pyflame.complex_numbers import ViewAsComplex, ViewAsReal

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyflame.tensors import Tensor

__all__ = [
    "broadcast_tensors", "broadcast_to", "chunk", "diagonal", "expand", "expand_as", "flatten", "getitem", "moveaxis",
    "movedim", "narrow", "permute", "ravel", "reshape", "reshape_as", "select", "split", "squeeze", "swapaxes",
    "swapdims", "t", "tensor_split", "transpose", "unbind", "unflatten", "unsqueeze", "view", "view_as",
]  # fmt: skip

_VIEWS = frozenset(op.name for op in (Reshape, Transpose, Slice, Split, Expand, ViewAsComplex, ViewAsReal))


def _steps(source: Val, result: Val) -> tuple[Step, ...]:
    """The views that lead from one value to another; none where something else was computed on the way."""
    found: list[Step] = []
    while result is not source:
        expr = result.expr
        if expr is None or expr.rule.op.name not in _VIEWS:
            return ()
        step = RuleStep(expr.rule, expr.inputs[1:], result.index)
        if expr.rule.op.name == Slice.name and any(stride < 0 for _, _, _, stride in step._slices()):
            return ()
        found.append(step)
        first = expr.inputs[0]
        if first is None:
            return ()
        result = first
    return tuple(reversed(found))


def _linked(source: Any, result: Any, origin: str = "") -> Any:
    """The result as a view of the source: another tensor, as in torch, also where it has the same shape."""
    if not isinstance(source, Handle):
        return result
    if result is source:
        return _same(source, origin)
    steps = _steps(source._value, result._value)
    return link(source, result, steps, origin) if steps else result  # type: ignore[arg-type]


def _same(source: Any, origin: str = "") -> Any:
    """A view of all elements as they are: where gradients are not recorded, none flows through it."""
    made = wrap(apply(Identity, (source._value,)))
    return link(source, made, (SameStep(),), origin)


def _viewing(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, its result being a view."""

    @functools.wraps(function)
    def run(input: Any, *args: Any, **kwargs: Any) -> Any:
        return _linked(input, function(input, *args, **kwargs))

    return run


def _several(function: Callable[..., Any], origin: str = MULTIPLE) -> Callable[..., Any]:
    """The function, its results being views; torch lets none of them be written where gradients are recorded."""

    @functools.wraps(function)
    def run(input: Any, *args: Any, **kwargs: Any) -> Any:
        results = function(input, *args, **kwargs)
        return tuple([_linked(input, part, origin if modes.grad else "") for part in results])

    return run


def _flattening(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which gives back the tensor itself where there is nothing to flatten."""
    inner = _reshaping(function)

    @functools.wraps(function)
    def run(input: Any, *args: Any, **kwargs: Any) -> Any:
        flat = isinstance(input, Handle) and len(input._value.spec.shape) == 1
        return function(input, *args, **kwargs) if flat else inner(input, *args, **kwargs)

    return run


def _reshaping(function: Callable[..., Any], *, strict: bool = False) -> Callable[..., Any]:
    """The function, its result being a view where the elements lie so; else a copy, or (``strict``) an error."""

    @functools.wraps(function)
    def run(input: Any, *args: Any, **kwargs: Any) -> Any:
        result = function(input, *args, **kwargs)
        if not isinstance(input, Handle):
            return result
        if result is input or input._alias is None or not input._alias.steps or _lies(input, result):
            return _linked(input, result)
        if strict:
            raise RuntimeError(
                f"view: a tensor of shape {list(input._value.spec.shape)} and strides "
                f"{list(geometry_of(input).strides)} cannot be seen as {list(result._value.spec.shape)} without "  # type: ignore[arg-type]
                "copying it; use reshape()"
            )
        return result

    return run


def _lies(source: Any, result: Any) -> bool:
    """Whether the elements of a tensor lie in memory as those of another shape would."""
    have = geometry_of(source)
    return view_strides(have.shape, have.strides, tuple(result._value.spec.shape)) is not None


reshape, reshape_as = _reshaping(sh.reshape), _reshaping(sh.reshape_as)
flatten, ravel = _flattening(sh.flatten), _reshaping(sh.ravel)
view, view_as, unflatten = (_reshaping(f, strict=True) for f in (sh.view, sh.view_as, sh.unflatten))
squeeze, unsqueeze, expand_dims = _viewing(sh.squeeze), _viewing(sh.unsqueeze), _viewing(sh.expand_dims)
permute, transpose, t = _viewing(sh.permute), _viewing(sh.transpose), _viewing(sh.t)
swapaxes = swapdims = transpose
movedim = moveaxis = _viewing(sh.movedim)
expand, expand_as, broadcast_to = _viewing(sh.expand), _viewing(sh.expand_as), _viewing(sh.broadcast_to)
narrow = _viewing(sh.narrow)
split, chunk, unbind = _several(sh.split), _several(sh.chunk), _several(sh.unbind)
tensor_split = _several(sh.tensor_split, "")


@_viewing
def as_pairs(input: Any) -> Tensor:
    """Complex numbers as pairs of parts."""
    return call(ViewAsReal, input)


@_viewing
def as_numbers(input: Any) -> Tensor:
    """Pairs of parts as complex numbers; refused where parts do not lie side by side, as in torch."""
    where = geometry_of(input)
    if where.strides[-1] != 1 or where.offset % 2 or any(stride % 2 for stride in where.strides[:-1]):
        raise RuntimeError(
            f"view_as_complex: the parts of a tensor with strides {list(where.strides)} do not lie side by side; "
            "use x.contiguous()"
        )
    return call(ViewAsComplex, input)


@functools.wraps(sh.broadcast_tensors)
def broadcast_tensors(*tensors: Any) -> list[Tensor]:
    """All tensors stretched to their common shape."""
    return [_linked(given, made) for given, made in zip(tensors, sh.broadcast_tensors(*tensors), strict=True)]


@functools.wraps(ga.diagonal)
def diagonal(input: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """The diagonal of two dimensions, as the last."""
    made = ga.diagonal(input, offset, dim1, dim2)
    if not isinstance(input, Handle):
        return made
    rank = len(input._value.spec.shape)
    step = DiagonalStep(offset, axis_of(dim1, rank), axis_of(dim2, rank))
    return link(input, made, (step,))  # type: ignore[arg-type]


@functools.wraps(ga.select)
def select(input: Any, dim: int, index: int) -> Tensor:
    """One entry of a dimension, without it."""
    return _linked(input, ga.select(input, dim, index))


def getitem(x: Tensor, key: Any) -> Tensor:
    """``x[key]``: a view for ints, slices, None and ..., a copy for any other key."""
    v = x._value
    entry = entry_of(v.spec, key)
    if entry is not None:
        return link(x, wrap(entry.forward(v)), entry.as_steps)
    plain = ix.plain_key(key)
    known = None if plain is None or modes.tracer is not None else _known.get((v.spec, plain))
    if known is not None:
        for step in known:
            v = step.forward(v)
        return link(x, wrap(v), known)
    made = ix.getitem(x, key)
    if made is x:
        return _linked(x, x)
    if plain is None:
        return made
    steps = _steps(v, made._value)
    if not steps:
        return made
    if modes.tracer is None and v.spec.known is None:
        if len(_known) >= MAX_KNOWN:
            _known.clear()
        _known[v.spec, plain] = steps
    return link(x, made, steps)


# The views that plain keys make of tensors of a type.
MAX_KNOWN = 10_000
_known: dict[Any, tuple[Step, ...]] = {}
