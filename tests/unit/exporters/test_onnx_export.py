import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from pyflame_rt.exporters import export_onnx, onnx_model
from pyflame_rt.exporters import onnx as exporter
from pyflame_rt.format import dumps_model, loads_model
from pyflame_rt.graph import AnyType, DType, Graph, SequenceType, Shape, Tensor, TensorInfo, TensorType
from pyflame_rt.graph.errors import UnsupportedFormatError, UnsupportedOperatorError
from pyflame_rt.importers.onnx_importer import graph_from_file, graph_from_proto

FLOAT = TensorProto.FLOAT


def info(name, shape=(3,), dtype=FLOAT):
    return helper.make_tensor_value_info(name, dtype, shape)


def model_of(nodes, inputs=("x",), outputs=("y",), initializers=(), opset=17, **more):
    given = [info(i) if isinstance(i, str) else i for i in inputs]
    made = [info(o) if isinstance(o, str) else o for o in outputs]
    graph = helper.make_graph(nodes, "g", given, made, list(initializers))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10, **more)


def run(model, **feeds):
    data = model if isinstance(model, (bytes, str)) else model.SerializeToString()
    return onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"]).run(None, feeds)


def round_trip(model):
    graph = graph_from_proto(model)
    exported = onnx_model(graph)
    onnx.checker.check_model(exported, full_check=True)
    return graph, exported


def relu_graph():
    graph = Graph("g")
    graph.add_input("x", [3])
    graph.add_node("n", "Relu", ["x"], ["y"])
    graph.add_output("y", [3])
    return graph


X = np.array([-1.0, 0.5, 2.0], np.float32)


def nested_if():
    inner = helper.make_graph([helper.make_node("Add", ["x", "w"], ["in"])], "inner", [], [info("in")])
    same = helper.make_graph([helper.make_node("Identity", ["t"], ["id"])], "same", [], [info("id")])
    branch = helper.make_graph(
        [
            helper.make_node("Mul", ["x", "x"], ["t"]),
            helper.make_node("If", ["c"], ["b"], then_branch=inner, else_branch=same),
        ],
        "branch",
        [],
        [info("b")],
    )
    other = helper.make_graph([helper.make_node("Neg", ["x"], ["n"])], "other", [], [info("n")])
    weight = numpy_helper.from_array(np.ones(3, np.float32), "w")
    node = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=other)
    return model_of([node], [info("x"), info("c", (), TensorProto.BOOL)], initializers=[weight])


@pytest.mark.parametrize("flag", [True, False])
def test_captures_vanish_again_at_every_level(flag):
    model = nested_if()
    _, exported = round_trip(model)
    assert list(exported.graph.node[0].input) == ["c"]
    assert not exported.graph.node[0].attribute[0].g.input
    np.testing.assert_array_equal(run(exported, x=X, c=np.array(flag)), run(model, x=X, c=np.array(flag)))


def body_graph(capture, local):
    body = Graph("body")
    body.add_input(TensorInfo(capture, type=TensorType(DType.Float32, Shape([3]))))
    body.add_node("n", "Neg", [capture], [local])
    body.add_output(local, [3])
    return body


def if_graph(then, other):
    graph = Graph("g")
    graph.add_input("c", [], DType.Bool)
    graph.add_input("x", [3])
    graph.add_node("abs", "Abs", ["x"], ["a"])
    attributes = {"then_branch": then, "else_branch": other, "captured": 1}
    graph.add_node("if", "If", ["c", "a"], ["y"], attributes)
    graph.add_output("y", [3])
    return graph


def test_a_capture_under_another_name_is_bound_to_the_outer_value():
    exported = onnx_model(if_graph(body_graph("inside", "t"), body_graph("q", "e")))
    onnx.checker.check_model(exported, full_check=True)
    np.testing.assert_array_equal(run(exported, x=X, c=np.array(True))[0], -np.abs(X))


