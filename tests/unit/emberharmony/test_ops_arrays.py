"""Comparison, reductions and shapes give on every library what NumPy gives."""

import numpy as np

FLOATS = ("float32", "float16")
WITH_BF16 = (*FLOATS, "bfloat16")
NUMBERS = ("float32", "float16", "int32", "int64", "int8")
INTS = ("int32", "int64", "uint8")

rng = np.random.default_rng(20)
V = np.round(rng.uniform(-3, 3, (3, 4)), 2)
W = np.round(rng.uniform(-3, 3, (3, 4)), 2)
W[W == 0] = 1.0
TIES = np.array([[2.0, 5.0, 5.0, 1.0], [3.0, 3.0, 0.0, 3.0]])
NAN = np.array([1.0, np.nan, np.inf, -np.inf, 0.0])


def row(op, args, reference, dtypes=FLOATS, options=None):
    return op, args, reference, dtypes, options or {}


SAMPLES = [
    *[
        row(n, (np.round(V), np.round(W)), getattr(np, n), (*NUMBERS, "bfloat16"))
        for n in ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
    ],
    *[
        row(n, (np.round(V), np.round(W)), getattr(np, n), ("float32", "int32", "bool"))
        for n in ("logical_and", "logical_or", "logical_xor")
    ],
    row("logical_not", (np.round(V),), np.logical_not, ("float32", "int32", "bool")),
    row("where", (V > 0, V, W), np.where, NUMBERS),
    row("where", (V > 0, V, 1), np.where, NUMBERS),
    row("select", ([V > 1, V > 0], [V, W], 0), np.select),
    row("isclose", (V, V + 1e-9), np.isclose),
    row("isclose", (NAN, NAN), lambda a, b: np.isclose(a, b, equal_nan=True), options={"equal_nan": True}),
    row("allclose", (V, W), np.allclose),
    row("array_equal", (V, V), np.array_equal, NUMBERS),
    row("all", (V > -2,), np.all, ("bool", "float32", "int32")),
    row("any", (V > 2,), lambda x: x.any(1), ("bool", "float32"), {"axis": 1}),
    *[row(n, (V,), getattr(np, n), (*NUMBERS, "bfloat16")) for n in ("sum", "prod", "max", "min", "amax", "amin")],
    *[
        row(n, (V,), lambda x, n=n: getattr(np, n)(x, axis=1, keepdims=True), NUMBERS, {"axis": 1, "keepdims": True})
        for n in ("sum", "prod", "max", "min")
    ],
    *[
        row(n, (V.reshape(3, 2, 2),), lambda x, n=n: getattr(np, n)(x, axis=(0, 2)), NUMBERS, {"axis": (0, -1)})
        for n in ("sum", "prod", "max", "min", "mean", "var", "std")
    ],
    row("sum", (V,), lambda x: x, options={"axis": ()}),
    row("sum", (np.ones(5000),), np.sum, ("float16", "bfloat16")),
    row("max", (NAN,), np.max),
    *[row(n, (TIES,), getattr(np, n), (*NUMBERS, "bfloat16")) for n in ("argmax", "argmin")],
    *[
        row(n, (TIES,), lambda x, n=n: getattr(np, n)(x, axis=1, keepdims=True), NUMBERS, {"axis": 1, "keepdims": True})
        for n in ("argmax", "argmin")
    ],
    row("argmax", (np.array([False, True, True]),), np.argmax, ("bool",)),
    *[
        row(n, (V,), lambda x, n=n: getattr(np, n)(x, axis=1), (*NUMBERS, "bfloat16"), {"axis": 1})
        for n in ("cumsum", "cumprod")
    ],
    row("cumsum", (V,), np.cumsum, NUMBERS),
    row("cummax", (V,), lambda x: np.maximum.accumulate(x, 1), NUMBERS, {"axis": 1}),
    row("cummin", (V,), lambda x: np.minimum.accumulate(x, 0), NUMBERS, {"axis": 0}),
    row("mean", (V,), np.mean, WITH_BF16),
    row("var", (V,), lambda x: np.var(x, ddof=1), WITH_BF16, {"ddof": 1}),
    row("std", (V,), lambda x: np.std(x, axis=0), options={"axis": 0}),
    row("logsumexp", (V,), lambda x: np.log(np.exp(x).sum(1)), options={"axis": 1}),
    row("count_nonzero", (np.round(V),), np.count_nonzero, NUMBERS),
    row("nansum", (np.array([1.0, np.nan]),), np.nansum),
    row("nanmean", (np.array([1.0, np.nan]),), np.nanmean),
    row("average", (V, 0, np.array([1.0, 2.0, 1.0])), lambda x, a, w: np.average(x, a, w)),
    row("quantile", (V, [0.25, 0.5]), lambda x, q: np.quantile(x, q, axis=1), options={"axis": 1}),
    row("median", (V,), np.median),
    row("median", (V,), lambda x: np.median(x, 0, keepdims=True), options={"axis": 0, "keepdims": True}),
    row("norm", (V,), np.linalg.norm, WITH_BF16),
    row("norm", (V,), lambda x: np.linalg.norm(x, 1, axis=1), options={"ord": 1, "axis": 1}),
    row("norm", (V,), lambda x: np.linalg.norm(x, "nuc"), options={"ord": "nuc"}),
    row(
        "norm",
        (V,),
        lambda x: np.linalg.norm(x, 3, axis=0, keepdims=True),
        options={"ord": 3, "axis": 0, "keepdims": True},
    ),
    row("norm", (V,), lambda x: np.linalg.norm(x, np.inf), options={"ord": np.inf}),
    row("reshape", (V, (2, -1)), np.reshape, (*NUMBERS, "bfloat16", "bool")),
    row("transpose", (V.reshape(3, 2, 2), (2, 0, 1)), np.transpose, NUMBERS),
    row("transpose", (V,), np.transpose),
    row("broadcast_to", (V, (2, 3, 4)), np.broadcast_to, NUMBERS),
    row("concatenate", ([V, W], 1), np.concatenate, (*NUMBERS, "bfloat16", "bool")),
    row("concatenate", ([V, W], None), np.concatenate),
    row("stack", ([V, W], -1), np.stack, NUMBERS),
    row("vstack", ([V, W],), np.vstack),
    row("hstack", ([V, W],), np.hstack),
    row("swapaxes", (V, 0, 1), np.swapaxes),
    row("moveaxis", (V.reshape(3, 2, 2), [0, 1], [-1, 0]), np.moveaxis),
    row("expand_dims", (V, (0, -1)), np.expand_dims, NUMBERS),
    row("squeeze", (V[:, None, :, None],), np.squeeze),
    row("squeeze", (V[:, None, :, None], 1), np.squeeze),
    row("ravel", (V,), np.ravel),
    row("flatten", (V.T,), np.ravel),
    row("tile", (V, (2, 1, 3)), np.tile, NUMBERS),
    row("repeat", (V, 2), np.repeat),
    row("repeat", (V, [1, 0, 2]), lambda x, r: np.repeat(x, r, 0), options={"axis": 0}),
    row("split", (V, 2), lambda x, n: np.split(x, n, 1), NUMBERS, {"axis": 1}),
    row("split", (V, [1, 3]), lambda x, n: np.split(x, [1], 1), options={"axis": 1}),
    row("array_split", (V, 3), lambda x, n: np.array_split(x, n, 1), options={"axis": 1}),
    row("unstack", (V,), list),
    row("flip", (V,), np.flip, NUMBERS),
    row("flip", (V,), lambda x: np.flip(x, -1), options={"axis": -1}),
    row("roll", (V, 1), np.roll),
    row("roll", (V, (1, -2)), lambda x, s: np.roll(x, s, (0, 1)), options={"axis": (0, 1)}),
    row("rot90", (V,), np.rot90),
    *[
        row("pad", (V, [(1, 2), (0, 3)]), lambda x, p, m=m: np.pad(x, p, m), NUMBERS, {"mode": m})
        for m in ("reflect", "edge", "wrap", "symmetric")
    ],
    row(
        "pad",
        (V, [(1, 2), (0, 3)]),
        lambda x, p: np.pad(x, p, constant_values=7),
        (*NUMBERS, "bfloat16"),
        {"constant_values": 7},
    ),
    row("sliding_window_view", (V, 2, 1), np.lib.stride_tricks.sliding_window_view, NUMBERS),
    row("sliding_window_view", (V, (2, 3)), np.lib.stride_tricks.sliding_window_view),
    row("diag", (V[0], 1), np.diag, NUMBERS),
    row("diag", (V[0], -2), np.diag),
    row("diag", (V,), np.diag),
    row("diagonal", (V.reshape(3, 2, 2), 1, 0, 2), np.diagonal),
    row("tril", (V, -1), np.tril, NUMBERS),
    row("triu", (V, 1), np.triu, NUMBERS),
    row("meshgrid", (V[0], W[1]), lambda a, b: list(np.meshgrid(a, b))),
    row("shape", (V,), np.shape),
    row("ndim", (V,), np.ndim),
    row("size", (V,), np.size),
]


def test_equals_numpy(sample, name, check):
    check(sample, name)
