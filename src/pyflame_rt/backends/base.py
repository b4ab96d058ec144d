"""What a backend is: something that turns a graph into something that runs."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from pyflame_rt.graph import DType, Graph, Tensor
from pyflame_rt.graph.errors import BackendError, PyFlameRTError, UnsupportedOperatorError
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np

__all__ = ["Backend", "BackendAdapter", "Compiler", "Executable", "FastPath", "Placement", "RunHooks", "Timeline"]


class Timeline(Protocol):
    """Who wants to know what each step of a run took, by ``time.perf_counter_ns``."""

    def step(self, facts: Any, begin_ns: int, end_ns: int, lane: int = 0) -> None:
        """A step that was compiled has run; ``facts`` names it, its nodes and what it costs.

        Steps of different lanes may have run at the same time.
        """
        ...

    def check(self) -> None:
        """A node is about to run on its own."""
        ...

    def observe(self, node: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """That node has run."""
        ...


@dataclass(slots=True)
class RunHooks:
    """What one run wants besides outputs.

    Attributes:
        check: called between steps; raises to stop the run.
        observe: called after each node as ``observe(node, inputs, outputs)``, with arrays of the
            library the node ran on.
        taps: names of intermediate values to return after the outputs.
        only_needed: leave out nodes that no requested value needs.
        urgent: ``check`` must be able to stop the run within a step, not only between calls.
        timeline: told what every step took; only executables with ``times_steps`` look at it.
    """

    check: Callable[[], None] | None = None
    observe: Callable[..., None] | None = None
    taps: Sequence[str] = ()
    only_needed: bool = False
    urgent: bool = False
    timeline: Timeline | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one node runs, for ``session.explain()``.

    Attributes:
        node: its name.
        op_type: its operator, with the domain where that is not ONNX's.
        runs_on: where.
        reason: why there, where that needs saying.
        outputs: names of what it makes.
        host_step: whether it leaves the place where the rest runs.
        fused_with: the first node of the step that does this one as well; "" when it has its own.
        layout: order of the axes of the step's result in memory, outermost first.
        nbytes: bytes the step reads and writes; of the first node of a step only.
        flops: arithmetic of the node, an estimate.
        seconds: median time of the step in profiled runs, the first one left out; of the first node of a step only.
        moves: the row is no node, but a value brought into another layout for this node.
        steps: how many steps of a run are the row's own; none where another row's step does the node as well.
    """

    node: str
    op_type: str
    runs_on: str
    reason: str = ""
    outputs: tuple[str, ...] = field(default=())
    host_step: bool = False
    fused_with: str = ""
    layout: str = ""
    nbytes: int = 0
    flops: int = 0
    seconds: float | None = None
    moves: bool = False
    steps: int = 0


class FastPath(Protocol):
    """Runs on inputs of the same types as the run before, by one native call.

    Attributes:
        order: names of the inputs as a table of addresses has them.
        makers: make an array for each output.
    """

    order: tuple[str, ...]
    makers: Sequence[Callable[[], np.ndarray[Any, Any]]]

    def __call__(
        self,
        feed: Mapping[str, Any],
        into: list[np.ndarray[Any, Any]] | None = None,
        given: Mapping[int, np.ndarray[Any, Any]] | None = None,
    ) -> list[np.ndarray[Any, Any]] | None:
        """Outputs, in the arrays for all (``into``) or some (``given``, by number); None: take the long way."""
        ...

    def run(self, table: int | bytes) -> bool:
        """Run on a table of addresses, inputs then outputs, that the caller answers for; False: take the long way.

        The table is given as bytes, or by its own address.
        """
        ...


class Executable(Protocol):
    """A compiled graph. Subclass it: what an executable does not offer has its answer here.

    Attributes:
        fresh_outputs: True when outputs are always arrays of their own, never an input or a weight.
        times_steps: it tells a timeline what each step took, and looks after limits itself.
        fast_path: for inputs of the types of the latest run; None where there is none.
    """

    fresh_outputs: bool = False
    times_steps: bool = False
    fast_path: FastPath | None = None

    def run(self, feeds: Mapping[str, Any], output_names: Sequence[str], hooks: RunHooks) -> list[Any]:
        """Outputs, then taps (NumPy arrays, lists for sequences, None for empty optionals)."""
        ...

    def placements(self) -> list[Placement]:
        """Where each node runs, and why."""
        ...

    def memory(self) -> dict[str, int]:
        """Bytes held besides the weights of the graph, by purpose."""
        ...

    def close(self) -> None:
        """Give back what it holds."""
        ...

    def let_go(self) -> None:
        """Give back what it holds as soon as no run is under way; those that are end as they would."""
        self.close()

    def donate(self, pairs: Sequence[tuple[str, int]]) -> None:
        """Say before the first run which output (by number) may later be written into which input (by name)."""

    @property
    def donated(self) -> Mapping[int, int]:
        """Outputs that :attr:`fast_path` may be given the array of an input for; both by number."""
        return {}

    def host_steps(self) -> Mapping[tuple[str, str], int]:
        """How often nodes left the device: by operator and reason."""
        return {}

    def peaks(self) -> dict[str, float] | None:
        """What the machine reaches at most, ``gflops`` and ``gb_per_s``; None where that is not known."""
        return None


