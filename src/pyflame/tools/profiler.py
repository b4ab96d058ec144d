"""What every operator of eager evaluations and compiled steps takes."""

from __future__ import annotations

import functools
import resource
import sys
import threading
import time
import traceback
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyflame import instrumentation
from pyflame.lazy import modes
from pyflame.module_scopes import ModuleScopes
from pyflame.tools.profile_result import ProfileEvent, ProfileResult
from pyflame_rt.graph.named_arguments import names_arguments
from pyflame_rt.ops import find_op
from pyflame_rt.ops.core.flop_counts import count_flops

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyflame.evaluation import EvaluationPlan
    from pyflame.instrumentation import Labels
    from pyflame_rt.graph import Node
    from pyflame_rt.profiling import StepCost

__all__ = ["Profiler", "disable_profiling", "enable_profiling", "get_profiler", "profile"]

MAX_EVENTS = 1_000_000


class Profiler:
    """Measures operators, inside replayed steps too: native code notes the time around each of its steps.

    A context manager, or `start()` and `stop()`. Operators that the engine fuses are one event, named after all of
    them; `args["nodes"]` tells which, and `module` which module of the model recorded them.

    Args:
        record_shapes: Keep shapes and element types of inputs and outputs.
        profile_memory: Keep what memory the process held.
        with_stack: Keep the lines of the caller's code that asked for each evaluation.

    Example:
        >>> import pyflame as pf
        >>> with pf.tools.Profiler() as profiler:
        ...     _ = pf.eval(pf.relu(pf.ones([8, 8]) - 2.0))
        >>> "Relu" in str(profiler.result.operation_stats)
        True
    """

    @names_arguments
    def __init__(self, *, record_shapes: bool = True, profile_memory: bool = False, with_stack: bool = False) -> None:
        self.record_shapes, self.profile_memory, self.with_stack = record_shapes, profile_memory, with_stack
        self._events: list[ProfileEvent] = []
        self._dropped = 0
        self._lock = threading.Lock()
        self._begin_ns = 0
        self._held = 0
        self._spans_before: Any = None
        self._result: ProfileResult | None = None
        self.is_active = False

    @property
    def result(self) -> ProfileResult:
        """What was measured; complete once the profiler has stopped."""
        if self._result is None:
            raise RuntimeError("nothing was profiled yet: use `with Profiler() as p:`, or start() and stop()")
        return self._result

    def start(self) -> Profiler:
        """Begin; earlier events are forgotten."""
        instrumentation.start(recorder=self)
        self._events, self._dropped, self._result = [], 0, None
        self._spans_before = modes.spans
        modes.switch(spans=modes.spans or ModuleScopes())
        self._held = _resident() if self.profile_memory else 0
        self._begin_ns = time.perf_counter_ns()
        self.is_active = True
        return self

    def stop(self) -> ProfileResult:
        """End, and return what was measured."""
        if not self.is_active:
            raise RuntimeError("the profiler is not active: start() comes first")
        seconds = (time.perf_counter_ns() - self._begin_ns) / 1e9
        instrumentation.stop(self)
        modes.switch(spans=self._spans_before)
        self.is_active = False
        memory = {}
        if self.profile_memory:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
            memory = {"start_bytes": self._held, "end_bytes": _resident(), "peak_bytes": max(peak, _resident())}
        self._result = ProfileResult(self._events, seconds, memory, self._dropped)
        return self._result

    def __enter__(self) -> Profiler:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @contextmanager
    def profile(self) -> Iterator[Profiler]:
        """The profiler as a context: the same as using it directly."""
        with self:
            yield self

    def record_event(self, name: str, category: str, start_ns: int, end_ns: int, **details: Any) -> None:
        """Add an event of the caller's own; times are of ``time.perf_counter_ns``."""
        known = {key: details.pop(key) for key in ("module", "flops", "bytes") if key in details}
        thread = details.pop("thread", None) or threading.get_ident()
        start = (start_ns - self._begin_ns) / 1e3
        event = ProfileEvent(name, category, start, (end_ns - start_ns) / 1e3, thread, args=details, **known)
        with self._lock:
            if len(self._events) < MAX_EVENTS:
                self._events.append(event)
            else:
                self._dropped += 1

    @contextmanager
    def record_operation(self, name: str, category: str = "user", **details: Any) -> Iterator[None]:
        """Measure what happens in the block, as one event."""
        begin = time.perf_counter_ns()
        try:
            yield
        finally:
            self.record_event(name, category, begin, time.perf_counter_ns(), **details)

    # What evaluations call.

    def begin(self, plan: EvaluationPlan, labels: Labels, kind: str) -> _Run:
        """An evaluation begins."""
        return _Run(self, plan, labels, kind)

    def end(self, timeline: _Run) -> None:
        """An evaluation has ended."""
        details: dict[str, Any] = {"nodes": len(timeline.plan.graph.nodes), "native": timeline.plan.native}
        if self.with_stack:
            details["stack"] = _stack()
        self.record_event(timeline.kind, "run", timeline.begin_ns, time.perf_counter_ns(), **details)


