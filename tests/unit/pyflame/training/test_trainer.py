"""The training loop: learning, exact resumption, kills, callbacks, precision."""

import csv
import math
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET

import numpy as np
import pytest

import pyflame as pf
from pyflame.data import DataLoader, TensorDataset
from pyflame.training import (
    Callback,
    CSVLogger,
    EarlyStopping,
    GradScaler,
    LearningRateScheduler,
    ModelCheckpoint,
    TensorBoardLogger,
    Trainer,
    TrainerConfig,
    latest_checkpoint,
)

RNG = np.random.default_rng(0)
X = RNG.normal(size=(96, 4)).astype(np.float32)
Y = (X[:, 0] * X[:, 1] > 0).astype(np.int64)


def loader(shuffle=True, size=16):
    return DataLoader(TensorDataset(X, Y), batch_size=size, shuffle=shuffle)


def model(dropout=0.2):
    return pf.nn.Sequential(pf.nn.Linear(4, 16), pf.nn.ReLU(), pf.nn.Dropout(dropout), pf.nn.Linear(16, 2))


def trainer(seed=0, callbacks=(), dropout=0.2, metrics=None, **settings):
    pf.manual_seed(seed)
    net = model(dropout)
    optimizer = pf.optim.Adam(net.parameters(), lr=0.02)
    config = TrainerConfig(**{"max_epochs": 3, "progress": False, **settings})
    return Trainer(net, optimizer, pf.nn.CrossEntropyLoss(), config, callbacks=callbacks, metrics=metrics)


def test_it_learns_and_measures():
    run = trainer(max_epochs=30, metrics=[pf.metrics.Accuracy()])
    history = run.fit(loader(), loader(shuffle=False))
    assert history.epochs == 30
    assert history["loss"][-1] < 0.6 * history["loss"][0]
    assert history["val_accuracy"][-1] > 0.9
    assert run.predict(loader(shuffle=False)).shape == (96, 2)
    assert run.test(loader(shuffle=False))["test_loss"] == pytest.approx(history["val_loss"][-1], rel=1e-5)


@pytest.mark.parametrize("compiled", [True, False])
def test_runs_repeat_exactly(compiled):
    assert trainer(compile=compiled).fit(loader()).steps == trainer(compile=compiled).fit(loader()).steps


def test_compiled_and_plain_steps_agree():
    plain, compiled = (trainer(compile=c, dropout=0.0).fit(loader(shuffle=False)).steps for c in (False, True))
    np.testing.assert_allclose(compiled, plain, rtol=1e-5)


@pytest.mark.parametrize("stop_after", [4, 6, 9])
def test_resuming_gives_the_same_losses(tmp_path, stop_after):
    class Save(Callback):
        def on_batch_end(self, batch, logs):
            if logs["step"] == stop_after:
                self.trainer.save_checkpoint(tmp_path / "middle.pf")

    whole = trainer(callbacks=[Save()]).fit(loader()).steps
    pf.manual_seed(12345)  # whatever happened in between
    again = trainer(seed=99, callbacks=[Callback()])
    again.load_checkpoint(tmp_path / "middle.pf")
    assert again.fit(loader()).steps == whole


def test_gradients_of_small_batches_add_up():
    small = trainer(dropout=0.0, accumulate_grad_batches=4, max_epochs=2)
    small_history = small.fit(loader(shuffle=False, size=8))
    large = trainer(dropout=0.0, max_epochs=2)
    large_history = large.fit(loader(shuffle=False, size=32))
    assert small.global_step == large.global_step
    np.testing.assert_allclose(small_history["loss"], large_history["loss"], rtol=1e-4)


@pytest.mark.parametrize(("accumulate", "size"), [(2, 8), (3, 8), (4, 7), (5, 96)])
@pytest.mark.parametrize("clip", [None, 0.3])
def test_compiled_steps_of_several_batches_are_the_plain_ones(accumulate, size, clip):
    settings = {"accumulate_grad_batches": accumulate, "grad_clip_norm": clip}
    plain = trainer(compile=False, **settings)
    expected = plain.fit(loader(size=size)).steps
    compiled = trainer(compile=True, **settings)
    np.testing.assert_allclose(compiled.fit(loader(size=size)).steps, expected, rtol=1e-5)
    for a, b in zip(compiled.model.parameters(), plain.model.parameters(), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-4, atol=1e-6)


def test_steps_of_several_batches_are_traced_a_few_times_only():
    run = trainer(accumulate_grad_batches=4, max_epochs=6)
    run.fit(loader(size=8))
    assert run._step._gather.trace_count <= 3
    assert run._step._last.trace_count <= 2


SCRIPT = """
import sys, numpy as np, pyflame as pf
from pyflame.training import Trainer, TrainerConfig
pf.manual_seed(0)
x = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
net = pf.nn.Linear(64, 512)
config = TrainerConfig(max_epochs=100000, progress=False, checkpoint_dir=sys.argv[1], checkpoint_steps=1)
trainer = Trainer(net, pf.optim.Adam(net.parameters()), lambda y: (y * y).mean(), config)
trainer.fit(pf.data.DataLoader(x, batch_size=16))
"""


def test_a_kill_leaves_whole_checkpoints(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(tmp_path)])
    try:
        deadline = time.monotonic() + 120
        while not latest_checkpoint(tmp_path) and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.3)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    found = sorted(tmp_path.glob("checkpoint-*.pf"))
    assert found
    for path in found:
        assert "model" in pf.load(path)


