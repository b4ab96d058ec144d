"""Optimised graphs for sessions: passes as the options ask, kept on disk, made when they are first looked at."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple

from pyflame_rt.cache.encoding import Codec, DecodeError, EncodeError, record
from pyflame_rt.cache.installed import is_declared
from pyflame_rt.cache.models import GRAPH_KINDS, MAX_BYTES
from pyflame_rt.cache.places import MAKERS, place_of
from pyflame_rt.cache.signature import code_signature
from pyflame_rt.cache.store import current_store, use_store
from pyflame_rt.graph import Graph
from pyflame_rt.graph.deferred import DeferredGraph
from pyflame_rt.graph.graph import Origin
from pyflame_rt.graph.names import closest
from pyflame_rt.logs import SessionLog
from pyflame_rt.options import OptLevel
from pyflame_rt.registry import depends_on_added, replaced_ops

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyflame_rt.opt.base import PassResult
    from pyflame_rt.opt.manager import PassManager
    from pyflame_rt.options import SessionOptions

__all__ = ["OptimisedGraph", "prepare"]

PASSES = "pyflame_rt.passes"  # the group of entry points
# What ONNX Runtime calls the rewrites that people switch off.
ALIASES = {
    "AttentionFusion": "attention",
    "BiasGeluFusion": "gelu",
    "CommonSubexpressionElimination": "CSE",
    "ConstantFolding": "ConstantFolding",
    "ConvActivationFusion": "conv_relu",
    "ConvBNFusion": "conv_bn",
    "EliminateCast": "cast_to_same",
    "EliminateIdentity": "DeadCodeElimination",
    "EliminateSlice": "slice_everything",
    "GeluFusionL1": "gelu",
    "GeluFusionL2": "gelu",
    "LayerNormFusionL1": "layer_norm",
    "LayerNormFusionL2": "layer_norm",
    "MatMulAddFusion": "matmul_add",
    "NhwcTransformer": "LayoutOptimization",
    "SimplifiedLayerNormFusion": "rms_norm",
    "TransposeOptimizer": "transposes_cancel",
}


class OptimisedGraph(NamedTuple):
    """An optimised graph, and what was done; of a graph not made yet that is asked for by calling."""

    graph: Graph
    result: Callable[[], PassResult]
    notes: Sequence[str] = ()
    unused: Sequence[str] = ()


class _Kept(NamedTuple):
    """What is written of an optimised graph: the nodes, and what was done."""

    graph: Graph
    result: PassResult


def prepare(graph: Graph, options: SessionOptions) -> OptimisedGraph:
    """The graph as the options want it optimised; the one given is left as it is.

    A graph that came from a file, unchanged, is optimised once: what its plan was made for is known by the file and the
    settings, and the optimised graph itself is read again only where a plan for new shapes is to be made.
    """
    key = _key(graph, options)
    eager = options.verify or options.verbose_optimization or bool(options.optimized_model_filepath)
    if key is None or eager or graph.origin is None or not graph.origin.checked:
        kept, unused = _optimised(graph, options)
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
                found = _optimised(graph, options)[0]
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
    return is_declared(PASSES) or (manager is not None and manager.registered_in_code())


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


def _optimised(graph: Graph, options: SessionOptions) -> tuple[_Kept, list[str]]:
    """The optimised copy of a graph, and what the options name in vain."""
    unused: list[str] = []
    manager = manager_for(options, unused)
    twin = graph.copy()
    if replaced := replaced_ops():
        from pyflame_rt.opt.base import PassResult

        told = f"left out, since built-in operators were replaced in this process: {', '.join(replaced)}"
        return _Kept(twin, PassResult(warnings=[told])), unused
    return _Kept(twin, manager.run_until_fixed_point(twin)), unused


def manager_for(options: SessionOptions, unused: list[str] | None = None) -> PassManager:
    """A pass manager as session options ask for; what they name in vain is added to ``unused``."""
    from pyflame_rt.opt.config import FusionConfig, PassManagerConfig
    from pyflame_rt.opt.fusion import OperatorFusionPass
    from pyflame_rt.opt.manager import PassManager
    from pyflame_rt.opt.rule import all_rules
    from pyflame_rt.opt.simplification import SimplificationPass

    config = PassManagerConfig(
        verbose=options.verbose_optimization,
        timeout_ms=options.optimization_timeout_ms,
        validate_after_pass=options.verify,
    )
    manager = PassManager.create_default(OptLevel.of(options.optimization_level), config)
    manager.log = SessionLog("info" if options.verbose_optimization else options.log_level, options.logid)
    rules = {rule.name for rule in all_rules()}
    disabled = [ALIASES.get(name, name) for name in options.disabled_optimizers]
    config.skip_passes = [name for name in disabled if manager.has_pass(name)]
    for name in disabled:
        if name not in rules and name not in config.skip_passes and unused is not None:
            close = closest(name, [*rules, *manager.list_passes()])
            hint = f"; did you mean {close[0]}?" if close else ""
            unused.append(f"disabled_optimizers: {name!r} has no effect: there is no such pass or rule{hint}")
    manager.replace_pass(SimplificationPass(disabled))
    manager.replace_pass(OperatorFusionPass(FusionConfig(strict_math=options.strict_math_mode, disabled=disabled)))
    if options.verify:
        from pyflame_rt.opt.verification import Verifier

        manager.watch = Verifier()
    return manager
