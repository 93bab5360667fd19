"""Metrics that add up over batches: `update(preds, target)` with each batch, then `compute()`."""

from wayfare.train.metrics.confusion import ConfusionMatrix
from wayfare.train.metrics.counts import F1, Accuracy, Precision, Recall, Specificity, TopK
from wayfare.train.metrics.means import Mean, Perplexity
from wayfare.train.metrics.metric import Metric
from wayfare.train.metrics.ranking import ROCAUC, AveragePrecision
from wayfare.train.metrics.regression import (
    R2,
    MeanAbsoluteError,
    MeanAbsolutePercentageError,
    MeanSquaredError,
    RootMeanSquaredError,
)
from wayfare.train.metrics.report import ClassificationReport, classification_report

__all__ = [
    "Accuracy", "AveragePrecision", "ClassificationReport", "ConfusionMatrix", "F1", "Mean", "MeanAbsoluteError",
    "MeanAbsolutePercentageError", "MeanSquaredError", "Metric", "Perplexity", "Precision", "R2", "ROCAUC", "Recall",
    "RootMeanSquaredError", "Specificity", "TopK", "classification_report",
]  # fmt: skip
