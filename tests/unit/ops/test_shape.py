"""Shapes: symbolic sizes through chains of operators, older forms, element types, gradients."""

import ml_dtypes
import numpy as np
import onnx.helper as oh
import pytest

from pyflame_rt.autodiff import gradient
from pyflame_rt.graph import DType, Graph, Node, Shape, TensorType, symbol
from pyflame_rt.graph.errors import InputError, PyFlameRTError, ShapeMismatchError
from pyflame_rt.importers.onnx_importer import graph_from_bytes
from pyflame_rt.ops import Context, Program, Value, evaluate, get_op, infer_types
from pyflame_rt.ops.core.evaluate import to_host, to_library
from pyflame_rt.ops.core.trace import infer_outputs
from pyflame_rt.ops.onnx.shape import resolve_reshape
from pyflame_rt.ops.onnx.slicing import slice_length

LIBRARIES = ("numpy", "torch", "mlx")
N, S, P = symbol("N"), symbol("S"), symbol("P")
END = 2**63 - 1
i64 = lambda *v: np.array(v, np.int64)  # noqa: E731


def run(op, *arrays, library="numpy", domain="", outputs=1, **attributes):
    context = Context.of(library)
    names = ["" if a is None else f"i{i}" for i, a in enumerate(arrays)]
    moved = [to_library(a, context.library) for a in arrays]
    made = evaluate(Node("n", op, names, [f"o{i}" for i in range(outputs)], attributes, domain), moved, context)
    results = [to_host(r, context.library) for r in made]
    return results[0] if outputs == 1 else results


def value(dtype, shape, known=None):
    return Value("v", TensorType(dtype, None if shape is None else Shape(shape)), known)


def ints(*numbers):
    known = np.empty(len(numbers), object)
    known[:] = numbers
    plain = all(isinstance(n, int) for n in numbers)
    return value(DType.Int64, [len(numbers)], known.astype(np.int64) if plain else known)


def infer(op, *values, **attributes):
    found = get_op(op)
    return infer_outputs(found, values, found.signature.bind(attributes, op))


def shape_from(op, *values, **attributes):
    return infer(op, *values, **attributes)[0].type.shape


def float_of(*shape):
    return value(DType.Float32, shape)


