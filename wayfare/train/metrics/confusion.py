"""The confusion matrix: how often each class was taken for each other, as a tensor and as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import wayfare as wf
from wayfare.core.errors import ArgumentError
from wayfare.train.metrics.inputs import Reading
from wayfare.train.metrics.metric import Array, Metric, State, ratio
from wayfare.train.metrics.tables import class_names, square

__all__ = ["ConfusionMatrix"]

_NORMALISE = (None, "true", "pred", "all")


class ConfusionMatrix(Metric):
    """[classes, classes] counts: row is the true class, column the predicted one. Inputs are as for Accuracy.

    `normalize` divides by the counts of the true class ("true": rows add up to 1), of the predicted class ("pred") or
    of all ("all"); 0/0 is NaN. `str()` of it is a table with `names`.
    """

    name = "confusion_matrix"

    def __init__(
        self,
        *,
        num_classes: int | None = None,
        names: Sequence[str] | None = None,
        normalize: str | None = None,
        threshold: float = 0.5,
        logits: bool = False,
        ignore_index: int | None = None,
        class_dim: int = 1,
    ) -> None:
        if normalize not in _NORMALISE:
            raise ArgumentError(f"ConfusionMatrix: normalize must be None, 'true', 'pred' or 'all', not {normalize!r}")
        if num_classes is None and names is not None and len(names) > 1:
            num_classes = len(names)
        if names is not None and num_classes is not None and len(names) != num_classes:
            raise ArgumentError(f"ConfusionMatrix: {num_classes} classes need as many names, these are {len(names)}")
        self._read = Reading("ConfusionMatrix", num_classes, threshold, logits, ignore_index, class_dim)
        kept = None if names is None else [str(name) for name in names]
        super().__init__(num_classes=num_classes, names=kept, normalize=normalize, threshold=threshold, logits=logits,
                         ignore_index=ignore_index, class_dim=class_dim)  # fmt: skip

    def start(self) -> State:
        size = self._read.num_classes or 2
        return {"counts": np.zeros((size, size), np.int64)}

    def count(self, preds: Any, target: Any) -> State:
        predicted, actual, known = self._read.classes(preds, target)
        self._read.check_size(known, known * known)
        pairs = np.bincount(actual * known + predicted, minlength=known * known)
        return {"counts": pairs.reshape(known, known)}

    def value(self, state: State) -> wf.Tensor:
        counts = state["counts"]
        how = self._options["normalize"]
        if how is None:
            return wf.tensor(np.array(counts))
        below: Array = counts.sum(axis={"true": 1, "pred": 0, "all": None}[how], keepdims=True)
        return wf.tensor(ratio(counts, np.broadcast_to(below, counts.shape)))

    def table(self) -> str:
        """The matrix as text: rows are true classes, columns predicted ones."""
        cells = self.compute().tolist()
        names = class_names(self._options["names"], len(cells))
        shown = [[f"{cell:.3f}" if isinstance(cell, float) else str(cell) for cell in row] for row in cells]
        return "\n".join(square(names, shown, "true \\ pred"))

    def __str__(self) -> str:
        return self.table() if self._updates else repr(self)
