"""Fourier transforms against NumPy's, windows, mel filters."""

import ml_dtypes
import numpy as np
import pytest

from pyflame_rt.graph import DType, Node, Shape, TensorType, symbol
from pyflame_rt.graph.errors import InputError, ShapeMismatchError
from pyflame_rt.ops import Context, Value, evaluate, get_op
from pyflame_rt.ops.core.evaluate import to_host, to_library
from pyflame_rt.ops.core.trace import infer_outputs
from tests.tolerances import within

RNG = np.random.default_rng(0)


def run(op, *arrays, library="numpy", **attributes):
    context = Context.of(library)
    moved = [None if a is None else to_library(a, context.library) for a in arrays]
    (made,) = evaluate(Node("n", op, ["x"] * len(arrays), ["y"], attributes), moved, context)
    return to_host(made, context.library)


def infer(op, *values, **attributes):
    found = get_op(op)
    return infer_outputs(found, values, found.signature.bind(attributes, op))[0].type.shape


def value(shape, known=None, dtype=DType.Float32):
    return Value("v", TensorType(dtype, Shape(shape)), known)


def as_pairs(z):
    return np.stack([z.real, z.imag], axis=-1)


@pytest.mark.parametrize("library", ["numpy", "torch", "mlx"])
@pytest.mark.parametrize("length", [None, 4, 9])
@pytest.mark.parametrize("axis", [None, 0, -3])
def test_transforms(library, length, axis):
    place = {None: 2, 0: 0, -3: 1}[axis]
    z = RNG.standard_normal((5, 6, 7)) + 1j * RNG.standard_normal((5, 6, 7))
    rest = (None if length is None else np.array(length), None if axis is None else np.array(axis))

    def check(x, expected, **attributes):
        got = run("DFT", x.astype(np.float32), *rest, library=library, **attributes)
        np.testing.assert_allclose(got, expected, **within("layers"))

    check(as_pairs(z), as_pairs(np.fft.fft(z, length, place)))
    check(as_pairs(z), as_pairs(np.fft.ifft(z, length, place)), inverse=1)
    check(z.real[..., None], as_pairs(np.fft.fft(z.real, length, place)))
    check(z.real[..., None], as_pairs(np.fft.rfft(z.real, length, place)), onesided=1)
    check(as_pairs(z), np.fft.irfft(z, length, place)[..., None], onesided=1, inverse=1)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_transforms_keep_the_type(dtype):
    y = run("DFT", np.ones((4, 1), dtype))
    assert y.dtype == dtype
    assert y.astype(np.float32).tolist() == [[4, 0], [0, 0], [0, 0], [0, 0]]


def test_double_precision_is_kept():
    x = RNG.standard_normal((16, 1))
    np.testing.assert_allclose(run("DFT", x), as_pairs(np.fft.fft(x[:, 0])), rtol=1e-13, atol=1e-13)


def test_shapes_of_transforms():
    n = symbol("N")
    x = value(["B", "N", 1])
    axis = value([], np.array(1), DType.Int64)
    assert infer("DFT", x, None, axis) == (symbol("B"), n, 2)
    assert infer("DFT", x, None, axis, onesided=1) == (symbol("B"), n // 2 + 1, 2)
    assert infer("DFT", x, value([], np.array(9), DType.Int64), axis, onesided=1)[1] == 5
    assert infer("DFT", value(["B", 5, 2]), None, axis, onesided=1, inverse=1) == (symbol("B"), 8, 1)
    assert infer("DFT", x, None, value([], None, DType.Int64)) == (None, None, 2)


def test_mistakes():
    with pytest.raises(ShapeMismatchError, match="parts of complex numbers"):
        run("DFT", np.zeros((2, 2), np.float32), None, np.array(-1))
    with pytest.raises(InputError, match="does not take 2 parts"):
        run("DFT", np.zeros((2, 2), np.float32), onesided=1)
    with pytest.raises(InputError, match="frame_length is 8, which is out of range: it must be from 1 to 4"):
        run("STFT", np.zeros((1, 4, 1), np.float32), np.array(1), None, np.array(8))
    with pytest.raises(ShapeMismatchError, match="the length of window is 3, but must be 2"):
        run("STFT", np.zeros((1, 4, 1), np.float32), np.array(1), np.ones(3, np.float32), np.array(2))


@pytest.mark.parametrize("onesided", [0, 1])
def test_short_time_transform(agrees_with_onnxruntime, onesided):
    x = RNG.standard_normal((2, 20, 1)).astype(np.float32)
    window = RNG.uniform(0, 1, 8).astype(np.float32)
    attributes = {"onesided": onesided}
    agrees_with_onnxruntime("STFT", [x, np.array(3), window], attributes, domain="", opset=17)
    agrees_with_onnxruntime("STFT", [x, np.array(3), None, np.array(8)], attributes, domain="", opset=17)


def test_shapes_of_short_time_transforms():
    step, window = value([], np.array(4), DType.Int64), value([8])
    assert infer("STFT", value(["B", 20, 1]), step, window) == (symbol("B"), 4, 5, 2)
    assert infer("STFT", value(["B", 20, 2]), step, window, onesided=0) == (symbol("B"), 4, 8, 2)
    assert infer("STFT", value(["B", 20, 1]), value([], None, DType.Int64), window) == (symbol("B"), None, 5, 2)


@pytest.mark.parametrize("name", ["HannWindow", "HammingWindow", "BlackmanWindow"])
@pytest.mark.parametrize("periodic", [0, 1])
def test_windows(agrees_with_onnxruntime, name, periodic):
    for kind in (DType.Float32, DType.Float64):
        attributes = {"periodic": periodic, "output_datatype": kind.onnx}
        agrees_with_onnxruntime(name, [np.array(10)], attributes, domain="", opset=17, atol=1e-6)


def test_mel_filters(agrees_with_onnxruntime):
    inputs = [np.array(8), np.array(64), np.array(16000), np.float32(100), np.float32(7000)]
    agrees_with_onnxruntime("MelWeightMatrix", [np.asarray(i) for i in inputs], domain="", opset=17)
    known = [value([], np.asarray(i), DType.of(np.asarray(i).dtype)) for i in inputs]
    assert infer("MelWeightMatrix", *known) == (33, 8)


@pytest.mark.parametrize(("low", "high"), [(-800, 7000), (0, np.inf), (np.nan, 7000)])
def test_mel_filters_between_edges_that_are_none(low, high):
    """They were a bare "math domain error", or weights of what is not a number."""
    inputs = [np.array(8), np.array(64), np.array(16000), np.float32(low), np.float32(high)]
    with pytest.raises(InputError, match=r"edge_hertz is .* it must be from 0 to"):
        run("MelWeightMatrix", *[np.asarray(i) for i in inputs])


def test_short_time_transform_of_a_signal_without_an_axis_of_parts(agrees_with_onnxruntime):
    x = RNG.standard_normal((2, 20)).astype(np.float32)
    agrees_with_onnxruntime("STFT", [x, np.array(3), None, np.array(8)], {"onesided": 1}, domain="", opset=17)
