"""SmoothQuant: outliers of data move into the weights of the products that read it (Xiao et al., 2023).

A few channels of a normalisation's result are often a hundred times as large as the rest, which leaves the rest a few
steps. Dividing a channel by ``s`` in the normalisation's own scale and multiplying the weights that read it by ``s``
changes nothing but how the difficulty is shared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph import Graph, Node, Tensor
from pyflame_rt.graph.errors import InputError
from pyflame_rt.graph.named_arguments import names_arguments
from pyflame_rt.ops.onnx.conv import Conv
from pyflame_rt.ops.onnx.norm import LayerNormalization, RMSNormalization
from pyflame_rt.quantization.calibrator import Probe
from pyflame_rt.quantization.channels import ChannelObserver
from pyflame_rt.quantization.config import QuantConfig
from pyflame_rt.quantization.feeds import feeds_of
from pyflame_rt.quantization.prepare import Candidate, select

if TYPE_CHECKING:
    from pyflame_rt.quantization.feeds import FeedSource

__all__ = ["smooth"]

_NORMALISATIONS = (LayerNormalization.name, RMSNormalization.name)


@names_arguments
def smooth(graph: Graph, data: FeedSource, strength: float = 0.5, batches: int = 100) -> Graph:
    """A graph that computes the same, in which data between normalisations and products is easier to quantize.

    Args:
        graph: left as it is.
        data: a function that gives one feed a call, or an iterable of feeds.
        strength: 0 leaves the data as it is, 1 moves all of the difference between channels into the weights.
        batches: feeds to take at most.

    Raises:
        InputError: the strength is not from 0 to 1, or no feed came but empty ones.
    """
    if not 0 <= strength <= 1:
        raise InputError(f"strength is {strength!r}, not from 0 to 1")
    selection = select(graph, QuantConfig.static_int8(), static=False)
    made = selection.graph
    groups = _groups(made, selection.chosen)
    observers = {name: ChannelObserver(axis=-1) for name in groups}
    if not groups:
        return made
    probe = Probe(made, groups)
    for feed in feeds_of(data, batches):
        for name, array in probe.run(feed):
            observers[name].observe(array)
    probe.close()
    for name, observer in observers.items():
        if not np.ndim(observer.reach):
            raise InputError(f"no data came for {name!r}: smoothing needs at least one feed that is not empty")
        if not np.isfinite(observer.reach).all():
            raise InputError(f"{name!r} was infinite or NaN in the data: leave such rows out")
    for name, (norm, readers) in groups.items():
        _share(made, norm, readers, np.asarray(observers[name].reach), strength)
    return made


def _groups(graph: Graph, chosen: list[Candidate]) -> dict[str, tuple[Node, list[Candidate]]]:
    """Results of normalisations that products with constant matrices alone read, with both."""
    makers, readers = graph.producers(), graph.consumers()
    outputs, inputs = {info.name for info in graph.outputs}, {info.name for info in graph.inputs}
    by_node = {c.node: c for c in chosen if graph.initializers[c.weight].ndim == 2 and c.node.op_type != Conv.name}
    found: dict[str, tuple[Node, list[Candidate]]] = {}
    for name in dict.fromkeys(c.data[0] for c in by_node.values()):
        norm = makers.get(name)
        if norm is None or norm.full_name not in _NORMALISATIONS or name in outputs:
            continue
        given = [n for n in norm.inputs[1:] if n]
        own = all(n in graph.initializers and n not in inputs and len(readers[n]) == 1 for n in given)
        alone = all(node in by_node and len(readers[by_node[node].weight]) == 1 for node in readers[name])
        if own and alone and all(graph.initializers[n].ndim == 1 for n in given):
            found[name] = norm, [by_node[node] for node in readers[name]]
    return found


def _share(graph: Graph, norm: Node, readers: list[Candidate], reach: np.ndarray[Any, Any], strength: float) -> None:
    """Rescale a normalisation and the weights that read it."""
    weights = {c.weight: graph.initializers[c.weight].raw() for c in readers}
    inner = {c.weight: 1 - c.axis for c in readers}
    far = np.max([np.abs(w).max(axis=1 - inner[n]) for n, w in weights.items()], axis=0).astype(np.float64)
    usable = (reach > 0) & (far > 0) & np.isfinite(reach)
    if graph.initializers[norm.inputs[1]].num_elements != len(reach):
        return
    raw = np.where(usable, reach, 1.0) ** strength / np.where(usable, far, 1.0) ** (1 - strength)
    factors = np.clip(np.where(usable, raw, 1.0), 1e-5, 1e5)
    for name in filter(None, norm.inputs[1:]):
        graph.initializers[name] = Tensor((graph.initializers[name].raw() / factors).astype(np.float32))
    for name, weight in weights.items():
        form = (-1, 1) if inner[name] == 0 else (1, -1)
        graph.initializers[name] = Tensor((weight * factors.reshape(form)).astype(np.float32))
