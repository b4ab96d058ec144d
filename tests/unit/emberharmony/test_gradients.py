"""Gradients on torch and MLX equal difference quotients of NumPy's answers, or are refused by name."""

import numpy as np
import pytest

from emberharmony import UnsupportedOpError, library, ops

X = np.array([[0.31, -0.62, 0.83], [-0.24, 0.55, 0.46], [0.77, 0.18, -0.39]])
SQUARE = X + 2 * np.eye(3)
TALL, WIDE = X[:, :2] + np.eye(3, 2), (X[:, :2] + np.eye(3, 2)).T
POSITIVE = SQUARE @ SQUARE.T
AT = np.array([2, 0])

# fmt: off
UNARY_ANY = [
    "abs", "absolute", "arcsinh", "arctan", "cbrt", "celu", "cos", "cosh", "deg2rad", "digamma", "elu", "erf",
    "erfc", "erfinv", "exp", "exp2", "expm1", "gelu", "hard_sigmoid", "hard_silu", "hard_swish", "leaky_relu",
    "linear", "log_sigmoid", "log_softmax", "mish", "negative", "positive", "rad2deg", "reciprocal", "relu",
    "relu6", "selu", "sigmoid", "silu", "sin", "sinh", "softmax", "softplus", "softsign", "square", "swish", "tan",
    "tanh", "arcsin", "arccos", "arctanh", "lgamma", "gammaln", "cumsum", "cumprod", "cummax", "cummin",
    "logsumexp", "max", "min", "amax", "amin", "mean", "median", "nanmean", "nansum", "prod", "std", "sum", "var",
    "sort", "flatten", "ravel", "flip", "transpose", "copy", "nan_to_num", "real", "conj",
]
# fmt: on
CASES = {name: (name, X * 0.9) for name in UNARY_ANY}
POSITIVE_ONLY = ["log", "log1p", "log2", "log10", "sqrt", "rsqrt"]
CASES |= {name: (name, np.abs(X) + 0.2) for name in POSITIVE_ONLY} | {"arccosh": ("arccosh", np.abs(X) + 1.2)}
BINARY = ["add", "subtract", "multiply", "divide", "true_divide", "maximum", "minimum", "fmax", "fmin", "arctan2"]
BINARY += ["hypot", "logaddexp", "matmul", "dot", "vdot", "inner", "outer", "kron", "mod", "fmod", "remainder"]
CASES |= {name: (lambda lib, x, name=name: getattr(lib, name)(x, lib.add(lib.flip(x), 0.137)), X) for name in BINARY}
CASES |= {name: (name, SQUARE) for name in ("inv", "det", "pinv", "trace", "diagonal", "diag", "tril", "triu", "norm")}
CASES |= {
    "power": (lambda lib, x: lib.power(lib.add(lib.abs(x), 0.3), x), X),
    "pow": (lambda lib, x: lib.pow(x, 3), X),
    "slogdet": (lambda lib, x: lib.slogdet(x)[1], SQUARE),
    "det of a matrix without an inverse": ("det", np.stack([X[0], X[1], X[0] + X[1]])),
    "det of many": ("det", np.stack([SQUARE, SQUARE.T])),
    "inv of many": ("inv", np.stack([SQUARE, SQUARE.T])),
    "cholesky": (lambda lib, x: lib.cholesky(lib.matmul(x, lib.transpose(x))), SQUARE),
    "cholesky upper": (lambda lib, x: lib.cholesky(lib.matmul(x, lib.transpose(x)), upper=True), SQUARE),
    "eigh": (lambda lib, x: lib.abs(lib.eigh(lib.add(x, lib.transpose(x)))[1]), SQUARE),
    "eigh values": (lambda lib, x: lib.eigh(lib.add(x, lib.transpose(x)))[0], SQUARE),
    "eigvalsh": (lambda lib, x: lib.eigvalsh(lib.add(x, lib.transpose(x))), SQUARE),
    "svd values": (lambda lib, x: lib.svd(x, compute_uv=False), TALL),
    "svd u": (lambda lib, x: lib.abs(lib.svd(x, full_matrices=False)[0]), TALL),
    "svd vh": (lambda lib, x: lib.abs(lib.svd(x, full_matrices=False)[2]), WIDE),
    "svd square": (lambda lib, x: lib.abs(lib.svd(x)[2]), SQUARE),
    "qr q": (lambda lib, x: lib.abs(lib.qr(x)[0]), TALL),
    "qr r": (lambda lib, x: lib.abs(lib.qr(x)[1]), SQUARE),
    "pinv tall": ("pinv", TALL),
    "pinv wide": ("pinv", WIDE),
    "solve towards a": (lambda lib, x: lib.solve(x, lib.as_array([1.0, 2.0, 3.0], "float64")), SQUARE),
    "solve towards b": (lambda lib, x: lib.solve(lib.from_numpy(SQUARE), x), X[0]),
    "solve both": (lambda lib, x: lib.solve(x, lib.square(x)), SQUARE),
    "solve many": (lambda lib, x: lib.solve(lib.stack([x, lib.transpose(x)]), x), SQUARE),
    "triangular_solve": (lambda lib, x: lib.triangular_solve(x, lib.square(x)), SQUARE),
    "lstsq": (lambda lib, x: lib.lstsq(x, lib.square(x[:, 0])), TALL),
    "lstsq wide": (lambda lib, x: lib.lstsq(x, lib.square(x)), WIDE),
    "matrix_power": (lambda lib, x: lib.matrix_power(x, -2), SQUARE),
    "norm nuclear": (lambda lib, x: lib.norm(x, "nuc", (0, 1)), SQUARE),
    "norm 3": (lambda lib, x: lib.norm(x, 3, 1), SQUARE),
    "take": (lambda lib, x: lib.take(x, AT, 1), X),
    "gather": (lambda lib, x: lib.gather(x, AT, 0), X),
    "take_along_axis": (lambda lib, x: lib.take_along_axis(x, AT[None], 1), X),
    "gather_nd": (lambda lib, x: lib.gather_nd(x, np.array([[2, 1]])), X),
    "index_put": (lambda lib, x: lib.index_put(x, AT, lib.square(x[:2])), X),
    "index_put add": (lambda lib, x: lib.index_put(x, AT, lib.square(x[:2]), "add"), X),
    "index_put max": (lambda lib, x: lib.index_put(x, AT, lib.square(x[:2]), "max"), X),
    "scatter_nd": (lambda lib, x: lib.scatter_nd(x, AT[:, None], lib.square(x[:2]), "add"), X),
    "put_along_axis": (lambda lib, x: lib.put_along_axis(x, AT[None], lib.square(x[:1, :2]), 1), X),
    "scatter": (lambda lib, x: lib.scatter(AT[:, None], x[:2], (3, 3)), X),
    "slice_update": (lambda lib, x: lib.slice_update(x, [1, 0], lib.square(x[:2, :2])), X),
    "slice": (lambda lib, x: lib.slice(x, [2, 0], [None, 2], [-1, 1]), X),
    "top_k": (lambda lib, x: lib.top_k(x, 2)[0], X),
    "quantile": (lambda lib, x: lib.quantile(x, 0.3), X),
    "average": (lambda lib, x: lib.average(x, 0, lib.square(x)), X),
    "clip": (lambda lib, x: lib.clip(x, -0.3, 0.5), X),
    "where": (lambda lib, x: lib.where(lib.greater(x, 0), x, lib.square(x)), X),
    "select": (lambda lib, x: lib.select([lib.greater(x, 0)], [x], lib.square(x)), X),
    "einsum": (lambda lib, x: lib.einsum("ij,kj->ik", x, x), X),
    "tensordot": (lambda lib, x: lib.tensordot(x, x, 1), X),
    "cross": (lambda lib, x: lib.cross(x, lib.flip(x)), X),
    "concatenate": (lambda lib, x: lib.concatenate([x, lib.square(x)]), X),
    "stack": (lambda lib, x: lib.stack([x, lib.square(x)]), X),
    "hstack": (lambda lib, x: lib.hstack([x, lib.square(x)]), X),
    "vstack": (lambda lib, x: lib.vstack([x, lib.square(x)]), X),
    "split": (lambda lib, x: lib.split(x, 3)[1], X),
    "array_split": (lambda lib, x: lib.array_split(x, 2)[0], X),
    "unstack": (lambda lib, x: lib.unstack(x)[1], X),
    "roll": (lambda lib, x: lib.roll(x, 1, 0), X),
    "rot90": (lambda lib, x: lib.rot90(x), X),
    "pad": (lambda lib, x: lib.pad(x, 1), X),
    "pad edge": (lambda lib, x: lib.pad(x, 1, "edge"), X),
    "repeat": (lambda lib, x: lib.repeat(x, 2, 0), X),
    "tile": (lambda lib, x: lib.tile(x, 2), X),
    "reshape": (lambda lib, x: lib.reshape(x, (9,)), X),
    "broadcast_to": (lambda lib, x: lib.broadcast_to(x, (2, 3, 3)), X),
    "expand_dims": (lambda lib, x: lib.expand_dims(x, 1), X),
    "squeeze": (lambda lib, x: lib.squeeze(x[:, :1], 1), X),
    "swapaxes": (lambda lib, x: lib.swapaxes(x, 0, 1), X),
    "moveaxis": (lambda lib, x: lib.moveaxis(x, 0, 1), X),
    "meshgrid": (lambda lib, x: lib.meshgrid(x[0], x[1])[0], X),
    "sliding_window_view": (lambda lib, x: lib.sliding_window_view(x, 2), X),
    "conv": (lambda lib, x: lib.conv(x[None], x[:2, :, None]), X),
    "conv_transpose": (lambda lib, x: lib.conv_transpose(x[None], x[:, :2, None]), X),
    "max_pool": (lambda lib, x: lib.max_pool(x[None], [2], 1), X),
    "average_pool": (lambda lib, x: lib.average_pool(x[None], [2], 1), X),
    "reduce_window": (lambda lib, x: lib.reduce_window(x, [2], kind="sum"), X),
    "cast": (lambda lib, x: lib.cast(x, "float64"), X),
    "map": (lambda lib, x: lib.map(lambda r: lib.sum(lib.square(r)), x), X),
    "scan": (lambda lib, x: lib.scan(lambda c, r: (lib.add(c, r), lib.multiply(c, r)), x[0], x)[1], X),
    "floor_divide": (lambda lib, x: lib.floor_divide(x, 0.3), X),
    "round": ("round", X),
}  # fmt: skip
FLOAT32 = {
    "fft": (lambda lib, x: lib.abs(lib.fft(x)), X),
    "fft2": (lambda lib, x: lib.real(lib.fft2(x)), X),
    "ifft": (lambda lib, x: lib.imag(lib.ifft(x)), X),
    "ifft2": (lambda lib, x: lib.abs(lib.ifft2(x)), X),
    "rfft": (lambda lib, x: lib.abs(lib.rfft(x)), X),
    "irfft": (lambda lib, x: lib.irfft(lib.rfft(x), 3), X),
}
# What a library cannot differentiate, by name.
REFUSED = {
    "mlx": {
        "index_put mul": (lambda lib, x: lib.index_put(x, AT, x[:2], "mul"), X),
        "eig": (lambda lib, x: lib.abs(lib.eig(x)[0]), SQUARE.astype(np.float32)),
        "eigvals": (lambda lib, x: lib.abs(lib.eigvals(x)), SQUARE.astype(np.float32)),
        "svd full": (lambda lib, x: lib.svd(x)[1], TALL),
        "qr wide": (lambda lib, x: lib.qr(x)[1], WIDE),
        "qr complete": (lambda lib, x: lib.qr(x, "complete")[1], TALL),
        "unique": (lambda lib, x: lib.unique(x), X),
        "second derivative of digamma": (lambda lib, x: lib.gradients(lambda v: lib.digamma(v), x), X + 2),
    },
    "torch": {"unique": (lambda lib, x: lib.unique(x), X)},
}


