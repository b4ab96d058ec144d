import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper

import pyflame_rt
from pyflame_rt import DType, Graph, InferenceSession, OrtValue, Tensor


def identity(shape, dtype):
    graph = Graph("identity")
    graph.add_input("x", shape, dtype)
    graph.add_node("n", "Identity", ["x"], ["y"])
    graph.add_output("y", shape, dtype)
    return InferenceSession(graph)


def feed(session, value):
    return session.run(None, {"x": value})[0]


@pytest.mark.parametrize("dtype", [d for d in DType if d is not DType.String], ids=str)
def test_every_element_type_goes_in_and_out(dtype):
    array = np.array([1, 0, 1]).astype(dtype.numpy)
    got = feed(identity([3], dtype), array)
    assert got.dtype == dtype.numpy
    assert got.tobytes() == array.tobytes()


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        ([1, 2], DType.Float32, np.array([1, 2], np.float32)),
        ((True, False), DType.Float32, np.array([1, 0], np.float32)),
        ([1, 2], DType.Int8, np.array([1, 2], np.int8)),
        ([1.5, 2], DType.Float16, np.array([1.5, 2], np.float16)),
        ([1.5], DType.BFloat16, np.array([1.5], ml_dtypes.bfloat16)),
        ([True], DType.Bool, np.array([True])),
        ([], DType.Int64, np.array([], np.int64)),
        (range(3), DType.Int32, np.arange(3, dtype=np.int32)),
        ([1j], DType.Complex64, np.array([1j], np.complex64)),
    ],
)
def test_python_values_take_the_type_of_the_input(value, dtype, expected):
    got = feed(identity([None], dtype), value)
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got, expected)


def test_python_scalar_for_a_scalar_input():
    assert feed(identity([], DType.Float32), 2.5) == np.float32(2.5)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        ([1.5], DType.Int64),
        ([1], DType.Bool),
        (["a"], DType.Float32),
        ([1j], DType.Float32),
        (np.float64(1), DType.Float32),
        (np.array([1.0]), DType.Float32),
        ([np.float64(1)], DType.Float32),
        ([np.zeros(1)], DType.Float32),
        (np.array([1]), DType.Int32),
        (np.array([1.0], object), DType.Float32),
        (np.zeros(1, np.float32), DType.BFloat16),
    ],
)
def test_nothing_is_cast_that_could_lose_something(value, dtype):
    with pytest.raises(pyflame_rt.DTypeMismatchError, match="input 'x'"):
        feed(identity(None, dtype), value)


def test_dtype_error_says_what_came_what_was_expected_and_what_to_do():
    with pytest.raises(
        pyflame_rt.DTypeMismatchError, match=r"'x' has element type float64.*float32.*astype\(np\.float32\)"
    ):
        feed(identity([1], DType.Float32), np.zeros(1))


def test_out_of_range_and_ragged_lists_are_input_errors():
    with pytest.raises(pyflame_rt.InputError, match="300"):
        feed(identity([1], DType.Int8), [300])
    with pytest.raises(pyflame_rt.InputError, match="rectangular"):
        feed(identity([None], DType.Float32), [[1.0], [1.0, 2.0]])


@pytest.mark.parametrize(
    ("dtype", "value"),
    [(DType.Float32, 1e300), (DType.Float16, 70_000), (DType.Float16, -1e6), (DType.Float8E5M2, 1e9)],
)
def test_numbers_beyond_the_type_of_an_input_do_not_become_infinite(dtype, value):
    with pytest.raises(pyflame_rt.InputError, match=r"'x'.*is beyond the range of"):
        feed(identity([2], dtype), [value, 0])
    largest = np.array(feed(identity([2], DType.Float32), [float("inf"), 3.4e38]))
    assert largest[0] == np.inf
    assert np.isfinite(largest[1])


def test_values_of_what_is_no_array_are_refused():
    torch = pytest.importorskip("torch")
    with pytest.raises(pyflame_rt.InputError, match="Tensor cannot be read as an array"):
        pyflame_rt.OrtValue.ortvalue_from_numpy(torch._neg_view(torch.ones(2)))


