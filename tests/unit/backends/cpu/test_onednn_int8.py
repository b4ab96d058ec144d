"""Quantised primitives."""

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
from pyflame_rt.graph import Node
from pyflame_rt.ops import evaluate
from tests.tolerances import within

pytestmark = [
    pytest.mark.skipif(not available(), reason="oneDNN is not installed"),
    pytest.mark.usefixtures("no_leaks"),
]

RNG = np.random.default_rng(6)
NUMPY = {"s8": np.int8, "u8": np.uint8, "f32": np.float32, "s32": np.int32}


def integers(shape, dtype):
    # Within seven bits: without VNNI, pairs of u8 x s8 products are added in saturating 16-bit arithmetic.
    low, high = (0, 60) if dtype == "u8" else (-60, 60)
    return RNG.integers(low, high, shape).astype(NUMPY[dtype])


def f32(*shape):
    return RNG.normal(size=shape).astype(np.float32) / 2


def onnx(op, *arrays, outputs=1, **attributes):
    names = [f"y{i}" for i in range(outputs)]
    return evaluate(Node("n", op, ["x"] * len(arrays), names, attributes), list(arrays))


def run(primitive, *names, **arrays):
    """Pack the arrays, execute, unpack the outputs called ``names``."""
    with primitive:
        packed = {name: pack(array, primitive.args[name]) for name, array in arrays.items()}
        packed |= {name: aligned_empty(primitive.args[name].size) for name in names}
        execute(primitive, packed)
        return [unpack(packed[name], primitive.args[name]) for name in names]


@pytest.mark.parametrize("src", ["u8", "s8"])
@pytest.mark.parametrize(("channels", "out", "group"), [(16, 32, 1), (3, 5, 1), (8, 8, 8)])
def test_convolution_int8_with_scales(src, channels, out, group):
    x, w = integers((1, channels, 7, 7), src), integers((out, channels // group, 3, 3), "s8")
    w = w // 2 * 2  # without VNNI, s8 x s8 halves the weights: even ones stay exact
    scale_x, scale_w, bias = np.float32([0.02]), np.abs(f32(out)) / 50 + 0.001, f32(out)
    attributes = {"group": group, "pads": [1, 1, 1, 1]}
    real_w = w * scale_w[:, None, None, None]
    (expected,) = onnx("Conv", x.astype(np.float32) * scale_x, real_w.astype(np.float32), bias, **attributes)
    grouped = w if group == 1 else w.reshape(group, out // group, channels // group, 3, 3)
    primitive = make.convolution(
        MemDesc(x.shape, src, "any"),
        MemDesc(grouped.shape, "s8", "any"),
        MemDesc(expected.shape, "f32", "any"),
        strides=[1, 1],
        pads_begin=[1, 1],
        pads_end=[1, 1],
        bias=MemDesc((out,), "f32"),
        attr=Attr().scales("src").scales("weights", 1 if group == 1 else 3),
    )
    given = {"scales_src": scale_x, "scales_weights": scale_w}
    (got,) = run(primitive, "dst", src=x, weights=grouped, bias=bias, **given)
    np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-3)


def test_convolution_int8_to_int8_with_zero_points():
    x, w = integers((1, 8, 6, 6), "u8"), integers((16, 8, 3, 3), "s8")
    zero, scales = 30, {"src": 0.02, "weights": 0.01, "dst": 0.1}
    (real,) = onnx("Conv", (x.astype(np.float32) - zero) * 0.02, w.astype(np.float32) * 0.01)
    attr = Attr().zero_points("src")
    for name in scales:
        attr = attr.scales(name)
    primitive = make.convolution(
        MemDesc(x.shape, "u8", "any"),
        MemDesc(w.shape, "s8", "any"),
        MemDesc(real.shape, "s8", "any"),
        strides=[1, 1],
        pads_begin=[0, 0],
        pads_end=[0, 0],
        attr=attr.relu(),
    )
    given = {f"scales_{name}": np.float32([value]) for name, value in scales.items()}
    (got,) = run(primitive, "dst", src=x, weights=w, zero_points_src=np.int32([zero]), **given)
    np.testing.assert_array_equal(got.astype(int), np.clip(np.rint(np.maximum(real, 0) / 0.1), -128, 127))


@pytest.mark.parametrize("src", ["u8", "s8"])
@pytest.mark.parametrize("shape", [(5, 16, 8), (33, 70, 17)])
def test_matmul_int8(src, shape):
    rows, inner, columns = shape
    x, w = integers((rows, inner), src), integers((inner, columns), "s8")
    scale_w = np.abs(f32(columns)) / 50 + 0.001
    attr = Attr().scales("src").scales("weights", 2)
    dst = MemDesc((rows, columns), "f32")
    primitive = make.matmul(MemDesc(x.shape, src), MemDesc(w.shape, "s8", "any"), dst, attr=attr)
    (got,) = run(primitive, "dst", src=x, weights=w, scales_src=np.float32([0.02]), scales_weights=scale_w)
    expected = (x.astype(np.int64) @ w.astype(np.int64)) * 0.02 * scale_w
    np.testing.assert_allclose(got, expected, **within("layers"))


def test_matmul_int8_exact_sums():
    x, w = integers((4, 9), "u8"), integers((9, 6), "s8")
    primitive = make.matmul(MemDesc(x.shape, "u8"), MemDesc(w.shape, "s8"), MemDesc((4, 6), "s32"))
    (got,) = run(primitive, "dst", src=x, weights=w)
    np.testing.assert_array_equal(got, x.astype(np.int32) @ w.astype(np.int32))


def test_whether_full_range_sums_are_exact_is_known():
    x, w = np.full((4, 64), 255, np.uint8), np.full((64, 16), 127, np.int8)
    primitive = make.matmul(MemDesc(x.shape, "u8"), MemDesc(w.shape, "s8"), MemDesc((4, 16), "s32"))
    (got,) = run(primitive, "dst", src=x, weights=w)
    assert bool((got == 255 * 127 * 64).all()) == api.int8_is_exact()


def test_reorder_quantises():
    x = f32(3, 8)
    attr = Attr().scales("dst").zero_points("dst")
    primitive = make.reorder(MemDesc.of(x), MemDesc(x.shape, "u8"), attr=attr)
    (got,) = run(primitive, "dst", src=x, scales_dst=np.float32([0.05]), zero_points_dst=np.int32([100]))
    np.testing.assert_array_equal(got, onnx("QuantizeLinear", x, np.float32(0.05), np.uint8(100))[0])


T, N, INPUTS, H = 5, 3, 7, 6