def weighted(lib, function, x):
    """A number that depends on every element of the result, each with another weight."""
    found = getattr(lib, function)(x) if isinstance(function, str) else function(lib, x)
    weights = np.cos(np.arange(int(np.prod(found.shape)), dtype=np.float64)).reshape(tuple(found.shape))
    return lib.sum(lib.multiply(found, lib.from_numpy(weights.astype(lib.dtype(found)))))


def quotients(function, x):
    """The gradient by central differences of float64 answers."""
    lib, step = library("numpy"), 1e-5
    result = np.zeros_like(x)
    for place in np.ndindex(x.shape):
        sides = []
        for by in (step, -step):
            moved = x.copy()
            moved[place] += by
            sides.append(float(weighted(lib, function, moved)))
        result[place] = (sides[0] - sides[1]) / (2 * step)
    return result


def gradient(lib, function, x):
    return lib.to_numpy(lib.gradients(lambda v: weighted(lib, function, v), lib.from_numpy(x)))


@pytest.mark.parametrize("name", ["torch", "mlx"])
@pytest.mark.parametrize("case", CASES)
def test_gradients_are_right(case, name):
    function, x = CASES[case]
    want = quotients(function, x)
    np.testing.assert_allclose(gradient(library(name), function, x), want, 1e-5, 1e-6)
    if case not in ("floor_divide", "round"):
        assert np.abs(want).max() > 1e-3


