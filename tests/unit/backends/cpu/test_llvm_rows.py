"""Row kernels: strides, ranks, lengths, reductions and whole programs, against NumPy."""

import itertools
import threading

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
    const,
    count,
    index,
    load,
    row_params,
    scalar,
)
from pyflame_rt.backends.cpu.jit.compiler import call, compile_kernels, kernel_ir

LENGTHS = [0, 1, 7, 8, 9, 31, 1000]
F32 = Operand("float32")


def x(k=0):
    return load(k, "float32")


COPY = RowKernel(1, (F32,), (F32,), (Map((Store(1, x()),)),))


def element_strides(array, shape, inner):
    view = np.broadcast_to(array, shape)
    strides = [s // array.itemsize for s in view.strides]
    return strides if inner == "strided" else strides[:-1]


def inner_kind(array, shape):
    stride = np.broadcast_to(array, shape).strides[-1] // array.itemsize
    return {0: "zero", 1: "unit"}.get(stride, "strided")


def run_rows(stages, inputs, outputs, shape, split=()):
    """Run stages over arrays broadcast to `shape` (outer dims, n); outputs stored by Scalar stages are 'zero'."""
    zeros = {stage.store for stage in stages if isinstance(stage, Scalar)}
    kinds = [inner_kind(a, shape) for a in inputs]
    kinds += ["zero" if len(inputs) + k in zeros else "unit" for k in range(len(outputs))]
    operands = [Operand(a.dtype.name, k) for a, k in zip((*inputs, *outputs), kinds, strict=True)]
    kernel = RowKernel(len(shape) - 1, tuple(operands[: len(inputs)]), tuple(operands[len(inputs) :]), tuple(stages))
    strides = [element_strides(a, shape, k) for a, k in zip((*inputs, *outputs), kinds, strict=True)]
    params = row_params(kernel, shape[-1], shape[:-1], strides)
    bounds = [0, *split, int(np.prod(shape[:-1]))]
    for begin, end in itertools.pairwise(bounds):
        call(kernel, [a.ctypes.data for a in (*inputs, *outputs)], params, begin, end)


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "int8", "bool", "float16", "bfloat16"])
def test_lengths_leave_the_neighbours_alone(dtype, n):
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    source = np.arange(n + 2).astype(kind)
    out = np.zeros(n + 2, kind)
    kernel = RowKernel(0, (Operand(dtype),), (Operand(dtype),), (Map((Store(1, load(0, dtype)),)),))
    call(kernel, [source.ctypes.data, out.ctypes.data], [0], 1, n + 1)
    np.testing.assert_array_equal(out[1 : n + 1], source[1 : n + 1])
    assert out[0] == 0
    assert out[-1] == 0


@pytest.mark.parametrize("begin", [0, 1, 5])
def test_flat_strided_zero_and_index(begin):
    source, one, out = np.arange(300, dtype="f"), np.array([3], "f"), np.zeros(200, "f")
    value = apply("add", apply("mul", x(0), x(1)), cast(index(), "float32"))
    kernel = RowKernel(
        0,
        (Operand("float32", "strided"), Operand("float32", "zero")),
        (Operand("float32", "strided"),),
        (Map((Store(2, value),)),),
    )
    call(kernel, [a.ctypes.data for a in (source, one, out)], [0, 3, 2], begin, 90)
    k = np.arange(begin, 90)
    np.testing.assert_array_equal(out[2 * k], source[3 * k] * 3 + k)
    assert np.count_nonzero(out) <= k.size


