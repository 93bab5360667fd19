"""What all metrics share: state that adds up over batches, and can be reset, merged and saved.

A metric keeps a few NumPy arrays in float64 or int64 and nothing of the graph. `compute()` gives a Python number, or a
tensor where there are several.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import reduce
from typing import Any, ClassVar, Self

import numpy as np

import wayfare as wf
from wayfare.core.errors import ArgumentError, ArgumentTypeError, OperationError

__all__ = ["Metric"]

Array = np.ndarray[Any, np.dtype[Any]]
State = dict[str, Array]


class Metric(ABC):
    """Base of all metrics: `update` with each batch, `compute` when you want to know.

    Calling the metric, `metric(preds, target)`, counts the batch and returns the value of that batch alone. To write
    your own, implement `start` (the empty state), `count` (the state of one batch) and `value`.
    """

    name = "metric"
    # States that grow are joined all at once when they are read, not batch by batch.
    grows = False

    def __init__(self, **options: Any) -> None:
        self._options = options
        self.reset()

    @abstractmethod
    def start(self) -> State:
        """The state when nothing was counted: arrays by name."""

    @abstractmethod
    def count(self, preds: Any, target: Any) -> State:
        """The state of one batch."""

    @abstractmethod
    def value(self, state: State) -> Any:
        """The metric of a state."""

    def join(self, *states: State) -> State:
        """Several states as one: sums, where shorter arrays are filled up with zeros."""
        return {name: reduce(added, (state[name] for state in states)) for name in states[0]}

    # -- what users call -----------------------------------------------------------------------------------------------

    def reset(self) -> None:
        """Forget everything counted."""
        self._state = self.start()
        self._waiting: list[State] = []
        self._updates = 0

    def update(self, preds: Any, target: Any) -> None:
        """Count one batch."""
        self._take(self.count(preds, target))

    def _take(self, batch: State) -> None:
        self._waiting.append(batch)
        self._updates += 1
        if not self.grows:
            self._settle()

    def _settle(self) -> State:
        if self._waiting:
            self._state = self.join(self._state, *self._waiting)
            self._waiting = []
        return self._state

    def compute(self) -> Any:
        """The value over everything counted since the last reset."""
        if not self._updates:
            raise OperationError(f"{type(self).__name__}: nothing was counted yet, so there is no value",
                                 fix="Call update(preds, target) first.")  # fmt: skip
        return self.value(self._settle())

    def __call__(self, preds: Any, target: Any) -> Any:
        """Count one batch, and return the value of that batch alone."""
        batch = self.count(preds, target)
        self._take(batch)
        return self.value(self.join(self.start(), batch))

    def merge(self, *others: Metric) -> Self:
        """Add what others of the same kind counted, e.g. in other processes. Returns the metric itself."""
        for other in others:
            if type(other) is not type(self):
                raise ArgumentTypeError(f"{type(self).__name__}.merge: expected another {type(self).__name__}, not "
                                        f"{type(other).__name__}")  # fmt: skip
            if other._options != self._options:
                raise ArgumentError(f"{type(self).__name__}.merge: the options differ, {self!r} and {other!r}")
            self._state = self.join(self._settle(), other._settle())
            self._updates += other._updates
        return self

    def copy(self) -> Self:
        """Another metric with the same options and counts."""
        return copy.deepcopy(self)

    def state_dict(self) -> dict[str, wf.Tensor]:
        """What was counted, as tensors by name, for a checkpoint."""
        state = {name: wf.tensor(np.array(array)) for name, array in self._settle().items()}
        return state | {"updates": wf.tensor(self._updates)}

    def load_state_dict(self, state: Mapping[str, wf.Tensor]) -> None:
        """Go on from what `state_dict` gave."""
        start = self.start()
        expected = {*start, "updates"}
        if set(state) != expected:
            raise ArgumentError(f"{type(self).__name__}.load_state_dict: expected {', '.join(sorted(expected))}, these "
                                f"are {', '.join(sorted(state)) or 'none'}")  # fmt: skip
        loaded = {name: np.array(wf.as_tensor(state[name]).cpu().numpy(), start[name].dtype) for name in start}
        for name, array in loaded.items():
            if array.ndim != start[name].ndim:
                raise ArgumentError(f"{type(self).__name__}.load_state_dict: {name} must have {start[name].ndim} "
                                    f"dimensions, it has {array.ndim}")  # fmt: skip
        self._state, self._waiting, self._updates = loaded, [], int(state["updates"])

    def __repr__(self) -> str:
        plain = type(self).__init__.__kwdefaults__ or {}
        shown = (f"{name}={value!r}" for name, value in self._options.items() if plain.get(name, plain) != value)
        return f"{type(self).__name__}({', '.join(shown)})"


class Quotient(Metric):
    """A metric that is one sum divided by another: `sums` are their names and dtypes. NaN if nothing was counted."""

    sums: ClassVar[dict[str, Any]] = {"total": np.float64, "count": np.int64}

    def start(self) -> State:
        return {name: np.zeros((), dtype) for name, dtype in self.sums.items()}

    def value(self, state: State) -> float:
        above, below = (state[name] for name in self.sums)
        return float(ratio(above, below))


def added(a: Array, b: Array) -> Array:
    """The sum of two arrays whose sizes may differ: the smaller has zeros behind its end."""
    if a.shape == b.shape:
        return np.asarray(a + b)
    out = np.zeros([max(n, m) for n, m in zip(a.shape, b.shape, strict=True)], a.dtype)
    out[tuple(slice(n) for n in a.shape)] += a
    out[tuple(slice(n) for n in b.shape)] += b
    return out


def ratio(above: Any, below: Any, otherwise: float = float("nan")) -> Any:
    """above / below in float64, and `otherwise` where there is nothing below."""
    above, below = np.asarray(above, np.float64), np.asarray(below, np.float64)
    out = np.full(np.broadcast(above, below).shape, otherwise)
    np.divide(above, below, out=out, where=below != 0)
    return out
