"""Each floating-point primitive against the reference operators, in plain, channels-last and blocked layouts."""

import ml_dtypes
import numpy as np
import pytest

from pyflame_rt.backends.cpu.onednn import (
    Attr,
    MemDesc,
    aligned_empty,
    api,
    available,
    execute,
    pack,
    unpack,
)
from pyflame_rt.backends.cpu.onednn import primitives as make
from pyflame_rt.backends.cpu.onednn.attr import Depthwise
from pyflame_rt.graph import Node
from pyflame_rt.ops import evaluate
from tests.tolerances import within

pytestmark = [
    pytest.mark.skipif(not available(), reason="oneDNN is not installed"),
    pytest.mark.usefixtures("no_leaks"),
]

RNG = np.random.default_rng(5)
LAYOUTS = ("any", "abcd", "acdb", "aBcd8b")
SAME = {"rtol": 2e-5, "atol": 2e-5}


def f32(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def onnx(op, *arrays, **attributes):
    (result, *_) = evaluate(Node("n", op, ["x"] * len(arrays), ["y"], attributes), list(arrays))
    return np.asarray(result)


def run(primitive, **arrays):
    """Pack the arrays, execute, unpack dst (which ``dst`` may fill beforehand)."""
    with primitive:
        packed = {name: pack(array, primitive.args[name]) for name, array in arrays.items()}
        dst = packed.setdefault("dst", aligned_empty(primitive.args["dst"].size))
        execute(primitive, packed)
        return unpack(dst, primitive.args["dst"])


def conv(x, w, y, *, group=1, layout="any", bias=None, attr=None, dtype="f32", dst_dtype=None, **attributes):
    rank = len(x) - 2
    pads = attributes.get("pads", [0] * 2 * rank)
    weights = w if group == 1 else (group, w[0] // group, *w[1:])
    return make.convolution(
        MemDesc(x, dtype, layout),
        MemDesc(weights, dtype, "any"),
        MemDesc(y, dst_dtype or dtype, layout),
        strides=attributes.get("strides", [1] * rank),
        dilations=attributes.get("dilations"),
        pads_begin=pads[:rank],
        pads_end=pads[rank:],
        bias=bias,
        attr=attr or Attr(),
    )


CONVS = [
    ((1, 3, 9, 8), (17, 3, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((2, 16, 7, 7), (24, 16, 1, 1), {}),
    ((1, 5, 8, 9), (7, 5, 3, 2), {"strides": [2, 1], "pads": [1, 0, 2, 1], "dilations": [2, 1]}),
    ((1, 11, 6, 6), (11, 1, 3, 3), {"group": 11, "pads": [1, 1, 1, 1]}),
    ((1, 32, 6, 6), (32, 1, 3, 3), {"group": 32, "pads": [1, 1, 1, 1], "strides": [2, 2]}),
    ((2, 12, 5, 6), (20, 3, 3, 3), {"group": 4}),
    ((1, 64, 14, 14), (64, 64, 3, 3), {"pads": [1, 1, 1, 1]}),
]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("x", "w", "attributes"), CONVS)
def test_convolution(x, w, attributes, layout):
    a, b, c = f32(*x), f32(*w), f32(w[0])
    expected = onnx("Conv", a, b, c, **attributes)
    primitive = conv(x, w, expected.shape, layout=layout, bias=MemDesc((w[0],), "f32"), **attributes)
    assert primitive.flops == 2 * expected.size * w[1] * w[2] * w[3]
    got = run(primitive, src=a, weights=b.reshape(primitive.args["weights"].dims), bias=c)
    np.testing.assert_allclose(got, expected, **within("layers"))


@pytest.mark.parametrize(
    ("x", "w", "attributes"),
    [
        ((2, 5, 11), (6, 5, 3), {"strides": [2], "pads": [2, 1]}),
        ((1, 6, 5, 4, 6), (4, 3, 2, 3, 2), {"group": 2, "pads": [1, 1, 0, 0, 1, 1]}),
    ],
)
def test_convolution_of_other_ranks(x, w, attributes):
    a, b = f32(*x), f32(*w)
    expected = onnx("Conv", a, b, **attributes)
    primitive = conv(x, w, expected.shape, **attributes)
    got = run(primitive, src=a, weights=b.reshape(primitive.args["weights"].dims))
    np.testing.assert_allclose(got, expected, **within("layers"))


def test_convolution_in_bfloat16():
    a, b = f32(1, 8, 6, 6).astype(ml_dtypes.bfloat16), f32(8, 8, 3, 3).astype(ml_dtypes.bfloat16)
    expected = onnx("Conv", a.astype(np.float32), b.astype(np.float32))
    try:
        primitive = conv(a.shape, b.shape, expected.shape, dtype="bf16", dst_dtype="f32")
    except api.OneDnnError:
        pytest.skip("this machine's instruction set has no bfloat16 convolution")
    np.testing.assert_allclose(run(primitive, src=a, weights=b), expected, rtol=2e-2, atol=2e-2)


def swish(x):
    return x / (1 + np.exp(-x))


POST_OPS = [
    (Attr().relu(), lambda y: np.maximum(y, 0)),
    (Attr().leaky(0.1), lambda y: np.where(y > 0, y, np.float32(0.1) * y)),
    (Attr().elu(1.5), lambda y: np.where(y > 0, y, 1.5 * np.expm1(y))),
    (Attr().clip(0.0, 6.0), lambda y: np.clip(y, 0, 6)),
    (Attr().gelu_erf(), lambda y: onnx("Gelu", y)),
    (Attr().gelu_tanh(), lambda y: onnx("Gelu", y, approximate="tanh")),
    (Attr().swish(), swish),
    (Attr().hardswish(), lambda y: onnx("HardSwish", y)),
    (Attr().hardsigmoid(0.2, 0.5), lambda y: onnx("HardSigmoid", y)),
    (Attr().logistic(), lambda y: 1 / (1 + np.exp(-y))),
    (Attr().tanh(), np.tanh),
    (Attr().linear(2.0, -1.0).relu(), lambda y: np.maximum(2 * y - 1, 0)),
]


@pytest.mark.parametrize(("attr", "function"), POST_OPS)
@pytest.mark.parametrize("layout", ["any", "aBcd8b"])
def test_convolution_then_function(attr, function, layout):
    a, b = f32(1, 8, 7, 7), f32(13, 8, 3, 3)
    plain = onnx("Conv", a, b)
    got = run(conv(a.shape, b.shape, plain.shape, layout=layout, attr=attr), src=a, weights=b)
    np.testing.assert_allclose(got, function(plain), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_convolution_with_residual_and_channel_operands(layout):
    a, b = f32(1, 9, 7, 7), f32(10, 9, 3, 3)
    plain = onnx("Conv", a, b)
    residual, scale = f32(*plain.shape), f32(1, 10, 1, 1)
    attr = Attr().binary("mul", MemDesc(scale.shape, "f32")).binary("add", MemDesc(residual.shape, "f32", "any")).relu()
    primitive = conv(a.shape, b.shape, plain.shape, layout=layout, attr=attr)
    assert primitive.args["binary_1"].layout == primitive.args["dst"].layout
    got = run(primitive, src=a, weights=b, binary_0=scale, binary_1=residual)
    np.testing.assert_allclose(got, np.maximum(plain * scale + residual, 0), **within("layers"))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_convolution_into_its_residual(layout):
    a, b = f32(1, 8, 7, 7), f32(9, 8, 3, 3)
    plain = onnx("Conv", a, b)
    held = f32(*plain.shape)
    got = run(conv(a.shape, b.shape, plain.shape, layout=layout, attr=Attr().sum()), src=a, weights=b, dst=held)
    np.testing.assert_allclose(got, plain + held, **within("layers"))


def test_convolution_with_slopes():
    a, b, slopes = f32(1, 8, 7, 7), f32(16, 8, 3, 3), f32(1, 16, 1, 1)
    plain = onnx("Conv", a, b)
    got = run(conv(a.shape, b.shape, plain.shape, attr=Attr().prelu(2)), src=a, weights=b, prelu_0=slopes)
    np.testing.assert_allclose(got, np.where(plain > 0, plain, slopes * plain), **within("layers"))


def test_convolution_with_fused_depthwise():
    a, b, depth, bias = f32(1, 16, 8, 8), f32(16, 16, 1, 1), f32(16, 1, 3, 3), f32(16)
    expected = onnx("Conv", onnx("Conv", a, b), depth, bias, group=16, pads=[1, 1, 1, 1])
    attr = Attr().append(Depthwise(kernel=3, stride=1, pad=1))
    primitive = conv(a.shape, b.shape, expected.shape, attr=attr)
    with primitive:
        if "dw_weights" not in primitive.args:
            pytest.skip("the library does not describe the fused weights here")
    primitive = conv(a.shape, b.shape, expected.shape, attr=attr)
    got = run(primitive, src=a, weights=b, dw_weights=depth.reshape(16, 1, 1, 3, 3), dw_bias=bias)
    np.testing.assert_allclose(got, expected, **within("layers"))


@pytest.mark.parametrize("layout", ["any", "abcd", "acdb"])
@pytest.mark.parametrize(
    ("x", "w", "attributes"),
    [
        ((1, 6, 5, 4), (6, 7, 3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
        ((2, 8, 4, 4), (8, 3, 2, 2), {"strides": [2, 2], "group": 2}),
    ],
)
def test_deconvolution(x, w, attributes, layout):
    a, b = f32(*x), f32(*w)
    group, pads = attributes.get("group", 1), attributes.get("pads", [0] * 4)
    expected = onnx("ConvTranspose", a, b, **attributes)
    grouped = np.swapaxes(b.reshape(group, w[0] // group, *w[1:]), 1, 2)
    weights = grouped if group > 1 else grouped[0]
    primitive = make.deconvolution(
        MemDesc(x, "f32", layout),
        MemDesc(weights.shape, "f32", "any"),
        MemDesc(expected.shape, "f32", layout),
        strides=attributes["strides"],
        pads_begin=pads[:2],
        pads_end=pads[2:],
    )
    np.testing.assert_allclose(run(primitive, src=a, weights=weights), expected, **within("layers"))


@pytest.mark.parametrize("packed", ["any", None])
@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((5, 7), (7, 3)),
        ((1, 33), (33, 65)),
        ((128, 96), (96, 130)),
        ((3, 4, 5), (3, 5, 6)),
        ((2, 3, 4, 5), (1, 1, 5, 6)),
    ],
)
def test_matmul(a, b, packed):
    x, y, bias = f32(*a), f32(*b), f32(*[1] * (len(b) - 1), b[-1])
    expected = x @ y + bias
    primitive = make.matmul(
        MemDesc(a, "f32"),
        MemDesc(b, "f32", packed),
        MemDesc(expected.shape, "f32"),
        bias=MemDesc(bias.shape, "f32"),
    )
    assert primitive.flops == 2 * expected.size * a[-1]
    np.testing.assert_allclose(run(primitive, src=x, weights=y, bias=bias), expected, **within("layers"))


def test_matmul_of_transposed_views():
    x, y = f32(6, 4, 5).swapaxes(1, 2), f32(6, 7, 4).swapaxes(1, 2)
    out = np.empty((6, 5, 7), np.float32)
    with make.matmul(MemDesc.of(x), MemDesc.of(y), MemDesc.of(out)) as primitive:
        execute(primitive, {"src": x, "weights": y, "dst": out})
    np.testing.assert_allclose(out, x @ y, rtol=1e-5, atol=1e-5)


def test_matmul_with_rows_known_at_execution():
    rows = api.RUNTIME_DIM
    y = f32(8, 5)
    with make.matmul(
        MemDesc((rows, 8), "f32", strides=(8, 1)), MemDesc.of(y), MemDesc((rows, 5), "f32", strides=(5, 1))
    ) as p:
        assert p.flops == 0
        for count in (1, 3, 17):
            x, out = f32(count, 8), np.empty((count, 5), np.float32)
            execute(p, {"src": x, "weights": y, "dst": out}, descs={"src": MemDesc.of(x), "dst": MemDesc.of(out)})
            np.testing.assert_allclose(out, x @ y, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(4, 9), (3, 5, 2, 2)])
def test_inner_product(shape):
    x, w, bias = f32(*shape), f32(11, *shape[1:]), f32(11)
    primitive = make.inner_product(
        MemDesc(shape, "f32"),
        MemDesc(w.shape, "f32", "any"),
        MemDesc((shape[0], 11), "f32"),
        bias=MemDesc((11,), "f32"),
        attr=Attr().gelu_erf(),
    )
    expected = onnx("Gelu", x.reshape(shape[0], -1) @ w.reshape(11, -1).T + bias)
    np.testing.assert_allclose(run(primitive, src=x, weights=w, bias=bias), expected, **within("layers"))


@pytest.mark.parametrize("layout", LAYOUTS[1:])
@pytest.mark.parametrize("kind", sorted(api.POOLING))
def test_pooling(kind, layout):
    x = f32(2, 11, 9, 8)
    attributes = {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 0]}
    counted = {} if kind == "max" else {"count_include_pad": int(kind == "avg_include_padding")}
    expected = onnx("MaxPool" if kind == "max" else "AveragePool", x, **attributes, **counted)
    primitive = make.pooling(
        MemDesc(x.shape, "f32", layout),
        MemDesc(expected.shape, "f32", "any"),
        kind=kind,
        kernel=[3, 2],
        strides=[2, 2],
        pads_begin=[1, 0],
        pads_end=[1, 0],
    )
    np.testing.assert_allclose(run(primitive, src=x), expected, **SAME)


@pytest.mark.parametrize("kind", ["relu", "tanh", "exp", "abs", "sqrt", "logistic", "gelu_erf", "round", "mish"])
def test_eltwise(kind):
    x = np.abs(f32(3, 7)) if kind == "sqrt" else f32(3, 7)
    names = {"logistic": "Sigmoid", "gelu_erf": "Gelu"}
    expected = onnx(names.get(kind, kind.title()), x)
    primitive = make.eltwise(MemDesc.of(x), MemDesc.of(x), kind=kind)
    np.testing.assert_allclose(run(primitive, src=x), expected, **within("sums"))


@pytest.mark.parametrize("axis", [-1, 1])
@pytest.mark.parametrize("log", [False, True])
def test_softmax(axis, log):
    x = 5 * f32(2, 13, 9)
    expected = onnx("LogSoftmax" if log else "Softmax", x, axis=axis)
    np.testing.assert_allclose(
        run(make.softmax(MemDesc.of(x), MemDesc.of(x), axis=axis, log=log), src=x), expected, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("shift", [False, True])
def test_layer_normalization(shift):
    x, scale, offset = f32(4, 3, 19), f32(19), f32(19)
    expected = onnx("LayerNormalization", x, scale, *([offset] if shift else []), axis=-1)
    primitive = make.layer_normalization(MemDesc.of(x), MemDesc.of(x), epsilon=1e-5, shift=shift)
    given = {"scale": scale} | ({"shift": offset} if shift else {})
    np.testing.assert_allclose(run(primitive, src=x, **given), expected, **within("layers"))


@pytest.mark.parametrize("layout", LAYOUTS[1:])
@pytest.mark.parametrize("relu", [False, True])
def test_batch_normalization(layout, relu):
    x, scale, offset, mean, variance = f32(2, 6, 4, 4), f32(6), f32(6), f32(6), np.abs(f32(6)) + 0.1
    expected = onnx("BatchNormalization", x, scale, offset, mean, variance)
    desc = MemDesc(x.shape, "f32", layout)
    primitive = make.batch_normalization(desc, desc, epsilon=1e-5, relu=relu)
    got = run(primitive, src=x, scale=scale, shift=offset, mean=mean, variance=variance)
    np.testing.assert_allclose(got, np.maximum(expected, 0) if relu else expected, **within("layers"))


def test_lrn():
    x = f32(1, 7, 3, 3)
    expected = onnx("LRN", x, size=3, alpha=0.2, beta=0.6, bias=1.5)
    primitive = make.lrn(MemDesc.of(x), MemDesc.of(x), size=3, alpha=0.2, beta=0.6, bias=1.5)
    np.testing.assert_allclose(run(primitive, src=x), expected, **within("layers"))


def test_prelu():
    x, slopes = f32(2, 5, 3, 3), f32(1, 5, 1, 1)
    primitive = make.prelu(MemDesc.of(x), MemDesc.of(slopes), MemDesc.of(x))
    np.testing.assert_allclose(run(primitive, src=x, weights=slopes), onnx("PRelu", x, slopes[0]), **SAME)


@pytest.mark.parametrize("kind", ["nearest", "linear"])
def test_resampling(kind):
    x = f32(1, 3, 4, 5)
    sizes = np.array([1, 3, 8, 10])
    how = {"mode": kind, "coordinate_transformation_mode": "half_pixel", "nearest_mode": "round_prefer_floor"}
    expected = onnx("Resize", x, None, None, sizes, **how)
    primitive = make.resampling(MemDesc.of(x), MemDesc((1, 3, 8, 10), "f32"), kind=kind)
    np.testing.assert_allclose(run(primitive, src=x), expected, **SAME)


@pytest.mark.parametrize("kind", ["max", "min", "sum", "mul", "mean"])
def test_reduction(kind):
    x = f32(3, 4, 5)
    function = {"max": np.max, "min": np.min, "sum": np.sum, "mul": np.prod, "mean": np.mean}[kind]
    primitive = make.reduction(MemDesc.of(x), MemDesc((3, 1, 5), "f32"), kind=kind)
    np.testing.assert_allclose(run(primitive, src=x), function(x, axis=1, keepdims=True), **SAME)


@pytest.mark.parametrize("kind", ["add", "mul", "sub", "div", "max", "min"])
def test_binary(kind):
    a, b = f32(2, 3, 4), np.abs(f32(1, 3, 1)) + 0.5
    names = {"mul": np.multiply, "sub": np.subtract, "div": np.divide, "max": np.maximum, "min": np.minimum}
    primitive = make.binary(MemDesc.of(a), MemDesc.of(b), MemDesc.of(a), kind=kind)
    np.testing.assert_allclose(run(primitive, src_0=a, src_1=b), names.get(kind, np.add)(a, b), **SAME)


@pytest.mark.parametrize("layout", LAYOUTS[1:])
def test_concat(layout):
    parts = [f32(2, 3, 4, 4), f32(2, 8, 4, 4), f32(2, 1, 4, 4)]
    primitive = make.concat([MemDesc(p.shape, "f32", layout) for p in parts], axis=-3)
    got = run(primitive, **{f"src_{i}": p for i, p in enumerate(parts)})
    np.testing.assert_array_equal(got, np.concatenate(parts, axis=1))


def test_sum():
    a, b = f32(3, 5), f32(3, 5)
    primitive = make.sum_([MemDesc.of(a), MemDesc.of(b)], MemDesc.of(a), scales=[2.0, -1.0])
    np.testing.assert_allclose(run(primitive, src_0=a, src_1=b), 2 * a - b, **SAME)
    np.testing.assert_allclose(run(make.sum_([MemDesc.of(a), MemDesc.of(b)]), src_0=a, src_1=b), a + b, **SAME)


def test_axes_of_one_element_do_not_tell_primitives_apart():
    """The library's cache takes such descriptors for equal: they must choose the same implementation."""
    weights, out = MemDesc((3, 12), "f32"), MemDesc((1, 12), "f32")
    dense, wide = (make.matmul(MemDesc((1, 3), "f32", strides=s), weights, out) for s in ((3, 1), (12, 1)))
    assert dense.impl == wide.impl
    assert dense.scratchpad_size == wide.scratchpad_size
    assert MemDesc((1, 3), "f32", strides=(12, 1)).strides == (3, 1)


@pytest.mark.parametrize("image", [21, 105, 1000])
def test_one_image_with_its_channels_last_is_known_as_such(image):
    """Whatever stride its batch of one has; for other orders the library has slow code only."""
    desc = MemDesc((1, 3, 5, 7), "f32", strides=(image, 1, 21, 3))
    assert desc.layout == "acdb"
    assert desc == MemDesc((1, 3, 5, 7), "f32", "acdb")
