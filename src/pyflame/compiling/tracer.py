"""What a function does while it is traced: what it reads, what it writes, what it must not ask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import ref

from pyflame.lazy import Expr, Val, next_serial
from pyflame.module_scopes import ModuleScopes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np

    from pyflame.autograd.leaf import Leaf
    from pyflame.ops.core import Handle
    from pyflame.storage import Family, Storage

__all__ = ["TraceError", "Tracer"]


class TraceError(RuntimeError):
    """A function asks, while it is compiled, for something that is only known when it runs."""


class Tracer:
    """The record of one trace.

    Attributes:
        captured: values from outside that were read, each with (a weak reference to) the tensor or family that held it.
        written: families from outside whose base got a new value, each with the one it had (and which argument it is).
        storages: those whose tensors hold values of the trace.
        keys: random keys that were drawn, each with where from.
        scalars: numbers to be read again at each call.
        grads: leaves whose gradient was read or written, with the gradient they had.
        cleared: those of them (ids) whose gradient was dropped unseen: whether there was one makes no difference.
        modules: what was called in which mode (object, training).
        settings: optimizers that stepped.
        consulted: tensors from outside whose contents the function looked at, with the values they had.
        spans: which module recorded what.
        exports: the graph is for a file, where checks of ours have no place.
    """

    def __init__(self, *, exports: bool = False) -> None:
        self.exports = exports
        self.start = next_serial()
        self.captured: dict[int, tuple[Val, ref[Handle] | ref[Family]]] = {}
        self.written: dict[int, tuple[Family, Val, int | None]] = {}
        self.storages: dict[int, Storage] = {}
        self.keys: dict[int, tuple[Val, Any]] = {}
        self.scalars: dict[int, tuple[Val, Callable[[], Any]]] = {}
        self.grads: dict[int, tuple[Leaf, Any]] = {}
        self.cleared: set[int] = set()
        self.modules: dict[int, tuple[Any, bool]] = {}
        self.settings: dict[int, Any] = {}
        self.placeholders: dict[int, int] = {}
        self.consulted: dict[int, tuple[Handle, Val]] = {}
        self.spans = ModuleScopes()

    def is_outside(self, v: Val) -> bool:
        """Whether a value was there before the trace began."""
        if id(v) in self.placeholders:
            return False
        expr: Expr | None = v.expr
        return v.array is not None or (expr is not None and expr.serial < self.start)

    def saw(self, inputs: Sequence[Any]) -> None:
        """Note tensors that an operator reads."""
        for t in inputs:
            v = getattr(t, "_value", None)
            if v is not None and v.spec.known is None and self.is_outside(v):
                self.captured[id(v)] = (v, ref(t))

    def note_key(self, v: Val, generator: Any) -> None:
        """Note a random key: each call draws another."""
        self.keys[id(v)] = (v, generator)

    def note_scalar(self, v: Val, read: Callable[[], Any]) -> None:
        """Note a number that each call reads again."""
        self.scalars[id(v)] = (v, read)

    def saw_family(self, family: Family, base: Val) -> None:
        """Note a base that views are made of again."""
        self.storages[id(family.storage)] = family.storage
        if base.spec.known is None and self.is_outside(base):
            self.captured[id(base)] = (base, ref(family))

    def note_read(self, handle: Handle) -> None:
        """Note that a tensor took its value anew."""
        storage = handle._alias.family.storage  # type: ignore[union-attr]
        self.storages[id(storage)] = storage

    def note_write(self, family: Family) -> None:
        """Note that a base gets a new value; what it had when the trace began counts."""
        old = family.value
        self.storages[id(family.storage)] = family.storage
        if old is None or id(family) in self.written:
            return
        at = self.placeholders.get(id(old))
        if at is not None or self.is_outside(old):
            self.written[id(family)] = (family, old, at)

    def restore(self) -> None:
        """Undo what the trace wrote: the replay that follows does it for real."""
        for family, old, _ in self.written.values():
            family.storage.changed()
            family.bind(old)
        for storage in self.storages.values():
            storage.outdate()
        for lf, grad in self.grads.values():
            lf.grad = grad

    def note_grad(self, leaf: Leaf) -> None:
        """Note that a gradient is read, or about to be written."""
        if id(leaf) not in self.grads:
            self.grads[id(leaf)] = (leaf, leaf.grad)

    def clear_grad(self, leaf: Leaf) -> None:
        """Note that a gradient is dropped without having been read."""
        if id(leaf) not in self.grads:
            self.cleared.add(id(leaf))
        self.note_grad(leaf)

    def note_mode(self, module: Any) -> None:
        """Note that a module was called: its mode becomes a condition for using the trace again."""
        self.modules[id(module)] = (module, bool(module.training))

    def note_settings(self, settings: Any) -> None:
        """Note an optimizer: what its `fixed()` says after the trace becomes a condition for using the trace again."""
        self.settings[id(settings)] = settings

    def refuse_evaluation(self, roots: Sequence[Val]) -> None:
        """Contents of what the function computes are not there while it is traced."""
        if any(not self.is_outside(v) for v in roots):
            raise TraceError(
                "a compiled function reads the contents of a tensor (item(), numpy(), bool(), print, ...) that is only "
                "known when it runs; return it instead, or decide with pf.where"
            )

    def note_contents(self, handle: Handle) -> None:
        """Note that the function looks at a tensor's contents: they become a condition for using the trace again."""
        if self.is_outside(handle._value):
            self.consulted.setdefault(id(handle), (handle, handle._value))

    def array_of(self, v: Val) -> np.ndarray[Any, Any] | None:
        """The contents of a value from outside."""
        return v.array if self.is_outside(v) else None
