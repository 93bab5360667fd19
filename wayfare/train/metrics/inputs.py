"""What users hand to metrics, made arrays: scores and class numbers, checked, with a sentence for what is wrong.

The class dimension of scores is 1, as for `cross_entropy`: scores [N, classes, …] and targets [N, …].
"""

from __future__ import annotations

from typing import Any

import numpy as np

import wayfare as wf
from wayfare.core.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError

Array = np.ndarray[Any, np.dtype[Any]]

# A table of this many counts takes 1 GiB.
_CELLS = 2**27


class Reading:
    """How the inputs of a classification metric are to be read; `op` is the metric's name for messages."""

    def __init__(
        self,
        op: str,
        num_classes: int | None = None,
        threshold: float = 0.5,
        logits: bool = False,
        ignore_index: int | None = None,
        class_dim: int = 1,
    ) -> None:
        if num_classes is not None and num_classes < 2:
            raise ArgumentError(f"{op}: num_classes must be at least 2, it is {num_classes}")
        if not 0 <= threshold <= 1:
            raise ArgumentError(f"{op}: threshold is a probability from 0 to 1, it is {threshold}",
                                fix="For logits say logits=True; the threshold stays a probability.")  # fmt: skip
        self.op, self.num_classes, self.threshold, self.logits = op, num_classes, threshold, logits
        self.ignore_index, self.class_dim = ignore_index, class_dim

    def classes(self, preds: Any, target: Any) -> tuple[Array, Array, int]:
        """(predicted class numbers, true ones, number of classes known of), without what is to be ignored."""
        scores, labels = array(self.op, "preds", preds), array(self.op, "target", target)
        if scores.dtype.kind != "f":
            if scores.shape != labels.shape:
                raise self.misfit(scores, labels)
            predicted, actual = self.kept(scores, whole(self.op, "target", labels))
            known = max(self.num_classes or 0, 1 + int(max(predicted.max(initial=-1), actual.max(initial=-1))))
            self._check_range("preds", predicted)
            self._check_range("target", actual)
            return predicted.astype(np.int64), actual, known
        if self.binary_shape(scores, labels):
            one, actual = self.binary(scores, labels)
            if not self.logits and one.size and not (one.min() >= 0 and one.max() <= 1):
                fix = self._one_hot_advice(scores, labels) or "For logits say logits=True."
                raise ArgumentError(f"{self.op}: the scores go from {one.min():.4g} to {one.max():.4g}, so they are no "
                                    "probabilities", fix=fix)  # fmt: skip
            cut = _logit(self.threshold) if self.logits else self.threshold
            return (one >= cut).astype(np.int64), actual, 2
        table, actual = self.table(scores, labels)
        return table.argmax(axis=1), actual, table.shape[1]

    def check_size(self, known: int, cells: int) -> None:
        """One label that means something else would ask for a table of all numbers up to it."""
        if self.num_classes is None and cells > _CELLS:
            raise ArgumentError(f"{self.op}: the label {known - 1} makes {known} classes, more than can be counted",
                                fix="Number the classes 0, 1, 2, …; if that label marks what does not count, say "
                                f"ignore_index={known - 1}.")  # fmt: skip

    def binary_shape(self, scores: Array, labels: Array) -> bool:
        """One score for each target: of the same shape, or one column of them."""
        return scores.shape == labels.shape or (scores.ndim == labels.ndim + 1 and scores.shape[self.class_dim] == 1)

    def binary(self, scores: Array, labels: Array) -> tuple[Array, Array]:
        """(scores, labels 0 or 1) in one dimension."""
        one, actual = self.kept(scores.reshape(labels.shape), whole(self.op, "target", labels))
        self._check_nan(one)
        wrong = (actual != 0) & (actual != 1)
        if wrong.any():
            raise ArgumentError(f"{self.op}: with one score for each target the labels are 0 and 1, but there is "
                                f"{actual[wrong][0]}", fix="For more classes give scores [N, classes].")  # fmt: skip
        return one, actual

    def table(self, scores: Array, labels: Array) -> tuple[Array, Array]:
        """(scores [N, classes], labels [N]); further dimensions become more rows."""
        if scores.dtype.kind != "f" or scores.ndim != labels.ndim + 1:
            raise self.misfit(scores, labels)
        moved = np.moveaxis(scores, self.class_dim, -1)
        count = moved.shape[-1]
        if moved.shape[:-1] != labels.shape:
            raise self.misfit(scores, labels)
        if self.num_classes is not None and count != self.num_classes:
            raise ShapeError(f"{self.op}: num_classes is {self.num_classes}, but the scores {shape_of(scores)} have "
                             f"{count} classes in dimension {self.class_dim}")  # fmt: skip
        rows, actual = self.kept(moved, whole(self.op, "target", labels), columns=count)
        self._check_nan(rows)
        self._check_range("target", actual, count)
        return rows, actual

    def kept(self, preds: Array, labels: Array, columns: int = 0) -> tuple[Array, Array]:
        """Both flat, without the places whose target is `ignore_index`."""
        preds, labels = preds.reshape((-1, columns) if columns else -1), labels.reshape(-1)
        if self.ignore_index is None:
            return preds, labels
        keep = labels != self.ignore_index
        return (preds, labels) if keep.all() else (preds[keep], labels[keep])

    def misfit(self, scores: Array, labels: Array) -> ShapeError:
        """The sentence about shapes that do not go together."""
        fix = "Give scores [N, classes, …] or class numbers [N, …] for targets [N, …]."
        if scores.ndim > 2 and scores.shape[:-1] == labels.shape:
            fix = "If the classes are in the last dimension, say class_dim=-1."
        fix = self._one_hot_advice(scores, labels) or fix
        return ShapeError(f"{self.op}: preds {shape_of(scores)} do not go with targets {shape_of(labels)}", fix=fix)

    def _one_hot_advice(self, scores: Array, labels: Array) -> str:
        """What to do about targets with a 0 or 1 for each class and a single 1 in each row; nothing for others."""
        dim = self.class_dim
        if not -labels.ndim <= dim < labels.ndim or labels.ndim < 2 or labels.shape[dim] < 2:
            return ""
        beside = scores.shape in (labels.shape, labels.sum(axis=dim).shape)
        if not beside or not ((labels == 0) | (labels == 1)).all() or not (labels.sum(axis=dim) == 1).all():
            return ""
        return f"The targets look one-hot: give target.argmax({dim})."

    def _check_nan(self, scores: Array) -> None:
        bad = int(np.isnan(scores).sum())
        if bad:
            raise ArgumentError(f"{self.op}: {bad} of {scores.size} scores are NaN, which is neither high nor low",
                                fix="Look for what made them: with wf.autograd.set_detect_anomaly(True).")  # fmt: skip

    def _check_range(self, what: str, labels: Array, count: int | None = None) -> None:
        count = count or self.num_classes
        wrong = labels < 0 if count is None else (labels < 0) | (labels >= count)
        if wrong.any():
            worst = int(labels[wrong][0])
            known = f"0 to {count - 1}" if count else "0, 1, 2, …"
            fix = f"If {worst} marks what does not count, say ignore_index={worst}." if worst < 0 else ""
            raise ArgumentError(f"{self.op}: {what} has the label {worst}, but labels are {known}", fix=fix)


