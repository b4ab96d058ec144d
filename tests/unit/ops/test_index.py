"""Gathering and scattering: bounds, element types, symbolic sizes, older forms, gradients."""

import ml_dtypes
import numpy as np
import onnx.helper as oh
import pytest

from pyflame_rt.autodiff import gradient
from pyflame_rt.graph import DType, Graph, Node, Shape, TensorType, symbol
from pyflame_rt.graph.errors import PyFlameRTError
from pyflame_rt.importers.onnx_importer import graph_from_bytes
from pyflame_rt.ops import Context, Program, Value, evaluate, get_op, infer_types
from pyflame_rt.ops.core.evaluate import to_host, to_library
from pyflame_rt.ops.core.trace import infer_outputs

LIBRARIES = ("numpy", "torch", "mlx")
N, S = symbol("N"), symbol("S")
X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
i64 = lambda *v: np.array(v, np.int64)  # noqa: E731


def run(op, *arrays, library="numpy", outputs=1, **attributes):
    context = Context.of(library)
    names = ["" if a is None else f"i{i}" for i, a in enumerate(arrays)]
    moved = [to_library(a, context.library) for a in arrays]
    made = evaluate(Node("n", op, names, [f"o{i}" for i in range(outputs)], attributes), moved, context)
    results = [to_host(r, context.library) for r in made]
    return results[0] if outputs == 1 else results


def value(dtype, shape, known=None):
    return Value("v", TensorType(dtype, None if shape is None else Shape(shape)), known)


def infer(op, *values, **attributes):
    found = get_op(op)
    return infer_outputs(found, values, found.signature.bind(attributes, op))


