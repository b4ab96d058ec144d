"""Elementary functions: error in units in the last place against the C library in float64."""

import ctypes
import math
from ctypes import c_int64, c_void_p

import numpy as np
import pytest

from pyflame_rt.backends.cpu.ir.kernel_program import (
    Map,
    Operand,
    Reduce,
    Reduction,
    RowKernel,
    Scalar,
    Store,
    apply,
    cast,
    load,
    scalar,
)
from pyflame_rt.backends.cpu.jit.compiler import address_of
from pyflame_rt.backends.cpu.jit.target import Host, host
from pyflame_rt.backends.cpu.kernels.row_loops import emit_rows
from tests.tolerances import within

PLAIN = Host(host().cpu, host().features, 16, fma=False, half=False)  # no fused multiply-add, smallest vectors
MACHINES = {"here": host(), "plain": PLAIN}


def everywhere():
    """Floats of every exponent and sign, subnormals included, and the special values."""
    rng = np.random.default_rng(0)
    exponents = np.repeat(np.arange(255, dtype=np.uint32), 400) << 23
    bits = exponents | rng.integers(0, 2**23, exponents.size, dtype=np.uint32)
    x = bits.view("f")
    special = np.array([0, 1e-45, 1, np.inf, np.nan, 3.4028235e38, 88.72284, 88.72283, 103.9, 104.1, 87.33655], "f")
    return np.concatenate([x, special, -x, -special])


def dense(low, high):
    return np.linspace(low, high, 400_001).astype("f")


def kernel_of(op, dtype, arity):
    args = [load(k, dtype) for k in range(arity)]
    return RowKernel(0, (Operand(dtype),) * arity, (Operand(dtype),), (Map((Store(arity, apply(op, *args)),)),))


def evaluate(op, machine, *arrays):
    name = f"test_{op}_{machine}_{arrays[0].dtype.name}"
    ir = emit_rows(kernel_of(op, arrays[0].dtype.name, len(arrays)), name, MACHINES[machine])
    entry = ctypes.CFUNCTYPE(None, c_void_p, c_void_p, c_int64, c_int64)(address_of(name, ir))
    out = np.full_like(arrays[0], 7)
    buffers = (c_void_p * (len(arrays) + 1))(*(a.ctypes.data for a in (*arrays, out)))
    entry(buffers, (c_int64 * 1)(0), 0, out.size)
    return out


def run_ir(name, kernel, machine, arrays, params, rows):
    entry = ctypes.CFUNCTYPE(None, c_void_p, c_void_p, c_int64, c_int64)(
        address_of(name, emit_rows(kernel, name, machine))
    )
    entry((c_void_p * len(arrays))(*(a.ctypes.data for a in arrays)), (c_int64 * len(params))(*params), 0, rows)


@pytest.mark.parametrize("size", [16, 32, 64])
@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 31, 1000])
def test_other_vector_sizes(size, n):
    """A kernel with several types and a reduction, as smaller and larger machines would be given it."""
    mask, wide = apply("gt", load(0, "float32"), 0.0), cast(load(1, "int8"), "float32")
    value = apply("where", mask, apply("add", load(0, "float32"), wide), load(2, "float16"))
    operands = (
        (Operand("float32"), Operand("int8", "strided"), Operand("float16")),
        (Operand("float16"), Operand("float32", "zero")),
    )
    stages = Reduce((Reduction("s", "sum", value),), (Store(3, value),)), Scalar("o", scalar("s"), store=4)
    rng = np.random.default_rng(n)
    a, b, c = (
        rng.standard_normal((3, n)).astype("f"),
        rng.integers(-9, 9, (n, 3)).astype("i1"),
        rng.standard_normal((3, n)).astype("e"),
    )
    out, total = np.zeros((3, n), "e"), np.zeros(3, "f")
    machine = Host(host().cpu, host().features, size, fma=False, half=False)
    params = [n, 3, n, 1, 3, n, n, 1]
    run_ir(f"sizes{size}", RowKernel(1, *operands, stages), machine, (a, b, c, out, total), params, 3)
    expected = np.where(a > 0, a + b.T, c.astype("f"))
    np.testing.assert_array_equal(out, expected.astype("e"))
    np.testing.assert_allclose(total, expected.sum(1), **within("layers"))


def test_halves_without_the_instruction():
    half = np.arange(65536, dtype=np.uint16).view(np.float16)
    wide, back = np.zeros(65536, "f"), np.zeros(65536, "e")
    to_wide = RowKernel(0, (Operand("float16"),), (Operand("float32"),), (Map((Store(1, load(0, "float16")),)),))
    to_half = RowKernel(0, (Operand("float32"),), (Operand("float16"),), (Map((Store(1, load(0, "float32")),)),))
    run_ir("plain_from_half", to_wide, PLAIN, (half, wide), [0], 65536)
    np.testing.assert_array_equal(wide, half.astype("f"))
    run_ir("plain_to_half", to_half, PLAIN, (wide, back), [0], 65536)
    np.testing.assert_array_equal(back, half)
    x = np.random.default_rng(0).integers(0, 2**32, 65536, dtype=np.uint32).view("f")
    x[::2] = np.linspace(-70000, 70000, 32768, dtype="f")
    x[1::4] = np.linspace(-1e-4, 1e-4, 16384, dtype="f")
    run_ir("plain_to_half", to_half, PLAIN, (x, back), [0], 65536)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(back, x.astype("e"))