def array(op: str, what: str, given: Any) -> Array:
    """A tensor, an array or a list of numbers as an array, without its history."""
    if isinstance(given, wf.Tensor):
        plain = given.detach().cpu()
        return plain.float().numpy() if plain.dtype is wf.bfloat16 else plain.numpy()
    try:
        made = np.asarray(given)
    except ValueError:
        made = np.empty(0, object)
    if made.dtype.kind not in "biuf":
        raise ArgumentTypeError(f"{op}: {what} must be a tensor of numbers, not {type(given).__name__}")
    return made


def whole(op: str, what: str, labels: Array) -> Array:
    """Class numbers as int64; floats only if they are whole."""
    if labels.dtype.kind == "f":
        odd = labels != np.round(labels)
        if odd.any():
            raise DTypeError(f"{op}: {what} must be class numbers, but there is {labels[odd].reshape(-1)[0]:.4g}")
    return labels.astype(np.int64)


def pair(op: str, preds: Any, target: Any) -> tuple[Array, Array]:
    """Predictions and targets of a regression, in float64: of equal shape, none NaN."""
    p, t = (array(op, what, given).astype(np.float64) for what, given in (("preds", preds), ("target", target)))
    if p.shape != t.shape:
        fix = "Nothing is broadcast here, because that hides mistakes."
        if p.size == t.size:
            fix += " Give both one shape, e.g. with preds.squeeze(-1)."
        raise ShapeError(f"{op}: preds {shape_of(p)} and target {shape_of(t)} differ", fix=fix)
    for what, one in (("preds", p), ("target", t)):
        bad = int(np.isnan(one).sum())
        if bad:
            raise ArgumentError(f"{op}: {bad} of {one.size} numbers in {what} are NaN")
    return p, t


def shape_of(given: Array) -> str:
    """A shape as messages show it."""
    return str(list(given.shape))


def _logit(probability: float) -> float:
    """Where the sigmoid has this value."""
    if probability in (0.0, 1.0):
        return np.inf if probability else -np.inf
    return float(np.log(probability) - np.log1p(-probability))
