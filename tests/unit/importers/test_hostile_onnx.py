"""Models made to do harm: each is refused with a typed error, or read for what it is."""

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, TensorProto, helper, numpy_helper

import pyflame_rt
from pyflame_rt.graph.errors import BackendError, DTypeMismatchError, InvalidModelError, PyFlameRTError, ValidationError
from pyflame_rt.importers.onnx_importer import graph_from_bytes, graph_from_file, graph_from_proto

REFERENCE = ["ReferenceExecutionProvider"]


def info(name, shape=(3,), dtype=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, dtype, shape)


def model_of(nodes, initializers=(), *, inputs=None, outputs=None, opset=17, ir_version=9, functions=()):
    graph = helper.make_graph(
        nodes,
        "g",
        [info("x")] if inputs is None else inputs,
        [info("y")] if outputs is None else outputs,
        list(initializers),
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("local", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=ir_version, functions=list(functions))


def relu():
    return helper.make_node("Relu", ["x"], ["y"], "act")


def session(model):
    return pyflame_rt.InferenceSession(model.SerializeToString(), providers=REFERENCE)


def run(model, x=(-1.0, 0.0, 2.0)):
    return session(model).run(None, {"x": np.asarray(x, np.float32)})


# ---------------------------------------------------------------------- tensors


def raw_tensor(dims, data, data_type=TensorProto.FLOAT):
    tensor = TensorProto(name="w", data_type=data_type, raw_data=data)
    tensor.dims.extend(dims)
    return tensor


@pytest.mark.parametrize(
    ("dims", "data"),
    [
        ([1 << 62, 1 << 62], b"\0" * 4),
        ([1 << 40], b""),
        ([0, 1 << 62, 1 << 62], b"\0" * 8),
        ([-1], b"\0" * 4),
        ([-4, -1], b"\0" * 16),
        ([2], b"\0" * 7),
        ([2], b"\0" * 4),
        ([2], b"\0" * 12),
        ([1] * 100, b"\0" * 4),
    ],
)
def test_dims_that_do_not_fit_the_data(dims, data):
    with pytest.raises(InvalidModelError, match="tensor 'w'"):
        graph_from_proto(model_of([relu()], [raw_tensor(dims, data)]))


@pytest.mark.parametrize("field", ["float_data", "int64_data", "string_data"])
def test_typed_data_of_the_wrong_length(field):
    number = {"float_data": TensorProto.FLOAT, "int64_data": TensorProto.INT64, "string_data": TensorProto.STRING}[
        field
    ]
    tensor = TensorProto(name="w", data_type=number, dims=[1 << 50])
    getattr(tensor, field).append(b"a" if field == "string_data" else 1)
    with pytest.raises(InvalidModelError, match="tensor 'w'"):
        graph_from_proto(model_of([relu()], [tensor]))


@pytest.mark.parametrize("number", [0, 99, -5])
def test_unknown_element_types(number):
    with pytest.raises(PyFlameRTError, match="element type"):
        graph_from_proto(model_of([relu()], [raw_tensor([1], b"\0" * 4, number)]))
    with pytest.raises(DTypeMismatchError, match="element type 77"):
        graph_from_proto(model_of([relu()], inputs=[info("x", dtype=77)]))


def test_tensors_of_no_elements_are_fine():
    graph = graph_from_proto(model_of([relu()], [raw_tensor([0, 3], b""), helper.make_tensor("e", 1, [2, 0], [])]))
    assert [t.shape for t in graph.initializers.values()] == [[0, 3], [2, 0]]


def test_a_sparse_tensor_that_would_fill_the_memory():
    values = helper.make_tensor("v", TensorProto.FLOAT, [1], [1.0])
    sparse = helper.make_sparse_tensor(values, helper.make_tensor("i", TensorProto.INT64, [1], [0]), [1 << 45])
    with pytest.raises(InvalidModelError, match="sparse tensor"):
        graph_from_proto(model_of([helper.make_node("Constant", [], ["y"], sparse_value=sparse)]))


@pytest.mark.parametrize("index", [7, -9])
def test_a_sparse_tensor_with_indices_outside(index):
    values = helper.make_tensor("v", TensorProto.FLOAT, [1], [1.0])
    sparse = helper.make_sparse_tensor(values, helper.make_tensor("i", TensorProto.INT64, [1], [index]), [3])
    with pytest.raises(InvalidModelError, match="sparse tensor"):
        graph_from_proto(model_of([helper.make_node("Constant", [], ["y"], sparse_value=sparse)]))


# ---------------------------------------------------------------------- data in other files


def external(location, **fields):
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[3], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, **fields}.items():
        tensor.external_data.add(key=key, value=str(value))
    return model_of([helper.make_node("Add", ["x", "w"], ["y"])], [tensor])


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "secret.bin").write_bytes(np.ones(3, np.float32).tobytes())
    home = tmp_path / "models"
    home.mkdir()
    (home / "w.bin").write_bytes(np.ones(3, np.float32).tobytes())
    (home / "link.bin").symlink_to(tmp_path / "secret.bin")
    (home / "up").symlink_to(tmp_path)
    return home