@pytest.mark.parametrize("name", ["torch", "mlx"])
@pytest.mark.parametrize("case", FLOAT32)
def test_gradients_of_transforms(case, name):
    function, x = FLOAT32[case]
    got = gradient(library(name), function, x.astype(np.float32))
    np.testing.assert_allclose(got, quotients(function, x), 1e-4, 1e-5)


@pytest.mark.parametrize(("name", "case"), [(n, c) for n, cases in REFUSED.items() for c in cases])
def test_gradients_without_a_rule_are_refused(name, case):
    function, x = REFUSED[name][case]
    with pytest.raises(UnsupportedOpError, match="gradient of"):
        gradient(library(name), function, x)


@pytest.mark.parametrize(("op", "x"), [("lgamma", X + 2), ("erfinv", X), ("erfc", X), ("inv", SQUARE)])
def test_second_derivatives(op, x):
    lib, step = library("mlx"), 1e-5

    def slope(lib, v):
        return lib.gradients(lambda w: lib.sum(getattr(lib, op)(w)), v)

    weights = np.cos(np.arange(x.size)).reshape(x.shape)
    numeric = np.zeros_like(x)
    for place in np.ndindex(x.shape):
        sides = []
        for by in (step, -step):
            moved = x.copy()
            moved[place] += by
            sides.append(lib.to_numpy(slope(lib, lib.from_numpy(moved))))
        numeric[place] = ((sides[0] - sides[1]) * weights).sum() / (2 * step)
    np.testing.assert_allclose(gradient(lib, slope, x), numeric, 1e-4, 1e-5)


def test_forward_derivatives_are_refused():
    mx = pytest.importorskip("mlx.core")
    lib = library("mlx")
    x = lib.from_numpy(SQUARE.astype(np.float32))
    with pytest.raises(UnsupportedOpError, match="forward derivative of inv"):
        mx.jvp(lib.inv, [x], [x])


def test_host_functions_are_refused_inside_transformations():
    mx = pytest.importorskip("mlx.core")
    lib = library("mlx")
    for transform in (mx.compile, mx.vmap):
        with pytest.raises(UnsupportedOpError, match="inv inside"):
            transform(lib.inv)(lib.stack([lib.eye(2), lib.eye(2)]))


def test_numpy_has_no_gradients():
    with pytest.raises(UnsupportedOpError, match="numpy"):
        ops.gradients(lambda v: v, np.ones(1))
