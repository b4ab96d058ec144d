"""Comparison, choice, truth and bits."""

import numpy as np
import pytest

from pyflame_rt.graph import DType, Node, Shape, TensorType, symbol
from pyflame_rt.graph.errors import DTypeMismatchError, PyFlameRTError
from pyflame_rt.ops import Context, Value, evaluate, get_op
from pyflame_rt.ops.core.trace import infer_outputs

LIBRARIES = ("numpy", "torch", "mlx")


def run(op, *arrays, library="numpy", **attributes):
    context = Context.of(library)
    lib = context.library
    names = [f"i{i}" for i in range(len(arrays))]
    moved = [lib.from_numpy(a) if a.dtype != object and lib.supports(a.dtype) else a for a in arrays]
    (result,) = evaluate(Node("n", op, names, ["o"], attributes), moved, context)
    return lib.to_numpy(result) if lib.is_array(result) else result


def value(dtype, shape, known=None):
    return Value("v", TensorType(dtype, None if shape is None else Shape(shape)), known)


def infer(op, *values, **attributes):
    found = get_op(op)
    return infer_outputs(found, values, found.signature.bind(attributes, op))[0]


@pytest.mark.parametrize("library", LIBRARIES)
def test_comparisons_are_false_for_nan(library):
    a, b = np.float32([1, 2, np.nan]), np.float32([2, 2, np.nan])
    assert run("Less", a, b, library=library).tolist() == [True, False, False]
    assert run("LessOrEqual", a, b, library=library).tolist() == [True, True, False]
    assert run("Greater", b, a, library=library).tolist() == [True, False, False]
    assert run("GreaterOrEqual", b, a, library=library).tolist() == [True, True, False]
    assert run("Equal", a, b, library=library).tolist() == [False, True, False]


@pytest.mark.parametrize("library", LIBRARIES)
def test_strings_compare_and_choose(library):
    a, b = np.array(["x", "y"], object), np.array(["x", "z"], object)
    assert run("Equal", a, b, library=library).tolist() == [True, False]
    chosen = run("Where", np.array([False, True]), a, b, library=library)
    assert chosen.tolist() == ["x", "y"]


@pytest.mark.parametrize("library", LIBRARIES)
def test_where_broadcasts_all_three(library):
    c, x, y = np.array([[True], [False]]), np.int32([1, 2, 3]), np.int32(7)
    result = run("Where", c, x, np.asarray(y), library=library)
    assert result.dtype == np.int32
    assert result.tolist() == [[1, 2, 3], [7, 7, 7]]


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64])
def test_shift_of_signed_integers(library, dtype):
    width = np.dtype(dtype).itemsize * 8
    x = np.array([-8, -8, -8, 8, 8, -1], dtype)
    y = np.array([1, width, -1, width, -3, width - 1], dtype)
    right = run("BitShift", x, y, library=library, direction="RIGHT")
    assert right.tolist() == [-4, -1, -1, 0, 0, -1]
    left = run("BitShift", x, y, library=library, direction="LEFT")
    assert left.tolist() == [-16, 0, 0, 0, 0, -(2 ** (width - 1))]


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32, np.uint64])
def test_shift_of_unsigned_integers(library, dtype):
    top = np.iinfo(dtype).max
    x = np.array([top, top, 1], dtype)
    y = np.array([1, np.dtype(dtype).itemsize * 8, 200], dtype)
    assert run("BitShift", x, y, library=library, direction="RIGHT").tolist() == [top // 2, 0, 0]
    assert run("BitShift", x, y, library=library, direction="LEFT").tolist() == [top - 1, 0, 0]


def test_shift_needs_a_direction():
    with pytest.raises(PyFlameRTError, match=r"node 'n'.*LEFT or RIGHT"):
        run("BitShift", np.uint8([1]), np.uint8([1]), direction="UP")


@pytest.mark.parametrize("op", ["And", "Or", "Xor"])
def test_infer_of_logic(op):
    kind = infer(op, value(DType.Bool, ["N", 1]), value(DType.Bool, [3])).type
    assert str(kind) == "bool[N, 3]"
    with pytest.raises(DTypeMismatchError, match="bool"):
        infer(op, value(DType.Bool, [1]), value(DType.Int8, [1]))


def test_infer_of_comparison_choice_and_bits():
    assert str(infer("Less", value(DType.Int8, ["N"]), value(DType.Int8, [1])).type) == "bool[N]"
    with pytest.raises(DTypeMismatchError, match="int8 and float32"):
        infer("Less", value(DType.Int8, [1]), value(DType.Float32, [1]))
    with pytest.raises(DTypeMismatchError, match="condition"):
        infer("Where", value(DType.Int8, [1]), value(DType.Int8, [1]), value(DType.Int8, [1]))
    with pytest.raises(DTypeMismatchError, match="integers"):
        infer("BitwiseAnd", value(DType.Float32, [1]), value(DType.Float32, [1]))


def test_equality_of_symbolic_sizes():
    n = symbol("N")
    sizes = value(DType.Int64, [2], np.array([n, 4], object))
    minus = value(DType.Int64, [], np.array(-1))
    # A size is never negative, but it may be 1, or some other size.
    assert infer("Equal", sizes, minus).known.tolist() == [False, False]
    assert infer("Equal", sizes, sizes).known.tolist() == [True, True]
    assert infer("Equal", sizes, value(DType.Int64, [], np.array(1))).known is None
    picked = infer("Where", infer("Equal", sizes, minus), minus, sizes)
    assert picked.known.tolist() == [n, 4]


def test_numbers_beside_a_condition_take_the_type_of_the_branch():
    from pyflame_rt.ops import operator, trace
    from pyflame_rt.ops.core.registry import unregister

    @operator(since=1, domain="test")
    def Half(x: Value, /) -> Value:
        return get_op("Where")(x > 0, x, 0.5)

    try:
        _, (out,) = trace(Half, [value(DType.Float16, [2])], {})
        assert str(out.type) == "float16[2]"
    finally:
        unregister("Half", "test")
