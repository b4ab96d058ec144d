"""Elementwise operations and activations give on every library what NumPy gives."""

import numpy as np
from scipy import special

FLOATS = ("float32", "float16")
WITH_BF16 = (*FLOATS, "bfloat16")
NUMBERS = ("float32", "float16", "int32", "int64", "int8")
INTS = ("int32", "int64", "uint8")

rng = np.random.default_rng(20)
V = np.round(rng.uniform(-3, 3, (3, 4)), 2)
W = np.round(rng.uniform(-3, 3, (3, 4)), 2)
W[W == 0] = 1.0
POS = np.abs(V) + 0.25
UNIT = np.clip(V / 4, -0.9, 0.9)
NAN = np.array([1.0, np.nan, np.inf, -np.inf, 0.0])


def row(op, args, reference, dtypes=FLOATS, options=None):
    return op, args, reference, dtypes, options or {}


def unary(names, x, dtypes=FLOATS, module=np):
    return [row(n, (x,), getattr(module, n), dtypes) for n in names.split()]


def sigmoid(x):
    """The textbook formula."""
    return 1 / (1 + np.exp(-x))


def softmax(x):
    """Over the last axis."""
    raised = np.exp(x - x.max(-1, keepdims=True))
    return raised / raised.sum(-1, keepdims=True)


