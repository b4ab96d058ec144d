"""Reductions: axes in every form, nothing to reduce, integers, running sums, older opsets."""

import ml_dtypes
import numpy as np
import onnx.helper as oh
import onnxruntime
import pytest

from pyflame_rt.graph import DType, Node, Shape, TensorType, symbol
from pyflame_rt.graph.errors import PyFlameRTError, ShapeMismatchError
from pyflame_rt.importers.onnx_importer import graph_from_bytes
from pyflame_rt.ops import Context, Program, Value, evaluate, get_op
from pyflame_rt.ops.core.trace import infer_outputs

LIBRARIES = ("numpy", "torch", "mlx")
ORACLES = {
    "ReduceSum": np.sum,
    "ReduceMean": np.mean,
    "ReduceMax": np.max,
    "ReduceMin": np.min,
    "ReduceProd": np.prod,
    "ReduceL1": lambda x, **k: np.sum(np.abs(x), **k),
    "ReduceL2": lambda x, **k: np.sqrt(np.sum(x * x, **k)),
    "ReduceLogSum": lambda x, **k: np.log(np.sum(x, **k)),
    "ReduceLogSumExp": lambda x, **k: np.log(np.sum(np.exp(x), **k)),
    "ReduceSumSquare": lambda x, **k: np.sum(x * x, **k),
}
ELEMENTWISE = {
    "ReduceL1": np.abs,
    "ReduceL2": np.abs,
    "ReduceLogSum": np.log,
    "ReduceSumSquare": np.square,
}


def run(op, *arrays, library="numpy", **attributes):
    context = Context.of(library)
    names = [f"i{i}" for i in range(len(arrays))]
    moved = [None if a is None else context.library.from_numpy(a) for a in arrays]
    (result,) = evaluate(Node("n", op, names, ["o"], attributes), moved, context)
    return context.library.to_numpy(result)


def value(dtype, shape, known=None):
    return Value("v", TensorType(dtype, None if shape is None else Shape(shape)), known)


def infer(op, *values, **attributes):
    found = get_op(op)
    return infer_outputs(found, values, found.signature.bind(attributes, op))[0]


def axes_value(*axes):
    return value(DType.Int64, [len(axes)], np.array(axes, np.int64))


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("op", ORACLES)
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axes", [None, [], [1], [-1, 0]], ids=str)
def test_reduction(op, axes, keepdims, library):
    x = np.random.default_rng(0).uniform(0.5, 1.5, (2, 3, 4)).astype(np.float32)
    given = None if axes is None else np.array(axes, np.int64)
    along = tuple(axes) if axes else None
    expected = ORACLES[op](x, axis=along, keepdims=bool(keepdims))
    result = run(op, x, given, library=library, keepdims=keepdims)
    np.testing.assert_allclose(result, expected, rtol=1e-5)
    known = None if given is None else value(DType.Int64, given.shape, given)
    kind = infer(op, value(DType.Float32, x.shape), known, keepdims=keepdims).type
    assert kind == TensorType(DType.Float32, Shape(result.shape))


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("op", ORACLES)
def test_no_axes_may_mean_no_reduction(op, library):
    x = np.float32([[0.5, 1.5]])
    expected = ELEMENTWISE.get(op, lambda v: v)(x)
    for axes in (None, np.array([], np.int64)):
        result = run(op, x, axes, library=library, noop_with_empty_axes=1, keepdims=0)
        np.testing.assert_allclose(result, expected, rtol=1e-6)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(
    ("op", "expected"),
    [("ReduceSum", 0), ("ReduceProd", 1), ("ReduceMax", -np.inf), ("ReduceMin", np.inf),
     ("ReduceL1", 0), ("ReduceL2", 0), ("ReduceLogSum", -np.inf), ("ReduceLogSumExp", -np.inf)],
)  # fmt: skip
def test_reduction_of_nothing(op, expected, library):
    x = np.zeros((2, 0, 3), np.float32)
    result = run(op, x, np.array([1]), library=library, keepdims=0)
    np.testing.assert_array_equal(result, np.full((2, 3), expected, np.float32))


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int64, bool])
def test_extremes_of_nothing_in_integers(dtype, library):
    x = np.zeros((0, 2), dtype)
    low, high = (False, True) if dtype is bool else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    assert run("ReduceMax", x, np.array([0]), library=library).tolist() == [[low, low]]
    assert run("ReduceMin", x, np.array([0]), library=library).tolist() == [[high, high]]


@pytest.mark.parametrize("library", LIBRARIES)
def test_truth_values(library):
    x = np.array([[True, False], [False, False]])
    assert run("ReduceMax", x, np.array([1]), library=library, keepdims=0).tolist() == [True, False]
    assert run("ReduceMin", x, np.array([1]), library=library, keepdims=0).tolist() == [False, False]


