"""Arithmetic: element types, symbolic sizes, older forms, gradients of broadcasting."""

import ml_dtypes
import numpy as np
import onnx.helper as oh
import pytest

from pyflame_rt.graph import DType, Graph, Node, Shape, TensorType, symbol
from pyflame_rt.graph.errors import DTypeMismatchError, PyFlameRTError, ShapeMismatchError
from pyflame_rt.importers.onnx_importer import graph_from_bytes
from pyflame_rt.ops import Context, Program, Value, evaluate, get_op, infer_types
from pyflame_rt.ops.core.trace import infer_outputs

LIBRARIES = ("numpy", "torch", "mlx")


def run(op, *arrays, library="numpy", domain="", **attributes):
    context = Context.of(library)
    names = [f"i{i}" for i in range(len(arrays))]
    moved = [context.library.from_numpy(a) for a in arrays]
    (result,) = evaluate(Node("n", op, names, ["o"], attributes, domain), moved, context)
    return context.library.to_numpy(result)


def value(dtype, shape, known=None):
    return Value("v", TensorType(dtype, None if shape is None else Shape(shape)), known)


def infer(op, *values, **attributes):
    found = get_op(op)
    return infer_outputs(found, values, found.signature.bind(attributes, op))[0]


def run_model(op, arrays, opset, **attributes):
    """One node of an old opset, through the importer and its upgrades."""
    names = [f"i{i}" for i in range(len(arrays))]
    infos = [
        oh.make_tensor_value_info(n, oh.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in zip(names, arrays, strict=True)
    ]
    out = oh.make_tensor_value_info("o", infos[0].type.tensor_type.elem_type, None)
    graph = oh.make_graph([oh.make_node(op, names, ["o"], **attributes)], "g", infos, [out])
    model = oh.make_model(graph, opset_imports=[oh.make_opsetid("", opset)], ir_version=8)
    program = Program(graph_from_bytes(model.SerializeToString()))
    return program.run(list(arrays), Context.of("numpy"))[0]


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(
    ("base", "power", "expected"),
    [
        (np.array([3, -2], np.int32), np.array([2.0, 3.0], np.float32), np.array([9, -8], np.int32)),
        (np.array([2.0, 3.0], np.float32), np.array([3, -1], np.int64), np.float32([8, 1 / 3])),
        (np.array([46340], np.int32), np.array([2], np.int64), np.array([2147395600], np.int32)),
        (np.array([2.0], np.float16), np.array([0.5], np.float64), np.float16([2**0.5])),
        (np.array([2, 1, -1], np.int64), np.array([-1, -5, -3], np.int64), np.array([0, 1, -1])),
    ],
)
def test_pow_answers_in_the_type_of_the_base(library, base, power, expected):
    result = run("Pow", base, power, library=library)
    assert result.dtype == expected.dtype
    np.testing.assert_allclose(result, expected, rtol=1e-6)


@pytest.mark.parametrize("library", LIBRARIES)
def test_mod_special_values(library):
    inf, nan = np.inf, np.nan
    a = np.float32([5.5, -5.5, 1.0, -1.0, inf, 3.0, nan])
    b = np.float32([3.0, 3.0, inf, inf, 2.0, 0.0, 1.0])
    np.testing.assert_array_equal(run("Mod", a, b, library=library), np.float32([2.5, 0.5, 1, inf, nan, nan, nan]))
    np.testing.assert_array_equal(
        run("Mod", a, b, library=library, fmod=1), np.float32([2.5, -2.5, 1, -1, nan, nan, nan])
    )


@pytest.mark.parametrize("library", LIBRARIES)
def test_integer_division_rounds_towards_zero(library):
    a, b = np.array([-7, 7, -7, 7], np.int32), np.array([2, -2, -2, 2], np.int32)
    np.testing.assert_array_equal(run("Div", a, b, library=library), [-3, -3, 3, 3])


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("op", ["Max", "Min"])
def test_extremes_keep_nan_and_broadcast(library, op):
    a, b = np.float32([[1, np.nan], [3, 4]]), np.float32([2, 2])
    expected = getattr(np, {"Max": "maximum", "Min": "minimum"}[op])(a, b)
    np.testing.assert_array_equal(run(op, a, b, library=library), expected)


def test_mean_and_sum_of_bfloat16():
    a = np.array([1, 2, 3], ml_dtypes.bfloat16)
    assert run("Mean", a, a + a, a).astype(np.float32).tolist() == pytest.approx([4 / 3, 8 / 3, 4.0], rel=1e-2)
    assert run("Sum", a).dtype == ml_dtypes.bfloat16


def test_infer_keeps_symbols_and_propagates_sizes():
    n = symbol("N")
    wide = infer("Add", value(DType.Float32, ["N", 1, 3]), value(DType.Float32, [4, 1]))
    assert wide.type == TensorType(DType.Float32, Shape([n, 4, 3]))
    sizes = np.array([n, 4], object)
    known = value(DType.Int64, [2], sizes)
    assert infer("Mul", known, value(DType.Int64, [], np.array(2))).known.tolist() == [n * 2, 8]
    halved = infer("Div", known, value(DType.Int64, [], np.array(2))).known.tolist()
    assert halved[1] == 2
    assert halved[0] == n // 2
    assert infer("Max", known, value(DType.Int64, [], np.array(2))).known is None


@pytest.mark.parametrize("op", ["Add", "Max", "Mod"])
def test_infer_refuses_what_does_not_fit(op):
    with pytest.raises(ShapeMismatchError, match="broadcast"):
        infer(op, value(DType.Float32, [2]), value(DType.Float32, [3]))
    with pytest.raises(DTypeMismatchError, match="float32 and int64"):
        infer(op, value(DType.Float32, [2]), value(DType.Int64, [2]))


def test_unknown_rank_stays_unknown():
    assert infer("Add", value(DType.Float32, None), value(DType.Float32, [3])).type == TensorType(DType.Float32)


def test_mod_refuses_other_flags():
    with pytest.raises(PyFlameRTError, match=r"node 'n'.*fmod"):
        run("Mod", np.int32([1]), np.int32([1]), fmod=2)


@pytest.mark.parametrize("opset", [1, 6])
@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Pow"])
def test_legacy_broadcast_lines_up_from_an_axis(op, opset):
    a = np.random.default_rng(0).uniform(1, 2, (2, 3, 4, 5)).astype(np.float32)
    b = np.random.default_rng(1).uniform(1, 2, (3, 4)).astype(np.float32)
    consumed = {"consumed_inputs": [0, 0]} if opset == 1 and op != "Pow" else {}
    expected = run(op, a, b[:, :, None])
    np.testing.assert_array_equal(run_model(op, [a, b], opset, axis=1, broadcast=1, **consumed), expected)
    np.testing.assert_array_equal(run_model(op, [a, b[0, :1]], opset, broadcast=1), run(op, a, b[0, :1]))


@pytest.mark.parametrize("op", ["Max", "Min", "Sum", "Mean"])
def test_consumed_inputs_are_forgotten(op):
    a, b = np.float32([1, 5]), np.float32([3, 4])
    np.testing.assert_array_equal(run_model(op, [a, b], 1, consumed_inputs=[0, 0]), run(op, a, b))


@pytest.mark.parametrize("library", LIBRARIES)
def test_sum_to(library):
    g = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    result = run("SumTo", g, np.array([3, 1]), library=library, domain="pyflame")
    np.testing.assert_array_equal(result, g.sum(0).sum(1, keepdims=True))


def test_types_of_a_chain_through_the_graph():
    g = Graph("g")
    g.add_input("x", ["N", 3], DType.Float16)
    g.add_node("a", "Reciprocal", ["x"], ["y"])
    g.add_node("b", "Mean", ["y", "x", "x"], ["z"])
    assert infer_types(g) == []
    assert str(g.types["z"]) == "float16[N, 3]"
