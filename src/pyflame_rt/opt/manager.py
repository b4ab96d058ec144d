"""PassManager: passes in order, until none of them changes anything."""

from __future__ import annotations

import time
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

from pyflame_rt.cache.installed import is_declared
from pyflame_rt.graph import Graph, verify
from pyflame_rt.graph.errors import InputError, ValidationError
from pyflame_rt.graph.graph import node_subgraphs
from pyflame_rt.graph.named_arguments import expect_fields, names_arguments
from pyflame_rt.graph.names import closest
from pyflame_rt.logs import SessionLog
from pyflame_rt.opt.base import EditingPass, Pass, PassResult, name_of
from pyflame_rt.opt.config import FusionConfig, PassManagerConfig
from pyflame_rt.opt.constant_folding import ConstantFoldingPass
from pyflame_rt.opt.cse import CSEPass
from pyflame_rt.opt.dead_code import DeadCodeEliminationPass
from pyflame_rt.opt.editor import Editor
from pyflame_rt.opt.fusion import OperatorFusionPass
from pyflame_rt.opt.layout import LayoutOptimizationPass
from pyflame_rt.opt.rule import all_rules
from pyflame_rt.opt.simplification import SimplificationPass
from pyflame_rt.options import OptLevel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyflame_rt.options import SessionOptions

__all__ = ["PassManager", "default_passes", "manager_for", "optimize", "register_pass", "registered_passes"]

ENTRY_POINTS = "pyflame_rt.passes"
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
_registered: dict[str, Callable[[], Pass]] = {}


@names_arguments
def register_pass(make: Callable[[], Pass]) -> Callable[[], Pass]:
    """Add a pass to those that sessions and ``optimize`` run; a class, or a function that gives a Pass.

    Packages name theirs as entry points of the group ``pyflame_rt.passes`` instead.

    Example:
        >>> @register_pass
        ... class Nothing(Pass):
        ...     def run(self, graph):
        ...         return PassResult()
        >>> "Nothing" in registered_passes()
        True
        >>> del _registered["Nothing"]
    """
    _registered[name_of(make())] = make
    return make


def registered_in_code() -> bool:
    """Whether :func:`register_pass` was called."""
    return bool(_registered)


@cache
def _installed() -> dict[str, Callable[[], Pass]]:
    """Passes that other packages offer."""
    if not is_declared(ENTRY_POINTS):
        return {}
    from importlib.metadata import entry_points

    return {point.name: point.load() for point in entry_points(group=ENTRY_POINTS)}


def registered_passes() -> dict[str, Callable[[], Pass]]:
    """Passes besides our own, by name: registered here, or offered by installed packages."""
    return {**_installed(), **_registered}


def default_passes() -> list[Pass]:
    """Our passes in the order in which they help each other, then registered ones, then what cleans up."""
    return [
        ConstantFoldingPass(),
        SimplificationPass(),
        CSEPass(),
        OperatorFusionPass(),
        *(make() for make in registered_passes().values()),
        LayoutOptimizationPass(),
        DeadCodeEliminationPass(),
    ]


class PassObserver(Protocol):
    """Who looks at every pass: it is given the graph before and after it."""

    def compare(self, name: str, before: Graph, after: Graph, result: PassResult) -> None:
        """Raise to stop."""
        ...


