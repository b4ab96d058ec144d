"""Models whose inputs of one type parameter differ are refused when they are loaded."""

import re

import numpy as np
import onnx.defs
import pytest
from onnx import TensorProto, helper, numpy_helper

from pyflame_rt import DTypeMismatchError, Graph, InferenceSession
from pyflame_rt.graph import DType
from pyflame_rt.ops.core.registry import all_ops, find_op
from pyflame_rt.ops.core.type_constraints import check_types

CASES = {
    "Add": ((2, 4), [(4,)], {}),
    "MatMul": ((2, 4), [(4, 3)], {}),
    "Gemm": ((2, 4), [(4, 3)], {}),
    "Conv": ((1, 3, 5, 5), [(2, 3, 1, 1)], {}),
    "Concat": ((2, 4), [(2, 4)], {"axis": 0}),
    "PRelu": ((2, 4), [(4,)], {}),
    "Clip": ((2, 4), [()], {}),
    "LayerNormalization": ((2, 4), [(4,)], {}),
    "LSTM": ((3, 1, 4), [(1, 8, 4), (1, 8, 2)], {"hidden_size": 2}),
}


def model(nodes, weights, shape=(2, 4)):
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [x], [y], [numpy_helper.from_array(a, n) for n, a in weights.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10).SerializeToString()


@pytest.mark.parametrize("provider", ["CPUExecutionProvider", "ReferenceExecutionProvider"])
@pytest.mark.parametrize("op", CASES)
def test_weights_of_another_type_are_refused(op, provider):
    shape, sizes, settings = CASES[op]
    names = [f"w{i}" for i in range(len(sizes))]
    node = helper.make_node(op, ["x", *names], ["y"], name="it", **settings)
    weights = {name: np.ones(size) for name, size in zip(names, sizes, strict=True)}
    said = rf"node 'it' \({op}\).*\(T\).*'x' is float32, 'w0' is float64"
    with pytest.raises(DTypeMismatchError, match=said):
        InferenceSession(model([node], weights, shape), providers=[provider])
    right = {name: weight.astype(np.float32) for name, weight in weights.items()}
    session = InferenceSession(model([node], right, shape), providers=[provider])
    assert session.run(None, {"x": np.ones(shape, np.float32)})[0].dtype == np.float32


def test_the_two_sides_of_where_must_agree_but_not_the_condition():
    nodes = [helper.make_node("Greater", ["x", "zero"], ["c"]), helper.make_node("Where", ["c", "x", "w"], ["y"])]
    weights = {"zero": np.zeros((), np.float32), "w": np.ones(4)}
    with pytest.raises(DTypeMismatchError, match=r"\(Where\).*'x' is float32, 'w' is float64"):
        InferenceSession(model(nodes, weights))
    InferenceSession(model(nodes, {**weights, "w": np.ones(4, np.float32)}))


def test_types_are_followed_through_the_graph():
    nodes = [
        helper.make_node("Cast", ["x"], ["a"], to=TensorProto.DOUBLE),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Reshape", ["b", "sizes"], ["c"]),
        helper.make_node("Mul", ["c", "x"], ["y"], name="late"),
    ]
    with pytest.raises(DTypeMismatchError, match=r"'late'.*'c' is float64, 'x' is float32"):
        InferenceSession(model(nodes, {"sizes": np.array([2, 4])}))


def test_bodies_see_the_types_around_them():
    branches = [
        helper.make_graph([helper.make_node("Add", ["x", w], ["o"], name=f"in_{w}")], w, [],
                          [helper.make_tensor_value_info("o", TensorProto.FLOAT, None)])
        for w in ("good", "bad")
    ]  # fmt: skip
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["m"], keepdims=0),
        helper.make_node("Greater", ["m", "zero"], ["c"]),
        helper.make_node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1]),
    ]
    weights = {"zero": np.zeros((), np.float32), "good": np.ones(4, np.float32), "bad": np.ones(4)}
    with pytest.raises(DTypeMismatchError, match="in_bad"):
        InferenceSession(model(nodes, weights))
    InferenceSession(model(nodes, {**weights, "bad": np.ones(4, np.float32)}))


