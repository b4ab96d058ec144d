"""What a trace is bound to: tensors it reads, tensors and gradients it writes, each with its version.

A binding knows the array that stands for its tensor now, and whether nobody else can refer to it: then, and only then,
a replay writes into it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame.evaluation import evaluate
from pyflame.ops.core import Handle
from pyflame.storage import Family, alias_of

if TYPE_CHECKING:
    import numpy as np

    from pyflame.autograd.leaf import Leaf
    from pyflame.lazy import Spec, Val
    from pyflame.storage import Versioned

__all__ = ["Binding", "Gradient", "Read", "State"]


class Binding:
    """One tensor or gradient of a trace.

    Attributes:
        place: which input of the graph it is; -1 for none.
        out: which output becomes its new contents; -1 for none.
        array: its contents; None where a gradient is absent.
        private: nobody else refers to the array.
        copied: the output is also something else's, so its contents are copied.
    """

    __slots__ = ("array", "copied", "out", "place", "private")

    def __init__(self, place: int, out: int) -> None:
        self.place = place
        self.out = out
        self.array: np.ndarray[Any, Any] | None = None
        self.private = False
        self.copied = False

    def source(self) -> Versioned:
        """What has the version."""
        raise NotImplementedError

    def look(self) -> bool:
        """Find the array; False where this is not what the trace was made for."""
        raise NotImplementedError

    def take(self, array: np.ndarray[Any, Any]) -> None:
        """The output was computed into an array that nobody else has."""
        raise NotImplementedError

    def value(self) -> Val:
        """The contents as a value, which others may refer to from now on."""
        raise NotImplementedError

    @property
    def lasts(self) -> bool:
        """Whether what the trace itself makes of it is what the trace was made for."""
        return True


class Read(Binding):
    """A tensor that is only read."""

    __slots__ = ("holder", "spec", "wants")

    def __init__(self, holder: Handle | Family, v: Val, place: int) -> None:
        super().__init__(place, -1)
        self.holder = holder
        self.spec, self.wants = v.spec, _wants(v)

    def source(self) -> Versioned:
        """What has the version."""
        return _family(self.holder).storage

    def look(self) -> bool:
        """Find the array."""
        family = _base(self.holder)
        if family is not None and family.lent is not None:  # read on the spot: whoever lent it need not know
            self.array = family.lent
            return family.spec is self.spec and family.wants_grad is self.wants
        v = self.value()
        if v.array is None:
            evaluate([v])
        self.array = v.array
        return v.spec is self.spec and _wants(v) is self.wants

    def value(self) -> Val:
        """The contents as a value."""
        return self.holder._value if isinstance(self.holder, Handle) else self.holder.current()


class State(Binding):
    """A tensor that is written, and perhaps read."""

    __slots__ = ("family", "result", "spec", "wants")

    def __init__(self, family: Family, old: Val, place: int, out: int, result: Spec) -> None:
        super().__init__(place, out)
        self.family = family
        self.spec, self.wants = old.spec, _wants(old)
        self.result = result

    def source(self) -> Versioned:
        """What has the version."""
        return self.family.storage

    def look(self) -> bool:
        """Find the array."""
        family = self.family
        if family.lent is not None:
            self.array, self.private = family.lent, True
            return family.spec is self.spec and family.wants_grad is self.wants
        v = family.current()
        if v.array is None and self.place >= 0:
            evaluate([v])
        self.array, self.private = v.array, False
        return v.spec is self.spec and _wants(v) is self.wants

    def take(self, array: np.ndarray[Any, Any]) -> None:
        """The new contents are in this array."""
        self.family.lend(array)
        self.array, self.private = array, True

    def value(self) -> Val:
        """The contents as a value."""
        return self.family.current()


class Gradient(Binding):
    """The gradient of a leaf, read or written.

    Attributes:
        had: whether there must be one; None when that makes no difference.
        drops: there is none afterwards.
        other: a tensor from outside that becomes the gradient.
    """

    __slots__ = ("drops", "had", "leaf", "other", "spec")

    def __init__(self, leaf: Leaf, place: int, out: int, spec: Spec | None, *, had: bool | None) -> None:
        super().__init__(place, out)
        self.leaf = leaf
        self.spec = spec
        self.had = had
        self.drops = False
        self.other: Any = None

    def source(self) -> Versioned:
        """What has the version."""
        return self.leaf

    def look(self) -> bool:
        """Find the array, and whether there should be one."""
        leaf = self.leaf
        if self.had is not None and leaf.has_grad is not self.had:
            return False
        if leaf.lent is not None:
            self.array, self.private = leaf.lent, True
            return self.place < 0 or leaf._spec is self.spec
        grad = leaf.grad
        self.private = False
        if grad is None:
            self.array = None
            return self.place < 0
        if self.place >= 0:
            evaluate([grad._value])
        self.array = grad._value.array
        return self.place < 0 or grad._value.spec is self.spec

    def is_current(self) -> bool:
        """Whether the tensor that is the gradient has the contents it had: it may have been changed in place."""
        grad = self.leaf._grad
        return grad is None or grad._value.array is self.array

    def take(self, array: np.ndarray[Any, Any]) -> None:
        """The new gradient is in this array."""
        assert self.spec is not None
        self.leaf.lend(array, self.spec)
        self.array, self.private = array, True

    @property
    def lasts(self) -> bool:
        """Whether there is still a gradient, or still none."""
        return self.had is None or self.leaf.has_grad is self.had

    def settle(self) -> None:
        """What is not computed: no gradient, or a tensor from outside."""
        if self.drops:
            self.leaf.grad, self.array = None, None
        elif self.other is not None:
            self.leaf.grad = self.other

    def value(self) -> Val:
        """The gradient as a value."""
        grad = self.leaf.grad
        assert grad is not None
        return grad._value


def _family(holder: Handle | Family) -> Family:
    return alias_of(holder).family if isinstance(holder, Handle) else holder


def _base(holder: Handle | Family) -> Family | None:
    """The family whose base the holder is; None for a view."""
    if isinstance(holder, Family):
        return holder
    alias = alias_of(holder)
    return None if alias.steps else alias.family


def _wants(v: Val) -> bool:
    return v.leaf is not None and v.leaf.requires_grad