def model(op, arrays, opset, outputs=1, **attributes):
    names = [f"i{i}" for i in range(len(arrays))]
    infos = [
        oh.make_tensor_value_info(n, oh.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in zip(names, arrays, strict=True)
    ]
    made = [f"o{i}" for i in range(outputs)]
    outs = [oh.make_tensor_value_info(o, 1, None) for o in made]
    graph = oh.make_graph([oh.make_node(op, names, made, **attributes)], "g", infos, outs)
    return oh.make_model(graph, opset_imports=[oh.make_opsetid("", opset)], ir_version=8)


def run_model(op, arrays, opset, outputs=1, **attributes):
    proto = model(op, arrays, opset, outputs, **attributes)
    results = Program(graph_from_bytes(proto.SerializeToString())).run(list(arrays), Context.of("numpy"))
    return results[0] if outputs == 1 else results


CASES = [
    ("Gather", [X, i64(2, -3)], {"axis": 1}),
    ("Gather", [X, np.array(-1)], {"axis": -1}),
    ("Gather", [X, np.zeros((0, 2), np.int64)], {}),
    ("GatherElements", [X, np.array([[[2, -1], [0, 1]]])], {"axis": 2}),
    ("GatherElements", [X, np.array([[[1, -1, 0, 2]]])], {"axis": 1}),
    ("GatherND", [X, np.array([[1, -1], [0, 2]])], {}),
    ("GatherND", [X, np.array([[[2, 1]], [[0, -1]]])], {"batch_dims": 1}),
    ("ScatterElements", [X, np.array([[[0, -1]]]), np.float32([[[7, 8]]])], {"axis": 2}),
    ("ScatterElements", [X, np.array([[[1]], [[1]]]), np.float32([[[7]], [[8]]])], {"axis": 1, "reduction": "mul"}),
    ("ScatterND", [X, np.array([[1], [-1]]), np.stack([X[0], X[0]])], {"reduction": "add"}),
    ("ScatterND", [X, np.zeros((0, 2), np.int64), np.zeros((0, 4), np.float32)], {}),
    ("OneHot", [np.array([[0, -1], [5, 2]]), np.array(3), i64(5, 7)], {"axis": 1}),
    ("OneHot", [np.float32([1, 0]), np.float32([3]), np.float32([0, 1])], {"axis": 0}),
    ("Compress", [X, np.array([False, True])], {"axis": -1}),
    ("Compress", [X, np.array([True, False, True])], {}),
    ("NonZero", [X % 2], {}),
    ("NonZero", [np.zeros((2, 2), np.int32)], {}),
    ("NonZero", [np.array([True, False])], {}),
]


@pytest.mark.parametrize(("op", "arrays", "attributes"), CASES)
def test_agrees_with_onnxruntime_on_every_library(op, arrays, attributes):
    ort = pytest.importorskip("onnxruntime")
    expected = None
    for library in LIBRARIES:
        result = run(op, *arrays, library=library, **attributes)
        if expected is None:
            proto = model(op, arrays, 19, **attributes)
            proto.graph.output[0].type.tensor_type.elem_type = oh.np_dtype_to_tensor_dtype(result.dtype)
            session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
            (expected,) = session.run(None, {f"i{i}": a for i, a in enumerate(arrays)})
        assert result.dtype == expected.dtype
        assert result.shape == expected.shape
        np.testing.assert_array_equal(result, expected)
    kinds = [value(DType.of(a.dtype), a.shape) for a in arrays]
    kind = infer(op, *kinds, **attributes)[0].type
    assert kind.dtype is DType.of(expected.dtype)
    assert all(d in (None, n) for d, n in zip(kind.shape, expected.shape, strict=True))


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "expected"),
    [
        ("Gather", [value(DType.Float32, [N, 5]), value(DType.Int64, [S, 2])], {"axis": 1}, [N, S, 2]),
        ("Gather", [value(DType.Float32, None), value(DType.Int64, [2])], {}, None),
        ("GatherElements", [value(DType.Float32, [N, 5]), value(DType.Int64, [N, 2])], {"axis": 1}, [N, 2]),
        ("GatherND", [value(DType.Float32, [N, S, 4]), value(DType.Int64, [N, 7, 1])], {"batch_dims": 1}, [N, 7, 4]),
        ("GatherND", [value(DType.Float32, [N, S]), value(DType.Int64, [7, None])], {}, None),
        ("ScatterND", [value(DType.Float32, [N, S]), *[value(DType.Int64, None)] * 2], {}, [N, S]),
        ("TensorScatter", [value(DType.Float32, [N, S, 4]), value(DType.Float32, [N, 1, 4])], {}, [N, S, 4]),
        (
            "OneHot",
            [value(DType.Int64, [N]), value(DType.Int64, [], np.array(9)), value(DType.Float32, [2])],
            {},
            [N, 9],
        ),
        ("OneHot", [value(DType.Int64, [N]), value(DType.Int64, []), value(DType.Float32, [2])], {}, [N, None]),
        ("TopK", [value(DType.Float32, [N, S]), value(DType.Int64, [1], i64(3))], {}, [N, 3]),
        ("TopK", [value(DType.Float32, [N, S]), value(DType.Int64, [1])], {"axis": 0}, [None, S]),
        ("NonZero", [value(DType.Float32, [N, S])], {}, [2, None]),
        ("Compress", [value(DType.Float32, [N, S]), value(DType.Bool, [N])], {"axis": 0}, [None, S]),
        ("Unique", [value(DType.Float32, [N, S])], {"axis": 1}, [N, None]),
    ],
)
def test_types_follow_symbols(op, inputs, attributes, expected):
    kind = infer(op, *inputs, **attributes)[0].type
    assert kind.shape == expected


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(
    ("op", "arrays", "attributes"),
    [
        ("Gather", [X, i64(2)], {}),
        ("Gather", [X, i64(-3)], {}),
        ("GatherElements", [X, np.full((1, 1, 1), 4)], {"axis": 2}),
        ("GatherND", [X, np.array([[0, 3]])], {}),
        ("ScatterElements", [X, np.full((1, 1, 1), 3), np.ones((1, 1, 1), np.float32)], {"axis": 1}),
        ("ScatterND", [X, np.array([[0, -4]]), np.ones((1, 4), np.float32)], {}),
    ],
)
def test_indices_outside_are_refused_everywhere(library, op, arrays, attributes):
    with pytest.raises(
        PyFlameRTError, match=r"indices is -?[0-9]+.*, which is out of range: it must be from -[0-9] to [0-9]"
    ):
        run(op, *arrays, library=library, **attributes)