class _Run:
    """One evaluation, told what its steps took."""

    def __init__(self, profiler: Profiler, plan: EvaluationPlan, labels: Labels, kind: str) -> None:
        self.profiler, self.plan, self.labels, self.kind = profiler, plan, labels, kind
        self._starts: list[int] = []
        self._scopes = labels.scopes
        self.begin_ns = time.perf_counter_ns()

    def check(self) -> None:
        """A node starts on its own."""
        self._starts.append(time.perf_counter_ns())

    def observe(self, node: Node, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """A node has ended."""
        end = time.perf_counter_ns()
        begin = self._starts.pop() if self._starts else end
        details: dict[str, Any] = {"nodes": [node.name], "kernel": "interpreter"}
        if self.profiler.record_shapes:
            details["inputs"] = [_described(a) for a in inputs if a is not None]
            details["outputs"] = [_described(a) for a in outputs if a is not None]
        self.profiler.record_event(
            node.op_type,
            "operator",
            begin,
            end,
            module=self._scopes.get(node.name, ""),
            flops=_flops(node, inputs, outputs),
            bytes=sum(int(getattr(a, "nbytes", 0)) for a in (*inputs, *outputs)),
            **details,
        )

    def step(self, facts: StepCost, begin_ns: int, end_ns: int, lane: int = 0) -> None:
        """A compiled step, which may do several nodes at once, has run."""
        places = Counter(self._scopes.get(name, "") for name in facts.nodes)
        details: dict[str, Any] = {"nodes": list(facts.nodes), "kernel": facts.kind, "layout": facts.layout}
        if self.profiler.record_shapes:
            details["inputs"] = [f"{kind}{list(shape)}" for kind, shape in facts.inputs]
            details["outputs"] = [f"{kind}{list(shape)}" for kind, shape in facts.outputs]
        self.profiler.record_event(
            facts.label,
            "operator",
            begin_ns,
            end_ns,
            module=places.most_common(1)[0][0] if places else "",
            flops=facts.flops,
            bytes=facts.nbytes,
            thread=threading.get_ident() + lane,
            **details,
        )


def _flops(node: Node, inputs: Sequence[Any], outputs: Sequence[Any]) -> int:
    def sizes(array: Any) -> tuple[int, ...]:
        return tuple(getattr(array, "shape", ()))

    op = find_op(node.op_type, node.domain)
    if op is None:  # the program's own
        return 0
    return count_flops(op, [sizes(a) for a in inputs], sizes(outputs[0] if outputs else None), node.attributes)


def _described(array: Any) -> str:
    return f"{getattr(array, 'dtype', type(array).__name__)}{list(getattr(array, 'shape', ()))}"


def _resident() -> int:
    statm = Path("/proc/self/statm")
    if not statm.exists():
        return 0
    return int(statm.read_text("ascii").split()[1]) * resource.getpagesize()


def _stack() -> list[str]:
    ours = str(Path(__file__).parents[1])
    frames = [f for f in traceback.extract_stack() if not f.filename.startswith(ours)]
    return [f"{f.filename}:{f.lineno} {f.line}" for f in frames[-3:]]


@names_arguments
def profile(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Profile a block or a function.

    Args:
        function: What to profile at each call; the latest result is its attribute `profile_result`. Without it, a
            :class:`Profiler` for a `with` block, which also works as a decorator with options.
        options: Of :class:`Profiler`.

    Example:
        >>> import pyflame as pf
        >>> @pf.tools.profile
        ... def double(x):
        ...     return pf.eval(x * 2)
        >>> _ = double(pf.ones([4]))
        >>> len(double.profile_result.runs)
        1
    """
    if function is None:
        return _Profile(**options)
    return _Profile(**options)(function)


class _Profile(Profiler):
    """A profiler that also decorates functions."""

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def measured(*args: Any, **kwargs: Any) -> Any:
            self.start()
            try:
                return function(*args, **kwargs)
            finally:
                measured.profile_result = self.stop()  # type: ignore[attr-defined]

        return measured


_default: list[Profiler] = []


@names_arguments
def enable_profiling(**options: Any) -> Profiler:
    """Profile everything from now on, until :func:`disable_profiling`.

    Example:
        >>> import pyflame as pf
        >>> profiler = pf.tools.enable_profiling()
        >>> _ = pf.eval(pf.ones([2]) + 1)
        >>> len(pf.tools.disable_profiling().runs)
        1
    """
    made = Profiler(**options).start()
    _default[:] = [made]
    return made


@names_arguments
def disable_profiling() -> ProfileResult:
    """End what :func:`enable_profiling` began; returns what was measured."""
    if not _default or not _default[0].is_active:
        raise RuntimeError("profiling is not enabled: enable_profiling() comes first")
    return _default[0].stop()


@names_arguments
def get_profiler() -> Profiler | None:
    """The profiler that :func:`enable_profiling` made last; None before that."""
    return _default[0] if _default else None