def test_names_of_a_subgraph_do_not_hide_outer_ones():
    # The body calls its own value "x", which outside is something else.
    exported = onnx_model(if_graph(body_graph("a", "x"), body_graph("x", "a")))
    onnx.checker.check_model(exported, full_check=True)
    for flag in (True, False):
        np.testing.assert_array_equal(run(exported, x=X, c=np.array(flag))[0], -np.abs(X))


def test_a_body_that_hands_on_a_capture_copies_it():
    body = Graph("body")
    body.add_input("k", [3])
    body.add_output("k", [3])
    exported = onnx_model(if_graph(body, body))
    assert [n.op_type for n in exported.graph.node[1].attribute[0].g.node] == ["Identity"]
    np.testing.assert_array_equal(run(exported, x=X, c=np.array(True))[0], np.abs(X))


def test_functions_are_inlined():
    node = helper.make_node("Add", ["a", "a"], ["b"])
    twice = helper.make_function("local", "twice", ["a"], ["b"], [node], [helper.make_opsetid("", 17)])
    model = model_of([helper.make_node("twice", ["x"], ["y"], domain="local")], functions=[twice])
    model.opset_import.append(helper.make_opsetid("local", 1))
    _, exported = round_trip(model)
    assert not exported.functions
    np.testing.assert_array_equal(run(exported, x=X)[0], X + X)


def test_inputs_keep_their_defaults():
    weight = numpy_helper.from_array(np.full(3, 2, np.float32), "w")
    model = model_of([helper.make_node("Mul", ["x", "w"], ["y"])], ["x", "w"], initializers=[weight])
    graph, exported = round_trip(model)
    assert [i.name for i in exported.graph.input] == ["x", "w"]
    np.testing.assert_array_equal(run(exported, x=X)[0], X * 2)
    np.testing.assert_array_equal(run(exported, x=X, w=X)[0], X * X)
    assert graph_from_proto(exported).fingerprint(weights=True) == graph.fingerprint(weights=True)


def test_custom_domains_keep_their_version_and_attributes():
    model = model_of([helper.make_node("Thing", ["x"], ["y"], domain="my.ops", mode="fast", sizes=[1, 2], eps=0.5)])
    model.opset_import.append(helper.make_opsetid("my.ops", 7))
    exported = onnx_model(graph_from_proto(model))
    assert {o.domain: o.version for o in exported.opset_import} == {"": 13, "my.ops": 7}
    assert exported.graph.node[0].attribute == model.graph.node[0].attribute


def test_contrib_operators_run():
    model = model_of([helper.make_node("Gelu", ["x"], ["y"], domain="com.microsoft")])
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    exported = onnx_model(graph_from_proto(model))
    np.testing.assert_array_equal(run(exported, x=X), run(model, x=X))


@pytest.mark.parametrize(
    "dtype",
    [ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.float8_e4m3fn, ml_dtypes.bfloat16, np.bool_, np.complex64, np.uint16],
)
def test_tensors_of_every_type_come_back(dtype):
    graph = relu_graph()
    graph.add_initializer("k", np.array([0, 1, 1]).astype(dtype))
    graph.add_initializer("none", np.zeros((0, 2), dtype))
    model = onnx_model(graph)
    onnx.checker.check_model(model)
    again = graph_from_proto(model)
    assert again.initializers["k"].dtype is DType.of(dtype)
    assert again.initializers["k"].raw().tolist() == graph.initializers["k"].raw().tolist()
    assert again.initializers["none"].shape == [0, 2]


def test_strings_come_back():
    graph = relu_graph()
    graph.add_initializer("s", np.array([["a", "ü"], ["", "b\udcff"]], dtype=object))
    again = graph_from_proto(onnx_model(graph))
    assert again.initializers["s"].raw().tolist() == [["a", "ü"], ["", "b\udcff"]]


@pytest.mark.parametrize(("dtype", "version"), [(ml_dtypes.int4, 10), (ml_dtypes.float8_e5m2, 9), (np.float64, 7)])
def test_the_ir_version_knows_the_element_types(dtype, version):
    graph = relu_graph()
    graph.add_initializer("k", np.array([0, 1]).astype(dtype))
    assert onnx_model(graph).ir_version == version


