import pickle
import time

import numpy as np
import pytest

from pyflame_rt.graph import DType, Graph, Node, Tensor, TensorInfo, find_errors, from_numpy, parse_graph, verify
from pyflame_rt.graph.errors import InputError, InvalidModelError, ShapeMismatchError, ValidationError


def chain(length):
    graph = Graph("chain")
    graph.add_input("v0", ["N", 4], DType.Float32)
    for i in range(length):
        graph.add_node(f"n{i}", "Relu", [f"v{i}"], [f"v{i + 1}"])
    graph.add_output(f"v{length}", ["N", 4], DType.Float32)
    return graph


def test_long_chains_need_no_recursion():
    graph = chain(20_000)
    for step in (graph.validate, graph.copy, graph.topological_sort, graph.fingerprint, lambda: str(graph)):
        start = time.thread_time()  # neighbours on the machine do not count, nor do other threads
        step()
        assert time.thread_time() - start < 3
    assert len(parse_graph(str(graph)).nodes) == 20_000


def test_sorting_puts_makers_first():
    graph = chain(50)
    graph.nodes.reverse()
    assert [n.name for n in graph.topological_sort()] == [f"n{i}" for i in range(50)]


def test_cycles_are_named():
    graph = Graph("loop")
    graph.add_node("a", "Relu", ["y"], ["x"])
    graph.add_node("b", "Relu", ["x"], ["y"])
    with pytest.raises(InvalidModelError, match="'a'"):
        graph.topological_sort()
    assert any("cycle" in message for message in graph.validate())


def test_copies_are_independent_and_share_weights():
    graph = chain(2)
    graph.add_initializer("w", np.ones(3, np.float32))
    twin = graph.copy()
    twin.nodes[0].set_attr("alpha", 2.0)
    twin.inputs[0].shape = [1]
    assert not graph.nodes[0].has_attr("alpha")
    assert graph.inputs[0].shape != [1]
    assert twin.initializers["w"] is graph.initializers["w"]


def broken(change):
    graph = chain(2)
    change(graph)
    return find_errors(graph)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda g: g.add_input("v0", [1]), "input 'v0' is listed twice"),
        (lambda g: g.add_node("x", "Relu", ["nowhere"], ["z"]), "reads 'nowhere', which nothing makes"),
        (lambda g: g.add_node("x", "Relu", ["v0"], ["v1"]), "makes 'v1', which node 'n0' (Relu) makes already"),
        (lambda g: g.add_output("q", [1]), "output 'q' is made by nothing"),
        (lambda g: g.add_node("x", "", ["v0"], ["z"]), "names no operator"),
        (lambda g: g.add_node("x", "Relu", ["v0"], []), "has no output"),
        (lambda g: g.add_initializer("v0", np.zeros(2, np.int64)), "is float32, its default int64"),
    ],
)
def test_each_invariant_has_its_message(change, message):
    assert any(message in error for error in broken(change))


def test_verify_lists_everything():
    graph = chain(1)
    graph.add_node("x", "Relu", ["nowhere"], ["z"])
    graph.add_output("q", [1])
    with pytest.raises(ValidationError) as error:
        verify(graph)
    assert len(error.value.errors) == 2
    assert pickle.loads(pickle.dumps(error.value)).errors == error.value.errors  # noqa: S301


def test_subgraphs_are_checked():
    body = Graph("body")
    body.add_node("x", "Relu", ["nowhere"], ["z"])
    graph = chain(1)
    graph.add_node("if", "If", ["v0"], ["out"], {"then_branch": body})
    assert any("in node 'if' (If): node 'x' (Relu) reads 'nowhere'" in e for e in find_errors(graph))


def test_fingerprints_see_structure_not_names():
    assert chain(3).fingerprint() == chain(3).fingerprint()
    assert chain(3).fingerprint() != chain(4).fingerprint()
    other = chain(3)
    other.nodes[1].set_attr("alpha", 0.5)
    assert other.fingerprint() != chain(3).fingerprint()
    a, b = chain(1), chain(1)
    a.add_initializer("w", np.zeros(100, np.float32))
    b.add_initializer("w", np.ones(100, np.float32))
    a.add_node("m", "Add", ["v0", "w"], ["z"])
    b.add_node("m", "Add", ["v0", "w"], ["z"])
    a.add_output("z", [1])
    b.add_output("z", [1])
    assert a.fingerprint() == b.fingerprint()
    assert a.fingerprint(weights=True) != b.fingerprint(weights=True)


def test_text_form_comes_back():
    body = Graph("body")
    body.add_input("i", [], DType.Int64)
    body.add_node("p", "Identity", ["i"], ["o"])
    body.add_output("o", [], DType.Int64)
    graph = Graph('a "quoted" name')
    graph.opsets = {"": 23, "com.example": 1}
    graph.metadata = {"producer_name": "me"}
    graph.add_input("input", ["2*N + 1", None, 3], DType.BFloat16)
    graph.add_initializer("c", np.array([1.5, np.inf, -0.0], np.float16))
    graph.add_initializer("big", np.zeros(1000, np.float32))
    attrs = {"f": 0.1, "i": 3, "s": "a]b", "ints": [1, 2], "g": body, "t": Tensor(np.arange(4)), "bs": [body, body]}
    graph.add_node("odd # name", "Op", ["input", "", "strange name:0"], ["out 1", "b"], attrs, domain="com.example")
    graph.add_output("out 1", None, DType.String)
    text = str(graph)
    again = parse_graph(text, graph.initializers)
    assert str(again) == text
    assert again.fingerprint(weights=True) == graph.fingerprint(weights=True)


@pytest.mark.parametrize("part", range(20))
def test_broken_text_is_refused_with_a_line(part):
    text = str(chain(3))
    cut = len(text) * part // 20
    with pytest.raises(InvalidModelError, match="line"):
        parse_graph(text[:cut])


def test_lookups():
    graph = chain(2)
    assert graph.get_producer("v1").name == "n0"
    assert [n.name for n in graph.get_consumers("v1")] == ["n1"]
    assert graph.get_node("n1").op_type == "Relu"
    with pytest.raises(InputError, match="no initializer 'q'"):
        graph.get_initializer("q")
    with pytest.raises(InputError, match="no value 'q'"):
        graph.get_tensor_info("q")


def test_nodes_in_both_spellings():
    graph = Graph()
    graph.add_node(Node("a", "Elu", ["x"], ["y"], {"alpha": 1.0}))
    graph.add_node("b", "Elu", inputs=["y"], outputs=["z"], attributes={"alpha": 2.0})
    graph.add_node("c", "Elu", inputs=["z"], outputs=["u"], alpha=3.0)
    assert [n.get_attribute("alpha") for n in graph.nodes] == [1.0, 2.0, 3.0]
    assert graph.add_input(TensorInfo("x", [2], DType.Int8)).dtype is DType.Int8


def test_tensors():
    source = np.arange(6, dtype=np.float32).reshape(2, 3)[:, ::-1]
    tensor = from_numpy(source)
    source[0, 0] = 100
    assert tensor.owns_data
    assert tensor.numpy()[0, 0] == 2
    assert tensor.reshape([3, -1]).shape == [3, 2]
    assert not tensor.view().owns_data
    clone = tensor.clone()
    clone.zero()
    assert tensor.numpy().sum() == 15
    with pytest.raises(ShapeMismatchError):
        tensor.reshape([4])
    with pytest.raises(TypeError, match="M8"):
        from_numpy(np.zeros(1, "datetime64[s]"))
    assert Tensor([2], DType.BFloat16).numpy().dtype == np.float32