SAMPLES = [
    *unary("exp expm1 sin cos tan arctan sinh cosh tanh arcsinh", V, WITH_BF16),
    *unary("log log1p log2 log10 sqrt cbrt", POS, WITH_BF16),
    *unary("exp2", V),
    *unary("arcsin arccos arctanh", UNIT),
    *unary("negative abs sign square positive", V, NUMBERS),
    *unary("floor ceil trunc", V, NUMBERS),
    row("floor", (V,), np.floor, ("bfloat16", "uint8", "bool")),
    row("sign", (NAN,), np.sign),
    row("arccosh", (POS + 1,), np.arccosh),
    row("rsqrt", (POS,), lambda x: 1 / np.sqrt(x)),
    row("reciprocal", (POS,), lambda x: 1 / x),
    row("round", (np.array([0.5, 1.5, 2.5, -0.5, 1.25]),), np.round, NUMBERS),
    row("round", (POS,), lambda x: np.round(x, 1), options={"decimals": 1}),
    *unary("erf erfc", V, WITH_BF16, special),
    row("erfinv", (UNIT,), special.erfinv),
    row("lgamma", (POS + 1,), special.gammaln),
    row("gammaln", (POS + 1,), special.gammaln),
    row("digamma", (POS + 1,), special.digamma),
    *unary("isnan isinf isfinite", NAN),
    *unary("isnan isinf isfinite", V, ("int32", "bool")),
    row("isposinf", (NAN,), lambda x: x == np.inf),
    row("isneginf", (NAN,), lambda x: x == -np.inf),
    row(
        "nan_to_num",
        (NAN,),
        lambda x: np.nan_to_num(x, posinf=9.0, neginf=-9.0),
        options={"posinf": 9.0, "neginf": -9.0},
    ),
    *unary("deg2rad rad2deg", V),
    *unary("conj real imag angle", V),
    *[
        row(n, (V, W), getattr(np, n), (*NUMBERS, "bfloat16"))
        for n in ("add", "subtract", "multiply", "maximum", "minimum")
    ],
    *[row(n, (V > 0, W > 0), getattr(np, n), ("bool",)) for n in ("add", "multiply", "maximum", "minimum")],
    row("add", (V, 2.5), np.add),
    row("add", (1, V), np.add, NUMBERS),
    row("divide", (V, W), np.divide, WITH_BF16),
    row("true_divide", (V, W), np.divide),
    row("floor_divide", (V * 4, W), np.floor_divide, ("float32",)),
    *[
        row(
            n,
            (np.arange(-6.0, 6.0), np.array([-3.0, 2.0, 5.0] * 4)),
            getattr(np, n),
            ("float32", "float16", "int8", "int32", "int64"),
        )
        for n in ("floor_divide", "mod", "remainder", "fmod")
    ],
    *[
        row(n, (np.arange(6.0), np.array([3.0, 0.0, 5.0] * 2)), getattr(np, n), INTS)
        for n in ("floor_divide", "mod", "fmod")
    ],
    row(
        "truncate_divide",
        (np.arange(-6.0, 6.0), np.array([-3.0, 2.0, 5.0] * 4)),
        lambda a, b: np.trunc(a / b),
        ("float32", "int8", "int32", "int64"),
    ),
    row("power", (POS, W), np.power, WITH_BF16),
    row("pow", (np.array([2.0, -3.0, 1.0]), np.array([3.0, 3.0, 0.0])), np.power, NUMBERS),
    *[row(n, (V, W), getattr(np, n)) for n in ("arctan2", "hypot", "logaddexp", "fmax", "fmin")],
    row("fmax", (NAN, np.zeros(5)), np.fmax),
    row("fmin", (NAN, np.zeros(5)), np.fmin),
    row("maximum", (NAN, np.zeros(5)), np.maximum),
    row("clip", (V, -1.0, 2.0), np.clip, NUMBERS),
    *[
        row(
            n,
            (np.arange(8.0), np.arange(8.0)[::-1].copy()),
            lambda a, b, n=n: getattr(np, n)(a.astype(int), b.astype(int)),
            INTS,
        )
        for n in ("bitwise_and", "bitwise_or", "bitwise_xor")
    ],
    row("bitwise_not", (np.arange(8.0),), lambda a: ~a.astype(int), ("int32", "int64")),
    row("invert", (np.array([1.0, 0.0]),), lambda a: ~a.astype(bool), ("bool",)),
    row("left_shift", (np.arange(4.0), np.array([1.0, 2.0, 3.0, 4.0])), lambda a, b: a * 2**b, INTS),
    row("right_shift", (np.array([64.0, 9.0, 7.0]), np.array([3.0, 1.0, 2.0])), lambda a, b: a // 2**b, INTS),
    row("absolute", (V,), np.abs),
    row("sigmoid", (V * 10,), sigmoid, WITH_BF16),
    row("log_sigmoid", (V,), lambda x: np.log(sigmoid(x)), WITH_BF16),
    row("relu", (V,), lambda x: np.maximum(x, 0), NUMBERS),
    row("relu6", (V * 4,), lambda x: np.clip(x, 0, 6)),
    row("softplus", (V * 9,), lambda x: np.logaddexp(x, 0), WITH_BF16),
    row("softsign", (V,), lambda x: x / (1 + np.abs(x))),
    row("silu", (V,), lambda x: x * sigmoid(x), WITH_BF16),
    row("swish", (V,), lambda x: x * sigmoid(x)),
    row("mish", (V,), lambda x: x * np.tanh(np.logaddexp(x, 0)), WITH_BF16),
    row("gelu", (V,), lambda x: x / 2 * (1 + special.erf(x / 2**0.5)), WITH_BF16),
    row(
        "gelu",
        (V,),
        lambda x: x / 2 * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3))),
        options={"approximate": True},
    ),
    row("elu", (V, 0.5), lambda x, a: np.where(x > 0, x, a * np.expm1(x))),
    row("celu", (V, 0.5), lambda x, a: np.maximum(x, 0) + a * np.expm1(np.minimum(x, 0) / a)),
    row("selu", (V,), lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x))),
    row("leaky_relu", (V,), lambda x: np.where(x > 0, x, 0.2 * x)),
    row("hard_sigmoid", (V,), lambda x: np.clip(x / 6 + 0.5, 0, 1)),
    row("hard_swish", (V,), lambda x: x * np.clip(x / 6 + 0.5, 0, 1)),
    row("hard_silu", (V,), lambda x: x * np.clip(x / 6 + 0.5, 0, 1)),
    row("softmax", (V,), softmax, WITH_BF16),
    row("softmax", (V,), lambda x: softmax(x.reshape(-1)).reshape(x.shape), options={"axis": (0, 1)}),
    row("softmax", (V,), lambda x: softmax(x.T).T, options={"axis": 0}),
    row("log_softmax", (V,), lambda x: np.log(softmax(x)), WITH_BF16),
    row("linear", (V,), lambda x: x),
]


def test_equals_numpy(sample, name, check):
    check(sample, name)