@pytest.mark.parametrize(
    ("op", "arrays", "attributes", "message"),
    [
        (
            "ScatterElements",
            [X, np.zeros((1, 1, 1), int), np.ones((1, 1, 1), np.float32)],
            {"reduction": "mean"},
            "reduction",
        ),
        ("ScatterElements", [X, np.zeros((1, 1, 1), int), np.ones((1, 1, 2), np.float32)], {}, "updates has shape"),
        ("ScatterND", [X, np.array([[0]]), np.ones((1, 4), np.float32)], {}, r"must have \[1, 3, 4\]"),
        ("GatherND", [X, np.array([[0, 0, 0, 0]])], {}, "index tuples is 4, but must be at most 3"),
        ("GatherElements", [X, i64(0)], {}, "must have 3 axes"),
        ("TopK", [X, i64(9)], {}, "K is 9"),
        ("TensorScatter", [X, X], {"axis": 0}, "batch axis"),
        ("TensorScatter", [X, X], {"mode": "other"}, "linear or circular"),
    ],
)
def test_errors_say_what_came(op, arrays, attributes, message):
    with pytest.raises(PyFlameRTError, match=message):
        run(op, *arrays, **attributes)


@pytest.mark.parametrize("dtype", list(DType))
def test_every_element_type_is_gathered_and_scattered(dtype):
    plain = np.array([1, 2, 1]) if dtype is DType.Float8E8M0 else np.array([1, 0, 1])
    x = plain.astype(str).astype(object) if dtype is DType.String else plain.astype(dtype.numpy)
    for library in LIBRARIES:
        assert run("Gather", x, i64(-2, 0), library=library).tolist() == [x[1], x[0]]
        assert run("GatherElements", x, i64(1, 1), library=library).tolist() == [x[1], x[1]]
        assert run("GatherND", x, i64(2, 1).reshape(2, 1), library=library).tolist() == [x[2], x[1]]
        assert run("ScatterElements", x, i64(0), x[1:2], library=library).tolist() == [x[1], x[1], x[2]]
        scattered = run("ScatterND", x, i64(2).reshape(1, 1), x[1:2], library=library)
        assert scattered.tolist() == [x[0], x[1], x[1]]
        assert scattered.dtype == x.dtype
        assert run("Compress", x, np.array([False, True]), library=library).tolist() == [x[1]]


@pytest.mark.parametrize("dtype", ["int8", "uint8", "uint64", "int32", "float16", "float64", ml_dtypes.bfloat16])
@pytest.mark.parametrize("library", LIBRARIES)
def test_top_k_breaks_ties_by_index(library, dtype):
    x = np.array([[3, 1, 3, 2], [0, 0, 0, 5]]).astype(dtype)
    values, places = run("TopK", x, i64(3), library=library, outputs=2)
    assert values.dtype == x.dtype
    assert values.tolist() == [[3, 3, 2], [5, 0, 0]]
    assert places.tolist() == [[0, 2, 3], [3, 0, 1]]
    values, places = run("TopK", x, i64(2), library=library, outputs=2, largest=0)
    assert places.tolist() == [[1, 3], [0, 1]]
    assert places.dtype == np.int64


def test_non_zero_of_scalars_has_no_rows():
    for library in LIBRARIES:
        assert run("NonZero", np.array(3.0, np.float32), library=library).shape == (0, 1)
        assert run("NonZero", np.array(0), library=library).shape == (0, 0)


def test_unique_of_strings_and_slices():
    words = np.array(["b", "a", "b"], object)
    found, first, inverse, counts = run("Unique", words, outputs=4)
    assert (found.tolist(), first.tolist(), inverse.tolist(), counts.tolist()) == (
        ["a", "b"],
        [1, 0],
        [1, 0, 1],
        [1, 2],
    )
    table = np.array([["b", "x"], ["a", "y"], ["b", "x"]], object)
    found, *_ = run("Unique", table, outputs=4, axis=0, sorted=0, library="torch")
    assert found.tolist() == [["b", "x"], ["a", "y"]]
    found, first, *_ = run("Unique", np.float32([np.nan, 2, np.nan, -1]), outputs=4)
    assert found[:2].tolist() == [-1, 2]
    found, *_ = run("Unique", np.array([1 + 2j, 1 + 1j], np.complex64), outputs=4)
    assert found.tolist() == [1 + 1j, 1 + 2j]
    assert [a.shape for a in run("Unique", np.zeros(0, np.int32), outputs=4)] == [(0,)] * 4


