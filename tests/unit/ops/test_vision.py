"""Sampling, regions, boxes, patches, image files."""

import io
import itertools
import sys

import numpy as np
import pytest

from pyflame_rt.graph import DType, Node, Shape, TensorType, symbol
from pyflame_rt.graph.errors import InputError, MissingExtra, ShapeMismatchError
from pyflame_rt.ops import Value, evaluate, get_op
from pyflame_rt.ops.core.trace import infer_outputs

RNG = np.random.default_rng(0)


def run(op, *arrays, **attributes):
    return evaluate(Node("n", op, ["x"] * len(arrays), ["y"], attributes), arrays)[0]


def infer(op, *values, **attributes):
    found = get_op(op)
    return infer_outputs(found, values, found.signature.bind(attributes, op))[0].type.shape


def value(shape, dtype=DType.Float32, known=None):
    return Value("v", TensorType(dtype, None if shape is None else Shape(shape)), known)


def known(*numbers):
    return value([len(numbers)], DType.Int64, np.array(numbers))


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("corners", [0, 1])
@pytest.mark.parametrize(("mode", "rank"), [("nearest", 2), ("linear", 2), ("cubic", 2), ("nearest", 3), ("linear", 3)])
def test_grid_sample(agrees_with_onnxruntime, mode, rank, padding, corners):
    x = RNG.standard_normal((2, 3, *(4, 5, 6)[:rank])).astype(np.float32)
    grid = RNG.uniform(-1.6, 1.6, (2, *(3, 4, 2)[:rank], rank)).astype(np.float32)
    attributes = {"mode": mode, "padding_mode": padding, "align_corners": corners}
    agrees_with_onnxruntime("GridSample", [x, grid], attributes, domain="", opset=20, atol=1e-4)


def test_cubic_samples_of_a_volume_are_those_of_its_planes():
    x = RNG.standard_normal((1, 1, 1, 5, 6))
    grid = RNG.uniform(-1, 1, (1, 1, 4, 4, 3))
    grid[..., 2] = 0.0  # the middle of the one plane
    volume = run("GridSample", x, grid, mode="cubic", padding_mode="border")
    plane = run("GridSample", x[:, :, 0], grid[:, 0, :, :, :2], mode="cubic", padding_mode="border")
    np.testing.assert_allclose(volume[:, :, 0], plane)


def test_grid_sample_keeps_types():
    grid = np.array([[[[-1.0, -1.0], [0.0, 0.0]]]], np.float32)
    for dtype in (np.int32, np.float16, np.float64):
        y = run("GridSample", np.array([[[[2, 4], [6, 8]]]], dtype), grid, align_corners=1)
        assert y.dtype == dtype
        assert y.tolist() == [[[[2, 5]]]]


def test_grid_sample_shapes():
    n = symbol("N")
    assert infer("GridSample", value([n, 3, 8, 8]), value([None, "H", "W", 2])) == (n, 3, symbol("H"), symbol("W"))
    assert infer("GridSample", value(None), value([n, 4, 5, 2])) == (n, None, 4, 5)
    assert infer("GridSample", value(None), value(None)) is None
    with pytest.raises(ShapeMismatchError, match="holds 3 coordinates"):
        infer("GridSample", value([n, 3, 8, 8]), value([n, 4, 5, 3]))
    with pytest.raises(InputError, match="'area'"):
        run("GridSample", np.zeros((1, 1, 2, 2), np.float32), np.zeros((1, 1, 1, 2), np.float32), mode="area")


@pytest.mark.parametrize("corners", [0, 1])
@pytest.mark.parametrize("size", [(2, 1, 3, 4), (2, 1, 2, 3, 4)])
def test_affine_grid(agrees_with_onnxruntime, corners, size):
    rank = len(size) - 2
    theta = RNG.standard_normal((2, rank, rank + 1)).astype(np.float32)
    agrees_with_onnxruntime("AffineGrid", [theta, np.array(size)], {"align_corners": corners}, domain="")


def test_affine_grid_shapes():
    assert infer("AffineGrid", value([2, 2, 3]), known(2, 3, 5, 7)) == (2, 5, 7, 2)
    assert infer("AffineGrid", value([2, 2, 3]), value([4], DType.Int64)) == (None, None, None, 2)