def test_checkpoints_are_pruned_and_pictures_drawn(tmp_path):
    trainer(max_epochs=4, checkpoint_dir=tmp_path, keep_checkpoints=2).fit(loader())
    assert len(list(tmp_path.glob("checkpoint-*.pf"))) == 2
    picture = ET.parse(tmp_path / "loss_curve.svg").getroot()
    assert picture.findall(".//{http://www.w3.org/2000/svg}polyline")


def test_training_stops_early_and_keeps_the_best():
    class Worse(Callback):
        def on_epoch_end(self, epoch, logs):
            logs["made_up"] = 5.0 - epoch if epoch < 3 else 9.0
            if epoch == 2:
                self.best = self.trainer.model[0].weight.numpy()

    worse = Worse()
    run = trainer(max_epochs=50, callbacks=[worse, EarlyStopping("made_up", patience=2)])
    history = run.fit(loader())
    assert history.epochs == 5
    assert "made_up" in run.stop_reason
    np.testing.assert_array_equal(run.model[0].weight.numpy(), worse.best)
    with pytest.raises(KeyError, match="val_loss"):
        trainer(callbacks=[EarlyStopping()]).fit(loader())


def test_max_steps_and_schedules():
    run = trainer(max_steps=7)
    scheduler = LearningRateScheduler(pf.optim.ExponentialLR(run.optimizer, 0.5), interval="step")
    run.callbacks.append(scheduler)
    run.fit(loader())
    assert run.global_step == 7
    assert run.optimizer.get_lr() == pytest.approx(0.02 * 0.5**7)


def test_logs_are_written(tmp_path):
    callbacks = [
        CSVLogger(tmp_path / "log.csv"),
        TensorBoardLogger(tmp_path / "board"),
        ModelCheckpoint(tmp_path / "best-{epoch}.pf", monitor="loss", save_best_only=True, save_weights_only=True),
    ]
    run = trainer(callbacks=callbacks)
    run.fit(loader())
    with (tmp_path / "log.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["epoch"] for row in rows] == ["0", "1", "2"]
    assert float(rows[-1]["loss"]) == run.history["loss"][-1]
    weights = pf.load(min(tmp_path.glob("best-*.pf")))
    assert set(weights) == set(run.model.state_dict())
    events = next((tmp_path / "board").iterdir()).read_bytes()
    assert events.count(b"loss") == 3


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
@pytest.mark.parametrize("clip", [None, 1.0])
def test_mixed_precision_learns_with_full_weights(precision, clip):
    run = trainer(max_epochs=15, precision=precision, grad_clip_norm=clip, dropout=0.0)
    history = run.fit(loader())
    assert history["loss"][-1] < 0.7 * history["loss"][0]
    assert all(p.dtype == pf.float32 for p in run.model.parameters())


def test_the_scaler_backs_off_and_skips():
    w = pf.nn.Parameter(pf.ones([1]))
    scaler, optimizer = GradScaler(init_scale=8.0), pf.optim.SGD([w], lr=1.0)
    w.grad = pf.tensor([math.inf])
    assert not scaler.step(optimizer)
    assert (w.item(), scaler.value) == (1.0, 4.0)


def test_bad_runs_are_refused():
    with pytest.raises(ValueError, match="no batches"):
        trainer().fit([])
    with pytest.raises(ValueError, match="max_epochs"):
        TrainerConfig(max_epochs=0)
    with pytest.raises(FloatingPointError, match="step 0"):
        trainer().fit([(np.full((2, 4), np.nan, np.float32), np.zeros(2, np.int64))])


def test_batches_may_be_dicts_or_inputs_alone():
    class Sum(pf.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = pf.nn.Parameter(pf.ones([1]))

        def forward(self, a, b=None):
            return self.w * (a if b is None else a + b)

    net = Sum()
    config = TrainerConfig(max_epochs=2, progress=False)
    run = Trainer(net, pf.optim.SGD(net.parameters(), lr=0.1), pf.nn.MSELoss(), config)
    ones = np.ones(3, np.float32)
    assert run.fit([{"a": ones, "b": ones, "targets": ones}]).epochs == 2
    alone = Trainer(net, pf.optim.SGD(net.parameters(), lr=0.1), lambda y: (y * y).mean(), config)
    assert alone.fit([ones]).epochs == 2


def test_compiled_steps_keep_running_statistics():
    def trained(compiled):
        pf.manual_seed(0)
        net = pf.nn.Sequential(pf.nn.Linear(4, 8), pf.nn.BatchNorm1d(8), pf.nn.Linear(8, 2))
        config = TrainerConfig(max_epochs=2, progress=False, compile=compiled)
        Trainer(net, pf.optim.SGD(net.parameters(), lr=0.1), pf.nn.CrossEntropyLoss(), config).fit(
            loader(shuffle=False)
        )
        return net[1]

    plain, compiled = trained(False), trained(True)
    assert plain.num_batches_tracked.item() == compiled.num_batches_tracked.item() == 12
    np.testing.assert_allclose(compiled.running_mean.numpy(), plain.running_mean.numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(compiled.running_var.numpy(), plain.running_var.numpy(), rtol=1e-5)
