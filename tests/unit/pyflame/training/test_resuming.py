"""Training that was cut off goes on exactly: losses, measures, learning rates and order."""

import numpy as np
import pytest

import pyflame as pf
from pyflame.data import DataLoader, IterableDataset, TensorDataset
from pyflame.training import (
    Callback,
    LearningRateScheduler,
    ModelCheckpoint,
    Trainer,
    TrainerConfig,
    latest_checkpoint,
)
from pyflame.training.checkpoints import read_checkpoint

RNG = np.random.default_rng(1)
X = RNG.normal(size=(50, 4)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)


def loader(**settings):
    return DataLoader(TensorDataset(X, Y), **{"batch_size": 8, "shuffle": True, **settings})


def trainer(*callbacks, seed=0, dropout=0.3, **settings):
    pf.manual_seed(seed)
    net = pf.nn.Sequential(pf.nn.Linear(4, 8), pf.nn.Dropout(dropout), pf.nn.Linear(8, 2))
    optimizer = pf.optim.Adam(net.parameters(), lr=0.02)
    schedule = LearningRateScheduler(pf.optim.ExponentialLR(optimizer, 0.5))
    config = TrainerConfig(**{"max_epochs": 3, "progress": False, **settings})
    metrics = [pf.metrics.Accuracy(), pf.metrics.F1Score(average="macro"), pf.metrics.AUROC()]
    loss = pf.nn.CrossEntropyLoss()
    return Trainer(net, optimizer, loss, config, callbacks=[*callbacks, schedule], metrics=metrics)


def goes_on(path, whole, data, *callbacks, **settings):
    pf.manual_seed(4321)
    again = trainer(*callbacks, seed=5, **settings)
    again.load_checkpoint(path)
    history = again.fit(data)
    assert history.steps == whole.steps
    assert dict(history) == dict(whole)


@pytest.mark.parametrize("stop_after", [3, 7, 10])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_from_any_batch(tmp_path, stop_after, accumulate):
    class Save(Callback):
        def on_batch_end(self, batch, logs):
            if len(self.trainer.history.steps) == stop_after:
                self.trainer.save_checkpoint(tmp_path / "middle.pf")

    whole = trainer(Save(), accumulate_grad_batches=accumulate).fit(loader())
    goes_on(tmp_path / "middle.pf", whole, loader(), accumulate_grad_batches=accumulate)


def test_from_the_end_of_an_epoch(tmp_path):
    whole = trainer(ModelCheckpoint(tmp_path / "{epoch}.pf")).fit(loader())
    goes_on(tmp_path / "1.pf", whole, loader(), ModelCheckpoint(tmp_path / "again.pf"))
    trainer(checkpoint_dir=tmp_path, max_epochs=2).fit(loader())
    goes_on(latest_checkpoint(tmp_path), whole, loader())


def test_from_where_max_steps_ended_it(tmp_path):
    whole = trainer().fit(loader())
    part = trainer(max_steps=9, checkpoint_dir=tmp_path)
    assert part.fit(loader()).epochs == 2
    goes_on(latest_checkpoint(tmp_path), whole, loader())
    part.save_checkpoint(tmp_path / "by_hand.pf")
    goes_on(tmp_path / "by_hand.pf", whole, loader())
    part.config.max_steps = None
    assert dict(part.fit(loader())) == dict(whole)


def test_orders_of_the_loader_s_own_go_on(tmp_path):
    whole = trainer(ModelCheckpoint(tmp_path / "{epoch}.pf")).fit(loader(generator=3))
    goes_on(tmp_path / "2.pf", whole, loader(generator=3), ModelCheckpoint(tmp_path / "again.pf"))


@pytest.mark.parametrize("sized", [True, False])
def test_a_step_of_too_few_batches_is_the_step_of_one_large_batch(sized):
    class Stream(IterableDataset):
        def __iter__(self):
            yield from zip(X, Y, strict=True)

    def run(size, accumulate):
        made = trainer(dropout=0.0, accumulate_grad_batches=accumulate, max_epochs=2)
        data = loader(shuffle=False, batch_size=size) if sized else DataLoader(Stream(), batch_size=size)
        made.fit(data)
        return made

    small, large = run(4, 4), run(16, 1)
    assert small.global_step == large.global_step == 8
    for ours, theirs in zip(small.model.parameters(), large.model.parameters(), strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=2e-5, atol=1e-6)


def test_no_epochs_are_none():
    assert trainer().fit(loader(), epochs=0).epochs == 0


def test_a_state_that_nobody_takes_is_told_of(tmp_path):
    trainer(ModelCheckpoint(tmp_path / "a.pf")).fit(loader(), epochs=1)
    bare = Trainer(trainer().model, trainer().optimizer, pf.nn.CrossEntropyLoss(), TrainerConfig(progress=False))
    with pytest.warns(UserWarning, match=r"ModelCheckpoint|LearningRateScheduler"):
        bare.load_checkpoint(tmp_path / "a.pf")


def test_a_checkpoint_without_all_parts_says_so(tmp_path):
    pf.save({"model": {}, "position": {}}, tmp_path / "old.pf")
    with pytest.raises(ValueError, match=r"without optimizer, .*another version"):
        read_checkpoint(tmp_path / "old.pf")
