"""Cost model: a roofline for nodes, latency and bandwidth for transfers, both calibrated by measurement."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pyflame_rt.feeds import random_feed
from pyflame_rt.graph import Graph, Shape, TensorType
from pyflame_rt.graph.errors import PyFlameRTError
from pyflame_rt.ops.core.evaluate import bind_attributes
from pyflame_rt.ops.core.flop_counts import count_flops
from pyflame_rt.ops.core.inference import infer_types
from pyflame_rt.ops.core.registry import find_op
from pyflame_rt.ops.onnx.arithmetic import Neg
from pyflame_rt.options import SessionOptions
from pyflame_rt.partition.config import count_of, positive
from pyflame_rt.session import InferenceSession

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyflame_rt.graph import Node, ValueType
    from pyflame_rt.partition.config import DeviceSpec, PartitionConfig

__all__ = ["CostModel", "GraphCosts", "bytes_of", "concrete_graph"]

# One core of a machine of the year 2024, and a hand-over between two threads of it; calibrate() measures this one.
FLOPS, BANDWIDTH = 50e9, 10e9
LINK_BANDWIDTH, LINK_LATENCY_US = 5e9, 50.0
NODE_US, PART_US = 0.3, 30.0
_BIG = 2**23  # elements of the array that is copied to measure bandwidth
_MANY = 100  # runs of next to nothing
_LEAST = 1e-3  # nodes take at least this share of what was measured with a clock


class GraphCosts(NamedTuple):
    """What a graph costs for one request.

    Attributes:
        order: its nodes, each after those it reads.
        us: microseconds of each node, by its first output: measured where the graph was, else as the roofline says.
        roofline: what the roofline says.
        value_bytes: of every value that is made.
        weight_bytes: of every initializer.
        batch_size: rows of the request.
    """

    order: list[Node]
    us: dict[str, float]
    roofline: dict[str, float]
    value_bytes: dict[str, int]
    weight_bytes: dict[str, int]
    batch_size: int

    @property
    def total_us(self) -> float:
        """Microseconds of all nodes."""
        return sum(self.us.values())


class CostModel:
    """Predicts what nodes and transfers take.

    Example:
        >>> model = CostModel()
        >>> model.set_inter_device_bandwidth(1e9)
        >>> model.set_inter_device_latency(2.0)
        >>> model.estimate_comm_cost(1_000_000)
        1002.0
    """

    def __init__(self) -> None:
        self.flops = FLOPS
        self.memory_bandwidth = BANDWIDTH
        self.inter_device_bandwidth = LINK_BANDWIDTH
        self.inter_device_latency = LINK_LATENCY_US
        self.part_us = PART_US
        self._measured: dict[str, dict[str, float]] = {}

    def set_inter_device_bandwidth(self, bytes_per_second: float) -> None:
        """Bytes a second between two devices."""
        self.inter_device_bandwidth = positive(bytes_per_second, "inter-device bandwidth")

    def set_inter_device_latency(self, microseconds: float) -> None:
        """Microseconds before the first byte arrives."""
        if microseconds != 0:
            positive(microseconds, "inter-device latency")
        self.inter_device_latency = float(microseconds)

    def estimate_comm_cost(self, num_bytes: int, hops: int = 1) -> float:
        """Microseconds until a value of so many bytes is on another device."""
        return hops * self.inter_device_latency + num_bytes / self.inter_device_bandwidth * 1e6

    def estimate_compute_cost(self, graph: Graph, node: Node, device: DeviceSpec | None = None) -> float:
        """Microseconds of a node of a graph whose sizes are known (see :func:`concrete_graph`)."""
        kinds = [graph.value_type(n) if n else None for n in node.inputs]
        made = [graph.value_type(n) for n in node.outputs if n]
        moved = sum(bytes_of(k) for k in (*kinds, *made))
        seconds = max(_flops(node, kinds, made) / self.flops, moved / self.memory_bandwidth)
        return self.on(device, seconds * 1e6 + NODE_US)

    def estimate_memory_cost(self, graph: Graph, node: Node) -> int:
        """Bytes of a node's weights and results."""
        weights = {n: graph.initializers[n].size_bytes for n in node.inputs if n in graph.initializers}
        return sum(weights.values()) + sum(bytes_of(graph.value_type(n)) for n in node.outputs if n)

    def on(self, device: DeviceSpec | None, us: float) -> float:
        """A time of this machine's, on a device that is faster or slower."""
        return us if device is None or not device.compute_flops else us * self.flops / device.compute_flops

    def survey(self, graph: Graph, config: PartitionConfig) -> GraphCosts:
        """Costs of all nodes and values of a graph; measured ones where it was measured."""
        sized = concrete_graph(graph, config.sizes, config.batch_size)
        order = sized.topological_sort()
        known = self._measured.get(_key(graph), {})
        roofline = {n.outputs[0]: self.estimate_compute_cost(sized, n) for n in order if n.outputs}
        # Nodes of a graph that was measured without a step of their own are optimised away.
        us = {name: known.get(name, 0.0) if known else cost for name, cost in roofline.items()}
        values = {name: bytes_of(sized.value_type(name)) for n in order for name in n.outputs if name}
        values |= {i.name: bytes_of(i.type) for i in sized.inputs}
        weights = {name: t.size_bytes for name, t in graph.initializers.items()}
        return GraphCosts(order, us, roofline, values, weights, config.batch_size)

    # ------------------------------------------------------------------ measuring

    def calibrate(
        self,
        graph: Graph,
        feed: Mapping[str, Any] | None = None,
        *,
        batch_size: int = 32,
        sizes: Mapping[str, int] | None = None,
        runs: int = 5,
    ) -> float:
        """Run a graph on this machine with one thread and take the times of its nodes; gives those of a run.

        Args:
            graph: later plans for it use what was measured; plans for others the speed that was reached.
            feed: inputs; random ones of ``batch_size`` rows where not given.
            batch_size: rows of random inputs.
            sizes: other open sizes by name.
            runs: how often, besides a first run that is not counted.

        Returns:
            Microseconds of the fastest run.
        """
        count_of(runs, "runs")
        sized = concrete_graph(graph, {**(sizes or {}), **_sizes_of(graph, feed or {})}, batch_size)
        given = random_feed(sized.required_inputs) if feed is None else dict(feed)
        with InferenceSession(graph, SessionOptions(num_threads=1, quick_start=False)) as session:
            best = _best_us(session, given, runs)
        options = SessionOptions(num_threads=1, enable_profiling=True, quick_start=False)
        with InferenceSession(graph, options) as session:
            _best_us(session, given, runs)
            measured = _by_node(session, graph)
        analytic = {n.outputs[0]: self.estimate_compute_cost(sized, n) for n in sized.nodes if n.outputs}
        shared = _spread(measured, analytic)
        total = sum(shared.values())
        if total > 0:
            # Looking at the clock takes time too: what steps take is how a run without it is divided among them.
            self.part_us = _run_us()
            shared = {name: us * max(best - self.part_us, total * _LEAST) / total for name, us in shared.items()}
            self.flops *= sum(analytic[k] for k in shared) / sum(shared.values())
            self._measured[_key(graph)] = shared
        return best

    def calibrate_transfers(self, backend: str = "threads") -> tuple[float, float]:
        """Measure how values get from device to device here; gives bytes a second and microseconds.

        Args:
            backend: of the executor that will run the plan, "threads" or "processes".
        """
        from pyflame_rt.partition.executor import measure_transfers

        bandwidth, latency = measure_transfers(backend, _BIG)
        self.part_us = _run_us()
        latency = max(latency - self.part_us, 1.0)  # what a part costs wherever it runs is counted with it
        self.set_inter_device_bandwidth(bandwidth)
        self.set_inter_device_latency(latency)
        return bandwidth, latency


