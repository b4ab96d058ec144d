"""Masks hold through training, in the runtime and in the framework."""

import numpy as np
import pytest

import pyflame as pf
from pyflame_rt import pruning
from pyflame_rt.pruning import PruningConfig, PruningCriterion, PruningMask, PruningSchedule, WeightPruner
from pyflame_rt.training import TrainingConfig
from tests.unit.pruning.nets import mlp, run

RNG = np.random.default_rng(0)
X = RNG.normal(size=(96, 16)).astype(np.float32)
Y = (X[:, :10] + X[:, 3:13]).argmax(axis=1)
CONFIG = {"learning_rate": 3e-3, "num_epochs": 6, "batch_size": 32}


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_zeros_stay_and_the_rest_moves(optimizer):
    pruned = WeightPruner(PruningConfig.magnitude_pruning(0.7)).prune(mlp())
    tuned = pruning.fine_tune(pruned, (X, Y), TrainingConfig(**CONFIG, optimizer=optimizer))
    for name in ("fc1.weight", "fc2.weight", "fc3.weight"):
        before, after = pruned.get_initializer(name).numpy(), tuned.graph.get_initializer(name).numpy()
        np.testing.assert_array_equal(before == 0, after == 0)
        assert not np.array_equal(before, after)
        assert tuned.masks[name] == PruningMask.from_tensor(before)
    assert tuned.history.epochs[-1] < tuned.history.epochs[0]


@pytest.mark.parametrize("schedule", [PruningSchedule.CUBIC, PruningSchedule.POLYNOMIAL, PruningSchedule.ITERATIVE])
def test_pruning_that_grows_ends_at_the_target(schedule):
    config = PruningConfig(0.8, schedule=schedule, end_step=12, pruning_frequency=3)
    pruner, seen = WeightPruner(config), []
    tuned = pruning.fine_tune(mlp(), (X, Y), TrainingConfig(**CONFIG), pruner=pruner, callback=seen.append)
    assert len(seen) == 6
    shares = [layer.sparsity for layer in pruning.analyze_sparsity(tuned.graph).values()]
    assert shares == pytest.approx([0.8] * 3, abs=0.01)


def test_channels_that_go_step_by_step_are_removed_at_the_end():
    config = PruningConfig.structured_pruning(0.5)
    config.schedule, config.end_step, config.pruning_frequency = PruningSchedule.CUBIC, 12, 3
    tuned = pruning.fine_tune(mlp(), (X, Y), TrainingConfig(**CONFIG), pruner=WeightPruner(config))
    assert list(tuned.graph.get_initializer("fc2.weight").shape) == [16, 16]
    assert run(tuned.graph).shape == (2, 10)


def test_channels_chosen_by_movement_are_those_that_go():
    """A channel of zeros is worth nothing by movement, and others less: it has to go nevertheless."""
    config = PruningConfig.structured_pruning(0.5)
    config.criterion, config.end_step, config.pruning_frequency = PruningCriterion.MOVEMENT, 12, 3
    config.schedule = PruningSchedule.CUBIC
    pruner = WeightPruner(config)
    tuned = pruning.fine_tune(mlp(), (X, Y), TrainingConfig(**CONFIG), pruner=pruner)
    assert pruner.config.criterion is PruningCriterion.MOVEMENT
    weight = tuned.graph.get_initializer("fc2.weight").numpy()
    assert weight.shape == (16, 16)
    assert np.abs(weight).sum(axis=0).all(), "a channel that was trained went in place of one of zeros"
    assert np.abs(weight).sum(axis=1).all()


def net():
    pf.manual_seed(0)
    return pf.nn.Sequential(pf.nn.Linear(16, 24), pf.nn.ReLU(), pf.nn.Linear(24, 10))


def fit(model, *callbacks, epochs=4, optimizer=None, **config):
    data = pf.data.DataLoader(pf.data.TensorDataset(X, Y), batch_size=32)
    settings = pf.training.TrainerConfig(max_epochs=epochs, progress=False, **config)
    optimizer = optimizer or pf.optim.Adam(model.parameters(), lr=3e-3)
    trainer = pf.training.Trainer(model, optimizer, pf.nn.CrossEntropyLoss(), settings, list(callbacks))
    return trainer, trainer.fit(data)


def test_masks_hold_in_the_framework():
    model = net()
    graph = model.__runtime_graph__((pf.ones([4, 16]),))
    masks = WeightPruner(PruningConfig.magnitude_pruning(0.6)).compute_masks(graph)
    _, history = fit(model, pf.training.PruningCallback(masks))
    weight = model[0].weight.numpy()
    np.testing.assert_array_equal(weight == 0, ~masks["0.weight"].numpy())
    assert history["loss"][-1] < history["loss"][0]


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("SGD", {"momentum": 0.9, "weight_decay": 0.1, "nesterov": True}),
        ("RMSprop", {"momentum": 0.9, "weight_decay": 0.1}),
        ("Rprop", {}),
        *((name, {"weight_decay": 0.1}) for name in ("ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW")),
        *((name, {"weight_decay": 0.1}) for name in ("Adamax", "LAMB", "Lion", "NAdam", "RAdam")),
    ],
)
def test_masks_hold_with_momentum_and_decay(name, settings):
    model = net()
    masks = WeightPruner(PruningConfig(0.6)).compute_masks(model.__runtime_graph__((pf.ones([4, 16]),)))
    before = model[0].weight.numpy().copy()
    optimizer = getattr(pf.optim, name)(model.parameters(), lr=1e-2, **settings)
    fit(model, pf.training.PruningCallback(masks), epochs=1, optimizer=optimizer)
    weight = model[0].weight.numpy()
    np.testing.assert_array_equal(weight == 0, ~masks["0.weight"].numpy())
    assert not np.array_equal(weight[weight != 0], before[weight != 0])


def test_a_schedule_in_the_framework():
    config = PruningConfig(0.75, schedule=PruningSchedule.CUBIC, end_step=9, pruning_frequency=3)
    model = net()
    callback = pf.training.PruningCallback(WeightPruner(config), example=pf.ones([4, 16]))
    fit(model, callback)
    assert (model[0].weight.numpy() == 0).mean() == pytest.approx(0.75, abs=0.01)
    assert (model[2].weight.numpy() == 0).mean() == pytest.approx(0.75, abs=0.01)


def test_masks_are_in_checkpoints(tmp_path):
    model = net()
    graph = model.__runtime_graph__((pf.ones([4, 16]),))
    masks = WeightPruner(PruningConfig.magnitude_pruning(0.6)).compute_masks(graph)
    trainer, _ = fit(model, pf.training.PruningCallback(masks), epochs=1)
    trainer.save_checkpoint(tmp_path / "c.pf")
    again = net()
    callback = pf.training.PruningCallback({})
    other = pf.training.Trainer(
        again,
        pf.optim.Adam(again.parameters(), lr=3e-3),
        pf.nn.CrossEntropyLoss(),
        pf.training.TrainerConfig(progress=False),
        [callback],
    )
    other.load_checkpoint(tmp_path / "c.pf")
    assert callback.masks["0.weight"] == masks["0.weight"]


def test_a_mask_of_no_parameter_is_refused():
    with pytest.raises(KeyError, match="no parameter head"):
        fit(net(), pf.training.PruningCallback({"head": PruningMask([1])}), epochs=1)
    with pytest.raises(ValueError, match="example"):
        pf.training.PruningCallback(WeightPruner())
