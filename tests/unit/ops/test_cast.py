"""Conversions between every pair of element types, strings, bits."""

import ml_dtypes
import numpy as np
import onnx.helper as oh
import onnxruntime
import pytest

from pyflame_rt.graph import DType, Node, SequenceType, Shape, TensorType, symbol
from pyflame_rt.graph.errors import DTypeMismatchError, InputError
from pyflame_rt.importers.onnx_importer import graph_from_bytes
from pyflame_rt.ops import Context, Program, Value, evaluate, get_op
from pyflame_rt.ops.core.evaluate import to_host, to_library
from pyflame_rt.ops.core.trace import infer_outputs

LIBRARIES = ("numpy", "torch", "mlx")
CASTABLE = [d for d in DType if not d.is_complex]
E8M0 = DType.Float8E8M0


def run(op, *arrays, library="numpy", **attributes):
    context = Context.of(library)
    names = [f"i{i}" for i in range(len(arrays))]
    moved = [to_library(a, context.library) for a in arrays]
    (result,) = evaluate(Node("n", op, names, ["o"], attributes), moved, context)
    return to_host(result, context.library)


def cast(array, to, library="numpy", **attributes):
    result = run("Cast", np.asarray(array), library=library, to=to.onnx, **attributes)
    assert result.dtype == to.numpy
    return result


def infer(op, *values, **attributes):
    found = get_op(op)
    return infer_outputs(found, values, found.signature.bind(attributes, op))[0]


@pytest.mark.parametrize("target", CASTABLE, ids=lambda d: d.label)
@pytest.mark.parametrize("library", LIBRARIES)
def test_every_pair_of_types(target, library):
    for source in CASTABLE:
        numbers = np.array([[1.0, 1.0], [1.0, 1.0]])
        array = cast(numbers, source)
        result = cast(array, target, library)
        assert result.shape == (2, 2)
        if target is DType.String:
            assert {float(v) for v in result.ravel()} == {1.0}
        else:
            assert result.astype(np.float32).tolist() == numbers.tolist()


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(
    ("target", "top", "beyond"),
    [
        (DType.Float8E4M3FN, 448, np.nan),
        (DType.Float8E4M3FNUZ, 240, np.nan),
        (DType.Float8E5M2, 57344, np.inf),
        (DType.Float8E5M2FNUZ, 57344, np.nan),
    ],
)
def test_float8_saturates_when_asked(target, top, beyond, library):
    x = np.float32([1e6, -1e6, np.inf, np.nan, top, 0.0])
    saturated = cast(x, target, library).astype(np.float32)
    np.testing.assert_array_equal(saturated, np.float32([top, -top, top, np.nan, top, 0]))
    plain = cast(x, target, library, saturate=0).astype(np.float32)
    np.testing.assert_array_equal(plain, np.float32([beyond, -beyond, beyond, np.nan, top, 0]))


def test_float8_tie_at_the_end_rounds_to_even():
    x = np.float32([464, 464.1])
    assert np.isnan(cast(x, DType.Float8E4M3FN, saturate=0).astype(np.float32)).tolist() == [False, True]


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(
    ("mode", "expected"),
    [("up", [4.0, 4.0, 2.0, 0.125]), ("down", [2.0, 2.0, 2.0, 0.0625]), ("nearest", [2.0, 4.0, 2.0, 0.125])],
)
def test_powers_of_two_round_as_told(mode, expected, library):
    x = np.float32([2.9, 3.0, 2.0, 0.124])
    assert cast(x, E8M0, library, round_mode=mode).astype(np.float32).tolist() == expected


def test_powers_of_two_at_their_ends():
    x = np.float32([0.0, np.inf, np.nan, 3e38, 2.0**-127, 2.0**-126])
    low, top = 2.0**-127, 2.0**127
    saturated = cast(x, E8M0).astype(np.float32)
    np.testing.assert_array_equal(saturated, np.float32([low, top, np.nan, top, low, 2 * low]))
    plain = cast(x, E8M0, saturate=0, round_mode="nearest").astype(np.float32)
    np.testing.assert_array_equal(plain, np.float32([np.nan, np.nan, np.nan, np.nan, low, 2 * low]))
    with pytest.raises(InputError, match="round_mode"):
        cast(x, E8M0, round_mode="sideways")


@pytest.mark.parametrize("library", LIBRARIES)
def test_integers_wrap_and_truth_is_not_zero(library):
    assert cast(np.int16([200, -1]), DType.Int8, library).tolist() == [-56, -1]
    assert cast(np.int16([200, -1]), DType.UInt8, library).tolist() == [200, 255]
    assert cast(np.float32([0, -0.0, 0.5, np.nan]), DType.Bool, library).tolist() == [0, 0, 1, 1]
    assert cast(np.float32([1.9, -1.9]), DType.Int32, library).tolist() == [1, -1]


def ort_cast(array, to):
    source = DType.of(array.dtype).onnx
    graph = oh.make_graph(
        [oh.make_node("Cast", ["x"], ["y"], to=to.onnx)],
        "g",
        [oh.make_tensor_value_info("x", source, array.shape)],
        [oh.make_tensor_value_info("y", to.onnx, array.shape)],
    )
    model = oh.make_model(graph, opset_imports=[oh.make_opsetid("", 19)], ir_version=9)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": array})[0]


