"""Threads whose first calls of compiled functions come at the same time."""

import subprocess
import sys

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
