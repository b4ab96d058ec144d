"""Training that is cut off at any moment: by Ctrl-C, exceptions, kills and full disks."""

import errno
import io
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from rich.console import Console

import pyflame as pf
from pyflame.data import DataLoader, TensorDataset
from pyflame.training import (
    Callback,
    LearningRateScheduler,
    ModelCheckpoint,
    ProgressBar,
    Trainer,
    TrainerConfig,
    latest_checkpoint,
)
from pyflame.training import checkpoints as files

RNG = np.random.default_rng(1)
X = RNG.normal(size=(50, 4)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)
EVENTS = ("on_train_begin", "on_epoch_begin", "on_batch_begin", "on_batch_end", "on_validation_end", "on_epoch_end")


def loader(**settings):
    return DataLoader(TensorDataset(X, Y), **{"batch_size": 8, "shuffle": True, **settings})


def trainer(*callbacks, seed=0, loss=None, **settings):
    pf.manual_seed(seed)
    net = pf.nn.Sequential(pf.nn.Linear(4, 8), pf.nn.Dropout(0.3), pf.nn.Linear(8, 2))
    optimizer = pf.optim.Adam(net.parameters(), lr=0.02)
    schedule = LearningRateScheduler(pf.optim.ExponentialLR(optimizer, 0.5))
    config = TrainerConfig(**{"max_epochs": 3, "progress": False, **settings})
    metrics = [pf.metrics.Accuracy()]
    loss = loss or pf.nn.CrossEntropyLoss()
    return Trainer(net, optimizer, loss, config, callbacks=[*callbacks, schedule], metrics=metrics)


@pytest.fixture(autouse=True)
def no_workers_left():
    """Every worker process that a test started ends."""
    before = set(multiprocessing.active_children())
    yield
    deadline = time.monotonic() + 120
    while set(multiprocessing.active_children()) - before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not set(multiprocessing.active_children()) - before


class Press(Callback):
    """Ctrl-C at one of the events, once."""

    def __init__(self, event, number, how):
        self.left = number

        def told(*_args):
            self.left -= 1
            if self.left == 0:
                how()

        setattr(self, event, told)


def press():
    signal.raise_signal(signal.SIGINT)


def throw():
    raise KeyboardInterrupt


def same(history, whole):
    assert history.steps == whole.steps
    assert dict(history) == dict(whole)


@pytest.mark.parametrize("how", [press, throw])
@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("number", [1, 2])
def test_an_interrupt_in_a_callback(tmp_path, event, number, how):
    if event == "on_train_begin" and number == 2:
        number = 1
    validation = loader(shuffle=False)
    whole = trainer().fit(loader(), validation)
    run = trainer(Press(event, number, how), checkpoint_dir=tmp_path)
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run.fit(loader(), validation)
    assert signal.getsignal(signal.SIGINT) is handler
    path = latest_checkpoint(tmp_path)
    assert (path is not None) is (run.global_step > 0)
    if path is not None and (how is press or event not in ("on_batch_end", "on_epoch_end")):
        again = trainer(Callback(), seed=5)
        again.load_checkpoint(path)
        same(again.fit(loader(), validation), whole)
    pf.manual_seed(4321)  # whatever happened in between
    if how is press or event != "on_epoch_end":  # else the schedule, which was told, is told again
        same(run.fit(loader(), validation), whole)


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("number", [1, 5, 7, 8])
def test_a_step_ends_before_the_interrupt_comes(number, accumulate):
    calls = []

    def loss(outputs, targets):
        calls.append(1)
        if len(calls) == number:
            press()
        return pf.nn.functional.cross_entropy(outputs, targets)

    settings = {"compile": False, "accumulate_grad_batches": accumulate}
    whole = trainer(**settings).fit(loader())
    run = trainer(loss=loss, **settings)
    with pytest.raises(KeyboardInterrupt):
        run.fit(loader())
    assert len(run.history.steps) == number
    same(run.fit(loader()), whole)


def test_a_second_interrupt_does_not_wait():
    calls = []

    def loss(outputs, targets):
        calls.append(1)
        if len(calls) == 3:
            press()
            press()
            calls.append("never")
        return pf.nn.functional.cross_entropy(outputs, targets)

    run = trainer(loss=loss, compile=False)
    with pytest.raises(KeyboardInterrupt):
        run.fit(loader())
    assert len(run.history.steps) == 2
    assert "never" not in calls
    assert len(run.fit(loader()).steps) == 21


