"""Views as steps that can be taken forwards and backwards, and the history that writes leave."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame.autograd.function import Function
from pyflame.lazy import Rule, Val, apply, apply_rule, apply_rule_many, const, leaf, modes
from pyflame.ops.core import Handle, wrap
from pyflame.storage import NEVER, OVERWRITTEN, Alias, Family, alias_of
from pyflame.strides import Geometry, view_strides
from pyflame.unread import unread
from pyflame_rt.ops.onnx.cast import Identity
from pyflame_rt.ops.onnx.index import ScatterND
from pyflame_rt.ops.onnx.shape import Expand, Reshape, Transpose
from pyflame_rt.ops.onnx.slicing import Split
from pyflame_rt.ops.pyflame.complex_numbers import ViewAsComplex, ViewAsReal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame.tensors import Tensor

__all__ = [
    "DiagonalStep", "RuleStep", "SameStep", "Step", "apart", "detached", "detached_view", "geometry_of",
    "keeping_history", "link", "overwrite", "own", "refuse", "refuse_overlap", "regenerated", "rewritten", "through",
    "write",
]  # fmt: skip

NO_GRAD = "was created in no_grad mode"
MULTIPLE = "is one of several views that a function returned"
_OVERLAPS = (
    "several elements of an expanded tensor are one in memory, so it cannot be written in place; clone() it first"
)


_RETYPED = (ViewAsReal.name, ViewAsComplex.name)


class Step:
    """One view of another tensor's elements."""

    __slots__ = ()

    def forward(self, whole: Val) -> Val:
        """The view of a value."""
        raise NotImplementedError

    def put(self, whole: Val, part: Val) -> Val:
        """The value that it is a view of, with other elements where the view is."""
        raise NotImplementedError

    def geometry(self, whole: Geometry) -> Geometry:
        """Where its elements are."""
        raise NotImplementedError


