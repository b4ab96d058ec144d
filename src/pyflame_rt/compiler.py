"""From a graph to something that runs: the only caller of passes and backends."""

from __future__ import annotations

import importlib
import importlib.util
import time
from dataclasses import field
from typing import TYPE_CHECKING, Any

from pyflame_rt.graph.errors import (
    BackendError,
    InputError,
    InvalidModelError,
    UnsupportedOperatorError,
)
from pyflame_rt.graph.records import dataclass
from pyflame_rt.logs import SessionLog
from pyflame_rt.ops.registry import find_op, unknown_operator_message
from pyflame_rt.options import OptLevel, SessionOptions
from pyflame_rt.providers import DEFAULT_PROVIDER, Provider, find_provider, native_engine_missing

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyflame_rt.backends.base import Executable
    from pyflame_rt.graph import Graph, Node

__all__ = ["Compiled", "compile", "find_unsupported", "peaks_of", "quantize"]


@dataclass(slots=True)
class Compiled:
    """A graph that was optimised and compiled.

    Attributes:
        executable: runs it.
        graph: what runs, after optimisation.
        provider: who runs it.
        notes: what the user should know: skipped providers, settings without effect here.
        seconds: time spent, by stage.
    """

    executable: Executable
    graph: Graph
    provider: Provider
    notes: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)


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
            return _compile_one(graph, provider, chosen, skipped, (provider_options or {}).get(provider.name, {}))
        except UnsupportedOperatorError as error:
            if i == len(candidates) - 1:
                raise
            skipped.append(f"{provider.name} was passed over: {error}")
    raise InputError("no provider was given")


def _compile_one(
    graph: Graph, provider: Provider, options: SessionOptions, skipped: list[str], settings: Mapping[str, Any]
) -> Compiled:
    log = SessionLog(options.log_level, options.logid)
    started = time.perf_counter()
    if provider.builtin:
        _refuse_unsupported(graph)
    notes = [*skipped, *_without_effect(options, provider)]
    optimised = _optimise(graph, options, notes, log) if provider.optimizes else graph
    middle = time.perf_counter()
    try:
        compiler: Any = provider.make()
        if settings and provider.settings:
            compiler.configure(settings)
        executable = compiler.compile(optimised, options)
    except InputError as error:
        raise InvalidModelError(f"model {graph.name!r}: {error}") from error
    done = time.perf_counter()
    for note in notes:
        log.info("%s", note)
    seconds = {"optimise": middle - started, "compile": done - middle}
    return Compiled(executable, optimised, provider, notes, seconds)


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
    unknown = find_unsupported(graph)
    if not unknown:
        return
    first = unknown[0]
    others = sorted({node.full_name for node in unknown} - {first.full_name})
    more = f" Also not supported: {', '.join(others)}." if others else ""
    raise UnsupportedOperatorError(
        f"node {first.name!r} of model {graph.name!r}: {unknown_operator_message(first.op_type, first.domain)}{more}"
    )


def _optional_module(name: str) -> Any:
    if importlib.util.find_spec(f"pyflame_rt.{name}") is None:
        return None
    return importlib.import_module(f"pyflame_rt.{name}")


def _optimise(graph: Graph, options: SessionOptions, notes: list[str], log: SessionLog) -> Graph:
    level = OptLevel.of(options.optimization_level)
    if level is OptLevel.NONE:
        return graph
    optimize = getattr(_optional_module("opt"), "optimize", None)
    if optimize is None:
        notes.append("optimization_level has no effect yet: the optimisation passes are not there")
        return graph
    twin = graph.copy()
    result = optimize(twin, level)
    if options.verbose_optimization:
        log.log(20, "optimised %r at level %s: %s", graph.name, level.name, result.stats)
    return twin


# Accepted because programs for other runtimes set them; no provider here has what they steer.
_WITHOUT_EFFECT = (
    "enable_cpu_mem_arena",
    "enable_mem_pattern",
    "enable_mem_reuse",
    "optimization_timeout_ms",
    "use_deterministic_compute",
    "use_per_session_threads",
    "verify",
)


def _without_effect(options: SessionOptions, provider: Provider) -> list[str]:
    """Settings that are valid but that this provider makes no use of."""
    native = provider.name == DEFAULT_PROVIDER and not native_engine_missing()
    settings = {
        "num_threads": options.num_threads != 0 and not native,
        "execution_mode": options.execution_mode != "sequential" and not native,
        "inter_op_num_threads": options.inter_op_num_threads > 1
        and not (native and options.execution_mode == "parallel"),
        "cache": options.cache is not None and not native,
        "strict_math_mode": options.strict_math_mode and not native,
        "tune": options.tune and not native,
        "quick_start": not options.quick_start and not native,
    }
    defaults = SessionOptions()
    settings |= {name: getattr(options, name) != getattr(defaults, name) for name in _WITHOUT_EFFECT}
    unused = [name for name, given in settings.items() if given]
    if not unused or not provider.builtin:
        return []
    return [f"{', '.join(unused)}: set, but {provider.name} makes no use of it"]


def peaks_of(compiled: Compiled) -> dict[str, float] | None:
    """What the machine reaches at most, ``gflops`` and ``gb_per_s``; None where that is not known."""
    peaks = getattr(compiled.executable, "peaks", None)
    return None if peaks is None else peaks()


def quantize(graph: Graph, options: SessionOptions) -> tuple[Graph, Any]:
    """The graph quantized as the options ask, and the report; the graph itself when they do not."""
    if options.quantization is None:
        return graph, None
    apply = getattr(_optional_module("quantization"), "quantize_for_session", None)
    if apply is None:
        raise BackendError(
            "SessionOptions.quantization is set, but pyflame_rt.quantization is not part of this "
            "version. Load the model without it"
        )
    return apply(graph, options)
