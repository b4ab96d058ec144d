"""Results keep the order in memory of what they are made of: images stay channels last through what moves them."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import pyflame_rt
from tests.tolerances import within


def image_model(moves):
    """Two convolutions of an image, what moves their results, and a depthwise convolution of that."""
    rng = np.random.default_rng(0)
    weights = {
        "wa": rng.normal(size=(24, 8, 3, 3)),
        "wb": rng.normal(size=(40, 8, 1, 1)),
        "wc": rng.normal(size=(64, 1, 3, 3)),
    }
    nodes = [
        helper.make_node("Conv", ["x", "wa"], ["a"], pads=[1, 1, 1, 1], name="a"),
        helper.make_node("Conv", ["x", "wb"], ["b"], name="b"),
        *moves,
        helper.make_node("Conv", ["moved", "wc"], ["y"], group=64, name="c"),
    ]
    graph = helper.make_graph(
        nodes,
        "images",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 8, 9, 11])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [
            *(numpy_helper.from_array(w.astype(np.float32), n) for n, w in weights.items()),
            numpy_helper.from_array(np.array([0, 0, 1, 2, 0, 0, 2, 1]), "widths"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


CONCAT = helper.make_node("Concat", ["a", "b"], ["joined"], axis=1, name="join")
CASES = {
    "concat": [CONCAT, helper.make_node("Identity", ["joined"], ["moved"], name="same")],
    "pad": [CONCAT, helper.make_node("Pad", ["joined", "widths"], ["moved"], name="border")],
    "reflect": [CONCAT, helper.make_node("Pad", ["joined", "widths"], ["moved"], mode="reflect", name="border")],
    "add": [CONCAT, helper.make_node("Add", ["joined", "joined"], ["moved"], name="twice")],
}


@pytest.mark.parametrize("moves", CASES.values(), ids=CASES)
def test_images_stay_channels_last(moves):
    model = image_model(moves)
    x = np.random.default_rng(1).normal(size=(2, 8, 9, 11)).astype(np.float32)
    with pyflame_rt.InferenceSession(model.SerializeToString()) as session:
        (ours,) = session.run(None, {"x": x})
        rows = session.explain().rows
    with pyflame_rt.InferenceSession(model.SerializeToString(), providers=["ReferenceExecutionProvider"]) as session:
        (theirs,) = session.run(None, {"x": x})
    np.testing.assert_allclose(ours, theirs, **within("layers"))
    assert {row.layout for row in rows if row.node == "join" and row.layout} == {"acdb"}
    assert not [row for row in rows if row.node == "c" and row.op_type == "reorder"]


@pytest.mark.parametrize("size", [(1, 1), (1, 3), (3, 1)], ids=str)
@pytest.mark.parametrize("images", [1, 3])
def test_axes_of_one_element_do_not_decide_the_order(images, size):
    graph = pyflame_rt.Graph("small images")
    graph.add_input("x", [images, 32, *size])
    rng = np.random.default_rng(2)
    graph.add_initializer("w", rng.normal(size=(32, 32, 3, 3)).astype(np.float32))
    graph.add_node("c", "Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])
    graph.add_output("y", None)
    x = rng.normal(size=(images, 32, *size)).astype(np.float32)
    (ours,) = pyflame_rt.InferenceSession(graph).run(None, {"x": x})
    (theirs,) = pyflame_rt.InferenceSession(graph, providers=["ReferenceExecutionProvider"]).run(None, {"x": x})
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-3)
