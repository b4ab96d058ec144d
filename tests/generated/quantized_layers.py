"""Layers of 8-bit integers, drawn at random: between DequantizeLinear and QuantizeLinear, or integer operators."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import onnx
from onnx import helper

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["RUNS", "Layer", "Network", "Steps", "draw_network"]

RUNS = 3
U8, I8 = np.uint8, np.int8
MICROSOFT = "com.microsoft"
Array = np.ndarray[Any, Any]


class Steps(NamedTuple):
    """A tensor of bytes: its name, what a step stands for, which number stands for zero, its type and its sizes."""

    name: str
    scale: np.float32
    zero: int
    dtype: type
    shape: tuple[Any, ...]  # of text where a run decides

    @property
    def point(self) -> Array:
        return np.array(self.zero, self.dtype)


@dataclass
class Layer:
    """Nodes that make one tensor of others."""

    nodes: list[onnx.NodeProto]
    inputs: list[Steps]
    output: Steps
    exact: bool  # whether arithmetic of the reference leaves no choice
    text: str
    huge: bool = False  # whether a bias is at the ends of 32 bits


@dataclass
class Network:
    """Layers one after the other, and constants of all of them."""

    source: Steps
    layers: list[Layer] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    sizes: list[dict[str, int]] = field(default_factory=list)  # of each run


# ---------------------------------------------------------------------- drawing


class _Draw:
    def __init__(self, number: int) -> None:
        self.rng = np.random.default_rng([number, 7])
        self.net = Network(self.tensor("x", 0.05, ()))
        self.count = 0

    def pick(self, *options: Any) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def k(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def tensor(self, name: str, scale: float, shape: tuple[Any, ...]) -> Steps:
        dtype = self.pick(U8, U8, I8)
        info = np.iinfo(dtype)
        zero = self.pick(info.min, info.max, (info.min + info.max + 1) // 2, int(self.rng.integers(info.min, info.max)))
        return Steps(name, np.float32(scale), int(zero), dtype, shape)

    def constant(self, array: Any) -> str:
        name = f"c{len(self.net.constants)}"
        self.net.constants[name] = np.asarray(array)
        return name

    def name(self, stem: str = "v") -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def scale_of(self, x: Steps) -> tuple[str, str]:
        return self.constant(x.scale), self.constant(x.point)

    def weights(self, shape: tuple[int, ...], axis: int, *, plain: bool = False) -> tuple[Array, Array, Array]:
        """Numbers, scales and zero points: one, or one for each column."""
        dtype = self.pick(I8, I8, U8)
        info = np.iinfo(dtype)
        array = self.rng.integers(info.min, info.max + 1, shape).astype(dtype)
        sizes = (shape[axis],) if not plain and self.chance(0.5) else ()
        middle = (info.min + info.max + 1) // 2
        zeros = np.full(sizes, middle) if self.chance(0.7) else self.rng.integers(info.min, info.max + 1, sizes)
        scales = self.rng.uniform(0.002, 0.01, sizes) * (self.rng.random(sizes) > 0.05) + 1e-6
        return array, scales.astype(np.float32), np.asarray(zeros).astype(dtype)


Maker = "Callable[[_Draw, Steps], Layer | None]"
_MAKERS: list[tuple[str, Any]] = []


def _maker(form: str) -> Callable[[Any], Any]:
    def add(function: Any) -> Any:
        _MAKERS.append((form, function))
        return function

    return add


def _qdq(d: _Draw, inputs: list[Steps], out: Steps, body: Callable[[list[str], list[Any]], str], text: str) -> Layer:
    nodes: list[onnx.NodeProto] = []
    real = []
    for x in inputs:
        name = d.name()
        nodes.append(helper.make_node("DequantizeLinear", [x.name, *d.scale_of(x)], [name]))
        real.append(name)
    made = body(real, nodes)
    nodes.append(helper.make_node("QuantizeLinear", [made, *d.scale_of(out)], [out.name]))
    return Layer(nodes, inputs, out, exact=False, text=text)


def _node(d: _Draw, nodes: list[Any], op: str, inputs: list[str], domain: str = "", **attributes: Any) -> str:
    name = d.name()
    nodes.append(helper.make_node(op, inputs, [name], domain=domain, **attributes))
    return name


def _geometry(d: _Draw, shape: tuple[Any, ...]) -> tuple[int, tuple[int, ...], dict[str, Any]]:
    """Columns, sizes of the weights and attributes of a convolution over channels."""
    channels = shape[1]
    columns, group = d.k(1, 20), 1
    if d.chance(0.3):
        group, columns = channels, channels * (2 if d.chance(0.2) else 1)
    elif channels % 8 == 0 and d.chance(0.5):
        group, columns = 2, 2 * d.k(1, 9)
    taps = (d.k(1, 3), d.k(1, 3))
    given: dict[str, Any] = {"group": group, "strides": [d.k(1, 2), d.k(1, 2)]}
    if d.chance(0.2):
        given["dilations"] = [d.k(1, 2), d.k(1, 2)]
    if d.chance(0.3):
        given["auto_pad"] = d.pick("SAME_UPPER", "SAME_LOWER")
        given.pop("dilations", None)
    else:
        given["pads"] = [d.k(0, taps[0] - 1), d.k(0, taps[1] - 1), d.k(1, taps[0]), d.k(1, taps[1])]
    return columns, (columns, channels // group, *taps), given


def _deep(weights: Array, scales: Array) -> float:
    """A scale that spreads results over the steps."""
    depth = weights.size / weights.shape[0] if weights.ndim == 4 else weights.shape[0]
    return float(0.05 * np.max(scales) * 0.4 * np.sqrt(depth) * 40)


def _bias_nodes(d: _Draw, nodes: list[Any], x: Steps, scales: Array, columns: int) -> list[str]:
    kind = d.pick("", "integer", "float", "huge")
    step = np.broadcast_to(np.float32(x.scale) * scales, columns).astype(np.float32)
    if not kind:
        return []
    if kind == "float":
        return [d.constant(d.rng.standard_normal(columns).astype(np.float32))]
    reach = 5000 if kind == "integer" else 2**31 - 1
    numbers = d.rng.integers(-reach, reach, columns).astype(np.int32)
    if kind == "huge":  # at the ends of what 32 bits hold
        numbers = np.where(d.rng.random(columns) < 0.5, np.sign(numbers) * reach, numbers).astype(np.int32)
    name = d.name()
    given = [
        d.constant(numbers),
        d.constant(step),
        *([d.constant(np.zeros(columns, np.int32))] if d.chance(0.5) else []),
    ]
    nodes.append(helper.make_node("DequantizeLinear", given, [name], axis=0))
    return [name]


def _with_bias(d: _Draw, layer: Layer) -> Layer:
    read = [d.net.constants[name] for node in layer.nodes for name in node.input if name in d.net.constants]
    layer.huge = any(a.dtype == np.int32 and np.abs(a.astype(np.int64)).max(initial=0) > 2**30 for a in read)
    return layer


def _activated(d: _Draw, nodes: list[Any], name: str) -> str:
    match d.pick("", "", "Relu", "Clip", "LeakyRelu", "Sigmoid"):
        case "Clip":
            low, high = sorted(d.rng.normal(0, 2, 2))
            bounds = [d.constant(np.float32(low)), d.constant(np.float32(high))]
            return _node(d, nodes, "Clip", [name, *(bounds if d.chance(0.7) else bounds[:1])])
        case "":
            return name
        case op:
            return _node(d, nodes, op, [name])


@_maker("qdq")
def _conv(d: _Draw, x: Steps) -> Layer | None:
    if len(x.shape) != 4:
        return None
    columns, sizes, given = _geometry(d, x.shape)
    w, scales, zeros = d.weights(sizes, 0)
    out = d.tensor(d.name("q"), _deep(w, scales), (x.shape[0], columns, None, None))

    def body(real: list[str], nodes: list[Any]) -> str:
        parts = [d.constant(w), d.constant(scales), d.constant(zeros)]
        weights = d.name()
        nodes.append(helper.make_node("DequantizeLinear", parts, [weights], **({"axis": 0} if scales.ndim else {})))
        bias = _bias_nodes(d, nodes, x, scales, columns)
        return _activated(d, nodes, _node(d, nodes, "Conv", [real[0], weights, *bias], **given))

    return _with_bias(d, _qdq(d, [x], out, body, f"Conv {sizes} {given}"))


@_maker("qdq")
def _product(d: _Draw, x: Steps) -> Layer | None:
    if len(x.shape) == 4 or not isinstance(x.shape[-1], int):
        return None
    depth, columns, turned = x.shape[-1], d.k(1, 40), d.chance(0.5)
    gemm = len(x.shape) == 2 and d.chance(0.5)
    turned = turned and gemm
    w, scales, zeros = d.weights((columns, depth) if turned else (depth, columns), 0 if turned else 1)
    spread = _deep(w.T if turned else w, scales)
    out = d.tensor(d.name("q"), spread, (*x.shape[:-1], columns))

    def body(real: list[str], nodes: list[Any]) -> str:
        parts = [d.constant(w), d.constant(scales), d.constant(zeros)]
        weights = d.name()
        axis = {"axis": 0 if turned else 1} if scales.ndim else {}
        nodes.append(helper.make_node("DequantizeLinear", parts, [weights], **axis))
        if not gemm:
            return _activated(d, nodes, _node(d, nodes, "MatMul", [real[0], weights]))
        bias = _bias_nodes(d, nodes, x, scales, columns)
        return _activated(d, nodes, _node(d, nodes, "Gemm", [real[0], weights, *bias], transB=int(turned)))

    return _with_bias(d, _qdq(d, [x], out, body, f"{'Gemm' if gemm else 'MatMul'} {w.shape}"))


def _earlier(d: _Draw, x: Steps) -> Steps:
    """Another tensor of the same sizes, or the same."""
    found = [layer.output for layer in d.net.layers if layer.output.shape == x.shape and None not in x.shape]
    return d.pick(*found) if found else x


@_maker("qdq")
def _pair(d: _Draw, x: Steps) -> Layer | None:
    other, op = _earlier(d, x), d.pick("Add", "Add", "Mul", "Concat", "Sub", "Max")
    shape = x.shape
    axis = len(shape) - 1 if len(shape) < 4 else 1
    if op == "Concat":
        if None in shape and other is not x:
            return None
        shape = tuple(2 * n if i == axis and isinstance(n, int) else n for i, n in enumerate(shape))
    same = op == "Concat" and d.chance(0.3)
    out = d.tensor(d.name("q"), 0.08, shape)
    if same:
        out = x._replace(name=out.name, shape=shape)

    def body(real: list[str], nodes: list[Any]) -> str:
        made = _node(d, nodes, op, real, **({"axis": axis} if op == "Concat" else {}))
        return made if same else _activated(d, nodes, made)

    return _qdq(d, [x, other], out, body, op)


@_maker("qdq")
def _move(d: _Draw, x: Steps) -> Layer | None:
    four = len(x.shape) == 4
    ops = ["Transpose", "Slice", "Reshape", "Identity", "Pad", "Softmax", "HardSwish"]
    ops += (
        ["MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "Resize", "ReduceMean", "Split"]
        if four
        else []
    )
    op = d.pick(*ops)
    out = d.tensor(d.name("q"), 0.06 if op != "Softmax" else 1 / 255, x.shape)
    if d.chance(0.6):
        out = x._replace(name=out.name)
    body, shape = _moving(d, op, x)
    return _qdq(d, [x], out._replace(shape=shape), body, op)


def _moving(d: _Draw, op: str, x: Steps) -> tuple[Any, tuple[Any, ...]]:
    """How an operator of one tensor is written, and the sizes of its result."""
    rank, shape = len(x.shape), x.shape
    attributes: dict[str, Any] = {}
    more: list[Any] = []
    match op:
        case "Transpose":
            perm = [0, *(1 + d.rng.permutation(rank - 1)).tolist()] if rank > 2 else [0, 1]
            if rank == 4:
                perm = [0, 1, 3, 2]
            attributes, shape = {"perm": perm}, tuple(shape[p] for p in perm)
        case "Slice":
            more = (
                [np.array([0]), np.array([2]), np.array([1])]
                if rank == 4
                else [np.array([0]), np.array([1]), np.array([0])]
            )
            shape = tuple(
                min(n, 2) if i == 1 and rank == 4 else 1 if i == 0 and rank != 4 else n for i, n in enumerate(shape)
            )
        case "Reshape":
            more, shape = (
                [np.array([0, 0, -1] if rank == 4 else [0, 1, -1])],
                (shape[0], shape[1] if rank == 4 else 1, None),
            )
            if rank != 4:
                shape = (
                    shape[0],
                    1,
                    int(np.prod(x.shape[1:])) if all(isinstance(n, int) for n in x.shape[1:]) else None,
                )
        case "Pad":
            widths = [0, 0, *[d.k(0, 2) for _ in range(rank - 2)], 0, 0, *[d.k(0, 2) for _ in range(rank - 2)]]
            attributes, more = {"mode": d.pick("constant", "edge")}, [np.array(widths)]
            shape = (*shape[:2], *[None] * (rank - 2))
        case "Softmax":
            attributes = {"axis": -1}
        case "MaxPool" | "AveragePool":
            attributes = {
                "kernel_shape": [d.k(1, 3), d.k(1, 3)],
                "strides": [d.k(1, 2), d.k(1, 2)],
                "ceil_mode": d.k(0, 1),
            }
            if d.chance(0.6):
                taps = attributes["kernel_shape"]
                attributes["pads"] = [(taps[0] - 1) // 2, (taps[1] - 1) // 2] * 2
            if op == "AveragePool":
                attributes["count_include_pad"] = d.k(0, 1)
            shape = (*shape[:2], None, None)
        case "GlobalAveragePool" | "GlobalMaxPool":
            shape = (*shape[:2], 1, 1)
        case "ReduceMean":
            more, attributes, shape = [np.array([2, 3])], {"keepdims": 0}, shape[:2]
        case "Resize":
            mode = d.pick("nearest", "nearest", "linear")
            attributes = {"mode": mode, "coordinate_transformation_mode": d.pick("asymmetric", "half_pixel")}
            roi: Any = ""
            if d.chance(0.25):
                attributes |= {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 1.5}
                roi = np.array([0, 0, -0.2, 0.1, 1, 1, 1.3, 0.9], np.float32)
            if mode == "nearest":
                attributes["nearest_mode"] = "floor"
            more, shape = [roi, np.array([1, 1, 2, d.pick(1, 2)], np.float32)], (*shape[:2], None, None)
        case "Split":
            shape = (*shape[:2], None, None)
    given = [m if isinstance(m, str) else d.constant(m) for m in more]

    def body(real: list[str], nodes: list[Any]) -> str:
        if op != "Split":
            return _node(d, nodes, op, [*real, *given], **attributes)
        first, second = d.name(), d.name()
        nodes.append(helper.make_node("Split", real, [first, second], axis=0, num_outputs=2))
        return second

    return body, shape if op != "Split" else (None, *x.shape[1:])


# ---------------------------------------------------------------------- operators of integers


def _integers(nodes: list[Any], inputs: list[Steps], out: Steps, text: str) -> Layer:
    return Layer(nodes, inputs, out, exact=True, text=text)


@_maker("qop")
def _qconv(d: _Draw, x: Steps) -> Layer | None:
    if len(x.shape) != 4:
        return None
    columns, sizes, given = _geometry(d, x.shape)
    w, scales, zeros = d.weights(sizes, 0)
    out = d.tensor(d.name("q"), _deep(w, scales), (x.shape[0], columns, None, None))
    inputs = [x.name, *d.scale_of(x), d.constant(w), d.constant(scales), d.constant(zeros), *d.scale_of(out)]
    if d.chance(0.6):
        inputs.append(d.constant(d.rng.integers(-5000, 5000, columns).astype(np.int32)))
    return _integers(
        [helper.make_node("QLinearConv", inputs, [out.name], **given)], [x], out, f"QLinearConv {sizes} {given}"
    )


@_maker("qop")
def _qmatmul(d: _Draw, x: Steps) -> Layer | None:
    if len(x.shape) == 4 or not isinstance(x.shape[-1], int):
        return None
    depth, columns = x.shape[-1], d.k(1, 40)
    gemm = len(x.shape) == 2 and d.chance(0.4)
    w, scales, zeros = d.weights((depth, columns), 1)
    out = d.tensor(d.name("q"), _deep(w, scales), (*x.shape[:-1], columns))
    if gemm:
        bias = d.constant(d.rng.integers(-5000, 5000, columns).astype(np.int32)) if d.chance(0.6) else ""
        inputs = [x.name, *d.scale_of(x), d.constant(w), d.constant(scales), d.constant(zeros), bias, *d.scale_of(out)]
        nodes = [helper.make_node("QGemm", inputs, [out.name], domain=MICROSOFT)]
    else:
        inputs = [x.name, *d.scale_of(x), d.constant(w), d.constant(scales), d.constant(zeros), *d.scale_of(out)]
        nodes = [helper.make_node("QLinearMatMul", inputs, [out.name])]
    return _integers(nodes, [x], out, f"{'QGemm' if gemm else 'QLinearMatMul'} {w.shape}")


@_maker("qop")
def _qpair(d: _Draw, x: Steps) -> Layer | None:
    other, op = _earlier(d, x), d.pick("QLinearAdd", "QLinearAdd", "QLinearMul", "QLinearConcat")
    if other.dtype != x.dtype or None in x.shape:
        other = x
    out = d.tensor(d.name("q"), 0.08, x.shape)._replace(dtype=x.dtype)
    out = out._replace(zero=int(d.rng.integers(np.iinfo(x.dtype).min, np.iinfo(x.dtype).max + 1)))
    if op == "QLinearConcat":
        axis = len(x.shape) - 1 if len(x.shape) < 4 else 1
        shape = tuple(2 * n if i == axis and isinstance(n, int) else n for i, n in enumerate(x.shape))
        inputs = [*d.scale_of(out), x.name, *d.scale_of(x), other.name, *d.scale_of(other)]
        nodes = [helper.make_node(op, inputs, [out.name], domain=MICROSOFT, axis=axis)]
        return _integers(nodes, [x, other], out._replace(shape=shape), op)
    inputs = [x.name, *d.scale_of(x), other.name, *d.scale_of(other), *d.scale_of(out)]
    return _integers([helper.make_node(op, inputs, [out.name], domain=MICROSOFT)], [x, other], out, op)


@_maker("qop")
def _qone(d: _Draw, x: Steps) -> Layer | None:
    four = len(x.shape) == 4
    ops = ["QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax"]
    ops += ["QLinearGlobalAveragePool", "QLinearAveragePool"] if four else []
    op = d.pick(*ops)
    out = d.tensor(d.name("q"), 0.05 if "oft" not in op else 1 / 255, x.shape)._replace(dtype=x.dtype)
    out = out._replace(zero=int(d.rng.integers(np.iinfo(x.dtype).min, np.iinfo(x.dtype).max + 1)))
    attributes: dict[str, Any] = {}
    match op:
        case "QLinearSoftmax":
            attributes = {"axis": -1, "opset": 13}
        case "QLinearLeakyRelu":
            attributes = {"alpha": 0.1}
        case "QLinearGlobalAveragePool":
            attributes, out = {"channels_last": 0}, out._replace(shape=(*x.shape[:2], 1, 1))
        case "QLinearAveragePool":
            attributes = {"kernel_shape": [d.k(1, 3), d.k(1, 3)], "strides": [d.k(1, 2), d.k(1, 2)]}
            out = out._replace(shape=(*x.shape[:2], None, None))
    inputs = [x.name, *d.scale_of(x), *d.scale_of(out)]
    made = _integers([helper.make_node(op, inputs, [out.name], domain=MICROSOFT, **attributes)], [x], out, op)
    # Exponentials and means of floats have a last bit of their own.
    made.exact = op not in ("QLinearSigmoid", "QLinearSoftmax", "QLinearAveragePool")
    return made


@_maker("qop")
def _bytes(d: _Draw, x: Steps) -> Layer | None:
    """Operators of bytes that know nothing of scales."""
    ops = ["Transpose", "Slice", "Reshape", "Identity"] + (["MaxPool", "Split"] if len(x.shape) == 4 else [])
    op = d.pick(*ops)
    body, shape = _moving(d, op, x)
    nodes: list[Any] = []
    made = body([x.name], nodes)
    out = x._replace(name=d.name("q"), shape=shape)
    nodes.append(helper.make_node("Identity", [made], [out.name]))
    return _integers(nodes, [x], out, op)


@_maker("dynamic")
def _dynamic(d: _Draw, x: Steps) -> Layer | None:
    """Data quantized by its own range, exact sums, real numbers, bytes again."""
    conv = len(x.shape) == 4
    if not conv and not isinstance(x.shape[-1], int):
        return None
    columns, sizes, given = _geometry(d, x.shape) if conv else (d.k(1, 40), (), {})
    if conv:
        w, scales, zeros = d.weights(sizes, 0, plain=True)
    else:
        w, scales, zeros = d.weights((x.shape[-1], columns), 1)
        sizes = w.shape
    out = d.tensor(
        d.name("q"), _deep(w, scales), (x.shape[0], columns, None, None) if conv else (*x.shape[:-1], columns)
    )

    def body(real: list[str], nodes: list[Any]) -> str:
        made = [d.name(), d.name(), d.name()]
        nodes.append(helper.make_node("DynamicQuantizeLinear", real, made))
        inputs = [made[0], d.constant(w), made[2], d.constant(zeros)]
        sums = _node(d, nodes, "ConvInteger" if conv else "MatMulInteger", inputs, **given)
        floats = _node(d, nodes, "Cast", [sums], to=1)
        step = _node(d, nodes, "Mul", [made[1], d.constant(scales)])
        return _activated(d, nodes, _node(d, nodes, "Mul", [floats, step]))

    return _qdq(d, [x], out, body, f"dynamic {sizes} {given}")


def draw_network(number: int) -> Network:
    """One to six layers; sizes of images and batches stay open."""
    d = _Draw(number)
    d.net.source = d.tensor(
        "x", 0.05, ("N", d.k(1, 17), "H", "W") if d.chance(0.7) else ("N", d.pick(1, 3, 16, 33, 100))
    )
    d.net.sizes = [{"N": d.k(1, 3), "H": d.k(5, 12), "W": d.k(5, 12)} for _ in range(RUNS)]
    form = d.pick("qdq", "qop", "any")
    makers = [make for kind, make in _MAKERS if form in ("any", kind) or kind == "dynamic"]
    last, tries = d.net.source, 0
    wanted = d.k(1, 6)
    while len(d.net.layers) < wanted and tries < 40:
        tries += 1
        layer = d.pick(*makers)(d, last)
        if layer is None:
            continue
        d.net.layers.append(layer)
        last = layer.output
        if any(n is None for n in last.shape[:1]):
            break
        if len(last.shape) == 4:
            last = last._replace(shape=(*last.shape[:2], None, None))
        if d.chance(0.15):
            last = d.pick(d.net.source, *[layer.output for layer in d.net.layers])
    return d.net
