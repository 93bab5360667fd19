"""`CostSampler`: deals examples so that all ranks finish a step together.

A `DistributedSampler` gives every rank the same number of examples. Where these cost different amounts of work (trees
of 3 and of 60 nodes), every rank waits at every step for the one with the most work. Here each step's examples are
dealt by predicted cost, still the same number to every rank, so that the mean of the ranks' gradients is the mean of
all examples.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

import wayfare as wf
from wayfare.core.balance import CostModel
from wayfare.core.errors import ArgumentError, ArgumentTypeError
from wayfare.data.samplers import check_count, length_of
from wayfare.distributed.costs import STRUCTURE, RecordedCost, structure_of
from wayfare.distributed.objects import all_gather_object
from wayfare.distributed.process_group import get_world_size, is_initialized
from wayfare.distributed.samplers import DistributedSampler

__all__ = ["CostSampler"]

# Examples for each rank that are dealt together: the more, the more alike are those that ranks do at the same time.
_WINDOW = 64
# Exchanges that are tried to make one step more even.
_EXCHANGES = 64


class CostSampler(DistributedSampler):
    """This rank's examples, dealt so that ranks finish together; otherwise like `DistributedSampler`.

    `cost` says how much work an example is: a list of numbers, one for each example; a function of an example that
    gives a number, or several (its length and the square of that, for instance); or a `RecordedCost`, which looks at
    the graph that a function records. Without it the number of an example's parts is its cost. Every example is
    visited once per epoch, padded or cut so that all ranks have equally many. `batch_size` is that of the loader: the
    examples of each step are dealt together.

    Told how long this rank's batches took (`observe(seconds)`), it learns what each of several numbers costs, from
    all ranks, when the next epoch begins (`set_epoch`).
    """

    def __init__(
        self, dataset: Any, cost: Any = None, num_replicas: int | None = None, rank: int | None = None,
        shuffle: bool = True, seed: int = 0, drop_last: bool = False, batch_size: int = 1, sample: int = 512,
    ) -> None:  # fmt: skip
        super().__init__(dataset, num_replicas, rank, shuffle, seed, drop_last)
        count = length_of("CostSampler", dataset)
        self.batch_size = check_count("CostSampler", "batch_size", batch_size)
        if drop_last and count < self.num_replicas:
            raise ArgumentError(f"CostSampler: {count} examples are fewer than {self.num_replicas} ranks",
                                fix="Use drop_last=False.")  # fmt: skip
        self.features, self.coefficients = _features(dataset, count, cost, check_count("CostSampler", "sample", sample))
        self._model = CostModel(self.features.shape[1])
        self._observed: list[tuple[int, float]] = []
        self._steps: list[Any] | None = None

    # -- what an example costs

    @property
    def costs(self) -> Any:
        """The predicted cost of each example."""
        return self.features @ self.coefficients

    def observe(self, seconds: float) -> None:
        """This rank's next batch took so long. To be called once for each batch of an epoch, in their order."""
        self._observed.append((len(self._observed), float(seconds)))

    def _learn(self) -> None:
        """Learn from what all ranks have observed, so that all of them deal in the same way."""
        steps = self._steps
        sums = [] if steps is None else [
            (self.features[steps[step][self.rank]].sum(0).tolist(), seconds)
            for step, seconds in self._observed[1:] if step < len(steps)  # the first one also compiles
        ]  # fmt: skip
        self._observed = []
        if self.num_replicas > 1:
            if not is_initialized() or get_world_size() != self.num_replicas:
                return  # others would deal differently
            every: list[Any] = [None] * self.num_replicas
            all_gather_object(every, sums)
            sums = [pair for part in every for pair in part]
        for features, seconds in sums:
            self._model.observe(features, seconds)
        if self._model.observations >= 2 * self.features.shape[1]:
            self.coefficients = self._model.coefficients

    # -- dealing

    def set_epoch(self, epoch: int) -> None:
        """Another order. Every rank calls it, before the epoch begins."""
        if self._observed or self.num_replicas > 1:
            self._learn()
        super().set_epoch(epoch)
        self._steps = None

    def steps(self) -> list[Any]:
        """The epoch: for each step an array [rank, example] of indices."""
        if self._steps is None:
            self._steps = self._deal()
        return self._steps

    def _deal(self) -> list[Any]:
        count, ranks = len(self.features), self.num_replicas
        generator = wf.Generator().manual_seed(self.seed + self.epoch)
        order = wf.randperm(count, generator=generator).numpy() if self.shuffle else np.arange(count)
        if not count:
            return []
        total = self.total_size
        order = np.resize(order, total)  # cut, or repeated from the start
        costs = self.costs
        steps = []
        window = -(-_WINDOW // self.batch_size) * self.batch_size * ranks
        for start in range(0, total, window):
            part = order[start : start + window]
            # Rounds of examples that cost about the same: one for each rank.
            rounds = part[np.argsort(-costs[part], kind="stable")].reshape(-1, ranks)
            if self.shuffle and len(rounds) > self.batch_size:
                rounds = rounds[wf.randperm(len(rounds), generator=generator).numpy()]
            for at in range(0, len(rounds), self.batch_size):
                steps.append(_even(rounds[at : at + self.batch_size], costs))
        # A step that is shorter than the others comes last, as in a loader.
        return sorted(steps, key=lambda step: -step.shape[1])

    def waiting(self, costs: Any = None) -> float:
        """The fraction of this epoch's time in which ranks wait for the slowest, by predicted or by these costs."""
        costs = self.costs if costs is None else np.asarray(costs, np.float64)
        loads = [costs[step].sum(1) for step in self.steps()]
        slowest = sum([load.max() for load in loads])
        return float(1 - sum([load.mean() for load in loads]) / slowest) if slowest else 0.0

    def __iter__(self) -> Iterator[int]:
        return iter([int(i) for step in self.steps() for i in step[self.rank]])


def _features(dataset: Any, count: int, cost: Any, sample: int) -> tuple[Any, Any]:
    """The numbers that say what each example costs, and what a unit of each costs until more is known."""
    if cost is None:
        found = np.array([structure_of(dataset[i]) for i in range(count)], np.float64).reshape(count, STRUCTURE)
        return found, np.ones(STRUCTURE)
    if not callable(cost):
        given = cost.tolist() if isinstance(cost, (wf.Tensor, np.ndarray)) else cost
        if isinstance(given, str) or not isinstance(given, Iterable):
            raise ArgumentTypeError("CostSampler: cost must be a list of numbers, one for each example, or a function "
                                    f"of an example, not {given!r}")  # fmt: skip
        rows = [_numbers(c) for c in given]
        if len(rows) != count:
            raise ArgumentError(f"CostSampler: {len(rows)} costs were given for {count} examples")
        return _checked(_table(rows))
    if not isinstance(cost, RecordedCost) or count <= sample:
        return _checked(_table([_numbers(cost(dataset[i])) for i in range(count)]),
                        getattr(cost, "coefficients", None) if count else None)  # fmt: skip
    # Recording takes a run of each example: for many, some are recorded, and the others predicted by their parts.
    parts = np.array([[1.0, *structure_of(dataset[i])] for i in range(count)])
    chosen = np.unique(np.linspace(0, count - 1, sample).astype(int))
    recorded = np.array([_numbers(cost(dataset[i])) for i in chosen], np.float64)
    columns = []
    for column in recorded.T:
        model = CostModel(parts.shape[1], memory=1.0)
        for i, value in zip(chosen, column, strict=True):
            model.observe(parts[i], value)
        columns.append(model.predict(parts))
    found = np.stack(columns, 1)
    found[chosen] = recorded
    return _checked(found, cost.coefficients)


def _numbers(cost: Any) -> Sequence[float]:
    try:
        return [float(c) for c in cost] if isinstance(cost, (tuple, list)) else [float(cost)]
    except (TypeError, ValueError):
        raise ArgumentTypeError(f"CostSampler: the cost of an example must be a number, or several, not {cost!r}"
                                ) from None  # fmt: skip


def _table(rows: Sequence[Sequence[float]]) -> Any:
    """The numbers of each example as a row; without examples there is no row."""
    for i, row in enumerate(rows):
        if not row or len(row) != len(rows[0]):
            raise ArgumentError(f"CostSampler: the cost of example {i} is {len(row)} numbers, that of example 0 is "
                                f"{len(rows[0])}", fix="Give equally many for each, at least one.")  # fmt: skip
    return np.array(rows, np.float64).reshape(len(rows), len(rows[0]) if rows else 1)


def _checked(found: Any, coefficients: Any = None) -> tuple[Any, Any]:
    if not np.isfinite(found).all() or (found < 0).any():
        raise ArgumentError("CostSampler: a cost is negative or not a number")
    return found, np.ones(found.shape[1]) if coefficients is None else np.asarray(coefficients, np.float64)


def _even(rounds: Any, costs: Any) -> Any:
    """One step: an example of each round to every rank, so that the sums are about equal."""
    ranks = rounds.shape[1]
    step = np.empty((ranks, len(rounds)), np.int64)
    loads = np.zeros(ranks)
    values = costs[rounds]
    for place, number in enumerate(np.argsort(values.min(1) - values.max(1), kind="stable")):
        # Of each round, the costliest example goes to the rank with the least so far.
        who = np.argsort(loads, kind="stable")
        step[who, place] = rounds[number][np.argsort(-values[number], kind="stable")]
        loads[who] += np.sort(values[number])[::-1]
    for _ in range(_EXCHANGES if ranks > 1 else 0):
        most, least = int(loads.argmax()), int(loads.argmin())
        gap = loads[most] - loads[least]
        differences = costs[step[most]][:, None] - costs[step[least]][None, :]
        best = np.abs(differences - gap / 2)
        i, j = np.unravel_index(int(best.argmin()), best.shape)
        moved = differences[i, j]
        if not 1e-12 * gap < moved < gap:
            break
        step[most, i], step[least, j] = step[least, j], step[most, i]
        loads[most] -= moved
        loads[least] += moved
    return step

