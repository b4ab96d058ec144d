"""Products, linear algebra, convolution and Fourier transforms on every library."""

import numpy as np

from emberharmony import library

FLOATS = ("float32", "float16")
WITH_BF16 = (*FLOATS, "bfloat16")
NUMBERS = ("float32", "float16", "int32", "int64", "int8")

rng = np.random.default_rng(22)
V = np.round(rng.uniform(-2, 2, (3, 4)), 2)
W = np.round(rng.uniform(-2, 2, (4, 3)), 2)
BATCH = np.round(rng.uniform(-2, 2, (2, 3, 4)), 2)
SQUARE = np.array([[4.0, 1.0, 0.5], [1.0, 3.0, 0.25], [0.5, 0.25, 2.0]])
RIGHT = np.array([1.0, -2.0, 0.5])
THREE = np.array([1.0, 2.0, -1.0])
IMAGE = np.round(rng.uniform(-2, 2, (2, 4, 7, 6)), 1)
KERNEL = np.round(rng.uniform(-2, 2, (6, 2, 3, 2)), 1)
TURNED = np.round(rng.uniform(-2, 2, (4, 3, 3, 2)), 1)
LINE = np.round(rng.uniform(-2, 2, (1, 2, 9)), 1)
CUBE = np.round(rng.uniform(-2, 2, (1, 2, 4, 4, 3)), 1)


def row(op, args, reference, dtypes=FLOATS, options=None):
    return op, args, reference, dtypes, options or {}


