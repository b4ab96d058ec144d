"""What runs in the event loop: only what was measured to be quick."""

import numpy as np
import pytest

import pyflame_rt
from pyflame_rt.graph.errors import InputError
from pyflame_rt.serving import ModelConfig, ModelRegistry
from pyflame_rt.serving.quick import KEPT, SEEN, SHORT, QuickRuns
from tests.unit.serving.scene import ask, scaled, serving

X = np.ones((1, 3), np.float32)


class Clock:
    """Every look at it is so many seconds after the last."""

    def __init__(self, step: float) -> None:
        self.now, self.step = 0.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def runs_with(step: float) -> tuple[QuickRuns, Clock]:
    clock = Clock(step)
    return QuickRuns(pyflame_rt.InferenceSession(scaled()), clock), clock


def come(runs: QuickRuns, feed: dict[str, np.ndarray], times: int = SEEN) -> None:
    threads = [runs.saw(feed) for _ in range(times)]
    for thread in threads:
        if thread is not None:
            thread.join()


def test_what_came_often_and_is_quick_is_run_at_once():
    runs, _ = runs_with(SHORT / 2)
    feed = {"x": X}
    come(runs, feed, SEEN - 1)
    assert runs.run(feed) is None
    come(runs, feed, 1)
    found = runs.run({"x": 3 * X})
    assert found is not None
    np.testing.assert_array_equal(found[0][0], runs._session.run(None, {"x": 3 * X})[0])
    assert runs.run({"x": np.concatenate([X, X])}) is None  # other shapes are others


def test_what_is_slow_is_not():
    runs, clock = runs_with(SHORT * 2)
    come(runs, {"x": X}, 10 * SEEN)
    assert runs.run({"x": X}) is None
    clock.step = 0.0
    assert runs.run({"x": X}) is None  # it was tried once


def test_what_becomes_slow_is_left_to_the_batcher():
    runs, clock = runs_with(SHORT / 2)
    come(runs, {"x": X})
    assert runs.run({"x": X}) is not None
    clock.step = 100 * SHORT
    times = 0
    while runs.run({"x": X}) is not None:
        times += 1
    assert 3 <= times <= 10  # one alone, which others may have interrupted, is no reason


def test_what_only_a_batcher_can_run_stays_there():
    runs, _ = runs_with(0.0)
    come(runs, {"x": X[0]})  # without a batch axis
    assert runs.run({"x": X[0]}) is None


def test_few_kinds_are_remembered():
    runs, _ = runs_with(0.0)
    for rows in range(1, KEPT + 50):
        runs.saw({"x": np.ones((rows, 3), np.float32)})
    assert len(runs._kinds) == KEPT


def test_numbers_that_may_be_counts_are_left_to_the_batcher():
    words = pyflame_rt.Graph("sizes")
    words.add_input("n", ["N"], pyflame_rt.DType.Int64)
    words.add_node("same", "Identity", ["n"], ["y"])
    words.add_output("y", ["N"], pyflame_rt.DType.Int64)
    instance = ModelRegistry().add_model("n", words, config=ModelConfig(warmup_requests=0))
    assert instance.quick is None
    assert instance.run_quickly({"n": np.ones(1, np.int64)}, None) is None
    instance.close()


def test_quick_answers_are_counted_and_checked_like_others():
    with serving() as server:
        instance = server.registry().get_latest("m")
        assert instance is not None
        assert instance.quick is not None
        body = {"inputs": {"x": X.tolist()}}
        _, _, before = ask(server, "POST", "/v1/models/m/infer", body)
        done = instance.get_stats()["completed_requests"]
        instance.quick._clock = Clock(0.0)
        come(instance.quick, {"x": X})
        assert instance.run_quickly({"x": X}, None) is not None
        status, _, after = ask(server, "POST", "/v1/models/m/infer", body)
        assert (status, after["outputs"]) == (200, before["outputs"])
        stats = instance.get_stats()
        assert stats["completed_requests"] == stats["total_requests"] == done + 2
        assert stats["total_rows"] == (done + 2) * len(X)
        with pytest.raises(InputError, match="no output 'z'"):
            instance.run_quickly({"x": X}, ["z"])
        assert ask(server, "POST", "/v1/models/m/infer", {**body, "outputs": ["z"]})[0] == 400