@pytest.mark.parametrize("rank", range(1, 7))
def test_ranks_broadcast_and_split(rank):
    rng = np.random.default_rng(rank)
    shape = (*(2, 3, 1, 2, 3, 2)[:rank], 11)
    a = rng.standard_normal(shape).astype("f")
    b = rng.standard_normal(tuple(1 if k % 2 else s for k, s in enumerate(shape))).astype("f")
    c = np.asfortranarray(rng.standard_normal(shape).astype("f"))
    out = np.zeros(shape, "f")
    rows = int(np.prod(shape[:-1]))
    stages = [Map((Store(3, apply("sub", apply("mul", x(0), x(1)), x(2))),))]
    run_rows(stages, [a, b, c], [out], shape, split=(rows // 3, rows // 2))
    np.testing.assert_array_equal(out, a * b - c)


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "uint8"])
@pytest.mark.parametrize("kind", ["sum", "max", "min", "prod"])
def test_reductions(kind, dtype, n):
    rng = np.random.default_rng(n)
    data = (rng.standard_normal((5, n)) * 3).astype("f").astype(dtype if dtype != "uint8" else "i4").astype(dtype)
    if kind == "prod" and dtype.startswith("float"):
        data = 1 + data / 100
    out = np.empty((5, 1), dtype)
    run_rows(
        [Reduce((Reduction("r", kind, load(0, dtype)),)), Scalar("o", scalar("r", dtype), store=1)],
        [data],
        [out],
        (5, n),
    )
    if n == 0 and kind in ("max", "min"):
        return
    reduce = {"sum": np.sum, "max": np.max, "min": np.min, "prod": np.prod}[kind]
    with np.errstate(all="ignore"):
        expected = (
            reduce(data, axis=1, dtype="d" if dtype == "float32" else dtype)
            if kind in ("sum", "prod")
            else reduce(data, axis=1)
        )
    np.testing.assert_allclose(
        out[:, 0], expected, rtol=1e-5 if dtype == "float32" else 1e-12, atol=1e-4 if dtype == "float32" else 1e-11
    )


@pytest.mark.parametrize("n", [8191, 8192, 8193, 20_000, 1 << 22])
def test_long_sums_are_rounded_block_by_block(n):
    a, total = np.random.default_rng(n).random((1, n), dtype=np.float32), np.zeros(1, np.float32)
    stages = [Reduce((Reduction("s", "sum", x()),)), Scalar("out", scalar("s", "float32"), 1)]
    run_rows(stages, [a], [total.reshape(1, 1)], (1, n))
    np.testing.assert_allclose(total, a.sum(dtype=np.float64), rtol=3e-7)


def test_max_meets_nan_anywhere():
    for place in range(40):
        data = np.arange(40, dtype="f")[None]
        data[0, place] = np.nan
        out = np.zeros((1, 1), "f")
        for kind in ("max", "min"):
            run_rows([Reduce((Reduction("r", kind, x()),)), Scalar("o", scalar("r"), store=1)], [data], [out], (1, 40))
            assert np.isnan(out[0, 0])


def test_the_top_passes_over_nan():
    for place in (0, 3, 17, 39):
        data = np.arange(-40, 0, dtype="f")[None]
        data[0, place] = np.nan
        out = np.zeros((1, 1), "f")
        run_rows([Reduce((Reduction("r", "top", x()),)), Scalar("o", scalar("r"), store=1)], [data], [out], (1, 40))
        assert out[0, 0] == np.nanmax(data)


def softmax_stages():
    e = apply("decay", apply("sub", x(), scalar("m")))
    return [
        Reduce((Reduction("m", "top", x()),)),
        Reduce((Reduction("s", "sum", e),), (Store(1, e),)),
        Scalar("r", apply("reciprocal", scalar("s"))),
        Map((Store(1, apply("mul", x(1), scalar("r"))),)),
    ]


@pytest.mark.parametrize("place", [0, 5, 36])
def test_softmax_of_nan_and_infinities(place):
    data = np.linspace(-3, 3, 4 * 37, dtype="f").reshape(4, 37)
    data[0, place], data[1, place], data[2, place] = np.nan, -np.inf, np.inf
    out = np.zeros_like(data)
    run_rows(softmax_stages(), [data], [out], data.shape)
    assert np.isnan(out[0]).all()
    assert out[1, place] == 0
    assert abs(out[1].sum() - 1) < 1e-6
    assert np.isnan(out[2]).all()