def test_what_is_not_known_is_not_refused():
    g = Graph("g")
    g.add_input("x", [2], DType.Float32)
    g.add_node("odd", "Thing", ["x"], ["a"], domain="custom")
    g.add_node("sum", "Add", ["a", "x"], ["b"])
    g.add_node("power", "Pow", ["x", "n"], ["c"])
    g.add_initializer("n", np.array([2], np.int64))
    check_types(g)


def _of_schema(schema):
    allowed = {c.type_param_str: list(c.allowed_type_strs) for c in schema.type_constraints}
    names = {"float": "float32", "double": "float64"}

    def word(formal):
        kinds = allowed.get(formal.type_str, [formal.type_str])
        if not all(kind.startswith("tensor(") for kind in kinds):
            text = "?"
        else:
            text = formal.type_str if len(kinds) > 1 else names.get(kinds[0][7:-1], kinds[0][7:-1])
        many = formal.option == onnx.defs.OpSchema.FormalParameterOption.Variadic
        return f"{text if formal.is_homogeneous or not many else '?'}*" if many else text

    return " ".join([*map(word, schema.inputs), ">", *map(word, schema.outputs)])


def test_the_table_is_that_of_onnx():
    newest = {s.name: s for s in onnx.defs.get_all_schemas() if not s.domain and not s.deprecated}
    table = {op.name: re.sub(r":\w+", "", op.types) for op in all_ops() if op.types and not op.domain}
    assert {name: _of_schema(newest[name]) for name in table} == table
    for name, schema in newest.items():
        words = [word for word in _of_schema(schema).split(">")[0].split() if word[0].isupper()]
        if find_op(name, "") is not None and name != "SequenceConstruct":
            several = len(set(words)) < len(words) or any(word.endswith("*") for word in words)
            assert name in table or not several


# Takes more than ONNX says: maxima of bytes are those of what they stand for (opt/rules/quantized_products).
WIDER = {"GlobalMaxPool"}


def test_operators_of_floats_say_so():
    """What ONNX had for nothing but floating-point numbers is declared for these alone, and nothing else is."""
    floats = {"tensor(float16)", "tensor(float)", "tensor(double)", "tensor(bfloat16)"}
    every = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if not schema.domain:
            for constraint in schema.type_constraints:
                said = every.setdefault((schema.name, constraint.type_param_str), set())
                said.update(t for t in constraint.allowed_type_strs if not t.startswith("tensor(float8"))
    for op in all_ops():
        if op.domain or not op.types:
            continue
        taken = {word.rstrip("*") for word in op.types.split(">")[0].split() if word[0].isupper()}
        for word in taken:
            name, _, kind = word.partition(":")
            if every.get((op.name, name)) and f"{name}:number" not in taken:
                wanted = every[op.name, name] <= floats and op.name not in WIDER
                assert (f"{name}:float" in taken) == wanted, (op.name, word, kind)


@pytest.mark.parametrize("provider", ["CPUExecutionProvider", "ReferenceExecutionProvider"])
@pytest.mark.parametrize("known", [True, False])
def test_whole_numbers_for_a_function_of_floats(provider, known):
    """Refused by name when loading, or where types come to be known; they were a raw ValueError of generated code."""
    graph = Graph("roots")
    graph.add_input("x", [2], DType.Int64) if known else graph.add_input("x", ["N"], DType.Int64)
    graph.add_node("doubled", "Add", ["x", "x"], ["xx"])
    graph.add_node("root", "Sqrt", ["xx"], ["y"])
    graph.add_output("y", [None], DType.Int64)
    with pytest.raises(DTypeMismatchError, match=r"node .root. \(Sqrt\): .xx. is int64; it takes floating"):
        InferenceSession(graph, providers=[provider])


@pytest.mark.parametrize("provider", ["CPUExecutionProvider", "ReferenceExecutionProvider"])
def test_erf_of_whole_numbers_runs_natively(provider):
    graph = Graph("erf")
    graph.add_input("x", ["N"], DType.Int32)
    graph.add_node("erf", "Erf", ["x"], ["y"])
    graph.add_output("y", ["N"], DType.Int32)
    session = InferenceSession(graph, providers=[provider])
    assert session.run(None, {"x": np.array([-3, 0, 9], np.int32)})[0].tolist() == [0, 0, 1]