def run_model(op, arrays, opset, outputs=1, **attributes):
    """One node of an old opset, through the importer and its upgrades."""
    names = [f"i{i}" for i in range(len(arrays))]
    infos = [
        oh.make_tensor_value_info(n, oh.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in zip(names, arrays, strict=True)
    ]
    made = [f"o{i}" for i in range(outputs)]
    outs = [oh.make_tensor_value_info(o, infos[0].type.tensor_type.elem_type, None) for o in made]
    graph = oh.make_graph([oh.make_node(op, names, made, **attributes)], "g", infos, outs)
    model = oh.make_model(graph, opset_imports=[oh.make_opsetid("", opset)], ir_version=8)
    results = Program(graph_from_bytes(model.SerializeToString())).run(list(arrays), Context.of("numpy"))
    return results[0] if outputs == 1 else results


# ---------------------------------------------------------------------- symbolic chains


def attention_reshape():
    """Reads batch and length off the data and cuts its last axis into heads, as torch exports it."""
    g = Graph("heads")
    g.add_input("x", ["N", "S", 768], DType.Float32)
    constants = {"i0": 0, "i1": 1, "axis": [0], "heads": [12], "width": [64], "all": [-1]}
    for name, data in constants.items():
        g.add_initializer(name, np.asarray(data, np.int64))
    g.add_node("shape", "Shape", ["x"], ["sizes"])
    for name, index in (("batch", "i0"), ("length", "i1")):
        g.add_node(name, "Gather", ["sizes", index], [name], axis=0)
        g.add_node(f"{name}_1d", "Unsqueeze", [name, "axis"], [f"{name}_1d"])
    g.add_node("target", "Concat", ["batch_1d", "length_1d", "heads", "width"], ["target"], axis=0)
    g.add_node("split", "Reshape", ["x", "target"], ["split"])
    g.add_node("turn", "Transpose", ["split"], ["turned"], perm=[0, 2, 1, 3])
    g.add_node("back", "Transpose", ["turned"], ["back"], perm=[0, 2, 1, 3])
    g.add_node("joined", "Concat", ["batch_1d", "length_1d", "all"], ["joined"], axis=0)
    g.add_node("merge", "Reshape", ["back", "joined"], ["y"])
    g.add_output("y", None, DType.Float32)
    return g


def test_heads_of_a_transformer_keep_batch_and_length():
    g = attention_reshape()
    assert infer_types(g, strict=True) == []
    assert str(g.types["split"]) == "float32[N, S, 12, 64]"
    assert str(g.types["turned"]) == "float32[N, 12, S, 64]"
    assert str(g.types["y"]) == "float32[N, S, 768]"


def test_unknown_sizes_travel_through_shape_chains():
    g = attention_reshape()
    g.inputs[0].shape = [None, "S", 768]
    infer_types(g, strict=True)
    assert str(g.types["split"]) == "float32[None, S, 12, 64]"
    # The two reads of the unknown size are one number, so the last axis is still certain.
    assert str(g.types["y"]) == "float32[None, S, 768]"


def test_cached_keys_grow_by_the_new_ones():
    g = Graph("cache")
    g.add_input("past", ["N", 12, "P", 64], DType.Float32)
    g.add_input("new", ["N", 12, "S", 64], DType.Float32)
    g.add_node("join", "Concat", ["past", "new"], ["keys"], axis=2)
    for name, source in (("total", "keys"), ("before", "past")):
        g.add_node(name, "Shape", [source], [name], start=2, end=3)
    g.add_initializer("axis", i64(2))
    g.add_node("cut", "Slice", ["keys", "before", "total", "axis"], ["tail"])
    g.add_output("tail", None, DType.Float32)
    infer_types(g, strict=True)
    assert g.types["keys"].shape == [N, 12, P + S, 64]
    assert g.types["tail"].shape == [N, 12, S, 64]


def test_expand_mask_chain_of_torch():
    """ConstantOfShape, Mul, Equal, Where, Expand: how torch exports expand(-1, heads, -1, -1)."""
    g = Graph("mask")
    g.add_input("mask", ["N", 1, "S", "S"], DType.Float32)
    g.add_initializer("wanted", i64(-1, 12, -1, -1))
    g.add_initializer("minus", np.asarray(-1, np.int64))
    g.add_initializer("four", i64(4))
    g.add_node("ones", "ConstantOfShape", ["four"], ["ones"], value=np.ones(1, np.int64))
    g.add_node("keep", "Mul", ["ones", "minus"], ["keep"])
    g.add_node("same", "Equal", ["wanted", "keep"], ["same"])
    g.add_node("target", "Where", ["same", "ones", "wanted"], ["target"])
    g.add_node("expand", "Expand", ["mask", "target"], ["y"])
    g.add_output("y", None, DType.Float32)
    infer_types(g, strict=True)
    assert g.types["y"].shape == [N, 12, S, S]


@pytest.mark.parametrize(
    ("old", "sizes", "expected"),
    [
        ([N, S, 768], [0, 0, 12, 64], [N, S, 12, 64]),
        ([N, S + 1, 768], [N, S + 1, -1], [N, S + 1, 768]),
        ([N, None, 768], [0, 0, -1], [N, None, 768]),
        ([N, 4, S], [N * 4, -1], [N * 4, S]),
        ([N, 12, S, 64], [-1, S, 64], [N * 12, S, 64]),
        ([None, 6], [-1, 3], [None, 3]),
        (None, [0, -1, 3], [None, None, 3]),
        ([0, 3], [0, -1], [0, 3]),
        ([], [1, 1], [1, 1]),
    ],
)
def test_reshape_resolves_sizes(old, sizes, expected):
    assert resolve_reshape(old, sizes, 0) == expected


@pytest.mark.parametrize(
    ("old", "sizes", "allowzero"),
    [
        ([2, 3], [4, -1], 0),
        ([2, 3], [5], 0),
        ([2], [0, 0], 0),
        ([6], [-1, -1], 0),
        ([6], [-2, 3], 0),
        ([6], [0, -1], 1),
    ],
)
def test_reshape_refuses(old, sizes, allowzero):
    with pytest.raises(ShapeMismatchError):
        resolve_reshape(old, sizes, allowzero)


@pytest.mark.parametrize(
    ("size", "start", "end", "step", "expected"),
    [
        (10, 2, END, 3, 3),
        (10, -1, -END, -1, 10),
        (N, 0, END, 1, N),
        (N, 1, END, 1, N - 1),
        (N, 0, -1, 1, N - 1),
        (N, 2, END, 1, None),
        (N, 0, 5, 1, None),
        (N, 0, 1, 1, 1),
        (N, -1, END, 1, 1),
        (N, -1, -END, -1, N),
        (2 * N, 0, END, 2, N),
        (512, 0, S, 1, S),
        (P + S, P, P + S, 1, S),
        (None, 0, 3, 1, None),
        (N, S, None, 1, None),
    ],
)
def test_slices_of_symbolic_axes(size, start, end, step, expected):
    assert slice_length(size, start, end, step) == expected


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "expected"),
    [
        ("Expand", [float_of(N, 1), ints(N, 5)], {}, [N, 5]),
        ("Expand", [float_of(3, 1), value(DType.Int64, [3])], {}, [None, 3, None]),
        ("Transpose", [float_of(N, 2, S)], {}, [S, 2, N]),
        ("Squeeze", [float_of(N, 1), ints(1)], {}, [N]),
        ("Squeeze", [float_of(N, 1)], {}, None),
        ("Squeeze", [float_of(2, 1)], {}, [2]),
        ("Unsqueeze", [float_of(N, 2), ints(-1, 0)], {}, [1, N, 2, 1]),
        ("Flatten", [float_of(N, 2, 3)], {"axis": 2}, [2 * N, 3]),
        ("Flatten", [float_of(None, 2, 3)], {"axis": 1}, [None, 6]),
        ("Concat", [float_of(N, 2), float_of(N, S), float_of(None, 1)], {"axis": -1}, [N, S + 3]),
        ("Concat", [float_of(N, 2), value(DType.Float32, None)], {"axis": 1}, [N, None]),
        ("Pad", [float_of(N, 4), ints(1, 0, 1, -2)], {}, [N + 2, 2]),
        ("Pad", [float_of(N, 4), value(DType.Int64, [2]), None, ints(-1)], {}, [N, None]),
        ("Tile", [float_of(N, 2), ints(2, 3)], {}, [2 * N, 6]),
        ("CenterCropPad", [float_of(N, S, 3), ints(224, 224)], {"axes": [0, 1]}, [224, 224, 3]),
        ("DepthToSpace", [float_of(N, 8, S, 3)], {"blocksize": 2}, [N, 2, 2 * S, 6]),
        ("SpaceToDepth", [float_of(N, 2, 2 * S, 6)], {"blocksize": 2}, [N, 8, S, 3]),
        ("ReverseSequence", [float_of(S, N), value(DType.Int64, [N])], {}, [S, N]),
        ("Range", [ints(0), ints(N), ints(1)], {}, [N]),
        ("Range", [ints(0), value(DType.Int64, []), ints(1)], {}, [None]),
        ("ConstantOfShape", [ints(N, 2)], {}, [N, 2]),
        ("ConstantOfShape", [value(DType.Int64, [2])], {}, [None, None]),
        ("Reshape", [float_of(N, 2), value(DType.Int64, [3])], {}, [None, None, None]),
        ("Trilu", [float_of(N, S)], {}, [N, S]),
        ("EyeLike", [float_of(N, 3)], {}, [N, 3]),
    ],
)
def test_types_follow_symbols(op, inputs, attributes, expected):
    assert shape_from(op, *inputs, **attributes) == expected


