"""Training callbacks of others, with stand-ins for their packages."""

import sys
import types
from pathlib import Path

import numpy as np
import pytest

import pyflame as pf
from pyflame.integrations import MLflowCallback, WandbCallback
from pyflame_rt.graph.errors import MissingExtra


class Config(dict):
    def update(self, values, allow_val_change=False):
        assert allow_val_change
        super().update(values)


class Run:
    def __init__(self, **given):
        self.given, self.logged, self.config = given, [], Config(given.get("config") or {})
        self.artifacts, self.finished = [], False

    def log(self, record):
        self.logged.append(record)

    def log_artifact(self, artifact):
        self.artifacts.append(artifact)

    def finish(self):
        self.finished = True


class Artifact:
    def __init__(self, name, type):  # noqa: A002
        self.name, self.type, self.files = name, type, {}

    def add_file(self, path):
        self.files[Path(path).name] = Path(path).read_bytes()

    def wait(self):
        self.waited = True


@pytest.fixture
def wandb(monkeypatch):
    module = types.ModuleType("wandb")
    module.run, module.runs, module.Artifact, module.Histogram = None, [], Artifact, lambda a: ("histogram", a.shape)

    def init(**given):
        module.runs.append(Run(**given))
        return module.runs[-1]

    module.init = init
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


@pytest.fixture
def mlflow(monkeypatch):
    module = types.ModuleType("mlflow")
    module.calls = []
    module.running = None
    module.active_run = lambda: module.running

    def record(name):
        def call(*args, **kwargs):
            if name == "log_artifact":
                kwargs["bytes"] = len(Path(args[0]).read_bytes())
            module.calls.append((name, args, kwargs))

        return call

    names = "set_tracking_uri set_experiment start_run end_run set_tags log_params log_metrics log_artifact"
    for name in names.split():
        setattr(module, name, record(name))
    monkeypatch.setitem(sys.modules, "mlflow", module)
    return module


def train(callback, epochs=2):
    x = np.random.default_rng(0).normal(size=(32, 3)).astype(np.float32)
    data = pf.data.DataLoader(pf.data.TensorDataset(x, x.sum(axis=1, keepdims=True)), batch_size=8)
    model = pf.nn.Linear(3, 1)
    config = pf.training.TrainerConfig(max_epochs=epochs, progress=False)
    optimizer = pf.optim.SGD(model.parameters(), lr=0.05)
    trainer = pf.training.Trainer(model, optimizer, pf.nn.MSELoss(), config, callbacks=[callback])
    return model, trainer.fit(data, data)


def test_wandb(wandb):
    callback = WandbCallback("mine", name="first", tags=["a"], config={"extra": 1}, log_model=True, log_freq=2,
                             log_parameters=True)  # fmt: skip
    model, history = train(callback)
    (run,) = wandb.runs
    assert (run.given["project"], run.given["name"], run.given["tags"]) == ("mine", "first", ["a"])
    assert "entity" not in run.given
    assert (run.config["parameters"], run.config["optimizer"], run.config["extra"]) == (4, "SGD", 1)
    assert run.config["optimizer_lr"] == 0.05
    epochs = [record for record in run.logged if "epoch" in record]
    assert [record["loss"] for record in epochs] == pytest.approx(history["loss"])
    assert [record["val_loss"] for record in epochs] == pytest.approx(history["val_loss"])
    batches = [record for record in run.logged if "batch/loss" in record]
    assert len(batches) == 4  # every second of 2 x 4
    assert run.finished
    (artifact,) = run.artifacts
    assert artifact.type == "model"
    assert len(artifact.files["Linear.safetensors"]) > 16
    assert artifact.waited
    assert epochs[0]["parameters/weight"] == ("histogram", (1, 3))
    assert list(model.parameters())


def test_wandb_goes_on_with_an_active_run(wandb):
    wandb.run = Run()
    train(WandbCallback("mine"), epochs=1)
    assert not wandb.runs
    assert wandb.run.config["model"] == "Linear"
    assert not wandb.run.finished


def test_mlflow(mlflow):
    callback = MLflowCallback("uri", "experiment", "run", tags={"a": "b"}, log_metrics_every_n_steps=4)
    _, history = train(callback)
    names = [name for name, _, _ in mlflow.calls]
    assert names[:5] == ["set_tracking_uri", "set_experiment", "start_run", "set_tags", "log_params"]
    assert names[-2:] == ["log_artifact", "end_run"]
    metrics = [(args[0], kwargs["step"]) for name, args, kwargs in mlflow.calls if name == "log_metrics"]
    epochs = [(record["loss"], step) for record, step in metrics if "loss" in record]
    assert epochs == [(pytest.approx(loss), n) for n, loss in enumerate(history["loss"])]
    assert [step for record, step in metrics if "batch_loss" in record] == [4, 8]
    (params,) = [args[0] for name, args, _ in mlflow.calls if name == "log_params"]
    assert params["parameters"] == 4
    assert None not in params.values()
    assert next(kwargs["bytes"] for name, _, kwargs in mlflow.calls if name == "log_artifact") > 16


def test_mlflow_goes_on_with_an_active_run(mlflow):
    mlflow.running = object()
    train(MLflowCallback(log_models=False, log_params=False), epochs=1)
    names = {name for name, _, _ in mlflow.calls}
    assert names == {"log_metrics"}


@pytest.mark.parametrize(("package", "make"), [("wandb", WandbCallback), ("mlflow", MLflowCallback)])
def test_a_missing_package_is_named(monkeypatch, package, make):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=f"pip install {package}"):
        make()


def test_settings_are_checked(wandb, mlflow):
    with pytest.raises(ValueError, match="log_freq"):
        WandbCallback(log_freq=0)
    with pytest.raises(ValueError, match="every_n_steps"):
        MLflowCallback(log_metrics_every_n_steps=0)
