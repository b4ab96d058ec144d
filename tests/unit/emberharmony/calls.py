"""Calls of every operation with edge values."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from emberharmony.dtypes import as_dtype
from tests.unit.emberharmony import calls_arrays as arrays
from tests.unit.emberharmony.pools import DTYPES, FLOATS, LAYOUTS, OUTSIDE, A, Call, edges, grid, mild, quiet, shaped

__all__ = ["FAMILIES"]

# fmt: off
UNARY = [
    "abs", "absolute", "angle", "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctanh", "bitwise_not",
    "cbrt", "ceil", "celu", "conj", "copy", "cos", "cosh", "deg2rad", "digamma", "elu", "empty_like", "erf",
    "erfc", "erfinv", "exp", "exp2", "expm1", "flatten", "floor", "gammaln", "gelu", "get_dtype", "hard_sigmoid",
    "hard_silu", "hard_swish", "imag", "invert", "is_tensor", "isfinite", "isinf", "isnan", "isneginf", "isposinf",
    "leaky_relu", "lgamma", "linear", "log", "log10", "log1p", "log2", "log_sigmoid", "logical_not", "mish",
    "nan_to_num", "ndim", "negative", "ones_like", "positive", "rad2deg", "ravel", "real", "reciprocal", "relu",
    "relu6", "round", "rsqrt", "selu", "shape", "sigmoid", "sign", "silu", "sin", "sinh", "size", "softplus",
    "softsign", "sqrt", "square", "stop_gradient", "swish", "tan", "tanh", "to_numpy", "transpose", "trunc",
    "zeros_like", "nonzero", "argwhere", "convert_to_tensor", "array", "asarray",
]
BINARY = [
    "add", "arctan2", "divide", "equal", "floor_divide", "fmax", "fmin", "fmod", "greater", "greater_equal",
    "hypot", "isclose", "less", "less_equal", "logaddexp", "logical_and", "logical_or", "logical_xor", "maximum",
    "minimum", "mod", "multiply", "not_equal", "pow", "power", "remainder", "subtract", "true_divide",
    "truncate_divide", "array_equal", "allclose", "isin", "result_type", "outer",
]
BITS = [
    "bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift",
]
REDUCTIONS = [
    "all", "amax", "amin", "any", "count_nonzero", "logsumexp", "max", "mean", "median", "min", "nanmean",
    "nansum", "prod", "std", "sum", "var",
]
RUNNING = [
    "cummax", "cummin", "cumprod", "cumsum",
]
SORTS = [
    "argsort", "sort", "argmax", "argmin",
]
# fmt: on
AXES = (None, 0, -1, 1, (0, 1), (), (-1, 0), 2, -3, (0, 0), 5)


def _unary() -> Iterator[Call]:
    for op in UNARY:
        for dtype in DTYPES:
            for x in shaped(dtype):
                yield Call(op, (x,))
        for value in (3, 2.5, True, -1.0, [1, 2], [0.5, 2.5], 16777217.0, [[1], [2]]):
            yield Call(op, (value,))
    for op in ("softmax", "log_softmax"):
        for dtype in DTYPES:
            for x in (*shaped(dtype), *quiet(dtype)):
                yield Call(op, (x,))
                yield Call(op, (x,), {"axis": 0})
            for axis in AXES:
                yield Call(op, (A(mild(dtype, (2, 3))),), {"axis": axis})
    for dtype in DTYPES:
        for decimals in (1, -1, 3):
            yield Call("round", (A(edges(dtype)),), {"decimals": decimals})
        yield Call("gelu", (A(edges(dtype)),), {"approximate": True})
        for option in (0.0, 2.5, -1.0):
            yield Call("elu", (A(edges(dtype)),), {"alpha": option})
            yield Call("leaky_relu", (A(edges(dtype)),), {"negative_slope": option})
        yield Call("celu", (A(edges(dtype)),), {"alpha": 2.0})
        yield Call("nan_to_num", (A(edges(dtype)),), {"nan": 1.5, "posinf": 9.0, "neginf": -9.0})
        for target in DTYPES:
            yield Call("cast", (A(edges(dtype)), target))
            yield Call("bitcast", (A(mild(dtype, (4,))), target))
            yield Call("view", (A(mild(dtype, (4, 2)), "transposed"), target))
            yield Call("convert_to_tensor", (A(mild(dtype, (3,))), target))


def _binary() -> Iterator[Call]:
    for op in [*BINARY, *BITS]:
        for dtype in DTYPES:
            left, right = (g.ravel() for g in np.meshgrid(edges(dtype), edges(dtype)))
            yield Call(op, (A(left), A(right)))
            yield Call(op, (A(grid(dtype), "transposed"), A(mild(dtype, (4,)), "strided")))
            yield Call(op, (A(mild(dtype, ())), A(edges(dtype))))
            yield Call(op, (A(edges(dtype)[:0]), A(mild(dtype, (1,)))))
            yield Call(op, (A(mild(dtype, (2, 3))), A(mild(dtype, (2,)))))
            for value in (*OUTSIDE, np.float64(0.1), np.int64(3), [1, 2, 3, 4]):
                yield Call(op, (A(grid(dtype)), value))
                yield Call(op, (value, A(grid(dtype))))
            for other in DTYPES:
                if other != dtype:
                    yield Call(op, (A(mild(dtype, (5,))), A(mild(other, (5,), 1))))
        for pair in ((1, 2), (2.5, 3), (True, 2), (7, -2), (16777217.0, 1), ([1, 2], 3)):
            yield Call(op, pair)
    for dtype in DTYPES:
        x = A(grid(dtype))
        for low, high in (
            (0, 6),
            (-1, 300),
            (None, 2),
            (2, None),
            (5, 1),
            (0.5, 2.5),
            (float("nan"), 3),
            (-(2**70), 2**70),
        ):
            yield Call("clip", (x, low, high))
        yield Call("clip", (x, A(mild(dtype, (4,))), A(mild(dtype, (3, 1), 2))))
        for condition in (
            A(np.array([True, False, True, False])),
            True,
            [True, False, False, True],
            A(mild("float32", (4,))),
        ):
            yield Call("where", (condition, x, 1))
            yield Call("where", (condition, A(mild(dtype, (4,))), 300))
            yield Call("where", (condition, -1, x))
        yield Call("select", ([A(grid("bool"))], [x], 5))
        yield Call("select", ([A(grid("bool")), A(grid("bool"))], [x, A(mild("float32", (3, 4)))]))
        yield Call("select", ([A(grid("bool"))], [x, x]))
        yield Call("isclose", (x, x), {"equal_nan": True})
        yield Call("allclose", (x, x), {"equal_nan": True})
        yield Call("isclose", (A(mild(dtype, (4,))), A(mild(dtype, (4,), 1))), {"rtol": 0.5, "atol": 1})


def _reductions() -> Iterator[Call]:
    for op in REDUCTIONS:
        for dtype in DTYPES:
            for x in (*shaped(dtype), *quiet(dtype)):
                yield Call(op, (x,))
                yield Call(op, (x,), {"axis": 0, "keepdims": True})
                yield Call(op, (x,), {"axis": -1})
            for axis in AXES:
                for keep in (False, True):
                    yield Call(op, (A(mild(dtype, (2, 3))),), {"axis": axis, "keepdims": keep})
        yield Call(op, ([1.5, 2.5],))
        yield Call(op, (3,))
    for op in (*RUNNING, *SORTS):
        for dtype in DTYPES:
            for x in (*shaped(dtype), *quiet(dtype)):
                yield Call(op, (x,))
                yield Call(op, (x,), {"axis": 0})
            for axis in (None, 0, -1, 1, 2, -3):
                yield Call(op, (A(mild(dtype, (2, 3))),), {"axis": axis})
            if op in ("sort", "argsort"):
                yield Call(op, (A(grid(dtype)),), {"descending": True})
                yield Call(op, (A(np.resize(mild(dtype, (3,)), 9)),), {"descending": True})
            if op in ("argmax", "argmin"):
                yield Call(op, (A(grid(dtype)),), {"keepdims": True})
                yield Call(op, (A(grid(dtype)),), {"axis": 1, "keepdims": True})
    for dtype in DTYPES:
        for target in ("float64", "float32", "int64", "int8", "float16"):
            for op in ("sum", "prod", "cumsum", "cumprod", "mean"):
                yield Call(op, (A(mild(dtype, (3, 4))),), {"dtype": target})
        for ddof in (1, 3, 4, 5):
            yield Call("var", (A(mild(dtype, (3,))),), {"ddof": ddof})
            yield Call("std", (A(mild(dtype, (3,))),), {"ddof": ddof})
        yield Call("mean", (A(np.full(70000, 3, as_dtype(dtype))),))
        yield Call("var", (A(np.resize(mild(dtype, (7,)), 1000)),))
        for q in (0, 0.1, 0.25, 0.3, 0.5, 0.9, 1, [0.1, 0.7], 1.5, -0.1, float("nan")):
            for method in ("linear", "lower", "higher", "midpoint", "nearest"):
                yield Call("quantile", (A(mild(dtype, (11,))), q), {"method": method})
            yield Call("quantile", (A(grid(dtype)), q), {"axis": 1, "keepdims": True})
        yield Call("quantile", (A(mild(dtype, (3,))), 0.5), {"method": "odd"})
        yield Call("quantile", (A(np.zeros((0,), as_dtype(dtype))), 0.5))
        yield Call("median", (A(mild(dtype, (2, 3, 4))),), {"axis": (0, 2)})
        yield Call("average", (A(mild(dtype, (2, 3))),), {"axis": 1})
        yield Call("average", (A(mild(dtype, (2, 3))),), {"axis": 1, "weights": A(mild(dtype, (3,), 1))})
        yield Call("average", (A(mild(dtype, (2, 3))),), {"weights": A(mild(dtype, (2, 3), 1))})
        yield Call("average", (A(mild(dtype, (2, 3))),), {"axis": 0, "weights": [0, 0]})
        yield Call("average", (A(mild(dtype, (2, 3))),), {"weights": [1, 2, 3]})


def _infinities() -> Iterator[Call]:
    inf, nan = float("inf"), float("nan")
    rows = [[1, inf, 2], [inf, inf, 1, 2], [-inf, inf], [-inf, -inf, 1], [nan, 1, 2], [inf, inf, inf, inf]]
    for dtype in FLOATS:
        for row in rows:
            x = A(np.array(row, np.float64).astype(as_dtype(dtype)))
            for op in (
                "median",
                "mean",
                "var",
                "std",
                "sum",
                "logsumexp",
                "softmax",
                "max",
                "argmax",
                "cumsum",
                "norm",
            ):
                yield Call(op, (x,))
            for q in (0.0, 0.3, 0.5, 1.0):
                yield Call("quantile", (x, q))


def _creation() -> Iterator[Call]:
    for dtype in (*DTYPES, None):
        option = {} if dtype is None else {"dtype": dtype}
        for value in (
            0,
            1,
            300,
            -1,
            2.5,
            16777217,
            16777217.0,
            2**40,
            float("nan"),
            float("inf"),
            True,
            1e300,
            -(2**70),
            A(mild("int64", ())),
        ):
            yield Call("full", ((2, 1), value), option)
            yield Call("full", ((), value), option)
            yield Call("full_like", (A(mild(dtype or "float32", (2,))), value))
            if not isinstance(value, A):
                yield Call("convert_to_tensor", (value,), option)
                yield Call("array", ([value, value],), option)
                yield Call("asarray", ([[value]],), option)
        for shape in ((2, 3), 4, (), (0, 2), (-1,)):
            for op in ("zeros", "ones", "empty"):
                yield Call(op, (shape,), option)
        for span in (
            (3,),
            (0, 0.3, 0.1),
            (1, 2),
            (5, 0, -2),
            (0, 1, 0.1),
            (0, 5, -1),
            (0,),
            (0, 5, 0),
            (16777217.0, 16777219.0),
            (2.5,),
            (0, 1, 0.3),
            (float("nan"),),
            (0, -3),
            (2**40, 2**40 + 2),
        ):
            yield Call("arange", span, option)
        for span in ((0, 1, 3), (0, 1, 1), (0, 1, 0), (0.1, 0.7, 5), (5, -5, 4), (0, 16777217, 2), (0, 1, -1)):
            yield Call("linspace", span, option)
            yield Call("linspace", span, {**option, "endpoint": False})
            yield Call("logspace", span, option) if abs(span[1]) < 100 else Call("linspace", span, option)
        for n, m, k in ((3, None, 0), (2, 3, 1), (3, 2, -1), (0, None, 0), (2, 2, 5), (-1, None, 0)):
            yield Call("eye", (n, m, k), option)
            yield Call("tri", (n, m, k), option)
            yield Call("identity", (n,), option)
    for n, k, m in ((3, 0, None), (3, 1, None), (2, -1, 4), (0, 0, None)):
        yield Call("triu_indices", (n, k, m))
        yield Call("tril_indices", (n, k, m))
    for name in DTYPES:
        yield Call("to_numpy_dtype", (name,))
    for op in ("ones_like", "zeros_like", "empty_like"):
        yield Call(op, (A(mild("float32", (2,))), "int8"))


def _control() -> Iterator[Call]:
    def plus(c: Any, x: Any) -> Any:
        return c + x, c

    x = A(mild("float32", (4, 2)))
    yield Call("cond", (True, lambda: 1, lambda: 2))
    yield Call("cond", (A(np.array(0)), lambda: 1, lambda: 2))
    yield Call("cond", (A(np.array([1, 2])), lambda: 1, lambda: 2))
    for index in (0, 1, 7, -3):
        yield Call("switch", (index, [lambda: 1, lambda: 2]))
        yield Call("switch", (A(np.array(index)), [lambda: 1, lambda: 2]))
    yield Call("fori_loop", (0, 4, lambda i, v: v + i, x))
    yield Call("while_loop", (lambda v: v < 9, lambda v: v * 2, A(np.array(1))))
    yield Call("while_loop", (lambda v: v < 9, lambda v: v * 2, A(np.array(1)), 2))
    yield Call("scan", (plus, A(np.zeros(2, np.float32)), x))
    yield Call("scan", (plus, A(np.zeros(2, np.float32)), x), {"reverse": True})
    yield Call("scan", (plus, A(np.zeros(2, np.float32)), None))
    yield Call("map", (lambda v: v * 2, x))
    yield Call("map", (lambda v: v * 2, A(np.zeros((0, 2), np.float32))))
    yield Call("vectorized_map", (lambda v: v * 2, x))
    for device in ("cpu", "cuda", "gpu:7", "nowhere"):
        yield Call("to_device", (x, device), {"strict": True})
    yield Call("to_device", (x, "nowhere"))
    yield Call("get_device", (x,))


RANDOM = {
    "random_uniform": [((4, 3),), ((5,), -2.0, 3.0), ((),), ((0,),), ((3,), 2.0, 2.0), ((-1,),)],
    "random_normal": [((4, 3),), ((5,), 2.0, 3.0), ((),), ((0,),)],
    "random_truncated_normal": [((40, 3),), ((5,), 2.0, 3.0), ((),), ((0,),)],
    "random_bernoulli": [((40,),), ((5,), 0.0), ((5,), 1.0), ((5,), 1.5)],
    "random_binomial": [((40,), 0.3, 8), ((5,), 0.5, 0), ((5,), -1.0, 3)],
    "random_gamma": [((40,), 2.0), ((9,), 0.3), ((3,), -1.0)],
    "random_randint": [((40,), 0, 10), ((5,), -3, 2**40), ((5,), 3, 3), ((0,), 0, 1)],
}


def _random() -> Iterator[Call]:
    for op, spans in RANDOM.items():
        for span in spans:
            for seed in (0, 7, 2**40, -1):
                yield Call(op, span, {"seed": seed})
            for dtype in ("float16", "bfloat16", "float64", "int64", "int32"):
                yield Call(op, span, {"seed": 3, "dtype": dtype})
    for seed in (0, 7):
        yield Call("random_categorical", (A(mild("float32", (3, 5))), 6), {"seed": seed})
        yield Call("random_categorical", (A(np.array([[0.0, -np.inf]])), 4), {"seed": seed})
        yield Call("random_permutation", (9,), {"seed": seed})
        yield Call("random_permutation", (A(mild("float32", (5, 2))),), {"seed": seed})
        yield Call("random_permutation", (A(mild("float32", (2, 5))), 1), {"seed": seed})
        yield Call("random_permutation", (A(mild("float32", (2, 5))), 2), {"seed": seed})
        yield Call("random_shuffle", (A(mild("int64", (9,))),), {"seed": seed})
        yield Call("random_shuffle", (A(np.zeros((0,))),), {"seed": seed})


def _relaid(value: Any, layout: str) -> Any:
    if isinstance(value, A):
        return A(value.values, layout) if value.values.ndim else value
    return type(value)(_relaid(v, layout) for v in value) if isinstance(value, list | tuple) else value


def _layouts() -> Iterator[Call]:
    """Some calls of every operation, each with its arrays in memory in every way."""
    for make in list(FAMILIES.values())[:-1]:
        called: dict[str, list[Call]] = {}
        for call in make():
            called.setdefault(call.op, []).append(call)
        for calls in called.values():
            for call in calls[:: max(len(calls) // 9, 1)]:
                for layout in LAYOUTS:
                    args, options = _relaid(call.args, layout), {k: _relaid(v, layout) for k, v in call.options.items()}
                    yield Call(call.op, args, options)


FAMILIES = {
    "unary": _unary,
    "binary": _binary,
    "reductions": _reductions,
    "infinities": _infinities,
    "shaping": arrays.shaping,
    "indexing": arrays.indexing,
    "creation": _creation,
    "products": arrays.products,
    "matrices": arrays.matrices,
    "networks": arrays.networks,
    "control": _control,
    "random": _random,
    "layouts": _layouts,
}