ROIS = np.array([[0, 0, 9, 9], [1.5, 2, 3, 20], [-5, -3, 4, 4], [3, 3, 3.2, 3.1], [8, 8, 2, 2]], np.float32)


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("ratio", [0, 2])
@pytest.mark.parametrize("place", ["half_pixel", "output_half_pixel"])
def test_roi_align(agrees_with_onnxruntime, mode, ratio, place):
    x = RNG.standard_normal((2, 3, 12, 15)).astype(np.float32)
    attributes = {
        "mode": mode, "sampling_ratio": ratio, "coordinate_transformation_mode": place,
        "output_height": 3, "output_width": 2, "spatial_scale": 0.7,
    }  # fmt: skip
    agrees_with_onnxruntime("RoiAlign", [x, ROIS, np.array([0, 1, 1, 0, 1])], attributes, domain="", opset=16)


def test_roi_align_of_no_regions():
    y = run("RoiAlign", np.zeros((1, 2, 4, 4), np.float16), np.zeros((0, 4), np.float16), np.zeros(0, np.int64))
    assert (y.shape, y.dtype) == ((0, 2, 1, 1), np.float16)


@pytest.mark.parametrize("centred", [0, 1])
@pytest.mark.parametrize("given", [0, 1, 2, 3])
def test_non_max_suppression(agrees_with_onnxruntime, centred, given):
    boxes = RNG.uniform(0, 1, (2, 30, 4)).astype(np.float32)
    scores = RNG.uniform(0, 1, (2, 3, 30)).astype(np.float32)
    scores[0, 0, 5] = scores[0, 0, 9]
    limits = [np.array([9]), np.array([0.3], np.float32), np.array([0.2], np.float32)][:given]
    agrees_with_onnxruntime(
        "NonMaxSuppression", [boxes, scores, *limits], {"center_point_box": centred}, domain="", opset=11
    )


def test_folding_is_the_transpose_of_unfolding():
    image, block, strides, dilations, pads = (5, 7), (2, 3), (2, 1), (2, 1), (1, 0, 0, 2)
    padded = np.zeros((5 + 1 + 0, 7 + 0 + 2), np.int64)
    inside = np.arange(35).reshape(image)
    padded[1:6, 0:7] = inside + 1
    tops = range(0, padded.shape[0] - 2, strides[0])
    lefts = range(0, padded.shape[1] - 2, strides[1])
    columns = [
        [padded[t + i * dilations[0], x + j] for t, x in itertools.product(tops, lefts)]
        for i, j in itertools.product(range(2), range(3))
    ]
    y = run(
        "Col2Im", np.array([columns]), np.array(image), np.array(block),
        strides=list(strides), dilations=list(dilations), pads=list(pads),
    )  # fmt: skip
    counts = np.zeros_like(padded)
    for t, x, i, j in itertools.product(tops, lefts, range(2), range(3)):
        counts[t + i * dilations[0], x + j] += 1
    np.testing.assert_array_equal(y[0, 0], (padded * counts)[1:6, 0:7])


def test_col2im_shapes():
    assert infer("Col2Im", value(["N", 12, 9]), known(5, 7), known(2, 3)) == (symbol("N"), 2, 5, 7)
    assert infer("Col2Im", value(None), value([2], DType.Int64), known(2, 3)) == (None, None, None, None)
    with pytest.raises(ShapeMismatchError, match="24 patches, the input 20"):
        run("Col2Im", np.zeros((1, 4, 20)), np.array([5, 8]), np.array([2, 2]), dilations=[1, 2])


def encoded(image, kind):
    stream = io.BytesIO()
    image.save(stream, format=kind)
    return np.frombuffer(stream.getvalue(), np.uint8)


def test_images_of_every_kind_become_what_was_asked_for():
    image = pytest.importorskip("PIL.Image").fromarray(RNG.integers(0, 255, (4, 5, 4)).astype(np.uint8), "RGBA")
    for mode in ("RGBA", "RGB", "L", "P", "1"):
        stream = encoded(image.convert(mode), "PNG")
        rgb = run("ImageDecoder", stream)
        assert (rgb.shape, rgb.dtype) == ((4, 5, 3), np.uint8)
        np.testing.assert_array_equal(run("ImageDecoder", stream, pixel_format="BGR"), rgb[:, :, ::-1])
        assert run("ImageDecoder", stream, pixel_format="Grayscale").shape == (4, 5, 1)


def test_bytes_that_are_no_image():
    pytest.importorskip("PIL")
    with pytest.raises(InputError, match="not an image"):
        run("ImageDecoder", np.zeros(10, np.uint8))
    with pytest.raises(InputError, match="pixel_format is 'CMYK'"):
        run("ImageDecoder", np.zeros(10, np.uint8), pixel_format="CMYK")


def test_without_pillow_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtra, match=r"pip install 'pyflame\[image\]'"):
        run("ImageDecoder", np.zeros(10, np.uint8))
