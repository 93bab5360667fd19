"""Schedulers that go up and down between two learning rates, and the momentum the other way: CyclicLR, OneCycleLR."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from wayfare.core.errors import ArgumentError
from wayfare.optim.lr_scheduler.base import (
    LRScheduler,
    check_optimizer,
    check_positive_int,
    per_group,
    restore_function,
    set_lr,
    state_of_function,
)
from wayfare.optim.optimizer import Optimizer

__all__ = ["CyclicLR", "OneCycleLR"]


class _MomentumLR(LRScheduler):
    """A scheduler that moves the momentum (for Adam and its kind: the first beta) against the learning rate."""

    cycle_momentum: bool
    use_beta1: bool
    base_momentums: list[float]
    max_momentums: list[float]

    def _take_momentum(self, cycle: bool, base: Any, most: Any, last_epoch: int) -> None:
        """Check and keep the limits of the momentum, and begin with the larger one."""
        name, defaults = type(self).__name__, self.optimizer.defaults
        self.cycle_momentum = cycle
        if not cycle:
            return
        if "momentum" not in defaults and "betas" not in defaults:
            raise ArgumentError(f"{name}: {type(self.optimizer).__name__} has neither momentum nor betas to cycle",
                                fix="Give cycle_momentum=False.")  # fmt: skip
        self.use_beta1 = "betas" in defaults
        self.base_momentums = per_group(name, "base_momentum", base, self.optimizer)
        self.max_momentums = per_group(name, "max_momentum", most, self.optimizer)
        if last_epoch != -1:
            return
        limits = zip(self.optimizer.param_groups, self.base_momentums, self.max_momentums, strict=True)
        for group, base_momentum, max_momentum in limits:
            group["base_momentum"] = base_momentum
            group["max_momentum"] = max_momentum
            self._set_momentum(group, max_momentum)

    def _set_momentum(self, group: dict[str, Any], momentum: float) -> None:
        if self.use_beta1:
            group["betas"] = (momentum, *group["betas"][1:])
        else:
            group["momentum"] = momentum

    def _next_momentum(self) -> list[float]:
        """The momentum of each group for `last_epoch`."""
        raise NotImplementedError

    def _update_lr(self, epoch: int | None = None) -> None:
        super()._update_lr(epoch)
        if self.cycle_momentum:
            for group, momentum in zip(self.optimizer.param_groups, self._next_momentum(), strict=True):
                self._set_momentum(group, momentum)


class CyclicLR(_MomentumLR):
    """Up from `base_lr` to `max_lr` in `step_size_up` steps and down again in `step_size_down`, over and over.

    The height of each cycle is the same (`mode="triangular"`), half of the last (`"triangular2"`), `gamma ** step`
    of the whole (`"exp_range"`), or `scale_fn` of the cycle (`scale_mode="cycle"`) or step (`"iterations"`). With
    `cycle_momentum` the momentum goes down from `max_momentum` to `base_momentum` while the rate goes up.
    """

    def __init__(
        self, optimizer: Optimizer, base_lr: float | list[float], max_lr: float | list[float], step_size_up: int = 2000,
        step_size_down: int | None = None, mode: str = "triangular", gamma: float = 1.0,
        scale_fn: Callable[[float], float] | None = None, scale_mode: str = "cycle", cycle_momentum: bool = True,
        base_momentum: float | list[float] = 0.8, max_momentum: float | list[float] = 0.9, last_epoch: int = -1,
    ) -> None:  # fmt: skip
        check_optimizer("CyclicLR", optimizer)
        self.optimizer = optimizer
        base_lrs = per_group("CyclicLR", "base_lr", base_lr, optimizer)
        self.max_lrs = per_group("CyclicLR", "max_lr", max_lr, optimizer)
        if mode not in ("triangular", "triangular2", "exp_range") and scale_fn is None:
            raise ArgumentError(f"CyclicLR: mode must be 'triangular', 'triangular2' or 'exp_range', it is {mode!r}",
                                fix="Or give scale_fn.")  # fmt: skip
        if scale_mode not in ("cycle", "iterations"):
            raise ArgumentError(f"CyclicLR: scale_mode must be 'cycle' or 'iterations', it is {scale_mode!r}")
        down = step_size_up if step_size_down is None else step_size_down
        if step_size_up <= 0 or down < 0:
            raise ArgumentError(f"CyclicLR: step_size_up must be above 0 and step_size_down at least 0, they are "
                                f"{step_size_up} and {down}")  # fmt: skip
        self.total_size = float(step_size_up + down)
        self.step_ratio = step_size_up / self.total_size
        self.mode = mode
        self.gamma = gamma
        self.scale_mode = scale_mode
        if scale_fn is None:
            self.scale_mode = "iterations" if mode == "exp_range" else "cycle"
        self._scale_fn_custom = scale_fn
        self._take_momentum(cycle_momentum, base_momentum, max_momentum, last_epoch)
        if last_epoch == -1:
            for group, lr in zip(optimizer.param_groups, base_lrs, strict=True):
                set_lr(group, lr)
        super().__init__(optimizer, last_epoch)
        self.base_lrs = base_lrs

    def scale_fn(self, x: float) -> float:
        """The share of the whole height that cycle or step `x` reaches."""
        if self._scale_fn_custom is not None:
            return self._scale_fn_custom(x)
        if self.mode == "triangular":
            return 1.0
        return float(self.gamma**x) if self.mode == "exp_range" else float(0.5 ** (x - 1))

    def _height(self) -> float:
        """How far up the triangle `last_epoch` lies, from 0 to 1, times the height of the cycle."""
        time = self.last_epoch / self.total_size
        cycle = math.floor(1 + time)
        part = 1.0 + time - cycle
        up = part <= self.step_ratio
        height = part / self.step_ratio if up else (part - 1) / (self.step_ratio - 1)
        return height * self.scale_fn(cycle if self.scale_mode == "cycle" else self.last_epoch)

    def _next_lr(self) -> list[Any]:
        height = self._height()
        return [base + (most - base) * height for base, most in zip(self.base_lrs, self.max_lrs, strict=True)]

    def _next_momentum(self) -> list[float]:
        height = self._height()
        limits = zip(self.base_momentums, self.max_momentums, strict=True)
        return [most - (most - base) * height for base, most in limits]

    def state_dict(self) -> dict[str, Any]:
        """The state as plain values. Of a callable `scale_fn` object its attributes are kept, of a function nothing."""
        return super().state_dict() | {"_scale_fn_custom": state_of_function(self._scale_fn_custom)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a state; `scale_fn` is the one this scheduler was made with."""
        self._check_keys(state_dict)
        self._restore(state_dict, left_out=["_scale_fn_custom"])
        restore_function(self._scale_fn_custom, state_dict["_scale_fn_custom"])