@pytest.mark.parametrize("workers", [0, 1])
def test_interrupts_at_random_moments(workers):
    whole = trainer(max_epochs=6).fit(loader())
    run = trainer(max_epochs=6)
    chance = np.random.default_rng(workers)
    for _ in range(4 if workers else 25):
        delay = chance.uniform(0, 0.02 if not workers else 0.5)
        timer = threading.Timer(delay, lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGINT))
        try:
            timer.start()
            run.fit(loader(num_workers=workers))
            while timer.is_alive():
                timer.join(0.01)
            time.sleep(0)  # the signal's handler runs here at the latest
        except KeyboardInterrupt:
            timer.join()
    same(run.fit(loader(num_workers=workers)), whole)


def test_the_bar_goes_and_the_cursor_comes_back():
    out = io.StringIO()
    bar = ProgressBar(Console(file=out, force_terminal=True))

    class Fails(Callback):
        def on_train_end(self, logs):
            raise ValueError("told too late")

    with pytest.raises(ValueError, match="told too late") as found:
        trainer(Fails(), bar, Press("on_batch_end", 4, press)).fit(loader())
    assert isinstance(found.value.__context__, KeyboardInterrupt)
    assert bar._progress is None
    assert out.getvalue().rindex("\x1b[?25h") > out.getvalue().rindex("\x1b[?25l")


class Broken(TensorDataset):
    """A sample is missing as long as a file is."""

    def __init__(self, path, *arrays):
        super().__init__(*arrays)
        self.path = path

    def __getitem__(self, index):
        if index == 30 and not self.path.exists():
            raise KeyError("sample thirty is missing")
        return super().__getitem__(index)


def test_training_goes_on_after_a_worker_s_exception(tmp_path):
    whole = trainer(max_epochs=2).fit(loader(shuffle=False))
    data = DataLoader(Broken(tmp_path / "there", X, Y), batch_size=8, num_workers=2)
    run = trainer(max_epochs=2)
    with pytest.raises(KeyError, match="sample thirty"):
        run.fit(data)
    assert len(run.history.steps) == 3
    (tmp_path / "there").touch()
    same(run.fit(data), whole)


def full_disk(monkeypatch, when):
    """Writing fails after some bytes, at the calls whose numbers are given."""
    calls = []
    save = files.save

    def failing(obj, path):
        calls.append(path)
        if len(calls) in when:
            with open(path, "wb") as file:
                file.write(b"part of it")
            raise OSError(errno.ENOSPC, "No space left on device")
        save(obj, path)

    monkeypatch.setattr(files, "save", failing)


def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch):
    whole = trainer().fit(loader())
    full_disk(monkeypatch, when=(3,))
    run = trainer(checkpoint_dir=tmp_path, checkpoint_steps=4)
    with pytest.raises(OSError, match=r"No space left on device.*files written before are whole") as found:
        run.fit(loader())
    assert found.value.errno == errno.ENOSPC
    assert found.value.filename.endswith("checkpoint-00000008.pf")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-00000004.pf", "checkpoint-00000007.pf"]
    again = trainer(seed=3)
    again.load_checkpoint(latest_checkpoint(tmp_path))
    same(again.fit(loader()), whole)
    same(run.fit(loader()), whole)


def test_a_real_limit_of_a_file_s_size(tmp_path):
    resource = pytest.importorskip("resource")
    run = trainer(checkpoint_dir=tmp_path, max_epochs=1)
    run.fit(loader())
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(OSError, match="files written before are whole"):
            run.save_checkpoint(next(tmp_path.glob("checkpoint-*.pf")))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_an_interrupt_on_a_full_disk_is_still_an_interrupt(tmp_path, monkeypatch):
    full_disk(monkeypatch, when=(1,))
    run = trainer(Press("on_batch_end", 3, press), checkpoint_dir=tmp_path)
    with pytest.raises(KeyboardInterrupt) as found:
        run.fit(loader())
    assert "No space left" in found.value.__notes__[0]
    assert not list(tmp_path.iterdir())