@pytest.mark.parametrize(
    ("op", "attributes", "dtype", "opset"),
    [
        ("Relu", {}, DType.Float32, 13),
        ("Relu", {}, DType.Int32, 14),
        ("Mish", {}, DType.Float32, 18),
        ("Gelu", {}, DType.Float32, 20),
        ("Identity", {}, DType.Int4, 21),
        ("Cast", {"to": TensorProto.INT4}, DType.Float32, 21),
    ],
)
def test_the_lowest_opset_that_holds_every_node_is_chosen(op, attributes, dtype, opset):
    graph = Graph("g")
    graph.add_input("x", [3], dtype)
    graph.add_node("n", op, ["x"], ["y"], attributes)
    graph.add_output(TensorInfo("y", [3], DType.Int4 if "to" in attributes else dtype))
    assert onnx_model(graph).opset_import[0].version == opset


def test_an_opset_may_be_asked_for():
    assert onnx_model(relu_graph(), opset=20).opset_import[0].version == 20
    for bad in (12, 999):
        with pytest.raises(UnsupportedFormatError, match=f"opset {bad} cannot hold"):
            onnx_model(relu_graph(), opset=bad)


@pytest.mark.parametrize(("size", "opset"), [(6, 13), (7, 18), ("N", 18)])
def test_split_by_number_needs_opset_18_where_parts_may_differ(size, opset):
    graph = Graph("g")
    graph.add_input("x", [size])
    graph.add_node("n", "Split", ["x"], ["a", "b"], {"num_outputs": 2})
    graph.add_output("a", None), graph.add_output("b", None)
    model = onnx_model(graph)
    assert model.opset_import[0].version == opset
    assert bool(model.graph.node[0].attribute) == (opset == 18)


def test_attributes_take_the_type_the_operator_declares():
    graph = Graph("g")
    graph.add_input("x", [3])
    graph.add_node("n", "LeakyRelu", ["x"], ["y"], {"alpha": 1})
    graph.add_node("m", "Scaler", ["y"], ["z"], {"offset": [], "scale": [2]}, domain="ai.onnx.ml")
    graph.add_output("z", [3])
    model = onnx_model(graph)
    kinds = [a.type for node in model.graph.node for a in node.attribute]
    assert kinds == [onnx.AttributeProto.FLOAT, onnx.AttributeProto.FLOATS, onnx.AttributeProto.FLOATS]
    graph.nodes[0].set_attr("odd", object())
    with pytest.raises(UnsupportedFormatError, match="'odd'"):
        onnx_model(graph)


def test_operators_of_our_own_are_inlined_in_subgraphs_too():
    graph = if_graph(Graph("then"), body_graph("q", "e"))
    body = graph.nodes[1].attributes["then_branch"]
    body.add_input("k", [3])
    body.add_initializer("b", np.ones((2,), np.float32))
    body.add_node("al", "AlignAxis", ["k", "k"], ["s"], {"axis": 0}, domain="pyflame")
    body.add_node("neg", "Neg", ["s"], ["t"])
    body.add_output("t", [3])
    exported = onnx_model(graph)
    onnx.checker.check_model(exported, full_check=True)
    np.testing.assert_array_equal(run(exported, x=X, c=np.array(True))[0], -np.abs(X))