def test_other_byte_order_is_the_same_type():
    got = feed(identity([2], DType.Float32), np.array([1, 2], ">f4"))
    np.testing.assert_array_equal(got, [1, 2])


def test_tensors_and_ortvalues():
    array = np.array([1, 2], np.float32)
    session = identity([2], DType.Float32)
    for value in (Tensor(array), OrtValue.ortvalue_from_numpy(array)):
        np.testing.assert_array_equal(feed(session, value), array)
    bf16 = array.astype(ml_dtypes.bfloat16)
    assert feed(identity([2], DType.BFloat16), Tensor(bf16)).dtype == bf16.dtype


def test_objects_with_dlpack_or_array():
    class Dlpack:
        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **settings):
            return self.array.__dlpack__(**settings)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    class Arrayish:
        def __array__(self, dtype=None, copy=None):
            return np.ones(2, np.float32)

    session = identity([2], DType.Float32)
    for value in (Dlpack(np.ones(2, np.float32)), Arrayish()):
        np.testing.assert_array_equal(feed(session, value), [1, 1])
    with pytest.raises(pyflame_rt.InputError, match="cannot make an array of object"):
        feed(session, object())


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16", "int64", "bool"])
def test_torch_tensors(name):
    torch = pytest.importorskip("torch")
    value = torch.tensor([1, 0]).to(getattr(torch, name))
    got = feed(identity([2], DType.of(name)), value)
    assert got.dtype == DType.of(name).numpy
    assert got.astype(np.float32).tolist() == [1, 0]


def test_torch_tensor_that_requires_grad():
    torch = pytest.importorskip("torch")
    assert feed(identity([2], DType.Float32), torch.ones(2, requires_grad=True)).tolist() == [1, 1]


@pytest.mark.parametrize(
    "value", [["a", "ü"], np.array(["a", "ü"]), np.array(["a", "ü"], object), np.array(["a", "ü".encode()], object)]
)
def test_strings(value):
    got = feed(identity([2], DType.String), value)
    assert got.dtype == object
    assert got.tolist() == ["a", "ü"]


def test_not_strings():
    for value in (np.zeros(2), np.array(["a", 1], object)):
        with pytest.raises(pyflame_rt.DTypeMismatchError, match="strings"):
            feed(identity([2], DType.String), value)


def test_sequences_and_optionals():
    inner = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
    sequence = helper.make_sequence_type_proto(inner)
    graph = helper.make_graph(
        [helper.make_node("SequenceLength", ["s"], ["n"])],
        "g",
        [helper.make_value_info("s", sequence)],
        [helper.make_tensor_value_info("n", TensorProto.INT64, [])],
    )
    session = InferenceSession(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
    assert session.get_inputs()[0].type == "seq(tensor(float32))"
    assert session.run(None, {"s": [np.zeros(2, np.float32), [1.0, 2.0]]}) == [2]
    with pytest.raises(pyflame_rt.InputError, match="give a list"):
        session.run(None, {"s": np.zeros(2, np.float32)})
    with pytest.raises(pyflame_rt.DTypeMismatchError, match="element 1"):
        session.run(None, {"s": [np.zeros(2, np.float32), np.zeros(2)]})

    optional = helper.make_optional_type_proto(inner)
    graph = helper.make_graph(
        [helper.make_node("OptionalHasElement", ["o"], ["b"])],
        "g",
        [helper.make_value_info("o", optional)],
        [helper.make_tensor_value_info("b", TensorProto.BOOL, [])],
    )
    session = InferenceSession(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]))
    assert session.run(None, {"o": None}) == [False]
    assert session.run(None, {"o": np.zeros(1, np.float32)}) == [True]


def test_unknown_and_missing_names(kit):
    session = InferenceSession(kit.chain())
    with pytest.raises(pyflame_rt.InputError, match=r"no input 'X'"):
        session.run(None, {"X": kit.x})
    with pytest.raises(pyflame_rt.InputError, match="'x' is missing"):
        session.run(None, {})
    with pytest.raises(pyflame_rt.InputError, match="'x' is None"):
        session.run(None, {"x": None})
    with pytest.raises(pyflame_rt.InputError, match="map input names"):
        session.run(None, [kit.x])  # type: ignore[arg-type]


