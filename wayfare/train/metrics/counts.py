"""Metrics that count classes: accuracy, top-k, precision, recall, F1, specificity."""

from __future__ import annotations

from typing import Any

import numpy as np

import wayfare as wf
from wayfare.core.errors import ArgumentError
from wayfare.train.metrics.inputs import Reading, array
from wayfare.train.metrics.metric import Metric, Quotient, State, ratio

__all__ = ["Accuracy", "F1", "Precision", "Recall", "Specificity", "TopK"]

_RIGHT = {"right": np.int64, "total": np.int64}
AVERAGES = ("binary", "macro", "micro", "weighted", "none")


class Accuracy(Quotient):
    """The share of predictions that are right.

    `preds` are scores [N, classes, …], class numbers [N, …], or one probability (`logits=True`: one logit) of class 1
    for each target; from `threshold` on it counts as class 1. Targets equal to `ignore_index` do not count. NaN if
    nothing counts.
    """

    name = "accuracy"
    sums = _RIGHT

    def __init__(
        self,
        *,
        num_classes: int | None = None,
        threshold: float = 0.5,
        logits: bool = False,
        ignore_index: int | None = None,
        class_dim: int = 1,
    ) -> None:
        self._read = Reading("Accuracy", num_classes, threshold, logits, ignore_index, class_dim)
        super().__init__(num_classes=num_classes, threshold=threshold, logits=logits, ignore_index=ignore_index,
                         class_dim=class_dim)  # fmt: skip

    def count(self, preds: Any, target: Any) -> State:
        predicted, actual, _ = self._read.classes(preds, target)
        return {"right": np.asarray(np.sum(predicted == actual)), "total": np.asarray(actual.size)}


class TopK(Quotient):
    """The share of targets among the `k` classes with the highest scores; scores are [N, classes, …].

    Of equal scores the class with the lower number counts as higher, so that `k=1` is the accuracy.
    """

    sums = _RIGHT

    def __init__(self, k: int = 5, *, ignore_index: int | None = None, class_dim: int = 1) -> None:
        if k < 1:
            raise ArgumentError(f"TopK: k must be at least 1, it is {k}")
        self._read = Reading("TopK", ignore_index=ignore_index, class_dim=class_dim)
        self.name = f"top_{k}"
        super().__init__(k=k, ignore_index=ignore_index, class_dim=class_dim)

    def count(self, preds: Any, target: Any) -> State:
        scores, actual = self._read.table(array("TopK", "preds", preds), array("TopK", "target", target))
        own = np.take_along_axis(scores, actual[:, None], axis=1)
        earlier = np.arange(scores.shape[1]) < actual[:, None]
        before = (scores > own).sum(axis=1) + ((scores == own) & earlier).sum(axis=1)
        return {"right": np.asarray((before < self._options["k"]).sum()), "total": np.asarray(actual.size)}


class _PerClass(Metric):
    """Counts of each class: predicted and right, predicted, true. Subclasses say what becomes of them."""

    def __init__(
        self,
        *,
        average: str = "binary",
        num_classes: int | None = None,
        threshold: float = 0.5,
        logits: bool = False,
        ignore_index: int | None = None,
        class_dim: int = 1,
        zero_division: float = 0.0,
    ) -> None:
        op = type(self).__name__
        if average not in AVERAGES:
            raise ArgumentError(f"{op}: average must be one of {', '.join(AVERAGES)}, not {average!r}")
        self._read = Reading(op, num_classes, threshold, logits, ignore_index, class_dim)
        super().__init__(average=average, num_classes=num_classes, threshold=threshold, logits=logits,
                         ignore_index=ignore_index, class_dim=class_dim, zero_division=zero_division)  # fmt: skip

    def start(self) -> State:
        size = self._read.num_classes or 2
        return {name: np.zeros(size, np.int64) for name in ("right", "predicted", "actual")}

    def count(self, preds: Any, target: Any) -> State:
        predicted, actual, known = self._read.classes(preds, target)
        if self._options["average"] == "binary" and known > 2:
            raise ArgumentError(f"{self._read.op}: average='binary' is for two classes, but there are {known}",
                                fix="Say average='macro', 'micro', 'weighted' or 'none'.")  # fmt: skip
        self._read.check_size(known, known)
        right = actual[predicted == actual]
        each = (("right", right), ("predicted", predicted), ("actual", actual))
        return {name: np.bincount(labels, minlength=known) for name, labels in each}

    def fraction(self, right: Any, predicted: Any, actual: Any, total: Any) -> tuple[Any, Any]:
        """(above, below) of the fraction, from counts of a class or of all classes together."""
        raise NotImplementedError

    def value(self, state: State) -> float | wf.Tensor:
        right, predicted, actual = state["right"], state["predicted"], state["actual"]
        total, average, zero = actual.sum(), self._options["average"], self._options["zero_division"]
        if average == "micro":
            pooled = self.fraction(right.sum(), predicted.sum(), actual.sum(), total * actual.size)
            return float(ratio(*pooled, zero)) if total else float("nan")
        values = ratio(*self.fraction(right, predicted, actual, total), zero)
        seen = predicted + actual > 0
        if average == "binary":
            return float(values[1]) if total else float("nan")
        if average == "none":
            return wf.tensor(np.where(seen, values, np.nan))
        weights = seen if average == "macro" else actual
        return float(ratio((values * weights).sum(), weights.sum()))


_PER_CLASS_TEXT = """

    `average` is "binary" (the value of class 1), "macro" (the mean over classes that occur or are predicted), "micro"
    (all decisions in one pot), "weighted" (the mean weighted by how often classes occur) or "none" (a tensor with one
    for each class, NaN where it neither occurs nor is predicted). 0/0 is `zero_division`. Inputs are as for Accuracy.
    """


class Precision(_PerClass):
    """Of those predicted to be of a class, the share that are."""

    name = "precision"

    def fraction(self, right: Any, predicted: Any, actual: Any, total: Any) -> tuple[Any, Any]:
        return right, predicted


class Recall(_PerClass):
    """Of those of a class, the share predicted to be."""

    name = "recall"

    def fraction(self, right: Any, predicted: Any, actual: Any, total: Any) -> tuple[Any, Any]:
        return right, actual


class F1(_PerClass):
    """The harmonic mean of precision and recall: 2·right / (predicted + true)."""

    name = "f1"

    def fraction(self, right: Any, predicted: Any, actual: Any, total: Any) -> tuple[Any, Any]:
        return 2 * right, predicted + actual


class Specificity(_PerClass):
    """Of those not of a class, the share not predicted to be."""

    name = "specificity"

    def fraction(self, right: Any, predicted: Any, actual: Any, total: Any) -> tuple[Any, Any]:
        return total - predicted - actual + right, total - actual


for _metric in (Precision, Recall, F1, Specificity):
    _metric.__doc__ = (_metric.__doc__ or "") + _PER_CLASS_TEXT
