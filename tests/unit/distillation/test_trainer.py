"""Distillation beside torch: each loss, and the loop around it."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import pyflame as pf
import pyflame_rt
from pyflame_rt.distillation import (
    DistillationConfig,
    DistillationLoss,
    DistillationTrainer,
    InMemoryDataset,
    StudentConfig,
    TrainingConfig,
    create_student_model,
)
from pyflame_rt.graph.errors import InputError, ShapeMismatchError
from tests.unit.pruning.nets import Build, mlp, run

RNG = np.random.default_rng(0)
X = RNG.normal(size=(64, 16)).astype(np.float32)
Y = RNG.integers(0, 10, 64)


def pair():
    teacher = mlp((16, 32, 32, 10))
    return teacher, create_student_model(teacher, StudentConfig.half_size())


def values(graph, names, x=X):
    """Intermediate values, as torch tensors."""
    found = pyflame_rt.InferenceSession(graph).run(None, {"input": x}, taps=names)
    return [torch.tensor(value) for value in found[1:]]


def one_loss(config, teacher, student, labels=None, x=X):
    trainer = DistillationTrainer(teacher, student, config)
    return trainer.train_step({"input": x}, labels)


def test_soft_labels_are_torchs_divergence():
    teacher, student = pair()
    config = DistillationConfig.soft_label(temperature=3.0)
    t, s = (torch.tensor(run(g, {"input": X})) for g in (teacher, student))
    wanted = F.kl_div(F.log_softmax(s / 3, 1), F.log_softmax(t / 3, 1), reduction="batchmean", log_target=True) * 9
    terms = one_loss(config, teacher, student)
    assert terms["output"] == pytest.approx(wanted.item(), rel=1e-4)
    assert terms["loss"] == pytest.approx(0.7 * wanted.item(), rel=1e-4)
    hard = F.cross_entropy(s, torch.tensor(Y)).item()
    terms = one_loss(config, teacher, student, Y)
    assert terms["labels"] == pytest.approx(hard, rel=1e-4)
    assert terms["loss"] == pytest.approx(0.7 * wanted.item() + 0.3 * hard, rel=1e-4)
    config.use_hard_labels = False
    assert "labels" not in one_loss(config, teacher, student, Y)
    config.use_hard_labels, config.hard_label_weight = True, 2.0
    assert one_loss(config, teacher, student, Y)["loss"] == pytest.approx(0.7 * wanted.item() + 2 * hard, rel=1e-4)


@pytest.mark.parametrize("kind", [DistillationLoss.MSE, DistillationLoss.COSINE])
def test_outputs_as_they_are(kind):
    teacher, student = pair()
    t, s = (torch.tensor(run(g, {"input": X})) for g in (teacher, student))
    wanted = F.mse_loss(s, t) if kind is DistillationLoss.MSE else 1 - F.cosine_similarity(s, t).mean()
    terms = one_loss(DistillationConfig(loss_type=kind), teacher, student)
    assert terms["output"] == pytest.approx(wanted.item(), rel=1e-4)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("kind", [DistillationLoss.MSE, DistillationLoss.COSINE, DistillationLoss.HINT])
def test_features_through_a_projection(kind, normalize):
    teacher, student = pair()
    config = DistillationConfig(loss_type=kind, feature_layers=["fc1", "fc2"], feature_weights=[0.25, 0.75])
    config.normalize_features = normalize
    terms = one_loss(config, teacher, student)
    names = ["fc1_out", "fc2_out"]
    total = 0.0
    for i, (t, s) in enumerate(zip(values(teacher, names), values(student, names), strict=True)):
        start = np.random.default_rng([0, i]).normal(size=(16, 32)) / np.sqrt(16)
        s = s @ torch.tensor(start.astype(np.float32))
        if kind is DistillationLoss.COSINE:
            part = 1 - F.cosine_similarity(s, t).mean()
        elif normalize:
            part = ((F.normalize(s) - F.normalize(t)) ** 2).sum(1).mean()
        else:
            part = F.mse_loss(s, t)
        total += config.feature_weights[i] * part.item()
    assert terms["features"] == pytest.approx(total, rel=1e-3)


def test_a_projection_is_trained_and_left_behind():
    teacher, student = pair()
    trainer = DistillationTrainer(teacher, student, DistillationConfig.hint(["fc1"]))
    trainer.set_dataset({"input": X})
    trainer.set_training_config(TrainingConfig(learning_rate=0.01, num_epochs=20))
    result = trainer.train()
    features = result.history.terms["features"]
    assert features[-1] < 0.7 * features[0]
    assert set(result.student_graph.initializers) == set(student.initializers)


def attending():
    b = Build(["N", 6, 8])
    q, k, v = (b.node("MatMul", ["input", b.weight(f"{n}.weight", 8, 16)], name=f"attn/{n}") for n in "qkv")
    heads = [
        b.node("Transpose", [b.node("Reshape", [x, b.ints(f"{x}.shape", [0, 6, 4, 4])])], perm=[0, 2, 1, 3])
        for x in (q, k, v)
    ]
    scores = b.node("MatMul", [heads[0], b.node("Transpose", [heads[1]], perm=[0, 1, 3, 2])])
    looks = b.node("Softmax", [scores], name="attn/softmax", axis=-1)
    mixed = b.node("Transpose", [b.node("MatMul", [looks, heads[2]])], perm=[0, 2, 1, 3])
    flat = b.node("Reshape", [mixed, b.ints("back", [0, 6, 16])])
    return b.done(b.node("MatMul", [flat, b.weight("o.weight", 16, 8)], name="out"), ["N", 6, 8])


def test_attention_of_heads():
    teacher = attending()
    student = create_student_model(teacher, StudentConfig(num_heads_ratio=0.5))
    x = RNG.normal(size=(5, 6, 8)).astype(np.float32)
    terms = one_loss(DistillationConfig.attention_transfer(layers=["attn"]), teacher, student, x=x)
    (t,), (s,) = (values(g, ["attn/softmax_out"], x) for g in (teacher, student))
    assert t.shape[1] == 4
    assert s.shape[1] == 2
    t, s = (F.normalize(a.mean(dim=1).flatten(1)) for a in (t, s))
    assert terms["features"] == pytest.approx(((s - t) ** 2).sum(1).mean().item(), rel=1e-3)


def test_attention_of_feature_maps():
    b = Build(["N", 3, 6, 6])
    x = b.node("Relu", [b.conv("input", "c", 8, 3)])
    x = b.node("Flatten", [b.node("GlobalAveragePool", [x])])
    teacher = b.done(b.linear(x, "fc", 5, 8), ["N", 5])
    student = create_student_model(teacher, StudentConfig.half_size())
    x = RNG.normal(size=(4, 3, 6, 6)).astype(np.float32)
    terms = one_loss(DistillationConfig.attention_transfer(layers=["c"]), teacher, student, x=x)
    (t,), (s,) = (values(g, ["c_out"], x) for g in (teacher, student))
    t, s = (F.normalize((a**2).mean(dim=1).flatten(1)) for a in (t, s))
    assert terms["features"] == pytest.approx(((s - t) ** 2).sum(1).mean().item(), rel=1e-3)
    with pytest.raises(ShapeMismatchError, match="nowhere to look"):
        one_loss(DistillationConfig.attention_transfer(layers=["fc"]), teacher, student, x=x)


def test_scores_before_a_softmax_are_compared():
    teacher, student = pair()
    wanted = one_loss(DistillationConfig.soft_label(2.0), teacher, student)["output"]
    ends = []
    for graph in (teacher, student):
        graph = graph.copy()
        graph.nodes = [n.replace(outputs=["scores"]) if "output" in n.outputs else n for n in graph.nodes]
        graph.add_node("softmax", "Softmax", ["scores"], ["output"])
        ends.append(graph)
    assert one_loss(DistillationConfig.soft_label(2.0), *ends)["output"] == pytest.approx(wanted, rel=1e-5)


def test_train_from_data_to_result(tmp_path):
    teacher, student = pair()
    data = InMemoryDataset()
    for i in range(8):
        data.add_sample({"input": X[i * 8 : i * 8 + 8]}, labels=Y[i * 8 : i * 8 + 8])
    trainer = DistillationTrainer(teacher, student, DistillationConfig.soft_label())
    trainer.set_dataset(data)
    trainer.set_validation_dataset((X[:16], Y[:16]))
    trainer.set_training_config(TrainingConfig(learning_rate=0.01, num_epochs=5, batch_size=16))
    seen = []
    result = trainer.train(seen.append)
    assert result.training_steps == len(result.loss_history) == 20
    assert len(seen) == 5
    assert result.final_loss < result.history.epochs[0]
    assert result.best_loss == min(result.history.validation)
    assert result.compression_ratio() > 2
    np.testing.assert_array_equal(run(result.student_graph), run(trainer.get_student()))
    assert "<polyline" in result.plot(tmp_path / "loss.svg")
    trainer.save_checkpoint(tmp_path / "c.npz")
    again = DistillationTrainer(teacher, student, DistillationConfig.soft_label())
    again.set_dataset(data)
    again.load_checkpoint(tmp_path / "c.npz")
    np.testing.assert_array_equal(run(again.get_student()), run(result.student_graph))
    assert again.evaluate((X, Y)) == pytest.approx(trainer.evaluate((X, Y)), rel=1e-6)


def test_an_onnx_teacher_and_a_student_of_the_framework(tmp_path):
    path = tmp_path / "teacher.onnx"
    pyflame_rt.export_onnx(mlp((16, 32, 32, 10)), path)
    pf.manual_seed(0)
    student = pf.nn.Sequential(pf.nn.Linear(16, 8), pf.nn.ReLU(), pf.nn.Linear(8, 10))
    before = student[0].weight.numpy().copy()
    trainer = DistillationTrainer(path, student, DistillationConfig.soft_label(2.0))
    trainer.set_dataset({"input": X})
    trainer.set_training_config(TrainingConfig(learning_rate=0.02, num_epochs=10, batch_size=16))
    result = trainer.train()
    assert result.history.epochs[-1] < result.history.epochs[0]
    assert not np.array_equal(student[0].weight.numpy(), before)
    got = student(pf.tensor(X[:16])).numpy()
    np.testing.assert_allclose(got, run(result.student_graph, {"input": X[:16]}), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": 0},
        {"alpha": 1.5},
        {"loss_type": "mse"},
        {"loss_type": DistillationLoss.HINT},
        {"loss_type": DistillationLoss.ATTENTION},
        {"feature_layers": ["fc1"], "feature_weights": [1.0, 2.0]},
        {"feature_layers": ["fc1"], "student_layers": ["a", "b"]},
    ],
    ids=str,
)
def test_settings_that_mean_nothing(changes):
    with pytest.raises(InputError):
        DistillationTrainer(*pair(), DistillationConfig(**changes))


def test_what_does_not_fit_is_refused():
    teacher, student = pair()
    with pytest.raises(InputError, match="set_dataset"):
        DistillationTrainer(teacher, student).train()
    with pytest.raises(InputError, match="no layer 'encoder'"):
        one_loss(DistillationConfig.feature_distillation(["encoder"]), teacher, student)
    with pytest.raises(InputError, match="a student is a Graph"):
        DistillationTrainer(teacher, 3)
    with pytest.raises(ShapeMismatchError, match="outputs of the student"):
        one_loss(DistillationConfig(), teacher, mlp((16, 8, 4)))
    with pytest.raises(InputError, match="nothing to evaluate"):
        DistillationTrainer(teacher, student).evaluate()
