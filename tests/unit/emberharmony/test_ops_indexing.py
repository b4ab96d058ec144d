"""Indexing, sorting and creation give on every library what NumPy gives."""

import numpy as np

FLOATS = ("float32", "float16")
NUMBERS = ("float32", "float16", "int32", "int64", "int8")
ALL = (*NUMBERS, "bfloat16", "bool")

rng = np.random.default_rng(21)
V = np.round(rng.uniform(-3, 3, (3, 4)), 2)
W = np.round(rng.uniform(-3, 3, (3, 4)), 2)
TIES = np.array([[2.0, 5.0, 5.0, 1.0], [3.0, 3.0, 0.0, 3.0]])
NAN = np.array([2.0, np.nan, 1.0])
IDX = np.array([[0, 2], [1, -1]])
ONE = np.array([[1], [-1], [0]])
PAIRS = np.array([[0, 1], [2, -1], [0, 1]])
LONG = np.tile(np.array([1.0, 0.0]), 40)


def row(op, args, reference, dtypes=FLOATS, options=None):
    return op, args, reference, dtypes, options or {}


def put(x, at, new, axis):
    x = x.copy()
    np.put_along_axis(x, at % x.shape[axis], new, axis)
    return x


def combined(x, at, new, ufunc):
    x = x.copy()
    ufunc.at(x, tuple(at.T), new)
    return x


def along(x, at, new, ufunc):
    x = x.copy()
    ufunc.at(x, (np.arange(3)[:, None], at), new)
    return x


def block(x, start, new):
    x = x.copy()
    x[start[0] : start[0] + new.shape[0], start[1] : start[1] + new.shape[1]] = new
    return x


def backwards(x):
    return np.argsort(-x, axis=-1, kind="stable")


UFUNCS = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}

