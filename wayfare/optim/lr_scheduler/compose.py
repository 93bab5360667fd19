"""Schedulers made of schedulers: one after the other, or all at once."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from wayfare.core.errors import ArgumentError, ArgumentTypeError
from wayfare.optim.lr_scheduler.base import LRScheduler, get_lrs, set_lr
from wayfare.optim.lr_scheduler.plateau import ReduceLROnPlateau
from wayfare.optim.optimizer import Optimizer

__all__ = ["SequentialLR", "ChainedScheduler"]


class _Composed(LRScheduler):
    """A scheduler that has schedulers, whose states are part of its own."""

    _schedulers: list[LRScheduler]

    def _take(self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None) -> None:
        """Check that the schedulers can work together, and keep them."""
        name = type(self).__name__
        if len(schedulers) < 1:
            raise ArgumentError(f"{name}: needs at least one scheduler")
        for position, scheduler in enumerate(schedulers):
            if not isinstance(scheduler, LRScheduler):
                raise ArgumentTypeError(f"{name}: schedulers[{position}] is a {type(scheduler).__name__}, "
                                        "not a scheduler")  # fmt: skip
            if isinstance(scheduler, ReduceLROnPlateau):
                raise ArgumentError(f"{name}: schedulers[{position}] is a ReduceLROnPlateau, whose step() needs a "
                                    "measured value", fix="Step it on its own.")  # fmt: skip
            optimizer = scheduler.optimizer if optimizer is None else optimizer
            if scheduler.optimizer is not optimizer:
                raise ArgumentError(f"{name}: schedulers[{position}], a {type(scheduler).__name__}, belongs to another "
                                    "optimizer", fix="Make all of them for the same one.")  # fmt: skip
        assert optimizer is not None
        self.optimizer = optimizer
        self._schedulers = list(schedulers)

    def _begin(self, schedulers: Sequence[LRScheduler]) -> None:
        """Take the first step of these schedulers again, each changing the rate that the one before has left."""
        for group in self.optimizer.param_groups:
            set_lr(group, group["initial_lr"])
        for scheduler in schedulers:
            scheduler._initial_step()

    def _undo_first_step(self) -> None:
        for scheduler in self._schedulers:
            scheduler._undo_first_step()

    def _rewind(self) -> None:
        for scheduler in self._schedulers:
            scheduler._rewind()

    def _restart(self) -> None:
        self._rewind()
        self._initial_step()

    def state_dict(self) -> dict[str, Any]:
        """The state as plain values, with those of its schedulers."""
        return super().state_dict() | {"_schedulers": [scheduler.state_dict() for scheduler in self._schedulers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a state."""
        self._check_keys(state_dict)
        saved = state_dict["_schedulers"]
        if len(saved) != len(self._schedulers):
            raise ArgumentError(f"{type(self).__name__}.load_state_dict: the state has {len(saved)} schedulers, this "
                                f"one has {len(self._schedulers)}")  # fmt: skip
        for scheduler, state in zip(self._schedulers, saved, strict=True):
            scheduler._check_keys(state)
        self._restore(state_dict, left_out=["_schedulers"])
        for scheduler, state in zip(self._schedulers, saved, strict=True):
            scheduler.load_state_dict(state)


class SequentialLR(_Composed):
    """One scheduler after the other: the next takes over, at its own epoch 0, at each epoch in `milestones`."""

    def __init__(
        self, optimizer: Optimizer, schedulers: list[LRScheduler], milestones: list[int], last_epoch: int = -1
    ) -> None:
        self._take(schedulers, optimizer)
        if len(milestones) != len(schedulers) - 1:
            raise ArgumentError(f"SequentialLR: {len(schedulers)} schedulers need {len(schedulers) - 1} milestones, "
                                f"not {len(milestones)}",
                                fix="Give the epoch at which each scheduler but the first begins.")  # fmt: skip
        if list(milestones) != sorted(milestones):
            raise ArgumentError(f"SequentialLR: milestones must rise, they are {list(milestones)}")
        self._milestones = list(milestones)
        self.last_epoch = last_epoch + 1
        # Each scheduler has taken its first step when it was made; only the first in turn may.
        self._undo_first_step()
        self._begin([self._first()])
        self._last_lr = self._first().get_last_lr()

    def _turn(self, epoch: int) -> int:
        """Whose turn it is at an epoch."""
        return bisect_right(self._milestones, epoch)

    def _first(self) -> LRScheduler:
        return self._schedulers[self._turn(0)]

    def step(self) -> None:  # type: ignore[override]
        """Go on to the next epoch."""
        self.last_epoch += 1
        turn = self._turn(self.last_epoch)
        scheduler = self._schedulers[turn]
        if turn != self._turn(self.last_epoch - 1):
            scheduler._restart()
        else:
            scheduler.step()
        self._last_lr = scheduler.get_last_lr()

    def _initial_step(self) -> None:
        self.last_epoch = 0
        self._begin([self._first()])
        self._last_lr = self._first().get_last_lr()


class ChainedScheduler(_Composed):
    """All schedulers step together, each changing the rate that the one before has left."""

    def __init__(self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None = None) -> None:
        self._take(schedulers, optimizer)
        self._last_lr = get_lrs(self.optimizer)

    def step(self) -> None:  # type: ignore[override]
        """Go on to the next epoch."""
        for scheduler in self._schedulers:
            scheduler.step()
        self._last_lr = get_lrs(self.optimizer)

    def _initial_step(self) -> None:
        self._begin(self._schedulers)
        self._last_lr = get_lrs(self.optimizer)
