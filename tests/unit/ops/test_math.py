"""Functions of one number, against the math module and each other's libraries."""

import math

import ml_dtypes
import numpy as np
import pytest

from pyflame_rt.graph import DType, Node, Shape, TensorType
from pyflame_rt.ops import Context, Value, evaluate, get_op
from pyflame_rt.ops.core.trace import infer_outputs

LIBRARIES = ("numpy", "torch", "mlx")
FUNCTIONS = {
    "Exp": math.exp,
    "Log": math.log,
    "Sqrt": math.sqrt,
    "Erf": math.erf,
    "Sin": math.sin,
    "Cos": math.cos,
    "Tan": math.tan,
    "Asin": math.asin,
    "Acos": math.acos,
    "Atan": math.atan,
    "Sinh": math.sinh,
    "Cosh": math.cosh,
    "Tanh": math.tanh,
    "Asinh": math.asinh,
    "Acosh": math.acosh,
    "Atanh": math.atanh,
}


def run(op, array, library="numpy", **attributes):
    context = Context.of(library)
    node = Node("n", op, ["x"], ["y"], attributes)
    moved = context.library.from_numpy(array) if context.library.supports(array.dtype) else array
    (result,) = evaluate(node, [moved], context)
    return context.library.to_numpy(result) if context.library.is_array(result) else result


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("op", FUNCTIONS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 2e-6), (np.float16, 2e-3), (ml_dtypes.bfloat16, 2e-2)])
def test_function(op, dtype, tolerance, library):
    x = (np.array([0.25, 0.5, 0.75]) + (op == "Acosh")).astype(dtype)
    result = run(op, x, library)
    assert result.dtype == x.dtype
    expected = [FUNCTIONS[op](float(v)) for v in x]
    np.testing.assert_allclose(result.astype(np.float64), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("op", FUNCTIONS)
def test_double_precision(op):
    x = np.array([0.25, 0.5, 0.75]) + (op == "Acosh")
    np.testing.assert_allclose(run(op, x), [FUNCTIONS[op](v) for v in x], rtol=1e-14)


@pytest.mark.parametrize("library", LIBRARIES)
def test_rounding(library):
    x = np.float32([-2.5, -1.5, -0.5, 0.5, 1.5, 2.4])
    assert run("Round", x, library).tolist() == [-2, -2, -0.0, 0, 2, 2]
    assert run("Floor", x, library).tolist() == [-3, -2, -1, 0, 1, 2]
    assert run("Ceil", x, library).tolist() == [-2, -1, -0.0, 1, 2, 3]


def test_erf_of_integers_as_opset_9_had_it():
    assert run("Erf", np.array([-3, 0, 9], np.int8)).tolist() == [0, 0, 1]


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2])
def test_infinities_by_sign(library, dtype):
    x = np.array([np.inf, -np.inf, np.nan, 1.0]).astype(dtype)
    assert run("IsInf", x, library).tolist() == [True, True, False, False]
    assert run("IsInf", x, library, detect_negative=0).tolist() == [True, False, False, False]
    assert run("IsInf", x, library, detect_positive=0).tolist() == [False, True, False, False]
    neither = run("IsInf", x, library, detect_positive=0, detect_negative=0)
    assert neither.tolist() == [False] * 4
    assert run("IsNaN", x, library).tolist() == [False, False, True, False]


@pytest.mark.parametrize("op", ["Exp", "Floor", "IsNaN"])
def test_infer(op):
    found = get_op(op)
    x = Value("x", TensorType(DType.Float32, Shape(["N", None, 3])))
    kind = infer_outputs(found, [x], found.signature.bind({}, op))[0].type
    assert kind.shape == x.shape
    assert kind.dtype is (DType.Bool if op == "IsNaN" else DType.Float32)
