"""Schedulers that multiply the learning rate by a factor of the epoch: steps, decays, warm-ups, users' functions."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from wayfare.core.errors import ArgumentError, ArgumentTypeError
from wayfare.optim.lr_scheduler.base import (
    LRScheduler,
    check_optimizer,
    check_positive_int,
    functions_per_group,
    get_lrs,
    restore_function,
    state_of_function,
)
from wayfare.optim.optimizer import Optimizer

__all__ = [
    "LambdaLR", "MultiplicativeLR", "StepLR", "MultiStepLR", "ConstantLR", "LinearLR", "ExponentialLR", "PolynomialLR",
]  # fmt: skip

LrLambda = Callable[[int], float] | list[Callable[[int], float]]


class _FunctionLR(LRScheduler):
    """A scheduler that asks functions of the user, one for each group. Functions are not part of the state."""

    lr_lambdas: list[Callable[[int], float]]

    def __init__(self, optimizer: Optimizer, lr_lambda: LrLambda, last_epoch: int = -1) -> None:
        name = type(self).__name__
        check_optimizer(name, optimizer)
        self.lr_lambdas = functions_per_group(name, lr_lambda, optimizer)
        super().__init__(optimizer, last_epoch)

    def state_dict(self) -> dict[str, Any]:
        """The state as plain values. Of a callable object its attributes are kept, of a function nothing."""
        state = super().state_dict()
        state["lr_lambdas"] = [state_of_function(function) for function in self.lr_lambdas]
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a state; the functions are the ones this scheduler was made with."""
        self._check_keys(state_dict)
        saved = state_dict["lr_lambdas"]
        if len(saved) != len(self.lr_lambdas):
            raise ArgumentError(f"{type(self).__name__}.load_state_dict: the state has {len(saved)} functions, this "
                                f"scheduler has {len(self.lr_lambdas)}")  # fmt: skip
        self._restore(state_dict, left_out=["lr_lambdas"])
        for function, state in zip(self.lr_lambdas, saved, strict=True):
            restore_function(function, state)


class LambdaLR(_FunctionLR):
    """The rate at the beginning times `lr_lambda(epoch)`; one function for all groups or a list with one for each."""

    def _next_lr(self) -> list[Any]:
        return [lr * function(self.last_epoch) for function, lr in zip(self.lr_lambdas, self.base_lrs, strict=True)]


class MultiplicativeLR(_FunctionLR):
    """At each step the rate is multiplied by `lr_lambda(epoch)`."""

    def _next_lr(self) -> list[Any]:
        now = get_lrs(self.optimizer)
        if self._is_initial:
            return now
        # Groups added since are missed here, and named when the rates are written.
        return [lr * function(self.last_epoch) for function, lr in zip(self.lr_lambdas, now, strict=False)]


class _FactorLR(LRScheduler):
    """One factor for all groups. It multiplies the rate there is, so schedulers can be chained."""

    def _step_factor(self) -> float | None:
        """What the rate is multiplied by on the way to `last_epoch`; None leaves it alone."""
        raise NotImplementedError

    def _whole_factor(self) -> float:
        """The product of all factors up to `last_epoch`."""
        raise NotImplementedError

    def _next_lr(self) -> list[Any]:
        factor = self._step_factor()
        now = get_lrs(self.optimizer)
        return now if factor is None else [lr * factor for lr in now]

    def _get_closed_form_lr(self) -> list[Any]:
        factor = self._whole_factor()
        return [lr * factor for lr in self.base_lrs]