@runtime_checkable
class Compiler(Protocol):
    """A backend's entry point."""

    name: str

    def compile(self, graph: Graph, options: Any) -> Executable:
        """Prepare a graph for running."""
        ...


class Backend:
    """Base class of backends written outside this package.

    Subclass it, say what it can run, and register it under a provider's name:

    Example:
        >>> import numpy as np, pyflame_rt
        >>> class Negator(pyflame_rt.Backend):
        ...     name = "negator"
        ...     def get_supported_ops(self):
        ...         return ["Neg"]
        ...     def execute(self, graph, input_feed, output_names=()):
        ...         return [-np.asarray(input_feed[graph.inputs[0].name])]
        >>> pyflame_rt.register_backend("NegatorExecutionProvider", Negator)
        >>> g = pyflame_rt.Graph("g")
        >>> _ = g.add_input("x", [2]), g.add_node("n", "Neg", ["x"], ["y"]), g.add_output("y", [2])
        >>> session = pyflame_rt.InferenceSession(g, providers=["NegatorExecutionProvider"])
        >>> session.run(None, {"x": [1, 2]})
        [array([-1., -2.], dtype=float32)]
        >>> pyflame_rt.unregister_backend("NegatorExecutionProvider")
    """

    name: str = "backend"

    def supports_op(self, op_type: str) -> bool:
        """True when nodes of this operator can run here."""
        return op_type in self.get_supported_ops()

    def get_supported_ops(self) -> list[str]:
        """Names of the operators that can run here."""
        raise NotImplementedError

    def execute(
        self, graph: Graph, input_feed: Mapping[str, Tensor], output_names: Sequence[str] = ()
    ) -> Sequence[Any]:
        """Run a graph: one Tensor or array for each output name (all outputs when empty)."""
        raise NotImplementedError


class BackendAdapter:
    """Makes a compiler of a Backend."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.name = backend.name

    def compile(self, graph: Graph, options: Any = None) -> BackendExecutable:
        """Check that every operator is supported."""
        del options
        refused = [n for n in graph.nodes if not self.backend.supports_op(n.full_name)]
        if refused:
            names = ", ".join(sorted({n.full_name for n in refused}))
            raise UnsupportedOperatorError(
                f"backend {self.name!r} does not run {names} (first at node {refused[0].name!r}). "
                f"It runs {', '.join(sorted(self.backend.get_supported_ops()))}"
            )
        return BackendExecutable(self.backend, graph)


class BackendExecutable(Executable):
    """A graph with the backend that will run it."""

    fresh_outputs = False

    def __init__(self, backend: Backend, graph: Graph) -> None:
        self._backend = backend
        self._graph = graph

    def run(self, feeds: Mapping[str, Any], output_names: Sequence[str], hooks: RunHooks) -> list[Any]:
        """Run the whole graph in one call; only the start of it can be stopped."""
        if hooks.check is not None:
            hooks.check()
        wanted = [*output_names, *hooks.taps]
        feed = {name: Tensor(value) for name, value in feeds.items() if value is not None}
        try:
            results = list(self._backend.execute(self._tapped(hooks.taps), feed, wanted))
        except PyFlameRTError:
            raise
        except Exception as error:
            raise BackendError(f"backend {self._backend.name!r} failed: {error}") from error
        if len(results) != len(wanted):
            raise BackendError(f"backend {self._backend.name!r} gave {len(results)} results for {len(wanted)} names")
        return [r.raw() if isinstance(r, Tensor) else r for r in results]

    def _tapped(self, taps: Sequence[str]) -> Graph:
        if not taps:
            return self._graph
        graph = self._graph.copy()
        known = {info.name for info in graph.outputs}
        for name in taps:
            if name not in known:
                graph.add_output(name, None, DType.Float32)
        return graph

    def placements(self) -> list[Placement]:
        """Every node runs in the backend."""
        name = self._backend.name
        return [Placement(n.name, n.full_name, name, "", n.outputs) for n in self._graph.nodes]

    def memory(self) -> dict[str, int]:
        """What the backend holds is its own affair."""
        return {}

    def close(self) -> None:
        """Nothing to give back."""
