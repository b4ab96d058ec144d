"""From a graph to something that runs: the only caller of passes and backends; keeps what passes made."""

from __future__ import annotations

import importlib
import sys
import time
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from pyflame_rt.cache.encoding import Codec, DecodeError, EncodeError, record
from pyflame_rt.cache.installed import is_declared
from pyflame_rt.cache.models import GRAPH_KINDS, MAX_BYTES, KeptGraph
from pyflame_rt.cache.places import MAKERS, place_of
from pyflame_rt.cache.signature import code_signature
from pyflame_rt.cache.store import current_store, use_store
from pyflame_rt.graph import Graph
from pyflame_rt.graph.deferred import DeferredGraph
from pyflame_rt.graph.errors import (
    InputError,
    InvalidModelError,
    UnsupportedOperatorError,
)
from pyflame_rt.graph.graph import Origin
from pyflame_rt.graph.records import dataclass
from pyflame_rt.logs import SessionLog
from pyflame_rt.ops.core.registry import find_op, unknown_operator_message
from pyflame_rt.options import NO_FALLBACK, OptLevel, SessionOptions
from pyflame_rt.providers import Provider, find_provider
from pyflame_rt.registry import depends_on_added, replaced_ops
from pyflame_rt.settings import unused_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyflame_rt.backends.base import Executable, Placement
    from pyflame_rt.graph import Node
    from pyflame_rt.opt.base import PassResult

__all__ = ["Compiled", "OptimisedGraph", "compile", "find_unsupported", "optimised", "peaks_of", "placed", "quantize"]


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
            wanted = provider.optimizes and OptLevel.of(chosen.optimization_level) is not OptLevel.NONE
            ready = optimised(graph, chosen) if wanted else OptimisedGraph(graph)
            middle = time.perf_counter()
            made = _executable(ready.graph, provider, chosen, (provider_options or {}).get(provider.name))
        except UnsupportedOperatorError as error:
            if i == len(candidates) - 1 or chosen._config.get(NO_FALLBACK) == "1":
                raise
            skipped.append(f"{provider.name} was passed over: {error}")
            continue
        seconds = {"optimise": middle - started, "compile": time.perf_counter() - middle}
        unused = [*unused_settings(chosen, provider), *ready.unused]
        notes = [*skipped, *unused, *ready.notes]
        log = SessionLog(chosen.log_level, chosen.logid)
        for note in notes:
            log.info("%s", note)
        return Compiled(made, ready.graph, provider, notes, seconds, unused, ready.result)
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
    if isinstance(graph, KeptGraph) and all(find_op(name, domain) is not None for name, domain in graph.operators):
        return []
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


# ---------------------------------------------------------------------- passes, and what they made, kept


class OptimisedGraph(NamedTuple):
    """What passes leave of a graph, and a function that tells what they did; it makes a graph that is not made yet."""

    graph: Graph
    result: Callable[[], PassResult] | None = None
    notes: Sequence[str] = ()
    unused: Sequence[str] = ()


class _Kept(NamedTuple):
    """What is written of an optimised graph: the nodes, and what was done."""

    graph: Graph
    result: PassResult


def optimised(graph: Graph, options: SessionOptions) -> OptimisedGraph:
    """The graph as the options want it optimised; the one given is left as it is.

    A graph that came from a file, unchanged, is optimised once: what its plan was made for is known by the file and the
    settings, and the optimised graph itself is read again only where a plan for new shapes is to be made.
    """
    key = _key(graph, options)
    eager = options.verify or options.verbose_optimization or bool(options.optimized_model_filepath)
    if key is None or eager or graph.origin is None or not graph.origin.checked:
        kept, unused = _passed(graph, options)
        if key is not None and graph.origin is not None:
            if not kept.result.warnings:
                _keep(key, kept)
            kept.graph.origin = Origin(key, graph.origin.checked)
        notes = [f"optimisation: {text}" for text in kept.result.warnings]
        return OptimisedGraph(kept.graph, lambda: kept.result, notes, unused)
    made: list[_Kept] = []

    def make() -> Graph:
        with use_store(options.cache):
            found = _load(key)
            if found is None:
                found = _passed(graph, options)[0]
                if not found.result.warnings:
                    _keep(key, found)
        made.append(found)
        return found.graph

    later = DeferredGraph(graph, Origin(key, checked=True), make)

    def result() -> PassResult:
        later.whole()
        return made[0].result

    return OptimisedGraph(later, result)


def _key(graph: Graph, options: SessionOptions) -> str | None:
    """What an optimised graph is kept under; None where nothing tells it from others."""
    if graph.origin is None:
        return None
    if depends_on_added(graph):
        return None  # the file does not tell what its operators mean
    if _others_pass():
        return None  # what others' passes do may depend on anything
    settings = (int(OptLevel.of(options.optimization_level)), options.strict_math_mode, *options.disabled_optimizers)
    return f"{graph.origin.key} optimised {settings} {code_signature('opt', 'ops')}"


def _others_pass() -> bool:
    """Whether passes besides our own take part."""
    manager = sys.modules.get("pyflame_rt.opt.manager")
    return is_declared("pyflame_rt.passes") or (manager is not None and manager.registered_in_code())


def _load(key: str) -> _Kept | None:
    data = current_store().get("optimised", key)
    if data is None:
        return None
    try:
        graph, result = _codec().decode(data, MAKERS)
    except (DecodeError, TypeError, ValueError):
        return None
    return _Kept(graph, result) if isinstance(graph, Graph) else None


def _codec() -> Codec:
    from pyflame_rt.opt.base import PassResult, PassStats, Rewrite

    return Codec([*GRAPH_KINDS, *map(record, (PassResult, PassStats, Rewrite))])


def _keep(key: str, kept: _Kept) -> None:
    store, written = current_store(), (kept.graph.copy(), kept.result)
    if not store.writable or any(tensor.dtype.bits < 8 for tensor in kept.graph.initializers.values()):
        return

    def write() -> None:
        try:
            data = _codec().encode(written, lambda array: place_of(array, store))
        except EncodeError:
            return
        if len(data) <= MAX_BYTES:
            store.put("optimised", key, data)

    store.writer.submit(write)


def _passed(graph: Graph, options: SessionOptions) -> tuple[_Kept, list[str]]:
    """The optimised copy of a graph, and what the options name in vain."""
    from pyflame_rt.opt.manager import manager_for

    unused: list[str] = []
    manager = manager_for(options, unused)
    twin = graph.copy()
    if replaced := replaced_ops():
        from pyflame_rt.opt.base import PassResult

        told = f"left out, since built-in operators were replaced in this process: {', '.join(replaced)}"
        return _Kept(twin, PassResult(warnings=[told])), unused
    return _Kept(twin, manager.run_until_fixed_point(twin)), unused
