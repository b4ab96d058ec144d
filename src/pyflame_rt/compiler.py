"""From a graph to something that runs: the only caller of passes and backends."""

from __future__ import annotations

import importlib
import time
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

from pyflame_rt.graph.errors import (
    InputError,
    InvalidModelError,
    UnsupportedOperatorError,
)
from pyflame_rt.graph.records import dataclass
from pyflame_rt.logs import SessionLog
from pyflame_rt.ops.core.registry import find_op, unknown_operator_message
from pyflame_rt.options import NO_FALLBACK, OptLevel, SessionOptions
from pyflame_rt.providers import Provider, find_provider
from pyflame_rt.settings import unused_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyflame_rt.backends.base import Executable, Placement
    from pyflame_rt.graph import Graph, Node
    from pyflame_rt.opt.base import PassResult
    from pyflame_rt.optimised import OptimisedGraph

__all__ = ["Compiled", "compile", "find_unsupported", "peaks_of", "placed", "quantize"]


@dataclass(slots=True)
class Compiled:
    """A graph that was optimised and compiled.

    Attributes:
        executable: runs it.
        graph: what runs, after optimisation.
        provider: who runs it.
        notes: what the user should know: skipped providers, settings without effect here.
        unused: of those the settings without effect.
        seconds: time spent, by stage.
        optimised: gives what the passes did; None where none ran.
    """

    executable: Executable
    graph: Graph
    provider: Provider
    notes: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    unused: list[str] = field(default_factory=list)
    optimised: Callable[[], PassResult] | None = None


def compile(  # noqa: A001 - the word the design uses
    graph: Graph,
    providers: str | Sequence[str],
    options: SessionOptions | None = None,
    provider_options: Mapping[str, Mapping[str, Any]] | None = None,
) -> Compiled:
    """Optimise a graph and compile it with the first provider that can run all of it.

    Args:
        graph: left as it is.
        providers: one name, or several in order of preference. All must be available; a later
            one is used only when an earlier one lacks an operator, and a note says so.
        options: how; the defaults of SessionOptions when None.
        provider_options: options of providers by name; of the built-in ones only some take any.

    Example:
        >>> from pyflame_rt.graph import Graph
        >>> g = Graph("g")
        >>> _ = g.add_input("x", [2]), g.add_node("n", "Neg", ["x"], ["y"]), g.add_output("y", [2])
        >>> compile(g, "ReferenceExecutionProvider").provider.name
        'ReferenceExecutionProvider'
    """
    chosen = SessionOptions() if options is None else options
    names = [providers] if isinstance(providers, str) else list(providers)
    candidates = [find_provider(name) for name in names]
    skipped: list[str] = []
    for i, provider in enumerate(candidates):
        try:
            if provider.builtin:
                _refuse_unsupported(graph)
            started = time.perf_counter()
            ready = _optimised(graph, chosen) if provider.optimizes else None
            middle = time.perf_counter()
            made = _executable(
                graph if ready is None else ready.graph, provider, chosen, (provider_options or {}).get(provider.name)
            )
        except UnsupportedOperatorError as error:
            if i == len(candidates) - 1 or chosen._config.get(NO_FALLBACK) == "1":
                raise
            skipped.append(f"{provider.name} was passed over: {error}")
            continue
        seconds = {"optimise": middle - started, "compile": time.perf_counter() - middle}
        found = Compiled(made, graph, provider, skipped, seconds, unused_settings(chosen, provider))
        if ready is not None:
            found.graph, found.optimised = ready.graph, ready.result
            found.unused += ready.unused
        found.notes += [*found.unused, *(() if ready is None else ready.notes)]
        log = SessionLog(chosen.log_level, chosen.logid)
        for note in found.notes:
            log.info("%s", note)
        return found
    raise InputError("no provider was given")


def _executable(
    graph: Graph, provider: Provider, options: SessionOptions, settings: Mapping[str, Any] | None
) -> Executable:
    try:
        compiler: Any = provider.make()
        if settings and provider.settings:
            compiler.configure(settings)
        return compiler.compile(graph, options)
    except InputError as error:
        raise InvalidModelError(f"model {graph.name!r}: {error}") from error


def _all_nodes(graph: Graph) -> Iterator[Node]:
    pending = [graph]
    while pending:
        current = pending.pop()
        yield from current.nodes
        pending.extend(current.subgraphs())


def find_unsupported(graph: Graph) -> list[Node]:
    """Nodes, also inside subgraphs, whose operator nobody declared.

    Example:
        >>> from pyflame_rt.graph import Graph
        >>> g = Graph("g")
        >>> _ = g.add_node("n", "NoSuchOperator", ["x"], ["y"])
        >>> find_unsupported(g)
        [n: NoSuchOperator(x) -> y]
    """
    return [node for node in _all_nodes(graph) if find_op(node.op_type, node.domain) is None]


def _refuse_unsupported(graph: Graph) -> None:
    if not find_unsupported(graph):
        return
    from pyflame_rt.custom.plugins import load_plugins

    load_plugins()
    unknown = find_unsupported(graph)
    if not unknown:
        return
    first = unknown[0]
    others = sorted({node.full_name for node in unknown} - {first.full_name})
    more = f" Also not supported: {', '.join(others)}." if others else ""
    raise UnsupportedOperatorError(
        f"node {first.name!r} of model {graph.name!r}: {unknown_operator_message(first.op_type, first.domain)}{more}"
    )


def _optimised(graph: Graph, options: SessionOptions) -> OptimisedGraph | None:
    """The optimised graph; None where nothing is to be optimised."""
    if OptLevel.of(options.optimization_level) is OptLevel.NONE:
        return None
    from pyflame_rt.optimised import prepare

    return prepare(graph, options)


def placed(compiled: Compiled) -> list[Placement]:
    """Where each node runs; of nodes that a rule made, which rule and what they stand for."""
    rows = compiled.executable.placements()
    made = {} if compiled.optimised is None else compiled.optimised().origins()
    return [_told(row, *made[row.node]) if row.node in made and not row.moves else row for row in rows]


def _told(row: Placement, rule: str, stands_for: Sequence[str]) -> Placement:
    text = f"{rule} of {', '.join(stands_for[:6])}{' ...' if len(stands_for) > 6 else ''}"
    return replace(row, reason=f"{text}; {row.reason}" if row.reason else text)


def peaks_of(compiled: Compiled) -> dict[str, float] | None:
    """What the machine reaches at most, ``gflops`` and ``gb_per_s``; None where that is not known."""
    return compiled.executable.peaks()


def quantize(graph: Graph, options: SessionOptions) -> tuple[Graph, Any]:
    """The graph quantized as the options ask, and the report; the graph itself when they do not."""
    if options.quantization is None:
        return graph, None
    # Calibration runs sessions, which stand above this layer.
    return importlib.import_module("pyflame_rt.quantization").quantize_for_session(graph, options)