def concrete_graph(graph: Graph, sizes: Mapping[str, int], batch_size: int) -> Graph:
    """A copy in which every size is known as far as the sizes of the inputs decide it.

    Args:
        graph: left as it is.
        sizes: open sizes by name.
        batch_size: for a first size that is open and not named among ``sizes``; other open ones are 1.
    """
    twin = graph.copy()
    twin.types = {}
    for info in twin.inputs:
        kind = info.type
        if isinstance(kind, TensorType) and kind.shape is not None:
            dims = [_sized(d, i, sizes, batch_size) for i, d in enumerate(kind.shape)]
            info.shape = Shape(dims)
    infer_types(twin)
    return twin


def _sized(dim: Any, axis: int, sizes: Mapping[str, int], batch_size: int) -> int:
    if isinstance(dim, int):
        return dim
    default = batch_size if axis == 0 else 1
    if dim is None:
        return default
    names = {**dict.fromkeys(dim.symbols(), default), **sizes}
    return max(dim.evaluate(names) or default, 0)


def _key(graph: Graph) -> str:
    """A graph, whatever the order of its nodes, without those that nothing needs."""
    needed = graph.needed_for([info.name for info in graph.outputs])
    return f"{needed.fingerprint()} {','.join(sorted(n.outputs[0] for n in needed.nodes if n.outputs))}"