def naive_conv(x, w, strides, pads, dilation, groups):
    """The definition, written as loops over the window."""
    rank = w.ndim - 2
    x = np.pad(x, [(0, 0), (0, 0), *pads])
    sizes = [(x.shape[2 + i] - (w.shape[2 + i] - 1) * dilation[i] - 1) // strides[i] + 1 for i in range(rank)]
    out = np.zeros((x.shape[0], w.shape[0], *sizes))
    each_in, each_out = x.shape[1] // groups, w.shape[0] // groups
    for tap in np.ndindex(*w.shape[2:]):
        key = tuple(
            slice(t * d, t * d + (n - 1) * s + 1, s) for t, d, n, s in zip(tap, dilation, sizes, strides, strict=True)
        )
        for g in range(groups):
            part = x[(slice(None), slice(g * each_in, (g + 1) * each_in), *key)]
            rows = slice(g * each_out, (g + 1) * each_out)
            out[:, rows] += np.einsum("nc...,mc->nm...", part, w[(rows, slice(None), *tap)])
    return out


def naive_transposed(x, w, strides, pads, extra, dilation, groups):
    """Each input element adds its scaled window to the result."""
    rank = w.ndim - 2
    full = [(x.shape[2 + i] - 1) * strides[i] + (w.shape[2 + i] - 1) * dilation[i] + 1 + extra[i] for i in range(rank)]
    each_in, each_out = x.shape[1] // groups, w.shape[1]
    out = np.zeros((x.shape[0], each_out * groups, *full))
    for tap in np.ndindex(*w.shape[2:]):
        key = tuple(
            slice(t * d, t * d + (n - 1) * s + 1, s)
            for t, d, n, s in zip(tap, dilation, x.shape[2:], strides, strict=True)
        )
        for g in range(groups):
            rows = slice(g * each_in, (g + 1) * each_in)
            made = np.einsum("nc...,cm->nm...", x[:, rows], w[(rows, slice(None), *tap)])
            out[(slice(None), slice(g * each_out, (g + 1) * each_out), *key)] += made
    cut = tuple(slice(a, n - b) for (a, b), n in zip(pads, full, strict=True))
    return out[(slice(None), slice(None), *cut)]


def windows(x, fold, window, strides, pads, value):
    x = np.pad(x, [(0, 0)] * (x.ndim - len(window)) + list(pads), constant_values=value)
    views = np.lib.stride_tricks.sliding_window_view(x, window, tuple(range(-len(window), 0)))
    key = (Ellipsis, *(slice(None, None, s) for s in strides), *(slice(None),) * len(window))
    return fold(views[key], axis=tuple(range(-len(window), 0)))


CONV = ([2, 1], [(1, 0), (2, 1)], [1, 2], 2)
TRANSPOSED = ([2, 1], [(1, 0), (0, 1)], [1, 0], [1, 2], 2)

SAMPLES = [
    row("matmul", (V, W), np.matmul, (*NUMBERS, "bfloat16")),
    row("matmul", (BATCH, W), np.matmul, NUMBERS),
    row("matmul", (V, W[:, 0]), np.matmul, NUMBERS),
    row("matmul", (V > 0, W > 0), np.matmul, ("bool",)),
    row("dot", (V, W), np.dot, NUMBERS),
    row("dot", (V[0], W[:, 0]), np.dot, NUMBERS),
    row("dot", (V, np.stack([W, W])), np.dot),
    row("vdot", (V, W), np.vdot, NUMBERS),
    row("inner", (V, BATCH), np.inner),
    row("outer", (V, W), np.outer, NUMBERS),
    row("tensordot", (BATCH, W, 1), np.tensordot, NUMBERS),
    row("tensordot", (BATCH, V, ((1, 2), (0, 1))), np.tensordot),
    row("einsum", ("bij,jk->bki", BATCH, W), np.einsum, (*NUMBERS, "bfloat16")),
    row("einsum", ("ii", SQUARE), np.einsum, NUMBERS),
    row("einsum", ("...ij, ...ij -> ...", BATCH, BATCH), np.einsum),
    row("kron", (V, W), np.kron, NUMBERS),
    row("cross", (RIGHT, THREE), np.cross, NUMBERS),
    row("trace", (SQUARE,), np.trace, NUMBERS),
    row("solve", (SQUARE, RIGHT), np.linalg.solve),
    row("solve", (np.stack([SQUARE, SQUARE]), SQUARE), np.linalg.solve),
    row("inv", (SQUARE,), np.linalg.inv, WITH_BF16),
    row("pinv", (V,), np.linalg.pinv),
    row("det", (SQUARE,), np.linalg.det),
    row("slogdet", (SQUARE,), lambda x: tuple(np.linalg.slogdet(x))),
    row("svd", (V,), lambda x: np.linalg.svd(x, compute_uv=False), options={"compute_uv": False}),
    row("cholesky", (SQUARE,), np.linalg.cholesky),
    row("lstsq", (W, np.array([1.0, 2.0, 0.0, 1.0])), lambda a, b: np.linalg.lstsq(a, b)[0], ("float32",)),
    row("eigvalsh", (SQUARE,), np.linalg.eigvalsh),
    row("matrix_power", (SQUARE, 3), np.linalg.matrix_power),
    row("matrix_power", (SQUARE, -2), np.linalg.matrix_power, ("float32",)),
    row("matrix_rank", (np.ones((3, 3)),), np.linalg.matrix_rank),
    row("triangular_solve", (SQUARE, W[:3]), lambda a, b: np.linalg.solve(np.tril(a), b), ("float32",)),
    row(
        "triangular_solve",
        (SQUARE, W[:3]),
        lambda a, b: np.linalg.solve(np.triu(a, 1) + np.eye(3), b),
        options={"lower": False, "unit_diagonal": True},
    ),
    row("conv", (IMAGE, KERNEL, *CONV), naive_conv, (*NUMBERS, "bfloat16")),
    row("conv", (LINE, LINE[:, :, :3]), lambda x, w: naive_conv(x, w, [1], [(0, 0)], [1], 1), NUMBERS),
    row("conv", (CUBE, CUBE[:, :, :2, :2, :2]), lambda x, w: naive_conv(x, w, [1] * 3, [(0, 0)] * 3, [1] * 3, 1)),
    row(
        "conv",
        (CUBE, CUBE[:, :1, :2, :2, :2].repeat(2, 0), 1, 1, 1, 2),
        lambda x, w, *_: naive_conv(x, w, [1] * 3, [(1, 1)] * 3, [1] * 3, 2),
    ),
    row("conv_transpose", (IMAGE, TURNED, *TRANSPOSED), naive_transposed, NUMBERS),
    row(
        "conv_transpose",
        (LINE, LINE[:, :, :3].swapaxes(0, 1), 2),
        lambda x, w, s: naive_transposed(x, w, [s], [(0, 0)], [0], [1], 1),
        WITH_BF16,
    ),
    row(
        "reduce_window",
        (IMAGE, [3, 2], [2, 1], 1, [(1, 0), (0, 1)], "max"),
        lambda x, *_: windows(x, np.max, (3, 2), (2, 1), [(1, 0), (0, 1)], -99),
        NUMBERS,
    ),
    row(
        "reduce_window",
        (IMAGE, [3, 2], 1, 1, 0, "sum"),
        lambda x, *_: windows(x, np.sum, (3, 2), (1, 1), [(0, 0)] * 2, 0),
        (*NUMBERS, "bfloat16"),
    ),
    row(
        "reduce_window",
        (IMAGE, [2, 2], 1, 1, 1, "min", 5),
        lambda x, *_: windows(x, np.min, (2, 2), (1, 1), [(1, 1)] * 2, 5),
    ),
    row("max_pool", (IMAGE, [2, 2]), lambda x, k: windows(x, np.max, (2, 2), (2, 2), [(0, 0)] * 2, 0), NUMBERS),
    row("average_pool", (IMAGE, [2, 2]), lambda x, k: windows(x, np.mean, (2, 2), (2, 2), [(0, 0)] * 2, 0)),
    row(
        "average_pool", (IMAGE, [2, 2], 1, 1, True), lambda x, *_: windows(x, np.mean, (2, 2), (1, 1), [(1, 1)] * 2, 0)
    ),
    *[row(n, (V,), getattr(np.fft, n), ("float32",)) for n in ("fft", "ifft", "rfft", "irfft", "fft2", "ifft2")],
    row("fft", (V, 3, 0), np.fft.fft, ("float32",)),
]


def test_equals_numpy(sample, name, check):
    check(sample, name)


def values(name, *arrays):
    lib = library(name)
    return lib, [lib.from_numpy(a.astype(np.float32)) for a in arrays]


def test_qr_factors_multiply_back(name):
    lib, (x,) = values(name, W)
    for mode, columns in (("reduced", 3), ("complete", 4)):
        q, r = lib.qr(x, mode)
        assert q.shape[1] == columns
        np.testing.assert_allclose(lib.to_numpy(lib.matmul(q, r)), W, atol=1e-5)
        np.testing.assert_allclose(lib.to_numpy(lib.matmul(lib.transpose(q), q)), np.eye(columns), atol=1e-5)


def test_svd_factors_multiply_back(name):
    lib, (x,) = values(name, V)
    u, s, vh = lib.svd(x, full_matrices=False)
    np.testing.assert_allclose(lib.to_numpy(lib.matmul(lib.multiply(u, s), vh)), V, atol=1e-5)
    u, s, vh = lib.svd(x)
    assert (tuple(u.shape), tuple(vh.shape)) == ((3, 3), (4, 4))


def test_eigenvectors(name):
    lib, (x,) = values(name, SQUARE)
    w, v = lib.eigh(x)
    np.testing.assert_allclose(lib.to_numpy(lib.matmul(x, v)), lib.to_numpy(lib.multiply(v, w)), atol=1e-5)
    w, v = (lib.to_numpy(part) for part in lib.eig(x))
    assert w.dtype == np.complex64
    np.testing.assert_allclose(SQUARE @ v, v * w, atol=1e-4)
    np.testing.assert_allclose(np.sort(lib.to_numpy(lib.eigvals(x)).real), np.linalg.eigvalsh(SQUARE), atol=1e-4)


def test_large_integer_products_are_exact(name):
    lib = library(name)
    a = rng.integers(-(2**20), 2**20, (40, 50)).astype(np.int32)
    b = rng.integers(-(2**20), 2**20, (50, 40)).astype(np.int32)
    got = lib.to_numpy(lib.matmul(lib.from_numpy(a), lib.from_numpy(b)))
    np.testing.assert_array_equal(got, (a.astype(object) @ b.astype(object) % 2**32).astype(np.uint32).view(np.int32))
    small = rng.integers(-128, 128, (64, 300)).astype(np.int32)
    got = lib.to_numpy(lib.matmul(lib.from_numpy(small), lib.from_numpy(small.T)))
    np.testing.assert_array_equal(got, small.astype(np.int64) @ small.T.astype(np.int64))
