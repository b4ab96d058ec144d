"""Random networks of 8-bit integers, as QDQ and as integer operators, run at several sizes.

Model number i depends on nothing but i. Every layer is judged on its own, fed with what the native run gave to it, so
that a step more or less does not grow on its way: integer operators equal the reference bit for bit, layers between
DequantizeLinear and QuantizeLinear lie within a step of it, and both within a step of onnxruntime. The network as a
whole must give what the layers gave.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import pyflame_rt
from tests.generated.quantized_layers import MICROSOFT, RUNS, Layer, Network, Steps, draw_network

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Finding", "check", "onnxruntime_answer"]

Array = np.ndarray[Any, Any]
# Where onnxruntime is not the measure, and why.
APART = {
    "QLinearSoftmax": "its results wrap where the zero point is not the lowest number",
    "AveragePool": "it counts windows that reach beyond the padding in another way (ceil_mode)",
    "Resize": "it writes the number for places outside into bytes, unscaled",
    "Softmax": "a share that is one whole, 256 of 256, wraps to the lowest byte where the range is unsigned",
    "huge bias": "its sums wrap in 32 bits",
}


class Finding(NamedTuple):
    """A difference: where, from whom, how far in steps."""

    layer: str
    from_whom: str
    text: str


@lru_cache(64)
def _theirs(data: bytes) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    try:
        return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented:  # mixes of types it has no kernel for
        return None


def onnxruntime_answer(data: bytes, feed: dict[str, Array]) -> list[Array] | None:
    """What onnxruntime computes; None of types it has no kernel for."""
    session = _theirs(data)
    if session is None:
        return None
    try:
        return session.run(None, feed)
    except Exception as error:
        if "Split" in str(error):  # of an axis of one
            return None
        raise


def _info(name: str, dtype: Any, shape: tuple[Any, ...]) -> onnx.ValueInfoProto:
    sizes = [n if isinstance(n, int) else f"{name}_{i}" for i, n in enumerate(shape)]
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), sizes)


def _model(net: Network, layers: list[Layer], inputs: list[Steps], outputs: list[Steps]) -> bytes:
    nodes = [node for layer in layers for node in layer.nodes]
    used = {name for node in nodes for name in node.input}
    given = {x.name: x for x in inputs}.values()
    graph = helper.make_graph(
        nodes, "net",
        [_info(x.name, x.dtype, x.shape) for x in given],
        [onnx.ValueInfoProto(name=o.name) for o in outputs],
        [numpy_helper.from_array(a, n) for n, a in net.constants.items() if n in used],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()


def _feed(net: Network, run: int, rng: np.random.Generator) -> Array:
    x, info = net.source, np.iinfo(net.source.dtype)
    shape = tuple(net.sizes[run].get(n, n) if isinstance(n, str) else n for n in x.shape)
    if run == RUNS - 1 and rng.random() < 0.5:  # one number everywhere: a range of nothing but it, or of zero
        return np.full(shape, rng.choice([x.zero, info.min, info.max]), x.dtype)
    return rng.integers(info.min, info.max + 1, shape).astype(x.dtype)


def _session(data: bytes, provider: str) -> Any:
    return pyflame_rt.InferenceSession(data, providers=[provider])


def check(
    number: int, onnxruntime: Callable[[bytes, dict[str, Array]], list[Array] | None] | None
) -> Iterator[Finding]:
    """What is wrong with one network; nothing if all is right."""
    net = draw_network(number)
    rng = np.random.default_rng([number, 8])
    outputs = [layer.output for layer in net.layers]
    every = _model(net, net.layers, [net.source], outputs)
    whole, plain = (_session(every, provider) for provider in ("CPUExecutionProvider", "ReferenceExecutionProvider"))
    end = _session(_model(net, net.layers, [net.source], outputs[-1:]), "CPUExecutionProvider")
    parts = [_model(net, [layer], layer.inputs, [layer.output]) for layer in net.layers]
    references = [_session(part, "ReferenceExecutionProvider") for part in parts]
    for run in range(RUNS):
        x = _feed(net, run, rng)
        try:
            made = whole.run(None, {"x": x})
        except pyflame_rt.ShapeMismatchError:  # a window that does not fit into what is left of an image
            with pytest.raises(pyflame_rt.ShapeMismatchError):
                plain.run(None, {"x": x})
            continue
        given = {"x": x, **dict(zip((o.name for o in outputs), made, strict=True))}
        last = end.run(None, {"x": x})[0]
        if not np.array_equal(last, given[outputs[-1].name]):
            yield Finding(net.layers[-1].text, "itself", f"run {run}: {_apart(last, given[outputs[-1].name])}")
        for layer, part, reference in zip(net.layers, parts, references, strict=True):
            feed = {i.name: given[i.name] for i in layer.inputs}
            got = given[layer.output.name]
            want = reference.run(None, feed)[0]
            if text := _differs(got, want, exact=layer.exact):
                yield Finding(layer.text, "reference", f"run {run}: {text}")
            theirs = None if onnxruntime is None or _is_apart(layer) else onnxruntime(part, feed)
            if theirs is None or theirs[0] is None:
                continue
            other = _without_wraps(got, theirs[0]) if layer.text == "Softmax" else theirs[0]
            if text := _differs(got, other, exact=False):
                yield Finding(layer.text, "onnxruntime", f"run {run}: {text}")


def _without_wraps(got: Array, theirs: Array) -> Array:
    """Their shares, those that wrapped as ours, which the reference judges."""
    if got.shape != theirs.shape or got.dtype != theirs.dtype:
        return theirs
    info = np.iinfo(got.dtype)
    return np.where((got == info.max) & (theirs == info.min), got, theirs)


def _is_apart(layer: Layer) -> bool:
    if layer.huge:
        return True
    for node in layer.nodes:
        given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        if node.op_type == "QLinearSoftmax" or (node.op_type == "AveragePool" and given.get("ceil_mode")):
            return True
        if given.get("coordinate_transformation_mode") == b"tf_crop_and_resize":
            return True
    return False


def _apart(got: Array, want: Array) -> str:
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"{got.dtype}{got.shape} and {want.dtype}{want.shape}"
    away = np.abs(got.astype(int) - want.astype(int))
    place = np.unravel_index(away.argmax(), away.shape) if away.size else ()
    return f"{(away > 0).sum()} of {away.size} differ, by {away.max(initial=0)} at {tuple(map(int, place))}"


def _differs(got: Array, want: Array, *, exact: bool) -> str:
    if got.shape != want.shape or got.dtype != want.dtype:
        return _apart(got, want)
    away = np.abs(got.astype(int) - want.astype(int))
    return _apart(got, want) if away.max(initial=0) > (0 if exact else 1) else ""
