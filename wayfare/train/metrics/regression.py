"""Metrics of numbers: squared, absolute and percentage errors, R². Nothing is broadcast: shapes must be equal."""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

import numpy as np

from wayfare.core.errors import ShapeError
from wayfare.train.metrics.inputs import pair
from wayfare.train.metrics.metric import Array, Metric, Quotient, State, ratio

__all__ = ["MeanAbsoluteError", "MeanAbsolutePercentageError", "MeanSquaredError", "R2", "RootMeanSquaredError"]


class _MeanError(Quotient):
    """The mean of an error over all numbers."""

    def errors(self, preds: Array, target: Array) -> Array:
        """The error of each number."""
        raise NotImplementedError

    def count(self, preds: Any, target: Any) -> State:
        p, t = pair(type(self).__name__, preds, target)
        return {"total": np.asarray(self.errors(p, t).sum()), "count": np.asarray(p.size)}


class MeanSquaredError(_MeanError):
    """The mean of (preds - target)²."""

    name = "mse"

    def errors(self, preds: Array, target: Array) -> Array:
        return (preds - target) ** 2


class RootMeanSquaredError(MeanSquaredError):
    """The root of the mean of (preds - target)², over everything counted (not a mean of batches' roots)."""

    name = "rmse"

    def value(self, state: State) -> float:
        return math.sqrt(super().value(state))


class MeanAbsoluteError(_MeanError):
    """The mean of |preds - target|."""

    name = "mae"

    def errors(self, preds: Array, target: Array) -> Array:
        distances: Array = np.abs(preds - target)
        return distances


class MeanAbsolutePercentageError(_MeanError):
    """The mean of |preds - target| / |target|, as a fraction (0.1 is 10%).

    Where the target is 0, an exact prediction counts as 0 and any other as infinite.
    """

    name = "mape"

    def errors(self, preds: Array, target: Array) -> Array:
        off = np.abs(preds - target)
        shares: Array = np.where(off == 0, 0.0, ratio(off, np.abs(target), np.inf))
        return shares


class R2(Metric):
    """1 - Σ(target - preds)² / Σ(target - mean)², the share of the variance that is explained.

    Targets [N] are one output; [N, …] are several, and the value is the mean over them. If a target never changes, its
    value is 1 where all predictions are exact, else 0. Of a single example it is NaN.
    """

    name = "r2"

    def start(self) -> State:
        return {"count": np.zeros((), np.int64), "mean": np.zeros(0), "spread": np.zeros(0), "residual": np.zeros(0)}

    def count(self, preds: Any, target: Any) -> State:
        p, t = pair("R2", preds, target)
        rows = t.shape[0] if t.ndim else 1
        p, t = (x.reshape(rows, -1) if x.size else x.reshape(0, 0) for x in (p, t))
        mean = t.mean(axis=0) if len(t) else np.zeros(t.shape[1])
        return {"count": np.asarray(len(t)), "mean": mean, "spread": ((t - mean) ** 2).sum(axis=0),
                "residual": ((t - p) ** 2).sum(axis=0)}  # fmt: skip

    def join(self, *states: State) -> State:
        """Means and spreads of several sets as those of all together, without differences of large numbers."""
        return reduce(_together, states)

    def value(self, state: State) -> float:
        if state["count"] < 2:
            return math.nan
        constant = np.where(state["residual"] == 0, 1.0, 0.0)
        explained = 1 - ratio(state["residual"], state["spread"])
        return float(np.where(state["spread"] == 0, constant, explained).mean())


def _together(mine: State, other: State) -> State:
    if not mine["count"] or not other["count"]:
        return other if other["count"] else mine
    if mine["mean"].shape != other["mean"].shape:
        raise ShapeError(f"R2: one batch has {other['mean'].size} outputs, those before had {mine['mean'].size}")
    count = mine["count"] + other["count"]
    apart = other["mean"] - mine["mean"]
    return {
        "count": np.asarray(count),
        "mean": mine["mean"] + apart * other["count"] / count,
        "spread": mine["spread"] + other["spread"] + apart**2 * (mine["count"] * other["count"] / count),
        "residual": mine["residual"] + other["residual"],
    }
