"""NaN, infinities and signed zeros through every product, pool and reduction with what runs inside it.

Native code against the interpreter. Each activation follows a product of its own, so that it may run inside it.
"""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import pyflame_rt

NAN, INF = np.nan, np.inf
SPECIAL = {
    "nan": [NAN],
    "inf": [INF],
    "-inf": [-INF],
    "zeros": [-0.0, 0.0],
    "mixed": [NAN, INF, -INF, -0.0, 1e-44, -1e-44, 90.0, -90.0, 3e4, -3e4],
}
node = helper.make_node

# Name -> (operator, attributes, constants after the first input); those whose values jump beside a pole are left out.
ACTIVATIONS = {
    "Relu": ("Relu", {}, ()),
    "LeakyRelu": ("LeakyRelu", {"alpha": 0.1}, ()),
    "LeakyRelu of 0": ("LeakyRelu", {"alpha": 0.0}, ()),
    "Elu": ("Elu", {"alpha": 0.7}, ()),
    "Selu": ("Selu", {}, ()),
    "Celu": ("Celu", {}, ()),
    "Sigmoid": ("Sigmoid", {}, ()),
    "Tanh": ("Tanh", {}, ()),
    "Erf": ("Erf", {}, ()),
    "HardSwish": ("HardSwish", {}, ()),
    "HardSigmoid": ("HardSigmoid", {"alpha": 0.3}, ()),
    "Swish": ("Swish", {"alpha": 1.5}, ()),
    "Gelu": ("Gelu", {}, ()),
    "Gelu by tanh": ("Gelu", {"approximate": "tanh"}, ()),
    "Mish": ("Mish", {}, ()),
    "Softplus": ("Softplus", {}, ()),
    "Softsign": ("Softsign", {}, ()),
    "Clip": ("Clip", {}, (0.0, 6.0)),
    "Clip below": ("Clip", {}, (-0.5,)),
    "Max": ("Max", {}, (0.0,)),
    "Min": ("Min", {}, (0.25,)),
    "Max of nan": ("Max", {}, (NAN,)),
    "PRelu": ("PRelu", {}, (0.2,)),
    "Abs": ("Abs", {}, ()),
    "Neg": ("Neg", {}, ()),
    "Sign": ("Sign", {}, ()),
    "Exp": ("Exp", {}, ()),
    "Sqrt": ("Sqrt", {}, ()),
    "Pow 0.5": ("Pow", {}, (0.5,)),
    "Pow 2": ("Pow", {}, (2.0,)),
    "Pow 3": ("Pow", {}, (3.0,)),
    "ThresholdedRelu": ("ThresholdedRelu", {}, ()),
    "Shrink": ("Shrink", {}, ()),
    "Softmax": ("Softmax", {"axis": 1}, ()),
    "LogSoftmax": ("LogSoftmax", {"axis": 1}, ()),
}
JUMPS = {"Sign", "ThresholdedRelu", "Shrink"}  # where the last bit of a sum decides

# Name -> (shape of x, operator, attributes, shapes of the weights)
PRODUCTS = {
    "nothing": ((3, 37), "", {}, ()),
    "one row": ((1, 40), "Gemm", {}, ((40, 33), (33,))),
    "rows": ((6, 40), "Gemm", {}, ((40, 33), (33,))),
    "many rows": ((24, 96), "MatMul", {}, ((96, 64),)),
    "1x1": ((1, 16, 6, 6), "Conv", {}, ((32, 16, 1, 1), (32,))),
    "3x3": ((1, 16, 6, 6), "Conv", {"pads": [1] * 4}, ((32, 16, 3, 3), (32,))),
    "3x3 by two": ((1, 16, 7, 7), "Conv", {"pads": [1] * 4, "strides": [2, 2]}, ((32, 16, 3, 3), (32,))),
    "stem": ((1, 3, 11, 11), "Conv", {"pads": [3] * 4, "strides": [2, 2]}, ((16, 3, 7, 7),)),
    "groups": ((1, 16, 6, 6), "Conv", {"pads": [1] * 4, "group": 4}, ((16, 4, 3, 3),)),
    "depthwise": ((1, 16, 6, 6), "Conv", {"pads": [1] * 4, "group": 16}, ((16, 1, 3, 3),)),
    "six channels": ((1, 6, 6, 6), "Conv", {"pads": [1] * 4, "group": 6}, ((6, 1, 3, 3),)),
    "line": ((1, 6, 17), "Conv", {"pads": [1] * 2}, ((6, 6, 3),)),
    "volume": ((1, 4, 4, 4, 4), "Conv", {"pads": [1] * 6}, ((6, 4, 3, 3, 3),)),
    "transposed": ((1, 4, 5, 5), "ConvTranspose", {"strides": [2, 2]}, ((4, 6, 3, 3),)),
    "norm": ((1, 4, 6, 6), "InstanceNormalization", {}, ((4,), (4,))),
    "max pool": ((1, 4, 8, 8), "MaxPool", {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4}, ()),
    "mean pool": ((1, 4, 8, 8), "AveragePool", {"kernel_shape": [2, 2]}, ()),
    "largest": ((1, 4, 8, 8), "GlobalMaxPool", {}, ()),
}  # fmt: skip


