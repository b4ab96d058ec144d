"""Training of graphs, step by step beside torch."""

import math

import numpy as np
import pytest
import torch

from pyflame_rt.graph.errors import InputError, InvalidModelError, ModelNotFoundError, ShapeMismatchError
from pyflame_rt.training import GraphTrainer, InMemoryDataset, SupervisedLoss, TrainingConfig, trainable
from pyflame_rt.training.data import rows_of
from tests.tolerances import within
from tests.unit.pruning.nets import Build, mlp, run

RNG = np.random.default_rng(0)
X = RNG.normal(size=(64, 16)).astype(np.float32)
Y = RNG.integers(0, 10, 64)


def twin(graph):
    """The same network in torch."""
    layers = []
    for i in (1, 2, 3):
        weight, bias = (graph.get_initializer(f"fc{i}.{part}").numpy() for part in ("weight", "bias"))
        layer = torch.nn.Linear(weight.shape[1], weight.shape[0])
        layer.weight.data, layer.bias.data = torch.tensor(weight), torch.tensor(bias)
        layers += [layer, torch.nn.ReLU()] if i < 3 else [layer]
    return torch.nn.Sequential(*layers)


def adamw(config, state, step, p):
    """One step as ONNX defines it: epsilon is added before the correction for the start, unlike torch's."""
    share = 1 - config.learning_rate * config.weight_decay if p.ndim >= 2 else 1
    mean, square = state.setdefault(p, [torch.zeros_like(p), torch.zeros_like(p)])
    state[p] = [0.9 * mean + 0.1 * p.grad, 0.999 * square + 0.001 * p.grad**2]
    rate = config.learning_rate * math.sqrt(1 - 0.999**step) / (1 - 0.9**step)
    p.data = p.data * share - rate * state[p][0] / (state[p][1].sqrt() + 1e-8)


def torch_steps(graph, config, count):
    net = twin(graph)
    sgd = torch.optim.SGD(net.parameters(), lr=config.learning_rate, momentum=config.momentum)
    losses, state = [], {}
    for i in range(count):
        x, y = torch.tensor(X[i * 8 : i * 8 + 8]), torch.tensor(Y[i * 8 : i * 8 + 8])
        sgd.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(x), y)
        loss.backward()
        if config.gradient_clip:
            torch.nn.utils.clip_grad_norm_(net.parameters(), config.gradient_clip)
        if config.optimizer == "sgd":
            sgd.step()
        else:
            for p in net.parameters():
                adamw(config, state, i + 1, p)
        losses.append(loss.item())
    return losses, net


@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": "adamw", "weight_decay": 0.05, "gradient_clip": 0.1},
        {"optimizer": "adamw", "weight_decay": 0.0, "gradient_clip": 0.0},
        {"optimizer": "sgd", "weight_decay": 0.0, "gradient_clip": 1.0, "momentum": 0.8},
    ],
    ids=lambda s: f"{s['optimizer']}-{s['gradient_clip']}",
)
def test_steps_are_those_of_torch(settings):
    config = TrainingConfig(learning_rate=0.01, **settings)
    trainer = GraphTrainer(mlp(), SupervisedLoss(["output"]), config)
    losses = [trainer.step({"input": X[i * 8 : i * 8 + 8]}, Y[i * 8 : i * 8 + 8])["loss"] for i in range(6)]
    wanted, net = torch_steps(mlp(), config, 6)
    np.testing.assert_allclose(losses, wanted, rtol=1e-4)
    np.testing.assert_allclose(trainer.parameters["fc2.weight"], net[2].weight.detach(), **within("rounded"))


def normed():
    b = Build(["N", 2, 4, 4])
    x = b.node("Relu", [b.norm(b.conv("input", "c", 6, 2), "norm", 6)])
    x = b.node("ReduceMean", [x, b.ints("over", [2, 3])], keepdims=0)
    return b.done(b.linear(x, "fc", 3, 6), ["N", 3])


def test_batch_statistics_are_tracked_as_torch_tracks_them():
    graph, rng = normed(), np.random.default_rng(1)
    x, y = rng.normal(size=(8, 2, 4, 4)).astype(np.float32), rng.integers(0, 3, 8)
    config = TrainingConfig(learning_rate=0.0, weight_decay=0.0, train_batch_norm=True)
    trainer = GraphTrainer(graph, SupervisedLoss(["output"]), config)
    loss = trainer.step({"input": x}, y)["loss"]
    norm = torch.nn.BatchNorm2d(6)
    parts = {n: torch.tensor(graph.get_initializer(n).numpy()) for n in graph.initializers if n != "over"}
    norm.weight.data, norm.bias.data = parts["norm.weight"], parts["norm.bias"]
    norm.running_mean, norm.running_var = parts["norm.mean"].clone(), parts["norm.var"].clone()
    h = torch.nn.functional.conv2d(torch.tensor(x), parts["c.weight"], parts["c.bias"], padding=1)
    h = torch.relu(norm(h)).mean(dim=(2, 3)) @ parts["fc.weight"].T + parts["fc.bias"]
    assert loss == pytest.approx(torch.nn.functional.cross_entropy(h, torch.tensor(y)).item(), rel=1e-5)
    after = trainer.graph()
    np.testing.assert_allclose(after.get_initializer("norm.mean").numpy(), norm.running_mean, rtol=1e-4, atol=1e-6)
    # torch tracks the unbiased variance, ONNX the biased one
    count = 8 * 16
    old = parts["norm.var"].numpy()
    biased = old * 0.9 + (norm.running_var.numpy() - old * 0.9) * (count - 1) / count
    np.testing.assert_allclose(after.get_initializer("norm.var").numpy(), biased, rtol=1e-4)