@pytest.mark.parametrize("op", ["Reshape", "Expand", "Transpose", "Squeeze", "Slice", "Pad", "Tile", "Flatten"])
def test_unknown_rank_is_no_error(op):
    unknown, numbers = value(DType.Float32, None), value(DType.Int64, None)
    count = {"Transpose": 0, "Flatten": 0, "Slice": 2}.get(op, 1)
    made = infer(op, unknown, *[numbers] * count)[0]
    assert made.type.dtype is DType.Float32
    assert op == "Flatten" or made.type.shape is None


def test_split_types():
    parts = infer("Split", float_of(2 * N, 6), num_outputs=2)
    assert [p.type.shape for p in parts] == [[N, 6], [N, 6]]
    parts = infer("Split", float_of(N, 6), num_outputs=2)
    assert [p.type.shape for p in parts] == [[None, 6], [None, 6]]
    parts = infer("Split", float_of(N, 5), axis=1, num_outputs=2)
    assert [p.type.shape for p in parts] == [[N, 3], [N, 2]]
    parts = infer("Split", float_of(N, 6), ints(2, 4), axis=-1)
    assert [p.type.shape for p in parts] == [[N, 2], [N, 4]]


def test_size_and_shape_know_their_contents():
    assert infer("Size", float_of(N, 2))[0].known[()] == 2 * N
    assert infer("Shape", float_of(N, 2, 3), start=-2)[0].known.tolist() == [2, 3]
    assert infer("Shape", value(DType.Float32, None))[0].type.shape == [None]