def test_close_name_is_suggested():
    graph = Graph("g")
    graph.add_input("input_ids", [1], DType.Float32)
    graph.add_node("n", "Neg", ["input_ids"], ["y"])
    graph.add_output("y", [1])
    with pytest.raises(pyflame_rt.InputError, match="Did you mean 'input_ids'"):
        InferenceSession(graph).run(None, {"input_id": [1]})


def test_torchscript_argument_is_known_without_its_number():
    graph = Graph("g")
    graph.add_input("input.1", [1], DType.Float32)
    graph.add_node("n", "Neg", ["input.1"], ["y"])
    graph.add_output("y", [1])
    session = InferenceSession(graph)
    assert session.run(None, {"input": [1]}) == [-1]
    with pytest.raises(pyflame_rt.InputError, match="twice"):
        session.run(None, {"input": [1], "input.1": [1]})


@pytest.mark.parametrize(
    ("declared", "given", "fits"),
    [
        ((2, 3), (2, 3), True),
        ((2, 3), (4, 3), False),
        ((2, 3), (3,), False),
        (("N", 3), (7, 3), True),
        (("N", 3), (7, 4), False),
        (("N", "N"), (2, 3), True),  # ONNX Runtime does not compare named sizes either
        ((0, 3), (2, 3), False),
        ((), (2, 3), True),  # nor does it check a declared scalar
        (None, (2, 3), True),
        ((2, 3), (0, 3), False),
    ],
)
def test_shapes_are_checked_as_onnx_runtime_does(kit, declared, given, fits):
    import onnxruntime

    data = kit.onnx(
        [helper.make_node("Identity", ["x"], ["y"])],
        [("x", TensorProto.FLOAT, declared)],
        [("y", TensorProto.FLOAT, None)],
    )
    value = np.ones(given, np.float32)
    theirs = onnxruntime.InferenceSession(data)
    if fits:
        theirs.run(None, {"x": value})
        assert InferenceSession(data).run(None, {"x": value})[0].shape == given
        return
    with pytest.raises(Exception, match="INVALID_ARGUMENT"):
        theirs.run(None, {"x": value})
    with pytest.raises(pyflame_rt.ShapeMismatchError, match="input 'x'"):
        InferenceSession(data).run(None, {"x": value})


def test_non_contiguous_feeds():
    session = identity(["N", "M"], DType.Float32)
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    for view in (array.T, array[:, ::2], array[::-1], np.asfortranarray(array)):
        np.testing.assert_array_equal(feed(session, view), view)
        assert feed(session, view).flags.c_contiguous


def test_results_are_the_callers_own(provider):
    graph = Graph("g")
    graph.add_input("x", [2], DType.Float32)
    graph.add_initializer("w", np.array([5, 6], np.float32))
    graph.add_node("a", "Identity", ["x"], ["y"])
    graph.add_node("b", "Identity", ["w"], ["z"])
    graph.add_node("c", "Identity", ["w"], ["z2"])
    for name in ("y", "z", "z2"):
        graph.add_output(name, [2])
    session = InferenceSession(graph, providers=[provider])
    x = np.array([1, 2], np.float32)
    for array in session.run(None, {"x": x}):
        array += 100
    assert x.tolist() == [1, 2]
    assert [r.tolist() for r in session.run(None, {"x": x})] == [[1, 2], [5, 6], [5, 6]]


def test_random_feed_is_repeatable_and_fits(kit):
    graph = kit.chain()
    first = pyflame_rt.random_feed(graph.inputs, seed=3, sizes={"N": 4})
    again = pyflame_rt.random_feed(graph.inputs, seed=3, sizes={"N": 4})
    assert first["x"].shape == (4, 3)
    np.testing.assert_array_equal(first["x"], again["x"])