@pytest.mark.parametrize("n", LENGTHS[1:])
def test_softmax(n):
    data = (np.random.default_rng(n).standard_normal((3, 4, n)) * 20).astype("f")
    out = np.zeros_like(data)
    run_rows(softmax_stages(), [data], [out], data.shape, split=(5,))
    e = np.exp(data.astype("d") - data.max(-1, keepdims=True))
    np.testing.assert_allclose(out, e / e.sum(-1, keepdims=True), rtol=3e-6, atol=1e-12)
    run_rows(softmax_stages(), [data], [data], data.shape)
    np.testing.assert_array_equal(data, out)  # in place


def layernorm_stages(inputs=3):
    centred = apply("sub", x(), scalar("mean"))
    return [
        Reduce((Reduction("t", "sum", x()),)),
        Scalar("mean", apply("div", scalar("t"), count())),
        Reduce((Reduction("q", "sum", apply("mul", centred, centred)),)),
        Scalar("k", apply("rsqrt", apply("add", apply("div", scalar("q"), count()), 1e-5))),
        Map((Store(inputs, apply("add", apply("mul", apply("mul", centred, scalar("k")), x(1)), x(2))),)),
    ]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("n", LENGTHS[2:])
def test_layernorm(n, dtype):
    rng = np.random.default_rng(n)
    data, scale, bias = (rng.standard_normal(s).astype(dtype) for s in ((6, n), (1, n), (1, n)))
    out = np.zeros_like(data)
    run_rows(layernorm_stages(), [data, scale, bias], [out], data.shape)
    d = data.astype("d")
    expected = (d - d.mean(1, keepdims=True)) / np.sqrt(d.var(1, keepdims=True) + 1e-5) * scale + bias
    np.testing.assert_allclose(
        out, expected, rtol=2e-3 if dtype == "float16" else 2e-5, atol=2e-3 if dtype == "float16" else 1e-5
    )


def test_slow_lanes_and_negative_zero():
    """Huge angles go to the C library, inside one module with several users of it."""
    data = np.array([[1e30, -3e38, 0.5, 2.0**28] * 5, [0.1] * 20], "f")
    sine, cosine = np.zeros_like(data), np.zeros_like(data)
    stages = [Map((Store(1, apply("sin", x())), Store(2, apply("cos", apply("add", x(), -0.0)))))]
    run_rows(stages, [data], [sine, cosine], data.shape)
    np.testing.assert_allclose(sine, np.sin(data.astype("d")), rtol=3e-7, atol=1e-30)
    np.testing.assert_allclose(cosine, np.cos(data.astype("d")), rtol=3e-7, atol=1e-30)
    kernels = [
        RowKernel(0, (F32,), (F32,), (Map((Store(1, apply("sin", apply("add", x(), c))),)),)) for c in (1.25, 2.25)
    ]
    assert len(set(compile_kernels(kernels))) == 2
    zero = np.full((1, 9), -0.0, "f")
    out = np.ones((1, 9), "f")
    run_rows([Map((Store(1, apply("add", x(), -0.0)),))], [zero], [out], zero.shape)
    assert np.signbit(out).all()


def test_argmax_is_a_composition():
    data = np.random.default_rng(0).standard_normal((9, 77)).astype("f")
    where = apply("where", apply("eq", x(), scalar("m")), index(), const(2**62, "int64"))
    stages = [
        Reduce((Reduction("m", "max", x()),)),
        Reduce((Reduction("i", "min", where),)),
        Scalar("o", scalar("i", "int64"), store=1),
    ]
    out = np.zeros((9, 1), "i8")
    run_rows(stages, [data], [out], data.shape)
    np.testing.assert_array_equal(out[:, 0], data.argmax(1))


