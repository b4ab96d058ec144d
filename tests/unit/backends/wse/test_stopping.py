"""Runs stop when they are told to, whatever they are at; long ones are announced."""

import contextlib
import gc
import logging
import time

import numpy as np
import pytest

from pyflame_rt.backends.base import RunHooks
from pyflame_rt.backends.wse import executable as module
from pyflame_rt.backends.wse import forecast
from pyflame_rt.backends.wse.executable import WseBackend
from pyflame_rt.graph import Graph


class Enough(Exception):
    """Raised by hooks here."""


def layer(batch):
    graph = Graph("layer")
    graph.add_input("x", [batch, 8])
    graph.add_initializer("w", np.ones((8, 6), np.float32))
    graph.add_node("fc", "MatMul", ["x", "w"], ["h"])
    graph.add_node("soft", "Softmax", ["h"], ["y"])
    graph.add_output("y", [batch, 6])
    return graph


class Countdown:
    """Raises at the n-th call."""

    def __init__(self, last):
        self.last, self.calls = last, 0

    def __call__(self):
        self.calls += 1
        if self.calls == self.last:
            raise Enough


def run(made, check):
    return made.run({"x": np.ones((4, 8), np.float32)}, ["y"], RunHooks(check=check))[0]


def fresh():
    backend = WseBackend()
    backend.configure({"rows": 2, "cols": 2})
    return backend.compile(layer("N"))


def test_a_hook_stops_planning_compiling_and_simulating():
    never = Countdown(0)
    made = fresh()
    want = run(made, never)
    planned = never.calls
    again = Countdown(0)
    run(made, again)
    simulated = again.calls
    assert planned > simulated + 20  # the program is made in the first run only
    assert simulated > 20
    for last in {1, 2, 5, (planned - simulated) // 2, planned - simulated + 3, planned - 2}:
        check, other = Countdown(last), fresh()
        with pytest.raises(Enough):
            run(other, check)
        assert check.calls == last
        np.testing.assert_array_equal(run(other, None), want)


class Gaps:
    """The longest time of this thread between two calls; raises after some seconds of it."""

    def __init__(self, seconds):
        self.longest, self.last, self.calls = 0.0, time.thread_time(), 0
        self.end = self.last + seconds

    def __call__(self):
        now = time.thread_time()
        self.longest, self.last, self.calls = max(self.longest, now - self.last), now, self.calls + 1
        if now > self.end:
            raise Enough


def convolutions(count, size, channels):
    """Layers that take the simulator seconds."""
    graph, rng = Graph("convolutions"), np.random.default_rng(0)
    graph.add_input("h0", [1, channels, size, size])
    for i in range(count):
        graph.add_initializer(f"w{i}", rng.standard_normal((channels, channels, 3, 3)).astype(np.float32))
        graph.add_node(f"n{i}", "Conv", [f"h{i}", f"w{i}"], [f"h{i + 1}"], {"pads": [1, 1, 1, 1]})
    graph.add_output(f"h{count}", None)
    return graph


@pytest.mark.parametrize(
    ("settings", "count", "size", "channels"), [({}, 6, 40, 32), ({"rows": 8, "cols": 8}, 2, 16, 8)]
)
def test_long_runs_ask_all_the_time_whether_to_go_on(settings, count, size, channels):
    backend, check = WseBackend(), Gaps(8.0)
    backend.configure(settings)
    made = backend.compile(convolutions(count, size, channels))
    gc.collect()  # what other tests left would be looked for, and let go, between two calls
    gc.freeze()
    check.last = time.thread_time()
    with contextlib.suppress(Enough):
        made.run({"h0": np.ones((1, channels, size, size), np.float32)}, [f"h{count}"], RunHooks(check=check))
        check()
    assert check.calls > 20
    assert check.longest < 0.5


def test_long_runs_are_announced_with_cycles_and_minutes(monkeypatch, caplog):
    monkeypatch.setattr(forecast, "_LARGE", 0)
    monkeypatch.setattr(forecast, "LONG_SECONDS", 0.0)
    monkeypatch.setattr(forecast, "_PE_SECONDS", 45.0)
    made = fresh()
    with caplog.at_level(logging.WARNING, logger="pyflame_rt"):
        run(made, None)
    (said,) = [r.getMessage() for r in caplog.records]
    assert "on 4 PEs takes about" in said
    assert "3 minutes here; `pyflame-rt wafer MODEL --grid RxC`" in said
    expected = next(iter(made._plans.values())).expected
    assert expected.cycles == pytest.approx(made.cycles, rel=0.9)


def test_short_runs_are_not(caplog):
    with caplog.at_level(logging.INFO, logger="pyflame_rt"):
        run(fresh(), None)
    assert not caplog.records
    assert module.forecast is forecast.forecast