def with_specials(shape, numbers, seed, dtype=np.float32):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape).astype(dtype)
    places = rng.permutation(x.size)[: max(2, len(numbers))]
    x.reshape(-1)[places] = np.resize(np.array(numbers).astype(dtype), len(places))
    return x


def build(nodes, outputs, shape, weights, dtype=TensorProto.FLOAT):
    infos = [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in outputs]
    for info in infos:
        info.ClearField("type")
    inputs = [helper.make_tensor_value_info("x", dtype, shape)]
    graph = helper.make_graph(nodes, "g", inputs, infos, [numpy_helper.from_array(a, n) for n, a in weights.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=10).SerializeToString()


def opened(model, provider, **options):
    given = pyflame_rt.SessionOptions(**options)
    return pyflame_rt.InferenceSession(model, given, providers=[f"{provider}ExecutionProvider"])


def alike(native, expected, what, loose=1.0):
    """The same numbers, the same NaNs, the same infinities."""
    assert native.dtype == expected.dtype
    if expected.dtype.kind == "f" or expected.dtype.name == "bfloat16":
        eps = {"float16": 4e-3, "bfloat16": 3e-2, "float64": 1e-9}.get(expected.dtype.name, 2e-4) * loose
        native, expected = native.astype(np.float64), expected.astype(np.float64)
        np.testing.assert_array_equal(np.isnan(native), np.isnan(expected), f"{what}: NaN")
        np.testing.assert_allclose(native, expected, eps, eps, err_msg=what)
    else:
        np.testing.assert_array_equal(native, expected, what)


def activated(product):
    """A model with a product of its own, and so other weights, before each activation."""
    shape, op, attributes, shapes = PRODUCTS[product]
    rng = np.random.default_rng(7)
    nodes, weights, outputs = [], {}, []
    for k, (name, (activation, given, constants)) in enumerate(ACTIVATIONS.items()):
        if op and shapes and name in JUMPS:
            continue
        value = "x"
        if op:
            own = [f"w{k}_{i}" for i in range(len(shapes))]
            weights |= {w: (rng.standard_normal(s) / 4).astype(np.float32) for w, s in zip(own, shapes, strict=True)}
            nodes.append(node(op, ["x", *own], [f"p{k}"], f"product {k}", **attributes))
            value = f"p{k}"
        names = [f"c{k}_{i}" for i in range(len(constants))]
        weights |= {c: np.array(v, np.float32) for c, v in zip(names, constants, strict=True)}
        outputs.append(f"y{k}")
        nodes.append(node(activation, [value, *names], outputs[-1:], f"{product}, {name}", **given))
    return build(nodes, outputs, shape, weights), shape, [n.name for n in nodes if n.output[0] in outputs]


@pytest.mark.parametrize("product", PRODUCTS)
def test_what_follows_a_product(product):
    model, shape, names = activated(product)
    for level in ("extended", "all"):
        with opened(model, "CPU", optimization_level=level) as native, opened(model, "Reference") as reference:
            for kind, numbers in SPECIAL.items():
                x = with_specials(shape, numbers, 3)
                for y, expected, name in zip(
                    native.run(None, {"x": x}), reference.run(None, {"x": x}), names, strict=True
                ):
                    alike(y, expected, f"{name}, {kind}")


def apart(op, inputs=(), outputs=1, **attributes):
    return op, inputs, outputs, attributes


AXES = np.array([1], np.int64)
# What chooses among numbers, of an image of 4 channels and 7 x 6 pixels.
CHOOSING = {
    **{f"{op} {axes}": apart(op, (np.array(axes, np.int64),))
       for op in ("ReduceMax", "ReduceMin", "ReduceSum", "ReduceMean", "ReduceL2", "ReduceLogSumExp")
       for axes in ([1], [3], [1, 3], [0, 1, 2, 3])},
    **{f"{op} {axis} {last}": apart(op, axis=axis, select_last_index=last)
       for op in ("ArgMax", "ArgMin") for axis in (1, 3) for last in (0, 1)},
    **{f"TopK {axis} {largest}": apart("TopK", (np.array([3], np.int64),), 2, axis=axis, largest=largest)
       for axis in (1, 3) for largest in (0, 1)},
    "pool 2x2": apart("MaxPool", kernel_shape=[2, 2], strides=[2, 2]),
    "pool 3x3": apart("MaxPool", kernel_shape=[3, 3], pads=[1] * 4),
    "pool 5x5": apart("MaxPool", kernel_shape=[5, 5], pads=[2] * 4),
    "pool with gaps": apart("MaxPool", kernel_shape=[2, 3], dilations=[3, 2], pads=[2, 1, 0, 2]),
    "pool to the ceiling": apart("MaxPool", kernel_shape=[2, 4], strides=[3, 3], ceil_mode=1),
    "pool of one axis": apart("MaxPool", kernel_shape=[1, 3]),
    "pool of the same size": apart("MaxPool", kernel_shape=[3, 2], auto_pad="SAME_UPPER", strides=[2, 1]),
    "pool of all": apart("MaxPool", kernel_shape=[7, 6]),
    "pool and places": apart("MaxPool", (), 2, kernel_shape=[2, 2]),
    "LpPool": apart("LpPool", kernel_shape=[2, 2]),
    "GlobalMaxPool": apart("GlobalMaxPool"),
    "Hardmax": apart("Hardmax", axis=1),
    "Softmax": apart("Softmax", axis=3),
    "LogSoftmax": apart("LogSoftmax", axis=3),
    "CumSum": apart("CumSum", (np.array(3, np.int64),)),
    "IsNaN": apart("IsNaN"),
    "IsInf": apart("IsInf", detect_negative=0),
    "to bool": apart("Cast", to=TensorProto.BOOL),
    "Greater": apart("Greater", (np.zeros((6,)),)),
    "Equal": apart("Equal", (np.full((6,), NAN),)),
    "Max": apart("Max", (np.array([0, NAN, -INF, INF, -1, 1.0]), np.array([0.5]))),
    "Min": apart("Min", (np.array([0, NAN, -INF, INF, -1, 1.0]), np.array([-0.5]))),
    "Clip to nan": apart("Clip", (np.array(NAN), np.array(1.0))),
    "Where": apart("Where"),
    "ScatterElements max": apart("ScatterElements", reduction="max", axis=3),
    "ScatterElements min": apart("ScatterElements", reduction="min", axis=3),
}  # fmt: skip
KINDS = {
    "float32": (np.float32, TensorProto.FLOAT),
    "float64": (np.float64, TensorProto.DOUBLE),
    "float16": (np.float16, TensorProto.FLOAT16),
}
SHAPE = (2, 4, 7, 6)


def choosing(kind):
    """A model of all that chooses, on one input."""
    dtype, element = KINDS[kind]
    nodes, weights, outputs, names = [], {}, [], []
    for k, (name, (op, constants, count, attributes)) in enumerate(CHOOSING.items()):
        own = [f"c{k}_{i}" for i in range(len(constants))]
        for c, value in zip(own, constants, strict=True):
            weights[c] = value.astype(dtype) if value.dtype.kind == "f" else value
        inputs = ["x", *own]
        if op == "Where":
            inputs = ["mask", "x", "other"]
            weights |= {"mask": np.arange(6) % 2 == 0, "other": np.array([NAN], dtype)}
        if op == "ScatterElements":
            index = np.random.default_rng(0).integers(0, 6, SHAPE)
            weights |= {f"i{k}": index, f"u{k}": with_specials(SHAPE, SPECIAL["mixed"], 11, dtype)}
            inputs = ["x", f"i{k}", f"u{k}"]
        made = [f"y{k}_{i}" for i in range(count)]
        nodes.append(node(op, inputs, made, name, **attributes))
        outputs += made
        names += [name] * count
    return build(nodes, outputs, SHAPE, weights, element), names


@pytest.mark.parametrize("kind", KINDS)
def test_what_chooses(kind):
    model, names = choosing(kind)
    with opened(model, "CPU") as native, opened(model, "Reference") as reference:
        for special, numbers in SPECIAL.items():
            x = with_specials(SHAPE, numbers, 5, KINDS[kind][0])
            for y, expected, name in zip(native.run(None, {"x": x}), reference.run(None, {"x": x}), names, strict=True):
                alike(y, expected, f"{name} of {special}", 10.0)


@pytest.mark.parametrize("product", ["3x3 by two", "rows", "depthwise"])
def test_onnxruntime_keeps_nan_too(product):
    """Where onnxruntime has the operators, it gives NaN in the same places."""
    shape, op, attributes, shapes = PRODUCTS[product]
    rng = np.random.default_rng(0)
    weights = {f"w{i}": rng.standard_normal(s).astype(np.float32) for i, s in enumerate(shapes)}
    x = with_specials(shape, [NAN], 3)
    for activation in ("Relu", "Clip", "HardSigmoid", "Sigmoid", "Tanh", "LeakyRelu"):
        bounds = {"low": np.float32(0), "high": np.float32(6)} if activation == "Clip" else {}
        nodes = [node(op, ["x", *weights], ["p"], **attributes), node(activation, ["p", *bounds], ["y"])]
        model = build(nodes, ["y"], shape, {**weights, **{n: np.asarray(v) for n, v in bounds.items()}})
        theirs = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
        with opened(model, "CPU") as native:
            np.testing.assert_array_equal(np.isnan(native.run(None, {"x": x})[0]), np.isnan(theirs), activation)
