"""Convolutions: geometry against ONNX Runtime, unknown sizes, gradients, memory, offsets."""

import ml_dtypes
import numpy as np
import pytest

from pyflame_rt.graph import DType, Node, Shape, TensorType, symbol
from pyflame_rt.graph.errors import InputError, ShapeMismatchError
from pyflame_rt.ops import Context, Value, evaluate, get_op
from pyflame_rt.ops.core.trace import infer_outputs
from tests.tolerances import within

RNG = np.random.default_rng(11)
N, H, W = symbol("N"), symbol("H"), symbol("W")
LIBRARIES = ("numpy", "torch", "mlx")


def f32(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def run(op, *arrays, library="numpy", **attributes):
    context = Context.of(library)
    moved = [None if a is None else context.library.from_numpy(a) for a in arrays]
    results = evaluate(Node("n", op, ["x"] * len(arrays), ["y"], attributes), moved, context)
    return [context.library.to_numpy(r) for r in results]


def infer(op, *shapes, dtype=DType.Float32, **attributes):
    found = get_op(op)
    values = [Value("v", TensorType(dtype, None if s is None else Shape(s))) for s in shapes]
    return [v.type for v in infer_outputs(found, values, found.signature.bind(attributes, op))]


CONVS = [
    ((2, 4, 9), (6, 4, 3), {}),
    ((2, 4, 9), (6, 2, 3), {"group": 2, "strides": [2], "pads": [2, 1]}),
    ((1, 4, 7, 6), (4, 1, 3, 2), {"group": 4, "dilations": [2, 1], "pads": [1, 0, 2, 1]}),
    ((1, 3, 7, 6), (2, 3, 3, 2), {"auto_pad": "SAME_UPPER", "strides": [2, 3]}),
    ((1, 3, 7, 6), (2, 3, 2, 4), {"auto_pad": "SAME_LOWER", "strides": [2, 1]}),
    ((1, 3, 7, 6), (2, 3, 3, 2), {"auto_pad": "VALID", "kernel_shape": [3, 2]}),
    ((1, 2, 5, 4, 6), (3, 2, 2, 3, 2), {"strides": [1, 2, 2], "pads": [1, 1, 0, 0, 1, 1]}),
]


@pytest.mark.parametrize(("x", "w", "attributes"), CONVS)
@pytest.mark.parametrize("bias", [False, True])
def test_conv(agrees_with_onnxruntime, x, w, attributes, bias):
    arrays = [f32(*x), f32(*w), *([f32(w[0])] if bias else [])]
    agrees_with_onnxruntime("Conv", arrays, attributes, domain="", atol=1e-4)


def test_conv_over_four_axes():
    x, w = f32(1, 2, 3, 4, 3, 4), f32(2, 2, 2, 2, 2, 2)
    (y,) = run("Conv", x, w)
    windows = np.lib.stride_tricks.sliding_window_view(x, (2, 2, 2, 2), axis=(2, 3, 4, 5))
    np.testing.assert_allclose(y, np.einsum("ncabdeijkl,mcijkl->nmabde", windows, w), **within("layers"))


@pytest.mark.parametrize("dtype", ["float16", ml_dtypes.bfloat16, "float64"])
@pytest.mark.parametrize("library", LIBRARIES)
def test_conv_keeps_the_element_type(dtype, library):
    x, w = np.ones((1, 1, 4, 4), dtype), np.ones((1, 1, 3, 3), dtype)
    (y,) = run("Conv", x, w, library=library)
    assert y.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(y.astype(float), 9)


def test_conv_shapes():
    assert infer("Conv", [N, 3, H, 8], [6, 3, 3, 3])[0].shape == [N, 6, H - 2, 6]
    same = infer("Conv", [N, 3, H, 8], [6, 3, 3, 3], auto_pad="SAME_UPPER", strides=[2, 2])[0]
    assert same.shape == [N, 6, (H + 1) // 2, 4]
    assert infer("Conv", [N, 3, 8, 8], [6, 3, None, 3], pads=[1, 1, 1, 1])[0].shape == [N, 6, None, 8]
    assert infer("Conv", None, [6, 3, 3, 3])[0].shape == [None, 6, None, None]
    assert infer("Conv", None, None)[0].shape is None


@pytest.mark.parametrize(
    ("x", "w", "attributes"),
    [
        ([1, 3, 8], [6, 2, 3], {}),
        ([1, 3, 8], [6, 3, 3, 3], {}),
        ([1, 3, 8], [6, 3, 3], {"kernel_shape": [2]}),
        ([1, 3, 2], [6, 3, 3], {}),
        ([1, 3, 8], [6, 3, 3], {"pads": [1]}),
        ([1, 3, 8], [6, 3, 3], {"strides": [0]}),
        ([1, 3, 8], [6, 3, 3], {"auto_pad": "SOMEHOW"}),
    ],
)
def test_conv_errors(x, w, attributes):
    with pytest.raises((ShapeMismatchError, InputError)):
        infer("Conv", x, w, **attributes)
    with pytest.raises((ShapeMismatchError, InputError), match="node 'n'"):
        run("Conv", f32(*x), f32(*w), **attributes)


@pytest.mark.parametrize(
    ("x", "w", "attributes"),
    [
        ((2, 2, 5), (4, 2, 3), {}),
        ((2, 4, 6), (4, 2, 3), {"group": 2, "strides": [2], "pads": [1, 0]}),
        ((1, 2, 5, 4), (2, 1, 2, 3), {"group": 2, "dilations": [2, 1], "pads": [1, 0, 2, 1], "strides": [2, 3]}),
        ((1, 1, 5, 5), (2, 1, 3, 3), {"auto_pad": "SAME_LOWER", "strides": [2, 2]}),
    ],
)
def test_conv_gradient(gradients_match, x, w, attributes):
    gradients_match("Conv", [RNG.normal(size=x), RNG.normal(size=w), RNG.normal(size=w[0])], attributes)


TRANSPOSED = [
    ((2, 4, 5), (4, 3, 3), {}),
    ((2, 4, 5), (4, 3, 3), {"group": 2, "strides": [3], "pads": [1, 0], "output_padding": [2]}),
    ((1, 2, 4, 5), (2, 3, 3, 2), {"strides": [2, 3], "dilations": [2, 1], "pads": [1, 0, 2, 1]}),
    ((1, 2, 4, 5), (2, 3, 3, 3), {"strides": [2, 2], "output_shape": [8, 9]}),
    ((1, 2, 4, 5), (2, 3, 3, 3), {"strides": [2, 2], "output_shape": [8, 10], "auto_pad": "SAME_UPPER"}),
    ((1, 2, 4, 5), (2, 3, 3, 3), {"strides": [2, 2], "output_shape": [10, 12], "output_padding": [1, 1]}),
    ((1, 2, 4, 5), (2, 3, 3, 4), {"strides": [2, 1], "auto_pad": "SAME_UPPER"}),
    ((1, 2, 4, 5), (2, 3, 3, 4), {"strides": [2, 1], "auto_pad": "SAME_LOWER"}),
    ((1, 2, 4, 5), (2, 3, 3, 4), {"strides": [2, 1], "auto_pad": "VALID"}),
    ((1, 2, 3, 4, 3), (2, 1, 2, 2, 3), {"strides": [2, 1, 2], "pads": [0, 1, 1, 0, 0, 1]}),
]


@pytest.mark.parametrize(("x", "w", "attributes"), TRANSPOSED)
def test_conv_transpose(agrees_with_onnxruntime, x, w, attributes):
    bias = f32(w[1] * attributes.get("group", 1))
    agrees_with_onnxruntime("ConvTranspose", [f32(*x), f32(*w), bias], attributes, domain="", atol=1e-4)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(("x", "w", "attributes"), TRANSPOSED)
def test_weights_that_are_not_finite_spoil_only_what_they_meet(library, x, w, attributes):
    """A place between spread elements is a zero of nobody's: infinity times it is no NaN."""
    weights, images = f32(*w), f32(*x)
    weights.reshape(-1)[::7] = np.inf
    weights.reshape(-1)[3::11] = np.nan
    (want,) = evaluated_by_definition(images, weights, attributes)
    (have,) = run("ConvTranspose", images, weights, library=library, **attributes)
    np.testing.assert_allclose(have, want, **within("layers"))


def evaluated_by_definition(images, weights, attributes):
    """The same with marks in place of what is not finite, each alone: an output meets them or not."""
    finite = np.where(np.isfinite(weights), weights, 0)
    ones = np.ones_like(images)
    (total,) = run("ConvTranspose", images, finite, **attributes)
    (high,) = run("ConvTranspose", images, np.isposinf(weights).astype(np.float32), **attributes)
    (met,) = run("ConvTranspose", ones, np.isposinf(weights).astype(np.float32), **attributes)
    (positive,) = run("ConvTranspose", np.maximum(images, 0), np.isposinf(weights).astype(np.float32), **attributes)
    (nothing,) = run("ConvTranspose", ones, np.isnan(weights).astype(np.float32), **attributes)
    negative = positive - high  # what infinities make of negative elements
    total = np.where(met > 0.5, np.where(negative > 1e-5, np.where(positive > 1e-5, np.nan, -np.inf), np.inf), total)
    return (np.where(nothing > 0.5, np.nan, total),)


@pytest.mark.parametrize("library", LIBRARIES)
def test_conv_transpose_with_same_padding_always_gives_stride_times_size(library):
    """The kernel is shorter than the stride: the specification still promises this size."""
    (y,) = run("ConvTranspose", np.ones((1, 1, 3), np.float32), np.ones((1, 1, 1), np.float32),
               strides=[3], auto_pad="SAME_LOWER", library=library)  # fmt: skip
    np.testing.assert_array_equal(y.ravel(), [1, 0, 0, 1, 0, 0, 1, 0, 0])


def test_conv_transpose_shapes():
    assert infer("ConvTranspose", [N, 4, H, 5], [4, 3, 3, 3], strides=[2, 2])[0].shape == [N, 3, 2 * H + 1, 11]
    assert infer("ConvTranspose", [N, 4, H], [4, 3, 3], strides=[2], auto_pad="SAME_LOWER")[0].shape == [N, 3, 2 * H]
    assert infer("ConvTranspose", [N, 4, H], [4, 3, None], output_shape=[7])[0].shape == [N, 3, 7]
    assert infer("ConvTranspose", [N, 4, H], None)[0].shape == [N, None, None]
    with pytest.raises(ShapeMismatchError, match="channels"):
        infer("ConvTranspose", [1, 4, 5], [3, 3, 3])


@pytest.mark.parametrize(
    ("x", "w", "attributes"),
    [
        ((2, 2, 4), (2, 3, 3), {"strides": [2], "pads": [1, 0]}),
        ((1, 4, 3), (4, 1, 3), {"group": 2, "strides": [3], "dilations": [2], "output_padding": [2]}),
        ((1, 2, 3, 3), (2, 1, 3, 2), {"strides": [2, 2], "output_shape": [6, 6]}),
    ],
)
def test_conv_transpose_gradient(gradients_match, x, w, attributes):
    bias = RNG.normal(size=w[1] * attributes.get("group", 1))
    gradients_match("ConvTranspose", [RNG.normal(size=x), RNG.normal(size=w), bias], attributes)


@pytest.mark.parametrize("library", LIBRARIES)
def test_conv_integer(library):
    x, w = RNG.integers(0, 255, (1, 2, 5, 5)).astype(np.uint8), RNG.integers(-128, 127, (4, 2, 3, 3)).astype(np.int8)
    zero, zeros = np.uint8(7), np.array([1, -2, 3, 0], np.int8)
    (y,) = run("ConvInteger", x, w, np.asarray(zero), zeros, pads=[1, 1, 1, 1], library=library)
    wide = [x.astype(float) - 7, w - zeros.astype(float).reshape(-1, 1, 1, 1)]
    (expected,) = run("Conv", *wide, pads=[1, 1, 1, 1])
    assert y.dtype == np.int32
    np.testing.assert_array_equal(y, expected)
    assert infer("ConvInteger", [N, 2, H, 5], [4, 2, 3, 3], dtype=DType.UInt8)[0] == TensorType(
        DType.Int32, Shape([N, 4, H - 2, 3])
    )


@pytest.mark.parametrize("library", LIBRARIES)
def test_causal_conv_goes_on_where_it_stopped(library):
    x, w, b = f32(2, 3, 7), f32(3, 1, 4), f32(3)
    whole, state = run("CausalConvWithState", x, w, b, activation="silu", library=library)
    first, kept = run("CausalConvWithState", x[:, :, :2], w, b, activation="silu", library=library)
    second, last = run("CausalConvWithState", x[:, :, 2:], w, b, kept, activation="silu", library=library)
    np.testing.assert_allclose(np.concatenate([first, second], 2), whole, **within("elements"))
    np.testing.assert_array_equal(last, state)
    np.testing.assert_array_equal(state, x[:, :, -3:])


def test_causal_conv_edges():
    x = f32(1, 2, 3)
    y, state = run("CausalConvWithState", x, np.full((2, 1, 1), 2, np.float32))
    np.testing.assert_array_equal(y, 2 * x)
    assert state.shape == (1, 2, 0)
    with pytest.raises(InputError, match="gelu"):
        run("CausalConvWithState", x, f32(2, 1, 2), activation="gelu")
    assert [t.shape for t in infer("CausalConvWithState", [N, 2, W], [2, 1, 4])] == [[N, 2, W], [N, 2, 3]]


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_deform_conv_without_offsets_is_conv(library, dims):
    attributes = {"strides": [2] * dims, "pads": [1] * 2 * dims, "dilations": [1] * dims, "group": 2}
    x, w, b = f32(2, 4, *[5] * dims), f32(6, 2, *[3] * dims), f32(6)
    (expected,) = run("Conv", x, w, b, **attributes)
    offset = np.zeros((2, dims * 3**dims, *expected.shape[2:]), np.float32)
    (y,) = run("DeformConv", x, w, offset, b, library=library, **attributes)
    np.testing.assert_allclose(y, expected, **within("layers"))


def test_deform_conv_moves_and_masks():
    x = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
    w = np.ones((1, 1, 1, 1), np.float32)
    offset = np.zeros((1, 2, 4, 4), np.float32)
    offset[:, 1] = 0.5  # half a pixel to the right: the mean of neighbours, and of the last and nothing
    (y,) = run("DeformConv", x, w, offset)
    right = np.concatenate([x[..., 1:], np.zeros((1, 1, 4, 1))], -1)
    np.testing.assert_allclose(y, (x + right) / 2)
    (masked,) = run("DeformConv", x, w, offset, None, np.full((1, 1, 4, 4), 0.25, np.float32))
    np.testing.assert_allclose(masked, y / 4)
    assert infer("DeformConv", [N, 4, H, W], [6, 4, 3, 3], None)[0].shape == [N, 6, H - 2, W - 2]


def test_deform_conv_gradient(gradients_match):
    offset = RNG.uniform(0.1, 0.4, size=(1, 8, 2, 2))
    gradients_match("DeformConv", [RNG.normal(size=(1, 2, 3, 3)), RNG.normal(size=(2, 2, 2, 2)), offset])
