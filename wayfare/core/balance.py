"""Dealing work of different sizes so that all who share it finish together, and learning what work costs."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

import numpy as np


def deal(costs: Sequence[float], shares: int) -> list[list[int]]:
    """The numbers of the items in each share, ascending: the costliest item first, each to the share with the least.

    Equal costs are dealt in the order of the items, so the same costs always give the same shares.
    """
    parts: list[list[int]] = [[] for _ in range(shares)]
    waiting = [(0.0, 0, share) for share in range(shares)]
    for item in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        total, count, share = waiting[0]
        parts[share].append(item)
        heapq.heapreplace(waiting, (total + costs[item], count + 1, share))
    return [sorted(part) for part in parts]


def imbalance(loads: Sequence[float]) -> float:
    """The fraction of time that shares wait for the slowest: 0 if all have the same load."""
    slowest = max(loads, default=0.0)
    return 1 - sum(loads) / (slowest * len(loads)) if slowest > 0 else 0.0


class CostModel:
    """The cost of an item as a linear function of its features, learnt from sums over several items.

    Each observation is the sum of the features of some items and what they cost together. Coefficients are not
    negative. Later observations count more: a step that compiled something is forgotten.
    """

    def __init__(self, features: int, memory: float = 0.95) -> None:
        self._memory = memory
        self._squares = np.zeros((features, features))
        self._products = np.zeros(features)
        self.observations = 0

    def observe(self, features: Any, cost: float) -> None:
        """Learn what items with these features (of one item, or summed over several) cost."""
        x = np.asarray(features, np.float64)
        self._squares = self._memory * self._squares + np.outer(x, x)
        self._products = self._memory * self._products + x * cost
        self.observations += 1

    @property
    def coefficients(self) -> Any:
        """The cost of one unit of each feature."""
        scale = np.sqrt(np.diag(self._squares))
        live = [i for i in range(len(scale)) if scale[i] > 0]
        found = np.zeros(len(scale))
        # Features whose coefficient would be negative are left out, one after another: they say what others say better.
        while live:
            a = self._squares[np.ix_(live, live)] / np.outer(scale[live], scale[live])
            x = np.linalg.solve(a + 1e-6 * np.eye(len(live)), self._products[live] / scale[live])
            if x.min() >= 0:
                found[live] = x / scale[live]
                break
            del live[int(x.argmin())]
        return found

    def predict(self, features: Any) -> Any:
        """The cost of items, one row of features each."""
        return np.asarray(features, np.float64) @ self.coefficients
