"""Distillation: smaller models that learn from larger ones."""

from pyflame_rt.distillation.config import DistillationConfig, DistillationLoss
from pyflame_rt.distillation.student import StudentConfig, create_student_model
from pyflame_rt.distillation.trainer import DistillationResult, DistillationTrainer
from pyflame_rt.training import InMemoryDataset, TrainingConfig, TrainingHistory

__all__ = [
    "DistillationConfig",
    "DistillationLoss",
    "DistillationResult",
    "DistillationTrainer",
    "InMemoryDataset",
    "StudentConfig",
    "TrainingConfig",
    "TrainingHistory",
    "create_student_model",
]
