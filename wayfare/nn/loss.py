"""Losses of regression and of distributions as modules."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import wayfare.nn.functional as F
from wayfare.core.errors import ArgumentError, ArgumentTypeError
from wayfare.core.tensor import Tensor
from wayfare.nn.functional._reduction import read_reduction
from wayfare.nn.module import Module

__all__ = [
    "L1Loss", "MSELoss", "SmoothL1Loss", "HuberLoss", "KLDivLoss", "PoissonNLLLoss", "GaussianNLLLoss",
]  # fmt: skip


_TENSOR_OPTIONS = ("weight", "pos_weight")


def _without_inputs(init: Callable[..., None]) -> Callable[..., None]:
    """`init`, refusing an output and a target: those are for the call of the loss."""
    names = list(inspect.signature(init).parameters.values())[1:]
    allowed = [n for n, p in enumerate(names) if p.kind is p.POSITIONAL_OR_KEYWORD and p.name in _TENSOR_OPTIONS]

    @functools.wraps(init)
    def checked(self: Loss, *args: Any, **options: Any) -> None:
        ranks = [arg.ndim if isinstance(arg, Tensor) else -1 for arg in args]
        misplaced = [rank for place, rank in enumerate(ranks) if rank >= 0 and place not in allowed]
        # One number, such as a margin, may well be a tensor.
        if misplaced and (max(misplaced) > 0 or sum(rank >= 0 for rank in ranks) > 1):
            kind = type(self).__name__
            inputs = list(inspect.signature(self.forward).parameters)
            call = ", ".join(inputs if len(inputs) > 2 else ["output", "target"])
            raise ArgumentTypeError(f"{kind}: tensors were given to the loss as its options",
                                    fix=f"Make the loss first: nn.{kind}()({call}).")  # fmt: skip
        init(self, *args, **options)

    return checked


class Loss(Module):
    """What all losses share: `reduction` "mean", "sum", or "none" for the losses one by one."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # A loss of the user may take tensors.
        if "__init__" in cls.__dict__ and cls.__module__.startswith("wayfare.nn."):
            cls.__init__ = _without_inputs(cls.__dict__["__init__"])  # type: ignore[method-assign]

    @_without_inputs
    def __init__(self, size_average: Any = None, reduce: Any = None, reduction: str = "mean") -> None:
        super().__init__()
        self.reduction = read_reduction(type(self).__name__, reduction, size_average, reduce)


class WeightedLoss(Loss):
    """A loss with a `weight`, which is a buffer: it is saved and converted with the model that holds the loss."""

    weight: Tensor | None

    def __init__(
        self, weight: Tensor | None = None, size_average: Any = None, reduce: Any = None, reduction: str = "mean"
    ) -> None:
        super().__init__(size_average, reduce, reduction)
        self.register_buffer("weight", weight)


# -- regression ---------------------------------------------------------------------------------------------------


class L1Loss(Loss):
    """The absolute error."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Two tensors of one shape."""
        return F.l1_loss(input, target, reduction=self.reduction)


class MSELoss(Loss):
    """The squared error."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Two tensors of one shape."""
        return F.mse_loss(input, target, reduction=self.reduction)


class SmoothL1Loss(Loss):
    """The error, squared over `2 beta` where it is below `beta`, else absolute less `beta / 2`."""

    def __init__(
        self, size_average: Any = None, reduce: Any = None, reduction: str = "mean", beta: float = 1.0
    ) -> None:
        super().__init__(size_average, reduce, reduction)
        self.beta = beta

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Two tensors of one shape."""
        return F.smooth_l1_loss(input, target, reduction=self.reduction, beta=self.beta)


class HuberLoss(Loss):
    """Half the squared error where it is below `delta`, else `delta` times the absolute less `delta / 2`."""

    def __init__(self, reduction: str = "mean", delta: float = 1.0) -> None:
        super().__init__(reduction=reduction)
        self.delta = delta

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Two tensors of one shape."""
        return F.huber_loss(input, target, reduction=self.reduction, delta=self.delta)


# -- distributions ------------------------------------------------------------------------------------------------


class KLDivLoss(Loss):
    """The Kullback-Leibler divergence of log-probabilities from the target's probabilities.

    `reduction="batchmean"` divides by the size of the batch only, which is the divergence as books define it.
    """

    def __init__(
        self, size_average: Any = None, reduce: Any = None, reduction: str = "mean", log_target: bool = False
    ) -> None:
        by_batch = reduction == "batchmean"
        super().__init__(size_average, reduce, "sum" if by_batch else reduction)
        if by_batch and size_average is None and reduce is None:
            self.reduction = reduction
        self.log_target = log_target

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Log-probabilities, and probabilities (or their logarithms with `log_target`) of the same shape."""
        return F.kl_div(input, target, reduction=self.reduction, log_target=self.log_target)


class PoissonNLLLoss(Loss):
    """The negative log likelihood of counts under Poisson distributions.

    The input is the logarithm of the mean, or with `log_input=False` the mean; `full` adds the constant part.
    """

    def __init__(
        self, log_input: bool = True, full: bool = False, size_average: Any = None, eps: float = 1e-8,
        reduce: Any = None, reduction: str = "mean",
    ) -> None:  # fmt: skip
        super().__init__(size_average, reduce, reduction)
        self.log_input = log_input
        self.full = full
        self.eps = eps

    def forward(self, log_input: Tensor, target: Tensor) -> Tensor:
        """Means (or their logarithms) and counts of one shape."""
        return F.poisson_nll_loss(
            log_input, target, log_input=self.log_input, full=self.full, eps=self.eps, reduction=self.reduction
        )


class GaussianNLLLoss(Loss):
    """The negative log likelihood of the target under normal distributions of given means and variances."""

    def __init__(self, *, full: bool = False, eps: float = 1e-6, reduction: str = "mean") -> None:
        if not eps > 0:
            raise ArgumentError(f"GaussianNLLLoss: eps must be positive, it is {eps}")
        super().__init__(reduction=reduction)
        self.full = full
        self.eps = eps

    def forward(self, input: Tensor, target: Tensor, var: Tensor | float) -> Tensor:
        """Means and targets of one shape; variances of that shape, or one for each row, or a number."""
        return F.gaussian_nll_loss(input, target, var, full=self.full, eps=self.eps, reduction=self.reduction)