def test_symbolic_constants_are_read_back():
    made = infer_outputs(get_op("Dims", "pyflame"), [], {"dims": ["2*N + 1", "3", "-S + N"]})[0]
    assert made.known.tolist() == [2 * N + 1, 3, N - S]
    assert run("Dims", domain="pyflame", dims=["2", "3"]).tolist() == [2, 3]
    with pytest.raises(PyFlameRTError, match="only once a graph is compiled"):
        run("Dims", domain="pyflame", dims=["N"])
    spaced = infer_outputs(get_op("Dims", "pyflame"), [], {"dims": ['2*"batch size" - 1']})[0]
    assert spaced.known.tolist() == [2 * symbol("batch size") - 1]
    for text in ("floor((N)/2)", "2*floor((N)/2) + 1", "(N + 1)*2", "N**2", "no; size", ""):
        opaque = infer_outputs(get_op("Dims", "pyflame"), [], {"dims": [text]})[0]
        assert opaque.known is None
        assert opaque.type.shape == [1]


def test_large_contents_are_not_worked_out():
    made = infer("Range", ints(0), ints(10**9), ints(1))[0]
    assert made.type.shape == [10**9]
    assert made.known is None
    assert infer("ConstantOfShape", ints(10**6, 10**6))[0].known is None


# ---------------------------------------------------------------------- values

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
CASES = [
    ("Reshape", [X, i64(4, -1)], {}),
    ("Reshape", [X[:0], i64(0, 5)], {"allowzero": 1}),
    ("Expand", [X[:, :1], i64(2, 1, 3, 1)], {}),
    ("Expand", [np.float32(3).reshape(()), i64()], {}),
    ("Transpose", [X], {"perm": [1, 2, 0]}),
    ("Squeeze", [X[:1]], {}),
    ("Unsqueeze", [X, i64(-1, 1)], {}),
    ("Flatten", [X], {"axis": -1}),
    ("Flatten", [X[:0]], {"axis": 1}),
    ("Flatten", [np.float32(3).reshape(())], {"axis": 0}),
    ("Shape", [X], {"start": -2, "end": 100}),
    ("Size", [X], {}),
    ("Concat", [X, X[:, :1]], {"axis": -2}),
    ("Slice", [X, i64(-1, 3), i64(-END, -END), i64(1, 2), i64(-1, -2)], {}),
    ("Slice", [X, i64(5), i64(2), i64(2)], {}),
    ("Pad", [X, i64(1, -1, 0, 0, 1, 2), np.float32(7).reshape(())], {}),
    ("Pad", [X, i64(2, 1), None, i64(-1)], {"mode": "reflect"}),
    ("Pad", [X, i64(5, 6), None, i64(1)], {"mode": "wrap"}),
    ("Pad", [X, i64(2, -1), None, i64(0)], {"mode": "edge"}),
    ("Tile", [X, i64(1, 2, 0)], {}),
    ("Tile", [X, i64(2, 1, 3)], {}),
    ("Trilu", [X, np.array(1)], {}),
    ("Trilu", [X, np.array(-1)], {"upper": 0}),
    ("EyeLike", [X[0]], {"k": -1, "dtype": DType.Int32.onnx}),
    ("DepthToSpace", [np.arange(32, dtype=np.float32).reshape(1, 8, 2, 2)], {"blocksize": 2, "mode": "CRD"}),
    ("SpaceToDepth", [np.arange(32, dtype=np.float32).reshape(1, 2, 4, 4)], {"blocksize": 2}),
    ("CenterCropPad", [X, i64(5, 2)], {"axes": [0, 2]}),
    ("ReverseSequence", [X, i64(2, 0, 1)], {}),
    ("Range", [np.float32(0), np.float32(0.3), np.float32(0.1)], {}),
    ("Range", [np.array(5, np.int16), np.array(-3, np.int16), np.array(-3, np.int16)], {}),
    ("Range", [np.array(5), np.array(1), np.array(2)], {}),
    ("ConstantOfShape", [i64(2, 3)], {}),
    ("ConstantOfShape", [i64()], {}),
]


