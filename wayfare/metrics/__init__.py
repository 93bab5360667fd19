"""Metrics that add up over batches: `update(preds, target)` with each batch, then `compute()`."""

from wayfare.metrics.confusion import ConfusionMatrix
from wayfare.metrics.counts import F1, Accuracy, Precision, Recall, Specificity, TopK
from wayfare.metrics.means import Mean, Perplexity
from wayfare.metrics.metric import Metric
from wayfare.metrics.ranking import ROCAUC, AveragePrecision
from wayfare.metrics.regression import (
    R2,
    MeanAbsoluteError,
    MeanAbsolutePercentageError,
    MeanSquaredError,
    RootMeanSquaredError,
)
from wayfare.metrics.report import ClassificationReport, classification_report

__all__ = [
    "Accuracy", "AveragePrecision", "ClassificationReport", "ConfusionMatrix", "F1", "Mean", "MeanAbsoluteError",
    "MeanAbsolutePercentageError", "MeanSquaredError", "Metric", "Perplexity", "Precision", "R2", "ROCAUC", "Recall",
    "RootMeanSquaredError", "Specificity", "TopK", "classification_report",
]  # fmt: skip
