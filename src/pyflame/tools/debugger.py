"""Watch values inside evaluations, replayed steps of compiled functions included."""

from __future__ import annotations

import itertools
import logging
from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame import instrumentation
from pyflame.lazy import modes
from pyflame.module_scopes import ModuleScopes
from pyflame.ops.core import Handle
from pyflame.tools.inspector import TensorInspector
from pyflame_rt.graph import TensorType
from pyflame_rt.graph.named_arguments import names_arguments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyflame.evaluation import EvaluationPlan
    from pyflame.instrumentation import Labels
    from pyflame.tensors import Tensor
    from pyflame_rt.graph import Node

__all__ = ["Breakpoint", "BreakpointHit", "Hit", "PyFlameDebugger", "Watched", "tap"]

log = logging.getLogger("pyflame.tools")
# So many bytes of intermediate values are looked at in one run; more takes several runs of the same inputs.
MAX_PIECE = 256 << 20


class Condition(Enum):
    """Conditions with a name."""

    always = "always"
    nan = "nan"
    inf = "inf"
    nonfinite = "nonfinite"

    def holds(self, array: np.ndarray[Any, Any]) -> bool:
        """Whether an array fulfils it."""
        if self is Condition.always:
            return True
        if array.dtype.kind in "iub" or array.dtype.kind not in "fcV":
            return False
        values = array.astype(np.float32) if array.dtype.kind == "V" or array.dtype.itemsize < 4 else array
        if self is Condition.nan:
            return bool(np.isnan(values).any())
        if self is Condition.inf:
            return bool(np.isinf(values).any())
        return not bool(np.isfinite(values).all())


@dataclass(frozen=True, slots=True)
class Hit:
    """A breakpoint's condition held.

    Attributes:
        breakpoint_id: which breakpoint.
        run: the number of the evaluation since the debugger was entered, from 0.
        node: name of the node that made the value.
        op_type: its operator.
        module: path of the module that recorded it; "" for none.
        name: what the value is called: the name it was given, the module's path, or the node's name.
        value: a copy of it.
    """

    breakpoint_id: int
    run: int
    node: str
    op_type: str
    module: str
    name: str
    value: np.ndarray[Any, Any]

    def __str__(self) -> str:
        where = f" in module {self.module!r}" if self.module else ""
        facts = TensorInspector.inspect(self.value)
        return (
            f"breakpoint {self.breakpoint_id} in run {self.run}: {self.op_type} {self.node!r}{where} made "
            f"{facts['dtype']}{facts['shape']} with {facts['nan_count']} NaN, {facts['inf_count']} infinite, "
            f"min {facts['min']:.6g}, max {facts['max']:.6g}, mean {facts['mean']:.6g}"
        )


class BreakpointHit(RuntimeError):
    """A breakpoint that stops was hit; the evaluation it stopped has changed nothing.

    Attributes:
        hit: what was found.
    """

    def __init__(self, hit: Hit) -> None:
        super().__init__(str(hit))
        self.hit = hit

    def __reduce__(self) -> tuple[Any, ...]:
        return (BreakpointHit, (self.hit,))


@dataclass(slots=True)
class Breakpoint:
    """Where to look, and what for.

    Attributes:
        id: its number.
        op: operators, with wildcards; None for any.
        tensor: a name given by :func:`tap`, a module's path, a node's or a value's name, with wildcards; None for any.
        module: path of a module: it and all below it; None for any.
        condition: of the value.
        callback: called with each hit.
        stop: raise :class:`BreakpointHit`.
        enabled: whether it is looked at.
        hit_count: how often its condition held.
    """

    id: int
    op: str | None = None
    tensor: str | None = None
    module: str | None = None
    condition: Condition | Callable[[np.ndarray[Any, Any]], bool] = Condition.always
    callback: Callable[[Hit], None] | None = None
    stop: bool = False
    enabled: bool = True
    hit_count: int = 0

    def holds(self, array: np.ndarray[Any, Any]) -> bool:
        """Whether the condition holds for a value."""
        return self.condition.holds(array) if isinstance(self.condition, Condition) else bool(self.condition(array))

    def fits(self, place: _Place) -> bool:
        """Whether a value is one to look at."""
        if self.op is not None and not fnmatchcase(place.node.op_type, self.op):
            return False
        if self.module is not None and not _inside(place.module, self.module):
            return False
        return self.tensor is None or any(fnmatchcase(name, self.tensor) for name in place.names)


@dataclass(slots=True)
class Watched:
    """Values of one name, the newest last.

    Attributes:
        name: what is watched, as for :class:`Breakpoint`.
        values: copies of what it was, run by run.
        runs: the number of the run that each is from.
    """

    name: str
    values: deque[np.ndarray[Any, Any]] = field(default_factory=deque)
    runs: deque[int] = field(default_factory=deque)

    @property
    def last(self) -> np.ndarray[Any, Any]:
        """The newest value."""
        if not self.values:
            raise LookupError(f"nothing named {self.name!r} was computed since it is watched")
        return self.values[-1]