def test_causal_mask_and_two_reductions_in_one_pass():
    data = np.random.default_rng(0).standard_normal((4, 21)).astype("f")
    limit = np.array([[3], [0], [20], [40]], "i8")
    kept = apply("where", apply("le", index(), load(1, "int64")), x(), 0.0)
    stages = [
        Reduce((Reduction("s", "sum", kept), Reduction("q", "sum", apply("mul", kept, kept))), (Store(2, kept),)),
        Scalar("a", scalar("s"), store=3),
        Scalar("b", apply("sqrt", scalar("q")), store=4),
    ]
    out, s, q = np.zeros_like(data), np.zeros((4, 1), "f"), np.zeros((4, 1), "f")
    run_rows(stages, [data, limit], [out, s, q], data.shape)
    expected = np.where(np.arange(21) <= limit, data, 0)
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_allclose(s[:, 0], expected.sum(1), rtol=1e-5)
    np.testing.assert_allclose(q[:, 0], np.sqrt((expected**2).sum(1)), rtol=1e-5)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5), st.integers(0, 40), st.tuples(*[st.booleans()] * 4), st.booleans())
def test_any_broadcast(rows, n, kept, transposed):
    rng = np.random.default_rng(0)
    a = rng.standard_normal((rows if kept[0] else 1, n if kept[1] else 1)).astype("f")
    b = rng.standard_normal((rows if kept[2] else 1, n if kept[3] else 1)).astype("f")
    if transposed:
        a = np.asfortranarray(a)
    out = np.zeros((rows, n), "f")
    run_rows([Map((Store(2, apply("add", x(0), x(1))),))], [a, b], [out], (rows, n))
    np.testing.assert_array_equal(out, np.broadcast_to(a + b, (rows, n)))


def test_equal_structure_is_compiled_once_from_any_thread():
    def make():
        return RowKernel(0, (F32,), (F32,), (Map((Store(1, apply("add", x(), 41.5)),)),))

    assert make().key == make().key
    assert kernel_ir(make(), "f") == kernel_ir(make(), "f")
    results = []
    threads = [threading.Thread(target=lambda: results.append(compile_kernels([make(), make()]))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({address for pair in results for address in pair}) == 1


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: apply("frobnicate", x()), "no operator 'frobnicate'"),
        (lambda: apply("add", x(), load(1, "int32")), "equal types"),
        (lambda: apply("and", x(), x()), "kind i/b"),
        (lambda: apply("exp", x(), x()), "takes 1"),
        (lambda: apply("where", x(), x(), x()), "bool expression"),
        (lambda: RowKernel(7, (), (), ()), "outer_rank"),
        (lambda: RowKernel(0, (F32,), (), (Reduce((Reduction("r", "sum", x()),)),)), "Map stages only"),
        (lambda: RowKernel(0, (F32,), (F32,), (Map((Store(0, x()),)),)), "not an output"),
        (lambda: RowKernel(0, (F32,), (Operand("int32"),), (Map((Store(1, x()),)),)), "cannot store"),
        (lambda: RowKernel(1, (F32,), (F32,), (Map((Store(1, scalar("s")),)),)), "row scalar 's'"),
        (lambda: RowKernel(1, (F32,), (F32,), (Scalar("s", x()),)), "'zero' operands only"),
        (lambda: RowKernel(1, (F32,), (F32,), (Scalar("s", index()),)), "no index"),
        (lambda: RowKernel(0, (F32,), (F32,), (Map((Store(1, count()),)),)), "no count"),
        (lambda: RowKernel(1, (F32,), (F32,), (Map((Store(1, load(5, "float32")),)),)), r"load\(5\)"),
        (lambda: RowKernel(1, (F32,), (F32,), (Reduce((Reduction("s", "max", apply("lt", x(), 0)),)),)), "cast them"),
        (lambda: row_params(COPY, 3, [2], [[1]]), "are needed"),
        (lambda: row_params(COPY, 3, [2], [[1], [1, 2]]), "wrong number"),
    ],
)  # fmt: skip
def test_mistakes_are_named(make, text):
    with pytest.raises(ValueError, match=text):
        make()