@pytest.mark.parametrize("library", LIBRARIES)
def test_tensor_scatter_writes_at_zero_without_indices(library):
    cache, update = np.zeros((2, 4, 3), np.float32), np.ones((2, 2, 3), np.float32)
    made = run("TensorScatter", cache, update, library=library)
    assert made[:, :, 0].tolist() == [[1, 1, 0, 0]] * 2
    made = run("TensorScatter", cache, update, i64(3, 2), library=library, mode="circular")
    assert made[:, :, 0].tolist() == [[1, 0, 0, 1], [0, 0, 1, 1]]


def test_old_forms_become_new_ones():
    values, places = run_model("TopK", [X], 1, 2, k=2, axis=1)
    assert values.tolist() == X[:, :0:-1].tolist()
    assert (places[:, :, 0] == [2, 1]).all()
    scattered = run_model("Scatter", [np.zeros((2, 2), np.float32), np.array([[1, 0]]), np.float32([[5, 6]])], 9)
    assert scattered.tolist() == [[0, 6], [5, 0]]
    # In opset 9 an index below 0 was out of range.
    hot = run_model("OneHot", [i64(-1, 1), i64(2), np.float32([0, 1])], 9)
    assert hot.tolist() == [[0, 0], [0, 1]]
    hot = run_model("OneHot", [i64(-1, 1), i64(2), np.float32([0, 1])], 11)
    assert hot.tolist() == [[0, 1], [0, 1]]


GRADIENTS = [
    ("Gather", [X, np.array([[2, 0], [2, -1]])], {"axis": 1}),
    ("Gather", [X, np.array(1)], {"axis": 2}),
    ("GatherElements", [X, np.array([[[1, 1, 0]]])], {"axis": 2}),
    ("GatherND", [X, np.array([[1, 2], [1, 2]])], {}),
    ("GatherND", [X, np.array([[[2], [2]], [[0], [1]]])], {"batch_dims": 1}),
    ("ScatterElements", [X, np.array([[[1, 2]]]), np.float32([[[7, 8]]])], {"axis": 2}),
    ("ScatterElements", [X, np.array([[[1, 1]]]), np.float32([[[7, 8]]])], {"axis": 2, "reduction": "add"}),
    ("ScatterND", [X, np.array([[1]]), X[:1]], {}),
    ("ScatterND", [X, np.array([[1], [1]]), X], {"reduction": "add"}),
    ("TensorScatter", [X, X[:, :1], i64(1, 2)], {}),
    ("Compress", [X, np.array([True, False, True])], {"axis": 1}),
]


@pytest.mark.parametrize(("op", "arrays", "attributes"), GRADIENTS)
def test_gradients_are_transposes(op, arrays, attributes):
    """These are linear: <g, f(x)> and <vjp(g), x> are one number, for every x and g."""
    g = Graph("g")
    for i, array in enumerate(arrays):
        if array.dtype == np.float32:
            g.add_input(f"x{i}", array.shape, DType.Float64)
        else:
            g.add_initializer(f"x{i}", array)
    g.add_node("n", op, [f"x{i}" for i in range(len(arrays))], ["y"], attributes)
    infer_types(g, strict=True)
    wrt = [info.name for info in g.inputs]
    back = gradient(g, ["y"], wrt)
    rng = np.random.default_rng(0)
    feeds = [rng.standard_normal([int(d) for d in info.shape]) for info in back.inputs]
    y, *grads = Program(back).run(feeds, Context.of("numpy"))
    assert y.sum() == pytest.approx(sum((x * gx).sum() for x, gx in zip(feeds, grads, strict=True)), rel=1e-12)


def test_gradient_of_top_k_goes_to_the_chosen():
    g = Graph("g")
    g.add_input("x", [4], DType.Float32)
    g.add_initializer("k", i64(2))
    g.add_node("n", "TopK", ["x", "k"], ["y", "i"])
    (_, grad) = Program(gradient(g, ["y"], ["x"])).run([np.float32([1, 4, 2, 3])], Context.of("numpy"))
    assert grad.tolist() == [0, 1, 0, 1]