@dataclass(frozen=True, slots=True)
class _Place:
    """One value of an executable, and all it may be called by."""

    node: Node
    value: str
    module: str
    names: tuple[str, ...]
    nbytes: int


def _inside(module: str, wanted: str) -> bool:
    plain = module.removesuffix("/backward")
    return plain == wanted or plain.startswith(f"{wanted}.") or fnmatchcase(plain, wanted)


class PyFlameDebugger:
    """Looks at values inside evaluations; a context manager.

    Compiled functions stay compiled: a value that is looked at becomes one more output of the native code, which is
    prepared once for each set of such values. Operators are fused round it differently, so numbers may differ from
    an unwatched run in the last bits.

    Args:
        verbose: Log each hit (logger "pyflame.tools", level WARNING).
        keep: How many values of each watch, and how many hits, are kept.

    Example:
        >>> import pyflame as pf
        >>> @pf.compile
        ... def f(x):
        ...     h = pf.tools.tap(pf.log(x), "h")
        ...     return (h * 2).sum()
        >>> with pf.tools.PyFlameDebugger() as debugger:
        ...     seen = debugger.watch("h")
        ...     _ = debugger.set_breakpoint(condition="nan")
        ...     _ = f(pf.tensor([1.0, -1.0]))
        >>> seen.last.tolist()
        [0.0, nan]
        >>> debugger.hits[0].op_type
        'Log'
    """

    @names_arguments
    def __init__(self, *, verbose: bool = False, keep: int = 100) -> None:
        if keep < 1:
            raise ValueError(f"keep must be at least 1. Received: {keep}")
        self.verbose, self.keep = verbose, keep
        self.breakpoints: dict[int, Breakpoint] = {}
        self.watches: dict[str, Watched] = {}
        self.hits: deque[Hit] = deque(maxlen=keep)
        self.run = -1
        self._numbers = itertools.count(1)
        self._places: list[_Place] = []
        self._stopping: Hit | None = None
        self._spans_before: Any = None

    def __enter__(self) -> PyFlameDebugger:
        instrumentation.start(inspector=self)
        self._spans_before = modes.spans
        modes.switch(spans=modes.spans or ModuleScopes())
        return self

    def __exit__(self, *_: object) -> None:
        instrumentation.stop(self)
        modes.switch(spans=self._spans_before)

    @classmethod
    def get_active(cls) -> PyFlameDebugger | None:
        """The debugger that watches now; None when there is none."""
        inspector = instrumentation.active.inspector if instrumentation.active is not None else None
        return inspector if isinstance(inspector, cls) else None

    def set_breakpoint(
        self,
        op: str | None = None,
        tensor: str | None = None,
        condition: str | Callable[[np.ndarray[Any, Any]], bool] | None = None,
        callback: Callable[[Hit], None] | None = None,
        *,
        module: str | None = None,
        stop: bool = False,
    ) -> int:
        """Look for values; returns the breakpoint's number.

        Args:
            op: An operator such as "MatMul"; wildcards such as "Reduce*" too.
            tensor: A name given by :func:`tap`, a module's path, or a node's name; wildcards too.
            condition: "nan", "inf", "nonfinite", or a function of the array that answers True or False; None for
                every value. With one of the names and no place, all values of the graph are looked at, first to last.
            callback: Called with each hit.
            module: Only what this module, or one below it, recorded (its gradients included).
            stop: Raise :class:`BreakpointHit` before the evaluation changes anything.
        """
        if op is None and tensor is None and module is None and condition is None:
            raise ValueError("a breakpoint needs a place (op, tensor or module) or a condition")
        made = Breakpoint(next(self._numbers), op, tensor, module, _condition(condition), callback, stop)
        self.breakpoints[made.id] = made
        return made.id

    def remove_breakpoint(self, breakpoint_id: int) -> None:
        """Forget a breakpoint."""
        del self.breakpoints[self._known(breakpoint_id)]

    def enable_breakpoint(self, breakpoint_id: int, enabled: bool = True) -> None:
        """Look at a breakpoint again, or no longer."""
        self.breakpoints[self._known(breakpoint_id)].enabled = enabled

    def clear_breakpoints(self) -> None:
        """Forget all breakpoints."""
        self.breakpoints.clear()

    def _known(self, breakpoint_id: int) -> int:
        if breakpoint_id not in self.breakpoints:
            raise KeyError(f"no breakpoint {breakpoint_id}; there are: {sorted(self.breakpoints) or 'none'}")
        return breakpoint_id

    def watch(self, name: str, tensor: Tensor | None = None) -> Watched:
        """Keep what a value is, run by run.

        Args:
            name: A name given by :func:`tap`, a module's path (what it returned), or a node's name.
            tensor: Give this tensor the name.
        """
        if tensor is not None:
            tap(tensor, name)
        return self.watches.setdefault(name, Watched(name, deque(maxlen=self.keep), deque(maxlen=self.keep)))

    def unwatch(self, name: str) -> None:
        """No longer watch a name."""
        if self.watches.pop(name, None) is None:
            raise KeyError(f"{name!r} is not watched; watched are: {', '.join(self.watches) or 'none'}")

    @staticmethod
    def inspect(tensor: Any) -> dict[str, Any]:
        """Statistics of a tensor: see :meth:`TensorInspector.inspect`."""
        return TensorInspector.inspect(tensor)

    @staticmethod
    def compare(first: Any, second: Any, **tolerances: float) -> dict[str, Any]:
        """How two tensors differ: see :meth:`TensorInspector.compare`."""
        return TensorInspector.compare(first, second, **tolerances)

    # What evaluations call.

    def wanted(self, plan: EvaluationPlan, labels: Labels) -> list[list[str]]:
        """Values of a graph to look at, in pieces."""
        self.run += 1
        self._places = [p for p in _places(plan, labels) if self._concerns(p)]
        pieces: list[list[str]] = []
        held = MAX_PIECE
        for place in self._places:
            if held + place.nbytes > MAX_PIECE:
                pieces.append([])
                held = 0
            pieces[-1].append(place.value)
            held += place.nbytes
        return pieces

    def _concerns(self, place: _Place) -> bool:
        if any(b.enabled and b.fits(place) for b in self.breakpoints.values()):
            return True
        return any(fnmatchcase(name, wanted) for wanted in self.watches for name in place.names)

    def see(self, plan: EvaluationPlan, labels: Labels, values: dict[str, Any]) -> None:  # noqa: ARG002 - all of the protocol
        """Look at values, in the order in which they were computed."""
        for place in self._places:
            if place.value not in values:
                continue
            array = np.asarray(values[place.value])
            for name, watched in self.watches.items():
                if any(fnmatchcase(known, name) for known in place.names):
                    watched.values.append(array.copy())
                    watched.runs.append(self.run)
            for point in list(self.breakpoints.values()):
                if point.enabled and point.fits(place) and point.holds(array):
                    self._hit(point, place, array)

    def _hit(self, point: Breakpoint, place: _Place, array: np.ndarray[Any, Any]) -> None:
        point.hit_count += 1
        node = place.node
        hit = Hit(point.id, self.run, node.name, node.op_type, place.module, place.names[0], array.copy())
        self.hits.append(hit)
        if self.verbose:
            log.warning("%s", hit)
        if point.callback is not None:
            point.callback(hit)
        if point.stop:
            raise BreakpointHit(hit)


