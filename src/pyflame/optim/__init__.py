"""Optimizers and learning-rate schedulers."""

from pyflame.optim import lr_scheduler
from pyflame.optim.algorithms import LAMB, SGD, Adagrad, Adam, AdamW, Lion, RMSprop
from pyflame.optim.lr_scheduler import (
    ChainedScheduler,
    ConstantLR,
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    CyclicLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    LRScheduler,
    MultiplicativeLR,
    MultiStepLR,
    OneCycleLR,
    PolynomialLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)
from pyflame.optim.optimizer import Optimizer

__all__ = [
    "LAMB",
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "ChainedScheduler",
    "ConstantLR",
    "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts",
    "CyclicLR",
    "ExponentialLR",
    "LRScheduler",
    "LambdaLR",
    "LinearLR",
    "Lion",
    "MultiStepLR",
    "MultiplicativeLR",
    "OneCycleLR",
    "Optimizer",
    "PolynomialLR",
    "RMSprop",
    "ReduceLROnPlateau",
    "SequentialLR",
    "StepLR",
    "lr_scheduler",
]
