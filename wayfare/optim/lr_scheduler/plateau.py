"""`ReduceLROnPlateau`: a smaller learning rate when a measured value has stopped getting better."""

from __future__ import annotations

import math
import warnings
from typing import Any, SupportsFloat

import wayfare as wf
from wayfare.core.callsite import outside_frames
from wayfare.core.errors import ArgumentError, ArgumentTypeError, OperationError
from wayfare.optim.lr_scheduler.base import LRScheduler, check_optimizer, get_lrs, per_group, set_lr
from wayfare.optim.optimizer import Optimizer

__all__ = ["ReduceLROnPlateau"]


class ReduceLROnPlateau(LRScheduler):
    """The rate times `factor` when the value given to `step` was no better than the best for over `patience` epochs.

    Better is smaller (`mode="min"`) or larger (`"max"`) by more than `threshold`, a share of the best (`"rel"`) or a
    difference (`"abs"`). After a reduction `cooldown` epochs do not count as bad. No rate falls below `min_lr` (one, or
    one for each group), and changes below `eps` are left out.
    """

    def __init__(
        self, optimizer: Optimizer, mode: str = "min", factor: float = 0.1, patience: int = 10, threshold: float = 1e-4,
        threshold_mode: str = "rel", cooldown: int = 0, min_lr: float | list[float] = 0, eps: float = 1e-8,
    ) -> None:  # fmt: skip
        name = type(self).__name__
        if factor >= 1.0:
            raise ArgumentError(f"{name}: factor must be below 1, it is {factor}")
        check_optimizer(name, optimizer)
        if mode not in ("min", "max"):
            raise ArgumentError(f"{name}: mode must be 'min' or 'max', it is {mode!r}")
        if threshold_mode not in ("rel", "abs"):
            raise ArgumentError(f"{name}: threshold_mode must be 'rel' or 'abs', it is {threshold_mode!r}")
        self.optimizer = optimizer
        self.mode = mode
        self.factor = factor
        self.patience = patience
        self.threshold = threshold
        self.threshold_mode = threshold_mode
        self.cooldown = cooldown
        self.eps = eps
        self.min_lrs = per_group(name, "min_lr", min_lr, optimizer)
        self.default_min_lr = None if isinstance(min_lr, (list, tuple)) else min_lr
        self.last_epoch = 0
        self._last_lr = get_lrs(optimizer)
        self.best = self._worst
        self.cooldown_counter = 0
        self.num_bad_epochs = 0

    @property
    def _worst(self) -> float:
        return math.inf if self.mode == "min" else -math.inf

    @property
    def in_cooldown(self) -> bool:
        """Is it waiting after a reduction?"""
        return self.cooldown_counter > 0

    def step(self, metrics: SupportsFloat, epoch: int | None = None) -> None:  # type: ignore[override]
        """Note the measured value of one epoch, a number or a tensor of one element."""
        if epoch is not None:
            warnings.warn("ReduceLROnPlateau.step: epoch is deprecated; call step(metrics) once for each epoch",
                          UserWarning, stacklevel=outside_frames())  # fmt: skip
        value = _measured(metrics)
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        if self._is_better(value):
            self.best = value
            self.num_bad_epochs = 0
        else:
            self.num_bad_epochs += 1
        if self.in_cooldown:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            self._reduce()
            self.cooldown_counter = self.cooldown
            self.num_bad_epochs = 0
        self._last_lr = get_lrs(self.optimizer)

    def _is_better(self, value: float) -> bool:
        sign = 1 if self.mode == "max" else -1
        margin = sign * self.threshold
        if self.threshold_mode == "rel":
            limit = self.best * (1.0 + margin)
        else:
            limit = self.best + margin
        return value > limit if self.mode == "max" else value < limit

    def _reduce(self) -> None:
        groups = self.optimizer.param_groups
        if len(groups) != len(self.min_lrs):
            if self.default_min_lr is None:
                raise OperationError(f"ReduceLROnPlateau: min_lr was given for {len(self.min_lrs)} parameter groups, "
                                     f"now there are {len(groups)}",
                                     fix="Set min_lrs to a list with one value for each group.")  # fmt: skip
            self.min_lrs = [self.default_min_lr] * len(groups)
        for group, lr, least in zip(groups, get_lrs(self.optimizer), self.min_lrs, strict=True):
            reduced = max(lr * self.factor, least)
            if lr - reduced > self.eps:
                set_lr(group, reduced)

    def state_dict(self) -> dict[str, Any]:
        """The state as plain values; `best` is None before the first measured value, for JSON has no infinity."""
        state = super().state_dict()
        return state | {"best": None if self.best == self._worst else self.best}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a state."""
        super().load_state_dict(state_dict)
        if state_dict["best"] is None:
            self.best = self._worst


def _measured(metrics: Any) -> float:
    """The measured value as a number."""
    if isinstance(metrics, wf.Tensor) and metrics.numel() != 1:
        raise ArgumentError(f"ReduceLROnPlateau.step: the measured value must be one number, it is {metrics.spec}")
    if isinstance(metrics, str) or not hasattr(metrics, "__float__"):
        raise ArgumentTypeError(f"ReduceLROnPlateau.step: takes the measured value, not {type(metrics).__name__}",
                                fix="Give the validation loss, for instance.")  # fmt: skip
    return float(metrics)