def test_batch_statistics_are_inlined():
    graph = Graph("g")
    graph.add_input("x", [2, 3, 4])
    graph.add_node("n", "BatchStatistics", ["x"], ["m", "v"], domain="pyflame")
    graph.add_output("m", [3]), graph.add_output("v", [3])
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    mean, variance = run(onnx_model(graph), x=x)
    np.testing.assert_allclose(mean, x.mean((0, 2)), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(variance, x.var((0, 2)), rtol=1e-4)


def test_operators_without_a_body_are_refused_by_name():
    graph = Graph("g")
    graph.add_input("x", [3])
    graph.add_node("n", "Probit", ["x"], ["y"], domain="pyflame")
    graph.add_output("y", [3])
    with pytest.raises(UnsupportedOperatorError, match=r"'n' \(pyflame::Probit\) cannot be exported"):
        onnx_model(graph)


def test_metadata_comes_back():
    model = model_of([helper.make_node("Relu", ["x"], ["y"])], producer_name="p", producer_version="2", domain="d")
    model.doc_string, model.model_version, model.graph.doc_string = "about", 7, "graph"
    helper.set_model_props(model, {"author": "me", "custom.x": "1"})
    graph, exported = round_trip(model)
    again = graph_from_proto(exported)
    mine = {k: v for k, v in graph.metadata.items() if k != "ir_version"}
    assert {k: v for k, v in again.metadata.items() if k != "ir_version"} == mine
    assert (again.doc, again.name) == ("graph", "g")


def test_metadata_that_is_no_number_or_not_ours_is_kept_where_it_fits():
    graph = relu_graph()
    graph.metadata = {"version": "one", "author": "me"}
    model = onnx_model(graph)
    assert model.model_version == 0
    assert [(p.key, p.value) for p in model.metadata_props] == [("author", "me")]


def test_outputs_get_the_type_they_lack():
    graph = relu_graph()
    graph.add_node("s", "SequenceConstruct", ["y"], ["z"])
    graph.outputs = [TensorInfo("z", type=AnyType())]
    exported = onnx_model(graph)
    assert graph_from_proto(exported).outputs[0].type == SequenceType(TensorType(DType.Float32, Shape([3])))


def test_nodes_listed_out_of_order_are_sorted():
    graph = relu_graph()
    graph.nodes.insert(0, graph.nodes[0].replace(name="m", inputs=["y"], outputs=["z"]))
    graph.add_output("z", [3])
    assert [n.name for n in onnx_model(graph).graph.node] == ["n", "m"]


def weights_graph():
    graph = Graph("g")
    graph.add_input("x", [1, 64])
    weight = Tensor(np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32))
    graph.add_initializer("w", weight), graph.add_initializer("same", weight)
    graph.add_initializer("q", np.arange(4096).reshape(64, 64).astype(ml_dtypes.int4))
    graph.add_node("m", "MatMul", ["x", "w"], ["h"])
    graph.add_node("k", "MatMul", ["h", "same"], ["y"])
    graph.add_output("y", [1, 64])
    return graph


@pytest.mark.parametrize("limit", [None, 1000])
def test_large_weights_go_to_a_file_beside_the_model(tmp_path, monkeypatch, limit):
    graph, path = weights_graph(), tmp_path / "m.onnx"
    if limit:
        monkeypatch.setattr(exporter, "_MAX_INLINE", limit)
    export_onnx(graph, path, external_data=None if limit else True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.onnx", "m.onnx.data"]
    # "w" and "same" are one tensor, stored once; "q" has two to a byte.
    assert (tmp_path / "m.onnx.data").stat().st_size == 64 * 64 * 4 + 2048
    assert path.stat().st_size < 2000
    x = np.ones((1, 64), np.float32)
    np.testing.assert_array_equal(run(str(path), x=x), run(onnx_model(graph), x=x))
    again = graph_from_file(path)
    assert again.fingerprint(weights=True) == graph.fingerprint(weights=True)
    assert not again.initializers["w"].owns_data  # the file itself, mapped


def test_small_models_are_one_file(tmp_path):
    export_onnx(weights_graph(), tmp_path / "m.onnx")
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]


@pytest.mark.parametrize("make", [nested_if, lambda: model_of([helper.make_node("Relu", ["x"], ["y"])])])
def test_through_pfm_and_back_gives_the_same_onnx_bytes(make):
    model = make()
    model.graph.doc_string = "doc"
    for node in model.graph.node:
        for attribute in node.attribute:
            attribute.g.doc_string = "inner"
    graph = graph_from_proto(model)
    through = loads_model(dumps_model(graph))
    assert onnx_model(through).SerializeToString() == onnx_model(graph).SerializeToString()