@pytest.mark.parametrize(
    "location",
    ["../secret.bin", "sub/../../secret.bin", "{root}/secret.bin", "link.bin", "up/secret.bin", "/etc/passwd", "", "."],
)
def test_data_files_outside_the_folder_are_not_read(folder, location):
    onnx.save(external(location.format(root=folder.parent)), folder / "m.onnx")
    with pytest.raises(InvalidModelError, match="no data file"):
        graph_from_file(folder / "m.onnx")


@pytest.mark.parametrize(
    "fields", [{"offset": 8}, {"offset": -4}, {"length": 1 << 60}, {"length": 8}, {"offset": "x"}, {"offset": 1 << 70}]
)
def test_spans_outside_the_data_file(folder, fields):
    onnx.save(external("w.bin", **fields), folder / "m.onnx")
    with pytest.raises(InvalidModelError, match="tensor 'w'"):
        graph_from_file(folder / "m.onnx")


def test_a_data_file_beside_the_model_is_mapped(folder):
    onnx.save(external("w.bin", offset=0, length=12), folder / "m.onnx")
    assert graph_from_file(folder / "m.onnx").initializers["w"].raw().tolist() == [1, 1, 1]


def test_bytes_cannot_name_files():
    with pytest.raises(InvalidModelError, match="load the model from its path"):
        graph_from_bytes(external("w.bin").SerializeToString())


# ---------------------------------------------------------------------- recursion


def test_subgraphs_nested_very_deep():
    def field(number, payload):
        length, head = len(payload), bytearray([number << 3 | 2])
        while length > 127:
            head.append(length & 127 | 128)
            length >>= 7
        return bytes([*head, length]) + payload

    body = b""
    for _ in range(2000):
        attribute = field(1, b"then_branch") + b"\xa0\x01\x05" + field(6, body)
        body = field(1, field(1, b"c") + field(2, b"y") + field(4, b"If") + field(5, attribute))
    with pytest.raises(InvalidModelError, match="not an ONNX model"):
        graph_from_bytes(b"\x08\x09" + field(7, body))


def function(name, nodes):
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    return helper.make_function("local", name, ["a"], ["b"], nodes, opsets)


def call(name, given="a", made="b"):
    return helper.make_node(name, [given], [made], domain="local")


def test_a_function_that_calls_itself():
    with pytest.raises(InvalidModelError, match="nested"):
        graph_from_proto(model_of([call("f", "x", "y")], functions=[function("f", [call("f")])]))
    loop = [function("f", [call("g")]), function("g", [call("f")])]
    with pytest.raises(InvalidModelError, match="nested"):
        graph_from_proto(model_of([call("f", "x", "y")], functions=loop))


def test_functions_that_multiply():
    # Each calls the next twice: 2^40 nodes when inlined.
    layers = [function(f"f{i}", [call(f"f{i + 1}", "a", "t"), call(f"f{i + 1}", "t", "b")]) for i in range(40)]
    layers.append(function("f40", [helper.make_node("Relu", ["a"], ["b"])]))
    with pytest.raises(InvalidModelError, match="more than"):
        graph_from_proto(model_of([call("f0", "x", "y")], functions=layers))


# ---------------------------------------------------------------------- structure


@pytest.mark.parametrize(
    "nodes",
    [
        [helper.make_node("Add", ["x", "b"], ["a"]), helper.make_node("Relu", ["a"], ["b"]), relu()],
        [helper.make_node("Relu", ["y"], ["y"])],
        [relu(), relu()],
        [helper.make_node("Relu", ["x"], ["x"]), relu()],
        [helper.make_node("Relu", ["nowhere"], ["y"])],
        [helper.make_node("Relu", ["x"], [])],
        [],
    ],
)
def test_cycles_duplicates_and_missing_values(nodes):
    with pytest.raises(ValidationError):
        session(model_of(nodes))


def test_duplicate_inputs():
    with pytest.raises(ValidationError, match="twice"):
        session(model_of([relu()], inputs=[info("x"), info("x")]))


def test_no_opset_for_the_operators():
    model = model_of([relu()])
    del model.opset_import[0]
    with pytest.raises(InvalidModelError, match="imports no opset"):
        graph_from_proto(model)


@pytest.mark.parametrize("version", [0, -1, -(1 << 62)])
def test_opsets_that_never_were(version):
    model = model_of([relu()])
    model.opset_import[0].version = version
    with pytest.raises(PyFlameRTError, match=str(version)):
        run(model)


