"""Sessions whose runs are a test's own function, for what must not depend on a clock."""

from __future__ import annotations

import threading

import numpy as np

from pyflame_rt import Graph, SessionOptions


def doubling_graph(*shape) -> Graph:
    """y = 2 * x over rows of given sizes."""
    graph = Graph("doubling")
    graph.add_input("x", ["N", *shape])
    graph.add_node("add", "Add", ["x", "x"], ["y"])
    graph.add_output("y", ["N", *shape])
    return graph


class Scripted:
    """Doubles its input; may be held at a gate, and told to fail."""

    def __init__(self, graph: Graph | None = None, fail=None) -> None:
        self._graph = doubling_graph(2) if graph is None else graph
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Semaphore(0)
        self.feeds: list[dict] = []
        self.options: list = []
        self._fail = fail

    def graph(self) -> Graph:
        return self._graph

    def get_session_options(self) -> SessionOptions:
        return SessionOptions()

    def run(self, names, feed, run_options=None):
        self.feeds.append({name: array.copy() for name, array in feed.items()})
        self.options.append(run_options)
        self.entered.release()
        assert self.gate.wait(60)
        if self._fail is not None:
            self._fail(feed)
        return [2 * feed["x"]]


def row(value: float, count: int = 1) -> dict[str, np.ndarray]:
    return {"x": np.full((count, 2), value, np.float32)}