def _sizes_of(graph: Graph, feed: Mapping[str, Any]) -> dict[str, int]:
    """The open sizes of a graph's inputs that have a name, as arrays have them."""
    found: dict[str, int] = {}
    for info in graph.inputs:
        kind, value = info.type, feed.get(info.name)
        if value is None or not isinstance(kind, TensorType) or kind.shape is None:
            continue
        for dim, size in zip(kind.shape, np.shape(value), strict=False):
            if dim is not None and not isinstance(dim, int) and str(dim) in dim.symbols():
                found[str(dim)] = int(size)
    return found


def _best_us(session: InferenceSession, feed: Mapping[str, Any], runs: int) -> float:
    """Microseconds of the fastest of so many runs, after one that is not counted."""
    session.run(None, dict(feed))
    times = []
    for _ in range(runs):
        started = time.perf_counter()
        session.run(None, dict(feed))
        times.append(time.perf_counter() - started)
    return min(times) * 1e6


def _run_us() -> float:
    """Microseconds of a run of next to nothing."""
    graph = Graph("nothing")
    graph.add_input("x", [1])
    graph.add_output("y", [1])
    graph.add_node("n", Neg.name, ["x"], ["y"])
    with InferenceSession(graph, SessionOptions(num_threads=1)) as session:
        return _best_us(session, {"x": np.ones(1, np.float32)}, _MANY)


def bytes_of(kind: ValueType | None) -> int:
    """Bytes of a value; 0 where its size is not known."""
    if not isinstance(kind, TensorType) or kind.shape is None or kind.shape.num_elements is None:
        return 0
    return kind.shape.num_elements * kind.dtype.itemsize


def _dims_of(kind: ValueType | None) -> tuple[int, ...]:
    if not isinstance(kind, TensorType) or kind.shape is None or not kind.shape.is_static:
        return ()
    return tuple(int(d) for d in kind.shape)  # type: ignore[arg-type]


def _flops(node: Node, inputs: list[ValueType | None], outputs: list[ValueType | None]) -> float:
    op = find_op(node.op_type, node.domain)
    if op is None or not outputs:
        return 0.0
    try:
        return count_flops(op, [_dims_of(k) for k in inputs], _dims_of(outputs[0]), bind_attributes(node, op))
    except (PyFlameRTError, IndexError):  # sizes that are not known, inputs that are not given
        return float(math.prod(_dims_of(outputs[0])))


def _by_node(session: InferenceSession, graph: Graph) -> list[tuple[list[str], float]]:
    """First outputs of the model's nodes that a step does, and its microseconds."""
    compiled = session._compile(overrides=False)
    origins = {} if compiled.optimised is None else compiled.optimised().origins()
    firsts = {n.name: n.outputs[0] for n in graph.nodes if n.name and n.outputs}
    steps: dict[str, list[str]] = {}
    seconds: dict[str, float] = {}
    for row in session.explain().rows:
        first = row.fused_with or row.node
        names = origins[row.node][1] if row.node in origins else (row.node,)
        steps.setdefault(first, []).extend(firsts[n] for n in names if n in firsts)
        seconds[first] = seconds.get(first, 0.0) + (row.seconds or 0.0)
    return [(names, seconds[first] * 1e6) for first, names in steps.items()]


def _spread(measured: list[tuple[list[str], float]], analytic: Mapping[str, float]) -> dict[str, float]:
    """The time of each step, divided among its nodes as the roofline would."""
    found: dict[str, float] = {}
    for names, us in measured:
        known = [n for n in dict.fromkeys(names) if n in analytic]
        total = sum(analytic[n] for n in known)
        for name in known:
            found[name] = found.get(name, 0.0) + us * analytic[name] / total
    return found
