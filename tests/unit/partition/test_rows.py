"""Requests are cut into rows only where that is proved to change nothing."""

import numpy as np
import pytest

from pyflame_rt import Graph, InferenceSession, InputError
from pyflame_rt.partition.rows import RowSplit, find_rows
from tests.unit.partition.zoo import MODELS, Net

SPLIT = (
    *("mlp", "softmax_head", "residual", "branches", "two_inputs", "two_outputs", "open_reshape", "sizes_from_shape"),
    *("convolutions", "depthwise", "batch_norm", "layer_norm", "attention", "gru_rows_first", "embedding", "top_k"),
    *("einsum", "default_input", "constants_inside", "resnet", "vit", "gpt2", "bert", "unet", "feed_forward"),
)


@pytest.mark.parametrize("name", SPLIT)
def test_rows_alone_give_the_rows_of_the_whole(name):
    graph, feed = MODELS[name]()
    split = find_rows(graph)
    assert isinstance(split, RowSplit), split
    whole = InferenceSession(graph).run(None, feed)
    session = InferenceSession(graph)
    rows = next(iter(feed.values())).shape[0]
    parts = [
        session.run(None, {n: v[i : i + 1] if n in split.inputs else v for n, v in feed.items()}) for i in range(rows)
    ]
    for i, info in enumerate(graph.outputs):
        joined = np.concatenate([part[i] for part in parts], axis=split.outputs[info.name])
        np.testing.assert_allclose(joined, whole[i], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("mixes_rows", "goes over the axis of the rows"),
        ("divides_by_rows", "number of rows"),
        ("static_batch", "does not keep rows together"),
        ("chosen_branch", "goes over the axis of the rows"),
        ("sequences", "nothing is known"),
        ("lstm", "has rows along axis 0"),
    ],
)
def test_what_mixes_rows_is_named(name, why):
    graph, _ = MODELS[name]()
    found = find_rows(graph)
    assert isinstance(found, str)
    assert why in found
    assert any(f"'{node.name}'" in found for node in graph.nodes)


def mixing(make):
    n = Net("mixing", ["N", 4])
    return n.done(make(n))[0]


MIXING = {
    "gram": lambda n: n.node("MatMul", n.node("Transpose", "x", perm=[1, 0]), "x"),
    "slice": lambda n: n.node("Slice", "x", n.ints(1), n.ints(3), n.ints(0)),
    "gather": lambda n: n.node("Gather", "x", n.ints(0, 0, 1), axis=0),
    "cumsum": lambda n: n.node("CumSum", "x", n.ints(0)),
    "concat": lambda n: n.node("Concat", "x", "x", axis=0),
    "tile": lambda n: n.node("Tile", "x", n.ints(2, 1)),
    "pad": lambda n: n.node("Pad", "x", n.ints(1, 0, 0, 0)),
    "reshape": lambda n: n.node("Reshape", "x", n.ints(2, -1)),
    "range": lambda n: n.node("Add", "x", n.node("Range", n.ints(0), n.node("Size", "x"), n.ints(1))),
    "constant": lambda n: n.node("Add", "x", n.weight(6, 4)),
    "unique": lambda n: n.node("Unique", "x", axis=0),
    "batch_norm": lambda n: n.node(
        "BatchNormalization", "x", *(n.weight(4) for _ in range(4)), outputs=3, training_mode=1
    )[0],
}


@pytest.mark.parametrize("name", MIXING)
def test_everything_else_is_refused(name):
    assert isinstance(find_rows(mixing(MIXING[name])), str)


def test_inputs_with_rows_can_be_named():
    graph, _ = MODELS["two_inputs"]()
    assert find_rows(graph, ["x", "z"]).inputs == {"x": 0, "z": 0}
    assert isinstance(find_rows(graph, ["x"]), str)  # z has as many rows, and would not be cut
    with pytest.raises(InputError, match="'w'"):
        find_rows(graph, ["w"])


def test_nothing_to_cut():
    graph = Graph("scalar")
    graph.add_input("x", [])
    graph.add_node("n", "Neg", ["x"], ["y"])
    graph.add_output("y", [])
    assert find_rows(graph) == "no input has a first axis that could hold rows"