class _Phase(NamedTuple):
    """A part of the one cycle: until which step, and between which values of a group."""

    end: float
    lr: tuple[str, str]
    momentum: tuple[str, str]


class OneCycleLR(_MomentumLR):
    """Up from `max_lr / div_factor` to `max_lr` in the first `pct_start` of the steps, then down to nearly nothing.

    The last rate is the first divided by `final_div_factor`. With `three_phase` the way down goes first to where it
    began, in as many steps as the way up. The number of steps is `total_steps`, or `epochs * steps_per_epoch`. Call
    `step()` after every batch.
    """

    def __init__(
        self, optimizer: Optimizer, max_lr: float | list[float], total_steps: int | None = None,
        epochs: int | None = None, steps_per_epoch: int | None = None, pct_start: float = 0.3,
        anneal_strategy: str = "cos", cycle_momentum: bool = True, base_momentum: float | list[float] = 0.85,
        max_momentum: float | list[float] = 0.95, div_factor: float = 25.0, final_div_factor: float = 1e4,
        three_phase: bool = False, last_epoch: int = -1,
    ) -> None:  # fmt: skip
        check_optimizer("OneCycleLR", optimizer)
        self.optimizer = optimizer
        self.total_steps = _total_steps(total_steps, epochs, steps_per_epoch)
        if isinstance(pct_start, bool) or not isinstance(pct_start, float) or not 0 <= pct_start <= 1:
            raise ArgumentError(f"OneCycleLR: pct_start must be a float between 0 and 1, it is {pct_start!r}")
        if anneal_strategy not in ("cos", "linear"):
            raise ArgumentError(f"OneCycleLR: anneal_strategy must be 'cos' or 'linear', it is {anneal_strategy!r}")
        self.pct_start = pct_start
        self.anneal_strategy = anneal_strategy
        self.three_phase = three_phase
        max_lrs = per_group("OneCycleLR", "max_lr", max_lr, optimizer)
        if last_epoch == -1:
            for group, most in zip(optimizer.param_groups, max_lrs, strict=True):
                group["initial_lr"] = most / div_factor
                group["max_lr"] = most
                group["min_lr"] = group["initial_lr"] / final_div_factor
        self._take_momentum(cycle_momentum, base_momentum, max_momentum, last_epoch)
        super().__init__(optimizer, last_epoch)

    def _phases(self) -> list[_Phase]:
        peak = self.pct_start * self.total_steps - 1
        up = _Phase(peak, ("initial_lr", "max_lr"), ("max_momentum", "base_momentum"))
        last = float(self.total_steps - 1)
        if not self.three_phase:
            return [up, _Phase(last, ("max_lr", "min_lr"), ("base_momentum", "max_momentum"))]
        down = _Phase(2 * peak, ("max_lr", "initial_lr"), ("base_momentum", "max_momentum"))
        return [up, down, _Phase(last, ("initial_lr", "min_lr"), ("max_momentum", "max_momentum"))]

    def _place(self) -> tuple[_Phase, float]:
        """The phase of `last_epoch`, and which part of it lies behind."""
        if self.last_epoch > self.total_steps:
            raise ArgumentError(f"OneCycleLR: step {self.last_epoch} is past the end, the cycle has {self.total_steps} "
                                "steps", fix="Give a larger total_steps, or stop stepping.")  # fmt: skip
        phases, start = self._phases(), 0.0
        for phase in phases[:-1]:
            if self.last_epoch <= phase.end:
                break
            start = phase.end
        else:
            phase = phases[-1]
        length = phase.end - start
        # A phase of no length is behind us as soon as it begins.
        return phase, (self.last_epoch - start) / length if length else 1.0

    def _between(self, start: float, end: float, part: float) -> float:
        if self.anneal_strategy == "linear":
            return start + (end - start) * part
        return end + (start - end) * (1 + math.cos(math.pi * part)) / 2

    def _next_lr(self) -> list[Any]:
        phase, part = self._place()
        start, end = phase.lr
        return [self._between(group[start], group[end], part) for group in self.optimizer.param_groups]

    def _next_momentum(self) -> list[float]:
        phase, part = self._place()
        start, end = phase.momentum
        return [self._between(group[start], group[end], part) for group in self.optimizer.param_groups]


def _total_steps(total_steps: int | None, epochs: int | None, steps_per_epoch: int | None) -> int:
    if total_steps is not None:
        check_positive_int("OneCycleLR", "total_steps", total_steps)
        return total_steps
    if epochs is None or steps_per_epoch is None:
        raise ArgumentError("OneCycleLR: needs total_steps, or epochs and steps_per_epoch, to know when the cycle ends")
    check_positive_int("OneCycleLR", "epochs", epochs)
    check_positive_int("OneCycleLR", "steps_per_epoch", steps_per_epoch)
    return epochs * steps_per_epoch
