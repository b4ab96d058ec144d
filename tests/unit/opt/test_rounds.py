"""What a round of passes looks at: every start pays for it, also where nothing is left to do."""

import sys
from types import FrameType

import numpy as np

from pyflame_rt import opt
from pyflame_rt.graph import Graph


class Changes(opt.Pass):
    """Changes something in its first turns."""

    def __init__(self, label: str, turns: int, order: list[str]) -> None:
        self.label, self.turns, self.order = label, turns, order

    def name(self) -> str:
        return self.label

    def run(self, graph: Graph) -> opt.PassResult:
        self.order.append(self.label)
        self.turns -= 1
        return opt.PassResult(modified=self.turns >= 0)


def test_a_pass_that_found_nothing_runs_again_only_after_a_change():
    graph, order = Graph("g"), list[str]()
    manager = opt.PassManager()
    for label, turns in (("first", 1), ("second", 2), ("third", 0)):
        manager.register_pass(Changes(label, turns, order))
    assert not manager.run_until_fixed_point(graph).warnings
    assert order == ["first", "second", "third", "first", "second", "third", "first", "second"]


def test_pictures_may_ask_for_constants():
    """A rule for constants leaves alone what only the run tells, in either order of a sum."""

    def left(**constants: np.ndarray) -> list[str]:
        graph = Graph("g")
        for name in ("x", "c", "one"):
            if name in constants:
                graph.add_initializer(name, constants[name])
            else:
                graph.add_input(name, [2, 3])
        graph.add_node("sum", "Add", ["c", "x"], ["a"])
        graph.add_node("product", "Mul", ["a", "one"], ["y"])
        graph.add_output("y", None)
        opt.simplify(graph)
        return [node.op_type for node in graph.nodes]

    ones = np.ones((1, 3), np.float32)
    assert left(one=ones, c=-0.0 * ones) == ["Identity"]
    assert left(one=ones) == ["Add", "Identity"]
    assert left(c=ones) == ["Add", "Mul"]
    assert left() == ["Add", "Mul"]


def chain(count: int) -> Graph:
    """Convolutions, sums and activations one after the other."""
    graph = Graph("g")
    graph.add_input("v0", [1, 3, 4, 4])
    graph.add_initializer("w", np.ones((3, 3, 1, 1), np.float32))
    for i in range(count):
        graph.add_node(f"product{i}", "Conv", [f"v{i}", "w"], [f"c{i}"])
        graph.add_node(f"sum{i}", "Add", [f"c{i}", f"v{i}"], [f"s{i}"])
        graph.add_node(f"gate{i}", "Sigmoid", [f"s{i}"], [f"v{i + 1}"])
    graph.add_output(f"v{count}", None)
    return graph


def test_a_round_that_changes_nothing_makes_few_calls():
    graph = chain(200)
    opt.optimize(graph)
    calls = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    manager, before = opt.PassManager.create_default(), sys.getprofile()
    sys.setprofile(note)
    try:
        assert not manager.run(graph).modified
    finally:
        sys.setprofile(before)
    assert calls < 55 * len(graph.nodes)
