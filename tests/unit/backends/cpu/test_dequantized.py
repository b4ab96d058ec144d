"""Quantized weights as numbers, made in one piece of memory."""

import numpy as np
import pytest

from pyflame_rt.graph import DType, Node
from pyflame_rt.ops.core.evaluate import bind_attributes, evaluate
from pyflame_rt.ops.core.registry import get_op
from pyflame_rt.opt.rules.exact_integers import dequantized

RNG = np.random.default_rng(3)


def node(**attributes):
    return Node("n", "DequantizeLinear", ["x", "s", "z"], ["y"], attributes)


def made(arrays, **attributes):
    return dequantized(arrays, bind_attributes(node(**attributes), get_op("DequantizeLinear")))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("zero", [True, False])
def test_the_same_bits_as_the_operator(dtype, axis, zero):
    x = RNG.integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, (6, 5, 4, 3)).astype(dtype)
    for array in (x, x.transpose(3, 1, 0, 2), x[::2]):
        shape = () if axis is None else (array.shape[axis],)
        scale = RNG.random(shape, np.float32) / 7
        point = RNG.integers(0, 100, shape).astype(dtype) if zero else None
        attributes = {} if axis is None else {"axis": axis}
        want = evaluate(node(**attributes), [array, scale, point])[0]
        got = made([array, np.asarray(scale), point], **attributes)
        assert got is not None
        assert got.dtype == np.float32
        assert got.flags.c_contiguous
        np.testing.assert_array_equal(got, want)


def test_other_forms_are_left_to_the_operator():
    x, scale = np.int8([[1, 2], [3, 4]]), np.float32([0.5, 2.0])
    assert made([x, scale, np.int8([1, 2])], axis=1) is not None
    assert made([x.astype(np.int32), scale, None], axis=1) is None
    assert made([x, scale.astype(np.float16), None], axis=1) is None
    assert made([x, scale, np.uint8([1, 2])], axis=1) is None
    assert made([x, scale, np.int8(1)], axis=1) is None
    assert made([x, scale, None], axis=2) is None
    assert made([x, scale, None], axis=-3) is None
    assert made([x, np.float32([1, 2, 3]), None], axis=1) is None
    assert made([np.int8(3), scale, None]) is None
    assert made([x, np.ones((1, 2), np.float32), None], axis=0, block_size=2) is None
    assert made([x, scale, None], axis=1, output_dtype=DType.Float16.onnx) is None
    assert dequantized([x, None], {"axis": 1}) is None
