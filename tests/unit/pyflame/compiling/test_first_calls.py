"""Threads whose first calls of compiled functions come at the same time."""

import subprocess
import sys
import threading
import time

import pytest

from pyflame.compiling.turns import Turns
from pyflame_rt.backends.cpu.llvm import replay

TRAINED = """
import threading
import numpy as np
import pyflame as pf

x = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)
y = (x[:, 0] > 0).astype(np.int64)
models = [pf.nn.Sequential(pf.nn.Linear(8, 16), pf.nn.ReLU(), pf.nn.Linear(16, 2)) for _ in range(4)]
for model in models[1:]:
    model.load_state_dict(models[0].state_dict())
losses = [[] for _ in models]
start = threading.Barrier(len(models))

def train(model, found):
    optimizer = pf.optim.Adam(model.parameters(), lr=0.02)

    @pf.compile
    def step(x, y):
        loss = pf.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    start.wait()
    for _ in range(30):
        found.append(step(pf.from_numpy(x), pf.from_numpy(y)).item())

threads = [threading.Thread(target=train, args=pair) for pair in zip(models, losses)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert all(found == losses[0] and len(found) == 30 for found in losses), losses
assert losses[0][-1] < losses[0][0]
"""


def test_models_of_one_kind_trained_in_threads_from_the_start():
    done = subprocess.run([sys.executable, "-c", TRAINED], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_what_python_s_functions_refer_to_is_kept_however_many_threads_make_it(monkeypatch):
    both, address = threading.Barrier(2), replay.own_address
    monkeypatch.setattr(replay, "_methods", [])
    monkeypatch.setattr(replay, "own_address", lambda *args: (both.wait(60), address(*args))[1])
    found = []
    threads = [threading.Thread(target=lambda: found.append(replay._method())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2
    assert all(any(method is kept for kept in replay._methods) for method in found)


SHARED = """
import sys
import threading
import numpy as np
import pyflame as pf

sys.setswitchinterval(1e-5)
x = np.random.default_rng(0).normal(size=(96, 8)).astype(np.float32)
y = (x[:, 0] > 0).astype(np.int64)

def train(step, found):
    for _ in range(30):
        found.append(step(pf.from_numpy(x), pf.from_numpy(y)).item())

for _ in range(10):
    model = pf.nn.Linear(8, 2)
    optimizer = pf.optim.SGD(model.parameters(), lr=0.01)

    @pf.compile
    def step(x, y):
        loss = pf.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    losses = [[] for _ in range(4)]
    threads = [threading.Thread(target=train, args=(step, found)) for found in losses]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(found) for found in losses] == [30] * 4, losses
    assert np.isfinite(losses).all()
    assert np.isfinite(model.weight.numpy()).all()
    assert step.trace_count == 1, step.trace_count
"""


def test_one_step_called_by_threads_is_traced_once_and_fails_in_none():
    done = subprocess.run([sys.executable, "-c", SHARED], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_a_trace_waits_for_replays_and_those_that_come_later_wait_for_it():
    turns, order = Turns(), []
    begun, go_on = threading.Event(), threading.Event()

    def replay_first():
        with turns.replaying():
            begun.set()
            go_on.wait(60)
            with turns.replaying(), turns.tracing():  # its own, which wait for nobody
                order.append("replay")

    def trace():
        begun.wait(60)
        with turns.tracing():
            order.append("trace")
            with turns.replaying():
                order.append("its replay")

    def replay_later():
        while not turns._waiting:
            time.sleep(0.001)
        go_on.set()
        with turns.replaying():
            order.append("later")

    threads = [threading.Thread(target=work) for work in (replay_first, trace, replay_later)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert order == ["replay", "trace", "its replay", "later"]
    assert (turns.replays, turns._traces, turns._waiting) == (0, 0, 0)


def test_turns_are_given_up_when_something_is_raised():
    turns = Turns()
    for enter in (turns.replaying, turns.tracing):
        with pytest.raises(KeyboardInterrupt), enter():
            raise KeyboardInterrupt
    assert (turns.replays, turns._traces, turns._waiting) == (0, 0, 0)


@pytest.mark.parametrize("kind", ["replaying", "tracing"])
def test_a_child_knows_of_its_own_turn_alone(kind):
    turns = Turns()
    with getattr(turns, kind)():
        turns.replays += 2  # of other threads, which a child does not have
        turns.reset()
        assert turns.replays + turns._traces == 1
    assert (turns.replays, turns._traces, turns._waiting) == (0, 0, 0)
