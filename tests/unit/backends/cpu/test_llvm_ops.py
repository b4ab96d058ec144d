"""Operators of generated kernels against NumPy, in every position of a vector."""

import warnings

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyflame_rt.backends.cpu.ir.kernel_program import INTEGERS, Map, Operand, RowKernel, Store, apply, cast, const, load
from pyflame_rt.backends.cpu.jit.compiler import call

EDGES = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    1.5,
    2.5,
    -2.5,
    np.inf,
    -np.inf,
    np.nan,
    1e-45,
    -1e-45,
    1e-39,
    3e38,
    -3e38,
    7.25,
]


def dtype_of(name):
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def flat(expr, arrays, out_dtype):
    """Run an expression over load(0), load(1), ... of flat arrays."""
    names = [a.dtype.name for a in arrays]
    kernel = RowKernel(0, tuple(map(Operand, names)), (Operand(out_dtype),), (Map((Store(len(arrays), expr),)),))
    out = np.zeros(arrays[0].shape, dtype_of(out_dtype))
    call(kernel, [a.ctypes.data for a in (*arrays, out)], [0], 0, out.size)
    return out


def apply_to(op, *arrays, out=None):
    expr = apply(op, *(load(k, a.dtype.name) for k, a in enumerate(arrays)))
    return flat(expr, arrays, out or expr.dtype)


def quiet(function, *args):
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*args)


def pairs(dtype):
    rng = np.random.default_rng(1)
    if np.dtype(dtype).kind == "f":
        edge = np.array(EDGES, dtype)
        a, b = (x.ravel() for x in np.meshgrid(edge, edge))
        more = (rng.standard_normal(501) * 10).astype(dtype), (rng.standard_normal(501) * 10).astype(dtype)
    else:
        info = np.iinfo(dtype)
        edge = np.array([0, 1, 2, 3, 7, info.max, info.min, info.max - 1, *([-1, -2, -3] if info.min else [])], dtype)
        a, b = (x.ravel() for x in np.meshgrid(edge, edge))
        more = tuple(rng.integers(info.min, info.max, 501, dtype=dtype) for _ in range(2))
    return np.concatenate([a, more[0]]), np.concatenate([b, more[1]])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("op", "numpy"),
    [
        ("add", np.add), ("sub", np.subtract), ("mul", np.multiply), ("div", np.divide), ("max", np.maximum),
        ("min", np.minimum), ("rem", np.fmod), ("mod", np.mod), ("eq", np.equal), ("ne", np.not_equal),
        ("lt", np.less), ("le", np.less_equal), ("gt", np.greater), ("ge", np.greater_equal),
    ],
)  # fmt: skip
def test_float_binary(op, numpy, dtype):
    a, b = pairs(dtype)
    np.testing.assert_array_equal(apply_to(op, a, b), quiet(numpy, a, b))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("op", "numpy"),
    [
        ("neg", np.negative), ("abs", np.abs), ("sqrt", np.sqrt), ("floor", np.floor), ("ceil", np.ceil),
        ("sign", np.sign), ("round", np.rint), ("trunc", np.trunc), ("isnan", np.isnan), ("isinf", np.isinf),
        ("reciprocal", np.reciprocal), ("rsqrt", lambda x: 1 / np.sqrt(x)),
    ],
)  # fmt: skip
def test_float_unary(op, numpy, dtype):
    a, _ = pairs(dtype)
    got = apply_to(op, a)
    np.testing.assert_array_equal(got, quiet(numpy, a))
    if op in ("neg", "floor", "round", "trunc"):
        np.testing.assert_array_equal(np.signbit(got), np.signbit(numpy(a)))


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("op", ["max", "min"])
def test_extreme_with_constant_keeps_nan(op, swap):
    a, _ = pairs("float32")
    args = (const(0.5), load(0, "float32")) if swap else (load(0, "float32"), const(0.5))
    np.testing.assert_array_equal(flat(apply(op, *args), [a], "float32"), getattr(np, op + "imum")(a, np.float32(0.5)))


