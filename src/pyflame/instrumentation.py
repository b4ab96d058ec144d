"""Look into evaluations: what profilers and debuggers are told, and under which names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary

from pyflame.lazy import mode_changes
from pyflame_rt.executable import RunHooks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame.evaluation import EvaluationPlan, Work
    from pyflame.lazy import Val
    from pyflame.module_scopes import ModuleScopes

__all__ = ["Labels", "Watch", "active", "labels_of", "name_value", "start", "stop"]


@dataclass(frozen=True, slots=True)
class Labels:
    """What the nodes and values of an executable are called by people.

    Attributes:
        scopes: module paths by node name; nodes outside of modules are absent.
        values: value names by what they were called: a name that was given, or the path of the module that returned it.
    """

    scopes: dict[str, str] = field(default_factory=dict)
    values: dict[str, list[str]] = field(default_factory=dict)


_names: WeakKeyDictionary[Val, str] = WeakKeyDictionary()


def name_value(v: Val, name: str) -> None:
    """Call a value by a name from now on."""
    _names[v] = name


def node_name(number: int, op: str, scope: str = "") -> str:
    """How the node of an expression is called in the runtime's graph."""
    return f"{scope.replace('.', '/')}/{op}_{number}" if scope else f"{op}_{number}"


def labels_of(work: Work, spans: ModuleScopes | None, *, scoped: bool) -> Labels:
    """Names for a piece of work.

    Args:
        work: what is evaluated.
        spans: where its expressions come from; None when nobody noted it.
        scoped: the nodes' names hold their module's path already.
    """
    numbers = {expr: n for n, expr in enumerate(work.exprs)}
    scopes: dict[str, str] = {}
    if spans is not None:
        for expr, n in numbers.items():
            place = spans.of(expr)
            if place:
                scopes[node_name(n, expr.rule.op.name, place if scoped else "")] = place
    values: dict[str, list[str]] = {}
    for path, refs in (spans.outputs if spans is not None else {}).items():
        found = [text for ref in refs if (text := _value_name(ref(), numbers)) is not None]
        if found:
            values[path] = found
    for v, name in list(_names.items()):
        text = _value_name(v, numbers)
        if text is not None:
            values[name] = [text]
    return Labels(scopes, values)


def _value_name(v: Val | None, numbers: dict[Any, int]) -> str | None:
    if v is None or v.expr is None or v.expr not in numbers:
        return None
    n = numbers[v.expr]
    return f"v{n}" if v.expr.rule.single else f"v{n}_{v.index}"


class Recorder(Protocol):
    """A profiler, as an evaluation sees it."""

    def begin(self, plan: EvaluationPlan, labels: Labels, kind: str) -> Any:
        """A run begins: what is told its steps' times."""
        ...

    def end(self, timeline: Any) -> None:
        """The run has ended."""
        ...


class Inspector(Protocol):
    """A debugger, as an evaluation sees it."""

    def wanted(self, plan: EvaluationPlan, labels: Labels) -> list[list[str]]:
        """Values it wants to see, in pieces that fit into memory together."""
        ...

    def see(self, plan: EvaluationPlan, labels: Labels, values: dict[str, Any]) -> None:
        """Values it wanted; may raise to stop the evaluation."""
        ...


@dataclass(slots=True)
class Watch:
    """Who watches evaluations of this process."""

    recorder: Recorder | None = None
    inspector: Inspector | None = None

    def run(self, plan: EvaluationPlan, arrays: Sequence[Any], named: Labels, kind: str) -> list[Any]:
        """Run a plan and tell the watchers."""
        feeds = dict(zip(plan.inputs, arrays, strict=True))
        pieces = self.inspector.wanted(plan, named) if self.inspector is not None else []
        first = pieces[0] if pieces else []
        hooks = RunHooks(taps=first)
        timeline = None
        if self.recorder is not None:
            timeline = self.recorder.begin(plan, named, kind)
            if plan.executable.times_steps:
                hooks.timeline = timeline
            else:
                hooks.check, hooks.observe = timeline.check, timeline.observe
        results = plan.executable.run(feeds, plan.outputs, hooks)
        if self.recorder is not None:
            self.recorder.end(timeline)
        count = len(plan.outputs)
        if self.inspector is not None:
            self.inspector.see(plan, named, dict(zip(first, results[count:], strict=True)))
            for piece in pieces[1:]:
                again = plan.executable.run(feeds, plan.outputs, RunHooks(taps=piece))
                self.inspector.see(plan, named, dict(zip(piece, again[count:], strict=True)))
        return results[:count]


active: Watch | None = None


def start(*, recorder: Recorder | None = None, inspector: Inspector | None = None) -> None:
    """Let a profiler or a debugger watch; at most one of each at a time."""
    global active
    current = active or Watch()
    if recorder is not None and current.recorder is not None:
        raise RuntimeError("another profiler is active; stop it first")
    if inspector is not None and current.inspector is not None:
        raise RuntimeError("another debugger is active; leave it first")
    active = Watch(recorder or current.recorder, inspector or current.inspector)
    mode_changes[0] += 1


def stop(watcher: object) -> None:
    """A profiler or debugger no longer watches."""
    global active
    if active is None:
        return
    left = Watch(
        None if active.recorder is watcher else active.recorder,
        None if active.inspector is watcher else active.inspector,
    )
    active = left if left.recorder is not None or left.inspector is not None else None
    mode_changes[0] += 1