@pytest.mark.parametrize(("op", "arrays", "attributes"), CASES)
def test_libraries_agree_and_types_are_as_inferred(op, arrays, attributes):
    arrays = [None if a is None else np.asarray(a) for a in arrays]
    first = run(op, *arrays, **attributes)
    for library in LIBRARIES[1:]:
        other = run(op, *arrays, library=library, **attributes)
        assert other.dtype == first.dtype
        np.testing.assert_array_equal(other, first)
    for known in (True, False):
        given = [
            None if a is None else value(DType.of(a.dtype), a.shape, a if known and a.dtype == np.int64 else None)
            for a in arrays
        ]
        kind = infer(op, *given, **attributes)[0].type
        if kind is not None:
            assert kind.dtype is DType.of(first.dtype)
            assert kind.shape is None or len(kind.shape) == first.ndim
            assert kind.shape is None or all(d in (None, n) for d, n in zip(kind.shape, first.shape, strict=True))


@pytest.mark.parametrize(
    ("op", "arrays", "attributes"), [c for c in CASES if c[0] not in ("SpaceToDepth", "DepthToSpace")]
)
def test_onnxruntime_agrees(op, arrays, attributes):
    ort = pytest.importorskip("onnxruntime")
    arrays = [None if a is None else np.asarray(a) for a in arrays]
    names = ["" if a is None else f"i{i}" for i, a in enumerate(arrays)]
    infos = [
        oh.make_tensor_value_info(n, oh.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in zip(names, arrays, strict=True)
        if n
    ]
    result = run(op, *arrays, **attributes)
    out = oh.make_tensor_value_info("o", oh.np_dtype_to_tensor_dtype(result.dtype), None)
    graph = oh.make_graph([oh.make_node(op, names, ["o"], **attributes)], "g", infos, [out])
    model = oh.make_model(graph, opset_imports=[oh.make_opsetid("", 19)], ir_version=9)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {n: a for n, a in zip(names, arrays, strict=True) if n})
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("dtype", list(DType))
def test_every_element_type_moves(dtype):
    plain = np.array([[0, 1], [1, 0]])
    x = plain.astype(str).astype(object) if dtype is DType.String else plain.astype(dtype.numpy)
    if dtype is DType.Float8E8M0:
        x = np.array([[1, 2], [2, 1]]).astype(dtype.numpy)
    for library in LIBRARIES:
        np.testing.assert_array_equal(run("Reshape", x, i64(-1), library=library), x.reshape(-1))
        np.testing.assert_array_equal(run("Transpose", x, library=library), x.T)
        np.testing.assert_array_equal(run("Concat", x, x, library=library, axis=0), np.concatenate([x, x]))
        np.testing.assert_array_equal(run("Slice", x, i64(1), i64(-END), i64(1), i64(-1), library=library), x[:, ::-1])
        np.testing.assert_array_equal(run("Tile", x, i64(1, 2), library=library), np.tile(x, (1, 2)))
        np.testing.assert_array_equal(run("Expand", x, i64(2, 1, 1), library=library), np.stack([x, x]))
        padded = run(
            "Pad",
            x,
            i64(0, 1, 0, 0),
            x[0, 1].reshape(()) if dtype is not DType.String else np.array("1", object),
            library=library,
        )
        assert padded.dtype == x.dtype
        assert padded.tolist() == [[x[0, 1], *x[0]], [x[0, 1], *x[1]]]


def test_strings_pad_with_nothing_and_keep_triangles():
    x = np.array([["a", "b"], ["c", "d"]], object)
    assert run("Pad", x, i64(0, 0, 0, 1)).tolist() == [["a", "b", ""], ["c", "d", ""]]
    assert run("Trilu", x).tolist() == [["a", "b"], ["", "d"]]


