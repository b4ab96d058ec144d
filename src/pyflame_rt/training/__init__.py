"""Training of graphs by gradient descent, in one compiled step: what pruning and distillation share."""

from pyflame_rt.training.config import TrainingConfig
from pyflame_rt.training.data import InMemoryDataset
from pyflame_rt.training.loop import GraphTrainer, Mask, Objective, SupervisedLoss, TrainingHistory
from pyflame_rt.training.step import trainable

__all__ = [
    "GraphTrainer",
    "InMemoryDataset",
    "Mask",
    "Objective",
    "SupervisedLoss",
    "TrainingConfig",
    "TrainingHistory",
    "trainable",
]