def test_frozen_statistics_stay():
    graph = normed()
    x = np.random.default_rng(1).normal(size=(8, 2, 4, 4)).astype(np.float32)
    trainer = GraphTrainer(graph, SupervisedLoss(["output"]), TrainingConfig(learning_rate=0.1))
    trainer.step({"input": x}, np.zeros(8, np.int64))
    after = trainer.graph()
    assert trainable(graph) == ["c.weight", "c.bias", "norm.weight", "norm.bias", "fc.weight", "fc.bias"]
    np.testing.assert_array_equal(
        after.get_initializer("norm.mean").numpy(), graph.get_initializer("norm.mean").numpy()
    )


def test_a_checkpoint_goes_on_as_if_nothing_had_happened(tmp_path):
    config = TrainingConfig(learning_rate=0.01, num_epochs=4, batch_size=16)
    whole = GraphTrainer(mlp(), SupervisedLoss(["output"]), config)
    whole.fit((X, Y))
    config = TrainingConfig(
        learning_rate=0.01, num_epochs=4, batch_size=16, checkpoint_dir=tmp_path / "kept", checkpoint_frequency=4
    )
    cut = GraphTrainer(mlp(), SupervisedLoss(["output"]), config)
    cut.fit((X, Y), callback=lambda logs: False)
    assert cut.history.stopped_early
    again = GraphTrainer(mlp(), SupervisedLoss(["output"]), config)
    again.load_checkpoint(tmp_path / "kept" / "step_00000004.npz")
    again.fit((X, Y))
    for name, array in whole.parameters.items():
        np.testing.assert_array_equal(array, again.parameters[name])


def test_files_that_are_no_checkpoints(tmp_path):
    trainer = GraphTrainer(mlp(), SupervisedLoss(["output"]))
    (tmp_path / "bad.npz").write_bytes(b"nothing")
    with pytest.raises(InvalidModelError, match="no checkpoint"):
        trainer.load_checkpoint(tmp_path / "bad.npz")
    with pytest.raises(ModelNotFoundError):
        trainer.load_checkpoint(tmp_path / "missing.npz")
    GraphTrainer(mlp((16, 8, 10)), SupervisedLoss(["output"])).save_checkpoint(tmp_path / "other.npz")
    with pytest.raises(InputError, match="another graph"):
        trainer.load_checkpoint(tmp_path / "other.npz")


def test_early_stopping_takes_the_best_weights():
    config = TrainingConfig(learning_rate=0.05, num_epochs=60, batch_size=32, early_stopping_patience=2)
    trainer = GraphTrainer(mlp(), SupervisedLoss(["output"]), config)
    history = trainer.fit((X[:32], Y[:32]), validation=(X[32:], Y[32:]))
    assert history.stopped_early
    assert len(history.epochs) < 60
    assert history.best_loss == min(history.validation)
    assert trainer.evaluate((X[32:], Y[32:])) == pytest.approx(history.best_loss, rel=1e-5)
    assert history.plot().count("<polyline") == 2


def test_evaluation_is_the_mean_over_all_rows():
    trainer = GraphTrainer(mlp(), SupervisedLoss(["output"]), TrainingConfig(batch_size=24))
    scores = torch.tensor(run(mlp(), {"input": X}))
    wanted = torch.nn.functional.cross_entropy(scores, torch.tensor(Y)).item()
    assert trainer.evaluate((X, Y)) == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant"])
def test_learning_rates(schedule):
    config = TrainingConfig(learning_rate=1.0, warmup_steps=10, lr_schedule=schedule)
    rates = [config.rate_at(step, 110) for step in range(110)]
    np.testing.assert_allclose(rates[:10], np.arange(1, 11) / 10)
    done = np.arange(100) / 100
    wanted = {"cosine": 0.5 * (1 + np.cos(math.pi * done)), "linear": 1 - done, "constant": np.ones(100)}[schedule]
    np.testing.assert_allclose(rates[10:], wanted, atol=1e-12)


