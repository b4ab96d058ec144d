"""A student of half the width comes close to its teacher."""

import sys
from dataclasses import replace

import numpy as np
import pytest

from pyflame_rt.distillation import (
    DistillationConfig,
    DistillationTrainer,
    StudentConfig,
    TrainingConfig,
    create_student_model,
)
from pyflame_rt.training import GraphTrainer, SupervisedLoss
from tests.unit.pruning.digits import TRAIN, ConvNet, Transformer, accuracy, trained


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "width", "taught", "epochs", "rate"), [(ConvNet, 16, 20, 20, 2e-3), (Transformer, 32, 60, 60, 4e-3)]
)
def test_half_the_width_recovers_most_of_the_gap(kind, width, taught, epochs, rate):
    """The gap is that of a student trained alone: the same form, images, labels and steps; mean of five seeds."""
    rows = []
    for seed in range(5):
        teacher, _ = trained(kind, taught, seed, width=width)
        steps = TrainingConfig(learning_rate=rate, batch_size=64, num_epochs=epochs, weight_decay=0.0, seed=seed)
        start = StudentConfig(hidden_dim_ratio=0.5, num_heads_ratio=0.5, student_init="random", seed=seed)
        alone = GraphTrainer(
            create_student_model(teacher, start), SupervisedLoss(["output"]), replace(steps, train_batch_norm=True)
        )
        alone.fit(TRAIN)
        student = create_student_model(teacher, StudentConfig.half_size())
        trainer = DistillationTrainer(teacher, student, DistillationConfig.soft_label(4.0))
        trainer.set_dataset(TRAIN)
        trainer.set_training_config(steps)
        rows.append((accuracy(teacher), accuracy(alone.graph()), accuracy(trainer.train().student_graph)))
    teacher, alone, distilled = np.mean(rows, axis=0)
    share = (distilled - alone) / (teacher - alone)
    sys.stdout.write(
        f"{kind.__name__}: teacher {teacher:.4f}, alone {alone:.4f}, distilled {distilled:.4f}: {share:.0%}\n"
    )
    assert teacher > alone
    assert share >= 0.8
