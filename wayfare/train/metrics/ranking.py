"""Metrics of the order of scores: area under the ROC curve and average precision, exact, with ties.

They keep every score and label, since the order is only known at the end: 8 bytes for each.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import wayfare as wf
from wayfare.core.errors import ArgumentError
from wayfare.train.metrics.inputs import Reading, array
from wayfare.train.metrics.metric import Array, Metric, State, ratio

__all__ = ["AveragePrecision", "ROCAUC"]


class _Ranking(Metric):
    """Keeps scores and labels. Binary ones have one column; several classes are each ranked against the rest."""

    grows = True

    def __init__(self, *, average: str = "macro", ignore_index: int | None = None, class_dim: int = 1) -> None:
        if average not in ("macro", "weighted", "none"):
            raise ArgumentError(f"{type(self).__name__}: average must be macro, weighted or none, not {average!r}")
        self._read = Reading(type(self).__name__, ignore_index=ignore_index, class_dim=class_dim)
        super().__init__(average=average, ignore_index=ignore_index, class_dim=class_dim)

    def start(self) -> State:
        return {"scores": np.zeros((0, 0)), "labels": np.zeros(0, np.int64)}

    def count(self, preds: Any, target: Any) -> State:
        op = self._read.op
        scores, labels = array(op, "preds", preds), array(op, "target", target)
        if scores.shape == labels.shape and scores.dtype.kind != "f":
            scores = scores.astype(np.float64)
        if self._read.binary_shape(scores, labels):
            one, actual = self._read.binary(scores, labels)
            return self._same_columns({"scores": one.astype(np.float64)[:, None], "labels": actual})
        table, actual = self._read.table(scores, labels)
        if table.shape[1] == 2:
            # The order of probabilities and that of logits are both the order of the differences.
            table = table[:, 1:].astype(np.float64) - table[:, :1]
        return self._same_columns({"scores": table.astype(np.float64), "labels": actual})

    def join(self, *states: State) -> State:
        """One behind the other."""
        full = [state for state in states if state["labels"].size]
        return {name: np.concatenate([state[name] for state in full]) for name in states[0]} if full else states[0]

    def _same_columns(self, batch: State) -> State:
        before = next((s for s in (self._state, *self._waiting[:1]) if s["labels"].size), batch)
        if batch["labels"].size and _columns(before) != _columns(batch):
            raise ArgumentError(f"{self._read.op}: the batches before had {_columns(before)}, this one has "
                                f"{_columns(batch)}")  # fmt: skip
        return batch

    def of(self, scores: Array, positive: Array) -> float:
        """The value for one class against the rest."""
        raise NotImplementedError

    def value(self, state: State) -> float | wf.Tensor:
        scores, labels = state["scores"], state["labels"]
        if scores.shape[1] <= 1:
            return self.of(scores.reshape(-1), labels == 1)
        values = np.array([self.of(scores[:, k], labels == k) for k in range(scores.shape[1])])
        if self._options["average"] == "none":
            return wf.tensor(values)
        weights = np.bincount(labels, minlength=values.size) if self._options["average"] == "weighted" else 1
        weights = np.where(np.isnan(values), 0, weights)
        return float(ratio((np.nan_to_num(values) * weights).sum(), weights.sum()))


def _columns(state: State) -> str:
    count = state["scores"].shape[1]
    return "one score for each target" if count == 1 else f"scores of {count} classes"


_RANKING_TEXT = """

    Binary: `preds` are one score for each target of 0 or 1 (probabilities or logits, only the order counts), or scores
    [N, 2]. Scores [N, classes, …] are ranked one class against the rest, as they stand: give probabilities. `average`
    over the classes where it is defined is "macro", "weighted" (by how often they occur) or "none" (a tensor).
    """


class ROCAUC(_Ranking):
    """The chance that a positive has a higher score than a negative; equal scores count half. NaN without both."""

    name = "roc_auc"

    def of(self, scores: Array, positive: Array) -> float:
        positives = int(positive.sum())
        negatives = positive.size - positives
        if not positives or not negatives:
            return float("nan")
        _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
        ends = np.cumsum(counts)
        # Twice the mean rank of equal scores is a whole number, so nothing is rounded before the end.
        doubled = (2 * ends - counts + 1)[place]
        wins = int(doubled[positive].sum()) - positives * (positives + 1)
        return wins / (2 * positives * negatives)


class AveragePrecision(_Ranking):
    """The sum over thresholds of precision times the gain in recall; equal scores pass together.

    NaN without positives."""

    name = "average_precision"

    def of(self, scores: Array, positive: Array) -> float:
        positives = int(positive.sum())
        if not positives:
            return float("nan")
        order = np.argsort(-scores, kind="stable")
        scores, positive = scores[order], positive[order]
        last = np.flatnonzero(np.r_[scores[1:] != scores[:-1], True])
        found = np.cumsum(positive)[last]
        gained = np.diff(found, prepend=0)
        return float((found / (last + 1) * gained).sum() / positives)


for _metric in (ROCAUC, AveragePrecision):
    _metric.__doc__ = (_metric.__doc__ or "") + _RANKING_TEXT
