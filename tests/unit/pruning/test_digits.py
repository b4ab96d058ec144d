"""Half the channels gone, and the digits are still told."""

import sys
import time

import numpy as np
import onnxruntime
import pytest

import pyflame_rt
from pyflame_rt import pruning
from pyflame_rt.pruning import PruningConfig, WeightPruner
from pyflame_rt.training import TrainingConfig
from tests.unit.pruning.digits import DIGITS, TRAIN, ConvNet, Transformer, accuracy, trained

TUNING = {"learning_rate": 2e-3, "batch_size": 64, "num_epochs": 10, "weight_decay": 0.0}


def halved(graph, **settings):
    pruner = WeightPruner(PruningConfig.structured_pruning(0.5))
    return pruning.fine_tune(pruner.prune(graph), TRAIN, TrainingConfig(**{**TUNING, **settings})).graph, pruner


@pytest.mark.parametrize(("kind", "width", "epochs"), [(ConvNet, 16, 6), (Transformer, 64, 25)])
def test_half_of_the_channels_and_at_most_a_point(kind, width, epochs, tmp_path):
    found = []
    for seed in range(3):  # models of other seeds differ by more than a point from each other
        whole, _ = trained(kind, epochs, seed, width)
        small, pruner = halved(whole, seed=seed)
        found.append((accuracy(whole), accuracy(small)))
    before, after = np.mean(found, axis=0)
    assert after >= before - 0.01
    assert pruner.get_stats().compression_ratio() > 3
    path = tmp_path / "small.onnx"
    pyflame_rt.export_onnx(small, path)
    feed = {"input": DIGITS.test_images}
    theirs = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, feed)[0]
    ours = pyflame_rt.InferenceSession(small).run(None, feed)[0]
    np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-3)


def best(session, feed, rounds=40):
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        session.run(None, feed)
        times.append(time.perf_counter() - started)
    return min(times)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "width", "epochs"), [(ConvNet, 64, 5), (Transformer, 128, 20)])
def test_half_of_the_channels_are_faster(kind, width, epochs, tmp_path):
    whole, _ = trained(kind, epochs, width=width)
    small, _ = halved(whole, num_epochs=2)
    feed = {"input": DIGITS.test_images}
    for graph, name in ((whole, "whole"), (small, "small")):
        pyflame_rt.export_onnx(graph, tmp_path / f"{name}.onnx")
    ours = [pyflame_rt.InferenceSession(graph) for graph in (whole, small)]
    theirs = [onnxruntime.InferenceSession(tmp_path / f"{name}.onnx") for name in ("whole", "small")]
    for label, pair in (("here", ours), ("onnxruntime", theirs)):
        rounds = [(best(pair[0], feed), best(pair[1], feed)) for _ in range(4)]
        ratio = min(a for a, _ in rounds) / min(b for _, b in rounds)
        sys.stdout.write(f"{kind.__name__} {label}: {ratio:.2f} times as fast\n")
        assert ratio > 1.2


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "width", "epochs"), [(ConvNet, 32, 6), (Transformer, 128, 20)])
def test_nothing_is_lost_over_five_seeds(kind, width, epochs):
    """Models of other seeds differ by more than a point from each other: only a mean says what pruning costs."""
    found = []
    for seed in range(5):
        whole, _ = trained(kind, epochs, seed, width)
        found.append((accuracy(whole), accuracy(halved(whole, seed=seed)[0])))
    before, after = np.mean(found, axis=0)
    sys.stdout.write(f"{kind.__name__}: {before:.4f} before, {after:.4f} after; {found}\n")
    assert after >= before - 0.01


@pytest.mark.slow
def test_not_worse_than_torch_pruning():
    """The same trained weights, half of the channels gone, the same steps of fine-tuning, mean of five seeds."""
    torch = pytest.importorskip("torch")
    tp = pytest.importorskip("torch_pruning")
    ours, theirs = [], []
    for seed in range(5):
        graph, model = trained(ConvNet, 6, seed)
        small, _ = halved(graph, seed=seed)
        ours.append(accuracy(small))
        twin = torch_twin(torch, model)
        example = torch.ones(2, 1, 8, 8)
        importance = tp.importance.GroupMagnitudeImportance(p=2)
        pruner = tp.pruner.BasePruner(twin, example, importance, pruning_ratio=0.5, ignored_layers=[twin.fc])
        pruner.step()
        theirs.append(tuned_by_torch(torch, twin, seed))
    sys.stdout.write(f"here {np.mean(ours):.4f}, torch-pruning {np.mean(theirs):.4f}\n")
    assert np.mean(ours) >= np.mean(theirs) - 1 / 450  # one image of the test


def torch_twin(torch, model):
    class Twin(torch.nn.Module):
        def __init__(self):
            super().__init__()
            width = model.stem.weight.shape[0]
            self.stem, self.norm = torch.nn.Conv2d(1, width, 3, padding=1), torch.nn.BatchNorm2d(width)
            self.block, self.norm2 = torch.nn.Conv2d(width, width, 3, padding=1), torch.nn.BatchNorm2d(width)
            self.last, self.fc = torch.nn.Conv2d(width, 2 * width, 3, padding=1), torch.nn.Linear(8 * width, 10)

        def forward(self, x):
            x = torch.relu(self.norm(self.stem(x)))
            x = torch.nn.functional.max_pool2d(x + torch.relu(self.norm2(self.block(x))), 2)
            return self.fc(torch.nn.functional.max_pool2d(torch.relu(self.last(x)), 2).flatten(1))

    twin = Twin()
    state = {name: torch.tensor(np.array(value.numpy())) for name, value in model.state_dict().items()}
    twin.load_state_dict(state, strict=False)
    return twin.eval()


def tuned_by_torch(torch, net, seed):
    torch.manual_seed(seed)
    x, y = (torch.tensor(a) for a in TRAIN)
    steps = TUNING["num_epochs"] * -(-len(x) // TUNING["batch_size"])
    optimizer = torch.optim.AdamW(net.parameters(), lr=TUNING["learning_rate"], weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    net.eval()  # statistics stay as they are here, too
    for _ in range(TUNING["num_epochs"]):
        for index in torch.randperm(len(x)).split(TUNING["batch_size"]):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(x[index]), y[index]).backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            schedule.step()
    scores = net(torch.tensor(DIGITS.test_images)).detach().numpy()
    return float(np.mean(scores.argmax(axis=1) == DIGITS.test_labels))