def test_what_killed_processes_left_is_cleared_away(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    left = tmp_path / f".checkpoint-00000001.pf.{ended.pid}.0a1b2c3d"
    inner = tmp_path / f"..checkpoint-00000001.pf.{ended.pid}.0a1b2c3d.pf.{ended.pid}.00000000"
    others = tmp_path / f".checkpoint-00000001.pf.{os.getppid()}.0a1b2c3d"
    for path in (left, inner, others):
        path.write_bytes(b"half")
    trainer(checkpoint_dir=tmp_path, max_epochs=1).fit(loader())
    assert not left.exists()
    assert not inner.exists()
    assert others.exists()


CUT = """
import os, sys, pyflame as pf
from pyflame_rt.graph import writing
sync = os.fsync
os.fsync = lambda number: os.kill(os.getpid(), 9)
from pyflame.training.checkpoints import write_whole
(write_whole if sys.argv[2] == "checkpoint" else pf.save)({"w": pf.ones([1000])}, sys.argv[1])
"""


@pytest.mark.parametrize("kind", ["checkpoint", "save"])
def test_the_next_writer_removes_what_a_killed_one_left(tmp_path, kind):
    """Killed where its bytes are written and their name is not yet the file's."""
    target = tmp_path / ("checkpoint-00000007.pf" if kind == "checkpoint" else "model.pf")
    done = subprocess.run([sys.executable, "-c", CUT, str(target), kind], check=False)
    assert done.returncode == -9
    assert len(list(tmp_path.iterdir())) == 1
    if kind == "checkpoint":
        target = tmp_path / "checkpoint-00000012.pf"
        files.write_whole({"w": 1}, target)
    else:
        pf.save({"w": 1}, target)
    assert [path.name for path in tmp_path.iterdir()] == [target.name]


KILLED = """
import json, sys, numpy as np, pyflame as pf
from pathlib import Path
from pyflame.training import LearningRateScheduler, Trainer, TrainerConfig, latest_checkpoint
folder = Path(sys.argv[1])
pf.manual_seed(7)
x = np.random.default_rng(0).normal(size=(60, 6)).astype(np.float32)
net = pf.nn.Sequential(pf.nn.Linear(6, 16), pf.nn.Dropout(0.2), pf.nn.Linear(16, 1))
adam = pf.optim.Adam(net.parameters())
config = TrainerConfig(max_epochs=4, progress=False, checkpoint_dir=folder, checkpoint_steps=1,
                       accumulate_grad_batches=2, keep_checkpoints=2)
schedule = LearningRateScheduler(pf.optim.ExponentialLR(adam, 0.7))
trainer = Trainer(net, adam, lambda y: (y * y).mean(), config, callbacks=[schedule])
if (found := latest_checkpoint(folder)) is not None:
    trainer.load_checkpoint(found)
class Slow(pf.training.Callback):
    def on_batch_end(self, batch, logs):
        if len(sys.argv) > 2:
            sys.stdin.readline()
trainer.callbacks.append(Slow())
history = trainer.fit(pf.data.DataLoader(x, batch_size=8, shuffle=True))
(folder / "result.json").write_text(json.dumps([history.steps, history["lr"], net[0].weight.tolist()]))
"""


def run_killed(folder, batches, delay):
    """Let a process train so many batches more, and kill it after a moment."""
    command = [sys.executable, "-c", KILLED, str(folder), "slow"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    try:
        process.stdin.write(b"\n" * batches)
        process.stdin.flush()
        before = set(folder.iterdir())
        deadline = time.monotonic() + 120
        while process.poll() is None and set(folder.iterdir()) == before and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(delay)
    finally:
        process.kill()
        process.wait()
        process.stdin.close()


def test_kills_at_random_moments(tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for folder in (whole, cut):
        folder.mkdir()
    subprocess.run([sys.executable, "-c", KILLED, str(whole)], check=True, timeout=200)
    chance = np.random.default_rng(3)
    for batches in (3, 9, 8):
        run_killed(cut, batches, chance.uniform(0, 0.02))
    subprocess.run([sys.executable, "-c", KILLED, str(cut)], check=True, timeout=200)
    assert json.loads((cut / "result.json").read_text()) == json.loads((whole / "result.json").read_text())
    assert not list(cut.glob(".checkpoint*"))


def test_a_fit_within_a_fit():
    class Inner(Callback):
        def on_epoch_begin(self, epoch, logs):
            if epoch == 1:
                trainer(Press("on_batch_end", 3, press)).fit(loader())

    handler = signal.getsignal(signal.SIGINT)
    run = trainer(Inner())
    with pytest.raises(KeyboardInterrupt):
        run.fit(loader())
    assert signal.getsignal(signal.SIGINT) is handler
    assert len(run.history.steps) == 7


def test_own_handlers_of_the_user_are_left_alone():
    seen = []
    before = signal.signal(signal.SIGINT, lambda *_: seen.append(1))
    try:
        history = trainer(Press("on_batch_end", 2, press)).fit(loader())
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [1]
    assert len(history.steps) == 21


def test_checkpoints_of_callbacks_survive_interrupts(tmp_path):
    whole = trainer().fit(loader())
    save = ModelCheckpoint(tmp_path / "{epoch}.pf")
    with pytest.raises(KeyboardInterrupt):
        trainer(Press("on_epoch_end", 2, press), save).fit(loader())
    for path in tmp_path.iterdir():
        again = trainer(Callback(), ModelCheckpoint(tmp_path / "x{epoch}.pf"), seed=9)
        again.load_checkpoint(path)
        same(again.fit(loader()), whole)
