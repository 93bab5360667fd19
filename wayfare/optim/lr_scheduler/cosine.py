"""Schedulers that follow a cosine: down and up again, or down with restarts."""

from __future__ import annotations

import math
from typing import Any

from wayfare.core.errors import ArgumentError
from wayfare.optim.lr_scheduler.base import LRScheduler, check_positive_int, get_lrs
from wayfare.optim.optimizer import Optimizer

__all__ = ["CosineAnnealingLR", "CosineAnnealingWarmRestarts"]


def _height(part: float) -> float:
    """The half cosine wave: 1 at 0, 0 at 1."""
    return (1 + math.cos(math.pi * part)) / 2


class CosineAnnealingLR(LRScheduler):
    """From the rate at the beginning down to `eta_min` in `T_max` epochs along a cosine, then up again, and so on."""

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1) -> None:
        if not isinstance(T_max, (int, float)) or T_max <= 0:
            raise ArgumentError(f"CosineAnnealingLR: T_max must be a number above 0, it is {T_max!r}")
        self.T_max = T_max
        self.eta_min = eta_min
        super().__init__(optimizer, last_epoch)

    def _next_lr(self) -> list[Any]:
        now = get_lrs(self.optimizer)
        if self._is_initial:
            return now
        # Each rate comes from the one before, so that changes others made to it are kept.
        if (self.last_epoch - 1 - self.T_max) % (2 * self.T_max) == 0:
            # From the lowest point no factor leads up.
            rise = 1 - _height(1 / self.T_max)
            return [lr + (base - self.eta_min) * rise for base, lr in zip(self.base_lrs, now, strict=True)]
        ratio = _height(self.last_epoch / self.T_max) / _height((self.last_epoch - 1) / self.T_max)
        return [ratio * (lr - self.eta_min) + self.eta_min for lr in now]

    def _get_closed_form_lr(self) -> list[Any]:
        height = _height(self.last_epoch / self.T_max)
        return [self.eta_min + (base - self.eta_min) * height for base in self.base_lrs]


class CosineAnnealingWarmRestarts(LRScheduler):
    """Down to `eta_min` along a cosine in `T_0` epochs, then from the top again, each time `T_mult` times as long.

    `step()` may be given a fraction of an epoch, `step(epoch + batch / batches)`, to change the rate at every batch.
    """

    def __init__(
        self, optimizer: Optimizer, T_0: int, T_mult: int = 1, eta_min: float = 0.0, last_epoch: int = -1
    ) -> None:
        check_positive_int("CosineAnnealingWarmRestarts", "T_0", T_0)
        check_positive_int("CosineAnnealingWarmRestarts", "T_mult", T_mult)
        if not isinstance(eta_min, (int, float)):
            raise ArgumentError(f"CosineAnnealingWarmRestarts: eta_min must be a number, it is {eta_min!r}")
        self.T_0 = T_0
        self.T_i = T_0
        self.T_mult = T_mult
        self.eta_min = eta_min
        self.T_cur: float = last_epoch
        super().__init__(optimizer, last_epoch)

    def _next_lr(self) -> list[Any]:
        height = _height(self.T_cur / self.T_i)
        return [self.eta_min + (base - self.eta_min) * height for base in self.base_lrs]

    def step(self, epoch: float | None = None) -> None:
        """Go on to the next epoch, or to any point in time, such as 2.75."""
        if epoch is None and self.last_epoch < 0:
            epoch = 0
        if epoch is None:
            epoch = self.last_epoch + 1
            self.T_cur += 1
            if self.T_cur >= self.T_i:
                self.T_cur %= self.T_i
                self.T_i *= self.T_mult
        elif epoch < 0:
            raise ArgumentError(f"CosineAnnealingWarmRestarts.step: epoch must be at least 0, it is {epoch}")
        else:
            self._find_cycle(epoch)
        self.last_epoch = math.floor(epoch)
        self._get_lr_called_within_step = True
        try:
            lrs = self.get_lr()
        finally:
            self._get_lr_called_within_step = False
        self._write(lrs)

    def _find_cycle(self, epoch: float) -> None:
        """In which cycle a point in time lies, and how far from its beginning."""
        self.T_i = self.T_0
        if self.T_mult == 1:
            self.T_cur = epoch % self.T_0
            return
        self.T_cur = epoch
        while self.T_cur >= self.T_i:
            self.T_cur -= self.T_i
            self.T_i *= self.T_mult

    def _restart(self) -> None:
        self.step(0)
