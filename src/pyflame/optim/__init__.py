"""Optimizers and learning-rate schedulers."""

from pyflame.optim import lr_scheduler, swa_utils
from pyflame.optim.algorithms import LAMB, SGD, Adagrad, Adam, AdamW, Lion, RMSprop
from pyflame.optim.lbfgs import LBFGS
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
from pyflame.optim.matrices import Adafactor, Muon
from pyflame.optim.optimizer import Optimizer
from pyflame.optim.variants import ASGD, Adadelta, Adamax, NAdam, RAdam, Rprop
from pyflame.suggestions import missing as _missing

__all__ = [
    "ASGD",
    "LAMB",
    "LBFGS",
    "SGD",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
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
    "Muon",
    "NAdam",
    "OneCycleLR",
    "Optimizer",
    "PolynomialLR",
    "RAdam",
    "RMSprop",
    "ReduceLROnPlateau",
    "Rprop",
    "SequentialLR",
    "StepLR",
    "lr_scheduler",
    "swa_utils",
]


def __getattr__(name: str) -> object:
    raise _missing("pyflame.optim", name, __all__)