@pytest.mark.parametrize(
    "array",
    [
        np.float32([0.5, -3.25, np.inf, -np.inf, np.nan]),
        np.float64([0.5, -3.25, 1e-7]),
        np.int8([-1, 7]),
        np.uint64([2**64 - 1]),
        np.array([True, False]),
    ],
    ids=lambda a: a.dtype.name,
)
def test_numbers_as_text(array):
    assert cast(array, DType.String).tolist() == ort_cast(array, DType.String).tolist()


@pytest.mark.parametrize("library", LIBRARIES)
def test_numbers_from_text(library):
    text = np.array(["3.14", "1e-5", "1E8", "INF", "+inf", "-INF", "NaN", " 2 "], object)
    expected = np.float32([3.14, 1e-5, 1e8, np.inf, np.inf, -np.inf, np.nan, 2])
    np.testing.assert_array_equal(cast(text, DType.Float32, library), expected)
    assert cast(np.array(["100", "-7", "100.5"], object), DType.Int16, library).tolist() == [100, -7, 100]
    big = np.array([str(2**63), str(2**64 - 1)], object)
    assert cast(big, DType.UInt64, library).tolist() == [2**63, 2**64 - 1]
    with pytest.raises(InputError, match="'Hello' is not a number"):
        cast(np.array(["Hello"], object), DType.Float32, library)


@pytest.mark.parametrize("library", LIBRARIES)
def test_cast_like(library):
    result = run("CastLike", np.float32([1.5]), np.array([1], ml_dtypes.int4), library=library)
    assert result.dtype == ml_dtypes.int4


@pytest.mark.parametrize("library", LIBRARIES)
def test_bits_of_small_types(library):
    four = np.array([-1, 7, -8], ml_dtypes.int4)
    back = run("BitCast", four, library=library, to=DType.UInt4.onnx)
    assert back.astype(int).tolist() == [15, 7, 8]
    assert run("BitCast", back, library=library, to=DType.Int4.onnx).astype(int).tolist() == [-1, 7, -8]
    tiny = run("BitCast", np.array([1, 7, 15], ml_dtypes.uint4), library=library, to=DType.Float4E2M1.onnx)
    assert tiny.astype(np.float32).tolist() == [0.5, 6.0, -6.0]
    codes = run("BitCast", tiny, library=library, to=DType.UInt4.onnx)
    assert codes.astype(int).tolist() == [1, 7, 15]
    two = run("BitCast", np.array([3], ml_dtypes.uint2), library=library, to=DType.Int2.onnx)
    assert two.astype(int).tolist() == [-1]


@pytest.mark.parametrize("library", LIBRARIES)
def test_bits_of_floats(library):
    half = run("BitCast", np.array([0x3F80, 0xC000], np.uint16), library=library, to=DType.BFloat16.onnx)
    assert half.astype(np.float32).tolist() == [1.0, -2.0]
    with pytest.raises(DTypeMismatchError, match="equal width"):
        run("BitCast", np.float32([1]), library=library, to=DType.Int64.onnx)


def test_infer():
    x = Value("x", TensorType(DType.Float32, Shape(["N", 3])))
    assert str(infer("Cast", x, to=DType.Int8.onnx).type) == "int8[N, 3]"
    like = Value("t", TensorType(DType.Float16, None))
    assert str(infer("CastLike", x, like).type) == "float16[N, 3]"
    with pytest.raises(DTypeMismatchError, match="equal width"):
        infer("BitCast", x, to=DType.Int8.onnx)
    sequence = Value("s", SequenceType(TensorType(DType.Float32)))
    assert infer("Identity", sequence).type == sequence.type


def test_symbolic_sizes_pass_through_integer_casts():
    sizes = Value("v", TensorType(DType.Int64, Shape([1])), np.array([symbol("N")], object))
    assert infer("Cast", sizes, to=DType.Int32.onnx).known.tolist() == [symbol("N")]
    assert infer("Cast", sizes, to=DType.Float32.onnx).known is None
    assert infer("Identity", sizes).known.tolist() == [symbol("N")]


@pytest.mark.parametrize("library", LIBRARIES)
def test_identity_of_sequences_and_nothing(library):
    node = Node("n", "Identity", ["x"], ["y"])
    context = Context.of(library)
    items = [context.library.from_numpy(np.float32([1]))]
    assert evaluate(node, [items], context)[0] is items
    assert evaluate(node, [None], context)[0] is None


def test_opset_1_spelled_types_out():
    graph = oh.make_graph(
        [oh.make_node("Cast", ["x"], ["y"], to="INT64")],
        "g",
        [oh.make_tensor_value_info("x", 1, [1])],
        [oh.make_tensor_value_info("y", 7, [1])],
    )
    model = oh.make_model(graph, opset_imports=[oh.make_opsetid("", 1)], ir_version=3)
    program = Program(graph_from_bytes(model.SerializeToString()))
    assert program.run([np.float32([2.5])], Context.of("numpy"))[0].dtype == np.int64


@pytest.mark.parametrize("text", ["99999999999999999999", "-9223372036854775809", "inf", "1e400"])
def test_a_string_beyond_64_bits_is_refused(text):
    with pytest.raises(InputError, match=text):
        run("Cast", np.array(["1", text], object), to=7)