def truncated(a, b):
    """C division: toward zero; x / 0 is 0."""
    safe = np.where(b == 0, 1, b).astype(b.dtype)
    quotient = np.where((a % safe != 0) & ((a < 0) != (safe < 0)), a // safe + 1, a // safe).astype(a.dtype)
    return np.where(b == 0, 0, quotient).astype(a.dtype)


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize(
    ("op", "numpy"),
    [
        ("add", np.add), ("sub", np.subtract), ("mul", np.multiply), ("max", np.maximum), ("min", np.minimum),
        ("div", truncated), ("mod", np.mod), ("rem", np.fmod), ("eq", np.equal), ("lt", np.less),
        ("ge", np.greater_equal), ("and", np.bitwise_and), ("or", np.bitwise_or), ("xor", np.bitwise_xor),
    ],
)  # fmt: skip
def test_integer_binary(op, numpy, dtype):
    a, b = pairs(dtype)
    np.testing.assert_array_equal(apply_to(op, a, b), quiet(numpy, a, b))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_unary_and_shifts(dtype):
    a, _ = pairs(dtype)
    for op, numpy in (("neg", np.negative), ("abs", np.abs), ("sign", np.sign), ("not", np.invert)):
        np.testing.assert_array_equal(apply_to(op, a), quiet(numpy, a), err_msg=op)
    by = np.arange(a.size).astype(dtype) % np.array(a.dtype.itemsize * 8 + 3).astype(dtype)
    np.testing.assert_array_equal(apply_to("shl", a, by), np.left_shift(a, by))
    np.testing.assert_array_equal(apply_to("shr", a, by), np.right_shift(a, by))


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8"])
def test_integer_power(dtype):
    base = np.arange(-9 if dtype != "uint8" else 0, 40).astype(dtype)
    exponent = (np.arange(base.size) % 11).astype(dtype)
    np.testing.assert_array_equal(apply_to("pow", base, exponent), np.power(base, exponent))
    np.testing.assert_array_equal(flat(apply("pow", load(0, dtype), 2), [base], dtype), base * base)
    if dtype != "uint8":
        np.testing.assert_array_equal(
            apply_to("pow", np.array([2, 1, -1, -1], dtype), np.array([-1, -3, -2, -3], dtype)), [0, 1, 1, -1]
        )


def test_logic_and_where():
    a, b, c = (np.random.default_rng(k).integers(0, 2, 77).astype(bool) for k in range(3))
    for op, numpy in (
        ("and", np.logical_and),
        ("or", np.logical_or),
        ("xor", np.logical_xor),
        ("eq", np.equal),
        ("max", np.maximum),
    ):
        np.testing.assert_array_equal(apply_to(op, a, b), numpy(a, b))
    np.testing.assert_array_equal(apply_to("not", a), ~a)
    x, y = (np.random.default_rng(k).standard_normal(77).astype("f") for k in range(2))
    np.testing.assert_array_equal(apply_to("where", c, x, y), np.where(c, x, y))
    np.testing.assert_array_equal(apply_to("where", c, a, b), np.where(c, a, b))


ALL_TYPES = ["float32", "float64", "float16", "bfloat16", "bool", *INTEGERS]


@pytest.mark.parametrize("target", ALL_TYPES)
@pytest.mark.parametrize("source", ALL_TYPES)
def test_cast(source, target):
    low = 0 if target.startswith("u") or source.startswith("u") else -100
    values = np.concatenate([np.arange(low, 120), np.linspace(low, 120, 61)]).astype(dtype_of(source))
    got = flat(cast(load(0, source), target), [values], target)
    np.testing.assert_array_equal(got, values.astype(dtype_of(target)))


def test_every_half():
    bits = np.arange(65536, dtype=np.uint16)
    half = bits.view(np.float16)
    wide = flat(load(0, "float16"), [half], "float32")
    np.testing.assert_array_equal(wide, half.astype("f"))
    keep = ~np.isnan(half)
    np.testing.assert_array_equal(flat(load(0, "float32"), [wide], "float16").view(np.uint16)[keep], bits[keep])


@pytest.mark.parametrize("target", ["float16", "bfloat16"])
def test_rounding_to_narrow(target):
    x = np.random.default_rng(0).integers(0, 2**32, 100_000, dtype=np.uint32).view("f")
    x = np.concatenate([x, np.linspace(-70000, 70000, 9999, dtype="f"), np.linspace(-1e-4, 1e-4, 9999, dtype="f")])
    np.testing.assert_array_equal(
        flat(load(0, "float32"), [x], target).astype("f"), quiet(lambda: x.astype(dtype_of(target)).astype("f"))
    )
    if target == "float16":
        wide = np.concatenate(
            [quiet(x.astype, "d"), 1 + 2**-11 + np.array([-(2**-40), 0, 2**-40]), [6e-8, 2.0**-25, 65519.999999]]
        )
        got = flat(cast(load(0, "float64"), target), [wide], target)
        np.testing.assert_array_equal(got, quiet(lambda: wide.astype(target)))


def test_float_to_small_integer_wraps_like_c():
    x = np.array([300.7, -1.2, 255.9, 256.0, 127.5, -129.0, 65535.0] * 3, "f")
    for target in ("uint8", "int8", "int16"):
        np.testing.assert_array_equal(
            flat(cast(load(0, "float32"), target), [x], target), x.astype("i4").astype(target)
        )


def test_fast_may_contract_and_default_does_not():
    x = np.random.default_rng(0).standard_normal((3, 1000)).astype("f")
    expr = apply("add", apply("mul", load(0, "float32"), load(1, "float32")), load(2, "float32"))
    np.testing.assert_array_equal(flat(expr, list(x), "float32"), x[0] * x[1] + x[2])
    kernel = RowKernel(0, (Operand("float32"),) * 3, (Operand("float32"),), (Map((Store(3, expr),)),), fast=True)
    out = np.empty(1000, "f")
    call(kernel, [a.ctypes.data for a in (*x, out)], [0], 0, 1000)
    np.testing.assert_allclose(out, x[0] * x[1] + x[2], rtol=1e-4, atol=1e-6)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(width=32), min_size=1, max_size=40), st.floats(width=32))
def test_clip_matches_numpy(values, bound):
    x = np.array(values, "f")
    expr = apply("min", apply("max", load(0, "float32"), load(1, "float32")), 3.0)
    got = flat(expr, [x, np.full_like(x, bound)], "float32")
    np.testing.assert_array_equal(got, np.minimum(np.maximum(x, np.float32(bound)), np.float32(3)))
