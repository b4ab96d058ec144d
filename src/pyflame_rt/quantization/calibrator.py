"""Calibration: a model runs over representative data, and the ranges of what is to be quantized are noted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph import Graph, TensorInfo
from pyflame_rt.graph.arguments import expect
from pyflame_rt.graph.errors import InputError
from pyflame_rt.ops.onnx.conv import Conv
from pyflame_rt.quantization.channels import ChannelObserver
from pyflame_rt.quantization.config import CalibrationMethod, QuantConfig
from pyflame_rt.quantization.feeds import feeds_of
from pyflame_rt.quantization.observers import RangeObserver
from pyflame_rt.quantization.params import GraphQuantInfo
from pyflame_rt.quantization.prepare import Candidate, select
from pyflame_rt.quantization.static import grids, observed_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyflame_rt.quantization.feeds import FeedSource
    from pyflame_rt.quantization.observers import TensorStats

__all__ = ["Calibrator", "Probe", "channel_axis"]


class Calibrator:
    """Finds the ranges of a graph's data for static quantization.

    Memory does not grow with the number of batches: each tensor keeps its extremes and a histogram.

    Args:
        graph: the model; left as it is.
        config: how it will be quantized.

    Example:
        >>> graph = Graph("g")
        >>> _ = graph.add_input("x", ["N", 2]), graph.add_output("y", ["N", 2])
        >>> _ = graph.add_initializer("w", np.float32([[1, 2], [3, 4]]))
        >>> _ = graph.add_node("m", "MatMul", ["x", "w"], ["y"])
        >>> calibrator = Calibrator(graph, QuantConfig.static_int8())
        >>> calibrator.observe({"x": np.float32([[-2, 2]])})
        >>> calibrator.compute_quant_params().get_params("x").scales
        array([0.01574803], dtype=float32)
    """

    def __init__(self, graph: Graph, config: QuantConfig | None = None) -> None:
        chosen = QuantConfig.static_int8() if config is None else config
        expect(chosen, QuantConfig, "the config of a Calibrator")
        self.config = chosen.check()
        self._selection = select(graph, self.config, static=True)
        names = observed_names(self._selection, self.config)
        histogram = self.config.calibration_method is not CalibrationMethod.MinMax
        self._ranges = {name: RangeObserver(histogram=histogram) for name in names}
        self._channels = dict(self._corrected()) if self.config.bias_correction else {}
        self._probe = Probe(self._selection.graph, [*names, *self._channels])
        self.batches = 0

    def _corrected(self) -> Iterator[tuple[str, ChannelObserver]]:
        for candidate in self._selection.chosen:
            if candidate.weight:
                yield candidate.data[0], ChannelObserver(channel_axis(candidate))

    def observe(self, feed: Mapping[str, Any]) -> None:
        """Run the model on one feed and look at what it computes.

        Raises:
            InputError: a name is unknown or missing; also the errors of ``InferenceSession.run``.
        """
        for name, array in self._probe.run(feed):
            if name in self._ranges:
                self._ranges[name].observe(array)
            if name in self._channels:
                self._channels[name].observe(array)
        self.batches += 1

    def calibrate(self, provider: FeedSource, batches: int | None = None) -> int:
        """Observe feeds from a function or an iterable; how many there were.

        Args:
            provider: gives one feed a call until it gives None or raises StopIteration; or an iterable of feeds.
            batches: how many at most; ``config.calibration_samples`` when None.
        """
        count = self.config.calibration_samples if batches is None else batches
        before = self.batches
        for feed in _shown(feeds_of(provider, count), count):
            self.observe(feed)
        return self.batches - before

    def get_stats(self, name: str) -> TensorStats:
        """What was seen of a tensor.

        Raises:
            InputError: it is not among those that are observed.
        """
        if name not in self._ranges:
            raise InputError(f"{name!r} is not observed. Observed: {', '.join(self._ranges) or 'nothing'}")
        return self._ranges[name].stats()

    @property
    def names(self) -> list[str]:
        """The tensors that are observed."""
        return list(self._ranges)

    def compute_quant_params(self) -> GraphQuantInfo:
        """Scales and zero points of the tensors that were seen.

        Raises:
            InputError: nothing was observed.
        """
        if not self.batches:
            raise InputError("no calibration data was observed: call observe(feed) or calibrate(provider) first")
        info = GraphQuantInfo()
        for name, observer in self._ranges.items():
            stats = observer.stats()
            if stats.nonfinite:
                info.refused[name] = f"{name!r} was infinite or NaN {stats.nonfinite} times in the calibration data"
            elif not stats.count:
                info.refused[name] = f"{name!r} was empty in all of the calibration data"
            else:
                info.set_params(name, observer.params(self.config))
        refused = grids(self._selection.graph, self._channels)
        info.means = {n: c.mean() for n, c in self._channels.items() if refused[n] not in info.refused}
        return info

    def close(self) -> None:
        """Give back what the runs need; the ranges stay."""
        self._probe.close()


def channel_axis(candidate: Candidate) -> int:
    """The axis of a node's data that its weight sums over."""
    return 1 if candidate.node.op_type == Conv.name else -1


class Probe:
    """Runs a graph for its intermediate values."""

    def __init__(self, graph: Graph, names: Iterable[str]) -> None:
        from pyflame_rt.session import InferenceSession

        wanted = list(dict.fromkeys(names))
        inputs = {info.name for info in graph.inputs}
        self._fed = [name for name in wanted if name in inputs]
        self._defaults = {n: graph.initializers[n].raw() for n in self._fed if n in graph.initializers}
        self._made = [name for name in wanted if name not in inputs]
        watched = graph.copy()
        watched.outputs = [TensorInfo(name, type=graph.value_type(name)) for name in self._made]
        watched = watched.needed_for(self._made)
        self._session = InferenceSession(watched)

    def run(self, feed: Mapping[str, Any]) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
        """Each value by name."""
        yield from zip(self._made, self._session.run(None, feed) if self._made else [], strict=True)
        if not self._made:
            self._session._reader.read(feed)
        for name in self._fed:
            yield name, np.asarray(feed[name] if name in feed else self._defaults[name], np.float32)

    def close(self) -> None:
        """Close the session."""
        self._session.close()


def _shown(feeds: Iterator[Any], count: int) -> Iterator[Any]:
    """The feeds, with a bar on a terminal that tells how many came."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    quiet = not console.is_terminal
    return iter(track(feeds, "calibrating", total=count, console=console, transient=True, disable=quiet))