@pytest.mark.parametrize(("ir_version", "opset"), [(99, 17), (1 << 40, 17), (14, 999)])
def test_newer_versions_are_read_when_the_operators_are_known(ir_version, opset):
    np.testing.assert_array_equal(run(model_of([relu()], ir_version=ir_version, opset=opset))[0], [0, 0, 2])


def test_names_that_are_not_utf8():
    data = model_of([relu()]).SerializeToString().replace(b"act", b"\xff\xfe!")
    graph = graph_from_bytes(data)
    assert graph.nodes[0].name == "\\xff\\xfe!"


def test_huge_names():
    name = "n" * 5_000_000
    model = model_of([helper.make_node("Relu", ["x"], [name], name), helper.make_node("Neg", [name], ["y"])])
    assert session(model).run(None, {"x": np.ones(3, np.float32)})[0].tolist() == [-1, -1, -1]


# ---------------------------------------------------------------------- attributes


@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("LeakyRelu", {"alpha": "steep"}),
        ("LeakyRelu", {"alpha": [1.0]}),
        ("LeakyRelu", {"no_such": 1}),
        ("Concat", {"axis": "first"}),
        ("Concat", {}),
        ("Cast", {"to": 99}),
        ("Cast", {"to": "float"}),
        ("Softmax", {"axis": 1 << 62}),
        ("Transpose", {"perm": [0.5]}),
        ("Transpose", {"perm": [7]}),
        ("MaxPool", {"kernel_shape": "3"}),
        ("If", {"then_branch": 1, "else_branch": 2}),
        ("Loop", {}),
    ],
)
def test_attributes_of_the_wrong_kind(op, attributes):
    with pytest.raises(PyFlameRTError):
        run(model_of([helper.make_node(op, ["x"], ["y"], **attributes)]))


def test_an_attribute_without_a_type():
    node = relu()
    node.attribute.add(name="odd")
    with pytest.raises(InvalidModelError, match="'odd' has no usable type"):
        graph_from_proto(model_of([node]))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_attributes_that_are_no_numbers_compute(value):
    (result,) = run(model_of([helper.make_node("LeakyRelu", ["x"], ["y"], alpha=value)]))
    np.testing.assert_array_equal(result, np.float32([-1 * value, 0.0, 2.0]))


def test_a_reference_to_an_attribute_outside_a_function():
    node = relu()
    node.attribute.add(name="alpha", ref_attr_name="nowhere", type=AttributeProto.FLOAT)
    assert not graph_from_proto(model_of([node])).nodes[0].attributes


# ---------------------------------------------------------------------- allocation


BIG = 1 << 40


@pytest.mark.parametrize(
    ("op", "extra", "attributes"),
    [
        ("ConstantOfShape", [np.array([BIG])], {}),
        ("ConstantOfShape", [np.array([1 << 62, 1 << 62])], {}),
        ("Expand", ["x", np.array([BIG, 3])], {}),
        ("Tile", ["x", np.array([BIG])], {}),
        ("Pad", ["x", np.array([BIG, BIG])], {}),
        ("Pad", ["x", np.array([0, BIG])], {"mode": "edge"}),
        ("Resize", ["x", "", "", np.array([BIG])], {}),
        ("Range", [np.array(0), np.array(BIG), np.array(1)], {}),
        ("OneHot", [np.array([0]), np.array(BIG), np.array([0, 1])], {}),
        ("Reshape", ["x", np.array([BIG, -1])], {}),
        ("RandomUniform", [], {"shape": [BIG]}),
        ("EyeLike", [np.zeros((2, 2))], {"k": BIG}),
        ("HannWindow", [np.array(BIG)], {}),
    ],
)
def test_results_that_would_fill_the_memory(op, extra, attributes):
    constants = [numpy_helper.from_array(v, f"c{i}") for i, v in enumerate(extra) if isinstance(v, np.ndarray)]
    names = [f"c{i}" if isinstance(v, np.ndarray) else v for i, v in enumerate(extra)]
    output = helper.make_empty_tensor_value_info("y")
    model = model_of([helper.make_node(op, names, ["y"], **attributes)], constants, outputs=[output])
    if op == "EyeLike":
        assert not run(model)[0].any()
        return
    with pytest.raises(PyFlameRTError):
        run(model)


def test_an_endless_loop_ends_with_the_time_limit():
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Identity", ["v"], ["w"])],
        "body",
        [info("i", (), TensorProto.INT64), info("go", (), TensorProto.BOOL), info("v")],
        [info("on", (), TensorProto.BOOL), info("w")],
    )
    go = numpy_helper.from_array(np.array(True), "true")
    model = model_of([helper.make_node("Loop", ["", "true", "x"], ["y"], body=body)], [go])
    with pytest.raises(BackendError):
        session(model).run(None, {"x": np.zeros(3, np.float32)}, pyflame_rt.RunOptions(timeout_ms=100))