def ulps(got, exact):
    """Largest distance from exact values, in spacings of float32 at the exact value; special values must agree."""
    with np.errstate(all="ignore"):
        rounded = exact.astype("f")
        special = ~np.isfinite(rounded) | ~np.isfinite(got)
        assert (np.isnan(got) == np.isnan(exact)).all()
        edge = special & ~np.isnan(got) & (got != rounded)  # the last float before infinity may go either way
        assert not edge.any() or (np.abs(exact[edge]) > 3.4028e38).all()
        scale = np.spacing(np.abs(rounded[~special]).astype("f")).astype("d")
        return np.max(np.abs(got[~special].astype("d") - exact[~special]) / scale)


def erf(x):
    return np.frompyfunc(math.erf, 1, 1)(x).astype("d")


def sigmoid(x):
    return np.where(x >= 0, 1 / (1 + np.exp(-x)), np.exp(x) / (1 + np.exp(x)))


CASES = {
    "exp": (np.exp, 1.0, (-105, 90)), "expm1": (np.expm1, 1.5, (-2, 2)), "log": (np.log, 1.0, (0, 4)),
    "log2": (np.log2, 1.0, (0, 4)), "log1p": (np.log1p, 1.0, (-1, 2)), "tanh": (np.tanh, 2.5, (-10, 10)),
    "sigmoid": (sigmoid, 2.5, (-105, 20)), "erf": (erf, 1.25, (-4.5, 4.5)),
    "sin": (np.sin, 1.6, (-100, 100)), "cos": (np.cos, 1.6, (-100, 100)),
}  # fmt: skip


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("op", CASES)
def test_float32_function(op, machine):
    exact, bound, (low, high) = CASES[op]
    x = np.concatenate([everywhere(), dense(low, high), dense(-1, 1), dense(-20, 20)])
    got = evaluate(op, machine, x)
    with np.errstate(all="ignore"):
        error = ulps(got, exact(x.astype("d")))
    assert error <= bound, error


@pytest.mark.parametrize("machine", MACHINES)
def test_decay_is_exp_down_to_the_least_normal_number(machine):
    x = np.concatenate([-np.abs(everywhere()), dense(-105, 0), dense(-1, 0)])
    got = evaluate("decay", machine, x)
    exact = np.exp(x.astype("d"))
    normal = exact >= 1.1755e-38
    assert ulps(got[normal], exact[normal]) <= 1.0
    np.testing.assert_array_equal(got[exact < 1.1754e-38], 0)
    assert np.isnan(evaluate("decay", machine, np.full(9, np.nan, "f"))).all()


@pytest.mark.parametrize("op", ["expm1", "log1p", "tanh", "erf", "sin"])
def test_sign_of_zero(op):
    got = evaluate(op, "here", np.array([0.0, -0.0] * 5, "f"))
    np.testing.assert_array_equal(np.signbit(got), [False, True] * 5)


@pytest.mark.parametrize("machine", MACHINES)
def test_power(machine):
    edge = np.array(
        [
            0,
            -0.0,
            1,
            -1,
            2,
            -2,
            3,
            -3,
            0.5,
            -0.5,
            1e-45,
            -1e-45,
            3e38,
            -3e38,
            np.inf,
            -np.inf,
            np.nan,
            1e10,
            127,
            0.999,
        ],
        "f",
    )
    a, b = (v.ravel() for v in np.meshgrid(edge, edge))
    rng = np.random.default_rng(0)
    x, y = np.exp(rng.uniform(-80, 80, 200_000)).astype("f"), rng.uniform(-3, 3, 200_000).astype("f")
    a, b = np.concatenate([a, x]), np.concatenate([b, y])
    got = evaluate("pow", machine, a, b)
    with np.errstate(all="ignore"):
        exact = np.power(a.astype("d"), b.astype("d"))
    assert ulps(got, exact) <= 0.6
    finite = np.isfinite(exact)
    np.testing.assert_array_equal(np.signbit(got)[finite], np.signbit(exact)[finite])


@pytest.mark.parametrize("op", ["tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh"])
def test_library_function(op):
    x = np.concatenate([np.linspace(-3, 3, 1001), [np.nan, np.inf, -np.inf, -0.0]]).astype("f")
    name = {
        "asin": "arcsin",
        "acos": "arccos",
        "atan": "arctan",
        "asinh": "arcsinh",
        "acosh": "arccosh",
        "atanh": "arctanh",
    }.get(op, op)
    with np.errstate(all="ignore"):
        assert ulps(evaluate(op, "here", x), getattr(np, name)(x.astype("d"))) <= 3


@pytest.mark.parametrize("op", CASES)
def test_float64_function(op):
    x = np.concatenate([np.linspace(-5, 5, 999), [np.nan, np.inf, -np.inf, 0, -750, 710]])
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(evaluate(op, "here", x), CASES[op][0](x), rtol=1e-14, atol=1e-300)


@pytest.mark.skipif(np.finfo(np.longdouble).eps > 1e-18, reason="no wider type to compare with")
def test_float64_tanh_is_right_to_the_last_place():
    rng = np.random.default_rng(1)
    x = np.concatenate([rng.uniform(-a, a, 40_000) for a in (20, 1.1, 1e-3, 1e-160)])
    exact = np.tanh(x.astype(np.longdouble))
    error = np.abs(evaluate("tanh", "here", x) - exact) / np.spacing(np.abs(exact.astype("d")))
    assert error.max() <= 1.1
    ends = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 5e-324, 1e300])
    got = evaluate("tanh", "here", ends)
    np.testing.assert_array_equal(got, [0, 0, 1, -1, np.nan, 5e-324, 1])
    assert np.signbit(got[1])


def test_float64_power():
    x, y = np.abs(np.random.default_rng(0).standard_normal((2, 99)))
    np.testing.assert_allclose(evaluate("pow", "here", x, y), x**y, rtol=1e-15)