def ort(op, x, opset, **attributes):
    session = onnxruntime.InferenceSession(model_of(op, x, opset, **attributes), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


def model_of(op, x, opset, **attributes):
    kind = oh.np_dtype_to_tensor_dtype(x.dtype)
    graph = oh.make_graph(
        [oh.make_node(op, ["x"], ["y"], **attributes)],
        "g",
        [oh.make_tensor_value_info("x", kind, x.shape)],
        [oh.make_tensor_value_info("y", kind if op.startswith("Reduce") else 7, None)],
    )
    return oh.make_model(graph, opset_imports=[oh.make_opsetid("", opset)], ir_version=8).SerializeToString()


@pytest.mark.parametrize("op", ORACLES)
@pytest.mark.parametrize("opset", [1, 11, 12])
@pytest.mark.parametrize("axes", [None, [0, 2]])
def test_axes_used_to_be_an_attribute(op, opset, axes):
    x = np.random.default_rng(0).uniform(0.5, 1.5, (2, 3, 4)).astype(np.float32)
    given = {"keepdims": 0} if axes is None else {"axes": axes}
    program = Program(graph_from_bytes(model_of(op, x, opset, **given)))
    result = program.run([x], Context.of("numpy"))[0]
    np.testing.assert_allclose(result, ort(op, x, max(opset, 11), **given), rtol=1e-5)


@pytest.mark.parametrize("op", ["ReduceMean", "ReduceL2", "ReduceSumSquare", "ReduceL1", "ReduceLogSum"])
def test_integers_round_towards_zero(op):
    x = np.array([[1, 2], [7, 4]], np.int32)
    np.testing.assert_array_equal(run(op, x, np.array([1])), ort(op, x, 13, axes=[1]))


@pytest.mark.parametrize("library", LIBRARIES)
def test_half_precision_sums_are_wide(library):
    x = np.full((4096,), 0.1, np.float16)
    assert run("ReduceSum", x, library=library).item() == pytest.approx(409.5, rel=1e-3)
    assert run("ReduceL2", np.full((4,), 300, np.float16), library=library).item() == 600
    b = np.full((3000,), 1, ml_dtypes.bfloat16)
    assert run("ReduceSum", b, library=library).astype(np.float32).tolist() == [3008]


@pytest.mark.parametrize("library", LIBRARIES)
def test_log_sum_exp_at_the_ends(library):
    inf = np.inf
    x = np.float32([[1000, 1000], [-inf, -inf], [inf, 0]])
    expected = np.float32([1000 + np.log(2), -inf, inf])
    np.testing.assert_allclose(
        run("ReduceLogSumExp", x, np.array([1]), library=library, keepdims=0), expected, rtol=1e-6
    )


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.int8, np.uint8])
def test_places(library, dtype):
    x = np.array([[3, 1, 3], [0, 0, 2]]).astype(dtype)
    assert run("ArgMax", x, library=library, axis=1, keepdims=0).tolist() == [0, 2]
    assert run("ArgMax", x, library=library, axis=1, select_last_index=1).tolist() == [[2], [2]]
    assert run("ArgMin", x, library=library, axis=-1, keepdims=0).tolist() == [1, 0]
    assert run("ArgMin", x, library=library, axis=1, select_last_index=1, keepdims=0).tolist() == [1, 1]
    assert run("ArgMax", x, library=library).dtype == np.int64


def test_no_place_in_nothing():
    with pytest.raises(PyFlameRTError, match=r"node 'n'.*axis 0 is empty"):
        run("ArgMax", np.zeros((0, 2), np.float32))


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.int64, np.float64])
def test_running_sums_and_products(library, dtype):
    x, axis = np.array([[1, 2, 3], [4, 5, 6]], dtype), np.array(-1)
    for op, first, full in (("CumSum", 0, np.cumsum), ("CumProd", 1, np.cumprod)):
        plain = run(op, x, axis, library=library)
        assert plain.dtype == dtype
        np.testing.assert_array_equal(plain, full(x, axis=1))
        shifted = run(op, x, axis, library=library, exclusive=1)
        np.testing.assert_array_equal(shifted, np.c_[[first] * 2, full(x, axis=1)[:, :-1]])
        back = run(op, x, axis, library=library, exclusive=1, reverse=1)
        np.testing.assert_array_equal(back, np.c_[full(x[:, ::-1], axis=1)[:, ::-1][:, 1:], [first] * 2])


def test_infer_with_symbols_and_unknown_axes():
    x = value(DType.Float32, ["N", 3, None])
    n = symbol("N")
    assert infer("ReduceSum", x, axes_value(1)).type.shape == [n, 1, None]
    assert infer("ReduceSum", x, axes_value(-1), keepdims=0).type.shape == [n, 3]
    later = value(DType.Int64, [2])
    assert infer("ReduceMax", x, later).type.shape == [None, None, None]
    assert infer("ReduceMax", x, later, keepdims=0).type.shape == [None]
    assert infer("ReduceMax", x, value(DType.Int64, None), keepdims=0).type.shape is None
    assert infer("ReduceL2", value(DType.Float32, None)).type == TensorType(DType.Float32)
    assert str(infer("ArgMax", x, axis=1, keepdims=0).type) == "int64[N, None]"
    with pytest.raises(ShapeMismatchError, match="axes 3"):
        infer("ReduceSum", x, axes_value(3))
    with pytest.raises(ShapeMismatchError, match="twice"):
        infer("ReduceSum", x, axes_value(0, -3))


def test_products_of_symbolic_sizes():
    sizes = value(DType.Int64, [2], np.array([symbol("N"), 4], object))
    assert infer("ReduceProd", sizes, keepdims=0).known.item() == symbol("N") * 4
    assert infer("ReduceSum", sizes).known.tolist() == [symbol("N") + 4]
