"""One step of a run: what a batch is, what comes of it, and the scores that are kept of many."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from typing import Any

import wayfare as wf
from wayfare.core.errors import ArgumentError, ArgumentTypeError
from wayfare.train.checks import check_made
from wayfare.train.history import FACTS, GRADIENTS
from wayfare.train.strategy import OneProcess, merged_meters

Step = Callable[[Any, Any], Any]


def plain_step(loss: Callable[[Any, Any], wf.Tensor] | None) -> Step:
    """The step for batches `(input, …, target)`."""
    if loss is None:
        raise ArgumentError("fit: needs a loss, or a step of your own",
                            fix="Give loss=wf.nn.functional.cross_entropy, for instance.")  # fmt: skip

    def take(model: Any, batch: Any) -> Any:
        if not isinstance(batch, (tuple, list)) or len(batch) < 2:
            shown = type(batch).__name__ + (f" of {len(batch)}" if isinstance(batch, Sized) else "")
            raise ArgumentTypeError(f"fit: a batch must be a tuple (input, …, target), this is a {shown}",
                                    fix="For other batches give step=, a function of model and batch.")  # fmt: skip
        *inputs, target = batch
        output = model(*inputs)
        return loss(output, target), output, target

    return take


class Result:
    """What a step gave: the loss, maybe output and target for metrics, and how many examples it stands for."""

    __slots__ = ("loss", "output", "size", "target", "value")

    def __init__(self, loss: wf.Tensor, output: Any, target: Any, size: int) -> None:
        self.loss = loss
        self.output = output
        self.target = target
        self.size = size
        self.value = float(loss.item())

    @classmethod
    def of(cls, given: Any, batch: Any) -> Result:
        """Read what a step returned."""
        loss, output, target = given if isinstance(given, tuple) and len(given) == 3 else (given, None, None)
        if not isinstance(loss, wf.Tensor) or loss.numel() != 1:
            shown = str(loss.spec) if isinstance(loss, wf.Tensor) else type(loss).__name__
            raise ArgumentTypeError(f"fit: a step must give the loss as a tensor of one number, this is {shown}",
                                    fix="Return loss, or (loss, output, target); take the mean of losses.")  # fmt: skip
        return cls(loss, output, target, _size(target if target is not None else batch))

    @property
    def finite(self) -> bool:
        """Is the loss a number?"""
        return math.isfinite(self.value)


def _size(value: Any) -> int:
    """How many examples a batch or a target holds; 1 if it does not say."""
    if isinstance(value, wf.Tensor):
        return int(value.shape[0]) if value.ndim else 1
    if isinstance(value, tuple) and value:
        return _size(value[-1])
    return len(value) if isinstance(value, Sized) and not isinstance(value, (str, bytes, Mapping)) else 1


def named_metrics(metrics: Any) -> dict[str, Any]:
    """Metrics by the name they are shown under: the user's, or the class's in lower case."""
    if not isinstance(metrics, (Mapping, Sequence)):
        metrics = [metrics]
    for metric in metrics.values() if isinstance(metrics, Mapping) else metrics:
        check_made("metric", metric)
        if not (hasattr(metric, "update") and hasattr(metric, "compute")):
            raise ArgumentTypeError(f"fit: a metric has update() and compute(), a {type(metric).__name__} does not",
                                    fix="Use those of wf.metrics, or write such a class.")  # fmt: skip
    if isinstance(metrics, Mapping):
        for name in metrics:
            if name in ("loss", GRADIENTS, *FACTS):
                raise ArgumentError(f"fit: a metric cannot be called {name!r}, which every epoch records anyway",
                                    fix="Give it another name.")  # fmt: skip
        return dict(metrics)
    named: dict[str, Any] = {}
    for metric in metrics:
        name = getattr(metric, "name", None) or type(metric).__name__.lower()
        named[name if name not in named else f"{name} {len(named)}"] = metric
    return named


class Meter:
    """The running mean of losses and the metrics, over the batches of one epoch."""

    def __init__(self, metrics: dict[str, Any]) -> None:
        # Copies, so that training, validation and the user's own objects never mix.
        self._metrics = {name: copy.deepcopy(metric) for name, metric in metrics.items()}
        for metric in self._metrics.values():
            metric.reset()
        self._total = 0.0
        self._examples = 0
        self.batches = 0

    def add(self, result: Result) -> None:
        """Count one batch."""
        self.batches += 1
        self._examples += result.size
        self._total += result.value * result.size
        if self._metrics and result.target is None:
            raise ArgumentError("fit: metrics need the output and the target",
                                fix="Let step return (loss, output, target).")  # fmt: skip
        for metric in self._metrics.values():
            metric.update(result.output, result.target)

    def merge(self, way: OneProcess) -> None:
        """Add what the other processes of the run have counted."""
        self._total, self._examples, self.batches = merged_meters(
            way, self._total, self._examples, self.batches, self._metrics
        )

    def scores(self) -> dict[str, Any]:
        """The mean loss over all examples, and each metric as a number."""
        return {"loss": self._total / max(self._examples, 1)} | {
            name: _plain(metric.compute()) for name, metric in self._metrics.items()
        }


def _plain(value: Any) -> Any:
    """A metric's value as a Python number, or as lists for one that has several."""
    return value.tolist() if isinstance(value, wf.Tensor) else value


def first_batches(data: Iterable[Any], count: int) -> list[Any]:
    """The first batches, to be gone through again and again."""
    if count < 1:
        raise ArgumentError(f"fit: overfit must be at least 1 batch, it is {count}")
    found = list(itertools.islice(iter(data), count))
    if not found:
        raise ArgumentError("fit: the data gave no batch", fix="Give a list or a loader that is not empty.")
    return found


def number_of_batches(data: Any) -> int | None:
    """How many batches an epoch has, if the data can tell."""
    try:
        return len(data)
    except TypeError:
        return None