class StepLR(_FactorLR):
    """The rate times `gamma` every `step_size` epochs."""

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1) -> None:
        # 1.0 is in a known tutorial.
        whole = int(step_size) if isinstance(step_size, float) and step_size % 1 == 0 else step_size
        check_positive_int("StepLR", "step_size", whole)
        self.step_size = whole
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def _step_factor(self) -> float | None:
        return self.gamma if self.last_epoch != 0 and self.last_epoch % self.step_size == 0 else None

    def _whole_factor(self) -> float:
        return float(self.gamma ** (self.last_epoch // self.step_size))


class MultiStepLR(_FactorLR):
    """The rate times `gamma` at each of the epochs in `milestones`; one named twice counts twice."""

    def __init__(
        self, optimizer: Optimizer, milestones: Iterable[int], gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        if not isinstance(milestones, Iterable):
            raise ArgumentTypeError("MultiStepLR: milestones must be a list of epochs, not "
                                    f"{type(milestones).__name__}", fix=f"Write [{milestones!r}].")  # fmt: skip
        self.milestones = Counter(milestones)
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def _step_factor(self) -> float | None:
        times = self.milestones[self.last_epoch]
        return float(self.gamma**times) if times else None

    def _whole_factor(self) -> float:
        return float(self.gamma ** bisect_right(sorted(self.milestones.elements()), self.last_epoch))

    def state_dict(self) -> dict[str, Any]:
        """The state as plain values, the milestones as a sorted list."""
        return super().state_dict() | {"milestones": sorted(self.milestones.elements())}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a state; the milestones may also be counts by epoch, as PyTorch writes them."""
        super().load_state_dict(state_dict)
        saved = state_dict["milestones"]
        counts = saved if isinstance(saved, Mapping) else Counter(saved)
        self.milestones = Counter({int(epoch): times for epoch, times in counts.items()})


class ConstantLR(_FactorLR):
    """The rate times `factor` for the first `total_iters` epochs, whole from then on."""

    def __init__(
        self, optimizer: Optimizer, factor: float = 1.0 / 3, total_iters: int = 5, last_epoch: int = -1
    ) -> None:
        if not 0 <= factor <= 1:
            raise ArgumentError(f"ConstantLR: factor must lie between 0 and 1, it is {factor}")
        self.factor = factor
        self.total_iters = total_iters
        super().__init__(optimizer, last_epoch)

    def _next_lr(self) -> list[Any]:
        if self.factor == 0 and self.last_epoch == self.total_iters != 0:
            return list(self.base_lrs)  # no factor leads back from nothing
        return super()._next_lr()

    def _step_factor(self) -> float | None:
        if self.last_epoch == 0:
            return self.factor
        return 1.0 / self.factor if self.last_epoch == self.total_iters else None

    def _whole_factor(self) -> float:
        return 1.0 if self.last_epoch >= self.total_iters else self.factor


class LinearLR(_FactorLR):
    """The rate times a factor that goes in a line from `start_factor` to `end_factor` in `total_iters` epochs."""

    def __init__(
        self, optimizer: Optimizer, start_factor: float = 1.0 / 3, end_factor: float = 1.0, total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:  # fmt: skip
        if not 0 < start_factor <= 1:
            raise ArgumentError(f"LinearLR: start_factor must be above 0 and at most 1, it is {start_factor}")
        if not 0 <= end_factor <= 1:
            raise ArgumentError(f"LinearLR: end_factor must lie between 0 and 1, it is {end_factor}")
        self.start_factor = start_factor
        self.end_factor = end_factor
        self.total_iters = total_iters
        super().__init__(optimizer, last_epoch)

    def _step_factor(self) -> float | None:
        if self.last_epoch == 0:
            return self.start_factor
        if self._is_initial or self.last_epoch > self.total_iters:
            return None
        rise = self.end_factor - self.start_factor
        return 1.0 + rise / (self.total_iters * self.start_factor + (self.last_epoch - 1) * rise)

    def _whole_factor(self) -> float:
        if self.total_iters == 0:
            return self.start_factor
        share = min(self.total_iters, self.last_epoch) / self.total_iters
        return self.start_factor + (self.end_factor - self.start_factor) * share


class ExponentialLR(_FactorLR):
    """The rate times `gamma` at every epoch."""

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def _step_factor(self) -> float | None:
        return None if self._is_initial else self.gamma

    def _whole_factor(self) -> float:
        return float(self.gamma**self.last_epoch)


class PolynomialLR(_FactorLR):
    """The rate times `(1 - epoch / total_iters) ** power`, which is 0 from `total_iters` on."""

    def __init__(self, optimizer: Optimizer, total_iters: int = 5, power: float = 1.0, last_epoch: int = -1) -> None:
        self.total_iters = total_iters
        self.power = power
        super().__init__(optimizer, last_epoch)

    def _step_factor(self) -> float | None:
        if self._is_initial or self.last_epoch > self.total_iters:
            return None
        left = 1.0 - self.last_epoch / self.total_iters
        left_before = 1.0 - (self.last_epoch - 1) / self.total_iters
        return float((left / left_before) ** self.power)

    def _whole_factor(self) -> float:
        if self.total_iters == 0:
            return 1.0
        return float((1.0 - min(self.total_iters, self.last_epoch) / self.total_iters) ** self.power)
