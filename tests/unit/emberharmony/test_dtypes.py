"""Canonical dtypes and the promotion rule, equal on every library."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberharmony import dtypes, library, ops
from emberharmony.dtypes import as_dtype, promote_types

PROMOTION = """
bool     int8      int8
bool     float16   float16
int8     uint8     int16
int16    uint8     int16
int32    int64     int64
uint8    int64     int64
uint32   int32     int64
uint16   int16     int32
uint64   int64     float32
int64    float16   float16
int64    float32   float32
int32    bfloat16  bfloat16
float16  bfloat16  float32
float16  float32   float32
bfloat16 float32   float32
float32  float64   float64
int64    float64   float64
int64    complex64 complex64
float32  complex64 complex64
"""
ROWS = [tuple(line.split()) for line in PROMOTION.strip().splitlines()]


@pytest.mark.parametrize(("first", "second", "result"), ROWS)
def test_arrays(first, second, result, name):
    lib = library(name)
    if not (lib.supports(first) and lib.supports(second)):
        pytest.skip(f"{name} does not compute with {first} or {second}")
    a, b = (lib.from_numpy(np.ones(2, as_dtype(d))) for d in (first, second))
    for got in (lib.add(a, b), lib.multiply(b, a), lib.where(lib.as_array([True, False]), a, b)):
        assert lib.dtype(got) == as_dtype(result)
    assert lib.dtype(lib.concatenate([a, b])) == as_dtype(result)
    assert lib.dtype(lib.maximum(b, lib.reshape(a, (2, 1)))) == as_dtype(result) if result != "complex64" else True


def test_zero_dimensional_arrays_are_not_weak(name):
    lib = library(name)
    x, y = lib.from_numpy(np.ones(2, np.float16)), lib.from_numpy(np.array(1, np.float32))
    assert lib.dtype(lib.add(x, y)) == np.float32


WEAK = [
    ("float16", 2.5, "float16"),
    ("bfloat16", 2, "bfloat16"),
    ("float32", np.float64(2.5), "float32"),
    ("float32", np.int64(2), "float32"),
    ("int8", 3, "int8"),
    ("int32", np.int64(3), "int32"),
    ("int8", 2.5, "float32"),
    ("int64", 2.5, "float32"),
    ("bool", 2, "int64"),
    ("bool", True, "bool"),
    ("bool", 2.5, "float32"),
    ("uint8", 2, "uint8"),
    ("float32", 1j, "complex64"),
]


@pytest.mark.parametrize(("dtype", "scalar", "result"), WEAK)
def test_scalars_are_weak(dtype, scalar, result, name):
    lib = library(name)
    x = lib.from_numpy(np.ones(2, as_dtype(dtype)))
    for got in (lib.multiply(x, scalar), lib.add(scalar, x)):
        assert lib.is_array(got)
        assert lib.dtype(got) == as_dtype(result)
        np.testing.assert_allclose(lib.to_numpy(lib.multiply(x, scalar)).astype(complex), complex(scalar))


def test_integers_wrap(name):
    lib = library(name)
    x = lib.from_numpy(np.array([127, -128], np.int8))
    np.testing.assert_array_equal(lib.to_numpy(lib.add(x, 1)), [-128, -127])
    np.testing.assert_array_equal(lib.to_numpy(lib.negative(x)), [-127, -128])
    np.testing.assert_array_equal(lib.to_numpy(lib.floor_divide(x, -1)), [-127, -128])
    np.testing.assert_array_equal(lib.to_numpy(lib.mod(x, -1)), [0, 0])
    np.testing.assert_array_equal(lib.to_numpy(lib.power(lib.as_array([2, -1, 3]), -1)), [0, -1, 0])
    np.testing.assert_array_equal(lib.to_numpy(lib.left_shift(x, 8)), [0, 0])
    np.testing.assert_array_equal(lib.to_numpy(lib.right_shift(x, 9)), [0, -1])


def test_integers_that_an_array_cannot_hold_are_refused(name):
    lib = library(name)
    x = lib.from_numpy(np.array([127, -128], np.int8))
    for call in (lib.add, lib.multiply, lib.maximum, lambda a, b: lib.where(True, a, b), lib.full_like):
        with pytest.raises(OverflowError, match="257 is out of range for int8"):
            call(x, 257)
    with pytest.raises(OverflowError, match="300 is out of range for int8"):
        lib.full((), 300, "int8")
    with pytest.raises(OverflowError, match="300 is out of range for uint8"):
        lib.convert_to_tensor([1, 300], "uint8")


def test_comparisons_with_scalars_are_exact(name):
    lib = library(name)
    x = lib.from_numpy(np.array([0, 200, 255], np.uint8))
    for op, value, want in (
        ("less", 300, [True] * 3),
        ("greater", 300, [False] * 3),
        ("equal", -1, [False] * 3),
        ("not_equal", -1, [True] * 3),
        ("greater_equal", -1, [True] * 3),
        ("less", 200.5, [True, True, False]),
        ("equal", 200.0, [False, True, False]),
        ("less", float("nan"), [False] * 3),
        ("less_equal", float("inf"), [True] * 3),
    ):
        assert lib.to_numpy(getattr(lib, op)(x, value)).tolist() == want, (op, value)
    assert lib.to_numpy(lib.less(300, x)).tolist() == [False] * 3
    large = lib.from_numpy(np.array([16777216, 16777217]))
    assert lib.to_numpy(lib.equal(large, 16777217.0)).tolist() == [False, True]
    assert lib.to_numpy(lib.clip(x, -1, 300)).tolist() == [0, 200, 255]
    assert lib.to_numpy(lib.one_hot(x, 256))[:, [0, 200, 255]].tolist() == np.eye(3).tolist()


def test_float64_scalars_keep_their_digits(name):
    lib = library(name)
    x = lib.from_numpy(np.zeros(1))
    assert lib.to_numpy(lib.add(x, 0.1))[0] == 0.1
    assert lib.to_numpy(lib.full((1,), 0.1, "float64"))[0] == 0.1
    assert lib.to_numpy(lib.convert_to_tensor([0.1], "float64"))[0] == 0.1


def test_results_of_integers(name):
    lib = library(name)
    x = lib.from_numpy(np.array([1, 2], np.int64))
    for op in ("exp", "sqrt", "mean", "sigmoid", "softmax", "var", "reciprocal"):
        assert lib.dtype(getattr(lib, op)(x)) == np.float32, op
    assert lib.dtype(lib.divide(x, x)) == np.float32
    small = lib.from_numpy(np.array([100, 100], np.int8))
    assert lib.to_numpy(lib.sum(small)) == np.int8(-56)
    assert lib.dtype(lib.sum(lib.as_array([True, True]))) == np.int64
    assert lib.dtype(lib.sum(small, dtype="int32")) == np.int32


def test_names_of_dtypes(name):
    lib = library(name)
    for spec in ("float16", np.float16, np.dtype("float16"), lib.native_dtype("float16")):
        assert lib.dtype(lib.zeros((1,), spec)) == np.float16
        assert as_dtype(spec) == ops.float16
    assert ops.dtype(lib.zeros((1,), "bfloat16")) == ops.bfloat16 == ops.dtype.bfloat16
    assert ops.get_dtype("bool") == ops.bool_
    assert ops.get_dtype(2.5) == np.float32
    assert repr(ops.dtype) == "ops.dtype"


KNOWN = [
    as_dtype(d)
    for d in ["bool", "int4", "uint4", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
]
KNOWN += [
    as_dtype(d)
    for d in ["float8_e5m2", "float8_e4m3fn", "float16", "bfloat16", "float32", "float64", "complex64", "complex128"]
]


@given(st.sampled_from(KNOWN), st.sampled_from(KNOWN))
def test_promotion_is_symmetric_and_covers_both(a, b):
    joined = promote_types(a, b)
    assert joined == promote_types(b, a)
    assert promote_types(joined, a) == joined
    assert dtypes.kind(joined) >= max(dtypes.kind(a), dtypes.kind(b))


def test_limits():
    assert (dtypes.lowest(as_dtype("int4")), dtypes.highest(as_dtype("uint4"))) == (-8, 15)
    assert dtypes.lowest(as_dtype("float8_e4m3fn")) == -448.0
    assert dtypes.highest(dtypes.bfloat16) == float("inf")
    assert dtypes.lowest(dtypes.bool_) is False
    assert dtypes.kind(np.dtype(">f4")) == dtypes.FLOAT
    assert dtypes.real_dtype(dtypes.complex128) == np.float64
    assert dtypes.as_dtype(ml_dtypes.bfloat16) == dtypes.bfloat16
    assert promote_types(np.dtype("U2"), np.dtype("U5")) == np.dtype("U5")


@pytest.mark.parametrize("name", ["float64", "float16", "int64", "complex128"])
def test_bytes_in_the_other_order_are_the_same_numbers(name):
    from tests.unit.emberharmony.calls import REDUCTIONS, UNARY

    lib = library("numpy")
    x = np.array([[0.5, 2.0, 3.5], [1.0, 0.25, 7.0]]).astype(name)
    swapped = x.astype(x.dtype.newbyteorder(">"))
    for op in {*UNARY, *REDUCTIONS, "softmax", "norm", "cumsum"} - {"empty_like", "to_numpy"}:
        try:
            want = getattr(lib, op)(x)
        except TypeError:
            continue
        np.testing.assert_array_equal(getattr(lib, op)(swapped), want, err_msg=op)
