"""Zeros, infinities, NaN and other edges answer alike on every library."""

import numpy as np
import pytest

from emberharmony import library

EDGES = np.array([0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 7.0, np.inf, -np.inf, np.nan, 3e38, 1e-30], np.float32)
LEFT, RIGHT = (g.ravel() for g in np.meshgrid(EDGES, EDGES))
BINARY = [
    "add",
    "subtract",
    "multiply",
    "divide",
    "maximum",
    "minimum",
    "fmax",
    "fmin",
    "mod",
    "fmod",
    "floor_divide",
    "arctan2",
    "hypot",
    "equal",
    "less",
]
UNARY = [
    "exp",
    "expm1",
    "log",
    "log1p",
    "sqrt",
    "rsqrt",
    "sin",
    "tanh",
    "erf",
    "erfc",
    "sigmoid",
    "softplus",
    "relu",
    "elu",
    "gelu",
    "silu",
    "sign",
    "abs",
    "floor",
    "ceil",
    "trunc",
    "round",
    "isnan",
    "isinf",
    "isfinite",
    "negative",
    "square",
    "reciprocal",
    "log_sigmoid",
    "hard_swish",
    "logical_not",
    "nan_to_num",
]
INTEGERS = np.array([-128, -127, -3, -1, 0, 1, 2, 5, 127], np.int8)
WHOLE = ["add", "subtract", "multiply", "floor_divide", "mod", "fmod", "truncate_divide", "power", "maximum", "minimum"]


def compared(op, name, *arrays, rtol=2e-6):
    lib = library(name)
    with np.errstate(all="ignore"):
        want = getattr(library("numpy"), op)(*arrays)
    got = lib.to_numpy(getattr(lib, op)(*(lib.from_numpy(a) for a in arrays)))
    assert got.dtype == want.dtype
    np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol, 1e-37, err_msg=op)


@pytest.mark.parametrize("op", BINARY)
def test_binary(op, name):
    # torch has no remainder for quotients of 1e68, and answers NaN.
    fits = np.float32(1e-30) != RIGHT if op in ("mod", "fmod") else np.full(LEFT.shape, True)
    compared(op, name, LEFT[fits], RIGHT[fits])


@pytest.mark.parametrize("op", UNARY)
def test_unary(op, name):
    compared(op, name, EDGES[np.abs(EDGES) < 1e30] if op in ("sin",) else EDGES)


@pytest.mark.parametrize("op", WHOLE)
def test_integers(op, name):
    left, right = (g.ravel() for g in np.meshgrid(INTEGERS, INTEGERS))
    for dtype in (np.int8, np.int64):
        compared(op, name, left.astype(dtype), right.astype(dtype))


def test_lowest_integers(name):
    for dtype in (np.int8, np.int16, np.int32, np.int64):
        x = np.full(4, np.iinfo(dtype).min, dtype)
        by = np.array([-1, 1, 0, 3], dtype)
        for op in ("floor_divide", "mod", "fmod", "truncate_divide"):
            compared(op, name, x, by)


def test_truncated_division_is_that_of_c():
    lib = library("numpy")
    x, y = np.array([7, -7, 7, -7, 5]), np.array([2, 2, -2, -2, 0])
    assert lib.truncate_divide(x, y).tolist() == [3, -3, -3, 3, 0]
    assert lib.fmod(x, y).tolist() == [1, -1, 1, -1, 0]
    assert lib.floor_divide(x, y).tolist() == [3, -4, -4, 3, 0]
    assert lib.mod(x, y).tolist() == [1, 1, -1, -1, 0]


def test_reductions_with_nan(name):
    x = np.array([[1.0, np.nan, 3.0], [np.inf, 2.0, -np.inf]], np.float32)
    for op in ("sum", "max", "min", "argmax", "argmin", "mean", "softmax", "cummax", "median"):
        lib = library(name)
        got = lib.to_numpy(getattr(lib, op)(lib.from_numpy(x), axis=1))
        np.testing.assert_array_equal(got, getattr(library("numpy"), op)(x, axis=1), err_msg=op)


def test_logsumexp_of_infinities(name):
    lib = library(name)
    x = lib.from_numpy(np.array([[-np.inf, -np.inf], [np.inf, 0.0], [1000.0, 1000.0]], np.float32))
    got = lib.to_numpy(lib.logsumexp(x, axis=1))
    np.testing.assert_allclose(got, [-np.inf, np.inf, 1000 + np.log(2)])


def test_empty_arrays(name):
    lib = library(name)
    x = lib.zeros((0, 3))
    assert tuple(lib.sum(x, axis=0).shape) == (3,)
    assert tuple(lib.concatenate([x, lib.ones((2, 3))]).shape) == (2, 3)
    assert tuple(lib.matmul(x, lib.zeros((3, 2))).shape) == (0, 2)
    assert tuple(lib.take(lib.ones((3,)), lib.zeros((0,), "int64"), 0).shape) == (0,)
    assert tuple(lib.reshape(x, (-1, 3)).shape) == (0, 3)
    assert tuple(lib.ravel(x).shape) == (0,)
    assert [tuple(p.shape) for p in lib.split(lib.ones((2,)), [2, 0])] == [(2,), (0,)]
    assert tuple(lib.nonzero(lib.zeros((3,)))[0].shape) == (0,)
    assert tuple(lib.scatter_nd(lib.ones((3,)), lib.zeros((0, 1), "int64"), lib.zeros((0,))).shape) == (3,)


@pytest.mark.parametrize(
    "op", ["exp", "sin", "cos", "erf", "sigmoid", "softmax", "tanh", "gelu", "logsumexp", "erfinv"]
)
def test_float64_is_not_computed_in_float32(op, name):
    compared(op, name, np.linspace(0.05, 0.95, 20), rtol=1e-13)


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_indices_out_of_range_are_refused(name):
    lib = library(name)
    x, one = lib.zeros((2, 3)), lib.ones((1, 1))
    for index in (3, -4):
        at = lib.as_array([[index]])
        with pytest.raises(IndexError, match=f"index {index} .* size 3"):
            lib.put_along_axis(x, at, one, 1)
        with pytest.raises(IndexError, match=f"index {index} .* size 3"):
            lib.gather_nd(x, lib.as_array([[0, index]]))
    with pytest.raises((IndexError, RuntimeError)):
        lib.take(x, lib.as_array([7]), 0)
