"""Every form of native kernel against the reference, over types, axes and attributes drawn by Hypothesis."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pyflame_rt
from pyflame_rt.graph import DType, Graph, Node, TensorInfo
from pyflame_rt.ops.core.evaluate import evaluate
from tests.tolerances import within

FLOATS = ("float32", "float64", "float16")
NUMBERS = (*FLOATS, "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
few = settings(max_examples=25, deadline=None)
shapes = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple)


def array(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    if dtype == "bool":
        return rng.random(shape) < 0.5
    if dtype.startswith("float"):
        return rng.standard_normal(shape).astype(dtype)
    low = 0 if dtype.startswith("u") else -20
    return rng.integers(low, 20, shape).astype(dtype)


def run(
    op: str, arrays: list[np.ndarray | None], *, constants: tuple[int, ...] = (), outputs: int = 1, **attributes: Any
):
    """What the engine makes of one node, and its explanation."""
    domain, _, name = op.rpartition("::")
    g = Graph("g")
    names = ["" if a is None else f"x{i}" for i, a in enumerate(arrays)]
    for i, a in enumerate(arrays):
        if a is None:
            continue
        if i in constants:
            g.add_initializer(names[i], a)
        else:
            g.add_input(TensorInfo(names[i], a.shape, DType.of(a.dtype)))
    made = [f"y{k}" for k in range(outputs)]
    g.add_node(Node("n", name, names, made, attributes, domain))
    for y in made:
        g.add_output(TensorInfo(y, None, DType.Float32))
    session = pyflame_rt.InferenceSession(g, providers=["CPUExecutionProvider"])
    feeds = {n: a for i, (n, a) in enumerate(zip(names, arrays, strict=True)) if a is not None and i not in constants}
    try:
        return session.run(None, feeds), session.explain()
    finally:
        session.close()


def check(op: str, arrays: list[np.ndarray | None], *, native: bool = True, **options: Any) -> None:
    """Equal to the reference, and native."""
    extra = {k: options.pop(k) for k in ("constants", "outputs") if k in options}
    got, explained = run(op, arrays, **extra, **options)
    domain, _, name = op.rpartition("::")
    names = ["" if a is None else f"x{i}" for i, a in enumerate(arrays)]
    node = Node("n", name, names, [f"y{k}" for k in range(extra.get("outputs", 1))], options, domain)
    wanted = evaluate(node, arrays)
    for a, b in zip(got, wanted, strict=False):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        rough = {"float16": 5e-3, "float32": 1e-5}.get(str(a.dtype), 1e-12)
        np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), rtol=rough, atol=rough)
    if native:
        assert explained.host_step_count == 0, explained.summary()


@few
@given(st.integers(0, 2**32 - 1), shapes, st.sampled_from((*NUMBERS, "bool")), st.sampled_from(("int32", "int64")))
def test_gather(seed, shape, dtype, index):
    rng = np.random.default_rng(seed)
    axis = int(rng.integers(len(shape)))
    picked = tuple(rng.integers(1, 5, int(rng.integers(0, 3))).tolist())
    places = np.asarray(rng.integers(-shape[axis], shape[axis], picked)).astype(index)
    check("Gather", [array(rng, shape, dtype), places], axis=axis)


@few
@given(st.integers(0, 2**32 - 1), shapes, st.sampled_from((*NUMBERS, "bool")), st.sampled_from(("int32", "int64")))
def test_gather_elements(seed, shape, dtype, index):
    rng = np.random.default_rng(seed)
    axis = int(rng.integers(len(shape)))
    picked = tuple(int(rng.integers(1, 7)) if k == axis else int(rng.integers(1, n + 1)) for k, n in enumerate(shape))
    places = rng.integers(-shape[axis], shape[axis], picked).astype(index)
    check("GatherElements", [array(rng, shape, dtype), places], axis=axis)


@few
@given(st.integers(0, 2**32 - 1), shapes, st.sampled_from(NUMBERS))
def test_gather_nd(seed, shape, dtype):
    rng = np.random.default_rng(seed)
    batch = int(rng.integers(len(shape)))
    depth = int(rng.integers(1, len(shape) - batch + 1))
    sizes = shape[batch : batch + depth]
    lead = (*shape[:batch], *rng.integers(1, 4, int(rng.integers(0, 3))).tolist())
    places = np.stack([rng.integers(-n, n, lead) for n in sizes], -1)
    check("GatherND", [array(rng, shape, dtype), places], batch_dims=batch)


@few
@given(
    st.integers(0, 2**32 - 1),
    shapes,
    st.sampled_from(NUMBERS),
    st.sampled_from(("none", "add", "mul", "max", "min")),
)
def test_scatter_elements(seed, shape, dtype, reduction):
    rng = np.random.default_rng(seed)
    axis = int(rng.integers(len(shape)))
    picked = tuple(int(rng.integers(1, n + 1)) for n in shape)
    if reduction == "none":  # which of several updates of one place stays is not said
        order = np.argsort(rng.random(shape), axis=axis)
        places = order[tuple(slice(0, n) for n in picked)]
    else:
        places = rng.integers(-shape[axis], shape[axis], picked)
    data, updates = array(rng, shape, dtype), array(rng, picked, dtype)
    check("ScatterElements", [data, places, updates], axis=axis, reduction=reduction)


@few
@given(st.integers(0, 2**32 - 1), shapes, st.sampled_from(NUMBERS), st.sampled_from(("none", "add", "mul", "max")))
def test_scatter_nd(seed, shape, dtype, reduction):
    rng = np.random.default_rng(seed)
    depth = int(rng.integers(1, len(shape) + 1))
    count = int(rng.integers(1, np.prod(shape[:depth]) + 1))
    flat = rng.permutation(int(np.prod(shape[:depth])))[:count]
    places = np.stack(np.unravel_index(flat, shape[:depth]), -1).astype(np.int64)
    updates = array(rng, (count, *shape[depth:]), dtype)
    check("ScatterND", [array(rng, shape, dtype), places, updates], reduction=reduction)


@pytest.mark.parametrize("op", ["Gather", "GatherElements", "GatherND", "ScatterND"])
def test_an_index_outside_is_refused(op):
    x = np.arange(4, dtype=np.float32)
    inputs = {"Gather": [x, np.array([9])], "GatherElements": [x, np.array([9])], "GatherND": [x, np.array([[9]])]}
    inputs["ScatterND"] = [x, np.array([[9]]), np.zeros(1, np.float32)]
    with pytest.raises(pyflame_rt.InputError, match="out of range"):
        run(op, inputs[op])


@few
@given(
    st.integers(0, 2**32 - 1),
    shapes,
    st.sampled_from(NUMBERS),
    st.sampled_from(("ArgMax", "ArgMin")),
    st.booleans(),
    st.booleans(),
)
def test_places_of_extremes(seed, shape, dtype, op, keep, last):
    rng = np.random.default_rng(seed)
    x = array(rng, shape, dtype)
    if dtype.startswith("float") and seed % 3 == 0:
        x.flat[int(rng.integers(x.size))] = np.nan
    if seed % 2:
        x = np.round(x / 4).astype(dtype)  # equal ones
    check(op, [x], axis=int(rng.integers(len(shape))), keepdims=int(keep), select_last_index=int(last))


@few
@given(st.integers(0, 2**32 - 1), shapes, st.sampled_from(NUMBERS), st.booleans(), st.booleans())
def test_running_sums(seed, shape, dtype, exclusive, reverse):
    rng = np.random.default_rng(seed)
    x, axis = array(rng, shape, dtype), np.array(rng.integers(-len(shape), len(shape)))
    check("CumSum", [x, axis], constants=(1,), exclusive=int(exclusive), reverse=int(reverse))


@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("op", ["CumSum", "CumProd"])
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_running_folds_of_half_the_bits_are_rounded_where_they_are_stored(dtype, op, exclusive):
    x = np.full(4100, 1 if op == "CumSum" else 1.0 + 2.0**-7, dtype)[: 4100 if op == "CumSum" else 900]
    (got,), _ = run(op, [x, np.array(0)], constants=(1,), exclusive=exclusive)
    fold, start = (np.cumsum, 0) if op == "CumSum" else (np.cumprod, 1)
    wide = fold(np.concatenate([[start], x[:-1]] if exclusive else [x], dtype=np.float32), dtype=np.float32)
    assert got.astype(np.float32).tolist() == wide.astype(dtype).astype(np.float32).tolist()


@few
@given(st.integers(0, 2**32 - 1), shapes, st.sampled_from(NUMBERS), st.booleans())
def test_top_k(seed, shape, dtype, largest):
    rng = np.random.default_rng(seed)
    axis = int(rng.integers(len(shape)))
    shape = (*shape[:axis], int(rng.integers(1, 70)), *shape[axis + 1 :])
    x = array(rng, shape, dtype)
    if dtype.startswith("float"):
        x = np.round(x * 4) / 4  # equal ones, and both zeros
        x.flat[int(rng.integers(x.size))] = -0.0
    k = np.array([rng.integers(0, shape[axis] + 1)])
    check("TopK", [x, k], constants=(1,), outputs=2, axis=axis, largest=int(largest))


@few
@given(
    st.integers(0, 2**32 - 1),
    st.lists(st.integers(2, 5), min_size=1, max_size=3).map(tuple),
    st.sampled_from(("constant", "reflect", "edge", "wrap")),
    st.sampled_from((*NUMBERS, "bool")),
)
def test_pad(seed, shape, mode, dtype):
    rng = np.random.default_rng(seed)
    low = -1 if mode == "constant" else 0
    pads = rng.integers(low, 8, 2 * len(shape))
    check("Pad", [array(rng, shape, dtype), pads], constants=(1,), mode=mode)


@few
@given(st.integers(0, 2**32 - 1), st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple))
def test_tile(seed, shape):
    rng = np.random.default_rng(seed)
    check("Tile", [array(rng, shape, "float32"), rng.integers(0, 4, len(shape))], constants=(1,))


@few
@given(st.integers(0, 2**32 - 1), shapes.filter(lambda s: len(s) > 1), st.sampled_from((*NUMBERS, "bool")))
def test_trilu(seed, shape, dtype):
    rng = np.random.default_rng(seed)
    check("Trilu", [array(rng, shape, dtype), np.array(rng.integers(-4, 5))], constants=(1,), upper=int(seed % 2))


@few
@given(st.integers(0, 2**32 - 1), shapes, st.sampled_from(("ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd")))
def test_reductions_over_any_axes(seed, shape, op):
    rng = np.random.default_rng(seed)
    dtypes = ("float32", "float64", "int32", "int64") + (
        ("bool", "int8", "uint8") if op in ("ReduceMax", "ReduceMin") else ()
    )
    count = int(rng.integers(0, len(shape) + 1))
    axes = np.sort(rng.permutation(len(shape))[:count])
    x = array(rng, shape, dtypes[seed % len(dtypes)])
    check(op, [x, axes], constants=(1,), keepdims=int(seed % 2), noop_with_empty_axes=int(seed // 2 % 2))


@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceMean"])
def test_a_reduction_of_nothing(op):
    with np.errstate(all="ignore"):
        check(op, [np.zeros((2, 0, 3), np.float32), np.array([1])], constants=(1,))


@few
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from(("AveragePool", "MaxPool", "LpPool")),
    st.integers(1, 3),
    st.booleans(),
    st.booleans(),
)
@pytest.mark.filterwarnings("ignore")
def test_pooling_in_odd_forms(seed, op, rank, ceil, count):
    rng = np.random.default_rng(seed)
    kernel = rng.integers(1, 4, rank).tolist()
    attributes: dict[str, Any] = {
        "kernel_shape": kernel,
        "strides": rng.integers(1, 4, rank).tolist(),
        "dilations": rng.integers(1, 3, rank).tolist(),
        "pads": [int(rng.integers(0, k)) for k in (*kernel, *kernel)],
        "ceil_mode": int(ceil),
    }
    if op == "AveragePool":
        attributes["count_include_pad"] = int(count)
    x = array(rng, (2, 3, *rng.integers(7, 11, rank).tolist()), "float32")
    outputs = 2 if op == "MaxPool" and count else 1
    check(op, [x], outputs=outputs, **attributes)


@few
@given(st.integers(0, 2**32 - 1), st.integers(1, 3), st.sampled_from((1, 2)))
def test_transposed_convolution(seed, rank, groups):
    rng = np.random.default_rng(seed)
    strides = rng.integers(1, 4, rank).tolist()
    attributes = {
        "strides": strides,
        "dilations": rng.integers(1, 3, rank).tolist(),
        "pads": rng.integers(0, 2, 2 * rank).tolist(),
        "output_padding": [int(rng.integers(0, s)) for s in strides],
        "group": groups,
    }
    x = array(rng, (2, 4, *rng.integers(3, 6, rank).tolist()), "float32")
    w = array(rng, (4, 3, *rng.integers(2, 4, rank).tolist()), "float32")
    b = array(rng, (3 * groups,), "float32")
    check("ConvTranspose", [x, w, b], constants=(1, 2) if seed % 2 else (), native=False, **attributes)


@few
@given(st.integers(0, 2**32 - 1), st.sampled_from(("float64", "float16", "int32", "int64", "uint32")))
def test_products_in_every_type(seed, dtype):
    rng = np.random.default_rng(seed)
    m, k, n = rng.integers(1, 6, 3).tolist()
    forms = [((m, k), (k, n)), ((k,), (k, n)), ((m, k), (k,)), ((2, m, k), (k, n)), ((2, 1, m, k), (3, k, n))]
    left, right = forms[seed % len(forms)]
    check("MatMul", [array(rng, left, dtype), array(rng, right, dtype)])


@few
@given(st.integers(0, 2**32 - 1), st.sampled_from(("float64", "float16")), st.sampled_from((1, 2)))
def test_convolutions_in_every_type(seed, dtype, groups):
    rng = np.random.default_rng(seed)
    x, w = array(rng, (2, 4, 7, 6), dtype), array(rng, (6, 4 // groups, 3, 2), dtype)
    b = array(rng, (6,), dtype)
    options = {"pads": [1, 0, 1, 1], "strides": [1, 2], "dilations": [2, 1], "group": groups}
    check("Conv", [x, w, b], **options)


@few
@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.booleans(), st.integers(1, 2))
def test_fourier_transforms(seed, length, onesided, parts):
    rng = np.random.default_rng(seed)
    parts = 1 if onesided else parts
    x = array(rng, (2, length, 3, parts), "float32")
    got, _ = run("DFT", [x, None, np.array(1)], constants=(2,), onesided=int(onesided))
    signal = x[..., 0] if parts == 1 else x[..., 0] + 1j * x[..., 1]
    wanted = np.fft.rfft(signal, axis=1) if onesided else np.fft.fft(signal, axis=1)
    np.testing.assert_allclose(got[0], np.stack([wanted.real, wanted.imag], -1), **within("layers"))


@pytest.mark.parametrize("op", ["Acos", "Asin", "Atan", "Acosh", "Asinh", "Atanh", "Cosh", "Sinh", "Tan"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_functions(op, dtype):
    x = np.linspace(-0.99, 0.99, 37) + (2 if op == "Acosh" else 0)
    check(op, [x.astype(dtype)])


@few
@given(st.integers(0, 2**32 - 1), st.sampled_from(("uint8", "uint16", "uint32", "uint64")))
def test_bits(seed, dtype):
    rng = np.random.default_rng(seed)
    a, b = rng.integers(0, 200, (2, 33)).astype(dtype)
    for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor"):
        check(op, [a, b])
    check("BitwiseNot", [a])
    for direction in ("LEFT", "RIGHT"):
        check("BitShift", [a, (b % 8).astype(dtype)], direction=direction)


@few
@given(st.integers(0, 2**32 - 1), st.sampled_from(NUMBERS), st.sampled_from((*NUMBERS, "bool")))
def test_casts(seed, source, target):
    rng = np.random.default_rng(seed)
    x = np.abs(array(rng, (3, 17), source)) if target.startswith("u") else array(rng, (3, 17), source)
    check("Cast", [x], to=DType.of(target).onnx)


# ---------------------------------------------------------------------- 8-bit integers


@few
@given(st.integers(0, 2**32 - 1), st.sampled_from((("uint8", "int8"), ("int8", "int8"), ("uint8", "uint8"))))
def test_integer_products_are_exact(seed, dtypes):
    """Extremes, which saturate where 8-bit instructions add pairs in 16 bits; short and long sums."""
    rng = np.random.default_rng(seed)
    depth = int(rng.choice([3, 64, 300, 1100]))
    a, b = (
        rng.choice([np.iinfo(d).min, np.iinfo(d).max, 3], shape).astype(d)
        for d, shape in zip(dtypes, ((5, depth), (depth, 6)), strict=True)
    )
    zero_a = rng.integers(0, 100, (5,) if seed % 3 == 0 else ()).astype(dtypes[0])
    zero_b = rng.integers(0, 100, (6,) if seed % 5 == 0 else ()).astype(dtypes[1])
    constants = (1, 3) if seed % 2 else ()
    got, explained = run("MatMulInteger", [a, b, zero_a, zero_b], constants=constants)
    left = a.astype(np.int64) - (zero_a[:, None] if zero_a.ndim else zero_a)
    assert got[0].dtype == np.int32
    np.testing.assert_array_equal(got[0], left @ (b.astype(np.int64) - zero_b))
    assert explained.host_step_count == 0


@few
@given(st.integers(0, 2**32 - 1), st.sampled_from(("int8", "uint8")), st.sampled_from((1, 2)))
def test_integer_convolutions_are_exact(seed, dtype, groups):
    rng = np.random.default_rng(seed)
    x = rng.choice([0, 255, 7], (2, 8, 6, 5)).astype(np.uint8)
    limits = np.iinfo(dtype)
    w = rng.choice([limits.min, limits.max, 1], (4, 8 // groups, 3, 3)).astype(dtype)
    zeros = [np.array(9, np.uint8), np.array(2, dtype)]
    check("ConvInteger", [x, w, *zeros], constants=(1, 3) if seed % 2 else (), pads=[1, 1, 0, 1], group=groups)


@pytest.mark.parametrize("channels", [16, 64])
def test_integer_convolutions_do_not_go_through_fractions(channels):
    """Winograd's filtering is right within rounding only, which is not enough for integers."""
    rng = np.random.default_rng(channels)
    x = rng.integers(0, 256, (1, channels, 20, 24)).astype(np.uint8)
    w = rng.integers(-40, 40, (32, channels, 3, 3)).astype(np.int8)
    zeros = [np.array(100, np.uint8), np.array(0, np.int8)]
    check("ConvInteger", [x, w, *zeros], constants=(1, 3), pads=[1, 1, 1, 1])


@few
@given(st.integers(0, 2**32 - 1))
def test_dynamic_quantization(seed):
    rng = np.random.default_rng(seed)
    check("DynamicQuantizeLinear", [array(rng, (7, 33), "float32")], outputs=3)