class PassManager:
    """Runs passes over a graph, which they change in place.

    A new manager has no passes; :meth:`create_default` gives one with those of a level. A pass is known by its name,
    with or without "Pass" at the end.

    Example:
        >>> manager = PassManager.create_default(OptLevel.BASIC)
        >>> manager.list_passes()
        ['ConstantFoldingPass', 'SimplificationPass', 'DeadCodeEliminationPass']
    """

    def __init__(self, config: PassManagerConfig | None = None) -> None:
        self.config = PassManagerConfig() if config is None else config
        self.log: SessionLog | None = None
        self.watch: PassObserver | None = None
        self._passes: list[Pass] = []

    @staticmethod
    def create_default(level: OptLevel = OptLevel.EXTENDED, config: PassManagerConfig | None = None) -> PassManager:
        """A manager with the passes of a level; a config given besides keeps all but its level."""
        chosen = PassManagerConfig() if config is None else config
        chosen.opt_level = OptLevel.of(level)
        manager = PassManager(chosen)
        for one in default_passes():
            if one.should_run(chosen.opt_level):
                manager.register_pass(one)
        return manager

    def register_pass(self, one: Pass) -> None:
        """Add a pass after the others; one of the same name is replaced where it stands."""
        name = name_of(one)
        for i, known in enumerate(self._passes):
            if name_of(known) == name:
                self._passes[i] = one
                return
        self._passes.append(one)

    def replace_pass(self, one: Pass) -> None:
        """Put a pass in the place of one of the same name; where there is none, nothing is done."""
        if self.has_pass(name_of(one)):
            self.register_pass(one)

    def list_passes(self) -> list[str]:
        """Names of the passes, in order."""
        return [name_of(one) for one in self._passes]

    def has_pass(self, name: str) -> bool:
        """Whether there is a pass of that name."""
        return any(_is(one, name) for one in self._passes)

    def get_pass(self, name: str) -> Pass:
        """The pass of that name."""
        for one in self._passes:
            if _is(one, name):
                return one
        close = closest(name, self.list_passes())
        hint = f" Did you mean {close[0]}?" if close else ""
        raise InputError(f"there is no pass {name!r}.{hint} Passes: {', '.join(self.list_passes()) or 'none'}")

    def run(self, graph: Graph) -> PassResult:
        """Run every pass once, in order."""
        return self._run(graph, 1)

    def run_until_fixed_point(self, graph: Graph) -> PassResult:
        """Run all passes again and again until none changes anything, ``max_iterations`` times at most."""
        return self._run(graph, max(self.config.max_iterations, 1))

    def run_pass(self, name: str, graph: Graph) -> PassResult:
        """Run one pass once, whatever level, skip and only lists say."""
        return self._round(graph, [self.get_pass(name)], float("inf"))

    # ------------------------------------------------------------------ how

    def _chosen(self, result: PassResult) -> list[Pass]:
        config = self.config
        expect_fields(config)
        for name in (*config.skip_passes, *config.only_passes):
            if not self.has_pass(name) and not any(_is(one, name) for one in default_passes()):
                result.warnings.append(f"there is no pass {name!r} to skip or to run alone")
        if not self._passes:
            result.warnings.append("no passes are registered: nothing is optimised. See PassManager.create_default")
        level = OptLevel.of(config.opt_level)
        return [
            one
            for one in self._passes
            if one.should_run(level)
            and not any(_is(one, name) for name in config.skip_passes)
            and (not config.only_passes or any(_is(one, name) for name in config.only_passes))
        ]

    def _run(self, graph: Graph, rounds: int) -> PassResult:
        result = PassResult()
        passes = self._chosen(result)
        deadline = time.perf_counter() + (self.config.timeout_ms or float("inf")) / 1e3
        shared: list[Editor] = []
        settled: set[int] = set()
        for i in range(rounds):
            done = self._round(graph, passes, deadline, shared, settled)
            result.add(done)
            if not done.modified or time.perf_counter() > deadline:
                break
            if i == rounds - 1 and rounds > 1:
                result.warnings.append(f"passes still find something to do after {rounds} rounds")
        if passes:
            self._bodies(graph, rounds, result)
        return result

    def _round(
        self,
        graph: Graph,
        passes: Sequence[Pass],
        deadline: float,
        shared: list[Editor] | None = None,
        settled: set[int] | None = None,
    ) -> PassResult:
        """Every pass once; passes that edit share an editor, which is in ``shared`` as long as it holds.

        ``settled`` are those, by identity, that found nothing to do in the graph as it is; they are left out.
        """
        result = PassResult()
        editors = [] if shared is None else shared
        done_with: set[int] = set() if settled is None else settled
        for one in passes:
            if id(one) in done_with:
                continue
            started = time.perf_counter()
            if started > deadline:
                left = ", ".join(map(name_of, passes[passes.index(one) :]))
                result.warnings.append(f"time was up after {self.config.timeout_ms:g} ms: {left} did not run")
                break
            before = len(graph.nodes)
            copied = None if self.watch is None else graph.copy()
            if isinstance(one, EditingPass):
                if not editors:
                    editors.append(Editor(graph))
                done = one.edit(editors[0])
                editors[0].commit()
            else:
                editors.clear()
                done = one.run(graph)
            if not isinstance(done, PassResult):
                raise InputError(f"pass {name_of(one)!r} gave {type(done).__name__}; run(graph) gives a PassResult")
            if done.modified:
                graph.origin = None
                done_with.clear()
            else:
                done_with.add(id(one))
            done.seconds = {name_of(one): time.perf_counter() - started}
            self._report(graph, one, done, before)
            if self.watch is not None and copied is not None and done.modified:
                self.watch.compare(name_of(one), copied, graph, done)
            result.add(done)
        return result

    def _report(self, graph: Graph, one: Pass, done: PassResult, before: int) -> None:
        name = name_of(one)
        if self.config.verbose:
            log = self.log or SessionLog("info")
            seconds = done.seconds[name]
            log.info("%s: %d -> %d nodes, %s (%.1f ms)", name, before, len(graph.nodes), done.stats, seconds * 1e3)
        if self.config.validate_after_pass:
            try:
                verify(graph)
            except ValidationError as error:
                raise ValidationError(
                    f"after pass {name!r}: graph {graph.name!r} is not valid", error.errors
                ) from error

    def _bodies(self, graph: Graph, rounds: int, result: PassResult) -> None:
        """The same for graphs inside nodes, each in a copy that takes its place if it changed."""
        for i, node in enumerate(graph.nodes):
            if next(node_subgraphs(node), None) is None:
                continue
            new = {name: self._body(value, rounds, result) for name, value in node.attributes.items()}
            if any(new[name] is not value for name, value in node.attributes.items()):
                graph.nodes[i] = node.replace(attributes=new)
                graph.origin = None

    def _body(self, value: Any, rounds: int, result: PassResult) -> Any:
        if isinstance(value, (list, tuple)) and any(isinstance(item, Graph) for item in value):
            return [self._body(item, rounds, result) for item in value]
        if not isinstance(value, Graph):
            return value
        twin = value.copy()
        done = self._run(twin, rounds)
        result.add(done)
        return twin if done.modified else value


def _is(one: Pass, name: str) -> bool:
    return name_of(one).removesuffix("Pass") == name.removesuffix("Pass")


@names_arguments
def optimize(graph: Graph, level: OptLevel = OptLevel.EXTENDED) -> PassResult:
    """Optimise a graph, in place, with the passes of a level.

    Example:
        >>> g = Graph("g")
        >>> _ = g.add_input("x", [2]), g.add_node("a", "Identity", ["x"], ["u"]), g.add_node("b", "Neg", ["u"], ["y"])
        >>> _ = g.add_output("y", [2])
        >>> optimize(g, OptLevel.BASIC).stats.nodes_removed, g.nodes
        (1, [b: Neg(x) -> y])
    """
    chosen = OptLevel.of(level)
    if chosen is OptLevel.NONE:
        return PassResult()
    return PassManager.create_default(chosen).run_until_fixed_point(graph)


def manager_for(options: SessionOptions, unused: list[str] | None = None) -> PassManager:
    """A pass manager as session options ask for; what they name in vain is added to ``unused``."""
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