def _condition(
    given: str | Callable[[np.ndarray[Any, Any]], bool] | None,
) -> Condition | Callable[[np.ndarray[Any, Any]], bool]:
    if given is None:
        return Condition.always
    if not isinstance(given, str) and callable(given):
        return given
    try:
        return Condition(given)
    except ValueError:
        known = ", ".join(c.value for c in Condition)
        raise ValueError(f"condition must be a function of an array, or one of: {known}. Received: {given!r}") from None


def _places(plan: EvaluationPlan, labels: Labels) -> Iterator[_Place]:
    """Every tensor that a node makes."""
    called: dict[str, list[str]] = {}
    for name, values in labels.values.items():
        for value in values:
            called.setdefault(value, []).append(name)
    types = plan.graph.types
    for node in plan.graph.nodes:
        module = labels.scopes.get(node.name, "")
        for value in node.outputs:
            kind = types.get(value)
            if not value or not isinstance(kind, TensorType) or kind.shape is None:
                continue
            size = int(np.prod([int(d) for d in kind.shape], dtype=np.int64)) * kind.dtype.itemsize  # type: ignore[arg-type]
            yield _Place(node, value, module, (*called.get(value, ()), node.name, value), size)


@names_arguments
def tap(tensor: Tensor, name: str) -> Tensor:
    """Give a tensor a name that debuggers find it by, inside compiled functions too; returns the tensor.

    Example:
        >>> import pyflame as pf
        >>> h = pf.tools.tap(pf.ones([2]) + 1, "h")
        >>> with pf.tools.PyFlameDebugger() as debugger:
        ...     seen = debugger.watch("h")
        ...     _ = pf.eval(h * 3)
        >>> seen.last
        array([2., 2.], dtype=float32)
    """
    if not isinstance(tensor, Handle):
        raise TypeError(f"tap names tensors. Received: {type(tensor).__name__}")
    if not name:
        raise ValueError("a name needs at least one letter")
    instrumentation.name_value(tensor._value, name)
    return tensor
