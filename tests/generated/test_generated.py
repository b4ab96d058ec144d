"""A share of the sweep and of the random graphs; `make sweep` and `make differential` run the whole."""

from __future__ import annotations

import numpy as np
import pytest

from pyflame_rt.graph import Graph
from tests.generated.build import agree, answer, one_node, session
from tests.generated.differential import cases as models
from tests.generated.draw import SAMPLES, draw_sample, operators
from tests.generated.pool import run_cases
from tests.generated.sweep import cases
from tests.generated.varied import cases as varied


def test_every_operator_has_a_sample_that_suits_it():
    assert sorted(SAMPLES) == sorted(op.full_name for op in operators())
    for name in SAMPLES:
        graph, feeds = one_node(draw_sample(name, 3))
        found = answer(session(graph, "Reference"), feeds)
        assert found.outputs is not None, f"{name}: {found.said}"


def _told(found: dict[int, tuple[str, str]]) -> str:
    return "\n".join(f"{number} {name}: {said}" for number, (name, said) in sorted(found.items()))


def test_wrong_inputs_are_refused_alike_or_answered_alike():
    """One case of most operators, another one each time the list of cases grows."""
    seen, numbers = set(), []
    for number, case in enumerate(cases()):
        if case.op not in seen and case.change and number % 3 == 0:
            seen.add(case.op)
            numbers.append(number)
    assert len(numbers) > 300
    found = run_cases("sweep", numbers[::4])
    assert not found, _told(found)


def test_large_sizes_other_types_and_special_numbers():
    """One kind of a few operators, another one each time the list of cases grows."""
    found = run_cases("varied", list(range(11, len(varied()), 173)))
    assert not found, _told(found)


FOUND = (
    "Pad/0/1 shorter 0/constant", "pyflame::SumTo/1/1 last is 7/constant", "pyflame::SumTo/1/1 more rank/constant",
    "pyflame::BatchedScan/0/0 empty/fed", "GridSample/1/1 shorter 0/fed", "Mean/1/0 missing/fed",
    "Identity/1/count less/fed",
    "Dropout/1/count more/fed", "pyflame::KeyedNormal/0/0 more rank/fed", "pyflame::KeyedUniform/0/0 last is -1/fed",
    "com.microsoft::GatherBlockQuantized/1/2 more rank/fed",
    "pyflame::Bundle/0/count less/fed", "com.microsoft::QEmbedLayerNormalization/0/3 empty/fed", "RNN/1/0 empty/fed",
    "ConstantOfShape/0/0 more rank/fed", "ai.onnx.ml::SVMRegressor/0/0 more rank/fed", "LSTM/1/0 empty/fed",
    "SimplifiedLayerNormalization/0/1 longer 0/fed", "pyflame::ClassScoreGrad/1/3 less rank/fed",
    "GRU/1/0 empty/fed", "pyflame::ClassScoreGrad/1/4 less rank/fed", "Loop/1/0 missing/fed",
    "Pad/0/1 more rank/constant", "ConvInteger/1/1 empty/constant", "pyflame::FusedConvBN/1/1 empty/fed",
    "If/1/count less/fed", "RoiAlign/0/2 last is -1/fed", "NonMaxSuppression/0/0 longer 2/fed",
    "MaxRoiPool/0/0 empty/fed",
    "ai.onnx.ml::SVMClassifier/0/0 longer 1/fed", "ai.onnx.ml::TreeEnsemble/0/0 shorter 1/fed",
    "Einsum/0/0 shorter 1/fed",
)  # fmt: skip


def test_what_the_sweep_found_before():
    numbers = [number for number, case in enumerate(cases()) if str(case) in FOUND]
    assert len(numbers) == len(FOUND)
    found = run_cases("sweep", numbers)
    assert not found, _told(found)


def test_a_node_that_gives_fewer_outputs_than_asked_for_is_named():
    graph = Graph("g")
    graph.add_input("x", [None])
    graph.add_node("halves", "Split", ["x"], ["a", "b", "c"], {"num_outputs": 2})
    for name in ("a", "b", "c"):
        graph.add_output(name, [None])
    for provider in ("Reference", "CPU"):
        found = answer(lambda provider=provider: session(graph, provider), {"x": np.zeros(4, np.float32)})
        assert not found.untyped, found.said
        assert "halves" in found.said


def test_random_graphs_give_the_same_natively_as_by_the_reference():
    numbers = list(range(700, len(models()), 331))
    found = run_cases("differential", numbers)
    assert not found, _told(found)


@pytest.mark.parametrize("change", ["0 shorter 0", "0 empty", "1 last is 7"])
def test_the_sweep_sees_what_differs(change):
    """A wrong answer and a refusal of another type are findings."""
    case = next(c for c in cases() if c.op == "Gather" and c.change == change and not c.constant)
    sample = draw_sample(case.op, case.seed)
    graph, feeds = one_node(sample)
    right = answer(session(graph, "Reference"), feeds)
    wrong = answer(lambda: _Off(), feeds)
    assert agree(right, right) == ""
    assert agree(right, wrong) == "outputs differ"
    assert agree(right, answer(session(_refusing(), "Reference"), {"x": np.zeros(2, np.float32)})) == "one refused"


class _Off:
    def run(self, _names: object, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        return [next(iter(feeds.values())) + 1]


def _refusing() -> Graph:
    graph = Graph("g")
    graph.add_input("x", [None])
    graph.add_node("n", "Gather", ["x", "i"], ["y"])
    graph.add_initializer("i", np.array(9))
    graph.add_output("y", [])
    return graph
