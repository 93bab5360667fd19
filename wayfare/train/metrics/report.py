"""A report on a classifier: precision, recall and F1 of every class, and a warning where the accuracy misleads."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np

from wayfare.core.errors import ArgumentError
from wayfare.train.metrics.confusion import ConfusionMatrix
from wayfare.train.metrics.metric import Array, ratio
from wayfare.train.metrics.tables import WIDTH, aligned, class_names, short, square

__all__ = ["ClassificationReport", "classification_report"]

# The accuracy misleads if it is at least this and a class is found less often than that.
HIGH_ACCURACY, LOW_RECALL = 0.75, 0.5
# So many classes are named one by one; of more the worst.
NAMED = 3


class ClassificationReport:
    """What `classification_report` found: `str()` is a table, `to_dict()` numbers, `warnings` sentences.

    Attributes: `names`, `precision`, `recall`, `f1`, `support` (lists, one for each class), `accuracy`, `baseline` (the
    accuracy of always answering the most frequent class), `confusion` (the counts, [true, predicted]), `warnings`.
    """

    def __init__(self, counts: Array, names: Sequence[str]) -> None:
        right, predicted, actual = np.diag(counts), counts.sum(axis=0), counts.sum(axis=1)
        total = int(actual.sum())
        self.names = list(names)
        self.confusion: list[list[int]] = counts.tolist()
        self.precision: list[float] = ratio(right, predicted, 0.0).tolist()
        self.recall: list[float] = ratio(right, actual, 0.0).tolist()
        self.f1: list[float] = ratio(2 * right, predicted + actual, 0.0).tolist()
        self.support: list[int] = actual.tolist()
        self.accuracy = int(right.sum()) / total
        self.baseline = int(actual.max()) / total
        self.majority = self.names[int(actual.argmax())]
        self._right, self._predicted, self._total = right.tolist(), predicted.tolist(), total
        self.macro = self._averages(predicted + actual > 0)
        self.weighted = self._averages(actual)
        self.warnings = self._find_warnings()

    def _averages(self, weights: Array) -> dict[str, float]:
        columns = {"precision": self.precision, "recall": self.recall, "f1": self.f1}
        return {name: float(np.average(column, weights=weights)) for name, column in columns.items()}

    # -- what is wrong -------------------------------------------------------------------------------------------------

    def _find_warnings(self) -> list[str]:
        occurring = [k for k, n in enumerate(self.support) if n]
        if len(occurring) == 1:
            return [f"Every target is {self.majority!r}: a report on one class says nothing about the others."]
        found = self._misleading(occurring)
        unseen = [k for k in occurring if not self._predicted[k]]
        if unseen:
            shown = ", ".join(f"{self.names[k]!r} ({_times(self.support[k])})" for k in unseen[:NAMED])
            more = f" and {len(unseen) - NAMED} more" if len(unseen) > NAMED else ""
            found.append(f"Never predicted, though in the targets: {shown}{more}.")
        if self.accuracy <= self.baseline:
            found.append(f"The accuracy {_percent(self.accuracy)} is no better than the {_percent(self.baseline)} of "
                         f"always answering {self.majority!r}.")  # fmt: skip
        return found

    def _misleading(self, occurring: list[int]) -> list[str]:
        if self.accuracy < HIGH_ACCURACY:
            return []
        missed = sorted((k for k in occurring if self.recall[k] < LOW_RECALL), key=lambda k: self.recall[k])
        found = [
            f"The accuracy {_percent(self.accuracy)} misleads: of class {self.names[k]!r} only {self._right[k]} of "
            f"{self.support[k]} are found (recall {_percent(self.recall[k])}), while always answering "
            f"{self.majority!r} would be right {_percent(self.baseline)} of the time."
            for k in missed[:NAMED]
        ]
        if len(missed) > NAMED:
            found.append(f"{len(missed) - NAMED} more classes have a recall below {_percent(LOW_RECALL)}.")
        return found

    # -- how it looks --------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, for JSON."""
        columns = zip(self.precision, self.recall, self.f1, self.support, strict=True)
        keys = ("precision", "recall", "f1", "support")
        return {
            "classes": {name: dict(zip(keys, row, strict=True)) for name, row in zip(self.names, columns, strict=True)},
            "accuracy": self.accuracy,
            "baseline": self.baseline,
            "macro": dict(self.macro),
            "weighted": dict(self.weighted),
            "total": self._total,
            "warnings": list(self.warnings),
        }

    def __str__(self) -> str:
        rows = [["class", "precision", "recall", "f1", "support"]]
        for k, name in enumerate(self.names):
            rows.append([name, *(f"{x[k]:.3f}" for x in (self.precision, self.recall, self.f1)), str(self.support[k])])
        for name, mean in (("macro mean", self.macro), ("weighted mean", self.weighted)):
            rows.append([name, *(f"{x:.3f}" for x in mean.values()), str(self._total)])
        lines = aligned(rows, name_width=40)
        lines.insert(1, "-" * len(lines[0]))
        lines.insert(len(lines) - 2, "-" * len(lines[0]))
        baseline = f"always answering {short(self.majority, 30)!r} {self.baseline:.3f}"
        lines += ["", f"accuracy {self.accuracy:.3f}, {baseline}"]
        for warning in self.warnings:
            lines += textwrap.wrap(warning, WIDTH, initial_indent="! ", subsequent_indent="  ")
        return "\n".join(lines)

    def confusion_table(self) -> str:
        """The confusion matrix as text: rows are true classes, columns predicted ones."""
        return "\n".join(square(self.names, [[str(n) for n in row] for row in self.confusion], "true \\ pred"))

    def __repr__(self) -> str:
        return (f"ClassificationReport({len(self.names)} classes, {self._total} targets, accuracy "
                f"{self.accuracy:.3f}, {len(self.warnings)} warnings)")  # fmt: skip


def classification_report(
    preds: Any,
    target: Any,
    *,
    names: Sequence[str] | None = None,
    threshold: float = 0.5,
    logits: bool = False,
    ignore_index: int | None = None,
    class_dim: int = 1,
) -> ClassificationReport:
    """Precision, recall, F1 and support of every class, with warnings; inputs are as for Accuracy.

    0/0 is 0: the precision of a class never predicted, the recall of one that never occurs. The macro mean is over
    classes that occur or are predicted.
    """
    metric = ConfusionMatrix(names=names, threshold=threshold, logits=logits, ignore_index=ignore_index,
                             class_dim=class_dim)  # fmt: skip
    metric.update(preds, target)
    counts = metric.compute().cpu().numpy()
    if not counts.sum():
        raise ArgumentError("classification_report: there is no target to report on")
    return ClassificationReport(counts, class_names(names, len(counts)))


def _percent(fraction: float) -> str:
    """A share in percent; only all is 100% and only nothing is 0%."""
    if 0.9995 <= fraction < 1:
        return "over 99.9%"
    if 0 < fraction < 0.0005:
        return "under 0.1%"
    return f"{100 * fraction:.1f}".removesuffix(".0") + "%"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
