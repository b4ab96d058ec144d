"""Threads whose first calls of compiled functions come at the same time."""

import subprocess
import sys
import threading

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
