"""Types that a process keeps: found once, and only where they still hold."""

import numpy as np
import pytest

from pyflame_rt.graph import DType, Graph
from pyflame_rt.graph.budget import Budget, budgeted
from pyflame_rt.ops.core import inference_memo
from pyflame_rt.ops.core.inference import infer_types
from pyflame_rt.ops.core.registry import unregister
from pyflame_rt.opt import optimize

RNG = np.random.default_rng(3)


@pytest.fixture
def inferred(monkeypatch):
    """Names of the operators whose rules were asked."""
    names, infer = [], inference_memo.infer_outputs

    def count(op, *rest):
        names.append(op.name)
        return infer(op, *rest)

    monkeypatch.setattr(inference_memo, "infer_outputs", count)
    monkeypatch.setattr(inference_memo, "_types", {})
    return names


def layers(count=3, size=96):
    g = Graph("layers")
    g.add_input("x0", ["N", size], DType.Float32)
    for i in range(count):
        g.add_initializer(f"s{i}", RNG.standard_normal(size).astype(np.float32))
        g.add_node(f"n{i}", "LayerNormalization", [f"x{i}", f"s{i}"], [f"x{i + 1}"], axis=-1)
    g.add_output(f"x{count}", ["N", size])
    return g


def test_layers_with_other_weights_are_inferred_once(inferred):
    graph = layers()
    assert infer_types(graph) == []
    assert inferred == ["LayerNormalization"]
    assert all(str(graph.types[f"x{i}"]) == "float32[N, 96]" for i in range(4))


def test_passes_and_sessions_know_what_loading_found(inferred):
    infer_types(layers())
    inferred.clear()
    optimize(layers())
    assert infer_types(layers()) == []
    assert inferred == []


def test_numbers_that_say_sizes_are_looked_at(inferred):
    g = Graph("resize")
    g.add_input("x", [1, 1, 4, 4], DType.Float32)
    for i, scale in enumerate((2.0, 3.0)):
        g.add_initializer(f"s{i}", np.float32([1, 1, scale, scale]))
        g.add_node(f"r{i}", "Resize", ["x", "", f"s{i}"], [f"y{i}"])
    assert infer_types(g) == []
    assert [str(g.types[f"y{i}"]) for i in range(2)] == ["float32[1, 1, 8, 8]", "float32[1, 1, 12, 12]"]


def test_what_one_budget_allowed_is_asked_again_under_another(inferred):
    for _ in range(2):
        infer_types(layers())
        with budgeted(Budget(limit=1 << 20)):
            infer_types(layers())
    assert len(inferred) == 2


def test_an_operator_registered_meanwhile_is_asked_again(inferred):
    infer_types(layers())
    infer_types(layers())
    assert len(inferred) == 1
    unregister("NoSuchOperator")
    infer_types(layers())
    assert len(inferred) == 2


def test_contents_stay_with_the_memo_that_found_them(inferred):
    """They may be views of arrays that others change."""
    sizes = np.array([2, 3])
    for _ in range(2):
        g = Graph("sizes")
        g.add_initializer("s", sizes)
        g.add_node("u", "Unsqueeze", ["s", "zero"], ["t"])
        g.add_initializer("zero", np.array([0]))
        infer_types(g)
    assert inferred == ["Unsqueeze", "Unsqueeze"]
    assert not any(
        value.known is not None for kept in inference_memo._types.values() for v in kept.values() for value in v
    )
