"""Means: of losses, weighted; and perplexity, the exponential of the mean negative log-likelihood."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from wayfare.core.errors import ShapeError
from wayfare.train.metrics.inputs import Reading, array, shape_of
from wayfare.train.metrics.metric import Quotient, State

__all__ = ["Mean", "Perplexity"]


class Mean(Quotient):
    """The weighted mean of numbers, e.g. of losses: `update(loss, weight)`, where the weight may be left out.

    `update(loss.item(), len(batch))` makes a mean over examples of losses that are means over batches. NaN if the
    weights add up to 0.
    """

    name = "mean"
    sums: ClassVar[dict[str, Any]] = {"total": np.float64, "weight": np.float64}

    def update(self, value: Any, weight: Any = None) -> None:
        """Count numbers and their weights (1 each if left out)."""
        super().update(value, weight)

    def __call__(self, value: Any, weight: Any = None) -> Any:
        """Count numbers and their weights, and return their own mean."""
        return super().__call__(value, weight)

    def count(self, value: Any, weight: Any) -> State:
        values = array("Mean", "the value", value).astype(np.float64)
        weights = array("Mean", "the weight", 1.0 if weight is None else weight).astype(np.float64)
        if weights.ndim and weights.shape != values.shape:
            raise ShapeError(f"Mean: the weights {shape_of(weights)} must be one number or have the shape of the "
                             f"values {shape_of(values)}")  # fmt: skip
        weights = np.broadcast_to(weights, values.shape)
        return {"total": np.asarray((values * weights).sum()), "weight": np.asarray(weights.sum())}


class Perplexity(Quotient):
    """`exp` of the mean negative log-likelihood of the targets; scores are logits [N, classes, …] (log-probabilities
    are logits, too), targets [N, …]. For scores [batch, length, classes] say `class_dim=-1`.
    """

    name = "perplexity"

    def __init__(self, *, ignore_index: int | None = -100, class_dim: int = 1) -> None:
        self._read = Reading("Perplexity", ignore_index=ignore_index, class_dim=class_dim)
        super().__init__(ignore_index=ignore_index, class_dim=class_dim)

    def count(self, preds: Any, target: Any) -> State:
        given = array("Perplexity", "preds", preds), array("Perplexity", "target", target)
        scores, actual = self._read.table(*given)
        top = scores.max(axis=1, keepdims=True, initial=-np.inf).astype(np.float64)
        own = np.take_along_axis(scores, actual[:, None], axis=1).astype(np.float64) - top
        loss = np.log(np.exp(scores - top).sum(axis=1)) - own[:, 0]
        return {"total": np.asarray(loss.sum()), "count": np.asarray(actual.size)}

    def value(self, state: State) -> float:
        mean = super().value(state)
        # Beyond this exp overflows.
        return math.exp(mean) if not mean > 709 else math.inf