def test_a_fixed_batch_size_is_kept():
    graph = mlp()
    graph.inputs[0].shape, graph.outputs[0].shape = [16, 16], [16, 10]
    trainer = GraphTrainer(graph, SupervisedLoss(["output"]), TrainingConfig(batch_size=7, num_epochs=1))
    assert len(trainer.fit((X[:40], Y[:40])).steps) == 3


def test_rows_and_single_samples():
    graph = mlp()
    data = InMemoryDataset()
    data.add_sample({"input": X[:8]}, labels=Y[:8])
    data.add_sample({"input": X[8]}, labels=Y[8])
    rows = rows_of(graph, data)
    np.testing.assert_array_equal(rows.inputs["input"], X[:9])
    np.testing.assert_array_equal(rows.labels, Y[:9])
    seen = [batch["input"] for batch, _ in rows.batches(4, np.random.default_rng(0))]
    assert [len(batch) for batch in seen] == [4, 4, 4]
    assert {row.tobytes() for batch in seen for row in batch} == {row.tobytes() for row in X[:9]}


@pytest.mark.parametrize(
    ("data", "kind", "match"),
    [
        (InMemoryDataset(), InputError, "empty"),
        ((X, Y[:5]), ShapeMismatchError, "different numbers of rows"),
        ({"image": X}, InputError, "the model needs input"),
        (3, InputError, "got int"),
        ([(X[:4], Y[:4]), (X[:4], None)], InputError, "1 of 2 samples"),
        ([(X[:4], Y[:4]), (X[:4, :3], Y[:4])], ShapeMismatchError, "different sizes"),
    ],
    ids=["empty", "rows", "names", "kind", "labels", "sizes"],
)
def test_data_that_does_not_fit(data, kind, match):
    with pytest.raises(kind, match=match):
        GraphTrainer(mlp(), SupervisedLoss(["output"])).fit(data)


def test_a_loss_that_is_not_finite_says_so():
    config = TrainingConfig(learning_rate=1e30, gradient_clip=0.0, num_epochs=5)
    with pytest.raises(InputError, match="lower learning_rate"):
        GraphTrainer(mlp(), SupervisedLoss(["output"]), config).fit((X, Y))


def test_labels_are_needed():
    with pytest.raises(InputError, match="needs labels"):
        GraphTrainer(mlp(), SupervisedLoss(["output"])).fit({"input": X})


@pytest.mark.parametrize(
    "changes",
    [
        {"learning_rate": -1},
        {"learning_rate": float("nan")},
        {"batch_size": 0},
        {"batch_size": 2.5},
        {"num_epochs": 0},
        {"lr_schedule": "exponential"},
        {"optimizer": "lion"},
        {"warmup_steps": -1},
        {"gradient_clip": "no"},
    ],
    ids=str,
)
def test_settings_that_mean_nothing(changes):
    with pytest.raises(InputError):
        GraphTrainer(mlp(), SupervisedLoss(["output"]), TrainingConfig(**changes))


def test_a_loss_of_ones_own():
    from pyflame_rt.ops import get_op

    def absolute(output, labels):
        return get_op("ReduceMean")(get_op("Abs")(output - labels), keepdims=0)

    target = RNG.normal(size=(64, 10)).astype(np.float32)
    trainer = GraphTrainer(mlp(), SupervisedLoss(["output"], absolute))
    got = trainer.evaluate((X, target))
    assert got == pytest.approx(np.abs(run(mlp(), {"input": X}) - target).mean(), rel=1e-5)


def test_progress_is_shown(capsys):
    config = TrainingConfig(num_epochs=1, progress=True)
    GraphTrainer(mlp(), SupervisedLoss(["output"]), config).fit((X, Y))
    assert capsys.readouterr().out == ""


def test_scores_before_a_last_softmax_are_learned():
    graph = mlp()
    graph.nodes = [n.replace(outputs=["scores"]) if "output" in n.outputs else n for n in graph.nodes]
    graph.add_node("softmax", "Softmax", ["scores"], ["output"])
    plain = GraphTrainer(mlp(), SupervisedLoss(["output"])).evaluate((X, Y))
    assert GraphTrainer(graph, SupervisedLoss(["output"])).evaluate((X, Y)) == pytest.approx(plain, rel=1e-6)


def test_a_named_loss_is_of_one_output():
    with pytest.raises(InputError, match="give a function"):
        SupervisedLoss(["a", "b"])


def test_evaluation_between_steps_changes_nothing():
    trainers = [GraphTrainer(mlp(), SupervisedLoss(["output"]), TrainingConfig(learning_rate=0.01)) for _ in range(2)]
    for _ in range(3):
        for trainer in trainers:
            trainer.step({"input": X[:16]}, Y[:16])
        trainers[1].evaluate((X[:23], Y[:23]))
    for name, array in trainers[0].parameters.items():
        np.testing.assert_array_equal(array, trainers[1].parameters[name])