@pytest.mark.parametrize("library", LIBRARIES)
def test_half_precision_ranges_count_in_float32(library):
    for dtype in (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)):
        numbers = [np.asarray(v).astype(dtype) for v in (0.0, 3000.0, 1.0)]
        made = run("Range", *numbers, library=library)
        count = int(numbers[1])
        np.testing.assert_array_equal(made, np.arange(count, dtype=np.float32).astype(dtype))


def test_constants_of_every_form():
    assert run("Constant", value_int=3).tolist() == 3
    assert run("Constant", value_floats=[1.5]).dtype == np.float32
    assert run("Constant", value_string="ä", library="torch").tolist() == "ä"
    assert infer("Constant", value_ints=[1, 2])[0].known.tolist() == [1, 2]
    with pytest.raises(InputError, match="one attribute must hold"):
        run("Constant")


def test_constant_of_shape_takes_the_type_of_its_value():
    for fill in (np.array([2], ml_dtypes.int4), np.array([0.5], ml_dtypes.bfloat16), np.array([True])):
        for library in LIBRARIES:
            made = run("ConstantOfShape", i64(2), library=library, value=fill)
            assert made.dtype == fill.dtype
            assert made.tolist() == [fill[0], fill[0]]


@pytest.mark.parametrize(
    ("op", "arrays", "attributes", "message"),
    [
        ("Reshape", [X, i64(5)], {}, "24 elements"),
        ("Squeeze", [X, i64(0)], {}, "only size 1"),
        ("Unsqueeze", [X, i64(0, 0)], {}, "one axis twice"),
        ("Transpose", [X], {"perm": [0, 1]}, "each of the 3 axes"),
        ("Split", [X, i64(1, 2)], {"axis": 2}, r"the sum of the parts \[1, 2\] is 3, but must be 4"),
        ("Slice", [X, i64(0), i64(1), i64(0), i64(0)], {}, "must not be 0"),
        ("Slice", [X, i64(0), i64(1), i64(3)], {}, "out of range"),
        ("Pad", [X, i64(1, 1)], {}, "must be 6 numbers"),
        ("Pad", [X, i64(*[0] * 6)], {"mode": "mirror"}, "mode is one of"),
        ("Tile", [X, i64(2)], {}, "one number per axis"),
        ("Expand", [X, i64(5, 4)], {}, "do not broadcast"),
        ("Range", [np.array(0), np.array(1), np.array(0)], {}, "must not be 0"),
        ("EyeLike", [X], {}, "takes a matrix"),
        ("SpaceToDepth", [np.zeros((1, 1, 3, 4), np.float32)], {"blocksize": 2}, "cannot be divided"),
    ],
)
def test_errors_name_the_node_and_what_came(op, arrays, attributes, message):
    with pytest.raises(PyFlameRTError, match=message) as caught:
        run(op, *arrays, **attributes)
    assert str(caught.value).startswith("node 'n'")


# ---------------------------------------------------------------------- older forms


def test_old_forms_become_new_ones():
    np.testing.assert_array_equal(run_model("Reshape", [X], 1, shape=[0, -1]), X.reshape(2, -1))
    np.testing.assert_array_equal(run_model("Squeeze", [X[:1]], 1, axes=[0]), X[0])
    np.testing.assert_array_equal(run_model("Squeeze", [X[:1]], 11), X[0])
    np.testing.assert_array_equal(run_model("Unsqueeze", [X], 11, axes=[-1, 0]), X[None, ..., None])
    np.testing.assert_array_equal(run_model("Concat", [X, X], 1), np.concatenate([X, X], 1))
    np.testing.assert_array_equal(run_model("Slice", [X], 1, starts=[1, -3], ends=[9, -1], axes=[0, 2]), X[1:, :, 1:3])
    np.testing.assert_array_equal(run_model("Slice", [X], 1, starts=[0, 1], ends=[1, 3]), X[:1, 1:3])
    wide = np.pad(X, [(0, 0), (0, 0), (2, 1)], constant_values=1.5)
    np.testing.assert_array_equal(run_model("Pad", [X], 1, paddings=[0, 0, 2, 0, 0, 1], value=1.5), wide)
    np.testing.assert_array_equal(
        run_model("Pad", [X], 2, pads=[0, 0, 1, 0, 0, 1], mode="reflect"),
        np.pad(X, [(0, 0), (0, 0), (1, 1)], "reflect"),
    )
    np.testing.assert_array_equal(run_model("Tile", [X, np.float32(2), np.float32(1)], 1), np.tile(X, (1, 2, 1)))
    np.testing.assert_array_equal(run_model("Flatten", [X], 1, axis=2), X.reshape(6, 4))