SAMPLES = [
    row("take", (V, IDX), np.take, ALL),
    row("take", (V, IDX), lambda x, i: np.take(x, i, 1), NUMBERS, {"axis": 1}),
    row("take", (V, np.array(-1)), lambda x, i: np.take(x, i, -1), options={"axis": -1}),
    row("gather", (V, IDX), lambda x, i: np.take(x, i, 0), options={"axis": 0}),
    row("take_along_axis", (V, ONE), lambda x, i: np.take_along_axis(x, i, 1), ALL, {"axis": 1}),
    row("gather_nd", (V, PAIRS), lambda x, i: x[tuple(i.T)], ALL),
    row("gather_nd", (V, np.array([[1], [0]])), lambda x, i: x[i[:, 0]], NUMBERS),
    row("gather_nd", (V, ONE), lambda x, i: x[np.arange(3), i[:, 0]], options={"batch_dims": 1}),
    row("index_put", (V, np.array([2, 0]), W[:2]), lambda x, i, v: np.stack([v[1], x[1], v[0]]), ALL),
    row(
        "scatter_nd",
        (V, PAIRS, np.array([1.0, 2.0, 1.0])),
        lambda x, i, v: combined(x, i, v * 0, np.multiply) + combined(x * 0, i[:2], v[:2], np.add),
        NUMBERS,
    ),
    *[
        row(
            "scatter_nd",
            (np.round(V), PAIRS, np.array([1.0, 2.0, 3.0])),
            lambda x, i, v, u=u: combined(x, i, v, u),
            NUMBERS,
            {"mode": m},
        )
        for m, u in UFUNCS.items()
    ],
    row("tensor_scatter_nd_update", (V, np.array([[1]]), W[:1]), lambda x, i, v: np.stack([x[0], v[0], x[2]])),
    row("scatter_update", (V, np.array([[1]]), W[:1]), lambda x, i, v: np.stack([x[0], v[0], x[2]])),
    row(
        "scatter",
        (np.array([[1], [1]]), np.array([5.0, 6.0]), (3,)),
        lambda i, v, s: np.array([0.0, 11.0, 0.0]),
        NUMBERS,
    ),
    row("put_along_axis", (V, ONE, W[:, :1], 1), put, NUMBERS),
    row("put_along_axis", (V, np.array([[2, 0, -1, 1]]), W[:1], 0), put),
    *[
        row(
            "put_along_axis",
            (np.round(V), ONE, np.round(W[:, :1]), 1),
            lambda x, i, v, a, u=u: along(x, i, v, u),
            NUMBERS,
            {"mode": m},
        )
        for m, u in UFUNCS.items()
    ],
    row("slice", (V, [0, -1], [None, None], [2, -2]), lambda x, *_: x[::2, ::-2], ALL),
    row("slice", (V, [1], [3]), lambda x, *_: x[1:3]),
    row("slice", (V, [2], [2]), lambda x, *_: x[2:2]),
    row("slice_update", (V, [1, 2], W[:2, :2]), block, NUMBERS),
    row("one_hot", (np.array([0, 2, 5, -1]), 3), lambda i, n: np.eye(9)[i][:, :3]),
    row("one_hot", (np.array([0, 2]), 3), lambda i, n: np.eye(3)[i].T, options={"axis": 0}),
    row("nonzero", (np.round(V),), np.nonzero, NUMBERS),
    row("argwhere", (np.round(V),), np.argwhere, NUMBERS),
    row("searchsorted", (np.array([1.0, 2.0, 2.0, 5.0]), np.array([2.0, 9.0])), np.searchsorted, NUMBERS),
    row(
        "searchsorted",
        (np.array([1.0, 2.0, 2.0]), 2.0),
        lambda s, v: np.searchsorted(s, v, "right"),
        options={"side": "right"},
    ),
    row("digitize", (np.array([0.5, 2.0]), np.array([1.0, 2.0])), np.digitize),
    row("bincount", (np.array([0, 2, 2]),), np.bincount),
    row("bincount", (np.array([0, 2, 2]), np.array([1.0, 2.0, 3.0]), 5), np.bincount),
    row("unique", (TIES,), np.unique, NUMBERS),
    row(
        "unique",
        (TIES,),
        lambda x: np.unique(x, True, True, True),
        options={"return_index": True, "return_inverse": True, "return_counts": True},
    ),
    row("sort", (V,), np.sort, ALL),
    row("sort", (V,), lambda x: np.sort(x, 0)[::-1], NUMBERS, {"axis": 0, "descending": True}),
    row("sort", (NAN,), np.sort),
    row("argsort", (TIES,), lambda x: np.argsort(x, kind="stable"), ALL),
    row("argsort", (TIES,), backwards, NUMBERS, {"descending": True}),
    row("argsort", (LONG,), backwards, NUMBERS, {"descending": True}),
    row("argsort", (LONG,), lambda x: np.argsort(x, kind="stable"), NUMBERS),
    row("top_k", (TIES, 2), lambda x, k: (-np.sort(-x)[:, :k], backwards(x)[:, :k]), NUMBERS),
    row(
        "top_k",
        (TIES, 2),
        lambda x, k: (np.sort(x)[:, :k], np.argsort(x, kind="stable")[:, :k]),
        NUMBERS,
        {"largest": False},
    ),
    row("isin", (TIES, np.array([5.0, 1.0])), np.isin, NUMBERS),
    row("isin", (TIES, np.zeros(0)), np.isin),
    row("cast", (V, "int32"), lambda x, d: np.trunc(x), FLOATS),
    row("cast", (V, "bool"), lambda x, d: x != 0, NUMBERS),
    row("cast", (V, "bfloat16"), lambda x, d: x, FLOATS),
    row("bitcast", (V, "int32"), lambda x, d: x.astype(np.float32).view(np.int32), ("float32",)),
    row("view", (V, "uint16"), lambda x, d: x.astype(np.float16).view(np.uint16), ("float16",)),
    row("copy", (V,), lambda x: x, ALL),
    row("full", ((2, 3), 1.5, "float16"), lambda *_: np.full((2, 3), 1.5), ("float32",)),
    row("full", ((), 100, "int8"), lambda *_: np.array(100), ("float32",)),
    row("full_like", (V, 2), lambda x, v: np.full_like(x, v), NUMBERS),
    row("zeros_like", (V,), np.zeros_like, ALL),
    row("ones_like", (V,), np.ones_like, ALL),
    row("empty_like", (V,), np.zeros_like),
    row("zeros", ((2, 3),), np.zeros),
    row("ones", (3,), np.ones),
    row("empty", ((2, 3), "int32"), lambda *_: np.zeros((2, 3))),
    row("arange", (2, 9, 3), np.arange),
    row("arange", (1.5,), np.arange),
    row("linspace", (0, 1, 5), np.linspace),
    row("logspace", (0, 2, 3), np.logspace),
    row("eye", (3, 4, 1), np.eye),
    row("identity", (3,), np.eye),
    row("tri", (3, 4, -1), np.tri),
    row("triu_indices", (3, 1), np.triu_indices),
    row("tril_indices", (3,), np.tril_indices),
    row("convert_to_tensor", (V,), lambda x: x, ALL),
    row("array", ([1.5, 2.5],), np.array),
    row("asarray", ([1, 2],), np.array),
    row("stop_gradient", (V,), lambda x: x),
]


def test_equals_numpy(sample, name, check):
    check(sample, name)