class RuleStep(Step):
    """A view that an operator makes: its rule, the inputs besides the first, and which output it is."""

    __slots__ = ("index", "rest", "rule")

    def __init__(self, rule: Rule, rest: tuple[Val | None, ...], index: int = 0) -> None:
        self.rule = rule
        self.rest = rest
        self.index = index

    def forward(self, whole: Val) -> Val:
        """The view of a value."""
        if self.rule.single:
            return apply_rule(self.rule, (whole, *self.rest))
        return apply_rule_many(self.rule, (whole, *self.rest))[self.index]

    def put(self, whole: Val, part: Val) -> Val:
        """The value with other elements where the view is."""
        from pyflame.ops import indexing as ix
        from pyflame.ops import shaping as sh

        shape = tuple(whole.spec.shape)
        match self.rule.op.name:
            case Reshape.name:
                return own(sh.reshape(wrap(part), shape)._value)
            case Transpose.name:
                order = self.rule.bound["perm"]
                back = [0] * len(order)
                for i, axis in enumerate(order):
                    back[axis] = i
                return own(sh.permute(wrap(part), back)._value)
            case ViewAsReal.name:
                return apply(ViewAsComplex, (part,))
            case ViewAsComplex.name:
                return apply(ViewAsReal, (part,))
        parts = [(0, size, 1) for size in shape]
        for axis, start, stop, step in self._slices():
            parts[axis] = (start, stop, step)
        counts = [len(range(*p)) for p in parts]
        return own(ix._put(wrap(whole), parts, counts, wrap(part), 0)._value)

    def _slices(self) -> list[tuple[int, int, int, int]]:
        """Of a Slice or Split: axis, start, stop, step."""
        if self.rule.op.name == Split.name:
            axis, sizes = self.rule.bound["axis"], [spec.shape[self.rule.bound["axis"]] for spec in self.rule.outs]
            start = sum(sizes[: self.index])
            return [(axis, start, start + sizes[self.index], 1)]
        starts, stops, axes, steps = (v.array.tolist() for v in self.rest if v is not None and v.array is not None)
        return list(zip(axes, starts, stops, steps, strict=True))

    def geometry(self, whole: Geometry) -> Geometry:
        """Where its elements are."""
        shape, name = tuple(self.rule.outs[self.index].shape), self.rule.op.name
        if name == Reshape.name:
            strides = view_strides(whole.shape, whole.strides, shape)
            assert strides is not None
            return Geometry(shape, strides, whole.offset)
        if name == Transpose.name:
            return Geometry(shape, [whole.strides[a] for a in self.rule.bound["perm"]], whole.offset)
        if name == ViewAsReal.name:  # places are counted in elements of the view
            return Geometry(shape, [*[2 * s for s in whole.strides], 1], 2 * whole.offset)
        if name == ViewAsComplex.name:
            return Geometry(shape, [s // 2 for s in whole.strides[:-1]], whole.offset // 2)
        if name == Expand.name:
            lead = len(shape) - len(whole.shape)
            kept = [
                s if size == new else 0 for s, size, new in zip(whole.strides, whole.shape, shape[lead:], strict=True)
            ]
            return Geometry(shape, [*[0] * lead, *kept], whole.offset)
        strides, offset = list(whole.strides), whole.offset
        for axis, start, _, step in self._slices():
            offset += start * strides[axis]
            strides[axis] *= step
        return Geometry(shape, strides, offset)


class SameStep(Step):
    """All elements as they are."""

    __slots__ = ()

    def forward(self, whole: Val) -> Val:
        """Another value like it."""
        return apply(Identity, (whole,))

    def put(self, whole: Val, part: Val) -> Val:
        """The part is all there is."""
        del whole
        return part

    def geometry(self, whole: Geometry) -> Geometry:
        """Where the elements were."""
        return whole


class DiagonalStep(Step):
    """The diagonal of two dimensions, as the last."""

    __slots__ = ("first", "offset", "second")

    def __init__(self, offset: int, first: int, second: int) -> None:
        self.offset, self.first, self.second = offset, first, second

    def forward(self, whole: Val) -> Val:
        """The diagonal of a value."""
        from pyflame.ops.gathering import diagonal

        return diagonal(wrap(whole), self.offset, self.first, self.second)._value

    def put(self, whole: Val, part: Val) -> Val:
        """The value with another diagonal."""
        from pyflame.ops import shaping as sh
        from pyflame.ops.arithmetic import where
        from pyflame.ops.core import as_tensor
        from pyflame.ops.gathering import diag_embed

        x = wrap(whole)
        rest = [d for d in range(x.ndim) if d not in (self.first, self.second)]
        order = [*rest, self.first, self.second]
        front = sh.permute(x, order)
        rows, cols = front.shape[-2:]
        square = diag_embed(wrap(part), self.offset)
        size = square.shape[-1]
        if rows > size or cols > size:
            square = sh.pad(square, [0, max(0, cols - size), 0, max(0, rows - size)])
        square = sh.slice_axes(square, [(front.ndim - 2, 0, rows, 1), (front.ndim - 1, 0, cols, 1)])
        mask = as_tensor(np.eye(rows, cols, self.offset, dtype=bool))
        return own(sh.permute(where(mask, square, front), np.argsort(order).tolist())._value)

    def geometry(self, whole: Geometry) -> Geometry:
        """Where its elements are."""
        a, b = self.first, self.second
        rest = [d for d in range(len(whole.shape)) if d not in (a, b)]
        down, right = max(0, -self.offset), max(0, self.offset)
        count = max(0, min(whole.shape[a] - down, whole.shape[b] - right))
        shape = [*[whole.shape[d] for d in rest], count]
        strides = [*[whole.strides[d] for d in rest], whole.strides[a] + whole.strides[b]]
        offset = whole.offset + (down * whole.strides[a] + right * whole.strides[b] if count else 0)
        return Geometry(shape, strides, offset)


# ------------------------------------------------------------------ values


def own(v: Val, handles: int = 0) -> Val:
    """The value itself where it is no tensor's (or one's, who gives it away) and no constant, else another like it."""
    if v.handles > handles or v.leaf is not None or v.spec.known is not None or v.stamp is not None:
        return apply(Identity, (v,)) if v.needs_grad and modes.grad else detached(v)
    return v


def detached(v: Val) -> Val:
    """Another value with the same contents and no history."""
    if v.array is not None and modes.tracer is None:
        made = leaf(v.array, v.spec.dtype)
    else:  # recorded: each call of a compiled function reads what is there then
        before, modes.grad = modes.grad, False
        try:
            made = apply(Identity, (v,))
        finally:
            modes.grad = before
    made.layout = v.layout
    return made


def through(steps: Sequence[Step], value: Val) -> Val:
    """The view of a base that steps lead to."""
    for step in steps:
        value = step.forward(value)
    return own(value)


def put(steps: Sequence[Step], base: Val, part: Val) -> Val:
    """The base with other elements where a view is."""
    if any(isinstance(step, RuleStep) and step.rule.op.name == Expand.name for step in steps):
        return _scattered(steps, base, part)
    wholes = [base]
    for step in steps[:-1]:
        wholes.append(step.forward(wholes[-1]))
    for step, whole in zip(reversed(steps), reversed(wholes), strict=True):
        part = step.put(whole, part)
    return part


def _scattered(steps: Sequence[Step], base: Val, part: Val) -> Val:
    """The same, by the places of the elements: a view in which some may be one in memory."""
    if any(isinstance(step, RuleStep) and step.rule.op.name in _RETYPED for step in steps):
        raise RuntimeError(_OVERLAPS)
    where = Geometry(base.spec.shape)
    for step in steps:
        where = step.geometry(where)
    places = np.full(where.shape, where.offset, np.int64)
    for axis, (size, stride) in enumerate(zip(where.shape, where.strides, strict=True)):
        places += (np.arange(size) * stride).reshape([-1 if a == axis else 1 for a in range(len(where.shape))])
    if not places.size:
        return own(apply(Identity, (base,)))
    from pyflame.ops import shaping as sh
    from pyflame.ops.core import call

    done = call(ScatterND, sh.ravel(wrap(base)), const(places.reshape(-1, 1)), sh.ravel(wrap(part)))
    return own(sh.reshape(done, tuple(base.spec.shape))._value)


def _with_function(data: Val, old: Val, name: str, rule: Any, *others: Val) -> Val:
    """A value with other contents whose gradient goes to the old one (and to others), by a rule."""
    before, modes.grad = modes.grad, False
    try:
        made = apply(Identity, (data,))
    finally:
        modes.grad = before
    assert made.expr is not None
    made.expr.function = Function(name, (old, *others), rule, movable=True)
    made.needs_grad = True
    made.layout = old.layout
    return made


def keeping_history(data: Val, old: Val) -> Val:
    """New contents of what had a history, which stays: written without recording, or by a detached tensor."""
    if old.leaf is not None and (old.leaf.requires_grad or not old.needs_grad):
        made = detached(data) if data.needs_grad or data.leaf is not None or data is old else data
        made.leaf, made.needs_grad = old.leaf, old.leaf.requires_grad
        return made
    if not old.needs_grad:
        return detached(data) if data.needs_grad or data is old else data
    return _with_function(data, old, "an in-place operation without gradients", lambda g: [g])


def _cut(data: Val, old: Val) -> Val:
    """New contents that do not depend on the old ones: those get a gradient of zeros."""

    def zeros(g: Any) -> list[Any]:
        from pyflame.ops.creation import zeros_like

        return [zeros_like(g), g][: 1 + data.needs_grad]

    return _with_function(data, old, "an in-place operation", zeros, *[data][: data.needs_grad])


def regenerated(alias: Alias, base: Val) -> Val:
    """The value of a view after its storage was written."""
    before, modes.grad = modes.grad, alias.origin != NO_GRAD
    try:
        if modes.tracer is not None:
            modes.tracer.saw_family(alias.family, base)
        value = through(alias.steps, base)
        if not alias.origin or not base.needs_grad:
            return value
        return _refusing(value, alias.origin)
    finally:
        modes.grad = before


def _refusing(value: Val, origin: str) -> Val:
    """A view that gradients cannot flow through any more, as torch has it."""

    def refuse(_: Any) -> list[Any]:
        raise RuntimeError(
            f"a view {origin} and its base, or another view of its base, has been modified in place: gradients cannot "
            "flow through it. Make the view again after the change, or replace the in-place operation"
        )

    return _with_function(detached(value), value, "a view", refuse)


# ------------------------------------------------------------------ writing


def refuse(handle: Tensor, since: int) -> None:
    """Refuse an in-place operation, recorded from an expression on, that torch refuses where gradients are recorded."""
    old, alias = handle._value, handle._alias
    if alias is not None and alias.steps:
        if alias.origin:
            raise RuntimeError(
                f"a view {alias.origin} and is being modified in place where gradients are recorded; "
                "use the form that makes a new tensor"
            )
        base = alias.family.current()
        if old.needs_grad and alias.linked >= since:
            alias.forget(handle)
            raise RuntimeError(
                "a view is changed in place that was made before its base required gradients; make the view again"
            )
        if old.needs_grad and base.leaf is not None and base.leaf.requires_grad:
            raise RuntimeError(
                "a view of a leaf that requires gradients is changed in place; do it inside no_grad(), "
                "or on a clone of the leaf"
            )
    elif old.needs_grad and old.leaf is not None and old.leaf.requires_grad:
        raise RuntimeError("a leaf that requires gradients is changed in place; do it inside no_grad()")


def write(handle: Tensor, value: Val, *, recording: bool, replacing: bool = False, since: int | None = None) -> None:
    """Give a tensor new contents, and with it all others of its storage.

    Args:
        handle: the tensor.
        value: the contents, of its type; a tensor that refers to it gives it away.
        recording: the history of the contents becomes that of the tensor; else the tensor keeps its own.
        replacing: the new contents do not depend on the old ones.
        since: expressions from this number on made the new contents, so they may read the old ones.
    """
    old = handle._value
    _write(handle, old, value, recording, replacing)
    if old.array is None and not replacing:
        unread.add(old, _contents(handle))
    if since is not None and old.stamp is not None:
        old.stamp = (*old.stamp[:2], since)


def overwrite(handle: Tensor, value: Val) -> None:
    """Give a tensor what one expression made of its contents just now, where no gradients are concerned."""
    old, alias = handle._value, handle._alias
    assert value.expr is not None
    since = value.expr.serial
    if old.leaf is not None or (alias is not None and (alias.steps or alias.family.parent is not None)):
        write(handle, value, recording=False, since=since)
        return
    if value.layout is None:
        value.layout = old.layout
    if alias is None:
        old.stamp = (OVERWRITTEN[0], 0, since)
    else:
        family = alias.family
        storage = family.storage
        old.stamp = (storage, storage.writes, since)
        storage.wrote(silent=family.silent)
        family.bind(value)
        storage.outdate(handle)
    old.handles -= 1
    value.handles += 1
    handle._value = value
    if old.array is None:
        unread.add(old, value)


def _contents(handle: Tensor) -> Val:
    """What a tensor's base holds, which needs no views to be made again."""
    alias = handle._alias
    return handle._value if alias is None else alias.family.current()


def _write(handle: Tensor, old: Val, value: Val, recording: bool, replacing: bool) -> None:
    alias = alias_of(handle) if modes.tracer is not None else handle._alias
    if alias is None or not alias.steps:
        value = _with_history(value, old, recording, replacing)
        if value.layout is None:
            value.layout = old.layout
    if alias is None:
        old.stamp = OVERWRITTEN
        old.handles -= 1
        value.handles += 1
        handle._value = value
        return
    family = alias.family
    if not alias.steps:
        _write_base(family, value, handle)
        return
    base = family.current()
    if recording:
        whole = own(put(alias.steps, base, value))
        covered = replacing and value.spec.numel == base.spec.numel
        if base.needs_grad and (covered or not whole.needs_grad):
            whole = _cut(whole, base)
    else:
        before, modes.grad = modes.grad, False
        try:
            whole = keeping_history(own(put(alias.steps, detached(base), detached(value))), base)
        finally:
            modes.grad = before
    _write_base(family, whole, handle)
    if recording:
        alias.linked = 0
    family.storage.stamp(value)  # an operator may have saved it


def refuse_overlap(handle: Tensor, others: Sequence[Any]) -> None:
    """Refuse to write where several elements are one in memory, or are those of an operand at other places."""
    alias = handle._alias
    if alias is None:
        return
    mine = geometry_of(handle)
    if mine.overlaps:
        raise RuntimeError(_OVERLAPS)
    for other in others:
        theirs = other._alias if isinstance(other, Handle) and other is not handle else None
        if theirs is None or theirs.family.storage is not alias.family.storage:
            continue
        if mine.crosses(_geometry(theirs.family, theirs.steps)):
            raise RuntimeError(
                "some elements of an operand and of the tensor that is written in place are one in memory, "
                "at different places; clone() the operand first"
            )


def rewritten(handle: Tensor, other: Any) -> bool:
    """Write a tensor's own elements to it, where another is those and no gradient tells them apart; whether it is."""
    mine, theirs = handle._alias, other._alias if isinstance(other, Handle) else None
    if mine is None or theirs is None or mine.family.storage is not theirs.family.storage:
        return False
    if modes.grad and (handle.requires_grad or other.requires_grad):  # type: ignore[attr-defined]
        return False
    a, b = geometry_of(handle), _geometry(theirs.family, theirs.steps)
    if (a.shape, a.strides, a.offset) != (b.shape, b.strides, b.offset):
        return False
    base = mine.family.current()
    _write_base(mine.family, keeping_history(base, base), handle)
    return True


def _with_history(value: Val, old: Val, recording: bool, replacing: bool) -> Val:
    if not recording:
        return keeping_history(own(value, 1), old)
    if old.needs_grad and (replacing or not value.needs_grad):
        return _cut(value, old)
    return own(value, 0 if value is old else 1)


def _write_base(family: Family, value: Val, handle: Handle) -> None:
    """Give the base of a family a value; the contents go on to the families it was detached from."""
    tracer, parent = modes.tracer, family.parent
    path: list[tuple[Family, Val]] = [(family, value)]
    if parent is not None:
        base, whole = parent.current(), detached(value)
        if family.steps:
            before, modes.grad = modes.grad, False
            try:
                whole = own(put(family.steps, detached(base), whole))
            finally:
                modes.grad = before
        path.append((parent, keeping_history(whole, base)))
    if tracer is not None:
        for touched, _ in path:
            tracer.note_write(touched)
    family.storage.wrote(silent=family.silent)
    for touched, new in path:
        touched.bind(new)
    alias = handle._alias
    assert alias is not None
    if alias.steps:
        family.storage.outdate()
        return
    family.storage.outdate(keep=handle)
    handle._value.handles -= 1
    value.handles += 1
    handle._value = value


# ------------------------------------------------------------------ making views


def _stop(view: Val, source: Val) -> None:
    """A view made without recording says that it requires gradients, but none flows through it, as torch has it."""
    if view.expr is not None:
        view.expr.function = Function("a view made in no_grad mode", (source,), lambda *_: [None], movable=True)
        view.needs_grad = True


def link(source: Tensor, result: Tensor, steps: tuple[Step, ...], origin: str = "") -> Tensor:
    """Let a tensor that was just made by these steps be a view of another."""
    alias = source._alias or alias_of(source)
    flowing = source._value.needs_grad
    if not modes.grad:
        origin = NO_GRAD
        if flowing:
            _stop(result._value, source._value)
    family = alias.family
    storage = family.storage
    path = (*alias.steps, *steps) if alias.steps else steps
    result._alias = Alias(family, path, origin or alias.origin, 0 if flowing else NEVER)
    result._value.stamp = (storage, storage.writes)
    storage.joined(result)
    return result


def detached_view(source: Tensor, cls: type, *, silent: bool = False) -> Any:
    """A tensor of the same storage with a history of its own."""
    alias = alias_of(source)
    linked, value = alias.linked, detached(source._value)
    if alias.linked != linked:
        alias.forget(source)
    first = alias.family.parent
    if first is None:
        family = Family(alias.family.storage, value, alias.family, alias.steps)
    else:
        family = Family(alias.family.storage, value, first, (*alias.family.steps, *alias.steps))
    family.silent = silent
    family.storage.stamp(value)
    made = object.__new__(cls)
    made._value, made._alias = value, Alias(family)
    value.handles += 1
    family.storage.joined(made)
    return made


def apart(handle: Tensor) -> Tensor:
    """Let a view have a history of its own from now on."""
    made = detached_view(handle, type(handle))
    old, value = handle._value, made._value
    old.handles -= 1
    value.handles += 1
    handle._value, handle._alias = value, made._alias
    made._alias.family.storage.joined(handle)
    return handle


def geometry_of(handle: Tensor) -> Geometry:
    """Where the elements of a tensor are in its storage."""
    alias = handle._alias
    if alias is None:
        return Geometry(handle._value.spec.shape)
    return _geometry(alias.family, alias.steps)


def _geometry(family: Family, steps: Sequence[Step]) -> Geometry:
    parent = family.parent
    made = Geometry(family.spec.shape) if parent is None else _geometry(parent, family.steps)
    for step in steps:
        made = step.geometry(made)
    return made
