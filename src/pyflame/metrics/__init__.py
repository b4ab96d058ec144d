"""Running measures of how good predictions are: classification, ranking and regression."""

from pyflame.metrics.base import Metric
from pyflame.metrics.classification import Accuracy, ConfusionMatrix, F1Score, Precision, Recall
from pyflame.metrics.collection import MetricCollection
from pyflame.metrics.ranking import AUROC, AveragePrecision
from pyflame.metrics.regression import (
    MeanAbsoluteError,
    MeanAbsolutePercentageError,
    MeanSquaredError,
    R2Score,
    RootMeanSquaredError,
)

__all__ = [
    "AUROC",
    "Accuracy",
    "AveragePrecision",
    "ConfusionMatrix",
    "F1Score",
    "MeanAbsoluteError",
    "MeanAbsolutePercentageError",
    "MeanSquaredError",
    "Metric",
    "MetricCollection",
    "Precision",
    "R2Score",
    "Recall",
    "RootMeanSquaredError",
]