@pytest.mark.parametrize("opset", [2, 11, 13, 18])
def test_splits_of_every_form(opset):
    extra = {"split": [1, 3]} if opset < 13 else {}
    arrays = [X] if opset < 13 else [X, i64(1, 3)]
    left, right = run_model("Split", arrays, opset, 2, axis=2, **extra)
    np.testing.assert_array_equal(left, X[..., :1])
    np.testing.assert_array_equal(right, X[..., 1:])
    first, second = run_model("Split", [X], opset, 2, axis=2, **({"num_outputs": 2} if opset == 18 else {}))
    np.testing.assert_array_equal(np.concatenate([first, second], 2), X)


def test_split_of_version_1_takes_sizes_as_an_input():
    left, right = run_model("Split", [X, np.float32([1, 3])], 1, 2, axis=2)
    assert (left.shape, right.shape) == ((2, 3, 1), (2, 3, 3))


def test_uneven_splits_fill_from_the_front():
    parts = run("Split", np.arange(5), outputs=4, num_outputs=4)
    assert [p.tolist() for p in parts] == [[0, 1], [2, 3], [4], []]


# ---------------------------------------------------------------------- gradients

GRADIENTS = [
    ("Reshape", [X, i64(6, 4)], {}),
    ("Transpose", [X], {"perm": [1, 2, 0]}),
    ("Transpose", [X], {}),
    ("Squeeze", [X[:1], i64(0)], {}),
    ("Unsqueeze", [X, i64(1)], {}),
    ("Flatten", [X], {}),
    ("Expand", [X[:, :1], i64(2, 2, 3, 1)], {}),
    ("Concat", [X, X[:1]], {"axis": 0}),
    ("Split", [X], {"axis": 2, "num_outputs": 2}),
    ("Slice", [X, i64(1, 1), i64(9, 3), i64(1, 2)], {}),
    ("Slice", [X, i64(3), i64(-END), i64(2), i64(-2)], {}),
    ("Pad", [X, i64(1, 0, 0, 0, -1, 2)], {}),
    ("Pad", [X, i64(2, 1), None, i64(-1)], {"mode": "reflect"}),
    ("Pad", [X, i64(2, 1), None, i64(-1)], {"mode": "edge"}),
    ("Tile", [X, i64(2, 1, 3)], {}),
    ("Trilu", [X, np.array(1)], {}),
    ("ReverseSequence", [X, i64(2, 0, 1)], {}),
    ("CenterCropPad", [X, i64(5, 2)], {"axes": [0, 2]}),
    ("SpaceToDepth", [np.arange(32, dtype=np.float32).reshape(1, 2, 4, 4)], {"blocksize": 2}),
]


@pytest.mark.parametrize(("op", "arrays", "attributes"), GRADIENTS)
def test_gradients_are_transposes(op, arrays, attributes):
    """These are linear: <g, f(x)> and <vjp(g), x> are one number, for every x and g."""
    g = Graph("g")
    names = []
    for i, array in enumerate(arrays):
        names.append("" if array is None else f"x{i}")
        if array is not None and array.dtype == np.float32:
            g.add_input(names[-1], array.shape, DType.Float64)
        elif array is not None:
            g.add_initializer(names[-1], array)
    count = attributes.get("num_outputs", 1)
    outputs = [f"y{i}" for i in range(count)]
    g.add_node("n", op, names, outputs, attributes)
    infer_types(g, strict=True)
    wrt = [info.name for info in g.inputs]
    back = gradient(g, outputs, wrt, seeded=True)
    rng = np.random.default_rng(0)
    feeds = {info.name: rng.standard_normal([int(d) for d in info.shape]) for info in back.inputs}
    results = Program(back).run([feeds[info.name] for info in back.inputs], Context.of("numpy"))
    forward, grads = results[:count], results[count:]
    left = sum((feeds[f"{name}_seed"] * y).sum() for name, y in zip(outputs, forward, strict=True))
    right = sum((feeds[name] * grad).sum() for name, grad in zip(wrt, grads, strict=True))
    assert left == pytest.approx(right, rel=1e-12)
